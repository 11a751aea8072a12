"""The contents of a Seurat object, as all readers return them, and the AnnData made of them."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._settings import logger
from tosica.data import TARGET_SUM, detect_values, log_normalize_block

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

GRAPHS_NOTE = "graphs were left out: they are similarities, not distances; call sc.pp.neighbors"
# Cells that are normalised at a time.
_CHUNK_SIZE = 4096


class Refused(Exception):
    """A sentence for the user, raised as ``kind``; what else a reader raises means damage."""

    def __init__(self, sentence: str, kind: type[Exception] = ValueError) -> None:
        super().__init__(sentence)
        self.kind = kind


@contextmanager
def explain_damage(path: object) -> Iterator[None]:
    """Turn what a library raises on a damaged file into one sentence.

    Raises
    ------
    ValueError
        Instead of other errors than a lack of memory, of a package or of permission.
    """
    try:
        yield
    except Refused as error:
        raise error.kind(*error.args) from error.__cause__
    except (ImportError, MemoryError, PermissionError):
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise ValueError(
            f"{str(path)!r} is damaged, or laid out in a way that is not known "
            f"({type(error).__name__}: {first:.150}): copy it again to the end, or save it again."
        ) from error


@dataclass
class Parts:
    """The parts of an AnnData, read from a Seurat object.

    Attributes
    ----------
    obs, var
        Tables of cells and genes, indexed by their names.
    counts, data
        Counts and log-normalised values ``(n_cells, n_genes)``; either may be missing.
    obsm, varm
        Reductions and loadings.
    notes
        What was recovered, repaired or dropped, or cannot be known; for the log.
    """

    obs: pd.DataFrame
    var: pd.DataFrame
    counts: sp.csr_matrix | None = None
    data: sp.csr_matrix | None = None
    obsm: dict[str, np.ndarray] = field(default_factory=dict)
    varm: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def to_anndata(parts: Parts) -> ad.AnnData:
    """Make an AnnData as scanpy users expect it, and log what had to be done.

    Raises
    ------
    ValueError
        If there are neither counts nor log-normalised values, or names of cells or genes are not
        unique.
    """
    for names, what in ((parts.obs.index, "cell"), (parts.var.index, "gene")):
        if names.isna().any():
            raise Refused(f"The name of a {what} is missing; name all {what}s in R before saving.")
        if names.has_duplicates:
            raise Refused(
                f"The {what} name {names[names.duplicated()][0]!r} occurs twice; "
                f"make the names of {what}s unique in R before saving."
            )
    notes = list(parts.notes)
    counts, data = parts.counts, parts.data
    if counts is not None and not is_integral(counts):
        notes.append("the stored counts hold fractions, so they were not taken for counts")
        if data is None:
            raise Refused(
                "The object has no log-normalised values, and its counts hold fractions; run "
                "NormalizeData in R, or save the raw counts."
            )
        counts = None
    if counts is None and data is not None:
        counts, note = recover_counts(data, parts.obs)
        notes.append(note)
    if data is None:
        if counts is None:
            raise Refused("The object has neither counts nor log-normalised values.")
        notes.append(f"X was log-normalised to {TARGET_SUM:.0f} counts a cell")
    if counts is not None:
        # The counts in double precision are released before X is computed.
        counts = parts.counts = _to_float32(counts)
    adata = ad.AnnData(
        _log_normalize_in_chunks(counts) if data is None else _to_float32(data),
        obs=parts.obs,
        var=parts.var,
        obsm=parts.obsm,
        varm=parts.varm,
    )
    if counts is not None:
        adata.layers["counts"] = counts
    logger.info("Seurat object: %d cells × %d genes", *adata.shape)
    for note in notes:
        logger.info("Seurat object: %s", note)
    return adata


def _to_float32(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """The matrix in single precision, with the same index arrays."""
    with np.errstate(over="ignore"):
        values = matrix.data.astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise Refused(
            "The expression holds values that are missing, infinite or too large for any count: "
            "the file is damaged, or the object was computed wrongly; look at it in R."
        )
    return type(matrix)((values, matrix.indices, matrix.indptr), shape=matrix.shape)


def _log_normalize_in_chunks(counts: sp.csr_matrix) -> sp.csr_matrix:
    """Log-normalise as Seurat does, without a second matrix in double precision."""
    values = np.empty(counts.nnz, dtype=np.float32)
    for start in range(0, counts.shape[0], _CHUNK_SIZE):
        rows: sp.csr_matrix = log_normalize_block(counts[start : start + _CHUNK_SIZE])
        first = counts.indptr[start]
        values[first : first + rows.nnz] = rows.data
    # Indices are copied, so that a change of one matrix in place does not change the other.
    return type(counts)((values, counts.indices.copy(), counts.indptr.copy()), shape=counts.shape)


def choose_assay(assays: list[str], active: str, wanted: str | None, notes: list[str]) -> str:
    """The assay that was asked for, or else the active one.

    Raises
    ------
    KeyError
        If the object has no such assay.
    """
    if wanted is None:
        inactive = [name for name in assays if name != active]
        if inactive:
            notes.append(
                f"the active assay, {active!r}, was read; there are also {', '.join(map(repr, inactive))} (assay=)"
            )
        wanted = active
    if wanted not in assays:
        raise Refused(
            f"There is no assay {wanted!r}; the object has {', '.join(map(repr, assays))}.",
            KeyError,
        )
    if wanted == "SCT":
        notes.append(
            "assay 'SCT' holds counts that sctransform corrected, whose logarithm is on another "
            "scale; assay='RNA' has the measured ones"
        )
    return wanted


def align_loadings(loadings: np.ndarray, features: list[str], genes: pd.Index) -> np.ndarray:
    """Loadings ``(n_genes, n_components)`` in the order of ``genes``; zero for other genes."""
    indexer = genes.get_indexer(pd.Index(features, dtype=object))
    aligned = np.zeros((len(genes), loadings.shape[1]))
    aligned[indexer[indexer >= 0]] = loadings[indexer >= 0]
    return aligned


# --------------------------------------------------------------------------- tables

# R's missing integer; conversions write it as an ordinary number.
_R_MISSING = -(2**31)
_MISSING_STRING = "NA"
_MISSING_LOGICAL = 2


def repair_columns(
    table: pd.DataFrame,
    notes: list[str],
    *,
    logicals: Collection[str] = (),
    na_strings: Collection[str] = (),
) -> pd.DataFrame:
    """Restore missing values, drop unused levels, and note what cannot be known.

    Parameters
    ----------
    table
        Columns hold numbers, strings, or categoricals.
    notes
        Gets a sentence for each kind of ambiguous column.
    logicals
        Columns of 0, 1 and 2 that are FALSE, TRUE and missing.
    na_strings
        Columns in which the string ``NA`` means missing.

    Returns
    -------
    A new table.

    Raises
    ------
    KeyError
        If a named column does not exist.
    ValueError
        If a column of ``logicals`` holds anything but 0, 1 and 2.
    """
    for wanted in (*logicals, *na_strings):
        if wanted not in table:
            known = ", ".join(map(str, table.columns))
            raise Refused(f"There is no column {wanted!r} in the cells' table; it has {known}.", KeyError)
    repaired = {}
    maybe_logical: list[str] = []
    maybe_missing: list[str] = []
    for name in table:
        column = table[name]
        if name in logicals:
            column = _as_logical(column)
        elif pd.api.types.is_integer_dtype(column.dtype):
            if (column == _R_MISSING).any():
                column = column.astype("Int32").mask(column == _R_MISSING)
            elif column.isin([0, 1, _MISSING_LOGICAL]).all() and column.nunique() > 1:
                maybe_logical.append(str(name))
        elif (_strings(column) == _MISSING_STRING).any():
            if name in na_strings:
                column = _without_na(column)
            else:
                maybe_missing.append(str(name))
        if isinstance(column.dtype, pd.CategoricalDtype):
            column = column.cat.remove_unused_categories()
        repaired[name] = column
    if maybe_logical:
        notes.append(
            f"not known: 0, 1 and 2 in {_listed(maybe_logical)} may be FALSE, TRUE and "
            "missing; if they are, name the columns in logicals="
        )
    if maybe_missing:
        notes.append(
            f"not known: the string 'NA' in {_listed(maybe_missing)} may mean missing; if it "
            "does, name the columns in na_strings="
        )
    return pd.DataFrame(repaired, index=table.index, columns=table.columns)


def to_categorical(codes: np.ndarray, levels: list[str]) -> pd.Categorical:
    """A categorical from zero-based codes, of which negative ones are missing values.

    Raises
    ------
    ValueError
        If a code has no level, or a level occurs twice.
    """
    twice = [level for level, n in Counter(levels).items() if n > 1]
    if codes.dtype.kind not in "iu" or twice or (codes.size and codes.max() >= len(levels)):
        wrong = f"the level {twice[0]!r} occurs twice" if twice else f"a code is not one of its {len(levels)} levels"
        raise Refused(f"A factor cannot be read, because {wrong}: the file is damaged.")
    known = np.where(codes >= 0, codes, -1)
    return pd.Categorical.from_codes(known.astype(np.intp), categories=pd.Index(levels, dtype=object))


def _as_logical(column: pd.Series) -> pd.Series:
    if column.dtype == bool:
        return column
    if not column.isin([0, 1, _MISSING_LOGICAL, _R_MISSING]).all():
        raise Refused(f"Column {column.name!r} holds more than 0, 1 and 2, so it is not a logical one.")
    missing = ~column.isin([0, 1])
    if not missing.any():
        return column.astype(bool)
    return (column == 1).astype("boolean").mask(missing)


def _without_na(column: pd.Series) -> pd.Series:
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.remove_categories([_MISSING_STRING])
    return column.astype(object).mask(column == _MISSING_STRING, np.nan)


def _strings(column: pd.Series) -> pd.Series:
    """Strings or categories of the column; empty if it holds anything else."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return pd.Series(column.cat.categories)
    if pd.api.types.is_string_dtype(column.dtype) or column.dtype == object:
        return column
    return pd.Series([], dtype=object)


