"""Logistic regression over gene sets: against its formula, and in edge cases."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from tosica.linear import RegressionConfig, fit_regressions
from tosica.linear._logistic import within_class_directions

LABELS = np.repeat([0, 1, 2], [60, 40, 20])
# The optimizer runs until it converges.
CONVERGED = RegressionConfig(
    max_iter=5000,
    max_iter_reweighted=200,
    n_reweightings=100,
    tol=1e-9,
    group_penalty=0,
)


def expression(seed=0):
    """Labels differ in genes 0 to 2, cells of each label in genes 10 to 12."""
    rng = np.random.default_rng(seed)
    x = rng.gamma(1.0, size=(120, 20)) + np.eye(3)[LABELS] @ np.eye(3, 20)
    x[:, 10:13] += 4 * rng.integers(0, 2, (120, 1))
    return sp.csr_matrix(x)


def test_within_class_directions_are_principal_components():
    rng = np.random.default_rng(0)
    x = rng.gamma(1.0, size=(120, 300)) + 2 * np.eye(3)[LABELS] @ np.eye(3, 300)
    x += (
        8
        * rng.normal(size=(120, 5))
        * [5, 4, 3, 2, 1]
        @ rng.normal(size=(5, 300))
        / 300**0.5
    )
    directions = within_class_directions(sp.csr_matrix(x, dtype=np.float32), LABELS, 5)
    counts = np.array([60 / 70, 40 / 50, 20 / 30])
    counts /= counts.sum()
    for label in range(3):
        of_label = np.flatnonzero(label == LABELS)
        x[of_label] -= x[of_label].mean(0)
        x[of_label] *= np.sqrt(counts[label] / len(of_label))
    squares, axes = np.linalg.eigh(x.T @ x)
    expected = (axes[:, -5:] * squares[-5:]) @ axes[:, -5:].T
    np.testing.assert_allclose(
        directions.T @ directions, expected, atol=2e-3 * np.abs(expected).max()
    )


@pytest.mark.parametrize(("dtype", "seed"), [(np.float32, 0), (np.float64, 1)])
def test_identical_cells_differ_along_no_direction(dtype, seed):
    profiles = np.random.default_rng(seed).gamma(1.0, size=(3, 8)).astype(dtype)
    x = sp.csr_matrix(profiles[LABELS])
    assert within_class_directions(x, LABELS, 5).shape == (0, 8)
    weights = fit_regressions(x, LABELS).lasso
    assert ((x @ weights.T).argmax(1) == LABELS).all()


# ------------------------------------------------------------------ gene sets


# Overlapping; nested; and genes 17 to 19 are in none.
SETS = [
    [0, 3, 4],
    [1, 5, 6, 7],
    [2, 8],
    [0, 1, 2, 9],
    [10, 11, 12],
    [3, 4, 13, 14, 15],
    [13, 16],
]


def members(sets=SETS, n_genes=20):
    """Which gene is in which set."""
    table = np.zeros((len(sets), n_genes))
    for row, genes in enumerate(sets):
        table[row, genes] = 1
    return sp.csr_matrix(table)


class Objective:
    """The objective as a function of the latent vectors of all labels and sets, written out."""

    def __init__(
        self,
        x,
        directions,
        penalty,
        labels=LABELS,
        sets=SETS,
    ):
        n_cells, self.n_genes = x.shape
        self.m = np.asarray(x.mean(0)).ravel() ** 0.25
        self.z = x.toarray() / self.m
        self.is_label = np.eye(labels.max() + 1, dtype=bool)[labels]
        self.n_labels = self.is_label.shape[1]
        self.balance = 1 / (self.n_labels * np.bincount(labels))[labels, None]
        self.ridge = 1 / (10 * n_cells)
        within = (0.1 * max(1, n_cells / 500)) ** 0.5 * within_class_directions(
            x, labels, 5
        )
        self.nuisance = (
            np.vstack([within, 10**0.5 * directions]) / n_cells**0.5 / self.m
        )
        self.penalty = penalty
        self.genes = np.concatenate(sets)
        self.token = np.repeat(np.arange(len(sets)), list(map(len, sets)))
        self.root = np.sqrt(list(map(len, sets)))

    def __call__(self, flat, rounded=0.0):
        """Value and gradient at the vectors; norms may be rounded at zero."""
        v = flat.reshape(self.n_labels, -1)
        w = np.zeros((self.n_labels, self.n_genes))
        np.add.at(w.T, self.genes, v.T)
        scores = self.z @ w.T
        errors = (expit(scores) - self.is_label) * self.balance
        along = w @ self.nuisance.T
        squares = np.zeros((self.n_labels, len(self.root)))
        np.add.at(squares.T, self.token, (v**2).T)
        norms = np.sqrt(squares + rounded**2)
        value = -(
            log_expit(np.where(self.is_label, scores, -scores)) * self.balance
        ).sum()
        value += self.ridge * (w**2).sum() / 2 + (along**2).sum() / 2
        value += self.penalty * (norms @ self.root).sum()
        slope = (errors.T @ self.z + self.ridge * w + along @ self.nuisance)[
            :, self.genes
        ]
        if rounded:
            slope = slope + self.penalty * (self.root / norms)[:, self.token] * v
        return value, slope.ravel()

    def minimum(self):
        """The least value that a plain search finds; norms are rounded less and less."""
        flat = np.zeros(3 * len(self.genes))
        for rounded in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
            options = {"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-10}
            optimum = minimize(
                self, flat, (rounded,), jac=True, method="L-BFGS-B", options=options
            )
            flat = optimum.x
        return self(flat)[0]

    def at(self, regression):
        """Value of a regression whose weights are divided by the sets' relevance."""
        total = regression.relevance @ members()
        share = np.divide(
            regression.lasso * self.m, total, out=0 * total, where=total > 0
        )
        v = share[:, self.genes] * regression.relevance[:, self.token]
        return self(v.ravel())[0]


