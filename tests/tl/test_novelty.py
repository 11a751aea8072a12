"""Cells of a type that the reference lacks."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import scanpy as sc
import scipy.sparse as sp
import scvi
from sklearn.metrics import roc_auc_score

import tosica

NEW = "CD19+ B"


@pytest.fixture(scope="module")
def _without_b_cells():
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    by_label = np.argsort(adata.obs["bulk_labels"].cat.codes, kind="stable")
    query, reference = adata[by_label[::2]].copy(), adata[by_label[1::2]].copy()
    reference = reference[reference.obs["bulk_labels"] != NEW].copy()
    tosica.pp.build_mask(reference, max_gene_sets=30)
    tosica.TOSICA.setup_anndata(reference, labels_key="bulk_labels")
    scvi.settings.seed = 0
    model = tosica.TOSICA(reference, embed_dim=16)
    model.train(
        max_epochs=12, accelerator="cpu", enable_progress_bar=False, plan_kwargs={"lr": 1e-2}
    )
    model.annotate(query)
    return model, query


@pytest.fixture
def model(_without_b_cells):
    return _without_b_cells[0]


@pytest.fixture
def query(_without_b_cells):
    return _without_b_cells[1].copy()


def auroc(query) -> float:
    """How well the score separates the new type from the others."""
    return roc_auc_score(query.obs["bulk_labels"] == NEW, query.obs["tosica_novelty"])


def test_a_type_that_the_reference_lacks(model, query):
    tosica.tl.novelty(query, model)
    score = query.obs["tosica_novelty"]
    assert score.dtype == np.float32
    assert score.between(0, 1).all()
    assert auroc(query) > 0.95
    assert score[query.obs["bulk_labels"] == NEW].mean() > 0.85
    assert score[query.obs["bulk_labels"] != NEW].mean() < 0.6


def test_what_moves_all_types_alike_is_not_new(model, query):
    moved = query.copy()
    genes = np.random.default_rng(0).permutation(query.n_vars)[:150]
    dense = moved.X.toarray()
    dense[:, genes] += 1
    moved.X = sp.csr_matrix(dense)
    model.annotate(moved)
    tosica.tl.novelty(moved, model)
    assert auroc(moved) > 0.9
    known = moved.obs["bulk_labels"] != NEW
    assert moved.obs["tosica_novelty"][known].median() < 0.6


def test_nothing_new(model, query):
    known = query[query.obs["bulk_labels"] != NEW].copy()
    tosica.tl.novelty(known, model)
    assert (known.obs["tosica_novelty"] > 0.8).mean() < 0.05


@pytest.mark.parametrize("share", [0.9, 0.6])
def test_genes_that_the_query_lacks_are_not_new(model, query, share):
    genes = np.random.default_rng(0).permutation(query.n_vars)[: int(share * query.n_vars)]
    few = query[query.obs["bulk_labels"] != NEW, np.sort(genes)].copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The query has only")
        model.annotate(few)
        tosica.tl.novelty(few, model)
    score = few.obs["tosica_novelty"]
    assert score.median() == pytest.approx(0.5, abs=0.1)
    assert (score > 0.8).mean() < 0.05


@pytest.mark.parametrize(("query_step", "reference_step"), [(1, 5), (4, 1)])
def test_half_where_both_are_alike_whatever_their_sizes(model, query, query_step, reference_step):
    """Cells are sorted by label, so each step keeps the shares of the labels."""
    known = query[query.obs["bulk_labels"] != NEW][::query_step].copy()
    tosica.tl.novelty(known, model, model.adata[::reference_step].copy())
    assert known.obs["tosica_novelty"].mean() == pytest.approx(0.5, abs=0.05)


def test_one_score_a_cluster_whatever_the_order_of_cells(model, query):
    query.obs["fine"] = query.obs["louvain"]
    tosica.tl.novelty(query, model, over_clustering="fine")
    score = query.obs["tosica_novelty"]
    assert (score.groupby(query.obs["fine"], observed=True).nunique() == 1).all()
    order = np.random.default_rng(0).permutation(query.n_obs)
    shuffled = query[order].copy()
    tosica.tl.novelty(shuffled, model, over_clustering="fine")
    found = shuffled.obs["tosica_novelty"].loc[query.obs_names]
    np.testing.assert_allclose(found, score, atol=1e-3)
    by_values = tosica.tl.novelty(
        query, model, over_clustering=query.obs["fine"].to_numpy(), copy=True
    )
    np.testing.assert_array_equal(by_values.obs["tosica_novelty"], score)


def test_writes_one_column_and_nothing_else(model, query):
    before = query.copy()
    copied = tosica.tl.novelty(query, model, copy=True)
    assert "tosica_novelty" not in query.obs
    assert tosica.tl.novelty(query, model) is None
    np.testing.assert_array_equal(query.obs["tosica_novelty"], copied.obs["tosica_novelty"])
    assert list(query.obs.columns) == [*before.obs.columns, "tosica_novelty"]
    for where in ("obsm", "obsp", "varm", "layers"):
        assert list(getattr(query, where)) == list(getattr(before, where))
    assert list(query.uns) == list(before.uns)


def test_a_loaded_model_takes_the_reference(model, query, tmp_path):
    model.save(tmp_path / "model")
    loaded = tosica.TOSICA.load(tmp_path / "model", accelerator="cpu")
    sentence = "The model was loaded without its reference: pass it as reference."
    with pytest.raises(ValueError, match=re.escape(sentence)):
        tosica.tl.novelty(query, loaded)
    tosica.tl.novelty(query, loaded, model.adata)
    expected = tosica.tl.novelty(query, model, copy=True)
    np.testing.assert_allclose(query.obs["tosica_novelty"], expected.obs["tosica_novelty"])


def test_a_small_query(model, query):
    few = query[:12].copy()
    tosica.tl.novelty(few, model)
    assert few.obs["tosica_novelty"].between(0, 1).all()


def test_draws(model, query):
    tosica.tl.novelty(query, model)
    axes = tosica.pl.novelty(query, "bulk_labels", show=False)
    assert axes.get_yticklabels()[0].get_text() == NEW


def test_reference_without_its_labels(model, query):
    other = model.adata.copy()
    del other.obs["bulk_labels"]
    sentence = (
        "reference.obs has no column 'bulk_labels', the labels that the model was set up with: "
        "pass the reference that the model was trained on, or name its labels so."
    )
    with pytest.raises(KeyError, match=re.escape(sentence)):
        tosica.tl.novelty(query, model, other)


@pytest.mark.slow
def test_reference_without_the_layer(query):
    reference = sc.datasets.pbmc68k_reduced().raw.to_adata()
    reference.layers["log"] = reference.X.copy()
    tosica.pp.build_mask(reference, max_gene_sets=10)
    tosica.TOSICA.setup_anndata(reference, labels_key="bulk_labels", layer="log")
    model = tosica.TOSICA(reference, embed_dim=8, n_heads=2)
    model.train(max_epochs=1, accelerator="cpu", enable_progress_bar=False)
    query.layers["log"] = query.X.copy()
    model.annotate(query)
    other = reference.copy()
    del other.layers["log"]
    sentence = "reference has no layer 'log', which the model was set up with."
    with pytest.raises(KeyError, match=sentence):
        tosica.tl.novelty(query, model, other)


def test_backed_view(model, query, tmp_path):
    query.write_h5ad(tmp_path / "query.h5ad")
    backed = sc.read_h5ad(tmp_path / "query.h5ad", backed="r")
    sentence = "novelty writes to no view or copy of a backed AnnData: call to_memory\\(\\) first."
    with pytest.raises(ValueError, match=sentence):
        tosica.tl.novelty(backed, model, copy=True)
    backed.file.close()


def test_no_label_in_common(model, query):
    query.obs["tosica_prediction"] = "Unknown"
    sentence = (
        "No cell of the query has a label that a cell of the reference has: annotate with a lower "
        "cutoff, or pass the reference that the model was trained on."
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        tosica.tl.novelty(query, model)


@pytest.mark.parametrize("name", ["n_neighbors", "n_comps"])
def test_number_out_of_range(model, query, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        tosica.tl.novelty(query, model, **{name: 0})


def test_not_annotated_by_this_model(model, query, other_model):
    with pytest.raises(ValueError, match="was written by a model with the fingerprint"):
        tosica.tl.novelty(query, other_model)
    del query.uns["tosica"]
    with pytest.raises(KeyError, match="tosica"):
        tosica.tl.novelty(query, model)


def test_clusters_that_do_not_fit(model, query):
    with pytest.raises(ValueError, match="over_clustering has 3 values for 350 cells"):
        tosica.tl.novelty(query, model, over_clustering=["a", "b", "c"])
