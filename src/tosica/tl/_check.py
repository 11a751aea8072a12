"""What to doubt in an annotation, as one table of checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pandas as pd

from tosica._checks import CellData, Flag, InstanceOf, Integer, String, validate_params
from tosica._limits import LIMITS
from tosica._obs import UNKNOWN
from tosica._settings import count, count_cells, decimal, listed, percent
from tosica.data import ExpressionSource
from tosica.model import TOSICA
from tosica.tl._evidence import Evidence, collect_evidence

if TYPE_CHECKING:
    from anndata import AnnData


class Doubt(NamedTuple):
    """A row of the table: the rule, what it measured, what that means, and what to do."""

    check: str
    severity: Literal["check", "note"]
    value: float
    threshold: float
    finding: str
    reason: str
    advice: str


@validate_params(
    adata=CellData(),
    model=InstanceOf("the TOSICA model that annotated adata", TOSICA, optional=True),
    labels_key=String(optional=True),
    sample_key=String(optional=True),
    markers=InstanceOf("a dict of label to genes", Mapping, optional=True),
    layer=String(optional=True),
    use_raw=Flag(),
    key=String(),
    seed=Integer(least=0),
)
def check(
    adata: AnnData,
    model: TOSICA | None = None,
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

    The rules look for improbable labels, labels of few cells, cells that are unlike the reference,
    missing genes, and samples that differ; :doc:`/report` has their limits. A label can be wrong
    without any of these. :func:`tosica.report` prints the same table.

    Parameters
    ----------
    adata
        Cells that ``model.annotate`` has annotated. They are not changed.
    model
        The model that annotated ``adata``. With it, missing genes are counted, and labels that are
        easily confused are found. Without it, the latter needs ``probabilities=True`` in
        ``annotate``.
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
        Seed of the cells that the model is asked about.

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
        If there are no cells, cells have no label, sample or probability, or another model
        annotated ``adata``.

    See Also
    --------
    tosica.report : a page with these checks and all that they look at.

    Examples
    --------
    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> adata.obsm["X_tosica"] = np.ones((adata.n_obs, 2), np.float32)
    >>> adata.obs["tosica_prediction"] = adata.obs["bulk_labels"]
    >>> adata.obs["tosica_probability"] = np.where(adata.obs["bulk_labels"] == "CD34+", 0.4, 0.9)
    >>> tosica.tl.check(adata)[["check", "value", "threshold"]]
                  check  value  threshold
    0  improbable label    0.4        0.7
    1         few cells    8.0       10.0
    """
    evidence = collect_evidence(
        ExpressionSource(adata, layer, use_raw),
        model,
        labels_key=labels_key,
        sample_key=sample_key,
        markers=markers,
        key=key,
        seed=seed,
    )
    return as_table(adata, evidence, asked_model=model is not None)


def as_table(adata: AnnData, evidence: Evidence, *, asked_model: bool) -> pd.DataFrame:
    """Apply all rules to what is known of an annotation.

    Parameters
    ----------
    adata
        The annotated cells.
    evidence
        What is known of them.
    asked_model
        Leave out what :func:`tosica.tl.attribute` wrote, as the model tells it anew.
    """
    doubts = [doubt for rule in _RULES for doubt in rule(evidence)]
    if not asked_model:
        doubts += _contributions(adata, evidence)
    doubts.sort(key=lambda doubt: doubt.severity != "check")
    return pd.DataFrame(doubts, columns=list(Doubt._fields))


# --------------------------------------------------------------------------- rules


def _missing_genes(evidence: Evidence) -> Iterator[Doubt]:
    missing, of = evidence.missing_genes or (0, 1)
    if missing:
        share = missing / of
        yield Doubt(
            "missing genes",
            "check" if share > LIMITS.missing_genes else "note",
            share,
            LIMITS.missing_genes,
            f"The cells lack {count(missing)} of the model's {count(of)} genes ({percent(share)}).",
            "The network sees these genes as zero. The linear branch imputes them from genes that "
            "are correlated in the reference.",
            "Annotate cells with more of the genes, or train on the genes that both have.",
        )


def _unknown_cells(evidence: Evidence) -> Iterator[Doubt]:
    cells = evidence.cells
    n = int(cells.is_unknown.sum())
    if n:
        share = n / cells.n_obs
        cutoff = decimal(float(cells.record.get("cutoff", 0.0)))
        yield Doubt(
            "unknown cells",
            "check" if share > LIMITS.unknown else "note",
            share,
            LIMITS.unknown,
            f"{count_cells(n)} ({percent(share)}) are called {UNKNOWN!r}.",
            f"Their best label is less probable than the cutoff of {cutoff}.",
            "See where they are on the map. They may lie between two types, be of poor "
            "quality, or be of a type that the reference lacks.",
        )


