"""Annotate a query from disk to disk, in parts that a killed process does not lose.

The public function is :func:`tosica.tl.annotate_file`.

``_store``: the query, an ``.h5ad`` file or a Zarr store, read a range of cells at a time.
``_plan``: which ranges there are, and the manifest by which work that was begun is recognized.
``_parts``: annotate one range of cells, and keep the result in a file.
``_distribute``: let the workers of Dask annotate parts.
``_copy_elements``: copy a query to another store, whole or without its matrices.
``_join``: join all parts to one annotated store.
"""

from tosica.ondisk._copy_elements import open_for_writing, replacing_store
from tosica.ondisk._distribute import annotate_on_workers
from tosica.ondisk._join import check_output, join_parts, output_format
from tosica.ondisk._parts import PartAnnotator
from tosica.ondisk._plan import MODEL, Plan, Settings, make_plan
from tosica.ondisk._store import StoredByGenesError, open_query, open_zarr

__all__ = [
    "MODEL",
    "PartAnnotator",
    "Plan",
    "Settings",
    "StoredByGenesError",
    "annotate_on_workers",
    "check_output",
    "join_parts",
    "make_plan",
    "open_for_writing",
    "open_query",
    "open_zarr",
    "output_format",
    "replacing_store",
]
