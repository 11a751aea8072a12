"""A certificate of a model: what a reviewer asks of labels and explanations, measured on its reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scvi import REGISTRY_KEYS

from tosica._checks import Integer, validate_params
from tosica._limits import LIMITS
from tosica._obs import ATTRIBUTION
from tosica._settings import logger
from tosica.get import gene_sets_df
from tosica.linear import subsample_by_label
from tosica.model._tosica import MODEL
from tosica.tl._attribute import attribute
from tosica.tl._evaluate import calibration_bins, expected_calibration_error
from tosica.tl._evidence import ask_quietly, refuse_mudata
from tosica.tl._faithfulness import faithfulness
from tosica.tl._gene_set_evidence import gene_set_statistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anndata import AnnData

    from tosica.model import TOSICA

# Bins of the probability, and permutations of the gene sets.
_N_BINS, _N_DRAWS = 10, 5


@validate_params(model=MODEL, n_cells=Integer(least=4), seed=Integer(least=0))
def certify(
    model: TOSICA, *, n_cells: int = 2_000, seed: int = 0, **train_kwargs: Any
) -> pd.Series:
    """Measure what a reviewer asks of a model and its explanations, and keep it with the model.

    The cells of the reference are explained, and two models are trained on two halves of them, which
    takes about as long as training the model once. The result is ``model.certificate_`` from then on, is
    saved with the model, and is in its card.

    Parameters
    ----------
    model
        A trained model of an AnnData, with its reference: ``TOSICA.load(folder, adata=reference)``.
    n_cells
        Cells of the reference to use at most, as many of each label as possible.
    seed
        Seed of the halves and of the permutations. That of the two models is ``scvi.settings.seed``.
    **train_kwargs
        Passed to :meth:`tosica.TOSICA.train` of the two models.

    Returns
    -------
    Series of numbers without a unit:

    ``held_out_accuracy``
        :attr:`~tosica.TOSICA.held_out_accuracy_`; NaN if no cells were held out.
    ``accuracy``, ``expected_calibration_error``
        Of the models of one half, on the cells of the other half :cite:p:`Guo2017`.
    ``completeness_error``, ``linear_share``
        As :func:`tosica.tl.attribute` writes them.
    ``deletion, genes``, ``deletion, gene sets``, ``deletion, random``, and ``insertion, …``
        Areas of :func:`tosica.tl.faithfulness`: deletion should be below random, insertion above.
    ``evidence``, ``evidence_permuted``
        Share of the labels with evidence for any gene set, and the same when the genes of the sets
        are permuted, which has an expected value of at most 5 %.
    ``halves, genes``, ``halves, gene sets``
        Agreement of the models of the two halves, a mean over labels: the correlation of what genes
        add, and the Jaccard index of the gene sets with evidence; NaN where neither has any.
    ``n_cells``
        Cells that were used.

    Raises
    ------
    TypeError
        If ``model`` is no TOSICA model, or an argument is of the wrong type.
    RuntimeError
        If the model is not trained.
    ValueError
        If the model has no reference, or several modalities.

    See Also
    --------
    tosica.TOSICA.get_model_card : the card, which prints it.

    Examples
    --------
    With a trained model that has its reference:

    >>> import tosica
    >>> certificate = tosica.tl.certify(model, n_cells=200, max_epochs=2)
    >>> bool(certificate["completeness_error"] <= 0.01)
    True
    """
    refuse_mudata(model)
    model._check_trained()
    model._check_reference()
    codes = model._codes(REGISTRY_KEYS.LABELS_KEY)
    labeled = np.flatnonzero(codes >= 0)
    rows = labeled[subsample_by_label(codes[labeled], n_cells)]
    cells = model.adata[rows].to_memory()
    truth = np.array(model.labels, dtype=object)[codes[rows]]
    with ask_quietly():
        record = _explain(cells, model)
        faithfulness(
            cells, model, layer=model.registry_["setup_args"].get("layer"), seed=seed
        )
        of_halves = _compare_halves(
            model, cells, truth, np.random.default_rng(seed), train_kwargs
        )
    areas = cells.uns["faithfulness"]["area"]
    accuracy = model.held_out_accuracy_
    found = {
        "held_out_accuracy": np.nan if accuracy is None else accuracy,
        **of_halves,
        **{name: record[name] for name in ("completeness_error", "linear_share")},
        **{f"{row.change}, {row.order}": row.area for row in areas.itertuples()},
        "evidence": record["evidence"]["group"].nunique() / len(record["groups"]),
        "evidence_permuted": evidence_by_chance(record, model, _N_DRAWS, seed),
        "n_cells": len(rows),
    }
    model.training_.certificate = {name: float(value) for name, value in found.items()}
    logger.info(
        "certify: %s", ", ".join(f"{name} {value:.3g}" for name, value in found.items())
    )
    assert model.certificate_ is not None
    return model.certificate_


def _explain(cells: AnnData, model: TOSICA) -> dict[str, Any]:
    layer = model.registry_["setup_args"].get("layer")
    model.annotate(cells, layer=layer, enable_progress_bar=False)
    attribute(cells, model, layer=layer)
    return dict(cells.uns[ATTRIBUTION])


def _compare_halves(
    model: TOSICA,
    cells: AnnData,
    truth: np.ndarray,
    rng: np.random.Generator,
    train_kwargs: Any,
) -> dict[str, float]:
    """Train models on two halves with as many cells of each label."""
    order = rng.permutation(len(truth))
    half = np.empty(len(truth), dtype=np.int64)
    half[order] = pd.Series(order).groupby(truth[order]).cumcount() % 2
    explained, right, probability = [], [], []
    for i in range(2):
        part, others = (cells[half == j].copy() for j in (i, 1 - i))
        type(model).setup_anndata(part, **model.registry_["setup_args"])
        of_half = type(model)(part, **model.init_params_["non_kwargs"])
        of_half.train(**{"enable_progress_bar": False} | train_kwargs)
        _explain(part, of_half)
        predicted: Any = of_half.predict(
            others, soft=True, layer=model.registry_["setup_args"].get("layer")
        )
        right.append(predicted.idxmax(axis=1).to_numpy() == truth[half != i])
        probability.append(predicted.max(axis=1).to_numpy())
        explained.append(part)
    is_right = np.concatenate(right)
    calibration = calibration_bins(is_right, np.concatenate(probability), _N_BINS)
    genes = (
        explained[0]
        .uns[ATTRIBUTION]["genes"]
        .corrwith(explained[1].uns[ATTRIBUTION]["genes"])
    )
    indices = _jaccard_of_gene_sets(*explained)
    return {
        "accuracy": is_right.mean(),
        "expected_calibration_error": expected_calibration_error(calibration),
        "halves, genes": genes.mean(),
        "halves, gene sets": np.mean(indices) if indices else np.nan,
    }


def _jaccard_of_gene_sets(first: AnnData, second: AnnData) -> list[float]:
    """Jaccard index of the gene sets with evidence, of each label in which either has any."""
    tables = [gene_sets_df(each, similar=True) for each in (first, second)]
    found = []
    for label in tables[0]["group"].cat.categories.intersection(
        tables[1]["group"].cat.categories
    ):
        a, b = (set(table.loc[table["group"] == label, "gene_set"]) for table in tables)
        found += [len(a & b) / len(a | b)] if a | b else []
    return found


def evidence_by_chance(
    record: Mapping[str, Any], model: TOSICA, n_draws: int, seed: int
) -> float:
    """Share of the groups with evidence for any gene set when the genes of the sets are permuted.

    Parameters
    ----------
    record
        What :func:`tosica.tl.attribute` wrote to ``uns``.
    model
        The model.
    n_draws, seed
        Number of permutations, and their seed.
    """
    rng, members = (
        np.random.default_rng(seed),
        model.modalities[0].gene_sets()[1].tocsr(),
    )
    found = []
    for _ in range(n_draws):
        permuted = sp.csc_matrix(members[rng.permutation(members.shape[0])])
        for label, added in record["genes"].items():
            effect = record["effect_size"][label].to_numpy()
            expressed = np.where(effect > 0, added, 0).clip(min=0)
            statistics = gene_set_statistics(expressed, effect.clip(min=0), permuted)
            found.append((statistics["pval_adj"] <= LIMITS.pvalue).any())
    return float(np.mean(found))
