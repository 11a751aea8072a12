"""tosica.tl.check: what it finds in an annotation, and that nothing is doubted without a reason."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from _cells import toy_model
from get.annotated_pbmc import annotated_pbmc

import tosica
from tosica.tl._doubts import judge_labels
from tosica.tl._evidence import Cells


@pytest.fixture
def query(toy_query, toy_model):
    """60 annotated cells in which nothing is to be doubted."""
    toy_model.annotate(toy_query, enable_progress_bar=False)
    toy_query.obs["tosica_probability"] = np.float32(0.9)
    toy_query.obs["tosica_novelty_pvalue"] = np.linspace(0.02, 1, 60).astype(np.float32)
    toy_query.obs["known"] = toy_query.obs["tosica_prediction"]
    toy_query.obs["sample"] = toy_query.obs["donor"]
    return toy_query


def label(query, names) -> None:
    query.obs["tosica_prediction"] = pd.Categorical(names)
    query.obs["known"] = query.obs["tosica_prediction"]
    del query.uns["tosica_prediction_colors"]


def improbable(query):
    is_c = query.obs["tosica_prediction"] == "c"
    query.obs["tosica_probability"] = np.where(is_c, 0.4, 0.95)


def improbable_before(query):
    is_c = query.obs["tosica_prediction"] == "c"
    query.obs["tosica_probability_before"] = np.where(is_c, 0.4, 0.99)


def unknown(query):
    label(
        query, ["Unknown"] * 9 + query.obs["tosica_prediction"].astype(str).tolist()[9:]
    )


def novel_label(query):
    is_c = (query.obs["tosica_prediction"] == "c").to_numpy()
    query.obs["tosica_novelty_pvalue"] = np.where(
        is_c & (np.arange(60) % 2 == 0), 0.01, 0.6
    )


def novel_all(query):
    query.obs["tosica_novelty_pvalue"] = 0.01


def novel_corrected(query):
    novel_all(query)
    query.obs["tosica_novelty_cluster"] = 0.0


def other_batch(query):
    query.uns["tosica"]["batch_signal"] = 0.8


def other_genes(query):
    query.uns["tosica"]["genes_pvalue"] = 0.3


def other_tissue(query):
    query.uns["tosica"]["likeness"] = 0.3


def few_genes(query):
    query.uns["tosica"]["n_missing_genes"] = query.uns["tosica"]["n_genes"] // 2
    query.uns["tosica"]["label_changes"] = np.array([0.1, 0.5, np.nan], np.float32)


def rare(query):
    label(query, np.where(np.arange(60) < 2, "a", "b"))


def bad_sample(query):
    sample = np.where(np.arange(60) < 12, "bad", "good")
    query.obs["sample"] = pd.Categorical(sample)
    query.obs["tosica_probability"] = np.where(sample == "bad", 0.3, 0.95)


def one_sample(query):
    is_b = (query.obs["tosica_prediction"] == "b").to_numpy()
    query.obs["sample"] = pd.Categorical(np.where(is_b, "first", "second"))


def confused(query):
    query.uns["tosica"] |= {
        "second_label": list("bca"),
        "second_probability": [0.35, 0.35, 0.35],
    }


def overconfident(query):
    query.obs["known"] = query.obs["known"].cat.rename_categories({"a": "b", "b": "a"})


def wrong(query):
    is_a = (query.obs["tosica_prediction"] == "a").to_numpy()
    query.obs["known"] = query.obs["known"].astype(str)
    query.obs.loc[query.obs_names[is_a][::3], "known"] = "another type"


def missed(query):
    query.obs["known"] = query.obs["known"].astype(str)
    is_b = (query.obs["tosica_prediction"] == "b").to_numpy()
    query.obs.loc[query.obs_names[is_b][::2], "known"] = "c"


def inexact(query):
    tosica.tl.attribute(query, toy_model())
    query.uns["tosica_attribution"]["completeness_error"] = 0.05


CASES = {
    improbable: ("improbable label", 0.4, "The probability is low in c."),
    improbable_before: (
        "improbable before adapting",
        0.4,
        "Before the model learnt from these cells, the probability was low in c (0.40).",
    ),
    unknown: ("unknown cells", 0.15, "9 cells (15 %) are called 'Unknown'."),
    novel_label: (
        "unlike the reference",
        0.5,
        "Many cells of c are unlike the reference.",
    ),
    novel_all: (
        "unlike the reference",
        1,
        "100 % of all cells are unlike the reference; by chance it would be 5 %.",
    ),
    novel_corrected: (
        "unlike the reference",
        1,
        "the reference after the correction for batches;",
    ),
    other_batch: (
        "another batch",
        0.8,
        "The cells differ from the reference in what all labels share.",
    ),
    other_genes: (
        "other genes",
        0.3,
        "The genes may have names of other genes, so that no label means anything.",
    ),
    other_tissue: (
        "another tissue",
        0.3,
        "The cells may be of another tissue or species than the reference,",
    ),
    few_genes: (
        "missing genes",
        0.5,
        "so that many cells of these labels get another: b (50 %).",
    ),
    rare: ("few cells", 2, "Labels with fewer than 10 cells: a (2)."),
    bad_sample: (
        "samples that differ",
        1,
        "more improbable labels than others: bad (100 %).",
    ),
    one_sample: ("labels of one sample", 1, "almost only from one sample: b (first)."),
    confused: (
        "easily confused",
        0.35,
        "'a' with 'b' (0.35), 'b' with 'c' (0.35) and 'c' with",
    ),
    overconfident: (
        "too sure",
        None,
        "of the labels agree with adata.obs['known'], but the mean",
    ),
    wrong: (
        "wrong labels",
        0.63,
        "Many cells with these labels are known as another type: a (37 %).",
    ),
    missed: (
        "missed labels",
        0.68,
        "Many cells of these known types have another label, or none: c (32 %).",
    ),
    inexact: (
        "inexact contributions",
        0.05,
        "The contributions miss the score by 5 %.",
    ),
}


@pytest.mark.parametrize("change", CASES, ids=lambda change: change.__name__)
def test_finds(query, change):
    change(query)
    before = query.copy()
    table = tosica.tl.check(query, labels_key="known", sample_key="sample")
    name, value, finding = CASES[change]
    rows = table[table["check"] == name]
    assert len(rows) == 1
    row = rows.iloc[0]
    assert finding in row["finding"].replace("\u00a0", " ")
    if value is not None:
        assert row["value"] == pytest.approx(value, abs=0.1)
    assert row["reason"]
    assert row["advice"].endswith(".")
    pd.testing.assert_frame_equal(query.obs, before.obs)


@pytest.mark.parametrize(
    ("labels_key", "verdict", "reason"),
    [
        ("known", "check", "37\u00a0% of the cells have another known label"),
        (None, "reliable", ""),
    ],
)
def test_verdicts_take_known_labels_before_probabilities(
    query, labels_key, verdict, reason
):
    wrong(query)
    cells = Cells(query, "tosica", labels_key=labels_key)
    assert judge_labels(cells).loc["a"].to_list() == [verdict, reason]
    query.obs["tosica_probability"] = 0.4
    verdict = "check" if labels_key else "do not use"
    assert (
        judge_labels(Cells(query, "tosica", labels_key=labels_key)).at["a", "verdict"]
        == verdict
    )


def test_a_label_that_was_improbable_before_adapting_is_not_reliable(query):
    """An adapted model is sure of types that its reference lacks, too."""
    label(query, np.where(np.arange(60) < 30, "a", "b"))
    query.obs["tosica_probability"] = 0.95
    query.obs["tosica_probability_before"] = np.where(np.arange(60) < 30, 0.5, 0.9)
    verdicts = judge_labels(Cells(query, "tosica"))
    assert verdicts.loc["a"].to_list() == [
        "check",
        "before adapting, half of the cells had a probability below 0.50",
    ]
    assert verdicts.at["b", "verdict"] == "reliable"


def test_a_label_that_is_wrong_in_every_cell_is_not_reliable(query):
    """No cell is known as a, and all cells that are called so are known as b or c."""
    is_a = query.obs["tosica_prediction"] == "a"
    others = np.where(np.arange(60) % 2, "b", "c")
    known = query.obs["known"].astype(str)
    query.obs["known"] = known.mask(is_a, others)
    table = tosica.tl.check(query, labels_key="known").set_index("check")
    assert "another type: a (100" in table.at["wrong labels", "finding"]
    verdict = judge_labels(Cells(query, "tosica", labels_key="known")).loc["a"]
    assert verdict["verdict"] == "do not use"


def test_only_cells_with_a_known_label_can_be_too_sure(query):
    """The others have a high probability, and nobody knows whether they are right."""
    is_known = np.arange(60) < 20
    query.obs["tosica_probability"] = np.where(is_known, 0.5, 0.99)
    overconfident(query)
    is_wrong = is_known & (np.arange(60) % 2 == 0)
    right = query.obs["tosica_prediction"].astype(str)
    truth = query.obs["known"].astype(str).where(is_wrong, right)
    query.obs["known"] = truth.where(is_known)
    table = tosica.tl.check(query, labels_key="known")
    assert "too sure" not in set(table["check"])


def test_nothing_is_doubted_without_a_reason(query):
    # What was written for another annotation is not this one's.
    inexact(query)
    query.uns["tosica_attribution"]["model"] = "0123456789abcdef"
    table = tosica.tl.check(query, labels_key="known", sample_key="donor")
    assert len(table) == 0
    columns = ["check", "severity", "value", "threshold", "finding", "reason", "advice"]
    assert list(table) == columns


def test_what_to_check_comes_first(query):
    one_sample(query)
    improbable(query)
    assert list(tosica.tl.check(query, sample_key="sample")["severity"]) == [
        "check",
        "note",
    ]


def test_labels_that_are_known_to_be_wrong_precede_improbable_ones(query):
    wrong(query)
    query.obs["tosica_probability"] = 0.6
    checks = list(tosica.tl.check(query, labels_key="known")["check"])
    assert checks.index("wrong labels") < checks.index("improbable label")


def test_nobody_is_told_to_adapt_to_another_tissue(query):
    other_batch(query)
    advice = tosica.tl.check(query).set_index("check").at["another batch", "advice"]
    assert advice.startswith("Learn from these cells")
    other_tissue(query)
    advice = tosica.tl.check(query).set_index("check").at["another batch", "advice"]
    assert advice.startswith("Do not adapt the model to another tissue")


def test_clusters_are_to_be_scored_after_adapting(query):
    query.uns["tosica"]["adapted"] = "adapted to 60 cells"
    assert "clusters not scored" in list(tosica.tl.check(query)["check"])
    query.obs["tosica_novelty_cluster"] = 0.0
    assert "clusters not scored" not in list(tosica.tl.check(query)["check"])


def test_a_share_at_the_limit_is_not_above_it(query):
    """Shares are of single precision, in which 0.2 is a little more than 0.2."""
    few_genes(query)
    query.uns["tosica"]["label_changes"] = np.array([0.2, 0.5, 0.1], np.float32)
    (finding,) = tosica.tl.check(query).query("check == 'missing genes'")["finding"]
    assert finding.endswith("get another: b (50\u00a0%).")


def test_what_annotate_found(toy_query, toy_model):
    fewer = toy_query[:, 3:].copy()
    with pytest.warns(UserWarning, match="only 27"):
        toy_model.annotate(
            fewer, cutoff="auto", probabilities=True, enable_progress_bar=False
        )
    table = tosica.tl.check(fewer).set_index("check")
    row = table.loc["missing genes"]
    assert (row["value"], row["threshold"], row["severity"]) == (0.1, 0.05, "check")
    assert "lack 3 of the model's 30 genes" in row["finding"]
    record = fewer.uns["tosica"]
    for label, second, mean in zip(
        "abc", record["second_label"], record["second_probability"], strict=True
    ):
        of_label = fewer.obsm["tosica_probabilities"][
            (fewer.obs["tosica_prediction"] == label).to_numpy()
        ]
        others = of_label.drop(columns=label)
        # A cell counts for the label that is second in it.
        means = others.where(others.eq(others.max(axis=1), axis=0), 0).mean()
        assert (second, mean) == (means.idxmax(), pytest.approx(means.max()))


def test_known_markers(query):
    table = tosica.tl.check(query, markers={"a": ["G9", "G10", "none of these"]})
    [row] = table.to_dict("records")
    assert (
        row["finding"] == "Most known markers are higher in another label: a (0 of 2)."
    )
    assert len(tosica.tl.check(query, markers={"a": ["G0", "G1"]})) == 0
    assert len(tosica.tl.check(query, markers={"a": ["none of these"]})) == 0


def test_known_markers_may_have_another_name_in_the_data():
    adata = annotated_pbmc().raw.to_adata()
    adata.obs["tosica_prediction"] = adata.obs["bulk_labels"]
    adata.var_names = [f"{gene}_ENSG{i:011d}" for i, gene in enumerate(adata.var_names)]
    markers = {"CD34+": ["CD79A", "CD79B"], "CD19+ B": ["CD79A"]}
    findings = tosica.tl.check(adata, markers=markers).set_index("check")["finding"]
    assert findings["markers"].endswith("label: CD34+ (0 of 2).")


def test_refuses(query):
    with pytest.raises(KeyError, match="markers names 'A', which is no label"):
        tosica.tl.check(query, markers={"A": ["G0"]})
    with pytest.raises(TypeError, match=r"markers\['a'\]"):
        tosica.tl.check(query, markers={"a": 5})
    query.obs["tosica_probability"] = np.where(np.arange(60) == 3, np.nan, 0.5)
    with pytest.raises(ValueError, match="tosica_probability"):
        tosica.tl.check(query)


# --------------------------------------------------------------------------- known labels


@pytest.mark.parametrize("word", ["Unassigned", "n/a", np.nan])
def test_cells_that_are_known_as_nothing_do_not_count(query, word):
    known = query.obs["known"].astype(object)
    known[np.arange(60) % 5 > 1] = word
    query.obs["known"] = known
    cells = Cells(query, "tosica", labels_key="known")
    assert (judge_labels(cells)["verdict"] == "reliable").all()
    assert cells.agreement().share == 1


def test_whole_numbers_beside_cells_without_a_label(query):
    numbers = {"a": "1", "b": "2", "c": "3"}
    label(query, query.obs["tosica_prediction"].map(numbers).tolist())
    query.uns["tosica"]["labels"] = np.array(list(numbers.values()), dtype=object)
    known = query.obs["tosica_prediction"].astype(float)
    known.iloc[0] = np.nan
    query.obs["known"] = known
    assert Cells(query, "tosica", labels_key="known").agreement().n == 59


def test_unknown_cells_are_no_wrong_labels(query):
    names = query.obs["tosica_prediction"].astype(object)
    known = names.copy()
    names[np.arange(60) % 2 == 0] = "Unknown"
    label(query, names.tolist())
    query.obs["known"] = known
    cells = Cells(query, "tosica", labels_key="known")
    assert cells.agreement() == (1.0, pytest.approx(0.9), 30)
    assert (
        judge_labels(cells)["reason"].str.endswith("none, most often 'Unknown'").all()
    )
    found = set(tosica.tl.check(query, labels_key="known")["check"])
    assert "missed labels" in found
    assert not found & {"too sure", "wrong labels"}
