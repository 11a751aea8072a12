"""Set up a reference, and read its labels, terms, gene sets and genes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from anndata import AnnData
from scvi.data import AnnDataManager, AnnDataManagerValidationCheck
from scvi.data._constants import _MANAGER_UUID_KEY, _SCVI_UUID_KEY
from scvi.data.fields import CategoricalObsField, MuDataWrapper
from scvi.model.base import BaseModelClass

from tosica._obs import one_column
from tosica._settings import logger
from tosica._text import argument, first_line, in_python, only_known
from tosica._validate import (
    CellData,
    InstanceOf,
    OneOf,
    as_names,
    refuse_unknown,
    validate_params,
)
from tosica.data import (
    MODALITY_KINDS,
    cell_indexers,
    check_mudata,
    load_annotations,
    reindex_obs,
    resolve_modalities,
)
from tosica.model._device import DEVICE_OF_TORCH
from tosica.model._fields import (
    UNLABELED,
    ExpressionField,
    LabelsField,
    MaskField,
)
from tosica.model._modalities import field_keys, place_of, read_modalities
from tosica.module import REGISTRY_KEYS
from tosica.onto._hierarchy import check_parents
from tosica.onto._ontology import NO_TERM, check_mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mudata import MuData
    from scvi.data.fields import BaseAnnDataField

    from tosica._types import AnnOrMuData
    from tosica.linear import ReferenceStatistics
    from tosica.model._modalities import Modality
    from tosica.model._training_result import TrainingResult
    from tosica.module import TokenLayout, TOSICAModule
    from tosica.module._module import LinearBranch

# Arguments that scvi-tools passes on where a registry exists already.
_TRANSFER_ARGS = ("source_registry", "extend_categories", "allow_missing_labels")


class SetupMixin(BaseModelClass):
    """Setting up an AnnData or a MuData as the reference, and attributes of a model of it."""

    if TYPE_CHECKING:  # scvi-tools' class has no types
        module: TOSICAModule
        registry_: dict[str, Any]
        history_: Any
        training_: TrainingResult
        _starts_from_network: bool

    labels: list[str]
    """The labels that the model knows, as text, in the reference's order."""
    modalities: list[Modality]
    """The model's modalities; one without a name if the reference is an AnnData."""
    tokens: TokenLayout
    """The tokens of all modalities, in the order of the network."""

    @property
    def mislabeled_indices(self) -> np.ndarray | None:
        """Positions of the reference's cells that :meth:`train` left out for their labels.

        Of the reference that the model was trained on, and empty if there are none or labels were
        not checked. ``None`` before training, and for models that were trained before labels were
        checked or by the original code.
        """
        return self.training_.mislabeled_indices

    @property
    def held_out_accuracy_(self) -> float | None:
        """Share of the held-out cells of the reference that get their label, before the model is fitted to them, too.

        ``None`` if no cells were held out, or the model was not calibrated on them.
        """
        held_out = self.training_.held_out_codes
        if held_out is None:
            return None
        true_codes, predicted_codes = held_out
        return float((true_codes == predicted_codes).mean())

    def _require_statistics(self) -> ReferenceStatistics:
        """Get the statistics of the reference; refuse models that have none."""
        statistics = self.training_.novelty_statistics
        if statistics is None:
            raise ValueError(
                "The model has no statistics of its reference, as it is old or of few cells: train a new one."
            )
        return statistics

    def _learning_branch(self) -> LinearBranch:
        """Get the linear branch, which learns from a query; refuse models that cannot."""
        if self.modalities[0].name is not None:
            raise TypeError(
                "A model of a MuData cannot learn from a query: train one on the modality that the query has."
            )
        if self.module.linear is None:
            raise ValueError(
                "The model has no linear branch, which learns from a query: train one with it."
            )
        self._check_trained()
        self._require_statistics()
        return self.module.linear

    _is_extended = False  # whether load_query_data made the model
    _term_of_label: Mapping[str, str] | None = None
    _parent_of_label: Mapping[str, str] | None = None

    @classmethod
    @validate_params(
        adata=CellData(cure="call TOSICA.setup_mudata for a MuData"),
        unlabeled_category=UNLABELED,
    )
    def setup_anndata(
        cls,
        adata: AnnData,
        labels_key: str | Sequence[str],
        unlabeled_category: str | None = None,
        batch_key: str | None = None,
        layer: str | None = None,
        mask_key: str = "tosica_mask",
        min_cells: int = 1,
        **kwargs: Any,
    ) -> None:
        """Register a reference: its expression, labels, batches and mask.

        Writes what scvi-tools writes: codes in ``adata.obs`` (``_scvi_labels``, ``_scvi_batch``)
        and identifiers in ``adata.uns`` (``_scvi_uuid``, ``_scvi_manager_uuid``).

        Parameters
        ----------
        adata
            The reference, ``(n_obs, n_vars)``: counts, or log-normalized expression. Counts of
            SoupX and alevin, which are not whole, are taken, too.
        labels_key
            Column of ``adata.obs`` with the labels. Predictions come back in their type: text,
            whole numbers, booleans, or an ordered categorical. Several columns, from broad to fine, are
            levels: the last one is learnt, each of its labels is in one group of each other column, and
            :meth:`annotate` predicts all levels.
        unlabeled_category
            Value of that column in cells without a label; the model is not trained on them. Cells
            without a value (NaN) count as such, too.
        batch_key
            Column of ``adata.obs`` with the batches. Validation cells are drawn evenly from them.
        layer
            Layer with the expression; by default ``adata.X``.
        mask_key
            Key of ``adata.varm`` and ``adata.uns`` that :func:`tosica.pp.build_mask` wrote.
        min_cells
            Labels with fewer cells are left out: their cells count as unlabeled, and the log names
            them. By default labels of single cells are learned, too. A label needs two cells to be
            validated and calibrated, and about 30 to be predicted reliably.

        Raises
        ------
        KeyError
            If a key is missing, or :func:`tosica.pp.build_mask` has not been called.
        ValueError
            If labels are missing or all equal; if columns of labels are no tree, from broad to fine; if names
            occur twice; if there are no cells or genes; if the expression is missing, infinite, negative or
            neither counts nor log-normalized; if the mask does not fit.
        TypeError
            If the matrix does not hold numbers; if batches are neither text nor numbers.

        Warns
        -----
        UserWarning
            If labels have a single cell, are spelled in several ways or stand for none, such as ``"NA"``; if
            ``var`` has features beside genes.

        Examples
        --------
        >>> import scanpy as sc
        >>> import tosica
        >>> ref = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> tosica.pp.build_mask(ref)
        >>> tosica.TOSICA.setup_anndata(
        ...     ref, labels_key="bulk_labels", batch_key="phase"
        ... )
        """
        labels_key = _one_or_several(labels_key)
        setup_method_args = cls._get_setup_method_args(**locals())
        load_annotations(adata)
        if adata.is_view and not adata.isbacked:
            # As anndata does where a view is written to.
            adata.obs = adata.obs.copy()
        cls._register(adata, setup_method_args, {"rna": None}, {None: layer}, kwargs)

    @classmethod
    def setup_annbatch(cls, *args: Any, **kwargs: Any) -> None:
        """Not for this model, which needs the genes and the mask of an AnnData.

        Raises
        ------
        NotImplementedError
            Always; the message says how a collection of annbatch is set up.
        """
        raise NotImplementedError(
            "TOSICA has no setup_annbatch: make data = tosica.model.AnnbatchReader(path), set up data.adata, "
            "and train with datamodule=data."
        )

    @classmethod
    @validate_params(
        unlabeled_category=UNLABELED,
        layers=InstanceOf("a dict of modality and layer", Mapping, optional=True),
    )
    def setup_mudata(
        cls,
        mdata: MuData,
        labels_key: str | Sequence[str],
        modalities: Mapping[str, str] | None = None,
        unlabeled_category: str | None = None,
        batch_key: str | None = None,
        layers: Mapping[str, str] | None = None,
        mask_key: str = "tosica_mask",
        min_cells: int = 1,
        **kwargs: Any,
    ) -> None:
        """Register a reference of several modalities, such as RNA and antibodies of CITE-seq.

        Each modality is normalized in its own way: counts of RNA and of gene activity as log1p of
        counts per 10 000, counts of antibodies as the centered log-ratio of each cell. Values that
        are normalized already are used as they are. Which is the case is detected and logged.

        Writes what scvi-tools writes: codes in ``mdata.obs`` (``_scvi_labels``, ``_scvi_batch``),
        or in the ``obs`` where labels and batches were found, and identifiers in ``mdata.uns``.

        Parameters
        ----------
        mdata
            The reference; every modality that is used has the same cells, in any order.
        labels_key
            Column with the labels, of ``mdata.obs`` or else of one modality's ``obs``; or several columns, as in
            :meth:`setup_anndata`.
        modalities
            Role to name in ``mdata``. Roles are "rna", "protein" (antibodies) and "atac" (gene
            activity: fragments counted over each gene, not peaks). By default
            ``{"rna": "rna", "protein": "protein"}``. Other modalities are not used.
        unlabeled_category
            Label of cells without one; the model is not trained on them.
        batch_key
            Column with the batches, found as labels are. Validation cells are drawn evenly from
            them.
        layers
            Name of a modality to its layer with the expression; by default its ``X``.
        mask_key
            Key of each modality's ``varm`` and ``uns`` that :func:`tosica.pp.build_mask` wrote.
        min_cells
            As in :meth:`setup_anndata`.

        Raises
        ------
        KeyError
            If a modality, key or layer is missing, or a modality has no mask.
        ValueError
            If ``mdata`` is a view; if the modalities have different cells; if a modality is the
            same in every cell, antibodies have negative counts, or "atac" holds peaks; if labels
            are found in two modalities and differ; and as :meth:`setup_anndata`.
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
        Methods 14, 865 (2017), for the centered log-ratio.

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
        check_mudata(mdata)
        modalities = resolve_modalities(mdata, modalities)
        if layers is not None:
            layers = dict(layers)
        labels_key = _one_or_several(labels_key)
        setup_method_args = cls._get_setup_method_args(**locals())
        names = list(modalities.values())
        for name in layers or ():
            if name not in names:
                raise KeyError(
                    f"layers names no modality {name!r}{only_known(name, names)}"
                )
        cell_indexers(mdata, names)
        manager = cls._register(
            mdata, setup_method_args, modalities, layers or {}, kwargs
        )
        for modality in read_modalities(manager.registry):
            logger.info(
                "setup_mudata: modality %r (%s) holds %s",
                modality.name,
                modality.kind.role,
                modality.kind.describe_normalization(modality.scale),
            )

    @classmethod
    def _register(
        cls,
        data: AnnOrMuData,
        method_args: dict[str, Any],
        roles: Mapping[str, str | None],
        layers: Mapping[Any, str | None],
        kwargs: dict[str, Any],
    ) -> AnnDataManager:
        """Check all fields of a reference, then write what scvi-tools writes.

        Parameters
        ----------
        data
            The reference.
        method_args
            The call of the setup method, as scvi-tools keeps it.
        roles
            Role to name of each modality; the one of an AnnData has no name.
        layers
            Name to layer.
        kwargs
            Arguments of a transfer from another registry.
        """
        arguments = method_args["setup_args"]
        setup_method = getattr(cls, method_args["setup_method_name"])
        refuse_unknown(setup_method, kwargs, *_TRANSFER_ARGS)
        source_fields: dict[str, Any] = {}
        if "source_registry" in kwargs:
            source_fields = kwargs["source_registry"]["field_registries"]
        fields: list[BaseAnnDataField] = []
        for role, name in roles.items():
            x_key, mask_field_key = field_keys(role, name)
            # With the genes of the model, if there is one.
            source = source_fields.get(x_key, {}).get("state_registry", {})
            expression = _wrap(ExpressionField, data, name)(
                x_key,
                layers.get(name),
                name=place_of(name),
                kind=MODALITY_KINDS[role],
                genes=source.get(ExpressionField.COLUMN_NAMES_KEY),
            )
            mask = _wrap(MaskField, data, name)(
                mask_field_key, arguments["mask_key"], name=place_of(name)
            )
            fields += [expression, mask]
        # All are checked before the first one writes to the reference.
        for field in fields:
            field.validate_field(data)
        *broader_keys, labels_key = as_names(arguments["labels_key"])
        labels_modality = _find_column(data, labels_key, "labels_key", roles.values())
        for key in broader_keys:
            modality = _find_column(data, key, "labels_key", roles.values())
            if modality != labels_modality:
                raise KeyError(
                    f"labels_key: {key!r} and {labels_key!r} are columns of different modalities: put both into "
                    "mdata.obs."
                )
        labels = _wrap(LabelsField, data, labels_modality)(
            REGISTRY_KEYS.LABELS_KEY,
            labels_key,
            broader_keys,
            unlabeled_category=arguments["unlabeled_category"],
            name=place_of(labels_modality, data),
            min_cells=arguments["min_cells"],
            is_new=not source_fields,
        )
        labels.validate_field(data)
        batches = _batch_field(data, arguments["batch_key"], roles)
        # Cells were compared above, for the modalities that are used.
        checks = AnnDataManagerValidationCheck(check_fully_paired_mudata=False)
        manager = AnnDataManager(
            fields=[*fields, labels, batches],
            setup_method_args=method_args,
            validation_checks=checks,
        )
        manager.register_fields(data, **kwargs)
        cls.register_manager(manager)
        for holder in code_holders(manager):
            holder.uns[_MANAGER_UUID_KEY] = manager.id
        return manager

    @classmethod
    def _check_set_up(cls, adata: AnnOrMuData) -> None:
        """Refuse data that were not set up as a reference, or a copy or part of such data."""
        manager = cls._setup_adata_manager_store.get(adata.uns.get(_SCVI_UUID_KEY))
        if manager is None or manager.adata is not adata:
            name = place_of(None, adata)
            method = "setup_mudata" if name == "mdata" else "setup_anndata"
            problem = "was not set up as a reference"
            if manager is not None:
                problem = "is a copy or a part of the data that were set up"
            raise ValueError(
                f"{name} {problem}: call TOSICA.{method}({name}, labels_key=...) first."
            )

    @classmethod
    def _setup_from_registry(cls, adata: AnnOrMuData, registry: dict[str, Any]) -> None:
        """Set up a reference for a model that exists, with the arguments of the model's registry.

        The reference may have batches that the registry lacks: no weight of the model belongs to
        a batch, and :meth:`train` finds what differs between the batches of its own reference.
        Labels that the registry lacks are refused.
        """
        setup_method = getattr(cls, registry["setup_method_name"])
        setup_method(
            adata,
            source_registry=registry,
            extend_categories=True,
            **registry["setup_args"],
        )

    @property
    def ontology_term_ids_(self) -> dict[str, str]:
        """Label to identifier in the Cell Ontology, of the labels that have one.

        When a model is made, they are taken from the column ``f"{labels_key}_ontology_term_id"`` of
        the reference, which :func:`tosica.onto.map_labels` writes and data of CELLxGENE have. They
        are saved with the model. Assign a dict to give terms to a model that exists. Empty if there
        are none.
        """
        return dict(self._term_of_label or {})

    @ontology_term_ids_.setter
    def ontology_term_ids_(self, terms: Mapping[str, str]) -> None:
        term_of_label = check_mapping(
            "ontology_term_ids_", terms, self.labels, "the model"
        )
        self._term_of_label = {
            label: term for label, term in term_of_label.items() if term != NO_TERM
        }

    @property
    def label_parents_(self) -> dict[str, str]:
        """The tree above the labels, for confident answers, as the parent of each label or parent.

        The levels of ``labels_key`` if there are several columns. Else empty by default: what is above a label is
        then known from its term, if it has one (:attr:`ontology_term_ids_`). Assign a dict such as
        ``{"naive B": "B", "B": "lymphocyte"}`` to use other groups. It is saved with the model.
        """
        return dict(self._parent_of_label or {})

    @label_parents_.setter
    def label_parents_(self, parents: Mapping[str, str]) -> None:
        self._parent_of_label = check_parents(parents, self.labels)

    @property
    def _labels_key(self) -> str:
        """Column of the reference's ``obs`` with the labels; of several levels, the finest."""
        arguments = self.registry_["setup_args"]
        return as_names(arguments["labels_key"])[-1]

    def _modality_of(self, key: str) -> str | None:
        """Name of the modality whose ``obs`` has a registered column."""
        name: str | None = self.adata_manager.data_registry[key].get("mod_key")
        return name

    @property
    def gene_sets(self) -> list[str]:
        """Names of the gene sets, in the order of the mask, without unannotated tokens."""
        names = self.tokens.names
        return list(names[: len(names) - self.tokens.n_unannotated])

    @validate_params(how=OneOf("mean", "max"))
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
        tokens = self.tokens
        weights = self.module.embedding.gene_weights(how).float().cpu().numpy()
        shape = (len(tokens.var_names), len(tokens.names))
        table = sp.csc_matrix(
            (weights, tokens.genes, tokens.indptr), shape=shape
        ).toarray()
        names = np.array(tokens.names, dtype=object)
        return pd.DataFrame(table, index=tokens.var_names, columns=names)

    def get_linear_weights(self) -> pd.DataFrame:
        """Get how much each gene adds to the logit of each label.

        These are the weights of the logistic regressions, divided by their temperature and
        multiplied by the weight of the linear branch relative to the network, minus the mean of all
        labels that the model was trained on.

        Returns
        -------
        Table ``(n_genes, n_labels)``, float32: the change of a label's logit for each unit of
        log-normalized expression.

        Raises
        ------
        ValueError
            If the model has no linear branch.
        """
        linear = self.module.linear
        if linear is None:
            raise ValueError(
                "The model has no linear branch: it is one of the original code or of linear=False."
            )
        return pd.DataFrame(
            linear.weights.T.cpu().numpy(),
            index=self.tokens.var_names,
            columns=self.labels,
        )

    @validate_params()
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
        names = [modality.genes.to_numpy() for modality in self.modalities]
        if legacy_mudata_format or self.modalities[0].name is None:
            return np.concatenate(names)
        return {str(m.name): n for m, n in zip(self.modalities, names, strict=True)}

    @validate_params(device=DEVICE_OF_TORCH)
    def to_device(self, device: str | int | torch.device) -> None:
        """Move the model to a CPU or a GPU, where it then annotates.

        Parameters
        ----------
        device
            ``"cpu"``, ``"cuda"``, ``"cuda:0"`` and so on, the number of a GPU, or a device of
            torch. To choose it when a model is loaded, see :meth:`load`.

        Raises
        ------
        TypeError
            If it is of another type.
        ValueError
            If torch does not know it, or finds no such GPU.

        Examples
        --------
        With a trained model and a query that it annotated:

        >>> model.to_device("cpu")
        >>> model.device
        device(type='cpu')
        """
        try:
            if isinstance(device, Integral):
                device = torch.device("cuda", int(device))
            torch.empty(0, device=device)
        # AssertionError is what torch raises if it was built without GPUs.
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"device={device!r} cannot be used here ({first_line(error)}): pass 'cpu', 'cuda:0' and so on."
            ) from error
        super().to_device(torch.device(device))

    def _registered_codes(self, key: str) -> np.ndarray:
        """Codes of labels or batches, in the order of the reference's cells; -1 for cells without a label."""
        codes = np.asarray(self.adata_manager.get_from_registry(key), dtype=np.int64)
        codes = codes.ravel()
        name = self._modality_of(key)
        if name is not None:
            codes = codes[cell_indexers(self.adata, [name])[name]]
        if key == REGISTRY_KEYS.LABELS_KEY:
            codes = np.where(codes < len(self.labels), codes, -1)
        return codes


