"""Read a Seurat object, however it was saved or converted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import h5py

from tosica.io._h5ad import read_h5ad
from tosica.io._h5seurat import read_h5seurat
from tosica.io._parts import assemble
from tosica.io._rds import read_rds

if TYPE_CHECKING:
    from collections.abc import Collection

    from anndata import AnnData

_CALLER = "read_seurat"


def read_seurat(
    path: str | Path,
    *,
    assay: str | None = None,
    logicals: Collection[str] = (),
    na_strings: Collection[str] = (),
) -> AnnData:
    """Read a Seurat object into an AnnData as scanpy would have made it.

    R is not needed. What was recovered, repaired or dropped is logged, a line each.

    Parameters
    ----------
    path
        An ``.rds`` file with a Seurat object (assays of version 3, 4 or 5, layers split by sample
        included) or a SingleCellExperiment; an ``.h5Seurat`` file; or an ``.h5ad`` file that
        SeuratDisk, sceasy, zellkonverter, anndataR or scCustomize wrote. Reading ``.rds`` needs
        ``pip install 'tosica[seurat]'``.
    assay
        Which assay to read from ``.rds`` and ``.h5Seurat``; by default the active one.
    logicals
        Columns of the cells' table that are logical. SeuratDisk turns TRUE and FALSE into 1 and 0,
        and a missing one into 2, which nobody can tell from numbers.
    na_strings
        Columns of the cells' table in which the string ``NA`` means missing. Conversions write that
        string for what is missing, which nobody can tell from a name.

    Returns
    -------
    ``X`` is log-normalised over all genes, float32 CSR; ``layers["counts"]`` has the counts, if the
    file has them or they can be recovered exactly. Factors are categoricals with R's order of
    levels and without unused ones; integers and logicals with missing values have
    pandas' types for that.
    ``obsm`` has the reductions, ``varm["PCs"]`` the loadings where their genes are known, and
    ``var["highly_variable"]`` the variable features.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ImportError
        If ``rdata`` is needed and missing.
    KeyError
        If an assay or a column does not exist.
    ValueError
        If the file is damaged, left behind by a conversion that failed, or holds something else; if
        it has neither counts nor log-normalised values; if layers overlap.

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
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {str(path)!r}.")
    if h5py.is_hdf5(path):
        with _open(path) as file:
            if "assays" in file and "cell.names" in file:
                parts = read_h5seurat(
                    file, assay=assay, logicals=logicals, na_strings=na_strings, caller=_CALLER
                )
            elif assay is not None:
                raise ValueError(
                    f"assay={assay!r} was given, but an .h5ad file holds one assay only; "
                    "leave it out."
                )
            else:
                parts = read_h5ad(file, logicals=logicals, na_strings=na_strings, caller=_CALLER)
    elif path.suffix.lower() in (".h5ad", ".h5seurat", ".h5"):
        raise _broken(path)
    else:
        if logicals or na_strings:
            raise ValueError(
                "logicals and na_strings are for converted files: an .rds file says itself what is "
                "logical and what is missing; leave them out."
            )
        parts = read_rds(path, assay=assay, caller=_CALLER)
    return assemble(parts, _CALLER)


def _open(path: Path) -> h5py.File:
    try:
        return h5py.File(path)
    except OSError as error:
        raise _broken(path) from error


def _broken(path: Path) -> ValueError:
    return ValueError(
        f"{str(path)!r} is not a whole HDF5 file; was it copied or downloaded to the end?"
    )
