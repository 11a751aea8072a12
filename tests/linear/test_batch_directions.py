"""Directions along which batches differ, and models that correct for them."""

from __future__ import annotations

import logging

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
import scvi
import torch

import tosica
from tosica.data import CellMatrix, ModalitySlice
from tosica.linear import LabeledRows, _logistic, find_batch_directions
from tosica.model import _linear_fit

LOGGED = ModalitySlice(0, 20, None)
LABELS = np.repeat([0, 1, 2], [300, 300, 150])
BATCHES = np.concatenate(
    [np.repeat([0, 1, 2], 100), np.repeat([0, 1], 150), np.repeat([0], 150)]
)


def expression(strength=1.0, noise=0.0):
    """Labels differ in genes 0 to 2, batches in genes 10 to 12."""
    rng = np.random.default_rng(0)
    x = 2 + 2 * np.eye(3, 20)[LABELS] + strength * np.eye(3, 20, 10)[BATCHES]
    return ad.AnnData(sp.csr_matrix(x + noise * rng.random(x.shape), dtype=np.float32))


def find(adata, labels=LABELS, batches=BATCHES, **kwargs):
    rows = CellMatrix(adata)
    return find_batch_directions(
        LabeledRows(rows, np.arange(adata.n_obs), labels, (LOGGED,)), batches, **kwargs
    )


def test_directions_are_the_components_of_the_shifts():
    found = find(expression())
    # Of label 0 in three batches of 100 cells, of label 1 in two of 150; label 2 has one. Means of
    # few cells count less.
    three, two = np.eye(3, 20, 10) - np.eye(3, 20, 10).mean(0), np.eye(2, 20, 10)
    three, two = three * (100 / 110) ** 0.5, (two - two.mean(0)) * (150 / 160) ** 0.5
    rows = np.concatenate([three, two])
    np.testing.assert_allclose(found.T @ found, rows.T @ rows / len(rows), atol=1e-6)
    assert found.shape == (2, 20)


def test_a_mean_takes_three_cells():
    batches = np.zeros_like(BATCHES)
    batches[:2] = 1
    assert find(expression(), batches=batches) is None
    assert find(expression(), batches=LABELS) is None
    assert find(expression(), batches=batches, min_cells=2) is not None
    batches[2] = 1
    assert find(expression(), batches=batches) is not None


def test_differences_by_chance_are_no_direction():
    """Some of 30 batches always look different, but not more than permuted batches do."""
    batches, one_label = np.arange(150) % 30, np.zeros(150, int)

    def found_in(x):
        rows = CellMatrix(ad.AnnData(x))
        return find_batch_directions(
            LabeledRows(rows, np.arange(150), one_label, (ModalitySlice(0, 60, None),)),
            batches,
        )

    drawn = [
        np.random.default_rng(seed).random((150, 60)).astype(np.float32)
        for seed in range(10)
    ]
    assert np.mean([len(found_in(x)) for x in drawn]) < 0.3
    # A batch that is different is found among them.
    x = drawn[-1]
    x[batches == 3, :20] += 0.5
    found = found_in(x)
    assert len(found) == 1
    assert np.abs(found[0, :20]).mean() > 3 * np.abs(found[0, 20:]).mean()


@pytest.fixture(scope="module")
def confounded():
    """Cells of two batches, of which the second lacks a type; and this type's cells in it.

    In the second batch a fifth of the genes is up, and no cell in which they are is of that type,
    which is not easy to tell from the others.
    """
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    kinds = [
        "CD8+ Cytotoxic T",
        "CD4+/CD25 T Reg",
        "CD56+ NK",
        "CD8+/CD45RA+ Naive Cytotoxic",
    ]
    adata = adata[adata.obs["bulk_labels"].isin(kinds)].copy()
    rng = np.random.default_rng(1)
    batch = rng.integers(0, 2, adata.n_obs)
    effect = rng.random(adata.n_vars) < 0.2
    adata.X = sp.csr_matrix(
        adata.X.toarray() + batch[:, None] * effect, dtype=np.float32
    )
    adata.obs = pd.DataFrame(
        {
            "kind": adata.obs["bulk_labels"].astype(str),
            "run": [f"run{i}" for i in batch],
        },
        index=adata.obs_names,
    )
    new = ((adata.obs["kind"] == kinds[0]) & (batch == 1)).to_numpy()
    reference, query = adata[~new].copy(), adata[new].copy()
    tosica.pp.build_mask(reference, max_gene_sets=40)
    return reference, query


def trained(reference, batch_key="run", *, linear=True, seed=0, **kwargs):
    reference = reference.copy()
    tosica.TOSICA.setup_anndata(reference, labels_key="kind", batch_key=batch_key)
    scvi.settings.seed = seed
    model = tosica.TOSICA(reference, embed_dim=24, linear=linear)
    settings = {"max_epochs": 20, "accelerator": "cpu", "enable_progress_bar": False}
    model.train(**settings | {"plan_kwargs": {"lr": 3e-3}} | kwargs)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("linear", [False, True])
