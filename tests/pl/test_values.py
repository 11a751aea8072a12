"""What the plots show: the values of the tables, the gene sets that are chosen, their names."""

from __future__ import annotations

import logging

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from get.annotated_pbmc import add_presence, annotated_pbmc, planted
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from pl.explained_pbmc import GROUPBY, explained_pbmc, history

import tosica
from tosica.pl._gene_sets import specific_gene_sets

pl = tosica.pl
PRESENCE = ["contribution to", "the label's score", "(presence)"]


def texts(labels):
    return [label.get_text() for label in labels]


@pytest.fixture(scope="module")
def adata():
    return explained_pbmc()


@pytest.fixture(scope="module")
def presence():
    return add_presence(annotated_pbmc())


# --------------------------------------------------------------------------- which gene sets


def test_the_first_of_each_group_is_its_planted_gene_set():
    adata = annotated_pbmc()
    adata.obsm["X_tosica"][:, 20] += 1
    assert specific_gene_sets(adata, GROUPBY, 1) == [planted(i) for i in range(10)]
    names = specific_gene_sets(adata, GROUPBY, 4)
    assert len(names) == len(set(names))
    assert 10 < len(names) <= 40


def test_groups_with_one_cell_each_or_that_are_never_highest():
    adata = annotated_pbmc()[:3].copy()
    adata.obsm["X_tosica"] = np.full_like(adata.obsm["X_tosica"], 0.1)
    adata.obsm["X_tosica"][[0, 1, 2], [30, 31, 32]] = 0.2
    adata.obs["group"] = list("abc")
    assert specific_gene_sets(adata, "group", 2) == [planted(30), planted(31), planted(32)]
    adata = annotated_pbmc()
    low = np.arange(adata.n_obs) % 2 == 0
    adata.obsm["X_tosica"][low] *= 0.01
    adata.obs["group"] = pd.Categorical(np.where(low, "low", "high"), ["low", "high"])
    assert len(specific_gene_sets(adata, "group", 3)) == 4


def test_of_contributions_the_largest_mean_decides():
    adata = annotated_pbmc()
    key, values = "tosica_presence", np.zeros_like(adata.obsm["X_tosica"])
    low = np.arange(adata.n_obs) % 2 == 0
    # Gene set 7 is the largest in both groups.
    values[:, 7], values[:, 8] = np.where(low, 2.0, 4.0), np.where(low, 1.0, 0.5)
    values[:, 9], values[:, 10] = np.where(low, -1.0, 0.6), -3
    adata.obsm[f"X_{key}"] = values
    adata.uns[key] = {"gene_sets": adata.uns["tosica"]["gene_sets"]}
    adata.obs["group"] = pd.Categorical(np.where(low, "low", "high"), ["low", "high"])
    assert specific_gene_sets(adata, "group", 1, key=key) == [planted(7)]
    # Gene sets with a negative mean are not chosen.
    assert specific_gene_sets(adata, "group", 9, key=key) == [planted(i) for i in (7, 8, 9)]


@pytest.mark.parametrize("name", ["gene_set_heatmap", "gene_set_dotplot", "gene_set_matrixplot"])
def test_presence_is_shown_first_and_called_so(name, presence, caplog):
    def draw(data, **kwargs):
        axes = getattr(pl, name)(data, GROUPBY, n_gene_sets=1, show=False, **kwargs)
        if "heatmap" in axes:
            return axes["heatmap"].get_yticklabels(), axes["colorbar"].get_ylabel()
        return axes["mainplot_ax"].get_yticklabels(), axes["color_legend_ax"].get_title()

    with caplog.at_level(logging.INFO, logger="tosica"):
        names, title = draw(presence)
    assert "key: 'tosica_presence', contributions to the labels' scores" in caplog.messages
    # The gene set that contributes most to each group.
    assert sorted(texts(names)) == [planted(i + 20) for i in range(10)]
    assert title.split("\n") == ["mean z-score of", *PRESENCE]
    names, title = draw(presence, key="tosica")
    assert sorted(texts(names)) == [planted(i) for i in range(10)]
    assert title.split("\n") == ["mean z-score of", "attention"]
    stale = add_presence(annotated_pbmc(), model="f" * 16)
    with pytest.raises(ValueError, match="was written by another model than the annotation"):
        draw(stale)


# --------------------------------------------------------------------------- values of gene sets


