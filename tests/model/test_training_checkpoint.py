"""A training that goes on from its checkpoint ends as one that was not interrupted."""

from __future__ import annotations

import signal
import zipfile
from typing import TYPE_CHECKING

import anndata
import numpy as np
import pytest
import scvi
import torch
from lightning.pytorch.callbacks import Callback
from mudata import MuData

import tosica
from tosica import TOSICA
from tosica.model import _network_fit_mixin as network_fit
from tosica.model import _reference_mixin, _shuffle_buffer
from tosica.model._training_checkpoint import CHECKPOINT_FILE, TrainingCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

ONCE = {"max_epochs": 3, "batch_size": 16, "accelerator": "cpu", "enable_progress_bar": False}
N_STEPS = 3 * 6


@pytest.fixture(autouse=True)
def _default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def new(toy):
    """Make a new model of the same reference, as a new process would."""

    def make(**kwargs):
        adata = toy.copy()
        if scvi.settings.seed is not None:
            # From the same random weights.
            scvi.settings.seed = int(scvi.settings.seed)
        TOSICA.setup_anndata(adata, labels_key="kind", batch_key="donor")
        return TOSICA(adata, **({"embed_dim": 16, "n_heads": 2} | kwargs))

    return make


def interrupt(model: TOSICA, monkeypatch, step: int, **kwargs) -> None:
    """Train, and press Ctrl-C in a step of the network or of the refit."""
    n_steps = 0

    class Press(network_fit.ShowProgress):
        def on_train_batch_end(self, *args):
            nonlocal n_steps
            super().on_train_batch_end(*args)
            n_steps += 1
            if n_steps == step:
                signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(network_fit, "ShowProgress", Press)
        with pytest.raises(KeyboardInterrupt):
            model.train(**{**ONCE, **kwargs})


