"""Columns of obs that group cells or hold labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData

_MANY_COLUMNS = 12


def read_groups(adata: AnnData, groupby: str, *, allow_missing: bool = False) -> pd.Categorical:
    """Read the groups of cells from a column of obs.

    Parameters
    ----------
    adata
        Annotated data.
    groupby
        Column of ``adata.obs``: categorical, strings, whole numbers or booleans.
    allow_missing
        Accept cells without a group (NaN); their code is -1.

    Returns
    -------
    Categorical of length ``n_obs``. Its categories are strings, in the order of the column's, and
    all have cells. Those of a column that is not categorical are sorted, as scanpy does.

    Raises
    ------
    KeyError
        If the column is missing.
    TypeError
        If ``groupby`` is not a string, or the column cannot be read as groups.
    ValueError
        If there are no cells, or cells without a group.
    """
    if not isinstance(groupby, str):
        raise TypeError(
            f"A column of adata.obs is named by a string, not by {type(groupby).__name__}."
        )
    if groupby not in adata.obs:
        raise KeyError(_missing_column(adata, groupby))
    if adata.n_obs == 0:
        raise ValueError("adata has no cells.")
    where = f"adata.obs[{groupby!r}]"
    return as_groups(
        adata.obs[groupby],
        where,
        remedy=f"give them a group, or leave them out with adata[{where}.notna()].copy()",
        allow_missing=allow_missing,
    )


def as_groups(
    column: pd.Series, where: str, *, remedy: str = "give them a group", allow_missing: bool = False
) -> pd.Categorical:
    """Make groups of cells from one value a cell, as :func:`read_groups` does.

    Parameters
    ----------
    column
        One value a cell.
    where
        Name of the values in messages.
    remedy
        What to do about cells without a group.
    allow_missing
        As in :func:`read_groups`.

    Raises
    ------
    TypeError, ValueError
        As :func:`read_groups`.
    """
    n_missing = int(column.isna().sum())
    if n_missing and not allow_missing:
        raise ValueError(
            f"{where} is missing (NaN) in {n_missing} of {len(column)} cells: {remedy}."
        )
    categorical = _as_categorical(column, where).remove_unused_categories()
    names = [str(name) for name in categorical.categories]
    if len(set(names)) < len(names):
        raise ValueError(
            f"{where} holds groups that are written alike, such as 1 and '1': "
            f"use {where}.astype(str)."
        )
    categories = pd.CategoricalDtype(names)
    return pd.Categorical.from_codes(np.asarray(categorical.codes), dtype=categories)


def _as_categorical(column: pd.Series, where: str) -> pd.Categorical:
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return pd.Categorical(column)
    is_text = pd.api.types.is_string_dtype(dtype) or pd.api.types.is_object_dtype(dtype)
    is_discrete = pd.api.types.is_bool_dtype(dtype) or pd.api.types.is_integer_dtype(dtype)
    if not is_text and not is_discrete:
        raise TypeError(
            f"{where} holds {dtype} values, not groups: "
            f"make a categorical column of it first, for example with pandas.cut."
        )
    try:
        return pd.Categorical(column)
    except TypeError as error:
        raise TypeError(
            f"{where} holds values that cannot name a group ({error}): use strings."
        ) from error


def _missing_column(adata: AnnData, groupby: str) -> str:
    columns = [str(name) for name in adata.obs.columns]
    shown = ", ".join(repr(name) for name in columns[:_MANY_COLUMNS]) or "none"
    more = f" and {len(columns) - _MANY_COLUMNS} more" if len(columns) > _MANY_COLUMNS else ""
    hint = ""
    if groupby.endswith("_prediction"):
        key = groupby.removesuffix("_prediction")
        hint = f"; model.annotate(adata, key_added={key!r}) writes it"
    return f"adata.obs has no column {groupby!r}{hint}. Its columns: {shown}{more}."


def read_labels(adata: AnnData | MuData, key: str) -> list[str]:
    """Read all labels of the model, in its order; none if ``adata.uns[key]`` does not have them.

    Parameters
    ----------
    adata
        Annotated query.
    key
        ``key_added`` of ``model.annotate``.
    """
    record = adata.uns.get(key)
    labels = record.get("labels", ()) if isinstance(record, Mapping) else ()
    return [str(label) for label in np.ravel(np.asarray(labels, dtype=object))]
