"""The line from genes to labels, against its formula and where it could go astray."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from tosica.model import _line
from tosica.model._line import fit_line, lift, within_labels

LABELS = np.repeat([0, 1, 2], [60, 40, 20])


def expression(seed=0):
    """Labels differ in genes 0 to 2, cells of each label in genes 10 to 12."""
    rng = np.random.default_rng(seed)
    x = rng.gamma(1.0, size=(120, 20)) + np.eye(3)[LABELS] @ np.eye(3, 20)
    x[:, 10:13] += 4 * rng.integers(0, 2, (120, 1))
    return sp.csr_matrix(x)


def test_directions_are_the_components_of_the_deviations():
    rng = np.random.default_rng(0)
    x = rng.gamma(1.0, size=(120, 300)) + 2 * np.eye(3)[LABELS] @ np.eye(3, 300)
    x += 8 * rng.normal(size=(120, 5)) * [5, 4, 3, 2, 1] @ rng.normal(size=(5, 300)) / 300**0.5
    found = within_labels(sp.csr_matrix(x, dtype=np.float32), LABELS)
    counts = np.array([60 / 70, 40 / 50, 20 / 30])
    counts /= counts.sum()
    for label in range(3):
        of_label = np.flatnonzero(label == LABELS)
        x[of_label] -= x[of_label].mean(0)
        x[of_label] *= np.sqrt(counts[label] / len(of_label))
    squares, axes = np.linalg.eigh(x.T @ x)
    expected = (axes[:, -5:] * squares[-5:]) @ axes[:, -5:].T
    np.testing.assert_allclose(found.T @ found, expected, atol=2e-3 * np.abs(expected).max())


def test_a_few_cells_of_rare_labels_are_no_direction():
    rng = np.random.default_rng(0)
    labels = np.r_[np.repeat([0, 1, 2], 150), np.repeat(np.arange(3, 9), 3), [9, 10]]
    x = rng.gamma(0.5, size=(len(labels), 500))
    batch = np.zeros(500)
    batch[:100] = 0.7
    x[::2] += batch
    length = np.linalg.norm(within_labels(sp.csr_matrix(x), labels) @ batch) / 0.7 / 10
    # Half of the cells differ by it from the others.
    assert length == pytest.approx(np.linalg.norm(batch) / 2, rel=0.15)


@pytest.mark.parametrize("n_each", [1, 2, 4])
def test_few_cells_differ_in_few_directions(n_each):
    labels = np.repeat([0, 1], n_each)
    x = sp.csr_matrix(np.random.default_rng(0).random((2 * n_each, 6)))
    found = within_labels(x, labels)
    assert len(found) == min(2 * n_each - 2, 5)
    assert fit_line(x, labels)[0].shape == (2, 6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(5))
def test_cells_that_are_all_alike_differ_in_none(dtype, seed):
    profiles = np.random.default_rng(seed).gamma(1.0, size=(3, 8)).astype(dtype)
    x = sp.csr_matrix(profiles[LABELS])
    assert within_labels(x, LABELS).shape == (0, 8)
    weights, biases = fit_line(x, LABELS)
    assert ((x @ weights.T + biases).argmax(1) == LABELS).all()


@pytest.mark.parametrize("with_shifts", [False, True])
@pytest.mark.parametrize("n_obs", [120, 1200])
def test_is_the_optimum_of_its_formula(with_shifts, n_obs):
    x = sp.vstack([expression(seed) for seed in range(n_obs // 120)]).tocsr()
    labels = np.tile(LABELS, n_obs // 120)
    shifts = np.random.default_rng(1).random((2, 20)) if with_shifts else np.zeros((0, 20))
    within = within_labels(x, labels)
    weights, biases = fit_line(x, labels, shifts if with_shifts else None, tol=1e-8)
    strength = 10
    scale = torch.from_numpy(np.asarray(x.mean(0)).ravel() ** 0.25)
    balance = torch.from_numpy(n_obs / 3 / np.bincount(labels))

    def loss(values):
        w, b = values[:60].reshape(3, 20), values[60:]
        scores = torch.from_numpy(x.toarray()) @ w.T + b
        is_label = torch.nn.functional.one_hot(torch.from_numpy(labels)).double()
        fit = torch.nn.functional.binary_cross_entropy_with_logits(
            scores, is_label, weight=balance[labels, None], reduction="sum"
        )
        change = 10 * ((w @ torch.from_numpy(shifts).T) ** 2).sum()
        change = change + 0.1 * max(1, n_obs / 500) * ((w @ torch.from_numpy(within).T) ** 2).sum()
        return fit + ((w * scale) ** 2).sum() / strength / 2 + change / 2

    at = torch.from_numpy(np.r_[weights.ravel(), biases]).requires_grad_()
    loss(at).backward()
    elsewhere = torch.zeros(63, dtype=torch.float64, requires_grad=True)
    loss(elsewhere).backward()
    assert at.grad.abs().max() < 1e-3 * elsewhere.grad.abs().max()


@pytest.mark.parametrize("n_labels", [2, 3])
def test_without_directions_it_is_scikit_learns(n_labels, monkeypatch):
    monkeypatch.setattr(_line, "_WITHIN_PENALTY", 0.0)
    x, labels = expression()[n_labels > LABELS], LABELS[n_labels > LABELS]
    scale = np.asarray(x.mean(0)).ravel() ** 0.25
    balance = (len(labels) / n_labels / np.bincount(labels))[labels]
    weights, biases = fit_line(x, labels, tol=1e-9)
    found = x @ weights.T + biases
    for label in range(n_labels):
        expected = LogisticRegression(C=10, tol=1e-9, max_iter=5000)
        expected.fit(x.toarray() / scale, labels == label, sample_weight=balance)
        scores = expected.decision_function(x.toarray() / scale)
        np.testing.assert_allclose(found[:, label], scores, atol=1e-3)


def test_a_label_is_not_taken_for_the_batch_it_is_known_from(monkeypatch):
    """Nobody names the batches; the last label is known from the second one only."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 60)
    x = rng.normal(5, 0.5, (180, 200)) + 0.65 * np.repeat(np.eye(3), 10, 1)[labels] @ np.eye(
        30, 200
    )
    second = np.arange(180) % 2 == 0
    known = (labels < 2) | second
    x[second, 40:140] += 4
    elsewhere = np.flatnonzero(~known)
    right = {}
    for penalty in (_line._WITHIN_PENALTY, 0.0):
        monkeypatch.setattr(_line, "_WITHIN_PENALTY", penalty)
        weights, biases = fit_line(sp.csr_matrix(x[known]), labels[known])
        right[penalty > 0] = ((x[elsewhere] @ weights.T + biases).argmax(1) == 2).mean()
    assert right[False] < 0.5
    assert right[True] > 0.7


