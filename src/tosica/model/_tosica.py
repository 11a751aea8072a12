"""The model class: set up a reference, train, annotate a query, save and load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import rich.pretty  # noqa: F401 # scvi-tools prints with it, but leaves its import to chance

from tosica._limits import LIMITS
from tosica._parallel import thread_pool
from tosica._progress import progress
from tosica._settings import logger
from tosica._text import list_names
from tosica._validate import ANY_CELLS, InstanceOf, validate_params
from tosica.data import check_unique, find_genes
from tosica.model._adapt import AdaptMixin
from tosica.model._change_labels import ChangeLabelsMixin
from tosica.model._fields import read_terms
from tosica.model._hub import HubMixin
from tosica.model._labels import Labels
from tosica.model._levels import parents_of_levels
from tosica.model._modalities import lay_out_tokens, read_modalities
from tosica.model._setup import obs_of
from tosica.model._tokens import select_tokens
from tosica.model._training import TrainingMixin
from tosica.model._training_result import TrainingResult
from tosica.module import REGISTRY_KEYS, TOSICAModule
from tosica.pp import build_mask

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from anndata import AnnData

    from tosica._types import AnnOrMuData
    from tosica.pp._read_gene_sets import GeneSetsLike


class TOSICA(TrainingMixin, AdaptMixin, ChangeLabelsMixin, HubMixin):
    """Annotate cells with a Transformer whose tokens are gene sets (Chen et al., 2023).

    The model is trained on a reference with labels. It gives each cell of a query a label, a
    probability and the attention of the class token to every gene set.

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
    linear
        Add the logits of logistic regressions whose weights go through the same tokens, see
        :meth:`train`. ``False`` leaves them out, as in the paper.
    max_gene_sets
        Largest number of gene sets that become tokens. If the mask has more, those that separate
        the reference's labels best are chosen, by a group lasso over all of them. ``None`` takes
        all. In a MuData the limit holds for each modality whose tokens are gene sets.
    modules
        Put genes in none of the chosen gene sets into co-expression modules of the reference. They
        are tokens named by their leading genes, such as ``"module: CD37, LIMD2, TAGLN2"``. No
        modules are made if a token has every gene.

    Raises
    ------
    TypeError
        If ``adata`` is neither AnnData nor MuData, or a parameter is of the wrong type.
    ValueError
        If ``adata`` was not set up, or its genes have changed since; if ``embed_dim``,
        ``n_heads``, ``n_layers`` or ``max_gene_sets`` make no sense, or there are more tokens than
        memory allows.

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
    >>> query.obsm["X_tosica"].shape  # 20 gene sets and 36 modules
    (200, 56)
    """

    _module_cls = TOSICAModule

    @validate_params(
        registry=InstanceOf(
            "a dict, as TOSICA.load_registry returns it", Mapping, optional=True
        )
    )
    def __init__(
        self,
        adata: AnnOrMuData | None = None,
        registry: dict[str, Any] | None = None,
        *,
        embed_dim: int = 48,
        n_heads: int = 4,
        n_layers: int = 2,
        linear: bool = True,
        max_gene_sets: int | None = 300,
        modules: bool = True,
    ) -> None:
        if embed_dim % n_heads:
            raise ValueError(
                f"embed_dim ({embed_dim}) must be a multiple of n_heads ({n_heads})."
            )
        if registry is None:
            ANY_CELLS.check("adata", adata)
        if adata is not None:
            self._check_set_up(adata)
        super().__init__(adata, registry)
        labels_state = self.get_state_registry(REGISTRY_KEYS.LABELS_KEY)
        labels = Labels.from_state(labels_state)
        self.labels = labels.names
        if labels.levels:
            self._parent_of_label = parents_of_levels(labels.names, labels.levels)
        self.modalities = read_modalities(self.registry_)
        if adata is not None:
            for modality in self.modalities:
                modality.check_reference(adata)
            with thread_pool(), progress(None, "TOSICA: gene sets"):
                select_tokens(self, max_gene_sets, modules)
        self.tokens = lay_out_tokens(self.modalities)
        self.training_ = TrainingResult()
        self.module = self._module_cls(
            self.tokens,
            len(self.labels),
            embed_dim=embed_dim,
            n_heads=n_heads,
            n_layers=n_layers,
            linear=linear,
        )
        self.module.eval()
        if adata is not None:
            obs = obs_of(adata, self._modality_of(REGISTRY_KEYS.LABELS_KEY))
            self._term_of_label = read_terms(obs, self._labels_key, self.labels)
        self.init_params_ = self._get_init_params(locals())

    @classmethod
    @validate_params(
        setup_kwargs=InstanceOf(
            "a dict of arguments of setup_anndata", Mapping, optional=True
        )
    )
    def for_query(
        cls,
        query: AnnData,
        reference: AnnData,
        labels_key: str | Sequence[str],
        *,
        gene_sets: GeneSetsLike = "gobp",
        organism: str = "auto",
        max_gene_sets: int | None = 300,
        setup_kwargs: Mapping[str, Any] | None = None,
        **train_kwargs: Any,
    ) -> Self:
        """Train a model on the genes that a query has, such as those of a panel.

        A model of a whole transcriptome refuses a query with under half of its genes. This one is trained on the
        genes that both have, and its log says how many of the reference's held-out cells get their label by them.

        Parameters
        ----------
        query
            The query, ``(n_obs, n_vars)``, such as cells of Xenium, CosMx or MERSCOPE. Only its genes are read.
        reference
            The reference, ``(n_ref, n_genes)``, counts or log-normalized expression. It is not changed. Genes are
            matched as by :meth:`annotate`.
        labels_key
            Column of ``reference.obs`` with the labels, or several, as in :meth:`setup_anndata`.
        gene_sets, organism
            As in :func:`tosica.pp.build_mask`. A panel holds few genes of a set: three of them keep it.
        max_gene_sets
            As in :class:`TOSICA`.
        setup_kwargs
            More arguments of :meth:`setup_anndata`, such as ``{"batch_key": "donor"}``.
        **train_kwargs
            Arguments of :meth:`train`. ``check_labels`` is off: few genes cannot contradict labels of many.

        Returns
        -------
        The trained model. :attr:`held_out_accuracy_` is its accuracy on these genes.

        Raises
        ------
        ValueError
            If names of the reference's genes occur twice; if it has under half of the query's genes; if no more of
            the held-out cells get their label than have the commonest one, because the shared genes do not tell the
            labels apart; and as the methods above.
        KeyError, TypeError
            As the methods above.

        Examples
        --------
        >>> import scanpy as sc
        >>> import tosica
        >>> reference = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> reference.obs_names_make_unique()
        >>> query = reference[:100, ::3].copy()  # 255 of 765 genes
        >>> model = tosica.TOSICA.for_query(
        ...     query,
        ...     reference[100:],
        ...     "bulk_labels",
        ...     max_epochs=2,
        ...     enable_progress_bar=False,
        ... )
        >>> model.held_out_accuracy_ > 0.6
        True
        >>> model.annotate(query)
        """
        check_unique(
            reference.var_names,
            "reference.var_names",
            "reference.var_names_make_unique()",
        )
        found = find_genes(
            query.var_names, reference.var_names.astype(str), lambda: query.var
        ).indexer
        shared = reference[:, np.unique(found[found >= 0])]
        # A backed one is copied to memory only.
        shared = shared.to_memory() if reference.isbacked else shared.copy()
        # Control probes are few; names of another species or of peaks are all.
        if 2 * shared.n_vars < query.n_vars:
            raise ValueError(
                f"The reference has only {shared.n_vars} of the query's {query.n_vars} genes: take a reference of the "
                "same species and all genes, and leave what is no gene out of the query."
            )
        build_mask(shared, gene_sets, min_genes=3, organism=organism)
        cls.setup_anndata(shared, labels_key, **(setup_kwargs or {}))
        model = cls(shared, max_gene_sets=max_gene_sets)
        model.train(**{"check_labels": False} | train_kwargs)
        held_out, accuracy = model.training_.held_out_codes, model.held_out_accuracy_
        if held_out is None or accuracy is None:
            return model
        sizes = np.bincount(held_out[0], minlength=len(model.labels))
        genes = f"on the {shared.n_vars} genes that query and reference share"
        share = sizes.max() / sizes.sum()
        if accuracy <= share:
            raise ValueError(
                f"{accuracy:.0%} of the held-out cells get their label {genes}, and {share:.0%} have the commonest "
                f"one, {model.labels[sizes.argmax()]!r}: these genes do not tell the labels apart. Join "
                "labels that are alike, or check the names of the genes."
            )
        recall = np.bincount(
            held_out[0], held_out[0] == held_out[1], len(sizes)
        ) / np.maximum(sizes, 1)
        weak = [
            model.labels[i]
            for i in np.flatnonzero((sizes > 0) & (recall < LIMITS.probability))
        ]
        more = f"; of {list_names(weak)}, fewer than half do" if weak else ""
        logger.info(
            "for_query: %.1f %% of the held-out cells get their label %s%s",
            100 * accuracy,
            genes,
            more,
        )
        return model

    def __repr__(self) -> str:
        state = "not trained yet"
        if self.is_trained_:
            state = "trained"
            if self.history_:
                state += f" ({len(next(iter(self.history_.values())))} epochs)"
        names = ", ".join(self.labels[:6]) + (", …" if len(self.labels) > 6 else "")
        width = self.module.embedding.embed_dim
        parameters = self.init_params_["non_kwargs"]
        n_parameters = sum(weight.numel() for weight in self.module.parameters())
        network = (
            f"    network: width {width}, {parameters['n_heads']} heads, {parameters['n_layers']} layers, "
            f"{n_parameters:,} parameters"
        )
        if self.module.linear is not None:
            network += "; beside it a linear branch"
        lines = [f"TOSICA model, {state}"]
        for modality in self.modalities:
            lines += modality.describe()
        lines += [f"    labels: {len(self.labels)} ({names})", network]
        if self.training_.adaptation is not None:
            lines.append(f"    {self.training_.adaptation}")
        return "\n".join(lines)


MODEL = InstanceOf("a TOSICA model, which tosica.TOSICA.load(folder) returns", TOSICA)
"""Constraint of parameters that take a model."""
