"""Terms of the Cell Ontology: taken from a reference, kept with the model, written and reported."""

import re

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from _cells import make_toy, untrained
from hypothesis import given, settings
from hypothesis import strategies as st

import tosica
from tosica.model._save_load import read_plain, write_plain
from tosica.onto._hierarchy import LabelHierarchy

TERMS = {
    "a": "CL:0000624",
    "b": "CL:0000625",
    "c": "CL:0000236",
}  # CD4 T cells, CD8 T cells, B cells
COLUMN = "tosica_prediction_ontology_term_id"


def reference(terms=None, n_obs=90):
    adata = make_toy(n_obs)
    tosica.pp.build_mask(
        adata,
        {"one": [f"G{i}" for i in range(12)], "two": ["G20", "G21", "G22"]},
        min_genes=1,
    )
    if terms is not None:
        adata.obs["kind_ontology_term_id"] = adata.obs["kind"].map(terms).astype(str)
    return adata


@pytest.fixture
def model(toy_model):
    """The shared model with terms, which it has not afterwards."""
    toy_model.ontology_term_ids_ = TERMS
    yield toy_model
    toy_model.ontology_term_ids_ = {}


# --------------------------------------------------------------------------- where they come from


def test_they_are_those_of_the_reference():
    model = untrained(reference(TERMS))
    assert model.ontology_term_ids_ == TERMS
    # What is given out is a copy.
    model.ontology_term_ids_["c"] = "CL:0000084"
    model.ontology_term_ids_ = {"a": "CL:0000624", "b": "unknown"}
    assert model.ontology_term_ids_ == {"a": "CL:0000624"}
    model = untrained(reference(TERMS), unlabeled_category="c")
    assert model.ontology_term_ids_ == {"a": "CL:0000624", "b": "CL:0000625"}


def test_labels_without_a_term_have_none():
    assert untrained(reference()).ontology_term_ids_ == {}
    terms = {"a": "CL:0000624", "b": "unknown", "c": "na"}
    assert untrained(reference(terms)).ontology_term_ids_ == {"a": "CL:0000624"}
    adata = reference(TERMS)
    adata.obs.loc[adata.obs["kind"] == "b", "kind_ontology_term_id"] = np.nan
    assert set(untrained(adata).ontology_term_ids_) == {"a", "c"}
    adata = reference(TERMS)
    adata.obs.iloc[0, adata.obs.columns.get_loc("kind_ontology_term_id")] = "CL:0000084"
    with pytest.warns(UserWarning, match=re.escape("'a' (several terms)")):
        model = untrained(adata)
    assert set(model.ontology_term_ids_) == {"b", "c"}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            "CL:0000255",
            "('CL:0000255' may not be used for cells, says the CELLxGENE schema 7.1.0)",
        ),
        (
            "CL:0000003",
            "('CL:0000003' (native cell) is obsolete in the Cell Ontology, which names",
        ),
        (
            "FBbt:00007002",
            "('FBbt:00007002' is no term of the Cell Ontology of 2026-03-26, such as",
        ),
    ],
)
def test_a_wrong_term_is_left_out(wrong, sentence):
    with pytest.warns(UserWarning, match=re.escape(sentence)):
        model = untrained(reference(TERMS | {"b": wrong}))
    assert set(model.ontology_term_ids_) == {"a", "c"}


@pytest.mark.parametrize(
    ("terms", "error", "sentence"),
    [
        (
            ["CL:0000624"],
            TypeError,
            "ontology_term_ids_ must be a dict of label to term",
        ),
        (
            {"a": 624},
            TypeError,
            "ontology_term_ids_ must hold identifiers such as 'CL:0000084', not",
        ),
        (
            {"d": "CL:0000624"},
            KeyError,
            "the model has no label 'd', only 'a', 'b', 'c'",
        ),
        (
            {"a": "CL:0000548"},
            ValueError,
            "ontology_term_ids_ gives 'a' a wrong term: 'CL:0000548' ",
        ),
        (
            {"a": "T cell"},
            ValueError,
            "'T cell' is no term of the Cell Ontology of 2026-03-26",
        ),
    ],
)
def test_wrong_terms_are_refused(toy_model, terms, error, sentence):
    with pytest.raises(error, match=re.escape(sentence)):
        toy_model.ontology_term_ids_ = terms
    assert toy_model.ontology_term_ids_ == {}


