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

# Column with the labels that a method may see; cells without one have this value.
KNOWN, UNLABELED = "known", "unlabeled"
# Labeled cells of the held-out type.
N_NEW = 30
DATASETS = {"Kang": (kang, "ctrl"), "lung": (lung, "sc_celseq2")}


class Query(NamedTuple):
    """A query: cells to adapt to, with ``obs["known"]``, and other cells to score on."""

    which: str
    cells: AnnData
    test: AnnData


class HeldOut(NamedTuple):
    """A reference without one type, and two queries."""

    dataset: str
    label: str
    reference: AnnData
    queries: list[Query]


def held_out(data: Path, seed: int) -> Iterator[HeldOut]:
    """Hold each type of each dataset out, one after the other."""
    for dataset, (read, batch) in DATASETS.items():
        adata = read(data)
        labels = adata.obs[LABEL].astype(str).to_numpy()
        first = (adata.obs[BATCH] == batch).to_numpy()
        for label in np.unique(labels):
            rng = np.random.default_rng([seed, *label.encode()])
            own = rng.permutation(np.flatnonzero(first & (labels != label)))
            reference = adata[np.sort(own[: len(own) // 2])].copy()
            reference.obs[LABEL] = reference.obs[LABEL].cat.remove_unused_categories()
            same = np.append(
                own[len(own) // 2 :], np.flatnonzero(first & (labels == label))
            )
            queries = [
                _query("same batch", adata, same, label, rng),
                _query("other batch", adata, np.flatnonzero(~first), label, rng),
            ]
            yield HeldOut(dataset, label, reference, queries)


def _query(
    which: str, adata: AnnData, cells: np.ndarray, label: str, rng: np.random.Generator
) -> Query:
    """Label some cells of a type; of all others, half are seen unlabeled and half are scored."""
    is_new = adata.obs[LABEL].astype(str).to_numpy()[cells] == label
    labeled = rng.permutation(cells[is_new])[:N_NEW]
    others = np.setdiff1d(cells, labeled)
    seed = int(rng.integers(2**31))
    strata = adata.obs[LABEL].astype(str).to_numpy()[others]
    seen, test = train_test_split(
        others, test_size=0.5, stratify=strata, random_state=seed
    )
    query = adata[np.concatenate([labeled, seen])].copy()
    query.obs[KNOWN] = [label] * len(labeled) + [UNLABELED] * len(seen)
    return Query(which, query, adata[test].copy())
