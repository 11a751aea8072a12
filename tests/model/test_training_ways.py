"""Trainings that begin or run in another way: a network's weights, a card, threads, processes."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scvi
import torch
from _cells import TOY_SETS
from numpy.testing import assert_allclose

import tosica
from tosica.module import MaskedEmbedding

# --------------------------------------------------------------------------- a network's weights


@pytest.fixture
def ref(toy):
    """A reference with a mask from a network, one of whose regulators has no weights."""
    rng = np.random.default_rng(0)
    rows = [
        (name, gene, rng.choice([-1.0, 1.0]) * 2)
        for name, genes in TOY_SETS.items()
        for gene in genes
    ]
    network = pd.DataFrame(rows, columns=["source", "target", "weight"])
    network.loc[network["source"] == "gamma", "weight"] = np.nan
    tosica.pp.build_mask(toy, network)
    tosica.TOSICA.setup_anndata(toy, labels_key="kind")
    return toy


@pytest.mark.parametrize("n_sets", [3, 4])
def test_sets_with_weights_start_as_weighted_sums(ref, n_sets):
    model = tosica.TOSICA(ref, embed_dim=16, max_gene_sets=n_sets)
    embedding = model.module.embedding
    random_weights = embedding.weight.detach().clone()
    model.start_from_network()
    weights = tosica.get.network_weights(ref).toarray()
    indptr = embedding.indptr.numpy()
    genes = embedding.genes.numpy()
    columns = ref.uns["tosica_mask"]["gene_sets"].tolist()
    # Those that were chosen, and the genes that none of them holds.
    assert sum(name in columns for name in model.gene_sets) == n_sets
    assert any(name.startswith("module: ") for name in model.gene_sets)
    for p, name in enumerate(model.gene_sets):
        inside = slice(indptr[p], indptr[p + 1])
        started = embedding.weight.detach()[inside]
        if name == "gamma" or name.startswith("module: "):
            assert torch.equal(started, random_weights[inside])
            continue
        expected = weights[genes[inside], columns.index(name)]
        # One direction, times the weights.
        direction = started.numpy() / expected[:, None]
        assert_allclose(
            direction, np.broadcast_to(direction[:1], direction.shape), rtol=1e-4
        )
        # As large as what was drawn: a third is the variance of numbers between -1 and 1.
        assert started.square().sum(0).mean().item() == pytest.approx(1 / 3, abs=0.25)


def test_the_networks_weights_come_before_the_regressions(
    ref, toy_query, save_and_load, monkeypatch
):
    model = tosica.TOSICA(ref, embed_dim=16)
    model.start_from_network()
    monkeypatch.setattr(MaskedEmbedding, "init_from_linear", None)
    model.train(max_epochs=1, refit=False)
    loaded = save_and_load(model)
    assert list(loaded.predict(toy_query)) == list(model.predict(toy_query))
    with pytest.raises(ValueError, match=r"^The model was trained already"):
        model.start_from_network()
    with pytest.raises(ValueError, match=r"^The model has no reference to train on"):
        loaded.start_from_network()


def test_a_loaded_model_still_starts_from_the_network(ref, tmp_path, monkeypatch):
    model = tosica.TOSICA(ref, embed_dim=16)
    model.start_from_network()
    model.save(tmp_path / "model")
    loaded = tosica.TOSICA.load(tmp_path / "model", ref)
    monkeypatch.setattr(MaskedEmbedding, "init_from_linear", None)
    loaded.train(max_epochs=1, refit=False)
    assert loaded.is_trained_


def test_mask_without_weights(toy):
    tosica.TOSICA.setup_anndata(toy, labels_key="kind")
    with pytest.raises(KeyError, match="was built from gene sets without weights"):
        tosica.TOSICA(toy, embed_dim=16).start_from_network()


def test_weights_of_zero_and_none_leave_finite_weights():
    embedding = MaskedEmbedding(
        np.array([0, 2, 4, 6]), np.array([0, 1, 0, 2, 1, 2]), 3, 4
    )
    random_weights = embedding.weight.detach().clone()
    embedding.start_from(
        np.array([0.0, 0.0, np.nan, np.nan, 0.0, 2.0], dtype=np.float32)
    )
    started = embedding.weight.detach()
    assert torch.isfinite(started).all()
    assert torch.equal(started[:4], random_weights[:4])
    assert (started[4] == 0).all()
    assert (started[5] != 0).all()


# --------------------------------------------------------------------------- a card


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_a_card_gives_what_the_processor_gives(toy, toy_query, train, precision):
    model = train(toy, accelerator="gpu", precision=precision)
    on_card = model.annotate(toy_query, probabilities=True, copy=True)
    model.to_device("cpu")
    expected = model.annotate(toy_query, probabilities=True, copy=True)
    for name in expected.obsm:
        assert_allclose(on_card.obsm[name], expected.obsm[name], rtol=0, atol=1e-5)


# --------------------------------------------------------------------------- threads


@pytest.fixture
def three_threads():
    """Called with a number, it is the number of torch's threads."""
    n_threads = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(n_threads)


