"""Detection of a planted gene set by each reading of the model.

``python -m benchmarks.planted`` from the repository's root writes
``docs/benchmarks/planted.md`` and ``planted.json``. For each reading of the model, it counts in how
many of 20 seeds the planted gene set ranks first for its class, with its median rank. It also
counts the gene sets that a test reports between two conditions that do not differ. Counts are
simulated: 800 cells, 600 genes, and 30 random sets of 20 genes, of which one has four times the
expression in one of two classes.
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scvi
import torch
from anndata import AnnData

import tosica
from benchmarks._report import processor, versions, write
from benchmarks._report import table as markdown_table

N_CELLS, N_GENES, N_SETS, SET_SIZE, FOLD, DEPTH = 800, 600, 30, 20, 4.0, 1_000


N_SAMPLES, SAMPLE_SIZE, SAMPLE_EFFECT = 8, 50, 0.2
# Arguments of `train`; all others are defaults.
TRAINING: dict[str, Any] = {}
# Fewer than the default, because the score is nearly linear along these paths.
N_STEPS = 8
READINGS = {
    "attention": "tosica",
    "weighted attention": "tosica_weighted",
    "attribution": "tosica_attribution",
    "presence": "tosica_presence",
}


def planted(seed: int) -> tuple[AnnData, dict[str, list[str]], str]:
    """Counts of two classes, the gene sets, and the name of the one that separates them."""
    rng = np.random.default_rng(seed)
    genes = np.array([f"GENE{i}" for i in range(N_GENES)])
    members = [rng.choice(N_GENES, SET_SIZE, replace=False) for _ in range(N_SETS)]
    truth = int(rng.integers(N_SETS))
    raised = np.arange(N_CELLS) < N_CELLS // 2
    base = _base(rng)
    rate = np.tile(base, (N_CELLS, 1))
    rate[np.ix_(raised, members[truth])] *= FOLD
    rate *= rng.lognormal(0, 0.3, (N_CELLS, 1))
    labels = pd.Categorical(np.where(raised, "raised", "other"))
    adata = _counts(rng, rate, genes, pd.DataFrame({"label": labels}))
    adata.uns["base"] = base
    sets = {f"set {i}": list(genes[rows]) for i, rows in enumerate(members)}
    return adata, sets, f"set {truth}"


def alike(adata: AnnData, seed: int) -> AnnData:
    """Cells of one class, in samples of two conditions without an effect of the condition."""
    rng = np.random.default_rng(1_000 + seed)
    sample = np.repeat(np.arange(N_SAMPLES), SAMPLE_SIZE)
    rate = adata.uns["base"] * rng.lognormal(0, SAMPLE_EFFECT, (N_SAMPLES, N_GENES))[sample]
    rate = rate * rng.lognormal(0, 0.3, (len(sample), 1))
    condition = np.where(sample % 2, "stimulated", "control")
    obs = pd.DataFrame({"sample": sample.astype(str), "condition": condition})
    return _counts(rng, rate, adata.var_names, obs)


def _base(rng: np.random.Generator) -> np.ndarray:
    base = rng.gamma(0.6, size=N_GENES) + 0.05
    return base * DEPTH / base.sum()


def _counts(rng: np.random.Generator, rate: np.ndarray, genes: Any, obs: pd.DataFrame) -> AnnData:
    obs.index = [f"cell{i}" for i in range(len(obs))]
    return AnnData(rng.poisson(rate).astype(np.float32), obs=obs, var=pd.DataFrame(index=genes))


def one_seed(seed: int, *, n_unannotated: int) -> dict[str, float]:
    """Rank of the planted gene set by each reading, accuracy, and properties of the model."""
    adata, sets, truth = planted(seed)
    held_out = np.arange(N_CELLS) % 2 == 1
    reference, query = adata[~held_out].copy(), adata[held_out].copy()
    scvi.settings.seed = seed
    tosica.pp.build_mask(reference, sets, n_unannotated=n_unannotated)
    tosica.TOSICA.setup_anndata(reference, labels_key="label")
    model = tosica.TOSICA(reference)
    model.train(accelerator="cpu", enable_progress_bar=False, **TRAINING)
    model.annotate(query)
    tosica.tl.weight_attention(query, model)
    tosica.tl.attribute(query, model, target="raised", n_steps=N_STEPS)
    # Groups are the true classes, not predictions.
    found = {"accuracy": float((query.obs["tosica_prediction"] == query.obs["label"]).mean())}
    for name, key in READINGS.items():
        tosica.tl.rank_gene_sets(query, "label", groups=["raised"], key=key)
        by_test = tosica.get.rank_gene_sets_df(query, "raised")
        found[f"{name}, rank-sum test"] = float(by_test["gene_set"].eq(truth).argmax() + 1)
        means = tosica.get.mean_attention(query, "label", key=key).loc["raised"]
        found[f"{name}, mean"] = float(means.rank(ascending=False)[truth])
    record = query.uns["tosica_attribution"]
    found["completeness error"] = record["completeness_error"]
    found["linear share"] = record["linear_share"]
    found["unannotated share"] = record["unannotated_share"]
    found["modules"] = float(sum(name.startswith("module: ") for name in model.gene_sets))
    return found | reported_where_nothing_differs(model, alike(adata, seed))


def reported_where_nothing_differs(model: tosica.TOSICA, query: AnnData) -> dict[str, float]:
    """Share of the gene sets with an FDR below 5 %, with samples and with cells as replicates."""
    model.annotate(query)
    found = {}
    for name, sample_key in {"samples": "sample", "cells": None}.items():
        tosica.tl.rank_gene_sets(
            query,
            "condition",
            groups=["stimulated"],
            reference="control",
            sample_key=sample_key,
            key="tosica",
        )
        table = tosica.get.rank_gene_sets_df(query)
        found[f"reported, {name}"] = float((table["pval_adj"] < 0.05).mean())
    return found


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """How often each reading ranks the planted set first, and its median rank."""
    readings = [name for name in table if name.rpartition(", ")[0] in READINGS]
    return pd.DataFrame(
        {
            "first": (table[readings] == 1).sum(),
            "of": len(table),
            "median rank": table[readings].median(),
            "worst rank": table[readings].max(),
        }
    )


def report(result: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# Planted gene sets",
        "",
        f"Written by `python -m benchmarks.planted`. The data are {N_CELLS} cells with simulated "
        f"counts of {N_GENES} genes, half of them",
        f"for training. There are {N_SETS} random sets of {SET_SIZE} genes. One set has {FOLD:g} "
        "times the expression in one of two classes,",
        "and nothing else differs. Models have defaults; genes in no set are in modules, unless a "
        "token has every gene. The tables",
        f"show how often each reading ranks the planted set first in {result['settings']['seeds']} seeds.",
        "",
        "| reading | definition |",
        "| --- | --- |",
        "| rank-sum test | {func}`~tosica.tl.rank_gene_sets` of the class's cells against the others |",
        "| mean | mean of the class's cells, without a comparison |",
        "| attribution, presence | {func}`~tosica.tl.attribute` of all cells with the class as "
        "`target`, compared with the mean cell of the reference |",
        "",
    ]
    for n_unannotated, rows in result["runs"].items():
        frame = pd.DataFrame(rows)
        tokens = "no unannotated token" if n_unannotated == "0" else "one unannotated token"
        lines += [
            f"## With {tokens}{' (the default)' if n_unannotated == '0' else ''}",
            "",
            *markdown_table(
                ["reading", "first", "median rank", "worst rank"],
                [
                    [
                        name,
                        f"{row['first']:.0f} of {row['of']:.0f}",
                        row["median rank"],
                        row["worst rank"],
                    ]
                    for name, row in summary(frame).iterrows()
                ],
            ),
            "",
            *markdown_table(
                ["property of the models", "value"],
                [
                    [
                        "accuracy on the other half of the cells",
                        f"{frame['accuracy'].mean():.2f} ({frame['accuracy'].min():.2f} to "
                        f"{frame['accuracy'].max():.2f})",
                    ],
                    ["gene sets", N_SETS],
                    ["mean number of modules", f"{frame['modules'].mean():.0f}"],
                    [
                        "share of the linear branch in the attribution",
                        f"{frame['linear share'].mean():.0%}",
                    ],
                    [
                        "share of unannotated tokens in the attribution",
                        f"{frame['unannotated share'].mean():.0%}",
                    ],
                    ["largest completeness error", f"{frame['completeness error'].max():.1e}"],
                ],
            ),
            "",
        ]
    everything = pd.concat([pd.DataFrame(rows) for rows in result["runs"].values()])
    lines += [
        "## False positives",
        "",
        f"There are {N_SAMPLES} samples of {SAMPLE_SIZE} cells of one class, four in each "
        "condition. Samples differ (each gene by a factor",
        f"of about {np.exp(SAMPLE_EFFECT):.1f}), but conditions do not. The table has the share of "
        "gene sets that {func}`~tosica.tl.rank_gene_sets`",
        f"reports by attention at an FDR of 5 %, as a mean over {len(everything)} models:",
        "",
        *markdown_table(
            ["replicates", "reported"],
            [
                ["samples (`sample_key`)", f"{everything['reported, samples'].mean():.1%}"],
                ["cells", f"{everything['reported, cells'].mean():.1%}"],
            ],
        ),
        "",
        "## Versions",
        "",
        *markdown_table(
            ["", ""],
            [[key, str(value)] for key, value in (result["machine"] | result["settings"]).items()],
        ),
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run all seeds, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--unannotated", type=int, nargs="+", default=[0, 1])
    given = parser.parse_args(arguments)
    logging.disable(logging.INFO)
    start = time.process_time()
    runs: dict[str, list[dict[str, float]]] = {}
    for n_unannotated in given.unannotated:
        rows = runs.setdefault(str(n_unannotated), [])
        for seed in range(given.seeds):
            rows.append(one_seed(seed, n_unannotated=n_unannotated))
            print(n_unannotated, seed, rows[-1], flush=True)
    result = {
        "machine": {"processor": processor()} | versions(),
        "settings": {
            "seeds": given.seeds,
            "unannotated tokens": given.unannotated,
            "training": TRAINING or "default",
            "threads": torch.get_num_threads(),
            "processor seconds": round(time.process_time() - start),
        },
        "runs": runs,
    }
    write(given.out, "planted", result, report(result))


if __name__ == "__main__":
    main()
