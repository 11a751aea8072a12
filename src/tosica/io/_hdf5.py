"""Read the HDF5 files of converters: ``.h5ad`` of any, ``.h5Seurat`` of SeuratDisk.

Members are read one by one: anndata drops the factor levels of SeuratDisk's files, and fails where a
conversion left parts that do not fit.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._text import list_names
from tosica.io._parts import (
    GRAPHS_NOTE,
    NAMES,
    Matrix,
    Parts,
    ReadError,
    align_loadings,
    check_matrix,
    choose_assay,
    csr_from_arrays,
    decode,
    raw_genes,
    repair_columns,
    repaired_parts,
    to_categorical,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_LEVELS = "__categories"


def read_h5ad(
    file: h5py.File, *, logicals: Collection[str], na_strings: Collection[str]
) -> Parts:
    """Read an AnnData file that any of the converters wrote."""
    notes: list[str] = []
    obs, var = _table(file["obs"]), _table(file["var"])
    obs = repair_columns(obs, notes, logicals=logicals, na_strings=na_strings)
    flags = [str(name) for name in obs if obs[name].dtype == bool]
    if flags and "X" in file and file["X"].attrs.get("encoding-type") == "csc_matrix":
        notes.append(
            f"not known: True in {list_names(flags)} may have been a missing value, which sceasy turns into it"
        )
    matrices = [Matrix("X", _element(file["X"]), var)] if "X" in file else []
    matrices += [
        Matrix(f"layers[{name!r}]", _element(layer), var)
        for name, layer in _members(file, "layers")
    ]
    if "raw" in file:
        matrices.append(
            Matrix(
                "raw.X",
                _element(file["raw"]["X"]),
                raw_genes(_table(file["raw"]["var"]), var),
            )
        )
    for name, values, table in matrices:
        check_matrix(values, name)
        if values.shape != (len(obs), len(table)):
            raise ReadError(
                f"{name} is {values.shape[0]} × {values.shape[1]}, but the file names {len(obs)} "
                f"cells and {len(table)} genes: its conversion failed; convert the object again, "
                "or read the .rds or .h5Seurat file."
            )
    lost = [
        f"{key}[{name!r}]"
        for key in ("varm", "uns", "obsp")
        for name, _ in _members(file, key)
    ]
    lost = [
        name
        for name in lost
        if name == "uns['neighbors']" or not name.startswith("uns")
    ]
    obsm = {name: _element(values) for name, values in _members(file, "obsm")}
    parts = repaired_parts(obs, matrices, obsm, lost, notes)
    if len(parts.var) > len(var):
        notes.append(
            f"X has all {len(parts.var)} genes now, not the {len(var)} variable ones"
        )
    return parts


def _members(file: h5py.File, name: str) -> list[tuple[str, Any]]:
    """Members of a group, none if there is no such group."""
    group = file.get(name)
    return list(group.items()) if isinstance(group, h5py.Group) else []


def _element(element: h5py.Group | h5py.Dataset) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ad.OldFormatWarning)
        return ad.io.read_elem(element)


def _table(
    group: h5py.Group, index: Sequence[str] | pd.Index | None = None
) -> pd.DataFrame:
    """A table of cells or genes, with names of its own if ``index`` is not given.

    Seurat keeps a factor as codes from 1 on beside its levels; SeuratDisk's h5ad keeps the levels
    of all in one group, which anndata does not know any more.
    """
    levels = dict(_members(group, _LEVELS))
    columns: dict[str, Any] = {}
    for name, member in group.items():
        if name in levels:
            columns[name] = to_categorical(member[:], decode(levels[name][:]))
        elif isinstance(member, h5py.Group) and "levels" in member:
            codes = member["values"][:].astype(np.int64) - 1
            columns[name] = to_categorical(codes, decode(member["levels"][:]))
        elif name != _LEVELS:
            columns[name] = _element(member)
    names = decode(group.attrs.get("_index", NAMES))[0]
    stored = columns.pop(names) if index is None else index
    columns = {
        name: values
        for name, values in columns.items()
        if name not in (names, NAMES) or index is None
    }
    order = decode(group.attrs.get("column-order", group.attrs.get("colnames", [])))
    order = [name for name in dict.fromkeys([*order, *columns]) if name in columns]
    return pd.DataFrame(
        {name: columns[name] for name in order},
        index=pd.Index(decode(stored), dtype=object),
    )


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
    assay = choose_assay(
        list(file["assays"]), decode(file.attrs["active.assay"])[0], assay, notes
    )
    group = file["assays"][assay]
    genes = pd.Index(decode(group["features"][:]), dtype=object)
    cells = file["meta.data"]
    marked = [*decode(cells.attrs.get("logicals", [])), *logicals]
    obs = repair_columns(
        _table(cells, names),
        notes,
        logicals=list(dict.fromkeys(marked)),
        na_strings=na_strings,
    )
    var = _gene_table(group, genes)
    if "variable.features" in group:
        var["highly_variable"] = genes.isin(decode(group["variable.features"][:]))
    obsm, varm = {}, {}
    for name, reduction in _members(file, "reductions"):
        if "cell.embeddings" not in reduction:
            continue
        # hdf5r writes matrices transposed.
        obsm[f"X_{name.lower()}"] = reduction["cell.embeddings"][:].T
        if name == "pca" and "feature.loadings" in reduction:
            features = decode(reduction["features"][:])
            varm["PCs"] = align_loadings(
                reduction["feature.loadings"][:].T, features, genes
            )
    if _members(file, "graphs"):
        notes.append(GRAPHS_NOTE)
    shape = (len(names), len(genes))
    counts, data = (_matrix(group, slot, shape) for slot in ("counts", "data"))
    return Parts(
        obs,
        var.drop(columns="vst.variable", errors="ignore"),
        counts,
        data,
        obsm,
        varm,
        notes,
    )


def _gene_table(group: h5py.Group, genes: pd.Index) -> pd.DataFrame:
    """The table of the genes; without columns if the file has none of these genes."""
    stored = group.get("meta.features")
    index = stored.get("_index") if isinstance(stored, h5py.Group) else None
    # Seurat keeps a table of fewer genes beside a matrix of all, and without names it is in order.
    if stored is None or (index is not None and index.shape != genes.shape):
        return pd.DataFrame(index=genes)
    return _table(stored, genes)


def _matrix(
    group: h5py.Group, slot: str, shape: tuple[int, int]
) -> sp.csr_matrix | None:
    """The CSC matrix of genes × cells as a CSR matrix ``(n_cells, n_genes)``."""
    if slot not in group:
        return None
    if isinstance(group[slot], h5py.Dataset):
        values = group[slot][:]
        return sp.csr_matrix(values) if values.shape == shape else None
    data, indices, indptr = (
        group[slot][name][:] for name in ("data", "indices", "indptr")
    )
    return csr_from_arrays(data, indices, indptr, shape, slot)
