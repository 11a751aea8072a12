"""Read files of each kind by the public functions, and check that what was read is valid."""

from __future__ import annotations

import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

import tosica

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _digest(*parts: Any) -> str:
    return hashlib.sha256("\0".join(map(repr, parts)).encode()).hexdigest()


def _same_bytes(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def read_seurat(path: Path) -> str:
    """Read an object and use all of it; fail if it is not a valid one."""
    adata = tosica.io.read_seurat(path)
    seen: list[Any] = [*adata.obs_names, *adata.var_names]
    for names in (adata.obs_names, adata.var_names):
        assert names.is_unique, "names twice"
        assert all(isinstance(name, str) for name in names), "names are no strings"
    for matrix in (adata.X, *adata.layers.values()):
        assert sp.isspmatrix_csr(matrix), "not CSR"
        matrix.check_format(full_check=True)
        assert matrix.shape == adata.shape, "another shape"
        assert np.isfinite(matrix.sum(dtype=np.float64)), "not finite"
        matrix[: min(10, adata.n_obs)].toarray()
        canonical = matrix.copy()
        canonical.sum_duplicates()
        seen += [
            _same_bytes(part) for part in (canonical.data, canonical.indices, canonical.indptr)
        ]
    if "counts" in adata.layers:
        counts = adata.layers["counts"].data
        assert (counts == np.abs(np.rint(counts))).all(), "no counts"
    for table in (adata.obs, adata.var):
        seen += [[str(name), str(table[name].dtype), table[name].tolist()] for name in table]
    for key in adata.obsm:
        assert adata.obsm[key].dtype.kind in "biuf", "embedding is no numbers"
        seen += [key, adata.obsm[key].shape, _same_bytes(adata.obsm[key])]
    seen += [[key, _same_bytes(adata.varm[key])] for key in adata.varm]
    adata[: min(5, adata.n_obs)].copy()
    return _digest(*seen)


def _check_sets(sets: dict[str, list[str]]) -> str:
    assert sets, "no gene set"
    for name, genes in sets.items():
        assert genes, "no genes"
        assert len(set(genes)) == len(genes), "genes twice"
        assert all(t and t == t.strip() and "\t" not in t for t in (name, *genes)), "names"
    return _digest(sets)


def read_gmt(path: Path) -> str:
    return _check_sets(tosica.gs.read_gmt(path))


def read_cache(path: Path) -> str:
    """Load a collection from a cache; no server can be reached."""
    os.environ["TOSICA_CACHE"] = str(path.parents[1])
    os.environ["TOSICA_MSIGDB_URL"] = "http://127.0.0.1:9"
    return _check_sets(tosica.gs.load("human_hallmark"))


def read_download(path: Path) -> str:
    """Download a collection from a server on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(path.read_bytes())

        def log_message(self, *args: Any) -> None:
            pass

    with TemporaryDirectory() as cache_folder, HTTPServer(("127.0.0.1", 0), Handler) as server:
        os.environ["TOSICA_CACHE"] = cache_folder
        os.environ["TOSICA_MSIGDB_URL"] = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        try:
            return _check_sets(tosica.gs.load("human_hallmark"))
        finally:
            thread.join()


def read_legacy(path: Path) -> str:
    """Load a project of the original code, and annotate cells."""
    model = tosica.TOSICA.load_legacy(path.parent, accelerator="cpu")
    genes = model.get_var_names()["rna"] if isinstance(model.get_var_names(), dict) else None
    genes = [*(model.get_var_names() if genes is None else genes)]
    x = np.random.default_rng(0).poisson(1, (4, len(genes))).astype(np.float32)
    cells = ad.AnnData(sp.csr_matrix(x), var=pd.DataFrame(index=genes))
    soft = model.predict(cells, soft=True)
    assert np.isfinite(soft.to_numpy()).all(), "probabilities that are not finite"
    # Rounded, because a weight that changed little changes a probability less.
    return _digest([*soft.columns], soft.to_numpy().round(12).tolist(), [*model.gene_sets], genes)


READERS: dict[str, Callable[[Path], str]] = {
    "rds": read_seurat,
    "h5ad": read_seurat,
    "h5Seurat": read_seurat,
    "gmt": read_gmt,
    "gmt.gz": read_gmt,
    "cache": read_cache,
    "download": read_download,
    "pth": read_legacy,
    "npy": read_legacy,
    "csv": read_legacy,
}
