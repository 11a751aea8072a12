"""Deletion and insertion curves: whether labels rest on the genes and gene sets that explain them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from scipy.integrate import trapezoid

from tosica._checks import FileKey, Fraction, InstanceOf, Integer, validate_params
from tosica._obs import ATTRIBUTION, read_attribution, read_groups
from tosica._parallel import thread_map, thread_pool
from tosica._progress import progress
from tosica._settings import logger, only_warnings, query_logger
from tosica.tl._evidence import ANNOTATED_BY_MODEL, check_annotated_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica.model import TOSICA
    from tosica.model._query import Minibatch

_SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
_ORDERS = ("genes", "gene sets", "random")
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
    listed = list(shares)
    for each in listed:
        Fraction().check("each of shares", each)
    ascend = all(low < high for low, high in pairwise(listed))
    if len(listed) < 2 or listed[0] != 0 or listed[-1] != 1 or not ascend:
        raise ValueError(f"shares must ascend from 0 to 1, not {listed}.")
    share = np.array(listed, dtype=np.float64)
    check_annotated_by(adata, model, key.removesuffix("_attribution"))
    record = read_attribution(adata, key)
    rng = np.random.default_rng(seed)
    groups = read_groups(adata, str(record["groupby"]))
    names = [str(name) for name in record["groups"]]
    explained = np.flatnonzero(
        np.isin(np.asarray(groups.categories)[groups.codes], names)
    )
    chosen = np.sort(rng.permutation(explained)[:n_cells])
    code_of = np.array(
        [names.index(name) if name in names else -1 for name in groups.categories]
    )
    ranks = _ranks(record, model, rng)
    changed = _change_genes(
        model,
        adata[chosen],
        ranks,
        code_of[groups.codes[chosen]],
        share,
        record,
        {"layer": layer, "use_raw": use_raw},
    )
    target, tables = adata.copy() if copy else adata, _tables(changed, share)
    target.uns[key_added] = tables
    logger.info(
        "faithfulness: area under the probability %s; added .uns['%s']",
        ", ".join(
            f"{row.area:.3f} ({row.change}, {row.order})"
            for row in tables["area"].itertuples()
        ),
        key_added,
    )
    return target if copy else None


def _ranks(
    record: Mapping[str, Any], model: TOSICA, rng: np.random.Generator
) -> dict[str, NDArray[np.intp]]:
    """Rank of each gene in each group, ``(n_groups, n_genes)``, by each order."""
    added = record["genes"].to_numpy(np.float64).T
    set_names, members = model.modalities[0].gene_sets()
    evidence = record["evidence"]
    # A gene of no set is a set of its own here, as it appears by itself in the reading.
    alone = np.flatnonzero(np.diff(members.tocsr().indptr) == 0)
    units = [*np.split(members.indices, members.indptr[1:])[:-1], *alone[:, None]]
    means = np.vstack(
        [
            (members.T @ added.T) / np.diff(members.indptr).clip(1)[:, None],
            added.T[alone],
        ]
    )
    by_set = np.empty_like(added)
    for i, name in enumerate(record["groups"]):
        found = [
            set_names.index(s)
            for s in evidence.loc[
                evidence["group"].astype(str) == str(name), "gene_set"
            ]
        ]
        rest = np.argsort(-means[:, i], kind="stable")
        order = [*found, *rest[~np.isin(rest, found)]]
        first = np.empty(added.shape[1])
        for position, j in reversed(list(enumerate(order))):
            first[units[j]] = position
        # Within a set as at random: what is tested is the order of the sets.
        by_set[i] = np.lexsort((rng.random(len(first)), first)).argsort()
    at_random = rng.permuted(
        np.tile(np.arange(added.shape[1]), (len(added), 1)), axis=1
    )
    by_gene = (-added).argsort(axis=1, kind="stable").argsort(axis=1)
    return dict(zip(_ORDERS, (by_gene, by_set.astype(np.intp), at_random), strict=True))


@torch.no_grad()
def _change_genes(
    model: TOSICA,
    adata: AnnData,
    ranks: dict[str, NDArray[np.intp]],
    groups: NDArray[np.integer],
    shares: NDArray[np.float64],
    record: Mapping[str, Any],
    source: Mapping[str, Any],
) -> dict[tuple[str, str], NDArray[np.float64]]:
    """Compute the label's probability, and whether it is the best label, after each step.

    Returns
    -------
    By change and order, shape ``(2, n_cells, n_shares)``.
    """
    module = model.module
    start = module.baseline[None]
    if record["baseline"] == "mean":
        with only_warnings(query_logger):
            start = torch.cat(
                [batch.x for batch in model.iter_batches(adata, **source)]
            ).mean(0, keepdim=True)
    n_changed = torch.from_numpy(np.round(shares * ranks["genes"].shape[1]))
    results = {
        (c, o): np.empty((2, adata.n_obs, len(shares))) for c in _CHANGES for o in ranks
    }

    def change(minibatch: Minibatch) -> int:
        first, x, measured, _ = minibatch
        rows = slice(first, first + len(x))
        label = module.annotate(x, attention=False, measured=measured).logits.argmax(
            1, keepdim=True
        )
        for order, rank in ranks.items():
            of_cell = torch.from_numpy(rank[groups[rows]]).to(x.device)
            for i, n in enumerate(n_changed):
                is_changed = of_cell < n
                for name in _CHANGES:
                    before, after = (x, start) if name == "deletion" else (start, x)
                    mixed = torch.where(is_changed, after, before)
                    logits = module.annotate(
                        mixed, attention=False, measured=measured
                    ).logits
                    results[name, order][0, rows, i] = (
                        module.probabilities(logits).gather(1, label)[:, 0].cpu()
                    )
                    results[name, order][1, rows, i] = (
                        logits.argmax(1, keepdim=True) == label
                    )[:, 0].cpu()
        return len(x)

    with (
        only_warnings(query_logger),
        thread_pool(module.device),
        progress(adata.n_obs, "faithfulness") as step,
    ):
        for n_cells in thread_map(change, model.iter_batches(adata, **source)):
            step.update(n_cells)
    return results


def _tables(
    results: dict[tuple[str, str], NDArray[np.float64]], share: NDArray[np.float64]
) -> dict[str, pd.DataFrame]:
    """Make tables of the curves, the mean over the cells, and of the area under that of the probability."""
    areas = {
        name: trapezoid(values[0], share, axis=1) for name, values in results.items()
    }
    curves, rows = [], []
    for (change, order), values in results.items():
        named, (probability, kept) = {"change": change, "order": order}, values.mean(1)
        curves.append(
            pd.DataFrame(
                {**named, "share": share, "probability": probability, "kept": kept}
            )
        )
        area, by_chance = areas[change, order], areas[change, "random"]
        is_better = area > by_chance if change == "insertion" else area < by_chance
        error = area.std(ddof=1) / np.sqrt(len(area)) if len(area) > 1 else np.nan
        rows.append(
            {
                **named,
                "area": area.mean(),
                "area_se": error,
                "better_than_random": is_better.mean(),
            }
        )
    tables = {
        "curves": pd.concat(curves, ignore_index=True),
        "area": pd.DataFrame(rows),
    }
    # Row names in a file are strings.
    return {
        name: table.set_index(table.index.astype(str)) for name, table in tables.items()
    }
