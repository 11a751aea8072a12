"""Values that plots of gene sets show by default, and the names of these values."""

from __future__ import annotations

import logging

import matplotlib.pyplot as plt
import numpy as np
import pytest
from get.annotated_pbmc import add_presence, annotated_pbmc, planted

import tosica

pl = tosica.pl
GROUPBY = "bulk_labels"
PRESENCE = ["contribution to", "the label's score", "(presence)"]


@pytest.fixture(scope="module")
def adata():
    return add_presence(annotated_pbmc())


def _heatmap(adata, **kwargs):
    axes = pl.gene_set_heatmap(adata, GROUPBY, n_gene_sets=1, show=False, **kwargs)
    return axes["heatmap"].get_yticklabels(), axes["colorbar"].get_ylabel()


def _with_title_of(name, legend):
    def draw(adata, **kwargs):
        axes = getattr(pl, name)(adata, GROUPBY, n_gene_sets=1, show=False, **kwargs)
        return axes["mainplot_ax"].get_yticklabels(), axes[legend].get_title()

    return draw


DRAWN = {
    "gene_set_heatmap": (_heatmap, "mean z-score of"),
    "gene_set_dotplot": (_with_title_of("gene_set_dotplot", "color_legend_ax"), "mean z-score of"),
    "gene_set_matrixplot": (
        _with_title_of("gene_set_matrixplot", "color_legend_ax"),
        "mean z-score of",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_presence_is_shown_first_and_called_so(name, adata, caplog):
    draw, before = DRAWN[name]
    with caplog.at_level(logging.INFO, logger="tosica"):
        names, title = draw(adata)
    assert [text for text in caplog.messages if text.startswith("key: ")] == [
        "key: 'tosica_presence', contributions to the labels' scores"
    ]
    # The gene set that contributes most to each group.
    assert sorted(label.get_text() for label in names) == [planted(i + 20) for i in range(10)]
    assert title.split("\n") == [before, *PRESENCE]


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_attention_is_shown_without_presence_or_if_asked_for(name, adata):
    draw, before = DRAWN[name]
    for names, title in (draw(adata, key="tosica"), draw(annotated_pbmc())):
        assert sorted(label.get_text() for label in names) == [planted(i) for i in range(10)]
        assert title.split("\n") == [before, "attention"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "before"), [("min_max", "mean (0 to 1) of"), (None, "mean of"), ("z_score", None)]
)
@pytest.mark.parametrize("n_labels", [2, 10])
@pytest.mark.parametrize("swap_axes", [True, False])
@pytest.mark.parametrize("tree", [True, False])
def test_the_heatmaps_title_of_four_lines_is_not_cut(scale, before, n_labels, swap_axes, tree):
    data = add_presence(annotated_pbmc(n_labels=n_labels, long_names=True, n_gene_sets=80))
    data.obsm["X_tosica_presence"] *= 1e-3
    figure = pl.gene_set_heatmap(
        data, GROUPBY, scale=scale, swap_axes=swap_axes, cluster_groups=tree, return_fig=True
    )
    figure.draw_without_rendering()
    label = next(ax.get_ylabel() for ax in figure.axes if "contribution" in ax.get_ylabel())
    assert label.split("\n") == [before or "mean z-score of", *PRESENCE]
    tight = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()
    assert tight.x0 >= 0
    assert tight.y0 >= 0
    assert tight.x1 <= width
    assert tight.y1 <= height


@pytest.mark.slow
def test_violins_are_named_after_their_values(adata):
    first = [planted(20), planted(21)]
    axes = pl.gene_set_violin(adata, GROUPBY, gene_sets=first, show=False)
    assert [ax.get_title() for ax in axes] == first
    label = axes[0].figure.get_supxlabel()
    assert label == f"{' '.join(PRESENCE)}\n(dashed: no contribution)"
    axes = pl.gene_set_violin(adata, GROUPBY, gene_sets=first, key="tosica", show=False)
    assert axes[0].figure.get_supxlabel() == "attention\n(dashed: mean of all cells)"


def test_contributions_have_a_sign_and_white_is_none(adata):
    axes = pl.gene_set_heatmap(adata, GROUPBY, scale=None, show=False)
    mesh = axes["heatmap"].collections[0]
    low, high = mesh.get_clim()
    means = tosica.get.mean_attention(adata, GROUPBY)
    assert -low == high == pytest.approx(float(means.max().max()))
    assert mesh.get_cmap().name == "vlag"
    axes = pl.gene_set_heatmap(adata, GROUPBY, scale=None, key="tosica", show=False)
    assert axes["heatmap"].collections[0].get_cmap().name == "viridis"


def test_umap(adata, caplog):
    with caplog.at_level(logging.INFO, logger="tosica"):
        axes = pl.umap(adata, [GROUPBY, planted(20), "n_counts"], show=False)
    assert "key: 'tosica_presence', contributions to the labels' scores" in caplog.messages
    bars = [ax.collections[0].colorbar for ax in axes]
    assert bars[0] is None
    assert bars[1].ax.get_ylabel().split("\n") == PRESENCE
    assert bars[2].ax.get_ylabel() == ""
    drawn = np.sort(axes[1].collections[0].get_array())
    np.testing.assert_allclose(drawn, np.sort(adata.obsm["X_tosica_presence"][:, 20]))
    (ax,) = pl.umap(adata, planted(20), key="tosica", show=False)
    assert ax.collections[0].colorbar.ax.get_ylabel() == "attention"


def test_umap_without_colour_bar(adata):
    (ax,) = pl.umap(adata, planted(20), colorbar_loc=None, show=False)
    assert ax.collections[0].colorbar is None


@pytest.mark.parametrize(
    "call",
    [
        pl.gene_set_heatmap,
        pl.gene_set_dotplot,
        pl.gene_set_matrixplot,
        pl.gene_set_violin,
        pl.umap,
    ],
)
def test_presence_of_another_model_is_refused(call):
    data = add_presence(annotated_pbmc(), model="f" * 16)
    with pytest.raises(ValueError, match="was written by another model than the annotation"):
        call(data, GROUPBY)
    assert not plt.get_fignums()
