"""Training of a model: its phases in their order, and the methods of users."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.utilities import rank_zero_only
from scvi.train import TrainRunner

from tosica._checks import Fraction, InstanceOf, refuse_unknown, validate_params
from tosica._parallel import thread_pool
from tosica._progress import progress
from tosica._settings import logger, quiet_libraries, warn_user
from tosica._stats import fit_temperature
from tosica.data import CellMatrix
from tosica.linear import (
    MAX_CELLS_NOVELTY,
    LabeledRows,
    find_label_errors,
    fit_novelty,
    fit_ppca,
)
from tosica.model import _trainer
from tosica.model._device import ACCELERATOR, check_devices
from tosica.model._linear_fit import LinearFit, fit_baseline
from tosica.model._modalities import open_matrix
from tosica.model._reference import ReferenceData
from tosica.model._reference_on_disk import BUFFER_SIZE, AnnbatchDataModule
from tosica.model._setup import SetupMixin, TrainingResult
from tosica.model._tokens import read_network_weights
from tosica.model._trainer import TrainingPlan, TrainingPlanConfig, make_config
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tosica.model._reference_on_disk import Blocks

# Number of draws of cells over all epochs: at least _MIN_DRAWS, and more by the square root of the
# number of cells, so that a larger reference has fewer epochs. The network starts from the
# regressions, and then takes about as long as they do.
_MIN_DRAWS = 3_000
_DRAWS_PER_ROOT = 100
_LEAST_EPOCH = 64
# Weight of the linear branch that leaves nothing of the network.
_ALONE = 1000.0


def default_epochs(n_cells: int) -> int:
    """Choose the number of epochs for a number of training cells; few cells get no more steps."""
    return math.ceil(
        max(_MIN_DRAWS, _DRAWS_PER_ROOT * math.sqrt(n_cells))
        / max(n_cells, _LEAST_EPOCH)
    )


# ------------------------------------------------------------------------------- settings, state, result


@dataclass(frozen=True)
class TrainingSettings:
    """Parameters of :meth:`TOSICA.train` that decide the weights."""

    max_epochs: int | None = None
    train_size: float = 0.9
    batch_size: int = 64
    early_stopping: bool = False
    calibrate: bool = True
    refit: bool = True
    check_labels: bool = True
    plan: TrainingPlanConfig = field(default_factory=TrainingPlanConfig)


@dataclass
class TrainingState:
    """What the phases of a training read and leave.

    ``left_out`` are positions of cells with wrong labels. ``ended_early`` says where Ctrl-C ended
    the training.
    """

    model: TrainingMixin
    settings: TrainingSettings
    trainer_kwargs: dict[str, Any]
    shows_bar: bool
    blocks: Blocks | None = None
    checkpoint: Path | None = None
    resume: Path | None = None
    began: float = field(default_factory=time.monotonic)
    # What the phases leave.
    resumed: dict[str, Any] | None = None
    left_out: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    linear: LinearFit | None = None
    ended_early: str = ""
    rows: LabeledRows = field(init=False)
    strata: np.ndarray = field(init=False)
    data: ReferenceData = field(init=False)
    n_epochs: int = field(init=False)
    plan: TrainingPlan = field(init=False)
    runner: TrainRunner = field(init=False)


Phase: TypeAlias = "Callable[[TrainingState], None]"


# ------------------------------------------------------------------------------- phases, in their order


def read_reference(state: TrainingState) -> None:
    """Read expression, labels and batches of the reference, or where an earlier training began."""
    model = state.model
    rows = open_matrix(model.adata, model.modalities)
    if isinstance(rows, CellMatrix) and not rows.in_memory and state.blocks is None:
        # A small one would be read many times, and fits the buffer that it would be read through.
        rows = rows.load() if rows.n_obs <= BUFFER_SIZE else rows
    codes, state.strata = (
        model._codes(REGISTRY_KEYS.LABELS_KEY),
        model._codes(REGISTRY_KEYS.BATCH_KEY),
    )
    state.rows = LabeledRows(rows, np.arange(len(codes)), codes, model.module.slices)
    if state.resume is not None:
        state.resumed = _trainer.read_start(state.resume)


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
        warn_user(
            f"{len(state.left_out)} of {n} labels of the reference "
            f"({len(state.left_out) / n:.0%}) are contradicted by the other cells, and these cells are left "
            "out of training: look at them in model.adata.obs_names[model.mislabeled_indices], or train with "
            "check_labels=False."
        )


def hold_out(state: TrainingState) -> None:
    """Hold out cells of each label for validation and calibration."""
    settings, parts, seed = state.settings, None, None
    if state.resumed is not None:
        parts = tuple(
            state.resumed[name].numpy() for name in ("training", "validation")
        )
        seed = state.resumed["draws"]
    state.data = state.model._data_splitter_cls(
        state.rows.rows,
        state.rows.labels,
        state.strata,
        left_out=state.left_out,
        validation_size=1 - settings.train_size,
        batch_size=settings.batch_size,
        parts=parts,
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
    model, data, module = state.model, state.data, state.model.module
    used = data.codes[np.append(data.train_idx, data.val_idx)]
    counts = np.bincount(used, minlength=len(model.labels)).tolist()
    model.training_ = TrainingResult(
        label_counts=dict(zip(model.labels, counts, strict=True)),
        mislabeled_indices=data.left_out,
        refitted=model.training_.refitted,
    )
    module.temperature.fill_(1.0)
    if module.linear is None:
        return
    # The network trains by itself.
    for name, tensor in module.linear.named_buffers():
        if name.startswith(("weight", "bias")):
            tensor.zero_()
    module.linear.clip_max.fill_(torch.inf)
    with progress(None, "train: linear branch", enabled=state.shows_bar):
        state.linear = LinearFit(module, data, state.rows, model.labels)
    model.training_.regression = state.linear.penalties
    if not model.is_trained_ and not model._starts_from_network:
        state.linear.init_tokens()


def fit_network(state: TrainingState) -> None:
    """Train the network."""
    model, runner = state.model, state.runner
    for timer in (each for each in runner.trainer.callbacks if isinstance(each, Timer)):
        # What came before counts as well.
        timer.load_state_dict(
            {"time_elapsed": {"train": time.monotonic() - state.began}}
        )
    model.module.train()
    # scvi-tools starts a history with the first training; a legacy model has none yet.
    model.is_trained_ = model.is_trained and model.history_ is not None
    n_draws = (
        state.n_epochs * len(state.data.train_dataloader()) * state.data.batch_size
    )
    with (
        progress(
            n_draws, "train: network", enabled=state.shows_bar
        ) as state.plan.progress,
        _trainer.catch_interrupt(runner.trainer) as pressed,
    ):
        runner()
    # A trained model keeps its plan, and no bar can be copied.
    state.plan.progress = None
    if pressed:
        state.ended_early = _trainer.describe_step(runner.trainer)
    elif not runner.trainer.global_step:
        if state.linear is None:
            raise ValueError(
                "max_time was over before the network's first step, and linear=False has nothing else."
            )
        state.linear.weight = _ALONE
        warn_user(
            "max_time was over before the network's first step, so that the linear branch labels alone."
        )


@torch.inference_mode()
def calibrate(state: TrainingState) -> None:
    """Put the linear branch beside the network, fit the temperature to the held-out cells, and keep what sets need."""
    model, data, linear = state.model, state.data, state.linear
    if linear is not None:
        linear.to_module()
        model.module.temperature.fill_(1 + linear.weight)
    if not state.settings.calibrate or not data.n_val:
        return
    truth = torch.from_numpy(data.codes[data.val_idx])
    network, logits = _held_out_logits(state)
    if linear is not None and linear.weight != _ALONE:
        usual, network = linear.weight, [each + linear.adjustment for each in network]
        scores = [
            (both - alone) / usual for both, alone in zip(logits, network, strict=True)
        ]
        linear.weight = _choose_weight(network[-1], scores[-1], truth, usual)
        if linear.weight != usual:
            linear.to_module()
            logits = [
                alone + linear.weight * of_branch
                for alone, of_branch in zip(network, scores, strict=True)
            ]
        if linear.weight == _ALONE:
            logger.warning(
                "train: held-out cells are labelled better without the network, which scores leave out"
            )
    # With all modalities; dividing by the temperature does not change which label is best.
    model.training_.held_out_codes = torch.stack([truth, logits[-1].argmax(1)]).numpy()
    # The sum of the weights of both branches, which the sum of their logits is divided by.
    expected = 1.0 if linear is None else 1.0 + linear.weight
    fit_temperatures(model, logits, truth, [expected] * len(logits))
    if model.training_.refitted:
        model.training_.held_out_probabilities = model.training_.held_out_codes = None
        logger.warning(
            "train: the held-out cells were trained on in an earlier training, so that probabilities may be too high "
            "and there are no label sets: make a new model, or train with refit=False from the start"
        )


def _held_out_logits(
    state: TrainingState,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Score the held-out cells with each choice of modalities: by the network alone, and by both branches."""
    module = state.model.module
    network: list[torch.Tensor] = []
    both: list[torch.Tensor] = []
    for choice in module.modality_choices:
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for cells in state.data.val_dataloader(whole=True):
            encoded, scored = module(cells, inference_kwargs={"modalities": choice})[:2]
            pairs.append(
                (
                    module.head(encoded["latent"]).float().cpu(),
                    scored["logits"].float().cpu(),
                )
            )
        of_network, of_both = map(torch.cat, zip(*pairs, strict=True))
        network.append(of_network)
        both.append(of_both)
    return network, both


