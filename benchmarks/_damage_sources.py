"""Whole files that are to be damaged."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import sys
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp

if TYPE_CHECKING:
    from collections.abc import Callable

N_CELLS, N_GENES = 40, 30
HALLMARK = "2024.1.Hs/h.all.v2024.1.Hs.symbols.gmt"


class Source(NamedTuple):
    """A whole file, the others of its folder, and an R value if it was written from one."""

    file: str
    content: bytes
    others: tuple[tuple[str, bytes], ...] = ()
    value: Callable[[], Any] | None = None


@cache
def r_files() -> Any:
    """The writer of R files, which the tests have."""
    tests = str(Path(__file__).parents[1] / "tests")
    sys.path.insert(0, tests)
    try:
        return importlib.import_module("_r_files")
    finally:
        sys.path.remove(tests)


def _cells() -> tuple[sp.csr_matrix, pd.DataFrame, pd.DataFrame]:
    """Counts with the tables of cells and genes."""
    rng = np.random.default_rng(0)
    counts = sp.csr_matrix(rng.poisson(1, (N_CELLS, N_GENES)).astype(np.float64))
    kinds = pd.Categorical.from_codes(rng.integers(3, size=N_CELLS), ["T", "B", "NK"])
    missing = pd.array(np.arange(N_CELLS), dtype="Int32")
    missing[3] = pd.NA
    columns = {"nCount_RNA": counts.sum(1).A1, "kind": kinds, "donor": ["a", "b"] * (N_CELLS // 2)}
    names = [f"cell{i}" for i in range(N_CELLS)]
    obs = pd.DataFrame({**columns, "number": missing}, index=pd.Index(names, dtype=object))
    genes = pd.Index([f"G{i}" for i in range(N_GENES)], dtype=object)
    return counts, obs, pd.DataFrame({"mean": counts.mean(0).A1}, index=genes)


def _logarithms(counts: sp.csr_matrix) -> sp.csr_matrix:
    return sp.csr_matrix(np.log1p(counts.toarray() / counts.sum(1).A * 1e4))


def _r_value(kind: str) -> Any:
    """A small Seurat object of version 4 or 5, or a SingleCellExperiment."""
    r = r_files()
    counts, obs, var = _cells()
    cells, genes = [*obs.index], [*var.index]
    logs = _logarithms(counts)
    columns = {
        "nCount_RNA": r.vector(obs["nCount_RNA"].to_numpy()),
        "kind": r.factor(obs["kind"].cat.codes.to_numpy() + 1, ["T", "B", "NK"]),
        "donor": r.strings(*obs["donor"]),
        "number": r.vector(np.ma.array(np.arange(N_CELLS), mask=np.arange(N_CELLS) == 3)),
        "flag": r.vector(np.arange(N_CELLS) % 2 == 0),
    }
    pcs = np.random.default_rng(1).normal(size=(N_CELLS + N_GENES, 4))
    components = ["PC_1", "PC_2", "PC_3", "PC_4"]
    reduced = r.matrix(pcs[:N_CELLS], cells, components)
    if kind == "sce":
        data = r.named(counts=r.sparse(counts), logcounts=r.sparse(logs))
        dims = r.named(reducedDims=r.s4("DFrame", listData=r.named(PCA=reduced)))
        table = r.s4("DFrame", rownames=r.strings(*cells), listData=r.named(**columns))
        return r.s4(
            "SingleCellExperiment",
            colData=table,
            NAMES=r.strings(*genes),
            assays=r.s4("Assays", data=r.s4("SimpleList", listData=data)),
            int_colData=r.s4("DFrame", listData=dims),
        )
    if kind == "v5":
        first, every = np.arange(N_CELLS) % 2 == 0, np.ones(N_GENES, dtype=bool)
        layers = {
            "counts.1": (counts[first], first, every),
            "counts.2": (counts[~first], ~first, every),
            "data.1": (logs[first], first, every),
            "data.2": (logs[~first], ~first, every),
        }
        assay = r.assay5(layers, cells, genes)
    else:
        assay = r.assay(r.sparse(counts, genes, cells), r.sparse(logs, genes, cells))
        assay.attributes["meta.features"] = r.frame(genes, mean=r.vector(var["mean"].to_numpy()))
        assay.attributes["var.features"] = r.strings(*genes[:5])
    loadings = r.matrix(pcs[N_CELLS:], genes, components)
    pca = r.s4("DimReduc", cell__embeddings=reduced, feature__loadings=loadings)
    made = r.seurat(r.frame(cells, **columns), RNA=assay)
    made.attributes["reductions"] = r.named(pca=pca)
    return made


def _write_h5ad(path: Path) -> None:
    counts, obs, var = _cells()
    adata = ad.AnnData(_logarithms(counts).astype(np.float32), obs=obs, var=var)
    adata.layers["counts"] = sp.csc_matrix(counts)
    adata.raw = adata
    adata.obsm["X_pca"] = np.random.default_rng(1).normal(size=(N_CELLS, 4))
    adata.obs["flag"] = pd.array(np.arange(N_CELLS) % 2 == 0, dtype="boolean")
    adata.write_h5ad(path)


def _write_h5seurat(path: Path) -> None:
    """The layout of SeuratDisk: matrices of genes × cells as CSC, factors with their levels."""
    counts, obs, var = _cells()
    text = h5py.string_dtype()
    with h5py.File(path, "w") as file:
        file.attrs["active.assay"] = "RNA"
        file.create_dataset("cell.names", data=[*obs.index], dtype=text)
        group = file.create_group("assays/RNA")
        group.create_dataset("features", data=[*var.index], dtype=text)
        group.create_dataset("variable.features", data=[*var.index[:5]], dtype=text)
        for name, matrix in (("counts", counts), ("data", _logarithms(counts))):
            stored = group.create_group(name)
            stored.attrs["dims"] = matrix.shape[::-1]
            for part in ("data", "indices", "indptr"):
                stored.create_dataset(part, data=getattr(matrix, part), compression="gzip")
        table = file.create_group("meta.data")
        table.create_dataset("_index", data=[*obs.index], dtype=text)
        table.create_dataset("nCount_RNA", data=obs["nCount_RNA"])
        table.create_dataset("donor", data=[*obs["donor"]], dtype=text)
        kind = table.create_group("kind")
        kind.create_dataset("levels", data=["T", "B", "NK"], dtype=text)
        kind.create_dataset("values", data=obs["kind"].cat.codes.to_numpy().astype(np.int32) + 1)
        table.attrs["colnames"] = ["nCount_RNA", "donor", "kind"]
        table.attrs["_index"] = "_index"
        pca = file.create_group("reductions/pca")
        drawn = np.random.default_rng(1).normal(size=(4, N_CELLS + N_GENES))
        pca.create_dataset("cell.embeddings", data=drawn[:, :N_CELLS])
        pca.create_dataset("feature.loadings", data=drawn[:, N_CELLS:])
        pca.create_dataset("features", data=[*var.index], dtype=text)


def written() -> dict[str, list[Source]]:
    """Small files of each kind, written here."""
    sources: dict[str, list[Source]] = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        sources["rds"] = [
            Source(
                f"{kind}.rds",
                r_files().write(folder / "x.rds", _r_value(kind)).read_bytes(),
                value=partial(_r_value, kind),
            )
            for kind in ("v4", "v5", "sce")
        ]
        _write_h5ad(folder / "x.h5ad")
        _write_h5seurat(folder / "x.h5Seurat")
        for kind in ("h5ad", "h5Seurat"):
            sources[kind] = [Source(f"x.{kind}", (folder / f"x.{kind}").read_bytes())]
    sets = {f"SET {i}": [f"G{j}" for j in range(i, i + 15)] for i in range(25)}
    text = "".join(f"{s}\thttps://x\t" + "\t".join(g) + "\n" for s, g in sets.items()).encode()
    sources["gmt"] = [Source("x.gmt", text)]
    sources["gmt.gz"] = [Source("x.gmt.gz", gzip.compress(text, mtime=0))]
    return sources


def published(folder: Path) -> dict[str, list[Source]]:
    """Real files of each kind."""
    sources: dict[str, list[Source]] = {"rds": [], "h5ad": [], "h5Seurat": []}
    for path in sorted((folder / "seurat").iterdir()):
        if path.suffix[1:] in sources:
            sources[path.suffix[1:]].append(Source(path.name, path.read_bytes()))
    small = (folder / "gene_sets" / "reactome.gmt.gz").read_bytes()
    lines = gzip.decompress(small).split(b"\n")
    text = b"\n".join(lines[:50]) + b"\n"
    sources["gmt"] = [Source("x.gmt", text)]
    sources["gmt.gz"] = [Source("x.gmt.gz", small)]
    record = {
        HALLMARK: text,
        f"{HALLMARK}.json": f'{{"sha256": "{hashlib.sha256(text).hexdigest()}"}}'.encode(),
    }
    sources["cache"] = [Source(name, record[name], (*record.items(),)) for name in record]
    sources["download"] = [Source("served.gmt", text)]
    project = folder / "legacy_project" / "project"
    files = {path.name: path.read_bytes() for path in sorted(project.iterdir())}
    for kind, names in {
        "pth": ["model.pth"],
        "npy": ["mask.npy"],
        "csv": [name for name in files if name.endswith(".csv")],
    }.items():
        sources[kind] = [Source(name, files[name], (*files.items(),)) for name in names]
    return sources
