"""Read and check the weights that the original code saves, and rename them as in the module."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tosica.module import MLP_RATIO

if TYPE_CHECKING:
    from pathlib import Path

    import scipy.sparse as sp
    from numpy.typing import NDArray

_EMBEDDING = "feature_embed.fe"
# Names of the parts of a block: in the original, and in the module.
_BLOCK = {
    "norm1": "norm1",
    "attn.qkv": "attention.qkv",
    "attn.proj": "attention.proj",
    "norm2": "norm2",
    "mlp.fc1": "fc1",
    "mlp.fc2": "fc2",
}


class Sizes(NamedTuple):
    """Sizes of the network, inferred from its tensors."""

    embed_dim: int
    n_layers: int
    n_tokens: int
    n_genes: int
    n_labels: int


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a file of named tensors, and refuse any other content.

    Raises
    ------
    ValueError
        If the file is damaged, or holds anything but plain tensors of floating-point numbers.
    """
    with path.open("rb") as file:
        is_archive = file.read(2) == b"PK"
    damaged = f"{str(path)!r} is cut short or damaged: copy it again."
    if is_archive and not _is_whole_archive(path):
        raise ValueError(damaged)
    not_tensors = (
        f"{str(path)!r} holds something other than tensors, and it was not opened further because "
        "that could run code: save the original's model.state_dict()."
    )
    try:
        with warnings.catch_warnings():
            # Users cannot act on the warnings of torch about old formats.
            warnings.simplefilter("ignore")
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(not_tensors) from error
    # A damaged file can make torch raise any error.
    except Exception as error:
        raise ValueError(damaged) from error
    if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
        raise ValueError(not_tensors)
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(
                f"{path.name} holds a {type(tensor).__name__} under {name!r} instead of a tensor: "
                "save the original's model.state_dict() alone."
            )
        if not tensor.is_floating_point() or tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise ValueError(
                f"{path.name} holds {tensor.dtype} values under {name!r} instead of a plain tensor "
                "of floating-point numbers."
            )
        # A view of one number may have any shape, and would take memory at the first operation.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(
                f"{path.name} holds fewer numbers under {name!r} than its shape "
                f"{tuple(tensor.shape)} needs: save the original's model.state_dict() again."
            )
    return tensors


def _is_whole_archive(path: Path) -> bool:
    """Whether all checksums are right, and no member unpacks to more than its bytes.

    torch reads members without looking at their checksums, and never compresses them.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            stored = all(m.file_size <= m.compress_size for m in archive.infolist())
            return stored and archive.testzip() is None
    # zipfile may raise anything on bytes that are no archive.
    except Exception:
        return False


def infer_sizes(tensors: dict[str, Tensor], file: str) -> Sizes:
    """Infer the sizes of the network from the shapes of its tensors, and check all shapes.

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
        raise ValueError(f"{file} does not hold a model of the original: there is no {list_names(missing)}.")
    unknown = sorted(tensors.keys() - needed)
    if unknown:
        raise ValueError(f"{file} does not hold a model of the original, which has no {list_names(unknown)}.")
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
    # At least 1, so that it can be divided by. The check of shapes refuses empty tensors.
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


def to_state_dict(tensors: dict[str, Tensor], sizes: Sizes, mask: sp.csc_matrix) -> dict[str, Tensor]:
    """Rename tensors as in the module, and keep the embedding's weights inside the mask only.

    Parameters
    ----------
    tensors, sizes
        As from :func:`read_tensors` and :func:`infer_sizes`.
    mask
        As from :func:`read_mask`, with sorted indices.

    Returns
    -------
    Parameters of a :class:`~tosica.module.TOSICAModule` by name.
    """
    by_token = tensors[f"{_EMBEDDING}.weight"].reshape(sizes.n_tokens, sizes.embed_dim, sizes.n_genes)
    token = torch.from_numpy(np.repeat(np.arange(sizes.n_tokens), np.diff(mask.indptr)))
    gene = torch.from_numpy(mask.indices.astype(np.int64))
    state = {
        "embedding.weight": by_token[token, :, gene],
        "embedding.bias": tensors[f"{_EMBEDDING}.bias"].reshape(sizes.n_tokens, sizes.embed_dim),
        "encoder.class_token": tensors["cls_token"].flatten(),
    }
    for kind in ("weight", "bias"):
        state[f"encoder.norm.{kind}"] = tensors[f"norm.{kind}"]
        state[f"head.{kind}"] = tensors[f"head.{kind}"]
        for i in range(sizes.n_layers):
            for original, part in _BLOCK.items():
                tensor = tensors[f"blocks.{i}.{original}.{kind}"]
                state[f"encoder.blocks.{i}.{part}.{kind}"] = tensor
    return state


def read_mask(tensors: dict[str, Tensor], sizes: Sizes, file: str) -> NDArray[np.bool_]:
    """Read the mask that is saved with the weights, ``(n_genes, n_tokens)``.

    Raises
    ------
    ValueError
        If it has other values than 0 and 1, or differs over the width of a token.
    """
    mask = tensors[f"{_EMBEDDING}.mask"].reshape(sizes.n_tokens, sizes.embed_dim, sizes.n_genes)
    first = mask[:, 0]
    if not ((first == 0) | (first == 1)).all() or (mask != first[:, None]).any():
        raise ValueError(
            f"The tensor '{_EMBEDDING}.mask' of {file} is no mask: it needs a 0 or a 1 for each "
            f"gene and gene set, {sizes.embed_dim} times over."
        )
    return first.T.bool().numpy()


def nonzero_weights(tensors: dict[str, Tensor], sizes: Sizes) -> NDArray[np.bool_]:
    """Whether a gene has a weight other than 0 for a token, ``(n_genes, n_tokens)``.

    Weights outside the mask have no effect, but the table of gene weights has them.
    """
    weight = tensors[f"{_EMBEDDING}.weight"].reshape(sizes.n_tokens, sizes.embed_dim, sizes.n_genes)
    return (weight != 0).any(1).T.numpy()


def list_names(names: list[str]) -> str:
    """The first three names, for a message."""
    return ", ".join(map(repr, names[:3])) + (", …" if len(names) > 3 else "")
