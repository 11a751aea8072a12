"""scripts/build_gene_tables.py."""

from __future__ import annotations

import gzip
import importlib.util
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
RESOURCES = files("tosica.gs") / "resources"


def script(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def org_db(path: Path, organism: str, genes: list[tuple[int, str, str, str]]) -> Path:
    """Genes as (id, symbol, Entrez number, type); gene 1 has two Ensembl IDs and two aliases.

    Genes 3 and 5 share one that NCBI gives to gene 3 alone, and one that it gives to neither.
    """
    with closing(sqlite3.connect(path)) as database, database:
        for statement in (
            "CREATE TABLE metadata (name, value)",
            "CREATE TABLE genes (_id, gene_id)",
            "CREATE TABLE gene_info (_id, symbol)",
            "CREATE TABLE genetype (_id, gene_type)",
            "CREATE TABLE ensembl (_id, ensembl_id)",
            "CREATE TABLE ncbi2ensembl (_id, ensembl_id)",
            "CREATE TABLE alias (_id, alias_symbol)",
            "CREATE TABLE go_bp_all (_id, go_id)",
        ):
            database.execute(statement)
        database.execute("INSERT INTO metadata VALUES ('ORGANISM', ?)", (organism,))
        for number, symbol, entrez, kind in genes:
            database.execute("INSERT INTO genes VALUES (?, ?)", (number, entrez))
            database.execute("INSERT INTO gene_info VALUES (?, ?)", (number, symbol))
            database.execute("INSERT INTO genetype VALUES (?, ?)", (number, kind))
            database.execute("INSERT INTO alias VALUES (?, ?)", (number, symbol))
        database.executemany("INSERT INTO ensembl VALUES (1, ?)", [("E2",), ("E1",)])
        for gene in (3, 5):
            database.executemany("INSERT INTO ensembl VALUES (?, ?)", [(gene, "E4"), (gene, "E5")])
        database.execute("INSERT INTO ncbi2ensembl VALUES (3, 'E4')")
        database.executemany("INSERT INTO alias VALUES (1, ?)", [("old",), ("a|b",), ("older",)])
        database.execute("INSERT INTO go_bp_all VALUES (3, 'GO:1')")
    return path


HUMAN = [
    (1, "AAA", "11", "ncRNA"),
    (2, "BBB", "12", "protein-coding"),
    (3, "CCC", "13", "other"),
    (4, "DDD", "14", "pseudo"),  # nobody measures it
    (5, "BBB", "9", "protein-coding"),  # shares a symbol with a later number
    (6, "EEE", "16", "protein-coding"),
    (7, "FFF", "17", "protein-coding"),
]
HCOP = """Gene stable ID,Human gene stable ID,supporting_source
M1,E1,"Ensembl,OMA,Panther"
M2,E9,Ensembl
M7,E8,Ensembl
M8,E8,"OMA,Panther"
M8,E8,Panther
M10,E6,Ensembl
M11,E10,"Ensembl,OMA"
"""
BIOMART = """Gene stable ID,Gene name,Human gene name,Human gene stable ID,Human homology type
M1,Aaa,AAA-old-name,E1,ortholog_one2one
M2,Bbb,BBB,E9,ortholog_one2one
M3,Ccc1,CCC,E3,ortholog_one2many
M4,,CCC,E3,ortholog_one2one
M5,Bbb,,,
M6,Nan,nobody,E7,ortholog_one2one
M7,Outvoted,CCC,E8,ortholog_one2one
M9,Ccc2,CCC,E5,ortholog_one2one
M10,Shared,EEE,E6,ortholog_one2one
M11,Shared,FFF,E10,ortholog_one2one
M12,Tied,EEE,E11,ortholog_one2one
M13,Tied,AAA,E12,ortholog_one2one
"""


def read(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    biomart = tmp_path / "orthologs.csv"
    biomart.write_text(BIOMART)
    hcop = tmp_path / "hcop.csv"
    hcop.write_text(HCOP)
    human = org_db(tmp_path / "human.sqlite", "Homo sapiens", HUMAN)
    inputs = ["--human-org-db", str(human), "--orthologs", str(biomart), "--hcop", str(hcop)]
    return [*inputs, "--out", str(tmp_path)]


def test_tables(tmp_path: Path, sources: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    script("build_gene_tables").main(sources)
    header = ["symbol", "entrez", "ensembl", "aliases", "human_ortholog"]
    assert read(tmp_path / "human.tsv.gz") == [
        header,
        ["AAA", "11", "E1|E2", "old|older", ""],
        ["BBB", "9", "E5", "", ""],
        ["CCC", "13", "E4|E5", "", ""],
        ["EEE", "16", "", "", ""],
        ["FFF", "17", "", "", ""],
    ]
    assert read(tmp_path / "mouse.tsv.gz") == [
        header,
        ["Aaa", "", "M1", "", "AAA"],
        ["Bbb", "", "M2|M5", "", "BBB"],
        ["Ccc1", "", "M3", "", ""],
        ["Ccc2", "", "M9", "", "CCC"],
        ["Nan", "", "M6", "", ""],
        ["Outvoted", "", "M7", "", ""],
        ["Shared", "", "M10|M11", "", "FFF"],
        ["Tied", "", "M12|M13", "", ""],
    ]
    assert capsys.readouterr().out.startswith("human: 5 genes, ")
    first = (tmp_path / "mouse.tsv.gz").read_bytes()
    script("build_gene_tables").main(sources)
    assert (tmp_path / "mouse.tsv.gz").read_bytes() == first


def test_names_of_the_mouse_database(tmp_path: Path, sources: list[str]) -> None:
    mouse = org_db(tmp_path / "mouse.sqlite", "Mus musculus", [(1, "Aaa", "77", "protein-coding")])
    script("build_gene_tables").main([*sources, "--mouse-org-db", str(mouse)])
    assert read(tmp_path / "mouse.tsv.gz")[1:3] == [
        ["Aaa", "77", "M1", "old|older", "AAA"],
        ["Bbb", "", "M2|M5", "", "BBB"],
    ]


def test_databases_mixed_up(
    tmp_path: Path, sources: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1"):
        script("build_gene_tables").main([*sources, "--mouse-org-db", sources[1]])
    assert "human.sqlite is about Homo sapiens, not about Mus musculus." in capsys.readouterr().err
    (tmp_path / "orthologs.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit, match="1"):
        script("build_gene_tables").main(sources)
    assert "has no column 'Gene stable ID'; take that of" in capsys.readouterr().err
