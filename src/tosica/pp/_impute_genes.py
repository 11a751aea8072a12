"""Genes that a reference has not measured, drawn from similar cells of other references."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from tosica.data import LogNormalization
from tosica.onto._ontology import read_ontology

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from anndata import AnnData

    from tosica._types import FloatArray, IntArray

_N_COMPONENTS = 30
# Nearest cells that genes are taken of.
_N_NEIGHBORS = 10
# Cells of a similar label lend what no cell of the label can: any number below one over the cells of a reference.
_RATE_OF_SIMILAR = 1e-12


class _Lender(NamedTuple):
    """A reference that lends genes; arrays have a value for each cell that takes some, ``(n_cells,)``.

    ``rows`` are the cells that lend, ``relative_depth`` is the depth of the taking cell by that of the
    lending one, and ``rates`` the number of cells that it was drawn from, next to nothing for cells of a
    similar label.
    """

    cells: AnnData
    rows: IntArray
    relative_depth: FloatArray
    rates: FloatArray


def impute_genes(
    cells: AnnData,
    references: Sequence[AnnData],
    genes: pd.Index,
    relatives: Mapping[str, set[str]],
    similar: Mapping[str, str],
    seed: int,
) -> AnnData:
    """Draw the counts of genes that a reference has not, from similar cells of the same type (hot deck).

    Each cell takes one of its ten nearest cells in each other reference, by the genes that both
    measured, after the mean of the type in its own reference is subtracted from both: references
    differ in it, and hold types in different numbers. Which reference lends the genes that several
    measured is drawn for each cell, in proportion to their cells of its type.

    Parameters
    ----------
    cells
        Cells of the reference, with all genes that it measured.
    references
        The other references, which share enough genes for their cells to be compared.
    genes
        Genes of the cells that are returned. For each cell, a relative in ``references`` measured those
        that ``cells`` lacks.
    relatives
        Label to the labels whose cells lend genes to its cells.
    similar
        Label to the one whose cells lend it what no relative has.
    seed
        Seed of what is drawn.

    Returns
    -------
    The cells, with ``genes``.
    """
    rng = np.random.default_rng(seed)
    lenders = [
        _find_lender(cells, other, relatives, similar, rng) for other in references
    ]
    measured = genes[genes.isin(cells.var_names)]
    missing = genes.difference(measured, sort=False)
    columns = [measured]
    blocks = [cells[:, measured].X]
    # With exponential times, the first of several comes in proportion to its rate.
    rates = np.column_stack([lender.rates for lender in lenders])
    times = np.full(rates.shape, np.inf)
    np.divide(rng.exponential(size=rates.shape), rates, out=times, where=rates > 0)
    has_gene = np.array([missing.isin(lender.cells.var_names) for lender in lenders])
    for has_genes in np.unique(has_gene, axis=1).T:
        drawn = missing[(has_genes == has_gene.T).all(1)]
        first = np.where(has_genes, times, np.inf).argmin(1)
        columns.append(drawn)
        blocks.append(_draw(lenders, first, drawn, rng))
    order = columns[0].append(columns[1:]).get_indexer(genes)
    return ad.AnnData(
        sp.hstack(blocks).tocsr()[:, order],
        obs=cells.obs,
        var=pd.DataFrame(index=genes),
    )


def _find_lender(
    cells: AnnData,
    reference: AnnData,
    relatives: Mapping[str, set[str]],
    similar: Mapping[str, str],
    rng: np.random.Generator,
) -> _Lender:
    """Find a cell of a reference for each cell; the rate is zero where there is none."""
    shared = cells.var_names.intersection(reference.var_names)
    counts = cells[:, shared].X
    reference_counts = reference[:, shared].X
    components = log_normalize(reference_counts)
    query = log_normalize(counts)
    if min(components.shape) > _N_COMPONENTS:
        # Exact up to the signs of components, whatever the seed.
        pca = PCA(_N_COMPONENTS, svd_solver="arpack", random_state=0)
        components = pca.fit_transform(components)
        query = pca.transform(query)
    else:
        components = components.toarray()
        query = query.toarray()
    labels = reference.obs["cell_type"].astype(str)
    rows = np.zeros(cells.n_obs, dtype=np.int64)
    rates = np.zeros(cells.n_obs)
    for label in cells.obs["cell_type"].unique():
        related = np.flatnonzero(labels.isin(relatives[label]))
        rate = float(len(related))
        if not len(related):
            related = np.flatnonzero(labels == similar.get(label))
            rate = _RATE_OF_SIMILAR * len(related)
        if not len(related):
            continue
        is_label = (cells.obs["cell_type"] == label).to_numpy()
        neighbors = NearestNeighbors(n_neighbors=min(_N_NEIGHBORS, len(related)))
        neighbors.fit(components[related] - components[related].mean(0))
        nearest = neighbors.kneighbors(
            query[is_label] - query[is_label].mean(0), return_distance=False
        )
        drawn = rng.integers(0, nearest.shape[1], len(nearest))
        rows[is_label] = related[nearest[np.arange(len(nearest)), drawn]]
        rates[is_label] = rate
    depth = np.asarray(counts.sum(1)).ravel()
    reference_depth = np.asarray(reference_counts.sum(1)).ravel()[rows]
    return _Lender(reference, rows, depth / np.maximum(reference_depth, 1), rates)


def _draw(
    lenders: Sequence[_Lender],
    lender_of_cell: IntArray,
    genes: pd.Index,
    rng: np.random.Generator,
) -> sp.csr_matrix:
    """Draw Poisson counts of the lending cells' expression, at the depth of each cell."""
    blocks = []
    order = []
    for i in np.unique(lender_of_cell):
        lender = lenders[i]
        borrowers = np.flatnonzero(lender_of_cell == i)
        counts = sp.csr_matrix(lender.cells[:, genes].X)[lender.rows[borrowers]]
        rates = sp.csr_matrix(sp.diags(lender.relative_depth[borrowers]) @ counts)
        rates.data = rng.poisson(rates.data).astype(np.float32)
        blocks.append(rates)
        order.append(borrowers)
    return sp.csr_matrix(sp.vstack(blocks))[np.argsort(np.concatenate(order))]


def find_relatives(term_of: Mapping[str, str]) -> dict[str, set[str]]:
    """List for each label itself, and those above and below it in the Cell Ontology.

    Their cells may be of the same type.
    """
    lines = {label: line_of(label, term_of) for label in term_of}
    return {
        label: line
        | {below for below, line_below in lines.items() if label in line_below}
        for label, line in lines.items()
    }


def line_of(label: str, term_of: Mapping[str, str]) -> set[str]:
    """List the labels that a cell with this one has as well: itself and those above it."""
    above = read_ontology().ancestors.get(term_of[label], frozenset())
    return {label, *(name for name, term in term_of.items() if term in above)}


def log_normalize(counts: sp.csr_matrix) -> sp.csr_matrix:
    """Logarithm of one plus counts per 10 000."""
    return LogNormalization().normalize_block(sp.csr_matrix(counts, dtype=np.float64))
