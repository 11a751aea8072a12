"""What is read if the caller does not say: presence where it is there, else attention."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest
from get.annotated_pbmc import add_presence, annotated_pbmc, planted

import tosica
from tosica._obs import file_columns, resolve_key, result_type


def _keys(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log lines about what was read."""
    return [text for text in caplog.messages if text.startswith("key: ")]


def test_presence_is_read_first_else_attention(caplog):
    adata = annotated_pbmc()
    with caplog.at_level(logging.INFO, logger="tosica"):
        assert resolve_key(add_presence(adata.copy()), None) == "tosica_presence"
        assert resolve_key(adata, None) == "tosica"
        for key in ("tosica", "tosica_attribution", "mine"):  # what the caller says
            assert resolve_key(add_presence(adata.copy()), key) == key
    assert _keys(caplog) == [
        "key: 'tosica_presence', contributions to the labels' scores",
        "key: 'tosica', the attention; contributions to the labels' scores are read once "
        "tosica.tl.attribute(adata, model) has written them",
    ]


def test_presence_of_another_model_is_refused():
    adata = add_presence(annotated_pbmc(), model="f" * 16)
    with pytest.raises(ValueError, match=r"another model .* key='tosica'"):
        resolve_key(adata, None)
    assert resolve_key(adata, "tosica_presence") == "tosica_presence"


def test_presence_whose_names_are_gone_is_no_attention():
    adata = add_presence(annotated_pbmc())
    del adata.uns["tosica_presence"]
    with pytest.raises(KeyError, match=r"adata\.uns\['tosica_presence'\]\['gene_sets'\].* is gone"):
        tosica.get.mean_attention(adata, "phase")


def test_neither_is_there():
    adata = annotated_pbmc()
    del adata.obsm["X_tosica"], adata.uns["tosica"]
    with pytest.raises(KeyError, match=r"run model\.annotate"):
        tosica.get.mean_attention(adata, "phase")


@pytest.mark.parametrize(
    ("key", "record", "kind"),
    [
        ("tosica", {"labels": ["B"]}, "attention"),
        ("my_presence", {"labels": ["B"]}, "attention"),
        ("mine", {}, "attention"),
        ("tosica_weighted", {}, "weighted attention"),
        ("tosica_attribution", {}, "attribution"),
        ("why", {"completeness_error": 0.0}, "attribution"),
        ("why_presence", {"model": "0"}, "presence"),
    ],
)
def test_kinds(key, record, kind):
    adata = annotated_pbmc()
    adata.uns[key] = record
    assert result_type(adata, key) == kind


# -- the functions that take it ---------------------------------------------------------------


def test_mean_attention(caplog):
    adata = add_presence(annotated_pbmc())
    with caplog.at_level(logging.INFO, logger="tosica"):
        found = tosica.get.mean_attention(adata, "bulk_labels")
    assert len(_keys(caplog)) == 1
    expected = tosica.get.mean_attention(adata, "bulk_labels", key="tosica_presence")
    pd.testing.assert_frame_equal(found, expected)
    assert list(found.idxmax(axis=1)) == [planted(i + 20) for i in range(10)]
    by_attention = tosica.get.mean_attention(adata, "bulk_labels", key="tosica")
    assert list(by_attention.idxmax(axis=1)) == [planted(i) for i in range(10)]


def test_attention_and_correlation_keep_to_attention():
    adata = add_presence(annotated_pbmc())
    np.testing.assert_array_equal(tosica.get.attention(adata).X, adata.obsm["X_tosica"])
    tosica.tl.correlate_gene_sets(adata, "n_counts")
    found = adata.uns["correlate_gene_sets"].copy()
    tosica.tl.correlate_gene_sets(adata, "n_counts", key="tosica")
    pd.testing.assert_frame_equal(found, adata.uns["correlate_gene_sets"])


def test_columns_of_labels_as_files_hold_them():
    assert file_columns(["B/plasma", "T"], "here") == ["B|plasma", "T"]
    with pytest.raises(ValueError, match=r"^here has the labels 'a\|b' and 'a/b', which would be"):
        file_columns(["a|b", "T", "a/b"], "here")
