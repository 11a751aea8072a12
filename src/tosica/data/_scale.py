"""Tell counts and the natural logarithm of counts per a total; refuse everything else.

Normalized counts of a cell are multiples of one number, the value of a single count. So a
logarithm is recognized by undoing it: the values are then multiples of the cell's smallest one,
also if genes were left out. Values that are no multiples, such as those of length-normalized reads,
are recognized by totals that agree between cells. If neither tells, small fractional values are
taken as natural logarithms, and everything else is refused in one sentence.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy.optimize import brentq

from tosica._text import call, in_python, parameter
from tosica.data._matrix import BLOCK, CellMatrix
from tosica.data._normalize import cell_totals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anndata import AnnData

    from tosica.data._normalize import Block

Kind = Literal["counts", "log1p"]
# A sample has 256 cells, in runs of neighbors from all over the matrix.
_N_RUNS = 32
_RUN_LENGTH = 8
# Totals of fewer different cells may agree by accident.
FEWEST = 8
# Totals that agree this well were made equal by a normalization over exactly these genes.
SAME_TOTAL = 0.01
# Logarithms of one decimal and more change a total by at most this share.
_ROUNDED_TOTAL = float(np.expm1(0.05))
# Multiples of a cell's smallest value are counted in this range: rounding makes larger ones
# fractional. A cell is informative with this many of them, and fits if this share is whole.
_MULTIPLES = (1.5, 8.5)
_FEWEST_MULTIPLES = 5
_SHARE_WHOLE = 0.9
# A value is whole if it is as near, and numbers of counts up to this one are judged where they are
# computed from two values of a cell. Factors of a normalization lie in this range.
_NEAR_WHOLE = 0.05
_LARGEST_MULTIPLE = 20
_FACTORS = (1e-9, 1e9)
# Cells on another scale are a mixture from three of them and this share on.
_SHARE_OF_MIXTURE = 0.1
# log1p of counts per million stays below 13.9; larger values, if nothing tells, are no logarithm.
_LARGEST_LOG = 15.0
# Standard deviation of the logarithm of cells' totals: at most 1.7 for logarithms of five data sets
# at three depths, at least 2 for counts of SoupX and DecontX that are taken as logarithms.
_SPREAD_OF_TOTALS = 1.9
# Counts of fewer genes, such as those of antibodies, may be spread as evenly as ranks by accident.
_FEWEST_RANKS = 100
# log1p values above this one would be counts above 10^13.
_IMPOSSIBLE_LOG = 30.0


class _Transform(NamedTuple):
    """A transform of counts: its inverse, and the largest value that it may give."""

    name: str
    invert: Callable[[np.ndarray], np.ndarray]
    largest: float


# All but two are refused; they are tried so that their values are not taken for logarithms.
_TRANSFORMS = (
    _Transform("counts", lambda x: x, np.inf),
    _Transform("log1p", np.expm1, _IMPOSSIBLE_LOG),
    _Transform("log2", lambda x: np.expm1(x * np.log(2)), 40.0),
    _Transform("log10", lambda x: np.expm1(x * np.log(10)), 12.0),
    _Transform("log1p of log1p", lambda x: np.expm1(np.expm1(x)), 3.4),
    _Transform("square root", np.square, np.inf),
)


class DetectedScale(NamedTuple):
    """Scale of a matrix, with the cells that it was recognized by.

    ``counts`` are the sampled cells with the logarithm undone, CSR. ``is_certain`` is false if
    nothing tells which logarithm was taken. ``is_whole`` says whether values are whole numbers.
    Totals that were made equal differ by less than the share ``tolerance``.
    """

    kind: Kind
    counts: sp.csr_matrix
    is_certain: bool = True
    is_whole: bool = False
    tolerance: float = SAME_TOTAL

    def totals(self, columns: np.ndarray | None = None) -> np.ndarray:
        """Total of each sampled cell over some columns, by default over all, ``(n_cells,)``."""
        return cell_totals(self.counts, columns)

    def common_total(self) -> float | None:
        """Total that all cells have, ``None`` if they differ or are too few to know."""
        totals = self.totals()
        if _n_unique_rows(self.counts) < FEWEST:
            return None
        if not totals_equal(totals, self.tolerance):
            return None
        return float(np.median(totals))

    def check(self, block: Block, where: str, first_cell: int) -> None:
        """Refuse a block with counts among logarithms, or logarithms among counts."""
        values = block.data if sp.issparse(block) else block
        is_integer = not np.issubdtype(values.dtype, np.inexact)
        if is_integer or (self.kind == "counts" and not self.is_whole):
            return
        is_whole = _is_whole(values) & (values != 0)
        n_values = _sum_rows(block, values != 0)
        n_whole = _sum_rows(block, is_whole)
        # Logarithms are whole by accident only, rounded ones more often; a part of the counts may be
        # shared between genes.
        if self.kind == "counts":
            is_wrong = 2 * n_whole < n_values
        else:
            share = 0.5 if self.tolerance == SAME_TOTAL else 1.0
            is_wrong = n_whole >= share * n_values
            is_wrong &= _whole_values_differ(block, is_whole)
            is_wrong |= _sum_rows(block, values > _IMPOSSIBLE_LOG) > 0
        is_wrong &= n_values >= 3
        if is_wrong.any():
            raise scale_error(where, first_cell + int(is_wrong.argmax()))


def detect(matrix: CellMatrix) -> DetectedScale:
    """Tell the scale of a matrix by a sample of its cells.

    Raises
    ------
    ValueError
        If the matrix is zero everywhere, or values are missing, infinite or negative, or neither
        counts nor log-normalized.
    """
    cells = nonempty(matrix.take(sample_positions(matrix.n_obs)))
    if not cells.shape[0]:
        cells = _find_nonempty(matrix)
    if not (np.isfinite(cells.data).all() and cells.data.min() >= 0):
        # The message names the first such cell of the matrix.
        for offset, block in matrix.blocks(BLOCK):
            check_values(block, matrix.where, offset, matrix)
    return _detect_cells(cells, matrix.where)


def _find_nonempty(matrix: CellMatrix) -> sp.csr_matrix:
    """Read cells of the first block that expresses something."""
    for _, block in matrix.blocks(BLOCK):
        cells = nonempty(block)
        if cells.shape[0]:
            return cells[: _N_RUNS * _RUN_LENGTH]
    raise ValueError(
        f"{matrix.where} is zero everywhere: name the layer, or raw, that holds the expression."
    )


def detect_values(block: Block, where: str, *, first_cell: int = 0) -> Kind | None:
    """Tell the scale of a block of rows; ``None`` if it is all zero.

    Parameters
    ----------
    block
        Rows of an expression matrix, all of which are checked.
    where
        Name of the matrix in messages.
    first_cell
        Position of the block's first row.

    Raises
    ------
    ValueError
        As :func:`detect`; also if cells are on different scales.
    """
    check_values(block, where, first_cell)
    cells = nonempty(block)
    if not cells.shape[0]:
        return None
    detected = _detect_cells(cells[sample_positions(cells.shape[0])], where)
    detected.check(block, where, first_cell)
    return detected.kind


def checked_blocks(
    matrix: CellMatrix, detected: DetectedScale, size: int
) -> Iterator[tuple[int, Block]]:
    """Read a matrix in blocks, and refuse cells on another scale than ``detected``.

    Raises
    ------
    ValueError
        If values are missing, infinite, negative, or not those of the sample.
    """
    for offset, block in matrix.blocks(size):
        check_values(block, matrix.where, offset, matrix)
        detected.check(block, matrix.where, offset)
        yield offset, block


def check_values(
    block: Block,
    where: str,
    first_cell: int,
    matrix: CellMatrix | None = None,
    *,
    signed: bool = False,
) -> None:
    """Refuse values that are missing, infinite, or unless ``signed`` negative; the message names the first cell.

    It also says where values that were not scaled are, if ``matrix`` is given.
    """
    values = block.data if sp.issparse(block) else block
    is_bad = ~np.isfinite(values)
    if is_bad.any():
        description = "NaN" if np.isnan(values).any() else "infinity"
        raise ValueError(
            f"{where} holds {description} (first in cell {row_of(block, is_bad) + first_cell}); "
            "replace or remove such values."
        )
    if signed or not values.size or values.min() >= 0:
        return
    hint = ""
    if matrix is not None:
        hint = f" {describe_unscaled(matrix.adata, name=matrix.name)}"
    raise ValueError(
        f"{where} holds negative values (first in cell {row_of(block, values < 0) + first_cell}),"
        f" so it was scaled or centered; tosica needs counts or log-normalized expression.{hint}"
    )


def scale_error(where: str, cell: int | None = None) -> ValueError:
    """Make the error for values on a scale that is not taken, or not that of the other cells."""
    at = "" if cell is None else f" (see cell {cell})"
    return ValueError(
        f"{where} holds values that are neither counts nor log-normalized expression, or not alike in "
        f"all cells{at}: give counts for all cells (those of SoupX or DecontX rounded by np.rint), "
        "or call sc.pp.normalize_total and sc.pp.log1p on them."
    )


# ------------------------------------------------------------------ recognition of a sample


def sample_positions(n_obs: int) -> np.ndarray:
    """Choose cells from all over a matrix of ``n_obs``, sorted, ``(n_sampled,)``.

    Of a matrix that has only these cells, all are chosen.
    """
    last_run = max(n_obs - _RUN_LENGTH, 0)
    run_starts = np.unique(np.linspace(0, last_run, _N_RUNS).astype(int))
    cells = np.unique(run_starts[:, None] + np.arange(_RUN_LENGTH))
    return cells[cells < n_obs]


def _detect_cells(cells: sp.csr_matrix, where: str) -> DetectedScale:
    """Tell the scale of cells that express something, in double precision."""
    if _are_ranks(cells):
        raise scale_error(where)
    is_whole = _is_whole(cells.data)
    if is_whole.all():
        return DetectedScale("counts", cells, is_whole=True)
    if _are_rounded_logarithms(cells):
        counts = undo_logarithm(cells, "log1p")
        return DetectedScale("log1p", counts, tolerance=_ROUNDED_TOTAL)
    if _has_counts_and_logarithms(cells, is_whole):
        raise scale_error(where)
    name = recognize(cells)
    if name == "counts" or (name is None and _are_mostly_whole(cells, is_whole)):
        return DetectedScale("counts", cells)
    if name == "log1p":
        counts = undo_logarithm(cells, "log1p")
        if not _are_raw_counts(counts):
            return DetectedScale("log1p", counts)
    elif name is None and _may_be_logarithms(cells):
        counts = undo_logarithm(cells, "log1p")
        return DetectedScale("log1p", counts, is_certain=False)
    raise scale_error(where)


def recognize(cells: sp.csr_matrix) -> str | None:
    """Name the transform that cells went through; ``None`` if that cannot be known.

    Names other than those of :data:`Kind` stand for what is not taken.

    Parameters
    ----------
    cells
        Cells that express something.
    """
    largest = cells.data.max()
    transforms = [t for t in _TRANSFORMS if largest <= t.largest]
    inverted = [_apply(t.invert, cells) for t in transforms]
    fits = [_fit_multiples(counts) for counts in inverted]
    is_informative = np.array([fit.is_informative for fit in fits])
    share = np.array([fit.share_whole for fit in fits])
    error = np.array([fit.error for fit in fits])
    # Each cell is given to the transform that fits best.
    error_if_fits = np.where(is_informative & (share >= _SHARE_WHOLE), error, np.inf)
    has_fit = np.isfinite(error_if_fits).any(0)
    best = error_if_fits.argmin(0)
    votes = np.bincount(best[has_fit], minlength=len(transforms))
    winner = int(votes.argmax())
    n_votes = int(votes[winner])
    of_winner = has_fit & (best == winner)
    is_exact = n_votes > 0 and np.median(error[winner, of_winner]) < 1e-3
    if (n_votes >= FEWEST or is_exact) and 2 * n_votes >= is_informative[winner].sum():
        name = transforms[winner].name
        misfits = has_fit & ~of_winner & is_informative[winner] & (share[winner] < 0.5)
        if name == "log1p":
            # Small values that are multiples of a fraction may be logarithms of reads that were
            # divided by lengths of genes.
            cell_max = cells.max(axis=1).toarray().ravel()
            misfits &= (best != 0) | (cell_max > _LARGEST_LOG)
        is_mixture = misfits.sum() >= max(3, _SHARE_OF_MIXTURE * has_fit.sum())
        return "a mixture" if is_mixture else name
    if _n_unique_rows(cells) >= FEWEST:
        for transform, counts in zip(transforms, inverted, strict=True):
            if totals_equal(cell_totals(counts)):
                return "normalized twice" if _are_logarithms(counts) else transform.name
    return None


def _are_logarithms(values: sp.csr_matrix) -> bool:
    """Whether values of cells are logarithms of counts, each cell times a number of its own.

    That is what a second normalization leaves. With the smallest two values :math:`a` and :math:`b`
    of a cell, of one count and of two, :math:`f` with :math:`b / a = log(1 + 2 f) / log(1 + f)` is
    the factor of the first normalization, and gives the number of counts of each other value.
    """
    smallest_factor, largest_factor = _FACTORS
    n_fitting = 0
    n_informative = 0
    for first, last in pairwise(values.indptr):
        distinct = np.unique(values.data[first:last].astype(np.float32))
        # Equal values may differ by rounding.
        is_new = np.diff(distinct, prepend=0) > 1e-4 * distinct
        ratio = distinct[is_new].astype(np.float64) / distinct[0]
        if len(ratio) < 2 + _FEWEST_MULTIPLES:
            continue
        second = ratio[1]
        least = _ratio_of_counts(2, largest_factor)
        if not least < second < _ratio_of_counts(2, smallest_factor):
            continue
        factor = brentq(
            lambda f, second=second: _ratio_of_counts(2, f) - second, *_FACTORS
        )
        judged = ratio[2:][ratio[2:] < _ratio_of_counts(_LARGEST_MULTIPLE, factor)]
        if len(judged) < _FEWEST_MULTIPLES:
            continue
        n_informative += 1
        counts = np.expm1(judged * np.log1p(factor)) / factor
        share = np.mean(np.abs(counts - np.rint(counts)) < _NEAR_WHOLE)
        n_fitting += int(share >= _SHARE_WHOLE)
    return n_informative >= FEWEST and 2 * n_fitting > n_informative


def _ratio_of_counts(n_counts: int, factor: float) -> float:
    """Logarithm of a number of counts times a factor, over that of one count."""
    return float(np.log1p(n_counts * factor) / np.log1p(factor))


class _MultiplesFit(NamedTuple):
    """How well the values of each cell are multiples of its smallest one, ``(n_cells,)`` each.

    ``is_informative``: whether a cell has values to judge by. ``share_whole``: the share of these
    that are whole multiples. ``error``: their mean distance from whole ones.
    """

    is_informative: np.ndarray
    share_whole: np.ndarray
    error: np.ndarray


def _fit_multiples(counts: sp.csr_matrix) -> _MultiplesFit:
    row_starts = counts.indptr[:-1]
    ratio = counts.data / np.repeat(min_nonzero(counts), np.diff(counts.indptr))
    lowest, highest = _MULTIPLES
    is_judged = (ratio > lowest) & (ratio < highest)
    nearest = np.rint(ratio)
    distance = np.where(is_judged, np.abs(ratio - nearest), 0.0)
    n_judged = np.add.reduceat(is_judged, row_starts, dtype=np.int64)
    is_near = is_judged & (distance < _NEAR_WHOLE)
    n_whole = np.add.reduceat(is_near, row_starts, dtype=np.int64)
    # Values that are all equal fit any transform.
    low = np.minimum.reduceat(np.where(is_judged, nearest, np.inf), row_starts)
    high = np.maximum.reduceat(np.where(is_judged, nearest, -np.inf), row_starts)
    denominator = np.maximum(n_judged, 1)
    return _MultiplesFit(
        is_informative=(n_judged >= _FEWEST_MULTIPLES) & (high > low),
        share_whole=n_whole / denominator,
        error=np.add.reduceat(distance, row_starts) / denominator,
    )


def _has_counts_and_logarithms(cells: sp.csr_matrix, is_whole: np.ndarray) -> bool:
    """Whether there are counts beside values that are small enough for logarithms."""
    n_values = np.diff(cells.indptr)
    n_whole = _sum_rows(cells, is_whole)
    is_large = n_values >= 3
    are_counts = (
        is_large & (n_whole == n_values) & _whole_values_differ(cells, is_whole)
    )
    is_fractional = is_large & (2 * n_whole < n_values)
    if not are_counts.any() or not is_fractional.any():
        return False
    return bool(cells[is_fractional].max() <= _LARGEST_LOG)


def _are_ranks(cells: sp.csr_matrix) -> bool:
    """Whether each cell holds the ranks of its genes, or the same value everywhere.

    Ranks of n genes add up to n (n + 1) / 2, and to (n + 1) / 2 if they are divided by n; ties
    have their mean. If genes were left out afterwards, ranks are still whole or halves, none is
    zero, and they are spread evenly, so that half of them exceed about half of the largest one.
    Counts are skewed: of as many genes without a zero, few are that large.
    """
    n_cells, n_genes = cells.shape
    if n_genes < 2 or cells.nnz < n_cells * n_genes:
        return False
    values = cells.toarray()
    totals = values.sum(1)
    sum_of_ranks = n_genes * (n_genes + 1) / 2
    is_rank = np.isclose(totals, sum_of_ranks, rtol=1e-6)
    is_rank |= np.isclose(totals, sum_of_ranks / n_genes, rtol=1e-6)
    is_constant = values.min(1) == values.max(1)
    if n_genes >= _FEWEST_RANKS and _is_whole(2 * values).all():
        is_rank |= np.median(values, axis=1) > values.max(1) / 4
    return bool((is_rank | is_constant).all())


def _are_mostly_whole(cells: sp.csr_matrix, is_whole: np.ndarray) -> bool:
    """Whether values are counts, some of them shared between genes, as by alevin."""
    n_whole = _sum_rows(cells, is_whole)
    n_values = np.diff(cells.indptr)
    is_fractional = n_whole < n_values
    is_large = n_values >= _FEWEST_MULTIPLES
    half_are_whole = 2 * n_whole[is_fractional].sum() >= n_values[is_fractional].sum()
    # Logarithms are whole by accident only, and hardly any count that was multiplied is 1.
    has_ones = (cells.data == 1).mean() >= SAME_TOTAL
    return bool(
        half_are_whole and has_ones and (5 * n_whole >= n_values)[is_large].all()
    )


def _are_rounded_logarithms(cells: sp.csr_matrix) -> bool:
    """Whether values of two decimals are logarithms of counts with one total, as in a table that was written so.

    Such values are multiples of a hundredth, and would be taken for counts that were divided.
    """
    is_rounded = _is_whole(100 * cells.data).all()
    if not is_rounded or cells.data.max() > _IMPOSSIBLE_LOG:
        return False
    totals = cell_totals(undo_logarithm(cells, "log1p"))
    return _n_unique_rows(cells) >= FEWEST and totals_equal(totals, _ROUNDED_TOTAL)


def _are_raw_counts(counts: sp.csr_matrix) -> bool:
    """Whether the logarithm was taken of counts that had not been normalized, in many cells."""
    if totals_equal(cell_totals(counts)):
        return False
    # As exact as single precision is.
    distance = np.abs(counts.data - np.rint(counts.data))
    is_whole = (distance < 1e-3 + 4e-6 * counts.data) & (counts.data > 0.5)
    share_whole = _sum_rows(counts, is_whole) / np.diff(counts.indptr)
    n_raw = (share_whole > _SHARE_WHOLE).sum()
    # A cell whose total is that of the normalization, such as the median one, is whole as well.
    return bool(n_raw >= max(3, _SHARE_OF_MIXTURE * counts.shape[0]))


def _may_be_logarithms(cells: sp.csr_matrix) -> bool:
    """Whether values that nothing tells more of may be the natural logarithm of a part of genes."""
    largest = cells.data.max()
    if not 1 < largest <= _LARGEST_LOG or cells.data.min() == largest:
        return False
    totals = cell_totals(undo_logarithm(cells, "log1p"))
    return bool(np.log(totals).std() < _SPREAD_OF_TOTALS)


# ------------------------------------------------------------------ rows and totals


def undo_logarithm(block: Block, kind: Kind) -> Block:
    """Undo ``log1p`` if ``kind`` is that, in double precision; a sparse block stays sparse."""
    block = block.astype(np.float64)
    return block if kind == "counts" else _apply(np.expm1, block)


def _apply(function: Callable[[np.ndarray], np.ndarray], block: Block) -> Block:
    """Apply a function that leaves zeros zero to a copy of a block."""
    if not sp.issparse(block):
        return function(block)
    changed = block.copy()
    changed.data = function(block.data)
    return changed


def totals_equal(totals: np.ndarray, tolerance: float = SAME_TOTAL) -> bool:
    """Whether totals are the same but for rounding."""
    return bool(np.abs(totals / np.median(totals) - 1).max() < tolerance)


def row_of(block: Block, is_bad: np.ndarray) -> int:
    """Row of the first bad value."""
    position = int(np.flatnonzero(is_bad)[0])
    if sp.issparse(block):
        return int(np.searchsorted(block.indptr, position, side="right") - 1)
    return position // block.shape[1]


def nonempty(block: Block) -> sp.csr_matrix:
    """Cells of a block that express something, CSR in double precision."""
    cells = sp.csr_matrix(block.astype(np.float64))
    cells.eliminate_zeros()
    return cells[np.diff(cells.indptr) > 0]


def min_nonzero(cells: sp.csr_matrix) -> np.ndarray:
    """Find the smallest value above zero of each cell, ``(n_cells,)``; no cell may be empty."""
    return np.minimum.reduceat(cells.data, cells.indptr[:-1])


def _n_unique_rows(cells: sp.csr_matrix) -> int:
    # Sums of values and of their squares may have been made equal.
    cubes = np.asarray(cells.power(3).sum(1)).ravel()
    return len(np.unique([f"{cube:.4g}" for cube in cubes]))


def _is_whole(values: np.ndarray) -> np.ndarray:
    """Whether values are whole numbers but for the precision of an undone logarithm."""
    return np.isclose(values, np.rint(values), atol=0)


def _sum_rows(block: Block, values: np.ndarray) -> np.ndarray:
    """Sum one number for each stored value over each row."""
    if sp.issparse(block):
        return np.diff(np.concatenate([[0], np.cumsum(values)])[block.indptr])
    return values.sum(axis=1)


def _whole_values_differ(block: Block, is_whole: np.ndarray) -> np.ndarray:
    """Whether the whole numbers of each row differ: one logarithm may be whole by accident, not two."""
    values = block.data if sp.issparse(block) else block
    numbers = np.where(is_whole, np.rint(values), 0).astype(np.float64)
    # By the inequality of Cauchy and Schwarz, which is an equation if all are equal.
    product = _sum_rows(block, is_whole) * _sum_rows(block, numbers**2)
    return product > _sum_rows(block, numbers) ** 2


# ------------------------------------------------------------------ advice


def describe_unscaled(adata: AnnData, *, name: str = "adata") -> str:
    """Say where an AnnData keeps expression that was not scaled, as one sentence.

    Only the first cells are read: it is advice, and the matrix is checked when it is used.
    ``name`` is what the AnnData is called in the sentence.
    """
    # There may be no view of a view on disk.
    sample = adata if adata.isbacked and adata.is_view else adata[:100]
    unscaled = []
    if sample.raw is not None and _looks_unscaled(sample, use_raw=True):
        unscaled.append(
            f"{name}.raw ({parameter('use_raw', True)}, or {name}.raw.to_adata() for a reference)"
        )
    # A layer named None is X.
    unscaled += [
        f"{name}.layers[{key!r}] ({parameter('layer', key)})"
        for key in sample.layers
        if key is not None and _looks_unscaled(sample, layer=key)
    ]
    advice = "No unscaled matrix was found in .raw or in the layers; go back to one."
    if unscaled:
        advice = f"Unscaled expression is in {' and in '.join(unscaled)}."
    if _came_from_seurat(adata):
        advice += (
            f" {name} looks like a converted Seurat object: read its file with {call('tosica.io.read_seurat')}"
            f"{in_python(f', or repair it with tosica.io.from_seurat({name})')}."
        )
    return advice


def are_factor_codes(adata: AnnData, key: str) -> bool:
    """Whether a column holds codes of a factor whose levels Seurat's conversion lost."""
    column = adata.obs[key]
    if not pd.api.types.is_integer_dtype(column.dtype) or not _came_from_seurat(adata):
        return False
    codes = np.unique(column[column >= 0])
    return 1 < len(codes) <= 200 and np.array_equal(codes, np.arange(len(codes)))


def _came_from_seurat(adata: AnnData) -> bool:
    """Whether ``obs`` has the columns that Seurat gives every object."""
    names = {str(name) for name in adata.obs}
    assays = [name.removeprefix("nCount_") for name in names if "nCount_" in name]
    return any(f"nFeature_{assay}" in names for assay in assays)


def _looks_unscaled(adata: AnnData, **matrix_options: Any) -> bool:
    try:
        matrix = CellMatrix(adata, **matrix_options)
        block = matrix.take(slice(0, min(100, matrix.n_obs)))
        return detect_values(block, matrix.where) is not None
    except (ValueError, TypeError):
        return False
