"""The classifier of the linear branch, and what else is fitted to a subsample of the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.special import log_softmax
from scvi import settings

from tosica._parallel import thread_map
from tosica._stats import fit_temperature
from tosica.linear._logistic import (
    DEFAULT_CONFIG,
    RegressionConfig,
    Regressions,
    fit_regressions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tosica.data import CellMatrix, JointMatrix, ModalitySlice

# More cells hardly change the regression or the principal components; with more cells,
# cross-fitting would take longer than training the network.
MAX_CELLS, MAX_CELLS_CROSS_FIT = 10_000, 4_000
# Targeted panels (Xenium, CosMx, MERSCOPE) have at most this many genes.
PANEL_GENES = 1000
# Cross-validation chooses the weight of the group lasso regression in the mean of both regressions.
# A weight above one half is less accurate in other batches, but cross-validation cannot show that.
LASSO_SHARES = (0.0, 0.25, 0.5)
# One-vs-rest scores are not calibrated against each other. Their temperature lies between one and
# three, depending on the reference.
EXPECTED_TEMPERATURE = 2.0

Fitted = TypeVar("Fitted")


@dataclass(frozen=True)
class LabeledRows:
    """Cells of a reference with a label each.

    Parameters
    ----------
    rows
        Expression of the reference.
    cells
        Positions of the cells, shape ``(n_cells,)``.
    labels
        Label of each of them as a number, shape ``(n_cells,)``.
    slices
        How expression is normalised, for each modality.
    """

    rows: CellMatrix | JointMatrix
    cells: NDArray[np.integer]
    labels: NDArray[np.integer]
    slices: tuple[ModalitySlice, ...]

    def __getitem__(self, some: NDArray[Any]) -> LabeledRows:
        return replace(self, cells=self.cells[some], labels=self.labels[some])

    def subsample(self, max_cells: int) -> LabeledRows:
        """Draw cells as :func:`subsample_by_label` does."""
        return self[subsample_by_label(self.labels, max_cells)]

    def expression(self) -> sp.csr_matrix:
        """Read the expression, sparse, normalised as the network's minibatches are, ``(n_cells, n_genes)``."""
        x = sp.csr_matrix(self.rows.take(self.cells))
        parts = []
        for start, stop, way in self.slices:
            part = x if stop - start == x.shape[1] else x[:, start:stop]
            parts.append(
                sp.csr_matrix(part if way is None else way.normalize_block(part))
            )
        return parts[0] if len(parts) == 1 else sp.hstack(parts).tocsr()


class LinearClassifier(NamedTuple):
    """Parameters of the linear branch, which adds its logits to those of the network."""

    weights: NDArray[np.float64]
    """Shape ``(n_labels, n_genes)``."""
    biases: NDArray[np.float64]
    """Shape ``(n_labels,)``."""
    clip_max: NDArray[np.float64]
    """Largest expression of each gene, ``(n_genes,)``."""
    pair_weights: NDArray[np.float64]
    """Weights of the labels that occur, split by :func:`split_among_tokens`, ``(n_occurring, n_pairs)``."""
    inactive: NDArray[np.integer]
    """Codes of labels to which no gene set contributes in the group lasso."""


class CrossValidated(NamedTuple):
    """Temperature of the regression's logits, weight of the group lasso in the mean, and penalties."""

    temperature: float = EXPECTED_TEMPERATURE
    lasso_share: float = LASSO_SHARES[-1]
    config: RegressionConfig = DEFAULT_CONFIG


def fit_linear_classifier(
    data: LabeledRows,
    n_labels: int,
    tokens: sp.csr_matrix,
    *,
    weight: float | None = None,
    temperature: float = 1.0,
    lasso_share: float = LASSO_SHARES[-1],
    config: RegressionConfig = DEFAULT_CONFIG,
) -> LinearClassifier:
    """Fit the linear branch: regression, logit adjustment, temperature and weight in the model.

    Parameters
    ----------
    data
        The cells to fit to; of many, the subsample that :func:`subsample_by_label` draws is used.
    n_labels
        Number of labels. Labels that do not occur have a logit that is never the largest.
    tokens
        Which gene is in which token, shape ``(n_tokens, n_genes)``.
    weight
        Weight of the regression's logits relative to the network's, by default
        :func:`linear_to_network_ratio` of the number of cells.
    temperature, lasso_share, config
        As :func:`cross_validate` chooses them.

    Returns
    -------
    The classifier. Its biases contain the logit adjustment of the regression.
    """
    drawn = data.subsample(MAX_CELLS)
    return fit_classifier(
        drawn.expression(),
        drawn.labels,
        n_labels,
        tokens,
        slices=data.slices,
        weight=linear_to_network_ratio(len(data.cells)) if weight is None else weight,
        temperature=temperature,
        lasso_share=lasso_share,
        config=config,
    )


