"""The contents of a Seurat object, as all readers return them, and the AnnData made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import pandas as pd

from tosica._settings import logger
from tosica.data import TARGET_SUM, log_normalize_block
from tosica.io._matrices import is_integral, recover_counts
from tosica.io._refused import RefusedKey, RefusedValue

if TYPE_CHECKING:
    import scipy.sparse as sp

GRAPHS_NOTE = "graphs were left out: they are similarities, not distances; call sc.pp.neighbors"
# Cells that are normalised at a time.
_CHUNK_SIZE = 4096


@dataclass
class Parts:
    """The parts of an AnnData, read from a Seurat object.

    Attributes
    ----------
    obs, var
        Tables of cells and genes, indexed by their names.
    counts, data
        Counts and log-normalised values ``(n_cells, n_genes)``; either may be missing.
    obsm, varm
        Reductions and loadings.
    notes
        What was recovered, repaired or dropped, or cannot be known; for the log.
    """

    obs: pd.DataFrame
    var: pd.DataFrame
    counts: sp.csr_matrix | None = None
    data: sp.csr_matrix | None = None
    obsm: dict[str, np.ndarray] = field(default_factory=dict)
    varm: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def to_anndata(parts: Parts) -> ad.AnnData:
    """Make an AnnData as scanpy users expect it, and log what had to be done.

    Raises
    ------
    ValueError
        If there are neither counts nor log-normalised values, or names of cells or genes are not
        unique.
    """
    for names, what in ((parts.obs.index, "cell"), (parts.var.index, "gene")):
        if names.isna().any():
            raise RefusedValue(
                f"The name of a {what} is missing; name all {what}s in R before saving."
            )
        if names.has_duplicates:
            raise RefusedValue(
                f"The {what} name {names[names.duplicated()][0]!r} occurs twice; "
                f"make the names of {what}s unique in R before saving."
            )
    notes = list(parts.notes)
    counts, data = parts.counts, parts.data
    if counts is not None and not is_integral(counts):
        notes.append("the stored counts hold fractions, so they were not taken for counts")
        if data is None:
            raise RefusedValue(
                "The object has no log-normalised values, and its counts hold fractions; run "
                "NormalizeData in R, or save the raw counts."
            )
        counts = None
    if counts is None and data is not None:
        counts, note = recover_counts(data, parts.obs)
        notes.append(note)
    if data is None:
        if counts is None:
            raise RefusedValue("The object has neither counts nor log-normalised values.")
        notes.append(f"X was log-normalised to {TARGET_SUM:.0f} counts a cell")
    if counts is not None:
        # The counts in double precision are released before X is computed.
        counts = parts.counts = _to_float32(counts)
    adata = ad.AnnData(
        _log_normalize_in_chunks(counts) if data is None else _to_float32(data),
        obs=parts.obs,
        var=parts.var,
        obsm=parts.obsm,
        varm=parts.varm,
    )
    if counts is not None:
        adata.layers["counts"] = counts
    logger.info("Seurat object: %d cells × %d genes", *adata.shape)
    for note in notes:
        logger.info("Seurat object: %s", note)
    return adata


def _to_float32(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """The matrix in single precision, with the same index arrays."""
    with np.errstate(over="ignore"):
        values = matrix.data.astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise RefusedValue(
            "The expression holds values that are missing, infinite or too large for any count: "
            "the file is damaged, or the object was computed wrongly; look at it in R."
        )
    return type(matrix)((values, matrix.indices, matrix.indptr), shape=matrix.shape)


def _log_normalize_in_chunks(counts: sp.csr_matrix) -> sp.csr_matrix:
    """Log-normalise as Seurat does, without a second matrix in double precision."""
    values = np.empty(counts.nnz, dtype=np.float32)
    for start in range(0, counts.shape[0], _CHUNK_SIZE):
        rows: sp.csr_matrix = log_normalize_block(counts[start : start + _CHUNK_SIZE])
        first = counts.indptr[start]
        values[first : first + rows.nnz] = rows.data
    # Indices are copied, so that a change of one matrix in place does not change the other.
    return type(counts)((values, counts.indices.copy(), counts.indptr.copy()), shape=counts.shape)


def choose_assay(assays: list[str], active: str, wanted: str | None, notes: list[str]) -> str:
    """The assay that was asked for, or else the active one.

    Raises
    ------
    KeyError
        If the object has no such assay.
    """
    if wanted is None:
        inactive = [name for name in assays if name != active]
        if inactive:
            notes.append(
                f"the active assay, {active!r}, was read; there are also "
                f"{', '.join(map(repr, inactive))} "
                "(assay=)"
            )
        wanted = active
    if wanted not in assays:
        raise RefusedKey(
            f"There is no assay {wanted!r}; the object has {', '.join(map(repr, assays))}."
        )
    if wanted == "SCT":
        notes.append(
            "assay 'SCT' holds counts that sctransform corrected, whose logarithm is on another "
            "scale; assay='RNA' has the measured ones"
        )
    return wanted


def align_loadings(loadings: np.ndarray, features: list[str], genes: pd.Index) -> np.ndarray:
    """Loadings ``(n_genes, n_components)`` in the order of ``genes``; zero for other genes."""
    indexer = genes.get_indexer(pd.Index(features, dtype=object))
    aligned = np.zeros((len(genes), loadings.shape[1]))
    aligned[indexer[indexer >= 0]] = loadings[indexer >= 0]
    return aligned
