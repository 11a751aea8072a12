"""Terms of the Cell Ontology: check, name, and what is above and below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tosica._validation import check_string, only_known
from tosica.onto._match_labels import match_label
from tosica.onto._ontology import read_ontology

if TYPE_CHECKING:
    from collections.abc import Sequence

# What the schema of CELLxGENE wants where there is no term.
NO_TERM = "unknown"
# What the name of a column with labels has at its end in the name of the column with their terms.
TERM_SUFFIX = "_ontology_term_id"


def term_name(term: str) -> str:
    """Name of a term of the Cell Ontology.

    Parameters
    ----------
    term
        Identifier, such as ``"CL:0000084"``.

    Returns
    -------
    The name.

    Raises
    ------
    TypeError
        If ``term`` is not a string.
    KeyError
        If there is no such term, or it is obsolete.

    Examples
    --------
    >>> import tosica
    >>> tosica.onto.term_name("CL:0000084")
    'T cell'
    """
    return read_ontology().names[_known(term)]


def ancestors(term: str) -> dict[str, str]:
    """All terms that a term is a kind of.

    Parameters
    ----------
    term
        Identifier, such as ``"CL:0000084"``.

    Returns
    -------
    Identifiers and names, sorted by identifier; the term itself is not among them.

    Raises
    ------
    TypeError, KeyError
        As :func:`term_name`.

    Examples
    --------
    >>> import tosica
    >>> tosica.onto.ancestors("CL:0000084")["CL:0000542"]
    'lymphocyte'
    """
    ontology = read_ontology()
    return {above: ontology.names[above] for above in sorted(ontology.ancestors[_known(term)])}


def descendants(term: str) -> dict[str, str]:
    """All terms that are a kind of a term.

    Parameters
    ----------
    term
        Identifier, such as ``"CL:0000084"``.

    Returns
    -------
    Identifiers and names, sorted by identifier; the term itself is not among them.

    Raises
    ------
    TypeError, KeyError
        As :func:`term_name`.

    Examples
    --------
    >>> import tosica
    >>> tosica.onto.descendants("CL:0000084")["CL:0000798"]
    'gamma-delta T cell'
    """
    ontology, term = read_ontology(), _known(term)
    below = (other for other, above in ontology.ancestors.items() if term in above)
    return {other: ontology.names[other] for other in sorted(below)}


def term_problem(term: str) -> str | None:
    """Say why a term cannot be a cell's, as the end of a sentence; ``None`` if it can."""
    ontology = read_ontology()
    if term in ontology.forbidden:
        return f"{term!r} may not be used for cells, says the {ontology.schema}"
    if term in ontology.obsolete:
        name, others = ontology.obsolete[term]
        instead = f", which names {' or '.join(others)} in its place" if others else ""
        return f"{term!r} ({name}) is obsolete in the Cell Ontology{instead}"
    if term not in ontology.names:
        return (
            f"{term!r} is no term of the Cell Ontology of {ontology.release}, whose identifiers "
            "are like 'CL:0000084'"
        )
    return None


def is_kind_of(term: str, other: str) -> bool:
    """Whether a term is another one or a kind of it; false if one is not in the ontology."""
    above = read_ontology().ancestors
    return term in above and other in above and (term == other or other in above[term])


def check_mapping(name: str, mapping: Any, labels: Sequence[str], where: str) -> dict[str, str]:
    """Check a mapping of labels to terms that the caller gave.

    Parameters
    ----------
    name
        Name of the parameter.
    mapping
        Its value.
    labels
        Labels that there are.
    where
        Where they are, for messages.

    Returns
    -------
    The mapping, with strings as labels.

    Raises
    ------
    TypeError
        If it is not a mapping, or a term is not a string.
    KeyError
        If there is no such label.
    ValueError
        If there is no such term, it is obsolete, or cells may not have it.
    """
    if not isinstance(mapping, Mapping):
        raise TypeError(
            f"{name} must be a dict of label to identifier, as in {{'T cells': 'CL:0000084'}}, not "
            f"{type(mapping).__name__}."
        )
    for label, term in mapping.items():
        if str(label) not in labels:
            raise KeyError(f"{where} has no label {str(label)!r}{only_known(str(label), labels)}")
        if not isinstance(term, str):
            raise TypeError(
                f"{name} must hold identifiers such as 'CL:0000084', not {term!r:.60} for "
                f"{str(label)!r}."
            )
        problem = None if term == NO_TERM else term_problem(term)
        if problem:
            raise ValueError(f"{name} gives {str(label)!r} a wrong term: {problem}.")
    return {str(label): term for label, term in mapping.items()}


def _known(term: Any) -> str:
    check_string("term", term)
    ontology = read_ontology()
    if term in ontology.names:
        return str(term)
    found = match_label(term).term
    if term in ontology.obsolete or found is None:
        raise KeyError(f"{term_problem(term)}.")
    raise KeyError(f"{term!r} is the name of {found}: pass the identifier.")
