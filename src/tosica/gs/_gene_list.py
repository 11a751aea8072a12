"""Lists of gene names: their organism, other names in ``var``, and the gene of each name.

:meth:`GeneList.resolve` tries these steps; each sees the names that are still unknown:

===========  =======================  ================================================
step         function                 names
===========  =======================  ================================================
one name     ``GeneTable.find``       ``CD3E``, ``ENSG00000198851.10``, ``916``, ``IL8``
composite    ``_find_composite``      ``HLA-A_ENSG00000206503``, ``TP53|7157``
dotted       ``_find``                ``HLA.DRA``, as R writes ``HLA-DRA``
numbered     ``_find_numbered``       ``CD24.1``, if ``CD24`` is not in the list
===========  =======================  ================================================
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from tosica._text import call, in_python
from tosica.gs._gene_table import ORGANISMS, gene_table
from tosica.gs._spelling import (
    ALIAS,
    COMPOSITE,
    ENSEMBL,
    ENTREZ,
    NUMBERED,
    NUMBERED_SYMBOL,
    REPEATS,
    SYMBOL,
    describe_gene_names,
    ensembl_id,
    split_composite,
    undecorated,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tosica.gs._gene_table import Candidates, GeneTable

# The "column" of names without their decoration, see :attr:`GeneList.columns`.
UNDECORATED = "var_names without what all of them share"

# An organism is recognized if at least this many names, and this share of the list, are
# its symbols or Entrez numbers …
_MIN_SYMBOLS = 20
_MIN_SYMBOLS_SHARE = 0.2
# … and this many times as many as those of the other organism, since some symbols are in both.
_MIN_RATIO = 2
# With this share, the other organism's table is not read: few symbols are in both.
_CLEAR_SHARE = 0.75
# Upper-case symbols are of the mouse if at least this many, and this share of the list, are
# symbols of the mouse alone. They are next to none in human data, and 5 to 20 % in mouse
# data; for human symbols it is the other way round.
_MIN_MOUSE_ONLY = 10
_MIN_MOUSE_ONLY_SHARE = 0.01


class Resolved(NamedTuple):
    """Genes of a list of names.

    ``genes`` has the gene of each name, ``None`` if it is unknown or ambiguous, and ``kinds`` the
    kind of the name. ``ambiguous`` is a dict of name to possible genes.
    """

    genes: list[str | None]
    kinds: list[str | None]
    ambiguous: dict[str, tuple[str, ...]]


class GeneList:
    """Names of genes, with their kind, organism and genes.

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
        self.names = pd.Index(
            ["" if pd.isna(name) else str(name) for name in names], dtype=object
        )
        self.var = var
        self._resolved: dict[tuple[str, bool], Resolved] = {}

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def columns(self) -> list[tuple[str, GeneList]]:
        """Other names of the genes: undecorated ones, and text columns of ``var`` that distinguish rows."""
        columns = []
        bare = undecorated(self.names)
        if not bare.equals(self.names):
            columns.append((UNDECORATED, GeneList(bare)))
        if self.var is None:
            return columns
        for column, values in self.var.items():
            is_text = not (
                pd.api.types.is_numeric_dtype(values.dtype)
                or pd.api.types.is_datetime64_any_dtype(values.dtype)
            )
            if not isinstance(column, str) or not is_text:
                continue
            # Lists and other values of a column have no number of unique ones.
            texts = values.astype(object).where(values.notna(), "").astype(str)
            if texts.nunique() > len(texts) / 2:
                columns.append((column, GeneList(undecorated(pd.Index(texts)))))
        return columns

    @cached_property
    def kind(self) -> str | None:
        """Kind of the names, see :func:`describe_gene_names`."""
        return describe_gene_names(self.names)

    @cached_property
    def organism(self) -> str | None:
        """``"human"`` or ``"mouse"``, decided by overlap; None if it is not clear."""
        unique = list(dict.fromkeys(self.names))
        symbols = set()
        ids = []
        for name in unique:
            symbol, identifier = split_composite(name) or (name, name)
            symbols.add(symbol)
            if gene_id := ensembl_id(identifier):
                ids.append(gene_id)
        # An Ensembl ID contains the organism, so a few are enough.
        if len(ids) > len(unique) / 2:
            n_mouse = sum(gene_id.startswith("ENSMUSG") for gene_id in ids)
            return _larger({"human": len(ids) - n_mouse, "mouse": n_mouse}, at_least=0)
        if len(unique) < _MIN_SYMBOLS:
            return None
        n_symbols = {}
        for organism in ORGANISMS:
            table = gene_table(organism)
            if self.kind == ENTREZ:
                n_symbols[organism] = len(table.genes_of(ENTREZ).keys() & symbols)
            else:
                n_symbols[organism] = len(table.symbols & symbols)
            if n_symbols[organism] >= max(_MIN_SYMBOLS, _CLEAR_SHARE * len(unique)):
                return organism
        return _larger(
            n_symbols, at_least=max(_MIN_SYMBOLS, _MIN_SYMBOLS_SHARE * len(unique))
        )

    @cached_property
    def upper_case_mouse(self) -> list[str]:
        """Names that only the mouse has, if the names are mouse symbols in upper case."""
        unique = {name for name in self.names if not name.startswith("MT-")}
        human = gene_table("human")
        mouse = gene_table("mouse")
        mouse_names = mouse.by_upper_case.keys() & unique
        if len(mouse_names) < len(unique) / 2:
            return []
        mouse_only = mouse_names - human.symbols - human.genes_of(ALIAS).keys()
        n_human_only = len((human.symbols & unique) - mouse.by_upper_case.keys())
        n_needed = max(
            _MIN_MOUSE_ONLY,
            _MIN_MOUSE_ONLY_SHARE * len(unique),
            _MIN_RATIO * n_human_only,
        )
        return sorted(mouse_only) if len(mouse_only) >= n_needed else []

    def resolve(self, organism: str, *, ignore_case: bool = False) -> Resolved:
        """Find the gene of each name in an organism.

        Numbers are Entrez numbers only if most of the list is. An unknown name is split into a
        symbol and an identifier, or a symbol and the number of its repeat.

        Parameters
        ----------
        organism
            ``"human"`` or ``"mouse"``.
        ignore_case
            Whether symbols are found in any case.
        """
        key = organism, ignore_case
        if key not in self._resolved:
            candidates = self._find(gene_table(organism), ignore_case)
            genes: list[str | None] = []
            kinds: list[str | None] = []
            for name in self.names:
                possible, kind = candidates[name]
                is_clear = len(possible) == 1
                genes.append(possible[0] if is_clear else None)
                kinds.append(kind if is_clear else None)
            ambiguous = {
                name: possible
                for name, (possible, _) in candidates.items()
                if len(possible) > 1
            }
            self._resolved[key] = Resolved(genes, kinds, ambiguous)
        return self._resolved[key]

    def _find(self, table: GeneTable, ignore_case: bool) -> dict[str, Candidates]:
        """Find the candidates of each name, by the steps in the docstring of this module."""
        candidates = {
            name: table.find(name, entrez=self.kind == ENTREZ, ignore_case=ignore_case)
            for name in self.names
        }

        def unknown() -> list[str]:
            return [name for name, (genes, _) in candidates.items() if not genes]

        candidates |= _find_composite(unknown(), table, ignore_case)
        # R writes a dot in the place of a hyphen.
        candidates |= {
            name: table.find(name.replace(".", "-"))
            for name in unknown()
            if "." in name
        }
        candidates |= _find_numbered(unknown(), candidates, table, ignore_case)
        return candidates


