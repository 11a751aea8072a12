from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import tosica


@pytest.mark.filterwarnings("ignore:The query has only")
@pytest.mark.parametrize("which", ["query", "lacking"])
def test_attribution_agrees_with_the_presence_of_attribute(which, model, request):
    query = request.getfixturevalue(which)
    tosica.tl.top_genes(query, model, n_gene_sets=3, n_genes=10_000, n_cells=1_000)
    tosica.tl.attribute(query, model)
    means = tosica.get.mean_attention(query, "tosica_prediction", key="tosica_presence")
    table = tosica.get.top_genes_df(query)
    assert len(table)
    for group, rows in table.groupby("group", observed=True):
        shown = rows.drop_duplicates("gene_set")
        best = means.loc[group].sort_values(ascending=False).head(len(shown))
        assert list(shown["gene_set"]) == list(best.index)
        np.testing.assert_allclose(shown["gene_set_weight"], best, rtol=1e-3, atol=1e-4)
        # Genes that are left out have negative weights.
        sums = rows.groupby("gene_set", observed=True)["gene_weight"].sum()
        weights = shown.set_index("gene_set")["gene_set_weight"]
        assert (sums[weights.index] + 1e-4 >= weights).all()


def test_modules_are_explained_by_their_genes(model, query):
    tosica.tl.top_genes(query, model, n_gene_sets=30, n_genes=10_000)
    table = tosica.get.top_genes_df(query)
    of_modules = table[table["gene_set"].str.startswith("module: ")]
    assert len(of_modules)
    mask = model.get_gene_weights() > 0
    assert all(mask.loc[row.gene, row.gene_set] for row in of_modules.itertuples())


def test_attention_goes_by_effect_and_embedding(model, query):
    tosica.tl.top_genes(query, model, by="attention", n_gene_sets=2, n_genes=3)
    table = tosica.get.top_genes_df(query)
    weights = model.get_gene_weights()
    for (_, gene_set), rows in table.groupby(["group", "gene_set"], observed=True):
        best = weights[gene_set].nlargest(3)
        assert list(rows["gene"]) == list(best.index)
        np.testing.assert_allclose(rows["gene_weight"], best, rtol=1e-5)
    assert (table["gene_set_weight"] > 0).all()


def test_tidy_gene_weights(model):
    name = model.gene_sets[4]
    table = tosica.get.gene_weights(model, [name], how="max")
    full = model.get_gene_weights("max")[name]
    expected = full[full > 0].sort_values(ascending=False)
    assert sorted(table["gene"]) == sorted(expected.index)
    np.testing.assert_allclose(table["weight"], expected)
    everything = tosica.get.gene_weights(model)
    assert list(everything["gene_set"].cat.categories) == model.gene_sets
    assert (
        tosica.get.gene_weights(model, n_genes=2).groupby("gene_set", observed=True).size() == 2
    ).all()


def test_a_gene_set_that_does_not_exist_has_near_names(model):
    name = model.gene_sets[0]
    with pytest.raises(KeyError, match="did you mean '") as refused:
        tosica.get.gene_weights(model, name.upper() + "x")
    assert name in str(refused.value)


@pytest.mark.parametrize("bad", [{"n_genes": 0}, {"gene_sets": []}, {"how": "median"}])
def test_gene_weights_refuses(model, bad):
    with pytest.raises(ValueError, match=r"n_genes|gene_sets is empty|how must be"):
        tosica.get.gene_weights(model, **bad)


@pytest.mark.filterwarnings("ignore:Writing zarr v2:UserWarning")
def test_survives_a_file(model, query, tmp_path):
    import anndata

    tosica.tl.top_genes(query, model, "phase", n_cells=5, key_added="genes")
    query.write_h5ad(tmp_path / "query.h5ad")
    back = anndata.read_h5ad(tmp_path / "query.h5ad")
    written, read = (tosica.get.top_genes_df(x, key="genes") for x in (query, back))
    pd.testing.assert_frame_equal(
        written.astype({"group": str}), read.astype({"group": str}), check_dtype=False
    )
    assert back.uns["genes"]["params"]["groupby"] == "phase"


def test_unknown_is_not_explained_unless_asked_for(model, query):
    query.obs["tosica_prediction"] = query.obs["tosica_prediction"].cat.add_categories("Unknown")
    query.obs.loc[query.obs_names[:10], "tosica_prediction"] = "Unknown"
    tosica.tl.top_genes(query, model, by="attention")
    assert "Unknown" not in set(tosica.get.top_genes_df(query)["group"])


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"by": "magic"}, "by must be 'attribution' or 'attention'"),
        ({"n_genes": 0}, "n_genes must be at least 1"),
        ({"n_cells": 0}, "n_cells must be at least 1"),
        ({"groups": ["T"]}, r"has no cell in group 'T': its groups are "),
        ({"groups": []}, "was asked for no group"),
    ],
)
def test_refuses(model, query, kwargs, match):
    with pytest.raises(ValueError, match=match):
        tosica.tl.top_genes(query, model, **kwargs)
    assert "top_genes" not in query.uns


def test_reader_says_what_to_run(query):
    with pytest.raises(KeyError, match=r"run tosica\.tl\.top_genes"):
        tosica.get.top_genes_df(query)
    query.uns["top_genes"] = {}
    with pytest.raises(KeyError, match="not a result of"):
        tosica.get.top_genes_df(query)


def test_reader_names_the_groups(model, query):
    tosica.tl.top_genes(query, model, "phase", by="attention")
    with pytest.raises(KeyError, match=r"no group 'M': it holds 'G1', 'G2M', 'S'"):
        tosica.get.top_genes_df(query, "M")