def _choose_weight(
    network: torch.Tensor, scores: torch.Tensor, truth: torch.Tensor, usual: float
) -> float:
    """Choose the weight of the linear branch beside the network by the held-out cells.

    The usual weight gives way to a thousand, which leaves nothing of the network, or to none, if that labels more
    cells right, by two standard errors (McNemar, *Psychometrika* 12, 1947). One part alone comes first: the mean of a
    good and a poor part has the higher likelihood, and fewer right labels than the good one. The mean takes the place
    of a part in the same way, and that of the usual sum if the log-likelihood is higher by one and two standard
    errors: of two sums that are right as often, it tells the one that knows when it is wrong.
    """
    chosen = usual
    logits = {weight: network + weight * scores for weight in (usual, _ALONE, 0.0, 1.0)}
    is_right = {weight: (of.argmax(1) == truth).int() for weight, of in logits.items()}
    for weight in (_ALONE, 0.0, 1.0):
        gain = is_right[weight] - is_right[chosen]
        if gain.sum() > 2 * gain.abs().sum().sqrt():
            chosen = weight
    if chosen == usual:
        fitted = (
            logits[w] / fit_temperature(logits[w], truth, expected=1 + w)
            for w in (usual, 1.0)
        )
        loss, of_mean = (
            F.cross_entropy(each, truth, reduction="none") for each in fitted
        )
        # As in Akaike's criterion, a choice has to gain one in all.
        if (loss - of_mean).sum() > 1 + 2 * (loss - of_mean).std() * math.sqrt(
            len(truth)
        ):
            return 1.0
    return chosen


