"""Models on the Hugging Face Hub, with a client that keeps repositories in memory."""

from __future__ import annotations

import os
import pickle
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tosica import TOSICA
from tosica.model import _hub

huggingface_hub = pytest.importorskip("huggingface_hub")

ABOUT = {"tissue": "blood", "license": "cc-by-4.0"}
CPU = {"accelerator": "cpu"}


class Hub:
    """What a model uses of ``HfApi`` and of ``snapshot_download``."""

    def __init__(self, folder):
        self.folder = folder
        self.files: dict[str, dict[str, bytes]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def api(self, **options):
        self.calls.append(("api", options))
        return self

    def create_repo(self, repo_id, **options):
        self.calls.append(("create_repo", options))

    def create_branch(self, repo_id, **options):
        self.calls.append(("create_branch", options))

    def upload_folder(self, *, repo_id, folder_path, **options):
        self.calls.append(("upload_folder", options))
        self.files[repo_id] = {
            p.name: p.read_bytes() for p in Path(folder_path).iterdir()
        }
        return SimpleNamespace(
            commit_url=f"https://hub/{repo_id}/commit/1", pr_url=None
        )

    def snapshot_download(self, repo_id, *, allow_patterns, **options):
        self.calls.append(("snapshot_download", options))
        snapshot = self.folder / "c0ffee"
        snapshot.mkdir()
        for name, content in self.files[repo_id].items():
            if any(fnmatch(name, pattern) for pattern in allow_patterns):
                (snapshot / name).write_bytes(content)
        return str(snapshot)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    client = Hub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "HfApi", client.api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", client.snapshot_download)
    return client


def test_pushed_and_loaded(hub, toy_model, toy_query, caplog):
    address = toy_model.push_to_hub("lab/toy", **ABOUT, version="2.1", token="hf")
    assert address == "https://hub/lab/toy/commit/1"
    assert sorted(hub.files["lab/toy"]) == ["README.md", "model.pt"]
    assert b"cell0" not in b"".join(hub.files["lab/toy"].values())  # of the reference
    calls = dict(hub.calls)
    assert calls["api"]["token"] == "hf"
    assert calls["create_repo"] == {"private": False, "exist_ok": True}
    assert calls["upload_folder"]["commit_message"] == "Upload version 2.1"
    assert "create_branch" not in calls
    card = hub.files["lab/toy"]["README.md"].decode()
    assert 'model = tosica.TOSICA.from_hub("lab/toy")' in card
    metadata = huggingface_hub.ModelCard(card).data
    assert (metadata.library_name, metadata.license) == ("tosica", "cc-by-4.0")

    model = TOSICA.from_hub("lab/toy", revision="v1", token="hf", **CPU)
    assert "from_hub: lab/toy at commit c0ffee" in caplog.text
    assert (
        dict(hub.calls)["snapshot_download"].items()
        >= {"revision": "v1", "token": "hf"}.items()
    )
    assert model.fingerprint == toy_model.fingerprint
    np.testing.assert_array_equal(
        model.predict(toy_query), toy_model.predict(toy_query)
    )


@pytest.mark.parametrize("create_pr", [False, True])
def test_branch_or_pull_request(hub, toy_model, create_pr):
    options = {
        "private": True,
        "revision": "v1",
        "create_pr": create_pr,
        "commit_message": "mine",
    }
    toy_model.push_to_hub("lab/toy", **ABOUT, **options)
    calls = dict(hub.calls)
    assert ("create_branch" in calls) is not create_pr
    assert calls["create_repo"]["private"]
    assert {
        key: calls["upload_folder"][key] for key in options if key != "private"
    } == {key: value for key, value in options.items() if key != "private"}


def test_a_reference_to_go_on_with(hub, toy_model, toy):
    toy_model.push_to_hub("lab/toy", **ABOUT)
    assert TOSICA.from_hub("lab/toy", adata=toy, **CPU).adata is toy


class Attack:
    """What a pickle makes of this leaves a folder behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_nothing_of_a_repository_runs(hub, toy_model, tmp_path):
    mark = tmp_path / "it ran"
    attack = pickle.dumps(Attack(mark))
    toy_model.push_to_hub("lab/toy", **ABOUT)
    foreign_files = {
        "modeling.py": f"import os; os.mkdir({str(mark)!r})".encode(),
        "weights.pkl": attack,
    }
    hub.files["lab/toy"] |= foreign_files
    assert TOSICA.from_hub("lab/toy", **CPU).is_trained
    assert {path.name for path in (tmp_path / "c0ffee").iterdir()} == {
        "README.md",
        "model.pt",
    }
    hub.folder = tmp_path / "second"
    hub.folder.mkdir()
    hub.files["lab/toy"]["model.pt"] = attack
    with pytest.raises(ValueError, match=r"model\.pt"):
        TOSICA.from_hub("lab/toy", **CPU)
    assert not mark.exists()
    pickle.loads(attack)
    assert mark.is_dir()  # so the attack is one


def test_a_repository_without_a_model(hub):
    hub.files["lab/toy"] = {"config.json": b"{}"}
    with pytest.raises(FileNotFoundError, match=r"model\.pt"):
        TOSICA.from_hub("lab/toy", **CPU)


def test_errors_of_the_client_pass_through(toy_model):
    with pytest.raises(huggingface_hub.errors.HFValidationError):
        TOSICA.from_hub("a/b/c", **CPU)


def test_who_uploads_nothing(hub, toy, toy_model, monkeypatch):
    TOSICA.setup_anndata(toy, labels_key="kind")
    with pytest.raises(RuntimeError, match="not trained"):
        TOSICA(toy, embed_dim=8, n_heads=2).push_to_hub("lab/toy", **ABOUT)
    monkeypatch.setattr(_hub, "is_rank_zero", lambda _: False)
    assert toy_model.push_to_hub("lab/toy", **ABOUT) == ""
    assert hub.calls == []


def test_without_huggingface_hub(toy_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (TOSICA.from_hub, lambda name: toy_model.push_to_hub(name, **ABOUT)):
        with pytest.raises(ModuleNotFoundError, match=r"tosica\[hub\]"):
            call("lab/toy")
