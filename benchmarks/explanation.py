"""Whether explanations are right, can be told from chance, and stay the same.

``python -m benchmarks.explanation FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py``, ``sorted_blood.h5ad`` and ``pbmc3k.h5ad`` in that folder, writes
``docs/benchmarks/explanation.md`` and ``explanation.json``. ``--only`` measures some parts anew and
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

import argparse
import json
import logging
import time
import warnings
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
    breast,
    cite,
    few,
    kang,
    lung,
    pbmc68k,
    prepared,
)
from benchmarks._results import table, version_lines, versions, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData

# Labels with fewer cells are left out; markers of a label; first gene sets that are compared.
FEWEST, N_MARKERS, N_FIRST = 30, 30, 10
N_PERMUTATIONS, N_PLANTED = 10, 20
AGREEING = ("genes", "listed", "evidence")
KEY = "tosica_attribution"
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
LISTED = ("kang", "pbmc68k", "sorted")


# --------------------------------------------------------------------------- models


def train(
    reference: AnnData, seed: int, markers: dict[str, list[str]] | None = None
) -> tosica.TOSICA:
    """Train a model with defaults; marker sets are added to the default gene sets."""
    with warnings.catch_warnings(action="ignore"):
        tosica.pp.build_mask(reference)
        if markers:
            sets = tosica.gs.load(reference.uns["tosica_mask"]["source"])
            kept = {
                name: sets[name] for name in reference.uns["tosica_mask"]["gene_sets"]
            }
            tosica.pp.build_mask(reference, kept | markers, max_jaccard=1)
        tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
        torch.set_num_threads(1)
        scvi.settings.seed = seed
        model = tosica.TOSICA(reference)
        model.train(accelerator="cpu", enable_progress_bar=False)
    return model


@cache
def read(name: str, data: Path) -> AnnData:
    """Read a data set."""
    with warnings.catch_warnings(action="ignore"):
        return DATASETS[name][1](data)


@cache
def trained(
    name: str, data: Path, seed: int, half: int | None = None
) -> tuple[tosica.TOSICA, AnnData]:
    """Train a model on a data set, or on a half of it, and return both."""
    adata = read(name, data)
    reference = adata.copy() if half is None else halves(adata, seed)[half]
    return train(reference, seed), reference


def explain(model: tosica.TOSICA, cells: AnnData, **kwargs: Any) -> AnnData:
    """Annotate cells and explain their predicted labels."""
    cells = cells.copy()
    with warnings.catch_warnings(action="ignore"):
        model.annotate(cells)
        tosica.tl.attribute(cells, model, **kwargs)
    return cells


def halves(adata: AnnData, seed: int) -> tuple[AnnData, AnnData]:
    """Two halves with as many cells of each label."""
    ((first, second),) = few(adata, adata.n_obs // 2, seed)
    return first.copy(), second.copy()


def asked(adata: AnnData) -> list[str]:
    """Labels with enough cells."""
    n_cells = adata.obs[LABEL].value_counts()
    return sorted(str(label) for label in n_cells.index[n_cells >= FEWEST])


# --------------------------------------------------------------------------- parts


def planted(seed: int) -> dict[str, Any]:
    """Rank of the planted set in models of simulated cells."""
    rng = np.random.default_rng(seed)
    genes = np.array([f"GENE{i}" for i in range(600)])
    sets = {f"set {i}": list(rng.choice(genes, 20, replace=False)) for i in range(30)}
    raised, truth = np.arange(800) % 2 == 0, f"set {rng.integers(30)}"
    base = rng.gamma(0.6, size=600) + 0.05
    rate = np.tile(base * 1_000 / base.sum(), (800, 1))
    rate[np.ix_(raised, np.isin(genes, sets[truth]))] *= 4
    counts = rng.poisson(rate * rng.lognormal(0, 0.3, (800, 1))).astype(np.float32)
    obs = pd.DataFrame(
        {LABEL: np.where(raised, "raised", "other")},
        index=[f"cell{i}" for i in range(800)],
    )
    adata = ad.AnnData(counts, obs=obs, var=pd.DataFrame(index=genes))
    reference, query = adata[:400].copy(), adata[400:].copy()
    with warnings.catch_warnings(action="ignore"):
        tosica.pp.build_mask(reference, sets)
        tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
        scvi.settings.seed = seed
        model = tosica.TOSICA(reference)
        model.train(accelerator="cpu", enable_progress_bar=False)
    found = tosica.get.gene_sets_df(explain(model, query), "raised", similar=True)[
        "gene_set"
    ].tolist()
    return {
        "rank": found.index(truth) + 1 if truth in found else None,
        "sets": len(found),
    }


def markers(adata: AnnData, seed: int) -> list[dict[str, Any]]:
    """Rank of each label's own markers among all gene sets, and by ULM on expression."""
    of_markers, taught = halves(adata, seed)
    labels = asked(adata)
    enough = of_markers[of_markers.obs[LABEL].isin(labels)].copy()
    sc.tl.rank_genes_groups(enough, LABEL)
    names = enough.uns["rank_genes_groups"]["names"]
    sets = {f"markers of {label}": list(names[label][:N_MARKERS]) for label in labels}
    model = train(taught, seed, sets)
    cells = explain(model, taught)
    by_ulm = ulm(model, cells)
    rows = []
    for label in labels:
        own, found = (
            f"markers of {label}",
            tosica.get.gene_sets_df(cells, label, similar=True)["gene_set"].tolist(),
        )
        rank = found.index(own) + 1 if own in found else None
        row = {"label": label, "rank": rank, "first": found[0] if found else None}
        if by_ulm is not None:
            row["ulm"] = int(by_ulm.loc[label].rank(ascending=False)[own])
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
    scores, labels = scored.obsm["score_ulm"], cells.obs[LABEL].astype(str).to_numpy()
    means = {
        label: scores[labels == label].mean() - scores[labels != label].mean()
        for label in np.unique(labels)
    }
    return pd.DataFrame(means).T.reindex(columns=set_names)


