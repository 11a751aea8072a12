"""How much the expression of a gene depends on the study, beside the type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica.pp._impute_genes import log_normalize

if TYPE_CHECKING:
    from anndata import AnnData

    from tosica._types import FloatArray

# The mean of fewer cells varies by chance more than by study.
_MIN_CELLS = 10
# Means over types and over studies are subtracted in turn, until they change no more.
_N_ROUNDS = 20


def study_share(cells: AnnData) -> FloatArray:
    r"""Compute the share of study in the variance of a gene's mean expression over types and studies.

    The mean of type :math:`t` in study :math:`s`, log-normalized, is modeled as the sum of a number of the
    type and one of the study, for the groups with ten cells or more:
    :math:`m_{ts} = a_t + b_s + e_{ts}`. The share is

    .. math:: \frac{\overline{(m_{ts} - a_t)^2}}{\overline{(m_{ts} - a_t)^2} + \operatorname{var}(a_t)}.

    Parameters
    ----------
    cells
        Counts with ``cell_type`` and ``reference`` in ``obs``.

    Returns
    -------
    Numbers from 0 to 1, ``(n_genes,)``; 0 where no type is in two studies.
    """
    means = _group_means(cells)
    if not means.size:
        return np.zeros(cells.n_vars)
    of_type = np.nanmean(means, axis=0)
    for _ in range(_N_ROUNDS):
        of_study = np.nanmean(means - of_type, axis=1)
        of_study -= of_study.mean(0)
        of_type = np.nanmean(means - of_study[:, None], axis=0)
    by_study = np.nanmean(np.square(means - of_type), axis=(0, 1))
    total = by_study + of_type.var(0)
    return np.divide(by_study, total, out=np.zeros_like(total), where=total > 0)


def _group_means(cells: AnnData) -> FloatArray:
    """Mean expression of each type in each study, ``(n_studies, n_types, n_genes)``, NaN for few cells.

    Types and studies without a group of enough cells are left out.
    """
    expression = log_normalize(cells.X)
    groups = cells.obs.groupby(["reference", "cell_type"], observed=True).indices
    groups = {group: rows for group, rows in groups.items() if len(rows) >= _MIN_CELLS}
    studies = pd.Index(sorted({study for study, _ in groups}))
    types = pd.Index(sorted({cell_type for _, cell_type in groups}))
    means = np.full((len(studies), len(types), cells.n_vars), np.nan)
    for (study, cell_type), rows in groups.items():
        mean = np.asarray(expression[rows].mean(0)).ravel()
        means[studies.get_loc(study), types.get_loc(cell_type)] = mean
    return means
