"""Modules of genes that vary together, for genes that no gene set holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from tosica.gs._gene_names import split_composite

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Genes of a module in the mean, and most modules: with many genes they are larger.
_SIZE, _MOST = 15, 50
_N_COMPONENTS = 20
# Genes that name a module.
_N_LEADING = 3


def coexpression_modules(
    x: sp.csr_matrix, genes: NDArray[np.integer], names: NDArray[np.object_]
) -> tuple[list[str], list[NDArray[np.integer]]]:
    """Group genes by their loadings on the principal components of some cells.

    Genes are standardised, so that weak ones count as much as strong ones, and k-means is run on
    the directions of their loadings on 20 components. Genes that are not expressed, of which
    nothing can be known, are left out.

    Parameters
    ----------
    x
        Log-normalised expression of some cells, shape ``(n_cells, n_all_genes)``.
    genes
        Positions of the genes to be grouped.
    names
        Names of all genes, shape ``(n_all_genes,)``.

    Returns
    -------
    Names of the modules, such as ``"module: CD37, LIMD2, TAGLN2"``, after the genes that follow
    the module most, and the positions of the genes of each, ascending. Of a gene that is called
    ``HLA-A_ENSG00000206503``, the name of the module has the symbol.
    """
    values = sp.csc_matrix(x)[:, genes].astype(np.float64).toarray()
    deviation = values.std(0)
    genes, values, deviation = (part[..., deviation > 0] for part in (genes, values, deviation))
    if not len(genes):
        return [], []
    values = (values - values.mean(0)) / deviation
    # Of rare genes single cells would decide.
    np.clip(values, -10, 10, out=values)
    n_modules = min(_MOST, max(1, round(len(genes) / _SIZE)))
    n_components = min(_N_COMPONENTS, *values.shape)
    if n_modules == 1 or n_components < 2:
        labels, loadings = np.zeros(len(genes), dtype=int), values.T @ values.mean(1)[:, None]
    else:
        found = PCA(n_components, svd_solver="randomized", random_state=0).fit(values)
        loadings = found.components_.T * np.sqrt(found.explained_variance_)
        length = np.linalg.norm(loadings, axis=1, keepdims=True)
        directions = loadings / np.maximum(length, 1e-9)
        # Of a handful of cells there are few different directions.
        n_modules = min(n_modules, len(np.unique(directions.round(6), axis=0)))
        labels = KMeans(n_modules, n_init=1, random_state=0).fit_predict(directions)
    module_names, modules = [], []
    for label in np.unique(labels):
        inside = np.flatnonzero(labels == label)
        along = loadings[inside] @ loadings[inside].mean(0)
        leading = genes[inside[np.argsort(-along, kind="stable")[:_N_LEADING]]]
        of_genes = [str(name) for name in names[leading]]
        symbols = [(split_composite(name) or (name,))[0] for name in of_genes]
        named = "module: " + ", ".join(symbols)
        module_names.append(
            named if named not in module_names else "module: " + ", ".join(of_genes)
        )
        modules.append(np.sort(genes[inside]))
    return module_names, modules
