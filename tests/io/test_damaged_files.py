"""Damaged and hostile files: one sentence, little memory, and no index that is not checked."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import struct
import time
import tracemalloc

import _r_files as r
import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import tosica

CELLS, GENES = [f"cell{i}" for i in range(6)], [f"G{i}" for i in range(5)]
COUNTS = sp.csr_matrix(np.random.default_rng(0).poisson(2, (6, 5)).astype(float))
HEAD = b"X\n" + struct.pack(">3i", 2, 0x40202, 0x20300)
NIL = 254


def refused(path, sentence, error=ValueError):
    """An error of one sentence, at once and without much memory."""
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(error, match=re.escape(sentence)) as caught:
        tosica.io.read_seurat(path)
    seconds, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    message = str(caught.value.args[0])
    assert message.endswith((".", "?"))
    assert "\n" not in message
    assert seconds < 5
    assert peak < 2**27


def integers(*numbers):
    return struct.pack(f">{len(numbers)}i", *numbers)


def compact(length):
    """R's 1:length, which is stored as three numbers."""
    name = integers(1, 9, 14) + b"compact_intseq" + integers(2, 1, 9, 4) + b"base"
    pairs = integers(2) + name + integers(2, 13, 1, 13, NIL)
    return (
        integers(238) + pairs + integers(14, 3) + struct.pack(">3d", length, 1, 1) + integers(NIL)
    )


# ------------------------------------------------------------------------------------ .rds: bombs


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (integers(14, 2**31 - 1) + bytes(80), "it ends inside of a value"),
        (integers(14, -1) + bytes(80), "states a negative length"),
        (integers(19, 2**31 - 1) + bytes(80), "it ends inside of a value"),
        (integers(19, -5), "holds a list, not a Seurat object"),
        (integers(9, 2**31 - 1) + b"text", "it ends inside of a value"),
        (integers(19, 1) * 5000 + integers(NIL), "is not a whole .rds file (RecursionError"),
        (integers(2, NIL) * 5000 + integers(NIL), "is not a whole .rds file (RecursionError"),
        (integers(255 | 9 << 8), "is not a whole .rds file (IndexError"),
        (compact(1e12), "sequences of more than 10,000,000 numbers"),
        (compact(float("nan")), "is not a whole .rds file (ValueError"),
        (integers(21, 2**31 - 1) + bytes(80), "a function with 2147483647 repeated parts"),
        (integers(21, -1) + bytes(80), "a function with -1 repeated parts"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["gzip", "plain"])
def test_lengths_that_are_not_true(tmp_path, content, sentence, pack):
    path = tmp_path / "bomb.rds"
    path.write_bytes(pack(HEAD + content))
    refused(path, sentence)


def test_many_sequences(tmp_path, monkeypatch):
    path = tmp_path / "bomb.rds"
    path.write_bytes(HEAD + integers(19, 3) + compact(400) * 3)
    refused(path, "holds a list, not a Seurat object")  # These are what R writes.
    monkeypatch.setattr("tosica.io._rds_parser._LONGEST_SEQUENCE", 1000)
    refused(path, "sequences of more than 1,000 numbers")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_file_that_unpacks_to_too_much(tmp_path, monkeypatch, pack):
    monkeypatch.setattr("tosica.io._rds_parser._LARGE", 2**18)
    path = tmp_path / "bomb.rds"
    path.write_bytes(pack(HEAD + integers(14, 2**31 - 1) + bytes(2**23)))
    refused(path, "bomb.rds' unpacks to more than 250 times its size")


def test_too_many_values(tmp_path, monkeypatch):
    monkeypatch.setattr("tosica.io._rds_parser._MANY_VALUES", 1000)
    path = tmp_path / "bomb.rds"
    path.write_bytes(gzip.compress(HEAD + integers(19, 10**5) + bytes(4 * 10**5)))
    refused(path, "more than 1,000 names and other values that are not numbers")


