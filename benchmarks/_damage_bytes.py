"""Damage the bytes of a file at random, or the content of a compressed one.

All functions that damage files take a random generator, so that a mutant can be made again, and say
what they did.
"""

from __future__ import annotations

import gzip
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

# Numbers that are no length of anything in these files.
_HUGE = (-1, -(2**31), 2**31 - 1, 2**30, 10**6, 0, 1)
_HUGE_LONG = (-1, 2**63 - 1, 2**40, 2**32)
_TEXT = (b"", b"\t", b"\n", b",", b"\0", b"\xff", b'"', b"<html>", b"1e999", b"\x1f\x8b", b"(")
# Most bytes of these files are compressed numbers, so half of the injuries are near these marks:
# headers of HDF5, and names in R's format.
_MARKS = (b"TREE", b"SNOD", b"HEAP", b"GCOL", b"OHDR", b"\x89HDF", b"\x00\x04\x00\x09")


def damage_bytes(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    """One to three injuries anywhere in the bytes."""
    done = []
    for _ in range(rng.integers(1, 4)):
        content, what = _INJURIES[rng.integers(len(_INJURIES))](content, rng)
        done.append(what)
    return content, ", ".join(done)


def _place(content: bytes, rng: np.random.Generator) -> int:
    where = int(rng.integers(len(content) + 1))
    if rng.random() < 0.5:
        near = content.find(_MARKS[rng.integers(len(_MARKS))], where)
        where = near + int(rng.integers(40)) if near >= 0 else where
    return min(where, max(len(content) - 1, 0))


def _flip(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    damaged, at = bytearray(content), _place(content, rng)
    if damaged:
        damaged[at] ^= 1 << int(rng.integers(8))
    return bytes(damaged), f"bit flipped at {at}"


def _overwrite(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    at, new = _place(content, rng), rng.bytes(int(rng.integers(1, 9)))
    return content[:at] + new + content[at + len(new) :], f"random bytes at {at}"


def _truncate(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    at = int(rng.integers(len(content) + 1))
    return content[:at], f"cut at {at}"


def _remove(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    at, n = _place(content, rng), int(rng.choice([1, 4, 8, 100, 4096]))
    return content[:at] + content[at + n :], f"{n} bytes removed at {at}"


def _insert(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    at = _place(content, rng)
    new = rng.bytes(int(rng.choice([1, 4, 100]))) if rng.random() < 0.5 else pick(_TEXT, rng)
    return content[:at] + new + content[at:], f"{len(new)} bytes inserted at {at}"


def _duplicate(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    at, n = _place(content, rng), int(rng.choice([1, 4, 8, 100, 4096]))
    return content[: at + n] + content[at:], f"{n} bytes twice at {at}"


def _zero(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    at, n = _place(content, rng), int(rng.choice([4, 100, 4096]))
    n = len(content[at : at + n])
    return content[:at] + bytes(n) + content[at + n :], f"{n} zeros at {at}"


def _lengthen(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    at = _place(content, rng)
    at -= at % 2
    if rng.random() < 0.3:
        number = int(pick(_HUGE_LONG, rng))
        new = struct.pack("<q", number)
    else:
        number = int(pick(_HUGE, rng))
        new = struct.pack(pick((">i", "<i"), rng), number)
    return content[:at] + new + content[at + len(new) :], f"{number} at {at}"


_INJURIES = (
    _flip,
    _overwrite,
    _truncate,
    _remove,
    _insert,
    _duplicate,
    _zero,
    _lengthen,
    _lengthen,
)


def pick(choices: Any, rng: np.random.Generator) -> Any:
    """One of the choices, whatever they are."""
    return choices[int(rng.integers(len(choices)))]


def damage_unpacked(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    """Injuries inside a gzip file, which is whole afterwards."""
    damaged, what = damage_bytes(gzip.decompress(content), rng)
    return gzip.compress(damaged, compresslevel=1, mtime=0), what
