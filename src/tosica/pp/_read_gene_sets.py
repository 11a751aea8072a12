"""Bring every form in which gene sets come into one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from tosica import gs
from tosica._logging import format_thousands, logger
from tosica.gs._collections import describe, known_names, parse_name
from tosica.gs._join import is_gmt_path
from tosica.gs._match_genes import organism_of

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

GeneSetsLike: TypeAlias = (
    str
    | os.PathLike[str]
    | Mapping[str, Iterable[str]]
    | pd.DataFrame
    | list[str | os.PathLike[str]]
    | tuple[str | os.PathLike[str], ...]
)

# Stands for human_gobp or mouse_gobp, as the data are.
_GOBP = "gobp"
# Species as users call them; others keep their scientific name.
_COMMON_NAMES = {"Homo sapiens": "human", "Mus musculus": "mouse"}
_UNANNOTATED = re.compile(r"unannotated_\d+")
# What decoupler's resources call the gene, and the set if there is no column `source`.
_TARGET_COLUMNS = ("target", "genesymbol")
_SOURCE_COLUMNS = ("source", "geneset", "pathway", "cell_type")
_WEIGHT_COLUMN = "weight"


@dataclass(frozen=True)
class GeneSets:
    """Gene sets as a matrix: which of the different ``genes`` is in which set, (sets, genes) int32.

    ``weights`` are those of a network, a table with a row for each pair that has one. ``organism``
    is None if it was not told, and ``is_named`` says whether all come from named collections.
    """

    names: list[str]
    genes: pd.Index
    contains: csr_matrix
    source: str
    organism: str | None = None
    release: str = ""
    is_named: bool = False
    weights: pd.DataFrame | None = None

    @property
    def lengths(self) -> NDArray[np.intp]:
        """Number of genes that each set lists, (sets,)."""
        return np.diff(self.contains.indptr)


def read_gene_sets(gene_sets: GeneSetsLike, adata: AnnData, *, organism: str) -> GeneSets:
    """Read gene sets from a name, a path, a dict, a table, or a list of names and paths.

    ``adata`` and ``organism`` decide what "gobp" stands for.
    """
    gene_sets = _name_gobp(gene_sets, adata, organism)
    weights = None
    told: dict[str, str] = {}
    if isinstance(gene_sets, list | tuple) and gene_sets:
        source = " + ".join(_label(part) for part in gene_sets)
        names, genes, lengths = _flatten(gs.join(gene_sets))
        parts = [_about(part) for part in gene_sets if _is_named(part)]
        is_named = len(parts) == len(gene_sets)
        organisms = {part["organism"] for part in parts}
        if is_named:
            told["release"] = " + ".join(part["release"] for part in parts)
            if len(organisms) == 1:
                told["organism"] = organisms.pop()
    elif isinstance(gene_sets, str) and not _is_path(gene_sets):
        is_named = True
        # First, because it says which collections there are if this is none.
        names, genes, lengths = _flatten(gs.load(gene_sets))
        source = parse_name(gene_sets)[0]
        told = _about(gene_sets)
    elif isinstance(gene_sets, str | os.PathLike):
        is_named = False
        source = Path(gene_sets).name
        names, genes, lengths = _flatten(gs.read_gmt(gene_sets))
    elif isinstance(gene_sets, pd.DataFrame):
        is_named = False
        source = "table"
        names, genes, lengths, weights = _flatten_table(gene_sets)
    elif isinstance(gene_sets, Mapping):
        is_named = False
        source = "dict"
        names, genes, lengths = _flatten(gene_sets)
    else:
        raise TypeError(
            "gene_sets must be a collection's name, a path of a GMT file, a dict of lists, a table "
            "with 'source' and 'target' columns, a list of names and paths or None, not "
            f"{type(gene_sets).__name__}."
        )
    _check_names(names, genes, lengths, source)
    codes, unique = pd.factorize(genes)
    set_of = np.repeat(np.arange(len(names), dtype=np.int32), lengths)
    # A gene that a set repeats is summed, and counts once.
    contains = csr_matrix(
        (np.ones(len(codes), dtype=np.int32), (set_of, codes)), shape=(len(names), len(unique))
    )
    table = None
    if weights is not None:
        table = pd.DataFrame({"set": set_of, "wanted": codes, "weight": weights}).dropna()
    return GeneSets(
        names,
        pd.Index(unique, dtype=object),
        contains,
        source,
        is_named=is_named,
        weights=table,
        **told,
    )


def _name_gobp(gene_sets: GeneSetsLike, adata: AnnData, organism: str) -> GeneSetsLike:
    """Put the collection of the data's organism in the place of "gobp", alone or in a list."""
    if not any(map(_is_gobp, gene_sets if isinstance(gene_sets, list | tuple) else [gene_sets])):
        return gene_sets
    if organism != "auto":
        whose, why = organism, f"organism={organism!r} was given"
    else:
        found, column = organism_of(adata.var_names, adata.var)
        whose, where = found or "human", "" if column is None else f" in var[{column!r}]"
        why = f"adata holds {found} genes{where} (by overlap)"
        if found is None:
            why = "it is not clear whether adata holds human or mouse genes"
    logger.info("build_mask: took %s_%s, since %s", whose, _GOBP, why)
    if isinstance(gene_sets, list | tuple):
        return [f"{whose}_{part}" if _is_gobp(part) else part for part in gene_sets]
    return f"{whose}_{gene_sets}"