def _larger(counts: dict[str, int], *, at_least: float) -> str | None:
    """Return the organism with the larger count, if it is clearly larger."""
    best, second = sorted(ORGANISMS, key=lambda organism: -counts[organism])
    is_clear = counts[best] >= max(at_least, _MIN_RATIO * counts[second])
    return best if is_clear else None


def _find_composite(
    names: list[str], table: GeneTable, ignore_case: bool
) -> dict[str, Candidates]:
    """Find names such as SYMBOL_ENSG…: the gene of both parts, or else the genes of either."""
    by_symbol: dict[str, Candidates] = {}
    by_id: dict[str, Candidates] = {}
    for name in names:
        if composite := split_composite(name):
            symbol, identifier = composite
            by_symbol[name] = table.find(symbol, ignore_case=ignore_case)
            by_id[name] = table.find(identifier, entrez=True, ignore_case=ignore_case)
    are_entrez = _are_entrez(by_symbol, by_id)
    composites: dict[str, Candidates] = {}
    for name, (symbol_genes, symbol_kind) in by_symbol.items():
        id_genes, id_kind = by_id[name]
        if id_kind == ENTREZ and not are_entrez:
            id_genes = ()
        if symbol_genes and id_genes:
            shared = tuple(gene for gene in symbol_genes if gene in id_genes)
            union = tuple(dict.fromkeys(symbol_genes + id_genes))
            composites[name] = shared or union, COMPOSITE
        elif symbol_genes and symbol_kind == ALIAS:
            # An old symbol without a confirming ID counts as an alias.
            composites[name] = symbol_genes, ALIAS
        elif symbol_genes or id_genes:
            composites[name] = symbol_genes or id_genes, COMPOSITE
    return composites


