"""Annotate a query: labels, probabilities, label sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from anndata import AnnData

from tosica._calibration import conformal_threshold, label_sets
from tosica._logging import format_thousands, logger
from tosica._validation import check_flags, check_fraction, check_key_added, file_columns
from tosica.data import load_annotations
from tosica.linear import pvalues
from tosica.model._cutoff import DEFAULT_CUTOFF, check_cutoff, resolve_cutoff, warn_of_cutoff
from tosica.model._inference_mixin import InferenceMixin
from tosica.model._labels_field import LabelsField
from tosica.model._modalities import is_joint
from tosica.model._ontology_mixin import OntologyMixin
from tosica.model._write_annotation import Annotation, AnnotationNames, write_annotation
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mudata import MuData

    from tosica.model._cutoff import Cutoff
    from tosica.model._inference_mixin import Precision


class AnnotationMixin(OntologyMixin, InferenceMixin):
    """Labels, probabilities and label sets of the cells of a query."""

    def annotate(
        self,
        adata: AnnData | MuData | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        cutoff: Cutoff = DEFAULT_CUTOFF,
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
        probabilities
            Also write the probability of every label.
        batch_size
            Cells in a minibatch. The result does not depend on it.
        precision
            ``"bf16-mixed"`` multiplies matrices in bfloat16, with two to three correct digits. It
            is faster on GPUs and on CPUs that multiply bfloat16 in hardware. Other CPUs compute in
            single precision instead, which is faster there.
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
        ``adata.obs["tosica_novelty"]``, ``adata.obs["tosica_novelty_pvalue"]``
            How unlike any label of the reference a cell is: about standard normal for cells like
            those of the reference, larger for others; and the share of the reference's cells that
            are as unlike (a conformal p-value), float32. Both take each cell by itself, so cells of
            another batch or chemistry are often unlike as well: :func:`tosica.tl.novelty` corrects
            for what the whole query has in common. They are not written by models of a MuData, of
            the original code, or saved before models kept what they need.
        ``adata.obsm["X_tosica"]``
            Attention of the class token to each gene set, ``(n_obs, n_gene_sets)`` float32.
        ``adata.obsm["tosica_probabilities"]``
            With ``probabilities=True``: a table with a column for each label, float32. A slash in a
            label becomes a bar in the column's name, because keys in files may not have slashes.
        ``adata.uns["tosica"]``
            Names of the gene sets and labels, cutoff, fingerprint of the model, version. If the
            model has several modalities, also the modality of each gene set (``"modalities"``).
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
        check_cutoff(cutoff)
        check_flags(probabilities=probabilities, copy=copy, enable_progress_bar=enable_progress_bar)
        check_key_added(key_added)
        if probabilities:
            file_columns(self.labels, "the model")
        adata = self._query(adata)
        # anndata would refuse this only after the work, when the result is written.
        if adata.isbacked and (copy or adata.is_view):
            what = (
                "a view of a backed AnnData" if adata.is_view else "a backed AnnData with copy=True"
            )
            raise ValueError(f"annotate cannot write to {what}: call adata.to_memory() first.")
        found, names = self._annotation(
            adata,
            layer=layer,
            use_raw=use_raw,
            cutoff=cutoff,
            probabilities=probabilities,
            batch_size=batch_size,
            precision=precision,
            key_added=key_added,
            enable_progress_bar=enable_progress_bar,
        )
        warn_of_cutoff(cutoff, len(self.labels))
        result = adata.copy() if copy else adata
        if isinstance(result, AnnData):
            load_annotations(result)
        write_annotation(result, found, names)
        return result if copy else None

    def _annotation(
        self,
        adata: AnnData | MuData,
        *,
        layer: str | Mapping[str, str] | None,
        use_raw: bool,
        cutoff: Cutoff,
        probabilities: bool,
        batch_size: int | None,
        precision: Precision,
        key_added: str,
        enable_progress_bar: bool,
        sample: AnnData | None = None,
    ) -> tuple[Annotation, AnnotationNames]:
        """Annotate cells without writing anything; what the result stands for comes with it.

        If ``adata`` is a part of a query, ``sample`` has cells from all over that query, by which
        the scale of the expression is recognized.
        """
        novelty = self.novelty_statistics_
        found = self._infer(
            adata,
            ("probabilities", "attention", *(("novelty",) if novelty is not None else ())),
            layer=layer,
            use_raw=use_raw,
            batch_size=batch_size,
            precision=precision,
            sample=sample,
            bar="annotate" if enable_progress_bar else None,
        )
        every = found["probabilities"]
        best = every.argmax(1)
        scored: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
        if novelty is not None:
            scores = found["novelty"][:, 0]
            scored = (scores, pvalues(scores, novelty.cells))
        annotation = Annotation(
            best.astype(np.int32),
            every[np.arange(len(best)), best].astype(np.float32),
            found["attention"],
            every if probabilities else None,
            *scored,
        )
        modalities, tokens, columns = self._modalities, self._tokens, found["tokens"]
        names = AnnotationNames(
            labels=self.labels,
            colors=self._state(REGISTRY_KEYS.LABELS_KEY)[LabelsField.COLORS_KEY],
            gene_sets=[tokens.names[i] for i in columns],
            modalities=[str(modalities[tokens.modality[i]].name) for i in columns]
            if is_joint(self.registry_)
            else None,
            cutoff=resolve_cutoff(cutoff, len(self.labels)),
            fingerprint=self.fingerprint,
            key_added=key_added,
            term_of_label=self.ontology_term_ids_,
            label_type=self._label_type,
        )
        return annotation, names

    def predict(
        self,
        adata: AnnData | MuData | None = None,
        indices: Sequence[int] | None = None,
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
            Positions of the cells to predict; by default all.
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
        check_flags(soft=soft)
        adata = self._query(adata, indices)
        found = self._infer(
            adata, ("probabilities",), layer=layer, use_raw=use_raw, batch_size=batch_size
        )["probabilities"]
        if soft:
            return pd.DataFrame(found, index=adata.obs_names, columns=self._typed_labels)
        return self._typed_labels[found.argmax(1)]

    def predict_set(
        self,
        adata: AnnData | MuData | None = None,
        indices: Sequence[int] | None = None,
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
        check_fraction("coverage", coverage, zero=False, one=False)
        check_flags(ontology=ontology, allow_empty=allow_empty)
        if ontology and not self.ontology_term_ids_:
            raise ValueError(
                "ontology=True was given, but no label of the model has a term: assign a dict of "
                "label and identifier to model.ontology_term_ids_."
            )
        adata = self._query(adata, indices)
        if self.held_out_probabilities_ is None:
            raise ValueError(
                "The model has no held-out cells to calibrate label sets by: make a new model of a "
                "reference with several cells of a label, and train it once with calibrate=True, "
                "which is the default."
            )
        found = self._infer(
            adata, ("probabilities",), layer=layer, use_raw=use_raw, batch_size=batch_size
        )
        choice = self.module.modality_choices.index(found["modalities"])
        threshold = conformal_threshold(self.held_out_probabilities_[choice], coverage)
        inside, n_empty = label_sets(found["probabilities"], threshold, allow_empty=allow_empty)
        if n_empty:
            logger.info(
                "predict_set: %s of %s cells have %s: even their best label is less probable than "
                "the true labels of most cells that the sets are calibrated on",
                format_thousands(n_empty),
                format_thousands(len(inside)),
                "an empty set"
                if allow_empty
                else "only their best label in the set, which allow_empty=True would leave empty",
            )
        sets = pd.DataFrame(inside, index=adata.obs_names, columns=self._typed_labels)
        return self._sets_as_terms(sets) if ontology else sets
