"""What a gene is called: the tables `resources/genes/<organism>.tsv.gz`, read once.

The symbol of a gene's row is its key: names of any kind are brought to it and compared there.
"""

from __future__ import annotations

import gzip
import re
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

from tosica.gs._gene_names import describe_gene_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ORGANISMS: Final = ("human", "mouse")
# Kinds of names, as the log calls them.
SYMBOL, ENSEMBL, ENTREZ, ALIAS = "symbols", "Ensembl IDs", "Entrez numbers", "aliases"

_ENSEMBL = re.compile(r"(ENS(?:MUS)?G\d{11})(?:\.\d+)?(?:_PAR_Y)?")
_PREFIXES = {"ENSG": "human", "ENSMUSG": "mouse"}
_ENTREZ = re.compile(r"(\d+)(?:\.0+)?")
# An organism is recognised by this many of its names, making up this share of the list, …
_FEWEST, _LEAST_SHARE = 20, 0.2
_SURELY = 0.75
# … and this many times as many as the other's: some symbols are the same in both.
_CLEARLY = 2


class Resolved(NamedTuple):
    """What became of each name of a list: its gene, ``None`` if unknown or ambiguous, and how."""

    genes: list[str | None]
    kinds: list[str | None]
    ambiguous: dict[str, tuple[str, ...]]


class GeneTable:
    """The genes of one organism, and every name that they go by.

    Nearly always the symbols are all that is asked for, so the rest is taken apart when needed.
    """

    def __init__(self, organism: str) -> None:
        resource = files("tosica.gs").joinpath("resources", "genes", f"{organism}.tsv.gz")
        self.organism = organism
        self._lines = gzip.decompress(resource.read_bytes()).decode().split("\n")[1:-1]
        self.symbols = frozenset(line.partition("\t")[0] for line in self._lines)

    @cached_property
    def _rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self._lines]

    @cached_property
    def ensembl(self) -> dict[str, tuple[str, ...]]:
        """Ensembl ID to genes; several where it is ambiguous."""
        return self._by_name(2)

    @cached_property
    def aliases(self) -> dict[str, tuple[str, ...]]:
        """Alias or old symbol to genes; several where it is ambiguous."""
        return self._by_name(3)

    @cached_property
    def entrez(self) -> dict[str, tuple[str, ...]]:
        """Entrez number to its gene."""
        return self._by_name(1)

    @cached_property
    def orthologs(self) -> dict[str, str]:
        """Mouse gene to its one-to-one human ortholog; empty in the human table."""
        return {row[0]: row[4] for row in self._rows if row[4]}

    def names_of(self, kind: str) -> dict[str, tuple[str, ...]]:
        """Gene to its names of a kind."""
        column = {ENTREZ: 1, ENSEMBL: 2, ALIAS: 3}[kind]
        return {row[0]: tuple(row[column].split("|")) for row in self._rows if row[column]}

    def _by_name(self, column: int) -> dict[str, tuple[str, ...]]:
        genes: dict[str, tuple[str, ...]] = {}
        for row in self._rows:
            if row[column]:
                for name in row[column].split("|"):
                    before = genes.get(name)
                    genes[name] = (row[0],) if before is None else (*before, row[0])
        return genes

    def resolve(self, names: Sequence[str]) -> Resolved:
        """Find the gene behind each name: a symbol first, then an ID, then an alias.

        Numbers are Entrez numbers only where most of the list is.
        """
        with_numbers = describe_gene_names(names) == ENTREZ
        genes: list[str | None] = []
        kinds: list[str | None] = []
        ambiguous: dict[str, tuple[str, ...]] = {}
        for name in names:
            found, kind = self._find(name, with_numbers)
            if len(found) > 1:
                ambiguous[name] = found
            single = len(found) == 1
            genes.append(found[0] if single else None)
            kinds.append(kind if single else None)
        return Resolved(genes, kinds, ambiguous)

    def _find(self, name: str, with_numbers: bool) -> tuple[tuple[str, ...], str]:
        if name in self.symbols:
            return (name,), SYMBOL
        if name.startswith("ENS"):
            match = _ENSEMBL.fullmatch(name)
            if match:
                return self.ensembl.get(match[1], ()), ENSEMBL
        if with_numbers:
            match = _ENTREZ.fullmatch(name)
            if match:
                return self.entrez.get(match[1], ()), ENTREZ
        return self.aliases.get(name, ()), ALIAS


@lru_cache(maxsize=2)
def gene_table(organism: str) -> GeneTable:
    """The table of an organism; shared by all callers, so nobody may change it."""
    return GeneTable(organism)


@lru_cache(maxsize=2)
def orthologs(source: str, target: str) -> dict[str, str]:
    """Gene of one organism to its one-to-one ortholog in the other."""
    mouse_to_human = gene_table("mouse").orthologs
    if source == "mouse":
        return mouse_to_human
    return {human: mouse for mouse, human in mouse_to_human.items()}


def recognise_organism(names: Iterable[str]) -> str | None:
    """Decide by overlap whose genes these are: "human", "mouse", or None if it is not clear."""
    unique = list(dict.fromkeys(names))
    by_prefix = dict.fromkeys(ORGANISMS, 0)
    for name in unique:
        match = _ENSEMBL.fullmatch(name) if name.startswith("ENS") else None
        if match:
            by_prefix[_PREFIXES[match[1][:-11]]] += 1
    # An Ensembl ID says whose it is, so that a few are enough.
    if sum(by_prefix.values()) > len(unique) / 2:
        best, other = sorted(ORGANISMS, key=lambda organism: -by_prefix[organism])
        return best if by_prefix[best] >= _CLEARLY * by_prefix[other] else None
    if len(unique) < _FEWEST:
        return None
    numbers = describe_gene_names(unique) == ENTREZ
    known = {}
    for organism in ORGANISMS:
        table = gene_table(organism)
        listed = table.entrez.keys() if numbers else table.symbols
        known[organism] = len(listed & set(unique))
        if known[organism] >= max(_FEWEST, _SURELY * len(unique)):
            # Both tables are read only where it is in doubt: hardly a symbol is in both.
            return organism
    best, other = sorted(ORGANISMS, key=lambda organism: -known[organism])
    clear = known[best] >= max(_FEWEST, _LEAST_SHARE * len(unique), _CLEARLY * known[other])
    return best if clear else None
