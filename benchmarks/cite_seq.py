"""Accuracy of a model of RNA and antibodies, with both modalities and with one.

``python -m benchmarks.cite_seq PATH.h5mu`` from the repository's root writes
``cite_seq.json`` and its page. For each split, half of the cells of each
label are the reference and the other half the query. Results are written after every run, and an
interrupted benchmark continues where it stopped if the settings are the same.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any

import mudata as md
import numpy as np
import pandas as pd
import scipy.sparse as sp
import scvi
import torch
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import StratifiedShuffleSplit

import tosica
from benchmarks._results import table, version_lines, versions, write

# An antibody for B cells and one for monocytes, and the gene whose RNA identifies their label.
MARKERS = {"CD19": "MS4A1", "CD14": "LYZ"}
MODELS = {
    "joint": {"rna": "rna", "protein": "protein"},
    "RNA only": {"rna": "rna"},
    "protein only": {"protein": "protein"},
}
# Each model with the modalities of its query.
COLUMNS = {
    "joint, RNA and protein": "joint model, RNA and antibodies",
    "joint, RNA alone": "joint model, RNA alone",
    "joint, protein alone": "joint model, antibodies alone",
    "RNA only": "model of RNA",
    "protein only": "model of antibodies",
}
# Antibodies of each ranking that are stored.
FIRST = 5


def one_run(mdata: md.MuData, *, split: int, seed: int, **settings: Any) -> dict:
    """Train both models on one half with one seed, and score them on the other."""
    labels_key = settings["labels_key"]
    truth = mdata.obs[labels_key].astype(str).to_numpy()
    halves = StratifiedShuffleSplit(1, test_size=0.5, random_state=split)
    train, test = next(halves.split(truth, truth))
    reference, query = mdata[train].copy(), mdata[test].copy()
    expressed = (
        np.asarray((reference["rna"].X > 0).mean(0)).ravel() >= settings["min_share"]
    )
    reference.mod["rna"] = reference["rna"][:, expressed].copy()
    reference.update()
    tosica.pp.build_mask(
        reference,
        max_gene_sets=settings["max_gene_sets"],
        max_jaccard=1,
        identifiers="exact",
    )
    found: dict[str, Any] = {"split": split, "seed": seed}
    for name, modalities in MODELS.items():
        tosica.TOSICA.setup_mudata(reference, labels_key, modalities=modalities)
        # More threads do not help networks of this size. Set in each run, because scanpy's tests
        # change the number of threads of torch.
        torch.set_num_threads(1)
        scvi.settings.seed = seed
        model = tosica.TOSICA(reference)
        started = process_time()
        model.train(
            max_epochs=settings["max_epochs"],
            batch_size=settings["batch_size"],
            accelerator="cpu",
            enable_progress_bar=False,
        )
        found[f"{name}, CPU seconds"] = process_time() - started
        seen = {name: query[next(iter(modalities))]}
        if name == "joint":
            seen = {
                "joint, RNA and protein": query,
                "joint, RNA alone": query["rna"],
                "joint, protein alone": query["protein"],
            }
            found |= antibodies(model, query, truth[test], settings["markers"])
        for column, data in seen.items():
            found[column] = f1_score(truth[test], model.predict(data), average="macro")
    return found


def antibodies(
    model: tosica.TOSICA, query: md.MuData, truth: np.ndarray, markers: dict[str, str]
) -> dict[str, Any]:
    """For each label its first antibodies, and the ranks of its known marker.

    Antibodies are ranked by attention with :func:`tosica.tl.rank_gene_sets` in the cells with this
    prediction. For labels with a known marker they are also ranked by how much the label's
    probability falls in its cells if the antibody is removed.
    """
    annotated = model.annotate(query, copy=True)
    called = annotated.obs["tosica_prediction"]
    enough = [label for label, n in called.value_counts().items() if n > 1]
    tosica.tl.rank_gene_sets(
        annotated, "tosica_prediction", groups=enough, key="tosica"
    )
    ranked = tosica.get.rank_gene_sets_df(annotated)
    ranked = ranked[ranked["gene_set"].astype(str).str.startswith("protein:")]
    attention = {
        str(label): [
            str(name).removeprefix("protein:") for name in of_label["gene_set"]
        ]
        for label, of_label in ranked.groupby("group", observed=True)
    }
    theirs = np.isin(truth, list(markers.values()))
    protein, truth = query["protein"][theirs].copy(), truth[theirs]
    whole = model.predict(protein, soft=True)
    own = np.arange(len(truth)), whole.columns.get_indexer(truth)
    falls = {
        name: (
            whole
            - model.predict(protein[:, protein.var_names != name].copy(), soft=True)
        )
        for name in protein.var_names
    }
    mean_falls = (
        pd.DataFrame({k: v.to_numpy()[own] for k, v in falls.items()})
        .groupby(truth)
        .mean()
    )
    hidden = {
        str(label): list(row.sort_values(ascending=False).index)
        for label, row in mean_falls.iterrows()
    }
    orders = {"attention": attention, "hidden": hidden}
    ranks = {
        antibody: {
            how: order[label].index(antibody) + 1
            for how, order in orders.items()
            if label in order
        }
        for antibody, label in markers.items()
    }
    first = {
        how: {k: v[:FIRST] for k, v in order.items()} for how, order in orders.items()
    }
    return {"ranks": ranks, **first}


def marker_labels(mdata: md.MuData, truth: np.ndarray) -> dict[str, str]:
    """The label with the highest RNA of each marker gene."""
    rna = mdata["rna"]
    means = {
        antibody: pd.Series(np.asarray(rna[:, gene].X.sum(1)).ravel())
        .groupby(truth)
        .mean()
        for antibody, gene in MARKERS.items()
    }
    return {antibody: str(mean.idxmax()) for antibody, mean in means.items()}


def separation(mdata: md.MuData, truth: np.ndarray) -> dict[str, dict[str, float]]:
    """AUROC of each antibody's centred log-ratio for each label against the rest."""
    protein = mdata["protein"]
    values = protein.X.toarray() if sp.issparse(protein.X) else np.asarray(protein.X)
    logs = np.log1p(values)
    ratios = pd.DataFrame(logs - logs.mean(1, keepdims=True), columns=protein.var_names)
    found = {}
    for label in np.unique(truth):
        areas = {
            name: float(roc_auc_score(truth == label, ratios[name])) for name in ratios
        }
        found[str(label)] = dict(sorted(areas.items(), key=lambda pair: -pair[1]))
    return found


