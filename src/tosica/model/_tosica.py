"""The model as a user meets it: set up a reference, train, annotate a query, look inside."""

from __future__ import annotations

import hashlib
import math
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
import rich.pretty  # noqa: F401 # scvi-tools prints with it, but leaves its import to chance
import scipy.sparse as sp
import torch
from anndata import AnnData
from mudata import MuData
from scvi.data import AnnDataManager, AnnDataManagerValidationCheck
from scvi.data.fields import CategoricalObsField
from scvi.model.base import BaseModelClass
from scvi.train import TrainRunner

from tosica.module import REGISTRY_KEYS, TOSICAModule
from tosica.pp._rows import Rows
from tosica.pp._scale import Scale

from ._calibration import fit_temperature
from ._compile import compiled
from ._fields import ExpressionField, LabelsField, MaskField
from ._joint_rows import JointRows
from ._legacy import load_legacy
from ._modalities import Modality, TokenAxis, field_keys, is_joint, read_modalities
from ._network_weights import pair_weights
from ._read_query import Query
from ._reference_data import ReferenceData
from ._save_load import (
    ATTRIBUTES,
    STATE,
    read_model,
    restore_history,
    restore_registry,
    write_model,
)
from ._setup_mudata import check_modalities, codes_in_order, log_modalities, mudata_fields
from ._training_plan import KeepBest, TrainingPlan
from ._write_annotation import write_annotation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Precision = Literal["32-true", "bf16-mixed"]
# Training length: draws of a cell, counted over all epochs. Enough steps for a small reference,
# and fewer passes the larger it is.
_MIN_DRAWS = 32_000
_DRAWS_PER_ROOT = 1_200
# Learning the held-out cells: as many epochs as this share of those before, and a learning rate of
# this share, so that what was learnt is refined and the calibration stays true.
_REFIT_EPOCHS, _REFIT_LR = 0.2, 0.3
# Fits a processor's cache, respectively fills an accelerator.
_BATCH_SIZE_CPU, _BATCH_SIZE_ACCELERATOR = 64, 512


