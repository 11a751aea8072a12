"""Read what the original code leaves in a folder after training, and check that it fits together.

Nothing in the folder is executed: tensors come through torch's reader that accepts nothing else,
the mask through numpy's without pickles, and tables as text.
"""

from __future__ import annotations

import re
import zipfile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._constants import UNKNOWN
from tosica.legacy._weights import as_module, mask_of, read_tensors, shown, sizes_of, weighted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

MASK, PATHWAY, LABELS, GENE_WEIGHTS = (
    "mask.npy",
    "pathway.csv",
    "label_dictionary.csv",
    "gene2token_weights.csv",
)
_WEIGHTS = "model.pth"
_WEIGHTS_OF_EPOCH = re.compile(r"model-(\d+)\.pth")
_NODE = re.compile(r"node \d+")


class LegacyProject(NamedTuple):
    """What a folder of the original code holds, checked.

    ``mask`` is ``(n_genes, n_tokens)``, bool, with sorted indices; ``state`` has the parameters of
    a :class:`~tosica.module.TOSICAModule` by name.
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


def read_project(
    folder: Path, var_names: Iterable[str] | None, n_heads: int, weights: str | None
) -> LegacyProject:
    """Read a folder of the original code.

    Parameters
    ----------
    folder
        Where it is.
    var_names
        Names of the genes in the order of training; ``None`` to read them from the folder.
    n_heads
        Number of attention heads, which the tensors do not tell.
    weights
        Name of the file with the weights; ``None`` for the last epoch's.

    Raises
    ------
    FileNotFoundError
        If the folder or a file of it is missing.
    TypeError
        If ``var_names`` are no names, or ``n_heads`` is no whole number.
    ValueError
        If a file is damaged, holds what it should not, or contradicts another one.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no folder {str(folder)!r}: pass the project folder of the original code."
        )
    if isinstance(n_heads, bool) or not isinstance(n_heads, int | np.integer):
        raise TypeError(f"n_heads must be a whole number, not {n_heads!r}.")
    source = _choose_weights(folder, weights)
    tensors = read_tensors(source)
    sizes = sizes_of(tensors, source.name)
    if n_heads < 1 or sizes.embed_dim % n_heads:
        raise ValueError(
            f"n_heads={n_heads} does not divide the width of {sizes.embed_dim} that {source.name} "
            "has: pass the number of heads that the model was trained with."
        )
    mask = mask_of(tensors, sizes, source.name)
    _compare_masks(_read_mask(folder), mask, source.name)
    _, gene_sets = _read_list(folder, PATHWAY, sizes.n_tokens, "gene sets", source.name)
    labels_key, labels = _read_list(folder, LABELS, sizes.n_labels, "labels", source.name)
    _check_labels(labels)
    empty = [gene_sets[p] for p in np.flatnonzero(~mask.any(0))]
    if empty:
        raise ValueError(
            f"{len(empty)} gene sets of {MASK} have no gene ({shown(empty)}), so that their "
            "tokens say nothing: train the original again without them."
        )
    genes = _genes(folder, var_names, gene_sets, mask | weighted(tensors, sizes), source.name)
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
        state=as_module(tensors, sizes, columns),
    )


# --------------------------------------------------------------------------- files


def _choose_weights(folder: Path, weights: str | None) -> Path:
    if weights is not None:
        if not (folder / weights).is_file():
            there = shown(sorted(path.name for path in folder.glob("*.pth"))) or "none"
            raise FileNotFoundError(
                f"The folder {str(folder)!r} holds no {weights}; its files with weights: {there}."
            )
        return folder / weights
    epochs = {
        int(match[1]): path
        for path in folder.iterdir()
        if (match := _WEIGHTS_OF_EPOCH.fullmatch(path.name))
    }
    if epochs:
        return epochs[max(epochs)]
    if (folder / _WEIGHTS).is_file():
        return folder / _WEIGHTS
    raise FileNotFoundError(
        f"The folder {str(folder)!r} holds neither model-<epoch>.pth nor {_WEIGHTS}: pass the name "
        "of the file with the weights as weights=."
    )


def _existing(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise FileNotFoundError(
            f"The folder {str(folder)!r} holds no {name}, so it is not a project of the original "
            "code or not a whole one."
        )
    return folder / name


# --------------------------------------------------------------------------- mask


def _read_mask(folder: Path) -> np.ndarray:
    path = _existing(folder, MASK)
    try:
        # An archive of arrays would keep a file open that it opened itself.
        with path.open("rb") as file:
            mask = np.load(file, allow_pickle=False)
        if not isinstance(mask, np.ndarray) or mask.dtype.kind not in "biuf":
            raise ValueError("not an array of numbers")
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{str(path)!r} is not a whole array of numbers in numpy's format; pickled objects are "
            "not read, because that could run code."
        ) from error
    return mask


def _compare_masks(given: np.ndarray, mask: NDArray[np.bool_], file: str) -> None:
    if given.shape != mask.shape:
        raise ValueError(
            f"{MASK} has the shape {given.shape}, but {file} has {mask.shape[0]} genes and "
            f"{mask.shape[1]} gene sets: they are not from one training."
        )
    n_different = int((given != mask).sum())
    if n_different:
        raise ValueError(
            f"{MASK} differs from the mask in {file} for {n_different} pairs of gene and gene set: "
            "they are not from one training."
        )


