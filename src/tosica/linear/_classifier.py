"""The classifier of the linear branch, and the probabilistic PCA that imputes missing genes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.special import log_softmax
from scvi import settings

from tosica._parallel import thread_map
from tosica._probabilities import fit_temperature
from tosica.linear._label_groups import LabelGroups
from tosica.linear._logistic import (
    DEFAULT_CONFIG,
    RegressionConfig,
    Regressions,
    fit_regressions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tosica._types import BoolArray, FloatArray, IntArray
    from tosica.data import CellMatrix, JointMatrix, ModalitySlice

# More cells hardly change the regression or the principal components; with more cells,
# cross-fitting would take longer than training the network.
MAX_CELLS = 10_000
MAX_CELLS_CROSS_FIT = 4_000
# Targeted panels (Xenium, CosMx, MERSCOPE) have at most this many genes.
PANEL_GENES = 1000
# Cross-validation chooses the weight of the group lasso regression in the mean of both regressions.
# A weight above one half is less accurate in other batches, but cross-validation cannot show that.
LASSO_SHARES = (0.0, 0.25, 0.5)
# It also chooses the weight of a group's regression beside that of a label in it.
GROUP_WEIGHTS = (0.0, 0.25, 0.5)
# One-vs-rest scores are not calibrated against each other. Their temperature lies between one and
# three, depending on the reference.
EXPECTED_TEMPERATURE = 2.0
# Principal components of the PCA that imputes; fewer if there are not ten cells for each.
_N_COMPONENTS = 20
# Least variance of its noise, as a share of the variance of an average gene.
_MIN_NOISE = 0.01

Classifier = TypeVar("Classifier")


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
        Columns of each modality that is read; they are adjacent.
    """

    rows: CellMatrix | JointMatrix
    cells: IntArray
    labels: IntArray
    slices: tuple[ModalitySlice, ...]

    def __getitem__(self, index: NDArray[Any]) -> LabeledRows:
        return replace(self, cells=self.cells[index], labels=self.labels[index])

    def subsample(self, max_cells: int) -> LabeledRows:
        """Draw cells as :func:`subsample_by_label` does."""
        return self[subsample_by_label(self.labels, max_cells)]

    def expression(self) -> sp.csr_matrix:
        """Read the expression of the modalities, sparse, ``(n_cells, n_genes)``."""
        x = sp.csr_matrix(self.rows.take(self.cells))
        begin = self.slices[0].start
        end = self.slices[-1].stop
        return x if end - begin == x.shape[1] else x[:, begin:end]


class LinearClassifier(NamedTuple):
    """Parameters of the linear branch, which adds its logits to those of the network."""

    weights: FloatArray
    """Shape ``(n_labels, n_genes)``."""
    biases: FloatArray
    """Shape ``(n_labels,)``."""
    clip_max: FloatArray
    """Largest expression of each gene, ``(n_genes,)``."""
    pair_weights: FloatArray
    """Weights of the labels that occur, split by :func:`split_among_tokens`, ``(n_occurring, n_pairs)``."""
    inactive: IntArray
    """Codes of labels to which no gene set contributes in the group lasso."""


class CrossValidated(NamedTuple):
    """Result of :func:`cross_validate`."""

    temperature: float = EXPECTED_TEMPERATURE
    """Temperature of the regression's logits."""
    lasso_share: float = LASSO_SHARES[-1]
    """Weight of the group lasso in the mean of both regressions."""
    config: RegressionConfig = DEFAULT_CONFIG
    """Penalties."""
    group_weight: float = 0.0
    """Weight of the groups above a label beside the label itself."""


