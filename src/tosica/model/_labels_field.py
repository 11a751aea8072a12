"""What ``setup_anndata`` registers of the labels of a reference."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from scvi.data.fields import CategoricalObsField

from tosica._checks import InstanceOf, did_you_mean, list_names
from tosica._obs import UNKNOWN, default_palette, file_columns
from tosica._settings import logger, warn_user
from tosica.data import are_factor_codes
from tosica.onto._ontology import NO_TERM, TERM_SUFFIX, term_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData

# Labels may be numbers.
UNLABELED = InstanceOf("a label", str, Real, bool, optional=True)
# The schema of CELLxGENE has this for cell lines.
_NO_TERMS = {NO_TERM, "na", "nan", ""}
# That of cells without a label, which annotate never writes.
_UNLABELED_COLOR = "#d3d3d3"


# Types of numpy that Python's own values have, as pandas calls these.
_OF_PYTHON = {"integer": "int64", "boolean": "bool", "floating": "float64"}


class LabelType(NamedTuple):
    """Type of the labels of a reference.

    Parameters
    ----------
    dtype
        Name of their type in numpy, such as ``"int64"`` or ``"bool"``; ``None`` for text.
    ordered
        Whether they are the categories of an ordered categorical.
    """

    dtype: str | None = None
    ordered: bool = False

    @classmethod
    def of(cls, categories: pd.Index, *, ordered: bool = False) -> LabelType:
        """Recognize the type of labels.

        Parameters
        ----------
        categories
            The labels that occur, without what marks cells that have none.
        ordered
            As in the class.
        """
        dtype: Any = categories.dtype
        name = None
        if pd.api.types.is_object_dtype(dtype):
            name = _OF_PYTHON.get(pd.api.types.infer_dtype(categories))
        elif pd.api.types.is_numeric_dtype(dtype):
            name = getattr(dtype, "numpy_dtype", dtype).name
        return cls(name, bool(ordered))

    def values(self, labels: Sequence[str]) -> np.ndarray:
        """Turn text into labels of the type, ``(n_labels,)``.

        Examples
        --------
        >>> LabelType("bool").values(["False", "True"])
        array([False,  True])
        """
        if self.dtype is None:
            return np.array(labels, dtype=object)
        dtype = np.dtype(self.dtype)
        if dtype.kind == "b":
            return np.array([label == "True" for label in labels], dtype=bool)
        of_text = int if dtype.kind in "iu" else float
        return np.array([of_text(label) for label in labels], dtype=dtype)


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
    min_cells
        Labels with fewer cells are left out, and their cells have no label.
    """

    COLORS_KEY = "colors"
    UNLABELED_KEY = "unlabeled_category"
    TYPE_KEY = "label_type"

    def __init__(
        self,
        registry_key: str,
        obs_key: str,
        unlabeled_category: str | None = None,
        name: str = "adata",
        min_cells: int = 1,
    ) -> None:
        super().__init__(registry_key, obs_key)
        self._where = f"{name}.obs"
        self._unlabeled = None if unlabeled_category is None else str(unlabeled_category)
        self._min_cells = min_cells

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
        every = self._sizes(adata)
        sizes = every[every >= self._min_cells]
        file_columns(list(sizes.index), f"{self._where}[{key!r}]")
        if len(sizes) < 2:
            of_size = f" of min_cells={self._min_cells} cells or more" if len(every) > 1 else ""
            raise ValueError(
                f"{self._where}[{key!r}] needs at least two different labels{of_size} to tell "
                f"apart; found {list_names(list(sizes.index)) or 'none'}."
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
        rare = self._leave_out(self._sizes(adata))
        kept = order[~np.isin(names[order], rare)]
        mapping, colors = names[kept].astype(object), [colors[i] for i in kept]
        if rare and self._unlabeled not in mapping:
            mapping, colors = np.append(mapping, str(self._unlabeled)), [*colors, _UNLABELED_COLOR]
        self._write_codes(adata, mapping)
        labels = column.cat.categories[used[kept][names[kept] != self._unlabeled]]
        return {
            self.CATEGORICAL_MAPPING_KEY: mapping,
            self.ORIGINAL_ATTR_KEY: self._original_attr_key,
            self.UNLABELED_KEY: self._unlabeled,
            self.COLORS_KEY: colors,
            self.TYPE_KEY: LabelType.of(labels, ordered=column.cat.ordered)._asdict(),
        }

    def transfer_field(self, state_registry: dict[str, Any], adata_target: AnnData, **kwargs: Any) -> dict[str, Any]:
        """Give the labels of another reference the codes that they have in the model."""
        self.validate_field(adata_target)
        names = np.asarray(state_registry[self.CATEGORICAL_MAPPING_KEY], dtype=object)
        # Of a model that min_cells made one for.
        self._unlabeled = state_registry[self.UNLABELED_KEY]
        sizes = self._sizes(adata_target)
        sizes = sizes[~sizes.index.isin(names)]
        self._leave_out(sizes)
        new = sizes.index[sizes >= self._min_cells]
        if len(new):
            raise ValueError(
                f"{self._where}[{self._original_attr_key!r}] has labels that the model does not "
                f"know: {', '.join(map(repr, sorted(new)))}."
            )
        if self._unlabeled is not None and self._unlabeled not in names:
            names = np.append(names, self._unlabeled)
        self._write_codes(adata_target, names)
        return {**state_registry, self.CATEGORICAL_MAPPING_KEY: names, self.UNLABELED_KEY: self._unlabeled}

    def _sizes(self, adata: AnnData) -> pd.Series:
        """Number of cells of each label, the most frequent first."""
        sizes = adata.obs[self._original_attr_key].astype(str).value_counts()
        return sizes[sizes.index != self._unlabeled]

    def _leave_out(self, sizes: pd.Series) -> list[str]:
        """Find labels with too few cells, whose cells get none, and name them in the log."""
        rare = sizes[sizes < self._min_cells].sort_index(key=lambda names: names.astype(str))
        if not len(rare):
            return []
        if self._unlabeled is None:
            # No label has this name.
            self._unlabeled = UNKNOWN
        logger.info(
            "setup: labels with fewer than min_cells=%d cells are left out (%s), and their cells count as unlabeled",
            self._min_cells,
            ", ".join(f"{name!r} with {n}" for name, n in rare.items()),
        )
        return [str(name) for name in rare.index]

    def _warn_of_single_cells(self, adata: AnnData) -> None:
        key = self._original_attr_key
        sizes = self._sizes(adata)
        single = sorted(sizes.index[(sizes == 1) & (sizes >= self._min_cells)])
        if single:
            warn_user(
                f"labels with a single cell in {self._where}[{key!r}]: "
                f"{', '.join(map(repr, single))}. They are learnt, but neither validated nor "
                "calibrated: add cells, merge the label, or leave such labels out by min_cells=2."
            )

    def _warn_of_no_unlabeled_cell(self, adata: AnnData) -> None:
        known = adata.obs[self._original_attr_key].astype(str).unique()
        if self._unlabeled is not None and self._unlabeled not in known:
            logger.warning(
                "setup: unlabeled_category %r is no value of %s[%r], so that every cell counts as labeled%s",
                self._unlabeled,
                self._where,
                self._original_attr_key,
                did_you_mean(self._unlabeled, known, 1),
            )

    def _write_codes(self, adata: AnnData, names: np.ndarray) -> None:
        labels = adata.obs[self._original_attr_key].astype(str)
        codes = pd.Index(names).get_indexer(labels).astype(np.int64)
        # Labels that were left out are unlabeled, whose code is the last.
        adata.obs[self.attr_key] = np.where(codes < 0, len(names) - 1, codes)


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
        k: problem for k, term in terms.items() if k not in several and (problem := term_problem(term))
    }
    if problems:
        named = ", ".join(f"{k!r} ({problems[k]})" for k in labels if k in problems)
        warn_user(
            f"adata.obs[{column!r}] has no term that can be taken for {named}, so these labels "
            "have no term: assign model.ontology_term_ids_ to give them one."
        )
    return {k: terms[k] for k in labels if k in terms and k not in problems}


def _colors(adata: AnnData, key: str, n_categories: int, used: np.ndarray) -> list[str]:
    """The colours that scanpy keeps for these categories, or those that it would give them."""
    kept = adata.uns.get(f"{key}_colors")
    if kept is not None and len(kept) >= n_categories:
        return [str(kept[i]) for i in used]
    return default_palette(len(used))
