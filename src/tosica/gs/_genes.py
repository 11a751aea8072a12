"""Names of genes: their kinds by spelling, the tables of two organisms, and lists of names.

Tables are read from `resources/genes/<organism>.tsv.gz`. The symbol in the first column identifies
a gene. Names of any kind are mapped to it.
"""

from __future__ import annotations

import gzip
import re
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ORGANISMS: Final = ("human", "mouse")
# Kinds of names, as log messages call them; no table lists the last two.
SYMBOL, ENSEMBL, ENTREZ, ALIAS = "symbols", "Ensembl IDs", "Entrez numbers", "aliases"
# What :attr:`GeneList.columns` calls the names without what all of them share.
UNDECORATED = "var_names without what all of them share"
COMPOSITE, NUMBERED = "composite names", "numbered symbols"

# Genes that a name may stand for, and the kind of the name.
Candidates: TypeAlias = tuple[tuple[str, ...], str]

# --------------------------------------------------------------------------- kinds by spelling

_BARE_ID, _VERSION = r"ENS(?:MUS)?G\d{11}", r"(?:\.\d+)?(?:_PAR_Y)?"
_ID = _BARE_ID + _VERSION
_ENSEMBL_ID = re.compile(f"({_BARE_ID}){_VERSION}")
# Seurat replaces an underscore by a hyphen. After an ID, -1 and _1 number repeats.
_ID_LAST = re.compile(rf"(.+?)[\W_]+({_ID})\)?")
_ID_FIRST = re.compile(rf"({_ID})[_|\-:; (]+(?!\d+$)(.+?)\)?")
# A symbol that is repeated more than nine times is the name of a family rather than of a gene.
_REPEATS = "123456789"
_NUMBERED = re.compile(rf"(.*[^.\-])([.\-])[{_REPEATS}]")
_ENTREZ_NUMBER = re.compile(r"(\d+)(?:\.0+)?")

# The first pattern that matches a name decides.
# Patterns of symbols use the letter case alone, as HGNC (CD3E, C1orf112) and MGI (Cd3e, mt-Nd1,
# 1700001G17Rik) write them.
_PATTERNS = (
    ("human Ensembl IDs", rf"ENSG\d{{11}}{_VERSION}"),
    ("mouse Ensembl IDs", rf"ENSMUSG\d{{11}}{_VERSION}"),
    ("Ensembl transcript IDs", r"ENS[A-Z]{0,6}T\d{11}(?:\.\d+)?"),
    ("Ensembl IDs of another species", r"ENS[A-Z]{3,6}G\d{11}(?:\.\d+)?"),
    (ENTREZ, _ENTREZ_NUMBER.pattern),
    ("human symbols", r"C[0-9XY]+orf\d+[A-Z0-9\-]*|(?=[^a-z\s]*[A-Z])[^a-z\s]+"),
    ("mouse symbols", r"mt-\w+|(?=\S*[a-z])[A-Z0-9]\S*"),
    ("lower-case symbols", r"(?=\S*[a-z])[^A-Z\s]+"),
)
_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in _PATTERNS)
# A list is of a kind if this share of its names is. Real lists have spike-ins, antibodies, clones.
_MAJORITY = 0.6
# A genome or a modality before a name, and something with a letter after it.
_DECORATIONS = (r"^([^\W_]+[^a-zA-Z0-9]+)(?=.)", r"(?<=.)([^a-zA-Z0-9]+[a-zA-Z]\w*)$")
# Names that are examined; more do not change the result.
_SAMPLE = 2000


def ensembl_id(name: str) -> str | None:
    """Remove the version of a human or mouse Ensembl gene ID; None for any other name.

    Examples
    --------
    >>> ensembl_id("ENSG00000198851.10")
    'ENSG00000198851'
    >>> ensembl_id("CD3E") is None
    True
    """
    match = _ENSEMBL_ID.fullmatch(name) if name.startswith("ENS") else None
    return match[1] if match else None


