"""Train models of the benchmarks, and hook into the phases of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd
import scvi
import torch

import tosica
from benchmarks._accuracy_tasks import LABEL
from tosica.model._phases import PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from anndata import AnnData

    from tosica.model._state import Phase

Model = TypeVar("Model", bound=tosica.TOSICA)


def train_default(
    reference: AnnData,
    seed: int = 0,
    *,
    labels_key: str | list[str] = LABEL,
    gene_sets: dict[str, list[str]] | str = "gobp",
    model_class: type[Model] = tosica.TOSICA,
    **kwargs: Any,
) -> Model:
    """Train a model with all defaults on one thread.

    Parameters
    ----------
    reference
        Cells with labels. It gets a mask.
    seed
        Seed of all random numbers.
    labels_key
        Column with the labels, or several from broad to fine.
    gene_sets
        Gene sets of the mask.
    model_class
        Class of the model.
    kwargs
        Arguments of ``train`` that are not the defaults.
    """
    tosica.pp.build_mask(reference, gene_sets)
    model_class.setup_anndata(reference, labels_key=labels_key)
    # Networks of this size are not faster on several threads. Set for each model, because
    # tools of scanpy change the number of threads of torch.
    torch.set_num_threads(1)
    scvi.settings.seed = seed
    model = model_class(reference)
    model.train(accelerator="cpu", enable_progress_bar=False, **kwargs)
    return model


def codes_of_labels(model: tosica.TOSICA, cells: AnnData) -> np.ndarray:
    """Positions of the true labels of cells among the labels of a model, or -1."""
    labels = cells.obs[LABEL].astype(str)
    return pd.Categorical(labels, categories=model.labels).codes


def phases_with(hooks: Mapping[Phase, tuple[Phase, ...]]) -> tuple[Phase, ...]:
    """Phases of a training, some of which are replaced by other functions.

    Parameters
    ----------
    hooks
        Functions that are called in place of a phase. The phase is one of them if it
        still has to be done.

    Raises
    ------
    LookupError
        If a function is no phase of a training.
    """
    for phase in hooks:
        if phase not in PHASES:
            raise LookupError(f"{phase.__name__} is no phase of a training.")
    return tuple(step for phase in PHASES for step in hooks.get(phase, (phase,)))
