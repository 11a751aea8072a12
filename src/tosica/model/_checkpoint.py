"""What the file of a model holds: tensors and plain values, and hashes of them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor


MODEL_FILE = "model.pt"
STATE, VAR_NAMES, ATTRIBUTES = "model_state_dict", "var_names", "attr_dict"
FINGERPRINT, DIGEST = "fingerprint", "digest"
# Tensors that may be infinite: before training, expression is not clipped.
_MAY_BE_INFINITE = ("linear.upper",)


def fingerprint(state: Mapping[str, Tensor], *names: Iterable[str]) -> str:
    """Hash of the weights and of the names that they belong to, sixteen characters.

    Parameters
    ----------
    state
        Tensors of the network.
    names
        Labels, genes and gene sets, each in the order of the weights.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for kind in names:
        # A name may have any character but these.
        digest.update("\0".join([*map(str, kind), ""]).encode() + b"\1")
    return digest.hexdigest()[:16]


def digest(contents: Any) -> str:
    """Hash of everything in a model's file, by which :func:`read_model` notices any change."""
    hasher = hashlib.sha256()

    def add(value: Any) -> None:
        match value:
            case torch.Tensor():
                hasher.update(f"{value.dtype} {tuple(value.shape)} ".encode())
                hasher.update(value.detach().cpu().numpy().tobytes())
            case dict():
                hasher.update(f"dict {len(value)} ".encode())
                for key in sorted(value, key=str):
                    add(key)
                    add(value[key])
            case list() | tuple():
                hasher.update(f"list {len(value)} ".encode())
                for item in value:
                    add(item)
            case _:
                text = f"{type(value).__name__} {value!r}"
                hasher.update(f"{len(text)} {text} ".encode())

    add(contents)
    return hasher.hexdigest()


def make_contents(
    state: Mapping[str, Tensor], var_names: np.ndarray, attributes: dict[str, Any]
) -> dict[str, Any]:
    """Put together what the file of a model holds: tensors and plain values."""
    contents = {
        STATE: dict(state),
        VAR_NAMES: to_plain(var_names),
        ATTRIBUTES: to_plain(attributes),
    }
    contents[ATTRIBUTES][DIGEST] = digest(contents)
    return contents


def find_not_finite(state: Mapping[str, Tensor]) -> str | None:
    """Name of the first tensor with a value that is not finite, if there is any."""
    for name, tensor in state.items():
        may_be_infinite = name in _MAY_BE_INFINITE
        wrong = tensor.isnan() | tensor.isneginf() if may_be_infinite else ~tensor.isfinite()
        if wrong.any():
            return name
    return None


def to_plain(value: Any) -> Any:
    """Turn arrays into tensors or lists, and tables into dicts, recursively."""
    match value:
        # Before float and str, because some numpy scalars are subclasses of these.
        case np.generic():
            return value.item()
        case None | bool() | int() | float() | str() | torch.Tensor():
            return value
        case np.ndarray() if value.dtype.kind in "biuf":
            return torch.from_numpy(np.ascontiguousarray(value))
        case np.ndarray() | pd.Index():
            return [to_plain(item) for item in value.tolist()]
        case pd.DataFrame():
            return {"index": to_plain(value.index), "columns": to_plain(value.to_dict("list"))}
        case dict():
            return {str(key): to_plain(item) for key, item in value.items()}
        case list() | tuple() | set():
            return [to_plain(item) for item in value]
    raise TypeError(f"A saved model cannot hold a {type(value).__name__}.")


def restore_registry(registry: dict[str, Any]) -> dict[str, Any]:
    """Turn tensors and lists of a saved registry back into the arrays of the fields."""
    for field in registry["field_registries"].values():
        state = field["state_registry"]
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                state[key] = value.cpu().numpy()
            elif key in ("categorical_mapping", "column_names", "gene_sets"):
                state[key] = np.array(value, dtype=object)
    return registry


def restore_history(history: dict[str, Any] | None) -> dict[str, pd.DataFrame] | None:
    """Turn a saved training history back into tables."""
    if history is None:
        return None
    return {
        name: pd.DataFrame(table["columns"], index=pd.Index(table["index"], name="epoch"))
        for name, table in history.items()
    }
