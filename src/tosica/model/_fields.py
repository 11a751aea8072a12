"""What ``setup_anndata`` registers of a reference, beyond what scvi-tools' own fields keep.

Everything that a model needs to exist without its reference is kept in the registry: the scale of
the expression, the labels in the reference's order with their colours, and the mask.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scvi.data.fields import BaseAnnDataField, CategoricalObsField, LayerField

from tosica._constants import UNKNOWN
from tosica._palette import default_palette
from tosica.data import MODALITY_KINDS, CellMatrix, ModalityKind, are_factor_codes, check_unique

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
        CellMatrix(adata, layer=self.attr_key, name=name)
        check_unique(adata.obs_names, "obs_names", f"{name}.obs_names_make_unique()")
        check_unique(adata.var_names, "var_names", f"{name}.var_names_make_unique()")
        self._kind.check_names(adata.var_names, name)

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
        if key not in adata.obs:
            known = ", ".join(map(repr, adata.obs.columns)) or "none"
            raise KeyError(
                f"labels_key {key!r} is not a column of {self._where}; columns: {known}."
            )
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

    def _write_codes(self, adata: AnnData, names: np.ndarray) -> None:
        labels = adata.obs[self._original_attr_key].astype(str)
        adata.obs[self.attr_key] = pd.Index(names).get_indexer(labels).astype(np.int64)


def _colors(adata: AnnData, key: str, n_categories: int, used: np.ndarray) -> list[str]:
    """The colours that scanpy keeps for these categories, or those that it would give them."""
    kept = adata.uns.get(f"{key}_colors")
    if kept is not None and len(kept) >= n_categories:
        return [str(kept[i]) for i in used]
    return default_palette(len(used))


class MaskField(BaseAnnDataField):
    """Which gene is in which gene set, as :func:`tosica.pp.build_mask` leaves it.

    Parameters
    ----------
    registry_key
        Key to register the field under.
    mask_key
        Key of ``varm`` and ``uns``.
    mdata_key
        Name of the modality that the AnnData is, for messages; ``None`` if it is none.
    """

    MIXED_KEY = "mixed_tokens"
    # For each token its column in the mask; -1 for a co-expression module.
    COLUMNS_KEY = "columns"
    # Number of co-expression modules.
    MODULES_KEY = "n_modules"

    def __init__(self, registry_key: str, mask_key: str, mdata_key: str | None = None) -> None:
        super().__init__()
        self._registry_key = registry_key
        self._mask_key = mask_key
        self._name = "adata" if mdata_key is None else f"mdata[{mdata_key!r}]"
        self._call = f"tosica.pp.build_mask({'adata' if mdata_key is None else 'mdata'})"

    @property
    def registry_key(self) -> str:
        """Key that the field is registered under."""
        return self._registry_key

    @property
    def attr_name(self) -> str:
        """Attribute of the AnnData."""
        return "varm"

    @property
    def attr_key(self) -> str:
        """Key in the attribute."""
        return self._mask_key

    @property
    def is_empty(self) -> bool:
        """A model always has a mask."""
        return False

    def validate_field(self, adata: AnnData) -> None:
        """Refuse a mask that is missing, or that is not the one its names belong to."""
        key = self._mask_key
        if key not in adata.varm or key not in adata.uns:
            raise KeyError(
                f"There is no mask in {self._name}.varm[{key!r}] and {self._name}.uns[{key!r}]: "
                f"call {self._call} first."
            )
        n_named, n_columns = len(adata.uns[key]["gene_sets"]), adata.varm[key].shape[1]
        if n_named != n_columns:
            raise ValueError(
                f"{self._name}.varm[{key!r}] has {n_columns} gene sets and "
                f"{self._name}.uns[{key!r}] names {n_named}: they are not from one "
                f"call; call {self._call} again."
            )
        empty = np.flatnonzero(np.diff(sp.csc_matrix(adata.varm[key]).indptr) == 0)
        if len(empty):
            names = [str(adata.uns[key]["gene_sets"][i]) for i in empty[:3]]
            raise ValueError(
                f"{len(empty)} gene sets of {self._name}.varm[{key!r}] have no gene in "
                f"{self._name} ({', '.join(map(repr, names))}{', …' if len(empty) > 3 else ''}): "
                f"genes were left out since; call {self._call} again."
            )

    def register_field(self, adata: AnnData) -> dict[str, Any]:
        """Keep the mask by columns, and what it was made from."""
        super().register_field(adata)
        mask = sp.csc_matrix(adata.varm[self._mask_key])
        mask.sort_indices()
        made = adata.uns[self._mask_key]
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

    def transfer_field(
        self, state_registry: dict[str, Any], adata_target: AnnData, **kwargs: Any
    ) -> dict[str, Any]:
        """Accept another reference only with the mask that the model chose its tokens from."""
        state = self.register_field(adata_target)
        columns = state_registry.get(self.COLUMNS_KEY)
        if columns is None:
            columns = np.arange(len(state_registry["gene_sets"]))
        given = _members(state), [str(name) for name in state["gene_sets"]]
        known = _members(state_registry), [str(name) for name in state_registry["gene_sets"]]
        for token, column in enumerate(np.asarray(columns)):
            if column >= 0 and (
                column >= len(given[1])
                or given[1][column] != known[1][token]
                or not np.array_equal(given[0][column], known[0][token])
            ):
                raise ValueError(
                    f"{self._name}.varm[{self._mask_key!r}] is not the mask that the model was "
                    f"trained with ({len(state_registry['gene_sets'])} tokens of "
                    f"{state_registry['source']}): "
                    "build it from the same gene sets with the same parameters."
                )
        return dict(state_registry)

    def get_summary_stats(self, state_registry: dict[str, Any]) -> dict[str, int]:
        """Count the tokens."""
        key = "n_tokens" if self._registry_key == "mask" else f"n_tokens_{self._registry_key}"
        return {key: len(state_registry["gene_sets"])}

    def view_state_registry(self, state_registry: dict[str, Any]) -> None:
        """Nothing that a table would show better than ``repr`` of the model."""


def _members(state: dict[str, Any]) -> list[np.ndarray]:
    """Genes of each token of a mask's state."""
    return np.split(np.asarray(state["genes"]), np.asarray(state["indptr"])[1:-1])