def _first(runs: list[dict[str, Any]], antibody: str, how: str) -> str:
    """In how many runs an antibody is the first of its label."""
    ranks = [
        run["ranks"][antibody][how] for run in runs if how in run["ranks"][antibody]
    ]
    return f"{ranks.count(1)} of {len(ranks)}"


def report(result: dict[str, Any]) -> str:
    """The page."""
    runs, settings = result["runs"], result["settings"]
    scores = pd.DataFrame(runs)
    epochs = settings["max_epochs"]
    length = "the default length of training" if epochs is None else f"{epochs} epochs"
    rows = [
        [what, f"{100 * scores[c].mean():.1f} ± {100 * scores[c].std():.1f}", "", ""]
        for c, what in COLUMNS.items()
    ]
    for row, column in zip(rows, COLUMNS, strict=True):
        if column == "RNA only":
            continue
        gap = 100 * (scores[column] - scores["RNA only"])
        row[2] = f"{gap.mean():+.1f} ± {gap.sem():.1f}"
        row[3] = f"{(gap > 0).sum()} of {len(gap)}"
    lines = [
        "# RNA and protein",
        "",
        f"Written by `python -m benchmarks.cite_seq`, from {len(runs)} runs: "
        f"{scores['split'].nunique()} stratified halves of `{settings['data']}` times "
        f"{scores['seed'].nunique()} seeds. One half is the reference, the other the query. Labels",
        f"are `{settings['labels_key']}`, clusters of the antibodies. The models have genes in at "
        f"least {settings['min_share']:.0%} of the",
        f"reference's cells, the {settings['max_gene_sets']} largest sets of `human_gobp` and "
        "modules of the genes in none of them. They are",
        f"trained with minibatches of {settings['batch_size']} cells and {length}.",
        "",
        "The table has macro-F1 in percent (mean ± standard deviation) and the difference to the "
        "model of RNA in the same run (mean ±",
        "standard error):",
        "",
        *table(["", "macro-F1", "difference to the model of RNA", "better in"], rows),
        "",
        "For the label of B cells, CD19 has the highest attention in "
        f"{_first(runs, 'CD19', 'attention')} runs, and is first by removal in {_first(runs, 'CD19', 'hidden')}.",
        "For monocytes,",
        f"CD14 is first in {_first(runs, 'CD14', 'attention')} runs, as this panel counts few molecules of it.",
        "",
    ]
    lines += version_lines(result)
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="h5mu with modalities rna and protein")
    parser.add_argument("--labels-key", default="adt_cluster")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--min-share", type=float, default=0.02)
    parser.add_argument("--max-gene-sets", type=int, default=100)
    parser.add_argument("--max-epochs", type=int)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="mudata|lightning")
    mdata = md.read_h5mu(given.data)
    truth = mdata.obs[given.labels_key].astype(str).to_numpy()
    settings = {
        "data": given.data.name,
        "labels_key": given.labels_key,
        "min_share": given.min_share,
        "max_gene_sets": given.max_gene_sets,
        "max_epochs": given.max_epochs,
        "batch_size": given.batch_size,
        "markers": marker_labels(mdata, truth),
    }
    path = given.out / "cite_seq.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    result = {
        "settings": settings,
        "versions": versions("mudata"),
        "separation": separation(mdata, truth),
        "runs": kept["runs"] if kept.get("settings") == settings else [],
    }
    done = {(run["seed"], run["split"]) for run in result["runs"]}
    for seed, split in product(range(given.seeds), range(given.splits)):
        if (seed, split) not in done:
            run = one_run(mdata, split=split, seed=seed, **settings)
            result["runs"].append(run)
            write(given.out, "cite_seq", result, report(result))
    write(given.out, "cite_seq", result, report(result))


if __name__ == "__main__":
    main()
