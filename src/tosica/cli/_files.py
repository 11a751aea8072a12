"""Read the formats that pipelines hand over, and write cells and tables whole or not at all."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

CELLS = (".h5ad", ".zarr")
TABLES = (".csv", ".tsv", ".parquet")

# --------------------------------------------------------------------------- reading


def check_cells(path: str, **columns: str | None) -> None:
    """Refuse a path without a file and columns that its ``obs`` lacks, before anything heavy is imported.

    Columns are looked for in ``.h5ad`` files, which open at once.

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path.
    KeyError
        If a column is missing; the sentence names the argument.
    """
    if "://" not in path and not Path(path).exists():
        raise FileNotFoundError(f"There is no file or folder {path!r}.")
    if not path.lower().endswith(".h5ad") or not any(columns.values()):
        return
    import h5py

    names = None
    with suppress(OSError), h5py.File(path) as file:
        obs = file.get("obs")
        # A MuData cannot be read here, and old files have a table in place of a group.
        if "mod" in file or not isinstance(obs, h5py.Group):
            return
        names = [name for name in obs if name != "_index"]
    if names is None:
        return
    for argument, column in columns.items():
        if column is not None and column not in names:
            raise KeyError(
                f"{argument} {column!r} is no column of adata.obs, only {', '.join(map(repr, names))}."
            )


def read_cells(
    path: str, *, seurat: bool = False, backed: bool = False, genome: str | None = None
) -> AnnData:
    """Read cells with their expression.

    Parameters
    ----------
    path
        File or folder. Names of genes that occur twice in files of 10x Genomics get a number, as
        scanpy gives it.
    seurat
        Repair an ``.h5ad`` file that was converted from a Seurat object.
    backed
        Leave the expression on disk where the format allows it, and read a table as the ``obs`` of
        cells without genes.
    genome
        Genome to take of a matrix of 10x Genomics with several.

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path.
    ModuleNotFoundError
        If a package is missing that reads such a file.
    ValueError
        If the file is damaged, or holds no cells.
    """
    import anndata as ad

    from tosica.data import load_annotations
    from tosica.io import read_10x, read_seurat
    from tosica.io._errors import ReadError, explain_damage
    from tosica.io._kinds import KNOWN, kind_of

    with suppress(ImportError):
        import_module("hdf5plugin")  # more compressions of HDF5
    with explain_damage(path):
        kind = kind_of(path)
        if genome is not None and not kind.startswith("10x"):
            raise ReadError(
                f"{path!r} is of the kind {kind}, of which no genome can be chosen: leave --genome out."
            )
        if kind == "model":
            raise ReadError(f"{path!r} is the folder of a model; give {KNOWN}.")
        if kind == "table" and not backed:
            call = "anndata.AnnData(pandas.read_csv(path, index_col=0)), with .T if its rows are genes"
            raise ReadError(
                f"{path!r} is a table: make cells of counts by {call}; give {KNOWN}."
            )
    if kind in ("rds", "h5seurat") or (seurat and kind == "h5ad"):
        return read_seurat(path)
    if kind.startswith("10x"):
        return read_10x(path, genome=genome)
    with explain_damage(path):
        if kind == "table":
            return ad.AnnData(obs=_read_table(path))
        if kind == "h5ad":
            # Cells without X cannot be brought to memory if they are backed.
            return ad.read_h5ad(path, backed="r" if backed and _has_x(path) else None)
        if backed:
            # What it needs comes with the extra "atlas", but not with zarr.
            with suppress(ImportError):
                adata = ad.experimental.read_lazy(path)
                load_annotations(adata)
                return adata
        return ad.read_zarr(path)


def _has_x(path: str) -> bool:
    import h5py

    with h5py.File(path) as file:
        return "X" in file


def _read_table(path: str) -> pd.DataFrame:
    """Read a table of cells; the first column has their names."""
    import pandas as pd

    if path.lower().endswith(".parquet"):
        return pd.read_parquet(path)
    table = pd.read_csv(path, sep=_separator(path), index_col=0)
    return table.set_index(table.index.astype(str))


def _separator(path: str) -> str:
    return "," if path.lower().endswith(".csv") else "\t"


# --------------------------------------------------------------------------- writing


class OutputPath(click.ParamType):
    """Where to write, with one of several suffixes."""

    name = "path"

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Check the suffix."""
        path = Path(value)
        if self.suffixes and path.suffix.lower() not in self.suffixes:
            self.fail(
                f"{str(path)!r} must end in {' or '.join(self.suffixes)}.", param, ctx
            )
        return path


def check_outputs(*paths: Path | None, overwrite: bool) -> None:
    """Check before the work that its results can be written.

    Raises
    ------
    OSError
        If there is no folder to write to, or something is there that is not to be replaced.
    ModuleNotFoundError
        If a package is missing that writes such a file.
    """
    from tosica._files import check_output

    for path in paths:
        if path is None:
            continue
        check_output(path, overwrite=overwrite)
        if path.suffix.lower() == ".parquet":
            # Fails before the work if no package is there that writes it.
            import pandas as pd

            pd.DataFrame({"cell": ["a"]}).to_parquet()


def write_cells(adata: AnnData, path: Path) -> None:
    """Write annotated cells as ``.h5ad`` or ``.zarr``; what was there is replaced.

    Raises
    ------
    OSError
        If they cannot be written; what was there is unchanged.
    """
    from tosica.ondisk import open_for_writing, replacing_store, write_anndata

    with (
        replacing_store(path) as temporary,
        open_for_writing(temporary, new=True) as root,
    ):
        write_anndata(root, adata)


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write the table of the cells as CSV, TSV or Parquet; the first column has their names.

    Raises
    ------
    OSError
        If it cannot be written; what was there is unchanged.
    """
    from tosica._files import replace_file

    named = table.rename_axis(index=str(table.index.name or "obs_names"))
    with replace_file(path) as temporary:
        if path.suffix.lower() == ".parquet":
            named.to_parquet(temporary)
        else:
            named.to_csv(temporary, sep=_separator(path.name))
