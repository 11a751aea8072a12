"""Contributions, weights, coverage and results of tests as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData

from tosica._obs import ATTRIBUTION, find_gene_sets, read_attention, read_attribution
from tosica._text import list_names
from tosica._validate import CellData, OneOf, as_names, validate_params
from tosica.gs._gene_sets import GeneSets
from tosica.model._tosica import MODEL

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from tosica._types import AnnOrMuData
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
def contributions(adata: AnnOrMuData, *, key: str = ATTRIBUTION) -> AnnData:
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
        What the genes of each set that the cell expresses more than the baseline add to the score of its
        label, ``(n_obs, n_gene_sets)`` float32, in logits.
    ``.var_names``
        Gene set names.
    ``.obs``, ``.obsm``
        Copies, without the values themselves.
    ``.uns``
        The colors (``*_colors``).

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
    by_gene_set = AnnData(
        X=np.array(values, dtype=np.float32),
        obs=adata.obs.copy(),
        var=pd.DataFrame(index=pd.Index(gene_sets)),
    )
    for name, value in adata.uns.items():
        if str(name).endswith("_colors"):
            by_gene_set.uns[name] = np.array(value)
    # A MuData stores in obsm which cells each modality has.
    modalities = getattr(adata, "mod", ())
    for name, embedding in adata.obsm.items():
        if name != f"X_{key}" and name not in modalities:
            by_gene_set.obsm[name] = embedding.copy()
    return by_gene_set


@validate_params()
def genes_df(
    adata: AnnOrMuData,
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
    groups = _select_groups(group, record["groups"], key)
    columns = ["group", "gene", "contribution", "expression"]
    if not groups:
        return pd.DataFrame(columns=columns)
    tables = []
    for name in groups:
        column = name.replace("/", "|")
        table = pd.DataFrame(
            {
                "group": name,
                "contribution": record["genes"][column],
                "expression": record["expression"][column],
            }
        )
        table = table.sort_values("contribution", ascending=False, kind="stable")
        tables.append(table[:n_genes].rename_axis("gene").reset_index())
    table = pd.concat(tables, ignore_index=True)
    table["group"] = pd.Categorical(table["group"], groups)
    return table[columns]


@validate_params()
def gene_sets_df(
    adata: AnnOrMuData,
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
        What its genes add together in cells that express them more than the baseline, in logits: the mean
        over the cells.
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
    groups = _select_groups(group, record["groups"], key)
    evidence = record["evidence"].astype({"group": str, "similar_to": str})
    n_similar = evidence.groupby(["group", "similar_to"], observed=True).size()
    pairs = pd.MultiIndex.from_frame(evidence[["group", "gene_set"]])
    evidence = evidence.assign(
        n_similar=n_similar.reindex(pairs, fill_value=0).to_numpy()
    )
    if not similar:
        z = record["z"]
        group_names = np.array([str(name) for name in record["groups"]], dtype=object)
        group_of_set = pd.Series(group_names[z.to_numpy().argmax(1)], z.index)
        is_strongest = ~evidence.duplicated("group")
        is_specific = evidence["gene_set"].map(group_of_set) == evidence["group"]
        is_distinct = evidence["similar_to"] == ""
        evidence = evidence[(is_strongest | is_specific) & is_distinct]
        evidence = evidence.drop(columns="similar_to")
    evidence = evidence[evidence["group"].isin(groups)]
    evidence = evidence.assign(group=pd.Categorical(evidence["group"], groups))
    return evidence.sort_values("group", kind="stable").reset_index(drop=True)


@validate_params()
def explain(
    adata: AnnOrMuData, *, n_genes: int = 5, key: str = ATTRIBUTION
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
    genes = genes_df(adata, n_genes=n_genes, key=key)
    genes["name"] = genes["gene"].astype(str)
    is_lacking = genes["expression"] < 0
    genes.loc[is_lacking, "name"] = "−" + genes["name"]
    lines = {
        group: ", ".join(table["name"][table["contribution"] > 0])
        for group, table in genes.groupby("group", observed=True)
    }
    explained = pd.Series(lines, name="genes", dtype=object).to_frame()
    gene_sets = gene_sets_df(adata, key=key).drop_duplicates("group")
    gene_sets = gene_sets.astype({"group": object}).set_index("group")
    explained = explained.join(gene_sets[["gene_set", "pval_adj"]])
    explained["gene_set"] = explained["gene_set"].fillna("")
    return explained.rename_axis("group")


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
    all_names = model.gene_sets
    if gene_sets is None:
        # Tokens of one name are kept apart.
        names = all_names
        columns = list(range(len(all_names)))
    else:
        names = find_gene_sets(gene_sets, all_names, _TOKENS)
        columns = [all_names.index(name) for name in names]
    weights = model.get_gene_weights(how)
    tokens = model.tokens
    tables = []
    for column in columns:
        genes = tokens.genes[tokens.indptr[column] : tokens.indptr[column + 1]]
        of_set = weights.iloc[genes, column]
        of_set = of_set.iloc[np.argsort(-of_set.to_numpy(), kind="stable")[:n_genes]]
        tables.append(
            pd.DataFrame(
                {
                    "gene_set": all_names[column],
                    "gene": of_set.index,
                    "weight": of_set.to_numpy(),
                }
            )
        )
    table = pd.concat(tables, ignore_index=True)
    categories = list(dict.fromkeys(names))
    return table.assign(gene_set=pd.Categorical(table["gene_set"], categories))


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
    gene_sets = _read_mask(adata, key)
    gene_sets = gene_sets.subset(np.argsort(-gene_sets.sizes, kind="stable"))
    members = gene_sets.members.astype(np.int32)
    sizes = gene_sets.sizes
    n_sets = len(gene_sets)

    # Position of the largest gene set with each gene.
    _, entry = np.unique(members.indices, return_index=True)
    largest = np.repeat(np.arange(n_sets), sizes)[entry]
    n_new = np.bincount(largest, minlength=n_sets)

    shared = (members @ members.T).toarray().astype(np.float64)
    jaccard = shared / np.maximum(sizes[:, None] + sizes[None, :] - shared, 1)
    np.fill_diagonal(jaccard, 0)
    nearest = jaccard.argmax(1)
    max_jaccard = jaccard[np.arange(n_sets), nearest]
    nearest_names = np.where(max_jaccard > 0, gene_sets.names[nearest], None)
    return pd.DataFrame(
        {
            "n_genes": sizes,
            "n_new": n_new,
            "n_covered": np.cumsum(n_new),
            "max_jaccard": max_jaccard,
            "nearest": pd.array(nearest_names, dtype=object),
        },
        index=pd.Index(gene_sets.names, name="gene_set", dtype=object),
    )


def _read_mask(adata: AnnData, key: str) -> GeneSets:
    """Read the gene sets of a mask, without unannotated tokens."""
    description = adata.uns.get(key)
    if (
        key not in adata.varm
        or not isinstance(description, Mapping)
        or "gene_sets" not in description
    ):
        raise KeyError(
            f"There is no mask in adata.varm[{key!r}] and adata.uns[{key!r}]: call tosica.pp.build_mask(adata) first, "
            "or name the key that it wrote."
        )
    names = np.asarray(description["gene_sets"], dtype=object)
    # Only masks of models of the original code have unannotated tokens, at the end.
    n_sets = len(names) - int(description.get("n_unannotated", 0))
    if len(names) != adata.varm[key].shape[1] or n_sets < 1:
        raise ValueError(
            f"adata.varm[{key!r}] and adata.uns[{key!r}] do not hold the same gene sets, or none: call "
            "tosica.pp.build_mask(adata) again."
        )
    mask = sp.csc_matrix(adata.varm[key])[:, :n_sets]
    return GeneSets.from_mask(names[:n_sets], adata.var_names, mask)


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
    DataFrame whose rows are sorted by group and, within a group, as :func:`tosica.tl.rank_gene_sets` ranked them:

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
        P-value, and the same adjusted for the number of gene sets (Benjamini and Hochberg), NaN where it
        would be no evidence.
    ``effect_size``
        Difference of the means in standard deviations of cells within the two sides.
    ``caveat``
        Why ``pval_adj`` is NaN, or why p-values only rank; empty if neither.

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
    ['group', 'gene_set', 'score', 'logfoldchange', 'pval', 'pval_adj', 'effect_size', 'caveat']
    >>> len(table)
    2
    """
    ranking = adata.uns.get(key)
    if not isinstance(ranking, Mapping) or any(
        name not in ranking for name in _RANKING_COLUMNS
    ):
        raise KeyError(
            f"adata.uns[{key!r}] holds no result of tosica.tl.rank_gene_sets: call it with key_added={key!r} first."
        )
    groups = _select_groups(group, ranking["names"].dtype.names, key)
    n_rows = len(ranking["names"])
    table: dict[str, Any] = {
        "group": pd.Categorical(
            np.repeat(np.array(groups, dtype=object), n_rows), groups
        )
    }
    for record_name, column in _RANKING_COLUMNS.items():
        records = ranking[record_name]
        columns = [np.asarray(records[name]) for name in groups]
        table[column] = np.concatenate(columns) if columns else []
    all_groups = [str(name) for name in ranking["names"].dtype.names]
    caveats = ranking.get("params", {}).get("caveats", [""] * len(all_groups))
    caveat_of = dict(zip(all_groups, map(str, caveats), strict=True))
    table["caveat"] = np.repeat([caveat_of[name] for name in groups], n_rows)
    return pd.DataFrame(table)


def _select_groups(
    group: str | Iterable[str] | None, groups: Iterable[str], key: str
) -> list[str]:
    """Groups that the caller names, or all."""
    available = [str(name) for name in groups]
    if group is None:
        return available
    selected = list(dict.fromkeys(as_names(group)))
    for name in selected:
        if name not in available:
            raise KeyError(
                f"adata.uns[{key!r}] has no group {name!r}: it holds {list_names(available)}."
            )
    return selected