def agreement(cells: list[AnnData]) -> list[dict[str, float]]:
    """Jaccard indices of what pairs of models say of a label: first genes, listed gene sets, all with evidence."""
    told = [said(each) for each in cells]
    return [
        {name: jaccard(a[name], b[name]) for name in AGREEING}
        for a, b in combinations(told, 2)
    ]


def said(cells: AnnData) -> dict[str, dict[str, set[str]]]:
    """What a model says of each label: the first genes, the gene sets that are listed, and all with evidence."""
    genes = cells.uns[KEY]["genes"]
    listed, evidence = (
        tosica.get.gene_sets_df(cells, similar=similar) for similar in (False, True)
    )
    of_labels = {
        name: {
            str(label): set(of["gene_set"])
            for label, of in table.groupby("group", observed=True)
        }
        for name, table in (("listed", listed), ("evidence", evidence))
    }
    return {
        "genes": {
            str(label): set(of.nlargest(N_FIRST).index) for label, of in genes.items()
        },
        **of_labels,
    }


def jaccard(first: dict[str, set[str]], second: dict[str, set[str]]) -> float:
    """Mean Jaccard index over the labels for which either has any."""
    both = [
        (first.get(label, set()), second.get(label, set()))
        for label in {**first, **second}
    ]
    return float(np.mean([len(a & b) / len(a | b) for a, b in both]))


def permuted(model: tosica.TOSICA, cells: AnnData) -> dict[str, Any]:
    """Labels with evidence for any set when gene names are permuted, and with the real names."""
    record = cells.uns[KEY]
    n_labels, real = record["genes"].shape[1], record["evidence"]["group"].nunique()
    by_chance = evidence_by_chance(record, model, N_PERMUTATIONS, seed=0)
    return {"permuted": by_chance, "real": real / n_labels, "labels": n_labels}


def first(model: tosica.TOSICA, cells: AnnData) -> list[dict[str, Any]]:
    """The first genes of each label, and its first gene sets that are not alike."""
    evidence = tosica.get.gene_sets_df(cells)
    rows = []
    for label, genes in tosica.get.explain(cells)["genes"].items():
        of_label = evidence[evidence["group"] == label].head(3)
        rows.append(
            {"label": str(label), "genes": genes, "sets": list(of_label["gene_set"])}
        )
    return rows


