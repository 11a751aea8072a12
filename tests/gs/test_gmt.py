"""GMT files: what is read, what goes out comes back, and what is refused."""

import gzip
import os
import stat
import time

import pytest
from _strategies import gene_set_collections
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tosica.gs

SETS = {"T cell": ["CD3D", "CD3E"], "B cell": ["MS4A1", "CD79A"]}
PLAIN = b"T cell\tna\tCD3D\tCD3E\nB cell\tby hand\tMS4A1\tCD79A\n"

# Few letters, so that names collide and hard characters are common.
ANY_TEXT = st.text(
    alphabet=st.sampled_from("aB1 -,\"'<\t\n\r\x85\u2028\ufeffé基\ud800"), max_size=4
)


@pytest.fixture(scope="module", params=["x.gmt", "x.gmt.gz"])
def path(request, tmp_path_factory):
    return tmp_path_factory.mktemp("gmt") / request.param


# --------------------------------------------------------------------------- read


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (PLAIN, SETS),
        (b"\xef\xbb\xbf" + PLAIN, SETS),
        (PLAIN.replace(b"\n", b"\r\n"), SETS),
        (PLAIN.replace(b"\n", b"\t\t\n\n \t\n"), SETS),
        (gzip.compress(PLAIN, mtime=0), SETS),
        ("Größe\t\t基\n".encode(), {"Größe": ["基"]}),
        (
            b"b\t\tG2\tG1\tG2\tG0\na\t\tG9\tG1\n",
            {"b": ["G2", "G1", "G0"], "a": ["G9", "G1"]},
        ),
        # Only line ends cut lines.
        (
            "before\u2028after\x0band\x85more\tna\tCD3E\n".encode(),
            {"before\u2028after\x0band\x85more": ["CD3E"]},
        ),
    ],
)
@pytest.mark.parametrize("name", ["x.gmt", "x.gmt.gz", "x.txt"])
def test_reads(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_bytes(content)
    for given_path in (path, str(path)):
        assert list(tosica.gs.read_gmt(given_path).items()) == list(expected.items())


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "no gene set"),
        (b"\xef\xbb\xbf \n\t\n", "no gene set"),
        (gzip.compress(PLAIN, mtime=0)[:-12], "gzip"),
        (gzip.compress(PLAIN, mtime=0)[:10] + b"\xff" * 20, "gzip"),
        (PLAIN + "Größe\tna\tCD3E\n".encode("latin-1"), "UTF-8"),
        (b"\x89HDF\r\n\x1a\n\x00\x00", "UTF-8"),
        (b"\n<!DOCTYPE html>\n<html>\n", "line 2"),
        (gzip.compress(b"<?xml version='1.0'?><Error>", mtime=0), "line 1"),
        (PLAIN + b"NK cell\tn", "line 3"),
        (b"\tna\tCD3E\n", "line 1"),
        (PLAIN + b"NK cell\tna\t\t \n", "line 3.*'NK cell"),
        (
            PLAIN + b"\nB cell\tna\tCD19\n",
            "line 4: the gene set 'B cell' is duplicated",
        ),
    ],
)
def test_refuses_to_read(tmp_path, content, word):
    path = tmp_path / "x.gmt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=word) as caught:
        tosica.gs.read_gmt(path)
    assert str(path) in str(caught.value)


def test_what_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.gmt"):
        tosica.gs.read_gmt(tmp_path / "none.gmt")
    with pytest.raises(OSError, match="directory"):
        tosica.gs.read_gmt(tmp_path)


# --------------------------------------------------------------------------- write


