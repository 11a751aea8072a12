"""Checks of an annotation, and verdicts on its labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from tosica._limits import LIMITS
from tosica._obs import UNKNOWN
from tosica._text import call, count, decimal, in_python, listed, percent
from tosica._validate import InstanceOf, Integer, validate_params
from tosica.data import ExpressionSource
from tosica.tl._evidence import Cells, collect_evidence, read_contributions

if TYPE_CHECKING:
    from tosica._types import AnnOrMuData
    from tosica.tl._evidence import Evidence


class Doubt(NamedTuple):
    """Finding of a rule: its measure and limit, a sentence, the reason, and what to do."""

    check: str
    value: float
    threshold: float
    finding: str
    reason: str
    advice: str
    severity: Literal["check", "note"] = "check"


# Clusters that are named.
_N_CLUSTERS = 3
# What makes names of genes unique in some files.
_ENSEMBL_SUFFIX = re.compile(r"_ENS[A-Z]*\d+")
_COLUMNS = ["check", "severity", "value", "threshold", "finding", "reason", "advice"]


@validate_params(
    markers=InstanceOf("a dict of label to genes", Mapping, optional=True),
    seed=Integer(least=0),
)
def check(
    adata: AnnOrMuData,
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
        Cells without one, or with one that says so, such as "Unassigned", do not count.
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
    """Apply all rules to an annotation.

    Parameters
    ----------
    evidence
        The annotation, the expression of some cells, and known markers.
    contributions
        Its explanation, as :func:`tosica.tl.attribute` writes it to ``uns``, if there is one.
    """
    doubts = [rule(evidence.cells) for rule in _RULES]
    doubts.append(_markers(evidence.known))
    if contributions is not None:
        doubts.append(_inexact_contributions(contributions))
    findings = [doubt for doubt in doubts if doubt is not None]
    findings.sort(key=lambda doubt: doubt.severity != "check")
    return pd.DataFrame(findings, columns=list(Doubt._fields))[_COLUMNS]


# --------------------------------------------------------------------------- rules


def _other_genes(cells: Cells) -> Doubt | None:
    pvalue = float(cells.record.get("genes_pvalue", 0.0))
    if pvalue <= LIMITS.pvalue:
        return None
    return Doubt(
        "other genes",
        pvalue,
        LIMITS.pvalue,
        "The genes may have names of other genes, so that no label means anything.",
        "Neither does their mean expression follow that in the reference, nor do labels differ in the same genes "
        f"(p = {pvalue:.2g} by permuted genes).",
        "Compare names and values of genes with the source of the cells: a table that was sorted, or names that were "
        "joined by position, mix them up.",
    )


def _another_tissue(cells: Cells) -> Doubt | None:
    likeness = _likeness(cells)
    if likeness >= LIMITS.likeness:
        return None
    return Doubt(
        "another tissue",
        likeness,
        LIMITS.likeness,
        "The cells may be of another tissue or species than the reference, whatever their labels are.",
        f"What their genes add to the labels has a correlation of {decimal(likeness)} with what they add in the "
        "reference. Blood of other laboratories has 0.90 or more; breast by a model of blood has 0.2 to 0.6, and "
        "nuclei by a model of cells 0.62.",
        "Look at markers of the labels. If tissue or species is another, take another reference.",
    )


def _likeness(cells: Cells) -> float:
    """Correlation of what tells labels apart in query and reference, 1 if it is unknown."""
    return float(cells.record.get("likeness", 1.0))


def _missing_genes(cells: Cells) -> Doubt | None:
    record = cells.record
    n_missing = int(record.get("n_missing_genes", 0))
    n_genes = int(record.get("n_genes", 0))
    if not n_missing:
        return None
    share = n_missing / n_genes
    # In the precision of the log, so that both name the same labels.
    changes = np.asarray(record.get("label_changes", ()), dtype=np.float32)
    changed = pd.Series(changes, cells.all_labels[: len(changes)])
    changed = changed[changed > LIMITS.changed_by_genes]
    if not changed.empty:
        return Doubt(
            "missing genes",
            float(changed.max()),
            LIMITS.changed_by_genes,
            f"The cells lack {percent(share)} of the model's genes, so that many cells of these labels get another: "
            f"{_with_shares(changed)}.",
            "In brackets is the share, estimated from cells that were made up around the reference's means.",
            "Do not use these labels; annotate cells with more of the genes, or train on the genes that both have.",
        )
    return Doubt(
        "missing genes",
        share,
        LIMITS.missing_genes,
        f"The cells lack {count(n_missing)} of the model's {count(n_genes)} genes ({percent(share)}).",
        "The network sees them as zero; the linear branch imputes them from genes that are correlated with them.",
        "Annotate cells with more of the genes, or train on the genes that both have.",
        severity="check" if share > LIMITS.missing_genes else "note",
    )


def _another_batch(cells: Cells) -> Doubt | None:
    signal = float(cells.record.get("batch_signal", 0.0))
    if signal <= LIMITS.batch_signal:
        return None
    others = "cells of another technology, laboratory or condition"
    n_missing = int(cells.record.get("n_missing_genes", 0))
    if n_missing > LIMITS.missing_genes * int(cells.record.get("n_genes", 0)):
        others += ", and cells that lack genes, which raises all others"
    advice = (
        f"Learn from these cells: {in_python('model.annotate(adata, adapt=True), or ')}tosica annotate --adapt. "
        "Look at the clusters of novelty first: a type that is missing becomes more probable."
    )
    if _likeness(cells) < LIMITS.likeness:
        advice = "Do not adapt the model to another tissue: wrong labels become more probable."
    return Doubt(
        "another batch",
        signal,
        LIMITS.batch_signal,
        "The cells differ from the reference in what all labels share.",
        f"So do {others}. Two samples of the same cells would have {percent(1 - signal)} of this difference.",
        advice,
        severity="note",
    )


def _adapted_without_clusters(cells: Cells) -> Doubt | None:
    """Find a model that was adapted to cells whose clusters :func:`tosica.tl.novelty` did not score."""
    if not cells.record.get("adapted") or cells.has_novelty_of_clusters:
        return None
    return Doubt(
        "clusters not scored",
        0.0,
        0.0,
        "The model was adapted to these cells, whose clusters were not scored for types that the reference lacks.",
        "Adapting makes the labels of such types more probable, so that no other rule finds them.",
        f"Score the clusters with the adapted model: {call('tosica.tl.novelty', 'adata, model.adapted_')}.",
        severity="note",
    )


def _unknown_cells(cells: Cells) -> Doubt | None:
    is_unknown = cells.predicted == UNKNOWN
    if not is_unknown.any():
        return None
    share = float(is_unknown.mean())
    cutoff = decimal(float(cells.record.get("cutoff", 0.0)))
    return Doubt(
        "unknown cells",
        share,
        LIMITS.share_unknown,
        f"{count(is_unknown.sum(), 'cell')} ({percent(share)}) are called {UNKNOWN!r}.",
        f"Their best label is less probable than the cutoff of {cutoff}.",
        "See on the map whether they lie between types, are of poor quality, or of a type not in the reference.",
        severity="check" if share > LIMITS.share_unknown else "note",
    )


def _improbable_labels(cells: Cells) -> Doubt | None:
    medians = cells.by_type(cells.probability).median()
    low = medians[medians < LIMITS.median_probability]
    if low.empty:
        return None
    label = str(low.idxmin())
    median = decimal(float(low.min()))
    reason = f"In half of the cells of {label!r} it is below {median}."
    if (cells.predicted == label).sum() == 1:
        reason = f"It is {median} in the only cell of {label!r}."
    return Doubt(
        "improbable label",
        float(low.min()),
        LIMITS.median_probability,
        f"The probability is low in {listed(list(low.index))}.",
        reason,
        "Look at their markers before you use these labels, or merge them with what they are confused with.",
    )


def _labels_improbable_before(cells: Cells) -> Doubt | None:
    medians = _medians_before(cells)
    low = medians[medians < LIMITS.median_probability]
    if low.empty:
        return None
    return Doubt(
        "improbable before adapting",
        float(low.min()),
        LIMITS.median_probability,
        f"Before the model learnt from these cells, the probability was low in {_with_medians(low)}.",
        "In brackets is the median. A model that was adapted is sure of types that the reference lacks, too: it took "
        "them for the label that is most like them.",
        "Look at their markers before you use these labels.",
    )


def _medians_before(cells: Cells) -> pd.Series:
    """Median probability in the cells of each label before the model was adapted; empty if it was not."""
    if cells.probability_before is None:
        return pd.Series(dtype=float)
    medians: pd.Series = cells.by_type(cells.probability_before).median()
    return medians


def _with_medians(medians: pd.Series) -> str:
    """List names with their medians in brackets."""
    return listed([f"{name} ({decimal(median)})" for name, median in medians.items()])


def _wrong_labels(cells: Cells) -> Doubt | None:
    return _disagreement(
        cells,
        "precision",
        "wrong labels",
        "Many cells with these labels are known as another type",
        f"In brackets is the share of the label's cells that have another type in adata.obs[{cells.labels_key!r}].",
        "Look at their markers before you use these labels, or merge them with what they are confused with.",
    )


def _missed_labels(cells: Cells) -> Doubt | None:
    return _disagreement(
        cells,
        "recall",
        "missed labels",
        "Many cells of these known types have another label, or none",
        "In brackets is the share of the type's cells that have another label, or none.",
        "Too few cells have these labels: see which labels the others have.",
    )


def _disagreement(
    cells: Cells, measure: str, name: str, finding: str, reason: str, advice: str
) -> Doubt | None:
    """Find labels whose precision or recall by the known labels is low."""
    scores = score_labels(cells)
    shares = {label: getattr(scores[label], measure) for label in scores}
    low = pd.Series(shares, dtype=float)
    low = low[low < LIMITS.agreement]
    if low.empty:
        return None
    finding = f"{finding}: {_with_shares(1 - low)}."
    return Doubt(name, float(low.min()), LIMITS.agreement, finding, reason, advice)


def _with_shares(shares: pd.Series) -> str:
    """List names with their shares in brackets."""
    return listed([f"{name} ({percent(share)})" for name, share in shares.items()])


def _cells_unlike_the_reference(cells: Cells) -> Doubt | None:
    share = _novel_share(cells)
    if share <= LIMITS.novel_cells:
        return None
    corrected = ""
    command = call("tosica.tl.novelty", "adata, model")
    advice = f"Run {command}, which takes off what the cells have in common."
    if cells.is_corrected:
        corrected = " after the correction for batches"
    if cells.has_novelty_of_clusters:
        advice = "Label some cells by hand and run model.recalibrate, or add cells of this batch to the reference."
    return Doubt(
        "unlike the reference",
        share,
        LIMITS.novel_cells,
        f"{percent(share)} of all cells are unlike the reference{corrected}; "
        f"by chance it would be {percent(LIMITS.pvalue)}.",
        "So many hint at another batch, technology or tissue, or at a query of a new type alone. Probabilities are "
        "then not calibrated, either.",
        advice,
    )


def _labels_unlike_the_reference(cells: Cells) -> Doubt | None:
    if cells.novelty_pvalue is None or _novel_share(cells) > LIMITS.novel_cells:
        return None
    shares = _novel_share_of_labels(cells)
    novel = shares[shares > LIMITS.novel_cells_of_label]
    if novel.empty:
        return None
    return Doubt(
        "unlike the reference",
        float(novel.max()),
        LIMITS.novel_cells_of_label,
        f"Many cells of {listed(list(novel.index))} are unlike the reference.",
        f"More than {percent(LIMITS.novel_cells_of_label)} of them have a p-value up to {LIMITS.pvalue:g}; "
        f"by chance it would be {percent(LIMITS.pvalue)}.",
        "They may be a type or state that the reference lacks, doublets or damaged cells. Color the map by "
        "novelty, and look for clusters.",
    )


def _cluster_unlike_its_label(cells: Cells) -> Doubt | None:
    """Name the clusters that are furthest from their labels."""
    clusters = cells.clusters
    if clusters is None:
        return None
    candidates = clusters[(clusters["score"] > 0) & (clusters["genes"] != "")]
    similar_to = candidates["similar_to"]
    n_cells_like = candidates.groupby("similar_to")["n_cells"].sum()
    of_candidates = n_cells_like.reindex(candidates["cluster"], fill_value=0)
    n_cells = candidates["n_cells"] + of_candidates.to_numpy()
    # A cell that no other is like is no cluster.
    leading = candidates[(similar_to == "") & (n_cells > 1)].head(_N_CLUSTERS)
    if leading.empty:
        return None
    highest = float(leading["score"].iloc[0])
    descriptions = []
    for _, cluster in leading.iterrows():
        size = f"{count(cluster['n_cells'], 'cell')}, score {cluster['score']:.1f}"
        n_cells_alike = candidates["n_cells"][similar_to == cluster["cluster"]]
        if len(n_cells_alike):
            clusters_alike = count(len(n_cells_alike), "cluster")
            size += f", and {n_cells_alike.sum()} in {clusters_alike} like it"
        genes = _ENSEMBL_SUFFIX.sub("", cluster["genes"])
        descriptions.append(
            f"{cluster['cluster']!r} ({size}) expresses {genes} more than {cluster['label']!r} of the reference"
        )
    finding = f"Furthest from their label: {'; '.join(descriptions)}."
    reason = "These are the clusters with the highest novelty."
    place = in_python(
        f"adata.obs[{cells.key + '_novelty_group'!r}]",
        f"{cells.key}_novelty_group, which tosica novelty writes",
    )
    advice = (
        "Genes of a type that the reference lacks tell that it is new; genes that clusters of several labels share may "
        f"be of the tissue around them, of a treatment or of the batch. To find the cells, see {place}."
    )
    shares = _share_in_unlike_clusters(cells)
    shares = shares[shares > LIMITS.cells_of_clusters]
    if shares.empty and highest > LIMITS.highest_cluster_score:
        return Doubt(
            "cluster unlike its label",
            highest,
            LIMITS.highest_cluster_score,
            finding,
            f"{reason} In 1 % of queries, known cells have a score above {LIMITS.highest_cluster_score:g}.",
            advice,
        )
    if shares.empty:
        return Doubt(
            "cluster unlike its label",
            0.0,
            LIMITS.cells_of_clusters,
            finding,
            reason,
            f"{advice} A finding like this is made of any query.",
            severity="note",
        )
    return Doubt(
        "cluster unlike its label",
        float(shares.max()),
        LIMITS.cells_of_clusters,
        f"Many cells of {_with_shares(shares)} are in clusters unlike these labels. {finding}",
        f"{reason} Of labels without a new type, 4 % have such a share, and 6 % in another batch.",
        advice,
    )


def _share_in_unlike_clusters(cells: Cells) -> pd.Series:
    """Share of each label's cells in clusters with a high score; labels of fewer cells are checked anyway."""
    if cells.clusters is None:
        return pd.Series(dtype=float)
    clusters = cells.clusters[cells.clusters["label"] != UNKNOWN]
    by_label = clusters.groupby("label", observed=True)["n_cells"].sum()
    is_unlike = clusters["score"] > LIMITS.cluster_score
    unlike = clusters[is_unlike].groupby("label", observed=True)["n_cells"].sum()
    shares = (unlike / by_label).dropna()
    return shares[by_label[shares.index] >= LIMITS.few_cells]


