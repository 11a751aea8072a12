"""All plots: sizes, names, given axes, saving and showing, and unchanged data."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pl.explained_pbmc import GROUPBY, explained_pbmc, history

import tosica

pl = tosica.pl

# How each plot is drawn from the cells of explained_pbmc; a new plot gets a row here.
DRAW = {
    "confusion": lambda adata, **kw: pl.confusion(adata, GROUPBY, **kw),
    "faithfulness": lambda adata, **kw: pl.faithfulness(adata, **kw),
    "flow": lambda adata, **kw: pl.flow(adata, **kw),
    "gene_set_dotplot": lambda adata, **kw: pl.gene_set_dotplot(adata, GROUPBY, **kw),
    "gene_set_heatmap": lambda adata, **kw: pl.gene_set_heatmap(adata, GROUPBY, **kw),
    "gene_set_matrixplot": lambda adata, **kw: pl.gene_set_matrixplot(adata, GROUPBY, **kw),
    # Only two gene sets, because 60 × 60 distributions are slow.
    "gene_set_violin": lambda adata, **kw: pl.gene_set_violin(
        adata, GROUPBY, gene_sets=adata.uns["tosica"]["gene_sets"][:2], **kw
    ),
    "gene_weights": lambda adata, **kw: pl.gene_weights(adata, _first_group(adata), **kw),
    "label_flow": lambda adata, **kw: pl.label_flow(adata, GROUPBY, **kw),
    "novelty": lambda adata, **kw: pl.novelty(adata, GROUPBY, **kw),
    "rank_gene_sets": lambda adata, **kw: pl.rank_gene_sets(adata, **kw),
    "reliability": lambda adata, **kw: pl.reliability(adata, GROUPBY, **kw),
    "training": lambda _, **kw: pl.training(history(), **kw),
    "umap": lambda adata, **kw: pl.umap(adata, [GROUPBY, _first_gene_set(adata)], **kw),
}
# Plots of several panels draw only one of them into given axes.
DRAW_INTO_AXES = DRAW | {
    "gene_set_violin": lambda adata, **kw: pl.gene_set_violin(
        adata, GROUPBY, gene_sets=_first_gene_set(adata), **kw
    ),
    "gene_weights": lambda adata, **kw: pl.gene_weights(
        adata, _first_group(adata), gene_sets=_first_gene_set(adata), **kw
    ),
    "rank_gene_sets": lambda adata, **kw: pl.rank_gene_sets(adata, _first_group(adata), **kw),
    "umap": lambda adata, **kw: pl.umap(adata, GROUPBY, **kw),
}
# A clustered heatmap is several axes.
del DRAW_INTO_AXES["gene_set_heatmap"]
every = pytest.mark.parametrize("name", DRAW)
every_with_axes = pytest.mark.parametrize("name", DRAW_INTO_AXES)


def _first_group(adata):
    return adata.obs[GROUPBY].cat.categories[0]


def _first_gene_set(adata):
    return adata.uns["tosica"]["gene_sets"][0]


def test_every_plot_is_in_the_table():
    # mask_coverage reads a mask instead of an annotation and has tests of its own.
    assert {*DRAW, "mask_coverage"} == set(pl.__all__)


@pytest.fixture(scope="module")
def adata():
    return explained_pbmc()


@pytest.mark.slow
@pytest.mark.parametrize(("n_labels", "style"), [(2, "dark_background"), (60, "default")])
@every
def test_nothing_is_cut_off(name, n_labels, style):
    """Two labels or sixty, gene sets of 80 characters, light or dark, at a screen's resolution."""
    data = explained_pbmc(n_labels=n_labels, long_names=True)
    with plt.style.context(style), plt.rc_context({"figure.dpi": 72}):
        figure = DRAW[name](data, return_fig=True)
        figure.draw_without_rendering()
        tight = figure.get_tightbbox(figure.canvas.get_renderer())
        width, height = figure.get_size_inches()
        slack = 0.02
        assert tight.x0 >= -slack
        assert tight.y0 >= -slack
        assert tight.x1 <= width + slack
        assert tight.y1 <= height + slack


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["gene_set_dotplot", "gene_set_matrixplot", "gene_set_violin", "rank_gene_sets", "novelty"],
)
@pytest.mark.parametrize("n_labels", [2, 60])
def test_no_names_overlap(name, n_labels):
    data = explained_pbmc(n_labels=n_labels, long_names=True)
    figure = DRAW[name](data, return_fig=True)
    renderer = figure.canvas.get_renderer()
    figure.draw_without_rendering()
    for ax in figure.axes:
        boxes = [
            label.get_window_extent(renderer)
            for label in ax.get_yticklabels()
            if label.get_text() and label.get_visible()
        ]
        assert not any(a.overlaps(b) for a, b in pairwise(boxes))