def measure(part: str, data: Path, n_seeds: int) -> dict[str, Any]:
    """Measure one part on each of its data sets."""
    if part == "planted":
        return {"planted": [planted(seed) for seed in range(N_PLANTED)]}
    found: dict[str, Any] = {}
    for name in OF_PART[part]:
        adata = read(name, data)
        if part == "markers":
            found[name] = [
                row for seed in range(n_seeds) for row in markers(adata, seed)
            ]
        elif part == "halves":
            runs = []
            for seed in range(n_seeds):
                both = [trained(name, data, seed, half) for half in (0, 1)]
                runs += agreement([explain(*each) for each in both])
            found[name] = runs
        elif part == "seeds":
            found[name] = agreement(
                [explain(*trained(name, data, seed)) for seed in range(n_seeds)]
            )
        elif part == "permuted":
            found[name] = permuted(
                model := trained(name, data, 0)[0], explain(model, adata)
            )
        elif part == "deletion":
            model, query = trained(name, data, 0, 0)[0], halves(adata, 0)[1]
            cells, took = explain(model, query), []
            for each_cell in (False, True):
                start = time.process_time()
                tosica.tl.attribute(cells, model, cells=each_cell, genes=each_cell)
                took.append(time.process_time() - start)
            tosica.tl.faithfulness(cells, model)
            area = cells.uns["faithfulness"]["area"]
            rows = area[["change", "order", "area", "better_than_random"]].to_dict(
                "records"
            )
            error = cells.uns[KEY]["completeness_error"]
            found[name] = {
                "areas": rows,
                "took": took,
                "cells": cells.n_obs,
                "error": error,
            }
        else:
            found[name] = first(
                model := trained(name, data, 0)[0], explain(model, adata)
            )
        print(part, name, found[name], flush=True)
    return found


# --------------------------------------------------------------------------- the page


def judgements() -> dict[tuple[str, str, str], str]:
    """What was judged not sensible, by data set, label and gene set."""
    rows = pd.read_csv(JUDGED)
    return {(r.dataset, r.label, r.gene_set): r.judgement for r in rows.itertuples()}


