"""Kinds of modality: RNA, antibodies, gene activity. A new one is a class and a line at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
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

from tosica._settings import query_logger, warn_user
from tosica.data._matrix import BLOCK
from tosica.data._normalize import CenteredLogRatio, LogNormalization
from tosica.data._query_scale import fit_query_scale
from tosica.data._reference_scale import Scale, fit_scale
from tosica.data._scale import (
    check_values,
    checked_blocks,
    detect,
    row_of,
    sample_positions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

    from tosica.data._matrix import CellMatrix
    from tosica.data._normalize import Block, Normalization

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
    a mean of zero once they are normalized, as the centered log-ratio of a cell leaves them.
    """

    kind: AntibodyValues
    centered: bool


# How the matrix of a reference is scaled; a model saves it as a dict.
ModalityScale: TypeAlias = Scale | AntibodyScale
S = TypeVar("S", Scale, AntibodyScale)


class ModalityKind(ABC, Generic[S]):
    """One kind of modality: it detects, normalizes and describes its values.

    A kind has no state of its own. What a model knows of a reference is the ``scale``, which
    :meth:`detect_scale` makes. A new kind is a subclass and a line in
    :data:`~tosica.data.MODALITY_KINDS`.
    """

    #: Key of ``modalities`` in ``setup_mudata``.
    role: ClassVar[str]
    #: The named tuple that says how a reference is scaled.
    scale_type: type[S]
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
    def detect_values(self, matrix: CellMatrix) -> str | None:
        """Tell the ``kind`` of a scale by a sample of cells; ``None`` if they are all zero."""

    def check_unchanged(self, matrix: CellMatrix, scale: S) -> None:
        """Refuse a reference that was normalized in place since it was set up."""
        kind = self.detect_values(matrix)
        if kind is not None and kind != scale.kind:
            raise ValueError(
                f"{matrix.where} holds {self.values[kind]} now, and {self.values[scale.kind]} when it was set up: call "
                "the setup method again, and make a new model."
            )

    @abstractmethod
    def normalization(self, scale: S) -> Normalization | None:
        """Normalization of a reference's values; ``None`` if they are normalized already."""

    @abstractmethod
    def read_query(
        self,
        matrix: CellMatrix,
        scale: S,
        columns: np.ndarray,
        *,
        gene_share: float,
        block_size: int,
        sample: CellMatrix | None = None,
    ) -> Iterator[tuple[int, Block]]:
        """Read a query in blocks that are checked and normalized as the reference is.

        Parameters
        ----------
        matrix
            The query.
        scale
            Scale of the reference.
        columns
            Columns that the model has, bool, ``(n_vars,)``.
        gene_share
            Share of the model's genes that the query has.
        block_size
            Cells in a block.
        sample
            Cells from all over the query by which its scale is recognized, by default those of
            ``matrix``.

        Yields
        ------
        Position of a block's first cell, and the block, float32. It has all columns, or only those
        of the model.
        """

    def merge_scale(self, saved: S, detected: S) -> S:
        """Choose between a model's scale and that of another reference of the same model."""
        return detected

    def check_names(self, names: pd.Index, name: str) -> None:
        """Refuse names that cannot be features of this kind; ``name`` is that of the AnnData."""

    def describe(self, scale: S) -> str:
        """Say what the matrix holds."""
        return self.values[scale.kind]

    def describe_normalization(self, scale: S) -> str:
        """Say what the matrix holds and what the model makes of it."""
        normalization = self.normalization(scale)
        if normalization is None:
            return f"{self.describe(scale)}; used without further normalization"
        return f"{self.describe(scale)}; taken as {normalization}"


# ------------------------------------------------------------------ RNA and gene activity


