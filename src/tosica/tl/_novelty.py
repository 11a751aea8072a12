"""Novelty of cells and clusters, corrected for the difference that all cells share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch

from tosica._checks import validate_params
from tosica._obs import read_groups, read_numbers
from tosica._progress import progress
from tosica._settings import logger, only_warnings, query_logger
from tosica.data import load_annotations
from tosica.linear import (
    MAX_CELLS_NOVELTY,
    MIN_CELLS,
    NoveltyStatistics,
    add_doubt,
    common_shift,
    fit_novelty,
    label_excess,
    pvalues,
    subsample_by_label,
)
from tosica.tl._evidence import ANNOTATED_BY_MODEL, annotating_model
from tosica.tl._majority_vote import CLUSTERS, read_clusters

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray
    from tqdm.std import tqdm

    from tosica.model import TOSICA
    from tosica.tl._majority_vote import Clusters

_BATCH_SIZE = 512


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
    """Score cells and clusters of the query that may be of a type the reference lacks.

    A network often gives a high probability to cells of a type that it was not trained on. The
    score of a cell adds its distance from the nearest label, over genes and in principal
    components, and 1 - its probability, each standardized, as ``model.annotate`` does. It also
    corrects for a batch effect, in two steps. First, what the query has in common is subtracted:
    for each gene, the median over the labels of the difference between query and reference. A batch
    or a treatment changes most types, while a new type is found under one label or two. (If only
    two labels have five cells, the smaller of two differences with the same sign is subtracted.)
    Then the distances of each label's cells are lowered until their lowest tenth is as low as the
    reference's.

    None is done if the common difference is no larger than between two samples of the same cells. A
    query in which only one label has five cells is not corrected either, because a batch effect and
    a new type look the same in it.

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
        Column of ``adata.obs`` or a sequence, ``(n_obs,)``, with clusters of the query; by default
        the predictions. The score of a cluster is the median over its cells, and its p-value twice
        the median of theirs, which is valid however they depend on each other.
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
        Score of each cell, about standard normal for cells of a known type, and the share of the reference's cells
        that are as distant (a conformal p-value). They take the place of those of ``annotate``.
    ``adata.obs["tosica_novelty_cluster"]``, ``adata.obs["tosica_novelty_cluster_pvalue"]``
        Score and p-value of the cell's cluster. Order clusters by the score: a p-value of few cells of a small
        reference is never very small.

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
    51, 149 (2023). Lee, Lee, Lee and Shin, *A simple unified framework for detecting
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
    model = annotating_model(adata, model, key)
    load_annotations(adata)
    if over_clustering is None:
        over_clustering = f"{key}_prediction"
    clusters = read_clusters(adata, over_clustering)
    statistics = _statistics(model, reference)
    predicted = np.asarray(read_groups(adata, f"{key}_prediction"), dtype=str)
    codes = pd.Index(model.labels).get_indexer(pd.Index(predicted))
    positions = pd.Index(statistics.labels).get_indexer(pd.Index(codes))
    with progress(2 * adata.n_obs, "novelty") as step:
        query = read_query(model, adata, step, layer=layer, use_raw=use_raw)
        shift = None
        if correct_batch:
            shift = _batch_shift(query, positions, statistics)
        step.set_description("novelty: cells")
        distance, nearest = score_in_blocks(statistics, query, shift, step)
    if shift is not None:
        distance = distance - label_excess(distance, nearest, statistics)[nearest]
    probability = _probability_before(model, query)
    if probability is None:
        probability = read_numbers(adata, f"{key}_probability")
    cells = pd.DataFrame(
        {
            "novelty": add_doubt(distance, probability),
            "novelty_pvalue": pvalues(distance, statistics.reference_scores),
        }
    )
    medians = cells.groupby(clusters.codes).transform("median")
    cells["novelty_cluster"] = medians["novelty"]
    # Twice the median of p-values is a p-value, however they depend on each other (Rüger, 1978).
    cells["novelty_cluster_pvalue"] = (2 * medians["novelty_pvalue"]).clip(upper=1)
    result = adata.copy() if copy else adata
    for name, values in cells.items():
        result.obs[f"{key}_{name}"] = values.to_numpy(np.float32)
    logger.info("novelty: added .obs['%s_novelty'] and three columns more", key)
    return result if copy else None


def _batch_shift(
    query: Query, positions: NDArray[np.intp], statistics: NoveltyStatistics
) -> NDArray[np.float64] | None:
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
    n_cells = np.bincount(positions[positions >= 0])
    if (n_cells >= MIN_CELLS).sum() < 2:
        logger.warning(
            "novelty: fewer than two labels have %d cells, so that the query is not corrected: "
            "another batch looks like a new type",
            MIN_CELLS,
        )
        return None
    common = common_shift(query.x, positions, statistics, query.measured)
    if common is None or common.signal <= 0:
        logger.info(
            "novelty: the query is of the reference's batch, and is not corrected"
        )
        return None
    return common.shift


def _statistics(model: TOSICA, reference: AnnData | None) -> NoveltyStatistics:
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
    codes = pd.Index(model.labels).get_indexer(reference.obs[labels_key].astype(str))
    labeled = np.flatnonzero(codes >= 0)
    rows = labeled[subsample_by_label(codes[labeled], MAX_CELLS_NOVELTY)]
    statistics = None
    with progress(reference.n_obs, "novelty: reference") as step:
        if len(rows):
            x = read_query(model, reference, step).x[rows]
            statistics = fit_novelty(x, codes[rows])
    if statistics is None:
        raise ValueError(
            "The reference has too few labeled cells to compare with, or all are alike: pass the reference that the "
            "model was trained on."
        )
    return statistics


class Query(NamedTuple):
    """Normalized expression of all cells, ``(n_obs, n_genes)``, and the genes that were measured."""

    x: sp.csr_matrix
    measured: NDArray[np.bool_] | None


def read_query(
    model: TOSICA,
    adata: AnnData,
    step: tqdm,
    *,
    layer: str | None = None,
    use_raw: bool = False,
) -> Query:
    """Read all cells as the model reads them. They are sparse in memory, also of a backed query."""
    blocks = []
    measured = None
    with only_warnings(query_logger):
        for batch in model.iter_batches(
            adata, layer=layer, use_raw=use_raw, batch_size=_BATCH_SIZE
        ):
            blocks.append(sp.csr_matrix(batch.x.cpu().numpy()))
            if batch.measured is not None:
                measured = batch.measured.cpu().numpy()
            step.update(blocks[-1].shape[0])
    return Query(sp.vstack(blocks).tocsr(), measured)


def _probability_before(model: TOSICA, query: Query) -> NDArray | None:
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
    statistics: NoveltyStatistics,
    query: Query,
    shift: NDArray[np.float64] | None,
    step: tqdm,
) -> tuple[NDArray, NDArray]:
    """Score cells block by block, as :meth:`NoveltyStatistics.score_cells`: all may not fit in memory as dense rows."""
    distances = []
    nearest_labels = []
    for first_row in range(0, query.x.shape[0], _BATCH_SIZE):
        x = query.x[first_row : first_row + _BATCH_SIZE].toarray()
        distance, nearest = statistics.score_cells(x, query.measured, shift)
        distances.append(distance)
        nearest_labels.append(nearest)
        step.update(x.shape[0])
    return np.concatenate(distances), np.concatenate(nearest_labels)
