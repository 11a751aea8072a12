"""Read gene sets in any form."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
import pandas as pd

from tosica._settings import logger
from tosica._text import describe_value, format_thousands
from tosica._types import AnyPath
from tosica.gs._gene_sets import GeneSets
from tosica.gs._join import JoinedGeneSets, Source, join_sources, read_source

_Sources: TypeAlias = list[AnyPath] | tuple[AnyPath, ...]
GeneSetsLike: TypeAlias = (
    AnyPath | Mapping[str, Iterable[str]] | pd.DataFrame | _Sources
)

# Columns of decoupler's networks and resources that hold the gene, and the gene set.
_TARGET_COLUMNS = ("target", "genesymbol")
_SOURCE_COLUMNS = ("source", "geneset", "pathway", "cell_type")


def read_gene_sets(gene_sets: GeneSetsLike) -> list[GeneSets]:
    """Read gene sets from a name, a path, a dict, a table, or a list of names and paths.

    Returns
    -------
    list of GeneSets
        The sets of each source. Sources may differ in the kind of their gene names.
    """
    by_source: list[GeneSets]
    if isinstance(gene_sets, pd.DataFrame):
        by_source = [_from_table(gene_sets)]
    elif isinstance(gene_sets, JoinedGeneSets):
        by_source = _from_joined(gene_sets)
    elif isinstance(gene_sets, Mapping):
        by_source = [_from_dict(gene_sets, Source("dict"))]
    elif isinstance(gene_sets, str | os.PathLike):
        source, genes_of = read_source(gene_sets)
        by_source = [_from_dict(genes_of, source)]
    elif (
        isinstance(gene_sets, list | tuple)
        and gene_sets
        and all(isinstance(source, str | os.PathLike) for source in gene_sets)
    ):
        by_source = _from_joined(join_sources(gene_sets))
    else:
        raise TypeError(
            "gene_sets must be a collection's name, a path of a GMT file, a dict of lists, a table with 'source' and "
            f"'target' columns, or a list of names and paths, not {describe_value(gene_sets)}."
        )
    if not any(len(sets.gene_names) for sets in by_source):
        sources = " + ".join(sets.source for sets in by_source) or "dict"
        raise ValueError(
            f"no gene set in gene_sets ({sources}) holds a gene: pass at least one that does."
        )
    return by_source


def _from_joined(gene_sets: JoinedGeneSets) -> list[GeneSets]:
    groups = gene_sets.by_source()
    return [_from_dict(sets, source) for source, sets in groups.items()]


def _from_dict(gene_sets: Mapping[str, Iterable[str]], source: Source) -> GeneSets:
    collection = source.collection
    if collection is None:
        return GeneSets.from_dict(gene_sets, source=source.name)
    return GeneSets.from_dict(
        gene_sets,
        source=source.name,
        organism=collection.organism,
        release=collection.release,
        is_named=True,
    )


def _from_table(table: pd.DataFrame) -> GeneSets:
    """Read a network or resource as decoupler has them."""
    source = next((column for column in _SOURCE_COLUMNS if column in table), None)
    target = next((column for column in _TARGET_COLUMNS if column in table), None)
    if source is None or target is None:
        raise ValueError(
            "the table of gene sets needs the columns 'source' (the gene set) and 'target' (the gene), but its "
            f"columns are {', '.join(map(str, table.columns)) or 'none'}."
        )
    if (source, target) != ("source", "target"):
        logger.info(
            "build_mask: took the gene sets from the table's column %r and the genes from %r",
            source,
            target,
        )
    pairs = pd.DataFrame({"source": table[source].array, "target": table[target].array})
    if "weight" in table:
        pairs["weight"] = _read_weights(table["weight"])
    complete = pairs.dropna(subset=["source", "target"])
    if len(complete) < len(pairs):
        n_left_out = format_thousands(len(pairs) - len(complete))
        n_rows = format_thousands(len(pairs))
        logger.warning(
            f"build_mask: left out {n_left_out} of {n_rows} rows of the table, whose source or target is missing"
        )
    complete = complete.drop_duplicates()
    contradictions = complete[complete.duplicated(["source", "target"])]
    if len(contradictions):
        pair = contradictions.iloc[0]
        raise ValueError(
            f"the table of gene sets gives {pair['target']!r} in {pair['source']!r} several weights: keep one row of "
            "each gene in a set."
        )
    sets, names = pd.factorize(complete["source"].to_numpy(dtype=object))
    return GeneSets.from_pairs(
        list(names),
        sets,
        list(complete["target"]),
        complete["weight"].to_numpy() if "weight" in table else None,
        source="table",
    )


def _read_weights(column: pd.Series) -> np.ndarray:
    """Read weights as numbers, ``(n_rows,)`` float32; missing ones are NaN."""
    numbers = pd.to_numeric(column, errors="coerce")
    weights = numbers.to_numpy(np.float32, na_value=np.nan)
    is_text = np.isnan(weights) & column.notna().to_numpy()
    if (np.isinf(weights) | is_text).any():
        raise TypeError(
            "the column 'weight' of gene_sets holds values that are no finite numbers: drop it."
        )
    return weights
