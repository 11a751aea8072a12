"""``tosica gene-sets``: which collections there are, and how well one fits a reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tosica.cli._command import Command
from tosica.cli._write import OutputPath, check_free

if TYPE_CHECKING:
    from types import ModuleType

    from tosica.cli._session import Session

# Of the organism of the reference.
_EITHER = "gobp"
_SHOWN = ["organism", "n_sets", "available", "version", "licence", "source"]


@click.command(cls=Command, short_help="List gene sets, and match them to a reference.")
@click.argument("name", required=False, metavar="[NAME|GMT]")
@click.option(
    "--for", "reference", metavar="REFERENCE", help="Cells to match the genes of the sets with."
)
@click.option(
    "--organism",
    type=click.Choice(["auto", "human", "mouse"]),
    default="auto",
    show_default=True,
    help="Organism of the reference.",
)
@click.option("-o", "--output", type=OutputPath(".gmt", ".gz"), help="Write the gene sets as GMT.")
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
    check_free(output, overwrite=overwrite)
    if name is None:
        from tosica.gs import collections

        table = collections()
        session.show(
            {"collections": table.reset_index().to_dict("records")}, table[_SHOWN].to_string()
        )
        return
    tosica = session.load("tosica.gs", "tosica.pp", "tosica.cli._read")
    mask = None if reference is None else _match(tosica, name, reference, organism)
    if name == _EITHER:
        name = f"human_{_EITHER}" if mask is None else str(mask["source"])
    sets = _read(tosica, name)
    result: dict[str, Any] = {
        "gene_sets": name,
        "n_sets": len(sets),
        "n_genes": len({gene for genes in sets.values() for gene in genes}),
    }
    text = f"{name}: {result['n_sets']} gene sets with {result['n_genes']} genes"
    if mask is not None:
        kept = [str(one) for one in mask["gene_sets"]]
        names = ("n_genes", "n_genes_covered", "coverage", "organism", "matched_by")
        result["reference"] = {
            "path": reference,
            "n_sets": len(kept),
            **{key: mask[key] for key in (*names, "n_genes_mapped")},
        }
        text += (
            f"\n{reference}: {len(kept)} of them are kept, with {mask['n_genes_covered']} of "
            f"{mask['n_genes']} genes ({100 * mask['coverage']:.1f} %); {mask['n_genes_mapped']} "
            "genes were matched by another name"
        )
        sets = {one: sets[one] for one in kept if one in sets}
    if output is not None:
        tosica.gs.write_gmt(sets, output)
        session.note(f"wrote {len(sets)} gene sets to {output}")
        result["output"] = str(output)
    session.show(result, text)


def _read(tosica: ModuleType, name: str) -> dict[str, list[str]]:
    from tosica.gs._collections import collection_names

    if name.partition("@")[0] in collection_names() or not (
        Path(name).exists() or name.lower().endswith((".gmt", ".gmt.gz"))
    ):
        return tosica.gs.load(name)
    return tosica.gs.read_gmt(name)


def _match(tosica: ModuleType, name: str, reference: str, organism: str) -> dict[str, Any]:
    """Build the mask of a reference, of which only the names of the genes are needed."""
    import anndata as ad
    import numpy as np

    from tosica.cli._read import open_cells

    var = open_cells(reference).var
    cells = ad.AnnData(np.zeros((1, len(var)), dtype=np.float32), var=var)
    tosica.pp.build_mask(cells, name, organism=organism)
    return dict(cells.uns["tosica_mask"])