def test_a_label_is_lifted_by_how_few_its_cells_are():
    np.testing.assert_allclose(np.exp(lift(LABELS)), [80 / 60, 60 / 40, 40 / 20])


@pytest.mark.parametrize("seed", range(3))
def test_new_cells_of_a_rare_label_are_found(seed):
    """They score less than the three that taught it."""
    rng = np.random.default_rng(seed)
    taught, new = np.repeat([0, 1, 2], [100, 100, 3]), np.repeat([0, 1, 2], 200)
    mean = 0.5 + 1.5 * np.repeat(np.eye(3), 10, 1) @ np.eye(30, 200)
    x, query = (sp.csr_matrix(np.log1p(rng.poisson(mean[of]))) for of in (taught, new))
    weights, biases = fit_line(x, taught)
    scores = query @ weights.T + biases
    plain, lifted = (
        [(called == new)[new == label].mean() for label in range(3)]
        for called in (scores.argmax(1), (scores + lift(taught)).argmax(1))
    )
    assert plain[2] < 0.35
    assert lifted[2] > 0.5
    assert min(*plain[:2], *lifted[:2]) > 0.98


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_neither_the_order_of_cells_nor_of_genes_matters(seed):
    rng = np.random.default_rng(seed)
    cells, genes = rng.permutation(120), rng.permutation(20)
    x = expression()
    weights, biases = fit_line(x, LABELS, tol=1e-7)
    other = fit_line(x[cells][:, genes], LABELS[cells], tol=1e-7)
    np.testing.assert_allclose(other[0], weights[:, genes], atol=1e-3)
    np.testing.assert_allclose(other[1], biases, atol=1e-3)
