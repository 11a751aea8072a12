"""Draw the figure of README and the home page: from a label to its genes and gene sets.

python docs/demo_figure.py docs/_static/demo.png
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import scanpy as sc
import scvi
from PIL import Image
from sklearn.model_selection import train_test_split

import tosica

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData
    from matplotlib.axes import Axes

_LABEL = "CD19+ B"
_N_GENE_SETS = 1
_N_GENES = 8
_N_LABELS = 3
_DPI = 220
_TEXT = 10


def main(target: Path) -> None:
    """The cells and the model of `tosica demo`, in four panels: label, genes, gene set, doubt."""
    query = _explained_query()
    labels = query.obs["tosica_prediction"].cat.categories
    colors = dict(zip(labels, query.uns["tosica_prediction_colors"], strict=True))
    color = colors[_LABEL]
    plt.rcParams |= {"font.size": _TEXT, "axes.titlesize": 11.5}
    figure = plt.figure(figsize=(7.4, 4.4), facecolor="white")
    _draw_cells(figure.add_axes((0.02, 0.42, 0.3, 0.45)), query)
    genes = tosica.get.genes_df(query, _LABEL, n_genes=_N_GENES)
    _draw_genes(figure.add_axes((0.45, 0.15, 0.16, 0.72)), genes, color)
    gene_sets = tosica.get.gene_sets_df(query, _LABEL)[:_N_GENE_SETS]
    _draw_gene_sets(figure.add_axes((0.675, 0.62, 0.3, 0.25)), gene_sets, color)
    _draw_doubt(figure.add_axes((0.675, 0.15, 0.3, 0.25)), query, colors)
    figure.savefig(target, dpi=_DPI)
    Image.open(target).convert("RGB").quantize(128).save(target, optimize=True)


def _explained_query() -> AnnData:
    """The query of `tosica demo`, explained."""
    adata = sc.datasets.pbmc68k_reduced()
    colors = adata.uns["bulk_labels_colors"]
    adata = adata.raw.to_adata()
    adata.uns["bulk_labels_colors"] = colors
    train, test = train_test_split(
        np.arange(adata.n_obs),
        test_size=0.3,
        stratify=adata.obs["bulk_labels"],
        random_state=0,
    )
    ref, query = adata[np.sort(train)].copy(), adata[np.sort(test)].copy()
    scvi.settings.seed = 0
    tosica.pp.build_mask(ref)
    tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels")
    model = tosica.TOSICA(ref)
    model.train(enable_progress_bar=False)
    model.annotate(query, probabilities=True)
    sc.pp.neighbors(query, n_neighbors=30, use_rep="X_tosica")
    sc.tl.umap(query, min_dist=0.7)
    tosica.tl.attribute(query, model)
    return query


def _draw_cells(ax: Axes, query: AnnData) -> None:
    """UMAP of the attention, with the labels in a legend below."""
    labels = query.obs["tosica_prediction"]
    for name, color in zip(
        labels.cat.categories, query.uns["tosica_prediction_colors"], strict=True
    ):
        x, y = query.obsm["X_umap"][(labels == name).to_numpy()].T
        ax.scatter(x, y, s=16, color=color, label=name, linewidth=0)
    ax.set_title("1  Each cell\n    gets a label", loc="left", fontweight="bold")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.legend(
        loc="upper left",
        bbox_to_anchor=(-0.06, 0),
        frameon=False,
        fontsize=9,
        handletextpad=0,
        labelspacing=0.15,
        markerscale=1.5,
    )


def _draw_genes(ax: Axes, table: pd.DataFrame, color: str) -> None:
    """Bars of what genes add to the score."""
    positions = np.arange(len(table))
    # A gene that these cells express less tells the label by its absence.
    is_less = (table["expression"] < 0).to_numpy()
    for bars, alpha in ((~is_less, 1.0), (is_less, 0.35)):
        ax.barh(
            positions[bars],
            table["contribution"].to_numpy()[bars],
            height=0.6,
            color=color,
            alpha=alpha,
        )
    genes = np.where(is_less, "−" + table["gene"].astype(str), table["gene"])
    ax.set_yticks(positions, genes, fontsize=_TEXT, fontstyle="italic")
    ax.set_ylim(len(table) - 0.4, -0.6)
    ax.set_title(
        f"2  Genes that add\n    most to “{_LABEL}”",
        loc="left",
        fontweight="bold",
        x=-0.5,
    )
    _plain(ax, "added to the score\n(−: expressed less)")


def _draw_gene_sets(ax: Axes, table: pd.DataFrame, color: str) -> None:
    """Bars of what the genes of each set add together, with its name above and its genes below."""
    for i, row in table.reset_index(drop=True).iterrows():
        ax.barh(i, row["contribution"], height=0.22, color=color)
        ax.text(
            0,
            i - 0.15,
            textwrap.fill(row["gene_set"], 30),
            va="bottom",
            linespacing=1.05,
        )
        leading = ", ".join(row["genes"].split(", ")[:4])
        ax.text(
            0, i + 0.15, leading, va="top", fontsize=8, fontstyle="italic", color="0.35"
        )
    ax.set_ylim(len(table) - 0.6, -0.6)
    ax.set_title(
        "3  Gene sets with\n    evidence for it", loc="left", fontweight="bold"
    )
    _plain(ax)


def _draw_doubt(ax: Axes, query: AnnData, colors: dict[str, str]) -> None:
    """Bars of the most probable labels of the cell whose label is least sure."""
    table = query.obsm["tosica_probabilities"]
    least_sure = table.iloc[int(table.max(axis=1).argmin())].nlargest(_N_LABELS)
    # Columns of a file cannot have a slash.
    names = [str(column).replace("|", "/") for column in least_sure.index]
    for i, (name, probability) in enumerate(zip(names, least_sure, strict=True)):
        ax.barh(i, probability, height=0.3, color=colors[name])
        ax.text(0, i - 0.17, name, va="bottom", fontsize=9)
    ax.set_xlim(0, 1)
    ax.set_ylim(_N_LABELS - 0.6, -0.7)
    ax.set_title("4  A cell in doubt", loc="left", fontweight="bold")
    _plain(ax, "probability of the label")


def _plain(ax: Axes, xlabel: str = "added to the score") -> None:
    ax.set_xlabel(xlabel, fontsize=8.5)
    ax.tick_params(axis="x", labelsize=8)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    if ax.get_yticks().dtype == float:
        ax.set_yticks([])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
