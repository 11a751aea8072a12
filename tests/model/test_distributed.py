"""Training in several processes: their shares of the cells, and that they make one model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scvi
import torch
from lightning.pytorch.strategies import DDPStrategy

import tosica
from tosica.data import CellMatrix
from tosica.model._data_module import ReferenceData
from tosica.model._device import check_devices
from tosica.model._distributed import _OwnProcess

# --------------------------------------------------------------------------- shares


def reference_data(toy, batch_size, rank=0, n_processes=1, validation_size=0.3):
    codes = toy.obs["kind"].cat.codes.to_numpy().astype(np.int64)
    data = ReferenceData(
        CellMatrix(toy),
        codes,
        np.zeros(len(codes)),
        validation_size=validation_size,
        batch_size=batch_size,
    )
    data.trainer = SimpleNamespace(global_rank=rank, world_size=n_processes)
    return data


@pytest.mark.parametrize("n_processes", [2, 3])
def test_processes_share_the_minibatches_of_one(toy, n_processes):
    torch.manual_seed(1)
    one = list(reference_data(toy, 4 * n_processes).train_dataloader())
    torch.manual_seed(2)
    shares = [
        list(reference_data(toy, 4, rank, n_processes).train_dataloader())
        for rank in range(n_processes)
    ]
    for whole, *parts in zip(one, *shares, strict=True):
        assert [len(part["X"]) for part in parts] == [4] * n_processes
        for key in whole:
            torch.testing.assert_close(torch.cat([part[key] for part in parts]), whole[key])


def test_epochs_differ(toy):
    loaders = [reference_data(toy, 32).train_dataloader() for _ in range(2)]
    # As Lightning does before each epoch.
    loaders[1].batch_sampler.sampler.set_epoch(1)
    first, second = (next(iter(loader)) for loader in loaders)
    assert not torch.equal(first["X"], second["X"])


@pytest.mark.parametrize("batch_size", [1, 5, 500])
def test_large_minibatches_are_divided_equally(toy, batch_size):
    for rank in range(2):
        data = reference_data(toy, batch_size, rank, 2)
        sizes = {len(batch["X"]) for batch in data.train_dataloader()}
        assert sizes == {min(batch_size, data.n_train // 2)}


@pytest.mark.parametrize("validation_size", [0.01, 0.3])
@pytest.mark.parametrize("batch_size", [1, 4, 500])
def test_each_held_out_cell_is_validated_once(toy, batch_size, validation_size):
    processes = [
        reference_data(toy, batch_size, rank, 4, validation_size=validation_size)
        for rank in range(4)
    ]
    shares = [list(data.val_dataloader()) for data in processes]
    # Processes wait for one another after each minibatch.
    assert len({len(share) for share in shares}) == 1
    found = torch.cat([batch["X"] for share in shares for batch in share]).numpy()
    expected = toy.X[processes[0].val_idx].toarray()
    assert sorted(map(tuple, found)) == sorted(map(tuple, expected))
    held_out = torch.cat([batch["X"] for batch in processes[2].held_out()])
    np.testing.assert_array_equal(held_out, expected)


def test_processes_hide_different_genes():
    drawn = []
    for rank in (0, 0, 1):
        torch.manual_seed(7)
        own = _OwnProcess()
        trainer, plan = SimpleNamespace(global_rank=rank), SimpleNamespace(device=None)
        own.on_train_start(trainer, plan)
        drawn.append(torch.rand(50))
        own.on_train_end(trainer, plan)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


# --------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize("devices", [3, "3", [0, 2], "0,2"])
def test_more_gpus_than_there_are(monkeypatch, devices):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=re.escape("torch finds 2 GPUs here: pass at most")):
        check_devices(devices, torch.device("cuda"))


@pytest.mark.parametrize("devices", ["auto", -1, "-1", 2, "2", [0, 1], [1]])
def test_gpus_that_there_are(monkeypatch, devices):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_devices(devices, torch.device("cuda"))


def test_any_number_of_processes_on_the_cpu():
    check_devices(50, torch.device("cpu"))


class Sharded(DDPStrategy):
    """As DeepSpeed's, which is a subclass."""


def two_processes(model, **kwargs):
    model.train(
        accelerator="cpu", devices=2, check_labels=False, enable_progress_bar=False, **kwargs
    )


@pytest.fixture
def untrained(toy):
    tosica.TOSICA.setup_anndata(toy, labels_key="kind")
    return tosica.TOSICA(toy, embed_dim=8, n_heads=2, n_layers=1)


