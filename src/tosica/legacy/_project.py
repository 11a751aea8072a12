"""Read the folder that the original code leaves after training, and check that its files agree.

Nothing in the folder is executed: tensors are read with ``weights_only=True``, the mask without
pickles, and tables as text.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
import scipy.sparse as sp

from tosica._obs import UNKNOWN
from tosica.legacy._tables import GENE_SETS, LABELS, existing_file, read_genes, read_names
from tosica.legacy._weights import (
    infer_sizes,
    list_names,
    nonzero_weights,
    read_mask,
    read_tensors,
    to_state_dict,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

_MASK, _WEIGHTS = "mask.npy", "model.pth"
_WEIGHTS_OF_EPOCH = re.compile(r"model-(\d+)\.pth")
_UNANNOTATED = re.compile(r"node \d+")


class LegacyProject(NamedTuple):
    """Contents of a project folder of the original code, checked.

    ``weights`` is the name of the file of tensors; ``mask`` is ``(n_genes, n_tokens)``, bool, with
    sorted indices; ``state`` has the parameters of a :class:`~tosica.module.TOSICAModule` by name.
    """

    weights: str
    genes: NDArray[np.object_]
    gene_sets: NDArray[np.object_]
    n_unannotated: int
    mask: sp.csc_matrix
    labels: list[str]
    labels_key: str
    embed_dim: int
    n_layers: int
    state: dict[str, Tensor]


def read_project(folder: Path, var_names: Iterable[str] | None, n_heads: int, weights: str | None) -> LegacyProject:
    """Read a project folder of the original code.

    Parameters
    ----------
    folder
        The project folder.
    var_names
        Names of the genes in the order of training; ``None`` to read them from the folder.
    n_heads
        Number of attention heads, which cannot be inferred from the tensors.
    weights
        Name of the file of tensors; ``None`` for that of the last epoch.

    Returns
    -------
    The project.

    Raises
    ------
    FileNotFoundError
        If the folder or a file of it is missing.
    TypeError
        If ``var_names`` are not names, or ``n_heads`` is not a whole number.
    ValueError
        If a file is damaged, has other contents than the original writes, or contradicts another
        file.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {str(folder)!r}: pass the project folder of the original code.")
    if isinstance(n_heads, bool) or not isinstance(n_heads, int | np.integer):
        raise TypeError(f"n_heads must be a whole number, not {n_heads!r}.")
    source = _choose_weights(folder, weights)
    tensors = read_tensors(source)
    sizes = infer_sizes(tensors, source.name)
    if n_heads < 1 or sizes.embed_dim % n_heads:
        raise ValueError(
            f"n_heads={n_heads} does not divide the width of {sizes.embed_dim} that {source.name} "
            "has: pass the number of heads that the model was trained with."
        )
    mask = read_mask(tensors, sizes, source.name)
    _compare_masks(_read_mask_file(folder), mask, source.name)
    _, gene_sets = read_names(folder, GENE_SETS, sizes.n_tokens, "gene sets", source.name)
    labels_key, labels = read_names(folder, LABELS, sizes.n_labels, "labels", source.name)
    _check_labels(labels)
    empty = [gene_sets[p] for p in np.flatnonzero(~mask.any(0))]
    if empty:
        raise ValueError(
            f"{len(empty)} gene sets of {_MASK} have no gene ({list_names(empty)}), so that their "
            "tokens have no input: train the original again without them."
        )
    connected = mask | nonzero_weights(tensors, sizes)
    genes = read_genes(folder, var_names, gene_sets, connected, source.name)
    columns = sp.csc_matrix(mask)
    columns.sort_indices()
    return LegacyProject(
        weights=source.name,
        genes=np.array(genes, dtype=object),
        gene_sets=np.array(gene_sets, dtype=object),
        n_unannotated=_count_unannotated(gene_sets, mask),
        mask=columns,
        labels=labels,
        labels_key=labels_key,
        embed_dim=sizes.embed_dim,
        n_layers=sizes.n_layers,
        state=to_state_dict(tensors, sizes, columns),
    )


def _choose_weights(folder: Path, weights: str | None) -> Path:
    if weights is not None:
        if not (folder / weights).is_file():
            there = list_names(sorted(path.name for path in folder.glob("*.pth"))) or "none"
            raise FileNotFoundError(f"The folder {str(folder)!r} holds no {weights}; its files with weights: {there}.")
        return folder / weights
    epochs = {int(match[1]): path for path in folder.iterdir() if (match := _WEIGHTS_OF_EPOCH.fullmatch(path.name))}
    if epochs:
        return epochs[max(epochs)]
    if (folder / _WEIGHTS).is_file():
        return folder / _WEIGHTS
    raise FileNotFoundError(
        f"The folder {str(folder)!r} holds neither model-<epoch>.pth nor {_WEIGHTS}: pass the name "
        "of the file with the weights as weights=."
    )


def _read_mask_file(folder: Path) -> np.ndarray:
    path = existing_file(folder, _MASK)
    try:
        # If numpy opened the file, an archive of arrays would keep it open.
        with path.open("rb") as file:
            _check_header(file, path.stat().st_size)
            mask = np.load(file, allow_pickle=False)
    # A damaged header is parsed as Python, which may raise many kinds of exceptions.
    except Exception as error:
        raise ValueError(
            f"{str(path)!r} is not a whole array of numbers in numpy's format; pickled objects are "
            "not read, because that could run code."
        ) from error
    return mask


def _check_header(file: BinaryIO, size: int) -> None:
    """Compare what an array's header says with the size of the file, before memory is taken."""
    version = np.lib.format.read_magic(file)
    # Version 3 is for names of fields, which numbers do not have.
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, _, dtype = read_header(file)
    if dtype.kind not in "biuf" or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError("The file holds no array of numbers, or not a whole one.")
    file.seek(0)


def _compare_masks(given: np.ndarray, mask: NDArray[np.bool_], file: str) -> None:
    if given.shape != mask.shape:
        raise ValueError(
            f"{_MASK} has the shape {given.shape}, but {file} has {mask.shape[0]} genes and "
            f"{mask.shape[1]} gene sets: they are not from one training."
        )
    n_different = int((given != mask).sum())
    if n_different:
        raise ValueError(
            f"{_MASK} differs from the mask in {file} for {n_different} pairs of gene and gene "
            "set: they are not from one training."
        )


def _count_unannotated(gene_sets: list[str], mask: NDArray[np.bool_]) -> int:
    """Count the fully connected tokens at the end, which the original calls "node".

    If all tokens have this name, gene sets were drawn at random, and there are none of them.
    """
    is_node = [bool(_UNANNOTATED.fullmatch(name)) for name in gene_sets]
    if all(is_node):
        return 0
    counts = np.array(is_node) & mask.all(axis=0)
    return int(np.argmin(counts[::-1]))


def _check_labels(labels: list[str]) -> None:
    if len(labels) < 2:
        raise ValueError(f"{LABELS} lists a single label ({labels[0]!r}): there is nothing to classify.")
    if UNKNOWN in labels:
        raise ValueError(
            f"{LABELS} has a label {UNKNOWN!r}, which annotate writes for uncertain cells: rename it in that file."
        )
