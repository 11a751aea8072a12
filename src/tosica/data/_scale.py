"""Tell counts from log-normalised expression, and refuse what is neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from tosica.data._cell_matrix import CellMatrix
from tosica.data._seurat_marks import from_seurat_advice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anndata import AnnData

    from tosica.data._cell_matrix import Block

TARGET_SUM = 1e4
# log2 of counts per million stays below 20; anything above was not log-transformed.
_LARGEST_LOG = 20.0
# Cells that are read for advice.
_N_ADVICE = 100
# So many whole numbers in a cell, and no others, are counts: a logarithm is whole by accident only.
_SURELY_COUNTS = 3
# Values are counts, some of them shared among genes, if this share of them is whole in cells with
# fractions, and a smaller one in each of these cells that has enough values; and if some are 1.
_MOSTLY_WHOLE, _SOME_WHOLE, _FEWEST_VALUES, _SHARE_ONES = 0.5, 0.2, 5, 0.01
# These leave most small counts whole, since 1 stays 1. They are undone where values are exact.
_LEAVE_ONES: tuple[Callable[[np.ndarray], np.ndarray], ...] = (np.exp2, np.square)
_LARGEST_EXACT, _EXACT = 8.0, 2e-3

Kind = Literal["counts", "log1p"]


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


def detect_values(
    block: Block,
    where: str,
    *,
    first_cell: int = 0,
    hint: Callable[[], str] | None = None,
    values: str = "expression",
    fractional: bool = False,
) -> Kind | None:
    """Say what a block of rows holds; ``None`` if it is all zero.

    Counts need not all be whole: in some cells, reads may have been shared among genes.

    Parameters
    ----------
    block
        Some rows of an expression matrix.
    where
        Name of the matrix in messages.
    first_cell
        Position of the block's first row.
    hint
        Where unscaled values are, for the message on negative ones.
    values
        What the values are called in messages.
    fractional
        Whether the matrix is known to hold counts that are not whole, as
        :func:`~tosica.data._fractional_counts.are_fractional_counts` says.

    Raises
    ------
    ValueError
        If values are missing, infinite or negative, neither counts nor log-normalised, or counts
        in some cells and log-normalised in others.
    """
    data = block.data if sp.issparse(block) else block
    if data.size == 0:
        return None
    check_finite(block, where, first_cell)
    smallest, largest = data.min(), data.max()
    if smallest < 0:
        cell = row_of(block, data < 0) + first_cell
        raise ValueError(
            f"{where} holds negative values (first in cell {cell}), so it was scaled or centred; "
            f"tosica needs counts or log-normalised {values}. {hint() if hint else ''}".rstrip()
        )
    if largest == 0:
        return None
    if fractional or not np.issubdtype(data.dtype, np.inexact):
        return "counts"
    whole = data == np.rint(data)
    if whole.all() or _are_mostly_whole(block, whole):
        return "counts"
    counted, not_whole = _count_like_rows(block, whole)
    if counted.any():
        largest = block[not_whole].max()
        if largest <= _LARGEST_LOG:
            cell = int(max(counted.argmax(), not_whole.argmax()))
            raise mixed_scales_error(where, cell + first_cell)
    if largest > _LARGEST_LOG:
        raise fractions_error(where, largest, values)
    return "log1p"


def check_finite(block: Block, where: str, first_cell: int) -> None:
    """Refuse values that are missing or infinite; the message names the first cell with one."""
    values = block.data if sp.issparse(block) else block
    if not np.issubdtype(values.dtype, np.inexact):
        return
    bad = ~np.isfinite(values)
    if bad.any():
        what = "NaN" if np.isnan(values).any() else "infinity"
        raise ValueError(
            f"{where} holds {what} (first in cell {row_of(block, bad) + first_cell}); "
            "replace or remove such values before going on."
        )


def detected_blocks(
    matrix: CellMatrix,
    size: int,
    detect: Callable[..., str | None],
    sample: CellMatrix | None = None,
) -> Iterator[tuple[int, Block, str | None]]:
    """Read a matrix in blocks, and refuse it if they do not all hold the same.

    Parameters
    ----------
    matrix
        What to read.
    size
        Cells in a block.
    detect
        Says what a block holds, ``None`` if it is all zero; called as :func:`detect_values`.
    sample
        Other cells of the same query, if ``matrix`` is a part of it: they must hold the same.

    Returns
    -------
    Iterator over the position of a block's first cell, the block, and what the matrix holds as far
    as it is known; that is ``None`` as long as all cells are zero.

    Raises
    ------
    ValueError
        If cells hold counts in one block and other values in another.
    """
    found: str | None = None
    if sample is not None and sample is not matrix:
        found = detect(sample.block(0, sample.n_obs), sample.where)
    for start, block in matrix.blocks(size):
        kind = detect(block, matrix.where, first_cell=start)
        if found is not None and kind not in (None, found):
            raise mixed_scales_error(matrix.where, start)
        found = found or kind
        yield start, block, found


def describe_unscaled(adata: AnnData, *, name: str = "adata") -> str:
    """Say where an AnnData keeps expression that was not scaled, as one sentence.

    Only the first cells are read: it is advice, and the matrix is checked when it is used.
    ``name`` is what the AnnData is called in the sentence.
    """
    # There may be no view of a view on disk.
    first = adata if adata.isbacked and adata.is_view else adata[:_N_ADVICE]
    matrices = []
    if first.raw is not None and _looks_unscaled(first, use_raw=True):
        matrices.append(f"{name}.raw (use_raw=True, or {name}.raw.to_adata() for a reference)")
    # A layer named None is X.
    layers = [key for key in first.layers if key is not None]
    matrices += [
        f"{name}.layers[{key!r}] (layer={key!r})"
        for key in layers
        if _looks_unscaled(first, layer=key)
    ]
    found = (
        f"Unscaled expression is in {' and in '.join(matrices)}."
        if matrices
        else "No unscaled matrix was found in .raw or in the layers; go back to one."
    )
    return f"{found} {from_seurat_advice(adata, name)}".rstrip()


def fractions_error(where: str, largest: float, values: str) -> ValueError:
    """Make the error for fractions that are too large for a logarithm."""
    return ValueError(
        f"{where} holds fractions with values up to {largest:.4g}: neither counts nor "
        f"log-normalised. Give counts (those of SoupX or alevin rounded: np.rint), or call "
        f"sc.pp.log1p on normalised {values}."
    )


def mixed_scales_error(where: str, cell: int) -> ValueError:
    """Make the error for a matrix that is normalized in part; ``cell`` is where it changes."""
    return ValueError(
        f"{where} holds counts in some cells and fractions in others (it changes at about cell "
        f"{cell}): cells were normalised in part; give counts for all of them."
    )


def _looks_unscaled(adata: AnnData, *, layer: str | None = None, use_raw: bool = False) -> bool:
    try:
        matrix = CellMatrix(adata, layer=layer, use_raw=use_raw)
        return (
            detect_values(matrix.block(0, min(_N_ADVICE, matrix.n_obs)), matrix.where) is not None
        )
    except (ValueError, TypeError):
        return False


def _are_mostly_whole(block: Block, whole: np.ndarray) -> bool:
    """Whether values are counts in all rows, most of them whole; ``whole`` says which values are.

    Logarithms are whole by accident only. Counts that were multiplied by a number may be whole, but
    then hardly any is 1. Of log2 and the square root of raw counts many are whole, and the others
    become so when it is undone.
    """
    data = block.data if sp.issparse(block) else block
    others = data[~whole]
    others = others[others < _LARGEST_EXACT].astype(np.float64)
    for undo in _LEAVE_ONES:
        plain = undo(others)
        if 2 * (np.abs(plain - np.rint(plain)) < _EXACT).sum() > len(others):
            return False
    if sp.issparse(block):
        above = block.data != 0
        n_values, n_whole = _sum_rows(block, above), _sum_rows(block, whole & above)
        n_ones = int((block.data == 1).sum())
    else:
        above = block != 0
        n_values, n_whole = above.sum(axis=1), (whole & above).sum(axis=1)
        n_ones = int((block == 1).sum())
    fractional = n_whole < n_values
    judged = fractional & (n_values >= _FEWEST_VALUES)
    return bool(
        n_ones >= _SHARE_ONES * n_values.sum()
        and n_whole[fractional].sum() >= _MOSTLY_WHOLE * n_values[fractional].sum()
        and (n_whole[judged] >= _SOME_WHOLE * n_values[judged]).all()
    )


def _count_like_rows(block: Block, whole: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tell which rows surely hold counts and which hold fractions, given which values are whole."""
    if sp.issparse(block):
        n_values, fractional = _sum_rows(block, block.data != 0), _sum_rows(block, ~whole) > 0
    else:
        n_values = np.count_nonzero(block, axis=1)
        fractional = np.asarray((~whole).any(axis=1))
    return (n_values >= _SURELY_COUNTS) & ~fractional, fractional


def _sum_rows(block: Block, values: np.ndarray) -> np.ndarray:
    """Sum one number for each stored value over each row of a sparse block."""
    return np.diff(np.concatenate([[0], np.cumsum(values)])[block.indptr])


def row_of(block: Block, bad: np.ndarray) -> int:
    """Row of the first bad value."""
    if sp.issparse(block):
        return int(np.searchsorted(block.indptr, np.flatnonzero(bad)[0], side="right") - 1)
    return int(np.argwhere(bad)[0][0])
