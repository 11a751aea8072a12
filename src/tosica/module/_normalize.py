"""Library-size normalisation of a minibatch."""

from __future__ import annotations

import torch
from torch import Tensor


def log_normalize(counts: Tensor, target_sum: float, total: Tensor | None = None) -> Tensor:
    """Scale each cell to the same total and take ``log(1 + x)``.

    Parameters
    ----------
    counts
        Shape ``(n_cells, n_genes)``.
    target_sum
        Total that each cell is scaled to.
    total
        Shape ``(n_cells,)``. Total counts of each cell, where they are more than the sum over
        the genes at hand. A cell without counts stays zero.

    Returns
    -------
    Shape ``(n_cells, n_genes)``, dtype of ``counts``.
    """
    if total is None:
        # In double precision, so that the order of summation leaves no trace in the result.
        total = counts.sum(1, dtype=torch.float64)
    factor = torch.where(total > 0, target_sum / total, 0.0).to(counts.dtype)
    return torch.log1p(counts * factor[:, None])
