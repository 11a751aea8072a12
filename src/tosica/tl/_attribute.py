"""What each gene adds to the score of a label, and the gene sets that these genes make up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from anndata import AnnData
from torch.nn.functional import one_hot

from tosica._checks import (
    ANNDATA,
    ANY_CELLS,
    CellData,
    FileKey,
    Integer,
    OneOf,
    validate_params,
)
from tosica._limits import LIMITS
from tosica._obs import UNKNOWN, file_columns, read_groups
from tosica._parallel import thread_map, thread_pool
from tosica._progress import progress
from tosica._settings import logger, only_warnings, query_logger, warn_user
from tosica._text import only_known
from tosica.data import find_genes, load_table
from tosica.model._inference import LAYER
from tosica.tl._evidence import ANNOTATED_BY_MODEL, check_annotated_by
from tosica.tl._gene_set_evidence import gene_set_statistics, gene_sets_with_evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mudata import MuData
    from numpy.typing import NDArray
    from torch import Tensor

    from tosica.model import TOSICA
    from tosica.model._query import Minibatch
    from tosica.module import TOSICAModule

Baseline: TypeAlias = Literal["reference", "mean"]

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
    adata: AnnData | MuData,
    model: TOSICA,
    groupby: str | None = None,
    *,
    target: str | None = None,
    baseline: Baseline = "reference",
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
) -> AnnData | MuData | None:
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
    those that are no tokens. Where none passes, the label is told by its genes alone.

    Parameters
    ----------
    adata
        Query that ``model`` has annotated.
    model
        The model that annotated it.
    groupby
        Column of ``adata.obs`` with groups of cells to explain. ``None``: the labels,
        ``f"{{key}}_prediction"``. Cells that are called "Unknown" are left out.
        ``f"{{key}}_confident"`` explains labels and groups of labels.
    target
        Label or group of labels to explain in all groups; ``None`` explains the label that each cell has.
    baseline
        What cells are compared with. ``"reference"``: the mean of the labels' mean cells in the
        reference, so that a frequent type does not hide in it. ``"mean"``: the mean of the query.
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
        Replaces ``f"{{key}}_attribution"`` below.
    copy
        Leave ``adata`` as it is and return a copy with the result.

    Returns
    -------
    ``None``, or with ``copy=True`` an AnnData or MuData. Written are, in logits:

    ``adata.uns["tosica_attribution"]["genes"]``
        What each gene of the model adds, the mean over the cells of each group: a table
        ``(n_genes, n_groups)`` float32. :func:`tosica.get.genes_df` reads it. A slash in a group's
        name is a bar in that of its column.
    ``adata.uns["tosica_attribution"]["expression"]``
        Mean expression in the group less that of the baseline, of the same shape.
    ``adata.uns["tosica_attribution"]["effect_size"]``
        The same in standard deviations of the gene within groups (Cohen's d).
    ``adata.uns["tosica_attribution"]["evidence"]``
        Gene sets with evidence, one row a group and set, the strongest first, which
        :func:`tosica.get.gene_sets_df` reads and describes.
    ``adata.uns["tosica_attribution"]["z"]``, ``["contribution"]``
        The test's statistic, and what the genes of the set add together, of each set that has
        evidence in any group, ``(n_sets, n_groups)`` float32.
    ``adata.uns["tosica_attribution"]``
        Also the names of all gene sets, ``groupby``, ``target``, ``baseline``, the most points that
        a cell needed (``n_steps``), the fingerprint of the model, the share of the linear branch
        (``linear_share``), and
        ``completeness_error``: mean absolute difference between the sum over genes and the
        difference of the scores, over the mean absolute difference of the scores.
    ``adata.obsm["X_tosica_attribution"]``
        With ``cells=True``: what the genes of each gene set add in each cell, together,
        ``(n_obs, n_gene_sets)`` float32. A gene counts in each of its sets.
    ``adata.layers["tosica_attribution"]``
        With ``genes=True``: what each gene adds in each cell, ``(n_obs, n_vars)`` float32.

    Raises
    ------
    TypeError
        If an argument is of the wrong type, or ``genes=True`` is asked for a MuData.
    KeyError
        If ``adata`` was not annotated under ``key``, or ``groupby`` is missing.
    ValueError
        If another model annotated ``adata``; if no cell has a label; if the target is no label of
        the model; or as :meth:`tosica.TOSICA.annotate`.

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
    if genes and not isinstance(adata, AnnData):
        raise TypeError(
            "genes=True writes to adata.layers, which a MuData does not have: leave it out."
        )
    (ANNDATA if model.modalities[0].name is None else ANY_CELLS).check("adata", adata)
    check_annotated_by(adata, model, key, mudata=True)
    groupby = groupby or f"{key}_prediction"
    groups = _Groups(adata, model, groupby, target, key)
    source = _Source(model, adata, baseline, layer, use_raw, n_steps, groups.labels)
    rows = (
        np.arange(adata.n_obs)
        if cells or genes
        else groups.draw(n_cells, np.random.default_rng(seed))
    )
    of_sets = (
        np.empty((adata.n_obs, source.members.shape[1]), np.float32) if cells else None
    )
    of_genes = np.empty((adata.n_obs, len(source.genes)), np.float32) if genes else None
    sums = _Sums(source, groups)
    for part, found in source.iter_contributions(rows, groups.targets):
        sums.add_cells(rows[part], found)
        if of_sets is not None:
            of_sets[part] = found.genes @ source.members
        if of_genes is not None:
            of_genes[part] = found.genes
    sums.add_linear_means()
    record = {
        **sums.tables(),
        "model": model.fingerprint,
        "gene_sets": source.set_names,
        "groups": np.array(groups.names, dtype=object),
        "groupby": groupby,
        "target": target or "own label",
        "baseline": baseline,
        "n_steps": max(source.n_steps_used),
    }
    error = record["completeness_error"]
    if error > LIMITS.attribution_error:
        warn_user(
            f"Contributions miss the difference of the scores by {error:.1%} on average: pass a "
            f"larger n_steps than {record['n_steps']}."
        )
    result = adata.copy() if copy else adata
    key_added = key_added or f"{key}_attribution"
    result.uns[key_added] = record
    written = f".uns[{key_added!r}]"
    if of_sets is not None:
        result.obsm[f"X_{key_added}"] = of_sets
        written += f" and .obsm['X_{key_added}']"
    if of_genes is not None:
        wanted = pd.Index(np.asarray(model.get_var_names()))
        indexer = find_genes(
            adata.var_names, wanted, lambda: load_table(adata.var)
        ).indexer
        result.layers[key_added] = np.where(indexer >= 0, of_genes[:, indexer], 0)
        written += f" and .layers[{key_added!r}]"
    logger.info(
        "attribute: %d groups, error %.2g %%; added %s",
        len(groups.names),
        100 * error,
        written,
    )
    return result if copy else None


class Contributions(NamedTuple):
    """What genes add to the scores of some cells.

    ``genes`` is ``(n_cells, n_genes)``, ``network`` the network's part of it. ``difference`` is the
    score of the cell less that of the baseline, ``(n_cells,)``, and ``network_difference`` the
    network's part. ``genes`` sums to ``difference`` but for the error of the integral.
    """

    genes: NDArray[np.float32]
    network: NDArray[np.float32]
    difference: NDArray[np.float32]
    network_difference: NDArray[np.float32]


class _Groups:
    """Groups of cells to explain: ``codes`` is -1 for cells in none.

    ``targets`` is the label or group of labels to explain in each cell, -1 where it has none.
    ``labels`` is the share of each label in what can be explained, ``(n_targets, n_labels)``.
    """

    def __init__(
        self, adata: Any, model: TOSICA, groupby: str, target: str | None, key: str
    ) -> None:
        groups, above = read_groups(adata, groupby), model._hierarchy
        labels = above.names if above else list(model.labels)
        members = above.members if above else np.eye(len(labels))
        if target is None:
            column = groupby if groupby == f"{key}_confident" else f"{key}_prediction"
            own = read_groups(adata, column)
            unknown = [
                name
                for name in own.categories
                if name != UNKNOWN and name not in labels
            ]
            if unknown:
                raise ValueError(
                    f"adata.obs[{column!r}] holds {unknown[0]!r}, which is no label of the model: annotate again."
                )
            code_of = np.array(
                [labels.index(c) if c != UNKNOWN else -1 for c in own.categories],
                dtype=np.int64,
            )
            targets = code_of[own.codes]
        elif target not in labels:
            raise ValueError(
                f"target {target!r} is no label{only_known(target, labels)}"
            )
        else:
            targets = np.full(adata.n_obs, labels.index(target))
        names = [str(name) for name in groups.categories]
        is_explained = (targets >= 0) & np.array([name != UNKNOWN for name in names])[
            groups.codes
        ]
        if not is_explained.any():
            raise ValueError(
                f"No cell has a label to explain: all are {UNKNOWN!r}; name a target."
            )
        kept, codes = np.unique(groups.codes[is_explained], return_inverse=True)
        self.names, self.n_cells = (
            [names[i] for i in kept],
            np.bincount(codes, minlength=len(kept)),
        )
        self.codes = np.full(adata.n_obs, -1, dtype=np.int64)
        self.codes[is_explained] = codes
        self.targets: NDArray[np.int64] = targets
        self.labels: NDArray[np.float32] = (
            members / members.sum(1, keepdims=True)
        ).astype(np.float32)

    def draw(self, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw up to ``most`` cells of each group, in ascending order."""
        drawn = [
            rng.permutation(np.flatnonzero(self.codes == code))[:most]
            for code in range(len(self.names))
        ]
        return np.sort(np.concatenate(drawn))


