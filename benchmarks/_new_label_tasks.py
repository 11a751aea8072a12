"""Tasks of `benchmarks.new_labels`: a type is held out of the reference, and some cells of it come.

Half of one batch is the reference, without the held-out type. The query is the other half of the
same batch, or another batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from sklearn.model_selection import train_test_split

from benchmarks._accuracy_tasks import BATCH, LABEL, kang, lung

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from anndata import AnnData

# Column with the labels that a method may see, and its value in cells without a label.
SEEN_LABEL = "seen_label"
UNLABELED = "unlabeled"
# Labeled cells of the held-out type.
N_NEW = 30
DATASETS = {"Kang": (kang, "ctrl"), "lung": (lung, "sc_celseq2")}


class Query(NamedTuple):
    """A query: cells to adapt to, with ``obs["seen_label"]``, and other cells to score on."""

    name: str
    cells: AnnData
    test: AnnData


class HeldOut(NamedTuple):
    """A reference without one type, and two queries."""

    dataset: str
    label: str
    reference: AnnData
    queries: list[Query]


def held_out(data: Path, seed: int) -> Iterator[HeldOut]:
    """Hold out each type of each dataset in turn."""
    for dataset, (read_cells, batch) in DATASETS.items():
        adata = read_cells(data)
        labels = adata.obs[LABEL].astype(str).to_numpy()
        is_in_batch = (adata.obs[BATCH] == batch).to_numpy()
        for label in np.unique(labels):
            rng = np.random.default_rng([seed, *label.encode()])
            is_new = labels == label
            cells = rng.permutation(np.flatnonzero(is_in_batch & ~is_new))
            half = len(cells) // 2
            reference = adata[np.sort(cells[:half])].copy()
            reference.obs[LABEL] = reference.obs[LABEL].cat.remove_unused_categories()
            same_batch = np.append(cells[half:], np.flatnonzero(is_in_batch & is_new))
            other_batch = np.flatnonzero(~is_in_batch)
            queries = [
                _query("same batch", adata, same_batch, label, rng),
                _query("other batch", adata, other_batch, label, rng),
            ]
            yield HeldOut(dataset, label, reference, queries)


def _query(
    name: str, adata: AnnData, cells: np.ndarray, label: str, rng: np.random.Generator
) -> Query:
    """Label some cells of a type; of all other cells, half are seen unlabeled, half scored."""
    labels = adata.obs[LABEL].astype(str).to_numpy()
    labeled = rng.permutation(cells[labels[cells] == label])[:N_NEW]
    unlabeled = np.setdiff1d(cells, labeled)
    seen, test = train_test_split(
        unlabeled,
        test_size=0.5,
        stratify=labels[unlabeled],
        random_state=int(rng.integers(2**31)),
    )
    query = adata[np.concatenate([labeled, seen])].copy()
    query.obs[SEEN_LABEL] = [label] * len(labeled) + [UNLABELED] * len(seen)
    return Query(name, query, adata[test].copy())
