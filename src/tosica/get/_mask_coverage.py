"""Coverage of the genes by a mask's gene sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._validation import check_data, check_string

if TYPE_CHECKING:
    from anndata import AnnData


def mask_coverage(adata: AnnData, *, key: str = "tosica_mask") -> pd.DataFrame:
    """Size, new genes and overlap of each gene set of a mask, as a table.

    Parameters
    ----------
    adata
        Data with a mask, see :func:`tosica.pp.build_mask`. It is not changed.
    key
        ``key_added`` of :func:`tosica.pp.build_mask`.

    Returns
    -------
    pandas.DataFrame
        One row a gene set, the largest first, without unannotated tokens. Columns:

        ``n_genes``
            Genes of the data in the gene set.
        ``n_new``
            How many of them are in no gene set above.
        ``n_covered``
            Genes in this gene set or one above.
        ``max_jaccard``
            The largest Jaccard index with another gene set, 0 if there is none.
        ``nearest``
            Name of that gene set; missing if the index is 0.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If there is no mask under ``key``.
    ValueError
        If names and columns of the mask are not from one call, or it has no gene set.

    See Also
    --------
    tosica.pl.mask_coverage : the same as a plot.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> tosica.pp.build_mask(adata, max_gene_sets=50)
    >>> table = tosica.get.mask_coverage(adata)
    >>> len(table), int(table["n_covered"].iloc[-1]) == adata.uns["tosica_mask"]["n_genes_covered"]
    (50, True)
    """
    check_data(adata)
    check_string("key", key)
    if key not in adata.varm or key not in adata.uns:
        raise KeyError(
            f"There is no mask in adata.varm[{key!r}] and adata.uns[{key!r}]: call "
            "tosica.pp.build_mask(adata) first."
        )
    about = adata.uns[key]
    if not isinstance(about, Mapping) or "gene_sets" not in about:
        raise KeyError(
            f"adata.uns[{key!r}] is no mask of tosica.pp.build_mask: name the key that it wrote."
        )
    names = np.asarray(about["gene_sets"], dtype=object)
    if len(names) != adata.varm[key].shape[1]:
        raise ValueError(
            f"adata.varm[{key!r}] has {adata.varm[key].shape[1]} gene sets and adata.uns[{key!r}] "
            f"names {len(names)}: they are not from one call; call tosica.pp.build_mask(adata) "
            "again."
        )
    n_sets = len(names) - int(about["n_unannotated"])
    if n_sets < 1:
        raise ValueError(f"The mask in adata.varm[{key!r}] has no gene set.")
    members = sp.csr_matrix(sp.csc_matrix(adata.varm[key])[:, :n_sets].T, dtype=np.int32)
    sizes = np.asarray(members.sum(1)).ravel()
    order = np.argsort(-sizes, kind="stable")
    members, sizes, names = members[order], sizes[order], names[:n_sets][order]

    members.sort_indices()
    # The first gene set, from above, with each gene.
    _, first = np.unique(members.indices, return_index=True)
    owner = np.repeat(np.arange(n_sets), np.diff(members.indptr))[first]
    n_new = np.bincount(owner, minlength=n_sets)

    shared = (members @ members.T).toarray().astype(np.float64)
    jaccard = shared / np.maximum(sizes[:, None] + sizes[None, :] - shared, 1)
    np.fill_diagonal(jaccard, 0)
    nearest = jaccard.argmax(1)
    most = jaccard[np.arange(n_sets), nearest]
    return pd.DataFrame(
        {
            "n_genes": sizes,
            "n_new": n_new,
            "n_covered": np.cumsum(n_new),
            "max_jaccard": most,
            "nearest": pd.array(np.where(most > 0, names[nearest], None), dtype=object),
        },
        index=pd.Index(names, name="gene_set", dtype=object),
    )
