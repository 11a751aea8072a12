"""Settings of a training, and the state that its phases read and change."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from scvi.train import TrainRunner

from tosica.model._plan import TrainingPlan, TrainingPlanConfig
from tosica.model._reference import ReferenceData
from tosica.model._setup import SetupMixin

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from tosica.linear import LabeledRows
    from tosica.model._linear_fit import LinearFit
    from tosica.model._reference_on_disk import Blocks


@dataclass(frozen=True)
class TrainingSettings:
    """Parameters of :meth:`tosica.TOSICA.train` that decide the weights."""

    max_epochs: int | None = None
    train_size: float = 0.9
    batch_size: int = 64
    early_stopping: bool = False
    calibrate: bool = True
    refit: bool = True
    check_labels: bool = True
    plan: TrainingPlanConfig = field(default_factory=TrainingPlanConfig)


class TrainableModel(SetupMixin):
    """A model as the phases of its training see it.

    Subclasses that train in another way replace the classes.
    """

    _training_plan_cls = TrainingPlan
    _data_splitter_cls = ReferenceData
    _train_runner_cls = TrainRunner
    _starts_from_network = False


class HeldOutCells(NamedTuple):
    """Labels of the held-out cells, and their logits with each choice of modalities.

    Parameters
    ----------
    labels
        Codes of the true labels, ``(n_cells,)``.
    network
        Logits of the network, ``(n_cells, n_labels)``, for each choice of modalities.
    logits
        Logits of the network and the linear branch together, in the same way.
    """

    labels: Tensor
    network: list[Tensor]
    logits: list[Tensor]


@dataclass
class TrainingState:
    """Arguments of a training, and the results of its phases so far.

    Parameters
    ----------
    model
        The model that is trained.
    settings
        Parameters that decide the weights.
    trainer_kwargs
        Arguments of the trainer.
    shows_bar
        Whether progress is shown.
    blocks
        Reads the training cells of a reference on disk.
    checkpoint
        File to write checkpoints to.
    resume
        Checkpoint to go on from.
    start_time
        When the training started, by the clock of :func:`time.monotonic`.
    resumed
        Start of the training that is resumed, as its checkpoint describes it.
    left_out
        Positions of cells with wrong labels.
    linear
        Regressions of the linear branch.
    ended_early
        Step at which Ctrl-C ended the training of the network, in words.
    held_out
        Held-out cells, if they calibrate the model.
    rows
        All cells of the reference, with the codes of their labels.
    strata
        Batch of each cell, ``(n_obs,)``.
    data
        Training cells and held-out cells.
    n_epochs
        Epochs of the network.
    plan, runner
        How the network is trained.
    """

    model: TrainableModel
    settings: TrainingSettings
    trainer_kwargs: dict[str, Any]
    shows_bar: bool
    blocks: Blocks | None = None
    checkpoint: Path | None = None
    resume: Path | None = None
    start_time: float = field(default_factory=time.monotonic)
    resumed: dict[str, Any] | None = None
    left_out: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    linear: LinearFit | None = None
    ended_early: str = ""
    held_out: HeldOutCells | None = None
    rows: LabeledRows = field(init=False)
    strata: np.ndarray = field(init=False)
    data: ReferenceData = field(init=False)
    n_epochs: int = field(init=False)
    plan: TrainingPlan = field(init=False)
    runner: TrainRunner = field(init=False)


Phase: TypeAlias = Callable[[TrainingState], None]