def test_other_strategies_are_refused(untrained):
    with pytest.raises(ValueError, match=r"not Sharded: pass strategy='ddp', "):
        two_processes(untrained, strategy=Sharded())
    assert not untrained.is_trained_


def test_spawned_children_get_no_compiled_code(untrained, monkeypatch):
    encoder = untrained.module.encoder
    monkeypatch.setattr(encoder, "forward", lambda tokens: type(encoder).forward(encoder, tokens))
    with pytest.raises(ValueError, match="compile=True does not go with children"):
        two_processes(untrained, strategy="ddp_spawn")


def test_scripts_need_a_seed(untrained):
    scvi.settings.seed = None
    with pytest.raises(ValueError, match=re.escape("set scvi.settings.seed, such as to 0")):
        two_processes(untrained, strategy="ddp")


# --------------------------------------------------------------------------- two processes

SCRIPT = """
import json, sys
import scvi, torch, tosica

def main(strategy, folder):
    scvi.settings.seed = 0
    cells = tosica.datasets.synthetic(300, 600, n_labels=4, n_gene_sets=12)
    tosica.pp.build_mask(cells)
    tosica.TOSICA.setup_anndata(cells, labels_key="cell_type")
    model = tosica.TOSICA(cells, embed_dim=8, n_heads=2, n_layers=1, max_gene_sets=10)
    # Without a refit, children start once: each start imports everything anew.
    several = {"batch_size": 32, "refit": strategy not in ("ddp_spawn", "one, no refit")}
    if not strategy.startswith("one"):
        several |= {"batch_size": 16, "devices": 2, "strategy": strategy}
    model.train(
        max_epochs=3, accelerator="cpu", enable_progress_bar=False, early_stopping=True,
        plan_kwargs={"gene_dropout": 0, "token_dropout": 0}, **several,
    )
    # Not in all processes, but all may call it.
    model.save(f"{folder}/{strategy}")
    rank = model.trainer.global_rank
    found = {
        "history": {key: values[key].tolist() for key, values in model.history_.items()},
        "epochs": model.trainer.current_epoch,
    }
    torch.save(model.module.state_dict(), f"{folder}/{strategy}_{rank}.pt")
    with open(f"{folder}/{strategy}_{rank}.json", "w") as file:
        json.dump(found, file)

if __name__ == "__main__":
    folder, *strategies = sys.argv[1:]
    for strategy in strategies:
        main(strategy, folder)
"""


def run_here(folder, *names):
    """Train in one process: this one, because a new one imports everything anew."""
    namespace = {"__name__": "script"}
    exec(SCRIPT, namespace)
    for name in names:
        namespace["main"](name, folder)


def run(folder, *strategies):
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, folder, *strategies],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def results(folder, name):
    state = torch.load(folder / f"{name}.pt", weights_only=True)
    return state, json.loads((folder / f"{name}.json").read_text())


def check_as_one(folder, name, expected="one_0"):
    state, found = results(folder, name)
    expected_state, of_one = results(folder, expected)
    assert found["epochs"] == of_one["epochs"] == 3
    for key, values in of_one["history"].items():
        assert len(values) == 3
        np.testing.assert_allclose(found["history"][key], values, rtol=1e-4)
    assert list(found["history"]) == list(of_one["history"])
    for key, values in expected_state.items():
        torch.testing.assert_close(state[key], values, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_two_scripts_train_as_one_process(tmp_path):
    run_here(tmp_path, "one")
    run(tmp_path, "ddp")
    for rank in range(2):
        check_as_one(tmp_path, f"ddp_{rank}")
    of_first, of_second = (results(tmp_path, f"ddp_{rank}")[0] for rank in range(2))
    assert all(torch.equal(of_first[key], of_second[key]) for key in of_first)
    loaded = tosica.TOSICA.load(tmp_path / "ddp").module.state_dict()
    assert all(torch.equal(of_first[key], loaded[key]) for key in of_first)
    # Such as a log.
    assert not (tmp_path / "lightning_logs").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork")
def test_two_children_train_as_one_process(tmp_path):
    run_here(tmp_path, "one", "one, no refit")
    run(tmp_path, "ddp_fork", "ddp_spawn")
    check_as_one(tmp_path, "ddp_fork_0")
    check_as_one(tmp_path, "ddp_spawn_0", "one, no refit_0")
    assert not (tmp_path / "lightning_logs").exists()