class LogNormalizedKind(ModalityKind[Scale]):
    """A matrix of genes: counts, or log-normalized values."""

    scale_type = Scale
    #: What the values are called in messages.
    noun: ClassVar[str]
    #: What counts are called in messages.
    counts: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Name the values on each scale."""
        cls.values = {"counts": cls.counts, "log1p": f"log-normalized {cls.noun}"}

    def detect_scale(self, matrix: CellMatrix) -> Scale:
        """Tell counts from log-normalized values, and find their total."""
        return fit_scale(matrix)

    def detect_values(self, matrix: CellMatrix) -> str | None:
        """Tell counts from log-normalized values."""
        return detect(matrix).kind

    def merge_scale(self, saved: Scale, detected: Scale) -> Scale:
        """Keep the saved total if that of the other reference cannot be inferred."""
        if saved.over != "genes" and detected.over != "genes":
            return saved
        return detected

    def normalization(self, scale: Scale) -> Normalization | None:
        """Scale counts to the reference's total and take ``log(1 + x)``."""
        return LogNormalization(scale.target_sum) if scale.kind == "counts" else None

    def read_query(
        self,
        matrix: CellMatrix,
        scale: Scale,
        columns: np.ndarray,
        *,
        gene_share: float,
        block_size: int,
        sample: CellMatrix | None = None,
    ) -> Iterator[tuple[int, Block]]:
        """Read a query; cells are brought to the reference's total if it is known.

        Log-normalized cells are taken as they are if it is not plain how they were scaled.

        Raises
        ------
        ValueError
            If values are negative, missing, infinite, neither counts nor log-normalized, or not on
            one scale in all cells.
        """
        sample = matrix if sample is None else sample
        try:
            query_scale = fit_query_scale(sample, scale, columns, gene_share)
        except ValueError:
            if columns.all():
                raise
            # Such as antibodies beside genes.
            positions = np.flatnonzero(columns)
            matrix = matrix.with_columns(positions)
            query_scale = fit_query_scale(
                sample.with_columns(positions), scale, columns[columns], gene_share
            )
            query_logger.info(
                "query: columns that the model does not use are on another scale, and are not read"
            )
        where = matrix.where
        detected = query_scale.detected
        query_logger.info("query: %s holds %s", where, self.values[detected.kind])
        for offset, block in checked_blocks(matrix, detected, block_size):
            yield offset, query_scale.normalize(block, offset, where)


class RNA(LogNormalizedKind):
    """Expression: counts, or log-normalized."""

    role = "rna"
    noun = "expression"
    counts = "counts"
    mismatch_advice = "was it cut down to its variable genes?"
    empty_cells = "express none of the model's genes"


class GeneActivity(LogNormalizedKind):
    """Fragments of ATAC-seq counted over each gene: counts, or log-normalized."""

    role = "atac"
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
    features = "antibodies"
    has_gene_sets = False
    values: ClassVar[Mapping[str, str]] = {
        "counts": "counts of antibodies",
        "normalized": "normalized antibodies",
    }
    mismatch_advice = "is it another panel?"

    def detect_scale(self, matrix: CellMatrix) -> AntibodyScale:
        """Tell counts from normalized antibodies, and whether these are centered."""
        kind: AntibodyValues | None = None
        means = _CellMeans()
        for _, block, kind in _antibody_blocks(matrix, BLOCK):
            if kind == "normalized":
                means.add(block)
        if kind is None:
            raise ValueError(f"{matrix.where} is zero everywhere.")
        if kind == "counts":
            return AntibodyScale("counts", True)
        return AntibodyScale("normalized", means.are_zero())

    def detect_values(self, matrix: CellMatrix) -> str | None:
        """Tell counts from normalized antibodies."""
        kinds = (kind for _, _, kind in _antibody_blocks(matrix, BLOCK))
        return next((kind for kind in kinds if kind is not None), None)

    def normalization(self, scale: AntibodyScale) -> CenteredLogRatio | None:
        """Take the centered log-ratio of counts."""
        return CenteredLogRatio() if scale.kind == "counts" else None

    def read_query(
        self,
        matrix: CellMatrix,
        scale: AntibodyScale,
        columns: np.ndarray,
        *,
        gene_share: float,
        block_size: int,
        sample: CellMatrix | None = None,
    ) -> Iterator[tuple[int, Block]]:
        """Read a query; counts are normalized as the reference, other values are not changed.

        Raises
        ------
        ValueError
            If values are missing, infinite, negative counts, neither counts nor normalized, or
            counts in some cells and normalized in others; if the query holds counts and the
            reference was normalized in a way that cannot be known.
        """
        where = matrix.where
        is_logged = False
        kind: AntibodyValues | None = None
        means = _CellMeans()
        for offset, block, kind in _antibody_blocks(matrix, block_size, sample):
            if kind is not None and not is_logged:
                query_logger.info("query: %s holds %s", where, self.values[kind])
                is_logged = True
            if kind == "counts" and not scale.centered:
                raise ValueError(
                    f"{where} holds counts, but the model's antibodies were normalized before: normalize them alike."
                )
            values = block.astype(np.float32)
            if kind == "normalized":
                means.add(block)
            else:
                values = CenteredLogRatio().normalize_block(values, columns)
            yield offset, values
        if kind == "normalized" and scale.centered and not means.are_zero():
            warn_user(
                f"{where} holds normalized antibodies whose mean in a cell is not zero, so they were not normalized as "
                "the model's reference, by the centered log-ratio of each cell; labels may suffer: give the counts."
            )


