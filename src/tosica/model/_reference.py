"""The reference in training: checks, split, sampling of rare labels, minibatches."""

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
    label_shares,
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
    share
        The part of each minibatch that is read.
    """

    def __init__(
        self,
        rows: CellMatrix | JointMatrix,
        codes: np.ndarray,
        batches: BatchSampler | Sequence[np.ndarray],
        share: slice = slice(None),
    ) -> None:
        self._rows = rows
        self._codes = codes
        # Under this name Lightning finds the sampler, and tells it the epoch.
        self.batch_sampler = batches
        self._share = share

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return read_ahead(self.batch_sampler, self._read, _N_PREFETCHED)

    def _read(self, batch: Any) -> dict[str, torch.Tensor]:
        cells = np.asarray(batch)[self._share]
        # On sparse matrices, one lookup for a minibatch is much faster than one for each cell.
        block: Block = self._rows.take(cells)
        dense = block.toarray() if sp.issparse(block) else block
        x, codes = (
            torch.from_numpy(each)
            for each in (np.asarray(dense, dtype=np.float32), self._codes[cells])
        )
        return {REGISTRY_KEYS.X_KEY: x, REGISTRY_KEYS.LABELS_KEY: codes[:, None]}


class ReferenceData(LightningDataModule):
    """Minibatches of a reference: rare labels more often in training, every cell once in validation.

    One minibatch is made dense at a time, and the matrix is not copied. If it is on disk, training
    cells go through a :class:`ShuffleBuffer`.

    Parameters
    ----------
    rows
        Expression of the reference.
    codes
        Code of each cell's label, shape ``(n_obs,)``; -1 for cells without one, which are in
        neither part.
    left_out
        Positions of labelled cells that are in neither part.
    strata
        Batch of each cell, shape ``(n_obs,)``. The split is stratified by it within each label.
    validation_size
        Share of each class that is held out: at least one cell, and never all of them.
    batch_size
        Cells in a minibatch, at most as many as there are training cells.
    parts
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
        parts: tuple[np.ndarray, ...] | None = None,
        seed: int | None = None,
        blocks: Blocks | None = None,
    ) -> None:
        super().__init__()
        self.rows = rows
        self.codes = codes
        self.strata = strata
        self.left_out = np.asarray(left_out, dtype=np.int64)
        kept = codes.copy()
        kept[self.left_out] = -1
        # scvi-tools' training runner reads the attributes under these names.
        self.train_idx, self.val_idx = parts or split(kept, strata, validation_size)
        self.test_idx = np.flatnonzero(codes < 0)
        self.n_train, self.n_val = len(self.train_idx), len(self.val_idx)
        # An epoch is rounded up to whole minibatches, so larger ones would draw cells repeatedly.
        self.batch_size = min(batch_size, max(self.n_train, 1))
        seed = settings.seed if seed is None else seed
        self.seed = int(torch.randint(2**31, ())) if seed is None else int(seed)
        self._has_all_cells = False
        self._blocks = blocks

    def train_dataloader(self) -> Minibatches | ShuffleBuffer:
        """Training cells, rare labels more often; of several processes, this one's share."""
        rank, n_processes = (
            (0, 1)
            if self.trainer is None
            else (self.trainer.global_rank, self.trainer.world_size)
        )
        size = max(min(self.batch_size, self.n_train // n_processes), 1)
        together = size * n_processes
        n_batches = -(-self.n_train // together)
        seed, codes = (self.seed, int(self._has_all_cells)), self.codes[self.train_idx]
        if isinstance(self.rows, CellMatrix) and (
            self._blocks or not self.rows.in_memory
        ):
            # Each process reads other blocks, and draws from a buffer of its own.
            blocks = self._blocks or ContiguousBlocks(self.rows, rank, n_processes)
            return ShuffleBuffer(
                self.rows, blocks, self.train_idx, codes, size, n_batches, (*seed, rank)
            )
        sampler = LabelSampler(self.train_idx, codes, n_batches * together, seed=seed)
        batches = BatchSampler(sampler, together, drop_last=False)
        return Minibatches(
            self.rows, self.codes, batches, slice(rank * size, (rank + 1) * size)
        )

    def add_validation_to_train(self) -> None:
        """Move the validation cells to the training cells."""
        self.train_idx = np.union1d(self.train_idx, self.val_idx)
        self.val_idx = self.val_idx[:0]
        self.n_train, self.n_val = len(self.train_idx), 0
        self._has_all_cells = True

    def val_dataloader(self, *, whole: bool = False) -> Minibatches:
        """Validation cells, in order; of several processes, this one's share, unless ``whole``.

        All processes have as many minibatches. The last one may be empty for some of them.
        """
        trainer = None if whole else self.trainer
        rank, n_processes = (
            (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)
        )
        size = self.batch_size * n_processes
        of_all = [
            self.val_idx[start : start + size] for start in range(0, self.n_val, size)
        ]
        return Minibatches(
            self.rows,
            self.codes,
            [np.array_split(each, n_processes)[rank] for each in of_all],
        )


def split(
    codes: np.ndarray, strata: np.ndarray, validation_size: float
) -> tuple[np.ndarray, np.ndarray]:
    """Hold out a share of each class; every class of two or more cells is in both parts.

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
    held_out = []
    for code in np.unique(codes[codes >= 0]):
        cells = rng.permutation(np.flatnonzero(codes == code))
        # Cells are sorted by stratum, so that equally spaced positions hit each in proportion.
        cells = cells[np.argsort(strata[cells], kind="stable")]
        n_held = min(max(round(validation_size * len(cells)), 1), len(cells) - 1)
        if n_held == 0:
            continue
        positions = (np.arange(n_held) + rng.random()) * len(cells) / n_held
        held_out.append(cells[positions.astype(int)])
    validation = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *held_out]))
    training = np.setdiff1d(np.flatnonzero(codes >= 0), validation)
    return training, validation


class LabelSampler(Sampler[int]):
    """Draw each class as often as :func:`~tosica.model._reference_on_disk.label_shares` says.

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
        self._classes = [cells[codes == code] for code in labels]
        self._shares = (
            np.ceil((n_draws * label_shares(n_cells)).round(6)).astype(int).tolist()
        )
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
        state = np.random.SeedSequence((*self._seed, self._epoch)).generate_state(
            1, np.uint64
        )
        generator = torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))
        self._epoch += 1
        drawn = []
        for cells, share in zip(self._classes, self._shares, strict=True):
            orders = [
                torch.randperm(len(cells), generator=generator)
                for _ in range(-(-share // len(cells)))
            ]
            drawn.append(cells[torch.cat(orders).numpy()[:share]])
        order = torch.randperm(sum(self._shares), generator=generator).numpy()
        yield from np.concatenate(drawn)[order][: self._n_draws].tolist()
