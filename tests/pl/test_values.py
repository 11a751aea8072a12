"""What the plots show: the values of the tables, the gene sets that are chosen, their names."""

import anndata
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from get.annotated_pbmc import annotated_pbmc, planted
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from numpy.testing import assert_allclose, assert_array_equal
from pl.explained_pbmc import GROUPBY, history

import tosica

pl = tosica.pl


def texts(labels):
    return [label.get_text() for label in labels]


# --------------------------------------------------------------------------- gene sets


@pytest.mark.filterwarnings("ignore:Writing zarr v2")
def test_the_heatmap_shows_the_evidence_in_a_diagonal(adata, tmp_path):
    adata.write_h5ad(tmp_path / "a.h5ad")
    data = anndata.read_h5ad(tmp_path / "a.h5ad")
    ax = pl.gene_set_heatmap(data, n_gene_sets=2, show=False)
    groups, names = texts(ax.get_xticklabels()), texts(ax.get_yticklabels())
    # The first two of each group that are not similar to another.
    assert sorted(names) == sorted(
        planted(i + offset) for i in range(9) for offset in (0, 20)
    )
    mesh, dots = ax.collections
    values = mesh.get_array().reshape(len(names), len(groups))
    z = adata.uns["tosica_attribution"]["z"].set_axis(
        adata.obs[GROUPBY].cat.categories, axis=1
    )
    assert_allclose(values, z.loc[names, groups])
    assert (np.diff(values.argmax(axis=1)) >= 0).all()
    # Dots are where the table has a row, of similar sets as well.
    table = tosica.get.gene_sets_df(adata, similar=True)
    marked = {(names[int(y)], groups[int(x)]) for x, y in dots.get_offsets()}
    assert marked == {
        pair
        for pair in zip(table["gene_set"], table["group"], strict=True)
        if pair[0] in names
    }
    ax.figure.canvas.draw()
    strip = [
        to_hex(color) for color in ax.child_axes[0].collections[0].get_facecolors()
    ]
    color_of = dict(
        zip(
            adata.obs[GROUPBY].cat.categories,
            adata.uns[f"{GROUPBY}_colors"],
            strict=True,
        )
    )
    assert strip == [color_of[group].lower() for group in groups]
    assert mesh.get_clim() == (-9, 9)
    assert mesh.colorbar.extend == "neither"


def test_limits_and_order_as_asked_for(adata):
    gene_sets = [planted(8), planted(3), planted(5)]
    ax = pl.gene_set_heatmap(
        adata,
        gene_sets=gene_sets,
        cluster_groups=False,
        vmax=5,
        figsize=(8, 6),
        show=False,
    )
    assert texts(ax.get_yticklabels()) == gene_sets
    assert texts(ax.get_xticklabels()) == list(adata.obs[GROUPBY].cat.categories)
    assert ax.collections[0].colorbar.extend == "max"
    assert texts(
        pl.gene_set_dotplot(adata, gene_sets=planted(3), show=False).get_yticklabels()
    ) == [planted(3)]
    data = adata.copy()
    data.uns["tosica_attribution"]["z"].iloc[0, 0] = 50
    assert pl.gene_set_heatmap(data, show=False).collections[0].get_clim() == (-12, 12)


def test_dots_are_contributions_with_rings_where_there_is_evidence(adata):
    ax = pl.gene_set_dotplot(adata, n_gene_sets=1, show=False)
    names = texts(ax.get_yticklabels())
    assert names == [planted(i) for i in range(9)]
    (dots,) = ax.collections
    record = adata.uns["tosica_attribution"]
    assert_allclose(dots.get_array(), record["z"].loc[names].to_numpy().ravel())
    added = record["contribution"].loc[names].to_numpy().ravel()
    assert_allclose(dots.get_sizes() / dots.get_sizes().max(), added / added.max())
    rings = np.isclose(np.reshape(dots.get_linewidths(), (9, 10)), 1)
    table = tosica.get.gene_sets_df(adata, similar=True)
    assert rings.sum() == table["gene_set"].isin(names).sum()
    assert rings.diagonal().all()


def test_cells_without_a_group_are_drawn_too(adata):
    groups = adata.obs[GROUPBY].astype(object)
    groups.iloc[:5] = np.nan
    adata.obs["some"] = groups
    (ax,) = pl.umap(adata, "some", show=False)
    assert sum(len(dots.get_offsets()) for dots in ax.collections) >= adata.n_obs


