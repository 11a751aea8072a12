"""Tell an object that came from Seurat unrepaired, and say what repairs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from anndata import AnnData

# More codes than this are no factor's.
_MOST_LEVELS = 200


def from_seurat_advice(adata: AnnData) -> str:
    """One sentence for who holds a converted Seurat object; empty for others."""
    if not _came_from_seurat(adata):
        return ""
    return (
        "adata looks like a converted Seurat object: read its file with tosica.io.read_seurat, or "
        "repair it with tosica.io.from_seurat(adata)."
    )


def are_factor_codes(adata: AnnData, key: str) -> bool:
    """Whether a column holds a factor's codes whose levels were lost on the way from Seurat."""
    column = adata.obs[key]
    if not pd.api.types.is_integer_dtype(column.dtype) or not _came_from_seurat(adata):
        return False
    known = np.unique(column[column >= 0])
    return 1 < len(known) <= _MOST_LEVELS and bool((known == np.arange(len(known))).all())


def _came_from_seurat(adata: AnnData) -> bool:
    """Whether the columns are there that Seurat gives every object."""
    names = [str(name) for name in adata.obs]
    counted = {name.removeprefix("nCount_") for name in names if name.startswith("nCount_")}
    return any(f"nFeature_{assay}" in names for assay in counted)
