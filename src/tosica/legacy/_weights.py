"""Read the weights that the original code saves, check them, and name them as tosica does."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tosica.module._constants import MLP_RATIO

if TYPE_CHECKING:
    from pathlib import Path

    import scipy.sparse as sp
    from numpy.typing import NDArray

_EMBEDDING = "feature_embed.fe"
# Names in a block, the original's on the left.
_BLOCK = {
    "norm1": "norm1",
    "attn.qkv": "attention.qkv",
    "attn.proj": "attention.proj",
    "norm2": "norm2",
    "mlp.fc1": "fc1",
    "mlp.fc2": "fc2",
}


class Sizes(NamedTuple):
    """Sizes of the network, as its tensors tell them."""

    embed_dim: int
    n_layers: int
    n_tokens: int
    n_genes: int
    n_labels: int


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a file of tensors by name, and nothing else.

    Raises
    ------
    ValueError
        If the file is damaged, or holds anything but plain tensors of floating-point numbers.
    """
    with path.open("rb") as file:
        is_archive = file.read(2) == b"PK"
    damaged = f"{str(path)!r} is cut short or damaged: copy it again."
    if is_archive and not zipfile.is_zipfile(path):
        raise ValueError(damaged)
    more = (
        f"{str(path)!r} holds something other than tensors, and it was not opened further because "
        "that could run code: save the original's model.state_dict()."
    )
    try:
        with warnings.catch_warnings():
            # torch comments on files of old formats, which is nothing a user could change.
            warnings.simplefilter("ignore")
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(more) from error
    # torch's reader fails on a damaged file wherever it happens to be, and as it happens to.
    except Exception as error:
        raise ValueError(damaged) from error
    if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
        raise ValueError(more)
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(
                f"{path.name} holds a {type(tensor).__name__} under {name!r} instead of a tensor: "
                "save the original's model.state_dict() alone."
            )
        if (
            not tensor.is_floating_point()
            or tensor.layout != torch.strided
            or tensor.device.type != "cpu"
        ):
            raise ValueError(
                f"{path.name} holds {tensor.dtype} values under {name!r} instead of a plain tensor "
                "of floating-point numbers."
            )
    return tensors


