"""tosica.report: what the page says, that it is complete, and that the data stay as they were."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from conftest import make_toy

import tosica

if TYPE_CHECKING:
    from collections.abc import Callable

    from _report.conftest import Page
    from anndata import AnnData

SOURCE = Path(tosica.__file__).parent


def test_one_file_is_written_and_the_data_stay(query, toy_model, contents, tmp_path):
    before = contents(query)
    path = tosica.report(query, str(tmp_path / "report.html"), model=toy_model)
    assert path == tmp_path / "report.html"
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert 1_000_000 < path.stat().st_size < 3_000_000
    assert contents(query) == before


def test_the_same_data_give_the_same_bytes(query, toy_model, tmp_path):
    first = tosica.report(query, tmp_path / "a.html", model=toy_model, sample_key="donor")
    # Bokeh numbers what it makes, so that others would have other numbers now.
    second = tosica.report(query.copy(), tmp_path / "b.htm", model=toy_model, sample_key="donor")
    assert first.read_bytes() == second.read_bytes()


def test_a_failure_leaves_the_old_page(query, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="What was there before is unchanged"):
        tosica.report(query, path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_bokeh_is_imported_when_it_is_needed():
    def of_import(node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        return [node.module or ""] if isinstance(node, ast.ImportFrom) else []

    files = list((SOURCE / "_report").glob("*.py"))
    at_import = [
        name
        for path in files
        for node in ast.parse(path.read_text()).body
        for name in of_import(node)
    ]
    assert len(at_import) > 50
    assert not [name for name in at_import if name.startswith("bokeh")]


def test_without_bokeh(query, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(
        ImportError, match=r"needs the bokeh package: pip install 'tosica\[report\]'\.$"
    ):
        tosica.report(query, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_an_old_bokeh_that_does_not_escape(query, tmp_path, monkeypatch):
    monkeypatch.setattr("bokeh.__version__", "3.7.3")
    with pytest.raises(ImportError, match=r"needs bokeh 3\.8 or newer, and 3\.7\.3 is installed: "):
        tosica.report(query, tmp_path / "report.html")
    monkeypatch.setattr("bokeh.__version__", "3.10.0rc1")
    tosica.report(query, tmp_path / "report.html")


# --------------------------------------------------------------------------- what it says


def test_sections_come_in_order_with_a_sentence_each(query, read):
    page = read(query, title="Lung, donor 3")
    sections = [each["id"] for each in page.attributes("section")]
    assert sections == [
        *("summary", "composition", "confidence", "novelty", "map-section", "types", "doubt"),
        "methods",
    ]
    assert re.search(r"<title>Lung, donor 3</title>", page.source)
    for heading in ("Summary", "Composition", "What to doubt, and why", "Methods and versions"):
        assert re.search(rf">{heading}</h2><p class=\"quiet\">[^<]{{20,}}[.;]", page.source)


def test_numbers_are_those_of_the_annotation(query, read):
    query.obs["tosica_probability"] = np.float32(0.9)
    query.obs.loc[query.obs_names[:3], "tosica_probability"] = np.float32(0.3)
    page = read(query)
    counts = query.obs["tosica_prediction"].value_counts()
    written = {row[0]: row[1] for row in page.table("Label", "Cells", "Share")}
    assert written == {label: str(n) for label, n in counts.items()}
    assert "Probability below 0.55 %3 cells" in page.text.replace("\u00a0", " ")
    low = {row[0]: int(row[4]) for row in page.table("Label", "Probability, 0 to 1")}
    first = query.obs["tosica_prediction"].iloc[:3].value_counts()
    assert low == {label: int(first[label]) for label in counts.index}
    small = query.obs["tosica_novelty_pvalue"] <= 0.05
    new = {row[0]: int(row[3]) for row in page.table("Label", "Score, −2 to 5; the line is 0")}
    assert sum(new.values()) == small.sum()


def test_colors_are_those_of_the_data(query, read):
    assert list(query.uns["tosica_prediction_colors"]) == ["#aa0000", "#00bb00", "#0000cc"]
    page = read(query)
    for color in ("#aa0000", "#00bb00", "#0000cc"):
        assert f'class="swatch" style="background:{color}"' in page.source
    assert '["#aa0000","#00bb00","#0000cc"]' in page.scripts[2]


def test_samples_and_known_labels(query, read):
    query.obs["known"] = query.obs["kind"].astype(object)
    query.obs.loc[query.obs_names[:10], "known"] = np.nan
    page = read(query, labels_key="known", sample_key="donor")
    by_sample = page.table("donor", "Cells")
    assert [(row[0], row[1]) for row in by_sample] == [("d1", "30"), ("d2", "30")]
    confused = page.table("known", "a", "b", "c")
    expected = pd.crosstab(query.obs["known"], query.obs["tosica_prediction"])
    assert [[int(n) for n in row[1:]] for row in confused] == expected.to_numpy().tolist()
    rest = query[10:]
    share = (rest.obs["known"] == rest.obs["tosica_prediction"].astype(str)).mean()
    assert f"{100 * share:.0f}" in page.text.partition("Measured here: ")[2][:4]
    assert "of the 50 cells with a label of the model" in page.text


def test_known_labels_that_the_model_does_not_have(query, read):
    query.obs["cluster"] = pd.Categorical(["0", "1"] * 30)
    assert "the agreement cannot be measured" in read(query, labels_key="cluster").text


def test_methods_name_the_model_and_what_to_cite(query, toy_model, read):
    page = read(query, model=toy_model)
    paragraph = page.source.partition('id="methods-paragraph">')[2].partition("</p>")[0]
    assert toy_model.fingerprint in paragraph
    assert "By the expression of 30 genes, the model tells 3 labels apart" in paragraph
    assert "its tokens are 4 gene sets and 1 module of co-expressed genes." in paragraph
    assert "Cells whose best label had a probability below 0.10" in paragraph
    cited = {each["href"] for each in page.attributes("a")}
    assert "https://doi.org/10.1038/s41467-023-35923-4" in cited
    versions = dict(page.table("What", "Version"))
    assert versions["tosica"] == tosica.__version__
    assert versions["model (fingerprint)"] == toy_model.fingerprint
    assert versions["scanpy"] == version("scanpy")


# --------------------------------------------------------------------------- the map


@pytest.mark.slow  # numba compiles the UMAP first
def test_a_umap_is_made_where_there_is_none(query, read, contents):
    del query.obsm["X_umap"]
    before = contents(query)
    page = read(query)
    assert "The data had no UMAP, so that one was computed for this page" in page.text
    assert contents(query) == before
    assert read(query).source == page.source


def test_a_umap_that_is_none(query, tmp_path):
    query.obsm["X_umap"][3] = np.nan
    with pytest.raises(ValueError, match=r"^adata\.obsm\['X_umap'\] must have two finite columns"):
        tosica.report(query, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_too_few_cells_for_a_map(query, read):
    few = query[:3].copy()
    del few.obsm["X_umap"]
    page = read(few)
    assert "No map: 3 cells are too few." in page.text
    assert len(page.source) < 100_000


def test_a_sample_keeps_rare_labels(query, read):
    codes = np.zeros(60, dtype=int)
    codes[[5, 50]] = 1
    query.obs["tosica_prediction"] = pd.Categorical.from_codes(codes, ["a", "b"])
    page = read(query, max_cells=20)
    assert "a random sample of 20 cells of 60, in which rare labels keep their cells" in page.text
    shown = {row[0]: row[1] for row in page.table("Label", "Cells", "Share")}
    assert shown == {"a": "58", "b": "2"}
    assert re.search(r"b</span><small>2</small>", page.source)
    assert re.search(r"a</span><small>18</small>", page.source)
    assert [p["data-total"] for p in page.attributes("p") if "data-total" in p] == ["20"]


# --------------------------------------------------------------------------- gene sets and genes


def gene_sets_of(page: Page, label: str) -> list[list[str]]:
    """Rows of the table of a label's gene sets."""
    captions = re.findall(r"<table><caption><span>([^<]*)</span>", page.source)
    return page.tables[captions.index(f"Gene sets of {label}")][1:]


