"""Read a matrix of an AnnData in blocks of cells, in memory or on disk, in any format.

Annotations of an AnnData that was opened lazily are read into memory here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData

from tosica._files import explain_hdf5
from tosica._text import first_line, list_names, listed, only_known, parameter
from tosica._validate import ANNDATA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tosica._types import AnnOrMuData
    from tosica.data._normalize import Block, Normalization

# Cells that are read at a time: enough for reads from disk to be fast, few enough for memory.
BLOCK = 4096
# Cells differ within the first few as a rule, so that few are read.
_FEW_CELLS = 64
# Of a matrix in compressed chunks, cells that are at most so far apart are read with those between
# them, which takes less time than another chunk.
_GAP = 1024


@dataclass(frozen=True)
class ExpressionSource:
    """Cells, and which of their matrices to read; made once, where a public call begins.

    Parameters
    ----------
    data
        Cells. ``source[cells]`` is the same of some of them.
    layer
        Layer to read instead of ``X``; for a MuData a dict of modality and layer.
    use_raw
        Read ``raw`` of an AnnData instead of ``X``.

    Raises
    ------
    TypeError
        If ``layer`` is not of the kind that the data need.
    ValueError
        If both ``layer`` and ``use_raw`` are given, or ``use_raw`` for a MuData.
    """

    data: AnnOrMuData
    layer: str | Mapping[str, str] | None = None
    use_raw: bool = False

    def __post_init__(self) -> None:
        is_adata = isinstance(self.data, AnnData)
        if self.layer is not None and is_adata == isinstance(self.layer, Mapping):
            raise TypeError(
                "layer must be the name of one layer for an AnnData, and a dict of modality and layer, such as "
                f"{{'rna': 'counts'}}, for a MuData, not {self.layer!r}."
            )
        if self.use_raw and not is_adata:
            raise ValueError(
                "use_raw=True is for an AnnData: set mdata.mod['rna'] = mdata['rna'].raw.to_adata()."
            )

    def __getitem__(self, cells: Any) -> ExpressionSource:
        if isinstance(self.data, AnnData):
            return replace(self, data=_take_cells(self.data, cells))
        return replace(self, data=self.data[cells])

    def matrix(self) -> CellMatrix:
        """The matrix of an AnnData."""
        return CellMatrix(self.data, layer=self.layer, use_raw=self.use_raw)  # type: ignore[arg-type]


def check_layer(layer: str | None, *, use_raw: bool) -> None:
    """Refuse a layer beside ``raw``."""
    if layer is not None and use_raw:
        raise ValueError(
            f"Give either layer or {parameter('use_raw', True)}, not both."
        )


class CellMatrix:
    """The rows of one matrix of an AnnData: ``X``, a layer, or ``raw``.

    In memory or on disk, CSR, CSC or dense, a dask array, a view or not: blocks come as CSR
    matrices or dense arrays, sparse ones with sorted indices and each entry once. A matrix on disk
    or a dask array is read or computed block by block, unless it is CSC, which is read whole.

    Parameters
    ----------
    adata
        Where to read.
    layer
        Read ``adata.layers[layer]`` instead of ``adata.X``.
    use_raw
        Read ``adata.raw`` instead of ``adata.X``.
    name
        What the AnnData is called in messages, such as ``mdata['rna']``.
    normalization
        Normalization of each block. By default, values are as they are stored.

    Attributes
    ----------
    adata, name
        As given.
    where
        What the matrix is called in messages, such as ``adata.raw.X``.
    names
        Names of the genes, ``(n_vars,)``.
    var
        Table of the genes, in memory.

    Raises
    ------
    TypeError
        If ``adata`` is not an AnnData, or its matrix does not hold numbers.
    KeyError
        If there is no such layer.
    ValueError
        If there are no cells, no genes, no matrix or no ``raw``, if both ``layer`` and ``use_raw``
        are given, or if indices of a sparse matrix are outside of it (on disk: of the block read).
    """

    def __init__(
        self,
        adata: AnnData,
        *,
        layer: str | None = None,
        use_raw: bool = False,
        name: str = "adata",
        normalization: Normalization | None = None,
    ) -> None:
        ANNDATA.check(name, adata)
        check_layer(layer, use_raw=use_raw)
        self.adata = adata
        self.name = name
        self.n_obs: int = adata.n_obs
        # The matrix of a view on disk would be read whole, so that of its parent is opened.
        parent = adata._adata_ref if adata.is_view else adata
        variables = adata
        if use_raw:
            if adata.raw is None:
                raise ValueError(
                    f"{parameter('use_raw', True)} was given, but {name}.raw is None."
                )
            self.where = f"{name}.raw.X"
            matrix = parent.raw.X if adata.isbacked else adata.raw.X
            variables = adata.raw
        elif layer is not None:
            self.where = f"{name}.layers[{layer!r}]"
            matrix = _layer(parent, layer, name)
        else:
            self.where = f"{name}.X"
            matrix = _x(parent, name)
        is_in_memory = isinstance(matrix, np.ndarray) or sp.issparse(matrix)
        is_computed = is_in_memory or hasattr(matrix, "__dask_graph__")
        is_view_on_disk = adata.is_view and not is_computed
        if adata.is_view and not is_view_on_disk and not use_raw:
            matrix = adata.X if layer is None else adata.layers[layer]
        self.names: pd.Index = variables.var_names
        self._var = variables.var
        if not self.n_obs:
            raise ValueError(f"{self.where} has no cells.")
        if not len(self.names):
            raise ValueError(f"{self.where} has no genes.")
        if matrix.dtype.kind not in "biufc":
            raise TypeError(
                f"{self.where} holds {matrix.dtype} values instead of numbers."
            )
        # Rows and columns of the matrix to read; None for all of them in their order.
        self._cells: np.ndarray | None = None
        self._genes: np.ndarray | None = None
        if is_view_on_disk:
            self._cells = _positions(adata._oidx, parent.n_obs)
            if not use_raw:
                self._genes = _positions(adata._vidx, parent.n_vars)
        self._matrix = _readable_by_rows(matrix, self.where)
        self._normalization = normalization
        # Whether rows can be read one by one in no time.
        self.in_memory = isinstance(self._matrix, np.ndarray) or sp.issparse(
            self._matrix
        )
        stored = getattr(self._matrix, "group", self._matrix)
        self._in_hdf5 = isinstance(stored, h5py.Group | h5py.Dataset)

    def take(self, cells: np.ndarray | slice) -> Block:
        """Read a range of cells, or cells by position, in any order and with repeats; normalize them."""
        return self.normalize(self.read(cells))

    def normalize(self, block: Block) -> Block:
        """Normalize cells that were read, to float32; as they are without a normalization."""
        if self._normalization is None:
            return block
        return self._normalization.normalize_block(block.astype(np.float32))

    def read(self, cells: np.ndarray | slice) -> Block:
        """Read a range of cells, or cells by position, as they are stored."""
        if self._cells is not None:
            cells = self._cells[cells]
        if self.in_memory:
            block = self._matrix[cells]
            if not sp.issparse(block):
                block = _usable(block, self.where)
        elif isinstance(cells, slice):
            block = self._read(cells)
        else:
            block = self._read_scattered(cells)
        if self._genes is not None:
            block = block[:, self._genes]
        if sp.issparse(block) and not block.has_canonical_format:
            # Sum duplicate entries. Selected rows are a copy, so the user's matrix is not changed.
            block.sum_duplicates()
        return block

    @property
    def var(self) -> pd.DataFrame:
        """Table of the genes, in memory."""
        return load_table(self._var)

    def with_columns(self, columns: np.ndarray) -> CellMatrix:
        """The same cells with some of the columns, by position."""
        matrix = copy(self)
        matrix.names = self.names[columns]
        matrix._genes = columns if self._genes is None else self._genes[columns]
        return matrix

    def load(self) -> CellMatrix:
        """The same rows in memory, as a sparse matrix."""
        blocks = [sp.csr_matrix(block) for _, block in self.blocks(BLOCK)]
        loaded = copy(self)
        loaded._matrix = sp.vstack(blocks, "csr")
        loaded._cells = None
        loaded._genes = None
        loaded._normalization = None
        loaded.in_memory = True
        loaded._in_hdf5 = False
        return loaded

    def _read_scattered(self, cells: np.ndarray) -> Block:
        """Read cells in the order of the file, each once."""
        positions, back = np.unique(cells, return_inverse=True)
        if self._in_hdf5:
            return self._read(positions)[back]
        if not len(positions):
            return self._read(slice(0, 0))
        # A group has neighbors within _GAP, and spans at most BLOCK cells.
        groups = []
        for group in np.split(positions, np.flatnonzero(np.diff(positions) > _GAP) + 1):
            n_blocks = (group - group[0]) // BLOCK
            groups += np.split(group, np.flatnonzero(np.diff(n_blocks)) + 1)
        blocks = []
        for group in groups:
            rows = self._read(slice(int(group[0]), int(group[-1]) + 1))
            blocks.append(rows[group - group[0]])
        if sp.issparse(blocks[0]):
            return sp.vstack(blocks, "csr")[back]
        return np.concatenate(blocks)[back]

    def _read(self, rows: slice | np.ndarray) -> Block:
        """Read rows that are not in memory: a dense array, or a CSR matrix."""
        try:
            block = _computed(self._matrix[rows])
        # The type of the error depends on the file's format and compression.
        except Exception as error:
            raise OSError(
                f"{self.where} cannot be read from its file ({first_line(error)}), damaged or closed: "
                f"{explain_hdf5(error)}."
            ) from error
        block = _usable(block, self.where)
        return block.tocsr() if sp.issparse(block) else block

    def blocks(self, size: int) -> Iterator[tuple[int, Block]]:
        """Read all cells in order: the position of a block's first cell, and the block."""
        for offset in range(0, self.n_obs, size):
            yield offset, self.take(slice(offset, min(offset + size, self.n_obs)))