def test_too_many_values_that_are_no_names(tmp_path, monkeypatch):
    monkeypatch.setattr("tosica.io._rds_parser._MOST_OTHER_VALUES", 1000)
    path = tmp_path / "bomb.rds"
    path.write_bytes(gzip.compress(HEAD + integers(19, 10**5) + integers(19, 0) * 10**5))
    refused(path, "more than 1,000 lists, vectors and other values beside names")
    names = [f"{i:04}" for i in range(3000)]
    r.write(path, r.strings(*names))
    refused(path, "holds a character vector, not a Seurat object")


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, bytes])
def test_other_compressions_of_r(tmp_path, pack):
    """Those of saveRDS(compress=...)."""
    value = r.seurat(r.frame(CELLS), RNA=r.assay(r.sparse(COUNTS, GENES, CELLS)))
    path = r.write(tmp_path / "x.rds", value)
    path.write_bytes(pack(gzip.decompress(path.read_bytes())))
    adata = tosica.io.read_seurat(path)
    assert (adata.layers["counts"] != COUNTS).nnz == 0


# ------------------------------------------------------------------------------- .rds: R's values


def object_with(**changed):
    """A Seurat object whose counts, or table of the cells, have other slots."""
    counts = r.sparse(COUNTS, GENES, CELLS)
    table = r.frame(CELLS, kind=r.factor(np.array([1, 2, 1, 2, 1, 2]), ["T", "B"]))
    for name, value in changed.items():
        of = counts if name in ("i", "p", "x", "Dim", "Dimnames") else table
        if name in ("codes", "levels"):
            kind = table.value[0]
            if name == "codes":
                kind.value = value
            else:
                kind.attributes["levels"] = value
        elif value is None:
            del of.attributes[name]
        else:
            of.attributes[name] = value
    return r.seurat(table, RNA=r.assay(counts))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"Dim": None}, "A dgCMatrix of the object has no 'Dim'"),
        ({"x": r.strings("a")}, "The object has a STR where numbers are expected"),
        ({"x": r.vector(np.full(COUNTS.nnz, np.nan))}, "its counts hold fractions"),
        ({"x": r.vector(np.full(COUNTS.nnz, 1e60))}, "missing, infinite or too large for any"),
        ({"i": r.vector(np.full(COUNTS.nnz, 0.5))}, "are float64 and int32 values instead of int"),
        (
            {"p": r.vector(np.arange(7)[::-1].copy())},
            "the indices of its sparse matrix are damaged",
        ),
        ({"Dim": r.vector(np.array([2**31 - 1, 6]))}, "is damaged, or laid out in a way that"),
        ({"Dim": r.vector(np.array([5, -6]))}, "the indices of its sparse matrix are damaged"),
        ({"Dimnames": r.plain_list(r.strings(*GENES))}, "are not those of rows and columns"),
        ({"Dimnames": r.plain_list(r.plain_list(), None)}, "neither counts nor log-normalised"),
        ({"row.names": r.strings(*CELLS[:5], None)}, "counts of assay 'RNA' has other cells than"),
        ({"names": r.strings("a", "b", "c")}, "has 1 elements but 3 names"),
        ({"codes": np.array([1, 2, 1, 9, 1, 2])}, "because a code is not one of its 2 levels"),
        ({"levels": r.strings("T", "T")}, "because the level 'T' occurs twice"),
        ({"levels": None}, "because a code is not one of its 0 levels"),
    ],
)
def test_values_that_do_not_fit(tmp_path, changed, sentence):
    refused(r.write(tmp_path / "x.rds", object_with(**changed)), sentence)


def test_missing_names(tmp_path):
    cells = [*CELLS[:5], None]
    value = r.seurat(r.frame(cells), RNA=r.assay(r.sparse(COUNTS, GENES, cells)))
    refused(r.write(tmp_path / "x.rds", value), "The name of a cell is missing")


