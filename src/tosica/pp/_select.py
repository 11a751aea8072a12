"""Draw random gene sets, select those of a mask, and cluster the genes outside of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy.sparse import csr_matrix
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from tosica._progress import progress
from tosica.data import BLOCK, CellMatrix, LogNormalization, checked_blocks, detect
from tosica.gs._genes import split_composite

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica.pp._gene_sets import MaskParams, Select

# Number of random sets, as in the paper.
_N_RANDOM_SETS = 300


def draw_gene_sets(n_vars: int, params: MaskParams) -> tuple[list[str], csr_matrix]:
    """Draw random gene sets, ``(n_sets, n_vars)`` bool, with at least ``min_genes`` genes each."""
    if n_vars < params.min_genes:
        raise ValueError(
            f"min_genes={params.min_genes} is too many, since adata has only {n_vars} genes: lower it."
        )
    n_sets = _N_RANDOM_SETS if params.max_gene_sets is None else params.max_gene_sets
    rng = np.random.default_rng(params.seed)
    genes = []
    for _ in range(n_sets):
        inside = rng.random(n_vars) < params.mask_ratio
        n_missing = params.min_genes - int(inside.sum())
        if n_missing > 0:
            inside[
                rng.choice(np.flatnonzero(~inside), size=n_missing, replace=False)
            ] = True
        genes.append(np.flatnonzero(inside))
    indptr = np.concatenate([[0], np.cumsum([g.size for g in genes])])
    members = csr_matrix(
        (np.ones(indptr[-1], dtype=bool), np.concatenate(genes), indptr),
        shape=(n_sets, n_vars),
    )
    return [f"random_{i + 1}" for i in range(n_sets)], members


_N_BINS = 20
# Limit of a standardised dispersion, so that no set is selected for a single gene.
_MAX_DISPERSION = 10.0


def gene_variability(adata: AnnData, layer: str | None = None) -> NDArray[np.float64]:
    """Compute the standardised dispersion of the log-normalised expression of each gene.

    Genes are divided into 20 bins of equal size by their mean. In each bin, the logarithm of
    variance over mean is standardised by median and median absolute deviation, and clipped to ±10
    (after Zheng et al., Nat. Commun. 8, 14049, 2017). Genes without expression get 0.

    Parameters
    ----------
    adata
        Counts, which are normalised block by block, or log-normalised expression.
    layer
        Layer to read, None for ``X``.

    Returns
    -------
    numpy.ndarray
        Standardised dispersions, ``(n_vars,)``.

    Raises
    ------
    ValueError, TypeError, KeyError
        If the matrix is missing, or neither counts nor log-normalised.
    """
    matrix = CellMatrix(adata, layer=layer)
    found = detect(matrix)
    total, squares = np.zeros(len(matrix.names)), np.zeros(len(matrix.names))
    with progress(matrix.n_obs, "build_mask: variability") as step:
        for _, block in checked_blocks(matrix, found, BLOCK):
            step.update(block.shape[0])
            values = block.astype(np.float64)
            if found.transform.kind == "counts":
                values = LogNormalization().normalize_block(values)
            total += np.asarray(values.sum(0)).ravel()
            square = values.multiply(values) if sp.issparse(values) else values**2
            squares += np.asarray(square.sum(0)).ravel()
    mean = total / matrix.n_obs
    variance = np.maximum(squares / matrix.n_obs - mean**2, 0)
    return _standardized_dispersion(mean, variance)


def _standardized_dispersion(
    mean: NDArray[np.float64], variance: NDArray[np.float64]
) -> NDArray[np.float64]:
    score = np.zeros(len(mean))
    varies = np.flatnonzero((mean > 0) & (variance > 0))
    if varies.size == 0:
        return score
    dispersion = pd.Series(np.log(variance[varies] / mean[varies]))
    rank = pd.Series(mean[varies]).rank(method="first")
    bins = pd.qcut(rank, min(_N_BINS, len(varies)), labels=False)
    middle = dispersion.groupby(bins).transform("median")
    spread = (dispersion - middle).abs().groupby(bins).transform("median") * 1.4826
    z = (dispersion - middle) / spread.where(spread > 0, 1.0)
    score[varies] = z.clip(-_MAX_DISPERSION, _MAX_DISPERSION)
    return score


def select_gene_sets(
    members: csr_matrix,
    n: int,
    *,
    select: Select,
    variability: NDArray[np.float64] | None = None,
) -> NDArray[np.intp]:
    """Select gene sets.

    Parameters
    ----------
    members
        Which gene is in which set, ``(n_gene_sets, n_vars)`` bool.
    n
        Largest number of sets to select.
    select
        ``"largest"``, ``"coverage"`` or ``"variable"``, see :func:`tosica.pp.build_mask`.
    variability
        Variability of each gene, ``(n_vars,)``, for ``"variable"``.

    Returns
    -------
    numpy.ndarray
        Positions of the selected sets, ascending.
    """
    sizes = np.diff(members.indptr)
    if select == "coverage":
        return np.sort(_cover(members, sizes, n))
    if select == "variable":
        assert variability is not None
        score = members.astype(np.float64) @ variability / np.sqrt(sizes)
    else:
        score = sizes
    return np.sort(np.argsort(-score, kind="stable")[:n])


def drop_similar(
    members: csr_matrix, n_listed: NDArray[np.integer], max_jaccard: float
) -> NDArray[np.intp]:
    """Leave out each gene set that is nearly the same as one that lists fewer genes.

    The smaller of such sets says more: "T cell receptor signaling pathway" is kept, and "antigen
    receptor-mediated signaling pathway", which holds it, is not.

    Parameters
    ----------
    members
        Which gene is in which set, ``(n_gene_sets, n_vars)`` bool.
    n_listed
        Number of genes that each set lists, in the data or not, ``(n_gene_sets,)``.
    max_jaccard
        Largest Jaccard index of a set with one that is kept.

    Returns
    -------
    numpy.ndarray
        Positions of the sets that are kept, ascending.
    """
    sizes = np.diff(members.indptr)
    if max_jaccard >= 1:
        return np.arange(len(sizes))
    kept: list[int] = []
    kept_with: list[list[int]] = [[] for _ in range(members.shape[1])]
    for candidate in np.lexsort((sizes, n_listed)):
        genes = members.indices[
            members.indptr[candidate] : members.indptr[candidate + 1]
        ]
        numbers = [number for gene in genes for number in kept_with[gene]]
        shared = (
            np.bincount(numbers, minlength=len(kept))
            if numbers
            else np.zeros(len(kept))
        )
        if (shared <= max_jaccard * (len(genes) + sizes[kept] - shared)).all():
            for gene in genes:
                kept_with[gene].append(len(kept))
            kept.append(int(candidate))
    return np.sort(np.array(kept, dtype=np.intp))


def _cover(members: csr_matrix, sizes: NDArray[np.intp], n: int) -> NDArray[np.intp]:
    """Greedy maximum coverage: add the set with the most genes that are not covered yet.

    In case of ties, the smaller set comes first, since fewer of its genes are covered already.
    """
    holders = members.tocsc()
    covered = np.zeros(members.shape[1], dtype=bool)
    # The score orders sets by more new genes, then by fewer genes; argmax takes the first of ties.
    step = int(sizes.max()) + 1
    score = sizes.astype(np.int64) * step - sizes
    chosen: list[int] = []
    while len(chosen) < n:
        best = int(score.argmax())
        # The score of a set without new genes is minus its size.
        if score[best] <= 0:
            break
        chosen.append(best)
        genes = members.indices[members.indptr[best] : members.indptr[best + 1]]
        for gene in genes[~covered[genes]]:
            score[holders.indices[holders.indptr[gene] : holders.indptr[gene + 1]]] -= (
                step
            )
        covered[genes] = True
        score[best] = -step
    return np.array(chosen, dtype=np.intp)


# --------------------------------------------------------------------------- co-expression

# Mean number of genes in a module, unless that gives more modules than the limit.
_SET_SIZE = 15
_N_COMPONENTS = 20
# Genes in the name of a module.
_N_LEADING = 3


def coexpression_sets(
    x: sp.csr_matrix,
    genes: NDArray[np.integer],
    names: NDArray[np.object_],
    *,
    max_sets: int = 50,
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
    max_sets
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
    genes, values, deviation = (
        part[..., deviation > 0] for part in (genes, values, deviation)
    )
    if not len(genes):
        return [], []
    values = (values - values.mean(0)) / deviation
    # Otherwise single cells would determine the modules of rare genes.
    np.clip(values, -10, 10, out=values)
    n_sets = min(max_sets, max(1, round(len(genes) / _SET_SIZE)))
    n_components = min(_N_COMPONENTS, *values.shape)
    if n_sets == 1 or n_components < 2:
        labels, loadings = (
            np.zeros(len(genes), dtype=int),
            values.T @ values.mean(1)[:, None],
        )
    else:
        pca = PCA(n_components, svd_solver="randomized", random_state=0).fit(values)
        loadings = pca.components_.T * np.sqrt(pca.explained_variance_)
        length = np.linalg.norm(loadings, axis=1, keepdims=True)
        directions = loadings / np.maximum(length, 1e-9)
        # With very few cells, there are fewer different directions than modules.
        n_sets = min(n_sets, len(np.unique(directions.round(6), axis=0)))
        labels = KMeans(n_sets, n_init=1, random_state=0).fit_predict(directions)
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