def test_violins_and_umap_show_the_cells(adata):
    axes = pl.gene_set_violin(adata, "phase", n_gene_sets=1, show=False)
    assert [ax.get_title() for ax in axes] == [planted(i) for i in range(9)]
    # Not the contribution of the dot plot, in which genes below the baseline do not count.
    label = "added by genes that\ncells express more\n(logits)"
    assert axes[0].figure.get_supxlabel() == label
    (ax,) = pl.gene_set_violin(adata, GROUPBY, gene_sets=planted(2), show=False)
    of_set = adata.obsm["X_tosica_attribution"][:, 2]
    medians = [
        float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o"
    ]
    assert_allclose(
        medians,
        [
            np.median(of_set[adata.obs[GROUPBY] == g])
            for g in texts(ax.get_yticklabels())
        ],
    )
    axes = pl.umap(adata, [GROUPBY, planted(2), "n_counts"], show=False)
    bars = [ax.collections[0].colorbar for ax in axes]
    assert bars[0] is None
    assert [bar.ax.get_ylabel() for bar in bars[1:]] == ["contribution (logits)", ""]
    assert_allclose(np.sort(axes[1].collections[0].get_array()), np.sort(of_set))
    (ax,) = pl.umap(adata, planted(2), colorbar_loc=None, show=False)
    assert ax.collections[0].colorbar is None


def test_titles_of_the_umap_are_those_asked_for(adata):
    (ax,) = pl.umap(adata, "phase", title="of the\nuser", show=False)
    assert ax.get_title() == "of the\nuser"


def test_panels_of_the_umap_without_a_title_have_their_name(adata):
    axes = pl.umap(adata, ["phase", GROUPBY], title=["first"], show=False)
    assert [ax.get_title() for ax in axes] == ["first", GROUPBY]


@pytest.mark.parametrize("place", ["right margin", "best"])
def test_the_legend_of_the_umap_has_names_that_begin_with_an_underscore(place, adata):
    data = adata.copy()
    data.obs["some"] = data.obs["phase"].cat.rename_categories({"G1": "_G1"})
    data.obs.loc[data.obs_names[:5], "some"] = np.nan
    (ax,) = pl.umap(data, "some", legend_loc=place, show=False)
    assert texts(ax.get_legend().get_texts()) == ["_G1", "G2M", "S", "NA"]


# --------------------------------------------------------------------------- bars and ribbons


def test_the_legend_of_the_composition_has_names_that_begin_with_an_underscore(adata):
    data = adata.copy()
    data.obs["some"] = data.obs["phase"].cat.rename_categories({"G2M": "_G2M"})
    ax = pl.composition(data, GROUPBY, groupby="some", show=False)
    assert texts(ax.get_legend().get_texts()) == ["G1", "_G2M", "S"]


def test_shares_of_a_sample_add_up(adata):
    ax = pl.composition(adata, "phase", groupby=GROUPBY, show=False)
    widths = np.array([[bar.get_width() for bar in bars] for bars in ax.containers])
    counts = pd.crosstab(adata.obs["phase"], adata.obs[GROUPBY], normalize="index")
    assert_allclose(widths, counts.T)
    assert_allclose([bar.get_x() + bar.get_width() for bar in ax.containers[-1]], 1)


def test_the_table_of_no_groups_has_no_rows(adata):
    genes = tosica.get.genes_df(adata, [])
    assert len(genes) == len(tosica.get.gene_sets_df(adata, [])) == 0
    assert list(genes) == list(tosica.get.genes_df(adata))


