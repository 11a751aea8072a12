"""Expression on other scales: what tosica says of it, and what becomes of labels and label sets.

``python -m benchmarks.scales FOLDER`` from the repository's root, with the files of
``_accuracy_tasks.py`` in that folder, writes ``scales.json``. The
same cells are given to a model, as counts and in every way in which they are found in files: with
all genes, and with fewer genes after they were transformed. So is a reference.
"""

from __future__ import annotations

import logging
import warnings
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import scvi
import torch
from scipy.sparse import csr_matrix, diags
from scipy.stats import rankdata

import tosica
from benchmarks._accuracy_tasks import COUNTS, LABEL, few, kang, pbmc68k
from benchmarks._models import codes_of_labels
from benchmarks._results import (
    make_parser,
    quiet,
    table,
    version_lines,
    versions,
    write,
)
from tosica.tl._evaluate import calibration_bins, expected_calibration_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from anndata import AnnData

TARGET = 0.95
DATA: dict[str, tuple[str, Callable[[Path], AnnData], int]] = {
    "kang": ("Kang", kang, 900),
    "pbmc68k": ("pbmc68k", pbmc68k, 400),
}
# Share of the genes that remain in a query, and number that remains in a reference.
GENE_SHARE = 0.75
N_VARIABLE = 300
COUNTS_SCALE = "counts"


def scale_cells(
    shares: csr_matrix, total: float, change: Callable[[np.ndarray], np.ndarray]
) -> csr_matrix:
    """Scale each cell to a total and change the values above zero."""
    scaled = csr_matrix(shares * total)
    scaled.data = change(scaled.data)
    return scaled


def log1p_of(shares: csr_matrix, total: float) -> csr_matrix:
    """Natural logarithms of cells with a total."""
    return scale_cells(shares, total, np.log1p)


def log2_of_1e4(shares: csr_matrix) -> csr_matrix:
    """Binary logarithms of cells with a total of 10 000."""
    return scale_cells(shares, 1e4, lambda x: np.log2(1 + x))


def standardize(shares: csr_matrix) -> np.ndarray:
    """Z-scores of the logarithms of each gene; negative ones are set to zero."""
    x = log1p_of(shares, 1e4).toarray()
    return np.clip((x - x.mean(0)) / np.maximum(x.std(0), 1e-9), 0, 10)


def scale_to_one(shares: csr_matrix) -> np.ndarray:
    """Logarithms of each gene, divided by the largest."""
    x = log1p_of(shares, 1e4).toarray()
    return x / np.maximum(x.max(0), 1e-9)


def alternate(even: csr_matrix, odd: csr_matrix) -> np.ndarray:
    """Every second cell of one matrix, the other cells of another."""
    is_even = np.arange(even.shape[0]) % 2 == 0
    return np.where(is_even[:, None], even.toarray(), odd.toarray())


# Functions of the counts and of the shares of each cell's total.
TRANSFORMS: dict[str, Callable[[csr_matrix, csr_matrix], Any]] = {
    COUNTS_SCALE: lambda counts, shares: counts,
    "log1p of 1e4": lambda counts, shares: log1p_of(shares, 1e4),
    "log1p of 1e6": lambda counts, shares: log1p_of(shares, 1e6),
    "log1p of 1e3": lambda counts, shares: log1p_of(shares, 1e3),
    "log1p of the median": lambda counts, shares: log1p_of(
        shares, float(np.median(np.asarray(counts.sum(1))))
    ),
    "log2 of 1e4": lambda counts, shares: log2_of_1e4(shares),
    "log10 of 1e4": lambda counts, shares: scale_cells(
        shares, 1e4, lambda x: np.log10(1 + x)
    ),
    "log1p twice": lambda counts, shares: log1p_of(shares, 1e4).log1p(),
    "log1p of raw counts": lambda counts, shares: counts.log1p(),
    "fractions": lambda counts, shares: shares,
    "square roots": lambda counts, shares: scale_cells(shares, 1e3, np.sqrt),
    "z-scores, clipped at 0": lambda counts, shares: standardize(shares),
    "genes scaled to [0, 1]": lambda counts, shares: scale_to_one(shares),
    "ranks": lambda counts, shares: rankdata(
        shares.toarray(), axis=1, method="ordinal"
    ),
    "ranks / n": lambda counts, shares: (
        rankdata(shares.toarray(), axis=1) / shares.shape[1]
    ),
    "half log1p of 1e4, half of 1e6": lambda counts, shares: alternate(
        log1p_of(shares, 1e4), log1p_of(shares, 1e6)
    ),
    "half counts, half log1p of 1e4": lambda counts, shares: alternate(
        counts, log1p_of(shares, 1e4)
    ),
    "half log1p of 1e4, half of raw counts": lambda counts, shares: alternate(
        log1p_of(shares, 1e4), counts.log1p()
    ),
    "half log1p, half log2": lambda counts, shares: alternate(
        log1p_of(shares, 1e4), log2_of_1e4(shares)
    ),
    "all values equal": lambda counts, shares: np.full(counts.shape, 2.5),
}
# References that a model is made of: the total of one is not the usual one, or not known.
OF_RAW = "fewer, raw"
TRAINED = [("log1p of 1e6", "fewer"), ("log1p of 1e6", OF_RAW)]
# Queries of the models of references.
QUERIES = {"counts": False, "counts, the same genes": True, "log1p of 1e4": False}


