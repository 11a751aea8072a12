"""Cells of a type that the reference lacks, seen as clusters that it does not reach into."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from sklearn.decomposition import PCA

from tosica._groups import read_groups
from tosica._logging import logger
from tosica.tl._over_cluster import over_cluster, read_clusters
from tosica.tl._read_annotation import read_annotation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tosica.model import TOSICA
    from tosica.tl._over_cluster import Clusters

# Cells that a label needs on either side before it tells how the two differ, and cells of either
# side that the components are fitted to.
_ENOUGH, _SAMPLE = 5, 5_000
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
    """Score how little of the reference lies where a query's cells lie.

    A network is often sure of itself about cells of a type that it has never seen, and nothing in
    its output gives a single one of them away. Together they do: they form clusters in which there
    are no cells of the reference. So the query is laid over the reference, on the model's genes
    and normalised as the model normalises. What sets the two apart as a whole is taken off first:
    for each gene the median over the labels of the difference between query and reference, because
    a batch or a treatment moves most types alike and a new type is found under one label or two.
    Among the nearest neighbours of a cluster's cells in the principal components of both, those
    from the query are then counted, as if query and reference had equally many cells. Genes that
    either of the two lacks are left out.

    Parameters
    ----------
    adata
        Query that this model has annotated.
    model
        The model.
    reference
        The reference, with the column of labels that the model was set up with. By default the one
        that the model holds.
    over_clustering
        Column of ``adata.obs`` or a sequence, ``(n_obs,)``, with fine clusters of the query. By
        default Leiden clusters of its cells in the principal components, as fine as those of
        :func:`tosica.tl.majority_vote`.
    layer, use_raw
        Where the query's expression is, as in ``model.annotate``.
    n_neighbors
        Neighbours of a cell, fewer if there are few cells.
    n_comps
        Principal components.
    random_state
        Seed of the components and neighbours.
    key
        ``key_added`` of ``model.annotate``.
    copy
        Return a changed copy and leave ``adata`` as it is.

    Returns
    -------
    ``None``, or the copy if ``copy=True``. Written is ``adata.obs["tosica_novelty"]``, between 0
    and 1, float32: 0.5 where the cluster has as much of the reference as of the query, near 1 where
    there is nothing of the reference. A known type that is ten times as frequent in the query has
    0.9, so that the score ranks clusters and does not prove a new type. Other orders of the cells
    change it a little, as they change Leiden clusters, and the sample that components of more than
    5 000 cells are fitted to.

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
    for name, value in {"n_neighbors": n_neighbors, "n_comps": n_comps}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}.")
    read_annotation(adata, model, key)
    if adata.isbacked and (copy or adata.is_view):
        raise ValueError(
            "novelty writes to no view or copy of a backed AnnData: call to_memory() first."
        )
    reference = model.adata if reference is None else reference
    if reference is None:
        raise ValueError("The model was loaded without its reference: pass it as reference.")
    labels_key = str(model.registry_["setup_args"]["labels_key"])
    if labels_key not in reference.obs:
        raise KeyError(
            f"reference.obs has no column {labels_key!r}, the labels that the model was set up "
            "with: pass the reference that the model was trained on, or name its labels so."
        )
    of_model = model._modalities[0].layer
    if of_model is not None and of_model not in reference.layers:
        raise KeyError(f"reference has no layer {of_model!r}, which the model was set up with.")
    labels = pd.Index(model.labels)
    of_reference = labels.get_indexer(reference.obs[labels_key].astype(str))
    called = np.asarray(read_groups(adata, f"{key}_prediction"), dtype=str)
    of_query = labels.get_indexer(pd.Index(called))
    known = _Side(model, reference, of_reference, random_state)
    query = _Side(model, adata, of_query, random_state, layer=layer, use_raw=use_raw)
    # A gene that one side lacks is zero there, which is no difference between the cells.
    genes = known.measured & query.measured
    shift = _shift(known, query)[genes]
    sample = np.vstack([known.sample[:, genes], query.sample[:, genes] - shift])
    # Exact, so that in small data the order of cells has no say.
    n_comps = min(n_comps, *(n - 1 for n in sample.shape))
    components = PCA(n_comps, svd_solver="arpack", random_state=random_state).fit(sample)
    places = np.vstack(
        [known.project(components, genes, 0), query.project(components, genes, shift)]
    )
    if over_clustering is None:
        clusters = over_cluster(
            AnnData(obsm={"X_pca": places[known.n :]}),
            source="the components of reference and query",
        )
    else:
        clusters = read_clusters(adata, over_clustering)
    from_query, from_known = _neighbors(places, known.n, n_neighbors, random_state)
    # Of whole clusters: a single cell has so few neighbours that their share is mostly 0 or 1.
    near_query = np.bincount(clusters.codes, from_query) / max(query.n - 1, 1)
    near_known = np.bincount(clusters.codes, from_known) / known.n
    share = near_query / np.maximum(near_query + near_known, np.finfo(float).tiny)
    result = adata.copy() if copy else adata
    result.obs[f"{key}_novelty"] = share[clusters.codes].astype(np.float32)
    logger.info("novelty: added .obs['%s_novelty'], over %d clusters", key, len(set(clusters)))
    return result if copy else None


