"""Files of models that were damaged or edited: refused with one sentence, soon and unchanged."""

from __future__ import annotations

import io
import os
import re
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anndata
import numpy as np
import pytest
import torch

from tosica import TOSICA

if TYPE_CHECKING:
    from collections.abc import Callable

REFUSED = (
    r"is cut short or damaged; copy or save the model again\.$"
    r"|do not fit the model that the file describes; the file is damaged\.$"
    r"|holds more than tensors and plain values"
    r"|: not a saved model\.$"
    r"|holds weights that are not finite \(.*\), so the model cannot name cells"
    r"|holds a .* model, not a TOSICA model\.$"
)


@pytest.fixture
def folder(toy_model, tmp_path):
    toy_model.save(tmp_path / "model")
    return tmp_path / "model"


def edit(
    folder: Path, change: Callable[[dict[str, Any]], Any], *, with_digest: bool = False
) -> None:
    """Change what a model's file holds, and write it anew as torch does."""
    contents = torch.load(folder / "model.pt", weights_only=True)
    if not with_digest:
        # As files were that were saved before the digest was.
        del contents["attr_dict"]["digest"]
    change(contents)
    torch.save(contents, folder / "model.pt")


def edit_pickle(folder: Path, change: Callable[[bytes], bytes]) -> None:
    """Change bytes of the pickle, with a checksum that is right."""
    path = folder / "model.pt"
    buffer = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w") as new:
        for part in old.infolist():
            held = old.read(part)
            new.writestr(part, change(held) if part.filename.endswith("data.pkl") else held)
    path.write_bytes(buffer.getvalue())


def refuses(folder: Path) -> None:
    start = time.process_time()
    with pytest.raises(ValueError, match=REFUSED):
        TOSICA.load(folder, accelerator="cpu")
    assert time.process_time() - start < 10


def is_noticed(folder: Path, toy_model: TOSICA) -> bool:
    """Whether a file is refused; if it is not, everything in it is as it was."""
    try:
        model = TOSICA.load(folder, accelerator="cpu")
    except ValueError as error:
        if not re.search(REFUSED, str(error)):
            raise
        return True
    assert repr(model) == repr(toy_model)
    assert model.fingerprint == toy_model.fingerprint
    np.testing.assert_array_equal(model.held_out_probabilities_, toy_model.held_out_probabilities_)
    return False


# --------------------------------------------------------------------------- damage


def test_bytes_changed_anywhere(folder, toy_model):
    """Either a change is noticed, or it is where nothing is."""
    path = folder / "model.pt"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    noticed = 0
    for _ in range(120):
        changed = bytearray(whole)
        for at in rng.integers(len(whole), size=rng.integers(1, 6)):
            changed[at] ^= rng.integers(1, 256)
        path.write_bytes(changed)
        noticed += is_noticed(folder, toy_model)
    assert noticed > 80


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_in_any_tensor(folder, toy_model, value):
    whole = (folder / "model.pt").read_bytes()
    names = [n for n, t in toy_model.module.state_dict().items() if t.is_floating_point()]
    assert len(names) > 30
    for name in names:
        (folder / "model.pt").write_bytes(whole)

        def spoil(contents, name=name):
            tensor = contents["model_state_dict"][name]
            tensor[(-1,) * tensor.ndim] = value

        edit(folder, spoil)
        refuses(folder)


@pytest.mark.parametrize("bit", [0, 23, 31])
def test_a_bit_flipped_in_any_tensor(folder, toy_model, bit):
    whole = (folder / "model.pt").read_bytes()
    for name in toy_model.module.state_dict():
        (folder / "model.pt").write_bytes(whole)

        def flip(contents, name=name):
            held = contents["model_state_dict"][name].numpy()
            first = held[(slice(1),) * held.ndim] if held.ndim else held
            number = first.view(np.uint32 if held.itemsize == 4 else np.uint64)
            number ^= number.dtype.type(1 << bit)

        edit(folder, flip)
        refuses(folder)


def test_a_model_that_diverged_is_not_saved(toy, train, folder):
    model = train(toy, max_epochs=1, refit=False)
    with torch.no_grad():
        model.module.head.bias[0] = np.nan
    before = (folder / "model.pt").read_bytes()
    with pytest.raises(ValueError, match=r"not finite \(head\.bias\) and cannot name cells, so it"):
        model.save(folder, overwrite=True)
    assert (folder / "model.pt").read_bytes() == before


# --------------------------------------------------------------------------- files of other kinds


def test_random_bytes(folder):
    starts = [b"", b"PK\x03\x04", b"\x80\x02", b"\x1f\x8b", b"\x89HDF\r\n\x1a\n"]
    rng = np.random.default_rng(0)
    for start in starts * 12:
        (folder / "model.pt").write_bytes(start + rng.bytes(int(rng.integers(0, 3000))))
        refuses(folder)


def test_text(folder):
    texts = ["", "e", "epoch,loss\n1,0.5\n", "<html></html>", '{"a": 1}', "version https://git-lfs"]
    for text in texts:
        (folder / "model.pt").write_text(text)
        refuses(folder)