def transformed(adata: AnnData, name: str) -> AnnData:
    """The same cells with ``X`` transformed, and without their counts."""
    # scipy sorts the indices of a matrix in place, also those that it shares with another one.
    counts = csr_matrix(adata.layers[COUNTS], dtype=np.float64, copy=True)
    shares = csr_matrix(diags(1 / np.asarray(counts.sum(1)).ravel()) @ counts)
    cells = adata.copy()
    del cells.layers[COUNTS]
    cells.X = TRANSFORMS[name](counts, shares).astype(np.float32)
    return cells


# What is said of a query's scale, and of a reference's.
WORDS_OF_WARNINGS = ("another scale", "do not tell how they were made")


class LogLines(logging.Handler):
    """Lines that are logged as warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


class Reaction(NamedTuple):
    """The reaction of tosica to a scale: its result, a word, and its message."""

    result: Any
    word: str
    message: str


def react(act: Callable[[], Any]) -> Reaction:
    """Call a function, and tell whether tosica took, rescaled or refused the values."""
    handler = LogLines()
    logger = logging.getLogger("tosica")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = act()
    except ValueError as error:
        return Reaction(None, "refused", str(error))
    finally:
        logger.removeHandler(handler)
    for warning in caught:
        message = str(warning.message)
        if any(words in message for words in WORDS_OF_WARNINGS):
            return Reaction(result, "warned", message)
    if handler.lines:
        return Reaction(result, "rescaled", handler.lines[0])
    return Reaction(result, "taken", "")


def set_up(reference: AnnData) -> None:
    """Prepare a reference, which detects its scale."""
    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key=LABEL)


def train(reference: AnnData, seed: int, max_epochs: int) -> tosica.TOSICA:
    """Train a model on a prepared reference."""
    scvi.settings.seed = seed
    model = tosica.TOSICA(reference)
    model.train(max_epochs, enable_progress_bar=False, accelerator="cpu")
    return model


def scores(model: tosica.TOSICA, query: AnnData) -> dict[str, float]:
    """Accuracy, calibration error, coverage of label sets, and share of sets that are empty."""
    probabilities = model.predict(query, soft=True).to_numpy()
    truth = codes_of_labels(model, query)
    is_right = probabilities.argmax(1) == truth
    sets = model.predict_set(query, coverage=TARGET, allow_empty=True).to_numpy()
    bins = calibration_bins(is_right, probabilities.max(1), 10)
    return {
        "accuracy": float(is_right.mean()),
        "calibration error": expected_calibration_error(bins),
        "coverage": float(sets[np.arange(len(sets)), truth].mean()),
        "empty": float((sets.sum(1) == 0).mean()),
    }


def queries(
    data: str, adata: AnnData, seed: int, max_epochs: int
) -> Iterator[dict[str, Any]]:
    """One model of counts, and each transform of its query."""
    (reference, query), *_ = few(adata, DATA[data][2], seed)
    rng = np.random.default_rng(seed)
    fewer = np.sort(rng.permutation(query.n_vars)[: round(GENE_SHARE * query.n_vars)])
    reference = transformed(reference, COUNTS_SCALE)
    set_up(reference)
    model = train(reference, seed, max_epochs)
    for name in TRANSFORMS:
        for genes in ("all", "fewer"):
            cells = transformed(query, name)
            if genes == "fewer":
                cells = cells[:, fewer].copy()
            reaction = react(partial(scores, model, cells))
            yield {
                "query": name,
                "genes": genes,
                "did": reaction.word,
                "said": reaction.message,
                **(reaction.result or {}),
            }


def references(
    data: str, adata: AnnData, seed: int, max_epochs: int
) -> Iterator[dict[str, Any]]:
    """Each transform of the reference; some of them train a model, which gets queries."""
    (reference, query), *_ = few(adata, DATA[data][2], seed)
    variances = np.asarray(np.log1p(reference.layers[COUNTS]).toarray().var(0))
    variable = np.sort(np.argsort(-variances)[:N_VARIABLE])
    for name in TRANSFORMS:
        for genes in ("all", "fewer", OF_RAW):
            is_trained = (name, genes) in TRAINED
            if genes == OF_RAW and not is_trained:
                continue
            all_genes = transformed(reference, name)
            cells = all_genes if genes == "all" else all_genes[:, variable].copy()
            if genes == OF_RAW:
                cells.raw = all_genes
            reaction = react(partial(set_up, cells))
            row = {
                "reference": name,
                "genes": genes,
                "did": reaction.word,
                "said": reaction.message,
            }
            if not is_trained:
                yield row
                continue
            model = train(cells, seed, max_epochs)
            for query_name, same_genes in QUERIES.items():
                query_cells = transformed(query, query_name.split(",")[0])
                if same_genes:
                    query_cells = query_cells[:, variable].copy()
                reaction = react(partial(model.predict, query_cells))
                yield {
                    **row,
                    "query": query_name,
                    "to query": reaction.word,
                    **scores(model, query_cells),
                }


METRICS = ("accuracy", "calibration error", "coverage")


def report(result: dict[str, Any]) -> str:
    """Section of the page."""
    runs = pd.DataFrame(result["runs"])
    columns = {"queries": "query", "references": "reference"}
    # Scales with the same reactions share a row.
    scales_of: dict[tuple[str, ...], list[str]] = {}
    for name in TRANSFORMS:
        reactions = []
        for side, column in columns.items():
            for genes in ("all", "fewer"):
                is_group = (runs["part"] == side) & (runs[column] == name)
                group = runs[is_group & (runs["genes"] == genes)]
                reactions.append(_reactions(group["did"]))
        scales_of.setdefault(tuple(reactions), []).append(name)
    rows = [["; ".join(names), *reactions] for reactions, names in scales_of.items()]
    head = ["scale"]
    for side in columns:
        head += [f"{side}, all genes", f"{side}, fewer genes"]
    is_read = (runs["part"] == "queries") & runs["accuracy"].notna()
    ranges = []
    for (data, genes), group in runs[is_read].groupby(["data", "genes"], sort=False):
        means = group.groupby("query")[list(METRICS)].mean()
        row = [DATA[data][0], genes]
        row += [f"{means[m].min():.3f} to {means[m].max():.3f}" for m in METRICS]
        ranges.append(row)
    names = " and ".join(DATA[data][0] for data in dict.fromkeys(runs["data"]))
    lines = [
        "# Expression on another scale",
        "",
        f"`python -m benchmarks.scales` with {names}, {runs['seed'].nunique()} seeds. Queries are of models of counts.",
        f"*Fewer*: a random {GENE_SHARE:.0%} of the genes of a query, and the {N_VARIABLE} most variable ones of a",
        "reference, are left after the transform. *Taken*: read as what it is, without a warning. *Rescaled*:",
        "brought to the scale of the reference, and logged. *Refused*: an error.",
        "",
        *table(head, rows),
        "",
        "Labels of the queries that were read, lowest and highest mean over the scales; coverage is that of",
        f"`predict_set(coverage={TARGET}, allow_empty=True)`:",
        "",
        *table(["data", "genes", *METRICS], ranges),
        "",
    ]
    return "\n".join([*lines, *version_lines(result)])


def _reactions(words: pd.Series) -> str:
    """The reaction of tosica with all seeds, or the number of seeds of each."""
    n_seeds = words.value_counts()
    if len(n_seeds) == 1:
        return str(n_seeds.index[0])
    return ", ".join(f"{word} {n}" for word, n in n_seeds.items())


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the tables."""
    parser = make_parser(__doc__)
    parser.add_argument("--names", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4, help="of each model")
    options = parser.parse_args(arguments)
    quiet()
    logging.getLogger("tosica").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "runs": [],
        "epochs": options.epochs,
        "versions": versions("scikit-learn"),
    }
    for data, seed in product(options.names, range(options.seeds)):
        adata = DATA[data][1](options.data)
        for side, run in (("queries", queries), ("references", references)):
            for row in run(data, adata, seed, options.epochs):
                result["runs"].append({"data": data, "part": side, "seed": seed, **row})
    write(options.out, "scales", result, report(result))


if __name__ == "__main__":
    main()
