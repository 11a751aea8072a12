"""Annotate a query from disk to disk, in parts that a killed process does not lose.

The public function is :func:`tosica.tl.annotate_file`.

``_store``: an ``.h5ad`` file or a Zarr store on disk: read a range of cells, copy, replace.
``_parts``: the plan and its manifest, annotate a part, also on the workers of Dask, and join all parts.
"""

from tosica.ondisk._parts import (
    PartAnnotator,
    Plan,
    annotate_on_workers,
    join_parts,
    part_file,
)
from tosica.ondisk._store import (
    Store,
    StoredByGenesError,
    open_for_writing,
    open_store,
    replacing_store,
)
