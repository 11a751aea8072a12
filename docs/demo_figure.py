"""Draw the figure of README and the home page: from a label to its gene sets and their genes.

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
from matplotlib.patches import ConnectionPatch
from PIL import Image
from sklearn.model_selection import train_test_split

import tosica

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData
    from matplotlib.axes import Axes

_LABEL = "CD19+ B"
_N_GENE_SETS, _N_GENES = 4, 5
_DPI = 220
_TEXT = 10


def main(target: Path) -> None:
    """The cells and the model of `tosica demo`, in three panels that lead to the genes."""
    query = _explained_query()
    color = dict(
        zip(
            query.obs["tosica_prediction"].cat.categories,
            query.uns["tosica_prediction_colors"],
            strict=True,
        )
    )[_LABEL]
    table = tosica.get.top_genes_df(query, _LABEL)
    gene_sets = list(dict.fromkeys(table["gene_set"]))[:_N_GENE_SETS]

    plt.rcParams |= {"font.size": _TEXT, "axes.titlesize": 11.5}
    figure = plt.figure(figsize=(7.4, 4.4), facecolor="white")
    cells = figure.add_axes((0.02, 0.42, 0.3, 0.45))
    bars = figure.add_axes((0.38, 0.12, 0.28, 0.75))
    genes = figure.add_axes((0.815, 0.12, 0.165, 0.75))
    _draw_cells(cells, query)
    _draw_gene_sets(bars, table, gene_sets, color)
    _draw_genes(genes, table[table["gene_set"] == gene_sets[0]].head(_N_GENES), color)
    # The genes belong to the first bar.
    first = bars.patches[0]
    for y_first, y_genes in ((first.get_y(), 1.0), (first.get_y() + first.get_height(), 0.0)):
        line = ConnectionPatch(
            (first.get_width(), y_first),
            (-0.66, y_genes),
            coordsA=bars.transData,
            coordsB=genes.transAxes,
            color="0.6",
            linewidth=0.8,
        )
        figure.add_artist(line)
    figure.savefig(target, dpi=_DPI)
    Image.open(target).convert("RGB").quantize(128).save(target, optimize=True)


def _explained_query() -> AnnData:
    """The query of `tosica demo`, explained down to the genes."""
    adata = sc.datasets.pbmc68k_reduced()
    colors = adata.uns["bulk_labels_colors"]
    adata = adata.raw.to_adata()
    adata.uns["bulk_labels_colors"] = colors
    train, test = train_test_split(
        np.arange(adata.n_obs), test_size=0.3, stratify=adata.obs["bulk_labels"], random_state=0
    )
    ref, query = adata[np.sort(train)].copy(), adata[np.sort(test)].copy()
    scvi.settings.seed = 0
    tosica.pp.build_mask(ref)
    tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels")
    model = tosica.TOSICA(ref)
    model.train(enable_progress_bar=False)
    model.annotate(query)
    sc.pp.neighbors(query, n_neighbors=30, use_rep="X_tosica")
    sc.tl.umap(query, min_dist=0.7)
    tosica.tl.attribute(query, model)
    tosica.tl.top_genes(query, model, n_cells=query.n_obs, n_gene_sets=_N_GENE_SETS)
    return query


def _draw_cells(ax: Axes, query: AnnData) -> None:
    """UMAP of the attention, with the labels in a legend below."""
    labels = query.obs["tosica_prediction"]
    for name, color in zip(labels.cat.categories, query.uns["tosica_prediction_colors"], strict=True):
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


def _draw_gene_sets(ax: Axes, table: pd.DataFrame, gene_sets: list[str], color: str) -> None:
    """Bars of what gene sets add to the score, with the names above them."""
    weights = table.drop_duplicates("gene_set").set_index("gene_set")["gene_set_weight"]
    for i, name in enumerate(gene_sets):
        ax.barh(i, weights[name], height=0.42, color=color, alpha=1 if i == 0 else 0.55)
        ax.text(0.02, i - 0.24, textwrap.fill(name, 24), va="bottom", linespacing=1.05)
    ax.set_ylim(len(gene_sets) - 0.7, -0.75)
    ax.set_title(f"2  Gene sets that add\n    most to “{_LABEL}”", loc="left", fontweight="bold")
    _plain(ax, "added to the score")


def _draw_genes(ax: Axes, table: pd.DataFrame, color: str) -> None:
    """Bars of what the genes of one gene set add to the score."""
    positions = np.arange(len(table))
    ax.barh(positions, table["gene_weight"], height=0.6, color=color)
    ax.set_yticks(positions, table["gene"], fontsize=_TEXT, fontstyle="italic")
    ax.set_ylim(len(table) - 0.4, -0.6)
    ax.set_title("3  Genes of the\n    first gene set", loc="left", fontweight="bold", x=-0.66)
    _plain(ax, "added to the score")


def _plain(ax: Axes, x_label: str) -> None:
    ax.set_xlabel(x_label, fontsize=8.5)
    ax.tick_params(axis="x", labelsize=8)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    if ax.get_yticks().dtype == float:
        ax.set_yticks([])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
