"""Novelty of cells and clusters, corrected for the difference that all cells share."""

from __future__ import annotations

import warnings
from itertools import count, islice
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from sklearn.cluster import KMeans

from tosica._obs import check_target, read_groups, read_numbers
from tosica._progress import progress
from tosica._settings import logger, only_warnings, query_logger
from tosica._validate import validate_params
from tosica.data import load_annotations
from tosica.linear import (
    MAX_CELLS_NOVELTY,
    MIN_CELLS,
    LabelShift,
    Neighborhoods,
    ReferenceStatistics,
    add_doubt,
    common_shift,
    contrast_distance,
    deviations_within_labels,
    distance_from_typical,
    find_neighborhoods,
    fit_null,
    fit_statistics,
    gene_excess,
    genes_of_cluster,
    label_shift,
    neighborhood_labels,
    pvalues,
    reference_null,
    standardize_robustly,
    subsample_by_label,
)
from tosica.model._fields import clean_labels
from tosica.model._query_loader import QueryExpression, read_all
from tosica.tl._evidence import ANNOTATED_BY_MODEL, annotating_model
from tosica.tl._majority_vote import CLUSTERS, read_clusters

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray
    from tqdm.std import tqdm

    from tosica._types import FloatArray, IntArray
    from tosica.model import TOSICA
    from tosica.tl._majority_vote import Clusters

_BATCH_SIZE = 512
# Cells of a cluster that make its score surer.
_MOST_CELLS_THAT_COUNT = 50
# Clusters of a label: the time of k-means grows with their number times that of the cells.
_MAX_CLUSTERS = 100
# Genes of a cluster that are named.
_N_GENES = 5
# So many that two clusters share say that they are alike: of 1 000 genes, five and five that are drawn share two with a
# probability of 2e-4 (hypergeometric), and one with 0.02.
_N_GENES_SHARED = 2


