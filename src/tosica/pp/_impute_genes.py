"""Genes that a panel has not measured, drawn from similar cells of other references."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.decomposition import PCA

from tosica.data import LogNormalization
from tosica.onto._ontology import read_ontology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anndata import AnnData

    from tosica._types import BoolArray, IntArray, ObjectArray

_N_COMPONENTS = 30
# Nearest cells that genes are taken of; a type with fewer than twice as many is joined by similar ones.
_N_NEIGHBORS = 10


def impute_genes(
    cells: AnnData,
    donors: AnnData,
    is_measured: BoolArray,
    term_of: Mapping[str, str],
    seed: int,
) -> AnnData:
    """Draw the counts of genes that a reference has not, from similar cells of the same type.

    Cells are compared with others of their type after the mean of the type in their own reference is
    subtracted from both: references differ in it, and hold types in different numbers.

    Parameters
    ----------
    cells
        Cells of the reference, with the genes that it measured in the order of ``donors``.
    donors
        Cells of the references that measured all genes.
    is_measured
        Which of the genes of ``donors`` the reference measured, ``(n_genes,)``.
    term_of
        Term of each label.
    seed
        Seed of what is drawn.

    Returns
    -------
    The cells, with the genes of ``donors``.
    """
    donor_counts = donors[:, is_measured].X
    donor_expression = log_normalize(donor_counts).toarray()
    n_components = min(_N_COMPONENTS, *(size - 1 for size in donor_expression.shape))
    pca = PCA(max(n_components, 1), random_state=seed).fit(donor_expression)
    components = pca.transform(donor_expression)
    query = pca.transform(log_normalize(cells.X).toarray())
    rng = np.random.default_rng(seed)
    missing = donors[:, ~is_measured].X.toarray()
    depth = np.asarray(cells.X.sum(1)).ravel()
    depth_of_donor = np.asarray(donor_counts.sum(1)).ravel()
    imputed = np.zeros((cells.n_obs, missing.shape[1]), dtype=np.float32)
    types = donors.obs["cell_type"].to_numpy()
    references = donors.obs["reference"].to_numpy()
    for cell_type in cells.obs["cell_type"].unique():
        pool = _pool(cell_type, types, term_of)
        rows = np.flatnonzero(cells.obs["cell_type"] == cell_type)
        centered = query[rows] - query[rows].mean(0)
        frame = pd.DataFrame(components[pool])
        of_donors = frame - frame.groupby(references[pool]).transform("mean")
        # A cell's own square is the same for all donors.
        squares = np.square(of_donors).sum(axis=1).to_numpy()
        distance = squares - 2 * centered @ of_donors.to_numpy().T
        near = pool[np.argsort(distance, axis=1, kind="stable")[:, :_N_NEIGHBORS]]
        donor = near[np.arange(len(rows)), rng.integers(0, near.shape[1], len(rows))]
        relative_depth = depth[rows] / np.maximum(depth_of_donor[donor], 1)
        imputed[rows] = rng.poisson(missing[donor] * relative_depth[:, None])
    completed = sp.hstack([cells.X, sp.csr_matrix(imputed)]).tocsr()
    positions = np.concatenate(
        [np.flatnonzero(is_measured), np.flatnonzero(~is_measured)]
    )
    return ad.AnnData(
        completed[:, np.argsort(positions)],
        obs=cells.obs,
        var=pd.DataFrame(index=donors.var_names),
    )


def _pool(cell_type: str, types: ObjectArray, term_of: Mapping[str, str]) -> IntArray:
    """Find the donors that may be of a type; of too few, those of similar types, and then all."""
    line = line_of(cell_type, term_of)
    lines = {name: line_of(name, term_of) for name in np.unique(types)}
    alike = {
        name: len(line & donor_line) / len(line | donor_line)
        for name, donor_line in lines.items()
    }
    is_related = np.array([name in line or cell_type in lines[name] for name in types])
    likeness = np.array([alike[name] for name in types])
    for is_donor in (is_related & (likeness > 0), likeness > 0):
        if is_donor.sum() >= 2 * _N_NEIGHBORS:
            return np.flatnonzero(is_donor)
    return np.arange(len(types))


def line_of(label: str, term_of: Mapping[str, str]) -> set[str]:
    """List the labels that a cell with this one has as well: itself and those above it."""
    above = read_ontology().ancestors.get(term_of[label], frozenset())
    return {label, *(name for name, term in term_of.items() if term in above)}


def unrelated(
    labels: set[str], types: set[str], term_of: Mapping[str, str]
) -> list[str]:
    """List the labels that are neither among types nor above or below one of them."""
    above = types.union(*(line_of(cell_type, term_of) for cell_type in types))
    return sorted(
        label
        for label in labels
        if label not in above and not line_of(label, term_of) & types
    )


def log_normalize(counts: sp.csr_matrix) -> sp.csr_matrix:
    """Logarithm of one plus counts per 10 000."""
    return LogNormalization().normalize_block(counts.astype(np.float64))
