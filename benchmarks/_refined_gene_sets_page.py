"""The page of the benchmark of refined gene sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from benchmarks._report import table, version_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

# With fewer genes, a fifth of a set is a single gene.
MIN_GENES = 10
# Of larger collections, so many sets are drawn.
MAX_SETS = 600
TITLES = {
    "kang": "Kang, Gene Ontology",
    "kang reactome": "Kang, Reactome",
    "pbmc68k": "pbmc68k, Gene Ontology",
    "cite": "CITE-seq PBMC, Gene Ontology",
    "lung": "lung cancer lines, Gene Ontology",
    "breast": "breast, Gene Ontology",
    "gut": "mouse gut, Gene Ontology",
}
RANKINGS = {
    "default": "default: ridge regression and mean correlation",
    "correlation": "mean correlation alone",
    "ridge": "ridge regression alone",
    "all": "without the PCA of variation within labels",
    "within": "without the PCA of all variation",
    "depth": "with the number of expressed genes regressed out",
}
OF_CHANGES = ["recall, gained", "precision, gained", "recall, lost", "precision, lost"]


def _share(right: float, of: float) -> str:
    return f"{right / of:.2f}" if of else "–"


def _shares(found: Mapping[str, float]) -> list[str]:
    """Recall and precision of genes that are gained, and of those that are lost."""
    return [
        _share(found[f"{change} right"], found[of])
        for change in ("gained", "lost")
        for of in (f"{change} there", change)
    ]


def swapped_rows(runs: pd.DataFrame) -> list[list[str]]:
    """A row for each dataset and seed."""
    rows = []
    for _, run in runs.iterrows():
        found = run["swapped"]["default"]
        rows.append(
            [
                TITLES[run["dataset"]],
                str(run["seed"]),
                f"{found['refined']} of {run['random']['sets']}",
                f"{found['gained right']} of {found['gained there']}",
                *_shares(found),
            ]
        )
    return rows


def is_met(found: Mapping[str, float]) -> bool:
    """Whether half of the genes came back, at a precision of one half."""
    right = found["gained right"]
    return right > 0 and 2 * right >= found["gained there"] and 2 * right >= found["gained"]


def withheld_rows(runs: pd.DataFrame) -> list[list[Any]]:
    """A row for each dataset: mean average precision of rankings, over sets and seeds."""
    rows = []
    for dataset, of_dataset in runs.groupby("dataset", sort=False):
        parts = [pd.DataFrame([w["all"] for w in of_dataset["withheld"]])]
        parts.append(pd.DataFrame([w["of evident"] for w in of_dataset["withheld"]]))
        for what, part in zip(("all", "with evidence"), parts, strict=True):
            if part.empty:
                continue
            means = part.mean()
            above = (part["default"] > part["correlation"]).sum()
            rows.append(
                [
                    TITLES[dataset],
                    what,
                    f"{means['chance']:.4f}",
                    f"{means['correlation']:.4f}",
                    f"{means['default']:.4f}",
                    f"{above} of {part['default'].notna().sum()}",
                ]
            )
    return rows


def target_rows(of_dataset: dict[str, pd.DataFrame], arguments: str) -> list[list[Any]]:
    """A row for each dataset: in how many seeds the target is met."""
    rows = []
    for name, part in of_dataset.items():
        counts = [each[arguments] for each in part["swapped"]]
        evident = [each for each in counts if each["refined"]]
        rows.append([TITLES[name], f"{len(evident)} of {len(part)}", sum(map(is_met, evident))])
    return rows


def argument_rows(runs: pd.DataFrame, arguments: dict[str, Any]) -> list[list[str]]:
    """A row for each choice of arguments, over all seeds of one dataset."""
    rows = []
    for name in arguments:
        counts = pd.DataFrame([each[name] for each in runs["swapped"]])
        total = counts.sum()
        rows.append([name, f"{counts['refined'].mean():.1f}", *_shares(total)])
    return rows


def random_rows(of_dataset: dict[str, pd.DataFrame]) -> list[list[Any]]:
    """A row for each dataset: random sets over all seeds, and how many of them gained genes."""
    totals = {name: pd.DataFrame(list(part["random"])).sum() for name, part in of_dataset.items()}
    columns = ["sets", "sets that gained", "sets that gained, any recall"]
    return [[TITLES[name], *map(int, total[columns])] for name, total in totals.items()]


def swapped_section(runs: pd.DataFrame, of_dataset: dict[str, pd.DataFrame]) -> list[str]:
    """The part of the page about swapped genes."""
    return [
        "## A fifth of the genes swapped for random ones",
        "",
        "*Gained* are genes that come back, *lost* are random genes that leave. Shares are "
        "those of all sets with evidence together.",
        "A gene that leaves counts as wrong if it was in the set before, also if the data say "
        "nothing for it.",
        "",
        *table(["", "seed", "sets with evidence", "come back", *OF_CHANGES], swapped_rows(runs)),
        "",
        "The target is that at least half of the genes come back, at a precision of at least "
        "one half. In so many seeds",
        "a set has evidence, and the target is met:",
        "",
        *table(["", "seeds with evidence", "met"], target_rows(of_dataset, "default")),
        "",
        "The same with `min_recall=0.4`:",
        "",
        *table(["", "seeds with evidence", "met"], target_rows(of_dataset, "min_recall 0.4")),
        "",
    ]


def report(result: dict[str, Any]) -> str:
    """The page."""
    runs = pd.DataFrame(result["runs"])
    of_dataset = dict(list(runs.groupby("dataset", sort=False)))
    first = next(iter(of_dataset))
    everything = pd.DataFrame([run["swapped"]["default"] for run in result["runs"]]).sum()
    names = sorted({name for run in result["runs"] for name in run["refined"]})
    precisions = {
        name: pd.DataFrame([each["all"] for each in part["withheld"]]).mean()
        for name, part in of_dataset.items()
    }
    parts = [
        [title, *(f"{means[name]:.4f}" for means in precisions.values())]
        for name, title in RANKINGS.items()
    ]
    return "\n".join(
        [
            *introduction(),
            "**Few sets can be refined.** A set has evidence if at least half of its own genes are "
            "found when they are held out. This criterion",
            "sees the changed set only. Sets without evidence do not change. These had evidence in "
            "any seed:",
            "",
            *(f"- {name}" for name in names),
            "",
            "Of the swapped genes of all sets, "
            f"{everything['gained right'] / everything['gained anywhere']:.1%} come back.",
            "",
            *swapped_section(runs, of_dataset),
            "## Random sets",
            "",
            "Random sets have the sizes of the real ones, and genes of similar mean expression. "
            "The table counts sets over all seeds.",
            "",
            *table(
                ["", "random sets", "sets that gained", "with `min_recall=0`"],
                random_rows(of_dataset),
            ),
            "",
            "## A fifth of the genes withheld",
            "",
            "Average precision (area under precision and recall) of the withheld genes among all "
            "genes outside of the set, as a mean over",
            "sets and seeds. The last column counts the seeds in which the mean is above that of "
            "the ranking by mean correlation.",
            "",
            *table(
                ["", "sets", "chance", "mean correlation", "refine_gene_sets", "seeds above"],
                withheld_rows(runs),
            ),
            "",
            "## What each part adds",
            "",
            "Mean average precision of withheld genes over all sets:",
            "",
            *table(["", *(TITLES[name] for name in of_dataset)], parts),
            "",
            f"Arguments of the function, with swapped genes, over all seeds of "
            f"{TITLES[first]}. *Sets* is their mean number:",
            "",
            *table(
                ["", "sets", *OF_CHANGES], argument_rows(of_dataset[first], result["arguments"])
            ),
            "",
            *version_lines(result),
        ]
    )


def introduction() -> list[str]:
    """The first lines of the page."""
    return [
        "# Refined gene sets",
        "",
        "Written by `python -m benchmarks.refined_gene_sets`. It measures "
        "{func}`~tosica.tl.refine_gene_sets` on real gene sets that",
        f"were changed, so that the right answer is known. Sets have at least {MIN_GENES} genes in "
        f"the data and Jaccard indices of at most 0.5; {MAX_SETS} are",
        "drawn if there are more. Settings were chosen on Kang and the Gene Ontology. Average "
        "precisions of withheld genes were also looked at",
        "on the other data when the ranking was chosen, and swapped "
        "genes when `min_recall` was. Seeds draw genes and bootstraps. A gene "
        "that joins a set counts as wrong unless it was",
        "taken out of it, also if it belongs there and the collection lacks it.",
        "",
    ]
