"""Training, calibration and refit of a model."""

from __future__ import annotations

import inspect
import math
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tosica._logging import format_thousands, logger, quiet_libraries
from tosica._parallel import thread_pool
from tosica._validation import check_count, check_flags, check_fraction, check_number, check_path
from tosica.linear import linear_to_network_ratio
from tosica.model._annbatch import AnnbatchDataModule, check_datamodule
from tosica.model._check_reference import check_genes
from tosica.model._checkpoint import find_not_finite
from tosica.model._data_module import count_batches
from tosica.model._device import check_devices, compiled, find_device
from tosica.model._distributed import share_result, writes_files
from tosica.model._linear_fit import LinearFit, fit_missing_genes, fit_novelty_statistics
from tosica.model._modalities import is_joint
from tosica.model._network_fit_mixin import Course, NetworkFitMixin, refit_epochs
from tosica.model._network_start_mixin import NetworkStartMixin
from tosica.model._query_data_mixin import QueryDataMixin
from tosica.model._reference_mixin import ReferenceMixin
from tosica.model._restore_on_failure import restore_on_failure
from tosica.model._trainer_arguments import check_trainer_arguments
from tosica.model._training_checkpoint import (
    TrainingCheckpoint,
    check_arguments,
    plain_arguments,
    read_checkpoint,
)
from tosica.model._training_plan import KeepBest, TrainingPlan, make_config
from tosica.model._training_progress import TrainingProgress, take_bar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tosica.model._data_module import ReferenceData
    from tosica.module import TOSICAModule

# Number of draws of cells over all epochs: at least _MIN_DRAWS, and more by the square root of the
# number of cells, so that a larger reference has fewer epochs.
_MIN_DRAWS = 12_000
_DRAWS_PER_ROOT = 500
# Batch directions are scaled by this in training: batches of a query differ more than those of the
# reference do, and along single directions.
_BATCH_EFFECT_SCALE = 6.0


def default_epochs(
    n_cells: int, *, min_draws: int = _MIN_DRAWS, draws_per_root: int = _DRAWS_PER_ROOT
) -> int:
    """Number of epochs for a number of training cells."""
    return math.ceil(max(min_draws, draws_per_root * math.sqrt(n_cells)) / n_cells)


