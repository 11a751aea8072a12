"""Which cells are trained on, which are held out, and how they come in minibatches."""

from types import SimpleNamespace

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from anndata import AnnData
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from tosica.data import CellMatrix
from tosica.model import _phases, _reference, _reference_on_disk
from tosica.model._reference import ReferenceData, split
from tosica.model._reference_on_disk import ContiguousBlocks, ShuffleBuffer

# --------------------------------------------------------------------------- split


@st.composite
def references(draw):
    """Codes with two cells or more a class, some cells without one, and strata."""
    sizes = draw(st.lists(st.integers(2, 60), min_size=1, max_size=6))
    n_without = draw(st.integers(0, 20))
    codes = np.repeat([*range(len(sizes)), -1], [*sizes, n_without])
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    rng.shuffle(codes)
    strata = rng.integers(0, draw(st.integers(1, 5)), len(codes))
    return codes, strata


@settings(max_examples=15)
@given(references(), st.floats(0.01, 0.99))
def test_every_class_is_on_both_sides_with_its_share(reference, validation_size):
    codes, strata = reference
    training, validation = split(codes, strata, validation_size)
    assert not set(training) & set(validation)
    assert_array_equal(
        np.sort(np.concatenate([training, validation])), np.flatnonzero(codes >= 0)
    )
    assert (np.diff(training) > 0).all()
    assert (np.diff(validation) > 0).all()
    for code in np.unique(codes[codes >= 0]):
        n = (codes == code).sum()
        n_held = (codes[validation] == code).sum()
        assert 1 <= n_held <= n - 1
        assert n_held == np.clip(round(validation_size * n), 1, n - 1)
        # Spread over the strata.
        of_class = strata[codes == code]
        held_strata = strata[validation][codes[validation] == code]
        for stratum in np.unique(of_class):
            in_proportion = len(held_strata) * (of_class == stratum).mean()
            assert abs((held_strata == stratum).sum() - in_proportion) < 2
    # It follows the seed.
    assert_array_equal(split(codes, strata, validation_size)[1], validation)


def test_a_class_of_a_single_cell_is_in_training():
    codes = np.array([0, 0, 0, 0, 1, 2, 2, -1])
    training, validation = split(codes, np.zeros(8), 0.5)
    assert 4 in training
    assert sorted([*training, *validation]) == [0, 1, 2, 3, 4, 5, 6]
    assert (np.bincount(codes[validation], minlength=3) == [2, 0, 1]).all()
    training, validation = split(np.arange(3), np.zeros(3), 0.5)
    assert_array_equal(training, [0, 1, 2])
    assert validation.shape == (0,)
    assert validation.dtype == np.int64


# --------------------------------------------------------------------------- sampler


def of_cells(cells, codes, batch_size):
    """Minibatches of cells at these positions, which nobody reads."""
    of_all = np.zeros(cells.max() + 1, dtype=np.int64)
    of_all[cells] = codes
    data = ReferenceData(
        None,
        of_all,
        of_all,
        external_indexing=(cells, cells[:0]),
        validation_size=0.1,
        batch_size=batch_size,
    )
    return data.train_dataloader()


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 80), min_size=1, max_size=7),
    batch_size=st.integers(1, 64),
    seed=st.integers(0, 1000),
)
def test_classes_come_by_the_root_of_their_size_in_whole_minibatches(
    sizes, batch_size, seed
):
    torch.manual_seed(seed)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    cells = np.random.default_rng(seed).permutation(1000)[: len(codes)]
    sampler = of_cells(cells, codes, batch_size).batch_sampler.sampler
    batch_size = min(batch_size, len(cells))
    drawn_cells = np.array(list(sampler))
    assert len(drawn_cells) == len(sampler)
    assert len(drawn_cells) % batch_size == 0
    assert len(codes) <= len(drawn_cells) < len(codes) + batch_size
    code_of = dict(zip(cells, codes, strict=True))
    times = np.bincount([code_of[cell] for cell in drawn_cells], minlength=len(sizes))
    shares = np.ceil(
        (len(drawn_cells) * np.sqrt(sizes) / np.sqrt(sizes).sum()).round(6)
    )
    # An epoch that the classes do not divide leaves a few draws out at random.
    assert (times <= shares).all()
    assert (shares - times).sum() <= len(sizes)
    for code in range(len(sizes)):
        times_of_cells = (
            pd.Series(drawn_cells)
            .value_counts()
            .reindex(cells[codes == code], fill_value=0)
        )
        assert times_of_cells.max() - times_of_cells.min() <= 1 + (
            shares[code] - times[code]
        )


# --------------------------------------------------------------------------- minibatches


