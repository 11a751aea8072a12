"""Named collections: those inside the package, downloads from MSigDB, and several as one."""

import json
import re
from importlib.resources import files

import numpy as np
import pytest
from anndata import AnnData

import tosica

INSIDE = ["human_gobp", "mouse_gobp"]
RESOURCES = files("tosica.gs") / "resources"

# --------------------------------------------------------------------------- inside the package


@pytest.fixture(scope="module")
def human_gobp():
    return tosica.gs.load("human_gobp")


def test_human_gobp(human_gobp):
    assert all(10 <= len(genes) <= 300 for genes in human_gobp.values())
    assert all(genes == sorted(set(genes)) for genes in human_gobp.values())
    for name, genes in {
        "T cell receptor signaling pathway": {"CD3D", "CD3E", "CD247", "ZAP70", "LCK"},
        "B cell receptor signaling pathway": {"CD19", "CD79A", "CD79B", "BTK", "SYK"},
    }.items():
        assert genes <= set(human_gobp[name]), name
    # Genes of narrower terms count; B cells carry no T cell receptor.
    of_t_cells = set(human_gobp["T cell receptor signaling pathway"])
    assert (
        set(human_gobp["regulation of T cell receptor signaling pathway"]) < of_t_cells
    )
    assert not {"CD79A", "MS4A1", "HBB"} & of_t_cells


@pytest.mark.parametrize("name", INSIDE)
def test_bundled_files_are_what_the_code_expects(name):
    """What the scripts that build them once a release have to keep."""
    gene_sets = tosica.gs.load(name)
    metadata = json.loads((RESOURCES / f"{name}.json").read_bytes())
    assert (
        metadata["n_sets"]
        == len(gene_sets)
        == tosica.gs.collections().at[name, "n_sets"]
    )
    assert metadata["n_genes"] == len(
        {gene for genes in gene_sets.values() for gene in genes}
    )
    assert (metadata["min_genes"], metadata["max_genes"]) == (
        min(map(len, gene_sets.values())),
        max(map(len, gene_sets.values())),
    )
    notice = (RESOURCES / "README.md").read_text(encoding="utf-8")
    dois = [citation.rpartition("doi:")[2] for citation in metadata["citation"]]
    for fact in [f"## {name}", "licence", "licence_url", "url", "date", *dois]:
        assert metadata.get(fact, fact) in notice


def test_the_collection_is_the_callers_own(human_gobp):
    mine = tosica.gs.load("human_gobp")
    mine["glycolytic process"].append("MINE")
    del mine["response to type I interferon"]
    assert tosica.gs.load("human_gobp") == human_gobp


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("human_gpbp", "did you mean 'human_gobp'"),
        ("Human_GOBP", "did you mean 'human_gobp'"),
        ("gobp", "did you mean 'human_gobp' or 'mouse_gobp'"),
        ("Reactome", "did you mean 'human_reactome' or 'mouse_reactome'"),
        ("kegg", "tosica.gs.read_gmt"),
        ("", "only human_gobp, mouse_gobp"),
        ("human_hallmark@7", "no version '7' of human_hallmark; .* 2024.1"),
        (
            "human_gobp@2024.1",
            "no version '2024.1' of human_gobp; those that exist: 2024-09-08",
        ),
    ],
)
def test_unknown_names_and_versions(name, words):
    with pytest.raises(ValueError, match=words):
        tosica.gs.load(name)


# --------------------------------------------------------------------------- downloads

HALLMARK = "2024.1.Hs/h.all.v2024.1.Hs.symbols.gmt"
SETS = {
    "HALLMARK_HYPOXIA": ["PGK1", "PDK1", "GBE1"],
    "HALLMARK_APOPTOSIS": ["CASP3", "CASP9", "DFFA", "CASP7"],
}
CONTENT = "".join(
    f"{name}\thttps://x\t" + "\t".join(s) + "\n" for name, s in SETS.items()
).encode()


@pytest.fixture
def server(file_server, monkeypatch, tmp_path):
    file_server.files[HALLMARK] = CONTENT
    monkeypatch.setenv("TOSICA_MSIGDB_URL", f"{file_server.url}/")
    monkeypatch.setenv("TOSICA_CACHE", str(tmp_path / "cache"))
    return file_server