def assert_same(model: TOSICA, expected: TOSICA) -> None:
    """Compare everything that a training leaves, bit by bit."""
    found, weights = model.module.state_dict(), expected.module.state_dict()
    assert found.keys() == weights.keys()
    assert [name for name in weights if not torch.equal(found[name], weights[name])] == []
    assert model.fingerprint == expected.fingerprint
    assert model.refitted_ == expected.refitted_
    assert model.history.keys() == expected.history.keys()
    for name, table in expected.history.items():
        assert model.history[name].index.tolist() == table.index.tolist()
        np.testing.assert_array_equal(
            model.history[name].to_numpy(float), table.to_numpy(float), err_msg=name
        )
    for name in ("train_indices_", "validation_indices_", "test_indices_", "mislabeled_indices_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(expected, name))
    assert model.label_counts_ == expected.label_counts_
    for name in ("held_out_probabilities_", "held_out_codes_"):
        first, second = getattr(model, name), getattr(expected, name)
        assert (first is None) == (second is None)
        if first is not None:
            np.testing.assert_array_equal(first, second)


# In the first step, in the midst of an epoch, at the end of one, at the end of the network's last
# epoch, and in the refit.
@pytest.mark.parametrize("step", [1, 8, 12, N_STEPS, N_STEPS + 2])
def test_it_ends_with_the_same_weights(new, monkeypatch, tmp_path, caplog, step):
    expected = new()
    expected.train(**ONCE)
    interrupt(new(), monkeypatch, step, checkpoint_dir=tmp_path)
    path = tmp_path / CHECKPOINT_FILE
    assert f"train with the same arguments and resume={str(path)!r}" in caplog.text
    assert [file.name for file in tmp_path.iterdir()] == [CHECKPOINT_FILE]
    scvi.settings.seed = 5
    model = new()
    scvi.settings.seed = 0
    torch.rand(3)
    model.train(**ONCE, resume=path if step % 2 else tmp_path)
    assert_same(model, expected)


def test_a_reference_on_disk(toy, monkeypatch, tmp_path):
    monkeypatch.setattr(_reference_mixin, "BUFFER_SIZE", 30)
    monkeypatch.setattr(_shuffle_buffer, "_BLOCK", 20)
    toy.write_h5ad(tmp_path / "toy.h5ad")

    def new():
        adata = anndata.read_h5ad(tmp_path / "toy.h5ad", backed="r")
        scvi.settings.seed = 0
        TOSICA.setup_anndata(adata, labels_key="kind", batch_key="donor")
        return TOSICA(adata, embed_dim=16, n_heads=2)

    expected = new()
    expected.train(**ONCE)
    interrupt(new(), monkeypatch, 8, checkpoint_dir=tmp_path / "run")
    model = new()
    model.train(**ONCE, resume=tmp_path / "run")
    assert_same(model, expected)
    for one in (model, expected):
        one.adata.file.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"early_stopping": True, "early_stopping_patience": 1, "plan_kwargs": {"lr": 0.1}},
        {"accumulate_grad_batches": 2},
        {"val_check_interval": 2},
        {"precision": "bf16-mixed"},
        {"gradient_clip_val": 0.5},
        {"calibrate": False, "refit": False, "correct_batches": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_with_other_options(new, monkeypatch, tmp_path, options):
    expected = new()
    expected.train(**ONCE, **options)
    interrupt(new(), monkeypatch, 9, checkpoint_dir=tmp_path, **options)
    model = new()
    model.train(**ONCE, resume=tmp_path, **options)
    assert_same(model, expected)


def test_without_a_linear_branch_and_a_seed(new, monkeypatch, tmp_path):
    """The split is then random, and the checkpoint has it."""
    scvi.settings.seed = None
    first = new(linear=False)
    start = {name: value.clone() for name, value in first.module.state_dict().items()}
    interrupt(first, monkeypatch, 8, checkpoint_dir=tmp_path)
    models = [new(linear=False), new(linear=False)]
    for model in models:
        model.train(**ONCE, resume=tmp_path)
    assert_same(*models)
    np.testing.assert_array_equal(models[0].validation_indices, first.validation_indices)
    assert any(not torch.equal(start[name], v) for name, v in first.module.state_dict().items())


def test_of_a_mudata(new, toy, monkeypatch, tmp_path):
    def joint():
        scvi.settings.seed = 0
        protein = toy[:, :4].copy()
        protein.var_names = ["CD3", "CD4", "CD8", "CD19"]
        del protein.varm["tosica_mask"], protein.uns["tosica_mask"]
        mdata = MuData({"rna": toy.copy(), "protein": protein})
        mdata.obs["kind"] = mdata["rna"].obs["kind"]
        tosica.pp.build_mask(mdata, {"set": [f"G{i}" for i in range(12)]})
        TOSICA.setup_mudata(
            mdata, labels_key="kind", modalities={"rna": "rna", "protein": "protein"}
        )
        return TOSICA(mdata, embed_dim=16, n_heads=2)

    expected = joint()
    expected.train(**ONCE)
    interrupt(joint(), monkeypatch, 8, checkpoint_dir=tmp_path)
    model = joint()
    model.train(**ONCE, resume=tmp_path)
    assert_same(model, expected)


def test_of_a_model_that_was_trained_before(new, monkeypatch, tmp_path):
    def train_once():
        model = new()
        model.train(**ONCE)
        return model

    expected = train_once()
    expected.train(**ONCE)
    interrupt(train_once(), monkeypatch, 8, checkpoint_dir=tmp_path)
    model = new()
    model.train(**ONCE, resume=tmp_path)
    assert len(model.history["train_loss"]) == 6
    assert_same(model, expected)


def test_twice(new, monkeypatch, tmp_path):
    """A training that goes on can be interrupted again, and goes on writing if it is told to."""
    expected = new()
    expected.train(**ONCE)
    interrupt(new(), monkeypatch, 4, checkpoint_dir=tmp_path)
    before = (tmp_path / CHECKPOINT_FILE).read_bytes()
    interrupt(new(), monkeypatch, 4, resume=tmp_path)
    assert (tmp_path / CHECKPOINT_FILE).read_bytes() == before
    interrupt(new(), monkeypatch, 4, resume=tmp_path, checkpoint_dir=tmp_path)
    assert (tmp_path / CHECKPOINT_FILE).read_bytes() != before
    model = new()
    model.train(**ONCE, resume=tmp_path)
    assert_same(model, expected)


def test_it_is_written_every_few_minutes(new, monkeypatch, tmp_path):
    """Before the first step, after each step if minutes are short, and once if they are long."""
    written = []
    write = TrainingCheckpoint.write
    monkeypatch.setattr(
        TrainingCheckpoint,
        "write",
        lambda self, **changing: (written.append(changing["phase"]), write(self, **changing)),
    )
    new().train(**ONCE, checkpoint_dir=tmp_path / "often", checkpoint_minutes=1e-9)
    # Before the first step of each phase, after every other step, and before every other epoch.
    assert written.count("network") == 1 + 3 * 5 + 3
    assert written.count("refit") == 1 + 5 + 1
    written.clear()
    new().train(**ONCE, checkpoint_dir=tmp_path / "rarely", checkpoint_minutes=60)
    assert written == ["network", "refit"]


def test_it_does_not_change_the_weights(new, tmp_path):
    first = new()
    first.train(**ONCE)
    second = new()
    second.train(**ONCE, checkpoint_dir=tmp_path, checkpoint_minutes=1e-9)
    assert_same(second, first)


def test_a_full_disk_does_not_end_the_training(new, monkeypatch, tmp_path, caplog):
    save, n_saved = torch.save, 0

    def fail(*args):
        nonlocal n_saved
        n_saved += 1
        if n_saved > 1:
            raise OSError(28, "No space left on device")
        save(*args)

    monkeypatch.setattr(torch, "save", fail)
    model = new()
    model.train(**ONCE, refit=False, checkpoint_dir=tmp_path, checkpoint_minutes=1e-9)
    assert "train: goes on without a new checkpoint" in caplog.text
    assert "No space left on device" in caplog.text
    monkeypatch.undo()
    expected = new()
    expected.train(**ONCE, refit=False)
    assert_same(model, expected)
    assert (tmp_path / CHECKPOINT_FILE).is_file()


def test_a_folder_that_cannot_be_written_is_noticed_at_once(new, monkeypatch, tmp_path):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    model = new()
    with pytest.raises(OSError, match=r"could not be written .No space left on device"):
        model.train(**ONCE, checkpoint_dir=tmp_path)
    assert not model.is_trained


# --------------------------------------------------------------------------- what is refused


@pytest.fixture(scope="module")
def checkpoint(_toy, tmp_path_factory):
    """The checkpoint that the other model of these tests would write."""
    folder = tmp_path_factory.mktemp("checkpoint")
    adata = _toy.copy()
    TOSICA.setup_anndata(adata, labels_key="kind", batch_key="donor")
    scvi.settings.seed = 0
    model = TOSICA(adata, embed_dim=16, n_heads=2)
    model.train(**{**ONCE, "max_epochs": 1}, refit=False, checkpoint_dir=folder)
    return folder / CHECKPOINT_FILE


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"max_epochs": 2}, "was written with max_epochs=1, and this training has max_epochs=2: "),
        ({"batch_size": 8}, "was written with batch_size=16, and this training has batch_size=8"),
        ({"refit": True}, "was written with refit=False, and this training has refit=True"),
        ({"plan_kwargs": {"lr": 1e-2}}, r"written with plan_kwargs\['lr'\]=0.003, .*=0.01: "),
        ({"gradient_clip_val": 1.0}, "written with gradient_clip_val=None, .*=1.0: "),
        ({"seed": 1}, r"was written with scvi\.settings\.seed=0, .*scvi\.settings\.seed=1: "),
    ],
)
def test_other_arguments(new, checkpoint, change, sentence):
    scvi.settings.seed = change.pop("seed", 0)
    model = new()
    fingerprint = model.fingerprint
    given = {**ONCE, "max_epochs": 1, "refit": False, **change}
    with pytest.raises(ValueError, match=sentence):
        model.train(**given, resume=checkpoint)
    assert model.fingerprint == fingerprint
    assert not model.is_trained


