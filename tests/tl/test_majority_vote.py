from __future__ import annotations

import sys

import mudata as md
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from _strategies import annotated_cells
from anndata import AnnData
from get.annotated_pbmc import annotated_pbmc
from hypothesis import given, settings
from hypothesis import strategies as st

import tosica


def _adata(clusters, predicted, probability=None, labels=("b", "a", "c")) -> AnnData:
    """Cells whose model knows b, a and c, in this order."""
    obs = pd.DataFrame({"cluster": clusters, "tosica_prediction": predicted})
    obs.index = "cell" + obs.index.astype(str)
    if probability is not None:
        obs["tosica_probability"] = np.asarray(probability, np.float32)
    adata = AnnData(np.zeros((len(obs), 1), np.float32), obs=obs)
    adata.uns["tosica"] = {"labels": np.array(labels, dtype=object)}
    return adata


def _vote(adata: AnnData, over_clustering="cluster", min_prop=0.0) -> list[str]:
    tosica.tl.majority_vote(adata, over_clustering, min_prop)
    return adata.obs["tosica_majority_vote"].astype(str).to_list()


def _logged(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


# -- the vote ---------------------------------------------------------------------------------


def test_each_cluster_gets_the_label_that_most_of_its_cells_have():
    adata = annotated_pbmc()
    tosica.tl.majority_vote(adata, "louvain")
    expected = adata.obs.groupby("louvain", observed=True)["tosica_prediction"].agg(
        lambda labels: labels.value_counts().index[0]
    )
    for cluster, votes in adata.obs.groupby("louvain", observed=True)["tosica_majority_vote"]:
        assert set(votes) == {expected[cluster]}


@pytest.mark.parametrize(
    ("min_prop", "expected"), [(0, "a"), (0.6, "a"), (0.61, "Heterogeneous"), (1, "Heterogeneous")]
)
def test_below_min_prop_a_cluster_is_heterogeneous(min_prop, expected):
    adata = _adata(["x"] * 5, ["a", "a", "a", "b", "b"])
    assert _vote(adata, min_prop=min_prop) == [expected] * 5


def test_unknown_is_a_candidate_and_counts_in_the_size():
    adata = _adata(["x"] * 3 + ["y"] * 5, ["Unknown", "Unknown", "a", *"aab", "Unknown", "Unknown"])
    assert _vote(adata)[:3] == ["Unknown"] * 3
    assert _vote(adata, min_prop=0.5)[3:] == ["Heterogeneous"] * 5


def test_between_equals_the_higher_probability_wins_then_the_models_order():
    predicted = ["a", "b", "b", "a"]
    assert _vote(_adata(["x"] * 4, predicted, [0.9, 0.5, 0.6, 0.9])) == ["a"] * 4
    assert _vote(_adata(["x"] * 4, predicted, [0.5, 0.9, 0.9, 0.6])) == ["b"] * 4
    assert _vote(_adata(["x"] * 4, predicted, [0.7] * 4)) == ["b"] * 4
    assert _vote(_adata(["x"] * 4, predicted)) == ["b"] * 4
    assert _vote(_adata(["x"] * 2, ["Unknown", "a"])) == ["a"] * 2


def test_categories_are_those_that_occur_in_the_models_order():
    adata = _adata(list("wwxyzz"), ["a", "a", "b", "Unknown", "a", "b"])
    tosica.tl.majority_vote(adata, "cluster", 0.6)
    votes = adata.obs["tosica_majority_vote"]
    assert list(votes.cat.categories) == ["b", "a", "Unknown", "Heterogeneous"]
    assert not votes.cat.ordered


def test_colours_are_those_of_the_prediction():
    adata = annotated_pbmc()
    of_prediction = dict(
        zip(
            adata.obs["tosica_prediction"].cat.categories,
            adata.uns["tosica_prediction_colors"],
            strict=True,
        )
    )
    tosica.tl.majority_vote(adata, "louvain", 0.5)
    labels = adata.obs["tosica_majority_vote"].cat.categories
    colors = dict(zip(labels, adata.uns["tosica_majority_vote_colors"], strict=True))
    assert colors.pop("Heterogeneous") not in of_prediction.values()
    assert colors
    assert colors.items() <= of_prediction.items()


def test_colours_of_an_earlier_call_go_where_there_are_none():
    adata = annotated_pbmc()
    tosica.tl.majority_vote(adata, "louvain")
    del adata.uns["tosica_prediction_colors"]
    tosica.tl.majority_vote(adata, "louvain")
    assert "tosica_majority_vote_colors" not in adata.uns


# -- clusters of several types ----------------------------------------------------------------


def _mixed(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


def test_clusters_with_more_other_labels_than_expected_are_named(caplog):
    # In x one of ten sure cells has another label, in y three, in z three that are unsure.
    predicted = [*"aaaaaaaaab", *"aaaaaaabbb", *"aaaaaaabbb"]
    probability = [0.95] * 20 + [0.95] * 7 + [0.4] * 3
    adata = _adata([*"x" * 10, *"y" * 10, *"z" * 10], predicted, probability)
    _vote(adata)
    [warning] = _mixed(caplog)
    assert "in 1 of 3 clusters more cells get another label than their probabilities" in warning
    assert "before: 'y' (3 of 10 cells); cluster more finely" in warning


def test_heterogeneous_clusters_are_not_warned_of(caplog):
    adata = _adata([*"y" * 10], [*"aaaaaaabbb"], [0.95] * 10)
    assert set(_vote(adata, min_prop=0.8)) == {"Heterogeneous"}
    assert _mixed(caplog) == []


@pytest.mark.parametrize("probability", [None, [7.0] * 9])
def test_without_probabilities_half_of_the_cells_is_the_limit(caplog, probability):
    adata = _adata([*"wxxxyyyyy"], [*"aaabaabbc"], probability)
    _vote(adata)
    [warning] = _mixed(caplog)
    assert "in 1 of 3 clusters the label of the cluster has fewer than half of its" in warning
    assert "'y' (3 of 5 cells)" in warning


def test_at_most_five_clusters_are_named_the_largest_first(caplog):
    clusters, predicted = [], []
    for i in range(7):
        clusters += [f"c{i}"] * (20 + i)
        predicted += ["a"] * 13 + ["b"] * (7 + i)
    adata = _adata(clusters, predicted, [0.99] * len(clusters))
    adata.uns["tosica"] = {"labels": np.array(["a", "b"], dtype=object)}
    _vote(adata)
    [warning] = _mixed(caplog)
    assert "in 7 of 7 clusters" in warning
    assert warning.index("'c6'") < warning.index("'c2'")
    assert "'c1'" not in warning
    assert "(9 of 22 cells), …; cluster" in warning


_CELLS = annotated_cells("xyz", ["a", "b", "c", "Unknown"])


@settings(max_examples=40)
@given(_CELLS, st.floats(0, 1))
def test_the_order_of_cells_does_not_matter(cells, min_prop):
    shuffled = sorted(range(len(cells)), key=lambda i: cells[i][3])
    cells = [cell[:3] for cell in cells]
    votes = _vote(_adata(*zip(*cells, strict=True)), min_prop=min_prop)
    again = _vote(_adata(*zip(*(cells[i] for i in shuffled), strict=True)), min_prop=min_prop)
    assert [votes[i] for i in shuffled] == again


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
    [list, tuple, np.array, pd.Categorical, pd.Index, pd.Series],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("values", [["x", "y", "y", "x", "y"], [1, 0, 0, 1, 0]], ids=["str", "int"])
def test_clusters_come_in_any_container(given_as, values):
    adata = _adata(values, ["a", "b", "b", "a", "c"])
    assert _vote(adata, given_as(values)) == _vote(adata, "cluster") == ["a", "b", "b", "a", "b"]
    assert "tosica_over_clustering" not in adata.obs


def test_a_series_is_matched_by_the_names_of_the_cells():
    adata = _adata(["x", "y", "y"], ["a", "b", "b"])
    shuffled = adata.obs["cluster"].iloc[[2, 0, 1]]
    assert _vote(adata, shuffled) == ["a", "b", "b"]


def test_by_default_the_graph_at_hand_is_clustered(caplog):
    adata = annotated_pbmc()
    before = adata.copy()
    tosica.tl.majority_vote(adata)
    assert "Leiden, resolution 5, on the graph in adata.uns['neighbors']" in _logged(caplog)
    assert "of 700 cells have another label than before" in _logged(caplog)
    clusters = adata.obs["tosica_over_clustering"]
    assert isinstance(clusters.dtype, pd.CategoricalDtype)
    assert 20 < len(clusters.cat.categories) < 150
    assert set(adata.uns) - set(before.uns) == {"tosica_majority_vote_colors"}
    assert set(adata.obs) - set(before.obs) == {"tosica_majority_vote", "tosica_over_clustering"}
    assert (adata.obsp["connectivities"] != before.obsp["connectivities"]).nnz == 0
    again = tosica.tl.majority_vote(before, copy=True)
    assert (again.obs["tosica_over_clustering"] == clusters).all()
    # 1 in 10 cells was misread at random: B cells are a kind of their own, and put right.
    recall = {
        column: (adata.obs.loc[adata.obs["bulk_labels"] == "CD19+ B", column] == "CD19+ B").mean()
        for column in ("tosica_prediction", "tosica_majority_vote")
    }
    assert recall["tosica_majority_vote"] > recall["tosica_prediction"] + 0.05


def test_the_log_says_what_the_graph_was_made_from(caplog):
    adata = annotated_pbmc()
    sc.pp.neighbors(adata, use_rep="X_tosica")
    tosica.tl.majority_vote(adata)
    assert "uns['neighbors'], which was made from 'X_tosica'" in _logged(caplog)


def _without_graph(matrix=None) -> AnnData:
    full = annotated_pbmc()
    expression = full.raw.X if matrix is None else matrix(full)
    return AnnData(expression, obs=full.obs.copy(), uns={"tosica": full.uns["tosica"]})


def test_without_a_graph_neighbours_in_the_pca_at_hand(caplog):
    adata = _without_graph()
    adata.obsm["X_pca"] = annotated_pbmc().obsm["X_pca"]
    tosica.tl.majority_vote(adata)
    assert "on neighbours in adata.obsm['X_pca']" in _logged(caplog)
    assert set(adata.uns) == {"tosica"}
    assert not adata.obsp


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        (lambda adata: adata.raw.X, "a PCA of adata.X)"),
        (lambda adata: adata.raw.X.toarray(), "a PCA of adata.X)"),
        (lambda adata: adata.X, "a PCA of adata.X, which is scaled)"),
        (
            lambda adata: sp.csr_matrix(np.rint(np.expm1(adata.raw.X.toarray()))).astype(np.int64),
            "a PCA of adata.X, log-normalised)",
        ),
    ],
    ids=["log", "dense", "scaled", "counts"],
)
def test_without_either_a_pca_of_the_expression(matrix, said, caplog):
    adata = _without_graph(matrix)
    before = adata.copy()
    tosica.tl.majority_vote(adata)
    assert said in _logged(caplog)
    assert adata.obs["tosica_over_clustering"].nunique() > 15
    assert set(adata.uns) == {"tosica"}
    assert not adata.obsm
    assert not adata.obsp
    np.testing.assert_array_equal(
        adata.X.toarray() if sp.issparse(adata.X) else adata.X,
        before.X.toarray() if sp.issparse(before.X) else before.X,
    )
    # Clusters of real cells mean something: their votes agree with the labels that were known.
    known = adata.obs["bulk_labels"].astype(str)
    assert (adata.obs["tosica_majority_vote"].astype(str) == known).mean() > 0.6


