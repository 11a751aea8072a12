"""Which cells are trained on, which are held out, and how they come in minibatches."""

from __future__ import annotations

import re

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import scvi
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tosica.data import CellMatrix
from tosica.model import _data_module
from tosica.model._data_module import BalancedSampler, ReferenceData, count_batches, split

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


@settings(max_examples=50)
@given(references(), st.floats(0.01, 0.99))
def test_every_class_is_on_both_sides_with_its_share(reference, validation_size):
    codes, strata = reference
    training, validation = split(codes, strata, validation_size)
    assert not set(training) & set(validation)
    np.testing.assert_array_equal(
        np.sort(np.concatenate([training, validation])), np.flatnonzero(codes >= 0)
    )
    assert (np.diff(training) > 0).all()
    assert (np.diff(validation) > 0).all()
    for code in np.unique(codes[codes >= 0]):
        n = (codes == code).sum()
        n_held = (codes[validation] == code).sum()
        assert 1 <= n_held <= n - 1
        assert n_held == np.clip(round(validation_size * n), 1, n - 1)


@settings(max_examples=50)
@given(references(), st.floats(0.01, 0.99))
def test_held_out_cells_are_spread_over_the_strata(reference, validation_size):
    codes, strata = reference
    _, validation = split(codes, strata, validation_size)
    for code in np.unique(codes[codes >= 0]):
        of_class, held = strata[codes == code], strata[validation][codes[validation] == code]
        for stratum in np.unique(of_class):
            in_proportion = len(held) * (of_class == stratum).mean()
            assert abs((held == stratum).sum() - in_proportion) < 2


def test_a_class_of_a_single_cell_is_in_training():
    codes = np.array([0, 0, 0, 0, 1, 2, 2, -1])
    training, validation = split(codes, np.zeros(8), 0.5)
    assert 4 in training
    assert sorted([*training, *validation]) == [0, 1, 2, 3, 4, 5, 6]
    assert (np.bincount(codes[validation], minlength=3) == [2, 0, 1]).all()
    training, validation = split(np.arange(3), np.zeros(3), 0.5)
    np.testing.assert_array_equal(training, [0, 1, 2])
    assert validation.shape == (0,)
    assert validation.dtype == np.int64


def test_split_follows_the_seed():
    codes, strata = np.arange(200) % 4, np.zeros(200)
    first = split(codes, strata, 0.2)[1]
    np.testing.assert_array_equal(split(codes, strata, 0.2)[1], first)
    scvi.settings.seed = 1
    assert set(split(codes, strata, 0.2)[1]) != set(first)


@pytest.mark.parametrize("size", [0, 1, -0.1, 1.5, float("nan")])
def test_impossible_share(size):
    sentence = f"validation_size must lie between 0 and 1, not {size}."
    with pytest.raises(ValueError, match=re.escape(sentence)):
        split(np.arange(4) % 2, np.zeros(4), size)


# --------------------------------------------------------------------------- sampler


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 80), min_size=1, max_size=7),
    batch_size=st.integers(1, 64),
    seed=st.integers(0, 1000),
)
def test_classes_come_equally_often_in_whole_minibatches(sizes, batch_size, seed):
    torch.manual_seed(seed)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    cells = np.random.default_rng(seed).permutation(1000)[: len(codes)]
    sampler = BalancedSampler(cells, codes, batch_size)
    drawn = np.array(list(sampler))
    assert len(drawn) == len(sampler)
    assert len(drawn) % batch_size == 0
    assert len(codes) <= len(drawn) < len(codes) + batch_size
    code_of = dict(zip(cells, codes, strict=True))
    times = np.bincount([code_of[cell] for cell in drawn], minlength=len(sizes))
    share = -(-len(drawn) // len(sizes))
    # An epoch that the classes do not divide leaves a few draws out at random.
    assert times.max() <= share
    assert (share - times).sum() < len(sizes)
    for code in range(len(sizes)):
        each = pd.Series(drawn).value_counts().reindex(cells[codes == code], fill_value=0)
        assert each.max() - each.min() <= 1 + (share - times[code])


def test_order_is_drawn_anew():
    sampler = BalancedSampler(np.arange(60), np.arange(60) % 3, 10)
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(60))
    assert first != second
    # Not one class after the other.
    assert len({cell % 3 for cell in first[:20]}) == 3


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
    np.testing.assert_array_equal(data.test_idx, np.arange(9))

    batches = list(data.val_dataloader())
    x = torch.cat([batch["X"] for batch in batches])
    assert x.dtype == torch.float32
    np.testing.assert_array_equal(x, toy.X[data.val_idx].toarray())
    labels = torch.cat([batch["labels"] for batch in batches])
    assert labels.shape == (data.n_val, 1)
    np.testing.assert_array_equal(labels[:, 0], codes[data.val_idx])

    batches = list(data.train_dataloader())
    assert {len(batch["X"]) for batch in batches} == {min(batch_size, data.n_train)}
    known = {row.tobytes(): code for row, code in zip(toy.X.toarray(), codes, strict=True)}
    trained_on = {row.tobytes() for row in toy.X[data.train_idx].toarray()}
    for batch in batches:
        for row, code in zip(batch["X"].numpy(), batch["labels"][:, 0].numpy(), strict=True):
            assert row.tobytes() in trained_on
            assert known[row.tobytes()] == code


