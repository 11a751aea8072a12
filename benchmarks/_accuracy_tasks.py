"""The tasks of the accuracy benchmark: references and queries.

A new dataset is one entry in `TASKS`, or in `UNSEEN`, which has its own page: a title, and a
function from the folder of the data and a seed to the splits of the task.
"""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING, NamedTuple

import anndata as ad
import mudata
import numpy as np
import pandas as pd
import scanpy as sc
from scipy.sparse import csr_matrix
from sklearn.model_selection import StratifiedKFold, train_test_split

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anndata import AnnData

# Under these names in every split.
LABEL = "label"
COUNTS = "counts"
BATCH = "batch"
# Share of the reference's labels that are wrong in the task with noise.
NOISE = 0.2
# Simulated labels with fewer cells are left out.
MIN_CELLS = 20


class Split(NamedTuple):
    """A reference and a query on the same genes.

    Both have log-normalized expression in ``X``, counts in ``layers["counts"]`` and the truth in
    ``obs["label"]``. Methods must not read the labels of the query.
    """

    reference: AnnData
    query: AnnData


class Task(NamedTuple):
    """Title, whether the query is of the reference's batch, and a function that returns splits."""

    title: str
    within: bool
    splits: Callable[[Path, int], list[Split]]


def prepared(adata: AnnData, labels_key: str, batch_key: str | None = None) -> AnnData:
    """Log-normalize counts, and drop everything that a split does not have."""
    counts = csr_matrix(adata.X, dtype=np.float32)
    cells = ad.AnnData(counts.copy(), layers={COUNTS: counts})
    cells.obs_names = adata.obs_names
    cells.var_names = adata.var_names
    cells.obs[LABEL] = pd.Categorical(adata.obs[labels_key].astype(str))
    cells.obs[BATCH] = "one"
    if batch_key is not None:
        cells.obs[BATCH] = adata.obs[batch_key].astype(str).to_numpy()
    sc.pp.normalize_total(cells, target_sum=1e4)
    sc.pp.log1p(cells)
    del cells.uns["log1p"]
    return cells


def kang(data: Path) -> AnnData:
    """PBMCs of Kang et al. (2018), control and treated with IFN-β."""
    return prepared(ad.read_h5ad(data / "kang_pbmc.h5ad"), "cluster_id", "group_id")


def lung(data: Path) -> AnnData:
    """Three lung cancer cell lines of Tian et al. (2019), CEL-seq2 and Drop-seq, Ensembl IDs."""
    adata = ad.read_h5ad(data / "lungmix_celseq2_dropseq.h5ad")
    return prepared(adata, "cell_line", "protocol")


def pbmc68k(_: Path) -> AnnData:
    """700 PBMCs that come with scanpy, log-normalized; scaled back, their counts are whole."""
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    cells = prepared(adata, "bulk_labels")
    cells.X = csr_matrix(adata.X, dtype=np.float32)
    counts = cells.X.copy()
    counts.data = np.expm1(counts.data)
    smallest = np.minimum.reduceat(counts.data, counts.indptr[:-1])
    counts.data = np.round(counts.data / np.repeat(smallest, np.diff(counts.indptr)))
    cells.layers[COUNTS] = counts
    return cells


def simulated(data: Path, seed: int) -> AnnData:
    """1 500 cells in two batches, simulated by the script beside the data, without rare labels."""
    simulate = runpy.run_path(str(data.parent / "bench" / "simulate.py"))["simulate"]
    cells = prepared(simulate(1500, n_genes=2000, seed=seed), "cell_type", "batch")
    n_cells = cells.obs[LABEL].value_counts()
    frequent = n_cells.index[n_cells >= MIN_CELLS]
    cells = cells[cells.obs[LABEL].isin(frequent)].copy()
    cells.obs[LABEL] = cells.obs[LABEL].cat.remove_unused_categories()
    return cells


def cite(data: Path) -> AnnData:
    """PBMCs of Mimitou et al. (2019): RNA, with labels that come from antibodies."""
    cells = prepared(mudata.read(f"{data / 'cite_pbmc.h5mu'}/rna"), "adt_cluster")
    # Genes in at most two cells are not informative.
    return cells[:, np.asarray((cells.X > 0).sum(0)).ravel() > 2].copy()


def breast(data: Path) -> AnnData:
    """Breast tissue, 20 cells a type: cells (Komen Tissue Bank) and nuclei of five types (GTEx)."""
    return prepared(
        ad.read_h5ad(data / "breast_cells_nuclei.h5ad"), "celltype", "cohort"
    )


