"""Every plot: names that fit, given axes, saving and showing, documents, and unchanged data."""

import inspect
import itertools
from functools import partial

import matplotlib.pyplot as plt
import pytest
import scanpy as sc
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from mudata import MuData
from PIL import Image
from pl.explained_pbmc import GROUPBY, explained_pbmc, history

import tosica

pl = tosica.pl


def _gene_sets(adata, n):
    return adata.uns["tosica"]["gene_sets"][:n]


def _waterfall(adata, **kw):
    """Of a cell whose genes add as those of its group do."""
    cell = adata[:1].copy()
    genes = cell.uns["tosica_attribution"]["genes"]
    cell.layers["tosica_attribution"] = (
        genes.reindex(cell.var_names, fill_value=0).to_numpy()[:, :1].T
    )
    cell.uns["tosica_attribution"]["target"] = "own label"
    return pl.waterfall(cell, cell.obs_names[0], **kw)


# How each plot is drawn from the cells of explained_pbmc, if it takes more than these.
DRAW = {name: getattr(pl, name) for name in pl.__all__} | {
    **{
        name: partial(getattr(pl, name), labels_key=GROUPBY)
        for name in ("confusion", "label_flow", "reliability")
    },
    # Only two gene sets, because 60 × 60 distributions are slow.
    "gene_set_violin": lambda adata, **kw: pl.gene_set_violin(
        adata, GROUPBY, gene_sets=_gene_sets(adata, 2), **kw
    ),
    "novelty": partial(pl.novelty, groupby=GROUPBY),
    "composition": partial(pl.composition, sample_key="phase", groupby=GROUPBY),
    "waterfall": _waterfall,
    "training": lambda _, **kw: pl.training(history(), **kw),
    "umap": lambda adata, **kw: pl.umap(adata, [GROUPBY, *_gene_sets(adata, 1)], **kw),
}
# Plots of several panels draw only one of them into given axes.
DRAW_INTO_AXES = DRAW | {
    "gene_set_violin": partial(
        pl.gene_set_violin, groupby=GROUPBY, gene_sets="gene set 00"
    ),
    "rank_gene_sets": partial(pl.rank_gene_sets, groups="CD34+"),
    "top_genes": partial(pl.top_genes, groups="CD34+"),
    "umap": partial(pl.umap, color=GROUPBY),
}
each_plot = pytest.mark.parametrize("name", DRAW)


@pytest.fixture(scope="module", params=[2, 60])
def crowded(request):
    """Two labels or sixty, and gene sets of 80 characters."""
    return explained_pbmc(n_labels=request.param, long_names=True)


@pytest.mark.slow
@each_plot
def test_nothing_is_cut_off_and_no_names_overlap(name, crowded):
    with plt.style.context("dark_background"), plt.rc_context({"figure.dpi": 72}):
        figure = DRAW[name](crowded, return_fig=True)
        figure.draw_without_rendering()
        tight = figure.get_tightbbox(figure.canvas.get_renderer())
        assert (tight.min >= -0.02).all()
        assert (tight.max <= figure.get_size_inches() + 0.02).all()
        for ax in figure.axes:
            texts = ax.texts if "flow" in name else []
            for labels in (ax.get_xticklabels(), ax.get_yticklabels(), texts):
                seen = [
                    label
                    for label in labels
                    if label.get_text() and label.get_visible() and (texts or ax.axison)
                ]
                # Letters of one line may touch the next by the height of an accent.
                boxes = [label.get_window_extent().shrunk(1, 0.9) for label in seen]
                assert not any(
                    a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :]
                )


@pytest.mark.slow
@each_plot
def test_draws_into_axes(name, adata):
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
    ax = DRAW_INTO_AXES[name](adata, ax=left)
    assert plt.get_fignums() == [figure.number]
    assert ax is left
    assert left.has_data() or left.texts
    assert not right.has_data()


@pytest.mark.filterwarnings("ignore:Names overlap")
@each_plot
def test_figsize_is_that_of_the_file_too(name, adata, tmp_path):
    """Of a figure as wide as a column, whose names are long for it."""
    size = (3.5, 2.5)
    path = tmp_path / "figure.png"
    figure = DRAW[name](adata, figsize=size, return_fig=True, save=path, dpi=100)
    assert tuple(figure.get_size_inches()) == size
    with Image.open(path) as image:
        assert image.size == (350, 250)


