"""Majority vote of the cells in small clusters, and the clusters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import fsum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from mudata import MuData

from tosica._obs import (
    HETEROGENEOUS,
    UNKNOWN,
    as_groups,
    check_target,
    read_groups,
    read_labels,
    read_numbers,
)
from tosica._parallel import keep_torch_threads
from tosica._progress import progress
from tosica._settings import logger
from tosica._text import (
    argument,
    describe_value,
    format_thousands,
    in_python,
    parameter,
)
from tosica._validate import FileKey, Fraction, InstanceOf, validate_params

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tosica._types import AnnOrMuData, BoolArray, FloatArray, IntArray

    Clusters: TypeAlias = (
        str
        | Sequence[str]
        | Sequence[int]
        | NDArray
        | pd.Series
        | pd.Categorical
        | pd.Index
    )

CLUSTERS = InstanceOf(
    "a column of adata.obs or one value a cell", str, Iterable, optional=True
)

# A cluster seems mixed if so many standard deviations more cells have another label than expected.
# In benchmarks' data, 20 of 22 such clusters lost right labels by the vote, and 1 gained some.
_SURPRISING = 2.0
# Clusters that a log message names.
_N_NAMED = 5
# Darker than the gray of "Unknown".
_HETEROGENEOUS_COLOR = "#808080"
# CellTypist's resolutions: number of cells below which each is used.
_RESOLUTIONS = ((5_000, 5), (20_000, 10), (40_000, 15), (100_000, 20), (200_000, 25))
_LARGEST_RESOLUTION = 30


@validate_params(
    over_clustering=CLUSTERS, min_prop=Fraction(), key_added=FileKey(optional=True)
)
def majority_vote(
    adata: AnnOrMuData,
    over_clustering: Clusters | None = None,
    min_prop: float = 0,
    *,
    key: str = "tosica",
    key_added: str | None = None,
    copy: bool = False,
) -> AnnOrMuData | None:
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
        computes Leiden clusters on the graph that :func:`scanpy.pp.neighbors` wrote. The resolution
        is CellTypist's: 5 below 5 000 cells, 10 below 20 000, 15 below 40 000, 20 below 100 000, 25
        below 200 000, else 30. This needs ``pip install 'tosica[leiden]'``. For a MuData without a
        graph of its own, that of the modality ``"rna"`` is taken.
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
        The colors of the labels, those of the prediction, if it has any.
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
        are missing in some, ``key_added`` is a column that is read here, or there is no graph.
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
    tosica.tl.evaluate : with ``prediction_key="tosica_majority_vote"``, whether it helped.

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
    check_target(adata, "majority_vote", copy=copy)
    predicted = read_groups(adata, f"{key}_prediction")
    key_added = key_added or f"{key}_majority_vote"
    inputs = [f"{key}_prediction", f"{key}_probability", f"{key}_over_clustering"]
    if isinstance(over_clustering, str):
        inputs.append(over_clustering)
    if key_added in inputs:
        raise ValueError(
            f"{parameter('key_added', key_added)} would overwrite what the vote is based on: rename it."
        )
    clusters = read_clusters(adata, over_clustering)
    labels = list(dict.fromkeys([*read_labels(adata, key), *predicted.categories]))
    if HETEROGENEOUS in labels:
        raise ValueError(
            f"A label is called {HETEROGENEOUS!r}, as mixed clusters are: rename the label."
        )
    labels = [label for label in labels if label != UNKNOWN]
    labels += [UNKNOWN, HETEROGENEOUS]
    label_of_cell = pd.Index(labels).get_indexer(predicted.categories)[predicted.codes]
    probability = None
    if f"{key}_probability" in adata.obs:
        probability = read_numbers(adata, f"{key}_probability")
    winners, shares = _winners(clusters, label_of_cell, len(labels), probability)
    heterogeneous = labels.index(HETEROGENEOUS)
    winners[shares < min_prop] = heterogeneous
    voted = winners[clusters.codes]
    is_changed = voted != label_of_cell
    _warn_of_mixed(clusters, is_changed & (voted != heterogeneous), probability)

    result = adata.copy() if copy else adata
    occurring = [labels[i] for i in np.unique(voted)]
    vote = pd.Categorical(np.array(labels, dtype=object)[voted], categories=occurring)
    if over_clustering is None:
        result.obs[f"{key}_over_clustering"] = clusters
    result.obs[key_added] = _in_type_of(adata.obs[f"{key}_prediction"], vote)
    colors = {**_prediction_colors(adata, key), HETEROGENEOUS: _HETEROGENEOUS_COLOR}
    # Colors of an earlier call may belong to other labels.
    result.uns.pop(f"{key_added}_colors", None)
    if colors.keys() >= set(occurring):
        result.uns[f"{key_added}_colors"] = [colors[label] for label in occurring]
    logger.info(
        "majority_vote: %s of %s cells have another label than before; added .obs[%r]",
        format_thousands(int(is_changed.sum())),
        format_thousands(adata.n_obs),
        key_added,
    )
    return result if copy else None


def _winners(
    clusters: pd.Categorical,
    label_of_cell: IntArray,
    n_labels: int,
    probability: FloatArray | None,
) -> tuple[IntArray, FloatArray]:
    """Winning label of each cluster, and its share of the cluster's cells."""
    votes = np.zeros((len(clusters.categories), n_labels), dtype=np.int64)
    np.add.at(votes, (clusters.codes, label_of_cell), 1)
    n_votes = votes.max(axis=1)
    winners = votes.argmax(axis=1)
    if probability is not None:
        is_tied = (votes == n_votes[:, None]).sum(axis=1) > 1
        for i in np.flatnonzero(is_tied):
            in_cluster = clusters.codes == i
            # With equally many cells each, sums compare as means do. They are exact, since with
            # rounding the order of the cells would decide.
            sums = {}
            for label in np.flatnonzero(votes[i] == n_votes[i]):
                is_voter = in_cluster & (label_of_cell == label)
                sums[label] = fsum(probability[is_voter])
            # The labels ascend, and max takes the first of several.
            winners[i] = max(sums, key=lambda label: sums[label])
    return winners, n_votes / votes.sum(axis=1)


