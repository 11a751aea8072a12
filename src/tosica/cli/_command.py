"""What all commands have in common: options, exit codes, and one line for an error."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import ExitStack
from typing import Any

import click

from tosica.cli._errors import sentence_of
from tosica.cli._session import Session
from tosica.cli._stopping import stopped_by_signals

_FAILED = 1
# Read by OpenMP, MKL, OpenBLAS and numba when they are first imported.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class Command(click.Command):
    """A command that exits with 1 and one line on stderr if the data do not allow it.

    ``context.obj`` is its :class:`Session`. Wrong usage is reported by click, which exits with 2.
    Signals that stop it make it exit with 1, too, because pipelines take 130 and more for a reason
    to try again.
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
        session = Session(**{name: ctx.params.pop(name) for name in common})
        ctx.obj = session
        with stopped_by_signals() as stop, session, ExitStack() as exits:
            if not session.debug:
                # Python would write lines of its own about a signal that reaches a generator while
                # it is closed.
                exits.callback(setattr, sys, "unraisablehook", sys.unraisablehook)
                sys.unraisablehook = lambda _: None
            try:
                return super().invoke(ctx)
            except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
                raise
            except BaseException as error:
                if session.debug:
                    traceback.print_exc()
                if stop.name or isinstance(error, KeyboardInterrupt):
                    what = f"stopped by {stop.name or 'Ctrl-C'}{session.advice}."
                else:
                    what = sentence_of(error, self)
                click.echo(f"tosica: error: {what}", err=True)
        return ctx.exit(_FAILED)


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


seurat_option = click.option(
    "--seurat", is_flag=True, help="Repair an .h5ad that was converted from a Seurat object."
)


class _Device(click.ParamType):
    """A device as torch names it, to be passed on as ``accelerator`` and number."""

    name = "device"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int | str]:
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
