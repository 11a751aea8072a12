"""Seurat objects from all file formats equal those in R, or the log names the differences."""

import logging
import subprocess
import sys
from pathlib import Path

import _r_files as r
import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal

import tosica

FLAGS = ("is_stim", "is_tcell_na")
# Files, with the arguments for what their conversion lost.
FILES = {
    "kang_seurat.rds": {},
    "kang_seurat_v5.rds": {},
    "kang_sce.rds": {},
    "kang.h5Seurat": {"na_strings": ["note"]},
    "kang_seuratdisk.h5ad": {"logicals": FLAGS, "na_strings": ["note"]},
    "kang_seuratdisk_chr.h5ad": {
        "logicals": FLAGS,
        "na_strings": ["note", "partial_label"],
    },
    "kang_seuratdisk_noscale.h5ad": {"logicals": FLAGS, "na_strings": ["note"]},
    "kang_seuratdisk_minimal.h5ad": {},
    "kang_sceasy.h5ad": {"na_strings": ["note"]},
    "kang_sceasy_counts.h5ad": {"na_strings": ["note"]},
}
CELLS = [f"cell{i}" for i in range(6)]
GENES = [f"G{i}" for i in range(5)]


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level(logging.INFO, "tosica")


@pytest.fixture(scope="module")
def truth(shared):
    path = shared / "seurat" / "kang_truth_obs.csv"
    return pd.read_csv(path, index_col=0, na_values=["NA_REAL"], keep_default_na=False)


@pytest.fixture(scope="module")
def levels(shared):
    lines = (shared / "seurat" / "kang_truth_levels.tsv").read_text().splitlines()
    return {line.split("\t")[0]: line.split("\t")[1:] for line in lines}


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(0)
    return sp.csr_matrix(rng.poisson(2, (len(CELLS), len(GENES))).astype(float))


def table(**columns):
    return r.frame(CELLS, **columns)


def plain(tmp_path, counts, **columns):
    assay = r.assay(r.sparse(counts, GENES, CELLS))
    return r.write(tmp_path / "seurat.rds", r.seurat(table(**columns), RNA=assay))


# ------------------------------------------------------------------------------- real objects


@pytest.mark.data
@pytest.mark.parametrize("name", FILES)
def test_cells_and_counts_are_those_of_r(shared, truth, levels, name):
    adata = tosica.io.read_seurat(shared / "seurat" / name, **FILES[name])
    assert set(adata.obs_names) == set(truth.index)
    expected = truth.loc[adata.obs_names]
    for column in adata.obs.columns.intersection(expected.columns):
        # sceasy turns a missing logical into TRUE for good.
        if "sceasy" in name and column == "is_tcell_na":
            continue
        got = adata.obs[column]
        want = expected[column]
        assert_array_equal(got.isna(), want.isna(), err_msg=column)
        is_known = want.notna()
        if column in FLAGS:
            assert got.dtype == ("boolean" if not is_known.all() else bool)
            got = got.astype(object).map({True: "TRUE", False: "FALSE"})
            want = want.astype(str).str.upper()
        elif column in levels and "chr" not in name:
            used = [
                level
                for level in levels[column]
                if level in set(want[is_known].astype(str))
            ]
            assert got.cat.categories.tolist() == used
            assert not got.cat.ordered
        elif column.startswith("donor_int"):
            assert got.dtype == ("Int32" if not is_known.all() else np.int32)
            want = want.astype("Float64").astype("Int32")
        elif column.startswith("n") and column != "note":
            assert_array_equal(got, want)
            continue
        assert (
            got[is_known].astype(str).tolist() == want[is_known].astype(str).tolist()
        ), column

    kang = ad.read_h5ad(shared / "kang_pbmc.h5ad")[adata.obs_names.tolist()]
    assert adata.var_names.tolist() == kang.var_names.str.replace("_", "-").tolist()
    assert (adata.layers["counts"] - kang.X).nnz == 0
    expected_x = sc.pp.log1p(
        sc.pp.normalize_total(kang, target_sum=1e4, copy=True), copy=True
    ).X
    assert_allclose(adata.X.toarray(), expected_x.toarray(), rtol=1e-5, atol=1e-6)
    assert adata.raw is None
    assert adata.X.dtype == adata.layers["counts"].dtype == np.float32
    assert not np.shares_memory(adata.X.indices, adata.layers["counts"].indices)


