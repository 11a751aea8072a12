"""Match the genes of a query with those of a model, and put them in the model's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._checks import list_names
from tosica._limits import LIMITS
from tosica._settings import query_logger, warn_user
from tosica.data._matrix import check_unique
from tosica.gs._genes import GeneList, hint_for_mismatch
from tosica.gs._match import match_genes, match_respelled, same_but_hyphens

if TYPE_CHECKING:
    from collections.abc import Callable

    from tosica.data._kinds import ModalityKind
    from tosica.data._matrix import Block, CellMatrix

_REFUSE_BELOW = 0.5


def match_names(matrix: CellMatrix, model_names: pd.Index, kind: ModalityKind[Any]) -> np.ndarray:
    """Find each column of a query among a model's genes.

    Names may have ``-`` for ``_`` or the other way round, if only one name fits.

    Parameters
    ----------
    matrix
        Matrix of the query.
    model_names
        The model's genes, ``(n_genes,)``.
    kind
        The kind of modality. Other identifiers and older symbols are looked for if its tokens are
        gene sets: antibodies have names of their own, which may be aliases of genes.

    Returns
    -------
    Position in the model of each column, -1 for those that the model does not have, ``(n_vars,)``.

    Raises
    ------
    ValueError
        If under half of the model's genes are found, or one of them occurs twice.

    Warns
    -----
    UserWarning
        If under 95 % of the model's genes are found.
    """
    names, name = matrix.names.astype(str), matrix.name
    remedy = f"{name}.var_names_make_unique()"
    if matrix.where.endswith(".raw.X"):
        remedy = f"{name} = {name}.raw.to_adata() and {remedy}"
    needed = names[names.isin(model_names)]
    check_unique(needed, "var_names of the query that the model needs", remedy)
    indexer, ambiguous, repeated, summary = find_genes(
        names, model_names, lambda: matrix.var, translate=kind.has_gene_sets
    )
    if summary:
        query_logger.info("query: %s", summary)
    n_found = int((indexer >= 0).sum())
    share = n_found / len(model_names)
    query = "The query" if name == "adata" else f"The query's {name}"
    found = f"{n_found} of the model's {len(model_names)} {kind.features} ({share:.0%})"
    if share < _REFUSE_BELOW:
        kind.check_names(names, name)
        hint = hint_for_mismatch(names, model_names, var=matrix.var)
        if n_found + len(repeated) >= _REFUSE_BELOW * len(model_names):
            first = list_names(next(iter(repeated.values())), 3)
            hint = (
                f"{len(repeated)} are under several names ({first}, …), of which none is taken: keep one column of each"
            )
        raise ValueError(
            f"{query} has only {found} among its var_names, and at least half are needed"
            + (f"; {hint}." if hint else f": {kind.mismatch_advice}")
        )
    if share < 1 - LIMITS.missing_genes:
        warn_user(f"{query} has only {found}; the network sees the missing ones as zero, and labels may suffer.")
    n_others = len(names) - n_found
    others = f"; {n_others} others are not used" if n_others else ""
    unclear = f"; several names fit {list_names(ambiguous, 3)} but for - and _, and none is taken" if ambiguous else ""
    query_logger.info("query: matched %s%s%s", found, others, unclear)
    return indexer


class FoundGenes(NamedTuple):
    """Genes of a model among the columns of a query.

    ``indexer`` has the position in the model of each column, -1 for those that the model does not
    have, ``(n_vars,)``. ``ambiguous`` are genes that several names fit but for ``-`` and ``_``,
    ``repeated`` genes with several names in other ways. ``summary`` says what was translated.
    """

    indexer: np.ndarray
    ambiguous: list[str]
    repeated: dict[str, list[str]]
    summary: str


def find_genes(
    names: pd.Index, model_names: pd.Index, read_var: Callable[[], pd.DataFrame | None], *, translate: bool = True
) -> FoundGenes:
    """Find genes by name, then with hyphens for underscores, then by other identifiers.

    Parameters are those of :func:`match_names`; ``read_var`` reads the table of the genes.
    """
    names = names.astype(str)
    indexer = model_names.get_indexer(names)
    rows = np.flatnonzero(indexer >= 0)
    if len(rows) == len(model_names):
        return FoundGenes(indexer, [], {}, "")
    respelled = match_respelled(names, model_names, indexer[rows], rows)
    indexer[respelled.rows] = respelled.wanted
    if not translate or (indexer >= 0).sum() >= (1 - LIMITS.missing_genes) * len(model_names):
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
    match = match_genes(GeneList(names, var), GeneList(genes), identifiers="map")
    column = names if match.column is None or var is None else var[match.column].astype(str)
    given = np.asarray(column)
    pairs = pd.DataFrame({"gene": match.wanted, "row": match.rows})
    own = np.asarray(genes)[match.wanted]
    same = given[match.rows] == own
    # Names that Seurat changed are as good, if the name itself is not there.
    same |= same_but_hyphens(given[match.rows], own) & ~np.isin(match.rows, match.rows[same])
    exact = pairs[same].drop_duplicates("gene", keep=False)
    rest = pairs[~same & ~pairs["gene"].isin(exact["gene"]) & ~pairs["row"].isin(exact["row"])]
    several = rest[rest["gene"].duplicated(keep=False)]
    repeated = {str(genes[gene]): [str(given[row]) for row in rows] for gene, rows in several.groupby("gene")["row"]}
    rest = rest[~rest["gene"].duplicated(keep=False) & ~rest["row"].duplicated(keep=False)]
    indexer = np.full_like(by_name, -1)
    for part in (exact, rest):
        indexer[part["row"].to_numpy()] = part["gene"].to_numpy()
    if (indexer >= 0).sum() <= (by_name >= 0).sum():
        return by_name, repeated, ""
    return indexer, repeated, match.summary()


def reindex_genes(block: Block, indexer: np.ndarray, n_genes: int) -> np.ndarray:
    """Make a dense float32 block with the model's genes as columns; missing genes are zero.

    ``indexer`` is the result of :func:`match_names`.
    """
    out = np.zeros((block.shape[0], n_genes), dtype=np.float32)
    if sp.issparse(block):
        column = indexer[block.indices]
        known = column >= 0
        row = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
        out[row[known], column[known]] = block.data[known]
    else:
        known = indexer >= 0
        out[:, indexer[known]] = block[:, known]
    return out
