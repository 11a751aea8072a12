"""Does a trained model learn a new cell type from a few cells, and keep the others?

Each type of Kang and of the lung cell lines is held out of the reference. A query brings 30 cells
of it with a label. scANVI's ``load_query_data`` is measured beside tosica's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks._new_label_methods import SIZES, run_scanvi, run_tosica
from benchmarks._new_label_tasks import held_out
from benchmarks._results import (
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)

METHODS = {"tosica": run_tosica, "scanvi": run_scanvi}


def measure(
    data: Path, seeds: list[int], methods: list[str], only: str | None
) -> list[dict[str, Any]]:
    """All held-out types, seeds and methods."""
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        for task in held_out(data, seed):
            if only is not None and task.label != only:
                continue
            for method in methods:
                for scores in METHODS[method](task, seed):
                    row = {"dataset": task.dataset, "label": task.label, "seed": seed}
                    rows.append(row | scores)
                    print(rows[-1], flush=True)
    return rows


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    runs = pd.DataFrame(result["runs"])
    runs["change"] = 100 * (runs["after"] - runs["before"])
    tosica_runs = runs[runs["method"] == "tosica"]
    lines = [
        "# New labels",
        "",
        "`python -m benchmarks.new_labels`. Each type of a data set is held out of the reference, which is half",
        "of one batch. {meth}`tosica.TOSICA.load_query_data` adapts the model to the other half of the batch, or",
        "to another batch. Some cells of the type have a label, half of the other cells are seen without their",
        f"labels, and the rest are scored. Means over types and {len(result['seeds'])} seeds, ± standard",
        "deviation: recall of the new type, and change of the old types' macro-F1 in points, by the number of",
        "labeled cells.",
        "",
        *_sizes(tosica_runs),
        "",
        f"Others with {SIZES[0]} labeled cells. Macro-F1 is that of the old types.",
        "",
        *_comparison(
            runs[(runs["labeled"] == SIZES[0]) & (runs["method"] != "tosica")]
        ),
        "",
        "*Labeled cells only*: the batch effect is learnt as if it were the type. scANVI takes no new label: 15",
        "neighbors in its latent space give the labels. It ran once, with its defaults.",
        "",
        f"Adding a type took {tosica_runs['seconds'].median():.1f} s of processor time (median), training "
        f"{tosica_runs['training'].median():.1f} s.",
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
    head = [
        "dataset",
        "query",
        "method",
        "recall of the new type",
        "macro-F1",
        "change, points",
    ]
    rows = []
    for names, group in runs.groupby(["dataset", "query", "method"], sort=False):
        columns = ("recall", "after", "change")
        rows.append([*names, *(_over_seeds(group, column) for column in columns)])
    return table(head, rows)


def _sizes(runs: pd.DataFrame) -> list[str]:
    sizes = list(dict.fromkeys(runs["labeled"]))
    head = ["dataset", "query", *(f"recall, {n} cells" for n in sizes)]
    head += [f"change, {n} cells" for n in sizes]
    rows = []
    for names, group in runs.groupby(["dataset", "query"], sort=False):
        by_size = [group[group["labeled"] == n] for n in sizes]
        row = [_over_seeds(runs_of_size, "recall") for runs_of_size in by_size]
        row += [_over_seeds(runs_of_size, "change") for runs_of_size in by_size]
        rows.append([*names, *row])
    return table(head, rows)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the table."""
    parser = make_parser(__doc__, has_data=False)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", default=[*METHODS], choices=[*METHODS])
    parser.add_argument("--only", help="hold only this type out")
    options = parser.parse_args(arguments)
    quiet()
    result = {
        "runs": measure(options.data, options.seeds, options.methods, options.only),
        "seeds": options.seeds,
        "versions": versions(),
    }
    write(options.out, "new_labels", result, report(result))


if __name__ == "__main__":
    main()
