"""Deletion curves: how faithful attention and attribution are to the model."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.integrate import trapezoid

from tosica._checks import (
    FileKey,
    Fraction,
    InstanceOf,
    Integer,
    Names,
    OneOf,
    as_names,
    validate_params,
)
from tosica._parallel import thread_map, thread_pool
from tosica._progress import progress
from tosica._settings import logger, only_warnings, query_logger

XX
from tosica.tl._read_annotation import ANNOTATED_BY_MODEL, read_annotation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica.model import TOSICA
    from tosica.model._query import Minibatch

# Names of the orders, and what tools append to the key of the annotation.
_ENDINGS = {
    "attention": "",
    "weighted attention": "_weighted",
    "attribution": "_attribution",
    "presence": "_presence",
}
_RANDOM = "random"
_SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)


@validate_params(
    **ANNOTATED_BY_MODEL,
    orders=Names(optional=True),
    shares=InstanceOf("a list of numbers from 0 to 1", Iterable),
    n_cells=Integer(),
    seed=Integer(least=0),
    key_added=FileKey(),
)
def faithfulness(
    adata: AnnData,
    model: TOSICA,
    *,
    orders: Sequence[str] | None = None,
    shares: Sequence[float] = _SHARES,
    n_cells: int = 500,
    seed: int = 0,
    layer: str | None = None,
    use_raw: bool = False,
    key: str = "tosica",
    key_added: str = "faithfulness",
    copy: bool = False,
) -> AnnData | None:
    """Test whether attention and attribution name the gene sets that the model relies on.

    Gene sets are removed from each cell, the highest-ranked first, and the probability of the
    cell's label is computed after each step. To remove a gene set, its genes are set to their mean
    in the reference. The sooner the probability falls, the more faithful the order (deletion,
    :cite:t:`Petsiuk2018`). Large gene sets have more effect than small ones, so a random order is
    the baseline.

    Parameters
    ----------
    adata
        Query that ``model`` has annotated.
    model
        The model that annotated it.
    orders
        Which of ``"attention"``, ``"weighted attention"`` (:func:`tosica.tl.weight_attention`),
        ``"attribution"`` and ``"presence"`` (:func:`tosica.tl.attribute`) and ``"random"`` to
        test; by default all that were computed, and random.
    shares
        Shares of the gene sets to remove, ascending from 0 to 1.
    n_cells
        Cells to take at most, drawn at random.
    seed
        Seed of the draw and of the random order.
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
    ``None``, or with ``copy=True`` an AnnData. Written are tables:

    ``adata.uns[key_added]["curves"]``
        One row an order and share: ``order``, ``share``, ``probability`` (mean over cells of the
        probability of the label that the cell has with all gene sets) and ``kept`` (share of the
        cells that still have this label).
    ``adata.uns[key_added]["area"]``
        One row an order: ``order``, ``area`` under the curve of the probability (lower is more
        faithful), its standard error over cells ``area_se``, and ``below_random``, the share of
        cells whose area is smaller than that of the random order.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If ``adata`` was not annotated under ``key``, or an order was not computed.
    ValueError
        If another model annotated ``adata``, an order is unknown, ``shares`` do not ascend from 0
        to 1, or ``n_cells`` is below 1.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.faithfulness(query, model, n_cells=50)
    >>> list(query.uns["faithfulness"]["area"]["order"])
    ['attention', 'random']
    """
    share = _checked_shares(shares)
    attention, _ = read_annotation(adata, model, key)
    n_gene_sets = attention.shape[1]
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(adata.n_obs)[:n_cells])
    ranked: dict[str, NDArray[np.intp]] = {}
    for name, values in _values(adata, model, orders, key).items():
        ranked[name] = np.argsort(-values[chosen], axis=1, kind="stable")
    if orders is None or _RANDOM in orders:
        ranked[_RANDOM] = rng.permuted(np.tile(np.arange(n_gene_sets), (len(chosen), 1)), axis=1)
    n_removed = np.round(share * n_gene_sets).astype(int)
    deletions = _remove_gene_sets(model, adata[chosen], ranked, n_removed, layer, use_raw)

    area = _area_table(deletions, share)
    target = adata.copy() if copy else adata
    target.uns[key_added] = {"curves": _curve_table(deletions, share), "area": area}
    logger.info(
        "faithfulness: area under the probability %s; added .uns['%s']",
        ", ".join(f"{row.area:.3f} ({row.order})" for row in area.itertuples()),
        key_added,
    )
    return target if copy else None


def _checked_shares(shares: Iterable[float]) -> NDArray[np.float64]:
    listed = list(shares)
    for share in listed:
        Fraction().check("each of shares", share)
    ascend = all(low < high for low, high in pairwise(listed))
    if len(listed) < 2 or listed[0] != 0 or listed[-1] != 1 or not ascend:
        raise ValueError(f"shares must ascend from 0 to 1, not {listed}.")
    return np.array(listed, dtype=np.float64)


def _values(adata: AnnData, model: TOSICA, orders: Sequence[str] | None, key: str) -> dict[str, NDArray[np.floating]]:
    """Values that gene sets are ranked by, for each order except the random one."""
    computed = [name for name, ending in _ENDINGS.items() if f"X_{key}{ending}" in adata.obsm]
    wanted = computed if orders is None else as_names(orders)
    for name in wanted:
        OneOf(*_ENDINGS, _RANDOM).check("each of orders", name)
    if not wanted:
        raise ValueError("orders is empty: name at least one order.")
    return {
        name: read_annotation(adata, model, f"{key}{_ENDINGS[name]}")[0]
        for name in dict.fromkeys(wanted)
        if name != _RANDOM
    }


class _Deletion(NamedTuple):
    """What becomes of each cell's label, each of shape ``(n_cells, n_shares)``."""

    probability: NDArray[np.float64]
    """Probability of the label that the cell has with all gene sets."""
    kept: NDArray[np.bool_]
    """Whether this label still is the most probable one."""


