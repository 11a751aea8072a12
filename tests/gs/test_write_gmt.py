"""write_gmt: what goes out comes back, whole files only."""

from __future__ import annotations

import gzip
import os
import re
import stat
import time
from typing import TYPE_CHECKING, Any

import pytest
from _strategies import gene_set_collections
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tosica.gs

if TYPE_CHECKING:
    from pathlib import Path

SETS = {"T cell": ["CD3D", "CD3E"], "B cell": ["MS4A1", "CD79A"]}

# Few letters, so that names collide and hard characters are common.
ANY_TEXT = st.text(
    alphabet=st.sampled_from("aB1 -,\"'<!\t\n\r\0\x85\u2028\ufeffé基\ud800"), max_size=4
)
GOOD_TEXT = st.text(min_size=1, max_size=8).filter(
    lambda text: (
        text == text.strip()
        and not set(text) & set("\t\n\r\0")
        and not text.startswith(("\ufeff", "<"))
    )
)


@pytest.fixture(scope="module", params=["x.gmt", "x.gmt.gz"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gmt") / request.param


@given(
    gene_sets=gene_set_collections(GOOD_TEXT, GOOD_TEXT, n_genes=(1, 6), max_sets=6, unique=True),
    data=st.data(),
)
@settings(max_examples=60)
def test_round_trip(path: Path, gene_sets: dict[str, list[str]], data: st.DataObject) -> None:
    described = data.draw(st.sets(st.sampled_from(sorted(gene_sets))))
    tosica.gs.write_gmt(gene_sets, path, descriptions=dict.fromkeys(described, "why"))
    read = tosica.gs.read_gmt(path)
    assert list(read.items()) == list(gene_sets.items())


@given(
    gene_sets=gene_set_collections(ANY_TEXT, ANY_TEXT, n_genes=(0, 3), max_sets=3, unique=True),
    description=ANY_TEXT,
)
@example(gene_sets={"<!-- x": ["a"]}, description="")
@example(gene_sets={"<html>": ["a"]}, description="")
@example(gene_sets={"\ufeffa": ["a"]}, description="")
@example(gene_sets={"a": ["\ufeffa", "<html>"]}, description="<html>")
@settings(max_examples=200)
def test_comes_back_or_is_refused(
    path: Path, gene_sets: dict[str, list[str]], description: str
) -> None:
    before = path.read_bytes() if path.exists() else None
    refusal = None
    try:
        tosica.gs.write_gmt(gene_sets, path, descriptions=dict.fromkeys(gene_sets, description))
    except ValueError as error:
        refusal = error
    if refusal is not None:
        assert type(refusal) is ValueError
        assert (path.read_bytes() if path.exists() else None) == before
    else:
        assert list(tosica.gs.read_gmt(path).items()) == list(gene_sets.items())


def test_content(tmp_path: Path) -> None:
    tosica.gs.write_gmt(SETS, tmp_path / "x.gmt", descriptions={"B cell": "by hand"})
    expected = b"T cell\tna\tCD3D\tCD3E\nB cell\tby hand\tMS4A1\tCD79A\n"
    assert (tmp_path / "x.gmt").read_bytes() == expected
    tosica.gs.write_gmt(SETS, str(tmp_path / "x.gmt.gz"), descriptions={"B cell": "by hand"})
    assert gzip.decompress((tmp_path / "x.gmt.gz").read_bytes()) == expected


def test_repeated_genes_and_python_sets(tmp_path: Path) -> None:
    gene_sets = {"repeats": ["B", "A", "B"], "a set": {"C", "A", "B"}, "generated": iter("BA")}
    tosica.gs.write_gmt(gene_sets, tmp_path / "x.gmt")
    assert tosica.gs.read_gmt(tmp_path / "x.gmt") == {
        "repeats": ["B", "A"],
        "a set": ["A", "B", "C"],
        "generated": ["B", "A"],
    }


def test_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tosica.gs.write_gmt(SETS, tmp_path / "one.gmt.gz")
    monkeypatch.setattr(time, "time", lambda: 1e9)
    tosica.gs.write_gmt(SETS, tmp_path / "two.gmt.gz")
    assert (tmp_path / "one.gmt.gz").read_bytes() == (tmp_path / "two.gmt.gz").read_bytes()
    assert (tmp_path / "one.gmt.gz").read_bytes()[3:8] == bytes(5)  # no name, no time


def test_old_file_survives_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.gmt"
    path.write_bytes(b"old\tna\tG\n")

    def disk_full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        tosica.gs.write_gmt(SETS, path)
    assert path.read_bytes() == b"old\tna\tG\n"
    assert os.listdir(tmp_path) == ["x.gmt"]


def test_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.gmt"
    path.write_bytes(b"old\tna\tG\n")
    tosica.gs.write_gmt(SETS, path)
    assert tosica.gs.read_gmt(path) == SETS
    assert os.listdir(tmp_path) == ["x.gmt"]


@pytest.mark.skipif(os.name == "nt", reason="permissions and links are Unix's")
def test_permissions_and_links(tmp_path: Path) -> None:
    target, link = tmp_path / "target.gmt", tmp_path / "link.gmt"
    target.touch()
    usual = stat.S_IMODE(target.stat().st_mode)
    link.symlink_to(target)
    tosica.gs.write_gmt(SETS, link)
    assert link.is_symlink()
    assert tosica.gs.read_gmt(target) == SETS
    assert stat.S_IMODE(target.stat().st_mode) == usual


@pytest.mark.parametrize(
    ("gene_sets", "descriptions", "error", "sentence"),
    [
        ({}, None, ValueError, "There is no gene set to write: gene_sets is empty."),
        (["CD3E"], None, TypeError, "gene_sets must be a dict of gene set names, not list."),
        (SETS, "x", TypeError, "descriptions must be a dict of gene set names, not str."),
        (
            SETS,
            {"NK cell": "x"},
            ValueError,
            "descriptions names 'NK cell', which is not in gene_sets; remove it.",
        ),
        (
            {"a": "CD3E"},
            None,
            TypeError,
            "The genes of 'a' must be a list of strings, not one string.",
        ),
        ({"a": None}, None, TypeError, "The genes of 'a' must be a list of strings, not NoneType."),
        ({"a": []}, None, ValueError, "The gene set 'a' has no genes; add some or leave it out."),
        ({"a": [7]}, None, TypeError, "A gene of 'a' must be a string, not int: 7."),
        ({7: ["G"]}, None, TypeError, "The gene set name must be a string, not int: 7."),
        (
            SETS,
            {"T cell": 7},
            TypeError,
            "The description of 'T cell' must be a string, not int: 7.",
        ),
        ({"": ["G"]}, None, ValueError, "The gene set name is an empty string; fill it in or"),
        ({"a": [""]}, None, ValueError, "A gene of 'a' is an empty string; fill it in or leave it"),
        (
            {"a\tb": ["G"]},
            None,
            ValueError,
            r"The gene set name contains a tab, which a GMT file cannot",
        ),
        (
            {"a": ["G\n"]},
            None,
            ValueError,
            r"A gene of 'a' contains a line break, which a GMT",
        ),
        (
            {"a": ["G\r"]},
            None,
            ValueError,
            r"A gene of 'a' contains a line break, which a GMT",
        ),
        (
            {"a": ["G\0"]},
            None,
            ValueError,
            r"A gene of 'a' contains a null character, which a GMT file",
        ),
        (SETS, {"T cell": "a\tb"}, ValueError, "The description of 'T cell' contains a tab"),
        (
            {"a": [" G"]},
            None,
            ValueError,
            "A gene of 'a' starts or ends with whitespace; strip it: ' G'.",
        ),
        ({"\ud800": ["G"]}, None, ValueError, "The gene set name cannot be written as UTF-8: "),
        (
            {"<html>": ["G"]},
            None,
            ValueError,
            "The gene set name '<html>' starts like a web page",
        ),
    ],
)
def test_refuses(
    tmp_path: Path, gene_sets: Any, descriptions: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=re.escape(sentence)) as caught:
        tosica.gs.write_gmt(gene_sets, tmp_path / "x.gmt", descriptions=descriptions)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_no_folder(tmp_path: Path) -> None:
    sentence = f"There is no folder {tmp_path / 'missing'} to write to; create it first."
    with pytest.raises(FileNotFoundError, match=re.escape(sentence)):
        tosica.gs.write_gmt(SETS, tmp_path / "missing" / "x.gmt")


def test_onto_a_folder(tmp_path: Path) -> None:
    sentence = f"{tmp_path} is a folder; give the path of the GMT file to write."
    with pytest.raises(IsADirectoryError, match=re.escape(sentence)):
        tosica.gs.write_gmt(SETS, tmp_path)
