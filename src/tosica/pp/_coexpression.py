"""Co-expression modules of genes that are in no gene set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from tosica.gs._gene_names import split_composite

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Mean number of genes in a module, unless that gives more modules than the limit.
_MODULE_SIZE = 15
_N_COMPONENTS = 20
# Genes in the name of a module.
_N_LEADING = 3


def coexpression_modules(
    x: sp.csr_matrix,
    genes: NDArray[np.integer],
    names: NDArray[np.object_],
    *,
    max_modules: int = 50,
) -> tuple[list[str], list[NDArray[np.integer]]]:
    """Cluster genes into co-expression modules.

    Genes are standardised, so that all have the same weight. k-means clusters the directions of
    their loadings on 20 principal components. Genes with constant expression are left out.

    Parameters
    ----------
    x
        Log-normalised expression of some cells, ``(n_cells, n_vars)``.
    genes
        Positions of the genes to cluster, ``(n_genes,)``.
    names
        Names of all genes, ``(n_vars,)``.
    max_modules
        Largest number of modules.

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
    genes, values, deviation = (part[..., deviation > 0] for part in (genes, values, deviation))
    if not len(genes):
        return [], []
    values = (values - values.mean(0)) / deviation
    # Otherwise single cells would determine the modules of rare genes.
    np.clip(values, -10, 10, out=values)
    n_modules = min(max_modules, max(1, round(len(genes) / _MODULE_SIZE)))
    n_components = min(_N_COMPONENTS, *values.shape)
    if n_modules == 1 or n_components < 2:
        labels, loadings = np.zeros(len(genes), dtype=int), values.T @ values.mean(1)[:, None]
    else:
        pca = PCA(n_components, svd_solver="randomized", random_state=0).fit(values)
        loadings = pca.components_.T * np.sqrt(pca.explained_variance_)
        length = np.linalg.norm(loadings, axis=1, keepdims=True)
        directions = loadings / np.maximum(length, 1e-9)
        # With very few cells, there are fewer different directions than modules.
        n_modules = min(n_modules, len(np.unique(directions.round(6), axis=0)))
        labels = KMeans(n_modules, n_init=1, random_state=0).fit_predict(directions)
    module_names, modules = [], []
    for label in np.unique(labels):
        inside = np.flatnonzero(labels == label)
        projection = loadings[inside] @ loadings[inside].mean(0)
        leading = genes[inside[np.argsort(-projection, kind="stable")[:_N_LEADING]]]
        full_names = [str(name) for name in names[leading]]
        symbols = [(split_composite(name) or (name,))[0] for name in full_names]
        name = "module: " + ", ".join(symbols)
        module_names.append(
            name if name not in module_names else "module: " + ", ".join(full_names)
        )
        modules.append(np.sort(genes[inside]))
    return module_names, modules
