"""A model by the name of a tissue: trained on cells of CELLxGENE Census, kept, and described."""

from __future__ import annotations

import hashlib
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import precision_recall_fscore_support
from sklearn.model_selection import GroupKFold

from tosica._files import cache_folder, new_in_cache
from tosica._settings import logger, settings
from tosica._text import call, format_thousands
from tosica._validate import validate_params
from tosica.datasets._census import census
from tosica.model import TOSICA
from tosica.model._card import markdown_table
from tosica.onto._ontology import is_kind_of
from tosica.pp import build_mask
from tosica.tl._evaluate import calibration_bins, expected_calibration_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from anndata import AnnData

    from tosica._types import FloatArray, ObjectArray

LABELS_KEY = "cell_type"
BATCH_KEY = "batch"
# Models that are trained for the scores of held-out donors, and for those of data sets: with three,
# two thirds of them teach, in three times the time of one training.
_N_FOLDS = 3
_N_BINS = 10


@validate_params()
def tissue_model(tissue: str, organism: str = "human", **kwargs: Any) -> TOSICA:
    """Get a model of a tissue by its name, trained on cells of CELLxGENE Census.

    The first call downloads cells and trains; later ones read the model from the cache.
    Needs ``pip install 'tosica[census]'``.

    Parameters
    ----------
    tissue, organism
        As in :func:`census`.
    **kwargs
        Passed to :func:`census`, such as ``n_per_type``, ``disease`` and ``version``.

    Returns
    -------
    The model; its labels are the names of types, with their terms, and its batches donors.

    Raises
    ------
    ModuleNotFoundError, OSError, TypeError, ValueError
        As :func:`census`.

    Examples
    --------
    .. code-block:: python

        model = tosica.datasets.tissue_model("lung")
        model.annotate(query)
    """
    return TOSICA.load(tissue_model_folder(tissue, organism, **kwargs))


def tissue_model_folder(tissue: str, organism: str, **kwargs: Any) -> Path:
    """Find the model of a tissue in the cache, or train it and put it there."""
    if kwargs.get("dry_run"):
        raise TypeError(
            "A model of a tissue has no dry_run: "
            f"{call('tosica.datasets.census', 'tissue, dry_run=True')} says what it would be made of."
        )
    reference = census(tissue, organism, **kwargs)
    folder = _cache_path(reference)
    if not folder.is_dir():
        model = train_on(reference)
        with new_in_cache(folder) as temporary:
            model.save(temporary)
        logger.info(
            "tissue_model: trained on cells of %s, and wrote %s", tissue, folder
        )
    return folder


def _cache_path(reference: AnnData) -> Path:
    """Folder in the cache for the model of a reference, of this version of tosica and this seed."""
    record = reference.uns["census"]
    hasher = hashlib.sha256()
    for text in (package_version("tosica"), str(settings.seed), *reference.obs_names):
        hasher.update(f"{text}\0".encode())
    hasher.update(str(record["source"]).encode())
    return (
        cache_folder()
        / "census"
        / record["version"]
        / f"model_{hasher.hexdigest()[:12]}"
    )


def train_on(reference: AnnData, **train_kwargs: Any) -> TOSICA:
    """Train a model on a reference of :func:`census`, which gets a mask."""
    build_mask(reference)
    TOSICA.setup_anndata(reference, labels_key=LABELS_KEY, batch_key=BATCH_KEY)
    model = TOSICA(reference)
    model.train(**train_kwargs)
    return model


# --------------------------------------------------------------------------- held-out scores


class HeldOut(NamedTuple):
    """What models say of cells whose donors or data sets they have not seen; ``(n_cells,)`` each."""

    truth: ObjectArray
    predicted: ObjectArray
    probability: FloatArray


def hold_out(reference: AnnData, key: str, **train_kwargs: Any) -> HeldOut | None:
    """Train models without some groups of cells, and ask for the labels of these.

    Cells of types that only the groups have that are left out are not asked.

    Parameters
    ----------
    reference
        As :func:`census` returns it.
    key
        Column of ``obs`` with the groups.
    **train_kwargs
        Passed to :meth:`tosica.TOSICA.train`.

    Returns
    -------
    ``None`` if there is one group only.
    """
    groups = reference.obs[key].astype(str).to_numpy()
    n_folds = min(_N_FOLDS, len(np.unique(groups)))
    if n_folds < 2:
        return None
    truth = reference.obs[LABELS_KEY].astype(str).to_numpy()
    asked = []
    for teaching, held_out in GroupKFold(n_folds).split(truth, groups=groups):
        labels, sizes = np.unique(truth[teaching], return_counts=True)
        taught = labels[sizes > 1]
        if len(taught) < 2:
            continue
        teaching = teaching[np.isin(truth[teaching], taught)]
        held_out = held_out[np.isin(truth[held_out], taught)]
        if not len(held_out):
            continue
        model = train_on(reference[np.sort(teaching)].copy(), **train_kwargs)
        soft = pd.DataFrame(model.predict(reference[held_out].copy(), soft=True))
        labels_of_cells = soft.idxmax(axis=1).astype(str).to_numpy()
        asked.append(
            HeldOut(truth[held_out], labels_of_cells, soft.max(axis=1).to_numpy())
        )
    if not asked:
        return None
    return HeldOut(*map(np.concatenate, zip(*asked, strict=True)))


