"""Cards of models: filled by the model, and not broken by any text of a user."""

import re
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from sklearn.metrics import f1_score

import tosica
from tosica.model._card import one_line

ABOUT = {"tissue": "blood", "license": "cc-by-4.0"}


def front_matter(card):
    _, text, _ = re.split(r"^---$", card, maxsplit=2, flags=re.MULTILINE)
    return yaml.safe_load(text)


def tables(card):
    """The text of the cells of each table, as a reader of the page sees it."""
    body = re.split(r"^---$", card, maxsplit=2, flags=re.MULTILINE)[2]
    rows_of_tables = []
    for token in MarkdownIt("commonmark").enable("table").parse(body):
        if token.type == "table_open":
            rows_of_tables.append([])
        elif token.type == "tr_open":
            rows_of_tables[-1].append([])
        elif token.type == "inline" and rows_of_tables and token.level == 4:
            rows_of_tables[-1][-1].append(text_of(token))
    return rows_of_tables


def text_of(token):
    return "".join(child.content for child in token.children)


def outline(card):
    """The kinds of all blocks of a page: headings, paragraphs, rows, lists and code."""
    body = re.split(r"^---$", card, maxsplit=2, flags=re.MULTILINE)[2]
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    inside = {child.type for token in tokens for child in token.children or ()}
    assert "html_inline" not in inside
    assert "image" not in inside
    return [f"{token.type} {token.tag}" for token in tokens if token.type != "inline"]


def rows_of(card):
    return dict(tables(card)[0][1:])


# ------------------------------------------------------------------------------- what it says


def test_the_card_of_a_model(toy, train):
    model = train(toy, setup={"batch_key": "donor"})
    card = model.get_model_card(
        tissue=["blood", "lung"],
        license="CC-BY-4.0",
        organism="human",
        description="Made-up cells.",
        version="1.2",
        doi="https://doi.org/10.1038/s41467-023-35923-4",
        citation="Doe et al. 2020",
        contact="lab@example.org",
    )
    assert front_matter(card) == {
        "library_name": "tosica",
        "license": "cc-by-4.0",
        "tags": [
            *(
                "biology",
                "genomics",
                "single-cell",
                "transcriptomics",
                "cell-type-annotation",
                "human",
            ),
            # As scvi-hub calls them.
            "model_cls_name:TOSICA",
            f"tosica_version:{tosica.__version__}",
            f"anndata_version:{version('anndata')}",
            *("modality:rna", "tissue:blood", "tissue:lung", "annotated:True"),
        ],
    }
    assert rows_of(card) == {
        "Tissue": "blood, lung",
        "Organism": "human",
        "Labels": "3",
        "Cells": "90",
        "Batches (donor)": "2",
        "Genes": "30, counts",
        "Gene sets": "4 of dict (unknown), and 1 modules",
        "Version": "1.2",
        "Fingerprint": model.fingerprint,
        "License": "CC-BY-4.0",
        "Reference data": "Doe et al. 2020",
        "DOI": "https://doi.org/10.1038/s41467-023-35923-4",
        "Contact": "lab@example.org",
        "Shared with": f"tosica {tosica.__version__}",
    }
    assert "Made-up cells." in card
    assert "Other tissues and organisms than blood, lung, human." in card
    assert "d1" not in card.replace(model.fingerprint, "")  # the names of donors


def test_held_out_scores_are_those_of_the_held_out_cells(toy, train):
    """Before the refit, which is left out here, so that they can be computed again."""
    model = train(toy, max_epochs=1, refit=False)
    held_out = model.validation_indices
    true_labels = toy.obs["kind"].to_numpy()[held_out]
    predicted = model.predict(indices=held_out)
    codes = [
        [model.labels.index(name) for name in names]
        for names in (true_labels, predicted)
    ]
    order = np.lexsort(model.training_.held_out_codes[::-1])
    expected = np.array(codes)[:, np.lexsort(codes[::-1])]
    np.testing.assert_array_equal(model.training_.held_out_codes[:, order], expected)
    card = model.get_model_card(**ABOUT)
    accuracy, f1 = (
        (true_labels == predicted).mean(),
        f1_score(true_labels, predicted, average="macro"),
    )
    assert (
        f"Accuracy {accuracy:.3f} and macro-F1 {f1:.3f} on 9 cells that were held out"
        in card
    )
    assert "Afterwards" not in card
    head, *rows = tables(card)[1]
    assert head == ["Label", "Cells", "Held-out cells", "Recall", "F1"]
    recall = [
        f"{(predicted[true_labels == name] == name).mean():.3f}" for name in "abc"
    ]
    assert [row[:4] for row in rows] == [
        [name, "30", "3", score] for name, score in zip("abc", recall, strict=True)
    ]


