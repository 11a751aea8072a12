"""Real cells with random attention, and invented results of all that is drawn."""

import numpy as np
import pandas as pd
from get.annotated_pbmc import annotated_pbmc

import tosica

GROUPBY = "bulk_labels"


def explained_pbmc(*, n_labels=10, long_names=False, ending=""):
    """Cells after ``annotate``, ``attribute``, ``rank_gene_sets``, ``faithfulness`` and so on.

    All names of labels, phases, gene sets and genes have the ``ending``.
    """
    adata = annotated_pbmc(n_labels=n_labels, long_names=long_names, n_gene_sets=80)
    if ending:
        _append(adata, ending)
    rng = np.random.default_rng(0)
    adata.obs["tosica_novelty"] = rng.gamma(2.0, size=adata.n_obs)
    add_attribution(adata)
    tosica.tl.rank_gene_sets(adata, GROUPBY)
    tosica.pp.build_mask(
        adata, {f"set {i}": adata.var_names[38 * i :][:50] for i in range(20)}
    )
    share = np.array([0.0, 0.1, 0.5, 1.0])
    curves = [
        pd.DataFrame(
            {
                "order": order,
                "change": change,
                "share": share,
                "probability": probability,
            }
        )
        for power, order in ((8, "genes"), (4, "gene sets"), (1, "random"))
        for change, probability in (
            ("deletion", (1 - share) ** power),
            ("insertion", share ** (1 / power)),
        )
    ]
    adata.uns["faithfulness"] = {"curves": pd.concat(curves, ignore_index=True)}
    return adata


def _append(adata, ending):
    for column in (GROUPBY, "tosica_prediction", "phase"):
        adata.obs[column] = adata.obs[column].cat.rename_categories(
            lambda name: name + ending
        )
    for name in ("gene_sets", "labels"):
        adata.uns["tosica"][name] = adata.uns["tosica"][name] + ending
    raw = adata.raw.to_adata()
    for cells in (adata, raw):
        cells.var_names = cells.var_names + ending
    adata.raw = raw


def add_attribution(adata):
    """Write what ``tl.attribute(cells=True)`` would.

    Group i has evidence for the gene sets i, i + 20, i + 40, and i + 1, which is similar to the first
    one. The last of more than two groups has none, and lacks every second of its first genes.
    """
    rng = np.random.default_rng(1)
    groups, sets = (
        list(adata.obs[GROUPBY].cat.categories),
        adata.uns["tosica"]["gene_sets"],
    )
    names = np.array(adata.raw.var_names, dtype=object)
    z = rng.normal(size=(len(sets), len(groups)))
    genes = rng.normal(0, 0.02, size=(len(names), len(groups)))
    expression = rng.normal(size=genes.shape)
    added = np.linspace(1.5, 0.6, 12)
    genes[:12, -1], expression[:12:2, -1] = added, -1
    rows = []
    for i in range(len(groups) - (len(groups) > 2)):
        for rank, j in enumerate(j % len(sets) for j in (i, i + 1, i + 20, i + 40)):
            z[j, i] = 9 - 2 * rank
            members = np.arange(3 * j, 3 * j + 12)
            genes[members, i] = np.maximum(genes[members, i], added / (rank + 1))
            similar = sets[i] if rank == 1 else ""
            values = (12, 8.0 - rank, z[j, i], 1e-4)
            rows.append(
                (groups[i], sets[j], *values, ", ".join(names[members[:8]]), similar)
            )
    columns = "group gene_set n_genes contribution z pval_adj genes similar_to"
    evidence = pd.DataFrame(rows, columns=columns.split())
    has_evidence, columns = (
        np.isin(sets, evidence["gene_set"]),
        [group.replace("/", "|") for group in groups],
    )
    adata.uns["tosica_attribution"] = {
        "genes": pd.DataFrame(genes, names, columns),
        "expression": pd.DataFrame(expression, names, columns),
        "evidence": evidence,
        "z": pd.DataFrame(z[has_evidence], sets[has_evidence], columns),
        "contribution": pd.DataFrame(
            np.abs(z[has_evidence]), sets[has_evidence], columns
        ),
        "gene_sets": sets,
        "groups": np.array(groups, dtype=object),
        "groupby": GROUPBY,
        "model": adata.uns["tosica"]["model"],
    }
    of_cells = (
        rng.normal(0, 0.1, size=(adata.n_obs, len(sets)))
        + z.T[adata.obs[GROUPBY].cat.codes]
    )
    adata.obsm["X_tosica_attribution"] = of_cells.astype(np.float32)


def history():
    """Losses and accuracy of ten epochs, as ``model.history`` has them."""
    loss = 2 * np.exp(-np.arange(10) / 4) + 0.5
    # The lowest is that of the eighth epoch.
    validation = loss - 0.2 + 0.2 * np.maximum(np.arange(10) - 7, 0) ** 2
    columns = {
        "train_loss": loss,
        "validation_loss": validation,
        "validation_accuracy": 1 - loss / 3,
    }
    return {name: pd.DataFrame({name: values}) for name, values in columns.items()}
