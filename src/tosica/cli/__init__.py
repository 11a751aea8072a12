"""The command line: ``tosica train``, ``annotate``, ``evaluate`` and others, on click.

``main`` is the entry point. Torch, scanpy and numpy are imported inside the commands, so that
``--help``, ``--version`` and wrong usage take no time.
"""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import click

from tosica.cli._annotate import annotate, novelty
from tosica.cli._info import info
from tosica.cli._report import evaluate, report
from tosica.cli._train import demo, gene_sets, train

if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGES = (
    "anndata",
    "h5py",
    "lightning",
    "numpy",
    "pandas",
    "rdata",
    "scanpy",
    "scikit-learn",
    "scipy",
    "scvi-tools",
    "torch",
    "zarr",
)


def _print_versions(context: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    click.echo(f'tosica: "{version("tosica")}"')
    click.echo(f'python: "{platform.python_version()}"')
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):  # of an extra
            # YAML would read 1.10 as a number without the quotes.
            click.echo(f'{name}: "{version(name)}"')
    context.exit()


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(
    version("tosica"), prog_name="tosica", message="%(prog)s %(version)s"
)
@click.option(
    "--versions",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_versions,
    help="Show the versions of tosica and what it is built on, as YAML.",
)
def commands() -> None:
    """Annotate single cells with a Transformer whose tokens are gene sets.

    Exit codes: 0 done, 1 the data or the machine do not allow it, 2 wrong usage.
    """


for _command in (train, annotate, novelty, evaluate, report, gene_sets, info, demo):
    commands.add_command(_command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv
        What follows ``tosica``; by default what the process was called with.

    Returns
    -------
    The exit code: 0 done, 1 the data or the machine do not allow it, 2 wrong usage.
    """
    arguments = None if argv is None else list(argv)
    try:
        code = commands.main(arguments, prog_name="tosica", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"tosica: error: {error.format_message()}", err=True)
        context = getattr(error, "ctx", None)
        if context is not None:
            click.echo(f"Try '{context.command_path} --help' for help.", err=True)
        return error.exit_code
    except click.Abort:
        return 1
    except SystemExit as error:
        # A reader of stdout went.
        return error.code if isinstance(error.code, int) else 1
    return code or 0
