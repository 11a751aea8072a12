"""Detection of cells of types that the reference lacks.

``python -m benchmarks.novelty FOLDER`` from the repository's root, with the files named in
``TASKS`` in that folder, writes ``docs/benchmarks/novelty.md`` and ``novelty.json``. Each type in
turn is left out of the reference, and scores are evaluated by how well they detect its cells in the
query. The settings of ``tosica.tl.novelty`` were chosen on another split of the first task's cells,
so only the second task is independent.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import scanpy as sc
import scvi
import torch
from scipy.special import logsumexp
from sklearn.covariance import LedoitWolf
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

import tosica
from benchmarks._report import table, version_lines, versions, write

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray


class Task(NamedTuple):
    """A file, its column of labels, and a column and value that define its two batches."""

    file: str
    labels_key: str
    batch_key: str
    batch: str
    what: str


TASKS = {
    "kang": Task("kang_pbmc.h5ad", "cluster_id", "group_id", "ctrl", "PBMCs, control and IFN-β"),
    "lung": Task(
        "lungmix_celseq2_dropseq.h5ad",
        "cell_line",
        "protocol",
        "sc_celseq2",
        "three cell lines, CEL-seq2 and Drop-seq",
    ),
}
QUERIES = {"within": "the same batch", "across": "the other batch"}
OTHERS = {
    "probability": "1 − probability",
    "energy": "energy of the logits",
    "mahalanobis": "Mahalanobis distance, class token",
    "neighbours": "neighbour distance, class token",
    "logistic": "1 − probability, logistic regression",
}
SCORES = {
    "novelty": "`tosica.tl.novelty`",
    **OTHERS,
    **{f"{name}, clusters": f"{what}, mean of the cluster" for name, what in OTHERS.items()},
}
# Neighbours in the class token's latent space.
N_NEIGHBORS = 10
# Types with fewer cells in a query are not counted.
FEWEST = 10


def one_task(adata: AnnData, task: Task, seed: int, max_epochs: int | None) -> list[dict[str, Any]]:
    """Leave out each type of half of each batch, and score the other half and the other batch."""
    labels = adata.obs[task.labels_key].astype(str).to_numpy()
    first = (adata.obs[task.batch_key] == task.batch).to_numpy()
    half = np.random.default_rng(seed).random(adata.n_obs) < 0.5
    runs = []
    for batch in (first, ~first):
        queries = {"within": np.flatnonzero(batch & ~half), "across": np.flatnonzero(~batch)}
        for left_out in np.unique(labels[batch & half]):
            reference = adata[batch & half & (labels != left_out)].copy()
            model = train(reference, task.labels_key, seed, max_epochs)
            for name, cells in queries.items():
                new = labels[cells] == left_out
                if new.sum() < FEWEST:
                    continue
                found = scores(model, adata[cells].copy(), task.labels_key)
                areas = {k: float(roc_auc_score(new, v)) for k, v in found.items()}
                means = [float(found["novelty"][mask].mean()) for mask in (new, ~new)]
                runs.append(
                    {
                        "query": name,
                        "reference": task.batch if batch is first else f"not {task.batch}",
                        "left out": str(left_out),
                        "seed": seed,
                        "of new cells": means[0],
                        "of known cells": means[1],
                        **areas,
                    }
                )
    return runs


def train(reference: AnnData, labels_key: str, seed: int, max_epochs: int | None) -> tosica.TOSICA:
    """Train a network of `max_epochs` epochs, with defaults otherwise."""
    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key=labels_key)
    # Set before each training, because scanpy's tools change the number of threads of torch.
    torch.set_num_threads(1)
    scvi.settings.seed = seed
    # The other scores are computed from the network alone.
    model = tosica.TOSICA(reference, linear=False)
    model.train(max_epochs, accelerator="cpu", enable_progress_bar=False)
    return model


def scores(model: tosica.TOSICA, query: AnnData, labels_key: str) -> dict[str, NDArray]:
    """Scores of each cell; large scores indicate a new type."""
    reference = model.adata
    model.annotate(query)
    tosica.tl.novelty(query, model)
    truth = reference.obs[labels_key].astype(str).to_numpy()
    known = model.get_latent_representation(reference)
    latent = model.get_latent_representation(query)
    head = model.module.head
    logits = latent @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    centres = pd.DataFrame(known).groupby(truth).mean()
    spread = LedoitWolf().fit(known - centres.loc[truth].to_numpy())
    distances = [spread.mahalanobis(latent - centre) for centre in centres.to_numpy()]
    nearest = NearestNeighbors(n_neighbors=min(N_NEIGHBORS, len(known))).fit(known)
    expressed = [expression(model, data) for data in (reference, query)]
    linear = LogisticRegression(C=0.02, max_iter=500).fit(expressed[0], truth)
    novelty = query.obs["tosica_novelty"]
    found = {
        "probability": 1 - query.obs["tosica_probability"].to_numpy(),
        "energy": -logsumexp(logits, axis=1),
        "mahalanobis": np.min(distances, axis=0),
        "neighbours": nearest.kneighbors(latent)[0].mean(1),
        "logistic": 1 - linear.predict_proba(expressed[1]).max(1),
    }
    # The novelty is constant in each cluster, so its values identify the clusters.
    averaged = {
        f"{name}, clusters": pd.Series(values).groupby(novelty.to_numpy()).transform("mean")
        for name, values in found.items()
    }
    return {"novelty": novelty.to_numpy(), **found, **averaged}


def expression(model: tosica.TOSICA, adata: AnnData) -> NDArray:
    """Log-normalised expression of the model's genes."""
    normalised = adata[:, model.get_var_names()].copy()
    sc.pp.normalize_total(normalised, target_sum=1e4)
    sc.pp.log1p(normalised)
    return normalised.X.toarray()


