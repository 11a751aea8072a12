"""p-values of known cells hold: among labels that differ, in another batch, beside a new type."""

import numpy as np
import pytest

from tosica.linear import fit_null, pvalues, reference_null
from tosica.linear._reference_statistics import ReferenceStatistics

LEVEL = 0.05


def statistics_of(distances, nearest):
    """Statistics with these distances of the reference's cells; nothing else of them is asked for."""
    n_labels = nearest.max() + 1
    nothing = np.zeros((n_labels, 1), dtype=np.float32)
    return ReferenceStatistics(
        means=nothing,
        labels=np.arange(n_labels),
        variance=nothing[0],
        components=nothing,
        expected=nothing[0],
        scales=nothing[0],
        reference_scores=distances.astype(np.float32),
        reference_nearest=nearest,
    )


def draw(n_cells, centers, rng, spread=1.0):
    """Distances that are normal around the center of each label, and the labels."""
    nearest = np.repeat(np.arange(len(n_cells)), n_cells)
    return rng.normal(np.asarray(centers)[nearest], spread), nearest


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_pvalues_count_known_cells_that_score_as_high():
    reference_scores = np.array([3.0, 1.0, 2.0, 2.0])
    p_values = pvalues(np.array([0.0, 2.0, 2.5, 9.0]), reference_scores)
    np.testing.assert_allclose(p_values, [5 / 5, 4 / 5, 2 / 5, 1 / 5])


@pytest.mark.parametrize("corrected", [False, True])
def test_a_distant_label_is_not_new_where_it_is_common(rng, corrected):
    """Labels differ in how far their cells are; a query need not have them in the reference's shares."""
    centers = [0, 0, 0, 3]
    statistics = statistics_of(*draw([400, 400, 400, 60], centers, rng))
    distances, nearest = draw([50, 50, 50, 500], centers, rng)
    pooled = pvalues(distances, statistics.reference_scores)
    assert (pooled <= LEVEL).mean() > 0.5
    null = reference_null(statistics)
    if corrected:
        null = fit_null(statistics, distances, nearest)
    assert (null.pvalues(distances, nearest) <= LEVEL).mean() < 0.1


def test_a_label_of_few_cells_is_located_by_all_of_them(rng):
    """The median of two cells says little where labels are alike, and all where they are not."""
    few = statistics_of(*draw([400, 400, 400, 2], [0, 0, 0, 0], rng))
    assert abs(reference_null(few).locations[3]) < 0.2
    unlike = statistics_of(*draw([400, 400, 400, 2], [0, 4, 8, 12], rng))
    assert reference_null(unlike).locations[3] > 10


def test_a_label_without_cells_is_located_by_the_others(rng):
    distances, nearest = draw([100, 0, 100], [1, 0, 1], rng)
    assert reference_null(statistics_of(distances, nearest)).locations[1] == (
        pytest.approx(1, abs=0.2)
    )


def test_a_batch_moves_each_label_and_spreads_all(rng):
    statistics = statistics_of(*draw([200, 200, 200], [0, 0, 0], rng))
    distances, nearest = draw([200, 200, 200], [1, 2, 4], rng, spread=2)
    uncorrected = reference_null(statistics).pvalues(distances, nearest)
    assert (uncorrected <= LEVEL).mean() > 0.5
    p_values = fit_null(statistics, distances, nearest).pvalues(distances, nearest)
    assert (p_values <= LEVEL).mean() < 0.08


@pytest.mark.parametrize("n_labels", [1, 2, 3, 5])
def test_a_new_type_under_one_label_is_found(rng, n_labels):
    """It spreads the distances of this label: the others tell that this is no batch."""
    n_cells, centers = [200] * n_labels, [0.0] * n_labels
    statistics = statistics_of(*draw(n_cells, centers, rng))
    distances, nearest = draw(n_cells, centers, rng)
    is_new = np.arange(len(distances)) < 120
    distances[is_new] += 6
    null = fit_null(statistics, distances, nearest)
    p_values = null.pvalues(distances, nearest)
    assert (p_values[is_new] <= LEVEL).mean() > 0.9
    assert (p_values[~is_new] <= LEVEL).mean() < 0.08


def test_a_query_that_is_nearer_than_the_reference_stays_so(rng):
    """Deeper cells have less noise: to spread their distances would make false alarms."""
    statistics = statistics_of(*draw([200, 200, 200], [0, 0, 0], rng))
    distances, nearest = draw([200, 200, 200], [-1, -1, -1], rng, spread=0.5)
    p_values = fit_null(statistics, distances, nearest).pvalues(distances, nearest)
    assert (p_values <= LEVEL).mean() < 0.01


def test_the_order_of_cells_within_a_label_stays(rng):
    statistics = statistics_of(*draw([200, 200, 200], [0, 1, 2], rng))
    distances, nearest = draw([30, 4, 300], [3, 2, 5], rng, spread=2)
    null = fit_null(statistics, distances, nearest)
    standardized = null.standardize(distances, nearest)
    for label in range(3):
        cells = nearest == label
        order = np.argsort(distances[cells])
        assert (np.diff(standardized[cells][order]) > 0).all()