def fit_classifier(
    x: sp.csr_matrix,
    labels: IntArray,
    n_labels: int,
    tokens: sp.csr_matrix,
    penalties: CrossValidated,
    slices: Sequence[ModalitySlice] = (),
    levels: Sequence[IntArray] = (),
) -> LinearClassifier:
    """Fit the linear branch: regression, logit adjustment and temperature.

    A label's weights are its own and, times ``penalties.group_weight``, those of its group on each level. The
    regression of a group is fitted to the cells of all its labels, and knows more of what they share. In the
    probabilities of the labels of a group, it cancels out.

    Parameters
    ----------
    x
        Log-normalized expression, ``(n_cells, n_genes)``.
    labels
        Label of each cell as a number, ``(n_cells,)``.
    n_labels
        Number of labels. Labels that do not occur have a logit that is never the largest.
    tokens
        Which gene is in which token, shape ``(n_tokens, n_genes)``.
    penalties
        Temperature, weight of the group lasso and penalties.
    slices
        Genes of each modality, by default of one.
    levels
        Group of each label as a number on each level above the labels, ``(n_labels,)``.

    Returns
    -------
    The classifier. Its biases contain the logit adjustment of the regression.
    """
    occurring, codes = np.unique(labels, return_inverse=True)
    config = penalties.config
    group_weight = penalties.group_weight
    groups = LabelGroups.from_levels(
        [level[occurring] for level in levels], len(occurring)
    )
    fitted = fit_regressions(
        x,
        codes,
        gene_sets=tokens,
        slices=slices,
        config=config,
        groups=groups.members if group_weight else None,
    )
    factor = 1 / penalties.temperature
    lasso_share = penalties.lasso_share
    has_token = tokens.getnnz(axis=0) > 0
    mean = (1 - lasso_share) * fitted.ridge + lasso_share * fitted.lasso
    mean = groups.add(mean, group_weight)
    relevance = groups.add(fitted.relevance, group_weight)
    pair_weights, is_inactive = split_among_tokens(mean, relevance, tokens)
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


def _center(values: FloatArray) -> FloatArray:
    """Subtract the mean of all labels, which softmax does not depend on."""
    return values - values.mean(0)


def split_among_tokens(
    weights: FloatArray, relevance: FloatArray, tokens: sp.csr_matrix
) -> tuple[FloatArray, BoolArray]:
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
    data: LabeledRows, tokens: sp.csr_matrix, levels: Sequence[IntArray] = ()
) -> CrossValidated:
    """Choose the temperature, the weights of group lasso and label groups, and the penalties by cross-validation.

    The temperature makes the regression's logits comparable to the network's, which are calibrated
    by label smoothing. It is higher where labels overlap. The weight of the group lasso is below one
    half where labels differ by genes that few gene sets share. Groups of labels get a weight where this raises the
    likelihood by two standard errors: where labels have enough cells in common, and are alike. The prior of the
    temperature matters if there are few cells.

    Genes are divided by the fourth root of their mean, which finds labels in other batches and with few
    cells, or by the eighth, if the likelihood is then higher by two standard errors. It is where most
    genes are rarely detected, so that dividing them raises their noise.

    The default penalties were chosen for thousands of genes, which separate all cells. With the genes of a
    panel, and more than twice as many cells as genes, no longer any labels are separable (Cover, *IEEE
    Trans. Electron. Comput.* 14, 1965), and the default regression overfits. Stronger penalties are then
    tried, in a regression of all labels at once in which each cell counts the same, and without groups.

    Parameters
    ----------
    data
        The cells that train or validate the model; of many, a subsample is used.
    tokens, levels
        As in :func:`fit_classifier`.

    Returns
    -------
    The settings of the highest likelihood of held-out cells.
    """
    subsample = data.subsample(MAX_CELLS_CROSS_FIT)
    occurring, codes = np.unique(subsample.labels, return_inverse=True)
    x = subsample.expression()
    is_panel = 2 * x.shape[1] < len(codes) and x.shape[1] <= PANEL_GENES
    configs = [DEFAULT_CONFIG]
    if is_panel:
        levels = ()
        configs += [
            RegressionConfig(C=10**-exponent, multinomial=True, balanced=False)
            for exponent in (1.5, 2, 2.5, 3)
        ]
    else:
        configs.append(replace(DEFAULT_CONFIG, gene_scale_power=0.125))

    groups = LabelGroups.from_levels(
        [level[occurring] for level in levels], len(occurring)
    )

    def fit(cells: BoolArray) -> list[Regressions]:
        return [
            fit_regressions(
                x[cells],
                codes[cells],
                groups=groups.members,
                gene_sets=tokens,
                slices=data.slices,
                config=config,
            )
            for config in configs
        ]

    scores = np.full((len(configs), 2, len(codes), groups.above.shape[1]), np.nan)
    for fold, regressions in cross_fit(codes, fit, n_folds=3):
        for config_scores, fitted in zip(scores, regressions, strict=True):
            config_scores[0, fold] = x[fold] @ fitted.ridge.T
            config_scores[1, fold] = x[fold] @ fitted.lasso.T
    is_scored = np.isfinite(scores).all((0, 1, 3))
    if not is_scored.any():
        return CrossValidated()
    # By all cells: a fold has fewer cells of rare labels, which would raise their adjustment.
    adjustment = logit_adjustment(codes)
    candidates = [
        _choose_shares(
            config_scores[:, is_scored], codes[is_scored], adjustment, groups, config
        )
        for config, config_scores in zip(configs, scores, strict=True)
    ]
    default = candidates[0]
    best = default
    for candidate in candidates[1:]:
        is_better = is_panel or candidate.is_likelier(default)
        if is_better and candidate.mean() > best.mean():
            best = candidate
    return best.parameters


