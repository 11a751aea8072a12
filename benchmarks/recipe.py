"""Measure what each part of the recipe contributes, within references.

``python -m benchmarks.recipe FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``docs/benchmarks/recipe.md`` and ``recipe.json``. Two
thirds of a reference's cells train a model, and the other cells are predicted: as they are, with a
simulated batch effect, and by a model that was trained on some wrong labels.

All references except the simulated one are part of the accuracy benchmark's tasks, where each of
Kang's conditions is also a query of the other and of itself, and so are both technologies of the
breast. Choices that are made here are independent of how a model does across conditions and
technologies, but not of these cells and their labels. The lung tasks are independent of it.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scanpy as sc
import scvi
import torch
from scipy.sparse import csr_matrix
from scipy.special import log_softmax
from sklearn.metrics import f1_score

import tosica
from benchmarks._accuracy_tasks import (
    BATCH,
    COUNTS,
    LABEL,
    NOISE,
    Split,
    breast,
    few,
    gut,
    kang,
    noisy,
    pbmc68k,
    prepared,
)
from benchmarks._report import table, version_lines, versions, write
from tosica.data import CellMatrix
from tosica.linear import flag_label_errors, linear_to_network_ratio, logit_adjustment
from tosica.model._training_mixin import default_epochs
from tosica.module import ModalitySlice

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData
    from numpy.typing import NDArray

# Settings that are changed, one at a time.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("the default", {}),
    "start": ("tokens start at random", {"start_at_random": True}),
    "largest": (
        "the 300 largest gene sets instead of chosen ones",
        {"mask": {"max_gene_sets": 300}},
    ),
    "modules": ("no modules", {"model": {"modules": False}}),
    "gene dropout": ("no gene dropout", {"plan_kwargs": {"gene_dropout": 0.0}}),
    "token dropout": ("half of the gene sets hidden", {"plan_kwargs": {"token_dropout": 0.5}}),
    "label smoothing": ("no label smoothing", {"plan_kwargs": {"label_smoothing": 0.0}}),
    "refit": ("no refit on held-out cells", {"refit": False}),
    "length": ("half as long", {"length": 0.5}),
    "labels": ("labels are not checked", {"check_labels": False}),
}
# Checking labels is measured with wrong labels, all other settings with right ones.
OF_WRONG_LABELS = ["default", "labels"]
_OF_RIGHT_LABELS = [name for name in VARIANTS if name != "labels"]
# Parts of the default model, which are not trained again.
PARTS = {
    "network": "the network alone",
    "linear": "the linear branch alone",
    "once": "the linear branch counts once",
    "as rare": "the network's logits of rare labels are not raised",
    "temperature": "held-out cells do not set the temperature",
}
TITLES = {
    "as they are": "## Cells as they are",
    "batch effect": "## Cells with a batch effect",
    "wrong labels": f"## Cells as they are, {NOISE:.0%} of the labels wrong",
}
METRICS = ["accuracy", "macro-F1", "log-likelihood"]
# Standard deviation of the logarithm of a gene's factor, and share of the counts that are left.
EFFECT, DEPTH = 1.0, 0.7
# Labels with fewer cells are left out.
MIN_CELLS = 10


def made_up(seed: int) -> Callable[[Path], AnnData]:
    """Simulated cells of many types, some of them rare and similar."""

    def read(_: Path) -> AnnData:
        adata = tosica.datasets.synthetic(1200, 1500, batch_effect=0.3, seed=seed)
        return without_rarest(prepared(adata, "cell_type", "batch"))

    return read


def without_rarest(adata: AnnData, min_cells: int = MIN_CELLS) -> AnnData:
    """Cells of labels that have enough cells."""
    n_cells = adata.obs[LABEL].value_counts()
    kept = adata[adata.obs[LABEL].isin(n_cells.index[n_cells >= min_cells])].copy()
    kept.obs[LABEL] = kept.obs[LABEL].cat.remove_unused_categories()
    return kept


def condition(name: str, read_all: Callable[[Path], AnnData] = kang) -> Callable[[Path], AnnData]:
    """One condition of Kang's cells, or one batch of other cells."""

    def read(data: Path) -> AnnData:
        adata = read_all(data)
        return adata[adata.obs[BATCH] == name].copy()

    return read


REFERENCES: dict[str, tuple[str, Callable[[Path], AnnData]]] = {
    "control": ("Kang, control", condition("ctrl")),
    "stimulated": ("Kang, IFN-β", condition("stim")),
    "pbmc68k": ("pbmc68k", pbmc68k),
    "made up 1": ("made up", made_up(1)),
    "breast cells": ("breast, cells", condition("komentissuebank", breast)),
    "breast nuclei": ("breast, nuclei", condition("gtex", breast)),
    "gut": ("mouse gut", gut),
}
KINDS: dict[str, list[str]] = {
    "blood": ["control", "stimulated", "pbmc68k"],
    "made up": ["made up 1"],
    "small, other technology": ["breast cells", "breast nuclei"],
    "many labels": ["gut"],
}


