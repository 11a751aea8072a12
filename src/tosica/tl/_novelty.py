"""Novelty of cells: how few cells of the reference are near their cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from sklearn.decomposition import PCA

from tosica._groups import read_groups
from tosica._logging import logger
from tosica._validation import check_count, check_data, check_flags
from tosica.tl._over_cluster import over_cluster, read_clusters
from tosica.tl._read_annotation import read_annotation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tosica.model import TOSICA
    from tosica.tl._over_cluster import Clusters

# Cells of a label that query and reference must have for the label to count in their difference.
_MIN_CELLS = 5
# Cells of the query, and of the reference, that the components are fitted to.
_SAMPLE = 5_000
_BATCH_SIZE = 512


def novelty(
    adata: AnnData,
    model: TOSICA,
    reference: AnnData | None = None,
    *,
    over_clustering: Clusters | None = None,
    layer: str | None = None,
    use_raw: bool = False,
    n_neighbors: int = 30,
    n_comps: int = 30,
    random_state: int = 0,
    key: str = "tosica",
    copy: bool = False,
) -> AnnData | None:
    """Find clusters that may be of a new type: score how few cells of the reference are near them.

    A network often gives a high probability to cells of a type that it was not trained on. Such
    cells form clusters that have few cells of the reference near them, and the score measures this.
    Query and reference are normalised as the model normalises. Batch effects are corrected by
    subtracting from the query, for each gene, the median over the labels of the difference between
    query and reference: a batch or a treatment changes most types alike, while a new type is found
    under one label or two. Then a joint PCA is computed, and the score of a cluster is the share of
    the query among the nearest neighbours of its cells, corrected for the numbers of cells. Genes
    that query or reference lacks are left out.

    Parameters
    ----------
    adata
        Query that this model has annotated.
    model
        The model.
    reference
        The reference, with the column of labels that the model was set up with. By default
        ``model.adata``.
    over_clustering
        Column of ``adata.obs`` or a sequence, ``(n_obs,)``, with fine clusters of the query. By
        default Leiden clusters in the principal components, with the resolution of
        :func:`tosica.tl.majority_vote`.
    layer, use_raw
        Where the query's expression is, as in ``model.annotate``.
    n_neighbors
        Number of neighbours of a cell; fewer are taken if there are few cells.
    n_comps
        Number of principal components.
    random_state
        Seed of the components and neighbours.
    key
        ``key_added`` of ``model.annotate``.
    copy
        Leave ``adata`` as it is and return a copy with the result.

    Returns
    -------
    ``None``, or the copy if ``copy=True``. Written is ``adata.obs["tosica_novelty"]``, between 0
    and 1, float32: 0.5 where query and reference are equally dense, near 1 where there are no cells
    of the reference. A known type that is ten times as frequent in the query has 0.9, so the score
    ranks clusters and does not prove a new type. The order of the cells changes it a little, since
    it changes Leiden clusters and, beyond 5 000 cells, the sample that the PCA is fitted to.

    Raises
    ------
    KeyError, TypeError, ValueError
        If ``adata`` was not annotated by this model, the model is one of a MuData or has no
        reference and none is given, a column is missing, clusters do not fit the cells, no cell has
        a label of the reference, or a number is out of range.
    ImportError
        If clusters are to be made and igraph is missing.

    See Also
    --------
    tosica.pl.novelty : boxes of the novelty of each label.

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
    >>> query.obs.groupby("bulk_labels", observed=True)["tosica_novelty"].median().idxmax()
    'CD19+ B'
    """
    check_count("n_neighbors", n_neighbors)
    check_count("n_comps", n_comps)
    check_count("random_state", random_state, least=0)
    check_flags(use_raw=use_raw, copy=copy)
    read_annotation(adata, model, key)
    if adata.isbacked and (copy or adata.is_view):
        raise ValueError(
            "novelty writes to no view or copy of a backed AnnData: call to_memory() first."
        )
    reference = _checked_reference(model, reference)
    labels = pd.Index(model.labels)
    labels_key = model.get_setup_arg("labels_key")
    known = _Cells(
        model,
        reference,
        labels.get_indexer(reference.obs[labels_key].astype(str)),
        random_state=random_state,
    )
    predicted = np.asarray(read_groups(adata, f"{key}_prediction"), dtype=str)
    query = _Cells(
        model,
        adata,
        labels.get_indexer(pd.Index(predicted)),
        random_state=random_state,
        layer=layer,
        use_raw=use_raw,
    )
    embedded = _joint_pca(known, query, n_comps, random_state)
    if over_clustering is None:
        clusters = over_cluster(
            AnnData(obsm={"X_pca": embedded[known.n_obs :]}),
            source="the components of reference and query",
        )
    else:
        clusters = read_clusters(adata, over_clustering)
    from_query, from_known = _count_neighbors(embedded, known.n_obs, n_neighbors, random_state)
    # Of whole clusters: a single cell has so few neighbours that their share is mostly 0 or 1.
    near_query = np.bincount(clusters.codes, from_query) / max(query.n_obs - 1, 1)
    near_known = np.bincount(clusters.codes, from_known) / known.n_obs
    share = near_query / np.maximum(near_query + near_known, np.finfo(float).tiny)
    result = adata.copy() if copy else adata
    result.obs[f"{key}_novelty"] = share[clusters.codes].astype(np.float32)
    logger.info("novelty: added .obs['%s_novelty'], over %d clusters", key, len(set(clusters)))
    return result if copy else None


def _checked_reference(model: TOSICA, reference: AnnData | None) -> AnnData:
    """Take the model's reference by default, and refuse one without its labels or layer."""
    if reference is not None:
        check_data(reference, name="reference")
    reference = model.adata if reference is None else reference
    if reference is None:
        raise ValueError("The model was loaded without its reference: pass it as reference.")
    labels_key, layer = model.get_setup_arg("labels_key"), model.get_setup_arg("layer")
    if labels_key not in reference.obs:
        raise KeyError(
            f"reference.obs has no column {labels_key!r}, the labels that the model was set up "
            "with: pass the reference that the model was trained on, or name its labels so."
        )
    if layer is not None and layer not in reference.layers:
        raise KeyError(f"reference has no layer {layer!r}, which the model was set up with.")
    return reference


