"""What a command says, to whom, and what libraries are kept from saying meanwhile."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import warnings
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType, TracebackType

_LIBRARIES = ("lightning", "lightning.fabric", "lightning.pytorch", "scvi", "distributed")


@dataclass
class Session:
    """One run of a command.

    Results are printed to stdout. All else goes to stderr: warnings and errors always, progress if
    stderr is a terminal, so that the logs of a pipeline have one line where something went wrong.

    Parameters
    ----------
    quiet
        Show errors only.
    verbose
        Log each step where stderr is no terminal, too.
    debug
        Show the traceback of an error.
    as_json
        Print the result as JSON.
    """

    quiet: bool = False
    verbose: bool = False
    debug: bool = False
    as_json: bool = False
    advice: str = ""
    """What to do if the command is stopped from now on, as the end of a sentence."""
    hidden: tuple[str, ...] = ()
    """Beginnings of log lines that say to callers in Python what the command says otherwise."""
    stdout: IO[str] | None = None
    """Where results go; what libraries print is dropped."""
    _exits: ExitStack = field(default_factory=ExitStack)

    @property
    def is_watched(self) -> bool:
        """Whether progress is shown."""
        return not self.quiet and sys.stderr.isatty()

    # ------------------------------------------------------------------------ what is said

    def note(self, text: str) -> None:
        """Say how the work went on, if somebody listens."""
        if self.is_watched or (self.verbose and not self.quiet):
            click.echo(text, err=True)

    def warn(self, text: str) -> None:
        """Say in one line what may be wrong."""
        if not self.quiet:
            click.echo(f"tosica: warning: {' '.join(text.split())}", err=True)

    def show(self, result: dict[str, Any], text: str | None = None) -> None:
        """Print a result: with ``--json`` as JSON, else as text, if there is any."""
        if self.as_json:
            text = json.dumps(_plain(result), indent=2, ensure_ascii=False)
        if text is not None:
            click.echo(text, file=self.stdout)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Show on a terminal that something is going on whose end is not known."""
        if not self.is_watched:
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(text):
            yield

    # ------------------------------------------------------------------------ libraries

    def load(self, *modules: str) -> ModuleType:
        """Import tosica and modules that take seconds to import, and keep the libraries silent."""
        with self.busy("loading …"):
            for name in modules:
                import_module(name)
        for name in _LIBRARIES:
            library = logging.getLogger(name)
            self._exits.callback(library.setLevel, library.level)
            # The progress bar is drawn where scvi-tools would log.
            library.setLevel(logging.ERROR if self.quiet or name != "scvi" else logging.INFO)
        if "scvi" in sys.modules:
            settings = sys.modules["scvi"].settings
            self._exits.callback(
                setattr, settings, "progress_bar_style", settings.progress_bar_style
            )
            settings.progress_bar_style = "rich"
        return import_module("tosica")

    def __enter__(self) -> Self:
        self.stdout = sys.stdout
        nowhere = self._exits.enter_context(open(os.devnull, "w", encoding="utf-8"))
        self._exits.enter_context(redirect_stdout(nowhere))
        self._exits.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always")
        warned: set[str] = set()

        def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
            text = str(message)
            if text not in warned and _is_from_tosica():
                warned.add(text)
                self.warn(text)

        warnings.showwarning = show_warning
        logger = logging.getLogger("tosica")
        self._exits.callback(setattr, logger, "handlers", logger.handlers)
        logger.handlers = [_Lines(self)]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exits.close()


class _Lines(logging.Handler):
    """What tosica logs, as a command says it."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def emit(self, record: logging.LogRecord) -> None:
        session, text = self._session, record.getMessage()
        if not text.startswith(session.hidden):
            (session.warn if record.levelno >= logging.WARNING else session.note)(text)


def _is_from_tosica() -> bool:
    """Whether a module of tosica called ``warnings.warn``, of which this is called."""
    frame = sys._getframe(1)
    inside = (__name__, "warnings")
    while frame.f_back is not None and frame.f_globals.get("__name__") in inside:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "tosica"


def _plain(value: Any) -> Any:
    """What JSON knows: numpy's numbers become Python's, and NaN becomes null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | None) else str(value)