class _Side:
    """Query or reference on the model's genes: means of the labels, and a sample of the cells."""

    def __init__(
        self,
        model: TOSICA,
        adata: AnnData,
        codes: NDArray,
        random_state: int,
        *,
        layer: str | None = None,
        use_raw: bool = False,
    ) -> None:
        self.n = adata.n_obs
        self._read = lambda: model.iter_batches(
            adata, layer=layer, use_raw=use_raw, batch_size=_BATCH_SIZE
        )
        rng = np.random.default_rng(random_state)
        chosen = np.zeros(self.n, dtype=bool)
        chosen[rng.permutation(self.n)[:_SAMPLE]] = True
        n_genes = model.module.embedding.n_genes
        self.counts = np.bincount(codes[codes >= 0], minlength=len(model.labels))
        self.sums = np.zeros((len(model.labels), n_genes))
        self.measured = np.zeros(n_genes, dtype=bool)
        rows = []
        for start, batch, _ in self._read():
            x = batch.cpu().numpy()
            self.measured |= (x != 0).any(0)
            of_batch = codes[start : start + len(x)]
            for code in np.unique(of_batch[of_batch >= 0]):
                self.sums[code] += x[of_batch == code].sum(0)
            rows.append(x[chosen[start : start + len(x)]])
        self.sample = np.vstack(rows)

    def project(self, components: PCA, genes: NDArray, shift: NDArray | float) -> NDArray:
        """Every cell on the components of some genes, ``(n_obs, n_comps)``."""
        if self.n <= _SAMPLE:
            return components.transform(self.sample[:, genes] - shift)
        batches = (batch.cpu().numpy()[:, genes] for _, batch, _ in self._read())
        return np.vstack([components.transform(batch - shift) for batch in batches])


def _shift(known: _Side, query: _Side) -> NDArray:
    """What sets query and reference apart in most labels, ``(n_genes,)``."""
    counts = np.minimum(known.counts, query.counts)
    if counts.max() == 0:
        raise ValueError(
            "No cell of the query has a label that a cell of the reference has: annotate with a "
            "lower cutoff, or pass the reference that the model was trained on."
        )
    enough = counts >= min(_ENOUGH, counts.max())
    means = [side.sums[enough] / side.counts[enough, None] for side in (query, known)]
    return np.median(means[0] - means[1], axis=0).astype(np.float32)


def _neighbors(
    places: NDArray, n_known: int, n_neighbors: int, random_state: int
) -> tuple[NDArray, NDArray]:
    """Neighbours of each query cell that are of the query and of the reference, ``(n_query,)``."""
    n_query = len(places) - n_known
    # More neighbours than a type has cells would be those of the types around it.
    n_neighbors = max(1, min(n_neighbors, min(n_known, n_query) // 3))
    both = AnnData(places)
    sc.pp.neighbors(both, n_neighbors=n_neighbors + 1, use_rep="X", random_state=random_state)
    near = both.obsp["distances"][n_known:]
    of_query = np.add.reduceat(near.indices >= n_known, near.indptr[:-1])
    return of_query, np.diff(near.indptr) - of_query
