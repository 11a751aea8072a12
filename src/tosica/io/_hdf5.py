"""Read the HDF5 files of converters: ``.h5ad`` of any, ``.h5Seurat`` of SeuratDisk.

Of the files of converters, only what may be right is read: anndata drops the factor levels of
SeuratDisk's files, and fails where a conversion left elements that do not fit.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._text import first_line
from tosica.io._containers import open_cells
from tosica.io._contents import (
    GRAPHS_NOTE,
    SeuratContents,
    StoredAssay,
    align_loadings,
    choose_assay,
    contents_of_adata,
)
from tosica.io._errors import ReadError
from tosica.io._matrices import csr_from_arrays
from tosica.io._tables import NAMES, decode, repair_columns, to_categorical

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

_LEVELS = "__categories"


# --------------------------------------------------------------------------- .h5ad


def read_h5ad(
    path: Path, *, logicals: Collection[str], na_strings: Collection[str]
) -> SeuratContents:
    """Read an AnnData file that any of the converters wrote.

    Elements that conversions leave in a wrong state are not read.
    """
    try:
        with h5py.File(path) as file:
            for name in ("obs", "var"):
                file[name]
        adata = open_cells(str(path), annotations=("obs", "var"))
    except (KeyError, ValueError) as error:
        raise ReadError(
            f"{str(path)!r} is damaged, or its conversion failed ({first_line(error)}): "
            "convert the object again, or read the .rds or .h5Seurat file."
        ) from error
    with h5py.File(path) as file:
        for name, levels in _members(file["obs"], _LEVELS).items():
            if "categories" not in file["obs"][name].attrs:
                codes = adata.obs[name].to_numpy()
                adata.obs[name] = to_categorical(codes, decode(levels[:]))
        unusable = [f"varm[{name!r}]" for name in _members(file, "varm")]
        if "neighbors" in _members(file, "uns"):
            unusable.append("uns['neighbors']")
        unusable += [f"obsp[{name!r}]" for name in _members(file, "obsp")]
        obsm = {
            name: _element(values) for name, values in _members(file, "obsm").items()
        }
    return contents_of_adata(
        adata, obsm, unusable, logicals=logicals, na_strings=na_strings
    )


# --------------------------------------------------------------------------- members


def _members(file: Any, name: str) -> dict[str, h5py.Group | h5py.Dataset]:
    """Members of a group; empty if there is no such group."""
    # Before anndata 0.7, tables were arrays.
    group = file.get(name) if isinstance(file, h5py.Group) else None
    return dict(group.items()) if isinstance(group, h5py.Group) else {}


def _element(element: h5py.Group | h5py.Dataset) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ad.OldFormatWarning)
        return ad.io.read_elem(element)


def _table(group: h5py.Group, index: Sequence[str] | pd.Index) -> pd.DataFrame:
    """A table of cells or genes, with factors as codes from 1 on beside their levels."""
    columns: dict[str, Any] = {}
    for name, member in group.items():
        if isinstance(member, h5py.Group) and "levels" in member:
            codes = member["values"][:].astype(np.int64) - 1
            columns[name] = to_categorical(codes, decode(member["levels"][:]))
        else:
            columns[name] = _element(member)
    for name in (decode(group.attrs.get("_index", NAMES))[0], NAMES):
        columns.pop(name, None)
    order = decode(group.attrs.get("column-order", group.attrs.get("colnames", [])))
    order = [name for name in dict.fromkeys([*order, *columns]) if name in columns]
    return pd.DataFrame(
        {name: columns[name] for name in order},
        index=pd.Index(decode(index), dtype=object),
    )


# --------------------------------------------------------------------------- .h5Seurat


def read_h5seurat(
    file: h5py.File,
    *,
    assay: str | None,
    logicals: Collection[str],
    na_strings: Collection[str],
) -> SeuratContents:
    """Read one assay, the table of the cells and the reductions."""
    notes: list[str] = []
    cell_names = decode(file["cell.names"][:])
    active = decode(file.attrs["active.assay"])[0]
    assays = {
        name: StoredAssay(
            decode(stored["features"][:]),
            has_counts="counts" in stored,
            is_corrected="SCT" in f"{name} {stored.attrs.get('s4class')}".upper(),
        )
        for name, stored in file["assays"].items()
    }
    group = file["assays"][choose_assay(assays, active, assay, notes)]
    cells = file["meta.data"]
    logicals = dict.fromkeys([*decode(cells.attrs.get("logicals", [])), *logicals])
    obs = repair_columns(
        _table(cells, cell_names), notes, logicals=logicals, na_strings=na_strings
    )
    genes = pd.Index(decode(group["features"][:]), dtype=object)
    var = _gene_table(group, genes)
    if "variable.features" in group:
        var["highly_variable"] = genes.isin(decode(group["variable.features"][:]))
    obsm = {}
    varm = {}
    for name, reduction in _members(file, "reductions").items():
        if "cell.embeddings" not in reduction:
            continue
        # hdf5r writes matrices transposed.
        obsm[f"X_{name.lower()}"] = reduction["cell.embeddings"][:].T
        if name == "pca" and "feature.loadings" in reduction:
            loadings = reduction["feature.loadings"][:].T
            features = decode(reduction["features"][:])
            varm["PCs"] = align_loadings(loadings, features, genes)
    if _members(file, "graphs"):
        notes.append(GRAPHS_NOTE)
    shape = (len(cell_names), len(genes))
    return SeuratContents(
        obs=obs,
        var=var.drop(columns="vst.variable", errors="ignore"),
        counts=_matrix(group, "counts", shape),
        data=_matrix(group, "data", shape),
        obsm=obsm,
        varm=varm,
        notes=notes,
    )


def _gene_table(group: h5py.Group, genes: pd.Index) -> pd.DataFrame:
    """The table of the genes; without columns if the file has none of these genes."""
    table = group.get("meta.features")
    index = table.get("_index") if isinstance(table, h5py.Group) else None
    # Seurat may store a table of fewer genes than the matrix. Without names, the rows of
    # the table are those of the matrix.
    if table is None or (index is not None and index.shape != genes.shape):
        return pd.DataFrame(index=genes)
    return _table(table, genes)


def _matrix(
    group: h5py.Group, slot: str, shape: tuple[int, int]
) -> sp.csr_matrix | None:
    """The CSC matrix of genes × cells as a CSR matrix ``(n_cells, n_genes)``."""
    if slot not in group:
        return None
    matrix = group[slot]
    if isinstance(matrix, h5py.Dataset):
        values = matrix[:]
        return sp.csr_matrix(values) if values.shape == shape else None
    return csr_from_arrays(
        matrix["data"][:], matrix["indices"][:], matrix["indptr"][:], shape, slot
    )
