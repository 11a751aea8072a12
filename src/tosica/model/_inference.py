"""Run the network over the cells of a query once, and collect its output."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch

from tosica._limits import LIMITS
from tosica._parallel import thread_map, thread_pool
from tosica._progress import progress
from tosica._settings import only_warnings, query_logger, without_warnings
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
    HeldOutGenes,
    add_doubt,
    common_shift,
    fit_null,
    label_changes,
    label_likeness,
    permuted_genes_pvalue,
    subsample_by_label,
)
from tosica.model._annotation_result import (
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

    from numpy.typing import NDArray
    from torch import Tensor

    from tosica._types import AnnOrMuData, Float32Array, FloatArray, IntArray
    from tosica.linear import ReferenceStatistics
    from tosica.model._query_loader import Minibatch

Precision = Literal["32-true", "bf16-mixed"]
OUTPUTS = ("probabilities", "attention", "latent", "novelty")
# Number of cells that are compared with the reference.
N_CELLS_OF_COMPARISON = 2_000
LAYER = Either(
    first=String(),
    second=InstanceOf("a dict of modality and layer", dict),
    optional=True,
)


class Comparison(NamedTuple):
    """A query beside the reference.

    ``genes_pvalue`` says whether permuted genes would be as like the reference's. ``batch_signal`` is the share of what
    all labels differ by that is no noise, ``likeness`` the correlation of what sets labels apart, and ``label_changes``
    the share of each label's cells that missing genes give another label, ``(n_labels,)``. Each is ``None`` where it
    cannot be known.
    """

    genes_pvalue: float | None = None
    batch_signal: float | None = None
    likeness: float | None = None
    label_changes: Float32Array | None = None


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
        sample: AnnOrMuData | None = None,
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
            Positions of the cells to take, a mask or a slice; by default all. The scale of the expression is recognized
            by all cells, which have to be on one.
        layer, use_raw, confidence, batch_size, precision, enable_progress_bar
            As in :meth:`annotate`.
        unannotated
            The last columns of the attention are unannotated tokens, as in :meth:`get_attention`.
        sample
            If ``adata`` is a part of a query, cells from all over that query, of the same kind, by which the scale of
            the expression is recognized. p-values of novelty are by the part alone.

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
        whole = self._whole(adata, indices) if sample is None else sample
        query = self._load_query(source, batch_size=batch_size, sample=whole)
        run = partial(self._infer_minibatch, query.modalities, output_names, precision)
        cells: dict[str, NDArray] = {}
        with (
            thread_pool(self.module.device),
            progress(n_obs, "annotate", enabled=enable_progress_bar) as bar,
        ):
            for minibatch, outputs_of_cells in thread_map(run, query):
                _write_rows(cells, outputs_of_cells, minibatch.start, n_obs)
                bar.update(len(minibatch.x))
        tokens = np.flatnonzero(np.isin(self.tokens.modality, query.modalities))
        if not unannotated:
            # Unannotated tokens come last.
            n_gene_sets = len(self.tokens.names) - self.tokens.n_unannotated
            tokens = tokens[tokens < n_gene_sets]
        if "attention" in cells:
            cells["attention"] = np.ascontiguousarray(
                cells["attention"][:, : len(tokens)]
            )
        comparison = Comparison()
        if "novelty" in cells:
            if sample is None:
                comparison = self._compare_with_reference(source, whole)
            cells["novelty_pvalue"] = self._novelty_pvalues(
                cells["distance"], cells["nearest"], comparison.batch_signal
            )
        return self._make_result(
            source.data.obs_names, cells, query, tokens, confidence, comparison
        )

    def _make_result(
        self,
        obs_names: pd.Index,
        cells: dict[str, NDArray],
        query: QueryLoader,
        tokens: IntArray,
        confidence: float,
        comparison: Comparison,
    ) -> AnnotationResult:
        """Describe the cells for which the model was asked.

        Parameters
        ----------
        obs_names
            Names of the cells.
        cells
            Arrays with a row for each cell, by the names of the result's fields; more are added.
        query
            The query, for its modalities and genes.
        tokens
            Positions of the tokens that attention has.
        confidence
            Least probability of a confident answer.
        comparison
            Of query and reference.
        """
        labels = self.get_state_registry(REGISTRY_KEYS.LABELS_KEY)
        levels = self._levels
        hierarchy = self._hierarchy
        if "probabilities" in cells:
            probabilities = cells["probabilities"]
            if levels:
                cells["level_codes"], cells["level_probability"] = groups_of_labels(
                    cells["codes"], probabilities, levels
                )
            if len(hierarchy.names) > len(self.labels):
                codes, probability = hierarchy.answer(probabilities, confidence)
                cutoff = self.training_.novelty_cutoff
                if "novelty" in cells and cutoff is not None:
                    codes[cells["novelty"] > cutoff] = len(hierarchy.names)
                cells["confident_codes"] = codes
                cells["confident_probability"] = probability
        modalities = None
        mask_source = ""
        if self.modalities[0].name is None:
            mask_source = str(self.modalities[0].mask.get("source", ""))
        else:
            owners = self.tokens.modality[tokens]
            modalities = [str(self.modalities[i].name) for i in owners]
        n_missing_genes = 0
        if query.measured is not None:
            n_missing_genes = int((~query.measured).sum())
        adaptation = self.training_.adaptation
        per_cell: dict[str, Any] = cells
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
            n_genes=query.n_expressed,
            n_missing_genes=n_missing_genes,
            **comparison._asdict(),
            has_linear=self._has_linear,
            is_calibrated=bool((self.module.temperature != 1).any()),
            adapted="" if adaptation is None else str(adaptation),
            levels=levels,
            subset_of=self.training_.subset_of,
            left_out_labels=self.training_.left_out_labels,
            **per_cell,
        )

    @torch.inference_mode()
    def _infer_minibatch(
        self,
        modalities: tuple[int, ...],
        outputs: set[str],
        precision: Precision,
        minibatch: Minibatch,
    ) -> tuple[Minibatch, dict[str, NDArray]]:
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
        cells: dict[str, NDArray] = {}
        if "latent" in outputs:
            cells["latent"] = _to_numpy(encoded.latent)
        if encoded.attention is not None:
            cells["attention"] = _to_numpy(encoded.attention)
        if "probabilities" in outputs:
            rows = np.arange(len(probabilities))
            codes = best_labels(probabilities, self._levels)
            second = probabilities.copy()
            second[rows, codes] = 0
            second_codes = second.argmax(1).astype(np.int32)
            cells |= {
                "probabilities": probabilities,
                "codes": codes,
                "probability": probabilities[rows, codes],
                "second_codes": second_codes,
                "second_probability": second[rows, second_codes],
            }
        statistics = self.training_.novelty_statistics
        if "novelty" in outputs and statistics is not None:
            distance, nearest = _distance(statistics, minibatch)
            highest = self._probability_before(minibatch.x, minibatch.measured)
            if highest is None:
                highest = probabilities.max(1)
            else:
                cells["probability_before"] = highest.astype(np.float32)
            cells |= {
                "nearest": nearest.astype(np.int32),
                "distance": distance.astype(np.float32),
                "novelty": add_doubt(distance, highest).astype(np.float32),
            }
        return minibatch, cells

    def _novelty_pvalues(
        self, distance: Float32Array, nearest: IntArray, batch_signal: float | None
    ) -> Float32Array:
        """Compute p-values of a query's distances from the nearest labels, ``(n_cells,)`` each."""
        null = fit_null(
            self._require_statistics(),
            distance,
            nearest,
            same_batch=batch_signal == 0,
        )
        return null.pvalues(distance, nearest).astype(np.float32)

    @torch.inference_mode()
    def _compare_with_reference(
        self, source: ExpressionSource, whole: AnnOrMuData | None
    ) -> Comparison:
        """Compare at most 2 000 cells with the reference, by the labels that the linear branch gives them.

        There is nothing to compare without a branch. That of an adapted model has learnt from cells that may be of
        another tissue, so that the branch before is asked.
        """
        statistics = self.training_.novelty_statistics
        adaptation = self.training_.adaptation
        linear = self.module.linear
        if statistics is None or linear is None or not self._has_linear:
            return Comparison()
        weights, biases = linear.weights, linear.bias
        is_adapted = adaptation is not None and adaptation.n_rounds > 0
        if adaptation is not None and is_adapted:
            if adaptation.weights is None or adaptation.biases is None:
                return Comparison()
            weights = torch.from_numpy(adaptation.weights).to(linear.weights)
            biases = torch.from_numpy(adaptation.biases).to(linear.weights)
        one_label = np.zeros(source.data.n_obs, dtype=np.int64)
        sample = source[subsample_by_label(one_label, N_CELLS_OF_COMPARISON)]
        expression = []
        sums = torch.zeros_like(linear.weights)
        labels = []
        # Each half of the genes labels the cells as if the query lacked the other.
        halves = _halves_of_genes(weights.shape[1], weights.device)
        labels_by_half: tuple[list[IntArray], list[IntArray]] = ([], [])
        measured = None
        with only_warnings(query_logger), without_warnings():
            whole = source.data if whole is None else whole
            query = self._load_query(sample, sample=whole)
            for batch in query:
                expression.append(batch.x.cpu().numpy())
                measured = batch.measured_genes()
                filled = linear.clip_and_impute(batch.x, batch.measured)
                codes = (filled @ weights.T + biases).argmax(1)
                sums.index_add_(0, codes, filled)
                labels.append(codes.cpu().numpy())
                for half, labels_by_genes in zip(halves, labels_by_half, strict=True):
                    present = half if batch.measured is None else half & batch.measured
                    imputed = linear.clip_and_impute(batch.x, present)
                    by_genes = (imputed @ weights.T + biases).argmax(1)
                    labels_by_genes.append(by_genes.cpu().numpy())
        codes_of_sample = np.concatenate(labels)
        positions = statistics.positions(codes_of_sample)
        x = sp.csr_matrix(np.concatenate(expression))
        # An adapted model has learnt what the query differs in.
        signal = None
        if not is_adapted:
            signal = common_shift(x, positions, statistics, measured).signal
        held_out = [
            HeldOutGenes(
                statistics.positions(np.concatenate(labels_by_genes)),
                ~half.cpu().numpy(),
            )
            for half, labels_by_genes in zip(halves, labels_by_half, strict=True)
        ]
        return Comparison(
            genes_pvalue=permuted_genes_pvalue(x, held_out, statistics, measured),
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

        ``x`` is normalized expression, ``(n_cells, n_genes)``.
        """
        adaptation = self.training_.adaptation
        linear = self.module.linear
        if adaptation is None or linear is None:
            return None
        expression = linear.clip_and_impute(x, measured).cpu().numpy()
        return adaptation.highest_probability(expression)

    @validate_params(layer=LAYER)
    def iter_batches(
        self,
        adata: AnnOrMuData | None = None,
        *,
        indices: Sequence[int] | slice | None = None,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        batch_size: int | None = None,
    ) -> Iterator[Minibatch]:
        """Iterate over a query as the network reads it: the model's genes, normalized.

        Parameters
        ----------
        adata
            The query; by default the reference.
        indices
            Positions of the cells to take, a mask or a slice; by default all. The scale of the expression is recognized
            by all cells, which have to be on one.
        layer, use_raw, batch_size
            As in :meth:`annotate`.

        Yields
        ------
        start
            Position of the minibatch's first cell in ``adata``, or among ``indices``.
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
        source = self._source(adata, indices, layer, use_raw)
        whole = self._whole(adata, indices)
        return iter(self._load_query(source, batch_size=batch_size, sample=whole))

    def _load_query(
        self,
        source: ExpressionSource,
        *,
        batch_size: int | None = None,
        sample: AnnOrMuData | None = None,
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

    def _whole(
        self,
        adata: AnnOrMuData | None,
        indices: Sequence[int] | slice | None,
    ) -> AnnOrMuData | None:
        """All cells if some are taken, so that these are on the scale that all have."""
        if indices is None:
            return None
        return self.adata if adata is None else adata

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
        positions, counts = np.unique(cells, return_counts=True)
        if (counts > 1).any():
            raise ValueError(
                f"indices takes cell {positions[counts > 1][0]} more than once: take each cell once."
            )
        return source[cells]

    def _check_trained(self) -> None:
        """Raise a ``RuntimeError`` if the model is not trained."""
        self._check_if_trained(
            warn=False,
            message=f"The model is not trained: call {call('model.train', '')} first, or load a trained one.",
        )

    @property
    def _has_linear(self) -> bool:
        """Whether there is a linear branch, and calibration gave it a weight."""
        linear = self.module.linear
        return linear is not None and bool(linear.weights.any())

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


def _write_rows(
    cells: dict[str, NDArray],
    minibatch: dict[str, NDArray],
    position: int,
    n_obs: int,
) -> None:
    """Write the rows of a minibatch from a position on; the first one makes the arrays."""
    for name, rows in minibatch.items():
        if not np.isfinite(rows).all():
            raise ValueError(
                f"The model gives no finite {name}: its weights are spoilt; train a new one."
            )
        if name not in cells:
            cells[name] = np.empty((n_obs, *rows.shape[1:]), rows.dtype)
        cells[name][position : position + len(rows)] = rows


def _to_numpy(tensor: Tensor) -> Float32Array:
    return tensor.float().cpu().numpy()


def _halves_of_genes(n_genes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Split the genes in two at random, ``(n_genes,)`` bool each."""
    shuffled = torch.randperm(n_genes, generator=torch.Generator().manual_seed(0))
    is_first = (shuffled % 2 == 0).to(device)
    return is_first, ~is_first


def _distance(
    statistics: ReferenceStatistics, batch: Minibatch
) -> tuple[FloatArray, IntArray]:
    return statistics.score_cells(batch.x.cpu().numpy(), batch.measured_genes())
