"""What commands share: their options, results on stdout, and one line on stderr for an error."""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import re
import signal
import sys
import traceback
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from tosica._limits import LIMITS
from tosica._progress import progress
from tosica._settings import TosicaWarning, logger, settings
from tosica._text import listed, parameters_as_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

_LIBRARIES = (
    "lightning",
    "lightning.fabric",
    "lightning.pytorch",
    "scvi",
    "distributed",
)
# Read by OpenMP, MKL, OpenBLAS and numba when they are first imported.
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# What tosica raises with a sentence for its users.
_EXPECTED = (
    ValueError,
    KeyError,
    TypeError,
    OSError,
    RuntimeError,
    ImportError,
    MemoryError,
)


@dataclass
class Session:
    """One run of a command, as ``context.obj``."""

    as_json: bool
    """Whether the result is printed as JSON."""
    quiet: bool = False
    """Whether only errors are shown."""
    advice: str = ""
    """What to do if the command is stopped from now on, as the end of a sentence."""
    written: list[Path] = field(default_factory=list)
    """Outputs that are whole."""
    conclusion: str = ""
    """Last line on stderr, after the warnings."""

    def show(self, result: dict[str, Any], text: str | None = None) -> None:
        """Print a result on stdout: with ``--json`` as JSON, else as text, if there is any."""
        if self.as_json:
            text = json.dumps(_plain(result), indent=2, ensure_ascii=False)
        if text is not None:
            click.echo(text)

    def conclude(self, work: str, ending: str = "") -> None:
        """Note what was done and written, for the last line on stderr."""
        if self.written:
            paths = listed([str(path) for path in self.written])
            self.conclusion = f"tosica: {work}, and wrote {paths}{ending}"

    def end(self) -> None:
        """Say on stderr, also where that is the log of a pipeline, what was done and written."""
        if self.conclusion and not self.quiet:
            click.echo(self.conclusion, err=True)


# Options that every command has.
_COMMON_OPTIONS = (
    (("--json", "as_json"), "Print the result as JSON."),
    (("-q", "--quiet"), "Show errors only."),
    (("-v", "--verbose"), "Log each step, also where stderr is no terminal."),
    (("--debug",), "Show the traceback of an error."),
)


class Command(click.Command):
    """A command that exits with 1 and one line on stderr if the data do not allow it.

    Progress and log lines are shown if stderr is a terminal, warnings and errors always. Wrong usage is
    an error of click, which exits with 2.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for names, text in _COMMON_OPTIONS:
            self.params.append(click.Option(names, is_flag=True, help=text))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        as_json = ctx.params.pop("as_json")
        quiet = ctx.params.pop("quiet")
        verbose = ctx.params.pop("verbose")
        debug = ctx.params.pop("debug")
        session = ctx.obj = Session(as_json, quiet)
        verbosity = logging.WARNING
        if quiet:
            verbosity = logging.ERROR
        elif verbose or sys.stderr.isatty():
            verbosity = logging.INFO
        try:
            with _log(verbosity), parameters_as_options(_options(self)):
                result = super().invoke(ctx)
            session.end()
            return result
        except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            click.echo(f"tosica: error: stopped{session.advice}.", err=True)
            session.conclude("was stopped")
            session.end()
        except Exception as error:
            if debug:
                traceback.print_exc()
            click.echo(f"tosica: error: {_sentence(error)}", err=True)
            session.conclude("ended early")
            session.end()
        # Pipelines take 130, the shell's code of Ctrl-C, for a reason to try again.
        return ctx.exit(1)


def _options(command: click.Command) -> dict[str, str]:
    """Option of each parameter of Python, and command of each function that sentences name."""
    options = {
        "model.annotate": "tosica annotate",
        "model.train": "tosica train",
        "TOSICA.for_query": "tosica train --for",
        "tosica.report": "tosica report",
        "tosica.tl.attribute": "tosica report --model",
        "tosica.tl.novelty": "tosica novelty",
        # Options of report, which the page of annotate names.
        "labels_key": "--labels-key",
        "sample_key": "--sample-key",
    }
    for param in command.params:
        if isinstance(param, click.Option):
            options[str(param.name)] = max(param.opts, key=len)
    if "device" in options:
        options["accelerator"] = options["device"]
    if "seurat" in options:
        options["tosica.io.read_seurat"] = options["seurat"]
    if "min_genes" in options:
        options["sc.pp.filter_cells"] = f"--min-genes {LIMITS.genes_of_cell}"
    return options


# --------------------------------------------------------------------------- log


class _LineFormatter(logging.Formatter):
    """A warning as one line that says where it is from."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.levelno < logging.WARNING:
            return text
        return f"tosica: warning: {' '.join(text.split())}"