def refit(state: TrainingState) -> None:
    """Fit the linear branch to all cells."""
    if not state.settings.refit or state.ended_early or state.linear is None:
        return
    state.data.add_validation_to_train()
    with progress(None, "train: linear branch", enabled=state.shows_bar):
        state.linear.fit()
    state.linear.to_module()
    state.model.training_.refitted = True


def describe_reference(state: TrainingState) -> None:
    """Keep what imputes missing genes and scores novelty, and refuse weights that diverged."""
    module = state.model.module
    with progress(None, "train: missing genes and novelty", enabled=state.shows_bar):
        fit_baseline(module, state.data)
        rows = state.rows[state.data.train_idx]
        if module.linear is not None:
            # They impute missing genes.
            mean, loadings = fit_ppca(rows)
            module.linear.mean.copy_(torch.from_numpy(mean))
            module.linear.loadings = torch.from_numpy(loadings).to(module.linear.mean)
        if len(module.slices) == 1:
            drawn = rows.subsample(MAX_CELLS_NOVELTY)
            state.model.training_.novelty_statistics = fit_novelty(
                drawn.expression(), drawn.labels
            )
    wrong = module.find_not_finite()
    if wrong is not None:
        raise ValueError(
            f"The training diverged: weights are not finite ({wrong}); train with a smaller plan_kwargs={{'lr': ...}}."
        )


PHASES: tuple[Phase, ...] = (
    read_reference,
    check_labels,
    hold_out,
    _trainer.make_trainer,
    fit_linear,
    fit_network,
    calibrate,
    refit,
    describe_reference,
)


