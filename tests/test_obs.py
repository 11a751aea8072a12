"""Columns of obs that hold groups, and names of columns in files."""

import numpy as np
import pandas as pd
import pytest
from get.annotated_pbmc import annotated_pbmc

from tosica._obs import file_columns, read_groups


def test_columns_of_labels_as_files_hold_them():
    assert file_columns(["B/plasma", "T"], "here") == ["B|plasma", "T"]
    with pytest.raises(
        ValueError, match=r"^here has labels that .* \('a\|b', 'a/b'\): rename them"
    ):
        file_columns(["a|b", "T", "a/b"], "here")


# -- groups -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "groups"),
    [
        (["b", "a"], ["a", "b"]),
        ([True, False], ["False", "True"]),
        ([10, 9], ["9", "10"]),
        (pd.array(["y", "x"], dtype="string"), ["x", "y"]),
        (pd.Categorical(["one", "many"], ["unused", "one", "many"]), ["one", "many"]),
    ],
)
def test_columns_of_groups(values, groups):
    adata = annotated_pbmc()
    column = pd.Series(values).take(np.arange(adata.n_obs) % 2)
    adata.obs["group"] = column.set_axis(adata.obs_names)
    dtype = adata.obs["group"].dtype
    assert list(read_groups(adata, "group").categories) == groups
    assert adata.obs["group"].dtype == dtype


@pytest.mark.parametrize(
    ("column", "error", "sentence"),
    [
        ("cell_type", KeyError, "no column 'cell_type', only 'bulk_labels', "),
        (
            "other_prediction",
            KeyError,
            r"run model\.annotate\(adata, key_added='other'\)",
        ),
        ("lists", TypeError, "values that cannot name a group"),
        ("alike", ValueError, "written alike"),
        ("missing", ValueError, r"missing \(NaN\) in 30 of 700 cells"),
    ],
)
def test_columns_that_are_no_groups(column, error, sentence):
    adata = annotated_pbmc()
    adata.obs["lists"] = pd.Series([["a"]] * adata.n_obs, index=adata.obs_names)
    codes = np.arange(adata.n_obs) % 2
    adata.obs["alike"] = pd.Categorical.from_codes(
        codes, pd.Index([1, "1"], dtype=object)
    )
    adata.obs["missing"] = adata.obs["bulk_labels"].where(np.arange(adata.n_obs) >= 30)
    with pytest.raises(error, match=sentence):
        read_groups(adata, column)


def test_no_cells():
    with pytest.raises(ValueError, match="no cells"):
        read_groups(annotated_pbmc()[:0].copy(), "phase")
