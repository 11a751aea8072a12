"""``tosica report``: one page on an annotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tosica.cli._command import Command, threads_option
from tosica.cli._evaluate import check_model, model_option
from tosica.cli._write import OutputPath, check_free

if TYPE_CHECKING:
    from pathlib import Path

    from tosica.cli._session import Session


@click.command(cls=Command, short_help="Write a page about an annotation.")
@click.argument("annotated")
@click.option("-o", "--output", type=OutputPath(".html"), required=True, help="Page to write.")
@click.option("--key", default="tosica", show_default=True, help="--key-added of tosica annotate.")
@model_option
@click.option("--overwrite", is_flag=True, help="Replace the page if it exists.")
@threads_option
@click.pass_obj
def report(
    session: Session, annotated: str, output: Path, key: str, model: str | None, overwrite: bool
) -> None:
    """Write an HTML page about the annotated cells in ANNOTATED.

    ANNOTATED is an .h5ad or .zarr file that annotate wrote.
    """
    check_free(output, overwrite=overwrite)
    tosica = session.load("tosica.model", "tosica.cli._read")
    from tosica.cli._read import read_cells

    with session.busy(f"reading {annotated} …"):
        adata = read_cells(annotated)
    if model is not None:
        check_model(adata, annotated, model, key)
    with session.busy("drawing …"):
        tosica.report(adata, output)
    session.note(f"wrote {output}")
    session.show({"annotated": annotated, "report": str(output), "n_cells": adata.n_obs})