class _Candidate(NamedTuple):
    log_likelihood: FloatArray
    """Log-likelihood of each held-out cell, ``(n_cells,)``."""
    parameters: CrossValidated

    def mean(self) -> float:
        return float(self.log_likelihood.mean())

    def is_likelier(self, default: _Candidate) -> bool:
        """Whether the likelihood of the cells is higher by two standard errors."""
        gain = self.log_likelihood - default.log_likelihood
        return bool(gain.mean() > 2 * gain.std() / np.sqrt(len(gain)))


def _choose_shares(
    scores: FloatArray,
    labels: IntArray,
    adjustment: FloatArray,
    groups: LabelGroups,
    config: RegressionConfig,
) -> _Candidate:
    """Choose the weights of group lasso and label groups, and fit the temperature, for some penalties.

    ``scores`` are those of ridge and group lasso, ``(2, n_cells, n_labels + n_groups)``.
    """
    ridge, lasso = scores
    candidates = []
    for group_weight in GROUP_WEIGHTS if len(groups.members) else GROUP_WEIGHTS[:1]:
        for share in LASSO_SHARES[::-1]:
            mean = (1 - share) * ridge + share * lasso
            logits = groups.add(mean.T, group_weight).T + adjustment * config.balanced
            temperature = fit_temperature(
                logits, labels, expected=EXPECTED_TEMPERATURE, spread=0.4
            )
            log_probabilities = log_softmax(logits / temperature, axis=1)
            log_likelihood = log_probabilities[np.arange(len(labels)), labels]
            parameters = CrossValidated(temperature, share, config, group_weight)
            candidates.append(_Candidate(log_likelihood, parameters))
    best = candidates[0]
    for candidate in candidates[1:]:
        if candidate.is_likelier(best):
            best = candidate
    return best


def logit_adjustment(labels: IntArray) -> FloatArray:
    r"""Compute an offset of each label's logit, so that rare labels are found.

    New cells of a label score less than those it was fitted to, the more so the fewer these were.
    The logit of a label with :math:`n` cells is raised by :math:`\log(1 + 20 / n)`, a logit
    adjustment for label frequency (Menon et al., *Long-tail learning via logit adjustment*, ICLR
    2021) that is bounded for frequent labels.

    Parameters
    ----------
    labels
        Label of each cell, from 0 on, shape ``(n_cells,)``. Each occurs.

    Returns
    -------
    Shape ``(n_labels,)``.
    """
    return np.log1p(20 / np.bincount(labels))


def linear_to_network_ratio(n_cells: int) -> float:
    """Compute the weight of the regression's logits relative to the network's.

    It is 8 for very many cells, and twice as large for 100, from which the network learns less than
    the regression does.
    """
    return 8.0 * (1 + 100 / n_cells)


