"""Read the cells of a query in batches: its genes in the model's order, normalized as the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp

from tosica._limits import LIMITS
from tosica._settings import TosicaWarning, query_logger, warn_user
from tosica._text import call, list_names, parameter
from tosica.data._find_genes import find_genes
from tosica.data._matrix import BLOCK, check_unique
from tosica.data._modality_kinds import AntibodyScale
from tosica.data._reference_scale import Scale
from tosica.gs._gene_list import hint_for_mismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from tosica.data._find_genes import FoundGenes
    from tosica.data._matrix import CellMatrix
    from tosica.data._modality_kinds import ModalityKind
    from tosica.data._normalize import Block

# Share of the model's genes that a query must have.
_REFUSE_BELOW = 0.5
# Panels and selections of variable genes have fewer, and so have cells of them.
_WHOLE_TRANSCRIPTOME = 10_000

S = TypeVar("S", Scale, AntibodyScale)


class CellBatch(NamedTuple):
    """Some cells of a query.

    ``offset`` is the position of the first cell. ``values`` are normalized as the reference, with
    zeros for genes that the query lacks, ``(n_cells, n_genes)``, float32.
    """

    offset: int
    values: np.ndarray


class EmptyCellsWarning(TosicaWarning):
    """Some cells of a query have nothing in any gene of the model.

    Parameters
    ----------
    n_cells
        Number of these cells.
    description
        What is wrong with them, as in :attr:`ModalityKind.empty_cells`.
    """

    def __init__(self, n_cells: int, description: str) -> None:
        super().__init__(
            f"{n_cells} cells of the query {description}; their labels mean nothing."
        )
        self.n_cells = n_cells
        self.description = description


class AlignedCells(Generic[S]):
    """A query's cells in batches on the model's features, in the order of the cells.

    Names are checked at once, values as they are read. Features are matched by name, also with
    ``-`` for ``_`` and the other way round. If under 95 % of the model's genes are found so, the
    others are looked for under other identifiers, older symbols and in columns of ``var``, and the
    log says what was translated.

    Parameters
    ----------
    kind
        The kind of modality.
    matrix
        Matrix of the query, or of its modality of this kind.
    names
        The model's features, in the model's order, ``(n_genes,)``.
    scale
        How the model's reference is scaled.
    batch_size
        Cells in a batch.
    block_size
        Number of cells that are read at a time.
    sample
        If ``matrix`` is a part of a query, cells from all over that query, by which the scale is
        recognized.
    label_variance
        Variance of each gene's mean between the labels, ``(n_genes,)``. A query that has half of it
        may have fewer than half of the genes.
    expressed
        Which genes the reference expresses, bool, ``(n_genes,)``. Of the others, which are zero in
        all of its cells, a query lacks nothing.

    Attributes
    ----------
    indexer
        Position in the model of each column, -1 for those that the model does not have,
        ``(n_vars,)``.
    measured
        Which of the model's genes the query has, ``(n_genes,)``, or the reference does not express.

    Raises
    ------
    ValueError
        If the query has under half of the model's features and of their variance between labels, if
        one of them or a cell's name occurs twice; in the iteration, if values are missing, infinite
        or not those of this kind, or counts in some cells and normalized in others.

    Warns
    -----
    UserWarning
        If the query has under 95 % of the model's features; in the iteration, if cells are
        empty, most have so few genes as empty droplets, or the query seems to be normalized
        otherwise than the reference.
    """

    def __init__(
        self,
        kind: ModalityKind[S],
        matrix: CellMatrix,
        names: pd.Index,
        scale: S,
        *,
        batch_size: int = 256,
        block_size: int = BLOCK,
        sample: CellMatrix | None = None,
        label_variance: np.ndarray | None = None,
        expressed: np.ndarray | None = None,
    ) -> None:
        query_name = "the query" if matrix.name == "adata" else matrix.name
        check_unique(
            matrix.adata.obs_names,
            f"obs_names of {query_name}",
            f"{matrix.name}.obs_names_make_unique()",
        )
        self._kind: ModalityKind[S] = kind
        self._matrix = matrix
        self._scale: S = scale
        self._sample = sample
        if expressed is None:
            expressed = np.ones(len(names), dtype=bool)
        self.indexer = _match_genes(kind, matrix, names, label_variance, expressed)
        self.measured = ~expressed
        self.measured[self.indexer[self.indexer >= 0]] = True
        self._batch_size = batch_size
        # Blocks of whole batches, so that only the last batch is short.
        self._block_size = max(block_size // batch_size, 1) * batch_size

    def __iter__(self) -> Iterator[CellBatch]:
        n_empty = 0
        n_poor = 0
        columns = self.indexer >= 0
        blocks = self._kind.read_query(
            self._matrix,
            self._scale,
            columns,
            gene_share=float(self.measured.mean()),
            block_size=self._block_size,
            sample=self._sample,
        )
        for block_offset, block in blocks:
            n_genes = np.asarray((block > 0).sum(1))
            n_poor += int((n_genes < LIMITS.genes_of_cell).sum())
            has_all_columns = block.shape[1] == len(self.indexer)
            indexer = self.indexer if has_all_columns else self.indexer[columns]
            for offset in range(0, block.shape[0], self._batch_size):
                rows = block[offset : offset + self._batch_size]
                values = _reorder(rows, indexer, len(self.measured))
                n_empty += int((~values.any(1)).sum())
                yield CellBatch(block_offset + offset, values)
        if n_empty and self._kind.empty_cells is not None:
            warn_user(EmptyCellsWarning(n_empty, self._kind.empty_cells))
        is_whole = len(self.indexer) >= _WHOLE_TRANSCRIPTOME
        if is_whole and n_poor > LIMITS.poor_cells * self._matrix.n_obs:
            limit = LIMITS.genes_of_cell
            cure = call("sc.pp.filter_cells", f"query, min_genes={limit}")
            warn_user(
                f"{n_poor / self._matrix.n_obs:.0%} of the query's cells have fewer than {limit} genes, as empty "
                "droplets of a raw matrix have; their labels mean nothing: take the filtered matrix, or leave them "
                f"out by {cure}."
            )


def _reorder(rows: Block, indexer: np.ndarray, n_genes: int) -> np.ndarray:
    """Make rows dense, with columns at their positions in the model and zeros for the others."""
    values = np.zeros((rows.shape[0], n_genes), dtype=np.float32)
    if sp.issparse(rows):
        row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        column = indexer[rows.indices]
        is_used = column >= 0
        values[row[is_used], column[is_used]] = rows.data[is_used]
    else:
        is_used = indexer >= 0
        values[:, indexer[is_used]] = rows[:, is_used]
    return values


# ------------------------------------------------------------------ genes


def _match_genes(
    kind: ModalityKind[S],
    matrix: CellMatrix,
    model_names: pd.Index,
    label_variance: np.ndarray | None,
    expressed: np.ndarray,
) -> np.ndarray:
    """Find each column of a query among a model's genes.

    Other identifiers and older symbols are looked for if tokens are gene sets: antibodies have
    names of their own, which may be aliases of genes. Arguments and errors are those of
    :class:`AlignedCells`.

    Returns
    -------
    Position in the model of each column, -1 for those that the model does not have, ``(n_vars,)``.
    """
    names = matrix.names.astype(str)
    remedy = f"{matrix.name}.var_names_make_unique()"
    if matrix.where.endswith(".raw.X"):
        remedy = f"{matrix.name} = {matrix.name}.raw.to_adata() and {remedy}"
    check_unique(
        names[names.isin(model_names)],
        "var_names of the query that the model needs",
        remedy,
    )
    match = find_genes(
        names,
        model_names,
        lambda: matrix.var,
        expressed,
        translate=kind.has_gene_sets,
    )
    if match.summary:
        query_logger.info("query: %s", match.summary)
    positions = match.indexer[match.indexer >= 0]
    n_found = int(expressed[positions].sum())
    n_genes = int(expressed.sum())
    share = n_found / n_genes
    share_of_variance = share
    if label_variance is not None:
        variance_found = label_variance[np.unique(positions)].sum()
        share_of_variance = float(variance_found / label_variance.sum())
    description = f"{n_found} of the model's {n_genes} {kind.features} ({share:.0%})"
    query = "The query" if matrix.name == "adata" else f"The query's {matrix.name}"
    if max(share, share_of_variance) < _REFUSE_BELOW:
        kind.check_names(names, matrix.name)
        hint = _explain_mismatch(matrix, model_names, match)
        raise ValueError(
            f"{query} has only {description} among its var_names, and at least half are needed"
            + (f"; {hint}." if hint else f": {kind.mismatch_advice}")
        )
    if share < 1 - LIMITS.missing_genes:
        warn_user(
            f"{query} has only {description}; the network sees the missing ones as zero, and labels may suffer."
        )
    message = f"query: matched {description}"
    n_unused = len(names) - len(positions)
    if n_unused:
        message += f"; {n_unused} others are not used"
    if match.ambiguous:
        message += f"; several names fit {list_names(match.ambiguous, 3)} but for -, _ and ., and none is taken"
    query_logger.info(message)
    return match.indexer


def _explain_mismatch(
    matrix: CellMatrix, model_names: pd.Index, match: FoundGenes
) -> str:
    """Say why a query may have so few of the model's genes; empty if nothing tells."""
    names = matrix.names.astype(str)
    n_matched = int((match.indexer >= 0).sum())
    n_needed = _REFUSE_BELOW * len(model_names)
    if n_matched + len(match.repeated) >= n_needed:
        example = list_names(next(iter(match.repeated.values())), 3)
        return (
            f"{len(match.repeated)} are under several names ({example}, …), of which none is taken: add up the columns "
            "of each gene, or, if they are probes, take the matrix of genes"
        )
    if matrix.adata.obs_names.isin(model_names).sum() > n_matched:
        return f"names of its cells are genes: transpose it, as by {matrix.name}.T"
    raw = matrix.adata.raw if matrix.where.startswith("adata") else None
    if raw is not None and raw.var_names.isin(model_names).sum() >= n_needed:
        return f"adata.raw has half of them or more: pass {parameter('use_raw', True)}"
    hint = hint_for_mismatch(names, model_names, var=matrix.var)
    if hint:
        return hint
    if not n_matched:
        return f"its names are such as {names[0]!r}, and those of the model such as {model_names[0]!r}"
    if 2 * n_matched > len(names):
        command = call("TOSICA.for_query")
        return (
            "if genes were left out, as by a choice of variable ones, take all that were measured; "
            f"for a panel of few genes, {command} trains a model"
        )
    return ""
