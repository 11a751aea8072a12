"""Names in the value of an option: separated by commas, or one a line in a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def read_names(values: Iterable[str], known: Collection[str]) -> list[str]:
    """Read names from the values of an option that may be given several times.

    Parameters
    ----------
    values
        Each is a name, several that are separated by commas, or the path of a file with one a line.
    known
        Names that exist: one of these may have commas itself, as labels of the Cell Ontology have.

    Returns
    -------
    The names in their order, whether they exist or not.
    """
    names: list[str] = []
    for value in values:
        # Path.is_file() raises an error for a text that is too long to be a path.
        if value not in known and os.path.isfile(value):
            lines = Path(value).read_text(encoding="utf-8-sig").splitlines()
            names.extend(line.strip() for line in lines if line.strip())
        else:
            names.extend(split_names(value, known))
    return names


def split_names(text: str, known: Collection[str]) -> list[str]:
    """Split names at the commas, but not at those of a name that exists."""
    pieces = text.split(",")
    names = []
    i = 0
    while i < len(pieces):
        # The longest name that exists, or else the text up to the next comma.
        for end in range(len(pieces), i, -1):
            name = ",".join(pieces[i:end]).strip()
            if name in known or end == i + 1:
                break
        if name:
            names.append(name)
        i = end
    return names
