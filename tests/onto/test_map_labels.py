"""Labels are mapped to the Cell Ontology by name and exact synonym, and never by a guess."""

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from hypothesis import given, settings
from hypothesis import strategies as st
from mudata import MuData

import tosica
from tosica.onto._ontology import label_key, match_label, read_ontology


def cells(labels, **columns):
    obs = pd.DataFrame(
        {"label": labels, **columns}, index=[f"c{i}" for i in range(len(labels))]
    )
    return AnnData(np.zeros((len(labels), 1), np.float32), obs=obs)


# --------------------------------------------------------------------------- spelling


@pytest.mark.parametrize(
    ("label", "term", "how"),
    [
        ("B cells", "CL:0000236", "name"),
        ("b-cell", "CL:0000236", "name"),
        ("B_lymphocytes", "CL:0000236", "synonym"),
        ("CD14+ Monocytes", "CL:0001054", "name"),
        ("CD14⁺ monocyte", "CL:0001054", "name"),
        ("CD14(+) monocytes", "CL:0001054", "name"),
        ("CD19+ B", "CL:0001201", "synonym"),
        ("Dendritic", "CL:0000451", "name"),
        ("Monocyte cells", "CL:0000576", "name"),
        ("Naïve B cells", "CL:0000788", "name"),
        ("γδ T cells", "CL:0000798", "name"),
        ("Haematopoietic stem cells", "CL:0000037", "name"),
        ("NK cells", "CL:0000623", "synonym"),
        ("Tregs", "CL:0000815", "synonym"),
        ("pDCs", "CL:0000784", "synonym"),
        ("Lymphatic endothelial cells", "CL:0002138", "synonym"),
        ("Bm2' B cell", "CL:0000964", "name"),
    ],
)
def test_spelling_does_not_matter(label, term, how):
    match = match_label(label)
    assert (match.term, match.how, match.candidates) == (term, how, ())


@pytest.mark.parametrize(
    "label",
    [
        *("NK", "DC", "Mac", "pre-B", "T", "B", "Mono"),  # abbreviations
        *(
            "DC1",
            "DC2",
            "IPC",
            "MPP",
            "LEC",
            "PY",
            "VIP",
        ),  # exact synonyms, but of one use only
        *(
            "Alpha cells",
            "Alpha",
            "Stalk cells",
            "Golgi cells",
        ),  # names with words left out
        "CD16+ monocytes",  # the synonym leaves CD14 out
        *("CD4-CD8- T cells", "Double-negative T"),  # the term is a thymocyte
        *("Resting microglia", "Liver macrophages"),  # the term is of fewer cells
        *(
            "CD14 Monocytes",
            "CD14- Monocytes",
            "CD4+ T cells",
            "CD4 T cells",
        ),  # signs have meaning
        *(
            "B cells/T cells",
            "Megakaryocytes/platelets",
            "B cells & T cells",
        ),  # several types
        *(
            "B cells 1",
            "Fibroblasts_2",
            "not a B cell",
            "Naive",
            "cluster 3",
            "17",
            "",
            "++",
            "cell s",
        ),
    ],
)
def test_nothing_is_guessed(label):
    match = match_label(label)
    assert match.term is None
    assert match.how == "none"
    assert len(match.candidates) <= 5
    assert len(set(match.candidates)) == len(match.candidates)


@pytest.mark.parametrize(
    ("label", "term"),
    [
        ("NK", "CL:0000623"),
        ("DC", "CL:0000451"),
        ("DC1", "CL:0002394"),
        ("CD4 T cells", "CL:0000624"),
        ("CD8+ T cells", "CL:0000625"),
        ("Alpha cells", "CL:0000171"),
        ("MAIT cells", "CL:0000940"),
        ("Microglia", "CL:0000129"),
        ("B cells 1", "CL:0000236"),
    ],
)
def test_the_term_is_among_the_candidates(label, term):
    assert term in match_label(label).candidates


def test_sign_and_slash_stay():
    assert label_key("CD4+CD8- T cells") == "cd4 positive cd8 negative t cell"
    assert label_key("CD4-CD8- T-cells") == "cd4 negative cd8 negative t cell"
    assert label_key("CD8-positive") == "cd8 positive"
    assert label_key("Tcm/Naive") == "tcm / naive"


@settings(max_examples=30)
@given(st.sampled_from(sorted(read_ontology().names.items())), st.text(max_size=20))
def test_every_name_is_mapped_to_its_term_and_any_text_has_a_key(item, text):
    term, name = item
    key = label_key(text)
    assert key == key.strip().lower()
    match_label(text)
    if term in read_ontology().forbidden:
        assert match_label(name).term is None
    else:
        assert match_label(name) == (term, "name", ())
        assert match_label(name.upper()).term in (term, None)


