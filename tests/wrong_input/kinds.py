"""Kinds of parameters, and what is wrong for each: value, exception, and sentence.

``{name}`` in a sentence stands for the name of the parameter. A value that is a function gets the
shared data, see :mod:`wrong_input.world`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Sequence


class Wrong(NamedTuple):
    """A wrong value, and what refuses it."""

    value: Any
    error: type[Exception]
    sentence: str
    called: str = ""


Kind: TypeAlias = "Sequence[Wrong]"

NAN, INF = float("nan"), float("inf")


def _types(values: Sequence[Any], sentence: str) -> list[Wrong]:
    return [Wrong(value, TypeError, sentence) for value in values]


def _values(values: Sequence[Any], sentence: str) -> list[Wrong]:
    return [Wrong(value, ValueError, sentence) for value in values]


def count(least: int = 1, *, optional: bool = False) -> Kind:
    """Whole numbers: strings, fractions and booleans are none."""
    none = [] if optional else [None]
    return [
        *_types(["8", 1.5, True, *none], "^{name} must be a whole number"),
        *_values([least - 1], f"^{{name}} must be at least {least}( or None)?, not -?[0-9]"),
    ]


def number(*, too_small: float | None = None, optional: bool = False) -> Kind:
    """Finite numbers."""
    none = [] if optional else [None]
    small = [] if too_small is None else _values([too_small], "^{name} must be (at least|above) ")
    return [
        *_types(["a", True, *none], "^{name} must be a number"),
        *_values([NAN, INF], "^{name} must be a finite number"),
        *small,
    ]


FRACTION: Kind = [
    *_types(["a", None, True], "^{name} must be a number, not "),
    *_values([NAN, -0.1, 1.1], "^{name} must (lie|be) .*0.* 1, not "),
]
CUTOFF: Kind = [
    *FRACTION,
    Wrong("automatic", TypeError, "^cutoff must be a number, not 'automatic', or 'auto'[.]"),
]
FLAG: Kind = _types(["yes", None], "^{name} must be True or False, not ")
OPTIONAL_FLAG: Kind = _types(["yes", 2], "^{name} must be True or False, not ")
CHOICE: Kind = [
    Wrong("nonsense", ValueError, "^{name} must be '.* or .*, not 'nonsense'"),
    Wrong(5, TypeError, "^{name} must be '.* or .*, not 5"),
]
STRING: Kind = _types([5, None, ["a"]], "^{name} must be a string")
OPTIONAL_STRING: Kind = _types([5, ["a"]], "^{name} must be a string or None")


def key_added(*, optional: bool = False) -> Kind:
    """Names of results, which files must be able to hold."""
    none = [] if optional else [None]
    return [
        *_types([5, *none], "^{name} must be a string"),
        *_values(["", "a/b", ".", "a\0b"], "^{name} must be a name without a slash"),
    ]


def key(missing: str, *, optional: bool = False) -> Kind:
    """Keys of results, which must be there; ``missing`` is the sentence if they are not."""
    none = [] if optional else [None]
    return [
        *_types([5, *none], "^{name} must be a string"),
        Wrong("nothing", KeyError, missing),
        Wrong("", KeyError, missing),
    ]


def column(*, optional: bool = False, numbers: bool = False) -> Kind:
    """Columns of ``obs`` with groups or, if ``numbers``, with numbers."""
    none = [] if optional else [None]
    other = ("kind", "without an order") if numbers else ("tosica_probability", "not groups")
    return [
        *_types([5, *none], "^{name} must be a string"),
        Wrong("donors", KeyError, "^adata.obs has no column 'donors'.*did you mean 'donor'[?]"),
        Wrong("", KeyError, "^adata.obs has no column ''"),
        Wrong(other[0], TypeError, f"^adata.obs\\['{other[0]}'\\] holds .*{other[1]}"),
    ]


_TABLE = pd.DataFrame({"G0": [1.0, 2.0]}, index=["cell0", "cell1"])
NO_DATA: Kind = [
    Wrong(None, TypeError, "^{name} must be an AnnData.*, not None", "None"),
    Wrong("a.h5ad", TypeError, r"not a path: read the file before, as in anndata.read_h5ad\('a"),
    Wrong(_TABLE, TypeError, "^{name} must be an AnnData.*, not a DataFrame: make", "DataFrame"),
    Wrong(_TABLE.to_numpy(), TypeError, "must be an AnnData.*, not an? ndarray: make", "array"),
    Wrong({"X": 1}, TypeError, "^{name} must be an AnnData.*, not {'X': 1}"),
]
MUDATA: Kind = [
    Wrong(lambda w: w.mdata, TypeError, "^{name} must be an AnnData.*, not a MuData: ", "MuData")
]
NO_CELLS: Kind = [Wrong(lambda w: w.query[:0].copy(), ValueError, "has no cells", "no cells")]
NO_GENES: Kind = [Wrong(lambda w: w.query[:, :0].copy(), ValueError, "has no genes", "no genes")]
MODEL: Kind = [
    Wrong(None, TypeError, "^model must be a TOSICA model, not NoneType: train one", "None"),
    Wrong("folder", TypeError, r"not str: load it with tosica.TOSICA.load\('folder'\)"),
    Wrong(lambda w: w.query, TypeError, "^model must be a TOSICA model, not AnnData", "AnnData"),
]
LAYER: Kind = [
    *_types([5, ["counts"]], "^layer must be a string or None"),
    Wrong("count", KeyError, "^adata has no layer 'count', only .*did you mean 'counts'[?]"),
]
PATH: Kind = [
    *_types([None, 5], "^{name} must be a path"),
    Wrong("", ValueError, "^{name} is an empty string, and must be a path"),
]
MISSING_PATH: Kind = [
    Wrong("no/such/file", FileNotFoundError, "no/such/file|There is no (file|folder)|does not")
]


def names(error: type[Exception], missing: str, *, optional: bool = True) -> Kind:
    """One name or several, which must exist."""
    none = [] if optional else [None]
    return [
        *_types([5, *none], "^{name} must be a string or a list of strings|^{name} must be "),
        *_types([[None], [1.5]], "^{name} must hold strings only"),
        Wrong("nothing", error, missing),
        Wrong(["nothing"], error, missing),
    ]


INDICES: Kind = [
    *_types(["a", 5, [0.5], [[1]], ["cell1"]], "^indices must be positions of cells"),
    Wrong([10**6], IndexError, "^indices must be positions of the [0-9]+ cells"),
    Wrong([True], ValueError, "^indices has 1 booleans for [0-9]+ cells"),
]
FIGSIZE: Kind = [
    *_types(["large", ("a", "b")], "figsize must be "),
    *_values([(0, 1)], "^each of figsize must be "),
]
AX: Kind = _types(["ax"], "^ax must be axes of matplotlib")
SAVE: Kind = [
    *_types([True], "^save must be the path of the figure"),
    Wrong("no/such/folder.pdf", FileNotFoundError, "there is no folder 'no/such'"),
    Wrong("figure.doc", ValueError, "^save must end in a format that matplotlib .* not in '.doc'"),
]
CMAP: Kind = [
    *_types([5], "^cmap must be a string"),
    *_values(["virids"], "^cmap must be a colour map .*did you mean 'viridis'"),
]
ACCELERATOR: Kind = CHOICE
DEVICE: Kind = [
    *_types([1.5, None, "x"], "^device must be a whole number"),
    *_values([-1], "^device must be at least 0"),
]
