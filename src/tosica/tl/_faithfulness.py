"""Deletion and insertion curves, which test whether labels rest on their explanations."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from scipy.integrate import trapezoid
from scipy.stats import sem

from tosica._obs import (
    ATTRIBUTION,
    annotation_key,
    check_target,
    read_attribution,
    read_groups,
)
from tosica._parallel import thread_map, thread_pool
from tosica._progress import progress
from tosica._settings import logger, only_warnings, query_logger
from tosica._validate import FileKey, Fraction, InstanceOf, Integer, validate_params
from tosica.tl._evidence import ANNOTATED_BY_MODEL, annotating_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from anndata import AnnData
    from torch import Tensor

    from tosica._types import FloatArray, IntArray
    from tosica.model import TOSICA
    from tosica.model._query_loader import Minibatch

    # By change and order, (n_cells, n_shares).
    _Curves: TypeAlias = dict[tuple[str, str], FloatArray]

_SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
_CHANGES = ("deletion", "insertion")


@validate_params(
    **{name: rule for name, rule in ANNOTATED_BY_MODEL.items() if name != "key"},
    shares=InstanceOf("a list of numbers from 0 to 1", Iterable),
    seed=Integer(least=0),
    key=FileKey(),
    key_added=FileKey(),
)
def faithfulness(
    adata: AnnData,
    model: TOSICA,
    *,
    shares: Sequence[float] = _SHARES,
    n_cells: int = 200,
    seed: int = 0,
    layer: str | None = None,
    use_raw: bool = False,
    key: str = ATTRIBUTION,
    key_added: str = "faithfulness",
    copy: bool = False,
) -> AnnData | None:
    """Test whether labels rest on the genes and gene sets that :func:`tosica.tl.attribute` names.

    Genes are set to their baseline one after the other (deletion, :cite:t:`Petsiuk2018`), or the
    baseline gets the cell's genes one after the other (insertion), and the probability of the
    cell's label is computed after each step. The sooner it falls, or rises, the more faithful the
    order. Three orders are compared: by the contributions of genes; by gene sets, first those with
    evidence, then the others and each gene of no set, by what their genes add on average; and at random.

    Parameters
    ----------
    adata
        Query on which :func:`tosica.tl.attribute` was run.
    model
        The model that annotated it.
    shares
        Shares of the genes to change, ascending from 0 to 1.
    n_cells
        Cells to take at most, drawn at random.
    seed
        Seed of the draw and of the random order.
    layer, use_raw
        Which matrix of ``adata`` to read, as in :meth:`tosica.TOSICA.annotate`.
    key
        ``key_added`` of :func:`tosica.tl.attribute`.
    key_added
        Key of ``adata.uns`` for the result.
    copy
        Leave ``adata`` as it is and return a copy with the result.

    Returns
    -------
    ``None``, or with ``copy=True`` an AnnData. Written are tables:

    ``adata.uns[key_added]["curves"]``
        One row a change, order and share: ``change`` (``"deletion"`` or ``"insertion"``), ``order``
        (``"genes"``, ``"gene sets"``, ``"random"``), ``share``, ``probability`` (mean over cells of
        the probability of the label that the unchanged cell has) and ``kept`` (share of the cells
        whose best label it is).
    ``adata.uns[key_added]["area"]``
        One row a change and order: ``change``, ``order``, ``area`` under the probability, its
        standard error over cells ``area_se``, and ``better_than_random``, the share of cells whose
        area is smaller (deletion) or larger (insertion) than in the random order.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If :func:`tosica.tl.attribute` was not run with ``key``.
    ValueError
        If another model annotated ``adata``, the model has several modalities, ``shares`` do not
        ascend from 0 to 1, or ``n_cells`` is below 1.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model)
    >>> tosica.tl.faithfulness(query, model, n_cells=20)
    >>> area = query.uns["faithfulness"]["area"].set_index(["change", "order"])["area"]
    >>> bool(area["deletion", "genes"] < area["deletion", "random"])
    True
    """
    shares = list(shares)
    for share in shares:
        Fraction().check("each of shares", share)
    ascend = all(low < high for low, high in pairwise(shares))
    if len(shares) < 2 or shares[0] != 0 or shares[-1] != 1 or not ascend:
        raise ValueError(f"shares must ascend from 0 to 1, not {shares}.")
    check_target(adata, "faithfulness", copy=copy)
    model = annotating_model(adata, model, annotation_key(adata, key))
    record = read_attribution(adata, key)
    rng = np.random.default_rng(seed)
    groups = read_groups(adata, str(record["groupby"]))
    codes = pd.Index([str(group) for group in record["groups"]]).get_indexer(
        groups.categories
    )
    group_of_cell = codes[groups.codes]
    explained = np.flatnonzero(group_of_cell >= 0)
    if not len(explained):
        raise ValueError(
            f"adata.uns[{key!r}] explains none of the groups that adata.obs[{record['groupby']!r}] has now: "
            "call tosica.tl.attribute again."
        )
    rows = np.sort(rng.permutation(explained)[:n_cells])
    ranks = _rank_genes(record, model, rng)
    probabilities, is_best = _change_genes(
        model,
        adata,
        rows.tolist(),
        {order: rank[group_of_cell[rows]] for order, rank in ranks.items()},
        np.array(shares, dtype=np.float64),
        baseline=_read_baseline(model, adata, record, layer=layer, use_raw=use_raw),
        layer=layer,
        use_raw=use_raw,
    )
    curves, area = _tables(probabilities, is_best, shares)
    result = adata.copy() if copy else adata
    # Row names in a file are strings.
    result.uns[key_added] = {
        "curves": curves.set_index(curves.index.astype(str)),
        "area": area.set_index(area.index.astype(str)),
    }
    areas = [f"{row.area:.3f} ({row.change}, {row.order})" for row in area.itertuples()]
    logger.info(
        "faithfulness: area under the probability %s; added .uns['%s']",
        ", ".join(areas),
        key_added,
    )
    return result if copy else None


def _rank_genes(
    record: Mapping[str, Any], model: TOSICA, rng: np.random.Generator
) -> dict[str, IntArray]:
    """Rank of each gene in each group, ``(n_groups, n_genes)``, by each order.

    By gene sets, genes of sets with evidence come first, then those of others by the set's mean.
    """
    genes = record["genes"].reindex(model.tokens.var_names, fill_value=0.0)
    added = genes.to_numpy(np.float64).T
    # A gene of no set is a set by itself. A gene of several sets has the rank of the first.
    set_names, members = model.modalities[0].gene_sets()
    without_set = np.flatnonzero(np.diff(members.tocsr().indptr) == 0)
    genes_of_set = np.split(members.indices, members.indptr[1:-1])
    genes_of_set.extend(without_set[:, None])
    set_sizes = np.diff(members.indptr).clip(1)
    set_means = np.vstack(
        [(members.T @ added.T) / set_sizes[:, None], added.T[without_set]]
    )
    group_of_evidence = record["evidence"]["group"].astype(str)
    by_set = np.empty(added.shape, dtype=np.intp)
    for i, name in enumerate(record["groups"]):
        evidence = record["evidence"][group_of_evidence == str(name)]
        with_evidence = [set_names.index(s) for s in evidence["gene_set"]]
        by_mean = np.argsort(-set_means[:, i], kind="stable")
        without_evidence = by_mean[~np.isin(by_mean, with_evidence)]
        position = np.empty(added.shape[1])
        order = [*with_evidence, *without_evidence]
        for j in range(len(order) - 1, -1, -1):
            position[genes_of_set[order[j]]] = j
        # Within a set as at random: the order of the sets is tested.
        by_position = np.lexsort((rng.random(len(position)), position))
        by_set[i] = by_position.argsort()
    at_random = np.tile(np.arange(added.shape[1]), (len(added), 1))
    return {
        "genes": (-added).argsort(axis=1, kind="stable").argsort(axis=1),
        "gene sets": by_set,
        "random": rng.permuted(at_random, axis=1),
    }


def _read_baseline(
    model: TOSICA,
    adata: AnnData,
    record: Mapping[str, Any],
    *,
    layer: str | None,
    use_raw: bool,
) -> Tensor:
    """Compute what contributions were compared with, ``(1, n_genes)``.

    Parameters
    ----------
    model
        The model.
    adata
        All cells that were explained, whose mean the baseline may be.
    record
        What :func:`tosica.tl.attribute` wrote.
    layer, use_raw
        As in :func:`faithfulness`.
    """
    baseline: Tensor = model.module.baseline[None]
    if record["baseline"] == "mean":
        with only_warnings(query_logger):
            batches = model.iter_batches(adata, layer=layer, use_raw=use_raw)
            total = sum(batch.x.sum(0, dtype=torch.float64) for batch in batches)
        return (total / adata.n_obs).to(baseline)[None]
    shift = record.get("shift")
    if shift is None:
        return baseline
    return baseline + torch.from_numpy(np.asarray(shift)).to(baseline)


@torch.no_grad()
def _change_genes(
    model: TOSICA,
    adata: AnnData,
    indices: list[int],
    ranks: dict[str, IntArray],
    shares: FloatArray,
    *,
    baseline: Tensor,
    layer: str | None,
    use_raw: bool,
) -> tuple[_Curves, _Curves]:
    """Compute the label's probability, and whether it is the best label, after each step.

    Parameters
    ----------
    model
        The model.
    adata
        The query.
    indices
        Positions of the cells to change.
    ranks
        Rank of each gene in each cell, ``(n_cells, n_genes)``, by each order.
    shares
        Shares of the genes to change.
    baseline
        Expression that genes are set to, ``(1, n_genes)``.
    layer, use_raw
        As in :func:`faithfulness`.

    Returns
    -------
    Both by change and order, ``(n_cells, n_shares)``.
    """
    module = model.module
    n_changed = np.round(shares * ranks["genes"].shape[1])
    curves = list(product(_CHANGES, ranks))
    shape = (len(indices), len(shares))
    probabilities: _Curves = {curve: np.empty(shape) for curve in curves}
    is_best: _Curves = {curve: np.empty(shape) for curve in curves}

    def change(batch: Minibatch) -> int:
        x = batch.x
        rows = slice(batch.start, batch.start + len(x))
        measured = batch.measured
        # Genes that the query lacks stay as they are.
        of_measured = baseline
        if measured is not None:
            of_measured = torch.where(measured, baseline, x)
        logits = module.annotate(x, attention=False, measured=measured).logits
        label = logits.argmax(1, keepdim=True)
        for name, order in curves:
            genes = torch.from_numpy(ranks[order][rows]).to(x.device)
            for i, n in enumerate(n_changed):
                if name == "deletion":
                    mixed = torch.where(genes < n, of_measured, x)
                else:
                    mixed = torch.where(genes < n, x, of_measured)
                logits = module.annotate(
                    mixed, attention=False, measured=measured
                ).logits
                probability = module.calibrated(logits).softmax(1).gather(1, label)
                probabilities[name, order][rows, i] = probability[:, 0].cpu()
                is_label = logits.argmax(1, keepdim=True) == label
                is_best[name, order][rows, i] = is_label[:, 0].cpu()
        return len(x)

    with (
        only_warnings(query_logger),
        thread_pool(module.device),
        progress(len(indices), "faithfulness") as step,
    ):
        batches = model.iter_batches(
            adata, indices=indices, layer=layer, use_raw=use_raw
        )
        for n_cells in thread_map(change, batches):
            step.update(n_cells)
    return probabilities, is_best


def _tables(
    probabilities: _Curves, is_best: _Curves, shares: list[float]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Make the tables of the curves, and of the areas under the probability."""
    areas = {
        curve: trapezoid(values, shares, axis=1)
        for curve, values in probabilities.items()
    }
    curves = []
    rows = []
    for (change, order), area in areas.items():
        curves.append(
            pd.DataFrame(
                {
                    "change": change,
                    "order": order,
                    "share": shares,
                    "probability": probabilities[change, order].mean(0),
                    "kept": is_best[change, order].mean(0),
                }
            )
        )
        by_chance = areas[change, "random"]
        is_better = area > by_chance if change == "insertion" else area < by_chance
        rows.append(
            {
                "change": change,
                "order": order,
                "area": area.mean(),
                "area_se": sem(area) if len(area) > 1 else np.nan,
                "better_than_random": is_better.mean(),
            }
        )
    return pd.concat(curves, ignore_index=True), pd.DataFrame(rows)