def _novel_share(cells: Cells) -> float:
    """Share of the cells with a small p-value of novelty; 0 without novelty."""
    if cells.novelty_pvalue is None:
        return 0.0
    return float((cells.novelty_pvalue <= LIMITS.pvalue).mean())


def _novel_share_of_labels(cells: Cells) -> pd.Series:
    """The same of each label with enough cells."""
    if cells.novelty_pvalue is None:
        return pd.Series(dtype=float)
    is_novel = cells.by_type(cells.novelty_pvalue <= LIMITS.pvalue)
    return is_novel.mean()[is_novel.size() >= LIMITS.enough_cells]


def _confused_labels(cells: Cells) -> Doubt | None:
    confused = [
        (probability, label, second)
        for label, (second, probability) in cells.second.items()
        if probability >= LIMITS.second_probability
    ]
    if not confused:
        return None
    confused.sort(key=lambda pair: -pair[0])
    names = [
        f"{label!r} with {second!r} ({decimal(probability)})"
        for probability, label, second in confused
    ]
    return Doubt(
        "easily confused",
        confused[0][0],
        LIMITS.second_probability,
        f"Labels that are easily confused: {listed(names)}.",
        "The number is the mean probability of the second label in cells of the first, where it is second best.",
        "Take these labels together, or tell them apart by markers.",
    )


