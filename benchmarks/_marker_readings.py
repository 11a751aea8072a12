"""Readings of a model of which the right answer is known: the markers of a label explain the label.

Each reading is a table of labels × tokens. Beside those of the model there are two that look at
expression alone, with the same gene sets.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scanpy as sc
import scvi
import torch

import tosica
from benchmarks._accuracy_tasks import LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anndata import AnnData

COLLECTION = "human_gobp"
# Genes of a marker set; explained cells of a label; integration points, few because the score is
# nearly linear along the path.
N_MARKERS, N_CELLS, N_STEPS = 30, 60, 8
# First gene sets of a label that are compared between models.
N_LEADING = 10
READINGS = {
    "presence, mean": "presence, mean",
    "attribution, mean": "attribution, mean",
    "attention, mean": "attention, mean",
    "attention, test": "attention, rank-sum test",
    "weighted attention, mean": "weighted attention, mean",
    "weighted attention, test": "weighted attention, rank-sum test",
    "ulm": "*expression alone: decoupler's ULM*",
    "score_genes": "*expression alone: `sc.tl.score_genes`*",
}


def marker_name(label: str) -> str:
    """Name of a label's marker set."""
    return f"markers of {label}"


def marker_sets(adata: AnnData) -> dict[str, list[str]]:
    """The first genes of scanpy's t-test of each label against the rest."""
    n_cells = adata.obs[LABEL].value_counts()
    labels = [str(label) for label in n_cells.index[n_cells > 1]]
    # The test needs two cells.
    ranked = adata[adata.obs[LABEL].isin(labels)].copy()
    sc.tl.rank_genes_groups(ranked, LABEL)
    names = ranked.uns["rank_genes_groups"]["names"]
    return {marker_name(label): list(names[label][:N_MARKERS]) for label in labels}


def build_mask(reference: AnnData, markers: dict[str, list[str]] | None = None) -> None:
    """The default mask, with sets of markers as well.

    Similar sets are removed from the collection only, before the marker sets are added. So all
    marker sets are kept, even if those of two labels are similar.
    """
    with warnings.catch_warnings(action="ignore"):
        tosica.pp.build_mask(reference, COLLECTION)
        if not markers:
            return
        sets = tosica.gs.load(COLLECTION)
        kept = {name: sets[name] for name in reference.uns["tosica_mask"]["gene_sets"]}
        tosica.pp.build_mask(reference, kept | markers, identifiers="map", max_jaccard=1)
    lost = set(markers) - set(reference.uns["tosica_mask"]["gene_sets"])
    if lost:
        raise RuntimeError(f"The mask lacks {', '.join(sorted(lost))}.")


def train(reference: AnnData, seed: int, markers: dict[str, list[str]] | None = None) -> tosica.TOSICA:
    """Train a model with defaults."""
    build_mask(reference, markers)
    with warnings.catch_warnings(action="ignore"):
        tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
        # Set before each training, because scanpy's tools change the number of threads of torch.
        torch.set_num_threads(1)
        scvi.settings.seed = seed
        model = tosica.TOSICA(reference)
        model.train(accelerator="cpu", enable_progress_bar=False)
    return model


def contributions(model: tosica.TOSICA, cells: AnnData, labels: list[str]) -> dict[str, pd.DataFrame]:
    """Mean presence and attribution of annotated cells of each label, for the label's score."""
    rng = np.random.default_rng(0)
    found: dict[str, list[np.ndarray]] = {"presence": [], "attribution": []}
    for label in labels:
        rows = np.flatnonzero((cells.obs[LABEL] == label).to_numpy())
        part = cells[np.sort(rng.permutation(rows)[:N_CELLS])].copy()
        tosica.tl.attribute(part, model, target=label, n_steps=N_STEPS)
        for name, means in found.items():
            means.append(part.obsm[f"X_tosica_{name}"].mean(0))
    return {name: pd.DataFrame(np.stack(means), index=labels, columns=model.gene_sets) for name, means in found.items()}


