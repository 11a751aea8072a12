from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from _strategies import annotated_cells
from anndata import AnnData
from get.annotated_pbmc import annotated_pbmc
from hypothesis import given, settings

import tosica


def _adata(known, predicted) -> AnnData:
    obs = pd.DataFrame({"known": known, "tosica_prediction": predicted})
    obs.index = obs.index.astype(str)
    return AnnData(np.zeros((len(obs), 1), np.float32), obs=obs)


def test_counts_agree_with_pandas():
    adata = annotated_pbmc()
    table = tosica.tl.confusion(adata, "bulk_labels")
    expected = pd.crosstab(adata.obs["bulk_labels"], adata.obs["tosica_prediction"])
    assert table.to_numpy().sum() == adata.n_obs
    assert table.dtypes.eq("int64").all()
    for row in expected.index:
        for column in expected.columns:
            assert table.loc[row, column] == expected.loc[row, column]


def test_order_is_that_of_the_categories_and_unknown_is_last():
    known = pd.Categorical(["B", "T", "B", "Unknown"], ["Unknown", "T", "B", "unused"])
    predicted = pd.Categorical(["B", "Unknown", "NK", "T"], ["NK", "Unknown", "B", "T"])
    table = tosica.tl.confusion(_adata(known, predicted), "known")
    assert list(table.index) == ["T", "B", "Unknown"]
    assert list(table.columns) == ["T", "B", "NK", "Unknown"]
    assert table.index.name == "known"
    assert table.columns.name == "tosica_prediction"


def test_a_label_that_is_never_predicted_keeps_its_column():
    table = tosica.tl.confusion(_adata(["B", "T", "NK"], ["B", "B", "NK"]), "known")
    assert list(table.columns) == ["B", "NK", "T"]
    assert (table["T"] == 0).all()


def test_clusters_against_labels_have_no_empty_columns():
    table = tosica.tl.confusion(_adata(["0", "1", "1"], ["B", "T", "Unknown"]), "known")
    assert list(table.columns) == ["B", "T", "Unknown"]
    table = tosica.tl.confusion(_adata(["0", "Unknown"], ["B", "Unknown"]), "known")
    assert list(table.columns) == ["B", "Unknown"]


@settings(max_examples=30)
@given(annotated_cells("abcd", [*"abcxy", "Unknown"]))
def test_rows_sum_to_the_cells_or_to_one(cells):
    known, predicted, *_ = (list(column) for column in zip(*cells, strict=True))
    adata = _adata(known, predicted)
    counts = tosica.tl.confusion(adata, "known")
    shares = tosica.tl.confusion(adata, "known", normalize=True)
    assert counts.sum(axis=1).to_dict() == pd.Series(known).value_counts().to_dict()
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    right = sum(k == p for k, p in zip(known, predicted, strict=True))
    both = [name for name in counts.index if name in counts.columns]
    assert sum(counts.loc[name, name] for name in both) == right


def test_leaves_the_data_alone():
    adata = annotated_pbmc()
    before = adata.copy()
    tosica.tl.confusion(adata, "bulk_labels")
    pd.testing.assert_frame_equal(adata.obs, before.obs)
    assert set(adata.uns) == set(before.uns)


def test_not_annotated():
    with pytest.raises(KeyError, match=r"run model\.annotate\(adata, key_added='tosica'\)"):
        tosica.tl.confusion(sc.datasets.pbmc68k_reduced(), "bulk_labels")


def test_missing_labels():
    with pytest.raises(KeyError, match="no column 'cell_type'"):
        tosica.tl.confusion(annotated_pbmc(), "cell_type")


def test_cells_without_a_label():
    with pytest.raises(ValueError, match=r"adata\.obs\['known'\] is missing \(NaN\) in 1 of 2"):
        tosica.tl.confusion(_adata(["a", None], ["a", "a"]), "known")


def test_numbers_are_no_labels():
    with pytest.raises(TypeError, match="not groups"):
        tosica.tl.confusion(annotated_pbmc(), "percent_mito")