@given(
    gene_sets=gene_set_collections(
        ANY_TEXT, ANY_TEXT, n_genes=(0, 3), max_sets=3, unique=True
    ),
    description=ANY_TEXT,
)
@example(gene_sets={"\ufeffa": ["a"]}, description="")
@example(gene_sets={"a": ["\ufeffa", "<html>"]}, description="<html>")
@settings(max_examples=50)
def test_comes_back_or_is_refused(path, gene_sets, description):
    original = path.read_bytes() if path.exists() else None
    try:
        tosica.gs.write_gmt(
            gene_sets, path, descriptions=dict.fromkeys(gene_sets, description)
        )
    except ValueError:
        assert (path.read_bytes() if path.exists() else None) == original
    else:
        assert list(tosica.gs.read_gmt(path).items()) == list(gene_sets.items())


def test_content(tmp_path, monkeypatch):
    tosica.gs.write_gmt(SETS, tmp_path / "x.gmt", descriptions={"B cell": "by hand"})
    assert (tmp_path / "x.gmt").read_bytes() == PLAIN
    tosica.gs.write_gmt(
        SETS, str(tmp_path / "x.gmt.gz"), descriptions={"B cell": "by hand"}
    )
    compressed = (tmp_path / "x.gmt.gz").read_bytes()
    assert gzip.decompress(compressed) == PLAIN
    # The same bytes at any time and under any name.
    monkeypatch.setattr(time, "time", lambda: 1e9)
    tosica.gs.write_gmt(SETS, tmp_path / "y.gmt.gz", descriptions={"B cell": "by hand"})
    assert (tmp_path / "y.gmt.gz").read_bytes() == compressed


def test_repeated_genes_and_python_sets(tmp_path):
    gene_sets = {
        "repeats": ["B", "A", "B"],
        "a set": {"C", "A", "B"},
        "generated": iter("BA"),
    }
    tosica.gs.write_gmt(gene_sets, tmp_path / "x.gmt")
    assert tosica.gs.read_gmt(tmp_path / "x.gmt") == {
        "repeats": ["B", "A"],
        "a set": ["A", "B", "C"],
        "generated": ["B", "A"],
    }


@pytest.mark.skipif(os.name == "nt", reason="permissions and links are Unix's")
def test_replaces_the_file_behind_a_link(tmp_path):
    target, link = tmp_path / "target.gmt", tmp_path / "link.gmt"
    target.write_bytes(b"old\tna\tG\n")
    usual = stat.S_IMODE(target.stat().st_mode)
    link.symlink_to(target)
    tosica.gs.write_gmt(SETS, link)
    assert link.is_symlink()
    assert tosica.gs.read_gmt(target) == SETS
    assert stat.S_IMODE(target.stat().st_mode) == usual
    assert sorted(os.listdir(tmp_path)) == ["link.gmt", "target.gmt"]


@pytest.mark.parametrize(
    ("gene_sets", "descriptions", "error", "word"),
    [
        (SETS, {"NK cell": "x"}, ValueError, "descriptions names 'NK cell'"),
        ({"a": []}, None, ValueError, "'a' has no genes"),
        ({"a": [7]}, None, TypeError, "'a' has 7"),
        ({"a": [["x"]]}, None, TypeError, r"'a' has \['x'\]"),
        (SETS, {"T cell": 7}, TypeError, "'T cell' has 7"),
        ({"a": [""]}, None, ValueError, "'a' has the text ''"),
        ({"a\tb": ["G"]}, None, ValueError, "tabs"),
        ({"a": ["G\n"]}, None, ValueError, "line breaks"),
        (SETS, {"T cell": "a\tb"}, ValueError, "tabs"),
        ({"a": [" G"]}, None, ValueError, "whitespace"),
        ({"\ud800": ["G"]}, None, ValueError, "surrogates"),
    ],
)
def test_refuses_to_write(tmp_path, gene_sets, descriptions, error, word):
    with pytest.raises(error, match=word):
        tosica.gs.write_gmt(gene_sets, tmp_path / "x.gmt", descriptions=descriptions)
    assert os.listdir(tmp_path) == []


def test_where_nothing_can_be_written(tmp_path):
    for path in (tmp_path / "missing" / "x.gmt", tmp_path):
        with pytest.raises(OSError, match=str(path.parent)):
            tosica.gs.write_gmt(SETS, path)
