"""Methods that learn from a few labelled cells, most of them from unlabelled cells as well.

Each has the same cells. It returns the labels of the query, and what else is worth knowing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import scvi
import torch

import tosica
from benchmarks._accuracy_methods import fit_scanvi, run_svm
from benchmarks._accuracy_tasks import BATCH, LABEL
from benchmarks._few_labels import all_cells
from benchmarks._pretrain import pretrain
from benchmarks.recipe import logits

if TYPE_CHECKING:
    from anndata import AnnData

    from benchmarks._few_labels import FewLabels

# Chosen on splits that are not on the page, see `SETTINGS` in `pretraining.py`.
STEPS = 300
CONFIDENT = 0.9


class Found(NamedTuple):
    """Labels of the query: of the whole method, and of the network alone where there is one.

    ``explained`` is the share of variance that the pretraining explained, ``n_added`` the number of
    cells that joined the labelled ones.
    """

    labels: np.ndarray
    of_network: np.ndarray | None = None
    model: tosica.TOSICA | None = None
    explained: float | None = None
    n_added: int | None = None


def run_train(split: FewLabels, seed: int, epochs: int | None = None) -> Found:
    """`train()` on the labelled cells."""
    return _found(_train(_model(split.labeled, seed), epochs), split.query)


def run_random(split: FewLabels, seed: int, epochs: int | None = None) -> Found:
    """`train()` on the labelled cells, with tokens that start at random."""
    model = _model(split.labeled, seed)
    model._starts_from_network = True
    return _found(_train(model, epochs), split.query)


def run_pretrained(
    split: FewLabels,
    seed: int,
    epochs: int | None = None,
    *,
    steps: int = STEPS,
    keep: bool = False,
    lr: float | None = None,
    more: AnnData | None = None,
    **settings: Any,
) -> Found:
    """Pretraining on all cells, then `train()` on the labelled ones.

    Parameters
    ----------
    split, seed, epochs
        Cells, seed, and epochs of `train()`.
    steps
        Minibatches of the pretraining.
    keep
        Whether tokens start as they were pretrained. By default they start from the linear branch,
        and three tenths of the pretrained weights are added where random ones would be.
    lr
        Highest learning rate of `train()`.
    more
        More cells to pretrain on.
    **settings
        Of the pretraining.
    """
    model = _model(split.labeled, seed)
    cells = [part for part in (*split, more) if part is not None and part.n_obs]
    explained = pretrain(model, cells, steps=steps, **settings)
    # As after start_from_network, tokens do not start from the linear branch.
    model._starts_from_network = keep
    _train(model, epochs, plan_kwargs=None if lr is None else {"lr": lr})
    return _found(model, split.query)._replace(explained=explained)


def run_distilled(
    split: FewLabels,
    seed: int,
    epochs: int | None = None,
    *,
    confident: float | None = CONFIDENT,
    query_only: bool = False,
    teacher: tosica.TOSICA | None = None,
) -> Found:
    """`train()`, then `train()` of a new model on labelled cells and confident other ones.

    Parameters
    ----------
    split, seed, epochs
        Cells, seed, and epochs of `train()`.
    confident
        Probability from which on a cell has its predicted label in the second training. ``None``
        for the half of each predicted label that is most probable.
    query_only
        Whether the second training has cells of the query only, besides the labelled ones.
    teacher
        The model of :func:`run_train`, if it is there already.
    """
    if teacher is None:
        teacher = _train(_model(split.labeled, seed), epochs)
    others = split.query if query_only else all_cells(split)
    others = others[~others.obs_names.isin(split.labeled.obs_names)].copy()
    soft = teacher.predict(others, soft=True)
    called, probability = soft.idxmax(axis=1), soft.max(axis=1)
    if confident is None:
        is_confident = probability >= probability.groupby(called).transform("median")
    else:
        is_confident = probability >= confident
    added = others[is_confident.to_numpy()].copy()
    added.obs[LABEL] = called[is_confident].astype(str).to_numpy()
    reference = ad.concat([split.labeled, added]) if added.n_obs else split.labeled
    reference.obs[LABEL] = pd.Categorical(reference.obs[LABEL].astype(str))
    student = _train(_model(reference, seed), epochs)
    return _found(student, split.query)._replace(n_added=added.n_obs)


def run_linear_svm(split: FewLabels, seed: int, epochs: int | None = None) -> Found:
    """Linear SVM on the labelled cells."""
    return Found(run_svm(split.labeled, split.query, seed).idxmax(axis=1).to_numpy())


def run_scanvi(split: FewLabels, seed: int, epochs: int | None = None) -> Found:
    """ScANVI on all cells; batches are those of the data."""
    cells = all_cells(split)
    is_labeled = cells.obs_names.isin(split.labeled.obs_names)
    cells.obs["known"] = np.where(is_labeled, cells.obs[LABEL].astype(str), "unlabelled")
    model = fit_scanvi(cells, BATCH, seed)
    return Found(np.asarray(model.predict(cells[split.query.obs_names].copy())))


def _model(reference: AnnData, seed: int) -> tosica.TOSICA:
    reference = reference.copy()
    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
    # Set before each model: scanpy's tools reset the number of threads to that of the cores.
    torch.set_num_threads(1)
    scvi.settings.seed = seed
    return tosica.TOSICA(reference)


def _train(model: tosica.TOSICA, epochs: int | None, **settings: Any) -> tosica.TOSICA:
    model.train(max_epochs=epochs, accelerator="cpu", enable_progress_bar=False, **settings)
    return model


def _found(model: tosica.TOSICA, query: AnnData) -> Found:
    of_part, labels = logits(model, query), np.array(model.labels)
    found = (labels[of_part[part].argmax(1)] for part in ("default", "network"))
    return Found(*found, model)


METHODS = {
    "train": ("`train()`", run_train),
    "pretrained": ("pretraining, then `train()`", run_pretrained),
    "distilled": ("self-distillation", run_distilled),
    "svm": ("linear SVM", run_linear_svm),
    "scanvi": ("scANVI", run_scanvi),
}
