"""What each gene adds to the score of a label, and the gene sets that these genes make up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from anndata import AnnData
from torch.nn.functional import one_hot

from tosica._limits import LIMITS
from tosica._obs import UNKNOWN, check_target, file_columns, read_groups
from tosica._parallel import thread_map, thread_pool
from tosica._progress import progress
from tosica._settings import logger, only_warnings, query_logger, warn_user
from tosica._text import only_known
from tosica._validate import (
    ANNDATA,
    ANY_CELLS,
    CellData,
    FileKey,
    Integer,
    OneOf,
    validate_params,
)
from tosica.data import find_genes, load_table
from tosica.model._inference import LAYER
from tosica.tl._contrast import (
    Baseline,
    ReferenceContrast,
    positive_deviation,
    query_shift,
    share_of_reference,
)
from tosica.tl._evidence import ANNOTATED_BY_MODEL, annotating_model
from tosica.tl._gene_set_evidence import gene_set_statistics, gene_sets_with_evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from tosica._types import (
        AnnOrMuData,
        BoolArray,
        Float32Array,
        FloatArray,
        IntArray,
        ObjectArray,
    )
    from tosica.model import TOSICA
    from tosica.model._query_loader import Minibatch
    from tosica.module import TOSICAModule

# Points of Gauss and Legendre to begin with, which suffice for most cells.
_N_STEPS = 4
_TINY = 1e-12
# Cells times points of the path in a minibatch: fits the memory of a small machine.
_POINTS_CPU, _POINTS_ACCELERATOR = 200, 8_000


@validate_params(
    **ANNOTATED_BY_MODEL | {"adata": CellData(mudata=True), "layer": LAYER},
    baseline=OneOf(*get_args(Baseline)),
    seed=Integer(least=0),
    key_added=FileKey(optional=True),
)
def attribute(
    adata: AnnOrMuData,
    model: TOSICA,
    groupby: str | None = None,
    *,
    target: str | None = None,
    baseline: Baseline = "shifted",
    n_cells: int = 20,
    n_steps: int | None = None,
    cells: bool = False,
    genes: bool = False,
    seed: int = 0,
    layer: Any = None,
    use_raw: bool = False,
    key: str = "tosica",
    key_added: str | None = None,
    copy: bool = False,
) -> AnnOrMuData | None:
    r"""Compute what each gene adds to the score of a label, and which gene sets these genes make up.

    The score of a label is its logit minus the mean logit over labels. Its difference between
    the cell :math:`x` and a baseline :math:`x'` is a sum over genes. Gene :math:`g` adds

    .. math:: c_g = (\hat x_g - \hat x'_g) \, v_{kg}
        + (x_g - x'_g) \int_0^1 \frac{\partial s}{\partial x_g}\bigl(x' + t (x - x')\bigr) \, dt ,

    the term of the linear branch, and the integrated gradient :cite:p:`Sundararajan2017` of the
    network's score. Both are averaged over the cells of a group. The score of a group of labels
    (:attr:`~tosica.TOSICA.label_parents_`, :attr:`~tosica.TOSICA.ontology_term_ids_`) is the mean of
    its labels' scores, which is what they have in common.

    A gene set is not given a share, because a gene is in many sets. Sets are tested instead: do the
    genes of a set that the group expresses more than the baseline add more to the score than permuted
    genes do, even without the strongest of them? All sets of the model's mask are tested, also
    those that are no tokens. Where none passes, the label is told by its genes alone. In the test, a
    gene counts by the excess :math:`e_g = \max(0, \min(r_g, 2 d_g))`, where :math:`d_g` is the mean of the
    group less the baseline, and :math:`r_g` that of the label in the reference, and by what this excess
    adds, :math:`c_g e_g / d_g`. So the sets of a label depend little on the other cells of ``adata``, and a
    response to a treatment that the reference lacks is no reason.

    Parameters
    ----------
    adata
        Query that ``model`` has annotated.
    model
        The model that annotated it.
    groupby
        Column of ``adata.obs`` with groups of cells to explain. ``None``: the labels,
        ``f"{key}_prediction"``. Cells that are called "Unknown" are left out.
        ``f"{key}_confident"`` explains labels and groups of labels.
    target
        Label or group of labels to explain in all groups; ``None`` explains the label that each cell has.
    baseline
        What cells are compared with. ``"reference"``: the mean of the labels' mean cells in the
        reference, so that a frequent type does not hide in it. ``"shifted"``: the same, plus the shift of
        ``adata`` from the reference, which is the median over labels of the difference of their means, times
        the share of it that is no noise (``"batch_signal"`` of :meth:`tosica.TOSICA.annotate`). It needs three
        labels with five cells. ``"mean"``: the mean of ``adata``.
    n_cells
        Cells of each group, drawn at random, by which the network's part is averaged. The linear
        part is averaged over all cells.
    n_steps
        Points of the integral (Gauss and Legendre). ``None``: four, and twice as many again for the
        cells that need them, until ``completeness_error`` is at most 1 %.
    cells
        Also compute what each gene set adds in each cell, which takes about 10 ms a cell.
    genes
        Also compute what each gene adds in each cell. It is a dense matrix.
    seed
        Seed of the draw.
    layer, use_raw
        Which matrix of ``adata`` to read, as in :meth:`tosica.TOSICA.annotate`.
    key
        ``key_added`` of ``model.annotate``.
    key_added
        Replaces ``f"{key}_attribution"`` below.
    copy
        Leave ``adata`` as it is and return a copy with the result.

    Returns
    -------
    ``None``, or with ``copy=True`` an AnnData or MuData. Written are, in logits:

    ``adata.uns["tosica_attribution"]["genes"]``
        What each gene of the model that ``adata`` has adds, the mean over the cells of each group: a table
        ``(n_genes, n_groups)`` float32. :func:`tosica.get.genes_df` reads it. What the model imputes is
        credited to the genes that it is imputed from. A slash in a group's name is a bar in that of its
        column.
    ``adata.uns["tosica_attribution"]["expression"]``
        Mean expression in the group less that of the baseline, of the same shape.
    ``adata.uns["tosica_attribution"]["effect_size"]``
        The same in standard deviations of the gene within the labels of the reference (Cohen's d), or, if
        the model does not know them, within groups.
    ``adata.uns["tosica_attribution"]["shared"]``
        :math:`e_g / d_g`, from 0 to 2: by this share contribution and effect size count in the test of sets.
    ``adata.uns["tosica_attribution"]["evidence"]``
        Gene sets with evidence, one row a group and set, the strongest first, which
        :func:`tosica.get.gene_sets_df` reads and describes.
    ``adata.uns["tosica_attribution"]["z"]``, ``["contribution"]``
        The test's statistic, and the mean of ``X_tosica_attribution`` over the cells, of each set that has
        evidence in any group, ``(n_sets, n_groups)`` float32.
    ``adata.uns["tosica_attribution"]``
        Also the names of all gene sets, ``groupby``, ``target``, ``baseline``, the ``shift`` of the
        baseline ``(n_genes,)`` if there is one, the most points that a cell needed (``n_steps``), the ``key``
        of the annotation, the fingerprint of the model, the share of the linear branch (``linear_share``), and
        ``completeness_error``: mean absolute difference between the sum over genes and the
        difference of the scores, over the mean absolute difference of the scores.
    ``adata.obsm["X_tosica_attribution"]``
        With ``cells=True``: what the genes of each gene set add in each cell, together,
        ``(n_obs, n_gene_sets)`` float32. A gene counts in each of its sets, in cells that express it more
        than the baseline: no set adds by the absence of its genes.
    ``adata.layers["tosica_attribution"]``
        With ``genes=True``: what each gene adds in each cell, ``(n_obs, n_vars)`` float32.

    Raises
    ------
    TypeError
        If an argument is of the wrong type, or ``genes=True`` is asked for a MuData or a model of one.
    KeyError
        If ``adata`` was not annotated under ``key``, or ``groupby`` is missing.
    ValueError
        If another model annotated ``adata``; if no cell has a label; if the target is no label of
        the model; if ``genes=True`` is asked of ``adata.raw`` with genes that ``adata`` lacks; or as
        :meth:`tosica.TOSICA.annotate`.

    Warns
    -----
    UserWarning
        If ``completeness_error`` is above 1 %, as a small ``n_steps`` may leave it.

    See Also
    --------
    tosica.get.explain : one line for each label.
    tosica.tl.faithfulness : whether the labels rest on these genes and gene sets.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> tosica.tl.attribute(query, model)
    >>> tosica.get.genes_df(query, "CD19+ B", n_genes=3)["gene"].to_list()
    ['CD79A', 'MS4A1', 'CD79B']
    >>> bool(query.uns["tosica_attribution"]["completeness_error"] < 0.01)
    True
    """
    is_of_anndata = model.modalities[0].name is None
    (ANNDATA if is_of_anndata else ANY_CELLS).check("adata", adata)
    check_target(adata, "attribute", copy=copy)
    model = annotating_model(adata, model, key, mudata=True)
    if genes:
        _check_layer_of_genes(adata, model, use_raw)
    groups = _Groups(adata, model, groupby or f"{key}_prediction", target, key)
    explainer = _Explainer(model, adata, groups, baseline, n_steps, layer, use_raw)
    rows = np.arange(adata.n_obs)
    if not (cells or genes):
        rows = groups.draw_cells(n_cells, np.random.default_rng(seed))
    by_gene_set = None
    by_gene = None
    if cells:
        n_gene_sets = explainer.members.shape[1]
        by_gene_set = np.empty((adata.n_obs, n_gene_sets), np.float32)
    if genes:
        by_gene = np.empty((adata.n_obs, len(explainer.gene_names)), np.float32)
    means = _GroupMeans(explainer, groups)
    means.add_linear_part()
    for positions, contributions in explainer.iter_contributions(rows, groups.targets):
        means.add_cells(positions, contributions)
        if by_gene_set is not None:
            raised = contributions.genes * contributions.is_raised
            by_gene_set[positions] = raised @ explainer.members
        if by_gene is not None:
            by_gene[positions] = contributions.genes
    record = {
        **means.tables(),
        "key": key,
        "model": model.fingerprint,
        "gene_sets": explainer.set_names,
        "groups": np.array(groups.names, dtype=object),
        "groupby": groupby or f"{key}_prediction",
        "target": target or "own label",
        "baseline": baseline,
        "n_steps": max(explainer.n_steps_used),
    }
    if explainer.shift is not None:
        record["shift"] = explainer.shift
    if record["completeness_error"] > LIMITS.attribution_error:
        warn_user(
            f"Contributions miss the difference of the scores by "
            f"{record['completeness_error']:.1%} on average: pass a larger n_steps "
            f"than {record['n_steps']}."
        )
    result = adata.copy() if copy else adata
    _write(
        result, key_added or f"{key}_attribution", record, by_gene_set, by_gene, model
    )
    return result if copy else None


def _check_layer_of_genes(adata: AnnOrMuData, model: TOSICA, use_raw: bool) -> None:
    """Check that ``adata.layers`` can hold what each gene adds."""
    if not isinstance(adata, AnnData):
        raise TypeError(
            "genes=True writes to adata.layers, which a MuData does not have: leave it out."
        )
    if model.modalities[0].name is not None:
        raise TypeError(
            "genes=True writes the genes of one modality, and the model is one of a MuData: leave it out."
        )
    if not use_raw or adata.raw is None:
        return
    names = pd.Index(np.asarray(model.get_var_names()))
    in_raw = find_genes(adata.raw.var_names, names, lambda: load_table(adata.raw.var))
    in_layer = find_genes(adata.var_names, names, lambda: load_table(adata.var))
    n_lacking = len(np.setdiff1d(in_raw.indexer, [-1, *in_layer.indexer]))
    if n_lacking:
        raise ValueError(
            f"genes=True writes to adata.layers, which lacks {n_lacking:,} of the model's genes in adata.raw: pass "
            "adata.raw.to_adata() without use_raw, or leave genes out."
        )


def _write(
    adata: AnnOrMuData,
    key: str,
    record: dict[str, Any],
    by_gene_set: Float32Array | None,
    by_gene: Float32Array | None,
    model: TOSICA,
) -> None:
    """Write the record and the contributions of cells, and say so in the log."""
    # Contributions of an earlier call do not belong to this record.
    adata.obsm.pop(f"X_{key}", None)
    if isinstance(adata, AnnData):
        adata.layers.pop(key, None)
    adata.uns[key] = record
    keys = f".uns[{key!r}]"
    if by_gene_set is not None:
        adata.obsm[f"X_{key}"] = by_gene_set
        keys += f" and .obsm['X_{key}']"
    if by_gene is not None:
        indexer = find_genes(
            adata.var_names,
            pd.Index(np.asarray(model.get_var_names())),
            lambda: load_table(adata.var),
        ).indexer
        adata.layers[key] = np.where(indexer >= 0, by_gene[:, indexer], 0)
        keys += f" and .layers[{key!r}]"
    logger.info(
        "attribute: %d groups, error %.2g %%; added %s",
        len(record["groups"]),
        100 * record["completeness_error"],
        keys,
    )


class Contributions(NamedTuple):
    """Contributions of the genes to the scores of some cells.

    ``genes`` is ``(n_cells, n_genes)``, ``network`` the network's part of it. ``difference`` is the
    score of the cell less that of the baseline, ``(n_cells,)``, and ``network_difference`` the
    network's part. ``genes`` sums to ``difference`` but for the error of the integral. ``is_raised``
    marks genes that the cell expresses more than the baseline, ``(n_cells, n_genes)``.
    """

    genes: Float32Array
    network: Float32Array
    difference: Float32Array
    network_difference: Float32Array
    is_raised: BoolArray

    @property
    def error(self) -> FloatArray:
        """Absolute error of the integral, ``(n_cells,)``."""
        return np.abs(self.genes.sum(1, dtype=np.float64) - self.difference)


class _Groups:
    """Groups of cells to explain.

    Attributes
    ----------
    names, n_cells
        Name of each group, and its number of cells.
    columns
        Their names in tables.
    codes
        Group of each cell, -1 for cells in none.
    targets
        Label or group of labels to explain in each cell, -1 where it has none.
    predicted
        Label of each cell in the model, -1 where it has none.
    label_shares
        Share of each label in each possible target, ``(n_targets, n_labels)``.
    """

    def __init__(
        self,
        adata: AnnOrMuData,
        model: TOSICA,
        groupby: str,
        target: str | None,
        key: str,
    ) -> None:
        groups = read_groups(adata, groupby)
        hierarchy = model._hierarchy
        target_names = hierarchy.names
        members = hierarchy.members
        self.label_shares: Float32Array = (
            members / members.sum(1, keepdims=True)
        ).astype(np.float32)
        self.predicted = _own_targets(adata, f"{key}_prediction", list(model.labels))
        if target is None:
            column = groupby if groupby == f"{key}_confident" else f"{key}_prediction"
            self.targets = _own_targets(adata, column, target_names)
        elif target in target_names:
            self.targets = np.full(adata.n_obs, target_names.index(target))
        else:
            raise ValueError(
                f"target {target!r} is no label{only_known(target, target_names)}"
            )
        is_named = np.asarray(groups.categories != UNKNOWN)
        is_explained = (self.targets >= 0) & is_named[groups.codes]
        if not is_explained.any():
            raise ValueError(
                f"No cell has a label to explain: all are {UNKNOWN!r}; name a target."
            )
        occurring, codes = np.unique(groups.codes[is_explained], return_inverse=True)
        self.names = list(groups.categories[occurring])
        self.columns = file_columns(self.names, "groupby")
        self.n_cells = np.bincount(codes, minlength=len(occurring))
        self.codes = np.full(adata.n_obs, -1, dtype=np.int64)
        self.codes[is_explained] = codes

    def draw_cells(self, n_per_group: int, rng: np.random.Generator) -> IntArray:
        """Draw up to ``n_per_group`` cells of each group, in ascending order."""
        rows = []
        for code in range(len(self.names)):
            cells = np.flatnonzero(self.codes == code)
            rows.append(rng.permutation(cells)[:n_per_group])
        return np.sort(np.concatenate(rows))


def _own_targets(adata: AnnOrMuData, column: str, target_names: list[str]) -> IntArray:
    """Position of each cell's own label among the targets, -1 for "Unknown"."""
    predicted = read_groups(adata, column)
    codes = []
    for label in predicted.categories:
        if label == UNKNOWN:
            codes.append(-1)
        elif label in target_names:
            codes.append(target_names.index(label))
        else:
            raise ValueError(
                f"adata.obs[{column!r}] holds {label!r}, which is no label of the model: annotate again."
            )
    return np.array(codes, dtype=np.int64)[predicted.codes]


class _Explainer:
    """Computes contributions of cells, compared with a baseline.

    Attributes
    ----------
    label_shares
        Share of each label in each possible target, ``(n_targets, n_labels)``.
    measured
        Which genes the query has, ``(n_genes,)``; ``None`` if it has all.
    baseline
        Expression that cells are compared with, zero for genes that the query lacks,
        ``(1, n_genes)``.
    shift
        How far it is from the reference's mean cell, ``(n_genes,)``; ``None`` if it is not shifted.
    contrast
        What sets the labels of the reference apart, if the model knows it.
    n_steps_used
        Numbers of points that the integral took.
    gene_names, set_names, members
        Genes and gene sets of the model, and which gene is in which set.
    """

    def __init__(
        self,
        model: TOSICA,
        adata: AnnOrMuData,
        groups: _Groups,
        baseline: Baseline,
        n_steps: int | None,
        layer: Any,
        use_raw: bool,
    ) -> None:
        self.model = model
        self.module = model.module
        self.adata = adata
        self.label_shares = torch.from_numpy(groups.label_shares).to(self.module.device)
        self.n_steps_used = {n_steps or _N_STEPS}
        self._n_steps = n_steps
        self._matrix = {"layer": layer, "use_raw": use_raw}
        on_cpu = self.module.device.type == "cpu"
        self._max_points = _POINTS_CPU if on_cpu else _POINTS_ACCELERATOR
        statistics = model.training_.novelty_statistics
        self.shift: Float32Array | None = None
        self.contrast: ReferenceContrast | None = None
        if statistics is not None:
            self.contrast = ReferenceContrast.of_statistics(
                statistics, len(model.labels)
            )
        with only_warnings(query_logger):
            self.measured = next(self.minibatches()).measured
        self.baseline = self.module.baseline[None]
        if baseline == "mean":
            if adata.n_obs == 1:
                raise ValueError(
                    "A single cell is its own mean: pass more cells, or baseline='reference'."
                )
            with only_warnings(query_logger):
                total = sum(
                    batch.x.sum(0, dtype=torch.float64) for batch in self.minibatches()
                )
            self.baseline = (total / adata.n_obs).float()[None]
        elif not self.module.baseline.any():
            raise ValueError(
                "The model does not know the mean cell of its reference, because the original's "
                "code trained it: pass baseline='mean' for that of the query."
            )
        if baseline == "shifted":
            shift = query_shift(self.minibatches, groups.predicted, statistics)
            if shift is not None:
                moved = self.baseline + torch.from_numpy(shift).to(self.baseline)
                moved = moved.clamp(min=0)
                self.shift = (moved - self.baseline)[0].cpu().numpy()
                self.baseline = moved
        if self.measured is not None:
            self.baseline = torch.where(self.measured, self.baseline, 0)
        self.gene_names = model.tokens.var_names
        set_names = []
        members = []
        for modality in model.modalities:
            names_of_modality, members_of_modality = modality.gene_sets()
            set_names.extend(names_of_modality)
            members.append(members_of_modality)
        self.set_names = np.array(set_names, dtype=object)
        self.members = sp.csc_matrix(sp.block_diag(members, format="csc"))

    def minibatches(
        self, rows: IntArray | None = None, size: int | None = None
    ) -> Iterator[Minibatch]:
        """Iterate over some cells, by default all."""
        indices = None
        if rows is not None and len(rows) < self.adata.n_obs:
            indices = rows.tolist()
        return self.model.iter_batches(
            self.adata, indices=indices, batch_size=size, **self._matrix
        )

    def iter_contributions(
        self, rows: IntArray, targets: IntArray
    ) -> Iterator[tuple[IntArray, Contributions]]:
        """Compute contributions in some cells, minibatch by minibatch.

        Parameters
        ----------
        rows
            Positions of the cells.
        targets
            Code of the label to explain in each cell of the query, -1 for the cell's best one.

        Yields
        ------
        Positions of the minibatch's cells, and their contributions.
        """
        target = torch.from_numpy(targets[rows]).to(self.module.device)
        n_steps = self._n_steps or _N_STEPS

        def explain(batch: Minibatch) -> tuple[IntArray, Contributions]:
            cells = slice(batch.start, batch.start + len(batch.x))
            return rows[cells], self._integrate(batch, target[cells], n_steps)

        with (
            only_warnings(query_logger),
            thread_pool(self.module.device),
            progress(len(rows), "attribute") as step,
        ):
            batches = self.minibatches(rows, max(self._max_points // n_steps, 1))
            for positions, contributions in thread_map(explain, batches):
                yield positions, contributions
                step.update(len(positions))

    def _integrate(
        self, batch: Minibatch, target: Tensor, n_steps: int
    ) -> Contributions:
        """Compute contributions, with more points in cells whose error is large.

        The error is small in all cells together then.
        """
        contributions = gene_contributions(
            self.module,
            batch,
            self.baseline,
            target,
            self.label_shares,
            n_steps=n_steps,
        )
        self.n_steps_used.add(n_steps)
        if self._n_steps is not None or n_steps >= self._max_points:
            return contributions
        error = contributions.error
        tolerance = LIMITS.attribution_error * np.abs(contributions.difference)
        if error.sum() <= tolerance.sum():
            return contributions
        # Each half takes at most as many points as all cells took.
        for rows in np.array_split(np.flatnonzero(error > tolerance), 2):
            if len(rows):
                refined = self._integrate(
                    batch._replace(x=batch.x[rows]), target[rows], 2 * n_steps
                )
                for field in Contributions._fields:
                    getattr(contributions, field)[rows] = getattr(refined, field)
        return contributions


def gene_contributions(
    module: TOSICAModule,
    batch: Minibatch,
    baseline: Tensor,
    target: Tensor,
    label_shares: Tensor,
    *,
    n_steps: int,
) -> Contributions:
    """Divide the difference of the scores of each cell and a baseline among genes.

    Genes that the query lacks add nothing. What the linear branch imputes is credited to the genes that
    it is imputed from.

    Parameters
    ----------
    module
        The network, in evaluation mode.
    batch
        The cells.
    baseline
        Expression that cells are compared with, shape ``(1, n_genes)``; zero for genes that the query
        lacks.
    target
        Row of ``label_shares`` that is explained, for each cell, shape ``(n_cells,)``; -1 for the
        best label.
    label_shares
        Share of each label in a score, shape ``(n_targets, n_labels)``; first the labels alone.
    n_steps
        Points of the quadrature.
    """
    x = module.clip(batch.x)
    x0 = module.clip(baseline)
    with torch.no_grad():
        logits = module.network_logits(x, batch.modalities)
        if bool((target < 0).any()):
            all_logits = logits
            if module.linear is not None:
                all_logits = logits + module.linear(x, batch.measured)
            target = torch.where(target < 0, all_logits.argmax(1), target)
        shares = label_shares[target]
        baseline_logits = module.network_logits(x0, batch.modalities)
        change = _centered(logits) - _centered(baseline_logits)
        network_difference = (change * shares).sum(1)
    nodes, weights_of_nodes = np.polynomial.legendre.leggauss(n_steps)
    steps = torch.from_numpy((nodes + 1) / 2).to(x)
    # All points of all cells are one minibatch: (n_steps, n_cells, n_genes).
    path = x0 + steps[:, None, None] * (x - x0)
    points = path.flatten(0, 1).requires_grad_()
    with torch.enable_grad():
        logits = _centered(module.network_logits(points, batch.modalities))
        score = (logits * shares.repeat(n_steps, 1)).sum()
        (gradient,) = torch.autograd.grad(score, points)
    slopes = gradient.unflatten(0, (n_steps, -1))
    step_sizes = torch.from_numpy(weights_of_nodes / 2).to(x)
    network = torch.einsum("s,scg->cg", step_sizes, slopes) * (x - x0)
    genes = network
    difference = network_difference
    if module.linear is not None:
        with torch.no_grad():
            weights = _centered(module.linear.weights_of_measured(batch.measured).T)
            above_baseline = module.linear.clip_and_impute(
                x
            ) - module.linear.clip_and_impute(x0)
            linear = above_baseline * (shares @ weights.T)
            genes = network + linear
            difference = network_difference + linear.sum(1)
    return Contributions(
        genes.cpu().numpy(),
        network.cpu().numpy(),
        difference.cpu().numpy(),
        network_difference.cpu().numpy(),
        (x > x0).cpu().numpy(),
    )


def _centered(logits: Tensor) -> Tensor:
    """Logits less their mean over the labels, which no probability depends on."""
    return logits - logits.mean(1, keepdim=True)


class _GroupMeans:
    """Mean contributions and expression of each group, and the error of the integral."""

    def __init__(self, explainer: _Explainer, groups: _Groups) -> None:
        self._explainer = explainer
        self._groups = groups
        shape = (len(groups.names), len(explainer.gene_names))
        self._network_sum = np.zeros(shape)
        self._raised_network_sum = np.zeros(shape)
        self._n_explained = np.zeros(len(groups.names))
        self._linear = np.zeros(shape)
        self._raised_linear = np.zeros(shape)
        self._expression = np.zeros(shape)
        self._deviation: FloatArray = np.ones(shape[1])
        self._error = 0.0
        self._difference = 0.0
        self._linear_difference = 0.0
        self._network_difference = 0.0

    def add_cells(self, rows: IntArray, contributions: Contributions) -> None:
        """Add contributions of cells to the sums of their groups."""
        codes = self._groups.codes[rows]
        in_group = codes >= 0
        network = contributions.network[in_group]
        np.add.at(self._network_sum, codes[in_group], network)
        raised = network * contributions.is_raised[in_group]
        np.add.at(self._raised_network_sum, codes[in_group], raised)
        np.add.at(self._n_explained, codes[in_group], 1)
        difference = contributions.difference
        network_difference = contributions.network_difference
        self._error += contributions.error.sum()
        self._difference += np.abs(difference).sum()
        self._network_difference += np.abs(network_difference).sum()
        self._linear_difference += np.abs(difference - network_difference).sum()

    @torch.no_grad()
    def add_linear_part(self) -> None:
        """Add the linear contributions of all cells, and the expression of the groups.

        The linear contributions of the cells that have one group and target are the product of
        their mean expression and the weights, so that only sums of expression are taken.
        """
        explainer = self._explainer
        module = explainer.module
        groups = self._groups
        pairs, pair_of_cell = np.unique(
            np.stack([groups.codes, groups.targets]), axis=1, return_inverse=True
        )
        codes = torch.from_numpy(np.ravel(pair_of_cell))
        n_pairs = pairs.shape[1]
        baseline = module.clip(explainer.baseline)
        if module.linear is not None:
            baseline = module.linear.clip_and_impute(baseline)
            weights = _centered(module.linear.weights_of_measured(explainer.measured).T)
        baseline = baseline.cpu().double()
        sums = torch.zeros(n_pairs, len(explainer.gene_names), dtype=torch.float64)
        raised_sums = torch.zeros_like(sums)
        squares = torch.zeros_like(sums[0])
        with only_warnings(query_logger):
            for batch in explainer.minibatches():
                x = module.clip(batch.x)
                if module.linear is not None:
                    x = module.linear.clip_and_impute(x)
                x = x.cpu().double()
                codes_of_batch = codes[batch.start : batch.start + len(x)]
                # Many times faster than index_add_.
                indicator = one_hot(codes_of_batch, n_pairs).T.to(x)
                sums += indicator @ x
                raised_sums += indicator @ (x - baseline).clamp(min=0)
                squares += x.square().sum(0)
        n_cells = torch.bincount(codes)
        above_baseline = sums - n_cells[:, None] * baseline
        for i, (group, target) in enumerate(pairs.T):
            if group < 0:
                continue
            mean = above_baseline[i] / int(groups.n_cells[group])
            self._expression[group] += mean.numpy()
            if module.linear is not None:
                weight = (weights @ explainer.label_shares[target]).double().cpu()
                raised_mean = raised_sums[i] / int(groups.n_cells[group])
                self._linear[group] += (mean * weight).numpy()
                self._raised_linear[group] += (raised_mean * weight).numpy()
        if explainer.contrast is not None:
            self._deviation = explainer.contrast.deviation
            return
        # Cells vary around the mean of their group and target.
        variance = (squares - (sums**2 / n_cells[:, None]).sum(0)) / n_cells.sum()
        self._deviation = positive_deviation(variance.numpy())

    def _shared_with_reference(self) -> FloatArray:
        """Weigh the excess of genes in the test of sets: shares from 0 to 2, ``(n_groups, n_genes)``.

        Genes that a group expresses less tell it by absence, which no set is named for.
        """
        is_higher = self._expression > 0
        contrast = self._explainer.contrast
        if contrast is None:
            return is_higher.astype(np.float64)
        groups = self._groups
        shares = groups.label_shares.astype(np.float64)
        shared = np.zeros_like(self._expression)
        for group in range(len(groups.names)):
            targets = groups.targets[groups.codes == group]
            share_of_label = shares[targets].mean(0)
            labels = np.flatnonzero(share_of_label)
            shared[group] = share_of_reference(
                self._expression[group],
                share_of_label[labels] @ contrast.excess[labels],
            )
        return shared

    def tables(self) -> dict[str, Any]:
        """Make the tables of genes and of gene sets with evidence, and sum up the error."""
        explainer = self._explainer
        n_explained = self._n_explained[:, None]
        genes = {
            "genes": self._network_sum / n_explained + self._linear,
            "expression": self._expression,
            "effect_size": self._expression / self._deviation,
            "shared": self._shared_with_reference(),
        }
        raised = self._raised_network_sum / n_explained + self._raised_linear
        gene_names = explainer.gene_names
        members = explainer.members
        if explainer.measured is not None:
            measured = explainer.measured.cpu().numpy()
            genes = {name: values[:, measured] for name, values in genes.items()}
            raised = raised[:, measured]
            gene_names = gene_names[measured]
            members = sp.csc_matrix(members[measured])
        tables: dict[str, Any] = {
            name: _as_table(values, gene_names, self._groups.columns)
            for name, values in genes.items()
        }
        tables |= _gene_set_tables(
            genes, raised, self._groups, gene_names, explainer.set_names, members
        )
        both_parts = self._linear_difference + self._network_difference
        return tables | {
            "completeness_error": float(self._error / max(self._difference, _TINY)),
            "linear_share": float(self._linear_difference / max(both_parts, _TINY)),
        }


def _as_table(
    values: FloatArray, rows: ObjectArray, columns: list[str]
) -> pd.DataFrame:
    """Make a table of rows × groups from values of groups × rows."""
    return pd.DataFrame(values.T, rows, columns, dtype=np.float32)


def _gene_set_tables(
    genes: dict[str, FloatArray],
    raised: FloatArray,
    groups: _Groups,
    gene_names: ObjectArray,
    set_names: ObjectArray,
    members: sp.csc_matrix,
) -> dict[str, pd.DataFrame]:
    """Test the gene sets of each group, and make the tables of those with evidence.

    Parameters
    ----------
    genes
        What :func:`attribute` writes of each gene, by name, each ``(n_groups, n_genes)``.
    raised
        What genes add in cells that express them more than the baseline, ``(n_groups, n_genes)``.
    groups
        The groups.
    gene_names, set_names
        Names of genes and gene sets.
    members
        Which gene is in which set, ``(n_genes, n_gene_sets)``.
    """
    has_genes = np.diff(members.indptr) > 0
    members = members[:, has_genes]
    set_names = set_names[has_genes]
    shared = genes["shared"]
    expressed = np.where(shared > 0, np.maximum(genes["genes"], 0), 0)
    statistics = []
    evidence_of_groups = []
    for i, name in enumerate(groups.names):
        table = gene_set_statistics(
            expressed[i] * shared[i], genes["effect_size"][i] * shared[i], members
        )
        table["contribution"] = members.T @ raised[i]
        statistics.append(table)
        evidence_of_groups.append(
            gene_sets_with_evidence(
                name, expressed[i], members, table, set_names, gene_names
            )
        )
    evidence = pd.concat(evidence_of_groups, ignore_index=True)
    has_evidence = np.isin(set_names, evidence["gene_set"])
    tables = {"evidence": evidence.set_index(evidence.index.astype(str))}
    for field in ("z", "contribution"):
        values = np.array([table[field][has_evidence] for table in statistics])
        tables[field] = _as_table(values, set_names[has_evidence], groups.columns)
    return tables
