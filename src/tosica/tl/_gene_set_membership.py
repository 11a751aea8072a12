"""Which genes are co-expressed with a gene set: scores of held-out genes, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from sklearn.utils.extmath import randomized_svd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# Of each of the two PCAs; fewer with few cells or genes.
_N_COMPONENTS = 50
# Standardized expression above this is clipped: otherwise single cells would decide on rare genes.
_MAX_EXPRESSION = 10
# Ridge penalty, relative to the mean variance of the loadings.
_RIDGE = 3.0
# Fewest genes of a set that must be found before other genes join it.
_FEWEST_FOUND = 3


class Refinement(NamedTuple):
    """What changes in one gene set.

    ``gained`` and ``lost`` are positions of genes. ``recall`` is the share of the set's genes that
    are found among all other genes when they are held out.
    """

    gained: NDArray[np.intp]
    lost: NDArray[np.intp]
    recall: float


def bootstrap(
    labels: NDArray[np.integer], n_bootstraps: int, random_state: int
) -> Iterator[NDArray[np.intp]]:
    """Draw as many cells of each label as it has, with replacement.

    Parameters
    ----------
    labels
        Label of each cell as a number, ``(n_cells,)``.
    n_bootstraps
        Number of draws.
    random_state
        Seed of the draws.

    Yields
    ------
    Positions of the cells, ``(n_cells,)``.
    """
    rng = np.random.default_rng(random_state)
    by_label = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(n_bootstraps):
        yield np.concatenate([rng.choice(cells, len(cells)) for cells in by_label])


class Genes(NamedTuple):
    """Standardized expression, ``(n_cells, n_genes)``, and loadings, ``(n_genes, n_loadings)``."""

    z: NDArray[np.float32]
    loadings: NDArray[np.float64]


def describe_genes(x: NDArray[np.float32], labels: NDArray[np.integer]) -> Genes:
    """Describe each gene by its standardized expression, and by its loadings on two PCAs.

    The first PCA is that of standardized expression, the second that of its deviations from the
    mean of each label.

    Parameters
    ----------
    x
        Log-normalized expression, ``(n_cells, n_genes)``.
    labels
        Label of each cell as a number, ``(n_cells,)``.

    Returns
    -------
    Genes with constant expression are zeros.
    """
    z = _standardize(x)
    np.clip(z, None, _MAX_EXPRESSION, out=z)
    within = z.copy()
    for label in np.unique(labels):
        within[labels == label] -= within[labels == label].mean(0)
    loadings = np.hstack([_loadings(z), _loadings(_standardize(within))])
    return Genes(z, loadings.astype(np.float64))


def _standardize(x: NDArray[np.float32]) -> NDArray[np.float32]:
    centered = x - x.mean(0)
    deviation = centered.std(0)
    # Rounding errors of constant genes are not expression.
    varies = deviation > 1e-5
    return np.where(varies, centered / np.where(varies, deviation, 1), 0).astype(np.float32)


def _loadings(z: NDArray[np.float32]) -> NDArray[np.float32]:
    n_components = max(1, min(_N_COMPONENTS, z.shape[0] // 5, z.shape[1] // 5))
    _, values, components = randomized_svd(z, n_components, random_state=0)
    return components.T * (values / np.sqrt(len(z)))


def held_out_scores(genes: Genes, members: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Score every gene for every gene set by its co-expression with the set's genes.

    The score is the sum of two, each standardized: a ridge regression of membership on the
    loadings, and the mean correlation with the set's genes. The first is more accurate with many
    cells, the second with few.

    The score of a gene never uses its own membership. So scores of members and of other genes can
    be compared.

    Parameters
    ----------
    genes
        See :func:`describe_genes`.
    members
        Which gene is in which gene set, ``(n_gene_sets, n_genes)``.

    Returns
    -------
    Shape ``(n_gene_sets, n_genes)``.
    """
    outside = ~members
    n_outside = np.maximum(outside.sum(1, keepdims=True), 1)
    total = np.zeros(members.shape)
    for score in (ridge_scores(genes.loadings, members), mean_correlations(genes.z, members)):
        score -= score.sum(1, keepdims=True, where=outside) / n_outside
        deviation = np.sqrt((score**2).sum(1, keepdims=True, where=outside) / n_outside)
        total += score / np.maximum(deviation, 1e-12)
    return total


def ridge_scores(loadings: NDArray[np.float64], members: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Predict membership by ridge regressions on the loadings, of each gene by those of the others.

    The formula for leave-one-out residuals of ridge regression gives the prediction of a gene by
    the regression without it.
    """
    n_genes, n_loadings = loadings.shape
    known = members.astype(np.float64)
    centered = loadings - loadings.mean(0)
    covariance = centered.T @ centered
    penalty = max(_RIDGE * np.trace(covariance) / n_loadings, 1e-12)
    solution = np.linalg.solve(covariance + penalty * np.eye(n_loadings), centered.T)
    # Diagonal of the hat matrix; the intercept, the mean of the membership, adds 1 / n_genes.
    leverage = np.einsum("gd,dg->g", centered, solution) + 1 / n_genes
    fitted = (known @ solution.T) @ centered.T + known.mean(1, keepdims=True)
    return (fitted - leverage * known) / (1 - leverage)


def mean_correlations(z: NDArray[np.float32], members: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean correlation of each gene with the other genes of a set, ``(n_gene_sets, n_genes)``."""
    known = members.astype(np.float32)
    n_others = np.maximum(members.sum(1, keepdims=True) - known, 1)
    with_itself = (z**2).mean(0)
    total = (known @ z.T / len(z)) @ z
    return ((total - known * with_itself) / n_others).astype(np.float64)


def refine(scores: NDArray[np.float64], members: NDArray[np.bool_], price: float) -> Refinement:
    """Decide which genes join a gene set, and which leave it.

    Genes outside of the set join down to the lowest score at which ``price`` of its own genes are
    found for each of them. Genes of the set leave up to the highest score at which a score that low
    is ``price`` times as frequent outside of the set as in it.

    Parameters
    ----------
    scores
        Scores of all genes for one gene set, ``(n_genes,)``.
    members
        Which genes are in the set, ``(n_genes,)``.
    price
        Own genes found for each gene that joins.
    """
    order = np.argsort(-scores, kind="stable")
    inside = members[order]
    n_found, n_others = np.cumsum(inside), np.cumsum(~inside)
    n_members, n_outside = max(int(n_found[-1]), 1), max(int(n_others[-1]), 1)
    # Up to a member: below the last one that is found, genes are less like the set than it is.
    paid = inside & (n_found >= price * n_others) & (n_found >= _FEWEST_FOUND)
    last = int(np.flatnonzero(paid)[-1]) + 1 if paid.any() else 0
    gained = order[:last][~inside[:last]]
    recall = float(n_found[last - 1]) / n_members if last else 0.0
    # From here to the end of the order, i.e. with scores that low.
    share_inside = np.cumsum(inside[::-1])[::-1] / n_members
    share_outside = np.cumsum(~inside[::-1])[::-1] / n_outside
    unlike = np.flatnonzero(inside & (price * share_inside <= share_outside))
    first = int(unlike[0]) if len(unlike) else len(order)
    lost = order[max(first, last) :]
    return Refinement(np.sort(gained), np.sort(lost[members[lost]]), recall)
