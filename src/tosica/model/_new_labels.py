"""Fit labels that were added to a model, on cells of a query."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from tosica._parallel import thread_map, thread_pool
from tosica._progress import progress
from tosica._settings import logger, warn_user
from tosica.linear import (
    LabeledCells,
    ReferenceStatistics,
    find_label_shifts,
    fit_new_labels,
    split_in_two,
)
from tosica.model._interrupt import restore_on_failure
from tosica.model._linear_fit import token_genes
from tosica.model._query_loader import QueryLoader, read_all

if TYPE_CHECKING:
    import scipy.sparse as sp

    from tosica._types import Float32Array, FloatArray, IntArray
    from tosica.model._setup import SetupMixin
    from tosica.module import TOSICAModule
    from tosica.module._module import LinearBranch

_BATCH_SIZE = 256


class NewLabels(NamedTuple):
    """Labels of a query that were added to a model, and the cells that they are fitted to.

    Parameters
    ----------
    query
        The query's cells.
    codes
        Code of each cell's label in the extended model, -1 for cells without one, ``(n_cells,)``.
    n_model_labels
        Number of labels that the model had.
    """

    query: QueryLoader
    codes: IntArray
    n_model_labels: int

    def fit(self, model: SetupMixin) -> None:
        """Fit the labels that were added to a model; all other logits stay as they are."""
        names = model.labels[self.n_model_labels :]
        if not names:
            logger.info(
                "fit_new_labels: the query has no new label, and the model stays as it is"
            )
            return
        results = model.training_
        statistics = model._require_statistics()
        linear = model.module.linear
        assert linear is not None  # load_query_data refuses such models
        # Without the means that an earlier fit of the same labels added.
        is_model_label = statistics.labels < self.n_model_labels
        statistics = replace(
            statistics,
            means=statistics.means[is_model_label],
            labels=statistics.labels[is_model_label],
        )
        with restore_on_failure(model), progress(None, "fit_new_labels"):
            fit = _Fit(self, model.module, linear, statistics)
            statistics, recall = fit.run(names)
        sizes = np.bincount(
            self.codes[self.codes >= 0], minlength=len(model.labels)
        ).tolist()
        counts = dict(zip(names, sizes[self.n_model_labels :], strict=True))
        model.training_ = replace(
            results,
            label_counts=(results.label_counts or {}) | counts,
            novelty_statistics=statistics,
        )
        descriptions = [
            f"{name!r} ({counts[name]} cells, held-out recall {share:.2f})"
            for name, share in zip(names, recall, strict=True)
        ]
        logger.info(
            "fit_new_labels: added %s; the other labels' scores stay as they were",
            ", ".join(descriptions),
        )


class _Fit:
    """Fit of new labels to one model, whose statistics know its own labels only."""

    def __init__(
        self,
        new_labels: NewLabels,
        module: TOSICAModule,
        linear: LinearBranch,
        statistics: ReferenceStatistics,
    ) -> None:
        self._query, self._codes, self._n_model_labels = new_labels
        self._module = module
        self._linear = linear
        self._statistics = statistics
        self._x, self._measured = read_all(self._query)

    def run(self, names: list[str]) -> tuple[ReferenceStatistics, FloatArray]:
        """Fit the new labels, and get the statistics with their means, and the held-out recall."""
        n_model_labels = self._n_model_labels
        x = self._x
        is_new = self._codes >= n_model_labels
        cells = LabeledCells(x[is_new], self._codes[is_new] - n_model_labels)
        # Genes may be as high as in the new labels, where they may be markers.
        clip_max = self._linear.clip_max
        highest = torch.from_numpy(cells.x.max(0).toarray().ravel()).to(clip_max)
        clip_max.copy_(torch.maximum(clip_max, highest))
        for code, name in enumerate(names):
            is_second = split_in_two(cells.x[cells.labels == code], self._statistics)
            if is_second is not None:
                n_second = is_second.sum()
                warn_user(
                    f"The {len(is_second)} cells labeled {name!r} look like two types, of "
                    f"{len(is_second) - n_second} and {n_second} cells: cluster them alone, and give "
                    "each type its own label."
                )
        means = self._means(cells)
        model_cells, shifts = self._compare(x[~is_new], self._codes[~is_new], means)
        fitted = fit_new_labels(
            cells,
            model_cells,
            shifts,
            self._statistics,
            self._score,
            token_genes(self._module),
            measured=self._measured,
        )
        temperature = float(self._module.temperature)
        for tensor, values in (
            (self._linear.weights, fitted.weights),
            (self._linear.bias, fitted.biases),
        ):
            tensor[n_model_labels:] = torch.from_numpy(temperature * values).to(tensor)
        all_means = np.vstack([self._statistics.means, means]).astype(np.float32)
        codes = n_model_labels + np.arange(len(names))
        all_codes = np.append(self._statistics.labels, codes)
        statistics = replace(self._statistics, means=all_means, labels=all_codes)
        return statistics, fitted.recall

    def _means(self, cells: LabeledCells) -> FloatArray:
        """Mean expression of each label, with missing genes imputed, ``(n_labels, n_genes)``."""
        n_labels = int(cells.labels.max()) + 1
        means = np.vstack(
            [
                np.asarray(cells.x[cells.labels == code].mean(0))
                for code in range(n_labels)
            ]
        )
        imputed = self._linear.clip_and_impute(
            torch.from_numpy(means).to(self._linear.clip_max), self._query.measured
        )
        return imputed.cpu().numpy().astype(np.float64)

    def _compare(
        self,
        x: sp.csr_matrix,
        codes: IntArray,
        new_means: FloatArray,
    ) -> tuple[LabeledCells, FloatArray | None]:
        """Get cells with labels of the model, and what the query's batch adds to each label."""
        if not x.shape[0]:
            warn_user(
                "The query has cells of new labels only, so that differences between batches count as those "
                "between types: add other cells of its batch, which need no label."
            )
            return LabeledCells(x, codes), None
        # The statistics may lack some of the model's labels.
        best = np.where(codes >= 0, codes, self._score(x).argmax(1))
        nearest = self._statistics.positions(best)
        has_statistics = nearest >= 0
        x = x[has_statistics]
        nearest = nearest[has_statistics]
        is_labeled = codes[has_statistics] >= 0
        shifts, _ = find_label_shifts(
            x, nearest, is_labeled, new_means, self._statistics, measured=self._measured
        )
        return LabeledCells(x[is_labeled], nearest[is_labeled]), shifts

    @torch.inference_mode()
    def _score(self, x: sp.csr_matrix) -> Float32Array:
        """Calibrated logits of the model's own labels, ``(n_cells, n_model_labels)``."""
        module = self._module

        def score(offset: int) -> Float32Array:
            block = torch.from_numpy(x[offset : offset + _BATCH_SIZE].toarray()).float()
            annotation = module.annotate(
                block, attention=False, measured=self._query.measured
            )
            logits = annotation.logits[:, : self._n_model_labels]
            return np.asarray(module.calibrated(logits).cpu().numpy())

        offsets = range(0, x.shape[0], _BATCH_SIZE)
        with thread_pool(module.device):
            return np.vstack(list(thread_map(score, offsets)))
