"""Match two lists of gene names that may differ in identifier, age or species."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import pandas as pd

from tosica._logging import format_thousands
from tosica.gs._gene_list import COMPOSITE, NUMBERED, GeneList
from tosica.gs._gene_table import ALIAS, orthologs
from tosica.gs._hyphens import match_respelled

if TYPE_CHECKING:
    from numpy.typing import NDArray

Identifiers: TypeAlias = Literal["auto", "map", "exact"]

# Exact matches of this share of all possible matches make a translation unnecessary.
_ENOUGH = 0.5
# A column of var is used instead of the index if it matches this many times as many genes.
_MIN_GAIN = 1.2
# Ambiguous names that a log message shows.
_SHOWN = 5
# Names that Seurat changed, as log messages call them.
RESPELLED = "names with - and _ exchanged"
# Kinds of names that are reported if either side has them.
_REPORTED_KINDS = (ALIAS, COMPOSITE, NUMBERED)


@dataclass(frozen=True)
class GeneMatch:
    """Pairs of a wanted gene and a given name, and how they were found.

    Attributes
    ----------
    wanted, rows
        Position of the wanted gene and of the given name of each pair, both ``(n_pairs,)``.
    names
        The given names: the index of ``var`` or one of its columns.
    column
        The column of ``var`` that ``names`` is, None for the index.
    organism, wanted_organism
        Organism of the given names and of the wanted genes, None if it is not clear.
    by_orthology
        Whether wanted genes were mapped to their orthologs.
    kinds
        Number of translated names of each kind.
    ambiguous
        Names that may be several of the wanted genes, with these genes.
    """

    wanted: NDArray[np.intp]
    rows: NDArray[np.intp]
    names: GeneList
    column: str | None = None
    organism: str | None = None
    wanted_organism: str | None = None
    by_orthology: bool = False
    kinds: Counter[str] = field(default_factory=Counter)
    ambiguous: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """Number of given names that were matched."""
        return len(np.unique(self.rows))

    def summary(self) -> str:
        """What was recognised and translated, as clauses of a log message; empty if nothing was."""
        clauses = []
        if self.column is not None:
            clauses.append(f"genes named by var[{self.column!r}]")
        if self.kinds:
            counts = [f"{format_thousands(n)} {kind}" for kind, n in self.kinds.most_common()]
            species = ""
            if self.by_orthology:
                species = f" from {self.wanted_organism} to {self.organism} by one-to-one orthology"
            clauses.append(f"translated {' and '.join(counts)}{species}")
        if self.ambiguous:
            shown = [
                f"{name} ({' or '.join(genes[:3])}{' …' if len(genes) > 3 else ''})"
                for name, genes in list(self.ambiguous.items())[:_SHOWN]
            ]
            more = ", …" if len(self.ambiguous) > _SHOWN else ""
            clauses.append(f"{len(self.ambiguous)} ambiguous left out: {', '.join(shown)}{more}")
        return "; ".join(clauses)


def match_genes(
    names: pd.Index,
    wanted: pd.Index,
    *,
    var: pd.DataFrame | None = None,
    identifiers: Identifiers = "auto",
) -> GeneMatch:
    """Find wanted genes among names, see :func:`match_gene_lists`."""
    return match_gene_lists(GeneList(names, var), GeneList(wanted), identifiers=identifiers)


def match_gene_lists(
    given: GeneList,
    wanted: GeneList,
    *,
    identifiers: Identifiers = "auto",
    organism: str = "auto",
    wanted_organism: str | None = None,
) -> GeneMatch:
    """Find each wanted gene among the given names.

    A wanted gene whose name is given is matched to that name only; so is one whose name is given
    with ``-`` for ``_`` or the other way round, unless several names would fit. All other wanted
    genes, and all given names, are translated to symbols of NCBI Gene or MGI, and these are
    compared.

    Parameters
    ----------
    given
        Given names, such as ``var_names``. A text column of their ``var`` is used instead if it
        matches clearly better.
    wanted
        Names of the genes to find, without duplicates.
    identifiers
        ``"exact"`` compares the names as they are. ``"map"`` also translates names. ``"auto"``
        translates only if exact matches are less than half of those by translation.
    organism
        Organism of the given names. ``"auto"`` recognises it, and does not map genes from one
        organism to another. ``"human"`` or ``"mouse"`` does so, by one-to-one orthology.
    wanted_organism
        Organism of the wanted genes; None recognises it.
    """
    exact = _match_exactly(given, wanted)
    if identifiers == "exact":
        return exact
    exact = _with_respelled(exact, wanted)
    requested = None if organism == "auto" else organism
    wanted_organism = wanted_organism or wanted.organism
    best = _match_translated(exact, wanted, requested, wanted_organism)
    if best.n_rows < _ENOUGH * min(len(given), len(wanted)):
        for column, names in given.columns:
            by_name = _with_respelled(_match_exactly(names, wanted), wanted)
            match = _match_translated(by_name, wanted, requested, wanted_organism)
            if match.n_rows > _MIN_GAIN * best.n_rows:
                best = replace(match, column=column)
    is_needed = best.by_orthology or exact.n_rows < _ENOUGH * best.n_rows
    if identifiers == "auto" and not is_needed:
        return replace(exact, organism=best.organism, wanted_organism=best.wanted_organism)
    return best


def _match_exactly(given: GeneList, wanted: GeneList) -> GeneMatch:
    if given.names.is_unique:
        rows = given.names.get_indexer(wanted.names)
        found = np.flatnonzero(rows >= 0)
        return GeneMatch(found, rows[found], given)
    # A column may repeat a gene: all its rows are that gene.
    found = wanted.names.get_indexer(given.names)
    rows = np.flatnonzero(found >= 0)
    return GeneMatch(found[rows], rows, given)


def _with_respelled(exact: GeneMatch, wanted: GeneList) -> GeneMatch:
    """Add names that Seurat changed to the exact matches."""
    more = match_respelled(exact.names.names, wanted.names, exact.wanted, exact.rows)
    return replace(
        exact,
        wanted=np.concatenate([exact.wanted, more.wanted]),
        rows=np.concatenate([exact.rows, more.rows]),
        kinds=Counter({RESPELLED: len(more.rows)}) if len(more.rows) else Counter(),
    )


def _match_translated(
    exact: GeneMatch, wanted: GeneList, requested: str | None, wanted_organism: str | None
) -> GeneMatch:
    """Add the matches by translation to the exact ones."""
    given = exact.names
    organism = requested or given.organism
    exact = replace(exact, organism=organism, wanted_organism=wanted_organism)
    # The organism of a few genes is not clear by itself, but may be that of the other list.
    if organism is None and wanted_organism is not None and _are_mostly(given, wanted_organism):
        organism = wanted_organism
    elif wanted_organism is None and organism is not None and _are_mostly(wanted, organism):
        wanted_organism = organism
    if organism is None or wanted_organism is None:
        return exact
    by_orthology = organism != wanted_organism
    if by_orthology and requested is None:
        return exact

    # All wanted names are resolved, because a numbered symbol is translated only if the symbol
    # itself is not among them.
    wanted_genes = wanted.resolve(wanted_organism)
    is_unmatched = np.ones(len(wanted), dtype=bool)
    is_unmatched[exact.wanted] = False
    targets = pd.Series(wanted_genes.genes, dtype=object)[is_unmatched].dropna()
    if by_orthology:
        targets = targets.map(orthologs(wanted_organism, organism)).dropna()
    given_genes = given.resolve(organism)
    rows = pd.DataFrame({"gene": given_genes.genes, "kind": given_genes.kinds}, dtype=object)
    rows["row"] = np.arange(len(rows))
    rows = rows.dropna(subset=["gene"])
    # If a gene is also given by its own name, an alias of it is taken as another gene.
    is_alias = rows["kind"] == ALIAS
    named = set(rows["gene"][~is_alias])
    rows = rows[~(is_alias & rows["gene"].isin(named))]
    pairs = pd.DataFrame({"gene": targets.array, "wanted": targets.index}).merge(rows, on="gene")
    targeted = set(targets)
    return replace(
        exact,
        wanted=np.concatenate([exact.wanted, pairs["wanted"].to_numpy(dtype=np.intp)]),
        rows=np.concatenate([exact.rows, pairs["row"].to_numpy(dtype=np.intp)]),
        organism=organism,
        wanted_organism=wanted_organism,
        by_orthology=by_orthology,
        kinds=exact.kinds + _count_kinds(pairs.drop_duplicates("row"), wanted_genes.kinds),
        ambiguous={
            name: genes
            for name, genes in given_genes.ambiguous.items()
            if not targeted.isdisjoint(genes)
        },
    )


def _are_mostly(genes: GeneList, organism: str) -> bool:
    """Whether most names are those of genes of an organism."""
    resolved = genes.resolve(organism).genes
    return sum(gene is not None for gene in resolved) > _ENOUGH * len(resolved)


def _count_kinds(pairs: pd.DataFrame, wanted_kinds: list[str | None]) -> Counter[str]:
    """Number of translated names of each kind, from one pair per given name."""
    kinds: Counter[str] = Counter()
    for kind, position in zip(pairs["kind"], pairs["wanted"], strict=True):
        # A given symbol that matches an alias among the wanted genes counts as an alias.
        wanted_kind = wanted_kinds[position]
        kinds[str(wanted_kind if wanted_kind in _REPORTED_KINDS else kind)] += 1
    return kinds