def _few_cells(cells: Cells) -> Doubt | None:
    n_cells = cells.by_type(cells.codes).size()
    few = n_cells[n_cells < LIMITS.few_cells]
    if few.empty:
        return None
    names = [f"{label} ({n})" for label, n in few.items()]
    return Doubt(
        "few cells",
        float(few.min()),
        LIMITS.few_cells,
        f"Labels with fewer than {LIMITS.few_cells} cells: {listed(names)}.",
        "So few cells can be mistakes. Among thousands of cells, some get a wrong label.",
        "Look at each of them on the map before you report the type.",
    )


def _samples_that_differ(cells: Cells) -> Doubt | None:
    if cells.samples is None or len(cells.samples.categories) < 2:
        return None
    is_low = cells.probability < LIMITS.probability
    overall = float(is_low.mean())
    shares = pd.Series(is_low).groupby(pd.Series(cells.samples), observed=False).mean()
    limit = max(LIMITS.improbable_in_sample, 2 * overall)
    worse = shares[shares > limit]
    if worse.empty:
        return None
    return Doubt(
        "samples that differ",
        float(worse.max()),
        limit,
        f"Samples with more improbable labels than others: {_with_shares(worse)}.",
        f"Over all samples, {percent(overall)} of the cells have a probability below {LIMITS.probability}.",
        "Compare the quality of these samples with that of the others.",
    )


