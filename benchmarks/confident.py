"""Are confident answers right, and how deep in the tree are they?

``python -m benchmarks.confident FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``confident.json`` and its page.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import scvi
from sklearn.model_selection import train_test_split

import tosica
from benchmarks._accuracy_tasks import LABEL, TASKS, Split, prepared
from benchmarks._results import table, version_lines, versions, write
from tosica.onto._hierarchy import LabelHierarchy
from tosica.onto._ontology import match_label

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIDENCE = 0.9
# Terms of the labels of blood cells, as the bundled model has them.
OF_BLOOD = dict(
    pd.read_csv(str(files("tosica") / "bundled/blood/labels.csv"))[
        ["label", "ontology_term_id"]
    ].itertuples(index=False)
)


def part(file: str, share: float) -> Callable[[Path, int], list[Split]]:
    """A share of each label's cells is the reference, and the others are the query."""

    def splits(data: Path, seed: int) -> list[Split]:
        adata = prepared(ad.read_h5ad(data / file), "cell_type")
        rows = np.arange(adata.n_obs)
        train, test = train_test_split(
            rows, train_size=share, stratify=adata.obs[LABEL], random_state=seed
        )
        return [Split(adata[np.sort(train)].copy(), adata[np.sort(test)].copy())]

    return splits


CASES: dict[str, tuple[str, Callable[[Path, int], list[Split]]]] = {
    "kang": ("Kang, control → IFN-β", TASKS["kang"].splits),
    "kang back": ("Kang, IFN-β → control", TASKS["kang back"].splits),
    "sorted": (
        "sorted blood, two thirds → one third",
        part("sorted_blood.h5ad", 2 / 3),
    ),
    "mouse": ("mouse tissues, 63 labels, halves", part("mouse_tissues.h5ad", 1 / 2)),
}


def run(split: Split, seed: int) -> dict[str, float]:
    """Train, annotate, and compare the answers with the known labels.

    An answer is right if it is the known label, or above or below it. It is one step above if no group
    between it and the most probable label has fewer labels.
    """
    scvi.settings.seed = seed
    tosica.pp.build_mask(split.reference)
    tosica.TOSICA.setup_anndata(split.reference, labels_key=LABEL)
    model = tosica.TOSICA(split.reference)
    model.train(enable_progress_bar=False)
    terms = {
        label: OF_BLOOD.get(label) or match_label(label).term for label in model.labels
    }
    model.ontology_term_ids_ = {label: term for label, term in terms.items() if term}
    tree = LabelHierarchy(model.labels, model.ontology_term_ids_)
    probabilities = model.predict(split.query, soft=True).to_numpy()
    codes, confidence = tree.answer(probabilities, CONFIDENCE)
    given = codes < len(tree.names)
    answers, best = tree.members[codes[given]], probabilities[given].argmax(1)
    known = pd.Index(model.labels).get_indexer(split.query.obs[LABEL].astype(str))
    # A label with others below it is in the tree twice, the second time with these.
    below = dict(zip(tree.names, tree.members, strict=True))
    own = np.array([below[label] for label in model.labels])[known[given]]
    right = ~(own & ~answers).any(1) | ~(answers & ~own).any(1)
    sizes = np.where(tree.members, tree.members.sum(1, keepdims=True), np.inf)
    one_above = np.where(sizes > 1, sizes, np.inf).min(0)
    return {
        "right": float(right.mean()),
        "probability": float(confidence[given].mean()),
        "answered": float(given.mean()),
        "label": float((answers.sum(1) == 1).sum() / len(given)),
        "label or one above": float(
            ((answers.sum(1) == 1) | (answers.sum(1) <= one_above[best])).sum()
            / len(given)
        ),
    }


def report(result: dict[str, Any]) -> str:
    """What the page says of a result."""
    runs = pd.DataFrame(result["runs"])
    measures = ["right", "probability", "answered", "label", "label or one above"]
    mean, spread = (
        getattr(runs.groupby("case", sort=False)[measures], how)()
        for how in ("mean", "std")
    )
    rows = [
        [
            CASES[case][0],
            *(
                f"{mean.at[case, name]:.3f} ± {spread.at[case, name]:.3f}"
                for name in measures
            ),
        ]
        for case in mean.index
    ]
    return "\n".join(
        [
            "# Confident answers",
            "",
            "Written by `python -m benchmarks.confident`. `tosica_confident` is the deepest label, or term above",
            f"labels, with a probability of {CONFIDENCE} or more. An answer is right if it is the known label or above",
            "or below it in the Cell Ontology. Shares of cells and mean probability of the answers: means over seeds",
            "(± standard deviation).",
            "",
            *table(
                [
                    "",
                    "right",
                    "mean probability",
                    "answered",
                    "by a label",
                    "by a label or one step above",
                ],
                rows,
            ),
            "",
            *version_lines(result),
        ]
    )


def main(arguments: list[str] | None = None) -> None:
    """Run all cases, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    runs = []
    for case in given.cases:
        for seed in range(given.seeds):
            for split in CASES[case][1](given.data, seed):
                runs.append({"case": case, "seed": seed, **run(split, seed)})
                print(json.dumps(runs[-1]), flush=True)
    result = {"runs": runs, "versions": versions()}
    write(given.out, "confident", result, report(result))


if __name__ == "__main__":
    main()