@pytest.mark.data
def test_reductions_and_loadings(shared):
    for name in ("kang_seurat.rds", "kang_seurat_v5.rds", "kang.h5Seurat"):
        adata = tosica.io.read_seurat(shared / "seurat" / name, **FILES[name])
        assert adata.obsm["X_pca"].shape == (700, 30)
        assert adata.obsm["X_umap"].shape == (700, 2)
        assert int(adata.var["highly_variable"].sum()) in (800, 1267)
        loads = np.abs(adata.varm["PCs"]).sum(1) > 0
        assert loads.sum() == 800
        # Scores are scaled expression times loadings: of the right genes they correlate.
        centered = adata.X.toarray() - adata.X.toarray().mean(0)
        spread = centered.std(0)
        scaled = np.clip(
            np.divide(centered, spread, where=spread > 0, out=centered), None, 10
        )
        score = scaled @ adata.varm["PCs"][:, 0]
        assert abs(np.corrcoef(score, adata.obsm["X_pca"][:, 0])[0, 1]) > 0.999


# ------------------------------------------------------------------------------- what is logged


@pytest.mark.data
def test_what_cannot_be_known_is_reported(shared, caplog):
    adata = tosica.io.read_seurat(shared / "seurat" / "kang_seuratdisk.h5ad")
    logged = caplog.text
    assert (
        "0, 1 and 2 in 'is_stim', 'is_tcell_na' may be FALSE, TRUE and missing"
        in logged
    )
    assert "the string 'NA' in 'note' may mean missing" in logged
    assert "counts were recovered exactly with 'nCount_RNA'" in logged
    assert "varm['PCs'], uns['neighbors'] dropped" in logged
    assert "X has all 1267 genes now, not the 800 variable ones" in logged
    assert sorted(adata.obs["is_tcell_na"].unique()) == [0, 1, 2]
    assert (adata.obs["note"] == "NA").any()

    tosica.io.read_seurat(shared / "seurat" / "kang_sceasy.h5ad")
    assert (
        "True in 'is_stim', 'is_tcell_na' may have been a missing value" in caplog.text
    )


# ------------------------------------------------------------------------------- objects made here


@pytest.mark.filterwarnings(
    "ignore:.*zarr",
    "ignore:Consolidated metadata",
    "ignore:.*specification.*:FutureWarning",
)
def test_types_of_columns(tmp_path, counts):
    mask = [0, 0, 1, 0, 0, 0]
    adata = tosica.io.read_seurat(
        plain(
            tmp_path,
            counts,
            kind=r.factor(
                np.ma.array([1, 3, 1, 3, 1, 1], mask=mask), ["b", "unused", "a"]
            ),
            flag=r.vector(np.ma.array([True, False] * 3, mask=mask)),
            sure=r.vector(np.array([True, False] * 3)),
            number=r.vector(np.ma.array(range(6), mask=mask)),
            share=r.vector(np.array([0.5, np.nan, 1, 2, 3, 4])),
            text=r.strings("x", None, "NA", "y", "é", ""),
        )
    )
    obs = adata.obs
    assert obs["kind"].cat.categories.tolist() == ["b", "a"]
    assert obs["kind"].isna().tolist() == [bool(m) for m in mask]
    expected = {
        "flag": "boolean",
        "sure": "bool",
        "number": "Int32",
        "share": "float64",
    }
    assert {name: str(obs[name].dtype) for name in expected} == expected
    assert obs["text"].isna().tolist() == [False, True, False, False, False, False]
    assert obs["text"].dropna().tolist() == ["x", "NA", "y", "é", ""]
    assert (adata.layers["counts"] != counts).nnz == 0
    assert adata.obs_names.tolist() == CELLS
    assert adata.var_names.tolist() == GENES
    adata.write_h5ad(tmp_path / "x.h5ad")
    adata.write_zarr(tmp_path / "x.zarr")


