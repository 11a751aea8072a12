"""Measure what each part of the linear branch contributes, within references.

``python -m benchmarks.linear FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``linear.json`` and its page. The
model's own regressions are fitted to some cells of a reference, over the tokens that the model
chooses from these cells, and predict other cells of the same reference: as they are, and with a
simulated batch effect (that of ``benchmarks._references``). In a second reference, half of the
training cells have this effect, in an unknown batch, but no cell of one label; cells of this
label with the effect are predicted.
"""

from __future__ import annotations

import argparse
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
from benchmarks._references import REFERENCES, batch_effect, made_up, without_rarest
from benchmarks._report import table, version_lines, versions, write
from tosica.data import CellMatrix, ModalitySlice
from tosica.linear import LabeledRows, RegressionConfig, cross_validate, fit_regressions, logit_adjustment

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData
    from numpy.typing import NDArray

    # From expression of cells to a score of each label.
    Scores = Callable[[sp.csr_matrix], NDArray[np.float64]]
    Fit = Callable[[sp.csr_matrix, NDArray[np.integer], sp.csr_matrix, float], Scores]


class Variant(NamedTuple):
    """A linear classifier, and how it is applied.

    ``bounded`` is whether expression is bounded by the reference's largest value of each gene, and
    ``adjusted`` whether the logits of rare labels are raised.
    """

    name: str
    fit: Fit
    bounded: bool = True
    adjusted: bool = True


DEFAULT = RegressionConfig()
NO_NUISANCE = RegressionConfig(batch_penalty=0, within_class_penalty=0)


def linear_branch(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    tokens: sp.csr_matrix,
    share: float,
    *,
    lasso_share: float | None = None,
    intercept: bool = False,
    config: RegressionConfig = DEFAULT,
) -> Scores:
    """The model's regression; ``share`` is the group lasso's weight that cross-validation chose.

    With an intercept, there is a gene that is 1 in every cell, and a set that holds it.
    """
    if intercept:
        x = sp.hstack([x, np.ones((x.shape[0], 1))], "csr")
        tokens = sp.block_diag([tokens, 1], "csr")
    fitted = fit_regressions(x, labels, gene_sets=tokens, config=config)
    weights = fitted.mean(share if lasso_share is None else lasso_share).weights
    if intercept:
        return lambda query: query @ weights[:, :-1].T + weights[:, -1]
    return lambda query: query @ weights.T


def support_vectors(
    x: sp.csr_matrix, labels: NDArray[np.integer], tokens: sp.csr_matrix, _: float, *, scaled: bool
) -> Scores:
    """A linear support vector machine of all genes, without gene sets."""
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


_SVM = {"bounded": False, "adjusted": False}
VARIANTS: dict[str, Variant] = {
    "default": Variant("**as it is: a mean of ridge and group lasso, weighted by cross-validation**", linear_branch),
    "ridge": Variant("ridge alone", partial(linear_branch, lasso_share=0.0)),
    "lasso": Variant("group lasso alone", partial(linear_branch, lasso_share=1.0)),
    "half": Variant("half of each", partial(linear_branch, lasso_share=0.5)),
    **{
        f"penalty {penalty:g}": Variant(
            f"half of each, penalty {penalty:g} instead of {DEFAULT.group_penalty:g}",
            partial(linear_branch, lasso_share=0.5, config=RegressionConfig(group_penalty=penalty)),
        )
        for penalty in (1e-5, 3e-5, 3e-4, 1e-3)
    },
    "intercept": Variant("with an intercept", partial(linear_branch, intercept=True)),
    "nuisance": Variant("no nuisance penalty", partial(linear_branch, config=NO_NUISANCE)),
    "unbounded": Variant("expression is not bounded", linear_branch, bounded=False),
    "as rare": Variant("logits of rare labels are not raised", linear_branch, adjusted=False),
    "svm": Variant("*linear SVM*", partial(support_vectors, scaled=False), **_SVM),
    "svm scaled": Variant("*linear SVM, scaled genes*", partial(support_vectors, scaled=True), **_SVM),
}
SIZES = (50, 200, 500)
MAX_QUERY = 500  # cells that are predicted
MIN_CELLS = 3  # of a label
METRICS = ["accuracy", "macro-F1", "log-likelihood"]
SAME, EFFECT, ELSEWHERE = "as they are", "batch effect", "a label of the other batch"


def references() -> dict[str, tuple[str, Callable[[Path], AnnData]]]:
    """References, and another simulated one."""
    return {**REFERENCES, "made up 2": ("made up anew", made_up(2))}


def tokens_of(reference: AnnData) -> sp.csr_matrix:
    """Which gene is in which token of a model with defaults, ``(n_tokens, n_genes)``."""
    given = reference.copy()
    tosica.pp.build_mask(given)
    tosica.TOSICA.setup_anndata(given, labels_key=LABEL)
    scvi.settings.seed = 0
    pairs = tosica.TOSICA(given).get_linear_weights().index
    token, names = pd.factorize(pairs.get_level_values("gene_set"))
    gene = given.var_names.get_indexer(pairs.get_level_values("gene"))
    shape = (len(names), given.n_vars)
    return sp.csr_matrix((np.ones(len(pairs)), (token, gene)), shape=shape)


def cross_validated_share(reference: AnnData, codes: NDArray[np.integer], tokens: sp.csr_matrix) -> float:
    """Weight of the group lasso in the mean, as the model chooses it."""
    logged = ModalitySlice(0, reference.n_vars, None)
    cells = np.arange(reference.n_obs)
    return cross_validate(LabeledRows(CellMatrix(reference), cells, codes, (logged,)), tokens).lasso_share


