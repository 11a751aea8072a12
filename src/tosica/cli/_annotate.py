"""``tosica annotate``: from a query and a model to an annotated file or a table of the cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tosica.cli._command import Command, device_option, seurat_option, threads_option
from tosica.cli._write import (
    CELLS,
    TABLES,
    OutputPath,
    check_free,
    remove,
    write_cells,
    write_table,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from tosica.cli._session import Session
    from tosica.model import TOSICA

_GO_ON = "; the same command goes on where it ended"


class _ShareOrAuto(click.ParamType):
    """A number from 0 to 1, or ``auto``."""

    name = "float or auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        return value if value == "auto" else click.FloatRange(0, 1).convert(value, param, ctx)


@click.command(cls=Command, short_help="Label the cells of a query.")
@click.argument("query")
@click.option("--model", required=True, metavar="FOLDER", help="Folder that train wrote.")
@click.option(
    "-o",
    "--output",
    type=OutputPath(*CELLS),
    help="Annotated copy of the query, .h5ad or .zarr.",
)
@click.option(
    "--obs-out",
    type=OutputPath(*TABLES),
    help="Table of the cells, obs: .csv, .tsv or .parquet.",
)
@click.option("--layer", help="Layer with the expression.")
@click.option("--use-raw", is_flag=True, help="Read raw instead.")
@seurat_option
@click.option(
    "--cutoff",
    type=_ShareOrAuto(),
    metavar="P|auto",
    default=0.1,
    show_default=True,
    help='Cells whose best label is less probable are "Unknown"; "auto" is halfway between chance '
    "and certainty.",
)
@click.option("--probabilities", is_flag=True, help="Also write the probability of each label.")
@click.option(
    "--majority-voting", is_flag=True, help="Also give all cells of a small cluster one label."
)
@click.option(
    "--over-clustering",
    metavar="KEY",
    help="Column of obs with these clusters.  [default: Leiden clusters]",
)
@click.option(
    "--min-prop",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help='Share that the label of a cluster needs; below it, cells are "Heterogeneous".',
)
@click.option("--batch-size", type=click.IntRange(min=1), help="Cells in a minibatch.")
@click.option(
    "--precision",
    type=click.Choice(["32-true", "bf16-mixed"]),
    default="32-true",
    show_default=True,
)
@click.option(
    "--key-added", default="tosica", show_default=True, help="First part of the names written."
)
@click.option(
    "--cells-per-part",
    type=click.IntRange(min=1),
    default=8_192,
    show_default=True,
    help="Cells of an .h5ad or .zarr that are in memory at a time.",
)
@click.option("--overwrite", is_flag=True, help="Replace outputs, and begin anew.")
@device_option
@threads_option
@click.pass_obj
def annotate(
    session: Session,
    query: str,
    model: str,
    output: Path | None,
    obs_out: Path | None,
    seurat: bool,
    majority_voting: bool,
    over_clustering: str | None,
    min_prop: float,
    cells_per_part: int,
    overwrite: bool,
    device: tuple[str, int | str],
    **options: Any,
) -> None:
    """Label the cells in QUERY with a model, and write an annotated copy, a table, or both.

    QUERY is an .h5ad or .zarr file, a 10x .h5 file or mtx folder, .rds or .h5Seurat. Of .h5ad and
    .zarr, some cells are in memory at a time, and a command that was killed goes on where it
    ended; with --majority-voting, and from other formats, all are.
    """
    if output is None and obs_out is None:
        raise click.UsageError("Give --output, --obs-out or both.")
    if options["layer"] is not None and options["use_raw"]:
        raise click.UsageError("Give either --layer or --use-raw, not both.")
    if not majority_voting and (over_clustering is not None or min_prop):
        raise click.UsageError("--over-clustering and --min-prop need --majority-voting.")
    check_free(output, overwrite=overwrite)
    check_free(obs_out, overwrite=overwrite)
    tosica = session.load("tosica.tl", "tosica.cli._read")
    from tosica.cli._read import kind_of, read_cells
    from tosica.ondisk import StoredByGenesError

    kind = kind_of(query)
    loaded = tosica.TOSICA.load(model, accelerator=device[0], device=device[1])
    obs: pd.DataFrame | None = None
    if kind in ("h5ad", "zarr") and not (majority_voting or seurat):
        more = {"cells_per_part": cells_per_part, "overwrite": overwrite, **options}
        try:
            obs = _annotate_in_parts(session, query, loaded, output, obs_out, more)
        except StoredByGenesError:
            session.note(f"{query} is stored by genes (CSC) and is read as a whole")
    if obs is None:
        with session.busy(f"reading {query} …"):
            adata = read_cells(query, seurat=seurat)
        loaded.annotate(adata, enable_progress_bar=not session.quiet, **options)
        if majority_voting:
            with session.busy("majority voting …"):
                tosica.tl.majority_vote(adata, over_clustering, min_prop, key=options["key_added"])
        if output is not None:
            with session.busy(f"writing {output} …"):
                write_cells(adata, output)
        obs = adata.obs
    if obs_out is not None:
        write_table(obs, obs_out)
    for path in (output, obs_out):
        if path is not None:
            session.note(f"wrote {path}")
    voted = "majority_vote" if majority_voting else "prediction"
    labels = obs[f"{options['key_added']}_{voted}"].value_counts(sort=False)
    session.show(
        {
            "query": query,
            "output": None if output is None else str(output),
            "obs_out": None if obs_out is None else str(obs_out),
            "n_cells": len(obs),
            "labels": {str(label): int(n) for label, n in labels.items()},
            "mean_probability": float(obs[f"{options['key_added']}_probability"].mean()),
            "model": loaded.fingerprint,
            "tosica": tosica.__version__,
        }
    )


def _annotate_in_parts(
    session: Session,
    query: str,
    model: TOSICA,
    output: Path | None,
    obs_out: Path | None,
    options: dict[str, Any],
) -> pd.DataFrame:
    """Annotate from disk to disk, and return the table of the cells."""
    from tosica.cli._read import read_obs
    from tosica.tl import annotate_file

    session.advice = _GO_ON
    session.hidden = ("annotate_file: wrote",)
    options = {**options, "enable_progress_bar": not session.quiet}
    if output is not None:
        annotate_file(query, model, output, **options)
        return read_obs(output)
    assert obs_out is not None
    # Parts need a place that the next call finds; only the table is asked for.
    folder = obs_out.with_name(f"{obs_out.name}.parts")
    folder.mkdir(exist_ok=True)
    whole = folder / "annotated.h5ad"
    whole.unlink(missing_ok=True)
    annotate_file(query, model, whole, include_x=False, **options)
    obs = read_obs(whole)
    remove(folder)
    return obs
