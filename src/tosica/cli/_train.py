"""``tosica train``, ``gene-sets`` and ``demo``: from a reference to a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tosica._progress import progress
from tosica.cli._files import OutputPath, check_cells, check_outputs
from tosica.cli._names import split_names
from tosica.cli._session import (
    COUNT,
    Command,
    default_option,
    device_option,
    load,
    organism_option,
    seed_option,
    takes_cells,
    threads_option,
)
from tosica.cli._tissue import (
    is_given,
    label_options_of_tissue,
    organism_or_human,
    read_tissue,
    tissue_option,
    version_option,
    write_tissue_card,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anndata import AnnData

    from tosica.cli._session import Session
    from tosica.model import TOSICA

# The collection of the Gene Ontology, for the organism of the reference.
_DEFAULT = "gobp"


@click.command(cls=Command, short_help="Train a model on annotated cells.")
@click.argument("reference", required=False)
@tissue_option
@version_option
@click.option(
    "--labels-key",
    multiple=True,
    metavar="KEY",
    help="Column of obs with the labels; several, from broad to fine, are levels: broad,fine.",
)
@click.option("--batch-key", help="Column of obs with the batches.")
@click.option(
    "--for",
    "query",
    metavar="QUERY",
    help="Cells to be labeled, as of a panel: train on the genes of both.",
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
@takes_cells
@click.pass_obj
def train(
    session: Session,
    reference: str | None,
    tissue: str | None,
    version: str,
    labels_key: tuple[str, ...],
    query: str | None,
    gene_sets: tuple[str, ...],
    use_raw: bool,
    selection: dict[str, Any],
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

    REFERENCE is an .h5ad or .zarr file, a 10x .h5 file or mtx folder, .rds or .h5Seurat. With
    --tissue in its place, cells are downloaded, and the folder gets a card with scores on donors and
    data sets that models had not seen.
    """
    if options["layer"] is not None and use_raw:
        raise click.UsageError("Give either --layer or --use-raw, not both.")
    if tissue is not None:
        labels_key, options["batch_key"] = label_options_of_tissue(
            reference, labels_key, options["batch_key"]
        )
    else:
        _check_reference(reference, labels_key, options["batch_key"])
    _check_model_folder(output, overwrite=overwrite)
    tosica = load("tosica.model", "tosica.pp")
    if tissue is not None:
        adata = read_tissue(tissue, organism, version)
    else:
        assert reference is not None
        adata = _read_reference(reference, use_raw, selection)
    keys = [name for key in labels_key for name in split_names(key, adata.obs)]
    tosica.settings.seed = seed
    collections = list(gene_sets) or [_DEFAULT]
    mask_options = {
        "gene_sets": collections if len(collections) > 1 else collections[0],
        "organism": organism,
    }
    fit_options = _fit_options(session, checkpoint_dir, device, options)
    if query is not None:
        from tosica.cli._files import read_cells

        model = tosica.TOSICA.for_query(
            read_cells(query, backed=True),
            adata,
            keys,
            setup_kwargs=options,
            max_gene_sets=max_gene_sets,
            **mask_options,
            **fit_options,
        )
    else:
        tosica.pp.build_mask(adata, **mask_options)
        tosica.TOSICA.setup_anndata(adata, keys, **options)
        model = tosica.TOSICA(adata, max_gene_sets=max_gene_sets)
        model.train(**fit_options)
    model.save(output, overwrite=overwrite)
    if tissue is not None:
        write_tissue_card(model, adata, output, **fit_options)
    summary = {"model": output, "reference": reference or tissue, "seed": seed}
    summary |= {"tosica": tosica.__version__, "n_cells": adata.n_obs}
    summary |= _describe(model)
    text = f"wrote the model to {output}"
    codes = model.training_.held_out_codes
    if codes is not None:
        accuracy = f"{model.held_out_accuracy_:.1%}"
        text += f"; {accuracy} of {codes.shape[1]} held-out cells got their label"
    session.show(summary, text)


