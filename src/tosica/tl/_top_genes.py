"""From a label to its gene sets to their genes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import torch

from tosica._constants import UNKNOWN
from tosica._groups import read_groups
from tosica._logging import logger
from tosica._statistics import group_moments
from tosica.get._gene_weights import gene_weights
from tosica.tl._integrated_gradients import (
    baseline_expression,
    default_baseline,
    iter_attributions,
    sum_by,
    token_of_pair,
)
from tosica.tl._read_annotation import read_annotation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica.model import TOSICA

By: TypeAlias = Literal["attribution", "attention"]

_CELLS_AT_ONCE = 16
_N_STEPS = 24


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
    """Find the gene sets on which a group's label rests most, and the genes in them.

    Parameters
    ----------
    adata
        Query with cells that ``model`` has annotated.
    model
        The model that annotated it.
    groupby
        Column of ``adata.obs`` with the groups.
    groups
        Groups to explain; by default all but "Unknown".
    by
        ``"attribution"``: what gene sets and genes add to the score of each cell's best label,
        compared with the mean cell of the reference (:func:`tosica.tl.attribute`), averaged over
        the group's cells. Gene sets are ordered by the part of genes that are expressed more than
        in the mean cell (their presence); the weights of a gene set's genes, all of them, sum to
        it.

        ``"attention"``: as in the paper :cite:p:`Chen2023`. A gene set's weight is by how many
        standard deviations the group's mean attention lies above that of the other cells; a
        gene's is the mean of its absolute weights in the embedding, whatever it does to the label.
    n_gene_sets
        Gene sets for each group, from the highest weight down, of those with a positive weight.
    n_genes
        Genes for each gene set, from the highest weight down, of those with a positive weight.
    n_cells
        Cells of a group to take at most for ``by="attribution"``, drawn at random.
    seed
        Seed of that.
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

    `adata.uns[key_added]["table"]`
        DataFrame, one row a group, gene set and gene: ``group``, ``gene_set``,
        ``gene_set_weight``, ``gene``, ``gene_weight``. :func:`tosica.get.top_genes_df` reads it.
    `adata.uns[key_added]["params"]`
        ``groupby``, ``by`` and ``key``.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or ``groupby`` is missing.
    TypeError
        If ``groupby`` cannot be read as groups.
    ValueError
        If another model annotated ``adata``, a group is unknown, or a parameter is out of range.

    See Also
    --------
    tosica.pl.flow, tosica.pl.gene_weights : plots of the result.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> adata.obs_names_make_unique()
    >>> tosica.pp.build_mask(adata, max_gene_sets=20)
    >>> tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
    >>> model = tosica.TOSICA(adata, embed_dim=16)
    >>> model.train(max_epochs=2, enable_progress_bar=False)
    >>> model.annotate(adata)
    >>> tosica.tl.top_genes(adata, model, "phase", by="attention", n_gene_sets=2, n_genes=3)
    >>> len(tosica.get.top_genes_df(adata, "S"))
    6
    """
    if by not in get_args(By):
        raise ValueError(f"by must be {' or '.join(map(repr, get_args(By)))}, not {by!r}.")
    sizes = {"n_gene_sets": n_gene_sets, "n_genes": n_genes, "n_cells": n_cells}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}.")
    attention, gene_sets = read_annotation(adata, model, key)
    cells = read_groups(adata, groupby)
    wanted = _wanted(cells, groups, groupby)
    if by == "attention":
        rows = _by_attention(model, attention, gene_sets, cells, wanted, n_gene_sets, n_genes)
    else:
        rows = _by_attribution(
            adata, model, cells, wanted, n_gene_sets, n_genes, n_cells, seed, layer, use_raw
        )
    if not rows:
        raise ValueError(
            "No gene set has a positive weight in any of the groups: name other groups."
        )
    table = pd.DataFrame(
        rows, columns=["group", "gene_set", "gene_set_weight", "gene", "gene_weight"]
    )
    table["group"] = pd.Categorical(table["group"], list(dict.fromkeys(table["group"])))
    table.index = table.index.astype(str)
    target = adata.copy() if copy else adata
    target.uns[key_added] = {
        "table": table,
        "params": {"groupby": groupby, "by": by, "key": key},
    }
    logger.info(
        "top_genes: %d gene sets in %d groups of %r, by %s; added .uns['%s']",
        table["gene_set"].nunique(),
        table["group"].nunique(),
        groupby,
        by,
        key_added,
    )
    return target if copy else None


def _wanted(cells: pd.Categorical, groups: Iterable[str] | None, groupby: str) -> list[str]:
    available = list(cells.categories)
    if groups is None:
        return [name for name in available if name != UNKNOWN] or available
    wanted = [groups] if isinstance(groups, str) else [str(name) for name in groups]
    unknown = [name for name in wanted if name not in available]
    if unknown or not wanted:
        what = f"has no cell in group {unknown[0]!r}" if unknown else "was asked for no group"
        raise ValueError(
            f"adata.obs[{groupby!r}] {what}: its groups are {', '.join(map(repr, available))}."
        )
    return list(dict.fromkeys(wanted))


CellMatrix: TypeAlias = list[tuple[str, str, float, str, float]]


def _by_attention(
    model: TOSICA,
    attention: NDArray[np.floating],
    gene_sets: list[str],
    cells: pd.Categorical,
    wanted: list[str],
    n_gene_sets: int,
    n_genes: int,
) -> CellMatrix:
    moments = group_moments(attention, cells)
    deviation = np.sqrt(moments.variance_within)
    deviation = np.where(deviation > 0, deviation, 1.0)
    weights = gene_weights(model, n_genes=n_genes)
    rows: CellMatrix = []
    for name in wanted:
        i = list(cells.categories).index(name)
        n = moments.n_cells[i]
        if n == len(cells):
            score = moments.mean[i]
        else:
            others = (moments.mean_of_cells * len(cells) - moments.mean[i] * n) / (len(cells) - n)
            score = (moments.mean[i] - others) / deviation
        for p in _largest(score, n_gene_sets):
            part = weights[weights["gene_set"] == gene_sets[p]].head(n_genes)
            rows += [
                (name, gene_sets[p], float(score[p]), str(gene), float(weight))
                for gene, weight in zip(part["gene"], part["weight"], strict=True)
                if weight > 0
            ]
    return rows


def _by_attribution(
    adata: AnnData,
    model: TOSICA,
    cells: pd.Categorical,
    wanted: list[str],
    n_gene_sets: int,
    n_genes: int,
    n_cells: int,
    seed: int,
    layer: str | None,
    use_raw: bool,
) -> CellMatrix:
    module, rng = model.module, np.random.default_rng(seed)
    embedding = module.embedding
    baseline = default_baseline(model)
    start = baseline_expression(model, adata, baseline, layer=layer, use_raw=use_raw)
    indptr, genes = embedding.indptr.cpu().numpy(), embedding.genes.cpu().numpy()
    names, sets = model._var_names, model.gene_sets
    chosen = [
        np.sort(rng.permutation(np.flatnonzero(cells == group))[:n_cells]) for group in wanted
    ]
    group_of_row = np.repeat(np.arange(len(wanted)), [len(rows) for rows in chosen])
    of_pairs = torch.zeros(len(wanted), len(genes))
    for cell_rows, _, found in iter_attributions(
        model,
        adata[np.concatenate(chosen)],
        start,
        label=None,
        n_steps=_N_STEPS,
        batch_size=_CELLS_AT_ONCE,
        lacks_genes=baseline == "mean",
        layer=layer,
        use_raw=use_raw,
    ):
        codes = torch.from_numpy(group_of_row[cell_rows])
        of_pairs.index_add_(0, codes, found.presence.cpu())
    of_sets = sum_by(of_pairs, token_of_pair(module).cpu(), embedding.n_tokens)[:, : len(sets)]
    rows: CellMatrix = []
    for code, group in enumerate(wanted):
        score = of_sets[code].numpy() / len(chosen[code])
        for p in _largest(score, n_gene_sets):
            of_genes = of_pairs[code, indptr[p] : indptr[p + 1]].numpy() / len(chosen[code])
            rows += [
                (
                    group,
                    sets[p],
                    float(score[p]),
                    str(names[genes[indptr[p] + g]]),
                    float(of_genes[g]),
                )
                for g in _largest(of_genes, n_genes)
            ]
    return rows


def _largest(values: NDArray[np.floating], most: int) -> list[int]:
    order = np.argsort(-values, kind="stable")[:most]
    return [int(i) for i in order if values[i] > 0]