def test_the_number_of_threads_changes_nothing(
    pbmc_ref, pbmc_query, pbmc_model, three_threads
):
    """Neither weights nor results, and is left as it was."""
    states = []
    results = []
    for n_threads in (1, 3):
        three_threads(n_threads)
        scvi.settings.seed = 0
        tosica.TOSICA.setup_anndata(pbmc_ref, labels_key="bulk_labels")
        model = tosica.TOSICA(pbmc_ref, embed_dim=8, n_heads=2, max_gene_sets=10)
        model.train(max_epochs=1, check_labels=False, refit=False)
        states.append(model.module.state_dict())
        query = pbmc_query.copy()
        pbmc_model.annotate(query, probabilities=True)
        tosica.tl.attribute(query, pbmc_model, cells=True)
        tosica.tl.faithfulness(query, pbmc_model)
        tosica.tl.rank_gene_sets(query, "tosica_prediction")
        assert torch.get_num_threads() == n_threads
        results.append(query)
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert results[0].obs.equals(results[1].obs)
    for key, values in results[0].obsm.items():
        assert np.array_equal(np.asarray(values), np.asarray(results[1].obsm[key]))


# --------------------------------------------------------------------------- two processes


def test_what_is_for_one_process(toy, tmp_path):
    tosica.TOSICA.setup_anndata(toy, labels_key="kind")
    model = tosica.TOSICA(toy, embed_dim=8, n_heads=2, n_layers=1)

    def train(**kwargs):
        options = {"check_labels": False}
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


SCRIPT = """
import json, sys
import scanpy, scvi, torch, tosica

def main(strategy, folder):
    scvi.settings.seed = 0
    cells = scanpy.datasets.pbmc68k_reduced().raw.to_adata()[:296].copy()
    tosica.pp.build_mask(cells)
    tosica.TOSICA.setup_anndata(cells, labels_key="phase")
    model = tosica.TOSICA(cells, embed_dim=8, n_heads=2, n_layers=1, max_gene_sets=10)
    several = {"batch_size": 32}
    if strategy == "ddp":
        several = {"batch_size": 16, "devices": 2, "strategy": strategy}
    model.train(
        max_epochs=3, accelerator="cpu", early_stopping=True,
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
    command = [sys.executable, script, folder, *strategies]
    options = {"capture_output": True, "text": True}
    done = subprocess.run(command, env=environment, cwd=folder, timeout=240, **options)
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
        state, result = results(tmp_path, f"ddp_{rank}")
        assert result["epochs"] == of_one["epochs"] == 3
        for key, values in state.items():
            torch.testing.assert_close(values, expected[key], atol=1e-4, rtol=1e-4)
        # The first process keeps the history.
        for key, losses in result["history"].items():
            assert_allclose(losses, of_one["history"][key], rtol=1e-4)
        assert bool(result["history"]) is (rank == 0)
    loaded = tosica.TOSICA.load(tmp_path / "ddp").module.state_dict()
    weights = results(tmp_path, "ddp_0")[0]
    assert all(torch.equal(weights[key], loaded[key]) for key in weights)
    # Such as a log.
    assert not (tmp_path / "lightning_logs").exists()
