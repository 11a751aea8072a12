"""Simulate droplet counts: the parameters of a data set, and its cells block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, vstack

from tosica._checks import Integer, Number
from tosica.gs import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

COLLECTION = "human_gobp"
# Default of `pp.build_mask`.
_MIN_GENES = 5

# Measured on the 3 000 most variable genes of the PBMCs of Kang et al. (2018). The share of counts
# of the gene with rank r is proportional to (r + .5) ** -1.25. The median counts of a cell are 373,
# and their logarithm has a standard deviation of .68 (.2 to .36 within a cell type).
_ZIPF_OFFSET, _ZIPF_EXPONENT = 0.5, 1.25
_MEDIAN_COUNTS, _MEASURED_GENES = 373, 3_000
_DEPTH_SD_LABELS, _DEPTH_SD_CELLS = 0.5, 0.35

# The most frequent of 13 labels is 600 times as frequent as the rarest, which has .07 % of cells.
_RAREST, _LABELS_MEASURED = 1 / 600, 13

# An active gene set adds a share to the baseline of 1: mean and shape of its gamma distribution.
# With these values, a logistic regression classifies nine of ten cells correctly.
_ACTIVE_SHARE, _ACTIVE_SHAPE = 0.03, 1.0
_SETS_PER_LABEL, _OTHER_SETS_PER_CELL = 3, 4

# Cells that share a random stream. Another value would give other data.
_CELLS_PER_STREAM = 1_000

# What the parameters of a data set may be. The batch effect is the standard deviation of a
# logarithm: with 5, one gene would have all counts of its batch.
PARAMETERS = {
    "n_obs": Integer(),
    "n_vars": Integer(),
    "n_labels": Integer(least=2),
    "n_batches": Integer(),
    "n_gene_sets": Integer(),
    "batch_effect": Number(least=0, most=5),
    "seed": Integer(least=0),
}


@dataclass(frozen=True)
class Plan:
    """A data set without its counts, and the probabilities that these are drawn from.

    A transcript comes from a *source*. The first sources are the baselines of the batches; then
    follows each gene set in each batch. In source s, ``cumulative`` increases from s to s + 1, and
    the probability of gene ``genes[i]`` is the increase at ``cumulative[i]``.
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
    """Draw everything that concerns more than one cell."""
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
    # Each label has at least two cells, so that it can be split into a training and a test set.
    drawn = rng.choice(n_labels, size=n_obs - 2 * n_labels, p=share)
    labels = rng.permutation(np.concatenate([np.repeat(np.arange(n_labels), 2), drawn]))
    batches = rng.permutation(np.arange(n_obs) % n_batches)

    planted = _plant(members, n_labels, rng)
    size = n_vars / _MEASURED_GENES
    # Fewer genes are a panel, selected for high expression, so the counts of a cell decrease more
    # slowly than the number of genes.
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
    """Draw the counts of a plan in blocks of about ``cells_at_once`` cells.

    Blocks are ``(n_cells, n_vars)`` float32 with sorted indices. Their size does not change the
    counts.
    """
    n_streams = math.ceil(len(plan.obs) / _CELLS_PER_STREAM)
    at_once = max(1, cells_at_once // _CELLS_PER_STREAM)
    for first in range(0, n_streams, at_once):
        streams = range(first, min(first + at_once, n_streams))
        yield vstack([_draw_stream(plan, stream) for stream in streams], format="csr")


def _draw_stream(plan: Plan, stream: int) -> csr_matrix:
    """Draw the cells of a stream: first the number of transcripts per source, then their genes."""
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
    # Sources of each cell, (n_cells, 1 + n_active), with the baseline first.
    sources = np.concatenate([batches[:, None], n_batches * (1 + active) + batches[:, None]], axis=1)
    depths = plan.depths[labels] * rng.lognormal(0, _DEPTH_SD_CELLS, n_cells)
    numbers = rng.poisson(depths[:, None] * weights / weights.sum(axis=1, keepdims=True))
    numbers[numbers.sum(axis=1) == 0, 0] = 1  # every cell has at least one transcript

    uniform = rng.random(int(numbers.sum()))
    uniform *= 1 - 2**-24  # otherwise rounding could reach the next source
    uniform += np.repeat(sources.ravel(), numbers.ravel())
    genes = plan.genes[np.searchsorted(plan.cumulative, uniform, side="right")]
    rows = np.repeat(np.arange(n_cells, dtype=np.int64), numbers.sum(axis=1))
    entries, counts = np.unique(rows * n_vars + genes, return_counts=True)
    rows, columns = np.divmod(entries, n_vars)
    indptr = np.searchsorted(rows, np.arange(n_cells + 1))
    return csr_matrix(
        (counts.astype(np.float32), columns.astype(np.int32), indptr.astype(np.int32)),
        shape=(n_cells, n_vars),
    )


@cache
def _collection() -> tuple[tuple[str, ...], NDArray[np.object_], csr_matrix]:
    """Names of the sets of the collection, its genes in a fixed random order, and the members.

    The order does not depend on a seed, so data sets with the same ``n_vars`` have the same genes.
    Random genes are about the same share of each set, as variable genes of real data are.
    """
    sets = load(COLLECTION)
    codes, genes = pd.factorize(np.array(list(chain.from_iterable(sets.values())), dtype=object))
    alphabetical = np.argsort(genes)
    order = np.random.default_rng(0).permutation(alphabetical)
    indptr = np.concatenate([[0], np.cumsum([len(members) for members in sets.values()])])
    members = csr_matrix((np.ones(codes.size, dtype=bool), codes, indptr))[:, order].tocsr()
    members.sort_indices()
    return tuple(sets), genes[order], members


def _gene_sets(n_vars: int, n_gene_sets: int) -> tuple[list[str], list[str], csr_matrix]:
    """Genes, sets that the default mask keeps, and members, ``(n_gene_sets, n_vars)`` bool."""
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
    members = csr_matrix((members.data, members.indices, members.indptr), shape=(n_gene_sets, n_vars))
    synthetic = [f"SYNTHETIC{i + 1}" for i in range(n_vars - n_named)]
    return [*genes[:n_named], *synthetic], [set_names[i] for i in kept], members


def _plant(members: csr_matrix, n_labels: int, rng: np.random.Generator) -> NDArray[np.intp]:
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
    """Concatenate genes and cumulative probabilities of all sources, see :class:`Plan`."""
    all_genes = np.arange(baseline.size)
    # Without the square root, a few genes with most of the counts would dominate their sets.
    flat = np.sqrt(baseline)
    parts = [(all_genes, baseline * effect) for effect in effects]
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
    """Number names with leading zeros, such as type_01 to type_13, so that they sort."""
    width = len(str(n))
    return [f"{name}_{i:0{width}d}" for i in range(1, n + 1)]


def _check(*, batch_effect: float, **whole: int) -> dict[str, int | float]:
    """Check that the parameters fit together, and convert them to plain Python numbers."""
    n_obs, n_labels, n_batches = whole["n_obs"], whole["n_labels"], whole["n_batches"]
    if n_obs < 2 * n_labels:
        raise ValueError(
            f"n_obs={n_obs} cells are too few for n_labels={n_labels}, because every label gets at "
            f"least two: raise n_obs to {2 * n_labels} or more, or lower n_labels."
        )
    if n_obs < n_batches:
        raise ValueError(f"n_obs={n_obs} cells cannot fill n_batches={n_batches}: raise n_obs or lower n_batches.")
    if whole["n_gene_sets"] < n_labels:
        raise ValueError(
            f"n_gene_sets={whole['n_gene_sets']} must not be below n_labels={n_labels}, because "
            "every label has a gene set of its own: raise n_gene_sets or lower n_labels."
        )
    return {name: int(value) for name, value in whole.items()} | {"batch_effect": float(batch_effect)}
