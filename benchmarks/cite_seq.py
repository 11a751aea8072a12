"""What antibodies add to RNA, and what a model of both does with RNA alone.

``python -m benchmarks.cite_seq PATH.h5mu`` from the repository's root writes
``docs/benchmarks/cite_seq.md`` and ``cite_seq.json``. For each split, half of the cells of each
label are the reference and the other half the query. What was measured is kept after every run, and
a run that was measured with the same settings is not repeated, so that it can be broken off.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from importlib.metadata import version
from itertools import product
from pathlib import Path
from time import perf_counter
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

# Antibody and the gene by whose RNA the label that it should carry is recognised: B cells and
# monocytes.
MARKERS = {"CD19": "MS4A1", "CD14": "LYZ"}
TRAINING = ("min_share", "max_gene_sets", "max_epochs", "batch_size")
VERSIONS = ("tosica", "mudata", "scvi-tools", "torch")
MODELS = {"joint": {"rna": "rna", "protein": "protein"}, "RNA only": {"rna": "rna"}}
COLUMNS = {
    "joint, RNA and protein": "both seen by the joint model",
    "joint, RNA alone": "RNA alone seen by the joint model",
    "joint, protein alone": "antibodies alone seen by the joint model",
    "RNA only": "the model of RNA",
}


def one_run(mdata: md.MuData, labels_key: str, *, split: int, seed: int, **settings: Any) -> dict:
    """Train both models on one half with one seed, and score them on the other."""
    truth = mdata.obs[labels_key].astype(str).to_numpy()
    halves = StratifiedShuffleSplit(1, test_size=0.5, random_state=split)
    train, test = next(halves.split(truth, truth))
    reference, query = mdata[train].copy(), mdata[test].copy()
    expressed = np.asarray((reference["rna"].X > 0).mean(0)).ravel() >= settings["min_share"]
    reference.mod["rna"] = reference["rna"][:, expressed].copy()
    reference.update()
    tosica.pp.build_mask(reference, max_gene_sets=settings["max_gene_sets"])
    found: dict[str, Any] = {"split": split, "seed": seed}
    for name, modalities in MODELS.items():
        tosica.TOSICA.setup_mudata(reference, labels_key, modalities=modalities)
        # More threads do not pay for networks of this size. Set anew each time: scanpy's tests take
        # all of them, and leave torch with as many.
        torch.set_num_threads(1)
        scvi.settings.seed = seed
        model = tosica.TOSICA(reference)
        started = perf_counter()
        model.train(
            max_epochs=settings["max_epochs"],
            batch_size=settings["batch_size"],
            accelerator="cpu",
            enable_progress_bar=False,
        )
        found[f"{name}, seconds"] = perf_counter() - started
        seen = {"RNA only": query["rna"]}
        if name == "joint":
            seen = {
                "joint, RNA and protein": query,
                "joint, RNA alone": query["rna"],
                "joint, protein alone": query["protein"],
            }
            found |= antibodies(model, query, truth[test], settings["labels"])
        for column, data in seen.items():
            found[column] = f1_score(truth[test], model.predict(data), average="macro")
    return found


def antibodies(
    model: tosica.TOSICA, query: md.MuData, truth: np.ndarray, labels: list[str]
) -> dict[str, dict[str, list[str]]]:
    """For each label the antibodies from the one that carries it most to the one that does least.

    Once by attention, as :func:`tosica.tl.rank_gene_sets` ranks it among cells that are called so;
    once, for some labels, by how much the label's probability falls in its cells if an antibody is
    hidden.
    """
    annotated = model.annotate(query, copy=True)
    called = annotated.obs["tosica_prediction"]
    enough = [label for label, n in called.value_counts().items() if n > 1]
    tosica.tl.rank_gene_sets(annotated, "tosica_prediction", groups=enough)
    ranked = tosica.get.rank_gene_sets_df(annotated)
    ranked = ranked[ranked["gene_set"].astype(str).str.startswith("protein:")]
    attention = {
        str(label): [str(name).removeprefix("protein:") for name in of_label["gene_set"]]
        for label, of_label in ranked.groupby("group", observed=True)
    }
    theirs = np.isin(truth, labels)
    protein, truth = query["protein"][theirs].copy(), truth[theirs]
    whole = model.predict(protein, soft=True)
    falls = pd.DataFrame(
        {
            name: (
                whole - model.predict(protein[:, protein.var_names != name].copy(), soft=True)
            ).to_numpy()[np.arange(len(truth)), whole.columns.get_indexer(truth)]
            for name in protein.var_names
        }
    )
    mean_falls = falls.groupby(truth).mean()
    hidden = {
        str(label): list(row.sort_values(ascending=False).index)
        for label, row in mean_falls.iterrows()
    }
    return {"attention": attention, "hidden": hidden}


def marker_labels(mdata: md.MuData, truth: np.ndarray) -> dict[str, str]:
    """Which label is which type, told by the RNA of a gene that needs no antibody."""
    rna = mdata["rna"]
    means = {
        antibody: pd.Series(np.asarray(rna[:, gene].X.sum(1)).ravel()).groupby(truth).mean()
        for antibody, gene in MARKERS.items()
    }
    return {antibody: str(mean.idxmax()) for antibody, mean in means.items()}


def separation(mdata: md.MuData, truth: np.ndarray) -> dict[str, list[tuple[str, float]]]:
    """How well each antibody's own centred log-ratio tells each label from the rest (AUROC)."""
    protein = mdata["protein"]
    values = protein.X.toarray() if sp.issparse(protein.X) else np.asarray(protein.X)
    logs = np.log1p(values)
    table = pd.DataFrame(logs - logs.mean(1, keepdims=True), columns=protein.var_names)
    return {
        str(label): sorted(
            ((name, float(roc_auc_score(truth == label, table[name]))) for name in table),
            key=lambda pair: -pair[1],
        )
        for label in np.unique(truth)
    }


