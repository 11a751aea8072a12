"""Read gene sets from any form that ``build_mask`` accepts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from tosica._logging import format_thousands, logger
from tosica.gs import join, read_gmt
from tosica.gs._collections import collection_names, find_collection
from tosica.gs._gene_list import GeneList
from tosica.gs._join import is_gmt_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Parts: TypeAlias = list[str | os.PathLike[str]] | tuple[str | os.PathLike[str], ...]
GeneSetsLike: TypeAlias = (
    str | os.PathLike[str] | Mapping[str, Iterable[str]] | pd.DataFrame | _Parts
)

# Species that have a common name in the API; others keep their scientific name.
_COMMON_NAMES = {"Homo sapiens": "human", "Mus musculus": "mouse"}
_UNANNOTATED = re.compile(r"unannotated_\d+")
# Columns of decoupler's networks and resources that hold the gene, and the gene set.
_TARGET_COLUMNS = ("target", "genesymbol")
_SOURCE_COLUMNS = ("source", "geneset", "pathway", "cell_type")
_WEIGHT_COLUMN = "weight"


@dataclass(frozen=True)
class GeneSets:
    """Gene sets as a matrix of gene sets by their different genes.

    Attributes
    ----------
    names
        Names of the gene sets, ``(n_gene_sets,)``.
    genes
        Names of the different genes in them.
    contains
        How often each set lists each gene, ``(n_gene_sets, n_genes)`` int32.
    source
        Origin of the gene sets, for messages and ``adata.uns``.
    organism
        Organism of the genes, None if it is not known.
    release
        Release of a named collection.
    is_named
        Whether all gene sets are from named collections.
    weights
        For a table with weights, a row for each pair with one: ``set``, ``wanted`` (the gene, both
        as positions) and ``weight``.
    """

    names: list[str]
    genes: GeneList
    contains: csr_matrix
    source: str
    organism: str | None = None
    release: str = ""
    is_named: bool = False
    weights: pd.DataFrame | None = None

    @property
    def lengths(self) -> NDArray[np.intp]:
        """Number of genes that each set lists, ``(n_gene_sets,)``."""
        return np.diff(self.contains.indptr)


def read_gene_sets(gene_sets: GeneSetsLike) -> GeneSets:
    """Read gene sets from a name, a path, a dict, a table, or a list of names and paths."""
    if isinstance(gene_sets, list | tuple) and gene_sets:
        return _read_list(gene_sets)
    if isinstance(gene_sets, str) and not _is_path(gene_sets):
        collection = find_collection(gene_sets)
        read = _to_gene_sets(*_flatten(collection.load()), source=collection.name)
        organism, release = _organism_and_release(gene_sets)
        return replace(read, organism=organism, release=release, is_named=True)
    if isinstance(gene_sets, str | os.PathLike):
        return _to_gene_sets(*_flatten(read_gmt(gene_sets)), source=Path(gene_sets).name)
    if isinstance(gene_sets, pd.DataFrame):
        return _to_gene_sets(*_flatten_table(gene_sets), source="table")
    if isinstance(gene_sets, Mapping):
        return _to_gene_sets(*_flatten(gene_sets), source="dict")
    raise TypeError(
        "gene_sets must be a collection's name, a path of a GMT file, a dict of lists, a table "
        "with 'source' and 'target' columns, a list of names and paths or None, not "
        f"{type(gene_sets).__name__}."
    )


def _read_list(
    parts: list[str | os.PathLike[str]] | tuple[str | os.PathLike[str], ...],
) -> GeneSets:
    source = " + ".join(str(part) if _is_named(part) else Path(str(part)).name for part in parts)
    read = _to_gene_sets(*_flatten(join(parts)), source=source)
    if not all(map(_is_named, parts)):
        return read
    organisms, releases = zip(*(_organism_and_release(str(part)) for part in parts), strict=True)
    return replace(
        read,
        organism=organisms[0] if len(set(organisms)) == 1 else None,
        release=" + ".join(releases),
        is_named=True,
    )


def _to_gene_sets(
    names: list[str],
    genes: NDArray[np.object_],
    lengths: NDArray[np.intp],
    weights: NDArray[np.float32] | None = None,
    *,
    source: str,
) -> GeneSets:
    """Check the flat form of gene sets, and turn it into a matrix."""
    _check_names(names, genes, lengths, source)
    codes, unique = pd.factorize(genes)
    set_of = np.repeat(np.arange(len(names), dtype=np.int32), lengths)
    # Duplicated genes of a set are summed.
    contains = csr_matrix(
        (np.ones(len(codes), dtype=np.int32), (set_of, codes)), shape=(len(names), len(unique))
    )
    table = None
    if weights is not None:
        table = pd.DataFrame({"set": set_of, "wanted": codes, "weight": weights}).dropna()
    return GeneSets(names, GeneList(unique), contains, source, weights=table)


def _organism_and_release(name: str) -> tuple[str, str]:
    metadata = find_collection(name).describe()
    species = metadata["organism"]
    return _COMMON_NAMES.get(species, species), metadata["release"]


def _is_named(part: object) -> bool:
    return isinstance(part, str) and part.partition("@")[0] in collection_names()


def _is_path(gene_sets: str) -> bool:
    """Whether a string is a path. The name of a collection is not, even if a file is called so."""
    return is_gmt_path(gene_sets) or (os.path.isfile(gene_sets) and not _is_named(gene_sets))


def _flatten(
    gene_sets: Mapping[str, Iterable[str]],
) -> tuple[list[str], NDArray[np.object_], NDArray[np.intp]]:
    """Names of the sets, their genes one set after the other, and the number of genes of each."""
    lists = []
    for name, genes in gene_sets.items():
        if isinstance(genes, str | bytes) or not isinstance(genes, Iterable):
            raise TypeError(
                f"the genes of gene set {name!r} must be a list of names, not "
                f"{type(genes).__name__} ({genes!r:.40}): write {{{name!r}: ['CD3D', 'CD3E']}}."
            )
        lists.append(list(genes))
    lengths = np.array([len(genes) for genes in lists], dtype=np.intp)
    flat = np.empty(int(lengths.sum()), dtype=object)
    flat[:] = list(chain.from_iterable(lists))
    return list(gene_sets), flat, lengths


def _flatten_table(
    table: pd.DataFrame,
) -> tuple[list[str], NDArray[np.object_], NDArray[np.intp], NDArray[np.float32] | None]:
    """Flat form of a table, as of a dict, and the weight of each gene if it has weights."""
    columns = table.columns
    source = next((column for column in _SOURCE_COLUMNS if column in columns), None)
    target = next((column for column in _TARGET_COLUMNS if column in columns), None)
    missing = [name for name, column in (("source", source), ("target", target)) if column is None]
    if source is None or target is None:
        raise ValueError(
            f"the table of gene sets has no column {' and no column '.join(map(repr, missing))}: "
            "it needs 'source' (the gene set) and 'target' (the gene), but its columns are "
            f"{', '.join(map(str, columns)) or 'none'}."
        )
    if (source, target) != ("source", "target"):
        logger.info(
            "build_mask: took the gene sets from the table's column %r and the genes from %r",
            source,
            target,
        )
    weights = _weights(table)
    complete = pd.DataFrame({"source": table[source].array, "target": table[target].array})
    if weights is not None:
        complete["weight"] = weights
    n_rows = len(complete)
    complete = complete.dropna(subset=["source", "target"])
    n_dropped = n_rows - len(complete)
    complete = complete.drop_duplicates(["source", "target"])
    if n_dropped:
        logger.warning(
            "build_mask: left out %s of %s rows of the table, whose source or target is missing",
            format_thousands(n_dropped),
            format_thousands(n_rows),
        )
    codes, names = pd.factorize(complete["source"].to_numpy(dtype=object))
    # Sets are in the order in which they first appear.
    order = np.argsort(codes, kind="stable")
    genes = complete["target"].to_numpy(dtype=object)[order]
    kept = None if weights is None else complete["weight"].to_numpy()[order]
    return list(names), genes, np.bincount(codes, minlength=len(names)), kept


def _weights(table: pd.DataFrame) -> NDArray[np.float32] | None:
    """Weights of a network, which may be negative or missing."""
    if _WEIGHT_COLUMN not in table.columns:
        return None
    try:
        weights = table[_WEIGHT_COLUMN].to_numpy(dtype=np.float32, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "the column 'weight' of the table of gene sets holds "
            f"{table[_WEIGHT_COLUMN].dtype} values instead of numbers: convert or drop it."
        ) from error
    if np.isinf(weights).any():
        raise ValueError(
            "the column 'weight' of the table of gene sets holds infinite values: replace or drop "
            "them."
        )
    return weights


def _check_names(
    names: list[str], genes: NDArray[np.object_], lengths: NDArray[np.intp], source: str
) -> None:
    """Raise an error for what cannot be gene sets, whatever their form."""
    if not names:
        raise ValueError(f"there is no gene set in gene_sets ({source}): pass at least one.")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"the name of a gene set must be a string, not {type(name).__name__} ({name!r}): "
                "rename it."
            )
        if _UNANNOTATED.fullmatch(name):
            raise ValueError(
                f"gene set {name!r} has the name of a fully connected token: rename it."
            )
    # Checking the few different types is fast; single genes are only checked for the message.
    if not all(issubclass(kind, str) for kind in set(map(type, genes))):
        position = next(i for i, gene in enumerate(genes) if not isinstance(gene, str))
        name = names[int(np.searchsorted(np.cumsum(lengths), position, side="right"))]
        gene = genes[position]
        raise TypeError(
            f"gene set {name!r} holds a {type(gene).__name__} ({gene!r}) where the name of a gene "
            "is expected: gene names are strings."
        )
    if genes.size == 0:
        raise ValueError(f"no gene set in gene_sets ({source}) holds a gene: pass sets with genes.")
