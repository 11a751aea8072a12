"""Measure what a model learns from a query without labels, and what becomes of types that its reference lacks.

``python -m benchmarks.adapt FOLDER`` from the repository's root, with the files that the functions below name in that
folder, writes ``adapt.json``. An interrupted run continues where it stopped.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score

import tosica
from benchmarks._accuracy_tasks import (
    BATCH,
    COUNTS,
    LABEL,
    TASKS,
    Split,
    few,
    of_known_types,
    prepared,
)
from benchmarks._models import train_default
from benchmarks._results import (
    load,
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)
from benchmarks._scores import LABEL_METRICS, scores

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anndata import AnnData

# Labels of four studies of blood, under common names; cells of other labels keep theirs.
COMMON = {
    "B cells": "B",
    "B cell": "B",
    "CD19+ B": "B",
    "Monocytes": "monocyte",
    "CD14+ Monocytes": "monocyte",
    "FCGR3A+ Monocytes": "monocyte",
    "Mono CD14": "monocyte",
    "Mono FCGR3A": "monocyte",
    "CD14+ Monocyte": "monocyte",
    "NK cells": "NK",
    "NK cell": "NK",
    "CD56+ NK": "NK",
    "mDC": "DC",
    "Dendritic cells": "DC",
    "Megakaryocytes": "Platelet",
    "T cells CD4 conv": "CD4 T",
    "Tregs": "CD4 T",
    "CD4 T cells": "CD4 T",
    "CD4 T Naive": "CD4 T",
    "CD4 T Memory": "CD4 T",
    "CD4+ T Helper2": "CD4 T",
    "CD4+/CD45RO+ Memory": "CD4 T",
    "CD4+/CD25 T Reg": "CD4 T",
    "CD4+/CD45RA+/CD25- Naive T": "CD4 T",
    "T cells CD8": "CD8 T",
    "CD8 T cells": "CD8 T",
    "CD8 T cell": "CD8 T",
    "CD8+ Cytotoxic T": "CD8 T",
    "CD8+/CD45RA+ Naive Cytotoxic": "CD8 T",
}
# Pairs of which each type is left out of the reference in turn.
LEFT_OUT = ("kang", "kang back", "hao to sext", "breast cells")
# Known cells with a p-value of novelty up to this one are false alarms.
LEVEL = 0.05
PARTS = {
    "sum": "both",
    "branch": "linear branch alone",
    "network": "network alone",
}


class Pair(NamedTuple):
    """Title, whether reference and query are of one batch, and a function that returns splits."""

    title: str
    within: bool
    splits: Callable[[Path, int], list[Split]]


def read_study(
    data: Path,
    name: str,
    labels_key: str,
    batch_key: str | None = None,
    *,
    is_log: bool = False,
    common_names: bool = False,
) -> AnnData:
    """Cells of a study, if asked with labels under common names."""
    adata = ad.read_h5ad(data / f"{name}.h5ad")
    adata.obs_names_make_unique()
    if common_names:
        labels = adata.obs[labels_key].astype(str)
        adata.obs[labels_key] = labels.map(COMMON).fillna(labels)
    cells = prepared(adata, labels_key, batch_key)
    if is_log:
        cells.X = adata.X.tocsr().astype(np.float32)
    return cells


def read_blood(data: Path, study: str) -> AnnData:
    """Cells of one of the studies of blood, with labels under common names."""
    name, labels_key = STUDIES[study]
    is_log = study == "sext"
    return read_study(data, name, labels_key, is_log=is_log, common_names=True)


# File and column of the labels.
STUDIES = {
    "hao": ("hao_pbmc", "cell_type"),
    "pbmc3k": ("pbmc3k", "cell_type"),
    "sext": ("pbmc_sext", "cluster"),
    "sorted": ("sorted_blood", "cell_type"),
}


def between(reference: str, query: str) -> Callable[[Path, int], list[Split]]:
    """Splits of two studies, on the genes that both have."""

    def splits(data: Path, seed: int) -> list[Split]:
        reference_cells = read_blood(data, reference)
        query_cells = read_blood(data, query)
        genes = reference_cells.var_names.intersection(query_cells.var_names)
        split = Split(reference_cells[:, genes].copy(), query_cells[:, genes].copy())
        return of_known_types([split])

    return splits


def by_batch(
    name: str, labels_key: str, batch_key: str, prefix: str, *, is_log: bool = False
) -> Callable[[Path, int], list[Split]]:
    """Splits of a study: batches with the prefix are the reference, all others the query."""

    def splits(data: Path, seed: int) -> list[Split]:
        cells = read_study(data, name, labels_key, batch_key, is_log=is_log)
        is_reference = cells.obs[BATCH].str.startswith(prefix).to_numpy()
        split = Split(cells[is_reference].copy(), cells[~is_reference].copy())
        return of_known_types([split])

    return splits


def tissues(data: Path, seed: int) -> list[Split]:
    """Halves of 63 types of the mouse."""
    cells = read_study(data, "mouse_tissues", "cell_type", is_log=True)
    return few(cells, cells.n_obs // 2, seed)


PAIRS: dict[str, Pair] = {
    **{
        name: Pair(TASKS[name].title, within=False, splits=TASKS[name].splits)
        for name in (
            "kang",
            "kang back",
            "lung",
            "lung back",
            "breast cells",
            "breast nuclei",
        )
    },
    **{
        f"{first} to {second}": Pair(
            f"blood, {first} → {second}", within=False, splits=between(first, second)
        )
        for first, second in (
            ("hao", "pbmc3k"),
            ("pbmc3k", "hao"),
            ("hao", "sext"),
            ("sext", "hao"),
            ("sorted", "pbmc3k"),
        )
    },
    "oligo": Pair(
        "oligodendrocytes, one region → five",
        within=False,
        splits=by_batch("oligo_marques", "inferred_cell_type", "source_name", "SN-VTA"),
    ),
    "worm": Pair(
        "worm embryo, Waterston → Murray",
        within=False,
        splits=by_batch("worm_embryo", "cell.type", "batch", "Waterston"),
    ),
    "worm back": Pair(
        "worm embryo, Murray → Waterston",
        within=False,
        splits=by_batch("worm_embryo", "cell.type", "batch", "Murray"),
    ),
    # Cells of one sample, PBMC 3k, by barcode and expression: the conditions were made up.
    "sext": Pair(
        "pbmc_sext, condition 2 → 1",
        within=True,
        splits=by_batch("pbmc_sext", "cluster", "condition", "condition2", is_log=True),
    ),
    "sext back": Pair(
        "pbmc_sext, condition 1 → 2",
        within=True,
        splits=by_batch("pbmc_sext", "cluster", "condition", "condition1", is_log=True),
    ),
    "gut": Pair(TASKS["gut"].title, within=True, splits=TASKS["gut"].splits),
    "pbmc68k": Pair(
        TASKS["pbmc68k"].title, within=True, splits=TASKS["pbmc68k"].splits
    ),
    "tissues": Pair("mouse, 63 types, halves", within=True, splits=tissues),
}


def random_gene_sets(reference: AnnData) -> dict[str, list[str]]:
    """Draw 300 gene sets, for species whose genes no collection has."""
    rng = np.random.default_rng(0)
    is_member = rng.random((300, reference.n_vars)) < 0.015
    names = reference.var_names.to_numpy()
    return {f"random_{i}": list(names[row]) for i, row in enumerate(is_member)}


@torch.inference_mode()
def probabilities(model: tosica.TOSICA, query: AnnData) -> dict[str, np.ndarray]:
    """Probabilities by the sum, and by each part alone, ``(n_cells, n_labels)``.

    The parts are as calibrated as they are in the sum: each for itself after adapting, not before.
    """
    module = model.module
    branch = []
    network = []
    for batch in model.iter_batches(query):
        branch.append(module.linear(batch.x, batch.measured).softmax(1).numpy())
        network.append(module.network_logits(module.clip(batch.x)).softmax(1).numpy())
    return {
        "sum": model.predict(query, soft=True).to_numpy(),
        "branch": np.concatenate(branch),
        "network": np.concatenate(network),
    }


def novelty_pvalues(model: tosica.TOSICA, query: AnnData) -> dict[str, np.ndarray]:
    """p-values of novelty by the functions that write them, ``(n_cells,)`` each."""
    cells = model.annotate(query, copy=True, enable_progress_bar=False)
    of_annotate = cells.obs["tosica_novelty_pvalue"].to_numpy()
    tosica.tl.novelty(cells, model)
    return {
        "annotate": of_annotate,
        "tl.novelty": cells.obs["tosica_novelty_pvalue"].to_numpy(),
    }


def one_run(
    pair: str, data: Path, seed: int, *, without: str | None = None
) -> dict[str, Any]:
    """Score a pair before and after adapting, with all types or without one in the reference."""
    truth: list[np.ndarray] = []
    predicted: dict[str, list[np.ndarray]] = {}
    confidence: dict[str, list[np.ndarray]] = {}
    doubt: dict[str, list[np.ndarray]] = {}
    pvalues: dict[str, list[np.ndarray]] = {}
    seconds = 0.0
    n_rounds = []
    for reference, query in PAIRS[pair].splits(data, seed):
        reference.layers.pop(COUNTS, None)
        query.layers.pop(COUNTS, None)
        if without is not None:
            reference = reference[(reference.obs[LABEL] != without).to_numpy()].copy()
        gene_sets = random_gene_sets(reference) if pair.startswith("worm") else "gobp"
        model = train_default(reference, seed, gene_sets=gene_sets)
        start_time = time.process_time()
        adapted = model.adapt(query, enable_progress_bar=False)
        seconds += time.process_time() - start_time
        n_rounds.append(adapted.training_.adaptation.n_rounds)
        truth.append(query.obs[LABEL].astype(str).to_numpy())
        labels = np.array(model.labels)
        for function, of_function in novelty_pvalues(model, query).items():
            pvalues.setdefault(function, []).append(of_function)
        for stage, stage_model in (("before", model), ("after", adapted)):
            for part, of_part in probabilities(stage_model, query).items():
                name = f"{part} {stage}"
                predicted.setdefault(name, []).append(labels[of_part.argmax(1)])
                confidence.setdefault(name, []).append(of_part.max(1))
            novelty = stage_model.infer(query, enable_progress_bar=False).novelty
            if novelty is not None:
                doubt.setdefault(f"novelty {stage}", []).append(novelty)
            improbability = 1 - confidence[f"sum {stage}"][-1]
            doubt.setdefault(f"1 - p {stage}", []).append(improbability)
    all_labels = np.concatenate(truth)
    run: dict[str, Any] = {
        "pair": pair,
        "seed": seed,
        "seconds": seconds,
        "n_rounds": float(np.mean(n_rounds)),
    }
    if without is None:
        for name in predicted:
            run[name] = scores(
                all_labels,
                np.concatenate(predicted[name]),
                np.concatenate(confidence[name]),
            )
        run["known"] = {
            function: float((np.concatenate(blocks) <= LEVEL).mean())
            for function, blocks in pvalues.items()
        }
    else:
        run["without"] = without
        for name, values in doubt.items():
            area = roc_auc_score(all_labels == without, np.concatenate(values))
            run[name] = float(area)
    return run


def types_of(pair: str, data: Path) -> list[str]:
    """Types that both the reference and the query of a pair have."""
    reference, query = PAIRS[pair].splits(data, 0)[0]
    return sorted(
        set(reference.obs[LABEL].astype(str)) & set(query.obs[LABEL].astype(str))
    )


# --------------------------------------------------------------------------- the page


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    runs = [run for run in result["runs"] if "without" not in run]
    n_across = len({run["seed"] for run in runs if not PAIRS[run["pair"]].within})
    n_within = len({run["seed"] for run in runs if PAIRS[run["pair"]].within})
    head = [
        "reference → query",
        "before",
        "after",
        "points",
        "worst seed",
        "known, p ≤ 0.05",
        "seconds",
    ]
    rows = _rows(runs, within=False) + _rows(runs, within=True)
    part_head = ["accuracy / macro-F1, pairs that were learnt from", "before", "after"]
    lines = [
        "# Before and after",
        "",
        "`python -m benchmarks.adapt`: accuracy / macro-F1 / calibration error of the model and of",
        f"`model.adapt(query)`, means of {n_across} seeds across batches and {n_within} within one. Settings were",
        "chosen on these pairs. Nothing is learnt from a query that is found to be of the reference's batch. No cell",
        f"is of a new type: *known* is the share with a p-value of novelty up to {LEVEL}, by `annotate` and by",
        "`tl.novelty`. Processor seconds of `adapt` were measured beside two other processes.",
        "",
        *table(head, rows),
        "",
        *table(part_head, _part_rows(runs)),
        "",
        *_left_out_lines([run for run in result["runs"] if "without" in run]),
        *version_lines(result),
    ]
    return "\n".join(lines)


def _metrics(runs: list[dict[str, Any]], name: str) -> np.ndarray:
    """Accuracy, macro-F1 and calibration error of some runs, ``(n_runs, 3)``."""
    return np.array([[run[name][metric] for metric in LABEL_METRICS] for run in runs])


def _format(values: np.ndarray) -> str:
    return " / ".join(f"{value:.3f}" for value in values)


def _rows(runs: list[dict[str, Any]], *, within: bool) -> list[list[str]]:
    """A row for each pair across batches or within one, and their mean."""
    rows = []
    pair_means = []
    for name, pair in PAIRS.items():
        of_pair = [run for run in runs if run["pair"] == name]
        if pair.within is not within or not of_pair:
            continue
        model_metrics = _metrics(of_pair, "sum before")
        adapted_metrics = _metrics(of_pair, "sum after")
        points = 100 * (adapted_metrics - model_metrics)
        rows.append(
            [
                pair.title,
                _format(model_metrics.mean(0)),
                _format(adapted_metrics.mean(0)),
                f"{points[:, 0].mean():+.1f} / {points[:, 1].mean():+.1f}",
                f"{points[:, 0].min():+.1f}",
                "/".join(
                    f"{np.mean([run['known'][function] for run in of_pair]):.3f}"
                    for function in ("annotate", "tl.novelty")
                ),
                f"{np.mean([run['seconds'] for run in of_pair]):.1f}",
            ]
        )
        pair_means.append([model_metrics.mean(0), adapted_metrics.mean(0)])
    if rows:
        model_metrics, adapted_metrics = np.mean(pair_means, axis=0)
        points = 100 * (adapted_metrics - model_metrics)
        rows.append(
            [
                f"*mean {'within one batch' if within else 'across batches'}*",
                _format(model_metrics),
                _format(adapted_metrics),
                f"{points[0]:+.1f} / {points[1]:+.1f}",
                "",
                "",
                "",
            ]
        )
    return rows


def _part_rows(runs: list[dict[str, Any]]) -> list[list[str]]:
    """Accuracy and macro-F1 of the parts, means over the pairs that were learnt from."""
    learnt = [run for run in runs if run["n_rounds"]]
    if not learnt:
        return []
    pairs = sorted({run["pair"] for run in learnt})
    rows = []
    for part, title in PARTS.items():
        row = [title]
        for stage in ("before", "after"):
            means = []
            for pair in pairs:
                of_pair = [run for run in learnt if run["pair"] == pair]
                means.append(_metrics(of_pair, f"{part} {stage}").mean(0))
            row.append(_format(np.mean(means, axis=0)[:2]))
        rows.append(row)
    return rows


def _left_out_lines(runs: list[dict[str, Any]]) -> list[str]:
    """A table of types that were left out of the reference."""
    if not runs:
        return []
    rows = []
    columns = ["novelty before", "novelty after", "1 - p before", "1 - p after"]
    for pair in LEFT_OUT:
        of_pair = pd.DataFrame([run for run in runs if run["pair"] == pair])
        if len(of_pair):
            rows.append(
                [
                    PAIRS[pair].title,
                    *(f"{of_pair[column].mean():.3f}" for column in columns),
                ]
            )
    means = pd.DataFrame(runs)[columns].mean()
    rows.append(["*mean of all types*", *(f"{value:.3f}" for value in means)])
    return [
        f"Each type left out of the reference in turn, up to {len({run['seed'] for run in runs})} seeds: AUROC of its",
        "cells among those of the query, by `tosica_novelty` and by 1 - `tosica_probability`.",
        "",
        *table(["reference → query", *columns], rows),
        "",
    ]


def main(arguments: list[str] | None = None) -> None:
    """Run missing runs, and write the page."""
    parser = make_parser(__doc__)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument(
        "--left-out", nargs="*", choices=LEFT_OUT, default=list(LEFT_OUT)
    )
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    quiet()
    result = load(options.out, "adapt")
    result["versions"] = versions("scikit-learn")
    done = {(run["pair"], run["seed"], run.get("without")) for run in result["runs"]}
    tasks: list[tuple[str, int, str | None]] = [
        (pair, seed, None) for seed in range(options.seeds) for pair in options.pairs
    ]
    for pair in options.left_out:
        for seed in range(options.seeds):
            tasks += [(pair, seed, name) for name in types_of(pair, options.data)]
    for pair, seed, without in tasks:
        if (pair, seed, without) not in done:
            result["runs"].append(one_run(pair, options.data, seed, without=without))
            write(options.out, "adapt", result, report(result))
    write(options.out, "adapt", result, report(result))


if __name__ == "__main__":
    main()
