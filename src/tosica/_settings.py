"""Settings of the package, its log, warnings and progress bars, and numbers and names in sentences."""

from __future__ import annotations

import inspect
import logging
import math
import os
import sys
import threading
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm.std import tqdm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

logger = logging.getLogger("tosica")
# How a query is read: left out where cells are read a second time.
query_logger = logging.getLogger("tosica.query")

_PACKAGE = str(Path(__file__).parent)
_LEVELS = {
    name.lower(): getattr(logging, name)
    for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
}


class Settings:
    """How much tosica says while it works, all of it on stderr.

    ``tosica.settings`` is the only one. A setting holds until it is changed or Python ends.

    ``verbosity``
        What is logged, as a level of :mod:`logging` or its name. ``"info"``, the default, is a line
        or two a step, and a progress bar for steps that take longer than two seconds. At
        ``"warning"`` there are warnings only, and no bars. ``"debug"`` also shows what Lightning
        says of a training.
    ``progress_bar``
        Whether there are progress bars, ``True`` by default. They are drawn if stderr is a terminal
        or belongs to a notebook. Where it is a file, work of more than a minute logs a line a
        minute instead.
    ``seed``
        Seed of all random numbers, ``None`` by default: that of ``scvi.settings.seed``, set without
        a line about it. With a seed, a training gives the same weights again.

    Examples
    --------
    >>> import tosica
    >>> tosica.settings.verbosity = "warning"
    >>> tosica.settings.verbosity
    30
    >>> tosica.settings.verbosity = "info"
    >>> tosica.settings
    Settings(verbosity='info', progress_bar=True)
    """

    __slots__ = ("_progress_bar",)

    def __init__(self) -> None:
        self._progress_bar = True

    @property
    def verbosity(self) -> int:
        """Level of the log: 10 (debug), 20 (info), 30 (warning), 40 (error) or 50 (critical)."""
        return logger.level

    @verbosity.setter
    def verbosity(self, level: int | str) -> None:
        if isinstance(level, bool) or not isinstance(level, int | str):
            raise TypeError(
                f"verbosity must be the name of a level, such as 'info', or its number, not {level!r:.60}."
            )
        known = ", ".join(f"{name!r} ({number})" for name, number in _LEVELS.items())
        number = _LEVELS.get(level.lower()) if isinstance(level, str) else level
        # The numbers of scanpy, 0 to 4, would say everything instead of nothing.
        if number is None or not logging.DEBUG <= number <= logging.CRITICAL:
            raise ValueError(f"verbosity must be one of {known}, not {level!r}.")
        logger.setLevel(number)

    @property
    def progress_bar(self) -> bool:
        """Whether there are progress bars."""
        return self._progress_bar

    @progress_bar.setter
    def progress_bar(self, shown: bool) -> None:
        from tosica._checks import Flag

        Flag().check("progress_bar", shown)
        self._progress_bar = bool(shown)

    @property
    def seed(self) -> int | None:
        """Seed of all random numbers: ``scvi.settings.seed``."""
        # Here, because its import takes seconds.
        from scvi import settings as of_scvi

        return of_scvi.seed  # type: ignore[no-any-return] # scvi-tools has no types

    @seed.setter
    def seed(self, seed: int | None) -> None:
        from scvi import settings as of_scvi

        from tosica._checks import Integer

        Integer(least=0, optional=True).check("seed", seed)
        if seed is not None and seed >= 2**32:
            raise ValueError(f"seed must lie between 0 and 4294967295, not {seed}.")

        flags = os.environ.get("XLA_FLAGS")
        with quiet_libraries():
            of_scvi.seed = seed
        # scvi-tools makes this variable longer each time, until no process can be started with it.
        if flags is not None:
            os.environ["XLA_FLAGS"] = flags

    @property
    def shows_progress(self) -> bool:
        """Whether progress is shown: not if it is switched off or only warnings are logged."""
        return self._progress_bar and logger.level <= logging.INFO

    def __repr__(self) -> str:
        names = {number: name for name, number in _LEVELS.items()}
        level = names.get(self.verbosity, self.verbosity)
        return f"Settings(verbosity={level!r}, progress_bar={self._progress_bar})"


settings = Settings()


