"""Recognise a converted Seurat object that was not repaired, and say how to repair it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from anndata import AnnData

# A column with more different codes than this is not taken for a factor.
_MOST_LEVELS = 200


def from_seurat_advice(adata: AnnData, name: str = "adata") -> str:
    """Advise in one sentence how to repair a converted Seurat object; empty for other objects.

    ``name`` is what the AnnData is called in the sentence.
    """
    if not _came_from_seurat(adata):
        return ""
    return (
        f"{name} looks like a converted Seurat object: read its file with tosica.io.read_seurat, "
        f"or repair it with tosica.io.from_seurat({name})."
    )


def are_factor_codes(adata: AnnData, key: str) -> bool:
    """Whether a column holds codes of a factor whose levels were lost in the conversion."""
    column = adata.obs[key]
    if not pd.api.types.is_integer_dtype(column.dtype) or not _came_from_seurat(adata):
        return False
    known = np.unique(column[column >= 0])
    return 1 < len(known) <= _MOST_LEVELS and bool((known == np.arange(len(known))).all())


def _came_from_seurat(adata: AnnData) -> bool:
    """Whether ``obs`` has the columns that Seurat gives every object."""
    names = [str(name) for name in adata.obs]
    counted = {name.removeprefix("nCount_") for name in names if name.startswith("nCount_")}
    return any(f"nFeature_{assay}" in names for assay in counted)