def test_bars_are_the_table(adata):
    group = adata.obs[GROUPBY].cat.categories[2]
    adata = adata.copy()
    # With a p-value, since the test is of no labels of the model.
    clusters = adata.obs[GROUPBY].cat.rename_categories(
        lambda name: name if name == group else f"other {name}"
    )
    adata.obs["cluster"] = clusters
    tosica.tl.rank_gene_sets(adata, "cluster")
    for values in ("score", "logfoldchange"):
        table = (
            tosica.get.rank_gene_sets_df(adata, group)
            .head(5)
            .sort_values(values, ascending=False, kind="stable")
        )
        (ax,) = pl.rank_gene_sets(
            adata, group, n_gene_sets=5, values=values, show=False
        )
        assert texts(ax.get_yticklabels()) == list(table["gene_set"])
        assert_allclose([bar.get_width() for bar in ax.patches], table[values])
        assert "pale" not in ax.get_xlabel()
        assert ax.get_xlabel().endswith(
            "\n(cells are the replicates, and not independent)"
        )
    # What is above 5 % FDR is pale.
    table = tosica.get.rank_gene_sets_df(adata, group)
    (ax,) = pl.rank_gene_sets(adata, group, n_gene_sets=len(table), show=False)
    assert ax.get_xlabel().endswith("pale: adjusted p-value above 0.05")
    table = table.sort_values("effect_size", ascending=False, kind="stable")
    assert [bar.get_alpha() is not None for bar in ax.patches] == list(
        table["pval_adj"] > 0.05
    )
    (ax,) = pl.top_genes(adata, group, show=False)
    table = tosica.get.genes_df(adata, group, n_genes=10)
    assert texts(ax.get_yticklabels()) == list(table["gene"])
    assert_allclose([bar.get_width() for bar in ax.patches], table["contribution"])
    assert [bar.get_alpha() is not None for bar in ax.patches] == list(
        table["expression"] < 0
    )
    assert ax.get_xlabel() == "contribution (logits)\npale: expressed below baseline"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"within": "phase", "groups": ["a"]}, "\na against all others"),
        ({"within": "phase", "groups": ["a"], "reference": "b"}, "\na against b"),
        ({"reference": "b"}, "\nagainst b"),
        ({}, "effect size (SD)\npale"),
    ],
)
def test_bars_say_what_is_compared(adata, options, text):
    cells = adata.copy()
    cells.obs["half"] = np.array(["a", "b"])[np.arange(cells.n_obs) % 2]
    tosica.tl.rank_gene_sets(cells, "half", **options)
    ax, *_ = pl.rank_gene_sets(cells, n_gene_sets=3, show=False)
    assert text in ax.get_xlabel()


@pytest.mark.parametrize(
    ("labels", "samples", "reason"),
    [
        (["a", "b"], None, "(circular)"),
        (None, "sample", "(fewer than 3\nsamples on a side)"),
    ],
)
def test_bars_without_pvalue_say_why(adata, labels, samples, reason):
    cells = adata.copy()
    row = np.arange(cells.n_obs)
    cells.obs["half"] = np.array(["a", "b"])[row % 2]
    cells.obs["sample"] = np.array(list("stuv"))[row % 4]
    if labels:
        cells.uns["tosica"] = cells.uns["tosica"] | {"labels": np.array(labels)}
    tosica.tl.rank_gene_sets(cells, "half", sample_key=samples)
    ax, *_ = pl.rank_gene_sets(cells, n_gene_sets=3, show=False)
    label = ax.get_xlabel()
    assert label.endswith(f"pale: no adjusted p-value {reason}")
    assert all(bar.get_alpha() is not None for bar in ax.patches)


def test_absent_genes_are_pale_and_hatched_in_the_waterfall(adata):
    group = adata.obs[GROUPBY].cat.categories[-1]
    cell = adata[adata.obs[GROUPBY] == group][:1].copy()
    record = cell.uns["tosica_attribution"]
    record["target"] = "own label"
    added = record["genes"].iloc[:, -1].reindex(cell.var_names, fill_value=0)
    cell.layers["tosica_attribution"] = added.to_numpy()[None]
    ax = pl.waterfall(cell, cell.obs_names[0], show=False)
    genes = texts(ax.get_yticklabels())[:-1]
    is_below = record["expression"].iloc[:, -1][genes] < 0
    assert 0 < is_below.sum() < len(genes)
    assert [bar.get_hatch() is not None for bar in ax.patches[:-1]] == list(is_below)
    assert texts(ax.get_legend().get_texts()) == [
        "expressed below\nbaseline by its group"
    ]
    record["expression"] = record["expression"].abs()
    ax = pl.waterfall(cell, cell.obs_names[0], show=False)
    assert ax.get_legend() is None
    assert not any(bar.get_hatch() for bar in ax.patches)


def test_absent_genes_are_found_under_other_names(adata):
    cell = adata[:1].copy()
    record = cell.uns["tosica_attribution"]
    record["target"] = "own label"
    record["expression"] = -record["expression"].abs() - 1
    genes = record["genes"].iloc[:, 0].reindex(cell.var_names, fill_value=0)
    cell.layers["tosica_attribution"] = genes.to_numpy()[None]
    hatched = _n_hatched(pl.waterfall(cell, cell.obs_names[0], show=False))
    cell.var_names = [f"{name}.1" for name in cell.var_names]
    assert _n_hatched(pl.waterfall(cell, cell.obs_names[0], show=False)) == hatched > 0


def _n_hatched(ax):
    return sum(bar.get_hatch() is not None for bar in ax.patches)


def test_a_name_of_two_cells_has_no_waterfall(adata):
    cells = adata[:2].copy()
    cells.layers["tosica_attribution"] = np.zeros(cells.shape)
    cells.obs_names = ["cell", "cell"]
    with pytest.raises(ValueError, match="2 cells are named 'cell'"):
        pl.waterfall(cells, "cell", show=False)
    with pytest.raises(KeyError, match="no cell 'other'"):
        pl.waterfall(cells, "other", show=False)


