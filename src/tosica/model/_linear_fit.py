"""Fit the linear branch to the reference, and initialize the tokens from its weights."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch

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

if TYPE_CHECKING:
    from tosica.model._data_module import ReferenceData
    from tosica.module import TOSICAModule

# Cells by which the size of the tokens' first weights is measured.
_N_START_CELLS = 256


class LinearFit:
    """Logistic regressions whose weights go through the tokens of a module.

    They are cross-validated once, on all labelled cells, then fitted to the training cells, and
    after ``data.join()`` to all cells.

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
    fitted
        What :meth:`state_dict` returned for the same reference. By default the regressions are
        fitted now.
    """

    def __init__(
        self,
        module: TOSICAModule,
        data: ReferenceData,
        labels: list[str],
        batch_directions: np.ndarray | None,
        fitted: dict[str, Any] | None = None,
    ) -> None:
        self._module = module
        self._data = data
        self._labels = labels
        self._batch_directions = batch_directions
        embedding = module.embedding
        indptr, genes = embedding.indptr.cpu().numpy(), embedding.genes.cpu().numpy()
        self._tokens = sp.csr_matrix(
            (np.ones(len(genes)), genes, indptr), shape=(embedding.n_tokens, embedding.n_genes)
        )
        # The same for both fits: held-out cells judge the model that is fitted to all cells.
        self._weight = linear_to_network_ratio(data.n_train + data.n_val)
        # That of a fit without the cross-validation.
        self.seconds = 0.0
        if fitted is None:
            self._chosen = self._cross_validate()
            began = time.monotonic()
            self._fitted = self._fit()
            self.seconds = time.monotonic() - began
        else:
            self._chosen = CrossValidated(**fitted["chosen"])
            arrays = {name: value.cpu().numpy() for name, value in fitted["fitted"].items()}
            self._fitted = LinearClassifier(**arrays)

    def state_dict(self) -> dict[str, Any]:
        """The fitted regressions, as tensors and numbers."""
        chosen = {name: float(value) for name, value in self._chosen._asdict().items()}
        arrays = {k: torch.from_numpy(np.array(v)) for k, v in self._fitted._asdict().items()}
        return {"chosen": chosen, "fitted": arrays}

    def refit(self) -> None:
        """Fit the regressions anew, to the training cells as they are now."""
        self._fitted = self._fit()

    def write(self) -> None:
        """Give the regressions to the linear branch."""
        linear, fitted = self._module.linear, self._fitted
        if linear is not None:
            linear.weight.copy_(torch.from_numpy(fitted.weights))
            linear.bias.copy_(torch.from_numpy(fitted.biases))
            linear.upper.copy_(torch.from_numpy(fitted.upper))

    def start_tokens(self) -> None:
        """Let each token start as what the regressions say through it."""
        data, device = self._data, self._module.device
        codes = data.codes[data.train_idx]
        cells = data.train_idx[subsample_by_label(codes, _N_START_CELLS)]
        x = torch.from_numpy(
            read_normalized(data.rows, cells, self._module.slices[0]).toarray()
        ).float()
        self._module.embedding.init_from_linear(
            torch.from_numpy(self._fitted.weights[np.unique(codes)]).float().to(device),
            x.to(device),
            x.mean(0).to(device),
        )

    def warn_of_inactive(self) -> None:
        """Name the labels that the group lasso found no gene set for."""
        inactive = self._fitted.inactive
        if len(inactive):
            names = ", ".join(repr(self._labels[code]) for code in inactive)
            warnings.warn(
                f"No gene set distinguishes these labels: {names}. Their attributions are shared "
                "equally among the gene sets that hold a gene, and mean little: check that these "
                "labels are cell types, or pass gene sets that describe them to build_mask.",
                UserWarning,
                stacklevel=4,
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
            data.rows,
            cells,
            data.codes[cells],
            self._module.slices[0],
            self._tokens,
            self._batch_directions,
        )


def fit_missing_genes(module: TOSICAModule, data: ReferenceData) -> None:
    """Write the reference's mean cell, and what the imputation of missing genes needs.

    Only for models of one modality.
    """
    if len(module.slices) > 1:
        return
    cells = data.train_idx
    codes = data.codes[cells]
    if module.linear is None:
        mean = read_normalized(
            data.rows, cells[subsample_by_label(codes, MAX_CELLS)], module.slices[0]
        ).mean(0)
        module.baseline.copy_(torch.from_numpy(np.asarray(mean).ravel()))
        return
    mean, loadings = fit_ppca(data.rows, cells, codes, module.slices[0])
    module.baseline.copy_(torch.from_numpy(mean))
    module.linear.mean.copy_(torch.from_numpy(mean))
    module.linear.loadings = torch.from_numpy(loadings).to(module.linear.mean)


def fit_novelty_statistics(module: TOSICAModule, data: ReferenceData) -> NoveltyStatistics | None:
    """Fit what the novelty of cells is measured by, for a model of an AnnData."""
    codes = data.codes[data.train_idx]
    sample = subsample_by_label(codes, MAX_CELLS_NOVELTY)
    x = read_normalized(data.rows, data.train_idx[sample], module.slices[0])
    return fit_novelty(x, codes[sample])