def test_a_matrix_of_another_size(tmp_path):
    embedding = r.vector(np.arange(12.0)).having(dim=r.vector(np.array([6, 3])))
    reduction = r.s4(
        "DimReduc",
        cell__embeddings=embedding.having(
            dimnames=r.plain_list(r.strings(*CELLS), r.strings("a", "b"))
        ),
    )
    value = object_with()
    value.attributes["reductions"] = r.named(pca=reduction)
    sentence = "A matrix of the object has 12 values, but its dimensions are 6 × 3"
    refused(r.write(tmp_path / "x.rds", value), sentence)


# ------------------------------------------------------------------------------------------ HDF5


@pytest.fixture
def converted(tmp_path):
    kinds = pd.Categorical(list("TBTBTB"))
    obs = pd.DataFrame({"kind": kinds, "depth": np.arange(6.0)}, index=CELLS)
    adata = ad.AnnData(COUNTS, obs=obs, var=pd.DataFrame(index=GENES))
    adata.obsm["X_pca"] = np.zeros((6, 2))
    adata.write_h5ad(tmp_path / "x.h5ad")
    return tmp_path / "x.h5ad"


@pytest.fixture
def h5seurat(tmp_path):
    genes_by_cells = COUNTS.tocsr()
    with h5py.File(tmp_path / "x.h5Seurat", "w") as file:
        file.attrs["active.assay"] = "RNA"
        file["cell.names"] = CELLS
        file["assays/RNA/features"] = GENES
        for name in ("data", "indices", "indptr"):
            file[f"assays/RNA/counts/{name}"] = getattr(genes_by_cells, name)
        file["meta.data/kind/levels"] = ["T", "B"]
        file["meta.data/kind/values"] = [1, 2, 1, 2, 1, 2]
        file["reductions/pca/cell.embeddings"] = np.zeros((2, 6))
    return tmp_path / "x.h5Seurat"


def put(file, name, value):
    """Replace a member and keep its attributes; None deletes it, "itself" makes a loop."""
    attributes = dict(file[name].attrs)
    del file[name]
    if isinstance(value, str):
        file[name] = file["/"]
    elif value is not None:
        file[name] = value
        if not isinstance(value, h5py.SoftLink):
            file[name].attrs.update(attributes)


def test_whole_files_are_read(converted, h5seurat):
    for path in (converted, h5seurat):
        adata = tosica.io.read_seurat(path)
        assert (adata.layers["counts"] != COUNTS).nnz == 0
        assert adata.obs["kind"].tolist() == list("TBTBTB")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("obs/_index", None, "/obs has no names ('_index' is missing)"),
        ("obs/_index", 5, "The file has no array '/obs/_index'"),
        ("obs/_index", CELLS[:5], "Column '/obs/depth' holds float64 values of the shape (6,)"),
        ("obs/depth", np.zeros((6, 2)), "values of the shape (6, 2), but the table has 6 rows"),
        ("obs/depth", np.zeros(6, "i4,i4"), "but the table has 6 rows"),
        ("obs/kind/codes", np.array([0, 1, 9, 0, 1, 0], "i1"), "is damaged, or laid out in a way"),
        ("obs/kind/codes", None, "is damaged, or laid out in a way"),
        ("obs/kind", h5py.SoftLink("/obs"), "is a link to another place"),
        ("obs/kind", "itself", "is nested too deep, or contains itself"),
        ("X/indices", np.zeros(3, "i4"), "X cannot be read: the indices of its sparse matrix are"),
        ("X/indptr", None, "is damaged, or laid out in a way"),
        ("X", 3.0, "is damaged, or laid out in a way"),
        ("X/data", ["a"] * COUNTS.nnz, "is damaged, or laid out in a way"),
        ("X/data", h5py.SoftLink("/obs/depth"), "'/X/data' is a link to another place"),
        ("var", 5, "The file has no group '/var'"),
    ],
)
def test_members_of_h5ad(converted, name, value, sentence):
    with h5py.File(converted, "a") as file:
        put(file, name, value)
    refused(converted, sentence)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "cell.names",
            np.arange(6.0),
            "'/cell.names' holds float64 values with 1 axes, instead of",
        ),
        ("assays/RNA", None, "There is no assay 'RNA'; the object has ."),
        ("assays/RNA/features", None, "The file has no array '/assays/RNA/features'"),
        ("assays/RNA/counts/indices", ["a"], "instead of numbers with 1"),
        (
            "assays/RNA/counts/indptr",
            np.arange(7.0),
            "are int32 and float64 values instead of integers",
        ),
        ("assays/RNA/counts/data", np.zeros(2), "counts cannot be read: the indices of its"),
        ("meta.data/kind/values", [1, 2, 1, 2, 1, 3], "because a code is not one of its 2 levels"),
        ("meta.data/kind/values", [1, 2], "but the table has 6 rows"),
        ("meta.data/kind/levels", ["T", "T"], "because the level 'T' occurs twice"),
        ("meta.data/kind/levels", 7, "The file has no array '/meta.data/kind/levels'"),
        ("meta.data", None, "The file has no group '/meta.data'"),
        ("reductions/pca/cell.embeddings", ["a"] * 6, "instead of numbers with 2"),
    ],
)
def test_members_of_h5seurat(h5seurat, name, value, sentence):
    with h5py.File(h5seurat, "a") as file:
        put(file, name, value)
    refused(h5seurat, sentence, KeyError if "no assay" in sentence else ValueError)


