"""Annotate a query: labels, probabilities, label sets, attention, in one pass of the network."""

from __future__ import annotations

import hashlib
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from anndata import AnnData

from tosica._checks import (
    ANNDATA,
    ANY_CELLS,
    Either,
    FileKey,
    Fraction,
    InstanceOf,
    OneOf,
    String,
    validate_params,
)
from tosica._limits import LIMITS
from tosica._obs import file_columns
from tosica._parallel import thread_map, thread_pool
from tosica._progress import progress
from tosica._settings import logger, only_warnings, query_logger
from tosica._stats import conformal_threshold, label_sets
from tosica._text import did_you_mean, format_thousands
from tosica.data import ExpressionSource, load_annotations
from tosica.linear import (
    add_doubt,
    common_shift,
    label_excess,
    pvalues,
    subsample_by_label,
)
from tosica.model._annotation_result import (
    CONFIDENCE,
    CUTOFF,
    DEFAULT_CONFIDENCE,
    DEFAULT_CUTOFF,
    AnnotationResult,
    sets_as_terms,
    warn_of_cutoff,
)
from tosica.model._fields import LabelsField
from tosica.model._query import QueryLoader
from tosica.model._setup import SetupMixin
from tosica.module import REGISTRY_KEYS
from tosica.onto._hierarchy import LabelHierarchy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mudata import MuData

    from tosica.linear import NoveltyStatistics
    from tosica.model._annotation_result import Cutoff
    from tosica.model._query import Minibatch

Precision = Literal["32-true", "bf16-mixed"]
# Cells by which it is told whether a query is of another batch.
_N_CELLS_OF_SIGNAL = 2_000
_WANTED = {"probabilities", "attention", "unannotated", "latent", "novelty"}
LAYER = Either(
    first=String(),
    second=InstanceOf("a dict of modality and layer", dict),
    optional=True,
)


