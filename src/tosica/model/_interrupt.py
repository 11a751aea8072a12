"""Trainings that Ctrl-C or an error ends: stop after a step, or leave the model as it was."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING

from tosica._settings import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning.pytorch import Trainer

    from tosica.model._setup import SetupMixin


@contextmanager
def catch_interrupt(trainer: Trainer) -> Iterator[list[int]]:
    """End a fit after its current step on the first Ctrl-C, and raise on the second.

    Only in the main thread and in one process, and unless Ctrl-C does something else already.

    Yields
    ------
    A list that holds the signal once Ctrl-C was pressed.
    """
    signals: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()

    def end_after_step(number: int, *_: object) -> None:
        signals.append(number)
        trainer.should_stop = True
        signal.signal(signal.SIGINT, handler)

    if (
        in_main_thread
        and trainer.world_size == 1
        and handler is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, end_after_step)
    try:
        yield signals
    except SystemExit as error:
        # Lightning turns KeyboardInterrupt into the end of the process.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    finally:
        # Lightning also leaves Ctrl-C ignored.
        if in_main_thread and handler is not None:
            signal.signal(signal.SIGINT, handler)


@contextmanager
def restore_on_failure(model: SetupMixin) -> Iterator[None]:
    """Restore weights and attributes if the block raises, also on Ctrl-C.

    The weights are in memory twice meanwhile.
    """
    module = model.module
    module_copy = deepcopy(module)
    attributes = dict(vars(model))
    if isinstance(model.history_, dict):
        # scvi-tools adds the rows of a further training to the dict itself.
        attributes["history_"] = dict(model.history_)
    try:
        yield
    except BaseException:
        # Lightning leaves the model of a GPU on the CPU.
        module.to(module_copy.device).load_state_dict(module_copy.state_dict())
        module.train(module_copy.training)
        model.__dict__.clear()
        model.__dict__.update(attributes)
        logger.info("train: did not end, and the model is as it was before")
        raise
