"""Adapt a trained model to a query: calibrate it, or add labels, which alone are fitted."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch

from tosica._checks import FilePath, as_names, validate_params
from tosica._obs import default_palette, file_columns, read_groups
from tosica._parallel import thread_map, thread_pool
from tosica._progress import progress
from tosica._settings import logger, warn_user
from tosica._text import format_thousands, list_names, only_known
from tosica.data import ExpressionSource
from tosica.linear import (
    MAX_CELLS,
    LabeledCells,
    NoveltyStatistics,
    find_label_shifts,
    fit_new_labels,
    split_in_two,
    subsample_by_label,
)
from tosica.model._calibration import fit_temperatures
from tosica.model._device import ACCELERATOR, DEVICE
from tosica.model._fields import UNLABELED, LabelsField, clean_labels, typed_labels
from tosica.model._interrupt import restore_on_failure
from tosica.model._linear_fit import token_genes
from tosica.model._query import QueryLoader
from tosica.model._setup import SetupMixin
from tosica.model._training_result import SCVI_ATTRS
from tosica.module import REGISTRY_KEYS
from tosica.onto._ontology import label_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from anndata import AnnData
    from mudata import MuData
    from numpy.typing import NDArray

    from tosica.model._query import Minibatch
    from tosica.module import TOSICAModule
    from tosica.module._module import LinearBranch

# Calibrated logit of a new label before it is fitted: no cell gets it.
_UNREACHABLE = -100.0
# Standard deviation of the logarithm of the temperature that a new batch is expected to need,
# relative to that of the reference. It matters for a few cells, and thousands outweigh it.
_TEMPERATURE_SPREAD = 0.5


class AdaptationMixin(SetupMixin):
    """Calibration and new labels from labeled cells of a query."""

    if TYPE_CHECKING:
        _query_cells: NewLabels | None

    @validate_params()
    def recalibrate(
        self,
        adata: AnnData | MuData,
        labels_key: str,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        batch_size: int | None = None,
    ) -> None:
        """Calibrate probabilities and label sets by some labelled cells of a new batch.

        Training calibrates the model on held-out cells of the reference. In another batch,
        probabilities may be too high or too low, and :meth:`predict_set` may miss its coverage.
        This method refits the temperature to cells whose labels are known, and from then on
        label sets have their coverage for cells like these. The best label of a cell stays the
        same. :meth:`annotate` the query again afterwards, since probabilities change.

        Parameters
        ----------
        adata
            Cells of the new batch, ``(n_obs, n_vars)``, as for :meth:`annotate`. They must not be
            cells that the model was trained on, and should be a random sample of the batch: cells
            that were chosen because they are easy to label make the model too confident. A MuData
            needs all modalities of the model.
        labels_key
            Column of ``adata.obs`` with the labels that are known, spelled as the model's. Cells
            without one (NaN) are left out, and so are cells whose label the model lacks.
        layer, use_raw, batch_size
            As in :meth:`annotate`.

        Raises
        ------
        KeyError
            If the column is missing.
        RuntimeError, TypeError, ValueError
            As :meth:`annotate`; if no cell has a label of the model, or a modality is missing.

        Notes
        -----
        :meth:`predict_set` needs 9 cells for a coverage of 0.9, and 19 for 0.95. With ten,
        the coverage has a standard deviation of about 0.1 between samples of labelled cells; with
        50, of about 0.05 (benchmarks/label_sets.py).

        Examples
        --------
        >>> import numpy as np
        >>> import scanpy as sc
        >>> import scvi
        >>> import tosica
        >>> scvi.settings.seed = 0
        >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> adata.obs_names_make_unique()
        >>> reference, query = adata[::2].copy(), adata[1::2].copy()
        >>> tosica.pp.build_mask(reference, max_gene_sets=30)
        >>> tosica.TOSICA.setup_anndata(reference, labels_key="bulk_labels")
        >>> model = tosica.TOSICA(reference, embed_dim=16)
        >>> model.train(max_epochs=5, enable_progress_bar=False)
        >>> query.obs["known"] = query.obs["bulk_labels"].where(
        ...     np.arange(query.n_obs) % 7 == 0
        ... )
        >>> model.recalibrate(query, "known")
        >>> model.predict_set(query, coverage=0.9).shape
        (350, 10)
        """
        source = self._source(adata, None, layer, use_raw)
        groups = read_groups(
            source.data, labels_key, name="labels_key", allow_missing=True
        )
        foreign = [name for name in groups.categories if name not in self.labels]
        codes = groups.set_categories(self.labels).codes.astype(np.int64)
        rows = np.flatnonzero(codes >= 0)
        if not len(rows):
            raise ValueError(
                f"No cell of adata.obs[{labels_key!r}] has a label of the model: {list_names(self.labels)}."
            )
        chosen = source if len(rows) == len(codes) else source[rows]
        statistics, device = self.training_.novelty_statistics, self.module.device
        query = QueryLoader(
            chosen,
            self.modalities,
            device,
            batch_size=batch_size,
            statistics=statistics,
        )
        if query.modalities != self.module.modality_choices[-1]:
            missing = [
                repr(str(m.name))
                for i, m in enumerate(self.modalities)
                if i not in query.modalities
            ]
            raise ValueError(
                f"The cells lack the modality {' and '.join(missing)} of the model: pass all modalities."
            )
        logits, truth = _logits_by_choice(self, query), torch.from_numpy(codes[rows])
        before = self.module.temperature.view(-1).tolist()
        fit_temperatures(self, logits, truth, before, spread=_TEMPERATURE_SPREAD)
        now = float(self.module.temperature.view(-1)[-1])
        logger.info(
            "recalibrate: took %d labelled cells; temperature %.3g, before %.3g",
            len(rows),
            now,
            before[-1],
        )
        if foreign:
            logger.info(
                "recalibrate: left out cells labelled %s, which the model lacks",
                list_names(foreign),
            )

    @classmethod
    @validate_params(
        unlabeled_category=UNLABELED, accelerator=ACCELERATOR, device=DEVICE
    )
    def load_query_data(
        cls,
        adata: AnnData,
        reference_model: str | Path | Self,
        labels_key: str | None = None,
        unlabeled_category: str | None = None,
        *,
        layer: str | None = None,
        use_raw: bool = False,
        accelerator: str = "auto",
        device: int | str = "auto",
    ) -> Self:
        r"""Extend a trained model by labels that a query has and the model lacks.

        :meth:`train` of the returned model then fits a score for each new label in a few seconds. It
        logs the share of the label's cells that get the label from a fit without them (five folds),
        and warns if they look like two types.
        Nothing else changes: for each cell, the model ranks its own labels as before. No cell of
        the reference is needed, and none is kept in the model: cells like them are drawn from the
        statistics of the labels that every trained model holds.

        Parameters
        ----------
        adata
            The query, ``(n_obs, n_vars)``: counts or log-normalized expression, with genes in any
            order, as for :meth:`annotate`. Some cells have labels; about 30 cells of each new label
            are enough. Cells without a label, and cells with labels of the model, show how the
            query's batch differs from the reference, so pass them along.
        reference_model
            A trained model, or the folder of a saved one. It is not changed.
        labels_key
            Column of ``adata.obs`` with the labels; by default the one that the model was set up
            with.
        unlabeled_category
            Value of that column in cells without a label. Cells without a value (NaN) count as
            unlabeled, too.
        layer, use_raw
            As in :meth:`annotate`.
        accelerator, device
            As in :meth:`load`, for a saved model.

        Returns
        -------
        The extended model. Its labels are those of ``reference_model`` in their order, then the new
        ones. If the new labels are of another type, such as text beside numbers, predictions are
        text. Until it is trained, it annotates exactly as ``reference_model``.

        Raises
        ------
        KeyError
            If the column is missing.
        TypeError
            If an argument is of the wrong type, or the model is one of a MuData.
        ValueError
            If the model is not trained, has no linear branch or no statistics of its reference; if
            a new label is a name that a model cannot hold; and as :meth:`annotate`.
        FileNotFoundError
            If the folder of the model or a file of it is missing.

        Warns
        -----
        UserWarning
            If a new label is spelled almost as another label, or if there is no new label.

        Notes
        -----
        The score of a new label is linear in the genes, like those of the linear branch, and goes
        through the same tokens, so that :func:`tosica.tl.attribute` explains it. With the
        calibrated logits :math:`u_j(x)` of the model, it is fitted by a logistic regression with an
        offset,

        .. math:: p(\text{new} \mid x) = \sigma\Big(w^\top x + b - \log \sum_j e^{u_j(x)}\Big).

        The network is not trained: attention, ``X_tosica`` and the temperature stay. Label sets
        (:meth:`predict_set`) were calibrated without the new labels: call :meth:`recalibrate` with
        labeled cells of all types that were not used here.

        References
        ----------
        Lotfollahi et al., *Mapping single-cell data to reference atlases by transfer learning*,
        Nat. Biotechnol. 40, 121 (2022), for adapting a model to a query without its reference.

        Examples
        --------
        >>> import numpy as np
        >>> import scanpy as sc
        >>> import tosica
        >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> adata.obs_names_make_unique()
        >>> is_monocyte = (adata.obs["bulk_labels"] == "CD14+ Monocyte").to_numpy()
        >>> ref = adata[:400][~is_monocyte[:400]].copy()
        >>> tosica.pp.build_mask(ref, max_gene_sets=30)
        >>> tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels")
        >>> model = tosica.TOSICA(ref, embed_dim=16)
        >>> model.train(max_epochs=2, enable_progress_bar=False)

        30 monocytes of a query are labeled. The others, and all other types, are not.

        >>> query = adata[400:].copy()
        >>> labeled = np.flatnonzero(is_monocyte[400:])[:30]
        >>> query.obs["known"] = "not known"
        >>> query.obs.iloc[labeled, query.obs.columns.get_loc("known")] = (
        ...     "CD14+ Monocyte"
        ... )
        >>> grown = tosica.TOSICA.load_query_data(query, model, "known", "not known")
        >>> grown.train()
        >>> grown.labels[-1]
        'CD14+ Monocyte'
        """
        if isinstance(reference_model, cls):
            base = reference_model
        else:
            FilePath().check("reference_model", reference_model)
            base = cls.load(reference_model, accelerator=accelerator, device=device)
        base._check_extensible()
        key = (
            base.registry_["setup_args"]["labels_key"]
            if labels_key is None
            else labels_key
        )
        groups = read_groups(adata, key, name="labels_key", allow_missing=True)
        where, unlabeled_text = (
            f"adata.obs[{key!r}]",
            None if unlabeled_category is None else str(unlabeled_category),
        )
        groups = clean_labels(
            pd.Series(groups), where, unlabeled_text, base.labels
        ).remove_unused_categories()
        new = [name for name in groups.categories if name not in base.labels]
        _check_new_labels(new, base.labels, where)
        model = base._extended(new, _values_of(adata.obs[key], new))
        codes = groups.set_categories(model.labels).codes.astype(np.int64)
        # More cells without a label hardly change how the batch differs.
        unlabeled = np.flatnonzero(codes < 0)
        drawn = subsample_by_label(np.zeros(len(unlabeled), dtype=np.int64), MAX_CELLS)
        cells = np.union1d(np.flatnonzero(codes >= 0), unlabeled[drawn])
        source = ExpressionSource(
            adata if len(cells) == adata.n_obs else adata[cells], layer, use_raw
        )
        query = QueryLoader(source, base.modalities, base.module.device)
        n_shared = (
            adata.n_vars
            if query.measured is None
            else min(int(query.measured.sum()), adata.n_vars)
        )
        logger.info(
            "load_query_data: new labels: %s; %s of the query's %s genes are genes of the model, and "
            "new labels rest on these alone",
            *(
                list_names(new) or "none",
                format_thousands(n_shared),
                format_thousands(adata.n_vars),
            ),
        )
        model._query_cells = NewLabels(query, codes[cells], len(base.labels))
        return model

    def _check_extensible(self) -> None:
        """Refuse a model that no label can be added to."""
        if self.modalities[0].name is not None:
            raise TypeError(
                "No labels can be added to a model of a MuData: train a new one on all labels."
            )
        if not self.is_trained_:
            raise ValueError("The model is not trained: call model.train() first.")
        if self.module.linear is None:
            raise ValueError(
                "The model has no linear branch, which new labels are added to: train one with it."
            )
        if self.training_.novelty_statistics is None:
            raise ValueError(
                "The model has no statistics of its reference, as it is old or of few cells: train a new one."
            )

    def _extended(self, new: list[str], values: np.ndarray) -> Self:
        """Make a copy of the model with more labels, which no cell gets yet.

        All labels become text if the new ones, which are given as text and in their own type, have
        another type than those of the model. They have no place in its order.
        """
        state = self.get_state_registry(REGISTRY_KEYS.LABELS_KEY)
        before, colors = (
            state[LabelsField.VALUES_KEY],
            list(state[LabelsField.COLORS_KEY]),
        )
        # As unlike those in use as the default palette allows.
        palette = default_palette(len(colors) + len(new))
        unused = [color for color in palette if color not in colors] + palette[
            len(colors) :
        ]
        colors[len(self.labels) : len(self.labels)] = unused[: len(new)]
        if new and before.dtype != values.dtype:
            before, values = (
                np.array(self.labels, dtype=object),
                np.array(new, dtype=object),
            )
        changed = {
            LabelsField.COLORS_KEY: colors,
            LabelsField.VALUES_KEY: np.concatenate([before, values]),
        }
        if new:
            changed[LabelsField.ORDERED_KEY] = False
        model = self._with_labels([*self.labels, *new], changed)
        result = deepcopy(self.training_)
        adaptation = (
            None if result.adaptation is None else result.adaptation.forget_before()
        )
        model.training_ = replace(result, adaptation=adaptation)
        return model

    @validate_params()
    def subset(self, labels: Iterable[str]) -> Self:
        """Make a model of some of the labels: the types that can occur in a tissue.

        A probability of the new model is that of the label, given that the cell has one of these
        labels. Everything else is as before. Label sets (:meth:`predict_set`) need
        :meth:`recalibrate` first.

        Parameters
        ----------
        labels
            Labels to keep, two or more.

        Returns
        -------
        The model, with the labels in the order that they had.

        Raises
        ------
        TypeError
            If ``labels`` is not a list of strings.
        KeyError
            If the model has no such label.
        ValueError
            If there are fewer than two labels, or the model is not trained.

        Examples
        --------
        With a trained model and a query that it annotated:

        >>> model.subset(["CD19+ B", "CD56+ NK"]).predict(query[:3]).tolist()
        ['CD19+ B', 'CD19+ B', 'CD19+ B']
        """
        names = set(as_names(labels))
        for name in sorted(names.difference(self.labels)):
            raise KeyError(
                f"the model has no label {name!r}{only_known(name, self.labels)}"
            )
        if not self.is_trained_ or len(names) < 2:
            raise ValueError("subset takes two or more labels of a trained model.")
        kept = [i for i, name in enumerate(self.labels) if name in names]
        state, result = (
            self.get_state_registry(REGISTRY_KEYS.LABELS_KEY),
            deepcopy(self.training_),
        )
        colors = state[LabelsField.COLORS_KEY]
        changed = {LabelsField.VALUES_KEY: state[LabelsField.VALUES_KEY][kept]}
        changed[LabelsField.COLORS_KEY] = [
            *(colors[i] for i in kept),
            *colors[len(self.labels) :],
        ]
        model = self._with_labels([self.labels[i] for i in kept], changed)
        counts = (
            None
            if result.label_counts is None
            else {k: n for k, n in result.label_counts.items() if k in names}
        )
        statistics = result.novelty_statistics
        if statistics is not None:
            rows = np.isin(statistics.labels, kept)
            codes = np.searchsorted(kept, statistics.labels[rows])
            statistics = replace(statistics, means=statistics.means[rows], labels=codes)
        model.training_ = replace(
            result,
            label_counts=counts,
            held_out_codes=None,
            held_out_probabilities=None,
            novelty_statistics=statistics,
            adaptation=None
            if result.adaptation is None
            else result.adaptation.take_labels(kept),
        )
        return model

    def _with_labels(self, labels: list[str], changed: dict[str, Any]) -> Self:
        """Make a copy of the model with other labels; no cell gets one that is new."""
        registry = deepcopy(self.registry_)
        field = registry["field_registries"][REGISTRY_KEYS.LABELS_KEY]
        mapping = field["state_registry"][LabelsField.CATEGORICAL_MAPPING_KEY]
        names = [*labels, *mapping[len(self.labels) :]]
        field["state_registry"] |= {
            **changed,
            LabelsField.CATEGORICAL_MAPPING_KEY: np.array(names, dtype=object),
        }
        if "n_labels" in field.get("summary_stats", {}):
            field["summary_stats"]["n_labels"] = len(names)
        model = type(self)(None, registry=registry, **self.init_params_["non_kwargs"])
        weights, of_old = (
            self.module.state_dict(),
            {name: i for i, name in enumerate(self.labels)},
        )
        rows = [of_old.get(name, -1) for name in labels]
        new, unreachable = (
            torch.tensor(rows) < 0,
            _UNREACHABLE * float(self.module.temperature.max()),
        )
        for name in weights:
            if name.startswith(("linear.weight", "linear.bias", "head.")):
                weights[name] = weights[name][rows]
                weights[name][new] = (
                    unreachable if name.startswith("linear.bias") else 0.0
                )
        model.module.load_state_dict(weights)
        for name in SCVI_ATTRS:
            setattr(model, name, deepcopy(getattr(self, name, None)))
        terms = {
            name: term
            for name, term in self.ontology_term_ids_.items()
            if name in labels
        }
        parents: dict[str, str] = {}
        above, line = self.label_parents_, list(labels)
        while line:
            line = [child for child in line if child in above]
            parents |= {child: above[child] for child in line}
            line = [above[child] for child in line]
        model._term_of_label = terms
        if parents:
            model.label_parents_ = parents
        model.to_device(self.module.device)
        model.module.eval()
        return model


def _values_of(column: pd.Series, names: list[str]) -> np.ndarray:
    """Values of a column in their own type, by their text."""
    categories = column.astype("category").cat.categories
    chosen = categories[categories.astype(str).isin(names)]
    return typed_labels(chosen)[pd.Index(chosen.astype(str)).get_indexer(names)]


def _check_new_labels(new: list[str], known: list[str], where: str) -> None:
    """Refuse names that a model cannot hold, and say which may be other spellings."""
    file_columns([*known, *new], where)
    spelled: dict[str, str] = {label_key(name): name for name in known}
    for name in new:
        other = spelled.setdefault(label_key(name), name)
        if other != name:
            warn_user(
                f"{name!r} in {where} becomes a label beside {other!r}: if they are one type, spell them alike."
            )
    if not new:
        warn_user(
            f"{where} has no label that the model lacks: call annotate, or recalibrate to adapt probabilities."
        )


@torch.inference_mode()
def _logits_by_choice(model: AdaptationMixin, query: QueryLoader) -> list[torch.Tensor]:
    """Compute logits of all cells, ``(n_cells, n_labels)``, for each choice of modalities."""
    module = model.module

    def score(batch: Minibatch) -> list[torch.Tensor]:
        return [
            module.annotate(
                batch.x, attention=False, modalities=choice, measured=batch.measured
            ).logits.float()
            for choice in module.modality_choices
        ]

    with thread_pool(module.device):
        parts = list(thread_map(score, query))
    return [torch.cat(of_choice) for of_choice in zip(*parts, strict=True)]


# ------------------------------------------------------------------------------- new labels


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

    def __init__(
        self, query: QueryLoader, codes: NDArray[np.int64], n_before: int
    ) -> None:
        self._query, self._codes, self._n_before = query, codes, n_before

    def fit(self, model: SetupMixin) -> None:
        """Fit the labels that :meth:`TOSICA.load_query_data` added; all other logits stay as they are."""
        new, result = model.labels[self._n_before :], model.training_
        if not new:
            logger.info(
                "train: the query has no new label, and the model stays as it is"
            )
            return
        assert result.novelty_statistics is not None
        assert model.module.linear is not None
        self._module, self._linear = model.module, model.module.linear
        # Without what an earlier fit of the same labels added.
        of_labels = result.novelty_statistics.labels
        kept = {
            name: getattr(result.novelty_statistics, name)[of_labels < self._n_before]
            for name in ("means", "labels")
        }
        self._statistics = replace(result.novelty_statistics, **kept)
        with restore_on_failure(model), progress(None, "train: new labels"):
            statistics, recall = self._fit(new)
        counts = np.bincount(
            self._codes[self._codes >= 0], minlength=len(model.labels)
        ).tolist()
        added = dict(zip(new, counts[self._n_before :], strict=True))
        counted = (result.label_counts or {}) | added
        model.training_ = replace(
            result,
            label_counts=counted,
            novelty_statistics=statistics,
        )
        of_label = zip(added.items(), recall, strict=True)
        shown = ", ".join(
            f"{name!r} ({n} cells, held-out recall {share:.2f})"
            for (name, n), share in of_label
        )
        logger.info(
            "train: added %s; the other labels' scores stay as they were", shown
        )

    def _fit(self, names: list[str]) -> tuple[NoveltyStatistics, NDArray[np.float64]]:
        """Fit the new labels, and get the statistics with their means, and the recall of cells left out."""
        codes, n_before = self._codes, self._n_before
        x = sp.vstack(
            [sp.csr_matrix(batch.x.cpu().numpy()) for batch in self._query]
        ).tocsr()
        is_new = codes >= n_before
        new = LabeledCells(x[is_new], codes[is_new] - n_before)
        # Genes may be as high as in the new labels, where they may be markers.
        clip_max = self._linear.clip_max
        clip_max.copy_(
            torch.maximum(
                clip_max, torch.from_numpy(new.x.max(0).toarray().ravel()).to(clip_max)
            )
        )
        for label, name in enumerate(names):
            second = split_in_two(new.x[new.labels == label], self._statistics)
            if second is not None:
                warn_user(
                    f"The {len(second)} cells labelled {name!r} look like two types, of {(~second).sum()} and "
                    f"{second.sum()} cells: cluster them alone, and give each type its own label."
                )
        means = self._means(new)
        measured = (
            None if self._query.measured is None else self._query.measured.cpu().numpy()
        )
        known, shifts = self._compare(x[~is_new], codes[~is_new], means, measured)
        fitted = fit_new_labels(
            new,
            known,
            shifts,
            self._statistics,
            self._score,
            token_genes(self._module),
            measured=measured,
        )
        temperature = float(self._module.temperature)
        for target, values in (
            (self._linear.weights, fitted.weights),
            (self._linear.bias, fitted.biases),
        ):
            target[n_before:] = torch.from_numpy(temperature * values).to(target)
        all_means = np.vstack([self._statistics.means, means]).astype(np.float32)
        labels = np.append(self._statistics.labels, n_before + np.arange(len(names)))
        return replace(self._statistics, means=all_means, labels=labels), fitted.recall

    def _means(self, cells: LabeledCells) -> NDArray[np.float64]:
        """Mean expression of each label, with missing genes imputed, ``(n_labels, n_genes)``."""
        labels = range(int(cells.labels.max()) + 1)
        means = np.vstack(
            [np.asarray(cells.x[cells.labels == k].mean(0)) for k in labels]
        )
        found = torch.from_numpy(means).to(self._linear.clip_max)
        return (
            self._linear.expression(found, self._query.measured)
            .cpu()
            .numpy()
            .astype(np.float64)
        )

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
        shifts, _ = find_label_shifts(
            x, labels, is_known, new_means, self._statistics, measured=measured
        )
        return LabeledCells(x[is_known], labels[is_known]), shifts

    @torch.inference_mode()
    def _score(self, x: sp.csr_matrix) -> NDArray[np.float32]:
        """Calibrated logits of the labels that are not new, ``(n_cells, n_before)``."""
        module = self._module

        def score(start: int) -> NDArray[np.float32]:
            dense = torch.from_numpy(x[start : start + _BATCH_SIZE].toarray()).float()
            found = module.annotate(
                dense, attention=False, measured=self._query.measured
            )
            return (
                (found.logits[:, : self._n_before].float() / module.temperature)
                .cpu()
                .numpy()
            )

        with thread_pool(module.device):
            return np.vstack(list(thread_map(score, range(0, x.shape[0], _BATCH_SIZE))))
