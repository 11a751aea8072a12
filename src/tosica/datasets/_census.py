"""A reference by the name of a tissue: labeled cells of CELLxGENE Census."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._files import cache_folder, explain_cache_error, replace_file
from tosica._progress import progress
from tosica._settings import logger
from tosica._text import format_thousands, list_names, listed, parameter
from tosica._validate import InstanceOf, Integer, validate_params
from tosica.datasets._census_client import (
    Experiment,
    match_names,
    mirror,
    open_census,
    resolve_version,
)
from tosica.datasets._census_sample import (
    STRATA,
    TYPE,
    Candidates,
    collect,
    sample,
    type_table,
)
from tosica.onto._ontology import read_ontology, term_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from anndata import AnnData

    from tosica._types import IntArray

# Changes when the files in the cache do.
_FORMAT = 1
# What a broken download loses at most: some seconds.
_CELLS_PER_PART = 2_000
# Targeted kits measure up to 1 500 genes, whole transcriptomes in the census more than 10 000.
_MIN_GENES = 5_000
_TISSUES = (
    "tissue_general",
    "tissue",
    "tissue_general_ontology_term_id",
    "tissue_ontology_term_id",
)
_NUMBER = "soma_joinid"
# Columns of obs that a reference has.
_COLUMNS = (
    "cell_type",
    TYPE,
    "dataset_id",
    "donor_id",
    "assay",
    "disease",
    "suspension_type",
    "development_stage",
    "sex",
    "tissue",
    "tissue_general",
)
_LICENSE = "CC BY 4.0"
_AGE = re.compile(r"(\d+)-(year|month|week|day)-old")
_YEARS = {"year": 1.0, "month": 1 / 12, "week": 7 / 365.25, "day": 1 / 365.25}


@dataclass(frozen=True)
class CensusQuery:
    """What is asked of a census.

    Attributes
    ----------
    tissue, organism, n_per_type, min_cells, version
        As in :func:`census`.
    disease, assay, suspension_type, development_stage
        Names; empty for all.
    age
        Years, from and to; empty for all.
    """

    tissue: str
    organism: str
    n_per_type: int
    min_cells: int
    version: str
    disease: tuple[str, ...] = ()
    assay: tuple[str, ...] = ()
    suspension_type: tuple[str, ...] = ()
    development_stage: tuple[str, ...] = ()
    age: tuple[float, ...] = ()

    def filters(self) -> dict[str, tuple[str, ...]]:
        """Names that each column is filtered by."""
        columns = ("disease", "assay", "suspension_type", "development_stage")
        return {name: getattr(self, name) for name in columns if getattr(self, name)}

    def cache_name(self) -> str:
        """Name for files in the cache, which no other query has."""
        # Who asks for the same in other words gets the same cells, from another file.
        text = json.dumps([asdict(self), mirror(), _FORMAT, _CELLS_PER_PART])
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        tissue = re.sub(r"\W+", "_", self.tissue.lower())
        return f"{self.organism}_{tissue}_{digest}"

    def cache_path(self) -> Path:
        """Path of the reference in the cache."""
        folder = cache_folder() / "census" / self.version
        return folder / f"{self.cache_name()}.h5ad"


@validate_params(
    min_cells=Integer(least=2),
    age=InstanceOf("a pair of years, such as (18, 60)", tuple, list, optional=True),
)
def census(
    tissue: str,
    organism: str = "human",
    *,
    n_per_type: int = 500,
    min_cells: int = 30,
    disease: str | Iterable[str] | None = "normal",
    assay: str | Iterable[str] | None = None,
    suspension_type: str | Iterable[str] | None = None,
    development_stage: str | Iterable[str] | None = None,
    age: tuple[float, float] | None = None,
    version: str = "stable",
    dry_run: bool = False,
) -> AnnData | pd.DataFrame:
    """Get labeled cells of a tissue from CELLxGENE Census, as a reference.

    The census holds the counts of published data sets, with labels as terms of the Cell Ontology.
    Of each type, cells are taken as evenly as possible from all data sets, and in each of these from
    all donors. The same call gives the same cells. Needs ``pip install 'tosica[census]'``.

    Parameters
    ----------
    tissue
        Name or UBERON term, such as ``"lung"`` or ``"UBERON:0002048"``; an organ, or a part of it.
    organism
        ``"human"``, ``"mouse"``, or the Latin name of another one in the census.
    n_per_type
        Largest number of cells of each type.
    min_cells
        Types with fewer cells are left out; about 30 are needed to predict a type reliably.
    disease, assay, suspension_type, development_stage
        Names of the cells to take, ``None`` for all: ``disease="normal"``,
        ``assay=["10x 3' v3", "10x 5' v2"]``, ``suspension_type="nucleus"``.
    age
        Youngest and oldest donors, in years. Stages that state no age in years, months, weeks or days, such as
        "adult stage", are left out then.
    version
        ``"stable"``, ``"latest"``, or the day of a release, such as ``"2025-11-08"``, for the same
        cells at any time.
    dry_run
        Only count the cells, and download none.

    Returns
    -------
    AnnData
        ``(n_cells, n_genes)``, of the genes that all data sets measured:

        ``.X``
            Counts, :class:`scipy.sparse.csr_matrix` of float32.
        ``.obs``
            ``cell_type`` and ``cell_type_ontology_term_id``; ``batch``, which tells donors of
            different data sets apart; ``dataset_id``, ``donor_id``, ``assay``, ``disease``,
            ``suspension_type``, ``development_stage``, ``sex``, ``tissue`` and ``tissue_general``,
            all categorical. The names are numbers of the census.
        ``.var``
            ``feature_name``, the symbols. The names are Ensembl ids.
        ``.uns["census"]``
            ``version``, ``schema``, ``source``, ``organism``, ``tissue``, ``filters``, ``license``,
            ``types`` (the table below) and ``datasets``, with ``dataset_id``, ``dataset_title``,
            ``collection_doi``, ``citation``, ``n_taken`` and ``n_genes``. Please cite these.

    DataFrame
        With ``dry_run``: a row a type, with ``cell_type``, ``cell_type_ontology_term_id``,
        ``n_cells`` (there are), ``n_taken``, ``n_datasets``, ``n_donors``, ``n_below`` (other types
        that are a kind of it) and ``megabytes`` of their counts.

    Raises
    ------
    ModuleNotFoundError
        If the client of the census is not installed.
    TypeError
        If an argument is of the wrong type.
    ValueError
        If there is no such tissue, organism, version or name to filter by, no cells pass the filters, or
        all types have fewer than ``min_cells``.
    OSError
        If the census cannot be reached or read, or the disk is full. The same call goes on where it
        ended.

    Warns
    -----
    UserWarning
        If the census follows a schema that tosica was not written for.

    Notes
    -----
    Left out are cells that another data set holds as well (``is_primary_data``), organoids and
    cultures, cells without a type, and data sets with fewer than 5 000 genes. A type that stands
    above others, such as "T cell" over "CD4-positive, alpha-beta T cell", is a label of its own;
    its cells say nothing about those below. A model of both adds them up in ``tosica_confident``.

    Cells and results stay in ``TOSICA_CACHE``, or else in the user's cache folder. ``TOSICA_CENSUS``
    names a folder or an address with a copy of the census. TileDB stores 2 048 cells together, and
    so downloads more than ``megabytes`` says.

    Source: CZI Cell Science Program, Nucleic Acids Res. 53, D886 (2025), CC BY 4.0.

    Examples
    --------
    .. code-block:: python

        tosica.datasets.census("lung", dry_run=True)
        ref = tosica.datasets.census("lung")
        ref.uns["census"]["datasets"]["citation"]
    """
    query = CensusQuery(
        tissue=tissue,
        organism=organism,
        n_per_type=n_per_type,
        min_cells=min_cells,
        version=version,
        disease=_texts(disease),
        assay=_texts(assay),
        suspension_type=_texts(suspension_type),
        development_stage=_texts(development_stage),
        age=_check_age(age),
    )
    if dry_run:
        return _count(query)
    return _get(query)


def _texts(texts: str | Iterable[str] | None) -> tuple[str, ...]:
    if texts is None:
        return ()
    return (texts,) if isinstance(texts, str) else tuple(map(str, texts))


def _check_age(age: tuple[float, float] | None) -> tuple[float, ...]:
    """Check the years of the youngest and oldest donors."""
    if age is None:
        return ()
    is_pair = len(age) == 2 and all(isinstance(years, int | float) for years in age)
    if not is_pair or not age[0] <= age[1]:
        raise ValueError(
            f"age must be a pair of years, the youngest and the oldest, such as (18, 60), not {age!r:.60}."
        )
    return tuple(map(float, age))


# --------------------------------------------------------------------------- what there is


@dataclass
class Selection:
    """Cells of a census that become a reference.

    Attributes
    ----------
    candidates
        Cells that could be taken.
    sampled
        Positions of those that are.
    types
        Table of the types, see :func:`census`.
    datasets
        Table of the data sets.
    genes
        Numbers of the genes that all data sets measured.
    """

    candidates: Candidates
    sampled: IntArray
    types: pd.DataFrame
    datasets: pd.DataFrame
    genes: IntArray

    @property
    def joinids(self) -> IntArray:
        """Numbers of the cells, in ascending order."""
        return self.candidates.joinids[self.sampled]


def _count(query: CensusQuery) -> pd.DataFrame:
    """Count the cells of each type."""
    if mirror() is None:
        query = replace(query, version=resolve_version(query.version))
    with open_census(query.version) as opened:
        selection = _select(opened.experiment(query.organism), query)
    return selection.types


def _select(experiment: Experiment, query: CensusQuery) -> Selection:
    """Choose the cells."""
    columns = [_NUMBER, "nnz", TYPE, *STRATA, *query.filters()]
    if query.age:
        columns.append("development_stage")
    experiment.check_columns([*columns, *_COLUMNS, "is_primary_data"])
    filters = _filters(experiment, query)
    values = match_names(experiment, "tissue", [query.tissue], _TISSUES)
    is_tissue = " or ".join(
        f"{column} in {names!r}" for column, names in values.items()
    )
    condition = f"is_primary_data == True and ({is_tissue})"
    if experiment.has("tissue_type") and "tissue" in experiment.values("tissue_type"):
        condition += " and tissue_type == 'tissue'"
    with progress(None, f"looking for cells of {query.tissue}"):
        cells = collect(
            experiment.scan(list(dict.fromkeys(columns)), condition), filters
        )
    if not len(cells):
        reasons = [
            f"{parameter(name)} leaves out {format_thousands(n)} of them"
            for name, n in cells.left_out.items()
            if n
        ]
        raise ValueError(
            f"The census has {format_thousands(cells.n_before)} cells of {query.tissue!r} that are primary data, but "
            f"none that pass the filters: {listed(reasons) or 'no filter is set'}; filter less."
        )
    cells, datasets, genes = _whole_transcriptomes(experiment, cells)
    cells = _typed(cells, query)
    sampled = sample(cells, query.n_per_type)
    types = type_table(cells, sampled)
    names = read_ontology().names
    terms = list(types[TYPE])
    types.insert(0, "cell_type", [names.get(term, term) for term in terms])
    ancestors = read_ontology().ancestors
    types["n_below"] = [
        sum(term in ancestors.get(below, ()) for below in terms) for term in terms
    ]
    counts = np.bincount(cells.datasets[sampled], minlength=len(cells.dataset_names))
    datasets["n_taken"] = counts[datasets.pop("code")]
    selection = Selection(
        cells, sampled, types, datasets[datasets["n_taken"] > 0], genes
    )
    _log_selection(experiment, query, selection)
    return selection


def _filters(
    experiment: Experiment, query: CensusQuery
) -> dict[str, Callable[[str], bool]]:
    """Make the filters of the columns."""
    filters: dict[str, Callable[[str], bool]] = {}
    for column, texts in query.filters().items():
        values = match_names(experiment, column, texts, [column])
        filters[column] = set(values[column]).__contains__
    if query.age:
        youngest, oldest = query.age

        def is_of_age(stage: str) -> bool:
            age = _AGE.search(stage)
            return (
                age is not None and youngest <= int(age[1]) * _YEARS[age[2]] <= oldest
            )

        accepts = filters.get("development_stage", lambda _: True)
        filters["development_stage"] = lambda stage: accepts(stage) and is_of_age(stage)
    return filters


def _whole_transcriptomes(
    experiment: Experiment, cells: Candidates
) -> tuple[Candidates, pd.DataFrame, IntArray]:
    """Leave out data sets of panels, and find the genes that all others measured.

    Returns
    -------
    Cells, table of their data sets, numbers of the genes.
    """
    table = experiment.census.datasets().reset_index()
    table = table.set_index("dataset_id").loc[cells.dataset_names]
    n_genes = int(experiment.genes().index.max()) + 1
    is_measured = experiment.measured(table[_NUMBER].to_numpy(), n_genes)
    table["n_genes"] = is_measured.sum(1)
    table["code"] = np.arange(len(table))
    is_whole = (table["n_genes"] >= _MIN_GENES).to_numpy()
    if not is_whole.any():
        raise ValueError(
            f"All {len(table)} data sets have fewer than {_MIN_GENES} genes, as panels do: filter less."
        )
    genes = np.flatnonzero(is_measured[is_whole].all(0))
    columns = ["dataset_title", "collection_doi", "citation", "n_genes", "code"]
    datasets = table.loc[is_whole, columns].reset_index()
    return cells.select(is_whole[cells.datasets]), datasets, genes


def _typed(cells: Candidates, query: CensusQuery) -> Candidates:
    """Leave out cells without a type, and those of rare types."""
    counts = np.bincount(cells.types, minlength=len(cells.type_names))
    is_term = np.array([term_problem(term) is None for term in cells.type_names])
    is_frequent = counts >= query.min_cells
    rare = [
        term
        for term, n, is_taken in zip(cells.type_names, counts, is_frequent, strict=True)
        if n and not is_taken
    ]
    if not (is_term & is_frequent).any():
        raise ValueError(
            f"No type of {query.tissue!r} has as many cells as {parameter('min_cells', query.min_cells)} asks for: "
            f"the most frequent one has {counts.max()}."
        )
    if rare:
        names = read_ontology().names
        logger.info(
            "census: left out %s with fewer than %d cells",
            list_names([names.get(term, term) for term in rare]),
            query.min_cells,
        )
    return cells.select((is_term & is_frequent)[cells.types])


def _log_selection(
    experiment: Experiment, query: CensusQuery, selection: Selection
) -> None:
    """Say how many cells there are and are taken, and of what size they are."""
    logger.info(
        "census: of %s cells of %s in CELLxGENE Census of %s, %s pass the filters, and %s of %d types, %d data sets "
        "and %s genes are taken: %.0f MB of counts",
        format_thousands(selection.candidates.n_before),
        query.tissue,
        experiment.census.version,
        format_thousands(len(selection.candidates)),
        format_thousands(len(selection.sampled)),
        len(selection.types),
        len(selection.datasets),
        format_thousands(len(selection.genes)),
        selection.types["megabytes"].sum(),
    )


# --------------------------------------------------------------------------- download and cache


def _get(query: CensusQuery) -> AnnData:
    """Read a reference from the cache, or download it."""
    if mirror() is None:
        query = _resolved(query)
        if query.cache_path().is_file():
            return _read(query.cache_path(), query.version)
    with open_census(query.version) as opened:
        query = replace(query, version=opened.version)
        path = query.cache_path()
        if not path.is_file():
            _download(opened.experiment(query.organism), query, path)
    return _read(path, query.version)


def _resolved(query: CensusQuery) -> CensusQuery:
    """Put the day of a release in the place of "stable".

    Raises
    ------
    OSError
        If the releases cannot be read; it names releases that the cache holds of the same query.
    """
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", query.version):
        return query
    try:
        return replace(query, version=resolve_version(query.version))
    except OSError as error:
        releases = [path.name for path in (cache_folder() / "census").glob("*-*-*")]
        cached = [
            release
            for release in sorted(releases)
            if replace(query, version=release).cache_path().is_file()
        ]
        if not cached:
            raise
        raise type(error)(
            f"{error} The cache holds these cells of an earlier release: pass {parameter('version', cached[-1])}."
        ) from error


def _read(path: Path, version: str) -> AnnData:
    """Read a file of the cache.

    Raises
    ------
    OSError
        If it is damaged, or holds cells of another version of the census.
    """
    try:
        adata = ad.read_h5ad(path)
        cached_version = adata.uns["census"]["version"]
    except Exception as error:
        raise OSError(
            f"{path} cannot be read ({type(error).__name__}): delete it, and call again."
        ) from error
    if cached_version != version:
        raise OSError(
            f"{path} holds cells of version {cached_version} of the census, in the folder of version {version}: "
            "delete it, and call again."
        )
    logger.info("census: read %s cells from %s", format_thousands(adata.n_obs), path)
    return adata


def _download(experiment: Experiment, query: CensusQuery, path: Path) -> None:
    """Download the cells in pieces, each a file, so that a call goes on where an earlier one ended."""
    folder = path.with_suffix(".parts")
    frame_path = folder / "cells.h5ad"
    with explain_cache_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not frame_path.is_file():
        selection = _select(experiment, query)
        with replace_file(frame_path) as temporary:
            _frame(experiment, query, selection).write_h5ad(temporary)
    frame = ad.read_h5ad(frame_path)
    joinids = frame.obs_names.to_numpy().astype(np.int64)
    genes = frame.var.pop(_NUMBER).to_numpy()
    matrices = []
    with progress(len(joinids), f"downloading {query.tissue}") as bar:
        for begin in range(0, len(joinids), _CELLS_PER_PART):
            rows = joinids[begin : begin + _CELLS_PER_PART]
            piece = folder / f"counts-{begin:09}.npz"
            if not piece.is_file():
                counts = experiment.counts(rows, genes)
                with replace_file(piece) as temporary:
                    sp.save_npz(temporary, counts)
            matrices.append(sp.csr_matrix(sp.load_npz(piece)))
            bar.update(len(rows))
    frame.X = sp.vstack(matrices, format="csr")
    with replace_file(path) as temporary:
        frame.write_h5ad(temporary, compression="gzip")
    shutil.rmtree(folder, ignore_errors=True)


def _frame(experiment: Experiment, query: CensusQuery, selection: Selection) -> AnnData:
    """Make the reference without its counts."""
    obs = experiment.cells(selection.joinids, _COLUMNS)
    obs = obs.set_index(obs.pop(_NUMBER).astype(str)).rename_axis(None)
    obs["batch"] = obs["dataset_id"].astype(str) + "/" + obs["donor_id"].astype(str)
    for name in obs:
        obs[name] = pd.Categorical(obs[name].astype(str))
    genes = experiment.genes().loc[selection.genes].reset_index()
    var = genes[["feature_name", _NUMBER]].set_index(genes["feature_id"].astype(str))
    filters = {name: np.array(texts) for name, texts in query.filters().items()}
    if query.age:
        filters["age"] = np.array(query.age)
    census_of = experiment.census
    record: dict[str, Any] = {
        "version": census_of.version,
        "schema": census_of.schema,
        "source": mirror() or "CELLxGENE Census",
        "client": package_version("cellxgene-census"),
        "organism": experiment.name,
        "tissue": query.tissue,
        "filters": filters,
        "n_per_type": query.n_per_type,
        "license": _LICENSE,
        "types": selection.types,
        "datasets": selection.datasets.reset_index(drop=True),
    }
    return ad.AnnData(obs=obs, var=var.rename_axis(None), uns={"census": record})
