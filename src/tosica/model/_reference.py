"""The reference in training: hold out cells, draw rare labels more often, make minibatches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from lightning.pytorch import LightningDataModule
from scvi import settings
from torch.utils.data import BatchSampler, Sampler

from tosica.data import CellMatrix
from tosica.model._reference_on_disk import (
    ContiguousBlocks,
    ShuffleBuffer,
    n_draws_per_label,
    read_ahead,
)
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tosica.data import Block, JointMatrix
    from tosica.model._reference_on_disk import Blocks

# Number of minibatches that are read in advance.
_N_PREFETCHED = 2


class Minibatches:
    """Dense minibatches of a reference, read in advance by a thread.

    The thread reads rows, makes them dense and adds their labels.

    Parameters
    ----------
    rows
        Expression of the reference.
    codes
        Code of each cell's label, shape ``(n_obs,)``.
    batches
        Positions of the cells of each minibatch.
    shard
        Cells of each minibatch that this process reads.
    """

    def __init__(
        self,
        rows: CellMatrix | JointMatrix,
        codes: np.ndarray,
        batches: BatchSampler | Sequence[np.ndarray],
        shard: slice = slice(None),
    ) -> None:
        self._rows = rows
        self._codes = codes
        # Under this name Lightning finds the sampler, and tells it the epoch.
        self.batch_sampler = batches
        self._shard = shard

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return read_ahead(self.batch_sampler, self._read, _N_PREFETCHED)

    def _read(self, batch: Any) -> dict[str, torch.Tensor]:
        cells = np.asarray(batch)[self._shard]
        # On sparse matrices, one lookup for a minibatch is much faster than one for each cell.
        block: Block = self._rows.take(cells)
        dense = block.toarray() if sp.issparse(block) else block
        x = np.asarray(dense, dtype=np.float32)
        return {
            REGISTRY_KEYS.X_KEY: torch.from_numpy(x),
            REGISTRY_KEYS.LABELS_KEY: torch.from_numpy(self._codes[cells])[:, None],
        }


class ReferenceData(LightningDataModule):
    """Minibatches of a reference: rare labels more often in training, every cell once in validation.

    One minibatch is made dense at a time, and the matrix is not copied. If it is on disk, training
    cells go through a :class:`ShuffleBuffer`.

    Parameters
    ----------
    rows
        Expression of the reference.
    codes
        Code of each cell's label, shape ``(n_obs,)``; -1 for cells without one, which are neither
        trained on nor held out.
    strata
        Batch of each cell, shape ``(n_obs,)``. The split is stratified by it within each label.
    left_out
        Positions of labeled cells that are neither trained on nor held out.
    validation_size
        Share of each class that is held out: at least one cell, and never all of them.
    batch_size
        Cells in a minibatch, at most as many as there are training cells.
    external_indexing
        Positions of the training cells and of the validation cells, of a training that goes on. By
        default cells are held out at random.
    seed
        Of the draws of cells. By default ``scvi.settings.seed``, or a random one if that is
        ``None``.
    blocks
        Reads the training cells of a reference that is not in memory, by default in blocks of
        neighboring cells.
    """

    def __init__(
        self,
        rows: CellMatrix | JointMatrix,
        codes: np.ndarray,
        strata: np.ndarray,
        *,
        left_out: Sequence[int] | np.ndarray = (),
        validation_size: float,
        batch_size: int,
        external_indexing: tuple[np.ndarray, np.ndarray] | None = None,
        seed: int | None = None,
        blocks: Blocks | None = None,
    ) -> None:
        super().__init__()
        self.rows = rows
        self.codes = codes
        self.strata = strata
        self.left_out = np.asarray(left_out, dtype=np.int64)
        if external_indexing is None:
            codes_to_split = codes.copy()
            codes_to_split[self.left_out] = -1
            external_indexing = split(codes_to_split, strata, validation_size)
        # scvi-tools' training runner reads the attributes under these names.
        self.train_idx, self.val_idx = external_indexing
        self.test_idx = np.flatnonzero(codes < 0)
        self.n_train = len(self.train_idx)
        self.n_val = len(self.val_idx)
        # An epoch is rounded up to whole minibatches, so larger ones would draw cells repeatedly.
        self.batch_size = min(batch_size, max(self.n_train, 1))
        if seed is None:
            seed = settings.seed
        if seed is None:
            seed = int(torch.randint(2**31, ()))
        self.seed = int(seed)
        self._has_all_cells = False
        self._blocks = blocks

    @property
    def _processes(self) -> tuple[int, int]:
        """Rank of this process, and number of all."""
        if self.trainer is None:
            return 0, 1
        return self.trainer.global_rank, self.trainer.world_size

    def train_dataloader(self) -> Minibatches | ShuffleBuffer:
        """Make minibatches of training cells, rare labels more often.

        With several processes, each gets its shard of every minibatch.
        """
        rank, n_processes = self._processes
        shard_size = max(min(self.batch_size, self.n_train // n_processes), 1)
        batch_size = shard_size * n_processes
        n_batches = -(-self.n_train // batch_size)
        codes = self.codes[self.train_idx]
        seed = (self.seed, int(self._has_all_cells))
        if isinstance(self.rows, CellMatrix) and (
            self._blocks or not self.rows.in_memory
        ):
            # Each process reads other blocks, and draws from a buffer of its own.
            return ShuffleBuffer(
                self.rows,
                self._blocks or ContiguousBlocks(self.rows, rank, n_processes),
                self.train_idx,
                codes,
                shard_size,
                n_batches,
                (*seed, rank),
            )
        sampler = LabelSampler(self.train_idx, codes, n_batches * batch_size, seed=seed)
        return Minibatches(
            self.rows,
            self.codes,
            BatchSampler(sampler, batch_size, drop_last=False),
            slice(rank * shard_size, (rank + 1) * shard_size),
        )

    def add_validation_to_train(self) -> None:
        """Move the validation cells to the training cells."""
        self.train_idx = np.union1d(self.train_idx, self.val_idx)
        self.val_idx = self.val_idx[:0]
        self.n_train = len(self.train_idx)
        self.n_val = 0
        self._has_all_cells = True

    def val_dataloader(self, *, all_shards: bool = False) -> Minibatches:
        """Make minibatches of validation cells, in order.

        With several processes, each gets its shard of every minibatch, unless ``all_shards``. All have as
        many minibatches, and the last one may be empty for some of them.
        """
        rank, n_processes = (0, 1) if all_shards else self._processes
        size = self.batch_size * n_processes
        shards = []
        for offset in range(0, self.n_val, size):
            cells = self.val_idx[offset : offset + size]
            shards.append(np.array_split(cells, n_processes)[rank])
        return Minibatches(self.rows, self.codes, shards)


def split(
    codes: np.ndarray, strata: np.ndarray, validation_size: float
) -> tuple[np.ndarray, np.ndarray]:
    """Hold out a share of each class; every class of two or more cells is on both sides.

    Within a class the split is stratified.

    Parameters
    ----------
    codes
        Class of each cell, -1 for none, shape ``(n_obs,)``. A class of a single cell is not held
        out.
    strata
        Stratum of each cell, shape ``(n_obs,)``.
    validation_size
        Share to hold out, above 0 and below 1.

    Returns
    -------
    Positions of the training cells and of the validation cells, each sorted.
    """
    rng = np.random.default_rng(settings.seed)
    held_out = [np.empty(0, dtype=np.int64)]
    for code in np.unique(codes[codes >= 0]):
        cells = rng.permutation(np.flatnonzero(codes == code))
        n_held_out = min(max(round(validation_size * len(cells)), 1), len(cells) - 1)
        if n_held_out == 0:
            continue
        # Cells are sorted by stratum, so that equally spaced positions hit each in proportion.
        cells = cells[np.argsort(strata[cells], kind="stable")]
        steps = np.arange(n_held_out) + rng.random()
        positions = steps * len(cells) / n_held_out
        held_out.append(cells[positions.astype(int)])
    validation = np.sort(np.concatenate(held_out))
    training = np.setdiff1d(np.flatnonzero(codes >= 0), validation)
    return training, validation


class LabelSampler(Sampler[int]):
    """Draw each class by the square root of its number of cells.

    All cells of a class are drawn in random order before any of them is drawn again.

    Parameters
    ----------
    cells
        Positions of the cells, shape ``(n_cells,)``.
    codes
        Class of each of them, shape ``(n_cells,)``.
    n_draws
        Draws of an epoch.
    seed
        The draws of an epoch depend on it and on the number of the epoch alone.
    """

    def __init__(
        self,
        cells: np.ndarray,
        codes: np.ndarray,
        n_draws: int,
        *,
        seed: tuple[int, ...] = (0,),
    ) -> None:
        labels, n_cells = np.unique(codes, return_counts=True)
        self._cells_by_class = [cells[codes == code] for code in labels]
        self._n_draws_by_class = n_draws_per_label(n_draws, n_cells).tolist()
        self._n_draws = n_draws
        self._seed = seed
        self._epoch = 0

    def __len__(self) -> int:
        return self._n_draws

    def set_epoch(self, epoch: int) -> None:
        """Draw the cells of this epoch next; Lightning calls it before each."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        # It does not depend on the global random state.
        sequence = np.random.SeedSequence((*self._seed, self._epoch))
        seed = int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
        generator = torch.Generator().manual_seed(seed)
        self._epoch += 1
        draws = []
        for cells, n_draws in zip(
            self._cells_by_class, self._n_draws_by_class, strict=True
        ):
            permutations = [
                torch.randperm(len(cells), generator=generator)
                for _ in range(-(-n_draws // len(cells)))
            ]
            draws.append(cells[torch.cat(permutations).numpy()[:n_draws]])
        order = torch.randperm(sum(self._n_draws_by_class), generator=generator)
        yield from np.concatenate(draws)[order.numpy()][: self._n_draws].tolist()
