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
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

import tosica
from tosica.datasets import _droplets

synthetic = tosica.datasets.synthetic


@pytest.fixture(scope="module")
def adata() -> anndata.AnnData:
    return synthetic(4000, seed=3)


def _log_normalised(adata: anndata.AnnData) -> anndata.AnnData:
    adata = adata.copy()
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    return adata


def _assert_equal(a: anndata.AnnData, b: anndata.AnnData) -> None:
    assert a.shape == b.shape
    assert (a.X != b.X).nnz == 0
    pd.testing.assert_frame_equal(a.obs, b.obs)
    pd.testing.assert_frame_equal(a.var, b.var)
    a_truth, b_truth = a.uns["synthetic"], b.uns["synthetic"]
    assert a_truth["params"] == b_truth["params"]
    assert list(a_truth["gene_sets"]) == list(b_truth["gene_sets"])
    for label, names in a_truth["gene_sets"].items():
        assert list(names) == list(b_truth["gene_sets"][label])


# ------------------------------------------------------------------------------------ the numbers


@settings(max_examples=15)
@given(
    n_labels=st.integers(2, 8),
    extra=st.integers(0, 1500),
    n_vars=st.integers(250, 700),
    n_batches=st.integers(1, 4),
    n_gene_sets=st.integers(8, 60),
    batch_effect=st.floats(0, 5),
    seed=st.integers(0, 2**31),
)
def test_what_holds_for_any_parameters(
    n_labels: int,
    extra: int,
    n_vars: int,
    n_batches: int,
    n_gene_sets: int,
    batch_effect: float,
    seed: int,
) -> None:
    adata = synthetic(
        2 * n_labels + extra,
        n_vars,
        n_labels=n_labels,
        n_batches=n_batches,
        n_gene_sets=n_gene_sets,
        batch_effect=batch_effect,
        seed=seed,
    )
    counts = adata.X
    assert adata.shape == (2 * n_labels + extra, n_vars)
    assert isinstance(counts, sparse.csr_matrix)
    assert counts.dtype == np.float32
    assert counts.has_canonical_format
    # Looked at, not read from the flag that scipy keeps.
    rows = np.repeat(np.arange(adata.n_obs), np.diff(counts.indptr))
    assert np.all(np.diff(rows * n_vars + counts.indices) > 0)
    assert np.all(counts.data >= 1)
    assert np.array_equal(counts.data, np.round(counts.data))
    assert np.diff(counts.indptr).min() >= 1

    assert adata.obs_names.is_unique
    assert adata.var_names.is_unique
    labels, batches = adata.obs["cell_type"], adata.obs["batch"]
    assert isinstance(labels.dtype, pd.CategoricalDtype)
    assert isinstance(batches.dtype, pd.CategoricalDtype)
    assert labels.cat.categories.size == n_labels
    assert labels.value_counts().min() >= 2
    assert batches.cat.categories.size == n_batches
    assert np.ptp(batches.value_counts()) <= 1

    truth = adata.uns["synthetic"]
    assert list(truth["gene_sets"]) == list(labels.cat.categories)
    raised = [name for names in truth["gene_sets"].values() for name in names]
    assert len(raised) == len(set(raised)) == n_labels * min(3, n_gene_sets // n_labels)


def test_as_many_cells_as_needed_are_enough() -> None:
    adata = synthetic(26, seed=1)
    assert (adata.obs["cell_type"].value_counts() == 2).all()


def test_sizes_follow_real_data() -> None:
    """Held against the 3 000 most variable genes of the Kang PBMCs, whose numbers these are."""
    adata = synthetic(30_000)
    depth = np.asarray(adata.X.sum(axis=1)).ravel()
    assert 300 < np.median(depth) < 450
    assert 0.4 < np.log(depth).std() < 0.75
    assert 0.04 < adata.X.nnz / np.prod(adata.shape) < 0.08
    of_gene = np.sort(np.asarray(adata.X.sum(axis=0)).ravel())[::-1]
    assert 0.35 < of_gene[:10].sum() / of_gene.sum() < 0.6
    assert 0.85 < of_gene[:1000].sum() / of_gene.sum() < 0.97

    share = adata.obs["cell_type"].value_counts(normalize=True, sort=False)
    assert share.is_monotonic_decreasing
    assert 0.35 < share.iloc[0] < 0.45
    assert 0.0003 < share.iloc[-1] < 0.0012


def test_depth_is_log_normal_within_a_label(adata: anndata.AnnData) -> None:
    of_label = adata[adata.obs["cell_type"] == "type_01"].X
    logs = np.log(np.asarray(of_label.sum(axis=1)).ravel())
    standard = (logs - logs.mean()) / logs.std()
    assert 0.3 < logs.std() < 0.45
    assert abs(np.mean(standard**3)) < 0.3
    assert abs(np.mean(standard**4) - 3) < 0.6


# ------------------------------------------------------------------------------ genes and batches


def test_genes_are_the_collections_own(adata: anndata.AnnData) -> None:
    known = {gene for genes in tosica.gs.load("human_gobp").values() for gene in genes}
    assert set(adata.var_names) <= known
    other = synthetic(100, 4000, n_labels=3, seed=9)
    assert list(other.var_names[:3000]) == list(adata.var_names)


def test_more_genes_than_the_collection_has() -> None:
    n_known = int(tosica.gs.collections().at["human_gobp", "n_genes"])
    adata = synthetic(100, n_known + 50, n_labels=3)
    assert list(adata.var_names[-50:]) == [f"SYNTHETIC{i}" for i in range(1, 51)]
    assert adata.X[:, n_known:].nnz > 0
    tosica.pp.build_mask(adata)
    assert adata.varm["tosica_mask"][n_known:].nnz == 0


@pytest.mark.parametrize(("n_vars", "n_gene_sets"), [(3000, 300), (400, 300), (500, 40)])
def test_the_mask_holds_the_gene_sets_that_are_active(n_vars: int, n_gene_sets: int) -> None:
    adata = synthetic(100, n_vars, n_labels=4, n_gene_sets=n_gene_sets)
    tosica.pp.build_mask(adata, max_gene_sets=n_gene_sets, max_jaccard=1)
    tokens = adata.uns["tosica_mask"]["gene_sets"]
    assert tokens.size == n_gene_sets
    _, names, members = _droplets._gene_sets(n_vars, n_gene_sets)
    assert names == list(tokens)
    assert (adata.varm["tosica_mask"] != members.T).nnz == 0
    for raised in adata.uns["synthetic"]["gene_sets"].values():
        assert set(raised) <= set(tokens)


def test_a_batch_changes_each_gene_by_a_log_normal_factor() -> None:
    def spread(batch_effect: float) -> float:
        adata = synthetic(6000, 1000, n_labels=2, batch_effect=batch_effect)
        first = (adata.obs["batch"] == "batch_1").to_numpy()
        sums = [np.asarray(adata.X[rows].sum(axis=0)).ravel() for rows in (first, ~first)]
        often = np.minimum(*sums) > 300
        assert often.sum() > 100
        return float(np.std(np.log(sums[0][often] / sums[1][often])))

    assert spread(0) < 0.08
    # The ratio of two batches has twice the variance of one.
    assert spread(0.25) == pytest.approx(0.25 * np.sqrt(2), rel=0.2)
    assert spread(0.5) == pytest.approx(0.5 * np.sqrt(2), rel=0.2)


# ---------------------------------------------------------------------------------- what is planted


def test_a_linear_model_learns_the_labels_but_not_all_cells(adata: anndata.AnnData) -> None:
    normalised = _log_normalised(adata)
    # The frequent labels: of the rarest there are two cells on each side.
    often = normalised.obs["cell_type"].isin([f"type_{i:02d}" for i in range(1, 7)]).to_numpy()
    normalised = normalised[often]
    labels = normalised.obs["cell_type"].to_numpy().astype(str)
    middle = normalised.n_obs // 2
    model = LogisticRegression(C=0.01, max_iter=1000).fit(normalised.X[:middle], labels[:middle])
    score = balanced_accuracy_score(labels[middle:], model.predict(normalised.X[middle:]))
    assert 0.6 < score < 0.99


def test_planted_gene_sets_tell_their_label_apart(adata: anndata.AnnData) -> None:
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
            assert test.pvalue < 1e-6, (label, name)
            assert test.statistic / (inside.sum() * (~inside).sum()) > 0.62, (label, name)
            # No label that does not raise the set has more of it.
            means = {other: summed[labels == other].mean() for other in frequent}
            assert max(means, key=lambda other: means[other]) == label, name


def test_planted_gene_sets_hardly_overlap(adata: anndata.AnnData) -> None:
    gene_sets = tosica.gs.load("human_gobp")
    here = set(adata.var_names)
    raised = [here & set(gene_sets[name]) for names in adata.uns["synthetic"]["gene_sets"].values() for name in names]
    shared = [len(a & b) / min(len(a), len(b)) for i, a in enumerate(raised) for b in raised[i + 1 :]]
    assert max(shared) < 0.35
    assert np.mean(shared) < 0.03


# -------------------------------------------------------------------------------- seeds and blocks


def test_the_seed_decides() -> None:
    np.random.seed(1)  # noqa: NPY002  the global state must not matter
    first = synthetic(300, 400, n_labels=3, seed=5)
    np.random.seed(2)  # noqa: NPY002
    _assert_equal(first, synthetic(300, 400, n_labels=3, seed=5))
    other = synthetic(300, 400, n_labels=3, seed=6)
    assert (first.X != other.X).nnz > 1000
    assert list(first.obs["cell_type"]) != list(other.obs["cell_type"])


def test_cells_do_not_depend_on_the_block_size() -> None:
    plan = _droplets.plan(3500, 400, n_labels=3, n_batches=2, n_gene_sets=30, batch_effect=0.25, seed=4)
    by_size = {n: list(_droplets.draw(plan, cells_at_once=n)) for n in (1, 1000, 2000, 10_000)}
    assert [len(blocks) for blocks in by_size.values()] == [4, 4, 2, 1]
    whole = by_size[10_000][0]
    assert whole.shape == (3500, 400)
    for blocks in by_size.values():
        assert (sparse.vstack(blocks, format="csr") != whole).nnz == 0
    # Streams differ from one another, so no cells come twice.
    assert (whole[:1000] != whole[1000:2000]).nnz > 1000


@pytest.mark.filterwarnings("ignore:.*zarr:UserWarning")
@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
def test_round_trip(suffix: str, tmp_path) -> None:
    adata = synthetic(200, 400, n_labels=3)
    path = tmp_path / f"cells.{suffix}"
    if suffix == "h5ad":
        adata.write_h5ad(path)
        back = anndata.read_h5ad(path)
    else:
        adata.write_zarr(path)
        back = anndata.read_zarr(path)
    assert back.X.dtype == np.float32
    assert (back.X != adata.X).nnz == 0
    for key in ("cell_type", "batch"):
        assert list(back.obs[key]) == list(adata.obs[key])
        assert list(back.obs[key].cat.categories) == list(adata.obs[key].cat.categories)
    assert back.uns["synthetic"]["collection"] == "human_gobp"
    assert back.uns["synthetic"]["params"] == adata.uns["synthetic"]["params"]
    for label, names in adata.uns["synthetic"]["gene_sets"].items():
        assert list(back.uns["synthetic"]["gene_sets"][label]) == list(names)


# ------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("wrong", "error", "sentence"),
    [
        (
            {"n_obs": 25},
            ValueError,
            r"^n_obs=25 cells are too few for n_labels=13, because every label gets at least two: "
            r"raise n_obs to 26 or more, or lower n_labels\.$",
        ),
        (
            {"n_obs": 30, "n_batches": 31},
            ValueError,
            r"^n_obs=30 cells cannot fill n_batches=31: raise n_obs or lower n_batches\.$",
        ),
        (
            {"n_gene_sets": 12},
            ValueError,
            r"^n_gene_sets=12 must not be below n_labels=13, because every label has a gene set "
            r"of its own: raise n_gene_sets or lower n_labels\.$",
        ),
        (
            {"n_vars": 200},
            ValueError,
            r"^n_vars=200 genes fill only \d+ gene sets of human_gobp with at least 5 genes, not "
            r"n_gene_sets=300: raise n_vars or lower n_gene_sets\.$",
        ),
        (
            {"n_gene_sets": 10_000},
            ValueError,
            r"^n_vars=3000 genes fill only \d+ gene sets .*, not n_gene_sets=10000: ",
        ),
    ],
)
def test_wrong_input(wrong: dict, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        synthetic(**wrong)