def batch_effect(adata: AnnData, seed: int) -> AnnData:
    """The same cells at lower depth, with a capture efficiency for each gene."""
    rng = np.random.default_rng(seed)
    factor = DEPTH * np.exp(rng.normal(0, EFFECT, adata.n_vars) - EFFECT**2 / 2)
    changed = adata.copy()
    drawn = rng.poisson(adata.layers[COUNTS].toarray() * factor).astype(np.float32)
    # Every cell has a count.
    drawn[drawn.sum(1) == 0, 0] = 1
    changed.X = csr_matrix(drawn)
    sc.pp.normalize_total(changed, target_sum=1e4)
    sc.pp.log1p(changed)
    return changed


def train(
    reference: AnnData,
    seed: int,
    *,
    length: float = 1.0,
    mask: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    start_at_random: bool = False,
    **settings: Any,
) -> tosica.TOSICA:
    """Build a mask and a model, and train it without progress bar."""
    tosica.pp.build_mask(reference, **(mask or {}))
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
    # Set before each model: scanpy's tools reset the number of threads to that of the cores.
    torch.set_num_threads(1)
    scvi.settings.seed = seed
    made = tosica.TOSICA(reference, **(model or {}))
    # As after start_from_network, tokens do not start from the linear branch.
    made._starts_from_network = start_at_random
    if length != 1:
        settings["max_epochs"] = round(length * default_epochs(round(0.9 * reference.n_obs)))
    made.train(accelerator="cpu", enable_progress_bar=False, **settings)
    return made


@torch.no_grad()
def logits(model: tosica.TOSICA, query: AnnData) -> dict[str, NDArray]:
    """Logits of the whole model and of its parts, over their temperatures."""
    module = model.module
    of_network, of_branch = [], []
    for _, x, measured in model.iter_batches(query, layer=None, use_raw=False, batch_size=64):
        found = module.annotate(x, attention=False, measured=measured)
        of_network.append(module.head(found.latent))
        of_branch.append(module.linear(x, measured))
    network, branch = torch.cat(of_network).numpy(), torch.cat(of_branch).numpy()
    temperature = float(module.temperature)
    trained_on = np.delete(model.adata.obs[LABEL].astype(str), model.mislabeled_indices)
    adjustment = logit_adjustment(pd.Index(model.labels).get_indexer(trained_on))
    # The branch contains the weighted logits of the regression, and the network's adjustment.
    weight = linear_to_network_ratio(len(trained_on))
    linear = (branch - adjustment) / weight
    return {
        "default": (network + branch) / temperature,
        "network": network,
        "linear": linear,
        "once": (network + adjustment + linear) / 2,
        "as rare": (network + branch - adjustment) / temperature,
        "temperature": (network + branch) / (1 + weight),
    }


def scores(logits: NDArray, labels: list[str], truth: NDArray) -> dict[str, float]:
    """Accuracy, macro-F1 and the mean log-likelihood of the right label."""
    predicted = np.array(labels)[logits.argmax(1)]
    codes = np.array([labels.index(label) for label in truth])
    log_likelihood = log_softmax(logits.astype(np.float64), axis=1)[np.arange(len(codes)), codes]
    f1 = f1_score(truth, predicted, labels=sorted(set(truth)), average="macro")
    values = float((predicted == truth).mean()), float(f1), float(log_likelihood.mean())
    return dict(zip(METRICS, values, strict=True))


def one_reference(split: Split, seed: int, variants: list[str]) -> list[dict[str, Any]]:
    """Train every variant, with right and with wrong labels, and predict the other cells."""
    training_data = {
        "right": (
            split,
            {"as they are": split.query, "batch effect": batch_effect(split.query, seed)},
        ),
        "wrong": (noisy([_copy(split)], seed)[0], {"wrong labels": split.query}),
    }
    truth = split.query.obs[LABEL].astype(str).to_numpy()
    runs = []
    for labels, (given, queries) in training_data.items():
        for variant in variants:
            if variant not in (OF_WRONG_LABELS if labels == "wrong" else _OF_RIGHT_LABELS):
                continue
            model = train(given.reference.copy(), seed, **VARIANTS[variant][1])
            for name, query in queries.items():
                found = logits(model, query)
                shown = found if variant == "default" else {variant: found["default"]}
                runs += [
                    {"variant": part, "query": name, "seed": seed, **scores(v, model.labels, truth)}
                    for part, v in shown.items()
                ]
    return runs


def label_errors(reference: AnnData, seed: int) -> dict[str, float]:
    """Share of labels that are flagged where none is wrong, and how well wrong ones are found."""
    ((noise, _),) = noisy([Split(reference.copy(), reference)], seed)
    scvi.settings.seed = seed
    flagged = {}
    for name, adata in {"right": reference, "wrong": noise}.items():
        codes = adata.obs[LABEL].cat.codes.to_numpy().astype(np.int64)
        logged = ModalitySlice(0, adata.n_vars, None)
        found = flag_label_errors(CellMatrix(adata), np.arange(adata.n_obs), codes, logged)
        flagged[name] = found.is_error
    wrong = (noise.obs[LABEL].astype(str) != reference.obs[LABEL].astype(str)).to_numpy()
    return {
        "suspect": float(flagged["right"].mean()),
        "found": float(flagged["wrong"][wrong].mean()),
        "right": float(1 - wrong[flagged["wrong"]].mean()),
    }