def _layer(adata: AnnData, layer: str, name: str) -> Any:
    if layer in adata.layers:
        return adata.layers[layer]
    layers = [key for key in adata.layers if key is not None]
    raise KeyError(f"{name} has no layer {layer!r}{only_known(layer, layers)}")


def _x(adata: AnnData, name: str) -> Any:
    try:
        matrix = adata.X
    except KeyError:  # of a file without X
        matrix = None
    if matrix is None:
        matrices = [parameter("layer", key) for key in adata.layers if key is not None]
        if adata.raw is not None:
            matrices.append(parameter("use_raw", True))
        if not matrices:
            raise ValueError(
                f"{name} has no expression: X is empty (None), and there is neither a "
                "layer nor raw."
            )
        choice = listed(matrices, last=" or ")
        raise ValueError(
            f"{name}.X is empty (None); name the matrix to use with {choice}."
        )
    return matrix


def _readable_by_rows(matrix: Any, where: str) -> Any:
    """Convert a CSC matrix, whose rows are scattered, once instead of at every block."""
    is_csc = getattr(getattr(matrix, "_meta", matrix), "format", None) == "csc"
    if is_csc:
        matrix = _computed(matrix)
        if not sp.issparse(matrix):
            matrix = matrix.to_memory()
    if sp.issparse(matrix):
        matrix = _usable(matrix, where)
    return matrix.tocsr() if is_csc else matrix


