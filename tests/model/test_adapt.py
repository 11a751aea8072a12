"""TOSICA.adapt: what a model learns from a query without labels, and when it does not."""

import anndata as ad
import numpy as np
import pytest
import scanpy as sc
import scipy.sparse as sp
import scvi
import torch
from numpy.testing import assert_array_equal

import tosica
from tosica import TOSICA, linear
from tosica.model import _adapt

N_DRAWS = _adapt._N_DRAWS


def as_of_another_batch(adata, seed=0):
    """Let each gene be captured better or worse than before."""
    shifted = adata.copy()
    captured = np.random.default_rng(seed).uniform(0.05, 1, adata.n_vars)
    counts = sp.csr_matrix(shifted.X).expm1()
    captured_counts = sp.csr_matrix(counts.multiply(captured))
    totals = np.asarray(counts.sum(1) / captured_counts.sum(1))
    shifted.X = sp.csr_matrix(captured_counts.multiply(totals)).log1p()
    return shifted


@pytest.fixture(scope="module", autouse=True)
def _short_training():
    """Train the network with an eighth of the draws, which is enough for what is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_adapt, "_N_DRAWS", 1_000)
        yield


@pytest.fixture(scope="module")
def other_batch(_pbmc):
    return as_of_another_batch(_pbmc[1])


@pytest.fixture(scope="module")
def adapted(pbmc_model, other_batch):
    scvi.settings.seed = 0
    return pbmc_model.adapt(other_batch)


def accuracy(model, query, labels_key="bulk_labels"):
    return float((model.predict(query) == query.obs[labels_key].astype(str)).mean())


# --------------------------------------------------------------------------- what is learnt


@pytest.mark.slow
@pytest.mark.data
def test_labels_of_another_condition_become_better(shared, monkeypatch):
    monkeypatch.setattr(_adapt, "_N_DRAWS", N_DRAWS)
    adata = sc.read_h5ad(shared / "kang_pbmc.h5ad")
    is_treated = (adata.obs["group_id"] == "stim").to_numpy()
    reference = adata[is_treated].copy()
    query = adata[~is_treated].copy()
    tosica.pp.build_mask(reference)
    TOSICA.setup_anndata(reference, labels_key="cluster_id")
    model = TOSICA(reference)
    model.train(accelerator="cpu")
    adapted = model.adapt(query)
    assert (
        accuracy(adapted, query, "cluster_id")
        > accuracy(model, query, "cluster_id") + 0.02
    )


@pytest.mark.parametrize("seed", [0, 4])
def test_labels_of_another_batch_become_better(toy_model, seed):
    rng = np.random.default_rng(seed)
    kind = np.arange(240) % 3
    rate = np.where(np.arange(30) // 8 == kind[:, None], 4, 0.7) * np.exp(
        rng.normal(0, 1.5, 30)
    )
    query = ad.AnnData(sp.csr_matrix(rng.poisson(rate).astype(np.float32)))
    query.var_names = toy_model.get_var_names()
    query.obs["kind"] = np.array(["a", "b", "c"])[kind]
    assert (
        accuracy(toy_model.adapt(query), query, "kind")
        > accuracy(toy_model, query, "kind") + 0.05
    )


def test_the_model_and_the_query_stay_as_they_were(pbmc_model, other_batch, contents):
    original = contents(other_batch)
    fingerprint = pbmc_model.fingerprint
    pbmc_model.adapt(other_batch)
    assert pbmc_model.fingerprint == fingerprint
    assert pbmc_model.training_.adaptation is None
    adapted_contents = contents(other_batch)
    assert original.keys() == adapted_contents.keys()


@pytest.mark.slow
def test_the_same_call_gives_the_same_model(adapted, pbmc_model, other_batch):
    torch.manual_seed(1)
    assert pbmc_model.adapt(other_batch).fingerprint == adapted.fingerprint


def test_repr_says_what_the_model_was_adapted_to(adapted):
    n_taught = adapted.training_.adaptation.n_teachers
    assert f"adapted to 175 cells: 2 rounds, {n_taught} cells taught" in repr(adapted)
    assert 50 < n_taught < 175


def test_saved_and_loaded(adapted, other_batch, save_and_load):
    loaded = save_and_load(adapted)
    assert loaded.fingerprint == adapted.fingerprint
    assert str(loaded.training_.adaptation) == str(adapted.training_.adaptation)
    assert loaded.training_.regression == adapted.training_.regression
    expected = adapted.infer(other_batch)
    actual = loaded.infer(other_batch)
    assert_array_equal(actual.probabilities, expected.probabilities)
    assert_array_equal(actual.novelty, expected.novelty)


def test_novelty_asks_how_sure_the_model_was_before(adapted, pbmc_model, other_batch):
    unadapted = pbmc_model.infer(other_batch)
    inferred = adapted.infer(other_batch)
    assert np.corrcoef(unadapted.novelty, inferred.novelty)[0, 1] > 0.98
    assert np.corrcoef(unadapted.probability, inferred.probability)[0, 1] < 0.98


def test_annotate_keeps_how_sure_the_model_was_before(adapted, pbmc_model, other_batch):
    query = other_batch.copy()
    pbmc_model.annotate(query)
    assert "tosica_probability_before" not in query.obs
    before = query.obs["tosica_probability"].copy()
    adapted.annotate(query)
    kept = query.obs["tosica_probability_before"]
    # It is the linear branch's, which decides most labels.
    assert np.corrcoef(kept, before)[0, 1] > 0.9
    assert np.corrcoef(kept, query.obs["tosica_probability"])[0, 1] < 0.98
    pbmc_model.annotate(query)
    assert "tosica_probability_before" not in query.obs


def test_no_surer_than_right_about_held_out_cells(adapted, pbmc_model, other_batch):
    mean_probability, adapted_mean = (
        model.infer(other_batch).probability.mean() for model in (pbmc_model, adapted)
    )
    assert adapted_mean < max(adapted.held_out_accuracy_, mean_probability) + 0.02


@pytest.mark.slow
def test_genes_that_the_query_lacks(pbmc_model, other_batch):
    fewer = other_batch[:, 150:].copy()
    with pytest.warns(UserWarning, match="the network sees the missing ones as zero"):
        adapted = pbmc_model.adapt(fewer)
    with pytest.warns(UserWarning, match="the network sees the missing ones as zero"):
        assert accuracy(adapted, fewer) > 0.5


@pytest.mark.slow
def test_of_many_cells_a_sample_teaches(pbmc_model, other_batch, monkeypatch):
    monkeypatch.setattr(_adapt, "MAX_CELLS", 120)
    adapted = pbmc_model.adapt(other_batch)
    assert adapted.training_.adaptation.n_cells == 120


# --------------------------------------------------------------------------- annotate(adapt=True)


@pytest.fixture(scope="module")
def annotated(pbmc_model, other_batch):
    """The query, annotated with adapt=True, and the adapted model."""
    query = other_batch.copy()
    scvi.settings.seed = 0
    pbmc_model.annotate(query, adapt=True)
    return query, pbmc_model.adapted_


def test_annotate_adapts_first(adapted, annotated, other_batch):
    query, model = annotated
    assert query.uns["tosica"]["model"] == adapted.fingerprint == model.fingerprint
    assert query.uns["tosica"]["adapted"].startswith("adapted to 175 cells")
    assert_array_equal(
        query.obs["tosica_prediction"].astype(str), adapted.predict(other_batch)
    )


def test_an_adapted_model_says_what_it_is_for(adapted, other_batch, caplog):
    adapted.annotate(other_batch, copy=True)
    assert (
        "for cells of another batch, take the model that it was made from"
        in caplog.text
    )


def test_annotate_says_that_a_query_is_of_another_batch(
    pbmc_model, other_batch, pbmc_query, caplog
):
    pbmc_model.annotate(pbmc_query)
    assert "annotate(query, adapt=True)" not in caplog.text
    query = other_batch.copy()
    pbmc_model.annotate(query)
    assert "annotate(query, adapt=True)" in caplog.text
    assert (
        query.uns["tosica"]["batch_signal"]
        > 0.5
        > pbmc_query.uns["tosica"]["batch_signal"]
    )
    assert "another batch" in set(tosica.tl.check(query)["check"])


# --------------------------------------------------------------------------- what can be done with it


def test_cells_of_another_tissue_are_told_by_an_adapted_model(
    adapted, other_batch, caplog
):
    query, foreign = other_batch.copy(), other_batch.copy()
    adapted.annotate(query)
    assert "look at markers before you trust the labels" not in caplog.text
    assert "batch_signal" not in query.uns["tosica"]
    foreign.var_names = np.random.default_rng(0).permutation(foreign.var_names)
    adapted.annotate(foreign)
    assert "look at markers before you trust the labels" in caplog.text


def test_labels_can_be_left_out_afterwards(adapted, other_batch):
    four_labels = adapted.labels[2:6]
    inferred = adapted.subset(four_labels).infer(other_batch)
    assert inferred.probabilities.shape == (175, 4)
    assert np.isfinite(inferred.novelty).all()


@pytest.mark.slow
def test_labels_can_be_added_afterwards(adapted, other_batch):
    query = other_batch.copy()
    is_new = (query.obs["bulk_labels"] == "CD34+").to_numpy()
    query.obs["known"] = np.where(is_new, "progenitor", "not known")
    grown = TOSICA.load_query_data(query, adapted, "known", "not known")
    grown.fit_new_labels()
    assert str(grown.training_.adaptation) == str(adapted.training_.adaptation)
    assert np.isfinite(grown.infer(query).novelty).all()


# --------------------------------------------------------------------------- when it does not learn


def test_a_query_of_the_same_batch_teaches_nothing(pbmc_model, pbmc_query, caplog):
    adapted = pbmc_model.adapt(pbmc_query)
    assert "no more than two samples of the same cells" in caplog.text
    assert adapted.fingerprint == pbmc_model.fingerprint
    assert adapted.training_.adaptation.n_rounds == 0
    # Another query may.
    assert (
        adapted.adapt(as_of_another_batch(pbmc_query)).training_.adaptation.n_rounds
        == 2
    )


@pytest.mark.parametrize("cells", ["one type", "four cells", "one cell"])
def test_few_cells_teach_nothing(pbmc_model, other_batch, cells, caplog):
    of_type = other_batch.obs["tosica_type"] = pbmc_model.predict(other_batch)
    rows = {
        "one type": of_type == "Dendritic",
        "four cells": np.arange(175) < 4,
        "one cell": np.arange(175) < 1,
    }[cells]
    query = other_batch[rows].copy()
    adapted = pbmc_model.adapt(query)
    assert adapted.fingerprint == pbmc_model.fingerprint
    assert "fewer than two labels have 5 cells" in caplog.text


def test_labels_at_chance_teach_nothing(toy, toy_query, caplog):
    toy.obs["kind"] = np.random.default_rng(0).permutation(toy.obs["kind"])
    TOSICA.setup_anndata(toy, labels_key="kind")
    model = TOSICA(toy, embed_dim=8, n_heads=2)
    model.train(
        max_epochs=1,
        train_size=0.5,
        check_labels=False,
        accelerator="cpu",
    )
    truth = model.training_.held_out_codes[0]
    model.training_.held_out_codes = np.stack([truth, (truth + 1) % 3])
    model.adapt(toy_query)
    assert "right no more often than the commonest label" in caplog.text


# --------------------------------------------------------------------------- wrong input


def test_adapted_twice(adapted, other_batch):
    with pytest.raises(
        ValueError, match=r"The model is adapted to 175 cells.* call adapt of the model"
    ):
        adapted.adapt(other_batch)


def test_the_reference_is_no_query(pbmc_model):
    with pytest.raises(
        ValueError, match="adata is the reference that the model was trained on"
    ):
        pbmc_model.adapt(pbmc_model.adata)


def test_a_copy_of_the_reference_teaches_nothing(pbmc_model, pbmc_ref, caplog):
    del pbmc_ref.varm["tosica_mask"], pbmc_ref.uns["tosica_mask"]
    adapted = pbmc_model.adapt(pbmc_ref)
    assert "adapt: the model stays as it is, since the query differs" in caplog.text
    assert str(adapted.training_.adaptation).endswith("and left as it was")


def test_a_model_without_branch(network_model, toy_query):
    with pytest.raises(ValueError, match="no linear branch"):
        network_model.adapt(toy_query)


def test_a_model_of_several_modalities(cite_model, cite_query):
    with pytest.raises(
        TypeError, match="A model of a MuData cannot learn from a query"
    ):
        cite_model.adapt(cite_query.mod[next(iter(cite_query.mod))])


def test_ctrl_c_leaves_the_model(pbmc_model, other_batch, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    fingerprint = pbmc_model.fingerprint
    monkeypatch.setattr(linear._self_training, "fit_classifier", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pbmc_model.adapt(other_batch)
    assert pbmc_model.fingerprint == fingerprint


def test_a_subset_does_not_learn_from_its_reference(pbmc_model):
    labels = pbmc_model.labels[:3]
    with pytest.raises(ValueError, match="is the reference that the model was trained"):
        pbmc_model.annotate(labels=labels, adapt=True, copy=True)