def test_joined_parts_train_on_every_labelled_cell(toy):
    codes = toy.obs["kind"].cat.codes.to_numpy(dtype=np.int64, copy=True)
    codes[:9] = -1
    data = ReferenceData(CellMatrix(toy), codes, np.zeros(90), validation_size=0.2, batch_size=16)
    held = data.val_idx
    data.join()
    assert (data.n_train, data.n_val) == (81, 0)
    assert set(held) <= set(data.train_idx)
    np.testing.assert_array_equal(data.train_idx, np.arange(9, 90))
    assert list(data.val_dataloader()) == []
    held_rows = {row.tobytes() for row in toy.X[held].toarray()}
    drawn = [
        row.tobytes() for _ in range(5) for b in data.train_dataloader() for row in b["X"].numpy()
    ]
    assert held_rows <= set(drawn)


def test_unlabelled_cells_are_in_neither_part(toy, train):
    toy.obs["kind"] = toy.obs["kind"].cat.add_categories("?")
    toy.obs.loc[toy.obs_names[:12], "kind"] = "?"
    # Would ruin the losses if it were seen.
    toy.X[:12] *= 50
    model = train(toy, setup={"unlabeled_category": "?"})
    np.testing.assert_array_equal(model.test_indices, np.arange(12))
    seen = np.sort(np.concatenate([model.train_indices, model.validation_indices]))
    np.testing.assert_array_equal(seen, np.arange(12, 90))
    assert set(model.predict()) <= {"a", "b", "c"}

    labelled = toy[12:].copy()
    labelled.obs["kind"] = labelled.obs["kind"].cat.remove_unused_categories()
    alone = train(labelled)
    pd.testing.assert_frame_equal(model.history["train_loss"], alone.history["train_loss"])


def test_every_class_and_batch_is_held_out(toy, train):
    model = train(toy, setup={"batch_key": "donor"}, train_size=0.8)
    held = toy.obs.iloc[model.validation_indices]
    assert held.groupby(["kind", "donor"], observed=False).size().tolist() == [3] * 6


# --------------------------------------------------------------------------- any matrix


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csc", "dense", "fortran", "float64", "int32", "uint16", "layer"])
def test_losses_do_not_depend_on_what_the_matrix_is_kept_in(toy, train, form):
    expected = train(toy.copy()).history
    dense, setup = toy.X.toarray(), {}
    if form == "csc":
        toy.X = sp.csc_matrix(toy.X)
    elif form == "dense":
        toy.X = dense
    elif form == "fortran":
        toy.X = np.asfortranarray(dense)
    elif form == "layer":
        toy.layers["counts"] = toy.X.copy()
        toy.X = dense * 0 - 1
        setup = {"layer": "counts"}
    else:
        toy.X = toy.X.astype(form)
    history = train(toy, setup=setup).history
    for name, values in expected.items():
        pd.testing.assert_frame_equal(history[name], values)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csr", "csc", "dense"])
def test_training_from_a_file(toy, train, form, tmp_path):
    expected = train(toy.copy()).history
    toy.X = {"csr": sp.csr_matrix, "csc": sp.csc_matrix, "dense": lambda x: x.toarray()}[form](
        toy.X
    )
    toy.write_h5ad(tmp_path / "ref.h5ad")
    on_disk = anndata.read_h5ad(tmp_path / "ref.h5ad", backed="r")
    try:
        model = train(on_disk)
        assert on_disk.isbacked
        for name, values in expected.items():
            pd.testing.assert_frame_equal(model.history[name], values)
        assert (model.predict() == model.predict(toy)).all()
    finally:
        on_disk.file.close()


def test_epochs_of_large_references_are_short(monkeypatch):
    monkeypatch.setattr(_data_module, "MAX_EPOCH_DRAWS", 30)
    cells = np.arange(90)
    sampler = BalancedSampler(cells, cells % 3, 8)
    first, second = list(sampler), list(sampler)
    assert len(first) == len(sampler) == count_batches(90, 8) * 8 == 32
    # No cell of an epoch is drawn twice, and another epoch draws others.
    assert len(set(first)) == 32
    assert set(first) != set(second)
    assert count_batches(20, 8) == 3
