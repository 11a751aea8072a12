"""Read ``.h5Seurat`` files, as SeuratDisk saves Seurat objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica.io._columns import decode, repair_columns, to_categorical
from tosica.io._hdf5 import column_of, group_of, numbers_of, strings_of
from tosica.io._matrices import csr_from_arrays
from tosica.io._parts import GRAPHS_NOTE, Parts, align_loadings, choose_assay
from tosica.io._refused import RefusedValue

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
    names = strings_of(file, "cell.names")
    assays = group_of(file, "assays")
    active = decode(file.attrs.get("active.assay", []))
    if not active:
        raise RefusedValue("The file does not say which assay is active: save the object again.")
    assay = choose_assay(list(assays), active[0], assay, notes)
    group = group_of(assays, assay)
    genes = pd.Index(strings_of(group, "features"), dtype=object)
    cells = group_of(file, "meta.data")
    marked = [*decode(cells.attrs.get("logicals", [])), *logicals]
    obs = _table(cells, pd.Index(names, dtype=object))
    obs = repair_columns(obs, notes, logicals=list(dict.fromkeys(marked)), na_strings=na_strings)
    var = _gene_table(group, genes)
    if "variable.features" in group:
        var["highly_variable"] = genes.isin(strings_of(group, "variable.features"))
    obsm, varm = {}, {}
    for name in group_of(file, "reductions") if "reductions" in file else ():
        reduction = group_of(file["reductions"], name)
        if "cell.embeddings" not in reduction:
            continue
        # hdf5r writes matrices transposed.
        obsm[f"X_{name.lower()}"] = numbers_of(reduction, "cell.embeddings", 2).T
        if name == "pca" and "feature.loadings" in reduction:
            features = strings_of(reduction, "features")
            loadings = numbers_of(reduction, "feature.loadings", 2).T
            varm["PCs"] = align_loadings(loadings, features, genes)
    if len(file.get("graphs", ())):
        notes.append(GRAPHS_NOTE)
    shape = (len(names), len(genes))
    counts, data = (_matrix(group, slot, shape) for slot in ("counts", "data"))
    return Parts(
        obs, var.drop(columns="vst.variable", errors="ignore"), counts, data, obsm, varm, notes
    )


def _gene_table(group: h5py.Group, genes: pd.Index) -> pd.DataFrame:
    """The table of the genes; without columns if the file has none of these genes."""
    stored = group.get("meta.features")
    index = stored.get("_index") if isinstance(stored, h5py.Group) else None
    # Seurat keeps a table of fewer genes beside a matrix of all, and without names it is in order.
    if stored is None or (index is not None and index.shape != genes.shape):
        return pd.DataFrame(index=genes)
    return _table(group_of(group, "meta.features"), genes)


def _table(group: h5py.Group, index: pd.Index) -> pd.DataFrame:
    names = group.attrs.get("_index", ["_index"])
    skip = {*decode(names), "_index"}
    order = decode(group.attrs.get("colnames", []))
    order += [name for name in group if name not in order]
    columns = {
        name: _column(group, name, len(index))
        for name in order
        if name in group and name not in skip
    }
    return pd.DataFrame(columns, index=index)


def _column(group: h5py.Group, name: str, length: int) -> Any:
    if isinstance(group[name], h5py.Group):
        codes = column_of(group[name], "values", length).astype(np.int64)
        return to_categorical(codes - 1, strings_of(group[name], "levels"))
    values = column_of(group, name, length)
    return decode(values) if values.dtype.kind in "OSU" else values


def _matrix(group: h5py.Group, slot: str, shape: tuple[int, int]) -> sp.csr_matrix | None:
    """The CSC matrix of genes × cells as a CSR matrix ``(n_cells, n_genes)``."""
    if slot not in group:
        return None
    if isinstance(group[slot], h5py.Dataset):
        values = numbers_of(group, slot, 2)
        return sp.csr_matrix(values) if values.shape == shape else None
    data, indices, indptr = (
        numbers_of(group[slot], name, 1) for name in ("data", "indices", "indptr")
    )
    return csr_from_arrays(data, indices, indptr, shape, slot)
