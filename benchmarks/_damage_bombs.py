"""Small files that claim, or unpack to, more than any machine has."""

from __future__ import annotations

import gzip
import struct
from typing import TYPE_CHECKING

import h5py

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_HEAD = b"X\n" + struct.pack(">3i", 2, 0x40202, 0x20300)
_LIST, _STRINGS, _NUMBERS, _SYMBOL, _CHAR, _NIL, _COMPACT = 19, 16, 14, 1, 9, 254, 238


def gunzips_to(start: bytes, block: bytes, n_blocks: int) -> bytes:
    """A gzip file of many members, which is made without making its content."""
    return gzip.compress(start, mtime=0) + gzip.compress(block, 9, mtime=0) * n_blocks


def _int(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}i", *numbers)


def compact_sequence(length: float) -> bytes:
    """R's ``1:length``, which R stores as three numbers."""
    name = _int(_SYMBOL, _CHAR | 64 << 12, 14) + b"compact_intseq"
    info = _int(2) + name + _int(2) + _int(_SYMBOL, _CHAR | 64 << 12, 4) + b"base"
    info += _int(2, 13, 1, 13) + _int(_NIL)
    return _int(_COMPACT) + info + _int(_NUMBERS, 3) + struct.pack(">3d", length, 1, 1) + _int(_NIL)


def _rds(content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "bomb.rds").write_bytes(gzip.compress(_HEAD + content, mtime=0))
        return folder / "bomb.rds"

    return write


def _packed(name: str, start: bytes, block: bytes, n_blocks: int) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(gunzips_to(start, block, n_blocks))
        return folder / name

    return write


def _plain_gmt(folder: Path) -> Path:
    with (folder / "bomb.gmt").open("wb") as file:
        file.write(b"a\tb\tc\n")
        file.truncate(2**33)  # takes no space
    return folder / "bomb.gmt"


def _h5ad(folder: Path) -> Path:
    with h5py.File(folder / "bomb.h5ad", "w") as file:
        for part in ("obs", "var"):
            file.create_dataset(f"{part}/_index", shape=(10**11,), dtype="i8", chunks=(10**5,))
            file[part].attrs["_index"] = "_index"
    return folder / "bomb.h5ad"


def _h5ad_matrix(folder: Path) -> Path:
    with h5py.File(folder / "bomb.h5ad", "w") as file:
        for part in ("obs", "var"):
            file[f"{part}/_index"] = ["a", "b"]
            file[part].attrs["_index"] = "_index"
        matrix = file.create_group("X")
        matrix.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0"})
        matrix.attrs["shape"] = (2, 2)
        for name in ("data", "indices", "indptr"):
            matrix.create_dataset(name, shape=(10**11,), dtype="i4", chunks=(10**5,))
    return folder / "bomb.h5ad"


_ZEROS, _LETTERS = bytes(2**26), b"a\tb\tGENE\n" * (2**26 // 9)

BOMBS: dict[str, Callable[[Path], Path]] = {
    "gzip of 8 GB of zeros": _packed("bomb.gmt.gz", b"", _ZEROS, 128),
    "gzip of 8 GB of gene sets": _packed("bomb.gmt.gz", b"", _LETTERS, 128),
    "GMT of 8 GB": _plain_gmt,
    "R vector of 2147483647 numbers": _rds(_int(_NUMBERS, 2**31 - 1) + bytes(80)),
    "R vector of -1 numbers": _rds(_int(_NUMBERS, -1) + bytes(80)),
    "R list of 2147483647 values": _rds(_int(_LIST, 2**31 - 1) + bytes(80)),
    "R string of 2147483647 characters": _rds(_int(_CHAR, 2**31 - 1) + bytes(80)),
    "R's 1:1e12": _rds(compact_sequence(1e12)),
    "a thousand times R's 1:1e8": _rds(_int(_LIST, 1000) + compact_sequence(1e8) * 1000),
    "R lists, 100000 deep": _rds(_int(_LIST, 1) * 100_000 + _int(_NIL)),
    "R pairlist of 100000 pairs": _rds(_int(2, _NIL) * 100_000 + _int(_NIL)),
    "R list of 2 billion NULLs": _packed("bomb.rds", _HEAD + _int(_LIST, 2**31 - 1), _ZEROS, 128),
    "R list of 1 billion empty lists": _packed(
        "bomb.rds", _HEAD + _int(_LIST, 2**30), _int(_LIST, 0) * (2**23), 128
    ),
    "R bytecode with 2147483647 repeats": _rds(_int(21, 2**31 - 1) + bytes(80)),
    "names of 100 billion cells that are not there": _h5ad,
    "matrix of 100 billion values that are not there": _h5ad_matrix,
}
