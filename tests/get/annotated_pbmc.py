"""700 real cells with random attention, as `model.annotate` would leave them."""

import numpy as np
import pandas as pd
import scanpy as sc

N_GENE_SETS = 60
LONG_NAME = "positive regulation of antigen receptor-mediated signaling pathway of T cell subset "


def planted(code):
    """Name of the gene set that the label with this code attends to five times as much."""
    return f"gene set {code:02d}"


def annotated_pbmc(
    *, key="tosica", n_labels=10, n_gene_sets=N_GENE_SETS, long_names=False, seed=0
):
    """Annotated cells: gene set i is planted in label i, the rest is noise.

    With 10 labels, these are the cells' own; 1 in 20 cells is predicted wrongly, 1 in 20 Unknown.
    Otherwise labels are drawn at random.
    """
    rng = np.random.default_rng(seed)
    adata = sc.datasets.pbmc68k_reduced()
    if n_labels != 10:
        names = [f"cell type {i}" for i in range(n_labels)]
        # Each label has cells, for as many as there are labels come first.
        codes = np.concatenate(
            [
                np.repeat(np.arange(n_labels), 2),
                rng.integers(n_labels, size=700 - 2 * n_labels),
            ]
        )
        adata.obs["bulk_labels"] = pd.Categorical.from_codes(codes, names)
        palettes = sc.pl.palettes
        palette = palettes.default_20 if n_labels <= 20 else palettes.default_102
        adata.uns["bulk_labels_colors"] = list(palette[:n_labels])
    labels = adata.obs["bulk_labels"].cat
    names, codes = list(labels.categories), labels.codes.to_numpy(dtype=np.int64).copy()
    wrong = rng.random(adata.n_obs) < 0.05
    codes[wrong] = rng.integers(n_labels, size=wrong.sum())
    unknown = rng.random(adata.n_obs) < 0.05

    attention = rng.gamma(4.0, size=(adata.n_obs, n_gene_sets))
    attention[np.arange(adata.n_obs), codes % n_gene_sets] *= 5
    attention *= 0.6 / attention.sum(axis=1, keepdims=True)

    prediction = np.array(names, dtype=object)[codes]
    prediction[unknown] = "Unknown"
    colors = [str(color) for color in adata.uns["bulk_labels_colors"]]
    adata.obs[f"{key}_prediction"] = pd.Categorical(prediction, [*names, "Unknown"])
    adata.obs[f"{key}_probability"] = rng.uniform(0.5, 1, adata.n_obs).astype(
        np.float32
    )
    adata.obsm[f"X_{key}"] = attention.astype(np.float32)
    # What cells add by each gene set looks the same.
    adata.obsm[f"X_{key}_attribution"] = attention.astype(np.float32)
    adata.uns[f"{key}_prediction_colors"] = [*colors, "#bfbfbf"]
    prefix = LONG_NAME if long_names else ""
    adata.uns[key] = {
        "gene_sets": np.array(
            [prefix + planted(i) for i in range(n_gene_sets)], dtype=object
        ),
        "labels": np.array(names, dtype=object),
        "cutoff": 0.1,
        "model": "0123456789abcdef",
        "version": "0.1.0",
    }
    adata.uns[f"{key}_attribution"] = {
        n: adata.uns[key][n] for n in ("gene_sets", "model")
    }
    return adata
