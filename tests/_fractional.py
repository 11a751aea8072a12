"""Counts that are not whole, as tools leave them that correct or share out what was read."""

from __future__ import annotations

import numpy as np


def deep_and_shallow(n_obs: int = 240, n_genes: int = 400, *, seed: int = 0) -> np.ndarray:
    """Counts of cells of three types and different depth."""
    rng = np.random.default_rng(seed)
    rate = rng.lognormal(-1, 1.8, n_genes) * np.ones((n_obs, 1))
    for i in range(3):
        rate[i::3, 40 * i : 40 * (i + 1)] *= 6
    depth = rng.lognormal(0, 0.5, (n_obs, 1))
    return rng.poisson(rate * depth).astype(np.float64)


def _allocate(total: float, limits: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Share a total out by weights, and no more than the limits."""
    given = np.zeros_like(limits)
    for _ in range(30):
        left, free = total - given.sum(), given < limits - 1e-12
        if left < 1e-9 or not free.any():
            break
        share = weights[free] / weights[free].sum()
        given[free] = np.minimum(given[free] + left * share, limits[free])
    return given


def soupx(counts: np.ndarray, clusters: np.ndarray, rho: float = 0.1) -> np.ndarray:
    """Subtract ambient RNA as SoupX's ``adjustCounts`` does: of a cluster, then of its cells."""
    soup, depth = counts.sum(0) / counts.sum(), counts.sum(1)
    corrected = counts.copy()
    for cluster in np.unique(clusters):
        cells = np.flatnonzero(clusters == cluster)
        removed = _allocate(rho * depth[cells].sum(), counts[cells].sum(0), soup)
        for gene in np.flatnonzero(removed):
            some = cells[counts[cells, gene] > 0]
            own = counts[some, gene]
            corrected[some, gene] -= _allocate(removed[gene], own, depth[some])
    corrected[corrected < 1e-9] = 0
    return corrected


def alevin(counts: np.ndarray, share: float = 0.2, *, seed: int = 0) -> np.ndarray:
    """Share a part of the molecules of two fifths of the genes between two genes, as EM does."""
    rng = np.random.default_rng(seed)
    shared = counts.copy()
    for one, other in rng.permutation(counts.shape[1])[: counts.shape[1] // 5 * 2].reshape(-1, 2):
        unclear = rng.binomial(counts[:, one].astype(int), share)
        moved = unclear * rng.dirichlet([2, 2], len(counts))[:, 0]
        shared[:, one] -= moved
        shared[:, other] += moved
    return shared


def decontx(counts: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Multiply counts by the share of the cell's own, different for genes and cells."""
    rng = np.random.default_rng(seed)
    return counts * rng.beta(9, 1, (1, counts.shape[1])) * rng.beta(9, 1, (len(counts), 1))