def _of(adata, **kwargs):
    TOSICA.setup_anndata(adata, labels_key="kind", batch_key="donor")
    return TOSICA(adata, **({"embed_dim": 16, "n_heads": 2} | kwargs))


def _other_sets(toy):
    tosica.pp.build_mask(toy, {"one": [f"G{i}" for i in range(9)]})
    return _of(toy)


def _other_labels(toy):
    toy.obs["kind"] = toy.obs["kind"].cat.rename_categories({"a": "z"})
    return _of(toy)


def _other_label_of_a_cell(toy):
    toy.obs.iloc[0, toy.obs.columns.get_loc("kind")] = "b"
    return _of(toy)


def _other_expression(toy):
    toy.X = toy.X * 2
    return _of(toy)


def _other_genes(toy):
    toy.var_names = [f"H{name}" for name in toy.var_names]
    tosica.pp.build_mask(toy, {"one": [f"HG{i}" for i in range(9)]})
    return _of(toy)


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda toy: _of(toy[:80].copy()), "a reference with another number of cells"),
        (_other_genes, "a reference with other genes"),
        (_other_labels, "a reference with other labels"),
        (_other_sets, "a model with other gene sets"),
        (lambda toy: _of(toy, embed_dim=8), "a network of another shape"),
        (lambda toy: _of(toy, n_heads=4), "a network of another shape"),
        (
            _other_label_of_a_cell,
            "a reference whose cells have other labels, batches or",
        ),
        (_other_expression, "a reference whose cells have other labels, batches or"),
    ],
)
def test_another_model(toy, checkpoint, make, other):
    model = make(toy)
    fingerprint = model.fingerprint
    with pytest.raises(ValueError, match=rf"training\.pt' belongs to {other}.*: resume with the "):
        model.train(**{**ONCE, "max_epochs": 1}, refit=False, resume=checkpoint)
    assert model.fingerprint == fingerprint
    assert not model.is_trained


