"""The page around the sections."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tosica._report._html import Html, element, join, link
from tosica._report._html import cells as n_cells_of
from tosica._report._map import Map, draw_map, read_resource
from tosica._report._map_section import map_section
from tosica._report._methods import doubt_section, methods_section
from tosica._report._sections import composition, confidence, novelty, summary
from tosica._report._types_section import types_section

if TYPE_CHECKING:
    from tosica._report._cells import Cells
    from tosica._report._doubt import Doubt
    from tosica._report._doubts import Findings
    from tosica._report._embedding import Positions
    from tosica.model import TOSICA

# The browser itself refuses every request; Bokeh makes functions of text.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
)
_SECTIONS = {
    "summary": "Summary",
    "composition": "Composition",
    "confidence": "Confidence",
    "novelty": "Novelty",
    "map-section": "Map",
    "types": "Cell types",
    "doubt": "What to doubt",
    "methods": "Methods",
}


class Contents(NamedTuple):
    """All that the page shows."""

    cells: Cells
    found: Findings
    doubts: list[Doubt]
    positions: Positions
    model: TOSICA | None


def make_page(contents: Contents, title: str) -> str:
    """Write the page.

    Parameters
    ----------
    contents
        What it shows.
    title
        Its title.
    """
    cells, positions = contents.cells, contents.positions
    drawn: Map | None = None if positions.why_not else draw_map(cells, positions)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="generator", content="tosica"),
        element("title", title),
        # Browsers would ask the server for an icon otherwise.
        element("link", rel="icon", href="data:,"),
        element("style", Html(read_resource("page.css"))),
    )
    entries = [element("li", link(text, f"#{name}")) for name, text in _SECTIONS.items()]
    sections = join(
        summary(cells, contents.doubts),
        composition(cells),
        confidence(cells),
        novelty(cells),
        map_section(cells, positions),
        types_section(cells, contents.found),
        doubt_section(contents.doubts),
        methods_section(cells, contents.found, positions, contents.model),
    )
    record = cells.record
    body = element(
        "body",
        element("a", "Skip to the summary", class_="skip", href="#summary"),
        element(
            "header",
            element("h1", title),
            element(
                "p",
                f"{n_cells_of(cells.n_obs)}, labelled by the model {record.get('model', '')} "
                f"under the key {cells.key!r}",
                class_="quiet",
            ),
        ),
        element("nav", element("ul", *entries), aria_label="Sections"),
        element("main", sections),
        element(
            "footer",
            "Made by tosica.report. This page needs no network, and sends nothing anywhere.",
        ),
        element("script", Html(read_resource("page.js"))),
        *(drawn or ()),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"
