"""Annotations for Seurat: CSV files and an R script."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scvi
from numpy.testing import assert_allclose, assert_array_equal

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
    annotated.obs["mine_novelty"] = 0.5
    annotated.obs["mine_majority_vote"] = annotated.obs["bulk_labels"]
    annotated.obsm["mine_probabilities"] = pd.DataFrame(
        {"a": 0.25, "b": 0.75}, index=annotated.obs_names
    )
    tosica.io.to_seurat(annotated, tmp_path / "new" / "folder", key="mine")
    folder = tmp_path / "new" / "folder"
    metadata = pd.read_csv(folder / "metadata.csv", index_col=0)
    assert metadata.index.tolist() == annotated.obs_names.tolist()
    for column in ("mine_prediction", "mine_novelty", "mine_majority_vote"):
        assert metadata[column].tolist() == annotated.obs[column].tolist()
    assert_allclose(
        metadata["mine_probability"], annotated.obs["mine_probability"], rtol=1e-5
    )
    levels = pd.read_csv(folder / "levels.csv")["mine_prediction"].tolist()
    assert levels == annotated.obs["mine_prediction"].cat.categories.tolist()
    embedding = pd.read_csv(folder / "X_mine.csv", index_col=0)
    assert embedding.columns.tolist() == annotated.uns["mine"]["gene_sets"]
    assert_allclose(embedding, annotated.obsm["X_mine"], rtol=1e-5)
    assert pd.read_csv(folder / "probabilities.csv", index_col=0).columns.tolist() == [
        "a",
        "b",
    ]
    assert pd.read_csv(folder / "X_umap.csv", index_col=0).shape == (700, 2)
    script = (folder / "add_to_seurat.R").read_text()
    assert "X_mine.csv" in script
    assert "@KEY@" not in script


def test_levels_and_confident_answers_are_written(annotated, tmp_path):
    annotated.uns["mine"]["levels"] = ["lineage"]
    columns = [
        "mine_confident",
        "mine_confident_ontology_term_id",
        "mine_confident_probability",
        "mine_prediction_lineage",
        "mine_probability_lineage",
    ]
    for column in columns:
        annotated.obs[column] = 0.5
    tosica.io.to_seurat(annotated, tmp_path, key="mine")
    metadata = pd.read_csv(tmp_path / "metadata.csv", index_col=0)
    assert set(columns) <= set(metadata)


def test_only_its_own_older_tables_are_removed(annotated, tmp_path):
    del annotated.obsm["X_umap"]
    of_others = tmp_path / "X_umap.csv"
    of_others.write_text("of somebody else")
    tosica.io.to_seurat(annotated, tmp_path, key="mine")
    assert of_others.read_text() == "of somebody else"
    tosica.io.to_seurat(annotated, tmp_path, key="mine")
    assert not of_others.exists()  # it would now be taken for a table of these cells


def r(script, *arguments):
    command = ["Rscript", str(Path(__file__).with_name(script)), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_there_and_back(tmp_path):
    if shutil.which("Rscript") is None:
        pytest.skip("needs R")
    ready = "quit(status = !requireNamespace('Seurat', quietly = TRUE))"
    if subprocess.run(
        ["Rscript", "-e", ready], check=False, capture_output=True
    ).returncode:
        pytest.skip("needs Seurat in R")
    r("make.R", tmp_path / "object.rds", tmp_path / "counts.csv")
    adata = tosica.io.read_seurat(tmp_path / "object.rds")
    counts = pd.read_csv(tmp_path / "counts.csv", index_col=0).T
    assert_array_equal(adata.layers["counts"].toarray(), counts)
    assert adata.obs_names.tolist() == counts.index.tolist()
    assert adata.obs["kind"].cat.categories.tolist() == ["T cell", "B cell"]
    assert adata.obs["partly"].isna().sum() == 1
    assert adata.obs["note"].isna().sum() == 45

    names = list(adata.var_names)
    sets = {f"set {i}, of ten": names[10 * i : 10 * (i + 1)] for i in range(12)}
    tosica.pp.build_mask(adata, gene_sets=sets)
    tosica.TOSICA.setup_anndata(adata, labels_key="kind")
    scvi.settings.seed = 0
    model = tosica.TOSICA(adata, embed_dim=8, n_heads=2)
    model.train(max_epochs=40, plan_kwargs={"lr": 1e-2})
    model.annotate(adata)
    assert adata.obs["tosica_prediction"].cat.categories.tolist() == [
        "T cell",
        "B cell",
    ]
    tosica.io.to_seurat(adata, tmp_path / "annotation")
    r("take_back.R", tmp_path / "object.rds", tmp_path / "annotation")


@pytest.mark.parametrize("form", ["array of three dimensions", "table"])
def test_a_umap_of_another_form_is_written(annotated, tmp_path, form):
    umap = np.random.default_rng(0).random((annotated.n_obs, 3))
    if form == "table":
        umap = pd.DataFrame(umap[:, :2], index=annotated.obs_names)
    annotated.obsm["X_umap"] = umap
    tosica.io.to_seurat(annotated, tmp_path / "folder", key="mine")
    written = pd.read_csv(tmp_path / "folder" / "X_umap.csv", index_col=0)
    assert_allclose(written, umap, rtol=1e-5)
