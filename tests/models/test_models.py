"""Models that are shared in a folder or on a web server, with an index of their hashes."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tosica
from tosica import TOSICA
from tosica.models._index import parse_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from anndata import AnnData

ABOUT = {"tissue": "blood", "license": "cc-by-4.0"}
# A file that is no model, for what happens before one is loaded.
CONTENT = b"no model, but a file"


class Server(ThreadingHTTPServer):
    """Serves a folder as any web server does, and does what ``fault`` says instead."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fault: str | None = None
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def index(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/models/index.json"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path.removeprefix("/models/"))
        path = self.server.folder / self.path.removeprefix("/models/")
        if self.server.fault == "500" or not path.is_file():
            self.send_error(500 if self.server.fault == "500" else 404)
            return
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.server.fault == "truncated":
            content = content[: len(content) // 2]
        self.wfile.write(content)

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TOSICA_CACHE", str(folder))
    monkeypatch.delenv("TOSICA_MODEL_INDEX", raising=False)
    return folder


@pytest.fixture
def shared_models(toy_model: TOSICA, tmp_path: Path) -> Path:
    """A folder with an index of two models, which are the same one."""
    folder = tmp_path / "models"
    toy_model.save(folder / "toy")
    shutil.copytree(folder / "toy", folder / "toy-2")
    about = {**ABOUT, "organism": "human", "version": "1.0", "doi": "10.1000/toy"}
    tosica.models.write_index(folder, {"toy": about, "toy-2": ABOUT})
    return folder


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with an index of one file, which is no model."""
    folder = tmp_path / "files"
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "model.pt").write_bytes(CONTENT)
    write(folder, {})
    return folder


def write(folder: Path, changes: dict[str, Any], **of_file: Any) -> None:
    """Write an index of the file, with something else in it."""
    state = {"size": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()} | of_file
    entry = {"url": "toy/", "files": {"model.pt": state}} | changes
    held = {"format": 1, "models": {"toy": {k: v for k, v in entry.items() if v is not ...}}}
    (folder / "index.json").write_text(json.dumps(held))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Server]]:
    running = []

    def start(folder: Path) -> Server:
        served = Server(folder)
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((served, thread))
        return served

    # A proxy of this machine's has no business between the two.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield start
    for served, thread in running:
        served.shutdown()
        thread.join()
        served.server_close()


def names_in(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


# ------------------------------------------------------------------------------- as it should go


def test_a_folder_of_models(
    shared_models: Path, cache: Path, toy_model: TOSICA, toy_query: AnnData
) -> None:
    table = tosica.models.available(shared_models)
    assert list(table.columns) == [
        *("tissue", "organism", "n_labels", "n_cells", "version", "size", "license", "url"),
        *("sha256", "doi", "description"),
    ]
    assert table.index.name == "name"
    assert list(table.index) == ["toy", "toy-2"]
    row = table.loc["toy"]
    content = (shared_models / "toy" / "model.pt").read_bytes()
    card = (shared_models / "toy" / "README.md").read_bytes()
    assert dict(row.drop("description")) == {
        "tissue": "blood",
        "organism": "human",
        "n_labels": 3,
        "n_cells": 90,
        "version": "1.0",
        "size": len(content) + len(card),
        "license": "cc-by-4.0",
        "url": str(shared_models / "toy"),
        "sha256": hashlib.sha256(content).hexdigest(),
        "doi": "10.1000/toy",
    }
    assert table.loc["toy-2", ["organism", "version", "doi"]].isna().all()
    assert toy_model.fingerprint in card.decode()

    folder = tosica.models.download("toy", index=shared_models)
    assert folder.parent == cache / "models"
    assert names_in(folder) == ["README.md", "model.pt"]
    model = TOSICA.load(folder, accelerator="cpu")
    np.testing.assert_array_equal(model.predict(toy_query), toy_model.predict(toy_query))


@pytest.mark.parametrize(
    "where", ["folder", "path", "text", "file", "variable", "web", "web folder"]
)
def test_where_an_index_is(
    files: Path, serve: Callable[[Path], Server], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    path = files / "index.json"
    url = serve(files).index
    monkeypatch.setenv("TOSICA_MODEL_INDEX", str(path))
    index = {
        "folder": files,
        "path": path,
        "text": str(path),
        "file": path.as_uri(),
        "variable": None,
        "web": url,
        "web folder": url.removesuffix("index.json"),
    }[where]
    assert list(tosica.models.available(index).index) == ["toy"]
    folder = tosica.models.download("toy", index=index)
    assert (folder / "model.pt").read_bytes() == CONTENT


def test_a_web_server(
    shared_models: Path, cache: Path, serve: Callable[[Path], Server], toy_model: TOSICA
) -> None:
    server = serve(shared_models)
    assert tosica.models.available(server.index).at["toy", "url"].startswith("http://127.0.0.1")
    folder = tosica.models.download("toy", index=server.index)
    assert TOSICA.load(folder, accelerator="cpu").fingerprint == toy_model.fingerprint
    assert server.asked == ["index.json", "index.json", "toy/README.md", "toy/model.pt"]
    # What is there is not downloaded again.
    server.asked.clear()
    assert tosica.models.download("toy", index=server.index) == folder
    assert server.asked == ["index.json"]


def test_without_the_server_what_is_there_is_used(
    files: Path, serve: Callable[[Path], Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(files)
    folder = tosica.models.download("toy", index=server.index)
    server.fault = "500"
    assert tosica.models.download("toy", index=server.index) == folder
    assert caplog.messages[-1] == (
        f"models: The server does not provide {server.index} (HTTP status 500): try again. The "
        "copy of the last time is used."
    )
    shutil.rmtree(folder)
    with pytest.raises(ConnectionError, match=r"does not provide .*/toy/model\.pt \(HTTP status 5"):
        tosica.models.download("toy", index=server.index)
    assert not folder.exists()


def test_a_damaged_file_in_the_cache_is_downloaded_again(files: Path) -> None:
    path = tosica.models.download("toy", index=files) / "model.pt"
    path.write_bytes(CONTENT[::-1])
    assert tosica.models.download("toy", index=files) == path.parent
    assert path.read_bytes() == CONTENT


def test_another_version_has_another_folder(files: Path) -> None:
    first = tosica.models.download("toy", index=files)
    other = CONTENT + b" of another version"
    (files / "toy" / "model.pt").write_bytes(other)
    write(files, {}, size=len(other), sha256=hashlib.sha256(other).hexdigest())
    second = tosica.models.download("toy", index=files)
    assert (first / "model.pt").read_bytes() == CONTENT
    assert (second / "model.pt").read_bytes() == other


def test_a_folder_of_the_users(files: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "toy"
    assert tosica.models.download("toy", index=files, folder=str(mine)) == mine
    assert tosica.models.download("toy", index=files, folder=mine) == mine
    (mine / "notes.txt").write_text("mine")
    (mine / "model.pt").write_bytes(b"another")
    sentence = re.escape(
        f"{str(mine / 'model.pt')!r} is another file than that of 'toy': choose another folder, or "
        "pass overwrite=True."
    )
    with pytest.raises(FileExistsError, match=f"^{sentence}$"):
        tosica.models.download("toy", index=files, folder=mine)
    assert (mine / "model.pt").read_bytes() == b"another"
    tosica.models.download("toy", index=files, folder=mine, overwrite=True)
    assert (mine / "model.pt").read_bytes() == CONTENT
    assert names_in(mine) == ["model.pt", "notes.txt"]


# ------------------------------------------------------------------------------- nothing runs


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_a_downloaded_pickle_is_not_run(files: Path, tmp_path: Path) -> None:
    """Its hash may be right: then its author wrote the index as well."""
    content = pickle.dumps(Attack(tmp_path / "it ran"))
    (files / "toy" / "model.pt").write_bytes(content)
    (files / "toy" / "setup.py").write_text("raise SystemExit")
    write(files, {}, size=len(content), sha256=hashlib.sha256(content).hexdigest())
    folder = tosica.models.download("toy", index=files)
    assert names_in(folder) == ["model.pt"]
    with pytest.raises(ValueError, match=r"is cut short or damaged; copy or save the model again"):
        TOSICA.load(folder)
    assert not (tmp_path / "it ran").exists()


# ------------------------------------------------------------------------------- lies


def refuses(index: Any, sentence: str, error: type[Exception] = ValueError) -> None:
    with pytest.raises(error, match=f"^{sentence}$") as caught:
        tosica.models.download("toy", index=index)
    assert type(caught.value) is error


@pytest.mark.parametrize("on", ["disk", "web"])
@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        (
            {"sha256": "0" * 64},
            r".*model\.pt is not the file .* \(sha256 \w{12}… instead of 0{12}…",
        ),
        ({"size": 21}, r".*model\.pt is not the file .* \(20 bytes instead of 21"),
        (
            {"size": 19},
            r".*model\.pt is (not the .* \(20 bytes instead of 19|larger than 19 bytes)",
        ),
    ],
)
def test_an_index_that_lies(
    files: Path,
    cache: Path,
    serve: Callable[[Path], Server],
    on: str,
    lie: dict[str, Any],
    sentence: str,
) -> None:
    write(files, {}, **lie)
    index = files if on == "disk" else serve(files).index
    refuses(index, rf"{sentence}.*, so it was not kept: .*\.")
    assert [name for name in names_in(cache) if "index" not in name] == []
    assert not list((cache / "models").glob("toy*")) if (cache / "models").exists() else True


def test_a_lie_does_not_replace_a_file_of_the_users(files: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.pt").write_bytes(b"mine")
    write(files, {}, sha256="0" * 64)
    with pytest.raises(ValueError, match="so it was not kept"):
        tosica.models.download("toy", index=files, folder=tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "model.pt").read_bytes() == b"mine"
    assert names_in(tmp_path / "mine") == ["model.pt"]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            "truncated",
            r".*model\.pt could not be downloaded completely \(.*\): check the network.*",
        ),
        ("500", r"The server does not provide .*model\.pt \(HTTP status 500\): try again\."),
    ],
)
def test_a_server_with_a_fault(
    files: Path, cache: Path, serve: Callable[[Path], Server], fault: str, sentence: str
) -> None:
    server = serve(files)
    tosica.models.available(server.index)
    server.fault = fault
    # The index that was kept is read.
    refuses(server.index, sentence, ConnectionError)
    assert [name for name in names_in(cache) if "index" not in name] == []


def test_a_file_without_end(files: Path, cache: Path, serve: Callable[[Path], Server]) -> None:
    server = serve(files)
    big = CONTENT * 100_000
    (files / "toy" / "model.pt").write_bytes(big)
    refuses(
        server.index,
        r".*/toy/model\.pt is larger than 20 bytes, so it was not kept: tell the authors of the "
        r"index, or try again\.",
    )
    assert [name for name in names_in(cache) if "index" not in name] == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"url": "../toy/"},
            r"has the 'url' '\.\./toy/', which is neither a folder below the index",
        ),
        ({"url": "/etc/"}, "has the 'url' '/etc/', which is neither"),
        ({"url": "~/toy"}, "has the 'url' '~/toy', which is neither"),
        ({"url": "a/../../b"}, "which is neither"),
        ({"url": r"..\toy"}, "which is neither"),
        ({"url": r"C:\toy"}, "which is neither"),
        ({"url": "file:///etc/"}, "has the 'url' 'file:///etc/', which is neither"),
        ({"url": "ftp://example.org/"}, "which is neither"),
        ({"url": "//example.org/toy"}, "which is neither"),
        ({"url": "http:toy"}, "which is neither"),
        ({"url": 5}, "has a 'url' that is no string"),
        ({"url": ...}, "has no 'url'"),
        ({"files": ...}, "has no 'files'"),
        ({"files": []}, "must list the file 'model.pt', and besides it at most 'README.md'"),
        ({"files": {}}, "must list the file 'model.pt'"),
        ({"files": {"model.pt": {}, "../x": {}}}, "must list the file 'model.pt'"),
        ({"files": {"model.pt": None}}, "has no 'size' in bytes for 'model.pt'"),
        ({"files": {"model.pt": {"size": True}}}, "has no 'size' in bytes for 'model.pt'"),
        ({"files": {"model.pt": {"size": -1}}}, "has no 'size' in bytes for 'model.pt'"),
        ({"files": {"model.pt": {"size": 2**60}}}, "has no 'size' in bytes for 'model.pt'"),
        ({"files": {"model.pt": {"size": 1}}}, "has no 'sha256' of 64 hexadecimal digits for"),
        ({"files": {"model.pt": {"size": 1, "sha256": "md5:1"}}}, "has no 'sha256' of 64 hexade"),
        ({"tissue": ["blood"]}, "has a 'tissue' that is no string"),
        ({"n_cells": "90"}, "has a 'n_cells' that is no number of anything"),
        ({"n_cells": 2**63}, "has a 'n_cells' that is no number of anything"),
        ({"n_cells": -1}, "has a 'n_cells' that is no number of anything"),
        ({"n_labels": True}, "has a 'n_labels' that is no number of anything"),
        ({"url": "toy\x1b[2J/"}, r"has the 'url' 'toy\\x1b\[2J/', which is neither"),
    ],
)
def test_an_index_with_a_wrong_field(
    files: Path, cache: Path, changes: dict[str, Any], sentence: str
) -> None:
    write(files, changes)
    refuses(
        files, rf"The index {re.escape(str(files))}\S* is damaged: model 'toy' .*{sentence}.*\."
    )
    with pytest.raises(ValueError, match=sentence):
        tosica.models.available(files)
    assert not cache.exists()


@pytest.mark.parametrize("name", ["../toy", "a/b", ".hidden", "", "a b", "toy.", "a\0", "a" * 101])
def test_an_index_with_a_wrong_name(files: Path, name: str) -> None:
    held = json.loads((files / "index.json").read_text())
    held["models"][name] = held["models"].pop("toy")
    (files / "index.json").write_text(json.dumps(held))
    refuses(files, r"The index .* has a name that no folder should have: names are .*\.")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r".* is not JSON, so it is no index of models: check the address, or write one .*\."),
        (b"<!DOCTYPE html><html></html>", r".* is not JSON, so it is no index of models: .*\."),
        (b"\xff\xfe", r".* is not JSON, .*\."),
        (b"[" * 100_000, r".* is not JSON, .*\."),
        (b"[]", r".* has no 'models', so it is no index of models: .*\."),
        (b'{"models": []}', r".* has no 'models', .*\."),
        (
            b'{"models": {}}',
            r".* is an index of format None, and this version of tosica reads .*\.",
        ),
        (b'{"models": {}, "format": 2}', r".* is an index of format 2, .*\."),
        (b'{"models": {"toy": 5}, "format": 1}', r".* 'toy' is no object with 'url' and 'files'\."),
    ],
)
@pytest.mark.parametrize("on", ["disk", "web"])
def test_what_is_no_index(
    files: Path,
    cache: Path,
    serve: Callable[[Path], Server],
    content: bytes,
    sentence: str,
    on: str,
) -> None:
    (files / "index.json").write_bytes(content)
    refuses(files if on == "disk" else serve(files).index, sentence)
    assert not cache.exists()


_KEYS = ["format", "models", "toy", "url", "files", "model.pt", "size", "sha256"]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(_KEYS) | st.text(max_size=5), inner)
    ),
)


@given(
    content=st.binary(max_size=60)
    | _JSON.map(lambda held: json.dumps({"format": 1, "models": held}).encode())
)
def test_any_index_is_read_or_refused(content: bytes) -> None:
    complaint = "here: no complaint."
    try:
        entries = parse_index(content, "here").entries
    except ValueError as error:
        entries, complaint = {}, str(error)
    assert re.search(r"here.*\.$", complaint, re.DOTALL)
    assert all(entry.files for entry in entries.values())


# ------------------------------------------------------------------------------- what is not there


def test_no_index_is_named() -> None:
    sentence = (
        r"There is no index of models to read: pass index, or set TOSICA_MODEL_INDEX to the "
        r"address or path of one; tosica\.models\.write_index\(folder\) writes it\."
    )
    for call in (tosica.models.available, lambda: tosica.models.download("toy")):
        with pytest.raises(ValueError, match=f"^{sentence}$"):
            call()


def test_no_such_model(shared_models: Path) -> None:
    with pytest.raises(
        KeyError, match=r"has no model 'tyo', only 'toy', 'toy-2'; did you mean 'to"
    ):
        tosica.models.download("tyo", index=shared_models)


@pytest.mark.parametrize(
    "address", ["http://[", "https://", "http://[::1/index.json", "HTTP://:x/"]
)
def test_addresses_that_are_none(address: str, files: Path) -> None:
    sentence = r"could not be downloaded completely \(\w+\): check the network, try again\.$"
    with pytest.raises(ConnectionError, match=sentence):
        tosica.models.available(address)
    write(files, {"url": address})
    sentence = (
        r"model\.pt could not be downloaded completely \(\w+\): check the network, try again\.$"
    )
    with pytest.raises(ConnectionError, match=sentence):
        tosica.models.download("toy", index=files)


def test_an_index_without_models(files: Path) -> None:
    (files / "index.json").write_text('{"format": 1, "models": {}}')
    table = tosica.models.available(files)
    assert table.shape == (0, 11)
    assert str(table["n_cells"].dtype) == "Int64"
    with pytest.raises(KeyError, match=r"has no model 'toy', nor any other\."):
        tosica.models.download("toy", index=files)


def test_files_that_are_not_there(
    files: Path, cache: Path, serve: Callable[[Path], Server]
) -> None:
    (files / "toy" / "model.pt").unlink()
    refuses(
        files,
        r"The index names the file '.*model\.pt', which is not there: write the index anew with "
        r"tosica\.models\.write_index\(folder\)\.",
        FileNotFoundError,
    )
    refuses(
        serve(files).index,
        r"The server does not provide .*/toy/model\.pt \(HTTP status 404\): tell the authors of "
        r"the index, try again\.",
        ConnectionError,
    )
    (files / "index.json").unlink()
    refuses(
        serve(files).index,
        r"The server does not provide .*/index\.json \(HTTP status 404\): check the address of "
        r"the index, try again\.",
        ConnectionError,
    )
    refuses(
        files / "index.json",
        r"There is no index of models '.*index\.json': check the path, or write one with .*\.",
        FileNotFoundError,
    )


@pytest.mark.skipif(os.name == "nt", reason="folders of Windows have no such mode")
def test_a_cache_that_is_a_file(files: Path, cache: Path) -> None:
    cache.write_bytes(b"")
    refuses(
        files,
        r"The model 'toy' cannot be written to '.*' \(.*\): make it writable, or set TOSICA_CACHE "
        r"to another folder\.",
        NotADirectoryError,
    )


# ------------------------------------------------------------------------------- writing an index


def test_what_was_said_before_need_not_be_said_again(shared_models: Path) -> None:
    before = (shared_models / "index.json").read_text()
    path = tosica.models.write_index(shared_models)
    assert path == shared_models / "index.json"
    assert path.read_text() == before
    tosica.models.write_index(shared_models, {"toy": {"version": "1.1"}})
    table = tosica.models.available(shared_models)
    assert list(table.loc["toy", ["version", "doi"]]) == ["1.1", "10.1000/toy"]
    shutil.rmtree(shared_models / "toy-2")
    tosica.models.write_index(shared_models)
    assert list(tosica.models.available(shared_models).index) == ["toy"]


def test_a_card_of_the_users_stays(
    shared_models: Path, toy_model: TOSICA, caplog: pytest.LogCaptureFixture
) -> None:
    card = shared_models / "toy" / "README.md"
    card.write_text(f"mine, of {toy_model.fingerprint}")
    tosica.models.write_index(shared_models)
    assert not [message for message in caplog.messages if "describes another model" in message]
    card.write_text("mine")
    tosica.models.write_index(shared_models)
    assert card.read_text() == "mine"
    assert f"models: {card} describes another model than the one beside it: " in caplog.text
    (shared_models / "toy" / "model.pt").exists()
    tosica.models.download("toy", index=shared_models)


def test_models_of_other_servers_stay_in_an_index(shared_models: Path) -> None:
    path = shared_models / "index.json"
    held = json.loads(path.read_text())
    files = held["models"]["toy"]["files"]
    other = {"url": "https://example.org/lung", "files": files, "tissue": "lung", "more": [1]}
    held["models"]["lung"] = other
    path.write_text(json.dumps(held))
    tosica.models.write_index(shared_models)
    assert json.loads(path.read_text())["models"]["lung"] == other
    assert tosica.models.available(shared_models).at["lung", "url"] == "https://example.org/lung/"


def test_texts_of_an_index_are_shown_in_one_line(files: Path) -> None:
    write(files, {"tissue": "a\n\x1b[2Jb"})
    assert tosica.models.available(files).at["toy", "tissue"] == "a [2Jb"


def test_folders_without_models(shared_models: Path, tmp_path: Path) -> None:
    (shared_models / "notes").mkdir()
    shutil.copytree(shared_models / "toy", shared_models / ".trash")
    tosica.models.write_index(shared_models)
    assert len(tosica.models.available(shared_models)) == 2
    with pytest.raises(
        ValueError, match=r"notes' has no folder with a model\.pt: save models into"
    ):
        tosica.models.write_index(shared_models / "notes")


def test_an_index_that_cannot_be_written(shared_models: Path, toy: AnnData) -> None:
    before = (shared_models / "index.json").read_text()
    TOSICA.setup_anndata(toy, labels_key="kind")
    TOSICA(toy, embed_dim=8, n_heads=2).save(shared_models / "new")
    with pytest.raises(
        TypeError, match=r"^about\['new'\]: tissue must be a string, not None: a mo"
    ):
        tosica.models.write_index(shared_models)
    with pytest.raises(ValueError, match=r"^The model in '.*new' is not trained: train it, or rem"):
        tosica.models.write_index(shared_models, {"new": ABOUT})
    (shared_models / "new").rename(shared_models / "a b")
    with pytest.raises(ValueError, match=r"^Folders cannot be named 'a b': rename them so that"):
        tosica.models.write_index(shared_models)
    shutil.rmtree(shared_models / "a b")
    (shared_models / "toy" / "model.pt").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="is cut short or damaged"):
        tosica.models.write_index(shared_models)
    assert (shared_models / "index.json").read_text() == before
    (shared_models / "index.json").write_text("mine")
    with pytest.raises(ValueError, match=r"index\.json' would be replaced, and is no index that"):
        tosica.models.write_index(shared_models)
    assert (shared_models / "index.json").read_text() == "mine"


def test_the_organism_is_that_of_the_model_that_is_there(
    shared_models: Path, toy_model: TOSICA, tmp_path: Path
) -> None:
    """Also after the model was replaced by one with other gene sets."""
    assert tosica.models.available(shared_models).at["toy", "organism"] == "human"
    model = TOSICA.load(shared_models / "toy")
    state = model.registry_["field_registries"]["mask"]["state_registry"]
    state["organism"] = "mouse"
    model.save(shared_models / "toy", overwrite=True)
    tosica.models.write_index(shared_models)
    assert tosica.models.available(shared_models).at["toy", "organism"] == "mouse"