class _Source:
    """Cells as the model reads them, the baseline, and how many points the integral needs."""

    def __init__(
        self,
        model: TOSICA,
        adata: Any,
        baseline: Baseline,
        layer: Any,
        use_raw: bool,
        n_steps: int | None,
        labels: NDArray[np.float32],
    ):
        self.model, self.module, self.adata = model, model.module, adata
        self.labels = torch.from_numpy(labels).to(self.module.device)
        self._read = {"layer": layer, "use_raw": use_raw}
        self.n_steps, self.n_steps_used = n_steps, {n_steps or _N_STEPS}
        self._points = (
            _POINTS_CPU if self.module.device.type == "cpu" else _POINTS_ACCELERATOR
        )
        self._of_query = baseline == "mean"
        self.baseline = self._baseline()
        named = [modality.gene_sets() for modality in model.modalities]
        self.set_names = np.array(
            [name for names, _ in named for name in names], dtype=object
        )
        self.members = sp.csc_matrix(
            sp.block_diag([members for _, members in named], format="csc")
        )
        self.genes = model.tokens.var_names

    def minibatches(
        self, rows: NDArray[np.integer] | None = None, size: int | None = None
    ) -> Iterator[Minibatch]:
        """Iterate over some cells, by default all."""
        cells = (
            self.adata
            if rows is None or len(rows) == self.adata.n_obs
            else self.adata[rows]
        )
        return self.model.iter_batches(cells, batch_size=size, **self._read)

    def _baseline(self) -> Tensor:
        """Expression that cells are compared with, ``(1, n_genes)``."""
        if not self._of_query:
            if not self.module.baseline.any():
                raise ValueError(
                    "The model does not know the mean cell of its reference, because the original's "
                    "code trained it: pass baseline='mean' for that of the query."
                )
            return self.module.baseline[None]
        if self.adata.n_obs == 1:
            raise ValueError(
                "A single cell is its own mean: pass more cells, or baseline='reference'."
            )
        with only_warnings(query_logger):
            total = sum(
                batch.x.sum(0, dtype=torch.float64) for batch in self.minibatches()
            )
        return (total / self.adata.n_obs).float()[None]

    def iter_contributions(
        self, rows: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> Iterator[tuple[slice, Contributions]]:
        """Compute what genes add in some cells, minibatch by minibatch.

        Parameters
        ----------
        rows
            Positions of the cells.
        targets
            Code of the label to explain in each cell of the query, -1 for the cell's best one.
        """
        target = torch.from_numpy(targets[rows]).to(self.module.device)
        with (
            only_warnings(query_logger),
            thread_pool(self.module.device),
            progress(len(rows), "attribute") as step,
        ):
            n_steps = self.n_steps or _N_STEPS

            def explain(batch: Minibatch) -> tuple[slice, Contributions]:
                part = slice(batch.start, batch.start + len(batch.x))
                return part, self._integrate(batch, target[part], n_steps)

            for part, found in thread_map(
                explain, self.minibatches(rows, max(self._points // n_steps, 1))
            ):
                yield part, found
                step.update(part.stop - part.start)

    def _integrate(
        self, batch: Minibatch, target: Tensor, n_steps: int
    ) -> Contributions:
        """Compute contributions whose error is small in all cells together, with more points where it is not."""
        found = gene_contributions(
            self.module,
            batch,
            self.baseline,
            target,
            self.labels,
            n_steps=n_steps,
            # The query's mean lacks the genes that the query lacks.
            measured_baseline=batch.measured if self._of_query else None,
        )
        self.n_steps_used.add(n_steps)
        missed = np.abs(found.genes.sum(1, dtype=np.float64) - found.difference)
        allowed = LIMITS.attribution_error * np.abs(found.difference)
        if (
            self.n_steps is None
            and missed.sum() > allowed.sum()
            and n_steps < self._points
        ):
            # In halves, which have as many points together as all cells had before.
            for rows in np.array_split(np.flatnonzero(missed > allowed), 2):
                if len(rows):
                    better = self._integrate(
                        batch._replace(x=batch.x[rows]), target[rows], 2 * n_steps
                    )
                    for old, new in zip(found, better, strict=True):
                        old[rows] = new
        return found


def gene_contributions(
    module: TOSICAModule,
    batch: Minibatch,
    baseline: Tensor,
    target: Tensor,
    labels: Tensor,
    *,
    n_steps: int,
    measured_baseline: Tensor | None = None,
) -> Contributions:
    """Divide the difference of the scores of each cell and a baseline among genes.

    Parameters
    ----------
    module
        The network, in evaluation mode.
    batch
        The cells.
    baseline
        Expression that cells are compared with, shape ``(1, n_genes)``.
    target
        Row of ``labels`` that is explained, for each cell, shape ``(n_cells,)``; -1 for the best
        label.
    labels
        Share of each label in a score, shape ``(n_targets, n_labels)``; first the labels alone.
    n_steps
        Points of the quadrature.
    measured_baseline
        Which genes the baseline has, ``(n_genes,)``; by default all.
    """
    x, start = module.clip(batch.x), module.clip(baseline)
    with torch.no_grad():
        logits = module.network_logits(x, batch.modalities)
        if bool((target < 0).any()):
            best = (
                logits
                if module.linear is None
                else logits + module.linear(x, batch.measured)
            )
            target = torch.where(target < 0, best.argmax(1), target)
        ends = _centered(logits) - _centered(
            module.network_logits(start, batch.modalities)
        )
        share = labels[target]
        difference = of_network = (ends * share).sum(1)
    # From -1 to 1, and all points of all cells in one minibatch: (n_steps, n_cells, n_genes).
    nodes, weights = (
        torch.as_tensor(v).to(x) for v in np.polynomial.legendre.leggauss(n_steps)
    )
    points = (
        (start + (nodes[:, None, None] + 1) / 2 * (x - start))
        .flatten(0, 1)
        .requires_grad_()
    )
    with torch.enable_grad():
        scores = _centered(
            module.network_logits(points, batch.modalities)
        ) * share.repeat(n_steps, 1)
        (slopes,) = torch.autograd.grad(scores.sum(), points)
    network = torch.einsum(
        "s,scg->cg", weights / 2, slopes.unflatten(0, (n_steps, -1))
    ) * (x - start)
    genes = network
    if module.linear is not None:
        with torch.no_grad():
            below = module.linear.expression(start, measured_baseline)
            weight = share @ _centered(module.linear.weights_of(batch.measured)[0].T).T
            linear = (module.linear.expression(x, batch.measured) - below) * weight
        genes, difference = network + linear, of_network + linear.sum(1)
    return Contributions(
        *(tensor.cpu().numpy() for tensor in (genes, network, difference, of_network))
    )


def _centered(logits: Tensor) -> Tensor:
    """Logits less their mean over the labels, which no probability depends on."""
    return logits - logits.mean(1, keepdim=True)


class _Sums:
    """Means over the cells of each group, and the error of the sums."""

    def __init__(self, source: _Source, groups: _Groups) -> None:
        self._source, self._groups = source, groups
        shape = (len(groups.names), len(source.genes))
        self._effect = np.zeros(shape)
        self._network, self._linear, self._above = (
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape),
        )
        self._n_drawn = np.zeros(len(groups.names))
        self._error = self._difference = self._of_linear = self._of_network = 0.0

    def add_cells(self, rows: NDArray[np.int64], found: Contributions) -> None:
        """Add contributions of cells to the sums of their groups."""
        codes = self._groups.codes[rows]
        np.add.at(self._network, codes[codes >= 0], found.network[codes >= 0])
        np.add.at(self._n_drawn, codes[codes >= 0], 1)
        self._error += np.abs(
            found.genes.sum(1, dtype=np.float64) - found.difference
        ).sum()
        self._difference += np.abs(found.difference).sum()
        self._of_network += np.abs(found.network_difference).sum()
        self._of_linear += np.abs(found.difference - found.network_difference).sum()

    @torch.no_grad()
    def add_linear_means(self) -> None:
        """Read all cells: the linear part is a product of mean expression and weights."""
        groups, module = self._groups, self._source.module
        pairs, inverse = np.unique(
            np.stack([groups.codes, groups.targets]), axis=1, return_inverse=True
        )
        pair_of_cell = torch.from_numpy(np.ravel(inverse))
        total = torch.zeros(
            pairs.shape[1], len(self._source.genes), dtype=torch.float64
        )
        squares = torch.zeros_like(total[0])
        linear, below = module.linear, module.clip(self._source.baseline)
        with only_warnings(query_logger):
            for start, x, measured, _ in self._source.minibatches():
                x = module.clip(x)
                if linear is not None:
                    x = linear.expression(x, measured)
                x = x.cpu().double()
                # Many times faster than index_add_.
                total += (
                    one_hot(pair_of_cell[start : start + len(x)], len(total)).T.to(x)
                    @ x
                )
                squares += x.square().sum(0)
        if linear is not None:
            below = linear.expression(
                below, measured if self._source._of_query else None
            )
            by_gene = _centered(linear.weights_of(measured)[0].T)
        n = torch.bincount(pair_of_cell)
        above = total - n[:, None] * below.cpu().double()
        for i, (code, label) in enumerate(pairs.T):
            if code < 0:
                continue
            share = above[i] / int(groups.n_cells[code])
            self._above[code] += share.numpy()
            if linear is not None:
                weight = by_gene @ self._source.labels[label]
                self._linear[code] += (share * weight.double().cpu()).numpy()
        # Cells of a group and label vary around their own mean; where nothing varies, there is no unit.
        variance = ((squares - (total**2 / n[:, None]).sum(0)) / n.sum()).numpy()
        self._effect = self._above / np.sqrt(np.where(variance > _TINY, variance, 1))

    def tables(self) -> dict[str, Any]:
        """Make the tables of genes and of gene sets with evidence, and sum up the error."""
        source, names = self._source, self._groups.names
        genes = source.genes
        added = self._network / self._n_drawn[:, None] + self._linear
        # Genes that a group expresses less tell it by what it lacks, which no set is named for.
        expressed = np.where((self._above > 0) & (added > 0), added, 0)
        effects = np.maximum(self._effect, 0)
        statistics = [
            gene_set_statistics(*pair, source.members)
            for pair in zip(expressed, effects, strict=True)
        ]
        evidence = pd.concat(
            [
                gene_sets_with_evidence(
                    name, of_group, source.members, table, source.set_names, genes
                )
                for name, of_group, table in zip(
                    names, expressed, statistics, strict=True
                )
            ],
            ignore_index=True,
        )
        shown = np.isin(source.set_names, evidence["gene_set"])
        columns = file_columns(names, "groupby")

        def as_table(
            values: NDArray[np.floating], rows: NDArray[np.object_]
        ) -> pd.DataFrame:
            return pd.DataFrame(values.T, rows, columns, dtype=np.float32)

        def of_sets(column: str) -> pd.DataFrame:
            return as_table(
                np.array([t[column].to_numpy()[shown] for t in statistics]),
                source.set_names[shown],
            )

        return {
            "genes": as_table(added, genes),
            "expression": as_table(self._above, genes),
            "effect_size": as_table(self._effect, genes),
            "evidence": evidence.set_index(evidence.index.astype(str)),
            "z": of_sets("z"),
            "contribution": of_sets("contribution"),
            "completeness_error": float(self._error / max(self._difference, _TINY)),
            "linear_share": float(
                self._of_linear / max(self._of_linear + self._of_network, _TINY)
            ),
        }
