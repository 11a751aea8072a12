"""Order of dendritic cell progenitors by pseudotime, beside the stages that they were sorted into.

``python -m benchmarks.trajectory`` from the repository's root writes
``trajectory.json``. ``tosica.datasets.dc_progenitors`` reads
the cells from the folder in ``TOSICA_DATA``, or downloads them. An interrupted run continues where
it stopped.
"""

from __future__ import annotations

from itertools import product
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scanpy as sc
from scipy.stats import kendalltau, rankdata, spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tosica
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
    has_label = np.isin(stage, labels)
    halves = []
    folds = StratifiedKFold(2, shuffle=True, random_state=seed)
    for half, _ in folds.split(stage, stage):
        is_train = np.zeros(len(stage), dtype=bool)
        is_train[half] = True
        is_train &= has_label
        halves.append((np.flatnonzero(is_train), np.flatnonzero(~is_train)))
    return halves


def pseudotime(embedding: np.ndarray, stage: np.ndarray) -> np.ndarray:
    """Diffusion pseudotime, scanpy's defaults, from the MDP nearest to the mean of the MDPs."""
    cells = sc.AnnData(np.asarray(embedding, dtype=np.float32))
    roots = np.flatnonzero(stage == STAGES[0])
    distances = np.linalg.norm(cells.X[roots] - cells.X[roots].mean(axis=0), axis=1)
    cells.uns["iroot"] = roots[distances.argmin()]
    sc.pp.neighbors(cells, use_rep="X")
    sc.tl.diffmap(cells)
    sc.tl.dpt(cells)
    return cells.obs["dpt_pseudotime"].to_numpy(dtype=float)


def scores(order: np.ndarray, stage: np.ndarray) -> dict[str, float]:
    """Rank correlations with the stages, and how well each step is resolved (AUROC)."""
    # Cells that the graph does not connect to the root come last.
    is_connected = np.isfinite(order)
    order = np.where(is_connected, order, order[is_connected].max() + 1)
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
    return scores(rankdata(rank, method="ordinal").astype(float), stage)


def mean_stage(probabilities: pd.DataFrame) -> np.ndarray:
    """Mean of the stages' numbers, weighted by their probabilities."""
    numbers = [STAGES.index(str(name)) for name in probabilities]
    return probabilities.to_numpy() @ numbers


def logistic(reference: AnnData, query: AnnData) -> pd.DataFrame:
    """Probabilities of a logistic regression on standardized genes."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    model.fit(reference.X.toarray(), reference.obs["stage"].astype(str))
    return pd.DataFrame(model.predict_proba(query.X.toarray()), columns=model.classes_)


def one_run(adata: AnnData, task: str, seed: int, half: int) -> list[dict[str, Any]]:
    """Train on one half, and order the cells that were not trained on."""
    all_stages = adata.obs["stage"].astype(str).to_numpy()
    train, test = splits(all_stages, TASKS[task], seed)[half]
    reference = adata[train].copy()
    query = adata[test].copy()
    stage = all_stages[test]
    reference.obs["stage"] = reference.obs["stage"].cat.remove_unused_categories()
    start_time = process_time()
    model = train_default(reference, seed, labels_key="stage")
    model.annotate(query)
    # The same label in all cells, so that their contributions are comparable.
    tosica.tl.attribute(query, model, target=STAGES[-1], cells=True)
    seconds = process_time() - start_time
    orders = {
        "attention": pseudotime(query.obsm["X_tosica"], stage),
        "contributions": pseudotime(query.obsm["X_tosica_attribution"], stage),
        "PCA": pseudotime(sc.pp.pca(query.X.toarray()), stage),
        "tosica": mean_stage(model.predict(query, soft=True)),
        "logistic": mean_stage(logistic(reference, query)),
    }
    run = {"task": task, "seed": seed, "half": half}
    rows = [
        run | {"order": name, **scores(order, stage)} for name, order in orders.items()
    ]
    rows.append(run | {"order": "ceiling", **ceiling(stage), "seconds": seconds})
    return rows


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    runs = pd.DataFrame(result["runs"])
    tasks = [task for task in TASKS if task in set(runs["task"])]
    spearman = runs.groupby(["order", "task"])["spearman"]
    mean = spearman.mean()
    deviation = spearman.std(ddof=0)
    rows = []
    for name, title in ORDERS.items():
        row = [f"{mean[name, t]:.3f} ± {deviation[name, t]:.3f}" for t in tasks]
        rows.append([title, *row])
    best = [f"{mean['ceiling', task]:.3f}" for task in tasks]
    rows.append(["an order without a fault", *best])
    heads = {
        "all stages": "trained on all stages",
        "without CDP": "trained on MDP and pre-DC only",
    }
    lines = [
        "# A trajectory",
        "",
        "`python -m benchmarks.trajectory`: 245 progenitors of mouse dendritic cells {cite:p}`Schlitzer2015`,",
        "sorted into MDP, CDP and pre-DC. Half of the cells train a model, and all others are ordered, for both",
        f"halves and {runs['seed'].nunique()} seeds: Spearman's correlation of the order with the stages, whose",
        "ties leave less than 1 to an order without a fault. Pseudotime is scanpy's `dpt`. PCA uses no labels, so",
        "the fair comparison is the logistic regression.",
        "",
        *table(["order by", *(heads[task] for task in tasks)], rows),
        "",
    ]
    return "\n".join([*lines, *version_lines(result)])


def main(arguments: list[str] | None = None) -> None:
    """Run missing runs, and write the tables after every model."""
    parser = make_parser(__doc__, has_data=False)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options = parser.parse_args(arguments)
    quiet()
    result = load(options.out, "trajectory")
    result["versions"] = versions()
    done = {(run["task"], run["seed"], run["half"]) for run in result["runs"]}
    adata = tosica.datasets.dc_progenitors()
    for seed, task, half in product(range(options.seeds), options.tasks, (0, 1)):
        if (task, seed, half) not in done:
            result["runs"] += one_run(adata, task, seed, half)
            write(options.out, "trajectory", result, report(result))


if __name__ == "__main__":
    main()
