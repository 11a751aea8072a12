"""Fit scores of new labels to the cells of a query, and write them to the linear branch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch

from tosica._parallel import thread_map, thread_pool
from tosica._settings import logger, progress, warn_user
from tosica.linear import LabeledCells, NoveltyStatistics, find_label_shifts, fit_new_labels
from tosica.model._linear_fit import token_genes
from tosica.model._trainer import restore_on_failure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tosica.model._query import QueryLoader
    from tosica.model._setup import SetupMixin
    from tosica.module import TOSICAModule
    from tosica.module._module import LinearBranch

_BATCH_SIZE = 256


class NewLabels:
    """Labels of a query that a model has room for, and the cells that they are fitted by.

    Parameters
    ----------
    query
        The query's cells.
    codes
        Code of each cell's label in the extended model, -1 for cells without one, ``(n_cells,)``.
    n_before
        Number of labels that the model had.
    """

    _module: TOSICAModule
    _linear: LinearBranch
    _statistics: NoveltyStatistics

    def __init__(self, query: QueryLoader, codes: NDArray[np.int64], n_before: int) -> None:
        self._query, self._codes, self._n_before = query, codes, n_before

    def fit(self, model: SetupMixin) -> None:
        """Fit the labels that :meth:`TOSICA.load_query_data` added; all other logits stay as they are."""
        new, result = model.labels[self._n_before :], model.training_
        if not new:
            logger.info("train: the query has no new label, and the model stays as it is")
            return
        assert result.novelty_statistics is not None
        assert model.module.linear is not None
        self._module, self._linear = model.module, model.module.linear
        # Without what an earlier fit of the same labels added.
        of_labels = result.novelty_statistics.labels
        kept = {
            name: getattr(result.novelty_statistics, name)[of_labels < self._n_before] for name in ("means", "labels")
        }
        self._statistics = replace(result.novelty_statistics, **kept)
        with restore_on_failure(model), progress(None, "train: new labels"):
            statistics = self._fit()
        counts = np.bincount(self._codes[self._codes >= 0], minlength=len(model.labels)).tolist()
        added = dict(zip(new, counts[self._n_before :], strict=True))
        counted = (result.label_counts or {}) | added
        model.training_ = replace(result, label_counts=counted, novelty_statistics=statistics)
        shown = ", ".join(f"{name!r} ({n} cells)" for name, n in added.items())
        logger.info("train: added %s; the other labels' scores stay as they were", shown)

    def _fit(self) -> NoveltyStatistics:
        """Fit the new labels, and get the statistics with their means."""
        codes, n_before = self._codes, self._n_before
        x = sp.vstack([sp.csr_matrix(batch.x.cpu().numpy()) for batch in self._query]).tocsr()
        is_new = codes >= n_before
        new = LabeledCells(x[is_new], codes[is_new] - n_before)
        # Genes may be as high as in the new labels, where they may be markers.
        clip_max = self._linear.clip_max
        clip_max.copy_(torch.maximum(clip_max, torch.from_numpy(new.x.max(0).toarray().ravel()).to(clip_max)))
        means = self._means(new)
        measured = None if self._query.measured is None else self._query.measured.cpu().numpy()
        known, shifts = self._compare(x[~is_new], codes[~is_new], means, measured)
        fitted = fit_new_labels(
            new, known, shifts, self._statistics, self._score, token_genes(self._module), measured=measured
        )
        temperature = float(self._module.temperature)
        for target, values in ((self._linear.weight, fitted.weights), (self._linear.bias, fitted.biases)):
            target[n_before:] = torch.from_numpy(temperature * values).to(target)
        return replace(
            self._statistics,
            means=np.vstack([self._statistics.means, means]).astype(np.float32),
            labels=np.append(self._statistics.labels, n_before + np.arange(len(means))),
        )

    def _means(self, cells: LabeledCells) -> NDArray[np.float64]:
        """Mean expression of each label, with missing genes imputed, ``(n_labels, n_genes)``."""
        labels = range(int(cells.labels.max()) + 1)
        means = np.vstack([np.asarray(cells.x[cells.labels == k].mean(0)) for k in labels])
        found = torch.from_numpy(means).to(self._linear.clip_max)
        return self._linear.expression(found, self._query.measured).cpu().numpy().astype(np.float64)

    def _compare(
        self,
        x: sp.csr_matrix,
        codes: NDArray[np.integer],
        new_means: NDArray[np.float64],
        measured: NDArray[np.bool_] | None,
    ) -> tuple[LabeledCells, NDArray[np.float64] | None]:
        """Cells with labels of the model, and what the query's batch adds to each label."""
        if not x.shape[0]:
            warn_user(
                "The query has cells of new labels only, so that differences between batches count as those "
                "between types: add other cells of its batch, which need no label."
            )
            return LabeledCells(x, codes), None
        position = np.full(self._n_before, -1)
        position[self._statistics.labels] = np.arange(len(self._statistics.labels))
        best = np.where(codes >= 0, codes, self._score(x).argmax(1))
        kept = position[best] >= 0
        x, codes, labels = x[kept], codes[kept], position[best[kept]]
        is_known = codes >= 0
        shifts, _ = find_label_shifts(x, labels, is_known, new_means, self._statistics, measured=measured)
        return LabeledCells(x[is_known], labels[is_known]), shifts

    @torch.inference_mode()
    def _score(self, x: sp.csr_matrix) -> NDArray[np.float32]:
        """Calibrated logits of the labels that are not new, ``(n_cells, n_before)``."""
        module = self._module

        def score(start: int) -> NDArray[np.float32]:
            dense = torch.from_numpy(x[start : start + _BATCH_SIZE].toarray()).float()
            found = module.annotate(dense, attention=False, measured=self._query.measured)
            return (found.logits[:, : self._n_before].float() / module.temperature).cpu().numpy()

        with thread_pool(module.device):
            return np.vstack(list(thread_map(score, range(0, x.shape[0], _BATCH_SIZE))))
