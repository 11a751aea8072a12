"""The map of the cells: positions, colors, and the plot that Bokeh draws in the browser."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import scanpy as sc
from matplotlib.colors import LinearSegmentedColormap, to_hex

from tosica._obs import LIGHT_GRAY, default_palette
from tosica._progress import progress
from tosica._settings import logger
from tosica._text import format_thousands, in_python
from tosica.tl._evidence import draw_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData

    from tosica._types import FloatArray, IntArray
    from tosica.tl._evidence import Cells

# Every label keeps at least this many cells on the map.
_LEAST = 200
# UMAP needs more cells than components, and neighbors.
_MIN_CELLS = 5
# Coordinates are whole numbers up to this one, which is finer than any screen.
_FINEST = 65_535
# Probabilities and p-values are whole parts of one, and novelty scores are in hundredths.
_PARTS = 10_000
# Beyond this many labels, their names on the map would hide it.
MAX_NAMED = 40
# Scores of novelty that the colors span.
NOVELTY_RANGE = (-2.0, 5.0)
# From certain or familiar to doubtful or new: seen on white and on black, and darker or stronger
# where one has to look, for any kind of color vision.
RAMP = ("#b9c4ce", "#e39a5b", "#a8002a")


# --------------------------------------------------------------------------- positions


class Positions(NamedTuple):
    """Where cells are on the map.

    ``rows`` are the positions of the cells in the AnnData, ``(n,)``, and ``xy`` is ``(n, 2)``.
    ``computed`` says whether the UMAP was computed for this page. ``why_not`` is the reason if
    there is no map.
    """

    rows: IntArray
    xy: FloatArray
    computed: bool = False
    why_not: str = ""


def find_positions(
    adata: AnnData, cells: Cells, max_cells: int, seed: int
) -> Positions:
    """Take the UMAP of an AnnData, or compute one of the attention.

    Parameters
    ----------
    adata
        The annotated cells, which are not changed.
    cells
        Their annotation.
    max_cells
        Cells on the map at most. Of more, a sample is drawn that keeps rare labels.
    seed
        Seed of the draw and of the UMAP.

    Raises
    ------
    ValueError
        If ``adata.obsm["X_umap"]`` is no UMAP.
    """
    rng = np.random.default_rng(seed)
    rows = draw_cells(cells.codes, max_cells, rng, least=_LEAST)
    # In random order, so that no label lies above another one because of its place in the data.
    rows = rng.permutation(rows)
    if "X_umap" in adata.obsm:
        xy = np.asarray(adata.obsm["X_umap"])
        if xy.ndim != 2 or xy.shape[1] < 2 or not np.isfinite(xy).all():
            cure = in_python("run scanpy.tl.umap again, or ")
            raise ValueError(
                f"adata.obsm['X_umap'] must have two finite columns: {cure}delete it, and the report computes one."
            )
        return Positions(rows, xy[rows, :2].astype(np.float64))
    if len(rows) < _MIN_CELLS:
        return Positions(
            rows, np.zeros((len(rows), 2)), why_not=f"{len(rows)} cells are too few"
        )
    logger.info(
        "report: adata.obsm has no 'X_umap', so that one is computed for %s cells",
        format_thousands(len(rows)),
    )
    sample = ad.AnnData(obs=pd.DataFrame(index=[str(i) for i in range(len(rows))]))
    sample.obsm["attention"] = np.asarray(adata.obsm[f"X_{cells.key}"])[rows]
    n_neighbors = min(15, len(rows) - 1)
    # The spectral start needs many more cells than components.
    init_pos = "spectral" if len(rows) > 60 else "random"
    with progress(None, "report: UMAP"):
        sc.pp.neighbors(
            sample, n_neighbors=n_neighbors, use_rep="attention", random_state=seed
        )
        sc.tl.umap(sample, random_state=seed, init_pos=init_pos)
    return Positions(rows, sample.obsm["X_umap"].astype(np.float64), computed=True)


# --------------------------------------------------------------------------- plot


def draw_map(
    cells: Cells, positions: Positions, names: Sequence[str], colors: list[str]
) -> tuple[str, str]:
    """Make Bokeh's library and the data of the map, which ``map.js`` draws.

    Parameters
    ----------
    cells
        The annotation.
    positions
        Where which cells are.
    names
        Name of each cell, ``(n_obs,)``.
    colors
        Color of each label.

    Returns
    -------
    JavaScript, and JSON that can neither end its script nor begin another one.
    """
    from bokeh import embed
    from bokeh.core.types import ID
    from bokeh.resources import Resources

    resources = Resources(
        mode="inline", components=["bokeh", "bokeh-gl"], minified=True
    )
    plot = _plot(cells, positions, [names[i] for i in positions.rows], colors)
    item: Any = embed.json_item(plot, ID("map"))
    data = item | {"labels": cells.labels, "parts": _PARTS}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # Bokeh counts what it makes in a process: from 1, so that the same data give the same page.
    numbers: dict[str, int] = {}

    def renumber(match: re.Match[str]) -> str:
        number = numbers.setdefault(match[2], len(numbers) + 1)
        return f'{match[1]}m{number}"'

    text = re.sub(r'(id":")p(\d+)"', renumber, text)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return "\n".join(resources.js_raw), text


def _plot(
    cells: Cells, positions: Positions, names: list[str], colors: list[str]
) -> Any:
    from bokeh import models

    # As Any, because Bokeh's types differ from version to version.
    make: Any = models
    columns = _columns(cells, positions)
    plot = _empty_plot(make)
    mappers = {
        by: make.LinearColorMapper(name=f"by {by}", **mapper)
        for by, mapper in _color_mappers(cells, colors).items()
    }
    points = plot.scatter(
        "x",
        "y",
        source=make.ColumnDataSource(columns),
        view=make.CDSView(filter=make.BooleanFilter(booleans=None)),
        size=float(np.clip(420 / np.sqrt(max(len(names), 1)), 2.5, 7)),
        line_color=None,
        fill_alpha=0.75,
        fill_color={"field": "label", "transform": mappers["label"]},
        nonselection_fill_alpha=0.75,
        name="points",
    )
    # Around the cell that is searched for, seen on any color.
    rings = make.ColumnDataSource({"x": [], "y": []}, name="rings")
    for size, color in ((18, "black"), (14, "white")):
        plot.scatter(
            "x",
            "y",
            source=rings,
            size=size,
            line_width=3,
            fill_color=None,
            line_color=color,
        )
    _add_labels(plot, cells, columns)
    plot.add_tools(
        make.HoverTool(
            renderers=[points],
            tooltips=_TOOLTIP.format(novelty=_NOVELTY if "pvalue" in columns else ""),
            formatters={
                name: make.CustomJSHover(code=code)
                for name, code in _FORMATTERS.items()
            },
        )
    )
    # The names of all cells as one text, which is compressed with the rest of the data.
    text = "\n".join(name.replace("\n", " ") for name in names)
    name_bytes = make.ColumnDataSource(
        {"text": np.frombuffer(text.encode(), np.uint8)}, name="names"
    )
    # For map.js, which finds them by name, though nothing draws them yet.
    plot.tags = [name_bytes, *mappers.values()]
    return plot


def _empty_plot(make: Any) -> Any:
    """Make a plot without axes, to be moved and magnified."""
    from bokeh import plotting

    margin = _FINEST // 30
    pan = make.PanTool()
    plot: Any = plotting.figure(  # type: ignore[call-arg] # its types leave out tools
        sizing_mode="stretch_both",
        output_backend="webgl",
        x_range=make.Range1d(-margin, _FINEST + margin),
        y_range=make.Range1d(-margin, _FINEST + margin),
        tools=[pan, make.WheelZoomTool(), make.ResetTool(), make.SaveTool()],
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
    return plot


# Values of the tooltip, as map.js writes them.
_FORMATTERS = {
    "@x": "return tosicaMap.name(special_vars.index)",
    "@label": "return tosicaMap.labels[value]",
    "@probability": "return tosicaMap.share(value, 3)",
    "@pvalue": "return value ? tosicaMap.share(value, 4) : '< ' + tosicaMap.share(1, 4)",
}


def _columns(cells: Cells, positions: Positions) -> dict[str, IntArray]:
    """Values of each cell on the map, in as few bytes as can be."""
    rows = positions.rows
    xy = positions.xy
    low = xy.min(0, initial=np.inf)
    extent = xy.max(0, initial=-np.inf) - low
    scaled = np.rint((xy - low) / np.where(extent > 0, extent, 1) * _FINEST).astype(
        np.uint16
    )
    columns: dict[str, IntArray] = {
        "x": scaled[:, 0],
        "y": scaled[:, 1],
        "label": cells.codes[rows].astype(np.uint16),
        "probability": np.rint(cells.probability[rows] * _PARTS).astype(np.uint16),
    }
    if cells.novelty is not None and cells.novelty_pvalue is not None:
        score = np.nan_to_num(cells.novelty[rows], nan=NOVELTY_RANGE[0])
        columns["novelty"] = np.rint(np.clip(score, -300, 300) * 100).astype(np.int16)
        pvalue = np.nan_to_num(cells.novelty_pvalue[rows], nan=1.0)
        columns["pvalue"] = np.rint(np.clip(pvalue, 0, 1) * _PARTS).astype(np.uint16)
    for name, groups in (("sample", cells.samples), ("known", cells.known)):
        if groups is not None:
            # The last number is for cells without a group.
            codes = np.asarray(groups.codes, dtype=np.int64)[rows]
            codes[codes < 0] = len(groups.categories)
            columns[name] = codes.astype(np.uint16)
    return columns


def group_palette(cells: Cells, colors: list[str], name: str) -> list[str]:
    """Colors of samples or of known labels; a known label has the color of the same label."""
    groups = cells.samples if name == "sample" else cells.known
    assert groups is not None
    palette = default_palette(len(groups.categories))
    if name == "sample":
        return palette
    color_of_label = dict(zip(cells.labels, colors, strict=True))
    return [
        color_of_label.get(label, color)
        for label, color in zip(groups.categories, palette, strict=True)
    ]


def _color_mappers(cells: Cells, colors: list[str]) -> dict[str, dict[str, Any]]:
    """Arguments of the color mapper of each column that the map can be colored by."""
    colormap = LinearSegmentedColormap.from_list("ramp", RAMP)
    ramp = [to_hex(color) for color in colormap(np.linspace(0, 1, 256))]

    def categorical(palette: list[str]) -> dict[str, Any]:
        return {"palette": palette, "low": -0.5, "high": len(palette) - 0.5}

    mappers = {
        "label": categorical(colors),
        "probability": {"palette": ramp[::-1], "low": 0, "high": _PARTS},
    }
    if cells.novelty is not None:
        low, high = (100 * bound for bound in NOVELTY_RANGE)
        mappers["novelty"] = {"palette": ramp, "low": low, "high": high}
    for name, groups in (("sample", cells.samples), ("known", cells.known)):
        if groups is not None:
            mappers[name] = categorical(
                [*group_palette(cells, colors, name), LIGHT_GRAY]
            )
    return mappers


def _add_labels(plot: Any, cells: Cells, columns: dict[str, IntArray]) -> None:
    """Write the name of each label where its cells are."""
    from bokeh.models import ColumnDataSource

    coordinates = pd.DataFrame({"x": columns["x"], "y": columns["y"]})
    centers = coordinates.groupby(columns["label"]).median()
    centers = centers.loc[centers.index.isin(cells.types)]
    # Names near to an edge are written away from it.
    side = pd.cut(
        centers["x"] / _FINEST, [-1, 0.15, 0.85, 2], labels=["left", "center", "right"]
    )
    data: dict[str, Any] = {
        "x": centers["x"].tolist(),
        "y": centers["y"].tolist(),
        "text": [cells.labels[code] for code in centers.index],
        "align": side.astype(str).tolist(),
    }
    plot.text(
        "x",
        "y",
        "text",
        source=ColumnDataSource(data),
        text_align="align",
        text_baseline="middle",
        text_font_size="12px",
        text_font_style="bold",
        text_color="#111111",
        background_fill_color="#ffffff",
        background_fill_alpha=0.7,
        padding=3,
        visible=len(centers) <= MAX_NAMED,
        name="labels",
    )


# Bokeh writes the values as text.
_TOOLTIP = (
    '<div style="color:#1c2024;font:14px/1.4 system-ui,sans-serif"><b>@x{{name}}</b><br>'
    "@label{{label}}<br>probability @probability{{part}}{novelty}</div>"
)
_NOVELTY = "<br>novelty p-value @pvalue{part}"
