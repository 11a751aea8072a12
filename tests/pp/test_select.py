"""Which gene sets are kept, and which other genes vary together."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tosica.gs._gene_sets import GeneSets
from tosica.pp._modules import coexpression_sets
from tosica.pp._select import drop_similar, select_largest

masks = st.integers(0, 10_000).map(
    lambda seed: (lambda r: r.random((r.integers(1, 12), r.integers(2, 15))) < 0.35)(
        np.random.default_rng(seed)
    )
)


def as_gene_sets(mask):
    names = [f"s{i}" for i in range(len(mask))]
    genes = pd.Index([f"G{i}" for i in range(mask.shape[1])])
    return GeneSets.from_mask(names, genes, sp.csr_matrix(mask.T))


def jaccard(a, b):
    return (a & b).sum() / (a | b).sum()


@settings(max_examples=40)
@given(mask=masks, most=st.floats(0.05, 0.95))
def test_the_smaller_of_similar_gene_sets_is_kept(mask, most):
    mask = mask[mask.any(1)]
    if not mask.size:
        return
    sizes = mask.sum(1)
    gene_sets = as_gene_sets(mask)
    selected = list(drop_similar(gene_sets, sizes, most))
    assert selected == sorted(set(selected))
    for i in range(len(mask)):
        similar = [j for j in selected if j != i and jaccard(mask[i], mask[j]) > most]
        assert (
            not similar if i in selected else any(sizes[j] <= sizes[i] for j in similar)
        )
    assert list(drop_similar(gene_sets, sizes, 1.0)) == list(range(len(mask)))


@settings(max_examples=20)
@given(mask=masks, n=st.integers(1, 8))
def test_the_largest_are_selected(mask, n):
    sizes = mask.sum(1)
    selected = list(select_largest(as_gene_sets(mask), n))
    order = sorted(range(len(mask)), key=lambda i: (-sizes[i], i))
    assert selected == sorted(order[:n])


# --------------------------------------------------------------------------- co-expression

N_CELLS, N_GROUPS, SIZE = 300, 4, 15
NAMES = np.array([f"G{i}" for i in range(80)], dtype=object)
GROUPED = np.arange(N_GROUPS * SIZE)


def expression(seed=0):
    """Genes 0 to 59 are in four groups of 15, each with a factor; 60 to 74 vary alone.

    Genes 75 to 79 are not expressed. The first genes of a group follow its factor most.
    """
    rng = np.random.default_rng(seed)
    factors = rng.gamma(2.0, size=(N_CELLS, N_GROUPS))
    strength = np.tile(np.linspace(2, 0.8, SIZE), N_GROUPS)
    x = np.zeros((N_CELLS, 80))
    x[:, GROUPED] = strength * np.repeat(factors, SIZE, axis=1)
    x[:, :75] += rng.gamma(1.0, size=(N_CELLS, 75))
    return sp.csr_matrix(x)


def planted():
    return {tuple(range(SIZE * i, SIZE * (i + 1))) for i in range(N_GROUPS)}


def as_sets(modules):
    return {tuple(genes.tolist()) for genes in modules}


@pytest.mark.parametrize("seed", range(2))
def test_planted_groups_are_found_and_named_after_their_leading_genes(seed):
    names, modules = coexpression_sets(expression(seed), GROUPED, NAMES)
    assert as_sets(modules) == planted()
    for name, genes in zip(names, modules, strict=True):
        kind, leading = name.split(": ")
        assert kind == "module"
        positions = [int(gene.removeprefix("G")) for gene in leading.split(", ")]
        assert len(set(positions)) == 3
        assert set(positions) <= set(genes[: SIZE // 2])


def test_neither_scale_nor_order_of_genes_matters():
    rng = np.random.default_rng(1)
    x = expression()
    weak = sp.csr_matrix(x @ sp.diags(rng.uniform(0.01, 5, 80)))
    assert as_sets(coexpression_sets(weak, GROUPED, NAMES)[1]) == planted()
    order = rng.permutation(80)
    places = np.sort(np.flatnonzero(np.isin(order, GROUPED)))
    _, modules = coexpression_sets(x[:, order].tocsr(), places, NAMES[order])
    assert {tuple(np.sort(order[genes])) for genes in modules} == planted()


def test_modules_are_named_by_symbols_and_differ():
    plain, _ = coexpression_sets(expression(), GROUPED, NAMES)
    composite_names = np.array(
        [f"{name}_ENSG{i:011}" for i, name in enumerate(NAMES)], dtype=object
    )
    assert coexpression_sets(expression(), GROUPED, composite_names)[0] == plain
    # All are called alike, as is one symbol of several identifiers.
    alike = np.array([f"G_ENSG{i:011}" for i in range(len(NAMES))], dtype=object)
    names, _ = coexpression_sets(expression(), GROUPED, alike)
    assert names[0] == "module: G, G, G"
    assert len(set(names)) == len(names) == N_GROUPS