def all_variants(reference: AnnData, queries: dict[str, AnnData]) -> list[dict[str, Any]]:
    """Scores of each variant on each query, the log-likelihood at the best temperature."""
    labels, codes = np.unique(reference.obs[LABEL].astype(str), return_inverse=True)
    x, tokens = sp.csr_matrix(reference.X), tokens_of(reference)
    upper = sp.csr_matrix(x.max(0)).toarray().ravel()
    share = cross_validated_share(reference, codes, tokens)
    fitted: dict[Fit, Scores] = {}
    runs = []
    for key, variant in VARIANTS.items():
        # Variants that differ only in how they are applied are fitted once.
        if variant.fit not in fitted:
            fitted[variant.fit] = variant.fit(x, codes, tokens, share)
        for name, query in queries.items():
            cells = sp.csr_matrix(query.X)
            if variant.bounded:
                cells = sp.csr_matrix(np.minimum(cells.toarray(), upper))
            logits = fitted[variant.fit](cells)
            if variant.adjusted:
                logits = logits + logit_adjustment(codes)
            truth = query.obs[LABEL].astype(str).to_numpy()
            run = {"variant": key, "query": name, "share": share}
            runs.append(run | scores(logits, labels, truth))
    return runs


def scores(logits: NDArray, labels: NDArray, truth: NDArray) -> dict[str, float]:
    """Accuracy, macro-F1 and log-likelihood of the right label at the best temperature."""
    codes, cells = np.searchsorted(labels, truth), np.arange(len(truth))
    predicted = labels[logits.argmax(1)]
    log_likelihoods = [log_softmax(logits * factor, axis=1)[cells, codes].mean() for factor in np.geomspace(0.2, 8)]
    f1 = f1_score(truth, predicted, average="macro", labels=np.unique(truth))
    values = [float((predicted == truth).mean()), float(f1), float(max(log_likelihoods))]
    return dict(zip(METRICS, values, strict=True))


def two_batches(reference: AnnData, query: AnnData, seed: int) -> tuple[AnnData, dict[str, AnnData]]:
    """Give half of the reference the effect, except one label, whose cells are the query."""
    label = reference.obs[LABEL].astype(str).value_counts().index[seed % 3]
    changed = np.random.default_rng(seed).random(reference.n_obs) < 0.5
    changed &= (reference.obs[LABEL] != label).to_numpy()
    mixed = reference.copy()
    effect = batch_effect(reference, seed).X
    mixed.X = sp.csr_matrix(sp.diags(1.0 * changed) @ effect + sp.diags(1.0 * ~changed) @ reference.X, dtype=np.float32)
    changed_query = batch_effect(query, seed)
    of_label = (changed_query.obs[LABEL] == label).to_numpy()
    return mixed, {ELSEWHERE: changed_query[of_label].copy()}


def one_draw(adata: AnnData, size: int, seed: int) -> list[dict[str, Any]]:
    """All variants on one draw of a small reference."""
    ((reference, query),) = few(adata, size, seed)
    some = np.random.default_rng(seed).permutation(query.n_obs)[:MAX_QUERY]
    known = query.obs[LABEL].isin(reference.obs[LABEL].unique()).to_numpy()
    query = query[np.sort(some[known[some]])].copy()
    tasks = [(reference, {SAME: query, EFFECT: batch_effect(query, seed)}), two_batches(reference, query, seed)]
    return [{"seed": seed, **run} for task in tasks for run in all_variants(*task)]


def sizes_of(adata: AnnData) -> dict[int, int]:
    """Training cells for each size, at most two thirds of the reference; each number once."""
    found: dict[int, int] = {}
    for size in SIZES:
        number = min(size, adata.n_obs * 2 // 3)
        if number not in found.values():
            found[size] = number
    return found


def report(result: dict[str, Any]) -> str:
    """What the page says of a result."""
    runs = pd.DataFrame(result["runs"])
    columns = [(SAME, "accuracy"), (SAME, "macro-F1"), (EFFECT, "accuracy"), (ELSEWHERE, "accuracy")]
    of = runs.groupby(["variant", "size", "query"])[METRICS].mean()
    sizes = sorted(runs["size"].unique())
    rows = [
        [variant.name, *(" / ".join(f"{of.loc[(key, size, q), m]:.3f}" for size in sizes) for q, m in columns)]
        for key, variant in VARIANTS.items()
    ]
    lines = [
        "# The linear branch",
        "",
        "Written by `python -m benchmarks.linear`. The regressions of the linear branch alone, without the",
        "network, are",
        f"fitted to {', '.join(map(str, sizes))} cells of a reference and predict up to {MAX_QUERY} other cells of it.",
        f"The references are {_names(runs)}; {runs['seed'].nunique()} draws of each size. Columns: cells as they",
        "are; cells",
        "with a simulated batch effect; and cells with this effect of a label that the reference has without it only.",
        "Values are means for the three sizes. Support vector machines use genes without gene sets.",
        "",
        *table(["", *(f"{m}, {q}" for q, m in columns)], rows),
        "",
        *version_lines(result),
    ]
    return "\n".join(lines)


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
        adata = without_rarest(references()[name][1](given.data), MIN_CELLS)
        for size, number in sizes_of(adata).items():
            for seed in range(given.seeds):
                runs = one_draw(adata, number, seed)
                result["runs"] += [{"reference": name, "size": size, **run} for run in runs]
        write(given.out, "linear", result, report(result))


if __name__ == "__main__":
    main()
