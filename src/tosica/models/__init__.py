"""Models that others share: list them, download them, and write an index of your own."""

from tosica.models._available import available
from tosica.models._download import download
from tosica.models._write_index import write_index

__all__ = ["available", "download", "write_index"]
