"""Modules of genes that vary together, against groups that were planted."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tosica.pp._select import coexpression_sets

N_CELLS, N_GROUPS, SIZE = 300, 4, 15
NAMES = np.array([f"G{i}" for i in range(80)], dtype=object)
GROUPED = np.arange(N_GROUPS * SIZE)


def expression(seed: int = 0) -> sp.csr_matrix:
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


def planted() -> set[tuple[int, ...]]:
    return {tuple(range(SIZE * i, SIZE * (i + 1))) for i in range(N_GROUPS)}


def as_sets(modules: list[np.ndarray]) -> set[tuple[int, ...]]:
    return {tuple(genes.tolist()) for genes in modules}


@pytest.mark.parametrize("seed", range(3))
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


def test_only_the_genes_that_are_asked_for():
    genes = np.array([3, 20, 21, 40, 62, 76, 79])
    names, modules = coexpression_sets(expression(), genes, NAMES)
    # Of those that are not expressed nothing can be known.
    assert as_sets(modules) == {(3, 20, 21, 40, 62)}
    assert len(names) == 1


def test_a_gene_that_is_the_same_in_all_cells_is_left_out():
    x = expression().toarray()
    x[:, 5] = 3
    _, modules = coexpression_sets(sp.csr_matrix(x), GROUPED, NAMES)
    np.testing.assert_array_equal(np.sort(np.concatenate(modules)), np.delete(GROUPED, 5))


@pytest.mark.parametrize("n_left", [0, 1, 2])
def test_few_genes_are_one_module(n_left):
    left = np.r_[np.arange(10, 10 + n_left), 75, 79]
    names, modules = coexpression_sets(expression(), left, NAMES)
    if not n_left:
        assert (names, modules) == ([], [])
        return
    assert as_sets(modules) == {tuple(range(10, 10 + n_left))}
    assert set(names[0].removeprefix("module: ").split(", ")) == set(NAMES[10 : 10 + n_left])


@given(st.integers(0, 99), st.integers(20, 60), st.integers(1, 200))
@settings(max_examples=30)
def test_every_expressed_gene_is_in_one_module(seed, n_cells, n_genes):
    rng = np.random.default_rng(seed)
    x = sp.csr_matrix(rng.poisson(0.2, (n_cells, n_genes)).astype(np.float32))
    names = np.array([f"G{i}" for i in range(n_genes)], dtype=object)
    found, modules = coexpression_sets(x, np.arange(n_genes), names)
    varying = np.flatnonzero(x.toarray().std(0) > 0)
    np.testing.assert_array_equal(np.sort(np.concatenate([[], *modules])), varying)
    assert len(set(found)) == len(found) == len(modules)
    for name, genes in zip(found, modules, strict=True):
        assert len(genes)
        assert (np.diff(genes) > 0).all()
        assert set(name.removeprefix("module: ").split(", ")) <= set(names[genes])


def test_the_same_each_time():
    x = expression()
    names, modules = coexpression_sets(x, np.arange(80), NAMES)
    again = coexpression_sets(x.astype(np.float32), np.arange(80), NAMES)
    assert again[0] == names
    assert as_sets(again[1]) == as_sets(modules)


def test_many_genes_are_in_larger_modules():
    _, modules = coexpression_sets(expression(), np.arange(75), NAMES, max_sets=3)
    assert len(modules) == 3


def test_modules_are_named_by_symbols_and_differ():
    plain, _ = coexpression_sets(expression(), GROUPED, NAMES)
    both = np.array([f"{name}_ENSG{i:011}" for i, name in enumerate(NAMES)], dtype=object)
    assert coexpression_sets(expression(), GROUPED, both)[0] == plain
    # All are called alike, as is one symbol of several identifiers.
    alike = np.array([f"G_ENSG{i:011}" for i in range(len(NAMES))], dtype=object)
    names, _ = coexpression_sets(expression(), GROUPED, alike)
    assert names[0] == "module: G, G, G"
    assert len(set(names)) == len(names) == N_GROUPS