def test_a_folder_of_the_name(folder):
    (folder / "model.pt").unlink()
    (folder / "model.pt").mkdir()
    with pytest.raises(FileNotFoundError, match=r"holds no model\.pt, so it is not a saved model"):
        TOSICA.load(folder)


def test_a_link_to_nowhere(folder, toy_model):
    (folder / "model.pt").unlink()
    (folder / "model.pt").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match=r"holds no model\.pt, so it is not a saved model"):
        TOSICA.load(folder)
    toy_model.save(folder, overwrite=True)
    assert TOSICA.load(folder).fingerprint == toy_model.fingerprint


def test_a_compressed_file(folder):
    """A few kilobytes could be unpacked to any size."""
    path = folder / "model.pt"
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(path) as old,
        zipfile.ZipFile(buffer, "w", compression=zipfile.ZIP_DEFLATED) as new,
    ):
        for part in old.infolist():
            new.writestr(part.filename, old.read(part))
    path.write_bytes(buffer.getvalue())
    refuses(folder)


# --------------------------------------------------------------------------- edits of the contents


@pytest.mark.parametrize("n_bytes", [1, 8])
def test_an_edited_pickle(folder, toy_model, n_bytes):
    rng = np.random.default_rng(n_bytes)

    def change(held: bytes) -> bytes:
        changed = bytearray(held)
        for at in rng.integers(len(held), size=n_bytes):
            changed[at] = rng.integers(256)
        return bytes(changed)

    whole = (folder / "model.pt").read_bytes()
    noticed = 0
    for _ in range(60):
        (folder / "model.pt").write_bytes(whole)
        edit_pickle(folder, change)
        # What is not noticed is not used, as the unpickler's numbers of values.
        noticed += is_noticed(folder, toy_model)
    assert noticed > 30


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a["init_params_"]["non_kwargs"].update(n_layers=10**6),
        lambda a: a["init_params_"]["non_kwargs"].update(embed_dim=10**7),
        lambda a: a["init_params_"]["non_kwargs"].update(n_heads=10**9),
        lambda a: a["init_params_"]["non_kwargs"].update(n_heads=0),
        lambda a: a["init_params_"]["non_kwargs"].update(embed_dim="16"),
        lambda a: a["init_params_"]["non_kwargs"].update(linear=False),
        lambda a: a["init_params_"]["non_kwargs"].update(max_gene_sets=-1),
        lambda a: a["init_params_"]["non_kwargs"].update(unheard=1),
        lambda a: a["init_params_"]["non_kwargs"].clear(),
        lambda a: a["init_params_"].clear(),
        lambda a: a.update(init_params_=None),
        lambda a: a.update(registry_=[]),
        lambda a: a.update(history_="x"),
        lambda a: a.update(fingerprint=None),
        lambda a: a["registry_"].pop("setup_args"),
        lambda a: a["registry_"].pop("field_registries"),
        lambda a: a["registry_"].pop("model_name"),
        lambda a: a["registry_"]["field_registries"].pop("X"),
        lambda a: a["registry_"]["field_registries"].pop("labels"),
        lambda a: a["registry_"]["field_registries"].pop("mask"),
        lambda a: a["registry_"]["field_registries"]["mask"].pop("state_registry"),
        lambda a: a["registry_"]["field_registries"]["mask"]["state_registry"].pop("indptr"),
        lambda a: a["registry_"]["field_registries"]["X"]["state_registry"].pop("scale"),
        lambda a: a["registry_"]["field_registries"]["X"]["state_registry"].pop("column_names"),
        lambda a: a["registry_"]["field_registries"]["labels"]["state_registry"].update(
            categorical_mapping=["a", "a", "c"]
        ),
        lambda a: a["registry_"]["field_registries"]["labels"]["state_registry"].update(
            categorical_mapping=["b", "a", "c"]
        ),
        lambda a: a["registry_"]["field_registries"]["X"]["state_registry"][
            "column_names"
        ].reverse(),
        lambda a: a["registry_"]["field_registries"]["mask"]["state_registry"][
            "gene_sets"
        ].reverse(),
        lambda a: a["registry_"]["field_registries"]["mask"]["state_registry"].update(
            genes=a["registry_"]["field_registries"]["mask"]["state_registry"]["genes"] + 10**9
        ),
    ],
)
def test_edited_attributes(folder, change):
    edit(folder, lambda contents: change(contents["attr_dict"]))
    refuses(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.update(is_trained_=False),
        lambda a: a["history_"].clear(),
        lambda a: a.update(held_out_probabilities_=torch.ones(1, 9)),
        lambda a: a["registry_"]["setup_args"].update(layer="counts"),
        lambda a: a["registry_"]["field_registries"]["X"]["state_registry"]["scale"].update(
            target_sum=1e6
        ),
        lambda a: a["registry_"]["field_registries"]["labels"]["state_registry"][
            "colors"
        ].reverse(),
    ],
)
def test_whatever_else_is_edited_is_noticed(folder, change):
    edit(folder, lambda contents: change(contents["attr_dict"]), with_digest=True)
    refuses(folder)


