"""Accuracy and embeddings where the reference has several batches.

``python -m benchmarks.batches FOLDER`` from the repository's root, with the files named in
``_accuracy_tasks.py`` in that folder and ``benchmarks/requirements.txt`` installed, writes
``batches.json``. An interrupted run continues where it
stopped; ``--again METHOD`` repeats a method.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scanpy as sc
import scvi

from benchmarks._accuracy_methods import METHODS, quietly
from benchmarks._accuracy_tasks import (
    BATCH,
    COUNTS,
    LABEL,
    Split,
    few,
    kang,
    lung,
    of_known_types,
    prepared,
)
from benchmarks._models import train_default
from benchmarks._results import (
    load,
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)
from benchmarks._synthetic import synthetic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from anndata import AnnData

# Cells of a reference of both conditions.
N_REFERENCE = 400
METHOD_NAMES = ("tosica", "celltypist", "logistic", "svm")


def lacking(adata: AnnData, batch: str) -> Iterator[tuple[str, Split]]:
    """Each label of a batch in turn is the query, all other cells are the reference."""
    for label in adata.obs[LABEL].cat.categories:
        is_query = (adata.obs[BATCH] == batch) & (adata.obs[LABEL] == label)
        is_query = is_query.to_numpy()
        if is_query.any():
            split = Split(adata[~is_query].copy(), adata[is_query].copy())
            yield f"{label}, {batch}", split


def small_reference(adata: AnnData) -> Iterator[tuple[str, Split]]:
    """Some cells of all batches are the reference."""
    yield f"{N_REFERENCE} cells", few(adata, N_REFERENCE, 0)[0]


def last_batch(adata: AnnData) -> Iterator[tuple[str, Split]]:
    """The last batch is the query."""
    batch = adata.obs[BATCH].max()
    is_query = (adata.obs[BATCH] == batch).to_numpy()
    split = Split(adata[~is_query].copy(), adata[is_query].copy())
    yield batch, of_known_types([split])[0]


def made_up(_: Path) -> AnnData:
    """Four batches of simulated cells, each with its own effects on every gene."""
    adata = synthetic(1500, 1200, n_batches=4, batch_effect=0.5, seed=3)
    common = adata.obs["cell_type"].value_counts()
    adata = adata[adata.obs["cell_type"].isin(common.index[common >= 20])]
    return prepared(adata, "cell_type", "batch")


TASKS: dict[
    str,
    tuple[
        str, Callable[[Path], AnnData], Callable[[AnnData], Iterator[tuple[str, Split]]]
    ],
] = {
    # One direction only, to limit the time.
    "lung lacking": (
        "lung, cell line known from CEL-seq2 only",
        lung,
        partial(lacking, batch="sc_dropseq"),
    ),
    "kang whole": ("Kang, 400 cells of both conditions", kang, small_reference),
    "made up": ("simulated, fourth batch", made_up, last_batch),
}


def share_right(split: Split, method: str) -> float:
    """Share of the query's cells that a method labels correctly."""
    run = METHODS[method][1]
    probabilities = quietly(run, split.reference.copy(), split.query, 0)
    names = probabilities.columns.astype(str).to_numpy()
    labels = names[probabilities.to_numpy().argmax(1)]
    return float((labels == split.query.obs[LABEL].astype(str)).mean())


