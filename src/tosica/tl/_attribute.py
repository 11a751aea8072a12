"""What each gene set and each gene adds to the score of a cell's label."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica._logging import logger
from tosica.tl._integrated_gradients import (
    Baseline,
    baseline_expression,
    iter_attributions,
    sum_by,
    token_of_pair,
)
from tosica.tl._read_annotation import read_annotation

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
    baseline: Baseline = "reference",
    genes: bool = False,
    n_steps: int = 24,
    layer: str | None = None,
    use_raw: bool = False,
    key: str = "tosica",
    key_added: str | None = None,
    copy: bool = False,
) -> AnnData | None:
    r"""Say what each gene set and each gene adds to the score of a cell's label.

    The score is the label's logit less the mean of all labels' logits, and what is attributed is
    its difference between the cell :math:`x` and a baseline :math:`x'`. Gene :math:`g` adds through
    gene set :math:`p`

    .. math:: a_{cpg} = (\hat x_{cg} - \hat x'_g) \, v_{kpg}
        + (x_{cg} - x'_g) \, W_{gp} \cdot
        \int_0^1 \frac{\partial s}{\partial E_p}\bigl(x' + t (x_c - x')\bigr) \, dt :

    the term of the linear branch, and the integrated gradients :cite:p:`Sundararajan2017` of the
    network's score. Summed over genes it is the attribution of a gene set, summed over gene sets
    that of a gene, and both sum to the difference of the scores; the error of the integral is
    measured and reported.

    A gene set's attribution has two parts. Its *presence* is what genes add that the cell expresses
    more than the baseline; the rest is what it adds that others are expressed less. A type that is
    told by what it lacks, as CD4+ T cells by the lack of cytotoxic genes, has much of the latter.

    Parameters
    ----------
    adata
        Query with n cells that ``model`` has annotated.
    model
        The model that annotated it.
    target
        Label to explain in all cells; ``None`` explains each cell's own best label.
    baseline
        What cells are compared with. ``"reference"``: the mean of the cells that trained the model,
        so that a cell's attribution does not depend on the other cells of the query. ``"mean"``:
        the mean of the query's cells. ``"zero"``: no expression at all, which no cell is like, so
        that the integral needs several times more steps.
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
    `adata.obsm["X_tosica_presence"]`
        The part of it by genes that the cell expresses more than the baseline, ``(n, P−m)``
        float32. Functions of ``get``, ``tl`` and ``pl`` read it with ``key="tosica_presence"``;
        plots, :func:`tosica.tl.rank_gene_sets` and :func:`tosica.get.mean_attention` take it by
        default. With ``key_added`` it is ``f"X_{key_added}_presence"``.
    `adata.varm["tosica_attribution"]`
        Of each gene, the mean over the cells with the same target: a table with one column a
        target, ``(n_vars, n_targets)`` float32. Genes that the model does not know have 0; those
        that the query lacks have a part in gene sets but no row here. A slash in a label is a bar
        in its column's name.
    `adata.layers["tosica_attribution"]`
        If asked for: of each gene in each cell, ``(n, n_vars)`` float32.
    `adata.obs["tosica_attribution_error"]`
        Sum over everything minus the difference of the scores, float32.
    `adata.uns["tosica_attribution"]`
        Names of the gene sets, target, baseline, steps, fingerprint of the model, share of the
        linear branch in the difference of the scores (``linear_share``), share of the absolute
        attribution that fell to unannotated tokens (``unannotated_share``, 0 by default, since
        there are none), and ``completeness_error``: mean absolute error over mean absolute
        difference of the scores.
    `adata.uns["tosica_presence"]`
        Names of the gene sets and fingerprint of the model.

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
    >>> query.obsm["X_tosica_attribution"].shape  # 20 gene sets and 36 modules
    (50, 56)
    >>> bool(query.uns["tosica_attribution"]["completeness_error"] < 0.02)
    True
    """
    _, gene_sets = read_annotation(adata, model, key)
    if n_steps < 1:
        raise ValueError(f"n_steps must be at least 1, not {n_steps}.")
    labels = model.labels
    if target is not None and target not in labels:
        raise ValueError(
            f"The model has no label {target!r}: its labels are {', '.join(map(repr, labels))}."
        )
    key_added = f"{key}_attribution" if key_added is None else key_added
    start = baseline_expression(model, adata, baseline, layer=layer, use_raw=use_raw)

    module, embedding = model.module, model.module.embedding
    n_points = _POINTS_CPU if module.device.type == "cpu" else _POINTS_ACCELERATOR
    token = token_of_pair(module)
    shape = (adata.n_obs, embedding.n_tokens)
    by_set, presence = np.empty(shape, np.float32), np.empty(shape, np.float32)
    by_gene = np.zeros((adata.n_obs, embedding.n_genes), np.float32) if genes else None
    sums = np.zeros((len(labels), embedding.n_genes))
    difference, of_network = np.empty(adata.n_obs), np.empty(adata.n_obs)
    targets = np.empty(adata.n_obs, dtype=np.int64)
    for rows, goal, found in iter_attributions(
        model,
        adata,
        start,
        label=None if target is None else labels.index(target),
        n_steps=n_steps,
        batch_size=max(n_points // n_steps, 1),
        lacks_genes=baseline == "mean",
        layer=layer,
        use_raw=use_raw,
    ):
        by_set[rows] = sum_by(found.pairs, token, embedding.n_tokens).cpu().numpy()
        presence[rows] = sum_by(found.presence, token, embedding.n_tokens).cpu().numpy()
        difference[rows] = found.difference.cpu().numpy()
        of_network[rows] = found.of_network.cpu().numpy()
        targets[rows] = goal.cpu().numpy()
        of_genes = sum_by(found.pairs, embedding.genes, embedding.n_genes).cpu().numpy()
        np.add.at(sums, targets[rows], of_genes)
        if by_gene is not None:
            by_gene[rows] = of_genes

    error = by_set.sum(1, dtype=np.float64) - difference
    relative = float(np.abs(error).mean() / max(np.abs(difference).mean(), 1e-12))
    if relative > _TOLERATED_ERROR:
        warnings.warn(
            f"Attributions miss the difference of the scores by {relative:.1%} on average: pass a "
            f"larger n_steps than {n_steps}"
            + (", or baseline='reference'." if baseline == "zero" else "."),
            UserWarning,
            stacklevel=2,
        )
    result = adata.copy() if copy else adata
    place = pd.Index(model._var_names).get_indexer(result.var_names)
    occurring, counts = np.unique(targets, return_counts=True)
    key_presence = (
        f"{key}_presence" if key_added == f"{key}_attribution" else f"{key_added}_presence"
    )
    result.obsm[f"X_{key_added}"] = by_set[:, : len(gene_sets)]
    result.obsm[f"X_{key_presence}"] = presence[:, : len(gene_sets)]
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
    linear = np.abs(difference - of_network).sum()
    result.uns[key_added] = {
        "gene_sets": np.array(gene_sets, dtype=object),
        "target": "own label" if target is None else target,
        "baseline": baseline,
        "n_steps": int(n_steps),
        "completeness_error": relative,
        "linear_share": float(linear / max(linear + np.abs(of_network).sum(), 1e-12)),
        "unannotated_share": float(
            np.abs(by_set[:, len(gene_sets) :]).sum() / max(np.abs(by_set).sum(), 1e-12)
        ),
        "model": model.fingerprint,
    }
    result.uns[key_presence] = {
        "gene_sets": np.array(gene_sets, dtype=object),
        "model": model.fingerprint,
    }
    logger.info(
        "attribute: completeness error %.2g %%; added .obsm['X_%s'], .obsm['X_%s'], .varm['%s'],%s "
        ".obs['%s_error'], .uns['%s'] and .uns['%s']",
        100 * relative,
        key_added,
        key_presence,
        key_added,
        f" .layers['{key_added}']," if genes else "",
        key_added,
        key_added,
        key_presence,
    )
    return result if copy else None


def _on_genes(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """From the model's genes to the query's, the last axis; 0 where the model has no such gene."""
    padded = np.concatenate([values, np.zeros((*values.shape[:-1], 1))], -1)
    return np.take(padded, place, axis=-1).astype(np.float32)
