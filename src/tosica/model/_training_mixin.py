"""Training, calibration and refit of a model."""

from __future__ import annotations

import inspect
import math
import signal
import threading
import warnings
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tosica._logging import logger
from tosica._threads import thread_pool
from tosica._validation import check_count, check_flags, check_fraction
from tosica.data import CellMatrix, JointMatrix
from tosica.linear import find_batch_directions, find_label_errors, linear_to_network_ratio
from tosica.model._calibration_mixin import CalibrationMixin
from tosica.model._check_reference import check_genes
from tosica.model._checkpoint import find_not_finite
from tosica.model._data_module import ReferenceData
from tosica.model._device import check_devices, compiled, find_device
from tosica.model._distributed import Runner, share_result
from tosica.model._linear_fit import LinearFit, fit_missing_genes, fit_novelty_statistics
from tosica.model._modalities import is_joint
from tosica.model._network_start_mixin import NetworkStartMixin
from tosica.model._restore_on_failure import restore_on_failure
from tosica.model._setup_mudata import reindex_codes
from tosica.model._trainer_arguments import check_trainer_arguments
from tosica.model._training_plan import KeepBest, TrainingPlan, make_config
from tosica.module import REGISTRY_KEYS, TOSICAModule

# Number of draws of cells over all epochs: at least _MIN_DRAWS, and more by the square root of the
# number of cells, so that a larger reference has fewer epochs.
_MIN_DRAWS = 12_000
_DRAWS_PER_ROOT = 500
# The refit on all cells has this share of the epochs and of the learning rate, so that the weights
# change little and the calibration holds.
_REFIT_EPOCHS, _REFIT_LR = 0.2, 0.3
# Batch directions are scaled by this in training: batches of a query differ more than those of the
# reference do, and along single directions.
_BATCH_EFFECT_SCALE = 6.0
# Arguments of the trainer that need validation cells, of which the refit has none.
VALIDATION_ARGUMENTS = {
    "callbacks",
    "logger",
    "check_val_every_n_epoch",
    "enable_checkpointing",
    "checkpointing_monitor",
    "early_stopping",
    "early_stopping_monitor",
    "early_stopping_min_delta",
    "early_stopping_patience",
    "early_stopping_warmup_epochs",
    "early_stopping_mode",
    "additional_val_metrics",
    "val_check_interval",
}


def default_epochs(
    n_cells: int, *, min_draws: int = _MIN_DRAWS, draws_per_root: int = _DRAWS_PER_ROOT
) -> int:
    """Number of epochs for a number of training cells."""
    return math.ceil(max(min_draws, draws_per_root * math.sqrt(n_cells)) / n_cells)


