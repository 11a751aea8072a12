"""scripts/make_cell_ontology.py on a wheel with a few terms."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest

from tosica.onto._ontology import Ontology, read_ontology

if TYPE_CHECKING:
    from types import ModuleType

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_cell_ontology.py"


def term(label: str, *synonyms: str, above: dict[str, int] | None = None, **more: Any) -> dict:
    row = {"label": label, "deprecated": False, "ancestors": above or {}, **more}
    return row | ({"synonyms": list(synonyms)} if synonyms else {})


ROOT = {"CL:0000000": 1}
TERMS = {
    "CL:0000000": term("cell"),
    "CL:0000084": term("T cell", "T-cell", "T lymphocyte", above=ROOT),
    "CL:0000001": term("helper T cell", "IPC", above={"CL:0000084": 1, "CL:0000000": 2}),
    "CL:0000002": term("alpha ganglion cell", "alpha cell", "lens cell", above=ROOT),
    "CL:0000003": term("double negative thymocyte", "double negative T cell", above=ROOT),
    "CL:0000004": term("kind of cytoplasm", above={"CL:0000000": 2}),
    "CL:0000009": term("obsolete old cell", deprecated=True, replaced_by="CL:0000084"),
    "CL:0000008": term("obsolete older cell", deprecated=True, consider=["CL:0000084"]),
    "CL:0000007": term("obsolete oldest cell", deprecated=True),
}
INFO = {
    "7.1.0": {"ontologies": {"CL": {"version": "v2026-03-26"}}},
    "7.0.0": {"ontologies": {"CL": {"version": "v2025-07-30"}}},
}


def make_wheel(path: Path, terms: Any = TERMS, info: Any = INFO, end: str = ".gz") -> Path:
    content = json.dumps(terms).encode()
    with ZipFile(path, "w") as archive:
        archive.writestr("guide/data/ontology_info.json", json.dumps(info))
        name = f"guide/data/CL-ontology-v2026-03-26.json{end}"
        archive.writestr(name, gzip.compress(content) if end == ".gz" else content)
        archive.writestr("guide/data/CL-ontology-v2025-07-30.json.gz", b"older")
    return path


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_cell_ontology", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_makes_the_slim(script: ModuleType, tmp_path: Path, capsys: Any) -> None:
    wheel = make_wheel(tmp_path / "guide.whl")
    script.main([str(wheel), "--out", str(tmp_path)])
    about = json.loads((tmp_path / "cell_ontology.json").read_bytes())
    content = gzip.decompress((tmp_path / "cell_ontology.tsv.gz").read_bytes()).decode()
    assert content.splitlines() == [
        "id\tname\tparents\tsynonyms\tinexact_synonyms\tobsolete_use",
        "0000000\tcell\t\t\t\t",
        "0000001\thelper T cell\t0000084\t\tIPC\t",
        "0000002\talpha ganglion cell\t0000000\t\talpha cell|lens cell\t",
        "0000003\tdouble negative thymocyte\t0000000\t\tdouble negative T cell\t",
        "0000007\toldest cell\t\t\t\t-",
        "0000008\tolder cell\t\t\t\tCL:0000084",
        "0000009\told cell\t\t\t\tCL:0000084",
        "0000084\tT cell\t0000000\tT lymphocyte|T-cell\t\t",
    ]
    assert about["release"] == "2026-03-26"
    assert about["schema"] == "CELLxGENE schema 7.1.0"
    assert about["forbidden"] == ["CL:0000255", "CL:0000257", "CL:0000548"]
    counts = ("n_terms", "n_obsolete", "n_synonyms", "n_inexact_synonyms")
    assert [about[name] for name in counts] == [5, 3, 2, 4]
    size = (tmp_path / "cell_ontology.tsv.gz").stat().st_size
    assert capsys.readouterr().out == f"5 terms, 2 synonyms, {size} bytes\n"
    # What is written can be read.
    ontology = Ontology(content, about)
    assert ontology.ancestors["CL:0000001"] == {"CL:0000084", "CL:0000000"}
    assert ontology.obsolete["CL:0000009"] == ("old cell", ("CL:0000084",))
    assert ontology.obsolete["CL:0000007"] == ("oldest cell", ())


def test_same_bytes_again(script: ModuleType, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "guide.whl", end="")
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        script.build(wheel, tmp_path / name)
        made.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert made[0] == made[1]
    assert set(made[0]) == {"cell_ontology.json", "cell_ontology.tsv.gz", "SHA256SUMS"}


def test_the_file_in_the_package_is_small_and_of_this_script(script: ModuleType) -> None:
    folder = SCRIPT.parents[1] / "src" / "tosica" / "onto" / "resources"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 200_000
    about = json.loads((folder / "cell_ontology.json").read_bytes())
    assert about["citation"] == script.CITATION
    assert about["forbidden"] == script.FORBIDDEN["7.1.0"]
    ontology = read_ontology()
    assert about["n_terms"] == len(ontology.names) == 3316
    listed = {name for names in ontology._inexact.values() for name in names}
    assert set(script.OTHER_USES) <= listed
    assert not set(script.REVIEWED) & listed


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("no wheel", "is no wheel of cellxgene-ontology-guide: File is not a zip file."),
        ("schema", "guide.whl is of schema 9.0.0, which is not in FORBIDDEN: add the terms that"),
        ("root", "The ontology has no CL:0000000, which is above all cell types."),
        ("tab", "The names of CL:0000084 have a tab or a line break."),
    ],
)
def test_refuses(
    script: ModuleType, tmp_path: Path, capsys: Any, wrong: str, sentence: str
) -> None:
    wheel = tmp_path / "guide.whl"
    match wrong:
        case "no wheel":
            wheel.write_bytes(b"<html>")
        case "schema":
            make_wheel(wheel, info={"9.0.0": INFO["7.1.0"]})
        case "root":
            make_wheel(wheel, {"CL:0000084": TERMS["CL:0000084"]})
        case "tab":
            make_wheel(wheel, TERMS | {"CL:0000084": term("T\tcell", above=ROOT)})
    with pytest.raises(SystemExit) as caught:
        script.main([str(wheel), "--out", str(tmp_path)])
    assert caught.value.code == 1
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.glob("cell_ontology*"))


def test_a_machine_without_zstandard(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(script.sys, "version_info", (3, 13))
    monkeypatch.setattr(script.importlib, "import_module", missing)
    monkeypatch.setattr(script.shutil, "which", lambda _: None)
    with pytest.raises(ValueError, match="install the package zstandard or the program zstd"):
        script.decompress(b"", ".zst")
