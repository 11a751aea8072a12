"""Choose which gene sets a mask has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy.sparse import csr_matrix

from tosica.data._cell_matrix import CellMatrix
from tosica.data._log_normalize import log_normalize
from tosica.data._scale import kind_of, unscaled_in

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray


def draw_gene_sets(
    n_vars: int, *, n_sets: int, min_genes: int, mask_ratio: float, seed: int
) -> tuple[list[str], csr_matrix]:
    """Random gene sets, (n_sets, n_vars) bool, none below `min_genes`."""
    if n_vars < min_genes:
        raise ValueError(
            f"a random gene set cannot hold min_genes={min_genes} genes because adata has only "
            f"{n_vars}: lower min_genes or pass an adata with more genes."
        )
    rng = np.random.default_rng(seed)
    genes = []
    for _ in range(n_sets):
        inside = rng.random(n_vars) < mask_ratio
        n_missing = min_genes - int(inside.sum())
        if n_missing > 0:
            inside[rng.choice(np.flatnonzero(~inside), size=n_missing, replace=False)] = True
        genes.append(np.flatnonzero(inside))
    indptr = np.concatenate([[0], np.cumsum([g.size for g in genes])])
    members = csr_matrix(
        (np.ones(indptr[-1], dtype=bool), np.concatenate(genes), indptr), shape=(n_sets, n_vars)
    )
    return [f"random_{i + 1}" for i in range(n_sets)], members


_BLOCK = 4096
_N_BINS = 20
# A single gene must not carry a whole set.
_LARGEST = 10.0


def gene_variability(adata: AnnData, layer: str | None = None) -> NDArray[np.float64]:
    """Standardised dispersion of each gene's log-normalised expression, (n_vars,).

    Genes are put into 20 bins of equal size by their mean; in each bin the logarithm of variance
    over mean is standardised by median and median absolute deviation, and cut at ±10 (after
    Zheng et al., Nat. Commun. 8, 14049, 2017). Genes without expression get 0.

    Parameters
    ----------
    adata
        Counts, which are normalised block by block, or log-normalised expression; not changed.
    layer
        Layer to read, None for X.

    Raises
    ------
    ValueError, TypeError, KeyError
        If the matrix is missing, or neither counts nor log-normalised.
    """
    rows = CellMatrix(adata, layer=layer)
    hint = unscaled_in(adata)
    total, squares = np.zeros(len(rows.names)), np.zeros(len(rows.names))
    for start, block in rows.blocks(_BLOCK):
        kind = kind_of(block, rows.where, first_cell=start, hint=hint)
        if kind is None:
            continue
        values = block.astype(np.float64)
        if kind == "counts":
            values = log_normalize(values)
        total += np.asarray(values.sum(0)).ravel()
        if sp.issparse(values):
            squares += np.asarray(values.multiply(values).sum(0)).ravel()
        else:
            squares += (values**2).sum(0)
    mean = total / rows.n_obs
    variance = np.maximum(squares / rows.n_obs - mean**2, 0)
    return _standardised(mean, variance)


def _standardised(mean: NDArray[np.float64], variance: NDArray[np.float64]) -> NDArray[np.float64]:
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
    score[varies] = z.clip(-_LARGEST, _LARGEST)
    return score


Select: TypeAlias = Literal["largest", "coverage", "variable"]


def select_gene_sets(
    members: csr_matrix,
    n: int,
    *,
    select: Select,
    max_jaccard: float,
    variability: NDArray[np.float64] | None = None,
) -> NDArray[np.intp]:
    """Choose gene sets, and give their positions in the order in which they came.

    Parameters
    ----------
    members
        Which gene is in which set, (sets, genes) bool.
    n
        Most sets to choose.
    select
        ``"largest"``, ``"coverage"`` or ``"variable"``, see :func:`tosica.pp.build_mask`.
    max_jaccard
        A set that shares more than this with one that was chosen before is passed over.
    variability
        How much each gene varies, (genes,), for ``"variable"``.
    """
    sizes = np.diff(members.indptr)
    accepted = _Accepted(members, max_jaccard)
    if select == "coverage":
        return np.sort(_cover(members, sizes, n, accepted))
    if select == "variable":
        assert variability is not None
        score = members.astype(np.float64) @ variability / np.sqrt(sizes)
    else:
        score = sizes
    order = np.argsort(-score, kind="stable")
    if max_jaccard >= 1:
        return np.sort(order[:n])
    chosen: list[int] = []
    for candidate in order:
        if len(chosen) == n:
            break
        if accepted.take(int(candidate)):
            chosen.append(int(candidate))
    return np.sort(np.array(chosen, dtype=np.intp))


class _Accepted:
    """The sets chosen so far, and whether another one is too much like one of them."""

    def __init__(self, members: csr_matrix, max_jaccard: float) -> None:
        self._members, self._most = members, max_jaccard
        self._sets_of: list[list[int]] = [[] for _ in range(members.shape[1])]
        self._sizes: list[int] = []

    def take(self, candidate: int) -> bool:
        """Choose a set unless it overlaps too much with an earlier one."""
        if self._most >= 1:
            return True
        indptr, indices = self._members.indptr, self._members.indices
        genes = indices[indptr[candidate] : indptr[candidate + 1]]
        holders = [number for gene in genes for number in self._sets_of[gene]]
        if holders:
            shared = np.bincount(holders, minlength=len(self._sizes))
            union = len(genes) + np.asarray(self._sizes) - shared
            if (shared > self._most * union).any():
                return False
        for gene in genes:
            self._sets_of[gene].append(len(self._sizes))
        self._sizes.append(len(genes))
        return True


def _cover(
    members: csr_matrix, sizes: NDArray[np.intp], n: int, accepted: _Accepted
) -> NDArray[np.intp]:
    """Greedy maximum coverage: always the set with the most genes that no earlier one has.

    Of sets that add as many genes the smaller one comes first, since less of it is there already.
    """
    holders = members.tocsc()
    covered = np.zeros(members.shape[1], dtype=bool)
    # One number to compare, and the earlier of equal ones wins: new genes, then fewer others.
    step = int(sizes.max()) + 1
    score = sizes.astype(np.int64) * step - sizes
    chosen: list[int] = []
    while len(chosen) < n:
        best = int(score.argmax())
        # No gene is new where the score is minus the size.
        if score[best] <= 0:
            break
        if accepted.take(best):
            chosen.append(best)
            genes = members.indices[members.indptr[best] : members.indptr[best + 1]]
            for gene in genes[~covered[genes]]:
                score[holders.indices[holders.indptr[gene] : holders.indptr[gene + 1]]] -= step
            covered[genes] = True
        score[best] = -step
    return np.array(chosen, dtype=np.intp)
