"""Section of the page on each cell type: its gene sets, their genes, and its markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tosica._report._explain import N_LEADING
from tosica._report._html import (
    Column,
    Html,
    bar,
    decimal,
    element,
    join,
    percent,
    swatch,
    table,
)
from tosica._report._html import (
    cells as n_cells_of,
)
from tosica._report._markers import N_LISTED, N_MARKERS
from tosica._report._sections import section

if TYPE_CHECKING:
    import pandas as pd

    from tosica._report._cells import Cells
    from tosica._report._doubts import Findings
    from tosica._report._explain import Explanation, GeneSet
    from tosica._report._markers import KnownMarker

# A smaller weight is written as zero.
_SHOWN = 0.005

_UNIT = (
    "A contribution of 1 raises the score of the label by 1 above the mean of all labels, in "
    "logits before calibration, compared with the mean cell of the reference."
)
_HOW = {
    "model": "The model was asked for this page, with {n} cells of each label at most: what gene "
    "sets and genes add by being expressed more than in the reference's mean cell.",
    "top_genes": "The contributions are those that tosica.tl.top_genes wrote to the data: what "
    "gene sets and genes add by being expressed more than in the reference's mean cell.",
    "attribute": "The contributions are those that tosica.tl.attribute wrote to the data. Which "
    "gene adds what to which gene set is not stored; tosica.report(adata, path, model=model) "
    "computes it.",
    "attention": "The data hold no contributions, so that gene sets are listed by attention: in "
    "how many standard deviations the label's cells attend more to them than other cells. "
    "Attention has no sign, and does not show what a label rests on. "
    "tosica.report(adata, path, model=model) computes contributions and the genes behind them.",
}


def types_section(cells: Cells, found: Findings) -> Html:
    """Make the section with a part for each cell type that can be opened.

    Parameters
    ----------
    cells
        The annotation.
    found
        Gene sets, genes and markers.
    """
    explanation = found.explanation
    how = _HOW[explanation.source].format(n=explanation.n_cells)
    unit = None if explanation.source == "attention" else element("p", _UNIT)
    parts = [_type(cells, code, found) for code in cells.by_frequency if code in cells.types]
    return section(
        "types",
        "Cell types",
        "What each label rests on, and whether it fits the markers; read the weight first, then "
        "the genes, then the name of a gene set. Open a label to see it.",
        element("p", how),
        unit,
        _marker_note(found),
        *(parts or [element("p", "No cell has a label.")]),
    )


def _marker_note(found: Findings) -> Html:
    markers = found.markers
    if markers.why_not:
        cure = "name unscaled expression with layer= or use_raw=True"
        return element("p", f"No markers were computed: {markers.why_not}; {cure}.")
    return element(
        "p",
        "Markers of these cells are the genes that are higher in a label than in the other labels "
        f"together, by scanpy's t-test on {n_cells_of(markers.n_cells)} with the labels drawn "
        "evenly. The groups are the predicted labels, so that these markers cannot prove a label; "
        "they show whether the model used what distinguishes the cells. ",
        "Known markers are those that this page was given."
        if markers.known or markers.missing
        else "Markers that you know can be compared by tosica.report(adata, path, "
        "markers={label: genes}).",
    )


def _type(cells: Cells, code: int, found: Findings) -> Html:
    label = cells.labels[code]
    rows = cells.rows(code)
    sets = found.explanation.gene_sets.get(label, [])
    first = f"; first: {sets[0].name}" if sets else ""
    median = decimal(float(np.median(cells.probability[rows])))
    note = f"{n_cells_of(len(rows))}, median probability {median}{first}"
    return element(
        "details",
        element("summary", swatch(cells.colors[code]), label, element("small", note)),
        element(
            "div",
            _second(found, label),
            _gene_sets(found.explanation, label, sets),
            _leading(found, label),
            _known(found, label),
            _found_markers(found, label),
        ),
        id=f"type-{code + 1}",
    )


def _second(found: Findings, label: str) -> Html | None:
    second = (found.second or {}).get(label)
    if second is None:
        return None
    probability = decimal(second.probability)
    return element("p", f"Next label: {second.label}, mean probability {probability}.")


def _gene_sets(explanation: Explanation, label: str, sets: list[GeneSet]) -> Html:
    if not sets:
        return element("p", "No gene set supports this label.")
    largest = max(gene_set.weight for gene_set in sets)
    measure = "Attention" if explanation.source == "attention" else "Contribution"
    columns = [Column("Gene set"), Column(measure, True), Column("")]
    has_genes = any(gene_set.genes for gene_set in sets)
    if has_genes:
        columns.append(Column("Genes, with what they add"))
    rows = []
    for gene_set in sets:
        row = [gene_set.name, decimal(gene_set.weight), bar(gene_set.weight / largest)]
        if has_genes:
            row.append(element("span", *_genes(gene_set.genes), class_="genes"))
        rows.append(row)
    return table(f"Gene sets of {label}", columns, rows)


def _genes(genes: list[tuple[str, float]]) -> list[Html]:
    # What would be written as zero is left out.
    written = [(gene, decimal(weight)) for gene, weight in genes if weight >= _SHOWN]
    shown = []
    for i, (gene, weight) in enumerate(written):
        comma = ", " if i + 1 < len(written) else ""
        shown.append(join(element("i", gene), f"\u00a0{weight}{comma}"))
    return shown or [Html("–")]


def _leading(found: Findings, label: str) -> Html | None:
    """Genes that add most over all gene sets, and how many of them are markers."""
    genes = found.explanation.genes.get(label, [])
    if not genes:
        return None
    shared = ""
    table_of = found.markers.found.get(label)
    if table_of is not None:
        names = set(table_of["gene"])
        n_shared = sum(gene in names for gene, _ in genes)
        shared = (
            f" {n_shared} of these {len(genes)} are among the {min(N_MARKERS, len(names))} "
            "strongest markers of these cells."
        )
    how_many = f"The {len(genes)} genes" if len(genes) == N_LEADING else "The genes"
    return element(
        "p", f"{how_many} that add most over all gene sets: ", *_genes(genes), ".", shared
    )


def _known(found: Findings, label: str) -> Html | None:
    if label not in found.markers.known:
        return None
    known: list[KnownMarker] = found.markers.known[label]
    missing = found.markers.missing[label]
    n_highest = sum(marker.highest_in == label for marker in known)
    rows = [
        (
            element("i", marker.gene),
            marker.highest_in,
            "yes" if marker.highest_in == label else "no",
            percent(marker.share),
            _added(found.explanation, label, marker.gene),
        )
        for marker in known
    ]
    columns = [
        Column("Known marker"),
        Column("Highest in"),
        Column("Agrees"),
        Column("Cells of the label with it", True),
        Column("Adds to the label", True),
    ]
    lacking = f" Not in the data: {', '.join(missing)}." if missing else ""
    return join(
        element(
            "p",
            f"{n_highest} of {len(known)} known markers are highest in this label.{lacking}",
        ),
        table(f"Known markers of {label}", columns, rows) if rows else None,
    )


def _found_markers(found: Findings, label: str) -> Html | None:
    if found.markers.why_not:
        return None
    markers: pd.DataFrame | None = found.markers.found.get(label)
    if markers is None:
        return element("p", "Too few cells for markers.")
    rows = [
        (
            element("i", str(gene)),
            decimal(float(change), 1) if abs(change) <= 10 else "> 10" if change > 0 else "< −10",
            percent(float(share)),
            percent(float(others)),
            _added(found.explanation, label, str(gene)),
        )
        for gene, change, share, others in zip(
            markers["gene"],
            markers["logfoldchange"],
            markers["share"],
            markers["share_others"],
            strict=True,
        )
    ][:N_LISTED]
    columns = [
        Column("Marker"),
        Column("log2 fold change", True),
        Column("Cells of the label with it", True),
        Column("Other cells with it", True),
        Column("Adds to the label", True),
    ]
    return table(f"Markers of {label} in these cells", columns, rows)


def _added(explanation: Explanation, label: str, gene: str) -> str:
    """What a gene adds to a label, if that is known."""
    added = explanation.added
    if added is None or label not in added or gene not in added.index:
        return "–"
    values = np.asarray(added.loc[gene, label], dtype=np.float64)
    return decimal(float(values)) if values.ndim == 0 else "–"
