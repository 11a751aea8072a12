"""Pieces of HTML: everything is escaped unless it was made here."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

# Elements without contents; those of SVG need a slash at the end.
_VOID = {"input": ">", "link": ">", "meta": ">", "rect": "/>"}


class Html(str):
    """Markup that is not escaped again."""

    __slots__ = ()


class Column(NamedTuple):
    """A column of a table: its heading, and whether it holds numbers."""

    heading: str
    is_number: bool = False


def element(tag: str, *children: Any, **attributes: Any) -> Html:
    """Make an element.

    Parameters
    ----------
    tag
        Its name.
    children
        What it holds: :class:`Html` as it is, all else as text. ``None`` is nothing.
    attributes
        Its attributes; an underscore at the end is dropped, others become hyphens. ``True`` has no
        value, and ``None`` and ``False`` leave the attribute out.
    """
    written = "".join(
        f" {name.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{escape(str(value))}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Html(f"<{tag}{written}{_VOID[tag]}")
    return Html(f"<{tag}{written}>{join(*children)}</{tag}>")


def join(*children: Any) -> Html:
    """Put pieces together; what is no :class:`Html` is text."""
    return Html(
        "".join(
            child if isinstance(child, Html) else escape(str(child))
            for child in children
            if child is not None
        )
    )


def link(text: str, address: str) -> Html:
    """Make a link, for a citation or to another part of the page."""
    return element("a", text, href=address, rel=None if address.startswith("#") else "noreferrer")


def table(
    caption: Any, columns: Sequence[Column], rows: Iterable[Sequence[Any]], *, class_: str = ""
) -> Html:
    """Make a table whose first cell in each row names the row.

    Parameters
    ----------
    caption
        What the table holds.
    columns
        Its columns.
    rows
        Cells of each row, as many as columns.
    class_
        Class of the element.
    """
    kinds = ["n" if column.is_number else None for column in columns]
    head = [
        element("th", column.heading, scope="col", class_=kind)
        for column, kind in zip(columns, kinds, strict=True)
    ]
    body = []
    for row in rows:
        first, *rest = row
        cells = [element("th", first, scope="row", class_=kinds[0])]
        cells += [
            element("td", cell, class_=kind) for cell, kind in zip(rest, kinds[1:], strict=True)
        ]
        body.append(element("tr", *cells))
    made = element(
        "table",
        # The text stays in sight while the table is scrolled.
        element("caption", element("span", caption)),
        element("thead", element("tr", *head)),
        element("tbody", *body),
        class_=class_ or None,
    )
    # A wide table is scrolled in a box of its own, because it must not widen the page.
    return element("div", made, class_="scroll", role="group", aria_label=caption)


def swatch(color: str) -> Html:
    """Make a small square of a colour, beside a name that says the same."""
    return element("span", class_="swatch", style=f"background:{color}", aria_hidden="true")


def bar(share: float, color: str = "var(--bar)") -> Html:
    """Make a bar of a share of its column, beside a number that says the same."""
    width = 100 * min(max(share, 0.0), 1.0)
    filled = element("span", style=f"width:{width:.1f}%;background:{color}")
    return element("span", filled, class_="bar", aria_hidden="true")


def stacked_bar(shares: Sequence[float], colors: Sequence[str]) -> Html:
    """Make a bar of several shares, beside a table that says the same."""
    parts = [
        element("span", style=f"width:{100 * share:.2f}%;background:{color}")
        for share, color in zip(shares, colors, strict=True)
        if share > 0
    ]
    return element("span", *parts, class_="bar stacked", aria_hidden="true")


def histogram(
    values: NDArray[np.floating],
    low: float,
    high: float,
    *,
    color: str = "var(--bar)",
    mark: float | None = None,
) -> Html:
    """Draw a small histogram, beside numbers that sum it up.

    Parameters
    ----------
    values
        Values; those outside of ``low`` to ``high`` are counted at the ends.
    low, high
        Ends of the axis.
    color
        Colour of the bars.
    mark
        Where to draw a vertical line.
    """
    n_bins, width, height = 24, 120, 28
    counts, _ = np.histogram(np.clip(values, low, high), bins=n_bins, range=(low, high))
    largest = max(int(counts.max(initial=0)), 1)
    step = width / n_bins
    drawn = []
    for i in np.flatnonzero(counts):
        # A single cell is still to be seen.
        tall = max(height * counts[i] / largest, 1)
        drawn.append(
            element(
                "rect",
                x=f"{i * step:g}",
                y=f"{height - tall:.1f}",
                width=f"{step - 0.6:g}",
                height=f"{tall:.1f}",
                fill=color,
            )
        )
    if mark is not None:
        at = width * (mark - low) / (high - low)
        drawn.append(
            element("rect", x=f"{at:.1f}", y=0, width=1, height=height, fill="currentColor")
        )
    return element(
        "svg",
        *drawn,
        class_="histogram",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        aria_hidden="true",
    )


# --------------------------------------------------------------------------- numbers


def count(n: int) -> str:
    """Write a number of cells with thin spaces between thousands."""
    return f"{int(n):,}".replace(",", "\u202f")


def percent(share: float) -> str:
    """Write a share; a small one is not rounded to nothing."""
    if not np.isfinite(share):
        return "–"
    if share == 0:
        return "0\u00a0%"
    if 0 < share < 0.001:
        return "< 0.1\u00a0%"
    written = f"{100 * share:.{0 if share >= 0.0995 else 1}f}".removesuffix(".0")
    return f"{written}\u00a0%"


def decimal(value: float, digits: int = 2) -> str:
    """Write a number with a minus sign instead of a hyphen."""
    return f"{value:.{digits}f}".replace("-", "−") if np.isfinite(value) else "–"


def cells(n: int) -> str:
    """Write a number of cells with its noun."""
    return f"{count(n)} cell" + ("" if n == 1 else "s")