def _warn_of_mixed(
    clusters: pd.Categorical,
    overruled: BoolArray,
    probability: FloatArray | None,
) -> None:
    """Warn in the log of clusters that seem to have several types."""
    n_clusters = len(clusters.categories)
    n_cells = np.bincount(clusters.codes, minlength=n_clusters)
    n_overruled = np.bincount(clusters.codes, overruled, n_clusters)
    if probability is None or not ((probability >= 0) & (probability <= 1)).all():
        mixed = n_overruled > n_cells / 2
        reason = "the label of the cluster has fewer than half of its cells"
    else:
        expected = np.bincount(clusters.codes, 1 - probability, n_clusters)
        variance = np.bincount(
            clusters.codes, probability * (1 - probability), n_clusters
        )
        limit = expected + _SURPRISING * np.sqrt(variance)
        mixed = n_overruled > np.maximum(limit, 1)
        reason = "more cells get another label than their probabilities explain"
    if not mixed.any():
        return
    worst = [i for i in np.argsort(-n_overruled, kind="stable") if mixed[i]]
    names = [
        f"{clusters.categories[i]!r} ({n_overruled[i]:.0f} of {n_cells[i]} cells)"
        for i in worst[:_N_NAMED]
    ]
    if len(worst) > _N_NAMED:
        names.append("…")
    logger.warning(
        "majority_vote: in %d of %d clusters %s, so they seem to have several types, and the vote may be worse than "
        "the labels before: %s; cluster more finely, or call mixed clusters Heterogeneous by %s",
        len(worst),
        n_clusters,
        reason,
        ", ".join(names),
        argument("min_prop"),
    )


def _in_type_of(column: pd.Series, vote: pd.Categorical) -> pd.Categorical:
    """Give labels the type that they have in the prediction, if all of them are in it."""
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return vote
    value_of = {str(value): value for value in column.cat.categories}
    if not set(vote.categories) <= set(value_of):
        return vote
    categories = pd.Index(
        [value_of[name] for name in vote.categories], dtype=column.cat.categories.dtype
    )
    return pd.Categorical.from_codes(vote.codes, categories, ordered=column.cat.ordered)


