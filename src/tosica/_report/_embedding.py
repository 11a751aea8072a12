"""Positions of the cells on the map."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import scanpy as sc

from tosica._logging import format_thousands, logger
from tosica._progress import progress
from tosica._report._cells import draw_cells

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica._report._cells import Cells

# Every label keeps at least this many cells on the map.
_LEAST = 200
_N_NEIGHBORS = 15
# UMAP needs more cells than components, and neighbors.
_MIN_CELLS = 5


class Positions(NamedTuple):
    """Where cells are on the map.

    ``rows`` are the positions of the cells in the AnnData, ``(n,)``, and ``xy`` is ``(n, 2)``.
    ``computed`` says whether the UMAP was computed for this page. ``why_not`` is the reason if
    there is no map.
    """

    rows: NDArray[np.int64]
    xy: NDArray[np.float64]
    computed: bool = False
    why_not: str = ""


def find_positions(adata: AnnData, cells: Cells, max_cells: int, seed: int) -> Positions:
    """Take the UMAP of an AnnData, or compute one of the attention.

    Parameters
    ----------
    adata
        The annotated cells, which are not changed.
    cells
        Their annotation.
    max_cells
        Cells on the map at most. Of more, a sample is drawn that keeps rare labels.
    seed
        Seed of the draw and of the UMAP.

    Raises
    ------
    ValueError
        If ``adata.obsm["X_umap"]`` is no UMAP.
    """
    rng = np.random.default_rng(seed)
    rows = draw_cells(cells.codes, max_cells, rng, least=_LEAST)
    # In random order, so that no label lies above another one because of its place in the data.
    rows = rng.permutation(rows)
    if "X_umap" in adata.obsm:
        xy = np.asarray(adata.obsm["X_umap"])
        if xy.ndim != 2 or xy.shape[1] < 2 or not np.isfinite(xy).all():
            raise ValueError(
                f"adata.obsm['X_umap'] must have two finite columns, and has shape {xy.shape}"
                + ("" if xy.ndim == 2 and xy.shape[1] >= 2 else " instead")
                + ": run scanpy.tl.umap again, or delete it, and the report computes one."
            )
        return Positions(rows, xy[rows, :2].astype(np.float64))
    if len(rows) < _MIN_CELLS:
        return Positions(rows, np.zeros((len(rows), 2)), why_not=f"{len(rows)} cells are too few")
    logger.info(
        "report: adata.obsm has no 'X_umap', so that one is computed for %s cells",
        format_thousands(len(rows)),
    )
    drawn = ad.AnnData(obs=pd.DataFrame(index=[str(i) for i in range(len(rows))]))
    drawn.obsm["attention"] = np.asarray(adata.obsm[f"X_{cells.key}"])[rows]
    n_neighbors = min(_N_NEIGHBORS, len(rows) - 1)
    # The spectral start needs many more cells than components.
    start = "spectral" if len(rows) > 4 * _N_NEIGHBORS else "random"
    with progress(None, "report: UMAP"):
        sc.pp.neighbors(drawn, n_neighbors=n_neighbors, use_rep="attention", random_state=seed)
        sc.tl.umap(drawn, random_state=seed, init_pos=start)
    return Positions(rows, drawn.obsm["X_umap"].astype(np.float64), computed=True)
