"""The Cell Ontology, read from ``resources`` at first use."""

from __future__ import annotations

import gzip
import json
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

from tosica.onto._label_key import label_key

PREFIX = "CL:"


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
        self._synonyms: dict[str, tuple[str, ...]] = {}
        self._inexact: dict[str, tuple[str, ...]] = {}
        for line in table.split("\n")[1:-1]:
            number, name, above, exact, inexact, instead = line.split("\t")
            term = PREFIX + number
            if instead:
                others = () if instead == "-" else tuple(instead.split("|"))
                self.obsolete[term] = name, others
                continue
            self.names[term] = name
            self.parents[term] = tuple(PREFIX + n for n in above.split("|")) if above else ()
            self._synonyms[term] = tuple(exact.split("|")) if exact else ()
            self._inexact[term] = tuple(inexact.split("|")) if inexact else ()

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
    def by_name(self) -> dict[str, tuple[str, ...]]:
        """Key of a name to its terms."""
        return _by_key({term: (name,) for term, name in self.names.items()})

    @cached_property
    def by_synonym(self) -> dict[str, tuple[str, ...]]:
        """Key of an exact synonym to its terms."""
        return _by_key(self._synonyms)

    @cached_property
    def by_inexact(self) -> dict[str, tuple[str, ...]]:
        """Key of a synonym that other cells have as well to its terms."""
        return _by_key(self._inexact)


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
    table = gzip.decompress(folder.joinpath("cell_ontology.tsv.gz").read_bytes()).decode()
    return Ontology(table, json.loads(folder.joinpath("cell_ontology.json").read_bytes()))
