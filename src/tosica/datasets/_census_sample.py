"""Which cells of a census become a reference: as many of each type, of all data sets and donors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from tosica._types import BoolArray, IntArray

# Rows of the census's matrix that are stored together, and so are downloaded together.
ROWS_PER_TILE = 2048
# Columns of the cells that the choice needs, and what they may be filtered by.
TYPE = "cell_type_ontology_term_id"
STRATA = ("dataset_id", "donor_id")


class Coder:
    """Numbers for the texts of a column that is read a table at a time."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}

    def encode(self, column: pa.ChunkedArray) -> IntArray:
        """Number the values of a column."""
        encoded = column.combine_chunks()
        if not hasattr(encoded, "indices"):
            encoded = encoded.dictionary_encode()
        if hasattr(encoded, "chunks"):
            encoded = encoded.chunk(0)
        names = [str(name) for name in encoded.dictionary.to_pylist()]
        for name in names:
            if name not in self._codes:
                self._codes[name] = len(self.names)
                self.names.append(name)
        code_of_name = np.array([self._codes[name] for name in names], dtype=np.int32)
        return code_of_name[encoded.indices.to_numpy(zero_copy_only=False)]


@dataclass
class Candidates:
    """Cells of a tissue that pass all filters; arrays have the shape ``(n_cells,)``.

    Attributes
    ----------
    joinids
        Numbers of the cells in the census.
    types, datasets, donors
        Codes of type, data set and donor; a donor is one of a data set.
    n_values
        Numbers that are stored of each cell: genes with counts.
    type_names, dataset_names
        Terms and identifiers of the codes.
    n_before
        Cells of the tissue before the filters.
    left_out
        Cells that each filter left out, the earlier one counts.
    """

    joinids: IntArray
    types: IntArray
    datasets: IntArray
    donors: IntArray
    n_values: IntArray
    type_names: list[str]
    dataset_names: list[str]
    n_before: int
    left_out: dict[str, int]

    def __len__(self) -> int:
        return len(self.joinids)

    def select(self, is_selected: BoolArray) -> Candidates:
        """Take some of the cells."""
        return replace(
            self,
            joinids=self.joinids[is_selected],
            types=self.types[is_selected],
            datasets=self.datasets[is_selected],
            donors=self.donors[is_selected],
            n_values=self.n_values[is_selected],
        )


def collect(
    tables: Iterable[pa.Table],
    filters: Mapping[str, Callable[[str], bool]],
) -> Candidates:
    """Filter the cells of a tissue while they are read, so that few columns of them are in memory.

    Parameters
    ----------
    tables
        Columns ``soma_joinid``, those of the type, of the strata and of the filters, and ``nnz``.
    filters
        Column to a function that says of a value whether its cells remain.
    """
    coders = {name: Coder() for name in (TYPE, *STRATA)}
    columns: dict[str, list[NDArray]] = {
        name: [] for name in ("soma_joinid", "nnz", *coders)
    }
    left_out = dict.fromkeys(filters, 0)
    n_before = 0
    for table in tables:
        n_before += len(table)
        passes = np.ones(len(table), dtype=bool)
        for name, is_accepted in filters.items():
            coder = Coder()
            codes = coder.encode(table[name])
            is_passing = (
                passes
                & np.array([is_accepted(value) for value in coder.names], dtype=bool)[
                    codes
                ]
            )
            left_out[name] += int(passes.sum() - is_passing.sum())
            passes = is_passing
        columns["soma_joinid"].append(table["soma_joinid"].to_numpy()[passes])
        columns["nnz"].append(table["nnz"].to_numpy()[passes].astype(np.int32))
        for name, coder in coders.items():
            columns[name].append(coder.encode(table[name])[passes])
    joined: dict[str, NDArray] = {}
    while columns:
        name, pieces = columns.popitem()
        joined[name] = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)
    datasets: IntArray = joined["dataset_id"]
    n_donors = len(coders["donor_id"].names)
    n_pairs = len(coders["dataset_id"].names) * n_donors
    # Of 32 bits where that is enough, because there are millions of cells.
    donors: IntArray = datasets.astype(np.int32 if n_pairs < 2**31 else np.int64)
    donors *= n_donors
    donors += joined["donor_id"]
    return Candidates(
        joinids=joined["soma_joinid"],
        types=joined[TYPE],
        datasets=datasets,
        donors=donors,
        n_values=joined["nnz"],
        type_names=coders[TYPE].names,
        dataset_names=coders["dataset_id"].names,
        n_before=n_before,
        left_out=left_out,
    )


def sample(cells: Candidates, n_per_type: int, seed: int = 0) -> IntArray:
    """Sample at most ``n_per_type`` cells of each type, as evenly as possible over data sets, then donors.

    Cells of a donor are taken by the tile that they are stored in, in an order that is the same for
    all donors, so that few tiles have to be downloaded.

    Returns
    -------
    Positions of the sampled cells, by their numbers in the census.
    """
    rng = np.random.default_rng(seed)
    n_tiles = int(cells.joinids.max(initial=0)) // ROWS_PER_TILE + 1
    order_of_tile = rng.permutation(n_tiles)
    # Type by type, so that what is sorted is small.
    rows_by_type = np.argsort(cells.types, kind="stable")
    ends = np.cumsum(np.bincount(cells.types, minlength=len(cells.type_names)))
    sampled = []
    for rows in np.split(rows_by_type, ends[:-1]):
        position: IntArray = order_of_tile[cells.joinids[rows] // ROWS_PER_TILE]
        # Of each donor as many as could be needed, then of each data set, then of the type.
        for strata in (cells.donors, cells.datasets, cells.types):
            stratum = strata[rows]
            # Those with the same position follow one another by chance.
            order = np.lexsort((rng.random(len(rows)), position, stratum))
            position = _position_in_group(stratum[order])
            is_needed = position < n_per_type
            rows = rows[order][is_needed]
            position = position[is_needed]
        sampled.append(rows)
    joined = np.concatenate(sampled)
    return joined[np.argsort(cells.joinids[joined])]


def _position_in_group(group: IntArray) -> IntArray:
    """Number the members of each group, of rows that are sorted by group."""
    is_new = np.append(True, group[1:] != group[:-1])[: len(group)]
    begins = np.flatnonzero(is_new)
    sizes = np.diff(np.append(begins, len(group)))
    return np.arange(len(group)) - np.repeat(begins, sizes)


def type_table(cells: Candidates, sampled: IntArray) -> pd.DataFrame:
    """Count the cells of each type: how many there are, are taken, and of how many data sets and donors.

    Returns
    -------
    Table with a row a type, most cells first, and the columns ``cell_type_ontology_term_id``,
    ``n_cells``, ``n_taken``, ``n_datasets``, ``n_donors`` (of those taken) and ``megabytes`` (of
    their counts).
    """
    n_types = len(cells.type_names)
    types = cells.types[sampled]
    table = pd.DataFrame({TYPE: cells.type_names})
    table["n_cells"] = np.bincount(cells.types, minlength=n_types)
    table["n_taken"] = np.bincount(types, minlength=n_types)
    for name, codes in (("n_datasets", cells.datasets), ("n_donors", cells.donors)):
        pairs = np.unique(np.column_stack([types, codes[sampled]]), axis=0)
        table[name] = np.bincount(pairs[:, 0], minlength=n_types)
    # A value and its gene: four bytes each.
    table["megabytes"] = np.bincount(
        types, 8e-6 * cells.n_values[sampled], minlength=n_types
    )
    table = table[table["n_cells"] > 0]
    return table.sort_values(
        ["n_cells", TYPE], ascending=[False, True], ignore_index=True
    )
