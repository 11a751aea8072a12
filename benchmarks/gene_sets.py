"""Effect of the selection of gene sets on accuracy and redundancy.

``python -m benchmarks.gene_sets`` from the repository's root writes
``docs/benchmarks/gene_sets.md`` and ``gene_sets.json``. Only references are used: with each seed, a
third of a reference's cells, stratified by label, is held out and annotated by a model of the
others. Queries of other benchmarks are not used.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import scanpy as sc
import scvi
import torch
from scipy.sparse import csr_matrix
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import train_test_split

import tosica
from benchmarks._report import table, version_lines, versions, write

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 300
# Arguments of `build_mask`. With the last rule, the model selects the sets by the labels.
RULES: dict[str, dict[str, Any]] = {
    "largest": {"max_gene_sets": MOST, "max_jaccard": 1.0},
    "largest, max_jaccard=0.5": {"max_gene_sets": MOST, "max_jaccard": 0.5},
    "coverage, max_jaccard=0.5": {
        "max_gene_sets": MOST,
        "select": "coverage",
        "max_jaccard": 0.5,
    },
    "variable, max_jaccard=0.5": {
        "max_gene_sets": MOST,
        "select": "variable",
        "max_jaccard": 0.5,
    },
    "by the labels, max_jaccard=0.5 (default)": {},
}
DESCRIBED = ["gene sets", "share of genes", "median genes", "median Jaccard"]
SCORES = ["accuracy", "macro-F1"]


def pbmc68k(_: Path) -> tuple[ad.AnnData, str]:
    """700 PBMCs that come with scanpy, log-normalised."""
    return sc.datasets.pbmc68k_reduced().raw.to_adata(), "bulk_labels"


def kang(data: Path) -> tuple[ad.AnnData, str]:
    """Unstimulated PBMCs of Kang et al. (2018), counts."""
    adata = ad.read_h5ad(data / "kang_pbmc.h5ad")
    return adata[adata.obs["group_id"] == "ctrl"].copy(), "cluster_id"


REFERENCES: dict[str, tuple[str | None, Callable[[Path], tuple[ad.AnnData, str]]]] = {
    "PBMCs (scanpy)": (None, pbmc68k),
    "PBMCs, control (Kang)": ("kang_pbmc.h5ad", kang),
}


def seconds_to_build(select: str, *, repeats: int = 3) -> float:
    """Least CPU seconds for the mask of 20 000 genes and 16 000 sets of 100 of them."""
    genes = np.array([f"GENE{i}" for i in range(20_000)], dtype=object)
    drawn = genes[np.random.default_rng(0).integers(0, len(genes), (16_000, 100))].tolist()
    sets = {f"set {i}": members for i, members in enumerate(drawn)}
    taken = []
    for _ in range(repeats):
        adata = ad.AnnData(csr_matrix((2, len(genes)), dtype=np.float32))
        adata.var_names = genes
        started = process_time()
        tosica.pp.build_mask(adata, sets, max_gene_sets=MOST, select=select)
        taken.append(process_time() - started)
    return min(taken)


def one_run(adata: ad.AnnData, labels_key: str, seed: int, **rule: Any) -> dict[str, float]:
    """Select sets and train on two thirds; describe the tokens, score the other third."""
    truth = adata.obs[labels_key].astype(str).to_numpy()
    train, test = train_test_split(
        np.arange(adata.n_obs), test_size=1 / 3, stratify=truth, random_state=seed
    )
    reference = adata[train].copy()
    tosica.pp.build_mask(reference, **rule)
    tosica.TOSICA.setup_anndata(reference, labels_key=labels_key)
    scvi.settings.seed = seed
    # Modules would compensate for missing genes, and the linear branch for the network.
    model = tosica.TOSICA(reference, linear=False, modules=False, max_gene_sets=MOST)
    mask = tosica.get.mask_coverage(of_tokens(reference, model))
    model.train(accelerator="cpu", enable_progress_bar=False)
    found = model.predict(adata[test])
    return {
        "gene sets": len(mask),
        "share of genes": float(mask["n_covered"].iloc[-1] / reference.n_vars),
        "median genes": float(mask["n_genes"].median()),
        "median Jaccard": float(mask["max_jaccard"].median()),
        "accuracy": float(accuracy_score(truth[test], found)),
        "macro-F1": float(f1_score(truth[test], found, average="macro")),
    }


def of_tokens(reference: ad.AnnData, model: tosica.TOSICA) -> ad.AnnData:
    """The genes of the reference, with a mask of the gene sets that are tokens."""
    names = reference.uns["tosica_mask"]["gene_sets"]
    chosen = np.flatnonzero(np.isin(names, model.gene_sets))
    masked = ad.AnnData(var=reference.var[[]])
    masked.varm["tosica_mask"] = reference.varm["tosica_mask"][:, chosen]
    masked.uns["tosica_mask"] = reference.uns["tosica_mask"] | {"gene_sets": names[chosen]}
    return masked


def report(result: dict[str, Any]) -> str:
    """The page."""
    runs = pd.DataFrame(result["runs"])
    base = runs[runs["rule"] == next(iter(RULES))].set_index(["reference", "seed"])[SCORES]
    lines = [
        "# Choosing gene sets",
        "",
        f"Written by `python -m benchmarks.gene_sets`. Each rule selects at most {MOST} sets of "
        "`human_gobp`. Networks without linear",
        "branch, modules and unannotated token are trained with defaults. There are "
        f"{runs['seed'].nunique()} seeds, each with its own third of the",
        "reference held out. Scores are percentages: mean ± standard deviation over the seeds, and "
        "in brackets the mean",
        "difference to the first rule (that of the paper) with the same seed. The Jaccard index is "
        "that of each set with the",
        "most similar one.",
    ]
    for reference, of_reference in runs.groupby("reference", sort=False):
        rows = []
        for rule, part in of_reference.groupby("rule", sort=False):
            gap = part.set_index(["reference", "seed"])[SCORES] - base.loc[[reference]]
            rows.append(
                [
                    rule,
                    *(float(part[name].mean()) for name in DESCRIBED),
                    *(
                        f"{100 * part[s].mean():.1f} ± {100 * part[s].std():.1f} "
                        f"({100 * gap[s].mean():+.1f})"
                        for s in SCORES
                    ),
                ]
            )
        lines += ["", f"## {reference}", "", *table(["rule", *DESCRIBED, *SCORES], rows)]
    gaps = runs.set_index(["reference", "seed"])[SCORES] - base.reindex(
        pd.MultiIndex.from_frame(runs[["reference", "seed"]])
    )
    gaps["rule"] = runs["rule"].to_numpy()
    means = 100 * gaps.groupby("rule", sort=False).mean()
    errors = 100 * gaps.groupby("rule", sort=False).sem()
    rows = [
        [rule, *(f"{means.loc[rule, s]:+.1f} ± {errors.loc[rule, s]:.1f}" for s in SCORES)]
        for rule in means.index[1:]
    ]
    lines += [
        "",
        "## All references",
        "",
        "The table has the difference to the first rule in percentage points, mean ± standard "
        "error.",
        "",
        *table(["rule", *SCORES], rows),
        "",
        "## Speed",
        "",
        "CPU seconds of `build_mask` for 20 000 genes and 16 000 sets of 100 genes: "
        + ", ".join(f"{seconds:.2f} ({name})" for name, seconds in result["seconds"].items())
        + ".",
        "",
        *version_lines(result),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--references", nargs="+", choices=list(REFERENCES), default=[*REFERENCES])
    given = parser.parse_args(arguments)
    # More threads do not pay for references of this size.
    torch.set_num_threads(1)
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="(?!benchmarks)")
    runs = []
    for title in given.references:
        file, read = REFERENCES[title]
        if file is not None and not (given.data / file).exists():
            print(f"{title}: skipped, {given.data / file} is not there")
            continue
        adata, labels_key = read(given.data)
        for seed in range(given.seeds):
            for name, rule in RULES.items():
                found = one_run(adata, labels_key, seed, **rule)
                runs.append({"reference": title, "rule": name, "seed": seed, **found})
                print(title, seed, name, *(f"{v:.3g}" for v in found.values()), flush=True)
    seconds = {name: seconds_to_build(name) for name in ("largest", "coverage")}
    result = {"runs": runs, "seconds": seconds, "versions": versions()}
    write(given.out, "gene_sets", result, report(result))


if __name__ == "__main__":
    main()
