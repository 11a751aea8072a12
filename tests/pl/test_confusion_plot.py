from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import scanpy as sc
from get.annotated_pbmc import annotated_pbmc

import tosica


def _texts(labels):
    return [label.get_text() for label in labels]


@pytest.mark.slow
@pytest.mark.parametrize("long_names", [True, False])
@pytest.mark.parametrize("n_labels", [2, 10, 60])
def test_nothing_is_cut_off_and_no_labels_overlap(n_labels, long_names):
    adata = annotated_pbmc(n_labels=n_labels)
    if long_names:
        names = adata.obs["bulk_labels"].cat.categories
        prefix = "CD8-positive, alpha-beta cytotoxic T lymphocyte of the intestinal mucosa, "
        new = {name: prefix + name for name in names}
        adata.obs["bulk_labels"] = adata.obs["bulk_labels"].cat.rename_categories(new)
    figure = tosica.pl.confusion(adata, "bulk_labels", return_fig=True)
    renderer = figure.canvas.get_renderer()
    figure.draw_without_rendering()
    for labels in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels()):
        boxes = [label.get_window_extent(renderer) for label in labels]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])
    tight = figure.get_tightbbox(renderer)
    width, height = figure.get_size_inches()
    assert min(tight.x0, tight.y0) >= 0
    assert tight.x1 <= width
    assert tight.y1 <= height


def test_a_long_title_of_a_low_axis_is_not_cut_off():
    adata = annotated_pbmc(n_labels=2)
    name = "cell_type_level_3_by_two_independent_annotators"
    adata.obs[name] = adata.obs["bulk_labels"]
    figure = tosica.pl.confusion(adata, name, title="two labels", return_fig=True)
    figure.draw_without_rendering()
    tight = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()
    assert min(tight.x0, tight.y0) >= 0
    assert tight.x1 <= width
    assert tight.y1 <= height


@pytest.mark.parametrize("normalize", [True, False])
def test_shows_the_table(normalize):
    adata = annotated_pbmc()
    table = tosica.tl.confusion(adata, "bulk_labels", normalize=normalize)
    ax = tosica.pl.confusion(adata, "bulk_labels", normalize=normalize, show=False)
    drawn = ax.collections[0].get_array().reshape(table.shape)
    np.testing.assert_allclose(drawn, table)
    assert _texts(ax.get_yticklabels()) == list(table.index)
    assert _texts(ax.get_xticklabels()) == list(table.columns)
    assert table.columns[-1] == "Unknown"
    assert ax.get_xlabel() == "tosica_prediction"
    assert ax.get_ylabel() == "bulk_labels"


def test_numbers_are_shares_or_cells_and_zeros_are_blank():
    adata = annotated_pbmc()[:200].copy()
    adata.obs["known"] = np.repeat(["a", "b"], [198, 2])
    adata.obs["tosica_prediction"] = ["b", *["a"] * 198, "b"]
    ax = tosica.pl.confusion(adata, "known", show=False)
    assert _texts(ax.texts) == ["0.99", "0.01", "0.50", "0.50"]
    ax = tosica.pl.confusion(adata, "known", normalize=False, show=False)
    assert _texts(ax.texts) == ["197", "1", "1", "1"]
    adata.obs["tosica_prediction"] = adata.obs["known"]
    ax = tosica.pl.confusion(adata, "known", normalize=False, show=False)
    assert _texts(ax.texts) == ["198", "", "", "2"]


def test_a_share_that_rounds_to_zero_is_not_written_as_zero():
    adata = annotated_pbmc()
    adata.obs["known"] = "a"
    adata.obs["tosica_prediction"] = ["b", *["a"] * 699]
    ax = tosica.pl.confusion(adata, "known", show=False)
    assert _texts(ax.texts) == ["1.00", "<.01"]


def test_numbers_only_where_there_is_room():
    many = annotated_pbmc(n_labels=60)
    assert not tosica.pl.confusion(many, "bulk_labels", show=False).texts
    few = annotated_pbmc()
    assert tosica.pl.confusion(few, "bulk_labels", show=False).texts
    assert not tosica.pl.confusion(few, "bulk_labels", figsize=(5, 4), show=False).texts
    ax = tosica.pl.confusion(few, "bulk_labels", figsize=(5, 4), annotate=True, show=False)
    assert ax.texts
    assert not tosica.pl.confusion(few, "bulk_labels", annotate=False, show=False).texts


@pytest.mark.parametrize("normalize", [True, False])
def test_numbers_fit_into_their_cells(normalize):
    adata = annotated_pbmc()
    figure = tosica.pl.confusion(adata, "bulk_labels", normalize=normalize, return_fig=True)
    ax = figure.axes[0]
    figure.draw_without_rendering()
    cell = ax.get_window_extent().width / len(ax.get_xticklabels())
    renderer = figure.canvas.get_renderer()
    assert all(text.get_window_extent(renderer).width <= cell for text in ax.texts)


def test_draws_into_the_callers_axes():
    _, (left, right) = plt.subplots(1, 2, figsize=(14, 6))
    adata = annotated_pbmc()
    assert tosica.pl.confusion(adata, "bulk_labels", ax=right, title="mine") is right
    assert right.get_title() == "mine"
    assert not left.collections
    assert len(plt.get_fignums()) == 1


def test_other_predictions():
    ax = tosica.pl.confusion(annotated_pbmc(), "bulk_labels", prediction_key="louvain", show=False)
    assert _texts(ax.get_xticklabels()) == [str(i) for i in range(11)]


def test_not_annotated():
    with pytest.raises(KeyError, match=r"model\.annotate"):
        tosica.pl.confusion(sc.datasets.pbmc68k_reduced(), "bulk_labels")
