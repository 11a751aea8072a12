"""Read the tables of a project of the original code: gene sets, labels and genes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica.legacy._weights import list_names

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

GENE_SETS, LABELS, GENE_WEIGHTS = "pathway.csv", "label_dictionary.csv", "gene2token_weights.csv"


def existing_file(folder: Path, name: str) -> Path:
    """Path of a file of the project.

    Raises
    ------
    FileNotFoundError
        If the folder does not hold it.
    """
    if not (folder / name).is_file():
        raise FileNotFoundError(
            f"The folder {str(folder)!r} holds no {name}, so it is not a project of the original "
            "code or not a whole one."
        )
    return folder / name


def _read_table(path: Path, n_rows: int | None = None) -> pd.DataFrame:
    """Read a table as text, with the header as its first row, so that names stay unchanged."""
    try:
        return pd.read_csv(path, header=None, dtype=str, na_filter=False, nrows=n_rows)
    except ValueError as error:  # errors of pandas and of decoding are such
        raise ValueError(f"{str(path)!r} is not a table of comma-separated values.") from error


def read_names(folder: Path, name: str, n_expected: int, what: str, file: str) -> tuple[str, list[str]]:
    """Read a table with a number and a name in each row.

    Parameters
    ----------
    folder, name
        The project folder, and the name of the table.
    n_expected
        Number of names according to the tensors.
    what
        What the names are, for messages.
    file
        Name of the file of tensors, for messages.

    Returns
    -------
    Header of the names, and the names.

    Raises
    ------
    FileNotFoundError
        If there is no such table.
    ValueError
        If it is damaged or was changed, or does not fit the tensors.
    """
    table = _read_table(existing_file(folder, name))
    if table.shape[1] != 2:
        raise ValueError(f"{name} has {table.shape[1]} columns instead of two, a number and a name.")
    header, entries = str(table.iat[0, 1]), table.iloc[1:, 1].tolist()
    if len(entries) != n_expected:
        raise ValueError(
            f"{name} lists {len(entries)} {what}, but {file} has {n_expected}: they are not from one training."
        )
    if table.iloc[1:, 0].tolist() != [str(i) for i in range(len(entries))]:
        raise ValueError(
            f"The rows of {name} are not numbered 0, 1, 2, …: the file was changed since training, "
            f"so that the order of the {what} is unknown."
        )
    duplicated = _duplicated(entries)
    if duplicated:
        raise ValueError(f"{name} lists {what} more than once ({list_names(duplicated)}).")
    return header, entries


def read_genes(
    folder: Path,
    var_names: Iterable[str] | None,
    gene_sets: list[str],
    connected: NDArray[np.bool_],
    file: str,
) -> list[str]:
    """Take the names of the genes as given, or read them from the table of gene weights.

    Parameters
    ----------
    folder
        The project folder.
    var_names
        Names of the genes in the order of training. They have to agree with the table.
    gene_sets
        Names of the gene sets.
    connected
        Whether a gene may have a weight for a token, ``(n_genes, n_tokens)``.
    file
        Name of the file of tensors, for messages.

    Returns
    -------
    Names of the genes.

    Raises
    ------
    FileNotFoundError
        If no names are given and there is no table.
    TypeError
        If ``var_names`` are not names.
    ValueError
        If names occur twice, or names, table and tensors contradict each other.
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
    duplicated = _duplicated(genes)
    if duplicated:
        raise ValueError(
            f"{where} has genes more than once ({list_names(duplicated)}), and a "
            "query's genes are matched by name: pass var_names in which each name occurs once."
        )
    # Names that occur twice in the file may differ from unique var_names.
    renamed = set(_duplicated(written))
    for i, name in enumerate(written):
        if name != genes[i] and name not in renamed:
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


def _check_gene_weights(path: Path, gene_sets: list[str], connected: NDArray[np.bool_], file: str) -> None:
    """Refuse a table of other gene sets or genes. Its weights may be those of another epoch."""
    try:
        table = pd.read_csv(path, header=None, skiprows=1, na_filter=False, dtype={0: str})
        rows, values = table[0].tolist(), table.iloc[:, 1:].to_numpy(dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not a table of numbers.") from error
    if rows != gene_sets:
        raise ValueError(
            f"The rows of {GENE_WEIGHTS} are not the gene sets of {GENE_SETS}: they are not from one training."
        )
    if values.shape != connected.T.shape or values[~connected.T].any():
        raise ValueError(
            f"{GENE_WEIGHTS} has weights where the mask in {file} has none: they are not from one "
            "training, so its header may name other genes."
        )


def _duplicated(names: list[str]) -> list[str]:
    index = pd.Index(names, dtype=object)
    return list(index[index.duplicated()].unique())
