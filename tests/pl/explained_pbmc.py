"""Real cells with random attention, and invented results of all that is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from get.annotated_pbmc import annotated_pbmc

import tosica

if TYPE_CHECKING:
    from anndata import AnnData

GROUPBY = "bulk_labels"


def explained_pbmc(*, n_labels: int = 10, long_names: bool = False) -> AnnData:
    """Cells after ``annotate``, ``attribute``, ``rank_gene_sets``, ``faithfulness`` and so on."""
    adata = annotated_pbmc(n_labels=n_labels, long_names=long_names, n_gene_sets=80)
    rng = np.random.default_rng(0)
    adata.obs["tosica_novelty"] = rng.gamma(2.0, size=adata.n_obs)
    add_attribution(adata)
    tosica.tl.rank_gene_sets(adata, GROUPBY)
    tosica.pp.build_mask(adata, {f"set {i}": adata.var_names[38 * i :][:50] for i in range(20)})
    shares = np.array([0.0, 0.1, 0.5, 1.0])
    curves = [
        pd.DataFrame({"order": order, "change": change, "share": shares, "probability": probability})
        for power, order in ((8, "genes"), (4, "gene sets"), (1, "random"))
        for change, probability in (
            ("deletion", 0.9 * (1 - shares) ** power),
            ("insertion", 0.9 * shares ** (1 / power)),
        )
    ]
    adata.uns["faithfulness"] = {"curves": pd.concat(curves, ignore_index=True)}
    return adata


def add_attribution(adata: AnnData) -> None:
    """Write what ``tl.attribute(cells=True)`` would.

    Group i has evidence for the gene sets i, i + 2, i + 4, and i + 1, which is similar to the first
    one. The last of more than two groups has none, and lacks every second of its first genes.
    """
    rng = np.random.default_rng(1)
    groups, sets = list(adata.obs[GROUPBY].cat.categories), adata.uns["tosica"]["gene_sets"]
    names = [str(gene) for gene in adata.raw.var_names]
    z = rng.normal(size=(len(sets), len(groups)))
    genes = rng.normal(0, 0.02, size=(len(names), len(groups)))
    expression = rng.normal(size=genes.shape)
    rows = []
    for i, group in enumerate(groups):
        added = np.arange(12, 0, -1) / 12 + 0.5
        if len(groups) > 2 and i == len(groups) - 1:
            genes[:12, i], expression[:12:2, i] = added, -1
            continue
        for rank, j in enumerate((i, i + 1, i + 2, i + 4)):
            z[j, i] = 9 - 2 * rank
            first = np.arange(3 * j, 3 * j + 12)
            genes[first, i] = np.maximum(genes[first, i], added / (rank + 1))
            rows.append(
                {
                    "group": group,
                    "gene_set": sets[j],
                    "n_genes": 12,
                    "contribution": 8.0 - rank,
                    "score": 4.0 - rank,
                    "z": z[j, i],
                    "pval": 1e-6,
                    "pval_adj": 1e-4,
                    "genes": ", ".join(names[g] for g in first[:8]),
                    "similar_to": sets[i] if rank == 1 else "",
                }
            )
    evidence = pd.DataFrame(rows)
    shown = np.isin(sets, evidence["gene_set"])
    columns = [group.replace("/", "|") for group in groups]
    adata.uns["tosica_attribution"] = {
        "genes": pd.DataFrame(genes, names, columns),
        "expression": pd.DataFrame(expression, names, columns),
        "evidence": evidence,
        "z": pd.DataFrame(z[shown], sets[shown], columns),
        "contribution": pd.DataFrame(np.abs(z[shown]), sets[shown], columns),
        "gene_sets": sets,
        "groups": np.array(groups, dtype=object),
        "groupby": GROUPBY,
        "model": adata.uns["tosica"]["model"],
    }
    of_cells = rng.normal(0, 0.1, size=(adata.n_obs, len(sets)))
    of_cells += z.T[adata.obs[GROUPBY].cat.codes]
    adata.obsm["X_tosica_attribution"] = of_cells.astype(np.float32)


def history() -> dict[str, pd.DataFrame]:
    """Losses and accuracy of ten epochs, as ``model.history`` has them."""
    loss = 2 * np.exp(-np.arange(10) / 4) + 0.5
    columns = {
        "train_loss": loss,
        # The lowest is that of the eighth epoch.
        "validation_loss": loss - 0.2 + 0.2 * np.maximum(np.arange(10) - 7, 0) ** 2,
        "validation_accuracy": 1 - loss / 3,
    }
    return {name: pd.DataFrame({name: values}) for name, values in columns.items()}
