"""Cells of a type that the reference lacks."""

from __future__ import annotations

import logging
import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
import scvi
from sklearn.metrics import roc_auc_score

import tosica
from tosica.linear import common_shift, fit_statistics
from tosica.tl._evidence import Cells

NEW = "CD19+ B"
COLUMNS = [
    f"tosica_novelty{name}" for name in ("", "_pvalue", "_cluster", "_cluster_pvalue")
]


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
        max_epochs=12,
        accelerator="cpu",
        enable_progress_bar=False,
        plan_kwargs={"lr": 1e-2},
    )
    model.annotate(query)
    return model, query


@pytest.fixture
def model(_without_b_cells):
    return _without_b_cells[0]


@pytest.fixture
def query(_without_b_cells):
    return _without_b_cells[1].copy()


def share(query, pvalue: str, new: bool) -> float:
    """Share of the new, or the known, cells with a p-value up to 0.05."""
    of_type = (query.obs["bulk_labels"] == NEW) == new
    return (query.obs[pvalue][of_type] <= 0.05).mean()


def check(query, least: float | None = 0.7) -> None:
    """The new type is told from others."""
    assert (
        roc_auc_score(query.obs["bulk_labels"] == NEW, query.obs["tosica_novelty"])
        > 0.95
    )
    for name in ("tosica_novelty", "tosica_novelty_cluster"):
        assert query.obs[f"{name}_pvalue"].between(0, 1, inclusive="right").all()
        assert share(query, f"{name}_pvalue", new=False) < 0.08
    assert least is None or share(query, "tosica_novelty_pvalue", new=True) > least


@pytest.mark.parametrize("n_new", [4, 10, 47])
def test_a_type_that_the_reference_lacks(model, query, n_new):
    new = np.flatnonzero(query.obs["bulk_labels"] == NEW)
    part = query[np.setdiff1d(np.arange(query.n_obs), new[n_new:])].copy()
    tosica.tl.novelty(part, model)
    assert (part.obs[COLUMNS].dtypes == np.float32).all()
    check(part)


def moved(query):
    """The query with more of some genes in all cells, as another chemistry has."""
    genes = np.random.default_rng(0).permutation(query.n_vars)[:150]
    dense = query.X.toarray()
    dense[:, genes] += 1.05
    query.X = sp.csr_matrix(dense)
    return query


def test_what_moves_all_types_alike_is_not_new(model, query, caplog):
    moved(query)
    model.annotate(query)
    # What each label's cells share is no reason for an alarm.
    assert share(query, "tosica_novelty_pvalue", new=False) <= 0.12
    with caplog.at_level(logging.INFO, logger="tosica"):
        tosica.tl.novelty(query, model)
    assert "of the reference's batch" not in caplog.text
    assert query.uns["tosica"]["novelty_corrected"]
    check(query)


@pytest.mark.parametrize("other_batch", [False, True])
@pytest.mark.parametrize(
    "measure", ["gene_excess", "distance_from_typical", "contrast_distance"]
)
def test_each_measure_counts(model, query, monkeypatch, measure, other_batch):
    """Those of the query's own cells count in another batch alone."""
    if other_batch:
        model.annotate(moved(query))
    of_all = tosica.tl.novelty(query, model, copy=True).obs["tosica_novelty"]
    name = f"tosica.tl._novelty.{measure}"
    monkeypatch.setattr(name, lambda *_: np.zeros(query.n_obs))
    of_others = tosica.tl.novelty(query, model, copy=True).obs["tosica_novelty"]
    assert (of_all != of_others).any() == (other_batch or measure == "gene_excess")


@pytest.mark.parametrize("case", ["same batch", "another batch", "not compared"])
def test_deviations_of_genes_are_known_in_the_same_batch_alone(
    model, query, monkeypatch, case
):
    if case == "another batch":
        model.annotate(moved(query))
    find = tosica.tl._novelty.find_neighborhoods
    given = []

    def record(x, deviations):
        given.append(deviations)
        return find(x, deviations)

    monkeypatch.setattr("tosica.tl._novelty.find_neighborhoods", record)
    tosica.tl.novelty(query, model, correct_batch=case != "not compared")
    (deviations,) = given
    assert (deviations is not None) == (case == "same batch")