def gut(data: Path) -> AnnData:
    """Stomach and intestine of the Mouse Cell Atlas (Han et al., 2018), ten cells a type."""
    return prepared(ad.read_h5ad(data / "mouse_gut.h5ad"), "type", "half")


def across(adata: AnnData, batch: str) -> list[Split]:
    """One batch is the reference, all other batches are the query."""
    is_reference = (adata.obs[BATCH] == batch).to_numpy()
    return [Split(adata[is_reference].copy(), adata[~is_reference].copy())]


def of_known_types(splits: list[Split]) -> list[Split]:
    """Leave out cells of the query whose label the reference lacks."""
    return [
        Split(
            reference,
            query[query.obs[LABEL].isin(reference.obs[LABEL].unique())].copy(),
        )
        for reference, query in splits
    ]


def folds(adata: AnnData, seed: int, n: int = 5) -> list[Split]:
    """Stratified folds, each the query once."""
    kfold = StratifiedKFold(n, shuffle=True, random_state=seed)
    pairs = kfold.split(np.zeros(adata.n_obs), adata.obs[LABEL])
    return [Split(adata[train].copy(), adata[test].copy()) for train, test in pairs]


def few(adata: AnnData, n_obs: int, seed: int) -> list[Split]:
    """A small reference of all batches, stratified by label; all other cells are the query."""
    train, test = train_test_split(
        np.arange(adata.n_obs),
        train_size=n_obs,
        stratify=adata.obs[LABEL],
        random_state=seed,
    )
    return [Split(adata[np.sort(train)].copy(), adata[np.sort(test)].copy())]


def noisy(splits: list[Split], seed: int) -> list[Split]:
    """Give a share of the reference's cells another label."""
    rng = np.random.default_rng(seed)
    for reference, _ in splits:
        labels = reference.obs[LABEL].cat.categories
        codes = reference.obs[LABEL].cat.codes.to_numpy().copy()
        wrong = rng.permutation(len(codes))[: round(NOISE * len(codes))]
        shifts = rng.integers(1, len(labels), len(wrong))
        codes[wrong] = (codes[wrong] + shifts) % len(labels)
        reference.obs[LABEL] = pd.Categorical.from_codes(codes, labels)
    return splits


TASKS: dict[str, Task] = {
    "kang": Task(
        "Kang, control → IFN-β", False, lambda data, seed: across(kang(data), "ctrl")
    ),
    "kang back": Task(
        "Kang, IFN-β → control", False, lambda data, seed: across(kang(data), "stim")
    ),
    "lung": Task(
        "lung, CEL-seq2 → Drop-seq",
        False,
        lambda data, seed: across(lung(data), "sc_celseq2"),
    ),
    "lung back": Task(
        "lung, Drop-seq → CEL-seq2",
        False,
        lambda data, seed: across(lung(data), "sc_dropseq"),
    ),
    "pbmc68k": Task(
        "pbmc68k, 5 folds", True, lambda data, seed: folds(pbmc68k(data), seed)
    ),
    "kang noisy": Task(
        "Kang, control → IFN-β, 20 % wrong labels",
        False,
        lambda data, seed: noisy(across(kang(data), "ctrl"), seed),
    ),
    "kang 50": Task(
        "Kang, 50 cells", True, lambda data, seed: few(kang(data), 50, seed)
    ),
    "kang 200": Task(
        "Kang, 200 cells", True, lambda data, seed: few(kang(data), 200, seed)
    ),
    "kang 750": Task(
        "Kang, 750 cells", True, lambda data, seed: few(kang(data), 750, seed)
    ),
    "breast cells": Task(
        "breast, cells → nuclei",
        False,
        lambda data, seed: across(breast(data), "komentissuebank"),
    ),
    "breast nuclei": Task(
        "breast, nuclei → cells",
        False,
        lambda data, seed: of_known_types(across(breast(data), "gtex")),
    ),
    "gut": Task(
        "mouse gut, 22 types, halves",
        True,
        lambda data, seed: [*across(gut(data), "a"), *across(gut(data), "b")],
    ),
}

# Tasks of the second page. No setting was chosen on the simulated cells. Settings of the linear
# branch were chosen on references that included small ones of the CITE-seq data.
UNSEEN: dict[str, Task] = {
    "simulated": Task(
        "simulated, one batch → the other",
        False,
        lambda data, seed: across(simulated(data, seed), "batch0"),
    ),
    "simulated 200": Task(
        "simulated, 200 cells",
        True,
        lambda data, seed: few(simulated(data, seed), 200, seed),
    ),
    "cite": Task(
        "CITE-seq PBMC, RNA, 250 cells",
        True,
        lambda data, seed: few(cite(data), 250, seed),
    ),
}
