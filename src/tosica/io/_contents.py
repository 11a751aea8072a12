"""The contents of a Seurat object, as all readers return them, and its AnnData."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._settings import logger
from tosica._text import list_names, parameter
from tosica.data import TARGET_SUM, LogNormalization, detect_values
from tosica.io._errors import ReadError
from tosica.io._matrices import check_matrix, recover_counts, to_csr, to_float32
from tosica.io._tables import NAMES, raw_genes, repair_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

GRAPHS_NOTE = (
    "graphs were left out: they are similarities, not distances; call sc.pp.neighbors"
)
# Cells that are normalized at a time.
_CHUNK_SIZE = 4096


@dataclass
class SeuratContents:
    """The elements of an AnnData, read from a Seurat object.

    Attributes
    ----------
    obs, var
        Tables of cells and genes, indexed by their names.
    counts, data
        Counts and log-normalized values ``(n_cells, n_genes)``; either may be missing.
    obsm, varm
        Reductions and loadings.
    notes
        Sentences for the log on recovered, repaired, dropped or ambiguous contents.
    """

    obs: pd.DataFrame
    var: pd.DataFrame
    counts: sp.csr_matrix | None = None
    data: sp.csr_matrix | None = None
    obsm: dict[str, np.ndarray] = field(default_factory=dict)
    varm: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def to_anndata(contents: SeuratContents) -> ad.AnnData:
    """Make an AnnData as scanpy users expect it, and log the notes.

    Raises
    ------
    ValueError
        If there are neither counts nor log-normalized values, or names of cells or genes
        are not unique.
    """
    _check_names(contents.obs.index, "cell")
    _check_names(contents.var.index, "gene")
    obs = contents.obs.copy()
    for name in obs.select_dtypes("category"):
        obs[name] = obs[name].cat.remove_unused_categories()
    notes = contents.notes
    counts = contents.counts
    data = contents.data
    if counts is not None and not ((counts.data >= 0) & (counts.data % 1 == 0)).all():
        notes.append(
            "the stored counts hold fractions, so they were not taken for counts"
        )
        counts = None
    if counts is None and data is not None:
        counts, note = recover_counts(data, obs)
        notes.append(note)
    if counts is not None:
        # The counts in double precision are released before X is computed.
        counts = contents.counts = to_float32(counts)
    if data is not None:
        x = to_float32(data)
    elif counts is not None:
        blocks = []
        for i in range(0, counts.shape[0], _CHUNK_SIZE):
            block = LogNormalization().normalize_block(counts[i : i + _CHUNK_SIZE])
            blocks.append(block.astype(np.float32))
        x = sp.vstack(blocks, format="csr")
        notes.append(f"X was log-normalized to {TARGET_SUM:.0f} counts a cell")
    else:
        raise ReadError(
            "The object has neither counts nor log-normalized values: save one of them "
            "in R."
        )
    adata = ad.AnnData(
        x, obs=obs, var=contents.var, obsm=contents.obsm, varm=contents.varm
    )
    if counts is not None:
        adata.layers["counts"] = counts
    logger.info("Seurat object: %d cells × %d genes", *adata.shape)
    for note in notes:
        logger.info("Seurat object: %s", note)
    return adata


def _check_names(names: pd.Index, kind: str) -> None:
    is_wrong = names.isna() | names.duplicated()
    if is_wrong.any():
        raise ReadError(
            f"The {kind} name {names[is_wrong][0]!r} is missing or occurs twice: repair "
            "the names in R."
        )


class StoredAssay(NamedTuple):
    """What tells whether an assay was measured, or computed from another one."""

    genes: list[str]
    has_counts: bool
    is_corrected: bool
    """Whether its counts are those of sctransform."""


def choose_assay(
    assays: Mapping[str, StoredAssay], active: str, assay: str | None, notes: list[str]
) -> str:
    """Take the assay that the user asks for, or else the active one or what it is derived from."""
    if assay is None:
        assay = _find_measured(assays, active)
        inactive = [name for name in assays if name != active]
        if assay != active:
            logger.warning(
                "Seurat object: the active assay, %r, was computed from others, so %r "
                "was read, which has all measured genes; %s takes another",
                active,
                assay,
                parameter("assay"),
            )
        elif inactive:
            notes.append(
                f"the active assay, {active!r}, was read; there are also "
                f"{list_names(inactive)} ({parameter('assay')})"
            )
    if assay not in assays:
        raise ReadError(
            f"There is no assay {assay!r}; the object has {list_names(list(assays))}.",
            KeyError,
        )
    if assays[assay].is_corrected:
        notes.append(
            f"assay {assay!r} holds counts that sctransform corrected, whose logarithm "
            f"is on another scale; {parameter('assay', 'RNA')} has the measured ones"
        )
    return assay


def _find_measured(assays: Mapping[str, StoredAssay], active: str) -> str:
    """The largest measured assay that has all genes of the active one, if that was computed."""
    current = assays.get(active)
    if current is None or (current.has_counts and not current.is_corrected):
        return active
    genes = set(current.genes)
    sizes = {
        name: len(stored.genes)
        for name, stored in assays.items()
        if not stored.is_corrected and genes <= set(stored.genes)
        if stored.has_counts or len(stored.genes) > len(genes)
    }
    return max(sizes, key=lambda name: sizes[name], default=active)


def align_loadings(
    loadings: np.ndarray, features: list[str], genes: pd.Index
) -> np.ndarray:
    """Loadings ``(n_genes, n_components)`` in the order of ``genes``; zero for others."""
    indexer = genes.get_indexer(pd.Index(features, dtype=object))
    aligned = np.zeros((len(genes), loadings.shape[1]))
    aligned[indexer[indexer >= 0]] = loadings[indexer >= 0]
    return aligned


class Matrix(NamedTuple):
    """A matrix ``(n_cells, n_genes)``, its name for messages, and its genes' table."""

    name: str
    values: sp.csr_matrix
    var: pd.DataFrame


