"""Tell on which scale a matrix is: counts, or log1p, log2 or log10 of counts per a total.

Normalized counts of a cell are multiples of one number, the value of a single count. So a transform
is recognized by undoing it and looking whether the values are whole multiples of the cell's
smallest one. Genes that were left out do not change this. Values that are no multiples, such as
those of length-normalized reads, are recognized by totals that agree between cells. Everything else
is refused in one sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica.data._matrix import BLOCK, CellMatrix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anndata import AnnData

    from tosica.data._matrix import Block

TARGET_SUM = 1e4
# A sample is read in chunks from all over the matrix, 256 cells in all.
_N_CHUNKS, _CHUNK = 32, 8
# Totals of fewer different cells may agree by accident.
FEWEST = 8
# Totals that agree this well were made equal by a normalization over exactly these genes.
SAME_TOTAL = 0.01
# Multiples of a cell's smallest value are looked at in this range: rounding makes larger ones
# fractional. A cell says something with this many of them; this share has to be whole.
_MULTIPLES, _FEWEST_MULTIPLES, _SHARE_WHOLE = (1.5, 8.5), 5, 0.9
# The most frequent total has at most this share of the cells, where they have four counts or more on
# average (Poisson): more cells of which one count is 1 were not normalized.
_SAME_DEPTH = 0.2
# Ties that are expected of whole numbers; that there are none has a probability of exp(-10) then.
_ENOUGH_TIES = 10
# log1p of counts per million stays below 13.9; larger values, if nothing tells, are no logarithm.
_LARGEST_LOG = 15.0
# Standard deviation of the logarithm of cells' totals: at most 1.7 for logarithms of five data sets
# at three depths, at least 2 for counts of SoupX and DecontX that are taken as logarithms.
_SPREAD_OF_TOTALS = 1.9

# "refused" is what a scale that is not taken is called.
Kind = Literal["counts", "log1p", "log2", "log10", "refused"]


class Transform(NamedTuple):
    """A transform of counts per a total.

    ``kind`` is what its values are called. ``invert`` undoes it. ``largest``: larger values rule it
    out.
    """

    kind: Kind
    name: str
    invert: Callable[[np.ndarray], np.ndarray]
    largest: float


COUNTS = Transform("counts", "no logarithm", lambda x: x, np.inf)
NATURAL = Transform("log1p", "the natural logarithm", np.expm1, 30.0)
TRANSFORMS = (
    COUNTS,
    NATURAL,
    Transform("log2", "log2", lambda x: np.expm1(x * np.log(2)), 40.0),
    Transform("log10", "log10", lambda x: np.expm1(x * np.log(10)), 12.0),
    Transform(
        "refused",
        "the logarithm of the logarithm",
        lambda x: np.expm1(np.expm1(x)),
        3.4,
    ),
    Transform("refused", "the square root", np.square, np.inf),
)


class Values(NamedTuple):
    """What a sample of a matrix's cells holds.

    ``plain`` are the cells with the transform undone, CSR. ``is_certain`` is false if nothing tells
    which logarithm was taken. ``is_whole`` says whether values are whole numbers.
    """

    transform: Transform
    plain: sp.csr_matrix
    is_certain: bool = True
    is_whole: bool = False

    def totals(self, columns: np.ndarray | None = None) -> np.ndarray:
        """Total of each cell over some columns, by default over all, ``(n_cells,)``."""
        plain = self.plain if columns is None else self.plain[:, columns]
        return np.asarray(plain.sum(1)).ravel()

    def common_total(self) -> float | None:
        """Total that all cells have, ``None`` if they differ or are too few to know."""
        totals = self.totals()
        if n_unique_rows(self.plain) < FEWEST or not totals_equal(totals):
            return None
        return float(np.median(totals))

    def check(self, block: Block, where: str, first_cell: int) -> None:
        """Refuse a block with counts among logarithms, or logarithms among counts."""
        data = block.data if sp.issparse(block) else block
        if not np.issubdtype(data.dtype, np.inexact) or (
            self.transform is COUNTS and not self.is_whole
        ):
            return
        whole = np.isclose(data, np.rint(data), atol=0) & (data != 0)
        n_values, n_whole = _sum_rows(block, data != 0), _sum_rows(block, whole)
        # Logarithms are whole by accident only; of counts, a part may be shared between genes.
        if self.transform is COUNTS:
            others = 2 * n_whole < n_values
        else:
            others = (2 * n_whole >= n_values) & _differ(block, whole)
            others |= _sum_rows(block, data > self.transform.largest) > 0
        others &= n_values >= 3
        if others.any():
            raise scale_error(where, first_cell + int(others.argmax()))


def detect(matrix: CellMatrix) -> Values:
    """Tell the scale of a matrix by a sample of its cells.

    Raises
    ------
    ValueError
        If the matrix is zero everywhere, or values are missing, infinite or negative, or neither
        counts nor log-normalised.
    """
    cells = nonempty(matrix.take(sample_positions(matrix.n_obs)))
    if not cells.shape[0]:
        blocks = (
            nonempty(block)[: _N_CHUNKS * _CHUNK] for _, block in matrix.blocks(BLOCK)
        )
        cells = next((some for some in blocks if some.shape[0]), cells)
    if not cells.shape[0]:
        raise ValueError(
            f"{matrix.where} is zero everywhere: name the layer, or raw, that holds the expression."
        )
    if not (np.isfinite(cells.data).all() and cells.data.min() >= 0):
        # The message names the first cell.
        for start, block in matrix.blocks(BLOCK):
            check_values(block, matrix.where, start, matrix)
    return _detect_cells(cells, matrix.where)


def detect_values(block: Block, where: str, *, first_cell: int = 0) -> Kind | None:
    """Say what a block of rows holds; ``None`` if it is all zero.

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
    values = _detect_cells(cells[sample_positions(cells.shape[0])], where)
    values.check(block, where, first_cell)
    return values.transform.kind