def test_forbidden_and_obsolete_terms_are_not_given():
    for label in ("Eukaryotic cells", "animal cell", "Native cells"):
        match = match_label(label)
        assert match.term is None
        assert not read_ontology().forbidden & set(match.candidates)


# --------------------------------------------------------------------------- what is written


def test_table_and_column():
    adata = cells(["T cells", "B cells", "what", None, "T cells"])
    table = tosica.onto.map_labels(adata, "label", mapping={"what": "CL:0000623"})
    assert table["label"].tolist() == ["B cells", "T cells", "what"]
    assert table["ontology_term_id"].tolist() == [
        "CL:0000236",
        "CL:0000084",
        "CL:0000623",
    ]
    assert table["ontology_label"].tolist() == [
        "B cell",
        "T cell",
        "natural killer cell",
    ]
    assert table["match"].tolist() == ["name", "name", "given"]
    column = adata.obs["label_ontology_term_id"]
    assert column.tolist() == [
        "CL:0000084",
        "CL:0000236",
        "CL:0000623",
        "unknown",
        "CL:0000084",
    ]
    assert isinstance(column.dtype, pd.CategoricalDtype)
    assert all(isinstance(name, str) for name in column.cat.categories)


def test_labels_without_a_term_are_unknown_and_have_candidates():
    adata = cells(["T cells", "DC", "B cells"])
    mapping = {"B cells": "unknown"}
    table = tosica.onto.map_labels(
        adata, "label", key_added="ids", mapping=mapping
    ).set_index("label")
    assert table.loc["B cells", ["ontology_term_id", "match"]].tolist() == [
        "unknown",
        "given",
    ]
    assert table.loc["DC", "ontology_term_id"] == "unknown"
    assert table.loc["DC", "ontology_label"] == "unknown"
    assert "CL:0000451 dendritic cell" in table.loc["DC", "candidates"]
    assert table.loc["T cells", "candidates"] == []
    assert adata.obs["ids"].tolist() == ["CL:0000084", "unknown", "unknown"]
    assert "label_ontology_term_id" not in adata.obs


def test_labels_that_map_to_nothing():
    adata = cells(["H1975", "HCC827"])
    with pytest.warns(UserWarning, match="'H1975', 'HCC827'.*pass mapping="):
        tosica.onto.map_labels(adata, "label")
    assert adata.obs["label_ontology_term_id"].tolist() == ["unknown", "unknown"]


def test_numbers_and_mudata():
    numbers = cells([0, 1])
    with pytest.warns(UserWarning, match="no label of"):
        tosica.onto.map_labels(numbers, "label")
    tosica.onto.map_labels(numbers, "label", mapping={"0": "CL:0000084"})
    assert numbers.obs["label_ontology_term_id"].tolist() == ["CL:0000084", "unknown"]
    mdata = MuData({"rna": cells(["T cells", "B cells"])})
    mdata.obs["label"] = mdata["rna"].obs["label"]
    tosica.onto.map_labels(mdata, "label")
    assert mdata.obs["label_ontology_term_id"].tolist() == ["CL:0000084", "CL:0000236"]


@pytest.mark.parametrize(
    ("term", "word"),
    [
        ("CL:0000003", "obsolete.* CL:0000000 in its place"),
        ("CL:0000255", "may not be used"),
        ("CL:0000548", "may not be used"),
        ("T cell", "no term"),
    ],
)
def test_a_wrong_term_is_refused(term, word):
    adata = cells(["T", "B cells"])
    with pytest.raises(ValueError, match=f"mapping gives 'T' a wrong term: .*{word}"):
        tosica.onto.map_labels(adata, "label", mapping={"T": term})
    assert list(adata.obs) == ["label"]


# --------------------------------------------------------------------------- terms


def test_above_and_below():
    above = tosica.onto.ancestors("CL:0000623")
    assert above["CL:0000542"] == "lymphocyte"
    assert "CL:0000623" not in above
    below = tosica.onto.descendants("CL:0000542")
    assert below["CL:0000623"] == "natural killer cell"
    assert tosica.onto.ancestors("CL:0000000") == {}
    assert len(tosica.onto.descendants("CL:0000000")) == len(read_ontology().names) - 1
    for term in list(below)[:50]:
        assert "CL:0000542" in tosica.onto.ancestors(term)


@pytest.mark.parametrize(
    ("term", "word"),
    [
        ("T cells", "the name of CL:0000084"),
        ("CL:0", "no term"),
        ("CL:0000003", "obsolete"),
    ],
)
def test_no_such_term(term, word):
    with pytest.raises(KeyError, match=word):
        tosica.onto.term_name(term)


def test_terms_do_not_replace_the_labels():
    adata = cells(["T cells"])
    with pytest.raises(ValueError, match="key_added='label' would replace the labels"):
        tosica.onto.map_labels(adata, "label", key_added="label")
    assert adata.obs["label"].tolist() == ["T cells"]
