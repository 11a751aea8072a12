"""The main job on the 700 PBMCs that scanpy ships, for ``tosica demo``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scanpy as sc
import scvi
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import train_test_split

from tosica import get, pp, tl
from tosica._files import as_os_error, replace_file
from tosica._report import report
from tosica.model import TOSICA

if TYPE_CHECKING:
    from pathlib import Path

    from anndata import AnnData
    from numpy.typing import ArrayLike

_LABELS = "bulk_labels"


def run_demo(out: Path, *, seed: int = 0) -> tuple[pd.DataFrame, str]:
    """Train, annotate, explain, compare and write a report.

    Parameters
    ----------
    out
        Folder for ``annotated.h5ad`` and ``report.html``; made if it is missing.
    seed
        Seed of the split and of the training.

    Returns
    -------
    Accuracy, macro-F1 and seconds of tosica and of a logistic regression on the same cells and
    genes, and the same as text, with the explanation of each label, the least sure cell, the files
    that were written, and a next step.
    """
    reference, query = _split(seed)
    scvi.settings.seed = seed
    clock = time.perf_counter()
    pp.build_mask(reference)
    TOSICA.setup_anndata(reference, labels_key=_LABELS)
    model = TOSICA(reference)
    model.train()
    model.annotate(query)
    seconds = time.perf_counter() - clock
    tl.attribute(query, model)

    clock = time.perf_counter()
    regression = LogisticRegression(max_iter=1000)
    regression.fit(reference.X, reference.obs[_LABELS])
    regression_labels = regression.predict(query.X)
    regression_seconds = time.perf_counter() - clock

    table = pd.DataFrame(
        [
            _score(query, query.obs["tosica_prediction"], seconds),
            _score(query, regression_labels, regression_seconds),
        ],
        index=["tosica", "logistic regression"],
    )
    paths = _write(query, out)
    sizes = (
        f"{reference.n_obs} reference cells, {query.n_obs} query cells, {query.n_vars} genes, "
        f"{len(model.gene_sets)} gene sets, {len(model.labels)} labels"
    )
    return table, _describe(table, query, sizes, paths)


def _split(seed: int) -> tuple[AnnData, AnnData]:
    """Split the 700 cells into a reference and a query."""
    # X of this dataset is scaled; .raw is log-normalized, as the model wants it.
    scaled = sc.datasets.pbmc68k_reduced()
    adata = scaled.raw.to_adata()
    adata.uns[f"{_LABELS}_colors"] = scaled.uns[f"{_LABELS}_colors"]
    reference, query = train_test_split(
        np.arange(adata.n_obs),
        test_size=0.3,
        stratify=adata.obs[_LABELS],
        random_state=seed,
    )
    return adata[np.sort(reference)].copy(), adata[np.sort(query)].copy()


def _score(query: AnnData, labels: ArrayLike, seconds: float) -> dict[str, float]:
    """Compare labels with the known ones."""
    truth = query.obs[_LABELS].astype(str)
    predicted = np.asarray(labels, dtype=str)
    macro_f1 = f1_score(
        truth,
        predicted,
        labels=truth.unique(),
        average="macro",
        zero_division=0,
    )
    return {
        "accuracy": accuracy_score(truth, predicted),
        "macro-F1": macro_f1,
        "seconds": seconds,
    }


def _describe(
    table: pd.DataFrame, query: AnnData, sizes: str, paths: list[Path]
) -> str:
    """Put the scores, the explanations and the paths into words."""
    scores = table.to_string(
        float_format="{:.3f}".format, formatters={"seconds": "{:.1f}".format}
    )
    explanations = get.explain(query, n_genes=4).drop(columns="pval_adj")
    explanations = explanations.rename_axis(None)
    explanations.columns = ["genes that add most", "gene set with the most evidence"]
    doubtful = query.obs.loc[query.obs["tosica_probability"].idxmin()]
    return "\n".join(
        [
            f"\n{sizes}\n",
            f"{scores}\n",
            f"{explanations.to_string()}\n",
            f"Least sure: {doubtful.name}, {doubtful['tosica_prediction']} with a probability of "
            f"{doubtful['tosica_probability']:.2f}; its known label is {doubtful[_LABELS]}\n",
            "Written:",
            *(f"  {path}" for path in paths),
            "\nNext, with human blood of your own: tosica annotate cells.h5ad -o annotated.h5ad",
        ]
    )


def _write(query: AnnData, out: Path) -> list[Path]:
    """Write the annotated query and a report."""
    out.mkdir(parents=True, exist_ok=True)
    h5ad = out / "annotated.h5ad"
    with replace_file(h5ad) as temporary, as_os_error():
        query.write_h5ad(temporary)
    page = report(
        query,
        out / "report.html",
        labels_key=_LABELS,
        title="700 PBMCs: the 210 that were not in training",
    )
    return [h5ad, page]