class TrainingMixin(ReferenceMixin, NetworkFitMixin, NetworkStartMixin, QueryDataMixin):
    """Training on most cells, calibration on held-out cells, and a refit on all cells."""

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
        correct_batches: bool = True,
        compile: bool = False,  # noqa: A002 # as torch and lightning call it
        plan_kwargs: dict[str, Any] | None = None,
        datamodule: AnnbatchDataModule | None = None,
        checkpoint_dir: str | Path | None = None,
        checkpoint_minutes: float = 10.0,
        resume: str | Path | None = None,
        **trainer_kwargs: Any,
    ) -> None:
        """Train on the reference.

        Ctrl-C while the network is trained ends the training after the current step: the model can
        be used and saved, the log says so, and ``KeyboardInterrupt`` is raised. A second Ctrl-C,
        one before that, and any error leave the model as it was. This holds for training on one
        device, in the main thread. Otherwise the first Ctrl-C leaves the model as it was.

        Every minibatch has each label equally often, and a random half of the genes and three
        quarters of the gene sets are hidden in it. Logistic regressions whose weights go through
        the same tokens are fitted to the same cells, and the tokens start from their weights.
        ``scvi.settings.seed`` makes the result reproducible.

        A model of :meth:`load_query_data` fits its new labels instead, and takes no argument.

        Parameters
        ----------
        max_epochs
            Passes over the training cells. By default so many that 12 000 cells are drawn, or 500
            times the square root of their number if that is more. A pass draws at most 262 144
            cells, whatever the size of the reference.
        accelerator, devices
            Device to train on, as in :class:`lightning.pytorch.Trainer`. With several devices there
            is a process for each; ``strategy`` is ``"ddp"``, ``"ddp_spawn"`` or ``"ddp_fork"``.
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
            After calibration, train on all cells, the held-out ones included, for a fifth of the
            epochs at three tenths of the learning rate. ``history`` and ``validation_indices``
            describe the training before.
        check_labels
            Look for label errors by cross-validation. If they are more than 7 % of the reference,
            and not because its types are hard to separate, leave these cells out and warn;
            ``mislabeled_indices`` has their positions. Not for models of a MuData.
        correct_batches
            If the reference was set up with a ``batch_key``, train the model to ignore differences
            between batches within a label. This is meant for labels that the reference has in some
            batches only; the page on batches shows what it changes. It needs a label with three
            cells in each of two batches, and has no effect otherwise. Not for models of a MuData.
        compile
            Compile the encoder's training steps with :func:`torch.compile`. This takes up to a
            minute at first and pays on a GPU; on a CPU it replaces our own attention kernel.
            Without a compiler it warns and has no effect.
        plan_kwargs
            Parameters of the training plan: ``lr``, ``weight_decay``, ``gene_dropout``,
            ``token_dropout``, ``modality_dropout``, ``label_smoothing``, ``warmup``.
        datamodule
            Reads the training cells of a reference that is a collection of annbatch; the model is
            made from its ``adata``. A reference that :func:`anndata.experimental.read_lazy` opened,
            or a backed one, needs none: from 65 536 cells on, it is read in blocks through a buffer
            from which each label is drawn equally often, and smaller ones are read into memory.
        checkpoint_dir
            Folder for ``training.pt``, by which an interrupted training can go on; made if it is
            missing. The file is replaced whole. It is first written before the network is trained,
            then every ``checkpoint_minutes`` and after Ctrl-C, and it stays there. By default there
            is none. For training on one device.
        checkpoint_minutes
            Time between two checkpoints.
        resume
            File that ``checkpoint_dir`` led to, or its folder. The training goes on after the step
            that the file was written at. On the same machine the weights are exactly those of a
            training that was not interrupted. The model, its reference and all other arguments
            must be the same as before, but the model may be newly made. States of ``callbacks`` are
            kept as far as they are tensors and plain values. Nothing in the file is executed.
        **trainer_kwargs
            Passed to :class:`scvi.train.Trainer`, such as ``early_stopping_patience=10`` or
            ``precision="bf16-mixed"``. ``enable_progress_bar=False`` takes the progress bar away,
            which is drawn on stderr and shows the phase, cells per second and the time left.
            What Lightning says of devices and products is left out unless
            ``tosica.settings.verbosity`` is ``"debug"``.

        Raises
        ------
        TypeError
            If an argument is of the wrong type, or neither a parameter of this method nor of the
            trainer.
        ValueError
            If the model has no reference, its genes have changed since it was set up, a parameter
            is out of range, there are no held-out cells to stop early by, the training diverges, or
            several devices are asked for that are not there or cannot train one model together; if
            ``resume`` is damaged, belongs to another model, reference or other arguments, or was
            written by a version of tosica that this one does not know.
        FileNotFoundError
            If there is no file to resume from.
        OSError
            If the folder of the checkpoints cannot be made or written to.
        KeyboardInterrupt
            After Ctrl-C.

        Warns
        -----
        UserWarning
            If ``compile=True`` and nothing can be compiled, if there are label errors, or if no
            gene set distinguishes a label.
        """
        if self._query_cells is not None:
            given = {
                "max_epochs": max_epochs,
                "train_size": train_size,
                "batch_size": batch_size,
                "early_stopping": early_stopping,
                "plan_kwargs": plan_kwargs,
                "datamodule": datamodule,
                "checkpoint_dir": checkpoint_dir,
                "resume": resume,
            }
            self._train_new_labels(_changed(self.train, given))
            return
        if self.adata is None:
            raise ValueError(
                "The model was loaded without a reference and cannot be trained: pass it to "
                "TOSICA.load(folder, adata=reference)."
            )
        check_genes(self.adata, self._modalities)
        check_count("batch_size", batch_size)
        check_count("max_epochs", max_epochs, optional=True)
        check_fraction("train_size", train_size, zero=False, one=False)
        check_flags(
            early_stopping=early_stopping,
            calibrate=calibrate,
            refit=refit,
            check_labels=check_labels,
            correct_batches=correct_batches,
            compile=compile,
        )
        check_number("checkpoint_minutes", checkpoint_minutes, above=0)
        for name, path in {"checkpoint_dir": checkpoint_dir, "resume": resume}.items():
            if path is not None:
                check_path(name, path)
        blocks = None if datamodule is None else check_datamodule(datamodule, self.adata)
        check_trainer_arguments(trainer_kwargs, inspect.signature(self.train).parameters)
        shown, trainer_kwargs = take_bar(trainer_kwargs)
        config = make_config(plan_kwargs)
        device = find_device(accelerator, "auto")
        check_devices(devices, device)
        course = Course(
            TrainingProgress(enabled=shown),
            checkpoint=None if checkpoint_dir is None else TrainingCheckpoint(checkpoint_dir),
            minutes=checkpoint_minutes,
            resumed=None if resume is None else read_checkpoint(resume),
            compiles=compile,
            reads_collection=blocks is not None,
        )
        with course.progress:
            with thread_pool():
                data = self._reference_data(train_size, batch_size, check_labels, course, blocks)
                directions = self._batch_directions(data, course) if correct_batches else None
            if early_stopping and not data.n_val:
                raise ValueError(
                    "early_stopping=True needs held-out cells, of which there are none, because no "
                    "label has two cells: train without it."
                )
            if max_epochs is None:
                max_epochs = default_epochs(data.n_train)
            decisive = {
                "max_epochs": max_epochs,
                "train_size": train_size,
                "batch_size": batch_size,
                "early_stopping": early_stopping,
                "calibrate": calibrate,
                "refit": refit,
                "check_labels": check_labels,
                "correct_batches": correct_batches,
                "datamodule": blocks is not None,
            }
            arguments = plain_arguments(decisive, asdict(config), trainer_kwargs)
            if course.resumed is not None:
                check_arguments(course.resumed, arguments)
            if course.checkpoint is not None:
                course.checkpoint.constant |= {"arguments": arguments}
            scale = None if directions is None else _BATCH_EFFECT_SCALE * directions
            scaled = None if scale is None else torch.from_numpy(scale).float()
            plan = TrainingPlan(self.module, config, scaled)
            # Losses are kept once an epoch; lightning warns if it has fewer steps than this.
            kwargs: dict[str, Any] = {"accelerator": accelerator, "devices": devices}
            kwargs |= {"log_every_n_steps": 1} | trainer_kwargs
            stopping: dict[str, Any] = {}
            if early_stopping:
                stopping = {
                    "early_stopping": True,
                    "early_stopping_monitor": "validation_loss",
                    "early_stopping_patience": 10,
                }
                kwargs["callbacks"] = [*(kwargs.get("callbacks") or ()), KeepBest()]
            compiling = compiled(self.module.encoder, device) if compile else nullcontext()
            with quiet_libraries(), thread_pool(), compiling:
                watched = {"check_val_every_n_epoch": 1} if data.n_val else {"limit_val_batches": 0}
                course.progress.total = _count_draws(data, max_epochs, refit=refit)
                runner = self._runner(plan, data, max_epochs, course, **watched | stopping | kwargs)
                # Not before: the runner refuses wrong arguments.
                with restore_on_failure(self):
                    linear = self._fit_linear(data, directions, course)
                    with course.interruption.noted(enabled=runner.trainer.world_size == 1):
                        if course.resumed_in("refit") is None:
                            self._run(runner)
                            self._end_network(data, linear, course, calibrate=calibrate)
                        if refit and not course.interruption.after:
                            self._refit(plan, data, course, linear, **kwargs)
                        self._fit_to_cells(data, course)
        if course.interruption.requested:
            logger.warning(course.describe_end())
            raise KeyboardInterrupt
        self._log_end(data, max_epochs, course)

    def _log_end(self, data: ReferenceData, max_epochs: int, course: Course) -> None:
        """Say in one line how long the training was, and how good its model is."""
        if not writes_files(self):
            return
        # A training that went on after its last epoch has no trainer; without a logger, there is no
        # history.
        losses = (self.history_ or {}).get("train_loss")
        n_epochs = len(losses) if losses is not None else self.trainer.current_epoch
        held_out = ""
        if self.held_out_codes_ is not None:
            truth, best = self.held_out_codes_
            held_out = (
                f"; {(truth == best).mean():.1%} of {format_thousands(len(truth))} held-out cells "
                "got their label"
            )
        logger.info(
            "train: %s%s on %s cells in %s%s",
            f"{n_epochs} epoch{'s' * (n_epochs != 1)}",
            f" of {max_epochs} (stopped early)" if n_epochs < max_epochs else "",
            format_thousands(data.n_train + data.n_val),
            course.progress.clock,
            held_out,
        )

    def _fit_linear(
        self, data: ReferenceData, batch_directions: np.ndarray | None, course: Course
    ) -> LinearFit | None:
        """Fit the regressions of the linear branch, from which the tokens start.

        The branch stays zero until the network is trained. A training that goes on takes them, and
        weights, from its checkpoint.
        """
        first, resumed = not self.is_trained_, course.resumed
        if course.checkpoint is not None:
            course.checkpoint.begin(self, data, batch_directions)
        self._reset(data)
        linear = None
        if self.module.linear is not None:
            course.progress.begin("linear branch")
            fitted = None if resumed is None else resumed["linear"]
            linear = LinearFit(self.module, data, self.labels, batch_directions, fitted)
            if course.checkpoint is not None:
                course.checkpoint.constant["linear"] = linear.state_dict()
            course.progress.seconds_after = linear.seconds
            if resumed is None:
                linear.warn_of_inactive()
        if resumed is not None:
            self._take(resumed)
        elif linear is not None and first and not self._starts_from_network:
            linear.start_tokens()
        return linear

    def _end_network(
        self, data: ReferenceData, linear: LinearFit | None, course: Course, *, calibrate: bool
    ) -> None:
        """Put the linear branch beside the network, and calibrate the sum."""
        if linear is not None:
            linear.write()
        if calibrate and data.n_val:
            course.progress.begin("calibration")
            self._calibrate(data)
            self._warn_of_trained_validation_cells()

    def _fit_to_cells(self, data: ReferenceData, course: Course) -> None:
        """Fit what is known of the reference's cells beside their labels."""
        course.progress.begin("missing genes")
        fit_missing_genes(self.module, data)
        if not is_joint(self.registry_):
            course.progress.begin("novelty")
            self.novelty_statistics_ = fit_novelty_statistics(self.module, data)
        share_result(self)
        _check_finite(self.module)

    def _warn_of_trained_validation_cells(self) -> None:
        """Drop the label sets if the held-out cells were trained on before."""
        if self.refitted_:
            self.held_out_probabilities_ = self.held_out_codes_ = None
            logger.warning(
                "train: the held-out cells were trained on in an earlier training, so that "
                "probabilities may be too high and there are no label sets: make a new model, or "
                "train with refit=False from the start"
            )

    def _reset(self, data: ReferenceData) -> None:
        """Reset calibration and linear branch, so that the network trains by itself."""
        module = self.module
        module.temperature.fill_(self._expected_temperature(data))
        self.held_out_probabilities_ = self.held_out_codes_ = None
        self.mislabeled_indices_ = data.left_out
        used = np.bincount(
            data.codes[np.append(data.train_idx, data.val_idx)], minlength=len(self.labels)
        )
        self.label_counts_ = dict(zip(self.labels, used.tolist(), strict=True))
        if module.linear is not None:
            module.linear.weight.zero_()
            module.linear.bias.zero_()
            module.linear.upper.fill_(torch.inf)

    def _expected_temperature(self, data: ReferenceData) -> float:
        """Sum of the weights of both branches, which the sum of their logits is divided by."""
        if self.module.linear is None:
            return 1.0
        return 1.0 + linear_to_network_ratio(data.n_train + data.n_val)

    @torch.inference_mode()
    def _calibrate(self, data: ReferenceData) -> None:
        """Calibrate on the held-out cells."""
        logits: list[torch.Tensor] = []
        for choice in self.module.modality_choices:
            parts, labels = [], []
            for batch in data.held_out():
                _, generative, losses = self.module(batch, inference_kwargs={"modalities": choice})
                parts.append(generative["logits"].float())
                labels.append(losses.true_labels)
            logits.append(torch.cat(parts))
        expected = [self._expected_temperature(data)] * len(logits)
        truth = torch.cat(labels)
        # With all modalities; dividing by the temperature does not change which label is best.
        best = logits[-1].argmax(1)
        self.held_out_codes_ = torch.stack([truth.view(-1).cpu(), best.cpu()]).numpy()
        self._set_calibration(logits, truth, expected)


def _check_finite(module: TOSICAModule) -> None:
    """Refuse weights that name no cells, before they take the place of those that did."""
    wrong = find_not_finite(module.state_dict())
    if wrong is not None:
        raise ValueError(
            f"The training diverged: weights are not finite ({wrong}); train with a smaller "
            "plan_kwargs={'lr': ...} if it was raised, or without precision='16-mixed'."
        )


def _changed(method: Callable[..., None], given: dict[str, Any]) -> dict[str, Any]:
    """Arguments that are not the defaults of a method."""
    defaults = inspect.signature(method).parameters
    return {name: value for name, value in given.items() if value != defaults[name].default}


def _count_draws(data: ReferenceData, epochs: int, *, refit: bool) -> int:
    """Cells that a training draws, in the refit too."""
    n_draws = epochs * data.n_draws
    if refit:
        n_batches = count_batches(data.n_train + data.n_val, data.batch_size)
        n_draws += refit_epochs(epochs) * n_batches * data.batch_size
    return n_draws