def mean_and_range(values: list[float]) -> str:
    """Mean, lowest and highest value."""
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def report(result: dict[str, Any]) -> str:
    """The page."""
    parts, title = (
        result["parts"],
        {name: title for name, (title, _) in DATASETS.items()},
    )
    ranks = [row["rank"] for row in parts["planted"]["planted"]]
    lines = [
        "# Explanation",
        "",
        "Are explanations right, can they be told from chance, and do they stay the same?",
        "{func}`~tosica.tl.attribute` gives the genes that add to a label's score, and the gene sets with",
        "evidence. Models have defaults. Written by `python -m benchmarks.explanation`.",
        "",
        "![Areas under the curves of deletion and insertion](../_static/explanation.png)",
        "",
        "## Planted set",
        "",
        "One of 30 random sets of 20 genes has four times the expression in one of two simulated classes.",
        f"It is the first gene set of that class in {sum(rank == 1 for rank in ranks)} of {len(ranks)} models.",
        "",
        "## Own markers",
        "",
        f"{N_MARKERS} markers of each label come from one half of the cells. They are sets among all others in",
        f"models of the other half. Labels with fewer than {FEWEST} cells are left out. The share whose own markers",
        "come first:",
        "",
    ]
    rows = []
    for name, found in parts["markers"].items():
        by_ulm = [row["ulm"] == 1 for row in found if "ulm" in row]
        rows.append(
            [
                title[name],
                labels := len({row["label"] for row in found}),
                len(found) // labels,
                f"{np.mean([row['rank'] == 1 for row in found]):.0%}",
                f"{np.mean(by_ulm):.0%}" if by_ulm else "not installed",
            ]
        )
    lines += [
        *table(
            ["data", "labels", "models", "tosica", "decoupler's ULM on expression"],
            rows,
        ),
        "",
    ]
    lines += [
        "## Chance",
        "",
        "Labels with evidence for any set at a family-wise error rate of 5 %, with real gene sets and with gene",
        f"names permuted within the collection, {N_PERMUTATIONS} draws:",
        "",
        *table(
            ["data", "labels", "real", "permuted"],
            [
                [
                    title[n],
                    found["labels"],
                    f"{found['real']:.0%}",
                    f"{found['permuted']:.1%}",
                ]
                for n, found in parts["permuted"].items()
            ],
        ),
        "",
        "## Stability",
        "",
        f"Jaccard index of the first {N_FIRST} genes of a label, of the gene sets that `get.gene_sets_df` lists, and",
        "of all with evidence, also similar ones, between two models; mean and range over pairs of models:",
        "",
        *table(
            [
                "models",
                "data",
                "pairs",
                f"first {N_FIRST} genes",
                "listed gene sets",
                "all gene sets",
            ],
            [
                [
                    what,
                    title[n],
                    len(runs),
                    *(mean_and_range([run[k] for run in runs]) for k in AGREEING),
                ]
                for part, what in (
                    ("halves", "two halves of the cells"),
                    ("seeds", "two seeds"),
                )
                for n, runs in parts[part].items()
            ],
        ),
        "",
        "## Deletion and insertion",
        "",
        "Genes of a cell are set to the baseline one after the other, or back. The area under the probability of",
        "the cell's label is small (deletion) or large (insertion) if the order is faithful. Gene sets with",
        "evidence come first, then the others and each gene of no set, by what their genes add on average.",
        "Also the error of the sum over genes, and processor seconds of `tl.attribute`, for labels and for each cell.",
        "",
        *table(
            [
                "data",
                "change",
                "order",
                "area",
                "cells in which it is better than at random",
            ],
            [
                [
                    title[n],
                    row["change"],
                    row["order"],
                    row["area"],
                    f"{row['better_than_random']:.0%}",
                ]
                for n, found in parts["deletion"].items()
                for row in found["areas"]
            ],
        ),
        "",
        *table(
            [
                "data",
                "cells",
                "seconds, labels",
                "seconds, each cell",
                "completeness error",
            ],
            [
                [
                    title[n],
                    found["cells"],
                    *(f"{t:.1f}" for t in found["took"]),
                    f"{found['error']:.2%}",
                ]
                for n, found in parts["deletion"].items()
            ],
        ),
        "",
        "## First gene sets",
        "",
        "Up to three first gene sets of each label that are not alike, judged by eye: sensible unless noted.",
        "One of us judged them, and the test of gene sets and which are listed were chosen on the data of this page.",
        "*Without* are labels for which no set has evidence, *first sensible* those whose first set is.",
        "",
    ]
    judged, verdicts = judgements(), ("sensible", "vague", "wrong")
    columns = ["labels", "without", "first sensible", "gene sets", *verdicts]
    counts = pd.DataFrame(0, [*parts["first"], "human blood", "all"], columns)
    listed: list[str] = []
    for name, found in parts["first"].items():
        rows = []
        for row in found:
            shown = []
            for gene_set in row["sets"]:
                verdict = judged.get((name, row["label"], gene_set), "sensible")
                counts.loc[[name, "all"], ["gene sets", verdict]] += 1
                shown.append(
                    gene_set if verdict == "sensible" else f"{gene_set} ({verdict})"
                )
            counts.loc[[name, "all"], "labels"] += 1
            counts.loc[[name, "all"], "without"] += not shown
            counts.loc[[name, "all"], "first sensible"] += (
                shown[:1] == row["sets"][:1] != []
            )
            rows.append([row["label"], row["genes"], "; ".join(shown) or "none"])
        if name in LISTED:
            listed += [
                f"### {title[name]}",
                "",
                *table(["label", "genes", "gene sets"], rows),
                "",
            ]
    counts.loc["human blood"] = counts.loc[
        [name for name in parts["first"] if name != "mouse"]
    ].sum()
    for verdict in verdicts:
        shares = counts[verdict] / counts["gene sets"]
        counts[verdict] = [
            f"{n} ({share:.0%})"
            for n, share in zip(counts[verdict], shares, strict=True)
        ]
    summary = [
        [title.get(name, name), *row]
        for name, row in zip(counts.index, counts.to_numpy(), strict=True)
    ]
    lines += [*table(["data", *counts.columns], summary), "", *listed]
    measured = ", ".join(f"{part} on {day}" for part, day in result["measured"].items())
    lines += [f"Measured: {measured}.", "", *version_lines(result)]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure the parts, and write the page and its figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=["planted", *OF_PART],
        default=["planted", *OF_PART],
    )
    given = parser.parse_args(arguments)
    logging.disable(logging.INFO)
    stored = given.out / "explanation.json"
    result = json.loads(stored.read_text()) if stored.exists() else {"parts": {}}
    for part in given.only:
        result["parts"][part] = measure(part, given.data, given.seeds)
        result |= {"versions": versions()}
        result.setdefault("measured", {})[part] = str(date.today())
        given.out.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps(result, indent=1) + "\n")
    if {"planted", *OF_PART} <= set(result["parts"]):
        write(given.out, "explanation", result, report(result))


if __name__ == "__main__":
    main()