@pytest.mark.parametrize("name", ["flow", "label_flow"])
@pytest.mark.parametrize("n_labels", [2, 60])
def test_no_texts_of_ribbons_overlap(name, n_labels):
    data = explained_pbmc(n_labels=n_labels, long_names=True)
    figure = DRAW[name](data, return_fig=True)
    renderer = figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
    assert len(boxes) > n_labels
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


@pytest.mark.slow
@every_with_axes
def test_draws_into_axes(name, adata):
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
    drawn = DRAW_INTO_AXES[name](adata, ax=left)
    assert drawn is not None
    assert plt.get_fignums() == [figure.number]
    if name in ("gene_set_dotplot", "gene_set_matrixplot"):
        # scanpy divides the given axes into those of the plot and of its legends.
        assert isinstance(drawn["mainplot_ax"], Axes)
        assert drawn["mainplot_ax"].figure is figure
    else:
        assert drawn is left
        assert left.has_data() or left.texts
    assert not right.has_data()


@every_with_axes
def test_axes_and_figsize_exclude_each_other(name, adata):
    _, ax = plt.subplots()
    with pytest.raises(ValueError, match="give either ax or figsize, not both"):
        DRAW_INTO_AXES[name](adata, ax=ax, figsize=(3, 3))


@every
def test_figsize_is_kept(name, adata):
    figure = DRAW[name](adata, figsize=(9, 8), return_fig=True)
    assert isinstance(figure, Figure)
    assert tuple(figure.get_size_inches()) == pytest.approx((9, 8))


@every
def test_saves_and_closes(name, adata, tmp_path):
    path = tmp_path / "figure.png"
    assert DRAW[name](adata, save=path) is None
    assert path.read_bytes().startswith(b"\x89PNG")
    assert not plt.get_fignums()


@every
def test_is_saved_at_300_dpi_or_those_asked_for(name, adata, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Figure, "savefig", lambda _, path, **kw: asked.append((path, kw["dpi"])))
    monkeypatch.setattr("tosica.pl._figure.replacing", lambda *paths: nullcontext(paths))
    DRAW[name](adata, save=tmp_path / "figure.png")
    DRAW[name](adata, save=tmp_path / "figure.svg", dpi=72)
    assert asked == [(tmp_path / "figure.png", 300), (tmp_path / "figure.svg", 72)]


@pytest.mark.slow
@every
def test_shows_only_if_asked(name, adata, monkeypatch):
    shown = []
    monkeypatch.setattr(plt, "show", lambda *_args, **_kwargs: shown.append(1))
    assert DRAW[name](adata, show=False) is not None
    assert not shown
    assert DRAW[name](adata, show=True) is None
    assert shown