def written(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def test_contributions_are_those_of_the_model(query, toy_model, read):
    page = read(query, model=toy_model)
    tosica.tl.top_genes(query, toy_model, n_cells=60, n_gene_sets=8)
    table = tosica.get.top_genes_df(query)
    for label, rows in table.groupby("group", observed=True):
        expected = rows.drop_duplicates("gene_set")
        found = gene_sets_of(page, str(label))
        assert [row[:2] for row in found] == [
            [name, written(weight)]
            for name, weight in zip(expected["gene_set"], expected["gene_set_weight"], strict=True)
        ]
        first = rows.iloc[0]
        assert found[0][3].startswith(f"{first['gene']}\u00a0{written(first['gene_weight'])}")
    assert "The model was asked for this page, with " in page.text


def test_stored_attribution_is_shown(query, toy_model, read):
    tosica.tl.attribute(query, toy_model, n_steps=4)
    page = read(query)
    assert "The contributions are those that tosica.tl.attribute wrote" in page.text
    presence = pd.DataFrame(
        query.obsm["X_tosica_presence"], columns=list(query.uns["tosica_presence"]["gene_sets"])
    )
    means = presence.groupby(query.obs["tosica_prediction"].to_numpy()).mean()
    for label in means.index:
        largest = means.loc[label].sort_values(ascending=False)
        assert gene_sets_of(page, label)[0][:2] == [
            largest.index[0],
            written(largest.iloc[0]),
        ]
    genes = query.varm["tosica_attribution"]["a"].sort_values(ascending=False)
    assert f"{genes.index[0]} {written(genes.iloc[0])}" in page.text


def test_stored_top_genes_are_shown(query, toy_model, read):
    tosica.tl.top_genes(query, toy_model, n_gene_sets=1, n_genes=2)
    page = read(query)
    assert "The contributions are those that tosica.tl.top_genes wrote" in page.text
    assert len(gene_sets_of(page, "a")) == 1
    assert gene_sets_of(page, "a")[0][3].count(",") == 1


def test_attention_is_not_taken_for_contributions(query, read):
    page = read(query)
    assert "The data hold no contributions, so that gene sets are listed by attention" in page.text
    assert page.table("Gene set", "Attention")
    assert "In logits" not in page.text


def test_results_of_another_model_are_left_out(query, toy_model, read):
    tosica.tl.attribute(query, toy_model, n_steps=4)
    query.uns["tosica_attribution"]["model"] = "0123456789abcdef"
    page = read(query)
    assert "Results of another model were left out: adata.uns['tosica_attribution']." in page.text
    assert "listed by attention" in page.text


# --------------------------------------------------------------------------- markers


def test_markers_of_the_data(query, read):
    page = read(query)
    captions = re.findall(r"<table><caption><span>([^<]*)</span>", page.source)
    rows = page.tables[captions.index("Markers of a in these cells")][1:]
    # Genes 0 to 7 are those of the type.
    assert {row[0] for row in rows[:5]} <= {f"G{i}" for i in range(8)}
    assert all(float(row[1].replace("> ", "")) > 0 for row in rows[:5])


def test_known_markers(query, toy_model, read):
    markers = {"a": ["G0", "G1", "G9", "CD3E"], "b": ["G10"]}
    page = read(query, model=toy_model, markers=markers)
    assert "2 of 3 known markers are highest in this label. Not in the data: CD3E." in page.text
    rows = page.table("Known marker", "Highest in", "Agrees")
    assert [row[:3] for row in rows] == [["G0", "a", "yes"], ["G1", "a", "yes"], ["G9", "b", "no"]]
    assert all(re.fullmatch(r"−?\d\.\d\d", row[4]) for row in rows)
    page = read(query, markers={"a": ["G9", "G10"]})
    assert "Most known markers are higher in another label: a (0 of 2)." in page.text


@pytest.mark.parametrize("values", ["scaled", "zero", "none"])
def test_expression_that_has_no_markers(query, read, values):
    dense = query.X.toarray()
    query.X = {"scaled": dense - dense.mean(0), "zero": dense * 0, "none": None}[values]
    page = read(query)
    assert "No markers were computed: adata.X " in page.text
    assert "layer= or use_raw=True" in page.text


def test_another_matrix(query, toy_model, read, tmp_path):
    query.layers["counts"] = query.X.copy()
    query.X = query.X.toarray() - 1.0
    assert "Markers of a in these cells" in read(query, model=toy_model, layer="counts").text
    raw = ad.AnnData(query.layers["counts"], obs=query.obs[[]], var=query.var)
    query.raw = raw
    assert "Markers of a in these cells" in read(query, model=toy_model, use_raw=True).text
    with pytest.raises(ValueError, match="holds negative values"):
        tosica.report(query, tmp_path / "no.html", model=toy_model)


# --------------------------------------------------------------------------- what to doubt


def doubt(query: AnnData, read: Callable[..., Page], sentence: str, **arguments: object) -> None:
    text = read(query, **arguments).text.partition("What to doubt, and why")[2]
    assert sentence in text.replace("\u00a0", " ")


def test_nothing_is_doubted_without_a_reason(query, read):
    query.obs["tosica_probability"] = np.float32(0.9)
    query.obs["tosica_novelty_pvalue"] = np.linspace(0.02, 1, 60).astype(np.float32)
    assert "None of the rules of this page found anything" in read(query).text


def test_improbable_and_unknown_labels(query, read):
    query.obs["tosica_probability"] = np.where(query.obs["tosica_prediction"] == "c", 0.4, 0.95)
    doubt(query, read, "The probability is low in c.")
    names = query.obs["tosica_prediction"].astype(str)
    names.iloc[:9] = "Unknown"
    query.obs["tosica_prediction"] = names.astype("category")
    del query.uns["tosica_prediction_colors"]
    doubt(query, read, "9 cells (15 %) are called 'Unknown'.")


def test_novelty_of_a_label_and_of_all(query, read):
    is_c = (query.obs["tosica_prediction"] == "c").to_numpy()
    query.obs["tosica_novelty_pvalue"] = np.where(is_c & (np.arange(60) % 2 == 0), 0.01, 0.6)
    doubt(query, read, "Many cells of c are unlike the reference.")
    query.obs["tosica_novelty_pvalue"] = 0.01
    doubt(query, read, "100 % of all cells are unlike the reference.")
    doubt(query, read, "Run tosica.tl.novelty(adata, model)")
    query.obs["tosica_novelty_cluster"] = 0.0
    doubt(query, read, "100 % of all cells are unlike the reference after the correction")


def test_an_annotation_without_novelty(query, read):
    del query.obs["tosica_novelty"], query.obs["tosica_novelty_pvalue"]
    page = read(query)
    assert "The annotation has no novelty scores" in page.text
    assert "novelty p-value @" not in page.source


def test_rare_and_absent_labels(query, read):
    rare = pd.Series(np.where(np.arange(60) < 2, "a", "b"), query.obs_names)
    query.obs["tosica_prediction"] = rare.astype("category")
    del query.uns["tosica_prediction_colors"]
    doubt(query, read, "Fewer than 10 cells each: label a (2).")
    doubt(query, read, "No cell has the label c, which the model knows.")


def test_samples_that_differ(query, read):
    sample = np.where(np.arange(60) < 12, "bad", "good")
    query.obs["sample"] = pd.Categorical(sample)
    query.obs["tosica_probability"] = np.where(sample == "bad", 0.3, 0.95)
    doubt(
        query,
        read,
        "Samples with more improbable labels than others: bad (100 %).",
        sample_key="sample",
    )


def test_labels_that_are_confused(query, toy_model, read):
    codes = query.obs["tosica_prediction"].cat.codes.to_numpy()
    probabilities = np.full((60, 3), 0.05)
    probabilities[np.arange(60), codes] = 0.6
    probabilities[np.arange(60), (codes + 1) % 3] = 0.35
    query.obsm["tosica_probabilities"] = pd.DataFrame(
        probabilities, index=query.obs_names, columns=["a", "b", "c"]
    )
    doubt(query, read, "easily confused: 'a' with 'b' (0.35), 'b' with 'c' (0.35), 'c' with 'a'")
    del query.obsm["tosica_probabilities"]
    assert "Next label: " not in read(query).text
    assert "Next label: " in read(query, model=toy_model).text


def test_missing_genes(query, toy_model, read):
    fewer = query[:, 3:].copy()
    doubt(fewer, read, "The cells lack 3 of the model's 30 genes (10 %).", model=toy_model)


def test_known_labels_that_disagree(query, read):
    query.obs["tosica_probability"] = np.float32(0.99)
    query.obs["known"] = query.obs["kind"].cat.rename_categories({"a": "b", "b": "a"})
    doubt(query, read, "of the labels agree with adata.obs['known'], but", labels_key="known")


# --------------------------------------------------------------------------- other data and keys


def test_another_key(toy_model, read):
    query = make_toy(60, seed=1)
    toy_model.annotate(query, key_added="lung", enable_progress_bar=False)
    with pytest.raises(KeyError, match=r"run model\.annotate.*or pass key='lung', which is there"):
        read(query)
    page = read(query, key="lung", model=toy_model)
    assert "under the key 'lung'" in page.text


def test_data_that_nobody_annotated(toy_query, read):
    with pytest.raises(KeyError, match=r"run model\.annotate\(adata, key_added='tosica'\) first"):
        read(toy_query)


def test_backed_data(query, toy_model, read, tmp_path):
    expected = read(query, model=toy_model).source
    query.write_h5ad(tmp_path / "query.h5ad")
    before = (tmp_path / "query.h5ad").read_bytes()
    backed = ad.read_h5ad(tmp_path / "query.h5ad", backed="r")
    assert read(backed, model=toy_model).source == expected
    backed.file.close()
    assert (tmp_path / "query.h5ad").read_bytes() == before


def test_a_single_label(query, read):
    query.obs["tosica_prediction"] = pd.Categorical(["a"] * 60)
    page = read(query)
    assert "No markers were computed: fewer than two labels have 5 cells" in page.text
    query.obs["tosica_prediction"] = pd.Categorical(["Unknown"] * 60)
    assert "No cell has a label." in read(query).text


def test_probabilities_that_are_missing(query, read):
    query.obs["tosica_probability"] = np.where(np.arange(60) == 3, np.nan, 0.5)
    with pytest.raises(ValueError, match=r"^adata\.obs\['tosica_probability'\] holds values that"):
        read(query)