@validate_params(**ANNOTATED_BY_MODEL, over_clustering=CLUSTERS)
def novelty(
    adata: AnnData,
    model: TOSICA,
    reference: AnnData | None = None,
    *,
    over_clustering: Clusters | None = None,
    layer: str | None = None,
    use_raw: bool = False,
    correct_batch: bool = True,
    key: str = "tosica",
    copy: bool = False,
) -> AnnData | None:
    r"""Score cells and clusters of the query that may be of a type the reference lacks.

    A model often gives a high probability to cells of a type that it was not trained on, and genes
    of such a type hardly vary in the reference. The score is a sum of measures, each in robust
    standard deviations over the query's cells:

    1. that of ``model.annotate``: the distance of the cell from the nearest label, over genes and
       in principal components of the reference, and 1 - its probability,
    2. the difference of the cell's neighborhood (five cells, in the query's own components of cells of unit
       length) from its label in the 20 genes that differ most,
    3. the neighborhood's mean of the first.

    If the query's labels have a difference from the reference in common, as those of another batch do, then the query
    tells better than the reference what its labels are like. Three measures take the place of the third:

    - the distance of the neighborhood from the query's own typical cells of the nearest label, which are the half of
      its cells with the highest probability,
    - the same, where they are the half with the lowest sum of the first two measures,
    - the cosine distance of what sets the neighborhood apart from the query and what sets its label apart from the
      reference.

    If it was looked for and there is none, components are those of genes in standard deviations.

    Known batches are taken off: for each gene, the median over the labels of the difference between
    query and reference is subtracted, and genes in which this difference varies among labels count
    less. A batch or a treatment changes most types, while a new type is found under one label or
    two. (If only two labels have five cells, the smaller of two differences with the same sign is
    subtracted.) Distances of the first measure are compared with what is typical of their label in
    the reference, after they were lowered until the lowest tenth of each label's cells is as low as
    the reference's, and divided by how much further they spread in most labels, if they do.

    No difference is subtracted in the first measure, and its spread is kept, if the difference is no
    larger than between two samples of the same cells. A query in which only one label has five
    cells is not corrected at all, because a batch effect and a new type look the same in it. Fewer
    than 25 cells have no components of their own, and are scored by the first measure alone.

    Parameters
    ----------
    adata
        Query that this model has annotated. Of one that :func:`anndata.experimental.read_lazy`
        opened, ``X`` stays on disk.
    model
        The model.
    reference
        Cells with the column of labels that the model was set up with, to compare with. By default
        what the model knows of the cells that it was trained on. Needed for models of the original
        code, and for models that were saved before they kept this.
    over_clustering
        Column of ``adata.obs`` or a sequence, ``(n_obs,)``, with clusters of the query. By default
        the cells of each predicted label are split by k-means, in the query's components, into as many clusters as
        the square root of their number, at most 100. The score of a cluster is the median over its cells in standard
        errors, :math:`\sqrt{2 n / \pi}` times the median with at most :math:`n = 50` cells, and its
        p-value twice the median of theirs, which is valid however they depend on each other.
    layer, use_raw
        Where the query's expression is, as in ``model.annotate``.
    correct_batch
        Correct for what the query has in common, as described above. ``False`` is for queries of
        the reference's batch or technology that hold few types, such as sorted cells: if all cells
        are new, then that is what they have in common.
    key
        ``key_added`` of ``model.annotate``.
    copy
        Leave ``adata`` as it is and return a copy with the result.

    Returns
    -------
    ``None``, or the copy if ``copy=True``. Written are, float32,

    ``adata.obs["tosica_novelty"]``, ``adata.obs["tosica_novelty_pvalue"]``
        Score of each cell in robust standard deviations above the query's median, and the share of
        the reference's cells that are as distant for their label (a conformal p-value). They
        take the place of those of ``annotate``.
    ``adata.obs["tosica_novelty_cluster"]``, ``adata.obs["tosica_novelty_cluster_pvalue"]``
        Score and p-value of the cell's cluster. Order clusters by the score: a p-value of few cells of a small
        reference is never very small.
    ``adata.obs["tosica_novelty_group"]``
        The cell's cluster, categorical: ``"B cell 2"`` is the second of those labeled B cell.
    ``adata.uns["tosica_novelty"]``
        Table of the clusters, the highest score first: ``cluster``, ``n_cells``, ``label`` (of most
        of its cells), ``score``, ``pvalue``, ``genes``, which it expresses more than this label
        does in the reference, the batch taken off, separated by commas, first those that it expresses more than any
        label, and ``similar_to``, the first cluster above with two of these genes, or empty.

    ``adata.uns["tosica"]["novelty_corrected"]``
        Whether the difference of a batch was taken off in the first measure, bool.

    The p-values hold for one cell or one cluster each: among many, correct for the number of
    tests, for instance by :func:`scipy.stats.false_discovery_control`.

    Raises
    ------
    KeyError, TypeError, ValueError
        If ``adata`` was not annotated by this model, the model is one of a MuData or does not know
        its reference and none is given, a column is missing, or clusters do not fit the cells.

    See Also
    --------
    tosica.pl.novelty : boxes of the novelty of each label.

    References
    ----------
    Bates, Candès, Lei, Romano and Sesia, *Testing for outliers with conformal p-values*, Ann. Stat.
    51, 149 (2023). Efron, *Large-scale simultaneous hypothesis testing: the choice of a null
    hypothesis*, J. Am. Stat. Assoc. 99, 96 (2004). Lee, Lee, Lee and Shin, *A simple unified framework for detecting
    out-of-distribution samples*, NeurIPS 2018. Rüger, *Das maximale Signifikanzniveau des Tests
    "Lehne H₀ ab, wenn k unter n gegebenen Tests zur Ablehnung führen"*, Metrika 25, 171 (1978).

    Examples
    --------
    B cells are not in the reference, and most of them get another label:

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import scvi
    >>> import tosica
    >>> scvi.settings.seed = 0
    >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> by_label = np.argsort(adata.obs["bulk_labels"].cat.codes, kind="stable")
    >>> query, reference = adata[by_label[::2]].copy(), adata[by_label[1::2]].copy()
    >>> reference = reference[reference.obs["bulk_labels"] != "CD19+ B"].copy()
    >>> tosica.pp.build_mask(reference, max_gene_sets=30)
    >>> tosica.TOSICA.setup_anndata(reference, labels_key="bulk_labels")
    >>> model = tosica.TOSICA(reference, embed_dim=16)
    >>> model.train(max_epochs=10, enable_progress_bar=False)
    >>> model.annotate(query)
    >>> tosica.tl.novelty(query, model)
    >>> query.obs.groupby("bulk_labels", observed=True)[
    ...     "tosica_novelty"
    ... ].median().idxmax()
    'CD19+ B'
    """
    check_target(adata, "novelty", copy=copy)
    model = annotating_model(adata, model, key)
    load_annotations(adata)
    statistics = _statistics(model, reference)
    predicted = np.asarray(read_groups(adata, f"{key}_prediction"), dtype=str)
    codes = pd.Index(model.labels).get_indexer(pd.Index(predicted))
    positions = pd.Index(statistics.labels).get_indexer(pd.Index(codes))
    clusters = None
    if over_clustering is not None:
        clusters = read_clusters(adata, over_clustering)
    with progress(2 * adata.n_obs, "novelty") as step:
        query = read_query(model, adata, step, layer=layer, use_raw=use_raw)
        can_correct = correct_batch and _has_two_labels(positions)
        shift = None
        if can_correct:
            shift = _batch_shift(query, positions, statistics)
        step.set_description("novelty: cells")
        distance, nearest = score_in_blocks(statistics, query, shift, step)
    null = reference_null(statistics)
    if can_correct:
        null = fit_null(statistics, distance, nearest, same_batch=shift is None)
    distance = null.standardize(distance, nearest)
    probability = _probability_before(model, query)
    if probability is None:
        probability = read_numbers(adata, f"{key}_probability")
    deviations = None
    if can_correct and shift is None:
        deviations = deviations_within_labels(statistics)
    neighborhoods = find_neighborhoods(query.x, deviations)
    if clusters is None:
        clusters = _split_labels(predicted, neighborhoods)
    score = add_doubt(distance, probability)
    no_shift = np.zeros(query.x.shape[1])
    gene_shift = LabelShift(no_shift, no_shift)
    if neighborhoods is not None:
        # Cells that are called "Unknown" have a nearest label, too.
        of_cells = np.where(positions >= 0, positions, nearest)
        of_neighborhoods = neighborhood_labels(
            neighborhoods, of_cells, probability, len(statistics.labels)
        )
        if correct_batch:
            gene_shift = label_shift(
                query.x, of_neighborhoods, neighborhoods.average(), statistics.means
            )
        score = _add_neighborhoods(
            score,
            query,
            neighborhoods,
            of_cells,
            of_neighborhoods,
            probability,
            gene_shift,
            statistics,
            in_other_batch=shift is not None,
        )
    pvalue = pvalues(distance, null.reference_distances)
    cells = _score_clusters(score, pvalue, clusters)
    result = adata.copy() if copy else adata
    for name, values in cells.items():
        result.obs[f"{key}_{name}"] = values.to_numpy(np.float32)
    result.obs[f"{key}_novelty_group"] = clusters
    result.uns[f"{key}_novelty"] = _table_of_clusters(
        cells, clusters, predicted, positions, query, gene_shift, statistics, model
    )
    result.uns[key] = {**result.uns[key], "novelty_corrected": shift is not None}
    logger.info("novelty: added .obs['%s_novelty'] and four columns more", key)
    return result if copy else None


