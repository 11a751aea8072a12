"""What every way of reading a Seurat object hands on, and the AnnData made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anndata as ad
import numpy as np

from tosica._logging import logger
from tosica.data._log_normalize import log_normalize
from tosica.data._scale import TARGET_SUM
from tosica.io._counts import is_integral, recover_counts

if TYPE_CHECKING:
    import pandas as pd
    import scipy.sparse as sp

# Cells that are normalised at a time.
_CELLS = 4096


@dataclass
class Parts:
    """Cells × genes, whatever they were in the file.

    ``obs`` and ``var`` bear the names of cells and genes. ``counts`` is what the file calls counts
    and ``data`` what is log-normalised, ``(n_cells, n_genes)``, either may be missing. ``notes``
    say what was recovered, repaired, dropped, or cannot be known.
    """

    obs: pd.DataFrame
    var: pd.DataFrame
    counts: sp.csr_matrix | None = None
    data: sp.csr_matrix | None = None
    obsm: dict[str, np.ndarray] = field(default_factory=dict)
    varm: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def assemble(parts: Parts, caller: str) -> ad.AnnData:
    """Make an AnnData as scanpy would have made it, and log what had to be done.

    Raises
    ------
    ValueError
        If there are neither counts nor log-normalised values, or names of cells or genes occur
        twice.
    """
    for names, what in ((parts.obs.index, "cell"), (parts.var.index, "gene")):
        if names.has_duplicates:
            raise ValueError(
                f"{caller}: the {what} name {names[names.duplicated()][0]!r} occurs twice; "
                f"make the names of {what}s unique in R before saving."
            )
    notes = list(parts.notes)
    counts, data = parts.counts, parts.data
    if counts is not None and not is_integral(counts):
        notes.append("what is stored as counts holds fractions, so it was not taken for counts")
        if data is None:
            raise ValueError(
                f"{caller}: the object has no log-normalised values, and its counts hold "
                "fractions; run NormalizeData in R, or save the raw counts."
            )
        counts = None
    if counts is None and data is not None:
        counts, how = recover_counts(data, parts.obs)
        notes.append(how)
    if data is None:
        if counts is None:
            raise ValueError(f"{caller}: the object has neither counts nor log-normalised values.")
        notes.append(f"X was log-normalised here, to {TARGET_SUM:.0f} counts a cell")
    if counts is not None:
        counts = parts.counts = _single(counts)
    adata = ad.AnnData(
        _log_normalised(counts) if data is None else _single(data),
        obs=parts.obs,
        var=parts.var,
        obsm=parts.obsm,
        varm=parts.varm,
    )
    if counts is not None:
        adata.layers["counts"] = counts
    logger.info("%s: %d cells × %d genes", caller, *adata.shape)
    for note in notes:
        logger.info("%s: %s", caller, note)
    return adata


def _single(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """The same matrix in single precision; what else it consists of is not copied."""
    values = matrix.data.astype(np.float32, copy=False)
    return type(matrix)((values, matrix.indices, matrix.indptr), shape=matrix.shape)


def _log_normalised(counts: sp.csr_matrix) -> sp.csr_matrix:
    """Scale and take the logarithm as Seurat does, a few cells at a time."""
    values = np.empty(counts.nnz, dtype=np.float32)
    for start in range(0, counts.shape[0], _CELLS):
        rows: sp.csr_matrix = log_normalize(counts[start : start + _CELLS])
        first = counts.indptr[start]
        values[first : first + rows.nnz] = rows.data
    # Not the same index twice: who changes one matrix in place must not change the other.
    return type(counts)((values, counts.indices.copy(), counts.indptr.copy()), shape=counts.shape)
