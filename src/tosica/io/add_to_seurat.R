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
