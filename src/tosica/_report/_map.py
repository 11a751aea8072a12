"""The map of the cells, drawn by Bokeh in the browser."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from tosica._report._html import Html, element
from tosica._report._map_colors import HUNDREDTHS, NOVELTY_RANGE, PARTS, color_mappers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tosica._report._cells import Cells
    from tosica._report._embedding import Positions

_OLDEST_BOKEH = (3, 8)
# Coordinates are whole numbers up to this one, which is finer than any screen.
_FINEST = 65_535
# Beyond this many labels, their names on the map would hide it.
_MAX_NAMED = 40
# A click belongs to a cell that is not farther away than this share of the map. Of the cells that
# are found, so many get a ring, and so many are listed.
_LIMITS: dict[str, Any] = {"parts": PARTS, "reach": 0.02, "mostRinged": 500, "mostListed": 20}
# Labels so near to an edge, as a share of the width, are written away from it.
_EDGE = 0.15


class Map(NamedTuple):
    """The map's scripts: Bokeh itself, and the data with what draws them."""

    library: Html
    data: Html
    script: Html


def check_bokeh() -> None:
    """Check that Bokeh is installed, and writes what the pointer shows as text.

    Raises
    ------
    ImportError
        If it is not installed, or too old: before 3.8, a cell named ``<img …>`` would be an image.
    """
    try:
        import bokeh
    except ImportError as error:
        raise ImportError(
            "The map of a report needs the bokeh package: pip install 'tosica[report]'."
        ) from error
    if tuple(int(part) for part in bokeh.__version__.split(".")[:2]) < _OLDEST_BOKEH:
        raise ImportError(
            f"The map of a report needs bokeh 3.8 or newer, and {bokeh.__version__} is installed: "
            "pip install -U 'tosica[report]'."
        )


def draw_map(cells: Cells, positions: Positions) -> Map:
    """Make the scripts of the map.

    Parameters
    ----------
    cells
        The annotation.
    positions
        Where which cells are.
    """
    from bokeh.resources import Resources

    resources = Resources(mode="inline", components=["bokeh", "bokeh-gl"], minified=True)
    library = "\n".join(resources.js_raw)
    item = _with_fixed_ids(_item(cells, positions))
    return Map(
        element("script", Html(library)),
        element("script", _json(item), type="application/json", id="map-data"),
        element("script", Html(read_resource("map.js"))),
    )


def read_resource(name: str) -> str:
    """Read a file of this package."""
    return files("tosica._report").joinpath(name).read_text(encoding="utf-8")


def _json(value: Any) -> Html:
    """Write data so that they can neither end their script nor begin another one."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)


def _item(cells: Cells, positions: Positions) -> dict[str, Any]:
    from bokeh import embed, models, plotting

    # As Any, because Bokeh's types differ from version to version.
    make: Any = models
    columns = _columns(cells, positions)
    source = make.ColumnDataSource(columns)
    rows = positions.rows
    # The names of all cells as one text, which is compressed with the rest of the data.
    text = "\n".join(str(name).replace("\n", " ") for name in cells.names[rows])
    names = make.ColumnDataSource({"text": np.frombuffer(text.encode(), np.uint8)})
    hidden = make.BooleanFilter(booleans=None)
    margin = _FINEST // 30
    plot: Any = cast("Any", plotting).figure(
        sizing_mode="stretch_both",
        output_backend="webgl",
        x_range=make.Range1d(-margin, _FINEST + margin),
        y_range=make.Range1d(-margin, _FINEST + margin),
        tools=[pan := make.PanTool(), make.WheelZoomTool(), make.ResetTool(), make.SaveTool()],
        toolbar_location="above",
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_alpha=0,
        min_border=0,
        title=None,
    )
    plot.toolbar.logo = None
    plot.toolbar.active_drag = pan
    plot.axis.visible = False
    plot.grid.visible = False
    mappers = color_mappers(cells)
    size = float(np.clip(420 / np.sqrt(max(len(rows), 1)), 2.5, 7))
    points = plot.scatter(
        "x",
        "y",
        source=source,
        view=make.CDSView(filter=hidden),
        size=size,
        line_color=None,
        fill_alpha=0.75,
        fill_color={"field": "label", "transform": make.LinearColorMapper(**mappers["label"])},
        nonselection_fill_alpha=0.75,
    )
    found = make.ColumnDataSource({"x": [], "y": []})
    plot.scatter("x", "y", source=found, size=18, line_width=3, fill_color=None, line_color="black")
    plot.scatter("x", "y", source=found, size=14, line_width=3, fill_color=None, line_color="white")
    lists = {"names": names, "labels": cells.labels}
    plot.add_tools(_hover(points, lists, has_pvalue="pvalue" in columns))
    transforms = {name: make.LinearColorMapper(**mapper) for name, mapper in mappers.items()}
    asked = {"plot": plot, "source": source, "points": points, "hidden": hidden, "found": found}
    asked |= lists | {"named": _add_names(plot, cells, columns)} | _LIMITS
    plot.tags = [
        make.CustomJS(args=asked, code=_DECODE + read_resource("callback.js")),
        make.CustomJS(
            args={"points": points, **transforms},
            code=f"const transform = {{{', '.join(transforms)}}}[cb_data.by]\n{_PAINT_CODE}",
        ),
    ]
    return dict(cast("Any", embed).json_item(plot, "map"))


def _hover(points: Any, lists: dict[str, Any], *, has_pvalue: bool) -> Any:
    """Show a cell's name and numbers beside the pointer."""
    from bokeh import models

    make: Any = models
    return make.HoverTool(
        renderers=[points],
        tooltips=_TOOLTIP.format(novelty=_NOVELTY if has_pvalue else ""),
        formatters={
            "@x": make.CustomJSHover(args=lists, code=_NAME_CODE),
            "@label": make.CustomJSHover(args=lists, code="return labels[value]"),
            "@probability": make.CustomJSHover(code=f"return (value / {PARTS}).toFixed(3)"),
            "@pvalue": make.CustomJSHover(code=_PVALUE_CODE),
        },
    )


