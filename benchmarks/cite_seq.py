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
from importlib.metadata import version
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import mudata as md
import numpy as np
import scvi
import torch
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedShuffleSplit

import tosica

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
        scvi.settings.seed = seed
        model = tosica.TOSICA(reference)
        started = perf_counter()
        model.train(max_epochs=settings["max_epochs"], accelerator="cpu", enable_progress_bar=False)
        found[f"{name}, seconds"] = perf_counter() - started
        seen = {"RNA only": query["rna"]}
        if name == "joint":
            seen = {
                "joint, RNA and protein": query,
                "joint, RNA alone": query["rna"],
                "joint, protein alone": query["protein"],
            }
            found |= antibodies(model, query)
        for column, data in seen.items():
            found[column] = f1_score(truth[test], model.predict(data), average="macro")
    return found


def antibodies(model: tosica.TOSICA, query: md.MuData) -> dict[str, dict[str, list[str]]]:
    """For each label the antibodies that carry it: those that its cells attend to most.

    Once as the highest z-scores of attention, and once as the best ranks of the rank-sum test.
    """
    annotated = model.annotate(query, copy=True)
    means = tosica.get.mean_attention(annotated, "tosica_prediction", scale="z_score")
    means = means[[name for name in means if name.startswith("protein:")]]
    by_mean = {str(label): list(row.nlargest(3).index) for label, row in means.iterrows()}
    return {"antibodies": by_mean}


def table(runs: list[dict], settings: dict[str, Any]) -> str:
    """Write the page."""
    lines = [
        "# CITE-seq: RNA and antibodies",
        "",
        f"Macro-F1 of {len(runs)} runs ({len({r['split'] for r in runs})} stratified halves, "
        f"{len({r['seed'] for r in runs})} seeds) on {settings['data']}, labels "
        f"`{settings['labels_key']}`; genes in at least {settings['min_share']:.0%} of the "
        f"reference's cells, {settings['max_gene_sets']} gene sets, "
        + (
            "default training."
            if settings["max_epochs"] is None
            else f"{settings['max_epochs']} epochs."
        ),
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
    lines += ["", "Antibodies with the highest z-score of attention, and in how many runs:", ""]
    lines += ["| label | antibodies |", "|---|---|"]
    for label in sorted({label for run in runs for label in run["antibodies"]}):
        first = [run["antibodies"][label][0] for run in runs if label in run["antibodies"]]
        names, counts = np.unique(first, return_counts=True)
        order = np.argsort(-counts)[:3]
        shown = ", ".join(f"{names[i].removeprefix('protein:')} ({counts[i]})" for i in order)
        lines.append(f"| {label} | {shown} |")
    versions = ", ".join(f"{name} {settings[name]}" for name in ("tosica", "mudata", "torch"))
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
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    arguments = parser.parse_args()
    # More threads do not pay for networks of this size, and less so beside other work.
    torch.set_num_threads(1)
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    mdata = md.read_h5mu(arguments.data)
    settings = {
        "data": arguments.data.name,
        "labels_key": arguments.labels_key,
        "min_share": arguments.min_share,
        "max_gene_sets": arguments.max_gene_sets,
        "max_epochs": arguments.max_epochs,
        **{name: version(name) for name in ("tosica", "mudata", "torch")},
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "cite_seq.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    runs = kept.get("runs", []) if kept.get("settings") == settings else []
    done = {(run["seed"], run["split"]) for run in runs}
    for seed, split in product(range(arguments.seeds), range(arguments.splits)):
        if (seed, split) in done:
            continue
        chosen = {key: settings[key] for key in ("min_share", "max_gene_sets", "max_epochs")}
        runs.append(one_run(mdata, arguments.labels_key, split=split, seed=seed, **chosen))
        path.write_text(json.dumps({"settings": settings, "runs": runs}, indent=1) + "\n")
        path.with_suffix(".md").write_text(table(runs, settings))
        print({key: runs[-1][key] for key in ("split", "seed", *COLUMNS)}, flush=True)


if __name__ == "__main__":
    main()