def test_ribbons_are_the_tables(adata):
    ax = pl.label_flow(adata, GROUPBY, min_share=0, show=False)
    table = tosica.tl.confusion(adata, GROUPBY)
    assert _n_ribbons(ax) == int((table > 0).to_numpy().sum())
    ax = pl.flow(adata, n_gene_sets=2, n_genes=3, show=False)
    # The last group has no gene set.
    assert _n_ribbons(ax) == 9 * 2 + 1 + 9 * 2 * 3 + 3
    groups = list(adata.obs[GROUPBY].cat.categories)
    words = texts(pl.flow(adata, groups[0], n_gene_sets=1, n_genes=2, show=False).texts)
    genes = tosica.get.genes_df(adata, groups[0], n_genes=2)["gene"]
    assert words == [groups[0], "label", planted(0), "gene set", *genes, "gene"]
    words = texts(pl.flow(adata, groups[-1], n_genes=2, show=False).texts)
    lacked, expressed = tosica.get.genes_df(adata, groups[-1], n_genes=2)["gene"]
    # A minus stands before the gene that the group lacks.
    sentence = "no gene set has evidence"
    assert words == [
        groups[-1],
        "label",
        sentence,
        "gene set",
        f"−{lacked}",
        expressed,
        "gene",
    ]


@pytest.mark.parametrize("name", ["source", "target", "value", "color"])
def test_ribbons_lead_to_predictions_of_any_name(name, adata):
    data = adata.copy()
    data.obs["some"] = data.obs["phase"].cat.rename_categories({"S": name})
    ax = pl.label_flow(data, "phase", prediction_key="some", show=False)
    assert texts(ax.texts) == ["G1", "G2M", "S", "phase", "G1", "G2M", name, "some"]


def _n_ribbons(ax):
    return sum(not isinstance(patch, Rectangle) for patch in ax.patches)


# --------------------------------------------------------------------------- confusion


@pytest.mark.parametrize("normalize", [True, False])
def test_confusion_shows_the_table(normalize, adata):
    table = tosica.tl.confusion(adata, GROUPBY, normalize=normalize)
    ax = pl.confusion(adata, GROUPBY, normalize=normalize, show=False)
    assert_allclose(ax.collections[0].get_array().reshape(table.shape), table)
    assert (texts(ax.get_yticklabels()), texts(ax.get_xticklabels())) == (
        list(table.index),
        list(table.columns),
    )
    assert table.columns[-1] == "Unknown"
    ax.figure.draw_without_rendering()
    cell = ax.get_window_extent().width / len(ax.get_xticklabels())
    assert all(text.get_window_extent().width <= cell for text in ax.texts)


@pytest.mark.filterwarnings("ignore:Names overlap")
def test_numbers_are_shares_or_cells_and_zeros_are_blank(adata):
    data = adata.copy()
    data.obs["known"] = np.repeat(["a", "b"], [698, 2])
    data.obs["tosica_prediction"] = ["b", *["a"] * 698, "b"]
    assert texts(pl.confusion(data, "known", show=False).texts) == [
        "1.00",
        "<.01",
        "0.50",
        "0.50",
    ]
    assert texts(pl.confusion(data, "known", normalize=False, show=False).texts) == [
        "697",
        "1",
        "1",
        "1",
    ]
    # Only where there is room, or they are asked for.
    assert not pl.confusion(annotated_pbmc(n_labels=60), GROUPBY, show=False).texts
    small = {"figsize": (1.5, 1.5), "show": False}
    assert not pl.confusion(adata, GROUPBY, **small).texts
    assert pl.confusion(adata, GROUPBY, annotate=True, **small).texts
    # In a column of a journal, shares lose their zeros.
    texts_in_column = texts(
        pl.confusion(adata, GROUPBY, figsize=(3, 3), show=False).texts
    )
    assert {".90", ".05"} <= set(texts_in_column)


# --------------------------------------------------------------------------- curves


def test_curves_of_all_orders_differ(adata):
    lines = pl.faithfulness(adata, show=False).get_lines()
    kinds = adata.uns["faithfulness"]["curves"][["change", "order"]].drop_duplicates()
    assert [line.get_label().split(":")[0] for line in lines] == [
        ", ".join(row) for row in kinds.to_numpy()
    ]
    assert (
        len({(line.get_color(), line.get_linestyle()) for line in lines})
        == len(lines)
        == 6
    )


