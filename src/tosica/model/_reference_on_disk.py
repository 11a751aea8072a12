"""Minibatches of a reference that is larger than memory.

Cells on disk are quick to read only one after the other. So blocks of neighboring cells are read
in random order, and a buffer keeps some cells of each label in memory, from which minibatches are
drawn. Labels with few cells are in the buffer as a whole, so that labels are drawn as often as
from a reference in memory.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from anndata import AnnData
from anndata.io import read_elem, sparse_dataset

from tosica._checks import FilePath, validate_params
from tosica._text import first_line, list_names
from tosica.data import BLOCK
from tosica.linear import subsample_by_label
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    from tosica.data import Block, CellMatrix

Item = TypeVar("Item")
Result = TypeVar("Result")

# Cells in the buffer: some 100 MB. References with fewer cells are read as a whole.
BUFFER_SIZE = 65_536
# Minibatches that are read in advance, so that reading a block does not hold up the training.
_N_PREFETCHED = 8


class Blocks(Protocol):
    """Reads all cells of a reference once, in blocks in random order."""

    def __call__(self, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, Block]]:
        """Yield positions of cells, ``(n_cells,)``, and expression, ``(n_cells, n_genes)``."""

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""


class ContiguousBlocks:
    """Blocks of neighboring cells of a matrix, in random order.

    Parameters
    ----------
    rows
        Expression of the reference.
    rank, n_processes
        Number of this process, and of all that read: each reads other blocks.
    size
        Cells of a block.
    """

    def __init__(
        self,
        rows: CellMatrix,
        rank: int = 0,
        n_processes: int = 1,
        *,
        size: int = BLOCK,
    ) -> None:
        self._rows = rows
        self._size = size
        self._blocks = np.arange(-(-rows.n_obs // size))[rank::n_processes]
        self.n_blocks = len(self._blocks)

    def __call__(self, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, Block]]:
        """Yield positions of cells and their expression."""
        for block in rng.permutation(self._blocks):
            start = int(block) * self._size
            stop = min(start + self._size, self._rows.n_obs)
            yield np.arange(start, stop), self._rows.take(slice(start, stop))


def label_shares(n_cells: np.ndarray) -> np.ndarray:
    """Share of each label in the draws, by the square root of its number of cells.

    Drawn as often as others, the few cells of a rare label would be learnt by heart in a long
    training. Drawn as often as it occurs, it would hardly be learnt in a short one. The loss adds
    the logarithms of the shares to the logits (Menon et al., ICLR 2021), so that the network scores
    labels as if they were equally frequent.
    """
    roots = np.sqrt(n_cells)
    return roots / roots.sum()


class ShuffleBuffer:
    """Dense minibatches with rare labels more often, drawn from a buffer and read in advance.

    Lightning looks for ``sampler``, and tells it the epoch.

    Parameters
    ----------
    rows
        Expression of the reference.
    blocks
        Reads it block by block.
    cells
        Positions of the training cells, shape ``(n_cells,)``.
    codes
        Code of each one's label, shape ``(n_cells,)``.
    batch_size
        Cells in a minibatch.
    n_batches
        Minibatches of an epoch.
    seed
        The draws of an epoch depend on it and on the number of the epoch alone.
    """

    def __init__(
        self,
        rows: CellMatrix,
        blocks: Blocks,
        cells: np.ndarray,
        codes: np.ndarray,
        batch_size: int,
        n_batches: int,
        seed: tuple[int, ...],
    ) -> None:
        self._rows, self._blocks = rows, blocks
        self._cells, self._codes = cells, codes
        self._batch_size, self._n_batches = batch_size, n_batches
        self._seed, self._epoch = seed, 0
        self.sampler = self
        self._labels, n_cells = np.unique(codes, return_counts=True)
        self._shares = label_shares(n_cells)
        self._first = subsample_by_label(codes, BUFFER_SIZE)
        n_first = np.bincount(np.searchsorted(self._labels, codes[self._first]))
        # Labels all of whose cells are in the buffer from the start need no others.
        self._is_whole = n_first == n_cells
        self._code_of = np.full(rows.n_obs, -1)
        self._code_of[cells] = np.searchsorted(self._labels, codes)

    def __len__(self) -> int:
        return self._n_batches

    def set_epoch(self, epoch: int) -> None:
        """Draw the cells of this epoch next."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        batches = self._draw(np.random.default_rng([*self._seed, self._epoch]))
        self._epoch += 1
        return read_ahead(range(len(self)), lambda _: next(batches), _N_PREFETCHED)

    def _draw(self, rng: np.random.Generator) -> Iterator[dict[str, torch.Tensor]]:
        """Draw the minibatches of an epoch."""
        # The buffer starts with equally many cells of each label, or all that it has.
        codes = np.searchsorted(self._labels, self._codes[self._first])
        pools = [
            _Pool(int((codes == label).sum())) for label in range(len(self._labels))
        ]
        for start in range(0, len(self._first), BLOCK):
            positions = self._cells[self._first[start : start + BLOCK]]
            self._add(pools, positions, self._rows.take(positions), rng)
        shares = np.ceil(
            (self._n_batches * self._batch_size * self._shares).round(6)
        ).astype(int)
        order = rng.permutation(np.repeat(np.arange(len(pools)), shares))
        blocks, n_blocks, n_read = self._blocks(rng), self._blocks.n_blocks, 0
        for i in range(self._n_batches):
            # Blocks are read in step with the minibatches.
            while n_read < (i + 1) * n_blocks // self._n_batches:
                positions, block = next(blocks)
                codes = self._code_of[positions]
                wanted = (codes >= 0) & ~self._is_whole[codes]
                self._add(pools, positions[wanted], block[wanted], rng)
                n_read += 1
            labels = order[i * self._batch_size : (i + 1) * self._batch_size]
            x = np.zeros((len(labels), len(self._rows.names)), dtype=np.float32)
            for row, label in enumerate(labels):
                genes, values = pools[label].draw(rng)
                x[row, genes] = values
            tensors = (
                torch.from_numpy(x),
                torch.from_numpy(self._labels[labels])[:, None],
            )
            yield dict(
                zip(
                    (REGISTRY_KEYS.X_KEY, REGISTRY_KEYS.LABELS_KEY),
                    tensors,
                    strict=True,
                )
            )

    def _add(
        self,
        pools: list[_Pool],
        positions: np.ndarray,
        block: Block,
        rng: np.random.Generator,
    ) -> None:
        block = sp.csr_matrix(block)
        codes = self._code_of[positions]
        for code, start, stop in zip(
            codes, block.indptr[:-1], block.indptr[1:], strict=True
        ):
            # Copies, so that the block need not stay in memory for one of its cells.
            cell = (
                block.indices[start:stop].copy(),
                block.data[start:stop].astype(np.float32),
            )
            pools[code].add(cell, rng)


