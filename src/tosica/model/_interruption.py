"""Take note of the first Ctrl-C, so that a training can be ended between two steps."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Interruption:
    """Whether Ctrl-C was pressed, and after which step it ended the training of the network.

    ``after`` is a text such as ``"step 12 of 40, in epoch 2 of 5"``. It is empty if the network was
    not being trained.
    """

    def __init__(self) -> None:
        self.requested = False
        self.after = ""

    @contextmanager
    def noted(self, *, enabled: bool = True) -> Iterator[None]:
        """Take note of the first Ctrl-C inside the context, and let the second one raise.

        Python has signals in the main thread only. In others, and where Ctrl-C does something else
        already, the context does nothing.

        Parameters
        ----------
        enabled
            Whether it does anything.
        """
        before = signal.getsignal(signal.SIGINT)
        in_main_thread = threading.current_thread() is threading.main_thread()
        if not enabled or not in_main_thread or before is not signal.default_int_handler:
            yield
            return

        def note(*_: object) -> None:
            self.requested = True
            signal.signal(signal.SIGINT, before)

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
