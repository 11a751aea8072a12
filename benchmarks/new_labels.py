"""Does a trained model learn a new cell type from a few cells, and keep the others?

Each type of Kang and of the lung cell lines is held out of the reference. A query brings 30 cells
of it with a label. scANVI's ``load_query_data`` is measured beside tosica's.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks._new_label_methods import SIZES, run_scanvi, run_tosica
from benchmarks._new_label_tasks import held_out
from benchmarks._results import quiet, table, version_lines, versions, write

METHODS = {"tosica": run_tosica, "scanvi": run_scanvi}


def measure(
    data: Path, seeds: list[int], methods: list[str], only: str | None
) -> list[dict]:
    """All held-out types, seeds and methods."""
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        for task in held_out(data, seed):
            if only is not None and task.label != only:
                continue
            for method in methods:
                torch.set_num_threads(1)
                with warnings.catch_warnings(action="ignore"):
                    found = METHODS[method](task, seed)
                about = {"dataset": task.dataset, "label": task.label, "seed": seed}
                rows += [about | row for row in found]
                for row in found:
                    print(about | row, flush=True)
    return rows


def report(result: dict[str, Any]) -> str:
    """The page."""
    runs = pd.DataFrame(result["runs"])
    runs["change"] = 100 * (runs["after"] - runs["before"])
    own = runs[runs["method"] == "tosica"]
    lines = [
        "# New labels",
        "",
        "Written by `python -m benchmarks.new_labels`. Each type of a data set is held out of the reference,",
        "which is half",
        "of one batch. The model is then adapted by {meth}`tosica.TOSICA.load_query_data` to a query: the other",
        "half of the",
        "batch, or another batch. Some cells of the held-out type have a label, half of the other cells are",
        "seen without",
        f"their labels, and the rest are scored. Means over types and {len(result['seeds'])} seeds, ± standard",
        "deviation.",
        "",
        *_sizes(own),
        "",
        f"With {SIZES[0]} labelled cells, beside others. Macro-F1 is that of the old types.",
        "",
        *_comparison(runs[runs["labeled"] == SIZES[0]]),
        "",
        "*Labeled cells only*: without other cells of its batch, the batch effect is learnt as if it were the type.",
        "scANVI's `load_query_data` takes no new label, so 15 nearest neighbors in its latent space give the",
        "labels, with",
        "the cells of the reference. It was trained once, with its defaults, which are meant for more cells.",
        "",
        f"Adding a type took {own['seconds'].median():.1f} s of processor time (median); training the model took",
        f"{own['training'].median():.1f} s.",
        "",
        *version_lines(result),
    ]
    return "\n".join(lines)


def _over_seeds(runs: pd.DataFrame, column: str) -> str:
    """Mean and standard deviation over seeds of the mean over types."""
    of_seed = runs.groupby("seed")[column].mean()
    digits = 1 if column == "change" else 3
    if len(of_seed) == 1:
        return f"{of_seed.mean():.{digits}f}"
    return f"{of_seed.mean():.{digits}f} ± {of_seed.std(ddof=1):.{digits}f}"


def _comparison(runs: pd.DataFrame) -> list[str]:
    rows = [
        [*names, *(_over_seeds(of_task, c) for c in ("recall", "after", "change"))]
        for names, of_task in runs.groupby(["dataset", "query", "method"], sort=False)
    ]
    return table(
        [
            "dataset",
            "query",
            "method",
            "recall of the new type",
            "macro-F1",
            "change, points",
        ],
        rows,
    )


def _sizes(runs: pd.DataFrame) -> list[str]:
    rows = [
        [*map(str, names), *(_over_seeds(of_task, c) for c in ("recall", "change"))]
        for names, of_task in runs.groupby(["dataset", "query", "labeled"], sort=False)
    ]
    head = [
        "dataset",
        "query",
        "labeled cells",
        "recall of the new type",
        "change, points",
    ]
    return table(head, rows)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", default=[*METHODS], choices=[*METHODS])
    parser.add_argument("--only", help="hold only this type out")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    quiet()
    result = {
        "runs": measure(given.data, given.seeds, given.methods, given.only),
        "seeds": given.seeds,
        "versions": versions(),
    }
    write(given.out, "new_labels", result, report(result))


if __name__ == "__main__":
    main()
