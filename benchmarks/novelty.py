"""Detection of cells of types that the reference lacks, from four cells on.

``python -m benchmarks.novelty FOLDER`` from the repository's root, with the files that
``benchmarks/_novelty_tasks.py`` reads in that folder, writes ``docs/benchmarks/novelty.md`` and
``novelty.json``. The reference is half of a batch, without each type in turn. The query is the
other half, or the other batch, with some or all of the cells of the type that was left out.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import scvi
import torch
from sklearn.metrics import roc_auc_score

import tosica
from benchmarks import _novelty_scores as others
from benchmarks._novelty_tasks import TASKS, Task
from benchmarks._report import table, version_lines, versions, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anndata import AnnData
    from numpy.typing import NDArray

QUERIES = {"within": "same batch", "across": "other batch"}
# Cells of the new type in the query; 0 stands for all.
SIZES = (4, 10, 20, 50, 0)
SCORES = {
    "cluster": "`tl.novelty`, small clusters",
    "cell": "`tl.novelty`, cells",
    "annotate": "`annotate`, cells, not corrected for the batch",
    "density": "density of Leiden clusters",
    "genes": "Mahalanobis distance, 30 components of the genes",
    "token": "Mahalanobis distance, class token",
    "ensemble": "deep ensemble of 3 networks, entropy (first split)",
    "energy": "energy of the logits",
    "logit_norm": "LogitNorm, head trained on the class token",
    "probability": "1 − probability of the network",
    "scanvi": "1 − probability of scANVI (first split)",
}
# Scores of the table by task, p-values, and what is counted of these.
SHOWN = ("cluster", "cell", "annotate", "genes", "ensemble", "probability")
P_VALUES = ("cluster", "cell", "annotate")
TESTS = ("false", "found")
LEVEL = 0.05
# Types with fewer cells in a query are not counted.
FEWEST = 4
N_NETWORKS = 3
# Genes of the reference that are used, the most variable ones.
N_GENES = 2_000


def one_split(name: str, seed: int, *, task: Task, folder: Path, max_epochs: int, peers: bool) -> list[dict[str, Any]]:
    """Leave out each type of half of a batch, and score the other half and the other batch.

    The batches take turns as the reference, by the number of the split.
    """
    quiet()
    # Set in each process. Other threads do not help networks of this size.
    torch.set_num_threads(1)
    adata = task.read(folder)
    adata.X = sp.csr_matrix(adata.X)
    labels, batch = (adata.obs[key].to_numpy() for key in ("label", "batch"))
    first = batch == sorted(set(batch))[seed % 2]
    half = np.random.default_rng(seed).random(adata.n_obs) < 0.5
    runs = []
    for left_out in np.unique(labels[first & half]):
        reference = adata[first & half & (labels != left_out)].copy()
        reference = reference[:, variable_genes(reference)].copy()
        tosica.pp.build_mask(reference)
        known = np.isin(labels, reference.obs["label"])
        queries = {"within": first & ~half, "across": ~first}
        n_networks = N_NETWORKS if peers else 1
        networks = [train(reference, seed + 100 * i, max_epochs) for i in range(n_networks)]
        scanvi = others.train_scanvi(reference, seed) if peers and task.counts else None
        for query, chosen in queries.items():
            new = chosen & (labels == left_out)
            if new.sum() < FEWEST:
                continue
            cells = adata[chosen & (known | new), reference.var_names].copy()
            cells.obs["new"] = (cells.obs["label"] == left_out).to_numpy()
            of_scanvi = None if scanvi is None else others.scanvi(scanvi, cells)
            for size, found in scored(networks, reference, cells, seed, of_scanvi):
                about = {"task": name, "query": query, "seed": seed, "left out": str(left_out)}
                runs.append(about | {"size": size} | found)
    return runs


def variable_genes(reference: AnnData) -> NDArray[np.intp]:
    """The most variable genes, in their order. New types may have genes of their own elsewhere."""
    variance = others.log_normalized(reference).var(0)
    return np.sort(np.argsort(-variance, kind="stable")[:N_GENES])


def quiet() -> None:
    """Silence what trainings print."""
    for name in ("lightning.pytorch", "tosica", "scvi"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning|umap|sklearn|scvi|anndata|mudata")


def train(reference: AnnData, seed: int, max_epochs: int) -> tosica.TOSICA:
    """Train a small model. Energy, ensembles and so on are of its network alone."""
    tosica.TOSICA.setup_anndata(reference, labels_key="label")
    scvi.settings.seed = seed
    model = tosica.TOSICA(reference, max_gene_sets=50, embed_dim=24)
    model.train(max_epochs, accelerator="cpu", enable_progress_bar=False, check_labels=False)
    return model


def scored(
    networks: list[tosica.TOSICA], reference: AnnData, cells: AnnData, seed: int, scanvi: NDArray | None
) -> Iterator[tuple[int, dict[str, float]]]:
    """Evaluate all scores, for each size of the new type."""
    model, truth = networks[0], reference.obs["label"].astype(str).to_numpy()
    model.annotate(cells)
    latent, logits = others.latent_and_logits(model, cells)
    known_latent = model.get_latent_representation(reference)
    known, x = others.log_normalized(reference), others.log_normalized(cells)
    found = {
        "annotate": cells.obs["tosica_novelty"].to_numpy(),
        "genes": others.mahalanobis_of_genes(known, truth, x),
        "token": others.mahalanobis(known_latent, truth, latent),
        "energy": others.energy(logits),
        "logit_norm": others.logit_norm(known_latent, truth, latent, seed),
        "probability": others.one_minus_probability(logits),
    }
    if len(networks) > 1:
        more = [others.latent_and_logits(network, cells)[1] for network in networks[1:]]
        found["ensemble"] = others.ensemble_entropy([logits, *more])
    if scanvi is not None:
        found["scanvi"] = scanvi
    predicted = cells.obs["tosica_prediction"].astype(str).to_numpy()
    new = cells.obs["new"].to_numpy()
    drawn = np.random.default_rng(seed).permutation(np.flatnonzero(new))
    for size in SIZES:
        if size >= len(drawn):
            continue
        kept = ~new
        kept[drawn[: size or None]] = True
        part = cells[kept].copy()
        of_cells = part.obs["tosica_novelty_pvalue"].to_numpy()
        tosica.tl.novelty(part, model)
        values = {key: scores[kept] for key, scores in found.items()} | {
            "cell": part.obs["tosica_novelty"],
            "cluster": part.obs["tosica_novelty_cluster"],
            "density": others.density(known, truth, x[kept], predicted[kept]),
        }
        areas = {key: float(roc_auc_score(new[kept], scores)) for key, scores in values.items()}
        tests = {
            "annotate": of_cells,
            "cell": part.obs["tosica_novelty_pvalue"].to_numpy(),
            "cluster": part.obs["tosica_novelty_cluster_pvalue"].to_numpy(),
        }
        for key, pvalues in tests.items():
            areas[f"{key}, false"] = float((pvalues[~new[kept]] <= LEVEL).mean())
            areas[f"{key}, found"] = float((pvalues[new[kept]] <= LEVEL).mean())
        yield size, {"n new": int(new[kept].sum()), **areas}


def report(result: dict[str, Any]) -> str:
    """The page."""
    runs, settings = pd.DataFrame(result["runs"]), result["settings"]
    unseen = [name for name in settings["tasks"] if not TASKS[name].seen]
    seen = [name for name in settings["tasks"] if TASKS[name].seen]
    left_out = [name for name in TASKS if name not in settings["tasks"]]
    chosen = _named([name for name, task in TASKS.items() if task.seen])
    sizes = [*(str(size) for size in SIZES if size), "all"]
    tests = [f"{key}, {what}" for key in P_VALUES for what in TESTS]
    columns = [(task, query) for task in [*unseen, *seen] for query in QUERIES]
    lines = [
        "# Types that the reference lacks",
        "",
        "Written by `python -m benchmarks.novelty`. The reference is half of a batch, without each type in turn. The",
        "queries are the other half (same batch) and the other batch, with some or all cells of the type. Values are",
        f"means over types and {runs['seed'].nunique()} splits. Settings of `tosica.tl.novelty` were chosen on splits",
        f"0 and 1 of these tasks: {chosen}. Nothing was chosen on these: {_named(unseen)}; but the cells of ECCITE-seq",
        "are in a task of each kind.",
        *([f"Not measured for this page: {_named(left_out)}."] if left_out else []),
        *([result["note"]] if result.get("note") else []),
        "",
        "AUROC of new cells against all others of the query, by the number of new cells, in the tasks that nothing was",
        "chosen on; 0.5 is chance:",
        "",
        *table(
            ["score", *(f"{what}: {size}" for what in QUERIES.values() for size in sizes)],
            _rows_of_sizes(runs[runs["task"].isin(unseen or seen)]),
        ),
        "",
        "Each task, all sizes: the AUROC of some scores, and the share of known cells (*false*) and of new cells",
        f"(*found*) with a p-value up to {LEVEL}. An exact test has at most {LEVEL} false. Those of `annotate` are not",
        "corrected for the batch.",
        "",
        *table(["task", *(SCORES[key].split(" (")[0] for key in SHOWN), *tests], _rows_of_tasks(runs, columns)),
        "",
    ]
    return "\n".join(lines + version_lines(result))


def _named(tasks: list[str]) -> str:
    return "; ".join(TASKS[name].what for name in tasks) or "none"


def _rows_of_sizes(runs: pd.DataFrame) -> list[list[str]]:
    rows = []
    for score, what in SCORES.items():
        row = [what]
        for query in QUERIES:
            for size in (*SIZES[:-1], 0):
                of = runs[(runs["query"] == query) & (runs["size"] == size)]
                row.append(_shown(_mean(of, score)))
        rows.append(row)
    return rows


def _rows_of_tasks(runs: pd.DataFrame, columns: list[tuple[str, str]]) -> list[list[str]]:
    rows = []
    for task, query in columns:
        of = runs[(runs["task"] == task) & (runs["query"] == query)]
        areas = of.groupby("seed")[[score for score in SHOWN if score in of]].mean().mean()
        found = [_mean(of, f"{key}, {what}") for key in P_VALUES for what in TESTS]
        shown = [areas.get(score, np.nan) for score in SHOWN] + found
        rows.append([f"{TASKS[task].what}: {QUERIES[query]}", *map(_shown, shown)])
    return rows


def _mean(runs: pd.DataFrame, column: str) -> float:
    return float(runs[column].mean()) if column in runs else float("nan")


def _shown(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the tables after every split."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5, help="number of splits")
    parser.add_argument("--first-seed", type=int, default=1, help="number of the first split")
    parser.add_argument("--max-epochs", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    settings = {"tasks": given.tasks, "max_epochs": given.max_epochs}
    result: dict[str, Any] = {"settings": settings, "versions": versions("scikit-learn")}
    measure = partial(_measure, folder=given.data, max_epochs=given.max_epochs)
    # The ensemble and scANVI are slow, and measured on the first split.
    work = [
        (name, seed, TASKS[name], seed == 1)
        for seed in range(given.first_seed, given.first_seed + given.seeds)
        for name in given.tasks
    ]
    runs: list[dict[str, Any]] = []
    with ExitStack() as stack:
        each: Iterator[list[dict[str, Any]]] = map(measure, work)
        if given.jobs > 1:
            context = multiprocessing.get_context("spawn")
            pool = stack.enter_context(ProcessPoolExecutor(given.jobs, mp_context=context))
            each = pool.map(measure, work)
        for found in each:
            runs += found
            # By column, so that the file is short.
            result["runs"] = pd.DataFrame(runs).round(4).to_dict("list")
            write(given.out, "novelty", result, report(result))


def _measure(work: tuple[str, int, Task, bool], **settings: Any) -> list[dict[str, Any]]:
    name, seed, task, peers = work
    return one_split(name, seed, task=task, peers=peers, **settings)


if __name__ == "__main__":
    main()