def test_the_heatmap_shows_mean_z_scores_in_a_diagonal():
    adata = annotated_pbmc()
    adata.obs["tosica_prediction"] = adata.obs["tosica_prediction"].cat.add_categories("unused")
    adata.uns["tosica_prediction_colors"].append("#123456")
    groupby = "tosica_prediction"
    axes = pl.gene_set_heatmap(adata, groupby, n_gene_sets=1, show=False)
    groups, names = (
        texts(axes["heatmap"].get_xticklabels()),
        texts(axes["heatmap"].get_yticklabels()),
    )
    expected = tosica.get.mean_attention(adata, groupby, scale="z_score")
    mesh = axes["heatmap"].collections[0]
    drawn = mesh.get_array().reshape(len(names), len(groups))
    np.testing.assert_allclose(drawn, expected.loc[groups, names].T)
    assert (np.diff(drawn.argmax(axis=1)) >= 0).all()
    axes["heatmap"].figure.canvas.draw()
    strip = [to_hex(color) for color in axes["group_colors"].collections[0].get_facecolors()]
    categories = adata.obs[groupby].cat.categories
    color_of = dict(zip(categories, adata.uns[f"{groupby}_colors"], strict=True))
    assert strip == [color_of[group].lower() for group in groups]
    # Colours end at two and a half standard deviations, and say so.
    assert mesh.get_clim() == (-2.5, 2.5)
    assert mesh.colorbar.extend == "max"
    axes = pl.gene_set_heatmap(adata, groupby, vmin=-9, vmax=9, cluster_groups=False, show=False)
    assert texts(axes["heatmap"].get_xticklabels()) == list(categories[:-1])
    mesh = axes["heatmap"].collections[0]
    assert (mesh.get_clim(), mesh.colorbar.extend) == ((-9, 9), "neither")


@pytest.mark.parametrize("scale", ["z_score", "min_max", None])
def test_chosen_gene_sets_keep_their_order_and_one_is_enough(scale):
    adata = annotated_pbmc()
    wanted = [planted(8), planted(3), planted(5)]
    arguments = {"scale": scale, "show": False}
    axes = pl.gene_set_heatmap(adata, GROUPBY, gene_sets=wanted, swap_axes=False, **arguments)
    assert texts(axes["heatmap"].get_xticklabels()) == wanted
    adata.obs["group"] = "all"
    for groupby in (GROUPBY, "group"):
        axes = pl.gene_set_heatmap(adata, groupby, gene_sets=planted(3), cluster_gene_sets=True, **arguments)
        assert texts(axes["heatmap"].get_yticklabels()) == [planted(3)]


@pytest.mark.parametrize("figsize", [(5, 4), (2, 2)])
def test_a_small_figure_is_drawn(figsize):
    figure = pl.gene_set_heatmap(annotated_pbmc(), GROUPBY, figsize=figsize, return_fig=True)
    assert tuple(figure.get_size_inches()) == figsize


def test_one_cell_does_not_set_the_scale():
    """Group "one" is a single cell far out; of the others, one half has 1 and one half 0."""
    adata = annotated_pbmc()
    groups = np.where(np.arange(adata.n_obs) % 2, "more", "less")
    groups[0] = "one"
    adata.obs["group"] = groups
    values = np.zeros_like(adata.obsm["X_tosica"])
    values[groups == "more", 3] = 1
    values[0, 3] = 50
    adata.obsm["X_tosica"] = values
    shared = {"groupby": "group", "gene_sets": planted(3), "show": False}
    for scale in (None, "min_max"):
        mesh = pl.gene_set_heatmap(adata, scale=scale, **shared)["heatmap"].collections[0]
        assert mesh.get_clim() == (0, 1)
        assert mesh.colorbar.extend == "max"
    means = tosica.get.mean_attention(adata, "group", scale="z_score")[planted(3)]
    expected = means.drop("one").abs().max()
    assert expected < 0.5 < means["one"]
    mesh = pl.gene_set_heatmap(adata, **shared)["heatmap"].collections[0]
    assert mesh.get_clim() == pytest.approx((-expected, expected))
    for plot in (pl.gene_set_dotplot, pl.gene_set_matrixplot):
        color_bar = plot(adata, **shared)["color_legend_ax"]
        assert color_bar.get_xlim() == pytest.approx((-expected, expected), rel=1e-4)


def test_contributions_have_a_sign_and_white_is_none(presence):
    axes = pl.gene_set_heatmap(presence, GROUPBY, scale=None, show=False)
    mesh = axes["heatmap"].collections[0]
    low, high = mesh.get_clim()
    means = tosica.get.mean_attention(presence, GROUPBY)
    assert -low == high == pytest.approx(float(means.max().max()))
    assert mesh.get_cmap().name == "vlag"
    axes = pl.gene_set_heatmap(presence, GROUPBY, scale=None, key="tosica", show=False)
    assert axes["heatmap"].collections[0].get_cmap().name == "viridis"


