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
from benchmarks._report import table, version_lines, versions, write
from benchmarks._scale_runs import quiet

METHODS = {"tosica": run_tosica, "scanvi": run_scanvi}


def measure(data: Path, seeds: list[int], methods: list[str], only: str | None) -> list[dict]:
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
    lines = [
        "# New labels",
        "",
        "Written by `python -m benchmarks.new_labels`. Each type of a dataset is held out of the",
        "reference, which is half of one batch. A model is trained on it, and then adapted by",
        "{meth}`tosica.TOSICA.load_query_data` to a query: the other half of the same batch, or",
        f"another batch. In the query {SIZES[0]} cells of the held-out type have a label. Half of",
        "the other cells are seen without their labels, and the rest are scored. Means and",
        f"standard deviations over {len(result['seeds'])} seeds are of the mean over these types.",
        "",
        "## 30 labeled cells",
        "",
        *_comparison(runs[runs["labeled"] == SIZES[0]]),
        "",
        "Macro-F1 is that of the old types, on their own cells. scANVI's `load_query_data` takes",
        "no new label, so its query is adapted without labels, and 15 nearest neighbors in its",
        "latent space give the labels. They need the cells of the reference. scVI and scANVI are",
        "trained with their defaults, which are meant for more cells. For scANVI, the macro-F1",
        "before is that of its own classifier.",
        "",
        "Without other cells of its batch, a query does not show what differs between batches, and",
        "the new label takes it for the type. `load_query_data` needs these cells if the batch is",
        "another one, and `train` warns if there are none.",
        "",
        "## Fewer labeled cells",
        "",
        *_sizes(runs[runs["method"] == "tosica"]),
        "",
        "## Each type",
        "",
        f"tosica, {SIZES[0]} labeled cells, means over seeds.",
        "",
        *_types(runs[(runs["method"] == "tosica") & (runs["labeled"] == SIZES[0])]),
        "",
        *_effort(runs),
        "",
        *version_lines(result),
    ]
    return "\n".join(lines)


def _over_seeds(runs: pd.DataFrame, column: str) -> str:
    """Mean and standard deviation over seeds of the mean over types."""
    of_seed = runs.groupby("seed")[column].mean()
    digits = 1 if column == "change" else 3
    if len(of_seed) == 1:
        return f"{of_seed.mean():.{digits}f} (one seed)"
    return f"{of_seed.mean():.{digits}f} ± {of_seed.std(ddof=1):.{digits}f}"


def _comparison(runs: pd.DataFrame) -> list[str]:
    rows = [
        [*names, *(_over_seeds(of_task, c) for c in ("recall", "before", "after", "change"))]
        for names, of_task in runs.groupby(["dataset", "query", "method"], sort=False)
    ]
    head = ["dataset", "query", "method", "recall of the new type"]
    head += ["macro-F1 before", "macro-F1 after", "change, points"]
    return table(head, rows)


def _sizes(runs: pd.DataFrame) -> list[str]:
    rows = [
        [*map(str, names), *(_over_seeds(of_task, c) for c in ("recall", "change"))]
        for names, of_task in runs.groupby(["dataset", "query", "labeled"], sort=False)
    ]
    head = ["dataset", "query", "labeled cells", "recall of the new type", "change, points"]
    return table(head, rows)


def _types(runs: pd.DataFrame) -> list[str]:
    means = runs.groupby(["dataset", "label", "query"], sort=False)[["recall", "change"]].mean()
    rows = [[*names, f"{found['recall']:.3f}", f"{found['change']:.1f}"] for names, found in means.iterrows()]
    return table(["dataset", "held-out type", "query", "recall", "change, points"], rows)


def _effort(runs: pd.DataFrame) -> list[str]:
    own = runs[runs["method"] == "tosica"]
    ratio = float((own["training"] / own["seconds"]).median())
    return [
        "## Effort",
        "",
        f"Loading the query and fitting the new label took {own['seconds'].median():.1f} s of "
        f"processor time (median), {ratio:.0f} times less than",
        f"training the model ({own['training'].median():.1f} s). The network takes no step. Before "
        "the new label is fitted, the largest change of a",
        f"probability of the model is {own['changed'].max():.1g}.",
    ]


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
