"""How to fit the direct path: genes, labels, size of the weights, what differs within a label.

``python -m benchmarks.line FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``docs/benchmarks/line.md`` and ``line.json``. Some
cells of a reference teach a logistic regression, and others of the same reference are named: as
they are, and with a batch effect that is made up (that of ``benchmarks.recipe``, which says what
has been seen of the accuracy benchmark's cells in this way). Then half of the cells that teach have
this effect, without being told apart, but none of one label, whose cells with the effect are named.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from benchmarks._accuracy_tasks import LABEL, few
from benchmarks._report import table, version_lines, versions, write
from benchmarks.recipe import REFERENCES, batch_effect, made_up, without_rarest
from tosica.model._line import shrinkage, within_labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData
    from numpy.typing import NDArray


class Variant(NamedTuple):
    """A way to fit a line."""

    name: str
    power: float = 0.25  # of the mean that a gene is divided by
    directions: int = 5  # in which a label's cells differ most
    penalty: float = 0.1  # on what scores change along them
    C: float = 10.0  # what cells count against the size of the weights
    compete: bool = False  # whether labels compete for cells, or each is told from the rest
    balanced: bool = True  # whether labels count equally
    few: float = 20.0  # scores of a label of n cells are raised by log(1 + few / n)
    options: dict[str, Any] = {}  # noqa: RUF012, of the regression; nobody writes into it


VARIANTS: dict[str, Variant] = {
    "default": Variant(
        "**fourth root, each label against the rest, balanced, raised by log(1 + 20 / n), C = 10, "
        "5 directions at 0.1**"
    ),
    "as rare": Variant("not raised", few=0.0),
    "a little": Variant("raised by log(1 + 5 / n)", few=5.0),
    "a lot": Variant("raised by log(1 + 100 / n)", few=100.0),
    "competing": Variant("labels compete for cells", compete=True),
    "competing, small": Variant("labels compete, C = 1", compete=True, C=1.0),
    "imbalanced": Variant("labels as frequent as they are", balanced=False),
    "as they are": Variant("genes as they are", 0.0),
    "root": Variant("square root", 0.5),
    "mean": Variant("mean", 1.0),
    "small": Variant("C = 1", C=1.0),
    "large": Variant("C = 100", C=100.0),
    "no directions": Variant("no directions", penalty=0.0),
    "mild": Variant("5 directions at 0.01", penalty=0.01),
    "strict": Variant("5 directions at 1", penalty=1.0),
    "two": Variant("2 directions at 0.1", directions=2),
    "many": Variant("10 directions at 0.1", directions=10),
}
SIZES = (50, 200, 500)
MOST = 500  # cells that are named
METRICS = ["accuracy", "macro-F1", "log-likelihood"]
SAME, EFFECT, ELSEWHERE = "as they are", "batch effect", "a label of the other batch"


def references() -> dict[str, tuple[str, Callable[[Path], AnnData]]]:
    """Those of the recipe, and one that is made up of other cells."""
    return {**REFERENCES, "made up 2": ("made up anew", made_up(2))}


def fit(reference: AnnData, variant: Variant) -> Callable[[AnnData], NDArray[np.float64]]:
    """A regression through the reference, as what gives the scores of a query."""
    kinds, codes = np.unique(reference.obs[LABEL].astype(str), return_inverse=True)
    mean = np.asarray(reference.X.mean(0)).ravel()
    scale = np.where(mean > 0, mean, 1) ** variant.power
    penalty = variant.penalty * max(1.0, reference.n_obs / 500)
    avoid = within_labels(reference.X, codes, variant.directions)
    # Of rows that are shrunk so, the plain ridge is the penalty on the directions as well.
    shrink = shrinkage(np.sqrt(variant.C * penalty) * avoid / scale)
    x = shrink(reference.X.toarray() / scale)
    sizes = np.bincount(codes) if variant.balanced else np.full(len(kinds), len(codes) / len(kinds))
    weight = (len(codes) / len(kinds) / sizes)[codes]
    asked = [codes] if variant.compete else [codes == code for code in range(len(kinds))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        options = {"max_iter": 200} | variant.options
        lines = [
            LogisticRegression(C=variant.C, **options).fit(x, y, sample_weight=weight)
            for y in asked
        ]
    weights = np.vstack([line.coef_ for line in lines])
    biases = np.concatenate([line.intercept_ for line in lines])
    biases = biases + np.log1p(variant.few / np.bincount(codes))
    return lambda query: shrink(query.X.toarray() / scale) @ weights.T + biases


def one_line(
    reference: AnnData, queries: dict[str, AnnData], variant: Variant
) -> dict[str, dict[str, float]]:
    """Scores of a regression on each query, the log-likelihood at the best temperature."""
    kinds = np.unique(reference.obs[LABEL].astype(str))
    line = fit(reference, variant)
    found = {}
    for name, query in queries.items():
        truth = query.obs[LABEL].astype(str).to_numpy()
        logits = line(query)
        code = np.searchsorted(kinds, truth)
        each = np.arange(len(code))
        called = kinds[logits.argmax(1)]
        fits = [log_softmax(logits * by, axis=1)[each, code].mean() for by in np.geomspace(0.2, 8)]
        f1 = f1_score(truth, called, average="macro", labels=np.unique(truth))
        scores = [float((called == truth).mean()), float(f1), float(max(fits))]
        found[name] = dict(zip(METRICS, scores, strict=True))
    return found


def two_batches(
    reference: AnnData, query: AnnData, seed: int
) -> tuple[AnnData, dict[str, AnnData]]:
    """Half of the reference has the effect, but none of a label, whose cells are the query."""
    label = reference.obs[LABEL].astype(str).value_counts().index[seed % 3]
    changed = np.random.default_rng(seed).random(reference.n_obs) < 0.5
    changed &= (reference.obs[LABEL] != label).to_numpy()
    mixed = reference.copy()
    effect = batch_effect(reference, seed).X
    mixed.X = sp.csr_matrix(
        sp.diags(1.0 * changed) @ effect + sp.diags(1.0 * ~changed) @ reference.X
    )
    lone = batch_effect(query, seed)
    return mixed, {ELSEWHERE: lone[(lone.obs[LABEL] == label).to_numpy()].copy()}


def one_draw(adata: AnnData, size: int, seed: int) -> list[dict[str, Any]]:
    """All variants on one draw of a small reference."""
    adata = without_rarest(adata)
    ((reference, query),) = few(adata, min(size, adata.n_obs * 2 // 3), seed)
    some = np.random.default_rng(seed).permutation(query.n_obs)[:MOST]
    known = query.obs[LABEL].isin(reference.obs[LABEL].unique()).to_numpy()
    query = query[np.sort(some[known[some]])].copy()
    tasks = [
        (reference, {SAME: query, EFFECT: batch_effect(query, seed)}),
        two_batches(reference, query, seed),
    ]
    return [
        {"size": size, "seed": seed, "variant": variant, "query": name, **scores}
        for variant, how in VARIANTS.items()
        for teach, ask in tasks
        for name, scores in one_line(teach, ask, how).items()
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
        "their mean. Scores are",
        "penalised for changing along the main directions in which cells of a label differ, and "
        "those of a label of n cells are,",
        "unless said, raised by log(1 + 20 / n). The last column is of another reference: half of "
        "its cells have the batch effect,",
        "and nobody says which, but none of one label, of which cells that have it are named. "
        "Accuracy, macro-F1, and",
        "log-likelihood of the right label at the temperature that suits it best.",
        "",
    ]
    columns = [*itertools.product((SAME, EFFECT), METRICS), (ELSEWHERE, METRICS[0])]
    for size in dict.fromkeys(runs["size"]):
        lines += [f"## {size} cells teach", ""]
        of = runs[runs["size"] == size].groupby(["variant", "query"])[METRICS].mean()
        rows = [
            [how.name, *(f"{of.loc[(variant, q), m]:.3f}" for q, m in columns)]
            for variant, how in VARIANTS.items()
        ]
        lines += [*table(["", *(f"{m}, {q}" for q, m in columns)], rows), ""]
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
