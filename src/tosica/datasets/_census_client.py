"""CELLxGENE Census through its own client: open a version, and read names, cells and data sets."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_matrix

from tosica._settings import warn_user
from tosica._text import (
    did_you_mean,
    first_line,
    list_names,
    only_known,
    parameter,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pandas as pd
    import pyarrow as pa

    from tosica._types import BoolArray, IntArray

# A folder or an address of a census in the same layout, in the place of the public one.
VARIABLE = "TOSICA_CENSUS"
# Schema of the census that this module was written for.
SCHEMA = "2.4.0"
ORGANISMS = {"human": "homo_sapiens", "mouse": "mus_musculus"}
# Bytes of each column that TileDB reads at a time: ten columns of a scan take 640 MB.
_BUFFER = 64 * 1024**2
TILEDB_CONFIG = {
    "soma.init_buffer_bytes": _BUFFER,
    "py.init_buffer_bytes": _BUFFER,
    # Up to 2.30, TileDB may still order tiles in a thread of its own when the query is freed, and
    # end Python with a segmentation fault: https://github.com/TileDB-Inc/TileDB/pull/5723. 0 orders
    # them as they are read.
    "sm.query.sparse_global_order.preprocess_tile_merge": 0,
}
# Names of several diseases in one value.
SEPARATOR = " || "
_UPDATE = "pip install -U cellxgene-census tiledbsoma"


def import_client() -> Any:
    """Import the client of the census.

    Raises
    ------
    ModuleNotFoundError
        If it is not installed.
    """
    try:
        return import_module("cellxgene_census")
    except ImportError as error:
        raise ModuleNotFoundError(
            "cellxgene-census is not installed: pip install 'tosica[census]'."
        ) from error


@contextmanager
def _explain_failure(source: str) -> Iterator[None]:
    """Raise one sentence for errors of the network, and of formats that the client does not know."""
    from tiledbsoma import SOMAError

    try:
        yield
    except OSError as error:
        # Errors of the disk have a number, those of the network have none.
        if error.errno is not None:
            raise
        raise ConnectionError(
            f"{source} cannot be reached ({type(error).__name__}): check the connection and try again, or set "
            f"{VARIABLE} to a folder with a copy of it."
        ) from error
    except (SOMAError, RuntimeError) as error:
        raise OSError(
            f"{source} cannot be read ({first_line(error):.200}): try again, and if it fails again, update the "
            f"client by {_UPDATE}."
        ) from error


def mirror() -> str | None:
    """Folder or address in ``TOSICA_CENSUS``, if it is set."""
    return os.environ.get(VARIABLE) or None


def resolve_version(version: str) -> str:
    """Find the day of a release, such as "2025-11-08" for "stable".

    Raises
    ------
    ValueError
        If there is no such release.
    OSError
        If the list of releases cannot be read.
    """
    client = import_client()
    # It says to name the version, which is done here.
    logging.getLogger("cellxgene_census").setLevel(logging.WARNING)
    with _explain_failure("CELLxGENE Census"):
        releases = client.get_census_version_directory()
    if version not in releases:
        raise ValueError(
            f"CELLxGENE Census has no {parameter('version', version)}{did_you_mean(version, releases)}"
        )
    return str(releases[version]["release_build"])


@dataclass
class Census:
    """An open census.

    Attributes
    ----------
    root
        Collection of the client.
    version
        Day on which the census was built.
    schema
        Version of its schema.
    source
        Its name for messages.
    """

    root: Any
    version: str
    schema: str
    source: str

    def experiment(self, organism: str) -> Experiment:
        """Find the cells of an organism.

        Raises
        ------
        ValueError
            If there are none.
        """
        experiments = list(self.root["census_data"].keys())
        name = ORGANISMS.get(organism.lower(), organism.lower().replace(" ", "_"))
        if name not in experiments:
            common_names = {latin: common for common, latin in ORGANISMS.items()}
            names = [common_names.get(latin, latin) for latin in experiments]
            raise ValueError(
                f"{self.source} has no cells of {parameter('organism', organism)}{only_known(organism, names)}"
            )
        return Experiment(self, name)

    def datasets(self) -> pd.DataFrame:
        """Read the table of all data sets, with ``soma_joinid`` as index."""
        with _explain_failure(self.source):
            table = self.root["census_info"]["datasets"].read().concat().to_pandas()
        return table.set_index("soma_joinid")


@contextmanager
def open_census(version: str) -> Iterator[Census]:
    """Open a release of the census, or the one in ``TOSICA_CENSUS``.

    Parameters
    ----------
    version
        Day of the release. Of a census in ``TOSICA_CENSUS``, it must be "stable", "latest" or its own.

    Raises
    ------
    ModuleNotFoundError
        If the client is not installed.
    ValueError
        If the census in ``TOSICA_CENSUS`` is of another version.
    OSError
        If the census cannot be read.
    """
    client = import_client()
    uri = mirror()
    source = f"CELLxGENE Census {version}"
    where = {"census_version": version}
    if uri is not None:
        source = f"{VARIABLE} ({uri})"
        folder = Path(uri).expanduser()
        where = {"uri": uri if "://" in uri else str(folder)}
        if "://" not in uri and not folder.is_dir():
            raise FileNotFoundError(
                f"{uri!r}, the folder in {VARIABLE}, does not exist: name another one, or unset {VARIABLE}."
            )
    with _explain_failure(source):
        root = client.open_soma(tiledb_config=TILEDB_CONFIG, **where)
    with root:
        with _explain_failure(source):
            missing = {"census_data", "census_info"} - set(root.keys())
            if missing:
                raise ValueError(
                    f"{source} is no census: it has no {list_names(sorted(missing))}."
                )
            table = root["census_info"]["summary"].read().concat().to_pandas()
        summary = dict(zip(table["label"], table["value"], strict=True))
        census = Census(
            root,
            version=summary.get("census_build_date", version),
            schema=summary.get("census_schema_version", "unknown"),
            source=source,
        )
        if uri is not None and version not in ("stable", "latest", census.version):
            raise ValueError(
                f"{source} is of version {census.version}, not {version}: leave "
                f"{parameter('version')} out, or unset {VARIABLE}."
            )
        if census.schema.partition(".")[0] != SCHEMA.partition(".")[0]:
            warn_user(
                f"{source} follows version {census.schema} of the census schema, and tosica was written for "
                f"{SCHEMA}: look at the types and numbers of cells that it reports."
            )
        yield census


class Experiment:
    """Cells and genes of one organism.

    Parameters
    ----------
    census
        The census.
    name
        Name of the organism in it, such as ``"homo_sapiens"``.
    """

    def __init__(self, census: Census, name: str) -> None:
        self.census = census
        self.name = name
        self._soma = census.root["census_data"][name]

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise a ``ValueError`` if the cells lack columns."""
        existing = set(self._soma.obs.schema.names)
        missing = [name for name in columns if name not in existing]
        if missing:
            raise ValueError(
                f"{self.census.source} follows version {self.census.schema} of the census schema, in which cells have "
                f"no {list_names(missing)}: tosica reads version {SCHEMA}. Name another {parameter('version')}, "
                "or update tosica."
            )

    def values(self, column: str) -> list[str]:
        """Values that a column of the cells may have."""
        with _explain_failure(self.census.source):
            values = self._soma.obs.get_enumeration_values([column])[column]
        return [str(value) for value in values.to_pylist()]

    def has(self, column: str) -> bool:
        """Whether the cells have a column."""
        return column in self._soma.obs.schema.names

    def scan(self, columns: Sequence[str], value_filter: str) -> Iterator[pa.Table]:
        """Read columns of the cells that pass a filter, a table at a time."""
        with _explain_failure(self.census.source):
            yield from self._soma.obs.read(
                column_names=list(columns), value_filter=value_filter
            )

    def cells(self, joinids: IntArray, columns: Sequence[str]) -> pd.DataFrame:
        """Read columns of some cells, in the order of their numbers."""
        client = import_client()
        with _explain_failure(self.census.source):
            return client.get_obs(
                self.census.root,
                self.name,
                coords=joinids.tolist(),
                column_names=["soma_joinid", *columns],
            ).sort_values("soma_joinid", ignore_index=True)

    def genes(self) -> pd.DataFrame:
        """Read the table of all genes, with ``soma_joinid`` as index."""
        client = import_client()
        columns = ["soma_joinid", "feature_id", "feature_name"]
        with _explain_failure(self.census.source):
            table = client.get_var(self.census.root, self.name, column_names=columns)
        return table.set_index("soma_joinid").sort_index()

    def measured(self, datasets: IntArray, n_genes: int) -> BoolArray:
        """Read which genes data sets measured.

        Parameters
        ----------
        datasets
            Their ``soma_joinid``.
        n_genes
            Number of genes of the census.

        Returns
        -------
        ``(len(datasets), n_genes)``.
        """
        order = np.argsort(datasets)
        is_measured = np.zeros((len(datasets), n_genes), dtype=bool)
        with _explain_failure(self.census.source):
            matrix = self._soma.ms["RNA"]["feature_dataset_presence_matrix"]
            for table in matrix.read((datasets[order], slice(None))).tables():
                rows = np.searchsorted(datasets[order], table["soma_dim_0"].to_numpy())
                is_measured[order[rows], table["soma_dim_1"].to_numpy()] = table[
                    "soma_data"
                ].to_numpy()
        return is_measured

    def counts(self, joinids: IntArray, genes: IntArray) -> Any:
        """Read the counts of some cells and genes, in the order of their numbers.

        Returns
        -------
        :class:`scipy.sparse.csr_matrix` of float32, ``(len(joinids), len(genes))``.
        """
        # Cells are stored with all their genes.
        with _explain_failure(self.census.source):
            matrix = self._soma.ms["RNA"].X["raw"]
            table = matrix.read((joinids, slice(None))).tables().concat()
        columns = table["soma_dim_1"].to_numpy()
        position = np.searchsorted(genes, columns).clip(max=len(genes) - 1)
        is_of_gene = genes[position] == columns
        rows = np.searchsorted(joinids, table["soma_dim_0"].to_numpy()[is_of_gene])
        values = table["soma_data"].to_numpy()[is_of_gene].astype(np.float32)
        return csr_matrix(
            (values, (rows, position[is_of_gene])), shape=(len(joinids), len(genes))
        )


