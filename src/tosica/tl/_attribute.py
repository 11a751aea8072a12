"""Contributions of gene sets and genes to the score of a cell's label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pandas as pd
import torch

from tosica._checks import (
    FileKey,
    Flag,
    Integer,
    OneOf,
    String,
    only_known,
    validate_params,
)
from tosica._obs import file_columns
from tosica._parallel import thread_map, thread_pool
from tosica._progress import progress
from tosica._settings import logger, only_warnings, query_logger, warn_user
from tosica.data import find_genes, load_table
from tosica.tl._read_annotation import ANNOTATED_BY_MODEL, read_annotation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from anndata import AnnData
    from mudata import MuData
    from numpy.typing import NDArray
    from torch import Tensor

    from tosica.model import TOSICA
    from tosica.model._query import Minibatch
    from tosica.module import TOSICAModule

Baseline: TypeAlias = Literal["reference", "mean", "zero"]

N_STEPS = 24
# Completeness error above which a warning says so.
_TOLERATED_ERROR = 0.02
_TINY = 1e-12
# Cells times points of the path in a minibatch: fits the memory of a small machine.
_POINTS_CPU, _POINTS_ACCELERATOR = 200, 8_000
# Cells whose gradients are spread out over the pairs of gene and token at once.
_CELLS_AT_ONCE = 16


@validate_params(
    **ANNOTATED_BY_MODEL,
    target=String(optional=True),
    baseline=OneOf(*get_args(Baseline)),
    genes=Flag(),
    n_steps=Integer(),
    key_added=FileKey(optional=True),
)
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
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model)
    >>> query.obsm["X_tosica_attribution"].shape  # 30 gene sets and 31 modules
    (175, 61)
    >>> bool(query.uns["tosica_attribution"]["completeness_error"] < 0.02)
    True
    """
    _, gene_sets = read_annotation(adata, model, key)
    if target is not None and target not in model.labels:
        raise ValueError(f"target {target!r} is no label{only_known(target, model.labels)}")
    file_columns(model.labels, "the model")
    sums = _CellSums(model, adata.n_obs, genes=genes)
    for part in iter_attributions(
        model,
        adata,
        baseline=baseline,
        target=target,
        n_steps=n_steps,
        layer=layer,
        use_raw=use_raw,
    ):
        sums.add(*part)
    record = sums.describe(len(gene_sets))
    error = record["completeness_error"]
    if error > _TOLERATED_ERROR:
        advice = ", or baseline='reference'" * (baseline == "zero")
        warn_user(
            f"Attributions miss the difference of the scores by {error:.1%} on average: pass a "
            f"larger n_steps than {n_steps}{advice}."
        )
    result = adata.copy() if copy else adata
    key_added = key_added or f"{key}_attribution"
    key_presence = f"{key if key_added == f'{key}_attribution' else key_added}_presence"
    _write(result, sums, model, gene_sets, key_added, key_presence)
    result.uns[key_added] |= record | {
        "target": "own label" if target is None else target,
        "baseline": baseline,
        "n_steps": int(n_steps),
    }
    logger.info(
        "attribute: completeness error %.2g %%; added .obsm['X_%s'], .obsm['X_%s'], and %r in obs, varm and uns",
        100 * error,
        key_added,
        key_presence,
        key_added,
    )
    return result if copy else None


def baseline_expression(
    model: TOSICA,
    adata: AnnData | MuData,
    baseline: Baseline,
    *,
    layer: str | Mapping[str, str] | None,
    use_raw: bool,
) -> Tensor:
    """Expression that cells are compared with, shape ``(1, n_genes)``.

    Raises
    ------
    ValueError
        If the model does not have the mean of its reference, or the query whose mean is asked for
        has a single cell.
    """
    if baseline == "reference":
        if not model.module.baseline.any():
            raise ValueError(
                "The model does not know the mean cell of its reference, because the original's "
                "code trained it: pass baseline='mean' for that of the query."
            )
        return model.module.baseline[None]
    n_genes = model.module.embedding.n_genes
    if baseline == "zero":
        return torch.zeros(1, n_genes, device=model.module.device)
    if adata.n_obs == 1:
        raise ValueError("A single cell is its own mean: pass more cells, or baseline='zero'.")
    total = torch.zeros(n_genes, dtype=torch.float64)
    with only_warnings(query_logger):
        for _, x, _ in model.iter_batches(adata, layer=layer, use_raw=use_raw):
            total += x.sum(0, dtype=torch.float64).cpu()
    return (total / adata.n_obs).float()[None].to(model.module.device)