def test_typical_cells_are_the_most_probable_and_the_most_alike(
    model, query, monkeypatch
):
    model.annotate(moved(query))
    measure = tosica.tl._novelty.distance_from_typical
    unlikeness = []

    def record(neighborhoods, positions, values):
        unlikeness.append(values)
        return measure(neighborhoods, positions, values)

    monkeypatch.setattr("tosica.tl._novelty.distance_from_typical", record)
    tosica.tl.novelty(query, model)
    by_probability, by_measures = unlikeness
    np.testing.assert_allclose(by_probability, 1 - query.obs["tosica_probability"])
    is_new = query.obs["bulk_labels"] == NEW
    assert roc_auc_score(is_new, by_measures) > 0.95


def test_a_query_of_the_same_batch_is_not_corrected(model, query, caplog):
    """To subtract a difference that chance explains would add noise."""
    with caplog.at_level(logging.INFO, logger="tosica"):
        tosica.tl.novelty(query, model)
    assert "labels have no difference from the reference in common" in caplog.text
    assert not query.uns["tosica"]["novelty_corrected"]


def test_p_values_of_the_same_batch_are_those_of_annotate(model, query):
    """Nothing is subtracted from the genes, and all else is the same."""
    of_annotate = query.obs["tosica_novelty_pvalue"].copy()
    tosica.tl.novelty(query, model)
    # Rounding may change the rank of a cell in a hundred, by one.
    of_novelty = query.obs["tosica_novelty_pvalue"]
    np.testing.assert_allclose(of_novelty, of_annotate, atol=0.005)
    assert np.isclose(of_novelty, of_annotate, atol=1e-6).mean() > 0.99


@pytest.mark.parametrize("n_labels", [1, 2, 3, 5])
def test_what_two_samples_of_a_batch_have_in_common_is_no_shift(n_labels):
    """Nothing but noise is found in nothing but noise, however few labels there are."""
    rng = np.random.default_rng(n_labels)
    centers = rng.normal(2, 1, (n_labels, 300))
    positions = np.arange(150) % n_labels
    reference, cells = (
        centers[positions] + rng.normal(0, 1, (150, 300)) for _ in range(2)
    )
    statistics = fit_statistics(sp.csr_matrix(reference), positions)
    assert common_shift(sp.csr_matrix(cells), positions, statistics).signal == 0
    shifted = sp.csr_matrix(cells + 0.5 * (np.arange(300) < 100))
    found = common_shift(shifted, positions, statistics)
    if n_labels == 1:  # one label decides nothing
        assert found.signal == 0
    else:
        assert found.shift[:100].mean() - found.shift[100:].mean() > 0.3
        assert 0.5 < found.signal < 1
        measured = np.arange(300) >= 50
        shift = common_shift(shifted, positions, statistics, measured).shift
        assert (shift[:50] == 0).all()
        assert (shift[50:100] > 0).mean() > 0.9


@pytest.mark.parametrize("kept", [0.9, 0.6])
def test_genes_that_the_query_lacks_are_not_new(model, query, kept):
    genes = np.random.default_rng(0).permutation(query.n_vars)[
        : int(kept * query.n_vars)
    ]
    few = query[:, np.sort(genes)].copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The query has only")
        model.annotate(few)
        of_annotate = share(few, "tosica_novelty_pvalue", new=False)
        tosica.tl.novelty(few, model)
    assert of_annotate < 0.08
    check(few, least=None)


@pytest.mark.parametrize("other_batch", [False, True])
@pytest.mark.parametrize("cutoff", ["auto", 0.99])
def test_unknown_cells_are_scored_by_their_nearest_label(
    model, query, cutoff, other_batch
):
    if other_batch:
        moved(query)
    model.annotate(query, cutoff=cutoff)
    assert (query.obs["tosica_prediction"] == "Unknown").mean() > 0.1
    tosica.tl.novelty(query, model)
    check(query, least=None)


@pytest.mark.parametrize("n_alike", [30, 300])
def test_cells_that_are_all_alike(model, query, n_alike):
    rows = sp.vstack([query.X[[0]]] * n_alike, format="csr")
    alike = ad.AnnData(rows, var=query.var)
    model.annotate(alike)
    tosica.tl.novelty(alike, model)
    assert alike.obs["tosica_novelty"].nunique() == 1


def test_clusters_of_equal_cells(model, query):
    """Their components differ in the last digits, which make no cluster."""
    cells = query[query.obs["bulk_labels"] != NEW]
    of_each_type = [
        np.flatnonzero(cells.obs["bulk_labels"] == label)[0]
        for label in cells.obs["bulk_labels"].unique()
    ]
    rows = sp.vstack([cells.X[of_each_type]] * 40, format="csr")
    equal = moved(ad.AnnData(rows, var=query.var))
    model.annotate(equal)
    tosica.tl.novelty(equal, model)
    clusters = equal.obs["tosica_novelty_group"]
    assert clusters.nunique() <= len(of_each_type)


