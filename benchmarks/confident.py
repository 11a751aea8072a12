"""Are confident answers right, and how deep in the tree are they?

``python -m benchmarks.confident FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``confident.json``.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd

from benchmarks._accuracy_tasks import TASKS, Split, few, prepared
from benchmarks._models import codes_of_labels, train_default
from benchmarks._results import (
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)
from tosica.onto._hierarchy import LabelHierarchy
from tosica.onto._ontology import match_label

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFIDENCE = 0.9
# Terms of the labels of blood cells, as the bundled model has them.
OF_BLOOD = dict(
    pd.read_csv(str(files("tosica") / "bundled/blood/labels.csv"))[
        ["label", "ontology_term_id"]
    ].itertuples(index=False)
)


def share_of(file: str, share: float) -> Callable[[Path, int], list[Split]]:
    """A share of each label's cells is the reference, and all other cells are the query."""

    def splits(data: Path, seed: int) -> list[Split]:
        adata = prepared(ad.read_h5ad(data / file), "cell_type")
        return few(adata, int(share * adata.n_obs), seed)

    return splits


CASES: dict[str, tuple[str, Callable[[Path, int], list[Split]]]] = {
    "kang": ("Kang, control → IFN-β", TASKS["kang"].splits),
    "kang back": ("Kang, IFN-β → control", TASKS["kang back"].splits),
    "sorted": (
        "sorted blood, two thirds → one third",
        share_of("sorted_blood.h5ad", 2 / 3),
    ),
    "mouse": (
        "mouse tissues, 63 labels, halves",
        share_of("mouse_tissues.h5ad", 1 / 2),
    ),
}


def run(split: Split, seed: int) -> dict[str, float]:
    """Train, annotate, and compare the answers with the true labels.

    An answer is right if it is the true label, or above or below it. It is one step above if no
    group between it and the most probable label has fewer labels.
    """
    model = train_default(split.reference, seed)
    terms = {
        label: OF_BLOOD.get(label) or match_label(label).term for label in model.labels
    }
    model.ontology_term_ids_ = {label: term for label, term in terms.items() if term}
    tree = LabelHierarchy(model.labels, model.ontology_term_ids_)
    probabilities = model.predict(split.query, soft=True).to_numpy()
    codes, confidence = tree.answer(probabilities, CONFIDENCE)
    is_answered = codes < len(tree.names)
    answers = tree.members[codes[is_answered]]
    best = probabilities[is_answered].argmax(1)
    # A label above other labels is in the tree twice, the second time with these.
    members_of = dict(zip(tree.names, tree.members, strict=True))
    members_of_label = np.array([members_of[label] for label in model.labels])
    truth = members_of_label[codes_of_labels(model, split.query)[is_answered]]
    is_below = ~(truth & ~answers).any(1)
    is_above = ~(answers & ~truth).any(1)
    sizes = np.where(tree.members, tree.members.sum(1, keepdims=True), np.inf)
    size_one_above = np.where(sizes > 1, sizes, np.inf).min(0)
    n_labels = answers.sum(1)
    is_label = n_labels == 1
    is_near = is_label | (n_labels <= size_one_above[best])
    n_cells = len(is_answered)
    return {
        "right": float((is_below | is_above).mean()),
        "probability": float(confidence[is_answered].mean()),
        "answered": float(is_answered.mean()),
        "label": float(is_label.sum() / n_cells),
        "label or one above": float(is_near.sum() / n_cells),
    }


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    runs = pd.DataFrame(result["runs"])
    measures = {
        "right": "right",
        "probability": "mean probability",
        "answered": "answered",
        "label": "by a label",
        "label or one above": "by a label or one step above",
    }
    by_case = runs.groupby("case", sort=False)[list(measures)]
    means = by_case.mean()
    spreads = by_case.std()
    rows = []
    for case in means.index:
        row = [
            f"{means.at[case, name]:.3f} ± {spreads.at[case, name]:.3f}"
            for name in measures
        ]
        rows.append([CASES[case][0], *row])
    return "\n".join(
        [
            "# Confident answers",
            "",
            "`python -m benchmarks.confident`. `tosica_confident` is the deepest label, or term above labels,",
            f"with a probability of {CONFIDENCE} or more. It is right if it is the known label or above or below",
            "it in the Cell Ontology. Shares of cells and mean probability of the answers: means over seeds (±",
            "standard deviation).",
            "",
            *table(["", *measures.values()], rows),
            "",
            *version_lines(result),
        ]
    )


def main(arguments: list[str] | None = None) -> None:
    """Run all cases, and write the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    quiet()
    runs = []
    for case in options.cases:
        for seed in range(options.seeds):
            for split in CASES[case][1](options.data, seed):
                runs.append({"case": case, "seed": seed, **run(split, seed)})
                print(json.dumps(runs[-1]), flush=True)
    result = {"runs": runs, "versions": versions()}
    write(options.out, "confident", result, report(result))


if __name__ == "__main__":
    main()
