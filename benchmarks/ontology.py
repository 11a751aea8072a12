"""Which labels does the Cell Ontology have, is a label ever mapped wrongly, and do sets hold?"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import scvi
from anndata import AnnData

import tosica
from benchmarks._accuracy_tasks import LABEL, TASKS, breast, gut, kang, lung, pbmc68k
from benchmarks._results import table, version_lines, versions, write
from tosica.onto._ontology import read_ontology

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks._accuracy_tasks import Split

COVERAGES = (0.9, 0.95, 0.98)
ACROSS = ("kang", "kang back")


# The term that each label means, looked up by hand. None: no term means this, several do, or it
# depends on where the cells are from.
BY_HAND: dict[str, dict[str, str | None]] = {
    str(name): rows.set_index("label")["term"].replace("", None).to_dict()
    for name, rows in pd.read_csv(
        Path(__file__).with_name("cell_names.csv"), keep_default_na=False
    ).groupby("source", sort=False)
}


class Source(NamedTuple):
    """Labels: what they are, their terms by hand, and how the cells that have them are read."""

    title: str
    terms: dict[str, str | None]
    read: Callable[[Path], AnnData] | None = None


SOURCES = {
    "kang": Source("Kang, PBMCs", BY_HAND["kang"], kang),
    "pbmc68k": Source("pbmc68k, PBMCs", BY_HAND["pbmc68k"], pbmc68k),
    "lung": Source("lung mix, cell lines", BY_HAND["lung"], lung),
    "breast": Source("breast", BY_HAND["breast"], breast),
    "gut": Source("gut of the mouse", BY_HAND["gut"], gut),
    "immune": Source("CellTypist, immune cells", BY_HAND["immune"]),
    "others": Source("CellTypist's style, other tissues", BY_HAND["others"]),
}


def labels_of(source: Source, data: Path) -> list[str]:
    """Labels of the cells, or the names by hand if there are no cells."""
    if source.read is None:
        return list(source.terms)
    return list(source.read(data).obs[LABEL].cat.categories)


def map_source(name: str, data: Path) -> list[dict[str, Any]]:
    """Map the labels of a source, and compare each with its term by hand."""
    source = SOURCES[name]
    labels = labels_of(source, data)
    cells = AnnData(
        obs=pd.DataFrame(
            {"label": labels}, index=[f"cell{i}" for i in range(len(labels))]
        )
    )
    found = tosica.onto.map_labels(cells, "label")
    rows = []
    for row in found.to_dict("records"):
        term = source.terms[row["label"]]
        is_mapped = row["match"] != "none"
        rows.append(
            {
                "source": name,
                **row,
                "by_hand": term,
                "wrong": is_mapped and row["ontology_term_id"] != term,
                "listed": not is_mapped
                and any(c.startswith(f"{term} ") for c in row["candidates"]),
            }
        )
    return rows


def sets_of(split: Split, seed: int, **train: Any) -> list[dict[str, Any]]:
    """Coverage and size of label sets, as they are and as terms, in another batch."""
    reference, query = split.reference.copy(), split.query.copy()
    tosica.onto.map_labels(
        reference,
        LABEL,
        mapping={k: v for k, v in BY_HAND["kang"].items() if v is not None},
    )
    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)
    scvi.settings.seed = seed
    model = tosica.TOSICA(reference)
    model.train(enable_progress_bar=False, accelerator="cpu", **train)
    truth = query.obs[LABEL].astype(str)
    codes = pd.Categorical(truth, categories=model.labels).codes
    terms = truth.map(model.ontology_term_ids_)
    runs = []
    for coverage in COVERAGES:
        asked = {"coverage": coverage, "allow_empty": True}
        sets = model.predict_set(query, **asked)
        as_terms = model.predict_set(query, **asked, ontology=True)
        reported = as_terms["ontology_term_id"].astype(str)
        kinds = [
            term == shown
            or (shown != "unknown" and term in tosica.onto.descendants(shown))
            for term, shown in zip(terms, reported, strict=True)
        ]
        runs.append(
            {
                "asked": coverage,
                "seed": seed,
                "coverage": float(sets.to_numpy()[np.arange(len(sets)), codes].mean()),
                "labels": float(sets.sum(axis=1).mean()),
                "coverage of terms": float(np.mean(kinds)),
                "labels of terms": float(as_terms["n_labels"].mean()),
                "several labels": float((sets.sum(axis=1) > 1).mean()),
            }
        )
    return runs


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds."""
    scored = pd.DataFrame(runs)
    groups = scored.groupby(["task", "asked"], sort=False)
    means = groups.mean(numeric_only=True).drop(columns="seed").reset_index()
    return [
        {**row, "seeds": int(scored["seed"].nunique())}
        for row in means.to_dict("records")
    ]


