from __future__ import annotations

import numpy as np
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
    assert (tosica.get.gene_weights(model, n_genes=2).groupby("gene_set", observed=True).size() == 2).all()


def test_a_gene_set_that_does_not_exist_has_near_names(model):
    name = model.gene_sets[0]
    with pytest.raises(KeyError, match="did you mean '") as refused:
        tosica.get.gene_weights(model, name.upper() + "x")
    assert name in str(refused.value)


def test_unknown_is_not_explained_unless_asked_for(model, query):
    query.obs["tosica_prediction"] = query.obs["tosica_prediction"].cat.add_categories("Unknown")
    query.obs.loc[query.obs_names[:10], "tosica_prediction"] = "Unknown"
    tosica.tl.top_genes(query, model, by="attention")
    assert "Unknown" not in set(tosica.get.top_genes_df(query)["group"])