class AnnotationMixin(SetupMixin):
    """What a model says of the cells of a query."""

    if TYPE_CHECKING:
        adapt: Callable[..., Self]

    adapted_: Self | None = None
    """The model that the last ``annotate(query, adapt=True)`` made, by which it labelled the query."""

    @validate_params(
        layer=LAYER, confidence=CONFIDENCE, precision=OneOf(*get_args(Precision))
    )
    def infer(
        self,
        adata: AnnData | MuData | None = None,
        want: Iterable[str] = ("probabilities", "attention", "novelty"),
        indices: Sequence[int] | slice | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        confidence: float = DEFAULT_CONFIDENCE,
        batch_size: int | None = None,
        precision: Precision = "32-true",
        sample: AnnData | None = None,
        enable_progress_bar: bool = True,
    ) -> AnnotationResult:
        """Run the network over cells once, and collect what it says of them.

        :meth:`annotate`, :meth:`predict` and the other methods return parts of the result.

        Parameters
        ----------
        adata
            The query; by default the reference.
        want
            What to compute: ``"probabilities"``, ``"attention"``, ``"unannotated"`` (attention to
            unannotated tokens as well, as the last columns), ``"latent"`` (class tokens) and
            ``"novelty"``, which models of a MuData do not have.
        indices
            Positions of the cells to take, a mask or a slice; by default all.
        layer, use_raw, confidence, batch_size, precision, enable_progress_bar
            As in :meth:`annotate`.
        sample
            If ``adata`` is a part of a query, cells from all over that query, by which the scale of
            the expression is recognized.

        Returns
        -------
        The result; what was not wanted is ``None``.

        Raises
        ------
        RuntimeError, TypeError, ValueError
            As :meth:`annotate`.
        """
        wanted = {want} if isinstance(want, str) else set(want)
        for name in wanted - _WANTED:
            raise ValueError(f"want cannot be {name!r}{did_you_mean(name, _WANTED)}")
        source = self._source(adata, indices, layer, use_raw)
        adata, tokens, device = source.data, self.tokens, self.module.device
        statistics = self.training_.novelty_statistics
        query = QueryLoader(
            source,
            self.modalities,
            device,
            batch_size=batch_size,
            sample=sample,
            statistics=statistics,
        )
        columns = np.flatnonzero(np.isin(tokens.modality, query.modalities))
        if "unannotated" not in wanted:
            # Unannotated tokens come last.
            columns = columns[columns < len(tokens.names) - tokens.n_unannotated]
        found: dict[str, np.ndarray] = {}
        run = partial(self._infer_minibatch, query.modalities, wanted, precision)
        with (
            thread_pool(device),
            progress(adata.n_obs, "annotate", enabled=enable_progress_bar) as step,
        ):
            for start, parts in thread_map(run, query):
                for name, part in parts.items():
                    if not np.isfinite(part).all():
                        raise ValueError(
                            f"The model gives no finite {name}: its weights are spoilt; train a new one."
                        )
                    if name not in found:
                        found[name] = np.empty(
                            (adata.n_obs, *part.shape[1:]), dtype=part.dtype
                        )
                    found[name][start : start + len(part)] = part
                step.update(len(part))
        hierarchy = self._hierarchy
        if hierarchy is not None:
            found |= self._confident_answers(hierarchy, found, confidence)
        if "attention" in found:
            found["attention"] = np.ascontiguousarray(
                found["attention"][:, : len(columns)]
            )
        if "novelty" in found and statistics is not None:
            # A part of a query is corrected by cells from all over it.
            whole = None if sample is None else self._distances(sample, layer, use_raw)
            found["novelty_pvalue"] = _novelty_pvalues(
                found.pop("distance"), found.pop("nearest"), whole, statistics
            )
        batch_signal = None
        if "novelty" in found and (sample is None or sample is adata):
            batch_signal = self._batch_signal(source)
        names = [modality.name for modality in self.modalities]
        state = self.get_state_registry(REGISTRY_KEYS.LABELS_KEY)
        return AnnotationResult(
            obs_names=adata.obs_names,
            labels=self.labels,
            dtype=pd.CategoricalDtype(
                pd.Index(state[LabelsField.VALUES_KEY]),
                ordered=state[LabelsField.ORDERED_KEY],
            ),
            colors=state[LabelsField.COLORS_KEY],
            gene_sets=[tokens.names[i] for i in columns],
            modalities=None
            if names[0] is None
            else [str(names[i]) for i in tokens.modality[columns]],
            present=query.modalities,
            terms=dict(self._term_of_label or {}),
            hierarchy=hierarchy,
            model=self.fingerprint,
            source="" if names[0] else str(self.modalities[0].mask.get("source", "")),
            n_genes=len(tokens.var_names),
            n_missing_genes=0
            if query.measured is None
            else int((~query.measured).sum()),
            batch_signal=batch_signal,
            adapted=""
            if self.training_.adaptation is None
            else str(self.training_.adaptation),
            **found,
        )

    def _confident_answers(
        self,
        hierarchy: LabelHierarchy,
        found: Mapping[str, np.ndarray],
        confidence: float,
    ) -> dict[str, np.ndarray]:
        """Codes and probabilities of the confident answers, if there are probabilities and groups of labels."""
        if "probabilities" not in found or len(hierarchy.names) <= len(self.labels):
            return {}
        codes, probability = hierarchy.answer(found["probabilities"], confidence)
        cutoff = self.training_.novelty_cutoff
        if "novelty" in found and cutoff is not None:
            codes[found["novelty"] > cutoff] = len(hierarchy.names)
        return {"confident_codes": codes, "confident_probability": probability}

    @torch.inference_mode()
    def _infer_minibatch(
        self,
        modalities: tuple[int, ...],
        wanted: set[str],
        precision: Precision,
        minibatch: Minibatch,
    ) -> tuple[int, dict[str, np.ndarray]]:
        """Compute what is wanted of some cells, and return it with the position of the first."""
        device, measured = self.module.device, minibatch.measured
        rounds = precision == "bf16-mixed" and device.type != "cpu"
        attention = not wanted.isdisjoint({"attention", "unannotated"})
        with torch.autocast(device.type, torch.bfloat16, enabled=rounds):
            output = self.module.annotate(
                minibatch.x,
                attention=attention,
                modalities=modalities,
                measured=measured,
            )
        probabilities = self.module.probabilities(output.logits, modalities)
        values = {
            "latent": output.latent,
            "probabilities": probabilities,
            "attention": output.attention,
        }
        # Attention is there if it was asked for, with unannotated tokens or without.
        asked = {
            name: value
            for name, value in values.items()
            if name in {*wanted, "attention"}
        }
        arrays = {
            name: value.float().cpu().numpy()
            for name, value in asked.items()
            if value is not None
        }
        if "probabilities" in arrays:
            left, rows = arrays["probabilities"].copy(), np.arange(len(minibatch.x))
            for rank in ("", "second_"):
                codes = left.argmax(1).astype(np.int32)
                arrays |= {
                    f"{rank}codes": codes,
                    f"{rank}probability": left[rows, codes],
                }
                left[rows, codes] = 0
        statistics = self.training_.novelty_statistics
        if "novelty" in wanted and statistics is not None:
            known = None if measured is None else measured.cpu().numpy()
            distance, arrays["nearest"] = statistics.score_cells(
                minibatch.x.cpu().numpy(), known
            )
            most = self._probability_before(minibatch.x, measured)
            if most is None:
                most = probabilities.max(1).values.float().cpu().numpy()
            scores = {"distance": distance, "novelty": add_doubt(distance, most)}
            arrays |= {name: score.astype(np.float32) for name, score in scores.items()}
        return minibatch.start, arrays

    @torch.inference_mode()
    def _batch_signal(self, source: ExpressionSource) -> float | None:
        """Share of what all labels differ by from the reference that is no noise, see :meth:`adapt`.

        Labels are those of the linear branch, of at most 2 000 cells. ``None`` if there is no branch, or the model was
        adapted already.
        """
        statistics, linear, adaptation = (
            self.training_.novelty_statistics,
            self.module.linear,
            self.training_.adaptation,
        )
        if (
            statistics is None
            or linear is None
            or (adaptation is not None and adaptation.n_rounds)
        ):
            return None
        drawn = subsample_by_label(
            np.zeros(source.data.n_obs, dtype=np.int64), _N_CELLS_OF_SIGNAL
        )
        with only_warnings(query_logger), warnings.catch_warnings(action="ignore"):
            cells = QueryLoader(
                source[drawn],
                self.modalities,
                self.module.device,
                statistics=statistics,
            )
            parts = [
                (batch.x.cpu(), linear(batch.x, batch.measured).argmax(1).cpu())
                for batch in cells
            ]
        x, codes = (torch.cat(values).numpy() for values in zip(*parts, strict=True))
        measured = None if cells.measured is None else cells.measured.cpu().numpy()
        return common_shift(
            sp.csr_matrix(x), statistics.positions(codes), statistics, measured
        ).signal

    @torch.inference_mode()
    def _probability_before(
        self, x: torch.Tensor, measured: torch.Tensor | None
    ) -> np.ndarray | None:
        """Probability of each cell's best label before the model was adapted; ``None`` if it was not.

        ``x`` is normalised expression, ``(n_cells, n_genes)``.
        """
        adaptation, linear = self.training_.adaptation, self.module.linear
        if adaptation is None or linear is None:
            return None
        return adaptation.highest_probability(
            linear.expression(x, measured).cpu().numpy()
        )

    def _distances(
        self, cells: AnnData, layer: Any, use_raw: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distance of cells from the nearest label, and which it is, as parts of the novelty."""
        statistics = self.training_.novelty_statistics
        assert statistics is not None
        parts = []
        with only_warnings(query_logger), warnings.catch_warnings(action="ignore"):
            for batch in self.iter_batches(cells, layer=layer, use_raw=use_raw):
                known = None if batch.measured is None else batch.measured.cpu().numpy()
                parts.append(statistics.score_cells(batch.x.cpu().numpy(), known))
        distances, nearest = zip(*parts, strict=True)
        return np.concatenate(distances), np.concatenate(nearest)

    @validate_params(
        cutoff=CUTOFF,
        key_added=FileKey(),
        confidence=CONFIDENCE,
        precision=OneOf(*get_args(Precision)),
    )
    def annotate(
        self,
        adata: AnnData | MuData | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        cutoff: Cutoff = DEFAULT_CUTOFF,
        confidence: float = DEFAULT_CONFIDENCE,
        adapt: bool = False,
        probabilities: bool = False,
        batch_size: int | None = None,
        precision: Precision = "32-true",
        key_added: str = "tosica",
        copy: bool = False,
        enable_progress_bar: bool = True,
    ) -> AnnData | MuData | None:
        """Label the cells of a query, with calibrated probabilities and attention to gene sets.

        :func:`tosica.tl.attribute` explains the labels.

        Genes are matched by name, in any order, and with ``-`` for ``_`` (which Seurat exchanges)
        if only one name fits. Genes that the query lacks are zero for the
        network, and imputed for the linear branch. Counts are normalized as those of the reference.
        Log-normalized expression on another scale is recognized and brought to the reference's.

        A model of several modalities takes a MuData with some of them, under the reference's names.
        It also takes an AnnData, as the modality that most of its genes belong to. Gene sets of a
        modality that the query lacks have no column in the attention.

        Parameters
        ----------
        adata
            The query, ``(n_obs, n_vars)``; by default the reference itself. A MuData is written to
            at its own level, not in its modalities.
        layer
            Layer with the expression; for a MuData a dict of modality and layer. By default the
            layer that the reference was set up with, if the query has it, else ``adata.X``.
        use_raw
            Read ``adata.raw`` instead.
        cutoff
            Cells whose best label is less probable than this are called "Unknown". The probability
            is calibrated, so cells like those of the reference with a probability of 0.7 are right
            in seven of ten cases. The best of ``n`` labels has a probability of at least ``1 / n``:
            no lower cutoff has an effect, and the default, that of the paper, has none with ten
            labels or fewer. ``"auto"`` is halfway between ``1 / n`` and 1: 0.75 with two labels,
            0.55 with ten.
        confidence
            Least probability of a confident answer, if the model's labels have terms of the Cell
            Ontology or parents (:attr:`ontology_term_ids_`, :attr:`label_parents_`).
        adapt
            Learn from the query first, as :meth:`adapt` does, if it is of another batch than the reference. The
            adapted model is then :attr:`adapted_`, which :func:`tosica.tl.attribute` and other functions take to
            explain the labels. This model stays as it is.
        probabilities
            Also write the probability of every label.
        batch_size
            Cells in a minibatch. The result does not depend on it.
        precision
            ``"bf16-mixed"`` multiplies matrices in bfloat16, with two to three correct digits. It
            is faster on GPUs. CPUs compute in single precision, which is faster there.
        key_added
            Replaces "tosica" in the keys below.
        copy
            Return an annotated copy, and do not change ``adata``.
        enable_progress_bar
            Show a progress bar after two seconds, if stderr is a terminal or a notebook. Elsewhere
            a line a minute is logged. ``tosica.settings`` switches both off for all functions.

        Returns
        -------
        ``None``, or the copy if ``copy=True``. Written are

        ``adata.obs["tosica_prediction"]``
            Label or "Unknown": categorical, the labels that occur in the reference's order. They
            have the type of the reference's labels, such as whole numbers or booleans, and the
            categorical is ordered if the reference's is, with "Unknown" last. Labels that are not
            text become text if a cell is "Unknown", since files cannot hold both in one column.
        ``adata.obs["tosica_probability"]``
            Calibrated probability of the best label, float32.
        ``adata.obs["tosica_prediction_ontology_term_id"]``
            If the model has terms (:attr:`ontology_term_ids_`): the Cell Ontology's identifier of
            the label, or "unknown" for "Unknown" and for labels without a term, as the schema of
            CELLxGENE wants them; categorical.
        ``adata.obs["tosica_confident"]``, ``adata.obs["tosica_confident_probability"]``
            If labels have terms or parents: the deepest label, or group of labels, whose
            probability (the sum over its labels) is at least ``confidence``, such as "T cell" where
            it is open which one; "Unknown" if only all labels together are that probable.
            Categorical and float32. With terms also
            ``adata.obs["tosica_confident_ontology_term_id"]``, and the colours in ``uns``.
        ``adata.obs["tosica_novelty"]``, ``adata.obs["tosica_novelty_pvalue"]``
            How unlike any label of the reference a cell is, larger for new types: the sum of its standardized
            distance from the nearest label and of the normal score of ``1 - probability``, divided by the root of
            two (Stouffer). And the share of the reference's cells that are as distant (a conformal p-value). For
            it, the distances of each label with five cells are first lowered until their lowest tenth is as low as
            the reference's, since a batch moves all cells. float32. :func:`tosica.tl.novelty` corrects each gene,
            too. They are not written by models of a MuData, of the original code, or saved before models kept
            what they need.
        ``adata.obsm["X_tosica"]``
            Attention of the class token to each gene set, ``(n_obs, n_gene_sets)`` float32.
        ``adata.obsm["tosica_probabilities"]``
            With ``probabilities=True``: a table with a column for each label, float32. A slash in a
            label becomes a bar in the column's name, because keys in files may not have slashes.
        ``adata.uns["tosica"]``
            Names and source of the gene sets, names of the labels, the label that the cells of each
            would have next and its mean probability in them (where it is the second best), cutoff,
            fingerprint of the model, its genes and how many the query lacks, version. If the model
            has several modalities, also the modality of each gene set (``"modalities"``). If it knows its reference,
            ``"batch_signal"``: which share of what all labels differ by from the reference two samples of the same
            cells would not have, 0 for a query of the reference's batch; :meth:`adapt` learns from others. If the
            model was adapted, ``"adapted"`` says to how many cells.
        ``adata.uns["tosica_prediction_colors"]``
            The reference's colours of the labels that occur.

        Raises
        ------
        TypeError
            If an argument is of the wrong type.
        RuntimeError
            If the model is not trained.
        ValueError
            If the query has under half of the model's genes, one of these twice, no cells, or
            values that are missing, infinite, negative, or neither counts nor log-normalised; if
            a backed query is a view or is to be copied; if the query has none of the model's
            modalities, or different cells in them.

        Warns
        -----
        UserWarning
            If the query has under 95 % of the model's genes, or cells with none of them expressed.
        """
        if probabilities:
            file_columns(self.labels, "the model")
        adata = self.adata if adata is None else adata
        # anndata would refuse this only after the work, when the result is written.
        if getattr(adata, "isbacked", False) and (copy or adata.is_view):
            what = (
                "a view of a backed AnnData"
                if adata.is_view
                else "a backed AnnData with copy=True"
            )
            raise ValueError(
                f"annotate cannot write to {what}: call adata.to_memory() first."
            )
        model = self
        if adapt:
            self.adapted_ = model = self.adapt(
                adata,
                layer=layer,
                use_raw=use_raw,
                enable_progress_bar=enable_progress_bar,
            )
        elif (
            self.training_.adaptation is not None and self.training_.adaptation.n_rounds
        ):
            logger.info(
                "annotate: the model is %s; for cells of another batch, take the model that it was made from",
                self.training_.adaptation,
            )
        result = model.infer(
            adata,
            layer=layer,
            use_raw=use_raw,
            confidence=confidence,
            batch_size=batch_size,
            precision=precision,
            enable_progress_bar=enable_progress_bar,
        )
        if (
            result.batch_signal is not None
            and result.batch_signal > LIMITS.batch_signal
        ):
            logger.info(
                "annotate: the query differs from the reference in what all labels share, as another batch does: "
                "model.annotate(query, adapt=True) learns from it"
            )
        warn_of_cutoff(cutoff, len(result.labels))
        target = adata.copy() if copy else adata
        if isinstance(target, AnnData):
            load_annotations(target)
        result.to_adata(
            target, cutoff=cutoff, probabilities=probabilities, key_added=key_added
        )
        return target if copy else None

    @validate_params()
    def predict(
        self,
        adata: AnnData | MuData | None = None,
        indices: Sequence[int] | slice | None = None,
        soft: bool = False,
        batch_size: int | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
    ) -> np.ndarray | pd.DataFrame:
        """Predict labels without writing anything.

        Parameters
        ----------
        adata
            The query; by default the reference.
        indices
            Positions of the cells to predict, a mask or a slice; by default all.
        soft
            Return probabilities instead of labels.
        batch_size, layer, use_raw
            As in :meth:`annotate`.

        Returns
        -------
        The most probable label of each cell, shape ``(n_obs,)``; with ``soft=True`` a table of
        calibrated probabilities, ``(n_obs, n_labels)``. Labels have the type of the reference's.
        There is no cutoff here.

        Raises
        ------
        RuntimeError, TypeError, ValueError
            As :meth:`annotate`.
        """
        result = self.infer(
            adata,
            "probabilities",
            indices,
            layer=layer,
            use_raw=use_raw,
            batch_size=batch_size,
        )
        if soft:
            return pd.DataFrame(
                result.probabilities,
                index=result.obs_names,
                columns=result.dtype.categories,
            )
        return result.dtype.categories.to_numpy()[result.codes]

    @validate_params(coverage=Fraction(zero=False, one=False))
    def predict_set(
        self,
        adata: AnnData | MuData | None = None,
        indices: Sequence[int] | slice | None = None,
        coverage: float = 0.95,
        batch_size: int | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        ontology: bool = False,
        allow_empty: bool = False,
    ) -> pd.DataFrame:
        """Predict a set of labels for each cell, with a chosen coverage.

        The sets come from split conformal prediction: a set has every label whose probability is at
        least a threshold, which the true labels of held-out cells of the reference exceed in a
        share ``coverage`` of the cells. The most probable label is always in the set. For cells
        like those of the reference, the share of sets with the true label is about ``coverage`` or
        higher, also if the probabilities are badly calibrated. It varies, because the held-out
        cells are a sample, and it is approximate, because the model is trained on them afterwards
        (not with ``refit=False``). The held-out cells do not include those that :meth:`train` left
        out for label errors.

        There is no guarantee for cells of another batch, and none for cells of a type that the
        reference lacks. :meth:`recalibrate` takes labelled cells of the batch in the place of the
        held-out cells, and the coverage then holds for this batch.

        Parameters
        ----------
        adata, indices
            As in :meth:`predict`.
        coverage
            Share of the cells whose set has the true label.
        batch_size, layer, use_raw
            As in :meth:`annotate`.
        ontology
            Report each set as one term of the Cell Ontology. Its labels are those whose term is
            this one or a kind of it. They are the labels of the set and maybe others, so the
            coverage is at least the same. Of all such terms it is the one with the fewest labels,
            then the most specific. The model needs terms, see :attr:`ontology_term_ids_`.
        allow_empty
            Leave the set empty if even the most probable label is below the threshold. These are
            the exact sets of split conformal prediction: their coverage is no higher than
            ``coverage``, and where the accuracy is higher, some must be empty. By default such a
            set has the most probable label, so the coverage can only be higher.

        Returns
        -------
        Table ``(n_obs, n_labels)``, bool: whether a label, a column named in the type of the
        reference's labels, is in a cell's set. A set of several
        labels means that the model cannot decide. The log says how many sets are empty, or would
        be.

        With ``ontology=True`` a table with the columns ``ontology_term_id`` and ``ontology_label``
        (the term and its name), ``n_labels``, and ``labels`` (those that the term covers, joined by
        ``" || "``). The term is ``"unknown"`` if the set has a label without a term, or is empty;
        ``labels`` then are those of the set itself.

        Raises
        ------
        RuntimeError, TypeError, ValueError
            As :meth:`annotate`; if ``coverage`` is out of range or cannot be promised with so few
            held-out cells, or the model was not calibrated; if ``ontology=True`` and no label of
            the model has a term.

        References
        ----------
        Sadinle, Lei and Wasserman, *Least ambiguous set-valued classifiers with bounded error
        levels*, J. Am. Stat. Assoc. 114, 223 (2019).
        """
        if ontology and not self.ontology_term_ids_:
            raise ValueError(
                "no label of the model has a term: assign a dict of them to model.ontology_term_ids_."
            )
        held_out = self.training_.held_out_probabilities
        if held_out is None:
            self._source(adata)
            raise ValueError(
                "The model has no held-out cells to calibrate label sets by: call recalibrate with labeled cells, or "
                "make a new model of a reference with several cells of a label, and train it once with calibrate=True."
            )
        result = self.infer(
            adata,
            "probabilities",
            indices,
            layer=layer,
            use_raw=use_raw,
            batch_size=batch_size,
        )
        choice = self.module.modality_choices.index(result.present)
        threshold = conformal_threshold(held_out[choice], coverage)
        assert result.probabilities is not None
        inside, n_empty = label_sets(
            result.probabilities, threshold, allow_empty=allow_empty
        )
        if n_empty:
            best = "only their best label in the set, which allow_empty=True would leave empty"
            logger.info(
                "predict_set: %s of %s cells have %s: even their best label is less probable than "
                "the true labels of most cells that the sets are calibrated on",
                *(
                    format_thousands(n_empty),
                    format_thousands(len(inside)),
                    "an empty set" if allow_empty else best,
                ),
            )
        sets = pd.DataFrame(
            inside, index=result.obs_names, columns=result.dtype.categories
        )
        return (
            sets_as_terms(sets, self.labels, self.ontology_term_ids_)
            if ontology
            else sets
        )

    def get_latent_representation(
        self,
        adata: AnnData | MuData | None = None,
        indices: Sequence[int] | slice | None = None,
        batch_size: int | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
    ) -> np.ndarray:
        """Get the class token, from which the network predicts labels.

        Parameters
        ----------
        adata, indices, batch_size, layer, use_raw
            As in :meth:`predict`.

        Returns
        -------
        Shape ``(n_obs, embed_dim)``, float32.
        """
        latent = self.infer(
            adata,
            "latent",
            indices,
            layer=layer,
            use_raw=use_raw,
            batch_size=batch_size,
        ).latent
        assert latent is not None
        return latent

    @validate_params()
    def get_attention(
        self,
        adata: AnnData | MuData | None = None,
        indices: Sequence[int] | slice | None = None,
        batch_size: int | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        unannotated: bool = False,
    ) -> pd.DataFrame:
        """Get the attention of the class token to each gene set (attention rollout).

        Parameters
        ----------
        adata, indices, batch_size, layer, use_raw
            As in :meth:`predict`.
        unannotated
            Also return the unannotated tokens, which have every gene, as the last columns.

        Returns
        -------
        Table ``(n_obs, n_gene_sets)``, float32. With unannotated tokens and the class token's
        attention to itself, each row sums to one.
        """
        want = "unannotated" if unannotated else "attention"
        result = self.infer(
            adata, want, indices, layer=layer, use_raw=use_raw, batch_size=batch_size
        )
        return pd.DataFrame(
            result.attention, index=result.obs_names, columns=result.gene_sets
        )

    @validate_params(layer=LAYER)
    def iter_batches(
        self,
        adata: AnnData | MuData | None = None,
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
        statistics, device = self.training_.novelty_statistics, self.module.device
        return iter(
            QueryLoader(
                source,
                self.modalities,
                device,
                batch_size=batch_size,
                statistics=statistics,
            )
        )

    def _check_trained(self) -> None:
        """Raise a ``RuntimeError`` if the model is not trained."""
        self._check_if_trained(
            warn=False,
            message="The model is not trained: call model.train() first, or load a trained one.",
        )

    @property
    def _hierarchy(self) -> LabelHierarchy | None:
        """The groups above the labels; ``None`` if no label has a term or a parent."""
        if not (self._term_of_label or self._parent_of_label):
            return None
        return LabelHierarchy(
            self.labels, self._term_of_label or {}, self._parent_of_label
        )

    @property
    def fingerprint(self) -> str:
        """Sixteen characters that tell this model from any other.

        They depend on the weights and on the names of labels, genes and gene sets.
        """
        hasher, tokens = hashlib.sha256(), self.tokens
        for name, tensor in sorted(self.module.state_dict().items()):
            hasher.update(name.encode())
            hasher.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        for names in (
            self.labels,
            tokens.var_names,
            tokens.names[: len(tokens.names) - tokens.n_unannotated],
        ):
            # A name may have any character but these.
            hasher.update("\0".join([*map(str, names), ""]).encode() + b"\1")
        return hasher.hexdigest()[:16]

    def _source(
        self,
        adata: AnnData | MuData | None,
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
        (ANNDATA if self.modalities[0].name is None else ANY_CELLS).check(
            "adata", adata
        )
        source = ExpressionSource(adata, layer, use_raw)
        if indices is None:
            return source
        try:
            chosen = np.arange(adata.n_obs)[
                indices if isinstance(indices, slice) else np.asarray(indices)
            ]
        except IndexError:
            chosen = None
        if chosen is None or chosen.ndim != 1:
            raise ValueError(
                f"indices must be positions of the {adata.n_obs} cells, a slice, or a boolean for each."
            )
        return source[chosen]


def _novelty_pvalues(
    distance: np.ndarray,
    nearest: np.ndarray,
    whole: tuple[np.ndarray, np.ndarray] | None,
    statistics: NoveltyStatistics,
) -> np.ndarray:
    """Compute p-values of distances, without what each label's cells share.

    What they share is found in the cells themselves, or in the distances and nearest labels of a ``whole`` query.
    """
    scored, of_label = (distance, nearest) if whole is None else whole
    excess = label_excess(scored, of_label, statistics.cells, statistics.cells_labels)
    return pvalues(distance - excess[nearest], statistics.cells).astype(np.float32)
