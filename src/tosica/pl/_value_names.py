"""What the numbers that a plot shows are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosica.get._resolve_key import kind_of

if TYPE_CHECKING:
    from anndata import AnnData

# Lines, short enough for the titles of scanpy's legends.
_LINES = {
    "presence": ("contribution to", "the label's score", "(presence)"),
    "attribution": ("contribution to", "the label's score"),
    "weighted attention": ("weighted attention",),
    "attention": ("attention",),
}


def value_name(adata: AnnData, key: str, before: str = "") -> str:
    """Name of the numbers under a key, in as many lines as a colour bar has room for.

    Parameters
    ----------
    adata
        Annotated query.
    key
        Which numbers.
    before
        First line of the title, such as ``"mean z-score of"``.
    """
    lines = _LINES[kind_of(adata, key)]
    return "\n".join([before, *lines] if before else lines)