def _has_two_labels(positions: IntArray) -> bool:
    """Tell if the query has enough cells of two labels, so that a batch differs from a new type."""
    n_cells = np.bincount(positions[positions >= 0])
    if (n_cells >= MIN_CELLS).sum() >= 2:
        return True
    logger.warning(
        "novelty: fewer than two labels have %d cells, so that the query is not corrected: "
        "another batch looks like a new type",
        MIN_CELLS,
    )
    return False


def _batch_shift(
    query: QueryExpression, positions: IntArray, statistics: ReferenceStatistics
) -> FloatArray | None:
    """Difference of query and reference that all labels share; ``None`` if there is none.

    Parameters
    ----------
    query
        All cells.
    positions
        Position of each cell's label in the statistics, -1 for others.
    statistics
        Those of the reference.
    """
    common = common_shift(query.x, positions, statistics, query.measured)
    if common.signal <= 0:
        logger.info(
            "novelty: labels have no difference from the reference in common, as in its own batch: none is subtracted"
        )
        return None
    return common.shift


def _statistics(model: TOSICA, reference: AnnData | None) -> ReferenceStatistics:
    """Take the statistics of the model, or fit them to a reference."""
    if reference is None:
        if model.training_.novelty_statistics is not None:
            return model.training_.novelty_statistics
        reference = model.adata
    if reference is None:
        raise ValueError(
            "The model does not know how far the cells of its reference are from their labels, because it is of the "
            "original code or was saved before models kept this: pass the reference, or train the model anew."
        )
    labels_key = model._labels_key
    if labels_key not in reference.obs:
        raise KeyError(
            f"reference.obs has no column {labels_key!r}, the labels that the model was set up with: pass the "
            "reference that the model was trained on, or name its labels so."
        )
    column = read_groups(
        reference,
        labels_key,
        name="labels_key",
        allow_missing=True,
        known=model.labels,
    )
    # What stands for no label was said when the model was made.
    with warnings.catch_warnings(action="ignore"):
        labels = clean_labels(
            pd.Series(column), "reference.obs", None, model.labels, must_occur=False
        )
    codes = labels.set_categories(model.labels).codes
    rows = subsample_by_label(codes, MAX_CELLS_NOVELTY)
    statistics = None
    with progress(reference.n_obs, "novelty: reference") as step:
        if len(rows):
            x = read_query(model, reference, step).x[rows]
            statistics = fit_statistics(x, codes[rows])
    if statistics is None:
        raise ValueError(
            "The reference has too few labeled cells to compare with, or all are alike: pass the reference that the "
            "model was trained on."
        )
    return statistics