def _improbable_labels(evidence: Evidence) -> Iterator[Doubt]:
    cells = evidence.cells
    medians = {cells.labels[code]: float(np.median(cells.probability[cells.rows(code)])) for code in cells.types}
    low = {label: m for label, m in medians.items() if m < LIMITS.median_probability}
    if low:
        worst = min(low, key=lambda label: low[label])
        yield Doubt(
            "improbable label",
            "check",
            low[worst],
            LIMITS.median_probability,
            f"The probability is low in {listed(list(low))}.",
            f"In half of the cells of {worst!r} it is below {decimal(low[worst])}.",
            "Look at their markers before you use these labels, or merge them with the type that "
            "they are confused with.",
        )


def _unlike_the_reference(evidence: Evidence) -> Iterator[Doubt]:
    cells = evidence.cells
    if cells.novelty_pvalue is None:
        return
    small = cells.novelty_pvalue <= LIMITS.pvalue
    by_chance = percent(LIMITS.pvalue)
    if small.mean() > LIMITS.novel_cells:
        after = " after the correction for batches" if cells.is_corrected else ""
        yield Doubt(
            "unlike the reference",
            "check",
            float(small.mean()),
            LIMITS.novel_cells,
            f"{percent(float(small.mean()))} of all cells are unlike the reference{after}.",
            f"By chance it would be {by_chance}. So many hint at another batch, technology or "
            "tissue rather than at a new type. Probabilities are then not calibrated, either.",
            "Label some cells by hand and run model.recalibrate, or add cells of this batch to the reference."
            if cells.is_corrected
            else "Run tosica.tl.novelty(adata, model), which takes off what the cells have in common.",
        )
        return
    shares = {code: float(small[cells.rows(code)].mean()) for code in cells.types}
    many = [
        code
        for code, share in shares.items()
        if share > LIMITS.novel_cells_of_label and cells.n_cells[code] >= LIMITS.enough_cells
    ]
    if many:
        yield Doubt(
            "unlike the reference",
            "check",
            max(shares[code] for code in many),
            LIMITS.novel_cells_of_label,
            f"Many cells of {listed([cells.labels[code] for code in many])} are unlike the reference.",
            f"More than {percent(LIMITS.novel_cells_of_label)} of them have a p-value up to "
            f"{LIMITS.pvalue:g}; by chance it would be {by_chance}.",
            "They may be a type or state that the reference lacks, doublets or damaged cells. "
            "Colour the map by novelty, and look for clusters.",
        )


def _confused_labels(evidence: Evidence) -> Iterator[Doubt]:
    close = sorted(
        (
            (label, other)
            for label, other in (evidence.second or {}).items()
            if other.probability >= LIMITS.second_probability
        ),
        key=lambda pair: -pair[1].probability,
    )
    if close:
        pairs = [f"{a!r} with {b.label!r} ({decimal(b.probability)})" for a, b in close]
        yield Doubt(
            "easily confused",
            "check",
            close[0][1].probability,
            LIMITS.second_probability,
            f"Labels that are easily confused: {listed(pairs)}.",
            "The number is the mean probability that the second label has in cells of the first.",
            "Take these labels together, or tell them apart by markers.",
        )


def _few_cells(evidence: Evidence) -> Iterator[Doubt]:
    cells = evidence.cells
    few = [code for code in cells.types if cells.n_cells[code] < LIMITS.few_cells]
    if few:
        named = [f"{cells.labels[code]} ({cells.n_cells[code]})" for code in few]
        yield Doubt(
            "few cells",
            "check",
            float(min(cells.n_cells[few])),
            LIMITS.few_cells,
            f"Fewer than {LIMITS.few_cells} cells each: {_labels(few)} {listed(named)}.",
            "So few cells can be mistakes. Among thousands of cells, some get a wrong label.",
            "Look at each of them on the map before you report the type.",
        )
    absent = [label for label in cells.all_labels if label not in cells.labels]
    if absent:
        yield Doubt(
            "absent label",
            "note",
            len(absent),
            0,
            f"No cell has the {_labels(absent)} {listed(absent)}, which the model knows.",
            "The type may be absent, or its cells got another label.",
            "If you expect the type, look for its markers in the cells.",
        )


