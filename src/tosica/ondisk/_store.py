"""An ``.h5ad`` file or a Zarr store that stays on disk: read a range of cells, copy, replace."""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData
from anndata.io import read_elem, sparse_dataset, write_elem

from tosica._checks import only_known
from tosica._files import as_os_error, sync, temporary_folder
from tosica.data import sample_positions

if TYPE_CHECKING:
    from collections.abc import Iterator

# Elements that hold a value for each cell and gene, or for each two cells.
# Neighboring cells of a sample are read together.
_CELLS_OF_RUN = 50
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
        layers = list(self.root.get("layers", []))
        if layer is None and not use_raw and default_layer in layers:
            layer = default_layer
        self._key = "raw/X" if use_raw else "X" if layer is None else f"layers/{layer}"
        if self._key not in self.root:
            what = (
                f"layer {layer!r}{only_known(layer, layers)}"
                if layer
                else f"{self._key}."
            )
            raise KeyError(f"{path!r} has no {what}")
        self._matrix = _as_matrix(self.root[self._key])
        if getattr(self._matrix, "format", "csr") != "csr":
            raise StoredByGenesError(
                f"{self._key} of {path!r} is stored by genes (CSC): write it by cells, as adata.X.tocsr()."
            )
        self.var: pd.DataFrame = read_elem(self.root["raw/var" if use_raw else "var"])
        self.n_obs: int = self._matrix.shape[0]
        if not self.n_obs:
            raise ValueError(f"{path!r} has no cells.")

    def read(self, start: int, stop: int) -> AnnData:
        """Read cells ``start`` to ``stop`` (exclusive) into memory; their names are positions."""
        return self._adata(self._read(start, stop), np.arange(start, stop))

    def read_spread(self, n_cells: int) -> AnnData:
        """Read about ``n_cells`` cells in runs of neighbors from all over the query; all, if it has no more."""
        if self.n_obs <= n_cells:
            return self.read(0, self.n_obs)
        n_runs = -(-n_cells // _CELLS_OF_RUN)
        starts = np.unique(
            np.linspace(0, self.n_obs - _CELLS_OF_RUN, n_runs).astype(int)
        )
        parts = [self._read(start, start + _CELLS_OF_RUN) for start in starts.tolist()]
        positions = (starts[:, None] + np.arange(_CELLS_OF_RUN)).ravel()
        # Runs of a query that is hardly larger than the sample overlap.
        kept = np.unique(positions, return_index=True)[1]
        stacked = (
            sp.vstack(parts).tocsr() if sp.issparse(parts[0]) else np.concatenate(parts)
        )
        return self._adata(stacked[kept], positions[kept])

    def read_sample(self) -> AnnData:
        """Read a few cells from all over the query, to recognize its scale."""
        positions, values = self._read_sample()
        sample = self._adata(values, positions)
        if self._key == "X" and values.min() < 0:
            # The message on scaled values names the matrices that can be read instead.
            for layer in self.root.get("layers", ()):
                sample.layers[layer] = _as_matrix(self.root[f"layers/{layer}"])[
                    : len(positions)
                ]
            if "raw/X" in self.root:
                raw = _as_matrix(self.root["raw/X"])[: len(positions)]
                sample.raw = AnnData(
                    raw, obs=sample.obs, var=read_elem(self.root["raw/var"])
                )
        return sample

    def _read_sample(self) -> tuple[np.ndarray, Any]:
        positions = sample_positions(self.n_obs)
        runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
        parts = [self._read(int(run[0]), int(run[-1]) + 1) for run in runs]
        stack = sp.vstack if sp.issparse(parts[0]) else np.concatenate
        return positions, stack(parts)

    def digest(self) -> str:
        """Hash names of genes, shape, sparsity and a sample: all values would take too long."""
        digest = hashlib.sha256("\0".join(map(str, self.var.index)).encode())
        digest.update(f"{self._key}{tuple(self._matrix.shape)}".encode())
        _, values = self._read_sample()
        digest.update(
            np.asarray(values.toarray() if sp.issparse(values) else values).tobytes()
        )
        if sp.issparse(values):
            digest.update(
                np.asarray(self.root[f"{self._key}/indptr"][:], np.int64).tobytes()
            )
        return digest.hexdigest()[:32]

    def _read(self, start: int, stop: int) -> Any:
        try:
            return self._matrix[start:stop]
        # What a damaged chunk raises depends on how it was compressed.
        except Exception as error:
            raise OSError(
                f"{self.path!r} is damaged: cells {start} to {stop - 1} cannot be read ({error}); get it anew."
            ) from error

    def _adata(self, matrix: Any, positions: np.ndarray) -> AnnData:
        obs = pd.DataFrame(index=pd.Index(positions).astype(str))
        kind, _, layer = self._key.partition("/")
        if kind == "raw":
            return AnnData(obs=obs, raw={"X": matrix, "var": self.var})
        if kind == "layers":
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
    what = ".h5ad file, or is damaged" if is_file else "Zarr store"
    zarr = None if is_file else _import_zarr(path)
    try:
        return h5py.File(path, "r") if zarr is None else zarr.open_group(path, mode="r")
    except ImportError:
        raise
    # Zarr has many errors for what is no store of its own.
    except Exception as error:
        raise ValueError(
            f"{path!r} is no {what} ({error}): pass an .h5ad file or a Zarr store."
        ) from error


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
        if (
            path.is_dir() or (temporary.is_dir() and path.exists())
        ) and not path.is_symlink():
            # A folder cannot be replaced, and replaces nothing, in one step.
            os.rename(path, folder / "replaced")
        os.replace(temporary, path)


@contextmanager
def open_for_writing(path: Path, *, new: bool = False) -> Iterator[Any]:
    """Open an ``.h5ad`` file or a Zarr store to change it; afterwards the store's metadata are consolidated."""
    if path.suffix.lower() == ".h5ad":
        with h5py.File(path, "w" if new else "a") as file:
            yield file
        return
    zarr = _import_zarr(path)
    with warnings.catch_warnings():
        # Zarr says at each call that it is not certain of names, strings and consolidation.
        warnings.simplefilter("ignore")
        yield zarr.open_group(
            path,
            **(
                {"mode": "w", "zarr_format": 3}
                if new
                else {"mode": "r+", "use_consolidated": False}
            ),
        )
        zarr.consolidate_metadata(path)


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
    left_out = () if matrices else _MATRICES
    in_hdf5 = isinstance(store.root, h5py.File)
    if path.suffix == ".zarr" and not in_hdf5 and os.path.isdir(store.path):
        top = os.path.abspath(store.path)
        shutil.copytree(
            store.path,
            path,
            ignore=lambda folder, _: left_out if os.path.abspath(folder) == top else (),
        )
        return
    with open_for_writing(path, new=True) as target:
        target.attrs.update(dict(store.root.attrs))
        for name in [name for name in store.root if name not in left_out]:
            if path.suffix == ".h5ad" and in_hdf5:
                store.root.copy(store.root[name], target, name=name)
            else:
                _copy(store.root[name], target, name)


def _copy(element: Any, target: Any, name: str) -> None:
    """Copy one element to another format; of a matrix, some cells are in memory at a time."""
    kind = element.attrs.get("encoding-type", "")
    if name in ("layers", "raw", "obsm", "obsp") and not hasattr(element, "shape"):
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
        written = create_array(target, name, element[:_BLOCK], element.shape[0])
        for start in range(_BLOCK, element.shape[0], _BLOCK):
            written[start : start + _BLOCK] = element[start : start + _BLOCK]
    else:
        write_elem(target, name, read_elem(element))


def create_array(group: Any, name: str, first: np.ndarray, n_obs: int) -> Any:
    """Make an array of ``n_obs`` rows as anndata writes it, with its first rows; the others are to be filled."""
    # Only a chunked dataset of HDF5 can grow.
    options: dict[str, Any] = {"chunks": (max(len(first), 1), max(first.shape[1], 1))}
    if isinstance(group, h5py.Group):
        options["maxshape"] = (None, first.shape[1])
    write_elem(group, name, first, dataset_kwargs=options)
    array = group[name]
    array.resize((n_obs, first.shape[1]))
    return array
