"""Neighborhoods of a query that has a type which the reference lacks, in another batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import roc_auc_score

from tosica.linear import (
    Neighborhoods,
    ReferenceStatistics,
    contrast_distance,
    distance_from_typical,
    find_neighborhoods,
    fit_statistics,
    gene_excess,
    genes_of_cluster,
    label_shift,
    neighborhood_labels,
)

N_LABELS, N_PER_LABEL, N_NEW, N_GENES = 4, 60, 15, 300
# Genes that no cell of the reference expresses, and genes that the batch moves.
MARKERS, MOVED = slice(0, 8), slice(100, 160)


class Task(NamedTuple):
    statistics: ReferenceStatistics
    x: sp.csr_matrix
    positions: np.ndarray
    probability: np.ndarray
    is_new: np.ndarray
    neighborhoods: Neighborhoods
    labels: np.ndarray


@pytest.fixture(scope="module")
def task():
    """The new cells have the first label, with the same probability as its own cells."""
    rng = np.random.default_rng(0)
    centers = rng.gamma(1, 1, (N_LABELS, N_GENES))
    centers[:, MARKERS] = 0
    codes = np.repeat(np.arange(N_LABELS), N_PER_LABEL)
    reference = sp.csr_matrix(rng.poisson(centers[codes]).astype(float))
    positions = np.append(codes, np.zeros(N_NEW, dtype=int))
    is_new = np.arange(len(positions)) >= len(codes)
    rates = centers[positions]
    rates[:, MOVED] += 2
    rates[is_new, MARKERS] = 3
    x = sp.csr_matrix(rng.poisson(rates).astype(float))
    statistics = fit_statistics(reference, codes)
    neighborhoods = find_neighborhoods(x.log1p())
    assert statistics is not None
    assert neighborhoods is not None
    probability = rng.uniform(0.8, 1, len(positions))
    labels = neighborhood_labels(neighborhoods, positions, probability, N_LABELS)
    return Task(statistics, x, positions, probability, is_new, neighborhoods, labels)


def shift_of(task):
    average = task.neighborhoods.average()
    return label_shift(task.x, task.labels, average, task.statistics.means)


def excess_of(task, shift, measured=None):
    average = task.neighborhoods.average()
    return gene_excess(task.x, task.labels, average, shift, task.statistics, measured)


def test_neighbors_do_not_depend_on_the_depth_of_a_cell(task):
    depth = np.linspace(0.5, 2, task.x.shape[0])
    scaled = find_neighborhoods(sp.diags(depth) @ task.x.log1p())
    assert scaled is not None
    assert (scaled.nearest == task.neighborhoods.nearest).all()


def test_genes_that_vary_within_labels_decide_no_neighbors_in_standard_deviations(task):
    rng = np.random.default_rng(1)
    expression = task.x.log1p().toarray()
    noisy = np.hstack([expression, rng.gamma(1, 5, (len(expression), 30))])
    deviations = np.append(expression.std(0), np.full(30, 5.0))
    share_of_new = {}
    for name, argument in {"plain": None, "in deviations": deviations}.items():
        neighborhoods = find_neighborhoods(sp.csr_matrix(noisy), argument)
        assert neighborhoods is not None
        of_new = task.is_new[neighborhoods.nearest[task.is_new]]
        share_of_new[name] = of_new.mean()
    assert share_of_new["plain"] < 0.5
    assert share_of_new["in deviations"] > 0.9


def test_genes_of_single_cells_decide_no_neighbors_in_standard_deviations(task):
    expression = task.x.log1p().toarray()
    n_cells = len(expression)
    # Each is expressed by one cell, hundreds of standard deviations above the others.
    rare = np.hstack([expression, np.eye(n_cells)])
    deviations = np.append(expression.std(0), np.full(n_cells, 0.002))
    neighborhoods = find_neighborhoods(sp.csr_matrix(rare), deviations)
    assert neighborhoods is not None
    assert task.is_new[neighborhoods.nearest[task.is_new]].mean() > 0.9


def test_the_shift_of_the_batch_is_measured(task):
    shift = shift_of(task)
    assert shift.common[MOVED].mean() == pytest.approx(2, abs=0.2)
    unmoved = np.delete(shift.common, np.r_[MOVED])
    assert np.abs(unmoved).mean() < 0.2


def test_one_label_has_no_shift(task):
    one_label = np.where(task.labels == 0, 0, -1)
    shift = label_shift(
        task.x, one_label, task.neighborhoods.average(), task.statistics.means
    )
    assert not shift.common.any()


def test_new_cells_differ_most_from_their_label_in_the_reference(task):
    assert roc_auc_score(task.is_new, excess_of(task, shift_of(task))) > 0.99


def test_genes_that_were_not_measured_do_not_count(task):
    measured = np.ones(N_GENES, dtype=bool)
    measured[MARKERS] = False
    excess = excess_of(task, shift_of(task), measured)
    assert roc_auc_score(task.is_new, excess) < 0.9
    assert (
        excess[task.is_new].mean() < excess_of(task, shift_of(task))[task.is_new].mean()
    )


def test_new_cells_are_far_from_the_typical_cells_of_their_label(task):
    distance = distance_from_typical(
        task.neighborhoods, task.positions, 1 - task.probability
    )
    assert roc_auc_score(task.is_new, distance) > 0.99


def test_the_lower_half_of_a_label_is_typical(task):
    """The first label is the new cells and as many others: either half may be its typical one."""
    kept = np.r_[:N_NEW, N_PER_LABEL : len(task.positions)]
    neighborhoods = find_neighborhoods(task.x.log1p()[kept])
    assert neighborhoods is not None
    is_new = task.is_new[kept]
    area = {}
    for name, unlikeness in {"new": is_new, "known": ~is_new}.items():
        distance = distance_from_typical(
            neighborhoods, task.positions[kept], unlikeness.astype(float)
        )
        of_label = task.positions[kept] == 0
        area[name] = roc_auc_score(is_new[of_label], distance[of_label])
    assert area["new"] > 0.99
    assert area["known"] < 0.01


def test_cells_that_equal_the_highest_typical_one_are_typical(task):
    order = np.random.default_rng(0).permutation(len(task.positions))
    equal = np.round(1 - task.probability, 1)
    distance = distance_from_typical(task.neighborhoods, task.positions, equal)
    neighborhoods = find_neighborhoods(task.x.log1p()[order])
    assert neighborhoods is not None
    of_shuffled = distance_from_typical(
        neighborhoods, task.positions[order], equal[order]
    )
    np.testing.assert_allclose(of_shuffled, distance[order], atol=1e-6)


def contrast_of(task, x, measured=None):
    return contrast_distance(
        x,
        task.labels,
        task.neighborhoods.average(),
        1 - task.probability,
        task.statistics,
        measured,
    )


def test_new_cells_stand_apart_from_the_query_unlike_their_label(task):
    assert roc_auc_score(task.is_new, contrast_of(task, task.x)) > 0.9


def test_contrasts_do_not_depend_on_the_batch_or_its_sensitivity(task):
    batch = sp.csr_matrix(np.linspace(0, 3, N_GENES))
    other = 0.5 * task.x + sp.vstack([batch] * task.x.shape[0])
    expected = contrast_of(task, task.x)
    np.testing.assert_allclose(contrast_of(task, other.tocsr()), expected, atol=1e-6)


def test_genes_that_were_not_measured_are_in_no_contrast(task):
    measured = np.ones(N_GENES, dtype=bool)
    measured[MARKERS] = False
    without = task.x.toarray()
    without[:, MARKERS] = 0
    np.testing.assert_allclose(
        contrast_of(task, task.x, measured),
        contrast_of(task, sp.csr_matrix(without), measured),
    )


def test_the_genes_of_new_cells_are_their_markers(task):
    highest_means = task.statistics.means.max(0)
    cells = task.x[task.is_new]
    genes = genes_of_cluster(
        cells, 0, shift_of(task), task.statistics, highest_means, None, 5
    )
    assert set(genes) <= set(range(N_GENES)[MARKERS])


def test_genes_that_another_label_has_are_named_last(task):
    cells = task.x[task.is_new]
    highest_means = task.statistics.means.max(0)
    arguments = (cells, 0, shift_of(task), task.statistics)
    first, *others = genes_of_cluster(*arguments, highest_means, None, 5)
    # Another label expresses the first gene as much as the cells do.
    highest_means[first] = cells[:, [first]].max()
    ranked = genes_of_cluster(*arguments, highest_means, None, N_GENES)
    assert list(ranked[:4]) == others
    assert first in ranked


def test_one_label_has_no_contrast(task):
    one_label = task._replace(labels=np.zeros_like(task.labels))
    assert not contrast_of(one_label, task.x).any()


@pytest.mark.parametrize(
    "cells",
    [np.zeros((50, 20)), np.ones((4, 20)), np.ones((50, 20))],
    ids=["all zero", "four cells", "all alike"],
)
def test_cells_without_components_have_no_neighborhoods(cells):
    assert find_neighborhoods(sp.csr_matrix(cells)) is None
