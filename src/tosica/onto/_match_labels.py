"""Find the term of a label: by name, by exact synonym, or else candidates."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tosica.onto._label_key import label_key
from tosica.onto._ontology import read_ontology

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tosica.onto._ontology import Ontology

_N_CANDIDATES = 5
# Words of which every name may have one.
_COMMON = {"cell", "of", "the", "and", "positive", "/", "&"}
# What abbreviations mean most often: enough for a candidate, not for a match.
_SPELLED_OUT = {
    "at1": "pulmonary alveolar type 1",
    "at2": "pulmonary alveolar type 2",
    "cdc1": "cd141 myeloid dendritic",
    "cdc2": "cd1c myeloid dendritic",
    "cmp": "common myeloid progenitor",
    "dc": "dendritic",
    "dc1": "cd141 myeloid dendritic",
    "dc2": "cd1c myeloid dendritic",
    "dcs": "dendritic",
    "ec": "endothelial",
    "ecs": "endothelial",
    "elp": "early lymphoid progenitor",
    "fcgr3a": "cd16",
    "glia": "glial",
    "gmp": "granulocyte monocyte progenitor",
    "hsc": "hematopoietic stem",
    "ilc": "innate lymphoid",
    "mac": "macrophage",
    "mait": "mucosal associated invariant t",
    "microglia": "microglial",
    "mk": "megakaryocyte",
    "mnp": "mononuclear phagocyte",
    "mono": "monocyte",
    "nk": "natural killer",
    "nkt": "nk t",
    "opc": "oligodendrocyte precursor",
    "smc": "smooth muscle",
}
# Shorter words are abbreviations more often than not: "NK" and "DC" are not completed.
_WORD = 4


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
    for key in _keys(label):
        for names, how in ((ontology.by_name, "name"), (ontology.by_synonym, "synonym")):
            terms = names.get(key, ())
            if len(terms) > 1:
                spelled_alike = [t for t in terms if ontology.names[t].lower() == label.lower()]
                terms = tuple(spelled_alike) or terms
            if how == "synonym":
                terms = tuple(dict.fromkeys((*terms, *ontology.by_inexact.get(key, ()))))
            if len(terms) == 1 and terms[0] not in ontology.forbidden and key in names:
                return Match(terms[0], how)
            if terms:
                return Match(None, "none", _candidates(ontology, label, first=terms))
    return Match(None, "none", _candidates(ontology, label))


def _keys(label: str) -> list[str]:
    """Keys of a label: its own, then the one with the word "cell" added or left out."""
    key = label_key(label)
    words = key.split()
    if words and words[-1] == "cell":
        return [key, " ".join(words[:-1])] if any(map(_is_word, words[:-1])) else [key]
    return [key, f"{key} cell"] if any(map(_is_word, words)) else [key]


def _is_word(word: str) -> bool:
    return len(word) >= _WORD and word.isalpha()


def _candidates(ontology: Ontology, label: str, first: Iterable[str] = ()) -> tuple[str, ...]:
    """Terms whose names share words with a label; those that share more and rarer words come first.

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
                either = math.fsum(weights.get(word, unknown) for word in words | of_name)
                score = of_both / either
                best[term] = max(best.get(term, 0.0), score)
    ranked = sorted(best, key=lambda term: (-best[term], term))
    allowed = (term for term in (*first, *ranked) if term not in ontology.forbidden)
    return tuple(dict.fromkeys(allowed))[:_N_CANDIDATES]


@lru_cache(maxsize=1)
def _words_of_names() -> tuple[list[tuple[str, frozenset[str]]], dict[str, float]]:
    """Words of each name and synonym, and the weight of each word."""
    ontology = read_ontology()
    names = [
        (term, _words(key))
        for keys in (ontology.by_name, ontology.by_synonym, ontology.by_inexact)
        for key, terms in keys.items()
        for term in terms
    ]
    n_names_with = Counter(word for _, of_name in names for word in of_name)
    return names, {word: math.log(len(names) / n) for word, n in n_names_with.items()}


def _words(key: str) -> frozenset[str]:
    # Most names of T cells have these two, which mean one thing together.
    return frozenset(key.replace("alpha beta", "alpha-beta").split()) - _COMMON
