"""The scale of a reference: the total that its cells were, or will be, normalized to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._progress import progress
from tosica._settings import logger, warn_user
from tosica.data._matrix import BLOCK, CellMatrix
from tosica.data._normalize import TARGET_SUM, cell_totals
from tosica.data._scale import (
    SAME_TOTAL,
    Kind,
    checked_blocks,
    detect,
    min_nonzero,
    nonempty,
    sample_positions,
    totals_equal,
    undo_logarithm,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# Columns of obs with the total counts of a cell: scanpy's, its older ones, Seurat's.
_TOTAL_COUNTS = ("total_counts", "n_counts", "nCount_RNA")
# Share of the cells that have to agree: in a few, no gene has a single count.
_SHARE_AGREEING = 0.9
FRACTIONAL = "%s holds counts that are not whole; each cell is scaled to one total"


class Scale(NamedTuple):
    """How a reference's expression was scaled, so that a query can be scaled alike.

    ``kind`` is what the reference's matrix holds. ``target_sum`` is the total that a cell's counts
    are scaled to before the logarithm. ``over`` says what is summed for a cell's total:

    - ``"genes"``: the model's genes.
    - ``"matrix"``: every gene of the matrix at hand, for a reference that was cut down to some
      genes after it had been normalized. ``genes_total`` is then the median total of its cells over
      the model's genes, ``None`` if it is not known.
    - ``"median"``: the model's genes, for such a reference if nothing tells what it was scaled to;
      ``target_sum`` is the median total of its cells.

    ``genes_range`` is the range of the cells' totals over the model's genes, without the lowest and
    the highest percent, for a reference that was cut down.
    """

    kind: Kind
    target_sum: float
    over: Literal["genes", "matrix", "median"]
    genes_total: float | None = None
    # A list, as saved models hold it.
    genes_range: list[float] | None = None

    @property
    def expected_total(self) -> float | None:
        """Total of a cell over the model's genes; ``None`` if it is not known."""
        return self.genes_total if self.over == "matrix" else self.target_sum


def fit_scale(matrix: CellMatrix) -> Scale:
    """Read a whole reference once and say how it is scaled.

    If genes were left out after the normalization, ``raw`` or the total counts in ``obs`` may tell
    what the total was.

    Raises
    ------
    ValueError
        If the matrix is zero everywhere, holds anything but counts and logarithms of normalized
        counts, or counts in some cells and logarithms in others.

    Warns
    -----
    UserWarning
        If nothing tells that the values are natural logarithms of normalized counts.
    """
    detected = detect(matrix)
    totals = []
    with progress(matrix.n_obs, f"reading {matrix.where}") as bar:
        for _, block in checked_blocks(matrix, detected, BLOCK):
            if detected.kind == "log1p":
                block_totals = cell_totals(undo_logarithm(block, "log1p"))
                totals.append(block_totals[block_totals > 0])
            bar.update(block.shape[0])
    if detected.kind == "counts":
        if not detected.is_whole:
            logger.info(FRACTIONAL, matrix.where)
        return Scale("counts", TARGET_SUM, "genes")
    all_totals = np.concatenate(totals)
    if totals_equal(all_totals, detected.tolerance):
        return Scale("log1p", float(np.median(all_totals)), "genes")
    if not detected.is_certain:
        warn_user(
            f"{matrix.where} holds values that do not tell how they were made; they are taken as the natural "
            "logarithm of normalized counts: give counts if they are anything else, such as scaled."
        )
    low, median, high = np.quantile(all_totals, [0.01, 0.5, 0.99]).tolist()
    total = _find_total(matrix)
    if total is not None:
        return Scale("log1p", total, "matrix", median, [low, high])
    logger.info(
        f"{matrix.where}: genes were left out after the normalization, and neither raw nor obs tell the total; "
        f"queries of counts will be scaled to a total of {median:.6g}, the median of these cells"
    )
    return Scale("log1p", median, "median", genes_range=[low, high])


def _find_total(matrix: CellMatrix) -> float | None:
    """Find the total that cells had before genes were left out, in ``raw`` or from ``obs``."""
    cells = sample_positions(matrix.n_obs)
    counts = undo_logarithm(sp.csr_matrix(matrix.take(cells)), "log1p")
    cells = cells[cell_totals(counts) > 0]
    for totals in _candidate_totals(matrix, cells, nonempty(counts)):
        if not len(totals) or not np.isfinite(totals).all():
            continue
        median = float(np.median(totals))
        if median <= 0:
            continue
        agrees = np.abs(totals / median - 1) < SAME_TOTAL
        if agrees.mean() >= _SHARE_AGREEING:
            return median
    return None


def _candidate_totals(
    matrix: CellMatrix, cells: np.ndarray, counts: sp.csr_matrix
) -> Iterator[np.ndarray]:
    """Yield totals that some cells may have had, ``(n_cells,)`` each."""
    of_raw = _totals_by_raw(matrix, cells, counts)
    if of_raw is not None:
        yield of_raw
    obs = matrix.adata.obs
    for key in _TOTAL_COUNTS:
        if key in obs and pd.api.types.is_numeric_dtype(obs[key]):
            depths = obs[key].to_numpy(dtype=np.float64, na_value=np.nan)[cells]
            # This is exact for a cell in which some gene has a single count.
            yield min_nonzero(counts) * depths


def _totals_by_raw(
    matrix: CellMatrix, cells: np.ndarray, counts: sp.csr_matrix
) -> np.ndarray | None:
    """Total of cells over all genes of ``raw``, on the scale of the matrix."""
    if matrix.adata.raw is None:
        return None
    raw = CellMatrix(matrix.adata, use_raw=True)
    if not raw.names.is_unique or not matrix.names.isin(raw.names).all():
        return None
    try:
        kind = detect(raw).kind
    except ValueError:
        return None
    raw_counts = undo_logarithm(sp.csr_matrix(raw.take(cells)), kind)
    shared = cell_totals(raw_counts, raw.names.isin(matrix.names))
    if not shared.all():
        return None
    return cell_totals(counts) / shared * cell_totals(raw_counts)
