"""Normalize counts of one modality, in blocks (numpy, scipy) and in minibatches (torch)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp

from tosica._settings import format_thousands
from tosica.data._scale import TARGET_SUM

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
    def normalize(self, counts: Tensor, *, total: Tensor | None = None, measured: Tensor | None = None) -> Tensor:
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
        factors = np.divide(self.target_sum, totals, out=np.zeros_like(totals), where=totals > 0)
        if isinstance(counts, np.ndarray):
            return np.log1p(counts * factors[:, None])
        values = np.log1p(counts.data * np.repeat(factors, np.diff(counts.indptr)))
        return type(counts)((values, counts.indices.copy(), counts.indptr.copy()), shape=counts.shape)

    def normalize(self, counts: Tensor, *, total: Tensor | None = None, measured: Tensor | None = None) -> Tensor:
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

    def normalize(self, counts: Tensor, *, total: Tensor | None = None, measured: Tensor | None = None) -> Tensor:
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

    def normalize(self, counts: Tensor, *, total: Tensor | None = None, measured: Tensor | None = None) -> Tensor:
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
