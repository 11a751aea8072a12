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
from graphlib import TopologicalSorter
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from tosica._obs import read_groups
from tosica._settings import logger, warn_user
from tosica._text import list_names, only_known, parameter
from tosica._validate import FileKey, validate_params

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosica._types import AnnOrMuData

# Value of the schema of CELLxGENE where there is no term.
NO_TERM = "unknown"
# End of the name of a column with the terms of another column's labels.
TERM_SUFFIX = "_ontology_term_id"


class Ontology:
    """Terms by identifier: names, parents, synonyms, and the terms that are not for cells.

    Identifiers have their prefix, as in ``"CL:0000084"``. Callers must not change the
    dictionaries.

    Parameters
    ----------
    table
        Tab-separated text with a head. Columns: number, name, parents, exact synonyms, exact
        synonyms that other cells have as well, and the replacements of an obsolete term.
    about
        Release, schema and forbidden terms.
    """

    def __init__(self, table: str, about: dict[str, Any]) -> None:
        self.release: str = about["release"]
        self.schema: str = about["schema"]
        self.forbidden = frozenset(about["forbidden"])
        self.names: dict[str, str] = {}
        self.parents: dict[str, tuple[str, ...]] = {}
        # Obsolete term to its name and its replacements.
        self.obsolete: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._synonyms: dict[str, tuple[str, ...]] = {}
        self._shared_synonyms: dict[str, tuple[str, ...]] = {}
        for line in table.split("\n")[1:-1]:
            number, name, parents, synonyms, shared, replacements = line.split("\t")
            term = f"CL:{number}"
            if replacements:
                self.obsolete[term] = name, _split(replacements.removeprefix("-"))
                continue
            self.names[term] = name
            self.parents[term] = tuple(f"CL:{parent}" for parent in _split(parents))
            self._synonyms[term] = _split(synonyms)
            self._shared_synonyms[term] = _split(shared)

    @cached_property
    def ancestors(self) -> dict[str, frozenset[str]]:
        """All terms above each term."""
        ancestors: dict[str, frozenset[str]] = {}
        for term in TopologicalSorter(self.parents).static_order():
            parents = self.parents[term]
            above = (ancestors[parent] for parent in parents)
            ancestors[term] = frozenset(parents).union(*above)
        return ancestors

    @cached_property
    def by_key(self) -> list[dict[str, tuple[str, ...]]]:
        """Terms by the key of a name, of a synonym, and of one that other cells have as well."""
        names = {term: (name,) for term, name in self.names.items()}
        return [_by_key(names), _by_key(self._synonyms), _by_key(self._shared_synonyms)]


def _split(field: str) -> tuple[str, ...]:
    return tuple(field.split("|")) if field else ()


def _by_key(names_of_term: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Terms by the key of each of their names."""
    terms: dict[str, dict[str, None]] = {}
    for term, names in names_of_term.items():
        for name in names:
            terms.setdefault(label_key(name), {})[term] = None
    return {key: tuple(of_key) for key, of_key in terms.items()}


@lru_cache(maxsize=1)
def read_ontology() -> Ontology:
    """Read the ontology inside the package."""
    folder = files("tosica.onto").joinpath("resources")
    table = gzip.decompress(folder.joinpath("cell_ontology.tsv.gz").read_bytes())
    about = json.loads(folder.joinpath("cell_ontology.json").read_bytes())
    return Ontology(table.decode(), about)


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
    return read_ontology().names[_check_term(term)]


@validate_params()
def ancestors(term: str) -> dict[str, str]:
    """List all terms above a term, which it is a kind of.

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
    above = sorted(ontology.ancestors[_check_term(term)])
    return {ancestor: ontology.names[ancestor] for ancestor in above}


@validate_params()
def descendants(term: str) -> dict[str, str]:
    """List all terms below a term, which are a kind of it.

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
    ontology = read_ontology()
    term = _check_term(term)
    below = [
        descendant for descendant, above in ontology.ancestors.items() if term in above
    ]
    return {descendant: ontology.names[descendant] for descendant in sorted(below)}


def term_problem(term: str) -> str | None:
    """Say why a term cannot be a cell's, as the end of a sentence; ``None`` if it can."""
    ontology = read_ontology()
    if term in ontology.forbidden:
        return f"{term!r} may not be used for cells, says the {ontology.schema}"
    if term in ontology.obsolete:
        name, replacements = ontology.obsolete[term]
        problem = f"{term!r} ({name}) is obsolete in the Cell Ontology"
        if replacements:
            problem += f", which names {' or '.join(replacements)} in its place"
        return problem
    if term not in ontology.names:
        return (
            f"{term!r} is no term of the Cell Ontology of {ontology.release}, such as "
            "'CL:0000084'"
        )
    return None


def is_kind_of(term: str, ancestor: str) -> bool:
    """Whether a term is an ancestor's kind or this itself; false for unknown terms."""
    ancestors = read_ontology().ancestors
    if term not in ancestors or ancestor not in ancestors:
        return False
    return term == ancestor or ancestor in ancestors[term]


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
        The existing labels.
    where
        Place of the labels, for messages.

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
            f"{name} must be a dict of label to term, such as 'CL:0000084', not "
            f"{type(mapping).__name__}."
        )
    for label, term in mapping.items():
        if str(label) not in labels:
            raise KeyError(
                f"{where} has no label {str(label)!r}{only_known(str(label), labels)}"
            )
        if not isinstance(term, str):
            raise TypeError(
                f"{name} must hold identifiers such as 'CL:0000084', not {term!r:.60} "
                f"for {str(label)!r}."
            )
        problem = None if term == NO_TERM else term_problem(term)
        if problem:
            raise ValueError(f"{name} gives {str(label)!r} a wrong term: {problem}.")
    return {str(label): term for label, term in mapping.items()}


