from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from get.annotated_pbmc import annotated_pbmc

import tosica


def test_equals_the_mean_of_each_group():
    adata = annotated_pbmc()
    result = tosica.get.mean_attention(adata, "bulk_labels")
    assert list(result.index) == list(adata.obs["bulk_labels"].cat.categories)
    assert result.index.name == "bulk_labels"
    assert list(result.columns) == list(adata.uns["tosica"]["gene_sets"])
    for name, row in result.iterrows():
        cells = (adata.obs["bulk_labels"] == name).to_numpy()
        np.testing.assert_allclose(row, adata.obsm["X_tosica"][cells].mean(axis=0), rtol=1e-5)


def test_z_score_is_the_mean_of_the_cells_z_scores():
    adata = annotated_pbmc()
    adata.obsm["X_tosica"][:, 7] = 0.01
    values = adata.obsm["X_tosica"].astype(np.float64)
    z = (values - values.mean(axis=0)) / np.where(values.std(axis=0) > 1e-9, values.std(axis=0), 1)
    result = tosica.get.mean_attention(adata, "phase", scale="z_score")
    expected = pd.DataFrame(z).groupby(adata.obs["phase"].to_numpy()).mean()
    np.testing.assert_allclose(result, expected, atol=1e-6)
    assert (result.iloc[:, 7] == 0).all()


def test_min_max_runs_from_0_to_1():
    adata = annotated_pbmc()
    adata.obsm["X_tosica"][:, 7] = 0.01
    result = tosica.get.mean_attention(adata, "bulk_labels", scale="min_max")
    rest = result.drop(columns="gene set 07")
    assert (rest.min() == 0).all()
    np.testing.assert_allclose(rest.max(), 1)
    assert (result["gene set 07"] == 0).all()


def test_a_group_may_have_one_cell_and_unused_categories_are_no_groups():
    adata = annotated_pbmc()
    groups = np.where(np.arange(adata.n_obs) == 0, "one", "many")
    adata.obs["group"] = pd.Categorical(groups, ["unused", "one", "many"])
    result = tosica.get.mean_attention(adata, "group")
    assert list(result.index) == ["one", "many"]
    np.testing.assert_allclose(result.loc["one"], adata.obsm["X_tosica"][0], rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "groups"),
    [
        (["b", "a"], ["a", "b"]),
        ([True, False], ["False", "True"]),
        ([10, 9], ["9", "10"]),
        (pd.array(["y", "x"], dtype="string"), ["x", "y"]),
    ],
)
def test_columns_that_are_not_categorical(values, groups):
    adata = annotated_pbmc()
    adata.obs["group"] = pd.Series(values).take(np.arange(adata.n_obs) % 2).to_numpy()
    before = adata.obs["group"].dtype
    assert list(tosica.get.mean_attention(adata, "group").index) == groups
    assert adata.obs["group"].dtype == before


def test_unknown_scale():
    with pytest.raises(ValueError, match="scale must be 'z_score', 'min_max' or None, not 'log'"):
        tosica.get.mean_attention(annotated_pbmc(), "phase", scale="log")


def test_missing_column_names_what_is_there():
    with pytest.raises(KeyError, match=r"no column 'cell_type', only 'bulk_labels', "):
        tosica.get.mean_attention(annotated_pbmc(), "cell_type")


def test_missing_prediction_names_the_call():
    with pytest.raises(KeyError, match=r"run model\.annotate\(adata, key_added='other'\)"):
        tosica.get.mean_attention(annotated_pbmc(), "other_prediction")


def test_numbers_are_no_groups():
    with pytest.raises(TypeError, match=r"adata\.obs\['percent_mito'\] holds float32 values, not"):
        tosica.get.mean_attention(annotated_pbmc(), "percent_mito")


def test_lists_are_no_groups():
    adata = annotated_pbmc()
    adata.obs["group"] = pd.Series([["a"]] * adata.n_obs, index=adata.obs_names)
    with pytest.raises(TypeError, match="values that cannot name a group"):
        tosica.get.mean_attention(adata, "group")


def test_groups_written_alike():
    adata = annotated_pbmc()
    codes = np.arange(adata.n_obs) % 2
    adata.obs["group"] = pd.Categorical.from_codes(codes, pd.Index([1, "1"], dtype=object))
    with pytest.raises(ValueError, match="written alike"):
        tosica.get.mean_attention(adata, "group")


def test_cells_without_a_group():
    adata = annotated_pbmc()
    adata.obs["group"] = adata.obs["bulk_labels"].where(np.arange(adata.n_obs) >= 30)
    with pytest.raises(ValueError, match=r"missing \(NaN\) in 30 of 700 cells"):
        tosica.get.mean_attention(adata, "group")


def test_no_cells():
    with pytest.raises(ValueError, match="adata has no cells"):
        tosica.get.mean_attention(annotated_pbmc()[:0].copy(), "phase")


def test_groupby_is_no_string():
    with pytest.raises(TypeError, match="groupby must be a string, not \\["):
        tosica.get.mean_attention(annotated_pbmc(), ["phase"])