def _count_unannotated(gene_sets: list[str], mask: NDArray[np.bool_]) -> int:
    """Count the fully connected tokens at the end.

    If all are called "node", they were drawn at random, and the original then adds none.
    """
    is_node = [bool(_NODE.fullmatch(name)) for name in gene_sets]
    if all(is_node):
        return 0
    counts = np.array(is_node) & mask.all(axis=0)
    return int(np.argmin(counts[::-1]))


# --------------------------------------------------------------------------- tables


def _read_table(path: Path, n_rows: int | None = None) -> pd.DataFrame:
    """Read a table as text, the header as its first row, so that no name is touched."""
    try:
        return pd.read_csv(path, header=None, dtype=str, na_filter=False, nrows=n_rows)
    except ValueError as error:  # what pandas raises is one, and so are bytes that are no text
        raise ValueError(f"{str(path)!r} is not a table of comma-separated values.") from error


def _read_list(
    folder: Path, name: str, n_expected: int, what: str, file: str
) -> tuple[str, list[str]]:
    """Header and entries of a table that has a number and a name in each row."""
    table = _read_table(_existing(folder, name))
    if table.shape[1] != 2:
        raise ValueError(
            f"{name} has {table.shape[1]} columns instead of two, a number and a name."
        )
    header, entries = str(table.iat[0, 1]), table.iloc[1:, 1].tolist()
    if len(entries) != n_expected:
        raise ValueError(
            f"{name} lists {len(entries)} {what}, but {file} has {n_expected}: they are not from "
            "one training."
        )
    if table.iloc[1:, 0].tolist() != [str(i) for i in range(len(entries))]:
        raise ValueError(
            f"The rows of {name} are not numbered 0, 1, 2, …: the file was changed since training, "
            f"and which name belongs to which of the {what} cannot be told."
        )
    twice = _repeated(entries)
    if twice:
        raise ValueError(f"{name} lists {len(twice)} {what} more than once ({shown(twice)}).")
    return header, entries


def _check_labels(labels: list[str]) -> None:
    if len(labels) < 2:
        raise ValueError(
            f"{LABELS} lists a single label ({labels[0]!r}): there is nothing to tell apart."
        )
    if UNKNOWN in labels:
        raise ValueError(
            f"{LABELS} has a label {UNKNOWN!r}, which annotate writes where it is in doubt: give "
            "it another name in that file."
        )


def _genes(
    folder: Path,
    var_names: Iterable[str] | None,
    gene_sets: list[str],
    connected: NDArray[np.bool_],
    file: str,
) -> list[str]:
    """Names of the genes: those given, those in the folder, or both if they agree.

    ``connected`` is ``(n_genes, n_tokens)``: where there may be a weight at all.
    """
    given = None if var_names is None else _check_names(var_names)
    path = folder / GENE_WEIGHTS
    header = f"The header of {GENE_WEIGHTS}"
    written: list[str] = []
    if path.is_file():
        written = _read_table(path, n_rows=1).iloc[0, 1:].tolist()
        _check_number(written, len(connected), header, file)
        _check_gene_weights(path, gene_sets, connected, file)
    if given is not None:
        genes, where = given, "var_names"
        _check_number(given, len(connected), where, file)
    elif written:
        genes, where = written, header
    else:
        raise FileNotFoundError(
            f"The folder {str(folder)!r} holds no {GENE_WEIGHTS}, the only file with the names of "
            "the genes: pass the var_names of the data that the model was trained on."
        )
    twice = _repeated(genes)
    if twice:
        raise ValueError(
            f"{where} has {len(twice)} genes more than once ({shown(twice)}), and a query's genes "
            "are matched by name: pass var_names in which each gene has a name of its own."
        )
    # Names that occur twice in the file can only have been changed.
    changed = set(_repeated(written))
    for i, name in enumerate(written):
        if name != genes[i] and name not in changed:
            raise ValueError(
                f"var_names contradict the header of {GENE_WEIGHTS} (first at gene {i}: "
                f"{genes[i]!r} and {name!r}): leave var_names out, or move that file away if it "
                "is from another training."
            )
    return genes


def _check_names(var_names: Iterable[str]) -> list[str]:
    names = None if isinstance(var_names, str) or not np.iterable(var_names) else list(var_names)
    if names is None or not all(isinstance(name, str) for name in names):
        raise TypeError(
            "var_names must be a list of gene names, such as adata.var_names, not "
            f"{type(var_names).__name__ if names is None else 'a list of other things'}."
        )
    return [str(name) for name in names]


def _check_number(genes: list[str], n_genes: int, where: str, file: str) -> None:
    if len(genes) != n_genes:
        raise ValueError(
            f"{where} has {len(genes)} genes, but {file} has {n_genes}: pass the var_names of the "
            "data that the model was trained on, in their order."
        )


def _check_gene_weights(
    path: Path, gene_sets: list[str], connected: NDArray[np.bool_], file: str
) -> None:
    """Refuse a table of other gene sets or genes; its numbers may be another epoch's."""
    try:
        table = pd.read_csv(path, header=None, skiprows=1, na_filter=False, dtype={0: str})
        rows, values = table[0].tolist(), table.iloc[:, 1:].to_numpy(dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not a table of numbers.") from error
    if rows != gene_sets:
        raise ValueError(
            f"The rows of {GENE_WEIGHTS} are not the gene sets of {PATHWAY}: they are not from one "
            "training."
        )
    if values.shape != connected.T.shape or values[~connected.T].any():
        raise ValueError(
            f"{GENE_WEIGHTS} has weights where the mask in {file} has none: they are not from one "
            "training, so its header may name other genes."
        )


def _repeated(names: list[str]) -> list[str]:
    index = pd.Index(names, dtype=object)
    return list(index[index.duplicated()].unique())