def _computed(rows: Any) -> Any:
    """Rows of a dask array as what its chunks are; others as they are."""
    return rows.compute() if hasattr(rows, "__dask_graph__") else rows


def _take_cells(adata: AnnData, cells: np.ndarray | slice) -> AnnData:
    """Take cells of an AnnData, also where anndata cannot.

    It takes no cells of views of backed cells and of sparse ones with genes in steps, nor beside a
    column of ``obs`` that occurs twice.
    """
    parent = adata
    genes: np.ndarray | slice = slice(None)
    if adata.is_view:
        parent = adata._adata_ref
        cells = _positions(adata._oidx, parent.n_obs)[cells]
        positions = _positions(adata._vidx, parent.n_vars)
        if not np.array_equal(positions, np.arange(parent.n_vars)):
            genes = positions
    if parent.obs.columns.is_unique:
        return parent[cells, genes]
    raw = parent.raw
    bare = AnnData(
        parent.X,
        obs=pd.DataFrame(index=parent.obs_names),
        var=parent.var,
        layers=dict(parent.layers),
        raw=None if raw is None else {"X": raw.X, "var": raw.var},
    )
    return bare[cells, genes]


def _positions(index: Any, size: int) -> np.ndarray:
    """Positions of a view's cells or genes in its parent."""
    return np.arange(size)[index if isinstance(index, slice) else np.asarray(index)]


