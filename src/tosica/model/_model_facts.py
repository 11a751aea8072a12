"""What a model knows of itself: labels, cells, genes, gene sets and held-out scores."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from sklearn.metrics import precision_recall_fscore_support

from tosica.model._mask_field import MaskField
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from tosica.model._modalities import Modality
    from tosica.model._registry_mixin import RegistryMixin


@dataclass(frozen=True)
class ModalityFacts:
    """Genes and tokens of one modality; ``name`` is ``None`` for a model of an AnnData."""

    name: str | None
    n_genes: int
    expression: str
    source: str
    organism: str
    n_gene_sets: int
    n_modules: int
    n_unannotated: int


@dataclass(frozen=True)
class ModelFacts:
    """What a model knows of itself; what it does not know is ``None``.

    ``labels`` is a table with a row for each label: ``n_cells`` in training and calibration,
    ``n_held_out``, and ``recall`` and ``f1`` of the held-out cells, NaN where unknown. Scores are
    those before the refit on all cells.
    """

    labels: pd.DataFrame
    n_cells: int
    batch_key: str | None
    n_batches: int
    modalities: tuple[ModalityFacts, ...]
    n_held_out: int | None
    accuracy: float | None
    macro_f1: float | None
    refitted: bool
    fingerprint: str
    package_version: str

    @property
    def organism(self) -> str | None:
        """Organism of the gene sets, if they tell it."""
        known = {m.organism for m in self.modalities} - {"unknown", ""}
        return known.pop() if len(known) == 1 else None


def read_facts(model: RegistryMixin) -> ModelFacts:
    """Read what a trained model knows of itself.

    Parameters
    ----------
    model
        The model; it needs no reference.
    """
    labels, scores = _read_labels(model)
    batch_key = model.registry_["setup_args"].get("batch_key")
    batches = model._state(REGISTRY_KEYS.BATCH_KEY).get("categorical_mapping", ())
    known = labels["n_cells"].dropna()
    return ModelFacts(
        labels=labels,
        n_held_out=None if scores is None else int(labels["n_held_out"].sum()),
        accuracy=None if scores is None else scores[0],
        macro_f1=None if scores is None else scores[1],
        n_cells=int(known.sum()) if len(known) else _n_registered(model),
        batch_key=None if batch_key is None else str(batch_key),
        n_batches=len(batches),
        modalities=tuple(_read_modality(modality) for modality in model._modalities),
        refitted=bool(model.refitted_),
        fingerprint=model.fingerprint,
        package_version=version("tosica"),
    )


def _read_labels(model: RegistryMixin) -> tuple[pd.DataFrame, tuple[float, float] | None]:
    """Cells and held-out scores of each label; accuracy and macro-F1 of all, if they are known."""
    names = model.labels
    counts = model.label_counts_ or {}
    table = pd.DataFrame(
        {
            "n_cells": pd.array([counts.get(name) for name in names], dtype="Int64"),
            "n_held_out": 0,
            "recall": np.nan,
            "f1": np.nan,
        },
        index=pd.Index(names, name="label"),
    )
    held_out = model.held_out_codes_
    if held_out is None or not held_out.shape[1]:
        return table, None
    truth, best = held_out
    _, recall, f1, sizes = precision_recall_fscore_support(
        truth, best, labels=np.arange(len(names)), zero_division=0.0
    )
    tested = sizes > 0
    table["n_held_out"] = sizes
    table["recall"] = np.where(tested, recall, np.nan)
    table["f1"] = np.where(tested, f1, np.nan)
    return table, (float((truth == best).mean()), float(f1[tested].mean()))


def _n_registered(model: RegistryMixin) -> int:
    """Cells of the reference, for models that were trained before labels were counted."""
    fields = model.registry_["field_registries"].values()
    sizes = [field.get("summary_stats", {}).get("n_cells") for field in fields]
    return max((int(size) for size in sizes if size), default=0)


def _read_modality(modality: Modality) -> ModalityFacts:
    mask = modality.mask
    n_modules = int(mask.get(MaskField.MODULES_KEY, 0))
    n_unannotated = int(mask["n_unannotated"])
    return ModalityFacts(
        name=modality.name,
        n_genes=len(modality.genes),
        expression=modality.kind.describe(modality.scale),
        source=str(mask["source"]),
        organism=str(mask["organism"]),
        n_gene_sets=len(mask["gene_sets"]) - n_unannotated - n_modules,
        n_modules=n_modules,
        n_unannotated=n_unannotated,
    )
