"""Fit the linear branch to the reference, and initialize the tokens from its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch

from tosica._checks import list_names
from tosica._settings import warn_user
from tosica.linear import (
    MAX_CELLS,
    MAX_CELLS_NOVELTY,
    LinearClassifier,
    NoveltyStatistics,
    cross_validate,
    fit_linear_classifier,
    fit_novelty,
    fit_ppca,
    linear_to_network_ratio,
    read_normalized,
    subsample_by_label,
)

if TYPE_CHECKING:
    from tosica.model._reference import ReferenceData
    from tosica.module import TOSICAModule

# Cells by which the size of the tokens' first weights is measured.
_N_START_CELLS = 256


@dataclass
class LinearFit:
    """Logistic regressions whose weights go through the tokens of a module.

    They are cross-validated once, on all labelled cells, then fitted to the training cells, and
    after ``data.add_validation_to_train()`` to all cells.

    Parameters
    ----------
    module
        The module with the linear branch.
    data
        The reference.
    labels
        Names of the labels, for warnings.
    batch_directions
        Shape ``(n_directions, n_genes)``. Directions in which batches differ, or ``None``.
    """

    module: TOSICAModule
    data: ReferenceData
    labels: list[str]
    batch_directions: np.ndarray | None

    def __post_init__(self) -> None:
        data, part = self.data, self.module.slices[0]
        self._tokens = token_genes(self.module)
        # The same for both fits: held-out cells judge the model that is fitted to all cells.
        self._weight = linear_to_network_ratio(data.n_train + data.n_val)
        cells = np.union1d(data.train_idx, data.val_idx)
        self._chosen = cross_validate(data.rows, cells, data.codes[cells], part, self._tokens, self.batch_directions)
        self.fit()

    def fit(self) -> None:
        """Fit the regressions, to the training cells as they are now."""
        data, cells = self.data, self.data.train_idx
        self._fitted: LinearClassifier = fit_linear_classifier(
            data.rows,
            cells,
            data.codes[cells],
            len(self.labels),
            self.module.slices[0],
            self._tokens,
            batch_directions=self.batch_directions,
            weight=self._weight,
            **self._chosen._asdict(),
        )

    def to_module(self) -> None:
        """Write the regressions to the linear branch."""
        linear, fitted = self.module.linear, self._fitted
        if linear is not None:
            linear.weight.copy_(torch.from_numpy(fitted.weights))
            linear.bias.copy_(torch.from_numpy(fitted.biases))
            linear.clip_max.copy_(torch.from_numpy(fitted.clip_max))

    def init_tokens(self) -> None:
        """Initialize each token from the weights of its genes in the regressions."""
        data, device = self.data, self.module.device
        codes = data.codes[data.train_idx]
        cells = data.train_idx[subsample_by_label(codes, _N_START_CELLS)]
        x = torch.from_numpy(read_normalized(data.rows, cells, self.module.slices[0]).toarray()).float()
        weights = torch.from_numpy(self._fitted.weights[np.unique(codes)]).float()
        self.module.embedding.init_from_linear(weights.to(device), x.to(device), x.mean(0).to(device))

    def warn_of_inactive(self) -> None:
        """Warn of labels for which the group lasso found no gene set."""
        inactive = [self.labels[code] for code in self._fitted.inactive]
        if inactive:
            warn_user(
                f"No gene set distinguishes these labels: {list_names(inactive)}. Their "
                "attributions are shared equally among the gene sets that hold a gene, and mean "
                "little: check that these labels are cell types, or pass gene sets that describe "
                "them to build_mask."
            )


def token_genes(module: TOSICAModule) -> sp.csr_matrix:
    """Get which gene is in which token of a module, ``(n_tokens, n_genes)``."""
    embedding = module.embedding
    indptr, genes = embedding.indptr.cpu().numpy(), embedding.genes.cpu().numpy()
    shape = (embedding.n_tokens, embedding.n_genes)
    return sp.csr_matrix((np.ones(len(genes)), genes, indptr), shape=shape)


def fit_missing_genes(module: TOSICAModule, data: ReferenceData) -> None:
    """Write the mean cell of the reference, and the loadings that impute missing genes."""
    cells, part = data.train_idx, module.slices[0]
    codes = data.codes[cells]
    if module.linear is None:
        mean = read_normalized(data.rows, cells[subsample_by_label(codes, MAX_CELLS)], part).mean(0)
        module.baseline.copy_(torch.from_numpy(np.asarray(mean).ravel()))
        return
    mean, loadings = fit_ppca(data.rows, cells, codes, part)
    module.baseline.copy_(torch.from_numpy(mean))
    module.linear.mean.copy_(torch.from_numpy(mean))
    module.linear.loadings = torch.from_numpy(loadings).to(module.linear.mean)


def fit_novelty_statistics(module: TOSICAModule, data: ReferenceData) -> NoveltyStatistics | None:
    """Fit the statistics for the novelty of cells, for a model of one modality."""
    codes = data.codes[data.train_idx]
    sample = subsample_by_label(codes, MAX_CELLS_NOVELTY)
    x = read_normalized(data.rows, data.train_idx[sample], module.slices[0])
    return fit_novelty(x, codes[sample])
