"""Read the ``.h5ad`` files that converters of Seurat objects write."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import anndata as ad
import h5py
import numpy as np
import pandas as pd

from tosica.io._columns import decode, repair_columns, to_categorical
from tosica.io._hdf5 import check_sizes, column_of, group_of, values_of
from tosica.io._matrices import Matrix, check_matrix, select_expression
from tosica.io._parts import Parts
from tosica.io._refused import RefusedValue

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_LEVELS = "__categories"
_NAMES = "_index"


def read_h5ad(file: h5py.File, *, logicals: Collection[str], na_strings: Collection[str]) -> Parts:
    """Read an AnnData file that any of the converters wrote.

    The file is read element by element: anndata drops the factor levels of SeuratDisk's files, and
    fails on the files of failed conversions.
    """
    notes: list[str] = []
    for part in ("obs", "var"):
        if part not in file:
            raise RefusedValue(f"The file has no {part!r}, so it is not a whole AnnData file.")
    obs = _table(group_of(file, "obs"))
    obs = repair_columns(obs, notes, logicals=logicals, na_strings=na_strings)
    flags = [repr(str(name)) for name in obs if obs[name].dtype == bool]
    if flags and "X" in file and file["X"].attrs.get("encoding-type") == "csc_matrix":
        notes.append(
            f"not known: True in {', '.join(flags)} may have been a missing value, which sceasy "
            "turns into it"
        )
    var = _table(group_of(file, "var"))
    matrices = [Matrix("X", _element(file["X"]), var)] if "X" in file else []
    matrices += [
        Matrix(f"layers[{name!r}]", _element(element), var)
        for name, element in _members(file, "layers").items()
    ]
    if "X" in _members(file, "raw"):
        raw_var = _gene_names(_table(group_of(file["raw"], "var")), var)
        matrices.append(Matrix("raw.X", _element(file["raw"]["X"]), raw_var))
    for name, values, table in matrices:
        check_matrix(values, name)
        if values.shape != (len(obs), len(table)):
            raise RefusedValue(
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
        raise RefusedValue(
            f"{group.file.filename}: {group.name} has no names ({index!r} is missing)."
        )
    # Newer anndata keeps names as it keeps strings that may be missing.
    stored = isinstance(group[index], h5py.Dataset)
    text = decode(values_of(group, index) if stored else np.asarray(_element(group[index])))
    levels = _members(group, _LEVELS)
    columns: dict[str, Any] = {}
    for name in group:
        if name in (index, _LEVELS):
            continue
        if name in levels:
            values = column_of(group, name, len(text))
            columns[name] = to_categorical(values, decode(values_of(levels, name)))
        elif isinstance(group[name], h5py.Group):
            columns[name] = _element(group[name])
        else:
            values = column_of(group, name, len(text))
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
        var = var.assign(highly_variable=var["vst.variable"].astype(bool)).drop(
            columns="vst.variable"
        )
    return var.rename_axis(None)


def _element(element: h5py.Group | h5py.Dataset) -> Any:
    check_sizes(element)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ad.OldFormatWarning)
        return ad.io.read_elem(element)


def _array(element: h5py.Group | h5py.Dataset) -> np.ndarray | None:
    """A matrix of numbers; None for anything else."""
    if not isinstance(element, h5py.Dataset) or len(element.shape or ()) != 2:
        return None
    check_sizes(element)
    return np.asarray(element[:]) if element.dtype.kind in "biuf" else None
