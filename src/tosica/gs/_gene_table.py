"""What a gene is called: the tables `resources/genes/<organism>.tsv.gz`, read once.

The symbol of a gene's row is its key: names of any kind are brought to it and compared there.
"""

from __future__ import annotations

import gzip
import re
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tosica.gs._gene_names import describe_gene_names, split_composite, split_counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ORGANISMS: Final = ("human", "mouse")
# Kinds of names, as the log calls them.
SYMBOL, ENSEMBL, ENTREZ, ALIAS = "symbols", "Ensembl IDs", "Entrez numbers", "aliases"
COMPOSITE, COUNTED = "composite names", "numbered symbols"

_ENSEMBL = re.compile(r"(ENS(?:MUS)?G\d{11})(?:\.\d+)?(?:_PAR_Y)?")
_PREFIXES = {"ENSG": "human", "ENSMUSG": "mouse"}
_ENTREZ = re.compile(r"(\d+)(?:\.0+)?")
_DIGITS = "123456789"
# An organism is recognised by this many of its names, making up this share of the list, …
_FEWEST, _LEAST_SHARE = 20, 0.2
_SURELY = 0.75
# … and this many times as many as the other's: some symbols are the same in both.
_CLEARLY = 2
# Symbols in capitals are the mouse's if at least this many of them, making up this share of the
# list, are the mouse's alone: those of human data are next to none, and those of mouse data 5 to
# 20 %. Symbols that are human alone are 5 to 20 % of human data and next to none of mouse data.
_FEWEST_ALONE, _LEAST_ALONE = 10, 0.01
# HGNC calls the mitochondrion's proteins what nearly all data call them; NCBI Gene does not.
_MITOCHONDRIAL = {
    **{f"MT-{gene}": gene for gene in ("ATP6", "ATP8", "ND1", "ND2", "ND3", "ND4", "ND4L")},
    **{"MT-ND5": "ND5", "MT-ND6": "ND6", "MT-CYB": "CYTB"},
    **{"MT-CO1": "COX1", "MT-CO2": "COX2", "MT-CO3": "COX3"},
}


class Resolved(NamedTuple):
    """What became of each name of a list: its gene, ``None`` if unknown or ambiguous, and how."""

    genes: list[str | None]
    kinds: list[str | None]
    ambiguous: dict[str, tuple[str, ...]]


