"""Commands: common options, results on stdout, messages on stderr, one line for an error."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import click

from tosica._settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_LIBRARIES = ("lightning", "lightning.fabric", "lightning.pytorch", "scvi", "distributed")
# Read by OpenMP, MKL, OpenBLAS and numba when they are first imported.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
# What tosica raises with a sentence for its users.
_EXPECTED = (
    *(ValueError, KeyError, TypeError, OSError, RuntimeError, ImportError, MemoryError),
    NotImplementedError,
)


class Command(click.Command):
    """A command that exits with 1 and one line on stderr if the data do not allow it.

    ``context.obj`` is its :class:`Session`. Wrong usage is reported by click, which exits with 2.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON."),
            click.Option(["-q", "--quiet"], is_flag=True, help="Show errors only."),
            click.Option(
                ["-v", "--verbose"],
                is_flag=True,
                help="Log each step, also where stderr is no terminal.",
            ),
            click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        common = ("quiet", "verbose", "debug", "as_json")
        session = ctx.obj = Session(**{name: ctx.params.pop(name) for name in common})
        with _sigterm_as_interrupt(), session:
            try:
                return super().invoke(ctx)
            except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
                raise
            except KeyboardInterrupt:
                click.echo(f"tosica: error: stopped{session.advice}.", err=True)
            except Exception as error:
                if session.debug:
                    traceback.print_exc()
                click.echo(f"tosica: error: {_sentence(error, self)}", err=True)
        # Pipelines take 130, the shell's code of Ctrl-C, for a reason to try again.
        return ctx.exit(1)


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

    def __init__(self, *, quiet: bool, verbose: bool, debug: bool, as_json: bool) -> None:
        self.quiet, self.debug, self.as_json = quiet, debug, as_json
        self.advice = ""
        """What to do if the command is stopped from now on, as the end of a sentence."""
        self.is_watched = not quiet and sys.stderr.isatty()
        self.shows_steps = self.is_watched or (verbose and not quiet)
        self.stdout = sys.stdout
        self._exits = ExitStack()

    def note(self, text: str) -> None:
        """Say how the work went on, if somebody listens."""
        if self.shows_steps:
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

    def load(self, *modules: str) -> ModuleType:
        """Import tosica and modules that take seconds to import, and keep the libraries silent."""
        with self.busy("loading …"):
            for name in modules:
                import_module(name)
        for name in _LIBRARIES:
            library = logging.getLogger(name)
            self._exits.callback(library.setLevel, library.level)
            library.setLevel(logging.ERROR)
        return import_module("tosica")

    def __enter__(self) -> Self:
        enter = self._exits.enter_context
        # What libraries print is no result.
        enter(redirect_stdout(io.StringIO()))
        enter(warnings.catch_warnings())
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
        for name, value in {
            "verbosity": logging.ERROR if self.quiet else logging.INFO,
            "progress_bar": self.shows_steps,
        }.items():
            self._exits.callback(setattr, settings, name, getattr(settings, name))
            setattr(settings, name, value)
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()


class _Lines(logging.Handler):
    """Show what tosica logs as the lines of a command."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def emit(self, record: logging.LogRecord) -> None:
        show = self._session.warn if record.levelno >= logging.WARNING else self._session.note
        show(record.getMessage())


def _is_from_tosica() -> bool:
    """Whether a module of tosica called ``warnings.warn``, which calls this."""
    frame = sys._getframe(1)
    inside = (__name__, "warnings")
    while frame.f_back is not None and frame.f_globals.get("__name__") in inside:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "tosica"


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does: schedulers stop a command with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # as in a background job of a shell
            raise KeyboardInterrupt
        handler(number, frame)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _plain(value: Any) -> Any:
    """Turn numpy's numbers into Python's, and NaN into null, which JSON knows."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | None) else str(value)


# --------------------------------------------------------------------------- errors


def _sentence(error: Exception, command: click.Command) -> str:
    """Say in one line what went wrong; arguments of Python become options of the command."""
    if isinstance(error, OSError) and error.strerror:
        of = f": {str(error.filename)!r}" if error.filename is not None else ""
        return f"{error.strerror}{of}"
    # str() of a KeyError has quotes around it.
    first = error.args[0] if isinstance(error, KeyError) and error.args else error
    text = " ".join(str(first).split())
    # A sentence has several words, and the key that a dict lacks has one as a rule.
    if isinstance(error, _EXPECTED) and " " in text:
        return _as_options(text, command)
    return f"{type(error).__name__}: {text:.600}; this was not expected: --debug shows where."


def _as_options(text: str, command: click.Command) -> str:
    """Write arguments of Python as options: ``overwrite=True`` is ``--overwrite``."""
    text = re.sub(r"model\.annotate\([^()]*\)", "tosica annotate", text)
    options = {
        str(parameter.name): max(parameter.opts, key=len)
        for parameter in command.params
        if max(parameter.opts, key=len).startswith("--")
    }
    if "seurat" in options:
        text = re.sub(r"read its file with tosica\.io\.read_seurat", "pass --seurat", text)
    if "device" in options:
        options["accelerator"] = options["device"]
    for name, option in options.items():
        text = re.sub(rf"\b{name}=True\b", option, text)
        text = re.sub(rf"\b{name}=('[^']*'|[\w.+-]*[\w+-])", rf"{option} \1", text)
    return text


# --------------------------------------------------------------------------- options


def _set_threads(_: click.Context, __: click.Parameter, value: int | None) -> None:
    if value is None:
        return
    for name in _THREADS:
        os.environ[name] = str(value)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(value)


threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    callback=_set_threads,
    expose_value=False,
    help="Number of threads.  [default: one a core]",
)
seurat_option = click.option("--seurat", is_flag=True, help="Repair an .h5ad that was converted from a Seurat object.")
seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Random seed."
)
organism_option = click.option(
    "--organism",
    type=click.Choice(["auto", "human", "mouse"]),
    default="auto",
    show_default=True,
    help="Organism of the reference.",
)


class _Device(click.ParamType):
    """A device as torch names it, to be passed on as ``accelerator`` and number."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int | str]:
        """Split ``"cuda:1"`` into ``("gpu", 1)``; without a number it is "auto"."""
        if isinstance(value, tuple):
            return value
        kind, colon, number = str(value).partition(":")
        known = {"auto": "auto", "cpu": "cpu", "gpu": "gpu", "cuda": "gpu", "mps": "mps"}
        numbered = kind in ("gpu", "cuda") and number.isdecimal()
        if kind not in known or (colon and not numbered):
            self.fail(f"{value!r} is none of auto, cpu, gpu, gpu:1, cuda:1, mps.", param, ctx)
        return known[kind], int(number) if colon else "auto"


device_option = click.option(
    "--device",
    type=_Device(),
    default="auto",
    show_default=True,
    help="Where to compute: auto, cpu, gpu, cuda:1, mps.",
)
