"""Normalize counts, in blocks and in minibatches; find the total of a reference, and bring a query to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._progress import progress
from tosica._settings import logger, warn_user
from tosica._text import format_thousands
from tosica.data._matrix import BLOCK, CellMatrix
from tosica.data._scale import (
    COUNTS,
    NATURAL,
    SAME_TOTAL,
    TARGET_SUM,
    Kind,
    Transform,
    Values,
    checked_blocks,
    detect,
    invert,
    min_nonzero,
    nonempty,
    sample_positions,
    scale_error,
    totals_equal,
)

if TYPE_CHECKING:
    from torch import Tensor

    from tosica.data._matrix import Block


class Normalization(ABC):
    """What makes counts of one modality comparable between cells.

    Each cell is normalized by itself. ``str()`` names the result for messages.
    """

    @abstractmethod
    def normalize_block(self, counts: Block) -> Block:
        """Normalize a block of counts, a CSR matrix or an array of ``(n_cells, n_genes)``."""

    @abstractmethod
    def normalize(
        self,
        counts: Tensor,
        *,
        total: Tensor | None = None,
        measured: Tensor | None = None,
    ) -> Tensor:
        """Normalize a minibatch.

        Parameters
        ----------
        counts
            Shape ``(n_cells, n_genes)``.
        total
            Shape ``(n_cells,)``. Total counts of each cell, where they are more than the sum over
            the genes at hand.
        measured
            Shape ``(n_genes,)``, bool. Genes that the data have. By default all.

        Returns
        -------
        Shape ``(n_cells, n_genes)``, dtype of ``counts``.
        """


@dataclass(frozen=True)
class LogNormalization(Normalization):
    """Scale each cell to the same total and take ``log(1 + x)``; cells without counts stay zero."""

    target_sum: float = TARGET_SUM

    def __str__(self) -> str:
        return f"log1p of counts per {format_thousands(round(self.target_sum))}"

    def normalize_block(self, counts: Block) -> Block:
        """Log-normalize a block in double precision; a sparse one has its values at the same places."""
        totals = np.asarray(counts.sum(1, dtype=np.float64)).ravel()
        factors = np.divide(
            self.target_sum, totals, out=np.zeros_like(totals), where=totals > 0
        )
        if isinstance(counts, np.ndarray):
            return np.log1p(counts * factors[:, None])
        values = np.log1p(counts.data * np.repeat(factors, np.diff(counts.indptr)))
        return type(counts)(
            (values, counts.indices.copy(), counts.indptr.copy()), shape=counts.shape
        )

    def normalize(
        self,
        counts: Tensor,
        *,
        total: Tensor | None = None,
        measured: Tensor | None = None,
    ) -> Tensor:
        """Log-normalize a minibatch; missing genes, and cells without counts, are zero."""
        import torch  # here, because files of cells are read without it

        if total is None:
            # In double precision, so that the order of the genes does not change the result.
            total = counts.sum(1, dtype=torch.float64)
        factor = torch.where(total > 0, self.target_sum / total, 0.0).to(counts.dtype)
        return torch.log1p(counts * factor[:, None])


@dataclass(frozen=True)
class CenteredLogRatio(Normalization):
    r"""Take each cell's ``log(1 + x)`` less its mean over the antibodies (Stoeckius et al., 2017).

    .. math:: \log(1 + x_{ca}) - \frac1A \sum_{a'} \log(1 + x_{ca'})

    A count of 1 is added, so that antibodies without counts have a logarithm. The mean is that of
    the cell, not that of the antibody over all cells, so that a cell's result depends on that cell
    alone.
    """

    def __str__(self) -> str:
        return "the centred log-ratio of each cell"

    def normalize_block(self, counts: Block) -> Block:
        """Take the centred log-ratio of a block in double precision; the result is dense."""
        dense = counts.toarray() if sp.issparse(counts) else np.asarray(counts)
        logs = np.log1p(dense.astype(np.float64))
        return logs - logs.mean(1, keepdims=True)

    def normalize(
        self,
        counts: Tensor,
        *,
        total: Tensor | None = None,
        measured: Tensor | None = None,
    ) -> Tensor:
        """Take the centred log-ratio over the features that were measured; the others become zero, the mean."""
        logs = counts.log1p()
        # In double precision, so that the order of the antibodies does not change the result.
        if measured is None:
            return (logs - logs.double().mean(1, keepdim=True)).to(counts.dtype)
        weights = measured.double()
        mean = (logs.double() @ weights) / weights.sum()
        return ((logs - mean[:, None]) * weights).to(counts.dtype)


@dataclass(frozen=True)
class ChangeOfBase(Normalization):
    """Turn a logarithm to another base into the natural one."""

    base: float

    def __str__(self) -> str:
        return "the natural logarithm"

    def normalize_block(self, counts: Block) -> Block:
        """Multiply a block; a sparse one stays sparse."""
        return counts * np.log(self.base)

    def normalize(
        self,
        counts: Tensor,
        *,
        total: Tensor | None = None,
        measured: Tensor | None = None,
    ) -> Tensor:
        """Multiply a minibatch."""
        return counts * float(np.log(self.base))


class ModalitySlice(NamedTuple):
    """Genes of one modality, which are adjacent columns of a minibatch.

    ``start`` and ``stop`` are its first column and the one after its last. ``normalization`` is
    what is done to its counts, ``None`` if the values are normalized already.
    """

    start: int
    stop: int
    normalization: Normalization | None


def normalize(x: Tensor, slices: tuple[ModalitySlice, ...]) -> Tensor:
    """Normalize each modality of a minibatch in its own way.

    Parameters
    ----------
    x
        Shape ``(n_cells, n_genes)``.
    slices
        The modalities, which cover all columns in their order.

    Returns
    -------
    Shape ``(n_cells, n_genes)``, dtype of ``x``.
    """
    import torch

    parts = []
    for modality in slices:
        part = x if len(slices) == 1 else x[:, modality.start : modality.stop]
        if modality.normalization is not None:
            part = modality.normalization.normalize(part)
        parts.append(part)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


# ------------------------------------------------------------------ the scale of a reference and of a query

# Columns of obs with the total counts of a cell: scanpy's, its older ones, Seurat's.
_TOTAL_COUNTS = ("total_counts", "n_counts", "nCount_RNA")
# Share of the cells that have to agree: in a few, no gene has a single count.
_MOST = 0.9
# Cells on different scales differ so many times in their total and in the value of one count; by
# depth or type they hardly do. Ten is halfway between totals of 10 000 and of a million. Studies that
# were normalized one by one, to their medians or over fewer genes, differ less, and are joined by
# everybody. Scales of less than _FEW of the cells are not told from outliers.
_APART, _SAME_DEPTH, _FEW = 10.0, 3.0, 0.05
# A query with this share of the model's genes has nearly all of the counts in them.
_MOST_GENES = 0.95
# Least total of a query's cells over the model's genes, as a share of the reference's: with all of
# these genes, and without some of them. The median of a query may be beyond the range of a
# reference's cells by the last factor.
_LEAST, _LEAST_OF_FEWER, _BEYOND = 0.8, 0.2, 1.25
_FRACTIONAL = "%s holds counts that are not whole; each cell is scaled to one total"


class Scale(NamedTuple):
    """How a reference's expression was scaled, so that a query can be scaled alike.

    ``kind`` is what the reference's matrix holds. ``target_sum`` is the total that a cell's counts
    are scaled to before the logarithm. ``over`` says what is summed for a cell's total:

    - ``"genes"``: the model's genes.
    - ``"matrix"``: every gene of the matrix at hand, for a reference that was cut down to some
      genes after it had been normalized. ``genes_total`` is then the median total of its cells over
      the model's genes, ``None`` if it is not known.
    - ``"median"``: the model's genes, for such a reference if nothing tells what it was scaled to;
      ``target_sum`` is the median total of its cells.

    ``genes_range`` is the range of the cells' totals over the model's genes, without the lowest and
    the highest percent, for a reference that was cut down.
    """

    kind: Kind
    target_sum: float
    over: Literal["genes", "matrix", "median"]
    genes_total: float | None = None
    # A list, as saved models hold it.
    genes_range: list[float] | None = None

    @property
    def expected_total(self) -> float | None:
        """Total of a cell over the model's genes; ``None`` if it is not known."""
        return self.genes_total if self.over == "matrix" else self.target_sum