def test_expression_on_disk(tmp_path):
    _without_graph().write_h5ad(tmp_path / "query.h5ad")
    backed = sc.read_h5ad(tmp_path / "query.h5ad", backed="r")
    in_memory = _without_graph()
    for adata in (backed, in_memory):
        tosica.tl.majority_vote(adata)
    assert backed.obs["tosica_majority_vote"].equals(in_memory.obs["tosica_majority_vote"])
    backed.file.close()


def test_many_genes_are_cut_down_to_the_variable_ones(caplog):
    rng = np.random.default_rng(0)
    counts = sp.csr_matrix(rng.poisson(0.5, (60, 2100)))
    adata = AnnData(counts, obs=_adata(["x"] * 60, ["a"] * 60).obs)
    tosica.tl.majority_vote(adata)
    assert "a PCA of adata.X, log-normalised, 2 000 variable genes" in _logged(caplog)


@pytest.mark.parametrize("n_obs", [4, 5, 10, 16])
def test_few_cells_can_be_clustered(n_obs):
    rng = np.random.default_rng(0)
    adata = AnnData(rng.poisson(2, (n_obs, 30)), obs=_adata(["x"] * n_obs, ["a"] * n_obs).obs)
    tosica.tl.majority_vote(adata)
    assert adata.obs["tosica_over_clustering"].notna().all()


