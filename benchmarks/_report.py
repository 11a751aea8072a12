"""Write the pages of all benchmarks and their figures from the JSON files.

``python -m benchmarks._report`` from the repository's root writes all pages in
``docs/benchmarks``, after the scripts have written their results there.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt

from benchmarks import (
    accuracy,
    adapt,
    batches,
    cite_seq,
    confident,
    explanation,
    label_sets,
    levels,
    missing_genes,
    new_labels,
    novelty,
    ontology,
    parts,
    references,
    scale,
    scales,
    speed,
    trajectory,
)
from benchmarks._figures import FIGURES
from benchmarks._results import OUTPUT_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable

# Each page: its title, and its results in order, with the function that describes each.
PAGES: dict[str, tuple[str, dict[str, Callable[[dict[str, Any]], str]]]] = {
    "accuracy": (
        "Accuracy",
        {
            "accuracy": accuracy.report,
            "accuracy_unseen": accuracy.report,
            "accuracy_held_back": accuracy.report,
            "batches": batches.report,
            "references": references.report,
        },
    ),
    "explanation": (
        "Explanation",
        {"explanation": explanation.report, "trajectory": trajectory.report},
    ),
    "adapt": ("Learning from the query", {"adapt": adapt.report}),
    "doubt": (
        "Doubt",
        {
            "label_sets": label_sets.report,
            "confident": confident.report,
            "levels": levels.report,
            "ontology": ontology.report,
        },
    ),
    "robustness": (
        "Other genes and other scales",
        {"missing_genes": missing_genes.report, "scales": scales.report},
    ),
    "new_types": (
        "New types",
        {"novelty": novelty.report, "new_labels": new_labels.report},
    ),
    "scale": ("Speed and memory", {"speed": speed.report, "scale": scale.report}),
    "parts": (
        "Parts of the model",
        {"parts": parts.report, "cite_seq": cite_seq.report},
    ),
}
# Words for the figure of a page; that of the explanation is in its text.
ALTERNATIVE_TEXTS = {
    "accuracy": "Accuracy of tosica, CellTypist and the best other method in each task",
    "doubt": "Coverage of label sets by the number of labeled cells, for seven queries "
    "of another batch",
    "robustness": "Accuracy by the share of genes that are missing at random",
    "new_types": "AUROC of scores for new cells, and recall of a new type by the number "
    "of cells that taught it",
    "scale": "Cells per second by the number of cells in the file, for annotation and "
    "training",
    "adapt": "Accuracy of queries of another batch, before and after learning from them",
    "parts": "Accuracy of the network, the linear branch and their sum in each task",
}


def page(name: str, folder: Path) -> str:
    """Text of a page, with a section for each of its results in a folder."""
    title, reports = PAGES[name]
    # The search of the pages leaves these out: they have nearly every word.
    lines = ["---", "nosearch: true", "---", "", f"# {title}", ""]
    if name in ALTERNATIVE_TEXTS:
        lines += [f"![{ALTERNATIVE_TEXTS[name]}](../_static/{name}.png)", ""]
    for result, report in reports.items():
        path = folder / f"{result}.json"
        if path.exists():
            text = report(json.loads(path.read_text()))
            section = re.sub(r"(?m)^#", "##", text)
            lines.append("\n\n".join(map(_fill, section.split("\n\n"))))
    return "\n".join(lines)


def _fill(paragraph: str) -> str:
    """Fill a paragraph, without breaking code or numbers; leave tables and headings."""
    if not re.match(r"[A-Za-z0-9(]|\*\w|`\w", paragraph):
        return paragraph
    protected = re.sub(
        r"`[^`]*`|\d (?=\d{3})",
        lambda match: re.sub(r"\s", "\0", match[0]),
        paragraph.strip(),
    )
    filled = fill(protected, 120, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\0", " ") + "\n" * paragraph.endswith("\n")


def draw(name: str, folder: Path) -> None:
    """Draw the figure of a page into ``_static`` beside a folder, if it has all results."""
    paths = {result: folder / f"{result}.json" for result in PAGES[name][1]}
    if not all(path.exists() for path in paths.values()):
        return
    results = {result: json.loads(path.read_text()) for result, path in paths.items()}
    figure = FIGURES[name](results)
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
    static = folder.parent / "_static"
    static.mkdir(exist_ok=True)
    figure.savefig(static / f"{name}.png", dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Write all pages and figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=OUTPUT_FOLDER)
    folder = parser.parse_args(arguments).out
    for name in PAGES:
        (folder / f"{name}.md").write_text(page(name, folder))
        draw(name, folder)


if __name__ == "__main__":
    main()
