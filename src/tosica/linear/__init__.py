"""Fit the linear branch: logistic regressions whose weights go through gene-set tokens.

The files in the order in which :meth:`tosica.TOSICA.train` uses them:

1. ``_subsample`` draws cells so that rare labels are kept, and reads their expression.
2. ``_label_errors`` finds cells of the reference with a wrong label (confident learning), which
   are left out.
3. ``_batch_directions`` finds the directions along which the batches of the reference differ.
4. ``_logistic_regression`` fits one-vs-rest logistic regressions with a ridge, a nuisance penalty
   along such directions, and a group lasso over gene sets. The model also chooses its tokens by it.
5. ``_cross_fit`` fits classifiers to folds, so that each cell is scored by one that is new to it.
6. ``_classifier`` averages regressions without and with group lasso, chooses their weights and the
   temperature by cross-validation, and splits the weights of genes among tokens.
7. ``_missing_genes`` fits the probabilistic PCA that imputes genes which a query lacks.
8. ``_novelty`` fits what the novelty of cells is measured by.

:meth:`tosica.TOSICA.load_query_data` adds labels to a model. ``_label_shifts`` finds how the query
differs from the reference, ``_replay`` draws cells like those of the reference, and ``_new_labels``
fits regressions for the new labels.

Other packages import from here. :class:`~tosica.module._linear.LinearBranch` holds the result.
"""

from tosica.linear._batch_directions import find_batch_directions
from tosica.linear._classifier import (
    CrossValidated,
    LinearClassifier,
    cross_validate,
    fit_averaged_regression,
    fit_linear_classifier,
    linear_to_network_ratio,
    logit_adjustment,
)
from tosica.linear._label_errors import find_label_errors, flag_label_errors
from tosica.linear._label_shifts import LabelShifts, find_label_shifts
from tosica.linear._logistic_regression import (
    LogisticRegression,
    RegressionConfig,
    fit_logistic_regression,
)
from tosica.linear._missing_genes import fit_ppca
from tosica.linear._new_labels import LabeledCells, NewLabels, fit_new_labels
from tosica.linear._novelty import (
    CLUSTER_SIZE,
    MAX_CELLS_NOVELTY,
    NoveltyStatistics,
    averages_of,
    find_neighbor_components,
    fit_novelty,
    pvalues,
)
from tosica.linear._replay import replay_cells
from tosica.linear._subsample import MAX_CELLS, read_normalized, subsample_by_label

__all__ = [
    "CLUSTER_SIZE",
    "MAX_CELLS",
    "MAX_CELLS_NOVELTY",
    "CrossValidated",
    "LabelShifts",
    "LabeledCells",
    "LinearClassifier",
    "LogisticRegression",
    "NewLabels",
    "NoveltyStatistics",
    "RegressionConfig",
    "averages_of",
    "cross_validate",
    "find_batch_directions",
    "find_label_errors",
    "find_label_shifts",
    "find_neighbor_components",
    "fit_averaged_regression",
    "fit_linear_classifier",
    "fit_logistic_regression",
    "fit_new_labels",
    "fit_novelty",
    "fit_ppca",
    "flag_label_errors",
    "linear_to_network_ratio",
    "logit_adjustment",
    "pvalues",
    "read_normalized",
    "replay_cells",
    "subsample_by_label",
]
