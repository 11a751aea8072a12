"""The direct path: a line from genes to labels beside the network."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import scvi
import torch

from tosica import TOSICA
from tosica.model._direct import fit_direct
from tosica.model._line import fit_line, lift
from tosica.model._line_temperature import line_temperature
from tosica.module._normalize import Section, normalize
from tosica.pp._rows import Rows

COUNTS = Section(0, 30, "log1p", 1e4)


def codes(adata):
    return adata.obs["kind"].cat.codes.to_numpy().astype(np.int64)


def test_is_four_times_a_line(toy):
    # Three cells of one label, which is raised for it: by the line, and as the network's score.
    cells = np.setdiff1d(np.arange(20, 90), np.flatnonzero(codes(toy) == 2)[10:-3])
    labels = codes(toy)[cells]
    x = normalize(torch.from_numpy(toy.X.toarray()), (COUNTS,)).numpy()
    found = fit_direct(Rows(toy), cells, labels, 3, COUNTS, temperature=0.8)
    weights, biases = fit_line(sp.csr_matrix(x[cells]), labels)
    raised = lift(labels)
    expected = 5 * weights, 5 * (biases + raised) + raised
    for values, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, wanted - wanted.mean(0), rtol=1e-2, atol=0.02)


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_dense_or_sparse_whole_numbers_or_not(toy, dtype):
    expected = fit_direct(Rows(toy), np.arange(90), codes(toy), 3, COUNTS)
    toy.X = toy.X.toarray().astype(dtype)
    found = fit_direct(Rows(toy), np.arange(90), codes(toy), 3, COUNTS)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


def test_a_gene_that_no_cell_expresses_counts_nothing(toy):
    x = toy.X.toarray()
    x[:, 5] = 0
    toy.X = sp.csr_matrix(x)
    weights, _ = fit_direct(Rows(toy), np.arange(90), codes(toy), 3, COUNTS)
    assert (weights[:, 5] == 0).all()


def test_two_labels(toy):
    two = toy[toy.obs["kind"] != "c"].copy()
    two.obs["kind"] = two.obs["kind"].cat.remove_unused_categories()
    weights, biases = fit_direct(Rows(two), np.arange(two.n_obs), codes(two), 2, COUNTS)
    assert weights.shape == (2, 30)
    np.testing.assert_allclose(weights.sum(0), 0, atol=1e-12)
    x = normalize(torch.from_numpy(two.X.toarray()), (COUNTS,)).numpy()
    called = (x @ weights.T + biases).argmax(1)
    assert (called == codes(two)).mean() > 0.95


def test_a_label_without_cells_is_never_called(toy):
    some = np.flatnonzero(codes(toy) != 1)
    weights, biases = fit_direct(Rows(toy), some, codes(toy)[some], 3, COUNTS)
    x = normalize(torch.from_numpy(toy.X.toarray()), (COUNTS,)).numpy()
    called = (x @ weights.T + biases).argmax(1)
    assert (weights[1] == 0).all()
    assert (called[some] == codes(toy)[some]).mean() > 0.95
    assert 1 not in called


def test_adds_to_what_the_network_says(toy, toy_query, train):
    both, alone = train(toy.copy()), train(toy.copy(), direct=False)
    # The network learns the same with and without it.
    for name, weights in alone.module.named_parameters():
        assert torch.equal(weights, dict(both.module.named_parameters())[name])
    x = torch.from_numpy(toy_query.X.toarray())
    x = normalize(x, both.module.sections)
    with torch.no_grad():
        logits = both.module.annotate(x, attention=False).logits
        network = alone.module.annotate(x, attention=False).logits
    line = x.numpy() @ both.get_direct_weights().to_numpy() + both.module.direct_bias.numpy()
    np.testing.assert_allclose(logits - network, line, atol=1e-4)
    expected = torch.softmax(logits / both.module.temperature, 1)
    np.testing.assert_allclose(both.predict(toy_query, soft=True), expected, atol=1e-5)
    # Attention is the network's.
    np.testing.assert_array_equal(both.get_attention(toy_query), alone.get_attention(toy_query))


def test_the_last_fit_sees_all_cells(toy, train):
    cells = np.arange(90)
    temperature = line_temperature(Rows(toy), cells, codes(toy), COUNTS)
    assert temperature != pytest.approx(1, abs=0.1)
    weights, _ = fit_direct(Rows(toy), cells, codes(toy), 3, COUNTS, temperature=temperature)
    model = train(toy.copy())
    np.testing.assert_allclose(model.get_direct_weights().T, weights, rtol=1e-3, atol=1e-4)
    before = train(toy.copy(), refit=False)
    seen = before.train_indices
    labels = codes(toy)[seen]
    weights, _ = fit_direct(Rows(toy), seen, labels, 3, COUNTS, temperature=temperature)
    np.testing.assert_allclose(before.get_direct_weights().T, weights, rtol=1e-3, atol=1e-4)


def test_cells_without_a_label_teach_nothing(toy, train):
    some = toy.copy()
    some.obs["kind"] = some.obs["kind"].cat.add_categories("?")
    some.obs.loc[some.obs_names[::5], "kind"] = "?"
    model = train(some, setup={"unlabeled_category": "?"})
    labelled = np.flatnonzero(some.obs["kind"] != "?")
    labels = codes(toy)[labelled]
    temperature = line_temperature(Rows(some), labelled, labels, COUNTS)
    weights, _ = fit_direct(Rows(some), labelled, labels, 3, COUNTS, temperature=temperature)
    np.testing.assert_allclose(model.get_direct_weights().T, weights, rtol=1e-3, atol=1e-4)


def test_validation_is_the_networks_alone(toy, train):
    both, alone = train(toy.copy()), train(toy.copy(), direct=False)
    assert both.history["validation_loss"].equals(alone.history["validation_loss"])
    settings = {"max_epochs": 2, "accelerator": "cpu", "enable_progress_bar": False}
    for model in (both, alone):
        scvi.settings.seed = 1
        model.train(**settings)
    assert both.history["validation_loss"].equals(alone.history["validation_loss"])


@pytest.mark.parametrize("wrong", [{"plan_kwargs": {"gene_dropout": 1}}, {"no_such_option": 1}])
def test_a_refused_training_leaves_a_trained_model_as_it_was(toy, toy_query, train, wrong):
    model = train(toy)
    before, fingerprint = model.predict(toy_query, soft=True), model.fingerprint
    with pytest.raises((TypeError, ValueError)):
        model.train(max_epochs=1, accelerator="cpu", enable_progress_bar=False, **wrong)
    assert model.fingerprint == fingerprint
    assert model.predict(toy_query, soft=True).equals(before)
    assert model.predict_set(toy_query, coverage=0.5).shape == (toy_query.n_obs, 3)


def test_saved_with_the_model(toy_model, toy_query, tmp_path):
    toy_model.save(tmp_path / "model")
    loaded = TOSICA.load(tmp_path / "model")
    assert loaded.get_direct_weights().equals(toy_model.get_direct_weights())
    assert "direct path" in repr(loaded)


def test_models_saved_before_have_none(toy, toy_query, train, tmp_path):
    model = train(toy, direct=False)
    model.save(tmp_path / "model")
    file = tmp_path / "model" / "model.pt"
    contents = torch.load(file, weights_only=True)
    del contents["attr_dict"]["init_params_"]["non_kwargs"]["direct"]
    torch.save(contents, file)
    loaded = TOSICA.load(tmp_path / "model")
    assert loaded.predict(toy_query, soft=True).equals(model.predict(toy_query, soft=True))


@pytest.mark.filterwarnings("ignore:The query has only")
def test_models_saved_before_others_stood_in_count_missing_genes_as_zero(
    toy, toy_query, train, tmp_path
):
    model = train(toy)
    model.save(tmp_path / "model")
    file = tmp_path / "model" / "model.pt"
    contents = torch.load(file, weights_only=True)
    for name in ("gene_mean", "gene_loadings"):
        del contents["model_state_dict"][name]
    torch.save(contents, file)
    loaded = TOSICA.load(tmp_path / "model", adata=toy)
    assert loaded.predict(toy_query, soft=True).equals(model.predict(toy_query, soft=True))
    zeroed = toy_query.copy()
    zeroed.X = zeroed.X.toarray()
    zeroed.X[:, :3] = 0
    np.testing.assert_allclose(
        loaded.predict(toy_query[:, 3:].copy(), soft=True),
        loaded.predict(zeroed, soft=True),
        atol=1e-6,
    )
    loaded.train(max_epochs=1, accelerator="cpu", enable_progress_bar=False)
    assert loaded.module.gene_loadings.shape == model.module.gene_loadings.shape


def test_what_stands_in_is_saved(toy, toy_query, train, tmp_path):
    model = train(toy)
    assert model.module.gene_loadings.any()
    model.save(tmp_path / "model")
    loaded = TOSICA.load(tmp_path / "model")
    lacking = toy_query[:, 1:].copy()
    assert loaded.predict(lacking, soft=True).equals(model.predict(lacking, soft=True))


def test_no_weights_without_it(toy, train):
    model = train(toy, max_epochs=1, direct=False)
    assert "direct path" not in repr(model)
    with pytest.raises(ValueError, match="made with direct=False, of a MuData or by the original"):
        model.get_direct_weights()
