"""Collections that are downloaded, against a server on this machine with MSigDB's layout."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from anndata import AnnData
from hypothesis import given, settings
from hypothesis import strategies as st

import tosica

if TYPE_CHECKING:
    from collections.abc import Iterator

HALLMARK = "2024.1.Hs/h.all.v2024.1.Hs.symbols.gmt"
SETS = {
    "HALLMARK_HYPOXIA": ["PGK1", "PDK1", "GBE1"],
    "HALLMARK_APOPTOSIS": ["CASP3", "CASP9", "DFFA", "CASP7"],
}
CONTENT = "".join(f"{name}\thttps://x\t" + "\t".join(s) + "\n" for name, s in SETS.items()).encode()
LOGIN = b"<!DOCTYPE html>\n<html><head><title>GSEA | Login</title></head></html>"


class Server(ThreadingHTTPServer):
    """Serves ``files`` by path, and does what ``faults`` says instead."""

    daemon_threads = True

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.fault: str | None = None
        self.asked: list[str] = []
        self.together: threading.Barrier | None = None
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/msigdb/release"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = self.path.removeprefix("/msigdb/release/")
        self.server.asked.append(path)
        content = self.server.files.get(path)
        if self.server.together is not None:
            self.server.together.wait(timeout=60)
        if self.server.fault == "500":
            self.send_error(500)
            return
        if content is None:
            self.send_error(404)
            return
        if self.server.fault == "login":
            content = LOGIN
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.server.fault == "truncated":
            content = content[: len(content) // 2]
        self.wfile.write(content)

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    served = Server()
    served.files[HALLMARK] = CONTENT
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("TOSICA_MSIGDB_URL", served.url)
    # A proxy of this machine's has no business between the two.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    try:
        yield served
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TOSICA_CACHE", str(folder))
    return folder


def files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


WHOLE = [HALLMARK, f"{HALLMARK}.json"]


# ------------------------------------------------------------------------------- as it should go


def test_first_use_downloads_and_the_second_is_offline(
    server: Server, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not tosica.gs.collections().at["human_hallmark", "available"]
    assert tosica.gs.load("human_hallmark") == SETS
    assert "100%" in capfd.readouterr().err  # the progress bar
    assert server.asked == [HALLMARK]
    assert files_in(cache) == WHOLE
    record = json.loads((cache / WHOLE[1]).read_bytes())
    assert record["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert record["url"] == f"{server.url}/{HALLMARK}"

    server.fault = "500"
    assert tosica.gs.load("human_hallmark") == SETS
    assert server.asked == [HALLMARK]
    assert capfd.readouterr().err == ""
    row = tosica.gs.collections().loc["human_hallmark"]
    assert row["available"]
    assert (row["n_sets"], row["n_genes"]) == (2, 7)


def test_every_collection_has_its_file(server: Server, cache: Path) -> None:
    table = tosica.gs.collections()
    downloaded = table[~table["available"]]
    for name, url in downloaded["url"].items():
        server.files[url.removeprefix(f"{server.url}/")] = CONTENT
        assert tosica.gs.load(name) == SETS
    assert server.asked == [
        "2024.1.Hs/c2.cp.reactome.v2024.1.Hs.symbols.gmt",
        "2024.1.Hs/c7.all.v2024.1.Hs.symbols.gmt",
        "2024.1.Hs/c3.tft.v2024.1.Hs.symbols.gmt",
        "2024.1.Hs/h.all.v2024.1.Hs.symbols.gmt",
        "2024.1.Hs/c8.all.v2024.1.Hs.symbols.gmt",
        "2024.1.Mm/m2.cp.reactome.v2024.1.Mm.symbols.gmt",
        "2024.1.Mm/m3.gtrd.v2024.1.Mm.symbols.gmt",
        "2024.1.Mm/mh.all.v2024.1.Mm.symbols.gmt",
        "2024.1.Mm/m8.all.v2024.1.Mm.symbols.gmt",
    ]
    assert tosica.gs.collections()["available"].all()


@pytest.mark.parametrize("version", ["2022.1", "2023.1", "2023.2", "2024.1", "2025.1"])
def test_versions_are_kept_apart(server: Server, cache: Path, version: str) -> None:
    path = f"{version}.Mm/mh.all.v{version}.Mm.symbols.gmt"
    server.files[path] = CONTENT
    assert tosica.gs.load("mouse_hallmark", version=version) == SETS
    assert tosica.gs.load(f"mouse_hallmark@{version}") == SETS
    assert server.asked == [path]
    assert files_in(cache) == [path, f"{path}.json"]


def test_without_a_mirror_it_is_the_broad_institutes_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TOSICA_MSIGDB_URL", raising=False)
    url = tosica.gs.collections().at["human_hallmark", "url"]
    assert url == f"https://data.broadinstitute.org/gsea-msigdb/msigdb/release/{HALLMARK}"


def test_a_mask_from_a_collection(server: Server, cache: Path) -> None:
    adata = AnnData(np.ones((2, 7), dtype=np.float32))
    adata.var_names = [gene for genes in SETS.values() for gene in genes]
    tosica.pp.build_mask(adata, "human_hallmark@2024.1", min_genes=3)
    about = adata.uns["tosica_mask"]
    assert list(about["gene_sets"]) == [*SETS]
    assert (about["source"], about["organism"]) == ("human_hallmark", "human")
    assert about["release"] == "MSigDB 2024.1.Hs"


def test_file_put_there_by_hand(server: Server, cache: Path) -> None:
    (cache / HALLMARK).parent.mkdir(parents=True)
    (cache / HALLMARK).write_bytes(CONTENT)
    assert tosica.gs.load("human_hallmark") == SETS
    assert server.asked == []
    assert files_in(cache) == WHOLE


# -------------------------------------------------------------------------------- what goes wrong


def refuses(error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=f"^{sentence}$"):
        tosica.gs.load("human_hallmark")


def test_server_down(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = Server()
    url = free.url
    free.server_close()
    monkeypatch.setenv("TOSICA_MSIGDB_URL", url)
    refuses(
        ConnectionError,
        re.escape(f"{url}/{HALLMARK} could not be downloaded completely (ConnectionError)")
        + ": check the network, try again, or fetch the file elsewhere and put it at "
        + re.escape(f"{cache / HALLMARK}."),
    )
    assert files_in(cache) == []
    monkeypatch.setenv("TOSICA_MSIGDB_URL", server.url)
    assert tosica.gs.load("human_hallmark") == SETS


def test_no_such_file_on_the_server(server: Server, cache: Path) -> None:
    del server.files[HALLMARK]
    refuses(
        ConnectionError,
        re.escape(f"The server does not provide {server.url}/{HALLMARK} (HTTP status 404): ")
        + "check the version, try again, or fetch the file elsewhere and put it at "
        + re.escape(f"{cache / HALLMARK}."),
    )
    assert files_in(cache) == []


def test_servers_fault(server: Server, cache: Path) -> None:
    server.fault = "500"
    refuses(ConnectionError, r".* does not provide .* \(HTTP status 500\): try again, or .*")
    assert files_in(cache) == []


def test_truncated_body(server: Server, cache: Path) -> None:
    server.fault = "truncated"
    refuses(
        ConnectionError,
        r".* could not be downloaded completely \(ChunkedEncodingError\): check the .*",
    )
    assert files_in(cache) == []
    server.fault = None
    assert tosica.gs.load("human_hallmark") == SETS
    assert files_in(cache) == WHOLE


def test_login_page(server: Server, cache: Path) -> None:
    server.fault = "login"
    refuses(
        ValueError,
        re.escape(f"{server.url}/{HALLMARK} is a web page (HTML or XML), not a GMT file: ") + ".*",
    )
    assert files_in(cache) == []


def test_empty_body(server: Server, cache: Path) -> None:
    server.files[HALLMARK] = b""
    refuses(ValueError, ".* is empty; a GMT file has one gene set per line.*")
    assert files_in(cache) == []


def test_damaged_in_the_cache_is_downloaded_again(
    server: Server, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tosica.gs.load("human_hallmark")
    (cache / HALLMARK).write_bytes(CONTENT[:-20])
    assert tosica.gs.load("human_hallmark") == SETS
    assert (cache / HALLMARK).read_bytes() == CONTENT
    assert server.asked == [HALLMARK] * 2
    assert (
        f"{cache / HALLMARK} has changed since its download: downloading it again"
        in caplog.messages
    )


def test_damaged_in_the_cache_and_server_down(server: Server, cache: Path) -> None:
    tosica.gs.load("human_hallmark")
    (cache / HALLMARK).write_bytes(CONTENT[:-20])
    server.fault = "500"
    refuses(ConnectionError, r"The server does not provide .*")


def test_server_has_another_file_now(server: Server, cache: Path) -> None:
    tosica.gs.load("human_hallmark")
    other = CONTENT + b"HALLMARK_NEW\tna\tTP53\n"
    server.files[HALLMARK] = other
    # What is kept is used as it is.
    assert tosica.gs.load("human_hallmark") == SETS
    (cache / HALLMARK).unlink()
    was, now = (hashlib.sha256(text).hexdigest()[:12] for text in (CONTENT, other))
    refuses(
        ValueError,
        re.escape(
            f"{server.url}/{HALLMARK} has changed since its first download (sha256 {now}… "
            f"instead of {was}…), so it was not kept: if the new file is right, delete "
            f"{cache / HALLMARK}.json and try again."
        ),
    )
    assert files_in(cache) == [f"{HALLMARK}.json"]
    (cache / f"{HALLMARK}.json").unlink()
    assert len(tosica.gs.load("human_hallmark")) == 3


@pytest.mark.parametrize("record", [b"", b"{}", b"[]", b'{"sha', b"\xff"])
def test_record_that_cannot_be_read_is_written_anew(
    server: Server, cache: Path, record: bytes
) -> None:
    tosica.gs.load("human_hallmark")
    (cache / f"{HALLMARK}.json").write_bytes(record)
    assert tosica.gs.load("human_hallmark") == SETS
    assert json.loads((cache / f"{HALLMARK}.json").read_bytes())["n_sets"] == 2
    assert server.asked == [HALLMARK]


def test_cache_that_is_a_file(server: Server, cache: Path) -> None:
    cache.write_bytes(b"")
    refuses(
        OSError,
        re.escape(f"Gene sets cannot be cached in {(cache / HALLMARK).parent} (")
        + r".*\): set TOSICA_CACHE to a folder that you may write to\.",
    )
    assert server.asked == []


@pytest.mark.skipif(os.name == "nt", reason="folders of Windows have no such mode")
def test_read_only_cache(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not tmp_path, which is its owner's alone: root has to become somebody else here.
    with tempfile.TemporaryDirectory() as name:
        cache = Path(name)
        monkeypatch.setenv("TOSICA_CACHE", name)
        server.files["2023.2.Hs/h.all.v2023.2.Hs.symbols.gmt"] = CONTENT
        tosica.gs.load("human_hallmark", version="2023.2")
        for folder in (cache / "2023.2.Hs", cache):
            folder.chmod(0o555)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        try:
            with pytest.raises(
                PermissionError,
                match=re.escape(f"Gene sets cannot be cached in {cache / '2024.1.Hs'} (")
                + r"Permission denied\): set TOSICA_CACHE to a folder that you may write to\.",
            ):
                tosica.gs.load("human_hallmark")
            # What is there is read all the same.
            assert tosica.gs.load("human_hallmark", version="2023.2") == SETS
        finally:
            if is_root:
                os.seteuid(0)
            for folder in (cache, cache / "2023.2.Hs"):
                folder.chmod(0o755)
        assert len(files_in(cache)) == 2


@pytest.mark.skipif(os.name == "nt", reason="folders of Windows have no such mode")
def test_cached_file_that_may_not_be_read(server: Server, cache: Path) -> None:
    (cache / HALLMARK).mkdir(parents=True)
    refuses(OSError, r".* in the cache cannot be read \(.*\): make it readable, or set TOSICA_.*")


def test_disk_full(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", full)
    refuses(
        OSError,
        r".* could not be written to .* \(No space left on device\): make room, or set "
        r"TOSICA_CACHE to another folder\.",
    )
    assert files_in(cache) == []


def test_two_processes_at_once(server: Server, cache: Path) -> None:
    # Neither gets an answer before both have asked.
    server.together = threading.Barrier(2)
    # The package without its models, whose import would take most of the test's time.
    code = (
        "import sys, types; package = types.ModuleType('tosica'); "
        f"package.__path__ = {list(tosica.__path__)!r}; sys.modules['tosica'] = package; "
        "from tosica.gs import load; sys.exit(len(load('human_hallmark')) != 2)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert server.asked == [HALLMARK] * 2
    assert files_in(cache) == WHOLE
    assert (cache / HALLMARK).read_bytes() == CONTENT
    server.together = None
    assert tosica.gs.load("human_hallmark") == SETS
    assert len(server.asked) == 2


@settings(max_examples=15)
@given(faults=st.lists(st.sampled_from([None, "500", "truncated", "login"]), max_size=5))
def test_never_a_broken_cache(faults: list[str | None]) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        served = Server()
        served.files[HALLMARK] = CONTENT
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        patch.setenv("TOSICA_MSIGDB_URL", served.url)
        patch.setenv("TOSICA_CACHE", name)
        patch.setenv("NO_PROXY", "127.0.0.1")
        is_there = False
        try:
            for fault in faults:
                served.fault = fault
                is_there = is_there or fault is None
                if is_there:
                    assert tosica.gs.load("human_hallmark") == SETS
                else:
                    with pytest.raises((ConnectionError, ValueError)):
                        tosica.gs.load("human_hallmark")
                assert files_in(Path(name)) == (WHOLE if is_there else [])
        finally:
            served.shutdown()
            thread.join()
            served.server_close()


# ------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"name": "human_hallmark", "version": "2019.1"},
            "There is no version '2019.1' of human_hallmark; those that exist: 2022.1, 2023.1, "
            "2023.2, 2024.1, 2025.1.",
        ),
        (
            {"name": "human_hallmark@7"},
            "There is no version '7' of human_hallmark; those that exist: 2022.1, 2023.1, 2023.2, "
            "2024.1, 2025.1.",
        ),
        (
            {"name": "human_gobp", "version": "2024.1"},
            "There is no version '2024.1' of human_gobp; those that exist: 2024-09-08.",
        ),
    ],
)
def test_no_such_version(cache: Path, arguments: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        tosica.gs.load(**arguments)


def test_version_of_a_wrong_type() -> None:
    with pytest.raises(TypeError, match=r"^The version of a gene .* a string, not float\.$"):
        tosica.gs.load("human_hallmark", version=2024.1)  # type: ignore[arg-type]
