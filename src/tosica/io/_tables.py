"""Repair the columns of tables that were converted from R."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tosica._text import list_names
from tosica.io._errors import ReadError

if TYPE_CHECKING:
    from collections.abc import Collection

# Column with the names of a table's rows.
NAMES = "_index"
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
    """Restore missing values, and note which columns are ambiguous.

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
    for column_name in (*logicals, *na_strings):
        if column_name not in table:
            column_names = list_names([str(column) for column in table])
            raise ReadError(
                f"There is no column {column_name!r} in the cells' table; it has "
                f"{column_names}.",
                KeyError,
            )
    repaired: dict[Any, pd.Series] = {}
    maybe_logical: list[str] = []
    maybe_missing: list[str] = []
    for name, column in table.items():
        is_na = column.isin([_MISSING_STRING])
        if name in logicals:
            column = _as_logical(column)
        elif pd.api.types.is_integer_dtype(column.dtype):
            if (column == _R_MISSING).any():
                column = column.astype("Int32").mask(column == _R_MISSING)
            elif column.isin([0, 1, _MISSING_LOGICAL]).all() and column.nunique() > 1:
                maybe_logical.append(str(name))
        elif is_na.any():
            if name in na_strings:
                column = column.mask(is_na)
            else:
                maybe_missing.append(str(name))
        repaired[name] = column
    if maybe_logical:
        notes.append(
            f"not known: 0, 1 and 2 in {list_names(maybe_logical)} may be FALSE, TRUE "
            "and missing; if they are, name the columns in logicals="
        )
    if maybe_missing:
        notes.append(
            f"not known: the string 'NA' in {list_names(maybe_missing)} may mean "
            "missing; if it does, name the columns in na_strings="
        )
    return pd.DataFrame(repaired, index=table.index, columns=table.columns)


def _as_logical(column: pd.Series) -> pd.Series:
    is_missing = ~column.isin([0, 1])
    if not column[is_missing].isin([_MISSING_LOGICAL, _R_MISSING]).all():
        raise ReadError(
            f"Column {column.name!r} holds more than 0, 1 and 2, so it is not a "
            "logical one."
        )
    if not is_missing.any():
        return column.astype(bool)
    return (column == 1).astype("boolean").mask(is_missing)


def to_categorical(codes: np.ndarray, levels: list[str]) -> pd.Categorical:
    """Make a categorical of zero-based codes; negative ones are missing values."""
    if (
        codes.dtype.kind not in "iu"
        or len(set(levels)) < len(levels)
        or (codes.size and codes.max() >= len(levels))
    ):
        raise ReadError(
            "A factor is damaged: a code has no level, or a level occurs twice; save "
            "the object again."
        )
    codes = np.where(codes >= 0, codes, -1).astype(np.intp)
    return pd.Categorical.from_codes(codes, categories=pd.Index(levels, dtype=object))


def raw_genes(raw_var: pd.DataFrame, var: pd.DataFrame) -> pd.DataFrame:
    """Table of the genes of ``raw``, indexed by their names.

    Some converters write numbers for the names, or the names into a column.
    """
    if NAMES in raw_var:
        gene_names = pd.Index(raw_var[NAMES].astype(object), name=None)
        return raw_var.set_index(gene_names).drop(columns=NAMES)
    has_numbers = list(raw_var.index) == [str(i) for i in range(len(raw_var))]
    if has_numbers and len(raw_var) == len(var):
        return var
    return raw_var


def decode(values: Any) -> list[str]:
    """Strings of an HDF5 data set or attribute."""
    return [
        value.decode() if isinstance(value, bytes) else str(value)
        for value in np.atleast_1d(values)
    ]
