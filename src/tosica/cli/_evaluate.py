"""``tosica evaluate``: compare an annotation with known labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tosica.cli._command import Command

if TYPE_CHECKING:
    from anndata import AnnData

    from tosica.cli._session import Session
    from tosica.model import TOSICA

model_option = click.option(
    "--model", metavar="FOLDER", help="Refuse a file that another model has annotated."
)


@click.command(cls=Command, short_help="Compare an annotation with known labels.")
@click.argument("annotated")
@click.option("--labels-key", required=True, help="Column of obs with the known labels.")
@click.option("--key", default="tosica", show_default=True, help="--key-added of tosica annotate.")
@click.option(
    "--prediction",
    metavar="COLUMN",
    help="Other column to evaluate, such as tosica_majority_vote.",
)
@model_option
@click.pass_obj
def evaluate(
    session: Session,
    annotated: str,
    labels_key: str,
    key: str,
    prediction: str | None,
    model: str | None,
) -> None:
    """Compare the labels in ANNOTATED with known ones: accuracy, macro-F1, each label.

    ANNOTATED is what annotate wrote: .h5ad, .zarr, or a table of the cells.
    """
    tosica = session.load("tosica.tl", "tosica.cli._read")
    from tosica.cli._read import open_cells

    adata = open_cells(annotated)
    if model is not None:
        load_its_model(adata, annotated, model, key)
    found = tosica.tl.evaluate(adata, labels_key, key=key, prediction=prediction)
    result: dict[str, Any] = {
        "annotated": annotated,
        "prediction": str(found.summary.index[0]),
        **found.summary.iloc[0].to_dict(),
        "per_class": found.per_class.to_dict("index"),
        "confusion": found.confusion.to_dict("index"),
    }
    result["n_cells"] = int(result["n_cells"])
    session.show(result, repr(found))


def load_its_model(adata: AnnData, path: str, folder: str, key: str) -> TOSICA:
    """Load the model that has annotated cells.

    Raises
    ------
    KeyError
        If the file does not say which model it was.
    ValueError
        If it was another one.
    """
    from tosica.model import TOSICA

    model = TOSICA.load(folder, accelerator="cpu")
    expected = model.fingerprint
    record = adata.uns.get(key)
    if not hasattr(record, "get") or "model" not in record:
        raise KeyError(
            f"{path!r} does not say under uns[{key!r}] which model has annotated it: annotate it "
            "with tosica annotate, or leave --model out."
        )
    if str(record["model"]) != expected:
        raise ValueError(
            f"{path!r} was annotated by another model ({record['model']}) than the one in "
            f"{folder!r} ({expected}): annotate it again, or name the other model."
        )
    return model
