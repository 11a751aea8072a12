"""Match two lists of gene names that may differ in identifier, age or species."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import pandas as pd

from tosica._logging import format_thousands
from tosica.gs._gene_table import (
    ALIAS,
    COMPOSITE,
    COUNTED,
    gene_table,
    infer_organism,
    orthologs,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Identifiers: TypeAlias = Literal["auto", "map", "exact"]

# Names that match this share of what could match need no help.
_ENOUGH = 0.5
# A column of var must be this many times better than the index to be taken instead.
_BETTER = 1.2
# Ambiguous names that a log line shows.
_SHOWN = 5
# Kinds that a translation is counted as on whichever side it was needed.
_OF_EITHER = (ALIAS, COMPOSITE, COUNTED)


@dataclass(frozen=True)
class GeneMatch:
    """Pairs of a wanted gene and one of the names, both as positions.

    ``column`` is the column of var that the names were taken from, None for the index.
    ``organism`` and ``wanted_organism`` are what the two lists were recognised as. ``kinds`` says
    of the names that were translated how many are of which kind; ``ambiguous`` holds the names
    that may be several of the wanted genes, and these.
    """

    wanted: NDArray[np.intp]
    rows: NDArray[np.intp]
    column: str | None = None
    organism: str | None = None
    wanted_organism: str | None = None
    by_orthology: bool = False
    kinds: Counter[str] = field(default_factory=Counter)
    ambiguous: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """How many of the names were matched."""
        return len(np.unique(self.rows))

    def summary(self) -> str:
        """What was recognised and translated, as clauses for a log line; empty if nothing was."""
        clauses = []
        if self.column is not None:
            clauses.append(f"genes named by var[{self.column!r}]")
        if self.kinds:
            counts = [f"{format_thousands(n)} {kind}" for kind, n in self.kinds.most_common()]
            how = ""
            if self.by_orthology:
                how = f" from {self.wanted_organism} to {self.organism} by one-to-one orthology"
            clauses.append(f"translated {' and '.join(counts)}{how}")
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
    organism: str = "auto",
    wanted_organism: str | None = None,
) -> GeneMatch:
    """Find each wanted gene among the names.

    A wanted gene that is there by name is matched to that name and to no other. For the others,
    both sides are brought to the symbols of NCBI Gene or MGI, and compared.

    Parameters
    ----------
    names
        Names that there are, such as ``var_names``.
    wanted
        Names of the genes to be found, each once.
    var
        Table with one row a name; a text column of it is taken in place of the names if it
        matches clearly better.
    identifiers
        ``"exact"`` compares the names as they are, ``"map"`` translates what is left, ``"auto"``
        does so where the names as they are give less than half of what translation gives.
    organism
        Whose the names are. ``"auto"`` recognises it, and does not map from one organism to
        another; ``"human"`` or ``"mouse"`` does, by one-to-one orthology.
    wanted_organism
        Whose the wanted genes are, if that is known.
    """
    # Text in a fast form: the lists come as Index of objects, strings or categories.
    names, wanted = _as_text(names), _as_text(wanted)
    exact = _exact(names, wanted)
    if identifiers == "exact":
        return exact
    asked = None if organism == "auto" else organism
    if wanted_organism is None:
        wanted_organism = infer_organism(wanted)
    best = _match_list(names, wanted, exact, asked, wanted_organism)
    if var is not None and best.n_rows < _ENOUGH * min(len(names), len(wanted)):
        for position, column in enumerate(var.columns):
            values = var.iloc[:, position]
            if not isinstance(column, str) or not _may_name_genes(values):
                continue
            text = _as_text(pd.Index(values))
            other = _match_list(text, wanted, _exact(text, wanted), asked, wanted_organism)
            if other.n_rows > _BETTER * best.n_rows:
                best = GeneMatch(**{**vars(other), "column": column})
    needed = best.by_orthology or exact.n_rows < _ENOUGH * best.n_rows
    if identifiers == "auto" and not needed:
        return GeneMatch(
            exact.wanted,
            exact.rows,
            organism=best.organism,
            wanted_organism=best.wanted_organism,
        )
    return best


def organism_of(names: pd.Index, var: pd.DataFrame) -> tuple[str | None, str | None]:
    """Whose the names are, and the column of var that says so where the names do not."""
    organism = infer_organism(_as_text(names))
    if organism is not None:
        return organism, None
    for position, column in enumerate(var.columns):
        values = var.iloc[:, position]
        if isinstance(column, str) and _may_name_genes(values):
            organism = infer_organism(_as_text(pd.Index(values)))
            if organism is not None:
                return organism, column
    return None, None


def _as_text(names: pd.Index) -> pd.Index:
    if isinstance(names.dtype, pd.CategoricalDtype) or names.hasnans:
        names = pd.Index(["" if pd.isna(name) else name for name in names], dtype=object)
    return pd.Index([str(name) for name in names], dtype=object)


def _may_name_genes(values: pd.Series) -> bool:
    """Whether a column of var holds text that tells its rows apart."""
    dtype = values.dtype
    if pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_datetime64_any_dtype(dtype):
        return False
    return values.nunique() > len(values) / 2


def _exact(names: pd.Index, wanted: pd.Index) -> GeneMatch:
    if names.is_unique:
        rows = names.get_indexer(wanted)
        found = np.flatnonzero(rows >= 0)
        return GeneMatch(found, rows[found])
    # A column may repeat a gene, on purpose: all its rows are that gene.
    found = wanted.get_indexer(names)
    rows = np.flatnonzero(found >= 0)
    return GeneMatch(found[rows], rows)


def _are_of(names: pd.Index, organism: str) -> bool:
    """Whether most of a list's names are names of this organism's genes."""
    genes = gene_table(organism).resolve(list(names)).genes
    return sum(gene is not None for gene in genes) > _ENOUGH * len(genes)


def _match_list(
    names: pd.Index,
    wanted: pd.Index,
    exact: GeneMatch,
    asked: str | None,
    wanted_organism: str | None,
) -> GeneMatch:
    """Exact matches, and what translation adds to them."""
    organism = asked or infer_organism(names)
    known = GeneMatch(exact.wanted, exact.rows, organism=organism, wanted_organism=wanted_organism)
    # A handful of genes cannot be recognised by itself, but can be looked up where the others are.
    if organism is None and wanted_organism is not None and _are_of(names, wanted_organism):
        organism = wanted_organism
    elif wanted_organism is None and organism is not None and _are_of(wanted, organism):
        wanted_organism = organism
    if organism is None or wanted_organism is None:
        return known
    crossed = organism != wanted_organism
    if crossed and asked is None:
        return known

    is_left = np.ones(len(wanted), dtype=bool)
    is_left[exact.wanted] = False
    left = np.flatnonzero(is_left)
    # All of them, since a numbered symbol is the gene only where the symbol itself is not wanted.
    sought = gene_table(wanted_organism).resolve(list(wanted))
    targets = pd.Series(sought.genes, dtype=object)[left].dropna()
    if crossed:
        targets = targets.map(orthologs(wanted_organism, organism)).dropna()
    table = gene_table(organism)
    there = table.resolve(list(names))
    rows = pd.DataFrame({"gene": there.genes, "kind": there.kinds}, dtype=object)
    rows["row"] = np.arange(len(rows))
    rows = rows.dropna(subset=["gene"])
    # The gene's own name is there too, so the alias is something else's.
    is_alias = rows["kind"] == ALIAS
    own = set(rows["gene"][~is_alias])
    rows = rows[~(is_alias & rows["gene"].isin(own))]
    pairs = pd.DataFrame({"gene": targets.array, "wanted": targets.index}).merge(rows, on="gene")
    row_kinds = pairs.drop_duplicates("row")
    kinds: Counter[str] = Counter()
    for kind, position in zip(row_kinds["kind"], row_kinds["wanted"], strict=True):
        # A symbol that was found under an older name is counted as that.
        wanted_kind = sought.kinds[position]
        kinds[str(wanted_kind if wanted_kind in _OF_EITHER else kind)] += 1
    genes = set(targets)
    ambiguous = {
        name: choices for name, choices in there.ambiguous.items() if genes.intersection(choices)
    }
    return GeneMatch(
        np.concatenate([exact.wanted, pairs["wanted"].to_numpy(dtype=np.intp)]),
        np.concatenate([exact.rows, pairs["row"].to_numpy(dtype=np.intp)]),
        organism=organism,
        wanted_organism=wanted_organism,
        by_orthology=crossed,
        kinds=kinds,
        ambiguous=ambiguous,
    )