def test_active_identities_are_kept_if_no_column_has_them(tmp_path, counts):
    assay = r.assay(r.sparse(counts, GENES, CELLS))
    idents = r.factor(np.array([1, 2, 1, 2, 1, 2], dtype=np.int32), ["T", "B"])
    same = r.strings("T", "B", "T", "B", "T", "B")
    for columns, there in (({}, True), ({"kind": same}, False)):
        value = r.seurat(table(**columns), idents=idents, RNA=assay)
        adata = tosica.io.read_seurat(r.write(tmp_path / "seurat.rds", value))
        assert ("active_ident" in adata.obs) == there
    assert adata.obs["kind"].tolist() == ["T", "B"] * 3


def split(counts, *, overlap=False, forget=False):
    """Two samples in layers of their own, the second without the last gene, cells interleaved."""
    is_first = np.array([True, False, True, False, True, False])
    second = ~is_first
    if overlap:
        second = second | (np.arange(6) == 0)
    if forget:
        second = second & (np.arange(6) != 1)
    all_genes = np.ones(5, dtype=bool)
    fewer = np.arange(5) < 4
    layers = {
        "counts.s1": (counts[is_first], is_first, all_genes),
        "counts.s2": (counts[second][:, fewer], second, fewer),
    }
    return r.seurat(
        table(sample=r.strings(*"ababab")), RNA=r.assay5(layers, CELLS, GENES)
    )


def test_split_layers_are_joined_by_the_log_maps(tmp_path, counts):
    adata = tosica.io.read_seurat(r.write(tmp_path / "v5.rds", split(counts)))
    expected = counts.toarray()
    expected[1::2, 4] = 0
    assert_array_equal(adata.layers["counts"].toarray(), expected)


def test_cells_of_an_assay_in_another_order(tmp_path, counts):
    order = np.array([3, 0, 5, 1, 4, 2])
    layer = (counts[order], np.ones(6, dtype=bool), np.ones(5, dtype=bool))
    assay = r.assay5({"counts": layer}, [CELLS[i] for i in order], GENES)
    adata = tosica.io.read_seurat(
        r.write(tmp_path / "v5.rds", r.seurat(table(), RNA=assay))
    )
    assert_array_equal(adata.layers["counts"].toarray(), counts.toarray())


def test_several_assays(tmp_path, counts, caplog):
    proteins = r.assay(r.sparse(counts[:, :2], ["P1", "P2"], CELLS))
    rna = r.assay(r.sparse(counts, GENES, CELLS))
    path = r.write(tmp_path / "two.rds", r.seurat(table(), RNA=rna, ADT=proteins))
    assert tosica.io.read_seurat(path).var_names.tolist() == GENES
    assert (
        "the active assay, 'RNA', was read; there are also 'ADT' (assay=)"
        in caplog.text
    )
    assert tosica.io.read_seurat(path, assay="ADT").var_names.tolist() == ["P1", "P2"]
    with pytest.raises(KeyError, match=r"no assay 'SCT'; the object has 'RNA', 'ADT'"):
        tosica.io.read_seurat(path, assay="SCT")


@pytest.mark.parametrize("kind", ["sct", "integrated", "imputed", "version5"])
def test_measured_genes_are_read_in_place_of_computed_ones(
    kind, tmp_path, counts, caplog
):
    n = 4 if kind == "imputed" else 3
    computed = r.sparse(counts[:, :n], GENES[:n], CELLS)
    of, slots, name = "Assay", {"counts": r.empty(), "data": computed}, kind
    if kind == "sct":
        of, slots, name = "SCTAssay", {"counts": computed, "data": computed}, "Spatial2"
    measured = r.assay(r.sparse(counts, GENES, CELLS))
    if kind == "version5":
        layer = (counts, np.ones(6, dtype=bool), np.ones(5, dtype=bool))
        measured = r.assay5({"counts": layer}, CELLS, GENES)
    assays = {"Spatial": measured, name: r.assay(**slots, of=of)}
    value = r.seurat(table(), active=name, **assays)
    path = r.write(tmp_path / "computed.rds", value)
    adata = tosica.io.read_seurat(path)
    assert adata.var_names.tolist() == GENES
    assert_array_equal(adata.layers["counts"].toarray(), counts.toarray())
    assert f"the active assay, {name!r}, was computed from others" in caplog.text
    assert tosica.io.read_seurat(path, assay=name).var_names.tolist() == GENES[:n]


