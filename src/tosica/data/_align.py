"""Match the genes of a query with those of a model, and put them in the model's order."""

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
    *,
    translate: bool = True,
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
    translate
        Whether to look for other identifiers and older symbols if names alone find too few.
    """
    names = names.astype(str)
    indexer = model_names.get_indexer(names)
    rows = np.flatnonzero(indexer >= 0)
    if len(rows) == len(model_names):
        return FoundGenes(indexer, [], {}, "")
    respelled = match_respelled(names, model_names, indexer[rows], rows)
    indexer[respelled.rows] = respelled.targets
    if not translate or (indexer >= 0).sum() >= (1 - LIMITS.missing_genes) * len(
        model_names
    ):
        return FoundGenes(indexer, respelled.ambiguous, {}, "")
    indexer, repeated, summary = _translate(names, model_names, read_var(), indexer)
    return FoundGenes(indexer, respelled.ambiguous, repeated, summary)


def _translate(
    names: pd.Index, genes: pd.Index, var: pd.DataFrame | None, by_name: np.ndarray
) -> tuple[np.ndarray, dict[str, list[str]], str]:
    """Match genes by other identifiers, older symbols and columns of ``var``, too.

    A gene of the model takes one gene of the query: where several would fit, none is taken, unless
    one has its name. These genes are returned with their names in the query, too, and what the log
    is to say.
    """
    wanted = undecorated(genes)
    match = match_genes(GeneList(names, var), GeneList(wanted))
    given = np.asarray(match.names.names)
    pairs = pd.DataFrame({"gene": match.targets, "row": match.rows})
    own = np.asarray(wanted)[match.targets]
    same = given[match.rows] == own
    # Names that Seurat changed are as good, if the name itself is not there.
    same |= same_but_hyphens(given[match.rows], own) & ~np.isin(
        match.rows, match.rows[same]
    )
    exact = pairs[same].drop_duplicates("gene", keep=False)
    rest = pairs[
        ~same & ~pairs["gene"].isin(exact["gene"]) & ~pairs["row"].isin(exact["row"])
    ]
    several = rest[rest["gene"].duplicated(keep=False)]
    repeated = {
        str(genes[gene]): [str(given[row]) for row in rows]
        for gene, rows in several.groupby("gene")["row"]
    }
    rest = rest[
        ~rest["gene"].duplicated(keep=False) & ~rest["row"].duplicated(keep=False)
    ]
    indexer = np.full_like(by_name, -1)
    for part in (exact, rest):
        indexer[part["row"].to_numpy()] = part["gene"].to_numpy()
    if (indexer >= 0).sum() <= (by_name >= 0).sum():
        return by_name, repeated, ""
    return indexer, repeated, match.summary()
