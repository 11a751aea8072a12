"""Show how far a long step has come, on stderr."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from tosica._settings import logger, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# Seconds without a bar; between two drawings of it; between two lines in the log of a job.
DELAY, INTERVAL, INTERVAL_LOG = 2.0, 0.2, 60.0
# One bar at a time: work inside of other work has none.
_shown = threading.Lock()


@dataclass
class Progress:
    """How far a step has come. A thread draws it, so that counting costs nothing.

    Parameters
    ----------
    total
        Number of ``unit``, or ``None`` if nothing is counted.
    text
        What is being done.
    unit
        What is counted, in the plural.
    """

    total: int | None
    text: str
    unit: str = "cells"
    n: int = 0
    _start: float = field(default_factory=time.time)
    _ended: threading.Event = field(default_factory=threading.Event)

    def update(self, n: int = 1) -> None:
        """Count what is done."""
        self.n += n

    def draw(self) -> None:
        """Draw until it has ended, from the third second on."""
        if self._ended.wait(DELAY if is_watched() else INTERVAL_LOG):
            return
        if not is_watched():
            while not self._ended.is_set():
                share = f": {self.n / max(self.total, 1):.0%}" if self.total is not None else ""
                clock = tqdm.format_interval(time.time() - self._start)
                logger.info("%s%s after %s", self.text, share, clock)
                self._ended.wait(INTERVAL_LOG)
            return
        layout = "{desc}{elapsed}" if self.total is None else None
        with tqdm(total=self.total, unit=f" {self.unit}", bar_format=layout, file=sys.stderr) as bar:
            bar.start_t = self._start
            is_last = False
            while not is_last:
                is_last = self._ended.wait(INTERVAL)
                bar.n = self.n
                bar.set_description(self.text)


@contextmanager
def progress(total: int | None, text: str, *, unit: str = "cells", enabled: bool = True) -> Iterator[Progress]:
    """Show a progress bar while a step takes longer than two seconds.

    In the log of a job, where stderr is neither a terminal nor that of a notebook, a line a minute
    is logged instead. ``tosica.settings`` switches both off.

    Parameters
    ----------
    total, text, unit
        As in :class:`Progress`. Without a total, the time that has passed is shown.
    enabled
        Whether there is a bar.

    Yields
    ------
    The step: ``update(n)`` counts, and ``text`` may be set when another part of it begins.
    """
    step = Progress(total, text, unit)
    if not (enabled and settings.shows_progress and _shown.acquire(blocking=False)):
        yield step
        return
    drawing = threading.Thread(target=step.draw, name="tosica-progress", daemon=True)
    drawing.start()
    try:
        yield step
    finally:
        step._ended.set()
        drawing.join()
        _shown.release()


def is_watched() -> bool:
    """Whether stderr is a terminal or belongs to a notebook, so that somebody may be looking."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    in_notebook = shell is not None and "IPKernelApp" in shell.config
    return in_notebook or bool(getattr(sys.stderr, "isatty", bool)())