def _antibody_blocks(
    matrix: CellMatrix, size: int, sample: CellMatrix | None = None
) -> Iterator[tuple[int, Block, AntibodyValues | None]]:
    """Read antibodies in blocks, and tell what all cells so far hold.

    Parameters
    ----------
    matrix, size
        The matrix, and the cells in a block.
    sample
        Other cells of the same query, if ``matrix`` is a part of it: they must hold the same.

    Yields
    ------
    Position of the first cell, the block, and the kind of values; ``None`` if they are all zero.

    Raises
    ------
    ValueError
        If values are missing or infinite, or not counts in all cells, or normalized in all cells.
    """
    kind: AntibodyValues | None = None
    if sample is not None:
        cells = sample.take(sample_positions(sample.n_obs))
        kind = _antibody_kind(cells, sample.where, 0)
    for offset, block in matrix.blocks(size):
        kind = _antibody_kind(block, matrix.where, offset, kind)
        yield offset, block, kind


def _antibody_kind(
    block: Block,
    where: str,
    first_cell: int,
    expected: AntibodyValues | None = None,
) -> AntibodyValues | None:
    """Tell what a block of antibodies holds, which has to be as expected from other blocks."""
    check_values(block, where, first_cell, signed=True)
    values = block.data if sp.issparse(block) else block
    if not values.any():
        return expected
    kind: AntibodyValues = "normalized"
    is_wrong = np.abs(values) > _LARGEST_NORMALIZED
    if (values == np.rint(values)).all():
        kind = "counts"
        is_wrong = values < 0
    if expected not in (None, kind):
        is_wrong = values != 0
    if is_wrong.any():
        raise ValueError(
            f"{where} holds values (see cell {row_of(block, is_wrong) + first_cell}) that are neither counts of "
            "antibodies nor normalized by CLR or dsb, or not alike in all cells: give counts for all cells."
        )
    return kind


class _CellMeans:
    """Means of the cells of all blocks, compared with the size of the values."""

    def __init__(self) -> None:
        self._means: list[np.ndarray] = []
        self._sum_of_squares = 0.0
        self._n_values = 0

    def add(self, block: Block) -> None:
        """Add the cells of a block."""
        sums = np.asarray(block.sum(1, dtype=np.float64)).ravel()
        self._means.append(sums / block.shape[1])
        values = block.data if sp.issparse(block) else block
        self._sum_of_squares += float(np.square(values).sum())
        self._n_values += int(np.prod(block.shape))

    def are_zero(self) -> bool:
        """Whether the median mean is close to zero."""
        deviation = np.sqrt(self._sum_of_squares / self._n_values)
        median = np.median(np.abs(np.concatenate(self._means)))
        return bool(median <= _CENTERED * deviation)


_KINDS: Final[tuple[ModalityKind[Any], ...]] = (RNA(), Antibodies(), GeneActivity())
# In the order in which a model has its modalities: whatever their order in the MuData or in the
# dict, it is the same model.
MODALITY_KINDS: Final[dict[str, ModalityKind[Any]]] = {
    kind.role: kind for kind in _KINDS
}
