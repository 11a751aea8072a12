"""How synthetic droplet counts are drawn: the plan of a data set, and its cells block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import chain
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, vstack

from tosica import gs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

COLLECTION = "human_gobp"
# What `pp.build_mask` asks of a gene set by default, overlap aside.
_MIN_GENES = 5

# Measured on the 3 000 most variable genes of the PBMCs of Kang et al. (2018): the gene of rank r
# has a share of the counts in proportion to (r + .5) ** -1.25, a cell a median of 373 counts, and
# the logarithm of a cell's counts a standard deviation of .68 (.2 to .36 within a cell type).
_ZIPF_OFFSET, _ZIPF_EXPONENT = 0.5, 1.25
_MEDIAN_COUNTS, _MEASURED_GENES = 373, 3_000
_DEPTH_SD_LABELS, _DEPTH_SD_CELLS = 0.5, 0.35

# The rarest of 13 labels is 600 times as rare as the most frequent one: .07 % of the cells.
_RAREST, _LABELS_MEASURED = 1 / 600, 13

# What an active gene set adds to the baseline of 1: mean and shape of a gamma distribution. So
# strong that a logistic regression gets nine cells in ten right, so varied that it misses one.
_ACTIVE_SHARE, _ACTIVE_SHAPE = 0.03, 1.0
_SETS_PER_LABEL, _OTHER_SETS_PER_CELL = 3, 4

# Each run of so many cells has a random stream of its own. A constant: other values, other data.
_CELLS_PER_STREAM = 1_000

# Standard deviation of a logarithm: at 5, one gene would have all counts of its batch.
_STRONGEST_BATCH_EFFECT = 5


@dataclass(frozen=True)
class Plan:
    """All of a data set but its counts, and the tables that these are drawn from.

    A *source* is what a transcript can come from: first the baseline of each batch, then each gene
    set in each batch. Source s gives gene ``genes[i]`` with the probability by which
    ``cumulative[i]`` exceeds its predecessor, and ``cumulative`` runs from s to s + 1 over it.
    """

    obs: pd.DataFrame
    var: pd.DataFrame
    uns: dict[str, Any]
    labels: NDArray[np.intp]
    batches: NDArray[np.intp]
    depths: NDArray[np.float64]
    planted: NDArray[np.intp]
    genes: NDArray[np.int32]
    cumulative: NDArray[np.float64]


def plan(
    n_obs: int,
    n_vars: int,
    *,
    n_labels: int,
    n_batches: int,
    n_gene_sets: int,
    batch_effect: float,
    seed: int,
) -> Plan:
    """Decide on everything that concerns more than one cell."""
    params = _check(
        n_obs=n_obs,
        n_vars=n_vars,
        n_labels=n_labels,
        n_batches=n_batches,
        n_gene_sets=n_gene_sets,
        batch_effect=batch_effect,
        seed=seed,
    )
    var_names, set_names, members = _gene_sets(n_vars, n_gene_sets)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))

    ratio = _RAREST ** (1 / (max(n_labels, _LABELS_MEASURED) - 1))
    share = ratio ** np.arange(n_labels)
    share /= share.sum()
    # Two cells of every label, so that any of them can be split into a training and a test part.
    drawn = rng.choice(n_labels, size=n_obs - 2 * n_labels, p=share)
    labels = rng.permutation(np.concatenate([np.repeat(np.arange(n_labels), 2), drawn]))
    batches = rng.permutation(np.arange(n_obs) % n_batches)

    planted = _plant(members, n_labels, rng)
    size = n_vars / _MEASURED_GENES
    # Fewer genes than were measured are a panel, chosen because they are expressed: a cell's counts
    # fall more slowly than the number of genes.
    median = _MEDIAN_COUNTS * max(size, math.sqrt(size))
    deviation = rng.normal(0, _DEPTH_SD_LABELS, n_labels)
    depths = median * np.exp(deviation - share @ deviation)

    ranks = np.arange(1, n_vars + 1, dtype=np.float64)
    baseline = (ranks + _ZIPF_OFFSET) ** -_ZIPF_EXPONENT
    baseline = rng.permutation(baseline / baseline.sum())
    effects = np.exp(rng.normal(0, batch_effect, (n_batches, n_vars)))
    genes, cumulative = _sources(baseline, effects, members)

    label_names = pd.Index(_numbered("type", n_labels))
    batch_names = pd.Index(_numbered("batch", n_batches))
    obs = pd.DataFrame(
        {
            "cell_type": pd.Categorical.from_codes(labels, categories=label_names),
            "batch": pd.Categorical.from_codes(batches, categories=batch_names),
        },
        index=pd.Index(_numbered("cell", n_obs), dtype=object),
    )
    uns = {
        "synthetic": {
            "collection": COLLECTION,
            "gene_sets": {
                label: np.array([set_names[i] for i in sets], dtype=object)
                for label, sets in zip(label_names, planted, strict=True)
            },
            "params": params,
        }
    }
    return Plan(
        obs=obs,
        var=pd.DataFrame(index=pd.Index(var_names, dtype=object)),
        uns=uns,
        labels=labels,
        batches=batches,
        depths=depths,
        planted=planted,
        genes=genes,
        cumulative=cumulative,
    )


def draw(plan: Plan, *, cells_at_once: int) -> Iterator[csr_matrix]:
    """Counts of the plan's cells, about `cells_at_once` of them a block.

    Blocks are (cells, n_vars) float32 with sorted indices. How large they are does not change
    what is in them.
    """
    n_streams = math.ceil(len(plan.obs) / _CELLS_PER_STREAM)
    at_once = max(1, cells_at_once // _CELLS_PER_STREAM)
    for first in range(0, n_streams, at_once):
        streams = range(first, min(first + at_once, n_streams))
        yield vstack([_draw_stream(plan, stream) for stream in streams], format="csr")


def _draw_stream(plan: Plan, stream: int) -> csr_matrix:
    """One stream's cells: first how many transcripts come from which source, then their genes."""
    seed = plan.uns["synthetic"]["params"]["seed"]
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, stream)))
    cells = slice(stream * _CELLS_PER_STREAM, (stream + 1) * _CELLS_PER_STREAM)
    labels, batches = plan.labels[cells], plan.batches[cells]
    n_cells, n_vars = len(labels), len(plan.var)
    n_batches = plan.obs["batch"].cat.categories.size
    n_gene_sets = plan.uns["synthetic"]["params"]["n_gene_sets"]

    others = rng.integers(0, n_gene_sets, (n_cells, _OTHER_SETS_PER_CELL))
    active = np.concatenate([plan.planted[labels], others], axis=1)
    weights = rng.gamma(_ACTIVE_SHAPE, _ACTIVE_SHARE / _ACTIVE_SHAPE, active.shape)
    weights = np.concatenate([np.ones((n_cells, 1)), weights], axis=1)
    # Sources of each cell, (n_cells, 1 + active sets): the baseline first.
    sources = np.concatenate(
        [batches[:, None], n_batches * (1 + active) + batches[:, None]], axis=1
    )
    depths = plan.depths[labels] * rng.lognormal(0, _DEPTH_SD_CELLS, n_cells)
    numbers = rng.poisson(depths[:, None] * weights / weights.sum(axis=1, keepdims=True))
    numbers[numbers.sum(axis=1) == 0, 0] = 1  # a droplet without a transcript is no cell

    uniform = rng.random(int(numbers.sum()))
    uniform *= 1 - 2**-24  # else rounding could carry a draw over into the next source
    uniform += np.repeat(sources.ravel(), numbers.ravel())
    genes = plan.genes[np.searchsorted(plan.cumulative, uniform, side="right")]
    rows = np.repeat(np.arange(n_cells, dtype=np.int64), numbers.sum(axis=1))
    places, counts = np.unique(rows * n_vars + genes, return_counts=True)
    rows, columns = np.divmod(places, n_vars)
    indptr = np.searchsorted(rows, np.arange(n_cells + 1))
    return csr_matrix(
        (counts.astype(np.float32), columns.astype(np.int32), indptr.astype(np.int32)),
        shape=(n_cells, n_vars),
    )


