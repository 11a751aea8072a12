"""Contributions of gene sets and genes to the score of a cell's label."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, get_args

import numpy as np
import pandas as pd

from tosica._logging import logger
from tosica._validation import check_choice, check_count, check_flags, check_key_added, file_columns
from tosica.data import find_genes, load_table
from tosica.tl._integrated_gradients import (
    N_STEPS,
    Baseline,
    iter_attributions,
    sum_by,
    token_of_pair,
)
from tosica.tl._read_annotation import read_annotation

if TYPE_CHECKING:
    from anndata import AnnData
    from torch import Tensor

    from tosica.model import TOSICA
    from tosica.tl._integrated_gradients import Attribution

# Completeness error above which a warning says so.
_TOLERATED_ERROR = 0.02
_TINY = 1e-12


def attribute(
    adata: AnnData,
    model: TOSICA,
    *,
    target: str | None = None,
    baseline: Baseline = "reference",
    genes: bool = False,
    n_steps: int = N_STEPS,
    layer: str | None = None,
    use_raw: bool = False,
    key: str = "tosica",
    key_added: str | None = None,
    copy: bool = False,
) -> AnnData | None:
    r"""Compute how much each gene set and each gene contributes to the label of each cell.

    What is attributed is the score of the label, its logit less the mean of all labels' logits: the
    difference of the score between the cell :math:`x` and a baseline :math:`x'`. Gene :math:`g`
    adds through gene set :math:`p`

    .. math:: a_{cpg} = (\hat x_{cg} - \hat x'_g) \, v_{kpg}
        + (x_{cg} - x'_g) \, W_{gp} \cdot
        \int_0^1 \frac{\partial s}{\partial E_p}\bigl(x' + t (x_c - x')\bigr) \, dt :

    the term of the linear branch, and the integrated gradients :cite:p:`Sundararajan2017` of the
    network's score. The sum over genes is the attribution of a gene set, and the sum over gene sets
    is that of a gene. Both sum to the difference of the scores; the error of the integral is
    measured and reported.

    A gene set's attribution has two parts. Its *presence* comes from genes that the cell expresses
    more than the baseline, the rest from genes that it expresses less. A type that is recognised by
    what it lacks, such as CD4+ T cells by the lack of cytotoxic genes, has much of the latter.

    Parameters
    ----------
    adata
        Query that ``model`` has annotated.
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
        Points at which gradients are taken (Gauss-Legendre). The time is proportional to it.
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

    ``adata.obsm["X_tosica_attribution"]``
        Attribution of each gene set, ``(n_obs, n_gene_sets)`` float32. Functions of ``get``, ``tl``
        and ``pl`` read it with ``key="tosica_attribution"``.
    ``adata.obsm["X_tosica_presence"]``
        Presence of each gene set, ``(n_obs, n_gene_sets)`` float32. Functions of ``get``, ``tl``
        and ``pl`` read it with ``key="tosica_presence"``; plots, :func:`tosica.tl.rank_gene_sets`
        and :func:`tosica.get.mean_attention` take it by default. With ``key_added`` it is
        ``f"X_{key_added}_presence"``.
    ``adata.varm["tosica_attribution"]``
        Attribution of each gene, the mean over the cells with the same target: a table with one
        column a target, ``(n_vars, n_targets)`` float32. Genes that the model does not have get 0.
        Genes that the query lacks contribute to gene sets but have no row here. A slash in a label
        is a bar in its column's name.
    ``adata.layers["tosica_attribution"]``
        With ``genes=True``: attribution of each gene in each cell, ``(n_obs, n_vars)`` float32.
    ``adata.obs["tosica_attribution_error"]``
        Sum of all attributions minus the difference of the scores, float32.
    ``adata.uns["tosica_attribution"]``
        Names of the gene sets, target, baseline, steps, fingerprint of the model, share of the
        linear branch in the difference of the scores (``linear_share``), share of the absolute
        attribution of unannotated tokens (``unannotated_share``, 0 by default, since there are
        none), and ``completeness_error``: mean absolute error over mean absolute
        difference of the scores.
    ``adata.uns["tosica_presence"]``
        Names of the gene sets and fingerprint of the model.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If ``adata`` was not annotated under ``key``, or part of what that wrote is missing.
    ValueError
        If another model annotated ``adata``; if the target is no label of the model; if
        ``baseline`` is unknown or ``n_steps`` below 1; or as :meth:`tosica.TOSICA.annotate`.

    Warns
    -----
    UserWarning
        If ``completeness_error`` is above 2 %.

    See Also
    --------
    tosica.tl.top_genes : gene sets and genes that contribute most to the label of a group.
    tosica.tl.faithfulness : how faithful attention and attribution are to the model.

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
    check_choice("baseline", baseline, get_args(Baseline))
    check_count("n_steps", n_steps)
    check_flags(genes=genes, use_raw=use_raw, copy=copy)
    check_key_added(key_added, optional=True)
    _, gene_sets = read_annotation(adata, model, key)
    check_choice("target", target, model.labels, optional=True)
    columns = file_columns(model.labels, "the model")
    sums = _CellSums(model, adata.n_obs, genes=genes)
    for rows, codes, attribution in iter_attributions(
        model,
        adata,
        baseline=baseline,
        target=target,
        n_steps=n_steps,
        layer=layer,
        use_raw=use_raw,
    ):
        sums.add(rows, codes, attribution)
    error = sums.completeness_error
    if error > _TOLERATED_ERROR:
        warnings.warn(
            f"Attributions miss the difference of the scores by {error:.1%} on average: pass a "
            f"larger n_steps than {n_steps}"
            + (", or baseline='reference'." if baseline == "zero" else "."),
            UserWarning,
            stacklevel=2,
        )
    result = adata.copy() if copy else adata
    key_added = f"{key}_attribution" if key_added is None else key_added
    key_presence = (
        f"{key}_presence" if key_added == f"{key}_attribution" else f"{key_added}_presence"
    )
    _write(result, sums, model, gene_sets, columns, key_added, key_presence)
    result.uns[key_added] |= {
        "target": "own label" if target is None else target,
        "baseline": baseline,
        "n_steps": int(n_steps),
    }
    logger.info(
        "attribute: completeness error %.2g %%; added .obsm['X_%s'], .obsm['X_%s'], .varm['%s'],%s "
        ".obs['%s_error'], .uns['%s'] and .uns['%s']",
        100 * error,
        key_added,
        key_presence,
        key_added,
        f" .layers['{key_added}']," if genes else "",
        key_added,
        key_added,
        key_presence,
    )
    return result if copy else None


class _CellSums:
    """Attributions of all cells, summed over pairs of gene and token."""

    def __init__(self, model: TOSICA, n_obs: int, *, genes: bool) -> None:
        embedding = model.module.embedding
        self._n_tokens, self._n_genes = embedding.n_tokens, embedding.n_genes
        self._token, self._gene = token_of_pair(model.module), embedding.genes
        self.token_attribution = np.empty((n_obs, self._n_tokens), np.float32)
        self.token_presence = np.empty((n_obs, self._n_tokens), np.float32)
        # Cells and genes are a dense matrix, so it is made on demand only.
        self.gene_attribution = np.zeros((n_obs, self._n_genes), np.float32) if genes else None
        # Sums over the cells with the same target, and how many these are.
        self.target_sums = np.zeros((len(model.labels), self._n_genes))
        self.n_cells = np.zeros(len(model.labels), dtype=np.int64)
        # Difference of the scores, and the network's part of it.
        self.difference, self.network = np.empty(n_obs), np.empty(n_obs)

    def add(self, rows: slice, codes: Tensor, attribution: Attribution) -> None:
        """Add a minibatch: ``rows`` of the query, whose targets are ``codes``."""
        self.token_attribution[rows] = self._numpy(attribution.pairs, self._token, self._n_tokens)
        self.token_presence[rows] = self._numpy(attribution.presence, self._token, self._n_tokens)
        self.difference[rows] = attribution.difference.cpu().numpy()
        self.network[rows] = attribution.network.cpu().numpy()
        targets = codes.cpu().numpy()
        gene_attribution = self._numpy(attribution.pairs, self._gene, self._n_genes)
        np.add.at(self.target_sums, targets, gene_attribution)
        self.n_cells += np.bincount(targets, minlength=len(self.n_cells))
        if self.gene_attribution is not None:
            self.gene_attribution[rows] = gene_attribution

    @staticmethod
    def _numpy(pairs: Tensor, group: Tensor, n_groups: int) -> np.ndarray:
        return sum_by(pairs, group, n_groups).cpu().numpy()

    @property
    def error(self) -> np.ndarray:
        """Sum over all tokens less the difference of the scores, ``(n_obs,)``."""
        return self.token_attribution.sum(1, dtype=np.float64) - self.difference

    @property
    def completeness_error(self) -> float:
        """Mean absolute error over the mean absolute difference of the scores."""
        return float(np.abs(self.error).mean() / max(np.abs(self.difference).mean(), _TINY))

    @property
    def linear_share(self) -> float:
        """Share of the linear branch in the absolute difference of the scores."""
        linear = np.abs(self.difference - self.network).sum()
        return float(linear / max(linear + np.abs(self.network).sum(), _TINY))

    def unannotated_share(self, n_gene_sets: int) -> float:
        """Share of the tokens beyond the gene sets in the absolute attribution."""
        total = np.abs(self.token_attribution).sum()
        return float(np.abs(self.token_attribution[:, n_gene_sets:]).sum() / max(total, _TINY))


def _write(
    adata: AnnData,
    sums: _CellSums,
    model: TOSICA,
    gene_sets: list[str],
    columns: list[str],
    key_added: str,
    key_presence: str,
) -> None:
    n_gene_sets = len(gene_sets)
    # As in the query that was read, by any name that it found a gene by.
    genes = pd.Index(np.asarray(model.get_var_names()))
    indexer = find_genes(adata.var_names, genes, load_table(adata.var)).indexer
    adata.obsm[f"X_{key_added}"] = sums.token_attribution[:, :n_gene_sets]
    adata.obsm[f"X_{key_presence}"] = sums.token_presence[:, :n_gene_sets]
    adata.varm[key_added] = pd.DataFrame(
        {
            columns[code]: _reindex_genes(sums.target_sums[code] / sums.n_cells[code], indexer)
            for code in np.flatnonzero(sums.n_cells)
        },
        index=adata.var_names,
    )
    if sums.gene_attribution is not None:
        adata.layers[key_added] = _reindex_genes(sums.gene_attribution, indexer)
    adata.obs[f"{key_added}_error"] = sums.error.astype(np.float32)
    for key in (key_added, key_presence):
        adata.uns[key] = {
            "gene_sets": np.array(gene_sets, dtype=object),
            "model": model.fingerprint,
        }
    adata.uns[key_added] |= {
        "completeness_error": sums.completeness_error,
        "linear_share": sums.linear_share,
        "unannotated_share": sums.unannotated_share(n_gene_sets),
    }


def _reindex_genes(values: np.ndarray, indexer: np.ndarray) -> np.ndarray:
    """Reorder the last axis; 0 for genes that the model does not have (-1)."""
    padded = np.concatenate([values, np.zeros((*values.shape[:-1], 1))], -1)
    return np.take(padded, indexer, axis=-1).astype(np.float32)