@pytest.mark.parametrize("name", ["gene_set_heatmap", "gene_set_dotplot", "confusion"])
def test_nothing_is_beyond_a_narrow_figure(name, adata):
    figure = DRAW[name](adata, figsize=(3.5, 2.5), return_fig=True)
    figure.draw_without_rendering()
    box = figure.get_tightbbox(figure.canvas.get_renderer())
    assert (box.min >= -0.05).all()
    assert (box.max <= figure.get_size_inches() + 0.05).all()
    ax = figure.axes[0]
    assert ax.get_window_extent().width > 0.25 * figure.bbox.width
    sizes = [label.get_fontsize() for label in ax.get_yticklabels()]
    assert min(sizes) >= 4


def test_names_of_two_lines_do_not_overlap_in_a_narrow_figure(adata):
    figure = pl.gene_set_violin(
        adata,
        GROUPBY,
        gene_sets=_gene_sets(adata, 1),
        figsize=(3.5, 2.5),
        return_fig=True,
    )
    labels = figure.axes[0].get_yticklabels()
    boxes = [label.get_window_extent() for label in labels if label.get_text()]
    boxes.sort(key=lambda box: box.y0)
    overlap = [lower.y1 - upper.y0 for lower, upper in itertools.pairwise(boxes)]
    assert max(overlap) < 1


def test_a_figure_that_is_too_small_says_so(adata):
    with pytest.warns(UserWarning, match=r"overlap in a figure of 1.5 × 1 inches"):
        pl.gene_set_violin(adata, GROUPBY, figsize=(1.5, 1), return_fig=True)


# --------------------------------------------------------------------------- dollars in names

# Matplotlib would read the middle as a formula, with a command that does not exist.
DOLLARS = r"a$\foo$b"


@pytest.fixture(scope="module")
def with_dollars():
    return explained_pbmc(n_labels=3, ending=f" {DOLLARS}")


@each_plot
def test_names_with_dollars_are_no_formulas(name, with_dollars):
    figure = DRAW[name](with_dollars, return_fig=True)
    figure.draw_without_rendering()


@pytest.mark.parametrize("name", ["confusion", "top_genes", "umap"])
def test_names_with_dollars_are_no_formulas_in_given_axes(name, with_dollars):
    groups = {"groups": f"cell type 1 {DOLLARS}"} if name == "top_genes" else {}
    ax = plt.subplots()[1]
    (DRAW | {"umap": partial(pl.umap, color=GROUPBY)})[name](
        with_dollars, ax=ax, **groups
    )
    ax.figure.draw_without_rendering()


@pytest.mark.parametrize("name", ["confusion", "label_flow", "composition", "novelty"])
def test_columns_with_dollars_are_no_formulas(name, adata):
    data = adata.copy()
    data.obs[DOLLARS] = data.obs[GROUPBY]
    figure = getattr(pl, name)(data, DOLLARS, return_fig=True)
    figure.draw_without_rendering()


def test_formulas_of_the_user_stay_formulas(adata):
    ax = plt.subplots()[1]
    ax.set_title(r"$\alpha$")
    pl.label_flow(adata, GROUPBY, ax=ax)
    assert ax.title.get_parse_math()


def test_numbers_that_matplotlib_writes_stay_formulas(adata):
    figure = pl.gene_set_dotplot(adata, return_fig=True)
    (legend,) = [ax.get_legend() for ax in figure.axes if ax.get_legend()]
    assert all(text.get_parse_math() for text in legend.get_texts())


# --------------------------------------------------------------------------- data and colors


@pytest.mark.slow
@each_plot
def test_leaves_the_data_alone_and_shows_only_if_asked(name, monkeypatch, contents):
    calls = []
    monkeypatch.setattr(plt, "show", lambda *_args, **_kwargs: calls.append(1))
    data = explained_pbmc()
    del data.uns[f"{GROUPBY}_colors"]
    content = contents(data)
    assert DRAW[name](data, show=False) is not None
    assert not calls
    assert DRAW[name](data, show=True) is None
    assert calls
    assert contents(data) == content


@each_plot
def test_every_parameter_is_documented(name):
    function = getattr(pl, name)
    lines = inspect.getdoc(function).splitlines()
    assert not [line for line in lines if line.startswith("{")]
    assert f"tosica.pl.{name}(" in "\n".join(lines)
    described = {
        word.strip()
        for line in lines
        if not line.startswith(" ")
        for word in line.split(",")
    }
    for parameter in inspect.signature(function).parameters.values():
        assert str(parameter).split(":")[0] in described


