"""Sections of the page on all cells: summary, composition, confidence and novelty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tosica._constants import UNKNOWN
from tosica._report._compared import agreement
from tosica._report._doubt import LOW_PROBABILITY, SMALL_PVALUE
from tosica._report._doubts import n_significant
from tosica._report._html import (
    Column,
    Html,
    bar,
    count,
    decimal,
    element,
    histogram,
    join,
    link,
    percent,
    stacked_bar,
    swatch,
    table,
)
from tosica._report._html import (
    cells as n_cells_of,
)
from tosica._report._map_colors import NOVELTY_RANGE

if TYPE_CHECKING:
    from tosica._report._cells import Cells
    from tosica._report._doubt import Doubt

# More samples would make a table that nobody reads.
_MAX_SAMPLES = 60


def section(name: str, heading: str, how: str, *contents: Html | None) -> Html:
    """Make a section with a heading, and a sentence on how to read it."""
    return element(
        "section",
        element("h2", heading, id=f"{name}-heading"),
        element("p", how, class_="quiet"),
        *contents,
        id=name,
        aria_labelledby=f"{name}-heading",
    )


def label_cell(cells: Cells, code: int) -> Html:
    """Name of a label with its colour, linked to what is said of the cell type."""
    name = cells.labels[code]
    shown = name if name == UNKNOWN else link(name, f"#type-{code + 1}")
    return join(swatch(cells.colors[code]), shown)


def summary(cells: Cells, doubts: list[Doubt]) -> Html:
    """Make the section with the most important numbers."""
    n_unknown = int(cells.is_unknown.sum())
    n_low = int((cells.probability < LOW_PROBABILITY).sum())
    n_checks = sum(doubt.weight == "check" for doubt in doubts)
    facts: list[tuple[str, str, str]] = [
        ("Cells", count(cells.n_obs), ""),
        ("Labels found", count(len(cells.types)), f"of {count(len(cells.all_labels))} known"),
        ("Called “Unknown”", percent(n_unknown / cells.n_obs), n_cells_of(n_unknown)),
        ("Median probability", decimal(float(np.median(cells.probability))), ""),
        (
            f"Probability below {LOW_PROBABILITY}",
            percent(n_low / cells.n_obs),
            n_cells_of(n_low),
        ),
    ]
    if cells.novelty_pvalue is not None:
        n_new = int((cells.novelty_pvalue <= SMALL_PVALUE).sum())
        facts.append(
            (
                "Unlike the reference",
                percent(n_new / cells.n_obs),
                f"p ≤ {SMALL_PVALUE}; by chance {percent(SMALL_PVALUE)}",
            )
        )
    facts.append(("To check", count(n_checks), "see what to doubt"))
    shown = [
        element(
            "div",
            element("dt", name),
            element("dd", value, element("small", note) if note else None),
        )
        for name, value, note in facts
    ]
    first = next((doubt for doubt in doubts if doubt.weight == "check"), None)
    warned = (
        None
        if first is None
        else element("p", "First to check: ", first.what, " ", link("What to doubt", "#doubt"))
    )
    return section(
        "summary",
        "Summary",
        "The numbers to look at first; each is explained in the sections below.",
        element("dl", *shown, class_="facts"),
        warned,
    )


def composition(cells: Cells) -> Html:
    """Make the section on how many cells have which label."""
    n_cells = cells.n_cells
    largest = max(n_cells.max() / cells.n_obs, 1e-9)
    rows = [
        (
            label_cell(cells, code),
            count(n_cells[code]),
            percent(n_cells[code] / cells.n_obs),
            bar(n_cells[code] / cells.n_obs / largest, cells.colors[code]),
        )
        for code in cells.by_frequency
    ]
    columns = [Column("Label"), Column("Cells", True), Column("Share", True), Column("")]
    return section(
        "composition",
        "Composition",
        "Which labels the cells got, and how many cells each has; a bar is as long as the share, "
        "relative to the most frequent label.",
        table("Cells of each label", columns, rows),
        _by_sample(cells),
    )


def _by_sample(cells: Cells) -> Html | None:
    if cells.samples is None:
        return None
    names = list(cells.samples.categories)
    codes = np.asarray(cells.samples.codes)
    n_labels = len(cells.labels)
    counts = np.zeros((len(names), n_labels), dtype=np.int64)
    np.add.at(counts, (codes, cells.codes), 1)
    shown = list(range(len(names)))
    note = ""
    if len(names) > _MAX_SAMPLES:
        shown = sorted(np.argsort(-counts.sum(1), kind="stable")[:_MAX_SAMPLES].tolist())
        note = f"; the {_MAX_SAMPLES} samples with most cells of {len(names)}"
    order = cells.by_frequency
    rows = []
    for i in shown:
        shares = counts[i] / max(counts[i].sum(), 1)
        rows.append(
            (
                names[i],
                count(counts[i].sum()),
                stacked_bar([shares[c] for c in order], [cells.colors[c] for c in order]),
                *(percent(shares[c]) if counts[i, c] else "0" for c in order),
            )
        )
    columns = [Column(str(cells.sample_key)), Column("Cells", True), Column("")]
    columns += [Column(cells.labels[c], True) for c in order]
    caption = f"Share of each label in the samples of adata.obs[{cells.sample_key!r}]{note}"
    return join(element("h3", "By sample"), table(caption, columns, rows))


def confidence(cells: Cells) -> Html:
    """Make the section on the probabilities of the labels."""
    rows = []
    for code in cells.by_frequency:
        values = cells.probability[cells.rows(code)]
        low = values < LOW_PROBABILITY
        rows.append(
            (
                label_cell(cells, code),
                histogram(values, 0, 1, color=cells.colors[code]),
                decimal(float(np.median(values))),
                decimal(float(np.quantile(values, 0.1))),
                count(low.sum()),
                percent(float(low.mean())),
            )
        )
    columns = [
        Column("Label"),
        Column("Probability, 0 to 1"),
        Column("Median", True),
        Column("10 % of cells below", True),
        Column(f"Cells below {LOW_PROBABILITY}", True),
        Column("Share", True),
    ]
    calibration = (
        "The probabilities are calibrated on cells of the reference that the model did not see: of "
        "a hundred such cells with a probability of 0.8, about eighty have the right label. In "
        "cells of another batch, technology or tissue they may be too high or too low, and they "
        "are too high for types that the reference lacks."
    )
    agreed = agreement(cells)
    measured = None
    if agreed is not None:
        share, n = agreed
        measured = element(
            "p",
            f"Measured here: {percent(share)} of the {n_cells_of(n)} with a label of the model in "
            f"adata.obs[{cells.labels_key!r}] got that label; the mean probability of all cells is "
            f"{decimal(float(cells.probability.mean()))}.",
        )
    elif cells.known is not None:
        measured = element(
            "p",
            f"No label in adata.obs[{cells.labels_key!r}] is one of the model's, so that the "
            "agreement cannot be measured.",
        )
    return section(
        "confidence",
        "Confidence",
        "How probable each cell's best label is; a label to rely on has its cells at the right "
        "end.",
        table("Probability of the best label, by label", columns, rows),
        element("p", calibration),
        measured,
        _known_labels(cells),
    )


def _known_labels(cells: Cells) -> Html | None:
    """Cells of each known label by predicted label."""
    if cells.known is None or len(cells.known.categories) > _MAX_SAMPLES:
        return None
    known = np.asarray(cells.known.codes)
    has = known >= 0
    counts = np.zeros((len(cells.known.categories), len(cells.labels)), dtype=np.int64)
    np.add.at(counts, (known[has], cells.codes[has]), 1)
    rows = [
        (name, *(count(n) if n else "0" for n in counts[i]))
        for i, name in enumerate(cells.known.categories)
    ]
    columns = [Column(str(cells.labels_key)), *(Column(name, True) for name in cells.labels)]
    caption = f"Cells of each label in adata.obs[{cells.labels_key!r}], by predicted label"
    return join(element("h3", "Beside the labels known before"), table(caption, columns, rows))


def novelty(cells: Cells) -> Html:
    """Make the section on how unlike the reference cells are."""
    how = (
        "How unlike any label of the reference the cells are; a score is about 0 with a spread of "
        "1 for cells like the reference's, and larger for others."
    )
    if cells.novelty is None or cells.novelty_pvalue is None:
        return section(
            "novelty",
            "Novelty",
            how,
            element(
                "p",
                "The annotation has no novelty scores: the model takes several modalities, or it "
                "was saved before models kept what is needed. "
                "tosica.tl.novelty(adata, model, reference) computes them from the reference.",
            ),
        )
    rows = []
    for code in cells.by_frequency:
        positions = cells.rows(code)
        small = cells.novelty_pvalue[positions] <= SMALL_PVALUE
        scores = cells.novelty[positions]
        rows.append(
            (
                label_cell(cells, code),
                histogram(scores, *NOVELTY_RANGE, color=cells.colors[code], mark=0),
                decimal(float(np.median(scores))),
                count(small.sum()),
                percent(float(small.mean())),
            )
        )
    low, high = NOVELTY_RANGE
    columns = [
        Column("Label"),
        Column(f"Score, {decimal(low, 0)} to {decimal(high, 0)}; the line is 0"),
        Column("Median", True),
        Column(f"Cells with p ≤ {SMALL_PVALUE}", True),
        Column("Share", True),
    ]
    n_new = n_significant(cells.novelty_pvalue)
    corrected = (
        "The scores were corrected for what all cells have in common (tosica.tl.novelty)."
        if cells.novelty_is_corrected
        else "The scores take each cell by itself, so that cells of another batch are unlike the "
        "reference, too: tosica.tl.novelty(adata, model) corrects for what all cells have in "
        "common."
    )
    explained = (
        f"The p-value is the share of the reference's own cells that score at least as high. By "
        f"chance, {percent(SMALL_PVALUE)} of the cells have one up to {SMALL_PVALUE}. "
        f"{n_cells_of(n_new)} stay below {SMALL_PVALUE} after correction for the number of cells "
        f"(Benjamini and Hochberg). {corrected} A small p-value does not prove a new type: "
        "doublets, damaged cells and known types under treatment are unlike the reference as well."
    )
    return section(
        "novelty",
        "Novelty",
        how,
        table("Novelty score, by label", columns, rows),
        element("p", explained),
    )
