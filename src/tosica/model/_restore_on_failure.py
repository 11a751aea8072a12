"""Restore a model if its training fails."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from tosica._logging import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tosica.model._registry_mixin import RegistryMixin


@contextmanager
def restore_on_failure(model: RegistryMixin) -> Iterator[None]:
    """Restore weights and attributes if the block raises, also on Ctrl-C.

    The weights are in memory twice meanwhile.
    """
    module, attributes = model.module, dict(model.__dict__)
    state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    if isinstance(model.history_, dict):
        # scvi-tools adds the rows of a further training to the dict itself.
        attributes["history_"] = dict(model.history_)
    in_training, device = module.training, next(module.parameters()).device
    try:
        yield
    except BaseException:
        with _interrupts_later():
            if module.linear is not None:
                # The number of components depends on the reference.
                module.linear.loadings = torch.zeros_like(state["linear.loadings"])
            # Lightning leaves the model of a GPU on the CPU.
            module.to(device)
            module.load_state_dict(state)
            module.train(in_training)
            model.__dict__.clear()
            model.__dict__.update(attributes)
        logger.warning("train: did not end, and the model is as it was before")
        raise


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Raise a further Ctrl-C at the end of the block, not in the midst of it."""
    handler = signal.getsignal(signal.SIGINT)
    # Python interrupts no other thread, and knows no handler that was not set by Python.
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived = []
    signal.signal(signal.SIGINT, lambda *_: arrived.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived and callable(handler):
            # Called here: a signal is handled a little later, and Python drops what it raises there
            # if that is in a destructor.
            handler(signal.SIGINT, None)
        elif arrived:
            signal.raise_signal(signal.SIGINT)
