"""Combine gene sets of several sources, and remember the source of each set."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tosica._types import AnyPath
from tosica._validate import FilePath, InstanceOf, validate_params
from tosica.gs._collections import Collection, find_collection, is_collection
from tosica.gs._gene_sets import as_gene_list
from tosica.gs._gmt import is_gmt_path, read_gmt

_GeneSets: TypeAlias = AnyPath | Mapping[str, Iterable[str]]


class Source(NamedTuple):
    """Origin of gene sets.

    ``name`` is that of the collection or file, or "dict". ``collection`` is None for gene sets of
    the user. ``prefix`` is that of the names in a join.
    """

    name: str
    collection: Collection | None = None
    prefix: str = ""


class JoinedGeneSets(dict[str, list[str]]):
    """Gene sets of several sources.

    ``source_of`` has the source of each set that :func:`join` added. Sets that were added later
    have none there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.source_of: dict[str, Source] = {}

    def by_source(self) -> dict[Source, dict[str, list[str]]]:
        """Group the gene sets by their source."""
        groups: dict[Source, dict[str, list[str]]] = {}
        for name, genes in self.items():
            source = self.source_of.get(name, Source("dict"))
            groups.setdefault(source, {})[name] = genes
        return groups


def read_source(
    gene_sets: AnyPath,
) -> tuple[Source, Mapping[str, list[str]]]:
    """Read a named collection or a GMT file.

    A name is that of a collection, also if there is such a file.
    """
    is_path = not isinstance(gene_sets, str) or is_gmt_path(gene_sets)
    if not is_collection(gene_sets) and (is_path or os.path.isfile(gene_sets)):
        return Source(Path(gene_sets).name), read_gmt(gene_sets)
    collection = find_collection(str(gene_sets))
    return Source(collection.name, collection), collection.load()


@validate_params(
    collections=InstanceOf(
        "a dict of prefix to gene sets, or a list of collections and files",
        Mapping,
        list,
        tuple,
    )
)
def join(
    collections: Mapping[str, _GeneSets] | Iterable[AnyPath],
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
    return join_sources(collections)


def join_sources(
    collections: Mapping[str, _GeneSets] | Iterable[AnyPath],
) -> JoinedGeneSets:
    """Join gene sets as :func:`join` does, and return the source of each set, too."""
    if isinstance(collections, Mapping):
        sources = list(collections.items())
    else:
        sources = [(_prefix_of(source), source) for source in collections]
    if not sources:
        raise ValueError("There is nothing to join: name at least one collection.")
    joined = JoinedGeneSets()
    prefixes: set[str] = set()
    for prefix, gene_sets in sources:
        if not isinstance(prefix, str) or not prefix.strip() or prefix in prefixes:
            raise ValueError(
                f"A prefix must be a string that is neither empty nor there twice, not {prefix!r}: pass others."
            )
        prefixes.add(prefix)
        _add(joined, prefix, gene_sets)
    return joined


def _add(joined: JoinedGeneSets, prefix: str, gene_sets: _GeneSets) -> None:
    """Add the gene sets of one source, with a prefix before their names."""
    source = Source("dict")
    if not isinstance(gene_sets, Mapping):
        FilePath().check(f"collections[{prefix!r}]", gene_sets)
        source, gene_sets = read_source(gene_sets)
    inner = gene_sets.source_of if isinstance(gene_sets, JoinedGeneSets) else {}
    for name, genes in gene_sets.items():
        joined_name = f"{prefix}: {name}"
        joined[joined_name] = as_gene_list(name, genes)
        origin = inner.get(name, source)
        joined.source_of[joined_name] = origin._replace(prefix=prefix + origin.prefix)


def _prefix_of(source: AnyPath) -> str:
    """Name of a collection, or of a file without its ending."""
    FilePath().check("A collection in a list", source)
    if isinstance(source, str) and not is_gmt_path(source):
        return source
    name = Path(source).name
    return name[: name.lower().rindex(".gmt")] if is_gmt_path(name) else name
