"""Build the model of human blood that comes with the package, and its card.

``python scripts/build_blood_model.py DATA`` reads four public studies in the folder ``DATA``
(``sorted_blood.h5ad``, ``pbmc3k.h5ad``, ``cite_pbmc.h5mu``, ``kang_pbmc.h5ad`` and its two
``unlabeled`` files) and writes ``src/tosica/bundled/blood``. Two runs on one machine write the same bytes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import NAMESPACE_URL, uuid5

import anndata as ad
import matplotlib.pyplot as plt
import mudata
import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import classification_report, f1_score

import tosica
from tosica.model import _save_load
from tosica.onto._hierarchy import LabelHierarchy
from tosica.onto._ontology import read_ontology

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "src/tosica/bundled/blood"
FIGURE = ROOT / "docs/_static/blood.png"
TABLE = pd.read_csv(FOLDER / "labels.csv", keep_default_na=False)
TERMS = dict(zip(TABLE["cell_type"], TABLE["ontology_term_id"], strict=True))
LABEL_COLUMNS = {
    "sorted_blood": "cell_type",
    "pbmc3k": "cell_type",
    "kang_pbmc": "cluster_id",
    "cite_pbmc": "adt_cluster",
}
WHOLE = ("sorted_blood", "kang_pbmc", "cite_pbmc")
# Studies of blood as it is; the other one has as many cells of each type as were wanted.
COMPLETE = ("pbmc3k", "kang_pbmc", "cite_pbmc")
# How little frequencies may differ from one another: of .003, .01, .03, .1 and .3 the one with the highest mean
# macro-F1 of the studies that were left out, with two other seeds.
RIDGE = 0.03
N_GENES = 2000
SURE = 0.95
AS_TRAINED = np.zeros(len(TERMS))
# Amount of ribosomal and mitochondrial RNA depends on the laboratory more than on the type.
LEFT_OUT = ("RPL", "RPS", "MT-", "MTRNR")


def read_study(folder: Path, study: str) -> ad.AnnData:
    """Read the counts of a study, and label the cells that the table has a type for."""
    proteins = pd.DataFrame()
    if study == "cite_pbmc":
        mdata = mudata.read_h5mu(folder / f"{study}.h5mu")
        adata = mdata["rna"].copy()
        proteins = mdata["protein"].to_df().add_prefix("protein:")
    else:
        adata = ad.read_h5ad(folder / f"{study}.h5ad")
    if study == "kang_pbmc":
        adata = label_more(
            adata,
            [folder / f"kang_{name}_unlabelled.h5ad" for name in ("ctrl", "stim")],
        )
    counts = sp.csr_matrix(adata.X, dtype=np.float32)
    rules = TABLE[TABLE["study"] == study]
    named = [
        name for name in adata.var_names if any(name in rule for rule in rules["rule"])
    ]
    table = pd.DataFrame(
        counts[:, adata.var_names.get_indexer(named)].toarray(),
        index=adata.obs_names,
        columns=named,
    )
    table = table.join(proteins)
    labels = adata.obs[LABEL_COLUMNS[study]].astype(str).to_numpy()
    cell_type = np.full(adata.n_obs, "", dtype=object)
    for row in rules.itertuples():
        is_row = labels == row.label
        if row.rule:
            is_row &= table.eval(row.rule).to_numpy()
        cell_type[is_row] = row.cell_type
    obs = pd.DataFrame(
        {"cell_type": cell_type, "study": study}, index=f"{study}_" + adata.obs_names
    )
    is_labeled = cell_type != ""
    return ad.AnnData(
        counts[is_labeled], obs=obs[is_labeled], var=pd.DataFrame(index=adata.var_names)
    )


def label_more(labeled: ad.AnnData, paths: list[Path]) -> ad.AnnData:
    """Label cells of the same study that have all genes, where a regression on those they share is sure."""
    adata = ad.concat([ad.read_h5ad(path) for path in paths], index_unique="-")
    genes = adata.var_names.intersection(labeled.var_names)
    x = log_normalize(sp.csr_matrix(labeled[:, genes].X))
    query = log_normalize(sp.csr_matrix(adata[:, genes].X))
    labels = labeled.obs[LABEL_COLUMNS["kang_pbmc"]].astype(str)
    regression = LogisticRegression(C=0.3, max_iter=500).fit(x, labels)
    probability = regression.predict_proba(query)
    best = regression.classes_[probability.argmax(1)]
    adata.obs[LABEL_COLUMNS["kang_pbmc"]] = np.where(
        probability.max(1) >= SURE, best, ""
    )
    return adata


def log_normalize(counts: sp.csr_matrix) -> sp.csr_matrix:
    """Logarithm of one plus counts per 10 000."""
    total = np.asarray(counts.sum(1), dtype=np.float64).ravel()
    normalized = sp.csr_matrix(
        sp.diags(1e4 / np.maximum(total, 1)) @ counts.astype(np.float64)
    )
    return normalized.log1p()


def line_of(cell_type: str) -> set[str]:
    """Types that a cell of this type has as well: the type and those above it."""
    ancestors = {TERMS[cell_type], *read_ontology().ancestors[TERMS[cell_type]]}
    return {name for name, term in TERMS.items() if term in ancestors}


def fill_genes(adata: ad.AnnData, donors: ad.AnnData, seed: int = 0) -> ad.AnnData:
    """Draw the counts of genes that a study has not from similar cells of the same type (hot deck).

    Each cell takes one of its ten nearest donors, among those whose type may be the same, and draws
    Poisson counts of their expression at its own depth.
    """
    genes = donors.var_names
    measured = genes.isin(adata.var_names)
    if measured.all():
        return adata[:, genes].copy()
    counts = adata[:, genes[measured]].X
    donor_counts = donors[:, measured].X
    donor_expression = log_normalize(donor_counts).toarray()
    pca = PCA(30, random_state=seed).fit(donor_expression)
    reference = pca.transform(donor_expression)
    query = pca.transform(log_normalize(counts).toarray())
    query += reference.mean(0) - query.mean(0)
    rng = np.random.default_rng(seed)
    missing = donors[:, ~measured].X.toarray()
    depth = np.asarray(counts.sum(1)).ravel()
    depth_of_donor = np.asarray(donor_counts.sum(1)).ravel()
    imputed = np.zeros((adata.n_obs, missing.shape[1]), dtype=np.float32)
    types = donors.obs["cell_type"].to_numpy()
    for cell_type in adata.obs["cell_type"].unique():
        line = line_of(cell_type)
        alike = {
            t: len(line & line_of(t)) / len(line | line_of(t)) for t in np.unique(types)
        }
        is_related = [t in line or cell_type in line_of(t) for t in types]
        likeness = np.array([alike[t] for t in types])
        # With fewer than 20 donors, types that are less alike are taken as well.
        pool = np.flatnonzero(is_related & (likeness > 0))
        if len(pool) < 20:
            pool = np.flatnonzero(likeness > 0)
        if len(pool) < 20:
            pool = np.arange(len(types))
        rows = np.flatnonzero(adata.obs["cell_type"] == cell_type)
        distance = ((query[rows, None] - reference[None, pool]) ** 2).sum(2)
        near = pool[np.argsort(distance, axis=1)[:, :10]]
        donor = near[np.arange(len(rows)), rng.integers(0, 10, len(rows))]
        relative_depth = depth[rows] / np.maximum(depth_of_donor[donor], 1)
        imputed[rows] = rng.poisson(missing[donor] * relative_depth[:, None])
    completed = sp.hstack([counts, sp.csr_matrix(imputed)]).tocsr()
    order = np.argsort(
        np.concatenate([np.flatnonzero(measured), np.flatnonzero(~measured)])
    )
    return ad.AnnData(completed[:, order], obs=adata.obs, var=pd.DataFrame(index=genes))


def merge(studies: dict[str, ad.AnnData], genes: pd.Index | None = None) -> ad.AnnData:
    """Put studies together on the genes of those with whole transcriptomes that vary most within a study."""
    complete = [a for name, a in studies.items() if name in WHOLE]
    shared = set.intersection(*(set(a.var_names) for a in complete))
    if genes is not None:
        shared &= set(genes)
    genes_used = sorted(name for name in shared if not name.startswith(LEFT_OUT))
    donors = ad.concat([a[:, genes_used] for a in complete])
    merged = ad.concat([fill_genes(a, donors) for a in studies.values()])
    variance = np.zeros(len(genes_used))
    for name in studies:
        x = log_normalize(merged[merged.obs["study"] == name].X)
        variance += np.asarray(x.power(2).mean(0) - np.square(x.mean(0))).ravel()
    return merged[:, np.sort(np.argsort(-variance, kind="stable")[:N_GENES])].copy()


def train(merged: ad.AnnData) -> tosica.TOSICA:
    """Train a model of studies that :func:`merge` put together."""
    merged.obs["cell_type"] = merged.obs["cell_type"].astype("category")
    merged.obs["cell_type_ontology_term_id"] = (
        merged.obs["cell_type"].map(TERMS).astype(str)
    )
    tosica.settings.seed = 0
    tosica.pp.build_mask(merged)
    tosica.TOSICA.setup_anndata(merged, labels_key="cell_type")
    model = tosica.TOSICA(merged)
    model.train(enable_progress_bar=False)
    return model


# --------------------------------------------------------------------------- leave one study out


def offsets_of(
    labels: Iterable[str], frequency: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Add up the numbers of a label's type and of those above it; ``frequency`` has one for each of ``TERMS``."""
    return np.array(
        [
            sum(frequency[list(TERMS).index(name)] for name in line_of(label))
            for label in labels
        ]
    )


