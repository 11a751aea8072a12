"""What a matrix holds: counts, log-normalised expression, or neither."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from _scaled import N_CELLS, N_GENES, each_format, normalised, rows
from _strategies import DTYPES

from tosica.data import _scale
from tosica.data._reference_scale import scale_of
from tosica.data._scale import describe_unscaled, detect_values

if TYPE_CHECKING:
    from pathlib import Path

# ------------------------------------------------------------------ a block


@each_format
@pytest.mark.parametrize("dtype", DTYPES)
def test_counts(counts: np.ndarray, format_: Any, dtype: str) -> None:
    assert detect_values(format_(counts.astype(dtype)), "adata.X") == "counts"


@each_format
def test_log1p(counts: np.ndarray, format_: Any) -> None:
    for dtype in ("float32", "float64"):
        assert detect_values(format_(normalised(counts).astype(dtype)), "adata.X") == "log1p"


def test_log1p_in_half_precision(counts: np.ndarray) -> None:
    assert detect_values(normalised(counts).astype("float16"), "adata.X") == "log1p"


@each_format
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_zero_is_of_no_kind(format_: Any, dtype: str) -> None:
    assert detect_values(format_(np.zeros((3, 4), dtype=dtype)), "adata.X") is None
    stored = sp.csr_matrix(np.ones((3, 4), dtype=dtype))
    stored.data[:] = 0
    assert detect_values(stored, "adata.X") is None


@each_format
@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_missing_and_infinite(
    counts: np.ndarray, format_: Any, value: float, name: str, blocks: int
) -> None:
    matrix = normalised(counts)
    matrix[[11, 31], [2, 5]] = value
    sentence = rf"^adata\.X holds {name} \(first in cell 11\); replace or remove such values before"
    with pytest.raises(ValueError, match=sentence):
        scale_of(rows(format_(matrix)))
    # The name of the matrix and the number of the block's first cell are given.
    sentence = rf"^adata\.layers\['a'\] holds {name} \(first in cell 111\)"
    with pytest.raises(ValueError, match=sentence):
        detect_values(format_(matrix), "adata.layers['a']", first_cell=100)


@each_format
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_negative(counts: np.ndarray, format_: Any, dtype: str, blocks: int) -> None:
    matrix = counts.astype(dtype)
    matrix[[23, 40], [7, 1]] = -1
    with pytest.raises(ValueError, match=r"^adata\.X holds negative values \(first in cell 23\), "):
        scale_of(rows(format_(matrix)))
    with pytest.raises(ValueError, match=r"log-normalised expression\. Take the layer\.$"):
        scale_of(rows(format_(matrix)), hint=lambda: "Take the layer.")
    with pytest.raises(ValueError, match=r"log-normalised expression\.$"):
        scale_of(rows(format_(matrix)))


@each_format
@pytest.mark.parametrize("target_sum", [1e4, 1e6])
def test_normalised_but_not_logged(counts: np.ndarray, format_: Any, target_sum: float) -> None:
    matrix = normalised(counts, target_sum, log=False)
    sentence = f"adata.X holds fractions with values up to {matrix.max():.4g}: neither counts nor"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        detect_values(format_(matrix), "adata.X")
    # Cells in which normalisation left whole numbers do not hide what the matrix is.
    matrix[5:9] = np.arange(N_GENES) * 20
    with pytest.raises(ValueError, match=r"call sc\.pp\.log1p on normalised expression\.$"):
        detect_values(format_(matrix), "adata.X")


def test_a_few_whole_numbers_among_logarithms_are_chance(counts: np.ndarray) -> None:
    matrix = normalised(counts)
    matrix[20:40] = 0
    matrix[20:30, 4], matrix[25:30, 9] = 1, 2
    assert detect_values(matrix, "adata.X") == "log1p"
    assert detect_values(sp.csr_matrix(matrix), "adata.X") == "log1p"


# ------------------------------------------------------------------ where counts are kept


def scaled(counts: np.ndarray) -> ad.AnnData:
    obs = pd.DataFrame(index=[f"cell{i}" for i in range(N_CELLS)])
    var = pd.DataFrame(index=[f"gene{i}" for i in range(N_GENES)])
    return ad.AnnData(counts - counts.mean(0), obs=obs, var=var)


def with_all(counts: np.ndarray) -> ad.AnnData:
    adata = scaled(counts)
    adata.raw = ad.AnnData(sp.csr_matrix(normalised(counts)), obs=adata.obs, var=adata.var)
    adata.layers["counts"] = sp.csc_matrix(counts)
    adata.layers["scaled"] = adata.X.copy()
    adata.layers["empty"] = np.zeros_like(counts)
    adata.layers["words"] = np.full(counts.shape, "a", dtype=object)
    return adata


BOTH = (
    "Unscaled expression is in adata.raw (use_raw=True, or adata.raw.to_adata() for a reference) "
    "and in adata.layers['counts'] (layer='counts')."
)


def test_no_unscaled_matrix(counts: np.ndarray) -> None:
    adata = scaled(counts)
    nowhere = "No unscaled matrix was found in .raw or in the layers; go back to one."
    assert describe_unscaled(adata) == nowhere
    adata.raw = adata.copy()
    adata.layers["scaled"] = adata.X.copy()
    assert describe_unscaled(adata) == nowhere


def test_x_is_no_layer(counts: np.ndarray, tmp_path: Path) -> None:
    # To some versions of anndata it is, under the name None.
    adata = ad.AnnData(counts)
    assert describe_unscaled(adata).startswith("No unscaled matrix")
    adata.write_h5ad(tmp_path / "a.h5ad")
    backed = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")
    assert describe_unscaled(backed).startswith("No unscaled matrix")
    backed.file.close()


def test_unscaled_matrices(counts: np.ndarray) -> None:
    adata = with_all(counts)
    assert describe_unscaled(adata) == BOTH
    assert describe_unscaled(adata[::-1][:, :30]) == BOTH
    del adata.raw
    assert (
        describe_unscaled(adata)
        == "Unscaled expression is in adata.layers['counts'] (layer='counts')."
    )


def test_unscaled_matrices_on_disk(counts: np.ndarray, tmp_path: Path) -> None:
    adata = with_all(counts)
    del adata.layers["words"]
    adata.write_h5ad(tmp_path / "a.h5ad")
    backed = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")
    assert describe_unscaled(backed) == BOTH
    assert describe_unscaled(backed[5:30, :20]) == BOTH
    backed.file.close()


def test_advice_looks_at_few_cells(counts: np.ndarray) -> None:
    adata = ad.concat([scaled(counts)] * 3, index_unique="-")
    layer = np.tile(counts, (3, 1))
    layer[_scale._N_ADVICE] = -1
    adata.layers["counts"] = layer
    assert "layers['counts']" in describe_unscaled(adata)
    layer[_scale._N_ADVICE - 1] = -1
    adata.layers["counts"] = layer
    assert "layers['counts']" not in describe_unscaled(adata)