def fit_classifier(
    x: sp.csr_matrix,
    labels: NDArray[np.integer],
    n_labels: int,
    tokens: sp.csr_matrix,
    *,
    slices: Sequence[ModalitySlice] = (),
    weight: float = 1.0,
    temperature: float = 1.0,
    lasso_share: float = LASSO_SHARES[-1],
    config: RegressionConfig = DEFAULT_CONFIG,
) -> LinearClassifier:
    """Fit the linear branch to expression in memory.

    Parameters
    ----------
    x
        Log-normalised expression, ``(n_cells, n_genes)``.
    labels
        Label of each cell as a number, ``(n_cells,)``.
    n_labels, tokens, weight, temperature, lasso_share, config
        As in :func:`fit_linear_classifier`.
    slices
        Genes of each modality, by default of one.

    Returns
    -------
    The classifier.
    """
    occurring, codes = np.unique(labels, return_inverse=True)
    fitted = fit_regressions(x, codes, gene_sets=tokens, slices=slices, config=config)
    factor = weight / temperature
    has_token = tokens.getnnz(axis=0) > 0
    mean = (1 - lasso_share) * fitted.ridge + lasso_share * fitted.lasso
    pair_weights, is_inactive = split_among_tokens(mean, fitted.relevance, tokens)
    weights = np.zeros((n_labels, x.shape[1]))
    weights[occurring] = factor * _center(mean * has_token)
    # Labels without cells: a logit that no other one is below.
    biases = np.full(n_labels, -100 * factor)
    biases[occurring] = factor * _center(logit_adjustment(codes) * config.balanced)
    return LinearClassifier(
        weights,
        biases,
        x.max(0).toarray().ravel().astype(np.float64),
        factor * _center(pair_weights),
        occurring[is_inactive],
    )


