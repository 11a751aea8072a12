"""Find labels that no linear branch can learn, and let the network learn them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from tosica._progress import progress
from tosica._settings import logger
from tosica.linear import strongest_interaction
from tosica.model._linear_fit import token_genes
from tosica.model._plan import TrainingPlanConfig

if TYPE_CHECKING:
    from tosica._types import FloatArray
    from tosica.model._state import TrainingState

# Draws of cells for each root of the number of training cells, as measured on made-up cells.
_DRAWS_PER_ROOT = 1_600
# A correlation of 0.3 is 13 standard errors in as many cells.
_MAX_CELLS = 2_000


def find_interactions(state: TrainingState) -> None:
    """Train the network longer, and without hidden genes, where labels are products of gene sets.

    With the default settings the network learns what the linear branch knows already, in little
    time: most genes and gene sets are hidden at each step, for cells of other batches. A product
    of two gene sets is learnt only where both are seen.
    """
    settings = state.settings
    has_defaults = settings.max_epochs is None and settings.plan == TrainingPlanConfig()
    if state.linear is None or not state.data.n_val or not has_defaults:
        return
    with progress(None, "train: interactions", enabled=state.shows_bar):
        rows = state.rows[state.data.val_idx].subsample(_MAX_CELLS)
        x = rows.expression()
        interaction = strongest_interaction(
            score_gene_sets(x, token_genes(state.model.module)),
            state.linear.probabilities(x),
            rows.labels,
        )
    if not interaction.matters:
        return
    names = state.model.tokens.names
    logger.info(
        "train: %s and %s tell %s together, which no linear branch can learn: the network is trained longer",
        *(names[token] for token in interaction.gene_sets),
        state.model.labels[interaction.label],
    )
    n_train = state.data.n_train
    state.n_epochs = math.ceil(_DRAWS_PER_ROOT * math.sqrt(n_train) / n_train)
    plan = replace(settings.plan, gene_dropout=0.0, token_dropout=0.0)
    state.settings = replace(settings, plan=plan)


def score_gene_sets(x: sp.csr_matrix, tokens: sp.csr_matrix) -> FloatArray:
    """Add the expression of each token's genes, in standard deviations, ``(n_cells, n_tokens)``."""
    mean = np.asarray(x.mean(0)).ravel()
    mean_square = np.asarray(x.multiply(x).mean(0)).ravel()
    spread = np.sqrt(np.maximum(mean_square - mean**2, 0))
    scale = np.divide(1, spread, out=np.zeros_like(spread), where=spread > 0)
    return (x @ sp.diags(scale) @ tokens.T).toarray()
