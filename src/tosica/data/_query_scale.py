"""Bring the cells of a query to the scale of a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tosica._settings import logger, warn_user
from tosica.data._normalize import LogNormalization, cell_totals
from tosica.data._reference_scale import FRACTIONAL
from tosica.data._scale import (
    SAME_TOTAL,
    DetectedScale,
    detect,
    scale_error,
    totals_equal,
    undo_logarithm,
)

if TYPE_CHECKING:
    from tosica.data._matrix import CellMatrix
    from tosica.data._normalize import Block
    from tosica.data._reference_scale import Scale

# A query with this share of the model's genes has nearly all of the counts in them.
_NEARLY_ALL_GENES = 0.95
# Least total of a query's cells over the model's genes, as a share of the reference's: with all of
# these genes, and without some of them.
_LEAST_SHARE = 0.8
_LEAST_SHARE_OF_FEWER = 0.2
# The median of a query may be outside the range of a reference's cells by this factor.
_TOLERANCE = 1.25


class QueryScale(NamedTuple):
    """How the cells of a query are brought to the scale of the reference.

    Parameters
    ----------
    detected
        Scale of the query.
    target_sum
        Total that each cell is scaled to; ``None`` to take logarithms as they are.
    columns
        Columns that are summed for the total, bool ``(n_vars,)``; ``None`` for all.
    largest_total
        Largest total that a cell may have over the columns if it is taken as it is.
    """

    detected: DetectedScale
    target_sum: float | None = None
    columns: np.ndarray | None = None
    largest_total: float | None = None

    def normalize(self, block: Block, first_cell: int, where: str) -> Block:
        """Log-normalize a block, float32.

        Raises
        ------
        ValueError
            If a cell is scaled otherwise than the cells that were sampled.
        """
        kind = self.detected.kind
        if self.target_sum is not None:
            counts = undo_logarithm(block, kind).astype(np.float32)
            return LogNormalization(self.target_sum).normalize_block(
                counts, self.columns
            )
        if self.largest_total is not None:
            totals = cell_totals(undo_logarithm(block, kind), self.columns)
            if totals.max() > 1.1 * self.largest_total:
                raise scale_error(where, first_cell + int(totals.argmax()))
        return block.astype(np.float32)


def fit_query_scale(
    sample: CellMatrix, scale: Scale, columns: np.ndarray, gene_share: float
) -> QueryScale:
    """Look at a sample of a query, and say how it is brought to the reference's scale.

    Parameters
    ----------
    sample
        Matrix of the query, or of cells from all over it.
    scale
        Scale of the reference.
    columns
        Which columns are genes of the model, bool, ``(n_vars,)``.
    gene_share
        Share of the model's genes that the query has.

    Raises
    ------
    ValueError
        If all are zero, or hold anything but counts and the logarithm of normalized counts.

    Warns
    -----
    UserWarning
        If cells are on another scale, and it is not known on which.
    """
    detected = detect(sample)
    if detected.kind == "counts":
        if not detected.is_whole:
            logger.info(FRACTIONAL, sample.where)
        if scale.over != "matrix":
            return QueryScale(detected, scale.target_sum, columns)
        genes_total = scale.genes_total
        if genes_total is not None:
            totals = detected.totals(columns) / detected.totals() * scale.target_sum
            if _lacks_genes(totals, scale, genes_total, gene_share):
                logger.warning(
                    f"query: {sample.where} seems to lack genes that were measured, so the counts of a cell are scaled "
                    f"to {genes_total:.6g} over the model's genes, the reference's median, instead of to "
                    f"{scale.target_sum:.6g} over all genes"
                )
                return QueryScale(detected, genes_total, columns)
        return QueryScale(detected, scale.target_sum)
    if detected.is_certain:
        return _scale_logarithms(detected, scale, columns, gene_share, sample.where)
    totals = detected.totals(columns)
    expected = scale.expected_total
    if expected is not None and not _is_plausible(totals, scale, expected, gene_share):
        warn_user(
            f"{sample.where} holds cells whose total over the model's genes is about {np.median(totals):.3g} once the "
            f"natural logarithm is undone, but that of the reference's cells is about {expected:.3g}, so they seem to "
            "be on another scale, and labels may suffer: give counts."
        )
    return QueryScale(detected)


def _scale_logarithms(
    detected: DetectedScale,
    scale: Scale,
    columns: np.ndarray,
    gene_share: float,
    where: str,
) -> QueryScale:
    """Choose how log-normalized cells are scaled, if they have another total than the reference's."""
    expected = scale.expected_total
    if expected is None:
        # Nothing tells what the reference was scaled to.
        return QueryScale(detected)
    total = detected.common_total()
    genes_totals = detected.totals(columns)
    target_sum = expected
    summed: np.ndarray | None = columns
    has_all_genes = (
        total is not None
        and scale.over == "matrix"
        and not _lacks_genes(
            genes_totals / total * scale.target_sum, scale, expected, gene_share
        )
    )
    if total is not None and has_all_genes:
        # Both totals are over the same genes.
        is_same = totals_equal(np.array([total, scale.target_sum]))
        target_sum = scale.target_sum
        summed = None
    else:
        is_same = _is_plausible(
            genes_totals, scale, expected, gene_share, detected.tolerance
        )
        if total is not None and scale.over == "genes":
            # Genes that the query lacks were left out before it was normalized.
            is_same = is_same and totals_equal(np.array([total, expected]))
    if is_same:
        largest_total = expected if scale.over == "genes" else None
        return QueryScale(detected, None, columns, largest_total)
    current = np.median(genes_totals) if total is None else total
    genes = ("", "")
    if total is not None and summed is not None:
        genes = (" over all genes", " over the model's genes")
    logger.warning(
        f"query: cells of {where} hold the natural logarithm of a total of about {current:.6g}{genes[0]}: they are "
        f"brought to the reference's scale, the natural logarithm of a total of {target_sum:.6g}{genes[1]}"
    )
    return QueryScale(detected, target_sum, summed)


def _lacks_genes(
    totals: np.ndarray, scale: Scale, expected: float, gene_share: float
) -> bool:
    """Whether a query lacks genes that were summed for the total of the reference.

    ``totals`` are those of its cells over the model's genes if it lacks none.
    """
    has_only_these = np.median(totals) > (1 - SAME_TOTAL) * scale.target_sum
    reference_had_others = expected < _NEARLY_ALL_GENES * scale.target_sum
    if has_only_these and reference_had_others:
        return True
    return not _is_plausible(totals, scale, expected, gene_share)


def _is_plausible(
    totals: np.ndarray,
    scale: Scale,
    expected: float,
    gene_share: float,
    tolerance: float = SAME_TOTAL,
) -> bool:
    """Whether totals over the model's genes are those of cells on the scale of the reference."""
    median = np.median(totals)
    if scale.over == "genes":
        # A cell has no more than all of its counts in the model's genes.
        is_low_enough = totals.max() < (1 + tolerance) * expected
        least = _LEAST_SHARE * expected
    else:
        low, high = scale.genes_range or (expected / 2, expected * 2)
        is_low_enough = median < _TOLERANCE * high
        least = low / _TOLERANCE
    if gene_share < _NEARLY_ALL_GENES:
        least = min(least, _LEAST_SHARE_OF_FEWER * expected)
    return bool(is_low_enough and median > least)
