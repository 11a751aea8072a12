"""Damage values at random that are written anew: R objects, arrays of numpy, tensors of torch."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks._damage_bytes import damage_bytes, pick

if TYPE_CHECKING:
    from collections.abc import Callable


def damage_r(root: Any, make_others: Callable[[], list[Any]], rng: np.random.Generator) -> str:
    """Change one to three values of an R object, in place, or replace them by one of others.

    The others are made anew each time, because a value that holds itself could not be written.
    """
    done = []
    for _ in range(rng.integers(1, 4)):
        places = list(_places(root))
        owner, key, path = places[int(rng.integers(len(places)))]
        value = owner[key]
        ways: list[Callable] = [_r_replace, _r_drop]
        if isinstance(owner, dict):
            ways.append(_r_rename)
        if value is not None and value.kind != "S4":
            ways += [_r_resize, _r_values, _r_values]
        pick(ways, rng)(owner, key, make_others(), rng)
        done.append(path)
    return "R values changed: " + ", ".join(done)


def _places(value: Any, path: str = "") -> Any:
    """Where each value inside of another one is kept."""
    for name in list(value.attributes):
        yield value.attributes, name, f"{path}@{name}"
        if value.attributes[name] is not None:
            yield from _places(value.attributes[name], f"{path}@{name}")
    if value.kind == "VEC":
        for i, item in enumerate(value.value):
            yield value.value, i, f"{path}[{i}]"
            if item is not None:
                yield from _places(item, f"{path}[{i}]")


def _r_replace(owner: Any, key: Any, others: list[Any], rng: np.random.Generator) -> None:
    owner[key] = pick(others, rng)


def _r_drop(owner: Any, key: Any, others: list[Any], rng: np.random.Generator) -> None:
    del owner[key]


def _r_rename(owner: Any, key: Any, others: list[Any], rng: np.random.Generator) -> None:
    owner[pick([*owner, "class", "dim", "names"], rng)] = owner.pop(key)


def _r_resize(owner: Any, key: Any, others: list[Any], rng: np.random.Generator) -> None:
    values = owner[key].value
    n = int(rng.integers(len(values) + 1))
    longer = rng.random() < 0.4
    if isinstance(values, list):
        owner[key].value = values + values[:n] if longer else values[:n]
    else:
        owner[key].value = np.ma.concatenate([values, values[:n]]) if longer else values[:n]


def _r_values(owner: Any, key: Any, others: list[Any], rng: np.random.Generator) -> None:
    values = owner[key].value
    if len(values) == 0:
        return
    for at in rng.integers(len(values), size=rng.integers(1, 4)):
        if owner[key].kind == "STR":
            values[at] = pick(["", None, "class", values[0], "x" * 999, "\t"], rng)
        elif owner[key].kind == "VEC":
            values[at] = pick(others, rng)
        elif owner[key].kind == "LGL":
            values[at] = not values[at]
        else:
            extreme = [-1, 0, 2**31 - 1, len(values), np.ma.masked]
            if owner[key].kind == "REAL":
                extreme += [np.nan, np.inf, 1e300, -0.5]
            # Codes of a factor are small integers, which R stores like all others.
            values = np.ma.array(values, dtype=float if owner[key].kind == "REAL" else np.int64)
            values[at] = pick(extreme, rng)
            owner[key].value = values


def damage_npy(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    """Change the header of an array, which keeps its length."""
    header = content[10 : 10 + struct.unpack("<H", content[8:10])[0]]
    old = [b"'<f8'", b"(400, 20)", b"True", b"False", b"'shape'", b"descr"]
    new = [
        *(b"(100000000, 100000000)", b"(-1, 20)", b"(2**60,)", b"(9999999999999999999999, 20)"),
        *(b"(0, 0)", b"()", b"'|O'", b"'<c16'", b"'<U9999999'", b"[('a', '<f8')]", b"None", b"(("),
    ]
    there = [o for o in old if o in header]
    if not there:
        return damage_bytes(content, rng)
    replaced, by = pick(there, rng), pick(new, rng)
    header = header.replace(replaced, by).rstrip()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    body = content[10 + struct.unpack("<H", content[8:10])[0] :]
    damaged = content[:8] + struct.pack("<H", len(header)) + header + body
    return damaged, f"{replaced!r} became {by!r} in the header"


def damage_tensors(content: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    """Change one to three named tensors."""
    tensors: dict[Any, Any] = dict(torch.load(io.BytesIO(content), weights_only=True))
    done = []
    for _ in range(rng.integers(1, 4)):
        name = pick([*tensors], rng)
        way = int(rng.integers(9))
        tensor = tensors[name]
        if not isinstance(tensor, torch.Tensor) or tensor.ndim == 0 or tensor.numel() == 0:
            way = 0
        match way:
            case 0:
                del tensors[name]
            case 1:
                tensors[pick([*tensors, "blocks.7.norm1.weight", 5], rng)] = tensors.pop(name)
            case 2:
                tensors[name] = tensor[: len(tensor) // 2]
            case 3:
                tensors[name] = tensor.flatten()[:1].expand(10**6, 10**6)
            case 4:
                tensors[name] = tensor.to(pick([torch.int64, torch.float16, torch.bool], rng))
            case 5:
                tensors[name] = pick([5, "a", None, [tensor], {"a": tensor}], rng)
            case 6:
                tensor = tensor.clone()
                tensor.flatten()[0] = pick([float("nan"), float("inf"), 1e30], rng)
                tensors[name] = tensor.T if tensor.ndim == 2 else tensor
            case 7:
                tensors[name] = tensor.to_sparse() if tensor.is_floating_point() else tensor
            case 8:
                tensors[name] = tensor.flatten()[:1].expand(tensor.shape)
        done.append(f"{name} ({way})")
        if not tensors:
            break
    file = io.BytesIO()
    torch.save(tensors, file)
    return file.getvalue(), "tensors: " + ", ".join(done)
