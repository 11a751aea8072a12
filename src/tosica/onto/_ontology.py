"""The Cell Ontology: its terms and what is above them, and labels of cells matched with them."""

from __future__ import annotations

import gzip
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from tosica._checks import FileKey, validate_params
from tosica._obs import read_groups
from tosica._settings import logger, warn_user
from tosica._text import list_names, only_known

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from anndata import AnnData
    from mudata import MuData

# What the schema of CELLxGENE wants where there is no term.
NO_TERM = "unknown"
# End of the name of a column with the terms of another column's labels.
TERM_SUFFIX = "_ontology_term_id"


class Ontology:
    """Terms by identifier: names, parents, synonyms, and which of them may not be used.

    Identifiers have their prefix, as in ``"CL:0000084"``. Callers must not change what they get.
    """

    def __init__(self, table: str, about: dict[str, Any]) -> None:
        self.release: str = about["release"]
        self.schema: str = about["schema"]
        self.forbidden = frozenset(about["forbidden"])
        self.names: dict[str, str] = {}
        self.parents: dict[str, tuple[str, ...]] = {}
        # Obsolete term to its name and to what the ontology names in its place.
        self.obsolete: dict[str, tuple[str, tuple[str, ...]]] = {}
        # Exact synonyms, and those that other cells have as well.
        self._synonyms: tuple[
            dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]
        ] = {}, {}
        for line in table.split("\n")[1:-1]:
            number, name, above, exact, inexact, instead = line.split("\t")
            term = "CL:" + number
            if instead:
                others = () if instead == "-" else tuple(instead.split("|"))
                self.obsolete[term] = name, others
                continue
            self.names[term] = name
            self.parents[term] = (
                tuple("CL:" + n for n in above.split("|")) if above else ()
            )
            for known, listed in zip(self._synonyms, (exact, inexact), strict=True):
                known[term] = tuple(listed.split("|")) if listed else ()

    @cached_property
    def ancestors(self) -> dict[str, frozenset[str]]:
        """All terms above each term."""
        found: dict[str, frozenset[str]] = {}

        def of(term: str) -> frozenset[str]:
            if term not in found:
                above = self.parents[term]
                found[term] = frozenset(above).union(*(of(parent) for parent in above))
            return found[term]

        for term in self.parents:
            of(term)
        return found

    @cached_property
    def by_key(self) -> list[dict[str, tuple[str, ...]]]:
        """Terms by the key of a name, of an exact synonym, and of one that other cells have as well."""
        return [
            _by_key({term: (name,) for term, name in self.names.items()}),
            *map(_by_key, self._synonyms),
        ]


