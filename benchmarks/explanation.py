"""Whether explanations are right, can be told from chance, and stay the same.

``python -m benchmarks.explanation FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py``, ``sorted_blood.h5ad`` and ``pbmc3k.h5ad`` in that folder, writes
``explanation.json``. ``--only`` measures some parts anew and
keeps the others of an earlier result:

- planted: a set of genes with four times the expression in one of two simulated classes;
- markers: markers of each label from one half of the cells, as sets among all others, in models of
  the other half, beside decoupler's ULM on expression if it is installed;
- halves, seeds: models of two halves of a reference, and of other seeds;
- permuted: the same contributions with gene names permuted within the collection;
- deletion: probabilities while genes are set to the baseline, or back, in the order of the explanation;
- first: the first gene sets of each label, for somebody who knows the cells.
"""

from __future__ import annotations

import json
import time
from datetime import date
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import scanpy as sc
import scvi
import torch
from scripts.certify_model import evidence_by_chance

import tosica
from benchmarks._accuracy_tasks import (
    LABEL,
    Split,
    breast,
    cite,
    few,
    kang,
    lung,
    pbmc68k,
    prepared,
)
from benchmarks._models import train_default
from benchmarks._results import (
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData

# Labels with fewer cells are left out.
MIN_CELLS = 30
# Markers of a label.
N_MARKERS = 30
# Leading genes that are compared.
N_LEADING = 10
N_PERMUTATIONS = 10
N_PLANTED = 20
AGREEING = ("genes", "listed", "evidence")
KEY = "tosica_attribution"
# Orders in which genes are removed.
ORDERS = ("genes", "gene sets", "random")
# Judgements of the first gene sets, by eye: sensible unless it is named here.
JUDGED = Path(__file__).with_name("judged_gene_sets.csv")


def sorted_blood(data: Path) -> AnnData:
    """Cells sorted by antibodies (Zheng et al., 2017)."""
    return prepared(ad.read_h5ad(data / "sorted_blood.h5ad"), "cell_type")


def pbmc3k(data: Path) -> AnnData:
    """The cells of 10x Genomics with the labels of scanpy's tutorial."""
    return prepared(ad.read_h5ad(data / "pbmc3k.h5ad"), "cell_type")


def mouse_tissues(data: Path) -> AnnData:
    """Types of 18 tissues (Tabula Muris, 2018)."""
    adata = ad.read_h5ad(data / "mouse_tissues.h5ad")
    # Logarithms already.
    adata.obs = pd.DataFrame({LABEL: adata.obs["cell_type"].astype("category")})
    return adata


DATASETS: dict[str, tuple[str, Callable[[Path], AnnData]]] = {
    "kang": ("Kang", kang),
    "pbmc68k": ("pbmc68k", pbmc68k),
    "lung": ("lung", lung),
    "sorted": ("sorted blood", sorted_blood),
    "breast": ("breast", breast),
    "pbmc3k": ("PBMC 3k", pbmc3k),
    "cite": ("CITE-seq, RNA", cite),
    "mouse": ("mouse tissues", mouse_tissues),
}
OF_PART = {
    "markers": ("kang", "pbmc68k", "lung", "sorted", "breast"),
    "halves": ("kang", "pbmc68k", "pbmc3k"),
    "seeds": ("kang", "pbmc68k"),
    "permuted": ("kang", "pbmc68k", "pbmc3k"),
    "deletion": ("kang", "pbmc68k"),
    "first": ("kang", "pbmc68k", "cite", "sorted", "pbmc3k", "mouse"),
}
# First gene sets that the page lists; all are in the JSON file.
LISTED = ("sorted",)


# --------------------------------------------------------------------------- models


def train(
    reference: AnnData, seed: int, marker_sets: dict[str, list[str]] | None = None
) -> tosica.TOSICA:
    """Train a model with defaults; marker sets are added to the default gene sets."""
    if not marker_sets:
        return train_default(reference, seed)
    tosica.pp.build_mask(reference)
    mask = reference.uns["tosica_mask"]
    collection = tosica.gs.load(mask["source"])
    gene_sets = {name: collection[name] for name in mask["gene_sets"]}
    tosica.pp.build_mask(reference, gene_sets | marker_sets, max_jaccard=1)
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
    torch.set_num_threads(1)
    scvi.settings.seed = seed
    model = tosica.TOSICA(reference)
    model.train(accelerator="cpu", enable_progress_bar=False)
    return model


@cache
def read_cells(name: str, data: Path) -> AnnData:
    """Read a data set."""
    return DATASETS[name][1](data)


@cache
def trained(
    name: str, data: Path, seed: int, half: int | None = None
) -> tuple[tosica.TOSICA, AnnData]:
    """Train a model on a data set, or on a half of it, and return both."""
    adata = read_cells(name, data)
    reference = adata.copy() if half is None else halves(adata, seed)[half]
    return train(reference, seed), reference


def explain(model: tosica.TOSICA, cells: AnnData) -> AnnData:
    """Annotate cells and explain their predicted labels."""
    cells = cells.copy()
    model.annotate(cells)
    tosica.tl.attribute(cells, model)
    return cells


def halves(adata: AnnData, seed: int) -> Split:
    """Two halves with as many cells of each label."""
    return few(adata, adata.n_obs // 2, seed)[0]


def frequent_labels(adata: AnnData) -> list[str]:
    """Labels with enough cells."""
    n_cells = adata.obs[LABEL].value_counts()
    return sorted(str(label) for label in n_cells.index[n_cells >= MIN_CELLS])


def rank_of(name: str, names: list[str]) -> int | None:
    """Rank of a name in a list, from 1 on; ``None`` if it is missing."""
    return names.index(name) + 1 if name in names else None


# --------------------------------------------------------------------------- parts


def planted(seed: int) -> dict[str, Any]:
    """Rank of the planted set in models of simulated cells."""
    rng = np.random.default_rng(seed)
    genes = np.array([f"GENE{i}" for i in range(600)])
    sets = {f"set {i}": list(rng.choice(genes, 20, replace=False)) for i in range(30)}
    is_raised = np.arange(800) % 2 == 0
    truth = f"set {rng.integers(30)}"
    base = rng.gamma(0.6, size=600) + 0.05
    rates = np.tile(base * 1_000 / base.sum(), (800, 1))
    rates[np.ix_(is_raised, np.isin(genes, sets[truth]))] *= 4
    counts = rng.poisson(rates * rng.lognormal(0, 0.3, (800, 1))).astype(np.float32)
    adata = ad.AnnData(counts, var=pd.DataFrame(index=genes))
    adata.obs[LABEL] = np.where(is_raised, "raised", "other")
    model = train_default(adata[:400].copy(), seed, gene_sets=sets)
    cells = explain(model, adata[400:])
    names = tosica.get.gene_sets_df(cells, "raised", similar=True)["gene_set"].tolist()
    return {"rank": rank_of(truth, names), "sets": len(names)}


def markers(adata: AnnData, seed: int) -> list[dict[str, Any]]:
    """Rank of each label's own markers among all gene sets, and by ULM on expression."""
    marker_cells, reference = halves(adata, seed)
    labels = frequent_labels(adata)
    marker_cells = marker_cells[marker_cells.obs[LABEL].isin(labels)].copy()
    sc.tl.rank_genes_groups(marker_cells, LABEL)
    genes = marker_cells.uns["rank_genes_groups"]["names"]
    sets = {f"markers of {label}": list(genes[label][:N_MARKERS]) for label in labels}
    model = train(reference, seed, sets)
    cells = explain(model, reference)
    ulm_scores = ulm(model, cells)
    rows = []
    for label in labels:
        name = f"markers of {label}"
        names = tosica.get.gene_sets_df(cells, label, similar=True)["gene_set"].tolist()
        row = {
            "label": label,
            "rank": rank_of(name, names),
            "first": names[0] if names else None,
        }
        if ulm_scores is not None:
            row["ulm"] = int(ulm_scores.loc[label].rank(ascending=False)[name])
        rows.append(row)
    return rows


def ulm(model: tosica.TOSICA, cells: AnnData) -> pd.DataFrame | None:
    """Mean scores of decoupler's ULM in each label less those in the other cells, labels × sets."""
    try:
        import decoupler
    except ImportError:
        return None
    set_names, members = model.modalities[0].gene_sets()
    pairs = members.tocoo()
    genes = np.asarray(model.get_var_names())
    net = pd.DataFrame(
        {
            "source": np.array(set_names)[pairs.col],
            "target": genes[pairs.row],
            "weight": 1.0,
        }
    )
    scored = cells.copy()
    decoupler.mt.ulm(scored, net, tmin=1)
    scores = scored.obsm["score_ulm"]
    labels = cells.obs[LABEL].astype(str).to_numpy()
    means = {
        label: scores[labels == label].mean() - scores[labels != label].mean()
        for label in np.unique(labels)
    }
    return pd.DataFrame(means).T.reindex(columns=set_names)


Explained = dict[str, set[str]]


def agreement(cells: list[AnnData]) -> list[dict[str, float]]:
    """Jaccard indices between the explanations of each pair of models."""
    explanations = [explanation_of(adata) for adata in cells]
    return [
        {name: jaccard(first[name], second[name]) for name in AGREEING}
        for first, second in combinations(explanations, 2)
    ]


def explanation_of(cells: AnnData) -> dict[str, Explained]:
    """Leading genes, listed gene sets and all gene sets with evidence, of each label."""
    genes = cells.uns[KEY]["genes"]
    listed = tosica.get.gene_sets_df(cells)
    evidence = tosica.get.gene_sets_df(cells, similar=True)
    return {
        "genes": {
            str(label): set(contributions.nlargest(N_LEADING).index)
            for label, contributions in genes.items()
        },
        "listed": _sets_by_label(listed),
        "evidence": _sets_by_label(evidence),
    }


def _sets_by_label(gene_sets: pd.DataFrame) -> Explained:
    by_label = gene_sets.groupby("group", observed=True)["gene_set"]
    return {str(label): set(names) for label, names in by_label}


def jaccard(left: Explained, right: Explained) -> float:
    """Mean Jaccard index over the labels for which either has any."""
    indices = []
    for label in {**left, **right}:
        a = left.get(label, set())
        b = right.get(label, set())
        indices.append(len(a & b) / len(a | b))
    return float(np.mean(indices))


def permuted(model: tosica.TOSICA, cells: AnnData) -> dict[str, Any]:
    """Labels with evidence for any set when gene names are permuted, and with the real names."""
    record = cells.uns[KEY]
    n_labels = record["genes"].shape[1]
    n_with_evidence = record["evidence"]["group"].nunique()
    by_chance = evidence_by_chance(record, model, N_PERMUTATIONS, seed=0)
    return {
        "permuted": by_chance,
        "real": n_with_evidence / n_labels,
        "labels": n_labels,
    }


def deletion(model: tosica.TOSICA, cells: AnnData) -> dict[str, Any]:
    """Areas under the curves of deletion and insertion, and time and error of the explanation."""
    seconds = []
    for is_detailed in (False, True):
        start_time = time.process_time()
        tosica.tl.attribute(cells, model, cells=is_detailed, genes=is_detailed)
        seconds.append(time.process_time() - start_time)
    tosica.tl.faithfulness(cells, model)
    areas = cells.uns["faithfulness"]["area"]
    columns = ["change", "order", "area", "better_than_random"]
    return {
        "areas": areas[columns].to_dict("records"),
        "took": seconds,
        "cells": cells.n_obs,
        "error": cells.uns[KEY]["completeness_error"],
    }


def leading(cells: AnnData) -> list[dict[str, Any]]:
    """The first genes of each label, and its first gene sets that are not alike."""
    evidence = tosica.get.gene_sets_df(cells)
    rows = []
    for label, genes in tosica.get.explain(cells)["genes"].items():
        sets = evidence.loc[evidence["group"] == label, "gene_set"].head(3)
        rows.append({"label": str(label), "genes": genes, "sets": list(sets)})
    return rows


def measure(section: str, data: Path, n_seeds: int) -> dict[str, Any]:
    """Measure one part on each of its data sets."""
    if section == "planted":
        return {"planted": [planted(seed) for seed in range(N_PLANTED)]}
    results = {}
    for name in OF_PART[section]:
        results[name] = measure_on(section, name, data, n_seeds)
        print(section, name, results[name], flush=True)
    return results


def measure_on(section: str, name: str, data: Path, n_seeds: int) -> Any:
    """Measure one part on one data set."""
    adata = read_cells(name, data)
    if section == "markers":
        return [row for seed in range(n_seeds) for row in markers(adata, seed)]
    if section == "halves":
        runs = []
        for seed in range(n_seeds):
            models = [trained(name, data, seed, half) for half in (0, 1)]
            runs += agreement([explain(model, cells) for model, cells in models])
        return runs
    if section == "seeds":
        models = [trained(name, data, seed) for seed in range(n_seeds)]
        return agreement([explain(model, cells) for model, cells in models])
    if section == "deletion":
        model, _ = trained(name, data, 0, 0)
        return deletion(model, explain(model, halves(adata, 0).query))
    model, _ = trained(name, data, 0)
    cells = explain(model, adata)
    return permuted(model, cells) if section == "permuted" else leading(cells)


# --------------------------------------------------------------------------- the page


def judgements() -> dict[tuple[str, str, str], str]:
    """Judgements that are not "sensible", by data set, label and gene set."""
    rows = pd.read_csv(JUDGED)
    return {
        (row.dataset, row.label, row.gene_set): row.judgement
        for row in rows.itertuples()
    }


def mean_and_range(values: list[float]) -> str:
    """Mean, lowest and highest value."""
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    sections = result["parts"]
    ranks = [row["rank"] for row in sections["planted"]["planted"]]
    days = result["measured"]
    measured = ", ".join(f"{section} on {day}" for section, day in days.items())
    dates = [f"Measured: {measured}.", ""] if len(set(days.values())) > 1 else []
    lines = [
        "# Explanation",
        "",
        "`python -m benchmarks.explanation`. {func}`~tosica.tl.attribute` gives the genes that add to a label's score,",
        "and the gene sets with evidence. Models have defaults.",
        "",
        "![Areas under the curves of deletion and insertion](../_static/explanation.png)",
        "",
        "## Planted set",
        "",
        "One of 30 random sets of 20 genes has four times the expression in one of two simulated classes.",
        f"It is the first gene set of that class in {sum(rank == 1 for rank in ranks)} of {len(ranks)} models.",
        "",
        *_marker_lines(sections["markers"]),
        *_chance_lines(sections["permuted"]),
        *_stability_lines(sections),
        *_deletion_lines(sections["deletion"]),
        *_leading_lines(sections["first"]),
        *dates,
        *version_lines(result),
    ]
    return "\n".join(lines)


def _marker_lines(results: dict[str, list[dict[str, Any]]]) -> list[str]:
    rows = []
    for name, runs in results.items():
        n_labels = len({run["label"] for run in runs})
        share = np.mean([run["rank"] == 1 for run in runs])
        by_ulm = [run["ulm"] == 1 for run in runs if "ulm" in run]
        ulm_share = f"{np.mean(by_ulm):.0%}" if by_ulm else "not installed"
        n_models = len(runs) // n_labels
        rows.append([DATASETS[name][0], n_labels, n_models, f"{share:.0%}", ulm_share])
    return [
        "## Own markers",
        "",
        f"{N_MARKERS} markers of each label come from one half of the cells, and are sets among all others in",
        f"models of the other half. Labels have at least {MIN_CELLS} cells. The share whose own markers come",
        "first:",
        "",
        *table(
            ["data", "labels", "models", "tosica", "decoupler's ULM on expression"],
            rows,
        ),
        "",
    ]


def _chance_lines(results: dict[str, dict[str, Any]]) -> list[str]:
    rows = []
    for name, shares in results.items():
        real = f"{shares['real']:.0%}"
        by_chance = f"{shares['permuted']:.1%}"
        rows.append([DATASETS[name][0], shares["labels"], real, by_chance])
    return [
        "## Chance",
        "",
        "Labels with evidence for any set at a family-wise error rate of 5 %, with real gene sets and with gene",
        f"names permuted, {N_PERMUTATIONS} draws:",
        "",
        *table(["data", "labels", "real", "permuted"], rows),
        "",
    ]


def _stability_lines(sections: dict[str, Any]) -> list[str]:
    titles = {"halves": "two halves of the cells", "seeds": "two seeds"}
    rows = []
    for section, title in titles.items():
        for name, runs in sections[section].items():
            row = [title, DATASETS[name][0], len(runs)]
            row += [mean_and_range([run[key] for run in runs]) for key in AGREEING]
            rows.append(row)
    head = [
        "models",
        "data",
        "pairs",
        f"first {N_LEADING} genes",
        "listed gene sets",
        "all gene sets",
    ]
    return [
        "## Stability",
        "",
        f"Jaccard index of the first {N_LEADING} genes of a label, of the gene sets that `get.gene_sets_df` lists, and",
        "of all with evidence, between two models; mean and range over pairs of models:",
        "",
        *table(head, rows),
        "",
    ]


def _deletion_lines(results: dict[str, dict[str, Any]]) -> list[str]:
    areas = []
    times = []
    better = []
    for name, measured in results.items():
        title = DATASETS[name][0]
        for change in dict.fromkeys(row["change"] for row in measured["areas"]):
            of_change = {
                row["order"]: row
                for row in measured["areas"]
                if row["change"] == change
            }
            areas.append([title, change, *(of_change[o]["area"] for o in ORDERS)])
            better += [of_change[order]["better_than_random"] for order in ORDERS[:2]]
        seconds = [f"{value:.1f}" for value in measured["took"]]
        times.append([title, measured["cells"], *seconds, f"{measured['error']:.2%}"])
    time_head = [
        "data",
        "cells",
        "seconds, labels",
        "seconds, each cell",
        "completeness error",
    ]
    return [
        "## Deletion and insertion",
        "",
        "Genes of a cell are set to the baseline one after the other, or back. The area under the probability of",
        "the cell's label is small (deletion) or large (insertion) if the order is faithful. Gene sets with",
        "evidence come first, then the others and each gene of no set, by what their genes add on average. Both orders",
        f"are better than the random one in at least {min(better):.0%} of the cells.",
        "",
        *table(["data", "change", *ORDERS], areas),
        "",
        "Processor seconds of `tl.attribute`, and the error of the sum over genes:",
        "",
        *table(time_head, times),
        "",
    ]


def _leading_lines(results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Judged gene sets of each label: numbers of all data sets, and lists of some."""
    judged = judgements()
    verdicts = ["sensible", "vague", "wrong"]
    columns = ["labels", "without", "first sensible", "gene sets", *verdicts]
    counts = pd.DataFrame(0, list(results), columns)
    lists: list[str] = []
    for name, labels in results.items():
        rows = []
        for row in labels:
            texts = []
            row_verdicts = []
            for gene_set in row["sets"]:
                verdict = judged.get((name, row["label"], gene_set), "sensible")
                is_sensible = verdict == "sensible"
                row_verdicts.append(verdict)
                texts.append(gene_set if is_sensible else f"{gene_set} ({verdict})")
                counts.loc[name, ["gene sets", verdict]] += 1
            counts.loc[name, "labels"] += 1
            counts.loc[name, "without"] += not texts
            counts.loc[name, "first sensible"] += row_verdicts[:1] == ["sensible"]
            rows.append([row["label"], row["genes"], "; ".join(texts) or "none"])
        if name in LISTED:
            lists += [f"### {DATASETS[name][0]}", ""]
            lists += [*table(["label", "genes", "gene sets"], rows), ""]
    is_human = counts.index != "mouse"
    totals = {"human blood": counts[is_human].sum(), "all": counts.sum()}
    counts = pd.concat([counts, pd.DataFrame(totals).T])
    summary = []
    for name, row in counts.iterrows():
        title = DATASETS[name][0] if name in DATASETS else name
        texts = [f"{row[v]} ({row[v] / row['gene sets']:.0%})" for v in verdicts]
        summary.append([title, *row[:4], *texts])
    return [
        "## First gene sets",
        "",
        "Up to three first gene sets of each label, judged by eye by one of us: sensible unless noted. The test",
        "of gene sets, and which are listed, were chosen on these data. *Without* are labels without evidence,",
        "*first sensible* those whose first set is.",
        "",
        *table(["data", *columns], summary),
        "",
        *lists,
    ]


def main(arguments: list[str] | None = None) -> None:
    """Measure the parts, and write the page."""
    parser = make_parser(__doc__)
    all_parts = ["planted", *OF_PART]
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=all_parts, default=all_parts)
    options = parser.parse_args(arguments)
    quiet()
    path = options.out / "explanation.json"
    result = {"parts": {}, "measured": {}}
    if path.exists():
        result = json.loads(path.read_text())
    for section in options.only:
        result["parts"][section] = measure(section, options.data, options.seeds)
        result["versions"] = versions()
        result["measured"][section] = str(date.today())
        options.out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    if set(all_parts) <= set(result["parts"]):
        write(options.out, "explanation", result, report(result))


if __name__ == "__main__":
    main()