class _Once(logging.Filter):
    """Show a warning once, also if each part of a query gives it."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_new = record.levelno < logging.WARNING or text not in self._texts
        self._texts.add(text)
        return is_new


@contextmanager
def _log(verbosity: int) -> Iterator[None]:
    """Log from a level on, log tosica's warnings at the end, and let SIGTERM do what Ctrl-C does."""
    with ExitStack() as stack:
        stack.callback(setattr, settings, "verbosity", settings.verbosity)
        settings.verbosity = verbosity
        for handler in logger.handlers:
            stack.callback(handler.setFormatter, handler.formatter)
            handler.setFormatter(_LineFormatter())
            once = _Once()
            handler.addFilter(once)
            stack.callback(handler.removeFilter, once)
        sigterm_handler = signal.signal(signal.SIGTERM, _interrupt)
        stack.callback(signal.signal, signal.SIGTERM, sigterm_handler)
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TosicaWarning)
        try:
            yield
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught or ()):
                logger.warning("%s", text)


def _interrupt(*_: object) -> None:
    """Press Ctrl-C, also in a background job of a shell, which ignores it."""
    if not callable(signal.getsignal(signal.SIGINT)):
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


# --------------------------------------------------------------------------- imports


def load(*modules: str) -> ModuleType:
    """Import tosica and modules that take seconds to import, and keep the libraries silent."""
    collects = gc.isenabled() and not sys.modules.keys() >= set(modules)
    if collects:
        # Objects of modules are no garbage.
        gc.disable()
    try:
        with progress(None, "loading"):
            for name in modules:
                import_module(name)
    finally:
        if collects:
            gc.freeze()
            gc.enable()
    context = click.get_current_context()
    for library in map(logging.getLogger, _LIBRARIES):
        context.call_on_close(partial(library.setLevel, library.level))
        library.setLevel(logging.ERROR)
    return import_module("tosica")


# --------------------------------------------------------------------------- results and errors


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


def _sentence(error: Exception) -> str:
    """Say in one line what went wrong."""
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None:
            return error.strerror
        return f"{error.strerror}: {str(error.filename)!r}"
    # str() of a KeyError has quotes around it.
    message = error.args[0] if isinstance(error, KeyError) and error.args else error
    text = " ".join(str(message).split())
    # A sentence has several words, and the key that a dict lacks has one as a rule.
    if isinstance(error, _EXPECTED) and " " in text:
        return text
    return f"{type(error).__name__}: {text:.600}; this was not expected: --debug shows where."


# --------------------------------------------------------------------------- options


def _set_threads(_: click.Context, __: click.Parameter, value: int | None) -> None:
    if value is None:
        return
    os.environ.update(dict.fromkeys(_THREADS, str(value)))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(value)


def _split_device(
    _: click.Context, __: click.Parameter, value: str
) -> tuple[str, int | str]:
    """Split ``"cuda:1"`` into ``("gpu", 1)``, as ``accelerator`` and number; without a number it is "auto"."""
    match = re.fullmatch(r"(auto|cpu|mps)|(?:gpu|cuda)(?::(\d+))?", value)
    if match is None:
        raise click.BadParameter(
            f"{value!r} is none of auto, cpu, gpu, gpu:1, cuda:1, mps."
        )
    return match[1] or "gpu", int(match[2]) if match[2] else "auto"


def default_option(*names: str, **attributes: Any) -> Any:
    """Make an option whose help shows its default."""
    return click.option(*names, show_default=True, **attributes)


COUNT = click.IntRange(min=1)
threads_option = click.option(
    "--threads",
    type=COUNT,
    callback=_set_threads,
    expose_value=False,
    help="Number of threads.  [default: one a core]",
)
SELECTION = {
    "seurat": click.option(
        "--seurat",
        is_flag=True,
        help="Repair an .h5ad that was converted from a Seurat object.",
    ),
    "genome": click.option(
        "--genome", help="Genome to take of a file of 10x Genomics with several."
    ),
    "modality": click.option("--modality", help="Modality to take of a MuData."),
    "table": click.option("--table", help="Table to take of a SpatialData store."),
    "assay": click.option("--assay", help="Assay to take of a Seurat object."),
}


def takes_cells(function: Callable[..., Any]) -> Any:
    """Add options that say which cells of a file are meant, as the argument ``selection``."""

    @wraps(function)
    def collect(*args: Any, **options: Any) -> Any:
        selection = {name: options.pop(name) for name in SELECTION}
        return function(*args, selection=selection, **options)

    for decorate in reversed(SELECTION.values()):
        collect = decorate(collect)
    return collect


seed_option = default_option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, help="Random seed."
)
organism_option = default_option(
    "--organism",
    type=click.Choice(["auto", "human", "mouse"]),
    default="auto",
    help="Organism of the reference.",
)
device_option = default_option(
    "--device",
    callback=_split_device,
    default="auto",
    help="auto, cpu, gpu, cuda:1 or mps.",
)
