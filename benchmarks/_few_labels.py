"""References of which a few cells of each type have a label, and their queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anndata as ad
import numpy as np

from benchmarks._accuracy_tasks import (
    BATCH,
    LABEL,
    breast,
    gut,
    kang,
    lung,
    pbmc68k,
    prepared,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anndata import AnnData


class FewLabels(NamedTuple):
    """Labelled cells, the other cells of their batch, and the query, on the same genes.

    Methods may read the expression of all cells, and the labels of the labelled ones.
    """

    labeled: AnnData
    unlabeled: AnnData
    query: AnnData


class FewLabelsTask(NamedTuple):
    """Title, reader, batch of the labelled cells, and numbers of labelled cells of each type.

    Without a batch, all cells but the labelled ones are the query.
    """

    what: str
    read: Callable[[Path], AnnData]
    batch: str | None
    sizes: tuple[int, ...]


TASKS: dict[str, FewLabelsTask] = {
    "kang": FewLabelsTask("Kang, control → IFN-β", kang, "ctrl", (5, 10, 50)),
    "lung": FewLabelsTask("lung, CEL-seq2 → Drop-seq", lung, "sc_celseq2", (5, 10)),
    "breast": FewLabelsTask("breast, cells → nuclei", breast, "komentissuebank", (5, 10)),
    "pbmc68k": FewLabelsTask("pbmc68k, all other cells", pbmc68k, None, (5, 10, 50)),
    "gut": FewLabelsTask("mouse gut, 22 types, all other cells", gut, None, (5,)),
}
# Settings were chosen here, and with other seeds.
TUNING = FewLabelsTask("Kang, IFN-β → control", kang, "stim", (5, 10))


def draw(adata: AnnData, task: FewLabelsTask, n_labeled: int, seed: int) -> FewLabels:
    """Draw labelled cells at random, of each type `n_labeled`, but at most half of the type."""
    rng = np.random.default_rng(seed)
    batch, labels = adata.obs[BATCH].to_numpy(), adata.obs[LABEL].astype(str).to_numpy()
    inside = np.ones(adata.n_obs, dtype=bool) if task.batch is None else batch == task.batch
    is_labeled = np.zeros(adata.n_obs, dtype=bool)
    for label in np.unique(labels[inside]):
        of_label = np.flatnonzero(inside & (labels == label))
        n_drawn = max(min(n_labeled, len(of_label) // 2), 1)
        is_labeled[rng.permutation(of_label)[:n_drawn]] = True
    is_query = ~is_labeled if task.batch is None else ~inside
    parts = (is_labeled, ~is_labeled & ~is_query, is_query)
    labeled, unlabeled, query = (adata[part].copy() for part in parts)
    labeled.obs[LABEL] = labeled.obs[LABEL].cat.remove_unused_categories()
    return FewLabels(labeled, unlabeled, query)


def all_cells(split: FewLabels) -> AnnData:
    """All cells of a split."""
    return ad.concat([part for part in split if part.n_obs])


def more_cells(data: Path) -> AnnData:
    """2 000 other cells of Kang et al. (2018), half of them treated with IFN-β, on shared genes."""
    files = [ad.read_h5ad(data / f"kang_{name}_unlabelled.h5ad") for name in ("ctrl", "stim")]
    both = ad.concat(files, index_unique="-")
    shared = both.var_names[both.var_names.isin(kang(data).var_names)]
    both = both[:, shared].copy()
    both.obs["none"] = "none"
    return prepared(both, "none")
