"""Fields of a reference: the scale of its expression, its masks and its labels.

Everything that a model needs to exist without its reference is kept in the registry.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scvi.data.fields import BaseAnnDataField, CategoricalObsField, LayerField

from tosica._limits import LIMITS
from tosica._obs import (
    LIGHT_GRAY,
    UNKNOWN,
    default_palette,
    file_columns,
    stands_for_no_label,
)
from tosica._settings import logger, only_warnings, warn_user
from tosica._text import argument, call, did_you_mean, in_python, list_names, parameter
from tosica._validate import InstanceOf
from tosica.data import (
    MODALITY_KINDS,
    CellMatrix,
    ModalityKind,
    are_factor_codes,
    check_unique,
    check_varies,
)
from tosica.model._levels import LabelLevel, read_levels
from tosica.onto._ontology import NO_TERM, TERM_SUFFIX, term_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData

# Labels may be numbers.
UNLABELED = InstanceOf("a label", str, Real, bool, optional=True)
# The schema of CELLxGENE has this for cell lines.
_NO_TERMS = {NO_TERM, "na", "nan", ""}
# What Cell Ranger calls genes, in var["feature_types"].
_GENES = "Gene Expression"
# Types of numpy that Python's own values have, as pandas calls these.
_NUMPY_DTYPES = {"integer": "int64", "boolean": "bool", "floating": "float64"}


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
    genes
        Genes of the model, if there is one: another reference needs the same in the same order.
    """

    SCALE_KEY = "scale"

    def __init__(
        self,
        registry_key: str,
        layer: str | None,
        name: str = "adata",
        kind: ModalityKind[Any] = MODALITY_KINDS["rna"],
        genes: Sequence[str] | None = None,
    ) -> None:
        # The matrix is not changed: neither are counts demanded nor is its format converted.
        super().__init__(
            registry_key, layer, is_count_data=False, correct_data_format=False
        )
        self._name = name
        self._kind = kind
        self._genes = genes

    def validate_field(self, adata: AnnData) -> None:
        """Refuse a matrix that is missing, empty or not of numbers, and names that do not fit."""
        name = self._name
        if self._genes is not None and not pd.Index(self._genes).equals(
            pd.Index(adata.var_names.astype(str))
        ):
            raise ValueError(
                f"{name}'s var_names are not the model's genes in the model's order: take {name}[:, "
                "model.get_var_names()], or pass no adata to load and call annotate, which matches genes by name."
            )
        matrix = CellMatrix(adata, layer=self.attr_key, name=name)
        check_unique(adata.obs_names, "obs_names", f"{name}.obs_names_make_unique()")
        check_unique(adata.var_names, "var_names", f"{name}.var_names_make_unique()")
        self._kind.check_names(adata.var_names, name)
        check_varies(matrix)

    def register_field(self, adata: AnnData) -> dict[str, Any]:
        """Check the values, and find out how the matrix is scaled."""
        state = super().register_field(adata)
        for column, values in adata.var.items():
            feature_types = values.astype(str)
            counts = feature_types[feature_types != _GENES].value_counts()
            if 0 < counts.sum() < adata.n_vars and self._kind.has_gene_sets:
                genes = f"{self._name}[:, {self._name}.var[{column!r}] == {_GENES!r}]"
                listed = ", ".join(f"{n} {name!r}" for name, n in counts.items())
                warn_user(
                    f"{self._name} has features beside its genes ({listed}), which queries may lack: take {genes}."
                )
        matrix = CellMatrix(adata, layer=self.attr_key, name=self._name)
        scale = self._kind.detect_scale(matrix)
        return {**state, self.SCALE_KEY: scale._asdict()}

    def transfer_field(
        self, state_registry: dict[str, Any], adata_target: AnnData, **kwargs: Any
    ) -> dict[str, Any]:
        """Accept another reference that is scaled alike."""
        state = self.register_field(adata_target)
        model_scale = self._kind.scale_type(**state_registry[self.SCALE_KEY])
        scale = self._kind.scale_type(**state[self.SCALE_KEY])
        if model_scale.kind != scale.kind:
            raise ValueError(
                f"{self._name} holds {scale.kind} values, but the model was trained on {model_scale.kind}."
            )
        merged = self._kind.merge_scale(model_scale, scale)
        return {**state, self.SCALE_KEY: merged._asdict()}


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
        if (
            key not in adata.varm
            or not isinstance(made, Mapping)
            or "gene_sets" not in made
        ):
            first = self._again.replace(" again.", " first.")
            raise KeyError(f"There is no mask in {varm} and {uns}: {first}")
        n_sets, n_names = adata.varm[key].shape[1], len(made["gene_sets"])
        if n_names != n_sets:
            raise ValueError(
                f"{varm} has {n_sets} gene sets and {uns} names {n_names}: {self._again}"
            )
        empty = np.flatnonzero(np.diff(sp.csc_matrix(adata.varm[key]).indptr) == 0)
        if len(empty):
            names = list_names([str(made["gene_sets"][i]) for i in empty], 3)
            raise ValueError(
                f"{len(empty)} gene sets of {varm} have no gene in {self._name} ({names}): {self._again}"
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
            "n_unannotated": int(made.get("n_unannotated", 0)),
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
        self.validate_field(adata_target)
        gene_sets = _members(self._read(adata_target))
        tokens = _members(state_registry)
        columns = state_registry.get(self.COLUMNS_KEY, np.arange(len(tokens)))
        for token, column in zip(tokens, np.asarray(columns), strict=True):
            if column >= len(gene_sets) or (column >= 0 and gene_sets[column] != token):
                raise ValueError(
                    f"{self._name}.varm[{self.attr_key!r}] is not the mask that the model was "
                    f"trained with ({len(tokens)} tokens of {state_registry['source']}): build it "
                    "from the same gene sets with the same parameters."
                )
        return dict(state_registry)

    def get_summary_stats(self, state_registry: dict[str, Any]) -> dict[str, int]:
        """Count the tokens."""
        key = self.registry_key.replace("mask", "n_tokens")
        return {key: len(state_registry["gene_sets"])}

    def view_state_registry(self, state_registry: dict[str, Any]) -> None:
        """Show nothing: ``repr`` of the model has a better table."""


def _members(state: dict[str, Any]) -> list[tuple[str, list[int]]]:
    """Names of the tokens of a mask, with the positions of their genes."""
    genes = np.split(np.asarray(state["genes"]), np.asarray(state["indptr"])[1:-1])
    return [
        (str(name), positions.tolist())
        for name, positions in zip(state["gene_sets"], genes, strict=True)
    ]


class LabelsField(CategoricalObsField):
    """Labels in the reference's order with their colors; cells without a label come last.

    Parameters
    ----------
    registry_key
        Key to register the field under.
    obs_key
        Column of ``obs``.
    broader_keys
        Columns of ``obs`` that group the labels, from broad to fine.
    unlabeled_category
        What marks a cell without a label, or ``None`` if every cell has one.
    name
        What the AnnData is called in messages.
    min_cells
        Labels with fewer cells are left out, and their cells have no label.
    is_new
        Whether labels are registered for the first time, so that some cell must be unlabeled if a category
        is given.
    """

    COLORS_KEY = "colors"
    UNLABELED_KEY = "unlabeled_category"
    # The labels in their own type, and whether they are ordered.
    VALUES_KEY = "labels"
    ORDERED_KEY = "ordered"
    # Their groups in broader columns, which models of one column do not have.
    LEVELS_KEY = "levels"

    def __init__(
        self,
        registry_key: str,
        obs_key: str,
        broader_keys: Sequence[str] = (),
        unlabeled_category: str | None = None,
        name: str = "adata",
        min_cells: int = 1,
        is_new: bool = True,
    ) -> None:
        super().__init__(registry_key, obs_key)
        self._is_new = is_new
        self._name = name
        self._broader_keys = list(broader_keys)
        self._where = f"{name}.obs[{obs_key!r}]"
        self._unlabeled = (
            None if unlabeled_category is None else str(unlabeled_category)
        )
        self._min_cells = min_cells

    def validate_field(self, adata: AnnData) -> None:
        """Refuse labels that a model cannot learn from."""
        key, where = self._original_attr_key, self._where
        n_missing = int(adata.obs[key].isna().sum())
        if n_missing and self._unlabeled is None:
            raise ValueError(
                f"{n_missing} cells have no label (NaN) in {where}: leave them out, or give them a name and pass it "
                f"as {argument('unlabeled_category')}."
            )
        labels = adata.obs[key]
        if isinstance(labels.dtype, pd.CategoricalDtype):
            labels = labels.cat.categories.to_series()
        if labels.map(pd.api.types.is_list_like).any():
            raise TypeError(
                f"{where} holds lists, tuples or tables in place of labels: make them strings."
            )
        if are_factor_codes(adata, key):
            raise ValueError(
                f"{where} holds numbers from 0 on, which may be codes of a factor whose levels were lost on the way "
                f"from Seurat: {call('tosica.io.read_seurat')} gets them back from the file; if the numbers are the "
                f"labels, make them strings{in_python(f', as by {where}.astype(str)')}."
            )
        text = adata.obs[key].astype("category").cat.categories.astype(str)
        if not text.is_unique:
            duplicates = text[text.duplicated()].unique()
            listed = ", ".join(repr(name) for name in duplicates)
            raise ValueError(
                f"{where} has different labels with the same text ({listed}): make all of them strings."
            )
        with only_warnings(logger), warnings.catch_warnings(action="ignore"):
            sizes = _sizes(self._labels(adata))
        names = list(sizes.index[sizes >= self._min_cells])
        file_columns(names, where)
        if len(names) < 2:
            limit = ""
            if len(sizes) > 1:
                limit = f" of {parameter('min_cells', self._min_cells)} cells or more"
            raise ValueError(
                f"{where} needs at least two different labels{limit} to tell apart; "
                f"found {list_names(names) or 'none'}."
            )
        if len(names) > max(LIMITS.few_cells, sizes.sum() / 2):
            raise ValueError(
                f"{where} has {len(names)} labels for {sizes.sum()} cells, such as {names[0]!r}: these are names or "
                f"measurements of cells, not types; name the column that has the types as {argument('labels_key')}."
            )
        with only_warnings(logger), warnings.catch_warnings(action="ignore"):
            self._levels(adata, self._labels(adata), names)

    def register_field(self, adata: AnnData) -> dict[str, Any]:
        """Give each label a code, in the order of its category; unused categories get none."""
        self.validate_field(adata)
        labels = self._labels(adata)
        sizes = _sizes(labels)
        single = sorted(sizes.index[(sizes == 1) & (sizes >= self._min_cells)])
        if single:
            warn_user(
                f"labels with a single cell in {self._where}: {', '.join(map(repr, single))}. They are learnt, but "
                "neither validated nor calibrated: add cells, merge the label, or leave such labels out by "
                f"{parameter('min_cells', 2)}."
            )
        rare = self._leave_out(sizes)
        names = labels.categories.astype(str).to_numpy()
        is_label = np.isin(names, sizes.index) & ~np.isin(names, rare)
        mapping = names[is_label].astype(object)
        if rare or (labels.codes < 0).any():
            # No label has this name.
            self._unlabeled = UNKNOWN if self._unlabeled is None else self._unlabeled
            mapping = np.append(mapping, self._unlabeled)
        color_of = _colors(adata, self._original_attr_key)
        levels = self._levels(adata, labels, names[is_label].tolist())
        self._write_codes(adata, labels, mapping)
        return {
            self.LEVELS_KEY: [level.to_state() for level in levels],
            self.CATEGORICAL_MAPPING_KEY: mapping,
            self.ORIGINAL_ATTR_KEY: self._original_attr_key,
            self.UNLABELED_KEY: self._unlabeled,
            self.COLORS_KEY: [color_of.get(name, LIGHT_GRAY) for name in mapping],
            self.VALUES_KEY: typed_labels(labels.categories[is_label]),
            self.ORDERED_KEY: bool(labels.ordered),
        }

    def transfer_field(
        self, state_registry: dict[str, Any], adata_target: AnnData, **kwargs: Any
    ) -> dict[str, Any]:
        """Give the labels of another reference the codes that they have in the model."""
        self.validate_field(adata_target)
        names = np.asarray(state_registry[self.CATEGORICAL_MAPPING_KEY], dtype=object)
        # The model's unlabeled category, which min_cells may have created.
        self._unlabeled = state_registry[self.UNLABELED_KEY]
        labels = self._labels(adata_target, names.tolist())
        sizes = _sizes(labels)
        sizes = sizes[~sizes.index.isin(names)]
        rare = self._leave_out(sizes)
        new = sizes.index[sizes >= self._min_cells]
        if len(new):
            raise ValueError(
                f"{self._where} has labels that the model does not know: {list_names(sorted(new))}."
            )
        if self._unlabeled is None and (rare or (labels.codes < 0).any()):
            # Else these cells would get the code of the last label.
            self._unlabeled = UNKNOWN
        if self._unlabeled is not None and self._unlabeled not in names:
            names = np.append(names, self._unlabeled)
        self._write_codes(adata_target, labels, names)
        return state_registry | {
            self.CATEGORICAL_MAPPING_KEY: names,
            self.UNLABELED_KEY: self._unlabeled,
        }

    def _labels(
        self, adata: AnnData, spellings: Sequence[str] = ()
    ) -> pd.Categorical[Any]:
        column = adata.obs[self._original_attr_key]
        return clean_labels(
            column, self._where, self._unlabeled, spellings, must_occur=self._is_new
        )

    def _levels(
        self, adata: AnnData, labels: pd.Categorical[Any], names: Sequence[str]
    ) -> list[LabelLevel]:
        """Read the groups of some labels from the broader columns."""
        is_named = labels.categories.astype(str).isin(names)
        columns = {
            key: clean_labels(
                adata.obs[key],
                f"{self._name}.obs[{key!r}]",
                self._unlabeled,
                must_occur=False,
            )
            for key in self._broader_keys
        }
        return read_levels(
            labels.set_categories(labels.categories[is_named]),
            columns,
            self._original_attr_key,
            self._name,
        )

    def _leave_out(self, sizes: pd.Series) -> list[str]:
        """Find labels with too few cells, whose cells get none, and name them in the log."""
        rare = sizes[sizes < self._min_cells].sort_index(
            key=lambda names: names.astype(str)
        )
        if not len(rare):
            return []
        logger.info(
            "setup: labels with fewer than %s cells are left out (%s), and their cells count as unlabeled",
            parameter("min_cells", self._min_cells),
            ", ".join(f"{name!r} with {n}" for name, n in rare.items()),
        )
        return [str(name) for name in rare.index]

    def _write_codes(
        self, adata: AnnData, labels: pd.Categorical, names: np.ndarray
    ) -> None:
        codes = np.append(
            pd.Index(names).get_indexer(labels.categories.astype(str)), -1
        )[labels.codes].astype(np.int64)
        # Labels that were left out are unlabeled, whose code is the last.
        adata.obs[self.attr_key] = np.where(codes < 0, len(names) - 1, codes)


def clean_labels(
    column: pd.Series,
    where: str,
    unlabeled: str | None,
    spellings: Sequence[str] = (),
    *,
    must_occur: bool = True,
) -> pd.Categorical[Any]:
    """Take what means "no label" for none, and join labels that differ in white space or case only.

    Parameters
    ----------
    column
        Labels, one a cell.
    where
        Name of the column in messages.
    unlabeled
        What marks a cell without a label besides.
    spellings
        Spellings that are kept; else it is the most frequent one.
    must_occur
        Refuse ``unlabeled`` if every cell has another value, and warn if the others have none.

    Raises
    ------
    ValueError
        If ``unlabeled`` is refused.

    Warns
    -----
    UserWarning
        If either is done, but for ``unlabeled``, or if it is in no cell beside cells without a value.
    """
    labels = pd.Categorical(column)
    text = [str(name) for name in labels.categories]
    if unlabeled is not None:
        unlabeled = _spelled_as(labels.categories, unlabeled)
    if must_occur and unlabeled is not None and unlabeled not in text:
        problem = (
            f"{where} has no cell {unlabeled!r}, the {argument('unlabeled_category')}"
        )
        advice = did_you_mean(unlabeled, text, 1)
        if (labels.codes >= 0).all():
            raise ValueError(f"{problem}{advice}")
        warn_user(f"{problem}, only cells without a value (NaN){advice}")
    n_cells = np.bincount(labels.codes[labels.codes >= 0], minlength=len(text))
    code_of_spelling: dict[str, int] = {}
    # The last entry is the code of cells without a value.
    code = np.full(len(text) + 1, -1)
    none = []
    joined = []
    occurring = np.flatnonzero(n_cells).tolist()
    # Spellings of the model come first, then the most frequent ones.
    occurring.sort(key=lambda i: (text[i] not in spellings, -n_cells[i]))
    for i in occurring:
        if text[i] == unlabeled:
            continue
        if stands_for_no_label(text[i]) and text[i] not in spellings:
            none.append(f"{text[i]!r} ({n_cells[i]} cells)")
            continue
        spelling = " ".join(text[i].split()).casefold()
        code[i] = code_of_spelling.setdefault(spelling, i)
        if code[i] != i:
            joined.append(f"{text[i]!r} with {text[code[i]]!r}")
    if none:
        warn_user(
            f"{', '.join(none)} in {where} stands for no label, and is no type: call it otherwise if it is one."
        )
    if joined:
        differ = (
            "which differ in white space or case only: rename those that are two types"
        )
        warn_user(f"{where}: joined {', '.join(joined)}, {differ}.")
    return pd.Categorical.from_codes(code[labels.codes], dtype=labels.dtype)


def _spelled_as(categories: pd.Index, name: str) -> str:
    """Spell a number as the equal category: pandas makes -1.0 of -1 in a column with NaN."""
    if not pd.api.types.is_float_dtype(categories.dtype):
        return name
    try:
        value = float(name)
    except ValueError:
        return name
    return next((str(c) for c in categories if c == value), name)


def _sizes(labels: pd.Categorical) -> pd.Series:
    """Number of cells of each label that has some, the most frequent first."""
    names = labels.categories.astype(str)
    n_cells = np.bincount(labels.codes[labels.codes >= 0], minlength=len(names))
    # Labels of as many cells are in the order of their categories.
    sizes = pd.Series(n_cells, names).sort_values(ascending=False, kind="stable")
    return sizes[sizes > 0]


def typed_labels(labels: pd.Index) -> np.ndarray:
    """Labels as numbers or booleans of numpy if they are, otherwise as text, ``(n_labels,)``."""
    dtype: Any = labels.dtype
    if pd.api.types.is_numeric_dtype(dtype):
        return labels.to_numpy(getattr(dtype, "numpy_dtype", dtype))
    if pd.api.types.is_object_dtype(dtype):
        numpy_dtype = _NUMPY_DTYPES.get(pd.api.types.infer_dtype(labels))
        if numpy_dtype is not None:
            return labels.to_numpy(numpy_dtype)
    return np.array(labels.astype(str), dtype=object)


def read_terms(obs: pd.DataFrame, key: str, labels: list[str]) -> dict[str, str] | None:
    """Read the Cell Ontology terms of labels from a reference, ``None`` if it has none.

    Parameters
    ----------
    obs
        Table of the reference's cells.
    key
        Its column with the labels; that with the terms has a suffix.
    labels
        Labels that the model knows.
    """
    column = f"{key}{TERM_SUFFIX}"
    if column not in obs:
        return None
    pairs = obs[[key, column]].dropna().astype(str).drop_duplicates()
    pairs = pairs[pairs[key].isin(labels) & ~pairs[column].isin(_NO_TERMS)]
    terms = dict(zip(pairs[key], pairs[column], strict=True))
    several = set(pairs[key][pairs[key].duplicated()])
    problems = dict.fromkeys(several, "several terms") | {
        k: problem
        for k, term in terms.items()
        if k not in several and (problem := term_problem(term))
    }
    if problems:
        named = ", ".join(f"{k!r} ({problems[k]})" for k in labels if k in problems)
        cure = in_python(": assign model.ontology_term_ids_")
        warn_user(
            f"adata.obs[{column!r}] has no term that can be taken for {named}{cure}."
        )
    return {k: terms[k] for k in labels if k in terms and k not in problems}


def _colors(adata: AnnData, key: str) -> dict[str, str]:
    """Label to the color that scanpy keeps for it, or that it would give it."""
    from matplotlib.colors import is_color_like

    labels = pd.Categorical(adata.obs[key])
    colors = adata.uns.get(f"{key}_colors")
    if colors is not None:
        colors = [str(color) for color in colors]
    # R has colors that matplotlib lacks, numbered grays among them.
    is_palette = colors is not None and all(map(is_color_like, colors))
    if not is_palette or len(colors) < len(labels.categories):
        labels = labels.remove_unused_categories()
        colors = default_palette(len(labels.categories))
    return dict(zip(labels.categories.astype(str), colors, strict=False))
