"""Synthetic counts on disk: the same data, one block after the other."""

from __future__ import annotations

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest

import tosica
from tosica.datasets import _write_synthetic
from tosica.datasets._write_synthetic import index_dtype

PARAMS = {"n_labels": 4, "n_batches": 3, "n_gene_sets": 50, "batch_effect": 0.5, "seed": 8}


@pytest.mark.parametrize("chunk_size", [1000, 2000, 10_000])
def test_the_file_is_what_synthetic_returns(tmp_path, chunk_size: int) -> None:
    in_memory = tosica.datasets.synthetic(3500, 400, **PARAMS)
    in_memory.write_h5ad(tmp_path / "expected.h5ad")
    expected = anndata.read_h5ad(tmp_path / "expected.h5ad")

    tosica.datasets.write_synthetic(tmp_path / "cells.h5ad", 3500, 400, **PARAMS, chunk_size=chunk_size)
    written = anndata.read_h5ad(tmp_path / "cells.h5ad")
    assert written.shape == (3500, 400)
    assert type(written.X) is type(expected.X)
    for part in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(written.X, part), getattr(expected.X, part))
        assert getattr(written.X, part).dtype == getattr(expected.X, part).dtype
    pd.testing.assert_frame_equal(written.obs, expected.obs)
    pd.testing.assert_frame_equal(written.var, expected.var)
    assert list(written.uns) == list(expected.uns) == ["synthetic"]
    assert written.uns["synthetic"]["params"] == expected.uns["synthetic"]["params"]
    for label, names in expected.uns["synthetic"]["gene_sets"].items():
        assert list(written.uns["synthetic"]["gene_sets"][label]) == list(names)


def test_the_file_can_be_read_backed(tmp_path) -> None:
    path = tmp_path / "cells.h5ad"
    tosica.datasets.write_synthetic(str(path), 2500, 400, **PARAMS)
    expected = tosica.datasets.synthetic(2500, 400, **PARAMS)
    backed = anndata.read_h5ad(path, backed="r")
    try:
        assert (backed.X[900:1100] != expected.X[900:1100]).nnz == 0
    finally:
        backed.file.close()


@pytest.mark.parametrize("wide", [False, True])
def test_more_values_than_32_bits_count(tmp_path, monkeypatch, wide: bool) -> None:
    """Decided with the first block in hand, before the others are drawn."""
    path = tmp_path / "cells.h5ad"
    assert index_dtype(2**31 - 1) is np.int32
    assert index_dtype(2**31) is np.int64
    estimates = []

    def choose(n_values: float) -> type:
        estimates.append(n_values)
        return np.int64 if wide else np.int32

    monkeypatch.setattr(_write_synthetic, "index_dtype", choose)
    tosica.datasets.write_synthetic(path, 3500, 400, **PARAMS, chunk_size=1000)
    with h5py.File(path) as file:
        n_values = file["X/data"].size
        assert n_values > 200_000
        assert file["X/indptr"].dtype == (np.int64 if wide else np.int32)
    # From the first block: with a margin of two, and made once.
    assert estimates == [pytest.approx(2 * n_values, rel=0.1)]
    expected = tosica.datasets.synthetic(3500, 400, **PARAMS)
    assert (anndata.read_h5ad(path).X != expected.X).nnz == 0


def test_a_file_that_exists_is_replaced(tmp_path) -> None:
    path = tmp_path / "cells.h5ad"
    tosica.datasets.write_synthetic(path, 200, 400, **PARAMS)
    tosica.datasets.write_synthetic(path, 100, 400, **PARAMS)
    assert anndata.read_h5ad(path).shape == (100, 400)


def test_it_is_logged(tmp_path, caplog) -> None:
    path = tmp_path / "cells.h5ad"
    with caplog.at_level("INFO", logger="tosica"):
        tosica.datasets.write_synthetic(path, 100, 400, **PARAMS)
    assert f"write_synthetic: wrote 100 cells × 400 genes to {path}" in caplog.text


@pytest.mark.parametrize(
    ("path", "error", "sentence"),
    [
        (
            "cells.csv",
            ValueError,
            r"^the file 'cells\.csv' must end in '\.h5ad' or '\.zarr', the formats that are writ",
        ),
        (
            "nowhere/cells.h5ad",
            FileNotFoundError,
            r"^the folder 'nowhere' to write 'cells\.h5ad' to does not exist: create it first\.$",
        ),
    ],
)
def test_wrong_path(tmp_path, monkeypatch, path, error: type[Exception], sentence: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=sentence):
        tosica.datasets.write_synthetic(path, 100, 400, **PARAMS)
    assert not list(tmp_path.iterdir())


def test_wrong_parameters_leave_an_older_file(tmp_path) -> None:
    path = tmp_path / "cells.h5ad"
    path.write_bytes(b"of somebody else")
    with pytest.raises(ValueError, match="n_obs=2 cells are too few for n_labels=13"):
        tosica.datasets.write_synthetic(path, 2)
    assert path.read_bytes() == b"of somebody else"


def test_some_cells_of_the_file_can_be_taken_into_memory(tmp_path) -> None:
    path = tmp_path / "cells.h5ad"
    tosica.datasets.write_synthetic(path, 500, 400, **PARAMS)
    backed = anndata.read_h5ad(path, backed="r")
    some = backed[100:110].to_memory()
    backed.file.close()
    expected = tosica.datasets.synthetic(500, 400, **PARAMS)
    difference = some.X - expected.X[100:110]
    assert abs(difference).sum() == 0
    assert some.raw is None


def test_a_zarr_store_has_the_same_cells(tmp_path) -> None:
    pytest.importorskip("zarr")
    for name in ("cells.h5ad", "cells.zarr"):
        tosica.datasets.write_synthetic(tmp_path / name, 300, 200, **PARAMS, chunk_size=100)
    file = anndata.read_h5ad(tmp_path / "cells.h5ad")
    store = anndata.read_zarr(tmp_path / "cells.zarr")
    np.testing.assert_array_equal(store.X.toarray(), file.X.toarray())
    pd.testing.assert_frame_equal(store.obs, file.obs)
    assert store.uns.keys() == file.uns.keys()
