"""Copy a query to another store as it is, whole or without its matrices."""

from __future__ import annotations

import os
import shutil
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from anndata.io import read_elem, sparse_dataset, write_elem

from tosica._files import as_os_error, sync, temporary_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tosica.ondisk._store import Store

# Elements that hold a value for each cell and gene, or for each two cells.
MATRICES = ("X", "layers", "raw", "obsp")
# Cells that are read at a time.
_BLOCK = 16_384


@contextmanager
def replacing_store(path: Path) -> Iterator[Path]:
    """Yield a temporary path for an ``.h5ad`` file or a Zarr store, which then replaces ``path``.

    Raises
    ------
    OSError
        If it cannot be written; what was there before is unchanged.
    """
    with temporary_folder(path.parent) as folder, as_os_error():
        temporary = folder / path.name
        yield temporary
        if temporary.is_file():
            sync(temporary)
        if (path.is_dir() or (temporary.is_dir() and path.exists())) and not path.is_symlink():
            # A folder cannot be replaced, and replaces nothing, in one step.
            os.rename(path, folder / "replaced")
        os.replace(temporary, path)


def copy_store(store: Store, path: Path, format_: str, *, matrices: bool) -> None:
    """Copy a query, and leave the copy at ``path``.

    Parameters
    ----------
    store
        The query.
    path
        Where to write; nothing is there yet.
    format_
        ``"h5ad"`` or ``"zarr"``. If it is that of the query, and the query is a file or a folder,
        what is stored is copied byte by byte, with chunks and compression.
    matrices
        Whether to copy ``X``, ``layers``, ``raw`` and ``obsp``, too.
    """
    left_out = () if matrices else MATRICES
    if format_ == store.format == "zarr" and os.path.isdir(store.path):
        top = os.path.abspath(store.path)

        def ignored(folder: str, names: list[str]) -> list[str]:
            return list(left_out) if os.path.abspath(folder) == top else []

        shutil.copytree(store.path, path, ignore=ignored)
        return
    with open_for_writing(path, format_, new=True) as target:
        for name, value in store.root.attrs.items():
            target.attrs[name] = value
        for name in [name for name in store.root if name not in left_out]:
            element = store.root[name]
            if format_ == store.format == "h5ad":
                store.root.copy(element, target, name=name)
            else:
                _copy(element, target, name)


@contextmanager
def open_for_writing(path: Path, format_: str, *, new: bool = False) -> Iterator[Any]:
    """Open a store to change it; afterwards the metadata of a Zarr store are consolidated."""
    if format_ == "h5ad":
        with h5py.File(path, "w" if new else "a") as file:
            yield file
        return
    try:
        import zarr
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{str(path)!r} is to be a Zarr store, but the package zarr is not installed: "
            "pip install 'tosica[atlas]'."
        ) from error
    with warnings.catch_warnings():
        # Zarr says at each call that it is not certain of names, strings and consolidation.
        warnings.simplefilter("ignore")
        group = (
            zarr.open_group(path, mode="w", zarr_format=3)
            if new
            else zarr.open_group(path, mode="r+", use_consolidated=False)
        )
        yield group
        zarr.consolidate_metadata(path)


def _copy(element: Any, target: Any, name: str) -> None:
    """Copy one element to another format; of a matrix, some cells are in memory at a time."""
    kind = element.attrs.get("encoding-type", "")
    if name in ("layers", "raw", "obsm", "obsp", "uns") and not hasattr(element, "shape"):
        group = target.require_group(name)
        group.attrs.update(dict(element.attrs))
        for inner in element:
            _copy(element[inner], group, inner)
    elif kind == "csr_matrix":
        matrix = sparse_dataset(element)
        write_elem(target, name, matrix[:_BLOCK])
        written = sparse_dataset(target[name])
        for start in range(_BLOCK, matrix.shape[0], _BLOCK):
            written.append(matrix[start : start + _BLOCK])
    elif kind == "array" and len(element.shape) == 2:
        chunks = (min(_BLOCK, element.shape[0]), element.shape[1])
        written = create_array(target, name, element.shape, element.dtype, chunks)
        for start in range(0, element.shape[0], _BLOCK):
            written[start : start + _BLOCK] = element[start : start + _BLOCK]
    else:
        write_elem(target, name, read_elem(element))


def create_array(
    group: Any, name: str, shape: tuple[int, ...], dtype: Any, chunks: tuple[int, ...]
) -> Any:
    """Make an array of an ``.h5ad`` file or a Zarr store, as anndata reads it, to be filled."""
    if isinstance(group, h5py.Group):
        array = group.create_dataset(name, shape, np.dtype(dtype), chunks=chunks)
    else:
        array = group.create_array(name, shape=shape, dtype=np.dtype(dtype), chunks=chunks)
    array.attrs["encoding-type"] = "array"
    array.attrs["encoding-version"] = "0.2.0"
    return array
