"""Let genes that were measured stand in for those that were not, in a linear score."""

from __future__ import annotations

import torch
from torch import Tensor


def stand_in(
    weight: Tensor, bias: Tensor, mean: Tensor, loadings: Tensor, measured: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Carry the weights of genes that were not measured over to the others.

    With :math:`(x - \mu) / \sigma = L z + \varepsilon`, where :math:`z` and :math:`\varepsilon` are
    standard normal (probabilistic PCA), genes :math:`m` that were not measured are
    expected at

    .. math:: \mathrm E[x_m \mid x_o] = \mu_m + L_m (I + L_o^T L_o)^{-1} L_o^T (x_o - \mu_o)

    given the others, :math:`o`. The score of that is linear in :math:`x_o`.

    Parameters
    ----------
    weight, bias
        The score, of shapes ``(n_labels, n_genes)`` and ``(n_labels,)``.
    mean
        :math:`\mu`, shape ``(n_genes,)``.
    loadings
        :math:`L`, shape ``(n_genes, n_components)``. Without any, a gene that was not measured
        counts as its mean.
    measured
        Shape ``(n_genes,)``, bool.

    Returns
    -------
    Weights and biases of the same shapes; the weights of genes that were not measured are zero.

    References
    ----------
    Tipping and Bishop, *Probabilistic principal component analysis*, J. R. Stat. Soc. B 61, 611
    (1999).
    """
    # Half precision, where it is switched on, knows no solver.
    with torch.autocast(weight.device.type, enabled=False):
        seen, lost = loadings[measured], weight[:, ~measured]
        inner = seen.T @ seen + torch.eye(seen.shape[1], device=seen.device).to(seen)
        gained = torch.linalg.solve(inner, (lost @ loadings[~measured]).T).T @ seen.T
        carried = torch.zeros_like(weight)
        carried[:, measured] = weight[:, measured] + gained
        return carried, bias + lost @ mean[~measured] - gained @ mean[measured]