def split_composite(name: str) -> tuple[str, str] | None:
    """Split a composite name into its symbol and its other part; None for any other name.

    Examples
    --------
    >>> split_composite("HLA-A_ENSG00000206503.13")
    ('HLA-A', 'ENSG00000206503.13')
    >>> split_composite("ENSMUSG00000032093|Cd3e")
    ('Cd3e', 'ENSMUSG00000032093')
    >>> split_composite("TP53|7157")
    ('TP53', '7157')
    >>> split_composite("ENSG00000198851.10") is split_composite("HLA-A") is None
    True
    """
    if "ENS" in name and ensembl_id(name) is None:
        if match := _ID_LAST.fullmatch(name):
            return match[1], match[2]
        if match := _ID_FIRST.fullmatch(name):
            return match[2], match[1]
    symbol, bar, other = name.partition("|")
    return (symbol, other) if bar else None


def undecorated(names: pd.Index) -> pd.Index:
    """Take off what most names share: white space and quotes around them, a genome before them, a suffix.

    A prefix ends, and a suffix begins, with a character that is neither a letter nor a digit.

    Examples
    --------
    >>> list(undecorated(pd.Index(["GRCh38_CD3E", "GRCh38_HLA-DRA", "GRCh38_NKG7"])))
    ['CD3E', 'HLA-DRA', 'NKG7']
    >>> list(undecorated(pd.Index(["CD3E-RNA ", "HLA-DRA-RNA ", "MT-CO1-RNA "])))
    ['CD3E', 'HLA-DRA', 'MT-CO1']
    """
    # Bytes that were made text begin with a b.
    bare = (
        names.astype(str)
        .str.strip()
        .str.replace(r"""^b?(["'])(.*)\1$""", r"\2", regex=True)
    )
    for pattern in _DECORATIONS:
        while True:
            part = bare.str.extract(pattern, expand=False)
            shared = pd.Series(part).value_counts(normalize=True, dropna=False)
            if shared.empty or pd.isna(shared.index[0]) or shared.iloc[0] < _MAJORITY:
                break
            cut = str.removeprefix if pattern == _DECORATIONS[0] else str.removesuffix
            bare = pd.Index([cut(name, shared.index[0]) for name in bare], dtype=object)
    return bare


