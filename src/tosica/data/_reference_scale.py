"""Say how a reference is scaled: counts, or the logarithm of counts per a total."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._logging import logger
from tosica._progress import progress
from tosica.data._cell_matrix import CellMatrix
from tosica.data._fractional_counts import are_fractional_counts, log_fractional
from tosica.data._odd_values import refuse_odd_values
from tosica.data._scale import TARGET_SUM, Scale, detect_values, detected_blocks
from tosica.data._transforms import (
    NATURAL,
    SAME_TOTAL,
    agree,
    recognize,
    refuse_transform,
    sample_cells,
    sample_positions,
    smallest,
    undo,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tosica.data._cell_matrix import Block

_BLOCK = 4096
# Columns of obs with the total counts of a cell: scanpy's, its older ones, Seurat's.
_TOTAL_COUNTS = ("total_counts", "n_counts", "nCount_RNA")
# Share of the cells whose counts have to agree with such a column: in a few, no gene has one count.
_SHARE_AGREEING = 0.9
# A group of cells with a total of its own has this share of the cells, and this number.
_SHARE_OF_GROUP, _FEWEST_IN_GROUP = 0.05, 3
# Groups of cells on different scales differ so many times; by depth, they hardly do.
_APART, _SAME_DEPTH, _GAP = 5.0, 3.0, 1.5


def scale_of(
    matrix: CellMatrix,
    *,
    hint: Callable[[], str] | None = None,
    values: str = "expression",
) -> Scale:
    """Read a whole reference once and say how it is scaled.

    Parameters
    ----------
    matrix
        Matrix of the reference. If genes were left out after the normalization, ``raw`` or the
        total counts in ``obs`` may tell what the total was.
    hint, values
        As in :func:`~tosica.data._scale.detect_values`.

    Raises
    ------
    ValueError
        As :func:`~tosica.data._scale.detect_values`; also if the matrix is all zero, holds anything
        but counts and the natural logarithm of normalized counts, or cells on different scales.
    """
    cells = sample_cells(matrix)
    fractional = are_fractional_counts(cells)
    detect = partial(detect_values, hint=hint, values=values, fractional=fractional)
    found: str | None = None
    totals, units = [], []
    with progress(matrix.n_obs, f"reading {matrix.where}") as step:
        for _, block, found in detected_blocks(matrix, _BLOCK, detect):
            if found == "log1p":
                of_block = _totals_and_units(block)
                totals.append(of_block[0])
                units.append(of_block[1])
            step.update(block.shape[0])
    if found is None:
        raise ValueError(f"{matrix.where} is zero everywhere.")
    recognized = recognize(cells) if found == "log1p" else None
    known = found == "counts" or recognized is not None
    refuse_odd_values(cells, matrix.where, values, recognized=known)
    if fractional:
        log_fractional(matrix.where)
    if found == "counts":
        return Scale("counts", TARGET_SUM, "genes")
    total = np.concatenate(totals)
    if recognized is not None:
        refuse_transform(recognized, matrix.where, values, (NATURAL,))
    if agree(total):
        return Scale("log1p", float(np.median(total)), "genes")
    _refuse_different_totals(total, np.concatenate(units), matrix.where)
    if recognized is None:
        logger.info(
            "%s: the values do not tell which logarithm was taken; they are taken as the natural "
            "logarithm of normalised counts",
            matrix.where,
        )
    low, of_genes, high = (float(x) for x in np.quantile(total, [0.01, 0.5, 0.99]))
    before = _known_total(matrix)
    if before is not None:
        return Scale("log1p", before, "matrix", of_genes, [low, high])
    logger.info(
        "%s: genes were left out after the normalisation, and neither raw nor obs tell the total; "
        "queries of counts will be scaled to a total of %.6g, the median of these cells",
        matrix.where,
        of_genes,
    )
    return Scale("log1p", of_genes, "median", genes_range=[low, high])


def _totals_and_units(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Total and smallest value of each cell before the logarithm, of cells that are not empty."""
    plain = undo(block, NATURAL)
    if not sp.issparse(plain):
        total = plain.sum(1)
        unit = np.where(plain > 0, plain, np.inf).min(1)
        return total[total > 0], unit[total > 0]
    plain.eliminate_zeros()
    plain = plain[np.diff(plain.indptr) > 0]
    return np.asarray(plain.sum(1)).ravel(), smallest(plain)