def test_types_are_found_in_batches_where_the_reference_lacks_them(
    confounded, linear, monkeypatch
):
    reference, query = confounded
    # Within-class directions, which correct for unknown batches, have tests of their own.
    monkeypatch.setattr(
        _logistic, "within_class_directions", lambda x, *_: np.zeros((0, x.shape[1]))
    )
    ways = {"correct_batches": False}, {}
    of = [
        [
            trained(reference, linear=linear, seed=seed, **way).predict(query)
            for way in ways
        ]
        for seed in range(4)
    ]
    right = (np.asarray(of) == "CD8+ Cytotoxic T").mean((0, 2))
    assert right[0] < 0.3
    assert right[1] > right[0] + 0.1


def test_all_pairs_of_label_and_batch_are_used():
    """With 4 000 pairs, the usual subsample would have less than three cells of each."""
    labels, batches = np.divmod(np.repeat(np.arange(4000), 6), 100)
    rng = np.random.default_rng(0)
    x = rng.random((len(labels), 8), dtype=np.float32)
    x[:, 2] += rng.normal(0, 3, 100).astype(np.float32)[batches]
    cells = np.arange(len(labels))
    rows = LabeledRows(
        CellMatrix(ad.AnnData(x)), cells, labels, (ModalitySlice(0, 8, None),)
    )
    found = find_batch_directions(rows, batches)
    assert len(found) == 1
    assert np.abs(found[0]).argmax() == 2


def test_the_network_and_the_regressions_get_the_directions(confounded, monkeypatch):
    """In training and in the refit; the network gets them six times as strong."""
    shown, fitted = [], []
    inference, fit = (
        tosica.module.TOSICAModule.inference,
        _linear_fit.linear.fit_linear_classifier,
    )

    def look(self, x, *args, batch_directions=None, **kwargs):
        if self.training:
            shown.append(batch_directions)
        return inference(self, x, *args, batch_directions=batch_directions, **kwargs)

    def keep(*args, **options):
        fitted.append(options)
        return fit(*args, **options)

    monkeypatch.setattr(tosica.module.TOSICAModule, "inference", look)
    monkeypatch.setattr(_linear_fit.linear, "fit_linear_classifier", keep)
    reference, _ = confounded
    trained(reference, max_epochs=2)
    assert len(shown) > 3
    assert len(fitted) == 2
    for directions in shown:
        np.testing.assert_allclose(
            directions.numpy(), 6 * fitted[0]["batch_directions"], rtol=1e-5
        )
    assert fitted[1]["batch_directions"] is fitted[0]["batch_directions"]
    assert fitted[1]["temperature"] == fitted[0]["temperature"] != 1
    shown.clear(), fitted.clear()
    trained(reference, max_epochs=2, correct_batches=False)
    assert not any(directions is not None for directions in shown)
    assert fitted[0]["batch_directions"] is None


def test_cells_are_shifted_at_random_and_not_below_zero(toy_model):
    directions = torch.zeros(2, 30)
    directions[0, 3], directions[1, 5] = 2.0, 0.5
    cells = torch.full((4000, 30), 1.0)
    with torch.inference_mode():
        x = toy_model.module.inference(cells, batch_directions=directions)["x"]
    untouched = torch.ones(30, dtype=bool)
    untouched[[3, 5]] = False
    assert (x[:, untouched] == 1).all()
    assert x.min() == 0
    assert x[:, 5].std() == pytest.approx(0.5, rel=0.05)
    # Where a normal number is below minus a half.
    assert (x[:, 3] == 0).float().mean() == pytest.approx(0.31, abs=0.03)
    assert abs(np.corrcoef(x[:, 3], x[:, 5])[0, 1]) < 0.1


def test_batches_by_chance_change_nothing(confounded, caplog):
    reference, query = confounded
    reference = reference.copy()
    reference.obs["run"] = np.random.default_rng(0).permutation(reference.obs["run"])
    with caplog.at_level(logging.INFO, logger="tosica"):
        by_chance = trained(reference, max_epochs=2)
    assert "train: the batches differ no more than by chance" in caplog.text
    off = trained(reference, correct_batches=False, max_epochs=2)
    expected = off.predict(query, soft=True)
    pd.testing.assert_frame_equal(by_chance.predict(query, soft=True), expected)


def test_a_loaded_model_corrects_for_the_batches_of_its_new_reference(
    confounded, tmp_path, caplog
):
    reference, _ = confounded
    # Names of batches that the saved model does not know.
    model = trained(reference, max_epochs=1, linear=False)
    model.save(tmp_path / "model")
    other = reference.copy()
    other.obs["run"] = "new " + other.obs["run"].astype(str)
    loaded = tosica.TOSICA.load(tmp_path / "model", adata=other)
    with caplog.at_level(logging.INFO, logger="tosica"):
        loaded.train(max_epochs=1, accelerator="cpu", enable_progress_bar=False)
    assert "train: the batches differ in 1 direction of expression" in caplog.text
