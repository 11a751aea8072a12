import re
import warnings

import numpy as np
import pandas as pd
import pytest
from _strategies import annotated_cells
from anndata import AnnData
from get.annotated_pbmc import annotated_pbmc
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal
from sklearn import metrics

import tosica


def _adata(true_labels, predicted, probability=None, labels=None):
    obs = pd.DataFrame({"known": true_labels, "tosica_prediction": predicted})
    obs["tosica_probability"] = 0.5 if probability is None else probability
    obs.index = obs.index.astype(str)
    adata = AnnData(np.zeros((len(obs), 1), np.float32), obs=obs)
    if labels is not None:
        adata.uns["tosica"] = {"labels": np.array(list(labels), dtype=object)}
    return adata


def _sklearn(true_labels, predicted):
    """Scores of scikit-learn itself, over the known labels."""
    with warnings.catch_warnings():
        # Predictions that are no known label.
        warnings.simplefilter("ignore", UserWarning)
        balanced = metrics.balanced_accuracy_score(true_labels, predicted)
    return {
        "accuracy": metrics.accuracy_score(true_labels, predicted),
        "balanced_accuracy": balanced,
        "macro_f1": metrics.f1_score(
            true_labels,
            predicted,
            labels=sorted(set(true_labels)),
            average="macro",
            zero_division=0,
        ),
    }


_PAIRS = annotated_cells("abc", ["a", "b", "x", "Unknown"])


# -- scores -----------------------------------------------------------------------------------


@settings(max_examples=40)
@given(_PAIRS)
def test_scores_are_those_of_sklearn(cells):
    true_labels, predicted, *_ = (list(column) for column in zip(*cells, strict=True))
    scores = tosica.tl.evaluate(_adata(true_labels, predicted, labels="abcx"), "known")
    expected = _sklearn(true_labels, predicted)
    row = scores.summary.iloc[0]
    assert row["n_cells"] == len(cells)
    assert row[list(expected)].to_dict() == pytest.approx(expected)
    for label in scores.per_class.index:
        of_label = scores.per_class.loc[label]
        truth, called = np.array(true_labels) == label, np.array(predicted) == label
        assert of_label["n_cells"] == truth.sum()
        assert of_label["n_predicted"] == called.sum()
        assert of_label["recall"] == pytest.approx(metrics.recall_score(truth, called))
        assert of_label["f1"] == pytest.approx(metrics.f1_score(truth, called))
        if called.any():
            expected_precision = metrics.precision_score(truth, called)
            assert of_label["precision"] == pytest.approx(expected_precision)
        else:
            assert np.isnan(of_label["precision"])


def test_tables_are_those_of_their_functions():
    adata = annotated_pbmc()
    scores = tosica.tl.evaluate(adata, "bulk_labels", n_bins=7)
    assert_frame_equal(scores.confusion, tosica.tl.confusion(adata, "bulk_labels"))
    assert_frame_equal(
        scores.calibration, tosica.tl.reliability(adata, "bulk_labels", n_bins=7)
    )
    text = repr(scores)
    assert text.startswith(
        "Evaluation of 'tosica_prediction' on 700 cells\naccuracy 0."
    )
    assert "expected calibration error" in text
    assert all(label in text for label in scores.per_class.index)


def test_probability_is_that_of_the_cells_that_were_called_so():
    adata = _adata(list("aab"), list("aba"), [0.5, 0.9, 0.75])
    table = tosica.tl.evaluate(adata, "known").per_class
    assert table["probability"].to_dict() == {"a": 0.625, "b": 0.9}


def test_all_cells_are_unknown():
    scores = tosica.tl.evaluate(
        _adata(["a", "b"], ["Unknown"] * 2, labels="ab"), "known"
    )
    assert tuple(scores.summary[["accuracy", "share_unknown"]].iloc[0]) == (0, 1)
    assert np.isnan(scores.summary["expected_calibration_error"].item())
    assert scores.calibration.empty
    assert "accuracy 0.000" in repr(scores)