# --------------------------------------------------------------------------- where they stay


def edit(path, terms):
    """Write other terms into a file, or none at all."""
    contents = read_plain(path)
    del contents["attr_dict"]["ontology_term_ids_"]
    if terms is not None:
        contents["attr_dict"]["ontology_term_ids_"] = terms
    write_plain(contents, path)


def test_terms_of_another_release_can_be_loaded(model, tmp_path, toy_query):
    model.save(tmp_path / "model")
    assert tosica.TOSICA.load(tmp_path / "model").ontology_term_ids_ == TERMS
    terms = {"a": "CL:9999999", "b": "CL:0000625"}
    edit(tmp_path / "model" / "model.pt", terms)
    loaded = tosica.TOSICA.load(tmp_path / "model")
    assert loaded.ontology_term_ids_ == terms
    loaded.annotate(toy_query)
    assert "CL:9999999" in set(toy_query.obs[COLUMN])
    sets = loaded.predict_set(toy_query, coverage=0.8, ontology=True)
    assert "CL:9999999" not in set(sets["ontology_term_id"])


# --------------------------------------------------------------------------- what is written


def test_unknown_cells_and_labels_without_a_term(model, toy_query):
    model.annotate(toy_query)
    assert (
        toy_query.obs[COLUMN].astype(str).tolist()
        == toy_query.obs["tosica_prediction"].map(TERMS).tolist()
    )
    model.ontology_term_ids_ = {"a": "CL:0000624"}
    model.annotate(toy_query, cutoff=0.95, key_added="other")
    labels = toy_query.obs["other_prediction"].astype(str)
    assert {"Unknown", "a"} < set(labels)
    expected = labels.map({"a": "CL:0000624"}).fillna("unknown")
    column = toy_query.obs["other_prediction_ontology_term_id"]
    assert column.tolist() == expected.tolist()
    assert set(column.cat.categories) == {"CL:0000624", "unknown"}
    # Terms of an earlier call go.
    model.ontology_term_ids_ = {}
    model.annotate(toy_query)
    assert COLUMN not in toy_query.obs
    with pytest.raises(
        ValueError, match=r"no label of the model has a term: assign a dict of"
    ):
        model.predict_set(toy_query, ontology=True)


@pytest.mark.parametrize("terms", [TERMS, {}])
def test_files_are_annotated_alike(model, toy_query, tmp_path, terms):
    model.ontology_term_ids_ = terms
    toy_query.obs[COLUMN] = "of an earlier call"
    toy_query.write_h5ad(tmp_path / "query.h5ad")
    model.save(tmp_path / "model")
    output = tmp_path / "annotated.h5ad"
    tosica.tl.annotate_file(
        tmp_path / "query.h5ad", tmp_path / "model", output, cells_per_part=25
    )
    model.annotate(toy_query)
    pd.testing.assert_frame_equal(
        ad.read_h5ad(output).obs, toy_query.obs, check_names=False
    )
    assert (COLUMN in toy_query.obs) == bool(terms)


# --------------------------------------------------------------------------- label sets


LABELS = {
    "CD4 T": "CL:0000624",
    "CD8 T": "CL:0000625",
    "T": "CL:0000084",
    "gd T": "CL:0000798",
    "B": "CL:0000236",
    "naive B": "CL:0000788",
    "monocyte": "CL:0000576",
    "fibroblast": "CL:0000057",
    "again T": "CL:0000084",
    "doublet": None,
}
COVERS = LabelHierarchy(list(LABELS), {k: v for k, v in LABELS.items() if v})


