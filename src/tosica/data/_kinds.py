"""Kinds of modality: RNA, antibodies, gene activity. A new one is a class and a line at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
)

import numpy as np
import scipy.sparse as sp

from tosica._limits import LIMITS
from tosica._settings import TosicaWarning, query_logger, warn_user
from tosica._text import list_names
from tosica.data._align import find_genes
from tosica.data._matrix import BLOCK, check_unique
from tosica.data._normalize import (
    CenteredLogRatio,
    ChangeOfBase,
    LogNormalization,
    Scale,
    fit_query_scale,
    fit_scale,
)
from tosica.data._scale import check_values, checked_blocks, row_of
from tosica.gs._gene_list import hint_for_mismatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

    from tosica.data._matrix import Block, CellMatrix
    from tosica.data._normalize import Normalization

# Share of the model's genes that a query must have.
_REFUSE_BELOW = 0.5
# A chromosome or contig and two positions: chr1:100-200, chr1-100-200, chr1_100_200.
_PEAK = r"[\w.]+[:_-]\d+[-_]\d+"
# What dsb and CLR give for antibodies stays far below; larger values were scaled otherwise.
_LARGEST_NORMALIZED = 100.0
# A cell's mean, in standard deviations of all values, that counts as zero.
_CENTERED = 0.01

AntibodyValues = Literal["counts", "normalized"]


class AntibodyScale(NamedTuple):
    """How a reference's antibodies were scaled, so that a query can be scaled alike.

    ``kind`` is what the reference's matrix holds. ``centered`` says whether each cell's values have
    a mean of zero once they are normalized, as the centred log-ratio of a cell leaves them.
    """

    kind: AntibodyValues
    centered: bool


# How the matrix of a reference is scaled; a model saves it as a dict.
ModalityScale: TypeAlias = Scale | AntibodyScale
S = TypeVar("S", Scale, AntibodyScale)


class CellBatch(NamedTuple):
    """Some cells of a query.

    ``start`` is the position of the first cell. ``values`` is ``(n_cells, n_genes)``, float32 if
    the columns are the model's genes. ``is_counts`` says whether they are still to be normalized.
    ``total`` is then what each cell's counts are divided by, ``(n_cells,)``, or ``None`` for their
    sum over ``values``.
    """

    start: int
    values: Block
    is_counts: bool
    total: np.ndarray | None = None


class EmptyCellsWarning(TosicaWarning):
    """Some cells of a query have nothing in any gene of the model.

    Parameters
    ----------
    n_cells
        Number of these cells.
    what
        What is wrong with them, as :attr:`ModalityKind.empty_cells` says it.
    """

    def __init__(self, n_cells: int, what: str) -> None:
        super().__init__(
            f"{n_cells} cells of the query {what}; their labels mean nothing."
        )
        self.n_cells = n_cells
        self.what = what


class ModalityKind(ABC, Generic[S]):
    """One kind of modality: it detects, normalizes, aligns and describes its values.

    A kind has no state of its own. What a model knows of a reference is the ``scale``, which
    :meth:`detect_scale` makes. A new kind is a subclass and a line in
    :data:`~tosica.data.MODALITY_KINDS`.
    """

    #: Key of ``modalities`` in ``setup_mudata``.
    role: ClassVar[str]
    #: The named tuple that says how a reference is scaled.
    scale_type: type[S]
    #: Name in messages.
    title: ClassVar[str]
    #: What the columns of the matrix are.
    features: ClassVar[str] = "genes"
    #: Whether tokens are gene sets of the collection; otherwise single features or groups of them.
    has_gene_sets: ClassVar[bool] = True
    #: Name of the values for each ``kind`` of the scale.
    values: ClassVar[Mapping[str, str]]
    #: Why a query may lack features of the model, as a question.
    mismatch_advice: ClassVar[str]
    #: What is wrong with a query's cells that are zero everywhere; ``None`` if nothing is.
    empty_cells: ClassVar[str | None] = None

    @abstractmethod
    def detect_scale(self, matrix: CellMatrix) -> S:
        """Read a whole reference, or its modality of this kind, once and say how it is scaled.

        Raises
        ------
        ValueError
            If the values cannot be those of this kind, or are all zero.
        """

    @abstractmethod
    def normalization(self, scale: S, held: str = "counts") -> Normalization | None:
        """How values become what the model takes; ``None`` if they are that already, or it cannot be known.

        ``held`` says what the values are, as ``kind`` of a scale.
        """

    @abstractmethod
    def read_query(self, query: AlignedCells[S]) -> Iterator[CellBatch]:
        """Read a query in blocks, with all of its columns, each checked and brought to the scale."""

    def merge_scale(self, saved: S, found: S) -> S:
        """Choose between a model's scale and that of another reference of the same model."""
        return found

    def check_names(self, names: pd.Index, name: str) -> None:
        """Refuse names that cannot be features of this kind; ``name`` is that of the AnnData."""

    def describe(self, scale: S) -> str:
        """Say what the matrix holds."""
        return self.values[scale.kind]

    def describe_normalization(self, scale: S) -> str:
        """Say what the matrix holds and what the model makes of it."""
        normalization = self.normalization(scale, scale.kind)
        use = (
            "used without further normalisation"
            if normalization is None
            else f"taken as {normalization}"
        )
        return f"{self.describe(scale)}; {use}"

    def match_names(
        self,
        matrix: CellMatrix,
        model_names: pd.Index,
        signal: np.ndarray | None = None,
    ) -> np.ndarray:
        """Find each column of a query among a model's genes.

        Names may have another one of ``-``, ``_`` and ``.``, if only one name fits. Other identifiers and
        older symbols are looked for if tokens are gene sets: antibodies have names of their own, which
        may be aliases of genes.

        Parameters
        ----------
        matrix
            Matrix of the query.
        model_names
            The model's genes, ``(n_genes,)``.
        signal
            Variance of each gene's mean between the labels, ``(n_genes,)``.

        Returns
        -------
        Position in the model of each column, -1 for those that the model does not have, ``(n_vars,)``.

        Raises
        ------
        ValueError
            If under half of the model's genes, or of ``signal``, is found, or if one occurs twice.

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
            names, model_names, lambda: matrix.var, translate=self.has_gene_sets
        )
        if summary:
            query_logger.info("query: %s", summary)
        n_found = int((indexer >= 0).sum())
        share = n_found / len(model_names)
        told = (
            share
            if signal is None
            else float(signal[np.unique(indexer[indexer >= 0])].sum() / signal.sum())
        )
        query = "The query" if name == "adata" else f"The query's {name}"
        found = (
            f"{n_found} of the model's {len(model_names)} {self.features} ({share:.0%})"
        )
        if max(share, told) < _REFUSE_BELOW:
            self.check_names(names, name)
            hint = hint_for_mismatch(names, model_names, var=matrix.var)
            raw = matrix.adata.raw if matrix.where.startswith("adata") else None
            if matrix.adata.obs_names.isin(model_names).sum() > n_found:
                hint = f"names of its cells are genes: transpose it, as by {name}.T"
            elif raw is not None and raw.var_names.isin(
                model_names
            ).sum() >= _REFUSE_BELOW * len(model_names):
                hint = "adata.raw has half of them or more: pass use_raw=True"
            elif not hint and not n_found:
                hint = f"its names are such as {names[0]!r}, and those of the model such as {model_names[0]!r}"
            elif not hint and 2 * n_found > len(names):
                hint = "TOSICA.for_query (tosica train --for) trains a model for a panel of few genes"
            if n_found + len(repeated) >= _REFUSE_BELOW * len(model_names):
                first = list_names(next(iter(repeated.values())), 3)
                hint = f"{len(repeated)} are under several names ({first}, …), of which none is taken: keep one of each"
            raise ValueError(
                f"{query} has only {found} among its var_names, and at least half are needed"
                + (f"; {hint}." if hint else f": {self.mismatch_advice}")
            )
        if share < 1 - LIMITS.missing_genes:
            warn_user(
                f"{query} has only {found}; the network sees the missing ones as zero, and labels may suffer."
            )
        n_others = len(names) - n_found
        others = f"; {n_others} others are not used" if n_others else ""
        unclear = (
            f"; several names fit {list_names(ambiguous, 3)} but for -, _ and ., and none is taken"
            if ambiguous
            else ""
        )
        query_logger.info("query: matched %s%s%s", found, others, unclear)
        return indexer


class AlignedCells(Generic[S]):
    """A query's cells in batches on the model's features, in the order of the cells.

    What names alone can tell is checked at once, values are checked as they are read. Features are
    matched by name, also with ``-`` for ``_`` and the other way round. If under 95 % of the model's
    genes are found so, the others are looked for under other identifiers, older symbols and in
    columns of ``var``, and the log says what was translated.

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
    signal
        As :meth:`ModalityKind.match_names` takes it.

    Attributes
    ----------
    indexer
        Position in the model of each column, -1 for those that the model does not have,
        ``(n_vars,)``.
    measured
        Which of the model's genes the query has, ``(n_genes,)``.

    Raises
    ------
    ValueError
        If the query has under half of the model's features and of their signal, if one of them or a cell's name
        occurs twice; in the iteration, if values are missing, infinite or not those of this
        kind, or counts in some cells and normalized in others.

    Warns
    -----
    UserWarning
        If the query has under 95 % of the model's features; in the iteration, if cells are
        empty or the query seems to be normalized otherwise than the reference.
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
        signal: np.ndarray | None = None,
    ) -> None:
        self.kind: ModalityKind[S] = kind
        self.scale: S = scale
        self.matrix, self.sample = matrix, sample or matrix
        name = matrix.name
        whose = "the query" if name == "adata" else name
        check_unique(
            matrix.adata.obs_names,
            f"obs_names of {whose}",
            f"{name}.obs_names_make_unique()",
        )
        self.indexer = kind.match_names(matrix, names, signal)
        self.measured = np.zeros(len(names), dtype=bool)
        self.measured[self.indexer[self.indexer >= 0]] = True
        self.batch_size = batch_size
        # Blocks of whole batches, so that only the last batch is short.
        self.block_size = max(block_size // batch_size, 1) * batch_size

    def with_columns(self, columns: np.ndarray) -> AlignedCells[S]:
        """The same cells with some of the columns, by position."""
        chosen = copy(self)
        chosen.indexer = self.indexer[columns]
        chosen.matrix, chosen.sample = (
            matrix.with_columns(columns) for matrix in (self.matrix, self.sample)
        )
        return chosen

    def __iter__(self) -> Iterator[CellBatch]:
        n_empty, step = 0, self.batch_size
        for block in self.kind.read_query(self):
            # Columns that are not used may have been left out.
            all_read = block.values.shape[1] == len(self.indexer)
            indexer = self.indexer if all_read else self.indexer[self.indexer >= 0]
            for offset in range(0, block.values.shape[0], step):
                part = slice(offset, offset + step)
                some = block.values[part]
                # Missing genes are zero.
                values = np.zeros((some.shape[0], len(self.measured)), dtype=np.float32)
                if sp.issparse(some):
                    column, row = (
                        indexer[some.indices],
                        np.repeat(np.arange(some.shape[0]), np.diff(some.indptr)),
                    )
                    values[row[column >= 0], column[column >= 0]] = some.data[
                        column >= 0
                    ]
                else:
                    values[:, indexer[indexer >= 0]] = some[:, indexer >= 0]
                n_empty += int((~values.any(1)).sum())
                total = None if block.total is None else block.total[part]
                yield CellBatch(block.start + offset, values, block.is_counts, total)
        if n_empty and self.kind.empty_cells is not None:
            warn_user(EmptyCellsWarning(n_empty, self.kind.empty_cells))


# ------------------------------------------------------------------ RNA and gene activity


class LogNormalizedKind(ModalityKind[Scale]):
    """A matrix of genes: counts, or log-normalised values."""

    scale_type = Scale
    #: What the values are called in messages.
    noun: ClassVar[str]
    #: What counts are called in messages.
    counts: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Name the values on each scale."""
        normalized = f"log-normalised {cls.noun}"
        cls.values = {"counts": cls.counts, "log1p": normalized}
        cls.values |= {base: f"{normalized} ({base})" for base in ("log2", "log10")}

    def detect_scale(self, matrix: CellMatrix) -> Scale:
        """Tell counts from log-normalised values, and find their total."""
        return fit_scale(matrix)

    def merge_scale(self, saved: Scale, found: Scale) -> Scale:
        """Keep the saved total if that of the other reference cannot be inferred."""
        return saved if saved.over != "genes" and found.over != "genes" else found

    def normalization(self, scale: Scale, held: str = "counts") -> Normalization | None:
        """Scale counts to the reference's total and take ``log(1 + x)``; log2 and log10 become natural."""
        if held == "counts":
            return LogNormalization(scale.target_sum)
        return None if held == "log1p" else ChangeOfBase(2 if held == "log2" else 10)

    def read_query(self, query: AlignedCells[Scale]) -> Iterator[CellBatch]:
        """Read a query; log-normalized cells are brought to the reference's total if it is known.

        They are taken as they are if it is not plain how they were scaled.

        Raises
        ------
        ValueError
            If values are negative, missing, infinite, neither counts nor log-normalized, or not on
            one scale in all cells.
        """
        used, scale, share = (
            query.indexer >= 0,
            query.scale,
            float(query.measured.mean()),
        )
        try:
            to_scale = fit_query_scale(query.sample, scale, used, share)
        except ValueError:
            if used.all():
                raise
            # Antibodies beside genes, say, are of no interest here.
            query = query.with_columns(np.flatnonzero(used))
            to_scale = fit_query_scale(query.sample, scale, used[used], share)
            query_logger.info(
                "query: columns that the model does not use are on another scale, and are not read"
            )
        matrix, values = query.matrix, to_scale.values
        held = values.transform.kind
        query_logger.info("query: %s holds %s", matrix.where, self.values[held])
        for start, block in checked_blocks(matrix, values, query.block_size):
            total = None
            if held != "counts":
                block = to_scale.log_normalized(block, start, matrix.where)
            elif scale.over == "matrix":
                # The model divides by it and multiplies by its own total.
                own = to_scale.target_sum or scale.target_sum
                total = to_scale.total(block) * (scale.target_sum / own)
            yield CellBatch(start, block, held == "counts", total)


class RNA(LogNormalizedKind):
    """Expression: counts, or log-normalised."""

    role = "rna"
    title = "RNA"
    noun = "expression"
    counts = "counts"
    mismatch_advice = "was it cut down to its variable genes?"
    empty_cells = "express none of the model's genes"


class GeneActivity(LogNormalizedKind):
    """Fragments of ATAC-seq counted over each gene: counts, or log-normalised."""

    role = "atac"
    title = "gene activity"
    noun = "gene activity"
    counts = "counts of gene activity"
    mismatch_advice = "was gene activity computed for the genes of another annotation?"
    empty_cells = "have no gene activity in the model's genes"

    def check_names(self, names: pd.Index, name: str) -> None:
        """Refuse a matrix whose columns are peaks, not genes."""
        is_peak = names.astype(str).str.fullmatch(_PEAK)
        if 2 * is_peak.sum() > len(names):
            raise ValueError(
                f"{name} holds peaks (such as {str(names[is_peak][0])!r}), not gene activity: compute gene activities "
                "first, for example with snapatac2.pp.make_gene_matrix or Signac's GeneActivity."
            )


# ------------------------------------------------------------------ antibodies


class Antibodies(ModalityKind[AntibodyScale]):
    """Antibodies: counts, or values normalized by CLR or dsb."""

    scale_type = AntibodyScale
    role = "protein"
    title = "antibodies"
    features = "antibodies"
    has_gene_sets = False
    values: ClassVar[Mapping[str, str]] = {
        "counts": "counts of antibodies",
        "normalized": "normalised antibodies",
    }
    mismatch_advice = "is it another panel?"

    def detect_scale(self, matrix: CellMatrix) -> AntibodyScale:
        """Tell counts from normalized antibodies, and whether these are centred."""
        found: str | None = None
        means = _CellMeans()
        for _, block, found in _antibody_blocks(matrix, BLOCK):
            if found == "normalized":
                means.add(block)
        if found is None:
            raise ValueError(f"{matrix.where} is zero everywhere.")
        return (
            AntibodyScale("counts", True)
            if found == "counts"
            else AntibodyScale("normalized", means.are_zero())
        )

    def normalization(
        self, scale: AntibodyScale, held: str = "counts"
    ) -> CenteredLogRatio | None:
        """Take the centred log-ratio of counts, unless the reference was normalized in another way."""
        return CenteredLogRatio() if scale.centered and held == "counts" else None

    def read_query(self, query: AlignedCells[AntibodyScale]) -> Iterator[CellBatch]:
        """Read a query; counts are normalized as the reference, other values are not changed.

        Raises
        ------
        ValueError
            If values are missing, infinite, negative counts, neither counts nor normalized, or
            counts in some cells and normalized in others; if the query holds counts and the
            reference was normalized in a way that cannot be known.
        """
        where, is_centered = query.matrix.where, query.scale.centered
        logged, found, means = False, None, _CellMeans()
        for start, block, found in _antibody_blocks(
            query.matrix, query.block_size, query.sample
        ):
            if found is not None and not logged:
                query_logger.info("query: %s holds %s", where, self.values[found])
                logged = True
            if found == "counts" and not is_centered:
                raise ValueError(
                    f"{where} holds counts, but the model's antibodies were normalised before: normalise them alike."
                )
            if found == "normalized":
                means.add(block)
            yield CellBatch(start, block, found != "normalized" and is_centered)
        if found == "normalized" and is_centered and not means.are_zero():
            warn_user(
                f"{where} holds normalised antibodies whose mean in a cell is not zero, so they were not normalised as "
                "the model's reference, by the centred log-ratio of each cell; labels may suffer: give the counts."
            )


def _antibody_blocks(
    matrix: CellMatrix, size: int, sample: CellMatrix | None = None
) -> Iterator[tuple[int, Block, AntibodyValues | None]]:
    """Read antibodies in blocks, with what they hold as far as it is known.

    Parameters
    ----------
    matrix, size
        What to read, and the cells in a block.
    sample
        Other cells of the same query, if ``matrix`` is a part of it: they must hold the same.

    Raises
    ------
    ValueError
        If values are missing or infinite, or not counts in all cells, or normalized in all cells.
    """
    found: AntibodyValues | None = None
    if sample is not None and sample is not matrix:
        found = _antibody_values(sample.take(slice(0, sample.n_obs)), sample.where, 0)
    for start, block in matrix.blocks(size):
        found = _antibody_values(block, matrix.where, start, found)
        yield start, block, found


def _antibody_values(
    block: Block, where: str, first_cell: int, before: AntibodyValues | None = None
) -> AntibodyValues | None:
    """Say what a block of antibodies and those before it hold; ``None`` if they are all zero."""
    check_values(block, where, first_cell, signed=True)
    data = block.data if sp.issparse(block) else block
    if not data.any():
        return before
    found: AntibodyValues = "counts" if (data == np.rint(data)).all() else "normalized"
    wrong = data < 0 if found == "counts" else np.abs(data) > _LARGEST_NORMALIZED
    if before not in (None, found):
        wrong = data != 0
    if wrong.any():
        raise ValueError(
            f"{where} holds values (see cell {row_of(block, wrong) + first_cell}) that are neither counts of "
            "antibodies nor normalised by CLR or dsb, or not alike in all cells: give counts for all cells."
        )
    return found


class _CellMeans:
    """Means of the cells of all blocks, compared with the size of the values."""

    def __init__(self) -> None:
        self._means: list[np.ndarray] = []
        self._sum_of_squares = 0.0
        self._n_values = 0

    def add(self, block: Block) -> None:
        """Add the cells of a block."""
        self._means.append(
            np.asarray(block.sum(1, dtype=np.float64)).ravel() / block.shape[1]
        )
        data = block.data if sp.issparse(block) else block
        self._sum_of_squares += float(np.square(data).sum())
        self._n_values += int(np.prod(block.shape))

    def are_zero(self) -> bool:
        """Whether the median mean is close to zero."""
        size = np.sqrt(self._sum_of_squares / self._n_values)
        return bool(np.median(np.abs(np.concatenate(self._means))) <= _CENTERED * size)


_KINDS: Final[tuple[ModalityKind[Any], ...]] = (RNA(), Antibodies(), GeneActivity())
# In the order in which a model has its modalities: whatever their order in the MuData or in the
# dict, it is the same model.
MODALITY_KINDS: Final[dict[str, ModalityKind[Any]]] = {
    kind.role: kind for kind in _KINDS
}
