"""Effect of missing genes on labels, with and without imputation.

``python -m benchmarks.missing_genes FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``missing_genes.json`` and
its page. A model with defaults annotates the query with all genes, without random
genes (which the linear branch imputes), and with zeros for these genes (as if not expressed).
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scvi
import torch
from scipy.sparse import csr_matrix, diags

import tosica
from benchmarks._accuracy_tasks import COUNTS, LABEL, Split, across, few, kang, pbmc68k
from benchmarks._results import table, version_lines, versions, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData

SHARES = (0.05, 0.1, 0.2, 0.4)
WAYS = {"imputed": "imputed", "zero": "zeros"}


def halves(adata: AnnData) -> Split:
    """Half of the cells are the reference, the other half is the query."""
    return few(adata, adata.n_obs // 2, 0)[0]


def of_counts(split: Split) -> Split:
    """The same split with counts, which are normalised over the genes of the query."""
    for adata in split:
        adata.X = adata.layers[COUNTS].copy()
    return split


PAIRS: dict[str, tuple[str, Callable[[Path], Split]]] = {
    "control": (
        "Kang, control, halves",
        lambda d: halves(across(kang(d), "ctrl")[0].reference),
    ),
    "stimulated": (
        "Kang, IFN-β, halves",
        lambda d: halves(across(kang(d), "ctrl")[0].query),
    ),
    "pbmc68k": ("pbmc68k, halves", lambda d: halves(pbmc68k(d))),
    "across": ("Kang, control → IFN-β", lambda d: across(kang(d), "ctrl")[0]),
    "counts": ("the same, counts", lambda d: of_counts(across(kang(d), "ctrl")[0])),
    "few": ("Kang, 50 cells", lambda d: few(kang(d), 50, 0)[0]),
}


def without(query: AnnData, share: float, seed: int) -> dict[str, AnnData]:
    """The query without random genes, and with zeros for these genes."""
    there = np.ones(query.n_vars)
    rng = np.random.default_rng(seed)
    there[rng.permutation(query.n_vars)[: round(share * query.n_vars)]] = 0
    zeros = query.copy()
    zeros.X = csr_matrix(query.X @ diags(there), dtype=np.float32)
    return {"imputed": query[:, there > 0].copy(), "zero": zeros}


def runs_of(
    split: Split, shares: tuple[float, ...], draws: int, **train: Any
) -> list[dict]:
    """Accuracy and log-likelihood of each draw."""
    reference, query = split.reference.copy(), split.query
    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
    scvi.settings.seed = 0
    model = tosica.TOSICA(reference)
    model.train(enable_progress_bar=False, accelerator="cpu", **train)
    truth = pd.Categorical(query.obs[LABEL].astype(str), categories=model.labels).codes

    def scores(cells: AnnData) -> dict[str, float]:
        found = model.predict(cells, soft=True).to_numpy()
        of_truth = found[np.arange(len(found)), truth].clip(1e-12)
        right = float((found.argmax(1) == truth).mean())
        return {"accuracy": right, "log-likelihood": float(np.log(of_truth).mean())}

    whole = scores(query)
    runs = [{"share": 0.0, "draw": 0, "way": way, **whole} for way in WAYS]
    for share in shares:
        for draw in range(draws):
            for way, cells in without(query, share, draw).items():
                runs.append({"share": share, "draw": draw, "way": way, **scores(cells)})
    return runs


def report(result: dict[str, Any]) -> str:
    """What the page says of a result."""
    runs = pd.DataFrame(result["runs"])
    shares = sorted(
        share
        for share in runs["share"].unique()
        if share not in (0, min(SHARES)) or len(SHARES) == 1
    )
    head = ["reference → query", "no gene missing"]
    head += [f"{share:.0%}, {way}" for share in shares for way in WAYS.values()]
    rows = []
    for pair, of_pair in runs.groupby("pair", sort=False):
        of = of_pair.groupby(["share", "way"])
        accuracy, worst = of["accuracy"].mean(), of["accuracy"].min()
        row = [
            PAIRS[pair][0],
            f"{of_pair.loc[of_pair['share'] == 0, 'accuracy'].mean():.3f}",
        ]
        row += [
            f"{accuracy[share, way]:.3f} ({worst[share, way]:.3f})"
            for share in shares
            for way in WAYS
        ]
        rows.append(row)
    lines = [
        "# Genes that a query lacks",
        "",
        "Written by `python -m benchmarks.missing_genes`. A model (one seed) annotates cells without random genes,",
        f"{runs['draw'].max() + 1} draws of each share. The table has the mean accuracy, and in parentheses that of",
        "the worst draw. *Imputed*: the linear branch imputes the genes. *Zeros*: the",
        "genes are",
        "zeros in the query. The network sees zeros in both cases. The number of components for imputation was",
        "chosen on",
        "halves of these references. Real panels lack chosen genes, not random ones.",
        *([result["note"]] if result.get("note") else []),
        "",
        *table(head, rows),
        "",
        *version_lines(result),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--epochs", type=int, help="by default the model's own")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    result: dict[str, Any] = {"runs": [], "versions": versions("scikit-learn")}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The query has only")
        for pair in given.pairs:
            split = PAIRS[pair][1](given.data)
            runs = runs_of(split, SHARES, given.draws, max_epochs=given.epochs)
            result["runs"] += [{"pair": pair, **run} for run in runs]
    write(given.out, "missing_genes", result, report(result))


if __name__ == "__main__":
    main()
