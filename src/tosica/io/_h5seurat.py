"""Read ``.h5Seurat`` files, as SeuratDisk saves Seurat objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica.io._columns import decode, repair_columns, to_categorical
from tosica.io._matrices import csr_from_arrays
from tosica.io._parts import GRAPHS_NOTE, Parts, align_loadings, choose_assay

if TYPE_CHECKING:
    from collections.abc import Collection


def read_h5seurat(
    file: h5py.File,
    *,
    assay: str | None,
    logicals: Collection[str],
    na_strings: Collection[str],
) -> Parts:
    """Read one assay, the table of the cells and the reductions."""
    notes: list[str] = []
    names = decode(file["cell.names"][:])
    assay = choose_assay(list(file["assays"]), decode(file.attrs["active.assay"])[0], assay, notes)
    group = file["assays"][assay]
    genes = pd.Index(decode(group["features"][:]), dtype=object)
    marked = [*decode(file["meta.data"].attrs.get("logicals", [])), *logicals]
    obs = _table(file["meta.data"], pd.Index(names, dtype=object))
    obs = repair_columns(obs, notes, logicals=list(dict.fromkeys(marked)), na_strings=na_strings)
    var = _table(group["meta.features"], genes) if "meta.features" in group else None
    if var is None or len(var) != len(genes):
        var = pd.DataFrame(index=genes)
    if "variable.features" in group:
        var["highly_variable"] = genes.isin(decode(group["variable.features"][:]))
    obsm, varm = {}, {}
    for name, reduction in file.get("reductions", {}).items():
        if "cell.embeddings" not in reduction:
            continue
        # hdf5r writes matrices transposed.
        obsm[f"X_{name.lower()}"] = reduction["cell.embeddings"][:].T
        if name == "pca" and "feature.loadings" in reduction:
            features = decode(reduction["features"][:])
            varm["PCs"] = align_loadings(reduction["feature.loadings"][:].T, features, genes)
    if len(file.get("graphs", ())):
        notes.append(GRAPHS_NOTE)
    shape = (len(names), len(genes))
    counts, data = (_matrix(group, slot, shape) for slot in ("counts", "data"))
    return Parts(
        obs, var.drop(columns="vst.variable", errors="ignore"), counts, data, obsm, varm, notes
    )


def _table(group: h5py.Group, index: pd.Index) -> pd.DataFrame:
    names = group.attrs.get("_index", ["_index"])
    skip = {*decode(names), "_index"}
    order = decode(group.attrs.get("colnames", []))
    order += [name for name in group if name not in order]
    columns = {name: _column(group[name]) for name in order if name in group and name not in skip}
    return pd.DataFrame(columns, index=index)


def _column(element: h5py.Group | h5py.Dataset) -> Any:
    if isinstance(element, h5py.Group):
        codes = element["values"][:].astype(np.int64)
        return to_categorical(codes - 1, decode(element["levels"][:]))
    values = element[:]
    return decode(values) if values.dtype.kind in "OSU" else values


def _matrix(group: h5py.Group, slot: str, shape: tuple[int, int]) -> sp.csr_matrix | None:
    """The CSC matrix of genes × cells as a CSR matrix ``(n_cells, n_genes)``."""
    if slot not in group:
        return None
    element = group[slot]
    if isinstance(element, h5py.Dataset):
        values = element[:]
        return sp.csr_matrix(values) if values.shape == shape else None
    data, indices, indptr = (element[name][:] for name in ("data", "indices", "indptr"))
    return csr_from_arrays(data, indices, indptr, shape, slot)
