from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import scanpy as sc
from get.annotated_pbmc import annotated_pbmc
from PIL import Image

from tosica.pl._figure import Canvas, group_colors, text_width


@pytest.fixture
def shown(monkeypatch):
    calls = []
    monkeypatch.setattr(plt, "show", lambda: calls.append(True))
    return calls


def _canvas(ax=None, figsize=None, *, show=None, save=None, dpi=300, return_fig=False):
    return Canvas(ax, figsize, show=show, save=save, dpi=dpi, return_fig=return_fig)


def _finish(**kwargs):
    canvas = _canvas(**kwargs)
    ax = canvas.axes((2, 2))
    return canvas.figure, ax, canvas.finish(ax)


@pytest.mark.parametrize("autoshow", [True, False])
def test_shown_unless_autoshow_is_off(shown, autoshow):
    before = sc.settings.autoshow
    try:
        sc.settings.autoshow = autoshow
        _, ax, result = _finish()
    finally:
        sc.settings.autoshow = before
    assert len(shown) == autoshow
    assert result is (None if autoshow else ax)


def test_show_is_obeyed(shown, tmp_path):
    _, ax, result = _finish(show=False)
    assert result is ax
    assert not shown
    figure, _, result = _finish(show=True, return_fig=True, save=tmp_path / "figure.png")
    assert result is figure
    assert len(shown) == 1


def test_returned_figures_are_not_shown(shown):
    figure, _, result = _finish(return_fig=True)
    assert result is figure
    assert not shown


def test_saved_figures_are_neither_shown_nor_kept(shown, tmp_path):
    figure, _, result = _finish(save=tmp_path / "figure.pdf")
    assert result is None
    assert not shown
    assert not plt.fignum_exists(figure.number)
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_the_callers_axes_are_handed_back_open(shown, tmp_path):
    given = plt.subplots()[1]
    figure, ax, result = _finish(ax=given, save=tmp_path / "figure.png")
    assert result is ax is given
    assert not shown
    assert plt.fignum_exists(figure.number)


@pytest.mark.parametrize("save", [True, 3])
def test_save_is_no_path(save):
    message = rf"the path of the figure, such as 'figure\.pdf', not {save}\.$"
    with pytest.raises(TypeError, match=message):
        _canvas(save=save)


def test_save_takes_a_string(tmp_path):
    _finish(save=str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").exists()
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*nowhere'"):
        _canvas(save=tmp_path / "nowhere" / "a.png")


def test_300_dots_per_inch_unless_asked_for_others(tmp_path):
    for kwargs, dpi in ({}, 300), ({"dpi": 100}, 100):
        path = tmp_path / f"{dpi}.png"
        _finish(save=path, **kwargs)
        with Image.open(path) as image:
            assert image.info["dpi"] == pytest.approx((dpi, dpi), rel=0.01)


def test_text_of_vector_formats_stays_text(tmp_path):
    for ending in ("svg", "pdf"):
        canvas = _canvas(save=tmp_path / f"figure.{ending}")
        ax = canvas.axes((2, 2))
        ax.set_title("B cell activation")
        canvas.finish(ax)
    assert ">B cell activation</text>" in (tmp_path / "figure.svg").read_text()
    # TrueType, not the outlines (Type 3) that editors cannot change.
    pdf = (tmp_path / "figure.pdf").read_bytes()
    assert b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf
    assert plt.rcParams["svg.fonttype"] == "path"


def test_formats_that_matplotlib_cannot_write_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"such as \.pdf, .* not in '\.docx'\.$"):
        _canvas(save=tmp_path / "figure.docx")
    for name in ("figure", "figure.PDF", "figure.svgz"):
        _canvas(save=tmp_path / name)


def test_axes_are_the_given_ones_or_new():
    figure, ax = plt.subplots()
    canvas = _canvas(ax)
    assert canvas.axes((9, 9)) is ax
    assert canvas.figure is figure
    assert tuple(_canvas().axes((3, 2)).figure.get_size_inches()) == (3, 2)
    assert tuple(_canvas(figsize=(5, 4)).axes((3, 2)).figure.get_size_inches()) == (5, 4)


def test_axes_of_no_figure_are_refused():
    _, ax = plt.subplots()
    ax.remove()
    with pytest.raises(ValueError, match="ax belongs to no figure any more"):
        _canvas(ax)


def test_wider_text_is_wider():
    assert text_width([], 9) == 0
    assert 0 < text_width(["ab"], 9) < text_width(["a", "abcd"], 9)
    assert text_width(["abc\nab", "a"], 9) == text_width(["abc"], 9)
    assert text_width(["ab"], 18) == pytest.approx(2 * text_width(["ab"], 9), rel=0.1)


def test_colors_are_those_of_the_anndata():
    adata = annotated_pbmc()
    adata.uns["phase_colors"] = np.array(["red", "#00ff00", "#0000ff"])
    assert group_colors(adata, "phase") == {"G1": "#ff0000", "G2M": "#00ff00", "S": "#0000ff"}


def test_unused_categories_do_not_shift_the_colors():
    adata = annotated_pbmc()
    adata.obs["phase"] = adata.obs["phase"].cat.set_categories(["none", "G1", "G2M", "S"])
    adata.uns["phase_colors"] = ["#111111", "#222222", "#333333", "#444444"]
    assert group_colors(adata, "phase")["S"] == "#444444"


@pytest.mark.parametrize("stored", [None, ["#111111"], ["not a colour"] * 3])
def test_the_default_palette_is_scanpys_and_is_not_written(stored):
    adata = annotated_pbmc()
    if stored is not None:
        adata.uns["phase_colors"] = stored
    keys = set(adata.uns)
    assert list(group_colors(adata, "phase").values()) == sc.pl.palettes.default_20[:3]
    assert set(adata.uns) == keys


@pytest.mark.parametrize("n_labels", [25, 60, 150])
def test_the_default_palette_has_enough_colors(n_labels):
    adata = annotated_pbmc(n_labels=n_labels)
    del adata.uns["bulk_labels_colors"]
    colors = group_colors(adata, "bulk_labels")
    assert len(colors) == n_labels
    assert len(set(colors.values())) == (n_labels if n_labels <= 102 else 1)


def test_columns_that_are_not_categorical_have_colors_in_sorted_order():
    adata = annotated_pbmc()
    adata.obs["number"] = 10 - np.arange(adata.n_obs) % 2
    adata.uns["number_colors"] = ["#111111", "#222222"]
    assert group_colors(adata, "number") == {"9": "#111111", "10": "#222222"}