def test_the_matrix_shows_mean_z_scores(adata):
    names = [f"gene set {i:02d}" for i in range(4)]
    axes = pl.gene_set_matrixplot(adata, GROUPBY, gene_sets=names, show=False)
    drawn = axes["mainplot_ax"].collections[0].get_array().reshape(4, -1)
    expected = tosica.get.mean_attention(adata, GROUPBY, scale="z_score")[names].T
    np.testing.assert_allclose(drawn, expected, atol=1e-4)


def test_violins_and_umap_are_named_after_their_values(presence):
    first = [planted(20), planted(21)]
    axes = pl.gene_set_violin(presence, GROUPBY, gene_sets=first, show=False)
    assert [ax.get_title() for ax in axes] == first
    label = axes[0].figure.get_supxlabel()
    assert label == f"{' '.join(PRESENCE)}\n(dashed: no contribution)"
    (ax,) = pl.gene_set_violin(presence, GROUPBY, gene_sets=first[0], key="tosica", show=False)
    assert ax.get_xlabel() == "attention\n(dashed: mean of all cells)"
    axes = pl.umap(presence, [GROUPBY, planted(20), "n_counts"], show=False)
    bars = [ax.collections[0].colorbar for ax in axes]
    assert bars[0] is None
    assert bars[1].ax.get_ylabel().split("\n") == PRESENCE
    assert bars[2].ax.get_ylabel() == ""
    drawn = np.sort(axes[1].collections[0].get_array())
    np.testing.assert_allclose(drawn, np.sort(presence.obsm["X_tosica_presence"][:, 20]))
    (ax,) = pl.umap(presence, planted(20), colorbar_loc=None, show=False)
    assert ax.collections[0].colorbar is None


# --------------------------------------------------------------------------- bars and ribbons


def test_bars_are_the_table(adata):
    group = adata.obs[GROUPBY].cat.categories[2]
    for values in ("score", "logfoldchange"):
        table = tosica.get.rank_gene_sets_df(adata, group).head(5)
        (ax,) = pl.rank_gene_sets(adata, group, n_gene_sets=5, values=values, show=False)
        assert texts(ax.get_yticklabels()) == list(table["gene_set"])
        np.testing.assert_allclose([bar.get_width() for bar in ax.patches], table[values])
    # What is above 5 % FDR is pale.
    pale = [bar.get_alpha() is not None for bar in ax.patches]
    assert pale == list(table["pval_adj"] > 0.05)
    ax = pl.gene_weights(adata, group, show=False)[-1]
    assert ax.get_xlabel() == "contribution (logits)"


def test_ribbons_are_the_tables(adata):
    ax = pl.label_flow(adata, GROUPBY, min_share=0, show=False)
    table = tosica.tl.confusion(adata, GROUPBY)
    ribbons = [p for p in ax.patches if not isinstance(p, Rectangle)]
    assert len(ribbons) == int((table > 0).to_numpy().sum())
    ax = pl.flow(adata, n_gene_sets=2, n_genes=3, show=False)
    ribbons = [p for p in ax.patches if not isinstance(p, Rectangle)]
    assert len(ribbons) == 10 * 2 + 10 * 2 * 3


# --------------------------------------------------------------------------- confusion


@pytest.mark.parametrize("normalize", [True, False])
def test_confusion_shows_the_table(normalize):
    adata = annotated_pbmc()
    table = tosica.tl.confusion(adata, GROUPBY, normalize=normalize)
    ax = pl.confusion(adata, GROUPBY, normalize=normalize, show=False)
    np.testing.assert_allclose(ax.collections[0].get_array().reshape(table.shape), table)
    assert texts(ax.get_yticklabels()) == list(table.index)
    assert texts(ax.get_xticklabels()) == list(table.columns)
    assert table.columns[-1] == "Unknown"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("tosica_prediction", GROUPBY)
    figure = ax.figure
    figure.draw_without_rendering()
    cell = ax.get_window_extent().width / len(ax.get_xticklabels())
    renderer = figure.canvas.get_renderer()
    assert all(text.get_window_extent(renderer).width <= cell for text in ax.texts)


