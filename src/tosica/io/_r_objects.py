"""Parse ``.rds`` files, and convert R objects to values of Python, numpy and pandas."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica.io._matrices import csr_from_arrays

if TYPE_CHECKING:
    from pathlib import Path

_XDR = b"X\n"
_GZIP = b"\x1f\x8b"


def parse_rds(path: Path) -> RObject:
    """Parse an ``.rds`` file.

    Raises
    ------
    ImportError
        If the ``rdata`` package is missing.
    ValueError
        If the file is damaged or not an ``.rds`` file.
    """
    try:
        import rdata
        from rdata.parser._xdr import ParserXDR
    except ImportError as error:
        raise ImportError(
            "Reading .rds files needs the rdata package: pip install 'tosica[seurat]'."
        ) from error
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == _GZIP
        with gzip.open(path) if compressed else path.open("rb") as stream:
            if stream.read(2) != _XDR:
                return RObject(rdata.parser.parse_file(path).object)
            # Parsing a stream saves memory: parse_file holds the bytes of the whole file.
            parser = ParserXDR(
                memoryview(b""),
                expand_altrep=True,
                altrep_constructor_dict=rdata.parser.DEFAULT_ALTREP_MAP,
            )
            # Annotated as BytesIO, but any binary stream works.
            parser.file = cast("Any", stream)
            return RObject(parser.parse_all().object)
    # Damaged files raise many kinds of exceptions.
    except Exception as error:
        raise ValueError(
            f"{str(path)!r} is not a whole .rds file ({type(error).__name__}: {error}); was it "
            "saved with saveRDS, and copied to the end?"
        ) from error


class RObject:
    """An R object: its class, its slots or attributes, and its value."""

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
            self._attributes = {}
            pair = self._parsed.attributes
            while pair is not None and pair.info.type.name == "LIST":
                tag = pair.tag.referenced_object or pair.tag
                self._attributes[tag.value.value.decode()] = RObject(pair.value[0])
                pair = pair.value[1]
        return self._attributes

    def __contains__(self, name: str) -> bool:
        return name in self.attributes

    def __getitem__(self, name: str) -> RObject:
        return self.attributes[name]

    def drop(self, name: str) -> None:
        """Remove an attribute and free its memory."""
        self.attributes.pop(name, None)
        self._parsed.attributes = None

    @property
    def classes(self) -> list[str]:
        """Names of the R classes, the most specific one first."""
        return self["class"].strings() if "class" in self else []

    def strings(self) -> list[Any]:
        """The values of a character vector; missing ones are ``nan``."""
        if self.kind != "STR":
            return []
        return [
            np.nan if v.value is None else v.value.decode("utf-8", "replace")
            for v in self._parsed.value
        ]

    def array(self) -> np.ndarray:
        """The values of a numeric or logical vector or matrix, masked where they are missing."""
        values = self._parsed.value
        if "dim" in self:
            values = values.reshape(self["dim"].array(), order="F")
        return values

    def items(self) -> dict[str, RObject]:
        """The elements of a list by name, or by number where they have no names."""
        if self.kind != "VEC":
            return {}
        names = self["names"].strings() if "names" in self else []
        values = [RObject(v) for v in self._parsed.value]
        names += [str(i) for i in range(len(names), len(values))]
        return dict(zip(names, values, strict=True))

    def dimnames(self) -> tuple[list[str], list[str]]:
        """Names of rows and columns; empty where there are none."""
        if "dimnames" in self:
            named = self["dimnames"]
        elif "Dimnames" in self:
            named = self["Dimnames"]
        else:
            return [], []
        rows, columns = (RObject(v).strings() for v in named._parsed.value)
        return rows, columns

    def column(self) -> Any:
        """The values of a column of a data frame."""
        if "factor" in self.classes:
            codes = np.ma.filled(self._parsed.value, 0).astype(np.int64) - 1
            levels = pd.Index(self["levels"].strings(), dtype=object)
            return pd.Categorical.from_codes(codes.astype(np.intp), categories=levels)
        if self.kind == "STR":
            return np.array(self.strings(), dtype=object)
        values = self._parsed.value
        mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
        if mask is None or not mask.any() or values.dtype.kind == "f":
            return np.asarray(np.ma.filled(values, np.nan) if values.dtype.kind == "f" else values)
        plain = np.ma.filled(values, False if values.dtype == bool else 0)
        if values.dtype == bool:
            return pd.arrays.BooleanArray(plain, mask)
        return pd.arrays.IntegerArray(plain.astype(np.int32), mask)

    def table(self, index: list[str]) -> pd.DataFrame:
        """A data frame, without columns that are not vectors of its length."""
        columns = {
            name: value.column()
            for name, value in self.items().items()
            if value.kind in ("STR", "INT", "REAL", "LGL") and "dim" not in value
        }
        columns = {name: value for name, value in columns.items() if len(value) == len(index)}
        return pd.DataFrame(columns, index=pd.Index(index, dtype=object))

    def cells_by_genes(self, name: str) -> sp.csr_matrix:
        """The matrix of genes × cells as a CSR matrix ``(n_cells, n_genes)``.

        Raises
        ------
        ValueError
            If the object is not a matrix in memory, or is damaged; the message begins with
            ``name``.
        """
        if "dgCMatrix" in self.classes:
            n_genes, n_cells = self["Dim"].array()
            arrays = (self[slot].array() for slot in ("x", "i", "p"))
            data, indices, indptr = (np.asarray(np.ma.getdata(array)) for array in arrays)
            return csr_from_arrays(data, indices, indptr, (int(n_cells), int(n_genes)), name)
        if self.kind in ("REAL", "INT") and "dim" in self:
            return sp.csr_matrix(np.ma.getdata(self.array()).T)
        raise ValueError(
            f"{name} cannot be read: it is stored as {' '.join(self.classes) or self.kind}, which "
            "is not in the file; turn it into a sparse matrix in R (as(x, 'dgCMatrix')) before "
            "saving."
        )
