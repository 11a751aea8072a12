from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from get.annotated_pbmc import annotated_pbmc, planted

from tosica.pl._choose_gene_sets import specific_gene_sets


def test_the_first_of_each_group_is_its_planted_gene_set():
    assert specific_gene_sets(annotated_pbmc(), "bulk_labels", 1) == [planted(i) for i in range(10)]


def test_each_name_occurs_once():
    names = specific_gene_sets(annotated_pbmc(), "bulk_labels", 4)
    assert len(names) == len(set(names))
    assert 10 < len(names) <= 40
    assert {planted(i) for i in range(10)} <= set(names)


def test_a_gene_set_that_is_high_in_all_groups_is_not_specific():
    adata = annotated_pbmc()
    adata.obsm["X_tosica"][:, 20] += 1
    assert planted(20) not in specific_gene_sets(adata, "bulk_labels", 1)


def test_groups_with_one_cell_each():
    adata = annotated_pbmc()[:3].copy()
    adata.obsm["X_tosica"] = np.full_like(adata.obsm["X_tosica"], 0.1)
    adata.obsm["X_tosica"][[0, 1, 2], [30, 31, 32]] = 0.2
    adata.obs["group"] = list("abc")
    assert specific_gene_sets(adata, "group", 2) == [planted(30), planted(31), planted(32)]


def test_a_group_that_is_never_highest_has_one_gene_set():
    adata = annotated_pbmc()
    low = np.arange(adata.n_obs) % 2 == 0
    adata.obsm["X_tosica"][low] *= 0.01
    adata.obs["group"] = pd.Categorical(np.where(low, "low", "high"), ["low", "high"])
    assert len(specific_gene_sets(adata, "group", 3)) == 4


@pytest.mark.parametrize("key", ["tosica_presence", "tosica_attribution"])
def test_of_contributions_the_largest_mean_decides(key):
    adata = annotated_pbmc()
    values = np.zeros_like(adata.obsm["X_tosica"])
    low = np.arange(adata.n_obs) % 2 == 0
    # Gene set 7 is the largest in both groups.
    values[:, 7], values[:, 8] = np.where(low, 2.0, 4.0), np.where(low, 1.0, 0.5)
    values[:, 9], values[:, 10] = np.where(low, -1.0, 0.6), -3
    adata.obsm[f"X_{key}"] = values
    adata.uns[key] = {"gene_sets": adata.uns["tosica"]["gene_sets"]}
    adata.obs["group"] = pd.Categorical(np.where(low, "low", "high"), ["low", "high"])
    assert specific_gene_sets(adata, "group", 1, key=key) == [planted(7)]
    assert specific_gene_sets(adata, "group", 2, key=key) == [planted(i) for i in (7, 8, 9)]
    # Gene sets with a negative mean are not chosen.
    assert specific_gene_sets(adata, "group", 9, key=key) == [planted(i) for i in (7, 8, 9)]


def test_a_single_group_has_the_gene_sets_with_the_highest_mean():
    adata = annotated_pbmc()
    adata.obs["group"] = "all"
    adata.obsm["X_tosica"][:, [40, 41]] += [2, 1]
    assert specific_gene_sets(adata, "group", 2) == [planted(40), planted(41)]
