"""Order of dendritic cell progenitors by pseudotime, beside the stages that they were sorted into.

``python -m benchmarks.trajectory`` from the repository's root writes
``trajectory.json`` and its page. ``tosica.datasets.dc_progenitors`` reads
the cells from the folder in ``TOSICA_DATA``, or downloads them. An interrupted run continues where
it stopped.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scanpy as sc
import scvi
import torch
from scipy.stats import kendalltau, spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tosica
from benchmarks._results import table, version_lines, versions, write

if TYPE_CHECKING:
    from anndata import AnnData

STAGES = ("MDP", "CDP", "PreDC")
# Labels that a model is trained with.
TASKS = {"all stages": STAGES, "without CDP": ("MDP", "PreDC")}
ORDERS = {
    "attention": "pseudotime, attention (`X_tosica`)",
    "contributions": "pseudotime, contributions (`X_tosica_attribution`)",
    "PCA": "pseudotime, PCA of the genes, without labels",
    "tosica": "mean stage by tosica's probabilities",
    "logistic": "mean stage by a logistic regression's probabilities",
}
SCORES = {
    "spearman": "Spearman",
    "kendall": "Kendall",
    "first step": "CDP after MDP",
    "second step": "pre-DC after CDP",
}


def splits(
    stage: np.ndarray, labels: tuple[str, ...], seed: int
) -> list[tuple[Any, Any]]:
    """Two halves, each trained on once; held out are all cells that were not trained on."""
    known = np.isin(stage, labels)
    halves = StratifiedKFold(2, shuffle=True, random_state=seed).split(stage, stage)
    pairs = [np.isin(np.arange(len(stage)), train) & known for train, _ in halves]
    return [(np.flatnonzero(train), np.flatnonzero(~train)) for train in pairs]


def pseudotime(embedding: np.ndarray, stage: np.ndarray) -> np.ndarray:
    """Diffusion pseudotime, scanpy's defaults, from the MDP nearest to the mean of the MDPs."""
    cells = sc.AnnData(np.asarray(embedding, dtype=np.float32))
    first = np.flatnonzero(stage == STAGES[0])
    away = np.linalg.norm(cells.X[first] - cells.X[first].mean(axis=0), axis=1)
    cells.uns["iroot"] = first[away.argmin()]
    sc.pp.neighbors(cells, use_rep="X")
    sc.tl.diffmap(cells)
    sc.tl.dpt(cells)
    return cells.obs["dpt_pseudotime"].to_numpy(dtype=float)


def scores(order: np.ndarray, stage: np.ndarray) -> dict[str, float]:
    """Rank correlations with the stages, and how well each step is resolved (AUROC)."""
    # What the graph does not connect to the root comes last.
    order = np.where(
        np.isfinite(order), order, np.nanmax(order[np.isfinite(order)]) + 1
    )
    rank = np.array([STAGES.index(name) for name in stage])
    steps = {}
    for name, later in (("first step", 1), ("second step", 2)):
        of_step = np.isin(rank, (later - 1, later))
        steps[name] = float(roc_auc_score(rank[of_step] == later, order[of_step]))
    return {
        "spearman": float(spearmanr(order, rank).statistic),
        "kendall": float(kendalltau(order, rank).statistic),
        **steps,
    }


def ceiling(stage: np.ndarray) -> dict[str, float]:
    """The scores of an order without a fault: stages are ties, so that no order reaches 1."""
    rank = np.array([STAGES.index(name) for name in stage])
    return scores(
        np.argsort(np.argsort(rank, kind="stable"), kind="stable").astype(float), stage
    )


def mean_stage(probabilities: pd.DataFrame) -> np.ndarray:
    """Mean of the stages' numbers, weighted by their probabilities."""
    return probabilities.to_numpy() @ [
        STAGES.index(str(name)) for name in probabilities
    ]


