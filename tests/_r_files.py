"""Make .rds and .rda files with Seurat objects and others, value by value, without R."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_SYM = 1
_LIST = 2
_CHAR = 9
_S4 = 25
_NIL = 254
_TYPES = {"LGL": 10, "INT": 13, "REAL": 14, "STR": 16, "VEC": 19, "S4": _S4}
_MISSING = -(2**31)


@dataclass
class R:
    """An R value with its attributes; of an S4 object these are its slots."""

    kind: str
    value: Any = None
    attributes: dict[str, R | None] = field(default_factory=dict)

    def having(self, **attributes):
        """The same value with these attributes beside those it has."""
        return R(self.kind, self.value, self.attributes | attributes)


def write(path, value):
    """Serialize as saveRDS does."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"X\n" + struct.pack(">3i", 2, 0x40202, 0x20300))
        _write(file, value)
    return path


def write_rda(path, **objects):
    """Serialize as save does: the attributes of a value are stored like the objects of a file."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"RDX2\nX\n" + struct.pack(">3i", 2, 0x40202, 0x20300))
        _write_pairs(file, objects)
    return path


def _write(file, value):
    def integer(number):
        file.write(struct.pack(">i", number))

    def text(string):
        integer(_CHAR | (64 << 12 if string is not None else 0))
        encoded = b"" if string is None else string.encode()
        integer(-1 if string is None else len(encoded))
        file.write(encoded)

    if value is None:
        integer(_NIL)
        return
    attributes = value.attributes
    flags = _TYPES[value.kind]
    flags |= 0x100 if "class" in attributes else 0
    flags |= 0x200 if attributes else 0
    integer(flags)
    if value.kind != "S4":
        integer(len(value.value))
    if value.kind == "STR":
        for string in value.value:
            text(string)
    elif value.kind == "VEC":
        for item in value.value:
            _write(file, item)
    elif value.kind == "REAL":
        file.write(np.asarray(value.value).astype(">f8").tobytes())
    elif value.kind in ("INT", "LGL"):
        numbers = np.ma.asarray(value.value).astype(np.int64)
        file.write(np.ma.filled(numbers, _MISSING).astype(">i4").tobytes())
    if attributes:
        _write_pairs(file, attributes)


def _write_pairs(file, pairs):
    for name, value in pairs.items():
        file.write(
            struct.pack(
                ">4i", _LIST | 0x400, _SYM, _CHAR | (64 << 12), len(name.encode())
            )
        )
        file.write(name.encode())
        _write(file, value)
    file.write(struct.pack(">i", _NIL))


def strings(*values):
    return R("STR", list(values))


def vector(values):
    values = np.ma.asarray(values)
    return R({"i": "INT", "f": "REAL", "b": "LGL"}[values.dtype.kind], values)


def matrix(values, rows=(), columns=()):
    flat = vector(np.asarray(values).ravel(order="F")).having(
        dim=vector(np.array(values.shape))
    )
    if not len(rows):
        return flat
    return flat.having(dimnames=plain_list(strings(*rows), strings(*columns)))


def plain_list(*values):
    return R("VEC", list(values))


def named(**values):
    return plain_list(*values.values()).having(names=strings(*values))


def factor(codes, levels):
    """Codes from 1 on, masked where missing."""
    return vector(codes).having(
        **{"levels": strings(*levels), "class": strings("factor")}
    )


def frame(rows, **columns):
    described = {"row.names": strings(*rows), "class": strings("data.frame")}
    return named(**columns).having(**described)


def s4(of, **slots):
    slots = {name.replace("__", "."): slot for name, slot in slots.items()}
    return R("S4", None, slots | {"class": strings(of)})


def sparse(cells_by_genes, genes=(), cells=()):
    """A dgCMatrix of genes × cells."""
    names = plain_list(
        strings(*genes) if len(genes) else None, strings(*cells) if len(cells) else None
    )
    return s4(
        "dgCMatrix",
        i=vector(cells_by_genes.indices),
        p=vector(cells_by_genes.indptr),
        Dim=vector(np.array(cells_by_genes.shape[::-1])),
        Dimnames=names,
        x=vector(cells_by_genes.data.astype(np.float64)),
        factors=plain_list(),
    )


def empty():
    """What a slot without a matrix holds."""
    return matrix(np.empty((0, 0)))


def assay(counts, data=None, of="Assay"):
    return s4(
        of,
        counts=counts,
        data=data or empty(),
        scale__data=empty(),
        key=strings("rna_"),
        var__features=strings(),
        misc=plain_list(),
    )


def log_map(rows, layers):
    marks = np.column_stack(list(layers.values()))
    return matrix(marks, rows, list(layers)).having(**{"class": strings("LogMap")})


def assay5(
    layers,
    cells,
    genes,
):
    """Layers by name: values, and which cells and genes they have (as masks)."""
    return s4(
        "Assay5",
        layers=named(
            **{name: sparse(values) for name, (values, _, _) in layers.items()}
        ),
        cells=log_map(cells, {name: mask for name, (_, mask, _) in layers.items()}),
        features=log_map(genes, {name: mask for name, (_, _, mask) in layers.items()}),
        key=strings("rna_"),
    )


def seurat(
    obs,
    *,
    active="RNA",
    idents=None,
    images=None,
    **assays,
):
    cells = obs.attributes["row.names"].value
    if idents is None:
        idents = factor(np.ones(len(cells), dtype=np.int32), ["project"])
    return s4(
        "Seurat",
        assays=named(**assays),
        meta__data=obs,
        active__assay=strings(active),
        active__ident=idents,
        graphs=plain_list(),
        images=named(**(images or {})),
        reductions=plain_list(),
    )
