"""Fit the linear branch: logistic regressions whose weights go through gene-set tokens.

The files in the order in which :meth:`tosica.TOSICA.train` uses them:

1. ``_classifier`` draws cells so that rare labels are kept, and reads their expression.
2. ``_label_errors`` finds cells of the reference with a wrong label (confident learning), which are
   left out.
3. ``_logistic`` fits one-vs-rest logistic regressions with a ridge, a nuisance penalty, and a group
   lasso over gene sets. The model also chooses its tokens by it.
4. ``_classifier`` averages regressions without and with group lasso, chooses their weights and the
   temperature by cross-validation, splits the weights of genes among tokens, and fits the
   probabilistic PCA that imputes genes which a query lacks.
5. ``_reference_statistics`` fits means, variances and components of the labels. ``_novelty`` and
   ``_neighborhoods`` compare cells and groups of cells of a query with them.

:meth:`tosica.TOSICA.load_query_data` adds labels to a model. ``_new_labels`` finds how the query
differs from the reference, draws cells like those of the reference, and fits regressions for the
new labels.

:meth:`tosica.TOSICA.adapt` learns from a query without labels: ``_self_training`` fits the cells of the query that
the model is sure of beside drawn cells.

Other packages import from here. :class:`~tosica.module._module.LinearBranch` holds the result.
"""

from tosica.linear._classifier import (
    MAX_CELLS,
    CrossValidated,
    LabeledRows,
    LinearClassifier,
    cross_fit,
    cross_validate,
    fit_classifier,
    fit_ppca,
    linear_to_network_ratio,
    logit_adjustment,
    split_among_tokens,
    subsample_by_label,
)
from tosica.linear._empirical_null import fit_null, pvalues, reference_null
from tosica.linear._interactions import Interaction, strongest_interaction
from tosica.linear._label_errors import find_label_errors
from tosica.linear._likeness import (
    HeldOutGenes,
    label_changes,
    label_likeness,
    permuted_genes_pvalue,
)
from tosica.linear._logistic import RegressionConfig, fit_regressions
from tosica.linear._neighborhoods import (
    LabelShift,
    Neighborhoods,
    contrast_distance,
    deviations_within_labels,
    distance_from_typical,
    find_neighborhoods,
    gene_excess,
    genes_of_cluster,
    label_shift,
    neighborhood_labels,
    standardize_robustly,
)
from tosica.linear._new_labels import (
    LabeledCells,
    find_label_shifts,
    fit_new_labels,
    replay_cells,
    split_in_two,
)
from tosica.linear._novelty import add_doubt, common_shift
from tosica.linear._reference_statistics import (
    MAX_CELLS_NOVELTY,
    MIN_CELLS,
    ReferenceStatistics,
    fit_statistics,
    gene_weights,
)
from tosica.linear._self_training import (
    N_ROUNDS,
    Adaptation,
    limit_confidence,
    self_train,
)
