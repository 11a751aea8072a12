"""PBMCs of Kang et al. (2018) without labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from anndata import AnnData

from tosica.datasets._public import Published, load

if TYPE_CHECKING:
    from tosica.io._rds import RObject


def kang_unlabeled() -> AnnData:
    """Counts of untreated blood cells of eight donors, without labels and with all kinds of cells.

    The cells are a random part of the untreated cells of Kang et al., Nat. Biotechnol. 36, 89
    (2018), GSE96583, chosen by the R package harmony for its examples. 55 of them are in
    :func:`kang` as well, under the same names.

    Returns
    -------
    AnnData
        ``(1000, 9015)``, with:

        ``.X``
            Counts, :class:`scipy.sparse.csr_matrix` of float32.
        ``.obs``
            No columns; the names are the barcodes of the cells.
        ``.var_names``
            Gene symbols, none of them mitochondrial.

    Raises
    ------
    FileNotFoundError
        If the folder in ``TOSICA_DATA`` has no file ``kang_ctrl_unlabelled.h5ad``.
    ImportError, OSError, ValueError
        As in :func:`kang`.

    See Also
    --------
    kang : says from where data are read.

    Examples
    --------
    .. code-block:: python

        adata = tosica.datasets.kang_unlabeled()
    """
    return cast("AnnData", load(_KANG_UNLABELED))


def _convert(counts: RObject) -> AnnData:
    adata = AnnData(counts.cells_by_genes("pbmc.ctrl").astype(np.float32))
    adata.var_names, adata.obs_names = counts.dimnames()
    return adata


_KANG_UNLABELED = Published(
    file="kang_ctrl_unlabelled.h5ad",
    url=(
        "https://raw.githubusercontent.com/immunogenomics/harmony/"
        "0c5b606536778aa7e104ee5fda7ed55da140307e/data/pbmc_stim.RData"
    ),
    name="pbmc.ctrl",
    convert=_convert,
    sha256="1d9da12ad8bc2c737f992ceb8cd759ed1a168bb356afaf8926c8719afeec87ad",
    columns=(),
)
