"""Majority vote: one label for all cells of a cluster."""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica._constants import HETEROGENEOUS, UNKNOWN
from tosica._groups import read_groups, read_labels, read_numbers
from tosica._logging import format_thousands, logger
from tosica._validation import (
    check_data,
    check_flags,
    check_fraction,
    check_key_added,
    check_string,
)
from tosica.tl._over_cluster import over_cluster, read_clusters

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData
    from numpy.typing import NDArray

    from tosica.tl._over_cluster import Clusters

# A cluster seems mixed if so many standard deviations more cells have another label than expected.
# In benchmarks' data, 20 of 22 such clusters lost right labels by the vote, and 1 gained some.
_SURPRISING = 2.0
# Clusters that a log message names.
_SHOWN = 5
# Darker than the grey of "Unknown".
_HETEROGENEOUS_COLOR = "#808080"


def majority_vote(
    adata: AnnData | MuData,
    over_clustering: Clusters | None = None,
    min_prop: float = 0,
    *,
    key: str = "tosica",
    key_added: str | None = None,
    copy: bool = False,
) -> AnnData | MuData | None:
    r"""Give all cells of a small cluster the label that most of them have, as CellTypist does.

    The majority voting of CellTypist :cite:p:`DominguezConde2022` corrects single cells whose label
    differs from that of similar cells. Cells are clustered so finely that a cluster should have one
    type. Where it has several, the rarer type gets the wrong label. The log names clusters where
    this seems so, see below.

    Parameters
    ----------
    adata
        Query, an AnnData or a MuData, that ``model.annotate`` has annotated.
    over_clustering
        Clusters of the cells: a column of ``adata.obs``, or one value a cell in the order of the
        cells (a Series with the names of the cells as its index may have another order). ``None``
        computes Leiden clusters: on the graph in ``adata.uns["neighbors"]`` if there is one, else
        on neighbours in ``adata.obsm["X_pca"]`` if it exists, else on neighbours in a PCA of
        ``adata.X`` (counts are log-normalised first, in a copy). The log says which. The resolution
        is CellTypist's: 5 below 5 000 cells, 10 below 20 000, 15 below 40 000, 20 below 100 000, 25
        below 200 000, else 30. This needs ``pip install 'tosica[leiden]'``. For a MuData without a
        graph, the modality ``"rna"`` is clustered.
    min_prop
        Least share of a cluster's cells, from 0 to 1, that the winning label must have; below it
        the cluster is called "Heterogeneous".
    key
        ``key_added`` of ``model.annotate``.
    key_added
        Column of ``adata.obs`` for the result; ``None`` is ``f"{key}_majority_vote"``.
    copy
        Leave ``adata`` as it is and return a copy with the result.

    Returns
    -------
    ``None``, or with ``copy=True`` the copy. Written:

    ``adata.obs["tosica_majority_vote"]``
        Categorical: the labels that occur, in the model's order, then "Unknown", then
        "Heterogeneous".
    ``adata.uns["tosica_majority_vote_colors"]``
        The colours of the labels, those of the prediction, if it has any.
    ``adata.obs["tosica_over_clustering"]``
        Categorical, with ``over_clustering=None``: the Leiden clusters.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or the column of clusters is missing.
    TypeError
        If ``adata`` is neither AnnData nor MuData, ``over_clustering`` does not hold clusters, or
        ``min_prop`` is not a number.
    ValueError
        If there are no cells, ``min_prop`` is not between 0 and 1, clusters are not one a cell or
        are missing in some, ``key_added`` is a column that is read here, or there is nothing to
        cluster by.
    ImportError
        If clusters are to be computed and igraph is missing.

    Notes
    -----
    "Unknown" is counted as any label is: such cells count in the size of a cluster, and a cluster
    becomes "Unknown" if most of its cells are. Of labels with equally many votes the one whose
    cells have the higher mean probability wins, then the first in the model's order.

    If a cluster has one type and the probabilities :math:`p_i` are calibrated, about
    :math:`\sum_i (1 - p_i)` of its cells have another label than most of them. The log warns of
    clusters with more such cells, by over two standard deviations: they seem to have several types,
    so the vote is wrong for some. In the data of the benchmarks, the vote made labels worse in 20
    of 22 such clusters. Without probabilities, it warns of clusters whose label has fewer than half
    of the cells.

    The vote does
    not depend on the order of the cells. Leiden clusters are the same at each call, but may differ
    if the cells are shuffled.

    A graph on ``"X_tosica"`` depends on the model, too. A graph on the expression is more
    independent of the predictions.

    See Also
    --------
    tosica.tl.evaluate : with ``prediction="tosica_majority_vote"``, whether it helped.

    Examples
    --------
    A prediction that mistakes every fifth cell stands for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> mistaken = np.arange(adata.n_obs) % 5 == 0
    >>> prediction = adata.obs["bulk_labels"].astype(str).mask(mistaken, "CD34+")
    >>> adata.obs["tosica_prediction"] = prediction.astype("category")
    >>> tosica.tl.majority_vote(adata, over_clustering="louvain", min_prop=0.4)
    >>> adata.obs["tosica_majority_vote"].cat.categories[-1]
    'Heterogeneous'
    """
    check_data(adata, mudata=True)
    check_fraction("min_prop", min_prop)
    check_string("key", key)
    check_key_added(key_added, optional=True)
    check_flags(copy=copy)
    predicted = read_groups(adata, f"{key}_prediction")
    result_key = f"{key}_majority_vote" if key_added is None else key_added
    read = {f"{key}_{name}" for name in ("prediction", "probability", "over_clustering")}
    if isinstance(over_clustering, str):
        read.add(over_clustering)
    if result_key in read:
        raise ValueError(
            f"key_added={result_key!r} would overwrite what the vote is based on: rename it."
        )
    if over_clustering is None:
        clusters = over_cluster(adata)
    else:
        clusters = read_clusters(adata, over_clustering)

    labels = _model_order(adata, predicted, key)
    if HETEROGENEOUS in labels:
        raise ValueError(
            f"A label is called {HETEROGENEOUS!r}, as mixed clusters are: rename the label."
        )
    label_of_cell = pd.Index(labels).get_indexer(predicted.categories)[predicted.codes]
    probability = None
    if f"{key}_probability" in adata.obs:
        probability = read_numbers(adata, f"{key}_probability")
    winners, shares = _winners(clusters, label_of_cell, len(labels), probability)
    labels = list(dict.fromkeys([*labels, HETEROGENEOUS]))
    winners[shares < min_prop] = labels.index(HETEROGENEOUS)
    voted = winners[clusters.codes]
    _warn_of_mixed(clusters, voted, label_of_cell, probability, labels.index(HETEROGENEOUS))

    target = adata.copy() if copy else adata
    occurring = [labels[i] for i in np.unique(voted)]
    vote = _in_type_of(
        adata.obs[f"{key}_prediction"],
        pd.Categorical(np.array(labels, dtype=object)[voted], categories=occurring),
    )
    keys = []
    if over_clustering is None:
        target.obs[f"{key}_over_clustering"] = clusters
        keys.append(f".obs['{key}_over_clustering']")
    target.obs[result_key] = vote
    colors = _prediction_colors(adata, key)
    # Colors of an earlier call may belong to other labels.
    target.uns.pop(f"{result_key}_colors", None)
    if set(occurring) <= {*colors, HETEROGENEOUS}:
        target.uns[f"{result_key}_colors"] = [
            colors.get(label, _HETEROGENEOUS_COLOR) for label in occurring
        ]
    changed = int((np.asarray(vote).astype(str) != np.asarray(predicted).astype(str)).sum())
    logger.info(
        "majority_vote: %s of %s cells have another label than before; added %s",
        format_thousands(changed),
        format_thousands(adata.n_obs),
        ", ".join([f".obs['{result_key}']", *keys]),
    )
    return target if copy else None