def _is_gobp(part: object) -> bool:
    return isinstance(part, str) and part.partition("@")[0] == _GOBP


def _about(name: object) -> dict[str, str]:
    """Organism and release of a named collection."""
    about = describe(str(name))
    species = about["organism"]
    return {"organism": _COMMON_NAMES.get(species, species), "release": about["release"]}


def _is_named(part: object) -> bool:
    return isinstance(part, str) and part.partition("@")[0] in known_names()


def _label(part: object) -> str:
    return str(part) if _is_named(part) else Path(str(part)).name


def _is_path(gene_sets: str) -> bool:
    """Whether a string is a file's; a collection's name stays one whatever lies in the folder."""
    return is_gmt_path(gene_sets) or (os.path.isfile(gene_sets) and not _is_named(gene_sets))


def _flatten(
    gene_sets: Mapping[str, Iterable[str]],
) -> tuple[list[str], NDArray[np.object_], NDArray[np.intp]]:
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
    given = len(complete)
    complete = complete.dropna(subset=["source", "target"])
    n_dropped = given - len(complete)
    complete = complete.drop_duplicates(["source", "target"])
    if n_dropped:
        logger.warning(
            "build_mask: left out %s of %s rows of the table, whose source or target is missing",
            format_thousands(n_dropped),
            format_thousands(given),
        )
    codes, names = pd.factorize(complete["source"].to_numpy(dtype=object))
    # Sets in the order in which they first appear, each one's genes together.
    order = np.argsort(codes, kind="stable")
    genes = complete["target"].to_numpy(dtype=object)[order]
    kept = None if weights is None else complete["weight"].to_numpy()[order]
    return list(names), genes, np.bincount(codes, minlength=len(names)), kept


def _weights(table: pd.DataFrame) -> NDArray[np.float32] | None:
    """Weights and signs of a network; missing ones stay so."""
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
    """Refuse what cannot be gene sets, whatever form it came in."""
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
                f"gene set {name!r} is called like a fully connected token: rename it."
            )
    # Types first, of which there are few: a look at every gene is for the message alone.
    if not all(issubclass(kind, str) for kind in set(map(type, genes))):
        at = next(i for i, gene in enumerate(genes) if not isinstance(gene, str))
        owner = names[int(np.searchsorted(np.cumsum(lengths), at, side="right"))]
        raise TypeError(
            f"gene set {owner!r} holds a {type(genes[at]).__name__} ({genes[at]!r}) where the name "
            "of a gene is expected: gene names are strings."
        )
    if genes.size == 0:
        raise ValueError(f"no gene set in gene_sets ({source}) holds a gene: pass sets with genes.")
