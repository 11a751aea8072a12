"""A save that is killed, at any operation, leaves the old model or the new one."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import anndata
import pytest
import torch
from _killed import count_operations, killed_at, killed_while_writing, with_full_disk

from tosica import TOSICA, gs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="Windows has neither fork nor locks of folders"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def _two(_toy, train):
    """Two models and references that differ."""
    models = []
    for seed in range(2):
        reference = _toy.copy()
        reference.obs["seed"] = str(seed)
        models.append(train(reference, seed=seed, max_epochs=1, refit=False))
    return models


@pytest.fixture
def two(_two):
    return tuple(_two)


def state_of(folder: Path) -> tuple[str, str | None]:
    """What others read: the fingerprint of the model, and whose reference is beside it."""
    path = folder / "adata.h5ad"
    reference = anndata.read_h5ad(path).obs["seed"].iloc[0] if path.exists() else None
    return TOSICA.load(folder, accelerator="cpu").fingerprint, reference


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


WITH = pytest.mark.parametrize("with_reference", [False, True], ids=["model", "both"])


@pytest.mark.slow
@WITH
def test_killed_at_every_operation(two, tmp_path, with_reference):
    old, new = two
    seen = []
    for operation in range(1, 1000):
        folder = tmp_path / str(operation)
        old.save(folder, save_anndata=with_reference)
        before = state_of(folder)
        was_killed = killed_at(
            lambda to=folder: new.save(to, overwrite=True, save_anndata=with_reference),
            folder,
            operation,
        )
        after = state_of(folder)
        expected = (new.fingerprint, "1" if with_reference else None)
        assert after in (before, expected)
        seen.append(after == expected)
        new.save(folder, overwrite=True, save_anndata=with_reference)
        assert state_of(folder) == expected
        assert files_in(folder) == ["adata.h5ad"] * with_reference + ["model.pt"]
        if not was_killed:
            break
    # First always the old ones, from some operation on always the new ones.
    assert seen == sorted(seen)
    assert seen.count(True) > 3
    assert seen.count(False) > 5


@pytest.mark.slow
def test_killed_at_every_operation_of_a_first_save(two, tmp_path):
    model = two[0]
    for operation in range(1, 1000):
        folder = tmp_path / str(operation)
        was_killed = killed_at(
            lambda to=folder: model.save(to, save_anndata=True), folder, operation
        )
        if folder.exists() and (folder / "adata.h5ad").exists():
            assert state_of(folder) == (model.fingerprint, "0")
        else:
            with pytest.raises(FileNotFoundError):
                TOSICA.load(folder)
            # What is left is not in the way.
            model.save(folder, save_anndata=True)
            assert files_in(folder) == ["adata.h5ad", "model.pt"]
        if not was_killed:
            break
    assert operation > 10


@pytest.mark.parametrize("size", [0, 10_000, 60_000])
@WITH
def test_killed_while_writing(two, tmp_path, with_reference, size):
    old, new = two
    folder = tmp_path / "model"
    old.save(folder, save_anndata=with_reference)
    before = state_of(folder)
    save = {"overwrite": True, "save_anndata": with_reference}
    if killed_while_writing(lambda: new.save(folder, **save), size):
        assert len(files_in(folder)) == 2 + with_reference
        assert state_of(folder) == before
    else:
        assert size == 60_000
        assert not with_reference
    new.save(folder, **save)
    assert state_of(folder) == (new.fingerprint, "1" if with_reference else None)
    assert len(files_in(folder)) == 1 + with_reference


@WITH
@pytest.mark.parametrize("size", [0, 40_000])
def test_full_disk(two, tmp_path, with_reference, size):
    old, new = two
    folder = tmp_path / "model"
    old.save(folder, save_anndata=with_reference)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def save():
        with pytest.raises(OSError, match=r"could not be written \(.+\): is the disk full, the f"):
            new.save(folder, overwrite=True, save_anndata=with_reference)

    # HDF5 complains a second time when its objects are deleted.
    with_full_disk(save, size)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def interrupted_between_the_files(old: TOSICA, new: TOSICA, folder: Path) -> None:
    """Save, and be killed when the reference is new and the model is not."""

    def save() -> None:
        new.save(folder, overwrite=True, save_anndata=True)

    old.save(folder, save_anndata=True)
    neither, both = 1, count_operations(save, folder)
    while both - neither > 1:
        old.save(folder, overwrite=True, save_anndata=True)
        middle = (neither + both) // 2
        assert killed_at(save, folder, middle)
        if anndata.read_h5ad(folder / "adata.h5ad").obs["seed"].iloc[0] == "1":
            both = middle
        else:
            neither = middle
    old.save(folder, overwrite=True, save_anndata=True)
    model = (folder / "model.pt").read_bytes()
    assert killed_at(save, folder, both)
    assert anndata.read_h5ad(folder / "adata.h5ad").obs["seed"].iloc[0] == "1"
    assert (folder / "model.pt").read_bytes() == model


def test_new_model_beside_the_new_reference(two, tmp_path):
    old, new = two
    folder = tmp_path / "model"
    interrupted_between_the_files(old, new, folder)
    old_file = (folder / "model.pt").read_bytes()
    assert TOSICA.load(folder).fingerprint == new.fingerprint
    # Reading changes nothing, since the folder may be another user's.
    assert (folder / "model.pt").read_bytes() == old_file
    assert TOSICA.load_registry(folder)["_scvi_uuid"] == new.registry_["_scvi_uuid"]
    # The folder may be copied as it is.
    shutil.copytree(folder, tmp_path / "copy")
    assert state_of(tmp_path / "copy") == (new.fingerprint, "1")
    # Whatever else is written there completes it.
    gs.write_gmt({"set": ["A"]}, tmp_path / "copy" / "sets.gmt")
    assert files_in(tmp_path / "copy") == ["adata.h5ad", "model.pt", "sets.gmt"]
    assert state_of(tmp_path / "copy") == (new.fingerprint, "1")
    # The next save of the model alone goes on from there.
    old.save(folder, overwrite=True)
    assert files_in(folder) == ["adata.h5ad", "model.pt"]
    assert state_of(folder) == (old.fingerprint, "1")


def test_temporary_files_of_a_living_process_stay(two, tmp_path):
    old, new = two
    folder = tmp_path / "model"
    old.save(folder)
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        save = torch.save

        def wait(contents, path):
            save(contents, path)
            os.write(ready[1], b"x")
            os.read(go[0], 1)

        torch.save = wait
        try:
            new.save(folder, overwrite=True)
        finally:
            os._exit(0)
    os.read(ready[0], 1)
    before = files_in(folder)
    old.save(folder, overwrite=True)
    after = files_in(folder)
    os.write(go[1], b"x")
    os.waitpid(child, 0)
    assert len(before) == len(after) == 2
    assert files_in(folder) == ["model.pt"]
    assert TOSICA.load(folder).fingerprint == new.fingerprint


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"[]",
        b'{"first": {"name": "adata.h5ad", "sha256": null}, "others": {"../../stolen": null}}',
        b'{"first": {"name": 5, "sha256": null}, "others": {"model.pt": null}}',
        b'{"first": {"name": "none", "sha256": null}, "others": ["model.pt"]}',
    ],
)
def test_a_record_of_somebody_else_moves_nothing(two, tmp_path, record):
    folder = tmp_path / "folder" / "model"
    two[0].save(folder)
    temporary = folder / ".tosica-0.tmp"
    temporary.mkdir()
    (temporary / "replaced_together.json").write_bytes(record)
    (temporary / "model.pt").write_bytes(b"another one")
    (tmp_path / "stolen").write_bytes(b"mine")
    assert TOSICA.load(folder).fingerprint == two[0].fingerprint
    two[1].save(folder, overwrite=True)
    assert files_in(folder) == ["model.pt"]
    assert TOSICA.load(folder).fingerprint == two[1].fingerprint
    assert (tmp_path / "stolen").read_bytes() == b"mine"


def test_a_link_in_the_place_of_a_temporary_folder(two, tmp_path):
    folder, other = tmp_path / "model", tmp_path / "precious"
    two[0].save(folder)
    other.mkdir()
    (other / "file").write_text("")
    (folder / ".tosica-0.tmp").symlink_to(other)
    two[1].save(folder, overwrite=True)
    assert files_in(other) == ["file"]


@pytest.mark.slow
def test_interrupted_with_the_keyboard(two, tmp_path):
    """Signals at every operation, which Python turns into KeyboardInterrupt."""
    old, new = two
    for operation in range(1, 1000):
        folder = tmp_path / str(operation)
        old.save(folder, save_anndata=True)

        def save(to=folder):
            try:
                new.save(to, overwrite=True, save_anndata=True)
            except KeyboardInterrupt:
                # Nothing temporary is left, or only what the next save completes.
                assert state_of(to) in ((old.fingerprint, "0"), (new.fingerprint, "1"))

        was_killed = killed_at(save, folder, operation, signal.SIGINT)
        assert not was_killed
        assert state_of(folder) in ((old.fingerprint, "0"), (new.fingerprint, "1"))
        if state_of(folder) == (new.fingerprint, "1"):
            break
