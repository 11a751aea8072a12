"""Test whether the genes of a set add more to a label's score than other genes do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import gumbel_r, skew

from tosica._limits import LIMITS

if TYPE_CHECKING:
    import scipy.sparse as sp

    from tosica._types import FloatArray, IntArray, ObjectArray

# Genes of a set that are listed.
N_LEADING = 8
# Genes of a label that tell it.
N_TELLING = 20
# Permutations of the genes: a Gumbel distribution needs no more.
N_PERMUTATIONS = 100
_TINY = np.finfo(np.float32).eps
COLUMNS = [
    "group",
    "gene_set",
    "n_genes",
    "contribution",
    "z",
    "pval_adj",
    "genes",
    "similar_to",
]


def gene_set_statistics(
    contributions: FloatArray,
    effects: FloatArray,
    members: sp.csc_matrix,
) -> pd.DataFrame:
    r"""Compare the genes of each set with all genes, without the strongest gene of the set.

    A gene counts by what it adds, :math:`c_g`, and by its excess over the baseline, :math:`d_g`:
    :math:`r_g = d_g \log(1 + c_g / \tilde c)`, with the median :math:`\tilde c` of what adds anything. A set
    has to be supported by both, a few strong genes do not make a set of many others, and a gene
    that adds nearly nothing, which differs from seed to seed, counts nearly nothing. With :math:`m`
    genes of the set,

    .. math:: z = \frac{\sum_{g \in S} r_g - \max_{g \in S} r_g - (m - 1) \bar r}
        {\sigma_r \sqrt{(m - 1) (n - m + 1) / (n - 1)}}

    is the sum over the set without its largest term, less what is expected of as many of the
    :math:`n` genes drawn at random, in standard deviations of such a draw. A set that rests on one
    gene has none left.

    The p-value is the chance that any set of the collection is as unlikely when the genes are
    permuted :cite:p:`Westfall1993`. Such sums are skewed, so that z is first made normal as that of
    a gamma distribution :cite:p:`Wilson1931`. A Gumbel distribution is fitted to the largest values.
    It is 1 for sets that hold fewer than two of the 20 genes that add most: many genes that
    are a little higher, as those of ribosomes often are, do not tell a label.

    Parameters
    ----------
    contributions, effects
        Contribution of each gene, and its excess over the baseline, at least 0, shape ``(n_genes,)``.
    members
        Which gene is in which set, shape ``(n_genes, n_sets)``.

    Returns
    -------
    One row a set: ``n_genes``, ``contribution`` (the sum of its genes), ``z``, ``pval_adj``, and
    ``similar_to``, the position of the set with a higher z without whose genes this one has no
    evidence, or -1.
    """
    contributions = np.asarray(contributions)
    table = pd.DataFrame(
        {"n_genes": np.diff(members.indptr), "contribution": members.T @ contributions}
    )
    # By the effect, and less than proportionally by what a gene adds.
    adds = contributions.astype(np.float64)
    median = np.median(adds[adds > 0]) if adds.any() else 1.0
    weight = np.asarray(effects, dtype=np.float64) * np.log1p(adds / median)
    if not weight.any() or not len(table):
        return table.assign(z=0.0, pval_adj=1.0, similar_to=-1)
    test = _Test(weight, contributions, members)
    table["z"] = test.z(weight)
    table["pval_adj"] = test.p_values(weight)
    table["similar_to"] = _similar(table, weight, members, test)
    return table


class _Test:
    """The test of all sets, with its distribution under permuted genes.

    Parameters
    ----------
    weight
        Weight of each gene, ``(n_genes,)``.
    contributions, members
        As in :func:`gene_set_statistics`.
    """

    def __init__(
        self,
        weight: FloatArray,
        contributions: FloatArray,
        members: sp.csc_matrix,
    ) -> None:
        n_genes = len(weight)
        self._members = members
        self._mean = weight.mean()
        # Genes of each set without its strongest one.
        n_summed = np.diff(members.indptr) - 1
        self._n_summed = n_summed
        # Nothing varies in a set of one gene, or of all.
        varies = (n_summed > 0) & (n_summed < n_genes)
        variance = n_summed * (n_genes - n_summed) / (n_genes - 1)
        self._deviation = np.full(len(n_summed), np.inf)
        self._deviation[varies] = weight.std() * np.sqrt(variance[varies])
        third_moment = skew(weight) * weight.std() * (n_genes - 2 * n_summed)
        skewness = third_moment / ((n_genes - 2) * self._deviation)
        self._skewness = np.where(np.abs(skewness) > _TINY, skewness, _TINY)

        rng = np.random.default_rng(0)
        largest = [
            self._normal_z(rng.permutation(weight)).max() for _ in range(N_PERMUTATIONS)
        ]
        # Few genes add anything if the largest values are all one: no set can be told then.
        varies_by_chance = not np.allclose(largest, largest[0])
        self._null = gumbel_r()
        if varies_by_chance:
            with np.errstate(all="ignore"):
                self._null = gumbel_r(*gumbel_r.fit(largest))
        telling = np.argsort(-contributions, kind="stable")[:N_TELLING]
        n_telling = members[telling].T @ (contributions[telling] > 0)
        self._is_tested = (n_telling > 1) & varies_by_chance

    def z(self, weight: FloatArray) -> FloatArray:
        """Sum over each set without its largest term, in standard deviations, ``(n_sets,)``."""
        begins = self._members.indptr[:-1]
        of_pairs = np.append(weight[self._members.indices], 0.0)
        total = np.add.reduceat(of_pairs, begins)
        largest = np.maximum.reduceat(of_pairs, begins)
        expected = self._n_summed * self._mean
        return (total - largest - expected) / self._deviation

    def _normal_z(self, weight: FloatArray) -> FloatArray:
        """Make z normal as that of a gamma distribution."""
        skewness = self._skewness
        root = np.cbrt(np.maximum(skewness * self.z(weight) / 2 + 1, 0))
        return 6 / skewness * (root - 1) + skewness / 6

    def p_values(self, weight: FloatArray) -> FloatArray:
        """Chance that any set is as unlikely with permuted genes, ``(n_sets,)``."""
        with np.errstate(all="ignore"):
            p_values = self._null.sf(self._normal_z(weight))
        return np.where(self._is_tested, p_values, 1.0)


def gene_sets_with_evidence(
    group: str,
    contributions: FloatArray,
    members: sp.csc_matrix,
    statistics: pd.DataFrame,
    set_names: ObjectArray,
    gene_names: ObjectArray,
) -> pd.DataFrame:
    """List the gene sets of a group whose genes add more than other genes, by z.

    Parameters
    ----------
    group
        Name of the group.
    contributions, members
        As in :func:`gene_set_statistics`.
    statistics
        Its result.
    set_names, gene_names
        Names of the gene sets and of the genes.

    Returns
    -------
    Table with the columns ``COLUMNS``: the sets with an adjusted p-value up to 5 %, the highest
    z first. ``genes`` are the genes that add most, ``similar_to`` is the name of that set, or empty.
    """
    is_evident = statistics["pval_adj"] <= LIMITS.pvalue
    table = statistics[is_evident & (statistics["contribution"] > 0)]
    table = table.sort_values("z", ascending=False, kind="stable")
    leading = []
    for position in table.index:
        genes = members.indices[members.indptr[position] : members.indptr[position + 1]]
        genes = genes[np.argsort(-contributions[genes], kind="stable")[:N_LEADING]]
        leading.append(", ".join(gene_names[genes[contributions[genes] > 0]]))
    similar_to = table["similar_to"].to_numpy()
    table = table.assign(
        group=group,
        gene_set=set_names[table.index],
        genes=leading,
        similar_to=np.where(similar_to < 0, "", set_names[similar_to]),
    )
    return table.reset_index(drop=True)[COLUMNS]


def _similar(
    table: pd.DataFrame,
    weight: FloatArray,
    members: sp.csc_matrix,
    test: _Test,
) -> IntArray:
    """Find the sets without evidence of their own, and the set that each shares most with.

    Sets are taken by z. The genes of those with evidence do not count for the sets after them.
    """
    similar = np.full(len(table), -1)
    distinct: list[int] = []
    remaining = weight.copy()
    evident = table[table["pval_adj"] <= LIMITS.pvalue]
    for position in evident.sort_values("z", ascending=False, kind="stable").index:
        if test.p_values(remaining)[position] <= LIMITS.pvalue:
            remaining[members[:, position].indices] = 0
            distinct.append(position)
        else:
            shared = members[:, position].toarray()[:, 0] * weight
            similar[position] = distinct[np.argmax(members[:, distinct].T @ shared)]
    return similar