def _one_or_several(labels_key: str | Sequence[str]) -> str | list[str]:
    """Take one column of labels by its name, several as a list."""
    names = as_names(labels_key)
    if not names:
        raise ValueError(
            f"{argument('labels_key')} names no column: give one, or several from broad to fine."
        )
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"{argument('labels_key')} names the column {name!r} more than once."
            )
    return names[0] if len(names) == 1 else names


def _wrap(
    field_cls: type[BaseAnnDataField], data: AnnOrMuData, name: str | None
) -> Callable[..., BaseAnnDataField]:
    """Get the class of a field for an AnnData, or for one modality of a MuData."""
    if isinstance(data, AnnData):
        return field_cls
    return partial(MuDataWrapper(field_cls), mod_key=name)


def _batch_field(
    data: AnnOrMuData, batch_key: str | None, roles: Mapping[str, str | None]
) -> BaseAnnDataField:
    """Make the field of the batches; refuse cells without one, and batches that cannot be saved."""
    modality = None
    if batch_key is not None:
        modality = _find_column(data, batch_key, "batch_key", roles.values())
        column = obs_of(data, modality)[batch_key]
        where = f"{place_of(modality, data)}.obs[{batch_key!r}]"
        if column.isna().any():
            raise ValueError(f"{where} has cells without a batch (NaN).")
        values: Iterable[Any] = column
        if isinstance(column.dtype, pd.CategoricalDtype):
            values = column.cat.categories
        for kind in set(map(type, values)):
            if not issubclass(kind, str | Real | np.bool_):
                raise TypeError(
                    f"{where} holds values of type {kind.__name__}, not names of batches: make them strings"
                    f"{in_python(f', as by {where}.astype(str)')}."
                )
    return _wrap(CategoricalObsField, data, modality)(
        REGISTRY_KEYS.BATCH_KEY, batch_key
    )


