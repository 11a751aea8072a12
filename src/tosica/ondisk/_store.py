"""An ``.h5ad`` file or a Zarr store that stays on disk: read a range of cells, copy, replace."""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData
from anndata.io import read_elem, sparse_dataset, write_elem

from tosica._files import as_os_error, sync, temporary_folder
from tosica._text import listed, only_known, parameter
from tosica.data import sample_positions

if TYPE_CHECKING:
    from collections.abc import Iterator

# Neighbouring cells of a sample are read together.
_RUN_LENGTH = 50
# Elements with a value for each cell and gene, or for each pair of cells.
_MATRICES = ("X", "layers", "raw", "obsp")
# Cells that are copied at a time.
_BLOCK = 16_384


class StoredByGenesError(ValueError):
    """A matrix is stored by genes (CSC), so that no range of cells can be read."""


class Store:
    """One matrix and the genes of a query that stays on disk, opened for reading.

    Parameters
    ----------
    path
        An ``.h5ad`` file, a folder with a Zarr store, or the address of one, such as ``s3://…``.
    layer
        Read this layer instead of ``X``.
    use_raw
        Read ``raw`` instead of ``X``.
    default_layer
        Read this layer if there is one and nothing else was chosen.

    Raises
    ------
    FileNotFoundError
        If there is nothing at ``path``.
    ModuleNotFoundError
        If ``path`` is a Zarr store and Zarr is not installed.
    ValueError
        If it holds no AnnData, or its matrix is stored by genes.
    KeyError
        If there is no such matrix.
    """

    def __init__(
        self, path: str, *, layer: str | None, use_raw: bool, default_layer: str | None
    ) -> None:
        self.path = path
        self.root = open_store(path)
        if "var" not in self.root or "obs" not in self.root:
            raise ValueError(f"{path!r} holds no AnnData: it has no obs or no var.")
        self._key = self._find_matrix(layer, use_raw, default_layer)
        self._matrix = _as_matrix(self.root[self._key])
        if getattr(self._matrix, "format", "csr") != "csr":
            raise StoredByGenesError(
                f"{self._key} of {path!r} is stored by genes (CSC): write it by cells, as adata.X.tocsr()."
            )
        self.var: pd.DataFrame = read_elem(self.root["raw/var" if use_raw else "var"])
        self.n_obs: int = self._matrix.shape[0]
        if not self.n_obs:
            raise ValueError(f"{path!r} has no cells.")

    def _find_matrix(
        self, layer: str | None, use_raw: bool, default_layer: str | None
    ) -> str:
        """Key of the matrix in the file."""
        layers = list(self.root.get("layers", []))
        if layer is None and default_layer in layers and not use_raw:
            layer = default_layer
        if use_raw:
            key = "raw/X"
            description = "raw/X."
        elif layer is not None:
            key = f"layers/{layer}"
            description = f"layer {layer!r}{only_known(layer, layers)}"
        else:
            key = "X"
            matrices = [parameter("layer", name) for name in layers]
            if "raw/X" in self.root:
                matrices.append(parameter("use_raw", True))
            description = "X."
            if matrices:
                description = f"X: pass {listed(matrices, last=' or ')}."
        if key not in self.root:
            raise KeyError(f"{self.path!r} has no {description}")
        return key

    def read(self, cells: slice) -> AnnData:
        """Read a range of cells into memory; their names are positions."""
        positions = np.arange(cells.start, cells.stop)
        return self._adata(self._read(cells), positions)

    def read_spread(self, n_cells: int) -> AnnData:
        """Read about ``n_cells`` cells in runs of neighbours from all over the query; all, if it has no more."""
        if self.n_obs <= n_cells:
            return self.read(slice(0, self.n_obs))
        n_runs = -(-n_cells // _RUN_LENGTH)
        run_starts = np.linspace(0, self.n_obs - _RUN_LENGTH, n_runs).astype(int)
        # Runs of a query that is hardly larger than the sample overlap.
        positions = np.unique(run_starts[:, None] + np.arange(_RUN_LENGTH))
        return self._adata(self._read_positions(positions), positions)

    def read_sample(self) -> AnnData:
        """Read a few cells from all over the query, to recognize its scale."""
        positions = sample_positions(self.n_obs)
        values = self._read_positions(positions)
        sample = self._adata(values, positions)
        if self._key == "X" and values.min() < 0:
            self._add_other_matrices(sample)
        return sample

    def _add_other_matrices(self, sample: AnnData) -> None:
        """Add layers and raw: the message on scaled values names those that can be read instead."""
        n_cells = sample.n_obs
        for layer in self.root.get("layers", ()):
            matrix = _as_matrix(self.root[f"layers/{layer}"])
            sample.layers[layer] = matrix[:n_cells]
        if "raw/X" in self.root:
            sample.raw = AnnData(
                _as_matrix(self.root["raw/X"])[:n_cells],
                obs=sample.obs,
                var=read_elem(self.root["raw/var"]),
            )

    def digest(self) -> str:
        """Hash names of genes, shape, sparsity and a sample: all values would take too long."""
        digest = hashlib.sha256("\0".join(map(str, self.var.index)).encode())
        digest.update(f"{self._key}{tuple(self._matrix.shape)}".encode())
        values = self._read_positions(sample_positions(self.n_obs))
        is_sparse = sp.issparse(values)
        dense = values.toarray() if is_sparse else values
        digest.update(np.asarray(dense).tobytes())
        if is_sparse:
            indptr = np.asarray(self.root[f"{self._key}/indptr"][:], np.int64)
            digest.update(indptr.tobytes())
        return digest.hexdigest()[:32]

    def _read(self, cells: slice) -> Any:
        try:
            return self._matrix[cells]
        # The type of the error depends on how the damaged chunk was compressed.
        except Exception as error:
            raise OSError(
                f"{self.path!r} is damaged: cells {cells.start} to {cells.stop - 1} cannot be read ({error}); "
                "get it anew."
            ) from error

    def _read_positions(self, positions: np.ndarray) -> Any:
        """Read cells by position, sorted and without repeats; neighbours are read together."""
        runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
        blocks = [self._read(slice(int(run[0]), int(run[-1]) + 1)) for run in runs]
        if sp.issparse(blocks[0]):
            return sp.vstack(blocks).tocsr()
        return np.concatenate(blocks)

    def _adata(self, matrix: Any, positions: np.ndarray) -> AnnData:
        obs = pd.DataFrame(index=pd.Index(positions).astype(str))
        element, _, layer = self._key.partition("/")
        if element == "raw":
            return AnnData(obs=obs, raw={"X": matrix, "var": self.var})
        if element == "layers":
            return AnnData(obs=obs, var=self.var, layers={layer: matrix})
        return AnnData(matrix, obs=obs, var=self.var)


def _as_matrix(element: Any) -> Any:
    """A matrix whose rows can be read: an array, or a sparse matrix of anndata."""
    return element if hasattr(element, "shape") else sparse_dataset(element)


def open_store(path: str) -> Any:
    """Open an ``.h5ad`` file or a Zarr store for reading.

    Raises
    ------
    FileNotFoundError
        If there is nothing at ``path``.
    ModuleNotFoundError
        If Zarr, or what it reads an address with, is not installed.
    ValueError
        If it is neither.
    """
    if "://" not in path and not Path(path).exists():
        raise FileNotFoundError(f"there is no file or folder {path!r} to annotate.")
    is_file = Path(path).is_file()
    zarr = None if is_file else _import_zarr(path)
    try:
        root = h5py.File(path, "r") if zarr is None else zarr.open_group(path, mode="r")
        # Before 0.8, anndata wrote tables and categories in several other ways.
        if {"obs", "var"} <= set(root) and "encoding-type" not in root.attrs:
            root = _in_present_layout(root)
        return root
    except (ImportError, MemoryError):
        raise
    # Zarr raises many types of errors for folders that are no Zarr stores.
    except Exception as error:
        description = ".h5ad file, or is damaged" if is_file else "Zarr store"
        raise ValueError(
            f"{path!r} is no {description} ({error}): pass an .h5ad file or a Zarr store."
        ) from error


def _in_present_layout(root: Any) -> h5py.File:
    """Read cells of an older layout with anndata, and write them to an HDF5 file in memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ad.OldFormatWarning)
        if isinstance(root, h5py.File):
            adata = ad.read_h5ad(root.filename)
            root.close()
        else:
            adata = ad.read_zarr(root)
    # HDF5 refuses a name that another file in memory has.
    file = h5py.File(uuid4().hex, "w", driver="core", backing_store=False)
    write_anndata(file, adata)
    return file


def _import_zarr(path: str | Path) -> Any:
    try:
        import zarr
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{str(path)!r} is taken for a Zarr store, which needs zarr: pip install 'tosica[atlas]'."
        ) from error
    return zarr


# --------------------------------------------------------------------------- writing


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
        # A folder neither replaces nor is replaced in one step.
        is_folder = path.is_dir() or (temporary.is_dir() and path.exists())
        if is_folder and not path.is_symlink():
            os.rename(path, folder / "replaced")
        os.replace(temporary, path)


@contextmanager
def open_for_writing(path: Path, *, new: bool = False) -> Iterator[Any]:
    """Open an ``.h5ad`` file or a Zarr store to change it; afterwards the store's metadata are consolidated."""
    # A query with nullable strings was written with this setting, too.
    nullable_strings = ad.settings.override(allow_write_nullable_strings=True)
    if path.suffix.lower() == ".h5ad":
        with nullable_strings, h5py.File(path, "w" if new else "a") as file:
            yield file
        return
    zarr = _import_zarr(path)
    with nullable_strings, warnings.catch_warnings():
        # Zarr warns at each call about names, strings and consolidation.
        warnings.simplefilter("ignore")
        if new:
            group = zarr.open_group(path, mode="w", zarr_format=3)
        else:
            group = zarr.open_group(path, mode="r+", use_consolidated=False)
        yield group
        zarr.consolidate_metadata(path)


def write_anndata(root: Any, adata: AnnData) -> None:
    """Write all of a query to an empty file or store, as ``write_h5ad`` does."""
    # Texts of which some are missing can be written in no other way.
    adata.strings_to_categoricals()
    write_elem(root, "/", adata)
    # A raw that is None is written, too, and is not read again as None with backed=True.
    if adata.raw is None and "raw" in root:
        del root["raw"]


def copy_store(store: Store, path: Path, *, matrices: bool) -> None:
    """Copy a query to a path that ends in ``.h5ad`` or ``.zarr``, where nothing is yet.

    A file or a folder that has this format already is copied byte by byte, with chunks and compression.

    Parameters
    ----------
    store
        The query.
    path
        Where to write.
    matrices
        Whether to copy ``X``, ``layers``, ``raw`` and ``obsp``, too.
    """
    omitted = () if matrices else _MATRICES
    is_hdf5 = isinstance(store.root, h5py.File)
    if path.suffix == ".zarr" and not is_hdf5 and os.path.isdir(store.path):
        root = os.path.abspath(store.path)

        def ignore(folder: str, _: list[str]) -> tuple[str, ...]:
            return omitted if os.path.abspath(folder) == root else ()

        shutil.copytree(store.path, path, ignore=ignore)
        return
    with open_for_writing(path, new=True) as target:
        target.attrs.update(dict(store.root.attrs))
        for name in store.root:
            if name in omitted:
                continue
            if path.suffix == ".h5ad" and is_hdf5:
                store.root.copy(store.root[name], target, name=name)
            else:
                _copy(store.root[name], target, name)


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
