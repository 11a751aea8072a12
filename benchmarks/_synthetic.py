"""Synthetic counts of any size."""

from __future__ import annotations

import math
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.sparse import csr_matrix, vstack

from tosica.gs import load

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLLECTION = "human_gobp"
# Default of `pp.build_mask`.
_MIN_GENES = 5

# Measured on the 3 000 most variable genes of the PBMCs of Kang et al. (2018). The share of counts
# of the gene with rank r is proportional to (r + .5) ** -1.25. The median counts of a cell are 373,
# and their logarithm has a standard deviation of .68 (.2 to .36 within a cell type).
_ZIPF_OFFSET = 0.5
_ZIPF_EXPONENT = 1.25
_MEDIAN_COUNTS = 373
_MEASURED_GENES = 3_000
_DEPTH_SD_LABELS = 0.5
_DEPTH_SD_CELLS = 0.35

# The most frequent of 13 labels is 600 times as frequent as the rarest, which has .07 % of cells.
_RAREST = 1 / 600
_MEASURED_LABELS = 13

# An active gene set adds a share to the baseline of 1, with this mean of its gamma distribution of
# shape 1. With this value, a logistic regression classifies nine of ten cells correctly.
_ACTIVE_SHARE = 0.03
_SETS_PER_LABEL = 3
_RANDOM_SETS_PER_CELL = 4

# Cells that share a random stream. Another value would give other data.
_CELLS_PER_STREAM = 1_000


def synthetic(
    n_obs: int = 2000,
    n_vars: int = 3000,
    *,
    n_labels: int = 13,
    n_batches: int = 2,
    n_gene_sets: int = 300,
    batch_effect: float = 0.25,
    seed: int = 0,
) -> AnnData:
    """Simulate droplet counts of blood cells, with labels that differ in known gene sets.

    Predictions of a model, and its explanations, can be tested on them.

    Parameters
    ----------
    n_obs
        Number of cells, at least two for each label.
    n_vars
        Number of genes.
    n_labels
        Number of labels, at least 2.
    n_batches
        Number of batches.
    n_gene_sets
        Number of gene sets that are active in some cells, at least ``n_labels``: those that
        :func:`tosica.pp.build_mask` keeps with ``max_gene_sets=n_gene_sets, max_jaccard=1``.
    batch_effect
        Standard deviation of the logarithm of the factor by which a batch changes a gene, 0 to 5.
    seed
        Seed of all random numbers, independent of any global state. The same parameters give the
        same data. With another ``n_obs``, all cells differ.

    Returns
    -------
    AnnData
        ``(n_obs, n_vars)``, with:

        ``.X``
            Counts, :class:`scipy.sparse.csr_matrix` of float32 with sorted indices. No cell is
            empty.
        ``.obs``
            ``cell_type`` and ``batch``, both categorical. Labels are sorted by frequency, starting
            with the most frequent one, ``type_01``, and have at least two cells each. Batches have
            equal sizes and are independent of the labels.
        ``.var_names``
            Gene symbols of the collection ``human_gobp``, which depend on ``n_vars`` only. If it
            has too few, ``SYNTHETIC1``, ``SYNTHETIC2``, … follow, which are in no gene set.
        ``.uns["synthetic"]``
            A dict that h5ad and zarr can store:

            - ``gene_sets``: dict of label to the names of its active gene sets, ``(3,)``, or fewer
              if ``n_gene_sets`` is below ``3 * n_labels``
            - ``collection``: collection of these gene sets, ``"human_gobp"``
            - ``params``: the parameters

    Raises
    ------
    ValueError
        If ``n_obs`` is below ``2 * n_labels`` or ``n_batches``, ``n_gene_sets`` is below ``n_labels``,
        or ``n_vars`` genes do not fill ``n_gene_sets`` sets with five genes each (about as many genes
        as gene sets are needed).

    Notes
    -----
    The parameters are estimated from the 3 000 most variable genes of the PBMCs of Kang et al.,
    Nat. Biotechnol. 36, 89 (2018). The median of a cell is about 370 counts, with a log-normal
    distribution within a label. About 5 % of the values are above zero. By Zipf's law, the ten
    strongest genes have half of the counts. Counts are proportional to ``n_vars``, and to its
    square root below 3 000 genes. The rarest of 13 labels has 0.07 % of the cells.

    Seven gene sets are active in each cell: the three of its label, and four random ones. The
    baseline expression is 1 in total. Each active set adds an exponentially distributed amount with
    mean 0.03, which is distributed over its genes in proportion to the square root of their
    baseline. Batches multiply all genes by log-normal factors. Counts are Poisson draws. Gene sets
    that share genes with an active one also increase, as in the Gene Ontology. The active sets of
    labels overlap as little as possible.

    Another seed gives other labels. To get a reference and a query, split one data set, for example
    by its batches.

    The run time is proportional to the number of counts: 100 000 cells × 3 000 genes take about
    ten seconds on one core. The memory needed is about twice that of the result.
    """
    params = {
        "n_obs": n_obs,
        "n_vars": n_vars,
        "n_labels": n_labels,
        "n_batches": n_batches,
        "n_gene_sets": n_gene_sets,
        "seed": seed,
        "batch_effect": batch_effect,
    }
    if n_obs < max(2 * n_labels, n_batches) or n_gene_sets < n_labels:
        raise ValueError(
            f"n_obs={n_obs} must be at least n_batches={n_batches} and twice n_labels={n_labels}, so that every "
            f"label gets two cells, and n_gene_sets={n_gene_sets} at least n_labels, so that it gets a gene set."
        )
    var_names, set_names, members = _gene_sets(n_vars, n_gene_sets)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))

    share = _label_shares(n_labels)
    # Each label has at least two cells, so that it can be split into a training and a test set.
    minimum = np.repeat(np.arange(n_labels), 2)
    sampled = rng.choice(n_labels, size=n_obs - 2 * n_labels, p=share)
    labels = rng.permutation(np.concatenate([minimum, sampled]))
    batches = rng.permutation(np.arange(n_obs) % n_batches)
    planted = _plant(members, n_labels, rng)
    depths = _label_depths(n_vars, share, rng)
    baseline = _baseline(n_vars, rng)
    effects = np.exp(rng.normal(0, batch_effect, (n_batches, n_vars)))
    sources = _Sources(baseline, effects, members)

    blocks = []
    for stream, first_cell in enumerate(range(0, n_obs, _CELLS_PER_STREAM)):
        cells = slice(first_cell, first_cell + _CELLS_PER_STREAM)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, stream)))
        blocks.append(
            sources.draw(
                planted[labels[cells]], batches[cells], depths[labels[cells]], rng
            )
        )

    label_names = pd.Index(_numbered("type", n_labels))
    obs = pd.DataFrame(index=pd.Index(_numbered("cell", n_obs), dtype=object))
    obs["cell_type"] = pd.Categorical.from_codes(labels, categories=label_names)
    obs["batch"] = pd.Categorical.from_codes(
        batches, categories=pd.Index(_numbered("batch", n_batches))
    )
    names = [np.array([set_names[i] for i in sets], dtype=object) for sets in planted]
    truth = {
        "collection": _COLLECTION,
        "gene_sets": dict(zip(label_names, names, strict=True)),
        "params": params,
    }
    var = pd.DataFrame(index=pd.Index(var_names, dtype=object))
    return AnnData(
        vstack(blocks, format="csr"), obs=obs, var=var, uns={"synthetic": truth}
    )