def _usable(matrix: Any, where: str) -> Any:
    """Cast values, and check that all indices of a sparse matrix are inside its shape.

    Neither scipy nor torch take half precision, or bytes in the order of another machine. Neither
    anndata nor scipy look at the indices of a file. Of other ones scipy drops the values, or it reads
    and writes memory that is not the matrix's.

    Raises
    ------
    ValueError
        If one is not.
    """
    if sp.issparse(matrix):
        try:
            matrix.check_format(full_check=True)
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"{where} is damaged: its indices do not fit its shape {matrix.shape} ({error}); make it again."
            ) from error
    else:
        matrix = np.asarray(matrix)
    dtype: np.dtype = matrix.dtype.newbyteorder("=")
    if dtype.kind == "f" and dtype not in (np.float32, np.float64):
        dtype = np.dtype(np.float32 if dtype.itemsize < 4 else np.float64)
    return matrix.astype(dtype, copy=False)


def check_varies(matrix: CellMatrix) -> None:
    """Refuse a matrix whose cells are all equal: a model cannot learn from it.

    Raises
    ------
    ValueError
        If there are several cells, and all are equal.
    """
    if matrix.n_obs < 2:
        return
    reference: np.ndarray | None = None
    for _, block in matrix.blocks(_FEW_CELLS):
        dense = block.toarray() if sp.issparse(block) else block
        if reference is None:
            reference = dense[:1]
        if not (dense == reference).all():
            return
    raise ValueError(
        f"{matrix.where} is the same in every cell, so nothing can be learnt from it: go back to data that vary, or, "
        "if it is a modality, leave it out of modalities."
    )


def check_unique(names: pd.Index, description: str, remedy: str) -> None:
    """Refuse names that occur twice.

    Parameters
    ----------
    names
        The names.
    description
        What they are, such as ``"obs_names"``.
    remedy
        Call that makes them unique.

    Raises
    ------
    ValueError
        If names occur twice; the message has two of them and the remedy.
    """
    if not names.is_unique:
        duplicates = [str(name) for name in names[names.duplicated()].unique()]
        raise ValueError(
            f"{description} are not unique ({list_names(duplicates, 2)}): call {remedy} first."
        )


def load_annotations(adata: AnnData) -> None:
    """Read ``obs``, ``var``, ``varm`` and ``uns`` of a lazily opened AnnData into memory.

    Matrices of cells stay where they are. Of any other AnnData nothing changes.

    Parameters
    ----------
    adata
        The result of :func:`anndata.experimental.read_lazy`, or any AnnData. It is changed in
        place; a view becomes an actual AnnData.
    """
    for name in ("obs", "var"):
        if not isinstance(getattr(adata, name), pd.DataFrame):
            setattr(adata, name, load_table(getattr(adata, name)))
    for name in ("varm", "uns"):
        mapping = getattr(adata, name)
        for key, value in list(mapping.items()):
            loaded = _loaded(value)
            if loaded is not value:
                mapping[key] = loaded


def load_table(table: Any) -> pd.DataFrame:
    """``obs`` or ``var`` in memory: the same object, if it is there already."""
    return table if isinstance(table, pd.DataFrame) else table.to_memory()


def _loaded(value: Any) -> Any:
    """A value without what is still to be read; the same object if nothing is."""
    if isinstance(value, dict):
        loaded = {key: _loaded(inner) for key, inner in value.items()}
        return loaded if any(loaded[key] is not value[key] for key in value) else value
    # A lazy table, as anndata makes them of xarray's datasets.
    is_lazy = hasattr(value, "to_memory") and not isinstance(value, pd.DataFrame)
    return value.to_memory() if is_lazy else _computed(value)
