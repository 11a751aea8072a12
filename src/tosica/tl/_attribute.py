"""What a cell's label rests on, by integrated gradients."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from tosica._logging import logger
from tosica.tl._baseline import Baseline, baseline_expression
from tosica.tl._integrated_gradients import integrated_gradients
from tosica.tl._read_annotation import read_annotation
from tosica.tl._sharing import Sharing

if TYPE_CHECKING:
    from anndata import AnnData

    from tosica.model import TOSICA

# Points of the path times cells that are held at once: fits the memory of a small machine.
_POINTS_CPU, _POINTS_ACCELERATOR = 400, 8_000
# Beyond this the sums no longer say how a score came about.
_TOLERATED_ERROR = 0.02


def attribute(
    adata: AnnData,
    model: TOSICA,
    *,
    target: str | None = None,
    baseline: Baseline = "mean",
    share_unannotated: bool = False,
    genes: bool = False,
    n_steps: int = 24,
    layer: str | None = None,
    use_raw: bool = False,
    key: str = "tosica",
    key_added: str | None = None,
    copy: bool = False,
) -> AnnData | None:
    r"""Say by how much each gene set and each gene raised the score of a cell's label.

    Integrated gradients :cite:p:`Sundararajan2017` of the label's logit, less the mean of all
    labels' logits, along the straight line from a baseline :math:`x'` to the cell :math:`x`:

    .. math:: a_{cp} = \sum_{g \in p} (x_{cg} - x'_g) \, W_{gp} \cdot
        \int_0^1 \frac{\partial s}{\partial E_p}\bigl(x' + t (x_c - x')\bigr) \, dt .

    Summed over genes it is the attribution of a gene set, summed over gene sets that of a gene.
    Both sum to the difference of the scores of cell and baseline; how well they do is measured
    and reported. Other than attention, attribution has a sign and speaks of the label. Where the
    query lacks genes, a gene's part by the direct path includes what it stands in for.

    Parameters
    ----------
    adata
        Query with n cells that ``model`` has annotated.
    model
        The model that annotated it.
    target
        Label to explain in all cells; ``None`` explains each cell's own best label.
    baseline
        What cells are compared with. ``"mean"``: the mean of the query's cells, so that what all
        cells share explains nothing. ``"zero"``: no expression at all, which no cell is like, so
        that the integral needs several times more steps.
    share_unannotated
        Unannotated tokens see all genes, as the direct path does, and they may well carry most of
        the score: then gene sets are left with little, and its order says little. ``True`` shares
        out what each gene gives by these ways, in equal parts, to the gene sets that hold the gene.
        That tells whose genes the label rests on, by whichever way; ``False`` tells which tokens it
        rests on.
    genes
        Also write the attribution of each gene in each cell, which is a dense matrix.
    n_steps
        Points at which gradients are taken (Gauss-Legendre). Time is proportional.
    layer, use_raw
        Which matrix of ``adata`` to read, as in :meth:`tosica.TOSICA.annotate`.
    key
        ``key_added`` of ``model.annotate``.
    key_added
        Replaces ``f"{key}_attribution"`` in the keys below.
    copy
        Leave ``adata`` as it is and return a copy with the result.

    Returns
    -------
    ``None``, or with ``copy=True`` an AnnData. Written are, in logits:

    `adata.obsm["X_tosica_attribution"]`
        Of each gene set, ``(n, P−m)`` float32. Functions of ``get``, ``tl`` and ``pl`` read it
        with ``key="tosica_attribution"``.
    `adata.varm["tosica_attribution"]`
        Of each gene, the mean over the cells with the same target: a table with one column a
        target, ``(n_vars, n_targets)`` float32. Genes that the model does not know have 0. A
        slash in a label is a bar in its column's name.
    `adata.layers["tosica_attribution"]`
        If asked for: of each gene in each cell, ``(n, n_vars)`` float32.
    `adata.obs["tosica_attribution_error"]`
        Sum over everything minus the difference of the scores, float32.
    `adata.uns["tosica_attribution"]`
        Names of the gene sets, target, baseline, steps, fingerprint of the model, share of the
        absolute attribution that fell to unannotated tokens and the direct path
        (``unannotated_share``; with ``share_unannotated``, to genes that no gene set holds), and
        ``completeness_error``: mean absolute error over mean absolute difference of the scores, as
        far as it comes through the network. The direct path is a sum and has no error.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or half of what that wrote is gone.
    ValueError
        If another model annotated ``adata``; if the target is no label of the model; if
        ``baseline`` or ``n_steps`` make no sense; or as :meth:`tosica.TOSICA.annotate`.

    Warns
    -----
    UserWarning
        If ``completeness_error`` is above 2 %.

    See Also
    --------
    tosica.tl.top_genes : from a label to its gene sets to their genes.
    tosica.tl.faithfulness : whether attention or attribution tells more of the model.

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
    >>> query = adata[:50].copy()
    >>> model.annotate(query)
    >>> tosica.tl.attribute(query, model)
    >>> query.obsm["X_tosica_attribution"].shape
    (50, 20)
    >>> bool(query.uns["tosica_attribution"]["completeness_error"] < 0.02)
    True
    """
    _, gene_sets = read_annotation(adata, model, key)
    if n_steps < 1:
        msg = f"n_steps must be at least 1, not {n_steps}."
        raise ValueError(msg)
    labels = model.labels
    if target is not None and target not in labels:
        msg = f"The model has no label {target!r}: its labels are {', '.join(map(repr, labels))}."
        raise ValueError(msg)
    key_added = f"{key}_attribution" if key_added is None else key_added
    start = baseline_expression(model, adata, baseline, layer=layer, use_raw=use_raw)

    module = model.module
    n_points = _POINTS_CPU if module.device.type == "cpu" else _POINTS_ACCELERATOR
    sharing = Sharing(module.embedding, len(gene_sets)) if share_unannotated else None
    # The direct path is one more way that no gene set is on.
    n_ways = module.embedding.n_tokens + (module.direct_weight is not None)
    by_set = np.empty((adata.n_obs, n_ways), dtype=np.float32)
    by_gene = np.zeros((adata.n_obs, module.embedding.n_genes), np.float32) if genes else None
    sums = np.zeros((len(labels), module.embedding.n_genes))
    difference = np.empty(adata.n_obs, dtype=np.float32)
    of_network = np.empty(adata.n_obs, dtype=np.float32)
    targets = np.empty(adata.n_obs, dtype=np.int64)
    path = None
    for first, x, measured in model._minibatches(
        adata, layer=layer, use_raw=use_raw, batch_size=max(n_points // n_steps, 1)
    ):
        path = path or module.direct_path(measured)
        if target is None:
            with torch.no_grad():
                logits = module.annotate(x, attention=False, path=path).logits
                goal = logits.argmax(1)
        else:
            goal = torch.full((len(x),), labels.index(target), device=x.device)
        found = integrated_gradients(module, x, start, goal, n_steps=n_steps, path=path)
        rows = slice(first, first + len(x))
        of_sets = found.tokens
        direct = 0 if found.direct is None else found.direct.sum(1)
        of_network[rows] = (found.difference - direct).cpu().numpy()
        if sharing is not None:
            of_sets = sharing.share_out(of_sets, sharing.through(found, x - start))
        by_set[rows] = of_sets.cpu().numpy()
        difference[rows] = found.difference.cpu().numpy()
        targets[rows] = goal.cpu().numpy()
        of_genes = found.genes.cpu().numpy()
        np.add.at(sums, targets[rows], of_genes)
        if by_gene is not None:
            by_gene[rows] = of_genes

    error = by_set.sum(1, dtype=np.float64) - difference
    relative = float(np.abs(error).mean() / max(np.abs(of_network).mean(), 1e-12))
    if relative > _TOLERATED_ERROR:
        warnings.warn(
            f"Attributions miss the network's difference of the scores by {relative:.1%} on "
            f"average: pass a larger n_steps than {n_steps}"
            + (", or baseline='mean'." if baseline == "zero" else "."),
            UserWarning,
            stacklevel=2,
        )
    result = adata.copy() if copy else adata
    place = pd.Index(model._var_names).get_indexer(result.var_names)
    occurring, counts = np.unique(targets, return_counts=True)
    result.obsm[f"X_{key_added}"] = by_set[:, : len(gene_sets)]
    result.varm[key_added] = pd.DataFrame(
        {
            labels[code].replace("/", "|"): _on_genes(sums[code] / n_cells, place)
            for code, n_cells in zip(occurring, counts, strict=True)
        },
        index=result.var_names,
    )
    if by_gene is not None:
        result.layers[key_added] = _on_genes(by_gene, place)
    result.obs[f"{key_added}_error"] = error.astype(np.float32)
    result.uns[key_added] = {
        "gene_sets": np.array(gene_sets, dtype=object),
        "target": "own label" if target is None else target,
        "baseline": baseline,
        "n_steps": int(n_steps),
        "share_unannotated": bool(share_unannotated),
        "completeness_error": relative,
        "unannotated_share": float(
            np.abs(by_set[:, len(gene_sets) :]).sum() / max(np.abs(by_set).sum(), 1e-12)
        ),
        "model": model.fingerprint,
    }
    logger.info(
        "attribute: completeness error %.2g %% of the network's difference of the scores; added "
        ".obsm['X_%s'], .varm['%s'],%s .obs['%s_error'] and .uns['%s']",
        100 * relative,
        key_added,
        key_added,
        f" .layers['{key_added}']," if genes else "",
        key_added,
        key_added,
    )
    return result if copy else None


def _on_genes(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """From the model's genes to the query's, the last axis; 0 where the model has no such gene."""
    padded = np.concatenate([values, np.zeros((*values.shape[:-1], 1))], -1)
    return np.take(padded, place, axis=-1).astype(np.float32)
