"""PBMCs of Kang et al. (2018), control and treated with interferon."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from anndata import AnnData

from tosica.datasets._public import Published, load

if TYPE_CHECKING:
    from tosica.io._rds import RObject


def kang() -> AnnData:
    """Counts of blood cells of two donors, untreated and after six hours with interferon-β.

    The cells are a part of those of Kang et al., Nat. Biotechnol. 36, 89 (2018), GSE96583, chosen
    by the R package muscat for its examples: four samples, five cell types with at most 100 cells
    in each sample, and the genes that are well expressed.

    Returns
    -------
    AnnData
        ``(1556, 1267)``, with:

        ``.X``
            Counts, :class:`scipy.sparse.csr_matrix` of float32.
        ``.obs``
            ``cluster_id`` (cell type), ``sample_id`` (``ctrl101``, ``ctrl107``, ``stim101``,
            ``stim107``: condition and donor) and ``group_id`` (``ctrl``, ``stim``), categorical.
        ``.var_names``
            Gene symbols.

    Raises
    ------
    FileNotFoundError
        If the folder in ``TOSICA_DATA`` has no file ``kang_pbmc.h5ad``.
    ImportError
        If the data must be converted and ``rdata`` is missing: ``pip install 'tosica[seurat]'``.
    OSError
        If the data cannot be downloaded, read or cached.
    ValueError
        If the file has other contents than those that tosica knows.

    Notes
    -----
    The first call downloads a file of 1 MB, converts it, compares a SHA-256 of the contents, and
    keeps the result in ``TOSICA_CACHE``, or else in the user's cache folder. If the environment
    variable ``TOSICA_DATA`` names a folder, the file is read from there, and nothing is downloaded.

    Examples
    --------
    .. code-block:: python

        adata = tosica.datasets.kang()
        control = adata[adata.obs["group_id"] == "ctrl"].copy()
    """
    return cast("AnnData", load(_KANG))


def _convert(experiment: RObject) -> AnnData:
    cells = experiment["colData"]["rownames"].strings()
    obs = experiment["colData"]["listData"].table(cells)
    counts = experiment["assays"]["data"]["listData"].items()["counts"]
    adata = AnnData(counts.cells_by_genes("counts").astype("float32"))
    adata.obs_names = cells
    adata.var_names = counts.dimnames()[0] or experiment["NAMES"].strings()
    for key in ("cluster_id", "sample_id", "group_id"):
        adata.obs[key] = obs[key].astype("category").cat.remove_unused_categories()
    return adata


_KANG = Published(
    file="kang_pbmc.h5ad",
    url=(
        "https://raw.githubusercontent.com/HelenaLC/muscat/"
        "7fbf4a3d7a1a6f20d5f64e1ddd122acfa977e62d/data/example_sce.rda"
    ),
    name="example_sce",
    convert=_convert,
    sha256="17fb55aecbc0632f9a0f1d68da3f2cbd96001ea88bc17689ff9d90014574a774",
)