def test_what_an_object_has_besides_is_logged(tmp_path, counts, caplog):
    assays = {
        "SCT": r.assay(r.sparse(counts, GENES, CELLS), of="SCTAssay"),
        "RNA": r.assay(r.sparse(counts, GENES, CELLS)),
    }
    value = r.seurat(
        table(), active="SCT", images={"slice1": r.s4("VisiumV1")}, **assays
    )
    tosica.io.read_seurat(r.write(tmp_path / "sct.rds", value), assay="SCT")
    assert (
        "'SCT' holds counts that sctransform corrected, whose logarithm" in caplog.text
    )
    assert "images and the positions of spots were left out" in caplog.text


def test_without_data_x_is_normalized_here(tmp_path, counts):
    adata = tosica.io.read_seurat(plain(tmp_path, counts))
    dense = counts.toarray()
    expected = np.log1p(dense / dense.sum(1, keepdims=True) * 1e4)
    assert_allclose(adata.X.toarray(), expected, rtol=1e-6)


# ------------------------------------------------------------------------------- counts


def converted(tmp_path, values, obs=None, **options):
    adata = ad.AnnData(
        sp.csr_matrix(values),
        obs=pd.DataFrame(obs, index=[f"c{i}" for i in range(len(values))]),
        var=pd.DataFrame(index=[f"G{i}" for i in range(values.shape[1])]),
        **options,
    )
    adata.write_h5ad(tmp_path / "x.h5ad")
    return tmp_path / "x.h5ad"


@pytest.fixture(scope="module")
def many_counts():
    rng = np.random.default_rng(1)
    return rng.poisson(rng.gamma(1, 1, 60), (40, 60)).astype(float)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("column", ["nCount_RNA", "depth"])
def test_counts_come_back_from_logarithms(tmp_path, many_counts, dtype, column, caplog):
    # As in an object that was cut down to some genes after it had been normalized.
    total = many_counts.sum(1) + 77
    data = np.log1p(many_counts / total[:, None] * 1e4).astype(dtype)
    adata = tosica.io.read_seurat(converted(tmp_path, data, {column: total}))
    assert_array_equal(adata.layers["counts"].toarray(), many_counts)
    how = (
        "with 'nCount_RNA'"
        if column == "nCount_RNA"
        else "from each cell's smallest value"
    )
    assert f"counts were recovered exactly {how}" in caplog.text


def test_counts_that_are_not_whole_are_not_recovered(tmp_path, many_counts, caplog):
    data = np.log1p(
        many_counts * np.random.default_rng(2).uniform(0.5, 1, many_counts.shape)
    )
    adata = tosica.io.read_seurat(converted(tmp_path, data))
    assert "counts" not in adata.layers
    assert "there are no counts, and they cannot be recovered" in caplog.text


def test_counts_are_not_recovered_without_ones(tmp_path, many_counts):
    even = many_counts * 2
    data = np.log1p(even / even.sum(1, keepdims=True) * 1e4)
    data[:, 0] = np.log1p(
        3 * 1e4 / even.sum(1)
    )  # threes among twos: the smallest count is not one
    assert "counts" not in tosica.io.read_seurat(converted(tmp_path, data)).layers


def test_fractions_are_no_counts(tmp_path, counts, caplog):
    data = counts.copy()
    data.data = np.log1p(data.data)
    value = r.seurat(
        table(),
        RNA=r.assay(
            r.sparse(counts * 0.37, GENES, CELLS), r.sparse(data, GENES, CELLS)
        ),
    )
    tosica.io.read_seurat(r.write(tmp_path / "soup.rds", value))
    assert "the stored counts hold fractions" in caplog.text


