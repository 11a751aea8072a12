"""What to doubt in an annotation, as one table of checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pandas as pd

from tosica._checks import InstanceOf, Integer, validate_params
from tosica._limits import LIMITS
from tosica._obs import UNKNOWN
from tosica._text import count, decimal, listed, percent
from tosica.data import ExpressionSource
from tosica.tl._evidence import Cells, collect_evidence, read_contributions

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData

    from tosica.tl._evidence import Evidence


class Doubt(NamedTuple):
    """What a rule found: its name, what it measured and the limit, what that means, and what to do."""

    check: str
    value: float
    threshold: float
    finding: str
    reason: str
    advice: str
    severity: Literal["check", "note"] = "check"


_COLUMNS = ["check", "severity", "value", "threshold", "finding", "reason", "advice"]


@validate_params(
    markers=InstanceOf("a dict of label to genes", Mapping, optional=True),
    seed=Integer(least=0),
)
def check(
    adata: AnnData | MuData,
    *,
    labels_key: str | None = None,
    sample_key: str | None = None,
    markers: Mapping[str, Iterable[str]] | None = None,
    layer: str | None = None,
    use_raw: bool = False,
    key: str = "tosica",
    seed: int = 0,
) -> pd.DataFrame:
    """List what may be wrong in an annotation, and what to do about it.

    The rules look for improbable and easily confused labels, labels of few cells, cells that are
    unlike the reference, missing genes, and samples that differ; :doc:`/report` has their limits. A label can be wrong
    without any of these. :func:`tosica.report` prints the same table.

    Parameters
    ----------
    adata
        Cells that ``model.annotate`` has annotated. They are not changed.
    labels_key
        Column of ``adata.obs`` with labels that were known before, to compare with.
    sample_key
        Column of ``adata.obs`` with samples, donors or batches, to compare.
    markers
        Markers that you know: genes of each label, such as ``{"B cell": ["MS4A1", "CD79A"]}``.
    layer, use_raw
        Which matrix of ``adata`` to read, as in :meth:`tosica.TOSICA.annotate`.
    key
        ``key_added`` of ``model.annotate``.
    seed
        Seed of the cells in which markers are looked for.

    Returns
    -------
    One row for each finding, the most serious first, and none if no rule found anything:
    ``check`` (the rule), ``severity`` (``"check"`` or ``"note"``), ``value`` (the worst that was
    measured) and ``threshold`` (its limit), ``finding`` and ``reason`` in words, and ``advice``.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, a column or layer is missing, or ``markers``
        names a label that the model does not have.
    TypeError
        If an argument or a column is of the wrong type.
    ValueError
        If there are no cells, or cells have no label, sample or probability.

    See Also
    --------
    tosica.report : a page with these checks and all that they look at.

    Examples
    --------
    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {
    ...     "gene_sets": np.array(["B cell activation", "phagocytosis"])
    ... }
    >>> adata.obsm["X_tosica"] = np.ones((adata.n_obs, 2), np.float32)
    >>> adata.obs["tosica_prediction"] = adata.obs["bulk_labels"]
    >>> adata.obs["tosica_probability"] = np.where(
    ...     adata.obs["bulk_labels"] == "CD34+", 0.4, 0.9
    ... )
    >>> tosica.tl.check(adata)[["check", "value", "threshold"]]
                  check  value  threshold
    0  improbable label    0.4        0.7
    1         few cells    8.0       10.0
    """
    source = ExpressionSource(adata, layer, use_raw)
    cells = Cells(adata, key, labels_key=labels_key, sample_key=sample_key)
    return as_table(
        collect_evidence(source, cells, markers, seed), read_contributions(adata, cells)
    )


def as_table(
    evidence: Evidence, contributions: Mapping[str, Any] | None
) -> pd.DataFrame:
    """Apply all rules to what is known of an annotation.

    Parameters
    ----------
    evidence
        What is known of it.
    contributions
        What explains it, as :func:`tosica.tl.attribute` writes it to ``uns``, if anything does.
    """
    doubts = [doubt for rule in _RULES for doubt in rule(evidence)]
    error = float((contributions or {}).get("completeness_error", 0.0))
    if error > LIMITS.attribution_error:
        doubts.append(
            Doubt(
                "inexact contributions",
                error,
                LIMITS.attribution_error,
                f"The contributions miss the score by {percent(error)}.",
                "They are approximate.",
                "Run tosica.tl.attribute with a larger n_steps.",
            )
        )
    doubts.sort(key=lambda doubt: doubt.severity != "check")
    return pd.DataFrame(doubts, columns=list(Doubt._fields))[_COLUMNS]


# --------------------------------------------------------------------------- rules


def _missing_genes(evidence: Evidence) -> Iterator[Doubt]:
    record = evidence.cells.record
    missing, of = int(record.get("n_missing_genes", 0)), int(record.get("n_genes", 0))
    if missing:
        share = missing / of
        yield Doubt(
            "missing genes",
            share,
            LIMITS.missing_genes,
            f"The cells lack {count(missing)} of the model's {count(of)} genes ({percent(share)}).",
            "The network sees them as zero; the linear branch imputes them from genes that are correlated with them.",
            "Annotate cells with more of the genes, or train on the genes that both have.",
            severity="check" if share > LIMITS.missing_genes else "note",
        )


def _another_batch(evidence: Evidence) -> Iterator[Doubt]:
    signal = float(evidence.cells.record.get("batch_signal", 0.0))
    if signal > LIMITS.batch_signal:
        yield Doubt(
            "another batch",
            signal,
            LIMITS.batch_signal,
            "The cells differ from the reference in what all labels share.",
            "So do cells of another technology, laboratory or condition. Of the difference, "
            f"{percent(signal)} is more than two samples of the same cells have.",
            "Learn from these cells: model.annotate(adata, adapt=True), or tosica annotate --adapt.",
            severity="note",
        )


def _improbable_labels(evidence: Evidence) -> Iterator[Doubt]:
    cells = evidence.cells
    is_unknown = cells.predicted == UNKNOWN
    if is_unknown.any():
        share = float(is_unknown.mean())
        cutoff = decimal(float(cells.record.get("cutoff", 0.0)))
        yield Doubt(
            "unknown cells",
            share,
            LIMITS.unknown,
            f"{count(is_unknown.sum(), 'cell')} ({percent(share)}) are called {UNKNOWN!r}.",
            f"Their best label is less probable than the cutoff of {cutoff}.",
            "See on the map whether they lie between types, are of poor quality, or of a type not in the reference.",
            severity="check" if share > LIMITS.unknown else "note",
        )
    medians = cells.by_type(cells.probability).median()
    low = medians[medians < LIMITS.median_probability]
    if len(low):
        yield Doubt(
            "improbable label",
            float(low.min()),
            LIMITS.median_probability,
            f"The probability is low in {listed(list(low.index))}.",
            _low_probability(cells, str(low.idxmin()), decimal(float(low.min()))),
            "Look at their markers before you use these labels, or merge them with what they are confused with.",
        )


def _low_probability(cells: Cells, label: str, median: str) -> str:
    if (cells.predicted == label).sum() == 1:
        return f"It is {median} in the only cell of {label!r}."
    return f"In half of the cells of {label!r} it is below {median}."


def _unlike_the_reference(evidence: Evidence) -> Iterator[Doubt]:
    cells = evidence.cells
    if cells.novelty_pvalue is None:
        return
    is_novel = cells.novelty_pvalue <= LIMITS.pvalue
    by_chance = f"by chance it would be {percent(LIMITS.pvalue)}"
    share = float(is_novel.mean())
    if share > LIMITS.novel_cells:
        yield Doubt(
            "unlike the reference",
            share,
            LIMITS.novel_cells,
            f"{percent(share)} of all cells are unlike the reference"
            f"{' after the correction for batches' if cells.is_corrected else ''}; {by_chance}.",
            "So many hint at another batch, technology or tissue rather than at a new type. Probabilities are then not "
            "calibrated, either.",
            "Label some cells by hand and run model.recalibrate, or add cells of this batch to the reference."
            if cells.is_corrected
            else "Run tosica.tl.novelty(adata, model), which takes off what the cells have in common.",
        )
        return
    of_label = cells.by_type(is_novel).agg(["mean", "size"])
    many = of_label[
        (of_label["mean"] > LIMITS.novel_cells_of_label)
        & (of_label["size"] >= LIMITS.enough_cells)
    ]
    if len(many):
        yield Doubt(
            "unlike the reference",
            float(many["mean"].max()),
            LIMITS.novel_cells_of_label,
            f"Many cells of {listed(list(many.index))} are unlike the reference.",
            f"More than {percent(LIMITS.novel_cells_of_label)} of them have a p-value up to {LIMITS.pvalue:g}; "
            f"{by_chance}.",
            "They may be a type or state that the reference lacks, doublets or damaged cells. Colour the map by "
            "novelty, and look for clusters.",
        )


def _confused_labels(evidence: Evidence) -> Iterator[Doubt]:
    close = [
        (label, *other)
        for label, other in evidence.cells.second.items()
        if other[1] >= LIMITS.second_probability
    ]
    close.sort(key=lambda each: -each[2])
    if close:
        pairs = [
            f"{label!r} with {other!r} ({decimal(mean)})"
            for label, other, mean in close
        ]
        yield Doubt(
            "easily confused",
            close[0][2],
            LIMITS.second_probability,
            f"Labels that are easily confused: {listed(pairs)}.",
            "The number is the mean probability of the second label in cells of the first, where it is second best.",
            "Take these labels together, or tell them apart by markers.",
        )


def _few_cells(evidence: Evidence) -> Iterator[Doubt]:
    n_cells = evidence.cells.by_type(evidence.cells.codes).size()
    few = n_cells[n_cells < LIMITS.few_cells]
    if len(few):
        named = [f"{label} ({n})" for label, n in few.items()]
        yield Doubt(
            "few cells",
            float(few.min()),
            LIMITS.few_cells,
            f"Labels with fewer than {LIMITS.few_cells} cells: {listed(named)}.",
            "So few cells can be mistakes. Among thousands of cells, some get a wrong label.",
            "Look at each of them on the map before you report the type.",
        )


def _samples_that_differ(evidence: Evidence) -> Iterator[Doubt]:
    cells = evidence.cells
    if cells.samples is None or len(cells.samples.categories) < 2:
        return
    is_low = cells.probability < LIMITS.probability
    overall = float(is_low.mean())
    shares = pd.Series(is_low).groupby(pd.Series(cells.samples), observed=False).mean()
    limit = max(LIMITS.improbable_in_sample, 2 * overall)
    worse = shares[shares > limit]
    if len(worse):
        named = [f"{name} ({percent(share)})" for name, share in worse.items()]
        yield Doubt(
            "samples that differ",
            float(worse.max()),
            limit,
            f"Samples with more improbable labels than others: {listed(named)}.",
            f"Over all samples, {percent(overall)} of the cells have a probability below {LIMITS.probability}.",
            "Compare the quality of these samples with that of the others.",
        )
    counts = pd.crosstab(cells.predicted, cells.samples)
    # A sample with most of the cells has most of many labels, too.
    small = counts.loc[:, counts.sum() < cells.n_obs / 2]
    of_label = small.div(counts.sum(axis=1), axis=0)[
        counts.sum(axis=1) >= LIMITS.enough_cells
    ]
    single: Any = of_label.drop(UNKNOWN, errors="ignore").unstack()
    single = single[single > LIMITS.one_sample]
    if len(single):
        named = [f"{label} ({sample})" for sample, label in single.index]
        yield Doubt(
            "labels of one sample",
            float(single.max()),
            LIMITS.one_sample,
            f"Labels that come almost only from one sample: {listed(named)}.",
            "This may be biology, or an effect of that sample's batch.",
            "Look whether the sample differs in other types, too.",
            severity="note",
        )


def _overconfidence(evidence: Evidence) -> Iterator[Doubt]:
    cells = evidence.cells
    agreed, expected = cells.agreement(), float(cells.probability.mean())
    if agreed is not None and expected - agreed[0] > LIMITS.overconfidence:
        yield Doubt(
            "too sure",
            expected - agreed[0],
            LIMITS.overconfidence,
            f"{percent(agreed[0])} of the labels agree with adata.obs[{cells.labels_key!r}], but the mean probability "
            f"is {decimal(expected)}.",
            "The probabilities are too high for these cells, or the known labels follow another scheme.",
            "Run model.recalibrate with some of the known labels, and annotate again.",
        )


def _known_markers(evidence: Evidence) -> Iterator[Doubt]:
    known = evidence.known[evidence.known["highest_in"] != ""]
    agree = (
        (known["highest_in"] == known["label"])
        .groupby(known["label"], sort=False)
        .agg(["sum", "count", "mean"])
    )
    wrong = agree[agree["mean"] < LIMITS.markers]
    if len(wrong):
        named = [
            f"{label} ({n} of {of})" for label, n, of, _ in wrong.itertuples(name=None)
        ]
        yield Doubt(
            "markers",
            float(wrong["mean"].min()),
            LIMITS.markers,
            f"Most known markers are higher in another label: {listed(named)}.",
            "In brackets is how many of them are expressed most in the label's own cells.",
            "The label may be wrong: look at these genes in your own plots.",
        )


_RULES: tuple[Callable[[Evidence], Iterator[Doubt]], ...] = (
    _missing_genes,
    _another_batch,
    _improbable_labels,
    _unlike_the_reference,
    _confused_labels,
    _few_cells,
    _samples_that_differ,
    _overconfidence,
    _known_markers,
)
