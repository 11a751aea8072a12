"""RNA and antibodies of the PBMCs of Mimitou et al. (2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pandas as pd
from anndata import AnnData
from mudata import MuData

from tosica.datasets._public import Published, load, quiet_mudata

if TYPE_CHECKING:
    from tosica.io._rds import RObject

# Genes in fewer cells are left out.
_MIN_CELLS = 3
# Clusters of the cells by their antibodies, in the alphabetical order of the barcodes.
_CLUSTERS = (
    "335445130404423344244021303202113344443100043331201313304314103022332413000311444301"
    "001013331313104423104124021145541321115041513450414013134421003541414321310032334333"
    "413010410411501104430343103111001400411404110115514034440011214334111141020033424104"
    "054004311501333141311443311513400040031331014241013441310403011004014403035314313413"
    "400251431142403111115333430101433021411031131111330141343433433320104103411311301302"
    "41031231144143310443332110114133031131300111413020403311234135243414424440341014"
)
# Prefix of human genes in the R package.
_HUMAN = "hg19_"


def cite_pbmc() -> MuData:
    """Counts of RNA and of 49 antibodies of the same 500 blood cells (CITE-seq).

    The cells are a part of the healthy control of Mimitou et al., Nat. Methods 16, 409 (2019),
    GSE126310, chosen by the R package CiteFuse for its examples.

    Returns
    -------
    MuData
        500 cells in two modalities:

        ``rna``
            Counts ``(500, 11980)``, :class:`scipy.sparse.csr_matrix` of float32, of the genes that
            at least three cells express; gene symbols.
        ``protein``
            Counts ``(500, 49)``, :class:`scipy.sparse.csr_matrix` of float32.

        ``.obs["adt_cluster"]``, of the MuData and of ``rna``, has clusters of the cells by their
        antibodies, ``adt_0`` to ``adt_5``, categorical. They are part of tosica.

    Raises
    ------
    FileNotFoundError
        If the folder in ``TOSICA_DATA`` has no file ``cite_pbmc.h5mu``.
    ImportError, OSError, ValueError
        As in :func:`kang`.

    See Also
    --------
    kang : says from where data are read.

    Examples
    --------
    .. code-block:: python

        mdata = tosica.datasets.cite_pbmc()
        mdata["protein"].var_names
    """
    return cast("MuData", load(_CITE_PBMC))


def _convert(example: RObject) -> MuData:
    parts = example.items()
    rna, protein = _counts(parts["RNA"], "RNA"), _counts(parts["ADT"], "ADT")
    rna.var_names = [gene.removeprefix(_HUMAN) for gene in rna.var_names]
    n_cells = np.asarray((rna.X > 0).sum(axis=0)).ravel()
    rna = rna[:, n_cells >= _MIN_CELLS].copy()
    clusters = pd.Series([f"adt_{number}" for number in _CLUSTERS], dtype="category")
    clusters.index = np.sort(rna.obs_names)
    rna.obs["adt_cluster"] = clusters[rna.obs_names]
    with quiet_mudata():
        made = MuData({"rna": rna, "protein": protein[rna.obs_names].copy()})
    made.obs["adt_cluster"] = rna.obs["adt_cluster"]
    return made


def _counts(matrix: RObject, name: str) -> AnnData:
    features, cells = matrix.dimnames()
    adata = AnnData(matrix.cells_by_genes(name).astype(np.float32))
    adata.obs_names, adata.var_names = cells, features
    return adata


_CITE_PBMC = Published(
    file="cite_pbmc.h5mu",
    url=(
        "https://raw.githubusercontent.com/SydneyBioX/CiteFuse/"
        "d13b3921ebd877b40f9d5b12bd36e7bbf4051602/data/CITEseq_example.rda"
    ),
    name="CITEseq_example",
    convert=_convert,
    sha256="b522df0ea6c918ccb10f8488a30351588af0688880b3a73f51146639bed3f661",
)