class TOSICA(BaseModelClass):
    """Annotate cells with a Transformer whose tokens are gene sets (Chen et al., 2023).

    A reference with labels trains the model; on a query it gives each cell a label, a probability
    and the attention that its class token pays to every gene set.

    Parameters
    ----------
    adata
        Reference that :meth:`setup_anndata` or :meth:`setup_mudata` has been called on.
    registry
        Registry of a reference instead of the reference itself, as :meth:`load` uses it.
    embed_dim
        Width of a token.
    n_heads
        Number of attention heads; divides ``embed_dim``.
    n_layers
        Number of Transformer layers.

    References
    ----------
    Chen et al., *Transformer for one stop interpretable cell type annotation*, Nat. Commun. 14,
    223 (2023).

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> adata.obs_names_make_unique()
    >>> ref, query = adata[:500].copy(), adata[500:].copy()
    >>> tosica.pp.build_mask(ref, max_gene_sets=20)
    >>> tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels")
    >>> model = tosica.TOSICA(ref, embed_dim=16)
    >>> model.train(max_epochs=2, enable_progress_bar=False)
    >>> model.annotate(query)
    >>> query.obsm["X_tosica"].shape
    (200, 20)
    """

    _module_cls = TOSICAModule

    def __init__(
        self,
        adata: AnnData | MuData | None = None,
        registry: dict[str, Any] | None = None,
        *,
        embed_dim: int = 48,
        n_heads: int = 4,
        n_layers: int = 2,
    ) -> None:
        _check_architecture(embed_dim, n_heads, n_layers)
        super().__init__(adata, registry)
        names = self._state(REGISTRY_KEYS.LABELS_KEY)[LabelsField.CATEGORICAL_MAPPING_KEY]
        modalities = self._modalities
        tokens = TokenAxis(modalities)
        self.module = self._module_cls(
            tokens.indptr,
            tokens.genes,
            n_genes=sum(len(modality.genes) for modality in modalities),
            n_labels=len(self.labels),
            embed_dim=embed_dim,
            n_heads=n_heads,
            n_layers=n_layers,
            # Cells without a label have the last code, which stands for no label.
            label_of_code=np.where(
                np.arange(len(names)) < len(self.labels), np.arange(len(names)), -1
            ),
            mixed_tokens=bool(modalities[0].mask.get(MaskField.MIXED_KEY, False)),
            sections=tokens.sections,
            token_modality=np.array(tokens.modality),
            full=tokens.full,
        )
        self.module.eval()
        self.init_params_ = self._get_init_params(locals())

    # ------------------------------------------------------------------ reference

    @classmethod
    def setup_anndata(
        cls,
        adata: AnnData,
        labels_key: str,
        unlabeled_category: str | None = None,
        batch_key: str | None = None,
        layer: str | None = None,
        mask_key: str = "tosica_mask",
        **kwargs: Any,
    ) -> None:
        """Register a reference: its expression, labels, batches and mask.

        Writes what scvi-tools writes: codes in ``adata.obs`` (``_scvi_labels``, ``_scvi_batch``)
        and identifiers in ``adata.uns`` (``_scvi_uuid``, ``_scvi_manager_uuid``).

        Parameters
        ----------
        adata
            The reference, ``(n_obs, n_vars)``: counts, or log-normalised expression.
        labels_key
            Column of ``adata.obs`` with the labels.
        unlabeled_category
            What that column says of cells without a label; they are not trained on.
        batch_key
            Column of ``adata.obs`` with the batches. Validation cells are drawn evenly from them.
        layer
            Layer with the expression; by default ``adata.X``.
        mask_key
            Key of ``adata.varm`` and ``adata.uns`` that :func:`tosica.pp.build_mask` wrote.

        Raises
        ------
        KeyError
            If a key is missing, or :func:`tosica.pp.build_mask` has not been called.
        ValueError
            If labels are missing, all equal or have a single cell; if names occur twice; if there
            are no cells or genes; if the expression is missing, infinite, negative or neither
            counts nor log-normalised; if the mask does not fit.
        TypeError
            If the matrix does not hold numbers.

        Examples
        --------
        >>> import scanpy as sc
        >>> import tosica
        >>> ref = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> tosica.pp.build_mask(ref)
        >>> tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels", batch_key="phase")
        """
        setup_method_args = cls._get_setup_method_args(**locals())
        labels = LabelsField(REGISTRY_KEYS.LABELS_KEY, labels_key, unlabeled_category)
        mask = MaskField(REGISTRY_KEYS.MASK_KEY, mask_key)
        expression = ExpressionField(REGISTRY_KEYS.X_KEY, layer)
        batch = CategoricalObsField(REGISTRY_KEYS.BATCH_KEY, batch_key)
        # All are looked at before the first one writes to adata; those that write come last.
        for field in (expression, mask, labels):
            field.validate_field(adata)
        if batch_key is not None and batch_key not in adata.obs:
            known = ", ".join(map(repr, adata.obs.columns))
            raise KeyError(
                f"batch_key {batch_key!r} is not a column of adata.obs; columns: {known}."
            )
        if batch_key is not None and adata.obs[batch_key].isna().any():
            raise ValueError(f"adata.obs[{batch_key!r}] has cells without a batch (NaN).")
        fields = [expression, mask, labels, batch]
        manager = AnnDataManager(fields=fields, setup_method_args=setup_method_args)
        manager.register_fields(adata, **kwargs)
        cls.register_manager(manager)

    @classmethod
    def setup_mudata(
        cls,
        mdata: MuData,
        labels_key: str,
        modalities: Mapping[str, str] | None = None,
        unlabeled_category: str | None = None,
        batch_key: str | None = None,
        layers: Mapping[str, str] | None = None,
        mask_key: str = "tosica_mask",
        **kwargs: Any,
    ) -> None:
        """Register a reference of several modalities, such as RNA and antibodies of CITE-seq.

        Each modality is normalised in its own way: counts of RNA as log1p of counts per 10 000,
        counts of antibodies as the centred log-ratio of each cell; what is normalised already is
        used as it is. Which it is, is found out from the values and logged.

        Writes what scvi-tools writes: codes in ``mdata.obs`` (``_scvi_labels``, ``_scvi_batch``),
        or in the ``obs`` where labels and batches were found, and identifiers in ``mdata.uns``.

        Parameters
        ----------
        mdata
            The reference; every modality that is used has the same cells, in any order.
        labels_key
            Column with the labels, of ``mdata.obs`` or else of one modality's ``obs``.
        modalities
            Role to name in ``mdata``. Roles are "rna", "protein" (antibodies) and "atac" (treated
            as "rna"). By default ``{"rna": "rna", "protein": "protein"}``. Others are not used.
        unlabeled_category
            What the labels say of cells without one; they are not trained on.
        batch_key
            Column with the batches, found as labels are. Validation cells are drawn evenly from
            them.
        layers
            Name of a modality to its layer with the expression; by default its ``X``.
        mask_key
            Key of each modality's ``varm`` and ``uns`` that :func:`tosica.pp.build_mask` wrote.

        Raises
        ------
        KeyError
            If a modality, key or layer is missing, or a modality has no mask.
        ValueError
            If ``mdata`` is a view; if the modalities have different cells; if a modality is the
            same in every cell, or antibodies have negative counts; if labels are found in two
            modalities and differ; and as :meth:`setup_anndata`.
        TypeError
            If ``mdata`` is no MuData, or an argument not of its type.

        Notes
        -----
        The model has the tokens of all modalities, and its names begin with the modality, as in
        ``protein:CD19``. It can annotate queries that lack some of them: training asks for the
        right label from every choice of modalities, and ``plan_kwargs={"modality_dropout": …}``
        says what the loss of cells without some of them counts (0.9).

        References
        ----------
        Stoeckius et al., *Simultaneous epitope and transcriptome measurement in single cells*, Nat.
        Methods 14, 865 (2017), for the centred log-ratio.

        Examples
        --------
        Random numbers stand for counts of antibodies.

        >>> import mudata
        >>> import numpy as np
        >>> import scanpy as sc
        >>> import tosica
        >>> from anndata import AnnData
        >>> rna = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> counts = np.random.default_rng(0).poisson(5, (700, 3)).astype("float32")
        >>> protein = AnnData(counts, obs=rna.obs[[]])
        >>> protein.var_names = ["CD3", "CD14", "CD19"]
        >>> mdata = mudata.MuData({"rna": rna, "protein": protein})
        >>> tosica.pp.build_mask(mdata, max_gene_sets=20)
        >>> tosica.TOSICA.setup_mudata(mdata, labels_key="bulk_labels")
        >>> tosica.TOSICA(mdata).gene_sets[-3:]
        ['protein:CD3', 'protein:CD14', 'protein:CD19']
        """
        modalities = check_modalities(mdata, modalities, layers)
        layers = None if layers is None else dict(layers)
        setup_method_args = cls._get_setup_method_args(**locals())
        fields = mudata_fields(
            mdata,
            modalities,
            labels_key=labels_key,
            unlabeled_category=unlabeled_category,
            batch_key=batch_key,
            layers=layers,
            mask_key=mask_key,
        )
        # Which cells the modalities have was looked at above, for those that are used.
        manager = AnnDataManager(
            fields=fields,
            setup_method_args=setup_method_args,
            validation_checks=AnnDataManagerValidationCheck(check_fully_paired_mudata=False),
        )
        manager.register_fields(mdata, **kwargs)
        log_modalities(modalities, manager.registry)
        cls.register_manager(manager)

    @property
    def labels(self) -> list[str]:
        """The labels that the model knows, in the reference's order."""
        state = self._state(REGISTRY_KEYS.LABELS_KEY)
        names = [str(name) for name in state[LabelsField.CATEGORICAL_MAPPING_KEY]]
        return [name for name in names if name != state[LabelsField.UNLABELED_KEY]]

    @property
    def gene_sets(self) -> list[str]:
        """Names of the gene sets, in the order of the mask, without unannotated tokens."""
        tokens = TokenAxis(self._modalities)
        return tokens.names[: tokens.n_annotated]

    # ------------------------------------------------------------------ training

    def train(
        self,
        max_epochs: int | None = None,
        accelerator: str = "auto",
        devices: int | list[int] | str = "auto",
        train_size: float = 0.9,
        batch_size: int = 64,
        early_stopping: bool = False,
        calibrate: bool = True,
        refit: bool = True,
        compile: bool = False,  # noqa: A002 # as torch and lightning call it
        plan_kwargs: dict[str, Any] | None = None,
        **trainer_kwargs: Any,
    ) -> None:
        """Train on the reference.

        In every minibatch each label comes equally often, and half of the genes and three
        quarters of the gene sets, drawn at random, are hidden. ``scvi.settings.seed`` makes the
        result reproducible.

        Parameters
        ----------
        max_epochs
            Passes over the training cells. By default as many as make 32 000 draws of a cell, or
            1 200 times the square root of their number if that is more.
        accelerator, devices
            What to train on, as in :class:`lightning.pytorch.Trainer`.
        train_size
            Share of each label's cells to train on; the rest, at least one cell a label, is held
            out for validation and calibration.
        batch_size
            Cells in a minibatch.
        early_stopping
            Stop once the validation loss falls no more, and go back to the best epoch.
        calibrate
            Fit the temperature of the probabilities to the held-out cells.
        refit
            Learn the held-out cells too, once they have served: go on for a fifth of the epochs on
            all cells, at three tenths of the learning rate. ``history`` and
            ``validation_indices`` tell of the training before.
        compile
            Compile the encoder's training steps with :func:`torch.compile`, which takes up to a
            minute first and pays on a GPU. Without a compiler it warns and has no effect.
        plan_kwargs
            Parameters of the training plan: ``lr``, ``weight_decay``, ``gene_dropout``,
            ``token_dropout``, ``modality_dropout``, ``label_smoothing``, ``warmup``.
        **trainer_kwargs
            Passed to :class:`scvi.train.Trainer`, such as ``enable_progress_bar=False``,
            ``early_stopping_patience=10`` or ``precision="bf16-mixed"``.

        Raises
        ------
        ValueError
            If the model has no reference, or a parameter is out of range.

        Warns
        -----
        UserWarning
            If ``compile=True`` and nothing can be compiled.
        """
        if self.adata is None:
            raise ValueError(
                "The model was loaded without a reference and cannot be trained: pass it to "
                "TOSICA.load(folder, adata=reference)."
            )
        data = self._reference_data(train_size, batch_size)
        # What an earlier training was calibrated to does not hold for the weights to come.
        self.module.temperature.fill_(1)
        if max_epochs is None:
            draws = max(_MIN_DRAWS, _DRAWS_PER_ROOT * math.sqrt(data.n_train))
            max_epochs = math.ceil(draws / data.n_train)
        # Losses are kept once an epoch; lightning warns if it has fewer steps than this.
        kwargs: dict[str, Any] = {"accelerator": accelerator, "devices": devices}
        kwargs |= {"log_every_n_steps": 1} | trainer_kwargs
        stopping: dict[str, Any] = {}
        if early_stopping:
            stopping = {
                "early_stopping": True,
                "early_stopping_monitor": "validation_loss",
                "early_stopping_patience": 10,
            }
            kwargs["callbacks"] = [*kwargs.get("callbacks", []), KeepBest()]
        plan = TrainingPlan(self.module, **(plan_kwargs or {}))
        device = _device(accelerator, "auto")
        with compiled(self.module.encoder, device) if compile else nullcontext():
            self._fit(plan, data, max_epochs, **{"check_val_every_n_epoch": 1} | stopping | kwargs)
            if calibrate:
                self._calibrate(data)
            if refit:
                self._refit(plan, data, **kwargs)

    def _fit(self, plan: TrainingPlan, data: ReferenceData, epochs: int, **kwargs: Any) -> None:
        runner = TrainRunner(
            self, training_plan=plan, data_splitter=data, max_epochs=epochs, **kwargs
        )
        self.module.train()
        # scvi-tools begins a history with the first training, which a legacy model had elsewhere.
        trained = self.is_trained
        self.is_trained_ = trained and self.history_ is not None
        try:
            runner()
        finally:
            self.is_trained_ = trained or self.is_trained

    def _refit(self, plan: TrainingPlan, data: ReferenceData, **kwargs: Any) -> None:
        """Go on with all cells; what the model tells of its training stays that of before."""
        told = {
            name: getattr(self, name)
            for name in ("history_", "train_indices_", "validation_indices_", "trainer")
        }
        if isinstance(self.history_, dict):
            # scvi-tools adds the rows of a further training to the dict itself.
            told["history_"] = dict(self.history_)
        epochs = math.ceil(_REFIT_EPOCHS * self.trainer.current_epoch)
        settings = TrainingPlan(
            self.module,
            lr=_REFIT_LR * plan.lr,
            weight_decay=plan.weight_decay,
            gene_dropout=plan.gene_dropout,
            token_dropout=plan.token_dropout,
            modality_dropout=plan.modality_dropout,
            label_smoothing=plan.label_smoothing,
            warmup=plan.warmup,
        )
        # The user's callbacks and early stopping look at validation cells, of which none are left.
        watching = ("callbacks", "early_stopping", "checkpoint", "check_val", "logger")
        kept = {k: v for k, v in kwargs.items() if not any(word in k for word in watching)}
        data.join()
        self._fit(settings, data, epochs, limit_val_batches=0, **kept)
        for name, value in told.items():
            setattr(self, name, value)

    def _reference_data(self, train_size: float, batch_size: int) -> ReferenceData:
        if not 0 < train_size < 1:
            raise ValueError(f"train_size must lie between 0 and 1, not {train_size}.")
        modalities = self._modalities
        joint = is_joint(self.registry_)
        return ReferenceData(
            JointRows(self.adata, modalities)
            if joint
            else Rows(self.adata, layer=modalities[0].layer),
            self.module.label_of_code.cpu().numpy()[self._codes(REGISTRY_KEYS.LABELS_KEY)],
            self._codes(REGISTRY_KEYS.BATCH_KEY),
            validation_size=1 - train_size,
            batch_size=batch_size,
        )

    def _codes(self, key: str) -> np.ndarray:
        """Codes of the labels or batches, in the order of the reference's cells."""
        codes = np.asarray(self.adata_manager.get_from_registry(key)).ravel()
        place = self.adata_manager.data_registry[key].get("mod_key")
        return codes if place is None else codes_in_order(self.adata, codes, place)

    @torch.inference_mode()
    def _calibrate(self, data: ReferenceData) -> None:
        # How sure the model may be depends on which modalities it sees.
        for seen in range(1, self.module.everything + 1):
            logits, labels = [], []
            for batch in data.val_dataloader():
                _, generative, losses = self.module(batch, inference_kwargs={"seen": seen})
                logits.append(generative["logits"].float().cpu())
                labels.append(losses.true_labels.cpu())
            temperature = fit_temperature(torch.cat(logits), torch.cat(labels))
            self.module.temperature.view(-1)[seen - 1] = temperature

    def start_from_network(self) -> None:
        """Let training begin with the weights and signs of the network behind the mask.

        Each gene set with weights starts as the weighted sum of its genes, along a random
        direction: genes of opposite sign pull its token in opposite directions. Everything else
        stays as it was drawn, and training changes all of it. Call it before :meth:`train`; the
        directions follow ``scvi.settings.seed``.

        Raises
        ------
        KeyError
            If the mask was built from gene sets without weights.
        ValueError
            If the model has no reference, or was trained already.

        Examples
        --------
        >>> import pandas as pd
        >>> import scanpy as sc
        >>> import tosica
        >>> ref = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> network = pd.DataFrame(
        ...     {
        ...         "source": ["SPI1"] * 4 + ["PAX5"] * 4,
        ...         "target": ["LYZ", "CST3", "FCN1", "CD79A", "CD79A", "CD79B", "CD19", "LYZ"],
        ...         "weight": [1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, -1.0],
        ...     }
        ... )
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):  # so few genes are in a set
        ...     tosica.pp.build_mask(ref, network, min_genes=3)
        >>> tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels")
        >>> model = tosica.TOSICA(ref, embed_dim=16)
        >>> model.start_from_network()
        """
        if self.adata is None:
            raise ValueError(
                "The model was loaded without a reference: pass it to "
                "TOSICA.load(folder, adata=reference)."
            )
        if self.is_trained_:
            raise ValueError(
                "The model was trained already, which its first weights no longer matter to: make "
                "a new one and call start_from_network before train."
            )
        self.module.embedding.start_from(self._network_weights())

    def _network_weights(self) -> np.ndarray:
        """Weights of the pairs of gene and token, in the order of the embedding."""
        registry = self.adata_manager.data_registry
        if not is_joint(self.registry_):
            return pair_weights(self.adata, registry[REGISTRY_KEYS.MASK_KEY]["attr_key"])
        found: list[np.ndarray | None] = []
        error: KeyError | None = None
        for role, name in self.registry_["setup_args"]["modalities"].items():
            key = registry[field_keys(role)[1]]["attr_key"]
            try:
                found.append(pair_weights(self.adata[name], key))
            except KeyError as missing:
                found.append(None)
                error = missing
        # Antibodies have no network as a rule; one modality with weights is enough.
        if error is not None and all(weights is None for weights in found):
            raise error
        return TokenAxis(self._modalities).join_pairs(found)

    # ------------------------------------------------------------------ annotation

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
        """Label the cells of a query and say what the labels rest on.

        Genes are matched by name, put in order and missing ones set to zero. Counts are normalised
        as the model was trained; log-normalised expression is used as it is.

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
        modalities = self._modalities
        tokens, shown = TokenAxis(modalities), found["tokens"]
        result = adata.copy() if copy else adata
        write_annotation(
            result,
            found["probabilities"],
            found["attention"],
            labels=self.labels,
            colors=self._state(REGISTRY_KEYS.LABELS_KEY)[LabelsField.COLORS_KEY],
            gene_sets=[tokens.names[i] for i in shown],
            modalities=[str(modalities[tokens.modality[i]].name) for i in shown]
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
        names = np.array(TokenAxis(self._modalities).names, dtype=object)[found["tokens"]]
        return pd.DataFrame(found["attention"], index=adata.obs_names, columns=names)

    def get_gene_weights(self, how: Literal["mean", "max"] = "mean") -> pd.DataFrame:
        """Get how strongly each gene feeds each gene set.

        Parameters
        ----------
        how
            ``"mean"`` of the absolute weights over the width of a token (the paper), or ``"max"``
            (the paper's code).

        Returns
        -------
        Table ``(n_genes, n_tokens)``, float32, zero outside the mask; unannotated tokens last.
        """
        if how not in ("mean", "max"):
            raise ValueError(f"how must be 'mean' or 'max', not {how!r}.")
        tokens = TokenAxis(self._modalities)
        weights = self.module.embedding.gene_weights(how).float().cpu().numpy()
        shape = (self.module.embedding.n_genes, self.module.embedding.n_tokens)
        table = sp.csc_matrix((weights, tokens.genes, tokens.indptr), shape=shape).toarray()
        names = np.array(tokens.names, dtype=object)
        return pd.DataFrame(table, index=self._var_names, columns=names)

    def get_var_names(
        self, legacy_mudata_format: bool = False
    ) -> np.ndarray | dict[str, np.ndarray]:
        """Get the names of the model's genes, in the model's order.

        Parameters
        ----------
        legacy_mudata_format
            For a model of several modalities: give the names of all in one array.

        Returns
        -------
        An array; for a model of several modalities a dict of one array for each.
        """
        names = [modality.genes.to_numpy() for modality in self._modalities]
        if legacy_mudata_format or not is_joint(self.registry_):
            return np.concatenate(names)
        return {str(m.name): n for m, n in zip(self._modalities, names, strict=True)}

    # ------------------------------------------------------------------ saving

    def save(
        self,
        dir_path: str | Path,
        prefix: str | None = None,
        overwrite: bool = False,
        save_anndata: bool = False,
        **anndata_write_kwargs: Any,
    ) -> None:
        """Save the model to a folder, by default without the reference.

        The folder is laid out as scvi-tools lays it out. It holds tensors and plain values only.

        Parameters
        ----------
        dir_path
            Folder to make.
        prefix
            Put in front of the file names.
        overwrite
            Write into a folder that exists.
        save_anndata
            Also save the reference, as ``adata.h5ad`` or ``mdata.h5mu``.
        **anndata_write_kwargs
            Passed to :meth:`anndata.AnnData.write_h5ad` or :meth:`mudata.MuData.write_h5mu`.

        Raises
        ------
        FileExistsError
            If the folder exists and ``overwrite`` is false.
        """
        folder = Path(dir_path)
        if folder.exists() and not overwrite:
            raise FileExistsError(
                f"{str(folder)!r} exists: choose another folder, or pass overwrite=True."
            )
        if save_anndata and self.adata is None:
            raise ValueError("save_anndata=True was given, but the model has no reference.")
        folder.mkdir(parents=True, exist_ok=True)
        attributes = {name: getattr(self, name, None) for name in _SAVED}
        write_model(folder, prefix or "", self.module.state_dict(), self._var_names, attributes)
        if save_anndata and is_joint(self.registry_):
            self.adata.write_h5mu(folder / f"{prefix or ''}mdata.h5mu", **anndata_write_kwargs)
        elif save_anndata:
            self.adata.write_h5ad(folder / f"{prefix or ''}adata.h5ad", **anndata_write_kwargs)

    @classmethod
    def load(
        cls,
        dir_path: str | Path,
        adata: AnnData | MuData | None = None,
        accelerator: str = "auto",
        device: int | str = "auto",
        prefix: str | None = None,
    ) -> TOSICA:
        """Load a model; no reference is needed, and nothing in the file is executed.

        Parameters
        ----------
        dir_path
            Folder that :meth:`save` made.
        adata
            A reference to go on training with: the same genes, in the same order.
        accelerator, device
            Where to put the model: "cpu", "gpu", or by default an accelerator if there is one.
        prefix
            Prefix that the model was saved with.

        Returns
        -------
        The model.

        Raises
        ------
        FileNotFoundError
            If the folder or a file of it is missing.
        ValueError
            If the file is damaged, holds more than tensors and plain values, or a model of another
            class; if ``adata`` does not fit the model.
        """
        where = _device(accelerator, device)
        contents = read_model(Path(dir_path), prefix or "", where)
        attributes = contents[ATTRIBUTES]
        registry = restore_registry(attributes.pop("registry_"))
        if registry.get("model_name") != cls.__name__:
            raise ValueError(
                f"{str(dir_path)!r} holds a {registry.get('model_name')} model, not a "
                f"{cls.__name__} model."
            )
        if adata is not None:
            # Batches only spread the validation cells, so new ones do no harm.
            setup = cls.setup_mudata if is_joint(registry) else cls.setup_anndata
            setup(adata, source_registry=registry, extend_categories=True, **registry["setup_args"])
        model = cls(
            adata,
            registry=None if adata is not None else registry,
            **attributes.pop("init_params_")["non_kwargs"],
        )
        # Belongs to the labels field, which adata may have given one code more: for no label.
        contents[STATE]["label_of_code"] = model.module.label_of_code
        try:
            model.module.load_state_dict(contents[STATE])
        except RuntimeError as error:
            raise ValueError(
                f"The weights in {str(dir_path)!r} do not fit the model that the file describes; "
                "the file is damaged."
            ) from error
        model.history_ = restore_history(attributes.pop("history_"))
        for name in attributes.keys() & set(_SAVED):
            value = attributes[name]
            setattr(model, name, value.cpu().numpy() if torch.is_tensor(value) else value)
        model.to_device(where)
        model.module.eval()
        return model

    @classmethod
    def load_legacy(
        cls,
        project_dir: str | Path,
        var_names: Sequence[str] | None = None,
        *,
        n_heads: int = 4,
        weights: str | None = None,
        labels_key: str | None = None,
        target_sum: float = 1e4,
        adata: AnnData | None = None,
        accelerator: str = "auto",
        device: int | str = "auto",
    ) -> TOSICA:
        """Open the folder that the original code leaves after training.

        The model gives the numbers that the original gives. Nothing in the folder is executed.
        Width, layers and labels are read from the tensors, which are held against the tables.

        In the original a token is not the gene set that it is named after: it mixes numbers of
        several. The model keeps that, because its weights were trained that way; so the attention
        under a gene set's name is what the original reported, but is not about that set alone.
        :meth:`get_gene_weights` is about the set. A model trained anew has tokens that are gene
        sets.

        Parameters
        ----------
        project_dir
            The project folder: ``mask.npy``, ``pathway.csv``, ``label_dictionary.csv``,
            ``model-<epoch>.pth`` or ``model.pth``, and ``gene2token_weights.csv`` if the original
            has predicted with it.
        var_names
            Names of the genes, in the order of the data that the original was trained on. By
            default they are read from ``gene2token_weights.csv``, the only file that has them.
        n_heads
            Number of attention heads that the original was trained with, which its files do not
            tell.
        weights
            Name of the file with the weights. By default that of the last epoch.
        labels_key
            Column of ``adata.obs`` with the labels. By default the one that
            ``label_dictionary.csv`` names.
        target_sum
            Total that a cell's counts are scaled to, over all genes of a query, if the query holds
            counts. The original takes log-normalised expression as it is, and so does the model.
        adata
            A reference to go on training with: log-normalised, with the same genes in the same
            order. The model's mask is written to ``adata.varm["tosica_mask"]`` and
            ``adata.uns["tosica_mask"]`` if nothing is there, as :func:`tosica.pp.build_mask`
            would; :meth:`load` needs it there too.
        accelerator, device
            Where to put the model, as in :meth:`load`.

        Returns
        -------
        The model, trained.

        Raises
        ------
        FileNotFoundError
            If the folder or a file of it is missing, or no file has the names of the genes.
        ValueError
            If the weights are damaged, hold more than tensors, other tensors than the original's,
            NaN or infinity; if the tables contradict the tensors; if a gene set has no gene; if
            ``n_heads`` does not divide the width; if genes occur twice; if ``adata`` does not fit.
        KeyError
            If ``adata.obs`` has no column ``labels_key``.
        TypeError
            If an argument is of the wrong type.

        Warns
        -----
        UserWarning
            Always: that tokens mix gene sets.

        Examples
        --------
        .. code-block:: python

            model = tosica.TOSICA.load_legacy("my_project")
            model.annotate(query)
            model.save("my_model")
        """
        return load_legacy(
            cls,
            project_dir,
            var_names,
            n_heads=n_heads,
            weights=weights,
            labels_key=labels_key,
            target_sum=target_sum,
            adata=adata,
            device=_device(accelerator, device),
        )

    @staticmethod
    def load_registry(dir_path: str | Path, prefix: str | None = None) -> dict[str, Any]:
        """Read what :meth:`setup_anndata` registered for a saved model, as safely as :meth:`load`.

        Parameters
        ----------
        dir_path, prefix
            As in :meth:`load`.

        Returns
        -------
        The registry.

        Raises
        ------
        FileNotFoundError, ValueError
            As :meth:`load`.
        """
        contents = read_model(Path(dir_path), prefix or "", "cpu")
        return restore_registry(contents[ATTRIBUTES]["registry_"])

    @staticmethod
    def view_setup_args(dir_path: str | Path, prefix: str | None = None) -> None:
        """Print the arguments that :meth:`setup_anndata` was called with for a saved model.

        Parameters
        ----------
        dir_path, prefix
            As in :meth:`load`.

        Raises
        ------
        FileNotFoundError, ValueError
            As :meth:`load`.
        """
        AnnDataManager.view_setup_method_args(TOSICA.load_registry(dir_path, prefix))

    # ------------------------------------------------------------------ looking at it

    @property
    def fingerprint(self) -> str:
        """Sixteen characters that tell this model's weights from any other's."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.module.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        shown = ", ".join(self.labels[:6]) + (", …" if len(self.labels) > 6 else "")
        width = self.module.embedding.embed_dim
        heads = self.init_params_["non_kwargs"]["n_heads"]
        layers = self.init_params_["non_kwargs"]["n_layers"]
        epochs = 0 if not self.history_ else len(next(iter(self.history_.values())))
        return "\n".join(
            [
                f"TOSICA model, {'trained' if self.is_trained_ else 'not trained yet'}"
                + (f" ({epochs} epochs)" if self.is_trained_ and epochs else ""),
                *(line for modality in self._modalities for line in _described(modality)),
                f"    labels: {len(self.labels)} ({shown})",
                f"    network: width {width}, {heads} heads, {layers} layers, "
                f"{sum(p.numel() for p in self.module.parameters()):,} parameters",
            ]
        )

    # ------------------------------------------------------------------ behind the scenes

    def _state(self, registry_key: str) -> dict[str, Any]:
        return self.registry_["field_registries"][registry_key]["state_registry"]

    @property
    def _modalities(self) -> list[Modality]:
        """The model's modalities; one without a name if the reference is an AnnData."""
        return read_modalities(self.registry_)

    @property
    def _var_names(self) -> np.ndarray:
        names = [name for modality in self._modalities for name in modality.label(modality.genes)]
        return np.array(names, dtype=object)

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
    ) -> dict[str, np.ndarray]:
        """Go through the cells once and keep what is wanted of each minibatch.

        Beside that, ``"tokens"`` says which tokens the columns of the attention are.
        """
        if precision not in get_args(Precision):
            known = " or ".join(map(repr, get_args(Precision)))
            raise ValueError(f"precision must be {known}, not {precision!r}.")
        batch_size = self._annotation_batch_size(batch_size)
        query = Query(adata, self._modalities, layer=layer, use_raw=use_raw)
        tokens = TokenAxis(self._modalities)
        device = self.module.device
        bfloat16 = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed")
        present = np.flatnonzero((query.seen >> np.array(tokens.modality)) % 2)
        # Gene sets come before tokens that are none.
        n_sets = len(present) if unannotated else int((present < tokens.n_annotated).sum())
        found = {"tokens": present[:n_sets]}
        for start, x in query.batches(batch_size, device):
            with bfloat16:
                seen = self.module.annotate(x, attention="attention" in wanted, seen=query.seen)
            values = {
                "latent": seen.latent,
                "probabilities": self.module.probabilities(seen.logits, query.seen),
            }
            if seen.attention is not None:
                values["attention"] = seen.attention[:, :n_sets]
            for name in wanted:
                part = values[name].float().cpu().numpy()
                if name not in found:
                    found[name] = np.empty((adata.n_obs, part.shape[1]), dtype=np.float32)
                found[name][start : start + len(part)] = part
        return found

    def _minibatches(
        self, adata: AnnData, *, layer: str | None, use_raw: bool, batch_size: int | None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Cells on the model's genes, normalised as the model was trained, on its device.

        Yields
        ------
        Position of the first cell, and expression, ``(n_cells, n_genes)``.
        """
        batch_size = self._annotation_batch_size(batch_size)
        query = Query(adata, self._modalities, layer=layer, use_raw=use_raw)
        return query.batches(batch_size, self.module.device)

    def _annotation_batch_size(self, batch_size: int | None) -> int:
        if batch_size is None:
            on_cpu = self.module.device.type == "cpu"
            return _BATCH_SIZE_CPU if on_cpu else _BATCH_SIZE_ACCELERATOR
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}.")
        return batch_size


_SAVED = (
    "registry_",
    "init_params_",
    "is_trained_",
    "history_",
    "train_indices_",
    "validation_indices_",
    "test_indices_",
    "run_name_",
    "run_id_",
)


def _described(modality: Modality) -> list[str]:
    """What ``repr`` says of a modality's tokens and genes."""
    mask, counts = modality.mask, modality.scale.kind == "counts"
    if isinstance(modality.scale, Scale):
        read = "counts" if counts else "log-normalised expression"
    else:
        read = "counts of antibodies" if counts else "normalised antibodies"
    of = "" if modality.name is None else f"{modality.name}, "
    n_sets = len(mask["gene_sets"]) - mask["n_unannotated"]
    return [
        f"    {of}gene sets: {n_sets} of {mask['source']} ({mask['organism']}), "
        f"and {mask['n_unannotated']} unannotated"
        + (", mixed in each token" if mask.get(MaskField.MIXED_KEY) else ""),
        f"    {of}genes: {len(modality.genes)}, read as {read}",
    ]


def _check_architecture(embed_dim: int, n_heads: int, n_layers: int) -> None:
    sizes = {"embed_dim": embed_dim, "n_heads": n_heads, "n_layers": n_layers}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}.")
    if embed_dim % n_heads:
        raise ValueError(f"embed_dim ({embed_dim}) must be a multiple of n_heads ({n_heads}).")


def _device(accelerator: str, device: int | str) -> torch.device:
    if accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    kind = "cuda" if accelerator in ("auto", "gpu") else accelerator
    return torch.device(kind if device == "auto" else f"{kind}:{device}")
