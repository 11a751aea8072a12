"""Calibrate a trained model by its held-out cells: the network's share, and temperatures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from tosica._probabilities import fit_temperature
from tosica._settings import logger
from tosica.model._linear_fit import LINEAR_ONLY
from tosica.model._state import HeldOutCells

if TYPE_CHECKING:
    from torch import Tensor

    from tosica.model._setup import SetupMixin
    from tosica.model._state import TrainingState


@torch.inference_mode()
def join_branches(state: TrainingState) -> None:
    """Write the linear branch beside the network, whose scores are added from here on."""
    if state.linear is not None:
        state.linear.to_module()
        state.model.module.temperature.fill_(1 + state.linear.weight)


@torch.inference_mode()
def score_held_out(state: TrainingState) -> None:
    """Score the held-out cells by the network, and by both branches."""
    module = state.model.module
    if not state.settings.calibrate or not state.data.n_val:
        return
    codes = torch.from_numpy(state.data.codes[state.data.val_idx])
    state.held_out = HeldOutCells(codes, network=[], logits=[])
    for modalities in module.modality_choices:
        network = []
        logits = []
        for batch in state.data.val_dataloader(all_shards=True):
            encoded, scored, _ = module(
                batch, inference_kwargs={"modalities": modalities}
            )
            network.append(module.head(encoded["latent"]).float().cpu())
            logits.append(scored["logits"].float().cpu())
        state.held_out.network.append(torch.cat(network))
        state.held_out.logits.append(torch.cat(logits))


@torch.inference_mode()
def choose_branch_weight(state: TrainingState) -> None:
    """Choose the weight of the linear branch beside the network by the held-out cells."""
    linear = state.linear
    held_out = state.held_out
    if held_out is None or linear is None or linear.weight == LINEAR_ONLY:
        return
    default = linear.weight
    network = [logits + linear.adjustment for logits in held_out.network]
    regression = [
        (logits - of_network) / default
        for logits, of_network in zip(held_out.logits, network, strict=True)
    ]
    # By all modalities, which are the last choice.
    linear.weight = _best_weight(
        network[-1], regression[-1], held_out.labels, default=default
    )
    if linear.weight == default:
        return
    linear.to_module()
    logits = [
        of_network + linear.weight * of_regression
        for of_network, of_regression in zip(network, regression, strict=True)
    ]
    state.held_out = held_out._replace(logits=logits)
    if linear.weight == LINEAR_ONLY:
        logger.warning(
            "train: held-out cells are labeled better without the network, which scores leave out"
        )


def _best_weight(
    network: Tensor, regression: Tensor, labels: Tensor, *, default: float
) -> float:
    """Compare weights of the linear branch beside the network, by accuracy and by likelihood.

    The default weight gives way to a thousand, which leaves nothing of the network, or to none, if that labels more
    cells right, by two standard errors (McNemar, *Psychometrika* 12, 1947). One part alone comes first: the mean of a
    good and a poor part has the higher likelihood, and fewer right labels than the good one. The mean takes the place
    of a part in the same way, and that of the default sum if the log-likelihood is higher by one and two standard
    errors: of two sums that are right as often, it tells the one that knows when it is wrong.
    """
    best = default
    is_right = (network + default * regression).argmax(1) == labels
    for weight in (LINEAR_ONLY, 0.0, 1.0):
        is_right_with_weight = (network + weight * regression).argmax(1) == labels
        gain = is_right_with_weight.int() - is_right.int()
        if gain.sum() > 2 * gain.abs().sum().sqrt():
            best = weight
            is_right = is_right_with_weight
    if best != default:
        return best
    gain = _losses(network + default * regression, labels, expected=1 + default)
    gain = gain - _losses(network + regression, labels, expected=2.0)
    # As in Akaike's criterion, a choice has to gain one in all.
    if gain.sum() > 1 + 2 * gain.std() * math.sqrt(len(labels)):
        return 1.0
    return default


def _losses(logits: Tensor, labels: Tensor, *, expected: float) -> Tensor:
    """Compute the cross-entropy of each cell, by calibrated logits."""
    temperature = fit_temperature(logits, labels, expected=expected)
    return F.cross_entropy(logits / temperature, labels, reduction="none")


@torch.inference_mode()
def calibrate(state: TrainingState) -> None:
    """Fit the temperatures to the held-out cells, and keep what label sets need."""
    held_out = state.held_out
    if held_out is None:
        return
    # The logits of both branches are added, so that the temperature is about the sum of their weights.
    expected = 1.0
    if state.linear is not None:
        expected += state.linear.weight
    training = state.model.training_
    # With all modalities; the temperature does not change the best label.
    best = held_out.logits[-1].argmax(1)
    training.held_out_codes = torch.stack([held_out.labels, best]).numpy()
    fit_modality_temperatures(
        state.model,
        held_out.logits,
        held_out.labels,
        [expected] * len(held_out.logits),
    )
    if training.refitted:
        training.held_out_probabilities = None
        training.held_out_codes = None
        logger.warning(
            "train: the held-out cells were trained on in an earlier training, so that probabilities may be too high "
            "and there are no label sets: make a new model, or train with refit=False from the start"
        )


@torch.inference_mode()
def fit_modality_temperatures(
    model: SetupMixin,
    logits: list[Tensor],
    labels: Tensor,
    expected: list[float],
    *,
    spread: float = 0.1,
) -> None:
    """Fit a temperature for each choice of modalities, and keep probabilities for label sets.

    Parameters
    ----------
    model
        The model.
    logits
        Shape ``(n_cells, n_labels)``, for each choice of modalities.
    labels
        Codes of the true labels, ``(n_cells,)``.
    expected, spread
        Temperature that each choice is expected to have, and how far it may be from that, as in
        :func:`~tosica._probabilities.fit_temperature`.
    """
    module = model.module
    labels = labels.cpu()
    true_label_probabilities = []
    # The fewer modalities a cell has, the less sure the model may be.
    for i, modalities in enumerate(module.modality_choices):
        module.temperature.view(-1)[i] = fit_temperature(
            logits[i].cpu(), labels, expected=expected[i], spread=spread
        )
        calibrated = module.calibrated(logits[i].to(module.device), modalities)
        of_true_label = calibrated.softmax(1).cpu().gather(1, labels[:, None])[:, 0]
        true_label_probabilities.append(of_true_label.numpy())
    model.training_.held_out_probabilities = np.stack(true_label_probabilities)