def _refuse_different_totals(total: np.ndarray, unit: np.ndarray, where: str) -> None:
    """Refuse cells that were scaled to a few different totals.

    ``total`` and ``unit`` are the total and the smallest value of each cell, ``(n_cells,)``.
    """
    advice = "normalise all of them alike, or give counts."
    fewest = max(_SHARE_OF_GROUP * len(total), _FEWEST_IN_GROUP)
    # Totals that agree are in one bin, or in two beside one another.
    bins, n = np.unique(np.rint(np.log(total) / SAME_TOTAL), return_counts=True)
    middle = np.exp(bins * SAME_TOTAL)
    groups = middle[n >= fewest]
    # Neighboring bins are one group: with genes left out, totals vary by a few percent.
    apart = np.append(groups[:1], groups[1:][groups[1:] > groups[:-1] * (1 + 3 * SAME_TOTAL)])
    if len(apart) > 1 and n[n >= fewest].sum() > _SHARE_AGREEING * len(total):
        shown = " and ".join(f"{group:.3g}" for group in (apart[0], apart[-1]))
        raise ValueError(
            f"{where} holds cells that were scaled to different totals, such as {shown}: {advice}"
        )
    # With genes left out, totals vary. Cells on another scale have both totals and values of one
    # count that are many times as large; other types or depths do not.
    order = np.argsort(total)
    gaps = np.log(total[order][1:] / total[order][:-1])
    allowed = slice(int(np.ceil(fewest)) - 1, len(total) - int(np.ceil(fewest)))
    if not len(gaps[allowed]) or gaps[allowed].max() < np.log(_GAP):
        return
    first = int(gaps[allowed].argmax()) + allowed.start + 1
    low, high = order[:first], order[first:]

    def ratio(x: np.ndarray) -> float:
        return float(np.median(x[high]) / np.median(x[low]))

    same_depth = 1 / _SAME_DEPTH < ratio(total / unit) < _SAME_DEPTH
    if min(ratio(total), ratio(unit)) > _APART and same_depth:
        raise ValueError(
            f"{where} holds cells that were scaled to different totals, one about "
            f"{ratio(unit):.3g} times the other: {advice}"
        )


def _known_total(matrix: CellMatrix) -> float | None:
    """Find the total that cells had before genes were left out, in ``raw`` or from ``obs``."""
    adata = matrix.adata
    cells = sample_positions(matrix.n_obs)
    plain = undo(sp.csr_matrix(matrix.take(cells)), NATURAL)
    plain.eliminate_zeros()
    some = np.diff(plain.indptr) > 0
    cells, plain = cells[some], plain[some]
    candidates = [_totals_by_raw(matrix, cells, plain)]
    for key in _TOTAL_COUNTS:
        if key in adata.obs and pd.api.types.is_numeric_dtype(adata.obs[key]):
            counts = adata.obs[key].to_numpy(dtype=np.float64, na_value=np.nan)[cells]
            # Where one gene has a single count, this is exact.
            candidates.append(smallest(plain) * counts)
    for totals in candidates:
        if totals is None or not len(totals) or not np.isfinite(totals).all():
            continue
        middle = float(np.median(totals))
        if middle > 0 and np.mean(np.abs(totals / middle - 1) < SAME_TOTAL) >= _SHARE_AGREEING:
            return middle
    return None


def _totals_by_raw(
    matrix: CellMatrix, cells: np.ndarray, plain: sp.csr_matrix
) -> np.ndarray | None:
    """Total of cells over all genes of ``raw``, on the scale of the matrix."""
    if matrix.adata.raw is None:
        return None
    raw = CellMatrix(matrix.adata, use_raw=True)
    columns = raw.names.get_indexer(matrix.names) if raw.names.is_unique else np.array([-1])
    if (columns < 0).any():
        return None
    block = sp.csr_matrix(raw.take(cells))
    try:
        fractional = are_fractional_counts(block)
        kind = detect_values(block, raw.where, fractional=fractional)
    except ValueError:
        return None
    if kind == "log1p":
        block = undo(block, NATURAL)
    shared = np.asarray(block[:, columns].sum(1, dtype=np.float64)).ravel()
    if not shared.all():
        return None
    whole = np.asarray(block.sum(1, dtype=np.float64)).ravel()
    return np.asarray(plain.sum(1)).ravel() / shared * whole
