"""Repair columns of a table in which a conversion from R left codes for missing values."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tosica.io._refused import RefusedKey, RefusedValue

if TYPE_CHECKING:
    from collections.abc import Collection

# R's missing integer; conversions write it as an ordinary number.
_R_MISSING = -(2**31)
_MISSING_STRING = "NA"
_MISSING_LOGICAL = 2


def repair_columns(
    table: pd.DataFrame,
    notes: list[str],
    *,
    logicals: Collection[str] = (),
    na_strings: Collection[str] = (),
) -> pd.DataFrame:
    """Restore missing values, drop unused levels, and note what cannot be known.

    Parameters
    ----------
    table
        Columns hold numbers, strings, or categoricals.
    notes
        Gets a sentence for each kind of ambiguous column.
    logicals
        Columns of 0, 1 and 2 that are FALSE, TRUE and missing.
    na_strings
        Columns in which the string ``NA`` means missing.

    Returns
    -------
    A new table.

    Raises
    ------
    KeyError
        If a named column does not exist.
    ValueError
        If a column of ``logicals`` holds anything but 0, 1 and 2.
    """
    for wanted in (*logicals, *na_strings):
        if wanted not in table:
            known = ", ".join(map(str, table.columns))
            raise RefusedKey(f"There is no column {wanted!r} in the cells' table; it has {known}.")
    repaired = {}
    maybe_logical: list[str] = []
    maybe_missing: list[str] = []
    for name in table:
        column = table[name]
        if name in logicals:
            column = _as_logical(column)
        elif pd.api.types.is_integer_dtype(column.dtype):
            if (column == _R_MISSING).any():
                column = column.astype("Int32").mask(column == _R_MISSING)
            elif column.isin([0, 1, _MISSING_LOGICAL]).all() and column.nunique() > 1:
                maybe_logical.append(str(name))
        elif (_strings(column) == _MISSING_STRING).any():
            if name in na_strings:
                column = _without_na(column)
            else:
                maybe_missing.append(str(name))
        if isinstance(column.dtype, pd.CategoricalDtype):
            column = column.cat.remove_unused_categories()
        repaired[name] = column
    if maybe_logical:
        notes.append(
            f"not known: 0, 1 and 2 in {_listed(maybe_logical)} may be FALSE, TRUE and "
            "missing; if they are, name the columns in logicals="
        )
    if maybe_missing:
        notes.append(
            f"not known: the string 'NA' in {_listed(maybe_missing)} may mean missing; if it "
            "does, name the columns in na_strings="
        )
    return pd.DataFrame(repaired, index=table.index, columns=table.columns)


def to_categorical(codes: np.ndarray, levels: list[str]) -> pd.Categorical:
    """A categorical from zero-based codes, of which negative ones are missing values.

    Raises
    ------
    ValueError
        If a code has no level, or a level occurs twice.
    """
    twice = [level for level, n in Counter(levels).items() if n > 1]
    if codes.dtype.kind not in "iu" or twice or (codes.size and codes.max() >= len(levels)):
        wrong = (
            f"the level {twice[0]!r} occurs twice"
            if twice
            else f"a code is not one of its {len(levels)} levels"
        )
        raise RefusedValue(f"A factor cannot be read, because {wrong}: the file is damaged.")
    known = np.where(codes >= 0, codes, -1)
    return pd.Categorical.from_codes(
        known.astype(np.intp), categories=pd.Index(levels, dtype=object)
    )


def _as_logical(column: pd.Series) -> pd.Series:
    if column.dtype == bool:
        return column
    if not column.isin([0, 1, _MISSING_LOGICAL, _R_MISSING]).all():
        raise RefusedValue(
            f"Column {column.name!r} holds more than 0, 1 and 2, so it is not a logical one."
        )
    missing = ~column.isin([0, 1])
    if not missing.any():
        return column.astype(bool)
    return (column == 1).astype("boolean").mask(missing)


def _without_na(column: pd.Series) -> pd.Series:
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.remove_categories([_MISSING_STRING])
    return column.astype(object).mask(column == _MISSING_STRING, np.nan)


def _strings(column: pd.Series) -> pd.Series:
    """Strings or categories of the column; empty if it holds anything else."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return pd.Series(column.cat.categories)
    if pd.api.types.is_string_dtype(column.dtype) or column.dtype == object:
        return column
    return pd.Series([], dtype=object)


def _listed(names: list[str]) -> str:
    return ", ".join(repr(str(name)) for name in names)


def decode(values: Any) -> list[str]:
    """Strings of an HDF5 data set or attribute."""
    return [v.decode() if isinstance(v, bytes) else str(v) for v in np.atleast_1d(values)]