@pytest.mark.parametrize(
    "value",
    [
        "text",
        [1.0],
        torch.zeros(1).expand(10**5, 10**6),
        torch.zeros(3, 16).to_sparse(),
        torch.zeros(3, 16, dtype=torch.bfloat16),
        torch.zeros(3, 16, dtype=torch.complex64),
    ],
    ids=["str", "list", "bomb", "sparse", "bfloat16", "complex"],
)
@pytest.mark.parametrize("with_digest", [False, True])
def test_what_is_no_weight(folder, value, with_digest):
    edit(
        folder,
        lambda c: c["model_state_dict"].update({"head.weight": value}),
        with_digest=with_digest,
    )
    refuses(folder)


def test_attributes_nested_without_end(folder):
    def nest(contents):
        value: list[Any] = []
        for _ in range(200):
            value = [value]
        contents["attr_dict"]["run_name_"] = value

    edit(folder, nest, with_digest=True)
    refuses(folder)


def test_a_reference_is_not_changed_by_a_damaged_file(folder, toy, contents):
    edit(folder, lambda c: c["model_state_dict"].pop("head.bias"))
    before = contents(toy)
    with pytest.raises(ValueError, match=REFUSED):
        TOSICA.load(folder, adata=toy)
    assert contents(toy) == before


# --------------------------------------------------------------------------- files of before


def test_a_file_without_a_digest(folder, toy_model, toy_query):
    edit(folder, lambda _: None)
    model = TOSICA.load(folder)
    assert model.fingerprint == toy_model.fingerprint
    np.testing.assert_array_equal(model.predict(toy_query), toy_model.predict(toy_query))


# --------------------------------------------------------------------------- folders


def test_a_folder_behind_a_link(folder, toy_model, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    before = TOSICA.load(tmp_path / "link").fingerprint
    toy_model.save(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert TOSICA.load(folder).fingerprint == before


def test_a_file_that_others_have_mapped(folder, toy, train):
    held = torch.load(folder / "model.pt", weights_only=True, mmap=True)
    before = {name: tensor.clone() for name, tensor in held["model_state_dict"].items()}
    train(toy, seed=7, max_epochs=1, refit=False).save(folder, overwrite=True)
    for name, tensor in before.items():
        assert torch.equal(held["model_state_dict"][name], tensor)


def test_an_empty_folder_is_free(toy_model, tmp_path):
    (tmp_path / "model").mkdir()
    toy_model.save(tmp_path / "model")
    assert TOSICA.load(tmp_path / "model").fingerprint == toy_model.fingerprint


def test_what_is_no_folder(toy_model, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(FileExistsError, match=r"file' exists: choose another folder, or pass over"):
        toy_model.save(tmp_path / "file")
    for name in ("file", "link"):
        with pytest.raises(OSError, match=rf"The folder .*{name}' cannot be made \(File exists\)"):
            toy_model.save(tmp_path / name, overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["model.pt", "adata.h5ad"])
def test_a_folder_in_the_place_of_a_file(toy_model, tmp_path, name):
    folder = tmp_path / "model"
    (folder / name).mkdir(parents=True)
    with pytest.raises(OSError, match=r"could not be written \(Is a directory\)"):
        toy_model.save(folder, overwrite=True, save_anndata=True)
    assert os.listdir(folder) == [name]


def test_permissions_stay(folder, toy_model):
    (folder / "model.pt").chmod(0o640)
    toy_model.save(folder, overwrite=True)
    assert (folder / "model.pt").stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.name == "nt", reason="folders of Windows have no such mode")
def test_a_read_only_folder(toy_model):
    # Not tmp_path, which is its owner's alone: root has to become somebody else here.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        toy_model.save(folder)
        Path(name).chmod(0o755)
        folder.chmod(0o555)
        before = (folder / "model.pt").read_bytes()
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        try:
            with pytest.raises(
                PermissionError, match=r"could not be written \(Permission denied\)"
            ):
                toy_model.save(folder, overwrite=True)
            assert TOSICA.load(folder).fingerprint == toy_model.fingerprint
        finally:
            if is_root:
                os.seteuid(0)
            folder.chmod(0o755)
        assert (folder / "model.pt").read_bytes() == before
        assert os.listdir(folder) == ["model.pt"]


def test_a_backed_reference(toy, train, tmp_path):
    toy.write_h5ad(tmp_path / "reference.h5ad")
    backed = anndata.read_h5ad(tmp_path / "reference.h5ad", backed="r")
    model = train(backed, max_epochs=1, refit=False)
    expected = model.predict()
    for _ in range(2):
        model.save(tmp_path / "model", overwrite=True, save_anndata=True)
        assert backed.filename == tmp_path / "reference.h5ad"
        np.testing.assert_array_equal(model.predict(), expected)
    reference = anndata.read_h5ad(tmp_path / "model" / "adata.h5ad")
    np.testing.assert_array_equal(TOSICA.load(tmp_path / "model").predict(reference), expected)
