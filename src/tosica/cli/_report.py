"""``tosica report``: one page on an annotation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tosica.cli._command import Command, threads_option
from tosica.cli._evaluate import load_its_model
from tosica.cli._write import OutputPath, check_free

if TYPE_CHECKING:
    from pathlib import Path

    from tosica.cli._session import Session


@click.command(cls=Command, short_help="Write a page about an annotation.")
@click.argument("annotated")
@click.option("-o", "--output", type=OutputPath(".html"), required=True, help="Page to write.")
@click.option(
    "--model",
    metavar="FOLDER",
    help="Model that annotated the file: what gene sets and genes add to each label is shown, too.",
)
@click.option("--labels-key", help="Column of obs with known labels, to compare with.")
@click.option("--sample-key", help="Column of obs with the sample of each cell.")
@click.option("--layer", help="Layer with expression that is not scaled.")
@click.option("--use-raw", is_flag=True, help="Read expression from raw.")
@click.option("--title", help="Title of the page.")
@click.option("--key", default="tosica", show_default=True, help="--key-added of tosica annotate.")
@click.option("--overwrite", is_flag=True, help="Replace the page if it exists.")
@threads_option
@click.pass_obj
def report(
    session: Session,
    annotated: str,
    output: Path,
    model: str | None,
    key: str,
    overwrite: bool,
    **options: Any,
) -> None:
    """Write an HTML page about the annotated cells in ANNOTATED.

    ANNOTATED is an .h5ad or .zarr file that annotate wrote.
    """
    check_free(output, overwrite=overwrite)
    tosica = session.load("tosica._report", "tosica.cli._read")
    from tosica.cli._read import read_cells

    with session.busy(f"reading {annotated} …"):
        adata = read_cells(annotated)
    if model is not None:
        options["model"] = load_its_model(adata, annotated, model, key)
    with session.busy("drawing …"):
        tosica.report(adata, output, key=key, **options)
    session.note(f"wrote {output}")
    session.show({"annotated": annotated, "report": str(output), "n_cells": adata.n_obs})
