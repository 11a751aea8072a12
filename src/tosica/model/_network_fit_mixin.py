"""Training of the network by Lightning: the fit, and the refit on all cells."""

from __future__ import annotations

import math
import signal
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tosica.model._checkpoint import restore_history, to_plain
from tosica.model._distributed import Runner
from tosica.model._fit_control import FitControl, prepare_fit, random_state, set_random_state
from tosica.model._interruption import Interruption
from tosica.model._registry_mixin import RegistryMixin
from tosica.model._training_plan import KeepBest, TrainingPlan
from tosica.model._training_progress import ShowProgress

if TYPE_CHECKING:
    from tosica.model._data_module import ReferenceData
    from tosica.model._linear_fit import LinearFit
    from tosica.model._training_checkpoint import TrainingCheckpoint
    from tosica.model._training_progress import TrainingProgress

# The refit on all cells has this share of the epochs and of the learning rate, so that the weights
# change little and the calibration holds.
_REFIT_EPOCHS, _REFIT_LR = 0.2, 0.3
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
# What the training of the network leaves for the refit, besides weights.
_INDICES = ("train_indices_", "validation_indices_", "test_indices_")
# What is known of the held-out cells.
_HELD_OUT = ("held_out_probabilities_", "held_out_codes_")


@dataclass
class Course:
    """What the phases of a training share.

    ``checkpoint`` is ``None`` if none is to be written; there are ``minutes`` between two of them.
    ``resumed`` is the checkpoint that the training goes on from, if it does.
    """

    progress: TrainingProgress
    checkpoint: TrainingCheckpoint | None
    minutes: float
    resumed: dict[str, Any] | None
    compiles: bool
    reads_collection: bool = False
    interruption: Interruption = field(default_factory=Interruption)

    def resumed_in(self, phase: str) -> dict[str, Any] | None:
        """The checkpoint that the training goes on from, if it is of this phase."""
        return self.resumed if self.resumed and self.resumed["phase"] == phase else None

    def describe_end(self) -> str:
        """Say where Ctrl-C ended the training, and how it goes on."""
        after = self.interruption.after
        if not after:
            return (
                "train: Ctrl-C was pressed when the network had been trained, and the rest was "
                "completed: the model can be used and saved"
            )
        resume = ""
        if self.checkpoint is not None:
            resume = (
                f"; to go on, call train with the same arguments and resume="
                f"{str(self.checkpoint.path)!r}"
            )
        return f"train: ended early, after {after}: the model can be used and saved{resume}"


class NetworkFitMixin(RegistryMixin):
    """Fit of the network, and its refit."""

    def _runner(
        self,
        plan: TrainingPlan,
        data: ReferenceData,
        epochs: int,
        course: Course,
        results: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Runner:
        """Make the trainer of a phase, which is the refit if there are results to keep.

        The trainer refuses wrong arguments.
        """
        phase = "network" if results is None else "refit"
        resumed = course.resumed_in(phase)
        checkpoint, write = course.checkpoint, None
        if checkpoint is not None:

            def write(fit: dict[str, Any]) -> None:
                state = self.module.state_dict()
                checkpoint.write(phase=phase, module=state, results=results, fit=fit)

        fit = None if resumed is None else resumed["fit"]
        progress = course.progress
        show = ShowProgress(
            progress,
            phase,
            n_before=0 if results is None else progress.total - epochs * data.n_draws,
            batch_size=data.batch_size,
            compiled=course.compiles and results is None,
        )
        control = FitControl(course.interruption, write, course.minutes, fit)
        given = list(kwargs.pop("callbacks", None) or ())
        others = [callback for callback in given if not isinstance(callback, KeepBest)]
        best = [callback for callback in given if isinstance(callback, KeepBest)]
        runner = Runner(
            self,
            training_plan=plan,
            data_splitter=data,
            max_epochs=epochs,
            callbacks=[*others, show, control, *best],
            **kwargs,
        )
        if runner.trainer.world_size > 1 and (checkpoint or course.resumed):
            raise ValueError(
                "checkpoint_dir and resume are for training on one device: pass devices=1, or "
                "leave them out."
            )
        if runner.trainer.world_size > 1 and course.reads_collection:
            raise ValueError(
                "datamodule is for training on one device: pass devices=1, or train on a reference "
                "that anndata.experimental.read_lazy opened."
            )
        if fit is not None:
            prepare_fit(runner.trainer, fit)
        return runner

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

    def _refit(
        self,
        plan: TrainingPlan,
        data: ReferenceData,
        course: Course,
        linear: LinearFit | None,
        **kwargs: Any,
    ) -> None:
        """Go on with all cells; history and indices stay those of the training before."""
        resumed, interruption = course.resumed_in("refit"), course.interruption
        results = self._results(plan) if resumed is None else resumed["results"]
        if interruption.requested:
            interruption.after = "the network was trained, and before the refit on all cells"
            if course.checkpoint is not None:
                state = self.module.state_dict()
                course.checkpoint.write(phase="refit", module=state, results=results, fit=None)
            return
        names = ("history_", *_INDICES, "trainer")
        before = {name: getattr(self, name, None) for name in names}
        if isinstance(before["history_"], dict):
            # scvi-tools adds the rows of a further training to the dict itself.
            before["history_"] = dict(before["history_"])
        epochs = refit_epochs(results["n_epochs"])
        config = replace(plan.config, lr=_REFIT_LR * plan.config.lr)
        refit_plan = TrainingPlan(self.module, config, plan.batch_directions)
        data.join()
        options = {k: v for k, v in kwargs.items() if k not in VALIDATION_ARGUMENTS}
        options |= {"limit_val_batches": 0, "enable_progress_bar": False}
        self._run(self._runner(refit_plan, data, epochs, course, results, **options))
        if interruption.after:
            interruption.after += " of the refit"
        for name, value in before.items():
            setattr(self, name, value)
        if linear is not None and not interruption.after:
            course.progress.begin("linear branch")
            linear.refit()
            linear.write()
        self.refitted_ = True

    def _results(self, plan: TrainingPlan) -> dict[str, Any]:
        """What the training of the network left, besides weights, as plain values."""
        return to_plain(
            {
                "n_epochs": self.trainer.current_epoch,
                "history_": self.history_ if isinstance(self.history_, dict) else None,
                **{name: getattr(self, name) for name in _HELD_OUT},
                "random": random_state(plan.device),
                **{name: np.asarray(getattr(self, name)) for name in _INDICES},
            }
        )

    def _take(self, resumed: dict[str, Any]) -> None:
        """Take weights and attributes from a checkpoint."""
        module, state = self.module, resumed["module"]
        if module.linear is not None:
            # The number of components depends on the reference.
            module.linear.loadings = torch.zeros_like(state["linear.loadings"])
        module.load_state_dict(state)
        self.is_trained_ = resumed["before"]["is_trained_"]
        self.refitted_ = resumed["before"]["refitted_"]
        self.history_ = restore_history(resumed["before"]["history_"])
        results = resumed["results"]
        if results is not None:
            self.is_trained_ = True
            self.history_ = restore_history(results["history_"])
            for name in _HELD_OUT:
                # Checkpoints of before have no codes.
                held_out = results.get(name)
                setattr(self, name, None if held_out is None else held_out.numpy())
            for name in _INDICES:
                setattr(self, name, results[name].numpy())
            # The fit sets its own when it starts, if it had begun.
            set_random_state(results["random"], module.device)


def refit_epochs(n_epochs: int) -> int:
    """Number of epochs of the refit, after so many of the training."""
    return math.ceil(_REFIT_EPOCHS * n_epochs)