def sizes_of(tensors: dict[str, Tensor], file: str) -> Sizes:
    """Read the sizes from the tensors.

    Raises
    ------
    ValueError
        If a tensor is missing, unknown to the original, of a shape that does not fit the others,
        or not finite.
    """
    extra_layer = [name for name in tensors if name.startswith("pre_logits.")]
    if extra_layer:
        raise ValueError(
            f"{file} has a layer before the head ({extra_layer[0]!r}; has_logits=True), which "
            "tosica's network does not have, so that this model cannot be loaded."
        )
    n_layers = len({m[1] for name in tensors if (m := re.match(r"blocks\.(\d+)\.", name))})
    needed = set(_shapes(Sizes(1, max(n_layers, 1), 1, 1, 1)))
    missing = sorted(needed - tensors.keys())
    if missing:
        raise ValueError(
            f"{file} does not hold a model of the original: there is no {shown(missing)}."
        )
    unknown = sorted(tensors.keys() - needed)
    if unknown:
        raise ValueError(
            f"{file} does not hold a model of the original, which has no {shown(unknown)}."
        )
    embed_dim = _size(tensors["cls_token"], -1)
    n_rows, n_genes = (_size(tensors[f"{_EMBEDDING}.weight"], axis) for axis in (0, -1))
    n_labels = _size(tensors["head.weight"], 0)
    sizes = Sizes(embed_dim, n_layers, n_rows // embed_dim, n_genes, n_labels)
    for name, shape in _shapes(sizes).items():
        found = tuple(tensors[name].shape)
        if found != shape or 0 in shape:
            raise ValueError(
                f"The tensors of {file} contradict each other: {name!r} has the shape {found}, "
                f"and {shape} would fit the others."
            )
        if not torch.isfinite(tensors[name]).all():
            raise ValueError(
                f"{file} holds NaN or infinity in {name!r}: its training failed, so take the "
                "weights of an earlier epoch (weights=)."
            )
    return sizes


def _size(tensor: Tensor, axis: int) -> int:
    # At least one, so that what follows can divide; a tensor that is empty will not fit then.
    return max(tensor.shape[axis], 1) if tensor.ndim else 1


def _shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the original."""
    d, hidden = sizes.embed_dim, MLP_RATIO * sizes.embed_dim
    rows = sizes.n_tokens * d
    in_block = {
        "norm1": (d,),
        "attn.qkv": (3 * d, d),
        "attn.proj": (d, d),
        "norm2": (d,),
        "mlp.fc1": (hidden, d),
        "mlp.fc2": (d, hidden),
    }
    weights: dict[str, tuple[int, ...]] = {_EMBEDDING: (rows, sizes.n_genes)}
    for i in range(sizes.n_layers):
        weights |= {f"blocks.{i}.{part}": shape for part, shape in in_block.items()}
    weights |= {"norm": (d,), "head": (sizes.n_labels, d)}
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, d)}
    for part, shape in weights.items():
        shapes |= {f"{part}.weight": shape, f"{part}.bias": shape[:1]}
    return shapes | {f"{_EMBEDDING}.mask": (rows, sizes.n_genes)}


def as_module(tensors: dict[str, Tensor], sizes: Sizes, mask: sp.csc_matrix) -> dict[str, Tensor]:
    """Parameters by their names in the module; of the embedding, the pairs inside the mask."""
    by_set = tensors[f"{_EMBEDDING}.weight"].reshape(sizes.n_tokens, sizes.embed_dim, sizes.n_genes)
    token = torch.from_numpy(np.repeat(np.arange(sizes.n_tokens), np.diff(mask.indptr)))
    gene = torch.from_numpy(mask.indices.astype(np.int64))
    state = {
        "embedding.weight": by_set[token, :, gene],
        "embedding.bias": tensors[f"{_EMBEDDING}.bias"].reshape(sizes.n_tokens, sizes.embed_dim),
        "encoder.class_token": tensors["cls_token"].flatten(),
    }
    for kind in ("weight", "bias"):
        state[f"encoder.norm.{kind}"] = tensors[f"norm.{kind}"]
        state[f"head.{kind}"] = tensors[f"head.{kind}"]
        for i in range(sizes.n_layers):
            for theirs, ours in _BLOCK.items():
                state[f"encoder.blocks.{i}.{ours}.{kind}"] = tensors[f"blocks.{i}.{theirs}.{kind}"]
    return state


def mask_of(tensors: dict[str, Tensor], sizes: Sizes, file: str) -> NDArray[np.bool_]:
    """The mask inside the weights, ``(n_genes, n_tokens)``.

    Raises
    ------
    ValueError
        If it has other numbers than 0 and 1, or differs over the width of a token.
    """
    given = tensors[f"{_EMBEDDING}.mask"].reshape(sizes.n_tokens, sizes.embed_dim, sizes.n_genes)
    first = given[:, 0]
    if not ((first == 0) | (first == 1)).all() or (given != first[:, None]).any():
        raise ValueError(
            f"The tensor '{_EMBEDDING}.mask' of {file} is no mask: it needs a 0 or a 1 for each "
            f"gene and gene set, {sizes.embed_dim} times over."
        )
    return first.T.bool().numpy()


def weighted(tensors: dict[str, Tensor], sizes: Sizes) -> NDArray[np.bool_]:
    """Where there is a weight, ``(n_genes, n_tokens)``; outside the mask it has no effect."""
    weight = tensors[f"{_EMBEDDING}.weight"].reshape(sizes.n_tokens, sizes.embed_dim, sizes.n_genes)
    return (weight != 0).any(1).T.numpy()


def shown(names: list[str]) -> str:
    """The first few names, for a sentence."""
    return ", ".join(map(repr, names[:3])) + (", …" if len(names) > 3 else "")
