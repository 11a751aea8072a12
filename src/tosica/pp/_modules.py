"""Cluster the genes outside of all gene sets into co-expression modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from tosica.gs._spelling import split_composite

if TYPE_CHECKING:
    from tosica._types import FloatArray, IntArray, ObjectArray

# Mean number of genes in a module, unless that gives more modules than the limit.
_MODULE_SIZE = 15
_MAX_MODULES = 50
_N_COMPONENTS = 20
# Standardized expression is clipped here: otherwise single cells would determine the
# modules of rare genes.
_MAX_EXPRESSION = 10
# Genes in the name of a module.
_N_LEADING = 3


def coexpression_sets(
    x: sp.csr_matrix,
    genes: IntArray,
    gene_names: ObjectArray,
) -> tuple[list[str], list[IntArray]]:
    """Cluster genes into co-expression modules.

    Genes are standardized, so that all have the same weight. k-means clusters the directions of
    their loadings on 20 principal components. Genes with constant expression are left out.

    Parameters
    ----------
    x
        Log-normalized expression of some cells, ``(n_cells, n_vars)``.
    genes
        Positions of the genes to cluster, ``(n_genes,)``.
    gene_names
        Names of all genes, ``(n_vars,)``.

    Returns
    -------
    names : list of str
        Names of the modules, such as ``"module: CD37, LIMD2, TAGLN2"``, after the three genes with
        the largest loadings along the mean of the module. If a gene is called
        ``HLA-A_ENSG00000206503``, its symbol is used.
    modules : list of numpy.ndarray
        Positions of the genes of each module, ascending.
    """
    values = sp.csc_matrix(x)[:, genes].astype(np.float64).toarray()
    deviation = values.std(0)
    varies = deviation > 0
    genes = genes[varies]
    if not len(genes):
        return [], []
    values = values[:, varies]
    values = (values - values.mean(0)) / deviation[varies]
    np.clip(values, -_MAX_EXPRESSION, _MAX_EXPRESSION, out=values)
    labels, loadings = _cluster(values)
    names: list[str] = []
    modules = []
    for label in np.unique(labels):
        inside = np.flatnonzero(labels == label)
        projection = loadings[inside] @ loadings[inside].mean(0)
        leading = inside[np.argsort(-projection, kind="stable")[:_N_LEADING]]
        names.append(_name_module(gene_names[genes[leading]], names))
        modules.append(np.sort(genes[inside]))
    return names, modules


def _cluster(values: FloatArray) -> tuple[IntArray, FloatArray]:
    """Cluster the columns of standardized expression; their module, and their loadings."""
    n_genes = values.shape[1]
    n_modules = min(_MAX_MODULES, max(1, round(n_genes / _MODULE_SIZE)))
    n_components = min(_N_COMPONENTS, *values.shape)
    if n_modules == 1 or n_components < 2:
        return np.zeros(n_genes, dtype=int), values.T @ values.mean(1)[:, None]
    pca = PCA(n_components, svd_solver="randomized", random_state=0).fit(values)
    loadings = pca.components_.T * np.sqrt(pca.explained_variance_)
    length = np.linalg.norm(loadings, axis=1, keepdims=True)
    directions = loadings / np.maximum(length, 1e-9)
    # With very few cells, there are fewer different directions than modules.
    n_modules = min(n_modules, len(np.unique(directions.round(6), axis=0)))
    kmeans = KMeans(n_modules, n_init=1, random_state=0)
    return kmeans.fit_predict(directions), loadings


def _name_module(leading: ObjectArray, names: list[str]) -> str:
    """Name a module after its leading genes, unlike the modules that have names already."""
    full_names = [str(name) for name in leading]
    symbols = [(split_composite(name) or (name,))[0] for name in full_names]
    name = "module: " + ", ".join(symbols)
    return name if name not in names else "module: " + ", ".join(full_names)
