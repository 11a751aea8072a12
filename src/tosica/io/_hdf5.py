"""Open HDF5 files and read their members, without trust in what the files claim."""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Any

import h5py

from tosica.io._columns import decode
from tosica.io._refused import RefusedValue

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

# Values above this size have to be in the file: no compression is better than this.
_LARGE, _BEST_RATIO = 2**28, 2000
_DEEPEST = 8
# Variable-length strings are in heaps: a header of 16 bytes, and objects with headers alike.
_HEAP, _HEADER = b"GCOL", struct.Struct("<HHIQ")


def open_hdf5(path: Path) -> h5py.File:
    """Open a file whose heaps of strings are whole.

    Raises
    ------
    ValueError
        If the file is cut short or damaged.
    """
    _check_heaps(path)
    try:
        return h5py.File(path)
    except PermissionError:
        raise
    except OSError as error:
        raise not_whole(path) from error


def not_whole(path: Path) -> RefusedValue:
    """The error for a file that HDF5 cannot open."""
    return RefusedValue(
        f"{str(path)!r} is not a whole HDF5 file; was it copied or downloaded to the end?"
    )


def _check_heaps(path: Path) -> None:
    """Follow the lengths in each heap of strings. HDF5 would follow a zero for ever."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content.find(_HEAP)
        while start >= 0:
            end = _end_of_heap(content, start)
            place = start + _HEADER.size
            while place + _HEADER.size <= end:
                index, _, _, length = _HEADER.unpack_from(content, place)
                # The length of the free space, object 0, includes its header.
                step = _HEADER.size + (length + 7) // 8 * 8 if index else length
                if step < _HEADER.size or place + step > end:
                    raise RefusedValue(
                        f"{str(path)!r} is a damaged HDF5 file: a length among its strings, at "
                        f"byte {place}, is {length}; copy or save it again."
                    )
                place += step
            start = content.find(_HEAP, max(end, start + 1))


def _end_of_heap(content: mmap.mmap, start: int) -> int:
    """Where a heap ends; its start if the bytes only look like one."""
    if start + _HEADER.size > len(content):
        return start
    version, size = struct.unpack_from("<4xIQ", content, start)
    return start + size if version == 1 and start + size <= len(content) else start


def values_of(group: Any, name: str) -> np.ndarray:
    """Read the values of a data set with one or more axes.

    Raises
    ------
    ValueError
        If it is missing, something else, or not as large as it claims to be.
    """
    element = group.get(name) if isinstance(group, h5py.Group) else None
    if not isinstance(element, h5py.Dataset) or not element.shape:
        raise RefusedValue(
            f"The file has no array {_path(group, name)!r}, so it is damaged or its conversion "
            "failed: convert or save the object again."
        )
    check_sizes(element)
    return element[:]


def numbers_of(group: Any, name: str, n_axes: int) -> np.ndarray:
    """Read an array of numbers.

    Raises
    ------
    ValueError
        As :func:`values_of`, or if it holds anything else or has other axes.
    """
    values = values_of(group, name)
    if values.dtype.kind not in "biuf" or values.ndim != n_axes:
        raise RefusedValue(
            f"{_path(group, name)!r} holds {values.dtype} values with {values.ndim} axes, instead "
            f"of numbers with {n_axes}: the file is damaged; save it again."
        )
    return values


def strings_of(group: Any, name: str) -> list[str]:
    """Read a list of strings.

    Raises
    ------
    ValueError
        As :func:`values_of`, or if it holds anything else.
    """
    values = values_of(group, name)
    if values.dtype.kind not in "OSU" or values.ndim != 1:
        raise RefusedValue(
            f"{_path(group, name)!r} holds {values.dtype} values with {values.ndim} axes, instead "
            "of a list of names: the file is damaged; save it again."
        )
    return decode(values)


def column_of(group: Any, name: str, length: int) -> np.ndarray:
    """Read a column of a table, of numbers or strings.

    Raises
    ------
    ValueError
        As :func:`values_of`, or if it holds anything else or has another length.
    """
    values = values_of(group, name)
    if values.shape != (length,) or values.dtype.kind not in "biufOSU":
        raise RefusedValue(
            f"Column {_path(group, name)!r} holds {values.dtype} values of the shape "
            f"{values.shape}, but the table has {length} rows: the file is damaged; save it again."
        )
    return values


def group_of(group: Any, name: str) -> h5py.Group:
    """A group inside of another one.

    Raises
    ------
    ValueError
        If it is missing or something else.
    """
    element = group.get(name) if isinstance(group, h5py.Group) else None
    if not isinstance(element, h5py.Group):
        raise RefusedValue(
            f"The file has no group {_path(group, name)!r}, so it is damaged or its conversion "
            "failed: convert or save the object again."
        )
    return element


def _path(group: Any, name: str) -> str:
    return f"{getattr(group, 'name', '').rstrip('/')}/{name}"


def check_sizes(element: h5py.Group | h5py.Dataset, depth: int = 0) -> None:
    """Check that an element can be read: its values are in the file, and it ends somewhere.

    Raises
    ------
    ValueError
        If a data set claims to be far larger than what is stored, or groups are nested too deep.
    """
    if isinstance(element, h5py.Dataset):
        stored = element.id.get_storage_size()
        if element.size is not None and element.nbytes > max(_LARGE, _BEST_RATIO * stored):
            raise RefusedValue(
                f"{element.name!r} claims to hold {element.size} values, but the file has only "
                f"{stored} bytes of them: it is damaged; copy or save it again."
            )
    elif isinstance(element, h5py.Group):
        if depth == _DEEPEST:
            raise RefusedValue(
                f"{element.name!r} is nested too deep, or contains itself: the file is damaged; "
                "save it again."
            )
        for name in element:
            if not isinstance(element.get(name, getlink=True), h5py.HardLink):
                raise RefusedValue(
                    f"{_path(element, name)!r} is a link to another place, which no converter "
                    "writes: save the object again."
                )
            check_sizes(element[name], depth + 1)
