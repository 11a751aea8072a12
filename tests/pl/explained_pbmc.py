"""Real cells with random attention and presence, and invented results of all that is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from get.annotated_pbmc import add_presence, annotated_pbmc

import tosica

if TYPE_CHECKING:
    from anndata import AnnData

GROUPBY = "bulk_labels"


def explained_pbmc(*, n_labels: int = 10, long_names: bool = False) -> AnnData:
    """Cells after ``annotate``, ``attribute``, ``rank_gene_sets``, ``top_genes`` and so on."""
    adata = add_presence(annotated_pbmc(n_labels=n_labels, long_names=long_names, n_gene_sets=80))
    rng = np.random.default_rng(0)
    adata.obs["tosica_novelty"] = rng.gamma(2.0, size=adata.n_obs)
    tosica.tl.rank_gene_sets(adata, GROUPBY)
    names = adata.uns["tosica"]["gene_sets"]
    genes = adata.raw.var_names
    rows = []
    for i, group in enumerate(adata.obs[GROUPBY].cat.categories):
        # Neighbouring groups share gene sets, and gene sets share genes.
        for j in range(4):
            p = (i + 2 * j) % len(names)
            chosen = genes[[(3 * p + k) % len(genes) for k in range(6)]]
            rows += [(group, names[p], 4.0 - j, gene, 1 / (k + 1)) for k, gene in enumerate(chosen)]
    columns = ["group", "gene_set", "gene_set_weight", "gene", "gene_weight"]
    adata.uns["top_genes"] = {
        "table": pd.DataFrame(rows, columns=columns),
        "params": {"groupby": GROUPBY, "by": "attribution", "key": "tosica"},
    }
    shares = np.array([0.0, 0.1, 0.5, 1.0])
    powers = {"attention": 3, "weighted attention": 2, "attribution": 8, "presence": 6, "random": 1}
    curves = [
        pd.DataFrame({"order": name, "share": shares, "probability": 0.9 * (1 - shares) ** power})
        for name, power in powers.items()
    ]
    tosica.pp.build_mask(adata, {f"set {i}": adata.var_names[38 * i :][:50] for i in range(20)})
    adata.uns["faithfulness"] = {
        "curves": pd.concat(curves, ignore_index=True),
        "area": pd.DataFrame({"order": list(powers), "area": [0.3, 0.4, 0.1, 0.2, 0.5]}),
    }
    return adata


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
