"""Are several joined references better than one of them, and than plain concatenation?

``python -m benchmarks.references FOLDER`` from the repository's root, with five studies of human blood in
that folder, leaves out one study in turn and writes ``references.json``. It goes on where it ended.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anndata as ad
import mudata
import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score

import tosica
from benchmarks._models import train_default
from benchmarks._results import (
    load,
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)
from tosica.data import LogNormalization

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from anndata import AnnData
    from numpy.typing import NDArray

LABEL = "cell_type"
# Labels of each study, by the types that two studies or more have; cells of other labels are left out.
STUDIES = {
    "sorted_blood": {
        "CD19+ B": "B cell",
        "CD14+ Monocyte": "monocyte",
        "CD56+ NK": "natural killer cell",
        "CD4+ T Helper2": "CD4 T cell",
        "CD4+/CD45RO+ Memory": "CD4 T cell",
        "CD4+/CD45RA+/CD25- Naive T": "CD4 T cell",
        "CD4+/CD25 T Reg": "CD4 T cell",
        "CD8+ Cytotoxic T": "CD8 T cell",
        "CD8+/CD45RA+ Naive Cytotoxic": "CD8 T cell",
    },
    "pbmc3k": {
        "B cells": "B cell",
        "CD14+ Monocytes": "monocyte",
        "FCGR3A+ Monocytes": "monocyte",
        "NK cells": "natural killer cell",
        "CD4 T cells": "CD4 T cell",
        "CD8 T cells": "CD8 T cell",
        "Dendritic cells": "dendritic cell",
        "Megakaryocytes": "platelet",
    },
    "kang_pbmc": {
        "B cells": "B cell",
        "CD14+ Monocytes": "monocyte",
        "FCGR3A+ Monocytes": "monocyte",
        "CD4 T cells": "CD4 T cell",
        "CD8 T cells": "CD8 T cell",
    },
    "hao_pbmc": {
        "B cells": "B cell",
        "Monocytes": "monocyte",
        "NK cells": "natural killer cell",
        "T cells CD4 conv": "CD4 T cell",
        "Tregs": "CD4 T cell",
        "T cells CD8": "CD8 T cell",
        "mDC": "dendritic cell",
        "Platelet": "platelet",
    },
    "cite_pbmc": {
        "adt_0": "natural killer cell",
        "adt_1": "CD4 T cell",
        "adt_2": "monocyte",
        "adt_3": "CD8 T cell",
        "adt_4": "CD8 T cell",
        "adt_5": "B cell",
    },
}
# Where the labels are, if not in the column "cell_type".
LABEL_COLUMNS = {"kang_pbmc": "cluster_id", "cite_pbmc": "adt_cluster"}
MAX_CELLS = 1000
N_GENES = 1500
N_COMPONENTS = 200
# Cells weigh one over this power of the number of those of their label and study. Of 0, 1/2 and 1, it was
# chosen on three studies at a time, as the next one.
WEIGHT_POWER = 0.5
# Most of the variance that may be due to studies.
MAX_STUDY_SHARE = 1 / 3
JOINED = "joined"
STABLE = "joined, stable genes"
CONCATENATED = "concatenated"


def read_study(folder: Path, name: str, seed: int) -> AnnData:
    """Read the counts of a study, at most ``MAX_CELLS``, with the types in ``obs``."""
    if name == "cite_pbmc":
        mdata = mudata.read_h5mu(folder / f"{name}.h5mu")
        cells = mdata["rna"]
        labels = mdata.obs[LABEL_COLUMNS[name]].astype(str)
    else:
        cells = ad.read_h5ad(folder / f"{name}.h5ad")
        labels = cells.obs[LABEL_COLUMNS.get(name, LABEL)].astype(str)
    types = labels.map(STUDIES[name]).to_numpy(dtype=object)
    rows = np.flatnonzero(pd.notna(types))
    rng = np.random.default_rng(seed)
    sampled = np.sort(rng.permutation(rows)[:MAX_CELLS])
    study = ad.AnnData(csr_matrix(cells.X, dtype=np.float32)[sampled])
    study.obs_names = cells.obs_names[sampled]
    study.var_names = cells.var_names
    study.obs[LABEL] = pd.Categorical(types[sampled])
    study.uns["n_cells"] = len(rows)
    return study


def scores(truth: NDArray[np.object_], predicted: NDArray[Any]) -> dict[str, float]:
    """Compute accuracy and macro-F1 of the labels of a study."""
    macro_f1 = f1_score(
        truth, predicted, labels=np.unique(truth), average="macro", zero_division=0
    )
    return {
        "accuracy": float(accuracy_score(truth, predicted)),
        "macro-F1": float(macro_f1),
    }


def regress(reference: AnnData, query: AnnData, seed: int) -> NDArray[Any]:
    """Predict labels by a logistic regression on principal components.

    Cells of frequent labels of a study have a smaller weight. Cells are normalized over all genes
    that both have; of those that ``var["is_stable"]`` does not leave out, the most variable ones
    teach.
    """
    genes = reference.var_names.intersection(query.var_names)
    normalization = LogNormalization()
    expression = normalization.normalize_block(csr_matrix(reference[:, genes].X))
    asked = normalization.normalize_block(csr_matrix(query[:, genes].X))
    variance = np.asarray(expression.power(2).mean(0)).ravel()
    variance -= np.square(np.asarray(expression.mean(0)).ravel())
    if "is_stable" in reference.var:
        variance[~reference.var.loc[genes, "is_stable"].to_numpy()] = 0
    order = np.argsort(-variance, kind="stable")[:N_GENES]
    order = np.sort(order[variance[order] > 0])
    n_components = min(N_COMPONENTS, len(order) - 1, reference.n_obs - 1)
    pca = PCA(
        n_components, svd_solver="randomized", iterated_power=2, random_state=seed
    )
    components = pca.fit_transform(expression[:, order].toarray())
    sizes = reference.obs.groupby(["reference", LABEL], observed=True)[LABEL].transform(
        "size"
    )
    weights = sizes.astype(float) ** -WEIGHT_POWER
    model = LogisticRegression(C=0.02, max_iter=200, tol=1e-2)
    model.fit(components, reference.obs[LABEL].astype(str), weights / weights.mean())
    return model.predict(pca.transform(asked[:, order].toarray()))


def annotate(reference: AnnData, query: AnnData, seed: int) -> NDArray[Any]:
    """Predict labels by a model with all defaults, trained on the genes that both have."""
    genes = reference.var_names.intersection(query.var_names)
    if "is_stable" in reference.var:
        genes = genes[reference.var.loc[genes, "is_stable"].to_numpy()]
    model = train_default(reference[:, genes].copy(), seed, labels_key=LABEL)
    return np.asarray(model.predict(query[:, genes].copy()))


MODELS = {"regression": regress, "tosica": annotate}


def references_for(studies: dict[str, AnnData], left_out: str) -> dict[str, AnnData]:
    """Make all references for a study: each other one, and all of them together.

    References have the genes of the study, so that no gene is imputed that it has not.
    """
    genes = studies[left_out].var_names
    alone = {
        name: cells[:, cells.var_names.isin(genes)].copy()
        for name, cells in studies.items()
        if name != left_out
    }
    joined = tosica.pp.join_references(alone, LABEL)
    stable = joined.copy()
    stable.var["is_stable"] = stable.var["study_share"] <= MAX_STUDY_SHARE
    for name, cells in alone.items():
        cells.obs["reference"] = name
    concatenated = ad.concat(alone, index_unique="-", join="inner")
    together = {CONCATENATED: concatenated, JOINED: joined, STABLE: stable}
    return alone | together


def run(
    studies: dict[str, AnnData], study: str, seed: int, models: list[str]
) -> Iterator[dict[str, Any]]:
    """Score models of all references for a study."""
    query = studies[study]
    truth = query.obs[LABEL].astype(str).to_numpy(dtype=object)
    for name, reference in references_for(studies, study).items():
        for model in models:
            yield {
                "study": study,
                "reference": name,
                "model": model,
                "seed": seed,
                "genes": reference.n_vars,
                "cells": int(reference.uns.get("n_cells", reference.n_obs)),
                **scores(truth, MODELS[model](reference, query, seed)),
            }


MODEL_TITLES = {"tosica": "tosica", "regression": "logistic regression"}
METRICS = ["accuracy", "macro-F1"]
HEAD = [
    "study left out",
    "best alone",
    "mean of those alone",
    "most cells alone",
    CONCATENATED,
    JOINED,
    STABLE,
]


def compare(runs: pd.DataFrame) -> list[list[str]]:
    """Rows of the table of a model; its last one has means over the studies."""
    means = runs.groupby(["study", "reference"], sort=False)[[*METRICS, "cells"]].mean()
    rows = []
    summary = []
    for study in runs["study"].unique():
        of_study = means.loc[study]
        alone = of_study.loc[[name for name in STUDIES if name in of_study.index]]
        best = alone["accuracy"].idxmax()
        pairs = [
            alone.loc[best, METRICS],
            alone[METRICS].mean(),
            alone.loc[alone["cells"].idxmax(), METRICS],
            *(of_study.loc[name, METRICS] for name in (CONCATENATED, JOINED, STABLE)),
        ]
        summary.append(pairs)
        texts = [_pair(pair) for pair in pairs]
        rows.append([study, f"{texts[0]} ({best})", *texts[1:]])
    columns = zip(*summary, strict=True)
    rows.append(["mean", *(_pair(sum(column) / len(summary)) for column in columns)])
    return rows


def _pair(values: pd.Series) -> str:
    """Write accuracy and macro-F1."""
    return "/".join(f"{value:.3f}" for value in values)


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    runs = pd.DataFrame(result["runs"])
    lines = [
        "# Several references",
        "",
        "`python -m benchmarks.references`. Other studies of blood label one that is left out: accuracy/macro-F1, at "
        f"most {MAX_CELLS} cells of each, {runs['seed'].nunique()} draws. Only who has the labels knows which one is "
        "best alone. *Concatenated*: on the genes that all have. *Joined*: by `pp.join_references`. *Stable genes* "
        "have a `study_share` of at most a third, which was chosen on three of these studies at a time.",
        "",
    ]
    rows: list[list[str]] = []
    for model, title in MODEL_TITLES.items():
        of_model = runs[runs["model"] == model]
        if len(of_model):
            *of_studies, mean = compare(of_model)
            # The first model has a row for each study.
            rows += [*([] if rows else of_studies), [f"mean, {title}", *mean[1:]]]
    return "\n".join([*lines, *table(HEAD, rows), "", *version_lines(result)])


def main(arguments: list[str] | None = None) -> None:
    """Leave out each study, and write the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    quiet()
    result = load(options.out, "references")
    for seed in range(options.seeds):
        studies = {
            name: read_study(options.data, name, seed) for name in options.studies
        }
        for study in studies:
            finished = {
                row["model"]
                for row in result["runs"]
                if (row["study"], row["seed"]) == (study, seed)
            }
            models = [model for model in options.models if model not in finished]
            if not models:
                continue
            runs = list(run(studies, study, seed, models))
            result["runs"] += runs
            print(json.dumps(runs), flush=True)
            result["versions"] = versions("scikit-learn")
            write(options.out, "references", result, report(result))


if __name__ == "__main__":
    main()
