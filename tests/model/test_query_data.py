"""Labels of a query that are added to a trained model."""

from __future__ import annotations

import copy
import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
import scvi
from anndata import AnnData

import tosica

if TYPE_CHECKING:
    from pathlib import Path

NEW, UNLABELED = "CD19+ B", "unlabeled"


@pytest.fixture(scope="module")
def base(_pbmc: tuple[AnnData, AnnData]) -> tosica.TOSICA:
    """A model of the real cells without B cells: not to be changed."""
    reference = _pbmc[0][_pbmc[0].obs["bulk_labels"] != NEW].copy()
    tosica.TOSICA.setup_anndata(reference, labels_key="bulk_labels")
    scvi.settings.seed = 0
    model = tosica.TOSICA(reference, embed_dim=16)
    model.train(max_epochs=8, accelerator="cpu", enable_progress_bar=False, plan_kwargs={"lr": 1e-2})
    return model


@pytest.fixture
def query(_pbmc: tuple[AnnData, AnnData]) -> AnnData:
    """B cells of the reference, 30 of them with their label, and every other cell of the query."""
    b_cells = _pbmc[0][_pbmc[0].obs["bulk_labels"] == NEW]
    others = _pbmc[1][::2]
    cells = AnnData(
        np.vstack([b_cells.X.toarray(), others.X.toarray()]),
        obs=pd.concat([b_cells.obs, others.obs])[["bulk_labels"]],
        var=others.var,
    )
    cells.obs["known"] = UNLABELED
    cells.obs.iloc[:30, 1] = NEW
    return cells


@pytest.fixture
def unseen(_pbmc: tuple[AnnData, AnnData]) -> AnnData:
    return _pbmc[1][1::2].copy()


@pytest.fixture
def grown(base, query) -> tosica.TOSICA:
    model = tosica.TOSICA.load_query_data(query, base, "known", UNLABELED)
    model.train()
    return model


def test_a_new_type_is_found_and_the_others_are_kept(base, grown, unseen):
    truth = unseen.obs["bulk_labels"].astype(str).to_numpy()
    before, after = (np.asarray(model.predict(unseen)) for model in (base, grown))
    is_new = truth == NEW
    assert (after[is_new] == NEW).mean() >= 0.8
    assert (after[~is_new] == before[~is_new]).mean() >= 0.97
    assert grown.labels == [*base.labels, NEW]
    assert grown.training_.label_counts == base.training_.label_counts | {NEW: 30}


def test_nothing_changes_before_the_new_label_is_fitted(base, query, unseen):
    model = tosica.TOSICA.load_query_data(query, base, "known", UNLABELED)
    before, after = (m.predict(unseen, soft=True) for m in (base, model))
    np.testing.assert_allclose(after[base.labels], before, atol=1e-6)
    assert after[NEW].max() < 1e-6
    pd.testing.assert_frame_equal(model.get_attention(unseen), base.get_attention(unseen))


def test_old_labels_keep_their_odds(base, grown):
    # Cells of the reference, whose expression is not clipped otherwise than before.
    before = base.predict(base.adata, soft=True)
    after = grown.predict(base.adata, soft=True)[base.labels]
    after = after.div(after.sum(axis=1), axis=0)
    np.testing.assert_allclose(after, before, atol=1e-5)


def test_the_model_that_is_extended_stays_as_it_is(base, query):
    fingerprint, labels = base.fingerprint, list(base.labels)
    cells = query.copy()
    tosica.TOSICA.load_query_data(query, base, "known", UNLABELED).train()
    assert base.fingerprint == fingerprint
    assert base.labels == labels
    assert NEW not in base.training_.label_counts
    np.testing.assert_array_equal(query.X, cells.X)
    pd.testing.assert_frame_equal(query.obs, cells.obs)
    assert not query.uns
    assert not query.varm


def test_saved_and_loaded(grown, unseen, tmp_path):
    grown.save(tmp_path / "grown")
    loaded = tosica.TOSICA.load(tmp_path / "grown")
    assert loaded.labels == grown.labels
    assert loaded.fingerprint == grown.fingerprint
    expected = grown.predict(unseen, soft=True)
    pd.testing.assert_frame_equal(loaded.predict(unseen, soft=True), expected)
    loaded.annotate(unseen)
    assert unseen.obs["tosica_prediction"].cat.categories[-1] == NEW
    *others, color = unseen.uns["tosica_prediction_colors"]
    assert color not in others
    # The new label is known now, and B cells are no longer unlike all labels.
    is_new = (unseen.obs["bulk_labels"] == NEW).to_numpy()
    assert (unseen.obs["tosica_novelty_pvalue"][is_new] > 0.05).mean() > 0.5


