"""Cells on known scales, for tests of what a matrix holds."""

import anndata as ad
import numpy as np
import pytest
from _strategies import CONTAINERS
from scipy.stats import rankdata

from tosica.data import CellMatrix

N_CELLS, N_GENES = 60, 40

# A block of rows is never kept by columns.
FORMATS = {
    name: make for name, make in CONTAINERS.items() if not name.startswith("csc")
}
each_format = pytest.mark.parametrize("format_", FORMATS.values(), ids=FORMATS)


def normalized(counts, target_sum=1e4, log=True):
    """As ``sc.pp.normalize_total`` and ``sc.pp.log1p`` do, but empty cells pass in silence."""
    total = counts.sum(1, keepdims=True)
    target = np.median(total[total > 0]) if target_sum is None else target_sum
    scaled = counts * np.divide(
        target, total, out=np.zeros_like(total), where=total > 0
    )
    return (np.log1p(scaled) if log else scaled).astype(np.float32)


def rows(matrix):
    return CellMatrix(ad.AnnData(matrix))


def sequenced(n_cells=80, n_genes=300, seed=0):
    """Counts of cells of two types that differ in depth, some genes much higher than others."""
    rng = np.random.default_rng(seed)
    rates = rng.lognormal(-0.5, 1.2, (2, n_genes))[np.arange(n_cells) % 2]
    depth = rng.lognormal(0, 0.5, (n_cells, 1))
    return rng.poisson(rates * depth) + 0.0


def shares(counts):
    return np.asarray(counts / counts.sum(1, keepdims=True))


def reads(counts):
    """Reads of genes of different length, which are no multiples of anything."""
    return counts * np.random.default_rng(1).lognormal(0, 1, counts.shape[1])


def ambient_removed(counts):
    """Multiply counts by the share of the cell's own, as DecontX and SoupX do in effect."""
    rng = np.random.default_rng(0)
    return (
        counts * rng.beta(9, 1, (1, counts.shape[1])) * rng.beta(9, 1, (len(counts), 1))
    )


def shared_out(counts):
    """Share a part of the molecules of two fifths of the genes between two genes, as alevin."""
    rng = np.random.default_rng(0)
    shared = counts.copy()
    for gene, relative in rng.permutation(counts.shape[1])[
        : counts.shape[1] // 5 * 2
    ].reshape(-1, 2):
        unclear = rng.binomial(counts[:, gene].astype(int), 0.2)
        moved = unclear * rng.dirichlet([2, 2], len(counts))[:, 0]
        shared[:, gene] -= moved
        shared[:, relative] += moved
    return shared


def half(even_cells, odd_cells):
    """Every second cell of one matrix, the other cells of another."""
    return np.where(np.arange(len(even_cells))[:, None] % 2 == 0, even_cells, odd_cells)


def log(counts, total=1e4):
    return np.log1p(total * shares(counts))


# What counts may be made into: what it is taken as, and how it is made.
TAKEN = {
    "counts": ("counts", lambda c: c),
    "counts, one fraction": (
        "counts",
        lambda c: np.where(np.arange(c.size).reshape(c.shape) == 9, 1.5, c),
    ),
    "counts, shared out": ("counts", shared_out),
    "counts per million": ("counts", lambda c: 1e6 * shares(c)),
    "counts per 10 000": ("counts", lambda c: 1e4 * shares(c)),
    "shares": ("counts", shares),
    "reads per million": ("counts", lambda c: 1e6 * shares(reads(c))),
    "log1p of 1e3": ("log1p", lambda c: log(c, 1e3)),
    "log1p of 1e4": ("log1p", log),
    "log1p of 1e6": ("log1p", lambda c: log(c, 1e6)),
    "log1p of 1 count is 6": ("log1p", lambda c: log(c, np.expm1(6) * c.sum(1).min())),
    "log1p of reads": ("log1p", lambda c: log(reads(c))),
    "log1p without ambient RNA": ("log1p", lambda c: log(ambient_removed(c))),
    "log1p, rounded": ("log1p", lambda c: log(c).round(3)),
}
REFUSED = {
    "counts without ambient RNA": ambient_removed,
    "log1p twice": lambda c: np.log1p(log(c)),
    "log1p and normalized again": lambda c: 1e4 * shares(log(c)),
    "normalized and log1p twice": lambda c: log(log(c)),
    "log1p of raw counts": np.log1p,
    "square roots": lambda c: np.sqrt(1e4 * shares(c)),
    "square roots of raw counts": np.sqrt,
    "log2 of 1e4": lambda c: np.log2(1 + 1e4 * shares(c)),
    "log2 of reads": lambda c: np.log2(1 + 1e6 * shares(reads(c))),
    "genes scaled to 1": lambda c: log(c) / log(c).max(0).clip(1e-9),
    "ranks": lambda c: rankdata(log(c), axis=1),
    "ranks without ties": lambda c: log(c).argsort(1).argsort(1) + 1.0,
    "one value": lambda c: np.full_like(c, 2.5),
    "half counts, half log1p": lambda c: half(c, log(c)),
    "half log1p, half log1p of raw counts": lambda c: half(log(c), np.log1p(c)),
    "a batch of counts": lambda c: np.vstack([c[: len(c) // 6], log(c)[len(c) // 6 :]]),
}
