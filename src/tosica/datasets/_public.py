"""Published cells, which R packages keep: downloaded and converted once, and checked by a hash."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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

_VARIABLE = "TOSICA_DATA"
# Genes in fewer cells are left out, and the prefix of human genes is removed.
_MIN_CELLS, _HUMAN = 3, "hg19_"
# Clusters of the CITE-seq cells by their antibodies, in the alphabetical order of the barcodes.
_CLUSTERS = (
    "335445130404423344244021303202113344443100043331201313304314103022332413000311444301"
    "001013331313104423104124021145541321115041513450414013134421003541414321310032334333"
    "413010410411501104430343103111001400411404110115514034440011214334111141020033424104"
    "054004311501333141311443311513400040031331014241013441310403011004014403035314313413"
    "400251431142403111115333430101433021411031131111330141343433433320104103411311301302"
    "41031231144143310443332110114133031131300111413020403311234135243414424440341014"
)


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
    return _load("kang")


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
    return _load("dc_progenitors")


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
    return _load("cite_pbmc")


# --------------------------------------------------------------------------- from R's objects


def _counts(matrix: RObject, name: str) -> AnnData:
    genes, cells = matrix.dimnames()
    adata = AnnData(matrix.cells_by_genes(name).astype(np.float32))
    adata.obs_names, adata.var_names = cells, genes
    return adata


def _muscat(experiment: RObject) -> AnnData:
    cells = experiment["colData"]["rownames"].strings()
    obs = experiment["colData"]["listData"].table(cells)
    counts = experiment["assays"]["data"]["listData"].items()["counts"]
    adata = AnnData(counts.cells_by_genes("counts").astype(np.float32))
    adata.obs_names = cells
    adata.var_names = counts.dimnames()[0] or experiment["NAMES"].strings()
    for key in ("cluster_id", "sample_id", "group_id"):
        adata.obs[key] = obs[key].astype("category").cat.remove_unused_categories()
    return adata


def _scorpius(ginhoux: RObject) -> AnnData:
    parts = ginhoux.items()
    cells, genes = parts["expression"].dimnames()
    log2 = np.ma.getdata(parts["expression"].array())
    adata = AnnData(csr_matrix(log2 * math.log(2), dtype=np.float32))
    adata.obs_names, adata.var_names = cells, genes
    stage = parts["sample_info"].table(cells)["group_name"].astype(str)
    adata.obs["stage"] = pd.Categorical(stage, categories=["MDP", "CDP", "PreDC"])
    return adata


def _citefuse(example: RObject) -> MuData:
    parts = example.items()
    rna, protein = _counts(parts["RNA"], "RNA"), _counts(parts["ADT"], "ADT")
    rna.var_names = [gene.removeprefix(_HUMAN) for gene in rna.var_names]
    n_cells = np.asarray((rna.X > 0).sum(axis=0)).ravel()
    rna = rna[:, n_cells >= _MIN_CELLS].copy()
    clusters = pd.Series([f"adt_{number}" for number in _CLUSTERS], dtype="category")
    clusters.index = np.sort(rna.obs_names)
    rna.obs["adt_cluster"] = clusters[rna.obs_names]
    made = _quietly(
        lambda: MuData({"rna": rna, "protein": protein[rna.obs_names].copy()})
    )
    made.obs["adt_cluster"] = rna.obs["adt_cluster"]
    return made


class Published(NamedTuple):
    """A data set in an R package.

    Its file in a folder, the address of the ``.rda`` file of one commit, the name of the object in
    it, what makes annotated data of this, the columns of ``obs`` that are kept of a file, and the
    hash of the contents (:func:`contents_hash`).
    """

    file: str
    url: str
    name: str
    convert: Callable[[RObject], AnnData | MuData]
    columns: list[str]
    sha256: str


_GITHUB = "https://raw.githubusercontent.com/"
PUBLISHED = {
    "kang": Published(
        "kang_pbmc.h5ad",
        f"{_GITHUB}HelenaLC/muscat/7fbf4a3d7a1a6f20d5f64e1ddd122acfa977e62d/data/example_sce.rda",
        "example_sce",
        _muscat,
        ["cluster_id", "sample_id", "group_id"],
        "17fb55aecbc0632f9a0f1d68da3f2cbd96001ea88bc17689ff9d90014574a774",
    ),
    "kang_unlabeled": Published(
        "kang_ctrl_unlabelled.h5ad",
        f"{_GITHUB}immunogenomics/harmony/0c5b606536778aa7e104ee5fda7ed55da140307e/data/pbmc_stim.RData",
        "pbmc.ctrl",
        lambda counts: _counts(counts, "pbmc.ctrl"),
        [],
        "1d9da12ad8bc2c737f992ceb8cd759ed1a168bb356afaf8926c8719afeec87ad",
    ),
    "dc_progenitors": Published(
        "dc_progenitors.h5ad",
        f"{_GITHUB}rcannood/SCORPIUS/17f1a798e6eb7d7d16eeac84ed0d79dffeb46528/data/ginhoux.rda",
        "ginhoux",
        _scorpius,
        ["stage"],
        "e12dec088f03669a105a44d17b55cfd0cf0de6a2bf618959d506b671ac08f561",
    ),
    "cite_pbmc": Published(
        "cite_pbmc.h5mu",
        f"{_GITHUB}SydneyBioX/CiteFuse/d13b3921ebd877b40f9d5b12bd36e7bbf4051602/data/CITEseq_example.rda",
        "CITEseq_example",
        _citefuse,
        ["adt_cluster"],
        "b522df0ea6c918ccb10f8488a30351588af0688880b3a73f51146639bed3f661",
    ),
}

# --------------------------------------------------------------------------- folders


def _load(name: str) -> Any:
    """Read a data set from the folder of ``TOSICA_DATA`` or the cache, and download it before."""
    data, chosen = PUBLISHED[name], os.environ.get(_VARIABLE)
    path = (
        Path(chosen).expanduser() / data.file
        if chosen
        else cache_folder() / "datasets" / data.file
    )
    if chosen and not path.is_file():
        raise FileNotFoundError(
            f"{path.parent}, the folder in {_VARIABLE}, has no {data.file}: put it there, or unset {_VARIABLE}."
        )
    if not path.is_file():
        _fetch(data, path)
    try:
        found = (
            read_h5ad(path)
            if path.suffix == ".h5ad"
            else _quietly(lambda: mudata.read_h5mu(path))
        )
    except Exception as error:
        raise OSError(
            f"{path} cannot be read ({type(error).__name__}): delete it, or replace it."
        ) from error
    found.obs = found.obs[data.columns]
    _check(found, data, str(path))
    return found


def _fetch(data: Published, path: Path) -> None:
    """Download, convert and check a data set, and put it into the cache."""
    other = f"set {_VARIABLE} to a folder that has {data.file}"
    with new_in_cache(path) as made:
        rda = made.with_name("downloaded.rda")
        try:
            download(data.url, rda)
        except OSError as error:
            error.add_note(f"Try again, or {other}.")
            raise
        objects = parse_rda(rda)
        if data.name not in objects:
            raise ValueError(
                f"{data.url} has no object {data.name!r}, so it was not kept: {other}."
            )
        converted = data.convert(objects[data.name])
        _check(converted, data, data.url)
        if isinstance(converted, MuData):
            converted.write(made)
        else:
            converted.write_h5ad(made, compression="gzip")
    logger.info("datasets: downloaded %s, and made %s", data.url, path)


def contents_hash(data: AnnData | MuData) -> str:
    """SHA-256 of names, labels and values, in whatever order the cells and genes are.

    Of values that are not whole numbers, only the place counts: another computer may round the last
    digit otherwise.
    """
    digest = hashlib.sha256()
    for adata in data.mod.values() if isinstance(data, MuData) else [data]:
        cells, genes = np.argsort(adata.obs_names), np.argsort(adata.var_names)
        obs = adata.obs.iloc[cells]
        columns = [obs[column].astype(str) for column in sorted(obs)]
        for names in (obs.index, adata.var_names[genes], *columns):
            digest.update("\n".join(names).encode() + b"\0")
        values = csr_matrix(adata.X)[cells][:, genes]
        values.sort_indices()
        whole = np.rint(values.data).astype("<i8")
        digest.update(values.indptr.astype("<i8").tobytes())
        digest.update(values.indices.astype("<i8").tobytes())
        if np.array_equal(whole, values.data):
            digest.update(whole.tobytes())
    return digest.hexdigest()


def _check(found: AnnData | MuData, data: Published, where: str) -> None:
    if contents_hash(found) != data.sha256:
        raise ValueError(
            f"{where} does not hold the cells, labels and values of {data.file}: replace it, or set {_VARIABLE}."
        )


def _quietly(make: Callable[[], MuData]) -> MuData:
    """Without warnings about mudata's next version, and about names of genes that antibodies share."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()
