"""Match target genes with names that may differ in identifier, age or species.

====  ========================  ========================================================
step  function                  a target and a name match
====  ========================  ========================================================
1     ``match_by_name``         if they are equal
2     ``match_respelled``       if they are equal but for ``-``, ``_`` and ``.``
3     ``_match_translated``     if they stand for the same gene, see ``gs/_gene_list.py``
4     ``match_genes``           by these steps with a column of ``var``, if it fits better
====  ========================  ========================================================
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica._text import format_thousands
from tosica.gs._gene_list import UNDECORATED, GeneList
from tosica.gs._gene_table import ORGANISMS, orthologs
from tosica.gs._respelling import match_respelled
from tosica.gs._spelling import ALIAS, COMPOSITE, NUMBERED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tosica._types import IntArray
    from tosica.gs._gene_list import Resolved

# Another column is tried if the index matches a smaller share of all possible genes.
_ENOUGH = 0.5
# A column of var is used instead of the index if it matches this many times as many genes.
_MIN_GAIN = 1.2
# Names that Seurat changed, as log messages call them.
RESPELLED = "names with -, _ or . exchanged"
# Kinds of names that are reported if either side has them.
_REPORTED_KINDS = (ALIAS, COMPOSITE, NUMBERED)


@dataclass(frozen=True)
class GeneMatch:
    """Pairs of a target gene and a name, and how they were found.

    Attributes
    ----------
    targets, rows
        Position of the target and of the name of each pair, both ``(n_pairs,)``.
    n_by_name
        Number of pairs of equal names, which come first.
    names
        The names: the index of ``var`` or one of its columns.
    column
        The column of ``var`` that ``names`` is, None for the index.
    organism, target_organism
        Organism of the names and of the targets, None if it is not clear.
    by_orthology
        Whether targets were mapped to their orthologs.
    kinds
        Number of translated names of each kind.
    ambiguous
        Names that may be several of the targets, with these genes.
    """

    targets: IntArray
    rows: IntArray
    n_by_name: int
    names: GeneList
    column: str | None = None
    organism: str | None = None
    target_organism: str | None = None
    by_orthology: bool = False
    kinds: Counter[str] = field(default_factory=Counter)
    ambiguous: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """Number of names that were matched."""
        return len(np.unique(self.rows))

    def summary(self) -> str:
        """List how names were recognized and translated, as clauses of a log message."""
        clauses = []
        if self.column is not None:
            column = f"var[{self.column!r}]"
            if self.column == UNDECORATED:
                column = self.column
            clauses.append(f"genes named by {column}, such as {self.names.names[0]!r}")
        if self.kinds:
            counts = [
                f"{format_thousands(n)} {kind}" for kind, n in self.kinds.most_common()
            ]
            species = ""
            if self.by_orthology:
                species = f" from {self.target_organism} to {self.organism} by one-to-one orthology"
            clauses.append(f"translated {' and '.join(counts)}{species}")
        if self.ambiguous:
            clauses.append(list_ambiguous(self.ambiguous))
        return "; ".join(clauses)


def list_ambiguous(ambiguous: Mapping[str, tuple[str, ...]]) -> str:
    """Count ambiguous names and list five of them, as a clause of a log message."""
    listed = []
    for name, genes in list(ambiguous.items())[:5]:
        etc = " …" if len(genes) > 3 else ""
        listed.append(f"{name} ({' or '.join(genes[:3])}{etc})")
    etc = ", …" if len(ambiguous) > len(listed) else ""
    return f"{len(ambiguous)} ambiguous left out: {', '.join(listed)}{etc}"


def match_genes(
    names: GeneList,
    targets: GeneList,
    *,
    organism: str = "auto",
    target_organism: str | None = None,
) -> GeneMatch:
    """Find target genes among names.

    A target whose name is there is matched to that name only; so is one whose name is there with
    ``-`` for ``_`` or the other way round, unless several names would fit. All other targets, and
    all names, are translated to symbols of NCBI Gene or MGI, and these are compared.

    Parameters
    ----------
    names
        Names to search, such as ``var_names``. A text column of their ``var`` is used instead if
        it matches clearly better.
    targets
        Names of the genes to find, without duplicates.
    organism
        Organism of the names. ``"auto"`` recognizes it, and does not map genes from one organism
        to another. ``"human"`` or ``"mouse"`` does so, by one-to-one orthology.
    target_organism
        Organism of the targets; None recognizes it.
    """
    requested = None if organism == "auto" else organism
    target_organism = target_organism or targets.organism
    best = _match_translated(names, targets, requested, target_organism)
    if best.n_rows < _ENOUGH * min(len(names), len(targets)):
        for column, column_names in names.columns:
            match = _match_translated(column_names, targets, requested, target_organism)
            if match.n_rows > _MIN_GAIN * best.n_rows:
                best = replace(match, column=column)
    return best


def match_by_name(names: GeneList, targets: GeneList) -> GeneMatch:
    """Match equal names."""
    if names.names.is_unique:
        rows = names.names.get_indexer(targets.names)
        positions = np.flatnonzero(rows >= 0)
        return GeneMatch(positions, rows[positions], len(positions), names)
    # A column may repeat a gene: all its rows are that gene.
    positions = targets.names.get_indexer(names.names)
    rows = np.flatnonzero(positions >= 0)
    return GeneMatch(positions[rows], rows, len(rows), names)


def _add_respelled(match: GeneMatch, targets: GeneList) -> GeneMatch:
    """Add the names that are equal but for ``-``, ``_`` and ``.``."""
    respelled = match_respelled(
        match.names.names, targets.names, match.targets, match.rows
    )
    if not len(respelled.rows):
        return match
    return replace(
        match,
        targets=np.concatenate([match.targets, respelled.targets]),
        rows=np.concatenate([match.rows, respelled.rows]),
        kinds=Counter({RESPELLED: len(respelled.rows)}),
    )


def _match_translated(
    names: GeneList,
    targets: GeneList,
    requested: str | None,
    target_organism: str | None,
) -> GeneMatch:
    """Match by spelling, then by translation."""
    match = _add_respelled(match_by_name(names, targets), targets)
    organism = requested or names.organism
    # The organism of a few genes is not clear by itself, but may be that of the other list.
    if organism is None and target_organism is not None:
        organism = target_organism if are_mostly(names, target_organism) else None
    elif target_organism is None and organism is not None:
        # Names that both have are of the organism that was asked for.
        candidates = [organism, *(other for other in ORGANISMS if other != organism)]
        fitting = (name for name in candidates if are_mostly(targets, name))
        target_organism = next(fitting, None)
    match = replace(match, organism=organism, target_organism=target_organism)
    if organism is None or target_organism is None:
        return match
    if organism != target_organism and requested is None:
        return match

    # All targets are resolved, because a numbered symbol is translated only if the symbol
    # itself is not among them.
    resolved_targets = targets.resolve(target_organism)
    is_unmatched = np.ones(len(targets), dtype=bool)
    is_unmatched[match.targets] = False
    target_genes = pd.Series(resolved_targets.genes, dtype=object)
    target_genes = target_genes[is_unmatched].dropna()
    if organism != target_organism:
        target_genes = target_genes.map(orthologs(target_organism, organism)).dropna()
    resolved = names.resolve(organism)
    pairs = pd.DataFrame({"gene": target_genes.array, "target": target_genes.index})
    pairs = pairs.merge(_table_of(resolved), on="gene")
    targeted = set(target_genes)
    return replace(
        match,
        targets=np.append(match.targets, pairs["target"].to_numpy(dtype=np.intp)),
        rows=np.append(match.rows, pairs["row"].to_numpy(dtype=np.intp)),
        by_orthology=organism != target_organism,
        kinds=match.kinds + _count_kinds(pairs, resolved_targets),
        ambiguous={
            name: genes
            for name, genes in resolved.ambiguous.items()
            if not targeted.isdisjoint(genes)
        },
    )


def _table_of(resolved: Resolved) -> pd.DataFrame:
    """Table of the names with one gene: ``gene``, ``kind`` and ``row``.

    If a gene is also there by its own name, an alias of it is taken as another gene.
    """
    table = pd.DataFrame({"gene": resolved.genes, "kind": resolved.kinds}, dtype=object)
    table["row"] = np.arange(len(table))
    table = table.dropna(subset=["gene"])
    is_alias = table["kind"] == ALIAS
    by_own_name = set(table["gene"][~is_alias])
    return table[~(is_alias & table["gene"].isin(by_own_name))]


def _count_kinds(pairs: pd.DataFrame, resolved_targets: Resolved) -> Counter[str]:
    """Count the matched names of each kind.

    A symbol that matches an alias among the targets counts as an alias.
    """
    kinds: Counter[str] = Counter()
    single = pairs.drop_duplicates("row")
    for kind, target in zip(single["kind"], single["target"], strict=True):
        target_kind = resolved_targets.kinds[target]
        kinds[str(target_kind if target_kind in _REPORTED_KINDS else kind)] += 1
    return kinds


def are_mostly(genes: GeneList, organism: str) -> bool:
    """Whether most names are those of genes of an organism."""
    resolved = genes.resolve(organism).genes
    return sum(gene is not None for gene in resolved) > _ENOUGH * len(resolved)