def test_resolution_grows_with_the_cells(monkeypatch):
    used = []

    def leiden(cells, resolution, **_):
        used.append(resolution)
        cells.obs["cluster"] = pd.Categorical(["0"] * cells.n_obs)

    monkeypatch.setattr(sc.tl, "leiden", leiden)
    sizes = [4999, 5000, 19_999, 20_000, 39_999, 40_000, 99_999, 100_000, 199_999, 200_000]
    for n_obs in sizes:
        adata = _adata(["x"] * n_obs, ["a"] * n_obs)
        adata.obsp["connectivities"] = sp.csr_matrix((n_obs, n_obs))
        adata.uns["neighbors"] = {"connectivities_key": "connectivities"}
        tosica.tl.majority_vote(adata)
    assert used == [5, 10, 10, 15, 15, 20, 20, 25, 25, 30]


# -- how results are written ------------------------------------------------------------------


def test_key_and_key_added_name_the_results():
    adata = annotated_pbmc(key="lung")
    tosica.tl.majority_vote(adata, key="lung")
    assert {"lung_majority_vote", "lung_over_clustering"} <= set(adata.obs)
    tosica.tl.majority_vote(adata, "louvain", 0.9, key="lung", key_added="strict")
    assert "Heterogeneous" in set(adata.obs["strict"])
    assert "strict_colors" in adata.uns
    assert "Heterogeneous" not in set(adata.obs["lung_majority_vote"])


