"""Read the formats that pipelines hand over, and write cells and tables whole or not at all."""

from __future__ import annotations

import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tosica._settings import warn_user
from tosica._text import argument, only_known

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import pandas as pd
    from anndata import AnnData

    from tosica.model import TOSICA

CELLS = (".h5ad", ".zarr", ".h5mu")
_SEURAT = ("rds", "h5seurat")
TABLES = (".csv", ".tsv", ".parquet")
# Names of cells and genes in a loom file: of loompy and Seurat, of anndata, and of others.
_LOOM_CELLS = ("CellID", "obs_names", "cell_names", "barcodes")
_LOOM_GENES = ("Gene", "var_names", "gene_names", "Accession")

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
    for parameter, column in columns.items():
        if column is not None and column not in names:
            raise KeyError(
                f"{argument(parameter)} {column!r} is no column of adata.obs{only_known(column, names)}"
            )


def read_cells(
    path: str,
    *,
    backed: bool = False,
    score: Callable[[Any], int] | None = None,
    seurat: bool = False,
    genome: str | None = None,
    assay: str | None = None,
    modality: str | None = None,
    table: str | None = None,
) -> AnnData:
    """Read cells with their expression.

    Parameters
    ----------
    path
        File or folder. Names of genes that occur twice in files of 10x Genomics get a number, as
        scanpy gives it.
    backed
        Leave the expression on disk where the format allows it, and read a table as the ``obs`` of
        cells without genes.
    score
        Tells which modality or table of a container is meant, if that is not named.
    seurat
        Repair an ``.h5ad`` file that was converted from a Seurat object.
    genome, assay, modality, table
        What to take of a file of 10x Genomics, a Seurat object, a MuData, and a SpatialData store.

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path.
    ModuleNotFoundError
        If a package is missing that reads such a file.
    ValueError
        If the file is damaged, or holds no cells.
    """
    from anndata import AnnData

    from tosica.io import read_10x, read_seurat
    from tosica.io._containers import choose_group, open_cells, read_whole
    from tosica.io._errors import ReadError, explain_damage
    from tosica.io._file_kinds import KNOWN, kind_of

    with suppress(ImportError):
        import_module("hdf5plugin")  # more compressions of HDF5
    with explain_damage(path):
        kind = kind_of(path)
        _refuse_choice(path, kind, genome, assay)
        if kind == "model":
            raise ReadError(f"{path!r} is the folder of a model; give {KNOWN}.")
        if kind == "table" and not backed:
            separator = "" if ".csv" in path.lower() else ", sep='\\t'"
            call = f"anndata.AnnData(pandas.read_csv(path, index_col=0{separator})), with .T if its rows are genes"
            raise ReadError(
                f"{path!r} is a table: make cells of counts by {call}; give {KNOWN}."
            )
    if kind in _SEURAT or (seurat and kind == "h5ad"):
        return read_seurat(path, assay=assay)
    if kind.startswith("10x"):
        return read_10x(path, genome=genome)
    with explain_damage(path):
        if kind == "table":
            return AnnData(obs=_read_table(path))
        if kind == "loom":
            return _read_loom(path)
        group = choose_group(path, modality or table, score)
        return open_cells(path, group) if backed else read_whole(path, group)


def check_selection(path: str, selection: Mapping[str, Any]) -> None:
    """Refuse to choose of a file what its kind does not have, as :func:`read_cells` does.

    Raises
    ------
    ValueError
        If a genome or an assay is chosen of a file without.
    """
    from tosica.io._errors import explain_damage
    from tosica.io._file_kinds import kind_of

    with explain_damage(path):
        _refuse_choice(path, kind_of(path), selection["genome"], selection["assay"])


def _refuse_choice(path: str, kind: str, genome: str | None, assay: str | None) -> None:
    from tosica.io._errors import ReadError

    for option, value, is_of_kind in (
        ("genome", genome, kind.startswith("10x")),
        ("assay", assay, kind in _SEURAT),
    ):
        if value is not None and not is_of_kind:
            raise ReadError(
                f"{path!r} is of the kind {kind}, of which no {option} can be chosen: leave --{option} out."
            )


