"""Predictions are scored by the Cell Ontology: a kind of the known label is right."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from hypothesis import given, settings
from hypothesis import strategies as st

import tosica

TERMS = {
    "T": "CL:0000084",
    "CD4 T": "CL:0000624",
    "B": "CL:0000236",
    "naive B": "CL:0000788",
    "odd": "unknown",
    "Unknown": "unknown",
}


def annotated(known: list, predicted: list, **columns: list) -> AnnData:
    obs = pd.DataFrame({"known": known, "tosica_prediction": predicted, **columns})
    obs["tosica_probability"] = 0.5
    obs.index = obs.index.astype(str)
    return AnnData(np.zeros((len(obs), 1), np.float32), obs=obs)


def with_terms(known: list, predicted: list) -> AnnData:
    of_known, of_predicted = ([TERMS[label] for label in some] for some in (known, predicted))
    more = {"known_ontology_term_id": of_known, "tosica_prediction_ontology_term_id": of_predicted}
    return annotated(known, predicted, **more)


def is_right(known: str, predicted: str) -> bool:
    if known == predicted:
        return True
    truth, term = TERMS[known], TERMS[predicted]
    if "unknown" in (truth, term):
        return False
    return truth == term or truth in tosica.onto.ancestors(term)


_LABELS = st.sampled_from(sorted(TERMS))


@settings(max_examples=60)
@given(st.lists(st.tuples(_LABELS, _LABELS), min_size=1, max_size=12))
def test_scores(pairs: list[tuple[str, str]]) -> None:
    # One pair in which both have terms, and words that both columns have.
    known, predicted = zip(*pairs, ("T", "T"), strict=True)
    found = tosica.tl.evaluate(with_terms(list(known), list(predicted)), "known", ontology=True)
    right = np.array([is_right(*pair) for pair in zip(known, predicted, strict=True)])
    row = found.summary.iloc[0]
    assert row["ontology_accuracy"] == pytest.approx(right.mean())
    without = [
        "unknown" in (TERMS[one], TERMS[other]) for one, other in zip(known, predicted, strict=True)
    ]
    assert row["share_without_term"] == pytest.approx(np.mean(without))
    assert row["ontology_accuracy"] >= row["accuracy"]
    for label in found.per_class.index:
        of_label = right[np.array(known) == label]
        assert found.per_class.loc[label, "ontology_recall"] == pytest.approx(of_label.mean())
        assert found.per_class.loc[label, "recall"] <= of_label.mean() + 1e-12


def test_a_subtype_is_right_and_a_parent_is_not() -> None:
    adata = with_terms(["T", "CD4 T", "B", "naive B"], ["CD4 T", "T", "T", "naive B"])
    found = tosica.tl.evaluate(adata, "known", ontology=True)
    assert found.summary["accuracy"].item() == 0.25
    assert found.summary["ontology_accuracy"].item() == 0.5
    recall = found.per_class["ontology_recall"].to_dict()
    assert recall == {"T": 1, "CD4 T": 0, "B": 0, "naive B": 1}
    assert "ontology accuracy 0.500" in repr(found)


def test_without_it_nothing_is_new() -> None:
    adata = with_terms(["T", "B"], ["T", "B"])
    found = tosica.tl.evaluate(adata, "known")
    assert "ontology_accuracy" not in found.summary
    assert "ontology_recall" not in found.per_class


def test_terms_are_found_by_name_and_words_may_differ() -> None:
    adata = annotated(
        ["T cell", "B cell", None, "NK cell"], ["T lymphocytes", "B-cells", "T cell", "T cells"]
    )
    with pytest.raises(ValueError, match="have no label in common"):
        tosica.tl.evaluate(adata[:2].copy(), "known")
    found = tosica.tl.evaluate(adata, "known", ontology=True)
    assert found.summary["n_cells"].item() == 3
    assert found.summary["accuracy"].item() == 0
    assert found.summary["ontology_accuracy"].item() == pytest.approx(2 / 3)


def test_terms_that_the_ontology_lacks_do_not_count() -> None:
    adata = with_terms(["T", "B", "B"], ["T", "B", "naive B"])
    adata.obs["known_ontology_term_id"] = ["CL:0000084", "CL:0000003", np.nan]
    found = tosica.tl.evaluate(adata, "known", ontology=True)
    assert found.summary["share_without_term"].item() == pytest.approx(2 / 3)
    assert found.summary["ontology_accuracy"].item() == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("known", "predicted", "column"),
    [("a", "T cells", "known"), ("T cells", "a", "tosica_prediction")],
)
def test_labels_without_any_term(known: str, predicted: str, column: str) -> None:
    adata = annotated([known, known], [predicted, predicted])
    sentence = (
        f"ontology=True was given, but no cell has a term for its label in adata.obs[{column!r}]: "
        f"call tosica.onto.map_labels(adata, {column!r}, mapping={{label: identifier}}) first."
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        tosica.tl.evaluate(adata, "known", ontology=True)
