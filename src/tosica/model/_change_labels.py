"""Adapt a trained model to a query: calibrate it, add labels, or keep some of them."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Self

import numpy as np
import pandas as pd
import torch

from tosica._obs import (
    file_columns,
    read_groups,
    stands_for_no_label,
    whole_numbers,
)
from tosica._parallel import thread_map, thread_pool
from tosica._settings import logger, warn_user
from tosica._text import format_thousands, list_names, only_known, parameter
from tosica._validate import FilePath, as_names, validate_params
from tosica.data import ExpressionSource
from tosica.linear import MAX_CELLS, subsample_by_label
from tosica.model._calibration import fit_modality_temperatures
from tosica.model._device import ACCELERATOR, DEVICE
from tosica.model._fields import UNLABELED, LabelsField, clean_labels, typed_labels
from tosica.model._labels import Labels
from tosica.model._new_labels import NewLabels
from tosica.model._query_loader import QueryLoader
from tosica.model._setup import SetupMixin
from tosica.model._training_result import SCVI_ATTRS
from tosica.module import REGISTRY_KEYS
from tosica.onto._ontology import label_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from anndata import AnnData

    from tosica._types import AnnOrMuData, AnyPath
    from tosica.model._query_loader import Minibatch

# Calibrated logit of a new label before it is fitted: no cell gets it.
_UNREACHABLE = -100.0
# Standard deviation of the logarithm of the temperature that a new batch is expected to need,
# relative to that of the reference. It matters for a few cells, and thousands outweigh it.
_TEMPERATURE_SPREAD = 0.5
# Beginnings of the names of weights that have a row for each label.
_OF_LABELS = ("linear.weight", "linear.bias", "head.")


class ChangeLabelsMixin(SetupMixin):
    """Calibration, new labels and a choice of labels of a trained model."""

    _new_labels: NewLabels | None = None

    @validate_params()
    def recalibrate(
        self,
        adata: AnnOrMuData,
        labels_key: str,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        batch_size: int | None = None,
    ) -> None:
        """Calibrate probabilities and label sets by some labeled cells of a new batch.

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
        the coverage has a standard deviation of about 0.1 between samples of labeled cells; with
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
            source.data,
            labels_key,
            name="labels_key",
            allow_missing=True,
            known=self.labels,
        )
        foreign = [
            name
            for name in groups.categories
            if name not in self.labels and not stands_for_no_label(name)
        ]
        n_foreign = int(groups.isin(foreign).sum())
        codes = groups.set_categories(self.labels).codes.astype(np.int64)
        rows = np.flatnonzero(codes >= 0)
        if not len(rows):
            raise ValueError(
                f"No cell of adata.obs[{labels_key!r}] has a label of the model: {list_names(self.labels)}."
            )
        whole = source.data
        if len(rows) < len(codes):
            source = source[rows]
        query = QueryLoader(
            source,
            self.modalities,
            self.module.device,
            batch_size=batch_size,
            sample=whole,
            statistics=self.training_.novelty_statistics,
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
        temperatures = self.module.temperature.view(-1).tolist()
        fit_modality_temperatures(
            self,
            _logits_by_choice(self, query),
            torch.from_numpy(codes[rows]),
            temperatures,
            spread=_TEMPERATURE_SPREAD,
        )
        logger.info(
            "recalibrate: took %d labeled cells; temperature %.3g, before %.3g",
            len(rows),
            float(self.module.temperature.view(-1)[-1]),
            temperatures[-1],
        )
        if foreign:
            logger.warning(
                "recalibrate: %d labeled cells were left out, since the model lacks their labels: %s",
                n_foreign,
                list_names(foreign),
            )

    @classmethod
    @validate_params(
        unlabeled_category=UNLABELED, accelerator=ACCELERATOR, device=DEVICE
    )
    def load_query_data(
        cls,
        adata: AnnData,
        reference_model: AnyPath | Self,
        labels_key: str | None = None,
        unlabeled_category: str | None = None,
        *,
        layer: str | None = None,
        use_raw: bool = False,
        accelerator: str = "auto",
        device: int | str = "auto",
    ) -> Self:
        r"""Extend a trained model by labels that a query has and the model lacks.

        :meth:`fit_new_labels` of the returned model then fits a score for each new label in a few
        seconds. Nothing else changes: for each cell, the model ranks its own labels as before. No cell of
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
        text. Until they are fitted, it annotates exactly as ``reference_model``.

        Raises
        ------
        KeyError
            If the column is missing.
        TypeError
            If an argument is of the wrong type, or the model is one of a MuData.
        RuntimeError
            If the model is not trained.
        ValueError
            If the model has no linear branch or no statistics of its reference; if a new label is a
            name that a model cannot hold; and as :meth:`annotate`.
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
        >>> grown.fit_new_labels()
        >>> grown.labels[-1]
        'CD14+ Monocyte'
        """
        if isinstance(reference_model, cls):
            base = reference_model
        else:
            FilePath().check("reference_model", reference_model)
            base = cls.load(reference_model, accelerator=accelerator, device=device)
        base._learning_branch()
        if labels_key is None:
            labels_key = base._labels_key
        place = f"adata.obs[{labels_key!r}]"
        if unlabeled_category is not None:
            unlabeled_category = str(unlabeled_category)
        groups = clean_labels(
            pd.Series(
                read_groups(
                    adata,
                    labels_key,
                    name="labels_key",
                    allow_missing=True,
                    known=base.labels,
                )
            ),
            place,
            unlabeled_category,
            base.labels,
        ).remove_unused_categories()
        names = [name for name in groups.categories if name not in base.labels]
        _check_new_labels(names, base.labels, place)
        # In the type that labels have in the column.
        column = whole_numbers(adata.obs[labels_key], base.labels)
        categories = column.astype("category").cat.categories
        categories = categories[categories.astype(str).isin(names)]
        positions = pd.Index(categories.astype(str)).get_indexer(names)
        values = typed_labels(categories)[positions]
        model = base._with_labels(base._label_table.extend(names, values))
        model.training_ = deepcopy(base.training_)
        if model.training_.adaptation is not None:
            model.training_.adaptation = model.training_.adaptation.forget_before()
        codes = groups.set_categories(model.labels).codes.astype(np.int64)
        unlabeled = np.flatnonzero(codes < 0)
        # More cells without a label hardly change how the batch differs.
        sample = subsample_by_label(np.zeros(len(unlabeled), dtype=np.int64), MAX_CELLS)
        cells = np.union1d(np.flatnonzero(codes >= 0), unlabeled[sample])
        source = ExpressionSource(adata, layer, use_raw)
        if len(cells) < adata.n_obs:
            source = source[cells]
        query = QueryLoader(
            source,
            base.modalities,
            base.module.device,
            sample=adata,
            statistics=base.training_.novelty_statistics,
        )
        n_shared = adata.n_vars
        if query.measured is not None:
            n_shared = min(int(query.measured.sum()), adata.n_vars)
        logger.info(
            "load_query_data: new labels: %s; %s of the query's %s genes are genes of the model, and "
            "new labels rest on these alone",
            list_names(names) or "none",
            format_thousands(n_shared),
            format_thousands(adata.n_vars),
        )
        model._new_labels = NewLabels(query, codes[cells], len(base.labels))
        model._is_extended = True
        return model

    def fit_new_labels(self) -> None:
        """Fit the labels that :meth:`load_query_data` added, in a few seconds.

        All other labels keep their scores. The log says how many cells each new label has, and the
        share of them that get the label from a fit without them (five folds).

        Raises
        ------
        ValueError
            If the model was not made by :meth:`load_query_data`.

        Warns
        -----
        UserWarning
            If the cells of a new label look like two types, or the query has cells of new labels
            only.
        """
        if self._new_labels is None:
            raise ValueError(
                "The model has no new labels to fit: make it by TOSICA.load_query_data(query, model)."
            )
        self._new_labels.fit(self)

    @validate_params()
    def subset(self, labels: str | Iterable[str]) -> Self:
        """Make a model of some of the labels: the types that can occur in a tissue.

        A probability of the new model is that of the label, given that the cell has one of these
        labels. Everything else is as before. Label sets (:meth:`predict_set`) need
        :meth:`recalibrate` first. ``annotate(query, labels=...)`` calls this method.

        Parameters
        ----------
        labels
            Labels to keep, two or more. A group of :attr:`label_parents_`, or of the Cell Ontology where
            labels have terms, stands for all labels below it.

        Returns
        -------
        The model, with the labels in the order that they had.

        Raises
        ------
        TypeError
            If ``labels`` is not a list of strings.
        KeyError
            If the model has no such label or group.
        ValueError
            If there are fewer than two labels, or a name occurs twice.
        RuntimeError
            If the model is not trained.

        Examples
        --------
        With a trained model and a query that it annotated:

        >>> model.subset(["CD19+ B", "CD56+ NK"]).predict(query[:3]).tolist()
        ['CD19+ B', 'CD19+ B', 'CD19+ B']
        """
        self._check_trained()
        codes = self._codes_of_names(as_names(labels))
        model = self._with_labels(self._label_table.take(codes))
        results = deepcopy(self.training_).take_labels(codes, model.labels)
        is_left_out = np.isin(np.arange(len(self.labels)), codes, invert=True)
        if is_left_out.any():
            results.subset_of = results.subset_of or self.fingerprint
            results.left_out_labels.extend(np.array(self.labels)[is_left_out].tolist())
        model.training_ = results
        return model

    def _codes_of_names(self, names: list[str]) -> list[int]:
        """Find the codes of two labels or more by their names, or those of groups above them."""
        if not names:
            raise ValueError(
                f"There is no label to predict: name two or more with {parameter('labels')}."
            )
        duplicates = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        if duplicates:
            raise ValueError(
                f"The labels to predict are named once each, but {list_names(duplicates)} more often."
            )
        hierarchy = self._hierarchy
        for name in names:
            if name not in hierarchy.names:
                raise KeyError(
                    f"the model has no label {name!r}{only_known(name, hierarchy.names)}"
                )
        groups = hierarchy.names[len(self.labels) :]
        for name in names:
            if name in self.labels and name in groups:
                logger.info(
                    "subset: %r is taken as the label, not as all labels of the group with its name",
                    name,
                )
        rows = [hierarchy.names.index(name) for name in names]
        codes: list[int] = np.flatnonzero(hierarchy.members[rows].any(axis=0)).tolist()
        if len(codes) < 2:
            raise ValueError(
                f"Every cell would get the only label that is named, {names[0]!r}: name two or more."
            )
        return codes

    def _with_labels(self, labels: Labels) -> Self:
        """Make a copy of the model with other labels; no cell gets one that is new."""
        registry = deepcopy(self.registry_)
        labels_field = registry["field_registries"][REGISTRY_KEYS.LABELS_KEY]
        state = labels.to_state()
        labels_field["state_registry"] |= state
        if "n_labels" in labels_field.get("summary_stats", {}):
            n_categories = len(state[LabelsField.CATEGORICAL_MAPPING_KEY])
            labels_field["summary_stats"]["n_labels"] = n_categories
        # A new model draws weights, which are replaced.
        with torch.random.fork_rng(devices=[]):
            model = type(self)(
                None, registry=registry, **self.init_params_["non_kwargs"]
            )
        codes = torch.from_numpy(self._label_table.codes(labels.names))
        weights = self.module.state_dict()
        for name, weight in weights.items():
            if name.startswith(_OF_LABELS):
                weight = weight[codes]
                weight[codes < 0] = 0.0
                if name.startswith("linear.bias"):
                    # The logit of a new label before it is fitted: no cell gets it.
                    temperature = float(self.module.temperature.max())
                    weight[codes < 0] = _UNREACHABLE * temperature
                weights[name] = weight
        model.module.load_state_dict(weights)
        for name in SCVI_ATTRS:
            setattr(model, name, deepcopy(getattr(self, name, None)))
        model._term_of_label = dict(labels.terms)
        if self._parent_of_label is not None:
            model.label_parents_ = labels.parents
        model.to_device(self.module.device)
        model.module.eval()
        return model

    @property
    def _label_table(self) -> Labels:
        """The labels with values, colors, terms and parents."""
        return Labels.from_state(
            self.get_state_registry(REGISTRY_KEYS.LABELS_KEY),
            self._term_of_label,
            self._parent_of_label,
        )


def _check_new_labels(names: list[str], own_names: list[str], place: str) -> None:
    """Refuse names that a model cannot hold, and say which may be other spellings."""
    file_columns([*own_names, *names], place)
    spelling = {label_key(name): name for name in own_names}
    for name in names:
        similar = spelling.setdefault(label_key(name), name)
        if similar != name:
            warn_user(
                f"{name!r} in {place} becomes a label beside {similar!r}: if they are one type, spell them alike."
            )
    if not names:
        warn_user(
            f"{place} has no label that the model lacks: call annotate, or recalibrate to adapt probabilities."
        )


@torch.inference_mode()
def _logits_by_choice(
    model: ChangeLabelsMixin, query: QueryLoader
) -> list[torch.Tensor]:
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
        logits = list(thread_map(score, query))
    return [torch.cat(batches) for batches in zip(*logits, strict=True)]
