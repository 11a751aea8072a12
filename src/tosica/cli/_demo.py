"""``tosica demo``: the whole way on real cells that come with scanpy."""

from __future__ import annotations

from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tosica.cli._command import Command, threads_option

if TYPE_CHECKING:
    from tosica.cli._session import Session


@click.command(cls=Command, short_help="Train, annotate and draw on real cells, offline.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("tosica_demo"),
    show_default=True,
    help="Folder for the annotated .h5ad and the figures.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Seed of split and training.",
)
@threads_option
@click.pass_obj
def demo(session: Session, out: Path, seed: int) -> None:
    """Train on 490 of the 700 PBMCs that scanpy ships, annotate the rest, and draw figures.

    The labels are held against the known ones and against a logistic regression. Works offline, in
    about a minute on two cores.
    """
    if out.exists() and not out.is_dir():
        raise click.BadParameter(f"{str(out)!r} is a file; give a folder.", param_hint="--out")
    session.load("tosica._demo")
    from tosica._demo import run_demo

    # The demo prints a table.
    with nullcontext() if session.as_json else redirect_stdout(session.stdout):
        table = run_demo(out, seed=seed)
    session.show({"out": str(out), "scores": table.to_dict("index")})
