"""Read Seurat objects and SingleCellExperiments from ``.rds`` files, by rdata."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._text import list_names
from tosica.io._contents import (
    GRAPHS_NOTE,
    SeuratContents,
    StoredAssay,
    align_loadings,
    choose_assay,
)
from tosica.io._errors import ReadError, explain_damage
from tosica.io._matrices import csr_from_arrays
from tosica.io._tables import to_categorical

if TYPE_CHECKING:
    from pathlib import Path

_ASSAY_CLASSES = {"Assay", "Assay5", "SCTAssay", "Assay3"}
_EXPERIMENT_CLASSES = {
    "SingleCellExperiment",
    "RangedSummarizedExperiment",
    "SummarizedExperiment",
}
_SLOTS = ("counts", "data")


class _Assay(NamedTuple):
    """Counts and log-normalized values of an assay; either may be missing."""

    matrices: dict[str, sp.csr_matrix]
    genes: list[str]
    variable_genes: list[str]


def read_rds(path: Path, *, assay: str | None) -> SeuratContents:
    """Read a Seurat object (v3 to v5) or a SingleCellExperiment."""
    seurat = _parse(path, ".rds")
    if _EXPERIMENT_CLASSES & set(seurat.classes):
        return _read_experiment(seurat)
    if "Seurat" not in seurat.classes:
        raise ReadError(
            f"{str(path)!r} holds {seurat.description}, not a Seurat object."
        )
    notes: list[str] = []
    cell_names = seurat["meta.data"]["row.names"].strings()
    obs = seurat["meta.data"].table(cell_names)
    assays = seurat["assays"].items()
    active = seurat["active.assay"].strings()[0]
    described = {key: _describe_assay(value, key) for key, value in assays.items()}
    name = choose_assay(described, active, assay, notes)
    stored = assays[name]
    if not _ASSAY_CLASSES & set(stored.classes):
        raise ReadError(
            f"Assay {name!r} is {stored.description}; only gene expression can be read, "
            f"in an Assay, Assay5 or SCTAssay (the object has {list_names(list(assays))})."
        )
    if "layers" in stored.attributes:
        expression = _read_assay_v5(stored, name, cell_names)
    else:
        expression = _read_assay_v3(stored, name, cell_names)
    var = _gene_table(stored, expression)
    obsm = {}
    varm = {}
    for key, reduction in seurat["reductions"].items().items():
        embedding = reduction["cell.embeddings"]
        if embedding.dimnames()[0] != cell_names:
            notes.append(f"reduction {key!r} was left out: it has other cells")
            continue
        obsm[f"X_{key.lower()}"] = np.ma.getdata(embedding.array())
        loadings = reduction.attributes.get("feature.loadings")
        if key == "pca" and loadings is not None and loadings.dimnames()[0]:
            varm["PCs"] = align_loadings(
                loadings.array(), loadings.dimnames()[0], var.index
            )
    if seurat["graphs"].items():
        notes.append(GRAPHS_NOTE)
    if seurat.items("images"):
        notes.append("images and the positions of spots were left out")
    identities = seurat["active.ident"].column()
    names = pd.Series(identities, index=obs.index).astype(str)
    is_column = any((obs[column].astype(str) == names).all() for column in obs)
    if names.nunique() > 1 and not is_column:
        obs["active_ident"] = pd.Categorical(identities)
        notes.append("the active identities are in obs['active_ident']")
    return SeuratContents(
        obs=obs,
        var=var,
        counts=expression.matrices.get("counts"),
        data=expression.matrices.get("data"),
        obsm=obsm,
        varm=varm,
        notes=notes,
    )


def _describe_assay(assay: RObject, name: str) -> StoredAssay:
    layers = list(assay.items("layers"))
    genes: list[str] = []
    if layers:
        genes = assay["features"].dimnames()[0]
    for slot in _SLOTS:
        stored = assay.attributes.get(slot)
        # Seurat stores an empty matrix for a missing one.
        if stored is not None and stored.dimnames()[0]:
            layers.append(slot)
            genes = stored.dimnames()[0]
    return StoredAssay(
        genes,
        has_counts=any(layer.startswith("counts") for layer in layers),
        is_corrected="SCT" in f"{name} {assay.classes}".upper(),
    )


def _gene_table(stored: RObject, expression: _Assay) -> pd.DataFrame:
    genes = expression.genes
    var = pd.DataFrame(index=pd.Index(genes, dtype=object))
    features = stored.attributes.get("meta.features")
    if features is not None and features["row.names"].strings() == genes:
        var = features.table(genes).drop(columns="vst.variable", errors="ignore")
    if expression.variable_genes:
        var["highly_variable"] = var.index.isin(expression.variable_genes)
    return var


def _read_assay_v3(assay: RObject, name: str, cell_names: list[str]) -> _Assay:
    """Read an ``Assay``, the only class before Seurat 5."""
    matrices: dict[str, sp.csr_matrix] = {}
    genes: list[str] = []
    for slot in _SLOTS:
        stored = assay[slot]
        rows, columns = stored.dimnames()
        if not rows or not columns:  # Seurat stores an empty matrix for a missing one.
            continue
        genes = genes or rows
        if columns != cell_names or rows != genes:
            raise ReadError(
                f"{slot} of assay {name!r} has other cells or genes than the rest of the "
                "object."
            )
        matrices[slot] = stored.cells_by_genes(f"{slot} of assay {name!r}")
        assay.drop(slot)
    return _Assay(matrices, genes, assay.strings("var.features"))


def _read_assay_v5(assay: RObject, name: str, cell_names: list[str]) -> _Assay:
    """Read an ``Assay5``, and join its layers if it is split."""
    genes = assay["features"].dimnames()[0]
    assay_cells = pd.Index(assay["cells"].dimnames()[0])
    cell_indexer = pd.Index(cell_names).get_indexer(assay_cells)
    if sorted(cell_indexer) != list(range(len(cell_names))):
        raise ReadError(f"Assay {name!r} has other cells than the table of the cells.")
    matrices: dict[str, sp.csr_matrix] = {}
    for slot in _SLOTS:
        joined, is_covered = _join_layers(assay, name, slot, cell_indexer, len(genes))
        if joined is not None and is_covered.all():
            matrices[slot] = joined
        elif joined is not None and slot == "counts":
            raise ReadError(
                f"{int((~is_covered).sum())} cells of assay {name!r} are in no layer of "
                "counts; subset it."
            )
    variable = assay.items("meta.data").get("var.features")
    variable_genes = [] if variable is None else variable.strings()
    return _Assay(
        matrices, genes, [gene for gene in variable_genes if isinstance(gene, str)]
    )


def _join_layers(
    assay: RObject, name: str, slot: str, cell_indexer: np.ndarray, n_genes: int
) -> tuple[sp.csr_matrix | None, np.ndarray]:
    """Join the layers of a slot, and tell which cells they cover.

    Layers have no names of their own: two logical matrices say which cells and genes each
    of them has. ``cell_indexer`` has the row of each cell of the assay.
    """
    has_cells = _columns_of(assay["cells"])
    has_genes = _columns_of(assay["features"])
    shape = (len(cell_indexer), n_genes)
    joined = None
    is_covered = np.zeros(len(cell_indexer), dtype=bool)
    for key, stored in assay["layers"].items().items():
        if key != slot and not key.startswith(f"{slot}."):
            continue
        rows = cell_indexer[np.flatnonzero(has_cells[key])]
        columns = np.flatnonzero(has_genes[key])
        layer = stored.cells_by_genes(f"layer {key!r} of assay {name!r}")
        if layer.shape != (len(rows), len(columns)) or is_covered[rows].any():
            raise ReadError(
                f"Layer {key!r} of assay {name!r} overlaps another one, or has other "
                "cells or genes than the assay lists for it; call JoinLayers or subset "
                "the object in R."
            )
        is_covered[rows] = True
        if layer.shape != shape or (rows != np.arange(len(rows))).any():
            entries = layer.tocoo()
            indices = (rows[entries.row], columns[entries.col])
            layer = sp.csr_matrix((entries.data, indices), shape=shape)
        joined = layer if joined is None else joined + layer
    return joined, is_covered


def _columns_of(matrix: RObject) -> dict[str, np.ndarray]:
    """Columns of a matrix by name."""
    return dict(zip(matrix.dimnames()[1], matrix.array().T, strict=True))


def _read_experiment(experiment: RObject) -> SeuratContents:
    """Read ``counts``, ``logcounts`` and reduced dimensions of a SingleCellExperiment."""
    cell_names = experiment["colData"]["rownames"].strings()
    assays = experiment["assays"]["data"]["listData"].items()
    matrices = {
        key: assays[key].cells_by_genes(f"assay {key!r}")
        for key in ("counts", "logcounts")
        if key in assays
    }
    genes = experiment.strings("NAMES")
    if not genes:
        genes = experiment.strings("rowRanges", "partitioning", "NAMES")
    if not genes and assays:
        genes = next(iter(assays.values())).dimnames()[0]
    reductions = experiment.items("int_colData", "listData").get("reducedDims")
    embeddings = {} if reductions is None else reductions.items("listData")
    return SeuratContents(
        obs=experiment["colData"]["listData"].table(cell_names),
        var=pd.DataFrame(index=pd.Index(genes, dtype=object)),
        counts=matrices.get("counts"),
        data=matrices.get("logcounts"),
        obsm={
            f"X_{key.lower()}": np.ma.getdata(embedding.array())
            for key, embedding in embeddings.items()
        },
    )


# --------------------------------------------------------------------------- R objects


def parse_rda(path: Path) -> dict[str, RObject]:
    """Parse an ``.rda`` file, as R packages have for data, into objects by name."""
    with explain_damage(path):
        return _parse(path, ".rda").pairs()


def _parse(path: Path, extension: str) -> RObject:
    import rdata

    with warnings.catch_warnings():
        # rdata warns about objects that it does not know, none of which is read.
        warnings.simplefilter("ignore")
        return RObject(rdata.parser.parse_file(path, extension=extension).object)


class RObject:
    """An R object: its class, its slots or attributes, and its value.

    A missing element, or one of another type, raises a :class:`ReadError`.
    """

    def __init__(self, parsed: Any) -> None:
        while parsed.info.type.name == "REF":
            parsed = parsed.referenced_object
        self._parsed = parsed
        self._attributes: dict[str, RObject] | None = None

    @property
    def kind(self) -> str:
        """R's type: ``S4``, ``VEC``, ``STR``, ``INT``, ``REAL``, ``LGL`` and so on."""
        return self._parsed.info.type.name

    @property
    def attributes(self) -> dict[str, RObject]:
        """Attributes by name; of an S4 object these are its slots."""
        if self._attributes is None:
            self._attributes = _pairs(self._parsed.attributes)
        return self._attributes

    def pairs(self) -> dict[str, RObject]:
        """The elements of a pairlist by name."""
        return _pairs(self._parsed)

    def __getitem__(self, name: str) -> RObject:
        if name not in self.attributes:
            raise ReadError(
                f"{self.description} has no {name!r}: the file is damaged, save it "
                "again."
            )
        return self.attributes[name]

    def drop(self, name: str) -> None:
        """Remove an attribute and free its memory."""
        self.attributes.pop(name, None)
        self._parsed.attributes = None

    @property
    def classes(self) -> list[str]:
        """Names of the R classes, the most specific one first."""
        return [str(name) for name in self.strings("class")]

    @property
    def description(self) -> str:
        """Class or type of the object, for messages."""
        if self.classes:
            return f"an R object of class {' '.join(self.classes)}"
        return f"an R value of type {self.kind}"

    def _nested(self, *names: str) -> RObject | None:
        """The attribute of an attribute and so on; ``None`` if one is missing."""
        nested: RObject = self
        for name in names:
            if name not in nested.attributes:
                return None
            nested = nested.attributes[name]
        return nested

    def strings(self, *names: str) -> list[Any]:
        """The values of a character vector, or of a nested one; missing ones are ``nan``."""
        vector = self._nested(*names)
        if vector is None or vector.kind != "STR":
            return []
        return [
            np.nan if text.value is None else text.value.decode("utf-8", "replace")
            for text in vector._parsed.value
        ]

    def array(self) -> np.ndarray:
        """The values of a numeric or logical vector or matrix, masked where they are missing."""
        values = self._parsed.value
        if not isinstance(values, np.ndarray):
            raise ReadError(
                f"{self.description} is where numbers are expected: the file is damaged, "
                "save it again."
            )
        if "dim" in self.attributes:
            values = values.reshape(np.ma.getdata(self["dim"].array()), order="F")
        return values

    def items(self, *names: str) -> dict[str, RObject]:
        """The elements of a list, or of a nested one, by name or else by number."""
        vector = self._nested(*names)
        if vector is None or vector.kind != "VEC":
            return {}
        elements = [RObject(value) for value in vector._parsed.value]
        keys = vector.strings("names")
        keys += [str(i) for i in range(len(keys), len(elements))]
        return dict(zip(keys, elements, strict=True))

    def dimnames(self) -> tuple[list[str], list[str]]:
        """Names of rows and columns; empty where there are none."""
        names = self.attributes.get("dimnames") or self.attributes.get("Dimnames")
        if names is None:
            return [], []
        rows, columns = (RObject(axis).strings() for axis in names._parsed.value)
        return rows, columns

    def column(self) -> Any:
        """The values of a column of a data frame."""
        if "factor" in self.classes:
            codes = np.ma.filled(self.array(), 0).astype(np.int64) - 1
            return to_categorical(codes, self["levels"].strings())
        if self.kind == "STR":
            return np.array(self.strings(), dtype=object)
        values = self.array()
        if values.dtype.kind == "f":
            return np.asarray(np.ma.filled(values, np.nan))
        is_missing = np.ma.getmaskarray(values)
        filled = np.ma.filled(values, 0)
        if not is_missing.any():
            return filled
        if values.dtype == bool:
            return pd.arrays.BooleanArray(filled, is_missing)
        return pd.arrays.IntegerArray(filled.astype(np.int32), is_missing)

    def table(self, index: list[str]) -> pd.DataFrame:
        """A data frame, without columns that are not vectors of its length."""
        columns = {}
        for name, value in self.items().items():
            is_vector = value.kind in ("STR", "INT", "REAL", "LGL")
            if is_vector and "dim" not in value.attributes:
                column = value.column()
                if len(column) == len(index):
                    columns[name] = column
        return pd.DataFrame(columns, index=pd.Index(index, dtype=object))

    def cells_by_genes(self, name: str) -> sp.csr_matrix:
        """The matrix of genes × cells, called ``name`` in messages, as CSR ``(n_cells, n_genes)``."""
        if "dgCMatrix" in self.classes:
            n_genes, n_cells = np.ma.getdata(self["Dim"].array())
            data, indices, indptr = (
                np.asarray(np.ma.getdata(self[slot].array()))
                for slot in ("x", "i", "p")
            )
            shape = (int(n_cells), int(n_genes))
            return csr_from_arrays(data, indices, indptr, shape, name)
        if self.kind in ("REAL", "INT") and "dim" in self.attributes:
            return sp.csr_matrix(np.ma.getdata(self.array()).T)
        raise ReadError(
            f"{name} cannot be read: it is {self.description}, whose values are not in "
            "the file; turn it into a sparse matrix in R (as(x, 'dgCMatrix')) before "
            "saving."
        )


def _pairs(pair: Any) -> dict[str, RObject]:
    """The elements of a parsed pairlist by name."""
    elements = {}
    while pair is not None and pair.info.type.name == "LIST":
        tag = pair.tag.referenced_object or pair.tag
        elements[tag.value.value.decode()] = RObject(pair.value[0])
        pair = pair.value[1]
    return elements