# ------------------------------------------------------------------ a reference


def fit_scale(matrix: CellMatrix) -> Scale:
    """Read a whole reference once and say how it is scaled.

    If genes were left out after the normalization, ``raw`` or the total counts in ``obs`` may tell
    what the total was.

    Raises
    ------
    ValueError
        If the matrix is zero everywhere, holds anything but counts and logarithms of normalized
        counts, or cells on different scales.
    """
    values = detect(matrix)
    totals, units = [], []
    with progress(matrix.n_obs, f"reading {matrix.where}") as step:
        for _, block in checked_blocks(matrix, values, BLOCK):
            if values.transform is not COUNTS:
                plain = nonempty(invert(block, values.transform))
                totals.append(np.asarray(plain.sum(1)).ravel())
                units.append(min_nonzero(plain))
            step.update(block.shape[0])
    kind = values.transform.kind
    if kind == "counts":
        if not values.is_whole:
            logger.info(_FRACTIONAL, matrix.where)
        return Scale("counts", TARGET_SUM, "genes")
    total = np.concatenate(totals)
    if totals_equal(total):
        return Scale(kind, float(np.median(total)), "genes")
    if _are_different_scales(total, np.concatenate(units)):
        raise scale_error(matrix.where)
    if not values.is_certain:
        logger.info(
            f"{matrix.where}: the values do not tell which logarithm was taken; they are taken as the natural "
            "logarithm of normalised counts"
        )
    low, of_genes, high = (float(x) for x in np.quantile(total, [0.01, 0.5, 0.99]))
    before = _known_total(matrix, values.transform)
    if before is not None:
        return Scale(kind, before, "matrix", of_genes, [low, high])
    logger.info(
        f"{matrix.where}: genes were left out after the normalisation, and neither raw nor obs tell the total; "
        f"queries of counts will be scaled to a total of {of_genes:.6g}, the median of these cells"
    )
    return Scale(kind, of_genes, "median", genes_range=[low, high])