@pytest.mark.parametrize("batch_size", [1, 16, 500])
def test_minibatches_hold_the_cells_they_say(toy, batch_size):
    codes = toy.obs["kind"].cat.codes.to_numpy(dtype=np.int64, copy=True)
    codes[:9] = -1
    data = ReferenceData(
        CellMatrix(toy), codes, np.zeros(90), validation_size=0.2, batch_size=batch_size
    )
    assert (data.n_train, data.n_val) == (len(data.train_idx), len(data.val_idx))
    assert data.n_train + data.n_val == 81
    assert_array_equal(data.test_idx, np.arange(9))

    batches = list(data.val_dataloader())
    x = torch.cat([batch["X"] for batch in batches])
    assert x.dtype == torch.float32
    assert_array_equal(x, toy.X[data.val_idx].toarray())
    labels = torch.cat([batch["labels"] for batch in batches])
    assert labels.shape == (data.n_val, 1)
    assert_array_equal(labels[:, 0], codes[data.val_idx])

    batches = list(data.train_dataloader())
    assert {len(batch["X"]) for batch in batches} == {min(batch_size, data.n_train)}
    code_of_row = {
        row.tobytes(): code for row, code in zip(toy.X.toarray(), codes, strict=True)
    }
    trained_on = {row.tobytes() for row in toy.X[data.train_idx].toarray()}
    for batch in batches:
        for row, code in zip(
            batch["X"].numpy(), batch["labels"][:, 0].numpy(), strict=True
        ):
            assert row.tobytes() in trained_on
            assert code_of_row[row.tobytes()] == code
    held_rows = {row.tobytes() for row in toy.X[data.val_idx].toarray()}
    data.add_validation_to_train()
    assert (data.n_train, data.n_val) == (81, 0)
    assert_array_equal(data.train_idx, np.arange(9, 90))
    assert list(data.val_dataloader()) == []
    assert held_rows <= {
        row.tobytes()
        for _ in range(5)
        for b in data.train_dataloader()
        for row in b["X"].numpy()
    }


def test_unlabeled_cells_are_in_neither_part(toy, train):
    toy.obs["kind"] = toy.obs["kind"].cat.add_categories("?")
    toy.obs.loc[toy.obs_names[:12], "kind"] = "?"
    # Would ruin the losses if it were seen.
    toy.X[:12] *= 50
    model = train(toy, setup={"unlabeled_category": "?"})
    assert_array_equal(model.test_indices, np.arange(12))
    seen = np.sort(np.concatenate([model.train_indices, model.validation_indices]))
    assert_array_equal(seen, np.arange(12, 90))
    assert set(model.predict()) <= {"a", "b", "c"}

    labeled = toy[12:].copy()
    labeled.obs["kind"] = labeled.obs["kind"].cat.remove_unused_categories()
    alone = train(labeled)
    pd.testing.assert_frame_equal(
        model.history["train_loss"], alone.history["train_loss"]
    )
    assert model.gene_sets == alone.gene_sets
    pd.testing.assert_frame_equal(
        model.get_linear_weights(), alone.get_linear_weights(), rtol=1e-3, atol=1e-3
    )


# --------------------------------------------------------------------------- any matrix


# --------------------------------------------------------------------------- from disk

SIZES = {0: 300, 1: 80, 3: 20, 4: 3}


def cells(sizes=SIZES):
    """Cells sorted by label, whose only value is their position, and their codes."""
    codes = np.repeat(list(sizes), list(sizes.values()))
    n = len(codes)
    x = sp.csr_matrix((np.arange(1.0, n + 1), (np.arange(n), codes)), shape=(n, 5))
    return CellMatrix(AnnData(x)), codes


