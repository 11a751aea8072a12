"""Annotate a query: labels, probabilities, label sets, attention and class tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, get_args

import pandas as pd
from anndata import AnnData

from tosica._limits import LIMITS
from tosica._obs import check_target, file_columns
from tosica._probabilities import conformal_threshold, label_sets
from tosica._settings import logger
from tosica._text import format_thousands, in_python
from tosica._validate import FileKey, Fraction, OneOf, validate_params
from tosica.data import load_annotations
from tosica.model._annotation_result import (
    CONFIDENCE,
    CUTOFF,
    DEFAULT_CONFIDENCE,
    DEFAULT_CUTOFF,
    check_key_added,
    sets_as_terms,
    warn_of_cutoff,
)
from tosica.model._inference import InferenceMixin, Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from tosica._types import AnnOrMuData
    from tosica.model._annotation_result import Cutoff


class AnnotationMixin(InferenceMixin):
    """Labels, label sets, attention and class tokens of the cells of a query."""

    if TYPE_CHECKING:
        adapt: Callable[..., Self]
        subset: Callable[..., Self]

    adapted_: Self | None = None
    """The model that the last ``annotate(query, adapt=True)`` made, by which it labeled the query."""

    @validate_params(
        cutoff=CUTOFF,
        key_added=FileKey(),
        confidence=CONFIDENCE,
        precision=OneOf(*get_args(Precision)),
    )
    def annotate(
        self,
        adata: AnnOrMuData | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        labels: str | Iterable[str] | None = None,
        cutoff: Cutoff = DEFAULT_CUTOFF,
        confidence: float = DEFAULT_CONFIDENCE,
        adapt: bool = False,
        probabilities: bool = False,
        batch_size: int | None = None,
        precision: Precision = "32-true",
        key_added: str = "tosica",
        copy: bool = False,
        enable_progress_bar: bool = True,
    ) -> AnnOrMuData | None:
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
        labels
            The only labels that can occur here, two or more, or groups of labels, as :meth:`subset` takes them.
            Probabilities are those of these labels alone. By default all labels of the model.
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
        ``adata.obs["tosica_probability_before"]``
            If the model was adapted: probability of the best label before, float32. Adapting raises the
            probability of types that the reference lacks, too, so that labels that were improbable before are
            to be checked.
        ``adata.obs["tosica_prediction_KEY"]``, ``adata.obs["tosica_probability_KEY"]``
            If the reference has labels in several columns: the group of the label in each broader column ``KEY``,
            and its probability, the sum over its labels. The label is below the most probable group of each
            level, so that levels never contradict each other. One cutoff holds for all levels. Categorical and
            float32.
        ``adata.obs["tosica_prediction_ontology_term_id"]``
            If the model has terms (:attr:`ontology_term_ids_`): the Cell Ontology's identifier of
            the label, or "unknown" for "Unknown" and for labels without a term, as the schema of
            CELLxGENE wants them; categorical.
        ``adata.obs["tosica_confident"]``, ``adata.obs["tosica_confident_probability"]``
            If labels have terms or parents: the deepest label, or group of labels, whose
            probability (the sum over its labels) is at least ``confidence``, such as "T cell" where
            it is open which one; "Unknown" if only all labels together are that probable.
            Categorical and float32. With terms also
            ``adata.obs["tosica_confident_ontology_term_id"]``, and the colors in ``uns``.
        ``adata.obs["tosica_novelty"]``, ``adata.obs["tosica_novelty_pvalue"]``
            How unlike any label of the reference a cell is, larger for new types: the sum of its standardized
            distance from the nearest label and of the normal score of ``1 - probability``, divided by the root of
            two (Stouffer). And the share of the reference's cells that are as distant for their label (a conformal
            p-value). A batch moves all cells: for the p-value, the distances of each label with five cells are
            first lowered until their lowest tenth is as low as the reference's, and then, in another batch,
            divided by how much further they spread in most labels, if they do. float32.
            :func:`tosica.tl.novelty` corrects each gene, too. They are not written by models of a MuData, of the
            original code, or saved before models kept what they need.
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
            ``"genes_pvalue"``: how often permuted genes are as like the reference's, above 0.05 if genes have names of
            other genes; ``"batch_signal"``: which share of what all labels differ by from the reference two samples of
            the same cells would not have, 0 for a query of the reference's batch; :meth:`adapt` learns from others;
            ``"likeness"``: the correlation of what tells the labels apart in query and reference, below 0.7 for another
            tissue or species, or nuclei beside cells; and, if more than 5 % of the genes are missing,
            ``"label_changes"``: the share of each label's cells that would get another label for it, by cells drawn
            around the reference's means. If the model was adapted, ``"adapted"`` says to how many cells.
            ``"levels"`` are the broader columns of labels, if there are any. If labels were left out by ``labels`` or
            :meth:`subset`, ``"left_out_labels"`` names them, and ``"subset_of"`` is the fingerprint of the whole
            model.
        ``adata.uns["tosica_prediction_colors"]``
            The reference's colors of the labels that occur.

        Raises
        ------
        TypeError
            If an argument is of the wrong type.
        KeyError
            If the model has no such label.
        RuntimeError
            If the model is not trained.
        ValueError
            If ``labels`` are fewer than two, or one occurs twice; if the query has under half of the model's
            genes, one of these twice, no cells, or values that are missing, infinite, negative, or neither counts
            nor log-normalized; if a backed query is a view or is to be copied; if it has something else than an
            annotation under ``key_added``, as ``"pca"`` of scanpy; if the query has none of the model's
            modalities, or different cells in them.

        Warns
        -----
        UserWarning
            If the query has under 95 % of the model's genes, or cells with none of them expressed.
        """
        model = self if labels is None else self.subset(labels)
        if probabilities:
            file_columns(model.labels, "the model")
        adata = self.adata if adata is None else adata
        check_target(adata, "annotate", copy=copy)
        if adata is not None:
            check_key_added(key_added, adata.uns, adata.obs, adata.obsm)
        adaptation = model.training_.adaptation
        if adapt:
            # A subset does not know its reference.
            self._refuse_reference(adata)
            model = model.adapt(
                adata,
                layer=layer,
                use_raw=use_raw,
                enable_progress_bar=enable_progress_bar,
            )
            self.adapted_ = model
        elif adaptation is not None and adaptation.n_rounds:
            logger.info(
                "annotate: the model is %s; for cells of another batch, take the model that it was made from",
                adaptation,
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
            # Of another tissue, a model learns wrong labels.
            and (result.likeness is None or result.likeness >= LIMITS.likeness)
        ):
            logger.info(
                "annotate: the query differs from the reference in what all labels share, as another batch does: "
                "%s learns from it",
                in_python(
                    "model.annotate(query, adapt=True)", "tosica annotate --adapt"
                ),
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
        adata: AnnOrMuData | None = None,
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
        adata: AnnOrMuData | None = None,
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
        reference lacks. :meth:`recalibrate` takes labeled cells of the batch in the place of the
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
            content = (
                "their set has only the best one; allow_empty=True leaves it empty"
            )
            if allow_empty:
                content = "their set is empty"
            logger.info(
                "predict_set: in %s of %s cells no label is as probable as coverage=%g asks for, and %s",
                format_thousands(n_empty),
                format_thousands(len(inside)),
                coverage,
                content,
            )
        sets = pd.DataFrame(
            inside, index=result.obs_names, columns=result.dtype.categories
        )
        if ontology:
            return sets_as_terms(sets, self.labels, self.ontology_term_ids_)
        return sets

    def get_latent_representation(
        self,
        adata: AnnOrMuData | None = None,
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
        adata: AnnOrMuData | None = None,
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
        result = self.infer(
            adata,
            "attention",
            indices,
            layer=layer,
            use_raw=use_raw,
            unannotated=unannotated,
            batch_size=batch_size,
        )
        return pd.DataFrame(
            result.attention, index=result.obs_names, columns=result.gene_sets
        )
