"""Accuracy, macro-F1 and calibration error of labels."""

from __future__ import annotations

import numpy as np
import pandas as pd
from anndata import AnnData

import tosica
from benchmarks._accuracy_tasks import LABEL

METRICS = {
    "accuracy": "Accuracy",
    "macro-F1": "Macro-F1",
    "calibration error": "Calibration error",
    "seconds": "Seconds, one thread",
}
# Metrics of labels, without the time.
LABEL_METRICS = list(METRICS)[:3]
N_BINS = 15
# Calibration error of exact probabilities. It is above 0, most of all in small tasks.
BY_CHANCE = "calibration error by chance"


def scores(
    truth: np.ndarray, predicted: np.ndarray, probability: np.ndarray
) -> dict[str, float]:
    """Accuracy, macro-F1, calibration error, and its value by chance.

    Parameters
    ----------
    truth, predicted
        Labels ``(n_cells,)``.
    probability
        Probability of the predicted label ``(n_cells,)``.
    """
    obs = pd.DataFrame(
        {
            LABEL: truth,
            "tosica_prediction": predicted,
            "tosica_probability": probability.astype(float),
        }
    )
    obs.index = obs.index.astype(str)
    evaluation = tosica.tl.evaluate(AnnData(obs=obs), LABEL, n_bins=N_BINS)
    summary = evaluation.summary.iloc[0]
    return {
        "accuracy": float(summary["accuracy"]),
        "macro-F1": float(summary["macro_f1"]),
        "calibration error": float(summary["expected_calibration_error"]),
        BY_CHANCE: error_by_chance(probability),
    }


def error_by_chance(probability: np.ndarray, n_draws: int = 200) -> float:
    """Calibration error of labels that are correct with exactly their probability."""
    rng = np.random.default_rng(0)
    is_correct = rng.random((n_draws, len(probability))) < probability
    bins = np.maximum(np.ceil(N_BINS * probability), 1).astype(int) - 1
    gaps = (is_correct - probability) @ np.eye(N_BINS)[bins]
    return float(np.abs(gaps).sum(1).mean() / len(probability))
