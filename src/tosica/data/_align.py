"""Give a query's cells the genes of a model: matched by name, put in order, checked."""

from __future__ import annotations

import inspect
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch

from tosica._logging import logger
from tosica.data._cell_matrix import Block, CellMatrix, check_unique
from tosica.data._query_scale import rescaling
from tosica.data._scale import Kind, Scale, kind_of, mixed_scales_error, unscaled_in
from tosica.gs._gene_names import hint_for_mismatch
from tosica.gs._match_genes import match_genes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anndata import AnnData

# Above this one or two labels in a hundred change, see docs/benchmarks/missing_genes.md.
_WARN_BELOW = 0.95
_REFUSE_BELOW = 0.5
# Cells that are read at a time: enough to make a read from disk worth while, few enough for what
# was read to stay small beside the model.
BLOCK = 4096
# Between a user's call and a warning there are frames of these only.
_INSIDE = tuple(f"{Path(p).parent}{os.sep}" for p in (Path(__file__).parent, torch.__file__))


class AlignedBatch(NamedTuple):
    """Some cells of a query on the model's genes.

    ``start`` is the position of the first cell. ``expression`` is ``(n_cells, n_genes)`` float32;
    ``counts`` says whether it still holds counts. ``total`` is then what each cell's counts are to
    be divided by, ``(n_cells,)``, or ``None`` for their sum over ``expression``. ``measured`` says
    which of the genes the query has, ``(n_genes,)``.
    """

    start: int
    expression: np.ndarray
    counts: bool
    total: np.ndarray | None
    measured: np.ndarray


def align(
    adata: AnnData,
    genes: pd.Index,
    scale: Scale,
    *,
    layer: str | None = None,
    use_raw: bool = False,
    batch_size: int = 256,
    name: str = "adata",
) -> Iterator[AlignedBatch]:
    """Check a query, then hand out its cells in batches on the model's genes.

    What names alone can tell is checked at the call, values as they are read. Genes are matched by
    name; if under 95 % of the model's are found so, the others are looked for under other
    identifiers, older symbols and in columns of ``var``, and the log says what was translated.
    Log-normalised cells are brought to the reference's total if it is plain which total they were
    scaled to, and taken as they are if it is not.

    Parameters
    ----------
    adata
        The query.
    genes
        The model's genes, in the model's order.
    scale
        How the model's reference was scaled.
    layer, use_raw
        Which matrix of the query to read.
    batch_size
        Cells in a batch.
    name
        What the query is called in sentences, such as ``mdata['rna']``.

    Returns
    -------
    Iterator over batches, in the order of the cells.

    Raises
    ------
    ValueError
        If the query shares under half of the model's genes, if one of them or a cell's name
        occurs twice, or if values are missing, infinite, negative, neither counts nor
        log-normalised, or counts in some cells and log-normalised in others; if they are shares
        without a logarithm, or the logarithm of counts.

    Warns
    -----
    UserWarning
        If the query shares under 95 % of the model's genes, or cells have no counts in them.
    """
    rows = CellMatrix(adata, layer=layer, use_raw=use_raw, name=name)
    check_unique(adata.obs_names, "obs_names of the query", f"{name}.obs_names_make_unique()")
    place = match_names(rows, genes, None if use_raw else adata.var, name=name)
    hint = unscaled_in(adata).replace("adata.", f"{name}.")
    return _batches(rows, place, len(genes), scale, batch_size, hint)


def match_names(
    rows: CellMatrix,
    genes: pd.Index,
    var: pd.DataFrame | None,
    *,
    name: str = "adata",
    what: str = "genes",
) -> np.ndarray:
    """Position in the model of each gene of the query; -1 for those that the model lacks.

    ``var`` is the table of the query's genes, ``None`` for those of ``raw``. ``name`` is what the
    query is called in sentences, and ``what`` what its columns are.
    """
    names = rows.names.astype(str)
    place = genes.get_indexer(names)
    remedy = f"{name}.var_names_make_unique()"
    if var is None:
        remedy = f"{name} = {name}.raw.to_adata() and {remedy}"
    check_unique(names[place >= 0], "var_names of the query that the model needs", remedy)
    # Antibodies have names of their own, which may be aliases of genes.
    if what == "genes" and (place >= 0).sum() < _WARN_BELOW * len(genes):
        place = _translate(names, genes, var, place)
    n_found = int((place >= 0).sum())
    share = n_found / len(genes)
    query = "The query" if name == "adata" else f"The query's {name}"
    found = f"{n_found} of the model's {len(genes)} {what} ({share:.0%})"
    if share < _REFUSE_BELOW:
        hint = hint_for_mismatch(names, genes, var=var)
        reason = {"genes": "was it cut down to its variable genes?"}.get(
            what, "is it another panel?"
        )
        raise ValueError(
            f"{query} has only {found} among its var_names, and at least half are needed"
            + (f"; {hint}." if hint else f": {reason}")
        )
    if share < _WARN_BELOW:
        warnings.warn(
            f"{query} has only {found}; the network sees the missing ones as zero, and labels may "
            "suffer.",
            UserWarning,
            stacklevel=user_stacklevel(),
        )
    logger.info("query: matched %s; %d others are not used", found, len(names) - n_found)
    return place


