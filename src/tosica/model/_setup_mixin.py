"""Register a reference: its expression, labels, batches and mask."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from scvi.data import AnnDataManager, AnnDataManagerValidationCheck
from scvi.data.fields import CategoricalObsField
from scvi.model.base import BaseModelClass

from tosica._groups import missing_column
from tosica._validation import check_count, check_data, check_string, did_you_mean
from tosica.data import load_annotations
from tosica.model._fields import ExpressionField
from tosica.model._labels_field import LabelsField, check_unlabeled_category
from tosica.model._mask_field import MaskField, check_genes_of_mask
from tosica.model._modalities import is_joint
from tosica.model._setup_mudata import check_modalities, log_modalities, mudata_fields
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from anndata import AnnData
    from mudata import MuData


# Arguments that scvi-tools passes on where a registry exists already.
_OF_A_TRANSFER = ("source_registry", "extend_categories", "allow_missing_labels")


class SetupMixin(BaseModelClass):
    """Setting up an AnnData or a MuData as the reference."""

    @classmethod
    def setup_anndata(
        cls,
        adata: AnnData,
        labels_key: str,
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
            The reference, ``(n_obs, n_vars)``: counts, or log-normalised expression. Counts need
            not be whole, as those of SoupX and alevin are not.
        labels_key
            Column of ``adata.obs`` with the labels. Predictions come back in their type: text,
            whole numbers, booleans, or an ordered categorical.
        unlabeled_category
            Value of that column in cells without a label; the model is not trained on them.
        batch_key
            Column of ``adata.obs`` with the batches. Validation cells are drawn evenly from them,
            and :meth:`train` corrects for differences between them.
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
            If labels are missing or all equal; if names occur twice; if there are no cells or
            genes; if the expression is missing, infinite, negative or neither counts nor
            log-normalised; if the mask does not fit.
        TypeError
            If the matrix does not hold numbers.

        Warns
        -----
        UserWarning
            If labels have a single cell.

        Examples
        --------
        >>> import scanpy as sc
        >>> import tosica
        >>> ref = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> tosica.pp.build_mask(ref)
        >>> tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels", batch_key="phase")
        """
        check_data(adata, cure="call TOSICA.setup_mudata for a MuData")
        load_annotations(adata)
        check_unlabeled_category(unlabeled_category)
        check_string("labels_key", labels_key)
        check_string("batch_key", batch_key, optional=True)
        check_count("min_cells", min_cells)
        check_string("mask_key", mask_key)
        _check_other_arguments("setup_anndata", cls.setup_anndata, kwargs)
        setup_method_args = cls._get_setup_method_args(**locals())
        labels = LabelsField(
            REGISTRY_KEYS.LABELS_KEY, labels_key, unlabeled_category, min_cells=min_cells
        )
        mask = MaskField(REGISTRY_KEYS.MASK_KEY, mask_key)
        expression = ExpressionField(REGISTRY_KEYS.X_KEY, layer)
        batch = CategoricalObsField(REGISTRY_KEYS.BATCH_KEY, batch_key)
        # All are checked before the first one writes to adata; those that write come last.
        expression.validate_field(adata)
        mask.validate_field(adata)
        # The mask of a reference to go on training with is compared with the model's.
        if "source_registry" not in kwargs:
            check_genes_of_mask(adata, mask_key)
        for key in (labels_key, batch_key):
            if key is not None and key not in adata.obs:
                raise KeyError(missing_column(adata, key))
        labels.validate_field(adata)
        if batch_key is not None and adata.obs[batch_key].isna().any():
            raise ValueError(f"adata.obs[{batch_key!r}] has cells without a batch (NaN).")
        fields = [expression, mask, labels, batch]
        manager = AnnDataManager(fields=fields, setup_method_args=setup_method_args)
        manager.register_fields(adata, **kwargs)
        cls.register_manager(manager)

    @classmethod
    def setup_annbatch(cls, *args: Any, **kwargs: Any) -> None:
        """Not for this model, which needs the genes and the mask of an AnnData.

        Raises
        ------
        NotImplementedError
            Always; the message says how a collection of annbatch is set up.
        """
        raise NotImplementedError(
            "TOSICA has no setup_annbatch: make data = tosica.model.AnnbatchDataModule(path), call "
            "tosica.pp.build_mask(data.adata) and TOSICA.setup_anndata(data.adata, "
            "labels_key=...), and train with datamodule=data."
        )

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
        min_cells: int = 1,
        **kwargs: Any,
    ) -> None:
        """Register a reference of several modalities, such as RNA and antibodies of CITE-seq.

        Each modality is normalised in its own way: counts of RNA and of gene activity as log1p of
        counts per 10 000, counts of antibodies as the centred log-ratio of each cell. Values that
        are normalised already are used as they are. Which is the case is detected and logged.

        Writes what scvi-tools writes: codes in ``mdata.obs`` (``_scvi_labels``, ``_scvi_batch``),
        or in the ``obs`` where labels and batches were found, and identifiers in ``mdata.uns``.

        Parameters
        ----------
        mdata
            The reference; every modality that is used has the same cells, in any order.
        labels_key
            Column with the labels, of ``mdata.obs`` or else of one modality's ``obs``.
        modalities
            Role to name in ``mdata``. Roles are "rna", "protein" (antibodies) and "atac" (gene
            activity: fragments counted over each gene, not peaks). By default
            ``{"rna": "rna", "protein": "protein"}``. Other modalities are not used.
        unlabeled_category
            Label of cells without one; the model is not trained on them.
        batch_key
            Column with the batches, found as labels are. Validation cells are drawn evenly from
            them. Models of a MuData do not correct for batches; models of an AnnData do.
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
        check_string("labels_key", labels_key)
        check_unlabeled_category(unlabeled_category)
        check_string("batch_key", batch_key, optional=True)
        check_count("min_cells", min_cells)
        _check_other_arguments("setup_mudata", cls.setup_mudata, kwargs)
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
            min_cells=min_cells,
        )
        if "source_registry" not in kwargs:
            for name in modalities.values():
                check_genes_of_mask(mdata[name], mask_key, f"mdata[{name!r}]")
        # Cells were checked above, for the modalities that are used.
        manager = AnnDataManager(
            fields=fields,
            setup_method_args=setup_method_args,
            validation_checks=AnnDataManagerValidationCheck(check_fully_paired_mudata=False),
        )
        manager.register_fields(mdata, **kwargs)
        log_modalities(modalities, manager.registry)
        cls.register_manager(manager)

    @classmethod
    def _setup_from_registry(cls, adata: AnnData | MuData, registry: dict[str, Any]) -> None:
        """Set up a reference for a model that exists, with the arguments of the model's registry.

        The reference may have batches that the registry lacks: no weight of the model belongs to
        a batch, and :meth:`train` finds what differs between the batches of its own reference.
        Labels that the registry lacks are refused.
        """
        setup = cls.setup_mudata if is_joint(registry) else cls.setup_anndata
        setup(adata, source_registry=registry, extend_categories=True, **registry["setup_args"])


def _check_other_arguments(name: str, method: Callable[..., None], kwargs: dict[str, Any]) -> None:
    """Refuse an argument that scvi-tools would ignore, such as a misspelled one."""
    for argument in kwargs:
        if argument not in _OF_A_TRANSFER:
            known = inspect.signature(method).parameters
            raise TypeError(
                f"{name} has no parameter {argument!r}{did_you_mean(argument, known, 1)}"
            )
