"""Make the slim of the Cell Ontology in `src/tosica/onto/resources`.

It has each cell type's identifier, name, parents (is a) and exact synonyms, and what replaces
obsolete ones. The source is the package `cellxgene-ontology-guide` on the Python index (98 MB),
which carries the release that the newest schema of CELLxGENE names. It has exact synonyms only; the
broad, narrow and related ones of the Cell Ontology are not in it.

Some synonyms that the Cell Ontology calls exact are used for other cells as well, so a label that
reads like one is no proof. They go to a column of their own, and tosica proposes them only:

- abbreviations: "IPC" is a plasmacytoid dendritic cell here, and an intermediate progenitor cell in
  the brain;
- names with words left out: "alpha cell" is an alpha retinal ganglion cell of the mouse here;
- names of thymocytes that do not say so: "double negative T cell" is a thymocyte here, and a T cell
  of the blood elsewhere;
- OTHER_USES, with the reason.

Those in REVIEWED stay exact.

    pip download --no-deps cellxgene-ontology-guide
    python scripts/make_cell_ontology.py cellxgene_ontology_guide-*.whl \
        --out src/tosica/onto/resources

Its file is compressed with zstandard, so this needs Python 3.14, the package `zstandard` or the
program `zstd`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

from tosica.onto._ontology import label_key

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "cell_ontology"
PREFIX = "CL:"
ROOT = "CL:0000000"
# What each version of the schema says of `cell_type_ontology_term_id`; obsolete terms are forbidden
# by all: https://github.com/chanzuckerberg/single-cell-curation, schema/<version>/schema.md.
FORBIDDEN = {"7.1.0": ["CL:0000255", "CL:0000257", "CL:0000548"]}
CITATION = [
    "Diehl et al. The Cell Ontology 2016: enhanced content, modularization, and ontology "
    "interoperability. Journal of Biomedical Semantics 7, 44 (2016), doi:10.1186/s13326-016-0088-7",
    "Tan et al. The Cell Ontology in the age of single-cell omics. arXiv:2506.10037 (2025)",
]
# Abbreviations and short names that stand for one type of cell in every tissue, as far as we know.
REVIEWED = {
    *(
        "B(reg)",
        "B-cell",
        "B-1 cell",
        "B1 cell",
        "GC B cell",
        "Breg",
        "CD19+ B cell",
        "PBMC",
        "WBC",
    ),
    *(
        "CD4+ TEMRA",
        "CD8+ TEMRA",
        "CD8+ Treg",
        "CD8+ regulatory T cell",
        "ILC2",
        "ILC3",
        "NK cell",
    ),
    *(
        "T(FH)",
        "T-cell",
        "TEMRA cell",
        "Tex cell",
        "Tfh",
        "Th1 cell",
        "Th17 cell",
        "Th2 cell",
    ),
    *(
        "Th22 cell",
        "Th9",
        "Treg",
        "exhausted CD4 T cell",
        "exhausted CD4-positive T cell",
        "iTreg",
    ),
    *(
        "exhausted CD8 T cell",
        "exhausted CD8-positive T cell",
        "mucosal invariant T cell",
        "nTreg",
    ),
    *("LT-HSC", "RBC", "ST-HSC", "cDC", "cTEC", "mTEC", "pDC", "transitional B cell"),
    *("Clara cell", "Ito cell", "LSEC", "VLMC", "VSMC", "alveolar epithelial cell"),
    *("cardiac fibroblast", "centrilobular hepatocyte", "lymphatic endothelial cell"),
    *(
        "macula densa cell",
        "mammary epithelial cell",
        "midzonal hepatocyte",
        "mucous neck cell",
    ),
    *(
        "parathyroid chief cell",
        "periportal hepatocyte",
        "salivary acinar cell",
        "iSPN",
        "D2-MSN",
    ),
    *("vascular endothelial cell", "vascular smooth muscle cell"),
}
OTHER_USES = {
    "activated astrocyte": "the term is of a mature one",
    "activated microglia": "the term is of a mature one",
    "adventitial reticular cell": "also fibroblasts",
    "blastomere": "any cell of a cleaving embryo",
    "brain-resident macrophage": "also macrophages at the borders of the brain",
    "chondroplast": "the term is an angioblast",
    "dendritic reticular cell": "often a follicular dendritic cell",
    "gonocyte": "also later germ cells",
    "hepatic macrophage": "also macrophages from monocytes",
    "lens cell": "the term is of cells that accumulate crystallin, which not all do",
    "liver macrophage": "also macrophages from monocytes",
    "lymphoid dendritic cell": "also conventional dendritic cells that express CD8",
    "macrocyte": "any large erythrocyte",
    "megalocyte": "any large erythrocyte",
    "myofiber": "the term is of a precursor",
    "myofibril": "a part of a cell",
    "nematoblast": "also a precursor of cnidocytes",
    "neonatal cardiomyocyte": "the term is fetal",
    "orexin": "a molecule",
    "osteoprogenitor cell": "the term is of a later stage",
    "oxyphil": "also cells of the parathyroid gland",
    "plasmacytoid monocyte": "an old name",
    "plasmacytoid T cell": "an old name",
    "projection neuron": "not all are pyramidal neurons",
    "pulmonary myofibroblast": "the term is of all interstitial fibroblasts",
    "quiescent microglia": "the term is of an immature one",
    "reactive microglia": "the term is of a mature one",
    "resting microglia": "the term is of an immature one",
    "retinal stem cell": "the term is of a blast cell",
    "spongioblast": "also other cells of the nervous system",
    "stalk cell": "the term is of the ovary of flies; also a cell of growing vessels",
    "T-associated plasma cell": "an old name",
}
# Words that do not tell one type of cell from another.
_NO_MEANING = {"cell", "of", "the", "a", "an"}


def main(argv: Sequence[str] | None = None) -> None:
    """Read the wheel, write the table, its description and the checksums, print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path, help="wheel of cellxgene-ontology-guide")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    args = parser.parse_args(argv)
    try:
        description = build(args.wheel, args.out)
    except (OSError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    size = (args.out / f"{NAME}.tsv.gz").stat().st_size
    print(
        f"{description['n_terms']} terms, {description['n_synonyms']} synonyms, {size} bytes"
    )


def build(wheel: Path, out: Path) -> dict[str, Any]:
    """Write the files to the folder ``out``; return the content of the JSON file."""
    terms, schema, release = read_wheel(wheel)
    if schema not in FORBIDDEN:
        raise ValueError(
            f"{wheel.name} is of schema {schema}, which is not in FORBIDDEN: add the terms that "
            "this version forbids for cell_type_ontology_term_id."
        )
    parents = find_parents(terms)
    rows = []
    n_synonyms = 0
    n_inexact = 0
    for term in sorted(terms):
        row = terms[term]
        if row["deprecated"]:
            replacements = row.get("consider", [])
            if "replaced_by" in row:
                replacements = [row["replaced_by"]]
            name = row["label"].removeprefix("obsolete ")
            rows.append([term, name, "", "", "", "|".join(sorted(replacements)) or "-"])
        elif term in parents:
            synonyms = sorted(set(row.get("synonyms", [])) - {row["label"]})
            inexact = [name for name in synonyms if is_inexact(name, row["label"])]
            exact = [name for name in synonyms if name not in inexact]
            n_synonyms += len(exact)
            n_inexact += len(inexact)
            above = "|".join(sorted(parents[term]))
            rows.append(
                [term, row["label"], above, "|".join(exact), "|".join(inexact), ""]
            )
    head = ["id", "name", "parents", "synonyms", "inexact_synonyms", "obsolete_use"]
    text = "".join("\t".join(shorten(cells)) + "\n" for cells in [head, *rows])
    path = out / f"{NAME}.tsv.gz"
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    description = {
        "name": NAME,
        "source": "Cell Ontology",
        "release": release,
        "licence": "CC BY 4.0",
        "licence_url": "https://creativecommons.org/licenses/by/4.0/",
        "url": "https://github.com/obophenotype/cell-ontology",
        "citation": CITATION,
        "schema": f"CELLxGENE schema {schema}",
        "forbidden": FORBIDDEN[schema],
        "n_terms": len(parents),
        "n_obsolete": len(rows) - len(parents),
        "n_synonyms": n_synonyms,
        "n_inexact_synonyms": n_inexact,
        "changes": (
            "made by scripts/make_cell_ontology.py: cell types with names, parents (is a) and "
            "exact synonyms; no definitions, no other relations, no parts of cells; some exact "
            "synonyms are set apart, because they are used for other cells as well"
        ),
        "made_from": f"{wheel.name}, SHA-256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}",
        # Hash of the text, since other versions of zlib compress to other bytes.
        "sha256_tsv": hashlib.sha256(text.encode()).hexdigest(),
    }
    described = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    (out / f"{NAME}.json").write_text(described, encoding="utf-8", newline="\n")
    sums = [(out / f"{NAME}.{end}") for end in ("json", "tsv.gz")]
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sums
    ]
    (out / "SHA256SUMS").write_text("".join(lines), encoding="utf-8", newline="\n")
    return description


