"""What only the authors of a model know of it: tissue, license, what to cite."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tosica._validation import check_names, check_string, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

_NEEDED = ("tissue", "license")
_DOI = re.compile(r"(?:https?://(?:dx\.)?doi\.org/|doi:\s*)?(10\.\d{4,9}/[^\s<>\"]+)", re.I)


@dataclass(frozen=True)
class About:
    """What the authors of a model say of it, as :meth:`tosica.TOSICA.push_to_hub` takes it.

    Texts have no line breaks and no characters that cannot be printed.
    """

    tissue: tuple[str, ...]
    license: str
    organism: str | None = None
    description: str | None = None
    version: str | None = None
    doi: str | None = None
    citation: str | None = None
    contact: str | None = None


FIELDS = tuple(field.name for field in fields(About))


def check_about(given: Mapping[str, Any], where: str = "") -> About:
    """Check what the authors say of a model.

    Parameters
    ----------
    given
        Values by the names in :data:`FIELDS`. Those that are ``None`` are left out.
    where
        What to put in front of the names in messages.

    Raises
    ------
    TypeError
        If a value is of the wrong type.
    ValueError
        If a field is missing, empty or unknown, or the DOI is none.
    """
    for name in given:
        if name not in FIELDS:
            raise ValueError(
                f"{where}there is no field {name!r}, only {', '.join(FIELDS)}"
                f"{did_you_mean(str(name), FIELDS, 1)}"
            )
    for name in _NEEDED:
        if given.get(name) is None:
            raise TypeError(
                f"{where}{name} must be a string, not None: a model is shared with its tissue and "
                "its license, such as tissue='blood', license='cc-by-4.0'."
            )
    found: dict[str, Any] = {"tissue": _tissues(f"{where}tissue", given["tissue"])}
    for name in FIELDS[1:]:
        value = given.get(name)
        check_string(f"{where}{name}", value, optional=name not in _NEEDED)
        if value is not None:
            found[name] = _filled(f"{where}{name}", value)
    if "doi" in found:
        matched = _DOI.fullmatch(found["doi"])
        if matched is None:
            raise ValueError(
                f"{where}doi must be a DOI, such as '10.1038/s41467-023-35923-4', not "
                f"{found['doi']!r}."
            )
        found["doi"] = matched[1]
    return About(**found)


def one_line(text: str) -> str:
    """A text in one line, without characters that cannot be printed."""
    return " ".join("".join(c for c in text if c.isprintable() or c.isspace()).split())


def _tissues(name: str, value: Any) -> tuple[str, ...]:
    tissues = check_names(name, value)
    if not tissues:
        raise ValueError(f"{name} is empty: name at least one tissue.")
    return tuple(_filled(name, tissue) for tissue in tissues)


def _filled(name: str, text: str) -> str:
    line = one_line(text)
    if not line:
        raise ValueError(f"{name} is an empty string: fill it in, or leave it out.")
    return line