def _are_entrez(by_symbol: dict[str, Candidates], by_id: dict[str, Candidates]) -> bool:
    """Whether most numbers are the Entrez number of the symbol beside them."""
    n_pairs = 0
    n_same = 0
    for name, (symbol_genes, _) in by_symbol.items():
        id_genes, id_kind = by_id[name]
        if id_kind == ENTREZ and symbol_genes and id_genes:
            n_pairs += 1
            n_same += not set(symbol_genes).isdisjoint(id_genes)
    return 2 * n_same > n_pairs


def _find_numbered(
    names: list[str],
    candidates: dict[str, Candidates],
    table: GeneTable,
    ignore_case: bool,
) -> dict[str, Candidates]:
    """Find names such as SYMBOL.1, if neither SYMBOL nor SYMBOL.2 is in the list.

    Otherwise SYMBOL.1 is another locus, or a repeat of the same gene.
    """
    listed = {genes[0] for genes, _ in candidates.values() if len(genes) == 1}
    repeats: dict[str, list[str]] = {}
    for name in names:
        split = NUMBERED_SYMBOL.fullmatch(name)
        if split is None:
            continue
        stem, separator = split.groups()
        genes, kind = table.find(stem, ignore_case=ignore_case)
        if len(genes) != 1 or kind not in (SYMBOL, ENSEMBL) or genes[0] in listed:
            continue
        # NAV1.9 is an alias of SCN11A and not a repeat of NAV1. If the table has one name with
        # this stem and a number, other numbers may be genes of their own too.
        siblings = {stem + separator + digit for digit in REPEATS}
        if siblings & table.symbols or siblings & table.genes_of(ALIAS).keys():
            continue
        repeats.setdefault(genes[0], []).append(name)
    return {
        same[0]: ((gene,), NUMBERED) for gene, same in repeats.items() if len(same) == 1
    }


def hint_for_mismatch(
    query_names: Iterable[str],
    reference_names: Iterable[str],
    *,
    query: str = "the query",
    reference: str = "the model's",
    var: pd.DataFrame | None = None,
) -> str:
    """Explain why two lists of gene names do not match, and how to mend it.

    Parameters
    ----------
    query_names
        Names that were matched.
    reference_names
        Names that they were matched to.
    query
        Description of the first list, as in "names in the query".
    reference
        Owner of the second list, as in "while the model's look like".
    var
        Table of the query's genes. The hint names a column that matches better than its index.

    Returns
    -------
    str
        A clause without capital and full stop, to end a sentence with; empty if the names give no
        reason.

    Examples
    --------
    >>> hint_for_mismatch(["Cd3e", "Cd19", "Lyz2"], ["CD3E", "CD19", "LYZ"])
    "names in the query look like mouse symbols while the model's look like human symbols: translate
    them by tosica.gs.map_genes, and use the same species on both sides"
    """
    query_list = list(query_names)
    reference_list = list(reference_names)
    if var is not None:
        reference_set = set(reference_list)
        n_shared = {
            column: len(reference_set.intersection(names.names))
            for column, names in GeneList(query_list, var).columns
            if column != UNDECORATED
        }
        best = max(n_shared, key=n_shared.__getitem__, default=None)
        n_by_name = len(reference_set.intersection(query_list))
        # A few names are alike by chance, as those of antibodies and of genes.
        enough = max(n_by_name + 1, min(len(query_list), len(reference_set)) // 2)
        if best is not None and n_shared[best] >= enough:
            cure = in_python(
                f": adata.var_names = adata.var[{best!r}].astype(str), then adata.var_names_make_unique()"
            )
            return f"var[{best!r}] of {query} fits better, so make its names those of the genes{cure}"
    query_kind = describe_gene_names(query_list)
    reference_kind = describe_gene_names(reference_list)
    if query_kind == reference_kind:
        return ""
    if query_kind == "row numbers":
        cure = in_python("tosica.io.from_seurat", call("tosica.io.read_seurat"))
        return (
            f"names in {query} look like row numbers: they were lost in a conversion and must be "
            f"set again, which {cure} does for a Seurat object"
        )
    if query_kind is None or reference_kind is None:
        return ""
    in_capitals = {name.upper() for name in query_list}
    n_shared_in_capitals = len(in_capitals.intersection(reference_list))
    is_lower_case = query_kind == "lower-case symbols"
    if is_lower_case and 2 * n_shared_in_capitals > min(
        len(query_list), len(reference_list)
    ):
        cure = in_python(
            "adata.var_names = adata.var_names.str.upper()", "write them in capitals"
        )
        return f"names in {query} are those of {reference} in lower case: {cure}"
    cure = in_python(" by tosica.gs.map_genes")
    return (
        f"names in {query} look like {query_kind} while {reference} look like {reference_kind}: translate them"
        f"{cure}, and use the same species on both sides"
    )
