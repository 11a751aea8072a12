"""Settings of the package, its log and its warnings."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm.std import tqdm

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        or belongs to a notebook.
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
        levels = ", ".join(f"{name!r} ({number})" for name, number in _LEVELS.items())
        number = _LEVELS.get(level.lower()) if isinstance(level, str) else level
        # The numbers of scanpy, 0 to 4, would say everything instead of nothing.
        if number is None or not logging.DEBUG <= number <= logging.CRITICAL:
            raise ValueError(f"verbosity must be one of {levels}, not {level!r}.")
        logger.setLevel(number)

    @property
    def progress_bar(self) -> bool:
        """Whether there are progress bars."""
        return self._progress_bar

    @progress_bar.setter
    def progress_bar(self, enabled: bool) -> None:
        from tosica._validate import Flag

        Flag().check("progress_bar", enabled)
        self._progress_bar = bool(enabled)

    @property
    def seed(self) -> int | None:
        """Seed of all random numbers: ``scvi.settings.seed``."""
        # Here, because its import takes seconds.
        from scvi import settings as scvi_settings

        return scvi_settings.seed  # type: ignore[no-any-return] # scvi-tools has no types

    @seed.setter
    def seed(self, seed: int | None) -> None:
        from scvi import settings as scvi_settings

        from tosica._validate import Integer

        Integer(least=0, optional=True).check("seed", seed)
        if seed is not None and seed >= 2**32:
            raise ValueError(f"seed must lie between 0 and 4294967295, not {seed}.")

        flags = os.environ.get("XLA_FLAGS")
        with quiet_libraries():
            scvi_settings.seed = seed
        # scvi-tools makes this variable longer each time, until no process can be started with it.
        if flags is not None:
            os.environ["XLA_FLAGS"] = flags

    @property
    def shows_progress(self) -> bool:
        """Whether there are bars: not if they are switched off or only warnings are logged."""
        return self._progress_bar and logger.level <= logging.INFO

    def __repr__(self) -> str:
        names = {number: name for name, number in _LEVELS.items()}
        level = names.get(self.verbosity, self.verbosity)
        return f"Settings(verbosity={level!r}, progress_bar={self._progress_bar})"


settings = Settings()


# --------------------------------------------------------------------------- log and warnings


# Names of the loggers that say warnings only, and whether there are warnings, in this thread: levels
# and filters of warnings are for the whole process.
_quiet_loggers: ContextVar[tuple[str, ...]] = ContextVar("quiet_loggers", default=())
_warns: ContextVar[bool] = ContextVar("warns", default=True)


def _is_said(record: logging.LogRecord) -> bool:
    """Whether a line is a warning, or its logger is not to be quiet."""
    is_quiet = record.name.startswith(_quiet_loggers.get())
    return record.levelno >= logging.WARNING or not is_quiet


class TosicaWarning(UserWarning):
    """A warning of this package, so that the command line can tell it from those of libraries."""


def warn_user(message: str | Warning) -> None:
    """Warn, with the line of the user's own code that called the package."""
    if not _warns.get():
        return
    # The caller of the outermost function of the package: libraries may have called others.
    stacklevel = 1
    depth = 0
    frame = inspect.currentframe()
    while frame is not None:
        depth += 1
        if frame.f_code.co_filename.startswith(_PACKAGE):
            stacklevel = depth + 1
        frame = frame.f_back
    warnings.warn(message, TosicaWarning, stacklevel=stacklevel)


@contextmanager
def only_warnings(*loggers: logging.Logger) -> Iterator[None]:
    """Leave out lines of the package's own loggers that are no warnings, in this thread."""
    earlier = _quiet_loggers.get()
    _quiet_loggers.set(earlier + tuple(talker.name for talker in loggers))
    try:
        yield
    finally:
        _quiet_loggers.set(earlier)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Leave out warnings of this package, in this thread."""
    earlier = _warns.get()
    _warns.set(False)
    try:
        yield
    finally:
        _warns.set(earlier)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Leave out what Lightning says that is no warning, unless the verbosity is "debug".

    Lightning names the devices that there are and are not, why a training ended, and other products
    of its makers. Its warnings are shown, but for one about its own code.
    """
    is_quiet = logger.getEffectiveLevel() > logging.DEBUG
    names = ("lightning", "lightning.pytorch", "lightning.fabric") if is_quiet else ()
    levels = {talker: talker.level for talker in map(logging.getLogger, names)}
    for talker in levels:
        talker.setLevel(max(logging.WARNING, talker.getEffectiveLevel()))
    try:
        with warnings.catch_warnings():
            # Lightning's copy of torch's pytree calls what newer torch deprecates.
            warnings.filterwarnings(
                "ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning
            )
            yield
    finally:
        for talker, level in levels.items():
            talker.setLevel(level)


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg] # has types only in stubs
    """Write lines to stderr, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except Exception:  # as every handler of logging does
            self.handleError(record)


for _logger in (logger, query_logger):
    _logger.addFilter(_is_said)
if not logger.handlers:
    logger.addHandler(_StderrHandler())
    # The root logger has no handler unless somebody asked for one, so that no line is said twice.
    logger.setLevel(logging.INFO)
