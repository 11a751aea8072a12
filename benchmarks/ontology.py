"""Which labels does the Cell Ontology have, is a label ever mapped wrongly, and do sets hold?"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from anndata import AnnData

import tosica
from benchmarks._accuracy_tasks import LABEL, TASKS, breast, gut, kang, lung, pbmc68k
from benchmarks._models import codes_of_labels, train_default
from benchmarks._results import (
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)
from tosica.onto._ontology import is_kind_of, read_ontology

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks._accuracy_tasks import Split

COVERAGES = (0.9, 0.95, 0.98)
ACROSS = ("kang", "kang back")


# The term that each label means, looked up by hand. None: no term means this, several do, or it
# depends on where the cells are from.
_TABLE = pd.read_csv(Path(__file__).with_name("cell_names.csv"), keep_default_na=False)
BY_HAND: dict[str, dict[str, str | None]] = {
    str(name): rows.set_index("label")["term"].replace("", None).to_dict()
    for name, rows in _TABLE.groupby("source", sort=False)
}


class Source(NamedTuple):
    """Title, terms of the labels by hand, and a function that reads the cells."""

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
    mapped = tosica.onto.map_labels(with_labels(labels_of(source, data)), "label")
    rows = []
    for row in mapped.to_dict("records"):
        term = source.terms[row["label"]]
        is_mapped = row["match"] != "none"
        is_candidate = any(text.startswith(f"{term} ") for text in row["candidates"])
        rows.append(
            {
                "source": name,
                **row,
                "by_hand": term,
                "wrong": is_mapped and row["ontology_term_id"] != term,
                "listed": not is_mapped and is_candidate,
            }
        )
    return rows


def with_labels(labels: list[str]) -> AnnData:
    """Cells with these labels and no expression."""
    names = [f"cell{i}" for i in range(len(labels))]
    return AnnData(obs=pd.DataFrame({"label": labels}, index=names))


def sets_of(split: Split, seed: int) -> list[dict[str, Any]]:
    """Coverage and size of label sets, as they are and as terms, in another batch."""
    reference = split.reference.copy()
    query = split.query
    terms = {label: term for label, term in BY_HAND["kang"].items() if term}
    labels = set(reference.obs[LABEL])
    mapping = {label: term for label, term in terms.items() if label in labels}
    tosica.onto.map_labels(reference, LABEL, mapping=mapping)
    model = train_default(reference, seed)
    codes = codes_of_labels(model, query)
    true_terms = query.obs[LABEL].astype(str).map(model.ontology_term_ids_)
    runs = []
    for coverage in COVERAGES:
        sets = model.predict_set(query, coverage=coverage, allow_empty=True)
        as_terms = model.predict_set(
            query, coverage=coverage, allow_empty=True, ontology=True
        )
        reported = as_terms["ontology_term_id"].astype(str)
        is_covered = [
            is_kind_of(term, answer)
            for term, answer in zip(true_terms, reported, strict=True)
        ]
        runs.append(
            {
                "asked": coverage,
                "seed": seed,
                "coverage": float(sets.to_numpy()[np.arange(len(sets)), codes].mean()),
                "labels": float(sets.sum(axis=1).mean()),
                "coverage of terms": float(np.mean(is_covered)),
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
    """Section of the page."""
    labels = pd.DataFrame(result["labels"])
    rows = []
    for name, of_source in labels.groupby("source", sort=False):
        unmapped = of_source[of_source["match"] == "none"]
        n_labels = len(of_source)
        n_candidates = unmapped["candidates"].map(len)
        row = [SOURCES[str(name)].title, n_labels]
        row += [
            f"{(of_source['match'] == how).mean():.0%}" for how in ("name", "synonym")
        ]
        row.append(f"{(n_candidates > 0).sum() / n_labels:.0%}")
        row.append(f"{(n_candidates == 0).sum() / n_labels:.0%}")
        row.append(int(of_source["wrong"].sum()))
        n_terms = int(unmapped["by_hand"].notna().sum())
        row.append(f"{int(unmapped['listed'].sum())} of {n_terms}")
        rows.append(row)
    n_checked = labels.drop_duplicates("label")["by_hand"].notna().sum()
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
        "`python -m benchmarks.ontology`. `tosica.onto.map_labels` maps labels of data sets and of CellTypist to",
        f"the Cell Ontology of {result['release']}. The terms of {n_checked} different labels were looked up by",
        "hand. *Wrong* labels were mapped otherwise than by hand. *In the candidates*: unmapped labels with their",
        "term among the five candidates. The rules were written with these labels in view: other labels may fare",
        "worse.",
        "",
        *table(head, rows),
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
    """Seconds for reading the ontology and mapping one label, before it was read."""
    start_time = perf_counter()
    tosica.onto.map_labels(with_labels(["T cells"]), "label")
    return perf_counter() - start_time


def main(arguments: list[str] | None = None) -> None:
    """Map, compare, and write the tables."""
    parser = make_parser(__doc__)
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--tasks", nargs="+", choices=ACROSS, default=list(ACROSS))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    quiet()
    seconds = time_first_label()
    labels = []
    for name in options.sources:
        labels += map_source(name, options.data)
    runs: list[dict[str, Any]] = []
    for task in options.tasks:
        for seed in range(options.seeds):
            for split in TASKS[task].splits(options.data, seed):
                runs += [{"task": task, **run} for run in sets_of(split, seed)]
    result = {
        "labels": labels,
        "sets": summarize(runs),
        "seconds": seconds,
        "release": read_ontology().release,
        "versions": versions(),
    }
    write(options.out, "ontology", result, report(result))


if __name__ == "__main__":
    main()
