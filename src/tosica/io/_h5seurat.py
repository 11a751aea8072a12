"""Read ``.h5Seurat`` files, as SeuratDisk saves Seurat objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica.io._columns import missing_codes_to_categorical, repair
from tosica.io._matrices import rows_from_file
from tosica.io._parts import Parts

if TYPE_CHECKING:
    from collections.abc import Collection


def read_h5seurat(
    file: h5py.File,
    *,
    assay: str | None,
    logicals: Collection[str],
    na_strings: Collection[str],
    caller: str,
) -> Parts:
    """Read one assay, the cells' table and the reductions."""
    notes: list[str] = []
    names = _text(file["cell.names"][:])
    assay = choose_assay(list(file["assays"]), _text(file.attrs["active.assay"])[0], assay, notes)
    group = file["assays"][assay]
    genes = pd.Index(_text(group["features"][:]), dtype=object)
    marked = [*_text(np.atleast_1d(file["meta.data"].attrs.get("logicals", []))), *logicals]
    obs = _table(file["meta.data"], pd.Index(names, dtype=object))
    obs = repair(obs, notes, logicals=list(dict.fromkeys(marked)), na_strings=na_strings)
    var = _table(group["meta.features"], genes) if "meta.features" in group else None
    if var is None or len(var) != len(genes):
        var = pd.DataFrame(index=genes)
    if "variable.features" in group:
        var["highly_variable"] = genes.isin(_text(group["variable.features"][:]))
    obsm, varm = {}, {}
    for name, reduction in file.get("reductions", {}).items():
        if "cell.embeddings" not in reduction:
            continue
        # hdf5r writes matrices transposed.
        obsm[f"X_{name.lower()}"] = reduction["cell.embeddings"][:].T
        if name == "pca" and "feature.loadings" in reduction:
            features = _text(reduction["features"][:])
            varm["PCs"] = spread(reduction["feature.loadings"][:].T, features, genes)
    if len(file.get("graphs", ())):
        notes.append(GRAPHS)
    shape = (len(names), len(genes))
    counts, data = (_matrix(group, slot, shape, caller) for slot in ("counts", "data"))
    return Parts(
        obs, var.drop(columns="vst.variable", errors="ignore"), counts, data, obsm, varm, notes
    )


GRAPHS = "graphs were left out: they are similarities, not distances; call sc.pp.neighbors"


def choose_assay(assays: list[str], active: str, wanted: str | None, notes: list[str]) -> str:
    """The assay that was asked for, or else the active one.

    Raises
    ------
    KeyError
        If the object has no such assay.
    """
    if wanted is None:
        others = [name for name in assays if name != active]
        if others:
            notes.append(
                f"the active assay, {active!r}, was read; there are also "
                f"{', '.join(map(repr, others))} "
                "(assay=)"
            )
        wanted = active
    if wanted not in assays:
        raise KeyError(
            f"There is no assay {wanted!r}; the object has {', '.join(map(repr, assays))}."
        )
    if wanted == "SCT":
        notes.append(
            "assay 'SCT' holds counts that sctransform corrected; assay='RNA' has those measured"
        )
    return wanted


def spread(loadings: np.ndarray, features: list[str], genes: pd.Index) -> np.ndarray:
    """Loadings in the order of the genes, zero for genes without, as scanpy keeps them."""
    place = genes.get_indexer(pd.Index(features, dtype=object))
    out = np.zeros((len(genes), loadings.shape[1]))
    out[place[place >= 0]] = loadings[place >= 0]
    return out


def _table(group: h5py.Group, index: pd.Index) -> pd.DataFrame:
    names = group.attrs.get("_index", ["_index"])
    skip = {*_text(np.atleast_1d(names)), "_index"}
    order = _text(np.atleast_1d(group.attrs.get("colnames", [])))
    order += [name for name in group if name not in order]
    columns = {name: _column(group[name]) for name in order if name in group and name not in skip}
    return pd.DataFrame(columns, index=index)


def _column(element: h5py.Group | h5py.Dataset) -> Any:
    if isinstance(element, h5py.Group):
        codes = element["values"][:].astype(np.int64)
        return missing_codes_to_categorical(codes - 1, _text(element["levels"][:]))
    values = element[:]
    return _text(values) if values.dtype.kind in "OSU" else values


def _matrix(
    group: h5py.Group, slot: str, shape: tuple[int, int], caller: str
) -> sp.csr_matrix | None:
    """Genes × cells in columns are cells × genes in rows."""
    if slot not in group:
        return None
    element = group[slot]
    if isinstance(element, h5py.Dataset):
        values = element[:]
        return sp.csr_matrix(values) if values.shape == shape else None
    data, indices, indptr = (element[name][:] for name in ("data", "indices", "indptr"))
    try:
        return rows_from_file(data, indices, indptr, shape)
    except ValueError as error:
        raise ValueError(f"{caller}: {slot} cannot be read: {error}.") from error


def _text(values: Any) -> list[str]:
    return [v.decode() if isinstance(v, bytes) else str(v) for v in np.atleast_1d(values)]
