"""Recognize the transform that a matrix of expression went through, by a sample of its cells.

Normalized counts of a cell are multiples of one number, the value of a single count. So a transform
is recognized by undoing it and looking whether the values are whole multiples of the cell's
smallest one. Genes that were left out do not change this. Values that are no multiples, such as
those of length-normalized reads, are recognized by totals that agree between cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tosica.data._cell_matrix import Block, CellMatrix

# Cells are read in chunks spread over the matrix.
_N_CHUNKS, _CHUNK = 32, 8
# Totals of fewer different cells may agree by accident.
_FEWEST = 8
# Row sums that agree this well were made equal by a normalization over exactly these genes.
SAME_TOTAL = 0.01
# Multiples are looked at in this range: rounding makes larger ones fractional.
_MULTIPLES = 1.5, 8.5
_NEAR, _EXACT = 0.05, 1e-3
# A cell says something if it has so many values in this range; a share of them has to be whole.
_FEWEST_VALUES, _SHARE_WHOLE = 5, 0.9
# Share of the cells, and number, from which on another transform is no accident.
_SHARE_OTHER, _FEWEST_OTHER = 0.1, 3
_MOST = 0.9
# Every cell with counts has a gene with fewer; larger ones are not told from fractions.
_SMALL_COUNT, _LARGEST_COUNT = 3.5, 1e5


class Transform(NamedTuple):
    """A transform of normalized counts.

    ``name`` completes "… was taken". ``undo`` gives back the normalized counts.
    ``largest`` is the largest value that it leaves of what can be expected. ``remedy`` says how to
    come to the natural logarithm.
    """

    name: str
    undo: Callable[[np.ndarray], np.ndarray]
    largest: float
    remedy: str


NATURAL = Transform("the natural logarithm", np.expm1, 30.0, "")
NONE = Transform(
    "values without a logarithm",
    lambda x: x,
    np.inf,
    "call sc.pp.normalize_total and sc.pp.log1p",
)
TRANSFORMS = (
    NONE,
    NATURAL,
    Transform("log2", lambda x: np.expm1(x * np.log(2)), 40.0, "multiply it by np.log(2)"),
    Transform("log10", lambda x: np.expm1(x * np.log(10)), 12.0, "multiply it by np.log(10)"),
    Transform(
        "the logarithm of the logarithm", lambda x: np.expm1(np.expm1(x)), 3.4, "call np.expm1 once"
    ),
    Transform("the square root", np.square, np.inf, "square it and call sc.pp.log1p"),
)
# These are undone in a query.
LOGARITHMS = TRANSFORMS[1:5]


class Recognized(NamedTuple):
    """What a sample of cells says.

    ``plain`` are the sampled cells with the transform undone, CSR in double precision.
    ``whole_multiples`` says whether they are multiples of one count. ``other`` is a second
    transform that some cells went through.
    """

    transform: Transform
    plain: sp.csr_matrix
    whole_multiples: bool
    other: Transform | None = None

    def totals(self, columns: np.ndarray | None = None) -> np.ndarray:
        """Total of each cell over some columns, by default over all, ``(n_cells,)``."""
        plain = self.plain if columns is None else self.plain[:, columns]
        return np.asarray(plain.sum(1)).ravel()

    def common_total(self) -> float | None:
        """Total that all cells have, ``None`` if they differ or are too few to know."""
        totals = self.totals()
        if n_different(self.plain) < _FEWEST or not agree(totals):
            return None
        return float(np.median(totals))

    def unscaled(self) -> np.ndarray:
        """Say which cells hold counts: whole numbers, the smallest of which is small.

        Normalized counts of a shallow cell may be whole, too, but rarely in many cells.
        """
        values = self.plain.data
        # As exact as single precision is, which does not tell whether large numbers are whole.
        whole = np.abs(values - np.rint(values)) < 1e-3 + 4e-6 * values
        whole = (whole & (values > 0.5)) | (values > _LARGEST_COUNT)
        cells = np.logical_and.reduceat(whole, self.plain.indptr[:-1])
        if cells.mean() > _MOST and n_different(self.plain) >= _FEWEST:
            return cells
        return cells & (smallest(self.plain) < _SMALL_COUNT)


def sample_positions(n_obs: int) -> np.ndarray:
    """Choose cells from all over a matrix of ``n_obs``, sorted, ``(n_sampled,)``.

    Of a matrix that has only these cells, all are chosen.
    """
    starts = np.unique(np.linspace(0, max(n_obs - _CHUNK, 0), _N_CHUNKS).astype(int))
    cells = np.unique(starts[:, None] + np.arange(_CHUNK))
    return cells[cells < n_obs]


def sample_cells(rows: CellMatrix) -> sp.csr_matrix:
    """Read cells from all over a matrix; those without expression are left out."""
    sample = sp.csr_matrix(rows.take(sample_positions(rows.n_obs)))
    sample.eliminate_zeros()
    return sample[np.diff(sample.indptr) > 0]


def refuse_transform(
    found: Recognized, where: str, noun: str, allowed: Sequence[Transform]
) -> None:
    """Refuse cells that went through another transform than those that are allowed.

    Raises
    ------
    ValueError
        If the transform is another one, or not that of all cells, or if counts were not normalized
        before the logarithm.
    """
    give = f"give counts or log-normalised {noun}"
    if found.other is not None:
        raise ValueError(
            f"{where} holds {found.transform.name} in some cells and {found.other.name} in others: "
            f"{give} for all of them."
        )
    if found.transform not in allowed:
        of = f"{noun} without a logarithm"
        if found.transform is not NONE:
            of = f"{found.transform.name} of {noun}"
        raise ValueError(
            f"{where} holds {of}, not the natural logarithm of "
            f"normalised counts: give the counts, or {found.transform.remedy}."
        )
    if found.common_total() is not None:
        return
    unscaled = found.unscaled()
    if unscaled.mean() > _MOST:
        raise ValueError(
            f"{where} holds the logarithm of counts that were not normalised: give the "
            "counts, or call sc.pp.normalize_total before sc.pp.log1p."
        )
    if unscaled.sum() < _FEWEST_OTHER or unscaled.mean() < _SHARE_OTHER / 2:
        return
    # Cells as deep as the total that all were scaled to have values of 1, too; others about 1.
    count = np.median(smallest(found.plain[~unscaled]))
    if not 1 / _SMALL_COUNT < count < _SMALL_COUNT:
        raise ValueError(
            f"{where} holds the logarithm of counts that were not normalised in some cells, and of "
            f"normalised ones in others: {give} for all of them."
        )


def recognize(cells: sp.csr_matrix) -> Recognized | None:
    """Say which transform positive values went through; ``None`` if that cannot be known.

    Parameters
    ----------
    cells
        Cells that express something, as :func:`sample_cells` gives them.
    """
    if not cells.shape[0]:
        return None
    largest = cells.data.max()
    fits = [
        (transform, plain, _Fit(plain))
        for transform in TRANSFORMS
        if largest <= transform.largest
        for plain in [undo(cells, transform)]
    ]
    # Each cell is given to the transform that fits best.
    errors = np.array([np.where(fit.fits, fit.error, np.inf) for _, _, fit in fits])
    best = np.where(np.isfinite(errors).any(0), errors.argmin(0), -1)
    votes = np.bincount(best[best >= 0], minlength=len(fits))
    winner = int(votes.argmax())
    transform, plain, fit = fits[winner]
    n = int(votes[winner])
    exact = n > 0 and np.median(fit.error[best == winner]) < _EXACT
    if (n >= _FEWEST or exact) and 2 * n >= fit.informative.sum():
        other = None
        for i in np.flatnonzero(votes >= max(_FEWEST_OTHER, _SHARE_OTHER * votes.sum())):
            of_other = best == i
            if i != winner and (fit.informative & (fit.share < 0.5))[of_other].mean() > 0.5:
                other = fits[i][0]
        return Recognized(transform, plain, True, other)
    if n_different(cells) < _FEWEST:
        return None
    for transform, plain, _ in fits:
        if agree(np.asarray(plain.sum(1)).ravel()):
            return Recognized(transform, plain, False)
    return None


def has_logarithms(cells: sp.csr_matrix) -> bool:
    """Whether some of the cells, which may be few, hold the logarithm of normalized counts."""
    largest = np.maximum.reduceat(cells.data, cells.indptr[:-1])
    fewest = max(_FEWEST_OTHER, _SHARE_OTHER / 2 * cells.shape[0])
    for transform in LOGARITHMS:
        some = cells[largest <= transform.largest]
        if some.shape[0] >= fewest and _Fit(undo(some, transform)).fits.sum() >= fewest:
            return True
    return False


def undo(block: Block, transform: Transform) -> Block:
    """Undo a transform of a block, in double precision; a sparse block stays sparse."""
    plain = block.astype(np.float64)
    if sp.issparse(plain):
        plain.data = transform.undo(plain.data)
        return plain
    return transform.undo(plain)


def agree(totals: np.ndarray) -> bool:
    """Whether totals are the same but for rounding."""
    return bool(np.abs(totals / np.median(totals) - 1).max() < SAME_TOTAL)


def n_different(cells: sp.csr_matrix) -> int:
    """Count the different cells."""
    # Sums of values and of their squares may have been made equal.
    cubes = np.asarray(cells.astype(np.float64).power(3).sum(1)).ravel()
    return len(np.unique([f"{cube:.4g}" for cube in cubes]))


def smallest(cells: sp.csr_matrix) -> np.ndarray:
    """Smallest value above zero of each cell, none of which may be empty, ``(n_cells,)``."""
    return np.minimum.reduceat(cells.data, cells.indptr[:-1])


class _Fit:
    """How well the values of each cell are multiples of its smallest one.

    ``informative`` says which cells have values to judge by, ``share`` how many of these are
    whole, ``error`` the mean distance from whole numbers, ``fits`` which cells are whole.
    """

    def __init__(self, plain: sp.csr_matrix) -> None:
        starts, n_values = plain.indptr[:-1], np.diff(plain.indptr)
        ratio = plain.data / np.repeat(smallest(plain), n_values)
        judged = (ratio > _MULTIPLES[0]) & (ratio < _MULTIPLES[1])
        nearest = np.rint(ratio)
        distance = np.where(judged, np.abs(ratio - nearest), 0.0)
        n_judged = np.add.reduceat(judged, starts, dtype=np.int64)
        n_whole = np.add.reduceat(judged & (distance < _NEAR), starts, dtype=np.int64)
        # Values that are all equal fit any transform.
        low = np.minimum.reduceat(np.where(judged, nearest, np.inf), starts)
        high = np.maximum.reduceat(np.where(judged, nearest, -np.inf), starts)
        self.informative: np.ndarray = (n_judged >= _FEWEST_VALUES) & (high > low)
        at_least_one = np.maximum(n_judged, 1)
        self.share: np.ndarray = n_whole / at_least_one
        self.error: np.ndarray = np.add.reduceat(distance, starts) / at_least_one
        self.fits: np.ndarray = self.informative & (self.share >= _SHARE_WHOLE)
