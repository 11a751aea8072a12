"""Modalities of genes that are taken as the logarithm of counts per a fixed total."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tosica._logging import query_logger
from tosica.data._modality_kind import CellBatch, ModalityKind
from tosica.data._normalize import LogNormalization
from tosica.data._query_scale import query_scale
from tosica.data._reference_scale import scale_of
from tosica.data._scale import Scale, detect_values, detected_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

    from tosica.data._cell_matrix import CellMatrix


class LogNormalizedKind(ModalityKind[Scale]):
    """A matrix of genes: counts, or log-normalised values."""

    #: What the values are called in messages.
    noun: ClassVar[str]

    def detect_scale(self, matrix: CellMatrix) -> Scale:
        """Tell counts from log-normalised values, and find their total."""
        return scale_of(matrix, hint=partial(self.advice, matrix), values=self.noun)

    def load_scale(self, state: Mapping[str, Any]) -> Scale:
        """Make the scale from the dict that a model saved."""
        return Scale(**state)

    def keep_scale(self, saved: Scale, found: Scale) -> Scale:
        """Keep the saved total if that of the other reference cannot be inferred."""
        return saved if saved.over != "genes" and found.over != "genes" else found

    def normalization(self, scale: Scale) -> LogNormalization:
        """Scale each cell to the reference's total and take ``log(1 + x)``."""
        return LogNormalization(scale.target_sum)

    def read_query(
        self,
        matrix: CellMatrix,
        scale: Scale,
        columns: np.ndarray,
        share: float,
        size: int,
        sample: CellMatrix,
    ) -> Iterator[CellBatch]:
        """Read a query; log-normalized cells are brought to the reference's total if it is known.

        They are taken as they are if it is not plain how they were scaled.

        Raises
        ------
        ValueError
            If values are negative, missing, infinite, neither counts nor log-normalized, or counts
            in some cells and log-normalized in others; if they are ranks, standardized genes,
            values without a logarithm, or the logarithm of counts that were not normalized.
        """
        to_scale = query_scale(sample, scale, columns, share, self.noun)
        detect = partial(
            detect_values,
            hint=partial(self.advice, matrix),
            values=self.noun,
            fractional=to_scale.fractional,
        )
        logged = False
        for start, block, kind in detected_blocks(matrix, size, detect, sample):
            if kind is not None and not logged:
                query_logger.info("query: %s holds %s", matrix.where, self.values[kind])
                logged = True
            is_counts, total = kind != "log1p", None
            if not is_counts:
                block = to_scale.log_normalized(block, start, matrix.where)
            elif scale.over == "matrix":
                # The model divides by it and multiplies by its own total.
                own = to_scale.target_sum or scale.target_sum
                total = to_scale.total(block) * (scale.target_sum / own)
            yield CellBatch(start, block, is_counts, total)
