suppressPackageStartupMessages(library(Seurat))
arguments <- commandArgs(TRUE)
object <- readRDS(arguments[1])
before <- object@meta.data
source(file.path(arguments[2], "add_to_seurat.R"))
object <- add_tosica(object, arguments[2])
metadata <- read.csv(file.path(arguments[2], "metadata.csv"), row.names = 1)[colnames(object), ]
stopifnot(identical(as.character(object$tosica_prediction), metadata$tosica_prediction))
levels <- read.csv(file.path(arguments[2], "levels.csv"))[[1]]
stopifnot(identical(levels(object$tosica_prediction), levels))
stopifnot(isTRUE(all.equal(unname(object$tosica_probability), metadata$tosica_probability)))
stopifnot(identical(object@meta.data[, colnames(before)], before))
embedding <- read.csv(file.path(arguments[2], "X_tosica.csv"), row.names = 1, check.names = FALSE)
stopifnot(isTRUE(all.equal(unname(Embeddings(object, "tosica")),
                           unname(as.matrix(embedding[colnames(object), ])))))
stopifnot(identical(object[["tosica"]]@misc$names, colnames(embedding)))
pdf(NULL)
print(DimPlot(object, reduction = "tosica", group.by = "tosica_prediction"))
