"""The contents of a Seurat object, as all readers return them, and the AnnData made of them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._files import explain_hdf5
from tosica._settings import logger
from tosica._text import list_names
from tosica.data import TARGET_SUM, LogNormalization, detect_values

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

# Column with the names of a table's rows.
NAMES = "_index"
GRAPHS_NOTE = (
    "graphs were left out: they are similarities, not distances; call sc.pp.neighbors"
)
# Cells that are normalised at a time.
_CHUNK_SIZE = 4096


class ReadError(ValueError):
    """A sentence for the user, raised as ``kind``; what else a reader raises means damage."""

    def __init__(self, sentence: str, kind: type[Exception] = ValueError) -> None:
        super().__init__(sentence)
        self.kind = kind


@contextmanager
def explain_damage(path: object) -> Iterator[None]:
    """Turn what a library raises on a damaged file into one sentence, a ``ValueError``."""
    try:
        yield
    except ReadError as error:
        raise error.kind(*error.args) from error.__cause__
    except (ImportError, MemoryError, PermissionError):
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise ValueError(
            f"{str(path)!r} is damaged, or laid out in a way that is not known "
            f"({type(error).__name__}: {first:.150}): {explain_hdf5(error)}."
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
        wrong = names.isna() | names.duplicated()
        if wrong.any():
            raise ReadError(
                f"The {what} name {names[wrong][0]!r} is missing or occurs twice: repair the names in R."
            )
    obs = parts.obs.copy()
    for name in obs.columns[
        [isinstance(dtype, pd.CategoricalDtype) for dtype in obs.dtypes]
    ]:
        obs[name] = obs[name].cat.remove_unused_categories()
    notes = list(parts.notes)
    counts, data = parts.counts, parts.data
    if counts is not None and not ((counts.data >= 0) & (counts.data % 1 == 0)).all():
        notes.append(
            "the stored counts hold fractions, so they were not taken for counts"
        )
        counts = None
    if counts is None and data is not None:
        counts, note = recover_counts(data, obs)
        notes.append(note)
    if data is None:
        if counts is None:
            raise ReadError(
                "The object has neither counts nor log-normalised values: save one of them in R."
            )
        notes.append(f"X was log-normalised to {TARGET_SUM:.0f} counts a cell")
    if counts is not None:
        # The counts in double precision are released before X is computed.
        counts = parts.counts = _to_float32(counts)
    x = _log_normalize_in_chunks(counts) if data is None else _to_float32(data)
    adata = ad.AnnData(x, obs=obs, var=parts.var, obsm=parts.obsm, varm=parts.varm)
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
        raise ReadError(
            "The expression holds values that are missing, infinite or too large: look at it in R."
        )
    return type(matrix)((values, matrix.indices, matrix.indptr), shape=matrix.shape)


def _log_normalize_in_chunks(counts: sp.csr_matrix) -> sp.csr_matrix:
    """Log-normalise as Seurat does, without a second matrix in double precision."""
    starts = range(0, counts.shape[0], _CHUNK_SIZE)
    blocks = [
        LogNormalization()
        .normalize_block(counts[i : i + _CHUNK_SIZE])
        .astype(np.float32)
        for i in starts
    ]
    return sp.vstack(blocks, format="csr")


def choose_assay(
    assays: list[str], active: str, wanted: str | None, notes: list[str]
) -> str:
    """Take the assay that was asked for, or else the active one."""
    inactive = [name for name in assays if name != active]
    if wanted is None and inactive:
        notes.append(
            f"the active assay, {active!r}, was read; there are also {list_names(inactive)} (assay=)"
        )
    chosen = active if wanted is None else wanted
    if chosen not in assays:
        raise ReadError(
            f"There is no assay {chosen!r}; the object has {list_names(assays)}.",
            KeyError,
        )
    if chosen == "SCT":
        notes.append(
            "assay 'SCT' holds counts that sctransform corrected, whose logarithm is on another "
            "scale; assay='RNA' has the measured ones"
        )
    return chosen


def align_loadings(
    loadings: np.ndarray, features: list[str], genes: pd.Index
) -> np.ndarray:
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
    """Restore missing values, and note what cannot be known.

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
    unknown = [name for name in (*logicals, *na_strings) if name not in table]
    if unknown:
        known = list_names([str(name) for name in table])
        raise ReadError(
            f"There is no column {unknown[0]!r} in the cells' table; it has {known}.",
            KeyError,
        )
    repaired: dict[Any, pd.Series] = {}
    maybe_logical: list[str] = []
    maybe_missing: list[str] = []
    for name, column in table.items():
        are_na = column.isin([_MISSING_STRING])
        if name in logicals:
            column = _as_logical(column)
        elif pd.api.types.is_integer_dtype(column.dtype):
            if (column == _R_MISSING).any():
                column = column.astype("Int32").mask(column == _R_MISSING)
            elif column.isin([0, 1, _MISSING_LOGICAL]).all() and column.nunique() > 1:
                maybe_logical.append(str(name))
        elif are_na.any() and name in na_strings:
            column = column.mask(are_na)
        elif are_na.any():
            maybe_missing.append(str(name))
        repaired[name] = column
    if maybe_logical:
        notes.append(
            f"not known: 0, 1 and 2 in {list_names(maybe_logical)} may be FALSE, TRUE and "
            "missing; if they are, name the columns in logicals="
        )
    if maybe_missing:
        notes.append(
            f"not known: the string 'NA' in {list_names(maybe_missing)} may mean missing; if it "
            "does, name the columns in na_strings="
        )
    return pd.DataFrame(repaired, index=table.index, columns=table.columns)


