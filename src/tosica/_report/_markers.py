"""Markers of each label: those of the data, and those that the caller knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import scanpy as sc
import scipy.sparse as sp

from tosica._constants import UNKNOWN
from tosica._validation import did_you_mean
from tosica.data import (
    TARGET_SUM,
    CellMatrix,
    are_fractional_counts,
    detect_values,
    log_normalize,
)

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica._report._cells import Cells

# Markers of a label that its genes are compared with, and how many of them are listed.
N_MARKERS, N_LISTED = 50, 10
# A label with fewer cells has no markers of its own.
MIN_CELLS = 5


@dataclass(frozen=True)
class KnownMarker:
    """A marker that the caller named: where it is expressed most, and in how many cells."""

    gene: str
    highest_in: str
    share: float


@dataclass(frozen=True)
class Markers:
    """Markers of the labels.

    ``found`` has a table for each label with enough cells: ``gene``, ``score``, ``logfoldchange``,
    ``share`` and ``share_others`` (of the cells that express it), from the highest score down.
    ``known`` has the caller's markers that the data have, and ``missing`` those that they lack.
    ``why_not`` is the reason if there are none.
    """

    found: dict[str, pd.DataFrame]
    known: dict[str, list[KnownMarker]]
    missing: dict[str, list[str]]
    n_cells: int = 0
    why_not: str = ""


def check_markers(markers: Any, labels: list[str]) -> dict[str, list[str]]:
    """Check the markers that a caller knows: a dict of label to genes.

    Raises
    ------
    TypeError
        If it is anything else.
    KeyError
        If a label is none of the model's.
    """
    if markers is None:
        return {}
    if not isinstance(markers, Mapping):
        raise TypeError(
            "markers must be a dict of label to genes, such as {'B cell': ['MS4A1', 'CD79A']}, "
            f"not {type(markers).__name__}."
        )
    checked: dict[str, list[str]] = {}
    for label, genes in markers.items():
        if label not in labels:
            raise KeyError(
                f"markers names {label!r}, which is no label of the annotation"
                f"{did_you_mean(str(label), labels)}"
            )
        named = list(genes) if isinstance(genes, Iterable) and not isinstance(genes, str) else None
        if named is None or not all(isinstance(gene, str) for gene in named):
            raise TypeError(
                f"the markers of {label!r} must be a list of gene names, not {genes!r}."
            )
        checked[str(label)] = list(dict.fromkeys(named))
    return checked


def find_markers(
    adata: AnnData,
    cells: Cells,
    known: dict[str, list[str]],
    rows: NDArray[np.int64],
    *,
    layer: str | None,
    use_raw: bool,
) -> Markers:
    """Find the genes that distinguish each label from the others, by scanpy's t-test.

    Parameters
    ----------
    adata
        The annotated cells, which are not changed.
    cells
        Their annotation.
    known
        Markers that the caller knows, by label.
    rows
        Positions of the cells to test, in ascending order.
    layer, use_raw
        Which matrix of ``adata`` to read.

    Raises
    ------
    KeyError, ValueError
        If ``layer`` or ``raw`` was asked for and does not exist.
    """
    rows = rows[~cells.is_unknown[rows]]
    expression, why_not = _expression(adata, rows, layer=layer, use_raw=use_raw)
    if expression is None:
        return Markers({}, {}, {}, why_not=why_not)
    codes = cells.codes[rows]
    n_cells = np.bincount(codes, minlength=len(cells.labels))
    enough = [code for code in range(len(cells.labels)) if n_cells[code] >= MIN_CELLS]
    found: dict[str, pd.DataFrame] = {}
    if len(enough) > 1:
        kept = np.isin(codes, enough)
        found = _test(expression[kept], [cells.labels[code] for code in codes[kept]])
    else:
        why_not = f"fewer than two labels have {MIN_CELLS} cells"
    of_label, missing = _look_up(expression, codes, cells, known)
    return Markers(found, of_label, missing, len(rows), why_not)


def _expression(
    adata: AnnData, rows: NDArray[np.int64], *, layer: str | None, use_raw: bool
) -> tuple[AnnData | None, str]:
    """Log-normalized expression of some cells, or why there is none."""
    if not len(rows):
        return None, "no cell has a label"
    try:
        matrix = CellMatrix(adata, layer=layer, use_raw=use_raw)
        block = matrix.take(rows)
        fractional = are_fractional_counts(block)
        values = detect_values(block, matrix.where, fractional=fractional)
    except (ValueError, TypeError) as error:
        if layer is not None or use_raw:
            raise
        return None, str(error).rstrip(".")
    if values is None:
        return None, f"{matrix.where} is zero in all cells that were looked at"
    block = sp.csr_matrix(block, dtype=np.float32)
    if values == "counts":
        block = log_normalize(block, TARGET_SUM)
    names = matrix.names.astype(str)
    return ad.AnnData(sp.csr_matrix(block), var=pd.DataFrame(index=names)), ""


def _test(expression: AnnData, labels: list[str]) -> dict[str, pd.DataFrame]:
    tested = expression.copy()
    tested.var_names_make_unique()
    tested.obs["label"] = pd.Categorical(labels, categories=list(dict.fromkeys(labels)))
    sc.tl.rank_genes_groups(tested, "label", method="t-test", n_genes=N_MARKERS, pts=True)
    result = tested.uns["rank_genes_groups"]
    found = {}
    for label in tested.obs["label"].cat.categories:
        genes = [str(gene) for gene in result["names"][label]]
        table = pd.DataFrame(
            {
                "gene": genes,
                "score": np.asarray(result["scores"][label], dtype=np.float64),
                "logfoldchange": np.asarray(result["logfoldchanges"][label], dtype=np.float64),
                "share": result["pts"].loc[genes, label].to_numpy(),
                "share_others": result["pts_rest"].loc[genes, label].to_numpy(),
            }
        )
        found[label] = table[table["score"] > 0]
    return found


def _look_up(
    expression: AnnData, codes: NDArray[np.int64], cells: Cells, known: dict[str, list[str]]
) -> tuple[dict[str, list[KnownMarker]], dict[str, list[str]]]:
    """Find in which label each known marker is expressed most."""
    column_of = {name: i for i, name in reversed(list(enumerate(expression.var_names)))}
    codes_seen = [code for code in np.unique(codes) if cells.labels[code] != UNKNOWN]
    found: dict[str, list[KnownMarker]] = {}
    missing: dict[str, list[str]] = {}
    for label, genes in known.items():
        found[label], missing[label] = [], [gene for gene in genes if gene not in column_of]
        for gene in genes:
            if gene not in column_of:
                continue
            values = np.asarray(expression.X[:, column_of[gene]].todense()).ravel()
            means = [float(values[codes == code].mean()) for code in codes_seen]
            highest = cells.labels[codes_seen[int(np.argmax(means))]] if max(means) > 0 else "none"
            own = codes == cells.labels.index(label) if label in cells.labels else codes < 0
            share = float((values[own] > 0).mean()) if own.any() else float("nan")
            found[label].append(KnownMarker(gene, highest, share))
    return found, missing
