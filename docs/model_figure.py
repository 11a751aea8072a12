"""Draw how the model works: from genes to gene sets to the label, and back.

python docs/model_figure.py docs/_static/model.svg
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TEXT, _MUTED, _LINE, _BACK = "#222222", "#5f6b75", "#8a96a0", "#b03a2e"
_BOX = "#eef3f7"
# Name, expression from 0 to 1, and the gene sets that hold the gene.
_GENES = {
    "CD79A": (1.0, [0]),
    "CD79B": (0.75, [0]),
    "CD74": (0.9, [0, 1]),
    "HLA-DRA": (0.8, [1]),
    "NKG7": (0.05, [2]),
    "GNLY": (0.0, [2]),
    "LYZ": (0.15, [3]),
}
_GENE_SETS = [
    "B cell receptor\nsignaling",
    "antigen\npresentation",
    "cell killing",
    "module: LYZ, …",
]
_COLORS = ["#3d6b8f", "#c8763b", "#5d8f5a", "#8a6fa8"]
_LABELS = {"B cell": 0.97, "monocyte": 0.02, "NK cell": 0.01}


def main(target: Path) -> None:
    """The figure has a white ground of its own, so that it is legible on a dark page, too."""
    # Letters become outlines: an SVG in a page cannot bring its font.
    plt.rcParams |= {"svg.fonttype": "path", "font.size": 11, "svg.hashsalt": "tosica"}
    figure = plt.figure(figsize=(8, 5.7))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 8), ylim=(5.7, 0))
    ax.axis("off")
    ax.add_patch(
        FancyBboxPatch(
            (0.08, 0.08), 7.84, 5.54, "round,pad=0,rounding_size=0.12", color="white"
        )
    )
    _draw_columns(ax)
    _draw_branches(ax)
    _draw_labels(ax)
    _draw_way_back(ax)
    figure.savefig(target, transparent=True, metadata={"Date": None})


def _draw_columns(ax: Axes) -> None:
    """Genes on the left, each connected with the gene sets that hold it."""
    _heading(ax, 0.25, "1  Genes", "of one cell")
    _heading(ax, 2.0, "2  Gene sets", "are the tokens")
    for i, name in enumerate(_GENE_SETS):
        _box(ax, 2.0, _y_of_set(i) - 0.26, 1.62, 0.52, name, _COLORS[i])
    cmap = plt.get_cmap("Blues")
    for i, (name, (expression, gene_sets)) in enumerate(_GENES.items()):
        y = 1.27 + 0.4 * i
        ax.add_patch(
            plt.Rectangle(
                (1.0, y - 0.13), 0.26, 0.26, color=cmap(0.08 + 0.75 * expression)
            )
        )
        ax.text(
            0.93,
            y,
            name,
            ha="right",
            va="center",
            color=_TEXT,
            style="italic",
            fontsize=10.5,
        )
        for j in gene_sets:
            ax.plot(
                [1.27, 1.98],
                [y, _y_of_set(j)],
                color=_COLORS[j],
                linewidth=1.5,
                alpha=0.8,
            )


def _draw_branches(ax: Axes) -> None:
    """Transformer and linear branch, which both read the gene sets."""
    _heading(ax, 4.15, "3  Two branches", "score every label")
    _box(ax, 4.15, 1.35, 1.72, 0.95, "Transformer\nattends to the\ngene sets", _LINE)
    _box(
        ax,
        4.15,
        2.8,
        1.72,
        0.95,
        "linear branch\nadds up gene sets\nand their genes",
        _LINE,
    )
    for y_branch in (1.82, 3.27):
        for i in range(len(_GENE_SETS)):
            ax.plot(
                [3.64, 4.13],
                [_y_of_set(i), y_branch],
                color=_LINE,
                linewidth=0.8,
                alpha=0.7,
            )


def _draw_labels(ax: Axes) -> None:
    """The sum of both branches, and the probabilities of the labels."""
    _heading(ax, 6.35, "4  Label", "with probability")
    ax.add_patch(
        plt.Circle(
            (6.25, 2.55), 0.14, facecolor="white", edgecolor=_TEXT, linewidth=1.1
        )
    )
    ax.text(6.25, 2.55, "+", ha="center", va="center", color=_TEXT, fontsize=12)
    _arrow(ax, (5.89, 1.95), (6.17, 2.42), _LINE)
    _arrow(ax, (5.89, 3.15), (6.17, 2.68), _LINE)
    for i, (name, probability) in enumerate(_LABELS.items()):
        y = 2.0 + 0.6 * i
        ax.text(6.55, y - 0.09, name, va="bottom", color=_TEXT)
        ax.add_patch(plt.Rectangle((6.55, y - 0.06), 0.85, 0.16, color="#e3e8ec"))
        color = _COLORS[0] if i == 0 else _LINE
        ax.add_patch(
            plt.Rectangle((6.55, y - 0.06), 0.85 * probability, 0.16, color=color)
        )
        ax.text(
            7.45,
            y + 0.02,
            f"{probability:.2f}",
            va="center",
            color=_MUTED,
            fontsize=9.5,
        )


def _draw_way_back(ax: Axes) -> None:
    """From the label to what each gene set and each gene added to its score."""
    ax.plot([0.25, 7.75], [4.2, 4.2], color="#d5dbe0", linewidth=1)
    ax.text(0.25, 4.44, "Why this label?", color=_BACK, weight="bold", va="center")
    ax.text(
        1.72,
        4.44,
        "What each gene set and each gene added to its score",
        color=_BACK,
        va="center",
    )
    _box(ax, 6.35, 4.78, 1.3, 0.52, "B cell", _BACK)
    _box(ax, 2.7, 4.78, 2.75, 0.52, "B cell receptor signaling  +2.1", _BACK)
    _box(ax, 0.25, 4.78, 1.6, 0.52, "CD79A  +0.9\nCD79B  +0.5", _BACK)
    _arrow(ax, (6.33, 5.04), (5.49, 5.04), _BACK)
    _arrow(ax, (2.68, 5.04), (1.89, 5.04), _BACK)


def _y_of_set(i: int) -> float:
    return 1.45 + 0.72 * i


def _heading(ax: Axes, x: float, title: str, subtitle: str) -> None:
    ax.text(x, 0.42, title, weight="bold", fontsize=12.5, va="center", color=_TEXT)
    ax.text(x, 0.72, subtitle, fontsize=11, va="center", color=_MUTED)


def _box(
    ax: Axes, x: float, y: float, width: float, height: float, text: str, edge: str
) -> None:
    ax.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            "round,pad=0,rounding_size=0.08",
            facecolor=_BOX,
            edgecolor=edge,
            linewidth=1.4,
        )
    )
    ax.text(
        x + width / 2,
        y + height / 2,
        text,
        ha="center",
        va="center",
        color=_TEXT,
        fontsize=10.5,
        linespacing=1.15,
    )


def _arrow(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], color: str
) -> None:
    ax.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=12, color=color, linewidth=1.6
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
