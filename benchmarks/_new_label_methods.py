"""How a trained model learns a new label from a query: tosica, and scANVI with neighbors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import scvi
from sklearn.metrics import f1_score
from sklearn.neighbors import KNeighborsClassifier

import tosica
from benchmarks._accuracy_tasks import COUNTS, LABEL
from benchmarks._new_label_tasks import KNOWN, UNLABELED

if TYPE_CHECKING:
    from anndata import AnnData

    from benchmarks._new_label_tasks import HeldOut, Query
    from tosica import TOSICA

# Labeled cells of the new type; 30 is the task, fewer are measured for tosica alone.
SIZES = (30, 10, 5)
_TRAINING: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False}


def scores(
    label: str, truth: np.ndarray, before: np.ndarray, after: np.ndarray
) -> dict[str, float]:
    """Recall of the new label; macro-F1 of the old ones on their cells, before and after."""
    is_new = truth == label
    old = np.unique(truth[~is_new])

    def f1(found: np.ndarray) -> float:
        return float(
            f1_score(truth[~is_new], found[~is_new], labels=old, average="macro")
        )

    return {
        "recall": float((after[is_new] == label).mean()),
        "before": f1(before),
        "after": f1(after),
    }


def truth_of(adata: AnnData) -> np.ndarray:
    """Labels of cells as strings."""
    return adata.obs[LABEL].astype(str).to_numpy()


def run_tosica(task: HeldOut, seed: int) -> list[dict[str, Any]]:
    """`load_query_data` and `fit_new_labels`, with cells of the query's batch and without."""
    reference = task.reference.copy()
    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
    scvi.settings.seed = seed
    model = tosica.TOSICA(reference)
    began = time.process_time()
    model.train(**_TRAINING)
    training = time.process_time() - began
    rows = []
    for query in task.queries:
        for n_new in SIZES:
            cells = _with_labeled(query.cells, n_new)
            rows.append(
                _adapt(task, query, model, cells, "tosica", n_new)
                | {"training": training}
            )
        alone = query.cells[query.cells.obs[KNOWN] == task.label].copy()
        method = "tosica, labeled cells only"
        rows.append(
            _adapt(task, query, model, alone, method, SIZES[0]) | {"training": training}
        )
    return rows


def _with_labeled(query: AnnData, n_labeled: int) -> AnnData:
    """A query with fewer labeled cells; the others are left out."""
    is_labeled = (query.obs[KNOWN] != UNLABELED).to_numpy()
    keep = ~is_labeled
    keep[np.flatnonzero(is_labeled)[:n_labeled]] = True
    return query[keep].copy()


def _adapt(
    task: HeldOut, query: Query, model: TOSICA, cells: AnnData, method: str, n_new: int
) -> dict[str, Any]:
    began = time.process_time()
    unlabeled = UNLABELED if (cells.obs[KNOWN] == UNLABELED).any() else None
    grown = tosica.TOSICA.load_query_data(cells, model, KNOWN, unlabeled)
    # Before the new label is fitted, nothing may have changed.
    kept = grown.predict(query.test, soft=True)[model.labels].to_numpy()
    changed = float(
        np.abs(kept - model.predict(query.test, soft=True).to_numpy()).max()
    )
    grown.fit_new_labels()
    seconds = time.process_time() - began
    before, after = (np.asarray(each.predict(query.test)) for each in (model, grown))
    return {
        "method": method,
        "query": query.which,
        "labeled": n_new,
        "seconds": seconds,
        "changed": changed,
        **scores(task.label, truth_of(query.test), before, after),
    }


def run_scanvi(task: HeldOut, seed: int) -> list[dict[str, Any]]:
    """ScANVI's `load_query_data`, which takes no new label, and nearest neighbors in its latent.

    Neighbors are the cells of the reference, which must be kept for this, and the labeled cells.
    """
    reference = task.reference.copy()
    reference.obs["origin"], reference.obs[KNOWN] = "reference", truth_of(reference)
    scvi.settings.seed = seed
    scvi.model.SCVI.setup_anndata(reference, layer=COUNTS, batch_key="origin")
    # As scvi-tools recommends for models that are adapted to a query.
    layers = {
        "use_layer_norm": "both",
        "use_batch_norm": "none",
        "encode_covariates": True,
    }
    first = scvi.model.SCVI(reference, n_layers=2, dropout_rate=0.2, **layers)
    first.train(**_TRAINING)
    model = scvi.model.SCANVI.from_scvi_model(first, UNLABELED, labels_key=KNOWN)
    model.train(max_epochs=20, n_samples_per_label=100, **_TRAINING)
    rows = []
    for query in task.queries:
        cells = query.cells.copy()
        labeled = (cells.obs[KNOWN] == task.label).to_numpy()
        cells.obs[KNOWN], cells.obs["origin"] = UNLABELED, "query"
        began = time.process_time()
        adapted = scvi.model.SCANVI.load_query_data(cells, model)
        adapted.train(max_epochs=100, plan_kwargs={"weight_decay": 0.0}, **_TRAINING)
        test = query.test.copy()
        test.obs[KNOWN], test.obs["origin"] = UNLABELED, "query"
        known = ad.concat([reference, cells[labeled]])
        latent = adapted.get_latent_representation(known)
        names = np.append(truth_of(reference), [task.label] * int(labeled.sum()))
        neighbors = KNeighborsClassifier(15).fit(latent, names)
        after = neighbors.predict(adapted.get_latent_representation(test))
        seconds = time.process_time() - began
        before = np.asarray(adapted.predict(test))
        rows.append(
            {
                "method": "scANVI and 15 neighbors",
                "query": query.which,
                "labeled": SIZES[0],
                "seconds": seconds,
                **scores(task.label, truth_of(test), before, after),
            }
        )
    return rows
