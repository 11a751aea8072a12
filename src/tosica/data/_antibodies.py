"""Tell antibody counts from normalised ones, and refuse what is neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from tosica.data._scale import check_finite, mixed_scales_error, row_of

if TYPE_CHECKING:
    from tosica.data._cell_matrix import Block, CellMatrix

# What dsb and CLR give stays far below; anything above was scaled in some other way.
_LARGEST_NORMALISED = 100.0
# A cell's mean, in standard deviations of all values, that counts as zero.
_CENTRED = 0.01
_BLOCK = 4096

AntibodyKind = Literal["counts", "normalised"]


class AntibodyScale(NamedTuple):
    """How a reference's antibodies were scaled, so that a query can be scaled alike.

    ``kind`` is what the reference's matrix holds. ``centred`` says whether each cell's values have
    a mean of zero once they are normalised, as the centred log-ratio of a cell leaves them.
    """

    kind: AntibodyKind
    centred: bool


def antibody_kind_of(block: Block, where: str, *, first_cell: int = 0) -> AntibodyKind | None:
    """Say what a block of rows holds; ``None`` if it is all zero.

    Parameters
    ----------
    block
        Some rows of a matrix of antibodies.
    where
        Name of the matrix, for the sentence.
    first_cell
        Position of the block's first row, for the sentence.

    Raises
    ------
    ValueError
        If values are missing or infinite, negative counts, or neither counts nor normalised.
    """
    values = block.data if sp.issparse(block) else block
    if values.size == 0:
        return None
    check_finite(block, where, first_cell)
    smallest, largest = values.min(), values.max()
    if smallest == largest == 0:
        return None
    if (values == np.rint(values)).all():
        if smallest < 0:
            cell = row_of(block, values < 0) + first_cell
            raise ValueError(
                f"{where} holds negative counts of antibodies (first in cell {cell}), as a "
                "subtracted background leaves them: give the counts from before, or values "
                "normalised by CLR or dsb."
            )
        return "counts"
    if max(largest, -smallest) > _LARGEST_NORMALISED:
        raise ValueError(
            f"{where} holds fractions of up to {max(largest, -smallest):.4g}: neither counts of "
            "antibodies nor normalised. Give the counts, or values normalised by CLR or dsb."
        )
    return "normalised"


def antibody_scale_of(rows: CellMatrix) -> AntibodyScale:
    """Read a whole reference once and say how it is scaled.

    Raises
    ------
    ValueError
        As :func:`antibody_kind_of`; also if the matrix is all zero, or holds counts in some cells
        and fractions in others.
    """
    found: AntibodyKind | None = None
    means, squares, n_values = [], 0.0, 0
    for start, block in rows.blocks(_BLOCK):
        kind = antibody_kind_of(block, rows.where, first_cell=start)
        if kind is None:
            continue
        if found not in (None, kind):
            raise mixed_scales_error(rows.where, start)
        found = kind
        if kind == "normalised":
            means.append(cell_means(block))
            squares += float(np.square(block.data if sp.issparse(block) else block).sum())
            n_values += int(np.prod(block.shape))
    if found is None:
        raise ValueError(f"{rows.where} is zero everywhere.")
    if found == "counts":
        return AntibodyScale("counts", True)
    return AntibodyScale("normalised", are_centered(np.concatenate(means), squares / n_values))


def cell_means(block: Block) -> np.ndarray:
    """Mean of each row, ``(n_cells,)``, in double precision."""
    return np.asarray(block.sum(1, dtype=np.float64)).ravel() / block.shape[1]


def are_centered(means: np.ndarray, mean_square: float) -> bool:
    """Whether cells' means are zero beside the size of the values."""
    return bool(np.median(np.abs(means)) <= _CENTRED * np.sqrt(mean_square))