def read_ahead(
    items: Iterable[Item], read: Callable[[Item], Result], n_ahead: int
) -> Iterator[Result]:
    """Read items in order, a few of them in advance, on a thread."""
    ahead: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="tosica-minibatches") as reader:
        for item in items:
            ahead.append(reader.submit(read, item))
            if len(ahead) > n_ahead:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


Cell = tuple[np.ndarray, np.ndarray]


class _Pool:
    """Cells of one label: all are drawn before one is drawn again.

    Parameters
    ----------
    size
        Largest number of cells. A cell that comes then takes the place of another one, of one that
        was drawn already if there is any.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: list[Cell] = []
        self._drawn: list[Cell] = []

    def add(self, cell: Cell, rng: np.random.Generator) -> None:
        """Add a cell."""
        if len(self._waiting) + len(self._drawn) >= self._size:
            _pop(self._drawn or self._waiting, rng)
        self._waiting.append(cell)

    def draw(self, rng: np.random.Generator) -> Cell:
        """Draw a cell."""
        if not self._waiting:
            self._waiting, self._drawn = self._drawn, []
        cell = _pop(self._waiting, rng)
        self._drawn.append(cell)
        return cell


def _pop(cells: list[Cell], rng: np.random.Generator) -> Cell:
    """Remove a random cell in constant time."""
    i = int(rng.integers(len(cells)))
    cells[i], cells[-1] = cells[-1], cells[i]
    return cells.pop()


# ------------------------------------------------------------------------------- a collection of annbatch


class AnnbatchDataModule:
    """The cells of a collection of annbatch, for :meth:`tosica.TOSICA.train`.

    A collection is one or more Zarr stores whose cells are shuffled, which annbatch makes and
    reads. It is made once: ``annbatch.DatasetCollection("cells.zarr").add_adatas(["one.h5ad",
    "two.h5ad"])``. Training reads every cell once an epoch and draws rare labels more often, as
    from memory. It needs Python 3.12 or newer and ``tosica[atlas]``. Without them, a reference that
    :func:`anndata.experimental.read_lazy` opened is trained on from disk, too.

    Parameters
    ----------
    collection
        A ``annbatch.DatasetCollection``, or the path of one. It is only read.
    chunk_size
        Number of neighboring cells that are read together.
    preload_nchunks
        Number of such chunks that are in memory at a time.

    Attributes
    ----------
    adata
        The collection as an AnnData whose matrix stays on disk. It is the reference: build the mask
        for it, set it up, and make the model from it.

    Raises
    ------
    ModuleNotFoundError
        If annbatch is not installed, as on Python 3.11.
    TypeError
        If ``collection`` is neither a path nor a collection, or a number is not whole.
    ValueError
        If there is no collection, or its stores differ in genes or in columns of ``obs``.

    Examples
    --------
    >>> import tosica
    >>> data = tosica.model.AnnbatchDataModule("cells.zarr")  # doctest: +SKIP
    >>> tosica.pp.build_mask(data.adata)  # doctest: +SKIP
    >>> tosica.TOSICA.setup_anndata(
    ...     data.adata, labels_key="cell_type"
    ... )  # doctest: +SKIP
    >>> model = tosica.TOSICA(data.adata)  # doctest: +SKIP
    >>> model.train(datamodule=data)  # doctest: +SKIP
    """

    @validate_params()
    def __init__(
        self,
        collection: Any | str | os.PathLike[str],
        *,
        chunk_size: int = 256,
        preload_nchunks: int = 64,
    ) -> None:
        self._annbatch = _import_annbatch()
        self._chunk_size, self._preload_nchunks = chunk_size, preload_nchunks
        self._groups = self._open(collection)
        self.adata: AnnData = _join(self._groups)

    def _open(self, collection: Any) -> list[Any]:
        """The stores of a collection, which is not changed by opening it."""
        given = collection
        if not isinstance(collection, self._annbatch.DatasetCollection):
            FilePath().check("collection", collection)
            try:
                with warnings.catch_warnings():
                    # annbatch recommends a name that ends in .zarr.
                    warnings.simplefilter("ignore")
                    collection = self._annbatch.DatasetCollection(
                        str(collection), mode="r"
                    )
            # Zarr has many errors for what is no store of its own.
            except Exception as error:
                raise _no_collection(given) from error
        if collection.is_empty:
            raise _no_collection(given)
        return list(collection)

    @property
    def n_blocks(self) -> int:
        """Number of blocks of an epoch."""
        return len(self._loader(np.random.default_rng(0)))

    def __call__(self, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, Block]]:
        """Yield positions of cells in ``adata`` and their expression, all cells once."""
        try:
            for batch in self._loader(rng):
                yield batch["index"], batch["X"]
        except GeneratorExit:
            raise
        # What a damaged chunk raises depends on how it was compressed.
        except Exception as error:
            raise OSError(
                f"the collection cannot be read ({first_line(error)}): make it anew."
            ) from error

    def _loader(self, rng: np.random.Generator) -> Any:
        loader = self._annbatch.Loader(
            chunk_size=self._chunk_size,
            preload_nchunks=self._preload_nchunks,
            batch_size=min(BLOCK, self._chunk_size * self._preload_nchunks),
            shuffle=True,
            return_index=True,
            preload_to_gpu=False,
            rng=rng,
        )
        matrices = [group["X"] for group in self._groups]
        loader.add_datasets(
            [x if hasattr(x, "shape") else sparse_dataset(x) for x in matrices]
        )
        return loader


def _import_annbatch() -> Any:
    try:
        import annbatch
    except ImportError as error:
        advice = "pip install 'tosica[atlas]'"
        if sys.version_info < (3, 12):
            advice = (
                f"it needs Python 3.12 or newer, and this is {sys.version_info.major}.{sys.version_info.minor}; "
                "without it, open the reference with anndata.experimental.read_lazy"
            )
        raise ModuleNotFoundError(f"annbatch is not installed: {advice}.") from error
    return annbatch


def _no_collection(given: Any) -> ValueError:
    return ValueError(
        f"{str(given)!r} is no collection of annbatch, or an empty one: make one with "
        "annbatch.DatasetCollection(path).add_adatas([...])."
    )


def _join(groups: list[Any]) -> AnnData:
    """One AnnData of all stores; matrices stay on disk."""
    import dask.array as da
    from anndata.experimental import read_elem_lazy

    tables = [read_elem(group["obs"]) for group in groups]
    genes = [read_elem(group["var"]) for group in groups]
    for i, (table, var) in enumerate(zip(tables, genes, strict=True)):
        others = [
            *var.index.symmetric_difference(genes[0].index),
            *(set(tables[0]) ^ set(table)),
        ]
        if others or not var.index.equals(genes[0].index):
            what = list_names([str(name) for name in others], 3) or "their order"
            raise ValueError(
                f"dataset_{i} and dataset_0 of the collection do not have the same genes and columns of obs ({what}): "
                "make the collection anew, of files that have."
            )
    x = da.concatenate([read_elem_lazy(group["X"]) for group in groups])
    columns = {
        name: _concatenate([table[name] for table in tables]) for name in tables[0]
    }
    obs = pd.DataFrame(columns, index=pd.concat([table[[]] for table in tables]).index)
    return AnnData(x, obs=obs, var=genes[0])


def _concatenate(columns: list[pd.Series]) -> Any:
    """One column of several; categories may differ between them."""
    if all(isinstance(column.dtype, pd.CategoricalDtype) for column in columns):
        return pd.api.types.union_categoricals(columns, ignore_order=True)
    return pd.concat(columns).to_numpy()
