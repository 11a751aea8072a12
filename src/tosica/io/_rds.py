"""Read Seurat objects and SingleCellExperiments from ``.rds`` files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica.io._parts import GRAPHS_NOTE, Parts, align_loadings, choose_assay
from tosica.io._r_objects import RObject, parse_rds
from tosica.io._refused import RefusedValue

if TYPE_CHECKING:
    from pathlib import Path

_ASSAY_CLASSES = ("Assay", "Assay5", "SCTAssay", "Assay3")
_EXPERIMENT_CLASSES = {
    "SingleCellExperiment",
    "RangedSummarizedExperiment",
    "SummarizedExperiment",
}
_SLOTS = ("counts", "data")


class _Assay(NamedTuple):
    """Counts and log-normalised values of an assay; either may be missing."""

    counts: sp.csr_matrix | None
    data: sp.csr_matrix | None
    genes: list[str]
    variable_genes: list[str]


# What people call the types of R.
_KINDS = {
    **{"VEC": "a list", "LIST": "a pairlist", "S4": "an S4 object", "CLO": "a function"},
    **{"STR": "a character vector", "INT": "a vector of whole numbers"},
    **{"REAL": "a vector of numbers", "LGL": "a vector of booleans", "ENV": "an environment"},
    **{"NILVALUE": "NULL", "NIL": "NULL"},
}


def read_rds(path: Path, *, assay: str | None) -> Parts:
    """Read a Seurat object (v3 to v5) or a SingleCellExperiment.

    Raises
    ------
    KeyError
        If there is no such assay.
    ValueError
        If the file holds something else, or an assay that is not supported.
    """
    seurat = parse_rds(path)
    classes = seurat.classes
    if _EXPERIMENT_CLASSES & set(classes):
        return _read_experiment(seurat)
    if "Seurat" not in classes:
        kind = _KINDS.get(seurat.kind, "a value of another kind")
        held = f"a {' '.join(classes)}" if classes else kind
        raise RefusedValue(
            f"{str(path)!r} holds {held}, not a Seurat object or a SingleCellExperiment."
        )
    notes: list[str] = []
    cells = seurat["meta.data"]["row.names"].strings()
    obs = seurat["meta.data"].table(cells)
    assays = seurat["assays"].items()
    name = choose_assay(list(assays), seurat["active.assay"].strings()[0], assay, notes)
    stored = assays[name]
    kind = (stored.classes or [stored.kind])[0]
    if kind not in _ASSAY_CLASSES:
        raise RefusedValue(
            f"Assay {name!r} is a {kind}; only {', '.join(_ASSAY_CLASSES[:3])} can be read, that "
            f"is, gene expression (the object has {', '.join(map(repr, assays))})."
        )
    read = _read_assay_v5 if "layers" in stored else _read_assay_v3
    expression = read(stored, name, cells)
    var = pd.DataFrame(index=pd.Index(expression.genes, dtype=object))
    features = stored.attributes.get("meta.features")
    if features is not None and features["row.names"].strings() == expression.genes:
        var = features.table(expression.genes).drop(columns="vst.variable", errors="ignore")
    if expression.variable_genes:
        var["highly_variable"] = var.index.isin(expression.variable_genes)
    obsm, varm = {}, {}
    for key, reduction in seurat["reductions"].items().items():
        embedding = reduction["cell.embeddings"]
        if embedding.dimnames()[0] != cells:
            notes.append(f"reduction {key!r} was left out: it has other cells")
            continue
        obsm[f"X_{key.lower()}"] = np.ma.getdata(embedding.array())
        loadings = reduction.attributes.get("feature.loadings")
        if key == "pca" and loadings is not None and loadings.dimnames()[0]:
            varm["PCs"] = align_loadings(loadings.array(), loadings.dimnames()[0], var.index)
    if seurat["graphs"].items():
        notes.append(GRAPHS_NOTE)
    if "images" in seurat and seurat["images"].items():
        notes.append("images and the positions of spots were left out")
    _add_active_ident(seurat["active.ident"], obs, notes)
    obs = _remove_unused_categories(obs)
    return Parts(obs, var, expression.counts, expression.data, obsm, varm, notes)


def _read_assay_v3(assay: RObject, name: str, cells: list[str]) -> _Assay:
    """Read an ``Assay``, the only class before Seurat 5."""
    matrices: dict[str, sp.csr_matrix] = {}
    genes: list[str] = []
    for slot in _SLOTS:
        stored = assay[slot]
        rows, columns = stored.dimnames()
        if not rows or not columns:  # Seurat stores an empty matrix for a missing one.
            continue
        if columns != cells:
            raise RefusedValue(
                f"{slot} of assay {name!r} has other cells than the table of the cells."
            )
        if genes and rows != genes:
            raise RefusedValue(f"Counts and data of assay {name!r} have other genes.")
        genes = rows
        matrices[slot] = stored.cells_by_genes(f"{slot} of assay {name!r}")
        assay.drop(slot)
    variable = assay["var.features"].strings() if "var.features" in assay else []
    return _Assay(matrices.get("counts"), matrices.get("data"), genes, variable)


def _read_assay_v5(assay: RObject, name: str, cells: list[str]) -> _Assay:
    """Read an ``Assay5``, and join its layers if it is split.

    Layers have no names of their own: two logical matrices say which cells and genes they have.
    """
    genes = assay["features"].dimnames()[0]
    layers = assay["layers"].items()
    has_cells, has_genes = (
        dict(zip(assay[axis].dimnames()[1], assay[axis].array().T, strict=True))
        for axis in ("cells", "features")
    )
    indexer = pd.Index(cells).get_indexer(pd.Index(assay["cells"].dimnames()[0]))
    if sorted(indexer) != list(range(len(cells))):
        raise RefusedValue(f"Assay {name!r} has other cells than the table of the cells.")
    matrices: dict[str, sp.csr_matrix] = {}
    for slot in _SLOTS:
        keys = [key for key in layers if key == slot or key.startswith(f"{slot}.")]
        joined, covered = None, np.zeros(len(cells), dtype=bool)
        for key in keys:
            rows = indexer[np.flatnonzero(has_cells[key])]
            columns = np.flatnonzero(has_genes[key])
            if covered[rows].any():
                twice = cells[int(rows[covered[rows]][0])]
                raise RefusedValue(
                    f"Layers {', '.join(map(repr, keys))} of assay {name!r} overlap: cell "
                    f"{twice!r} is in two of them; call JoinLayers or subset the object in R."
                )
            covered[rows] = True
            layer = layers[key].cells_by_genes(f"layer {key!r} of assay {name!r}")
            if layer.shape != (len(rows), len(columns)):
                raise RefusedValue(
                    f"Layer {key!r} of assay {name!r} is {layer.shape[0]} × {layer.shape[1]}, but "
                    f"the assay lists {len(rows)} cells and {len(columns)} genes for it."
                )
            if layer.shape == (len(cells), len(genes)) and (rows == np.arange(len(cells))).all():
                joined = layer
            else:
                entries = sp.coo_matrix(layer)
                indices = (rows[entries.row], columns[entries.col])
                layer = sp.csr_matrix((entries.data, indices), shape=(len(cells), len(genes)))
                joined = layer if joined is None else joined + layer
        if joined is None:
            continue
        if covered.all():
            matrices[slot] = joined
        elif slot == "counts":
            raise RefusedValue(
                f"{int((~covered).sum())} cells of assay {name!r} are in no layer of counts; "
                "subset the object in R."
            )
    variable: list[str] = []
    described = assay["meta.data"].items() if "meta.data" in assay else {}
    if "var.features" in described:
        variable = [gene for gene in described["var.features"].strings() if isinstance(gene, str)]
    return _Assay(matrices.get("counts"), matrices.get("data"), genes, variable)


def _add_active_ident(idents: RObject, obs: pd.DataFrame, notes: list[str]) -> None:
    """Add the active identities as a column, unless another column is the same."""
    active = pd.Series(idents.column(), index=obs.index).astype(str)
    if active.nunique() < 2 or any((obs[name].astype(str) == active).all() for name in obs):
        return
    obs["active_ident"] = pd.Categorical(idents.column())
    notes.append("the active identities are in obs['active_ident']")


def _read_experiment(experiment: RObject) -> Parts:
    """Read ``counts``, ``logcounts`` and reduced dimensions of a SingleCellExperiment."""
    cells = experiment["colData"]["rownames"].strings()
    obs = experiment["colData"]["listData"].table(cells)
    genes = experiment["NAMES"].strings() if "NAMES" in experiment else []
    if not genes and "rowRanges" in experiment:
        ranges = experiment["rowRanges"]
        genes = ranges["partitioning"]["NAMES"].strings() if "partitioning" in ranges else []
    stored = experiment["assays"]["data"]["listData"].items()
    counts, data = (
        stored[key].cells_by_genes(f"assay {key!r}") if key in stored else None
        for key in ("counts", "logcounts")
    )
    if counts is None and data is None:
        raise RefusedValue(
            "The SingleCellExperiment has no assay 'counts' or 'logcounts'; it has "
            f"{', '.join(map(repr, stored)) or 'none'}."
        )
    if not genes:
        genes = next(iter(stored.values())).dimnames()[0]
    obsm = {}
    internal = experiment["int_colData"]["listData"].items() if "int_colData" in experiment else {}
    if "reducedDims" in internal:
        for key, embedding in internal["reducedDims"]["listData"].items().items():
            obsm[f"X_{key.lower()}"] = np.ma.getdata(embedding.array())
    var = pd.DataFrame(index=pd.Index(genes, dtype=object))
    return Parts(_remove_unused_categories(obs), var, counts, data, obsm)


def _remove_unused_categories(obs: pd.DataFrame) -> pd.DataFrame:
    for name in obs:
        if isinstance(obs[name].dtype, pd.CategoricalDtype):
            obs[name] = obs[name].cat.remove_unused_categories()
    return obs
