"""Cells of two batches, with labels, of which each in turn is left out of the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anndata as ad
import mudata as md
import scanpy as sc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anndata import AnnData


class Task(NamedTuple):
    """What the cells are, how they are read, and whether settings were chosen with some of them.

    The reader gives counts, or log-normalized expression if ``counts`` is false, with the columns
    ``label`` and ``batch`` in ``obs``.
    """

    what: str
    read: Callable[[Path], AnnData]
    seen: bool
    counts: bool = True


def kang(folder: Path) -> AnnData:
    """PBMCs, control and with IFN-β."""
    return _prepared(sc.read_h5ad(folder / "kang_pbmc.h5ad"), "cluster_id", "group_id")


def lung(folder: Path) -> AnnData:
    """Three cell lines by two protocols."""
    adata = sc.read_h5ad(folder / "lungmix_celseq2_dropseq.h5ad")
    return _prepared(adata, "cell_line", "protocol")


def breast(folder: Path) -> AnnData:
    """Breast tissue, cells and nuclei."""
    return _prepared(sc.read_h5ad(folder / "breast_cells_nuclei.h5ad"), "celltype", "cohort")


def pbmc(folder: Path) -> AnnData:
    """PBMCs of 10x 3' v1 and of ECCITE-seq (5'), log-normalized, with the labels of both."""
    first = sc.datasets.pbmc68k_reduced().raw.to_adata()
    first.obs["label"] = first.obs["bulk_labels"].astype(str).map(_OF_68K)
    second = _cite(folder)
    sc.pp.normalize_total(second, target_sum=1e4)
    sc.pp.log1p(second)
    return _joined({"10x v1": first, "ECCITE-seq": second})


def chemistry(folder: Path) -> AnnData:
    """PBMCs of the control of Kang et al. (10x 3') and of ECCITE-seq (5')."""
    first = sc.read_h5ad(folder / "kang_pbmc.h5ad")
    first = first[first.obs["group_id"] == "ctrl"].copy()
    first.obs["label"] = first.obs["cluster_id"].astype(str).map(_OF_KANG)
    return _joined({"10x 3'": first, "ECCITE-seq": _cite(folder)})


_OF_68K = {
    "CD14+ Monocyte": "monocytes",
    "CD19+ B": "B cells",
    "CD34+": "CD34+",
    "CD4+/CD25 T Reg": "CD4 T cells",
    "CD4+/CD45RA+/CD25- Naive T": "CD4 T cells",
    "CD4+/CD45RO+ Memory": "CD4 T cells",
    "CD56+ NK": "NK cells",
    "CD8+ Cytotoxic T": "CD8 T cells",
    "CD8+/CD45RA+ Naive Cytotoxic": "CD8 T cells",
    "Dendritic": "dendritic cells",
}
_OF_KANG = {
    "B cells": "B cells",
    "CD14+ Monocytes": "monocytes",
    "CD4 T cells": "CD4 T cells",
    "CD8 T cells": "CD8 T cells",
    "FCGR3A+ Monocytes": "monocytes",
}
# Clusters of the antibodies, named by CD3, CD4, CD8, CD14, CD16, CD19 and HLA-DR.
_OF_ANTIBODIES = {
    "adt_0": "NK cells",
    "adt_1": "CD4 T cells",
    "adt_2": "monocytes",
    "adt_3": "CD8 T cells",
    "adt_4": "CD8 T cells",
    "adt_5": "B cells",
}


def _cite(folder: Path) -> AnnData:
    adata = md.read_h5mu(folder / "cite_pbmc.h5mu")["rna"].copy()
    adata.obs["label"] = adata.obs["adt_cluster"].astype(str).map(_OF_ANTIBODIES)
    return adata


def _joined(parts: dict[str, AnnData]) -> AnnData:
    for adata in parts.values():
        adata.obs = adata.obs[["label"]]
    adata = ad.concat(parts, label="batch", index_unique="-")
    return _prepared(adata, "label", "batch")


def _prepared(adata: AnnData, labels_key: str, batch_key: str) -> AnnData:
    adata.obs_names_make_unique()
    adata.obs["label"] = adata.obs[labels_key].astype(str)
    adata.obs["batch"] = adata.obs[batch_key].astype(str)
    return adata


TASKS = {
    "kang": Task("PBMCs, control and IFN-β", kang, seen=True),
    "lung": Task("three cell lines, CEL-seq2 and Drop-seq", lung, seen=True),
    "pbmc": Task("PBMCs, 10x v1 and ECCITE-seq", pbmc, seen=True, counts=False),
    "chemistry": Task("PBMCs, 10x 3' and ECCITE-seq", chemistry, seen=False),
    "breast": Task("breast, cells and nuclei", breast, seen=False),
}