def _are_different_scales(total: np.ndarray, unit: np.ndarray) -> bool:
    """Whether cells were scaled to a few different totals.

    ``total`` and ``unit`` are the total and the smallest value of each cell, ``(n_cells,)``.
    """
    fewest = int(max(3, np.ceil(_FEW * len(total))))
    # Totals that agree are in one bin, or in two beside one another.
    _, bin_of, n = np.unique(
        np.rint(np.log(total) / SAME_TOTAL), return_inverse=True, return_counts=True
    )
    shared = np.sort(total[n[bin_of] >= fewest])
    # With genes left out, totals vary by a few percent, without a gap.
    if (
        len(shared) > _MOST * len(total)
        and (shared[1:] > shared[:-1] * (1 + 3 * SAME_TOTAL)).any()
    ):
        return bool(shared[-1] > _APART * shared[0])
    # With more genes left out, cells on another scale have both totals and values of one count that
    # are many times as large; other types or depths do not.
    order = np.argsort(total)
    gaps = (total[order][1:] / total[order][:-1])[fewest - 1 : len(total) - fewest]
    if not len(gaps) or gaps.max() <= 1.5:
        return False
    low, high = np.split(order, [int(gaps.argmax()) + fewest])
    of_total, of_unit = (np.median(x[high]) / np.median(x[low]) for x in (total, unit))
    depth = np.median(total[high] / unit[high]) / np.median(total[low] / unit[low])
    return bool(
        min(of_total, of_unit) > _APART and 1 / _SAME_DEPTH < depth < _SAME_DEPTH
    )


