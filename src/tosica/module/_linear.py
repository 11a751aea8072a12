"""The linear branch: logistic regressions whose weights go through the tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LinearBranch(nn.Module):
    r"""Score labels by a sum over gene sets, each a sum over its genes.

    .. math:: s_{ck} = b_k + \sum_p \sum_{g \in p} v_{kpg} \, \hat x_{cg}

    The weights are fitted outside of the network (:mod:`tosica.linear`), so they
    are buffers and no parameters. :math:`\hat x` is expression that is clipped at each gene's
    largest value in the reference, and in which genes that a query lacks are imputed by their
    conditional mean given the measured genes (:meth:`expression`).

    Parameters
    ----------
    genes
        Shape ``(n_pairs,)``. Gene of each pair of gene and token, as in
        :class:`~tosica.module._embedding.MaskedEmbedding`.
    n_genes
        Number of genes.
    n_labels
        Number of labels.
    """

    weight: Tensor
    """Shape ``(n_labels, n_pairs)``."""
    bias: Tensor
    """Shape ``(n_labels,)``."""
    clip_max: Tensor
    """Largest expression of each gene in the reference, ``(n_genes,)``."""
    mean: Tensor
    """Mean expression of each gene in the reference, ``(n_genes,)``."""
    loadings: Tensor
    """Loadings of a probabilistic PCA of the reference, ``(n_genes, n_components)``."""
    genes: Tensor

    def __init__(self, genes: Tensor, n_genes: int, n_labels: int) -> None:
        super().__init__()
        # Not saved: the pairs come with the model's registry.
        self.register_buffer("genes", genes.clone(), persistent=False)
        self.register_buffer("weight", torch.zeros(n_labels, len(genes)))
        self.register_buffer("bias", torch.zeros(n_labels))
        self.register_buffer("clip_max", torch.full((n_genes,), torch.inf))
        self.register_buffer("mean", torch.zeros(n_genes))
        self.register_buffer("loadings", torch.zeros(n_genes, 0))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        loadings = state_dict.get(f"{prefix}loadings")
        if loadings is not None:
            # The number of components depends on the reference.
            self.loadings = self.loadings.new_zeros(self.n_genes, loadings.shape[-1])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    @property
    def n_genes(self) -> int:
        """Number of genes."""
        return len(self.mean)

    @property
    def gene_weight(self) -> Tensor:
        """Weight of each gene, summed over the tokens that hold it, ``(n_labels, n_genes)``."""
        summed = self.weight.new_zeros(len(self.weight), self.n_genes)
        return summed.index_add_(1, self.genes, self.weight)

    def forward(self, x: Tensor, measured: Tensor | None = None) -> Tensor:
        """Logits, shape ``(n_cells, n_labels)``; parameters as in :meth:`expression`."""
        return F.linear(self.expression(x, measured), self.gene_weight, self.bias)

    def expression(self, x: Tensor, measured: Tensor | None = None) -> Tensor:
        r"""Clip expression, and impute genes that were not measured.

        With :math:`(x - \mu) / \sigma = L z + \varepsilon`, where :math:`z` and
        :math:`\varepsilon` are standard normal (probabilistic PCA), genes :math:`m` that were not
        measured are expected at

        .. math:: \mathrm E[x_m \mid x_o] = \mu_m + L_m (I + L_o^T L_o)^{-1} L_o^T (x_o - \mu_o)

        given the others, :math:`o`.

        Parameters
        ----------
        x
            Normalised expression, shape ``(n_cells, n_genes)``.
        measured
            Shape ``(n_genes,)``, bool: ``False`` for genes that the query lacks. By default every
            gene was measured.

        Returns
        -------
        Shape ``(n_cells, n_genes)``.

        References
        ----------
        Tipping and Bishop, *Probabilistic principal component analysis*, J. R. Stat. Soc. B 61, 611
        (1999).
        """
        x = torch.minimum(x, self.clip_max)
        if measured is None or bool(measured.all()):
            return x
        # torch.linalg.solve does not support half precision.
        with torch.autocast(x.device.type, enabled=False):
            known = self.loadings[measured]
            inner = known.T @ known + torch.eye(known.shape[1], device=known.device).to(known)
            scores = torch.linalg.solve(inner, known.T @ (x - self.mean)[:, measured].T).T
            expected = self.mean + scores @ self.loadings.T
        return torch.where(measured, x, expected)

    def contributions(self, above: Tensor, target: Tensor) -> Tensor:
        """Contribution of each pair of gene and token to a label's score.

        Parameters
        ----------
        above
            Expression, as :meth:`expression` returns it, minus that of a baseline, shape
            ``(n_cells, n_genes)``.
        target
            The explained label of each cell, shape ``(n_cells,)``. Its score is its logit minus
            the mean of all labels' logits.

        Returns
        -------
        Shape ``(n_cells, n_pairs)``; each row sums to the difference of the scores.
        """
        centered = self.weight - self.weight.mean(0)
        return centered[target] * above[:, self.genes]
