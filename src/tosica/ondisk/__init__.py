"""Annotate a query from disk to disk, in parts, so that a killed process loses only one of them.

The public function is :func:`tosica.tl.annotate_file`.

``_store``: read a range of cells of an ``.h5ad`` file or a Zarr store, copy and replace it.
``_parts``: the plan and its manifest; annotate a part, also on the workers of Dask; join all parts.
"""

from tosica.ondisk._parts import (
    PartAnnotator,
    Plan,
    annotate_on_workers,
    join_parts,
)
from tosica.ondisk._store import (
    Store,
    StoredByGenesError,
    copied_container,
    is_copy_of_container,
    open_for_writing,
    replacing_store,
    write_anndata,
    write_annotation,
)
