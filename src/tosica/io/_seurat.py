"""Read Seurat objects from any common file format, repair converted ones, and write for Seurat."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pandas as pd

from tosica._files import replace_file
from tosica._progress import progress
from tosica._settings import logger
from tosica._text import list_names, parameter
from tosica._validate import CellData, as_names, validate_params
from tosica.data import are_factor_codes
from tosica.io._contents import SeuratContents, contents_of_adata, to_anndata
from tosica.io._errors import ReadError, explain_damage
from tosica.io._file_kinds import kind_of
from tosica.io._hdf5 import read_h5ad, read_h5seurat
from tosica.io._rds import read_rds

if TYPE_CHECKING:
    from collections.abc import Collection

    from anndata import AnnData

    from tosica._types import AnyPath


@validate_params()
def read_seurat(
    path: AnyPath,
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
        SeuratDisk, sceasy, zellkonverter, anndataR or scCustomize wrote.
    assay
        Assay to read from an ``.rds`` or ``.h5Seurat`` file; by default the active one. If that was
        computed, by SCTransform or by integration, it is the assay with all measured genes.
    logicals
        Logical columns of the table of the cells. SeuratDisk writes 1 for TRUE, 0 for FALSE and 2
        for a missing value, which cannot be distinguished from numbers.
    na_strings
        Columns of the table of the cells in which the string ``NA`` means missing. Converters write
        this string for missing values, and it cannot be distinguished from a name.

    Returns
    -------
    An AnnData. ``X`` is log-normalized over all genes, float32 CSR. ``layers["counts"]`` has the
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
        neither counts nor log-normalized values; if layers overlap.

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
    logicals = as_names(logicals)
    na_strings = as_names(na_strings)
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {str(path)!r}.")
    with explain_damage(path), progress(None, "read_seurat"):
        return to_anndata(_read(path, assay, logicals, na_strings))


def _read(
    path: Path,
    assay: str | None,
    logicals: Collection[str],
    na_strings: Collection[str],
) -> SeuratContents:
    """Choose the reader by the kind of the file."""
    kind = kind_of(path)
    if kind not in ("h5ad", "h5seurat", "rds"):
        raise ReadError(
            f"{str(path)!r} is of the kind {kind}, and holds no Seurat object: give "
            ".rds, .h5Seurat or .h5ad."
        )
    if kind == "rds":
        if logicals or na_strings:
            raise ReadError(
                "logicals and na_strings are for converted files only, because an .rds "
                "file stores logical and missing values as such; leave them out."
            )
        return read_rds(path, assay=assay)
    if kind == "h5ad":
        if assay is not None:
            raise ReadError(
                f"{parameter('assay', assay)} was given, but an .h5ad file holds one assay "
                "only; leave it out."
            )
        return read_h5ad(path, logicals=logicals, na_strings=na_strings)
    with h5py.File(path) as file:
        return read_h5seurat(
            file, assay=assay, logicals=logicals, na_strings=na_strings
        )


@validate_params()
@explain_damage("adata")
def from_seurat(
    adata: AnnData, *, logicals: Collection[str] = (), na_strings: Collection[str] = ()
) -> AnnData:
    """Repair an AnnData that was converted from a Seurat object.

    This does for an object in memory what :func:`read_seurat` does for a file. It cannot restore
    factor levels that anndata dropped when it read the file. It logs columns with such codes;
    :func:`read_seurat` restores their levels from the file.

    Parameters
    ----------
    adata
        The converted object. It is not changed.
    logicals
        Columns of ``obs`` in which 0, 1 and 2 mean FALSE, TRUE and missing.
    na_strings
        Columns of ``obs`` in which the string ``NA`` means missing.

    Returns
    -------
    A new AnnData, as :func:`read_seurat` returns it.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If a column does not exist.
    ValueError
        If there are neither counts nor log-normalized values in ``X``, the layers and ``raw``.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()  # X is scaled, raw is log-normalized
    >>> float(adata.X.min()) < 0
    True
    >>> repaired = tosica.io.from_seurat(adata)
    >>> float(repaired.X.min())
    0.0
    """
    logicals = as_names(logicals)
    unusable = [f"varm[{key!r}]" for key in adata.varm]
    unusable += [f"obsp[{key!r}]" for key in adata.obsp]
    if "neighbors" in adata.uns:
        unusable.append("uns['neighbors']")
    contents = contents_of_adata(
        adata,
        adata.obsm,
        unusable,
        logicals=logicals,
        na_strings=as_names(na_strings),
    )
    codes = [
        str(name)
        for name in adata.obs
        if name not in logicals and are_factor_codes(adata, name)
    ]
    if codes:
        contents.notes.append(
            f"{list_names(codes)} may be codes of factors whose levels anndata dropped; "
            "tosica.io.read_seurat restores them from the file"
        )
    # Matrices that need no repair are those of the caller.
    return to_anndata(contents).copy()


# --------------------------------------------------------------------------- writing

_LEVELS = "levels.csv"
_SCRIPT = "add_to_seurat.R"
# Files that not every annotation has.
_OPTIONAL = ("probabilities.csv", "X_umap.csv")
_COLUMNS = (
    "prediction",
    "prediction_ontology_term_id",
    "probability",
    "probability_before",
    "novelty",
    "novelty_pvalue",
    "novelty_cluster",
    "novelty_cluster_pvalue",
    "novelty_group",
    "majority_vote",
    "confident",
    "confident_ontology_term_id",
    "confident_probability",
)


@validate_params(adata=CellData(mudata=True))
def to_seurat(adata: AnnData, folder: AnyPath, *, key: str = "tosica") -> None:
    """Write an annotation as CSV files, with an R script that adds it to a Seurat object.

    In R: ``source("folder/add_to_seurat.R"); object <- add_tosica(object, "folder")``.

    Parameters
    ----------
    adata
        Annotated by :meth:`tosica.TOSICA.annotate`. Cells are matched by ``obs_names``.
    folder
        Created if it does not exist. The files are ``metadata.csv`` (prediction, probability, and
        terms, novelty, majority vote, levels and confident answers if ``adata`` has them),
        ``levels.csv`` (the order of the labels), ``X_tosica.csv``, ``probabilities.csv`` if
        ``adata`` has probabilities of all labels, ``X_umap.csv`` if it has a UMAP, and
        ``add_to_seurat.R``. Files of an earlier call are replaced when all are written.
    key
        The ``key_added`` of the annotation.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If ``adata`` was not annotated under this key.
    OSError
        If a file cannot be written. Existing files are unchanged.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import pandas as pd
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.obs["tosica_prediction"] = adata.obs["bulk_labels"]
    >>> adata.obs["tosica_probability"] = 0.9
    >>> adata.obsm["X_tosica"] = adata.obsm["X_pca"]
    >>> adata.uns["tosica"] = {"gene_sets": [f"set {i}" for i in range(50)]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tosica.io.to_seurat(adata, folder)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['X_tosica.csv', 'X_umap.csv', 'add_to_seurat.R', 'levels.csv', 'metadata.csv']
    """
    missing = []
    if f"{key}_prediction" not in adata.obs:
        missing.append(f"obs['{key}_prediction']")
    if f"X_{key}" not in adata.obsm:
        missing.append(f"obsm['X_{key}']")
    if key not in adata.uns:
        missing.append(f"uns[{key!r}]")
    if missing:
        raise KeyError(
            f"There is no {', '.join(missing)}: call model.annotate(adata) first, or "
            "name its key_added in key=."
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tables = _tables(adata, key)
    script = files("tosica.io").joinpath(_SCRIPT).read_text("utf-8")
    is_repeated = (folder / _SCRIPT).exists()
    with ExitStack() as stack:
        script_path = stack.enter_context(replace_file(folder / _SCRIPT))
        script_path.write_text(script.replace("@KEY@", key))
        for name, table in tables.items():
            path = stack.enter_context(replace_file(folder / name))
            table.to_csv(path, float_format="%.6g", na_rep="NA", index=name != _LEVELS)
        # The script is replaced last, so that nobody reads tables of two calls with it.
        (folder / _SCRIPT).unlink(missing_ok=True)
    if is_repeated:
        # Files of the earlier call would contradict the new labels.
        for name in _OPTIONAL:
            if name not in tables:
                (folder / name).unlink(missing_ok=True)
    logger.info("to_seurat: wrote %s and %s to %s", ", ".join(tables), _SCRIPT, folder)


def _tables(adata: AnnData, key: str) -> dict[str, pd.DataFrame]:
    columns = [f"{key}_{column}" for column in _COLUMNS]
    for level in adata.uns[key].get("levels", ()):
        columns += [f"{key}_prediction_{level}", f"{key}_probability_{level}"]
    columns = [column for column in columns if column in adata.obs]
    prediction = adata.obs[f"{key}_prediction"].astype("category")
    embedding = f"X_{key}"
    tables = {
        "metadata.csv": adata.obs[columns],
        _LEVELS: pd.DataFrame({f"{key}_prediction": prediction.cat.categories}),
        f"{embedding}.csv": pd.DataFrame(
            adata.obsm[embedding],
            index=adata.obs_names,
            columns=list(adata.uns[key]["gene_sets"]),
        ),
    }
    if f"{key}_probabilities" in adata.obsm:
        tables["probabilities.csv"] = adata.obsm[f"{key}_probabilities"]
    if "X_umap" in adata.obsm:
        umap = np.asarray(adata.obsm["X_umap"])
        axes = [f"UMAP_{axis + 1}" for axis in range(umap.shape[1])]
        tables["X_umap.csv"] = pd.DataFrame(umap, index=adata.obs_names, columns=axes)
    return {name: table.rename_axis("cell") for name, table in tables.items()}
