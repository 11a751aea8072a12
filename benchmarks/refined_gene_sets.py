"""Are genes that were taken out of gene sets found again, and random ones refused?

``python -m benchmarks.refined_gene_sets FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``docs/benchmarks/refined_gene_sets.md`` and
``refined_gene_sets.json``. The truth is known because real gene sets are changed: a fifth of the
genes of each is swapped for random genes, or is withheld. Random sets are refined, too.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import average_precision_score

import tosica
from benchmarks._accuracy_tasks import LABEL, breast, cite, gut, kang, lung, pbmc68k
from benchmarks._refined_gene_sets_page import MAX_SETS, MIN_GENES, report
from benchmarks._report import versions, write
from tosica.tl import _gene_set_membership as membership

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData
    from numpy.typing import NDArray

SHARE = 0.2
# The settings were chosen on the first.
DATASETS: dict[str, tuple[Callable[[Path], AnnData], str]] = {
    "kang": (kang, "human_gobp"),
    "kang reactome": (kang, "reactome.gmt.gz"),
    "pbmc68k": (pbmc68k, "human_gobp"),
    "cite": (cite, "human_gobp"),
    "lung": (lung, "human_gobp"),
    "breast": (breast, "human_gobp"),
    "gut": (gut, "mouse_gobp"),
}
# Changes of the arguments, measured on the first dataset.
ARGUMENTS: dict[str, dict[str, float]] = {
    "default": {},
    "price 1.5": {"price": 1.5},
    "price 2": {"price": 2.0},
    "price 3": {"price": 3.0},
    "price 4": {"price": 4.0},
    "min_recall 0.4": {"min_recall": 0.4},
    "any recall": {"min_recall": 0.0},
    "any stability": {"min_stability": 0.0},
}


def read_sets(
    adata: AnnData, gene_sets: str, max_sets: int = MAX_SETS
) -> tuple[list[str], NDArray[np.bool_]]:
    """Names and members, ``(n_gene_sets, n_genes)``, of a collection, without near-duplicates."""
    made = tosica.pp.build_mask(
        adata, gene_sets, min_genes=MIN_GENES, max_jaccard=0.5, identifiers="map", copy=True
    )
    names = made.uns["tosica_mask"]["gene_sets"]
    drawn = np.sort(np.random.default_rng(0).permutation(len(names))[:max_sets])
    return list(names[drawn]), made.varm["tosica_mask"].toarray().T[drawn]


def draw(members: NDArray[np.bool_], seed: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Draw a fifth of the genes of each set, and as many random genes outside of it."""
    rng = np.random.default_rng(seed)
    removed, added = np.zeros_like(members), np.zeros_like(members)
    for p, inside in enumerate(members):
        n = max(1, round(SHARE * int(inside.sum())))
        removed[p, rng.choice(np.flatnonzero(inside), n, replace=False)] = True
        added[p, rng.choice(np.flatnonzero(~inside), n, replace=False)] = True
    return removed, added


def random_sets(
    members: NDArray[np.bool_], expression: NDArray[np.floating], seed: int
) -> NDArray[np.bool_]:
    """Draw sets of the same size; each gene is replaced by one of similar mean expression."""
    rng = np.random.default_rng(seed)
    rank = np.argsort(np.argsort(expression))
    by_rank, n_genes = np.argsort(rank), members.shape[1]
    drawn = np.zeros_like(members)
    for p, inside in enumerate(members):
        for gene in np.flatnonzero(inside):
            near = np.clip(np.arange(rank[gene] - 50, rank[gene] + 51), 0, n_genes - 1)
            free = by_rank[near][~drawn[p, by_rank[near]]]
            drawn[p, rng.choice(free)] = True
    return drawn


def refined(
    adata: AnnData, names: list[str], members: NDArray[np.bool_], seed: int, **arguments: Any
) -> pd.DataFrame:
    """Refine gene sets with a model of them."""
    genes = adata.var_names.to_numpy()
    sets = {name: list(genes[inside]) for name, inside in zip(names, members, strict=True)}
    reference = adata.copy()
    tosica.pp.build_mask(reference, sets, max_genes=10**6, identifiers="exact")
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
    model = tosica.TOSICA(
        reference, embed_dim=4, n_heads=1, max_gene_sets=None, modules=False, linear=False
    )
    return tosica.tl.refine_gene_sets(model, random_state=seed, **arguments)


def counted(
    found: pd.DataFrame, names: list[str], genes: pd.Index, truth: dict[str, NDArray[np.bool_]]
) -> dict[str, float]:
    """Count right changes in the sets that were refined."""
    passed = [names.index(name) for name in found.attrs["refined"]]
    counts: dict[str, float] = {"refined": len(passed)}
    for change, right in truth.items():
        rows = found[found["change"] == change]
        p = [names.index(name) for name in rows["gene_set"]]
        hits = right[p, genes.get_indexer(rows["gene"])]
        counts |= {
            change: len(rows),
            f"{change} right": int(hits.sum()),
            f"{change} there": int(right[passed].sum()),
            f"{change} anywhere": int(right.sum()),
        }
    return counts


def dense(adata: AnnData) -> tuple[NDArray[np.float32], NDArray[np.integer]]:
    """Expression and label codes."""
    return adata.X.toarray().astype(np.float32), adata.obs[LABEL].cat.codes.to_numpy()


