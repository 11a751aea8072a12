"""Show how far a long step has come, on stderr."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

import scvi
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from tqdm.auto import tqdm

from tosica._settings import format_thousands, logger, settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

# Seconds without a bar; between two drawings of it; between two lines in the log of a job.
DELAY, INTERVAL, INTERVAL_LOG = 2.0, 0.2, 60.0
# One bar at a time: work inside of other work has none.
_shown = threading.Lock()


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

    def __init__(self, total: int | None, text: str, unit: str = "cells") -> None:
        self.total, self.text, self.unit = total, text, unit
        self.n = 0
        self._start = time.time()
        self._ended = threading.Event()

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
        with tqdm(
            total=self.total, unit=f" {self.unit}", bar_format=layout, file=sys.stderr
        ) as bar:
            bar.start_t = self._start
            is_last = False
            while not is_last:
                is_last = self._ended.wait(INTERVAL)
                bar.n = self.n
                bar.set_description(self.text)

    def end(self) -> None:
        """Draw no more."""
        self._ended.set()


@contextmanager
def progress(
    total: int | None, text: str, *, unit: str = "cells", enabled: bool = True
) -> Iterator[Progress]:
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
        step.end()
        drawing.join()
        _shown.release()


def is_watched() -> bool:
    """Whether stderr is a terminal or belongs to a notebook, so that somebody may be looking."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    in_notebook = shell is not None and "IPKernelApp" in shell.config
    return in_notebook or bool(getattr(sys.stderr, "isatty", bool)())


# ----------------------------------------------------------- goes when nobody calls it any more

Item = TypeVar("Item")

# Seconds between two drawings on a terminal, and between two lines where nobody is watching.
_INTERVAL, _INTERVAL_LOG = 0.1, 60.0
# Shorter work has no bar.
SECONDS_WITHOUT_BAR = 2.0
# Seconds between two drawings of a bar that counts nothing.
_TICK = 1.0
# Bars that count nothing are drawn by a thread of their own.
_drawing = threading.RLock()
# A line that is logged while a bar is shown takes its place.
_LOGGERS = ("tosica", "lightning.pytorch", "scvi")


class _ShownBars(threading.local):
    """Bars of a thread, the outermost first."""

    def __init__(self) -> None:
        self.bars: list[ProgressBar] = []


_shown_bars = _ShownBars()


class ProgressBar:
    """One line that says how far a work has come, as tqdm or rich draw it on stderr.

    ``scvi.settings.progress_bar_style`` chooses which of them. If stderr is neither a terminal nor
    that of a notebook, a line a minute is logged instead. There is neither inside of other work
    with a bar, nor if :class:`~tosica._settings.Settings` or ``scvi.settings.verbosity`` say so.

    Parameters
    ----------
    description
        What is being done.
    total
        Number of cells, or of what ``unit`` says. ``None`` if nothing is counted: then the bar
        shows the time that has passed, every second.
    enabled
        Whether there is a bar.
    delay
        Seconds until it is first drawn, so that short work has none.
    unit
        What is counted, in the plural.
    """

    def __init__(
        self,
        description: str,
        total: int | None = 0,
        *,
        enabled: bool = True,
        delay: float = 0.0,
        unit: str = "cells",
    ) -> None:
        self.description = self._title = description
        self.total = total
        self.n_done = 0
        is_quiet = logging.getLogger("scvi").getEffectiveLevel() > logging.INFO
        self.enabled = bool(enabled) and not is_quiet and settings.shows_progress
        self._unit = unit
        self._began = self._from = time.monotonic()
        self._next = self._from + (delay if is_watched() else _INTERVAL_LOG)
        self._at_start = 0
        self._detail = ""
        self._notes: list[str] = []
        self._ticker: _Ticker | None = None
        self._drawn: _Tqdm | _Rich | None = None
        self._filter = _HideWhileLogging(self)
        self._handlers: list[logging.Handler] = []

    def __enter__(self) -> Self:
        self.enabled = self.enabled and not any(bar.enabled for bar in _shown_bars.bars)
        if self.enabled:
            handlers = [h for name in _LOGGERS for h in logging.getLogger(name).handlers]
            self._handlers = list(dict.fromkeys(handlers))
            for handler in self._handlers:
                handler.addFilter(self._filter)
            if self.total is None and is_watched():
                self._ticker = _Ticker(self)
                self._ticker.start()
        _shown_bars.bars.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None
        # Generators that hold bars may be closed in any order.
        if self in _shown_bars.bars:
            _shown_bars.bars.remove(self)
        for handler in self._handlers:
            handler.removeFilter(self._filter)
        if self._drawn is not None:
            if error is None:
                self.description = self._title
                self._detail = f"took {self.clock}"
                self._draw()
            self._drawn.close()
            self._drawn = None

    def __getstate__(self) -> dict[str, Any]:
        # Another process has a line of its own, which it draws when it comes to it.
        return self.__dict__ | {"_drawn": None, "_handlers": [], "_ticker": None}

    def restart(self, description: str) -> None:
        """Begin another part of the work; speed is measured from here on."""
        self.description, self._detail = description, ""
        self._from, self._at_start = time.monotonic(), self.n_done
        # Also right after another drawing: it may be long before the next one.
        if self.enabled and (self._drawn is not None or self._from >= self._next):
            self._draw()

    def advance(self, n_cells: int, *, seconds_after: float = 0.0) -> None:
        """Count cells that are done, of which many calls draw nothing.

        Parameters
        ----------
        n_cells
            Number of these cells.
        seconds_after
            What other work is expected to take after the last cell.
        """
        self.n_done += n_cells
        now = time.monotonic()
        if not self.enabled or now < self._next:
            return
        rate = (self.n_done - self._at_start) / max(now - self._from, 1e-9)
        left = max((self.total or 0) - self.n_done, 0) / max(rate, 1e-9) + seconds_after
        speed = f"{format_thousands(round(rate))} {self._unit}/s, " if rate >= 1 else ""
        self._detail = f"{speed}{_clock(left)} left"
        self._draw()

    @contextmanager
    def noted(self, text: str) -> Iterator[None]:
        """Say how far a part has come whose cells are not counted."""
        self._notes.append(text)
        try:
            self.tick()
            yield
        finally:
            self._notes.pop()

    def tick(self) -> None:
        """Show the time that has passed, if it is time to draw."""
        now = time.monotonic()
        if self.enabled and now >= self._next:
            self._detail = ", ".join([*self._notes, _clock(now - self._from)])
            self._draw()

    def hide(self) -> None:
        """Take the bar away until it is drawn again."""
        with _drawing:
            if self._drawn is not None:
                self._drawn.hide()

    def _draw(self) -> None:
        if not is_watched():
            if self._drawn is None:
                logger.info("%s", self.line)
            self._next = time.monotonic() + _INTERVAL_LOG
            return
        with _drawing:
            if self._drawn is None:
                self._drawn = (_Rich if scvi.settings.progress_bar_style == "rich" else _Tqdm)()
            self._drawn.draw(self)
        self._next = time.monotonic() + _INTERVAL

    @property
    def detail(self) -> str:
        """Speed and time left, as they were last computed."""
        return self._detail

    @property
    def clock(self) -> str:
        """Time since it was made, such as 02:05."""
        return _clock(time.monotonic() - self._began)

    @property
    def line(self) -> str:
        """All of it in one line, for a log."""
        share = ""
        if self.total is not None:
            share = f" {100 * min(self.n_done / max(self.total, 1), 1):.0f} %"
        detail = f", {self._detail}" if share and self._detail else f" {self._detail}"
        return f"{self.description}:{share}{detail}".rstrip(": ")


