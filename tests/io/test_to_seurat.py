"""Annotations handed back to Seurat: plain files, and a script that R runs."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
import scanpy as sc

import tosica


@pytest.fixture
def annotated():
    adata = sc.datasets.pbmc68k_reduced()
    rng = np.random.default_rng(0)
    adata.obs["mine_prediction"] = adata.obs["bulk_labels"]
    adata.obs["mine_probability"] = rng.random(adata.n_obs).astype(np.float32)
    adata.obsm["X_mine"] = rng.random((adata.n_obs, 3)).astype(np.float32)
    adata.uns["mine"] = {"gene_sets": ["first", "second, with a comma", "third"]}
    return adata


def test_the_files_hold_the_annotation(annotated, tmp_path):
    annotated.obsm["mine_probabilities"] = pd.DataFrame(
        {"a": 0.25, "b": 0.75}, index=annotated.obs_names
    )
    tosica.io.to_seurat(annotated, tmp_path / "new" / "folder", key="mine")
    folder = tmp_path / "new" / "folder"
    metadata = pd.read_csv(folder / "metadata.csv", index_col=0)
    assert metadata.index.tolist() == annotated.obs_names.tolist()
    assert metadata["mine_prediction"].tolist() == annotated.obs["mine_prediction"].tolist()
    np.testing.assert_allclose(
        metadata["mine_probability"], annotated.obs["mine_probability"], rtol=1e-5
    )
    levels = pd.read_csv(folder / "levels.csv")["mine_prediction"].tolist()
    assert levels == annotated.obs["mine_prediction"].cat.categories.tolist()
    embedding = pd.read_csv(folder / "X_mine.csv", index_col=0)
    assert embedding.columns.tolist() == annotated.uns["mine"]["gene_sets"]
    np.testing.assert_allclose(embedding, annotated.obsm["X_mine"], rtol=1e-5)
    assert pd.read_csv(folder / "probabilities.csv", index_col=0).columns.tolist() == ["a", "b"]
    assert pd.read_csv(folder / "X_umap.csv", index_col=0).shape == (700, 2)
    script = (folder / "add_to_seurat.R").read_text()
    assert "X_mine.csv" in script
    assert "@KEY@" not in script


def test_novelty_goes_along(annotated, tmp_path):
    annotated.obs["mine_novelty"] = 0.5
    tosica.io.to_seurat(annotated, tmp_path, key="mine")
    assert (pd.read_csv(tmp_path / "metadata.csv")["mine_novelty"] == 0.5).all()


def test_not_annotated(tmp_path):
    adata = sc.datasets.pbmc68k_reduced()
    with pytest.raises(KeyError, match=r"no obs\['tosica_prediction'\].*call model.annotate"):
        tosica.io.to_seurat(adata, tmp_path / "none")
    assert not (tmp_path / "none").exists()


_ROUND_TRIP = """
suppressPackageStartupMessages(library(Seurat))
arguments <- commandArgs(TRUE)
object <- readRDS(arguments[1])
source(file.path(arguments[2], "add_to_seurat.R"))
object <- add_tosica(object, arguments[2])
expected <- read.csv(file.path(arguments[2], "metadata.csv"), row.names = 1)
stopifnot(identical(as.character(object$tosica_prediction), expected[colnames(object), 1]))
embedding <- read.csv(file.path(arguments[2], "X_tosica.csv"), row.names = 1)
stopifnot(all.equal(Embeddings(object, "tosica")[, 1], embedding[colnames(object), 1],
                    check.attributes = FALSE))
pdf(NULL)
print(DimPlot(object, reduction = "tosica", group.by = "tosica_prediction"))
"""


def test_r_takes_it(shared, tmp_path):
    if shutil.which("Rscript") is None:
        pytest.skip("needs R")
    ready = "quit(status = !requireNamespace('Seurat', quietly = TRUE))"
    if subprocess.run(["Rscript", "-e", ready], check=False, capture_output=True).returncode:
        pytest.skip("needs Seurat in R")
    path = shared / "seurat" / "kang_seurat.rds"
    adata = tosica.io.read_seurat(path)
    adata.obs["tosica_prediction"] = adata.obs["cluster_id"]
    adata.obs["tosica_probability"] = 0.9
    adata.obsm["X_tosica"] = adata.obsm["X_pca"]
    adata.uns["tosica"] = {"gene_sets": [f"set {i}" for i in range(30)]}
    tosica.io.to_seurat(adata, tmp_path)
    (tmp_path / "round_trip.R").write_text(_ROUND_TRIP)
    done = subprocess.run(
        ["Rscript", str(tmp_path / "round_trip.R"), str(path), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