def test_many_cells_without_counts(model, query):
    dense = query.X.toarray()
    dense[:300] = 0
    query.X = sp.csr_matrix(dense)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="300 cells of the query express none")
        model.annotate(query)
        tosica.tl.novelty(query, model)
    # The score of no cell is divided by a deviation of almost nothing.
    assert query.obs["tosica_novelty"].abs().max() < 1e3


def test_cells_of_an_adapted_model_are_for_that_model(model, query):
    query.uns["tosica"] |= {"model": "another", "adapted": "adapted to 350 cells"}
    with pytest.raises(ValueError, match=r"\(after adapting, model\.adapted_\)"):
        tosica.tl.novelty(query, model)


def test_a_query_of_a_new_type_alone(model, query, caplog):
    """What all cells share is a batch effect or a new type, and only the user knows which."""
    new = query[query.obs["bulk_labels"] == NEW].copy()
    tosica.tl.novelty(new, model, correct_batch=False)
    assert share(new, "tosica_novelty_pvalue", new=True) > 0.8
    assert share(new, "tosica_novelty_cluster_pvalue", new=True) > 0.8
    new.obs["tosica_prediction"] = model.labels[0]
    with caplog.at_level(logging.WARNING, logger="tosica"):
        tosica.tl.novelty(new, model)
    assert "the query is not corrected" in caplog.text
    assert share(new, "tosica_novelty_pvalue", new=True) > 0.8


def test_scores_of_clusters_are_medians_in_standard_errors(model, query):
    tosica.tl.novelty(query, model, over_clustering="louvain")
    clusters = query.obs.groupby("louvain", observed=True)
    standard_error = np.sqrt(np.pi / 2 / np.minimum(clusters.size(), 50))
    expected = {
        "tosica_novelty_cluster": clusters["tosica_novelty"].median() / standard_error,
        "tosica_novelty_cluster_pvalue": np.minimum(
            2 * clusters["tosica_novelty_pvalue"].median(), 1
        ),
    }
    for column, scores in expected.items():
        assert (clusters[column].nunique() == 1).all()
        np.testing.assert_allclose(clusters[column].first(), scores, rtol=1e-5)


@pytest.mark.parametrize("over_clustering", [None, "louvain"])
def test_the_cluster_of_a_new_type_is_first_and_its_genes_are_named(
    model, query, over_clustering
):
    tosica.tl.novelty(query, model, over_clustering=over_clustering)
    table = query.uns["tosica_novelty"]
    assert table["score"].is_monotonic_decreasing
    assert table["n_cells"].sum() == query.n_obs
    first = table.iloc[0]
    members = query.obs["tosica_novelty_group"] == first["cluster"]
    assert (query.obs["bulk_labels"][members] == NEW).mean() > 0.9
    assert {"CD79A", "MS4A1", "MZB1", "IGLL5", "TNFRSF13B"} & set(
        first["genes"].split(", ")
    )
    findings = tosica.tl.check(query).set_index("check")["finding"]
    assert first["genes"] in findings["cluster unlike its label"]


def test_a_new_type_is_split_from_the_cells_of_its_label(model, query):
    tosica.tl.novelty(query, model)
    is_new = query.obs["bulk_labels"] == NEW
    leading = query.uns["tosica_novelty"]["cluster"].iloc[:3]
    assert is_new[query.obs["tosica_novelty_group"].isin(leading)].mean() > 0.9


def test_clusters_of_one_new_type_are_told_as_one(model, query):
    tosica.tl.novelty(query, model)
    table = query.uns["tosica_novelty"].reset_index(drop=True)
    genes = {row.cluster: set(row.genes.split(", ")) for row in table.itertuples()}
    place = {name: i for i, name in enumerate(table["cluster"])}
    leaders = table["cluster"][table["similar_to"] == ""]
    for row in table.itertuples():
        above = [name for name in leaders if place[name] < row.Index]
        alike = [name for name in above if len(genes[name] & genes[row.cluster]) > 1]
        assert row.similar_to == (alike[0] if alike else "")
    first = table["cluster"][0]
    similar = table[(table["similar_to"] == first) & (table["score"] > 0)]
    assert len(similar) > 1
    is_new = query.obs["bulk_labels"] == NEW
    is_similar = query.obs["tosica_novelty_group"].isin(similar["cluster"])
    assert is_new[is_similar].mean() > 0.8
    finding = tosica.tl.check(query).set_index("check").finding
    text = (
        f"and {similar['n_cells'].sum()} in {len(similar)} clusters like it) expresses"
    )
    assert text in finding["cluster unlike its label"]
    assert f"'{similar['cluster'].iloc[0]}'" not in finding["cluster unlike its label"]


