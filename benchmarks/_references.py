"""References whose cells train a model and are predicted, and a batch effect that is made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scanpy as sc
from scipy.sparse import csr_matrix

from benchmarks._accuracy_tasks import BATCH, COUNTS, LABEL, breast, gut, kang, pbmc68k, prepared
from benchmarks._synthetic import synthetic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anndata import AnnData

# Standard deviation of the logarithm of a gene's factor, and share of the counts that are left.
EFFECT, DEPTH = 1.0, 0.7
# Labels with fewer cells are left out.
MIN_CELLS = 10


def made_up(seed: int) -> Callable[[Path], AnnData]:
    """Simulated cells of many types, some of them rare and similar."""

    def read(_: Path) -> AnnData:
        adata = synthetic(1200, 1500, batch_effect=0.3, seed=seed)
        return without_rarest(prepared(adata, "cell_type", "batch"))

    return read


def without_rarest(adata: AnnData, min_cells: int = MIN_CELLS) -> AnnData:
    """Cells of labels that have enough cells."""
    n_cells = adata.obs[LABEL].value_counts()
    kept = adata[adata.obs[LABEL].isin(n_cells.index[n_cells >= min_cells])].copy()
    kept.obs[LABEL] = kept.obs[LABEL].cat.remove_unused_categories()
    return kept


def condition(name: str, read_all: Callable[[Path], AnnData] = kang) -> Callable[[Path], AnnData]:
    """One condition of Kang's cells, or one batch of other cells."""

    def read(data: Path) -> AnnData:
        adata = read_all(data)
        return adata[adata.obs[BATCH] == name].copy()

    return read


REFERENCES: dict[str, tuple[str, Callable[[Path], AnnData]]] = {
    "control": ("Kang, control", condition("ctrl")),
    "stimulated": ("Kang, IFN-β", condition("stim")),
    "pbmc68k": ("pbmc68k", pbmc68k),
    "made up 1": ("made up", made_up(1)),
    "breast cells": ("breast, cells", condition("komentissuebank", breast)),
    "breast nuclei": ("breast, nuclei", condition("gtex", breast)),
    "gut": ("mouse gut", gut),
}


def batch_effect(adata: AnnData, seed: int) -> AnnData:
    """The same cells at lower depth, with a capture efficiency for each gene."""
    rng = np.random.default_rng(seed)
    factor = DEPTH * np.exp(rng.normal(0, EFFECT, adata.n_vars) - EFFECT**2 / 2)
    changed = adata.copy()
    drawn = rng.poisson(adata.layers[COUNTS].toarray() * factor).astype(np.float32)
    # Every cell has a count.
    drawn[drawn.sum(1) == 0, 0] = 1
    changed.X = csr_matrix(drawn)
    sc.pp.normalize_total(changed, target_sum=1e4)
    sc.pp.log1p(changed)
    return changed
