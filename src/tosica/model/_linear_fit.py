"""Fit the linear branch to the reference, and initialize the tokens from its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch

from tosica._checks import list_names
from tosica._settings import warn_user
from tosica.data import normalize
from tosica.linear import (
    MAX_CELLS,
    MAX_CELLS_NOVELTY,
    CrossValidated,
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

# Cells that are read densely at once.
_CELLS_AT_ONCE = 512

if TYPE_CHECKING:
    from tosica.model._reference import ReferenceData
    from tosica.module import TOSICAModule

# Cells by which the size of the tokens' first weights is measured.
_N_START_CELLS = 256


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

    def __init__(
        self, module: TOSICAModule, data: ReferenceData, labels: list[str], batch_directions: np.ndarray | None
    ) -> None:
        self._module = module
        self._data = data
        self._labels = labels
        self._batch_directions = batch_directions
        self._tokens = token_genes(module)
        # The same for both fits: held-out cells judge the model that is fitted to all cells.
        self._weight = linear_to_network_ratio(data.n_train + data.n_val)
        self._chosen = self._cross_validate()
        self._fitted = self._fit()

    def refit(self) -> None:
        """Fit the regressions anew, to the training cells as they are now."""
        self._fitted = self._fit()

    def to_module(self) -> None:
        """Write the regressions to the linear branch."""
        linear, fitted = self._module.linear, self._fitted
        if linear is not None:
            linear.weight.copy_(torch.from_numpy(fitted.weights))
            linear.bias.copy_(torch.from_numpy(fitted.biases))
            linear.clip_max.copy_(torch.from_numpy(fitted.clip_max))

    def init_tokens(self) -> None:
        """Initialize each token from the weights of its genes in the regressions."""
        data, device = self._data, self._module.device
        codes = data.codes[data.train_idx]
        cells = data.train_idx[subsample_by_label(codes, _N_START_CELLS)]
        x = torch.from_numpy(read_normalized(data.rows, cells, self._module.slices[0]).toarray()).float()
        self._module.embedding.init_from_linear(
            torch.from_numpy(self._fitted.weights[np.unique(codes)]).float().to(device),
            x.to(device),
            x.mean(0).to(device),
        )

    def warn_of_inactive(self) -> None:
        """Warn of labels for which the group lasso found no gene set."""
        inactive = [self._labels[code] for code in self._fitted.inactive]
        if inactive:
            warn_user(
                f"No gene set distinguishes these labels: {list_names(inactive)}. Their "
                "attributions are shared equally among the gene sets that hold a gene, and mean "
                "little: check that these labels are cell types, or pass gene sets that describe "
                "them to build_mask."
            )

    def _fit(self) -> LinearClassifier:
        cells = self._data.train_idx
        return fit_linear_classifier(
            self._data.rows,
            cells,
            self._data.codes[cells],
            len(self._labels),
            self._module.slices[0],
            self._tokens,
            batch_directions=self._batch_directions,
            weight=self._weight,
            **self._chosen._asdict(),
        )

    def _cross_validate(self) -> CrossValidated:
        data = self._data
        cells = np.union1d(data.train_idx, data.val_idx)
        return cross_validate(
            data.rows, cells, data.codes[cells], self._module.slices[0], self._tokens, self._batch_directions
        )


def token_genes(module: TOSICAModule) -> sp.csr_matrix:
    """Get which gene is in which token of a module, ``(n_tokens, n_genes)``."""
    embedding = module.embedding
    indptr, genes = embedding.indptr.cpu().numpy(), embedding.genes.cpu().numpy()
    shape = (embedding.n_tokens, embedding.n_genes)
    return sp.csr_matrix((np.ones(len(genes)), genes, indptr), shape=shape)


@torch.no_grad()
def fit_baseline(module: TOSICAModule, data: ReferenceData) -> None:
    """Write the mean of the labels' mean cells, so that a frequent type does not hide in it.

    Cells that lack a modality do not count there.
    """
    codes = data.codes[data.train_idx]
    sample = subsample_by_label(codes, MAX_CELLS)
    cells, codes = data.train_idx[sample], codes[sample]
    shape = (len(np.unique(codes)), module.embedding.n_genes)
    total, n_cells = torch.zeros(shape), torch.zeros(shape)
    for i, code in enumerate(np.unique(codes)):
        of_label = cells[codes == code]
        for first in range(0, len(of_label), _CELLS_AT_ONCE):
            block = data.rows.take(of_label[first : first + _CELLS_AT_ONCE])
            dense = block.toarray() if sp.issparse(block) else np.asarray(block)
            x = normalize(torch.from_numpy(dense.astype(np.float32)), module.slices)
            for part in module.slices:
                of_modality = x[:, part.start : part.stop]
                total[i, part.start : part.stop] += of_modality.sum(0)
                n_cells[i, part.start : part.stop] += int(of_modality.any(1).sum())
    module.baseline.copy_((total / n_cells.clamp(min=1)).mean(0))


def fit_missing_genes(module: TOSICAModule, data: ReferenceData) -> None:
    """Write the loadings that impute missing genes, for a model with a linear branch."""
    if module.linear is None:
        return
    cells = data.train_idx
    mean, loadings = fit_ppca(data.rows, cells, data.codes[cells], module.slices[0])
    module.linear.mean.copy_(torch.from_numpy(mean))
    module.linear.loadings = torch.from_numpy(loadings).to(module.linear.mean)


def fit_novelty_statistics(module: TOSICAModule, data: ReferenceData) -> NoveltyStatistics | None:
    """Fit the statistics for the novelty of cells, for a model of one modality."""
    codes = data.codes[data.train_idx]
    sample = subsample_by_label(codes, MAX_CELLS_NOVELTY)
    x = read_normalized(data.rows, data.train_idx[sample], module.slices[0])
    return fit_novelty(x, codes[sample])