def test_copy_leaves_the_original_alone():
    adata = annotated_pbmc()
    before = adata.copy()
    copied = tosica.tl.majority_vote(adata, "louvain", copy=True)
    assert "tosica_majority_vote" in copied.obs
    pd.testing.assert_frame_equal(adata.obs, before.obs)
    assert set(adata.uns) == set(before.uns)


def test_results_can_be_stored(tmp_path):
    adata = annotated_pbmc()
    tosica.tl.majority_vote(adata, min_prop=0.5)
    adata.write_h5ad(tmp_path / "voted.h5ad")
    read = sc.read_h5ad(tmp_path / "voted.h5ad")
    pd.testing.assert_series_equal(
        read.obs["tosica_majority_vote"], adata.obs["tosica_majority_vote"]
    )
    assert list(read.uns["tosica_majority_vote_colors"]) == list(
        adata.uns["tosica_majority_vote_colors"]
    )


def test_what_a_model_annotated(query):
    tosica.tl.majority_vote(query)
    labels = [*query.uns["tosica"]["labels"], "Unknown"]
    categories = list(query.obs["tosica_majority_vote"].cat.categories)
    assert categories == [label for label in labels if label in categories]


# -- several modalities -----------------------------------------------------------------------


def _mdata(shuffled: bool = False, n_rna: int = 700) -> md.MuData:
    full = annotated_pbmc()
    rna = AnnData(full.raw.X, obs=pd.DataFrame(index=full.obs_names))
    rna.var_names = full.raw.var_names
    rna.obs_names_make_unique()
    protein = AnnData(np.ones((700, 2), np.float32), obs=pd.DataFrame(index=rna.obs_names))
    protein.var_names = ["CD3", "CD19"]
    order = np.random.default_rng(0).permutation(700)[:n_rna] if shuffled else np.arange(n_rna)
    mdata = md.MuData({"protein": protein, "rna": rna[order].copy()})
    # By name, because MuData decides on the order of its cells.
    of_cell = full.obs.set_axis(rna.obs_names).loc[mdata.obs_names]
    for column in ("bulk_labels", "tosica_prediction", "tosica_probability"):
        mdata.obs[column] = of_cell[column]
    mdata.uns["tosica"] = full.uns["tosica"]
    mdata.uns["tosica_prediction_colors"] = full.uns["tosica_prediction_colors"]
    return mdata


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_mudata_is_clustered_by_its_rna(shuffled, caplog):
    mdata = _mdata(shuffled)
    tosica.tl.majority_vote(mdata)
    assert "a PCA of mdata['rna'].X" in _logged(caplog)
    known = mdata.obs["bulk_labels"].astype(str)
    assert (mdata.obs["tosica_majority_vote"].astype(str) == known).mean() > 0.6
    assert "tosica_majority_vote_colors" in mdata.uns
    assert "neighbors" not in mdata["rna"].uns


