"""Read a Seurat object from any of the common file formats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import h5py

from tosica._progress import progress
from tosica._validation import check_names, check_path, check_string
from tosica.io._h5ad import read_h5ad
from tosica.io._h5seurat import read_h5seurat
from tosica.io._hdf5 import not_whole, open_hdf5
from tosica.io._parts import Parts, to_anndata
from tosica.io._rds import read_rds
from tosica.io._refused import RefusedValue, as_builtin_errors, explain_damage

if TYPE_CHECKING:
    from collections.abc import Collection

    from anndata import AnnData


def read_seurat(
    path: str | Path,
    *,
    assay: str | None = None,
    logicals: Collection[str] = (),
    na_strings: Collection[str] = (),
) -> AnnData:
    """Read a Seurat object into an AnnData that scanpy can work with.

    R is not needed. The log says what was recovered, repaired or dropped.

    Parameters
    ----------
    path
        An ``.rds`` file with a Seurat object (assays of version 3, 4 or 5, layers split by sample
        included) or a SingleCellExperiment; an ``.h5Seurat`` file; or an ``.h5ad`` file that
        SeuratDisk, sceasy, zellkonverter, anndataR or scCustomize wrote. Reading ``.rds`` needs
        ``pip install 'tosica[seurat]'``.
    assay
        Assay to read from an ``.rds`` or ``.h5Seurat`` file; by default the active one.
    logicals
        Logical columns of the table of the cells. SeuratDisk writes 1 for TRUE, 0 for FALSE and 2
        for a missing value, which cannot be distinguished from numbers.
    na_strings
        Columns of the table of the cells in which the string ``NA`` means missing. Converters write
        this string for missing values, and it cannot be distinguished from a name.

    Returns
    -------
    An AnnData. ``X`` is log-normalised over all genes, float32 CSR. ``layers["counts"]`` has the
    counts if the file has them or they can be recovered exactly. Factors are categoricals in R's
    order of levels, without unused levels. Integers and logicals with missing values have pandas'
    nullable types. ``obsm`` has the reductions, ``varm["PCs"]`` the loadings where their genes are
    known, and ``var["highly_variable"]`` the variable features.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    FileNotFoundError
        If there is no such file.
    ImportError
        If ``rdata`` is needed and missing.
    KeyError
        If an assay or a column does not exist.
    MemoryError
        If the object does not fit into memory.
    PermissionError
        If the file may not be read.
    ValueError
        If the file is damaged, comes from a failed conversion, or holds something else; if it has
        neither counts nor log-normalised values; if layers overlap.

    Notes
    -----
    Seurat turns ``_`` in gene names into ``-``.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import anndata as ad
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "converted.h5ad"
    ...     ad.AnnData(adata.X, obs=adata.obs, var=adata.var[[]]).write_h5ad(path)
    ...     tosica.io.read_seurat(path).shape
    (700, 765)
    """
    check_path("path", path)
    check_string("assay", assay, optional=True)
    logicals = check_names("logicals", logicals)
    na_strings = check_names("na_strings", na_strings)
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {str(path)!r}.")
    with as_builtin_errors(), explain_damage(path), progress(None, "read_seurat"):
        return to_anndata(_read(path, assay, logicals, na_strings))


def _read(
    path: Path, assay: str | None, logicals: Collection[str], na_strings: Collection[str]
) -> Parts:
    """Choose the reader by what the file is."""
    if h5py.is_hdf5(path):
        with open_hdf5(path) as file:
            if "assays" in file and "cell.names" in file:
                return read_h5seurat(file, assay=assay, logicals=logicals, na_strings=na_strings)
            if assay is not None:
                raise RefusedValue(
                    f"assay={assay!r} was given, but an .h5ad file holds one assay only; "
                    "leave it out."
                )
            return read_h5ad(file, logicals=logicals, na_strings=na_strings)
    if path.suffix.lower() in (".h5ad", ".h5seurat", ".h5"):
        raise not_whole(path)
    if logicals or na_strings:
        raise RefusedValue(
            "logicals and na_strings are for converted files only, because an .rds file stores "
            "logical and missing values as such; leave them out."
        )
    return read_rds(path, assay=assay)