def _add_neighborhoods(
    score: FloatArray,
    query: QueryExpression,
    neighborhoods: Neighborhoods,
    of_cells: IntArray,
    of_neighborhoods: IntArray,
    probability: FloatArray,
    gene_shift: LabelShift,
    statistics: ReferenceStatistics,
    *,
    in_other_batch: bool,
) -> FloatArray:
    """Add the measures of neighborhoods to that of single cells.

    Parameters
    ----------
    score
        The first measure, ``(n_cells,)``.
    query
        All cells.
    neighborhoods
        Of these cells.
    of_cells, of_neighborhoods
        Positions of their labels in the statistics, ``(n_cells,)``.
    probability
        Of each cell's label, ``(n_cells,)``.
    gene_shift
        Difference of the query from the reference over its labels.
    statistics
        Those of the reference.
    in_other_batch
        Whether the query tells better than the reference what its labels are like.
    """
    average = neighborhoods.average()
    excess = gene_excess(
        query.x, of_neighborhoods, average, gene_shift, statistics, query.measured
    )
    first = standardize_robustly(score)
    score = first + standardize_robustly(excess)
    if not in_other_batch:
        return standardize_robustly(score + average @ first)
    improbability = 1 - probability
    measures = [
        distance_from_typical(neighborhoods, of_cells, improbability),
        distance_from_typical(neighborhoods, of_cells, score),
        contrast_distance(
            query.x,
            of_neighborhoods,
            average,
            improbability,
            statistics,
            query.measured,
        ),
    ]
    standardized = [standardize_robustly(measure) for measure in measures]
    return standardize_robustly(score + np.sum(standardized, axis=0))


def _score_clusters(
    score: FloatArray,
    pvalue: FloatArray,
    clusters: pd.Categorical,
) -> pd.DataFrame:
    """Columns of ``obs`` with scores and p-values of the cells and of their clusters."""
    cells = pd.DataFrame({"novelty": score, "novelty_pvalue": pvalue})
    medians = cells.groupby(clusters.codes).transform("median")
    n_cells = np.bincount(clusters.codes)[clusters.codes]
    # Cells of a known type in another batch differ alike, so that many do not make it surer.
    n_effective = np.minimum(n_cells, _MOST_CELLS_THAT_COUNT)
    cells["novelty_cluster"] = medians["novelty"] * np.sqrt(2 * n_effective / np.pi)
    # Twice the median of p-values is a p-value, however they depend on each other (Rüger, 1978).
    cells["novelty_cluster_pvalue"] = (2 * medians["novelty_pvalue"]).clip(upper=1)
    return cells


def _split_labels(
    predicted: NDArray[np.str_], neighborhoods: Neighborhoods | None
) -> pd.Categorical:
    """Split the cells of each label into clusters, named by the label and a number."""
    names = predicted.astype(object)
    if neighborhoods is None:
        return pd.Categorical(names)
    components = neighborhoods.components
    # K-means begins with cells by their position: the order of the cells must not matter.
    order = np.lexsort(components.T)
    labels = np.unique(predicted)
    for label in labels:
        cells = order[predicted[order] == label]
        # As many clusters as each has cells on average: a new type of a few cells has one of its own.
        n_distinct = len(np.unique(components[cells].round(6), axis=0))
        n_clusters = min(round(np.sqrt(len(cells))), n_distinct, _MAX_CLUSTERS)
        if n_clusters == 1:
            continue
        k_means = KMeans(n_clusters, n_init=1, random_state=0)
        numbers = k_means.fit_predict(components[cells])
        free = _free_names(label, n_clusters, set(labels))
        names[cells] = np.array(free, dtype=object)[numbers]
    return pd.Categorical(names)


