"""Which of the gene sets that fit become tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse import csr_matrix

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