def _check_term(term: str) -> str:
    """Raise if there is no such term."""
    ontology = read_ontology()
    if term in ontology.names:
        return term
    named = match_label(term).term
    if named is not None and term not in ontology.obsolete:
        raise KeyError(f"{term!r} is the name of {named}: pass the identifier.")
    raise KeyError(f"{term_problem(term)}.")


# --------------------------------------------------------------------------- spellings


# Greek letters in names of cells.
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
    """Normalize a label or a name, so that all its spellings are the same.

    Spellings differ in case, plural, hyphens and punctuation, Greek letters, accents, British spelling, and
    in "+" and "-" behind a marker for "positive" and "negative". A slash stays, because it joins
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
# Most frequent meanings of abbreviations: enough for a candidate, not for a match.
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
    by_name, by_synonym, by_shared_synonym = ontology.by_key
    for key in _keys(label):
        named = by_name.get(key, ())
        if len(named) > 1:
            spelled_alike = [
                term for term in named if ontology.names[term].lower() == label.lower()
            ]
            named = tuple(spelled_alike) or named
        if named:
            return _only_term(ontology, label, named, "name")
        synonyms = (*by_synonym.get(key, ()), *by_shared_synonym.get(key, ()))
        if synonyms:
            terms = tuple(dict.fromkeys(synonyms))
            if key in by_synonym:
                return _only_term(ontology, label, terms, "synonym")
            return Match(None, "none", _candidates(ontology, label, terms))
    return Match(None, "none", _candidates(ontology, label))


def _only_term(
    ontology: Ontology, label: str, terms: tuple[str, ...], how: str
) -> Match:
    """Match the only term, or list several and forbidden ones as candidates."""
    if len(terms) == 1 and terms[0] not in ontology.forbidden:
        return Match(terms[0], how)
    return Match(None, "none", _candidates(ontology, label, terms))


def _keys(label: str) -> list[str]:
    """List the label's own key, and the one with the word "cell" added or left out."""
    key = label_key(label)
    words = key.split()
    has_cell = bool(words) and words[-1] == "cell"
    if has_cell:
        words.pop()
    # Shorter words are abbreviations more often than not: "NK" and "DC" are not completed.
    if not any(len(word) >= 4 and word.isalpha() for word in words):
        return [key]
    return [key, " ".join(words) if has_cell else f"{key} cell"]