# ------------------------------------------------------------------------- genes and gene sets


@cache
def _collection() -> tuple[tuple[str, ...], NDArray[np.object_], csr_matrix]:
    """Names of the collection's sets, its genes in a random but fixed order, and who is where.

    The order knows nothing of any seed, so that data sets of one `n_vars` have the same genes.
    Genes taken at random leave every set with the same part of its genes, which comes close to
    what the variable genes of real data do.
    """
    sets = gs.load(COLLECTION)
    codes, genes = pd.factorize(np.array(list(chain.from_iterable(sets.values())), dtype=object))
    alphabetical = np.argsort(genes)
    order = np.random.default_rng(0).permutation(alphabetical)
    indptr = np.concatenate([[0], np.cumsum([len(members) for members in sets.values()])])
    members = csr_matrix((np.ones(codes.size, dtype=bool), codes, indptr))[:, order].tocsr()
    members.sort_indices()
    return tuple(sets), genes[order], members


def _gene_sets(n_vars: int, n_gene_sets: int) -> tuple[list[str], list[str], csr_matrix]:
    """Genes, the sets that the default mask would keep, and their members, (sets, n_vars) bool."""
    set_names, genes, members = _collection()
    n_named = min(n_vars, genes.size)
    members = members[:, :n_named]
    sizes = np.diff(members.indptr)
    n_fit = int(np.count_nonzero(sizes >= _MIN_GENES))
    if n_fit < n_gene_sets:
        raise ValueError(
            f"n_vars={n_vars} genes fill only {n_fit} gene sets of {COLLECTION} with at least "
            f"{_MIN_GENES} genes, not n_gene_sets={n_gene_sets}: raise n_vars or lower n_gene_sets."
        )
    kept = np.sort(np.argsort(-sizes, kind="stable")[:n_gene_sets])
    members = members[kept]
    members = csr_matrix(
        (members.data, members.indices, members.indptr), shape=(n_gene_sets, n_vars)
    )
    made_up = [f"SYNTHETIC{i + 1}" for i in range(n_vars - n_named)]
    return [*genes[:n_named], *made_up], [set_names[i] for i in kept], members


