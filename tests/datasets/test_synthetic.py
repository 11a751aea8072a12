"""Synthetic counts: what they promise of numbers, labels, batches and planted gene sets."""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.stats import mannwhitneyu

import tosica

synthetic = tosica.datasets.synthetic


@settings(max_examples=8)
@given(
    n_labels=st.integers(2, 8),
    extra=st.integers(0, 1500),
    n_vars=st.integers(250, 700),
    n_batches=st.integers(1, 4),
    n_gene_sets=st.integers(8, 60),
    seed=st.integers(0, 2**31),
)
def test_what_holds_for_any_parameters(
    n_labels: int, extra: int, n_vars: int, n_batches: int, n_gene_sets: int, seed: int
) -> None:
    params = {"n_labels": n_labels, "n_batches": n_batches, "n_gene_sets": n_gene_sets, "seed": seed}
    adata = synthetic(2 * n_labels + extra, n_vars, **params)
    counts = adata.X
    assert adata.shape == (2 * n_labels + extra, n_vars)
    assert isinstance(counts, sparse.csr_matrix)
    assert counts.dtype == np.float32
    # Looked at, not read from the flag that scipy keeps.
    rows = np.repeat(np.arange(adata.n_obs), np.diff(counts.indptr))
    assert np.all(np.diff(rows * n_vars + counts.indices) > 0)
    assert np.all(counts.data >= 1)
    assert np.array_equal(counts.data, np.round(counts.data))
    assert np.diff(counts.indptr).min() >= 1
    assert adata.obs_names.is_unique
    assert adata.var_names.is_unique
    labels, batches = adata.obs["cell_type"], adata.obs["batch"]
    assert labels.cat.categories.size == n_labels
    assert labels.value_counts().min() >= 2
    assert batches.cat.categories.size == n_batches
    assert np.ptp(batches.value_counts()) <= 1
    # The default mask holds the sets that are active, and each label has its own.
    truth = adata.uns["synthetic"]
    assert list(truth["gene_sets"]) == list(labels.cat.categories)
    raised = [name for names in truth["gene_sets"].values() for name in names]
    assert len(raised) == len(set(raised)) == n_labels * min(3, n_gene_sets // n_labels)
    tosica.pp.build_mask(adata, max_gene_sets=n_gene_sets, max_jaccard=1)
    assert adata.varm["tosica_mask"].shape[1] == n_gene_sets
    assert set(raised) <= set(adata.uns["tosica_mask"]["gene_sets"])


def test_sizes_follow_real_data() -> None:
    """Held against the 3 000 most variable genes of the Kang PBMCs, whose numbers these are."""
    adata = synthetic(30_000)
    depth = np.asarray(adata.X.sum(axis=1)).ravel()
    assert 300 < np.median(depth) < 450
    assert 0.4 < np.log(depth).std() < 0.75
    assert 0.04 < adata.X.nnz / np.prod(adata.shape) < 0.08
    of_gene = np.sort(np.asarray(adata.X.sum(axis=0)).ravel())[::-1]
    assert 0.35 < of_gene[:10].sum() / of_gene.sum() < 0.6
    share = adata.obs["cell_type"].value_counts(normalize=True, sort=False)
    assert share.is_monotonic_decreasing
    assert 0.35 < share.iloc[0] < 0.45
    assert 0.0003 < share.iloc[-1] < 0.0012


def test_more_genes_than_the_collection_has() -> None:
    n_known = int(tosica.gs.collections().at["human_gobp", "n_genes"])
    adata = synthetic(100, n_known + 50, n_labels=3)
    assert list(adata.var_names[-50:]) == [f"SYNTHETIC{i}" for i in range(1, 51)]
    assert adata.X[:, n_known:].nnz > 0
    assert set(adata.var_names[:n_known]) == set().union(*tosica.gs.load("human_gobp").values())


@pytest.mark.parametrize("batch_effect", [0, 0.5])
def test_a_batch_changes_each_gene_by_a_log_normal_factor(batch_effect: float) -> None:
    adata = synthetic(6000, 1000, n_labels=2, batch_effect=batch_effect)
    first = (adata.obs["batch"] == "batch_1").to_numpy()
    sums = [np.asarray(adata.X[rows].sum(axis=0)).ravel() for rows in (first, ~first)]
    often = np.minimum(*sums) > 300
    # The ratio of two batches has twice the variance of one.
    spread = np.std(np.log(sums[0][often] / sums[1][often]))
    assert spread == pytest.approx(batch_effect * np.sqrt(2), rel=0.2, abs=0.08)


def test_planted_gene_sets_tell_their_label_apart() -> None:
    adata = synthetic(4000, seed=3)
    normalised = sc.pp.normalize_total(adata, target_sum=1e4, copy=True)
    gene_sets = tosica.gs.load("human_gobp")
    labels = normalised.obs["cell_type"].to_numpy()
    frequent = [label for label, n in adata.obs["cell_type"].value_counts().items() if n >= 100]
    assert len(frequent) >= 5
    for label in frequent:
        inside = labels == label
        for name in adata.uns["synthetic"]["gene_sets"][label]:
            genes = normalised.var_names.isin(gene_sets[name])
            summed = np.asarray(normalised.X[:, genes].sum(axis=1)).ravel()
            test = mannwhitneyu(summed[inside], summed[~inside], alternative="greater")
            assert test.statistic / (inside.sum() * (~inside).sum()) > 0.62, (label, name)
            # No label that does not raise the set has more of it.
            means = {other: summed[labels == other].mean() for other in frequent}
            assert max(means, key=lambda other: means[other]) == label, name


@pytest.mark.filterwarnings("ignore:.*zarr:UserWarning")
@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
def test_the_seed_decides_and_files_hold_it(suffix: str, tmp_path) -> None:
    np.random.seed(1)  # noqa: NPY002  the global state must not matter
    adata = synthetic(1500, 400, n_labels=3, seed=5)
    getattr(adata, f"write_{suffix}")(tmp_path / "cells")
    back = getattr(anndata, f"read_{suffix}")(tmp_path / "cells")
    np.random.seed(2)  # noqa: NPY002
    again = synthetic(1500, 400, n_labels=3, seed=5)
    assert (back.X != again.X).nnz == 0
    pd.testing.assert_frame_equal(back.obs, again.obs, check_index_type=False)
    assert list(back.var_names) == list(again.var_names)
    assert back.uns["synthetic"]["params"] == again.uns["synthetic"]["params"]
    for label, names in again.uns["synthetic"]["gene_sets"].items():
        assert list(back.uns["synthetic"]["gene_sets"][label]) == list(names)
    # Streams differ from one another, and so do seeds.
    assert (again.X[:500] != again.X[1000:]).nnz > 1000
    assert (again.X != synthetic(1500, 400, n_labels=3, seed=6).X).nnz > 1000


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"n_obs": 25}, "n_obs=25 .*n_labels=13"),
        ({"n_obs": 30, "n_batches": 31}, "n_batches=31"),
        ({"n_gene_sets": 12}, "n_gene_sets=12"),
        ({"n_vars": 200}, r"n_vars=200 genes fill only \d+ gene sets of human_gobp.* raise n_vars"),
        ({"n_gene_sets": 10_000}, "not n_gene_sets=10000: raise n_vars or lower n_gene_sets"),
    ],
)
def test_wrong_input(wrong: dict[str, int], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        synthetic(**wrong)
