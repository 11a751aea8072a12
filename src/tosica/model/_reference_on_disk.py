"""Balanced minibatches of a reference that is larger than memory.

Cells on disk are quick to read only one after the other. So blocks of neighboring cells are read
in random order, and a buffer keeps some cells of each label in memory, from which minibatches are
drawn. Labels are drawn equally often, and those with few cells are in the buffer as a whole, so
that minibatches are as balanced as those of a reference in memory.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import scipy.sparse as sp
import torch

from tosica.data import BLOCK
from tosica.linear import subsample_by_label
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
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

    def __init__(self, rows: CellMatrix, rank: int = 0, n_processes: int = 1, *, size: int = BLOCK) -> None:
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


class ShuffleBuffer:
    """Dense minibatches with each label equally often, drawn from a buffer and read in advance.

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
    n_blocks
        Blocks that an epoch reads, by default all.
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
        n_blocks: int | None = None,
    ) -> None:
        self._rows, self._blocks = rows, blocks
        self._cells, self._codes = cells, codes
        self._batch_size, self._n_batches = batch_size, n_batches
        self._seed, self._epoch = seed, 0
        self._n_blocks = blocks.n_blocks if n_blocks is None else n_blocks
        self.sampler = self
        self._labels, n_cells = np.unique(codes, return_counts=True)
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
        pools = [_Pool(int((codes == label).sum())) for label in range(len(self._labels))]
        for start in range(0, len(self._first), BLOCK):
            positions = self._cells[self._first[start : start + BLOCK]]
            self._add(pools, positions, self._rows.take(positions), rng)
        n_labels = len(pools)
        share = -(-self._n_batches * self._batch_size // n_labels)
        order = rng.permutation(np.repeat(np.arange(n_labels), share))
        blocks, n_read = self._blocks(rng), 0
        for i in range(self._n_batches):
            # Blocks are read in step with the minibatches.
            while n_read < (i + 1) * self._n_blocks // self._n_batches:
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
            yield as_minibatch(x, self._labels[labels])

    def _add(self, pools: list[_Pool], positions: np.ndarray, block: Block, rng: np.random.Generator) -> None:
        block = sp.csr_matrix(block)
        codes = self._code_of[positions]
        for code, start, stop in zip(codes, block.indptr[:-1], block.indptr[1:], strict=True):
            # Copies, so that the block need not stay in memory for one of its cells.
            cell = block.indices[start:stop].copy(), block.data[start:stop].astype(np.float32)
            pools[code].add(cell, rng)


def read_ahead(items: Iterable[Item], read: Callable[[Item], Result], n_ahead: int) -> Iterator[Result]:
    """Read items in order, a few of them in advance, on a thread."""
    ahead: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="tosica-minibatches") as reader:
        for item in items:
            ahead.append(reader.submit(read, item))
            if len(ahead) > n_ahead:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def as_minibatch(x: np.ndarray, codes: np.ndarray) -> dict[str, torch.Tensor]:
    """Make a minibatch of expression, ``(n_cells, n_genes)``, and codes of labels."""
    return {REGISTRY_KEYS.X_KEY: torch.from_numpy(x), REGISTRY_KEYS.LABELS_KEY: torch.from_numpy(codes)[:, None]}


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
