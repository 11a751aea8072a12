"""Run the network over the cells of a query once, and collect its output."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch

from tosica._limits import LIMITS
from tosica._parallel import thread_map, thread_pool
from tosica._progress import progress
from tosica._settings import only_warnings, query_logger
from tosica._text import call, did_you_mean
from tosica._validate import (
    ANNDATA,
    ANY_CELLS,
    Either,
    InstanceOf,
    OneOf,
    String,
    validate_params,
)
from tosica.data import ExpressionSource
from tosica.linear import (
    add_doubt,
    common_shift,
    label_changes,
    label_excess,
    label_likeness,
    pvalues,
    subsample_by_label,
)
from tosica.model._annotation_result import (
    CELL_FIELDS,
    CONFIDENCE,
    DEFAULT_CONFIDENCE,
    AnnotationResult,
)
from tosica.model._fields import LabelsField
from tosica.model._labels import Labels
from tosica.model._levels import LabelLevel, best_labels, groups_of_labels
from tosica.model._query_loader import QueryLoader
from tosica.model._setup import SetupMixin
from tosica.module import REGISTRY_KEYS
from tosica.onto._hierarchy import LabelHierarchy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from anndata import AnnData
    from numpy.typing import NDArray
    from torch import Tensor

    from tosica._types import AnnOrMuData, Float32Array, FloatArray, IntArray
    from tosica.linear import ReferenceStatistics
    from tosica.model._query_loader import Minibatch

Precision = Literal["32-true", "bf16-mixed"]
OUTPUTS = ("probabilities", "attention", "latent", "novelty")
# Number of cells by which another batch is recognized.
_N_CELLS_OF_SIGNAL = 2_000
LAYER = Either(
    first=String(),
    second=InstanceOf("a dict of modality and layer", dict),
    optional=True,
)


class Comparison(NamedTuple):
    """A query beside the reference.

    ``batch_signal`` is the share of what all labels differ by that is no noise, ``likeness`` the correlation of what
    sets labels apart, and ``label_changes`` the share of each label's cells that missing genes give another label,
    ``(n_labels,)``. Each is ``None`` where it cannot be known.
    """

    batch_signal: float | None = None
    likeness: float | None = None
    label_changes: Float32Array | None = None


@dataclass
class CellOutputs:
    """Outputs of the model with a row for each cell; ``None`` if they were not asked for.

    :class:`AnnotationResult` describes the fields. ``distance`` and ``nearest`` are the distance of
    each cell from the nearest label of the reference, and the position of this label, ``(n_obs,)``.
    """

    latent: Float32Array | None = None
    probabilities: Float32Array | None = None
    attention: Float32Array | None = None
    codes: IntArray | None = None
    probability: Float32Array | None = None
    second_codes: IntArray | None = None
    second_probability: Float32Array | None = None
    nearest: IntArray | None = None
    distance: Float32Array | None = None
    novelty: Float32Array | None = None

    def arrays(self) -> Iterator[tuple[str, NDArray]]:
        """Iterate over the names and values of the fields that were asked for."""
        for field in fields(self):
            values = getattr(self, field.name)
            if values is not None:
                yield field.name, values

    def write(self, position: int, minibatch: CellOutputs, n_obs: int) -> None:
        """Write the rows of a minibatch from a position on; the first one makes the arrays."""
        for name, rows in minibatch.arrays():
            if not np.isfinite(rows).all():
                raise ValueError(
                    f"The model gives no finite {name}: its weights are spoilt; train a new one."
                )
            if getattr(self, name) is None:
                setattr(self, name, np.empty((n_obs, *rows.shape[1:]), rows.dtype))
            getattr(self, name)[position : position + len(rows)] = rows


class InferenceMixin(SetupMixin):
    """One pass of the network over cells."""

    @validate_params(
        layer=LAYER, confidence=CONFIDENCE, precision=OneOf(*get_args(Precision))
    )
    def infer(
        self,
        adata: AnnOrMuData | None = None,
        outputs: Iterable[str] = ("probabilities", "attention", "novelty"),
        indices: Sequence[int] | slice | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        unannotated: bool = False,
        confidence: float = DEFAULT_CONFIDENCE,
        batch_size: int | None = None,
        precision: Precision = "32-true",
        sample: AnnData | None = None,
        enable_progress_bar: bool = True,
    ) -> AnnotationResult:
        """Run the network over cells once, and collect its outputs.

        :meth:`annotate`, :meth:`predict` and the other methods return parts of the result.

        Parameters
        ----------
        adata
            The query; by default the reference.
        outputs
            Any of ``"probabilities"``, ``"attention"``, ``"latent"`` (class tokens) and
            ``"novelty"``, which models of a MuData do not have.
        indices
            Positions of the cells to take, a mask or a slice; by default all.
        layer, use_raw, confidence, batch_size, precision, enable_progress_bar
            As in :meth:`annotate`.
        unannotated
            The last columns of the attention are unannotated tokens, as in :meth:`get_attention`.
        sample
            If ``adata`` is a part of a query, cells from all over that query, by which the scale of
            the expression is recognized.

        Returns
        -------
        The result. Other outputs are ``None``.

        Raises
        ------
        RuntimeError, TypeError, ValueError
            As :meth:`annotate`.
        """
        output_names = {outputs} if isinstance(outputs, str) else set(outputs)
        for name in output_names.difference(OUTPUTS):
            raise ValueError(f"outputs cannot be {name!r}{did_you_mean(name, OUTPUTS)}")
        source = self._source(adata, indices, layer, use_raw)
        n_obs = source.data.n_obs
        query = self._load_query(source, batch_size=batch_size, sample=sample)
        run = partial(self._infer_minibatch, query.modalities, output_names, precision)
        cells = CellOutputs()
        with (
            thread_pool(self.module.device),
            progress(n_obs, "annotate", enabled=enable_progress_bar) as bar,
        ):
            for minibatch, values in thread_map(run, query):
                cells.write(minibatch.start, values, n_obs)
                bar.update(len(minibatch.x))
        tokens = np.flatnonzero(np.isin(self.tokens.modality, query.modalities))
        if not unannotated:
            # Unannotated tokens come last.
            n_gene_sets = len(self.tokens.names) - self.tokens.n_unannotated
            tokens = tokens[tokens < n_gene_sets]
        if cells.attention is not None:
            cells.attention = np.ascontiguousarray(cells.attention[:, : len(tokens)])
        novelty_pvalue = None
        comparison = Comparison()
        if cells.novelty is not None:
            # A part of a query is corrected by cells from all over it.
            distances = None
            if sample is not None:
                distances = self._distances(sample, layer, use_raw)
            novelty_pvalue = self._novelty_pvalues(cells, distances)
            if sample is None or sample is source.data:
                comparison = self._compare_with_reference(source)
        return self._make_result(
            source.data.obs_names,
            cells,
            query,
            tokens,
            confidence=confidence,
            novelty_pvalue=novelty_pvalue,
            comparison=comparison,
        )

    def _make_result(
        self,
        obs_names: pd.Index,
        cells: CellOutputs,
        query: QueryLoader,
        tokens: IntArray,
        *,
        confidence: float,
        novelty_pvalue: Float32Array | None,
        comparison: Comparison,
    ) -> AnnotationResult:
        """Collect outputs, and describe the labels and gene sets of the model."""
        labels = self.get_state_registry(REGISTRY_KEYS.LABELS_KEY)
        levels = self._levels
        level_codes = None
        level_probability = None
        if levels and cells.codes is not None and cells.probabilities is not None:
            level_codes, level_probability = groups_of_labels(
                cells.codes, cells.probabilities, levels
            )
        hierarchy = self._hierarchy
        confident_codes = None
        confident_probability = None
        if len(hierarchy.names) > len(self.labels):
            confident_codes, confident_probability = self._confident_answers(
                hierarchy, cells, confidence
            )
        modalities = self._modalities_of_tokens(tokens)
        mask_source = ""
        if modalities is None:
            mask_source = str(self.modalities[0].mask.get("source", ""))
        n_missing_genes = 0
        if query.measured is not None:
            n_missing_genes = int((~query.measured).sum())
        adaptation = self.training_.adaptation
        per_cell: dict[str, Any] = {
            name: values for name, values in cells.arrays() if name in CELL_FIELDS
        }
        return AnnotationResult(
            obs_names=obs_names,
            labels=self.labels,
            dtype=pd.CategoricalDtype(
                pd.Index(labels[LabelsField.VALUES_KEY]),
                ordered=labels[LabelsField.ORDERED_KEY],
            ),
            colors=labels[LabelsField.COLORS_KEY],
            gene_sets=[self.tokens.names[i] for i in tokens],
            modalities=modalities,
            present=query.modalities,
            terms=dict(self._term_of_label or {}),
            hierarchy=hierarchy,
            model=self.fingerprint,
            source=mask_source,
            n_genes=len(self.tokens.var_names),
            n_missing_genes=n_missing_genes,
            **comparison._asdict(),
            adapted="" if adaptation is None else str(adaptation),
            levels=levels,
            level_codes=level_codes,
            level_probability=level_probability,
            subset_of=self.training_.subset_of,
            left_out_labels=self.training_.left_out_labels,
            **per_cell,
            novelty_pvalue=novelty_pvalue,
            confident_codes=confident_codes,
            confident_probability=confident_probability,
        )

    def _modalities_of_tokens(self, tokens: IntArray) -> list[str] | None:
        """Name the modality of each token, ``(n_tokens,)``, in a model of several."""
        names = [modality.name for modality in self.modalities]
        if names[0] is None:
            return None
        return [str(names[i]) for i in self.tokens.modality[tokens]]

    def _confident_answers(
        self, hierarchy: LabelHierarchy, cells: CellOutputs, confidence: float
    ) -> tuple[IntArray | None, Float32Array | None]:
        """Find codes and probabilities of the confident answers, if there are probabilities."""
        if cells.probabilities is None:
            return None, None
        codes, probability = hierarchy.answer(cells.probabilities, confidence)
        cutoff = self.training_.novelty_cutoff
        if cells.novelty is not None and cutoff is not None:
            codes[cells.novelty > cutoff] = len(hierarchy.names)
        return codes, probability

    @torch.inference_mode()
    def _infer_minibatch(
        self,
        modalities: tuple[int, ...],
        outputs: set[str],
        precision: Precision,
        minibatch: Minibatch,
    ) -> tuple[Minibatch, CellOutputs]:
        """Compute the outputs of some cells, and return them with these cells."""
        device = self.module.device
        is_rounded = precision == "bf16-mixed" and device.type != "cpu"
        with torch.autocast(device.type, torch.bfloat16, enabled=is_rounded):
            encoded = self.module.annotate(
                minibatch.x,
                attention="attention" in outputs,
                modalities=modalities,
                measured=minibatch.measured,
            )
        calibrated = self.module.calibrated(encoded.logits, modalities)
        probabilities = _to_numpy(calibrated.softmax(1))
        cells = CellOutputs()
        if "latent" in outputs:
            cells.latent = _to_numpy(encoded.latent)
        if encoded.attention is not None:
            cells.attention = _to_numpy(encoded.attention)
        if "probabilities" in outputs:
            cells.probabilities = probabilities
            rows = np.arange(len(probabilities))
            cells.codes = best_labels(probabilities, self._levels)
            cells.probability = probabilities[rows, cells.codes]
            second = probabilities.copy()
            second[rows, cells.codes] = 0
            cells.second_codes = second.argmax(1).astype(np.int32)
            cells.second_probability = second[rows, cells.second_codes]
        statistics = self.training_.novelty_statistics
        if "novelty" in outputs and statistics is not None:
            distance, cells.nearest = _distance(statistics, minibatch)
            highest = self._probability_before(minibatch.x, minibatch.measured)
            if highest is None:
                highest = probabilities.max(1)
            cells.distance = distance.astype(np.float32)
            cells.novelty = add_doubt(distance, highest).astype(np.float32)
        return minibatch, cells

    def _novelty_pvalues(
        self,
        cells: CellOutputs,
        sample: tuple[FloatArray, IntArray] | None,
    ) -> Float32Array:
        """Compute p-values of distances, without the excess that the cells of a label share.

        The excess is measured in the cells themselves, or in the distances and nearest labels of a
        ``sample`` of the whole query.
        """
        statistics = self._require_statistics()
        assert cells.distance is not None
        assert cells.nearest is not None
        distance, nearest = sample or (cells.distance, cells.nearest)
        excess = label_excess(distance, nearest, statistics)
        corrected = cells.distance - excess[cells.nearest]
        return pvalues(corrected, statistics.reference_scores).astype(np.float32)

    @torch.inference_mode()
    def _compare_with_reference(self, source: ExpressionSource) -> Comparison:
        """Compare at most 2 000 cells with the reference, by the labels that the linear branch gives them.

        There is nothing to compare without a branch. That of an adapted model has learnt from cells that may be of
        another tissue, so that the branch before is asked.
        """
        statistics = self.training_.novelty_statistics
        adaptation = self.training_.adaptation
        linear = self.module.linear
        if statistics is None or linear is None:
            return Comparison()
        weights, biases = linear.weights, None
        is_adapted = adaptation is not None and adaptation.n_rounds > 0
        if adaptation is not None and is_adapted:
            if adaptation.weights is None or adaptation.biases is None:
                return Comparison()
            weights = torch.from_numpy(adaptation.weights).to(linear.weights)
            biases = torch.from_numpy(adaptation.biases).to(linear.weights)
        one_label = np.zeros(source.data.n_obs, dtype=np.int64)
        sample = source[subsample_by_label(one_label, _N_CELLS_OF_SIGNAL)]
        expression = []
        sums = torch.zeros_like(linear.weights)
        labels = []
        measured = None
        with only_warnings(query_logger), warnings.catch_warnings(action="ignore"):
            query = self._load_query(sample)
            for batch in query:
                expression.append(batch.x.cpu().numpy())
                measured = batch.measured_genes()
                filled = linear.expression(batch.x, batch.measured)
                scores = linear(batch.x, batch.measured)
                if biases is not None:
                    scores = torch.nn.functional.linear(filled, weights, biases)
                codes = scores.argmax(1)
                sums.index_add_(0, codes, filled)
                labels.append(codes.cpu().numpy())
        codes_of_sample = np.concatenate(labels)
        positions = statistics.positions(codes_of_sample)
        x = sp.csr_matrix(np.concatenate(expression))
        # An adapted model has learnt what the query differs in.
        signal = None
        if not is_adapted:
            signal = common_shift(x, positions, statistics, measured).signal
        return Comparison(
            batch_signal=signal,
            likeness=label_likeness(
                sums.cpu().numpy(),
                np.bincount(codes_of_sample, minlength=len(self.labels)),
                statistics,
                weights.cpu().numpy(),
            ),
            label_changes=self._label_changes(query.measured),
        )

    def _label_changes(self, measured: Tensor | None) -> Float32Array | None:
        """Share of each label's cells that missing genes give another label, if many are missing."""
        linear = self.module.linear
        assert linear is not None
        if measured is None or measured.float().mean() >= 1 - LIMITS.missing_genes:
            return None

        def assign(x: Float32Array, lack_genes: bool) -> IntArray:
            cells = torch.from_numpy(x).to(measured.device)
            logits = linear(cells, measured if lack_genes else None)
            return np.asarray(logits.argmax(1).cpu().numpy())

        return label_changes(self._require_statistics(), assign, len(self.labels))

    @torch.inference_mode()
    def _probability_before(
        self, x: Tensor, measured: Tensor | None
    ) -> np.ndarray | None:
        """Probability of each cell's best label before the model was adapted; ``None`` if it was not.

        ``x`` is normalised expression, ``(n_cells, n_genes)``.
        """
        adaptation = self.training_.adaptation
        linear = self.module.linear
        if adaptation is None or linear is None:
            return None
        expression = linear.expression(x, measured).cpu().numpy()
        return adaptation.highest_probability(expression)

    def _distances(
        self,
        cells: AnnData,
        layer: str | Mapping[str, str] | None,
        use_raw: bool,
    ) -> tuple[FloatArray, IntArray]:
        """Compute the distance of cells from the nearest label, and which label it is."""
        with only_warnings(query_logger), warnings.catch_warnings(action="ignore"):
            batches = self.iter_batches(cells, layer=layer, use_raw=use_raw)
            scores = [_distance(self._require_statistics(), batch) for batch in batches]
        distances, nearest = zip(*scores, strict=True)
        return np.concatenate(distances), np.concatenate(nearest)

    @validate_params(layer=LAYER)
    def iter_batches(
        self,
        adata: AnnOrMuData | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        batch_size: int | None = None,
    ) -> Iterator[Minibatch]:
        """Iterate over a query as the network reads it: the model's genes, normalized.

        Parameters
        ----------
        adata
            The query; by default the reference.
        layer, use_raw, batch_size
            As in :meth:`annotate`.

        Yields
        ------
        start
            Position of the minibatch's first cell in ``adata``.
        x
            Normalized expression, shape ``(n_cells, n_genes)``, float32, on the model's device.
            Genes are those of :meth:`get_var_names`, in their order; ones that the query lacks are
            zero.
        measured
            Shape ``(n_genes,)``, bool: whether the query has a gene. ``None`` if it has all.

        Raises
        ------
        RuntimeError, TypeError, ValueError
            As :meth:`annotate`.

        Examples
        --------
        With a trained model and a query that it annotated:

        >>> [
        ...     (batch.start, tuple(batch.x.shape))
        ...     for batch in model.iter_batches(batch_size=500)
        ... ]
        [(0, (500, 765)), (500, (25, 765))]
        """
        source = self._source(adata, None, layer, use_raw)
        return iter(self._load_query(source, batch_size=batch_size))

    def _load_query(
        self,
        source: ExpressionSource,
        *,
        batch_size: int | None = None,
        sample: AnnData | None = None,
    ) -> QueryLoader:
        """Load cells in minibatches of the model's genes."""
        return QueryLoader(
            source,
            self.modalities,
            self.module.device,
            batch_size=batch_size,
            sample=sample,
            statistics=self.training_.novelty_statistics,
        )

    def _source(
        self,
        adata: AnnOrMuData | None,
        indices: Sequence[int] | slice | None = None,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
    ) -> ExpressionSource:
        """Take cells to annotate, if the model is trained; by default its reference."""
        self._check_trained()
        adata = self.adata if adata is None else adata
        if adata is None:
            raise ValueError(
                "The model was loaded without a reference: pass the query as adata."
            )
        has_one_modality = self.modalities[0].name is None
        (ANNDATA if has_one_modality else ANY_CELLS).check("adata", adata)
        source = ExpressionSource(adata, layer, use_raw)
        if indices is None:
            return source
        selection = indices if isinstance(indices, slice) else np.asarray(indices)
        try:
            cells = np.arange(adata.n_obs)[selection]
        except IndexError:
            cells = None
        if cells is None or cells.ndim != 1:
            raise ValueError(
                f"indices must be positions of the {adata.n_obs} cells, a slice, or a boolean for each."
            )
        return source[cells]

    def _check_trained(self) -> None:
        """Raise a ``RuntimeError`` if the model is not trained."""
        self._check_if_trained(
            warn=False,
            message=f"The model is not trained: call {call('model.train', '')} first, or load a trained one.",
        )

    @property
    def _levels(self) -> Sequence[LabelLevel]:
        """Groups of the labels in broader columns of the reference, from broad to fine."""
        state = self.get_state_registry(REGISTRY_KEYS.LABELS_KEY)
        return Labels.from_state(state).levels

    @property
    def _hierarchy(self) -> LabelHierarchy:
        """The labels, and the groups above them if any has a term or a parent."""
        return LabelHierarchy(
            self.labels, self._term_of_label or {}, self._parent_of_label
        )

    @property
    def fingerprint(self) -> str:
        """Sixteen characters that tell this model from any other.

        They depend on the weights and on the names of labels, genes and gene sets.
        """
        hasher = hashlib.sha256()
        n_gene_sets = len(self.tokens.names) - self.tokens.n_unannotated
        gene_sets = self.tokens.names[:n_gene_sets]
        for name, tensor in sorted(self.module.state_dict().items()):
            hasher.update(name.encode())
            hasher.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        for names in (self.labels, self.tokens.var_names, gene_sets):
            # A name may have any character but these.
            hasher.update("\0".join([*map(str, names), ""]).encode() + b"\1")
        return hasher.hexdigest()[:16]


def _to_numpy(tensor: Tensor) -> Float32Array:
    return tensor.float().cpu().numpy()


def _distance(
    statistics: ReferenceStatistics, batch: Minibatch
) -> tuple[FloatArray, IntArray]:
    return statistics.score_cells(batch.x.cpu().numpy(), batch.measured_genes())