def members(*labels):
    return np.isin(list(LABELS), labels)


@settings(max_examples=25)
@given(st.sets(st.sampled_from(list(LABELS))))
def test_a_term_covers_the_whole_set(inside):
    term, covered = COVERS.cover(members(*inside))
    # So the coverage of the sets is kept.
    assert not (members(*inside) & ~covered).any()
    if not inside or "doublet" in inside:
        assert term is None
        assert set(np.array(list(LABELS))[covered]) == inside
        return
    assert term is not None
    below = {term, *tosica.onto.descendants(term)}
    for label, is_covered in zip(LABELS, covered, strict=True):
        assert is_covered == (LABELS[label] in below)
    # No other term covers the set and fewer labels.
    common = set.intersection(
        *(
            {LABELS[label], *tosica.onto.ancestors(str(LABELS[label]))}
            for label in inside
        )
    )
    for common_term in common:
        n_below = sum(
            bool(label_term)
            and common_term in {label_term, *tosica.onto.ancestors(str(label_term))}
            for label_term in LABELS.values()
        )
        assert covered.sum() <= n_below or common_term == "CL:0000255"


@pytest.mark.parametrize(("coverage", "allow_empty"), [(0.3, True), (0.8, False)])
def test_sets_as_terms_hold_what_the_sets_hold(model, toy_query, coverage, allow_empty):
    asked = {"coverage": coverage, "allow_empty": allow_empty}
    sets = model.predict_set(toy_query, **asked)
    terms = model.predict_set(toy_query, **asked, ontology=True)
    assert list(terms.index) == list(toy_query.obs_names)
    assert list(terms) == ["ontology_term_id", "ontology_label", "n_labels", "labels"]
    for (_, inside), row in zip(sets.iterrows(), terms.itertuples(), strict=True):
        listed = row.labels.split(" || ") if row.labels else []
        assert len(listed) == row.n_labels
        assert set(sets.columns[inside]) <= set(listed)
        assert (row.ontology_term_id == "unknown") == (not inside.any())
        if inside.sum() == 1:
            assert row.ontology_term_id == TERMS[sets.columns[inside][0]]


def test_sets_with_a_label_without_a_term_are_listed(model, toy_query, caplog):
    model.ontology_term_ids_ = {"a": "CL:0000624"}
    sets = model.predict_set(toy_query, coverage=0.9)
    terms = model.predict_set(toy_query, coverage=0.9, ontology=True)
    without = sets[["b", "c"]].any(axis=1)
    assert (terms.loc[without, "ontology_term_id"] == "unknown").all()
    listed = [" || ".join(sets.columns[row]) for row in sets[without].to_numpy()]
    assert terms.loc[without, "labels"].tolist() == listed
    assert (
        f"the sets of {without.sum()} cells have a label without a term" in caplog.text
    )


# --------------------------------------------------------------------------- confident answers


PARENTS = {
    "CD4 T": "T",
    "CD8 T": "T",
    "T": "lymphocyte",
    "B": "lymphocyte",
    "naive B": "B",
}


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 20), min_size=10, max_size=10),
    st.floats(0.05, 1),
    st.booleans(),
)
def test_the_deepest_group_that_is_probable_enough_is_the_answer(
    weights, confidence, named
):
    hierarchy = LabelHierarchy(
        list(LABELS), {k: v for k, v in LABELS.items() if v}, PARENTS if named else None
    )
    probabilities = np.array([np.array(weights) + 1e-3]) / (sum(weights) + 1e-2)
    (code,), (probability,) = hierarchy.answer(probabilities, confidence)
    sums, sizes = hierarchy.members @ probabilities[0], hierarchy.members.sum(1)
    assert sizes.max() < len(LABELS)
    if code == len(hierarchy.names):
        assert max(sums) < confidence
        assert probability == pytest.approx(max(sums))
        return
    assert probability == pytest.approx(sums[code])
    assert probability >= np.float32(confidence)
    assert max(sums[sizes < sizes[code]]) < confidence if sizes[code] > 1 else True
    assert max(sums[sizes == sizes[code]]) == pytest.approx(sums[code])


