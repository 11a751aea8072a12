from __future__ import annotations

import dataclasses
import warnings

import mudata as md
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from _strategies import annotated_cells
from anndata import AnnData
from get.annotated_pbmc import annotated_pbmc
from hypothesis import given, settings
from sklearn import metrics

import tosica


def _adata(known, predicted, probability=None, labels=None) -> AnnData:
    obs = pd.DataFrame({"known": known, "tosica_prediction": predicted})
    obs["tosica_probability"] = 0.5 if probability is None else probability
    obs.index = obs.index.astype(str)
    adata = AnnData(np.zeros((len(obs), 1), np.float32), obs=obs)
    if labels is not None:
        adata.uns["tosica"] = {"labels": np.array(list(labels), dtype=object)}
    return adata


def _logged(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def _sklearn(known, predicted) -> dict[str, float]:
    """Scores of scikit-learn itself, over the known labels."""
    with warnings.catch_warnings():
        # Predictions that are no known label.
        warnings.simplefilter("ignore", UserWarning)
        balanced = metrics.balanced_accuracy_score(known, predicted)
    return {
        "accuracy": metrics.accuracy_score(known, predicted),
        "balanced_accuracy": balanced,
        "macro_f1": metrics.f1_score(
            known, predicted, labels=sorted(set(known)), average="macro", zero_division=0
        ),
    }


_PAIRS = annotated_cells("abc", ["a", "b", "x", "Unknown"])


# -- scores -----------------------------------------------------------------------------------


@settings(max_examples=40)
@given(_PAIRS)
def test_scores_are_those_of_sklearn(cells):
    known, predicted, *_ = (list(column) for column in zip(*cells, strict=True))
    found = tosica.tl.evaluate(_adata(known, predicted, labels="abcx"), "known")
    expected = _sklearn(known, predicted)
    row = found.summary.iloc[0]
    assert row["n_cells"] == len(cells)
    assert row[list(expected)].to_dict() == pytest.approx(expected)
    for label in found.per_class.index:
        of_label = found.per_class.loc[label]
        truth, called = np.array(known) == label, np.array(predicted) == label
        assert of_label["n_cells"] == truth.sum()
        assert of_label["n_predicted"] == called.sum()
        assert of_label["recall"] == pytest.approx(metrics.recall_score(truth, called))
        assert of_label["f1"] == pytest.approx(metrics.f1_score(truth, called))
        if called.any():
            expected_precision = metrics.precision_score(truth, called)
            assert of_label["precision"] == pytest.approx(expected_precision)
        else:
            assert np.isnan(of_label["precision"])


@settings(max_examples=40)
@given(_PAIRS)
def test_the_order_of_cells_does_not_matter(cells):
    shuffled = sorted(cells, key=lambda cell: cell[3])
    one, other = (
        tosica.tl.evaluate(_adata(*list(zip(*order, strict=True))[:3], labels="abcx"), "known")
        for order in (cells, shuffled)
    )
    pd.testing.assert_frame_equal(one.summary, other.summary)
    pd.testing.assert_frame_equal(one.per_class, other.per_class)
    pd.testing.assert_frame_equal(one.confusion, other.confusion)
    pd.testing.assert_frame_equal(one.calibration, other.calibration)


def test_confusion_and_calibration_are_those_of_their_functions():
    adata = annotated_pbmc()
    found = tosica.tl.evaluate(adata, "bulk_labels", n_bins=7)
    pd.testing.assert_frame_equal(found.confusion, tosica.tl.confusion(adata, "bulk_labels"))
    pd.testing.assert_frame_equal(
        found.calibration, tosica.tl.reliability(adata, "bulk_labels", n_bins=7)
    )


def test_calibration_error_is_the_one_that_the_plot_shows():
    adata = annotated_pbmc()
    error = tosica.tl.evaluate(adata, "bulk_labels").summary["expected_calibration_error"].item()
    bins = tosica.tl.reliability(adata, "bulk_labels")
    distance = (bins["accuracy"] - bins["probability"]).abs()
    assert error == pytest.approx((distance * bins["n_cells"]).sum() / bins["n_cells"].sum())
    title = tosica.pl.reliability(adata, "bulk_labels", show=False).get_title()
    assert f"{error:.1%}".replace("%", " %") in title


def test_probability_is_that_of_the_cells_that_were_called_so():
    adata = _adata(list("aab"), list("aba"), [0.5, 0.9, 0.75])
    table = tosica.tl.evaluate(adata, "known").per_class
    assert table["probability"].to_dict() == {"a": 0.625, "b": 0.9}


def test_unknown_is_wrong_unless_it_is_the_truth():
    adata = _adata(["a", "a", "b", "Unknown"], ["a", "Unknown", "b", "Unknown"])
    found = tosica.tl.evaluate(adata, "known")
    assert found.summary["accuracy"].item() == 0.75
    assert found.summary["share_unknown"].item() == 0.5
    assert found.per_class.loc["a", "recall"] == 0.5
    assert found.per_class.index[-1] == "Unknown"


def test_all_cells_are_unknown():
    found = tosica.tl.evaluate(_adata(["a", "b"], ["Unknown"] * 2, labels="ab"), "known")
    assert found.summary["accuracy"].item() == 0
    assert found.summary["share_unknown"].item() == 1
    assert np.isnan(found.summary["expected_calibration_error"].item())
    assert found.calibration.empty
    assert "accuracy 0.000" in repr(found)


def test_cells_without_a_known_label_are_left_out(caplog):
    adata = annotated_pbmc()
    adata.obs["partly"] = adata.obs["bulk_labels"].where(np.arange(700) % 2 == 0)
    found = tosica.tl.evaluate(adata, "partly")
    assert "350 of 700 cells have no label in .obs['partly'] and are left out" in _logged(caplog)
    half = tosica.tl.evaluate(adata[::2].copy(), "bulk_labels")
    pd.testing.assert_frame_equal(found.summary, half.summary)
    pd.testing.assert_frame_equal(found.calibration, half.calibration)


def test_labels_that_the_model_does_not_know_are_wrong_and_named(caplog):
    adata = _adata(["a", "b", "new", "newer"], ["a", "b", "a", "b"], labels="ab")
    found = tosica.tl.evaluate(adata, "known")
    assert found.summary["accuracy"].item() == 0.5
    assert found.per_class.loc["new", "recall"] == 0
    assert "not trained on 'new', 'newer', so these cells (2) count as wrong" in _logged(caplog)


def test_nothing_is_logged_where_nothing_is_odd(caplog):
    tosica.tl.evaluate(annotated_pbmc(), "bulk_labels")
    assert not _logged(caplog)


# -- other columns and data -------------------------------------------------------------------


def test_another_column_has_no_probabilities():
    adata = annotated_pbmc()
    tosica.tl.majority_vote(adata, "louvain", 0.9)
    found = tosica.tl.evaluate(adata, "bulk_labels", prediction="tosica_majority_vote")
    voted = adata.obs["tosica_majority_vote"].astype(str)
    expected = _sklearn(adata.obs["bulk_labels"].astype(str), voted)
    assert found.summary.iloc[0][list(expected)].to_dict() == pytest.approx(expected)
    assert found.summary["share_unknown"].item() == (voted == "Heterogeneous").mean() > 0
    assert found.calibration is None
    assert np.isnan(found.summary["expected_calibration_error"].item())
    assert found.per_class["probability"].isna().all()
    assert "calibration" not in repr(found)


def test_summaries_can_be_put_under_each_other():
    adata = annotated_pbmc()
    tosica.tl.majority_vote(adata, "louvain")
    columns = ["tosica_prediction", "tosica_majority_vote"]
    rows = [
        tosica.tl.evaluate(adata, "bulk_labels", prediction=column).summary for column in columns
    ]
    table = pd.concat(rows)
    assert list(table.index) == columns
    assert table["n_cells"].dtype == np.int64
    assert table["expected_calibration_error"].notna().to_list() == [True, False]


def test_key_names_the_annotation():
    adata = annotated_pbmc(key="lung")
    found = tosica.tl.evaluate(adata, "bulk_labels", key="lung")
    assert found.summary.index.to_list() == ["lung_prediction"]
    assert found.calibration is not None


def test_a_mudata():
    adata = annotated_pbmc()
    adata.obs_names_make_unique()
    parts = {
        name: AnnData(
            np.zeros((700, 1), np.float32),
            obs=pd.DataFrame(index=adata.obs_names),
            var=pd.DataFrame(index=[name]),
        )
        for name in ("rna", "protein")
    }
    mdata = md.MuData(parts)
    for column in ("bulk_labels", "tosica_prediction", "tosica_probability"):
        mdata.obs[column] = adata.obs[column]
    mdata.uns["tosica"] = adata.uns["tosica"]
    found = tosica.tl.evaluate(mdata, "bulk_labels")
    expected = tosica.tl.evaluate(adata, "bulk_labels")
    pd.testing.assert_frame_equal(found.summary, expected.summary)
    pd.testing.assert_frame_equal(found.per_class, expected.per_class)


def test_what_a_model_annotated(query):
    found = tosica.tl.evaluate(query, "bulk_labels")
    expected = _sklearn(
        query.obs["bulk_labels"].astype(str), query.obs["tosica_prediction"].astype(str)
    )
    assert found.summary.iloc[0][list(expected)].to_dict() == pytest.approx(expected)


def test_leaves_the_data_alone():
    adata = annotated_pbmc()
    before = adata.copy()
    tosica.tl.evaluate(adata, "bulk_labels")
    pd.testing.assert_frame_equal(adata.obs, before.obs)
    assert set(adata.uns) == set(before.uns)


def test_repr_shows_the_scores_and_each_label():
    found = tosica.tl.evaluate(annotated_pbmc(), "bulk_labels")
    text = repr(found)
    assert text.startswith("Evaluation of 'tosica_prediction' on 700 cells\naccuracy 0.")
    assert "expected calibration error" in text
    assert all(label in text for label in found.per_class.index)


def test_an_evaluation_is_frozen():
    found = tosica.tl.evaluate(annotated_pbmc(), "bulk_labels")
    assert isinstance(found, tosica.tl.Evaluation)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.summary = found.per_class


# -- wrong input ------------------------------------------------------------------------------


def test_not_annotated():
    with pytest.raises(KeyError, match=r"run model\.annotate\(adata, key_added='tosica'\)"):
        tosica.tl.evaluate(sc.datasets.pbmc68k_reduced(), "bulk_labels")


def test_probabilities_are_gone():
    adata = annotated_pbmc()
    del adata.obs["tosica_probability"]
    with pytest.raises(KeyError, match="no column 'tosica_probability'"):
        tosica.tl.evaluate(adata, "bulk_labels")


def test_missing_labels():
    with pytest.raises(KeyError, match="no column 'cell_type'"):
        tosica.tl.evaluate(annotated_pbmc(), "cell_type")


def test_missing_prediction():
    with pytest.raises(KeyError, match="no column 'voted'"):
        tosica.tl.evaluate(annotated_pbmc(), "bulk_labels", prediction="voted")


def test_no_label_is_known():
    adata = _adata(pd.Categorical([None, None], ["a"]), ["a", "b"])
    with pytest.raises(ValueError, match=r"No cell has a known label: adata\.obs\['known'\]"):
        tosica.tl.evaluate(adata, "known")


def test_cells_without_a_prediction():
    with pytest.raises(ValueError, match=r"\['tosica_prediction'\] is missing \(NaN\) in 1 of 2"):
        tosica.tl.evaluate(_adata(["a", "b"], ["a", None]), "known")


@pytest.mark.parametrize("known", [["0", "1"], ["0", "Unknown"]])
def test_other_words(known):
    with pytest.raises(ValueError, match="have no label in common"):
        tosica.tl.evaluate(_adata(known, ["a", "Unknown"], labels="ab"), "known")


def test_numbers_are_no_labels():
    with pytest.raises(TypeError, match="not groups"):
        tosica.tl.evaluate(annotated_pbmc(), "percent_mito")


def test_no_bins():
    with pytest.raises(ValueError, match="n_bins must be at least 1, not 0"):
        tosica.tl.evaluate(annotated_pbmc(), "bulk_labels", n_bins=0)


def test_not_an_anndata():
    with pytest.raises(TypeError, match="must be an AnnData or a MuData, not a DataFrame"):
        tosica.tl.evaluate(annotated_pbmc().obs, "bulk_labels")


def test_no_cells():
    with pytest.raises(ValueError, match="adata has no cells"):
        tosica.tl.evaluate(annotated_pbmc()[:0].copy(), "bulk_labels")