def _translate(
    names: pd.Index, genes: pd.Index, var: pd.DataFrame | None, by_name: np.ndarray
) -> np.ndarray:
    """``place`` with the help of other identifiers, older symbols and columns of var.

    A gene of the model takes one gene of the query: where several would fit, none is taken, unless
    one has its name.
    """
    match = match_genes(names, genes, var=var, identifiers="map")
    given = names if match.column is None or var is None else var[match.column].astype(str)
    pairs = pd.DataFrame({"gene": match.wanted, "row": match.rows})
    same = np.asarray(given)[match.rows] == np.asarray(genes)[match.wanted]
    exact = pairs[same].drop_duplicates("gene", keep=False)
    rest = pairs[~same & ~pairs["gene"].isin(exact["gene"]) & ~pairs["row"].isin(exact["row"])]
    rest = rest[~rest["gene"].duplicated(keep=False) & ~rest["row"].duplicated(keep=False)]
    place = np.full_like(by_name, -1)
    for part in (exact, rest):
        place[part["row"].to_numpy()] = part["gene"].to_numpy()
    if (place >= 0).sum() <= (by_name >= 0).sum():
        return by_name
    logger.info("query: %s", match.summary())
    return place


def _batches(
    rows: CellMatrix, place: np.ndarray, n_genes: int, scale: Scale, batch_size: int, hint: str
) -> Iterator[AlignedBatch]:
    kind: Kind | None = None
    measured = np.zeros(n_genes, dtype=bool)
    measured[place[place >= 0]] = True
    n_empty = 0
    rescale = rescaling(rows, scale)
    # Whole batches, so that only the last one is short.
    for start, block in rows.blocks(max(BLOCK // batch_size, 1) * batch_size):
        seen = kind_of(block, rows.where, first_cell=start, hint=hint)
        if kind is None and seen is not None:
            kind = seen
            logger.info(
                "query: %s holds %s", rows.where, "counts" if kind == "counts" else "log1p values"
            )
        elif seen not in (None, kind):
            raise mixed_scales_error(rows.where, start)
        counts = kind != "log1p"
        if rescale is not None and not counts:
            block = rescale(block, start, rows.where)
        for offset in range(0, block.shape[0], batch_size):
            part = block[offset : offset + batch_size]
            expression = on_model_genes(part, place, n_genes)
            n_empty += int((~expression.any(1)).sum())
            total = None
            if counts and scale.over == "matrix":
                total = np.asarray(part.sum(1, dtype=np.float64)).ravel()
            yield AlignedBatch(start + offset, expression, counts, total, measured)
    if n_empty:
        warnings.warn(
            f"{n_empty} cells of the query express none of the model's genes; "
            "their labels mean nothing.",
            UserWarning,
            stacklevel=user_stacklevel(),
        )


def on_model_genes(block: Block, place: np.ndarray, n_genes: int) -> np.ndarray:
    """Dense float32 rows with the model's genes as columns; genes that are missing are zero."""
    out = np.zeros((block.shape[0], n_genes), dtype=np.float32)
    if sp.issparse(block):
        column = place[block.indices]
        known = column >= 0
        row = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
        out[row[known], column[known]] = block.data[known]
    else:
        known = place >= 0
        out[:, place[known]] = block[:, known]
    return out


def user_stacklevel() -> int:
    """How far above the caller the user's own code is."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_INSIDE):
        level, frame = level + 1, frame.f_back
    return level