def _candidates(
    ontology: Ontology, label: str, preferred: Sequence[str] = ()
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
    scores: dict[str, float] = {}
    for words in {_words(key), _words(spelled_out)}:
        for term, name_words in names:
            shared = words & name_words
            if shared:
                # Sets have no order, and fsum gives the same sum in any.
                weight = math.fsum(weights[word] for word in shared)
                total = math.fsum(
                    weights.get(word, unknown) for word in words | name_words
                )
                scores[term] = max(scores.get(term, 0.0), weight / total)
    ranked = sorted(scores, key=lambda term: (-scores[term], term))
    allowed = [term for term in (*preferred, *ranked) if term not in ontology.forbidden]
    return tuple(dict.fromkeys(allowed))[:5]


@lru_cache(maxsize=1)
def _words_of_names() -> tuple[list[tuple[str, frozenset[str]]], dict[str, float]]:
    """Split names and synonyms into words, and weigh each word."""
    names = []
    n_names_with: Counter[str] = Counter()
    for terms_of_key in read_ontology().by_key:
        for key, terms in terms_of_key.items():
            words = _words(key)
            for term in terms:
                names.append((term, words))
                n_names_with.update(words)
    weights = {word: math.log(len(names) / n) for word, n in n_names_with.items()}
    return names, weights


def _words(key: str) -> frozenset[str]:
    # Most names of T cells have these two, which mean one thing together.
    return frozenset(key.replace("alpha beta", "alpha-beta").split()) - _COMMON


# ------------------------------------------------------------------------------- labels of cells


@validate_params(key_added=FileKey(optional=True))
def map_labels(
    adata: AnnOrMuData,
    key: str,
    *,
    mapping: Mapping[str, str] | None = None,
    key_added: str | None = None,
) -> pd.DataFrame:
    """Map labels of cells to terms of the Cell Ontology, by name or exact synonym.

    A label is mapped if it is the name or an exact synonym of one term only. Spelling does not
    matter: case, plural, the word "cell", hyphens, Greek letters, and "+" and "-" behind a marker,
    so that "CD14+ Monocytes" is "CD14-positive monocyte". Nothing is guessed: for other labels,
    terms with similar names are listed, and ``mapping`` takes your choice. Abbreviations that
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
        If there are no cells, ``mapping`` names a term that does not exist, is obsolete, or is
        forbidden, or ``key_added`` is ``key``.

    Warns
    -----
    UserWarning
        If no label has a term.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> table = tosica.onto.map_labels(
    ...     adata, "bulk_labels", mapping={"CD56+ NK": "CL:0000623"}
    ... )
    >>> table.loc[table["match"] != "none", ["label", "ontology_label", "match"]]
                label          ontology_label    match
    5  CD14+ Monocyte  CD14-positive monocyte     name
    6         CD19+ B   B cell, CD19-positive  synonym
    8        CD56+ NK     natural killer cell    given
    9       Dendritic          dendritic cell     name
    >>> table.set_index("label").loc["CD8+ Cytotoxic T", "candidates"][0]
    'CL:0000794 CD8-positive, alpha-beta cytotoxic T cell'
    """
    groups = read_groups(adata, key, name="key", allow_missing=True)
    labels = list(groups.categories)
    mapping = check_mapping(
        "mapping", {} if mapping is None else mapping, labels, f"adata.obs[{key!r}]"
    )
    matches = []
    for label in labels:
        if label in mapping:
            term = None if mapping[label] == NO_TERM else mapping[label]
            matches.append(Match(term, "given"))
        else:
            matches.append(match_label(label))
    terms = [match.term or NO_TERM for match in matches]
    names = read_ontology().names
    table = pd.DataFrame(
        {
            "label": labels,
            "ontology_term_id": terms,
            "ontology_label": [names.get(term, NO_TERM) for term in terms],
            "match": [match.how for match in matches],
            "candidates": [
                [f"{term} {names[term]}" for term in match.candidates]
                for match in matches
            ],
        }
    )
    column = f"{key}{TERM_SUFFIX}" if key_added is None else key_added
    if column == key:
        raise ValueError(
            f"{parameter('key_added', key)} would replace the labels by their terms: pass another name."
        )
    # Cells without a label have the code -1, and with it the last term.
    term_of_cell = np.array([*terms, NO_TERM], dtype=object)[groups.codes]
    adata.obs[column] = pd.Categorical(term_of_cell)
    _report(table, key, column)
    return table


def _report(table: pd.DataFrame, key: str, column: str) -> None:
    unmatched = table.loc[table["match"] == "none", "label"].tolist()
    if len(unmatched) == len(table):
        warn_user(
            f"no label of adata.obs[{key!r}] ({list_names(unmatched, 3)}) is a name or an "
            "exact synonym in the Cell Ontology: choose among the candidates in the "
            "returned table, and pass mapping={label: identifier}."
        )
        return
    message = (
        f"map_labels: wrote .obs[{column!r}]; {len(table) - len(unmatched)} of "
        f"{len(table)} labels have a term"
    )
    if unmatched:
        message += f"; candidates are listed for {list_names(unmatched)}"
    logger.info(message)
