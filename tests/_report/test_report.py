"""tosica.report: what the page says, that it is complete, and that the data stay as they were."""

import re
from importlib.metadata import version
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import tosica


def test_one_file_is_written_and_the_data_stay(query, toy_model, contents, tmp_path):
    content = contents(query)
    path = tosica.report(query, str(tmp_path / "report.html"), sample_key="donor")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert 1_000_000 < path.stat().st_size < 3_000_000
    assert contents(query) == content
    # Bokeh numbers what it makes, so that others would have other numbers now.
    query.write_h5ad(tmp_path / "query.h5ad")
    backed = ad.read_h5ad(tmp_path / "query.h5ad", backed="r")
    second = tosica.report(backed, tmp_path / "b.htm", sample_key="donor")
    assert path.read_bytes() == second.read_bytes()
    backed.file.close()


def test_a_failure_leaves_the_old_page(query, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="No space left"):
        tosica.report(query, path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


REFUSED = {
    "report.pdf": ValueError,
    "none/report.html": FileNotFoundError,
    "folder.html": IsADirectoryError,
}


@pytest.mark.parametrize(("path", "error"), REFUSED.items())
def test_where_no_page_can_be(query, tmp_path, path, error):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(error, match=re.escape(path.split("/")[0])):
        tosica.report(query, tmp_path / path)


# --------------------------------------------------------------------------- what it says


def test_numbers_are_those_of_the_annotation(query, read_page):
    query.obs["tosica_probability"] = np.where(np.arange(60) < 3, 0.3, 0.9).astype(
        np.float32
    )
    query.obs["known"] = query.obs["kind"].astype(object)
    query.obs.loc[query.obs_names[:10], "known"] = np.nan
    page = read_page(query, labels_key="known", sample_key="donor", title="Lung")
    assert "<title>Lung</title>" in page.source
    predicted = query.obs["tosica_prediction"]
    assert {row[0]: int(row[1]) for row in page.table("Cells of each label")} == dict(
        predicted.value_counts()
    )
    assert "Probability below 0.55 %3 cells" in page.text.replace("\u00a0", " ")
    low = {row[0]: int(row[4]) for row in page.table("Probability of the best label")}
    assert low == predicted.iloc[:3].value_counts().to_dict()
    new = [int(row[3]) for row in page.table("Novelty score")]
    assert sum(new) == (query.obs["tosica_novelty_pvalue"] <= 0.05).sum()
    by_sample = page.table("Share of each label in the samples")
    assert [(row[0], row[1]) for row in by_sample] == [("d1", "30"), ("d2", "30")]
    confused = [
        [int(n) for n in row[1:]] for row in page.table("Cells of each label in adata")
    ]
    assert confused == pd.crosstab(query.obs["known"], predicted).to_numpy().tolist()
    assert "of the 50 cells with a label of the model" in page.text
    verdicts = {row[0]: row[3] for row in page.table("Verdict")}
    for label, row in pd.crosstab(query.obs["known"], predicted).iterrows():
        missed, n = row.sum() - row[label], row.sum()
        is_missed = "of the cells known as this have another label" in verdicts[label]
        assert is_missed == (missed > 0.1 * n)
    for color in ("#aa0000", "#00bb00", "#0000cc"):
        assert f'class="swatch" style="background:{color}"' in page.source


def test_methods_and_checks(query, toy_model, read_page):
    fewer = query[:, 3:].copy()
    with pytest.warns(UserWarning, match="only 27"):
        toy_model.annotate(fewer)
    page = read_page(fewer)
    for row in tosica.tl.check(fewer).to_dict("records"):
        for column in ("finding", "reason", "advice"):
            assert re.sub(r"\s", " ", row[column]) in page.text
    paragraph = page.text.partition("what this page was made with.")[2].partition(
        "To cite"
    )[0]
    assert toy_model.fingerprint in paragraph
    assert "By the expression of 30 genes, the model tells 3 labels apart" in paragraph
    assert "its tokens are 4 gene sets and 1 module of co-expressed genes." in paragraph
    assert "Cells whose best label had a probability below 0.10" in paragraph
    cited = {link["href"] for link in page.attributes("a")}
    assert "https://doi.org/10.1038/s41467-023-35923-4" in cited
    versions = dict(page.table("Model, and packages"))
    assert versions["model (fingerprint)"] == toy_model.fingerprint
    assert versions["scanpy"] == version("scanpy")


def test_what_contributions_are_compared_with(query, toy_model, read_page):
    tosica.tl.attribute(query, toy_model, baseline="shifted")
    methods = read_page(query).text.partition("what this page was made with.")[2]
    assert "cells in the reference, plus the shift that all labels" in methods


def test_a_subset_of_a_calibrated_model_is_calibrated(query, toy_model, read_page):
    toy_model.annotate(query, labels=list(toy_model.labels[:2]))
    assert "Probabilities were calibrated" in read_page(query).text


def test_an_adapted_model(query, read_page):
    query.uns["tosica"]["adapted"] = "adapted to 60 cells: 2 rounds, 30 cells taught"
    head, _, methods = read_page(query).text.partition("what this page was made with.")
    assert "which was adapted to 60 cells" in head
    assert "The model was adapted to 60 cells" in methods


def test_a_model_that_was_not_calibrated(query, toy, train, read_page):
    model = train(toy, max_epochs=1, calibrate=False, linear=False)
    model.annotate(query)
    text = read_page(query).text
    assert "Probabilities were not calibrated" in text
    assert "The model was not calibrated" in text
    assert "to which a linear model" not in text


def test_novelty_that_was_not_corrected(query, toy_model, read_page):
    tosica.tl.novelty(query, toy_model, correct_batch=False)
    text = read_page(query).text
    assert "The scores were not corrected for a shift" in text
    assert "after correction for the shift" not in text


def test_the_summary_names_clusters_unlike_their_label(query, toy_model, read_page):
    tosica.tl.novelty(query, toy_model)
    finding = (
        tosica.tl.check(query)
        .set_index("check")
        .at["cluster unlike its label", "finding"]
    )
    summary = read_page(query).text.partition("Verdict on each label")[0]
    assert re.sub(r"\s", " ", finding) in summary


def test_what_is_not_there_is_said(query, read_page):
    query.obs["cluster"] = pd.Categorical(["0", "1"] * 30)
    query.obs["tosica_probability"] = np.float32(0.9)
    del query.obs["tosica_novelty"], query.obs["tosica_novelty_pvalue"]
    page = read_page(query, labels_key="cluster")
    absent = "samples (sample_key), known markers (markers), what tells each label (tosica.tl.attribute), novelty"
    assert (
        f"Not on this page, because tosica.report was not given it: {absent}"
        in page.text
    )
    assert {row[2] for row in page.table("Verdict")} == {"reliable"}
    assert "the agreement cannot be measured" in page.text
    assert "The annotation has no novelty scores" in page.text
    assert "novelty p-value @" not in page.source
    assert "None of the rules of this page found anything" in page.text
    query.obs["tosica_prediction"] = pd.Categorical(["a"] * 60)
    page = read_page(query)
    assert "No markers were computed: fewer than two labels have 5 cells" in page.text
    assert "No cell has these labels, which the model knows: b, c." in page.text
    query.obs["tosica_prediction"] = pd.Categorical(["Unknown"] * 60)
    assert "No cell has a label." in read_page(query).text


# --------------------------------------------------------------------------- genes and gene sets


def test_genes_and_gene_sets_are_those_of_attribute(query, toy_model, read_page):
    nothing = (
        "The data hold nothing that explains these labels: call tosica.tl.attribute"
    )
    assert nothing in read_page(query).text
    tosica.tl.attribute(query, toy_model)
    record = query.uns["tosica_attribution"]
    record["evidence"] = record["evidence"][record["evidence"]["group"] != "b"]
    stored = read_page(query)
    assert "The contributions are those of tosica.tl.attribute." in stored.text
    assert "plus the shift that all labels of these cells share" in stored.text
    assert "Next label: " in stored.text
    gene_sets = tosica.get.gene_sets_df(query)
    genes_of = {row[0]: row[1:] for row in stored.table("What tells each label")}
    for label, genes in tosica.get.genes_df(query, n_genes=10).groupby(
        "group", observed=True
    ):
        less = np.where(genes["expression"] < 0, " (expressed less)", "")
        contributions = [f"{value:.2f}" for value in genes["contribution"]]
        rows = stored.table(f"Genes that tell {label}")
        assert [row[:2] for row in rows] == [
            list(pair) for pair in zip(genes["gene"] + less, contributions, strict=True)
        ]
        sets = gene_sets[gene_sets["group"] == label]["gene_set"].to_list()
        assert genes_of[label][:2] == [
            ", ".join((genes["gene"] + less)[:5]),
            sets[0] if sets else "none",
        ]
        if sets:
            assert [
                row[0] for row in stored.table(f"Gene sets with evidence in {label}")
            ] == sets
        else:
            sentence = f"Told by {', '.join((genes['gene'] + less)[:3])}; no gene set has evidence."
            assert sentence in stored.text
    assert genes_of["b"][1] == "none"
    assert genes_of["a"][1] == "alpha"
    record["model"] = "0123456789abcdef"
    assert nothing in read_page(query).text


@pytest.mark.parametrize("most_dense", [0, 2_000_000])
def test_markers(query, toy_model, read_page, monkeypatch, most_dense):
    monkeypatch.setattr("tosica._report._report._MAX_DENSE", most_dense)
    page = read_page(
        query, model=toy_model, markers={"a": ["G0", "G1", "G9", "CD3E"], "b": ["G10"]}
    )
    rows = page.table("Markers of a in these cells")
    # Genes 0 to 7 are those of the type.
    assert {row[0] for row in rows[:5]} <= {f"G{i}" for i in range(8)}
    assert {row[0]: row[3] for row in page.table("Genes that tell a")}[
        rows[0][0]
    ] == "1"
    assert (
        "2 of 3 known markers are highest in this label. Not in the data: CD3E."
        in page.text
    )
    rows = page.table("Known markers of a")
    assert [row[:3] for row in rows] == [
        ["G0", "a", "yes"],
        ["G1", "a", "yes"],
        ["G9", "b", "no"],
    ]
    assert all(re.fullmatch(r"−?\d+\.\d\d", row[4]) for row in rows)


# --------------------------------------------------------------------------- data


@pytest.mark.slow  # numba compiles the UMAP first
def test_a_umap_is_made_where_there_is_none(query, read_page, contents):
    del query.obsm["X_umap"]
    content = contents(query)
    page = read_page(query)
    assert "The data had no UMAP, so that one was computed for this page" in page.text
    assert contents(query) == content
    assert read_page(query).source == page.source


def test_umaps_that_are_none(query, tmp_path, read_page):
    few = query[:3].copy()
    del few.obsm["X_umap"]
    page = read_page(few)
    assert "No map: 3 cells are too few." in page.text
    assert len(page.source) < 100_000
    query.obsm["X_umap"][3] = np.nan
    with pytest.raises(
        ValueError, match=r"^adata\.obsm\['X_umap'\] must have two finite columns"
    ):
        tosica.report(query, tmp_path / "report.html")


def test_a_sample_keeps_rare_labels(query, read_page):
    query.obs["tosica_prediction"] = np.where(np.isin(np.arange(60), [5, 50]), "b", "a")
    page = read_page(query, max_cells=20)
    assert (
        "a random sample of 20 cells of 60, in which rare labels keep their cells"
        in page.text
    )
    assert {row[0]: row[1] for row in page.table("Cells of each label")} == {
        "a": "58",
        "b": "2",
    }
    assert "<span>b</span><small>2</small>" in page.source
    assert "<span>a</span><small>18</small>" in page.source


@pytest.mark.parametrize("values", ["scaled", "zero", "none"])
def test_another_matrix(query, toy_model, read_page, tmp_path, values):
    query.layers["counts"] = query.X.copy()
    query.raw = query.copy()
    dense = query.X.toarray()
    query.X = {"scaled": dense - dense.mean(0), "zero": dense * 0, "none": None}[values]
    page = read_page(query)
    assert "No markers were computed: adata.X " in page.text
    assert "layer= or use_raw=True" in page.text
    if values == "scaled":
        for arguments in ({"layer": "counts"}, {"use_raw": True}):
            assert (
                "Markers of a in these cells"
                in read_page(query, model=toy_model, **arguments).text
            )
        query.layers["scaled"] = query.X
        with pytest.raises(ValueError, match="holds negative values"):
            tosica.report(query, tmp_path / "no.html", layer="scaled")


def test_a_page_of_one_cell(query, read_page):
    cell = query[:1].copy()
    cell.obs["tosica_probability"] = np.float32(0.64)
    text = read_page(cell).text
    assert "Labels of 1 cell were predicted" in text
    assert "its only cell has a probability of 0.64" in text
    assert "half of the cells" not in text


def test_novelty_says_nothing_of_another_tissue(query, read_page):
    assert "says nothing of another tissue" not in read_page(query).text
    query.uns["tosica"]["likeness"] = 0.3
    assert "says nothing of another tissue" in read_page(query).text


def test_another_key(query, toy_model, read_page):
    toy_model.annotate(query, key_added="lung")
    with pytest.raises(
        KeyError, match=r"run model\.annotate.*or pass key='tosica', which is there"
    ):
        read_page(query, key="liver")
    assert "under the key 'lung'" in read_page(query, key="lung", model=toy_model).text


def test_several_modalities(cite_query, cite_model, read_page):
    cite_model.annotate(cite_query)
    cite_query.obsm["X_umap"] = np.zeros((60, 2))
    page = read_page(cite_query, model=cite_model, sample_key="donor")
    assert "No markers were computed: the cells have several modalities" in page.text
    assert any(row[0].startswith("protein:") for row in page.table("Genes that tell a"))
