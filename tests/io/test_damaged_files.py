"""Damaged files: one sentence with the path or the part, and no index that is not checked."""

import bz2
import gzip
import lzma
import struct

import _r_files as r
import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import tosica

CELLS = [f"cell{i}" for i in range(6)]
GENES = [f"G{i}" for i in range(5)]
COUNTS = sp.csr_matrix(np.random.default_rng(0).poisson(2, (6, 5)).astype(float))
HEAD = b"X\n" + struct.pack(">3i", 2, 0x40202, 0x20300)


def object_with(**changed):
    """A Seurat object whose counts, or table of the cells, have other slots."""
    counts = r.sparse(COUNTS, GENES, CELLS)
    kind = r.factor(np.array([1, 2, 1, 2, 1, 2]), ["T", "B"])
    table = r.frame(CELLS, kind=kind)
    for name, value in changed.items():
        of = counts if name in ("i", "p", "x", "Dim", "Dimnames") else table
        if name == "codes":
            kind.value = value
        elif name == "levels":
            kind.attributes["levels"] = value
        elif value is None:
            del of.attributes[name]
        else:
            of.attributes[name] = value
    return r.seurat(table, RNA=r.assay(counts))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, bytes])
def test_compressions_of_r_whole_and_cut_short(tmp_path, pack):
    path = r.write(tmp_path / "x.rds", object_with())
    content = pack(gzip.decompress(path.read_bytes()))
    path.write_bytes(content)
    assert (tosica.io.read_seurat(path).layers["counts"] != COUNTS).nnz == 0
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"x\.rds' is damaged"):
        tosica.io.read_seurat(path)


@pytest.mark.parametrize(
    "content",
    [
        struct.pack(">2i", 14, 2**31 - 1) + bytes(80),
        struct.pack(">2i", 19, 1) * 5000,
        b"",
        None,
    ],
)
def test_lengths_that_are_not_true(tmp_path, content):
    path = tmp_path / "x.rds"
    path.write_bytes(b"<html>sign in</html>" if content is None else HEAD + content)
    with pytest.raises(
        ValueError, match=r"x\.rds' (is damaged|is a web page|holds an R)"
    ):
        tosica.io.read_seurat(path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"Dim": None}, "no 'Dim'"),
        ({"x": r.strings("a")}, "STR is where numbers are expected"),
        ({"x": r.vector(np.full(COUNTS.nnz, np.nan))}, "neither counts nor"),
        ({"x": r.vector(np.full(COUNTS.nnz, 1e60))}, "missing, infinite or too large"),
        (
            {"i": r.vector(np.where(np.arange(COUNTS.nnz) == 3, -1, COUNTS.indices))},
            "damaged.*(indices|index values) must be",
        ),
        ({"Dimnames": r.plain_list(r.strings(*GENES))}, "damaged"),
        ({"row.names": r.strings(*CELLS[:5], None)}, "has other cells"),
        ({"codes": np.array([1, 2, 1, 9, 1, 2])}, "a code has no level"),
        ({"levels": r.strings("T", "T")}, "a level occurs twice"),
    ],
)
def test_values_of_r_that_do_not_fit(tmp_path, changed, words):
    path = r.write(tmp_path / "x.rds", object_with(**changed))
    with pytest.raises(ValueError, match=words):
        tosica.io.read_seurat(path)


@pytest.fixture
def h5ad(tmp_path):
    obs = pd.DataFrame(
        {"kind": pd.Categorical(list("TBTBTB")), "n": np.arange(6.0)}, index=CELLS
    )
    adata = ad.AnnData(COUNTS, obs=obs, var=pd.DataFrame(index=GENES))
    adata.write_h5ad(tmp_path / "x.h5ad")
    return tmp_path / "x.h5ad"


@pytest.fixture
def h5seurat(tmp_path):
    with h5py.File(tmp_path / "x.h5Seurat", "w") as file:
        file.attrs["active.assay"] = "RNA"
        file["cell.names"] = CELLS
        file["assays/RNA/features"] = GENES
        for name in ("data", "indices", "indptr"):
            file[f"assays/RNA/counts/{name}"] = getattr(COUNTS, name)
        file["meta.data/kind/levels"] = ["T", "B"]
        file["meta.data/kind/values"] = [1, 2, 1, 2, 1, 2]
        file["reductions/pca/cell.embeddings"] = np.zeros((2, 6))
    return tmp_path / "x.h5Seurat"


@pytest.mark.parametrize(
    ("kind", "name", "value", "words"),
    [
        ("h5ad", "obs/_index", CELLS[:5], "damaged"),
        ("h5ad", "obs/kind/codes", np.array([0, 1, 9, 0, 1, 0], "i1"), "damaged"),
        ("h5ad", "X/indices", np.full(COUNTS.nnz, 99, "i4"), "damaged"),
        ("h5ad", "var", None, "damaged"),
        (
            "h5Seurat",
            "assays/RNA/counts/indices",
            np.full(COUNTS.nnz, 99, "i4"),
            "damaged",
        ),
        (
            "h5Seurat",
            "assays/RNA/counts/indptr",
            np.array([0, 5, 9, 9, 12, 15, 10**6]),
            "damaged",
        ),
        (
            "h5Seurat",
            "meta.data/kind/values",
            [1, 2, 1, 2, 1, 3],
            "a code has no level",
        ),
        ("h5Seurat", "meta.data/kind/levels", ["T", "T"], "a level occurs twice"),
        ("h5Seurat", "assays/RNA", None, "no assay 'RNA'"),
    ],
)
def test_members_of_hdf5(h5ad, h5seurat, kind, name, value, words):
    path = h5ad if kind == "h5ad" else h5seurat
    assert (tosica.io.read_seurat(path).layers["counts"] != COUNTS).nnz == 0
    with h5py.File(path, "a") as file:
        attributes = dict(file[name].attrs)
        del file[name]
        if value is not None:
            file[name] = value
            file[name].attrs.update(attributes)
    with pytest.raises(KeyError if "no assay" in words else ValueError, match=words):
        tosica.io.read_seurat(path)


def test_files_that_are_not_whole(h5ad, h5seurat):
    h5ad.write_bytes(h5ad.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"x\.h5ad' is damaged"):
        tosica.io.read_seurat(h5ad)
    with h5py.File(h5seurat, "a") as file:
        del file.attrs["active.assay"]
    with pytest.raises(ValueError, match=r"active\.assay"):
        tosica.io.read_seurat(h5seurat)