def to_categorical(codes: np.ndarray, levels: list[str]) -> pd.Categorical:
    """Make a categorical of zero-based codes; negative ones are missing values."""
    if (
        codes.dtype.kind not in "iu"
        or len(set(levels)) < len(levels)
        or (codes.size and codes.max() >= len(levels))
    ):
        raise ReadError(
            "A factor is damaged: a code has no level, or a level occurs twice; save the object again."
        )
    known = np.where(codes >= 0, codes, -1)
    return pd.Categorical.from_codes(
        known.astype(np.intp), categories=pd.Index(levels, dtype=object)
    )


def _as_logical(column: pd.Series) -> pd.Series:
    missing = ~column.isin([0, 1])
    if not column[missing].isin([_MISSING_LOGICAL, _R_MISSING]).all():
        raise ReadError(
            f"Column {column.name!r} holds more than 0, 1 and 2, so it is not a logical one."
        )
    if not missing.any():
        return column.astype(bool)
    return (column == 1).astype("boolean").mask(missing)


def decode(values: Any) -> list[str]:
    """Strings of an HDF5 data set or attribute."""
    return [
        v.decode() if isinstance(v, bytes) else str(v) for v in np.atleast_1d(values)
    ]


# --------------------------------------------------------------------------- matrices

# The logarithm of a count: the largest one that R can hold is below it.
_LARGEST_LOG = 50.0
# Ones that a cell must have before its smallest value is taken for a count of one.
_MIN_ONES = 3


class Matrix(NamedTuple):
    """A matrix ``(n_cells, n_genes)``, its name for messages, and the table of its genes."""

    name: str
    values: sp.csr_matrix | np.ndarray
    var: pd.DataFrame


def repaired_parts(
    obs: pd.DataFrame,
    matrices: Sequence[Matrix],
    obsm: Mapping[str, Any],
    lost: list[str],
    notes: list[str],
) -> Parts:
    """Select counts and log-normalised values over as many genes as possible, and note what is not right.

    ``obsm`` may hold anything; matrices of numbers are kept. ``lost`` names what cannot be used.
    """
    usable: list[tuple[str, Matrix]] = []
    reasons = [""]
    for matrix in matrices:
        try:
            kind = detect_values(to_csr(matrix.values), matrix.name)
        except ValueError as error:
            reasons.append(str(error))
            notes.append(f"{matrix.name} was left out: it is scaled, or not expression")
            continue
        if kind is not None:
            usable.append(("counts" if kind == "counts" else "data", matrix))
    if not usable:
        raise ReadError(
            f"There are neither counts nor log-normalised values in the object.{' '.join(reasons)}"
        )
    var = max((matrix.var for _, matrix in usable), key=len)
    # Reversed, because the first matrix of a kind is preferred.
    chosen = {
        kind: to_csr(matrix.values)
        for kind, matrix in reversed(usable)
        if matrix.var.index.equals(var.index)
    }
    if lost:
        notes.append(
            f"{', '.join(lost)} dropped: conversions leave loadings in another gene order and "
            "similarities where scanpy expects distances; call sc.pp.pca and sc.pp.neighbors"
        )
    var = var.drop(columns=[c for c in ("features", NAMES) if c in var])
    if "vst.variable" in var:
        var = var.assign(highly_variable=var["vst.variable"].astype(bool)).drop(
            columns="vst.variable"
        )
    reductions = {
        name: np.asarray(values)
        for name, values in obsm.items()
        if isinstance(values, np.ndarray)
        and values.dtype.kind in "biuf"
        and values.shape[0] == len(obs)
    }
    return Parts(obs, var.rename_axis(None), obsm=reductions, notes=notes, **chosen)


