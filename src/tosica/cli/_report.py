"""``tosica report`` and ``evaluate``: what an annotation is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from tosica._progress import progress
from tosica._text import count
from tosica.cli._files import OutputPath, check_cells, check_outputs
from tosica.cli._session import (
    Command,
    default_option,
    load,
    takes_cells,
    threads_option,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tosica._types import AnnOrMuData
    from tosica.cli._session import Session
    from tosica.model import TOSICA

key_option = default_option(
    "--key", default="tosica", help="--key-added of tosica annotate."
)


def explain(
    adata: AnnOrMuData,
    model: TOSICA,
    key: str,
    *,
    layer: str | None,
    use_raw: bool,
) -> None:
    """Add what tells the labels to annotated cells, if any has a label."""
    from tosica._obs import UNKNOWN, read_groups
    from tosica.tl import attribute
    from tosica.tl._evidence import ask_quietly

    if list(read_groups(adata, f"{key}_prediction").categories) == [UNKNOWN]:
        return
    # Models of the original's code do not know the mean cell of their reference.
    has_baseline = model.module.baseline.any()
    baseline: Literal["reference", "mean"] = "reference" if has_baseline else "mean"
    with ask_quietly():
        attribute(
            adata, model, baseline=baseline, key=key, layer=layer, use_raw=use_raw
        )


def _read_annotated(
    path: str, key: str, selection: dict[str, Any], *, backed: bool = False
) -> AnnOrMuData:
    """Read the annotated cells of a file; of a container, those that were annotated."""
    from tosica.cli._files import number_repeated_names, read_cells
    from tosica.cli._modalities import is_annotated_as_a_whole, read_modalities
    from tosica.io._errors import ReadError
    from tosica.io._file_kinds import kind_of

    if not backed and kind_of(path) == "table":
        raise ReadError(
            f"{path!r} is a table, and a page needs expression: give the copy of the "
            "cells that annotate writes with --output."
        )
    if is_annotated_as_a_whole(path, key, selection):
        return read_modalities(path)
    adata = read_cells(
        path,
        backed=backed,
        score=lambda group: int(f"uns/{key}" in group),
        **selection,
    )
    if not backed:
        number_repeated_names(adata, genes=False, warns=False)
    return adata


@click.command(cls=Command, short_help="Write a page about an annotation.")
@click.argument("annotated")
@click.option(
    "-o", "--output", type=OutputPath(".html"), required=True, help="Page to write."
)
@click.option(
    "--model",
    metavar="FOLDER",
    help="Its model, to compute what genes add to each label.",
)
@click.option("--labels-key", help="Column of obs with known labels, to compare with.")
@click.option("--sample-key", help="Column of obs with the sample of each cell.")
@click.option("--layer", help="Layer with expression that is not scaled.")
@click.option("--use-raw", is_flag=True, help="Read expression from raw.")
@click.option("--title", help="Title of the page.")
@key_option
@click.option("--overwrite", is_flag=True, help="Replace the page if it exists.")
@threads_option
@takes_cells
@click.pass_obj
def report(
    session: Session,
    annotated: str,
    output: Path,
    model: str | None,
    key: str,
    overwrite: bool,
    selection: dict[str, Any],
    **options: Any,
) -> None:
    """Write an HTML page about the annotated cells in ANNOTATED.

    ANNOTATED is an .h5ad, .h5mu or .zarr file that annotate wrote.
    """
    check_outputs(output, overwrite=overwrite)
    check_cells(
        annotated, labels_key=options["labels_key"], sample_key=options["sample_key"]
    )
    tosica = load("tosica._report")
    with progress(None, f"reading {annotated}"):
        adata = _read_annotated(annotated, key, selection)
    if model is not None:
        explain(
            adata,
            tosica.TOSICA.load(model, accelerator="cpu"),
            key,
            layer=options["layer"],
            use_raw=options["use_raw"],
        )
    with progress(None, "drawing"):
        tosica.report(adata, output, key=key, **options)
    session.written.append(output)
    session.show(
        {"annotated": annotated, "report": str(output), "n_cells": adata.n_obs}
    )
    session.conclude(f"described {count(adata.n_obs, 'cell', ' ')}")


@click.command(cls=Command, short_help="Compare an annotation with known labels.")
@click.argument("annotated")
@click.option(
    "--labels-key", required=True, help="Column of obs with the known labels."
)
@key_option
@click.option(
    "--prediction-key",
    metavar="COLUMN",
    help="Other column to evaluate, such as tosica_majority_vote.",
)
@click.option(
    "--model", metavar="FOLDER", help="Refuse a file that another model has annotated."
)
@takes_cells
@click.pass_obj
def evaluate(
    session: Session,
    annotated: str,
    labels_key: str,
    key: str,
    prediction_key: str | None,
    model: str | None,
    selection: dict[str, Any],
) -> None:
    """Compare the labels in ANNOTATED with known ones: accuracy, macro-F1, each label.

    ANNOTATED is what annotate wrote: .h5ad, .zarr, or a table of the cells.
    """
    check_cells(annotated, labels_key=labels_key, prediction_key=prediction_key)
    tosica = load("tosica.tl")
    adata = _read_annotated(annotated, key, selection, backed=True)
    if model is not None:
        expected = tosica.TOSICA.load(model, accelerator="cpu").fingerprint
        record = adata.uns.get(key, {})
        if expected not in (record.get("model"), record.get("subset_of")):
            raise ValueError(
                f"{annotated!r} was not annotated by the model in {model!r}, or does not say so under uns[{key!r}]: "
                "annotate it again, name the other model, or leave --model out."
            )
    evaluation = tosica.tl.evaluate(
        adata, labels_key, key=key, prediction_key=prediction_key
    )
    scores = evaluation.summary.iloc[0].to_dict()
    summary = {
        "annotated": annotated,
        "prediction": str(evaluation.summary.index[0]),
        **scores,
        "n_cells": int(scores["n_cells"]),
        "per_class": evaluation.per_class.to_dict("index"),
        "confusion": evaluation.confusion.to_dict("index"),
    }
    session.show(summary, repr(evaluation))
