import re
import sys

import mudata as md
import numpy as np
import pandas as pd
import pytest
from _strategies import annotated_cells
from anndata import AnnData
from get.annotated_pbmc import annotated_pbmc
from hypothesis import given, settings
from hypothesis import strategies as st

import tosica


def _adata(clusters, predicted, probability=None, labels=("b", "a", "c")):
    """Cells whose model knows b, a and c, in this order."""
    obs = pd.DataFrame({"cluster": clusters, "tosica_prediction": predicted})
    obs.index = "cell" + obs.index.astype(str)
    if probability is not None:
        obs["tosica_probability"] = np.asarray(probability, np.float32)
    adata = AnnData(np.zeros((len(obs), 1), np.float32), obs=obs)
    adata.uns["tosica"] = {"labels": np.array(labels, dtype=object)}
    return adata


def _vote(adata, over_clustering="cluster", min_prop=0.0):
    tosica.tl.majority_vote(adata, over_clustering, min_prop)
    return adata.obs["tosica_majority_vote"].astype(str).to_list()


# -- the vote ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predicted", "probability", "min_prop", "expected"),
    [
        ("aaabb", None, 0, "a"),
        ("aaabb", None, 0.6, "a"),
        ("aaabb", None, 0.61, "Heterogeneous"),
        # "Unknown" is a candidate, and counts in the size.
        (["Unknown", "Unknown", "a"], None, 0, "Unknown"),
        ([*"aab", "Unknown", "Unknown"], None, 0.5, "Heterogeneous"),
        # Between equals the higher probability wins, then the model's order.
        ("abba", [0.9, 0.5, 0.6, 0.9], 0, "a"),
        ("abba", [0.5, 0.9, 0.9, 0.6], 0, "b"),
        ("abba", [0.7] * 4, 0, "b"),
        ("abba", None, 0, "b"),
        (["Unknown", "a"], None, 0, "a"),
    ],
)
def test_the_label_of_a_cluster(predicted, probability, min_prop, expected):
    adata = _adata(["x"] * len(predicted), list(predicted), probability)
    assert _vote(adata, min_prop=min_prop) == [expected] * len(predicted)


def test_categories_are_those_that_occur_in_the_models_order():
    adata = _adata(list("wwxyzz"), ["a", "a", "b", "Unknown", "a", "b"])
    tosica.tl.majority_vote(adata, "cluster", 0.6)
    votes = adata.obs["tosica_majority_vote"]
    assert list(votes.cat.categories) == ["b", "a", "Unknown", "Heterogeneous"]
    assert not votes.cat.ordered


def test_colors_are_those_of_the_prediction():
    adata = annotated_pbmc()
    categories = adata.obs["tosica_prediction"].cat.categories
    of_prediction = dict(
        zip(categories, adata.uns["tosica_prediction_colors"], strict=True)
    )
    tosica.tl.majority_vote(adata, "louvain", 0.5)
    labels = adata.obs["tosica_majority_vote"].cat.categories
    colors = dict(zip(labels, adata.uns["tosica_majority_vote_colors"], strict=True))
    assert colors.pop("Heterogeneous") not in of_prediction.values()
    assert colors
    assert colors.items() <= of_prediction.items()


# -- clusters of several types ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("clusters", "predicted", "probability", "sentence"),
    [
        # In x one of ten sure cells has another label, in y three, in z three that are unsure.
        (
            "x" * 10 + "y" * 10 + "z" * 10,
            "aaaaaaaaab" + "aaaaaaabbb" * 2,
            [0.95] * 27 + [0.4] * 3,
            "in 1 of 3 clusters more cells get another label than their probabilities .* before: 'y' .3 of 10 cells.; ",
        ),
        *(
            (
                "wxxxyyyyy",
                "aaabaabbc",
                probability,
                "in 1 of 3 clusters the label of the cluster has fewer than half of its .*'y' .3 of 5 cells.",
            )
            for probability in (None, [7.0] * 9)
        ),
        # The largest come first, and five are named.
        (
            [f"c{i}" for i in range(7) for _ in range(20 + i)],
            "".join("a" * 13 + "b" * (7 + i) for i in range(7)),
            [0.99] * 161,
            "in 7 of 7 clusters .*before: 'c6'.*'c2' .9 of 22 cells., …; cluster",
        ),
    ],
    ids=["unlikely", "no probabilities", "no probability", "many"],
)
def test_clusters_that_seem_mixed_are_named(
    clusters, predicted, probability, sentence, caplog
):
    _vote(_adata(list(clusters), list(predicted), probability, labels="abc"))
    [warning] = [
        record.getMessage()
        for record in caplog.records
        if record.levelname == "WARNING"
    ]
    assert re.search(sentence, warning)


_CELLS = annotated_cells("xyz", ["a", "b", "c", "Unknown"])


@settings(max_examples=40)
@given(_CELLS, st.floats(0, 1))
def test_cells_of_a_cluster_agree_on_a_label_that_one_of_them_has(cells, min_prop):
    clusters, predicted, *_ = zip(*cells, strict=True)
    votes = _vote(_adata(clusters, predicted), min_prop=min_prop)
    free = _vote(_adata(clusters, predicted))
    assert "Heterogeneous" not in free
    for name in set(clusters):
        inside = [i for i, cluster in enumerate(clusters) if cluster == name]
        had = {predicted[i] for i in inside}
        assert len({votes[i] for i in inside}) == 1
        assert {free[i] for i in inside} <= had
        assert {votes[i] for i in inside} <= had | {"Heterogeneous"}


