"""read_gmt: what it forgives, what it refuses, and how it says so."""

from __future__ import annotations

import gzip
import random
import re
import time
from typing import TYPE_CHECKING

import pytest

import tosica.gs

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = b"T cell\tna\tCD3D\tCD3E\nB cell\tna\tCD79A\tMS4A1\n"
SETS = {"T cell": ["CD3D", "CD3E"], "B cell": ["CD79A", "MS4A1"]}


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(PLAIN, id="as it should be"),
        pytest.param(PLAIN.rstrip(b"\n"), id="no last line end"),
        pytest.param(PLAIN.replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(PLAIN.replace(b"\n", b"\r"), id="CR"),
        pytest.param(b"\xef\xbb\xbf" + PLAIN, id="byte order mark"),
        pytest.param(PLAIN + b"\n", id="blank last line"),
        pytest.param(PLAIN.replace(b"\n", b"\n \t\n"), id="blank lines"),
        pytest.param(PLAIN.replace(b"\n", b"\t\t\n"), id="tabs at the end"),
        pytest.param(PLAIN.replace(b"CD3D\t", b"CD3D\t\t"), id="empty field"),
        pytest.param(PLAIN.replace(b"na", b""), id="empty description"),
        pytest.param(PLAIN.replace(b"CD3D\t", b"CD3D\tCD3D\tCD3E\t"), id="repeated genes"),
        pytest.param(PLAIN.replace(b"CD3D", b" CD3D "), id="blanks around a gene"),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_forgives(tmp_path: Path, content: bytes, compressed: bool) -> None:
    if compressed:
        path = put(tmp_path / "x.gmt.gz", gzip.compress(content))
    else:
        path = put(tmp_path / "x.gmt", content)
    read = tosica.gs.read_gmt(path)
    assert read == SETS
    assert list(read) == list(SETS)
    assert tosica.gs.read_gmt(str(path)) == SETS


def test_gz_in_capitals_and_in_members(tmp_path: Path) -> None:
    first, second = PLAIN.splitlines(keepends=True)
    path = put(tmp_path / "X.GMT.GZ", gzip.compress(first) + gzip.compress(second))
    assert tosica.gs.read_gmt(path) == SETS


def test_keeps_the_order_of_the_file(tmp_path: Path) -> None:
    path = put(tmp_path / "x.gmt", b"b\t\tG2\tG1\tG2\tG0\na\t\tG9\tG1\n")
    assert list(tosica.gs.read_gmt(path).items()) == [
        ("b", ["G2", "G1", "G0"]),
        ("a", ["G9", "G1"]),
    ]


def test_cuts_at_line_ends_only(tmp_path: Path) -> None:
    name = "before\u2028after\x0band\x85more"
    path = put(tmp_path / "x.gmt", f"{name}\tna\tCD3E\n".encode())
    assert tosica.gs.read_gmt(path) == {name: ["CD3E"]}


WEB_PAGE = "is a web page (HTML or XML), not a GMT file: a login or error page was probably saved"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        pytest.param("x.gmt", b"", "is empty; a GMT file has one gene set per line", id="empty"),
        pytest.param("x.gmt.gz", b"", "is empty; a GMT file has one", id="empty gz"),
        pytest.param("x.gmt.gz", gzip.compress(b""), "is empty; a GMT file", id="gz of nothing"),
        pytest.param("x.gmt", b"\xef\xbb\xbf \n\t\n", "is empty; a GMT file", id="blanks only"),
        pytest.param(
            "x.gmt.gz",
            gzip.compress(PLAIN)[:-12],
            "is a truncated or damaged gzip file (Compressed file ended before the end-of-stream "
            "marker was reached); copy or download it again.",
            id="truncated gz",
        ),
        pytest.param(
            "x.gmt.gz",
            gzip.compress(PLAIN)[:5],
            "is a truncated or damaged gzip file",
            id="truncated gz header",
        ),
        pytest.param(
            "x.gmt.gz",
            gzip.compress(PLAIN)[:-8] + bytes(8),
            "is a truncated or damaged gzip file (CRC check failed",
            id="gz with a wrong checksum",
        ),
        pytest.param(
            "x.gmt.gz",
            gzip.compress(PLAIN)[:10] + b"\xff" * 20,
            "is a truncated or damaged gzip file (Error -3 while decompressing",
            id="gz that does not decompress",
        ),
        pytest.param(
            "x.gmt.gz",
            PLAIN,
            "is not gzip-compressed although its name ends in .gz; remove .gz from the name if",
            id="gz that is plain",
        ),
        pytest.param(
            "x.gmt",
            gzip.compress(PLAIN),
            "is gzip-compressed, but its name does not end in .gz; rename it so that it does.",
            id="gz that is called plain",
        ),
        pytest.param(
            "x.gmt",
            PLAIN + "Größe\tna\tCD3E\n".encode("latin-1"),
            ", line 3: not UTF-8 text (byte 0xf6); save the file as UTF-8",
            id="Latin-1",
        ),
        pytest.param(
            "x.gmt",
            b"\xef\xbb\xbf" + PLAIN + b"\xff\tna\tCD3E\n",
            ", line 3: not UTF-8 text (byte 0xff)",
            id="not UTF-8 behind a byte order mark",
        ),
        pytest.param(
            "x.gmt",
            PLAIN.decode().encode("utf-16"),
            "is UTF-16 text; save it as UTF-8",
            id="UTF-16",
        ),
        pytest.param("x.gmt", b"\n<!DOCTYPE html>\n<html>\n", WEB_PAGE, id="HTML"),
        pytest.param("x.gmt", b"<html><head><title>Sign in", WEB_PAGE, id="HTML, no doctype"),
        pytest.param("x.gmt", b"<html>\t<head>\t<title>a", WEB_PAGE, id="HTML with tabs"),
        pytest.param("x.gmt", b"<?xml version='1.0'?><Error>", WEB_PAGE, id="XML"),
        pytest.param("x.gmt.gz", b"<!doctype HTML>", WEB_PAGE, id="HTML called gz"),
        pytest.param("x.gmt.gz", gzip.compress(b"<html>"), WEB_PAGE, id="HTML in a gz"),
        pytest.param(
            "x.gmt",
            PLAIN + b"NK cell\tn",
            ", line 3: 2 tab-separated fields where a GMT line has a name, a description and at "
            "least one gene; the line is truncated, or the file is not separated by tabs.",
            id="truncated line",
        ),
        pytest.param(
            "x.gmt", b"T cell,na,CD3E\n", ", line 1: 1 tab-separated field where", id="csv"
        ),
        pytest.param(
            "x.gmt", b"\tna\tCD3E\n", ", line 1: the gene set has no name", id="no set name"
        ),
        pytest.param(
            "x.gmt",
            PLAIN + b"NK cell\tna\t\t \n",
            ", line 3: the gene set 'NK cell' has no genes; add some or remove it.",
            id="no gene",
        ),
        pytest.param(
            "x.gmt",
            PLAIN + b"\nB cell\tna\tCD19\n",
            ": the gene set 'B cell' is duplicated, on lines 2 and 4; names must be "
            "unique, so rename or remove the duplicates.",
            id="set twice",
        ),
        pytest.param(
            "x.gmt", b"NA\t\tG\n" * 9, "on lines 1, 2, 3, 4, 5 and 4 more;", id="set nine times"
        ),
        pytest.param(
            "x.gmt",
            b"\x89HDF\r\n\x1a\n\x00\x00",
            "is a binary file, not GMT text; check that it is the right file.",
            id="binary",
        ),
        pytest.param(
            "x.gmt", PLAIN * 500 + b"\0", "is a binary file, not GMT text", id="binary further down"
        ),
    ],
)
def test_refuses(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    path = put(tmp_path / name, content)
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        tosica.gs.read_gmt(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert message.endswith(".")
    assert "\n" not in message
    assert path.read_bytes() == content


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gmt"
    sentence = f"There is no gene set file {path}; check the path, or load a named"
    with pytest.raises(FileNotFoundError, match=re.escape(sentence)):
        tosica.gs.read_gmt(path)


@pytest.mark.parametrize("name", ["folder", "folder.gmt.gz"])
def test_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir()
    sentence = f"{path} is a folder, not a GMT file; give the path of one file."
    with pytest.raises(IsADirectoryError, match=re.escape(sentence)):
        tosica.gs.read_gmt(path)


@pytest.mark.parametrize("path", [None, 3, b"x.gmt", {"T cell": ["CD3E"]}])
def test_not_a_path(path: object) -> None:
    sentence = f"path must be a str or a pathlib.Path, not {type(path).__name__}."
    with pytest.raises(TypeError, match=re.escape(sentence)):
        tosica.gs.read_gmt(path)  # type: ignore[arg-type]


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain, and small but unpacked too large. Zeros are refused at the start."""
    monkeypatch.setattr("tosica.gs._read_gmt._LARGEST", 2**25)
    sentence = (
        " holds more than 32 MB of text, as no collection of gene sets does; check that it is"
    )
    for name, pack in (("x.gmt", bytes), ("x.gmt.gz", gzip.compress)):
        path = tmp_path / name
        path.write_bytes(pack(b"SET\tna\tGENE\n" * 2**22))
        with pytest.raises(ValueError, match=re.escape(f"{path}{sentence}")):
            tosica.gs.read_gmt(path)
    path.write_bytes(gzip.compress(bytes(2**26)))
    with pytest.raises(ValueError, match="is a binary file, not GMT text"):
        tosica.gs.read_gmt(path)


def mutate(content: bytes, rng: random.Random) -> bytes:
    """One to four injuries of the kinds that copying, editing and downloading do."""
    pieces = [
        b"",
        b"\t",
        b"\n",
        b"\r\n",
        b"\0",
        b"\xff",
        b"\x1f\x8b",
        b"<html>",
        b"\xef\xbb\xbf",
        b" ",
    ]
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content) + 1)
        stop = min(len(content), start + rng.choice([0, 0, 1, 2, 20]))
        piece = rng.choice([*pieces, rng.randbytes(rng.randint(1, 6)), content[start // 2 : start]])
        content = content[:start] + piece + content[stop:]
        if rng.random() < 0.2:
            content = content[: rng.randrange(len(content) + 1)]
    return content


@pytest.mark.parametrize(
    ("compressed", "n_files"), [("no", 4000), ("before", 3000), ("after", 3000)]
)
def test_fuzz(tmp_path: Path, compressed: str, n_files: int) -> None:
    """10 000 mutated files: whole sets or a clear error, never a crash, never a hang."""
    rng = random.Random(0)
    path = tmp_path / ("x.gmt" if compressed == "no" else "x.gmt.gz")
    outcomes = {"read": 0, "refused": 0}
    slowest = 0.0
    for _ in range(n_files):
        if compressed == "after":
            content = gzip.compress(mutate(PLAIN, rng), mtime=0)
        else:
            content = mutate(PLAIN if compressed == "no" else gzip.compress(PLAIN, mtime=0), rng)
        path.write_bytes(content)
        refusal = None
        start = time.process_time()
        try:
            gene_sets = tosica.gs.read_gmt(path)
        except ValueError as error:
            refusal = error
        slowest = max(slowest, time.process_time() - start)
        outcomes["read" if refusal is None else "refused"] += 1
        if refusal is not None:
            assert type(refusal) is ValueError
            assert str(refusal).startswith(str(path))
            continue
        assert gene_sets
        for name, genes in gene_sets.items():
            assert genes
            assert len(set(genes)) == len(genes)
            for text in [name, *genes]:
                assert text
                assert text == text.strip()
                assert not set(text) & set("\t\r\n\0")
        if compressed == "before":
            assert gene_sets == SETS  # the checksum lets nothing else pass
    assert outcomes["refused"] > n_files / 8
    assert outcomes["read"] > (0 if compressed == "before" else n_files / 8)
    assert slowest < 1


@pytest.mark.data
def test_published_files(shared: Path) -> None:
    paths = sorted((shared / "gene_sets").glob("*.gmt.gz"))
    assert paths
    for path in paths:
        with gzip.open(path, "rt") as file:
            n_lines = sum(1 for line in file if line.strip())
        assert len(tosica.gs.read_gmt(path)) == n_lines
