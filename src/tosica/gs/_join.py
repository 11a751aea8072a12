"""Combine several collections of gene sets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from tosica.gs._collections import load
from tosica.gs._read_gmt import read_gmt

_GeneSets: TypeAlias = str | os.PathLike[str] | Mapping[str, Iterable[str]]

_ENDINGS = (".gmt", ".gmt.gz")


def join(
    collections: Mapping[str, _GeneSets] | Iterable[str | os.PathLike[str]],
) -> dict[str, list[str]]:
    """Combine several collections of gene sets, with a prefix before the name of each set.

    Parameters
    ----------
    collections
        Prefix to gene sets: the name of a collection (:func:`tosica.gs.load`), the path of a GMT
        file, or a dict of name to genes. In a list of names and paths, the prefix is the name of
        the collection, or that of the file without its ending.

    Returns
    -------
    dict
        ``"<prefix>: <gene set>"`` to list of genes, in the order of the collections.

    Raises
    ------
    TypeError
        If ``collections`` is none of the above.
    ValueError
        If there is nothing to join, a prefix is empty or duplicated, or a collection or file
        cannot be read (:func:`tosica.gs.load`, :func:`tosica.gs.read_gmt`).

    See Also
    --------
    tosica.pp.build_mask : takes the result, or the list itself.

    Examples
    --------
    >>> import tosica
    >>> markers = {"T cell": ["CD3D", "CD3E"]}
    >>> joined = tosica.gs.join({"GO": "human_gobp", "mine": markers})
    >>> len(joined), joined["mine: T cell"]
    (5835, ['CD3D', 'CD3E'])
    """
    if isinstance(collections, str | os.PathLike) or not isinstance(collections, Iterable):
        raise TypeError(
            "collections must be a dict of prefix to gene sets, or a list of collections and "
            f"files, not {type(collections).__name__}."
        )
    if isinstance(collections, Mapping):
        parts = list(collections.items())
    else:
        parts = [(_prefix(part), part) for part in collections]
    if not parts:
        raise ValueError("There is nothing to join: name at least one collection.")
    joined: dict[str, list[str]] = {}
    prefixes: set[str] = set()
    for prefix, part in parts:
        if not isinstance(prefix, str) or not prefix.strip():
            raise ValueError(f"A prefix must be a string that is not empty, not {prefix!r}.")
        if prefix in prefixes:
            raise ValueError(
                f"The prefix {prefix!r} is duplicated: pass a dict with a different prefix for "
                "each collection."
            )
        prefixes.add(prefix)
        if not isinstance(part, str | os.PathLike | Mapping):
            raise TypeError(
                f"The gene sets of {prefix!r} must be the name of a collection, a path, or a dict "
                f"of name to genes, not {type(part).__name__}."
            )
        for name, genes in _read(part).items():
            joined[f"{prefix}: {name}"] = list(genes)
    return joined


def is_gmt_path(text: str) -> bool:
    """Whether a string is the path of a GMT file rather than the name of a collection."""
    return text.lower().endswith(_ENDINGS)


def _prefix(part: object) -> str:
    if not isinstance(part, str | os.PathLike):
        raise TypeError(
            f"A list of collections must hold names and paths, not {type(part).__name__}: to join "
            "anything else, pass a dict of prefix to gene sets."
        )
    if isinstance(part, str) and not is_gmt_path(part):
        return part
    name = Path(part).name
    for ending in reversed(_ENDINGS):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def _read(part: _GeneSets) -> Mapping[str, Iterable[str]]:
    if isinstance(part, Mapping):
        return part
    if isinstance(part, str) and not is_gmt_path(part):
        return load(part)
    return read_gmt(part)