def checked_blocks(
    matrix: CellMatrix, values: Values, size: int
) -> Iterator[tuple[int, Block]]:
    """Read a matrix in blocks, and refuse cells on another scale than ``values``.

    Raises
    ------
    ValueError
        If values are missing, infinite, negative, or not those of the sample.
    """
    for start, block in matrix.blocks(size):
        check_values(block, matrix.where, start, matrix)
        values.check(block, matrix.where, start)
        yield start, block


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
    data = block.data if sp.issparse(block) else block
    bad = ~np.isfinite(data)
    if bad.any():
        what = "NaN" if np.isnan(data).any() else "infinity"
        raise ValueError(
            f"{where} holds {what} (first in cell {row_of(block, bad) + first_cell}); replace or remove such values."
        )
    if data.size and not signed and data.min() < 0:
        hint = (
            ""
            if matrix is None
            else f" {describe_unscaled(matrix.adata, name=matrix.name)}"
        )
        raise ValueError(
            f"{where} holds negative values (first in cell {row_of(block, data < 0) + first_cell}),"
            f" so it was scaled or centred; tosica needs counts or log-normalised expression.{hint}"
        )


def scale_error(where: str, cell: int | None = None) -> ValueError:
    """Make the error for values on a scale that is not taken, or not that of the other cells."""
    at = "" if cell is None else f" (see cell {cell})"
    return ValueError(
        f"{where} holds values that are neither counts nor log-normalised expression, or not alike in "
        f"all cells{at}: give counts for all cells (those of SoupX or DecontX rounded by np.rint), "
        "or call sc.pp.normalize_total and sc.pp.log1p on them."
    )


# ------------------------------------------------------------------ recognition of a sample


def sample_positions(n_obs: int) -> np.ndarray:
    """Choose cells from all over a matrix of ``n_obs``, sorted, ``(n_sampled,)``.

    Of a matrix that has only these cells, all are chosen.
    """
    starts = np.unique(np.linspace(0, max(n_obs - _CHUNK, 0), _N_CHUNKS).astype(int))
    cells = np.unique(starts[:, None] + np.arange(_CHUNK))
    return cells[cells < n_obs]


