"""Contributions, weights, coverage and results of tests as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData

from tosica._checks import CellData, OneOf, as_names, validate_params
from tosica._obs import ATTRIBUTION, find_gene_sets, read_attention, read_attribution
from tosica._text import list_names
from tosica.model._tosica import MODEL

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from mudata import MuData

    from tosica.model import TOSICA

# Names of the record arrays, which are scanpy's, and of the columns of the tidy table.
_RANKING_COLUMNS = {
    "names": "gene_set",
    "scores": "score",
    "logfoldchanges": "logfoldchange",
    "pvals": "pval",
    "pvals_adj": "pval_adj",
    "effect_sizes": "effect_size",
}


@validate_params()
def contributions(adata: AnnData | MuData, *, key: str = ATTRIBUTION) -> AnnData:
    """Get what each gene set adds in each cell as an AnnData of cells × gene sets, for scanpy.

    Parameters
    ----------
    adata
        Query on which :func:`tosica.tl.attribute` was run with ``cells=True``. It is not changed.
    key
        ``key_added`` of that call; that of ``model.annotate`` gives the attention instead.

    Returns
    -------
    A new AnnData that shares no memory with ``adata``:

    ``.X``
        What the genes of each set add to the score of the cell's label, ``(n_obs, n_gene_sets)``
        float32, in logits.
    ``.var_names``
        Gene set names.
    ``.obs``, ``.obsm``
        Copies, without the values themselves.
    ``.uns``
        The colours (``*_colors``).

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If there are no values under ``key``, or part of them is missing.
    ValueError
        If values and names differ in number, or values are NaN or infinite.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model, cells=True)
    >>> by_gene_set = tosica.get.contributions(query)
    >>> by_gene_set.n_obs == query.n_obs
    True

    Likewise ``sc.pl.umap(by_gene_set, color="B cell activation")`` draws it on the UMAP.
    """
    values, gene_sets = read_attention(adata, key)
    uns: dict[str, Any] = {
        name: np.array(value)
        for name, value in adata.uns.items()
        if str(name).endswith("_colors")
    }
    # A MuData stores in obsm which cells each modality has.
    left_out = {f"X_{key}", *getattr(adata, "mod", ())}
    return AnnData(
        X=np.array(values, dtype=np.float32),
        obs=adata.obs.copy(),
        var=pd.DataFrame(index=pd.Index(gene_sets)),
        obsm={
            name: adata.obsm[name].copy() for name in adata.obsm if name not in left_out
        },
        uns=uns,
    )


@validate_params()
def genes_df(
    adata: AnnData | MuData,
    group: str | Iterable[str] | None = None,
    *,
    n_genes: int | None = None,
    key: str = ATTRIBUTION,
) -> pd.DataFrame:
    """Get what each gene adds to the score of a group's label, one row a group and gene.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.attribute` was run. It is not changed.
    group
        Group or groups to return, in this order. ``None`` returns all.
    n_genes
        Genes of each group, from the largest contribution down; ``None`` returns all.
    key
        ``key_added`` of :func:`tosica.tl.attribute`.

    Returns
    -------
    DataFrame with the columns ``group`` (categorical), ``gene``, ``contribution`` (logits; negative
    where the gene speaks against the label) and ``expression`` (mean in the group less that of the
    baseline; where it is negative, the group is told by what it lacks).

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If there is no such result, or no such group in it.
    ValueError
        If another model annotated ``adata`` since.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model)
    >>> tosica.get.genes_df(query, ["CD19+ B", "CD56+ NK"], n_genes=1)["gene"].to_list()
    ['CD79A', 'GNLY']
    """
    record = read_attribution(adata, key)
    parts = []
    groups = _known_groups(group, record["groups"], key)
    for name in groups:
        column = name.replace("/", "|")
        table = pd.DataFrame(
            {
                "contribution": record["genes"][column],
                "expression": record["expression"][column],
            }
        ).sort_values("contribution", ascending=False, kind="stable")[:n_genes]
        parts.append(table.rename_axis("gene").reset_index().assign(group=name))
    table = pd.concat(parts, ignore_index=True)
    return table.assign(group=pd.Categorical(table["group"], groups))[
        ["group", "gene", "contribution", "expression"]
    ]


@validate_params()
def gene_sets_df(
    adata: AnnData | MuData,
    group: str | Iterable[str] | None = None,
    *,
    similar: bool = False,
    key: str = ATTRIBUTION,
) -> pd.DataFrame:
    """Get the gene sets with evidence, one row a group and gene set, the strongest first.

    A set has evidence if its genes add more to the score of the group's label than permuted genes do,
    even without the strongest of them, at a family-wise error rate of 5 % over all sets.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.attribute` was run. It is not changed.
    group
        Group or groups to return, in this order. ``None`` returns all. Groups without evidence for
        any set have no row.
    similar
        Also return sets that are like one above, see ``similar_to``, and further sets of a group of
        which another group has a higher z: these do not tell it from that one.
    key
        ``key_added`` of :func:`tosica.tl.attribute`.

    Returns
    -------
    DataFrame:

    ``group``
        Group of cells (categorical).
    ``gene_set``, ``n_genes``
        Name of the gene set, and how many genes of the model it has.
    ``contribution``
        What those of its genes that the group expresses more than the baseline add together, in
        logits.
    ``z``
        The test without the set's strongest gene, in standard deviations of permuted genes. Sets are
        sorted by it.
    ``pval_adj``
        Chance that any set of the collection is as unlikely with permuted genes; 1 for a set with
        fewer than two of the 20 genes that add most.
    ``genes``
        The genes that add most, separated by commas.
    ``n_similar``
        How many further sets are similar to this one.
    ``similar_to``
        With ``similar=True``: the set above that shares most with a set that would have no evidence
        without the genes of those above, or empty.

    Raises
    ------
    TypeError, KeyError, ValueError
        As :func:`tosica.get.genes_df`.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model)
    >>> table = tosica.get.gene_sets_df(query)
    >>> bool((table["pval_adj"] <= 0.05).all())
    True
    """
    record = read_attribution(adata, key)
    groups = _known_groups(group, record["groups"], key)
    evidence = record["evidence"].astype({"group": str, "similar_to": str})
    n_similar = evidence.groupby(["group", "similar_to"], observed=True).size()
    pairs = pd.MultiIndex.from_frame(evidence[["group", "gene_set"]])
    evidence = evidence.assign(
        n_similar=n_similar.reindex(pairs, fill_value=0).to_numpy()
    )
    if not similar:
        of_set = record["z"].to_numpy().argmax(1)
        most = pd.Series([str(record["groups"][i]) for i in of_set], record["z"].index)
        is_own = ~evidence.duplicated("group") | (
            evidence["gene_set"].map(most) == evidence["group"]
        )
        evidence = evidence[is_own & (evidence["similar_to"] == "")].drop(
            columns="similar_to"
        )
    evidence = evidence[evidence["group"].isin(groups)]
    evidence = evidence.assign(group=pd.Categorical(evidence["group"], groups))
    return evidence.sort_values("group", kind="stable").reset_index(drop=True)


@validate_params()
def explain(
    adata: AnnData | MuData, *, n_genes: int = 5, key: str = ATTRIBUTION
) -> pd.DataFrame:
    """Get what tells each label, in a line for each.

    Parameters
    ----------
    adata
        Data on which :func:`tosica.tl.attribute` was run. It is not changed.
    n_genes
        Genes to name.
    key
        ``key_added`` of :func:`tosica.tl.attribute`.

    Returns
    -------
    DataFrame with the groups as index: ``genes`` that add most, separated by commas; with a minus
    in front where the group expresses the gene less than the baseline. ``gene_set`` with the most
    evidence, or empty if no set of the collection has any; and ``pval_adj`` of it.

    Raises
    ------
    TypeError, KeyError, ValueError
        As :func:`tosica.get.genes_df`.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model)
    >>> tosica.get.explain(query, n_genes=3).loc["CD19+ B", "genes"]
    'CD79A, MS4A1, CD79B'
    """
    first: Any = (
        gene_sets_df(adata, key=key).drop_duplicates("group").set_index("group")
    )
    rows = {}
    for name, table in genes_df(adata, n_genes=n_genes, key=key).groupby(
        "group", observed=True
    ):
        table = table[table["contribution"] > 0]
        signs = np.where(table["expression"] < 0, "−", "")
        has_set = name in first.index
        rows[name] = {
            "genes": ", ".join(
                signs + table["gene"].astype(str).to_numpy(dtype=object)
            ),
            "gene_set": first.loc[name, "gene_set"] if has_set else "",
            "pval_adj": first.loc[name, "pval_adj"] if has_set else np.nan,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("group")


# A model has weights of these; of other gene sets it has what their genes add.
_TOKENS = "the model's tokens, which alone have weights"


@validate_params(model=MODEL, how=OneOf("mean", "max"))
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
        If a gene set is no token of the model; similar names are suggested.
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
    wanted = names if gene_sets is None else find_gene_sets(gene_sets, names, _TOKENS)
    weights = model.get_gene_weights(how)
    embedding = model.module.embedding
    indptr, genes = embedding.indptr.cpu().numpy(), embedding.genes.cpu().numpy()
    parts = []
    # Without names, columns of one name are kept apart.
    columns: Iterable[int] = (
        range(len(names)) if gene_sets is None else map(names.index, wanted)
    )
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
    return table.assign(
        gene_set=pd.Categorical(table["gene_set"], list(dict.fromkeys(wanted)))
    )


@validate_params()
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
    >>> (
    ...     len(table),
    ...     int(table["n_covered"].iloc[-1])
    ...     == adata.uns["tosica_mask"]["n_genes_covered"],
    ... )
    (50, True)
    """
    about = adata.uns.get(key)
    if (
        key not in adata.varm
        or not isinstance(about, Mapping)
        or "gene_sets" not in about
    ):
        raise KeyError(
            f"There is no mask in adata.varm[{key!r}] and adata.uns[{key!r}]: call tosica.pp.build_mask(adata) first, "
            "or name the key that it wrote."
        )
    names = np.asarray(about["gene_sets"], dtype=object)
    n_sets = len(names) - int(about["n_unannotated"])
    if len(names) != adata.varm[key].shape[1] or n_sets < 1:
        raise ValueError(
            f"adata.varm[{key!r}] and adata.uns[{key!r}] do not hold the same gene sets, or none: call "
            "tosica.pp.build_mask(adata) again."
        )
    members = sp.csr_matrix(
        sp.csc_matrix(adata.varm[key])[:, :n_sets].T, dtype=np.int32
    )
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


@validate_params(adata=CellData(mudata=True))
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
        Mean in the group less that in the reference, in logits over log 2: 1 means that the set makes
        the odds of the label twice as high.
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
    Random numbers stand for what ``attribute`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica_attribution"] = {
    ...     "gene_sets": np.array(["B cell activation", "phagocytosis"])
    ... }
    >>> adata.obsm["X_tosica_attribution"] = np.random.default_rng(0).random(
    ...     (adata.n_obs, 2), np.float32
    ... )
    >>> tosica.tl.rank_gene_sets(adata, "bulk_labels")
    >>> table = tosica.get.rank_gene_sets_df(adata, group="CD19+ B")
    >>> list(table.columns)
    ['group', 'gene_set', 'score', 'logfoldchange', 'pval', 'pval_adj', 'effect_size']
    >>> len(table)
    2
    """
    result = adata.uns.get(key)
    if not isinstance(result, Mapping) or any(
        name not in result for name in _RANKING_COLUMNS
    ):
        raise KeyError(
            f"adata.uns[{key!r}] holds no result of tosica.tl.rank_gene_sets: call it with key_added={key!r} first."
        )
    groups = _known_groups(group, result["names"].dtype.names, key)
    n_rows = len(result["names"])
    codes = np.repeat(np.arange(len(groups)), n_rows)
    table: dict[str, Any] = {
        "group": pd.Categorical.from_codes(codes, pd.Index(groups))
    }
    for source, target in _RANKING_COLUMNS.items():
        columns = [np.asarray(result[source][name]) for name in groups]
        table[target] = np.concatenate(columns) if columns else []
    return pd.DataFrame(table)


def _known_groups(
    group: str | Iterable[str] | None, groups: Any, key: str
) -> list[str]:
    """Groups that the caller names, or all."""
    available = [str(name) for name in np.ravel(groups)]
    wanted = available if group is None else list(dict.fromkeys(as_names(group)))
    unknown = [name for name in wanted if name not in available]
    if unknown:
        raise KeyError(
            f"adata.uns[{key!r}] has no group {unknown[0]!r}: it holds {list_names(available)}."
        )
    return wanted
