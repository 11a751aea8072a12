"""Results of a training, which are saved with the model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from tosica.linear import (
    Adaptation,
    CrossValidated,
    ReferenceStatistics,
    RegressionConfig,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

# Attributes that scvi-tools sets in a training.
SCVI_ATTRS = (
    "is_trained_",
    "history_",
    "train_indices_",
    "validation_indices_",
    "test_indices_",
)


@dataclass
class TrainingResult:
    """Results of a training, besides weights and the attributes of scvi-tools.

    Parameters
    ----------
    label_counts
        Number of cells of each label that the model was trained on or calibrated on.
    mislabeled_indices
        Positions of cells that were left out for their labels.
    held_out_probabilities
        Probability of the true label of each held-out cell, a row for each choice of modalities.
    held_out_codes
        Codes of the true and of the best label of each held-out cell, before the refit,
        ``(2, n_cells)``.
    novelty_statistics
        Means, variances and components of the reference, by which the novelty of cells is scored.
    refitted
        Whether the model was trained on the held-out cells after calibration.
    novelty_cutoff
        Cells with a higher novelty get no confident answer.
    regression
        Temperature, share of the group lasso and penalties of the linear branch, as cross-validation chose them.
    adaptation
        To which cells the model was adapted.
    subset_of
        Fingerprint of the model that this one has some of the labels of; empty if it has all.
    left_out_labels
        Labels of that model which this one lacks.
    """

    label_counts: dict[str, int] | None = None
    mislabeled_indices: np.ndarray | None = None
    held_out_probabilities: np.ndarray | None = None
    held_out_codes: np.ndarray | None = None
    novelty_statistics: ReferenceStatistics | None = None
    refitted: bool = False
    novelty_cutoff: float | None = None
    regression: CrossValidated | None = None
    adaptation: Adaptation | None = None
    subset_of: str = ""
    left_out_labels: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Turn the results into nested dicts of arrays and plain values."""
        values = asdict(self)
        if self.regression is not None:
            values["regression"] = self.regression._asdict()
            values["regression"]["config"] = asdict(self.regression.config)
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Make results of :meth:`to_dict`; any may be missing or ``None``."""
        values = dict(values)
        if values.get("novelty_statistics"):
            values["novelty_statistics"] = ReferenceStatistics(
                **values["novelty_statistics"]
            )
        if values.get("regression"):
            regression = dict(values["regression"])
            regression["config"] = RegressionConfig(**regression["config"])
            values["regression"] = CrossValidated(**regression)
        if values.get("adaptation"):
            values["adaptation"] = Adaptation(**values["adaptation"])
        return cls(**values)

    def take_labels(self, codes: Sequence[int], names: Sequence[str]) -> Self:
        """Keep the results of some labels; those of the held-out cells are of all labels.

        Parameters
        ----------
        codes
            Codes of the labels, ascending.
        names
            Their names.
        """
        label_counts = self.label_counts
        if label_counts is not None:
            label_counts = {
                name: label_counts[name] for name in names if name in label_counts
            }
        statistics = self.novelty_statistics
        if statistics is not None:
            statistics = statistics.take_labels(codes)
        adaptation = self.adaptation
        if adaptation is not None:
            adaptation = adaptation.take_labels(codes)
        return replace(
            self,
            label_counts=label_counts,
            held_out_codes=None,
            held_out_probabilities=None,
            novelty_statistics=statistics,
            adaptation=adaptation,
        )