def _detect_cells(cells: sp.csr_matrix, where: str) -> Values:
    """Tell the scale of cells that express something, in double precision."""
    # But for what single precision loses where a logarithm was undone.
    whole = np.isclose(cells.data, np.rint(cells.data), atol=0)
    n_values, n_whole = np.diff(cells.indptr), _sum_rows(cells, whole)
    fractional = (n_values >= 3) & (2 * n_whole < n_values)
    # Counts beside values that are small enough for logarithms.
    has_counts = ((n_values >= 3) & (n_whole == n_values) & _differ(cells, whole)).any()
    is_mixed = (
        has_counts and fractional.any() and cells[fractional].max() <= _LARGEST_LOG
    )
    found: Values | None = None
    if not is_mixed and not _are_ranks(cells):
        if whole.all():
            return Values(COUNTS, cells, is_whole=True)
        found = recognize(cells)
        if found is None and _are_mostly_whole(cells, whole):
            return Values(COUNTS, cells)
        if found is None and _may_be_logarithms(cells):
            return Values(NATURAL, invert(cells, NATURAL), is_certain=False)
    if (
        found is None
        or found.transform.kind == "refused"
        or _are_logarithms_of_counts(found)
    ):
        raise scale_error(where)
    return found


def recognize(cells: sp.csr_matrix) -> Values | None:
    """Say which transform positive values went through; ``None`` if that cannot be known.

    A transform that is not taken stands for cells that went through different ones, too.

    Parameters
    ----------
    cells
        Cells that express something.
    """
    transforms = [
        transform for transform in TRANSFORMS if cells.data.max() <= transform.largest
    ]
    plains = [invert(cells, transform) for transform in transforms]
    informative, share, error = (
        np.array(each) for each in zip(*map(_fit_multiples, plains), strict=True)
    )
    # Each cell is given to the transform that fits best.
    errors = np.where(informative & (share >= _SHARE_WHOLE), error, np.inf)
    fits, best = np.isfinite(errors).any(0), errors.argmin(0)
    votes = np.bincount(best[fits], minlength=len(transforms))
    winner = int(votes.argmax())
    of_winner = fits & (best == winner)
    n = int(votes[winner])
    is_exact = n > 0 and np.median(error[winner, of_winner]) < 1e-3
    if (n >= FEWEST or is_exact) and 2 * n >= informative[winner].sum():
        # Cells that fit a second transform and not this one were made differently. Small values that are
        # multiples of a fraction may be logarithms of reads that were divided by lengths of genes.
        others = fits & ~of_winner & informative[winner] & (share[winner] < 0.5)
        if transforms[winner] is NATURAL:
            others &= (best != 0) | (cells.max(axis=1).toarray().ravel() > _LARGEST_LOG)
        is_mixed = others.sum() >= max(3, 0.1 * fits.sum())
        transform = transforms[winner]
        return Values(
            transform._replace(kind="refused") if is_mixed else transform,
            plains[winner],
        )
    if n_unique_rows(cells) >= FEWEST:
        for transform, plain in zip(transforms, plains, strict=True):
            if totals_equal(np.asarray(plain.sum(1)).ravel()):
                return Values(transform, plain)
    return None