@torch.no_grad()
def _remove_gene_sets(
    model: TOSICA,
    adata: AnnData,
    ranked: dict[str, NDArray[np.intp]],
    n_removed: NDArray[np.intp],
    layer: str | None,
    use_raw: bool,
) -> dict[str, _Deletion]:
    """Set the genes of each cell's first gene sets to the baseline, in each order.

    Parameters
    ----------
    model
        The model that annotated the cells.
    adata
        The cells.
    ranked
        Positions of the gene sets in each order, ``(n_cells, n_gene_sets)``.
    n_removed
        Numbers of gene sets to remove, ``(n_shares,)``, ascending.
    layer, use_raw
        Which matrix of ``adata`` to read.
    """
    module = model.module
    shape = (adata.n_obs, len(n_removed))
    deletions = {name: _Deletion(np.empty(shape), np.empty(shape, dtype=bool)) for name in ranked}
    start = baseline_expression(model, adata, default_baseline(model), layer=layer, use_raw=use_raw)
    members = _members(model, start.device)

    def delete(minibatch: Minibatch) -> int:
        first, x, measured = minibatch
        rows = slice(first, first + len(x))
        label = module.annotate(x, attention=False, measured=measured).logits.argmax(1)
        for name, order in ranked.items():
            in_order = torch.from_numpy(order[rows]).to(x.device)
            removed = torch.zeros(len(x), len(members), device=x.device)
            for i, n in enumerate(n_removed):
                removed.scatter_(1, in_order[:, :n], 1.0)
                left = torch.where(removed @ members > 0, start, x)
                logits = module.annotate(left, attention=False, measured=measured).logits
                probability = module.probabilities(logits)
                label_probability = probability.gather(1, label[:, None])[:, 0]
                deletions[name].probability[rows, i] = label_probability.cpu()
                deletions[name].kept[rows, i] = (probability.argmax(1) == label).cpu()
        return len(x)

    with (
        only_warnings(query_logger),
        thread_pool(module.device),
        progress(adata.n_obs, "faithfulness") as step,
    ):
        minibatches = model.iter_batches(adata, layer=layer, use_raw=use_raw)
        for n_cells in thread_map(delete, minibatches):
            step.update(n_cells)
    return deletions


def _members(model: TOSICA, device: torch.device) -> torch.Tensor:
    """Which genes each gene set has: 1 or 0, ``(n_gene_sets, n_genes)``."""
    embedding, n_gene_sets = model.module.embedding, len(model.gene_sets)
    members = torch.zeros(embedding.n_tokens, embedding.n_genes, device=device)
    members[token_of_pair(model.module), embedding.genes] = 1
    return members[:n_gene_sets]


def _curve_table(deletions: dict[str, _Deletion], share: NDArray[np.float64]) -> pd.DataFrame:
    """Mean over the cells, one row an order and share."""
    return _concat(
        {
            "order": name,
            "share": share,
            "probability": deletion.probability.mean(axis=0),
            "kept": deletion.kept.mean(axis=0),
        }
        for name, deletion in deletions.items()
    )


def _area_table(deletions: dict[str, _Deletion], share: NDArray[np.float64]) -> pd.DataFrame:
    """Area under the curve of the probability, one row an order."""
    areas = {name: trapezoid(deletion.probability, share, axis=1) for name, deletion in deletions.items()}
    return _concat(
        {
            "order": name,
            "area": [area.mean()],
            "area_se": area.std(ddof=1) / np.sqrt(len(area)) if len(area) > 1 else np.nan,
            "below_random": (area < areas[_RANDOM]).mean() if _RANDOM in areas else np.nan,
        }
        for name, area in areas.items()
    )


def _concat(parts: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Put tables below each other; row names in a file are strings."""
    table = pd.concat([pd.DataFrame(part) for part in parts], ignore_index=True)
    return table.set_index(table.index.astype(str))
