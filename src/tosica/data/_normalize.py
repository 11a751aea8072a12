"""Normalisation of a minibatch: by library size for RNA, centred log-ratio for antibodies."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor


class ModalitySlice(NamedTuple):
    """Genes of one modality, which lie side by side in a minibatch.

    ``start`` and ``stop`` are its first column and the one behind its last. ``how`` says what is
    done to them: ``"log1p"`` after scaling each cell to ``target_sum``, ``"clr"``, or ``None`` if
    they are normalised already.
    """

    start: int
    stop: int
    how: Literal["log1p", "clr"] | None
    target_sum: float = 1e4


def normalize(x: Tensor, sections: tuple[ModalitySlice, ...]) -> Tensor:
    """Normalise each modality of a minibatch in its own way.

    Parameters
    ----------
    x
        Shape ``(n_cells, n_genes)``.
    sections
        The modalities, which cover all columns in their order.

    Returns
    -------
    Shape ``(n_cells, n_genes)``, dtype of ``x``.
    """
    parts = []
    for section in sections:
        part = x if len(sections) == 1 else x[:, section.start : section.stop]
        if section.how == "log1p":
            part = log_normalize(part, section.target_sum)
        elif section.how == "clr":
            part = center_log_ratio(part)
        parts.append(part)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


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


def center_log_ratio(counts: Tensor, measured: Tensor | None = None) -> Tensor:
    r"""Take each cell's ``log(1 + x)`` less its mean over the antibodies (Stoeckius et al., 2017).

    .. math:: \log(1 + x_{ca}) - \frac1A \sum_{a'} \log(1 + x_{ca'})

    A count of 1 is added, so that antibodies that were not seen have a logarithm. The mean is that
    of the cell, not that of the antibody over all cells, so that a cell's result is its own.

    Parameters
    ----------
    counts
        Shape ``(n_cells, n_antibodies)``.
    measured
        Shape ``(n_antibodies,)``, bool. Antibodies that the data have; the others are left out of
        the mean and become zero, which is the cell's mean. By default all.

    Returns
    -------
    Shape ``(n_cells, n_antibodies)``, dtype of ``counts``.
    """
    logs = torch.log1p(counts)
    # In double precision, so that the order of summation leaves no trace in the result.
    if measured is None:
        return (logs - logs.mean(1, keepdim=True, dtype=torch.float64)).to(counts.dtype)
    weights = measured.to(torch.float64)
    mean = (logs.double() @ weights) / weights.sum()
    return ((logs - mean[:, None]) * weights).to(counts.dtype)
