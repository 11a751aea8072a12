"""Which gene sets are kept, and how much genes vary."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import scanpy as sc
import scipy.sparse as sp
from anndata import AnnData
from hypothesis import given, settings
from hypothesis import strategies as st

import tosica
from tosica.pp._select import gene_variability, select_gene_sets

pytestmark = pytest.mark.filterwarnings("ignore:The '.*' option is deprecated")

masks = st.integers(0, 10_000).map(
    lambda seed: (lambda r: r.random((r.integers(1, 12), r.integers(2, 15))) < 0.35)(
        np.random.default_rng(seed)
    )
)


def chosen(mask: np.ndarray, n: int, select: Any = "largest", most: float = 1.0) -> list[int]:
    mask = mask[mask.any(1)]
    members = sp.csr_matrix(mask)
    vary = np.arange(mask.shape[1], dtype=float) ** 2
    return list(select_gene_sets(members, n, select=select, max_jaccard=most, variability=vary))


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    return (a & b).sum() / (a | b).sum()


@settings(max_examples=60)
@given(mask=masks, n=st.integers(1, 8), most=st.sampled_from([0.2, 0.5, 1.0]))
def test_coverage_as_plain_python(mask: np.ndarray, n: int, most: float) -> None:
    mask = mask[mask.any(1)]
    covered = np.zeros(mask.shape[1], dtype=bool)
    kept: list[int] = []
    passed: set[int] = set()
    while len(kept) < n:
        gains = [(-(mask[i] & ~covered).sum(), mask[i].sum(), i) for i in range(len(mask))]
        gains = [gain for gain in gains if gain[0] < 0 and gain[2] not in passed]
        if not gains:
            break
        best = min(gains)[2]
        passed.add(best)
        if most == 1 or all(jaccard(mask[best], mask[i]) <= most for i in kept):
            kept.append(best)
            covered |= mask[best]
    if mask.size:
        assert chosen(mask, n, "coverage", most) == sorted(kept)


@settings(max_examples=60)
@given(
    mask=masks,
    n=st.integers(1, 8),
    most=st.floats(0.05, 1.0),
    select=st.sampled_from(["largest", "coverage", "variable"]),
)
def test_no_two_overlap_more_than_allowed(
    mask: np.ndarray, n: int, most: float, select: Any
) -> None:
    mask = mask[mask.any(1)]
    if not mask.size:
        return
    kept = chosen(mask, n, select, most)
    assert kept == sorted(set(kept))
    assert 1 <= len(kept) <= n
    for i in kept:
        for j in kept:
            if i < j and most < 1:
                assert jaccard(mask[i], mask[j]) <= most
    assert most < 1 or select == "coverage" or len(kept) == min(n, len(mask))


def test_pruning_goes_on_until_there_are_enough() -> None:
    mask = np.zeros((4, 10), dtype=bool)
    mask[0, :6] = mask[1, :5] = mask[2, 6:9] = mask[3, 9] = True
    assert chosen(mask, 2) == [0, 1]
    assert chosen(mask, 2, most=0.5) == [0, 2]
    assert chosen(mask, 4, most=0.5) == [0, 2, 3]


@pytest.mark.slow
def test_coverage_covers_more_with_less_overlap_on_real_data() -> None:
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    tables = {}
    for select in ("largest", "coverage"):
        tosica.pp.build_mask(adata, select=select, max_gene_sets=60, max_jaccard=1)
        tables[select] = tosica.get.mask_coverage(adata)
        assert adata.uns["tosica_mask"]["params"]["select"] == select
    assert tables["coverage"]["n_covered"].iloc[-1] > 1.1 * tables["largest"]["n_covered"].iloc[-1]
    assert tables["coverage"]["max_jaccard"].mean() < 0.8 * tables["largest"]["max_jaccard"].mean()
    tosica.pp.build_mask(adata, max_jaccard=0.25)
    assert tosica.get.mask_coverage(adata)["max_jaccard"].max() <= 0.25


def test_collections_are_pruned_by_default_and_sets_of_ones_own_are_not() -> None:
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    tosica.pp.build_mask(adata)
    assert adata.uns["tosica_mask"]["params"]["max_jaccard"] == 0.5
    assert tosica.get.mask_coverage(adata)["max_jaccard"].max() <= 0.5
    tosica.pp.build_mask(adata, tosica.gs.load("human_gobp"))
    assert adata.uns["tosica_mask"]["params"]["max_jaccard"] == 1
    assert tosica.get.mask_coverage(adata)["max_jaccard"].max() > 0.9


def test_variable_sets_are_those_whose_genes_vary() -> None:
    rng = np.random.default_rng(0)
    counts = rng.poisson(3, (400, 60))
    counts[:200, :10] *= 5
    adata = AnnData(counts.astype(np.float32))
    adata.var_names = [f"G{i}" for i in range(60)]
    sets = {f"s{i}": [f"G{j}" for j in range(i * 10, i * 10 + 10)] for i in range(6)}
    tosica.pp.build_mask(adata, sets, select="variable", max_gene_sets=1, max_jaccard=0.9)
    assert list(adata.uns["tosica_mask"]["gene_sets"]) == ["s0"]


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix, sp.csc_matrix])
def test_variability_of_counts_and_of_their_logarithm(form: Any) -> None:
    rng = np.random.default_rng(1)
    counts = rng.poisson(rng.gamma(1, 2, 80), (300, 80)).astype(np.float32)
    counts[:, 5] = 0
    of_counts = AnnData(form(counts))
    before = of_counts.X.copy()
    logs = AnnData(counts.copy())
    sc.pp.normalize_total(logs, target_sum=1e4)
    sc.pp.log1p(logs)
    found = gene_variability(of_counts)
    assert abs(before - of_counts.X).max() == 0
    np.testing.assert_allclose(found, gene_variability(logs), rtol=1e-3, atol=1e-3)
    assert found[5] == 0
    assert np.abs(found).max() <= 10
    of_counts.layers["other"] = of_counts.X
    np.testing.assert_array_equal(found, gene_variability(of_counts, "other"))


def test_variability_where_nothing_varies() -> None:
    assert (gene_variability(AnnData(np.ones((3, 4), dtype=np.float32))) == 0).all()


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (np.full((3, 4), -1.0), "adata.X holds negative values"),
        (None, "adata.X is empty (None)"),
    ],
)
def test_variable_needs_expression(x: Any, sentence: str) -> None:
    adata = AnnData(x, shape=None if x is not None else (3, 4))
    adata.var_names = list("ABCD")
    with pytest.raises(ValueError, match=re.escape(sentence)):
        tosica.pp.build_mask(adata, {"s": list("ABCD")}, min_genes=1, select="variable")
    assert not adata.varm
