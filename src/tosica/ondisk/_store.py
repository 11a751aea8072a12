"""A query on disk, an ``.h5ad`` file or a Zarr store, read a range of cells at a time."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData
from anndata.io import read_elem, sparse_dataset

from tosica._validation import only_known
from tosica.data import sample_positions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tosica.model import TOSICA

_H5AD, _ZARR = "h5ad", "zarr"
# Numbers of an index that are hashed at a time.
_HASHED = 2**20


class StoredByGenesError(ValueError):
    """A matrix is stored by genes (CSC), so that no range of cells can be read."""


class Store:
    """The matrices and genes of a query that stays on disk; it is opened for reading only.

    Parameters
    ----------
    path
        An ``.h5ad`` file, a folder with a Zarr store, or the address of one, such as ``s3://…``.
    layer
        Read this layer instead of ``X``.
    use_raw
        Read ``raw`` instead of ``X``.
    layers
        Layers to read beside ``X``, if the query has them.

    Attributes
    ----------
    format
        ``"h5ad"`` or ``"zarr"``.
    root
        The open file or group.
    n_obs
        Number of cells.

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
        self,
        path: str | os.PathLike[str],
        *,
        layer: str | None = None,
        use_raw: bool = False,
        layers: Iterable[str] = (),
    ) -> None:
        self.path = os.fspath(path)
        self.format, self.root = _open(self.path)
        if "var" not in self.root or "obs" not in self.root:
            raise ValueError(f"{self.path!r} holds no AnnData: it has no obs or no var.")
        self._layer, self._use_raw = layer, use_raw
        keys = self._keys([] if layer is not None or use_raw else list(layers))
        self._matrices = {key: self._matrix(key) for key in keys}
        self.n_obs: int = next(iter(self._matrices.values())).shape[0]
        self.var: pd.DataFrame = read_elem(self.root["raw/var" if use_raw else "var"])
        if not self.n_obs:
            raise ValueError(f"{self.path!r} has no cells.")

    def read(self, start: int, stop: int) -> AnnData:
        """Read cells ``start`` to ``stop`` (exclusive) into memory; their names are positions.

        Raises
        ------
        OSError
            If they cannot be read.
        """
        return self._adata(self._read(start, stop), np.arange(start, stop))

    def read_sample(self) -> AnnData:
        """Read a few cells from all over the query, by which its scale is recognized.

        If ``X`` is read, they have ``raw`` and the layers as well: where ``X`` is scaled, the error
        says which of them is not.
        """
        positions, found = self._read_sample()
        adata = self._adata(found, positions)
        if "X" in found:
            for key in self._unread():
                # They are not needed, so that one that cannot be read is no error.
                with suppress(KeyError, OSError, ValueError):
                    values = _stack(self._read_runs(positions, {key: self._matrix(key)})[key])
                    if key == "raw/X":
                        adata.raw = AnnData(values, adata.obs, read_elem(self.root["raw/var"]))
                    else:
                        adata.layers[key.removeprefix("layers/")] = values
        return adata

    def _unread(self) -> list[str]:
        """Where other matrices are than those that are read."""
        known = [f"layers/{name}" for name in self.root.get("layers", [])]
        known += ["raw/X"] if "raw/X" in self.root else []
        return [key for key in known if key not in self._matrices]

    def digest(self) -> str:
        """Hash of the names of the genes, of the shape and sparsity, and of sampled values.

        Values are not hashed as a whole, which would take as long as annotating them.
        """
        digest = hashlib.sha256()
        digest.update("\0".join(map(str, self.var.index)).encode())
        _, sample = self._read_sample()
        for key, matrix in self._matrices.items():
            digest.update(f"{key}{tuple(matrix.shape)}".encode())
            values = sample[key]
            digest.update(np.asarray(values.toarray() if sp.issparse(values) else values).tobytes())
            if sp.issparse(values):
                indptr = self.root[f"{key}/indptr"]
                for start in range(0, indptr.shape[0], _HASHED):
                    numbers = np.asarray(indptr[start : start + _HASHED], dtype=np.int64)
                    digest.update(numbers.tobytes())
        return digest.hexdigest()[:32]

    def _keys(self, beside: list[str]) -> list[str]:
        """Where the matrices are that are read."""
        if self._layer is not None:
            return [f"layers/{self._layer}"]
        if self._use_raw:
            return ["raw/X"]
        found = [f"layers/{name}" for name in beside if f"layers/{name}" in self.root]
        return ["X", *found] if "X" in self.root or not found else found

    def _matrix(self, key: str) -> Any:
        if key not in self.root:
            if self._layer is None:
                raise KeyError(f"{self.path!r} has no {key.partition('/')[0]}.")
            known = self.root.get("layers", [])
            raise KeyError(
                f"{self.path!r} has no layer {self._layer!r}{only_known(self._layer, known)}"
            )
        element = self.root[key]
        if hasattr(element, "shape"):
            return element
        matrix = sparse_dataset(element)
        if matrix.format != "csr":
            raise StoredByGenesError(
                f"{key} of {self.path!r} is stored by genes (CSC), so that no range of cells can "
                "be read: write it as CSR, as by adata.X = adata.X.tocsr() before adata.write."
            )
        return matrix

    def _read_sample(self) -> tuple[np.ndarray, dict[str, Any]]:
        positions = sample_positions(self.n_obs)
        parts = self._read_runs(positions, self._matrices)
        return positions, {key: _stack(parts[key]) for key in parts}

    def _read_runs(
        self, positions: np.ndarray, matrices: dict[str, Any]
    ) -> dict[str, list[np.ndarray]]:
        runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
        parts = [self._read(int(run[0]), int(run[-1]) + 1, matrices) for run in runs]
        return {key: [part[key] for part in parts] for key in matrices}

    def _read(
        self, start: int, stop: int, matrices: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        matrices = self._matrices if matrices is None else matrices
        try:
            return {key: matrix[start:stop] for key, matrix in matrices.items()}
        # What a damaged chunk raises depends on how it was compressed.
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise OSError(
                f"{self.path!r} is damaged or was not written to the end: cells {start} to "
                f"{stop - 1} cannot be read ({reason}); write it again, or get it anew."
            ) from error

    def _adata(self, found: dict[str, Any], positions: np.ndarray) -> AnnData:
        obs = pd.DataFrame(index=pd.Index(positions).astype(str))
        if "raw/X" in found:
            # The matrix of raw is the only one that is read.
            return AnnData(obs=obs, raw={"X": found["raw/X"], "var": self.var})
        layers = {key.removeprefix("layers/"): found[key] for key in found if key != "X"}
        return AnnData(found.get("X"), obs=obs, var=self.var, layers=layers)


def open_query(path: str, model: TOSICA, *, layer: str | None, use_raw: bool) -> Store:
    """Open a query with the matrices that a model reads; the parameters are those of Store.

    By default a model reads the layer that its reference was set up with, if the query has it.
    """
    layers = [modality.layer for modality in model.modalities if modality.layer is not None]
    return Store(path, layer=layer, use_raw=use_raw, layers=layers)


def _stack(parts: list[Any]) -> Any:
    return sp.vstack(parts, "csr") if sp.issparse(parts[0]) else np.concatenate(parts)


def _open(path: str) -> tuple[str, Any]:
    if "://" not in path and not Path(path).exists():
        raise FileNotFoundError(f"there is no file or folder {path!r} to annotate.")
    if Path(path).is_file():
        try:
            return _H5AD, h5py.File(path, "r")
        except OSError as error:
            raise ValueError(
                f"{path!r} is no .h5ad file, or is damaged ({error}): pass an .h5ad file or a "
                "folder with a Zarr store."
            ) from error
    return _ZARR, open_zarr(path)


def open_zarr(path: str) -> Any:
    """Open a Zarr store for reading.

    Raises
    ------
    ModuleNotFoundError
        If Zarr, or what it reads an address with, is not installed.
    ValueError
        If there is no Zarr store.
    """
    try:
        import zarr
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{path!r} is taken for a Zarr store, but the package zarr is not installed: "
            "pip install 'tosica[atlas]'."
        ) from error
    try:
        return zarr.open_group(path, mode="r")
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{path!r} cannot be opened, because a package for such addresses is missing "
            f"({error}): install it, or copy the store to a disk."
        ) from error
    # Zarr has many errors for what is no store of its own.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"{path!r} is no Zarr store ({reason}): pass an .h5ad file or a folder with a Zarr "
            "store."
        ) from error
