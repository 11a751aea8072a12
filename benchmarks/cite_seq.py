"""Accuracy of a model of RNA and antibodies, with both modalities and with one.

``python -m benchmarks.cite_seq PATH.h5mu`` from the repository's root writes
``cite_seq.json``. For each split, half of the cells of each
label are the reference and the other half the query. Results are written after every run, and an
interrupted benchmark continues where it stopped if the settings are the same.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import mudata as md
import numpy as np
import pandas as pd
import scipy.sparse as sp
import scvi
import torch
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import StratifiedShuffleSplit

import tosica
from benchmarks._results import (
    load,
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)

if TYPE_CHECKING:
    import anndata as ad

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
N_LEADING = 5


def one_run(
    mdata: md.MuData, *, split: int, seed: int, **settings: Any
) -> dict[str, Any]:
    """Train all models on one half with one seed, and score them on the other."""
    labels_key = settings["labels_key"]
    labels = mdata.obs[labels_key].astype(str).to_numpy()
    halves = StratifiedShuffleSplit(1, test_size=0.5, random_state=split)
    train, test = next(halves.split(labels, labels))
    reference = mdata[train].copy()
    query = mdata[test].copy()
    truth = labels[test]
    share = np.asarray((reference["rna"].X > 0).mean(0)).ravel()
    is_expressed = share >= settings["min_share"]
    reference.mod["rna"] = reference["rna"][:, is_expressed].copy()
    reference.update()
    tosica.pp.build_mask(
        reference,
        max_gene_sets=settings["max_gene_sets"],
        max_jaccard=1,
        identifiers="exact",
    )
    run: dict[str, Any] = {"split": split, "seed": seed}
    for name, modalities in MODELS.items():
        tosica.TOSICA.setup_mudata(reference, labels_key, modalities=modalities)
        # More threads do not help networks of this size. Set in each run, because scanpy's tests
        # change the number of threads of torch.
        torch.set_num_threads(1)
        scvi.settings.seed = seed
        model = tosica.TOSICA(reference)
        start_time = process_time()
        model.train(
            max_epochs=settings["max_epochs"],
            batch_size=settings["batch_size"],
            accelerator="cpu",
            enable_progress_bar=False,
        )
        run[f"{name}, CPU seconds"] = process_time() - start_time
        queries = {name: query[next(iter(modalities))]}
        if name == "joint":
            queries = {
                "joint, RNA and protein": query,
                "joint, RNA alone": query["rna"],
                "joint, protein alone": query["protein"],
            }
            run |= antibodies(model, query, truth, settings["markers"])
        for column, cells in queries.items():
            run[column] = f1_score(truth, model.predict(cells), average="macro")
    return run


def antibodies(
    model: tosica.TOSICA, query: md.MuData, truth: np.ndarray, markers: dict[str, str]
) -> dict[str, Any]:
    """Leading antibodies of each label, and the ranks of its marker.

    Antibodies are ranked by attention with :func:`tosica.tl.rank_gene_sets` in the cells with this
    prediction. For labels with a known marker they are also ranked by how much the label's
    probability falls in its cells if the antibody is removed.
    """
    orders = {
        "attention": rank_by_attention(model, query),
        "hidden": rank_by_removal(model, query, truth, list(markers.values())),
    }
    ranks = {
        antibody: {
            method: order[label].index(antibody) + 1
            for method, order in orders.items()
            if label in order
        }
        for antibody, label in markers.items()
    }
    leading = {
        method: {label: names[:N_LEADING] for label, names in order.items()}
        for method, order in orders.items()
    }
    return {"ranks": ranks, **leading}


def rank_by_attention(model: tosica.TOSICA, query: md.MuData) -> dict[str, list[str]]:
    """Antibodies of each predicted label, by attention."""
    annotated = model.annotate(query, copy=True)
    n_cells = annotated.obs["tosica_prediction"].value_counts()
    tosica.tl.rank_gene_sets(
        annotated,
        "tosica_prediction",
        groups=list(n_cells.index[n_cells > 1]),
        key="tosica",
    )
    ranked = tosica.get.rank_gene_sets_df(annotated)
    names = ranked["gene_set"].astype(str)
    ranked = ranked.assign(antibody=names.str.removeprefix("protein:"))
    ranked = ranked[names.str.startswith("protein:")]
    by_label = ranked.groupby("group", observed=True)["antibody"]
    return {str(label): list(antibodies) for label, antibodies in by_label}


def rank_by_removal(
    model: tosica.TOSICA, query: md.MuData, truth: np.ndarray, labels: list[str]
) -> dict[str, list[str]]:
    """Antibodies of some labels, by the fall of the label's probability without each."""
    is_labeled = np.isin(truth, labels)
    protein = query["protein"][is_labeled].copy()
    truth = truth[is_labeled]

    def probability_of_truth(cells: ad.AnnData) -> np.ndarray:
        probabilities = model.predict(cells, soft=True)
        columns = probabilities.columns.get_indexer(truth)
        return probabilities.to_numpy()[np.arange(len(truth)), columns]

    complete = probability_of_truth(protein)
    falls = pd.DataFrame(
        {
            name: complete
            - probability_of_truth(protein[:, protein.var_names != name].copy())
            for name in protein.var_names
        }
    )
    return {
        str(label): list(row.sort_values(ascending=False).index)
        for label, row in falls.groupby(truth).mean().iterrows()
    }


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
    """AUROC of each antibody's centered log-ratio for each label against the rest."""
    protein = mdata["protein"]
    values = protein.X.toarray() if sp.issparse(protein.X) else np.asarray(protein.X)
    logs = np.log1p(values)
    ratios = pd.DataFrame(logs - logs.mean(1, keepdims=True), columns=protein.var_names)
    separations = {}
    for label in np.unique(truth):
        areas = {
            name: float(roc_auc_score(truth == label, ratios[name])) for name in ratios
        }
        ranked = sorted(areas.items(), key=lambda area: -area[1])
        separations[str(label)] = dict(ranked)
    return separations


