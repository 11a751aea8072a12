"""``tosica train``, ``gene-sets`` and ``demo``: from a reference to a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tosica._progress import progress
from tosica._settings import logger
from tosica.cli._files import OutputPath, check_cells, check_outputs
from tosica.cli._session import (
    COUNT,
    Command,
    default_option,
    device_option,
    genome_option,
    load,
    organism_option,
    seed_option,
    seurat_option,
    threads_option,
)

if TYPE_CHECKING:
    from tosica.cli._session import Session

# The collection of the Gene Ontology, for the organism of the reference.
_DEFAULT = "gobp"


@click.command(cls=Command, short_help="Train a model on annotated cells.")
@click.argument("reference")
@click.option("--labels-key", required=True, help="Column of obs with the labels.")
@click.option("--batch-key", help="Column of obs with the batches.")
@click.option(
    "--for",
    "query",
    metavar="QUERY",
    help="Cells to be labelled, as of a panel: train on the genes of both.",
)
@click.option(
    "--unlabeled-category", help="Value of that column in cells without a label."
)
@default_option(
    "--min-cells", type=COUNT, default=1, help="Leave out labels with fewer cells."
)
@click.option(
    "--gene-sets",
    multiple=True,
    metavar="NAME|GMT",
    help="Collection or GMT file, or several.  [default: gobp]",
)
@click.option("--layer", help="Layer with the expression.  [default: X]")
@click.option("--use-raw", is_flag=True, help="Take expression and genes from raw.")
@seurat_option
@genome_option
@organism_option
@default_option(
    "--max-gene-sets",
    type=COUNT,
    default=300,
    help="Largest number of gene sets that become tokens.",
)
@click.option("--max-epochs", type=COUNT, help="Passes over the cells.")
@default_option("--batch-size", type=COUNT, default=64)
@seed_option
@click.option(
    "--checkpoint-dir",
    type=OutputPath(),
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
    query: str | None,
    gene_sets: tuple[str, ...],
    use_raw: bool,
    seurat: bool,
    genome: str | None,
    organism: str,
    max_gene_sets: int,
    seed: int,
    checkpoint_dir: Path | None,
    output: Path,
    overwrite: bool,
    device: tuple[str, int | str],
    **options: Any,
) -> None:
    """Train a model on the annotated cells in REFERENCE and save it to a folder.

    REFERENCE is an .h5ad or .zarr file, a 10x .h5 file or mtx folder, .rds or .h5Seurat.
    """
    if options["layer"] is not None and use_raw:
        raise click.UsageError("Give either --layer or --use-raw, not both.")
    there = next(
        path
        for path in (output.absolute(), *output.absolute().parents)
        if path.exists()
    )
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise PermissionError(
            f"{str(there)!r} is no folder to write to: choose another one."
        )
    if not overwrite and output.exists() and any(output.iterdir()):
        raise FileExistsError(
            f"{str(output)!r} is not empty: pass --overwrite, or choose another."
        )
    check_cells(
        reference, labels_key=options["labels_key"], batch_key=options["batch_key"]
    )
    tosica = load("tosica.model", "tosica.pp")
    from tosica.cli._files import read_cells

    with progress(None, f"reading {reference}"):
        adata = read_cells(reference, seurat=seurat, genome=genome)
    if use_raw:
        if adata.raw is None:
            raise ValueError(f"{reference!r} has no raw: leave --use-raw out.")
        adata = adata.raw.to_adata()
    tosica.settings.seed = seed
    names = list(gene_sets) or [_DEFAULT]
    sets = names if len(names) > 1 else names[0]
    fit = {name: options.pop(name) for name in ("max_epochs", "batch_size")}
    resume = None
    if checkpoint_dir is not None:
        session.advice = "; the same command goes on from the last checkpoint"
        resume = (
            checkpoint_dir
            if checkpoint_dir.is_dir() and any(checkpoint_dir.iterdir())
            else None
        )
    # One process: others would run this command again.
    fit |= {
        "accelerator": device[0],
        "devices": 1 if device[1] == "auto" else [int(device[1])],
    }
    fit |= {"checkpoint_dir": checkpoint_dir, "resume": resume}
    if query is not None:
        of_mask = {
            "gene_sets": sets,
            "organism": organism,
            "max_gene_sets": max_gene_sets,
        }
        panel, labels_key = read_cells(query, backed=True), options.pop("labels_key")
        model = tosica.TOSICA.for_query(
            panel, adata, labels_key, setup_kwargs=options, **of_mask, **fit
        )
    else:
        tosica.pp.build_mask(adata, sets, organism=organism)
        tosica.TOSICA.setup_anndata(adata, **options)
        model = tosica.TOSICA(adata, max_gene_sets=max_gene_sets)
        model.train(**fit)
    model.save(output, overwrite=overwrite)
    text, accuracy = f"wrote the model to {output}", model.held_out_accuracy_
    if accuracy is not None:
        text += f"; {accuracy:.1%} of {model.training_.held_out_codes.shape[1]} held-out cells got their label"
    mislabeled = model.mislabeled_indices
    made_by = {"reference": reference, "seed": seed, "tosica": tosica.__version__}
    sizes = {
        "n_cells": adata.n_obs,
        "n_genes": len(model.get_var_names()),
        "n_gene_sets": len(model.gene_sets),
    }
    of_labels = {
        "labels": model.labels,
        "n_mislabeled": 0 if mislabeled is None else len(mislabeled),
    }
    of_labels["held_out_accuracy"] = accuracy
    session.show(
        {
            "model": output,
            **made_by,
            "fingerprint": model.fingerprint,
            **sizes,
            **of_labels,
        },
        text,
    )


# --------------------------------------------------------------------------- gene sets


@click.command(cls=Command, short_help="List gene sets, and match them to a reference.")
@click.argument("name", required=False, metavar="[NAME|GMT]")
@click.option(
    "--for",
    "reference",
    metavar="REFERENCE",
    help="Cells to match the genes of the sets with.",
)
@organism_option
@click.option(
    "-o", "--output", type=OutputPath(".gmt", ".gz"), help="Write the gene sets as GMT."
)
@click.option("--overwrite", is_flag=True, help="Replace the GMT file if it exists.")
@click.pass_obj
def gene_sets(
    session: Session,
    name: str | None,
    reference: str | None,
    organism: str,
    output: Path | None,
    overwrite: bool,
) -> None:
    """List the collections of gene sets; describe the collection NAME or the file GMT.

    With --for, say how many of the sets and genes match a reference. With --output, write the sets
    as GMT; with --for those that the mask of the reference would have.
    """
    if name is None and (reference is not None or output is not None):
        raise click.UsageError("Name a collection or a GMT file.")
    check_outputs(output, overwrite=overwrite)
    tosica = load("tosica.gs")
    if name is None:
        table = tosica.gs.collections()
        shown = ["organism", "n_sets", "available", "version", "licence", "source"]
        session.show(
            {"collections": table.reset_index().to_dict("records")},
            table[shown].to_string(),
        )
        return
    mask = None if reference is None else _mask_of(name, reference, organism)
    if name == _DEFAULT:
        name = f"human_{_DEFAULT}" if mask is None else str(mask["source"])
    is_file = Path(name).exists() or name.lower().endswith((".gmt", ".gmt.gz"))
    sets = tosica.gs.read_gmt(name) if is_file else tosica.gs.load(name)
    n_genes = len({gene for genes in sets.values() for gene in genes})
    result: dict[str, Any] = {
        "gene_sets": name,
        "n_sets": len(sets),
        "n_genes": n_genes,
    }
    text = f"{name}: {len(sets)} gene sets with {n_genes} genes"
    if mask is not None:
        kept = [str(one) for one in mask["gene_sets"]]
        names = (
            "n_genes",
            "n_genes_covered",
            "coverage",
            "organism",
            "matched_by",
            "n_genes_mapped",
        )
        result["reference"] = {
            "path": reference,
            "n_sets": len(kept),
            **{key: mask[key] for key in names},
        }
        text += (
            f"\n{reference}: {len(kept)} of them are kept, with {mask['n_genes_covered']} of {mask['n_genes']} genes "
            f"({100 * mask['coverage']:.1f} %); {mask['n_genes_mapped']} genes were matched by another name"
        )
        for what, words in (
            ("left_out", "left out"),
            ("unknown_genes", "not in the reference, with a similar name"),
        ):
            table = mask.get(what)
            if table is not None and len(table):
                named = dict(table.itertuples(index=False))
                result["reference"][what] = named
                text += "".join(
                    f"\n{words}: {one}{f' ({more})' if more else ''}"
                    for one, more in named.items()
                )
        sets = {one: sets[one] for one in kept if one in sets}
    if output is not None:
        tosica.gs.write_gmt(sets, output)
        logger.info("wrote %d gene sets to %s", len(sets), output)
        result["output"] = str(output)
    session.show(result, text)


def _mask_of(name: str, reference: str, organism: str) -> dict[str, Any]:
    """Build the mask of a reference, which needs only the names of the genes."""
    tosica = load("tosica.pp")
    import anndata as ad
    import numpy as np

    from tosica.cli._files import read_cells

    var = read_cells(reference, backed=True).var
    cells = ad.AnnData(np.zeros((1, len(var)), dtype=np.float32), var=var)
    tosica.pp.build_mask(cells, name, organism=organism)
    return dict(cells.uns["tosica_mask"])


# --------------------------------------------------------------------------- demo


@click.command(
    cls=Command, short_help="Train, annotate and explain real cells, offline."
)
@default_option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default="tosica_demo",
    help="Folder for what it writes.",
)
@seed_option
@threads_option
@click.pass_obj
def demo(session: Session, out: Path, seed: int) -> None:
    """Train on 490 of the 700 PBMCs that scanpy ships, annotate the rest, and write a report.

    The labels are held against the known ones and against a logistic regression. Works offline, in
    some 15 seconds.
    """
    load("tosica._demo")
    from tosica._demo import run_demo

    table, text = run_demo(out, seed=seed)
    session.show({"out": str(out), "scores": table.to_dict("index")}, text)