def test_what_the_log_says_of_cells_that_cannot_be_right(caplog):
    adata = annotated_pbmc()
    adata.obs["partly"] = adata.obs["bulk_labels"].where(np.arange(700) % 2 == 0)
    scores = tosica.tl.evaluate(adata, "partly")
    assert (
        "350 of 700 cells have no label in .obs['partly'] and are left out"
        in caplog.text
    )
    half = tosica.tl.evaluate(adata[::2].copy(), "bulk_labels")
    assert_frame_equal(scores.summary, half.summary)
    assert_frame_equal(scores.calibration, half.calibration)
    adata = _adata(["a", "b", "new", "newer"], ["a", "b", "a", "b"], labels="ab")
    scores = tosica.tl.evaluate(adata, "known")
    assert scores.summary["accuracy"].item() == 0.5
    assert scores.per_class.loc["new", "recall"] == 0
    assert (
        "not trained on 'new', 'newer', so these cells (2) count as wrong"
        in caplog.text
    )


def test_labels_that_predictions_have_are_not_called_foreign(caplog):
    adata = _adata(["a", "b", "a", "b"], ["a", "b", "b", "b"], labels="ab")
    for column in ("known", "tosica_prediction"):
        adata.obs[f"{column}_broad"] = "broad"
    tosica.tl.evaluate(adata, "known_broad", prediction_key="tosica_prediction_broad")
    assert "not trained on" not in caplog.text


def test_another_column_has_no_probabilities():
    adata = annotated_pbmc()
    tosica.tl.majority_vote(adata, "louvain", 0.9)
    scores = tosica.tl.evaluate(
        adata, "bulk_labels", prediction_key="tosica_majority_vote"
    )
    voted = adata.obs["tosica_majority_vote"].astype(str)
    expected = _sklearn(adata.obs["bulk_labels"].astype(str), voted)
    assert scores.summary.iloc[0][list(expected)].to_dict() == pytest.approx(expected)
    assert (
        scores.summary["share_unknown"].item() == (voted == "Heterogeneous").mean() > 0
    )
    assert scores.calibration is None
    assert np.isnan(scores.summary["expected_calibration_error"].item())
    assert scores.per_class["probability"].isna().all()
    assert "calibration" not in repr(scores)


# -- wrong input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("true_labels", "predicted", "error", "sentence"),
    [
        ([None, None], ["a", "b"], ValueError, "No cell has a known label"),
        (["a", "b"], ["a", None], ValueError, r"missing \(NaN\) in 1 of 2"),
        (["0", "1"], ["a", "Unknown"], ValueError, "no label in common"),
        (["0", "Unknown"], ["a", "Unknown"], ValueError, "no label in common"),
        (["a", "b"], ["Unknown", "Unknown"], ValueError, "All cells"),
        (
            ["a", "b"],
            ["a", "b"],
            KeyError,
            r"run model\.annotate\(adata, key_added='tosica'\)",
        ),
    ],
)
def test_what_cannot_be_compared(true_labels, predicted, error, sentence):
    adata = _adata(
        pd.Categorical(true_labels, ["0", "1", "a", "b", "Unknown"]),
        predicted,
        labels="ab",
    )
    if error is KeyError:
        del adata.obs["tosica_probability"]
    call = tosica.tl.reliability if sentence == "All cells" else tosica.tl.evaluate
    with pytest.raises(error, match=sentence):
        call(adata, "known")


# -- confusion --------------------------------------------------------------------------------


def test_order_is_that_of_the_categories_and_unknown_is_last():
    true_labels = pd.Categorical(
        ["B", "T", "B", "Unknown"], ["Unknown", "T", "B", "unused"]
    )
    predicted = pd.Categorical(["B", "Unknown", "NK", "T"], ["NK", "Unknown", "B", "T"])
    table = tosica.tl.confusion(_adata(true_labels, predicted), "known")
    assert list(table.index) == ["T", "B", "Unknown"]
    assert list(table.columns) == ["T", "B", "NK", "Unknown"]
    assert table.index.name == "known"
    assert table.columns.name == "tosica_prediction"