def _n_leading(runs: list[dict[str, Any]], antibody: str, method: str) -> str:
    """Number of runs in which an antibody is the first of its label."""
    all_ranks = [run["ranks"][antibody] for run in runs]
    ranks = [ranks[method] for ranks in all_ranks if method in ranks]
    return f"{ranks.count(1)} of {len(ranks)}"


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    runs = result["runs"]
    settings = result["settings"]
    scores = pd.DataFrame(runs)
    epochs = settings["max_epochs"]
    length = "the default length of training" if epochs is None else f"{epochs} epochs"
    rows = []
    for column, title in COLUMNS.items():
        f1 = 100 * scores[column]
        difference = ""
        n_better = ""
        if column != "RNA only":
            gap = f1 - 100 * scores["RNA only"]
            difference = f"{gap.mean():+.1f} ± {gap.sem():.1f}"
            n_better = f"{(gap > 0).sum()} of {len(gap)}"
        f1_text = f"{f1.mean():.1f} ± {f1.std():.1f}"
        rows.append([title, f1_text, difference, n_better])
    lines = [
        "# RNA and protein",
        "",
        f"`python -m benchmarks.cite_seq`: macro-F1 in percent in {scores['split'].nunique()} stratified halves of "
        f"`{settings['data']}` (± standard deviation), and the difference to the model of RNA (± standard error). "
        f"Labels are `{settings['labels_key']}`, clusters of the antibodies. The models have genes in at "
        f"least {settings['min_share']:.0%} of the",
        f"reference's cells, the {settings['max_gene_sets']} largest sets of `human_gobp` and modules, and are "
        f"trained with minibatches of {settings['batch_size']} cells and {length}.",
        "",
        *table(["", "macro-F1", "difference to the model of RNA", "better in"], rows),
        "",
        "For the label of B cells, CD19 has the highest attention in "
        f"{_n_leading(runs, 'CD19', 'attention')} runs, and is first by removal in",
        f"{_n_leading(runs, 'CD19', 'hidden')}.",
        "",
    ]
    lines += version_lines(result)
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run missing runs, and write the tables."""
    parser = make_parser(__doc__, has_data=False)
    parser.add_argument("data", type=Path, help="h5mu with modalities rna and protein")
    parser.add_argument("--labels-key", default="adt_cluster")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--min-share", type=float, default=0.02)
    parser.add_argument("--max-gene-sets", type=int, default=100)
    parser.add_argument("--max-epochs", type=int)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args(arguments)
    quiet()
    mdata = md.read_h5mu(options.data)
    truth = mdata.obs[options.labels_key].astype(str).to_numpy()
    settings = {
        "data": options.data.name,
        "labels_key": options.labels_key,
        "min_share": options.min_share,
        "max_gene_sets": options.max_gene_sets,
        "max_epochs": options.max_epochs,
        "batch_size": options.batch_size,
        "markers": marker_labels(mdata, truth),
    }
    earlier = load(options.out, "cite_seq")
    result = {
        "settings": settings,
        "versions": versions("mudata"),
        "separation": separation(mdata, truth),
        "runs": earlier["runs"] if earlier.get("settings") == settings else [],
    }
    done = {(run["seed"], run["split"]) for run in result["runs"]}
    for seed, split in product(range(options.seeds), range(options.splits)):
        if (seed, split) not in done:
            run = one_run(mdata, split=split, seed=seed, **settings)
            result["runs"].append(run)
            write(options.out, "cite_seq", result, report(result))
    write(options.out, "cite_seq", result, report(result))


if __name__ == "__main__":
    main()