# ------------------------------------------------------------------------------- memory


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux reports a process's peak"
)
def test_memory_follows_the_matrix(tmp_path):
    rng = np.random.default_rng(0)
    n_cells = 20_000
    n_genes = 1000
    per_cell = 200
    genes = np.sort(
        rng.permuted(np.tile(np.arange(n_genes), (n_cells, 1)), axis=1)[:, :per_cell], 1
    )
    matrix = sp.csr_matrix(
        (
            np.ones(n_cells * per_cell),
            genes.ravel(),
            np.arange(0, n_cells * per_cell + 1, per_cell),
        ),
        shape=(n_cells, n_genes),
    )
    cells = [f"c{i}" for i in range(n_cells)]
    names = [f"G{i}" for i in range(n_genes)]
    value = r.seurat(
        r.frame(cells, n=r.vector(np.ones(n_cells))),
        RNA=r.assay(r.sparse(matrix, names, cells)),
    )
    path = r.write(tmp_path / "big.rds", value)
    code = (
        # Packages of tosica are imported when they are first used.
        "import pathlib, rdata, sys, tosica.io, tosica.model\n"
        "status = pathlib.Path('/proc/self/status')\n"
        # Not getrusage, which includes the memory of the parent process.
        "peak = lambda: int(status.read_text().partition('VmHWM:')[2].split()[0]) * 1024\n"
        "before = peak()\n"
        "adata = tosica.io.read_seurat(sys.argv[1])\n"
        "print(adata.n_obs, peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    n_read, peak = map(float, done.stdout.split())
    assert n_read == n_cells
    # R stores a value of a sparse matrix in 12 bytes; rdata holds the unpacked file besides.
    assert peak < 5 * 12 * matrix.nnz


# ------------------------------------------------------------------------------- errors


def refused(path, sentence, error=ValueError, **kwargs):
    with pytest.raises(error, match=sentence):
        tosica.io.read_seurat(path, **kwargs)


def other_objects(counts):
    on_disk = r.s4(
        "IterableMatrix", Dimnames=r.plain_list(r.strings(*GENES), r.strings(*CELLS))
    )
    peaks = r.assay(r.sparse(counts, GENES, CELLS), of="ChromatinAssay")
    duplicated = r.assay(r.sparse(counts, ["G0", *GENES[:-1]], CELLS))
    return {
        "The object has neither counts nor log-normalized values": r.seurat(
            table(), RNA=r.assay(r.empty())
        ),
        "The object has neither .* save one of them in R": r.seurat(
            table(), RNA=r.assay(r.sparse(counts * 0.3, GENES, CELLS))
        ),
        "holds an R object of class data.frame, not a Seurat object": table(),
        "type STR, not a Seurat object": r.strings("a"),
        "Layer 'counts.s2' of assay 'RNA' overlaps .* JoinLayers": split(
            counts, overlap=True
        ),
        "1 cells of assay 'RNA' are in no layer of counts": split(counts, forget=True),
        "Assay 'ATAC' is an R object of class ChromatinAssay; only": r.seurat(
            table(), active="ATAC", ATAC=peaks
        ),
        "counts of assay 'RNA' cannot be read: .* IterableMatrix": r.seurat(
            table(), RNA=r.assay(on_disk)
        ),
        "The gene name 'G0' is missing or occurs twice": r.seurat(
            table(), RNA=duplicated
        ),
    }


@pytest.mark.parametrize("number", range(9))
def test_objects_that_are_refused(tmp_path, counts, number):
    sentence, value = list(other_objects(counts).items())[number]
    refused(r.write(tmp_path / "x.rds", value), sentence)


def test_left_behind_by_a_failed_conversion(tmp_path, many_counts, caplog):
    path = converted(tmp_path, many_counts)
    with h5py.File(path, "a") as file:
        file["varm"].create_dataset("PCs", data=np.ones((7, 3)))
    adata = tosica.io.read_seurat(path)  # The damaged part is not needed.
    assert "varm['PCs'] dropped" in caplog.text
    assert_array_equal(adata.layers["counts"].toarray(), many_counts)
    with h5py.File(path, "a") as file:
        del file["var"]["_index"]
        file["var"].create_dataset("_index", data=["a", "b"])
    refused(
        path,
        "is damaged, or its conversion failed",
    )


def test_arguments_that_do_not_apply(tmp_path, counts, many_counts, monkeypatch):
    path = plain(tmp_path, counts, a=r.strings(*"xyxyxy"))
    refused(path, "leave them out", logicals=["a"])
    refused(tmp_path / "none.rds", "There is no file", FileNotFoundError)
    refused(
        converted(tmp_path, many_counts),
        "an .h5ad file holds one assay only",
        assay="RNA",
    )
    path = converted(tmp_path, many_counts, {"a": np.arange(40)})
    refused(
        path,
        "Column 'a' holds more than 0, 1 and 2, so it is not a logical one",
        logicals=["a"],
    )
