"""Write annotated cells and tables, whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tosica._files import as_os_error, replace_file

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

CELLS = (".h5ad", ".zarr")
TABLES = (".csv", ".tsv", ".parquet")


class OutputPath(click.ParamType):
    """Where to write, with one of several suffixes."""

    name = "path"

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Check the suffix."""
        path = Path(value)
        if self.suffixes and path.suffix.lower() not in self.suffixes:
            *most, last = self.suffixes
            ends = f"{', '.join(most)} or {last}" if most else last
            self.fail(f"{str(path)!r} must end in {ends}.", param, ctx)
        return path


def check_free(path: Path | None, *, overwrite: bool) -> None:
    """Check before the work that its result can be written.

    Raises
    ------
    FileNotFoundError
        If there is no folder to write to.
    FileExistsError
        If there is something already that is not to be replaced.
    PermissionError
        If the folder is read-only.
    ModuleNotFoundError
        If a package is missing that writes such a file.
    """
    if path is None:
        return
    folder = path.parent
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the folder {str(folder)!r} to write {path.name!r} to does not exist: create it first."
        )
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"the folder {str(folder)!r} is read-only: choose another one.")
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FileExistsError(f"{str(path)!r} is no file that could be replaced: name another one.")
    if path.exists() and not overwrite:
        raise FileExistsError(
            f"{str(path)!r} exists: pass --overwrite to replace it, or give another output."
        )
    if path.suffix.lower() == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{str(path)!r} is to be a Parquet file, but the package pyarrow is not installed: "
                "pip install 'tosica[parquet]', or write .csv or .tsv."
            ) from error


def write_cells(adata: AnnData, path: Path) -> None:
    """Write annotated cells as ``.h5ad`` or ``.zarr``; what was there is replaced.

    Raises
    ------
    OSError
        If they cannot be written; what was there is unchanged.
    """
    if path.suffix.lower() == ".h5ad":
        with replace_file(path) as temporary, as_os_error():
            adata.write_h5ad(temporary)
        return
    from anndata.io import write_elem

    from tosica.ondisk import open_for_writing, replacing_store

    try:
        # As tosica.tl.annotate_file writes it.
        with (
            replacing_store(path) as temporary,
            open_for_writing(temporary, "zarr", new=True) as root,
        ):
            write_elem(root, "/", adata)
    except OSError as error:
        raise type(error)(
            f"{str(path)!r} could not be written ({error.strerror or error}): is the disk full, "
            "or the folder read-only? What was there before is unchanged."
        ) from error


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write the table of the cells as CSV, TSV or Parquet; the first column has their names.

    Raises
    ------
    OSError
        If it cannot be written; what was there is unchanged.
    ValueError
        If a column has values that Parquet cannot hold.
    """
    named = table.rename_axis(index=str(table.index.name or "obs_names"))
    with replace_file(path) as temporary:
        if path.suffix.lower() != ".parquet":
            named.to_csv(temporary, sep="," if path.suffix.lower() == ".csv" else "\t")
            return
        try:
            named.to_parquet(temporary)
        except OSError:
            raise
        # What pyarrow raises is a ValueError, a TypeError or neither.
        except Exception as error:
            raise ValueError(
                f"{str(path)!r} cannot be written, because Parquet does not hold what is in obs "
                f"({' '.join(str(error).split())}): write .csv or .tsv."
            ) from error


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, if it exists."""
    shutil.rmtree(folder, ignore_errors=True)
