"""Accuracy and embeddings where the reference has several batches.

``python -m benchmarks.batches FOLDER`` from the repository's root, with the files named in
``_accuracy_tasks.py`` in that folder and ``benchmarks/requirements.txt`` installed, writes
``batches.json`` and its page. An interrupted run continues where it
stopped; ``--again METHOD`` repeats a method.
"""

from __future__ import annotations

import argparse
import json
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scanpy as sc
import scvi

import tosica
from benchmarks._accuracy_methods import METHODS, quietly
from benchmarks._accuracy_tasks import (
    BATCH,
    COUNTS,
    LABEL,
    Split,
    few,
    kang,
    lung,
    prepared,
)
from benchmarks._results import table, version_lines, versions, write
from benchmarks._synthetic import synthetic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anndata import AnnData

METHOD_NAMES = ("tosica", "celltypist", "logistic", "svm")


def lacking(adata: AnnData, only: str | None = None) -> Iterator[tuple[str, Split]]:
    """Each label of a batch in turn is the query, all other cells are the reference."""
    for batch in np.unique(adata.obs[BATCH]) if only is None else [only]:
        for label in adata.obs[LABEL].cat.categories:
            new = ((adata.obs[BATCH] == batch) & (adata.obs[LABEL] == label)).to_numpy()
            if new.any():
                yield f"{label}, {batch}", Split(adata[~new].copy(), adata[new].copy())


def whole(adata: AnnData) -> Iterator[tuple[str, Split]]:
    """Two batches are both in the reference; of more batches, the last one is the query."""
    batches = np.unique(adata.obs[BATCH])
    if len(batches) == 2:
        yield "400 cells", few(adata, 400, 0)[0]
    else:
        new = (adata.obs[BATCH] == batches[-1]).to_numpy()
        known = adata.obs[LABEL].isin(adata.obs[LABEL][~new]).to_numpy()
        yield batches[-1], Split(adata[~new].copy(), adata[new & known].copy())


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
        partial(lacking, only="sc_dropseq"),
    ),
    "kang whole": ("Kang, 400 cells of both conditions", kang, whole),
    "made up": ("simulated, fourth batch", made_up, whole),
}


def trained(reference: AnnData) -> tosica.TOSICA:
    """A model with defaults."""
    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
    scvi.settings.seed = 0
    model = tosica.TOSICA(reference)
    model.train(enable_progress_bar=False, accelerator="cpu")
    return model


def right(split: Split, method: str) -> float:
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
    both = adata.copy()
    sc.pp.pca(both, n_comps=50, random_state=0)
    # scanpy's wrapper transposes the result of harmonypy 2.
    corrected = harmonypy.run_harmony(
        both.obsm["X_pca"], both.obs, BATCH, verbose=False
    )
    both.obsm["X_pca_harmony"] = np.asarray(corrected.Z_corr)
    scvi.settings.seed = 0
    scvi.model.SCVI.setup_anndata(both, layer=COUNTS, batch_key=BATCH)
    unsupervised = scvi.model.SCVI(both, n_layers=2, n_latent=30, gene_likelihood="nb")
    unsupervised.train(accelerator="cpu", enable_progress_bar=False)
    both.obsm["scVI"] = unsupervised.get_latent_representation()
    of_query = both[query.obs_names]
    query.obsm["PCA"] = of_query.obsm["X_pca"]
    query.obsm["Harmony"] = of_query.obsm["X_pca_harmony"]
    query.obsm["scVI"] = of_query.obsm["scVI"]
    model = trained(reference.copy())
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
    """The page."""
    runs = pd.DataFrame(result["runs"])
    methods = [name for name in METHOD_NAMES if name in set(runs["method"])]
    lines = [
        "# Batches of the reference",
        "",
        "Written by `python -m benchmarks.batches`, one seed. The table has shares of cells with the right label.",
        "In the first task, each label of one batch in turn is left out of the reference, and its cells are the",
        "query. In the others, every batch has every type.",
        *([result["note"]] if result.get("note") else []),
        "",
    ]
    of = runs.groupby(["method", "task"])["right"].mean()
    tasks = [task for task in TASKS if task in set(runs["task"])]
    rows = [[METHODS[m][0], *(f"{of[m, task]:.3f}" for task in tasks)] for m in methods]
    lines += [*table(["", *(TASKS[task][0] for task in tasks)], rows), ""]
    scores = pd.DataFrame(result["embeddings"]).T
    if len(scores):
        scores = scores[["Batch correction", "Bio conservation", "Total"]]
        lines += [
            "Scores of embeddings by scib-metrics, where 1 is best. The data are Kang, both conditions. Half of",
            "the cells",
            "are tosica's reference, and embeddings of the other half are scored. PCA, Harmony and scVI use all",
            "cells and",
            "no labels; tosica knows the labels, which raises its bio conservation.",
            "",
            *table(
                ["", *scores.columns],
                [[name, *(f"{v:.2f}" for v in row)] for name, row in scores.iterrows()],
            ),
            "",
        ]
    lines += version_lines(result)
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and write the tables after every split."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=METHOD_NAMES)
    parser.add_argument("--again", nargs="+", choices=METHOD_NAMES, default=[])
    parser.add_argument(
        "--embeddings", action=argparse.BooleanOptionalAction, default=True
    )
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica", "celltypist", "scvi"):
        logging.getLogger(name).setLevel(logging.ERROR)
    path = given.out / "batches.json"
    result: dict[str, Any] = {"runs": [], "embeddings": {}}
    if path.exists():
        result = json.loads(path.read_text())
    more = ["celltypist"] if "celltypist" in given.methods else []
    more += ["scib-metrics", "harmonypy"] if given.embeddings else []
    result["versions"] = result.get("versions", {}) | versions(*more)
    there = {(run["task"], run["split"], run["method"]): run for run in result["runs"]}
    for task in given.tasks:
        _, read, splits = TASKS[task]
        for name, split in splits(read(given.data)):
            for method in dict.fromkeys([*given.methods, *given.again]):
                run = there.get((task, name, method))
                if run is None:
                    run = {"task": task, "split": name, "method": method}
                    result["runs"].append(run | {"right": right(split, method)})
                elif method in given.again:
                    run["right"] = right(split, method)
            write(given.out, "batches", result, report(result))
    if given.embeddings and not result["embeddings"]:
        result["embeddings"] = embeddings(kang(given.data))
        write(given.out, "batches", result, report(result))


if __name__ == "__main__":
    main()
