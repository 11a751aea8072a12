"""Effect of missing genes on labels, with and without imputation.

``python -m benchmarks.missing_genes FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``missing_genes.json``.
A model with defaults annotates the query with all genes, without random
genes (which the linear branch imputes), and with zeros for these genes (as if not expressed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, diags

from benchmarks._accuracy_tasks import COUNTS, Split, across, few, kang, pbmc68k
from benchmarks._models import codes_of_labels, train_default
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
    from pathlib import Path

    from anndata import AnnData

SHARES = (0.05, 0.1, 0.2, 0.4)
WAYS = {"imputed": "imputed", "zero": "zeros"}


def halves(adata: AnnData) -> Split:
    """Half of the cells are the reference, the other half is the query."""
    return few(adata, adata.n_obs // 2, 0)[0]


def of_counts(split: Split) -> Split:
    """The same split with counts, which are normalized over the genes of the query."""
    for adata in split:
        adata.X = adata.layers[COUNTS].copy()
    return split


PAIRS: dict[str, tuple[str, Callable[[Path], Split]]] = {
    "control": (
        "Kang, control, halves",
        lambda data: halves(across(kang(data), "ctrl")[0].reference),
    ),
    "stimulated": (
        "Kang, IFN-β, halves",
        lambda data: halves(across(kang(data), "ctrl")[0].query),
    ),
    "pbmc68k": ("pbmc68k, halves", lambda data: halves(pbmc68k(data))),
    "across": ("Kang, control → IFN-β", lambda data: across(kang(data), "ctrl")[0]),
    "counts": (
        "the same, counts",
        lambda data: of_counts(across(kang(data), "ctrl")[0]),
    ),
    "few": ("Kang, 50 cells", lambda data: few(kang(data), 50, 0)[0]),
}


def without(query: AnnData, share: float, seed: int) -> dict[str, AnnData]:
    """The query without random genes, and with zeros for these genes."""
    rng = np.random.default_rng(seed)
    is_present = np.ones(query.n_vars, dtype=bool)
    is_present[rng.permutation(query.n_vars)[: round(share * query.n_vars)]] = False
    zeros = query.copy()
    zeros.X = csr_matrix(query.X @ diags(is_present.astype(float)), dtype=np.float32)
    return {"imputed": query[:, is_present].copy(), "zero": zeros}


def runs_of(
    split: Split, shares: tuple[float, ...], draws: int
) -> list[dict[str, Any]]:
    """Accuracy and log-likelihood of each draw."""
    query = split.query
    model = train_default(split.reference.copy())
    truth = codes_of_labels(model, query)

    def scores(cells: AnnData) -> dict[str, float]:
        probabilities = model.predict(cells, soft=True).to_numpy()
        of_truth = probabilities[np.arange(len(truth)), truth].clip(1e-12)
        return {
            "accuracy": float((probabilities.argmax(1) == truth).mean()),
            "log-likelihood": float(np.log(of_truth).mean()),
        }

    complete = scores(query)
    runs = [{"share": 0.0, "draw": 0, "way": way, **complete} for way in WAYS]
    for share in shares:
        for draw in range(draws):
            for way, cells in without(query, share, draw).items():
                runs.append({"share": share, "draw": draw, "way": way, **scores(cells)})
    return runs


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
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
        by_way = of_pair.groupby(["share", "way"])["accuracy"]
        means = by_way.mean()
        worst = by_way.min()
        complete = of_pair.loc[of_pair["share"] == 0, "accuracy"].mean()
        row = [PAIRS[pair][0], f"{complete:.3f}"]
        for share in shares:
            row += [f"{means[share, w]:.3f} ({worst[share, w]:.3f})" for w in WAYS]
        rows.append(row)
    lines = [
        "# Genes that a query lacks",
        "",
        "`python -m benchmarks.missing_genes`. A model (one seed) annotates cells without random genes: mean",
        f"accuracy of {runs['draw'].max() + 1} draws, and in parentheses that of the worst. *Imputed*: the linear",
        "branch imputes the genes. *Zeros*: they are zeros in the query. The network sees zeros in both cases.",
        "The number of components was chosen on halves of these references. Real panels lack chosen genes, not",
        "random ones.",
        "",
        *table(head, rows),
        "",
        *version_lines(result),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--draws", type=int, default=10)
    options = parser.parse_args(arguments)
    quiet()
    result: dict[str, Any] = {"runs": [], "versions": versions("scikit-learn")}
    for pair in options.pairs:
        split = PAIRS[pair][1](options.data)
        for run in runs_of(split, SHARES, options.draws):
            result["runs"].append({"pair": pair, **run})
    write(options.out, "missing_genes", result, report(result))


if __name__ == "__main__":
    main()