def default_baseline(model: TOSICA) -> Baseline:
    """Choose the mean of the reference if the model has it, else that of the query."""
    return "reference" if model.module.baseline.any() else "mean"


class Attribution(NamedTuple):
    """What genes add to the scores of a minibatch of cells, through each token."""

    pairs: Tensor
    """Each pair of gene and token, ``(n_cells, n_pairs)``, in the order of the embedding's
    ``genes``. Sums to ``difference`` but for the error of the integral."""
    presence: Tensor
    """The same, 0 for genes that the cell expresses no more than the baseline."""
    difference: Tensor
    """Score of the cell less that of the baseline, ``(n_cells,)``."""
    network: Tensor
    """The network's part of the difference, ``(n_cells,)``; the rest is the linear branch's."""


def centered_logits(module: TOSICAModule, vectors: Tensor) -> Tensor:
    """Logits less their mean over the labels, which no probability depends on."""
    logits = module.score(vectors)
    return logits - logits.mean(1, keepdim=True)


def integrated_gradients(
    module: TOSICAModule,
    x: Tensor,
    baseline: Tensor,
    target: Tensor,
    *,
    n_steps: int,
    measured: Tensor | None = None,
    measured_baseline: Tensor | None = None,
) -> Attribution:
    """Attribute the difference of the scores of each cell and a baseline.

    The network's part is integrated along the straight line from the baseline to the cell. The
    embedding is linear, so this is a straight line in the embeddings of gene sets, too, and one
    integral serves gene sets and genes. The linear branch is a sum and needs no integral.

    Parameters
    ----------
    module
        The network, in evaluation mode.
    x
        Expression, shape ``(n_cells, n_genes)``.
    baseline
        Expression that cells are compared with, shape ``(1, n_genes)``.
    target
        Code of the label whose score is explained, for each cell, shape ``(n_cells,)``.
    n_steps
        Points of the Gauss-Legendre quadrature.
    measured
        Which genes the query has, ``(n_genes,)``; by default all.
    measured_baseline
        Which genes the baseline has, ``(n_genes,)``; by default all.
    """
    embedding = module.embedding
    x, baseline = module.clip(x), module.clip(baseline)
    with torch.no_grad():
        vectors = embedding.gene_set_embeddings(x)
        start = embedding.gene_set_embeddings(baseline).expand_as(vectors)
        ends = centered_logits(module, vectors), centered_logits(module, start)
        network = (ends[0] - ends[1]).gather(1, target[:, None])[:, 0]
    gradients = _mean_gradients(module, vectors, start, target, n_steps)
    with torch.no_grad():
        above = x - baseline
        pairs = _slopes(gradients, embedding.pair_weights(), token_of_pair(module))
        pairs *= above[:, embedding.genes]
        presence = torch.where(above[:, embedding.genes] > 0, pairs, 0)
        difference = network
        if module.linear is not None:
            below = module.linear.expression(baseline, measured_baseline)
            above = module.linear.expression(x, measured) - below
            linear = module.linear.contributions(above, target)
            pairs += linear
            presence += torch.where(above[:, embedding.genes] > 0, linear, 0)
            difference = network + linear.sum(1)
    return Attribution(pairs, presence, difference, network)


def _mean_gradients(module: TOSICAModule, vectors: Tensor, start: Tensor, target: Tensor, n_steps: int) -> Tensor:
    """Average the score's gradient along the line from ``start`` to ``vectors``, of their shape."""
    nodes, weights = (
        torch.as_tensor(each, dtype=vectors.dtype, device=vectors.device)
        for each in np.polynomial.legendre.leggauss(n_steps)
    )
    # All points of all cells in one minibatch: (n_steps, n_cells, n_tokens, embed_dim).
    points = start + (nodes[:, None, None, None] + 1) / 2 * (vectors - start)
    points = points.flatten(0, 1).requires_grad_()
    with torch.enable_grad():
        scores = centered_logits(module, points).gather(1, target.repeat(n_steps)[:, None])
        (gradients,) = torch.autograd.grad(scores.sum(), points)
    return torch.einsum("s,sntd->ntd", weights / 2, gradients.unflatten(0, (n_steps, -1)))


