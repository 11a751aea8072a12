"""Published cells from R packages: downloaded, checked by a hash and converted once."""

from __future__ import annotations

import math
import os
import warnings
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import mudata
import numpy as np
import pandas as pd
from anndata import AnnData, read_h5ad
from mudata import MuData
from scipy.sparse import csr_matrix

from tosica._files import cache_folder, download, new_in_cache
from tosica._settings import logger
from tosica.io._rds import RObject, parse_rda

if TYPE_CHECKING:
    from collections.abc import Callable

    from tosica._types import AnnOrMuData

_FOLDER_VARIABLE = "TOSICA_DATA"
# Genes of the CITE-seq cells that fewer cells express are left out.
_MIN_CELLS = 3
_HUMAN_PREFIX = "hg19_"


def kang() -> AnnData:
    """Counts of blood cells of two donors, untreated and after six hours with interferon-β.

    The cells are a subset of those of Kang et al., Nat. Biotechnol. 36, 89 (2018), GSE96583, chosen
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
    OSError
        If the data cannot be downloaded, read or cached.
    ValueError
        If the file has other contents than those that tosica knows.

    Notes
    -----
    The first call downloads a file of 1 MB, compares its SHA-256, converts it, and keeps the
    result in ``TOSICA_CACHE``, or else in the user's cache folder. If the environment variable
    ``TOSICA_DATA`` names a folder, the file is read from there, and nothing is downloaded.

    Examples
    --------
    .. code-block:: python

        adata = tosica.datasets.kang()
        control = adata[adata.obs["group_id"] == "ctrl"].copy()
    """
    return _load("kang")


def kang_unlabeled() -> AnnData:
    """Counts of untreated blood cells of eight donors, without labels and with all kinds of cells.

    The cells are a random subset of the untreated cells of Kang et al., Nat. Biotechnol. 36, 89
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
    return _load("kang_unlabeled")


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
            Log-normalized expression, natural logarithm, :class:`scipy.sparse.csr_matrix` of
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
    return _load("dc_progenitors")


def cite_pbmc() -> MuData:
    """Counts of RNA and of 49 antibodies of the same 500 blood cells (CITE-seq).

    The cells are a subset of the healthy control of Mimitou et al., Nat. Methods 16, 409 (2019),
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
    return _load("cite_pbmc")


# --------------------------------------------------------------------------- conversion


def _from_matrix(matrix: RObject) -> AnnData:
    """Convert a sparse matrix of genes × cells."""
    gene_names, cell_names = matrix.dimnames()
    adata = AnnData(matrix.cells_by_genes("the matrix").astype(np.float32))
    adata.obs_names = cell_names
    adata.var_names = gene_names
    return adata


def _from_muscat(experiment: RObject) -> AnnData:
    """Convert a SingleCellExperiment, whose counts have no names of cells."""
    cell_names = experiment["colData"]["rownames"].strings()
    obs = experiment["colData"]["listData"].table(cell_names)
    counts = experiment["assays"]["data"]["listData"].items()["counts"]
    adata = AnnData(counts.cells_by_genes("counts").astype(np.float32))
    adata.obs_names = cell_names
    adata.var_names = counts.dimnames()[0] or experiment["NAMES"].strings()
    for key in ("cluster_id", "sample_id", "group_id"):
        adata.obs[key] = obs[key].astype("category").cat.remove_unused_categories()
    return adata


def _from_scorpius(ginhoux: RObject) -> AnnData:
    """Convert a list of dense ``log2(x + 1)`` of cells × genes and a table of the cells."""
    elements = ginhoux.items()
    cell_names, gene_names = elements["expression"].dimnames()
    log2_values = np.ma.getdata(elements["expression"].array())
    adata = AnnData(csr_matrix(log2_values * math.log(2), dtype=np.float32))
    adata.obs_names = cell_names
    adata.var_names = gene_names
    stage = elements["sample_info"].table(cell_names)["group_name"].astype(str)
    adata.obs["stage"] = pd.Categorical(stage, categories=["MDP", "CDP", "PreDC"])
    return adata


def _from_citefuse(example: RObject) -> MuData:
    """Convert a list of two matrices, and add the clusters of the cells."""
    elements = example.items()
    rna = _from_matrix(elements["RNA"])
    protein = _from_matrix(elements["ADT"])
    rna.var_names = [gene.removeprefix(_HUMAN_PREFIX) for gene in rna.var_names]
    n_cells = np.asarray((rna.X > 0).sum(axis=0)).ravel()
    rna = rna[:, n_cells >= _MIN_CELLS].copy()
    with files("tosica.datasets").joinpath("cite_pbmc_clusters.csv").open() as file:
        clusters = pd.read_csv(file, index_col="barcode", dtype="category")
    rna.obs["adt_cluster"] = clusters["adt_cluster"][rna.obs_names]
    with warnings.catch_warnings():
        # On mudata's next version, and on names that genes and antibodies share.
        warnings.simplefilter("ignore")
        mdata = MuData({"rna": rna, "protein": protein[rna.obs_names].copy()})
    mdata.obs["adt_cluster"] = rna.obs["adt_cluster"]
    return mdata


