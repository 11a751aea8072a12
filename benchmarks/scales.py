"""Expression on other scales: what tosica says of it, and what becomes of labels and label sets.

``python -m benchmarks.scales FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``scales.json`` and its page. The
same cells are given to a model, as counts and in every way in which they are found in files: with
all genes, and with fewer genes after they were transformed. So is a reference.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scvi
import torch
from scipy.sparse import csr_matrix, diags
from scipy.stats import rankdata

import tosica
from benchmarks._accuracy_tasks import COUNTS, LABEL, few, kang, pbmc68k
from benchmarks._results import table, version_lines, versions, write
from tosica.tl._evaluate import calibration_bins, expected_calibration_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anndata import AnnData

TARGET = 0.95
DATA: dict[str, tuple[str, Callable[[Path], AnnData], int]] = {
    "kang": ("Kang", kang, 900),
    "pbmc68k": ("pbmc68k", pbmc68k, 400),
}
# Share of the genes that a query keeps; the most variable genes, which a reference keeps.
KEPT, N_VARIABLE = 0.75, 300
RIGHT = "counts"


def of_values(shares: csr_matrix, total: float, change: Callable) -> csr_matrix:
    """Scale each cell to a total and change the values above zero."""
    made = csr_matrix(shares * total)
    made.data = change(made.data)
    return made


def per_gene(shares: csr_matrix, change: Callable) -> np.ndarray:
    """Change the columns of the right log-normalized matrix."""
    return change(np.log1p(1e4 * shares.toarray()))


def standardized(x: np.ndarray) -> np.ndarray:
    """Z-scores of each gene; negative ones are set to zero."""
    return np.clip((x - x.mean(0)) / np.maximum(x.std(0), 1e-9), 0, 10)


def some_and_others(one: Any, other: Any) -> np.ndarray:
    """Every second cell of one matrix, the other cells of another."""
    one, other = (np.asarray(csr_matrix(x).toarray()) for x in (one, other))
    return np.where((np.arange(len(one)) % 2 == 0)[:, None], one, other)


TRANSFORMS: dict[str, Callable[[csr_matrix, csr_matrix], Any]] = {
    RIGHT: lambda c, p: c,
    "log1p of 1e4": lambda c, p: of_values(p, 1e4, np.log1p),
    "log1p of 1e6": lambda c, p: of_values(p, 1e6, np.log1p),
    "log1p of 1e3": lambda c, p: of_values(p, 1e3, np.log1p),
    "log1p of the median": lambda c, p: of_values(
        p, float(np.median(np.asarray(c.sum(1)))), np.log1p
    ),
    "log2 of 1e4": lambda c, p: of_values(p, 1e4, lambda x: np.log2(1 + x)),
    "log10 of 1e4": lambda c, p: of_values(p, 1e4, lambda x: np.log10(1 + x)),
    "log1p twice": lambda c, p: of_values(p, 1e4, lambda x: np.log1p(np.log1p(x))),
    "log1p of raw counts": lambda c, p: c.log1p(),
    "fractions": lambda c, p: p,
    "square roots": lambda c, p: of_values(p, 1e3, np.sqrt),
    "z-scores, clipped at 0": lambda c, p: per_gene(p, standardized),
    "genes scaled to [0, 1]": lambda c, p: per_gene(
        p, lambda x: x / np.maximum(x.max(0), 1e-9)
    ),
    "ranks": lambda c, p: rankdata(p.toarray(), axis=1, method="ordinal"),
    "ranks / n": lambda c, p: rankdata(p.toarray(), axis=1) / p.shape[1],
    "half log1p of 1e4, half of 1e6": lambda c, p: some_and_others(
        of_values(p, 1e4, np.log1p), of_values(p, 1e6, np.log1p)
    ),
    "half counts, half log1p of 1e4": lambda c, p: some_and_others(
        c, of_values(p, 1e4, np.log1p)
    ),
    "half log1p of 1e4, half of raw counts": lambda c, p: some_and_others(
        of_values(p, 1e4, np.log1p), c.log1p()
    ),
    "half log1p, half log2": lambda c, p: some_and_others(
        of_values(p, 1e4, np.log1p), of_values(p, 1e4, lambda x: np.log2(1 + x))
    ),
    "all values equal": lambda c, p: np.full(c.shape, 2.5),
}
# References that a model is made of: the total of one is not the usual one, or not known.
OF_RAW = "fewer, raw"
TRAINED = [("log1p of 1e6", "fewer"), ("log1p of 1e6", OF_RAW)]
# Queries of the models of references.
QUERIES = {"counts": False, "counts, the same genes": True, "log1p of 1e4": False}


def transformed(adata: AnnData, name: str) -> AnnData:
    """The same cells with ``X`` transformed, and without anything that tells the counts."""
    # scipy sorts the indices of a matrix in place, also those that it shares with another one.
    counts = csr_matrix(adata.layers[COUNTS], dtype=np.float64, copy=True)
    shares = csr_matrix(diags(1 / np.asarray(counts.sum(1)).ravel()) @ counts)
    made = adata.copy()
    del made.layers[COUNTS]
    x = TRANSFORMS[name](counts, shares)
    made.X = x.astype(np.float32)
    return made


class Said(logging.Handler):
    """What the logger warns of, and what is warned or raised."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def listen(act: Callable[[], Any]) -> tuple[Any, str, str]:
    """Do something: what it returns, in one word what tosica did about the scale, and how."""
    said, log = Said(), logging.getLogger("tosica")
    log.addHandler(said)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            done = act()
    except ValueError as error:
        return None, "refused", str(error)
    finally:
        log.removeHandler(said)
    warned = [str(w.message) for w in caught if "another scale" in str(w.message)]
    if warned:
        return done, "warned", warned[0]
    if said.lines:
        return done, "rescaled", said.lines[0]
    return done, "taken", ""


