"""Gene sets and genes that contribute most to a group's label, and weighted attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import torch

from tosica._checks import (
    FileKey,
    Integer,
    Names,
    OneOf,
    String,
    as_names,
    list_names,
    validate_params,
)
from tosica._obs import UNKNOWN, read_groups
from tosica._progress import progress
from tosica._settings import logger, only_warnings, query_logger
from tosica._stats import group_moments, standardized_difference
from tosica.data import ExpressionSource
from tosica.tl._attribute import default_baseline, iter_attributions, sum_by, token_of_pair
from tosica.tl._read_annotation import ANNOTATED_BY_MODEL, read_annotation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica.model import TOSICA

By: TypeAlias = Literal["attribution", "attention"]


@validate_params(
    **ANNOTATED_BY_MODEL,
    groupby=String(),
    groups=Names(optional=True),
    by=OneOf(*get_args(By)),
    n_gene_sets=Integer(),
    n_genes=Integer(),
    n_cells=Integer(),
    seed=Integer(least=0),
    key_added=FileKey(),
)
def top_genes(
    adata: AnnData,
    model: TOSICA,
    groupby: str = "tosica_prediction",
    *,
    groups: Iterable[str] | None = None,
    by: By = "attribution",
    n_gene_sets: int = 5,
    n_genes: int = 8,
    n_cells: int = 100,
    seed: int = 0,
    layer: str | None = None,
    use_raw: bool = False,
    key: str = "tosica",
    key_added: str = "top_genes",
    copy: bool = False,
) -> AnnData | None:
    """Find the gene sets, and the genes in them, that contribute most to a group's label.

    Parameters
    ----------
    adata
        Query that ``model`` has annotated.
    model
        The model that annotated it.
    groupby
        Column of ``adata.obs`` with the groups.
    groups
        Groups to explain; by default all except "Unknown".
    by
        ``"attribution"``: the presence of gene sets and genes (:func:`tosica.tl.attribute`), which
        is what they add to the score of each cell's best label by being expressed more than in the
        mean cell of the reference, averaged over the group's cells. The weights of all genes of a
        gene set sum to the weight of the gene set.

        ``"attention"``: as in the paper :cite:p:`Chen2023`. The weight of a gene set is the
        difference between the group's mean attention and that of the other cells, in standard
        deviations; that of a gene is the mean of its absolute weights in the embedding, whatever
        its effect on the label.
    n_gene_sets
        Gene sets to keep for each group, those with the largest positive weights.
    n_genes
        Genes to keep for each gene set, those with the largest positive weights.
    n_cells
        Cells of a group to take at most for ``by="attribution"``, drawn at random.
    seed
        Seed of the draw.
    layer, use_raw
        Which matrix of ``adata`` to read, as in :meth:`tosica.TOSICA.annotate`.
    key
        ``key_added`` of ``model.annotate``.
    key_added
        Key of ``adata.uns`` for the result.
    copy
        Leave ``adata`` as it is and return a copy with the result.

    Returns
    -------
    ``None``, or with ``copy=True`` an AnnData. Written are:

    ``adata.uns[key_added]["table"]``
        DataFrame, one row a group, gene set and gene: ``group``, ``gene_set``,
        ``gene_set_weight``, ``gene``, ``gene_weight``. :func:`tosica.get.top_genes_df` reads it.
    ``adata.uns[key_added]["params"]``
        ``groupby``, ``by`` and ``key``.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or ``groupby`` is missing.
    TypeError
        If ``groupby`` cannot be read as groups.
    ValueError
        If another model annotated ``adata``, a group is unknown, or a parameter is out of range.

    Notes
    -----
    There are 14 parameters because two of them concern ``by="attribution"`` only.

    See Also
    --------
    tosica.pl.flow, tosica.pl.gene_weights : plots of the result.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.top_genes(query, model, "phase", by="attention", n_gene_sets=2, n_genes=3)
    >>> len(tosica.get.top_genes_df(query, "S"))
    6
    """
    attention, _ = read_annotation(adata, model, key)
    cells = read_groups(adata, groupby)
    wanted = _checked_groups(cells, groups, groupby)
    if by == "attention":
        set_weights, pair_weights = _by_attention(model, attention, cells, wanted)
    else:
        rng = np.random.default_rng(seed)
        chosen = [np.sort(rng.permutation(np.flatnonzero(cells == group))[:n_cells]) for group in wanted]
        set_weights, pair_weights = presence_of_groups(ExpressionSource(adata, layer, use_raw), model, chosen)
    table = largest_weights(model, wanted, set_weights, pair_weights, n_gene_sets, n_genes)
    if table.empty:
        raise ValueError("No gene set has a positive weight in any of the groups: name other groups.")
    table["group"] = pd.Categorical(table["group"], list(dict.fromkeys(table["group"])))
    table.index = table.index.astype(str)
    target = adata.copy() if copy else adata
    target.uns[key_added] = {
        "table": table,
        "params": {"groupby": groupby, "by": by, "key": key},
    }
    logger.info(
        "top_genes: of %d groups of %r, by %s; added .uns['%s']",
        table["group"].nunique(),
        groupby,
        "presence" if by == "attribution" else by,
        key_added,
    )
    return target if copy else None


def _checked_groups(cells: pd.Categorical, groups: Iterable[str] | None, groupby: str) -> list[str]:
    available = list(cells.categories)
    if groups is None:
        return [name for name in available if name != UNKNOWN] or available
    wanted = as_names(groups)
    unknown = [name for name in wanted if name not in available]
    if unknown or not wanted:
        raise ValueError(
            f"adata.obs[{groupby!r}] has no cell in group {list_names(unknown)}: groups must be "
            f"some of {list_names(available)}."
        )
    return list(dict.fromkeys(wanted))


def _by_attention(
    model: TOSICA, attention: NDArray[np.floating], cells: pd.Categorical, wanted: list[str]
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Compute the weights that ``presence_of_groups`` returns from attention and embedding."""
    moments = group_moments(attention, cells)
    positions = [list(cells.categories).index(name) for name in wanted]
    set_weights = [standardized_difference(moments, i, within="all groups") for i in positions]
    pair_weights = model.module.embedding.gene_weights("mean").float().cpu().numpy()
    return np.stack(set_weights), np.tile(pair_weights, (len(wanted), 1))