# --------------------------------------------------------------------------- subsamples, folds


def _shuffle_labels(labels: IntArray, rng: np.random.Generator) -> Iterator[IntArray]:
    """Cells of each label in turn, in random order."""
    for label in np.unique(labels[labels >= 0]):
        yield rng.permutation(np.flatnonzero(labels == label))


def subsample_by_label(labels: IntArray, max_cells: int) -> IntArray:
    """Draw cells: all cells of rare labels, and equally many of each frequent label.

    Parameters
    ----------
    labels
        Label of each cell as a number, shape ``(n_cells,)``. Cells with -1 are left out.
    max_cells
        Size of the subsample. With fewer cells than this, all are taken.

    Returns
    -------
    Positions of the cells in order. They follow ``scvi.settings.seed``.
    """
    labeled = np.flatnonzero(labels >= 0)
    if len(labeled) <= max_cells:
        return labeled
    rng = np.random.default_rng(settings.seed)
    sizes = np.sort(np.bincount(labels[labeled]))[::-1]
    # At limits[i] cells for each of the i + 1 largest labels, there are max_cells cells in all.
    smaller = np.append(np.cumsum(sizes[::-1])[::-1][1:], 0)
    limits = (max_cells - smaller) // np.arange(1, len(sizes) + 1)
    # The first limit that no smaller label exceeds.
    fits = limits >= np.append(sizes[1:], 0)
    limit = max(int(limits[np.argmax(fits)]), 1)
    subsamples = [cells[:limit] for cells in _shuffle_labels(labels, rng)]
    return np.sort(np.concatenate(subsamples))


def cross_fit(
    labels: IntArray,
    fit: Callable[[BoolArray], Classifier],
    *,
    n_folds: int = 5,
) -> Iterator[tuple[BoolArray, Classifier]]:
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
    Mask of the fold's cells, ``(n_cells,)``, and the classifier that was fitted without them.
    """
    rng = np.random.default_rng(settings.seed)
    fold = np.full(len(labels), -1)
    for cells in _shuffle_labels(labels, rng):
        offset = rng.integers(n_folds)
        if len(cells) > 1:
            fold[cells] = (np.arange(len(cells)) + offset) % n_folds
    folds = [fold == i for i in range(n_folds) if (fold == i).any()]
    yield from zip(folds, thread_map(fit, [~fold for fold in folds]), strict=True)


# --------------------------------------------------------------------------- missing genes


def fit_ppca(data: LabeledRows) -> tuple[FloatArray, FloatArray]:
    """Fit probabilistic PCA (Tipping and Bishop, *J. R. Stat. Soc. B* 61, 1999).

    Parameters
    ----------
    data
        The cells to fit to; of many, the subsample that :func:`subsample_by_label` draws is used.

    Returns
    -------
    Mean, ``(n_genes,)``, and loadings in units of the noise's standard deviation,
    ``(n_genes, n_components)``, as :class:`~tosica.module._module.LinearBranch` uses them.
    """
    x = data.subsample(MAX_CELLS).expression()
    n_cells, n_genes = x.shape
    mean = np.asarray(x.mean(0), dtype=np.float64).ravel()
    n_components = min(_N_COMPONENTS, n_cells // 10, n_genes - 1)
    square_of_mean = float(mean @ mean)
    mean_square = float(np.square(x.data, dtype=np.float64).sum()) / n_cells
    total = mean_square - square_of_mean
    if n_components < 1 or total <= 1e-6 * square_of_mean:
        return mean, np.zeros((n_genes, 0))
    from sklearn.decomposition import PCA

    pca = PCA(n_components, svd_solver="arpack", random_state=0).fit(x)
    explained = pca.explained_variance_ * (n_cells - 1) / n_cells
    unexplained = (total - explained.sum()) / (n_genes - n_components)
    noise = max(unexplained, _MIN_NOISE * total / n_genes)
    # The noise is part of the variance along the components too.
    lengths = np.sqrt(np.maximum(explained / noise - 1, 0))
    return mean, pca.components_.T * lengths