def test_groups_are_the_terms_or_the_parents_above_several_labels():
    terms = {k: v for k, v in LABELS.items() if v}
    of_terms = LabelHierarchy(list(LABELS), terms)
    labels_of_groups = {
        name: set(np.array(list(LABELS))[row])
        for name, row in zip(of_terms.names, of_terms.members, strict=True)
    }
    assert labels_of_groups["mature alpha-beta T cell"] == {"CD4 T", "CD8 T"}
    assert labels_of_groups["B"] == {
        "B",
        "naive B",
    }  # the label's own name for its term
    of_parents = LabelHierarchy(list(LABELS), terms, PARENTS)
    rows = dict(
        zip(
            of_parents.names,
            zip(of_parents.terms, of_parents.members, strict=True),
            strict=True,
        )
    )
    assert {name: rows[name][1].sum() for name in ("T", "B", "lymphocyte")} == {
        "T": 3,
        "B": 2,
        "lymphocyte": 5,
    }
    assert rows["lymphocyte"][0] == "CL:0000542"
    assert LabelHierarchy(["a", "b"], {}).names == ["a", "b"]


def test_confident_answers_are_written(model, toy_query):
    table, group = model.predict(toy_query, soft=True), "mature alpha-beta T cell"
    sums = table.assign(**{group: table["a"] + table["b"]})
    # Of one cell at least, the group is as probable, and no label.
    gain = (sums[group] - table.max(axis=1)).to_numpy()
    confidence = float((sums[group] - gain / 2).iloc[gain.argmax()])
    model.annotate(toy_query, confidence=confidence)
    leaf = np.where(table.max(axis=1) >= confidence, table.idxmax(axis=1), "Unknown")
    answer = np.where((leaf == "Unknown") & (sums[group] >= confidence), group, leaf)
    assert toy_query.obs["tosica_confident"].tolist() == answer.tolist()
    assert group in set(answer)
    ids = pd.Series(answer).map(TERMS | {group: "CL:0000791", "Unknown": "unknown"})
    assert toy_query.obs["tosica_confident_ontology_term_id"].tolist() == ids.tolist()
    is_answered = answer != "Unknown"
    of_answer = [
        row[name]
        for (_, row), name in zip(sums.iterrows(), answer, strict=True)
        if name != "Unknown"
    ]
    np.testing.assert_allclose(
        toy_query.obs["tosica_confident_probability"][is_answered], of_answer, rtol=1e-6
    )
    assert (
        len(toy_query.uns["tosica_confident_colors"])
        == toy_query.obs["tosica_confident"].cat.categories.size
    )
    # They go with the terms.
    model.ontology_term_ids_ = {}
    model.annotate(toy_query)
    assert not [name for name in toy_query.obs if "confident" in name]


@pytest.mark.parametrize(
    ("parents", "error", "sentence"),
    [
        (["T"], TypeError, "label_parents_ must be a dict of label to parent"),
        ({"a": 5}, TypeError, "label_parents_ must be a dict of label to parent"),
        (
            {"d": "T"},
            KeyError,
            "'d' is neither a label of the model nor a parent, only 'a', 'b', 'c', 'T'",
        ),
        (
            {"a": "a"},
            ValueError,
            "label_parents_ makes 'a' its own parent (a < a): leave one pair out.",
        ),
        ({"a": "T", "T": "L", "L": "T"}, ValueError, "makes 'T' its own parent"),
    ],
)
def test_wrong_parents_are_refused(toy_model, parents, error, sentence):
    with pytest.raises(error, match=re.escape(sentence)):
        toy_model.label_parents_ = parents
    assert toy_model.label_parents_ == {}
