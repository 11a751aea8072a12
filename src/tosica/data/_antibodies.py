"""Antibodies, as of CITE-seq, as a kind of modality."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from tosica._logging import query_logger
from tosica.data._align import user_stacklevel
from tosica.data._modality_kind import CellBatch, ModalityKind
from tosica.data._normalize import CenteredLogRatio
from tosica.data._scale import check_finite, detected_blocks, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tosica.data._cell_matrix import Block, CellMatrix

# What dsb and CLR give stays far below; anything above was scaled in some other way.
_LARGEST_NORMALIZED = 100.0
# A cell's mean, in standard deviations of all values, that counts as zero.
_CENTERED = 0.01
_BLOCK = 4096

AntibodyValues = Literal["counts", "normalized"]


class AntibodyScale(NamedTuple):
    """How a reference's antibodies were scaled, so that a query can be scaled alike.

    ``kind`` is what the reference's matrix holds. ``centered`` says whether each cell's values have
    a mean of zero once they are normalized, as the centred log-ratio of a cell leaves them.
    """

    kind: AntibodyValues
    centered: bool


class Antibodies(ModalityKind[AntibodyScale]):
    """Antibodies: counts, or values normalized by CLR or dsb."""

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
        for _, block, found in detected_blocks(matrix, _BLOCK, values_of):
            if found == "normalized":
                means.add(block)
        if found is None:
            raise ValueError(f"{matrix.where} is zero everywhere.")
        if found == "counts":
            return AntibodyScale("counts", True)
        return AntibodyScale("normalized", means.are_zero())

    def load_scale(self, state: Mapping[str, Any]) -> AntibodyScale:
        """Make the scale from the dict that a model saved.

        Models were once saved with the key ``centred`` and the value ``normalised``.
        """
        if "centred" in state:
            kind: AntibodyValues = "counts" if state["kind"] == "counts" else "normalized"
            return AntibodyScale(kind, state["centred"])
        return AntibodyScale(**state)

    def normalization(self, scale: AntibodyScale) -> CenteredLogRatio | None:
        """Take the centred log-ratio, unless the reference was normalized in another way."""
        return CenteredLogRatio() if scale.centered else None

    def read_query(
        self,
        matrix: CellMatrix,
        scale: AntibodyScale,
        columns: np.ndarray,
        share: float,
        size: int,
        sample: CellMatrix,
    ) -> Iterator[CellBatch]:
        """Read a query; counts are normalized as the reference, other values are not changed.

        Raises
        ------
        ValueError
            If values are missing, infinite, negative counts, neither counts nor normalized, or
            counts in some cells and normalized in others; if the query holds counts and the
            reference was normalized in a way that cannot be known.
        """
        logged = False
        means = _CellMeans()
        for start, block, found in detected_blocks(matrix, size, values_of, sample):
            if found is not None and not logged:
                query_logger.info("query: %s holds %s", matrix.where, self.values[found])
                logged = True
            if found == "counts" and not scale.centered:
                raise ValueError(
                    f"{matrix.where} holds counts of antibodies, but the model's reference was "
                    "normalised before, in a way that cannot be told from its values: normalise "
                    "the query alike."
                )
            if found == "normalized":
                means.add(block)
            yield CellBatch(start, block, found != "normalized" and scale.centered)
        if found == "normalized" and scale.centered and not means.are_zero():
            warnings.warn(
                f"{matrix.where} holds normalised antibodies whose mean in a cell is not zero, so "
                "they were not normalised as the model's reference, by the centred log-ratio of "
                "each cell; labels may suffer: give the counts.",
                UserWarning,
                stacklevel=user_stacklevel(),
            )


def values_of(block: Block, where: str, *, first_cell: int = 0) -> AntibodyValues | None:
    """Say what a block of antibodies holds; ``None`` if it is all zero.

    Parameters
    ----------
    block
        Some rows of a matrix of antibodies.
    where
        Name of the matrix in messages.
    first_cell
        Position of the block's first row.

    Raises
    ------
    ValueError
        If values are missing or infinite, negative counts, or neither counts nor normalized.
    """
    data = block.data if sp.issparse(block) else block
    if data.size == 0:
        return None
    check_finite(block, where, first_cell)
    smallest, largest = data.min(), data.max()
    if smallest == largest == 0:
        return None
    if (data == np.rint(data)).all():
        if smallest < 0:
            cell = row_of(block, data < 0) + first_cell
            raise ValueError(
                f"{where} holds negative counts of antibodies (first in cell {cell}), as a "
                "subtracted background leaves them: give the counts from before, or values "
                "normalised by CLR or dsb."
            )
        return "counts"
    if max(largest, -smallest) > _LARGEST_NORMALIZED:
        raise ValueError(
            f"{where} holds fractions of up to {max(largest, -smallest):.4g}: neither counts of "
            "antibodies nor normalised. Give the counts, or values normalised by CLR or dsb."
        )
    return "normalized"


class _CellMeans:
    """Means of the cells of all blocks, compared with the size of the values."""

    def __init__(self) -> None:
        self._means: list[np.ndarray] = []
        self._sum_of_squares = 0.0
        self._n_values = 0

    def add(self, block: Block) -> None:
        """Add the cells of a block."""
        self._means.append(np.asarray(block.sum(1, dtype=np.float64)).ravel() / block.shape[1])
        data = block.data if sp.issparse(block) else block
        self._sum_of_squares += float(np.square(data).sum())
        self._n_values += int(np.prod(block.shape))

    def are_zero(self) -> bool:
        """Whether the median mean is close to zero."""
        size = np.sqrt(self._sum_of_squares / self._n_values)
        return bool(np.median(np.abs(np.concatenate(self._means))) <= _CENTERED * size)