def buffer(cells_of=SIZES, seed=0, selected=slice(None)):
    rows, codes = cells(cells_of)
    positions = np.arange(len(codes))[selected]
    blocks = ContiguousBlocks(rows, size=16)
    n_batches = -(-len(positions) // 8)
    return ShuffleBuffer(
        rows, blocks, positions, codes[positions], 8, n_batches, (seed, 0)
    )


def drawn(buffer, epoch=0):
    """Positions of the cells of an epoch, and their labels."""
    buffer.set_epoch(epoch)
    batches = list(buffer)
    x = torch.cat([batch["X"] for batch in batches]).numpy()
    return x.max(1).astype(int) - 1, torch.cat(
        [batch["labels"][:, 0] for batch in batches]
    ).numpy()


@pytest.mark.parametrize("size", [20, 60, 1000])
def test_labels_are_drawn_by_the_root_of_their_cells(monkeypatch, size):
    monkeypatch.setattr(_reference_on_disk, "BUFFER_SIZE", size)
    shuffled = buffer()
    positions, labels = drawn(shuffled)
    _, codes = cells()
    assert_array_equal(codes[positions], labels)
    roots = np.sqrt(list(SIZES.values()))
    assert len(labels) == len(shuffled) * 8
    assert_allclose(
        np.unique(labels, return_counts=True)[1],
        len(labels) * roots / roots.sum(),
        atol=4,
    )
    # Cells of a rare label are in the buffer as a whole, and are drawn equally often.
    rare = np.bincount(positions[labels == 4])[-3:]
    assert rare.max() - rare.min() <= 1
    # An epoch depends on the seed and on its number.
    assert_array_equal(drawn(buffer())[0], positions)
    assert (drawn(shuffled, 1)[0] != positions).any()
    assert (drawn(buffer(seed=1))[0] != positions).any()
    # Cells that are not trained on are left out.
    assert (drawn(buffer(selected=np.arange(len(codes)) % 3 > 0))[0] % 3 > 0).all()


def test_every_block_is_drawn_from(monkeypatch):
    monkeypatch.setattr(_reference_on_disk, "BUFFER_SIZE", 60)
    shuffled = buffer({0: 400, 1: 400})
    positions, _ = drawn(shuffled)
    hit = np.unique(positions // 16)
    # A buffer of a fifteenth of the cells, which come sorted by label.
    assert len(hit) >= 45
    assert len(np.unique(positions)) > 500


@pytest.fixture
def small_buffer(monkeypatch):
    """A buffer that the made-up references do not fit."""
    monkeypatch.setattr(_phases, "BUFFER_SIZE", 30)
    for name in ("BUFFER_SIZE", "BLOCK"):
        monkeypatch.setattr(_reference_on_disk, name, 30)


@pytest.mark.usefixtures("small_buffer")
def test_a_model_learns_from_disk_as_from_memory(
    toy, toy_query, train, fast_plan, tmp_path, monkeypatch
):
    used = []
    stream = _reference.ShuffleBuffer

    def watched(*args):
        used.append(args)
        return stream(*args)

    monkeypatch.setattr(_reference, "ShuffleBuffer", watched)
    toy.write_h5ad(tmp_path / "toy.h5ad")
    options = {"max_epochs": 8, "plan_kwargs": fast_plan}
    expected = train(toy, **options)
    assert not used
    backed = anndata.read_h5ad(tmp_path / "toy.h5ad", backed="r")
    from_disk = train(backed, **options)
    assert used
    backed.file.close()
    labels = toy_query.obs["kind"].to_numpy()
    accuracy = [
        (model.predict(toy_query) == labels).mean() for model in (expected, from_disk)
    ]
    assert accuracy[1] > accuracy[0] - 0.05
    losses = [m.history["validation_loss"].iloc[-1, 0] for m in (expected, from_disk)]
    assert losses[1] < losses[0] + 0.1


# --------------------------------------------------------------------------- shares of processes


def reference_data(toy, batch_size, rank=0, n_processes=1, validation_size=0.3):
    codes = toy.obs["kind"].cat.codes.to_numpy().astype(np.int64)
    sizes = {"validation_size": validation_size, "batch_size": batch_size}
    data = ReferenceData(CellMatrix(toy), codes, np.zeros(len(codes)), **sizes)
    data.trainer = SimpleNamespace(global_rank=rank, world_size=n_processes)
    return data


@pytest.mark.parametrize("n_processes", [2, 3])
def test_processes_share_the_minibatches_of_one(toy, n_processes):
    torch.manual_seed(1)
    of_one_process = list(reference_data(toy, 4 * n_processes).train_dataloader())
    torch.manual_seed(2)
    shares = [
        list(reference_data(toy, 4, rank, n_processes).train_dataloader())
        for rank in range(n_processes)
    ]
    for batch, *batch_shares in zip(of_one_process, *shares, strict=True):
        assert [len(batch_share["X"]) for batch_share in batch_shares] == [
            4
        ] * n_processes
        for key in batch:
            torch.testing.assert_close(
                torch.cat([batch_share[key] for batch_share in batch_shares]),
                batch[key],
            )


@pytest.mark.parametrize("batch_size", [1, 5, 500])
def test_large_minibatches_are_divided_equally(toy, batch_size):
    for rank in range(2):
        data = reference_data(toy, batch_size, rank, 2)
        sizes = {len(batch["X"]) for batch in data.train_dataloader()}
        assert sizes == {min(batch_size, data.n_train // 2)}


@pytest.mark.parametrize("validation_size", [0.01, 0.3])
@pytest.mark.parametrize("batch_size", [1, 4, 500])
def test_each_held_out_cell_is_validated_once(toy, batch_size, validation_size):
    processes = [
        reference_data(toy, batch_size, rank, 4, validation_size=validation_size)
        for rank in range(4)
    ]
    shares = [list(data.val_dataloader()) for data in processes]
    # Processes wait for one another after each minibatch.
    assert len({len(share) for share in shares}) == 1
    validated = torch.cat([batch["X"] for share in shares for batch in share]).numpy()
    expected = toy.X[processes[0].val_idx].toarray()
    assert sorted(map(tuple, validated)) == sorted(map(tuple, expected))
    held_out = torch.cat(
        [batch["X"] for batch in processes[2].val_dataloader(all_shards=True)]
    )
    assert_array_equal(held_out, expected)
