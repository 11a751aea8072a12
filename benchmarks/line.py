"""How to fit the direct path: scaling of genes, balance of labels, size of the weights.

``python -m benchmarks.line FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``docs/benchmarks/line.md`` and ``line.json``. Some
cells of a reference teach a logistic regression, and others of the same reference are named: as
they are, and with a batch effect that is made up (that of ``benchmarks.recipe``, which says what
has been seen of the accuracy benchmark's cells in this way).
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

import tosica
from benchmarks._accuracy_tasks import LABEL, few, prepared
from benchmarks._report import table, version_lines, versions, write
from benchmarks.recipe import REFERENCES, batch_effect

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData

# Power of the mean that a gene is divided by, and options of the regression.
VARIANTS: dict[str, tuple[str, float, dict[str, Any]]] = {
    "default": ("**fourth root, labels balanced, C by cells**", 0.25, {}),
    "imbalanced": ("labels as frequent as they are", 0.25, {"class_weight": None}),
    "as they are": ("genes as they are", 0.0, {}),
    "root": ("square root", 0.5, {}),
    "mean": ("mean", 1.0, {}),
    "root, imbalanced": ("square root, labels as they are", 0.5, {"class_weight": None}),
    "small": ("C = 0.1", 0.25, {"C": 0.1}),
    "one": ("C = 1", 0.25, {"C": 1.0}),
    "large": ("C = 10", 0.25, {"C": 10.0}),
}
SIZES = (50, 200, 500)
# Cells that are named; of rarer labels than this nothing can be said.
MOST, FEWEST = 500, 10
METRICS = ["accuracy", "macro-F1", "log-likelihood"]


def made_up(seed: int) -> Callable[[Path], AnnData]:
    """Cells of many types, some of them rare and alike."""

    def read(_: Path) -> AnnData:
        adata = tosica.datasets.synthetic(1200, 1500, batch_effect=0.3, seed=seed)
        return prepared(adata, "cell_type", "batch")

    return read


def references() -> dict[str, tuple[str, Callable[[Path], AnnData]]]:
    """Those of the recipe, and made-up ones."""
    more = {f"made up {seed}": (f"made up, {seed}", made_up(seed)) for seed in (1, 2)}
    return {**REFERENCES, **more}


def one_line(
    reference: AnnData, queries: dict[str, AnnData], power: float, options: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """Scores of a regression on each query, the log-likelihood at the best temperature."""
    mean = np.asarray(reference.X.mean(0)).ravel()
    scale = np.where(mean > 0, mean, 1) ** power
    few_count_as = max(1.0, 500 / reference.n_obs)
    options = {"class_weight": "balanced", "max_iter": 200, "C": few_count_as} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        line = LogisticRegression(**options).fit(
            sp.csr_matrix(reference.X @ sp.diags(1 / scale)), reference.obs[LABEL].astype(str)
        )
    found = {}
    for name, query in queries.items():
        truth = query.obs[LABEL].astype(str).to_numpy()
        logits = line.decision_function(sp.csr_matrix(query.X @ sp.diags(1 / scale)))
        code = np.searchsorted(line.classes_, truth)
        each = np.arange(len(code))
        called = line.classes_[logits.argmax(1)]
        fits = [log_softmax(logits * by, axis=1)[each, code].mean() for by in np.geomspace(0.2, 8)]
        f1 = f1_score(truth, called, average="macro", labels=np.unique(truth))
        scores = [float((called == truth).mean()), float(f1), float(max(fits))]
        found[name] = dict(zip(METRICS, scores, strict=True))
    return found


def one_draw(adata: AnnData, size: int, seed: int) -> list[dict[str, Any]]:
    """All variants on one draw of a small reference."""
    common = adata.obs[LABEL].value_counts()
    adata = adata[adata.obs[LABEL].isin(common.index[common >= FEWEST])].copy()
    adata.obs[LABEL] = adata.obs[LABEL].cat.remove_unused_categories()
    ((reference, query),) = few(adata, min(size, adata.n_obs * 2 // 3), seed)
    some = np.random.default_rng(seed).permutation(query.n_obs)[:MOST]
    known = query.obs[LABEL].isin(reference.obs[LABEL].unique()).to_numpy()
    query = query[np.sort(some[known[some]])].copy()
    queries = {"as they are": query, "batch effect": batch_effect(query, seed)}
    return [
        {"size": size, "seed": seed, "variant": variant, "query": name, **scores}
        for variant, (_, power, options) in VARIANTS.items()
        for name, scores in one_line(reference, queries, power, options).items()
    ]


def report(result: dict[str, Any]) -> str:
    """The page."""
    runs = pd.DataFrame(result["runs"])
    names = ", ".join(references()[name][0] for name in dict.fromkeys(runs["reference"]))
    lines = [
        "# How the direct path is fitted",
        "",
        "Written by `python -m benchmarks.line`. A logistic regression alone, without network, "
        "learns some cells of a",
        f"reference ({names}; {runs['seed'].nunique()} draws of each size) and names up to "
        f"{MOST} others of it: as they are, and",
        "with the made-up batch effect of [the recipe](recipe.md). Genes are divided by a power of "
        "their mean; C is 1 where",
        "nothing else is said, or 500 over the number of cells if these are fewer. Accuracy, "
        "macro-F1, and log-likelihood of",
        "the right label at the temperature that suits it best.",
        "",
    ]
    for size in dict.fromkeys(runs["size"]):
        lines += [f"## {size} cells teach", ""]
        of = runs[runs["size"] == size].groupby(["variant", "query"])[METRICS].mean()
        queries = list(dict.fromkeys(runs["query"]))
        rows = [
            [what, *(f"{of.loc[(variant, q), m]:.3f}" for q in queries for m in METRICS)]
            for variant, (what, _, _) in VARIANTS.items()
        ]
        head = ["", *(f"{m}, {q}" for q in queries for m in METRICS)]
        lines += [*table(head, rows), ""]
    lines += version_lines(result)
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--references", nargs="+", default=list(references()))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    result: dict[str, Any] = {"versions": versions("scikit-learn"), "runs": []}
    for name in given.references:
        adata = references()[name][1](given.data)
        for size in SIZES:
            for seed in range(given.seeds):
                found = one_draw(adata, size, seed)
                result["runs"] += [{"reference": name, **run} for run in found]
    write(given.out, "line", result, report(result))


if __name__ == "__main__":
    main()
