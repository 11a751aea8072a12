"""Measure labels and explanations of a model on its reference, for the model's card.

``python scripts/certify_model.py MODEL REFERENCE`` reads a saved model and the AnnData that it was
trained on, and writes the section "Certificate" into ``MODEL/README.md``. Two models are trained on
two halves of the reference, which takes about as long as training the model once.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp
import scvi

import tosica
from tosica._limits import LIMITS
from tosica.linear import subsample_by_label
from tosica.module import REGISTRY_KEYS
from tosica.tl._evaluate import calibration_bins, expected_calibration_error
from tosica.tl._evidence import ask_quietly, refuse_mudata
from tosica.tl._gene_set_evidence import gene_set_statistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anndata import AnnData

ATTRIBUTION = "tosica_attribution"
N_BINS = 10
N_PERMUTATIONS = 5
SECTION = """\

## Certificate

By `scripts/certify_model.py`, on the reference and two halves of it:

{table}
"""


def certify(
    model: tosica.TOSICA, *, n_cells: int = 2_000, seed: int = 0, **train_kwargs: Any
) -> pd.Series:
    """Measure what a reviewer asks of a model and its explanations.

    Parameters
    ----------
    model
        A trained model of an AnnData, with its reference.
    n_cells
        Cells of the reference to use at most, as many of each label as possible.
    seed
        Seed of the halves and of the permutations. The two models take ``scvi.settings.seed``.
    **train_kwargs
        Passed to :meth:`tosica.TOSICA.train` of the two models.

    Returns
    -------
    Series of numbers without a unit:

    ``held_out_accuracy``
        :attr:`~tosica.TOSICA.held_out_accuracy_`; NaN if no cells were held out.
    ``accuracy``, ``expected_calibration_error``
        Of the models of one half, on the cells of the other half.
    ``halves, genes``, ``halves, gene sets``
        Agreement of the models of the two halves, a mean over labels: the correlation of what genes
        add, and the Jaccard index of the gene sets with evidence; NaN where neither has any.
    ``completeness_error``, ``linear_share``
        As :func:`tosica.tl.attribute` writes them.
    ``deletion, genes``, ``deletion, gene sets``, ``deletion, random``, and ``insertion, …``
        Areas of :func:`tosica.tl.faithfulness`: deletion should be below random, insertion above.
    ``evidence``, ``evidence_permuted``
        Share of the labels with evidence for any gene set, and the same when the genes of the sets
        are permuted, which has an expected value of at most 5 %.
    ``n_cells``
        Cells that were used.
    """
    refuse_mudata(model)
    codes = model._registered_codes(REGISTRY_KEYS.LABELS_KEY)
    labeled = np.flatnonzero(codes >= 0)
    rows = labeled[subsample_by_label(codes[labeled], n_cells)]
    cells = model.adata[rows].to_memory()
    layer = model.get_setup_arg("layer")
    with ask_quietly():
        record = explain(cells, model)
        tosica.tl.faithfulness(cells, model, layer=layer, seed=seed)
        agreement = compare_halves(model, cells, codes[rows], seed, train_kwargs)
    accuracy = model.held_out_accuracy_
    scores = {
        "held_out_accuracy": np.nan if accuracy is None else accuracy,
        **agreement,
        "completeness_error": record["completeness_error"],
        "linear_share": record["linear_share"],
    }
    for row in cells.uns["faithfulness"]["area"].itertuples():
        scores[f"{row.change}, {row.order}"] = row.area
    scores["evidence"] = record["evidence"]["group"].nunique() / len(record["groups"])
    scores["evidence_permuted"] = evidence_by_chance(
        record, model, N_PERMUTATIONS, seed
    )
    scores["n_cells"] = len(rows)
    return pd.Series(scores, dtype=float, name="certificate")


def explain(cells: AnnData, model: tosica.TOSICA) -> dict[str, Any]:
    """Annotate and explain cells, and return the explanation."""
    layer = model.get_setup_arg("layer")
    model.annotate(cells, layer=layer, enable_progress_bar=False)
    tosica.tl.attribute(cells, model, layer=layer)
    return cells.uns[ATTRIBUTION]


def compare_halves(
    model: tosica.TOSICA,
    cells: AnnData,
    codes: np.ndarray,
    seed: int,
    train_kwargs: Mapping[str, Any],
) -> dict[str, float]:
    """Train models on two halves with as many cells of each label, and compare them."""
    order = np.random.default_rng(seed).permutation(len(codes))
    half = np.empty(len(codes), dtype=np.int64)
    half[order] = pd.Series(order).groupby(codes[order]).cumcount() % 2
    truth = np.array(model.labels, dtype=object)[codes]
    explained = []
    is_right = []
    probability = []
    for i in range(2):
        reference = cells[half == i].copy()
        query = cells[half != i].copy()
        type(model).setup_anndata(reference, **model.registry_["setup_args"])
        half_model = type(model)(reference, **model.init_params_["non_kwargs"])
        half_model.train(**{"enable_progress_bar": False, **train_kwargs})
        explain(reference, half_model)
        predicted = half_model.predict(
            query, soft=True, layer=model.get_setup_arg("layer")
        )
        is_right.append(predicted.idxmax(axis=1).to_numpy() == truth[half != i])
        probability.append(predicted.max(axis=1).to_numpy())
        explained.append(reference)
    calibration = calibration_bins(
        np.concatenate(is_right), np.concatenate(probability), N_BINS
    )
    genes = [half.uns[ATTRIBUTION]["genes"] for half in explained]
    return {
        "accuracy": np.concatenate(is_right).mean(),
        "expected_calibration_error": expected_calibration_error(calibration),
        "halves, genes": genes[0].corrwith(genes[1]).mean(),
        "halves, gene sets": jaccard_of_gene_sets(*explained),
    }


def jaccard_of_gene_sets(a: AnnData, b: AnnData) -> float:
    """Mean Jaccard index of the gene sets with evidence, over labels with any."""
    sets_of_a = gene_sets_by_label(a)
    sets_of_b = gene_sets_by_label(b)
    indices = []
    for label in sets_of_a.keys() & sets_of_b.keys():
        union = sets_of_a[label] | sets_of_b[label]
        if union:
            indices.append(len(sets_of_a[label] & sets_of_b[label]) / len(union))
    return float(np.mean(indices)) if indices else np.nan


def gene_sets_by_label(cells: AnnData) -> dict[str, set[str]]:
    """Gene sets with evidence for each label, none included."""
    table = tosica.get.gene_sets_df(cells, similar=True)
    sets = {label: set() for label in table["group"].cat.categories}
    for label, gene_set in zip(table["group"], table["gene_set"], strict=True):
        sets[label].add(gene_set)
    return sets


def evidence_by_chance(
    record: Mapping[str, Any],
    model: tosica.TOSICA,
    n_permutations: int,
    seed: int,
) -> float:
    """Share of the labels with evidence for any gene set when the genes of the sets are permuted.

    Parameters
    ----------
    record
        An explanation, as :func:`tosica.tl.attribute` writes it to ``uns``.
    model
        The model.
    n_permutations, seed
        Number of permutations, and their seed.
    """
    rng = np.random.default_rng(seed)
    members = model.modalities[0].gene_sets()[1].tocsr()
    has_evidence = []
    for _ in range(n_permutations):
        permuted = sp.csc_matrix(members[rng.permutation(members.shape[0])])
        for label, added in record["genes"].items():
            shared = record["shared"][label].to_numpy()
            effect = record["effect_size"][label].to_numpy() * shared
            statistics = gene_set_statistics(
                added.to_numpy().clip(min=0) * shared, effect.clip(min=0), permuted
            )
            has_evidence.append((statistics["pval_adj"] <= LIMITS.pvalue).any())
    return float(np.mean(has_evidence))


def write_certificate(certificate: pd.Series, card: Path) -> None:
    """Put the section into a card, in place of an earlier one."""
    rows = ["|  |  |", "| --- | --- |"]
    for name, value in certificate.items():
        rows.append(f"| {str(name).replace('_', ' ')} | {value:.4g} |")
    section = SECTION.format(table="\n".join(rows))
    text = card.read_text(encoding="utf-8") if card.exists() else ""
    text = re.sub(r"\n## Certificate\n.*?(?=\n## |\Z)", "", text, flags=re.DOTALL)
    card.write_text(text + section, encoding="utf-8", newline="\n")


def main() -> None:
    """Certify the model of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="folder of the saved model")
    parser.add_argument("reference", type=Path, help="its reference, an .h5ad")
    parser.add_argument("--n-cells", type=int, default=2_000)
    parser.add_argument("--max-epochs", type=int, help="of the models of the halves")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    scvi.settings.seed = args.seed
    model = tosica.TOSICA.load(args.model, adata=ad.read_h5ad(args.reference))
    certificate = certify(
        model, n_cells=args.n_cells, seed=args.seed, max_epochs=args.max_epochs
    )
    print(certificate.to_string())
    write_certificate(certificate, args.model / "README.md")


if __name__ == "__main__":
    main()
