"""The test for labels that depend on products of gene sets."""

import numpy as np
import pytest

from tosica.linear import strongest_interaction


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def softmax(logits):
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def drawn_labels(probabilities, rng):
    return np.array([rng.choice(len(p), p=p) for p in probabilities])


def test_the_product_that_tells_the_label_is_found(rng):
    set_scores = rng.standard_normal((500, 20))
    labels = (set_scores[:, 3] * set_scores[:, 11] > 0).astype(int)
    interaction = strongest_interaction(set_scores, np.full((500, 2), 0.5), labels)
    assert interaction.gene_sets == (3, 11)
    assert interaction.matters


def test_labels_of_a_line_have_no_product(rng):
    significant = 0
    for _ in range(20):
        set_scores = rng.standard_normal((300, 15))
        probabilities = softmax(set_scores @ rng.standard_normal((15, 4)))
        labels = drawn_labels(probabilities, rng)
        significant += strongest_interaction(set_scores, probabilities, labels).matters
    assert significant <= 2


def test_one_cell_with_a_large_error_is_no_evidence(rng):
    set_scores = rng.standard_normal((100, 10))
    set_scores[0] = 20.0
    probabilities = np.tile([0.999999, 0.000001], (100, 1))
    labels = np.zeros(100, dtype=int)
    labels[0] = 1
    assert not strongest_interaction(set_scores, probabilities, labels).matters


def test_a_small_effect_in_many_cells_does_not_matter(rng):
    set_scores = rng.standard_normal((20_000, 5))
    logits = np.zeros((20_000, 2))
    logits[:, 1] = 0.3 * set_scores[:, 0] * set_scores[:, 1]
    labels = drawn_labels(softmax(logits), rng)
    interaction = strongest_interaction(set_scores, np.full((20_000, 2), 0.5), labels)
    assert interaction.pvalue < 1e-6
    assert not interaction.matters


def test_low_probabilities_of_right_labels_do_not_matter(rng):
    set_scores = rng.standard_normal((600, 5))
    labels = (set_scores[:, 0] > 1).astype(int)
    # Surer of other cells than of these, and right about all of them.
    probabilities = np.where(labels == 1, 0.6, 0.01)
    interaction = strongest_interaction(
        set_scores, np.column_stack([1 - probabilities, probabilities]), labels
    )
    assert interaction.pvalue < 1e-6
    assert not interaction.matters


@pytest.mark.parametrize("n_cells", [1, 2, 5])
def test_few_cells_are_no_evidence(n_cells, rng):
    set_scores = rng.standard_normal((n_cells, 30))
    labels = rng.integers(3, size=n_cells)
    probabilities = np.full((n_cells, 3), 1 / 3)
    assert not strongest_interaction(set_scores, probabilities, labels).matters


def test_gene_sets_without_variance_are_left_out():
    set_scores = np.zeros((50, 4))
    labels = np.arange(50) % 2
    interaction = strongest_interaction(set_scores, np.full((50, 2), 0.5), labels)
    assert interaction.pvalue == 1.0
