"""Names that hold more than the name of a gene: `HLA-A_ENSG00000206503`, `TP53|7157`, `CD24.1`.

Files write a symbol and an identifier in one where symbols repeat; R's make.unique and anndata's
var_names_make_unique count the repeats. Pure functions: which part is a gene is for others to say.
"""

from __future__ import annotations

import re

_ID = r"ENS(?:MUS)?G\d{11}(?:\.\d+)?(?:_PAR_Y)?"
_PLAIN_ID = re.compile(_ID)
# The hyphen is what Seurat makes of an underscore. After an ID, -1 and _1 count repeats.
_ID_LAST = re.compile(rf"(.+?)[_|\-]+({_ID})")
_ID_FIRST = re.compile(rf"({_ID})[_|\-]+(?!\d+$)(.+)")
# A symbol that is there more than nine times is a family's name and not a gene's.
_COUNTED = re.compile(r"(.*[^.\-])([.\-])[1-9]")


def split_composite(name: str) -> tuple[str, str] | None:
    """Take a name apart into a symbol and what stands beside it; None if it is no such name.

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
    if "ENS" in name and not _PLAIN_ID.fullmatch(name):
        match = _ID_LAST.fullmatch(name)
        if match:
            return match[1], match[2]
        match = _ID_FIRST.fullmatch(name)
        if match:
            return match[2], match[1]
    if "|" in name:
        symbol, _, beside = name.partition("|")
        return symbol, beside
    return None


def split_counted(name: str) -> tuple[str, str] | None:
    """Take a repeated name apart into the name and the mark before its number; None if it is none.

    Examples
    --------
    >>> split_counted("CD24.1"), split_counted("CD24-2")
    (('CD24', '.'), ('CD24', '-'))
    >>> split_counted("CD24") is split_counted("CD24.10") is None
    True
    """
    match = _COUNTED.fullmatch(name)
    return (match[1], match[2]) if match else None
