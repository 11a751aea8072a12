"""Whether the gene sets that a reading puts first are those that the model used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from scipy.integrate import trapezoid

from tosica._logging import logger
from tosica.tl._integrated_gradients import baseline_expression, default_baseline
from tosica.tl._read_annotation import read_annotation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica.model import TOSICA

# What an order is called, and where it is read from.
_ENDINGS = {
    "attention": "",
    "weighted attention": "_weighted",
    "attribution": "_attribution",
    "presence": "_presence",
}
_RANDOM = "random"
_SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)


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
    """Remove the highest-ranked gene sets of each cell and follow the probability of its label.

    The genes of the gene sets are set to their mean in the reference, those of the most important
    set first, so that neither the network nor the linear branch learns anything from them. The
    sooner the probability of the label falls, the more faithful the order (deletion,
    :cite:t:`Petsiuk2018`). Large gene sets take more away than small ones, which is why a random
    order is followed beside the others.

    Parameters
    ----------
    adata
        Query with cells that ``model`` has annotated.
    model
        The model that annotated it.
    orders
        Which of ``"attention"``, ``"weighted attention"`` (:func:`tosica.tl.weight_attention`),
        ``"attribution"`` and ``"presence"`` (:func:`tosica.tl.attribute`) and ``"random"`` to
        follow; by default all that were computed, and random.
    shares
        Shares of the gene sets to remove, ascending from 0 to 1.
    n_cells
        Cells to take at most, drawn at random.
    seed
        Seed of that, and of the random order.
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

    `adata.uns[key_added]["curves"]`
        One row an order and share: ``order``, ``share``, ``probability`` (mean over cells of the
        probability of the label that the cell had at first) and ``kept`` (share of the cells that
        still have it).
    `adata.uns[key_added]["area"]`
        One row an order: ``order``, ``area`` under the curve of the probability (lower is more
        faithful), its standard error over cells ``area_se``, and ``below_random``, the share of
        cells whose area is smaller than that of the random order.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or an order was not computed.
    ValueError
        If another model annotated ``adata``; if ``orders``, ``shares`` or ``n_cells`` make no
        sense.

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
    >>> tosica.tl.faithfulness(adata, model, n_cells=50)
    >>> list(adata.uns["faithfulness"]["area"]["order"])
    ['attention', 'random']
    """
    attention, _ = read_annotation(adata, model, key)
    share: NDArray[np.float64] = np.array(list(shares), dtype=np.float64)
    if (
        share.ndim != 1
        or len(share) < 2
        or share[0] != 0
        or share[-1] != 1
        or (np.diff(share) <= 0).any()
    ):
        raise ValueError(f"shares must ascend from 0 to 1, not {list(shares)}.")
    if n_cells < 1:
        raise ValueError(f"n_cells must be at least 1, not {n_cells}.")
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(adata.n_obs)[:n_cells])
    ranked: dict[str, NDArray[np.intp]] = {}
    for name, values in _values(adata, model, orders, key).items():
        ranked[name] = np.argsort(-values[chosen], axis=1, kind="stable")
    if orders is None or _RANDOM in orders:
        ranked[_RANDOM] = rng.permuted(
            np.tile(np.arange(attention.shape[1]), (len(chosen), 1)), axis=1
        )
    n_removed = np.round(share * attention.shape[1]).astype(int)
    found = _follow(model, adata[chosen], ranked, n_removed, layer, use_raw)

    curves = pd.DataFrame(
        [
            {
                "order": name,
                "share": float(share[i]),
                "probability": float(probability[:, i].mean()),
                "kept": float(kept[:, i].mean()),
            }
            for name, (probability, kept) in found.items()
            for i in range(len(share))
        ]
    )
    areas = {name: trapezoid(both[0], share, axis=1) for name, both in found.items()}
    area = pd.DataFrame(
        [
            {
                "order": name,
                "area": float(values.mean()),
                "area_se": float(values.std(ddof=1) / np.sqrt(len(values)))
                if len(values) > 1
                else np.nan,
                "below_random": float((values < areas[_RANDOM]).mean())
                if _RANDOM in areas
                else np.nan,
            }
            for name, values in areas.items()
        ]
    )
    for table in (curves, area):
        table.index = table.index.astype(str)
    target = adata.copy() if copy else adata
    target.uns[key_added] = {"curves": curves, "area": area}
    logger.info(
        "faithfulness: area under the probability %s; added .uns['%s']",
        ", ".join(f"{row.area:.3f} ({row.order})" for row in area.itertuples()),
        key_added,
    )
    return target if copy else None


def _values(
    adata: AnnData, model: TOSICA, orders: Sequence[str] | None, key: str
) -> dict[str, NDArray[np.floating]]:
    """What gene sets are ranked by, for each order but the random one."""
    if orders is None:
        wanted = [name for name, ending in _ENDINGS.items() if f"X_{key}{ending}" in adata.obsm]
    else:
        wanted = [orders] if isinstance(orders, str) else list(dict.fromkeys(orders))
        unknown = [name for name in wanted if name not in (*_ENDINGS, _RANDOM)]
        if unknown or not wanted:
            known = ", ".join(map(repr, (*_ENDINGS, _RANDOM)))
            raise ValueError(f"orders must be some of {known}, not {list(orders)}.")
        wanted = [name for name in wanted if name != _RANDOM]
    return {name: read_annotation(adata, model, f"{key}{_ENDINGS[name]}")[0] for name in wanted}


@torch.no_grad()
def _follow(
    model: TOSICA,
    adata: AnnData,
    ranked: dict[str, NDArray[np.intp]],
    n_removed: NDArray[np.intp],
    layer: str | None,
    use_raw: bool,
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """Probability of each cell's first label, and whether it still is the best, at each share."""
    module, embedding = model.module, model.module.embedding
    shape = (adata.n_obs, len(n_removed))
    found = {name: (np.empty(shape), np.empty(shape, dtype=bool)) for name in ranked}
    start = baseline_expression(model, adata, default_baseline(model), layer=layer, use_raw=use_raw)
    n_sets = next(iter(ranked.values())).shape[1]
    indptr, genes = embedding.indptr.tolist(), embedding.genes.tolist()
    members = torch.zeros(n_sets, embedding.n_genes, device=start.device)
    for p in range(n_sets):
        members[p, genes[indptr[p] : indptr[p + 1]]] = 1
    for first, x, measured in model.iter_batches(
        adata, layer=layer, use_raw=use_raw, batch_size=None
    ):
        rows = slice(first, first + len(x))
        label = module.annotate(x, attention=False, measured=measured).logits.argmax(1)
        for name, order in ranked.items():
            places = torch.from_numpy(order[rows]).to(x.device)
            removed = torch.zeros(len(x), n_sets, device=x.device)
            for i, n in enumerate(n_removed):
                removed.scatter_(1, places[:, :n], 1.0)
                left = torch.where(removed @ members > 0, start, x)
                logits = module.annotate(left, attention=False, measured=measured).logits
                probability = module.probabilities(logits)
                found[name][0][rows, i] = probability.gather(1, label[:, None])[:, 0].cpu()
                found[name][1][rows, i] = (probability.argmax(1) == label).cpu()
    return found
