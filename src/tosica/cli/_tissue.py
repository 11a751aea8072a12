"""Models by the name of a tissue, for ``tosica annotate`` and ``tosica train``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tosica.cli._session import SELECTION, default_option, load

if TYPE_CHECKING:
    from pathlib import Path

    from anndata import AnnData

    from tosica.model import TOSICA

tissue_option = click.option(
    "--tissue",
    metavar="NAME",
    help="Take labeled cells of CELLxGENE Census as reference, of lung or UBERON:0002048.",
)
version_option = default_option(
    "--census-version",
    "version",
    metavar="DAY",
    default="stable",
    help="Release of the census, such as 2025-11-08 for the same cells at any time.",
)


def is_given(parameter: str) -> bool:
    """Whether the caller of the command gave an option, and it is not its default."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is not click.core.ParameterSource.DEFAULT


def find_tissue_model(tissue: str, organism: str, version: str) -> Path:
    """Find the model of a tissue in the cache, or train it and put it there."""
    load("tosica.datasets")
    from tosica.datasets._tissue_model import tissue_model_folder

    return tissue_model_folder(tissue, organism_or_human(organism), version=version)


def label_options_of_tissue(
    reference: str | None, labels_key: tuple[str, ...], batch_key: str | None
) -> tuple[tuple[str, ...], str]:
    """Name the columns of labels and batches, and refuse a reference beside the tissue."""
    if reference is not None:
        raise click.UsageError("Give either --tissue or REFERENCE, not both.")
    for name in ("layer", "use_raw", *SELECTION):
        if is_given(name):
            option = name.replace("_", "-")
            raise click.UsageError(
                f"--{option} says how to read REFERENCE: leave it out with --tissue."
            )
    return labels_key or ("cell_type",), batch_key or "batch"


def read_tissue(tissue: str, organism: str, version: str) -> AnnData:
    """Get labeled cells of a tissue."""
    tosica = load("tosica.datasets")
    reference: AnnData = tosica.datasets.census(
        tissue, organism_or_human(organism), version=version
    )
    return reference


def write_tissue_card(
    model: TOSICA,
    reference: AnnData,
    folder: Path,
    *,
    checkpoint_dir: Path | None,
    resume: Path | None = None,
    **train_kwargs: Any,
) -> None:
    """Write the card of a model of a tissue; checkpoints are those of the model alone."""
    from tosica.datasets._tissue_model import write_card

    card = write_card(model, reference, **train_kwargs)
    (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")


def organism_or_human(organism: str) -> str:
    """Take human where the organism is not named, and no reference tells it."""
    return "human" if organism == "auto" else organism
