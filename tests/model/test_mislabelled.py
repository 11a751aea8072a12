"""Cells whose labels the other cells contradict do not teach."""

from __future__ import annotations

import numpy as np
import pytest
import scanpy as sc

import tosica
from tosica.model import _mislabelled
from tosica.model._mislabelled import find_mislabelled
from tosica.module import Section
from tosica.pp._rows import Rows

LOGGED = Section(0, 765, None)
QUIET = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False}
KINDS = ["CD14+ Monocyte", "CD19+ B", "CD56+ NK"]


def spoilt(labels, share):
    """Labels of which a share is wrong, and which ones."""
    rng = np.random.default_rng(0)
    wrong = np.sort(rng.permutation(len(labels))[: round(share * len(labels))])
    labels = labels.copy()
    labels[wrong] = (labels[wrong] + rng.integers(1, 3, len(wrong))) % 3
    return labels, wrong


@pytest.fixture
def cells():
    """Log-normalised cells of three kinds."""
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    return adata[adata.obs["bulk_labels"].isin(KINDS)].copy()


@pytest.fixture
def codes(cells):
    return cells.obs["bulk_labels"].cat.codes.to_numpy().astype(np.int64)


def found_in(cells, labels):
    return find_mislabelled(Rows(cells), np.arange(cells.n_obs), labels, LOGGED)


def assert_found(found, wrong):
    assert len(set(found) & set(wrong)) > 0.5 * len(wrong)
    assert len(set(found) & set(wrong)) > 0.9 * len(found)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3])
def test_wrong_labels_are_found(cells, codes, share):
    labels, wrong = spoilt(codes, share)
    assert_found(found_in(cells, labels), wrong)


def test_right_labels_are_kept(cells, codes):
    assert found_in(cells, codes).size == 0


def test_a_few_are_taken_for_hard_cells(cells, codes):
    labels, wrong = spoilt(codes, 0.03)
    assert len(wrong) > 5
    assert found_in(cells, labels).size == 0


def test_positions_are_those_of_the_cells(cells, codes):
    """In a reference of which only some cells have labels."""
    labels, wrong = spoilt(codes, 0.2)
    some = np.arange(40, cells.n_obs)
    found = find_mislabelled(Rows(cells), some, labels[40:], LOGGED)
    assert_found(found, wrong[wrong >= 40])


def test_cells_that_are_not_drawn_are_judged_too(cells, codes, monkeypatch):
    monkeypatch.setattr(_mislabelled, "_MOST_CELLS", 150)
    monkeypatch.setattr(_mislabelled, "_BLOCK", 7)
    labels, wrong = spoilt(codes, 0.2)
    found = found_in(cells, labels)
    assert_found(found, wrong)
    drawn = _mislabelled.draw(labels, 150)
    assert set(found) - set(drawn)


def test_every_label_keeps_two_cells(cells, codes):
    """Of a label that is given to cells of other kinds only, none is left out."""
    labels, _ = spoilt(codes, 0.2)
    labels[:6] = 3
    found = found_in(cells, labels)
    assert found.size
    assert not set(found) & set(range(6))


def test_rare_labels_are_not_judged(cells, codes):
    labels, _ = spoilt(codes, 0.2)
    labels[:4] = 3
    found = found_in(cells, labels)
    assert found.size
    assert not set(found) & set(range(4))


def test_folds_have_equal_parts_of_each_label():
    labels = np.repeat([0, 1, 2], [50, 20, 2])
    fold = _mislabelled._deal(labels)
    for label, most in enumerate([10, 4, 1]):
        assert np.bincount(fold[labels == label], minlength=5).max() == most


@pytest.fixture
def noisy(cells, codes):
    """The cells, of which a fifth has a wrong label in ``obs["given"]``."""
    labels, _ = spoilt(codes, 0.2)
    cells.obs["given"] = np.array(KINDS)[labels]
    cells.obs["truth"] = np.array(KINDS)[codes]
    return cells


def test_training_leaves_them_out_and_says_so(noisy, tmp_path):
    held = np.arange(noisy.n_obs) % 3 == 0
    reference, query = noisy[~held].copy(), noisy[held].copy()
    tosica.pp.build_mask(reference, max_gene_sets=30)
    tosica.TOSICA.setup_anndata(reference, labels_key="given")
    before = reference.obs.copy()
    model = tosica.TOSICA(reference, embed_dim=16)
    assert model.mislabelled_indices is None
    with pytest.warns(UserWarning, match=r"labels of the reference \(\d+%\) are contradicted by"):
        model.train(**QUIET | {"max_epochs": 20})
    found = model.mislabelled_indices
    assert_found(found, np.flatnonzero(reference.obs["given"] != reference.obs["truth"]))
    parts = [model.train_indices, model.validation_indices]
    assert not set(found) & set(np.concatenate(parts))
    assert sum(map(len, parts)) + len(found) == reference.n_obs
    assert reference.obs.equals(before)
    assert (model.predict(query) == query.obs["truth"]).mean() > 0.9
    model.save(tmp_path / "model")
    loaded = tosica.TOSICA.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.mislabelled_indices, found)


def test_not_if_labels_are_not_to_be_checked(noisy):
    tosica.pp.build_mask(noisy, max_gene_sets=30)
    tosica.TOSICA.setup_anndata(noisy, labels_key="given")
    model = tosica.TOSICA(noisy, embed_dim=16)
    model.train(**QUIET, check_labels=False)
    assert model.mislabelled_indices.size == 0
    taught = np.r_[model.train_indices, model.validation_indices]
    assert len(taught) == noisy.n_obs