def table(runs: list[dict], settings: dict[str, Any]) -> str:
    """Write the page."""
    epochs, size = settings["max_epochs"], settings["batch_size"]
    trained = f"minibatches of {size} cells, default length of training."
    if epochs is not None:
        trained = (
            f"{epochs} epochs of minibatches of {size} cells, which is shorter than the default to "
            "bound the time."
        )
    lines = [
        "# CITE-seq: RNA and antibodies",
        "",
        f"Macro-F1 of {len(runs)} runs ({len({r['split'] for r in runs})} stratified halves, "
        f"{len({r['seed'] for r in runs})} seeds) on {settings['data']}, labels "
        f"`{settings['labels_key']}`; genes in at least {settings['min_share']:.0%} of the "
        f"reference's cells, {settings['max_gene_sets']} gene sets, " + trained,
        "",
        "| | mean | standard deviation | lowest |",
        "|---|---|---|---|",
    ]
    for column, what in COLUMNS.items():
        values = np.array([run[column] for run in runs])
        lines.append(f"| {what} | {values.mean():.3f} | {values.std():.3f} | {values.min():.3f} |")
    for first, second in (
        ("joint, RNA and protein", "RNA only"),
        ("joint, RNA alone", "RNA only"),
    ):
        gap = np.array([run[first] - run[second] for run in runs])
        lines.append(
            f"| {COLUMNS[first]} − {COLUMNS[second]} | {gap.mean():+.3f} | {gap.std():.3f} | "
            f"{gap.min():+.3f} |"
        )
    kinds = settings["markers"]
    lines += [
        "",
        "## Antibodies that carry a label",
        "",
        "By attention: the rank of the antibody among the antibodies in "
        "{func}`~tosica.tl.rank_gene_sets`. By hiding: how much the probability of a label falls "
        "in its cells if the model sees their antibodies without this one. By value: the AUROC of "
        "the antibody's own centred log-ratio, without a model.",
        "",
        "| label | antibody | first by attention | among the first three | first by hiding | "
        "among the first three | rank by value |",
        "|---|---|---|---|---|---|---|",
    ]
    for antibody, label in kinds.items():
        cells = []
        for how in ("attention", "hidden"):
            orders = [run[how][label] for run in runs if label in run[how]]
            for n in (1, 3):
                hits = sum(antibody in order[:n] for order in orders)
                cells.append(f"{hits} of {len(orders)} runs")
        values = settings["separation"][label]
        place = [name for name, _ in values].index(antibody)
        cells.append(f"{place + 1} (AUROC {values[place][1]:.3f})")
        lines.append(f"| {label} ({MARKERS[antibody]} RNA) | {antibody} | {' | '.join(cells)} |")
    lines += ["", "Antibodies that come first, and in how many runs:", ""]
    lines += ["| label | by attention | by hiding | by value (AUROC) |", "|---|---|---|---|"]
    for label, values in settings["separation"].items():
        cells = []
        for how in ("attention", "hidden"):
            first = [run[how][label][0] for run in runs if label in run[how]]
            names, counts = np.unique(first, return_counts=True)
            order = np.argsort(-counts, kind="stable")[:3]
            cells.append(", ".join(f"{names[i]} ({counts[i]})" for i in order) or "–")
        cells.append(", ".join(f"{name} ({value:.2f})" for name, value in values[:3]))
        lines.append(f"| {label} | {' | '.join(cells)} |")
    versions = ", ".join(f"{name} {settings[name]}" for name in VERSIONS)
    return "\n".join([*lines, "", f"Written by `benchmarks/cite_seq.py` ({versions}).", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="h5mu with modalities rna and protein")
    parser.add_argument("--labels-key", default="adt_cluster")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--min-share", type=float, default=0.05)
    parser.add_argument("--max-gene-sets", type=int, default=100)
    parser.add_argument("--max-epochs", type=int, default=None)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    arguments = parser.parse_args()
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # What mudata and lightning say at every step of their own.
    warnings.filterwarnings("ignore", module="mudata|lightning")
    mdata = md.read_h5mu(arguments.data)
    truth = mdata.obs[arguments.labels_key].astype(str).to_numpy()
    settings = {
        "data": arguments.data.name,
        "labels_key": arguments.labels_key,
        "min_share": arguments.min_share,
        "max_gene_sets": arguments.max_gene_sets,
        "max_epochs": arguments.max_epochs,
        "batch_size": arguments.batch_size,
        **{name: version(name) for name in VERSIONS},
        "markers": marker_labels(mdata, truth),
        "separation": {
            label: [list(pair) for pair in pairs]
            for label, pairs in separation(mdata, truth).items()
        },
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "cite_seq.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    runs = kept.get("runs", []) if kept.get("settings") == settings else []
    done = {(run["seed"], run["split"]) for run in runs}
    for seed, split in product(range(arguments.seeds), range(arguments.splits)):
        if (seed, split) in done:
            continue
        chosen = {key: settings[key] for key in TRAINING}
        chosen["labels"] = list(settings["markers"].values())
        runs.append(one_run(mdata, arguments.labels_key, split=split, seed=seed, **chosen))
        path.write_text(json.dumps({"settings": settings, "runs": runs}, indent=1) + "\n")
        path.with_suffix(".md").write_text(table(runs, settings))
        print({key: runs[-1][key] for key in ("split", "seed", *COLUMNS)}, flush=True)


if __name__ == "__main__":
    main()
