"""Bring the cells of a query to the scale of the model's reference."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp

from tosica._logging import logger
from tosica.data._align import user_stacklevel
from tosica.data._fractional_counts import are_fractional_counts, log_fractional
from tosica.data._odd_values import refuse_odd_values
from tosica.data._scale import Scale, detect_values
from tosica.data._transforms import (
    LOGARITHMS,
    NATURAL,
    SAME_TOTAL,
    Recognized,
    Transform,
    agree,
    recognize,
    refuse_transform,
    sample_cells,
    undo,
)

if TYPE_CHECKING:
    from tosica.data._cell_matrix import Block, CellMatrix

# A query with this share of the model's genes has nearly all of the counts in them.
_MOST_GENES = 0.95
# Median total of a query's cells over the model's genes that is no other scale, as multiple of the
# reference's: if totals of the reference agree, if it was cut to some genes and its range is not
# known, and what a query without some of the model's genes may have less. Of a known range, the
# median may be outside by the last factor.
_SAME, _SIMILAR, _LESS, _OUTSIDE = 0.8, 0.5, 0.2, 1.25
# Share of the counts in the model's genes if a query has only these, and if it has others.
_ALL, _MOST = 0.99, 0.9
# Cells that were not looked at may exceed the largest possible total by this much.
_EXCESS = 1.1


class QueryScale(NamedTuple):
    """How the cells of a query are brought to the scale of the reference.

    Parameters
    ----------
    transform
        Transform that log-normalized cells went through, ``None`` if they are taken as they are.
    target_sum
        Total that each cell's counts are scaled to, ``None`` to leave a cell's total as it is.
    columns
        Columns that are summed for the total, ``(n_vars,)``; ``None`` for all.
    largest
        Largest total that a cell may have over the columns if it is taken as it is.
    fractional
        Whether the query holds counts that are not whole.
    """

    transform: Transform | None = None
    target_sum: float | None = None
    columns: np.ndarray | None = None
    largest: float | None = None
    fractional: bool = False

    def log_normalized(self, block: Block, first_cell: int, where: str) -> Block:
        """Bring a block of log-normalized cells to the scale.

        Raises
        ------
        ValueError
            If a cell is scaled otherwise than the cells that were sampled.
        """
        if self.transform is None:
            if self.largest is not None:
                total = self.total(undo(block, NATURAL))
                if (total > _EXCESS * self.largest).any():
                    cell = first_cell + int(total.argmax())
                    raise ValueError(
                        f"{where} holds cells that were scaled to different totals (one is cell "
                        f"{cell}): normalise all of them alike, or give counts."
                    )
            return block
        plain = undo(block, self.transform)
        if self.target_sum is not None:
            total = self.total(plain)
            factor = np.divide(self.target_sum, total, out=np.zeros_like(total), where=total > 0)
            plain = sp.diags(factor) @ plain if sp.issparse(plain) else factor[:, None] * plain
        return np.log1p(plain).astype(np.float32)

    def total(self, plain: Block) -> np.ndarray:
        """Total of each cell over the columns, ``(n_cells,)``."""
        if self.columns is not None:
            plain = plain @ self.columns.astype(np.float64)
            return np.asarray(plain).ravel()
        return np.asarray(plain.sum(1, dtype=np.float64)).ravel()


def query_scale(
    rows: CellMatrix, scale: Scale, columns: np.ndarray, share: float, noun: str
) -> QueryScale:
    """Look at a sample of a query, and say how it is brought to the reference's scale.

    Parameters
    ----------
    rows
        Matrix of the query.
    scale
        Scale of the reference.
    columns
        Which columns are genes of the model, bool, ``(n_vars,)``.
    share
        Share of the model's genes that the query has.
    noun
        What the values are called in messages.

    Raises
    ------
    ValueError
        If cells hold anything but counts and the logarithm of normalized counts.

    Warns
    -----
    UserWarning
        If cells are on another scale, and it is not known on which.
    """
    cells = sample_cells(rows)
    fractional = are_fractional_counts(cells)
    try:
        kind = None
        if cells.shape[0]:
            kind = detect_values(cells, rows.where, fractional=fractional)
    except ValueError:
        # The message comes when the cell is read, and names it.
        return QueryScale()
    recognized = recognize(cells) if kind == "log1p" else None
    known = kind == "counts" or recognized is not None
    refuse_odd_values(cells, rows.where, noun, recognized=known)
    if kind == "counts":
        if fractional:
            log_fractional(rows.where)
        to_scale = _of_counts(cells, scale, columns, share, rows.where)
        return to_scale._replace(fractional=fractional)
    if kind is None:
        return QueryScale()
    if recognized is not None:
        refuse_transform(recognized, rows.where, noun, LOGARITHMS)
        return _of_logarithms(recognized, scale, columns, share, rows.where)
    totals = np.asarray(undo(cells, NATURAL)[:, columns].sum(1)).ravel()
    expected = _expected_total(scale)
    if expected is not None and not _is_plausible(totals, scale, expected, share):
        warnings.warn(
            f"{rows.where} holds cells whose total over the model's genes is about "
            f"{np.median(totals):.3g} once the natural logarithm is undone, but that of the "
            f"reference's cells is about {expected:.3g}, so they seem to be on another scale, and "
            "labels may suffer: give counts.",
            UserWarning,
            stacklevel=user_stacklevel(),
        )
    return QueryScale()


def _of_counts(
    cells: sp.csr_matrix, scale: Scale, columns: np.ndarray, share: float, where: str
) -> QueryScale:
    """Choose what counts are divided by."""
    if scale.over != "matrix":
        # Their sum over the model's genes.
        return QueryScale()
    whole = QueryScale(target_sum=scale.target_sum)
    if scale.genes_total is None:
        return whole
    of_genes = np.asarray(cells[:, columns].sum(1)).ravel()
    totals = of_genes / np.asarray(cells.sum(1)).ravel() * scale.target_sum
    if not _lacks_genes(totals, scale, scale.genes_total, share):
        return whole
    logger.warning(
        "query: %s seems to lack genes that were measured, so the counts of a cell are scaled to "
        "%.6g over the model's genes, the reference's median, instead of to %.6g over all genes",
        where,
        scale.genes_total,
        scale.target_sum,
    )
    return QueryScale(target_sum=scale.genes_total, columns=columns)


def _of_logarithms(
    found: Recognized, scale: Scale, columns: np.ndarray, share: float, where: str
) -> QueryScale:
    """Choose how log-normalized cells are scaled, if they are on another scale."""
    total, expected = found.common_total(), _expected_total(scale)
    natural = found.transform is NATURAL
    target: float | None
    lacks_genes = total is None or (
        expected is not None
        and _lacks_genes(found.totals(columns) / total * scale.target_sum, scale, expected, share)
    )
    if scale.over == "matrix" and expected is not None and not lacks_genes and total is not None:
        # Both totals are known, and over the same genes.
        same, target, over = agree(np.array([total, scale.target_sum])), scale.target_sum, None
    elif expected is None:
        # Nobody knows what the reference was scaled to.
        same, target, over = True, None, None
    else:
        same = _is_plausible(found.totals(columns), scale, expected, share)
        if total is not None and scale.over == "genes":
            # Genes that the query lacks were left out before it was normalized.
            same = same and agree(np.array([total, expected]))
        target, over = expected, columns
    if same and natural:
        largest = expected if scale.over == "genes" else None
        return QueryScale(columns=columns, largest=largest)
    if same:
        target = None
    if target is None:
        logger.warning(
            "query: cells of %s hold %s, which is replaced by the natural logarithm",
            where,
            found.transform.name,
        )
    else:
        # The total of all genes may be right, and that of the model's genes be another one.
        of_genes = total is None or agree(np.array([total, target]))
        logger.warning(
            "query: cells of %s had a total of %.6g%s before %s was taken, those of the reference "
            "%.6g: they are brought to its scale",
            where,
            np.median(found.totals(columns)) if of_genes else total,
            " over the model's genes" if of_genes else "",
            found.transform.name,
            target,
        )
    return QueryScale(found.transform, target, over)


def _expected_total(scale: Scale) -> float | None:
    """Total of a cell of the reference over the model's genes; ``None`` if it is not known."""
    return scale.genes_total if scale.over == "matrix" else scale.target_sum


def _lacks_genes(totals: np.ndarray, scale: Scale, expected: float, share: float) -> bool:
    """Whether a query lacks genes that were summed for the total of the reference.

    ``totals`` are those of its cells over the model's genes if it lacks none.
    """
    only_these = np.median(totals) > _ALL * scale.target_sum and expected < _MOST * scale.target_sum
    return bool(only_these) or not _is_plausible(totals, scale, expected, share)


def _is_plausible(totals: np.ndarray, scale: Scale, expected: float, share: float) -> bool:
    """Whether totals over the model's genes are those of cells on the scale of the reference."""
    middle = np.median(totals)
    if scale.over == "genes":
        # A cell has no more than all of its counts in the model's genes.
        low, fits = _SAME * expected, totals.max() < (1 + SAME_TOTAL) * expected
    else:
        low, high = scale.genes_range or (_SIMILAR * expected, expected / _SIMILAR)
        low, fits = low / _OUTSIDE, middle < _OUTSIDE * high
    return bool(fits and middle > (low if share >= _MOST_GENES else min(low, _LESS * expected)))
