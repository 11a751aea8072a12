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
from benchmarks._models import train_default
from benchmarks._new_label_tasks import SEEN_LABEL, UNLABELED

if TYPE_CHECKING:
    from anndata import AnnData

    from benchmarks._new_label_tasks import HeldOut, Query
    from tosica import TOSICA

# Labeled cells of the new type; 30 is the task, fewer are measured for tosica alone.
SIZES = (30, 10, 5)
_TRAINING: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False}


def scores(
    label: str, truth: np.ndarray, model_labels: np.ndarray, grown_labels: np.ndarray
) -> dict[str, float]:
    """Recall of the new label; macro-F1 of the old ones on their cells, before and after."""
    is_new = truth == label
    old_truth = truth[~is_new]

    def macro_f1(predicted: np.ndarray) -> float:
        score = f1_score(
            old_truth, predicted[~is_new], labels=np.unique(old_truth), average="macro"
        )
        return float(score)

    return {
        "recall": float((grown_labels[is_new] == label).mean()),
        "before": macro_f1(model_labels),
        "after": macro_f1(grown_labels),
    }


def labels_of(adata: AnnData) -> np.ndarray:
    """True labels of cells."""
    return adata.obs[LABEL].astype(str).to_numpy()


def run_tosica(task: HeldOut, seed: int) -> list[dict[str, Any]]:
    """`load_query_data` and `fit_new_labels`, with cells of the query's batch and without."""
    start_time = time.process_time()
    model = train_default(task.reference.copy(), seed)
    training = time.process_time() - start_time
    rows = []
    for query in task.queries:
        for n_new in SIZES:
            cells = _with_labeled(query.cells, n_new)
            row = _grow(task, query, model, cells)
            rows.append(row | {"method": "tosica", "labeled": n_new})
        is_labeled = query.cells.obs[SEEN_LABEL] == task.label
        row = _grow(task, query, model, query.cells[is_labeled].copy())
        row |= {"method": "tosica, labeled cells only", "labeled": SIZES[0]}
        rows.append(row)
    return [row | {"training": training} for row in rows]


def _with_labeled(query: AnnData, n_labeled: int) -> AnnData:
    """A query with fewer labeled cells; the others are left out."""
    is_labeled = (query.obs[SEEN_LABEL] != UNLABELED).to_numpy()
    is_included = ~is_labeled
    is_included[np.flatnonzero(is_labeled)[:n_labeled]] = True
    return query[is_included].copy()


def _grow(task: HeldOut, query: Query, model: TOSICA, cells: AnnData) -> dict[str, Any]:
    """Add the label of some cells to a model, and score both models."""
    start_time = time.process_time()
    has_unlabeled = (cells.obs[SEEN_LABEL] == UNLABELED).any()
    grown = tosica.TOSICA.load_query_data(
        cells, model, SEEN_LABEL, UNLABELED if has_unlabeled else None
    )
    # Before the new label is fitted, nothing may have changed.
    unfitted = grown.predict(query.test, soft=True)[model.labels]
    difference = unfitted - model.predict(query.test, soft=True)
    grown.fit_new_labels()
    seconds = time.process_time() - start_time
    model_labels = np.asarray(model.predict(query.test))
    grown_labels = np.asarray(grown.predict(query.test))
    return {
        "query": query.name,
        "seconds": seconds,
        "changed": float(difference.abs().to_numpy().max()),
        **scores(task.label, labels_of(query.test), model_labels, grown_labels),
    }


def run_scanvi(task: HeldOut, seed: int) -> list[dict[str, Any]]:
    """ScANVI's `load_query_data`, which takes no new label, and nearest neighbors in its latent.

    Neighbors are the cells of the reference, which must be stored for this, and the labeled cells.
    """
    reference = task.reference.copy()
    reference.obs["origin"] = "reference"
    reference.obs[SEEN_LABEL] = labels_of(reference)
    scvi.settings.seed = seed
    scvi.model.SCVI.setup_anndata(reference, layer=COUNTS, batch_key="origin")
    # As scvi-tools recommends for models that are adapted to a query.
    unsupervised = scvi.model.SCVI(
        reference,
        n_layers=2,
        dropout_rate=0.2,
        use_layer_norm="both",
        use_batch_norm="none",
        encode_covariates=True,
    )
    unsupervised.train(**_TRAINING)
    model = scvi.model.SCANVI.from_scvi_model(
        unsupervised, UNLABELED, labels_key=SEEN_LABEL
    )
    model.train(max_epochs=20, n_samples_per_label=100, **_TRAINING)
    rows = []
    for query in task.queries:
        is_labeled = (query.cells.obs[SEEN_LABEL] == task.label).to_numpy()
        cells = _as_unlabeled(query.cells)
        test = _as_unlabeled(query.test)
        start_time = time.process_time()
        adapted = scvi.model.SCANVI.load_query_data(cells, model)
        adapted.train(max_epochs=100, plan_kwargs={"weight_decay": 0.0}, **_TRAINING)
        labeled_cells = ad.concat([reference, cells[is_labeled]])
        labels = np.append(labels_of(reference), [task.label] * int(is_labeled.sum()))
        neighbors = KNeighborsClassifier(15)
        neighbors.fit(adapted.get_latent_representation(labeled_cells), labels)
        grown_labels = neighbors.predict(adapted.get_latent_representation(test))
        seconds = time.process_time() - start_time
        model_labels = np.asarray(adapted.predict(test))
        rows.append(
            {
                "method": "scANVI and 15 neighbors",
                "query": query.name,
                "labeled": SIZES[0],
                "seconds": seconds,
                **scores(task.label, labels_of(test), model_labels, grown_labels),
            }
        )
    return rows


def _as_unlabeled(cells: AnnData) -> AnnData:
    cells = cells.copy()
    cells.obs[SEEN_LABEL] = UNLABELED
    cells.obs["origin"] = "query"
    return cells
