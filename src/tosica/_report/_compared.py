"""Doubts from what the caller knows: samples, labels and markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tosica._report._doubt import ENOUGH_CELLS, LOW_PROBABILITY, Doubt, listed
from tosica._report._html import decimal, percent

if TYPE_CHECKING:
    from tosica._report._cells import Cells
    from tosica._report._markers import Markers


def of_samples(cells: Cells) -> list[Doubt]:
    """Find samples that differ from the others."""
    if cells.samples is None or len(cells.samples.categories) < 2:
        return []
    doubts = []
    low = cells.probability < LOW_PROBABILITY
    codes = np.asarray(cells.samples.codes)
    overall = float(low.mean())
    worse = []
    for code, name in enumerate(cells.samples.categories):
        share = float(low[codes == code].mean())
        if share > 0.1 and share > 2 * overall:
            worse.append(f"{name} ({percent(share)})")
    if worse:
        doubts.append(
            Doubt(
                "check",
                f"Samples with more improbable labels than others: {listed(worse)}.",
                f"Over all samples, {percent(overall)} of the cells have a probability below "
                f"{LOW_PROBABILITY}.",
                "Compare the quality of these samples with that of the others.",
            )
        )
    single = []
    for code in cells.types:
        rows = cells.rows(code)
        shares = np.bincount(codes[rows], minlength=len(cells.samples.categories)) / len(rows)
        if len(rows) >= ENOUGH_CELLS and shares.max() > 0.9:
            expected = float((codes == int(shares.argmax())).mean())
            if expected < 0.5:
                sample = cells.samples.categories[int(shares.argmax())]
                single.append(f"{cells.labels[code]} ({sample})")
    if single:
        doubts.append(
            Doubt(
                "note",
                f"Labels that come almost only from one sample: {listed(single)}.",
                "This may be biology, or an effect of that sample's batch.",
                "Look whether the sample differs in other types, too.",
            )
        )
    return doubts


def agreement(cells: Cells) -> tuple[float, int] | None:
    """Share of the cells with a known label that got it, and how many these are.

    Only cells whose known label the model has are counted. ``None`` if there are none.
    """
    if cells.known is None:
        return None
    names = np.array([*cells.known.categories, ""], dtype=object)[np.asarray(cells.known.codes)]
    comparable = np.isin(names, cells.all_labels)
    if not comparable.any():
        return None
    predicted = np.array(cells.labels, dtype=object)[cells.codes]
    return float((predicted == names)[comparable].mean()), int(comparable.sum())


def of_known_labels(cells: Cells) -> list[Doubt]:
    """Compare the probabilities with the share of labels that agree."""
    agreed = agreement(cells)
    if agreed is None:
        return []
    expected = float(cells.probability.mean())
    if expected - agreed[0] <= 0.1:
        return []
    return [
        Doubt(
            "check",
            f"{percent(agreed[0])} of the labels agree with adata.obs[{cells.labels_key!r}], but "
            f"the mean probability is {decimal(expected)}.",
            "The probabilities are too high for these cells, or the known labels follow another "
            "scheme.",
            "Run model.recalibrate with some of the known labels, and annotate again.",
        )
    ]


def of_known_markers(markers: Markers) -> list[Doubt]:
    """Find labels whose known markers are higher in other labels."""
    contradicted = []
    for label, found in markers.known.items():
        n_highest = sum(marker.highest_in == label for marker in found)
        if found and 2 * n_highest < len(found):
            contradicted.append(f"{label} ({n_highest} of {len(found)})")
    if not contradicted:
        return []
    return [
        Doubt(
            "check",
            f"Most known markers are higher in another label: {listed(contradicted)}.",
            "In brackets is how many of them are expressed most in the label's own cells.",
            "The label may be wrong: look at these genes in your own plots.",
        )
    ]
