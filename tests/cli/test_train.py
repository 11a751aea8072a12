"""``tosica train``: the model is the one that Python makes, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anndata as ad
import pytest
import scvi

import tosica
from tosica.model import _training_mixin

if TYPE_CHECKING:
    from pathlib import Path

    from anndata import AnnData


def arguments(reference: Path, folder: Path, *more: object) -> list[object]:
    few = ["--gene-sets", reference.with_name("sets.gmt"), "--max-epochs", 1, "-o", folder]
    return ["train", reference, "--labels-key", "kind", *few, *more]


def test_the_model_is_that_of_python(run: Any, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    more = ("--batch-key", "donor", "--seed", 3, "--device", "cpu", "--json")
    result = run(*arguments(reference, folder, *more))
    assert (result.code, result.err) == (0, "")
    summary = json.loads(result.out)
    adata = ad.read_h5ad(reference)
    scvi.settings.seed = 3
    tosica.pp.build_mask(adata, reference.with_name("sets.gmt"))
    tosica.TOSICA.setup_anndata(adata, labels_key="kind", batch_key="donor")
    model = tosica.TOSICA(adata)
    model.train(max_epochs=1, accelerator="cpu", enable_progress_bar=False)
    assert tosica.TOSICA.load(folder).fingerprint == summary["fingerprint"] == model.fingerprint
    assert summary["labels"] == ["a", "b", "c"]
    assert (summary["n_cells"], summary["n_genes"]) == (90, 30)


def test_layer_raw_and_several_collections(
    run: Any, toy: AnnData, reference: Path, tmp_path: Path
) -> None:
    toy = ad.read_h5ad(reference)
    toy.raw = toy.copy()
    toy.layers["counts"] = toy.X.copy()
    toy.X = toy.X.toarray() - 1
    toy.write_h5ad(reference)
    result = run(*arguments(reference, tmp_path / "scaled"))
    assert result.code == 1
    assert "(--use-raw, or adata.raw.to_adata()" in result.err
    assert "(--layer 'counts')" in result.err
    (tmp_path / "more.gmt").write_text("own\tna\tG1\tG2\tG3\tG4\tG5\n")
    more = ["--gene-sets", tmp_path / "more.gmt", "--use-raw", "--max-gene-sets", 4]
    assert run(*arguments(reference, tmp_path / "raw", *more)).code == 0
    sets = tosica.TOSICA.load(tmp_path / "raw").gene_sets
    assert len([name for name in sets if not name.startswith("module:")]) == 4
    assert run(*arguments(reference, tmp_path / "layer", "--layer", "counts")).code == 0


def test_no_raw(run: Any, reference: Path, tmp_path: Path) -> None:
    result = run(*arguments(reference, tmp_path / "m", "--use-raw"))
    assert result.code == 1
    assert result.err == f"tosica: error: {str(reference)!r} has no raw: leave --use-raw out.\n"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--labels-key", "kinds"], "adata.obs has no column 'kinds'"),
        (["--batch-key", "lane"], "adata.obs has no column 'lane'"),
        (["--gene-sets", "nothing"], "'nothing'"),
        (["--layer", "nothing"], "no layer 'nothing'"),
    ],
)
def test_wrong_data(
    more: list[str], sentence: str, run: Any, reference: Path, tmp_path: Path
) -> None:
    result = run(*arguments(reference, tmp_path / "m", *more))
    assert (result.code, result.out) == (1, "")
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert not (tmp_path / "m").exists()


def test_a_folder_in_use_is_refused_before_the_training(
    run: Any, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "note").write_text("kept")
    monkeypatch.setattr(tosica.TOSICA, "train", lambda *_, **__: pytest.fail("trained"))
    result = run(*arguments(reference, folder))
    assert result.code == 1
    assert result.err == (
        f"tosica: error: {str(folder)!r} exists: choose another folder, or pass --overwrite.\n"
    )


@pytest.mark.parametrize("name", ["note", "note/model"])
def test_a_file_where_the_folder_should_be(
    name: str, run: Any, reference: Path, tmp_path: Path
) -> None:
    (tmp_path / "note").write_text("kept")
    result = run(*arguments(reference, tmp_path / name))
    assert result.code == 1
    assert f"{str(tmp_path / 'note')!r} is a file: name a folder for the model." in result.err


def test_a_folder_that_is_read_only(
    run: Any, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who runs the tests may be allowed to write anywhere.
    monkeypatch.setattr("os.access", lambda path, _: path != tmp_path)
    result = run(*arguments(reference, tmp_path / "new" / "model"))
    assert result.code == 1
    assert f"the folder {str(tmp_path)!r} is read-only" in result.err


def test_nothing_is_left_where_the_model_cannot_be_saved(
    run: Any, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tosica.TOSICA, "train", lambda *_, **__: None)
    monkeypatch.setattr("torch.save", full)
    result = run(*arguments(reference, tmp_path / "m"))
    assert result.code == 1
    assert "could not be written (No space left on device)" in result.err
    assert not (tmp_path / "m").exists()


def test_an_interrupted_training_goes_on_from_its_checkpoint(
    run: Any, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["--checkpoint-dir", tmp_path / "checkpoints", "--device", "cpu"]
    refit = tosica.TOSICA._refit

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tosica.TOSICA, "_refit", interrupted)
    result = run(*arguments(reference, tmp_path / "m", *more))
    assert result.code == 1
    assert result.err == (
        "tosica: error: stopped by Ctrl-C; the same command goes on from the last checkpoint.\n"
    )
    assert not (tmp_path / "m").exists()
    assert (tmp_path / "checkpoints" / "training.pt").is_file()
    monkeypatch.setattr(tosica.TOSICA, "_refit", refit)
    resumed = []
    read = _training_mixin.read_checkpoint
    monkeypatch.setattr(
        _training_mixin, "read_checkpoint", lambda *a: resumed.append(a[0]) or read(*a)
    )
    assert run(*arguments(reference, tmp_path / "m", *more)).code == 0
    assert len(resumed) == 1
    assert run(*arguments(reference, tmp_path / "whole", "--device", "cpu")).code == 0
    load = tosica.TOSICA.load
    assert load(tmp_path / "m").fingerprint == load(tmp_path / "whole").fingerprint
