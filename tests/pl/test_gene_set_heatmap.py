from __future__ import annotations

import numpy as np
import pytest
import scanpy as sc
from get.annotated_pbmc import annotated_pbmc, planted
from matplotlib.colors import to_hex

import tosica


def _texts(labels):
    return [label.get_text() for label in labels]


def _overlap(labels, renderer) -> bool:
    boxes = [label.get_window_extent(renderer) for label in labels]
    return any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


@pytest.mark.slow
@pytest.mark.parametrize("swap_axes", [True, False])
@pytest.mark.parametrize("long_names", [True, False])
@pytest.mark.parametrize("n_labels", [2, 10, 60])
def test_nothing_is_cut_off_and_no_names_overlap(n_labels, long_names, swap_axes):
    adata = annotated_pbmc(n_labels=n_labels, long_names=long_names, n_gene_sets=80)
    figure = tosica.pl.gene_set_heatmap(
        adata, "bulk_labels", swap_axes=swap_axes, cluster_gene_sets=True, return_fig=True
    )
    renderer = figure.canvas.get_renderer()
    figure.draw_without_rendering()
    heatmap = max(figure.axes, key=lambda ax: len(ax.get_yticklabels()) * ax.bbox.width)
    assert not _overlap(heatmap.get_yticklabels(), renderer)
    assert not _overlap(heatmap.get_xticklabels(), renderer)
    tight = figure.get_tightbbox(renderer)
    width, height = figure.get_size_inches()
    assert tight.x0 >= 0
    assert tight.y0 >= 0
    assert tight.x1 <= width
    assert tight.y1 <= height


def test_shows_the_mean_z_scores_of_the_specific_gene_sets():
    adata = annotated_pbmc()
    axes = tosica.pl.gene_set_heatmap(adata, "bulk_labels", n_gene_sets=1, show=False)
    groups = _texts(axes["heatmap"].get_xticklabels())
    names = _texts(axes["heatmap"].get_yticklabels())
    assert sorted(groups) == sorted(adata.obs["bulk_labels"].cat.categories)
    assert sorted(names) == [planted(i) for i in range(10)]
    expected = tosica.get.mean_attention(adata, "bulk_labels", scale="z_score")
    drawn = axes["heatmap"].collections[0].get_array().reshape(10, 10)
    np.testing.assert_allclose(drawn, expected.loc[groups, names].T)
    # Gene sets follow the drawn groups: the planted ones lie on the diagonal.
    assert (drawn.argmax(axis=1) == np.arange(10)).all()


@pytest.mark.parametrize("cluster_groups", [True, False])
def test_the_strip_has_the_groups_colors(cluster_groups):
    adata = annotated_pbmc()
    adata.obs["tosica_prediction"] = adata.obs["tosica_prediction"].cat.add_categories("unused")
    adata.uns["tosica_prediction_colors"].append("#123456")
    axes = tosica.pl.gene_set_heatmap(
        adata, "tosica_prediction", cluster_groups=cluster_groups, show=False
    )
    strip = axes["group_colors"].collections[0]
    figure = axes["heatmap"].figure
    figure.canvas.draw()
    drawn = [to_hex(color) for color in strip.get_facecolors()]
    categories = adata.obs["tosica_prediction"].cat.categories
    expected = dict(zip(categories, adata.uns["tosica_prediction_colors"], strict=True))
    groups = _texts(axes["heatmap"].get_xticklabels())
    assert drawn == [expected[group].lower() for group in groups]
    if not cluster_groups:
        assert groups == list(categories[:-1])


def test_chosen_gene_sets_keep_their_order():
    wanted = [planted(8), planted(3), planted(5)]
    axes = tosica.pl.gene_set_heatmap(
        annotated_pbmc(), "bulk_labels", gene_sets=wanted, swap_axes=False, show=False
    )
    assert _texts(axes["heatmap"].get_xticklabels()) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["z_score", "min_max", None])
def test_one_gene_set_or_one_group(scale):
    adata = annotated_pbmc()
    adata.obs["group"] = "all"
    for groupby in ("bulk_labels", "group"):
        axes = tosica.pl.gene_set_heatmap(
            adata, groupby, gene_sets=planted(3), scale=scale, cluster_gene_sets=True, show=False
        )
        assert _texts(axes["heatmap"].get_yticklabels()) == [planted(3)]


def test_a_group_with_one_cell_is_shown():
    adata = annotated_pbmc()
    adata.obs["group"] = np.where(np.arange(adata.n_obs) == 0, "one", "many")
    axes = tosica.pl.gene_set_heatmap(adata, "group", show=False)
    assert sorted(_texts(axes["heatmap"].get_xticklabels())) == ["many", "one"]


