"""Phases of a training, in their order: from reading the reference to the refit on all cells."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning.pytorch.callbacks import Timer

from tosica._progress import progress
from tosica._settings import warn_user
from tosica._text import in_python
from tosica.data import CellMatrix
from tosica.linear import (
    MAX_CELLS_NOVELTY,
    LabeledRows,
    find_label_errors,
    fit_ppca,
    fit_statistics,
)
from tosica.model._calibration import (
    calibrate,
    choose_branch_weight,
    join_branches,
    score_held_out,
)
from tosica.model._checkpoint import read_start
from tosica.model._interactions import find_interactions
from tosica.model._interrupt import catch_interrupt
from tosica.model._linear_fit import LINEAR_ONLY, LinearFit, fit_baseline
from tosica.model._modalities import open_matrix
from tosica.model._reference_on_disk import BUFFER_SIZE
from tosica.model._trainer import make_trainer
from tosica.model._training_result import TrainingResult
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from tosica.model._state import Phase, TrainingState

# Number of draws of cells over all epochs: at least _MIN_DRAWS, and more by the square root of the
# number of cells, so that a larger reference has fewer epochs. The network starts from the
# regressions, and then takes about as long as they do.
_MIN_DRAWS = 3_000
_DRAWS_PER_ROOT = 100
# Fewer cells get no more epochs than this number does.
_MIN_CELLS = 64


def default_epochs(n_cells: int) -> int:
    """Choose the number of epochs for a number of training cells."""
    n_draws = max(_MIN_DRAWS, _DRAWS_PER_ROOT * math.sqrt(n_cells))
    return math.ceil(n_draws / max(n_cells, _MIN_CELLS))


def read_reference(state: TrainingState) -> None:
    """Open the reference; with ``resume``, also read the checkpoint."""
    model = state.model
    matrix = open_matrix(model.adata, model.modalities)
    if (
        isinstance(matrix, CellMatrix)
        and not matrix.in_memory
        and state.blocks is None
        and matrix.n_obs <= BUFFER_SIZE
    ):
        # It would be read many times, and fits the buffer that it would be read through.
        matrix = matrix.load()
    codes = model._registered_codes(REGISTRY_KEYS.LABELS_KEY)
    state.strata = model._registered_codes(REGISTRY_KEYS.BATCH_KEY)
    state.rows = LabeledRows(matrix, np.arange(len(codes)), codes, model.module.slices)
    if state.resume is not None:
        state.resumed = read_start(state.resume)


def check_labels(state: TrainingState) -> None:
    """Find cells with wrong labels by cross-validation, to leave them out."""
    if state.resumed is not None:
        state.left_out = state.resumed["left_out"].numpy()
        return
    if not state.settings.check_labels:
        return
    labeled = state.rows[state.rows.labels >= 0]
    with progress(None, "train: checking labels", enabled=state.shows_bar):
        state.left_out = find_label_errors(labeled)
    if len(state.left_out):
        n = len(labeled.cells)
        # The command line has no option for either.
        cure = in_python(
            ": look at them in model.adata.obs_names[model.mislabeled_indices], or train with check_labels=False"
        )
        warn_user(
            f"{len(state.left_out)} of {n} labels of the reference "
            f"({len(state.left_out) / n:.0%}) are contradicted by the other cells, and these cells are left "
            f"out of training{cure}."
        )


def hold_out(state: TrainingState) -> None:
    """Hold out cells of each label for validation and calibration."""
    settings = state.settings
    external_indexing = None
    seed = None
    if state.resumed is not None:
        train_idx = state.resumed["training"].numpy()
        external_indexing = (train_idx, state.resumed["validation"].numpy())
        seed = state.resumed["draws"]
    state.data = state.model._data_splitter_cls(
        state.rows.rows,
        state.rows.labels,
        state.strata,
        left_out=state.left_out,
        validation_size=1 - settings.train_size,
        batch_size=settings.batch_size,
        external_indexing=external_indexing,
        seed=seed,
        blocks=state.blocks,
    )
    state.n_epochs = settings.max_epochs or default_epochs(state.data.n_train)
    if settings.early_stopping and not state.data.n_val:
        raise ValueError(
            "early_stopping=True has no held-out cells, because no label has two cells: train without it."
        )


def fit_linear(state: TrainingState) -> None:
    """Fit the regressions of the linear branch, and initialize the tokens from them."""
    model = state.model
    data = state.data
    codes = data.codes[np.append(data.train_idx, data.val_idx)]
    counts = np.bincount(codes, minlength=len(model.labels)).tolist()
    model.training_ = TrainingResult(
        label_counts=dict(zip(model.labels, counts, strict=True)),
        mislabeled_indices=data.left_out,
        refitted=model.training_.refitted,
    )
    model.module.temperature.fill_(1.0)
    branch = model.module.linear
    if branch is None:
        return
    # The network trains by itself.
    for name, tensor in branch.named_buffers():
        if name.startswith(("weight", "bias")):
            tensor.zero_()
    branch.clip_max.fill_(torch.inf)
    with progress(None, "train: linear branch", enabled=state.shows_bar):
        state.linear = LinearFit(
            model.module, data, state.rows, model.labels, model._levels
        )
    model.training_.regression = state.linear.penalties
    if not model.is_trained_ and not model._starts_from_network:
        state.linear.init_tokens()


def fit_network(state: TrainingState) -> None:
    """Train the network."""
    model = state.model
    trainer = state.runner.trainer
    for callback in trainer.callbacks:
        if isinstance(callback, Timer):
            # max_time is counted from the call of train.
            elapsed = time.monotonic() - state.start_time
            callback.load_state_dict({"time_elapsed": {"train": elapsed}})
    model.module.train()
    # scvi-tools starts a history with the first training; a legacy model has none yet.
    model.is_trained_ = model.is_trained and model.history_ is not None
    n_batches = state.n_epochs * len(state.data.train_dataloader())
    n_draws = n_batches * state.data.batch_size
    with (
        progress(n_draws, "train: network", enabled=state.shows_bar) as bar,
        catch_interrupt(trainer) as signals,
    ):
        state.plan.progress = bar
        state.runner()
    # A trained model keeps its plan, and no bar can be copied.
    state.plan.progress = None
    if signals:
        state.ended_early = (
            f"step {trainer.global_step}, in epoch {trainer.current_epoch} "
            f"of {trainer.max_epochs}"
        )
    elif not trainer.global_step:
        if state.linear is None:
            raise ValueError(
                "max_time was over before the network's first step, and the model has no linear branch."
            )
        state.linear.weight = LINEAR_ONLY
        warn_user(
            "max_time was over before the network's first step, so that the linear branch labels alone."
        )


def refit(state: TrainingState) -> None:
    """Fit the linear branch to all cells."""
    if not state.settings.refit or state.ended_early or state.linear is None:
        return
    state.data.add_validation_to_train()
    with progress(None, "train: linear branch", enabled=state.shows_bar):
        state.linear.fit()
    state.linear.to_module()
    state.model.training_.refitted = True


def fit_imputation(state: TrainingState) -> None:
    """Keep what stands for genes that a query lacks."""
    module = state.model.module
    with progress(None, "train: missing genes", enabled=state.shows_bar):
        fit_baseline(module, state.data)
        if module.linear is None:
            return
        mean, loadings = fit_ppca(state.rows[state.data.train_idx])
        module.linear.mean.copy_(torch.from_numpy(mean))
        module.linear.loadings = torch.from_numpy(loadings).to(module.linear.mean)


def fit_novelty(state: TrainingState) -> None:
    """Keep how far the reference's cells are from their labels."""
    if len(state.model.module.slices) > 1:
        return
    sample = state.rows[state.data.train_idx].subsample(MAX_CELLS_NOVELTY)
    with progress(None, "train: novelty", enabled=state.shows_bar):
        state.model.training_.novelty_statistics = fit_statistics(
            sample.expression(), sample.labels
        )


def refuse_diverged(state: TrainingState) -> None:
    """Refuse weights that are not finite."""
    spoilt = state.model.module.find_not_finite()
    if spoilt is not None:
        cure = in_python("; train with a smaller plan_kwargs={'lr': ...}")
        raise ValueError(
            f"The training diverged: weights are not finite ({spoilt}){cure}."
        )


PHASES: tuple[Phase, ...] = (
    read_reference,
    check_labels,
    hold_out,
    fit_linear,
    find_interactions,
    make_trainer,
    fit_network,
    join_branches,
    score_held_out,
    choose_branch_weight,
    calibrate,
    refit,
    fit_imputation,
    fit_novelty,
    refuse_diverged,
)
