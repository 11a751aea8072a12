suppressPackageStartupMessages(library(Seurat))
set.seed(1)
names <- list(paste0("GENE", 1:120), paste0("cell", 1:90))
counts <- matrix(rpois(120 * 90, 1.5), 120, 90, dimnames = names)
counts[1:40, 1:45] <- counts[1:40, 1:45] + 4L
object <- CreateSeuratObject(as(counts, "CsparseMatrix"))
object$kind <- factor(rep(c("T cell", "B cell"), each = 45), levels = c("T cell", "B cell", "none"))
object$partly <- object$kind
object$partly[3] <- NA
object$note <- ifelse(seq_len(90) %% 2 == 0, "NA", NA)
object <- FindVariableFeatures(NormalizeData(object, verbose = FALSE), verbose = FALSE)
saveRDS(object, commandArgs(TRUE)[1])
write.csv(as.matrix(counts), commandArgs(TRUE)[2])
