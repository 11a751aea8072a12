"""Recognise kinds of gene names by their spelling: symbols, identifiers, or both in one name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Iterable

_BARE_ID, _VERSION = r"ENS(?:MUS)?G\d{11}", r"(?:\.\d+)?(?:_PAR_Y)?"
_ID = _BARE_ID + _VERSION
_ENSEMBL_ID = re.compile(f"({_BARE_ID}){_VERSION}")
# Seurat replaces an underscore by a hyphen. After an ID, -1 and _1 number repeats.
_ID_LAST = re.compile(rf"(.+?)[_|\-]+({_ID})")
_ID_FIRST = re.compile(rf"({_ID})[_|\-]+(?!\d+$)(.+)")
# A symbol that is repeated more than nine times is the name of a family rather than of a gene.
_NUMBERED = re.compile(r"(.*[^.\-])([.\-])[1-9]")


def ensembl_id(name: str) -> str | None:
    """Remove the version of a human or mouse Ensembl gene ID; None for any other name.

    Examples
    --------
    >>> ensembl_id("ENSG00000198851.10")
    'ENSG00000198851'
    >>> ensembl_id("CD3E") is None
    True
    """
    if not name.startswith("ENS"):
        return None
    match = _ENSEMBL_ID.fullmatch(name)
    return match[1] if match else None


def split_composite(name: str) -> tuple[str, str] | None:
    """Split a composite name into its symbol and its other part; None for any other name.

    Examples
    --------
    >>> split_composite("HLA-A_ENSG00000206503.13")
    ('HLA-A', 'ENSG00000206503.13')
    >>> split_composite("ENSMUSG00000032093|Cd3e")
    ('Cd3e', 'ENSMUSG00000032093')
    >>> split_composite("TP53|7157")
    ('TP53', '7157')
    >>> split_composite("ENSG00000198851.10") is split_composite("HLA-A") is None
    True
    """
    if "ENS" in name and ensembl_id(name) is None:
        match = _ID_LAST.fullmatch(name)
        if match:
            return match[1], match[2]
        match = _ID_FIRST.fullmatch(name)
        if match:
            return match[2], match[1]
    if "|" in name:
        symbol, _, other = name.partition("|")
        return symbol, other
    return None


def split_numbered(name: str) -> tuple[str, str] | None:
    """Split a numbered name into the name and the separator; None for any other name.

    Examples
    --------
    >>> split_numbered("CD24.1"), split_numbered("CD24-2")
    (('CD24', '.'), ('CD24', '-'))
    >>> split_numbered("CD24") is split_numbered("CD24.10") is None
    True
    """
    match = _NUMBERED.fullmatch(name)
    return (match[1], match[2]) if match else None


# The first pattern that matches a name decides.
# Patterns of symbols use the letter case alone, as HGNC (CD3E, C1orf112) and MGI (Cd3e, mt-Nd1,
# 1700001G17Rik) write them.
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("versioned human Ensembl IDs", r"ENSG\d{11}\.\d+(?:_PAR_Y)?"),
    ("human Ensembl IDs", r"ENSG\d{11}"),
    ("versioned mouse Ensembl IDs", r"ENSMUSG\d{11}\.\d+"),
    ("mouse Ensembl IDs", r"ENSMUSG\d{11}"),
    ("Ensembl transcript IDs", r"ENS[A-Z]{0,6}T\d{11}(?:\.\d+)?"),
    ("Ensembl IDs of another species", r"ENS[A-Z]{3,6}G\d{11}(?:\.\d+)?"),
    ("Entrez numbers", r"\d+(?:\.0+)?"),
    ("human symbols", r"C[0-9XY]+orf\d+[A-Z0-9\-]*|(?=[^a-z\s]*[A-Z])[^a-z\s]+"),
    ("mouse symbols", r"mt-\w+|(?=\S*[a-z])[A-Z0-9]\S*"),
    ("lower-case symbols", r"(?=\S*[a-z])[^A-Z\s]+"),
)
_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in _PATTERNS)

_LOWER_CASE = "lower-case symbols"
# Method of pandas that writes symbols as those of another kind are.
_CHANGE_OF_CASE = {"human symbols": "upper", "mouse symbols": "capitalize", _LOWER_CASE: "lower"}

# A list is of a kind if this share of its names is. Real lists have spike-ins, antibodies, clones.
_MAJORITY = 0.6
# Names that are examined; more do not change the result.
_SAMPLE = 2000


def _kind_of(name: str) -> str | None:
    return next((kind for kind, pattern in _COMPILED if pattern.fullmatch(name)), None)


def _are_row_numbers(names: list[str]) -> bool:
    """Whether the names are 0, 1, 2, … or 1, 2, 3, … in any order, as if an index was lost."""
    if not all(name.isascii() and name.isdigit() for name in names):
        return False
    # A longer number is no row number, and might not fit into an integer.
    if max(map(len, names)) > 12:
        return False
    numbers = np.sort(np.array([int(name) for name in names]))
    return bool(numbers[0] in (0, 1) and (np.diff(numbers) == 1).all())


def describe_gene_names(names: Iterable[str]) -> str | None:
    """Recognise the kind of names that most of a list is.

    Parameters
    ----------
    names
        Gene names, in any order.

    Returns
    -------
    str or None
        One of "human Ensembl IDs", "mouse Ensembl IDs" (either also preceded by "versioned ", for
        names such as ``ENSG00000198851.10``), "Ensembl IDs of another species", "Ensembl
        transcript IDs", "Entrez numbers", "row numbers" (0, 1, 2, …: the names were lost), "human
        symbols" (upper case, ``CD3E``), "mouse symbols" (capitalised, ``Cd3e``, like those of the
        rat) or "lower-case symbols". None if no kind makes up 60 % of the names.

    Examples
    --------
    >>> describe_gene_names(["CD3E", "C1orf112", "HLA-DRA"])
    'human symbols'
    >>> describe_gene_names(["ENSMUSG00000032093.7", "ENSMUSG00000032094.8"])
    'versioned mouse Ensembl IDs'
    >>> describe_gene_names(["Cd3e", "CD3E"]) is None
    True
    """
    unique = [str(name) for name in dict.fromkeys(names)]
    if not unique:
        return None
    sample = unique[:: max(1, len(unique) // _SAMPLE)]
    kinds = pd.Series([_kind_of(name) for name in sample], dtype=object).value_counts()
    if kinds.empty or kinds.iloc[0] < _MAJORITY * len(sample):
        return None
    kind = str(kinds.index[0])
    return "row numbers" if kind == "Entrez numbers" and _are_row_numbers(unique) else kind


def find_gene_name_column(var: pd.DataFrame, reference_names: Iterable[str]) -> str | None:
    """Find the column of ``adata.var`` with the most names of the reference.

    Parameters
    ----------
    var
        Table of the genes, ``(n_vars, any)``. Its index holds the names that did not match.
    reference_names
        Names of the genes to find.

    Returns
    -------
    str or None
        Name of the text column (``gene_symbols``, ``feature_name``, ``gene_ids``, …) that shares
        the most names with the reference; None if no column shares more than the index.

    Examples
    --------
    >>> var = pd.DataFrame(
    ...     {"gene_symbols": ["CD3E", "CD19"], "chromosome": ["11", "16"]},
    ...     index=["ENSG00000198851", "ENSG00000177455"],
    ... )
    >>> find_gene_name_column(var, ["CD19", "CD3E", "LYZ"])
    'gene_symbols'
    """
    reference = pd.Index(list(dict.fromkeys(reference_names)), dtype=object)
    best, n_best = None, int(pd.Index(var.index, dtype=object).isin(reference).sum())
    for position, column in enumerate(var.columns):
        values = var.iloc[:, position]
        if pd.api.types.is_numeric_dtype(values.dtype) or not isinstance(column, str):
            continue
        # Distinct values only, so that a column that repeats one name is not chosen.
        n_shared = int(pd.Index(values.unique(), dtype=object).isin(reference).sum())
        if n_shared > n_best:
            best, n_best = column, n_shared
    return best


def _remedy(query_kind: str, reference_kind: str) -> str:
    """Advice for two different kinds of names where no column of ``var`` matches better."""
    if query_kind == "row numbers":
        return (
            "they were lost in a conversion and var_names must be set to gene names again, which "
            "tosica.io.from_seurat does for a Seurat object"
        )
    bare_query = query_kind.removeprefix("versioned ")
    bare_reference = reference_kind.removeprefix("versioned ")
    if bare_query == bare_reference:
        if bare_query == query_kind:
            return "add the versions, or better, strip them from the other side"
        return "strip the versions, e.g. adata.var_names = adata.var_names.str.split('.').str[0]"
    if _LOWER_CASE in (query_kind, reference_kind):
        change = _CHANGE_OF_CASE.get(reference_kind)
        if change is not None and query_kind.endswith("symbols"):
            return f"write them alike: adata.var_names = adata.var_names.str.{change}()"
    for suffix in ("symbols", "Ensembl IDs"):
        if bare_query.endswith(suffix) and bare_reference.endswith(suffix):
            return (
                "use the same species on both sides, or map the genes to their orthologs first "
                "(tosica.gs.map_genes)"
            )
    wanted = "symbols" if reference_kind.endswith("symbols") else reference_kind
    return f"map them to {wanted} first"


def hint_for_mismatch(
    query_names: Iterable[str],
    reference_names: Iterable[str],
    *,
    query: str = "the query",
    reference: str = "the model's",
    var: pd.DataFrame | None = None,
) -> str:
    """Explain why two lists of gene names do not match, and what to do about it.

    Parameters
    ----------
    query_names
        Names that were matched.
    reference_names
        Names that they were matched to.
    query
        Description of the first list, as in "names in the query".
    reference
        Owner of the second list, as in "while the model's look like".
    var
        Table of the query's genes. The hint names a column that matches better than its index.

    Returns
    -------
    str
        A clause without capital and full stop, to end a sentence with; empty if the names give no
        reason.

    Examples
    --------
    >>> hint_for_mismatch(["Cd3e", "Cd19", "Lyz2"], ["CD3E", "CD19", "LYZ"])
    "names in the query look like mouse symbols while the model's look like human symbols, so use
    the same species on both sides, or map the genes to their orthologs first (tosica.gs.map_genes)"
    """
    query_list, reference_list = list(query_names), list(reference_names)
    query_kind = describe_gene_names(query_list)
    reference_kind = describe_gene_names(reference_list)
    column = None if var is None else find_gene_name_column(var, reference_list)
    if query_kind == "row numbers" and query_kind != reference_kind:
        clause = f"names in {query} look like row numbers"
    elif query_kind and reference_kind and query_kind != reference_kind:
        clause = (
            f"names in {query} look like {query_kind} while {reference} look like {reference_kind}"
        )
    else:
        clause = ""
    if column is not None:
        start = f"{clause}, but" if clause else f"in {query}"
        return (
            f"{start} var[{column!r}] fits better, so take that: adata.var_names = "
            f"adata.var[{column!r}].astype(str), then adata.var_names_make_unique()"
        )
    if not clause:
        return ""
    return f"{clause}, so {_remedy(query_kind or '', reference_kind or '')}"
