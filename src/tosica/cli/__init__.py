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

from tosica.cli._annotate import annotate, evaluate, info, novelty, report
from tosica.cli._train import demo, gene_sets, train

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSIONS_HELP = "Show the versions of tosica and what it is built on, as YAML."
_PACKAGES = (
    *(
        "anndata",
        "h5py",
        "lightning",
        "numpy",
        "pandas",
        "rdata",
        "scanpy",
        "scikit-learn",
        "scipy",
    ),
    *("scvi-tools", "torch", "zarr"),
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
    help=_VERSIONS_HELP,
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
    try:
        commands.main(args=None if argv is None else list(argv), prog_name="tosica")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
