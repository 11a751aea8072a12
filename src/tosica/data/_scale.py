"""Tell counts from log-normalised expression, and refuse what is neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from tosica.data._cell_matrix import CellMatrix
from tosica.data._seurat_marks import from_seurat_advice

if TYPE_CHECKING:
    from anndata import AnnData

    from tosica.data._cell_matrix import Block

TARGET_SUM = 1e4
# log1p of counts per million stays below 13.9; anything above was not log-transformed.
_LARGEST_LOG = 15.0
_BLOCK = 4096
_GLANCE = 100
# Row sums that agree this well were made equal by a normalisation over exactly these genes.
SAME_TOTAL = 0.01
# So many whole numbers in a cell, and no others, are counts: a logarithm is whole by accident only.
_SURELY_COUNTS = 3

Kind = Literal["counts", "log1p"]


class Scale(NamedTuple):
    """How a reference's expression was scaled, so that a query can be scaled alike.

    ``kind`` is what the reference's matrix holds. ``target_sum`` is the total that a cell's counts
    are scaled to before the logarithm. ``over`` says what is summed for a cell's total: the
    model's genes (``"genes"``), or every gene of the matrix at hand (``"matrix"``), for a reference
    that was cut down to some genes after it had been normalised.
    """

    kind: Kind
    target_sum: float
    over: Literal["genes", "matrix"]


def kind_of(block: Block, where: str, *, first_cell: int = 0, hint: str = "") -> Kind | None:
    """Say what a block of rows holds; ``None`` if it is all zero.

    Parameters
    ----------
    block
        Some rows of an expression matrix.
    where
        Name of the matrix, for the sentence.
    first_cell
        Position of the block's first row, for the sentence.
    hint
        Where unscaled expression is to be found, for the sentence on negative values.

    Raises
    ------
    ValueError
        If values are missing, infinite or negative, neither counts nor log-normalised, or counts
        in some cells and log-normalised in others.
    """
    values = block.data if sp.issparse(block) else block
    if values.size == 0:
        return None
    check_finite(block, where, first_cell)
    smallest, largest = values.min(), values.max()
    if smallest < 0:
        cell = row_of(block, values < 0) + first_cell
        raise ValueError(
            f"{where} holds negative values (first in cell {cell}), so it was scaled or centred; "
            f"tosica needs counts or log-normalised expression. {hint}".rstrip()
        )
    if largest == 0:
        return None
    if not np.issubdtype(values.dtype, np.inexact):
        return "counts"
    whole = values == np.rint(values)
    if whole.all():
        return "counts"
    counted, fractional = _count_like_rows(block, whole)
    if counted.any():
        largest = block[fractional].max()
        if largest <= _LARGEST_LOG:
            cell = int(max(counted.argmax(), fractional.argmax()))
            raise mixed_scales_error(where, cell + first_cell)
    if largest > _LARGEST_LOG:
        raise ValueError(
            f"{where} holds fractions with values up to {largest:.4g}: neither counts nor "
            "log-normalised. Give counts, or call sc.pp.log1p on normalised expression."
        )
    return "log1p"


def check_finite(block: Block, where: str, first_cell: int) -> None:
    """Refuse values that are missing or infinite; the sentence names the first cell with one."""
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


def scale_of(rows: CellMatrix, hint: str = "") -> Scale:
    """Read a whole reference once and say how it is scaled.

    Raises
    ------
    ValueError
        As :func:`kind_of`; also if the matrix is all zero.
    """
    found: Kind | None = None
    totals = []
    for start, block in rows.blocks(_BLOCK):
        kind = kind_of(block, rows.where, first_cell=start, hint=hint)
        if kind is None:
            continue
        if found not in (None, kind):
            raise mixed_scales_error(rows.where, start)
        found = kind
        if kind == "log1p":
            totals.append(_totals(block))
    if found is None:
        raise ValueError(f"{rows.where} is zero everywhere.")
    if found == "counts":
        return Scale("counts", TARGET_SUM, "genes")
    total = np.concatenate(totals)
    total = total[total > 0]
    middle = float(np.median(total))
    if np.abs(total / middle - 1).max() < SAME_TOTAL:
        return Scale("log1p", middle, "genes")
    return Scale("log1p", TARGET_SUM, "matrix")


def unscaled_in(adata: AnnData) -> str:
    """Say where an AnnData keeps expression that was not scaled, as one sentence.

    Only the first cells are looked at: it is advice, and the matrix is checked when it is used.
    """
    # There may be no view of a view on disk.
    first = adata if adata.isbacked and adata.is_view else adata[:_GLANCE]
    places = []
    if first.raw is not None and _looks_unscaled(first, use_raw=True):
        places.append("adata.raw (use_raw=True, or adata.raw.to_adata() for a reference)")
    # A layer named None is X.
    layers = [key for key in first.layers if key is not None]
    places += [
        f"adata.layers[{key!r}] (layer={key!r})"
        for key in layers
        if _looks_unscaled(first, layer=key)
    ]
    found = (
        f"Unscaled expression is in {' and in '.join(places)}."
        if places
        else "No unscaled matrix was found in .raw or in the layers; go back to one."
    )
    return f"{found} {from_seurat_advice(adata)}".rstrip()


def mixed_scales_error(where: str, cell: int) -> ValueError:
    """Name the matrix, and the cell by which both counts and fractions were met."""
    return ValueError(
        f"{where} holds counts in some cells and fractions in others (it changes at about cell "
        f"{cell}): cells were normalised in part; give counts for all of them."
    )


def _looks_unscaled(adata: AnnData, *, layer: str | None = None, use_raw: bool = False) -> bool:
    try:
        rows = CellMatrix(adata, layer=layer, use_raw=use_raw)
        return kind_of(rows.block(0, min(_GLANCE, rows.n_obs)), rows.where) is not None
    except (ValueError, TypeError):
        return False


def _totals(block: Block) -> np.ndarray:
    """What each cell's total was before the logarithm."""
    if sp.issparse(block):
        plain = block.astype(np.float64)
        plain.data = np.expm1(plain.data)
        return np.asarray(plain.sum(1)).ravel()
    return np.expm1(block.astype(np.float64)).sum(1)


def _count_like_rows(block: Block, whole: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tell which rows surely hold counts and which hold fractions, given what values are whole."""
    if sp.issparse(block):
        n_values, fractional = _sum_rows(block, block.data != 0), _sum_rows(block, ~whole) > 0
    else:
        n_values = np.count_nonzero(block, axis=1)
        fractional = np.asarray((~whole).any(axis=1))
    return (n_values >= _SURELY_COUNTS) & ~fractional, fractional


def _sum_rows(block: Block, values: np.ndarray) -> np.ndarray:
    """Sum what there is of each stored value over each row of a sparse block."""
    return np.diff(np.concatenate([[0], np.cumsum(values)])[block.indptr])


def row_of(block: Block, bad: np.ndarray) -> int:
    """Row of the first bad value."""
    if sp.issparse(block):
        return int(np.searchsorted(block.indptr, np.flatnonzero(bad)[0], side="right") - 1)
    return int(np.argwhere(bad)[0][0])