def _known_total(matrix: CellMatrix, transform: Transform) -> float | None:
    """Find the total that cells had before genes were left out, in ``raw`` or from ``obs``."""
    adata = matrix.adata
    cells = sample_positions(matrix.n_obs)
    plain = invert(sp.csr_matrix(matrix.take(cells)), transform)
    some = np.asarray(plain.sum(1)).ravel() > 0
    cells, plain = cells[some], nonempty(plain)
    candidates = [_totals_by_raw(matrix, cells, plain)]
    for key in _TOTAL_COUNTS:
        if key in adata.obs and pd.api.types.is_numeric_dtype(adata.obs[key]):
            counts = adata.obs[key].to_numpy(dtype=np.float64, na_value=np.nan)[cells]
            # Where one gene has a single count, this is exact.
            candidates.append(min_nonzero(plain) * counts)
    for totals in candidates:
        if totals is None or not len(totals) or not np.isfinite(totals).all():
            continue
        middle = float(np.median(totals))
        if middle > 0 and np.mean(np.abs(totals / middle - 1) < SAME_TOTAL) >= _MOST:
            return middle
    return None


def _totals_by_raw(
    matrix: CellMatrix, cells: np.ndarray, plain: sp.csr_matrix
) -> np.ndarray | None:
    """Total of cells over all genes of ``raw``, on the scale of the matrix."""
    if matrix.adata.raw is None:
        return None
    raw = CellMatrix(matrix.adata, use_raw=True)
    columns = (
        raw.names.get_indexer(matrix.names) if raw.names.is_unique else np.array([-1])
    )
    if (columns < 0).any():
        return None
    try:
        values = detect(raw)
    except ValueError:
        return None
    block = invert(sp.csr_matrix(raw.take(cells)), values.transform)
    shared = np.asarray(block[:, columns].sum(1)).ravel()
    if not shared.all():
        return None
    return np.asarray(plain.sum(1)).ravel() / shared * np.asarray(block.sum(1)).ravel()


# ------------------------------------------------------------------ a query


class QueryScale(NamedTuple):
    """How the cells of a query are brought to the scale of the reference.

    Parameters
    ----------
    values
        What the query holds.
    is_changed
        Whether cells that are no counts are changed.
    target_sum
        Total that each cell is scaled to, ``None`` to leave a cell's total as it is.
    columns
        Columns that are summed for the total, ``(n_vars,)``; ``None`` for all.
    largest
        Largest total that a cell may have over the columns if it is taken as it is.
    """

    values: Values
    is_changed: bool = False
    target_sum: float | None = None
    columns: np.ndarray | None = None
    largest: float | None = None

    def log_normalized(self, block: Block, first_cell: int, where: str) -> Block:
        """Bring a block of log-normalized cells to the scale.

        Raises
        ------
        ValueError
            If a cell is scaled otherwise than the cells that were sampled.
        """
        if not self.is_changed:
            if self.largest is not None:
                total = self.total(invert(block, NATURAL))
                if total.max() > 1.1 * self.largest:
                    raise scale_error(where, first_cell + int(total.argmax()))
            return block
        plain = invert(block, self.values.transform)
        if self.target_sum is not None:
            total = self.total(plain)
            factor = np.divide(
                self.target_sum, total, out=np.zeros_like(total), where=total > 0
            )
            plain = (
                sp.diags(factor) @ plain
                if sp.issparse(plain)
                else factor[:, None] * plain
            )
        return np.log1p(plain).astype(np.float32)

    def total(self, plain: Block) -> np.ndarray:
        """Total of each cell over the columns, ``(n_cells,)``."""
        if self.columns is not None:
            return np.asarray(plain @ self.columns.astype(np.float64)).ravel()
        return np.asarray(plain.sum(1, dtype=np.float64)).ravel()


def fit_query_scale(
    rows: CellMatrix, scale: Scale, columns: np.ndarray, share: float
) -> QueryScale:
    """Look at a sample of a query, and say how it is brought to the reference's scale.

    Parameters
    ----------
    rows
        Matrix of the query.
    scale
        Scale of the reference.
    columns
        Which columns are genes of the model, bool, ``(n_vars,)``.
    share
        Share of the model's genes that the query has.

    Raises
    ------
    ValueError
        If all are zero, or hold anything but counts and the logarithm of normalized counts.

    Warns
    -----
    UserWarning
        If cells are on another scale, and it is not known on which.
    """
    values = detect(rows)
    if values.transform is COUNTS:
        if not values.is_whole:
            logger.info(_FRACTIONAL, rows.where)
        if scale.over != "matrix":
            # Divided by their sum over the model's genes.
            return QueryScale(values)
        return _scale_counts(values, scale, columns, share, rows.where)
    if values.is_certain:
        return _scale_logarithms(values, scale, columns, share, rows.where)
    totals, expected = values.totals(columns), scale.expected_total
    if expected is not None and not _is_plausible(totals, scale, expected, share):
        warn_user(
            f"{rows.where} holds cells whose total over the model's genes is about {np.median(totals):.3g} once the "
            f"natural logarithm is undone, but that of the reference's cells is about {expected:.3g}, so they seem to "
            "be on another scale, and labels may suffer: give counts."
        )
    return QueryScale(values)