def _model_order(adata: AnnData | MuData, predicted: pd.Categorical, key: str) -> list[str]:
    """Labels in the model's order, then other predictions, then "Unknown"."""
    labels = dict.fromkeys([*read_labels(adata, key), *predicted.categories])
    return [*(label for label in labels if label != UNKNOWN), UNKNOWN]


def _winners(
    clusters: pd.Categorical,
    label_of_cell: NDArray[np.intp],
    n_labels: int,
    probability: NDArray[np.float64] | None,
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Winning label of each cluster, and its share of the cluster's cells."""
    votes = np.zeros((len(clusters.categories), n_labels), dtype=np.int64)
    np.add.at(votes, (clusters.codes, label_of_cell), 1)
    most = votes.max(axis=1)
    winners = votes.argmax(axis=1)
    if probability is not None:
        for i in np.flatnonzero((votes == most[:, None]).sum(axis=1) > 1):
            inside = clusters.codes == i
            # With equally many cells each, sums compare as means do. They are exact, since with
            # rounding the order of the cells would decide.
            sums = {
                label: fsum(probability[inside & (label_of_cell == label)])
                for label in np.flatnonzero(votes[i] == most[i])
            }
            winners[i] = max(sums, key=lambda label: (sums[label], -label))
    return winners, most / votes.sum(axis=1)


def _warn_of_mixed(
    clusters: pd.Categorical,
    voted: NDArray[np.intp],
    label_of_cell: NDArray[np.intp],
    probability: NDArray[np.float64] | None,
    heterogeneous: int,
) -> None:
    """Warn in the log of clusters that seem to have several types."""
    n = len(clusters.categories)
    size = np.bincount(clusters.codes, minlength=n)
    overruled = (voted != label_of_cell) & (voted != heterogeneous)
    n_overruled = np.bincount(clusters.codes, overruled, n)
    if probability is None or not ((probability >= 0) & (probability <= 1)).all():
        mixed = n_overruled > size / 2
        why = "the label of the cluster has fewer than half of its cells"
    else:
        expected = np.bincount(clusters.codes, 1 - probability, n)
        variance = np.bincount(clusters.codes, probability * (1 - probability), n)
        mixed = n_overruled > np.maximum(expected + _SURPRISING * np.sqrt(variance), 1)
        why = "more cells get another label than their probabilities explain"
    found = np.flatnonzero(mixed)
    if not len(found):
        return
    worst = found[np.argsort(-n_overruled[found], kind="stable")]
    shown = ", ".join(
        f"{clusters.categories[i]!r} ({n_overruled[i]:.0f} of {size[i]} cells)"
        for i in worst[:_SHOWN]
    )
    logger.warning(
        "majority_vote: in %d of %d clusters %s, so they seem to have several types, and the vote "
        "may be worse than the labels before: %s%s; cluster more finely, or call mixed clusters "
        "Heterogeneous by min_prop",
        len(found),
        n,
        why,
        shown,
        ", …" if len(worst) > _SHOWN else "",
    )


def _in_type_of(column: pd.Series, vote: pd.Categorical) -> pd.Categorical:
    """Give labels the type that they have in the prediction, if all of them are in it."""
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return vote
    value_of = {str(value): value for value in column.cat.categories}
    if not set(vote.categories) <= set(value_of):
        return vote
    categories = pd.Index([value_of[name] for name in vote.categories])
    return pd.Categorical.from_codes(
        vote.codes,
        categories=categories.astype(column.cat.categories.dtype),
        ordered=column.cat.ordered,
    )


def _prediction_colors(adata: AnnData | MuData, key: str) -> dict[str, str]:
    """Color of each predicted label, if there are colors."""
    column = adata.obs[f"{key}_prediction"]
    stored = adata.uns.get(f"{key}_prediction_colors", ())
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return {}
    names = [str(name) for name in column.cat.categories]
    if len(stored) != len(names):
        return {}
    return {name: str(color) for name, color in zip(names, stored, strict=True)}
