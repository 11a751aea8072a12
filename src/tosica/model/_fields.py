"""What ``setup_anndata`` registers of a reference, beyond what scvi-tools' own fields keep.

Everything that a model needs to exist without its reference is kept in the registry: the scale of
the expression, the labels in the reference's order with their colours, and the mask, which is in
``_mask_field``.
"""

from __future__ import annotations

import warnings
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scvi.data.fields import CategoricalObsField, LayerField

from tosica._constants import UNKNOWN
from tosica._logging import logger
from tosica._palette import default_palette
from tosica._validation import did_you_mean, file_columns
from tosica.data import (
    MODALITY_KINDS,
    CellMatrix,
    ModalityKind,
    are_factor_codes,
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
        scale = self._kind.detect_scale(adata, layer=self.attr_key, name=self._name)
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


class LabelsField(CategoricalObsField):
    """Labels in the reference's order with their colours; cells without a label come last.

    Parameters
    ----------
    registry_key
        Key to register the field under.
    obs_key
        Column of ``obs``.
    unlabeled_category
        What marks a cell without a label, or ``None`` if every cell has one.
    name
        What the AnnData is called in messages.
    """

    COLORS_KEY = "colors"
    UNLABELED_KEY = "unlabeled_category"

    def __init__(
        self,
        registry_key: str,
        obs_key: str,
        unlabeled_category: str | None = None,
        name: str = "adata",
    ) -> None:
        super().__init__(registry_key, obs_key)
        self._where = f"{name}.obs"
        self._unlabeled = None if unlabeled_category is None else str(unlabeled_category)

    def validate_field(self, adata: AnnData) -> None:
        """Refuse labels that a model cannot learn from."""
        key = self._original_attr_key
        n_missing = int(adata.obs[key].isna().sum())
        if n_missing:
            raise ValueError(
                f"{n_missing} cells have no label (NaN) in {self._where}[{key!r}]: leave them out, "
                "or give them a name of their own and pass it as unlabeled_category."
            )
        if are_factor_codes(adata, key):
            raise ValueError(
                f"{self._where}[{key!r}] holds numbers from 0 on, which may be codes of a factor "
                "whose levels were lost on the way from Seurat: tosica.io.read_seurat gets them "
                "back from the file; if the numbers are the labels, make them strings "
                f"({self._where}[{key!r}].astype(str))."
            )
        text = adata.obs[key].astype("category").cat.categories.astype(str)
        if not text.is_unique:
            twice = ", ".join(repr(name) for name in text[text.duplicated()].unique())
            raise ValueError(
                f"{self._where}[{key!r}] has different labels with the same text ({twice}): make "
                f"them one type, e.g. by {self._where}[{key!r}].astype(str)."
            )
        sizes = adata.obs[key].astype(str).value_counts()
        sizes = sizes[sizes.index != self._unlabeled]
        file_columns(list(sizes.index), f"{self._where}[{key!r}]")
        if len(sizes) < 2:
            found = repr(sizes.index[0]) if len(sizes) else "none"
            raise ValueError(
                f"{self._where}[{key!r}] needs at least two different labels to tell apart; "
                f"found {found}."
            )
        if UNKNOWN in sizes.index:
            raise ValueError(
                f"{self._where}[{key!r}] has a label {UNKNOWN!r}, which annotate writes where it "
                f"is in doubt: rename it, or pass unlabeled_category={UNKNOWN!r}."
            )

    def register_field(self, adata: AnnData) -> dict[str, Any]:
        """Give each label a code, in the order of its category; unused categories get none."""
        self.validate_field(adata)
        self._warn_of_single_cells(adata)
        self._warn_of_no_unlabeled_cell(adata)
        column = adata.obs[self._original_attr_key].astype("category")
        used = np.flatnonzero(np.bincount(column.cat.codes, minlength=len(column.cat.categories)))
        names = column.cat.categories.astype(str).to_numpy()[used]
        colors = _colors(adata, self._original_attr_key, len(column.cat.categories), used)
        order = np.argsort(names == self._unlabeled, kind="stable")
        self._write_codes(adata, names[order])
        return {
            self.CATEGORICAL_MAPPING_KEY: names[order].astype(object),
            self.ORIGINAL_ATTR_KEY: self._original_attr_key,
            self.UNLABELED_KEY: self._unlabeled,
            self.COLORS_KEY: [colors[i] for i in order],
        }

    def transfer_field(
        self, state_registry: dict[str, Any], adata_target: AnnData, **kwargs: Any
    ) -> dict[str, Any]:
        """Give the labels of another reference the codes that they have in the model."""
        self.validate_field(adata_target)
        names = np.asarray(state_registry[self.CATEGORICAL_MAPPING_KEY], dtype=object)
        new = set(adata_target.obs[self._original_attr_key].astype(str)) - set(names)
        new.discard(self._unlabeled)
        if new:
            raise ValueError(
                f"{self._where}[{self._original_attr_key!r}] has labels that the model does not "
                f"know: {', '.join(map(repr, sorted(new)))}."
            )
        if self._unlabeled is not None and self._unlabeled not in names:
            names = np.append(names, self._unlabeled)
        self._write_codes(adata_target, names)
        return {**state_registry, self.CATEGORICAL_MAPPING_KEY: names}

    def _warn_of_single_cells(self, adata: AnnData) -> None:
        key = self._original_attr_key
        sizes = adata.obs[key].astype(str).value_counts()
        single = sorted(sizes.index[(sizes == 1) & (sizes.index != self._unlabeled)])
        if single:
            warnings.warn(
                f"labels with a single cell in {self._where}[{key!r}]: "
                f"{', '.join(map(repr, single))}. They are learnt, but neither validated nor "
                "calibrated: add cells, merge the label or leave it out.",
                UserWarning,
                stacklevel=2,
            )

    def _warn_of_no_unlabeled_cell(self, adata: AnnData) -> None:
        known = adata.obs[self._original_attr_key].astype(str).unique()
        if self._unlabeled is not None and self._unlabeled not in known:
            logger.warning(
                "setup: unlabeled_category %r is no value of %s[%r], so that every cell counts as "
                "labeled%s",
                self._unlabeled,
                self._where,
                self._original_attr_key,
                did_you_mean(self._unlabeled, known, 1),
            )

    def _write_codes(self, adata: AnnData, names: np.ndarray) -> None:
        labels = adata.obs[self._original_attr_key].astype(str)
        adata.obs[self.attr_key] = pd.Index(names).get_indexer(labels).astype(np.int64)


def check_unlabeled_category(label: Any) -> None:
    """Refuse what marks no cell: anything but a label or ``None``."""
    # Labels may be numbers.
    if label is not None and not isinstance(label, str | Real):
        raise TypeError(f"unlabeled_category must be a label or None, not {label!r:.60}.")


def _colors(adata: AnnData, key: str, n_categories: int, used: np.ndarray) -> list[str]:
    """The colours that scanpy keeps for these categories, or those that it would give them."""
    kept = adata.uns.get(f"{key}_colors")
    if kept is not None and len(kept) >= n_categories:
        return [str(kept[i]) for i in used]
    return default_palette(len(used))
