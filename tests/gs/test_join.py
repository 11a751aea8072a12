"""Several collections as one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from _strategies import gene_set_collections
from anndata import AnnData
from hypothesis import given, settings
from hypothesis import strategies as st

import tosica

if TYPE_CHECKING:
    from pathlib import Path

MARKERS = {"T cell": ["CD3D", "CD3E"], "B cell": ["CD19"]}


def test_prefixes_of_a_dict(tmp_path: Path) -> None:
    path = tmp_path / "other.gmt"
    tosica.gs.write_gmt({"NK cell": ["NKG7"]}, path)
    joined = tosica.gs.join({"a": MARKERS, "b": path, "c": str(path)})
    assert joined == {
        "a: T cell": ["CD3D", "CD3E"],
        "a: B cell": ["CD19"],
        "b: NK cell": ["NKG7"],
        "c: NK cell": ["NKG7"],
    }
    assert list(joined) == ["a: T cell", "a: B cell", "b: NK cell", "c: NK cell"]


@pytest.mark.parametrize("name", ["mine.gmt", "mine.gmt.gz", "mine.GMT"])
def test_prefixes_of_a_list(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    tosica.gs.write_gmt(MARKERS, path)
    joined = tosica.gs.join(["human_gobp", str(path), "mouse_gobp"])
    human, mouse = tosica.gs.load("human_gobp"), tosica.gs.load("mouse_gobp")
    assert len(joined) == len(human) + 2 + len(mouse)
    assert joined["mine: T cell"] == ["CD3D", "CD3E"]
    assert joined["human_gobp: glycolytic process"] == human["glycolytic process"]
    assert joined["mouse_gobp: glycolytic process"] == mouse["glycolytic process"]


def test_what_is_joined_is_not_changed() -> None:
    joined = tosica.gs.join({"a": MARKERS})
    joined["a: T cell"].append("MINE")
    assert MARKERS["T cell"] == ["CD3D", "CD3E"]


def test_a_mask_from_a_list(tmp_path: Path) -> None:
    for name, sets in (("one", {"x": ["A", "B"]}), ("two", {"x": ["B", "C"]})):
        tosica.gs.write_gmt(sets, tmp_path / f"{name}.gmt")
    adata = AnnData(np.ones((2, 3), dtype=np.float32))
    adata.var_names = ["A", "B", "C"]
    tosica.pp.build_mask(adata, [tmp_path / "one.gmt", tmp_path / "two.gmt"], min_genes=2)
    about = adata.uns["tosica_mask"]
    assert list(about["gene_sets"]) == ["one: x", "two: x"]
    assert about["source"] == "one.gmt + two.gmt"


@settings(max_examples=30)
@given(
    parts=st.dictionaries(
        st.text("abc", min_size=1, max_size=2),
        gene_set_collections(st.text("xyz", min_size=1, max_size=2), st.text("GH", min_size=1)),
        min_size=1,
        max_size=4,
    )
)
def test_nothing_is_lost(parts: dict[str, dict[str, list[str]]]) -> None:
    joined = tosica.gs.join(parts)
    assert len(joined) == sum(map(len, parts.values()))
    for prefix, gene_sets in parts.items():
        for name, genes in gene_sets.items():
            assert joined[f"{prefix}: {name}"] == genes


@pytest.mark.parametrize(
    ("collections", "error", "sentence"),
    [
        (
            "human_gobp",
            TypeError,
            "collections must be a dict of prefix to gene sets, or a list of collections and "
            "files, not str.",
        ),
        (
            5,
            TypeError,
            "collections must be a dict of prefix to gene sets, or a list of collections and "
            "files, not int.",
        ),
        ({}, ValueError, "There is nothing to join: name at least one collection."),
        ([], ValueError, "There is nothing to join: name at least one collection."),
        (
            {" ": MARKERS},
            ValueError,
            "A prefix must be a string that is not empty, not ' '.",
        ),
        (
            ["human_gobp", "human_gobp"],
            ValueError,
            "The prefix 'human_gobp' is duplicated: pass a dict with a different prefix for each "
            "collection.",
        ),
        (
            [MARKERS],
            TypeError,
            "A list of collections must hold names and paths, not dict: to join anything else, "
            "pass a dict of "
            "prefix to gene sets.",
        ),
    ],
)
def test_refuses(collections: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(sentence)}$"):
        tosica.gs.join(collections)


def test_refuses_what_its_parts_refuse(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="There is no gene set collection 'human_go'"):
        tosica.gs.join(["human_go"])
    with pytest.raises(FileNotFoundError, match="no gene set file"):
        tosica.gs.join([tmp_path / "none.gmt"])
