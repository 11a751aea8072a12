"""Annotate a query, and give what the network sees in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from anndata import AnnData
from mudata import MuData

from tosica._calibration import conformal_threshold
from tosica._validation import check_count, check_key_added
from tosica.model._fields import LabelsField
from tosica.model._modalities import is_joint
from tosica.model._query import Query
from tosica.model._registry_mixin import RegistryMixin
from tosica.model._write_annotation import write_annotation
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tosica.model._query import Minibatch

Precision = Literal["32-true", "bf16-mixed"]
# Fits a processor's cache, respectively fills an accelerator.
_BATCH_SIZE_CPU, _BATCH_SIZE_ACCELERATOR = 64, 512


class AnnotationMixin(RegistryMixin):
    """Labels, probabilities, latent space and attention of the cells of a query."""

    def annotate(
        self,
        adata: AnnData | MuData | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
        cutoff: float = 0.1,
        probabilities: bool = False,
        batch_size: int | None = None,
        precision: Precision = "32-true",
        key_added: str = "tosica",
        copy: bool = False,
    ) -> AnnData | MuData | None:
        """Label the cells of a query, with calibrated probabilities and attention to gene sets.

        What a label rests on is said by :func:`tosica.tl.attribute`.

        Genes are matched by name and put in order. Missing ones are zero to the network, and the
        linear branch reads what is expected of them given the others. Counts are normalised as the
        model was trained; log-normalised expression is used as it is.

        A model of several modalities takes a MuData with some of them, under the reference's names,
        or an AnnData, which is taken as the modality that most of its genes belong to. Gene sets of
        a modality that the query lacks get no attention and no column in the attention.

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
            Cells whose best label is less probable than this are called "Unknown".
        probabilities
            Also write the probability of every label.
        batch_size
            Cells in a minibatch. Has no influence on the result.
        precision
            ``"bf16-mixed"`` multiplies matrices in bfloat16: faster on a GPU and on processors that
            do so in hardware, slower on others, and good to two or three digits.
        key_added
            Replaces "tosica" in the keys below.
        copy
            Return a changed copy and leave ``adata`` as it is.

        Returns
        -------
        ``None``, or the copy if ``copy=True``. Written are

        ``adata.obs["tosica_prediction"]``
            Label or "Unknown": categorical, the labels that occur in the reference's order.
        ``adata.obs["tosica_probability"]``
            Calibrated probability of the best label, float32.
        ``adata.obsm["X_tosica"]``
            Attention of the class token to each gene set, ``(n_obs, n_gene_sets)`` float32.
        ``adata.obsm["tosica_probabilities"]``
            If asked for: a table with one column a label, float32. A slash in a label is a bar in
            its column's name, because no key in a file may hold one.
        ``adata.uns["tosica"]``
            Names of the gene sets and labels, cutoff, fingerprint of the model, version; of a model
            of several modalities also the modality of each gene set (``"modalities"``).
        ``adata.uns["tosica_prediction_colors"]``
            The reference's colours of the labels that occur.

        Raises
        ------
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
        if not 0 <= cutoff <= 1:
            raise ValueError(f"cutoff must lie between 0 and 1, not {cutoff}.")
        check_key_added(key_added)
        adata = self._query(adata)
        # Before the work, not after it: anndata would refuse only when the result is written.
        if adata.isbacked and (copy or adata.is_view):
            what = (
                "a view of a backed AnnData" if adata.is_view else "a backed AnnData with copy=True"
            )
            raise ValueError(f"annotate cannot write to {what}: call adata.to_memory() first.")
        found = self._infer(
            adata,
            ("probabilities", "attention"),
            layer=layer,
            use_raw=use_raw,
            batch_size=batch_size,
            precision=precision,
        )
        modalities, tokens, columns = self._modalities, self._tokens, found["tokens"]
        result = adata.copy() if copy else adata
        write_annotation(
            result,
            found["probabilities"],
            found["attention"],
            labels=self.labels,
            colors=self._state(REGISTRY_KEYS.LABELS_KEY)[LabelsField.COLORS_KEY],
            gene_sets=[tokens.names[i] for i in columns],
            modalities=[str(modalities[tokens.modality[i]].name) for i in columns]
            if is_joint(self.registry_)
            else None,
            cutoff=cutoff,
            all_probabilities=probabilities,
            fingerprint=self.fingerprint,
            key_added=key_added,
        )
        return result if copy else None

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
        calibrated probabilities, ``(n_obs, n_labels)``. There is no cutoff here.

        Raises
        ------
        RuntimeError, ValueError
            As :meth:`annotate`.
        """
        adata = self._query(adata, indices)
        found = self._infer(
            adata, ("probabilities",), layer=layer, use_raw=use_raw, batch_size=batch_size
        )["probabilities"]
        if soft:
            return pd.DataFrame(found, index=adata.obs_names, columns=self.labels)
        return np.array(self.labels, dtype=object)[found.argmax(1)]

    def predict_set(
        self,
        adata: AnnData | MuData | None = None,
        indices: Sequence[int] | None = None,
        coverage: float = 0.95,
        batch_size: int | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
    ) -> pd.DataFrame:
        """Give each cell the labels that it may have, so that the right one is rarely missed.

        A cell's set holds every label that is about as probable as the right label was in nearly
        all of the reference's held-out cells (split conformal prediction). Of cells like those of
        the reference, the share whose set holds the right label is about ``coverage``, however well
        the model is calibrated: on average over references, since the held-out cells are a sample,
        and nearly, since the model learns them afterwards (``refit=False`` keeps it from that).
        Nothing is promised for cells of another batch, and a cell of a type that the reference
        lacks has no right label. Cells that :meth:`train` left out for their labels are not among
        the held-out cells.

        Parameters
        ----------
        adata, indices
            As in :meth:`predict`.
        coverage
            Share of the cells whose set is to hold the right label.
        batch_size, layer, use_raw
            As in :meth:`annotate`.

        Returns
        -------
        Table ``(n_obs, n_labels)``, bool: whether a label is in a cell's set. Several labels mean
        that the model cannot decide. No label means that the best one is less probable than the
        right ones mostly are, as must happen where the model is right more often than ``coverage``.

        Raises
        ------
        RuntimeError, ValueError
            As :meth:`annotate`; if ``coverage`` is out of range or cannot be promised with so few
            held-out cells, or the model was not calibrated.

        References
        ----------
        Sadinle, Lei and Wasserman, *Least ambiguous set-valued classifiers with bounded error
        levels*, J. Am. Stat. Assoc. 114, 223 (2019).
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must lie between 0 and 1, not {coverage}.")
        adata = self._query(adata, indices)
        if self.held_out_probabilities_ is None:
            raise ValueError(
                "The model has no held-out cells to promise a coverage by: make a new model of a "
                "reference with several cells of a label, and train it once with calibrate=True, "
                "which is the default."
            )
        found = self._infer(
            adata, ("probabilities",), layer=layer, use_raw=use_raw, batch_size=batch_size
        )
        choice = self.module.modality_choices.index(found["modalities"])
        threshold = conformal_threshold(self.held_out_probabilities_[choice], coverage)
        inside = found["probabilities"] >= threshold
        return pd.DataFrame(inside, index=adata.obs_names, columns=self.labels)

    def get_latent_representation(
        self,
        adata: AnnData | MuData | None = None,
        indices: Sequence[int] | None = None,
        batch_size: int | None = None,
        *,
        layer: str | Mapping[str, str] | None = None,
        use_raw: bool = False,
    ) -> np.ndarray:
        """Get the class token that the labels are read from.

        Parameters
        ----------
        adata, indices, batch_size, layer, use_raw
            As in :meth:`predict`.

        Returns
        -------
        Shape ``(n_obs, embed_dim)``, float32.
        """
        adata = self._query(adata, indices)
        return self._infer(adata, ("latent",), layer=layer, use_raw=use_raw, batch_size=batch_size)[
            "latent"
        ]

    def get_attention(
        self,
        adata: AnnData | MuData | None = None,
        indices: Sequence[int] | None = None,
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
            Also return the fully connected tokens, last.

        Returns
        -------
        Table ``(n_obs, n_gene_sets)``, float32. With unannotated tokens and the class token's
        attention to itself, each row sums to one.
        """
        adata = self._query(adata, indices)
        found = self._infer(
            adata,
            ("attention",),
            layer=layer,
            use_raw=use_raw,
            batch_size=batch_size,
            unannotated=unannotated,
        )
        names = np.array(self._tokens.names, dtype=object)[found["tokens"]]
        return pd.DataFrame(found["attention"], index=adata.obs_names, columns=names)

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
        RuntimeError, ValueError
            As :meth:`annotate`.

        Examples
        --------
        >>> import scanpy as sc
        >>> import tosica
        >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> adata.obs_names_make_unique()
        >>> tosica.pp.build_mask(adata, max_gene_sets=20)
        >>> tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
        >>> model = tosica.TOSICA(adata, embed_dim=16)
        >>> model.train(max_epochs=2, enable_progress_bar=False)
        >>> [(batch.start, tuple(batch.x.shape)) for batch in model.iter_batches(batch_size=500)]
        [(0, (500, 765)), (500, (200, 765))]
        """
        adata = self._query(adata)
        batch_size = self._annotation_batch_size(batch_size)
        query = Query(adata, self._modalities, layer=layer, use_raw=use_raw)
        return query.batches(batch_size, self.module.device)

    def _query(
        self, adata: AnnData | MuData | None, indices: Sequence[int] | None = None
    ) -> AnnData | MuData:
        self._check_if_trained(
            warn=False,
            message="The model is not trained: call model.train() first, or load a trained one.",
        )
        if adata is None:
            adata = self.adata
        if adata is None:
            raise ValueError("The model was loaded without a reference: pass the query as adata.")
        joint = is_joint(self.registry_)
        if isinstance(adata, MuData) and not joint:
            raise TypeError(
                "Expected an AnnData, got MuData: the model's reference was an AnnData, so pass "
                f"one modality, e.g. mdata[{next(iter(adata.mod), 'rna')!r}]."
            )
        if not isinstance(adata, AnnData | MuData):
            expected = "a MuData or an AnnData" if joint else "an AnnData"
            raise TypeError(f"Expected {expected}, got {type(adata).__name__}.")
        return adata if indices is None else adata[indices]

    @torch.inference_mode()
    def _infer(
        self,
        adata: AnnData | MuData,
        wanted: tuple[str, ...],
        *,
        layer: str | Mapping[str, str] | None,
        use_raw: bool,
        batch_size: int | None,
        precision: Precision = "32-true",
        unannotated: bool = False,
    ) -> dict[str, Any]:
        """Run the network over all cells once and collect the outputs named in ``wanted``.

        The result also has ``"tokens"``, the positions of the attention's columns among the tokens,
        and ``"modalities"``, the positions of the modalities that the query has.
        """
        if precision not in get_args(Precision):
            known = " or ".join(map(repr, get_args(Precision)))
            raise ValueError(f"precision must be {known}, not {precision!r}.")
        batch_size = self._annotation_batch_size(batch_size)
        query = Query(adata, self._modalities, layer=layer, use_raw=use_raw)
        tokens = self._tokens
        device = self.module.device
        bfloat16 = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed")
        present = tokens.tokens_of(query.modalities)
        # Gene sets come before tokens that are none.
        n_sets = len(present) if unannotated else int((present < tokens.n_gene_sets).sum())
        found: dict[str, Any] = {"tokens": present[:n_sets], "modalities": query.modalities}
        for start, x, measured in query.batches(batch_size, device):
            with bfloat16:
                output = self.module.annotate(
                    x,
                    attention="attention" in wanted,
                    modalities=query.modalities,
                    measured=measured,
                )
            values = {
                "latent": output.latent,
                "probabilities": self.module.probabilities(output.logits, query.modalities),
            }
            if output.attention is not None:
                values["attention"] = output.attention[:, :n_sets]
            for name in wanted:
                part = values[name].float().cpu().numpy()
                if not np.isfinite(part).all():
                    raise ValueError(
                        f"The model gives cells no {name} that are numbers (NaN or infinity), so "
                        "that its weights are spoilt, as by a training that diverged: train a new "
                        "model, with a smaller plan_kwargs={'lr': ...} if it was raised."
                    )
                if name not in found:
                    found[name] = np.empty((adata.n_obs, part.shape[1]), dtype=np.float32)
                found[name][start : start + len(part)] = part
        return found

    def _annotation_batch_size(self, batch_size: int | None) -> int:
        if batch_size is None:
            on_cpu = self.module.device.type == "cpu"
            return _BATCH_SIZE_CPU if on_cpu else _BATCH_SIZE_ACCELERATOR
        check_count("batch_size", batch_size)
        return batch_size
