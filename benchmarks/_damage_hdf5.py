"""Damage the members of an HDF5 file at random, or their values; the file itself stays whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from benchmarks._damage_bytes import pick

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def damage_hdf5(path: Path, rng: np.random.Generator) -> str:
    """Change one to three members of an HDF5 file: a whole file with other contents."""
    done = []
    with h5py.File(path, "a") as file:
        for _ in range(rng.integers(1, 4)):
            names: list[str] = []
            file.visit(names.append)
            # The many columns of the cells would take most of the injuries.
            top = names if rng.random() < 0.5 else [n for n in names if _matters(n)] or names
            name = pick(top, rng)
            ways: list[Callable] = [_h5_delete, _h5_rename, _h5_replace, _h5_attribute]
            # One that was made huge before cannot be read.
            if isinstance(file[name], h5py.Dataset) and file[name].nbytes < 2**30:
                ways += [_h5_values, _h5_values, _h5_resize, _h5_retype, _h5_huge]
            done.append(pick(ways, rng)(file, name, rng))
    return ", ".join(done)


def _matters(name: str) -> bool:
    last = name.rsplit("/", 1)[-1]
    return last in (
        *("indices", "indptr", "data", "X", "codes", "categories", "levels", "values", "_index"),
        *("features", "cell.names", "obs", "var", "raw", "layers", "counts", "meta.data", "dims"),
    )


def _h5_delete(file: h5py.File, name: str, rng: np.random.Generator) -> str:
    del file[name]
    return f"{name} deleted"


def _h5_rename(file: h5py.File, name: str, rng: np.random.Generator) -> str:
    to = name.rsplit("/", 1)[0] + "/" + pick(["_index", "data", "other", "X"], rng)
    if to not in file and not to.startswith(f"{name}/"):
        file.move(name, to)
    return f"{name} renamed to {to}"


def _h5_replace(file: h5py.File, name: str, rng: np.random.Generator) -> str:
    del file[name]
    kind = int(rng.integers(7))
    match kind:
        case 0:
            file.create_group(name)
        case 1:
            file[name] = 7
        case 2:
            file[name] = ["a", "b"]
        case 3:
            file[name] = h5py.Empty("f8")
        case 4:
            file[name] = h5py.SoftLink("/" + name)
        case 5:
            file[name] = h5py.SoftLink("/")
        case 6:
            file[name] = np.zeros(3, dtype=[("a", "i4"), ("b", "f8")])
    return f"{name} replaced ({kind})"


def _h5_attribute(file: h5py.File, name: str, rng: np.random.Generator) -> str:
    of = name if rng.random() < 0.7 else "/"
    attributes = file[of].attrs
    key = pick([*attributes, "shape", "_index", "encoding-type"], rng)
    new = pick(["csr_matrix", "array", [], [-1, 2**40], 5, h5py.Empty("f8"), None], rng)
    if new is None:
        attributes.pop(key, None)
    else:
        attributes[key] = new
    return f"attribute {key} of {of} is {new!r:.30}"


def _h5_put(file: h5py.File, name: str, values: Any) -> None:
    attributes = dict(file[name].attrs)
    del file[name]
    file[name] = values
    for key, value in attributes.items():
        file[name].attrs[key] = value


def _h5_values(file: h5py.File, name: str, rng: np.random.Generator) -> str:
    dataset = file[name]
    if dataset.size in (None, 0) or dataset.dtype.kind not in "iufbO":
        return f"{name} kept"
    values = np.atleast_1d(dataset[()]).copy()
    flat = values.reshape(-1)
    for at in rng.integers(flat.size, size=rng.integers(1, 4)):
        if values.dtype.kind == "O":
            flat[at] = pick([b"", b"\xff\xfe", b"NA", flat[0]], rng)
        elif values.dtype.kind == "f":
            flat[at] = pick([np.nan, np.inf, -1, 1e38, 0.5], rng)
        elif values.dtype.kind in "iu":
            info = np.iinfo(values.dtype)
            flat[at] = np.clip(pick([-1, info.max, info.min, flat.size, 10**6], rng), *_ends(info))
    _h5_put(file, name, values.reshape(dataset.shape))
    return f"values of {name}"


def _ends(info: np.iinfo) -> tuple[int, int]:
    return info.min, info.max


def _h5_resize(file: h5py.File, name: str, rng: np.random.Generator) -> str:
    dataset = file[name]
    if dataset.size is None or not dataset.shape:
        return f"{name} kept"
    values = dataset[()]
    n = int(rng.integers(len(values) + 1))
    match int(rng.integers(3)):
        case 0:
            values = values[:n]
        case 1:
            values = np.concatenate([values, values[:n]])
        case 2:
            values = values[..., None]
    _h5_put(file, name, values)
    return f"{name} has the shape {values.shape}"


def _h5_retype(file: h5py.File, name: str, rng: np.random.Generator) -> str:
    dataset = file[name]
    if dataset.size is None:
        return f"{name} kept"
    to = pick(["f8", "i1", "u8", "S3", "c16", "?"], rng)
    try:
        values = np.asarray(dataset[()]).astype(to)
    except (ValueError, TypeError):
        values = np.zeros(dataset.shape, dtype=to)
    _h5_put(file, name, values)
    return f"{name} is {to}"


def _h5_huge(file: h5py.File, name: str, rng: np.random.Generator) -> str:
    """A data set of a terabyte that takes no space, because nothing was written to it."""
    dtype, rank = file[name].dtype, max(len(file[name].shape or ()), 1)
    attributes = dict(file[name].attrs)
    del file[name]
    size = int(pick([10**9, 10**12, 2**62], rng))
    shape, chunks = (size, *[3] * (rank - 1)), (10**4, *[3] * (rank - 1))
    created = file.create_dataset(name, shape=shape, dtype=dtype, chunks=chunks)
    for key, value in attributes.items():
        created.attrs[key] = value
    return f"{name} of {size} values that are not there"
