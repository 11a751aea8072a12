"""The loss of one-vs-rest logistic regression, and its minimum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit

if TYPE_CHECKING:
    import scipy.sparse as sp
    from numpy.typing import NDArray


class PenalizedLogisticLoss:
    """Class-balanced one-vs-rest logistic loss with a ridge and a nuisance penalty.

    Parameters
    ----------
    z
        Scaled expression, ``(n_cells, n_genes)``. Its precision is that of scores.
    labels
        Label of each cell, ``(n_cells,)``.
    nuisance
        Nuisance directions times the roots of their penalties, ``(n_directions, n_genes)``.
    offset
        Added to the scores of each cell, ``(n_cells, 1)``.
    """

    def __init__(
        self,
        z: sp.csr_matrix,
        labels: NDArray[np.integer],
        nuisance: NDArray[np.float64],
        offset: NDArray[np.floating] | None = None,
    ) -> None:
        n_labels = int(labels.max()) + 1
        self._z, self._transposed = z, z.T.tocsr()
        self._nuisance = nuisance
        self._offset = 0.0 if offset is None else offset.astype(z.dtype, copy=False)
        self._labels = labels
        self._balance = 1 / (np.bincount(labels) * float(n_labels))[labels, None]

    def fit(
        self,
        fitted: NDArray[np.integer],
        deviation: NDArray[np.float64],
        weights: NDArray[np.float64],
        max_iter: int,
        tolerance: float,
    ) -> NDArray[np.float64]:
        """Minimize the loss of some labels by L-BFGS, starting from given weights.

        ``fitted``, ``(n_fitted,)``, are these labels. ``deviation``, ``(n_fitted, n_genes)``, is
        the prior standard deviation of each weight: one over the root of its ridge penalty. A
        weight is zero where it is zero. The optimizer works on whitened weights, of which the
        penalty is a ridge of strength one, so that it takes equally long for all penalties.
        """
        is_label = self._labels[:, None] == fitted
        factors = [_inverse_root(self._nuisance * row) for row in deviation]

        def unwhiten(free: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.stack(
                [
                    row + (row @ v.T * change) @ v
                    for row, (v, change) in zip(free, factors, strict=True)
                ]
            )

        def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            free = flat.reshape(weights.shape)
            scores = self._z @ (deviation * unwhiten(free)).T.astype(self._z.dtype, copy=False)
            scores = scores + self._offset
            errors = ((expit(scores) - is_label) * self._balance).astype(scores.dtype, copy=False)
            gradient = unwhiten(deviation * (self._transposed @ errors).T) + free
            log_likelihood = log_expit(np.where(is_label, scores, -scores))
            value = -(log_likelihood * self._balance).sum() + 0.5 * (free**2).sum()
            return float(value), gradient.ravel()

        start = np.divide(weights, deviation, out=np.zeros_like(weights), where=deviation > 0)
        start = np.stack(
            [
                row + (row @ v.T * (1 / (1 + change) - 1)) @ v
                for row, (v, change) in zip(start, factors, strict=True)
            ]
        )
        result = minimize(
            loss,
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            # Full convergence takes ten times as long and is no more accurate.
            options={
                "maxiter": max_iter,
                "gtol": tolerance,
                "ftol": 64 * np.finfo(float).eps,
                "maxls": 50,
            },
        )
        return deviation * unwhiten(result.x.reshape(weights.shape))


def _inverse_root(
    nuisance: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Directions :math:`V` and factors for which :math:`(I + A^T A)^{-1/2} = I + V^T f V`."""
    _, lengths, directions = np.linalg.svd(nuisance, full_matrices=False)
    return directions, 1 / np.sqrt(1 + lengths**2) - 1
