"""Settings of the package: how much it says, and whether it draws progress bars."""

from __future__ import annotations

import logging
import os
from typing import Any

from tosica._logging import logger, quiet_libraries

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
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
                f"verbosity must be the name of a level, such as 'info', or its number in logging, "
                f"not {level!r:.60}."
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
        if not isinstance(shown, bool):
            raise TypeError(f"progress_bar must be True or False, not {shown!r:.60}.")
        self._progress_bar = shown

    @property
    def seed(self) -> int | None:
        """Seed of all random numbers: ``scvi.settings.seed``."""
        from scvi import settings as of_scvi

        return of_scvi.seed  # type: ignore[no-any-return] # scvi-tools has no types

    @seed.setter
    def seed(self, seed: int | None) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise TypeError(f"seed must be a whole number or None, not {seed!r:.60}.")
        if seed is not None and not 0 <= seed < 2**32:
            raise ValueError(f"seed must lie between 0 and 4294967295, not {seed}.")
        # Here, because its import takes seconds.
        from scvi import settings as of_scvi

        flags = os.environ.get("XLA_FLAGS")
        with quiet_libraries():
            of_scvi.seed = seed
        # scvi-tools makes this variable longer each time, until no process can be started with it.
        if flags is not None:
            os.environ["XLA_FLAGS"] = flags

    @property
    def shows_progress(self) -> bool:
        """Whether progress is shown: not if it is switched off or only warnings are logged."""
        return self._progress_bar and self.verbosity <= logging.INFO

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(type(self), name):
            raise AttributeError(
                f"tosica.settings has no {name!r}, only 'verbosity', 'progress_bar' and 'seed'."
            )
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        names = {number: name for name, number in _LEVELS.items()}
        level = names.get(self.verbosity, self.verbosity)
        return f"Settings(verbosity={level!r}, progress_bar={self._progress_bar})"


settings = Settings()