def _fit_options(
    session: Session,
    checkpoint_dir: Path | None,
    device: tuple[str, int | str],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Move the arguments of ``model.train`` out of the options, and say how to go on after a stop."""
    fit_options = {
        "max_epochs": options.pop("max_epochs"),
        "batch_size": options.pop("batch_size"),
        "accelerator": device[0],
        # One process: others would run this command again.
        "devices": 1 if device[1] == "auto" else [int(device[1])],
        "checkpoint_dir": checkpoint_dir,
    }
    if checkpoint_dir is not None:
        session.advice = "; the same command goes on from the last checkpoint"
        if checkpoint_dir.is_dir() and any(checkpoint_dir.iterdir()):
            fit_options["resume"] = checkpoint_dir
    return fit_options


def _check_reference(
    reference: str | None, labels_key: tuple[str, ...], batch_key: str | None
) -> None:
    """Refuse a call without cells, or without columns that they have."""
    if reference is None:
        raise click.UsageError("Give REFERENCE or --tissue.")
    if not labels_key:
        raise click.UsageError("Missing option '--labels-key'.")
    if is_given("version"):
        raise click.UsageError("--census-version needs --tissue.")
    check_cells(reference, batch_key=batch_key)
    for key in labels_key:
        if "," not in key:
            check_cells(reference, labels_key=key)


def _read_reference(
    reference: str, use_raw: bool, selection: dict[str, Any]
) -> AnnData:
    """Read annotated cells."""
    from tosica.cli._files import number_repeated_names, read_cells

    with progress(None, f"reading {reference}"):
        adata = read_cells(reference, **selection)
    if use_raw:
        if adata.raw is None:
            raise ValueError(f"{reference!r} has no raw: leave --use-raw out.")
        adata = adata.raw.to_adata()
    number_repeated_names(adata, genes=True)
    return adata


def _describe(model: TOSICA) -> dict[str, Any]:
    """Numbers of a trained model."""
    mislabeled = model.mislabeled_indices
    return {
        "fingerprint": model.fingerprint,
        "n_genes": len(model.get_var_names()),
        "n_gene_sets": len(model.gene_sets),
        "labels": model.labels,
        "n_mislabeled": 0 if mislabeled is None else len(mislabeled),
        "held_out_accuracy": model.held_out_accuracy_,
    }


def _check_model_folder(folder: Path, *, overwrite: bool) -> None:
    """Check before the training that a model can be saved to a folder."""
    path = folder.absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise PermissionError(
            f"{str(existing)!r} is no folder to write to: choose another one."
        )
    if not overwrite and folder.exists() and any(folder.iterdir()):
        raise FileExistsError(
            f"{str(folder)!r} is not empty: pass --overwrite, or choose another."
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
        columns = ["organism", "n_sets", "available", "version", "licence", "source"]
        session.show(
            {"collections": table.reset_index().to_dict("records")},
            table[columns].to_string(),
        )
        return
    mask = None if reference is None else _mask_of(name, reference, organism)
    if name == _DEFAULT:
        of_organism = f"{organism_or_human(organism)}_{_DEFAULT}"
        name = of_organism if mask is None else str(mask["source"])
    is_file = Path(name).exists() or name.lower().endswith((".gmt", ".gmt.gz"))
    sets = tosica.gs.read_gmt(name) if is_file else tosica.gs.load(name)
    n_genes = len({gene for genes in sets.values() for gene in genes})
    summary: dict[str, Any] = {
        "gene_sets": name,
        "n_sets": len(sets),
        "n_genes": n_genes,
    }
    text = f"{name}: {len(sets)} gene sets with {n_genes} genes"
    if mask is not None:
        summary["reference"] = {"path": reference, **_match_summary(mask)}
        text += f"\n{reference}: {_describe_match(mask, summary['reference'])}"
        kept_names = map(str, mask["gene_sets"])
        sets = {set_name: sets[set_name] for set_name in kept_names if set_name in sets}
    if output is not None:
        tosica.gs.write_gmt(sets, output)
        session.written.append(output)
        summary["output"] = str(output)
    session.show(summary, text)
    session.conclude(f"listed {len(sets)} gene sets")


# Tables of a mask about names that were not matched, and what they hold.
_UNMATCHED = {
    "left_out": "left out",
    "unknown_genes": "not in the reference",
}


def _match_summary(mask: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of the gene sets and genes that matched a reference."""
    summary: dict[str, Any] = {"n_sets": len(mask["gene_sets"])}
    for name in (
        "n_genes",
        "n_genes_covered",
        "coverage",
        "organism",
        "matched_by",
        "n_genes_mapped",
    ):
        summary[name] = mask[name]
    for name in _UNMATCHED:
        table = mask.get(name)
        if table is not None and len(table):
            summary[name] = dict(table.itertuples(index=False))
    return summary


def _describe_match(mask: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Write the numbers, and a line for each name that was not matched."""
    lines = [
        f"{summary['n_sets']} of them are kept, with {mask['n_genes_covered']} of {mask['n_genes']} genes "
        f"({100 * mask['coverage']:.1f} %); {mask['n_genes_mapped']} genes were matched by another name"
    ]
    for table_name, words in _UNMATCHED.items():
        for name, detail in summary.get(table_name, {}).items():
            suffix = f" ({detail})" if detail else ""
            lines.append(f"{words}: {name}{suffix}")
    return "\n".join(lines)


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
