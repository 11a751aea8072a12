"""Test whether the genes of a set add more to a label's score than other genes do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import gumbel_r, skew

from tosica._limits import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable

    import scipy.sparse as sp
    from numpy.typing import NDArray

# Genes of a set that are listed, and genes of a label that tell it.
N_LEADING, N_TELLING = 8, 20
# Permutations of the genes: a Gumbel distribution needs no more.
N_PERMUTATIONS = 100
_TINY = np.finfo(np.float32).eps
COLUMNS = [
    "group",
    "gene_set",
    "n_genes",
    "contribution",
    "z",
    "pval_adj",
    "genes",
    "similar_to",
]


def gene_set_statistics(
    contributions: NDArray[np.floating],
    effects: NDArray[np.floating],
    members: sp.csc_matrix,
    seed: int = 0,
) -> pd.DataFrame:
    r"""Compare the genes of each set with all genes, without the strongest gene of the set.

    A gene counts by what it adds, :math:`c_g`, and by how much more of it there is, :math:`d_g`:
    :math:`r_g = d_g \log(1 + c_g / \tilde c)`, with the median :math:`\tilde c` of what adds anything. A set
    has to be supported by both, a few strong genes do not make a set of many others, and a gene
    that adds nearly nothing, which differs from seed to seed, counts nearly nothing. With :math:`m`
    genes of the set,

    .. math:: z = \frac{\sum_{g \in S} r_g - \max_{g \in S} r_g - (m - 1) \bar r}
        {\sigma_r \sqrt{(m - 1) (n - m + 1) / (n - 1)}}

    is the sum over the set without its largest term, less what is expected of as many of the
    :math:`n` genes drawn at random, in standard deviations of such a draw. A set that rests on one
    gene has none left.

    The p-value is the chance that any set of the collection is as unlikely when the genes are
    permuted :cite:p:`Westfall1993`. Such sums are skewed, so that z is first made normal as that of
    a gamma distribution :cite:p:`Wilson1931`. A Gumbel distribution is fitted to the largest values.
    It is 1 for sets that hold fewer than two of the 20 genes that add most: many genes that
    are a little higher, as those of ribosomes often are, do not tell a label.

    Parameters
    ----------
    contributions, effects
        What each gene adds, and how much more of it there is, at least 0, shape ``(n_genes,)``.
    members
        Which gene is in which set, shape ``(n_genes, n_sets)``.
    seed
        Seed of the permutations.

    Returns
    -------
    One row a set: ``n_genes``, ``contribution`` (the sum of its genes), ``z``, ``pval_adj``, and
    ``similar_to``, the position of the set with a higher z without whose genes this one has no
    evidence, or -1.
    """
    adds = np.asarray(contributions, dtype=np.float64)
    median = np.median(adds[adds > 0]) if adds.any() else 1.0
    weight = np.asarray(effects, dtype=np.float64) * np.log1p(adds / median)
    table = pd.DataFrame(
        {"n_genes": np.diff(members.indptr), "contribution": members.T @ contributions}
    )
    if not weight.any() or not len(table):
        return table.assign(z=0.0, pval_adj=1.0, similar_to=-1)
    n, left = len(weight), table["n_genes"].to_numpy() - 1
    # Nothing varies in a set of one gene, or of all.
    varies = (left > 0) & (left < n)
    deviation = np.full(len(left), np.inf)
    deviation[varies] = weight.std() * np.sqrt((left * (n - left) / (n - 1))[varies])
    skewness = skew(weight) * weight.std() * (n - 2 * left) / ((n - 2) * deviation)
    skewness = np.where(np.abs(skewness) > _TINY, skewness, _TINY)

    def standardize(values: NDArray[np.float64]) -> NDArray[np.float64]:
        of_pairs = np.append(values[members.indices], 0.0)
        total, largest = (
            how.reduceat(of_pairs, members.indptr[:-1]) for how in (np.add, np.maximum)
        )
        return (total - largest - left * weight.mean()) / deviation

    def normalize(z: NDArray[np.float64]) -> NDArray[np.float64]:
        return (
            6 / skewness * (np.cbrt(np.maximum(skewness * z / 2 + 1, 0)) - 1)
            + skewness / 6
        )

    rng = np.random.default_rng(seed)
    largest = [
        normalize(standardize(rng.permutation(weight))).max()
        for _ in range(N_PERMUTATIONS)
    ]
    with np.errstate(all="ignore"):
        # Not a number where the largest values are all one, because few genes add anything.
        null = gumbel_r(*gumbel_r.fit(largest))
    first = np.argsort(-adds, kind="stable")[:N_TELLING]
    tells = members[first].T @ (adds[first] > 0) > 1

    def p_value(values: NDArray[np.float64]) -> NDArray[np.float64]:
        with np.errstate(all="ignore"):
            return np.where(tells, null.sf(normalize(standardize(values))), 1.0)

    table = table.assign(z=standardize(weight), pval_adj=p_value(weight))
    return table.assign(similar_to=_similar(table, weight, members, p_value))


def gene_sets_with_evidence(
    group: str,
    contributions: NDArray[np.floating],
    members: sp.csc_matrix,
    statistics: pd.DataFrame,
    set_names: NDArray[np.object_],
    gene_names: NDArray[np.object_],
) -> pd.DataFrame:
    """List the gene sets of a group whose genes add more than other genes, by z.

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
    z first. ``genes`` are the genes that add most, ``similar_to`` is the name of that set, or empty.
    """
    found = np.flatnonzero(
        (statistics["pval_adj"] <= LIMITS.pvalue) & (statistics["contribution"] > 0)
    )
    found = found[np.argsort(-statistics["z"].to_numpy()[found], kind="stable")]
    table = statistics.iloc[found].reset_index(drop=True)
    of_set = [members.indices[members.indptr[i] : members.indptr[i + 1]] for i in found]
    leading = [
        genes[np.argsort(-contributions[genes], kind="stable")[:N_LEADING]]
        for genes in of_set
    ]
    table["group"], table["gene_set"] = group, set_names[found]
    table["genes"] = [
        ", ".join(gene_names[genes[contributions[genes] > 0]]) for genes in leading
    ]
    table["similar_to"] = np.where(
        table["similar_to"] < 0, "", set_names[table["similar_to"]]
    )
    return table[COLUMNS]


def _similar(
    table: pd.DataFrame,
    weight: NDArray[np.float64],
    members: sp.csc_matrix,
    p_value: Callable[[NDArray], NDArray],
) -> NDArray[np.intp]:
    """Find the sets that have no evidence without those with a higher z, and the one they share most with."""
    similar, shown = np.full(len(table), -1), np.empty(0, dtype=np.intp)
    found = np.flatnonzero(table["pval_adj"] <= LIMITS.pvalue)
    others = weight.copy()
    for i in found[np.argsort(-table["z"].to_numpy()[found], kind="stable")]:
        if p_value(others)[i] <= LIMITS.pvalue:
            others[members[:, i].indices] = 0
            shown = np.append(shown, i)
        else:
            similar[i] = shown[
                np.argmax(
                    members[:, shown].T @ (members[:, i].toarray()[:, 0] * weight)
                )
            ]
    return similar
