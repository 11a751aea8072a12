"""The package's logger: one line a step, on stderr, as scanpy and scvi-tools do."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("tosica")


def format_thousands(number: int) -> str:
    """A number with its thousands set apart, as log lines and sentences show it: 2 310."""
    return f"{number:,}".replace(",", " ")


@contextmanager
def only_warnings() -> Iterator[None]:
    """Leave out lines that are no warnings, of steps that are repeated."""
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


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
