"""Gene sets: GMT files and the collections that come with the package."""

from tosica.gs._collections import collections
from tosica.gs._load import load
from tosica.gs._read_gmt import read_gmt
from tosica.gs._write_gmt import write_gmt

__all__ = ["collections", "load", "read_gmt", "write_gmt"]
