"""Recognize gene names by their spelling alone, without any table of genes."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Kinds of names, as log messages call them. No table of genes lists the last two.
SYMBOL: Final = "symbols"
ENSEMBL: Final = "Ensembl IDs"
ENTREZ: Final = "Entrez numbers"
ALIAS: Final = "aliases"
COMPOSITE: Final = "composite names"
NUMBERED: Final = "numbered symbols"

_BARE_ID = r"ENS(?:MUS)?G\d{11}"
_VERSION = r"(?:\.\d+)?(?:_PAR_Y)?"
_ID = _BARE_ID + _VERSION
_ENSEMBL_ID = re.compile(f"({_BARE_ID}){_VERSION}")
# Seurat replaces an underscore by a hyphen. After an ID, -1 and _1 number repeats.
_ID_LAST = re.compile(rf"(.+?)[\W_]+({_ID})\)?")
_ID_FIRST = re.compile(rf"({_ID})[_|\-:; (]+(?!\d+$)(.+?)\)?")
# A symbol that is repeated more than nine times is the name of a family, not of a gene.
REPEATS = "123456789"
NUMBERED_SYMBOL = re.compile(rf"(.*[^.\-])([.\-])[{REPEATS}]")
ENTREZ_NUMBER = re.compile(r"(\d+)(?:\.0+)?")

# The first pattern that matches a name decides. Patterns of symbols use the letter case
# alone, as HGNC (CD3E, C1orf112) and MGI (Cd3e, mt-Nd1, 1700001G17Rik) write them.
_PATTERNS = {
    "human Ensembl IDs": rf"ENSG\d{{11}}{_VERSION}",
    "mouse Ensembl IDs": rf"ENSMUSG\d{{11}}{_VERSION}",
    "Ensembl transcript IDs": r"ENS[A-Z]{0,6}T\d{11}(?:\.\d+)?",
    "Ensembl IDs of another species": r"ENS[A-Z]{3,6}G\d{11}(?:\.\d+)?",
    ENTREZ: ENTREZ_NUMBER.pattern,
    "human symbols": r"C[0-9XY]+orf\d+[A-Z0-9\-]*|(?=[^a-z\s]*[A-Z])[^a-z\s]+",
    "mouse symbols": r"mt-\w+|(?=\S*[a-z])[A-Z0-9]\S*",
    "lower-case symbols": r"(?=\S*[a-z])[^A-Z\s]+",
}
_COMPILED = {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}
# A list is of a kind if this share of its names is. Real lists have spike-ins,
# antibodies and clones.
_MAJORITY = 0.6
# A matrix has fewer rows: GENCODE has 62 000 genes. Of the human genes in GO, 32 % have a larger Entrez
# number, so that 24 genes without any have a probability of 1e-4.
_MOST_ROWS = 62_000
_MIN_NUMBERS = 24
# Names that are examined; more do not change the result.
_SAMPLE = 2000

# Bytes that were made text begin with a b.
_QUOTED = r"""^b?(["'])(.*)\1$"""
# A genome or a modality before a name, and a word after it.
_PREFIX = r"^([^\W_]+[^a-zA-Z0-9]+)(?=.)"
_SUFFIX = r"(?<=.)([^a-zA-Z0-9]+[a-zA-Z]\w*)$"


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
    """Split a composite name into its symbol and its identifier; None for any other name.

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
        if match := _ID_LAST.fullmatch(name):
            return match[1], match[2]
        if match := _ID_FIRST.fullmatch(name):
            return match[2], match[1]
    symbol, bar, identifier = name.partition("|")
    return (symbol, identifier) if bar else None


def undecorated(names: pd.Index) -> pd.Index:
    """Remove the decoration of most names: white space, quotes, a genome before, a suffix.

    A prefix ends, and a suffix begins, with a character that is neither a letter nor a digit.

    Examples
    --------
    >>> list(undecorated(pd.Index(["GRCh38_CD3E", "GRCh38_HLA-DRA", "GRCh38_NKG7"])))
    ['CD3E', 'HLA-DRA', 'NKG7']
    >>> list(undecorated(pd.Index(["CD3E-RNA ", "HLA-DRA-RNA ", "MT-CO1-RNA "])))
    ['CD3E', 'HLA-DRA', 'MT-CO1']
    """
    bare = names.astype(str).str.strip().str.replace(_QUOTED, r"\2", regex=True)
    bare = _remove_shared(bare, _PREFIX, str.removeprefix)
    return _remove_shared(bare, _SUFFIX, str.removesuffix)


def _remove_shared(
    names: pd.Index, pattern: str, remove: Callable[[str, str], str]
) -> pd.Index:
    """Remove a prefix or suffix that most names share, then the next one."""
    while True:
        affixes = pd.Series(names.str.extract(pattern, expand=False))
        shares = affixes.value_counts(normalize=True, dropna=False)
        if shares.empty or pd.isna(shares.index[0]) or shares.iloc[0] < _MAJORITY:
            return names
        affix = shares.index[0]
        names = pd.Index([remove(name, affix) for name in names], dtype=object)


def describe_gene_names(names: Iterable[str]) -> str | None:
    """Recognize the kind of most names of a list.

    Parameters
    ----------
    names
        Gene names, in any order.

    Returns
    -------
    str or None
        One of "human Ensembl IDs", "mouse Ensembl IDs", "Ensembl IDs of another species", "Ensembl
        transcript IDs", "Entrez numbers", "row numbers" (0, 1, 2, … or some of them in this order: the names were
        lost), "human symbols" (upper case, ``CD3E``), "mouse symbols" (capitalized, ``Cd3e``, like those of the
        rat) or "lower-case symbols". None if no kind makes up 60 % of the names.

    Examples
    --------
    >>> describe_gene_names(["CD3E", "C1orf112", "HLA-DRA"])
    'human symbols'
    >>> describe_gene_names(["ENSMUSG00000032093.7", "ENSMUSG00000032094.8"])
    'mouse Ensembl IDs'
    >>> describe_gene_names(["Cd3e", "CD3E"]) is None
    True
    """
    unique = [str(name) for name in dict.fromkeys(names)]
    sample = unique[:: max(1, len(unique) // _SAMPLE)]
    kinds = pd.Series(
        [
            next(
                (
                    kind
                    for kind, pattern in _COMPILED.items()
                    if pattern.fullmatch(name)
                ),
                None,
            )
            for name in sample
        ],
        dtype=object,
    )
    counts = kinds.value_counts()
    if counts.empty or counts.iloc[0] < _MAJORITY * len(sample):
        return None
    if counts.index[0] == ENTREZ and _are_row_numbers(unique):
        return "row numbers"
    return str(counts.index[0])


def _are_row_numbers(names: list[str]) -> bool:
    """Whether names are numbers of rows, all or some of them, and no Entrez numbers."""
    if not all(name.isdecimal() for name in names):
        return False
    numbers = [int(name) for name in names]
    if set(numbers) in (set(range(len(names))), set(range(1, len(names) + 1))):
        return True
    is_ascending = all(a < b for a, b in pairwise(numbers))
    return is_ascending and numbers[-1] < _MOST_ROWS and len(names) >= _MIN_NUMBERS
