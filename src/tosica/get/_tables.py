"""Attention, weights, coverage and results of tests as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData

from tosica._checks import (
    CellData,
    Integer,
    Names,
    OneOf,
    String,
    as_names,
    list_names,
    validate_params,
)
from tosica._obs import find_gene_sets, read_attention, read_groups, resolve_key
from tosica._stats import group_moments
from tosica.model._tosica import MODEL

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from numpy.typing import NDArray

    from tosica._stats import GroupMoments
    from tosica.model import TOSICA

Scale: TypeAlias = Literal["z_score", "min_max"]

# Names of the record arrays, which are scanpy's, and of the columns of the tidy table.
_RANKING_COLUMNS = {
    "names": "gene_set",
    "scores": "score",
    "logfoldchanges": "logfoldchange",
    "pvals": "pval",
    "pvals_adj": "pval_adj",
    "effect_sizes": "effect_size",
}
_GENE_COLUMNS = ["group", "gene_set", "gene_set_weight", "gene", "gene_weight"]


@validate_params(adata=CellData(mudata=True), key=String())
def attention(adata: AnnData, *, key: str = "tosica") -> AnnData:
    """Attention as an AnnData of cells × gene sets, for scanpy's functions.

    The attention is that of the class token in the attention rollout of :cite:t:`Chen2023`, without
    the class token itself and without unannotated tokens.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated. It is not changed.
    key
        ``key_added`` of ``model.annotate``.

    Returns
    -------
    A new AnnData that shares no memory with ``adata``:

    ``.X``
        Attention, ``(n_obs, n_gene_sets)`` float32, a share. A row sums to less than 1, because the
        class token also attends to itself and to unannotated tokens.
    ``.var_names``
        Gene set names.
    ``.var["modality"]``
        Modality of each gene set, if the model has several.
    ``.obs``, ``.obsm``
        Copies. The attention is left out of ``obsm``, because it is ``X``.
    ``.uns``
        The colours (``*_colors``).

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If ``adata`` was not annotated under ``key``, or part of what that wrote is missing.
    ValueError
        If attention and names differ in number, or the attention holds NaN or infinity.

    See Also
    --------
    tosica.get.mean_attention : one row a group of cells.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> by_gene_set = tosica.get.attention(adata)
    >>> by_gene_set.shape
    (700, 2)
    >>> list(by_gene_set.var_names)
    ['B cell activation', 'phagocytosis']
    >>> sc.get.obs_df(by_gene_set, ["phase", "phagocytosis"]).shape
    (700, 2)

    Likewise ``sc.pl.umap(by_gene_set, color="phagocytosis")`` draws attention on the UMAP.
    """
    values, gene_sets = read_attention(adata, key)
    uns: dict[str, Any] = {name: np.array(value) for name, value in adata.uns.items() if str(name).endswith("_colors")}
    # A MuData stores in obsm which cells each modality has.
    left_out = {f"X_{key}", *getattr(adata, "mod", ())}
    return AnnData(
        X=np.array(values, dtype=np.float32),
        obs=adata.obs.copy(),
        var=pd.DataFrame(_modalities(adata, key), index=pd.Index(gene_sets)),
        obsm={name: adata.obsm[name].copy() for name in adata.obsm if name not in left_out},
        uns=uns,
    )


def _modalities(adata: AnnData, key: str) -> dict[str, Any] | None:
    """Column of var with the modality of each gene set, if the model has several."""
    if "modalities" not in adata.uns[key]:
        return None
    return {"modality": pd.Categorical(np.asarray(adata.uns[key]["modalities"]).astype(str))}


@validate_params(
    adata=CellData(mudata=True),
    groupby=String(),
    scale=OneOf(*get_args(Scale), optional=True),
    key=String(optional=True),
)
def mean_attention(
    adata: AnnData,
    groupby: str,
    *,
    scale: Scale | None = None,
    key: str | None = None,
) -> pd.DataFrame:
    """Average the contribution of each gene set, or the attention to it, in each group of cells.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated. It is not changed.
    groupby
        Column of ``adata.obs`` with the groups, such as ``"tosica_prediction"``.
    scale
        How to make gene sets comparable whose values differ in size:

        ``None``
            The means as they are.
        ``"z_score"``
            Each gene set is z-scored over all cells (mean 0, standard deviation 1) before the
            groups are averaged: 1 means that the group's mean lies one standard deviation above the
            mean of all cells. A gene set that is the same in all cells becomes 0.
        ``"min_max"``
            Each gene set's means run from 0 (lowest group) to 1 (highest group). A gene set that
            is the same in all groups becomes 0.
    key
        What to average. ``None``: the presence that :func:`tosica.tl.attribute` wrote
        (``"tosica_presence"``) or, without it, the attention that ``model.annotate`` wrote
        (``"tosica"``); a log line says which.

    Returns
    -------
    DataFrame, ``(n_groups, n_gene_sets)`` float64. Groups are in the order of their categories;
    categories without cells are left out.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or ``groupby`` is missing.
    TypeError
        If ``groupby`` cannot be read as groups.
    ValueError
        If cells have no group, ``scale`` is unknown, attention and names differ in number, the
        attention holds NaN or infinity, or the presence was written by another model than the
        annotation.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> tosica.get.mean_attention(adata, "phase").round(2)
           B cell activation  phagocytosis
    phase
    G1                  0.52          0.52
    G2M                 0.48          0.44
    S                   0.46          0.53
    """
    values, gene_sets = read_attention(adata, resolve_key(adata, key))
    groups = read_groups(adata, groupby)
    moments = group_moments(values, groups)
    return pd.DataFrame(
        _scaled(moments, scale),
        index=pd.Index(groups.categories, name=groupby),
        columns=pd.Index(gene_sets),
    )


def _scaled(moments: GroupMoments, scale: Scale | None) -> NDArray[np.float64]:
    if scale is None:
        return moments.mean
    if scale == "z_score":
        offset, width = moments.mean_of_cells, np.sqrt(moments.variance_of_cells)
    else:
        offset, width = moments.mean.min(axis=0), np.ptp(moments.mean, axis=0)
    # Rounding leaves a tiny width where all values are equal, and division by it would be noise.
    is_constant = width <= 1e-9 * np.abs(offset)
    scaled = (moments.mean - offset) / np.where(is_constant, 1.0, width)
    return np.where(is_constant, 0.0, scaled)


@validate_params(
    model=MODEL,
    gene_sets=Names(optional=True),
    how=OneOf("mean", "max"),
    n_genes=Integer(optional=True),
)
def gene_weights(
    model: TOSICA,
    gene_sets: str | Iterable[str] | None = None,
    *,
    how: Literal["mean", "max"] = "mean",
    n_genes: int | None = None,
) -> pd.DataFrame:
    """Weight of each gene in each gene set, as a tidy table with one row a pair.

    The weights are those of :meth:`tosica.TOSICA.get_gene_weights`; pairs outside the mask are left
    out.

    Parameters
    ----------
    model
        The model. Before training its weights are random.
    gene_sets
        Gene set or gene sets to return, in this order; ``None`` returns all, without the
        unannotated tokens.
    how
        ``"mean"`` of the absolute weights over the dimensions of the embedding (the paper,
        :cite:t:`Chen2023`), or ``"max"`` (the paper's code).
    n_genes
        Genes to keep of each gene set, from the highest weight down; ``None`` keeps all.

    Returns
    -------
    DataFrame, sorted by gene set and, within one, from the highest weight down:

    ``gene_set``
        Name of the gene set (categorical).
    ``gene``
        Name of the gene.
    ``weight``
        Float32, at least 0, without a unit.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If there is no such gene set; similar names are suggested.
    ValueError
        If ``how`` is unknown, ``n_genes`` is below 1, or ``gene_sets`` is empty.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> ref = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> tosica.pp.build_mask(ref, max_gene_sets=50)
    >>> tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels")
    >>> model = tosica.TOSICA(ref, embed_dim=8)
    >>> table = tosica.get.gene_weights(model, model.gene_sets[0], n_genes=3)
    >>> table.shape
    (3, 3)
    """
    names = model.gene_sets
    wanted = names if gene_sets is None else find_gene_sets(gene_sets, names, "the model")
    weights = model.get_gene_weights(how)
    embedding = model.module.embedding
    indptr, genes = embedding.indptr.cpu().numpy(), embedding.genes.cpu().numpy()
    parts = []
    # Without names, columns of one name are kept apart.
    columns: Iterable[int] = range(len(names)) if gene_sets is None else map(names.index, wanted)
    for column in columns:
        members = genes[indptr[column] : indptr[column + 1]]
        values = weights.iloc[members, column].to_numpy()
        order = np.argsort(-values, kind="stable")[:n_genes]
        of_set = {
            "gene_set": names[column],
            "gene": weights.index[members[order]],
            "weight": values[order],
        }
        parts.append(pd.DataFrame(of_set))
    table = pd.concat(parts, ignore_index=True)
    return table.assign(gene_set=pd.Categorical(table["gene_set"], list(dict.fromkeys(wanted))))


@validate_params(adata=CellData(), key=String())
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
    if key not in adata.varm or key not in adata.uns:
        raise KeyError(
            f"There is no mask in adata.varm[{key!r}] and adata.uns[{key!r}]: call tosica.pp.build_mask(adata) first."
        )
    about = adata.uns[key]
    if not isinstance(about, Mapping) or "gene_sets" not in about:
        raise KeyError(f"adata.uns[{key!r}] is no mask of tosica.pp.build_mask: name the key that it wrote.")
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


@validate_params(adata=CellData(mudata=True), group=Names(optional=True), key=String())
def rank_gene_sets_df(
    adata: AnnData,
    group: str | Iterable[str] | None = None,
    *,
    key: str = "rank_gene_sets",
) -> pd.DataFrame:
    """Result of :func:`tosica.tl.rank_gene_sets` as a tidy table, one row a group and gene set.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.rank_gene_sets` was run. It is not changed.
    group
        Group or groups to return, in this order. ``None`` returns all.
    key
        ``key_added`` of :func:`tosica.tl.rank_gene_sets`.

    Returns
    -------
    DataFrame whose rows are sorted by group and, within a group, from the highest score down:

    ``group``
        Group of cells (categorical).
    ``gene_set``
        Name of the gene set.
    ``score``
        Statistic of the test, z for ``"wilcoxon"`` and t for the other methods. Positive where the
        gene set contributes more in the group, or gets more attention.
    ``logfoldchange``
        log2 of the mean in the group over the mean in the reference: 1 means twice as much. NaN
        where a mean is negative.
    ``pval``, ``pval_adj``
        P-value, and the same adjusted for the number of gene sets (Benjamini and Hochberg).
    ``effect_size``
        Difference of the means in standard deviations of cells within the two sides.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If there is no such result, or no such group in it.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> tosica.tl.rank_gene_sets(adata, "bulk_labels")
    >>> table = tosica.get.rank_gene_sets_df(adata, group="CD19+ B")
    >>> list(table.columns)
    ['group', 'gene_set', 'score', 'logfoldchange', 'pval', 'pval_adj', 'effect_size']
    >>> len(table)
    2
    """
    result = _read_result(adata, key, "rank_gene_sets", _RANKING_COLUMNS)
    available = list(result["names"].dtype.names)
    groups = _known_groups(group, available, key)
    n_rows = len(result["names"])
    codes = np.repeat(np.arange(len(groups)), n_rows)
    table: dict[str, Any] = {"group": pd.Categorical.from_codes(codes, pd.Index(groups))}
    for source, target in _RANKING_COLUMNS.items():
        columns = [np.asarray(result[source][name]) for name in groups]
        table[target] = np.concatenate(columns) if columns else []
    return pd.DataFrame(table)


@validate_params(adata=CellData(mudata=True), group=Names(optional=True), key=String())
def top_genes_df(adata: AnnData, group: str | Iterable[str] | None = None, *, key: str = "top_genes") -> pd.DataFrame:
    """Result of :func:`tosica.tl.top_genes`, one row a group, gene set and gene.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.top_genes` was run. It is not changed.
    group
        Group or groups to return. ``None`` returns all.
    key
        ``key_added`` of :func:`tosica.tl.top_genes`.

    Returns
    -------
    DataFrame with the columns ``group``, ``gene_set``, ``gene_set_weight``, ``gene`` and
    ``gene_weight``, from the largest weight of a gene set and gene down.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If there is no such result, or no such group in it.

    Examples
    --------
    >>> import pandas as pd
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> row = ["B", "B cell activation", 1.5, "CD79A", 0.4]
    >>> columns = ["group", "gene_set", "gene_set_weight", "gene", "gene_weight"]
    >>> adata.uns["top_genes"] = {"table": pd.DataFrame([row], columns=columns)}
    >>> tosica.get.top_genes_df(adata, "B")["gene"].to_list()
    ['CD79A']
    """
    table = _read_result(adata, key, "top_genes", ["table"])["table"][_GENE_COLUMNS]
    available = list(dict.fromkeys(table["group"].astype(str)))
    wanted = _known_groups(group, available, key)
    return table[table["group"].astype(str).isin(wanted)].reset_index(drop=True)


def _read_result(adata: AnnData, key: str, tool: str, fields: Iterable[str]) -> Mapping[str, Any]:
    """Read what a tool wrote into ``uns``."""
    result = adata.uns.get(key)
    if not isinstance(result, Mapping) or any(name not in result for name in fields):
        raise KeyError(f"adata.uns[{key!r}] holds no result of tosica.tl.{tool}: call it with key_added={key!r} first.")
    return result


def _known_groups(group: str | Iterable[str] | None, available: list[str], key: str) -> list[str]:
    """Groups that the caller names, or all."""
    wanted = available if group is None else list(dict.fromkeys(as_names(group)))
    unknown = [name for name in wanted if name not in available]
    if unknown:
        raise KeyError(f"adata.uns[{key!r}] has no group {unknown[0]!r}: it holds {list_names(available)}.")
    return wanted
