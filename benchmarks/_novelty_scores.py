"""Other scores of novelty: large values indicate a new type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scanpy as sc
import scvi
import torch
from anndata import AnnData
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from tosica.tl._majority_vote import over_cluster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    import tosica

# Components of the genes, and cells of a label that a difference of batches is estimated from.
N_COMPONENTS, MIN_CELLS = 30, 5
# Temperature of LogitNorm, as its authors set it for CIFAR-10.
LOGIT_NORM = 0.04


def latent_and_logits(model: tosica.TOSICA, adata: AnnData) -> tuple[NDArray, NDArray]:
    """Class token and logits of the network."""
    latent = model.get_latent_representation(adata)
    head = model.module.head
    return latent, latent @ head.weight.detach().numpy().T + head.bias.detach().numpy()


def energy(logits: NDArray) -> NDArray:
    """Energy of the logits (Liu et al., NeurIPS 2020)."""
    return -logsumexp(logits, axis=1)


def ensemble_entropy(logits: list[NDArray]) -> NDArray:
    """Entropy of the mean probability of several networks (Lakshminarayanan et al., 2017)."""
    mean = np.mean([softmax(values, axis=1) for values in logits], axis=0)
    return -(mean * np.log(np.maximum(mean, 1e-12))).sum(1)


def mahalanobis(known: NDArray, labels: NDArray, cells: NDArray) -> NDArray:
    """Mahalanobis distance from the nearest label, with one covariance (Lee et al., 2018)."""
    centers = pd.DataFrame(known).groupby(labels).mean()
    spread = LedoitWolf().fit(known - centers.loc[labels].to_numpy())
    return np.min([spread.mahalanobis(cells - center) for center in centers.to_numpy()], axis=0)


def mahalanobis_of_genes(known: NDArray, labels: NDArray, cells: NDArray) -> NDArray:
    """Mahalanobis distance in principal components of the reference's genes."""
    n_components = min(N_COMPONENTS, len(known) - 2)
    pca = PCA(n_components, svd_solver="arpack", random_state=0).fit(known)
    return mahalanobis(pca.transform(known), labels, pca.transform(cells))


def logit_norm(known: NDArray, labels: NDArray, cells: NDArray, seed: int) -> NDArray:
    """1 − probability of a head that is trained on the class token by LogitNorm's loss.

    The logits are divided by their norm and a temperature, in training and after it (Wei et al.,
    ICML 2022).
    """
    codes = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = torch.nn.Linear(known.shape[1], int(codes.max()) + 1)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2, weight_decay=5e-4)

    def normalized(x: NDArray) -> torch.Tensor:
        return torch.nn.functional.normalize(head(torch.from_numpy(x))) / LOGIT_NORM

    for _ in range(300):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(normalized(known), codes).backward()
        optimizer.step()
    with torch.no_grad():
        return 1 - normalized(cells).softmax(1).max(1).values.numpy()


def train_scanvi(reference: AnnData, seed: int) -> scvi.model.SCANVI:
    """Train scANVI on the counts of the reference."""
    scvi.settings.seed = seed
    known = AnnData(reference.X.copy(), obs=reference.obs[["label"]].copy())
    known.var_names = reference.var_names
    scvi.model.SCVI.setup_anndata(known, labels_key="label")
    first = scvi.model.SCVI(known)
    options = {"accelerator": "cpu", "enable_progress_bar": False}
    first.train(max_epochs=40, **options)
    model = scvi.model.SCANVI.from_scvi_model(first, unlabeled_category="none")
    model.train(max_epochs=10, **options)
    return model


def scanvi(model: scvi.model.SCANVI, query: AnnData) -> NDArray:
    """1 − probability of scANVI (Xu et al., 2021)."""
    cells = AnnData(query.X.copy(), obs=query.obs[["label"]].copy())
    cells.var_names = query.var_names
    # Labels of the query are not read, but must be known ones.
    cells.obs["label"] = model.adata.obs["label"].iloc[0]
    return 1 - model.predict(cells, soft=True).to_numpy().max(1)


def density(known: NDArray, labels: NDArray, cells: NDArray, predicted: NDArray, n_neighbors: int = 30) -> NDArray:
    """`tosica.tl.novelty` before it was replaced: the query's share of a cluster's neighbors.

    The median over labels of the difference between query and reference is subtracted, and
    neighbors and Leiden clusters are found in 30 joint principal components.
    """
    differences = [
        cells[predicted == label].mean(0) - known[labels == label].mean(0)
        for label in np.unique(labels)
        if min((predicted == label).sum(), (labels == label).sum()) >= MIN_CELLS
    ]
    shifted = cells - np.median(differences, axis=0) if differences else cells
    both = np.vstack([known, shifted])
    n_components = min(N_COMPONENTS, len(both) - 1)
    embedded = PCA(n_components, svd_solver="arpack", random_state=0).fit_transform(both)
    n_known, n_cells = len(known), len(cells)
    graph = AnnData(obsm={"X_pca": embedded[n_known:]})
    sc.pp.neighbors(graph, n_neighbors=min(15, n_cells - 1), use_rep="X_pca", random_state=0)
    clusters = over_cluster(graph).codes
    n_neighbors = max(1, min(n_neighbors, min(n_known, n_cells) // 3))
    finder = NearestNeighbors(n_neighbors=n_neighbors + 1).fit(embedded)
    near = finder.kneighbors(embedded[n_known:], return_distance=False)[:, 1:]
    from_query = np.bincount(clusters, (near >= n_known).sum(1)) / max(n_cells - 1, 1)
    from_known = np.bincount(clusters, (near < n_known).sum(1)) / n_known
    return (from_query / np.maximum(from_query + from_known, 1e-300))[clusters]


def log_normalized(adata: AnnData) -> NDArray:
    """Log-normalized expression, dense; of log-normalized expression as it is."""
    if np.any(adata.X.data[:1000] % 1):
        return adata.X.toarray()
    normalized = AnnData(adata.X.copy())
    sc.pp.normalize_total(normalized, target_sum=1e4)
    sc.pp.log1p(normalized)
    return normalized.X.toarray()


def one_minus_probability(logits: NDArray) -> NDArray:
    """1 − probability of the best label."""
    return 1 - np.exp(log_softmax(logits, axis=1).max(1))