def test_a_mudata_with_a_graph_of_its_own(caplog):
    mdata = _mdata()
    mdata.obsp["connectivities"] = annotated_pbmc().obsp["connectivities"]
    mdata.uns["neighbors"] = {"connectivities_key": "connectivities"}
    tosica.tl.majority_vote(mdata)
    assert "on the graph in mdata.uns['neighbors']" in _logged(caplog)


def test_a_mudata_that_cannot_be_clustered():
    with pytest.raises(ValueError, match="no modality 'rna' with all of its cells"):
        tosica.tl.majority_vote(_mdata(n_rna=600))


def test_a_mudata_with_clusters():
    mdata = _mdata()
    voted = tosica.tl.majority_vote(mdata, mdata.obs["bulk_labels"], copy=True)
    assert "tosica_majority_vote" not in mdata.obs
    assert (
        voted.obs.groupby("bulk_labels", observed=True)["tosica_majority_vote"]
        .nunique()
        .eq(1)
        .all()
    )


# -- wrong input ------------------------------------------------------------------------------


def test_not_annotated():
    with pytest.raises(KeyError, match=r"run model\.annotate\(adata, key_added='tosica'\)"):
        tosica.tl.majority_vote(sc.datasets.pbmc68k_reduced(), "louvain")


def test_missing_column():
    with pytest.raises(KeyError, match=r"no column 'leiden', only "):
        tosica.tl.majority_vote(annotated_pbmc(), "leiden")


def test_wrong_length():
    with pytest.raises(ValueError, match="over_clustering has 3 values for 700 cells"):
        tosica.tl.majority_vote(annotated_pbmc(), [0, 1, 2])


def test_clusters_are_missing():
    adata = _adata(["x", None, "y"], ["a", "b", "a"])
    with pytest.raises(ValueError, match=r"adata\.obs\['cluster'\] is missing \(NaN\) in 1 of 3"):
        tosica.tl.majority_vote(adata, "cluster")
    with pytest.raises(ValueError, match=r"over_clustering is missing \(NaN\) in 1 of 3 cells"):
        tosica.tl.majority_vote(adata, ["x", None, "y"])


