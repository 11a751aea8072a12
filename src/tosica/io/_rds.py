"""Read Seurat objects and SingleCellExperiments from ``.rds`` files, by rdata."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._text import list_names
from tosica.io._parts import (
    GRAPHS_NOTE,
    Parts,
    ReadError,
    align_loadings,
    choose_assay,
    csr_from_arrays,
    explain_damage,
    to_categorical,
)

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
    """Counts and log-normalised values of an assay; either may be missing."""

    matrices: dict[str, sp.csr_matrix]
    genes: list[str]
    variable_genes: list[str]


def read_rds(path: Path, *, assay: str | None) -> Parts:
    """Read a Seurat object (v3 to v5) or a SingleCellExperiment."""
    seurat = _parse(path, ".rds")
    if _EXPERIMENT_CLASSES & set(seurat.classes):
        return _read_experiment(seurat)
    if "Seurat" not in seurat.classes:
        raise ReadError(
            f"{str(path)!r} holds {seurat.description}, not a Seurat object."
        )
    notes: list[str] = []
    cells = seurat["meta.data"]["row.names"].strings()
    obs = seurat["meta.data"].table(cells)
    assays = seurat["assays"].items()
    name = choose_assay(list(assays), seurat["active.assay"].strings()[0], assay, notes)
    stored = assays[name]
    if not _ASSAY_CLASSES & set(stored.classes):
        raise ReadError(
            f"Assay {name!r} is {stored.description}; only gene expression can be read, in an Assay, Assay5 or "
            f"SCTAssay (the object has {list_names(list(assays))})."
        )
    read = _read_assay_v5 if "layers" in stored.attributes else _read_assay_v3
    matrices, genes, variable_genes = read(stored, name, cells)
    var = pd.DataFrame(index=pd.Index(genes, dtype=object))
    features = stored.attributes.get("meta.features")
    if features is not None and features["row.names"].strings() == genes:
        var = features.table(genes).drop(columns="vst.variable", errors="ignore")
    if variable_genes:
        var["highly_variable"] = var.index.isin(variable_genes)
    obsm, varm = {}, {}
    for key, reduction in seurat["reductions"].items().items():
        embedding = reduction["cell.embeddings"]
        if embedding.dimnames()[0] != cells:
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
    identities = pd.Series(seurat["active.ident"].column(), index=obs.index).astype(str)
    if identities.nunique() > 1 and not any(
        (obs[column].astype(str) == identities).all() for column in obs
    ):
        obs["active_ident"] = pd.Categorical(seurat["active.ident"].column())
        notes.append("the active identities are in obs['active_ident']")
    return Parts(
        obs, var, matrices.get("counts"), matrices.get("data"), obsm, varm, notes
    )


def _read_assay_v3(assay: RObject, name: str, cells: list[str]) -> _Assay:
    """Read an ``Assay``, the only class before Seurat 5."""
    matrices: dict[str, sp.csr_matrix] = {}
    genes: list[str] = []
    for slot in _SLOTS:
        stored = assay[slot]
        rows, columns = stored.dimnames()
        if not rows or not columns:  # Seurat stores an empty matrix for a missing one.
            continue
        genes = genes or rows
        if columns != cells or rows != genes:
            raise ReadError(
                f"{slot} of assay {name!r} has other cells or genes than the rest of the object."
            )
        matrices[slot] = stored.cells_by_genes(f"{slot} of assay {name!r}")
        assay.drop(slot)
    return _Assay(matrices, genes, assay.strings("var.features"))


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
        raise ReadError(f"Assay {name!r} has other cells than the table of the cells.")
    matrices: dict[str, sp.csr_matrix] = {}
    for slot in _SLOTS:
        joined, covered = None, np.zeros(len(cells), dtype=bool)
        for key in layers:
            if key != slot and not key.startswith(f"{slot}."):
                continue
            rows, columns = (
                indexer[np.flatnonzero(has_cells[key])],
                np.flatnonzero(has_genes[key]),
            )
            layer = layers[key].cells_by_genes(f"layer {key!r} of assay {name!r}")
            if layer.shape != (len(rows), len(columns)) or covered[rows].any():
                raise ReadError(
                    f"Layer {key!r} of assay {name!r} overlaps another one, or has other cells or genes than "
                    "the assay lists for it; call JoinLayers or subset the object in R."
                )
            covered[rows] = True
            if (
                layer.shape != (len(cells), len(genes))
                or (rows != np.arange(len(cells))).any()
            ):
                entries = sp.coo_matrix(layer)
                indices = (rows[entries.row], columns[entries.col])
                layer = sp.csr_matrix(
                    (entries.data, indices), shape=(len(cells), len(genes))
                )
            joined = layer if joined is None else joined + layer
        if joined is not None and covered.all():
            matrices[slot] = joined
        elif joined is not None and slot == "counts":
            raise ReadError(
                f"{int((~covered).sum())} cells of assay {name!r} are in no layer of counts; subset it."
            )
    described = assay.items("meta.data").get("var.features")
    variable = (
        []
        if described is None
        else [gene for gene in described.strings() if isinstance(gene, str)]
    )
    return _Assay(matrices, genes, variable)


def _read_experiment(experiment: RObject) -> Parts:
    """Read ``counts``, ``logcounts`` and reduced dimensions of a SingleCellExperiment."""
    cells = experiment["colData"]["rownames"].strings()
    obs = experiment["colData"]["listData"].table(cells)
    genes = experiment.strings("NAMES") or experiment.strings(
        "rowRanges", "partitioning", "NAMES"
    )
    stored = experiment["assays"]["data"]["listData"].items()
    counts, data = (
        stored[key].cells_by_genes(f"assay {key!r}") if key in stored else None
        for key in ("counts", "logcounts")
    )
    genes = genes or next((values.dimnames()[0] for values in stored.values()), [])
    reduced = experiment.items("int_colData", "listData").get("reducedDims")
    embeddings = {} if reduced is None else reduced.items("listData")
    obsm = {
        f"X_{key.lower()}": np.ma.getdata(embedding.array())
        for key, embedding in embeddings.items()
    }
    return Parts(
        obs, pd.DataFrame(index=pd.Index(genes, dtype=object)), counts, data, obsm
    )


# --------------------------------------------------------------------------- R objects


def parse_rda(path: Path) -> dict[str, RObject]:
    """Parse an ``.rda`` file, as R packages keep their data, into objects by name."""
    with explain_damage(path):
        return _parse(path, ".rda").pairs()


def _parse(path: Path, extension: str) -> RObject:
    import rdata

    with warnings.catch_warnings():
        # rdata warns about parts that it does not know; only the object's own parts are read.
        warnings.simplefilter("ignore")
        return RObject(rdata.parser.parse_file(path, extension=extension).object)


class RObject:
    """An R object: its class, its slots or attributes, and its value.

    What is asked for and is not there, or of another type, raises a :class:`ReadError`.
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
                f"{self.description} has no {name!r}: the file is damaged, save it again."
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
        """What the object is, for messages."""
        return (
            f"an R object of class {' '.join(self.classes)}"
            if self.classes
            else f"an R value of type {self.kind}"
        )

    def _at(self, path: tuple[str, ...]) -> RObject | None:
        """Follow names of attributes; ``None`` if one is missing."""
        found: RObject | None = self
        for name in path:
            found = None if found is None else found.attributes.get(name)
        return found

    def strings(self, *path: str) -> list[Any]:
        """The values of a character vector, or of one in the attributes; missing ones are ``nan``."""
        found = self._at(path)
        if found is None or found.kind != "STR":
            return []
        return [
            np.nan if v.value is None else v.value.decode("utf-8", "replace")
            for v in found._parsed.value
        ]

    def array(self) -> np.ndarray:
        """The values of a numeric or logical vector or matrix, masked where they are missing."""
        values = self._parsed.value
        if not isinstance(values, np.ndarray):
            raise ReadError(
                f"{self.description} is where numbers are expected: the file is damaged, save it again."
            )
        if "dim" in self.attributes:
            values = values.reshape(np.ma.getdata(self["dim"].array()), order="F")
        return values

    def items(self, *path: str) -> dict[str, RObject]:
        """The elements of a list, or of one in the attributes, by name or else by number."""
        found = self._at(path)
        if found is None or found.kind != "VEC":
            return {}
        values = [RObject(v) for v in found._parsed.value]
        names = found.strings("names")
        names += [str(i) for i in range(len(names), len(values))]
        return dict(zip(names, values, strict=True))

    def dimnames(self) -> tuple[list[str], list[str]]:
        """Names of rows and columns; empty where there are none."""
        named = self.attributes.get("dimnames") or self.attributes.get("Dimnames")
        if named is None:
            return [], []
        rows, columns = (RObject(v).strings() for v in named._parsed.value)
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
        mask = np.ma.getmaskarray(values)
        plain = np.ma.filled(values, 0)
        if not mask.any():
            return plain
        if values.dtype == bool:
            return pd.arrays.BooleanArray(plain, mask)
        return pd.arrays.IntegerArray(plain.astype(np.int32), mask)

    def table(self, index: list[str]) -> pd.DataFrame:
        """A data frame, without columns that are not vectors of its length."""
        columns = {
            name: value.column()
            for name, value in self.items().items()
            if value.kind in ("STR", "INT", "REAL", "LGL")
            and "dim" not in value.attributes
        }
        columns = {
            name: value for name, value in columns.items() if len(value) == len(index)
        }
        return pd.DataFrame(columns, index=pd.Index(index, dtype=object))

    def cells_by_genes(self, name: str) -> sp.csr_matrix:
        """The matrix of genes × cells, called ``name`` in messages, as CSR ``(n_cells, n_genes)``."""
        if "dgCMatrix" in self.classes:
            n_genes, n_cells = np.ma.getdata(self["Dim"].array())
            arrays = (self[slot].array() for slot in ("x", "i", "p"))
            data, indices, indptr = (
                np.asarray(np.ma.getdata(array)) for array in arrays
            )
            return csr_from_arrays(
                data, indices, indptr, (int(n_cells), int(n_genes)), name
            )
        if self.kind in ("REAL", "INT") and "dim" in self.attributes:
            return sp.csr_matrix(np.ma.getdata(self.array()).T)
        raise ReadError(
            f"{name} cannot be read: it is {self.description}, whose values are not in the file; turn it into "
            "a sparse matrix in R (as(x, 'dgCMatrix')) before saving."
        )


def _pairs(pair: Any) -> dict[str, RObject]:
    """The elements of a parsed pairlist by name."""
    elements = {}
    while pair is not None and pair.info.type.name == "LIST":
        tag = pair.tag.referenced_object or pair.tag
        elements[tag.value.value.decode()] = RObject(pair.value[0])
        pair = pair.value[1]
    return elements
