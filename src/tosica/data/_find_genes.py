"""Match the genes of a query with those of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tosica._limits import LIMITS
from tosica.gs._gene_list import GeneList
from tosica.gs._match import match_genes
from tosica.gs._respelling import match_respelled, same_but_hyphens
from tosica.gs._spelling import undecorated

if TYPE_CHECKING:
    from collections.abc import Callable


class FoundGenes(NamedTuple):
    """Genes of a model among the columns of a query.

    ``indexer`` has the position in the model of each column, -1 for those that the model does not
    have, ``(n_vars,)``. ``ambiguous`` are genes that several names fit but for ``-``, ``_`` and ``.``,
    ``repeated`` genes with several names in other ways. ``summary`` says what was translated.
    """

    indexer: np.ndarray
    ambiguous: list[str]
    repeated: dict[str, list[str]]
    summary: str


def find_genes(
    names: pd.Index,
    model_names: pd.Index,
    read_var: Callable[[], pd.DataFrame | None],
    expressed: np.ndarray | None = None,
    *,
    translate: bool = True,
    sufficient_share: float = 1 - LIMITS.missing_genes,
) -> FoundGenes:
    """Find genes by name, then but for hyphens, underscores and dots, then by other identifiers.

    Parameters
    ----------
    names
        Columns of the query, ``(n_vars,)``.
    model_names
        The model's genes, ``(n_genes,)``.
    read_var
        Reads the table of the columns, ``None`` if there is none.
    expressed
        Which of the model's genes count for whether names alone find too few, by default all.
    translate
        Whether to look for other identifiers and older symbols if names alone find too few.
    sufficient_share
        Share of the model's genes that are not too few.
    """
    names = names.astype(str)
    indexer = model_names.get_indexer(names)
    rows = np.flatnonzero(indexer >= 0)
    if len(rows) == len(model_names):
        return FoundGenes(indexer, [], {}, "")
    respelled = match_respelled(names, model_names, indexer[rows], rows)
    indexer[respelled.rows] = respelled.targets
    is_needed = np.ones(len(model_names), bool) if expressed is None else expressed
    n_sufficient = sufficient_share * is_needed.sum()
    n_found = is_needed[indexer[indexer >= 0]].sum()
    if not translate or n_found >= n_sufficient:
        return FoundGenes(indexer, respelled.ambiguous, {}, "")
    indexer, repeated, summary = _translate(names, model_names, read_var(), indexer)
    return FoundGenes(indexer, respelled.ambiguous, repeated, summary)


def _translate(
    names: pd.Index,
    model_names: pd.Index,
    var: pd.DataFrame | None,
    indexer_by_name: np.ndarray,
) -> tuple[np.ndarray, dict[str, list[str]], str]:
    """Match genes by other identifiers, older symbols and columns of ``var``, too.

    A gene of the model takes one gene of the query: if several fit, none is taken, unless one has
    its name. These genes are returned with their names in the query, and a summary for the log.
    """
    model_genes = undecorated(model_names)
    match = match_genes(GeneList(names, var), GeneList(model_genes))
    query_genes = np.asarray(match.names.names)
    pairs = pd.DataFrame({"gene": match.targets, "row": match.rows})
    gene_name = np.asarray(model_genes)[pairs["gene"]]
    query_name = query_genes[pairs["row"]]
    is_same = query_name == gene_name
    # Names that Seurat changed are as good, if the name itself is not there.
    is_new = ~np.isin(pairs["row"], pairs["row"][is_same])
    is_same |= same_but_hyphens(query_name, gene_name) & is_new
    exact = pairs[is_same].drop_duplicates("gene", keep=False)
    is_free = ~pairs["gene"].isin(exact["gene"]) & ~pairs["row"].isin(exact["row"])
    translated = pairs[~is_same & is_free]
    is_repeated = translated["gene"].duplicated(keep=False)
    repeated = {
        str(model_names[gene]): [str(query_genes[row]) for row in rows]
        for gene, rows in translated[is_repeated].groupby("gene")["row"]
    }
    is_shared = translated["row"].duplicated(keep=False)
    matched = pd.concat([exact, translated[~is_repeated & ~is_shared]])
    if len(matched) <= (indexer_by_name >= 0).sum():
        return indexer_by_name, repeated, ""
    indexer = np.full_like(indexer_by_name, -1)
    indexer[matched["row"].to_numpy()] = matched["gene"].to_numpy()
    return indexer, repeated, match.summary()
