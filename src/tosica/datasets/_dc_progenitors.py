"""Progenitors of dendritic cells of Schlitzer et al. (2015)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.sparse import csr_matrix

from tosica.datasets._public import Published, load

if TYPE_CHECKING:
    from tosica.io._rds import RObject

STAGES = ["MDP", "CDP", "PreDC"]


def dc_progenitors() -> AnnData:
    """Mouse progenitors of dendritic cells in three stages, whose order is known.

    The cells were sorted from bone marrow by surface markers and sequenced one by one (Smart-seq):
    progenitors of macrophages and dendritic cells (MDP), common progenitors of dendritic cells
    (CDP) and precursors of dendritic cells (PreDC), of Schlitzer et al., Nat. Immunol. 16, 718
    (2015), GSE60783. The R package SCORPIUS keeps the 2 000 most variable genes of 245 cells.

    Returns
    -------
    AnnData
        ``(245, 2000)``, with:

        ``.X``
            Log-normalised expression, natural logarithm, :class:`scipy.sparse.csr_matrix` of
            float32. SCORPIUS has it as ``log2(x + 1)``, here it is ``log1p(x)``.
        ``.obs``
            ``stage``, categorical: ``MDP`` (57 cells), ``CDP`` (94), ``PreDC`` (94), in this order.
        ``.var_names``
            Symbols of mouse genes.

    Raises
    ------
    FileNotFoundError
        If the folder in ``TOSICA_DATA`` has no file ``dc_progenitors.h5ad``.
    ImportError, OSError, ValueError
        As in :func:`kang`.

    See Also
    --------
    kang : says from where data are read.

    Examples
    --------
    .. code-block:: python

        adata = tosica.datasets.dc_progenitors()
        adata.obs["stage"].value_counts(sort=False)
    """
    return cast("AnnData", load(_DC_PROGENITORS))


def _convert(ginhoux: RObject) -> AnnData:
    parts = ginhoux.items()
    cells, genes = parts["expression"].dimnames()
    log2 = np.ma.getdata(parts["expression"].array())
    adata = AnnData(csr_matrix(log2 * math.log(2), dtype=np.float32))
    adata.obs_names, adata.var_names = cells, genes
    stage = parts["sample_info"].table(cells)["group_name"].astype(str)
    adata.obs["stage"] = pd.Categorical(stage, categories=STAGES)
    return adata


_DC_PROGENITORS = Published(
    file="dc_progenitors.h5ad",
    url=(
        "https://raw.githubusercontent.com/rcannood/SCORPIUS/17f1a798e6eb7d7d16eeac84ed0d79dffeb46528/data/ginhoux.rda"
    ),
    name="ginhoux",
    convert=_convert,
    sha256="e12dec088f03669a105a44d17b55cfd0cf0de6a2bf618959d506b671ac08f561",
)