def _plant(members: csr_matrix, n_labels: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Gene sets that each label raises, (n_labels, sets a label), none of them twice.

    Sets of the Gene Ontology lie within one another. Each next one is that with the smallest part
    of its genes in those taken before, so that labels can be told apart.
    """
    n_sets = members.shape[0]
    per_label = min(_SETS_PER_LABEL, n_sets // n_labels)
    order = rng.permutation(n_sets)
    shuffled = members[order].astype(np.float64)
    sizes = np.diff(shuffled.indptr)
    taken = np.zeros(members.shape[1])
    overlap = np.zeros(n_sets)
    chosen = []
    for _ in range(n_labels * per_label):
        best = int(np.argmin(overlap))
        chosen.append(best)
        taken[shuffled.indices[shuffled.indptr[best] : shuffled.indptr[best + 1]]] = 1
        overlap = shuffled @ taken / sizes
        overlap[chosen] = np.inf
    return rng.permutation(order[chosen]).reshape(n_labels, per_label)


def _sources(
    baseline: NDArray[np.float64], effects: NDArray[np.float64], members: csr_matrix
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Genes and cumulative probabilities of all sources, laid end to end (see `Plan`)."""
    everything = np.arange(baseline.size)
    # The square root, because a set that held one of the few genes with most of the counts would
    # otherwise be about that gene alone.
    flat = np.sqrt(baseline)
    parts = [(everything, baseline * effect) for effect in effects]
    for gene_set in np.split(members.indices, members.indptr[1:-1]):
        parts += [(gene_set, flat[gene_set] * effect[gene_set]) for effect in effects]
    cumulative = []
    for source, (_, rates) in enumerate(parts):
        summed = np.cumsum(rates)
        summed /= summed[-1]
        cumulative.append(source + summed)
    genes = np.concatenate([genes for genes, _ in parts]).astype(np.int32)
    return genes, np.concatenate(cumulative)


def _numbered(name: str, n: int) -> list[str]:
    """Names that sort as they are numbered: type_01 to type_13."""
    width = len(str(n))
    return [f"{name}_{i:0{width}d}" for i in range(1, n + 1)]


# --------------------------------------------------------------------------------------- checks


def _check(*, batch_effect: float, **whole: int) -> dict[str, int | float]:
    """Plain Python numbers of the parameters, or the sentence that says what is wrong."""
    least = {"n_labels": 2, "seed": 0}
    for name, value in whole.items():
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise TypeError(f"{name} must be a whole number, not {value!r}.")
        if value < least.get(name, 1):
            raise ValueError(f"{name} must be at least {least.get(name, 1)}, not {value}.")
    n_obs, n_labels, n_batches = whole["n_obs"], whole["n_labels"], whole["n_batches"]
    if n_obs < 2 * n_labels:
        raise ValueError(
            f"n_obs={n_obs} cells are too few for n_labels={n_labels}, because every label gets at "
            f"least two: ask for {2 * n_labels} cells or more, or for fewer labels."
        )
    if n_obs < n_batches:
        raise ValueError(
            f"n_obs={n_obs} cells cannot fill n_batches={n_batches}: ask for more cells or for "
            "fewer batches."
        )
    if whole["n_gene_sets"] < n_labels:
        raise ValueError(
            f"n_gene_sets={whole['n_gene_sets']} must not be below n_labels={n_labels}, because "
            "every label raises a gene set of its own: ask for more gene sets or for fewer labels."
        )
    if not isinstance(batch_effect, Real) or isinstance(batch_effect, bool):
        raise TypeError(f"batch_effect must be a number, not {batch_effect!r}.")
    if not 0 <= batch_effect <= _STRONGEST_BATCH_EFFECT:
        raise ValueError(
            f"batch_effect must be between 0 and {_STRONGEST_BATCH_EFFECT}, not {batch_effect}."
        )
    return {name: int(value) for name, value in whole.items()} | {
        "batch_effect": float(batch_effect)
    }
