from __future__ import annotations

import numpy as np
import pytest
from get.annotated_pbmc import N_GENE_SETS, annotated_pbmc

import tosica

COLUMNS = ["group", "gene_set", "score", "logfoldchange", "pval", "pval_adj", "effect_size"]


@pytest.fixture(scope="module")
def ranked():
    adata = annotated_pbmc()
    tosica.tl.rank_gene_sets(adata, "bulk_labels", key_added="ranks")
    return adata


def test_all_groups(ranked):
    table = tosica.get.rank_gene_sets_df(ranked, key="ranks")
    groups = list(ranked.obs["bulk_labels"].cat.categories)
    assert list(table.columns) == COLUMNS
    assert len(table) == len(groups) * N_GENE_SETS
    assert list(table["group"].cat.categories) == groups
    for i, group in enumerate(groups):
        rows = table[table["group"] == group]
        assert rows["gene_set"].iloc[0] == f"gene set {i:02d}"
        assert rows["gene_set"].is_unique
        assert (np.diff(rows["score"]) <= 0).all()


def test_one_group_or_some_in_the_order_asked_for(ranked):
    one = tosica.get.rank_gene_sets_df(ranked, "CD34+", key="ranks")
    assert set(one["group"]) == {"CD34+"}
    assert list(one.columns) == COLUMNS
    two = tosica.get.rank_gene_sets_df(ranked, ["Dendritic", "CD34+"], key="ranks")
    assert list(dict.fromkeys(two["group"])) == ["Dendritic", "CD34+"]
    assert len(two) == 2 * N_GENE_SETS


def test_agrees_with_scanpys_reader(ranked):
    import scanpy as sc

    table = tosica.get.rank_gene_sets_df(ranked, key="ranks")
    scanpys = sc.get.rank_genes_groups_df(ranked, None, key="ranks")
    assert list(scanpys["group"]) == list(table["group"])
    assert list(scanpys["names"]) == list(table["gene_set"])
    np.testing.assert_array_equal(scanpys.iloc[:, 2:].to_numpy(), table.iloc[:, 2:-1].to_numpy())


def test_not_run():
    with pytest.raises(KeyError, match=r"run tosica\.tl\.rank_gene_sets\(adata, groupby, key_add"):
        tosica.get.rank_gene_sets_df(annotated_pbmc())


def test_something_else_under_the_key():
    with pytest.raises(
        KeyError, match=r"not a result of tosica\.tl\.rank_gene_sets: it holds no 'n"
    ):
        tosica.get.rank_gene_sets_df(annotated_pbmc(), key="tosica")


def test_unknown_group(ranked):
    with pytest.raises(KeyError, match=r"has no group 'T cell': it holds 'CD4\+/CD25 T Reg', "):
        tosica.get.rank_gene_sets_df(ranked, "T cell", key="ranks")