def read_wheel(wheel: Path) -> tuple[dict[str, Any], str, str]:
    """Terms of the Cell Ontology, version of the newest schema, and release of the ontology."""
    try:
        with ZipFile(wheel) as archive:
            (info,) = [
                n for n in archive.namelist() if n.endswith("data/ontology_info.json")
            ]
            schemas = json.loads(archive.read(info))
            schema = max(
                schemas,
                key=lambda version: [int(number) for number in version.split(".")],
            )
            release = schemas[schema]["ontologies"]["CL"]["version"]
            pattern = re.compile(
                rf".*/CL-ontology-{re.escape(release)}\.json(\.gz|\.zst)?"
            )
            (name,) = [n for n in archive.namelist() if pattern.fullmatch(n)]
            terms = json.loads(decompress(archive.read(name), Path(name).suffix))
    except (BadZipFile, KeyError) as error:
        raise ValueError(
            f"{wheel} is no wheel of cellxgene-ontology-guide: {error}."
        ) from error
    return terms, schema, release.removeprefix("v")


def decompress(content: bytes, suffix: str) -> bytes:
    """Decompress a file of the wheel by the suffix of its name."""
    if suffix == ".gz":
        return gzip.decompress(content)
    if suffix != ".zst":
        return content
    if sys.version_info >= (3, 14):
        return importlib.import_module("compression.zstd").decompress(content)
    try:
        return (
            importlib.import_module("zstandard")
            .ZstdDecompressor()
            .decompressobj()
            .decompress(content)
        )
    except ModuleNotFoundError:
        program = shutil.which("zstd")
    if program is None:
        raise ValueError(
            "the ontology is compressed with zstandard: install the package zstandard or the program zstd."
        )
    return subprocess.run(
        [program, "-dc"], input=content, check=True, capture_output=True
    ).stdout


