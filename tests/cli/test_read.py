"""The formats that commands read."""

from __future__ import annotations

import gzip
import sys
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp

from tosica.cli._read import kind_of, open_cells, read_cells, read_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anndata import AnnData

# The first two genes have one name.
NAMES = ["G0", "G0", *(f"G{i}" for i in range(2, 30))]


def write_10x_mtx(adata: AnnData, folder: Path, prefix: str = "") -> None:
    folder.mkdir(exist_ok=True)
    lines = {
        "features": [f"ENSG{i}\t{name}\tGene Expression" for i, name in enumerate(NAMES)],
        "barcodes": list(adata.obs_names),
    }
    for name, rows in lines.items():
        with gzip.open(folder / f"{prefix}{name}.tsv.gz", "wt") as file:
            file.writelines(f"{row}\n" for row in rows)
    with gzip.open(folder / f"{prefix}matrix.mtx.gz", "wb") as file:
        scipy.io.mmwrite(file, sp.coo_matrix(adata.X.T.astype(int)))


def write_10x_h5(adata: AnnData, path: Path) -> None:
    def text(values: list[str]) -> np.ndarray:
        return np.array(values, dtype="S")

    x = sp.csr_matrix(adata.X)
    with h5py.File(path, "w") as file:
        matrix = file.create_group("matrix")
        matrix["barcodes"] = text(list(adata.obs_names))
        # By cells, as CSR is.
        matrix["data"], matrix["indices"] = x.data.astype(np.int32), x.indices
        matrix["indptr"], matrix["shape"] = x.indptr, np.array(x.shape[::-1])
        features = matrix.create_group("features")
        features["name"], features["id"] = text(NAMES), text([f"ENSG{i}" for i in range(30)])
        features["feature_type"] = text(["Gene Expression"] * 30)
        features["genome"] = text(["GRCh38"] * 30)


@pytest.mark.parametrize("kind", ["10x_h5", "10x_mtx", "prefixed"])
def test_files_of_10x_genomics(kind: str, toy_query: AnnData, tmp_path: Path) -> None:
    path = tmp_path / ("cells.h5" if kind == "10x_h5" else "folder")
    if kind == "10x_h5":
        write_10x_h5(toy_query, path)
    else:
        write_10x_mtx(toy_query, path, "GSM1_" if kind == "prefixed" else "")
    assert kind_of(str(path)) == kind.replace("prefixed", "10x_mtx")
    adata = read_cells(str(path))
    np.testing.assert_array_equal(adata.X.toarray(), toy_query.X.toarray())
    assert list(adata.obs_names) == list(toy_query.obs_names)
    assert list(adata.var_names[:3]) == ["G0", "G0-1", "G2"]


def test_two_matrices_in_a_folder(toy_query: AnnData, tmp_path: Path) -> None:
    for prefix in ("a_", "b_"):
        write_10x_mtx(toy_query, tmp_path, prefix)
    with pytest.raises(ValueError, match=r"holds 2 matrices \(a_, b_\): give each one a folder"):
        read_cells(str(tmp_path))


def test_a_folder_that_lacks_a_file(toy_query: AnnData, tmp_path: Path) -> None:
    write_10x_mtx(toy_query, tmp_path)
    (tmp_path / "barcodes.tsv.gz").unlink()
    with pytest.raises(ValueError, match=r"is damaged, .*barcodes"):
        read_cells(str(tmp_path))


@pytest.mark.parametrize("ending", [".h5ad", ".zarr"])
def test_files_of_anndata(
    ending: str,
    toy_query: AnnData,
    tmp_path: Path,
    write: Callable[[AnnData, Path], None],
    contents: Any,
) -> None:
    path = tmp_path / f"cells{ending}"
    del toy_query.uns["kind_colors"]  # a list is read as an array
    write(toy_query, path)
    assert kind_of(str(path)) == ending[1:]
    adata = read_cells(str(path))
    assert contents(adata) == contents(toy_query)
    opened = open_cells(str(path))
    pd.testing.assert_frame_equal(pd.DataFrame(opened.obs), adata.obs)
    assert list(opened.var_names) == list(adata.var_names)
    if ending == ".h5ad":
        assert opened.isbacked
        opened.file.close()


def test_a_zarr_store_by_another_name(
    toy_query: AnnData, tmp_path: Path, write: Callable[[AnnData, Path], None]
) -> None:
    write(toy_query, tmp_path / "cells.zarr")
    (tmp_path / "cells.zarr").rename(tmp_path / "cells")
    assert kind_of(str(tmp_path / "cells")) == "zarr"
    assert kind_of("s3://bucket/cells.zarr") == "zarr"


def test_names_of_cells_are_text(tmp_path: Path) -> None:
    table = pd.DataFrame({"kind": ["a", "b"]}, index=[1, 2])
    table.to_csv(tmp_path / "t.tsv", sep="\t")
    assert list(read_table(str(tmp_path / "t.tsv")).index) == ["1", "2"]


def test_zarr_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cells.zarr").mkdir()
    monkeypatch.setitem(sys.modules, "zarr", None)
    for read in (read_cells, open_cells):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'tosica\[atlas\]'"):
            read(str(tmp_path / "cells.zarr"))


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "seurat"),
    [("kang_seurat.rds", False), ("kang.h5Seurat", False), ("kang_seuratdisk.h5ad", True)],
)
def test_seurat_objects(name: str, seurat: bool, shared: Path) -> None:
    path = str(shared / "seurat" / name)
    adata = read_cells(path, seurat=seurat)
    assert adata.n_obs == 700
    assert "B cells" in set(adata.obs["cluster_id"])
