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


def test_a_label_of_one_cell_hides_no_new_type(rng):
    """Its cell may be an outlier; in labels that differ as those of blood do, it mostly is not."""
    known, new = [], []
    n_cells = [50] * 9 + [1]
    for _ in range(200):
        centers = rng.normal(0, 0.8, 10)
        distances, nearest = draw(n_cells, centers, rng)
        distances[-1] = 3 + centers[-1]
        null = reference_null(statistics_of(distances, nearest))
        distances, nearest = draw([0] * 9 + [50], centers, rng)
        known.append((null.pvalues(distances, nearest) <= LEVEL).mean())
        new.append((null.pvalues(distances + 3, nearest) <= LEVEL).mean())
    assert np.mean(known) < 0.12
    assert np.mean(new) > 0.8


def test_a_batch_moves_each_label_and_spreads_all(rng):
    statistics = statistics_of(*draw([500, 500, 500], [0, 0, 0], rng))
    distances, nearest = draw([500, 500, 500], [1, 2, 4], rng, spread=2)
    uncorrected = reference_null(statistics).pvalues(distances, nearest)
    assert (uncorrected <= LEVEL).mean() > 0.5
    p_values = fit_null(statistics, distances, nearest).pvalues(distances, nearest)
    assert (p_values <= LEVEL).mean() < 0.1


@pytest.mark.parametrize("n_labels", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("n_new", [1, 2])
def test_new_types_under_two_labels_are_found(rng, n_labels, n_new):
    """They spread the distances of these labels: the others tell that this is no batch."""
    n_cells, centers = [200] * n_labels, [0.0] * n_labels
    statistics = statistics_of(*draw(n_cells, centers, rng))
    distances, nearest = draw(n_cells, centers, rng)
    is_new = (nearest < n_new) & (np.arange(len(distances)) % 200 < 120)
    distances[is_new] += 6
    null = fit_null(statistics, distances, nearest)
    p_values = null.pvalues(distances, nearest)
    assert (p_values[is_new] <= LEVEL).mean() > 0.9
    assert (p_values[~is_new] <= LEVEL).mean() < 0.08


def test_cells_of_the_same_batch_spread_no_further(rng):
    """Where all labels hold new types, this tells them from a batch."""
    n_cells, centers = [200] * 5, [0.0] * 5
    statistics = statistics_of(*draw(n_cells, centers, rng))
    distances, nearest = draw(n_cells, centers, rng)
    is_new = np.arange(len(distances)) % 200 < 120
    distances[is_new] += 4
    found = {
        same_batch: (null.pvalues(distances, nearest)[is_new] <= LEVEL).mean()
        for same_batch in (False, True)
        for null in [fit_null(statistics, distances, nearest, same_batch=same_batch)]
    }
    assert found[True] > 0.9 > 0.5 > found[False]


def test_a_query_that_is_nearer_than_the_reference_stays_so(rng):
    """Deeper cells have less noise: to raise or to spread their distances would make false alarms."""
    statistics = statistics_of(*draw([200, 200, 200], [0, 0, 0], rng))
    for spread in (0.5, 1):
        distances, nearest = draw([200, 200, 200], [-1.5] * 3, rng, spread=spread)
        p_values = fit_null(statistics, distances, nearest).pvalues(distances, nearest)
        assert (p_values <= LEVEL).mean() < 0.01


def test_labels_of_few_cells_are_moved_as_the_others(rng):
    statistics = statistics_of(*draw([200, 200, 200, 200], [0, 0, 0, 0], rng))
    distances, nearest = draw([200, 200, 200, 4], [5, 5, 5, 5], rng)
    p_values = fit_null(statistics, distances, nearest).pvalues(distances, nearest)
    assert (p_values[-4:] > LEVEL).all()


def test_a_label_of_one_known_cell_is_not_moved_by_new_ones(rng):
    statistics = statistics_of(*draw([200, 200, 200, 1], [0, 0, 0, 0], rng))
    distances, nearest = draw([200, 200, 200, 50], [0, 0, 0, 6], rng)
    p_values = fit_null(statistics, distances, nearest).pvalues(distances, nearest)
    assert (p_values[-50:] <= LEVEL).all()


def test_a_query_of_few_cells_is_compared_as_it_is(rng):
    statistics = statistics_of(*draw([200, 200], [0, 0], rng))
    distances, nearest = np.array([0.0, 6.0, 0.0]), np.array([0, 1, 1])
    expected = reference_null(statistics).pvalues(distances, nearest)
    p_values = fit_null(statistics, distances, nearest).pvalues(distances, nearest)
    np.testing.assert_array_equal(p_values, expected)


@pytest.mark.parametrize("n_cells", [1, 2, 3, 10])
@pytest.mark.parametrize("spread_of_labels", [0, 2])
def test_p_values_hold_where_labels_have_few_cells(rng, n_cells, spread_of_labels):
    """A location that is fitted to the cells that it is taken off makes them look typical."""
    shares = []
    for _ in range(20):
        centers = rng.normal(0, spread_of_labels, 40)
        statistics = statistics_of(*draw([n_cells] * 40, centers, rng))
        distances, nearest = draw([20] * 40, centers, rng)
        p_values = reference_null(statistics).pvalues(distances, nearest)
        shares.append((p_values <= LEVEL).mean())
    assert np.mean(shares) < 0.08


def test_the_order_of_cells_within_a_label_stays(rng):
    statistics = statistics_of(*draw([200, 200, 200], [0, 1, 2], rng))
    distances, nearest = draw([30, 4, 300], [3, 2, 5], rng, spread=2)
    null = fit_null(statistics, distances, nearest)
    standardized = null.standardize(distances, nearest)
    for label in range(3):
        cells = nearest == label
        order = np.argsort(distances[cells])
        assert (np.diff(standardized[cells][order]) > 0).all()