# --------------------------------------------------------------------------- names


def match_names(
    experiment: Experiment,
    name: str,
    texts: Iterable[str],
    columns: Sequence[str],
) -> dict[str, list[str]]:
    """Find the values of columns that names of the user stand for, in any case.

    Parameters
    ----------
    experiment
        Cells with the columns.
    name
        Parameter of the user.
    texts
        Its values.
    columns
        Columns to look in.

    Returns
    -------
    Values of each column; columns without any are left out.

    Raises
    ------
    ValueError
        If a name is in no column; it suggests the nearest.
    """
    values = {key: experiment.values(key) for key in columns}
    matched: dict[str, list[str]] = {key: [] for key in values}
    for text in texts:
        is_known = False
        for key, all_values in values.items():
            fitting = [
                value
                for value in all_values
                if text.lower() in value.lower().split(SEPARATOR)
            ]
            matched[key] += fitting
            is_known |= bool(fitting)
        if is_known:
            continue
        is_term = ":" in text
        candidates = sorted(
            {
                value
                for key, all_values in values.items()
                for value in all_values
                if key.endswith("_ontology_term_id") == is_term
            }
        )
        where = f"{experiment.census.source} has no {parameter(name, text)}"
        if is_term and len(candidates) > 12:
            raise ValueError(
                f"{where}: pass its name instead, such as {candidates[0]!r}."
            )
        raise ValueError(f"{where}{only_known(text, candidates)}")
    return {key: fitting for key, fitting in matched.items() if fitting}