def embeddings(adata: AnnData) -> dict[str, dict[str, float]]:
    """Scores of scib-metrics for embeddings of the half of the cells that is not the reference."""
    import harmonypy
    from scib_metrics.benchmark import Benchmarker

    reference, query = few(adata, adata.n_obs // 2, 0)[0]
    cells = adata.copy()
    sc.pp.pca(cells, n_comps=50, random_state=0)
    # scanpy's wrapper transposes the result of harmonypy 2.
    corrected = harmonypy.run_harmony(
        cells.obsm["X_pca"], cells.obs, BATCH, verbose=False
    )
    cells.obsm["X_pca_harmony"] = np.asarray(corrected.Z_corr)
    scvi.settings.seed = 0
    scvi.model.SCVI.setup_anndata(cells, layer=COUNTS, batch_key=BATCH)
    unsupervised = scvi.model.SCVI(cells, n_layers=2, n_latent=30, gene_likelihood="nb")
    unsupervised.train(accelerator="cpu", enable_progress_bar=False)
    cells.obsm["scVI"] = unsupervised.get_latent_representation()
    query_cells = cells[query.obs_names]
    query.obsm["PCA"] = query_cells.obsm["X_pca"]
    query.obsm["Harmony"] = query_cells.obsm["X_pca_harmony"]
    query.obsm["scVI"] = query_cells.obsm["scVI"]
    model = train_default(reference)
    query.obsm["X_tosica"] = model.get_attention(query).to_numpy()
    query.obsm["class token"] = model.get_latent_representation(query)
    keys = list(query.obsm)
    metrics = Benchmarker(
        query,
        BATCH,
        LABEL,
        keys,
        pre_integrated_embedding_obsm_key="PCA",
        progress_bar=False,
    )
    metrics.benchmark()
    scores = metrics.get_results().drop(index="Metric Type").astype(float)
    return {key: scores.loc[key].to_dict() for key in keys}


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    runs = pd.DataFrame(result["runs"])
    methods = [name for name in METHOD_NAMES if name in set(runs["method"])]
    lines = [
        "# Batches of the reference",
        "",
        "`python -m benchmarks.batches`, one seed: shares of cells with the right label. In the first task, each",
        "label of one batch in turn is left out of the reference, and its cells are the query. In the others,",
        "every batch has every type.",
        "",
    ]
    shares = runs.groupby(["method", "task"])["right"].mean()
    tasks = [task for task in TASKS if task in set(runs["task"])]
    rows = []
    for method in methods:
        row = [f"{shares[method, task]:.3f}" for task in tasks]
        rows.append([METHODS[method][0], *row])
    lines += [*table(["", *(TASKS[task][0] for task in tasks)], rows), ""]
    scores = pd.DataFrame(result["embeddings"]).T
    if len(scores):
        scores = scores[["Batch correction", "Bio conservation", "Total"]]
        lines += [
            "Scores of embeddings by scib-metrics, where 1 is best, on Kang, both conditions. Half of the cells",
            "are tosica's reference, and embeddings of the other half are scored. PCA, Harmony and scVI use all",
            "cells and no labels; tosica knows the labels, which raises its bio conservation.",
            "",
            *table(
                ["", *scores.columns],
                [
                    [name, *(f"{value:.2f}" for value in row)]
                    for name, row in scores.iterrows()
                ],
            ),
            "",
        ]
    lines += version_lines(result)
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run missing runs, and write the tables after every task."""
    parser = make_parser(__doc__)
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=METHOD_NAMES)
    parser.add_argument("--again", nargs="+", choices=METHOD_NAMES, default=[])
    parser.add_argument(
        "--embeddings", action=argparse.BooleanOptionalAction, default=True
    )
    options = parser.parse_args(arguments)
    quiet()
    result = {"embeddings": {}} | load(options.out, "batches")
    packages = ["celltypist"] if "celltypist" in options.methods else []
    if options.embeddings:
        packages += ["scib-metrics", "harmonypy"]
    result["versions"] = result.get("versions", {}) | versions(*packages)
    runs = {(run["task"], run["split"], run["method"]): run for run in result["runs"]}
    for task in options.tasks:
        _, read_cells, make_splits = TASKS[task]
        for name, split in make_splits(read_cells(options.data)):
            for method in dict.fromkeys([*options.methods, *options.again]):
                run = runs.get((task, name, method))
                if run is None:
                    run = {"task": task, "split": name, "method": method}
                    run["right"] = share_right(split, method)
                    result["runs"].append(run)
                elif method in options.again:
                    run["right"] = share_right(split, method)
            write(options.out, "batches", result, report(result))
    if options.embeddings and not result["embeddings"]:
        result["embeddings"] = embeddings(kang(options.data))
        write(options.out, "batches", result, report(result))


if __name__ == "__main__":
    main()