class Published(NamedTuple):
    """A data set in an R package.

    Attributes
    ----------
    file
        Name of its file in a folder.
    url
        Address of an ``.rda`` file of one commit.
    known_hash
        SHA-256 of the ``.rda`` file.
    name
        Name of the object in it.
    convert
        Function that converts the object.
    columns
        Columns of ``obs`` that are read from a file.
    """

    file: str
    url: str
    known_hash: str
    name: str
    convert: Callable[[RObject], AnnOrMuData]
    columns: list[str]


_GITHUB = "https://raw.githubusercontent.com/"
PUBLISHED = {
    "kang": Published(
        file="kang_pbmc.h5ad",
        url=f"{_GITHUB}HelenaLC/muscat/7fbf4a3d7a1a6f20d5f64e1ddd122acfa977e62d/data/example_sce.rda",
        known_hash="f66811fa513a01a91dae01bad308e96ed5238277246b911d8e1cd5f4425c3ed9",
        name="example_sce",
        convert=_from_muscat,
        columns=["cluster_id", "sample_id", "group_id"],
    ),
    "kang_unlabeled": Published(
        file="kang_ctrl_unlabelled.h5ad",
        url=f"{_GITHUB}immunogenomics/harmony/0c5b606536778aa7e104ee5fda7ed55da140307e/data/pbmc_stim.RData",
        known_hash="d85a18ce8ec9dcb4ac86c8e195ed53ff893c5952a7d6bf70035a17856c9dc0ef",
        name="pbmc.ctrl",
        convert=_from_matrix,
        columns=[],
    ),
    "dc_progenitors": Published(
        file="dc_progenitors.h5ad",
        url=f"{_GITHUB}rcannood/SCORPIUS/17f1a798e6eb7d7d16eeac84ed0d79dffeb46528/data/ginhoux.rda",
        known_hash="1c4eb1cb26b467ace477802d13052bc66e92e6552313ff2910f795ba47700ca0",
        name="ginhoux",
        convert=_from_scorpius,
        columns=["stage"],
    ),
    "cite_pbmc": Published(
        file="cite_pbmc.h5mu",
        url=f"{_GITHUB}SydneyBioX/CiteFuse/d13b3921ebd877b40f9d5b12bd36e7bbf4051602/data/CITEseq_example.rda",
        known_hash="ff1063648dcef1220bfc0575dd107892e3d1af5017d441f2e5dcfb7dc7693ee6",
        name="CITEseq_example",
        convert=_from_citefuse,
        columns=["adt_cluster"],
    ),
}

# --------------------------------------------------------------------------- folders


def _load(name: str) -> AnnOrMuData:
    """Read a data set from the folder in ``TOSICA_DATA`` or from the cache."""
    published = PUBLISHED[name]
    folder = os.environ.get(_FOLDER_VARIABLE)
    if folder:
        path = Path(folder).expanduser() / published.file
        if not path.is_file():
            raise FileNotFoundError(
                f"{path.parent}, the folder in {_FOLDER_VARIABLE}, has no "
                f"{published.file}: put it there, or unset {_FOLDER_VARIABLE}."
            )
    else:
        path = cache_folder() / "datasets" / published.file
        if not path.is_file():
            _fetch(published, path)
    read = read_h5ad if path.suffix == ".h5ad" else mudata.read_h5mu
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = read(path)
    except Exception as error:
        raise OSError(
            f"{path} cannot be read ({type(error).__name__}): delete it, or replace it."
        ) from error
    data.obs = data.obs[published.columns]
    return data


def _fetch(published: Published, path: Path) -> None:
    """Download and convert a data set, and put it into the cache."""
    with new_in_cache(path) as temporary:
        rda = temporary.with_name("downloaded.rda")
        download(
            published.url,
            rda,
            known_hash=published.known_hash,
            alternative=f"set {_FOLDER_VARIABLE} to a folder that has {published.file}",
        )
        data = published.convert(parse_rda(rda)[published.name])
        if isinstance(data, MuData):
            data.write(temporary)
        else:
            data.write_h5ad(temporary, compression="gzip")
    logger.info("datasets: downloaded %s, and wrote %s", published.url, path)