def test_novelty_is_marked_at_the_cutoff(adata):
    ax = pl.novelty(adata, GROUPBY, cutoff=3, show=False)
    assert (texts(ax.texts), ax.lines[-1].get_xdata()[0]) == (["cutoff"], 3)
    assert not pl.novelty(adata, GROUPBY, show=False).texts


def test_cells_without_a_novelty_are_left_out_of_the_boxes(adata):
    data = adata.copy()
    data.obs.loc[data.obs_names[::6], "tosica_novelty"] = np.nan
    known = data[data.obs["tosica_novelty"].notna()]
    boxes = [
        [line.get_xdata() for line in pl.novelty(cells, "phase", show=False).lines]
        for cells in (data, known)
    ]
    for with_missing, without in zip(*boxes, strict=True):
        assert_allclose(with_missing, without)


def test_cells_without_a_novelty_do_not_count_for_a_box(adata):
    data = adata.copy()
    of_group = data.obs_names[data.obs["phase"] == "S"]
    data.obs.loc[of_group[4:], "tosica_novelty"] = np.nan
    # Four cells are too few for a box.
    ax = pl.novelty(data, "phase", show=False)
    assert len(ax.patches) == 2


def test_a_group_without_novelty_keeps_its_row(adata):
    data = adata.copy()
    data.obs.loc[data.obs["phase"] == "G1", "tosica_novelty"] = np.nan
    ax = pl.novelty(data, "phase", show=False)
    assert texts(ax.get_yticklabels())[-1] == "G1"


def test_validation_is_drawn_at_its_epochs():
    epochs = pd.Index([4, 9], name="epoch")
    table = history()
    for name, values in (("loss", [1.0, 0.5]), ("accuracy", [0.8, 0.9])):
        column = f"validation_{name}"
        table[column] = pd.DataFrame({column: values}, epochs, dtype=object)
    losses, accuracy = pl.training(table, show=False)
    assert [list(line.get_xdata()) for line in (*losses.lines, *accuracy.lines)] == [
        list(range(1, 11)),
        [5, 10],
        [10],
        [5, 10],
        [10],
    ]


def test_the_lowest_validation_loss_is_at_its_epoch():
    loss = pd.DataFrame({"validation_loss": [1.0, 0.5]}, pd.Index([4, 9]))
    ax = pl.training({"validation_loss": loss}, show=False)
    (text,) = texts(ax.get_legend().get_texts())[1:]
    assert text == "lowest validation loss: epoch 10"


def test_training(toy_model):
    table = history() | {"lr-AdamW": pd.DataFrame({"lr-AdamW": np.linspace(0, 1, 10)})}
    losses, accuracy = pl.training(table, show=False)
    assert (losses.get_ylabel(), accuracy.get_ylabel()) == ("cross-entropy", "accuracy")
    legend = texts(losses.get_legend().get_texts())
    assert legend == [
        "training loss",
        "validation loss",
        "lowest validation loss: epoch 8",
    ]
    for ax in (losses, accuracy):
        assert [
            float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o"
        ] == [8]
    axes = pl.training(table, keys=["train_loss", "lr-AdamW", "lr-AdamW"], show=False)
    assert [ax.get_ylabel() for ax in axes] == ["cross-entropy", ""]
    assert pl.training(table, ax=plt.subplots()[1]).get_ylabel() == "cross-entropy"
    for ax in pl.training(
        {name: values[:1] for name, values in table.items()}, show=False
    ):
        assert {line.get_marker() for line in ax.lines} == {"o"}
    losses, _ = pl.training(toy_model, show=False)
    assert len(losses.lines[0].get_xdata()) == len(toy_model.history["train_loss"])


def test_mask_coverage_is_the_table(adata):
    axes = pl.mask_coverage(adata, show=False)
    table = tosica.get.mask_coverage(adata)
    assert_array_equal(axes[0].lines[1].get_ydata(), [0, *table["n_covered"]])
    assert all(
        sum(bar.get_height() for bar in ax.patches) == len(table) for ax in axes[1:]
    )
    share = adata.uns["tosica_mask"]["coverage"]
    assert axes[0].get_title() == f"{share:.0%} of {adata.n_vars} genes"
    assert axes[1].get_title() == f"median {table['n_genes'].median():g} genes (dashed)"


def test_epochs_that_are_counted_anew_are_drawn_in_their_order():
    table = pd.DataFrame({"validation_loss": [4.0, 3, 2, 1]}, index=[3, 7, 2, 3])
    ax = pl.training({"validation_loss": table}, show=False)
    assert_array_equal(ax.lines[0].get_xdata(), [1, 2, 3, 4])
    assert "epoch 4" in " ".join(texts(ax.get_legend().get_texts()))