def rankings(
    adata: AnnData,
) -> dict[str, Callable[[NDArray[np.bool_]], NDArray[np.float64]]]:
    """Functions that score all genes for gene sets, ``(n_gene_sets, n_genes)``."""
    x, labels = adata.X.toarray().astype(np.float32), adata.obs[LABEL].cat.codes.to_numpy()
    genes = membership.describe_genes(x, labels)
    half = genes.loadings.shape[1] // 2
    parts = {"all": genes.loadings[:, :half], "within": genes.loadings[:, half:]}

    def of_loadings(loadings: NDArray[np.float64]) -> Callable[..., NDArray[np.float64]]:
        return lambda members: membership.held_out_scores(
            genes._replace(loadings=loadings), members
        )

    return {
        "default": of_loadings(genes.loadings),
        "correlation": lambda members: membership.mean_correlations(genes.z, members),
        "ridge": lambda members: membership.ridge_scores(genes.loadings, members),
        **{name: of_loadings(part) for name, part in parts.items()},
        "depth": of_loadings(without_depth(x, labels).loadings),
    }


def without_depth(x: NDArray[np.float32], labels: NDArray[np.integer]) -> membership.Genes:
    """Describe genes after the number of genes that a cell expresses was regressed out."""
    depth = (x > 0).sum(1).astype(np.float32)
    depth -= depth.mean()
    z = membership._standardize(x)
    slope = depth @ z / max(float(depth @ depth), 1e-9)
    return membership.describe_genes(z - np.outer(depth, slope), labels)


def average_precisions(
    rankings: dict[str, Callable[[NDArray[np.bool_]], NDArray[np.float64]]],
    members: NDArray[np.bool_],
    withheld: NDArray[np.bool_],
) -> pd.DataFrame:
    """Average precision of withheld genes among all that are not in the set; a row a gene set."""
    left = members & ~withheld
    found = {}
    for name, score in rankings.items():
        scores = score(left)
        found[name] = [
            average_precision_score(withheld[p, ~left[p]], scores[p, ~left[p]])
            for p in range(len(members))
        ]
    chance = withheld.sum(1) / (~left).sum(1)
    return pd.DataFrame(found).assign(chance=chance)


def one_seed(
    adata: AnnData,
    scorers: dict[str, Callable[[NDArray[np.bool_]], NDArray[np.float64]]],
    names: list[str],
    members: NDArray[np.bool_],
    seed: int,
    arguments: dict[str, dict[str, float]],
) -> dict[str, Any]:
    """All three parts with one draw."""
    genes, expression = adata.var_names, np.asarray(adata.X.mean(0)).ravel()
    removed, added = draw(members, seed)
    truth = {"gained": removed, "lost": added}
    swapped = (members & ~removed) | added
    run: dict[str, Any] = {"swapped": {}}
    for name, given in arguments.items():
        found = refined(adata, names, swapped, seed, **given)
        run["swapped"][name] = counted(found, names, genes, truth)
        if name == "default":
            run["refined"] = found.attrs["refined"]
    chance = random_sets(members, expression, seed)
    run["random"] = {"sets": len(names)}
    for name, given in {"gained": {}, "gained, any recall": {"min_recall": 0.0}}.items():
        found = refined(adata, names, chance, seed, **given)
        gained = found[found["change"] == "gained"]
        run["random"] |= {name: len(gained), f"sets that {name}": gained["gene_set"].nunique()}
    precisions = average_precisions(scorers, members, removed)
    # By what is left of the sets: the withheld genes are not looked at.
    left = members & ~removed
    scores = scorers["default"](left)
    defaults = inspect.signature(tosica.tl.refine_gene_sets).parameters
    price, least = (defaults[name].default for name in ("price", "min_recall"))
    recall = [membership.refine(*pair, price).recall for pair in zip(scores, left, strict=True)]
    evident = np.array(recall) >= least
    better = precisions["default"] - precisions["correlation"]
    run["withheld"] = {
        "evident": int(evident.sum()),
        "all": precisions.mean().to_dict(),
        "of evident": precisions[evident].mean().to_dict() if evident.any() else {},
        "better": float((better > 0).mean() + (better == 0).mean() / 2),
    }
    return run


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--max-sets", type=int, default=MAX_SETS, help="gene sets of a dataset")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    result: dict[str, Any] = {"runs": [], "arguments": ARGUMENTS}
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "only .* of adata's genes")
        for dataset in given.datasets:
            read, collection = DATASETS[dataset]
            adata = read(given.data)
            is_file = collection.endswith(".gmt.gz")
            source = str(given.data / "gene_sets" / collection) if is_file else collection
            names, members = read_sets(adata, source, given.max_sets)
            scorers = rankings(adata)
            few = ("default", "min_recall 0.4")
            first = dataset == given.datasets[0]
            tried = {name: ARGUMENTS[name] for name in (ARGUMENTS if first else few)}
            for seed in range(given.seeds):
                run = one_seed(adata, scorers, names, members, seed, tried)
                result["runs"].append({"dataset": dataset, "seed": seed, **run})
                print(dataset, seed, run["swapped"]["default"], run["random"], flush=True)
                print(run["withheld"], round(time.process_time() - start), flush=True)
    result["versions"] = versions("scikit-learn")
    result["versions"]["processor seconds"] = str(round(time.process_time() - start))
    write(given.out, "refined_gene_sets", result, report(result))


if __name__ == "__main__":
    main()