def _copy(split: Split) -> Split:
    return Split(split.reference.copy(), split.query)


def report(result: dict[str, Any]) -> str:
    """The page."""
    runs = pd.DataFrame(result["runs"])
    lines = [
        "# What each part of the recipe contributes",
        "",
        "Written by `python -m benchmarks.recipe`. Two thirds of a reference's cells train a "
        "model, the other cells are predicted: as they",
        f"are, with {DEPTH:.0%} of their counts and a factor for each gene (log-normal with "
        f"standard deviation {EFFECT:g}), and by a model that",
        f"was trained on {NOISE:.0%} wrong labels. One setting is changed at a time. Differences "
        "to the default are in points (hundredths;",
        "log-likelihood of the right label: hundredths of a nat), as mean over "
        f"{len(runs[['reference', 'seed']].drop_duplicates())} pairs of a",
        f"reference ({_names(runs)}) and a split, ± standard error.",
        "Parts of the default model were not trained again, and have their expected temperature.",
        "",
    ]
    lines += _by_kind(runs)
    shown = {**{k: v for k, (v, _) in VARIANTS.items()}, **PARTS}
    of = runs.set_index(["reference", "seed", "query", "variant"])[METRICS]
    measured = set(zip(runs["query"], runs["variant"], strict=True))
    for query in dict.fromkeys(runs["query"]):
        default = of.xs((query, "default"), level=("query", "variant"))
        rows = [["the default", *(f"{default[m].mean():.3f}" for m in METRICS)]]
        for variant, what in shown.items():
            if variant == "default" or (query, variant) not in measured:
                continue
            change = 100 * (of.xs((query, variant), level=("query", "variant")) - default)
            error = change.std() / len(change) ** 0.5
            rows.append([what, *(f"{change[m].mean():+.1f} ± {error[m]:.1f}" for m in METRICS)])
        lines += [TITLES[query]]
        lines += ["", *table(["", *METRICS], rows), ""]
    lines += _label_errors(pd.DataFrame(result["labels"]))
    lines += version_lines(result)
    return "\n".join(lines)


def _by_kind(runs: pd.DataFrame) -> list[str]:
    """What the network contributes, by the kind of reference."""
    of = runs.set_index(["variant", "reference", "seed", "query"])[METRICS[:2]]
    gain = 100 * (of.loc["default"] - of.loc["linear"])
    queries = [query for query in TITLES if query in set(runs["query"])]
    rows = []
    for kind, references in KINDS.items():
        of_kind = runs[runs["reference"].isin(references)]
        if of_kind.empty:
            continue
        row = [f"{kind} ({_names(of_kind)})"]
        gain_of_kind = gain[gain.index.isin(references, level="reference")]
        for query in queries:
            found = gain_of_kind.xs(query, level="query")
            error = found.std() / len(found) ** 0.5
            row += [f"{found[m].mean():+.1f} ± {error[m]:.1f}" for m in METRICS[:2]]
        rows.append(row)
    head = [f"{metric}, {query}" for query in queries for metric in METRICS[:2]]
    return [
        "## What the network contributes",
        "",
        "Difference of the default to the linear branch alone, by the kind of reference, in "
        "points, ± standard error.",
        "",
        *table(["", *head], rows),
        "",
    ]


def _label_errors(found: pd.DataFrame) -> list[str]:
    """How well label errors are distinguished from hard cells."""
    of = found.groupby("reference", sort=False)
    rows = [
        [
            REFERENCES[name][0],
            f"{each['suspect'].mean():.1%}, at most {each['suspect'].max():.1%}",
            f"{each['found'].mean():.0%}",
            f"{each['right'].mean():.0%}",
        ]
        for name, each in of
    ]
    head = ["", "flagged where none is wrong", "wrong labels found", "right labels among flagged"]
    return [
        "## Label errors",
        "",
        f"Whole references, {of.size().max()} seeds: as they are, and with {NOISE:.0%} of the "
        "labels wrong.",
        "",
        *table(head, rows),
        "",
    ]


def _names(runs: pd.DataFrame) -> str:
    return ", ".join(REFERENCES[name][0] for name in dict.fromkeys(runs["reference"]))


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table after every split."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--references", nargs="+", choices=REFERENCES, default=list(REFERENCES))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning|sklearn")
    warnings.filterwarnings("ignore", message=".*are contradicted by the other cells")
    result: dict[str, Any] = {"versions": versions("scikit-learn"), "runs": [], "labels": []}
    # Folds of the accuracy benchmark have seeds from 0 on.
    for seed in range(100, 100 + given.seeds):
        for name in given.references:
            adata = REFERENCES[name][1](given.data)
            (split,) = few(adata, adata.n_obs * 2 // 3, seed)
            found = one_reference(split, seed, given.variants)
            result["runs"] += [{"reference": name, **run} for run in found]
            result["labels"].append({"reference": name, "seed": seed, **label_errors(adata, seed)})
        write(given.out, "recipe", result, report(result))


if __name__ == "__main__":
    main()
