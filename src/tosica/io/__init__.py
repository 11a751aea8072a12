"""Read Seurat objects from any common file format, and write annotations for Seurat."""

from tosica.io._seurat import from_seurat, read_seurat, to_seurat

__all__ = ["from_seurat", "read_seurat", "to_seurat"]
