"""Are cells of types that the reference lacks ranked above known ones?

``python -m benchmarks.novelty FOLDER`` from the repository's root, with the data that ``benchmarks/index.md`` names.
Types in turn are left out of a reference, which is half of a batch: one, or of many a tenth. The queries are the other
half and another batch, with some or all cells of one such type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import scvi
import torch
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score

import tosica
from benchmarks._accuracy_tasks import BATCH, LABEL, breast, kang, lung, prepared
from benchmarks._results import (
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)
from benchmarks.adapt import read_blood, read_study
from tosica._limits import LIMITS
from tosica.tl._doubts import judge_labels
from tosica.tl._evidence import Cells

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from anndata import AnnData
    from numpy.typing import NDArray


class Task(NamedTuple):
    """Title, a function that reads the cells, and the batch that the reference is half of."""

    title: str
    read: Callable[[Path], AnnData]
    batch: str


QUERIES = {"within": "same batch", "across": "other batch"}
SCORES = {
    "novelty": "`tl.novelty`",
    "annotate": "`annotate`",
    "genes": "Mahalanobis",
    "probability": "1 − probability",
}
# Cells of the new type in the query; 0 stands for all.
SIZES = (4, 20, 0)
# Largest number of cells of a label in a reference and in a query, and smallest that counts.
MAX_CELLS = 100
MAX_CELLS_QUERY = 500
MIN_CELLS = 4
# References of a split, and groups of labels that are left out together if there are more.
N_REFERENCES = 3
N_GROUPS = 10
# Most variable genes of the reference.
N_GENES = 2_000
# Components of the Mahalanobis distance.
N_COMPONENTS = 30
LEVEL = 0.05
# Shares of known and of new cells with a small p-value.
SMALL = {
    ("false", "found"): "p ≤ 0.05",
    ("false by annotate", "found by annotate"): "by `annotate`",
}
FIRST = "first cluster"
# Whether a cluster of two or more cells, all known or mostly new, has a very high score.
HIGH = ("high known", "high new")
# Labels that `tl.check` doubts for their clusters: those of known cells, and those of which a quarter is new.
DOUBTED = ("doubted known", "doubted new")
# Labels of sorted blood and of PBMC 3k that mean the same; other sorted cells are CD4 T cells.
OF_BLOOD = {
    "CD19+ B": "B cells",
    "CD34+": "CD34+",
    "CD56+ NK": "NK cells",
    "CD8+ Cytotoxic T": "CD8 T cells",
    "CD8+/CD45RA+ Naive Cytotoxic": "CD8 T cells",
    "CD14+ Monocyte": "monocytes",
}
OF_PBMC = {"CD14+ Monocytes": "monocytes", "FCGR3A+ Monocytes": "monocytes"}


def blood(folder: Path) -> AnnData:
    """Sorted blood cells of Zheng et al. (2017), and PBMC 3k."""
    studies = {}
    for name in ("sorted_blood", "pbmc3k"):
        adata = ad.read_h5ad(folder / f"{name}.h5ad")
        labels = adata.obs["cell_type"].astype(str)
        adata.obs = pd.DataFrame({LABEL: labels.replace(OF_PBMC)})
        if name == "sorted_blood":
            adata.obs[LABEL] = labels.map(OF_BLOOD).fillna("CD4 T cells")
        studies[name] = adata
    return prepared(ad.concat(studies, label=BATCH, index_unique="-"), LABEL, BATCH)


def blood_studies(folder: Path) -> AnnData:
    """Blood of Hao et al. (2021) and of the sext study, types under common names, on the genes of both."""
    studies = {name: read_blood(folder, name) for name in ("hao", "sext")}
    for adata in studies.values():
        adata.layers.clear()
    return ad.concat(studies, label=BATCH, index_unique="-")


def oligodendrocytes(folder: Path) -> AnnData:
    """13 stages of oligodendrocytes of Marques et al. (2016), in one region and in others."""
    adata = read_study(folder, "oligo_marques", "inferred_cell_type", "source_name")
    is_first = adata.obs[BATCH].str.startswith("SN-VTA")
    adata.obs[BATCH] = np.where(is_first, "one", "others")
    return adata


def mouse(folder: Path) -> AnnData:
    """62 types of 18 tissues of the Tabula Muris."""
    return prepared(ad.read_h5ad(folder / "mouse_tissues.h5ad"), "cell_type")


TASKS = {
    "breast cells": Task("breast, cells → nuclei", breast, "komentissuebank"),
    "breast nuclei": Task("breast, nuclei → cells", breast, "gtex"),
    "lung": Task("lung, CEL-seq2 → Drop-seq", lung, "sc_celseq2"),
    "lung back": Task("lung, Drop-seq → CEL-seq2", lung, "sc_dropseq"),
    "kang": Task("Kang, control → IFN-β", kang, "ctrl"),
    "kang back": Task("Kang, IFN-β → control", kang, "stim"),
    "blood": Task("sorted blood → PBMC 3k", blood, "sorted_blood"),
    "hao": Task("blood, Hao → sext", blood_studies, "hao"),
    "oligo": Task("oligodendrocytes → five regions", oligodendrocytes, "one"),
    "mouse": Task("mouse tissues, halves", mouse, "one"),
}


def measure(
    task: Task, folder: Path, seed: int, max_epochs: int
) -> Iterator[dict[str, Any]]:
    """Leave types out of half of a batch, and score the other half and the other batch."""
    adata = task.read(folder)
    rng = np.random.default_rng(seed)
    labels = adata.obs[LABEL].astype(str).to_numpy()
    is_in_batch = (adata.obs[BATCH] == task.batch).to_numpy()
    is_in_half = is_in_batch & (rng.random(adata.n_obs) < 0.5)
    sources = {"within": is_in_batch & ~is_in_half, "across": ~is_in_batch}
    in_reference = at_most(is_in_half, labels, MAX_CELLS, rng)
    n_cells = pd.Series(labels[in_reference]).value_counts()
    present = sorted(n_cells.index[n_cells >= MIN_CELLS])
    groups = np.array_split(
        np.random.default_rng(0).permutation(present), min(len(present), N_GROUPS)
    )
    for turn in range(min(len(groups), N_REFERENCES)):
        left_out = groups[(N_REFERENCES * seed + turn) % len(groups)]
        trained_labels = np.setdiff1d(present, left_out)
        reference = adata[in_reference & np.isin(labels, trained_labels)].copy()
        reference = reference[:, most_variable(reference)].copy()
        tosica.pp.build_mask(reference)
        model = train(reference, seed, max_epochs)
        for query, source in sources.items():
            for new in left_out:
                is_candidate = source & np.isin(labels, [*trained_labels, new])
                in_query = at_most(is_candidate, labels, MAX_CELLS_QUERY, rng)
                if (labels[in_query] == new).sum() < MIN_CELLS:
                    continue
                cells = adata[in_query, reference.var_names].copy()
                is_new = labels[in_query] == new
                for run in scored(model, reference, cells, is_new, rng):
                    yield {"query": query, "seed": seed, "left out": str(new), **run}


def most_variable(adata: AnnData) -> NDArray[np.intp]:
    """Positions of the most variable genes."""
    variance = adata.X.power(2).mean(0).A1 - np.square(adata.X.mean(0).A1)
    return np.sort(np.argsort(-variance, kind="stable")[:N_GENES])


def at_most(
    cells: NDArray[np.bool_],
    labels: NDArray[np.object_],
    max_cells: int,
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    """Draw at most some of the cells of each label."""
    shuffled = pd.Series(rng.permutation(np.flatnonzero(cells)))
    rank_in_label = shuffled.groupby(labels[shuffled]).cumcount()
    sampled = np.zeros(len(cells), dtype=bool)
    sampled[shuffled[rank_in_label < max_cells]] = True
    return sampled


def train(reference: AnnData, seed: int, max_epochs: int) -> tosica.TOSICA:
    """Train a small model."""
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
    scvi.settings.seed = seed
    model = tosica.TOSICA(reference, max_gene_sets=50, embed_dim=24)
    model.train(
        max_epochs, accelerator="cpu", enable_progress_bar=False, check_labels=False
    )
    return model


def scored(
    model: tosica.TOSICA,
    reference: AnnData,
    cells: AnnData,
    is_new: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Iterator[dict[str, float]]:
    """Evaluate all scores, for each number of new cells."""
    model.annotate(cells)
    scores = {
        "annotate": cells.obs["tosica_novelty"].to_numpy(),
        "genes": mahalanobis(reference, cells),
        "probability": 1 - cells.obs["tosica_probability"].to_numpy(),
    }
    shuffled = rng.permutation(np.flatnonzero(is_new))
    for size in SIZES:
        if size >= len(shuffled):
            continue
        in_query = ~is_new
        in_query[shuffled[: size or None]] = True
        query = cells[in_query].copy()
        truth = is_new[in_query]
        by_annotate = shares(query, truth, " by annotate")
        tosica.tl.novelty(query, model)
        areas = {"novelty": roc_auc_score(truth, query.obs["tosica_novelty"])}
        for name, values in scores.items():
            areas[name] = roc_auc_score(truth, values[in_query])
        areas = {name: float(area) for name, area in areas.items()}
        first = query.uns["tosica_novelty"]["cluster"].iloc[0]
        in_first = (query.obs["tosica_novelty_group"] == first).to_numpy()
        yield {
            "size": size,
            **areas,
            **shares(query, truth),
            **by_annotate,
            FIRST: float(truth[in_first].mean() > 0.5),
            **doubted(query, truth),
            **very_high(query, truth),
        }


def doubted(cells: AnnData, is_new: NDArray[np.bool_]) -> dict[str, float]:
    """Shares of labels to be checked for their clusters; NaN where no label is of the kind."""
    verdicts = judge_labels(Cells(cells, "tosica"))
    is_doubted = verdicts["reason"].str.contains("in clusters unlike it")
    labels = cells.obs["tosica_prediction"].astype(str).to_numpy()
    share_new = pd.Series(is_new.astype(float)).groupby(labels).mean()
    is_large = pd.Series(labels).value_counts() >= LIMITS.few_cells
    share_new = share_new[is_large[share_new.index]]
    known = share_new.index[share_new == 0]
    new = share_new.index[share_new > 0.25]
    return {
        "doubted known": float(is_doubted[known].mean()),
        "doubted new": float(is_doubted[new].mean()),
    }


def very_high(cells: AnnData, is_new: NDArray[np.bool_]) -> dict[str, float]:
    """1 if a cluster of known cells, or one of new cells, has a very high score, else 0."""
    table = cells.uns["tosica_novelty"].set_index("cluster")
    groups = cells.obs["tosica_novelty_group"].astype(str).to_numpy()
    share_new = pd.Series(is_new.astype(float)).groupby(groups).mean()[table.index]
    is_high = (table["score"] > LIMITS.highest_cluster_score) & (table["n_cells"] > 1)
    return {
        "high known": float((is_high & (share_new == 0)).any()),
        "high new": float((is_high & (share_new > 0.5)).any()),
    }


def shares(
    cells: AnnData, is_new: NDArray[np.bool_], suffix: str = ""
) -> dict[str, float]:
    """Shares of known and of new cells with a small p-value."""
    is_small = cells.obs["tosica_novelty_pvalue"].to_numpy() <= LEVEL
    return {
        f"false{suffix}": float(is_small[~is_new].mean()),
        f"found{suffix}": float(is_small[is_new].mean()),
    }


def mahalanobis(reference: AnnData, cells: AnnData) -> NDArray[np.floating]:
    """Mahalanobis distance from the nearest label in components of the genes (Lee et al., NeurIPS 2018)."""
    components = min(N_COMPONENTS, reference.n_obs - 2)
    pca = PCA(components, svd_solver="arpack", random_state=0)
    reference_scores = pca.fit(reference.X.toarray()).transform(reference.X.toarray())
    scores = pca.transform(cells.X.toarray())
    labels = reference.obs[LABEL].astype(str).to_numpy()
    centers = pd.DataFrame(reference_scores).groupby(labels).mean()
    spread = LedoitWolf().fit(reference_scores - centers.loc[labels].to_numpy())
    distances = [spread.mahalanobis(scores - center) for center in centers.to_numpy()]
    return np.min(distances, axis=0)


def means(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over types, numbers of cells and splits, of each task and query."""
    columns = [*SCORES, *(key for pair in SMALL for key in pair), FIRST]
    return runs.groupby(["task", "query"])[columns].mean()


