"""Read counts and Seurat objects from any common file format, and write annotations for others."""

from tosica.io._cell_annotation import write_cas
from tosica.io._seurat import from_seurat, read_seurat, to_seurat
from tosica.io._tenx import read_10x

__all__ = ["from_seurat", "read_10x", "read_seurat", "to_seurat", "write_cas"]
