"""A query's cells on the genes of a model, whatever its genes' order and number."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from tosica import gs
from tosica.data import (
    MODALITY_KINDS,
    AlignedCells,
    CellMatrix,
    LogNormalization,
    Scale,
)

N_CELLS, N_GENES = 30, 20
GENES = pd.Index([f"CD{i}" for i in range(1, N_GENES + 1)])
COUNTS = Scale("counts", 1e4, "genes")


def align(adata, genes, scale, *, layer=None, use_raw=False, **kwargs):
    matrix = CellMatrix(adata, layer=layer, use_raw=use_raw)
    return AlignedCells(MODALITY_KINDS["rna"], matrix, genes, scale, **kwargs)


OVER_MATRIX = Scale("log1p", 1e4, "matrix")


@pytest.fixture
def counts():
    counts = np.random.default_rng(0).poisson(1.0, (N_CELLS, N_GENES)) + 0.0
    counts[:, [0, 9, 19]] += 1
    return counts


def query(matrix, names=GENES):
    obs = pd.DataFrame(index=[f"cell{i}" for i in range(matrix.shape[0])])
    return ad.AnnData(matrix, obs=obs, var=pd.DataFrame(index=list(names)))


def together(adata, scale=COUNTS, genes=GENES, **kwargs):
    """Join the values of all batches, after a look at each."""
    size = kwargs.setdefault("batch_size", 256)
    batches = list(align(adata, genes, scale, **kwargs))
    assert [batch.offset for batch in batches] == list(range(0, adata.n_obs, size))
    assert all(len(batch.values) == size for batch in batches[:-1])
    for batch in batches:
        assert batch.values.dtype == np.float32
        assert batch.values.shape[1] == len(genes)
        assert batch.values.flags.c_contiguous
        assert batch.values.flags.writeable
    return np.concatenate([batch.values for batch in batches])


def normalized(counts):
    """Counts per 10 000, log-normalized."""
    return LogNormalization().normalize_block(counts)


# ------------------------------------------------------------------ genes


@given(
    st.permutations(list(range(N_GENES))),
    st.integers(N_GENES - 1, N_GENES),
    st.integers(0, 15),
    st.booleans(),
    st.integers(1, 40),
)
@settings(max_examples=20)
def test_every_gene_goes_to_its_place(order, n_kept, n_extra, sparse, batch_size):
    rng = np.random.default_rng(n_extra)
    kept_genes = order[:n_kept]
    names = [*GENES[kept_genes], *(f"extra{i}" for i in range(n_extra))]
    values = rng.gamma(1, 1, (9, len(names))) * (rng.random((9, len(names))) < 0.7)
    values[:, 0] += 0.1
    mixed = rng.permutation(len(names))
    matrix = sp.csr_matrix(values[:, mixed]) if sparse else values[:, mixed]
    adata = query(matrix, np.array(names)[mixed])
    got = together(adata, OVER_MATRIX, batch_size=batch_size)
    expected = np.zeros((9, N_GENES), dtype=np.float32)
    expected[:, kept_genes] = values[:, :n_kept]
    assert_array_equal(got, expected)
    measured = align(adata, GENES, COUNTS).measured
    assert_array_equal(measured, np.isin(np.arange(N_GENES), kept_genes))


def test_edges_of_what_is_accepted(counts):
    together(query(counts[:, :19], GENES[:19]))  # 95 %, no warning
    with pytest.warns(UserWarning, match=r"only 18 of the model's 20 genes \(90%\)"):
        together(query(counts[:, :18], GENES[:18]))
    with pytest.warns(UserWarning, match=r"only 10 of the model's 20 genes \(50%\)"):
        together(query(counts[:, :10], GENES[:10]))
    sentence = r"only 9 of the model's 20 genes \(45%\) .*; if genes were left out"
    with pytest.raises(ValueError, match=sentence):
        align(query(counts[:, :9], GENES[:9]), GENES, COUNTS)


def _raw(adata):
    adata.var["symbol"] = list(GENES)
    adata.var_names = [f"ENSG{i:011d}" for i in range(N_GENES)]
    adata.raw = adata.copy()
    return adata


# What all names share, or what R makes of them, is no part of them.
DECORATED = {
    "white space": lambda name: f" {name}\t",
    "a genome": lambda name: f"GRCh38-2020-A_{name}",
    "two marks": lambda name: f"mm10___{name}",
    "a modality": lambda name: f"rna:{name}",
    "a suffix": lambda name: f"{name}-RNA",
    "R's dots": lambda name: name.replace("-", "."),
    "quotes": lambda name: f'"{name}"',
    "bytes as text": lambda name: f"b'{name}'",
}


def assert_same(adata, counts, names=GENES, **kwargs):
    """A query gives what plain counts of the genes give."""
    got = together(adata, genes=kwargs.pop("genes", names), **kwargs)
    assert_allclose(got, together(query(counts, names), genes=names), rtol=1e-3)


@pytest.mark.parametrize("names", DECORATED)
@pytest.mark.parametrize("of_model", [False, True])
def test_names_with_something_around_them(names, of_model, counts):
    genes = pd.Index([f"{name}-{i % 3}A" for i, name in enumerate(GENES)])
    decorated = pd.Index([DECORATED[names](name) for name in genes])
    query_names, model_names = (genes, decorated) if of_model else (decorated, genes)
    assert_same(query(counts, query_names), counts, genes, genes=model_names)


def test_names_in_a_column_of_raw(counts):
    assert_same(_raw(query(counts, GENES)), counts, use_raw=True)


def test_why_too_few_genes_are_found(counts):
    with pytest.raises(ValueError, match=r"transpose it, as by adata\.T"):
        align(query(counts, GENES).T, GENES, COUNTS)
    with pytest.raises(
        ValueError,
        match=r"its names are such as '0_A', and those of the model such as ",
    ):
        align(query(counts, [f"{i}_A" for i in range(N_GENES)]), GENES, COUNTS)
    cut = query(counts, GENES)
    cut.raw = cut.copy()
    with pytest.raises(
        ValueError, match=r"adata\.raw has half of them or more: pass use_raw=True"
    ):
        align(cut[:, :3].copy(), GENES, COUNTS)


OTHERS = {
    "CLR": lambda rng: rng.normal(size=(60, 4)),
    "missing": lambda rng: np.full((60, 4), np.nan),
    "z-scores": lambda rng: np.round(rng.normal(size=(60, 4)), 1),
}


@pytest.mark.parametrize("unused", OTHERS)
@pytest.mark.parametrize("format_", [np.asarray, sp.csr_matrix])
def test_columns_that_are_not_used_may_hold_anything(unused, format_, counts):
    values = OTHERS[unused](np.random.default_rng(0))[: len(counts)]
    adata = query(format_(np.hstack([counts, values])), [*GENES, "a", "b", "c", "d"])
    assert_same(adata, counts)


DTYPES = ("float16", ">f4", ">f8", ">i4", "longdouble", "bool")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format_", [np.asarray, sp.csr_matrix])
def test_types_that_scipy_lacks(dtype, format_, counts):
    plain = np.minimum(counts, 1) if dtype == "bool" else counts
    # scipy makes no sparse matrix of some, but files hold them.
    x = (
        sp.csr_matrix(plain.astype("f4"))
        if format_ is sp.csr_matrix
        else plain.astype(dtype)
    )
    if sp.issparse(x):
        x.data = x.data.astype(dtype)
    adata = query(plain)
    adata.X = x
    assert_same(adata, plain)


def test_counts_whose_logarithm_was_undone(counts):
    assert_same(query(np.expm1(np.log1p(counts.astype(np.float32)))), counts)


# ------------------------------------------------------------------ cells


def test_writing_into_a_batch_leaves_the_query_alone(counts):
    adata = query(counts.astype(np.float32))
    for batch in align(adata, GENES, COUNTS):
        batch.values[:] = -1
    assert_array_equal(adata.X, counts)


# ------------------------------------------------------------------ genes by other names


def real_genes():
    """Approved symbols that have one Ensembl ID."""
    names = sc.datasets.pbmc68k_reduced().raw.var_names
    symbols = gs.map_genes(names, organism="human").dropna().unique()
    return list(
        gs.map_genes(symbols, to="ensembl", organism="human").dropna().index[:200]
    )


@pytest.mark.parametrize("turned", [False, True])
def test_query_and_model_in_other_identifiers(turned, caplog):
    symbols = real_genes()
    ids = [
        f"{name}.3" for name in gs.map_genes(symbols, to="ensembl", organism="human")
    ]
    theirs, ours = (symbols, ids) if turned else (ids, symbols)
    values = np.random.default_rng(0).poisson(2, (5, 200)).astype(np.float32)
    values[:, 0] += 1
    adata = query(values[:, ::-1], theirs[::-1])
    caplog.clear()
    got = together(adata, genes=pd.Index(ours))
    assert_allclose(got, normalized(values), rtol=1e-6)
    kind = "symbols" if turned else "Ensembl IDs"
    assert caplog.messages[0] == f"query: translated 200 {kind}"
    assert list(adata.var_names) == theirs[::-1]


# ------------------------------------------------------------------ droplets


@pytest.mark.parametrize(
    ("n_droplets", "n_genes", "is_warned_of"),
    [(30, 12_000, True), (9, 12_000, False), (30, 9_000, False)],
)
def test_a_raw_matrix_is_said_with_its_share_of_poor_cells(
    n_droplets, n_genes, is_warned_of
):
    rng = np.random.default_rng(0)
    cells = rng.binomial(1, 0.05, (10, n_genes))
    droplets = rng.binomial(1, 0.001, (n_droplets, n_genes))
    names = [f"G{i}" for i in range(n_genes)]
    counts = sp.csr_matrix(np.vstack([cells, droplets]), dtype=np.float64)
    adata = query(counts, names)
    batches = align(adata, pd.Index(names), COUNTS)
    if not is_warned_of:
        list(batches)
        return
    with pytest.warns(
        UserWarning, match="75% of the query's cells have fewer than 200"
    ):
        list(batches)