class _Cells:
    """Cells of the query or the reference, normalized, on the model's genes.

    Parameters
    ----------
    model
        The trained model.
    adata
        The cells.
    codes
        Code of each cell's label, -1 for none, shape ``(n_obs,)``.
    random_state
        Seed of the sample.
    layer, use_raw
        Which matrix of ``adata`` to read.
    """

    def __init__(
        self,
        model: TOSICA,
        adata: AnnData,
        codes: NDArray[np.integer],
        *,
        random_state: int,
        layer: str | None = None,
        use_raw: bool = False,
    ) -> None:
        self._model, self._adata = model, adata
        self._layer, self._use_raw = layer, use_raw
        self.n_obs = adata.n_obs
        n_labels, n_genes = len(model.labels), model.module.embedding.n_genes
        # Number of cells with each label, and the sum of their expression.
        self.counts = np.bincount(codes[codes >= 0], minlength=n_labels)
        self.sums = np.zeros((n_labels, n_genes))
        # Genes that at least one cell expresses.
        self.expressed = np.zeros(n_genes, dtype=bool)
        in_sample = np.zeros(self.n_obs, dtype=bool)
        rng = np.random.default_rng(random_state)
        in_sample[rng.permutation(self.n_obs)[:_SAMPLE]] = True
        sample = []
        for start, x in self._iter_batches():
            rows = slice(start, start + len(x))
            self.expressed |= (x != 0).any(0)
            present = codes[rows]
            for code in np.unique(present[present >= 0]):
                self.sums[code] += x[present == code].sum(0)
            sample.append(x[in_sample[rows]])
        # Cells that the components are fitted to, (n_sample, n_genes).
        self.sample = np.vstack(sample)

    def _iter_batches(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        for start, x, _ in self._model.iter_batches(
            self._adata, layer=self._layer, use_raw=self._use_raw, batch_size=_BATCH_SIZE
        ):
            yield start, x.cpu().numpy()

    def project(self, pca: PCA, genes: NDArray[np.bool_], shift: NDArray | float) -> NDArray:
        """All cells, less ``shift``, on the components of some genes, ``(n_obs, n_comps)``."""
        if self.n_obs <= _SAMPLE:
            return pca.transform(self.sample[:, genes] - shift)
        return np.vstack([pca.transform(x[:, genes] - shift) for _, x in self._iter_batches()])


def _joint_pca(known: _Cells, query: _Cells, n_comps: int, random_state: int) -> NDArray:
    """Principal components of the reference's cells, then the query's, ``(n_cells, n_comps)``."""
    # A gene that one of the two lacks is zero there, which says nothing about its cells.
    genes = known.expressed & query.expressed
    shift = _shift(known, query)[genes]
    sample = np.vstack([known.sample[:, genes], query.sample[:, genes] - shift])
    n_comps = min(n_comps, *(n - 1 for n in sample.shape))
    # The solver is exact, so that in small data the order of the cells has no influence.
    pca = PCA(n_comps, svd_solver="arpack", random_state=random_state).fit(sample)
    return np.vstack([known.project(pca, genes, 0), query.project(pca, genes, shift)])


def _shift(known: _Cells, query: _Cells) -> NDArray[np.float32]:
    """Median over the labels of the difference between query and reference, ``(n_genes,)``."""
    counts = np.minimum(known.counts, query.counts)
    if counts.max() == 0:
        raise ValueError(
            "No cell of the query has a label that a cell of the reference has: annotate with a "
            "lower cutoff, or pass the reference that the model was trained on."
        )
    enough = counts >= min(_MIN_CELLS, counts.max())
    means = [cells.sums[enough] / cells.counts[enough, None] for cells in (query, known)]
    return np.median(means[0] - means[1], axis=0).astype(np.float32)


def _count_neighbors(
    embedded: NDArray, n_known: int, n_neighbors: int, random_state: int
) -> tuple[NDArray, NDArray]:
    """Count each query cell's neighbours from the query and the reference, ``(n_query,)`` each."""
    n_query = len(embedded) - n_known
    # More neighbours than a type has cells would be cells of other types.
    n_neighbors = max(1, min(n_neighbors, min(n_known, n_query) // 3))
    cells = AnnData(embedded)
    sc.pp.neighbors(cells, n_neighbors=n_neighbors + 1, use_rep="X", random_state=random_state)
    distances = cells.obsp["distances"][n_known:]
    from_query = np.add.reduceat(distances.indices >= n_known, distances.indptr[:-1])
    return from_query, np.diff(distances.indptr) - from_query
