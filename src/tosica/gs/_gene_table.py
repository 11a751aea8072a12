"""Names of all genes of an organism, read from `resources/genes/<organism>.tsv.gz`.

The symbol in the first column identifies a gene. Names of any kind are mapped to it.
"""

from __future__ import annotations

import gzip
import re
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Final, TypeAlias

from tosica.gs._gene_names import ensembl_id

ORGANISMS: Final = ("human", "mouse")
# Kinds of names, as log messages call them.
SYMBOL, ENSEMBL, ENTREZ, ALIAS = "symbols", "Ensembl IDs", "Entrez numbers", "aliases"

# Genes that a name may stand for, and the kind of the name.
Candidates: TypeAlias = tuple[tuple[str, ...], str]

_ENTREZ = re.compile(r"(\d+)(?:\.0+)?")
# Nearly all data use HGNC's names of the mitochondrial genes, but NCBI Gene has other symbols.
_MITOCHONDRIAL = {
    **{f"MT-{gene}": gene for gene in ("ATP6", "ATP8", "ND1", "ND2", "ND3", "ND4", "ND4L")},
    **{"MT-ND5": "ND5", "MT-ND6": "ND6", "MT-CYB": "CYTB"},
    **{"MT-CO1": "COX1", "MT-CO2": "COX2", "MT-CO3": "COX3"},
}


class GeneTable:
    """Genes of one organism: their symbols, identifiers, aliases and orthologs.

    Most callers need the symbols only, so the other columns are parsed when they are first used.
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
    def entrez(self) -> dict[str, tuple[str, ...]]:
        """Entrez number to its gene."""
        return self._genes_by_name(1)

    @cached_property
    def ensembl(self) -> dict[str, tuple[str, ...]]:
        """Ensembl ID to genes; several if it is ambiguous."""
        return self._genes_by_name(2)

    @cached_property
    def aliases(self) -> dict[str, tuple[str, ...]]:
        """Alias or old symbol to genes; several if it is ambiguous."""
        aliases = self._genes_by_name(3)
        if self.organism == "human":
            aliases |= {name: (gene,) for name, gene in _MITOCHONDRIAL.items()}
        return aliases

    @cached_property
    def orthologs(self) -> dict[str, str]:
        """Mouse gene to its one-to-one human ortholog; empty in the human table."""
        return {row[0]: row[4] for row in self._rows if row[4]}

    @cached_property
    def by_upper_case(self) -> dict[str, str]:
        """Symbol in upper case to symbol; no two symbols differ in case only."""
        return {symbol.upper(): symbol for symbol in self.symbols}

    def names_of(self, kind: str) -> dict[str, tuple[str, ...]]:
        """Gene to its names of a kind."""
        column = {ENTREZ: 1, ENSEMBL: 2, ALIAS: 3}[kind]
        return {row[0]: tuple(row[column].split("|")) for row in self._rows if row[column]}

    def find(self, name: str, *, entrez: bool = False, ignore_case: bool = False) -> Candidates:
        """Find the genes of one name, as a symbol first, then as an ID, then as an alias.

        Parameters
        ----------
        name
            The name.
        entrez
            Whether a number is an Entrez number.
        ignore_case
            Whether symbols are found in any case.

        Returns
        -------
        tuple
            The genes, which are none if the name is unknown and several if it is ambiguous, and the
            kind of the name.
        """
        if name in self.symbols:
            return (name,), SYMBOL
        gene_id = ensembl_id(name)
        if gene_id is not None:
            return self.ensembl.get(gene_id, ()), ENSEMBL
        if entrez:
            number = _ENTREZ.fullmatch(name)
            if number:
                return self.entrez.get(number[1], ()), ENTREZ
        genes = self.aliases.get(name, ())
        if ignore_case and not genes and name.upper() in self.by_upper_case:
            return (self.by_upper_case[name.upper()],), SYMBOL
        return genes, ALIAS

    def _genes_by_name(self, column: int) -> dict[str, tuple[str, ...]]:
        genes: dict[str, tuple[str, ...]] = {}
        for row in self._rows:
            if row[column]:
                for name in row[column].split("|"):
                    genes[name] = (*genes.get(name, ()), row[0])
        return genes


@lru_cache(maxsize=2)
def gene_table(organism: str) -> GeneTable:
    """Table of an organism. It is cached, so callers must not change it."""
    return GeneTable(organism)


@lru_cache(maxsize=2)
def orthologs(source: str, target: str) -> dict[str, str]:
    """Gene of one organism to its one-to-one ortholog in the other."""
    mouse_to_human = gene_table("mouse").orthologs
    if source == "mouse":
        return mouse_to_human
    return {human: mouse for mouse, human in mouse_to_human.items()}