def report(result: dict[str, Any]) -> str:
    """The page."""
    runs, length = pd.DataFrame(result["runs"]), result["settings"]["max_epochs"]
    trained = "the default length" if length is None else f"{length} epochs"
    lines = [
        "# Types that the reference lacks",
        "",
        "Written by `python -m benchmarks.novelty`. The reference is half of a batch, without each "
        "type in turn. The queries",
        "are the other half and the other batch. Values are the AUROC of the type's cells against "
        "all others (0.5 is chance): the",
        f"mean over types, both batches and {runs['seed'].nunique()} splits ± the standard "
        "deviation of the splits' means. Models are",
        f"trained for {trained}. The settings of `tosica.tl.novelty` were chosen on another split "
        "of the first task's cells,",
        "so only the second task is independent.",
        "",
    ]
    columns = [(task, query) for task in result["settings"]["tasks"] for query in QUERIES]
    rows = []
    for score, what in SCORES.items():
        row = [what]
        for task, query in columns:
            of = runs[(runs["task"] == task) & (runs["query"] == query)]
            means = of.groupby("seed")[score].mean()
            row.append(f"{means.mean():.2f} ± {means.std():.2f}")
        rows.append(row)
    head = [f"{TASKS[task].what}: {QUERIES[query]}" for task, query in columns]
    lines += [*table(["score", *head], rows), ""]
    lines += [
        "The next table shows how often `tosica.tl.novelty` has the largest AUROC, and its mean in "
        "cells of the type that was left out and in others:",
        "",
    ]
    rows = []
    others = [score for score in SCORES if score != "novelty"]
    for task, query in columns:
        of = runs[(runs["task"] == task) & (runs["query"] == query)]
        best = int((of["novelty"] > of[others].max(axis=1)).sum())
        rows.append(
            [
                f"{TASKS[task].what}: {QUERIES[query]}",
                f"{best} of {len(of)}",
                f"{of['of new cells'].mean():.2f}",
                f"{of['of known cells'].mean():.2f}",
            ]
        )
    lines += [*table(["task", "largest AUROC", "left out", "others"], rows), ""]
    lines += version_lines(result)
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the tables after every split."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--max-epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning|umap|sklearn")
    settings = {"tasks": given.tasks, "max_epochs": given.max_epochs}
    result: dict[str, Any] = {
        "settings": settings,
        "versions": versions("scikit-learn"),
        "runs": [],
    }
    # The settings of the score were chosen on the first split.
    for seed in range(1, given.seeds + 1):
        for name in given.tasks:
            adata = sc.read_h5ad(given.data / TASKS[name].file)
            found = one_task(adata, TASKS[name], seed, given.max_epochs)
            result["runs"] += [{"task": name, **run} for run in found]
        write(given.out, "novelty", result, report(result))


if __name__ == "__main__":
    main()
