"""Is the gene set that separates two classes found, and by which reading of the model?

`python -m benchmarks.planted --seeds 20` prints, for each reading, in how many seeds the planted
gene set ranks first for the class that raises it, and its median rank. Counts are made up: 800
cells, 600 genes, 30 random sets of 20 genes, of which one has four times the expression in one of
two classes.
"""

from __future__ import annotations

import argparse
import logging

import numpy as np
import pandas as pd
import scvi
import torch
from anndata import AnnData

import tosica

N_CELLS, N_GENES, N_SETS, SET_SIZE, FOLD, DEPTH = 800, 600, 30, 20, 4.0, 1_000


def planted(seed: int) -> tuple[AnnData, dict[str, list[str]], str]:
    """Counts of two classes, the gene sets, and the name of the one that separates them."""
    rng = np.random.default_rng(seed)
    genes = np.array([f"GENE{i}" for i in range(N_GENES)])
    members = [rng.choice(N_GENES, SET_SIZE, replace=False) for _ in range(N_SETS)]
    truth = int(rng.integers(N_SETS))
    raised = np.arange(N_CELLS) < N_CELLS // 2
    rate = np.tile(rng.gamma(0.6, size=N_GENES) + 0.05, (N_CELLS, 1))
    rate *= DEPTH / rate[0].sum()
    rate[np.ix_(raised, members[truth])] *= FOLD
    rate *= rng.lognormal(0, 0.3, (N_CELLS, 1))
    labels = pd.Categorical(np.where(raised, "raised", "other"))
    adata = AnnData(
        rng.poisson(rate).astype(np.float32),
        obs=pd.DataFrame({"label": labels}, index=[f"cell{i}" for i in range(N_CELLS)]),
        var=pd.DataFrame(index=genes),
    )
    sets = {f"set {i}": list(genes[rows]) for i, rows in enumerate(members)}
    return adata, sets, f"set {truth}"


def ranks(seed: int, *, n_unannotated: int, trained: bool = True) -> dict[str, float]:
    """Rank of the planted gene set by each reading, and the accuracy on cells not trained on."""
    adata, sets, truth = planted(seed)
    held_out = np.arange(N_CELLS) % 2 == 1
    reference, query = adata[~held_out].copy(), adata[held_out].copy()
    scvi.settings.seed = seed
    tosica.pp.build_mask(reference, sets, n_unannotated=n_unannotated)
    tosica.TOSICA.setup_anndata(reference, labels_key="label")
    model = tosica.TOSICA(reference)
    model.train(max_epochs=None if trained else 1, accelerator="cpu", enable_progress_bar=False)
    if not trained:
        torch.manual_seed(seed)
        model.module = type(model)(reference).module.eval()
    model.annotate(query)
    tosica.tl.weight_attention(query, model)
    # Which cells are of the class is known here; what the model says of them is what is read.
    found = {"accuracy": float((query.obs["tosica_prediction"] == query.obs["label"]).mean())}
    for name, key in {"attention": "tosica", "weighted attention": "tosica_weighted"}.items():
        tosica.tl.rank_gene_sets(query, "label", groups=["raised"], key=key)
        table = tosica.get.rank_gene_sets_df(query, "raised")
        found[f"{name}, rank-sum test"] = float(table["gene_set"].eq(truth).argmax() + 1)
        by_effect = table.sort_values("effect_size", ascending=False)
        found[f"{name}, effect size"] = float(by_effect["gene_set"].eq(truth).argmax() + 1)
        found[f"{name}, mean"] = _rank(query, truth, key)
    tosica.tl.attribute(query, model, target="raised")
    found["attribution, mean"] = _rank(query, truth, "tosica_attribution")
    record = query.uns["tosica_attribution"]
    found["completeness error"] = record["completeness_error"]
    found["unannotated share"] = record["unannotated_share"]
    return found


def _rank(query: AnnData, truth: str, key: str) -> float:
    means = tosica.get.mean_attention(query, "label", key=key).loc["raised"]
    return float(means.rank(ascending=False)[truth])


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """How often each reading puts the planted set first, and its median rank."""
    readings = [name for name in table if "," in name]
    return pd.DataFrame(
        {
            "first": (table[readings] == 1).sum(),
            "of": len(table),
            "median rank": table[readings].median(),
        }
    )


def main() -> None:
    """Run all seeds and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--unannotated", type=int, default=0)
    parser.add_argument("--untrained", action="store_true")
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    rows = []
    for seed in range(arguments.seeds):
        rows.append(
            ranks(seed, n_unannotated=arguments.unannotated, trained=not arguments.untrained)
        )
        print(seed, rows[-1], flush=True)
    table = pd.DataFrame(rows)
    print(summary(table).to_string())
    others = ["accuracy", "completeness error", "unannotated share"]
    print(table[others].describe().loc[["mean", "min", "max"]].to_string())


if __name__ == "__main__":
    main()