@pytest.mark.parametrize("name", ["obs/_index", "obs/depth", "X/data", "X/indices", "obsm/X_pca"])
@pytest.mark.parametrize("n_values", [10**9, 2**50])
def test_values_that_are_not_there(converted, name, n_values):
    """HDF5 makes data sets of any size without values, which would fill the memory with zeros."""
    with h5py.File(converted, "a") as file:
        if isinstance(file[name], h5py.Group):  # newer anndata writes strings so
            name = f"{name}/values"
        dtype, n_axes = file[name].dtype, file[name].ndim
        put(file, name, None)
        shape = (n_values, 2)[:n_axes]
        file.create_dataset(name, shape=shape, dtype=dtype, chunks=(10**4, 2)[:n_axes])
    refused(converted, f"'/{name}' claims to hold")


@pytest.mark.parametrize("n_bytes", [4096, 4099])
def test_a_length_of_zero_among_the_strings(tmp_path, n_bytes):
    """HDF5 would follow it for ever, wherever the strings begin."""
    converted = tmp_path / "x.h5ad"
    with h5py.File(converted, "w") as file:
        file.create_dataset("first", data=np.zeros(n_bytes, np.uint8), chunks=(n_bytes,))
        file["obs/_index"] = CELLS
    content = bytearray(converted.read_bytes())
    start = content.index(b"GCOL") + 16
    assert (start % 8 == 0) == (n_bytes % 8 == 0)
    content[start : start + 16] = bytes(16)
    converted.write_bytes(content)
    refused(converted, f"a length among its strings, at byte {start}, is 0")


@pytest.mark.parametrize("missing", ["active.assay"])
def test_attributes_of_h5seurat(h5seurat, missing):
    with h5py.File(h5seurat, "a") as file:
        del file.attrs[missing]
    refused(h5seurat, "The file does not say which assay is active")


def test_a_checksum_that_is_wrong(tmp_path):
    path = tmp_path / "x.h5ad"
    ad.AnnData(COUNTS, obs=pd.DataFrame(index=CELLS)).write_h5ad(path, compression="gzip")
    with h5py.File(path) as file:
        place = file["X/data"].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place : place + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    refused(path, "x.h5ad' is damaged, or laid out in a way that is not known (")


def test_an_object_that_does_not_fit_into_memory(converted, monkeypatch):
    def full(parts):
        raise MemoryError

    monkeypatch.setattr("tosica.io._read_seurat.to_anndata", full)
    refused(converted, "x.h5ad' does not fit into memory: read it on a larger machine", MemoryError)


def test_a_file_that_may_not_be_read(converted, monkeypatch):
    def closed(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("tosica.io._read_seurat.open_hdf5", closed)
    refused(converted, "x.h5ad' may not be read by this user", PermissionError)