def _free_names(label: str, n_clusters: int, labels: set[str]) -> list[str]:
    """Number a label, without the names that are labels themselves."""
    numbered = (f"{label} {number}" for number in count(1))
    free = (name for name in numbered if name not in labels)
    return list(islice(free, n_clusters))


def _table_of_clusters(
    cells: pd.DataFrame,
    clusters: pd.Categorical,
    predicted: NDArray[np.str_],
    positions: IntArray,
    query: QueryExpression,
    shift: LabelShift,
    statistics: ReferenceStatistics,
    model: TOSICA,
) -> pd.DataFrame:
    """One row for each cluster, the highest score first, with the genes that its label lacks."""
    gene_names = np.asarray(model.get_var_names(), dtype=str)
    highest_means = statistics.means.max(0)
    rows = []
    for code, cluster in enumerate(clusters.categories):
        members = np.flatnonzero(clusters.codes == code)
        if len(members) == 0:
            continue
        labels, n_cells = np.unique(predicted[members], return_counts=True)
        label = labels[n_cells.argmax()]
        position = positions[members[predicted[members] == label][0]]
        genes: NDArray[np.str_] = np.array([], dtype=str)
        if position >= 0:
            ranked = genes_of_cluster(
                query.x[members],
                position,
                shift,
                statistics,
                highest_means,
                query.measured,
                _N_GENES,
            )
            genes = gene_names[ranked]
        rows.append(
            {
                "cluster": str(cluster),
                "n_cells": len(members),
                "label": str(label),
                "score": float(cells["novelty_cluster"].iloc[members[0]]),
                "pvalue": float(cells["novelty_cluster_pvalue"].iloc[members[0]]),
                "genes": ", ".join(genes),
            }
        )
    table = pd.DataFrame(rows).sort_values(
        "score", ascending=False, kind="stable", ignore_index=True
    )
    table["similar_to"] = _similar_clusters(table)
    # Files hold no other index.
    table.index = table.index.astype(str)
    return table


def _similar_clusters(table: pd.DataFrame) -> list[str]:
    """Name for each cluster the first one above that is told from its label by the same genes, or ''."""
    leaders: dict[str, set[str]] = {}
    similar = []
    for name, listed in zip(table["cluster"], table["genes"], strict=True):
        genes = set(listed.split(", "))
        alike = (
            leader
            for leader, of_leader in leaders.items()
            if len(genes & of_leader) >= _N_GENES_SHARED
        )
        leader = next(alike, "")
        if not leader:
            leaders[name] = genes
        similar.append(leader)
    return similar


def read_query(
    model: TOSICA,
    adata: AnnData,
    step: tqdm,
    *,
    layer: str | None = None,
    use_raw: bool = False,
) -> QueryExpression:
    """Read all cells as the model reads them."""
    with only_warnings(query_logger):
        batches = model.iter_batches(
            adata, layer=layer, use_raw=use_raw, batch_size=_BATCH_SIZE
        )
        return read_all(batches, step)


def _probability_before(model: TOSICA, query: QueryExpression) -> NDArray | None:
    """Probability of each cell's best label before the model was adapted; ``None`` if it was not."""
    device = model.module.device
    measured = None
    if query.measured is not None:
        measured = torch.from_numpy(query.measured).to(device)
    blocks = []
    for first_row in range(0, query.x.shape[0], _BATCH_SIZE):
        x = torch.from_numpy(query.x[first_row : first_row + _BATCH_SIZE].toarray())
        probability = model._probability_before(x.to(device), measured)
        if probability is None:
            return None
        blocks.append(probability)
    return np.concatenate(blocks)


def score_in_blocks(
    statistics: ReferenceStatistics,
    query: QueryExpression,
    shift: FloatArray | None,
    step: tqdm,
) -> tuple[NDArray, NDArray]:
    """Score cells block by block: all may not fit in memory as dense rows."""
    distances = []
    nearest_labels = []
    for first_row in range(0, query.x.shape[0], _BATCH_SIZE):
        x = query.x[first_row : first_row + _BATCH_SIZE].toarray()
        distance, nearest = statistics.score_cells(x, query.measured, shift)
        distances.append(distance)
        nearest_labels.append(nearest)
        step.update(x.shape[0])
    return np.concatenate(distances), np.concatenate(nearest_labels)
