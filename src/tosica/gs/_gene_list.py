"""A list of gene names: its kind of names, its organism, and its genes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from tosica.gs._gene_names import describe_gene_names, ensembl_id, split_composite, split_numbered
from tosica.gs._gene_table import ALIAS, ENSEMBL, ENTREZ, ORGANISMS, SYMBOL, gene_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tosica.gs._gene_table import Candidates, GeneTable

# Kinds of names that no table lists, as log messages call them.
COMPOSITE, NUMBERED = "composite names", "numbered symbols"

_ENSEMBL_PREFIXES = {"human": "ENSG", "mouse": "ENSMUSG"}
# An organism is recognised if at least this many names, and this share of the list, are its symbols
# or Entrez numbers …
_MIN_KNOWN, _MIN_KNOWN_SHARE = 20, 0.2
# … and this many times as many as those of the other organism, since some symbols are in both.
_MIN_RATIO = 2
# With this share, the other organism's table is not read: few symbols are in both.
_CLEAR_SHARE = 0.75
# Upper-case symbols are of the mouse if at least this many, and this share of the list, are symbols
# of the mouse alone. They are next to none in human data, and 5 to 20 % in mouse data; for human
# symbols it is the other way round.
_MIN_MOUSE_ONLY, _MIN_MOUSE_ONLY_SHARE = 10, 0.01
_DIGITS = "123456789"


class Resolved(NamedTuple):
    """Genes of a list of names.

    ``genes`` has the gene of each name, ``None`` if it is unknown or ambiguous, and ``kinds`` the
    kind of name that it was found as. ``ambiguous`` is a dict of name to possible genes.
    """

    genes: list[str | None]
    kinds: list[str | None]
    ambiguous: dict[str, tuple[str, ...]]


class UpperCaseMouse(NamedTuple):
    """Evidence that upper-case symbols are of the mouse.

    ``mouse_only`` are the names that only the mouse has, and ``n_human_only`` is the number of
    names that only human genes have.
    """

    mouse_only: list[str]
    n_human_only: int

    @property
    def examples(self) -> str:
        """A few mouse symbols from different parts of the alphabet."""
        return ", ".join(map(repr, self.mouse_only[:: (len(self.mouse_only) + 2) // 3]))


class GeneList:
    """Names of genes, with all that can be found out about them.

    Each property is computed when it is first used, and only once.

    Parameters
    ----------
    names
        Names of genes: strings, categories or missing values.
    var
        Table with one row per name. Its text columns may hold other names of the same genes.

    Attributes
    ----------
    names : pandas.Index
        The names as strings, shape ``(n_genes,)``; missing ones are empty.
    """

    def __init__(self, names: Iterable[str], var: pd.DataFrame | None = None) -> None:
        self.names = pd.Index(["" if pd.isna(name) else str(name) for name in names], dtype=object)
        self.var = var
        self._resolved: dict[tuple[str, bool], Resolved] = {}

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def columns(self) -> list[tuple[str, GeneList]]:
        """Names of genes in text columns of ``var`` that distinguish its rows."""
        columns: list[tuple[str, GeneList]] = []
        if self.var is None:
            return columns
        for position, column in enumerate(self.var.columns):
            values = self.var.iloc[:, position]
            if isinstance(column, str) and _may_name_genes(values):
                columns.append((column, GeneList(values)))
        return columns

    @cached_property
    def kind(self) -> str | None:
        """Kind of the names, see :func:`tosica.gs._gene_names.describe_gene_names`."""
        return describe_gene_names(self.names)

    @cached_property
    def organism(self) -> str | None:
        """``"human"`` or ``"mouse"``, decided by overlap; None if it is not clear."""
        unique = list(dict.fromkeys(self.names))
        parts = [split_composite(name) or (name, name) for name in unique]
        ids = [gene_id for _, part in parts if (gene_id := ensembl_id(part))]
        # An Ensembl ID contains the organism, so a few are enough.
        if len(ids) > len(unique) / 2:
            n_ids = {
                organism: sum(gene_id.startswith(prefix) for gene_id in ids)
                for organism, prefix in _ENSEMBL_PREFIXES.items()
            }
            return _larger(n_ids, at_least=0)
        if len(unique) < _MIN_KNOWN:
            return None
        symbols = {symbol for symbol, _ in parts}
        n_known = {}
        for organism in ORGANISMS:
            table = gene_table(organism)
            known = table.entrez.keys() if self.kind == ENTREZ else table.symbols
            n_known[organism] = len(known & symbols)
            if n_known[organism] >= max(_MIN_KNOWN, _CLEAR_SHARE * len(unique)):
                return organism
        return _larger(n_known, at_least=max(_MIN_KNOWN, _MIN_KNOWN_SHARE * len(unique)))

    @cached_property
    def upper_case_mouse(self) -> UpperCaseMouse | None:
        """Evidence that the names are mouse symbols in upper case; None if they are not."""
        unique = {name for name in self.names if not name.startswith("MT-")}
        human, mouse = gene_table("human"), gene_table("mouse")
        mouse_names = mouse.by_upper_case.keys() & unique
        if len(mouse_names) < len(unique) / 2:
            return None
        mouse_only = [
            name for name in mouse_names if name not in human.symbols and name not in human.aliases
        ]
        n_human_only = len((human.symbols & unique) - mouse.by_upper_case.keys())
        needed = max(
            _MIN_MOUSE_ONLY, _MIN_MOUSE_ONLY_SHARE * len(unique), _MIN_RATIO * n_human_only
        )
        if len(mouse_only) < needed:
            return None
        return UpperCaseMouse(sorted(mouse_only), n_human_only)

    def resolve(self, organism: str, *, ignore_case: bool = False) -> Resolved:
        """Find the gene of each name in an organism.

        Numbers are Entrez numbers only if most of the list is. An unknown name is split into a
        symbol and another part, or a symbol and the number of its repeat.

        Parameters
        ----------
        organism
            ``"human"`` or ``"mouse"``.
        ignore_case
            Whether symbols are found in any case.
        """
        key = organism, ignore_case
        if key not in self._resolved:
            table, entrez = gene_table(organism), self.kind == ENTREZ
            found = {
                name: table.find(name, entrez=entrez, ignore_case=ignore_case)
                for name in self.names
            }
            unknown = [name for name, (genes, _) in found.items() if not genes]
            found |= _find_composite(unknown, table, ignore_case)
            unknown = [name for name in unknown if not found[name][0]]
            known = {genes[0] for genes, _ in found.values() if len(genes) == 1}
            found |= _find_numbered(unknown, table, known, ignore_case)
            each = [found[name] for name in self.names]
            self._resolved[key] = Resolved(
                [genes[0] if len(genes) == 1 else None for genes, _ in each],
                [kind if len(genes) == 1 else None for genes, kind in each],
                {name: genes for name, (genes, _) in found.items() if len(genes) > 1},
            )
        return self._resolved[key]


def _may_name_genes(values: pd.Series) -> bool:
    """Whether a column of ``var`` holds text that distinguishes its rows."""
    dtype = values.dtype
    if pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_datetime64_any_dtype(dtype):
        return False
    return values.nunique() > len(values) / 2


def _larger(counts: dict[str, int], *, at_least: float) -> str | None:
    """The organism with the larger count, if it is clearly larger."""
    best, other = sorted(ORGANISMS, key=lambda organism: -counts[organism])
    return best if counts[best] >= max(at_least, _MIN_RATIO * counts[other]) else None


def _find_composite(names: list[str], table: GeneTable, ignore_case: bool) -> dict[str, Candidates]:
    """Find names such as SYMBOL_ENSG…: the gene that both parts share, or else all their genes."""
    split = {name: parts for name in names if (parts := split_composite(name))}
    by_symbol = {
        name: table.find(symbol, ignore_case=ignore_case) for name, (symbol, _) in split.items()
    }
    by_other = {
        name: table.find(other, entrez=True, ignore_case=ignore_case)
        for name, (_, other) in split.items()
    }
    # Numbers are Entrez numbers if most of them are the gene of the symbol beside them.
    numbers = [name for name, (_, kind) in by_other.items() if kind == ENTREZ]
    agrees = [
        not set(by_symbol[name][0]).isdisjoint(by_other[name][0])
        for name in numbers
        if by_symbol[name][0] and by_other[name][0]
    ]
    if 2 * sum(agrees) <= len(agrees):
        by_other |= dict.fromkeys(numbers, ((), ENTREZ))
    answers: dict[str, Candidates] = {}
    for name in split:
        (genes, kind), (other_genes, _) = by_symbol[name], by_other[name]
        if genes and other_genes:
            shared = tuple(gene for gene in genes if gene in other_genes)
            answers[name] = shared or tuple(dict.fromkeys(genes + other_genes)), COMPOSITE
        elif genes or other_genes:
            # An old symbol without a confirming ID counts as an alias.
            is_alias = kind == ALIAS and not other_genes
            answers[name] = genes or other_genes, ALIAS if is_alias else COMPOSITE
    return answers


def _find_numbered(
    names: list[str], table: GeneTable, known: set[str], ignore_case: bool
) -> dict[str, Candidates]:
    """Find names such as SYMBOL.1, if neither SYMBOL nor SYMBOL.2 is in the list.

    Otherwise SYMBOL.1 is another locus, or a repeat of the same gene.
    """
    numbered: dict[str, list[str]] = {}
    for name in names:
        split = split_numbered(name)
        if split is None:
            continue
        genes, kind = table.find(split[0], ignore_case=ignore_case)
        if len(genes) != 1 or kind not in (SYMBOL, ENSEMBL) or genes[0] in known:
            continue
        # NAV1.9 is an alias of SCN11A and not a repeat of NAV1. If the table has one name with this
        # stem and a number, other numbers may be genes of their own too.
        stem = "".join(split)
        if any(stem + digit in table.symbols or stem + digit in table.aliases for digit in _DIGITS):
            continue
        numbered.setdefault(genes[0], []).append(name)
    return {same[0]: ((gene,), NUMBERED) for gene, same in numbered.items() if len(same) == 1}