def test_cells_of_other_names():
    adata = _adata(["x", "x", "y"], ["a", "b", "a"])
    clusters = pd.Series(["x", "x", "y"], index=["p", "q", "r"])
    with pytest.raises(ValueError, match="does not hold the names of adata's cells"):
        tosica.tl.majority_vote(adata, clusters)


@pytest.mark.parametrize("clusters", [3, {"a": 1}, np.zeros((3, 2)), pd.DataFrame({"x": [1]})])
def test_not_clusters(clusters):
    with pytest.raises(TypeError, match=r"must be a column of adata\.obs or one value a cell"):
        tosica.tl.majority_vote(_adata(["x"] * 3, ["a"] * 3), clusters)


def test_numbers_are_no_clusters():
    with pytest.raises(TypeError, match="over_clustering holds float64 values, not groups"):
        tosica.tl.majority_vote(_adata(["x"] * 3, ["a"] * 3), [0.1, 0.2, 0.3])


@pytest.mark.parametrize("min_prop", [-0.1, 1.1, 50, float("nan")])
def test_min_prop_is_a_share(min_prop):
    with pytest.raises(ValueError, match="must lie between 0 and 1, not"):
        tosica.tl.majority_vote(annotated_pbmc(), "louvain", min_prop)


@pytest.mark.parametrize("min_prop", ["0.5", None, True])
def test_min_prop_is_a_number(min_prop):
    with pytest.raises(TypeError, match="min_prop must be a number"):
        tosica.tl.majority_vote(annotated_pbmc(), "louvain", min_prop)


def test_not_an_anndata():
    with pytest.raises(TypeError, match="must be an AnnData or a MuData, not a DataFrame"):
        tosica.tl.majority_vote(annotated_pbmc().obs, "louvain")


def test_no_cells():
    with pytest.raises(ValueError, match="adata has no cells"):
        tosica.tl.majority_vote(annotated_pbmc()[:0].copy(), "louvain")


@pytest.mark.parametrize("key_added", ["tosica_prediction", "tosica_probability", "louvain"])
def test_what_is_read_is_not_overwritten(key_added):
    adata = annotated_pbmc()
    before = adata.obs.copy()
    with pytest.raises(ValueError, match="would overwrite what the vote is based on"):
        tosica.tl.majority_vote(adata, "louvain", key_added=key_added)
    pd.testing.assert_frame_equal(adata.obs, before)


def test_too_few_cells():
    with pytest.raises(ValueError, match="3 cells are too few to be clustered"):
        tosica.tl.majority_vote(annotated_pbmc()[:3].copy())


def test_nothing_to_cluster_by():
    with pytest.raises(ValueError, match="There is nothing to cluster cells by: adata has no"):
        tosica.tl.majority_vote(_adata(["x"] * 5, ["a"] * 5))


def test_expression_with_nan():
    adata = _without_graph()
    adata.X.data[0] = np.nan
    before = adata.obs.copy()
    with pytest.raises(ValueError, match=r"adata\.X holds NaN"):
        tosica.tl.majority_vote(adata)
    pd.testing.assert_frame_equal(adata.obs, before)


def test_without_igraph(monkeypatch):
    monkeypatch.setitem(sys.modules, "igraph", None)
    adata = annotated_pbmc()
    with pytest.raises(ImportError, match=r"pip install 'tosica\[leiden\]'"):
        tosica.tl.majority_vote(adata)
    tosica.tl.majority_vote(adata, "louvain")


def test_a_label_that_is_called_as_mixed_clusters_are():
    adata = _adata(["1", "1"], ["Heterogeneous", "b"], labels=("b", "Heterogeneous"))
    sentence = "A label is called 'Heterogeneous', as mixed clusters are: rename the label."
    with pytest.raises(ValueError, match=sentence):
        tosica.tl.majority_vote(adata, "cluster")