def _columns(cells: Cells, positions: Positions) -> dict[str, NDArray[np.integer]]:
    """What is known of each cell on the map, in as few bytes as can be."""
    rows, xy = positions.rows, positions.xy
    low = xy.min(0, initial=np.inf)
    extent = xy.max(0, initial=-np.inf) - low
    scaled = np.rint((xy - low) / np.where(extent > 0, extent, 1) * _FINEST).astype(np.uint16)
    columns: dict[str, NDArray[np.integer]] = {
        "x": scaled[:, 0],
        "y": scaled[:, 1],
        "label": cells.codes[rows].astype(np.uint16),
        "probability": np.rint(cells.probability[rows] * PARTS).astype(np.uint16),
    }
    if cells.novelty is not None and cells.novelty_pvalue is not None:
        score = np.nan_to_num(cells.novelty[rows], nan=NOVELTY_RANGE[0])
        columns["novelty"] = np.rint(np.clip(score, -300, 300) * HUNDREDTHS).astype(np.int16)
        pvalue = np.nan_to_num(cells.novelty_pvalue[rows], nan=1.0)
        columns["pvalue"] = np.rint(np.clip(pvalue, 0, 1) * PARTS).astype(np.uint16)
    if cells.samples is not None:
        columns["sample"] = np.asarray(cells.samples.codes)[rows].astype(np.uint16)
    if cells.known is not None:
        # The last number is for cells without a known label.
        n_known = len(cells.known.categories)
        codes = np.asarray(cells.known.codes)[rows].astype(np.int64)
        columns["known"] = np.where(codes < 0, n_known, codes).astype(np.uint16)
    return columns


def _add_names(plot: Any, cells: Cells, columns: dict[str, NDArray[np.integer]]) -> Any:
    """Write the name of each label where its cells are."""
    from bokeh import models

    codes = [c for c in cells.types if (columns["label"] == c).any()]
    places = [
        [float(np.median(columns[axis][columns["label"] == code])) for code in codes]
        for axis in ("x", "y")
    ]
    data = models.ColumnDataSource(
        {
            "x": places[0],
            "y": places[1],
            "text": [cells.labels[code] for code in codes],
            "align": [
                "left"
                if x < _EDGE * _FINEST
                else "right"
                if x > (1 - _EDGE) * _FINEST
                else "center"
                for x in places[0]
            ],
        }
    )
    return plot.text(
        "x",
        "y",
        "text",
        source=data,
        text_align="align",
        text_baseline="middle",
        text_font_size="12px",
        text_font_style="bold",
        text_color="#111111",
        background_fill_color="#ffffff",
        background_fill_alpha=0.7,
        padding=3,
        visible=len(codes) <= _MAX_NAMED,
    )


def _with_fixed_ids(item: dict[str, Any]) -> dict[str, Any]:
    """Number the models of a document from 1, so that the same data give the same page."""
    numbers: dict[str, str] = {}

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: numbers.setdefault(inner, f"m{len(numbers) + 1}")
                if key == "id" and isinstance(inner, str)
                else renamed(inner)
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [renamed(inner) for inner in value]
        return value

    item = dict(item)
    made = renamed(item["doc"])
    return item | {"doc": made, "root_id": numbers[item["root_id"]]}


# --------------------------------------------------------------------------- in the browser

# Bokeh writes the values as text.
_TOOLTIP = (
    '<div style="color:#1c2024;font:14px/1.4 system-ui,sans-serif"><b>@x{{name}}</b><br>'
    "@label{{label}}<br>probability @probability{{part}}{novelty}</div>"
)
_NOVELTY = "<br>novelty p-value @pvalue{part}"
# Names are decoded once, when the first one is asked for.
_DECODE = """
const decoded = window.tosicaNames ??= new TextDecoder().decode(
  new Uint8Array(names.get("text"))).split("\\n");
"""
_NAME_CODE = _DECODE + "return decoded[special_vars.index]"
_PVALUE_CODE = f"return value ? (value / {PARTS}).toFixed(4) : '< {1 / PARTS:.4f}'"

_PAINT_CODE = "points.glyph.fill_color = {field: cb_data.by, transform}"
