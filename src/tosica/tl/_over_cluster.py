"""Over-clustering: many small Leiden clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from mudata import MuData

from tosica._groups import as_groups, read_groups
from tosica._logging import format_thousands, logger
from tosica._parallel import keep_torch_threads
from tosica._progress import progress
from tosica.data import (
    TARGET_SUM,
    CellMatrix,
    are_fractional_counts,
    check_finite,
    detect_values,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import scipy.sparse as sp
    from numpy.typing import NDArray

    Clusters: TypeAlias = (
        str | Sequence[str] | Sequence[int] | NDArray | pd.Series | pd.Categorical | pd.Index
    )

# CellTypist's resolutions: number of cells below which each is used.
_RESOLUTIONS = ((5_000, 5), (20_000, 10), (40_000, 15), (100_000, 20), (200_000, 25))
_LARGEST_RESOLUTION = 30

_N_GENES = 2000
_N_COMPONENTS = 50
_N_NEIGHBORS = 15
_MIN_CELLS = 4
_HINT = "or pass clusters of your own as over_clustering"


@keep_torch_threads()
def over_cluster(data: AnnData | MuData, *, source: str | None = None) -> pd.Categorical:
    """Cluster cells by Leiden, with a resolution that grows with the number of cells.

    Parameters
    ----------
    data
        Cells, which are not changed. The graph is that of ``uns["neighbors"]``, else one on
        ``obsm["X_pca"]``, else one on a PCA of the expression. A MuData without a graph is
        clustered by its modality ``"rna"``.
    source
        What the graph is made from, for the log, if the data are not the user's.

    Returns
    -------
    Categorical of length ``n_obs`` with categories ``"0"``, ``"1"``, ....

    Raises
    ------
    ImportError
        If igraph is missing.
    ValueError
        If there are too few cells, there is nothing to cluster by, or the expression has values
        that are missing or infinite.
    """
    try:
        import igraph  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"Clustering cells needs the igraph package: pip install 'tosica[leiden]', {_HINT}."
        ) from error
    n_obs = data.n_obs
    if n_obs < _MIN_CELLS:
        raise ValueError(
            f"{n_obs} cells are too few to be clustered: there must be {_MIN_CELLS}, {_HINT}."
        )
    resolution = next((r for below, r in _RESOLUTIONS if n_obs < below), _LARGEST_RESOLUTION)
    # In a new object, because scanpy writes into uns, too.
    cells = AnnData(obs=pd.DataFrame(index=[str(i) for i in range(n_obs)]))
    with progress(None, "over-clustering"):
        connectivities, graph_source, order = _graph(data)
        sc.tl.leiden(
            cells,
            resolution,
            adjacency=connectivities,
            key_added="cluster",
            flavor="igraph",
            n_iterations=2,
            directed=False,
            random_state=0,
        )
    clusters = pd.Categorical(cells.obs["cluster"])[order]
    logger.info(
        "over-clustering: %s cells in %d clusters (Leiden, resolution %d, on %s)",
        format_thousands(n_obs),
        len(clusters.categories),
        resolution,
        source or graph_source,
    )
    return clusters


def read_clusters(adata: AnnData | MuData, values: Clusters) -> pd.Categorical:
    """Read clusters from a column of ``obs`` or from one value a cell.

    Raises
    ------
    KeyError
        If there is no such column.
    TypeError, ValueError
        If the values cannot be read as clusters, are not one a cell, or are missing in some cells.
    """
    if isinstance(values, str):
        return read_groups(adata, values)
    if isinstance(values, pd.DataFrame | Mapping) or np.ndim(values) != 1:
        raise TypeError(
            "over_clustering must be a column of adata.obs or one value a cell, "
            f"not {type(values).__name__} with {np.ndim(values)} dimensions."
        )
    column = values if isinstance(values, pd.Series) else pd.Series(values)
    if len(column) != adata.n_obs:
        raise ValueError(
            f"over_clustering has {len(column)} values for {adata.n_obs} cells: "
            "give one a cell, in their order."
        )
    names = adata.obs_names
    named = not isinstance(column.index, pd.RangeIndex)
    if named and not column.index.equals(names):
        if not (column.index.is_unique and names.isin(column.index).all()):
            raise ValueError(
                "The index of over_clustering does not hold the names of adata's cells: "
                "pass over_clustering.to_numpy() if it is in their order."
            )
        column = column.reindex(names)
    return as_groups(column, "over_clustering")


def _graph(data: AnnData | MuData) -> tuple[sp.csr_matrix, str, Any]:
    """Connectivities, what they are made from, and the position of each cell in them.

    A modality of a MuData may have its cells in another order.
    """
    existing = _existing_graph(data, "mdata" if isinstance(data, MuData) else "adata")
    if existing is not None:
        return *existing, slice(None)
    if isinstance(data, AnnData):
        return *_new_graph(data, "adata"), slice(None)
    rna = data.mod.get("rna")
    if rna is None or not data.obs_names.isin(rna.obs_names).all():
        raise ValueError(
            "The MuData has no neighbours graph in mdata.uns['neighbors'], and no modality 'rna' "
            "with all of its cells, to be clustered by: make one of the two, "
            f"{_HINT}."
        )
    name = "mdata['rna']"
    connectivities, source = _existing_graph(rna, name) or _new_graph(rna, name)
    return connectivities, source, rna.obs_names.get_indexer(data.obs_names)


def _existing_graph(data: AnnData | MuData, name: str) -> tuple[sp.csr_matrix, str] | None:
    record = data.uns.get("neighbors", {})
    graph_key = record.get("connectivities_key", "connectivities")
    if not record or graph_key not in data.obsp:
        return None
    source = f"the graph in {name}.uns['neighbors']"
    representation = record.get("params", {}).get("use_rep")
    if representation is not None:
        source += f", which was made from {representation!r}"
    return data.obsp[graph_key], source


def _new_graph(adata: AnnData, name: str) -> tuple[sp.csr_matrix, str]:
    if "X_pca" in adata.obsm:
        components = np.asarray(adata.obsm["X_pca"])
        source = f"neighbours in {name}.obsm['X_pca']"
    else:
        components, source = _principal_components(adata, name)
    cells = AnnData(obs=pd.DataFrame(index=[str(i) for i in range(adata.n_obs)]))
    cells.obsm["X_pca"] = components
    n_neighbors = min(_N_NEIGHBORS, adata.n_obs - 1)
    sc.pp.neighbors(cells, n_neighbors=n_neighbors, use_rep="X_pca", random_state=0)
    return cells.obsp["connectivities"], source


def _principal_components(adata: AnnData, name: str) -> tuple[np.ndarray, str]:
    """Compute a PCA of the expression with scanpy's usual steps, in a copy."""
    if adata.n_vars < 2 or (not adata.isbacked and adata.X is None):
        raise ValueError(
            f"There is nothing to cluster cells by: {name} has no graph in uns['neighbors'], no "
            f"obsm['X_pca'] and no expression of several genes in X; make one of them, {_HINT}."
        )
    rows = CellMatrix(adata, name=name)
    block = rows.block(0, rows.n_obs)
    check_finite(block, rows.where, 0)
    genes = AnnData(block.astype(np.float32))
    what = f"a PCA of {rows.where}"
    if block.min() < 0:
        # Scaled expression or residuals need no log-normalization.
        what += ", which is scaled"
    else:
        fractional = are_fractional_counts(block)
        if detect_values(block, rows.where, fractional=fractional) == "counts":
            sc.pp.normalize_total(genes, target_sum=TARGET_SUM)
            sc.pp.log1p(genes)
            what += ", log-normalised"
        if genes.n_vars > _N_GENES:
            sc.pp.highly_variable_genes(genes, n_top_genes=_N_GENES)
            genes = genes[:, genes.var["highly_variable"]].copy()
            what += f", {format_thousands(_N_GENES)} variable genes"
    n_components = min(_N_COMPONENTS, genes.n_obs - 1, genes.n_vars - 1)
    sc.pp.pca(genes, n_comps=n_components, random_state=0)
    return genes.obsm["X_pca"], f"neighbours in {what}"