def _scale_counts(
    values: Values, scale: Scale, columns: np.ndarray, share: float, where: str
) -> QueryScale:
    """Choose what counts are divided by, if genes were left out of the reference after it was normalized."""
    if scale.genes_total is not None:
        totals = values.totals(columns) / values.totals() * scale.target_sum
        if _lacks_genes(totals, scale, scale.genes_total, share):
            logger.warning(
                f"query: {where} seems to lack genes that were measured, so the counts of a cell are scaled to "
                f"{scale.genes_total:.6g} over the model's genes, the reference's median, instead of to "
                f"{scale.target_sum:.6g} over all genes"
            )
            return QueryScale(values, target_sum=scale.genes_total, columns=columns)
    return QueryScale(values, target_sum=scale.target_sum)


def _scale_logarithms(
    values: Values, scale: Scale, columns: np.ndarray, share: float, where: str
) -> QueryScale:
    """Choose how log-normalized cells are scaled, if they are on another scale."""
    total, expected = values.common_total(), scale.expected_total
    of_genes = values.totals(columns)
    target = expected
    over: np.ndarray | None = columns
    if expected is None:
        # Nobody knows what the reference was scaled to.
        is_same = True
    elif (
        total is not None
        and scale.over == "matrix"
        and not _lacks_genes(
            of_genes / total * scale.target_sum, scale, expected, share
        )
    ):
        # Both totals are known, and over the same genes.
        is_same = totals_equal(np.array([total, scale.target_sum]))
        target, over = scale.target_sum, None
    else:
        is_same = _is_plausible(of_genes, scale, expected, share)
        if total is not None and scale.over == "genes":
            # Genes that the query lacks were left out before it was normalized.
            is_same = is_same and totals_equal(np.array([total, expected]))
    if is_same and values.transform is NATURAL:
        return QueryScale(
            values, columns=columns, largest=expected if scale.over == "genes" else None
        )
    about = np.median(of_genes) if total is None else total
    of_total = "" if is_same else f" of a total of {target:.6g}"
    logger.warning(
        f"query: cells of {where} hold {values.transform.name} of a total of about {about:.6g}: they are brought to "
        f"the reference's scale, the natural logarithm{of_total}"
    )
    return QueryScale(values, True, None if is_same else target, over)


def _lacks_genes(
    totals: np.ndarray, scale: Scale, expected: float, share: float
) -> bool:
    """Whether a query lacks genes that were summed for the total of the reference.

    ``totals`` are those of its cells over the model's genes if it lacks none.
    """
    has_only_these = np.median(totals) > (1 - SAME_TOTAL) * scale.target_sum
    had_others = expected < _MOST * scale.target_sum
    return bool(has_only_these and had_others) or not _is_plausible(
        totals, scale, expected, share
    )


def _is_plausible(
    totals: np.ndarray, scale: Scale, expected: float, share: float
) -> bool:
    """Whether totals over the model's genes are those of cells on the scale of the reference."""
    middle = np.median(totals)
    if scale.over == "genes":
        # A cell has no more than all of its counts in the model's genes.
        low, fits = _LEAST * expected, totals.max() < (1 + SAME_TOTAL) * expected
    else:
        low, high = scale.genes_range or (expected / 2, expected * 2)
        low, fits = low / _BEYOND, middle < _BEYOND * high
    least = low if share >= _MOST_GENES else min(low, _LEAST_OF_FEWER * expected)
    return bool(fits and middle > least)
