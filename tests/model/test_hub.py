"""Models on the Hugging Face Hub: its own client, against a server on this machine."""

from __future__ import annotations

import ast
import os
import pickle
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from _hub_server import TOKEN, Hub, serve

import tosica
from tosica import TOSICA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anndata import AnnData

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
file_download = pytest.importorskip("huggingface_hub.file_download")
hub_http = pytest.importorskip("huggingface_hub.utils._http")

ABOUT = {"tissue": "blood", "license": "cc-by-4.0"}
CPU = {"accelerator": "cpu"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serve() as served:
        use(served.url, monkeypatch)
        new_session()
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        # A proxy of this machine's has no business between the two.
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield served


def use(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client take a server for the hub, as HF_ENDPOINT does before its import."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    # Older clients import it by name.
    monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)


def new_session() -> None:
    """Let clients before 1.0 look whether they are offline, as they do when a session begins."""
    getattr(hub_http, "reset_sessions", lambda: None)()


@pytest.fixture
def saved(toy_model: TOSICA, tmp_path: Path) -> bytes:
    toy_model.save(tmp_path / "saved")
    return (tmp_path / "saved" / "model.pt").read_bytes()


def refuses(error: type[Exception], sentence: str, repo_id: str = "lab/toy", **given: Any) -> None:
    with pytest.raises(error, match=f"^{sentence}$") as caught:
        TOSICA.from_hub(repo_id, **CPU, **given)
    assert type(caught.value) is error


def push_refused(error: type[Exception], sentence: str, model: TOSICA, **given: Any) -> None:
    with pytest.raises(error, match=f"^{sentence}$") as caught:
        model.push_to_hub("lab/toy", **{**ABOUT, "token": TOKEN, **given})
    assert type(caught.value) is error


# ------------------------------------------------------------------------------- there and back


def test_pushed_and_loaded(hub: Hub, toy_model: TOSICA, toy_query: AnnData) -> None:
    address = toy_model.push_to_hub("lab/toy", **ABOUT, version="2.1", token=TOKEN)
    commit = hub.branches["lab/toy"]["main"]
    assert address == f"{hub.url}/lab/toy/commit/{commit}"
    assert sorted(hub.commits[commit]) == [".gitattributes", "README.md", "model.pt"]
    assert hub.messages == ["Upload version 2.1"]
    card = hub.commits[commit]["README.md"].decode()
    assert 'model = tosica.TOSICA.from_hub("lab/toy")' in card
    assert toy_model.fingerprint in card
    metadata = huggingface_hub.ModelCard(card).data
    assert (metadata.library_name, metadata.license) == ("tosica", "cc-by-4.0")

    model = TOSICA.from_hub("lab/toy", **CPU)
    assert repr(model) == repr(toy_model)
    assert model.fingerprint == toy_model.fingerprint
    np.testing.assert_array_equal(model.predict(toy_query), toy_model.predict(toy_query))
    assert model.get_model_card(**ABOUT) == toy_model.get_model_card(**ABOUT)


def test_the_reference_is_not_uploaded(hub: Hub, toy_model: TOSICA) -> None:
    toy_model.push_to_hub("lab/toy", **ABOUT, token=TOKEN)
    files = hub.commits[hub.branches["lab/toy"]["main"]]
    assert b"cell0" not in b"".join(files.values())


def test_branch_commit_and_pull_request(hub: Hub, toy_model: TOSICA) -> None:
    toy_model.push_to_hub("lab/toy", **ABOUT, token=TOKEN)
    first = hub.branches["lab/toy"]["main"]
    toy_model.push_to_hub("lab/toy", **ABOUT, token=TOKEN, revision="v1", commit_message="mine")
    toy_model.push_to_hub("lab/toy", **ABOUT, token=TOKEN, revision="v1")
    assert hub.branches["lab/toy"]["main"] == first != hub.branches["lab/toy"]["v1"]
    assert hub.messages[1] == "mine"
    for revision in ("v1", first, None):
        model = TOSICA.from_hub("lab/toy", revision=revision, **CPU)
        assert model.fingerprint == toy_model.fingerprint
    address = toy_model.push_to_hub("lab/toy", **ABOUT, token=TOKEN, create_pr=True)
    assert address == f"{hub.url}/lab/toy/discussions/1"
    assert hub.branches["lab/toy"]["main"] == first


def test_private_model(hub: Hub, toy_model: TOSICA) -> None:
    toy_model.push_to_hub("lab/toy", **ABOUT, private=True, token=TOKEN)
    refuses(FileNotFoundError, r"There is no model 'lab/toy' on the Hugging Face Hub, or it is .*")
    assert TOSICA.from_hub("lab/toy", token=TOKEN, **CPU).is_trained


def test_a_reference_to_go_on_with(hub: Hub, saved: bytes, toy: AnnData) -> None:
    hub.commit("lab/toy", {"model.pt": saved})
    model = TOSICA.from_hub("lab/toy", adata=toy, **CPU)
    assert model.adata is toy


def test_the_cache_is_enough_without_the_hub(
    hub: Hub, saved: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit("lab/toy", {"model.pt": saved})
    folder = tmp_path / "mine"
    first = TOSICA.from_hub("lab/toy", cache_dir=folder, **CPU)
    hub.fault = 503
    assert TOSICA.from_hub("lab/toy", cache_dir=folder, **CPU).fingerprint == first.fingerprint
    refuses(
        ConnectionError,
        r"The Hugging Face Hub does not answer the download of 'lab/toy' \(HTTP status 503, "
        r"'as asked'\): try again\.",
    )


# ------------------------------------------------------------------------------- nothing runs


class Attack:
    """What a pickle makes of this leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_a_pickle_in_the_place_of_a_model(hub: Hub, tmp_path: Path) -> None:
    """Also as torch would write it."""
    import torch

    mark = tmp_path / "it ran"
    torch.save({"model_state_dict": Attack(mark)}, tmp_path / "attack.pt")
    contents = [pickle.dumps(Attack(mark)), (tmp_path / "attack.pt").read_bytes()]
    sentences = [
        r".*model\.pt' is cut short or damaged; copy or save the model again\.",
        r".*model\.pt' holds more than tensors and plain values, so tosica did not write it, .*",
    ]
    for content, sentence in zip(contents, sentences, strict=True):
        hub.commit("lab/toy", {"model.pt": content})
        refuses(ValueError, sentence)
        assert not mark.exists()
    pickle.loads(contents[0])
    assert mark.is_dir()  # so the attack is one


def test_nothing_else_is_downloaded(hub: Hub, saved: bytes, tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    code = f"import os; os.mkdir({str(mark)!r})".encode()
    others = {
        "setup.py": code,
        "tosica/__init__.py": code,
        "modeling.py": code,
        "conftest.py": code,
        "weights.pkl": pickle.dumps(Attack(mark)),
        "sub/model.pt": pickle.dumps(Attack(mark)),
        "adata.h5ad": b"cells",
        ".tosica-0.tmp/model.pt": pickle.dumps(Attack(mark)),
    }
    hub.commit("lab/toy", {"model.pt": saved, "README.md": b"# Card", **others})
    assert TOSICA.from_hub("lab/toy", **CPU).is_trained
    asked = {path.partition("/resolve/")[2].partition("/")[2] for _, path in hub.asked}
    assert asked - {""} == {"model.pt", "README.md"}
    assert not mark.exists()
    found = {path.name for path in (tmp_path / "cache").glob("models--*/snapshots/*/*")}
    assert found == {"model.pt", "README.md"}


# ------------------------------------------------------------------------------- what goes wrong


def test_no_such_model_or_revision(
    hub: Hub, saved: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit("lab/toy", {"model.pt": saved})
    refuses(
        FileNotFoundError,
        r"'lab/toy' has no revision 'v9': pass one of its branches, tags or commits, or none for "
        r"the newest\.",
        revision="v9",
    )
    sentence = (
        r"There is no model 'lab/other' on the Hugging Face Hub, or it is private: check the name, "
        r"or log in with 'hf auth login', or pass a token"
    )
    refuses(FileNotFoundError, rf"{sentence}\.", "lab/other")
    (tmp_path / "lab" / "other").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    hint = r"; load a folder with tosica\.TOSICA\.load\('lab/other'\)\."
    refuses(FileNotFoundError, sentence + hint, "lab/other")


def test_a_repository_without_a_model(hub: Hub) -> None:
    hub.commit("lab/toy", {"README.md": b"# Soon", "config.json": b"{}"})
    refuses(
        FileNotFoundError,
        r"'lab/toy' holds no model\.pt, so it is not a model of tosica: check the name and the "
        r"revision\.",
    )


@pytest.mark.parametrize(
    ("metadata", "called"), [(b'{"model_cls_name": "SCVI"}', r" \(SCVI\)"), (b"{", "")]
)
def test_a_model_of_scvi_tools(hub: Hub, metadata: bytes, called: str) -> None:
    files = {"model.pt": b"anything", "_scvi_required_metadata.json": metadata}
    hub.commit("lab/toy", files)
    refuses(
        ValueError,
        rf"'lab/toy' holds a model of scvi-tools{called}, not a TOSICA model: load it with "
        r"scvi\.hub\.HubModel\.",
    )


def test_a_damaged_model(hub: Hub, saved: bytes) -> None:
    hub.commit("lab/toy", {"model.pt": saved[:-100]})
    refuses(ValueError, r".*model\.pt' is cut short or damaged; copy or save the model again\.")


def test_no_network(hub: Hub, toy_model: TOSICA, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        use(f"http://127.0.0.1:{free.getsockname()[1]}", monkeypatch)
        refuses(
            ConnectionError,
            r"The Hugging Face Hub cannot be reached for the download of 'lab/toy' \(\w*Connect\w*"
            r"\), and it is not in the cache: check the network and try again\.",
        )
        push_refused(
            ConnectionError,
            r"The Hugging Face Hub cannot be reached for the upload of 'lab/toy' \(\w*Connect\w*\)"
            r": check the network and try again\.",
            toy_model,
        )


def test_offline(
    hub: Hub, toy_model: TOSICA, saved: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.commit("lab/toy", {"model.pt": saved})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    new_session()
    refuses(
        ConnectionError,
        r"'lab/toy' is not in the cache, and HF_HUB_OFFLINE is set: unset it, or download the "
        r"model on another machine\.",
    )
    sentence = (
        r"The Hugging Face Hub is needed for the upload of 'lab/toy', and HF_HUB_OFFLINE is .*"
    )
    push_refused(ConnectionError, sentence, toy_model)


def test_who_may_not(hub: Hub, toy_model: TOSICA) -> None:
    may = r"log in with 'hf auth login', or pass a token with permission to write\."
    push_refused(
        PermissionError,
        r"The Hugging Face Hub refuses the upload of 'lab/toy' \(HTTP status 401, 'Invalid "
        rf"username or password'\): {may}",
        toy_model,
        token=None,
    )
    toy_model.push_to_hub("lab/toy", **ABOUT, token=TOKEN)
    before = dict(hub.branches["lab/toy"])
    push_refused(
        PermissionError, rf"The .* \(HTTP status 40[13], .*\): {may}", toy_model, token="hf"
    )
    assert hub.branches["lab/toy"] == before
    assert TOKEN not in repr(hub.asked)
    hub.fault = 403
    refuses(
        PermissionError,
        r"The Hugging Face Hub refuses the download of 'lab/new' \(HTTP status 403, 'as asked'\): "
        r"log in with 'hf auth login', or pass a token with permission to read\.",
        "lab/new",
    )


def test_a_commit_that_the_hub_does_not_accept(
    hub: Hub, toy_model: TOSICA, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.fault = 422
    push_refused(
        ValueError,
        r"The Hugging Face Hub refuses the upload of 'lab/toy' \(.* 422.*\)\.",
        toy_model,
    )
    hub.fault = None

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise ValueError("Invalid metadata in README.md.\n- license must be one of [...]")

    monkeypatch.setattr(huggingface_hub.HfApi, "_validate_yaml", refuse)
    push_refused(ValueError, r"The .* upload of 'lab/toy' \(Invalid metadata in .*\)\.", toy_model)


def test_gated_model(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub says so in a header, which the client reads."""
    hub.commit("lab/toy", {"model.pt": b""})
    hub.code = "GatedRepo"
    refuses(
        PermissionError,
        r"The authors of 'lab/toy' decide who may download it: ask for access on its page of the "
        r"Hugging Face Hub, and log in with 'hf auth login', or pass a token\.",
    )


def test_disk_full(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    refuses(
        OSError,
        r"'lab/toy' could not be stored \(No space left on device\): make room, or pass a "
        r"cache_dir that you may write to\.",
    )


def test_without_huggingface_hub(toy_model: TOSICA, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    sentence = r"huggingface_hub is not installed: pip install 'tosica\[hub\]'\."
    refuses(ModuleNotFoundError, sentence)
    push_refused(ModuleNotFoundError, sentence, toy_model)
    assert toy_model.get_model_card(**ABOUT)


def test_the_client_is_imported_only_when_it_is_needed() -> None:
    found = [
        path.name
        for path in Path(tosica.__file__).parent.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if re.search("huggingface_hub", ast.unparse(node))
        and isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert found == []


def test_an_untrained_model_is_not_pushed(hub: Hub, toy: AnnData) -> None:
    TOSICA.setup_anndata(toy, labels_key="kind")
    model = TOSICA(toy, embed_dim=8, n_heads=2)
    push_refused(RuntimeError, r"The model is not trained: .*", model)
    assert hub.asked == []
