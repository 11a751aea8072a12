"""Tables of the genes of two organisms: symbols, identifiers, aliases and orthologs.

They are read from ``resources/genes/<organism>.tsv.gz``. The symbol in the first column
identifies a gene.
"""

from __future__ import annotations

import gzip
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, TypeAlias

from tosica.gs._spelling import (
    ALIAS,
    ENSEMBL,
    ENTREZ,
    ENTREZ_NUMBER,
    SYMBOL,
    ensembl_id,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

ORGANISMS: Final = ("human", "mouse")

# Genes that a name may stand for, and the kind of the name.
Candidates: TypeAlias = tuple[tuple[str, ...], str]

# Nearly all data use HGNC's names of the mitochondrial genes, but NCBI Gene has other symbols.
_MITOCHONDRIAL = {
    f"MT-{gene}": gene
    for gene in ("ATP6", "ATP8", "ND1", "ND2", "ND3", "ND4", "ND4L", "ND5", "ND6")
}
_MITOCHONDRIAL |= {
    "MT-CYB": "CYTB",
    "MT-CO1": "COX1",
    "MT-CO2": "COX2",
    "MT-CO3": "COX3",
}
# Columns of a table after that of the symbols.
_COLUMN = {ENTREZ: 1, ENSEMBL: 2, ALIAS: 3}
_ORTHOLOG_COLUMN = 4


class GeneTable:
    """Genes of one organism: their symbols, identifiers, aliases and orthologs.

    Most callers need the symbols only, so the other columns are parsed when they are first used.
    """

    def __init__(self, organism: str) -> None:
        folder = files("tosica.gs").joinpath("resources", "genes")
        content = gzip.decompress(folder.joinpath(f"{organism}.tsv.gz").read_bytes())
        self.organism = organism
        self._lines = content.decode().split("\n")[1:-1]
        self.symbols = frozenset(line.partition("\t")[0] for line in self._lines)
        self._genes_of: dict[str, dict[str, tuple[str, ...]]] = {}

    @cached_property
    def _rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self._lines]

    def genes_of(self, kind: str) -> dict[str, tuple[str, ...]]:
        """Map each name of a kind to its genes; several if it is ambiguous."""
        if kind not in self._genes_of:
            genes: dict[str, tuple[str, ...]] = {}
            for row in self._rows:
                for name in filter(None, row[_COLUMN[kind]].split("|")):
                    genes[name] = (*genes.get(name, ()), row[0])
            if kind == ALIAS and self.organism == "human":
                for name, gene in _MITOCHONDRIAL.items():
                    genes[name] = (gene,)
            self._genes_of[kind] = genes
        return self._genes_of[kind]

    def names_of(self, kind: str) -> dict[str, tuple[str, ...]]:
        """Map each gene to its names of a kind."""
        column = _COLUMN[kind]
        return {
            row[0]: tuple(row[column].split("|")) for row in self._rows if row[column]
        }

    @cached_property
    def orthologs(self) -> dict[str, str]:
        """Mouse gene to its one-to-one human ortholog; empty in the human table."""
        return {
            row[0]: row[_ORTHOLOG_COLUMN] for row in self._rows if row[_ORTHOLOG_COLUMN]
        }

    @cached_property
    def by_upper_case(self) -> dict[str, str]:
        """Symbol in upper case to symbol; no two symbols differ in case only."""
        return {symbol.upper(): symbol for symbol in self.symbols}

    def find(
        self, name: str, *, entrez: bool = False, ignore_case: bool = False
    ) -> Candidates:
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
            return self.genes_of(ENSEMBL).get(gene_id, ()), ENSEMBL
        if entrez and (number := ENTREZ_NUMBER.fullmatch(name)):
            return self.genes_of(ENTREZ).get(number[1], ()), ENTREZ
        genes = self.genes_of(ALIAS).get(name, ())
        if ignore_case and not genes and name.upper() in self.by_upper_case:
            return (self.by_upper_case[name.upper()],), SYMBOL
        return genes, ALIAS


@lru_cache(maxsize=2)
def gene_table(organism: str) -> GeneTable:
    """Return the table of an organism. It is cached, so callers must not change it."""
    return GeneTable(organism)


@lru_cache(maxsize=2)
def orthologs(source: str, target: str) -> Mapping[str, str]:
    """Map each gene of one organism to its one-to-one ortholog in the other."""
    mouse_to_human = gene_table("mouse").orthologs
    if source == "mouse":
        return mouse_to_human
    return {human: mouse for mouse, human in mouse_to_human.items()}