@pytest.mark.parametrize(
    ("true_labels", "predicted", "columns"),
    [
        ("011", ["B", "T", "Unknown"], ["B", "T", "Unknown"]),
        (["0", "Unknown"], ["B", "Unknown"], ["B", "Unknown"]),
    ],
)
def test_clusters_against_labels_have_no_empty_columns(true_labels, predicted, columns):
    table = tosica.tl.confusion(_adata(list(true_labels), predicted), "known")
    assert list(table.columns) == columns


@settings(max_examples=30)
@given(annotated_cells("abcd", [*"abcxy", "Unknown"]))
def test_counts_are_those_of_pandas_and_rows_sum_to_one(cells):
    true_labels, predicted, *_ = (list(column) for column in zip(*cells, strict=True))
    adata = _adata(true_labels, predicted)
    counts = tosica.tl.confusion(adata, "known")
    expected = pd.crosstab(adata.obs["known"], adata.obs["tosica_prediction"])
    assert counts.dtypes.eq("int64").all()
    assert counts.to_numpy().sum() == len(cells)
    assert (counts.loc[expected.index, expected.columns] == expected).all(axis=None)
    np.testing.assert_allclose(
        tosica.tl.confusion(adata, "known", normalize=True).sum(axis=1), 1
    )


# -- reliability ------------------------------------------------------------------------------


def test_bins_count_right_labels():
    adata = annotated_pbmc()
    table = tosica.tl.reliability(adata, "bulk_labels", n_bins=5)
    named = (adata.obs["tosica_prediction"] != "Unknown").to_numpy()
    probability = adata.obs["tosica_probability"].to_numpy()
    predicted = adata.obs["tosica_prediction"].astype(str)
    right = (predicted == adata.obs["bulk_labels"].astype(str)).to_numpy()
    assert table["n_cells"].sum() == named.sum()
    for row in table.itertuples():
        inside = named & (probability > row.low) & (probability <= row.high)
        assert row.n_cells == inside.sum()
        assert row.accuracy == pytest.approx(right[inside].mean())
        assert row.probability == pytest.approx(probability[inside].mean())
        assert row.accuracy_low <= row.accuracy <= row.accuracy_high
    adata.obs["tosica_probability"] = np.float32(1)
    assert tosica.tl.reliability(adata, "bulk_labels")["high"].to_list() == [1.0]


# -- the Cell Ontology ------------------------------------------------------------------------


TERMS = {
    "T": "CL:0000084",
    "CD4 T": "CL:0000624",
    "B": "CL:0000236",
    "naive B": "CL:0000788",
    "odd": "unknown",
    "Unknown": "unknown",
}


def with_terms(true_labels, predicted):
    adata = _adata(true_labels, predicted)
    for column in ("known", "tosica_prediction"):
        adata.obs[f"{column}_ontology_term_id"] = [
            TERMS[label] for label in adata.obs[column]
        ]
    return adata


def is_right(true_labels, predicted):
    truth, term = TERMS[true_labels], TERMS[predicted]
    if true_labels == predicted or "unknown" in (truth, term):
        return true_labels == predicted
    return truth == term or truth in tosica.onto.ancestors(term)


_LABELS = st.sampled_from(sorted(TERMS))


@settings(max_examples=60)
@given(st.lists(st.tuples(_LABELS, _LABELS), min_size=1, max_size=12))
def test_scores(pairs):
    # One pair in which both have terms, and words that both columns have.
    true_labels, predicted = zip(*pairs, ("T", "T"), strict=True)
    scores = tosica.tl.evaluate(
        with_terms(list(true_labels), list(predicted)), "known", ontology=True
    )
    right = np.array(
        [is_right(*pair) for pair in zip(true_labels, predicted, strict=True)]
    )
    row = scores.summary.iloc[0]
    assert row["ontology_accuracy"] == pytest.approx(right.mean())
    without = [
        "unknown" in (TERMS[one], TERMS[other])
        for one, other in zip(true_labels, predicted, strict=True)
    ]
    assert row["share_without_term"] == pytest.approx(np.mean(without))
    assert row["ontology_accuracy"] >= row["accuracy"]
    assert f"ontology accuracy {right.mean():.3f}" in repr(scores)
    for label in scores.per_class.index:
        of_label = right[np.array(true_labels) == label]
        assert scores.per_class.loc[label, "ontology_recall"] == pytest.approx(
            of_label.mean()
        )
        assert scores.per_class.loc[label, "recall"] <= of_label.mean() + 1e-12