def _center(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Subtract the mean of all labels, which softmax does not depend on."""
    return values - values.mean(0)


def split_among_tokens(
    weights: NDArray[np.float64], relevance: NDArray[np.float64], tokens: sp.csr_matrix
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Split each gene's weight among the tokens that hold it, in proportion to their relevance.

    Tokens that the group lasso leaves out have a hundredth of the relevance of the label's most
    relevant one. It counts for genes that no other token holds.

    Parameters
    ----------
    weights
        Weight of each gene, shape ``(n_labels, n_genes)``.
    relevance
        Relevance of each token in the group lasso, shape ``(n_labels, n_tokens)``.
    tokens
        Which gene is in which token, shape ``(n_tokens, n_genes)``.

    Returns
    -------
    Shape ``(n_labels, n_pairs)``, ordered by token and then by gene. The sum over the tokens that
    hold a gene is its weight. Also whether all tokens of a label are irrelevant beside those of
    others, ``(n_labels,)``; its weights are split equally.
    """
    largest = relevance.max(1, keepdims=True)
    is_inactive = largest <= 1e-6 * max(float(largest.max()), 1e-300)
    relevance = np.where(is_inactive, 1.0, np.maximum(relevance, 0.01 * largest))
    tokens = sp.csr_matrix(tokens, dtype=np.float64)
    tokens.sort_indices()
    total = relevance @ tokens
    per_relevance = np.divide(weights, total, out=np.zeros_like(total), where=total > 0)
    token = np.repeat(np.arange(tokens.shape[0]), np.diff(tokens.indptr))
    return per_relevance[:, tokens.indices] * relevance[:, token], is_inactive[:, 0]


def cross_validate(
    data: LabeledRows,
    tokens: sp.csr_matrix,
    *,
    max_cells: int = MAX_CELLS_CROSS_FIT,
) -> CrossValidated:
    """Choose the temperature, the weight of the group lasso and the penalties by cross-validation.

    The temperature makes the regression's logits comparable to the network's, which are calibrated
    by label smoothing. It is higher where labels overlap. The weight of the group lasso is below one
    half where labels differ by genes that few gene sets share. The prior of the temperature matters if
    there are few cells.

    Genes are divided by the fourth root of their mean, which finds labels in other batches and with few
    cells, or by the eighth, if the likelihood is then higher by two standard errors. It is where most
    genes are rarely detected, so that dividing them raises their noise.

    The usual penalties were chosen for thousands of genes, which separate all cells. With the genes of a
    panel, and more than twice as many cells as genes, no longer any labels are separable (Cover, *IEEE
    Trans. Electron. Comput.* 14, 1965), and the usual regression overfits. Stronger penalties are then
    tried, in a regression of all labels at once in which each cell counts the same.

    Parameters
    ----------
    data
        The cells that train or validate the model.
    tokens
        As in :func:`fit_linear_classifier`.
    max_cells
        Size of the subsample of the cells that is used.

    Returns
    -------
    Those of the highest likelihood of cells that were not fitted to.
    """
    drawn = data.subsample(max_cells)
    _, codes = np.unique(drawn.labels, return_inverse=True)
    x = drawn.expression()
    configs = [DEFAULT_CONFIG, replace(DEFAULT_CONFIG, gene_scale_power=0.125)]
    if is_panel := 2 * x.shape[1] < len(codes) and x.shape[1] <= PANEL_GENES:
        configs[1:] = (
            RegressionConfig(C=10 ** (-half / 2), multinomial=True, balanced=False)
            for half in range(3, 7)
        )

    def fit(cells: NDArray[np.bool_]) -> list[Regressions]:
        return [
            fit_regressions(
                x[cells],
                codes[cells],
                gene_sets=tokens,
                slices=data.slices,
                config=config,
            )
            for config in configs
        ]

    scores = np.full((len(configs), 2, len(codes), codes.max() + 1), np.nan)
    for fold, fitted in cross_fit(codes, fit, n_folds=3):
        for of_config, (ridge, lasso, _) in zip(scores, fitted, strict=True):
            of_config[:, fold] = x[fold] @ ridge.T, x[fold] @ lasso.T
    scored = np.isfinite(scores).all((0, 1, 3))
    truth = codes[scored]
    found: list[tuple[NDArray[np.float64], CrossValidated]] = []
    for config, of_config in zip(configs, scores, strict=True):
        ridge, lasso = of_config[:, scored]
        # By all cells: a fold has fewer cells of rare labels, which would raise their adjustment.
        adjustment, best = logit_adjustment(codes) * config.balanced, None
        for share in LASSO_SHARES[::-1] if len(truth) else ():
            logits = (1 - share) * ridge + share * lasso + adjustment
            temperature = fit_temperature(
                logits, truth, expected=EXPECTED_TEMPERATURE, spread=0.4
            )
            log_likelihood = log_softmax(logits / temperature, axis=1)[
                np.arange(len(truth)), truth
            ]
            if best is None or _is_higher(log_likelihood, best[0]):
                best = log_likelihood, CrossValidated(temperature, share, config)
        if best is not None and (
            is_panel or not found or _is_higher(best[0], found[0][0])
        ):
            found.append(best)
    return max(found, key=lambda fit: fit[0].mean())[1] if found else CrossValidated()


def _is_higher(log_likelihood: NDArray[np.float64], usual: NDArray[np.float64]) -> bool:
    """Whether the likelihood of the cells is higher by two standard errors."""
    gain = log_likelihood - usual
    return bool(gain.mean() > 2 * gain.std() / np.sqrt(len(gain)))


def logit_adjustment(
    labels: NDArray[np.integer], pseudocount: float = 20
) -> NDArray[np.float64]:
    r"""Compute what is added to each label's logit, so that rare labels are found.

    New cells of a label score less than those it was fitted to, the more so the fewer these were.
    The logit of a label with :math:`n` cells is raised by :math:`\log(1 + 20 / n)`, a logit
    adjustment for label frequency (Menon et al., *Long-tail learning via logit adjustment*, ICLR
    2021) that is bounded for frequent labels.

    Parameters
    ----------
    labels
        Label of each cell, from 0 on, shape ``(n_cells,)``. Each occurs.
    pseudocount
        Number of cells at which a label's logit is raised by :math:`\log 2`.

    Returns
    -------
    Shape ``(n_labels,)``.
    """
    return np.log1p(pseudocount / np.bincount(labels))


def linear_to_network_ratio(n_cells: int) -> float:
    """Compute the weight of the regression's logits relative to the network's.

    It is 8 for very many cells, and twice as large for 100, from which the network learns less than
    the regression does.
    """
    return 8.0 * (1 + 100 / n_cells)


# --------------------------------------------------------------------------- subsamples, folds


def subsample_by_label(labels: NDArray[np.integer], max_cells: int) -> NDArray[np.intp]:
    """Draw cells: all cells of rare labels, and equally many of each frequent label.

    Parameters
    ----------
    labels
        Label of each cell as a number, shape ``(n_cells,)``.
    max_cells
        Size of the subsample. With fewer cells than this, all are taken.

    Returns
    -------
    Positions of the drawn cells in order. They follow ``scvi.settings.seed``.
    """
    if len(labels) <= max_cells:
        return np.arange(len(labels))
    rng = np.random.default_rng(settings.seed)
    sizes = np.sort(np.bincount(labels))[::-1]
    # At limits[i] cells for each of the i + 1 largest labels, there are max_cells cells in all.
    smaller = np.append(np.cumsum(sizes[::-1])[::-1][1:], 0)
    limits = (max_cells - smaller) // np.arange(1, len(sizes) + 1)
    # The first limit that no smaller label exceeds.
    fits = limits >= np.append(sizes[1:], 0)
    limit = max(int(limits[np.argmax(fits)]), 1)
    kept = [
        rng.permutation(np.flatnonzero(labels == label))[:limit]
        for label in np.unique(labels)
    ]
    return np.sort(np.concatenate(kept))


def cross_fit(
    labels: NDArray[np.integer],
    fit: Callable[[NDArray[np.bool_]], Fitted],
    *,
    n_folds: int = 5,
) -> Iterator[tuple[NDArray[np.bool_], Fitted]]:
    """Fit one classifier for each fold, to the cells of all other folds.

    Folds are stratified by label.

    Parameters
    ----------
    labels
        Label of each cell, from 0 on, shape ``(n_cells,)``. Each occurs. A cell that is the only
        one of its label is in no fold, so that every classifier has every label.
    fit
        Fits a classifier to the cells where an array, ``(n_cells,)``, is ``True``.
    n_folds
        Number of folds.

    Yields
    ------
    Which cells are in the fold, ``(n_cells,)``, and the classifier that was fitted without them.
    """
    rng = np.random.default_rng(settings.seed)
    fold = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        of_label = rng.permutation(np.flatnonzero(labels == label))
        assigned = (np.arange(len(of_label)) + rng.integers(n_folds)) % n_folds
        fold[of_label] = assigned if len(of_label) > 1 else -1
    folds = [fold == i for i in range(n_folds) if (fold == i).any()]
    yield from zip(folds, thread_map(fit, [~fold for fold in folds]), strict=True)


# --------------------------------------------------------------------------- missing genes


def fit_ppca(
    data: LabeledRows, *, n_components: int = 20, min_noise: float = 0.01
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit probabilistic PCA (Tipping and Bishop, *J. R. Stat. Soc. B* 61, 1999).

    Parameters
    ----------
    data
        The cells to fit to; of many, the subsample that :func:`subsample_by_label` draws is used.
    n_components
        Number of principal components; there are fewer if there are not ten cells for each.
    min_noise
        Least variance of the noise, as a share of the variance of an average gene.

    Returns
    -------
    Mean, ``(n_genes,)``, and loadings in units of the noise's standard deviation,
    ``(n_genes, n_components)``, as :class:`~tosica.module._module.LinearBranch` uses them.
    """
    x = data.subsample(MAX_CELLS).expression()
    n_cells, n_genes = x.shape
    mean = np.asarray(x.mean(0), dtype=np.float64).ravel()
    n_components = min(n_components, n_cells // 10, n_genes - 1)
    total = float(np.square(x.data, dtype=np.float64).sum()) / n_cells - float(
        mean @ mean
    )
    if n_components < 1 or total <= 1e-6 * float(mean @ mean):
        return mean, np.zeros((n_genes, 0))
    from sklearn.decomposition import PCA

    pca = PCA(n_components, svd_solver="arpack", random_state=0).fit(x)
    explained = pca.explained_variance_ * (n_cells - 1) / n_cells
    noise = max(
        (total - explained.sum()) / (n_genes - n_components),
        min_noise * total / n_genes,
    )
    # The noise is part of the variance along the components too.
    lengths = np.sqrt(np.maximum(explained / noise - 1, 0))
    return mean, pca.components_.T * lengths
