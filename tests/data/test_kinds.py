"""Kinds of modality: detected, normalized alike in blocks and minibatches, saved and loaded."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from anndata import AnnData
from mudata import MuData

from tosica.data import (
    MODALITY_KINDS,
    AlignedCells,
    CellMatrix,
    JointMatrix,
    cell_indexers,
)

COUNTS = np.random.default_rng(0).poisson(5.0, (40, 12)).astype(np.float32) + np.eye(
    40, 12
)
NAMES = pd.Index([f"G{i}" for i in range(12)])


def adata_of(values) -> AnnData:
    adata = AnnData(values)
    adata.var_names = NAMES
    return adata


def normalized(kind, values: np.ndarray) -> np.ndarray:
    """Values of a reference as the model takes them."""
    scale = kind.detect_scale(CellMatrix(adata_of(values)))
    return kind.normalization(scale).normalize_block(values)


# The third matrix has the logarithms of unequal totals.
@pytest.mark.filterwarnings("ignore:adata.X holds values that do not tell")
@pytest.mark.parametrize("role", MODALITY_KINDS)
def test_scales_are_saved_and_loaded(role):
    kind = MODALITY_KINDS[role]
    for values in (COUNTS, normalized(kind, COUNTS), np.log1p(COUNTS * 1.7)):
        scale = kind.detect_scale(CellMatrix(adata_of(values)))
        assert kind.scale_type(**scale._asdict()) == scale
        assert kind.describe(scale) in kind.describe_normalization(scale)


@pytest.mark.filterwarnings("ignore:The query has only")
@pytest.mark.parametrize("role", MODALITY_KINDS)
def test_measured_genes_are_known_before_anything_is_read(role):
    kind = MODALITY_KINDS[role]
    scale = kind.detect_scale(CellMatrix(adata_of(COUNTS)))
    query = adata_of(COUNTS)[:, ::-1].copy()
    query.X[7, 3] = np.nan
    cells = AlignedCells(
        kind,
        CellMatrix(query[:, :-1].copy()),
        NAMES[:-1].append(pd.Index(["other"])),
        scale,
    )
    np.testing.assert_array_equal(cells.measured, [False, *[True] * 10, False])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"adata\.X holds NaN \(first in cell 7\)"):
            list(cells)


@pytest.mark.parametrize("role", MODALITY_KINDS)
def test_aligned_cells_are_read_more_than_once(role):
    kind = MODALITY_KINDS[role]
    scale = kind.detect_scale(CellMatrix(adata_of(COUNTS)))
    cells = AlignedCells(
        kind,
        CellMatrix(adata_of(sp.csr_matrix(COUNTS))[:, ::-1]),
        NAMES,
        scale,
        batch_size=9,
    )
    for _ in range(2):
        batches = list(cells)
        assert [batch.offset for batch in batches] == [0, 9, 18, 27, 36]
        values = np.concatenate([batch.values for batch in batches])
        np.testing.assert_allclose(
            values, normalized(kind, COUNTS), rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize(
    "names",
    [
        [f"chr{i}:100-200" for i in range(12)],
        [f"chrX-{i}-{i + 9}" for i in range(12)],
        [f"GL000194.1_{i}_{i + 9}" for i in range(12)],
        [*(f"7:{i}-{i + 9}" for i in range(7)), *NAMES[:5]],
    ],
)
def test_peaks_are_no_genes(names):
    check = MODALITY_KINDS["atac"].check_names
    with pytest.raises(
        ValueError, match=rf"^mdata\['a'\] holds peaks \(such as '{names[0]}'\)"
    ):
        check(pd.Index(names), "mdata['a']")


@pytest.mark.parametrize(
    "names", ["HLA-DRB1 NKX2-5 RP11-34P13.7 H2-K1 MT-ND1 7SK", "ENSG01 chr1"]
)
def test_genes_are_no_peaks(names):
    MODALITY_KINDS["atac"].check_names(pd.Index(names.split()), "adata")


def test_modalities_side_by_side_in_the_order_of_the_mudata():
    names = [f"cell{i}" for i in range(40)]
    first, second = adata_of(sp.csr_matrix(COUNTS)), adata_of(COUNTS[::-1] + 1)
    first.obs_names, second.obs_names = names, names[::-1]
    second.layers["more"] = second.X + 1
    mdata = MuData({"a": first, "b": second})
    cells = np.array([3, 1, 3])
    both = JointMatrix(mdata, {"b": "more", "a": None})
    np.testing.assert_array_equal(
        both.take(cells), np.hstack([COUNTS + 2, COUNTS])[cells]
    )
    assert both.n_obs == 40
    np.testing.assert_array_equal(cell_indexers(mdata, ["b"])["b"], np.arange(40)[::-1])
    assert CellMatrix(second).n_obs == 40
