"""What to doubt in an annotation, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.stats import false_discovery_control

from tosica._constants import UNKNOWN
from tosica._report._compared import of_known_labels, of_known_markers, of_samples
from tosica._report._doubt import (
    ENOUGH_CELLS,
    FEW_CELLS,
    LOW_MEDIAN,
    SMALL_PVALUE,
    Doubt,
    listed,
)
from tosica._report._html import cells as n_cells_of
from tosica._report._html import count, decimal, percent

if TYPE_CHECKING:
    from tosica._report._cells import Cells
    from tosica._report._explain import Explanation
    from tosica._report._markers import Markers
    from tosica._report._second_labels import Second

# Three times as many small p-values as by chance are noted, in labels with enough cells.
_MANY_SMALL = 0.15
# From this share on, a batch effect is a likelier reason than a new type: as in model.annotate.
_BATCH_EFFECT = 0.3
# Mean probability of the second best label from which two labels are called easily confused.
_CLOSE_SECOND = 0.2
# As in model.annotate: a warning below 95 % of the model's genes.
_MISSING_GENES = 0.05
_COMPLETENESS = 0.02
_MANY_PAIRS = 8


class Findings(NamedTuple):
    """What the page knows besides the annotation."""

    explanation: Explanation
    markers: Markers
    second: dict[str, Second] | None
    missing_genes: tuple[int, int] | None


def find_doubts(cells: Cells, found: Findings) -> list[Doubt]:
    """List what may be wrong, the most serious first.

    Parameters
    ----------
    cells
        The annotation.
    found
        What else is known.
    """
    doubts = [
        *_genes(found.missing_genes),
        *_probabilities(cells),
        *_novelty(cells),
        *_confused(found.second),
        *_few(cells),
        *of_samples(cells),
        *of_known_labels(cells),
        *of_known_markers(found.markers),
        *_explained(found.explanation),
    ]
    return sorted(doubts, key=lambda doubt: doubt.weight != "check")


def _genes(missing: tuple[int, int] | None) -> list[Doubt]:
    if missing is None or missing[0] == 0:
        return []
    n, of = missing
    return [
        Doubt(
            "check" if n / of > _MISSING_GENES else "note",
            f"The cells lack {count(n)} of the model's {count(of)} genes ({percent(n / of)}).",
            "The network sees these genes as zero. The linear branch imputes them from genes that "
            "are correlated in the reference.",
            "Annotate cells with more of the genes, or train on the genes that both have.",
        )
    ]


def _probabilities(cells: Cells) -> list[Doubt]:
    doubts = []
    n_unknown = int(cells.is_unknown.sum())
    if n_unknown:
        cutoff = decimal(float(cells.record.get("cutoff", 0.0)))
        doubts.append(
            Doubt(
                "check" if n_unknown / cells.n_obs > 0.1 else "note",
                f"{n_cells_of(n_unknown)} ({percent(n_unknown / cells.n_obs)}) are called "
                f"{UNKNOWN!r}.",
                f"Their best label is less probable than the cutoff of {cutoff}.",
                "See where they are on the map. They may lie between two types, be of poor "
                "quality, or be of a type that the reference lacks.",
            )
        )
    low = {}
    for code in cells.types:
        probability = cells.probability[cells.rows(code)]
        if np.median(probability) < LOW_MEDIAN:
            low[cells.labels[code]] = float(np.median(probability))
    if low:
        worst = min(low, key=lambda label: low[label])
        doubts.append(
            Doubt(
                "check",
                f"The probability is low in {listed(list(low))}.",
                f"In half of the cells of {worst!r} it is below {decimal(low[worst])}.",
                "Look at their markers before you use these labels, or merge them with the type "
                "that they are confused with.",
            )
        )
    return doubts


def _novelty(cells: Cells) -> list[Doubt]:
    pvalue = cells.novelty_pvalue
    if pvalue is None:
        return []
    small = pvalue <= SMALL_PVALUE
    overall = float(small.mean())
    after = "after the correction for batches" if cells.novelty_is_corrected else ""
    if overall > _BATCH_EFFECT:
        return [
            Doubt(
                "check",
                f"{percent(overall)} of all cells are unlike the reference {after}".rstrip() + ".",
                f"By chance it would be {percent(SMALL_PVALUE)}. So many hint at another batch, "
                "technology or tissue rather than at a new type. Probabilities are then not "
                "calibrated, either.",
                "Run tosica.tl.novelty(adata, model), which takes off what the cells have in "
                "common."
                if not cells.novelty_is_corrected
                else "Label some cells by hand and run model.recalibrate, or add cells of this "
                "batch to the reference.",
            )
        ]
    many = []
    for code in cells.types:
        rows = cells.rows(code)
        if len(rows) >= ENOUGH_CELLS and small[rows].mean() > _MANY_SMALL:
            many.append(cells.labels[code])
    if not many:
        return []
    return [
        Doubt(
            "check",
            f"Many cells of {listed(many)} are unlike the reference.",
            f"More than {percent(_MANY_SMALL)} of them have a p-value up to {SMALL_PVALUE:g}; by "
            f"chance it would be {percent(SMALL_PVALUE)}.",
            "They may be a type or state that the reference lacks, doublets or damaged cells. "
            "Colour the map by novelty, and look for clusters.",
        )
    ]


def n_significant(pvalues: np.ndarray) -> int:
    """Count the cells that stay unlike the reference after correction for the number of cells."""
    valid = pvalues[np.isfinite(pvalues)]
    if not len(valid):
        return 0
    return int((false_discovery_control(np.clip(valid, 0, 1)) <= SMALL_PVALUE).sum())


def _confused(second: dict[str, Second] | None) -> list[Doubt]:
    close = {
        label: other
        for label, other in (second or {}).items()
        if other.probability >= _CLOSE_SECOND
    }
    if not close:
        return []
    pairs = [
        f"{label!r} with {other.label!r} ({decimal(other.probability)})"
        for label, other in sorted(close.items(), key=lambda item: -item[1].probability)
    ]
    shown = ", ".join(pairs[:_MANY_PAIRS])
    more = f" and {len(pairs) - _MANY_PAIRS} more" if len(pairs) > _MANY_PAIRS else ""
    return [
        Doubt(
            "check",
            f"Labels that are easily confused: {shown}{more}.",
            "The number is the mean probability that the second label has in cells of the first.",
            "Take these labels together, or tell them apart by markers.",
        )
    ]


def _few(cells: Cells) -> list[Doubt]:
    doubts = []
    n_cells = cells.n_cells
    few = [code for code in cells.types if n_cells[code] < FEW_CELLS]
    if few:
        named = [f"{cells.labels[code]} ({n_cells[code]})" for code in few]
        doubts.append(
            Doubt(
                "check",
                f"Fewer than {FEW_CELLS} cells each: {_labels(named)} {listed(named)}.",
                "So few cells can be mistakes. Among thousands of cells, some get a wrong label.",
                "Look at each of them on the map before you report the type.",
            )
        )
    absent = [label for label in cells.all_labels if label not in cells.labels]
    if absent:
        doubts.append(
            Doubt(
                "note",
                f"No cell has the {_labels(absent)} {listed(absent)}, which the model knows.",
                "The type may be absent, or its cells got another label.",
                "If you expect the type, look for its markers in the cells.",
            )
        )
    return doubts


def _labels(names: list[str]) -> str:
    return "label" if len(names) == 1 else "labels"


def _explained(explanation: Explanation) -> list[Doubt]:
    doubts = []
    if explanation.error is not None and explanation.error > _COMPLETENESS:
        doubts.append(
            Doubt(
                "check",
                f"The contributions miss the score by {percent(explanation.error)}.",
                "They are approximate.",
                "Run tosica.tl.attribute with a larger n_steps.",
            )
        )
    if explanation.stale:
        doubts.append(
            Doubt(
                "note",
                f"Results of another model were left out: {', '.join(explanation.stale)}.",
                "They explain other labels.",
                "Run tosica.tl.attribute(adata, model) again.",
            )
        )
    return doubts
