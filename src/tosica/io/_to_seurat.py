"""Write an annotation for Seurat."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from tosica._files import replace_file
from tosica._settings import logger
from tosica._validation import check_data, check_path, check_string

if TYPE_CHECKING:
    from anndata import AnnData

_LEVELS, _SCRIPT_FILE = "levels.csv", "add_to_seurat.R"
_COLUMNS = (
    "prediction",
    "prediction_ontology_term_id",
    "probability",
    "novelty",
    "novelty_pvalue",
    "novelty_cluster",
    "novelty_cluster_pvalue",
    "majority_vote",
)


def to_seurat(adata: AnnData, folder: str | Path, *, key: str = "tosica") -> None:
    """Write an annotation as CSV files, with an R script that adds it to a Seurat object.

    In R: ``source("folder/add_to_seurat.R"); object <- add_tosica(object, "folder")``.

    Parameters
    ----------
    adata
        Annotated by :meth:`tosica.TOSICA.annotate`. Cells are matched by ``obs_names``.
    folder
        Created if it does not exist. The files are ``metadata.csv`` (prediction, probability, and
        terms, novelty and majority vote if ``adata`` has them), ``levels.csv`` (the order of the
        labels), ``X_tosica.csv``, ``probabilities.csv`` if ``adata`` has probabilities of all
        labels, ``X_umap.csv`` if it has a UMAP, and ``add_to_seurat.R``. Files of an earlier call
        are replaced when all are written.
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
    check_data(adata, mudata=True)
    check_string("key", key)
    check_path("folder", folder)
    embedding = f"X_{key}"
    missing = [
        name
        for name, exists in {
            f"obs[{f'{key}_prediction'!r}]": f"{key}_prediction" in adata.obs,
            f"obsm[{embedding!r}]": embedding in adata.obsm,
            f"uns[{key!r}]": key in adata.uns,
        }.items()
        if not exists
    ]
    if missing:
        raise KeyError(
            f"There is no {', '.join(missing)}: call model.annotate(adata) first, or name its "
            "key_added in key=."
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tables = _tables(adata, key)
    again = (folder / _SCRIPT_FILE).exists()
    with ExitStack() as stack:
        script = stack.enter_context(replace_file(folder / _SCRIPT_FILE))
        script.write_text(_SCRIPT.replace("@KEY@", key))
        for name, table in tables.items():
            path = stack.enter_context(replace_file(folder / name))
            table.to_csv(path, float_format="%.6g", na_rep="NA", index=name != _LEVELS)
        # The script is replaced last, so that nobody reads tables of two calls with it.
        (folder / _SCRIPT_FILE).unlink(missing_ok=True)
    # Those of an earlier call would contradict the new labels.
    for old in {"probabilities.csv", "X_umap.csv"} - set(tables) if again else ():
        (folder / old).unlink(missing_ok=True)
    logger.info(
        "to_seurat: wrote %s and add_to_seurat.R to %s",
        ", ".join(tables),
        folder,
    )


def _tables(adata: AnnData, key: str) -> dict[str, pd.DataFrame]:
    names = [f"{key}_{column}" for column in _COLUMNS if f"{key}_{column}" in adata.obs]
    prediction = adata.obs[f"{key}_prediction"].astype("category")
    embedding = f"X_{key}"
    tables = {
        "metadata.csv": adata.obs[names],
        _LEVELS: pd.DataFrame({f"{key}_prediction": prediction.cat.categories}),
        f"{embedding}.csv": pd.DataFrame(
            adata.obsm[embedding], index=adata.obs_names, columns=list(adata.uns[key]["gene_sets"])
        ),
    }
    if f"{key}_probabilities" in adata.obsm:
        tables["probabilities.csv"] = adata.obsm[f"{key}_probabilities"]
    if "X_umap" in adata.obsm:
        tables["X_umap.csv"] = pd.DataFrame(
            adata.obsm["X_umap"], index=adata.obs_names, columns=["UMAP_1", "UMAP_2"]
        )
    return {name: table.rename_axis("cell") for name, table in tables.items()}


_SCRIPT = """\
# Adds an annotation by tosica to a Seurat object of version 4 or 5:
#   source("add_to_seurat.R")
#   object <- add_tosica(object, "folder with this script")
#   DimPlot(object, reduction = "@KEY@_umap", group.by = "@KEY@_prediction")
add_tosica <- function(object, folder = ".") {
  read <- function(name) {
    read.csv(file.path(folder, name), row.names = 1, check.names = FALSE)
  }
  metadata <- read("metadata.csv")
  cells <- colnames(object)
  if (!all(cells %in% rownames(metadata))) {
    stop(sum(!cells %in% rownames(metadata)), " cells of the object were not annotated, first ",
         cells[!cells %in% rownames(metadata)][1],
         ": subset the object, or check that cells have the same names")
  }
  metadata <- metadata[cells, , drop = FALSE]
  levels <- read.csv(file.path(folder, "levels.csv"), check.names = FALSE)[[1]]
  metadata[["@KEY@_prediction"]] <- factor(metadata[["@KEY@_prediction"]], levels = levels)
  object <- Seurat::AddMetaData(object, metadata)
  add <- function(object, file, name, key) {
    if (!file.exists(file.path(folder, file))) return(object)
    values <- as.matrix(read(file)[cells, , drop = FALSE])
    columns <- colnames(values)
    colnames(values) <- paste0(key, seq_len(ncol(values)))
    reduction <- SeuratObject::CreateDimReducObject(
      embeddings = values, key = key, assay = SeuratObject::DefaultAssay(object),
      misc = list(names = columns))
    object[[name]] <- reduction
    object
  }
  # The names of the gene sets are in object[["@KEY@"]]@misc$names.
  object <- add(object, "X_@KEY@.csv", "@KEY@", "TOSICA_")
  object <- add(object, "probabilities.csv", "@KEY@_probabilities", "TOSICAPROBABILITY_")
  add(object, "X_umap.csv", "@KEY@_umap", "TOSICAUMAP_")
}
"""
