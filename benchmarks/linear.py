"""What each part of the linear branch brings, measured inside references.

``python -m benchmarks.linear FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``docs/benchmarks/linear.md`` and ``linear.json``.
Some cells of a reference teach the model's own regressions, through the tokens that the model
chooses by them, and others of the same reference are named: as they are, and with a batch effect
that is made up (that of ``benchmarks.recipe``, which says what has been seen of the accuracy
benchmark's cells in this way). Then half of the cells that teach have this effect, and nobody says
which, but none of one label, whose cells with the effect are named.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp
import scvi
from scipy.special import log_softmax
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

import tosica
from benchmarks._accuracy_methods import standardised
from benchmarks._accuracy_tasks import LABEL, few
from benchmarks._report import table, version_lines, versions, write
from benchmarks.recipe import REFERENCES, batch_effect, made_up, without_rarest
from tosica.data._cell_matrix import CellMatrix
from tosica.linear._classifier import (
    PENALTY,
    cross_validate,
    fit_regression,
    logit_adjustment,
)
from tosica.linear._logistic_regression import fit_logistic_regression
from tosica.module import ModalitySlice

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData
    from numpy.typing import NDArray

    # From expression of cells to a score of each label.
    Scores = Callable[[sp.csr_matrix], NDArray[np.float64]]
    Fit = Callable[[sp.csr_matrix, NDArray[np.integer], sp.csr_matrix, float], Scores]


class Variant(NamedTuple):
    """A way to fit and to read a linear classifier.

    ``bounded`` is whether expression counts at most as the reference's largest value of a gene, and
    ``raised`` whether the logits of rare labels are raised.
    """

    name: str
    fit: Fit
    bounded: bool = True
    raised: bool = True


def mean_of_both(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    tokens: sp.csr_matrix,
    share: float,
    **options: Any,
) -> Scores:
    """What the linear branch is: a mean of ridge and group lasso.

    The share of the latter is the one that cross-validation chose, unless the options have one.
    """
    found = fit_regression(x, labels, tokens, **{"sparse_share": share} | options)
    return lambda query: query @ found.weights.T


def one_of_them(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    tokens: sp.csr_matrix,
    _: float,
    *,
    penalty: float,
) -> Scores:
    """The ridge alone without a penalty, the group lasso alone with one."""
    found = fit_logistic_regression(x, labels, gene_sets=tokens, penalty=penalty)
    return lambda query: query @ found.weights.T


def with_intercept(
    x: sp.csr_matrix, labels: NDArray[np.integer], tokens: sp.csr_matrix, share: float
) -> Scores:
    """The mean of ridge and group lasso, with a gene that is 1 in every cell and a set for it."""
    found = fit_regression(
        sp.hstack([x, np.ones((x.shape[0], 1))], "csr"),
        labels,
        sp.block_diag([tokens, 1], "csr"),
        sparse_share=share,
    )
    return lambda query: query @ found.weights[:, :-1].T + found.weights[:, -1]


def support_vectors(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    tokens: sp.csr_matrix,
    _: float,
    *,
    scaled: bool,
) -> Scores:
    """Linear support vectors of all genes; gene sets have no part in them."""
    steps = standardised() if scaled else ()
    svm = make_pipeline(*steps, LinearSVC(random_state=0))

    def values(cells: sp.csr_matrix) -> Any:
        return cells.toarray() if scaled else cells

    with warnings.catch_warnings(action="ignore"):
        svm.fit(values(x), labels)

    def score(query: sp.csr_matrix) -> NDArray[np.float64]:
        found = svm.decision_function(values(query))
        return found if found.ndim == 2 else np.column_stack([-found, found])

    return score


_SVM = {"bounded": False, "raised": False}
VARIANTS: dict[str, Variant] = {
    "default": Variant(
        "**as it is: a mean of ridge and group lasso, weighted by cross-validation**", mean_of_both
    ),
    "ridge": Variant("ridge alone", partial(one_of_them, penalty=0.0)),
    "lasso": Variant("group lasso alone", partial(one_of_them, penalty=PENALTY)),
    "half": Variant("half of each", partial(mean_of_both, sparse_share=0.5)),
    **{
        f"penalty {penalty:g}": Variant(
            f"half of each, penalty {penalty:g} instead of {PENALTY:g}",
            partial(mean_of_both, sparse_share=0.5, penalty=penalty),
        )
        for penalty in (1e-5, 3e-5, 3e-4, 1e-3)
    },
    "intercept": Variant("with an intercept", with_intercept),
    "nuisance": Variant("no nuisance penalty", partial(mean_of_both, nuisance=False)),
    "unbounded": Variant("expression is not bounded", mean_of_both, bounded=False),
    "as rare": Variant("logits of rare labels are not raised", mean_of_both, raised=False),
    "svm": Variant("*linear SVM*", partial(support_vectors, scaled=False), **_SVM),
    "svm scaled": Variant(
        "*linear SVM, scaled genes*", partial(support_vectors, scaled=True), **_SVM
    ),
}
SIZES = (50, 200, 500)
MOST = 500  # cells that are named
FEWEST = 3  # cells of a label
METRICS = ["accuracy", "macro-F1", "log-likelihood"]
SAME, EFFECT, ELSEWHERE = "as they are", "batch effect", "a label of the other batch"
SHOWN = {SAME: "as they are", EFFECT: "with the batch effect"}


def references() -> dict[str, tuple[str, Callable[[Path], AnnData]]]:
    """Those of the recipe, and one that is made up of other cells."""
    return {**REFERENCES, "made up 2": ("made up anew", made_up(2))}


def tokens_of(reference: AnnData) -> sp.csr_matrix:
    """Which gene is in which token that a model with defaults has, ``(n_tokens, n_genes)``."""
    given = reference.copy()
    tosica.pp.build_mask(given)
    tosica.TOSICA.setup_anndata(given, labels_key=LABEL)
    scvi.settings.seed = 0
    return tosica.TOSICA(given)._token_matrix


def cross_validated_share(
    reference: AnnData, codes: NDArray[np.integer], tokens: sp.csr_matrix
) -> float:
    """Weight of the group lasso in the mean, as the model chooses it."""
    logged = ModalitySlice(0, reference.n_vars, None)
    cells = np.arange(reference.n_obs)
    return cross_validate(CellMatrix(reference), cells, codes, logged, tokens).sparse_share


def all_variants(reference: AnnData, queries: dict[str, AnnData]) -> list[dict[str, Any]]:
    """Scores of each variant on each query, the log-likelihood at the best temperature."""
    kinds, codes = np.unique(reference.obs[LABEL].astype(str), return_inverse=True)
    x, tokens = sp.csr_matrix(reference.X), tokens_of(reference)
    upper = sp.csr_matrix(x.max(0)).toarray().ravel()
    share = cross_validated_share(reference, codes, tokens)
    fitted: dict[Fit, Scores] = {}
    found = []
    for variant, how in VARIANTS.items():
        # Those that differ in how they are read are fitted once.
        if how.fit not in fitted:
            fitted[how.fit] = how.fit(x, codes, tokens, share)
        for name, query in queries.items():
            cells = sp.csr_matrix(query.X)
            if how.bounded:
                cells = sp.csr_matrix(np.minimum(cells.toarray(), upper))
            logits = fitted[how.fit](cells) + (logit_adjustment(codes) if how.raised else 0)
            truth = query.obs[LABEL].astype(str).to_numpy()
            which = {"variant": variant, "query": name, "share": share}
            found.append(which | scores(logits, kinds, truth))
    return found


def scores(logits: NDArray, kinds: NDArray, truth: NDArray) -> dict[str, float]:
    """Accuracy, macro-F1 and log-likelihood of the right label at the best temperature."""
    right, each = np.searchsorted(kinds, truth), np.arange(len(truth))
    called = kinds[logits.argmax(1)]
    fits = [log_softmax(logits * by, axis=1)[each, right].mean() for by in np.geomspace(0.2, 8)]
    f1 = f1_score(truth, called, average="macro", labels=np.unique(truth))
    values = [float((called == truth).mean()), float(f1), float(max(fits))]
    return dict(zip(METRICS, values, strict=True))


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
        sp.diags(1.0 * changed) @ effect + sp.diags(1.0 * ~changed) @ reference.X,
        dtype=np.float32,
    )
    lone = batch_effect(query, seed)
    return mixed, {ELSEWHERE: lone[(lone.obs[LABEL] == label).to_numpy()].copy()}


def one_draw(adata: AnnData, size: int, seed: int) -> list[dict[str, Any]]:
    """All variants on one draw of a small reference."""
    ((reference, query),) = few(adata, size, seed)
    some = np.random.default_rng(seed).permutation(query.n_obs)[:MOST]
    known = query.obs[LABEL].isin(reference.obs[LABEL].unique()).to_numpy()
    query = query[np.sort(some[known[some]])].copy()
    tasks = [
        (reference, {SAME: query, EFFECT: batch_effect(query, seed)}),
        two_batches(reference, query, seed),
    ]
    return [{"seed": seed, **run} for teach, ask in tasks for run in all_variants(teach, ask)]


def sizes_of(adata: AnnData) -> dict[int, int]:
    """How many cells teach for each size: two thirds of the reference at most, each number once."""
    found: dict[int, int] = {}
    for size in SIZES:
        number = min(size, adata.n_obs * 2 // 3)
        if number not in found.values():
            found[size] = number
    return found


def report(result: dict[str, Any]) -> str:
    """The page."""
    runs = pd.DataFrame(result["runs"])
    lines = [
        "# What each part of the linear branch brings",
        "",
        "Written by `python -m benchmarks.linear`. The regressions of the linear branch alone, "
        "without network, learn some cells of",
        f"a reference ({_names(runs)}; {runs['seed'].nunique()} draws of each size) and name up to "
        f"{MOST} others of it: as they are, and",
        "with the made-up batch effect of [the recipe](recipe.md). They go through the tokens that "
        "a model with defaults chooses by the",
        "same cells; support vectors know no tokens. The last column is of another reference: half "
        "of its cells have the batch effect,",
        "and nobody says which, but none of one label, of which cells that have it are named. "
        "Accuracy, macro-F1, and",
        "log-likelihood of the right label at the temperature that suits it best. Of small "
        "references two thirds teach.",
        "",
    ]
    columns = [*itertools.product((SAME, EFFECT), METRICS), (ELSEWHERE, METRICS[0])]
    for size, of_size in runs.groupby("size"):
        weight = of_size["share"].mean()
        lines += [
            f"## {size} cells teach",
            "",
            f"Mean over {_names(of_size)}. The group lasso's weight in the mean is {weight:.2f} on "
            "average.",
            "",
        ]
        of = of_size.groupby(["variant", "query"])[METRICS].mean()
        rows = [
            [how.name, *(f"{of.loc[(variant, q), m]:.3f}" for q, m in columns)]
            for variant, how in VARIANTS.items()
        ]
        lines += [*table(["", *(f"{m}, {q}" for q, m in columns)], rows), ""]
    lines += _by_reference(runs)
    lines += version_lines(result)
    return "\n".join(lines)


def _by_reference(runs: pd.DataFrame) -> list[str]:
    """Accuracy and macro-F1 in each reference, where most of its cells teach."""
    largest = runs[runs["size"] == runs.groupby("reference")["size"].transform("max")]
    there = list(dict.fromkeys(runs["reference"]))
    lines = []
    for query in SHOWN:
        of = largest[largest["query"] == query].groupby(["variant", "reference"])[METRICS].mean()
        rows = [
            [
                how.name,
                *("{:.3f} / {:.3f}".format(*of.loc[(key, name), METRICS[:2]]) for name in there),
            ]
            for key, how in VARIANTS.items()
        ]
        lines += [
            f"## Each reference, cells {SHOWN[query]}",
            "",
            "Accuracy / macro-F1 where most cells teach.",
            "",
            *table(["", *(references()[name][0] for name in there)], rows),
            "",
        ]
    return lines


def _names(runs: pd.DataFrame) -> str:
    return ", ".join(references()[name][0] for name in dict.fromkeys(runs["reference"]))


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the tables after every reference."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--references", nargs="+", default=list(references()))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    logging.getLogger("tosica").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*single cell")
    result: dict[str, Any] = {"versions": versions("scikit-learn"), "runs": []}
    for name in given.references:
        adata = without_rarest(references()[name][1](given.data), FEWEST)
        for size, number in sizes_of(adata).items():
            for seed in range(given.seeds):
                found = one_draw(adata, number, seed)
                result["runs"] += [{"reference": name, "size": size, **run} for run in found]
        write(given.out, "linear", result, report(result))


if __name__ == "__main__":
    main()
