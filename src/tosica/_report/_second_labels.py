"""Which label the cells of each label would have next."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica._report._cells import Cells
    from tosica.model import TOSICA


class Second(NamedTuple):
    """The second best label of a label's cells, and its mean probability in them."""

    label: str
    probability: float


def second_labels(
    adata: AnnData,
    cells: Cells,
    model: TOSICA | None,
    drawn: list[NDArray[np.int64]],
    *,
    layer: str | None,
    use_raw: bool,
) -> dict[str, Second] | None:
    """Find the label that the cells of each label would have next.

    Parameters
    ----------
    adata
        The annotated cells.
    cells
        Their annotation.
    model
        The model, which is asked if ``adata`` does not have the probabilities of all labels.
    drawn
        Positions of some cells of each label that is a cell type, for the model.
    layer, use_raw
        Which matrix of ``adata`` to read.

    Returns
    -------
    By label; ``None`` if nothing tells.
    """
    stored = adata.obsm.get(f"{cells.key}_probabilities")
    if isinstance(stored, pd.DataFrame) and stored.shape[1] == len(cells.all_labels):
        rows = [cells.rows(code) for code in cells.types]
        every = stored.to_numpy(np.float64)
        names = cells.all_labels
        of_label = [every[positions] for positions in rows]
    elif model is not None and drawn:
        with warnings.catch_warnings():
            # Of genes that are missing, which annotate has warned of, and the page says.
            warnings.simplefilter("ignore", UserWarning)
            table = model.predict(
                adata, np.concatenate(drawn).tolist(), soft=True, layer=layer, use_raw=use_raw
            )
        assert isinstance(table, pd.DataFrame)
        names = [str(name) for name in table.columns]
        ends = np.cumsum([len(positions) for positions in drawn])[:-1]
        of_label = np.split(table.to_numpy(np.float64), ends)
    else:
        return None
    found = {}
    for code, probabilities in zip(cells.types, of_label, strict=True):
        label = cells.labels[code]
        means = probabilities.mean(0)
        others = [i for i, name in enumerate(names) if name != label]
        if others:
            best = max(others, key=lambda i: means[i])
            found[label] = Second(names[best], float(means[best]))
    return found