def find_group(path: str, model: TOSICA, selection: Mapping[str, Any]) -> str:
    """Find the group of a container that a model annotates; empty if the file is none."""
    from tosica.io._file_kinds import ON_DISK, kind_of
    from tosica.tl._annotate_file import find_cells

    name = selection["modality"] or selection["table"]
    if name is None and kind_of(path) not in ON_DISK:
        return ""
    return find_cells(path, model, name)


def _read_loom(path: str) -> AnnData:
    """Read a loom file by anndata, which needs loompy."""
    import h5py
    from anndata.io import read_loom

    with h5py.File(path) as file:
        obs_names = _first_of(_LOOM_CELLS, file["col_attrs"])
        var_names = _first_of(_LOOM_GENES, file["row_attrs"])
    try:
        with warnings.catch_warnings(action="ignore"):
            adata = read_loom(path, X_name="", obs_names=obs_names, var_names=var_names)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{path!r} is a loom file, which anndata reads by loompy: pip install loompy."
        ) from error
    # Two genes may have one symbol, as in files of 10x Genomics.
    adata.var_names_make_unique()
    return adata


def number_repeated_names(adata: AnnData, *, genes: bool, warns: bool = True) -> None:
    """Give cells that share a name a number, as scanpy does.

    Parameters
    ----------
    adata
        Cells in memory. Nothing is written where all names are unique.
    genes
        Whether to do the same to genes.
    warns
        Whether to warn of it: not where the names are in no output.
    """
    names = {"cells": adata.obs_names}
    if genes:
        names["genes"] = adata.var_names
    for things, of_things in names.items():
        repeated = of_things[of_things.duplicated()]
        if len(repeated) == 0:
            continue
        if warns:
            warn_user(
                f"Some {things} share a name, such as {str(repeated[0])!r}: all but the first got a number."
            )
        # anndata warns of barcodes, which end in a number, too.
        with warnings.catch_warnings(action="ignore"):
            if things == "cells":
                adata.obs_names_make_unique()
            else:
                adata.var_names_make_unique()


def _first_of(names: tuple[str, ...], attributes: Collection[str]) -> str:
    """The first of several names that is there, or else the first."""
    return next((name for name in names if name in attributes), names[0])


def _read_table(path: str) -> pd.DataFrame:
    """Read a table of cells; the first column has their names."""
    import pandas as pd

    if path.lower().endswith(".parquet"):
        return pd.read_parquet(path)
    separator = _separator(path)
    columns = pd.read_csv(path, sep=separator, index_col=0, nrows=0).columns
    if separator == "\t" and not len(columns):
        separator = ","
        columns = pd.read_csv(path, sep=separator, index_col=0, nrows=0).columns
    # Labels may be numbers, as 01, or be called NA, None or null.
    texts = [
        name
        for name in columns
        if not any(number in name for number in ("_probability", "_novelty"))
    ]
    table = pd.read_csv(
        path,
        sep=separator,
        index_col=0,
        dtype=dict.fromkeys(texts, str),
        keep_default_na=False,
        na_values=[""],
    )
    for name in texts:
        # Pandas writes 1.0 for 1 beside cells without a number.
        is_number = table[name].dropna().str.fullmatch(r"-?\d+\.0")
        if table[name].isna().any() and is_number.all():
            table[name] = table[name].astype(float)
    return table.set_index(table.index.astype(str))


def _separator(path: str) -> str:
    name = path.lower().removesuffix(".gz")
    return "," if name.endswith(".csv") else "\t"


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


def write_cells(adata: AnnData, path: Path, source: str, group: str) -> None:
    """Write annotated cells; what was there is replaced.

    Parameters
    ----------
    adata
        The cells.
    path
        A path that ends in ``.h5ad`` or ``.zarr``, or as the container that they are from does.
    source, group
        Where they are from, and their group if that is a container.

    Raises
    ------
    OSError
        If they cannot be written; what was there is unchanged.
    """
    from tosica.ondisk import (
        copied_container,
        is_copy_of_container,
        open_for_writing,
        replacing_store,
        write_anndata,
        write_annotation,
    )

    if is_copy_of_container(source, group, path):
        with copied_container(source, group, path) as root:
            write_annotation(root, adata)
        return
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
