"""Columns of obs, what model.annotate and the tools wrote into an AnnData or MuData, and colors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from tosica._text import (
    call,
    did_you_mean,
    in_python,
    list_names,
    only_known,
    parameter,
)
from tosica._validate import ANY_CELLS, TEXT, Names, as_names, is_file_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from anndata import AnnData

    from tosica._types import AnnOrMuData, FloatArray

# Label of a cell whose best label is too improbable, and of a cluster in which no label has enough
# of the cells.
UNKNOWN: Final = "Unknown"
HETEROGENEOUS: Final = "Heterogeneous"

# Up to here, floating-point numbers hold each integer.
_LARGEST_INTEGER = 2**53
# Texts that stand for no label, in lower case.
_NO_LABELS = {
    "nan",
    "na",
    "n/a",
    "#n/a",
    "<na>",
    "none",
    "null",
    "",
    "-",
    "--",
    "?",
    "unk",
    "unknown",
    "unassigned",
    "not assigned",
    "unlabeled",
    "unlabelled",
    "unannotated",
    "not annotated",
    "undefined",
    "undetermined",
    "not determined",
    "not available",
    "unclassified",
    "unidentified",
    "no label",
    "missing",
}

# Where tl.attribute writes by default.
ATTRIBUTION: Final = "tosica_attribution"


def read_groups(
    adata: AnnData,
    groupby: str,
    *,
    name: str = "groupby",
    allow_missing: bool = False,
    known: Sequence[str] | None = None,
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
    known
        Labels of a model. If given, floating-point numbers are taken as by :func:`whole_numbers`.

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
    ANY_CELLS.check("adata", adata)
    TEXT.check(name, groupby)
    column = _column(adata, groupby)
    if not isinstance(adata.obs, pd.DataFrame):
        raise TypeError(
            "adata was opened without reading it: call adata.to_memory() first."
        )
    if adata.n_obs == 0:
        raise ValueError("adata has no cells.")
    where = f"adata.obs[{groupby!r}]"
    cure = in_python(f" with adata[{where}.notna()].copy()")
    remedy = f"give them a group, or leave them out{cure}"
    if known is not None:
        column = whole_numbers(column, known)
    return as_groups(column, where, remedy=remedy, allow_missing=allow_missing)


def whole_numbers(column: pd.Series, known: Sequence[str]) -> pd.Series:
    """Write whole numbers as labels are written: pandas makes 1.0 of 1 beside cells without one.

    Parameters
    ----------
    column
        One value a cell; values that are not whole numbers are returned as they are.
    known
        Labels of a model. If some of the numbers are written as these with a point, all are.
    """
    if column.dtype.kind not in "fiu" or column.isna().all():
        return column
    numbers = column.dropna().to_numpy(dtype=np.float64)
    if (numbers % 1 != 0).any() or (np.abs(numbers) > _LARGEST_INTEGER).any():
        return column
    with_point = numbers.astype(str)
    without_point = numbers.astype(np.int64).astype(str)
    if np.isin(with_point, known).any() and not np.isin(without_point, known).any():
        return column.astype(float).astype(object)
    return column.astype("Int64")


def stands_for_no_label(text: str) -> bool:
    """Tell if a text says that a cell has no label, as "Unassigned" and "n/a" do.

    Examples
    --------
    >>> from tosica._obs import stands_for_no_label
    >>> stands_for_no_label("not_assigned"), stands_for_no_label("B cell")
    (True, False)
    """
    spelling = " ".join(text.split()).casefold()
    return spelling.replace("_", " ") in _NO_LABELS


def as_groups(
    column: pd.Series,
    where: str,
    *,
    remedy: str = "give them a group",
    allow_missing: bool = False,
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
    if n_missing == len(column):
        # Pandas holds a column without values as numbers.
        column = column.astype(object)
    # Text, objects, categories, booleans and whole numbers.
    if column.dtype.kind not in "OSUbiu":
        raise TypeError(
            f"{where} holds {column.dtype} values, not groups: name another column, or make groups of the "
            f"values{in_python(', as by pandas.cut')}."
        )
    try:
        categorical = pd.Categorical(column).remove_unused_categories()
    except TypeError as error:
        raise TypeError(
            f"{where} holds values that cannot name a group ({error}): use strings."
        ) from error
    names = [str(name) for name in categorical.categories]
    if len(set(names)) < len(names):
        raise ValueError(
            f"{where} holds groups that are written alike, such as 1 and '1': "
            f"make all of them strings{in_python(f', as by {where}.astype(str)')}."
        )
    categories = pd.CategoricalDtype(names)
    return pd.Categorical.from_codes(np.asarray(categorical.codes), dtype=categories)


def one_column(obs: Any, column: str) -> None:
    """Refuse two columns of one name, as a join may leave them."""
    if sum(name == column for name in obs.columns) > 1:
        cure = in_python(
            ", as by adata.obs = adata.obs.loc[:, ~adata.obs.columns.duplicated()]"
        )
        raise ValueError(
            f"adata.obs has several columns {column!r}: rename or drop all but one{cure}."
        )


def _column(adata: AnnOrMuData, name: str) -> pd.Series:
    """Take a column of ``adata.obs``; the error names the columns that it has, or the call that writes this one."""
    if name in adata.obs:
        one_column(adata.obs, name)
        return adata.obs[name]
    key, _, written = name.removesuffix("_cluster").rpartition("_")
    advice = only_known(name, adata.obs.columns)
    if written in ("prediction", "probability"):
        command = call("model.annotate", f"adata, key_added={key!r}")
        advice = f": run {command}, or name another one."
    elif written == "novelty":
        command = call("tosica.tl.novelty", f"adata, model, key={key!r}")
        advice = f": run {command} first."
    raise KeyError(f"adata.obs has no column {name!r}{advice}")


def read_numbers(adata: AnnOrMuData, column: str) -> FloatArray:
    """Read a column of ``obs`` that holds numbers.

    Raises
    ------
    KeyError
        If the column is missing.
    TypeError
        If it holds anything else.
    """
    numbers = _column(adata, column)
    if not pd.api.types.is_numeric_dtype(numbers.dtype) or numbers.dtype == bool:
        raise TypeError(
            f"adata.obs[{column!r}] holds {numbers.dtype} values instead of numbers."
        )
    return numbers.to_numpy(dtype=np.float64, na_value=np.nan)


def read_labels(adata: AnnOrMuData, key: str) -> list[str]:
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


def file_columns(labels: Sequence[str], where: str) -> list[str]:
    """Name the columns of a table, one a label, as files can hold them: a slash becomes a bar.

    Parameters
    ----------
    labels
        The labels, all different.
    where
        Where they are from, for the message.

    Raises
    ------
    ValueError
        If a label is empty or cannot be a name in a file, or two would have the same name.
    """
    columns = [label.replace("/", "|") for label in labels]
    invalid = []
    for label, column in zip(labels, columns, strict=True):
        is_valid = is_file_key(column) and column != "_index"
        if not is_valid or columns.count(column) > 1:
            invalid.append(label)
    if invalid:
        cure = in_python(", as by adata.obs[key].cat.rename_categories({...})")
        raise ValueError(
            f"{where} has labels that cannot each be a column of a file, in which a slash becomes a bar "
            f"({list_names(invalid)}): rename them{cure}."
        )
    return columns


def read_probabilities(adata: AnnOrMuData, key: str) -> FloatArray:
    """Read the probability of each cell's label.

    Raises
    ------
    KeyError, TypeError
        As :func:`read_numbers`.
    ValueError
        If a value is missing, or not between 0 and 1.
    """
    probability = read_numbers(adata, f"{key}_probability")
    if not ((probability >= 0) & (probability <= 1)).all():
        raise ValueError(
            f"adata.obs['{key}_probability'] holds values that are missing (NaN) or not between 0 "
            f"and 1: run {call('model.annotate', f'adata, key_added={key!r}')} again."
        )
    return probability


def check_target(adata: AnnOrMuData, function: str, *, copy: bool) -> None:
    """Refuse a backed AnnData to which results could not be written, before they are computed.

    Parameters
    ----------
    adata
        Where ``function`` writes.
    function
        Its name.
    copy
        Whether it writes to a copy.

    Raises
    ------
    ValueError
        If ``adata`` is backed and is a view or to be copied.
    """
    if not getattr(adata, "isbacked", False) or not (copy or adata.is_view):
        return
    target = "a backed AnnData with copy=True"
    if adata.is_view:
        target = "a view of a backed AnnData"
    raise ValueError(
        f"{function} cannot write to {target}: call adata.to_memory() first."
    )


# --------------------------------------------------------------------------- annotations


def annotation_key(adata: AnnOrMuData, key: str) -> str:
    """Find the annotation that contributions explain.

    Parameters
    ----------
    adata
        Annotated query.
    key
        ``key_added`` of :func:`tosica.tl.attribute`, or that of ``model.annotate`` itself.
    """
    record = adata.uns.get(key)
    # Contributions of before the record said so have the key that the call gives by default.
    by_default = key.removesuffix("_attribution")
    if not isinstance(record, Mapping):
        return by_default
    return str(record.get("key", by_default))


def read_attribution(
    adata: AnnOrMuData, key: str, *, of: str = ""
) -> Mapping[str, Any]:
    """Read what :func:`tosica.tl.attribute` wrote to ``uns``.

    Parameters
    ----------
    adata
        Annotated query.
    key
        ``key_added`` of the call.
    of
        ``"genes"`` if there must be contributions of genes in each cell.

    Raises
    ------
    TypeError
        If ``adata`` is neither AnnData nor MuData, or ``key`` is not a string.
    KeyError
        If it was not called.
    ValueError
        If it explains the labels of another model than the one that annotated ``adata``.
    """
    ANY_CELLS.check("adata", adata)
    TEXT.check("key", key)
    record = adata.uns.get(key)
    has_evidence = isinstance(record, Mapping) and "evidence" in record
    if of and not (has_evidence and key in adata.layers):
        raise KeyError(
            f"adata.layers[{key!r}] holds no contributions: call tosica.tl.attribute(adata, model, {of}=True) first."
        )
    if not has_evidence:
        raise KeyError(
            f"adata.uns[{key!r}] holds no contributions: call tosica.tl.attribute(adata, model) first."
        )
    annotation = adata.uns.get(annotation_key(adata, key))
    annotated_by = annotation.get("model") if isinstance(annotation, Mapping) else None
    if annotated_by is not None and str(annotated_by) != str(record["model"]):
        raise ValueError(
            f"adata.uns[{key!r}] was written by another model than the annotation: call tosica.tl.attribute again."
        )
    return record


def find_gene_sets(
    gene_sets: str | Iterable[str], all_names: Sequence[str], where: str
) -> list[str]:
    """List the gene sets that the caller asks for, each once, and check that they exist.

    Parameters
    ----------
    gene_sets
        One name or several.
    all_names
        All names.
    where
        Where these are from, for the message.

    Raises
    ------
    TypeError
        If a name is not a string.
    KeyError
        If a name does not exist; similar names are suggested.
    ValueError
        If no name is given.
    """
    Names().check("gene_sets", gene_sets)
    names = list(dict.fromkeys(as_names(gene_sets)))
    if not names:
        raise ValueError(
            "gene_sets is empty: name at least one gene set, or leave it out."
        )
    existing = set(all_names)
    for name in names:
        if name not in existing:
            advice = did_you_mean(name, all_names)
            raise KeyError(
                f"There is no gene set {name!r} among the {len(all_names)} of {where}{advice}"
            )
    return names


def read_attention(adata: AnnData, key: str) -> tuple[FloatArray, list[str]]:
    """Read the attention of every cell to every gene set, or what each gene set adds in it.

    Parameters
    ----------
    adata
        Annotated query.
    key
        ``key_added`` of ``model.annotate``, or of :func:`tosica.tl.attribute` with ``cells=True``.

    Returns
    -------
    Values, ``(n_obs, n_gene_sets)``, not a copy, and the names of the gene sets.

    Raises
    ------
    TypeError
        If ``adata`` is neither AnnData nor MuData, or ``key`` is not a string.
    KeyError
        If ``adata`` was not annotated under ``key``, or part of what that wrote is missing.
    ValueError
        If attention and names differ in number, or the attention holds NaN or infinity.
    """
    ANY_CELLS.check("adata", adata)
    TEXT.check("key", key)
    embedding_key = f"X_{key}"
    record = adata.uns.get(key)
    if embedding_key not in adata.obsm:
        raise KeyError(
            f"adata has no .obsm[{embedding_key!r}]: run {_call_for(key)} first{_other_keys(adata)}."
        )
    if not isinstance(record, Mapping) or "gene_sets" not in record:
        cause = in_python(", which anndata.concat drops unless uns_merge='same'")
        raise KeyError(
            f"adata has .obsm[{embedding_key!r}], but no names of its columns in .uns[{key!r}]['gene_sets']{cause}: "
            f"run {_call_for(key)}, or copy them back{_other_keys(adata)}."
        )
    attention = np.asarray(adata.obsm[embedding_key])
    gene_sets = [str(name) for name in np.asarray(record["gene_sets"]).ravel()]
    if attention.shape[1:] != (len(gene_sets),) or not np.isfinite(attention).all():
        raise ValueError(
            f"adata.obsm[{embedding_key!r}] has shape {attention.shape} and {(~np.isfinite(attention)).sum()} values "
            f"of NaN or infinity, but adata.uns[{key!r}]['gene_sets'] names {len(gene_sets)} gene sets: "
            f"run {_call_for(key)} again."
        )
    return attention, gene_sets


def _call_for(key: str) -> str:
    """Name the call that writes under a key."""
    annotated = key.removesuffix("_attribution")
    if annotated == key:
        return call("model.annotate", f"adata, key_added={key!r}")
    moved = "" if annotated == "tosica" else f", key={annotated!r}"
    return call("tosica.tl.attribute", f"adata, model, cells=True{moved}")


def _other_keys(adata: AnnData) -> str:
    """Point to an annotation under another key."""
    for name, value in adata.uns.items():
        if (
            isinstance(value, Mapping)
            and "gene_sets" in value
            and f"X_{name}" in adata.obsm
        ):
            return f", or pass {parameter('key', name)}, which is there"
    return ""


# --------------------------------------------------------------------------- colors


# The palette of Okabe and Ito, whose colors can be told apart with any kind of color vision.
BLUE = "#0072b2"
ORANGE = "#d55e00"
GREEN = "#009e73"
GRAY = "#8c8c8c"
# The gray that scanpy gives to missing values.
LIGHT_GRAY = "#d3d3d3"


def default_palette(n_colors: int) -> list[str]:
    """List the colors that scanpy gives to this many groups by default."""
    # Their import takes a second.
    import scanpy as sc
    from matplotlib import rcParams
    from matplotlib.colors import to_hex

    cycle = rcParams["axes.prop_cycle"].by_key().get("color", [])
    palettes = (
        [to_hex(color) for color in cycle],
        sc.pl.palettes.default_20,
        sc.pl.palettes.default_28,
        sc.pl.palettes.default_102,
    )
    for palette in palettes:
        if n_colors <= len(palette):
            return list(palette[:n_colors])
    return ["#808080"] * n_colors


def group_colors(adata: AnnOrMuData, groupby: str | None) -> dict[str, str]:
    """Color of each group in the AnnData, or else in scanpy's palette.

    Groups of a column that is gone are gray. ``adata`` is not changed, even where scanpy would
    write its palette to it.

    Parameters
    ----------
    adata
        Data with or without ``adata.uns[f"{groupby}_colors"]``.
    groupby
        Column of ``adata.obs`` with the groups.
    """
    from matplotlib.colors import is_color_like, to_hex

    if groupby is None or groupby not in adata.obs:
        return defaultdict(lambda: GRAY)
    column = adata.obs[groupby]
    if isinstance(column.dtype, pd.CategoricalDtype):
        # The list of colors includes those of unused categories.
        names = [str(name) for name in column.cat.categories]
    else:
        names = list(read_groups(adata, groupby, allow_missing=True).categories)
    stored = [str(color) for color in adata.uns.get(f"{groupby}_colors", ())]
    if len(stored) < len(names) or not all(is_color_like(color) for color in stored):
        stored = default_palette(len(names))
    colors = (to_hex(color) for color in stored)
    return defaultdict(lambda: GRAY, zip(names, colors, strict=False))