def test_a_confident_answer_may_be_above_the_known_label():
    adata = with_terms(
        ["CD4 T", "naive B", "B", "CD4 T"], ["T", "B", "naive B", "Unknown"]
    )
    adata.obs["tosica_confident"] = adata.obs["tosica_prediction"]
    adata.obs["tosica_confident_ontology_term_id"] = adata.obs[
        "tosica_prediction_ontology_term_id"
    ]
    for column, share in (("tosica_prediction", 1 / 4), ("tosica_confident", 3 / 4)):
        scores = tosica.tl.evaluate(
            adata, "known", prediction_key=column, ontology=True
        ).summary
        assert scores["ontology_accuracy"].item() == pytest.approx(share)


def test_terms_are_found_by_name_and_words_may_differ():
    adata = _adata(
        ["T cell", "B cell", None, "NK cell"],
        ["T lymphocytes", "B-cells", "T cell", "T cells"],
    )
    with pytest.raises(ValueError, match="have no label in common"):
        tosica.tl.evaluate(adata[:2].copy(), "known")
    scores = tosica.tl.evaluate(adata, "known", ontology=True)
    assert scores.summary["n_cells"].item() == 3
    assert scores.summary["accuracy"].item() == 0
    assert scores.summary["ontology_accuracy"].item() == pytest.approx(2 / 3)


def test_terms_that_the_ontology_lacks_do_not_count():
    adata = with_terms(["T", "B", "B"], ["T", "B", "naive B"])
    adata.obs["known_ontology_term_id"] = ["CL:0000084", "CL:0000003", np.nan]
    scores = tosica.tl.evaluate(adata, "known", ontology=True)
    assert scores.summary["share_without_term"].item() == pytest.approx(2 / 3)
    assert scores.summary["ontology_accuracy"].item() == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("true_labels", "predicted", "column"),
    [("a", "T cells", "known"), ("T cells", "a", "tosica_prediction")],
)
def test_labels_without_any_term(true_labels, predicted, column):
    sentence = f"no cell has a term for its label in adata.obs[{column!r}]: call tosica.onto.map_labels(adata, "
    with pytest.raises(ValueError, match=re.escape(sentence)):
        tosica.tl.evaluate(_adata([true_labels], [predicted]), "known", ontology=True)


# -- what is read --------------------------------------------------------------------------------


@pytest.mark.parametrize("predicted", [["1", "2", "2"], [1, 2, 2], [1.0, 2.0, 2.0]])
@pytest.mark.parametrize("known", [[1, 2, 1], [1.0, 2.0, np.nan]])
def test_whole_numbers_may_be_kept_as_any_number(known, predicted):
    scores = tosica.tl.evaluate(_adata(known, predicted, labels="12"), "known")
    assert scores.confusion.loc["1", "1"] == 1
    assert scores.confusion.loc["2", "2"] == 1


@pytest.mark.parametrize("known", [[1, 2, 1], [1.0, 2.0, np.nan]])
def test_labels_may_be_numbers_with_a_point(known):
    adata = _adata(known, ["1.0", "2.0", "2.0"], labels=["1.0", "2.0"])
    scores = tosica.tl.evaluate(adata, "known")
    assert scores.confusion.loc["1.0", "1.0"] == 1


@pytest.mark.parametrize("probability", [np.nan, 90.0])
def test_probabilities_are_shares(probability):
    with pytest.raises(ValueError, match="not between 0 and 1"):
        tosica.tl.evaluate(_adata(["a"], ["a"], probability, labels="ab"), "known")


def test_confusion_leaves_out_cells_without_a_label():
    adata = _adata(["a", "b", None], ["a", "b", "c"])
    counts = tosica.tl.confusion(adata, "known")
    assert counts.to_numpy().tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("function", ["confusion", "evaluate", "reliability"])
def test_a_column_without_values_has_no_labels(function):
    adata = _adata([np.nan, np.nan], ["a", "b"])
    with pytest.raises(ValueError, match="No cell has a known label"):
        getattr(tosica.tl, function)(adata, "known")