def _by_key(names: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    terms: dict[str, dict[str, None]] = {}
    for term, listed in names.items():
        for name in listed:
            terms.setdefault(label_key(name), {})[term] = None
    return {key: tuple(found) for key, found in terms.items()}


@lru_cache(maxsize=1)
def read_ontology() -> Ontology:
    """Read the ontology inside the package."""
    folder = files("tosica.onto").joinpath("resources")
    table = gzip.decompress(
        folder.joinpath("cell_ontology.tsv.gz").read_bytes()
    ).decode()
    return Ontology(
        table, json.loads(folder.joinpath("cell_ontology.json").read_bytes())
    )


# --------------------------------------------------------------------------- terms


@validate_params()
def term_name(term: str) -> str:
    """Look up the name of a term of the Cell Ontology.

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


@validate_params()
def ancestors(term: str) -> dict[str, str]:
    """List all terms above a term: those that it is a kind of.

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
    return {
        above: ontology.names[above]
        for above in sorted(ontology.ancestors[_known(term)])
    }


@validate_params()
def descendants(term: str) -> dict[str, str]:
    """List all terms below a term: those that are a kind of it.

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
        return f"{term!r} is no term of the Cell Ontology of {ontology.release}, such as 'CL:0000084'"
    return None


def is_kind_of(term: str, other: str) -> bool:
    """Whether a term is another one or a kind of it; false if one is not in the ontology."""
    above = read_ontology().ancestors
    return term in above and other in above and (term == other or other in above[term])


def check_mapping(
    name: str, mapping: Any, labels: Sequence[str], where: str
) -> dict[str, str]:
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
            f"{name} must be a dict of label to term, such as 'CL:0000084', not {type(mapping).__name__}."
        )
    for label, term in mapping.items():
        if str(label) not in labels:
            raise KeyError(
                f"{where} has no label {str(label)!r}{only_known(str(label), labels)}"
            )
        if not isinstance(term, str):
            raise TypeError(
                f"{name} must hold identifiers such as 'CL:0000084', not {term!r:.60} for {str(label)!r}."
            )
        problem = None if term == NO_TERM else term_problem(term)
        if problem:
            raise ValueError(f"{name} gives {str(label)!r} a wrong term: {problem}.")
    return {str(label): term for label, term in mapping.items()}


def _known(term: str) -> str:
    ontology = read_ontology()
    if term in ontology.names:
        return term
    found = match_label(term).term
    is_name = found is not None and term not in ontology.obsolete
    raise KeyError(
        f"{term!r} is the name of {found}: pass the identifier."
        if is_name
        else f"{term_problem(term)}."
    )


# --------------------------------------------------------------------------- spellings


# Letters that names of cells are written with.
_GREEK = str.maketrans(
    {"α": " alpha ", "β": " beta ", "γ": " gamma ", "δ": " delta ", "ε": " epsilon "}
)
_DASHES = str.maketrans("‐‑‒–—−", "------")
# "CD4-CD8-": the first dash is a minus, too.
_MINUS_BEFORE_MARKER = re.compile(r"\b(CD\d+[A-Za-z]*)-(?=CD\d)", re.IGNORECASE)
_PLUS = re.compile(r"(?<=[^\W_])\(?\+\)?")
_MINUS = re.compile(r"(?<=[^\W_])(?:\(-\)|-(?=$|[\s,;/)]))")
_SEPARATORS = re.compile(r"[^\w/&]+|_")
_BRITISH = (("haem", "hem"), ("oesoph", "esoph"), ("tumour", "tumor"), ("foet", "fet"))


def label_key(text: str) -> str:
    """Bring a label or a name to a form that its other spellings have, too.

    These are case, plural, hyphens and punctuation, Greek letters, accents, British spelling, and
    "+" and "-" behind a marker for "positive" and "negative". A slash stays, because it joins
    different types.

    Parameters
    ----------
    text
        The label.

    Returns
    -------
    Words in small letters with one space between them.
    """
    text = unicodedata.normalize("NFKC", text).translate(_DASHES)
    text = text.replace("Γ", "γ").replace("Δ", "δ").translate(_GREEK)
    text = unicodedata.normalize("NFKD", text)
    text = "".join(char for char in text if not unicodedata.combining(char))
    text = _MINUS_BEFORE_MARKER.sub(r"\1 negative ", text)
    text = _PLUS.sub(" positive ", text)
    text = _MINUS.sub(" negative ", text).lower()
    text = text.replace("/", " / ").replace("&", " & ")
    words = (_singular(word) for word in _SEPARATORS.sub(" ", text).split())
    key = " ".join(words)
    for british, american in _BRITISH:
        key = key.replace(british, american)
    return key


def _singular(word: str) -> str:
    is_plural = len(word) > 3 and word.endswith("s") and word[-2] not in "siu"
    return word[:-1] if is_plural else word


# --------------------------------------------------------------------------- the term of a label


# Stop words.
_COMMON = {"cell", "of", "the", "and", "positive", "/", "&"}
# What abbreviations mean most often: enough for a candidate, not for a match.
_SPELLED_OUT: dict[str, str] = json.loads(
    files("tosica.onto").joinpath("abbreviations.json").read_bytes()
)


class Match(NamedTuple):
    """The term of a label and how it was found: "name", "synonym", or "none" with candidates."""

    term: str | None
    how: str
    candidates: tuple[str, ...] = ()


def match_label(label: str) -> Match:
    """Find the term of a label.

    A label is mapped if one term alone has its name or an exact synonym, in any spelling (see
    :func:`label_key`), with or without the word "cell".
    """
    ontology = read_ontology()
    by_name, by_synonym, by_inexact = ontology.by_key
    for key in _keys(label):
        for names, how in ((by_name, "name"), (by_synonym, "synonym")):
            terms = names.get(key, ())
            if len(terms) > 1:
                spelled_alike = [
                    t for t in terms if ontology.names[t].lower() == label.lower()
                ]
                terms = tuple(spelled_alike) or terms
            if how == "synonym":
                terms = tuple(dict.fromkeys((*terms, *by_inexact.get(key, ()))))
            if len(terms) == 1 and terms[0] not in ontology.forbidden and key in names:
                return Match(terms[0], how)
            if terms:
                return Match(None, "none", _candidates(ontology, label, first=terms))
    return Match(None, "none", _candidates(ontology, label))


def _keys(label: str) -> list[str]:
    """List the label's own key, and the one with the word "cell" added or left out."""
    key = label_key(label)
    words = key.split()
    if words and words[-1] == "cell":
        return [key, " ".join(words[:-1])] if any(map(_is_word, words[:-1])) else [key]
    return [key, f"{key} cell"] if any(map(_is_word, words)) else [key]


def _is_word(word: str) -> bool:
    # Shorter ones are abbreviations more often than not: "NK" and "DC" are not completed.
    return len(word) >= 4 and word.isalpha()


def _candidates(
    ontology: Ontology, label: str, first: Iterable[str] = ()
) -> tuple[str, ...]:
    """List up to five terms with words of a label in their names, most and rarest words first.

    The score is the weight of the words that both have, divided by that of the words that one of
    them has. A word's weight is the logarithm of one over the share of names with it. The label is
    also taken with its abbreviations spelled out.
    """
    names, weights = _words_of_names()
    key = label_key(label)
    spelled_out = " ".join(_SPELLED_OUT.get(word, word) for word in key.split())
    unknown = math.log(len(names))
    best: dict[str, float] = {}
    for words in {_words(key), _words(spelled_out)}:
        for term, of_name in names:
            shared = words & of_name
            if shared:
                # Sets have no order, and fsum gives the same sum in any.
                of_both = math.fsum(weights[word] for word in shared)
                either = math.fsum(
                    weights.get(word, unknown) for word in words | of_name
                )
                score = of_both / either
                best[term] = max(best.get(term, 0.0), score)
    ranked = sorted(best, key=lambda term: (-best[term], term))
    allowed = (term for term in (*first, *ranked) if term not in ontology.forbidden)
    return tuple(dict.fromkeys(allowed))[:5]


@lru_cache(maxsize=1)
def _words_of_names() -> tuple[list[tuple[str, frozenset[str]]], dict[str, float]]:
    """Split names and synonyms into words, and weigh each word."""
    by_key = read_ontology().by_key
    names = [
        (term, _words(key))
        for keys in by_key
        for key, terms in keys.items()
        for term in terms
    ]
    n_names_with = Counter(word for _, of_name in names for word in of_name)
    return names, {word: math.log(len(names) / n) for word, n in n_names_with.items()}


def _words(key: str) -> frozenset[str]:
    # Most names of T cells have these two, which mean one thing together.
    return frozenset(key.replace("alpha beta", "alpha-beta").split()) - _COMMON


# ------------------------------------------------------------------------------- labels of cells


@validate_params(key_added=FileKey(optional=True))
def map_labels(
    adata: AnnData | MuData,
    key: str,
    *,
    mapping: Mapping[str, str] | None = None,
    key_added: str | None = None,
) -> pd.DataFrame:
    """Map labels of cells to terms of the Cell Ontology, by name or exact synonym.

    A label is mapped if it is the name or an exact synonym of one term only. Spelling does not
    matter: case, plural, the word "cell", hyphens, Greek letters, and "+" and "-" behind a marker,
    so that "CD14+ Monocytes" is "CD14-positive monocyte". Nothing is guessed: for other labels,
    terms with similar names are listed, and ``mapping`` takes what you choose. Abbreviations that
    several types share ("DC1", "IPC") are not mapped.

    Parameters
    ----------
    adata
        Cells with labels. The matrix is not read.
    key
        Column of ``adata.obs`` with the labels.
    mapping
        Label to identifier, for labels that are not mapped or are to be mapped otherwise.
        ``"unknown"`` leaves a label without a term.
    key_added
        Column to write. By default ``f"{key}_ontology_term_id"``, which :class:`tosica.TOSICA` and
        :func:`tosica.tl.evaluate` look for.

    Returns
    -------
    Table with one row a label, in the order of the labels, and the columns

    ``label``
        The label.
    ``ontology_term_id``, ``ontology_label``
        Identifier and name of its term, or ``"unknown"``.
    ``match``
        How it was found: ``"name"``, ``"synonym"``, ``"given"`` (by ``mapping``) or ``"none"``.
    ``candidates``
        For labels without a term: up to five terms with similar names, the most similar first, as
        strings of identifier and name.

    Written is ``adata.obs[f"{key}_ontology_term_id"]``: categorical, the identifier of each cell's
    term or ``"unknown"``, as the schema of CELLxGENE wants ``cell_type_ontology_term_id``. Obsolete
    terms and those that the schema forbids are never written.

    Raises
    ------
    KeyError
        If the column is missing, or ``mapping`` names a label that it does not have.
    TypeError
        If an argument is of the wrong type, or the column cannot be read as labels.
    ValueError
        If there are no cells, or ``mapping`` names a term that does not exist, is obsolete, or is
        forbidden.

    Warns
    -----
    UserWarning
        If no label has a term.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> found = tosica.onto.map_labels(
    ...     adata, "bulk_labels", mapping={"CD56+ NK": "CL:0000623"}
    ... )
    >>> found.loc[found["match"] != "none", ["label", "ontology_label", "match"]]
                label          ontology_label    match
    5  CD14+ Monocyte  CD14-positive monocyte     name
    6         CD19+ B   B cell, CD19-positive  synonym
    8        CD56+ NK     natural killer cell    given
    9       Dendritic          dendritic cell     name
    >>> found.set_index("label").loc["CD8+ Cytotoxic T", "candidates"][0]
    'CL:0000794 CD8-positive, alpha-beta cytotoxic T cell'
    """
    groups = read_groups(adata, key, name="key", allow_missing=True)
    labels = list(groups.categories)
    given = check_mapping(
        "mapping", {} if mapping is None else mapping, labels, f"adata.obs[{key!r}]"
    )
    of_given = {
        label: Match(None if term == NO_TERM else term, "given")
        for label, term in given.items()
    }
    found = [of_given.get(label) or match_label(label) for label in labels]
    terms = [match.term or NO_TERM for match in found]
    names = read_ontology().names
    table = pd.DataFrame(
        {
            "label": labels,
            "ontology_term_id": terms,
            "ontology_label": [names.get(term, NO_TERM) for term in terms],
            "match": [match.how for match in found],
            "candidates": [
                [f"{t} {names[t]}" for t in match.candidates] for match in found
            ],
        }
    )
    column = f"{key}{TERM_SUFFIX}" if key_added is None else key_added
    # Cells without a label have the code -1, and with it the last term.
    of_cell = np.array([*terms, NO_TERM], dtype=object)[groups.codes]
    adata.obs[column] = pd.Categorical(
        of_cell, categories=list(dict.fromkeys(sorted(set(of_cell))))
    )
    _report(table, key, column)
    return table


def _report(table: pd.DataFrame, key: str, column: str) -> None:
    without = table.loc[table["match"] == "none", "label"].tolist()
    if len(without) == len(table):
        warn_user(
            f"no label of adata.obs[{key!r}] ({list_names(without, 3)}) is a name or an exact synonym in the Cell "
            "Ontology: choose among the candidates in the returned table, and pass mapping={label: identifier}."
        )
        return
    rest = f"; candidates are listed for {list_names(without)}" if without else ""
    n_found = len(table) - len(without)
    logger.info(
        f"map_labels: wrote .obs[{column!r}]; {n_found} of {len(table)} labels have a term{rest}"
    )
