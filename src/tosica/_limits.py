"""Limits from which an annotation is doubted: in the log, in `tl.check` and in the report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of the checks. They are conventions, not tests."""

    probability: float = 0.5
    """A label that is less probable is more likely wrong than right."""
    median_probability: float = 0.7
    """A label whose cells have a lower median is doubted."""
    second_probability: float = 0.2
    """A second label with this mean probability is easily confused with the first."""
    share_unknown: float = 0.1
    """Share of cells that are called "Unknown"."""
    pvalue: float = 0.05
    """p-values up to this one are small; by chance, this share of the cells has such a novelty."""
    novel_cells: float = 0.3
    """Share of all cells with a small p-value; more hint at a batch rather than at a new type."""
    novel_cells_of_label: float = 0.15
    """Share of a label's cells with a small p-value: three times as many as by chance."""
    cluster_score: float = 3.75
    """Score of a cluster that is unlike its label."""
    cells_of_clusters: float = 0.2
    """Share of a label's cells in such clusters. 4 % of the labels without new cells have as many, and 55 % of those of
    which more than a quarter is new, by `benchmarks.novelty`. On its splits 0 and 1, scores of 1.5 to 4.25 in steps of
    0.25 and shares of 0.2 to 0.5 in steps of 0.05 were tried: this pair finds most of the latter with at most 5 % of
    the former."""
    highest_cluster_score: float = 13.0
    """Score of a cluster of two or more cells, however few of its label's cells they are. On splits 0 and 1 of
    `benchmarks.novelty`, it is the lowest whole number that at most 1 % of the queries exceed by a cluster of known
    cells. 7 % exceed it by one of new cells."""
    missing_genes: float = 0.05
    """Share of the model's genes; at 5 %, 1 to 2 % of the labels change, by the benchmark."""
    genes_of_cell: int = 200
    """Fewer genes are those of an empty droplet or debris: what tutorials of scanpy and Seurat keep."""
    poor_cells: float = 0.5
    """Share of cells with fewer genes, from which on a matrix is a raw one."""
    likeness: float = 0.7
    """Correlation of what tells labels apart in query and reference: 0.90 or more in blood of other laboratories, in
    stimulated cells and in cell lines by another protocol; 0.2 to 0.6 in breast and cell lines by the blood model,
    but also 0.48 and 0.62 between cells and nuclei of breast, of which 92 to 96 % have the right label."""
    changed_by_genes: float = 0.2
    """Share of a label's cells that missing genes give another label."""
    batch_signal: float = 0.5
    """Share of the query's common difference from the reference: from here on, most of it is no noise."""
    few_cells: int = 10
    """Fewer cells of a label are easily chance."""
    enough_cells: int = 20
    """Cells of a label of which a share is looked at, and of a query whose genes are compared with the reference's."""
    improbable_in_sample: float = 0.1
    """Share of a sample's cells with a low probability, which is twice that of all cells, too."""
    one_sample: float = 0.9
    """Share of a label's cells that come from one sample, which has less than half of all cells."""
    agreement: float = 0.9
    """Precision and recall of a label whose known cells are named."""
    overconfidence: float = 0.1
    """Mean probability above the share of labels that agree."""
    markers: float = 0.5
    """Share of a label's known markers that are highest in it."""
    attribution_error: float = 0.01
    """Error of the contributions, relative to the scores; the integral takes as many points as this needs."""


LIMITS = Limits()