def test_clusters_of_a_file_that_did_not_compare_them(model, query):
    tosica.tl.novelty(query, model)
    table = query.uns["tosica_novelty"].drop(columns="similar_to")
    query.uns["tosica_novelty"] = table
    finding = tosica.tl.check(query).set_index("check").finding
    for name in table["cluster"][:3]:
        assert f"'{name}'" in finding["cluster unlike its label"]
    assert "like it" not in finding["cluster unlike its label"]
    assert "similar_to" not in query.uns["tosica_novelty"]


def test_labels_that_hold_a_new_type_are_to_be_checked(model, query):
    is_new = query.obs["bulk_labels"] == NEW
    known = query[~is_new].copy()
    severity = {}
    for name, cells in {"new": query, "known": known}.items():
        tosica.tl.novelty(cells, model)
        table = tosica.tl.check(cells).set_index("check")
        severity[name] = table.at["cluster unlike its label", "severity"]
    assert severity == {"new": "check", "known": "note"}
    finding = tosica.tl.check(query).set_index("check")["finding"]
    label = query.obs["tosica_prediction"][is_new].mode()[0]
    assert f"Many cells of {label}" in finding["cluster unlike its label"]


@pytest.mark.parametrize(("score", "severity"), [(12.9, "note"), (13.1, "check")])
def test_a_very_high_score_of_a_few_cells_is_to_be_checked(
    model, query, score, severity
):
    tosica.tl.novelty(query, model)
    table = query.uns["tosica_novelty"].copy()
    table["score"] = table["score"].clip(upper=3.0)
    share = table["n_cells"] / table.groupby("label")["n_cells"].transform("sum")
    few = share[(table["n_cells"] > 1) & (table["genes"] != "")].idxmin()
    assert share[few] < 0.2
    table.loc[few, ["score", "similar_to"]] = [score, ""]
    query.uns["tosica_novelty"] = table.sort_values("score", ascending=False)
    finding = tosica.tl.check(query).set_index("check").loc["cluster unlike its label"]
    assert finding["severity"] == severity
    assert f"score {score}" in finding["finding"]


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_cell_that_no_other_is_like_is_no_cluster(model, query, is_alone):
    tosica.tl.novelty(query, model)
    table = query.uns["tosica_novelty"].copy()
    first = table["cluster"].iloc[0]
    assert (table["similar_to"] == first).any()
    is_first = query.obs["tosica_novelty_group"] == first
    cells = query[~is_first | (is_first.cumsum() == 1)].copy()
    if is_alone:
        cells.uns["tosica_novelty"] = table[table["similar_to"] != first]
    finding = tosica.tl.check(cells).set_index("check").finding
    named = f"'{first}' (1 cell," in finding["cluster unlike its label"]
    assert named != is_alone


def test_a_subset_has_the_clusters_of_its_cells(model, query):
    tosica.tl.novelty(query, model)
    first = query.uns["tosica_novelty"]["label"].iloc[0]
    others = query[query.obs["tosica_prediction"] != first].copy()
    clusters = Cells(others, "tosica").clusters
    assert first not in set(clusters["label"])
    assert clusters["n_cells"].sum() == others.n_obs


def test_unknown_is_no_label_that_a_cluster_is_unlike(model, query):
    cutoff = float(query.obs["tosica_probability"].median())
    model.annotate(query, cutoff=cutoff)
    tosica.tl.novelty(query, model)
    table = query.uns["tosica_novelty"]
    query.uns["tosica_novelty"] = table.assign(
        score=np.where(table["label"] == "Unknown", 12.0, 0.1)
    )
    assert "Unknown" in set(table["label"])
    finding = tosica.tl.check(query).set_index("check").loc["cluster unlike its label"]
    assert "unlike these labels" not in finding["finding"]


def test_the_next_cluster_leads_where_the_first_has_no_cells(model, query):
    tosica.tl.novelty(query, model)
    table = query.uns["tosica_novelty"]
    first = table["cluster"].iloc[0]
    family = table[table["similar_to"] == first]
    assert len(family) > 1
    others = query[query.obs["tosica_novelty_group"] != first].copy()
    clusters = Cells(others, "tosica").clusters.set_index("cluster")
    assert clusters.loc[family["cluster"].iloc[0], "similar_to"] == ""
    assert set(clusters.loc[family["cluster"].iloc[1:], "similar_to"]) == {
        family["cluster"].iloc[0]
    }


