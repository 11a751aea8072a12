"""Minibatches of a reference that is larger than memory.

Cells on disk are quick to read only one after the other. So blocks of neighboring cells are read
in random order, and a buffer keeps some cells of each label in memory, from which minibatches are
drawn. Labels with few cells are in the buffer as a whole, so that labels are drawn as often as
from a reference in memory.
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
            offset = int(block) * self._size
            end = min(offset + self._size, self._rows.n_obs)
            yield np.arange(offset, end), self._rows.read(slice(offset, end))


def label_shares(n_cells: np.ndarray) -> np.ndarray:
    """Compute the share of each label in the draws, by the square root of its number of cells.

    Drawn as often as others, the few cells of a rare label would be learnt by heart in a long
    training. Drawn as often as it occurs, it would hardly be learnt in a short one. The loss adds
    the logarithms of the shares to the logits (Menon et al., ICLR 2021), so that the network scores
    labels as if they were equally frequent.
    """
    roots = np.sqrt(n_cells)
    return roots / roots.sum()


def n_draws_per_label(n_draws: int, n_cells: np.ndarray) -> np.ndarray:
    """Divide draws among labels with so many cells, rounded up."""
    return np.ceil((n_draws * label_shares(n_cells)).round(6)).astype(int)


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
        self._rows = rows
        self._blocks = blocks
        self._batch_size = batch_size
        self._n_batches = n_batches
        self._seed = seed
        self._epoch = 0
        self.sampler = self
        self._labels, codes, n_cells = np.unique(
            codes, return_inverse=True, return_counts=True
        )
        n_draws = n_batches * batch_size
        self._n_draws_by_label = n_draws_per_label(n_draws, n_cells)
        # The buffer starts with equally many cells of each label, or with all of them.
        sample = subsample_by_label(codes, BUFFER_SIZE)
        self._sample = cells[sample]
        self._pool_sizes = np.bincount(codes[sample], minlength=len(n_cells))
        # Labels all of whose cells are in the buffer from the start need no others.
        self._is_complete = self._pool_sizes == n_cells
        self._code_of_cell = np.full(rows.n_obs, -1)
        self._code_of_cell[cells] = codes

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
        pools = self._make_pools(rng)
        codes = np.repeat(np.arange(len(pools)), self._n_draws_by_label)
        codes = rng.permutation(codes)
        blocks = self._blocks(rng)
        n_blocks = self._blocks.n_blocks
        n_blocks_read = 0
        for i in range(self._n_batches):
            # Blocks are read in step with the minibatches.
            while n_blocks_read < (i + 1) * n_blocks // self._n_batches:
                positions, block = next(blocks)
                block_codes = self._code_of_cell[positions]
                is_new = (block_codes >= 0) & ~self._is_complete[block_codes]
                cells = self._rows.normalize(block[is_new])
                _add_cells(pools, block_codes[is_new], cells, rng)
                n_blocks_read += 1
            batch = codes[i * self._batch_size : (i + 1) * self._batch_size]
            x = np.zeros((len(batch), len(self._rows.names)), dtype=np.float32)
            for row, code in enumerate(batch):
                genes, values = pools[code].draw(rng)
                x[row, genes] = values
            yield {
                REGISTRY_KEYS.X_KEY: torch.from_numpy(x),
                REGISTRY_KEYS.LABELS_KEY: torch.from_numpy(self._labels[batch])[
                    :, None
                ],
            }

    def _make_pools(self, rng: np.random.Generator) -> list[_Pool]:
        """Fill a pool for each label."""
        pools = [_Pool(int(size)) for size in self._pool_sizes]
        for offset in range(0, len(self._sample), BLOCK):
            positions = self._sample[offset : offset + BLOCK]
            codes = self._code_of_cell[positions]
            _add_cells(pools, codes, self._rows.take(positions), rng)
        return pools


def _add_cells(
    pools: list[_Pool], codes: np.ndarray, block: Block, rng: np.random.Generator
) -> None:
    """Add cells to the pools of their labels."""
    block = sp.csr_matrix(block)
    for row, code in enumerate(codes):
        entries = slice(block.indptr[row], block.indptr[row + 1])
        # Copies, so that the block need not stay in memory for one of its cells.
        genes = block.indices[entries].copy()
        values = block.data[entries].astype(np.float32)
        pools[code].add((genes, values), rng)


def read_ahead(
    items: Iterable[Item], read_item: Callable[[Item], Result], n_ahead: int
) -> Iterator[Result]:
    """Read items in order, a few of them in advance, on a thread."""
    queue: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="tosica-minibatches") as reader:
        for item in items:
            queue.append(reader.submit(read_item, item))
            if len(queue) > n_ahead:
                yield queue.popleft().result()
        while queue:
            yield queue.popleft().result()


# Genes of a cell, and their expression.
Cell = tuple[np.ndarray, np.ndarray]


class _Pool:
    """Cells of one label: all are drawn before one is drawn again.

    Parameters
    ----------
    size
        Largest number of cells. A further cell replaces another one, if possible one that was drawn
        already.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: list[Cell] = []
        self._used: list[Cell] = []

    def add(self, cell: Cell, rng: np.random.Generator) -> None:
        """Add a cell."""
        if len(self._waiting) + len(self._used) >= self._size:
            _pop(self._used or self._waiting, rng)
        self._waiting.append(cell)

    def draw(self, rng: np.random.Generator) -> Cell:
        """Draw a cell."""
        if not self._waiting:
            self._waiting = self._used
            self._used = []
        cell = _pop(self._waiting, rng)
        self._used.append(cell)
        return cell


def _pop(cells: list[Cell], rng: np.random.Generator) -> Cell:
    """Remove a random cell in constant time."""
    i = int(rng.integers(len(cells)))
    cells[i], cells[-1] = cells[-1], cells[i]
    return cells.pop()