def _samples_that_differ(evidence: Evidence) -> Iterator[Doubt]:
    cells = evidence.cells
    if cells.samples is None or len(cells.samples.categories) < 2:
        return
    low = cells.probability < LIMITS.probability
    shares = pd.Series(low).groupby(pd.Series(cells.samples), observed=False).mean()
    worse = shares[(shares > LIMITS.improbable_in_sample) & (shares > 2 * low.mean())]
    if len(worse):
        named = [f"{name} ({percent(share)})" for name, share in worse.items()]
        yield Doubt(
            "samples that differ",
            "check",
            float(worse.max()),
            max(LIMITS.improbable_in_sample, 2 * float(low.mean())),
            f"Samples with more improbable labels than others: {listed(named)}.",
            f"Over all samples, {percent(float(low.mean()))} of the cells have a probability below "
            f"{LIMITS.probability}.",
            "Compare the quality of these samples with that of the others.",
        )
    single = {}
    of_all = pd.Series(cells.samples).value_counts(normalize=True)
    for code in cells.types:
        of_label = pd.Series(cells.samples[cells.codes == code]).value_counts(normalize=True)
        share, sample = float(of_label.iloc[0]), of_label.index[0]
        enough = cells.n_cells[code] >= LIMITS.enough_cells
        if enough and share > LIMITS.one_sample and of_all[sample] < 0.5:
            single[f"{cells.labels[code]} ({sample})"] = share
    if single:
        yield Doubt(
            "labels of one sample",
            "note",
            max(single.values()),
            LIMITS.one_sample,
            f"Labels that come almost only from one sample: {listed(list(single))}.",
            "This may be biology, or an effect of that sample's batch.",
            "Look whether the sample differs in other types, too.",
        )


def _overconfidence(evidence: Evidence) -> Iterator[Doubt]:
    cells = evidence.cells
    agreed, expected = cells.agreement(), float(cells.probability.mean())
    if agreed is not None and expected - agreed[0] > LIMITS.overconfidence:
        yield Doubt(
            "too sure",
            "check",
            expected - agreed[0],
            LIMITS.overconfidence,
            f"{percent(agreed[0])} of the labels agree with adata.obs[{cells.labels_key!r}], but "
            f"the mean probability is {decimal(expected)}.",
            "The probabilities are too high for these cells, or the known labels follow another scheme.",
            "Run model.recalibrate with some of the known labels, and annotate again.",
        )


def _known_markers(evidence: Evidence) -> Iterator[Doubt]:
    shares, named = [], []
    for label, markers in evidence.known.items():
        highest = [marker.highest_in == label for marker in markers if marker.highest_in]
        if highest and np.mean(highest) < LIMITS.markers:
            shares.append(float(np.mean(highest)))
            named.append(f"{label} ({sum(highest)} of {len(highest)})")
    if named:
        yield Doubt(
            "markers",
            "check",
            min(shares),
            LIMITS.markers,
            f"Most known markers are higher in another label: {listed(named)}.",
            "In brackets is how many of them are expressed most in the label's own cells.",
            "The label may be wrong: look at these genes in your own plots.",
        )


def _contributions(adata: AnnData, evidence: Evidence) -> Iterator[Doubt]:
    key = f"{evidence.cells.key}_attribution"
    record = adata.uns.get(key)
    if not isinstance(record, Mapping):
        return
    if str(record.get("model")) != str(evidence.cells.record.get("model")):
        yield Doubt(
            "results of another model",
            "note",
            1,
            0,
            f"Results of another model were left out: adata.uns[{key!r}].",
            "They explain other labels.",
            "Run tosica.tl.attribute(adata, model) again.",
        )
        return
    error = float(record.get("completeness_error", 0.0))
    if error > LIMITS.attribution_error:
        yield Doubt(
            "inexact contributions",
            "check",
            error,
            LIMITS.attribution_error,
            f"The contributions miss the score by {percent(error)}.",
            "They are approximate.",
            "Run tosica.tl.attribute with a larger n_steps.",
        )


def _labels(names: list[str] | list[int]) -> str:
    return "label" if len(names) == 1 else "labels"


_RULES: tuple[Callable[[Evidence], Iterator[Doubt]], ...] = (
    _missing_genes,
    _unknown_cells,
    _improbable_labels,
    _unlike_the_reference,
    _confused_labels,
    _few_cells,
    _samples_that_differ,
    _overconfidence,
    _known_markers,
)
