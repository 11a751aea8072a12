"""Random gene sets."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix


def draw_gene_sets(
    n_vars: int, *, n_sets: int, min_genes: int, mask_ratio: float, seed: int
) -> tuple[list[str], csr_matrix]:
    """Random gene sets, (n_sets, n_vars) bool, none below `min_genes`."""
    if n_vars < min_genes:
        raise ValueError(
            f"a random gene set cannot hold min_genes={min_genes} genes because adata has only "
            f"{n_vars}: lower min_genes or pass an adata with more genes."
        )
    rng = np.random.default_rng(seed)
    genes = []
    for _ in range(n_sets):
        inside = rng.random(n_vars) < mask_ratio
        n_missing = min_genes - int(inside.sum())
        if n_missing > 0:
            inside[rng.choice(np.flatnonzero(~inside), size=n_missing, replace=False)] = True
        genes.append(np.flatnonzero(inside))
    indptr = np.concatenate([[0], np.cumsum([g.size for g in genes])])
    members = csr_matrix(
        (np.ones(indptr[-1], dtype=bool), np.concatenate(genes), indptr), shape=(n_sets, n_vars)
    )
    return [f"random_{i + 1}" for i in range(n_sets)], members