def _labels_of_one_sample(cells: Cells) -> Doubt | None:
    if cells.samples is None or len(cells.samples.categories) < 2:
        return None
    counts = pd.crosstab(cells.predicted, cells.samples).drop(UNKNOWN, errors="ignore")
    n_cells = counts.sum(axis=1)
    shares = counts.div(n_cells, axis=0)[n_cells >= LIMITS.enough_cells]
    # A sample with most of the cells has most of many labels, too.
    sample_sizes = pd.Series(cells.samples).value_counts()
    small = sample_sizes.index[sample_sizes < cells.n_obs / 2]
    pairs: Any = shares[shares.columns.intersection(small, sort=False)].unstack()
    single = pairs[pairs > LIMITS.one_sample]
    if single.empty:
        return None
    names = [f"{label} ({sample})" for sample, label in single.index]
    return Doubt(
        "labels of one sample",
        float(single.max()),
        LIMITS.one_sample,
        f"Labels that come almost only from one sample: {listed(names)}.",
        "This may be biology, or an effect of that sample's batch.",
        "Look whether the sample differs in other types, too.",
        severity="note",
    )


def _overconfidence(cells: Cells) -> Doubt | None:
    agreement = cells.agreement()
    if agreement is None:
        return None
    accuracy = agreement.share
    expected = agreement.probability
    if expected - accuracy <= LIMITS.overconfidence:
        return None
    return Doubt(
        "too sure",
        expected - accuracy,
        LIMITS.overconfidence,
        f"{percent(accuracy)} of the labels agree with adata.obs[{cells.labels_key!r}], but the mean probability "
        f"of these cells is {decimal(expected)}.",
        "The probabilities are too high for these cells, or the known labels follow another scheme.",
        "Run model.recalibrate with some of the known labels, and annotate again.",
    )


