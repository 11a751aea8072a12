"""Annotate a query from disk to disk, in parts that a killed process does not lose.

The public function is :func:`tosica.tl.annotate_file`.

``_store``: an ``.h5ad`` file or a Zarr store on disk: read a range of cells, copy, replace.
``_parts``: the plan and its manifest, annotate a part, let the workers of Dask annotate parts.
``_join``: join all parts to one annotated store.
"""

from tosica.ondisk._join import check_output, join_parts
from tosica.ondisk._parts import PartAnnotator, Plan, annotate_on_workers, part_file
from tosica.ondisk._store import (
    StoredByGenesError,
    open_for_writing,
    open_query,
    open_store,
    replacing_store,
)

__all__ = [
    "PartAnnotator",
    "Plan",
    "StoredByGenesError",
    "annotate_on_workers",
    "check_output",
    "join_parts",
    "open_for_writing",
    "open_query",
    "open_store",
    "part_file",
    "replacing_store",
]
