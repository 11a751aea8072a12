"""Load, read, write and combine gene sets, and translate gene names."""

from tosica.gs._collections import collections, join, load, read_gmt, write_gmt
from tosica.gs._match import map_genes

__all__ = ["collections", "join", "load", "map_genes", "read_gmt", "write_gmt"]
