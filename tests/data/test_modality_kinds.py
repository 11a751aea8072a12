"""Kinds of modality: detected, normalized alike in blocks and minibatches, saved and loaded."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from anndata import AnnData
from numpy.testing import assert_allclose

from tosica.data import (
    MODALITY_KINDS,
    AlignedCells,
    CellMatrix,
)

COUNTS = np.random.default_rng(0).poisson(5.0, (40, 12)).astype(np.float32) + np.eye(
    40, 12
)
NAMES = pd.Index([f"G{i}" for i in range(12)])


def adata_of(values):
    adata = AnnData(values)
    adata.var_names = NAMES
    return adata


def normalized(kind, values):
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
        assert_allclose(values, normalized(kind, COUNTS), rtol=1e-6, atol=1e-6)


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
