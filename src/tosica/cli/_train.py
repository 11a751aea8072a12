"""``tosica train``: from a reference to the folder of a model."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tosica.cli._command import Command, device_option, seurat_option, threads_option
from tosica.cli._write import OutputPath

if TYPE_CHECKING:
    from anndata import AnnData

    from tosica.cli._session import Session
    from tosica.model import TOSICA


@click.command(cls=Command, short_help="Train a model on annotated cells.")
@click.argument("reference")
@click.option("--labels-key", required=True, help="Column of obs with the labels.")
@click.option("--batch-key", help="Column of obs with the batches.")
@click.option("--unlabeled-category", help="Value of that column in cells without a label.")
@click.option(
    "--gene-sets",
    multiple=True,
    metavar="NAME|GMT",
    help="Collection or GMT file; may be given several times.  [default: gobp]",
)
@click.option("--layer", help="Layer with the expression.  [default: X]")
@click.option("--use-raw", is_flag=True, help="Take expression and genes from raw.")
@seurat_option
@click.option(
    "--organism",
    type=click.Choice(["auto", "human", "mouse"]),
    default="auto",
    show_default=True,
    help="Organism of the reference.",
)
@click.option(
    "--max-gene-sets",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    help="Largest number of gene sets that become tokens.",
)
@click.option("--max-epochs", type=click.IntRange(min=1), help="Passes over the cells.")
@click.option("--batch-size", type=click.IntRange(min=1), default=64, show_default=True)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Random seed."
)
@click.option(
    "--checkpoint-dir",
    type=click.Path(path_type=Path),
    help="Folder for checkpoints, from which the same command goes on.",
)
@click.option(
    "-o",
    "--output",
    type=OutputPath(),
    required=True,
    help="Folder for the model.",
    metavar="FOLDER",
)
@click.option("--overwrite", is_flag=True, help="Write into a folder that exists.")
@device_option
@threads_option
@click.pass_obj
def train(
    session: Session,
    reference: str,
    labels_key: str,
    batch_key: str | None,
    unlabeled_category: str | None,
    gene_sets: tuple[str, ...],
    layer: str | None,
    use_raw: bool,
    seurat: bool,
    organism: str,
    max_gene_sets: int,
    max_epochs: int | None,
    batch_size: int,
    seed: int,
    checkpoint_dir: Path | None,
    output: Path,
    overwrite: bool,
    device: tuple[str, int | str],
) -> None:
    """Train a model on the annotated cells in REFERENCE and save it to a folder.

    REFERENCE is an .h5ad or .zarr file, a 10x .h5 file or mtx folder, .rds or .h5Seurat.
    """
    if layer is not None and use_raw:
        raise click.UsageError("Give either --layer or --use-raw, not both.")
    _check_writable(output)
    tosica = session.load("tosica.model", "tosica.pp", "tosica.cli._read")
    import scvi

    from tosica.cli._read import read_cells
    from tosica.model._device import find_device
    from tosica.model._model_folder import check_free

    if not overwrite:
        check_free(output)
    find_device(*device)
    with session.busy(f"reading {reference} …"):
        adata = read_cells(reference, seurat=seurat)
    if use_raw:
        adata = _from_raw(adata, reference)
    before = scvi.settings.seed
    try:
        scvi.settings.seed = seed
        sets = list(gene_sets) or ["gobp"]
        tosica.pp.build_mask(adata, sets if len(sets) > 1 else sets[0], organism=organism)
        tosica.TOSICA.setup_anndata(
            adata,
            labels_key=labels_key,
            batch_key=batch_key,
            unlabeled_category=unlabeled_category,
            layer=layer,
        )
        model = tosica.TOSICA(adata, max_gene_sets=max_gene_sets)
        # That the model can be saved: it is not.
        session.hidden = ("train: ended early", "train: Ctrl-C was pressed", "train: did not end")
        if checkpoint_dir is not None:
            session.advice = "; the same command goes on from the last checkpoint"
        accelerator, number = device
        model.train(
            max_epochs=max_epochs,
            accelerator=accelerator,
            # One process: others would run this command again.
            devices=1 if number == "auto" else [int(number)],
            batch_size=batch_size,
            checkpoint_dir=checkpoint_dir,
            resume=_checkpoint_in(checkpoint_dir),
            enable_progress_bar=not session.quiet,
        )
    finally:
        scvi.settings.seed = before
    _save(model, output, overwrite=overwrite)
    session.note(f"wrote the model to {output}")
    about = {"model": str(output), "reference": reference, "seed": seed}
    session.show({**about, "tosica": tosica.__version__, **_summary(model)})


def _save(model: TOSICA, folder: Path, *, overwrite: bool) -> None:
    try:
        model.save(folder, overwrite=overwrite)
    except OSError:
        with suppress(OSError):  # it is not empty, or was never made
            folder.rmdir()
        raise


def _summary(model: TOSICA) -> dict[str, Any]:
    mislabeled = model.mislabeled_indices
    return {
        "fingerprint": model.fingerprint,
        "n_cells": model.adata.n_obs,
        "n_genes": model.adata.n_vars,
        "n_gene_sets": len(model.gene_sets),
        "labels": model.labels,
        "n_mislabeled": 0 if mislabeled is None else len(mislabeled),
    }


def _check_writable(folder: Path) -> None:
    """Check before the training that the folder of the model can be made and written to."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK):
        raise PermissionError(f"the folder {str(there)!r} is read-only: choose another one.")
    if not there.is_dir():
        raise NotADirectoryError(f"{str(there)!r} is a file: name a folder for the model.")


def _from_raw(adata: AnnData, path: str) -> AnnData:
    if adata.raw is None:
        raise ValueError(f"{path!r} has no raw: leave --use-raw out.")
    return adata.raw.to_adata()


def _checkpoint_in(folder: Path | None) -> Path | None:
    """A folder, if a training was interrupted that left its checkpoint there."""
    return folder if folder is not None and (folder / "training.pt").is_file() else None