def test_labels_of_the_reference_are_read_as_in_training(model, query):
    reference = model.adata.copy()
    tosica.tl.novelty(query, model, reference)
    expected = query.obs["tosica_novelty"].copy()
    labels = reference.obs["bulk_labels"].astype(object)
    labels[np.arange(reference.n_obs) % 2 == 0] += " "
    reference.obs["bulk_labels"] = labels
    tosica.tl.novelty(query, model, reference)
    np.testing.assert_allclose(query.obs["tosica_novelty"], expected)


def test_clusters_are_groups_of_one_label(model, query):
    tosica.tl.novelty(query, model)
    clusters = query.obs.groupby("tosica_novelty_group", observed=True)
    assert (clusters["tosica_prediction"].nunique() == 1).all()
    assert (clusters["tosica_novelty_cluster"].nunique() == 1).all()


def test_a_label_may_have_the_name_of_a_cluster(model, query):
    sizes = query.obs["tosica_prediction"].value_counts()
    renamed = {sizes.index[-1]: f"{sizes.index[0]} 1"}
    prediction = query.obs["tosica_prediction"].cat
    query.obs["tosica_prediction"] = prediction.rename_categories(renamed)
    tosica.tl.novelty(query, model)
    clusters = query.obs.groupby("tosica_novelty_group", observed=True)
    assert (clusters["tosica_prediction"].nunique() == 1).all()


@pytest.mark.parametrize("other_batch", [False, True])
@pytest.mark.parametrize("over_clustering", [None, "louvain"])
def test_scores_do_not_depend_on_the_order_of_cells(
    model, query, over_clustering, other_batch
):
    if other_batch:
        model.annotate(moved(query))
    tosica.tl.novelty(query, model, over_clustering=over_clustering)
    order = np.random.default_rng(0).permutation(query.n_obs)
    shuffled = query[order].copy()
    tosica.tl.novelty(shuffled, model, over_clustering=over_clustering)
    for column in COLUMNS:
        in_order = shuffled.obs[column].loc[query.obs_names]
        np.testing.assert_allclose(in_order, query.obs[column], atol=5e-3)


@pytest.mark.slow
def test_a_new_type_among_many_cells(model, query, monkeypatch):
    """The neighbors of so many are searched for, not compared with all."""
    monkeypatch.setattr("tosica.linear._neighborhoods._MAX_CELLS_EXACT", 100)
    tosica.tl.novelty(query, model)
    check(query)


def test_labels_of_a_new_annotation_are_not_beside_old_clusters(model, query):
    tosica.tl.novelty(query, model)
    model.annotate(query)
    assert "tosica_novelty_group" not in query.obs
    assert "tosica_novelty" not in query.uns


def test_the_table_of_clusters_is_written_to_files(model, query, tmp_path):
    tosica.tl.novelty(query, model)
    query.write_h5ad(tmp_path / "query.h5ad")
    table = ad.read_h5ad(tmp_path / "query.h5ad").uns["tosica_novelty"]
    pd.testing.assert_frame_equal(table, query.uns["tosica_novelty"], check_dtype=False)


def test_a_small_query(model, query):
    for n_cells in (1, 4):
        few = query[:n_cells].copy()
        tosica.tl.novelty(few, model)
        assert few.obs[COLUMNS].notna().all(axis=None)


def test_a_model_without_statistics_takes_the_reference(model, query, monkeypatch):
    """As one of the original code."""
    expected = tosica.tl.novelty(query, model, copy=True)
    monkeypatch.setattr(model.training_, "novelty_statistics", None)
    tosica.tl.novelty(query, model, model.adata)
    for column in COLUMNS:
        found, wanted = query.obs[column], expected.obs[column]
        if column.endswith("pvalue"):
            # Rounding may change the rank of a cell by one of 302, and a cluster has twice its p-value.
            np.testing.assert_allclose(found, wanted, atol=0.01)
            assert np.isclose(found, wanted).mean() > 0.95
        else:
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    other = model.adata.copy()
    other.obs["bulk_labels"] = "something else"
    with pytest.raises(ValueError, match="The reference has too few labeled cells"):
        tosica.tl.novelty(query, model, other)
    del other.obs["bulk_labels"]
    with pytest.raises(KeyError, match="no column 'bulk_labels'"):
        tosica.tl.novelty(query, model, other)
    monkeypatch.setattr(type(model), "adata", None)
    with pytest.raises(ValueError, match="pass the reference"):
        tosica.tl.novelty(query, model)