# -- where clusters come from -----------------------------------------------------------------


@pytest.mark.parametrize(
    "given_as",
    [list, np.array, pd.Categorical, pd.Index, pd.Series],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize(
    "values", [["x", "y", "y", "x", "y"], [1, 0, 0, 1, 0]], ids=["str", "int"]
)
def test_clusters_come_in_any_container(given_as, values):
    adata = _adata(values, ["a", "b", "b", "a", "c"])
    assert (
        _vote(adata, given_as(values))
        == _vote(adata, "cluster")
        == ["a", "b", "b", "a", "b"]
    )
    assert "tosica_over_clustering" not in adata.obs


def test_by_default_the_graph_at_hand_is_clustered(caplog):
    adata = annotated_pbmc()
    unvoted = adata.copy()
    tosica.tl.majority_vote(adata)
    assert "of 700 cells have another label than before" in caplog.text
    clusters = adata.obs["tosica_over_clustering"]
    assert isinstance(clusters.dtype, pd.CategoricalDtype)
    assert 20 < len(clusters.cat.categories) < 150
    voted = tosica.tl.majority_vote(unvoted, copy=True)
    assert (voted.obs["tosica_over_clustering"] == clusters).all()
    # 1 in 10 cells was misread at random: B cells are a kind of their own, and put right.
    b_cells = adata.obs.loc[adata.obs["bulk_labels"] == "CD19+ B"]
    accuracy_of_predictions, accuracy_of_votes = (
        (b_cells[f"tosica_{name}"] == "CD19+ B").mean()
        for name in ("prediction", "majority_vote")
    )
    assert accuracy_of_votes > accuracy_of_predictions + 0.05


@pytest.mark.parametrize("own_graph", [False, True])
def test_a_mudata_is_clustered_by_its_graph_or_that_of_its_rna(own_graph):
    full = annotated_pbmc()
    full.obs_names_make_unique()
    order = np.random.default_rng(0).permutation(full.n_obs)
    rna = full[order].copy()
    protein = AnnData(
        np.ones((700, 2), np.float32), obs=pd.DataFrame(index=full.obs_names)
    )
    mdata = md.MuData({"protein": protein, "rna": rna})
    mdata.obs = full.obs.loc[mdata.obs_names, ["bulk_labels", "tosica_prediction"]]
    if own_graph:
        cells = full.obs_names.get_indexer(mdata.obs_names)
        mdata.obsp["connectivities"] = full.obsp["connectivities"][cells][:, cells]
        mdata.uns["neighbors"] = {"connectivities_key": "connectivities"}
        del rna.uns["neighbors"]
    tosica.tl.majority_vote(mdata)
    true_labels = mdata.obs["bulk_labels"].astype(str)
    assert (mdata.obs["tosica_majority_vote"].astype(str) == true_labels).mean() > 0.6


@pytest.mark.parametrize("lost", ["uns", "obsp", "cells"])
def test_without_a_graph_of_all_cells(lost):
    data = annotated_pbmc()
    if lost == "cells":
        data.obs_names_make_unique()
        rna = data[:600].copy()
        data = md.MuData(
            {"protein": AnnData(np.ones((700, 2)), obs=data.obs), "rna": rna}
        )
        data.obs["tosica_prediction"] = "a"
    else:
        data.uns.pop("neighbors") if lost == "uns" else data.obsp.pop("connectivities")
    with pytest.raises(ValueError, match=r"call scanpy\.pp\.neighbors\(adata\) first"):
        tosica.tl.majority_vote(data)


# -- wrong input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key_added", ["tosica_prediction", "tosica_probability", "louvain"]
)
def test_what_is_read_is_not_overwritten(key_added):
    adata = annotated_pbmc()
    original = adata.obs.copy()
    with pytest.raises(ValueError, match="would overwrite what the vote is based on"):
        tosica.tl.majority_vote(adata, "louvain", key_added=key_added)
    pd.testing.assert_frame_equal(adata.obs, original)


def test_without_igraph(monkeypatch):
    monkeypatch.setitem(sys.modules, "igraph", None)
    adata = annotated_pbmc()
    with pytest.raises(ImportError, match=r"pip install 'tosica\[leiden\]'"):
        tosica.tl.majority_vote(adata)
    tosica.tl.majority_vote(adata, "louvain")


@pytest.mark.parametrize(
    ("clusters", "error", "sentence"),
    [
        ([0, 1], ValueError, "each of the 3 cells, .*, not 2 values"),
        (["x", None, "y"], ValueError, r"missing \(NaN\) in 1 of 3 cells"),
        (
            pd.Series(["x", "x", "y"], index=["p", "q", "r"]),
            ValueError,
            r"with other names: pass \.to_numpy",
        ),
        ({"a": 1}, TypeError, "over_clustering"),
        (np.zeros((3, 2)), TypeError, "over_clustering"),
        ([0.1, 0.2, 0.3], TypeError, "not groups"),
    ],
)
def test_what_are_no_clusters(clusters, error, sentence):
    adata = _adata(["x", "x", "y"], ["a", "b", "a"])
    with pytest.raises(error, match=sentence):
        tosica.tl.majority_vote(adata, clusters)
    adata.obs["tosica_prediction"] = "Heterogeneous"
    with pytest.raises(ValueError, match="rename the label"):
        tosica.tl.majority_vote(adata, "cluster")
    shuffled = adata.obs["cluster"].iloc[[2, 0, 1]]
    adata.obs["tosica_prediction"] = ["a", "a", "b"]
    assert _vote(adata, shuffled) == ["a", "a", "b"]
