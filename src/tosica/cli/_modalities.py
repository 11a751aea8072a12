"""A MuData that a model of several modalities labels as a whole."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tosica._text import argument, listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mudata import MuData

    from tosica.model import TOSICA


def find_modalities(
    path: str, model: TOSICA, selection: Mapping[str, Any]
) -> list[str]:
    """Names of a MuData's modalities that a model of several of them labels by.

    Parameters
    ----------
    path
        The query.
    model
        The model.
    selection
        Options that say which cells are meant.

    Returns
    -------
    No name if the model has one modality, the query none of its modalities, or one was chosen.
    """
    from tosica.io._containers import list_groups
    from tosica.io._file_kinds import kind_of

    names = [modality.name for modality in model.modalities]
    if len(names) < 2 or selection["modality"] is not None or kind_of(path) != "MuData":
        return []
    groups = list_groups(path)
    return [str(name) for name in names if name in groups]


def refuse_options_of_one_modality(
    path: str, output: Path | None, options: Mapping[str, Any]
) -> None:
    """Refuse options that are about the cells of one modality, and outputs that hold only one."""
    cure = "name it with --modality, and only that one is used"
    for name, value in options.items():
        if value:
            raise click.UsageError(
                f"{argument(name)} is about one modality, and the model labels by several: {cure}."
            )
    suffix = suffix_of_container(path)
    if output is not None and output.suffix.lower() != suffix:
        raise click.UsageError(
            f"{output} would have one modality, and the model labels by several: end it in {suffix}, or {cure}."
        )


def suffix_of_container(path: str) -> str:
    """Suffix of a copy of a MuData, which is of the same format."""
    return ".h5mu" if Path(path).is_file() else ".zarr"


def read_modalities(path: str) -> MuData:
    """Read all of a MuData.

    Raises
    ------
    ValueError
        If it is damaged.
    """
    import mudata

    from tosica.io._errors import explain_damage

    read = (
        mudata.read_h5mu if suffix_of_container(path) == ".h5mu" else mudata.read_zarr
    )
    with explain_damage(path), warnings.catch_warnings(action="ignore"):
        return read(path)


def is_annotated_as_a_whole(path: str, key: str, selection: Mapping[str, Any]) -> bool:
    """Whether a MuData was labeled by several of its modalities.

    Parameters
    ----------
    path
        Annotated cells.
    key
        Key of the annotation.
    selection
        Options that say which cells are meant.
    """
    from tosica.io._containers import open_group
    from tosica.io._file_kinds import kind_of

    if selection["modality"] is not None or kind_of(path) != "MuData":
        return False
    return f"uns/{key}" in open_group(path)


def write_modalities(mdata: MuData, path: Path) -> None:
    """Write all of a MuData; what was there is replaced.

    Raises
    ------
    OSError
        If it cannot be written; what was there is unchanged.
    """
    from tosica.ondisk import replacing_store

    with (
        replacing_store(path) as temporary,
        warnings.catch_warnings(action="ignore"),
    ):
        if path.suffix.lower() == ".h5mu":
            mdata.write_h5mu(temporary)
        else:
            mdata.write_zarr(temporary)


def say_modalities(names: list[str], group: str) -> str:
    """Say which cells of a container were labeled, as the end of a sentence; empty if it is none."""
    if names:
        return f" by {listed([repr(name) for name in names])}"
    folder, _, name = group.rpartition("/")
    noun = {"mod": "modality", "tables": "table", "table": "table"}.get(folder)
    return f" of the {noun} {name!r}" if noun else ""