def code_holders(manager: AnnDataManager) -> list[AnnOrMuData]:
    """Find the reference, and its modalities in whose ``obs`` the codes of labels or batches are."""
    data = manager.adata
    keys = (REGISTRY_KEYS.LABELS_KEY, REGISTRY_KEYS.BATCH_KEY)
    names = {
        getattr(field, "mod_key", None)
        for field in manager.fields
        if field.registry_key in keys
    }
    return [data, *(data[name] for name in names if name is not None)]


def obs_of(data: AnnOrMuData, name: str | None) -> pd.DataFrame:
    """Get the ``obs`` of the whole or of a modality."""
    obs: pd.DataFrame = data.obs if name is None else data[name].obs
    return obs


def _find_column(
    data: AnnOrMuData, key: str, parameter: str, names: Iterable[str | None]
) -> str | None:
    """Find the modality whose ``obs`` has a column; ``None`` if the ``obs`` of the whole has it."""
    if key in data.obs:
        one_column(data.obs, key)
        return None
    place = "adata.obs"
    modalities: dict[str, AnnData] = {}
    if not isinstance(data, AnnData):
        place = "mdata.obs or of a modality's obs"
        modalities = {str(name): data[name] for name in names}
    owners = [name for name, modality in modalities.items() if key in modality.obs]
    if not owners:
        columns = list(data.obs.columns)
        for modality in modalities.values():
            columns.extend(modality.obs.columns)
        columns = list(dict.fromkeys(columns))
        raise KeyError(
            f"{argument(parameter)} {key!r} is no column of {place}{only_known(key, columns)}"
        )
    indexers = cell_indexers(data, owners)
    values = []
    for name in owners:
        column = reindex_obs(modalities[name], indexers[name]).obs[key]
        values.append(np.where(column.isna(), None, column.astype(str)))
    if not all(np.array_equal(values[0], column) for column in values):
        raise ValueError(
            f"{argument(parameter)} {key!r} is a column of several modalities, and they differ: say which is meant by "
            "mdata.obs."
        )
    logger.info("setup_mudata: found %s %r in mdata[%r].obs", parameter, key, owners[0])
    return owners[0]