def _prediction_colors(adata: AnnOrMuData, key: str) -> dict[str, str]:
    """Color of each predicted label, if there are colors."""
    column = adata.obs[f"{key}_prediction"]
    colors = adata.uns.get(f"{key}_prediction_colors", ())
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return {}
    if len(colors) != len(column.cat.categories):
        return {}
    return dict(zip(map(str, column.cat.categories), map(str, colors), strict=True))


@keep_torch_threads()
def over_cluster(data: AnnOrMuData) -> pd.Categorical:
    """Cluster cells by Leiden, with a resolution that grows with the number of cells.

    Parameters
    ----------
    data
        Cells with a graph, which are not changed.

    Returns
    -------
    Categorical of length ``n_obs`` with categories ``"0"``, ``"1"``, ....

    Raises
    ------
    ImportError
        If igraph is missing.
    ValueError
        If there is no graph.
    """
    if data.n_obs == 1:
        return pd.Categorical.from_codes([0], pd.Index(["0"], dtype=object))
    try:
        import igraph  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Clustering cells needs the igraph package: pip install 'tosica[leiden]', or pass "
            f"clusters of your own as {argument('over_clustering')}."
        ) from error
    graph = data
    order = np.arange(data.n_obs)
    if isinstance(data, MuData) and "neighbors" not in data.uns and "rna" in data.mod:
        # A modality may have its cells in another order.
        graph = data["rna"]
        order = graph.obs_names.get_indexer(data.obs_names)
    record = graph.uns.get("neighbors", {})
    graph_key = record.get("connectivities_key", "connectivities")
    if not record or graph_key not in graph.obsp or (order < 0).any():
        cure = in_python("call scanpy.pp.neighbors(adata) first, or ")
        raise ValueError(
            "There is no graph of all cells in adata.uns['neighbors'] to cluster: "
            f"{cure}pass clusters of your own as {argument('over_clustering')}."
        )
    finer = (resolution for n, resolution in _RESOLUTIONS if data.n_obs < n)
    resolution = next(finer, _LARGEST_RESOLUTION)
    # In a new object, because scanpy writes into uns, too.
    cells = AnnData(obs=pd.DataFrame(index=graph.obs_names.astype(str)))
    with progress(None, "over-clustering"):
        sc.tl.leiden(
            cells,
            resolution,
            adjacency=graph.obsp[graph_key],
            key_added="cluster",
            flavor="igraph",
            n_iterations=2,
            directed=False,
            random_state=0,
        )
    clusters = pd.Categorical(cells.obs["cluster"])[order]
    embedding = record.get("params", {}).get("use_rep")
    logger.info(
        "over-clustering: %s cells in %d clusters (Leiden, resolution %d%s)",
        format_thousands(data.n_obs),
        len(clusters.categories),
        resolution,
        f", on a graph that was made from {embedding!r}" if embedding else "",
    )
    return clusters


def read_clusters(adata: AnnOrMuData, values: Clusters | None) -> pd.Categorical:
    """Read clusters from a column of ``obs`` or from one value a cell; ``None`` computes them.

    Raises
    ------
    KeyError
        If there is no such column.
    TypeError, ValueError
        If the values cannot be read as clusters, are not one a cell, or are missing in some cells.
    """
    if values is None:
        return over_cluster(adata)
    if isinstance(values, str):
        return read_groups(adata, values)
    try:
        n_dimensions = np.ndim(values)
    except ValueError:  # lists of several lengths
        n_dimensions = 2
    if isinstance(values, pd.DataFrame | Mapping) or n_dimensions != 1:
        raise TypeError(
            f"over_clustering must be {CLUSTERS.description}, not {describe_value(values)}."
        )
    column = values if isinstance(values, pd.Series) else pd.Series(values)
    is_named = not isinstance(column.index, pd.RangeIndex)
    if is_named:
        is_named = not column.index.equals(adata.obs_names)
    fits = True
    if is_named:
        is_subset = adata.obs_names.isin(column.index).all()
        fits = column.index.is_unique and bool(is_subset)
    if len(column) != adata.n_obs or not fits:
        names = "" if fits else " with other names: pass .to_numpy() of it"
        raise ValueError(
            f"over_clustering must have a value for each of the {adata.n_obs} cells, in their order or as a Series "
            f"with their names, not {len(column)} values{names}."
        )
    if is_named:
        column = column.reindex(adata.obs_names)
    return as_groups(column, "over_clustering")
