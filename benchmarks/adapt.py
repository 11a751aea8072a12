"""Measure what a model learns from a query without labels, and what becomes of types that its reference lacks.

``python -m benchmarks.adapt FOLDER`` from the repository's root, with the files that the functions below name in that
folder, writes ``adapt.json`` and its page. An interrupted run continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import scvi
import torch
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

import tosica
from benchmarks._accuracy_tasks import (
    BATCH,
    COUNTS,
    LABEL,
    TASKS,
    Split,
    of_known_types,
    prepared,
)
from benchmarks._results import table, version_lines, versions, write
from benchmarks._scores import METRICS, scores

if TYPE_CHECKING:
    from collections.abc import Callable

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
PARTS = ("sum", "branch", "network")


class Pair(NamedTuple):
    """Title, whether reference and query are of one batch, and a function that returns splits."""

    title: str
    within: bool
    splits: Callable[[Path, int], list[Split]]


def blood(data: Path, name: str, labels_key: str, *, is_log: bool = False) -> AnnData:
    """A study of blood, with labels under common names."""
    adata = ad.read_h5ad(data / f"{name}.h5ad")
    adata.obs_names_make_unique()
    labels = adata.obs[labels_key].astype(str)
    adata.obs["common"] = labels.map(COMMON).fillna(labels)
    made = prepared(adata, "common")
    if is_log:
        made.X = adata.X.tocsr().astype(np.float32)
    return made


STUDIES: dict[str, Callable[[Path], AnnData]] = {
    "hao": lambda data: blood(data, "hao_pbmc", "cell_type"),
    "pbmc3k": lambda data: blood(data, "pbmc3k", "cell_type"),
    "sext": lambda data: blood(data, "pbmc_sext", "cluster", is_log=True),
    "sorted": lambda data: blood(data, "sorted_blood", "cell_type"),
}


def between(reference: str, query: str) -> Callable[[Path, int], list[Split]]:
    """Splits of two studies, on the genes that both have."""

    def splits(data: Path, seed: int) -> list[Split]:
        first, second = (STUDIES[name](data) for name in (reference, query))
        genes = first.var_names.intersection(second.var_names)
        return of_known_types([Split(first[:, genes].copy(), second[:, genes].copy())])

    return splits


def by_batch(
    name: str, labels_key: str, batch_key: str, prefix: str, *, is_log: bool = False
) -> Callable[[Path, int], list[Split]]:
    """Splits of a study: batches whose name begins so are the reference, the others the query."""

    def splits(data: Path, seed: int) -> list[Split]:
        adata = ad.read_h5ad(data / f"{name}.h5ad")
        adata.obs_names_make_unique()
        made = prepared(adata, labels_key, batch_key)
        if is_log:
            made.X = adata.X.tocsr().astype(np.float32)
        first = made.obs[BATCH].str.startswith(prefix).to_numpy()
        return of_known_types([Split(made[first].copy(), made[~first].copy())])

    return splits


def tissues(data: Path, seed: int) -> list[Split]:
    """Halves of 63 types of the mouse."""
    adata = ad.read_h5ad(data / "mouse_tissues.h5ad")
    made = prepared(adata, "cell_type")
    made.X = adata.X.tocsr().astype(np.float32)
    first, second = train_test_split(
        np.arange(made.n_obs),
        test_size=0.5,
        stratify=made.obs[LABEL],
        random_state=seed,
    )
    return [Split(made[np.sort(first)].copy(), made[np.sort(second)].copy())]


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
            ("pbmc3k", "sext"),
            ("sext", "pbmc3k"),
            ("sorted", "pbmc3k"),
        )
    },
    "sext": Pair(
        "pbmc_sext, condition 2 → 1",
        within=False,
        splits=by_batch("pbmc_sext", "cluster", "condition", "condition2", is_log=True),
    ),
    "sext back": Pair(
        "pbmc_sext, condition 1 → 2",
        within=False,
        splits=by_batch("pbmc_sext", "cluster", "condition", "condition1", is_log=True),
    ),
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


def trained(
    reference: AnnData, seed: int, *, has_gene_sets: bool = True
) -> tosica.TOSICA:
    """Train a model with all defaults."""
    gene_sets = "gobp" if has_gene_sets else random_gene_sets(reference)
    tosica.pp.build_mask(reference, gene_sets)
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
    scvi.settings.seed = seed
    model = tosica.TOSICA(reference)
    model.train(enable_progress_bar=False, accelerator="cpu")
    return model


@torch.inference_mode()
def probabilities(model: tosica.TOSICA, query: AnnData) -> dict[str, np.ndarray]:
    """Probabilities by the sum, and by each part alone, ``(n_cells, n_labels)``.

    The parts are as calibrated as they are in the sum: each for itself after adapting, not before.
    """
    branch = []
    network = []
    for batch in model.iter_batches(query):
        branch.append(model.module.linear(batch.x, batch.measured).softmax(1).numpy())
        network.append(
            model.module.network_logits(model.module.clip(batch.x)).softmax(1).numpy()
        )
    summed = model.predict(query, soft=True).to_numpy()
    return {
        "sum": summed,
        "branch": np.concatenate(branch),
        "network": np.concatenate(network),
    }


def one_run(
    pair: str, data: Path, seed: int, *, without: str | None = None
) -> dict[str, Any]:
    """Score a pair before and after adapting, with all types or without one in the reference."""
    truth: list[np.ndarray] = []
    called: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    doubt: dict[str, list[np.ndarray]] = {}
    seconds = 0.0
    n_rounds = []
    for reference, query in PAIRS[pair].splits(data, seed):
        for cells in (reference, query):
            cells.layers.pop(COUNTS, None)
        if without is not None:
            reference = reference[(reference.obs[LABEL] != without).to_numpy()].copy()
        model = trained(reference, seed, has_gene_sets=not pair.startswith("worm"))
        started = time.process_time()
        adapted = model.adapt(query, enable_progress_bar=False)
        seconds += time.process_time() - started
        n_rounds.append(adapted.training_.adaptation.n_rounds)
        truth.append(query.obs[LABEL].astype(str).to_numpy())
        names = np.array(model.labels)
        for when, each in (("before", model), ("after", adapted)):
            for part, found in probabilities(each, query).items():
                pairs = called.setdefault(f"{part} {when}", [])
                pairs.append((names[found.argmax(1)], found.max(1)))
            novelty = each.infer(query, enable_progress_bar=False).novelty
            if novelty is not None:
                doubt.setdefault(f"novelty {when}", []).append(novelty)
            doubt.setdefault(f"1 - p {when}", []).append(
                1 - called[f"sum {when}"][-1][1]
            )
    known = np.concatenate(truth)
    result: dict[str, Any] = {
        "pair": pair,
        "seed": seed,
        "seconds": seconds,
        "n_rounds": float(np.mean(n_rounds)),
    }
    if without is None:
        for name, found in called.items():
            result[name] = scores(known, *map(np.concatenate, zip(*found, strict=True)))
    else:
        result["without"] = without
        for name, values in doubt.items():
            result[name] = float(
                roc_auc_score(known == without, np.concatenate(values))
            )
    return result


def types_of(pair: str, data: Path) -> list[str]:
    """Types that both the reference and the query of a pair have."""
    reference, query = PAIRS[pair].splits(data, 0)[0]
    return sorted(
        set(reference.obs[LABEL].astype(str)) & set(query.obs[LABEL].astype(str))
    )


# --------------------------------------------------------------------------- the page


def report(result: dict[str, Any]) -> str:
    """Text of the page."""
    runs = [run for run in result["runs"] if "without" not in run]
    n_across, n_within = (
        len({run["seed"] for run in runs if PAIRS[run["pair"]].within is within})
        for within in (False, True)
    )
    lines = [
        "# Before and after",
        "",
        "Written by `python -m benchmarks.adapt`. `model.adapt(query)` beside the model that it is called on: accuracy",
        f"/ macro-F1 / calibration error, means of {n_across} seeds across batches and {n_within} within one, which",
        "decide the held-out cells and all random numbers. Settings were chosen on these pairs. *Rounds* is 0 where",
        "the query was found to be of the reference's batch, and the model stayed as it was. Processor seconds are",
        "those of `adapt`, beside two other processes.",
        "",
        *table(
            [
                "reference → query",
                "before",
                "after",
                "points",
                "worst seed",
                "rounds",
                "seconds",
            ],
            _rows(runs, within=False) + _rows(runs, within=True),
        ),
        "",
        "The two parts of the model. Before, the linear branch decides nearly all labels; after, the network counts",
        "nearly as much.",
        "",
        *table(
            ["accuracy / macro-F1, pairs that were learnt from", "before", "after"],
            _part_rows(runs),
        ),
        "",
        *_left_out_lines([run for run in result["runs"] if "without" in run]),
        *version_lines(result),
    ]
    return "\n".join(lines)


def _means(runs: list[dict[str, Any]], name: str) -> np.ndarray:
    """Accuracy, macro-F1 and calibration error of some runs, ``(n_runs, 3)``."""
    return np.array(
        [[run[name][metric] for metric in list(METRICS)[:3]] for run in runs]
    )


def _shown(values: np.ndarray) -> str:
    return " / ".join(f"{value:.3f}" for value in values)


def _rows(runs: list[dict[str, Any]], *, within: bool) -> list[list[str]]:
    """A row for each pair across batches or within one, and their mean."""
    rows = []
    gathered = []
    for name, pair in PAIRS.items():
        of_pair = [run for run in runs if run["pair"] == name]
        if pair.within is not within or not of_pair:
            continue
        before, after = _means(of_pair, "sum before"), _means(of_pair, "sum after")
        gained = 100 * (after - before)
        rounds = np.mean([run["n_rounds"] for run in of_pair])
        seconds = np.mean([run["seconds"] for run in of_pair])
        rows.append(
            [
                pair.title,
                _shown(before.mean(0)),
                _shown(after.mean(0)),
                f"{gained[:, 0].mean():+.1f} / {gained[:, 1].mean():+.1f}",
                f"{gained[:, 0].min():+.1f}",
                f"{rounds:.1f}",
                f"{seconds:.1f}",
            ]
        )
        gathered.append([*before.mean(0), *after.mean(0)])
    if rows:
        mean = np.mean(gathered, axis=0)
        points = 100 * (mean[3:5] - mean[:2])
        rows.append(
            [
                f"*mean {'within one batch' if within else 'across batches'}*",
                _shown(mean[:3]),
                _shown(mean[3:]),
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
    names = {"sum": "both", "branch": "linear branch alone", "network": "network alone"}
    pairs = sorted({run["pair"] for run in learnt})
    rows = []
    for part in PARTS:
        row = [names[part]]
        for when in ("before", "after"):
            of_pairs = [
                _means([r for r in learnt if r["pair"] == pair], f"{part} {when}").mean(
                    0
                )
                for pair in pairs
            ]
            row.append(_shown(np.mean(of_pairs, axis=0)[:2]))
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
        "After adapting, a missing type has a higher probability than before: judge whether a type is missing by its",
        "novelty, which asks the model as it was before.",
        "",
    ]


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument(
        "--left-out", nargs="*", choices=LEFT_OUT, default=list(LEFT_OUT)
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    path = given.out / "adapt.json"
    result: dict[str, Any] = (
        json.loads(path.read_text()) if path.exists() else {"runs": []}
    )
    result["versions"] = versions("scikit-learn")
    done = {(run["pair"], run["seed"], run.get("without")) for run in result["runs"]}
    wanted: list[tuple[str, int, str | None]] = [
        (pair, seed, None) for seed in range(given.seeds) for pair in given.pairs
    ]
    for pair in given.left_out:
        wanted += [
            (pair, seed, name)
            for seed in range(given.seeds)
            for name in types_of(pair, given.data)
        ]
    for pair, seed, without in wanted:
        if (pair, seed, without) not in done:
            result["runs"].append(one_run(pair, given.data, seed, without=without))
            write(given.out, "adapt", result, report(result))
    write(given.out, "adapt", result, report(result))


if __name__ == "__main__":
    main()