@every
def test_nowhere_to_save(name, adata, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        DRAW[name](adata, save=tmp_path / "no" / "figure.png")
    assert not plt.get_fignums()


@pytest.mark.slow
@every
def test_leaves_the_data_alone(name):
    data = explained_pbmc()
    del data.uns[f"{GROUPBY}_colors"]
    before = data.copy()
    DRAW[name](data, show=False)
    assert set(data.uns) == set(before.uns)
    pd.testing.assert_frame_equal(data.obs, before.obs)
    for key in ("X_tosica", "X_tosica_presence"):
        np.testing.assert_array_equal(data.obsm[key], before.obsm[key])
    pd.testing.assert_frame_equal(data.uns["top_genes"]["table"], before.uns["top_genes"]["table"])


def test_colors_are_those_of_the_data(adata):
    names = list(adata.obs[GROUPBY].cat.categories)
    colors = dict(zip(names, adata.uns[f"{GROUPBY}_colors"], strict=True))
    axes = pl.rank_gene_sets(adata, show=False)
    assert [to_hex(ax.patches[0].get_facecolor()) for ax in axes] == [colors[n] for n in names]
    axes = pl.gene_weights(adata, names[3], show=False)
    assert {to_hex(ax.patches[0].get_facecolor()) for ax in axes} == {colors[names[3]]}
    ax = pl.novelty(adata, GROUPBY, show=False)
    order = [label.get_text() for label in ax.get_yticklabels()]
    assert [to_hex(box.get_facecolor()) for box in ax.patches] == [colors[n] for n in order]
    ax = pl.label_flow(adata, GROUPBY, show=False)
    nodes = [to_hex(p.get_facecolor()) for p in ax.patches if isinstance(p, Rectangle)]
    assert nodes[: len(names)] == [colors[n] for n in names]


def test_bars_are_the_table(adata):
    group = adata.obs[GROUPBY].cat.categories[2]
    table = tosica.get.rank_gene_sets_df(adata, group).head(5)
    (ax,) = pl.rank_gene_sets(adata, group, n_gene_sets=5, values="score", show=False)
    assert [label.get_text() for label in ax.get_yticklabels()] == list(table["gene_set"])
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], table["score"])
    # What is above 5 % FDR is pale.
    pale = [bar.get_alpha() is not None for bar in ax.patches]
    assert pale == list(table["pval_adj"] > 0.05)


def test_ribbons_of_labels_are_the_confusion_table(adata):
    ax = pl.label_flow(adata, GROUPBY, min_share=0, show=False)
    table = tosica.tl.confusion(adata, GROUPBY)
    ribbons = [p for p in ax.patches if not isinstance(p, Rectangle)]
    assert len(ribbons) == int((table > 0).to_numpy().sum())


def test_the_matrix_shows_mean_z_scores(adata):
    names = [f"gene set {i:02d}" for i in range(4)]
    axes = pl.gene_set_matrixplot(adata, GROUPBY, gene_sets=names, show=False)
    drawn = axes["mainplot_ax"].collections[0].get_array().reshape(4, -1)
    expected = tosica.get.mean_attention(adata, GROUPBY, scale="z_score")[names].T
    np.testing.assert_allclose(drawn, expected, atol=1e-4)


def test_curves_of_all_orders_differ(adata):
    ax = pl.faithfulness(adata, show=False)
    labels = [label.split(":")[0] for label in ax.get_legend_handles_labels()[1]]
    orders = ["attribution", "presence", "attention", "weighted attention", "random"]
    assert labels == [*orders, "no gene set left"]
    lines = ax.get_lines()
    for part in ("get_color", "get_marker"):
        assert len({getattr(line, part)() for line in lines}) == len(lines)


def test_bars_without_a_fold_change():
    """Of contributions, which have a sign, some have none."""
    data = explained_pbmc()
    table = tosica.get.rank_gene_sets_df(data)
    assert table["logfoldchange"].isna().any()
    axes = pl.rank_gene_sets(data, values="logfoldchange", show=False)
    group = data.obs[GROUPBY].cat.categories[0]
    expected = table.loc[table["group"] == group, "logfoldchange"].head(8)
    np.testing.assert_allclose([bar.get_width() for bar in axes[0].patches], expected)


def test_weights_of_genes_are_contributions(adata):
    ax = pl.gene_weights(adata, adata.obs[GROUPBY].cat.categories[0], show=False)[-1]
    assert ax.get_xlabel() == "contribution (logits)"
