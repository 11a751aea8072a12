"""What ``tosica demo`` does: the main job on the 700 PBMCs that scanpy ships."""

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
    genes, and the same as text, with what tells each label, the least sure cell, the files that were
    written, and what to try next.
    """
    # X of this dataset is scaled; .raw is log-normalised, as the model wants it.
    scaled = sc.datasets.pbmc68k_reduced()
    adata = scaled.raw.to_adata()
    adata.uns[f"{_LABELS}_colors"] = scaled.uns[f"{_LABELS}_colors"]
    parts = train_test_split(
        np.arange(adata.n_obs),
        test_size=0.3,
        stratify=adata.obs[_LABELS],
        random_state=seed,
    )
    reference, query = (adata[np.sort(cells)].copy() for cells in parts)
    scvi.settings.seed = seed

    start = time.perf_counter()
    pp.build_mask(reference)
    TOSICA.setup_anndata(reference, labels_key=_LABELS)
    model = TOSICA(reference)
    model.train()
    model.annotate(query)
    seconds = time.perf_counter() - start
    tl.attribute(query, model)

    start = time.perf_counter()
    linear = LogisticRegression(max_iter=1000).fit(reference.X, reference.obs[_LABELS])
    linear_labels = linear.predict(query.X)
    linear_seconds = time.perf_counter() - start

    truth, table = (
        query.obs[_LABELS].astype(str),
        pd.DataFrame(columns=["accuracy", "macro-F1", "seconds"], dtype=float),
    )
    predicted = query.obs["tosica_prediction"].astype(str), linear_labels
    for name, labels, took in zip(
        ("tosica", "logistic regression"),
        predicted,
        (seconds, linear_seconds),
        strict=True,
    ):
        macro_f1 = f1_score(
            truth, labels, labels=sorted(set(truth)), average="macro", zero_division=0
        )
        table.loc[name] = accuracy_score(truth, labels), macro_f1, took
    told = get.explain(query, n_genes=4).drop(columns="pval_adj").rename_axis(None)
    told.columns = ["genes that add most", "gene set with the most evidence"]
    doubtful = query.obs.loc[query.obs["tosica_probability"].idxmin()]
    written = _write(query, out)
    text = (
        f"\n{reference.n_obs} reference cells, {query.n_obs} query cells, {query.n_vars} genes, "
        f"{len(model.gene_sets)} gene sets, {len(model.labels)} labels\n\n"
        f"{table.to_string(float_format='{:.3f}'.format, formatters={'seconds': '{:.1f}'.format})}\n\n"
        f"{told.to_string()}\n\nLeast sure: {doubtful.name}, {doubtful['tosica_prediction']} with a probability of "
        f"{doubtful['tosica_probability']:.2f}; its known label is {doubtful[_LABELS]}\n\n"
        + "\n".join(["Written:", *(f"  {path}" for path in written)])
        + "\n\nNext, with human blood of your own: tosica annotate cells.h5ad -o annotated.h5ad"
    )
    return table, text


def _write(query: AnnData, out: Path) -> list[Path]:
    """Write the annotated query and a report."""
    out.mkdir(parents=True, exist_ok=True)
    table, page = out / "annotated.h5ad", out / "report.html"
    with replace_file(table) as temporary, as_os_error():
        query.write_h5ad(temporary)
    return [
        table,
        report(
            query,
            page,
            labels_key=_LABELS,
            title="700 PBMCs: the 210 that were not in training",
        ),
    ]