def test_from_a_saved_model(base, query, tmp_path, grown):
    base.save(tmp_path / "base")
    model = tosica.TOSICA.load_query_data(query, tmp_path / "base", "known", UNLABELED)
    model.train()
    assert model.fingerprint == grown.fingerprint


def test_no_cell_is_kept(grown, query):
    state = grown.module.state_dict().values()
    arrays = [*state, *grown.training_.novelty_statistics.to_dict().values()]
    rows = [array.shape[0] for array in arrays if array.ndim == 2 and query.n_vars in array.shape]
    assert max(rows) <= max(len(grown.labels), query.n_vars)
    assert grown.adata is None


def test_trained_twice_is_trained_once(grown):
    fingerprint = grown.fingerprint
    grown.train()
    assert grown.fingerprint == fingerprint
    assert len(grown.training_.novelty_statistics.labels) == len(grown.labels)


def test_extended_twice(grown, query, unseen):
    query.obs["known"] = UNLABELED
    query.obs.iloc[-40:, 1] = "other cells"
    more = tosica.TOSICA.load_query_data(query, grown, "known", UNLABELED)
    more.train()
    assert more.labels == [*grown.labels, "other cells"]
    truth = unseen.obs["bulk_labels"] == NEW
    assert (np.asarray(more.predict(unseen))[truth] == NEW).mean() > 0.5


def test_several_new_labels_and_labels_of_the_model(base, query):
    # Cells with labels of the model show what the query's batch differs in.
    query.obs["known"] = query.obs["bulk_labels"].astype(str)
    query.obs.iloc[:15, 1] = "B cells, first"
    query.obs.iloc[15:30, 1] = "B cells, second"
    query.obs.iloc[-5:, 1] = np.nan
    with_both = query[query.obs["known"] != NEW].copy()
    model = tosica.TOSICA.load_query_data(with_both, base, "known")
    model.train()
    assert model.labels[-2:] == ["B cells, first", "B cells, second"]
    found = np.asarray(model.predict(with_both))
    assert np.isin(found[:30], model.labels[-2:]).mean() > 0.8


def test_genes_that_the_query_lacks_get_no_weight(base, query):
    part = query[:, query.var_names[::-1][40:]].copy()
    with pytest.warns(UserWarning, match="^The query has only 725 of the model's 765 genes"):
        model = tosica.TOSICA.load_query_data(part, base, "known", UNLABELED)
    model.train()
    weights = model.get_linear_weights()[NEW].groupby("gene").sum()
    lacking = ~weights.index.isin(part.var_names)
    assert lacking.sum() == 40
    raw = model.module.linear.gene_weight[-1].numpy()
    assert not raw[~np.isin(model.get_var_names(), part.var_names)].any()
    assert raw[np.isin(model.get_var_names(), part.var_names)].any()


def test_the_new_label_is_explained(grown, unseen):
    cells = unseen[unseen.obs["bulk_labels"] == NEW].copy()
    grown.annotate(cells)
    tosica.tl.attribute(cells, grown)
    assert (cells.obs["tosica_prediction"] == NEW).mean() >= 0.8
    assert cells.obs["tosica_attribution_error"].max() < 0.1
    leading = grown.get_linear_weights()[NEW].groupby("gene").sum().nlargest(10).index
    assert {"CD79A", "CD79B", "HLA-DRA"} & set(leading)


def test_a_query_without_new_labels_changes_nothing(base, query, unseen):
    query.obs["known"] = UNLABELED
    with pytest.warns(UserWarning, match=r"has no label that the model lacks.*: call annotate, or"):
        model = tosica.TOSICA.load_query_data(query, base, "known", UNLABELED)
    model.train()
    assert model.labels == base.labels
    before, after = (m.predict(unseen, soft=True) for m in (base, model))
    np.testing.assert_allclose(after, before, atol=1e-6)