def report(result: dict[str, Any]) -> str:
    """The page."""
    rows = pd.DataFrame(result["labels"])
    shares = []
    for name, some in rows.groupby("source", sort=False):
        left = some[some["match"] == "none"]
        meant = left["by_hand"].notna()
        shares.append(
            [
                SOURCES[str(name)].title,
                len(some),
                *(
                    f"{(some['match'] == how).mean():.0%}"
                    for how in ("name", "synonym")
                ),
                f"{(left['candidates'].map(len) > 0).sum() / len(some):.0%}",
                f"{(left['candidates'].map(len) == 0).sum() / len(some):.0%}",
                int(some["wrong"].sum()),
                f"{int(left['listed'].sum())} of {int(meant.sum())}",
            ]
        )
    checked = rows.drop_duplicates("label")["by_hand"].notna().sum()
    head = [
        "labels",
        "number",
        "name",
        "synonym",
        "candidates",
        "nothing",
        "wrong",
        "in the candidates",
    ]
    widest = max(result["sets"], key=lambda group: group["asked"])
    lines = [
        "# Labels in the Cell Ontology",
        "",
        "Written by `python -m benchmarks.ontology`. `tosica.onto.map_labels` maps labels of data sets and of",
        "CellTypist",
        f"to the Cell Ontology of {result['release']}. The terms of {checked} different labels were looked up by hand.",
        "*Name*, *synonym*, *candidates* and *nothing* are shares of the labels. *Wrong* is the number of",
        "labels that were",
        "mapped otherwise than by hand. *In the candidates* is how many unmapped labels have their term among the five",
        "candidates. The rules were written with these labels in view: other labels may fare worse.",
        "",
        *table(head, shares),
        "",
        f"Label sets of Kang's other condition with a coverage of {widest['asked']} hold the true label in",
        f"{widest['coverage']:.3f} of the cells, and as one term (`ontology=True`) in",
        f"{widest['coverage of terms']:.3f};",
        f"a set has {widest['labels']:.2f} labels, and a term {widest['labels of terms']:.2f}.",
        "",
        *version_lines(result),
    ]
    return "\n".join(lines)


def time_first_label() -> float:
    """Seconds for reading the ontology and mapping one label, in a process that has not."""
    from time import perf_counter

    start = perf_counter()
    tosica.onto.map_labels(
        AnnData(obs=pd.DataFrame({"label": ["T cells"]}, index=["0"])), "label"
    )
    return perf_counter() - start


def main(arguments: list[str] | None = None) -> None:
    """Map, compare, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--tasks", nargs="+", choices=ACROSS, default=list(ACROSS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="by default the model's own")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "tosica"):
        logging.getLogger(name).setLevel(logging.ERROR)
    seconds = time_first_label()
    labels = [row for name in given.sources for row in map_source(name, given.data)]
    runs: list[dict[str, Any]] = []
    for task in given.tasks:
        for seed in range(given.seeds):
            for split in TASKS[task].splits(given.data, seed):
                found = sets_of(split, seed, max_epochs=given.epochs)
                runs += [{"task": task, **run} for run in found]
    result = {
        "labels": labels,
        "sets": summarize(runs),
        "seconds": seconds,
        "release": read_ontology().release,
        "versions": versions(),
    }
    write(given.out, "ontology", result, report(result))


if __name__ == "__main__":
    main()