class TrainingMixin(NetworkStartMixin, CalibrationMixin):
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
        **trainer_kwargs: Any,
    ) -> None:
        """Train on the reference.

        A training that does not end, because of Ctrl-C or an error, leaves the model as it was.

        Every minibatch has each label equally often, and a random half of the genes and three
        quarters of the gene sets are hidden in it. Logistic regressions whose weights go through
        the same tokens are fitted to the same cells, and the tokens start from their weights.
        ``scvi.settings.seed`` makes the result reproducible.

        Parameters
        ----------
        max_epochs
            Passes over the training cells. By default so many that 12 000 cells are drawn, or 500
            times the square root of their number if that is more.
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
        **trainer_kwargs
            Passed to :class:`scvi.train.Trainer`, such as ``enable_progress_bar=False``,
            ``early_stopping_patience=10`` or ``precision="bf16-mixed"``.

        Raises
        ------
        TypeError
            If an argument is of the wrong type, or neither a parameter of this method nor of the
            trainer.
        ValueError
            If the model has no reference, its genes have changed since it was set up, a parameter
            is out of range, there are no held-out cells to stop early by, the training diverges, or
            several devices are asked for that are not there or cannot train one model together.

        Warns
        -----
        UserWarning
            If ``compile=True`` and nothing can be compiled, if there are label errors, or if no
            gene set distinguishes a label.
        """
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
        check_trainer_arguments(trainer_kwargs, inspect.signature(self.train).parameters)
        config = make_config(plan_kwargs)
        device = find_device(accelerator, "auto")
        check_devices(devices, device)
        with thread_pool():
            data = self._reference_data(train_size, batch_size, check_labels)
            directions = self._batch_directions(data) if correct_batches else None
        if early_stopping and not data.n_val:
            raise ValueError(
                "early_stopping=True needs held-out cells, of which there are none, because no "
                "label has two cells: train without it."
            )
        scaled = None if directions is None else torch.from_numpy(_BATCH_EFFECT_SCALE * directions)
        plan = TrainingPlan(self.module, config, None if scaled is None else scaled.float())
        if max_epochs is None:
            max_epochs = default_epochs(data.n_train)
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
            kwargs["callbacks"] = [*kwargs.get("callbacks", []), KeepBest()]
        with thread_pool(), compiled(self.module.encoder, device) if compile else nullcontext():
            watched = {"check_val_every_n_epoch": 1} if data.n_val else {"limit_val_batches": 0}
            runner = self._runner(plan, data, max_epochs, **watched | stopping | kwargs)
            # Not before: the runner refuses wrong arguments.
            with restore_on_failure(self):
                linear = self._fit_linear(data, directions)
                self._run(runner)
                if linear is not None:
                    linear.write()
                if calibrate and data.n_val:
                    self._calibrate(data)
                    self._warn_of_trained_validation_cells()
                if refit:
                    self._refit(plan, data, **kwargs)
                    if linear is not None:
                        linear.refit()
                        linear.write()
                    self.refitted_ = True
                fit_missing_genes(self.module, data)
                if not is_joint(self.registry_):
                    self.novelty_statistics_ = fit_novelty_statistics(self.module, data)
                share_result(self)
                _check_finite(self.module)

    def _fit_linear(
        self, data: ReferenceData, batch_directions: np.ndarray | None
    ) -> LinearFit | None:
        """Fit the regressions of the linear branch, from which the tokens start.

        The branch stays zero until the network is trained.
        """
        first = not self.is_trained_
        self._reset(data)
        if self.module.linear is None:
            return None
        linear = LinearFit(self.module, data, self.labels, batch_directions)
        linear.warn_of_inactive()
        if first and not self._starts_from_network:
            linear.start_tokens()
        return linear

    def _warn_of_trained_validation_cells(self) -> None:
        """Drop the label sets if the held-out cells were trained on before."""
        if self.refitted_:
            self.held_out_probabilities_ = None
            logger.warning(
                "train: the held-out cells were trained on in an earlier training, so that "
                "probabilities may be too high and there are no label sets: make a new model, or "
                "train with refit=False from the start"
            )

    def _runner(
        self, plan: TrainingPlan, data: ReferenceData, epochs: int, **kwargs: Any
    ) -> Runner:
        return Runner(self, training_plan=plan, data_splitter=data, max_epochs=epochs, **kwargs)

    def _run(self, runner: Runner) -> None:
        self.module.train()
        # scvi-tools starts a history with the first training; a legacy model has none yet.
        self.is_trained_ = self.is_trained and self.history_ is not None
        on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            runner()
        except SystemExit as end:
            if not isinstance(end.__context__, KeyboardInterrupt):
                raise
            # On Ctrl-C lightning ignores further interrupts and ends the process.
            if on_interrupt is not None and (threading.current_thread() is threading.main_thread()):
                signal.signal(signal.SIGINT, on_interrupt)
            raise KeyboardInterrupt from None

    def _refit(self, plan: TrainingPlan, data: ReferenceData, **kwargs: Any) -> None:
        """Go on with all cells; history and indices stay those of the training before."""
        names = ("history_", "train_indices_", "validation_indices_", "trainer")
        before = {name: getattr(self, name) for name in names}
        if isinstance(self.history_, dict):
            # scvi-tools adds the rows of a further training to the dict itself.
            before["history_"] = dict(self.history_)
        epochs = math.ceil(_REFIT_EPOCHS * self.trainer.current_epoch)
        config = replace(plan.config, lr=_REFIT_LR * plan.config.lr)
        refit_plan = TrainingPlan(self.module, config, plan.batch_directions)
        data.join()
        options = {k: v for k, v in kwargs.items() if k not in VALIDATION_ARGUMENTS}
        self._run(self._runner(refit_plan, data, epochs, limit_val_batches=0, **options))
        for name, value in before.items():
            setattr(self, name, value)

    def _reset(self, data: ReferenceData) -> None:
        """Reset calibration and linear branch, so that the network trains by itself."""
        module = self.module
        module.temperature.fill_(self._expected_temperature(data))
        self.held_out_probabilities_ = None
        self.mislabeled_indices_ = data.left_out
        if module.linear is not None:
            module.linear.weight.zero_()
            module.linear.bias.zero_()
            module.linear.upper.fill_(torch.inf)

    def _expected_temperature(self, data: ReferenceData) -> float:
        """Sum of the weights of both branches, which the sum of their logits is divided by."""
        if self.module.linear is None:
            return 1.0
        return 1.0 + linear_to_network_ratio(data.n_train + data.n_val)

    def _batch_directions(self, data: ReferenceData) -> np.ndarray | None:
        """Directions in which the batches of the training cells differ, if there are several."""
        if not isinstance(data.rows, CellMatrix):
            return None
        cells = data.train_idx
        labels, batches = data.codes[cells], data.strata[cells]
        if (batches == batches[0]).all():
            return None
        directions = find_batch_directions(data.rows, cells, labels, batches, self.module.slices[0])
        if directions is None:
            logger.warning(
                "train: no label has three cells in each of two batches, so that labels and "
                "batches cannot be separated, and batches are not corrected for; it takes more "
                "cells of one label in two batches"
            )
            return None
        logger.info("train: directions in which batches differ beyond chance: %d", len(directions))
        return directions if len(directions) else None

    def _reference_data(
        self, train_size: float, batch_size: int, check_labels: bool
    ) -> ReferenceData:
        modalities = self._modalities
        codes = self.module.label_of_code.cpu().numpy()[self._codes(REGISTRY_KEYS.LABELS_KEY)]
        rows: CellMatrix | JointMatrix
        errors = np.empty(0, dtype=np.int64)
        if is_joint(self.registry_):
            rows = JointMatrix(self.adata, {str(m.name): m.layer for m in modalities})
        else:
            rows = CellMatrix(self.adata, layer=modalities[0].layer)
            if check_labels:
                labeled = np.flatnonzero(codes >= 0)
                errors = find_label_errors(rows, labeled, codes[labeled], self.module.slices[0])
                _warn_of_label_errors(len(errors), len(labeled))
        return ReferenceData(
            rows,
            codes,
            self._codes(REGISTRY_KEYS.BATCH_KEY),
            left_out=errors,
            validation_size=1 - train_size,
            batch_size=batch_size,
        )

    def _codes(self, key: str) -> np.ndarray:
        """Codes of the labels or batches, in the order of the reference's cells."""
        codes = np.asarray(self.adata_manager.get_from_registry(key)).ravel()
        mod_key = self.adata_manager.data_registry[key].get("mod_key")
        return reindex_codes(self.adata, codes, mod_key)

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
        self._set_calibration(logits, torch.cat(labels), expected)


def _check_finite(module: TOSICAModule) -> None:
    """Refuse weights that name no cells, before they take the place of those that did."""
    wrong = find_not_finite(module.state_dict())
    if wrong is not None:
        raise ValueError(
            f"The training diverged: weights are not finite ({wrong}); train with a smaller "
            "plan_kwargs={'lr': ...} if it was raised, or without precision='16-mixed'."
        )


def _warn_of_label_errors(n_errors: int, n_labeled: int) -> None:
    if n_errors:
        warnings.warn(
            f"{n_errors} of {n_labeled} labels of the reference "
            f"({n_errors / n_labeled:.0%}) are contradicted by the other cells, and these "
            "cells are left out of training: look at them in "
            "model.adata.obs_names[model.mislabeled_indices], or train with check_labels=False.",
            UserWarning,
            stacklevel=4,
        )