def test_the_refit_is_mentioned(toy_model):
    assert (
        "Afterwards the model was trained on these cells, too."
        in toy_model.get_model_card(**ABOUT)
    )


def test_what_a_card_needs_is_saved(toy_model, save_and_load):
    loaded = save_and_load(toy_model)
    assert (
        loaded.training_.label_counts
        == toy_model.training_.label_counts
        == {"a": 30, "b": 30, "c": 30}
    )
    np.testing.assert_array_equal(
        loaded.training_.held_out_codes, toy_model.training_.held_out_codes
    )
    assert loaded.get_model_card(**ABOUT) == toy_model.get_model_card(**ABOUT)


def test_without_calibration_there_are_no_scores(toy, train):
    model = train(toy, max_epochs=1, calibrate=False, refit=False)
    assert model.training_.held_out_codes is None
    assert "None are kept in this model." in model.get_model_card(**ABOUT)


# ------------------------------------------------------------------------------- any text

_MARKUP = [
    *(
        "a | b",
        "---",
        "# x",
        "<script>alert(1)</script>",
        "`code`",
        "**b**",
        "![x](y)",
        "[x](y)",
    ),
    *(
        "- x",
        "1. x",
        "> x",
        "x\n\n# y",
        "&lt;",
        "$x$",
        "a\\",
        "\\|",
        "~~~",
        "```",
        "<!-- x",
    ),
    *(
        "!!python",
        "'\"",
        "\U0001f600",
        "é: ü",
        "*",
        "\u202eabc",
        "a\u2028b",
        "\x85",
        "{{ x }}",
    ),
]
_names = st.text(min_size=1, max_size=30) | st.sampled_from(_MARKUP)
# Others are refused.
_texts = _names.filter(one_line)


@settings(max_examples=20)
@given(
    labels=st.lists(_names, min_size=1, max_size=4, unique_by=one_line),
    texts=st.lists(_texts, min_size=7, max_size=7),
)
def test_no_text_breaks_a_card(labels, texts):
    tissue, license_, organism, _, version, citation, term = texts
    plain = card_of(["T cell"] * len(labels), ["x"] * 7)
    card = card_of(labels, texts)
    assert outline(card) == outline(plain)
    assert [row[:2] for row in tables(card)[1][1:]] == [
        [one_line(name), one_line(term)] for name in labels
    ]
    rows = dict(row for row in tables(card)[0][1:])
    assert rows["Tissue"] == one_line(tissue)
    assert rows["License"] == one_line(license_)
    assert rows["Version"] == one_line(version)
    assert rows["Reference data"] == one_line(citation)
    assert rows[f"Batches ({one_line(term)})"] == "2"
    metadata = front_matter(card)
    assert set(metadata) == {"library_name", "license", "tags"}
    assert {one_line(organism), f"tissue:{one_line(tissue)}"} < set(metadata["tags"])


def card_of(labels, texts):
    """The card of a made-up model, with one text of a user in each place."""
    tissue, license_, organism, description, version, citation, term = texts
    modality = SimpleNamespace(
        name=None,
        genes=["G0"],
        scale=None,
        kind=SimpleNamespace(describe=lambda _: term, role="rna"),
        describe_tokens=lambda: term,
        mask={"organism": term},
    )
    model = SimpleNamespace(
        _check_trained=lambda **_: None,
        modalities=[modality],
        get_state_registry=lambda _: {"categorical_mapping": ["d1", "d2"]},
        registry_={"setup_args": {"batch_key": term}},
        labels=labels,
        training_=SimpleNamespace(
            adaptation=None,
            label_counts=dict.fromkeys(labels, 5),
            held_out_codes=np.zeros((2, 1), int),
            refitted=True,
        ),
        fingerprint="0" * 16,
        ontology_term_ids_=dict.fromkeys(labels, term),
    )
    description_fields = {
        "description": description,
        "version": version,
        "doi": "10.1000/1",
    }
    description_fields |= {"citation": citation, "contact": term, "organism": organism}
    return tosica.TOSICA.get_model_card(
        model, tissue=tissue, license=license_, **description_fields
    )


def test_ontology_terms_are_a_column():
    card = card_of(["T cell"], ["x"] * 6 + ["CL:0000084"])
    assert tables(card)[1][0][:3] == ["Label", "Ontology term", "Cells"]
    assert tables(card)[1][1][:3] == ["T cell", "CL:0000084", "5"]


def test_web_addresses_are_links():
    text = "See https://example.org/a_b?c=d&e=f, and (http://x.org/y)."
    card = card_of(["T cell"], ["x"] * 5 + [text, "x"])
    assert "<https://example.org/a_b?c=d&e=f>, and (<http://x.org/y>)." in card
    assert rows_of(card)["Reference data"] == text