def _listed(names: list[str]) -> str:
    return ", ".join(repr(str(name)) for name in names)


def decode(values: Any) -> list[str]:
    """Strings of an HDF5 data set or attribute."""
    return [v.decode() if isinstance(v, bytes) else str(v) for v in np.atleast_1d(values)]


# --------------------------------------------------------------------------- matrices

# Cells on which a recovery of counts is tried before it is computed for all of them.
_N_TRIED = 200
# Values that are compared at a time.
_VALUES = 2**20
# The logarithm of a count: the largest one that R can hold is below it.
_LARGEST_LOG = 50.0
# Ones that a cell must have before its smallest value is taken for a count of one.
_MIN_ONES = 3


class Matrix(NamedTuple):
    """A matrix ``(n_cells, n_genes)``, its name for messages, and the table of its genes."""

    name: str
    values: sp.csr_matrix | np.ndarray
    var: pd.DataFrame


class Expression(NamedTuple):
    """Counts and log-normalised values over the same genes; either may be missing."""

    counts: sp.csr_matrix | None
    data: sp.csr_matrix | None
    var: pd.DataFrame


def select_expression(matrices: Sequence[Matrix], notes: list[str]) -> Expression:
    """Select counts and log-normalised values over as many genes as possible.

    Parameters
    ----------
    matrices
        All matrices of an object.
    notes
        Gets a sentence for each matrix that is left out because of its values.

    Raises
    ------
    ValueError
        If no matrix holds counts or log-normalised values.
    """
    usable: list[tuple[str, Matrix]] = []
    reasons = []
    for matrix in matrices:
        try:
            values = to_csr(matrix.values)
            kind = detect_values(values, matrix.name)
        except ValueError as error:
            reasons.append(str(error))
            notes.append(f"{matrix.name} was left out: it is scaled, or not expression")
            continue
        if kind is not None:
            usable.append(("counts" if kind == "counts" else "log1p", matrix))
    if not usable:
        why = " ".join(["", *reasons])
        raise Refused(f"There are neither counts nor log-normalised values in the object.{why}")
    n_genes = max(len(matrix.var) for _, matrix in usable)
    usable = [(kind, matrix) for kind, matrix in usable if len(matrix.var) == n_genes]
    var = usable[0][1].var
    # Reversed, because the first matrix of a kind is preferred.
    by_kind = {kind: matrix for kind, matrix in reversed(usable) if matrix.var.index.equals(var.index)}
    counts, data = (to_csr(by_kind[kind].values) if kind in by_kind else None for kind in ("counts", "log1p"))
    return Expression(counts, data, var)


