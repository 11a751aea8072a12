"""RNA as a kind of modality."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tosica.data._log_normalized_kind import LogNormalizedKind
from tosica.data._scale import describe_unscaled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tosica.data._cell_matrix import CellMatrix


class RNA(LogNormalizedKind):
    """Expression: counts, or log-normalised."""

    role = "rna"
    title = "RNA"
    noun = "expression"
    values: ClassVar[Mapping[str, str]] = {
        "counts": "counts",
        "log1p": "log-normalised expression",
    }
    mismatch_advice = "was it cut down to its variable genes?"
    empty_cells = "express none of the model's genes"

    def advice(self, matrix: CellMatrix) -> str:
        """Say where unscaled expression is, and how to repair a converted Seurat object."""
        return describe_unscaled(matrix.adata, name=matrix.name)
