"""Training in several processes makes the model of one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import scvi
import torch

import tosica

# --------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize("devices", [0, "two", [0, 0], "1.5"])
def test_devices_that_there_are_not(toy, devices):
    tosica.TOSICA.setup_anndata(toy, labels_key="kind")
    model = tosica.TOSICA(toy, embed_dim=8, n_heads=2, n_layers=1)
    with pytest.raises(ValueError, match=f"devices={re.escape(repr(devices))} cannot be used here"):
        model.train(accelerator="cpu", devices=devices)


def test_what_is_for_one_process(toy, tmp_path):
    tosica.TOSICA.setup_anndata(toy, labels_key="kind")
    model = tosica.TOSICA(toy, embed_dim=8, n_heads=2, n_layers=1)

    def train(**kwargs):
        options = {"check_labels": False, "enable_progress_bar": False}
        model.train(accelerator="cpu", devices=2, **options, **kwargs)

    for strategy in ("ddp_spawn", "fsdp"):
        with pytest.raises(ValueError, match="strategy"):
            train(strategy=strategy)
    with pytest.raises(ValueError, match="checkpoint_dir"):
        train(strategy="ddp", checkpoint_dir=tmp_path)
    scvi.settings.seed = None
    with pytest.raises(ValueError, match=re.escape("scvi.settings.seed")):
        train(strategy="ddp")
    assert not model.is_trained_


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
    several = {"batch_size": 32}
    if strategy == "ddp":
        several = {"batch_size": 16, "devices": 2, "strategy": strategy}
    model.train(
        max_epochs=3, accelerator="cpu", enable_progress_bar=False, early_stopping=True,
        plan_kwargs={"gene_dropout": 0, "token_dropout": 0}, **several,
    )
    # Not in all processes, but all may call it.
    model.save(f"{folder}/{strategy}")
    rank = model.trainer.global_rank
    history = {key: values[key].tolist() for key, values in model.history_.items()}
    found = {"history": history, "epochs": model.trainer.current_epoch}
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


@pytest.mark.slow
def test_two_scripts_train_as_one_process(tmp_path):
    run_here(tmp_path, "one")
    run(tmp_path, "ddp")
    expected, of_one = results(tmp_path, "one_0")
    for rank in range(2):
        state, found = results(tmp_path, f"ddp_{rank}")
        assert found["epochs"] == of_one["epochs"] == 3
        for key, values in state.items():
            torch.testing.assert_close(values, expected[key], atol=1e-4, rtol=1e-4)
        # The first process keeps the history.
        for key, losses in found["history"].items():
            np.testing.assert_allclose(losses, of_one["history"][key], rtol=1e-4)
        assert bool(found["history"]) is (rank == 0)
    loaded = tosica.TOSICA.load(tmp_path / "ddp").module.state_dict()
    first = results(tmp_path, "ddp_0")[0]
    assert all(torch.equal(first[key], loaded[key]) for key in first)
    # Such as a log.
    assert not (tmp_path / "lightning_logs").exists()