def csr_from_arrays(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int], name: str
) -> sp.csr_matrix:
    """Make a CSR matrix of the arrays of a file, called ``name`` in messages."""
    # scipy would take memory for as many values as the largest one says.
    if (np.diff(indptr) < 0).any() or indptr[-1:] != indices.size:
        raise Refused(f"{name} cannot be read: its sparse matrix is damaged; save it again.")
    matrix = sp.csr_matrix((data, indices, indptr), shape=shape)
    check_matrix(matrix, name)
    return matrix


def check_matrix(values: Any, name: str) -> None:
    """Check that a matrix holds numbers, and that no index of a sparse one is outside of it.

    Other indices would read or write memory that is not the matrix's.
    """
    is_matrix = isinstance(values, np.ndarray) or sp.issparse(values)
    if not is_matrix or values.ndim != 2 or values.dtype.kind not in "biuf":
        raise Refused(f"{name} cannot be read: it is no matrix of numbers.")
    if sp.issparse(values):
        values.check_format(full_check=True)


def to_csr(values: sp.csr_matrix | np.ndarray) -> sp.csr_matrix:
    """Convert to CSR with sorted indices and without stored zeros."""
    matrix = sp.csr_matrix(values)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    if matrix.data.size and not matrix.data.all():
        matrix = matrix.copy()
        matrix.eliminate_zeros()
    return matrix


