"""What is registered of a modality: the scale of its expression, and its mask.

Everything that a model needs to exist without its reference is kept in the registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scvi.data.fields import BaseAnnDataField, LayerField

from tosica._checks import list_names
from tosica.data import MODALITY_KINDS, CellMatrix, ModalityKind, check_unique, check_varies

if TYPE_CHECKING:
    from anndata import AnnData


class ExpressionField(LayerField):
    """The matrix of one modality, checked value by value, and how it is scaled.

    Parameters
    ----------
    registry_key
        Key to register the field under.
    layer
        Layer to read, ``None`` for ``X``.
    name
        What the AnnData is called in messages.
    kind
        Kind of modality.
    """

    SCALE_KEY = "scale"

    def __init__(
        self, registry_key: str, layer: str | None, name: str = "adata", kind: ModalityKind[Any] = MODALITY_KINDS["rna"]
    ) -> None:
        # The matrix is not changed: neither are counts demanded nor is its format converted.
        super().__init__(registry_key, layer, is_count_data=False, correct_data_format=False)
        self._name = name
        self._kind = kind

    def validate_field(self, adata: AnnData) -> None:
        """Refuse a matrix that is missing, empty or not of numbers, and names that do not fit."""
        name = self._name
        matrix = CellMatrix(adata, layer=self.attr_key, name=name)
        check_unique(adata.obs_names, "obs_names", f"{name}.obs_names_make_unique()")
        check_unique(adata.var_names, "var_names", f"{name}.var_names_make_unique()")
        self._kind.check_names(adata.var_names, name)
        check_varies(matrix)

    def register_field(self, adata: AnnData) -> dict[str, Any]:
        """Check the values, and find out how the matrix is scaled."""
        state = super().register_field(adata)
        matrix = CellMatrix(adata, layer=self.attr_key, name=self._name)
        scale = self._kind.detect_scale(matrix)
        return {**state, self.SCALE_KEY: scale._asdict()}

    def transfer_field(self, state_registry: dict[str, Any], adata_target: AnnData, **kwargs: Any) -> dict[str, Any]:
        """Accept another reference with the same genes in the same order, scaled alike."""
        genes = pd.Index(state_registry[self.COLUMN_NAMES_KEY])
        if not genes.equals(pd.Index(adata_target.var_names.astype(str))):
            raise ValueError(
                f"{self._name}'s var_names are not the model's genes in the model's order: take "
                f"{self._name}[:, model.get_var_names()], or pass no adata to load and call "
                "annotate, which matches genes by name."
            )
        state = self.register_field(adata_target)
        saved, found = (self._kind.load_scale(s[self.SCALE_KEY]) for s in (state_registry, state))
        if saved.kind != found.kind:
            raise ValueError(
                f"{self._name} holds {found.kind} values, but the model was trained on {saved.kind} values."
            )
        return {**state, self.SCALE_KEY: self._kind.merge_scale(saved, found)._asdict()}


class MaskField(BaseAnnDataField):
    """Which gene is in which gene set, as :func:`tosica.pp.build_mask` leaves it.

    Parameters
    ----------
    registry_key
        Key to register the field under.
    mask_key
        Key of ``varm`` and ``uns``.
    name
        What the AnnData is called in messages.
    """

    MIXED_KEY = "mixed_tokens"
    # For each token its column in the mask; -1 for a co-expression module.
    COLUMNS_KEY = "columns"
    # Number of co-expression modules.
    MODULES_KEY = "n_modules"
    # All gene sets of the mask, tokens or not, which contributions are tested by.
    COLLECTION_KEYS = ("collection", "collection_indptr", "collection_genes")
    attr_name = "varm"
    attr_key = registry_key = ""
    is_empty = False

    def __init__(self, registry_key: str, mask_key: str, name: str = "adata") -> None:
        super().__init__()
        self.registry_key = registry_key
        self.attr_key = mask_key
        self._name = name
        self._again = f"call tosica.pp.build_mask({name.partition('[')[0]}) again."

    def validate_field(self, adata: AnnData) -> None:
        """Refuse a mask that is missing, or that is not the one its names belong to."""
        key = self.attr_key
        varm, uns = f"{self._name}.varm[{key!r}]", f"{self._name}.uns[{key!r}]"
        made = adata.uns.get(key)
        if key not in adata.varm or not isinstance(made, Mapping) or "gene_sets" not in made:
            first = self._again.replace(" again.", " first.")
            raise KeyError(f"There is no mask in {varm} and {uns}: {first}")
        if len(made["gene_sets"]) != adata.varm[key].shape[1]:
            raise ValueError(
                f"{varm} has {adata.varm[key].shape[1]} gene sets and {uns} names "
                f"{len(made['gene_sets'])}: they are not from one call; {self._again}"
            )
        empty = np.flatnonzero(np.diff(sp.csc_matrix(adata.varm[key]).indptr) == 0)
        if len(empty):
            names = list_names([str(made["gene_sets"][i]) for i in empty], 3)
            raise ValueError(
                f"{len(empty)} gene sets of {varm} have no gene in {self._name} ({names}): genes "
                f"were left out since; {self._again}"
            )

    def register_field(self, adata: AnnData) -> dict[str, Any]:
        """Keep the mask by columns, and what it was made from."""
        super().register_field(adata)
        n_built = adata.uns[self.attr_key].get("n_genes", adata.n_vars)
        if n_built != adata.n_vars:
            raise ValueError(
                f"{self._name}.varm[{self.attr_key!r}] was built for {n_built} genes, and "
                f"{self._name} has {adata.n_vars}: genes were left out since; {self._again}"
            )
        return self._read(adata)

    def _read(self, adata: AnnData) -> dict[str, Any]:
        mask = sp.csc_matrix(adata.varm[self.attr_key])
        mask.sort_indices()
        made = adata.uns[self.attr_key]
        return {
            "gene_sets": np.asarray(made["gene_sets"], dtype=object),
            "n_unannotated": int(made["n_unannotated"]),
            "source": str(made["source"]),
            "organism": str(made["organism"]),
            "indptr": mask.indptr.astype(np.int64),
            "genes": mask.indices.astype(np.int64),
            # A matter of the weights, not of the mask: only a model of the original code has it.
            self.MIXED_KEY: False,
        }

    def transfer_field(self, state_registry: dict[str, Any], adata_target: AnnData, **kwargs: Any) -> dict[str, Any]:
        """Accept another reference only with the mask that the model chose its tokens from."""
        self.validate_field(adata_target)
        given, known = (
            [
                (str(name), members.tolist())
                for name, members in zip(
                    state["gene_sets"],
                    np.split(np.asarray(state["genes"]), np.asarray(state["indptr"])[1:-1]),
                    strict=True,
                )
            ]
            for state in (self._read(adata_target), state_registry)
        )
        columns = np.asarray(state_registry.get(self.COLUMNS_KEY, np.arange(len(known))))
        for token, column in enumerate(columns):
            if column >= len(given) or (column >= 0 and given[column] != known[token]):
                raise ValueError(
                    f"{self._name}.varm[{self.attr_key!r}] is not the mask that the model was "
                    f"trained with ({len(known)} tokens of {state_registry['source']}): build it "
                    "from the same gene sets with the same parameters."
                )
        return dict(state_registry)

    def get_summary_stats(self, state_registry: dict[str, Any]) -> dict[str, int]:
        """Count the tokens."""
        key = self.registry_key.replace("mask", "n_tokens")
        return {key: len(state_registry["gene_sets"])}

    def view_state_registry(self, state_registry: dict[str, Any]) -> None:
        """Show nothing: ``repr`` of the model has a better table."""