def track(
    items: Iterable[Item], description: str, *, total: int, unit: str, enabled: bool = True
) -> Iterator[Item]:
    """Go through items with a progress bar, if it takes longer than two seconds."""
    with ProgressBar(
        description, total, enabled=enabled, delay=SECONDS_WITHOUT_BAR, unit=unit
    ) as bar:
        for item in items:
            yield item
            bar.advance(1)


@contextmanager
def noted(text: str) -> Iterator[None]:
    """Say in the bar that this thread shows, if it shows one, what is being done.

    One note inside of another stands behind it.
    """
    bar = next((bar for bar in _shown_bars.bars if bar.enabled), None)
    if bar is None:
        yield
        return
    with bar.noted(text):
        yield


class _Ticker(threading.Thread):
    """Draws a bar every second, while its own thread is busy with something that says nothing."""

    def __init__(self, bar: ProgressBar) -> None:
        super().__init__(name="tosica-progress", daemon=True)
        self._bar = bar
        self._ended = threading.Event()

    def run(self) -> None:
        """Draw until it is over."""
        while not self._ended.wait(_TICK):
            self._bar.tick()

    def stop(self) -> None:
        """Draw no more."""
        self._ended.set()
        self.join()


class _Tqdm:
    """Drawn by tqdm, in a notebook as a widget."""

    def __init__(self) -> None:
        self._bar: Any = None

    def draw(self, bar: ProgressBar) -> None:
        share = "" if bar.total is None else "{percentage:3.0f}%|{bar}| "
        text = f"{bar.description}: {share}{bar.detail}"
        total = max(bar.total or 0, 1)
        n_done = min(bar.n_done, total)
        if self._bar is None:
            self._bar = tqdm(
                total=total, initial=n_done, bar_format=text, file=sys.stderr, dynamic_ncols=True
            )
            return
        self._bar.total, self._bar.n, self._bar.bar_format = total, n_done, text
        self._bar.refresh()

    def hide(self) -> None:
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _Rich:
    """Drawn by rich, without a thread of its own."""

    def __init__(self) -> None:
        self._progress: RichProgress | None = None

    def draw(self, bar: ProgressBar) -> None:
        if self._progress is None:
            counted = (TextColumn("{task.percentage:>3.0f}%"), BarColumn())
            self._progress = RichProgress(
                TextColumn("{task.description}:"),
                *(() if bar.total is None else counted),
                TextColumn("{task.fields[detail]}"),
                console=Console(file=sys.stderr),
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._progress.add_task(
                bar.description, total=max(bar.total or 0, 1), detail=bar.detail
            )
            self._progress.start()
        self._progress.update(
            self._progress.task_ids[0],
            description=bar.description,
            total=max(bar.total or 0, 1),
            completed=bar.n_done,
            detail=bar.detail,
        )
        self._progress.refresh()

    def hide(self) -> None:
        if self._progress is not None:
            self._progress.live.transient = True
            self._progress.stop()
            self._progress = None

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


class _HideWhileLogging(logging.Filter):
    """Takes the bar away before a line is logged."""

    def __init__(self, bar: ProgressBar) -> None:
        super().__init__()
        self._bar = bar

    def filter(self, record: logging.LogRecord) -> bool:
        self._bar.hide()
        return True


def _clock(seconds: float) -> str:
    """A duration as tqdm writes it: 02:05, or 1:02:05."""
    return str(tqdm.format_interval(seconds))