def presence_of_groups(
    source: ExpressionSource,
    model: TOSICA,
    chosen: Sequence[NDArray[np.integer]],
    bar: str = "top_genes",
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Average the presence over the cells of each group.

    Parameters
    ----------
    source
        The query.
    model
        The model that annotated it.
    chosen
        Positions of each group's cells.
    bar
        What the progress bar says before its figures.

    Returns
    -------
    Weights of gene sets, ``(n_groups, n_gene_sets)``, and of pairs of gene and token,
    ``(n_groups, n_pairs)``.
    """
    n_cells = torch.tensor([len(rows) for rows in chosen])
    group_of_cell = torch.repeat_interleave(torch.arange(len(chosen)), n_cells)
    token = token_of_pair(model.module).cpu()
    pair_weights = torch.zeros(len(chosen), len(token))
    for rows, _, attribution in iter_attributions(
        model,
        source.data,
        baseline=default_baseline(model),
        rows=np.concatenate(chosen),
        layer=source.layer,
        use_raw=source.use_raw,
        bar=bar,
    ):
        pair_weights.index_add_(0, group_of_cell[rows], attribution.presence.cpu())
    set_weights = sum_by(pair_weights, token, model.module.embedding.n_tokens)
    set_weights = set_weights[:, : len(model.gene_sets)]
    return (set_weights / n_cells[:, None]).numpy(), (pair_weights / n_cells[:, None]).numpy()


def largest_weights(
    model: TOSICA,
    groups: list[str],
    set_weights: NDArray[np.floating],
    pair_weights: NDArray[np.floating],
    n_gene_sets: int,
    n_genes: int,
) -> pd.DataFrame:
    """Make a table of each group's gene sets with the largest weights, and of their genes."""
    embedding = model.module.embedding
    indptr, genes = embedding.indptr.cpu().numpy(), embedding.genes.cpu().numpy()
    gene_names, set_names = np.asarray(model.get_var_names()), model.gene_sets
    rows = []
    for code, group in enumerate(groups):
        for p in _largest(set_weights[code], n_gene_sets):
            weights = pair_weights[code, indptr[p] : indptr[p + 1]]
            rows += [
                (
                    group,
                    set_names[p],
                    float(set_weights[code, p]),
                    str(gene_names[genes[indptr[p] + g]]),
                    float(weights[g]),
                )
                for g in _largest(weights, n_genes)
            ]
    return pd.DataFrame(rows, columns=["group", "gene_set", "gene_set_weight", "gene", "gene_weight"])


def _largest(values: NDArray[np.floating], most: int) -> list[int]:
    """Positions of the largest positive values, in descending order."""
    order = np.argsort(-values, kind="stable")[:most]
    return [int(i) for i in order if values[i] > 0]


@validate_params(
    **ANNOTATED_BY_MODEL,
    key_added=FileKey(optional=True),
)
def weight_attention(
    adata: AnnData,
    model: TOSICA,
    *,
    layer: str | None = None,
    use_raw: bool = False,
    key: str = "tosica",
    key_added: str | None = None,
    copy: bool = False,
) -> AnnData | None:
    """Weight a cell's attention to each gene set by the norm of the gene set's embedding.

    A token with much attention passes on little if its embedding is short. The product with the
    norm :cite:p:`Kobayashi2020` follows the expression of the gene set's genes, and so finds gene
    sets whose genes differ between groups better than attention does. For the same reason it says
    less about what the model makes of them: use :func:`tosica.tl.attribute` for that.

    Parameters
    ----------
    adata
        Query that ``model`` has annotated.
    model
        The model that annotated it.
    layer, use_raw
        Which matrix of ``adata`` to read, as in :meth:`tosica.TOSICA.annotate`.
    key
        ``key_added`` of ``model.annotate``.
    key_added
        Replaces ``f"{key}_weighted"`` in the keys below.
    copy
        Leave ``adata`` as it is and return a copy with the result.

    Returns
    -------
    ``None``, or with ``copy=True`` an AnnData. Written are:

    ``adata.obsm["X_tosica_weighted"]``
        Attention times the Euclidean norm of the gene set's embedding without bias,
        ``(n_obs, n_gene_sets)`` float32. Functions of ``get``, ``tl`` and ``pl`` read it with
        ``key="tosica_weighted"``.
    ``adata.uns["tosica_weighted"]``
        Names of the gene sets, and the fingerprint of the model.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If ``adata`` was not annotated under ``key``, or part of what that wrote is missing.
    ValueError
        If another model annotated ``adata``, or as :meth:`tosica.TOSICA.annotate`.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.weight_attention(query, model)
    >>> tosica.get.mean_attention(query, "phase", key="tosica_weighted").shape
    (3, 61)
    """
    attention, gene_sets = read_annotation(adata, model, key)
    key_added = key_added or f"{key}_weighted"
    embedding = model.module.embedding
    weighted = np.empty((adata.n_obs, len(gene_sets)), dtype=np.float32)
    with (
        torch.no_grad(),
        only_warnings(query_logger),
        progress(adata.n_obs, "weight_attention") as step,
    ):
        for first, x, _ in model.iter_batches(adata, layer=layer, use_raw=use_raw):
            tokens = embedding.to_tokens(embedding.gene_set_embeddings(x) - embedding.bias)
            norm = tokens[:, : len(gene_sets)].norm(dim=2).cpu().numpy()
            rows = slice(first, first + len(x))
            weighted[rows] = attention[rows] * norm
            step.update(len(x))
    result = adata.copy() if copy else adata
    result.obsm[f"X_{key_added}"] = weighted
    result.uns[key_added] = {
        "gene_sets": np.array(gene_sets, dtype=object),
        "model": model.fingerprint,
    }
    logger.info("weight_attention: added .obsm['X_%s'] and .uns['%s']", key_added, key_added)
    return result if copy else None