def describe_gene_names(names: Iterable[str]) -> str | None:
    """Recognise the kind of most names of a list.

    Parameters
    ----------
    names
        Gene names, in any order.

    Returns
    -------
    str or None
        One of "human Ensembl IDs", "mouse Ensembl IDs", "Ensembl IDs of another species", "Ensembl
        transcript IDs", "Entrez numbers", "row numbers" (0, 1, 2, …: the names were lost), "human
        symbols" (upper case, ``CD3E``), "mouse symbols" (capitalised, ``Cd3e``, like those of the
        rat) or "lower-case symbols". None if no kind makes up 60 % of the names.

    Examples
    --------
    >>> describe_gene_names(["CD3E", "C1orf112", "HLA-DRA"])
    'human symbols'
    >>> describe_gene_names(["ENSMUSG00000032093.7", "ENSMUSG00000032094.8"])
    'mouse Ensembl IDs'
    >>> describe_gene_names(["Cd3e", "CD3E"]) is None
    True
    """
    unique = [str(name) for name in dict.fromkeys(names)]
    sample = unique[:: max(1, len(unique) // _SAMPLE)]
    of_sample = [
        next((kind for kind, pattern in _COMPILED if pattern.fullmatch(name)), None)
        for name in sample
    ]
    kinds = pd.Series(of_sample, dtype=object).value_counts()
    if kinds.empty or kinds.iloc[0] < _MAJORITY * len(sample):
        return None
    n = len(unique)
    is_count = any(
        set(unique) == set(map(str, range(start, start + n))) for start in (0, 1)
    )
    return "row numbers" if is_count else str(kinds.index[0])


def hint_for_mismatch(
    query_names: Iterable[str],
    reference_names: Iterable[str],
    *,
    query: str = "the query",
    reference: str = "the model's",
    var: pd.DataFrame | None = None,
) -> str:
    """Explain why two lists of gene names do not match, and what to do about it.

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
    query_list, reference_list = list(query_names), list(reference_names)
    if var is not None:
        wanted = set(reference_list)
        shared = {
            column: len(wanted.intersection(names.names))
            for column, names in GeneList(query_list, var).columns
        }
        best = max(shared, key=shared.__getitem__, default=None)
        if best is not None and shared[best] > len(wanted.intersection(query_list)):
            return (
                f"var[{best!r}] of {query} fits better, so take that: adata.var_names = "
                f"adata.var[{best!r}].astype(str), then adata.var_names_make_unique()"
            )
    kind, other = describe_gene_names(query_list), describe_gene_names(reference_list)
    if kind == other:
        return ""
    if kind == "row numbers":
        return (
            f"names in {query} look like row numbers: they were lost in a conversion and must be "
            "set again, which tosica.io.from_seurat does for a Seurat object"
        )
    if kind is None or other is None:
        return ""
    return (
        f"names in {query} look like {kind} while {reference} look like {other}: translate them "
        "by tosica.gs.map_genes, and use the same species on both sides"
    )


# --------------------------------------------------------------------------- tables

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


class GeneTable:
    """Genes of one organism: their symbols, identifiers, aliases and orthologs.

    Most callers need the symbols only, so the other columns are parsed when they are first used.
    """

    def __init__(self, organism: str) -> None:
        resource = files("tosica.gs").joinpath(
            "resources", "genes", f"{organism}.tsv.gz"
        )
        self.organism = organism
        self._lines = gzip.decompress(resource.read_bytes()).decode().split("\n")[1:-1]
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
                genes |= {name: (gene,) for name, gene in _MITOCHONDRIAL.items()}
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
        return {row[0]: row[4] for row in self._rows if row[4]}

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
        if entrez and (number := _ENTREZ_NUMBER.fullmatch(name)):
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


# --------------------------------------------------------------------------- lists of names

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


class Resolved(NamedTuple):
    """Genes of a list of names.

    ``genes`` has the gene of each name, ``None`` if it is unknown or ambiguous, and ``kinds`` the
    kind of name that it was found as. ``ambiguous`` is a dict of name to possible genes.
    """

    genes: list[str | None]
    kinds: list[str | None]
    ambiguous: dict[str, tuple[str, ...]]


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
        self.names = pd.Index(
            ["" if pd.isna(name) else str(name) for name in names], dtype=object
        )
        self.var = var
        self._resolved: dict[tuple[str, bool], Resolved] = {}

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def columns(self) -> list[tuple[str, GeneList]]:
        """Other names of the genes: without what all share, and in text columns of ``var`` that distinguish rows."""
        columns = [] if self.var is None else list(self.var.items())
        bare = undecorated(self.names)
        others = [] if bare.equals(self.names) else [(UNDECORATED, GeneList(bare))]
        return others + [
            (column, GeneList(undecorated(pd.Index(values.astype(str)))))
            for column, values in columns
            if isinstance(column, str)
            and not pd.api.types.is_numeric_dtype(values.dtype)
            and not pd.api.types.is_datetime64_any_dtype(values.dtype)
            and values.nunique() > len(values) / 2
        ]

    @cached_property
    def kind(self) -> str | None:
        """Kind of the names, see :func:`describe_gene_names`."""
        return describe_gene_names(self.names)

    @cached_property
    def organism(self) -> str | None:
        """``"human"`` or ``"mouse"``, decided by overlap; None if it is not clear."""
        unique = list(dict.fromkeys(self.names))
        parts = [split_composite(name) or (name, name) for name in unique]
        ids = [gene_id for _, part in parts if (gene_id := ensembl_id(part))]
        # An Ensembl ID contains the organism, so a few are enough.
        if len(ids) > len(unique) / 2:
            n_mouse = sum(gene_id.startswith("ENSMUSG") for gene_id in ids)
            return _larger({"human": len(ids) - n_mouse, "mouse": n_mouse}, at_least=0)
        if len(unique) < _MIN_KNOWN:
            return None
        symbols = {symbol for symbol, _ in parts}
        n_known = {}
        for organism in ORGANISMS:
            table = gene_table(organism)
            known = (
                table.genes_of(ENTREZ).keys() if self.kind == ENTREZ else table.symbols
            )
            n_known[organism] = len(known & symbols)
            if n_known[organism] >= max(_MIN_KNOWN, _CLEAR_SHARE * len(unique)):
                return organism
        return _larger(
            n_known, at_least=max(_MIN_KNOWN, _MIN_KNOWN_SHARE * len(unique))
        )

    @cached_property
    def upper_case_mouse(self) -> list[str]:
        """Names that only the mouse has, if the names are mouse symbols in upper case."""
        unique = {name for name in self.names if not name.startswith("MT-")}
        human, mouse = gene_table("human"), gene_table("mouse")
        mouse_names = mouse.by_upper_case.keys() & unique
        if len(mouse_names) < len(unique) / 2:
            return []
        mouse_only = mouse_names - human.symbols - human.genes_of(ALIAS).keys()
        n_human_only = len((human.symbols & unique) - mouse.by_upper_case.keys())
        least = max(
            _MIN_MOUSE_ONLY,
            _MIN_MOUSE_ONLY_SHARE * len(unique),
            _MIN_RATIO * n_human_only,
        )
        return sorted(mouse_only) if len(mouse_only) >= least else []

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
            # R writes HLA.DRA for HLA-DRA.
            found |= {
                name: table.find(name.replace(".", "-"))
                for name in unknown
                if "." in name
            }
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


def _larger(counts: dict[str, int], *, at_least: float) -> str | None:
    """Return the organism with the larger count, if it is clearly larger."""
    best, other = sorted(ORGANISMS, key=lambda organism: -counts[organism])
    return best if counts[best] >= max(at_least, _MIN_RATIO * counts[other]) else None


def _find_composite(
    names: list[str], table: GeneTable, ignore_case: bool
) -> dict[str, Candidates]:
    """Find names such as SYMBOL_ENSG…: the gene that both parts share, or else all their genes."""
    split = {name: parts for name in names if (parts := split_composite(name))}
    found = {
        name: (
            table.find(symbol, ignore_case=ignore_case),
            table.find(other, entrez=True, ignore_case=ignore_case),
        )
        for name, (symbol, other) in split.items()
    }
    # Numbers are Entrez numbers if most of them are the gene of the symbol beside them.
    numbers = [
        (genes, others)
        for (genes, _), (others, kind) in found.values()
        if kind == ENTREZ and genes and others
    ]
    are_entrez = 2 * sum(
        not set(genes).isdisjoint(others) for genes, others in numbers
    ) > len(numbers)
    answers: dict[str, Candidates] = {}
    for name, ((genes, kind), (others, other_kind)) in found.items():
        if other_kind == ENTREZ and not are_entrez:
            others = ()
        if genes and others:
            shared = tuple(gene for gene in genes if gene in others)
            answers[name] = shared or tuple(dict.fromkeys(genes + others)), COMPOSITE
        elif genes or others:
            # An old symbol without a confirming ID counts as an alias.
            is_alias = kind == ALIAS and not others
            answers[name] = genes or others, ALIAS if is_alias else COMPOSITE
    return answers


def _find_numbered(
    names: list[str], table: GeneTable, known: set[str], ignore_case: bool
) -> dict[str, Candidates]:
    """Find names such as SYMBOL.1, if neither SYMBOL nor SYMBOL.2 is in the list.

    Otherwise SYMBOL.1 is another locus, or a repeat of the same gene.
    """
    numbered: dict[str, list[str]] = {}
    for name in names:
        split = _NUMBERED.fullmatch(name)
        if split is None:
            continue
        genes, kind = table.find(split[1], ignore_case=ignore_case)
        if len(genes) != 1 or kind not in (SYMBOL, ENSEMBL) or genes[0] in known:
            continue
        # NAV1.9 is an alias of SCN11A and not a repeat of NAV1. If the table has one name with this
        # stem and a number, other numbers may be genes of their own too.
        siblings = {split[1] + split[2] + digit for digit in _REPEATS}
        if not siblings & table.symbols and table.genes_of(ALIAS).keys().isdisjoint(
            siblings
        ):
            numbered.setdefault(genes[0], []).append(name)
    return {
        same[0]: ((gene,), NUMBERED)
        for gene, same in numbered.items()
        if len(same) == 1
    }