def raw_genes(raw_var: pd.DataFrame, var: pd.DataFrame) -> pd.DataFrame:
    """Table of the genes of ``raw``, indexed by their names.

    Some converters write numbers for the names, or the names into a column.
    """
    if NAMES in raw_var:
        return raw_var.set_index(
            pd.Index(raw_var[NAMES].astype(object), name=None)
        ).drop(columns=NAMES)
    are_numbers = list(raw_var.index) == [str(i) for i in range(len(raw_var))]
    return var if are_numbers and len(raw_var) == len(var) else raw_var


def csr_from_arrays(
    data: np.ndarray,
    indices: np.ndarray,
    indptr: np.ndarray,
    shape: tuple[int, int],
    name: str,
) -> sp.csr_matrix:
    """Make a CSR matrix of the arrays of a file, called ``name`` in messages."""
    # scipy would take memory for as many values as the largest one says.
    if (np.diff(indptr) < 0).any() or indptr[-1:] != indices.size:
        raise ReadError(
            f"{name} cannot be read: its sparse matrix is damaged; save it again."
        )
    matrix = sp.csr_matrix((data, indices, indptr), shape=shape)
    check_matrix(matrix, name)
    return matrix


def check_matrix(values: Any, name: str) -> None:
    """Check that a matrix holds numbers, and that no index of a sparse one is outside of it.

    Other indices would read or write memory that is not the matrix's.
    """
    is_matrix = isinstance(values, np.ndarray) or sp.issparse(values)
    if not is_matrix or values.ndim != 2 or values.dtype.kind not in "biuf":
        raise ReadError(f"{name} cannot be read: it is no matrix of numbers.")
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


def recover_counts(
    data: sp.csr_matrix, obs: pd.DataFrame
) -> tuple[sp.csr_matrix | None, str]:
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
    if data.data.size and not (
        data.data.min() >= 0 and data.data.max() <= _LARGEST_LOG
    ):
        return None, "no counts: the values are no logarithms of counts"
    unlogged = np.expm1(data.data.astype(np.float64))
    n_per_cell = np.diff(data.indptr)
    # Relative rounding error of a count in single and in double precision.
    tolerance = 2e-6 if data.dtype.itemsize < 8 else 1e-9
    for column in [name for name in obs if str(name).startswith("nCount_")]:
        if (
            not pd.api.types.is_numeric_dtype(obs[column].dtype)
            or obs[column].isna().any()
        ):
            continue
        factor = obs[column].to_numpy(dtype=np.float64) / TARGET_SUM
        counts = _whole(unlogged, np.repeat(factor, n_per_cell), tolerance)
        if counts is not None:
            return _with_values(
                data, counts
            ), f"counts were recovered exactly with {column!r}"
    smallest = np.ones(len(n_per_cell))
    filled = n_per_cell > 0
    smallest[filled] = np.minimum.reduceat(unlogged, data.indptr[:-1][filled])
    counts = _whole(unlogged, np.repeat(1 / smallest, n_per_cell), tolerance)
    if counts is not None:
        ones = np.add.reduceat(counts == 1, data.indptr[:-1][filled])
        if (ones >= np.minimum(_MIN_ONES, n_per_cell[filled])).all():
            return _with_values(
                data, counts
            ), "counts were recovered exactly from each cell's smallest value"
    return None, "there are no counts, and they cannot be recovered from the values"


def _whole(
    values: np.ndarray, factor: np.ndarray, tolerance: float
) -> np.ndarray | None:
    """Values times factors, rounded, if all are whole up to rounding errors."""
    products = values * factor
    whole = np.rint(products)
    absolute = 1e-6 + (1e-3 if tolerance > 1e-8 else 0)
    is_wrong = (np.abs(products - whole) > absolute + tolerance * products) | (
        whole < 1
    )
    return None if is_wrong.any() else whole


def _with_values(matrix: sp.csr_matrix, values: np.ndarray) -> sp.csr_matrix:
    """A matrix with other values and a copy of the indices, so that the two share no memory."""
    indices, indptr = matrix.indices.copy(), matrix.indptr.copy()
    return type(matrix)((values, indices, indptr), shape=matrix.shape)
