"""Section of the page with the map and its controls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tosica._report._html import (
    Column,
    Html,
    count,
    decimal,
    element,
    join,
    swatch,
    table,
)
from tosica._report._html import (
    cells as n_cells_of,
)
from tosica._report._map_colors import MISSING, NOVELTY_RANGE, RAMP, group_palette
from tosica._report._sections import section

if TYPE_CHECKING:
    from tosica._report._cells import Cells
    from tosica._report._embedding import Positions

_MAX_IN_KEY = 60
_MAX_NAMED = 40


def map_section(cells: Cells, positions: Positions) -> Html:
    """Make the section with the map.

    Parameters
    ----------
    cells
        The annotation.
    positions
        Where which cells are.
    """
    how = (
        "Each point is a cell, and cells that are alike are near each other; distances between "
        "far groups mean little."
    )
    if positions.why_not:
        return section("map-section", "Map", how, element("p", f"No map: {positions.why_not}."))
    n_drawn = len(positions.rows)
    sample = (
        f"The map shows a random sample of {n_cells_of(n_drawn)} of {count(cells.n_obs)}, in which "
        "rare labels keep their cells; all tables are of all cells. "
        if n_drawn < cells.n_obs
        else ""
    )
    source = (
        "The data had no UMAP, so that one was computed for this page from the attention to gene "
        f"sets (adata.obsm['X_{cells.key}'], scanpy's defaults, 15 neighbours)."
        if positions.computed
        else "The positions are those of adata.obsm['X_umap']."
    )
    return section(
        "map-section",
        "Map",
        how,
        element(
            "p",
            f"{sample}{source} Point at a cell to read its name, label, probability and novelty "
            "p-value, or click or tap it to have them listed below. Without a pointer, the search "
            "gives the same for each cell, and the table of the composition counts the labels.",
        ),
        element("noscript", element("p", "The map needs JavaScript; all tables do without.")),
        _tools(cells),
        _keys(cells),
        element(
            "p",
            f"{count(n_drawn)} of {count(n_drawn)} cells are shown.",
            id="map-status",
            role="status",
            data_total=n_drawn,
        ),
        element(
            "div",
            element(
                "div",
                id="map",
                role="group",
                aria_label=f"Map of {n_cells_of(n_drawn)}; the search below gives the same values",
            ),
            _filter(cells, positions),
            class_="map-box",
        ),
        _search(),
    )


def _tools(cells: Cells) -> Html:
    colors = [("label", "label"), ("probability", "probability")]
    if cells.novelty is not None:
        colors.append(("novelty", "novelty score"))
    if cells.samples is not None:
        colors.append(("sample", f"sample ({cells.sample_key})"))
    if cells.known is not None:
        colors.append(("known", f"label known before ({cells.labels_key})"))
    choice = element("select", *(element("option", n, value=v) for v, n in colors), id="colour-by")
    slider = element(
        "input", type="range", id="least", min=0, max=1, step=0.01, value=0, autocomplete="off"
    )
    shown = element("output", "0.00", id="least-shown", for_="least")
    return element(
        "div",
        element("div", element("label", "Colour by", for_="colour-by"), choice),
        element("div", element("label", "Least probability", for_="least"), slider, shown),
        element(
            "label",
            element(
                "input",
                type="checkbox",
                id="name-labels",
                checked=len(cells.types) <= _MAX_NAMED,
                autocomplete="off",
            ),
            "Names of labels on the map",
            class_="inline",
        ),
        class_="map-tools",
    )


def _search() -> Html:
    columns = [Column("Cell"), Column("Label"), Column("Probability", True)]
    columns.append(Column("Novelty p-value", True))
    return join(
        element(
            "div",
            element(
                "form",
                element(
                    "div",
                    element("label", "Find cells by name", for_="find-text"),
                    element("input", type="search", id="find-text", autocomplete="off"),
                ),
                element("button", "Find", type="submit"),
                id="find",
                role="search",
            ),
            class_="map-tools",
        ),
        element("p", id="find-status", role="status"),
        element("div", table("Cells that were found", columns, []), id="found", hidden=True),
    )


def _filter(cells: Cells, positions: Positions) -> Html:
    n_cells = np.bincount(cells.codes[positions.rows], minlength=len(cells.labels))
    choices = []
    for code in cells.by_frequency:
        if not n_cells[code]:
            continue
        box = element("input", type="checkbox", value=code, checked=True, autocomplete="off")
        name = element("span", cells.labels[code])
        number = element("small", count(n_cells[code]))
        shown = element("label", box, swatch(cells.colors[code]), name, number)
        choices.append(element("li", shown))
    return element(
        "fieldset",
        element("legend", "Labels to show"),
        element(
            "div",
            element("button", "All", type="button", id="all-labels"),
            element("button", "None", type="button", id="no-labels"),
            class_="buttons",
        ),
        element("ul", *choices, class_="choices"),
        id="label-filter",
    )


def _keys(cells: Cells) -> Html:
    """Keys of the colours, of which the script shows one; that of the labels is the filter."""
    low, high = (decimal(bound, 0) for bound in NOVELTY_RANGE)
    keys = [_ramp("probability", "Probability", "1", "0")]
    if cells.novelty is not None:
        keys.append(_ramp("novelty", "Novelty score", f"{low} or less", f"{high} or more"))
    for name, groups in (("sample", cells.samples), ("known", cells.known)):
        if groups is None:
            continue
        colors = group_palette(cells, name)
        entries = [
            element("span", swatch(color), group)
            for group, color in zip(groups.categories, colors, strict=True)
        ]
        rest = len(entries) - _MAX_IN_KEY
        more = [element("span", f"and {rest} more")] if rest > 0 else []
        if name == "known" and (np.asarray(groups.codes) < 0).any():
            more.append(element("span", swatch(MISSING), "none"))
        keys.append(
            element(
                "div", *entries[:_MAX_IN_KEY], *more, class_="key", data_legend=name, hidden=True
            )
        )
    return join(*keys)


def _ramp(name: str, title: str, low: str, high: str) -> Html:
    gradient = f"background:linear-gradient(90deg,{','.join(RAMP)})"
    return element(
        "div",
        f"{title}: grey is {low}",
        element("span", class_="ramp", style=gradient, aria_hidden="true"),
        f"red is {high}",
        class_="key",
        data_legend=name,
        hidden=True,
    )