def set_up(reference: AnnData) -> None:
    """Prepare a reference, which looks at its scale."""
    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)


def trained(reference: AnnData, seed: int, **train: Any) -> tosica.TOSICA:
    """A model of a reference that was prepared."""
    scvi.settings.seed = seed
    model = tosica.TOSICA(reference)
    model.train(enable_progress_bar=False, accelerator="cpu", **train)
    return model


def scores(model: tosica.TOSICA, query: AnnData) -> dict[str, float]:
    """Accuracy, calibration error, coverage of label sets, and share of sets that are empty."""
    found = model.predict(query, soft=True).to_numpy()
    truth = pd.Categorical(query.obs[LABEL].astype(str), categories=model.labels).codes
    right = found.argmax(1) == truth
    sets = model.predict_set(query, coverage=TARGET, allow_empty=True).to_numpy()
    bins = calibration_bins(right, found.max(1), 10)
    return {
        "accuracy": float(right.mean()),
        "calibration error": expected_calibration_error(bins),
        "coverage": float(sets[np.arange(len(sets)), truth].mean()),
        "empty": float((sets.sum(1) == 0).mean()),
    }


def queries(
    data: str, adata: AnnData, seed: int, **train: Any
) -> Iterator[dict[str, Any]]:
    """One model of counts, and each transform of its query."""
    (reference, query), *_ = few(adata, DATA[data][2], seed)
    rng = np.random.default_rng(seed)
    fewer = np.sort(rng.permutation(query.n_vars)[: round(KEPT * query.n_vars)])
    reference = transformed(reference, RIGHT)
    set_up(reference)
    model = trained(reference, seed, **train)
    for name in TRANSFORMS:
        for genes in ("all", "fewer"):
            cells = transformed(query, name)
            if genes == "fewer":
                cells = cells[:, fewer].copy()
            found, what, how = listen(lambda cells=cells: scores(model, cells))
            yield {
                "query": name,
                "genes": genes,
                "did": what,
                "said": how,
                **(found or {}),
            }