def _fit_multiples(plain: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Say how well the values of each cell are multiples of its smallest one.

    Returns
    -------
    Whether a cell has values to judge by, the share of these that are whole multiples, and their
    mean distance from whole ones, ``(n_cells,)`` each.
    """
    starts, n_values = plain.indptr[:-1], np.diff(plain.indptr)
    ratio = plain.data / np.repeat(min_nonzero(plain), n_values)
    judged = (ratio > _MULTIPLES[0]) & (ratio < _MULTIPLES[1])
    nearest = np.rint(ratio)
    distance = np.where(judged, np.abs(ratio - nearest), 0.0)
    n_judged = np.add.reduceat(judged, starts, dtype=np.int64)
    n_whole = np.add.reduceat(judged & (distance < 0.05), starts, dtype=np.int64)
    # Values that are all equal fit any transform.
    low = np.minimum.reduceat(np.where(judged, nearest, np.inf), starts)
    high = np.maximum.reduceat(np.where(judged, nearest, -np.inf), starts)
    some = np.maximum(n_judged, 1)
    return (
        (n_judged >= _FEWEST_MULTIPLES) & (high > low),
        n_whole / some,
        np.add.reduceat(distance, starts) / some,
    )


def _are_mostly_whole(cells: sp.csr_matrix, whole: np.ndarray) -> bool:
    """Whether values are counts, some of them shared between genes, as by alevin."""
    n_whole, n_values = _sum_rows(cells, whole), np.diff(cells.indptr)
    fractional = n_whole < n_values
    return bool(
        2 * n_whole[fractional].sum() >= n_values[fractional].sum()
        # Logarithms are whole by accident only, and hardly any count that was multiplied is 1.
        and (cells.data == 1).mean() >= SAME_TOTAL
        and (5 * n_whole >= n_values)[n_values >= _FEWEST_MULTIPLES].all()
    )


def _are_logarithms_of_counts(values: Values) -> bool:
    """Whether the logarithm was taken of counts that had not been normalized."""
    if values.transform is COUNTS or values.common_total() is not None:
        return False
    plain = values.plain.data
    # As exact as single precision is. Normalized counts of few cells may be whole, but not small.
    whole = (np.abs(plain - np.rint(plain)) < 1e-3 + 4e-6 * plain) & (plain > 0.5)
    cells, least = (
        np.logical_and.reduceat(whole, values.plain.indptr[:-1]),
        min_nonzero(values.plain),
    )
    if n_unique_rows(values.plain) < FEWEST:
        return bool((cells & (least < 3.5)).mean() > _SHARE_WHOLE)
    is_mixed = (cells & (abs(least - 1) < 1e-3)).mean() > _SAME_DEPTH
    return bool(is_mixed or cells.mean() > _SHARE_WHOLE)


def _may_be_logarithms(cells: sp.csr_matrix) -> bool:
    """Whether values that nothing tells more of may be the natural logarithm of a part of genes."""
    if (
        not 1 < cells.data.max() <= _LARGEST_LOG
        or cells.data.min() == cells.data.max()
        or _are_standardized(cells)
    ):
        return False
    return bool(np.log(invert(cells, NATURAL).sum(1)).std() < _SPREAD_OF_TOTALS)


def _are_ranks(cells: sp.csr_matrix) -> bool:
    """Whether the values of each cell rise with their ranks, however ties are ranked, or none of them tie.

    Ranks of genes of which some were left out later do not tie. Whole numbers that are spread evenly
    up to the largest tie this often (birthday problem), and counts more often: they are not.
    """
    n_looked_at, n_ties = (
        0,
        np.square(np.diff(cells.indptr)) / (2 * cells.max(axis=1).toarray().ravel()),
    )
    may_be_some = n_ties.sum() > _ENOUGH_TIES and np.array_equal(
        cells.data, np.rint(cells.data)
    )
    for values, n_equal in (
        np.unique(part, return_counts=True)
        for part in np.split(cells.data, cells.indptr[1:-1])
    ):
        may_be_some &= n_equal.max() == 1
        if len(values) <= FEWEST + 1 or may_be_some:
            continue
        last = np.cumsum(n_equal)
        for ranks in (last, last - n_equal + 1, last - (n_equal - 1) / 2):
            slope = (values[-1] - values[0]) / (ranks[-1] - ranks[0])
            if (
                np.abs(values - values[0] - slope * (ranks - ranks[0])).max()
                < 1e-3 * slope
            ):
                break
        else:
            return False
        n_looked_at += 1
    return may_be_some or n_looked_at > 0


def _are_standardized(cells: sp.csr_matrix) -> bool:
    """Whether genes have a variance of 1 once all zeros of a gene are put back to one value below.

    The mean of a standardized gene is zero, so its zeros were all at minus the sum of its other
    values over their own number.
    """
    n, n_genes = cells.shape
    n_above = np.bincount(cells.indices, minlength=n_genes)
    told = (n_above > 0.05 * n) & (n_above < 0.95 * n) & (n_above > 1)
    if told.sum() < 20:
        return False
    sums, squares = (
        np.bincount(cells.indices, cells.data**k, n_genes)[told] for k in (1, 2)
    )
    low, middle, high = np.quantile(
        (squares + sums**2 / (n - n_above[told])) / n, [0.25, 0.5, 0.75]
    )
    return bool(0.6 < middle < 1.5 and high < 2 * low)


# ------------------------------------------------------------------ rows and totals


def invert(block: Block, transform: Transform) -> Block:
    """Undo a transform of a block, in double precision; a sparse block stays sparse."""
    plain = block.astype(np.float64)
    if sp.issparse(plain):
        plain.data = transform.invert(plain.data)
        return plain
    return transform.invert(plain)


def totals_equal(totals: np.ndarray) -> bool:
    """Whether totals are the same but for rounding."""
    return bool(np.abs(totals / np.median(totals) - 1).max() < SAME_TOTAL)


def n_unique_rows(cells: sp.csr_matrix) -> int:
    """Count the different cells."""
    # Sums of values and of their squares may have been made equal.
    cubes = np.asarray(cells.astype(np.float64).power(3).sum(1)).ravel()
    return len(np.unique([f"{cube:.4g}" for cube in cubes]))


def min_nonzero(cells: sp.csr_matrix) -> np.ndarray:
    """Find the smallest value above zero of each cell, ``(n_cells,)``; no cell may be empty."""
    return np.minimum.reduceat(cells.data, cells.indptr[:-1])


def row_of(block: Block, bad: np.ndarray) -> int:
    """Row of the first bad value."""
    if sp.issparse(block):
        return int(
            np.searchsorted(block.indptr, np.flatnonzero(bad)[0], side="right") - 1
        )
    return int(np.argwhere(bad)[0][0])


def nonempty(block: Block) -> sp.csr_matrix:
    """Cells of a block that express something, CSR in double precision."""
    cells = sp.csr_matrix(block.astype(np.float64))
    cells.eliminate_zeros()
    return cells[np.diff(cells.indptr) > 0]


def _sum_rows(block: Block, values: np.ndarray) -> np.ndarray:
    """Sum one number for each stored value over each row."""
    if sp.issparse(block):
        return np.diff(np.concatenate([[0], np.cumsum(values)])[block.indptr])
    return values.sum(axis=1)


def _differ(block: Block, whole: np.ndarray) -> np.ndarray:
    """Whether the whole numbers of each row differ: one logarithm may be whole by accident, not two."""
    values = np.where(
        whole, np.rint(block.data if sp.issparse(block) else block), 0
    ).astype(np.float64)
    return (
        _sum_rows(block, whole) * _sum_rows(block, values**2)
        > _sum_rows(block, values) ** 2
    )


# ------------------------------------------------------------------ advice


def describe_unscaled(adata: AnnData, *, name: str = "adata") -> str:
    """Say where an AnnData keeps expression that was not scaled, as one sentence.

    Only the first cells are read: it is advice, and the matrix is checked when it is used.
    ``name`` is what the AnnData is called in the sentence.
    """
    # There may be no view of a view on disk.
    first = adata if adata.isbacked and adata.is_view else adata[:100]
    # A layer named None is X.
    matrices = {
        f"{name}.layers[{key!r}] (layer={key!r})": {"layer": key}
        for key in first.layers
        if key is not None
    }
    if first.raw is not None:
        raw = f"{name}.raw (use_raw=True, or {name}.raw.to_adata() for a reference)"
        matrices = {raw: {"use_raw": True}, **matrices}
    unscaled = [
        where for where, which in matrices.items() if _looks_unscaled(first, **which)
    ]
    found = "No unscaled matrix was found in .raw or in the layers; go back to one."
    if unscaled:
        found = f"Unscaled expression is in {' and in '.join(unscaled)}."
    if _came_from_seurat(adata):
        found += f" {name} looks like a converted Seurat object: read its file with "
        found += (
            f"tosica.io.read_seurat, or repair it with tosica.io.from_seurat({name})."
        )
    return found


def are_factor_codes(adata: AnnData, key: str) -> bool:
    """Whether a column holds codes of a factor whose levels Seurat's conversion lost."""
    column = adata.obs[key]
    if not pd.api.types.is_integer_dtype(column.dtype) or not _came_from_seurat(adata):
        return False
    known = np.unique(column[column >= 0])
    return 1 < len(known) <= 200 and bool((known == np.arange(len(known))).all())


def _came_from_seurat(adata: AnnData) -> bool:
    """Whether ``obs`` has the columns that Seurat gives every object."""
    names = [str(name) for name in adata.obs]
    counted = {
        name.removeprefix("nCount_") for name in names if name.startswith("nCount_")
    }
    return any(f"nFeature_{assay}" in names for assay in counted)


def _looks_unscaled(adata: AnnData, **which: Any) -> bool:
    try:
        matrix = CellMatrix(adata, **which)
        return (
            detect_values(matrix.take(slice(0, min(100, matrix.n_obs))), matrix.where)
            is not None
        )
    except (ValueError, TypeError):
        return False