def test_colors_end_at_two_and_a_half_deviations_and_say_so():
    adata = annotated_pbmc()
    axes = tosica.pl.gene_set_heatmap(adata, "bulk_labels", show=False)
    mesh = axes["heatmap"].collections[0]
    assert mesh.get_clim() == (-2.5, 2.5)
    assert mesh.colorbar.extend == "max"
    axes = tosica.pl.gene_set_heatmap(adata, "bulk_labels", vmin=-9, vmax=9, show=False)
    mesh = axes["heatmap"].collections[0]
    assert mesh.get_clim() == (-9, 9)
    assert mesh.colorbar.extend == "neither"


def _with_an_outlier():
    """Group "one" is a single cell far out; of the others, one half has 1 and one half 0."""
    adata = annotated_pbmc()
    groups = np.where(np.arange(adata.n_obs) % 2, "more", "less")
    groups[0] = "one"
    adata.obs["group"] = groups
    values = np.zeros_like(adata.obsm["X_tosica"])
    values[groups == "more", 3] = 1
    values[0, 3] = 50
    adata.obsm["X_tosica"] = values
    return adata


def test_one_cell_does_not_set_the_scale():
    adata = _with_an_outlier()
    for scale, limits in ((None, (0, 1)), ("min_max", (0, 1))):
        axes = tosica.pl.gene_set_heatmap(
            adata, "group", gene_sets=planted(3), scale=scale, show=False
        )
        mesh = axes["heatmap"].collections[0]
        assert mesh.get_clim() == limits
        assert mesh.colorbar.extend == "max"
    means = tosica.get.mean_attention(adata, "group", scale="z_score")[planted(3)]
    expected = means.drop("one").abs().max()
    assert expected < 0.5 < means["one"]
    axes = tosica.pl.gene_set_heatmap(adata, "group", gene_sets=planted(3), show=False)
    assert axes["heatmap"].collections[0].get_clim() == pytest.approx((-expected, expected))
    for plot in (tosica.pl.gene_set_dotplot, tosica.pl.gene_set_matrixplot):
        color_bar = plot(adata, "group", gene_sets=planted(3), show=False)["color_legend_ax"]
        assert color_bar.get_xlim() == pytest.approx((-expected, expected), rel=1e-4)


def test_few_cells_set_the_scale_if_there_are_no_others():
    adata = annotated_pbmc()[:4].copy()
    adata.obs["group"] = ["a", "a", "b", "b"]
    axes = tosica.pl.gene_set_heatmap(adata, "group", gene_sets=planted(3), scale=None, show=False)
    means = tosica.get.mean_attention(adata, "group")[planted(3)]
    expected = pytest.approx((means.min(), means.max()))
    assert axes["heatmap"].collections[0].get_clim() == expected


@pytest.mark.parametrize("figsize", [(12, 9), (5, 4), (2, 2)])
def test_figsize_is_kept(figsize):
    figure = tosica.pl.gene_set_heatmap(
        annotated_pbmc(), "bulk_labels", figsize=figsize, return_fig=True
    )
    assert tuple(figure.get_size_inches()) == figsize


def test_not_annotated():
    with pytest.raises(KeyError, match=r"run model\.annotate"):
        tosica.pl.gene_set_heatmap(sc.datasets.pbmc68k_reduced(), "bulk_labels")


def test_missing_column():
    with pytest.raises(KeyError, match="no column 'cell_type'"):
        tosica.pl.gene_set_heatmap(annotated_pbmc(), "cell_type")


def test_unknown_gene_set_with_a_guess():
    with pytest.raises(KeyError, match=r"no gene set 'gene set 3' .* did you mean 'gene set "):
        tosica.pl.gene_set_heatmap(annotated_pbmc(), "phase", gene_sets=["gene set 3"])
    with pytest.raises(KeyError, match=r"no gene set 'XYZ' .* which holds 60\."):
        tosica.pl.gene_set_heatmap(annotated_pbmc(), "phase", gene_sets=["XYZ"])


def test_no_gene_sets():
    with pytest.raises(ValueError, match="gene_sets is empty"):
        tosica.pl.gene_set_heatmap(annotated_pbmc(), "phase", gene_sets=[])
    with pytest.raises(ValueError, match="n_gene_sets must be at least 1 or None, not 0"):
        tosica.pl.gene_set_heatmap(annotated_pbmc(), "phase", n_gene_sets=0)


def test_gene_sets_and_their_number():
    with pytest.raises(ValueError, match="leave n_gene_sets out"):
        tosica.pl.gene_set_heatmap(annotated_pbmc(), "phase", gene_sets=[planted(1)], n_gene_sets=2)


def test_unknown_scale():
    with pytest.raises(ValueError, match="scale must be 'z_score', 'min_max' or None"):
        tosica.pl.gene_set_heatmap(annotated_pbmc(), "phase", scale="log")