def test_colors_are_those_of_the_data(adata):
    colors = dict(
        zip(
            adata.obs[GROUPBY].cat.categories,
            adata.uns[f"{GROUPBY}_colors"],
            strict=True,
        )
    )
    for plot in (pl.rank_gene_sets, pl.top_genes):
        bars = [to_hex(ax.patches[0].get_facecolor()) for ax in plot(adata, show=False)]
        assert bars == list(colors.values())
    ax = pl.novelty(adata, GROUPBY, show=False)
    boxes = [to_hex(box.get_facecolor()) for box in ax.patches]
    assert boxes == [colors[label.get_text()] for label in ax.get_yticklabels()]
    ax = pl.label_flow(adata, GROUPBY, show=False)
    nodes = [to_hex(p.get_facecolor()) for p in ax.patches if isinstance(p, Rectangle)]
    assert nodes[: len(colors)] == list(colors.values())


# --------------------------------------------------------------------------- wrong input

BARE = {
    "rank_gene_sets": r"tosica\.tl\.rank_gene_sets",
    "faithfulness": r"tosica\.tl\.faithfulness",
    "mask_coverage": r"no mask in adata\.varm",
    "novelty": r"tosica\.tl\.novelty",
    **dict.fromkeys(("reliability", "confusion", "label_flow"), r"run model\.annotate"),
    **dict.fromkeys(
        ("flow", "gene_set_dotplot", "gene_set_heatmap", "top_genes"),
        r"call tosica\.tl\.attribute\(adata, model\)",
    ),
}


@pytest.mark.parametrize("name", BARE)
def test_the_step_before_was_not_taken(name):
    with pytest.raises(KeyError, match=BARE[name]):
        DRAW[name](sc.datasets.pbmc68k_reduced())
    assert not plt.get_fignums()


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda a, ax: pl.rank_gene_sets(a, "T cell"),
            KeyError,
            "has no group 'T cell'",
        ),
        (lambda a, ax: pl.top_genes(a, ax=ax), ValueError, "room for one group"),
        (
            lambda a, ax: pl.gene_set_heatmap(a, gene_sets="gene set 79"),
            KeyError,
            "those with evidence in",
        ),
        (
            lambda a, ax: pl.gene_set_violin(a, GROUPBY, gene_sets=[]),
            ValueError,
            "gene_sets is empty",
        ),
        (
            lambda a, ax: pl.gene_set_violin(a, GROUPBY, key="tosica"),
            KeyError,
            "'tosica'.* holds no contributions",
        ),
        (
            lambda a, ax: pl.umap(a, ["phase", "louvain"], ax=ax),
            ValueError,
            "room for one panel",
        ),
        (lambda a, ax: pl.umap(a, "phase", basis="pca2"), KeyError, "no 'X_pca2': run"),
        (lambda a, ax: pl.reliability(a, "louvain"), ValueError, "no label in common"),
        (
            lambda a, ax: pl.reliability(a, GROUPBY, figsice=(3, 3)),
            TypeError,
            "did you mean 'figsize'",
        ),
        (
            lambda a, ax: pl.flow(a, ax=ax, figsize=(3, 3)),
            ValueError,
            "give either ax or figsize, not both",
        ),
        (
            lambda a, ax: pl.training(history(), keys=["x"]),
            KeyError,
            "history has no 'x', only",
        ),
        (lambda a, ax: pl.training({}), ValueError, "no history"),
        (
            lambda a, ax: pl.label_flow(
                a, "phase", prediction_key=GROUPBY, min_share=0.99
            ),
            ValueError,
            r"lower min_share, since the largest share is 0\.\d+\.$",
        ),
        (
            lambda a, ax: pl.waterfall(MuData({"rna": a.copy()}), a.obs_names[0]),
            TypeError,
            r"must be an AnnData, not a MuData: .* tosica\.pl\.top_genes",
        ),
    ],
)
def test_what_cannot_be_drawn(adata, call, error, match):
    ax = plt.subplots()[1]
    with pytest.raises(error, match=match):
        call(adata, ax)


def test_without_evidence_the_genes_are_left(adata):
    data = adata.copy()
    record = data.uns["tosica_attribution"]
    record.update(
        {name: record[name][:0] for name in ("evidence", "z", "contribution")}
    )
    for call in (
        pl.gene_set_heatmap,
        pl.gene_set_dotplot,
        lambda a: pl.gene_set_violin(a, GROUPBY),
    ):
        with pytest.raises(
            ValueError, match=r"No gene set has evidence .* tosica\.pl\.top_genes"
        ):
            call(data)
    assert len(pl.top_genes(data, show=False)) == 10
    del data.obsm["X_tosica_attribution"]
    with pytest.raises(
        KeyError, match=r"run tosica\.tl\.attribute\(adata, model, cells=True\)"
    ):
        pl.umap(data, "gene set 03")
    pl.umap(data, GROUPBY, show=False)
