"""Parse ``.rds`` and ``.rda`` files, and convert R objects to values of numpy and pandas."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica.io._columns import to_categorical
from tosica.io._matrices import csr_from_arrays
from tosica.io._rds_parser import parse
from tosica.io._refused import (
    Refused,
    RefusedValue,
    as_builtin_errors,
    describe_error,
    explain_damage,
)

if TYPE_CHECKING:
    from pathlib import Path


def parse_rds(path: Path) -> RObject:
    """Parse an ``.rds`` file.

    Raises
    ------
    ImportError
        If the ``rdata`` package is missing.
    MemoryError
        If the contents are too large for this machine.
    ValueError
        If the file is damaged or not an ``.rds`` file.
    """
    try:
        return RObject(parse(path))
    except (Refused, ImportError, MemoryError, PermissionError):
        raise
    # Damaged files raise many kinds of exceptions.
    except Exception as error:
        raise RefusedValue(
            f"{str(path)!r} is not a whole .rds file ({describe_error(error)}); was it saved with "
            "saveRDS, and copied to the end?"
        ) from error


def parse_rda(path: Path) -> dict[str, RObject]:
    """Parse an ``.rda`` file, as R packages keep their data, into objects by name.

    Raises
    ------
    ImportError
        If the ``rdata`` package is missing.
    ValueError
        If the file is damaged or not an ``.rda`` file.
    """
    with as_builtin_errors(), explain_damage(path):
        return RObject(parse(path, rda=True)).pairs()


class RObject:
    """An R object: its class, its slots or attributes, and its value.

    What is asked for and is not there, or of another type, raises a ValueError.
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

    def __contains__(self, name: str) -> bool:
        return name in self.attributes

    def __getitem__(self, name: str) -> RObject:
        if name not in self.attributes:
            of = " ".join(self.classes) if name != "class" else self.kind
            raise RefusedValue(
                f"A {of or self.kind} of the object has no {name!r}, so the file is damaged or "
                "from an unknown version of Seurat: save it again."
            )
        return self.attributes[name]

    def drop(self, name: str) -> None:
        """Remove an attribute and free its memory."""
        self.attributes.pop(name, None)
        self._parsed.attributes = None

    @property
    def classes(self) -> list[str]:
        """Names of the R classes, the most specific one first."""
        return [str(name) for name in self["class"].strings()] if "class" in self else []

    def strings(self) -> list[Any]:
        """The values of a character vector; missing ones are ``nan``."""
        if self.kind != "STR":
            return []
        if any(v.info.type.name != "CHAR" for v in self._parsed.value):
            raise RefusedValue(
                "A vector of strings in the object holds something else: the file is damaged; "
                "save it again."
            )
        return [
            np.nan if v.value is None else v.value.decode("utf-8", "replace")
            for v in self._parsed.value
        ]

    def array(self) -> np.ndarray:
        """The values of a numeric or logical vector or matrix, masked where they are missing."""
        values = self._parsed.value
        if not isinstance(values, np.ndarray):
            raise RefusedValue(
                f"The object has a {' '.join(self.classes) or self.kind} where numbers are "
                "expected: the file is damaged; save it again."
            )
        if "dim" in self:
            shape = [int(n) for n in np.ma.getdata(self["dim"].array())]
            if min(shape, default=-1) < 0 or math.prod(shape) != values.size:
                raise RefusedValue(
                    f"A matrix of the object has {values.size} values, but its dimensions are "
                    f"{' × '.join(map(str, shape))}: the file is damaged; save it again."
                )
            values = values.reshape(shape, order="F")
        return values

    def items(self) -> dict[str, RObject]:
        """The elements of a list by name, or by number where they have no names."""
        if self.kind != "VEC":
            return {}
        names = self["names"].strings() if "names" in self else []
        values = [RObject(v) for v in self._parsed.value]
        if len(names) > len(values):
            raise RefusedValue(
                f"A list of the object has {len(values)} elements but {len(names)} names: the file "
                "is damaged; save it again."
            )
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
        if named.kind != "VEC" or len(named._parsed.value) != 2:
            raise RefusedValue(
                "The names of a matrix of the object are not those of rows and columns: the file "
                "is damaged; save it again."
            )
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
            n_genes, n_cells = np.ma.getdata(self["Dim"].array())
            arrays = (self[slot].array() for slot in ("x", "i", "p"))
            data, indices, indptr = (np.asarray(np.ma.getdata(array)) for array in arrays)
            return csr_from_arrays(data, indices, indptr, (int(n_cells), int(n_genes)), name)
        if self.kind in ("REAL", "INT") and "dim" in self:
            return sp.csr_matrix(np.ma.getdata(self.array()).T)
        raise RefusedValue(
            f"{name} cannot be read: it is stored as {' '.join(self.classes) or self.kind}, which "
            "is not in the file; turn it into a sparse matrix in R (as(x, 'dgCMatrix')) before "
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