# --------------------------------------------------------------------------- what is said


def format_thousands(number: int) -> str:
    """Set the thousands of a number apart, as in 2 310."""
    return f"{number:,}".replace(",", " ")


def count(n: int, noun: str = "") -> str:
    """Write a number with thin spaces between thousands, and its noun."""
    return f"{int(n):,}".replace(",", "\u202f") + (
        f" {noun}{'' if n == 1 else 's'}" if noun else ""
    )


def percent(share: float) -> str:
    """Write a share; a small one is not rounded to nothing."""
    if not math.isfinite(share):
        return "–"
    if share == 0:
        return "0\u00a0%"
    if 0 < share < 0.001:
        return "< 0.1\u00a0%"
    written = f"{100 * share:.{0 if share >= 0.0995 else 1}f}".removesuffix(".0")
    return f"{written}\u00a0%"


def decimal(value: float, digits: int = 2) -> str:
    """Write a number with a minus sign instead of a hyphen."""
    return f"{value:.{digits}f}".replace("-", "−") if math.isfinite(value) else "–"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Put names into a sentence; of many, count the rest."""
    *shown, last = names[:most]
    rest = len(names) - most
    if rest > 0:
        return f"{', '.join([*shown, last])} and {rest} more"
    return f"{', '.join(shown)} and {last}" if shown else last


class TosicaWarning(UserWarning):
    """A warning of this package, so that the command line can tell it from those of libraries."""


def warn_user(message: str | Warning) -> None:
    """Warn, with the line of the user's own code that called the package."""
    # The caller of the outermost function of the package: libraries may have called others.
    frames = []
    frame = inspect.currentframe()
    while frame is not None:
        frames.append(frame.f_code.co_filename.startswith(_PACKAGE))
        frame = frame.f_back
    warnings.warn(
        message, TosicaWarning, stacklevel=len(frames) - frames[::-1].index(True) + 1
    )


@contextmanager
def only_warnings(*loggers: logging.Logger) -> Iterator[None]:
    """Leave out lines that are no warnings."""
    before = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(max(logging.WARNING, one.getEffectiveLevel()))
    try:
        yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Leave out what Lightning says that is no warning, unless the verbosity is "debug".

    Lightning names the devices that there are and are not, why a training ended, and other products
    of its makers. Its warnings are shown, but for one about its own code.
    """
    is_quiet = logger.getEffectiveLevel() > logging.DEBUG
    names = ("lightning", "lightning.pytorch", "lightning.fabric") if is_quiet else ()
    with warnings.catch_warnings(), only_warnings(*map(logging.getLogger, names)):
        # Lightning's copy of torch's pytree calls what newer torch deprecates.
        warnings.filterwarnings(
            "ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning
        )
        yield


class _Lines(logging.StreamHandler):  # type: ignore[type-arg] # has types only in stubs
    """Write lines to stderr, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except Exception:  # as every handler of logging does
            self.handleError(record)


if not logger.handlers:
    logger.addHandler(_Lines())
    # The root logger has no handler unless somebody asked for one, so that no line is said twice.
    logger.setLevel(logging.INFO)


# --------------------------------------------------------------------------- how far a step has come

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

    def draw(self) -> None:
        """Draw until it has ended, from the third second on."""
        if self._ended.wait(DELAY if is_watched() else INTERVAL_LOG):
            return
        if not is_watched():
            while not self._ended.is_set():
                share = (
                    f": {self.n / max(self.total, 1):.0%}"
                    if self.total is not None
                    else ""
                )
                clock = tqdm.format_interval(time.time() - self._start)
                logger.info("%s%s after %s", self.text, share, clock)
                self._ended.wait(INTERVAL_LOG)
            return
        # In a notebook it draws widgets.
        from tqdm.auto import tqdm as auto

        layout = "{desc}{elapsed}" if self.total is None else None
        with auto(
            total=self.total, unit=f" {self.unit}", bar_format=layout, file=sys.stderr
        ) as bar:
            bar.start_t = self._start
            is_last = False
            while not is_last:
                is_last = self._ended.wait(INTERVAL)
                bar.n = self.n
                bar.set_description(self.text)


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
    The step: its ``n`` counts what is done, and ``text`` may be set when another part of it begins.
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
