"""Read cells from the formats that pipelines hand over."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anndata as ad
import h5py
import pandas as pd
import scanpy as sc
from anndata.io import read_elem

from tosica.data import load_annotations
from tosica.io import read_seurat
from tosica.io._refused import explain_damage

if TYPE_CHECKING:
    from anndata import AnnData

_KNOWN = (
    ".h5ad, .zarr, .h5 of 10x Genomics, .rds, .h5Seurat, or a folder with matrix.mtx, as 10x "
    "Genomics writes it"
)
_MODEL = "model.pt"


def kind_of(path: str) -> str:
    """What is at a path: ``"h5ad"``, ``"zarr"``, ``"10x_h5"``, ``"10x_mtx"``, ``"seurat"``, ....

    The others are ``"table"`` and ``"model"``.

    Raises
    ------
    FileNotFoundError
        If there is nothing.
    ValueError
        If it is none of these.
    """
    suffix = Path(path).suffix.lower()
    if "://" in path and suffix == ".zarr":
        return "zarr"
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no file or folder {path!r}.")
    if os.path.isdir(path):
        names = os.listdir(path)
        if suffix == ".zarr" or {".zgroup", "zarr.json"} & set(names):
            return "zarr"
        if _MODEL in names:
            return "model"
        if any(name.endswith(("matrix.mtx", "matrix.mtx.gz")) for name in names):
            return "10x_mtx"
        raise ValueError(
            f"The folder {path!r} holds neither cells nor a model: give {_KNOWN}, or the folder of "
            "a model."
        )
    kinds = {".h5ad": "h5ad", ".h5": "10x_h5", ".rds": "seurat", ".h5seurat": "seurat"}
    kinds |= dict.fromkeys([".csv", ".tsv", ".parquet"], "table")
    if suffix not in kinds:
        raise ValueError(f"{path!r} has no known suffix: give {_KNOWN}.")
    return kinds[suffix]


def read_cells(path: str, *, seurat: bool = False) -> AnnData:
    """Read cells with their expression into memory.

    Names of genes that occur twice in files of 10x Genomics get a number, as scanpy gives it. With
    ``seurat``, an ``.h5ad`` file is repaired that was converted from a Seurat object.

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path.
    ModuleNotFoundError
        If a package is missing that reads such a file.
    ValueError
        If the file is damaged, or holds no cells.
    """
    kind = _kind_of_cells(path)
    if kind == "seurat" or (seurat and kind == "h5ad"):
        return read_seurat(path)
    with explain_damage(Path(path)):
        if kind == "h5ad":
            return ad.read_h5ad(path)
        if kind == "zarr":
            _check_zarr(path)
            return ad.read_zarr(path)
        if kind == "10x_h5":
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Variable names are not unique")
                adata = sc.read_10x_h5(path)
            adata.var_names_make_unique()
            return adata
        return sc.read_10x_mtx(path, prefix=_prefix(path))


def open_cells(path: str) -> AnnData:
    """Read all but the expression, which stays on disk where the format allows it.

    A table is read as the ``obs`` of cells without genes. Errors are those of :func:`read_cells`.
    """
    if kind_of(path) == "table":
        return ad.AnnData(obs=read_table(path))
    kind = _kind_of_cells(path)
    with explain_damage(Path(path)):
        if kind == "h5ad":
            return ad.read_h5ad(path, backed="r")
        if kind == "zarr":
            _check_zarr(path)
            # What it needs comes with the extra "atlas", but not with zarr.
            with suppress(ImportError):
                adata = ad.experimental.read_lazy(path)
                load_annotations(adata)
                return adata
    return read_cells(path)


def read_obs(path: Path) -> pd.DataFrame:
    """Read the table of the cells from an ``.h5ad`` file or a Zarr store, and nothing else."""
    if path.suffix.lower() == ".h5ad":
        with h5py.File(path, "r") as file:
            return read_elem(file["obs"])
    from tosica.ondisk import open_store

    return read_elem(open_store(str(path))["obs"])


def read_table(path: str) -> pd.DataFrame:
    """Read a table of cells; the first column has their names."""
    suffix = Path(path).suffix.lower()
    with explain_damage(Path(path)):
        if suffix == ".parquet":
            return pd.read_parquet(path)
        table = pd.read_csv(path, sep="," if suffix == ".csv" else "\t", index_col=0)
        return table.set_index(table.index.astype(str))


def _kind_of_cells(path: str) -> str:
    kind = kind_of(path)
    if kind in ("model", "table"):
        what = "the folder of a model" if kind == "model" else "a table"
        raise ValueError(f"{path!r} is {what}, and holds no expression: give {_KNOWN}.")
    return kind


def _check_zarr(path: str) -> None:
    try:
        import zarr  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{path!r} is a Zarr store, but the package zarr is not installed: "
            "pip install 'tosica[atlas]'."
        ) from error


def _prefix(folder: str) -> str | None:
    """What stands before ``matrix.mtx`` in a folder's names, as in files of GEO."""
    ends = ("matrix.mtx", "matrix.mtx.gz")
    found: dict[str, Any] = {
        name.removesuffix(end): None
        for name in sorted(os.listdir(folder))
        for end in ends
        if name.endswith(end)
    }
    if len(found) > 1:
        raise ValueError(
            f"The folder {folder!r} holds {len(found)} matrices ({', '.join(found)}): give each "
            "one a folder of its own."
        )
    return next(iter(found)) or None
