"""Give a query's cells the antibodies of a model: matched by name, put in order, checked."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from tosica._logging import logger
from tosica.data._align import BLOCK, AlignedBatch, match_names, on_model_genes, user_stacklevel
from tosica.data._antibodies import (
    AntibodyKind,
    AntibodyScale,
    antibody_kind_of,
    are_centered,
    cell_means,
)
from tosica.data._cell_matrix import CellMatrix, check_unique
from tosica.data._scale import mixed_scales_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from anndata import AnnData


def align_antibodies(
    adata: AnnData,
    names: pd.Index,
    scale: AntibodyScale,
    *,
    layer: str | None = None,
    use_raw: bool = False,
    batch_size: int = 256,
    name: str = "adata",
) -> Iterator[AlignedBatch]:
    """Check a query, then hand out its cells in batches on the model's antibodies.

    Parameters
    ----------
    adata
        The query.
    names
        The model's antibodies, in the model's order.
    scale
        How the model's reference was scaled.
    layer, use_raw
        Which matrix of the query to read.
    batch_size
        Cells in a batch.
    name
        What the query is called in sentences.

    Returns
    -------
    Iterator over batches, in the order of the cells.

    Raises
    ------
    ValueError
        If the query shares under half of the model's antibodies, if one of them or a cell's name
        occurs twice, if values are missing, infinite, negative counts, or neither counts nor
        normalised, or if it holds counts and the reference was normalised in a way that cannot be
        told.

    Warns
    -----
    UserWarning
        If the query shares under 95 % of the model's antibodies, or was normalised in another way
        than the reference.
    """
    rows = CellMatrix(adata, layer=layer, use_raw=use_raw, name=name)
    check_unique(adata.obs_names, f"obs_names of {name}", f"{name}.obs_names_make_unique()")
    place = match_names(rows, names, None if use_raw else adata.var, name=name, what="antibodies")
    return _batches(rows, place, len(names), scale, batch_size)


def _batches(
    rows: CellMatrix, place: np.ndarray, n_names: int, scale: AntibodyScale, batch_size: int
) -> Iterator[AlignedBatch]:
    measured = np.zeros(n_names, dtype=bool)
    measured[place[place >= 0]] = True
    kind: AntibodyKind | None = None
    means: list[np.ndarray] = []
    squares, n_values = 0.0, 0
    for start, block in rows.blocks(max(BLOCK // batch_size, 1) * batch_size):
        seen = antibody_kind_of(block, rows.where, first_cell=start)
        if kind is None and seen is not None:
            kind = seen
            logger.info("query: %s holds %s", rows.where, _NAMES[kind])
            if kind == "counts" and not scale.centred:
                raise ValueError(
                    f"{rows.where} holds counts of antibodies, but the model's reference was "
                    "normalised before, in a way that cannot be told from its values: normalise "
                    "the query alike."
                )
        elif seen not in (None, kind):
            raise mixed_scales_error(rows.where, start)
        if kind == "normalised":
            means.append(cell_means(block))
            squares += float(np.square(block.data if sp.issparse(block) else block).sum())
            n_values += int(np.prod(block.shape))
        for offset in range(0, block.shape[0], batch_size):
            values = on_model_genes(block[offset : offset + batch_size], place, n_names)
            counts = kind != "normalised" and scale.centred
            yield AlignedBatch(start + offset, values, counts, None, measured)
    shifted = kind == "normalised" and not are_centered(np.concatenate(means), squares / n_values)
    if shifted and scale.centred:
        warnings.warn(
            f"{rows.where} holds normalised antibodies whose mean in a cell is not zero, so they "
            "were not normalised as the model's reference, by the centred log-ratio of each cell; "
            "labels may suffer: give the counts.",
            UserWarning,
            stacklevel=user_stacklevel(),
        )


_NAMES = {"counts": "counts of antibodies", "normalised": "normalised antibodies"}
