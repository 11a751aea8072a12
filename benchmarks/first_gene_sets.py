"""First gene sets of each label, and their first genes.

``python -m benchmarks.first_gene_sets FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``docs/benchmarks/first_gene_sets.md`` and
``first_gene_sets.json``: results of ``tosica.tl.top_genes`` for models with defaults. There are no
scores: the page is to be judged by somebody who knows the cells.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

import tosica
from benchmarks._accuracy_tasks import LABEL, cite, few, kang, pbmc68k
from benchmarks._marker_readings import train
from benchmarks._report import table, version_lines, versions, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData

DATASETS: dict[str, tuple[str, Callable[[Path], AnnData]]] = {
    "kang": ("Kang, PBMCs, control and IFN-β", kang),
    "pbmc68k": ("pbmc68k, PBMCs", pbmc68k),
    "cite": ("CITE-seq PBMCs, RNA, labels by antibodies", cite),
}
# Gene sets of a label, and genes of a gene set.
N_GENE_SETS, N_GENES = 3, 4


def first_gene_sets(adata: AnnData, seed: int) -> list[dict[str, Any]]:
    """First gene sets of each label in the third of the cells that is not the reference."""
    ((reference, query),) = few(adata, adata.n_obs * 2 // 3, seed)
    model = train(reference, seed)
    model.annotate(query)
    tosica.tl.top_genes(query, model, LABEL, groups=kinds(query), n_gene_sets=N_GENE_SETS, n_genes=N_GENES)
    found = tosica.get.top_genes_df(query)
    n_cells = query.obs[LABEL].value_counts()
    return [
        {
            "label": str(label),
            "cells": int(n_cells[label]),
            "gene set": str(gene_set),
            "weight": float(of["gene_set_weight"].iloc[0]),
            "genes": list(of["gene"].astype(str)),
        }
        for (label, gene_set), of in found.groupby(["group", "gene_set"], sort=False, observed=True)
    ]


def kinds(adata: AnnData) -> list[str]:
    """Labels in alphabetical order."""
    return sorted(adata.obs[LABEL].astype(str).unique())


def report(result: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# First gene sets of each label",
        "",
        "Written by `python -m benchmarks.first_gene_sets`. Models with defaults are trained on "
        "two thirds of the cells, with the biological",
        "processes of the Gene Ontology. {func}`~tosica.tl.top_genes` lists the first "
        f"{N_GENE_SETS} gene sets of each label in the other cells, and the",
        f"first {N_GENES} genes of each gene set. The number in brackets is the mean presence: by "
        "how much the gene set raises the label's logit",
        "above the mean of all labels, before calibration. "
        "[Reading a model](../explanation.md#are-the-first-gene-sets-plausible) discusses the "
        "lists.",
        "",
    ]
    runs = pd.DataFrame(result["runs"])
    for name, of_data in runs.groupby("dataset", sort=False):
        rows = [
            [label, of["cells"].iloc[0], *map(_shown, of.to_dict("records"))]
            for label, of in of_data.groupby("label", sort=False)
        ]
        head = ["label", "cells", "first", "second", "third"]
        filled = [row + [""] * (len(head) - len(row)) for row in rows]
        lines += [f"## {DATASETS[name][0]}", "", *table(head, filled), ""]
    return "\n".join(lines + version_lines(result))


def _shown(row: dict[str, Any]) -> str:
    """A gene set, its weight and its genes; of names such as ``HLA-A_ENSG...`` the symbol."""
    genes = ", ".join(f"*{gene.split('_ENS')[0]}*" for gene in row["genes"])
    return f"{row['gene set']} ({row['weight']:.1f}): {genes}"


def main(arguments: list[str] | None = None) -> None:
    """Train, and write the page after every dataset."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning|scanpy")
    result: dict[str, Any] = {"versions": versions(), "seed": given.seed, "runs": []}
    for name in given.datasets:
        found = first_gene_sets(DATASETS[name][1](given.data), given.seed)
        result["runs"] += [{"dataset": name, **row} for row in found]
        write(given.out, "first_gene_sets", result, report(result))


if __name__ == "__main__":
    main()
