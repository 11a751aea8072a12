"""Minibatches of a reference on disk are as balanced as those of one in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.sparse as sp
from anndata import AnnData

from tosica.data import CellMatrix
from tosica.model import _data_module, _reference_mixin, _shuffle_buffer
from tosica.model._shuffle_buffer import ContiguousBlocks, ShuffleBuffer, StreamedMinibatches

if TYPE_CHECKING:
    from collections.abc import Callable

    import tosica

SIZES = {0: 300, 1: 80, 3: 20, 4: 3}


def cells(sizes: dict[int, int] = SIZES) -> tuple[CellMatrix, np.ndarray]:
    """Cells sorted by label, whose only value is their position, and their codes."""
    codes = np.repeat(list(sizes), list(sizes.values()))
    n = len(codes)
    x = sp.csr_matrix((np.arange(1.0, n + 1), (np.arange(n), codes)), shape=(n, 5))
    return CellMatrix(AnnData(x)), codes


def buffer(size: int, block: int = 16, cells_of: dict[int, int] = SIZES) -> ShuffleBuffer:
    rows, codes = cells(cells_of)
    blocks, n_batches = ContiguousBlocks(rows, size=block), -(-len(codes) // 8)
    return ShuffleBuffer(rows, blocks, np.arange(len(codes)), codes, 8, n_batches, size=size)


def drawn(buffer: ShuffleBuffer, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the cells of an epoch, and their labels."""
    x, labels = zip(*buffer.draw(np.random.default_rng(seed)), strict=True)
    return np.concatenate(x).max(1).astype(int) - 1, np.concatenate(labels)


@pytest.mark.parametrize("size", [20, 60, 1000])
def test_labels_are_drawn_equally_often(size: int) -> None:
    positions, labels = drawn(buffer(size))
    _, codes = cells()
    np.testing.assert_array_equal(codes[positions], labels)
    n = np.unique(labels, return_counts=True)[1]
    assert len(labels) == len(buffer(size)) * 8
    assert n.max() - n.min() <= 8
    # Cells of a rare label are in the buffer as a whole, and are drawn equally often.
    rare = np.bincount(positions[labels == 4])[-3:]
    assert rare.max() - rare.min() <= 1


def test_a_short_epoch_reads_as_many_cells_as_it_draws() -> None:
    rows, codes = cells({0: 400, 1: 400})
    blocks, read = ContiguousBlocks(rows, size=16), []

    class Counted:
        n_blocks = blocks.n_blocks

        def __call__(self, rng: np.random.Generator) -> Any:
            for positions, block in blocks(rng):
                read.append(positions)
                yield positions, block

    of_all = np.arange(800)
    short = ShuffleBuffer(rows, Counted(), of_all, codes, 8, 25, n_blocks=13, size=60)
    positions, _ = drawn(short)
    assert len(positions) == 200
    assert len(read) == 13
    assert np.isin(positions, np.concatenate(read)).any()


def test_every_block_is_drawn_from() -> None:
    positions, _ = drawn(buffer(60, cells_of={0: 400, 1: 400}))
    hit = np.unique(positions // 16)
    # A buffer of a fifteenth of the cells, which come sorted by label.
    assert len(hit) >= 45
    assert len(np.unique(positions)) > 500


def test_cells_of_no_label_are_left_out() -> None:
    rows, codes = cells()
    kept = np.flatnonzero(np.arange(len(codes)) % 3 > 0)
    blocks = ContiguousBlocks(rows, size=16)
    own = ShuffleBuffer(rows, blocks, kept, codes[kept], 8, 20, size=60)
    assert set(drawn(own)[0]) <= set(kept)


def test_an_epoch_depends_on_the_seed_and_its_number() -> None:
    def of(seed: int, epoch: int, skip: int = 0) -> np.ndarray:
        batches = StreamedMinibatches(buffer(60), (seed, 0))
        batches.set_epoch(epoch)
        batches.load_state_dict({"n_yielded": skip})
        return np.concatenate([batch["X"].numpy() for batch in batches])

    np.testing.assert_array_equal(of(0, 1), of(0, 1))
    assert (of(0, 1) != of(0, 0)).any()
    assert (of(0, 1) != of(1, 1)).any()
    # A training that goes on in the midst of an epoch draws what is left of it.
    np.testing.assert_array_equal(of(0, 1, skip=5), of(0, 1)[40:])


@pytest.fixture
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer that the made-up references do not fit."""
    monkeypatch.setattr(_reference_mixin, "BUFFER_SIZE", 30)
    for name in ("BUFFER_SIZE", "_BLOCK"):
        monkeypatch.setattr(_shuffle_buffer, name, 30)


def test_a_model_learns_from_disk_as_from_memory(
    toy: AnnData,
    toy_query: AnnData,
    train: Callable[..., tosica.TOSICA],
    fast_plan: dict[str, float],
    tmp_path: Any,
    small_buffer: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import anndata as ad

    used = []
    stream = _data_module.StreamedMinibatches

    def watched(*args: Any) -> StreamedMinibatches:
        used.append(args)
        return stream(*args)

    monkeypatch.setattr(_data_module, "StreamedMinibatches", watched)
    toy.write_h5ad(tmp_path / "toy.h5ad")
    options: dict[str, Any] = {"max_epochs": 15, "plan_kwargs": fast_plan}
    expected = train(toy, **options)
    assert not used
    backed = ad.read_h5ad(tmp_path / "toy.h5ad", backed="r")
    found = train(backed, **options)
    assert used
    backed.file.close()
    labels = toy_query.obs["kind"].to_numpy()
    accuracy = [(model.predict(toy_query) == labels).mean() for model in (expected, found)]
    assert accuracy[1] > accuracy[0] - 0.05
    losses = [m.history["validation_loss"].iloc[-1, 0] for m in (expected, found)]
    assert losses[1] < losses[0] + 0.1
