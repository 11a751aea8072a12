"""Build the gene set collection `human_gobp` from two Bioconductor annotation databases.

A gene set is a Gene Ontology term of the domain biological process. It has all genes that are
annotated to the term or to a term below it (is a, part of, regulates), with any evidence code.
Genes are symbols of NCBI Gene, of every gene type. Terms with too few or too many genes are
dropped. Of several terms with the same genes, the most specific one is kept, which has the fewest
terms below it, then the lowest identifier.

The databases of Bioconductor 3.20 do not name the release of the ontology. It is found by the
number of terms, which the Gene Ontology Consortium announces with each release.

Debian 13 has the databases (3.20). Neither R nor root is needed to unpack them:

    apt-get download r-bioc-org.hs.eg.db r-bioc-go.db
    for package in r-bioc-*.deb; do dpkg -x "$package" bioc; done
    python scripts/build_human_gobp.py \
        --org-db bioc/usr/lib/R/site-library/org.Hs.eg.db/extdata/org.Hs.eg.sqlite \
        --go-db bioc/usr/lib/R/site-library/GO.db/extdata/GO.sqlite \
        --out src/tosica/gs/resources
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosica.gs import read_gmt, write_gmt

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "human_gobp"
NEEDED_METADATA = [
    "DBSCHEMA",
    "GOSOURCEDATE",
    "GOSOURCEURL",
    "GOEGSOURCEDATE",
    "GOEGSOURCENAME",
    "GOEGSOURCEURL",
]
# Number of terms of the releases that a database may contain without naming them, as announced at
# https://github.com/geneontology/go-announcements/issues (776, 851, 899).
RELEASE_OF_N_TERMS = {42_203: "2024-06-10", 40_939: "2024-09-08", 40_635: "2024-11-03"}
CITATION = [
    "Ashburner et al. Gene Ontology: tool for the unification of biology. "
    "Nature Genetics 25, 25-29 (2000), doi:10.1038/75556",
    "The Gene Ontology Consortium. The Gene Ontology knowledgebase in 2026. "
    "Nucleic Acids Research 54, D1779-D1792 (2026), doi:10.1093/nar/gkaf1292",
]


def main(argv: Sequence[str] | None = None) -> None:
    """Read the databases, write `human_gobp.gmt.gz` and `human_gobp.json`, print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--org-db", type=Path, required=True, help="org.Hs.eg.sqlite")
    parser.add_argument("--go-db", type=Path, required=True, help="GO.sqlite")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the two files"
    )
    parser.add_argument(
        "--min-genes", type=int, default=10, help="default: %(default)s"
    )
    parser.add_argument(
        "--max-genes", type=int, default=300, help="default: %(default)s"
    )
    args = parser.parse_args(argv)
    try:
        metadata = build(
            args.org_db,
            args.go_db,
            args.out,
            min_genes=args.min_genes,
            max_genes=args.max_genes,
        )
    except (OSError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    size = (args.out / f"{NAME}.gmt.gz").stat().st_size
    print(f"{metadata['n_sets']} sets of {metadata['n_genes']} genes, {size} bytes")


def build(
    org_db: Path, go_db: Path, out: Path, *, min_genes: int = 10, max_genes: int = 300
) -> dict[str, Any]:
    """Write the collection to the folder ``out``; return the content of its JSON file."""
    org_metadata = read_metadata(org_db)
    go_metadata = read_metadata(go_db)
    if org_metadata.get("ORGANISM") != "Homo sapiens":
        raise ValueError(f"{org_db} is not about Homo sapiens; take org.Hs.eg.sqlite.")
    for key in ("GOSOURCEDATE", "GOEGSOURCEDATE"):
        if org_metadata[key] != go_metadata[key]:
            raise ValueError(
                f"The databases are of different Gene Ontology releases ({org_metadata[key]} and "
                f"{go_metadata[key]}); take both packages from one Bioconductor release."
            )
    release, release_known_by = find_release(go_db, go_metadata)

    all_genes = read_genes(org_db)
    names, n_below = read_terms(go_db)
    sized = {
        go: genes
        for go, genes in all_genes.items()
        if min_genes <= len(genes) <= max_genes
    }
    if not sized:
        raise ValueError(f"No term of {org_db} has {min_genes} to {max_genes} genes.")
    nameless = sorted(sized.keys() - names.keys())
    if nameless:
        raise ValueError(
            f"{go_db} has no biological process {nameless[0]}, which {org_db} uses."
        )
    specific = keep_most_specific(sized, n_below)
    # Sorted by name for readers, and because similar names next to each other compress better.
    order = sorted(specific, key=lambda go: (names[go], go))
    gene_sets = {names[go]: list(specific[go]) for go in order}
    if len(gene_sets) != len(order):
        raise ValueError(f"Two biological processes of {go_db} share a name.")

    path = out / f"{NAME}.gmt.gz"
    write_gmt(gene_sets, path, descriptions={names[go]: go for go in order})
    # The metadata describe the gene sets as they are read back.
    gene_sets = read_gmt(path)
    metadata = {
        "name": NAME,
        "source": "Gene Ontology, biological process",
        "release": f"GO {release}",
        "release_known_by": release_known_by,
        "date": iso_date(org_metadata["GOEGSOURCEDATE"]),
        "licence": "CC BY 4.0",
        "licence_url": "https://creativecommons.org/licenses/by/4.0/",
        "url": "http://geneontology.org",
        "citation": CITATION,
        "organism": org_metadata["ORGANISM"],
        "identifier": "gene symbol",
        "n_sets": len(gene_sets),
        "n_genes": len({gene for genes in gene_sets.values() for gene in genes}),
        "min_genes": min_genes,
        "max_genes": max_genes,
        "evidence": "all evidence codes",
        "propagation": "genes of all terms below a term count: is a, part of, regulates",
        "changes": (
            f"made by scripts/build_human_gobp.py: terms of {min_genes} to {max_genes} genes; "
            f"of terms with identical genes the most specific one "
            f"({len(sized) - len(specific)} others left out); genes as symbols of NCBI Gene, "
            "all gene types; the description field is the GO identifier"
        ),
        "made_from": [
            describe_package("org.Hs.eg.db", org_db, org_metadata),
            describe_package("GO.db", go_db, go_metadata),
        ],
        # Hash of the text, since other versions of zlib compress to other bytes.
        "sha256_gmt": hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest(),
    }
    text = json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"
    (out / f"{NAME}.json").write_text(text, encoding="utf-8", newline="\n")
    return metadata


def query(path: Path, statement: str) -> list[tuple[Any, ...]]:
    """Query a database, opened for reading only; return all rows."""
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no database {path}; see --help for where to get it."
        )
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        ) as database:
            return database.execute(statement).fetchall()
    except sqlite3.DatabaseError as error:
        raise ValueError(
            f"{path} is not the database that is needed: {error}."
        ) from error