def _markers(known: pd.DataFrame) -> Doubt | None:
    markers = known[known["highest_in"] != ""]
    is_highest = (markers["highest_in"] == markers["label"]).groupby(
        markers["label"], sort=False
    )
    wrong = is_highest.agg(["sum", "count", "mean"])
    wrong = wrong[wrong["mean"] < LIMITS.markers]
    if wrong.empty:
        return None
    names = [f"{row.Index} ({row[1]} of {row[2]})" for row in wrong.itertuples()]
    return Doubt(
        "markers",
        float(wrong["mean"].min()),
        LIMITS.markers,
        f"Most known markers are higher in another label: {listed(names)}.",
        "In brackets is how many of them are expressed most in the label's own cells.",
        "The label may be wrong: look at these genes in your own plots.",
    )


def _inexact_contributions(contributions: Mapping[str, Any]) -> Doubt | None:
    error = float(contributions.get("completeness_error", 0.0))
    if error <= LIMITS.attribution_error:
        return None
    return Doubt(
        "inexact contributions",
        error,
        LIMITS.attribution_error,
        f"The contributions miss the score by {percent(error)}.",
        "They are approximate.",
        "Run tosica.tl.attribute with a larger n_steps.",
    )


_RULES: tuple[Callable[[Cells], Doubt | None], ...] = (
    _other_genes,
    _another_tissue,
    _missing_genes,
    _another_batch,
    _adapted_without_clusters,
    # What is known is told before what is likely.
    _wrong_labels,
    _missed_labels,
    # It names genes.
    _cluster_unlike_its_label,
    _unknown_cells,
    _improbable_labels,
    _labels_improbable_before,
    _cells_unlike_the_reference,
    _labels_unlike_the_reference,
    _confused_labels,
    _few_cells,
    _samples_that_differ,
    _labels_of_one_sample,
    _overconfidence,
)