def is_integral(matrix: sp.csr_matrix) -> bool:
    """Whether all values are whole and none is negative."""
    # In chunks, because the result of a comparison takes memory beside the matrix.
    chunks = (matrix.data[i : i + _VALUES] for i in range(0, matrix.nnz, _VALUES))
    return all(bool(((v >= 0) & (v == np.rint(v))).all()) for v in chunks)


def recover_counts(data: sp.csr_matrix, obs: pd.DataFrame) -> tuple[sp.csr_matrix | None, str]:
    """Undo Seurat's ``log1p(counts / total * 10 000)`` where the result is certain.

    A cell's total is taken from an ``nCount_`` column, or computed from the cell's smallest value,
    which stands for a count of one. All values must then be whole.

    Parameters
    ----------
    data
        Log-normalised values ``(n_cells, n_genes)``.
    obs
        Table of the cells.

    Returns
    -------
    The counts, or ``None`` if they cannot be recovered; and a note for the log.
    """
    if data.data.size and data.data.min() < 0:
        return None, "no counts: the values are negative"
    if data.data.size and data.data.max() > _LARGEST_LOG:
        return None, "no counts: the values are too large for logarithms"
    unlogged = np.expm1(data.data.astype(np.float64))
    n_per_cell = np.diff(data.indptr)
    # Relative rounding error of a count in single and in double precision.
    tolerance = 2e-6 if data.dtype.itemsize < 8 else 1e-9
    for column in [name for name in obs if str(name).startswith("nCount_")]:
        if not pd.api.types.is_numeric_dtype(obs[column].dtype) or obs[column].isna().any():
            continue
        factor = obs[column].to_numpy(dtype=np.float64) / TARGET_SUM
        counts = _whole(unlogged, np.repeat(factor, n_per_cell), data.indptr, tolerance)
        if counts is not None:
            return _with_values(data, counts), f"counts were recovered exactly with {column!r}"
    smallest = np.ones(len(n_per_cell))
    filled = n_per_cell > 0
    smallest[filled] = np.minimum.reduceat(unlogged, data.indptr[:-1][filled])
    counts = _whole(unlogged, np.repeat(1 / smallest, n_per_cell), data.indptr, tolerance)
    if counts is not None:
        ones = np.add.reduceat(counts == 1, data.indptr[:-1][filled])
        if (ones >= np.minimum(_MIN_ONES, n_per_cell[filled])).all():
            note = "counts were recovered exactly from each cell's smallest value"
            return _with_values(data, counts), note
    return None, "there are no counts, and they cannot be recovered from the values"


def _whole(values: np.ndarray, factor: np.ndarray, indptr: np.ndarray, tolerance: float) -> np.ndarray | None:
    """Values times factors, rounded, if all are whole up to rounding errors."""
    first_cells = slice(0, int(indptr[min(_N_TRIED, len(indptr) - 1)]))
    absolute = 1e-6 + (1e-3 if tolerance > 1e-8 else 0)
    for part in (first_cells, slice(None)):
        products = values[part] * factor[part]
        whole = np.rint(products)
        if (np.abs(products - whole) > absolute + tolerance * products).any():
            return None
        if (whole < 1).any():
            return None
    return whole


def _with_values(matrix: sp.csr_matrix, values: np.ndarray) -> sp.csr_matrix:
    """A matrix with other values and a copy of the indices, so that the two share no memory."""
    indices, indptr = matrix.indices.copy(), matrix.indptr.copy()
    return type(matrix)((values, indices, indptr), shape=matrix.shape)
