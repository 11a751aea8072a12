"""Several collections as one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from tosica.gs._collections import load
from tosica.gs._read_gmt import read_gmt

GeneSets: TypeAlias = str | os.PathLike[str] | Mapping[str, Iterable[str]]

_ENDINGS = (".gmt", ".gmt.gz")


def join(
    collections: Mapping[str, GeneSets] | Iterable[str | os.PathLike[str]],
) -> dict[str, list[str]]:
    """Put several collections of gene sets together, each set's name behind a prefix.

    Parameters
    ----------
    collections
        Prefix to gene sets: the name of a collection (:func:`tosica.gs.load`), the path of a GMT
        file, or a dict of name to genes. A list of names and paths takes these as prefixes, the
        file's without its ending.

    Returns
    -------
    dict
        ``"<prefix>: <gene set>"`` to list of genes, the collections one after the other.

    Raises
    ------
    TypeError
        If `collections` is none of the above.
    ValueError
        If there is nothing to join, a prefix is empty or comes twice, or a collection or file
        cannot be read (:func:`tosica.gs.load`, :func:`tosica.gs.read_gmt`).

    See Also
    --------
    tosica.pp.build_mask : takes what this returns, or the list itself.

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
    seen: set[str] = set()
    for prefix, part in parts:
        if not isinstance(prefix, str) or not prefix.strip():
            raise ValueError(f"A prefix must be a string that is not empty, not {prefix!r}.")
        if prefix in seen:
            raise ValueError(
                f"The prefix {prefix!r} comes twice: give the collections prefixes of their own, "
                "as a dict."
            )
        seen.add(prefix)
        for name, genes in _read(part).items():
            joined[f"{prefix}: {name}"] = list(genes)
    return joined


def is_gmt_path(text: str) -> bool:
    """Whether a string is a file's path and not the name of a collection."""
    return text.lower().endswith(_ENDINGS)


def _prefix(part: object) -> str:
    if not isinstance(part, str | os.PathLike):
        raise TypeError(
            f"A list of collections holds names and paths, not {type(part).__name__}: to join "
            "others, pass a dict of prefix to gene sets."
        )
    if isinstance(part, str) and not is_gmt_path(part):
        return part
    name = Path(part).name
    for ending in reversed(_ENDINGS):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def _read(part: GeneSets) -> Mapping[str, Iterable[str]]:
    if isinstance(part, Mapping):
        return part
    if isinstance(part, str) and not is_gmt_path(part):
        return load(part)
    return read_gmt(part)
