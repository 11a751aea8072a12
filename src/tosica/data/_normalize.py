"""Normalize the counts of each cell: log-normalization and the centered log-ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp

from tosica._text import format_thousands

# A CSR matrix or a dense array; scipy's matrices have no types that a checker could use.
Block: TypeAlias = Any
TARGET_SUM = 1e4


@dataclass(frozen=True)
class LogNormalization:
    """Scale each cell to the same total and take ``log(1 + x)``; cells without counts stay zero."""

    target_sum: float = TARGET_SUM

    def __str__(self) -> str:
        return f"log1p of counts per {format_thousands(round(self.target_sum))}"

    def normalize_block(
        self, counts: Block, columns: np.ndarray | None = None
    ) -> Block:
        """Log-normalize a block; a sparse one has its values at the same places."""
        dtype = _precision(counts)
        totals = cell_totals(counts, columns)
        factors = np.zeros_like(totals)
        np.divide(self.target_sum, totals, out=factors, where=totals > 0)
        factors = factors.astype(dtype)
        if not sp.issparse(counts):
            return np.log1p(counts.astype(dtype) * factors[:, None])
        values = counts.data.astype(dtype) * np.repeat(factors, np.diff(counts.indptr))
        np.log1p(values, out=values)
        return type(counts)((values, counts.indices, counts.indptr), shape=counts.shape)


@dataclass(frozen=True)
class CenteredLogRatio:
    r"""Take each cell's ``log(1 + x)`` less its mean over the antibodies (Stoeckius et al., 2017).

    .. math:: \log(1 + x_{ca}) - \frac1A \sum_{a'} \log(1 + x_{ca'})

    A count of 1 is added, so that antibodies without counts have a logarithm. The mean is that of
    the cell, not that of the antibody over all cells, so that a cell's result depends on that cell
    alone.
    """

    def __str__(self) -> str:
        return "the centered log-ratio of each cell"

    def normalize_block(
        self, counts: Block, columns: np.ndarray | None = None
    ) -> np.ndarray:
        """Take the centered log-ratio of a block; the result is dense."""
        dense = counts.toarray() if sp.issparse(counts) else counts
        logs = np.log1p(dense.astype(_precision(counts)))
        centered = logs if columns is None else logs[:, columns]
        # In double precision, so that the order of the antibodies does not change the result.
        means = centered.mean(1, dtype=np.float64, keepdims=True)
        return (logs - means).astype(logs.dtype)


Normalization: TypeAlias = LogNormalization | CenteredLogRatio


def _precision(counts: Block) -> np.dtype:
    """Data type of the result."""
    return np.dtype(np.float32 if counts.dtype == np.float32 else np.float64)


class ModalitySlice(NamedTuple):
    """Genes of one modality: its first column in a minibatch, and the one after its last."""

    start: int
    stop: int


def cell_totals(counts: Block, columns: np.ndarray | None = None) -> np.ndarray:
    """Sum each cell over some columns, bool ``(n_vars,)``, by default over all, ``(n_cells,)``."""
    if columns is None:
        return np.asarray(counts.sum(1, dtype=np.float64)).ravel()
    return np.asarray(counts @ columns.astype(np.float64)).ravel()
