"""Read Seurat objects and SingleCellExperiments from ``.rds`` files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica.io._h5seurat import GRAPHS, choose_assay, spread
from tosica.io._parts import Parts
from tosica.io._r_objects import RObject, parse

if TYPE_CHECKING:
    from pathlib import Path

_ASSAYS = ("Assay", "Assay5", "SCTAssay", "Assay3")
_SLOTS = ("counts", "data")


def read_rds(path: Path, *, assay: str | None, caller: str) -> Parts:
    """Read a Seurat object (v3 to v5) or a SingleCellExperiment.

    Raises
    ------
    KeyError
        If there is no such assay.
    ValueError
        If the file holds something else, or an assay that is not supported.
    """
    found = parse(path)
    classes = found.classes
    if "Seurat" in classes:
        return _seurat(found, assay, caller)
    if {"SingleCellExperiment", "RangedSummarizedExperiment", "SummarizedExperiment"} & {*classes}:
        return _experiment(found, caller)
    what = " ".join(classes) or {"VEC": "list", "S4": "S4 object"}.get(found.kind, found.kind)
    raise ValueError(
        f"{caller}: {str(path)!r} holds a {what}, not a Seurat object or a SingleCellExperiment."
    )


# ------------------------------------------------------------------------------- Seurat


def _seurat(found: RObject, wanted: str | None, caller: str) -> Parts:
    notes: list[str] = []
    assays = found["assays"].items()
    name = choose_assay(list(assays), found["active.assay"].strings()[0], wanted, notes)
    assay = assays[name]
    kind = (assay.classes or [assay.kind])[0]
    if kind not in _ASSAYS:
        raise ValueError(
            f"{caller}: assay {name!r} is a {kind}; what can be read are {', '.join(_ASSAYS[:3])}, "
            f"that is, expression of genes (the object has {', '.join(map(repr, assays))})."
        )
    cells = found["meta.data"]["row.names"].strings()
    obs = found["meta.data"].table(cells)
    read = _layers if "layers" in assay else _slots
    matrices, genes, variable = read(assay, name, cells, caller)
    var = pd.DataFrame(index=pd.Index(genes, dtype=object))
    described = assay.attributes.get("meta.features")
    if described is not None and described["row.names"].strings() == genes:
        var = described.table(genes).drop(columns="vst.variable", errors="ignore")
    if variable:
        var["highly_variable"] = var.index.isin(variable)
    obsm, varm = {}, {}
    for key, reduction in found["reductions"].items().items():
        embedded = reduction["cell.embeddings"]
        if embedded.dimnames()[0] != cells:
            notes.append(f"reduction {key!r} was left out: it has other cells")
            continue
        obsm[f"X_{key.lower()}"] = np.ma.getdata(embedded.array())
        loadings = reduction.attributes.get("feature.loadings")
        if key == "pca" and loadings is not None and loadings.dimnames()[0]:
            varm["PCs"] = spread(loadings.array(), loadings.dimnames()[0], var.index)
    if found["graphs"].items():
        notes.append(GRAPHS)
    if "images" in found and found["images"].items():
        notes.append("images and where spots lie in them were left out")
    _keep_idents(found["active.ident"], obs, notes)
    counts, data = matrices
    return Parts(_tidy(obs), var, counts, data, obsm, varm, notes)


def _slots(
    assay: RObject, name: str, cells: list[str], caller: str
) -> tuple[list[sp.csr_matrix | None], list[str], list[str]]:
    """The matrices of an ``Assay``, the only kind before version 5."""
    matrices: list[sp.csr_matrix | None] = []
    genes: list[str] = []
    for slot in _SLOTS:
        stored = assay[slot]
        rows, columns = stored.dimnames()
        if not rows or not columns:  # an empty matrix stands for one that is not there
            matrices.append(None)
            continue
        if columns != cells:
            raise ValueError(
                f"{caller}: {slot} of assay {name!r} has other cells than the table of the cells."
            )
        if genes and rows != genes:
            raise ValueError(f"{caller}: counts and data of assay {name!r} have other genes.")
        genes = rows
        matrices.append(_matrix(stored, f"{slot} of assay {name!r}", caller))
        assay.drop(slot)
    variable = assay["var.features"].strings() if "var.features" in assay else []
    return matrices, genes, variable


def _layers(
    assay: RObject, name: str, cells: list[str], caller: str
) -> tuple[list[sp.csr_matrix | None], list[str], list[str]]:
    """The matrices of an ``Assay5``, joined if they are split into layers.

    Layers have no names of their own: which cells and genes they have is marked in two tables.
    """
    genes = assay["features"].dimnames()[0]
    layers = assay["layers"].items()
    in_layer = {
        axis: dict(zip(assay[axis].dimnames()[1], assay[axis].array().T, strict=True))
        for axis in ("cells", "features")
    }
    order = assay["cells"].dimnames()[0]
    position = pd.Index(cells).get_indexer(pd.Index(order))
    if sorted(position) != list(range(len(cells))):
        raise ValueError(f"{caller}: assay {name!r} has other cells than the table of the cells.")
    matrices: list[sp.csr_matrix | None] = []
    for slot in _SLOTS:
        parts = [key for key in layers if key == slot or key.startswith(f"{slot}.")]
        joined, seen = None, np.zeros(len(cells), dtype=bool)
        for key in parts:
            rows = position[np.flatnonzero(in_layer["cells"][key])]
            columns = np.flatnonzero(in_layer["features"][key])
            if seen[rows].any():
                twice = cells[int(rows[seen[rows]][0])]
                raise ValueError(
                    f"{caller}: layers {', '.join(map(repr, parts))} of assay {name!r} overlap: "
                    f"cell {twice!r} is in two of them; call JoinLayers or subset the object in R."
                )
            seen[rows] = True
            part = _matrix(layers[key], f"layer {key!r} of assay {name!r}", caller)
            if part.shape != (len(rows), len(columns)):
                raise ValueError(
                    f"{caller}: layer {key!r} of assay {name!r} has {part.shape[0]} cells and "
                    f"{part.shape[1]} genes where {len(rows)} and {len(columns)} are marked."
                )
            if part.shape == (len(cells), len(genes)) and (rows == np.arange(len(cells))).all():
                joined = part
            else:
                whole = sp.coo_matrix(part)
                at = (rows[whole.row], columns[whole.col])
                whole = sp.csr_matrix((whole.data, at), shape=(len(cells), len(genes)))
                joined = whole if joined is None else joined + whole
        if joined is not None and not seen.all():
            if slot == "counts":
                raise ValueError(
                    f"{caller}: {int((~seen).sum())} cells of assay {name!r} are in no layer of "
                    "counts; subset the object in R."
                )
            joined = None
        matrices.append(joined)
    variable: list[str] = []
    described = assay["meta.data"].items() if "meta.data" in assay else {}
    if "var.features" in described:
        variable = [gene for gene in described["var.features"].strings() if isinstance(gene, str)]
    return matrices, genes, variable


def _matrix(stored: RObject, what: str, caller: str) -> sp.csr_matrix:
    try:
        return stored.cells_by_genes()
    except ValueError as error:
        raise ValueError(f"{caller}: {what} cannot be read: {error}.") from error


def _keep_idents(idents: RObject, obs: pd.DataFrame, notes: list[str]) -> None:
    """Add the active identities as a column, unless a column says the same."""
    active = pd.Series(idents.column(), index=obs.index).astype(str)
    if active.nunique() < 2 or any((obs[name].astype(str) == active).all() for name in obs):
        return
    obs["active_ident"] = pd.Categorical(idents.column())
    notes.append("the active identities are in obs['active_ident']")


# ------------------------------------------------------------------------------- Bioconductor


def _experiment(found: RObject, caller: str) -> Parts:
    """A SingleCellExperiment: assays ``counts`` and ``logcounts``, reduced dimensions."""
    notes: list[str] = []
    cells = found["colData"]["rownames"].strings()
    listed = found["colData"]["listData"]
    obs = listed.table(cells)
    genes = found["NAMES"].strings() if "NAMES" in found else []
    if not genes and "rowRanges" in found:
        ranges = found["rowRanges"]
        genes = ranges["partitioning"]["NAMES"].strings() if "partitioning" in ranges else []
    stored = found["assays"]["data"]["listData"].items()
    counts, data = (
        _matrix(stored[key], f"assay {key!r}", caller) if key in stored else None
        for key in ("counts", "logcounts")
    )
    if counts is None and data is None:
        raise ValueError(
            f"{caller}: the SingleCellExperiment has no assay 'counts' or 'logcounts'; it has "
            f"{', '.join(map(repr, stored)) or 'none'}."
        )
    if not genes:
        genes = next(iter(stored.values())).dimnames()[0]
    obsm = {}
    internal = found["int_colData"]["listData"].items() if "int_colData" in found else {}
    if "reducedDims" in internal:
        for key, embedded in internal["reducedDims"]["listData"].items().items():
            obsm[f"X_{key.lower()}"] = np.ma.getdata(embedded.array())
    return Parts(
        _tidy(obs),
        pd.DataFrame(index=pd.Index(genes, dtype=object)),
        counts,
        data,
        obsm,
        notes=notes,
    )


def _tidy(obs: pd.DataFrame) -> pd.DataFrame:
    """Without levels that no cell has."""
    for name in obs:
        if isinstance(obs[name].dtype, pd.CategoricalDtype):
            obs[name] = obs[name].cat.remove_unused_categories()
    return obs
