"""What ``setup_anndata`` registers of a reference, beyond what scvi-tools' own fields keep.

Everything that a model needs to exist without its reference is kept in the registry: the scale of
the expression, the labels (``_labels_field``) and the mask (``_mask_field``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
from scvi.data.fields import LayerField

from tosica.data import (
    MODALITY_KINDS,
    CellMatrix,
    ModalityKind,
    check_unique,
    check_varies,
)

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
        self,
        registry_key: str,
        layer: str | None,
        name: str = "adata",
        kind: ModalityKind[Any] = MODALITY_KINDS["rna"],
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

    def transfer_field(
        self, state_registry: dict[str, Any], adata_target: AnnData, **kwargs: Any
    ) -> dict[str, Any]:
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
                f"{self._name} holds {found.kind} values, but the model was trained on "
                f"{saved.kind} values."
            )
        return {**state, self.SCALE_KEY: self._kind.keep_scale(saved, found)._asdict()}
