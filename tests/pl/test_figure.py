"""Figures: shown, saved and returned as asked for; their size, colors and names."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import scanpy as sc
from get.annotated_pbmc import LONG_NAME, annotated_pbmc
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from PIL import Image

from tosica._obs import group_colors
from tosica.pl._figure import Canvas
from tosica.pl._names import inches_of, wrap


@pytest.fixture
def shown(monkeypatch):
    calls = []
    monkeypatch.setattr(plt, "show", lambda: calls.append(True))
    return calls


def _finish(**kwargs):
    canvas = Canvas(**kwargs)
    ax = canvas.axes((2, 2))
    ax.set_title("B cell activation")
    return canvas.figure, ax, canvas.finish(ax)


def test_shown_saved_or_returned_as_asked_for(shown, tmp_path):
    assert _finish()[2] is None
    assert len(shown) == 1
    try:
        sc.settings.autoshow = False
        assert isinstance(_finish()[2], Axes)
    finally:
        sc.settings.autoshow = True
    assert _finish(show=False)[1:] == (ax := plt.gca(), ax)
    own_axes = plt.subplots()[1]
    figure, ax, result = _finish(ax=own_axes, save=tmp_path / "given.png")
    assert result is ax is own_axes
    assert plt.fignum_exists(figure.number)
    figure, _, result = _finish(save=str(tmp_path / "figure.pdf"))
    assert result is None
    assert not plt.fignum_exists(figure.number)
    assert len(shown) == 1
    figure, _, result = _finish(
        show=True, return_fig=True, save=tmp_path / "figure.png"
    )
    assert result is figure
    assert len(shown) == 2


def test_formats(tmp_path):
    _finish(save=tmp_path / "a.png", dpi=100)
    with Image.open(tmp_path / "a.png") as image:
        assert image.info["dpi"] == pytest.approx((100, 100), rel=0.01)
    for ending in ("svg", "pdf"):
        _finish(save=tmp_path / f"figure.{ending}")
    assert ">B cell activation</text>" in (tmp_path / "figure.svg").read_text()
    # TrueType, not the outlines (Type 3) that editors cannot change.
    assert b"/CIDFontType2" in (tmp_path / "figure.pdf").read_bytes()
    assert plt.rcParams["svg.fonttype"] == "path"
    Canvas(save=tmp_path / "figure"), Canvas(save=tmp_path / "figure.PDF")
    with pytest.raises(FileNotFoundError, match="does not exist: create it"):
        Canvas(save=tmp_path / "no" / "figure.png")
    with pytest.raises(ValueError, match=r"such as \.pdf, .* not in '\.docx'\.$"):
        Canvas(save=tmp_path / "figure.docx")


def test_a_figure_grows_with_its_names():
    sizes = []
    for name in ("a", "a name of a row that is long"):
        canvas = Canvas()
        upper, lower = canvas.panels(2, 2, (4, 2))
        for ax in (upper, lower):
            ax.set_yticks([0], [name])
        canvas.fit(upper, (1.5, 2))
        np.testing.assert_allclose(inches_of(canvas.figure, lower), (1.5, 2), atol=0.05)
        sizes.append(canvas.figure.get_size_inches())
    assert sizes[1][0] > sizes[0][0] + 2
    assert sizes[1][1] == pytest.approx(sizes[0][1], abs=0.05)


def test_colors_are_those_of_the_anndata():
    adata = annotated_pbmc()
    adata.obs["phase"] = adata.obs["phase"].cat.set_categories(
        ["none", "G1", "G2M", "S"]
    )
    adata.uns["phase_colors"] = np.array(["#111111", "red", "#00ff00", "#0000ff"])
    # Unused categories do not shift the colors.
    expected = {"none": "#111111", "G1": "#ff0000", "G2M": "#00ff00", "S": "#0000ff"}
    assert group_colors(adata, "phase") == expected
    adata.obs["number"] = 10 - np.arange(adata.n_obs) % 2
    for stored in (["#111111"], ["not a color"] * 2):
        adata.uns["number_colors"] = stored
        assert group_colors(adata, "number") == dict(
            zip(("9", "10"), sc.pl.palettes.default_20[:2], strict=True)
        )
        assert adata.uns["number_colors"] == stored


# --------------------------------------------------------------------------- names

TERMS = st.text(alphabet="abcdef _-(),/", min_size=1, max_size=120)


@settings(max_examples=60)
@given(st.lists(TERMS, unique=True, max_size=20), st.integers(10, 60))
def test_two_lines_that_are_short_enough_and_different(names, max_length):
    wrapped = wrap(names, max_length)
    assert len(set(wrapped)) == len(names)
    assert all(text.count("\n") <= 1 for text in wrapped)
    assert all(len(line) <= max_length for text in wrapped for line in text.split("\n"))
    assert all(
        w == n for w, n in zip(wrapped, names, strict=True) if len(n) <= max_length
    )


@pytest.mark.parametrize(
    "wrapped",
    [
        "antigen processing and presentation\nof peptide antigen via MHC class I",
        "REACTOME_INTERFERON_ALPHA_BETA_\nSIGNALING_AND_ANTIGEN_PROCESSING",
        "adenylate cyclase-modulating\nG protein-coupled receptor signaling pathway",
    ],
)
def test_names_of_two_lines_lose_no_word(wrapped):
    assert wrap([wrapped.replace("_\n", "_").replace("\n", " ")], 50) == [wrapped]


def test_longer_names_are_shortened_in_the_middle():
    (text,) = wrap([LONG_NAME + LONG_NAME + "alpha"], 50)
    assert text.startswith("positive regulation")
    assert text.endswith("alpha")
    assert "…" in text
    assert (
        len(
            set(
                wrap(
                    [f"{'x' * 60} {number:02d} {'y' * 60}" for number in range(30)], 40
                )
            )
        )
        == 30
    )