def score_types(held_out: HeldOut) -> pd.DataFrame:
    """Compute precision, recall and mean probability of each type.

    Returns
    -------
    Table with the type as index, and the columns ``cells`` (of it), ``precision``, ``recall`` and
    ``mean probability`` (of the cells that got it), which should be the precision.
    """
    names = np.unique(held_out.truth)
    precision, recall, _, sizes = precision_recall_fscore_support(
        held_out.truth, held_out.predicted, labels=names, zero_division=0.0
    )
    mean_probability = (
        pd.Series(held_out.probability).groupby(held_out.predicted).mean()
    )
    return pd.DataFrame(
        {
            "cells": sizes,
            "precision": precision,
            "recall": recall,
            "mean probability": mean_probability.reindex(names).to_numpy(),
        },
        index=names,
    )


def summarize(held_out: HeldOut, term_of: Mapping[str, str]) -> str:
    """Say in a sentence how many cells got their type, or one above or below it."""
    is_right = held_out.truth == held_out.predicted
    is_related = [
        is_kind_of(term_of[a], term_of[b]) or is_kind_of(term_of[b], term_of[a])
        for a, b in zip(held_out.truth, held_out.predicted, strict=True)
    ]
    error = expected_calibration_error(
        calibration_bins(is_right, held_out.probability, _N_BINS)
    )
    return (
        f"Of {format_thousands(len(is_right))} cells, {is_right.mean():.1%} got their type, and "
        f"{np.mean(is_right | np.array(is_related)):.1%} this or one above or below it; the calibration error is "
        f"{error:.3f}."
    )


# --------------------------------------------------------------------------- card

_SECTIONS = (
    (BATCH_KEY, "Donors that the model had not seen"),
    ("dataset_id", "Data sets that the model had not seen"),
)


def write_card(model: TOSICA, reference: AnnData, **train_kwargs: Any) -> str:
    """Write the card of a model: what it is, scores of held-out donors and data sets, and sources.

    Parameters
    ----------
    model
        A model of the reference.
    reference
        As :func:`census` returns it.
    **train_kwargs
        Passed to :meth:`tosica.TOSICA.train` of the models for the scores.
    """
    record = reference.uns["census"]
    n_datasets = len(record["datasets"])
    card = model.get_model_card(
        tissue=record["tissue"],
        organism=str(record["organism"]).replace("_", " "),
        license="cc-by-4.0",
        description=f"cells of {n_datasets} data sets of CELLxGENE Census, release {record['version']}",
        version=record["version"],
        citation="the data sets under Sources",
    )
    pairs = reference.obs[[LABELS_KEY, f"{LABELS_KEY}_ontology_term_id"]].astype(str)
    term_of = dict(pairs.drop_duplicates().itertuples(index=False))
    sections = [card.rstrip()]
    for key, title in _SECTIONS:
        held_out = hold_out(reference, key, **train_kwargs)
        text = "There is only one."
        if held_out is not None:
            table = score_types(held_out).reset_index(names="type")
            text = f"{summarize(held_out, term_of)}\n\n{_table(table)}"
        sections.append(f"## {title}\n\n{text}")
    columns = ["dataset_title", "citation", "n_taken"]
    sources = record["datasets"][columns].set_axis(
        ["data set", "citation", "cells"], axis=1
    )
    sections.append(
        f"## Sources\n\nAll under {record['license']}.\n\n{_table(sources)}"
    )
    return "\n\n".join(sections) + "\n"


def _table(table: pd.DataFrame) -> str:
    """Write a table in Markdown, numbers with three decimals."""
    return markdown_table(
        {
            str(name): [f"{x:.3f}" if isinstance(x, float) else str(x) for x in column]
            for name, column in table.items()
        }
    )
