"""Load, read, write and combine gene sets, and translate gene names."""

from tosica.gs._collections import collections, load
from tosica.gs._join import join
from tosica.gs._map_genes import map_genes
from tosica.gs._read_gmt import read_gmt
from tosica.gs._write_gmt import write_gmt

__all__ = ["collections", "join", "load", "map_genes", "read_gmt", "write_gmt"]
