"""Write synthetic counts to a file without holding them in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from anndata import AnnData
from anndata.io import sparse_dataset, write_elem

from tosica._checks import FilePath, Integer, validate_params
from tosica._files import as_os_error, replace_file
from tosica._settings import logger
from tosica.datasets import _droplets
from tosica.ondisk import open_for_writing, replacing_store

if TYPE_CHECKING:
    from collections.abc import Iterator

# Numbers in a chunk of a Zarr store: some 1 000 cells.
_ZARR_CHUNK = 2**18


@validate_params(path=FilePath(), **_droplets.PARAMETERS, chunk_size=Integer())
def write_synthetic(
    path: str | os.PathLike[str],
    n_obs: int = 2000,
    n_vars: int = 3000,
    *,
    n_labels: int = 13,
    n_batches: int = 2,
    n_gene_sets: int = 300,
    batch_effect: float = 0.25,
    seed: int = 0,
    chunk_size: int = 10_000,
) -> None:
    """Write synthetic counts of any size to an h5ad file or a Zarr store, with little memory.

    Parameters
    ----------
    path
        Path of the file, ending in ``.h5ad``, or of the Zarr store, ending in ``.zarr``. What is
        there is replaced when the new one is complete.
    n_obs, n_vars, n_labels, n_batches, n_gene_sets, batch_effect, seed
        As in :func:`synthetic`, with the same counts, labels and names.
    chunk_size
        Number of cells that are drawn and written at a time. The file does not depend on it.

    Raises
    ------
    TypeError
        If ``path`` is not a path, and as in :func:`synthetic`.
    ValueError
        If ``path`` ends otherwise, and as in :func:`synthetic`.
    ModuleNotFoundError
        If ``path`` ends in ``.zarr`` and Zarr is not installed.
    FileNotFoundError
        If the folder of ``path`` does not exist.
    OSError
        If the file cannot be written. An existing file is unchanged.

    See Also
    --------
    synthetic : describes the data.

    Notes
    -----
    Counts are drawn and written ``chunk_size`` cells at a time. In an h5ad file they are not
    compressed (about 1.6 GB for 1 000 000 cells × 3 000 genes). Only ``obs`` is in memory as a
    whole.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import anndata
    >>> import tosica
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "cells.h5ad"
    ...     tosica.datasets.write_synthetic(path, 500, 1000, n_labels=4)
    ...     anndata.read_h5ad(path).shape
    (500, 1000)
    """
    path = _check(path)
    plan = _droplets.plan(
        n_obs,
        n_vars,
        n_labels=n_labels,
        n_batches=n_batches,
        n_gene_sets=n_gene_sets,
        batch_effect=batch_effect,
        seed=seed,
    )
    blocks = _droplets.draw(plan, cells_at_once=chunk_size)
    first = next(blocks)
    # The file keeps the integer type of the first block, which must hold the number of all values.
    # Cells are in random order, so the first block is enough to estimate it.
    first.indptr = first.indptr.astype(index_dtype(2 * first.nnz * len(plan.obs) / first.shape[0]))
    annotations = AnnData(obs=plan.obs, var=plan.var, uns=plan.uns)
    if path.suffix == ".zarr":
        with (
            replacing_store(path) as temporary,
            open_for_writing(temporary, "zarr", new=True) as group,
        ):
            write_elem(group, "/", annotations)
            _write_counts(group, first, blocks, {"chunks": (_ZARR_CHUNK,)})
    else:
        with replace_file(Path(os.path.realpath(path))) as temporary, as_os_error():
            # Writing single elements would leave an empty raw, which backed reading cannot read.
            annotations.write_h5ad(temporary)
            with h5py.File(temporary, "a") as file:
                _write_counts(file, first, blocks, {})
    logger.info("write_synthetic: wrote %s cells × %s genes to %s", len(plan.obs), len(plan.var), path)


def _write_counts(root: Any, first: Any, others: Iterator[Any], dataset_kwargs: dict[str, Any]) -> None:
    write_elem(root, "X", first, dataset_kwargs=dataset_kwargs)
    counts = sparse_dataset(root["X"])
    for block in others:
        counts.append(block)


def index_dtype(n_values: float) -> type[np.signedinteger[Any]]:
    """Integer type that can hold a number of values."""
    return np.int64 if n_values > np.iinfo(np.int32).max else np.int32


def _check(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.suffix not in (".h5ad", ".zarr"):
        raise ValueError(f"the file {path.name!r} must end in '.h5ad' or '.zarr', the formats that are written.")
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"the folder {str(path.parent)!r} to write {path.name!r} to does not exist: create it first."
        )
    return path