def contents_of_adata(
    adata: ad.AnnData,
    obsm: Mapping[str, Any],
    unusable: list[str],
    *,
    logicals: Collection[str],
    na_strings: Collection[str],
) -> SeuratContents:
    """Repair a converted object, with counts and log-normalized values over as many genes as possible.

    Parameters
    ----------
    adata
        Has the tables, and matrices in memory or on disk; of two of a kind over the same genes, the
        earlier one is taken.
    obsm
        Anything; matrices of numbers are kept.
    unusable
        Names of elements that conversions leave in a wrong state.
    logicals, na_strings
        As in :func:`tosica.io.read_seurat`.
    """
    notes: list[str] = []
    obs = repair_columns(adata.obs, notes, logicals=logicals, na_strings=na_strings)
    flags = [str(name) for name in obs if obs[name].dtype == bool]
    if flags and getattr(adata.X, "format", "") == "csc":
        notes.append(
            f"not known: True in {list_names(flags)} may have been a missing value, "
            "which sceasy turns into it"
        )
    usable: list[tuple[str, Matrix]] = []
    reasons = ""
    for matrix in _matrices(adata):
        try:
            kind = detect_values(matrix.values, matrix.name)
        except ValueError as error:
            reasons += f" {error}"
            notes.append(f"{matrix.name} was left out: it is scaled, or not expression")
            continue
        if kind is not None:
            usable.append(("counts" if kind == "counts" else "data", matrix))
    if not usable:
        raise ReadError(
            "There are neither counts nor log-normalized values in the object."
            + reasons
        )
    var = max((matrix.var for _, matrix in usable), key=len)
    selected: dict[str, sp.csr_matrix] = {}
    for slot, matrix in usable:
        if slot not in selected and matrix.var.index.equals(var.index):
            selected[slot] = matrix.values
    if len(var) > adata.n_vars:
        notes.append(
            f"X has all {len(var)} genes now, not the {adata.n_vars} variable ones"
        )
    if unusable:
        notes.append(
            f"{', '.join(unusable)} dropped: conversions leave loadings in another gene "
            "order and similarities where scanpy expects distances; call sc.pp.pca and "
            "sc.pp.neighbors"
        )
    var = var.drop(columns=["features", NAMES], errors="ignore")
    if "vst.variable" in var:
        var["highly_variable"] = var.pop("vst.variable").astype(bool)
    reductions = {
        name: values
        for name, values in obsm.items()
        if isinstance(values, np.ndarray)
        and values.dtype.kind in "biuf"
        and values.shape[0] == len(obs)
    }
    return SeuratContents(
        obs, var.rename_axis(None), obsm=reductions, notes=notes, **selected
    )


def _matrices(adata: ad.AnnData) -> Iterator[Matrix]:
    """X, the layers and the raw matrix, with their genes."""
    stored = [("adata.X", adata.X, adata.var)]
    for key, layer in adata.layers.items():
        if key:
            stored.append((f"adata.layers[{key!r}]", layer, adata.var))
    if adata.raw is not None:
        raw_var = raw_genes(adata.raw.var, adata.var)
        stored.append(("adata.raw.X", adata.raw.X, raw_var))
    for name, values, var in stored:
        if values is None:
            continue
        if hasattr(values, "to_memory"):
            values = values.to_memory()
        elif not sp.issparse(values):
            values = np.asarray(values)
        check_matrix(values, name)
        yield Matrix(name, to_csr(values), var)
