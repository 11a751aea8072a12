"""Read Seurat objects from any common file format, and write annotations for Seurat."""

from tosica.io._from_seurat import from_seurat
from tosica.io._read_seurat import read_seurat
from tosica.io._to_seurat import to_seurat

__all__ = ["from_seurat", "read_seurat", "to_seurat"]
