"""Load, read, write and combine gene sets, and translate gene names."""

from tosica.gs._collections import collections, load
from tosica.gs._gmt import read_gmt, write_gmt
from tosica.gs._join import join
from tosica.gs._map_genes import map_genes

__all__ = ["collections", "join", "load", "map_genes", "read_gmt", "write_gmt"]