def references(
    data: str, adata: AnnData, seed: int, **train: Any
) -> Iterator[dict[str, Any]]:
    """Each transform of the reference; those that are taken make a model, which has queries."""
    (reference, query), *_ = few(adata, DATA[data][2], seed)
    variances = np.asarray(np.log1p(reference.layers[COUNTS]).toarray().var(0))
    variable = np.sort(np.argsort(-variances)[:N_VARIABLE])
    for name in TRANSFORMS:
        for genes in ("all", "fewer", OF_RAW):
            if genes == OF_RAW and (name, genes) not in TRAINED:
                continue
            cells = transformed(reference, name)
            if genes != "all":
                whole, cells = cells, cells[:, variable].copy()
                if genes == OF_RAW:
                    cells.raw = whole
            _, what, how = listen(lambda cells=cells: set_up(cells))
            row = {"reference": name, "genes": genes, "did": what, "said": how}
            if (name, genes) not in TRAINED:
                yield row
                continue
            model = trained(cells, seed, **train)
            for of_query, same_genes in QUERIES.items():
                given = transformed(query, of_query.split(",")[0])
                if same_genes:
                    given = given[:, variable].copy()
                _, what, how = listen(
                    lambda given=given, model=model: model.predict(given)
                )
                of_model = {"query": of_query, "to query": what, **scores(model, given)}
                yield {**row, **of_model}


METRICS = ("accuracy", "calibration error", "coverage")


def report(result: dict[str, Any]) -> str:
    """What the page says of a result."""
    runs = pd.DataFrame(result["runs"])
    parts = {
        part: of.groupby(
            [
                part.removesuffix("ies") + "y" if part == "queries" else "reference",
                "genes",
            ]
        )
        for part, of in runs.groupby("part")
    }
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in TRANSFORMS:
        did = (
            _did(parts[part].get_group((name, genes)))
            for part in parts
            for genes in ("all", "fewer")
        )
        alike.setdefault(tuple(did), []).append(name)
    rows = [["; ".join(names), *did] for did, names in alike.items()]
    read = runs[(runs["part"] == "queries") & runs["accuracy"].notna()]
    changes = [
        [
            DATA[data][0],
            genes,
            *(f"{of[what].min():.3f} to {of[what].max():.3f}" for what in METRICS),
        ]
        for (data, genes), each in read.groupby(["data", "genes"], sort=False)
        for of in [each.groupby("query")[list(METRICS)].mean()]
    ]
    names = " and ".join(DATA[data][0] for data in dict.fromkeys(runs["data"]))
    lines = [
        "# Expression on another scale",
        "",
        f"Written by `python -m benchmarks.scales` with {names}, {runs['seed'].nunique()} seeds. Queries are of",
        "models of",
        f"counts. *Fewer*: a random {KEPT:.0%} of the genes of a query, and the {N_VARIABLE} most variable ones of a",
        "reference, are left after the transform. *Taken*: read as what it is, without a warning. *Rescaled*:",
        "brought to the scale of the reference, and logged. *Refused*: an error.",
        "",
        *table(
            [
                "scale",
                *(
                    f"{part}, {genes} genes"
                    for part in parts
                    for genes in ("all", "fewer")
                ),
            ],
            rows,
        ),
        "",
        "Labels of the queries that were read, lowest and highest mean over the scales, with the coverage of",
        f"`predict_set(coverage={TARGET}, allow_empty=True)`:",
        "",
        *table(["data", "genes", *METRICS], changes),
        "",
    ]
    return "\n".join([*lines, *version_lines(result)])


def _did(rows: pd.DataFrame, column: str = "did") -> str:
    """What tosica did, with all seeds the same or the numbers of seeds."""
    n = rows[column].value_counts()
    if not len(n):
        return ""
    return (
        str(n.index[0]) if len(n) == 1 else ", ".join(f"{k} {v}" for k, v in n.items())
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--names", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4, help="of each model")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args(arguments)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("tosica").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "runs": [],
        "epochs": given.epochs,
        "versions": versions("scikit-learn"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for data in given.names:
            adata = DATA[data][1](given.data)
            for seed in range(given.seeds):
                for part, run in (("queries", queries), ("references", references)):
                    result["runs"] += [
                        {"data": data, "part": part, "seed": seed, **row}
                        for row in run(data, adata, seed, max_epochs=given.epochs)
                    ]
    write(given.out, "scales", result, report(result))


if __name__ == "__main__":
    main()