@pytest.mark.parametrize(
    ("n_labels", "with_batches", "n_times"),
    [(3, False, 10), (3, True, 1), (2, False, 1)],
)
def test_without_gene_sets_it_is_the_optimum_of_its_formula(
    n_labels, with_batches, n_times
):
    x = sp.vstack([expression(seed) for seed in range(n_times)]).tocsr()
    labels = np.tile(LABELS, n_times)
    x = x[labels < n_labels]
    labels = labels[labels < n_labels]
    directions = (
        np.random.default_rng(1).random((2, 20)) if with_batches else np.zeros((0, 20))
    )
    batch_directions = directions if with_batches else None
    weights, lasso, relevance = fit_regressions(
        x, labels, batch_directions=batch_directions, config=CONVERGED
    )
    assert lasso.tolist() == weights.tolist()
    assert not relevance.size
    objective = Objective(x, directions, 0, labels, [[gene] for gene in range(20)])
    slope, elsewhere = (
        objective(v)[1]
        for v in ((weights * objective.m).ravel(), np.zeros(weights.size))
    )
    assert np.abs(slope).max() < 1e-3 * np.abs(elsewhere).max()


@pytest.mark.parametrize("penalty", [1e-4, 3e-2])
def test_with_gene_sets_it_is_the_optimum_of_its_formula(penalty):
    x = expression()
    directions = np.random.default_rng(1).random((2, 20))
    objective = Objective(x, directions, penalty)
    least = objective.minimum()
    nothing = objective(np.zeros(3 * len(objective.genes)))[0]
    converged = replace(CONVERGED, group_penalty=penalty, tol=1e-7)
    for config, excess in (
        (RegressionConfig(group_penalty=penalty), 1e-2),
        (converged, 1e-5),
    ):
        regression = fit_regressions(
            x, LABELS, batch_directions=directions, gene_sets=members(), config=config
        )
        assert -1e-6 < (objective.at(regression) - least) / (nothing - least) < excess


@pytest.mark.parametrize("penalty", [0.0, 1e-4, 1e-2])
def test_genes_in_no_set_get_no_weight(penalty):
    config = RegressionConfig(group_penalty=penalty)
    _, weights, relevance = fit_regressions(
        expression(), LABELS, gene_sets=members(), config=config
    )
    in_a_set = np.asarray(members().sum(0)).ravel() > 0
    assert not weights[:, ~in_a_set].any()
    assert weights[:, in_a_set].any(0).all()
    if penalty:
        assert relevance.shape == (3, len(SETS))
        assert (relevance >= 0).all()
    else:
        assert not relevance.size
