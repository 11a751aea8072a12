"""Columns of obs that group cells or hold labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica._validation import check_data, check_string, only_known

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData
    from numpy.typing import NDArray


def read_groups(
    adata: AnnData, groupby: str, *, name: str = "groupby", allow_missing: bool = False
) -> pd.Categorical:
    """Read the groups of cells from a column of obs.

    Parameters
    ----------
    adata
        Annotated data.
    groupby
        Column of ``adata.obs``: categorical, strings, whole numbers or booleans.
    name
        Name of the caller's parameter for it, in messages.
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
        If ``adata`` is neither AnnData nor MuData or its ``obs`` was not read, ``groupby`` is not a
        string, or the column cannot be read as groups.
    ValueError
        If there are no cells, or cells without a group.
    """
    check_data(adata, mudata=True)
    check_string(name, groupby)
    if groupby not in adata.obs:
        raise KeyError(missing_column(adata, groupby))
    if not isinstance(adata.obs, pd.DataFrame):
        raise TypeError("adata was opened without reading it: call adata.to_memory() first.")
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


def missing_column(adata: AnnData | MuData, column: str) -> str:
    """Say that ``adata.obs`` lacks a column, and which it has or what writes it."""
    if column.endswith("_prediction"):
        key = column.removesuffix("_prediction")
        return (
            f"adata.obs has no column {column!r}: run model.annotate(adata, key_added={key!r}) "
            "first, or name the column that has the predictions."
        )
    return f"adata.obs has no column {column!r}{only_known(column, adata.obs.columns)}"


def read_numbers(adata: AnnData | MuData, column: str) -> NDArray[np.float64]:
    """Read a column of ``obs`` that holds numbers.

    Raises
    ------
    TypeError
        If it holds anything else.
    """
    numbers = adata.obs[column]
    if not pd.api.types.is_numeric_dtype(numbers.dtype) or numbers.dtype == bool:
        raise TypeError(f"adata.obs[{column!r}] holds {numbers.dtype} values instead of numbers.")
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan)


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