def read_metadata(path: Path) -> dict[str, str]:
    """Read Bioconductor's table on the origin of the data."""
    metadata = dict(query(path, "SELECT name, value FROM metadata"))
    missing = [key for key in NEEDED_METADATA if key not in metadata]
    if missing:
        raise ValueError(
            f"The metadata of {path} lack {missing[0]}; take it from Bioconductor."
        )
    return metadata


def find_release(go_db: Path, metadata: dict[str, str]) -> tuple[str, str]:
    """Find the release of the Gene Ontology in a database, and say how it was found."""
    if metadata["GOSOURCEDATE"]:
        return metadata["GOSOURCEDATE"], "the metadata of the databases"
    # The only other term is "all", above the three domains.
    ((n_terms,),) = query(
        go_db, "SELECT COUNT(*) FROM go_term WHERE ontology IN ('BP', 'CC', 'MF')"
    )
    if n_terms not in RELEASE_OF_N_TERMS:
        raise ValueError(
            f"{go_db} does not name its Gene Ontology release, and none is known to have its "
            f"{n_terms} terms: add the one that has to RELEASE_OF_N_TERMS."
        )
    return RELEASE_OF_N_TERMS[n_terms], (
        f"the number of terms, {n_terms}, as in the announcement of this release; the databases do not name it"
    )


def read_genes(org_db: Path) -> dict[str, tuple[str, ...]]:
    """GO identifier to sorted gene symbols, propagated to all terms above."""
    symbols = dict(query(org_db, "SELECT _id, symbol FROM gene_info"))
    genes: dict[str, set[str]] = {}
    for gene, go in query(org_db, "SELECT _id, go_id FROM go_bp_all"):
        genes.setdefault(go, set()).add(symbols[gene])
    return {go: tuple(sorted(members)) for go, members in genes.items()}


def read_terms(go_db: Path) -> tuple[dict[str, str], dict[str, int]]:
    """GO identifier to name, and to the number of terms below, of all biological processes."""
    names = dict(query(go_db, "SELECT go_id, term FROM go_term WHERE ontology = 'BP'"))
    n_below = dict(
        query(
            go_db,
            "SELECT go_id, COUNT(*) FROM go_bp_offspring JOIN go_term USING (_id) GROUP BY go_id",
        )
    )
    return names, n_below


def keep_most_specific(
    genes: dict[str, tuple[str, ...]], n_below: dict[str, int]
) -> dict[str, tuple[str, ...]]:
    """Keep one of the terms with the same genes, the one with the fewest terms below it."""
    best: dict[tuple[str, ...], str] = {}
    for go in sorted(genes, key=lambda go: (n_below.get(go, 0), go)):
        best.setdefault(genes[go], go)
    return {go: members for members, go in best.items()}


def iso_date(text: str) -> str:
    """`2022-09-12` for Bioconductor's `2022-Sep12`."""
    try:
        return datetime.strptime(text, "%Y-%b%d").date().isoformat()
    except ValueError:
        return text


def describe_package(name: str, path: Path, metadata: dict[str, str]) -> dict[str, str]:
    """Name, version and dates of a Bioconductor package, from its own files."""
    described = {"package": name, "schema": metadata["DBSCHEMA"]}
    # The version is not in the database, but in this file of an unpacked package.
    description = path.parent.parent / "DESCRIPTION"
    if description.is_file():
        for line in description.read_text(encoding="utf-8").splitlines():
            if line.startswith("Version:"):
                described["version"] = line.removeprefix("Version:").strip()
            elif line.startswith("Packaged:"):
                described["packaging_date"] = line.removeprefix("Packaged:").split()[0]
    ontology = {
        "ontology_date": metadata["GOSOURCEDATE"],
        "ontology_url": metadata["GOSOURCEURL"],
    }
    return described | {
        **{key: value for key, value in ontology.items() if value},
        "annotation_date": iso_date(metadata["GOEGSOURCEDATE"]),
        "annotation_source": metadata["GOEGSOURCENAME"],
        "annotation_url": metadata["GOEGSOURCEURL"],
    }


if __name__ == "__main__":
    main()