def iter_attributions(
    model: TOSICA,
    adata: AnnData | MuData,
    *,
    baseline: Baseline,
    rows: NDArray[np.integer] | None = None,
    target: str | None = None,
    n_steps: int = N_STEPS,
    layer: str | Mapping[str, str] | None = None,
    use_raw: bool = False,
    bar: str = "attribute",
) -> Iterator[tuple[slice, Tensor, Attribution]]:
    """Attribute the score of one label, or of each cell's best one, minibatch by minibatch.

    Parameters
    ----------
    model
        The trained model, of one modality.
    adata
        The query.
    baseline
        What cells are compared with; ``"mean"`` is that of all cells of ``adata``.
    rows
        Positions of the cells to explain; by default all.
    target
        Label to explain; ``None`` for the best label of each cell.
    n_steps
        Points of the quadrature.
    layer, use_raw
        Which matrix of ``adata`` to read.
    bar
        What the progress bar says before its figures.

    Yields
    ------
    Slice of ``rows`` that the minibatch holds, the code of each cell's label, ``(n_cells,)``, and
    the cells' attribution.
    """
    module = model.module
    start = baseline_expression(model, adata, baseline, layer=layer, use_raw=use_raw)
    n_points = _POINTS_CPU if module.device.type == "cpu" else _POINTS_ACCELERATOR
    label = None if target is None else model.labels.index(target)

    def explain(minibatch: Minibatch) -> tuple[slice, Tensor, Attribution]:
        first, x, measured = minibatch
        if label is None:
            with torch.no_grad():
                codes = module.annotate(x, attention=False, measured=measured).logits.argmax(1)
        else:
            codes = torch.full((len(x),), label, device=x.device)
        attribution = integrated_gradients(
            module,
            x,
            start,
            codes,
            n_steps=n_steps,
            measured=measured,
            # The query's mean lacks the genes that the query lacks.
            measured_baseline=measured if baseline == "mean" else None,
        )
        return slice(first, first + len(x)), codes, attribution

    cells = adata if rows is None else adata[rows]
    with (
        only_warnings(query_logger),
        thread_pool(module.device),
        progress(cells.n_obs, bar) as step,
    ):
        minibatches = model.iter_batches(cells, layer=layer, use_raw=use_raw, batch_size=max(n_points // n_steps, 1))
        for found in thread_map(explain, minibatches):
            yield found
            step.update(len(found[1]))


def token_of_pair(module: TOSICAModule) -> Tensor:
    """Token of each pair of gene and token, ``(n_pairs,)``."""
    indptr = module.embedding.indptr
    tokens = torch.arange(module.embedding.n_tokens, device=indptr.device)
    return torch.repeat_interleave(tokens, indptr[1:] - indptr[:-1])


def sum_by(values: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Sums of the columns that belong to each group, ``(n_rows, n_groups)``."""
    return values.new_zeros(len(values), n_groups).index_add_(1, group, values)


def _slopes(gradients: Tensor, weights: Tensor, token: Tensor) -> Tensor:
    """Mean gradient with respect to each gene through each token, ``(n_cells, n_pairs)``."""
    return torch.cat([torch.einsum("npd,pd->np", part[:, token], weights) for part in gradients.split(_CELLS_AT_ONCE)])


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
    def error(self) -> NDArray[np.float64]:
        """Sum over all tokens less the difference of the scores, ``(n_obs,)``."""
        return self.token_attribution.sum(1, dtype=np.float64) - self.difference

    def describe(self, n_gene_sets: int) -> dict[str, float]:
        """Summarize the error, and what the linear branch and other tokens than gene sets add."""
        absolute = np.abs(self.token_attribution)
        linear, network = np.abs(self.difference - self.network).sum(), np.abs(self.network).sum()
        scores = max(np.abs(self.difference).mean(), _TINY)
        return {
            "completeness_error": float(np.abs(self.error).mean() / scores),
            "linear_share": float(linear / max(linear + network, _TINY)),
            "unannotated_share": float(absolute[:, n_gene_sets:].sum() / max(absolute.sum(), _TINY)),
        }


def _write(
    adata: AnnData,
    sums: _CellSums,
    model: TOSICA,
    gene_sets: list[str],
    key_added: str,
    key_presence: str,
) -> None:
    n_gene_sets = len(gene_sets)
    # As in the query that was read, by any name that it found a gene by.
    genes = pd.Index(np.asarray(model.get_var_names()))
    indexer = find_genes(adata.var_names, genes, load_table(adata.var)).indexer
    columns = file_columns(model.labels, "the model")
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


def _reindex_genes(values: np.ndarray, indexer: np.ndarray) -> np.ndarray:
    """Reorder the last axis; 0 for genes that the model does not have (-1)."""
    padded = np.concatenate([values, np.zeros((*values.shape[:-1], 1))], -1)
    return np.take(padded, indexer, axis=-1).astype(np.float32)
