"""Names of genes in which Seurat replaced underscores by hyphens."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tosica
from tosica.data import find_genes
from tosica.gs._hyphens import match_respelled

if TYPE_CHECKING:
    from pathlib import Path


def matched(names: list[str], wanted: list[str]) -> dict[str, str]:
    """Wanted name to given name, of those that are not equal."""
    given, other = pd.Index(names, dtype=object), pd.Index(wanted, dtype=object)
    rows = np.flatnonzero(given.isin(other) & ~given.duplicated())
    more = match_respelled(given, other, other.get_indexer(given[rows]), rows)
    return {wanted[i]: names[j] for i, j in zip(more.wanted, more.rows, strict=True)}


@pytest.mark.parametrize(
    ("names", "wanted", "expected"),
    [
        (["A-1", "B"], ["A_1", "B"], {"A_1": "A-1"}),
        (["A_1", "B"], ["A-1", "B"], {"A-1": "A_1"}),
        (["A-B-C"], ["A_B-C"], {"A_B-C": "A-B-C"}),
        # The name itself is there, or two names fit.
        (["A-1", "A_1"], ["A_1"], {}),
        (["A-1"], ["A_1", "A-1"], {}),
        (["A-1-1", "A_1-1"], ["A_1_1"], {}),
        (["A-1-1"], ["A_1_1", "A_1-1"], {}),
        (["A-1", "A-1"], ["A_1"], {}),
        (["A.1"], ["A_1"], {}),
        ([], ["A_1"], {}),
    ],
)
def test_names_are_taken_if_only_one_fits(names, wanted, expected):
    assert matched(names, wanted) == expected


_NAMES = st.lists(st.text("A-_", min_size=1, max_size=3), unique=True, max_size=8)


@settings(max_examples=200)
@given(_NAMES, _NAMES)
def test_no_name_is_guessed(names, wanted):
    def fold(name: str) -> str:
        return name.replace("_", "-")

    found = matched(names, wanted)
    assert len(set(found.values())) == len(found)
    for one, other in found.items():
        assert one not in names
        assert [n for n in names if fold(n) == fold(one)] == [other]
        assert [n for n in wanted if fold(n) == fold(one)] == [one]
    expected = {
        one
        for one in set(wanted) - set(names)
        if [fold(n) for n in wanted].count(fold(one)) == 1
        and [fold(n) for n in names].count(fold(one)) == 1
    }
    assert set(found) == expected


# ------------------------------------------------------------------ queries


def with_names(adata: ad.AnnData, old: str, new: str) -> ad.AnnData:
    adata = adata.copy()
    adata.var_names = [name.replace(old, new) for name in adata.var_names]
    return adata


@pytest.fixture
def named(toy):
    """A reference with two underscores, one hyphen and one of both in its names."""
    names = dict(zip(["G0", "G1", "G2", "G3"], ["X_0", "X_1-a", "X-2", "X_3"], strict=True))
    toy.var_names = [names.get(name, name) for name in toy.var_names]
    return toy


@pytest.mark.parametrize(("old", "new"), [("_", "-"), ("-", "_")])
def test_query_of_seurat_is_as_good(named, train, caplog, old, new):
    model = train(named)
    expected = model.predict(named.copy(), soft=True)
    changed = with_names(named, old, new)
    n = sum(a != b for a, b in zip(changed.var_names, named.var_names, strict=True))
    with caplog.at_level(logging.INFO, "tosica"):
        pd.testing.assert_frame_equal(model.predict(changed, soft=True), expected)
    assert (
        f"query: matched 30 of the model's 30 genes (100%), {n} of them with - and _ exchanged, "
        "as Seurat does"
    ) in caplog.messages


def test_ambiguous_names_of_a_query_are_left_out_and_named(named, train, caplog):
    model = train(named)
    names = np.array(with_names(named, "_", "-").var_names, dtype=object)
    # Another column that "X_0" could be.
    names[10] = "X-0"
    ambiguous = ad.AnnData(named.X.copy(), obs=named.obs[[]])
    ambiguous.var_names = names
    with (
        caplog.at_level(logging.INFO, "tosica"),
        pytest.warns(UserWarning, match="only 28 of the model's 30 genes"),
    ):
        model.predict(ambiguous)
    assert "; several names fit 'X_0' but for - and _, and none is taken" in caplog.text
    assert "2 of them with - and _ exchanged" in caplog.text


def test_attribution_has_rows_for_genes_of_other_spelling(named, train):
    model = train(named)
    changed = with_names(named, "_", "-")
    for adata in (named, changed):
        model.annotate(adata)
        tosica.tl.attribute(adata, model)
    found, expected = (adata.varm["tosica_attribution"] for adata in (changed, named))
    np.testing.assert_array_equal(found, expected)
    assert expected.loc["X_0"].any()


@pytest.mark.data
def test_all_of_kangs_genes_are_found_after_seurat(shared: Path, caplog):
    adata = ad.read_h5ad(shared / "kang_pbmc.h5ad")[:100].copy()
    changed = with_names(adata, "_", "-")
    assert (changed.var_names != adata.var_names).sum() == 91
    tosica.pp.build_mask(adata)
    tosica.pp.build_mask(changed)
    np.testing.assert_array_equal(
        changed.varm["tosica_mask"].toarray(), adata.varm["tosica_mask"].toarray()
    )
    with caplog.at_level(logging.INFO, "tosica"):
        found = find_genes(changed.var_names, adata.var_names, None)
    np.testing.assert_array_equal(found.indexer, np.arange(adata.n_vars))


# ------------------------------------------------------------------ gene sets


@pytest.mark.parametrize("identifiers", ["auto", "map", "exact"])
def test_gene_sets_find_genes_of_other_spelling(named, caplog, identifiers):
    sets = {"x": ["X-0", "X-1-a", "X_2"], "g": [f"G{i}" for i in range(4, 12)]}
    with caplog.at_level(logging.INFO, "tosica"):
        tosica.pp.build_mask(named, sets, min_genes=1, identifiers=identifiers)
    n = 0 if identifiers == "exact" else 3
    assert named.uns["tosica_mask"]["n_genes_mapped"] == n
    found = dict(
        zip(
            named.uns["tosica_mask"]["gene_sets"],
            np.asarray(named.varm["tosica_mask"].sum(0)).ravel(),
            strict=True,
        )
    )
    assert found["g"] == 8
    assert found.get("x", 0) == n
    assert ("translated 3 names with - and _ exchanged" in caplog.text) == bool(n)


def test_gene_sets_do_not_guess(named):
    sets = {"x": ["X-0", "X_2", "G4"], "g": [f"G{i}" for i in range(4, 12)]}
    # "X-0" may be two genes of the data.
    names = np.array(named.var_names, dtype=object)
    names[20], names[21] = "X_0-b", "X-0_b"
    named.var_names = names
    sets["x"].append("X-0-b")
    tosica.pp.build_mask(named, sets, min_genes=1)
    mask = named.varm["tosica_mask"].toarray()[
        :, list(named.uns["tosica_mask"]["gene_sets"]).index("x")
    ]
    assert set(named.var_names[mask]) == {"X_0", "X-2", "G4"}
