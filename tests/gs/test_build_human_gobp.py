"""scripts/build_human_gobp.py on two databases of a few rows."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tosica.gs

if TYPE_CHECKING:
    from types import ModuleType

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "build_human_gobp.py"

# The tree: root above wide, wide above narrow and its twin narrower, unnamed domain elsewhere.
TERMS = [
    (1, "GO:0000001", "root", "BP"),
    (2, "GO:0000002", "wide process", "BP"),
    (3, "GO:0000003", "a narrow process", "BP"),
    (4, "GO:0000004", "a narrower process", "BP"),
    (5, "GO:0000005", "a sibling, same genes", "BP"),
    (6, "GO:0000006", "tiny process", "BP"),
    (7, "GO:0000007", "some function", "MF"),
]
BELOW = [(1, i) for i in range(2, 7)] + [(2, 3), (2, 4), (2, 5), (2, 6), (3, 4)]
GENES = [(i, f"G{i}") for i in range(1, 8)] + [(8, "G7")]
# Genes 7 and 8 share a symbol; gene 1 has two kinds of evidence for one term.
ANNOTATION = {
    1: range(1, 9),
    2: (4, 3, 2, 1, 5),
    3: (3, 1, 2),
    4: (2, 3, 1),
    5: (1, 2, 3),
    6: (7, 8),
}
METADATA = {
    "GOSOURCEDATE": "2022-07-01",
    "GOSOURCEURL": "http://example.org/go.obo",
    "GOEGSOURCEDATE": "2022-Sep12",
    "GOEGSOURCENAME": "Entrez Gene",
    "GOEGSOURCEURL": "ftp://example.org/gene",
}


def fill(path: Path, tables: dict[str, list[tuple[Any, ...]]]) -> Path:
    columns = {
        "metadata": "name, value",
        "go_term": "_id, go_id, term, ontology",
        "go_bp_offspring": "_id, _offspring_id",
        "gene_info": "_id, symbol",
        "go_bp_all": "_id, go_id, evidence",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        for table, rows in tables.items():
            database.execute(f"CREATE TABLE {table} ({columns[table]})")
            marks = ", ".join("?" * len(rows[0]))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    return path


def org_database(path: Path, **metadata: str) -> Path:
    metadata = METADATA | {"DBSCHEMA": "HUMAN_DB", "ORGANISM": "Homo sapiens"} | metadata
    annotation = [
        (gene, f"GO:{term:07d}", "IEA") for term, genes in ANNOTATION.items() for gene in genes
    ]
    tables = {
        "metadata": list(metadata.items()),
        "gene_info": GENES,
        "go_bp_all": [*annotation, (1, "GO:0000003", "IDA")],
    }
    return fill(path, tables)


def go_database(
    path: Path, terms: list[tuple[int, str, str, str]] = TERMS, **metadata: str
) -> Path:
    tables = {
        "metadata": list((METADATA | {"DBSCHEMA": "GO_DB"} | metadata).items()),
        "go_term": terms,
        "go_bp_offspring": BELOW,
    }
    return fill(path, tables)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_human_gobp", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(org: Path, go: Path, out: Path, *more: str) -> list[str]:
    return ["--org-db", str(org), "--go-db", str(go), "--out", str(out), *more]


def test_builds(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    org = org_database(tmp_path / "org.Hs.eg.db" / "extdata" / "org.sqlite")
    (tmp_path / "org.Hs.eg.db" / "DESCRIPTION").write_text(
        "Package: x\nVersion: 9.8.7\nPackaged: 2022-09-22 21:57:31 UTC; somebody\n"
    )
    go = go_database(tmp_path / "GO.sqlite")
    script.main(arguments(org, go, tmp_path, "--min-genes", "3", "--max-genes", "5"))

    # Narrower and sibling are as specific as each other: the lower identifier stays; both are
    # more specific than narrow, which has a term below it. Root is too large, tiny too small.
    path = tmp_path / "human_gobp.gmt.gz"
    assert tosica.gs.read_gmt(path) == {
        "a narrower process": ["G1", "G2", "G3"],
        "wide process": ["G1", "G2", "G3", "G4", "G5"],
    }
    plain = tmp_path / "again.gmt.gz"
    tosica.gs.write_gmt(
        tosica.gs.read_gmt(path),
        plain,
        descriptions={"a narrower process": "GO:0000004", "wide process": "GO:0000002"},
    )
    assert path.read_bytes() == plain.read_bytes()

    metadata = json.loads((tmp_path / "human_gobp.json").read_bytes())
    assert metadata["n_sets"] == 2
    assert metadata["n_genes"] == 5
    assert metadata["release"] == "GO 2022-07-01"
    assert metadata["release_known_by"] == "the metadata of the databases"
    assert metadata["date"] == "2022-09-12"
    assert (metadata["min_genes"], metadata["max_genes"]) == (3, 5)
    assert "(2 others left out)" in metadata["changes"]
    assert [package.get("version") for package in metadata["made_from"]] == ["9.8.7", None]
    dates = ("ontology_date", "annotation_date", "packaging_date")
    assert [[package.get(date) for date in dates] for package in metadata["made_from"]] == [
        ["2022-07-01", "2022-09-12", "2022-09-22"],
        ["2022-07-01", "2022-09-12", None],
    ]
    assert capsys.readouterr().out == f"2 sets of 5 genes, {path.stat().st_size} bytes\n"


def test_genes_that_share_a_symbol_count_once(script: ModuleType, tmp_path: Path) -> None:
    org, go = org_database(tmp_path / "org.sqlite"), go_database(tmp_path / "GO.sqlite")
    script.build(org, go, tmp_path, min_genes=1, max_genes=2)
    assert tosica.gs.read_gmt(tmp_path / "human_gobp.gmt.gz") == {"tiny process": ["G7"]}


def test_number_of_terms_tells_a_release_without_a_name(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unnamed = {"GOSOURCEDATE": "", "GOSOURCEURL": ""}
    org = org_database(tmp_path / "org.sqlite", **unnamed)
    terms = [*TERMS, (8, "all", "all", "universal")]
    go = go_database(tmp_path / "GO.sqlite", terms, **unnamed)
    monkeypatch.setattr(script, "RELEASE_OF_N_TERMS", {7: "2024-09-08", 8: "wrong"})
    metadata = script.build(org, go, tmp_path, min_genes=3)
    assert metadata["release"] == "GO 2024-09-08"
    assert metadata["release_known_by"].startswith("the number of terms, 7, as in the ")
    assert metadata["date"] == "2022-09-12"
    for package in metadata["made_from"]:
        assert not {"ontology_date", "ontology_url"} & package.keys()


def test_same_bytes_again(script: ModuleType, tmp_path: Path) -> None:
    org, go = org_database(tmp_path / "org.sqlite"), go_database(tmp_path / "GO.sqlite")
    outputs = []
    for name in ("one", "two"):
        out = tmp_path / name
        out.mkdir()
        script.build(org, go, out, min_genes=3)
        outputs.append([(out / f"human_gobp.{end}").read_bytes() for end in ("gmt.gz", "json")])
    assert outputs[0] == outputs[1]


def test_resource_has_the_scripts_fields(script: ModuleType, tmp_path: Path) -> None:
    org, go = org_database(tmp_path / "org.sqlite"), go_database(tmp_path / "GO.sqlite")
    metadata = script.build(org, go, tmp_path, min_genes=3)
    shipped = Path(tosica.gs.__file__).parent / "resources" / "human_gobp.json"
    assert list(json.loads(shipped.read_bytes())) == list(metadata)
    assert json.loads(shipped.read_bytes())["citation"] == metadata["citation"]


def test_help_tells_where_to_get_the_databases(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        script.main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "apt-get download r-bioc-org.hs.eg.db r-bioc-go.db" in text
    assert "dpkg -x" in text


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("missing", "There is no database {path}; see --help for where to get it."),
        ("not sqlite", "{path} is not the database that is needed: file is not a database."),
        ("no table", "{path} is not the database that is needed: no such table: metadata."),
        ("no metadata", "The metadata of {path} lack DBSCHEMA; take it from Bioconductor."),
        ("mouse", "{path} is not about Homo sapiens; take org.Hs.eg.sqlite."),
        ("other release", "The databases are of different Gene Ontology releases"),
        ("other date", "of different Gene Ontology releases (2024-Mar12 and 2022-Sep12)"),
        ("unknown release", "none is known to have its 7 terms: add the one that has to RELEASE_"),
        ("sizes", "No term of {path} has 10 to 300 genes."),
        ("term missing", "GO.sqlite has no biological process GO:0000004, which {path} uses."),
        ("same name", "GO.sqlite share a name."),
        ("no folder", "There is no folder"),
    ],
)
def test_refuses(
    script: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    wrong: str,
    sentence: str,
) -> None:
    org, out = tmp_path / "org.sqlite", tmp_path
    terms, more = TERMS, ["--min-genes", "3"]
    match wrong:
        case "missing":
            pass
        case "not sqlite":
            org.write_bytes(b"<html>" * 100)
        case "no table":
            fill(org, {"gene_info": GENES})
        case "no metadata":
            fill(org, {"metadata": [("ORGANISM", "Homo sapiens")]})
        case "mouse":
            org_database(org, ORGANISM="Mus musculus")
        case "other release":
            org_database(org, GOSOURCEDATE="2021-02-01")
        case "other date":
            org_database(org, GOEGSOURCEDATE="2024-Mar12")
        case "unknown release":
            org_database(org, GOSOURCEDATE="")
        case _:
            org_database(org)
    if wrong == "sizes":
        more = []
    if wrong == "term missing":
        terms = [term for term in TERMS if term[0] != 4]
    if wrong == "same name":
        terms = [(i, go, "one name for all", domain) for i, go, _, domain in TERMS]
    if wrong == "no folder":
        out = tmp_path / "missing"
    named = {"GOSOURCEDATE": ""} if wrong == "unknown release" else {}
    go = go_database(tmp_path / "GO.sqlite", terms, **named)
    with pytest.raises(SystemExit) as caught:
        script.main(arguments(org, go, out, *more))
    assert caught.value.code == 1
    assert sentence.format(path=org) in capsys.readouterr().err
    assert not list(tmp_path.glob("human_gobp*"))