def test_a_damaged_file(new, checkpoint, tmp_path):
    """A changed byte anywhere, and a file that was cut."""
    content = checkpoint.read_bytes()
    path = tmp_path / "copy.pt"
    rng = np.random.default_rng(0)
    model = new()
    for position in [0, len(content) // 2, *rng.integers(0, len(content), 20)]:
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            contents = torch.load(path, weights_only=True)
        except Exception:
            contents = None
        # Some bytes of the archive say nothing.
        if contents is not None and _equal(contents, torch.load(checkpoint, weights_only=True)):
            continue
        with pytest.raises(ValueError, match=r"copy\.pt'.* (damaged|more than tensors)"):
            model.train(**{**ONCE, "max_epochs": 1}, refit=False, resume=path)
    for size in (0, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="is no checkpoint of a training, cut short or dam"):
            model.train(**{**ONCE, "max_epochs": 1}, refit=False, resume=path)
    assert not model.is_trained


def _equal(first, second):
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(v, second[k]) for k, v in first.items())
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    return first == second


class _Harmful:
    def __reduce__(self):
        return (print, ("executed",))


def test_nothing_is_executed(new, tmp_path, capsys):
    path = tmp_path / CHECKPOINT_FILE
    torch.save({"format": 1, "version": "1", "module": _Harmful()}, path)
    with pytest.raises(ValueError, match="holds more than tensors and plain values"):
        new().train(**ONCE, resume=path)
    assert "executed" not in capsys.readouterr().out


def test_of_another_version(new, checkpoint, tmp_path):
    contents = torch.load(checkpoint, weights_only=True)
    torch.save({**contents, "format": 99, "version": "9.9"}, tmp_path / CHECKPOINT_FILE)
    with pytest.raises(ValueError, match=r"was written by tosica 9\.9, whose checkpoints tosica "):
        new().train(**ONCE, resume=tmp_path)


def test_an_edited_one(new, checkpoint, tmp_path):
    contents = torch.load(checkpoint, weights_only=True)
    contents["seed"] += 1
    torch.save(contents, tmp_path / CHECKPOINT_FILE)
    with pytest.raises(ValueError, match="is no checkpoint of a training, cut short or damaged"):
        new().train(**ONCE, resume=tmp_path)


def test_it_holds_no_compressed_or_foreign_parts(checkpoint):
    with zipfile.ZipFile(checkpoint) as archive:
        assert {part.compress_type for part in archive.filelist} == {zipfile.ZIP_STORED}


def test_a_callback_whose_state_is_an_object(new, monkeypatch, tmp_path, caplog):
    class Odd(Callback):
        def state_dict(self):
            return {"object": object()}

    expected = new()
    expected.train(**ONCE)
    interrupt(new(), monkeypatch, 3, checkpoint_dir=tmp_path, callbacks=[Odd()])
    assert "leaves out the state of the callback Odd" in caplog.text
    model = new()
    model.train(**ONCE, resume=tmp_path, callbacks=[Odd()])
    assert_same(model, expected)


def test_several_devices_are_refused(new, tmp_path):
    with pytest.raises(ValueError, match="checkpoint_dir and resume are for training on one dev"):
        new().train(**ONCE, devices=2, checkpoint_dir=tmp_path / "new")
    assert not (tmp_path / "new").exists()