def logistic(reference: AnnData, query: AnnData) -> pd.DataFrame:
    """Probabilities of a logistic regression on standardised genes."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    model.fit(reference.X.toarray(), reference.obs["stage"].astype(str))
    return pd.DataFrame(model.predict_proba(query.X.toarray()), columns=model.classes_)


def one_run(adata: AnnData, task: str, seed: int, half: int) -> list[dict[str, Any]]:
    """Train on one half, and order the cells that were not trained on."""
    stage = adata.obs["stage"].astype(str).to_numpy()
    train, held = splits(stage, TASKS[task], seed)[half]
    reference, query = adata[train].copy(), adata[held].copy()
    reference.obs["stage"] = reference.obs["stage"].cat.remove_unused_categories()
    started = process_time()
    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key="stage")
    # More threads do not help networks of this size.
    torch.set_num_threads(1)
    scvi.settings.seed = seed
    model = tosica.TOSICA(reference)
    model.train(accelerator="cpu", enable_progress_bar=False)
    model.annotate(query)
    # The same label in all cells, so that their contributions are comparable.
    tosica.tl.attribute(query, model, target=STAGES[-1], cells=True)
    seconds = process_time() - started
    held_stage = stage[held]
    orders = {
        "attention": pseudotime(query.obsm["X_tosica"], held_stage),
        "contributions": pseudotime(query.obsm["X_tosica_attribution"], held_stage),
        "PCA": pseudotime(sc.pp.pca(query.X.toarray()), held_stage),
        "tosica": mean_stage(model.predict(query, soft=True)),
        "logistic": mean_stage(logistic(reference, query)),
    }
    where = {"task": task, "seed": seed, "half": half}
    found = [
        where | {"order": name, **scores(o, held_stage)} for name, o in orders.items()
    ]
    return [
        *found,
        where | {"order": "ceiling", **ceiling(held_stage), "seconds": seconds},
    ]


def report(result: dict[str, Any]) -> str:
    """What the page says of a result."""
    runs = pd.DataFrame(result["runs"])
    tasks = [task for task in TASKS if task in set(runs["task"])]
    found = runs.groupby(["order", "task"])["spearman"]
    mean, deviation = found.mean(), found.std(ddof=0)
    rows = [
        [
            title,
            *(
                f"{mean[name, task]:.3f} ± {deviation[name, task]:.3f}"
                for task in tasks
            ),
        ]
        for name, title in ORDERS.items()
    ]
    rows.append(
        [
            "an order without a fault",
            *(f"{mean['ceiling', task]:.3f}" for task in tasks),
        ]
    )
    heads = {
        "all stages": "trained on all stages",
        "without CDP": "trained on MDP and pre-DC only",
    }
    lines = [
        "# A trajectory",
        "",
        "Written by `python -m benchmarks.trajectory`. The cells are 245 progenitors of mouse dendritic cells",
        "{cite:p}`Schlitzer2015`, sorted into MDP, CDP and pre-DC, in this order. Half of the cells train a model, and",
        f"all others are ordered, for both halves and {runs['seed'].nunique()} seeds. The table has Spearman's",
        "correlation",
        "of the order with the stages. Cells of a stage are ties, so that even an order without a fault does",
        "not reach 1.",
        "Pseudotime is scanpy's `dpt`. Contributions are those to the score of pre-DC. PCA uses no labels, so the fair",
        "comparison is the logistic regression.",
        "",
        *table(["order by", *(heads[task] for task in tasks)], rows),
        "",
    ]
    return "\n".join([*lines, *version_lines(result)])


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and write the tables after every model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica", "scvi"):
        logging.getLogger(name).setLevel(logging.ERROR)
    path = given.out / "trajectory.json"
    result: dict[str, Any] = (
        json.loads(path.read_text()) if path.exists() else {"runs": []}
    )
    result["versions"] = versions()
    there = {(run["task"], run["seed"], run["half"]) for run in result["runs"]}
    adata = tosica.datasets.dc_progenitors()
    for seed in range(given.seeds):
        for task in given.tasks:
            for half in (0, 1):
                if (task, seed, half) not in there:
                    result["runs"] += one_run(adata, task, seed, half)
                    write(given.out, "trajectory", result, report(result))


if __name__ == "__main__":
    main()
