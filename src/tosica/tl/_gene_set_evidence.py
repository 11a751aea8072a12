"""Test whether the genes of a set add more to a label's score than other genes do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control, norm

from tosica._limits import LIMITS

if TYPE_CHECKING:
    import scipy.sparse as sp
    from numpy.typing import NDArray

# Genes of a set that are listed.
N_LEADING = 8
COLUMNS = ["group", "gene_set", "n_genes", "contribution", "score", "z", "pval", "pval_adj", "genes", "similar_to"]


def gene_set_statistics(contributions: NDArray[np.floating], members: sp.csc_matrix) -> pd.DataFrame:
    r"""Compare the genes of each set with all genes, without the strongest gene of the set.

    With :math:`r_g = \sqrt{c_g}` for a gene that adds :math:`c_g`, and :math:`m` genes of the set,

    .. math:: z = \frac{\sum_{g \in S} r_g - \max_{g \in S} r_g - (m - 1) \bar r}
        {\sigma_r \sqrt{(m - 1) (n - m + 1) / (n - 1)}}

    is the sum over the set without its largest term, less what is expected of as many of the
    :math:`n` genes drawn at random, in standard deviations of such a draw. A set that rests on one
    gene has none left. Roots, so that a few strong genes do not make a set of many others.

    Parameters
    ----------
    contributions
        What each gene adds, at least 0, shape ``(n_genes,)``.
    members
        Which gene is in which set, shape ``(n_genes, n_sets)``.

    Returns
    -------
    One row a set: ``n_genes``, ``contribution`` (the sum of its genes), ``score`` (``z`` times the
    contribution without the strongest gene: effect and significance in one, as the π-value of
    :cite:t:`Xiao2014`), ``z``, ``pval`` (one-sided, normal) and ``pval_adj`` (Benjamini and
    Hochberg, over all sets).
    """
    root = np.sqrt(contributions, dtype=np.float64)
    size = np.diff(members.indptr)
    n, mean, variance = len(root), root.mean(), root.var()
    of_pairs = root[members.indices]
    total = np.add.reduceat(np.append(of_pairs, 0.0), members.indptr[:-1])
    largest = np.maximum.reduceat(np.append(of_pairs, 0.0), members.indptr[:-1])
    left = size - 1
    deviation = np.sqrt(variance * left * (n - left) / (n - 1))
    excess = total - largest - left * mean
    # A set of one gene has nothing left to test.
    z = np.divide(excess, deviation, out=np.zeros(len(size)), where=deviation > 0)
    pval = norm.sf(z)
    pval[left < 1] = 1.0
    contribution = members.T @ np.asarray(contributions, dtype=np.float64)
    return pd.DataFrame(
        {
            "n_genes": size,
            "contribution": contribution,
            "score": z * (contribution - largest**2),
            "z": z,
            "pval": pval,
            "pval_adj": false_discovery_control(pval) if len(pval) else pval,
        }
    )


def gene_sets_with_evidence(
    group: str,
    contributions: NDArray[np.floating],
    members: sp.csc_matrix,
    statistics: pd.DataFrame,
    set_names: NDArray[np.object_],
    gene_names: NDArray[np.object_],
) -> pd.DataFrame:
    """List the gene sets of a group whose genes add more than other genes, by their score.

    Parameters
    ----------
    group
        Name of the group.
    contributions, members
        As in :func:`gene_set_statistics`.
    statistics
        What it returns.
    set_names, gene_names
        Names of the gene sets and of the genes.

    Returns
    -------
    Table with the columns ``COLUMNS``: the sets with an adjusted p-value up to 5 %, the highest
    score first. ``genes`` are the genes that add most, ``similar_to`` is the set above from whose
    genes more than half of the contribution comes, or empty.
    """
    found = np.flatnonzero((statistics["pval_adj"] <= LIMITS.pvalue) & (statistics["contribution"] > 0))
    found = found[np.argsort(-statistics["score"].to_numpy()[found], kind="stable")]
    table = statistics.iloc[found].reset_index(drop=True)
    of_set = [members.indices[members.indptr[i] : members.indptr[i + 1]] for i in found]
    leading = [genes[np.argsort(-contributions[genes], kind="stable")[:N_LEADING]] for genes in of_set]
    table["group"], table["gene_set"] = group, set_names[found]
    table["genes"] = [", ".join(gene_names[genes[contributions[genes] > 0]]) for genes in leading]
    table["similar_to"] = _similar(contributions, of_set, list(table["gene_set"]))
    return table[COLUMNS]


def _similar(contributions: NDArray[np.floating], of_set: list[NDArray[np.intp]], names: list[str]) -> list[str]:
    """Name the first set that holds the genes of more than half of each set's contribution."""
    shown: list[tuple[str, NDArray[np.bool_]]] = []
    similar = []
    for name, genes in zip(names, of_set, strict=True):
        added = contributions[genes]
        first = next((other for other, holds in shown if added[holds[genes]].sum() > added.sum() / 2), "")
        similar.append(first)
        if not first:
            holds = np.zeros(len(contributions), dtype=bool)
            holds[genes] = True
            shown.append((name, holds))
    return similar
