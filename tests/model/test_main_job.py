"""The main job from end to end: an annotated reference in, readable labels out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pytest
import scanpy as sc
import scvi

import tosica

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anndata import AnnData

KINDS = {
    "CD14+ Monocyte": "monocyte",
    "CD19+ B": "B cell",
    "CD34+": "progenitor",
    "CD56+ NK": "NK cell",
    "Dendritic": "dendritic cell",
}


class Job(NamedTuple):
    """What is left when the job is done."""

    model: tosica.TOSICA
    folder: Path
    reference: AnnData
    query: AnnData
    untouched: AnnData


def run(
    reference: AnnData, query: AnnData, folder: Path, *, batch_key: str, max_gene_sets: int, max_epochs: int, lr: float
) -> Job:
    """What the package promises to its user, line by line."""
    scvi.settings.seed = 0
    untouched = query.copy()
    tosica.pp.build_mask(reference, gene_sets="human_gobp", max_gene_sets=max_gene_sets)
    tosica.TOSICA.setup_anndata(reference, labels_key="cell_type", batch_key=batch_key)
    model = tosica.TOSICA(reference, embed_dim=16)
    model.train(max_epochs=max_epochs, accelerator="cpu", enable_progress_bar=False, plan_kwargs={"lr": lr})
    model.save(folder)

    model = tosica.TOSICA.load(folder, accelerator="cpu")
    model.annotate(query)
    return Job(model, folder, reference, query, untouched)


@pytest.fixture(scope="module")
def pbmc_job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    adata.obs["cell_type"] = [KINDS.get(name, "T cell") for name in adata.obs["bulk_labels"]]
    held = np.arange(adata.n_obs) % 4 == 0
    folder = tmp_path_factory.mktemp("pbmc") / "model"
    return run(
        adata[~held].copy(), adata[held].copy(), folder, batch_key="phase", max_gene_sets=60, max_epochs=20, lr=1e-2
    )


@pytest.fixture(scope="module")
def kang_job(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    adata = sc.read_h5ad(shared / "kang_pbmc.h5ad")
    adata.obs["cell_type"] = adata.obs["cluster_id"]
    stimulated = (adata.obs["group_id"] == "stim").to_numpy()
    folder = tmp_path_factory.mktemp("kang") / "model"
    return run(
        adata[~stimulated].copy(),
        adata[stimulated].copy(),
        folder,
        batch_key="sample_id",
        max_gene_sets=100,
        max_epochs=30,
        lr=3e-3,
    )


@pytest.fixture(params=["pbmc", pytest.param("kang", marks=pytest.mark.slow)])
def job(request: pytest.FixtureRequest) -> Job:
    found: Job = request.getfixturevalue(f"{request.param}_job")
    return found._replace(query=found.query.copy())


def test_labels_are_right(job):
    hit = job.query.obs["tosica_prediction"].astype(str) == job.query.obs["cell_type"].astype(str)
    assert hit.mean() > 0.75
    assert job.query.obs["tosica_probability"].corr(hit.astype(float)) > 0.2


def test_every_key_is_there_and_nothing_else_changed(job, contents: Callable, new_keys: Callable):
    assert new_keys(contents(job.untouched), contents(job.query)) == {
        "obs/tosica_prediction",
        "obs/tosica_probability",
        "obs/tosica_novelty",
        "obs/tosica_novelty_pvalue",
        "obsm/X_tosica",
        "uns/tosica/cutoff",
        "uns/tosica/gene_sets",
        "uns/tosica/labels",
        "uns/tosica/model",
        "uns/tosica/version",
        "uns/tosica_prediction_colors",
    }
    n_gene_sets = len(job.query.uns["tosica"]["gene_sets"])
    assert job.query.obsm["X_tosica"].shape == (job.query.n_obs, n_gene_sets)


def test_tenth_of_the_genes_missing(pbmc_job):
    job = pbmc_job
    expected = job.query.obs["tosica_prediction"].to_numpy()
    genes = job.model.get_var_names()
    for seed in range(3):
        gone = np.random.default_rng(seed).choice(genes, len(genes) // 10, replace=False)
        fewer = job.untouched[:, ~job.untouched.var_names.isin(gone)].copy()
        with pytest.warns(UserWarning, match="the network sees the missing ones as zero"):
            job.model.annotate(fewer)
        assert (fewer.obs["tosica_prediction"].to_numpy() == expected).mean() >= 0.95


@pytest.mark.slow
def test_same_labels_in_another_process(pbmc_job, tmp_path):
    pbmc_job.untouched.write_h5ad(tmp_path / "query.h5ad")
    code = """
import sys, anndata, numpy, tosica
folder, query, out = sys.argv[1:]
model = tosica.TOSICA.load(folder, accelerator="cpu")
adata = anndata.read_h5ad(query)
numpy.savez(
    out,
    labels=model.predict(adata).astype(str),
    probabilities=model.predict(adata, soft=True).to_numpy(),
    attention=model.get_attention(adata).to_numpy(),
    fingerprint=model.fingerprint,
)
"""
    out = tmp_path / "found.npz"
    arguments = [str(pbmc_job.folder), str(tmp_path / "query.h5ad"), str(out)]
    subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    model, query = pbmc_job.model, pbmc_job.untouched
    with np.load(out) as found:
        assert found["labels"].tolist() == model.predict(query).tolist()
        # The other process may sum in another order, with another number of threads.
        here = model.predict(query, soft=True).to_numpy()
        np.testing.assert_allclose(found["probabilities"], here, atol=1e-6)
        here = model.get_attention(query).to_numpy()
        np.testing.assert_allclose(found["attention"], here, atol=1e-6)
        assert found["fingerprint"] == model.fingerprint


def test_folder_holds_the_model_and_no_cells(pbmc_job):
    assert [path.name for path in pbmc_job.folder.iterdir()] == ["model.pt"]
    assert (pbmc_job.folder / "model.pt").stat().st_size < 1_000_000
    held = (pbmc_job.folder / "model.pt").read_bytes()
    for name in pbmc_job.reference.obs_names[:50]:
        assert name.encode() not in held


@pytest.mark.slow  # numba compiles the UMAP first
def test_scanpy_goes_on_with_it(pbmc_job):
    query = pbmc_job.query.copy()
    sc.pp.neighbors(query, use_rep="X_tosica")
    sc.tl.umap(query)
    sc.pl.umap(query, color=["tosica_prediction", "tosica_probability"], show=False)
    plt.close("all")
    sc.tl.leiden(query, flavor="igraph", n_iterations=2, directed=False)
    assert query.obs["leiden"].nunique() > 1
    sc.tl.rank_genes_groups(query, "tosica_prediction")
    ranked = query.uns["rank_genes_groups"]["names"]["B cell"]
    assert "CD79A" in ranked[:5].tolist()


def test_attention_can_be_read(pbmc_job):
    query = pbmc_job.query.copy()
    tosica.tl.rank_gene_sets(query, groupby="tosica_prediction")
    tosica.pl.gene_set_heatmap(query, groupby="tosica_prediction", show=False)
    plt.close("all")
    table = tosica.get.rank_gene_sets_df(query, group="B cell")
    assert set(table["gene_set"]) <= set(pbmc_job.model.gene_sets)


def test_about_the_model_can_be_written_as_json(pbmc_job):
    about = pbmc_job.query.uns["tosica"]
    plain = {key: getattr(value, "tolist", lambda v=value: v)() for key, value in about.items()}
    assert json.loads(json.dumps(plain)) == plain
