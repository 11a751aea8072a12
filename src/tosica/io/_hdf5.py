"""Read the HDF5 files of converters: ``.h5ad`` of any, ``.h5Seurat`` of SeuratDisk.

Members are read one by one: anndata drops the factor levels of SeuratDisk's files, and fails on the
files of failed conversions.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica.io._parts import (
    GRAPHS_NOTE,
    Matrix,
    Parts,
    Refused,
    align_loadings,
    check_matrix,
    choose_assay,
    csr_from_arrays,
    decode,
    repair_columns,
    select_expression,
    to_categorical,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_LEVELS = "__categories"
_NAMES = "_index"

# --------------------------------------------------------------------------- h5ad


def read_h5ad(file: h5py.File, *, logicals: Collection[str], na_strings: Collection[str]) -> Parts:
    """Read an AnnData file that any of the converters wrote.

    The file is read element by element: anndata drops the factor levels of SeuratDisk's files, and
    fails on the files of failed conversions.
    """
    notes: list[str] = []
    for part in ("obs", "var"):
        if part not in file:
            raise Refused(f"The file has no {part!r}, so it is not a whole AnnData file.")
    obs = _table(file["obs"])
    obs = repair_columns(obs, notes, logicals=logicals, na_strings=na_strings)
    flags = [repr(str(name)) for name in obs if obs[name].dtype == bool]
    if flags and "X" in file and file["X"].attrs.get("encoding-type") == "csc_matrix":
        notes.append(f"not known: True in {', '.join(flags)} may have been a missing value, which sceasy turns into it")
    var = _table(file["var"])
    matrices = [Matrix("X", _element(file["X"]), var)] if "X" in file else []
    matrices += [
        Matrix(f"layers[{name!r}]", _element(element), var) for name, element in _members(file, "layers").items()
    ]
    if "X" in _members(file, "raw"):
        raw_var = _gene_names(_table(file["raw"]["var"]), var)
        matrices.append(Matrix("raw.X", _element(file["raw"]["X"]), raw_var))
    for name, values, table in matrices:
        check_matrix(values, name)
        if values.shape != (len(obs), len(table)):
            raise Refused(
                f"{name} is {values.shape[0]} × {values.shape[1]}, but the file names {len(obs)} "
                f"cells and {len(table)} genes: its conversion failed; convert the object again, "
                "or read the .rds or .h5Seurat file."
            )
    chosen = select_expression(matrices, notes)
    if len(chosen.var) > len(var):
        notes.append(f"X has all {len(chosen.var)} genes now, not the {len(var)} variable ones")
    obsm = {
        name: values
        for name, element in _members(file, "obsm").items()
        if (values := _array(element)) is not None and len(values) == len(obs)
    }
    lost = [f"varm[{name!r}]" for name in _members(file, "varm")]
    lost += [f"uns[{name!r}]" for name in _members(file, "uns") if name == "neighbors"]
    lost += [f"obsp[{name!r}]" for name in _members(file, "obsp")]
    if lost:
        notes.append(
            f"{', '.join(lost)} dropped: conversions leave loadings in another gene order and "
            "similarities where scanpy expects distances; call sc.pp.pca and sc.pp.neighbors"
        )
    return Parts(obs, _tidy_var(chosen.var), chosen.counts, chosen.data, obsm, notes=notes)


def _members(file: h5py.File, name: str) -> Mapping[str, h5py.Group | h5py.Dataset]:
    """Members of a group, none if there is no such group."""
    group = file.get(name)
    return group if isinstance(group, h5py.Group) else {}


def _table(group: h5py.Group) -> pd.DataFrame:
    """A table of cells or genes; factor levels may be in the column or in ``__categories``."""
    index = decode(group.attrs.get("_index", _NAMES))[0]
    if index not in group:
        raise Refused(f"{group.file.filename}: {group.name} has no names ({index!r} is missing).")
    # Newer anndata keeps names as it keeps strings that may be missing.
    stored = isinstance(group[index], h5py.Dataset)
    text = decode(group[index][:] if stored else np.asarray(_element(group[index])))
    levels = _members(group, _LEVELS)
    columns: dict[str, Any] = {}
    for name in group:
        if name in (index, _LEVELS):
            continue
        if name in levels:
            values = group[name][:]
            columns[name] = to_categorical(values, decode(levels[name][:]))
        elif isinstance(group[name], h5py.Group):
            columns[name] = _element(group[name])
        else:
            values = group[name][:]
            columns[name] = decode(values) if values.dtype.kind in "OSU" else values
    order = [name for name in decode(group.attrs.get("column-order", [])) if name in columns]
    order += [name for name in columns if name not in order]
    names = pd.Index(text, dtype=object)
    return pd.DataFrame({name: columns[name] for name in order}, index=names)


def _gene_names(raw_var: pd.DataFrame, var: pd.DataFrame) -> pd.DataFrame:
    """Table of the genes of ``raw``, indexed by their names.

    Some converters write numbers for the names, or the names into a column.
    """
    if _NAMES in raw_var:
        return raw_var.set_index(raw_var[_NAMES].astype(object)).drop(columns=_NAMES)
    numbers = [str(i) for i in range(len(raw_var))]
    if list(raw_var.index) == numbers and len(raw_var) == len(var):
        return var
    return raw_var


def _tidy_var(var: pd.DataFrame) -> pd.DataFrame:
    """Drop columns that repeat the names, and name the variable genes' column as scanpy does."""
    var = var.drop(columns=[c for c in ("features", _NAMES) if c in var])
    if "vst.variable" in var:
        var = var.assign(highly_variable=var["vst.variable"].astype(bool)).drop(columns="vst.variable")
    return var.rename_axis(None)