def readings(model: tosica.TOSICA, cells: AnnData, labels: list[str]) -> dict[str, pd.DataFrame]:
    """All readings of labelled cells, each as a table of labels × tokens."""
    model.annotate(cells)
    tosica.tl.weight_attention(cells, model)
    found = {f"{k}, mean": v for k, v in contributions(model, cells, labels).items()}
    for name, key in {"attention": "tosica", "weighted attention": "tosica_weighted"}.items():
        means = tosica.get.mean_attention(cells, LABEL, key=key)
        found[f"{name}, mean"] = means.loc[labels]
        tosica.tl.rank_gene_sets(cells, LABEL, groups=labels, key=key)
        tested = tosica.get.rank_gene_sets_df(cells).astype({"group": str, "gene_set": str})
        found[f"{name}, test"] = tested.pivot(index="group", columns="gene_set", values="score")
    found["score_genes"] = above_others(score_genes(model, cells), cells).loc[labels]
    if find_spec("decoupler") is not None:
        found["ulm"] = above_others(univariate_linear_model(model, cells), cells).loc[labels]
    return {name: found[name] for name in READINGS if name in found}


def genes_of_tokens(model: tosica.TOSICA) -> Iterator[tuple[str, list[str]]]:
    """Name and genes of each token."""
    embedding, names = model.module.embedding, np.asarray(model.get_var_names())
    indptr, genes = embedding.indptr.tolist(), embedding.genes.numpy()
    for p, name in enumerate(model.gene_sets):
        yield name, list(names[genes[indptr[p] : indptr[p + 1]]])


def score_genes(model: tosica.TOSICA, cells: AnnData) -> pd.DataFrame:
    """Score of each token's genes in each cell by scanpy."""
    scored = cells.copy()
    found = {}
    for name, genes in genes_of_tokens(model):
        sc.tl.score_genes(scored, genes, score_name="score")
        found[name] = scored.obs["score"].to_numpy()
    return pd.DataFrame(found, index=cells.obs_names)


def univariate_linear_model(model: tosica.TOSICA, cells: AnnData) -> pd.DataFrame:
    """Score of each token's genes in each cell by decoupler (Badia-i-Mompel et al., 2022)."""
    import decoupler

    pairs = [(name, gene) for name, genes in genes_of_tokens(model) for gene in genes]
    net = pd.DataFrame(pairs, columns=["source", "target"]).assign(weight=1.0)
    scored = cells.copy()
    decoupler.mt.ulm(scored, net, tmin=1)
    return pd.DataFrame(scored.obsm["score_ulm"], index=cells.obs_names)


def above_others(scores: pd.DataFrame, cells: AnnData) -> pd.DataFrame:
    """Mean of each label's cells minus that of all others, labels × tokens."""
    labels = cells.obs[LABEL].astype(str).to_numpy()
    return pd.DataFrame(
        {label: scores[labels == label].mean() - scores[labels != label].mean() for label in np.unique(labels)}
    ).T


def own_ranks(found: dict[str, pd.DataFrame], label: str) -> tuple[dict, dict]:
    """Rank of the label's own markers by each reading, and the first gene set.

    If the markers are not a token, the rank is the number of tokens plus one.
    """
    own = marker_name(label)
    ranks, first = {}, {}
    for name, table in found.items():
        row = table.loc[label]
        placed = row.rank(ascending=False)
        ranks[name] = float(placed[own]) if own in placed.index else float(len(row) + 1)
        first[name] = str(row.idxmax())
    return ranks, first


def leading(model: tosica.TOSICA, cells: AnnData, labels: list[str]) -> dict[str, set[str]]:
    """The gene sets with the largest mean presence of each label."""
    annotated = cells.copy()
    model.annotate(annotated)
    presence = contributions(model, annotated, labels)["presence"]
    return {label: set(presence.loc[label].nlargest(N_LEADING).index) for label in labels}


def jaccard(first: set[str], second: set[str]) -> float:
    """Jaccard index."""
    return len(first & second) / len(first | second)


def deletion_areas(model: tosica.TOSICA, cells: AnnData, n_cells: int) -> dict[str, float]:
    """Area under the probability of the best label while gene sets are removed."""
    some = np.random.default_rng(0).permutation(cells.n_obs)[:n_cells]
    query = cells[np.sort(some)].copy()
    model.annotate(query)
    tosica.tl.attribute(query, model, n_steps=N_STEPS)
    tosica.tl.faithfulness(query, model, n_cells=n_cells)
    table = query.uns["faithfulness"]["area"]
    return dict(zip(table["order"], map(float, table["area"]), strict=True))