def find_parents(terms: dict[str, Any]) -> dict[str, list[str]]:
    """Parents of each cell type; terms that are no cell, such as kinds of cytoplasm, are left out.

    The source has the distance of all ancestors: parents are at a distance of 1.
    """
    parents = {
        term: [above for above, distance in row["ancestors"].items() if distance == 1]
        for term, row in terms.items()
        if term.startswith(PREFIX) and not row["deprecated"]
    }
    if ROOT not in parents:
        raise ValueError(f"The ontology has no {ROOT}, which is above all cell types.")
    cells = {ROOT}
    while True:
        below = {term for term, above in parents.items() if cells & set(above)}
        if below <= cells:
            return {term: [a for a in parents[term] if a in cells] for term in cells}
        cells |= below


def is_inexact(synonym: str, name: str) -> bool:
    """Whether a synonym may be used for other cells, see the top of this file."""
    if synonym in OTHER_USES:
        return True
    if label_key(synonym) in {*map(label_key, REVIEWED), label_key(name)}:
        return False
    if "thym" in name and "thym" not in synonym:
        return True
    words = set(label_key(synonym).split()) - _NO_MEANING
    return (
        is_abbreviation(synonym) or words < set(label_key(name).split()) - _NO_MEANING
    )


def is_abbreviation(synonym: str) -> bool:
    """Whether a synonym has no word in full: "IPC", "K cell", "type 2 DC"."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", synonym) if word]
    words = [word for word in words if word.lower() not in ("cell", "cells")]
    return all(len(word) <= 5 for word in words) and not all(map(str.islower, words))


def shorten(cells: list[str]) -> list[str]:
    """Check that no cell of a row breaks the table, and leave the prefix out of identifiers."""
    if any("\t" in cell or "\n" in cell for cell in cells):
        raise ValueError(f"The names of {cells[0]} have a tab or a line break.")
    return [
        cells[0].removeprefix(PREFIX),
        cells[1],
        cells[2].replace(PREFIX, ""),
        *cells[3:],
    ]


if __name__ == "__main__":
    main()