def _element(element: h5py.Group | h5py.Dataset) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ad.OldFormatWarning)
        return ad.io.read_elem(element)


def _array(element: h5py.Group | h5py.Dataset) -> np.ndarray | None:
    """A matrix of numbers; None for anything else."""
    if not isinstance(element, h5py.Dataset) or len(element.shape or ()) != 2:
        return None
    return np.asarray(element[:]) if element.dtype.kind in "biuf" else None


# --------------------------------------------------------------------------- h5Seurat


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
    assays = file["assays"]
    active = decode(file.attrs.get("active.assay", []))
    if not active:
        raise Refused("The file does not say which assay is active: save the object again.")
    assay = choose_assay(list(assays), active[0], assay, notes)
    group = assays[assay]
    genes = pd.Index(decode(group["features"][:]), dtype=object)
    cells = file["meta.data"]
    marked = [*decode(cells.attrs.get("logicals", [])), *logicals]
    obs = _seurat_table(cells, pd.Index(names, dtype=object))
    obs = repair_columns(obs, notes, logicals=list(dict.fromkeys(marked)), na_strings=na_strings)
    var = _gene_table(group, genes)
    if "variable.features" in group:
        var["highly_variable"] = genes.isin(decode(group["variable.features"][:]))
    obsm, varm = {}, {}
    for name in file.get("reductions", ()):
        reduction = file["reductions"][name]
        if "cell.embeddings" not in reduction:
            continue
        # hdf5r writes matrices transposed.
        obsm[f"X_{name.lower()}"] = reduction["cell.embeddings"][:].T
        if name == "pca" and "feature.loadings" in reduction:
            features = decode(reduction["features"][:])
            loadings = reduction["feature.loadings"][:].T
            varm["PCs"] = align_loadings(loadings, features, genes)
    if len(file.get("graphs", ())):
        notes.append(GRAPHS_NOTE)
    shape = (len(names), len(genes))
    counts, data = (_matrix(group, slot, shape) for slot in ("counts", "data"))
    return Parts(obs, var.drop(columns="vst.variable", errors="ignore"), counts, data, obsm, varm, notes)


def _gene_table(group: h5py.Group, genes: pd.Index) -> pd.DataFrame:
    """The table of the genes; without columns if the file has none of these genes."""
    stored = group.get("meta.features")
    index = stored.get("_index") if isinstance(stored, h5py.Group) else None
    # Seurat keeps a table of fewer genes beside a matrix of all, and without names it is in order.
    if stored is None or (index is not None and index.shape != genes.shape):
        return pd.DataFrame(index=genes)
    return _seurat_table(group["meta.features"], genes)


def _seurat_table(group: h5py.Group, index: pd.Index) -> pd.DataFrame:
    names = group.attrs.get("_index", ["_index"])
    skip = {*decode(names), "_index"}
    order = decode(group.attrs.get("colnames", []))
    order += [name for name in group if name not in order]
    columns = {name: _column(group, name) for name in order if name in group and name not in skip}
    return pd.DataFrame(columns, index=index)


def _column(group: h5py.Group, name: str) -> Any:
    if isinstance(group[name], h5py.Group):
        codes = group[name]["values"][:].astype(np.int64)
        return to_categorical(codes - 1, decode(group[name]["levels"][:]))
    values = group[name][:]
    return decode(values) if values.dtype.kind in "OSU" else values


def _matrix(group: h5py.Group, slot: str, shape: tuple[int, int]) -> sp.csr_matrix | None:
    """The CSC matrix of genes × cells as a CSR matrix ``(n_cells, n_genes)``."""
    if slot not in group:
        return None
    if isinstance(group[slot], h5py.Dataset):
        values = group[slot][:]
        return sp.csr_matrix(values) if values.shape == shape else None
    data, indices, indptr = (group[slot][name][:] for name in ("data", "indices", "indptr"))
    return csr_from_arrays(data, indices, indptr, shape, slot)
