"""load and collections, and the collection inside the package."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import time
from importlib.resources import files
from typing import TYPE_CHECKING

import pandas as pd
import pytest

import tosica.gs

if TYPE_CHECKING:
    from pathlib import Path

INSIDE = ["human_gobp", "mouse_gobp"]
MSIGDB = [
    *("human_reactome", "human_immune", "human_tf", "human_hallmark", "human_celltype"),
    *("mouse_reactome", "mouse_tf", "mouse_hallmark", "mouse_celltype"),
]
ALL = [*INSIDE, *MSIGDB]
RESOURCES = files("tosica.gs") / "resources"


@pytest.fixture(scope="module")
def human_gobp() -> dict[str, list[str]]:
    return tosica.gs.load("human_gobp")


def test_sizes(human_gobp: dict[str, list[str]]) -> None:
    for name, genes in human_gobp.items():
        assert 10 <= len(genes) <= 300, name
        assert genes == sorted(set(genes)), name


def test_no_two_sets_alike(human_gobp: dict[str, list[str]]) -> None:
    assert len({tuple(genes) for genes in human_gobp.values()}) == len(human_gobp)


def test_names_are_for_people(human_gobp: dict[str, list[str]]) -> None:
    assert list(human_gobp) == sorted(human_gobp)
    assert not [name for name in human_gobp if name.startswith("GO:") or "_" in name]


def test_known_truths(human_gobp: dict[str, list[str]]) -> None:
    for name, genes in {
        "T cell receptor signaling pathway": {"CD3D", "CD3E", "CD247", "ZAP70", "LCK"},
        "B cell receptor signaling pathway": {"CD19", "CD79A", "CD79B", "BTK", "SYK"},
        "natural killer cell mediated cytotoxicity": {"NCR1", "KLRK1", "GZMB"},
        "response to type I interferon": {"IFNAR1", "STAT1", "IRF7"},
        "antigen processing and presentation of peptide antigen via MHC class II": {
            "HLA-DRA",
            "HLA-DRB1",
        },
        "glycolytic process": {"HK1", "PFKM", "PKM"},
    }.items():
        assert genes <= set(human_gobp[name]), name
    # B cells carry no T cell receptor, T cells no haemoglobin.
    assert not {"CD79A", "MS4A1", "HBB"} & set(human_gobp["T cell receptor signaling pathway"])


def test_genes_of_narrower_terms_count(human_gobp: dict[str, list[str]]) -> None:
    narrow = human_gobp["regulation of T cell receptor signaling pathway"]
    assert set(narrow) < set(human_gobp["T cell receptor signaling pathway"])


def test_file_and_metadata_agree() -> None:
    compressed = (RESOURCES / "human_gobp.gmt.gz").read_bytes()
    assert len(compressed) < 1_000_000
    text = gzip.decompress(compressed)
    metadata = json.loads((RESOURCES / "human_gobp.json").read_bytes())
    assert metadata["sha256_gmt"] == hashlib.sha256(text).hexdigest()
    assert metadata["n_sets"] == text.count(b"\n")
    go_ids = [line.split(b"\t")[1].decode() for line in text.splitlines()]
    assert all(re.fullmatch(r"GO:\d{7}", go_id) for go_id in go_ids)
    assert len(set(go_ids)) == len(go_ids)


@pytest.mark.parametrize("name", INSIDE)
def test_sets_and_metadata_agree(name: str) -> None:
    gene_sets = tosica.gs.load(name)
    metadata = json.loads((RESOURCES / f"{name}.json").read_bytes())
    assert metadata["n_sets"] == len(gene_sets)
    assert metadata["n_genes"] == len({gene for genes in gene_sets.values() for gene in genes})
    assert metadata["min_genes"] == min(map(len, gene_sets.values()))
    assert metadata["max_genes"] == max(map(len, gene_sets.values()))


@pytest.mark.parametrize("name", INSIDE)
def test_notice_agrees_with_metadata(name: str) -> None:
    notice = (RESOURCES / "README.md").read_text(encoding="utf-8")
    metadata = json.loads((RESOURCES / f"{name}.json").read_bytes())
    dois = [citation.rpartition("doi:")[2] for citation in metadata["citation"]]
    facts = [f"## {name}", "licence", "licence_url", "url", "date", *dois]
    for fact in facts:
        assert metadata.get(fact, fact) in notice
    assert metadata["release"].removeprefix("GO ") in notice
    for package in metadata["made_from"]:
        assert package["package"] in notice
        assert package["version"] in notice


def test_the_collection_is_the_callers_own(human_gobp: dict[str, list[str]]) -> None:
    mine = tosica.gs.load("human_gobp")
    name = next(iter(mine))
    mine[name].append("MINE")
    del mine["glycolytic process"]
    assert tosica.gs.load("human_gobp") == human_gobp


def test_read_gmt_gives_the_same_quickly(human_gobp: dict[str, list[str]]) -> None:
    seconds = []
    for _ in range(3):
        start = time.process_time()
        read = tosica.gs.read_gmt(str(RESOURCES / "human_gobp.gmt.gz"))
        seconds.append(time.process_time() - start)
    assert read == human_gobp
    assert min(seconds) < 1


def test_second_load_reads_nothing(human_gobp: dict[str, list[str]]) -> None:
    again = tosica.gs.load("human_gobp")
    assert again == human_gobp
    # A file that is read again gives other string objects.
    assert all(name is first for name, first in zip(again, human_gobp, strict=True))


@pytest.mark.parametrize(
    ("name", "neighbour"),
    [
        ("human_gpbp", "'human_gobp'"),
        ("Human_GOBP", "'human_gobp'"),
        ("gobp", "'human_gobp' or 'mouse_gobp'"),
        ("Reactome", "'human_reactome' or 'mouse_reactome'"),
        ("human_celltypes", "'human_celltype'"),
    ],
)
def test_unknown_name_with_a_neighbour(name: str, neighbour: str) -> None:
    sentence = (
        f"There is no gene set collection {name!r} (did you mean {neighbour}?); those that "
        f"exist: {', '.join(ALL)}; to read a file, use tosica.gs.read_gmt."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        tosica.gs.load(name)


@pytest.mark.parametrize("name", ["kegg", "", "../../secret"])
def test_unknown_name_without(name: str) -> None:
    sentence = f"There is no gene set collection {name!r}; those that exist: human_gobp, mouse_gobp"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        tosica.gs.load(name)


def test_name_of_a_wrong_type() -> None:
    sentence = "The name of a gene set collection must be a string, not list."
    with pytest.raises(TypeError, match=re.escape(sentence)):
        tosica.gs.load(["human_gobp"])  # type: ignore[arg-type]


def test_collections(
    human_gobp: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOSICA_CACHE", str(tmp_path))
    table = tosica.gs.collections()
    assert isinstance(table, pd.DataFrame)
    assert table.index.name == "name"
    assert list(table.index) == ALL
    assert table.index.is_unique
    assert not table.drop(columns=["n_sets", "n_genes"]).isna().any(axis=None)
    assert table["available"].to_list() == [True] * 2 + [False] * 9
    assert table["n_sets"].isna().to_list() == [False] * 2 + [True] * 9
    assert table.at["mouse_gobp", "organism"] == "Mus musculus"
    assert (table.loc[MSIGDB, "version"] == "2024.1").all()
    row = table.loc["human_gobp"]
    assert row["n_sets"] == len(human_gobp)
    assert row["licence"] == "CC BY 4.0"
    assert row["release"] == "GO 2024-09-08"
    assert row["date"] == "2024-09-20"
    assert row["identifier"] == "gene symbol"
    assert "10.1038/75556" in row["citation"]
    assert "10.1093/nar/gkaf1292" in row["citation"]


def test_every_collection_inside_the_package_loads() -> None:
    table = tosica.gs.collections()
    for name in INSIDE:
        assert len(tosica.gs.load(name)) == table.at[name, "n_sets"]
