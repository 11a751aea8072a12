"""Write an annotation into the AnnData or MuData of a query."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica._constants import UNKNOWN
from tosica._logging import logger
from tosica._validation import file_columns

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData

# The grey that scanpy gives to missing values.
_UNKNOWN_COLOR = "#d3d3d3"
# A warning is logged if more than this share of cells have a p-value of novelty up to 0.05.
_UNLIKELY, _MANY_UNLIKELY = 0.05, 0.3


def write_annotation(
    adata: AnnData | MuData,
    probabilities: np.ndarray,
    attention: np.ndarray,
    *,
    labels: list[str],
    colors: list[str],
    gene_sets: list[str],
    novelty: np.ndarray | None = None,
    novelty_pvalues: np.ndarray | None = None,
    modalities: list[str] | None = None,
    cutoff: float,
    all_probabilities: bool,
    fingerprint: str,
    key_added: str,
) -> None:
    """Write labels, probabilities, attention, and the metadata of the model.

    Only labels that occur become categories: ``sc.tl.rank_genes_groups`` fails on a category
    without cells. The full list is in ``adata.uns[key_added]["labels"]``.

    Parameters
    ----------
    adata
        The query, an AnnData or a MuData.
    probabilities
        Shape ``(n_obs, n_labels)``.
    attention
        Shape ``(n_obs, n_gene_sets)``.
    labels, colors
        Labels of the model, and their colours.
    gene_sets
        Names of the gene sets.
    novelty, novelty_pvalues
        Score of each cell and its p-value, ``(n_obs,)``, if the model has any.
    modalities
        Modality of each gene set, if the model has several.
    cutoff
        Cells whose largest probability is below this are called "Unknown".
    all_probabilities
        Whether to write the probability of every label.
    fingerprint
        Fingerprint of the model.
    key_added
        Part of all keys, as in :meth:`tosica.TOSICA.annotate`.
    """
    best = probabilities.argmax(1)
    probability = probabilities[np.arange(len(best)), best]
    code = np.where(probability < cutoff, len(labels), best)
    names = np.array([*labels, UNKNOWN], dtype=object)
    occurring = np.unique(code)
    prediction = pd.Categorical(names[code], categories=names[occurring])

    adata.obs[f"{key_added}_prediction"] = prediction
    adata.obs[f"{key_added}_probability"] = probability.astype(np.float32)
    adata.obsm[f"X_{key_added}"] = attention
    keys = [
        f".obs['{key_added}_prediction']",
        f".obs['{key_added}_probability']",
        f".obsm['X_{key_added}']",
    ]
    # Scores of an earlier call belong to other labels.
    for name in ("novelty", "novelty_pvalue", "novelty_cluster", "novelty_cluster_pvalue"):
        if f"{key_added}_{name}" in adata.obs:
            del adata.obs[f"{key_added}_{name}"]
    if novelty is not None and novelty_pvalues is not None:
        adata.obs[f"{key_added}_novelty"] = novelty.astype(np.float32)
        adata.obs[f"{key_added}_novelty_pvalue"] = novelty_pvalues.astype(np.float32)
        keys += [f".obs['{key_added}_novelty']", f".obs['{key_added}_novelty_pvalue']"]
    # The table of an earlier call would contradict the new labels.
    adata.obsm.pop(f"{key_added}_probabilities", None)
    if all_probabilities:
        adata.obsm[f"{key_added}_probabilities"] = pd.DataFrame(
            probabilities, index=adata.obs_names, columns=file_columns(labels, "the model")
        )
        keys.append(f".obsm['{key_added}_probabilities']")
    adata.uns[f"{key_added}_prediction_colors"] = [
        [*colors[: len(labels)], _UNKNOWN_COLOR][i] for i in occurring
    ]
    adata.uns[key_added] = {
        "gene_sets": np.array(gene_sets, dtype=object),
        "labels": np.array(labels, dtype=object),
        "cutoff": float(cutoff),
        "model": fingerprint,
        "version": version("tosica"),
    }
    if modalities is not None:
        adata.uns[key_added]["modalities"] = np.array(modalities, dtype=object)
    if novelty_pvalues is not None and (novelty_pvalues <= _UNLIKELY).mean() > _MANY_UNLIKELY:
        logger.warning(
            "annotate: %.0f %% of the cells are as far from every label as at most %.0f %% of the "
            "reference's cells are. Another batch or technology has this effect as well as new "
            "types: tosica.tl.novelty(adata, model) takes off what the query has in common",
            100 * (novelty_pvalues <= _UNLIKELY).mean(),
            100 * _UNLIKELY,
        )
    logger.info("annotate: added %s and .uns['%s']", ", ".join(keys), key_added)
