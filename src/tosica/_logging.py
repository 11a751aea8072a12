"""The package's logger: one line a step, on stderr, as scanpy and scvi-tools do."""

from __future__ import annotations

import inspect
import logging
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("tosica")


def format_thousands(number: int) -> str:
    """A number with its thousands set apart, as log lines and sentences show it: 2 310."""
    return f"{number:,}".replace(",", " ")


_PACKAGE = str(Path(__file__).parent)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, with the line of the user's own code that called the package."""
    # The caller of the outermost function of the package: libraries may have called others.
    frames = []
    frame = inspect.currentframe()
    while frame is not None:
        frames.append(frame.f_code.co_filename.startswith(_PACKAGE))
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=len(frames) - frames[::-1].index(True) + 1)


@contextmanager
def only_warnings() -> Iterator[None]:
    """Leave out lines that are no warnings, of steps that are repeated."""
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


class _WithoutQuery(logging.Filter):
    """Leaves out how a query was read, unless it is a warning."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or not str(record.msg).startswith("query: ")


@contextmanager
def without_query_lines() -> Iterator[None]:
    """Do not say again how a query is read, of cells that were annotated before."""
    hidden = _WithoutQuery()
    logger.addFilter(hidden)
    try:
        yield
    finally:
        logger.removeFilter(hidden)


# Lightning names the devices that there are and are not, why a training ended, and other products
# of its makers.
_TALKERS = ("lightning", "lightning.pytorch", "lightning.fabric")


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Leave out what Lightning says that is no warning, unless the verbosity is "debug".

    Afterwards its loggers are as before. Its warnings are shown, but for one about its own code.
    """
    talkers = [logging.getLogger(name) for name in _TALKERS]
    is_quiet = logger.getEffectiveLevel() > logging.DEBUG
    raised = [
        (talker, talker.level)
        for talker in talkers
        if is_quiet and talker.getEffectiveLevel() < logging.WARNING
    ]
    for talker, _ in raised:
        talker.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Lightning's copy of torch's pytree calls what newer torch deprecates.
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
            yield
    finally:
        for talker, level in raised:
            talker.setLevel(level)


def _configure() -> None:
    """Give the logger a handler of its own, once, so that users see what was kept and matched."""
    if logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # Left on, so that pytest's caplog and an application's own root handler see the lines too;
    # the root logger has no handler unless somebody asked for one.
    logger.propagate = True


_configure()