@torch.inference_mode()
def fit_temperatures(
    model: SetupMixin,
    logits: list[torch.Tensor],
    labels: torch.Tensor,
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
        :func:`~tosica._stats.fit_temperature`.
    """
    module, labels = model.module, labels.cpu()
    true_label_probabilities = []
    # The fewer modalities a cell has, the less sure the model may be.
    for i, choice in enumerate(module.modality_choices):
        module.temperature.view(-1)[i] = fit_temperature(
            logits[i].cpu(), labels, expected=expected[i], spread=spread
        )
        probabilities = module.probabilities(logits[i].to(module.device), choice)
        true_label_probabilities.append(
            probabilities.cpu().gather(1, labels[:, None])[:, 0].numpy()
        )
    model.training_.held_out_probabilities = np.stack(true_label_probabilities)


# ------------------------------------------------------------------------------- methods of users


class TrainingMixin(SetupMixin):
    """Training, first weights from a network, and calibration on a new batch."""

    # Replaced in subclasses that train in another way.
    _training_phases: tuple[Phase, ...] = PHASES
    _training_plan_cls = TrainingPlan
    _data_splitter_cls = ReferenceData
    _train_runner_cls = TrainRunner
    _starts_from_network = False
    # The new labels of load_query_data, whose module imports this one.
    _query_cells: Any = None

    @validate_params(
        accelerator=ACCELERATOR,
        devices=InstanceOf(
            "'auto', a number of devices, or a list of their numbers",
            str,
            Integral,
            list,
            tuple,
        ),
        train_size=Fraction(zero=False, one=False),
        datamodule=InstanceOf(
            "an AnnbatchDataModule", AnnbatchDataModule, optional=True
        ),
    )
    def train(
        self,
        max_epochs: int | None = None,
        accelerator: str = "auto",
        devices: int | list[int] | str = "auto",
        train_size: float = 0.9,
        batch_size: int = 64,
        early_stopping: bool = False,
        calibrate: bool = True,
        refit: bool = True,
        check_labels: bool = True,
        plan_kwargs: dict[str, Any] | None = None,
        datamodule: AnnbatchDataModule | None = None,
        checkpoint_dir: str | Path | None = None,
        resume: str | Path | None = None,
        **trainer_kwargs: Any,
    ) -> None:
        """Train on the reference.

        Ctrl-C while the network is trained ends the training after the current step: the model can
        be used and saved, the log says so, and ``KeyboardInterrupt`` is raised. A second Ctrl-C,
        one at another time, and any error leave the model as it was.

        Rare labels are drawn more often than they occur. In each minibatch a random half of the
        genes is hidden from three quarters of the cells, and three quarters of the gene sets
        are hidden. Logistic regressions whose weights go through the same tokens are fitted to
        the same cells, and the tokens start from their weights. Held-out cells choose the share
        of the network in the sum of both, if they tell.
        ``scvi.settings.seed`` makes the result reproducible.

        A model of :meth:`load_query_data` fits its new labels instead, and takes no argument.

        Parameters
        ----------
        max_epochs
            Passes over the training cells. By default so many that 3 000 cells are drawn, or 100
            times the square root of their number if that is more. ``limit_train_batches`` shortens
            the passes.
        accelerator, devices
            Device to train on, as in :class:`lightning.pytorch.Trainer`. With several devices and
            ``strategy="ddp"``, each runs the script in a process of its own.
        train_size
            Share of each label's cells to train on; the rest, at least one cell a label, is held
            out for validation and calibration.
        batch_size
            Cells in a minibatch; at most all of the training cells. With several devices, cells of
            each: two with 64 take the steps of one with 128.
        early_stopping
            Stop when the validation loss no longer falls, and restore the best epoch.
        calibrate
            Fit the temperature of the probabilities to the held-out cells.
        refit
            After calibration, fit the regressions to all cells, the held-out ones included.
            ``validation_indices`` describes the training before.
        check_labels
            Look for label errors by cross-validation. If they are more than 7 % of the reference,
            and not because its types are hard to separate, leave these cells out and warn;
            ``mislabeled_indices`` has their positions.
        plan_kwargs
            Parameters of the training plan: ``lr``, ``weight_decay``, ``gene_dropout``,
            ``complete_cells``, ``token_dropout``, ``modality_dropout``, ``label_smoothing``, ``warmup``.
        datamodule
            Reads the training cells of a reference that is a collection of annbatch; the model is
            made from its ``adata``. A reference that :func:`anndata.experimental.read_lazy` opened,
            or a backed one, needs none: from 65 536 cells on, it is read in blocks through a buffer,
            and smaller ones are read into memory.
        checkpoint_dir
            Folder for ``training.pt``, a checkpoint of Lightning that an interrupted training can
            resume from. It is replaced after each epoch of the network's first fit, and stays. By
            default there is none. For training on one device.
        resume
            File that ``checkpoint_dir`` led to, or its folder. The training goes on with the next
            epoch. On the same machine and with ``scvi.settings.seed``, the weights are exactly
            those of a training that was not interrupted. The model, its reference and all other
            arguments must be the same as before, but the model may be newly made. Nothing in the
            file is executed, so that states of ``callbacks`` must be tensors and plain values.
        **trainer_kwargs
            Passed to :class:`scvi.train.Trainer`, such as ``early_stopping_patience=10`` or
            ``precision="bf16-mixed"``. ``max_time``, in seconds or as Lightning takes it, ends the network
            that long after the call; regressions and calibration take their time, and if none is left
            for the network, the linear branch labels alone. ``enable_progress_bar=False`` takes the
            progress bar away, which is drawn on stderr and shows the phase, cells per second and the
            time left. What Lightning says of devices and products is left out unless
            ``tosica.settings.verbosity`` is ``"debug"``.

        Raises
        ------
        TypeError
            If an argument is of the wrong type, or neither a parameter of this method nor of the
            trainer.
        ValueError
            If the model has no reference, its genes have changed since it was set up, a parameter
            is out of range, there are no held-out cells to stop early by, the training diverges,
            ``max_time`` is over before a model without a linear branch has learnt anything, or
            several devices are asked for that are not there or cannot train one model together; if
            ``resume`` is damaged, or belongs to another model, reference or other arguments.
        FileNotFoundError
            If there is no file to resume from.
        OSError
            If the folder of the checkpoints cannot be made or written to.
        KeyboardInterrupt
            After Ctrl-C.

        Warns
        -----
        UserWarning
            If there are label errors, if no gene set
            distinguishes a label, or if ``max_time`` is over before the network's first step.
        """
        config = make_config(plan_kwargs)
        settings = TrainingSettings(
            max_epochs,
            train_size,
            batch_size,
            early_stopping,
            calibrate,
            refit,
            check_labels,
            config,
        )
        refuse_unknown(self.train, trainer_kwargs, *_trainer.TRAINER_ARGUMENTS)
        shows_bar, trainer_kwargs = _trainer.pop_progress_args(trainer_kwargs)
        if self._query_cells is not None:
            if settings != TrainingSettings():
                raise TypeError(
                    "train of a model of load_query_data takes no arguments: call train()."
                )
            self._query_cells.fit(self)
            return
        self._check_reference()
        if datamodule is not None and datamodule.adata is not self.adata:
            raise ValueError(
                "datamodule has other cells than the model: make the model from datamodule.adata."
            )
        check_devices(accelerator, devices)
        state = TrainingState(
            self,
            settings,
            {"accelerator": accelerator, "devices": devices} | trainer_kwargs,
            shows_bar and getattr(rank_zero_only, "rank", 0) == 0,
            blocks=datamodule,
            checkpoint=None
            if checkpoint_dir is None
            else Path(checkpoint_dir, _trainer.CHECKPOINT_FILE),
            resume=None if resume is None else _trainer.find_checkpoint(resume),
        )
        with (
            quiet_libraries(),
            thread_pool(),
            _trainer.restore_on_failure(self),
        ):
            for phase in self._training_phases:
                phase(state)
        _trainer.log_end(state)

    def start_from_network(self) -> None:
        """Start training from the weights and signs of a gene regulatory network.

        The token of each gene set with weights starts as the weighted sum of its genes, times a
        random vector: genes of opposite sign move the token in opposite directions. All other
        weights keep their random values, and training changes all of them. Call it before
        :meth:`train`. ``scvi.settings.seed`` makes the result reproducible.

        Raises
        ------
        KeyError
            If the mask was built from gene sets without weights.
        ValueError
            If the model has no reference, or was trained already.

        Examples
        --------
        >>> import pandas as pd
        >>> import scanpy as sc
        >>> import tosica
        >>> ref = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> network = pd.DataFrame(
        ...     {
        ...         "source": ["SPI1"] * 4 + ["PAX5"] * 4,
        ...         "target": [
        ...             "LYZ",
        ...             "CST3",
        ...             "FCN1",
        ...             "CD79A",
        ...             "CD79A",
        ...             "CD79B",
        ...             "CD19",
        ...             "LYZ",
        ...         ],
        ...         "weight": [1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, -1.0],
        ...     }
        ... )
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):  # so few genes are in a set
        ...     tosica.pp.build_mask(ref, network, min_genes=3)
        >>> tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels")
        >>> model = tosica.TOSICA(ref, embed_dim=16)
        >>> model.start_from_network()
        """
        self._check_reference()
        if self.is_trained_:
            raise ValueError(
                "The model was trained already: make a new one and call start_from_network before train."
            )
        self.module.embedding.start_from(read_network_weights(self))
        self._starts_from_network = True

    def _check_reference(self) -> None:
        """Refuse to train without the reference that was set up."""
        if self.adata is None:
            raise ValueError(
                "The model has no reference to train on: pass one to TOSICA.load(folder, adata=...)."
            )
        for modality in self.modalities:
            modality.check_genes(self.adata)