def test_other_spellings_are_said_and_not_merged(base, query):
    query.obs["known"] = query.obs["known"].replace({NEW: base.labels[0].lower()})
    sentence = re.escape(f"becomes a label beside {base.labels[0]!r}: if they are the same cell ")
    with pytest.warns(UserWarning, match=sentence):
        model = tosica.TOSICA.load_query_data(query, base, "known", UNLABELED)
    assert len(model.labels) == len(base.labels) + 1


def test_cells_of_new_labels_alone_are_warned_of(base, query):
    model = tosica.TOSICA.load_query_data(query[:30].copy(), base, "known", UNLABELED)
    with pytest.warns(UserWarning, match="^The query has cells of new labels only, so that diff"):
        model.train()


def test_train_takes_no_epochs(grown):
    fingerprint = grown.fingerprint
    with pytest.raises(TypeError, match="load_query_data takes no arguments"):
        grown.train(max_epochs=5)
    assert grown.fingerprint == fingerprint


def test_genes_of_another_kind_are_refused(base, query):
    query.var_names = [f"X{i}" for i in range(query.n_vars)]
    with pytest.raises(ValueError, match="genes"):
        tosica.TOSICA.load_query_data(query, base, "known", UNLABELED)


def test_models_that_cannot_be_extended(base, query, pbmc_ref):
    tosica.TOSICA.setup_anndata(pbmc_ref, labels_key="bulk_labels")
    untrained = tosica.TOSICA(pbmc_ref, embed_dim=16)
    with pytest.raises(ValueError, match=r"^The model is not trained: call model\.train\(\) first"):
        tosica.TOSICA.load_query_data(query, untrained, "known", UNLABELED)
    alone = tosica.TOSICA(pbmc_ref, embed_dim=16, linear=False)
    alone.is_trained_ = True
    with pytest.raises(ValueError, match=r"^The model has no linear branch, which new labels are"):
        tosica.TOSICA.load_query_data(query, alone, "known", UNLABELED)
    without = copy.copy(base)
    without.training_ = replace(base.training_, novelty_statistics=None)
    with pytest.raises(ValueError, match=r"^The model has no statistics of its reference, because"):
        tosica.TOSICA.load_query_data(query, without, "known", UNLABELED)


def test_names_that_a_model_cannot_hold(base, query):
    query.obs["known"] = query.obs["known"].replace({NEW: "Unknown"})
    with pytest.raises(ValueError, match="has a label 'Unknown', which annotate writes where it"):
        tosica.TOSICA.load_query_data(query, base, "known", UNLABELED)
    query.obs["known"] = query.obs["known"].replace({"Unknown": ""})
    with pytest.raises(ValueError, match="has a label '', which no column in a file can be called"):
        tosica.TOSICA.load_query_data(query, base, "known", UNLABELED)


def test_the_log_says_what_is_new(base, query, caplog):
    with caplog.at_level(logging.INFO, logger="tosica"):
        tosica.TOSICA.load_query_data(query, base, "known", UNLABELED).train()
    assert f"new labels: {NEW!r}; 765 of the query's 765 genes" in caplog.text
    assert f"train: added {NEW!r} (30 cells)" in caplog.text


def test_terms_and_unlabeled_cells_of_the_reference_stay(pbmc_ref, query, tmp_path: Path):
    pbmc_ref.obs["bulk_labels"] = pbmc_ref.obs["bulk_labels"].astype(str)
    pbmc_ref.obs.loc[pbmc_ref.obs["bulk_labels"] == NEW, "bulk_labels"] = UNLABELED
    tosica.TOSICA.setup_anndata(pbmc_ref, "bulk_labels", unlabeled_category=UNLABELED)
    model = tosica.TOSICA(pbmc_ref, embed_dim=8)
    model.train(max_epochs=1, accelerator="cpu", enable_progress_bar=False)
    model.ontology_term_ids_ = {"CD34+": "CL:0000037"}
    grown = tosica.TOSICA.load_query_data(query, model, "known", UNLABELED)
    grown.train()
    assert grown.labels == [*model.labels, NEW]
    assert grown.ontology_term_ids_ == model.ontology_term_ids_
    grown.save(tmp_path / "grown")
    assert tosica.TOSICA.load(tmp_path / "grown").labels == grown.labels