def test_numbers_are_shares_or_cells_and_zeros_are_blank():
    adata = annotated_pbmc()[:200].copy()
    adata.obs["known"] = np.repeat(["a", "b"], [198, 2])
    adata.obs["tosica_prediction"] = ["b", *["a"] * 198, "b"]
    assert texts(pl.confusion(adata, "known", show=False).texts) == ["0.99", "0.01", "0.50", "0.50"]
    ax = pl.confusion(adata, "known", normalize=False, show=False)
    assert texts(ax.texts) == ["197", "1", "1", "1"]
    adata = annotated_pbmc()
    adata.obs["known"] = "a"
    adata.obs["tosica_prediction"] = ["b", *["a"] * 699]
    assert texts(pl.confusion(adata, "known", show=False).texts) == ["1.00", "<.01"]


def test_numbers_only_where_there_is_room():
    many, few = annotated_pbmc(n_labels=60), annotated_pbmc()
    assert not pl.confusion(many, GROUPBY, show=False).texts
    assert not pl.confusion(few, GROUPBY, figsize=(5, 4), show=False).texts
    assert pl.confusion(few, GROUPBY, figsize=(5, 4), annotate=True, show=False).texts
    assert not pl.confusion(few, GROUPBY, annotate=False, show=False).texts


# --------------------------------------------------------------------------- curves


def test_curves_of_all_orders_differ(adata):
    ax = pl.faithfulness(adata, show=False)
    labels = [label.split(":")[0] for label in ax.get_legend_handles_labels()[1]]
    orders = ["attribution", "presence", "attention", "weighted attention", "random"]
    assert labels == [*orders, "no gene set left"]
    lines = ax.get_lines()
    for part in ("get_color", "get_marker"):
        assert len({getattr(line, part)() for line in lines}) == len(lines)


def test_novelty_is_marked_at_the_p_value_or_the_cutoff(adata):
    data = adata.copy()
    ax = pl.novelty(data, GROUPBY, cutoff=3, show=False)
    assert texts(ax.texts) == ["cutoff"]
    novelty = data.obs["tosica_novelty"]
    data.obs["tosica_novelty_pvalue"] = np.where(novelty > 5, 0.01, 0.5)
    ax = pl.novelty(data, GROUPBY, show=False)
    assert texts(ax.texts) == ["p = 0.05"]
    low, high = novelty[novelty <= 5].max(), novelty[novelty > 5].min()
    assert low < ax.lines[-1].get_xdata()[0] < high
    data.obs["tosica_novelty_pvalue"] = 0.5
    assert not pl.novelty(data, GROUPBY, show=False).texts


def test_training(toy_model):
    table = history() | {"lr-AdamW": pd.DataFrame({"lr-AdamW": np.linspace(0, 1, 10)})}

    def legend(ax):
        return texts(ax.get_legend().get_texts())

    losses, accuracy = pl.training(table, show=False)
    assert (losses.get_ylabel(), accuracy.get_ylabel()) == ("cross-entropy", "accuracy")
    assert legend(losses) == ["training loss", "validation loss", "lowest validation loss: epoch 8"]
    assert legend(accuracy) == ["validation accuracy"]
    for ax in (losses, accuracy):
        dots = [line for line in ax.lines if line.get_marker() == "o"]
        assert [float(dot.get_xdata()[0]) for dot in dots] == [8]
    axes = pl.training(table, keys=["train_loss", "lr-AdamW", "lr-AdamW"], show=False)
    assert [ax.get_ylabel() for ax in axes] == ["cross-entropy", ""]
    ax = plt.subplots()[1]
    assert pl.training(table, ax=ax, title="a title") is ax
    assert (legend(ax)[0], ax.get_title()) == ("training loss", "a title")
    single = {name: values[:1] for name, values in table.items()}
    for ax in pl.training(single, show=False):
        assert {line.get_marker() for line in ax.lines} == {"o"}
    losses, _ = pl.training(toy_model, show=False)
    n_epochs = len(toy_model.history["train_loss"])
    np.testing.assert_array_equal(losses.lines[0].get_xdata(), np.arange(1, n_epochs + 1))


def test_mask_coverage_is_the_table(adata):
    axes = pl.mask_coverage(adata, title="GO", show=False)
    table = tosica.get.mask_coverage(adata)
    np.testing.assert_array_equal(axes[0].lines[1].get_ydata(), [0, *table["n_covered"]])
    for ax in axes[1:]:
        assert sum(bar.get_height() for bar in ax.patches) == len(table)
    share = adata.uns["tosica_mask"]["coverage"]
    assert axes[0].get_title() == f"{share:.0%} of {adata.n_vars} genes"
    assert axes[1].get_title() == f"median {table['n_genes'].median():g} genes (dashed)"
