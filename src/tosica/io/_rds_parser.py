"""Parse R's serialization format, without trust in the lengths that a file states."""

from __future__ import annotations

import bz2
import gzip
import lzma
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tosica.io._refused import RefusedValue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_XDR = b"X\n"
# What an .rda file has before the list of its objects; that is stored as in an .rds file.
_RDA_HEADERS = (b"RDX2\n", b"RDX3\n")
_OPEN: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
# Bytes that are read at a time, so that memory follows what is there and not a stated length.
_PIECE, _SMALL_PIECE = 2**24, 2**16
# What a file may unpack to: this much, or so many times its size.
_LARGE, _BEST_RATIO = 2**30, 250
# Values other than numbers are Python objects of some 400 bytes each. A file may have so many, or
# one a byte: a name of a cell takes several bytes, and the matrices take most of a file.
_MANY_VALUES = 5_000_000
# Most of these are names. Lists, vectors and so on are parsed in some 20 microseconds each.
_MOST_OTHER_VALUES = 500_000
# Sequences such as 1:n are stored as three numbers; no object has more cells or genes.
_LONGEST_SEQUENCE = 10_000_000
# Parts of a compiled function that occur in it more than once.
_MOST_REPEATED = 1_000_000


def parse(path: Path, *, rda: bool = False) -> Any:
    """Parse an ``.rds`` file, or the pairlist of an ``.rda`` file, into rdata's objects.

    Raises
    ------
    ImportError
        If the ``rdata`` package is missing.
    ValueError
        If the file unpacks to more than its size allows, or states lengths that are not true.
    Exception
        Whatever rdata raises on a damaged file.
    """
    try:
        import rdata
    except ImportError as error:
        raise ImportError(
            "Reading .rds files needs the rdata package: pip install 'tosica[seurat]'."
        ) from error
    with warnings.catch_warnings(), _open(path) as stream:
        # rdata warns about parts that it does not know; only the object's own parts are read.
        warnings.simplefilter("ignore")
        if rda and stream.read(len(_RDA_HEADERS[0])) not in _RDA_HEADERS:
            raise RefusedValue(f"{str(path)!r} is not an .rda file: copy it again to the end.")
        if stream.peek(len(_XDR)) == _XDR:
            stream.read(len(_XDR))
            most_values = max(_MANY_VALUES, path.stat().st_size)
            return _make_parser(stream, most_values).parse_all().object
        content = stream.read_rest()
        return rdata.parser.parse_data(content, extension=".rds").object


class _Stream:
    """Unpacked bytes of a file, of which there may not be more than its size allows."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._left = max(_LARGE, _BEST_RATIO * path.stat().st_size)
        self._buffer, self._place = b"", 0

    def peek(self, n: int) -> bytes:
        """The next ``n`` bytes, or fewer at the end."""
        if self._place + n > len(self._buffer):
            self._buffer = self._buffer[self._place :] + self._unpack(_SMALL_PIECE)
            self._place = 0
        return self._buffer[self._place : self._place + n]

    def read(self, n: int) -> bytes:
        """Exactly ``n`` bytes."""
        if n < 0:
            raise RefusedValue(
                f"{str(self._path)!r} states a negative length: it is damaged, or has more than "
                "2 147 483 647 values in one vector; copy it again, or subset the object."
            )
        end = self._place + n
        if end <= len(self._buffer):
            found, self._place = self._buffer[self._place : end], end
            return found
        pieces = [self._buffer[self._place :]]
        missing = n - len(pieces[0])
        self._buffer, self._place = b"", 0
        while missing >= _SMALL_PIECE:
            pieces.append(self._unpack(min(missing, _PIECE)) or self._end())
            missing -= len(pieces[-1])
        if missing:
            pieces.append(self.peek(missing))
            self._place = missing
            if len(pieces[-1]) < missing:
                self._end()
        return b"".join(pieces)

    def read_rest(self) -> bytes:
        pieces = [self._buffer[self._place :]]
        while piece := self._unpack(_PIECE):
            pieces.append(piece)
        return b"".join(pieces)

    def _end(self) -> bytes:
        raise RefusedValue(
            f"{str(self._path)!r} is not a whole .rds file: it ends inside of a value; was it "
            "copied or downloaded to the end?"
        )

    def _unpack(self, n: int) -> bytes:
        piece = self._file.read(n)
        self._left -= len(piece)
        if self._left < 0:
            raise RefusedValue(
                f"{str(self._path)!r} unpacks to more than {_BEST_RATIO} times its size, as no "
                "Seurat object does; check that it is the right file."
            )
        return piece


@contextmanager
def _open(path: Path) -> Iterator[_Stream]:
    with path.open("rb") as file:
        start = file.read(2)
    opener = _OPEN.get(start)
    with path.open("rb") if opener is None else opener(path, "rb") as file:
        yield _Stream(file, path)


def _make_parser(stream: _Stream, most_values: int) -> Any:
    """Make rdata's parser with checks of every stated length."""
    from rdata.parser import DEFAULT_ALTREP_MAP
    from rdata.parser._xdr import ParserXDR

    class Parser(ParserXDR):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(
                memoryview(b""), expand_altrep=True, altrep_constructor_dict=DEFAULT_ALTREP_MAP
            )
            # Parsing a stream saves memory: rdata holds the bytes of the whole file.
            self.file: Any = stream
            self.n_values, self.n_other_values, self.n_in_sequences = 0, 0, 0
            # One object for all equal strings: names of cells are in a file many times.
            self.shared: dict[Any, Any] = {}

        def parse_R_object(self, *args: Any, **kwargs: Any) -> Any:
            self.n_values += 1
            if self.n_values > most_values:
                raise RefusedValue(
                    f"The file has more than {most_values:,} names and other values that are not "
                    "numbers, which is more than its size allows; check that it is the right file."
                )
            parsed = super().parse_R_object(*args, **kwargs)
            info = parsed.info
            self.n_other_values += info.type.name != "CHAR"
            if self.n_other_values > _MOST_OTHER_VALUES:
                raise RefusedValue(
                    f"The file has more than {_MOST_OTHER_VALUES:,} lists, vectors and other "
                    "values beside names: if the object has outlines of cells, save it without "
                    "them (object@images <- list() in R); otherwise the file is damaged."
                )
            if info.type.name in ("CHAR", "NILVALUE", "NIL") and parsed.attributes is None:
                key = (info.type, info.gp, parsed.value)
                if key in self.shared:
                    return self.shared[key]
                self.shared[key] = parsed
            return parsed

        def expand_altrep_to_object(self, info: Any, state: Any) -> Any:
            # The length of a sequence is a number in the file like any other.
            if isinstance(state.value, np.ndarray) and state.value.size:
                self.n_in_sequences += max(int(state.value[0]), 0)
                if self.n_in_sequences > _LONGEST_SEQUENCE:
                    raise RefusedValue(
                        f"The file has sequences of more than {_LONGEST_SEQUENCE:,} numbers, as no "
                        "Seurat object does: it is damaged; save it again."
                    )
            return super().expand_altrep_to_object(info=info, state=state)

        def _parse_bytecode(self, references: Any, repeated: Any = None) -> Any:
            if repeated is None:
                # rdata makes a list of this length at once.
                stated = int.from_bytes(stream.peek(4), "big", signed=True)
                if not 0 <= stated <= _MOST_REPEATED:
                    raise RefusedValue(
                        f"The file has a function with {stated} repeated parts, as none has: it is "
                        "damaged; save it again."
                    )
            return super()._parse_bytecode(references, repeated)

    return Parser()