class HeldOut(NamedTuple):
    """What a model of the other studies says of one: probabilities at the depth that both have."""

    truth: NDArray[np.int_]
    types: list[str]
    labels: list[str]
    probabilities: NDArray[np.float64]
    is_part: NDArray[np.bool_]

    def of_labels(self, frequency: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probability of each label after numbers of types were added to the logits."""
        return softmax(
            np.log(np.maximum(self.probabilities, 1e-12))
            + offsets_of(self.labels, frequency),
            axis=1,
        )

    def at(self, frequency: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probability of each type."""
        return self.of_labels(frequency) @ self.is_part

    def confident(self, frequency: NDArray[np.float64]) -> float:
        """Share of right ones among the answers with a probability of 0.9.

        An answer is right if it is the cell's type or above or below it.
        """
        tree = LabelHierarchy(self.labels, TERMS)
        codes, _ = tree.answer(self.of_labels(frequency), 0.9)
        is_answered = codes < len(tree.names)
        answers = tree.members[codes[is_answered]]
        truth = self.is_part[:, self.truth[is_answered]].T
        is_below = ~(truth & ~answers).any(1)
        is_above = ~(answers & ~truth).any(1)
        return float((is_below | is_above).mean())

    def loss(self, frequency: NDArray[np.float64]) -> float:
        """Compute the mean cross-entropy of the cells."""
        of_truth = self.at(frequency)[np.arange(len(self.truth)), self.truth]
        return -float(np.log(np.maximum(of_truth, 1e-12)).mean())


def fit_frequency(studies: Sequence[HeldOut]) -> NDArray[np.float64]:
    """Fit a number for each type to held-out cells, each study with the same weight.

    A model learns each type with the same weight, and blood has not as many of each.
    """

    def loss(frequency: NDArray[np.float64]) -> float:
        return float(
            np.mean([study.loss(frequency) for study in studies])
            + RIDGE * np.square(frequency).sum()
        )

    return minimize(loss, np.zeros(len(TERMS)), method="L-BFGS-B").x


def compare_at_depth(
    cell_types: Sequence[str], labels: Sequence[str], probabilities: NDArray[np.float64]
) -> HeldOut:
    """Ask for each cell's type, or for the nearest above it that the model has a label of.

    Cells without one are left out. A type's probability is the sum over the labels below it.
    """
    lines = [line_of(label) for label in labels]
    asked = {}
    for cell_type in set(cell_types):
        above = sorted(
            line_of(cell_type),
            key=lambda name: (-len(read_ontology().ancestors[TERMS[name]]), name),
        )
        asked[cell_type] = next(
            (name for name in above if any(name in line for line in lines)), ""
        )
    types = sorted(set(asked.values()) - {""})
    is_asked = np.array([asked[name] != "" for name in cell_types])
    truth = np.array(
        [types.index(asked[name]) for name in np.asarray(cell_types)[is_asked]]
    )
    is_part = np.array([[name in line for name in types] for line in lines])
    return HeldOut(
        truth, types, list(labels), probabilities[is_asked].astype(np.float64), is_part
    )


def calibration_error(
    confidence: NDArray[np.float64], is_right: NDArray[np.bool_]
) -> float:
    """Expected calibration error, ten bins."""
    bins = np.minimum((confidence * 10).astype(int), 9)
    return sum(
        abs(is_right[bins == k].mean() - confidence[bins == k].mean())
        * (bins == k).mean()
        for k in set(bins)
    )


class Row(NamedTuple):
    """How a model of the other studies did on one study: a line of the card."""

    study: str
    cells: int
    types: int
    accuracy: float
    macro_f1: float
    regression_accuracy: float
    regression_macro_f1: float
    calibration_error: float
    confident: float


class Comparison(NamedTuple):
    """What leaving one study out tells: of each study, of each type, and how to set the model."""

    studies: list[Row]
    types: pd.DataFrame
    frequency: NDArray[np.float64]
    novelty_cutoff: float


def leave_one_out(studies: dict[str, ad.AnnData]) -> Comparison:
    """Train on all studies but one, for each, and ask for the labels of this one.

    The other studies tell how frequent types are, never the one that is asked. Logistic
    regression gets the same cells, genes and frequencies.
    """
    results: dict[str, tuple[HeldOut, HeldOut]] = {}
    novelty: list[float] = []
    for study, study_cells in studies.items():
        merged = merge(
            {name: adata for name, adata in studies.items() if name != study},
            study_cells.var_names,
        )
        query = study_cells[:, merged.var_names].copy()
        model = train(merged)
        soft = model.predict(query, soft=True)
        novelty.append(float(np.quantile(model.infer(query, "novelty").novelty, 0.99)))
        regression = LogisticRegression(C=0.05, max_iter=500).fit(
            log_normalize(merged.X), merged.obs["cell_type"]
        )
        baseline = regression.predict_proba(log_normalize(query.X))
        cell_types = list(study_cells.obs["cell_type"])
        results[study] = (
            compare_at_depth(cell_types, list(map(str, soft.columns)), soft.to_numpy()),
            compare_at_depth(cell_types, list(regression.classes_), baseline),
        )
        print(
            study,
            *(evaluate(result, AS_TRAINED) for result in results[study]),
            flush=True,
        )

    def fit(left_out: str = "", *, of_regression: bool = False) -> NDArray[np.float64]:
        return fit_frequency(
            [results[name][of_regression] for name in COMPLETE if name != left_out]
        )

    rows = []
    truth = []
    predicted = []
    for study, (ours, theirs) in results.items():
        frequency = fit(study)
        accuracy, f1, error = evaluate(ours, frequency)
        of_regression = evaluate(theirs, fit(study, of_regression=True))[:2]
        scores = accuracy, f1, *of_regression, error, ours.confident(frequency)
        rows.append(Row(study, len(ours.truth), len(ours.types), *scores))
        truth += [ours.types[k] for k in ours.truth]
        predicted += [ours.types[k] for k in ours.at(frequency).argmax(1)]
    of_type = pd.DataFrame(
        classification_report(truth, predicted, output_dict=True, zero_division=np.nan)
    ).T
    of_type = of_type.loc[
        of_type.index.isin(list(TERMS)), ["precision", "recall", "support"]
    ]
    return Comparison(rows, of_type, fit(), max(novelty))


def evaluate(
    study: HeldOut, frequency: NDArray[np.float64]
) -> tuple[float, float, float]:
    """Compute accuracy, macro-F1 and calibration error."""
    probabilities = study.at(frequency)
    predicted = probabilities.argmax(1)
    is_right = predicted == study.truth
    macro_f1 = f1_score(study.truth, predicted, average="macro")
    error = calibration_error(probabilities.max(1), is_right)
    return float(is_right.mean()), float(macro_f1), error


# --------------------------------------------------------------------------- the files


TEXT = """{card}

<!-- card -->

## Cells of a study that the model had not seen

For each line, a model was trained on the other three studies and asked for the types of this one, on the genes that
both have and at the depth that both have. Logistic regression had the same cells and genes. For both, how frequent
types are was estimated from the other studies. An answer in `tosica_confident` is right if it is the cell's type or
above or below it. Cells that the rules in `labels.csv` leave out, such as CD8 T cells of Kang without a count
of CD8A or CD8B, were not asked.

{studies}

Of all four together:

{types}

## Not for

- Other species, other tissues, bone marrow, cord blood, tumours: cells of types that are not listed get the nearest
  label. `tosica_confident` is "Unknown" where a cell is less like the reference than blood of another study was.
- Plasma cells, plasmacytoid dendritic cells, innate lymphoid, gamma-delta and proliferating cells, granulocytes, red
  cells: no reference cell has these labels.
- Sorted or enriched cells: the model expects types to be as frequent as in blood, CD4 T cells more than CD8 T cells.
  `model.subset` names the types that can occur.
- Naive against memory CD4 T cells where that decides something: read `tosica_confident`, which says "CD4 T cell" where
  the model does not know.
- Any clinical decision.

## Sources

| study | cells | label by | license |
| --- | --- | --- | --- |
| sorted_blood: Zheng et al., Nat. Commun. 2017 | 10x, 3' v1 | beads with antibodies | 10x Genomics, CC BY 4.0 |
| pbmc3k: 10x Genomics | 3' v1 | clusters and markers | 10x Genomics, CC BY 4.0 |
| kang_pbmc: Kang et al., Nat. Biotechnol. 2018, GSE96583 | 3' v1, interferon | clusters (1) | GEO, none stated |
| cite_pbmc: Mimitou et al., Nat. Methods 2019, GSE126310 | 5' | antibodies on each cell | GEO, none stated |

(1) The labels of 1 556 cells were carried over to others of the same study by a regression, where it was sure (.95).

`labels.csv` beside the model maps each label of a study to a type, with the rule by which cells were left out.
A cell that is called "CD4 T cell" there teaches this type, which stands above its subtypes. Genes that a study has not
measured were drawn from similar cells of the same type in the studies that have all genes.
`scripts/build_blood_model.py` makes the model and this card anew.
"""


def write_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a table in Markdown, numbers with three decimals."""
    lines = [header, ["---"] * len(header)]
    lines += [
        [f"{x:.3f}" if isinstance(x, float) else str(x) for x in row] for row in rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_card(model: tosica.TOSICA, comparison: Comparison) -> str:
    """Write the card: the facts of every model, and the scores of this one."""
    card = model.get_model_card(
        tissue="blood",
        organism="human",
        license="cc-by-4.0",
        description="mononuclear cells of healthy donors and, in kang_pbmc, of patients with lupus, 3' and 5' "
        "chemistry of 10x Genomics; labels of four studies at the depth that each of them has",
        version=tosica.__version__,
    )
    of_type = comparison.types
    types = [
        (
            name,
            TERMS[name],
            int(of_type.loc[name, "support"]),
            *of_type.loc[name, ["precision", "recall"]],
        )
        if name in of_type.index
        else (name, TERMS[name], "in one study only", "", "")
        for name in model.labels
    ]
    studies = write_table(
        (
            "study",
            "cells",
            "types",
            "accuracy",
            "macro-F1",
            "accuracy of logistic regression",
            "its macro-F1",
            "calibration error",
            "right of the confident answers",
        ),
        comparison.studies,
    )
    return TEXT.format(
        card=card.rstrip().replace('load("folder")', 'load("blood")'),
        studies=studies,
        types=write_table(
            ("type", "term", "held-out cells", "precision", "recall"), types
        ),
    )


def draw(of_type: pd.DataFrame, path: Path) -> None:
    """Draw precision and recall of each type on cells of studies that were left out."""
    figure, axes = plt.subplots(
        figsize=(6, 0.35 * len(of_type) + 1), layout="constrained"
    )
    places = np.arange(len(of_type))[::-1]
    axes.hlines(
        places,
        of_type[["precision", "recall"]].min(axis=1),
        of_type[["precision", "recall"]].max(axis=1),
        color="0.8",
        zorder=0,
    )
    for name, color, marker in (
        ("precision", "#0072B2", "o"),
        ("recall", "#D55E00", "s"),
    ):
        axes.scatter(of_type[name], places, color=color, marker=marker, label=name)
    axes.set(
        yticks=places,
        yticklabels=of_type.index,
        xlim=(0, 1.02),
        xlabel="cells of studies that were left out",
    )
    axes.legend(loc="lower left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def halve(path: Path) -> None:
    """Write the numbers of a saved model in half precision, which labels do not notice."""
    contents = _save_load.read_plain(path)
    # scvi-tools draws it anew for each model.
    contents["attr_dict"]["registry_"]["_scvi_uuid"] = str(
        uuid5(NAMESPACE_URL, "tosica/blood")
    )

    def shrink(value: object) -> object:
        if isinstance(value, dict):
            return {name: shrink(member) for name, member in value.items()}
        if torch.is_tensor(value) and value.dtype in (torch.float32, torch.float64):
            return value.half()
        return value

    _save_load.write_plain(shrink(contents), path)


def main() -> None:
    """Build the model and its card."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="Folder with the four studies.")
    folder = parser.parse_args().data
    studies = {study: read_study(folder, study) for study in LABEL_COLUMNS}
    comparison = leave_one_out(studies)
    model = train(merge(studies))
    offsets = (
        torch.from_numpy(offsets_of(model.labels, comparison.frequency))
        * model.module.temperature
    )
    model.module.linear.bias += offsets.to(model.module.linear.bias)
    # No confident answer for what is less like the reference than blood of another study is.
    model.training_ = replace(
        model.training_,
        held_out_probabilities=None,
        novelty_cutoff=comparison.novelty_cutoff,
    )
    model.save(FOLDER, overwrite=True)
    draw(comparison.types, FIGURE)
    halve(FOLDER / "model.pt")
    # Of the model as it is loaded: its numbers, and so its fingerprint, are those in half precision.
    (FOLDER / "README.md").write_text(
        write_card(tosica.TOSICA.load(FOLDER), comparison), encoding="utf8"
    )
    print(f"{comparison[2:]}; {(FOLDER / 'model.pt').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