# ------------------------------------------------------------------------ verdicts


class LabelScores(NamedTuple):
    """Agreement of a label with the known labels of the cells."""

    precision: float
    """Share of the label's cells that are known as this; NaN if no cell has the label."""
    recall: float
    """Share of the cells known as this that have the label; NaN if no cell is known as this."""
    instead: str
    """Label of most of the cells known as this that have another label."""


def score_labels(cells: Cells) -> dict[str, LabelScores]:
    """Score each of the model's labels that cells are known as, or that such cells have.

    Parameters
    ----------
    cells
        The annotation. Cells without a known label do not count.
    """
    if cells.known is None:
        return {}
    is_known = np.asarray(cells.known.codes) >= 0
    truth = np.asarray(cells.known)[is_known].astype(str)
    predicted = cells.predicted[is_known].astype(str)
    is_comparable = np.isin(truth, cells.all_labels)
    scores = {}
    for label in cells.all_labels:
        is_truth = truth == label
        is_called = predicted == label
        # Cells known by words of another scheme do not tell whether the label is wrong.
        if not is_truth.any() and not (is_called & is_comparable).any():
            continue
        n_right = int((is_truth & is_called).sum())
        precision = n_right / is_called.sum() if is_called.any() else np.nan
        recall = n_right / is_truth.sum() if is_truth.any() else np.nan
        instead = pd.Series(predicted[is_truth & ~is_called]).mode()
        scores[label] = LabelScores(
            float(precision), float(recall), "".join(instead[:1])
        )
    return scores


def judge_labels(cells: Cells) -> pd.DataFrame:
    """Judge each label by precision and recall where it is known, else by its probability.

    Parameters
    ----------
    cells
        The annotation.

    Returns
    -------
    Table with a row for each label that cells have: ``verdict`` (``"reliable"``, ``"check"`` or
    ``"do not use"``) and ``reason``, which is empty for reliable labels.
    """
    scores = score_labels(cells)
    medians = cells.by_type(cells.probability).median()
    n_cells = cells.by_type(cells.codes).size()
    novel_shares = _novel_share_of_labels(cells)
    unlike_shares = _share_in_unlike_clusters(cells)
    medians_before = _medians_before(cells)
    verdicts = []
    for label, median in medians.items():
        reasons = []
        accuracy = median
        if label in scores:
            accuracy, recall, instead = scores[label]
            if accuracy < LIMITS.agreement:
                share = percent(1 - accuracy)
                reasons.append(f"{share} of the cells have another known label")
            if recall < LIMITS.agreement:
                share = percent(1 - recall)
                others = f"have another label, most often {instead}"
                if instead == UNKNOWN:
                    others = f"have another label or none, most often {UNKNOWN!r}"
                reasons.append(f"{share} of the cells known as this {others}")
        else:
            if median < LIMITS.median_probability:
                text = "half of the cells have a probability below"
                if n_cells[label] == 1:
                    text = "its only cell has a probability of"
                reasons.append(f"{text} {decimal(median)}")
            before = medians_before.get(label, 1.0)
            if before < LIMITS.median_probability:
                reasons.append(
                    f"before adapting, half of the cells had a probability below {decimal(before)}"
                )
            second, probability = cells.second.get(label, ("", 0.0))
            if probability >= LIMITS.second_probability:
                reasons.append(f"easily confused with {second}")
            if _likeness(cells) < LIMITS.likeness:
                reasons.append("the cells may be of another tissue or species")
        if novel_shares.get(label, 0.0) > LIMITS.novel_cells_of_label:
            share = percent(novel_shares[label])
            reasons.append(f"{share} of the cells are unlike the reference")
        if unlike_shares.get(label, 0.0) > LIMITS.cells_of_clusters:
            share = percent(unlike_shares[label])
            reasons.append(f"{share} of the cells are in clusters unlike it")
        if n_cells[label] < LIMITS.few_cells:
            reasons.append(f"fewer than {LIMITS.few_cells} cells")
        verdict = "check" if reasons else "reliable"
        if accuracy < LIMITS.probability:
            verdict = "do not use"
        verdicts.append((verdict, "; ".join(reasons)))
    return pd.DataFrame(verdicts, medians.index, ["verdict", "reason"])