_Found: TypeAlias = tuple[tuple[str, ...], str]


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
        aliases = self._by_name(3)
        if self.organism == "human":
            aliases |= {name: (gene,) for name, gene in _MITOCHONDRIAL.items()}
        return aliases

    @cached_property
    def entrez(self) -> dict[str, tuple[str, ...]]:
        """Entrez number to its gene."""
        return self._by_name(1)

    @cached_property
    def in_capitals(self) -> dict[str, str]:
        """Symbol in capitals to symbol; no two symbols differ in case only."""
        return {symbol.upper(): symbol for symbol in self.symbols}

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

    def resolve(self, names: Sequence[str], *, ignore_case: bool = False) -> Resolved:
        """Find the gene behind each name: a symbol first, then an ID, then an alias.

        Numbers are Entrez numbers only where most of the list is. A name that is none of these is
        taken apart into a symbol and what stands beside it, or a symbol and the number of its
        repeat. ``ignore_case`` finds symbols in any case.
        """
        with_numbers = describe_gene_names(names) == ENTREZ
        found = [self._find(name, with_numbers, ignore_case) for name in names]
        unknown = [position for position, (genes, _) in enumerate(found) if not genes]
        if unknown:
            rest = list(dict.fromkeys(names[position] for position in unknown))
            known = {genes[0] for genes, _ in found if len(genes) == 1}
            answers = self._find_composite(rest, ignore_case)
            known.update(genes[0] for genes, _ in answers.values() if len(genes) == 1)
            answers |= self._find_counted(
                [name for name in rest if name not in answers], known, ignore_case
            )
            for position in unknown:
                found[position] = answers.get(names[position], found[position])
        return Resolved(
            [genes[0] if len(genes) == 1 else None for genes, _ in found],
            [kind if len(genes) == 1 else None for genes, kind in found],
            {name: genes for name, (genes, _) in zip(names, found, strict=True) if len(genes) > 1},
        )

    def _find(self, name: str, with_numbers: bool, ignore_case: bool) -> _Found:
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
        genes = self.aliases.get(name, ())
        if ignore_case and not genes and name.upper() in self.in_capitals:
            return (self.in_capitals[name.upper()],), SYMBOL
        return genes, ALIAS

    def _find_composite(self, names: Iterable[str], ignore_case: bool) -> dict[str, _Found]:
        """Names such as SYMBOL_ENSG…: the gene that the parts agree on, or all that they name."""
        split = {name: parts for name in names if (parts := split_composite(name))}
        by_symbol = {
            name: self._find(symbol, False, ignore_case) for name, (symbol, _) in split.items()
        }
        beside = {name: self._find(part, True, ignore_case) for name, (_, part) in split.items()}
        # A number may be an Entrez number or anything else: the symbols tell.
        numbers = [name for name, (_, kind) in beside.items() if kind == ENTREZ]
        told = [
            bool(set(by_symbol[name][0]).intersection(beside[name][0]))
            for name in numbers
            if by_symbol[name][0] and beside[name][0]
        ]
        if 2 * sum(told) <= len(told):
            beside |= dict.fromkeys(numbers, ((), ENTREZ))
        answers: dict[str, _Found] = {}
        for name in split:
            (genes, kind), others = by_symbol[name], beside[name][0]
            if genes and others:
                agreed = tuple(gene for gene in genes if gene in others)
                answers[name] = agreed or tuple(dict.fromkeys(genes + others)), COMPOSITE
            elif genes or others:
                # An old symbol by itself says as little here as it does alone.
                is_alias = kind == ALIAS and not others
                answers[name] = genes or others, ALIAS if is_alias else COMPOSITE
        return answers

    def _find_counted(
        self, names: Iterable[str], known: set[str], ignore_case: bool
    ) -> dict[str, _Found]:
        """Names such as SYMBOL.1, where the symbol itself is not in the list, nor SYMBOL.2.

        Where it is, this is another locus, or the same one again.
        """
        numbered: dict[str, list[str]] = {}
        for name in names:
            split = split_counted(name)
            if split is None:
                continue
            genes, kind = self._find(split[0], False, ignore_case)
            if len(genes) != 1 or kind not in (SYMBOL, ENSEMBL) or genes[0] in known:
                continue
            # NAV1.9 is no NAV1, as SCN11A has it: where one name is so made, others may be.
            bare = "".join(split)
            if any(
                bare + digit in self.symbols or bare + digit in self.aliases for digit in _DIGITS
            ):
                continue
            numbered.setdefault(genes[0], []).append(name)
        return {same[0]: ((gene,), COUNTED) for gene, same in numbered.items() if len(same) == 1}


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


def infer_organism(names: Iterable[str]) -> str | None:
    """Decide by overlap whose genes these are: "human", "mouse", or None if it is not clear."""
    unique = list(dict.fromkeys(names))
    parts = [split_composite(name) or (name, name) for name in unique]
    by_prefix = dict.fromkeys(ORGANISMS, 0)
    for _, name in parts:
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
    symbols = {symbol for symbol, _ in parts}
    for organism in ORGANISMS:
        table = gene_table(organism)
        listed = table.entrez.keys() if numbers else table.symbols
        known[organism] = len(listed & symbols)
        if known[organism] >= max(_FEWEST, _SURELY * len(unique)):
            # Both tables are read only where it is in doubt: hardly a symbol is in both.
            return organism
    best, other = sorted(ORGANISMS, key=lambda organism: -known[organism])
    clear = known[best] >= max(_FEWEST, _LEAST_SHARE * len(unique), _CLEARLY * known[other])
    return best if clear else None


class Capitals(NamedTuple):
    """What speaks for symbols of the mouse in capitals.

    ``mouse`` are the names that only the mouse has, ``n_human`` is how many only human genes have.
    """

    mouse: list[str]
    n_human: int

    @property
    def examples(self) -> str:
        """A few of the mouse's, from different parts of the alphabet."""
        return ", ".join(map(repr, self.mouse[:: (len(self.mouse) + 2) // 3]))


def mouse_in_capitals(names: Iterable[str]) -> Capitals | None:
    """Decide whether names are symbols of the mouse written in capitals; None if they are not."""
    unique = {name for name in names if not name.startswith("MT-")}
    human, mouse = gene_table("human"), gene_table("mouse")
    in_capitals = mouse.in_capitals.keys() & unique
    if len(in_capitals) < len(unique) / 2:
        return None
    alone = [
        name for name in in_capitals if name not in human.symbols and name not in human.aliases
    ]
    n_human = len((human.symbols & unique) - mouse.in_capitals.keys())
    fewest = max(_FEWEST_ALONE, _LEAST_ALONE * len(unique), _CLEARLY * n_human)
    if len(alone) < fewest:
        return None
    return Capitals(sorted(alone), n_human)
