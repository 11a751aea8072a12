"""Read the rows of several modalities side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from tosica.pp._modalities import in_order, place_cells
from tosica.pp._rows import Rows

if TYPE_CHECKING:
    from mudata import MuData

    from ._modalities import Modality


class JointRows:
    """Rows of a MuData: the modalities of a model one behind the other, as they are.

    What a minibatch needs of :class:`~tosica.pp._rows.Rows`, for cells in the order of the MuData.

    Parameters
    ----------
    mdata
        Where to read.
    modalities
        Which modalities, in which order.
    """

    def __init__(self, mdata: MuData, modalities: list[Modality]) -> None:
        names = [str(modality.name) for modality in modalities]
        places = place_cells(mdata, names)
        self.n_obs: int = mdata.n_obs
        self._rows = [
            Rows(in_order(mdata[name], places[name]), layer=m.layer, name=f"mdata[{name!r}]")
            for name, m in zip(names, modalities, strict=True)
        ]

    def take(self, cells: np.ndarray) -> np.ndarray:
        """Any rows, in any order, ``(n_cells, n_genes)`` float32."""
        blocks = [rows.take(cells) for rows in self._rows]
        dense = [block.toarray() if sp.issparse(block) else block for block in blocks]
        return np.concatenate([np.asarray(part, dtype=np.float32) for part in dense], axis=1)