def title_of(task: str, query: str) -> str:
    """Title of a task; without an arrow if the query is of the reference's batch."""
    title = TASKS[task].title
    return title.split(" →")[0] if query == "within" else title


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    runs = pd.DataFrame(result["runs"])
    by_task = means(runs)
    peers = [key for key in SCORES if key not in ("novelty", "annotate")]
    tasks = [name for name in TASKS if name in runs["task"].unique()]
    rows = []
    for query, title in QUERIES.items():
        if query not in by_task.index.get_level_values("query"):
            continue
        of_query = by_task.xs(query, level="query")
        rows += [
            [title_of(name, query), *_format(of_query.loc[name])]
            for name in tasks
            if name in of_query.index
        ]
        rows.append([f"**mean, {title}**", *_format(of_query.mean())])
    best = by_task[peers].max(axis=1)
    gaps = by_task["novelty"] - best
    worst = title_of(*gaps.idxmin())
    most_false = 100 * by_task["false"].max()
    across = runs.loc[runs["query"] == "across", DOUBTED[0]]
    in_other_batch = (
        f" ({100 * across.mean():.0f} % in another batch)" if len(across) else ""
    )
    lines = [
        "# Types that the reference lacks",
        "",
        "`python -m benchmarks.novelty`. Types in turn are left out of a reference, half of a batch; the queries",
        "are the other half and, with an arrow, another batch, with 4, 20 or all cells of the type. Means over",
        f"types, numbers of cells and {runs['seed'].nunique()} splits: AUROC of new cells against all others (0.5",
        f"is chance), and shares of known/new cells with a p-value of `tl.novelty` up to {LEVEL}, or of `annotate`.",
        f"*First cluster*: queries whose first cluster is mostly new. Mahalanobis has {N_COMPONENTS} components. The",
        "score was chosen on splits 0, 1 and 7 to 10, limits of clusters on 0 and 1. Oligodendrocytes are stages of",
        f"one lineage. Models are small: 50 gene sets of {N_GENES} genes, at most {MAX_CELLS} cells of a label,",
        f"{result['max_epochs']} epochs.",
        "",
        f"`tl.novelty` is furthest behind the better of Mahalanobis and 1 − probability in {worst} ({gaps.min():.2f}).",
        f"At most {most_false:.0f} % of known cells of a task have a small p-value, but most new cells have none:",
        f"rank by the score. Labels doubted for their clusters: {100 * runs[DOUBTED[0]].mean():.0f} % of known ones"
        f"{in_other_batch}, {100 * runs[DOUBTED[1]].mean():.0f} % of those of which a quarter is new. Queries with a",
        f"cluster above {LIMITS.highest_cluster_score:g}: {100 * runs[HIGH[0]].mean():.0f} % by known cells,",
        f"{100 * runs[HIGH[1]].mean():.0f} % by new ones.",
        "",
        *table(["reference → query", *SCORES.values(), *SMALL.values(), FIRST], rows),
        "",
    ]
    return "\n".join(lines + version_lines(result))


def _format(values: pd.Series) -> list[str]:
    areas = [f"{values[key]:.2f}" for key in SCORES]
    small = ["/".join(f"{values[key]:.2f}" for key in pair) for pair in SMALL]
    return [*areas, *small, f"{values[FIRST]:.2f}"]


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table after every task."""
    parser = make_parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    # Settings were chosen on splits 0, 1 and 7 to 10.
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 4, 5, 6])
    parser.add_argument("--max-epochs", type=int, default=10)
    options = parser.parse_args(arguments)
    quiet()
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "max_epochs": options.max_epochs,
        "versions": versions("scikit-learn"),
    }
    runs: list[dict[str, Any]] = []
    for seed in options.seeds:
        for name in options.tasks:
            measured = measure(TASKS[name], options.data, seed, options.max_epochs)
            runs += [{"task": name, **run} for run in measured]
            # By column, so that the file is short.
            result["runs"] = pd.DataFrame(runs).round(4).to_dict("list")
            write(options.out, "novelty", result, report(result))


if __name__ == "__main__":
    main()
