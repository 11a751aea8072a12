"""A query that stays on disk: read its cells as they are needed, copy it, and replace the copy."""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anndata as ad
import h5py
import numpy as np
from anndata import AnnData
from anndata.io import read_elem, sparse_dataset, write_elem

from tosica._files import as_os_error, resolve_output, sync, temporary_folder
from tosica._text import first_line
from tosica.data import CellMatrix, sample_positions
from tosica.io._containers import (
    import_zarr,
    open_cells,
    open_group,
    read_whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# Neighboring cells of a sample are read together.
_RUN_LENGTH = 50
# Elements with a value for each cell and gene, or for each pair of cells.
_MATRICES = ("X", "layers", "raw", "obsp")
# What an annotation adds to.
_ANNOTATED = ("obs", "obsm", "obsp", "uns")
# Cells that are copied at a time.
_BLOCK = 16_384
_HDF5 = (".h5ad", ".h5mu")


class StoredByGenesError(ValueError):
    """A matrix is stored by genes (CSC), so that no range of cells can be read."""


class Store:
    """One matrix of a query that stays on disk.

    Parameters
    ----------
    path
        An ``.h5ad`` file, a folder with a Zarr store, or the address of one, such as ``s3://…``.
    group
        Group of the cells, if it is a container.
    layer
        Read this layer instead of ``X``.
    use_raw
        Read ``raw`` instead of ``X``.
    default_layer
        Read this layer if there is one and nothing else was chosen.

    Attributes
    ----------
    adata
        Cells that are called by their positions, with matrices on disk. Files that only anndata can
        read are in memory.
    matrix
        Name of the layer, and whether raw is read, as arguments.
    sample
        A few cells from all over the query, to recognize its scale.

    Raises
    ------
    ModuleNotFoundError
        If ``path`` is a Zarr store and Zarr is not installed.
    ValueError
        If it holds no AnnData, or its matrix is stored by genes.
    KeyError
        If there is no such matrix.
    """

    def __init__(
        self,
        path: str,
        group: str = "",
        *,
        layer: str | None,
        use_raw: bool,
        default_layer: str | None,
    ) -> None:
        self.path = path
        self.group = group
        self.adata = _open(path, group)
        self.n_obs: int = self.adata.n_obs
        if layer is None and default_layer in self.adata.layers and not use_raw:
            layer = default_layer
        self.matrix: dict[str, Any] = {"layer": layer, "use_raw": use_raw}
        stored = self.adata.X
        if use_raw and self.adata.raw is not None:
            stored = self.adata.raw.X
        elif layer is not None:
            stored = self.adata.layers.get(layer)
        if getattr(stored, "format", "csr") != "csr":
            raise StoredByGenesError(
                f"The matrix of {path!r} is stored by genes (CSC): write it by cells, as adata.X.tocsr()."
            )
        matrix = CellMatrix(self.adata, **self.matrix, name=repr(path))
        self._names = matrix.names
        self._block = matrix.read(sample_positions(self.n_obs))
        self._pointers = getattr(stored, "indptr", ())
        self.sample = self.adata[sample_positions(self.n_obs)]
        self._parts = self.adata
        if not use_raw:
            # A view reads its cells of raw at once.
            adata = self.adata
            self._parts = AnnData(
                adata.X, obs=adata.obs, var=adata.var, layers=dict(adata.layers)
            )

    def close(self) -> None:
        """Close the file, which nobody can write to before; its matrices cannot be read afterwards.

        References among the cells would leave it open until the next collection of garbage.
        """
        adata = self.adata
        matrices = [adata.X, *adata.layers.values()]
        if adata.raw is not None:
            matrices.append(adata.raw.X)
        for matrix in matrices:
            element = getattr(matrix, "group", matrix)
            if isinstance(element, h5py.HLObject) and element:
                element.file.close()

    def __getitem__(self, cells: slice | np.ndarray) -> AnnData:
        """Some cells, whose matrices are read when they are used."""
        return self._parts[cells]

    def spread(self, n_cells: int) -> AnnData:
        """About ``n_cells`` cells in runs of neighbors from all over the query; all, if it has no more."""
        if self.n_obs <= n_cells:
            return self._parts
        n_runs = -(-n_cells // _RUN_LENGTH)
        run_starts = np.linspace(0, self.n_obs - _RUN_LENGTH, n_runs).astype(int)
        # Runs of a query that is hardly larger than the sample overlap.
        return self[np.unique(run_starts[:, None] + np.arange(_RUN_LENGTH))]

    def digest(self) -> str:
        """Hash names of genes, shape, sparsity and a sample: all values would take too long."""
        digest = hashlib.sha256("\0".join(map(str, self._names)).encode())
        digest.update(f"{self.matrix}{self.n_obs}".encode())
        is_dense = isinstance(self._block, np.ndarray)
        dense = self._block if is_dense else self._block.toarray()
        digest.update(np.ascontiguousarray(dense).tobytes())
        digest.update(np.asarray(self._pointers, np.int64).tobytes())
        return digest.hexdigest()[:32]


def _open(path: str, group: str) -> AnnData:
    """Open cells, called by their positions, as their names may occur twice.

    Raises
    ------
    ImportError, ValueError
        As :class:`Store`.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            adata = open_cells(path, group, ("obs", "var"))
    except (ImportError, MemoryError):
        raise
    # Zarr raises many types of errors for what is no Zarr store.
    except Exception as error:
        raise ValueError(
            f"{path!r} holds no cells that anndata can read ({first_line(error)}): pass an .h5ad file or a Zarr store."
        ) from error
    if not adata.n_obs:
        raise ValueError(f"{path!r} has no cells.")
    adata.obs_names = np.arange(adata.n_obs).astype(str)
    return adata


# --------------------------------------------------------------------------- writing


@contextmanager
def replacing_store(path: Path) -> Iterator[Path]:
    """Yield a temporary path for an ``.h5ad`` file or a Zarr store, which then replaces ``path``.

    Raises
    ------
    OSError
        If it cannot be written; what was there before is unchanged.
    """
    target = resolve_output(path)
    with temporary_folder(target.parent) as folder, as_os_error():
        temporary = folder / path.name
        yield temporary
        if temporary.is_file():
            sync(temporary)
        # A folder neither replaces nor is replaced in one step.
        if target.is_dir() or (temporary.is_dir() and target.exists()):
            os.rename(target, folder / "replaced")
        os.replace(temporary, target)


@contextmanager
def open_for_writing(
    path: Path, group: str = "", *, new: bool = False
) -> Iterator[Any]:
    """Open a file or a Zarr store, or a group in it, to change it; afterwards metadata are consolidated."""
    # A query with nullable strings was written with this setting, too.
    nullable_strings = ad.settings.override(allow_write_nullable_strings=True)
    if path.suffix.lower() in _HDF5:
        with nullable_strings, h5py.File(path, "w" if new else "a") as file:
            yield file[group or "/"]
        return
    zarr = import_zarr(path)
    with nullable_strings, warnings.catch_warnings():
        # Zarr warns at each call about names, strings and consolidation.
        warnings.simplefilter("ignore")
        if new:
            root = zarr.open_group(path, mode="w", zarr_format=3)
        else:
            folder = path / group
            root = zarr.open_group(folder, mode="r+", use_consolidated=False)
        yield root
        # Metadata of the whole repeat those of the group.
        for folder in dict.fromkeys((path / group, path)):
            zarr.consolidate_metadata(folder)


def write_anndata(root: Any, adata: AnnData) -> None:
    """Write all of a query to an empty file or store, as ``write_h5ad`` does."""
    # Texts of which some are missing can be written in no other way.
    adata.strings_to_categoricals()
    write_elem(root, "/", adata)
    # A raw that is None is written, too, and is not read again as None with backed=True.
    if adata.raw is None and "raw" in root:
        del root["raw"]


def is_copy_of_container(path: str, group: str, output: Path) -> bool:
    """Whether an output is of the format of a query's container, and so has all of it."""
    suffix = ".h5mu" if Path(path).is_file() else ".zarr"
    return bool(group) and output.suffix.lower() == suffix


@contextmanager
def copied_container(path: str, group: str, output: Path) -> Iterator[Any]:
    """Yield the group of the cells in a copy of a container, to change them; the copy replaces ``output``.

    If the output is the container itself, only the table in it is replaced.
    """
    source = Path(path)
    is_same = output.exists() and output.samefile(source)
    if is_same and source.is_dir():
        with replacing_store(source / group) as temporary:
            shutil.copytree(source / group, temporary)
            with open_for_writing(temporary) as root:
                yield root
        with open_for_writing(source):  # consolidates the metadata of the whole
            return
    with replacing_store(output) as temporary:
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, temporary)
        with open_for_writing(temporary, group) as root:
            yield root


def write_annotation(root: Any, adata: AnnData) -> None:
    """Write what an annotation adds to cells that are there, without their matrices."""
    adata.strings_to_categoricals()
    for name in _ANNOTATED:
        element = getattr(adata, name)
        write_elem(root, name, element if name == "obs" else dict(element))


@contextmanager
def annotated_copy(store: Store, output: Path, *, matrices: bool) -> Iterator[Any]:
    """Yield the root of a copy of a query, to add results to; the copy then replaces ``output``.

    Parameters
    ----------
    store
        The query.
    output
        A path that ends in ``.h5ad`` or ``.zarr``, or as a container does.
    matrices
        Whether to copy ``X``, ``layers``, ``raw`` and ``obsp``, too.
    """
    if matrices and is_copy_of_container(store.path, store.group, output):
        with copied_container(store.path, store.group, output) as root:
            yield root
        return
    with replacing_store(output) as temporary:
        copy_store(store, temporary, matrices=matrices)
        with open_for_writing(temporary) as root:
            yield root


def copy_store(store: Store, path: Path, *, matrices: bool) -> None:
    """Copy a query to a path where nothing is yet.

    A file or a folder that has this format already is copied byte by byte, with chunks and compression.
    """
    omitted = () if matrices else _MATRICES
    root = open_group(store.path, store.group)
    if root.attrs.get("encoding-type") != "anndata":
        with open_for_writing(path, new=True) as target:
            write_anndata(target, read_whole(store.path, store.group))
            for name in omitted:
                target.pop(name, None)
        return
    folder = Path(store.path, store.group).absolute()
    if path.suffix == ".zarr" and folder.is_dir():

        def ignore(inner: str, _: list[str]) -> tuple[str, ...]:
            return omitted if inner == str(folder) else ()

        shutil.copytree(folder, path, ignore=ignore)
        return
    with open_for_writing(path, new=True) as target:
        target.attrs.update(dict(root.attrs))
        for name in root:
            if name in omitted:
                continue
            if path.suffix == ".h5ad" and isinstance(root, h5py.Group):
                root.copy(root[name], target, name=name)
            else:
                _copy(root[name], target, name)


def _copy(element: Any, target: Any, name: str) -> None:
    """Copy one element to another format; matrices are copied block by block."""
    encoding = element.attrs.get("encoding-type", "")
    if name in ("layers", "raw", "obsm", "obsp") and not hasattr(element, "shape"):
        group = target.require_group(name)
        group.attrs.update(dict(element.attrs))
        for key in element:
            _copy(element[key], group, key)
    elif encoding == "csr_matrix":
        matrix = sparse_dataset(element)
        write_elem(target, name, matrix[:_BLOCK])
        copied = sparse_dataset(target[name])
        for offset in range(_BLOCK, matrix.shape[0], _BLOCK):
            copied.append(matrix[offset : offset + _BLOCK])
    elif encoding == "array" and len(element.shape) == 2:
        array = create_array(target, name, element[:_BLOCK], element.shape[0])
        for offset in range(_BLOCK, element.shape[0], _BLOCK):
            rows = slice(offset, offset + _BLOCK)
            array[rows] = element[rows]
    else:
        write_elem(target, name, read_elem(element))


def create_array(group: Any, name: str, top_rows: np.ndarray, n_obs: int) -> Any:
    """Make an array of ``n_obs`` rows as anndata writes it, with its first rows; the others are to be filled."""
    n_rows, n_columns = top_rows.shape
    # Only a chunked dataset of HDF5 can grow.
    options: dict[str, Any] = {"chunks": (max(n_rows, 1), max(n_columns, 1))}
    if isinstance(group, h5py.Group):
        options["maxshape"] = (None, n_columns)
    write_elem(group, name, top_rows, dataset_kwargs=options)
    array = group[name]
    array.resize((n_obs, n_columns))
    return array
