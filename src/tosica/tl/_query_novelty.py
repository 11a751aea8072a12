"""Scores of a query's cells: what they share taken off, neighbors averaged, p-values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.neighbors import NearestNeighbors

from tosica._logging import without_query_lines
from tosica._parallel import keep_torch_threads
from tosica.linear import (
    CLUSTER_SIZE,
    NoveltyStatistics,
    averages_of,
    find_neighbor_components,
    pvalues,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica._progress import Progress
    from tosica.model import TOSICA

# Cells of a label that the query must have for the label to count in what the query shares.
MIN_CELLS = 5
# Labels that decide by their median what the query shares.
_FEWEST_VOTES = 3
# Where scores of known and other cells are compared: new types have high scores, so most of the
# cells below this quantile are known, unless nine tenths of a label's cells are new.
_QUANTILE = 0.1
# Cells of the query that the components are fitted to.
_SAMPLE = 5_000
_BATCH_SIZE = 512
# With more cells, nearest neighbors are found approximately.
_MAX_CELLS_EXACT = 20_000
# The search takes more neighbors than are averaged, to find the nearest.
_N_NEIGHBORS = 15


class Query(NamedTuple):
    """Normalized expression of all cells, ``(n_obs, n_genes)``, and which genes were measured."""

    x: sp.csr_matrix
    measured: NDArray[np.bool_] | None


class Scores(NamedTuple):
    """A score and a p-value of each cell, ``(n_obs,)`` each."""

    scores: NDArray[np.float64]
    pvalues: NDArray[np.float64]


def read_query(
    model: TOSICA,
    adata: AnnData,
    step: Progress,
    *,
    layer: str | None = None,
    use_raw: bool = False,
) -> Query:
    """Read all cells as the model reads them. They are sparse in memory, also of a backed query."""
    parts, measured = [], None
    with without_query_lines():
        for batch in model.iter_batches(
            adata, layer=layer, use_raw=use_raw, batch_size=_BATCH_SIZE
        ):
            parts.append(sp.csr_matrix(batch.x.cpu().numpy()))
            measured = batch.measured
            step.update(parts[-1].shape[0])
    return Query(sp.vstack(parts).tocsr(), None if measured is None else measured.cpu().numpy())


def count_labels(positions: NDArray[np.integer]) -> int:
    """Number of labels with enough cells to count in what the query shares."""
    return int((np.bincount(positions[positions >= 0]) >= MIN_CELLS).sum())


def common_shift(
    query: Query, statistics: NoveltyStatistics, positions: NDArray[np.integer]
) -> NDArray[np.float64] | None:
    """Median over labels of the difference between query and reference, ``(n_genes,)``.

    ``None`` if it is no larger than the difference of two samples of the same cells: then the query
    is of the reference's batch, and to subtract it would add noise.
    """
    differences, variances = [], []
    n_reference = np.bincount(statistics.cells_labels, minlength=len(statistics.means))
    for label, mean in enumerate(statistics.means):
        of_label = positions == label
        if of_label.sum() >= MIN_CELLS:
            differences.append(np.asarray(query.x[of_label].mean(0)).ravel() - mean)
            variances.append(1 / of_label.sum() + 1 / max(n_reference[label], 1))
    # Labels that are lacking vote for no difference, so that one label alone decides nothing.
    while len(differences) < _FEWEST_VOTES:
        differences.append(np.zeros(query.x.shape[1]))
    shift, weights = np.median(differences, axis=0), statistics.gene_scale() ** 2
    if query.measured is not None:
        shift, weights = shift * query.measured, weights * query.measured
    # Variance of a median, as a share of the variance of a cell.
    of_median = np.pi / 2 * np.mean(variances) / len(differences)
    expected = of_median * (weights @ statistics.variance)
    return shift if weights @ np.square(shift) > expected else None


def score_in_blocks(
    score: Callable[..., tuple[NDArray[np.float64], NDArray[np.int64]]],
    query: Query,
    shift: NDArray[np.float64] | None,
    step: Progress,
    average: sp.csr_matrix | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Score cells, or averages of them, block by block: all may not fit in memory as dense rows."""
    blocks = []
    for start in range(0, query.x.shape[0], _BATCH_SIZE):
        rows = slice(start, start + _BATCH_SIZE)
        x = query.x[rows] if average is None else average[rows] @ query.x
        blocks.append(score(x.toarray(), query.measured, shift))
        step.update(x.shape[0])
    return np.concatenate([s for s, _ in blocks]), np.concatenate([n for _, n in blocks])


@keep_torch_threads()
def average_neighbors(
    query: Query, statistics: NoveltyStatistics, random_state: int
) -> sp.csr_matrix:
    """Weights that average each cell and its nearest neighbors in the query, ``(n_obs, n_obs)``."""
    n_obs = query.x.shape[0]
    sample = np.random.default_rng(random_state).permutation(n_obs)[:_SAMPLE]
    components = find_neighbor_components(
        query.x[np.sort(sample)], statistics.gene_scale(), random_state
    )
    embedded = query.x @ components
    if n_obs <= _MAX_CELLS_EXACT:
        near = NearestNeighbors(n_neighbors=CLUSTER_SIZE - 1).fit(embedded).kneighbors()[1]
    else:
        # It compiles functions when it is imported, which takes seconds.
        from pynndescent import NNDescent

        index = NNDescent(embedded, n_neighbors=_N_NEIGHBORS, random_state=random_state)
        near = index.neighbor_graph[0][:, 1:CLUSTER_SIZE]
    # A cell, and the nearest of the others; for one that was not found, the cell once more.
    own = np.arange(n_obs)[:, None]
    return averages_of(np.hstack([own, np.where(near < 0, own, near)]))


def calibrate(
    scores: NDArray[np.float64],
    nearest: NDArray[np.integer],
    known: NDArray[np.floating],
    known_nearest: NDArray[np.integer],
    correct: bool,
) -> Scores:
    """Lower the scores of each label until the lowest are as low as those of known cells."""
    if correct:
        n_labels = int(max(nearest.max(), known_nearest.max())) + 1
        excess = np.full(n_labels, np.nan)
        for label in range(n_labels):
            of_label, of_known = nearest == label, known_nearest == label
            if min(of_label.sum(), of_known.sum()) >= MIN_CELLS:
                lowest = [np.quantile(s, _QUANTILE) for s in (scores[of_label], known[of_known])]
                excess[label] = lowest[0] - lowest[1]
        if not np.isnan(excess).all():
            # Labels with too few cells to tell are corrected as most others are.
            excess[np.isnan(excess)] = np.nanmedian(excess)
            scores = scores - np.maximum(excess, 0)[nearest]
    return Scores(scores, pvalues(scores, known))
