"""Let SIGTERM do what Ctrl-C does, so that a pipeline ends a command as a person would."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# What schedulers and terminals send. Not all systems have all of them.
_SIGNALS = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")


class Stop:
    """Which signal ended a command; ``name`` is empty if none did."""

    def __init__(self) -> None:
        self.name = ""


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """Raise ``KeyboardInterrupt`` for signals that would end the process without a word.

    A training takes note of Ctrl-C and ends between two steps, and so it does for these signals. A
    signal that is ignored, as ``nohup`` has it, stays so. Python has signals in the main thread
    only; in others the context does nothing.
    """
    stop = Stop()

    def end(number: int, frame: Any) -> None:
        stop.name = signal.Signals(number).name
        # Shells start background jobs with Ctrl-C ignored.
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):
            raise KeyboardInterrupt
        interrupt(number, frame)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