def test_first_use_downloads_and_the_second_is_offline(server, tmp_path):
    unavailable = tosica.gs.collections().loc["human_hallmark"]
    assert not unavailable["available"]
    assert unavailable[["n_sets", "n_genes"]].isna().all()
    for _ in range(2):
        assert tosica.gs.load("human_hallmark") == SETS
        assert server.asked == [HALLMARK]
    row = tosica.gs.collections().loc["human_hallmark"]
    assert row["available"]
    assert (row["n_sets"], row["n_genes"]) == (2, 7)
    assert row["url"].endswith(HALLMARK)
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert files == [tmp_path / "cache" / HALLMARK]


def test_a_mask_from_a_file_that_was_put_into_the_cache(server, tmp_path):
    path = tmp_path / "cache" / HALLMARK
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    adata = AnnData(np.ones((2, 7), dtype=np.float32))
    adata.var_names = [gene for genes in SETS.values() for gene in genes]
    tosica.pp.build_mask(adata, "human_hallmark@2024.1", min_genes=3)
    record = adata.uns["tosica_mask"]
    assert list(record["gene_sets"]) == [*SETS]
    assert (record["source"], record["organism"]) == ("human_hallmark", "human")
    assert record["release"] == "MSigDB 2024.1.Hs"
    assert server.asked == []


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, OSError, "404"),
        ("no server", OSError, r"cannot be downloaded \(ConnectionError\): check"),
        ("cut short", OSError, "ChunkedEncodingError"),
        (b"<!DOCTYPE html>\n<html></html>", ValueError, f"{HALLMARK}.*line 1"),
        (b"", ValueError, "no gene set"),
    ],
)
def test_failed_downloads_leave_nothing(
    server, tmp_path, monkeypatch, content, error, words
):
    if content == "no server":
        monkeypatch.setenv("TOSICA_MSIGDB_URL", "http://127.0.0.1:9/")
    server.is_cut = content == "cut short"
    server.files[HALLMARK] = CONTENT if server.is_cut else content
    with pytest.raises(error, match=words):
        tosica.gs.load("human_hallmark")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    server.is_cut, server.files[HALLMARK] = False, CONTENT
    monkeypatch.setenv("TOSICA_MSIGDB_URL", f"{server.url}/")
    assert tosica.gs.load("human_hallmark") == SETS


def test_damaged_file_in_the_cache_is_named_and_kept(server, tmp_path):
    tosica.gs.load("human_hallmark")
    path = tmp_path / "cache" / HALLMARK
    path.write_bytes(b"HALLMARK")
    with pytest.raises(ValueError, match=re.escape(str(path))):
        tosica.gs.load("human_hallmark")
    assert path.is_file()
    assert tosica.gs.collections().loc[["human_hallmark"], "n_sets"].isna().all()


# --------------------------------------------------------------------------- several as one

MARKERS = {"T cell": ["CD3D", "CD3E"], "B cell": ["CD19"]}


@pytest.mark.parametrize("name", ["mine.gmt", "mine.gmt.gz", "mine.GMT"])
def test_join(tmp_path, name, human_gobp):
    path = tmp_path / name
    tosica.gs.write_gmt(MARKERS, path)
    of_path = {f"mine: {key}": genes for key, genes in MARKERS.items()}
    of_name = {f"human_gobp: {key}": genes for key, genes in human_gobp.items()}
    assert tosica.gs.join([path]) == of_path
    joined = tosica.gs.join(["human_gobp", str(path)])
    assert list(joined.items()) == list((of_name | of_path).items())
    joined = tosica.gs.join({"a": MARKERS, "b": path, "c": "human_gobp"})
    assert list(joined)[:3] == ["a: T cell", "a: B cell", "b: T cell"]
    assert len(joined) == 4 + len(human_gobp)
    joined["a: T cell"].append("MINE")
    assert MARKERS["T cell"] == ["CD3D", "CD3E"]


@pytest.mark.parametrize(
    ("collections", "error", "words"),
    [
        ("human_gobp", TypeError, "collections"),
        (5, TypeError, "collections"),
        ({}, ValueError, "nothing to join"),
        ({" ": MARKERS}, ValueError, "prefix"),
        ({5: MARKERS}, ValueError, "prefix"),
        (["human_gobp", "human_gobp"], ValueError, "'human_gobp'"),
        ([MARKERS], TypeError, "collection in a list"),
        ({"a": 5}, TypeError, r"collections\['a'\]"),
        (["none.gmt"], FileNotFoundError, "none.gmt"),
    ],
)
def test_join_refuses(collections, error, words):
    with pytest.raises(error, match=words):
        tosica.gs.join(collections)


def test_two_versions_contradict_each_other():
    with pytest.raises(ValueError, match=r"is of version 2023\.2, and version='2024"):
        tosica.gs.load("human_reactome@2023.2", version="2024.1")