def _label_shares(n_labels: int) -> NDArray[np.float64]:
    """Shares of the labels, which fall geometrically."""
    ratio = _RAREST ** (1 / (max(n_labels, _MEASURED_LABELS) - 1))
    share = ratio ** np.arange(n_labels)
    return share / share.sum()


def _label_depths(
    n_vars: int, share: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Median counts of the cells of each label."""
    size = n_vars / _MEASURED_GENES
    # Fewer genes are a panel, selected for high expression, so the counts of a cell decrease more
    # slowly than the number of genes.
    median = _MEDIAN_COUNTS * max(size, math.sqrt(size))
    deviation = rng.normal(0, _DEPTH_SD_LABELS, len(share))
    return median * np.exp(deviation - share @ deviation)


def _baseline(n_vars: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Share of each gene in the counts, by Zipf's law."""
    ranks = np.arange(1, n_vars + 1, dtype=np.float64)
    baseline = (ranks + _ZIPF_OFFSET) ** -_ZIPF_EXPONENT
    return rng.permutation(baseline / baseline.sum())


class _Sources:
    """Sources of transcripts: the baseline of each batch, then each gene set in each batch.

    In source s, ``cumulative`` increases from s to s + 1, and the probability of gene ``genes[i]``
    is the increase at ``cumulative[i]``.
    """

    def __init__(
        self,
        baseline: NDArray[np.float64],
        effects: NDArray[np.float64],
        members: csr_matrix,
    ) -> None:
        self.n_batches, self.n_vars = effects.shape
        self.n_gene_sets = members.shape[0]
        all_genes = np.arange(baseline.size)
        # Without the square root, a few genes with most of the counts would dominate their sets.
        flat = np.sqrt(baseline)
        genes = [all_genes] * self.n_batches
        rates = [baseline * effect for effect in effects]
        for gene_set in np.split(members.indices, members.indptr[1:-1]):
            genes += [gene_set] * self.n_batches
            rates += [flat[gene_set] * effect[gene_set] for effect in effects]
        cumulative = []
        for source, source_rates in enumerate(rates):
            summed = np.cumsum(source_rates)
            cumulative.append(source + summed / summed[-1])
        self.genes = np.concatenate(genes).astype(np.int32)
        self.cumulative = np.concatenate(cumulative)

    def draw(
        self,
        planted: NDArray[np.intp],
        batches: NDArray[np.intp],
        depths: NDArray[np.float64],
        rng: np.random.Generator,
    ) -> csr_matrix:
        """Draw counts ``(n_cells, n_vars)``: first the transcripts per source, then their genes."""
        n_cells = len(batches)
        random_sets = rng.integers(
            0, self.n_gene_sets, (n_cells, _RANDOM_SETS_PER_CELL)
        )
        active = np.concatenate([planted, random_sets], axis=1)
        weights = rng.gamma(1.0, _ACTIVE_SHARE, active.shape)
        weights = np.concatenate([np.ones((n_cells, 1)), weights], axis=1)
        # Sources of each cell, (n_cells, 1 + n_active), with the baseline first.
        sources = np.concatenate(
            [batches[:, None], self.n_batches * (1 + active) + batches[:, None]], axis=1
        )
        depths = depths * rng.lognormal(0, _DEPTH_SD_CELLS, n_cells)
        numbers = rng.poisson(
            depths[:, None] * weights / weights.sum(axis=1, keepdims=True)
        )
        # Every cell has at least one transcript.
        numbers[numbers.sum(axis=1) == 0, 0] = 1

        uniform = rng.random(int(numbers.sum()))
        uniform *= 1 - 2**-24  # otherwise rounding could reach the next source
        uniform += np.repeat(sources.ravel(), numbers.ravel())
        genes = self.genes[np.searchsorted(self.cumulative, uniform, side="right")]
        rows = np.repeat(np.arange(n_cells, dtype=np.int64), numbers.sum(axis=1))
        entries, counts = np.unique(rows * self.n_vars + genes, return_counts=True)
        rows, columns = np.divmod(entries, self.n_vars)
        indptr = np.searchsorted(rows, np.arange(n_cells + 1))
        return csr_matrix(
            (
                counts.astype(np.float32),
                columns.astype(np.int32),
                indptr.astype(np.int32),
            ),
            shape=(n_cells, self.n_vars),
        )


@cache
def _collection() -> tuple[tuple[str, ...], NDArray[np.object_], csr_matrix]:
    """Names of the sets of the collection, its genes in a fixed random order, and the members.

    The order does not depend on a seed, so data sets with the same ``n_vars`` have the same genes.
    Random genes are about the same share of each set, as variable genes of real data are.
    """
    sets = load(_COLLECTION)
    codes, genes = pd.factorize(
        np.array(list(chain.from_iterable(sets.values())), dtype=object)
    )
    alphabetical = np.argsort(genes)
    order = np.random.default_rng(0).permutation(alphabetical)
    indptr = np.concatenate(
        [[0], np.cumsum([len(members) for members in sets.values()])]
    )
    members = csr_matrix((np.ones(codes.size, dtype=bool), codes, indptr))[
        :, order
    ].tocsr()
    members.sort_indices()
    return tuple(sets), genes[order], members


def _gene_sets(
    n_vars: int, n_gene_sets: int
) -> tuple[list[str], list[str], csr_matrix]:
    """Genes, sets that the default mask keeps, and members, ``(n_gene_sets, n_vars)`` bool."""
    set_names, genes, members = _collection()
    n_named = min(n_vars, genes.size)
    members = members[:, :n_named]
    sizes = np.diff(members.indptr)
    n_fit = int(np.count_nonzero(sizes >= _MIN_GENES))
    if n_fit < n_gene_sets:
        raise ValueError(
            f"n_vars={n_vars} genes fill only {n_fit} gene sets of {_COLLECTION} with at least "
            f"{_MIN_GENES} genes, not n_gene_sets={n_gene_sets}: raise n_vars or lower n_gene_sets."
        )
    largest = np.sort(np.argsort(-sizes, kind="stable")[:n_gene_sets])
    members = members[largest]
    members = csr_matrix(
        (members.data, members.indices, members.indptr), shape=(n_gene_sets, n_vars)
    )
    synthetic = [f"SYNTHETIC{i + 1}" for i in range(n_vars - n_named)]
    return [*genes[:n_named], *synthetic], [set_names[i] for i in largest], members


def _plant(
    members: csr_matrix, n_labels: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Choose different gene sets for each label, ``(n_labels, n_sets_per_label)``.

    Sets of the Gene Ontology overlap. Each next set is the one with the smallest share of its genes
    in sets chosen before, so that labels can be distinguished.
    """
    n_sets = members.shape[0]
    per_label = min(_SETS_PER_LABEL, n_sets // n_labels)
    order = rng.permutation(n_sets)
    shuffled = members[order].astype(np.float64)
    sizes = np.diff(shuffled.indptr)
    taken = np.zeros(members.shape[1])
    overlap = np.zeros(n_sets)
    planted = []
    for _ in range(n_labels * per_label):
        best = int(np.argmin(overlap))
        planted.append(best)
        taken[shuffled.indices[shuffled.indptr[best] : shuffled.indptr[best + 1]]] = 1
        overlap = shuffled @ taken / sizes
        overlap[planted] = np.inf
    return rng.permutation(order[planted]).reshape(n_labels, per_label)


def _numbered(name: str, n: int) -> list[str]:
    """Number names with leading zeros, such as type_01 to type_13, so that they sort."""
    width = len(str(n))
    return [f"{name}_{i:0{width}d}" for i in range(1, n + 1)]
