"""The same rows come out of a matrix whatever it is kept in, and it stays as it was."""

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from _strategies import CONTAINERS, DTYPES
from numpy.testing import assert_array_equal

from tosica.data import CellMatrix, check_unique

N_CELLS, N_GENES = 23, 7
# What a view takes: cells and genes in another order, and not all of them.
CELLS, GENES = np.array([20, 3, 4, 5, 0, 11, 10, 22, 7]), np.array([5, 0, 2, 6])


def values(dtype="float32", seed=0):
    """Counts; cell 5 and gene 2 have none."""
    counts = np.random.default_rng(seed).poisson(1.0, (N_CELLS, N_GENES))
    counts[5], counts[:, 2] = 0, 0
    return counts.astype(dtype)


def dense(block):
    if sp.issparse(block):
        assert block.format == "csr"
        assert block.has_canonical_format
        return block.toarray()
    assert type(block) is np.ndarray
    return block


def check(rows, expected):
    """Read rows in every way."""
    n = len(expected)
    assert rows.n_obs == n
    assert len(rows.names) == expected.shape[1]
    for begin, end in [(0, n), (0, 1), (2, 6), (n - 1, n)]:
        got = dense(rows.take(slice(begin, end)))
        assert_array_equal(got, expected[begin:end])
        assert got.dtype == expected.dtype
    for size in (4, n + 5):
        starts, blocks = zip(*rows.blocks(size), strict=True)
        assert starts == tuple(range(0, n, size))
        assert all(block.shape[0] == size for block in blocks[:-1])
        assert_array_equal(np.concatenate([dense(b) for b in blocks]), expected)
    for cells in ([0], [n - 1, 0, 3, 3, 1, 0], range(n), range(n)[::-1], [2] * 9):
        cells = np.array(cells) % n
        assert_array_equal(dense(rows.take(cells)), expected[cells])


def contents(matrix):
    """Every byte of a matrix in memory."""
    if sp.issparse(matrix):
        return [
            array.tobytes() for array in (matrix.data, matrix.indices, matrix.indptr)
        ]
    return [matrix.tobytes("A"), str(matrix.flags).encode()]


def adata_with(matrix):
    obs = pd.DataFrame(index=[f"cell{i}" for i in range(matrix.shape[0])])
    var = pd.DataFrame(index=[f"gene{i}" for i in range(matrix.shape[1])])
    return ad.AnnData(matrix, obs=obs, var=var)


@pytest.fixture
def on_disk(tmp_path):
    """Write an AnnData and open it without reading X."""
    opened = []

    def write(adata):
        path = tmp_path / f"{len(opened)}.h5ad"
        adata.write_h5ad(path)
        opened.append(ad.read_h5ad(path, backed="r"))
        return opened[-1]

    yield write
    for adata in opened:
        adata.file.close()


# ------------------------------------------------------------------ every kind of matrix


# Every container with every dtype, and each of these with X, a layer and raw.
PLACES = ("X", "layer", "raw")
CASES = [
    (format_, dtype, PLACES[(i + j) % len(PLACES)])
    for i, format_ in enumerate(CONTAINERS)
    for j, dtype in enumerate(DTYPES)
]


@pytest.mark.parametrize(("format_", "dtype", "position"), CASES)
def test_in_memory_in_views_and_on_disk(format_, dtype, position, on_disk):
    """X, a layer and raw differ in values, raw in genes too."""
    make = CONTAINERS[format_]
    adata = adata_with(make(values(dtype, seed=1)))
    adata.raw = adata.copy()
    adata = adata[:, ::2].copy()
    adata.X, adata.layers["other"] = (
        make(values(dtype, seed=2)[:, ::2]),
        make(values(dtype, seed=3)[:, ::2]),
    )
    options, where, matrix, expected = {
        "X": ({}, "adata.X", adata.X, values(dtype, seed=2)[:, ::2]),
        "layer": (
            {"layer": "other"},
            "adata.layers['other']",
            adata.layers["other"],
            values(dtype, seed=3)[:, ::2],
        ),
        "raw": ({"use_raw": True}, "adata.raw.X", adata.raw.X, values(dtype, seed=1)),
    }[position]
    original = contents(matrix)
    for same_cells in (adata, on_disk(adata)):
        rows = CellMatrix(same_cells, **options)
        check(rows, expected)
        assert rows.where == where
        assert list(rows.names) == [
            f"gene{i}"
            for i in (range(N_GENES) if position == "raw" else range(0, N_GENES, 2))
        ]
        for cells in (CELLS, slice(3, 17, 2), np.arange(N_CELLS) % 3 == 0):
            view = same_cells[cells, [3, 0]]
            check(
                CellMatrix(view, **options),
                expected[cells] if position == "raw" else expected[cells][:, [3, 0]],
            )
            assert view.is_view
    assert contents(matrix) == original


@pytest.mark.parametrize("make", [sp.csr_matrix, sp.csr_array])
@pytest.mark.parametrize("untidy", ["unsorted", "duplicates", "both"])
def test_an_untidy_matrix_is_left_as_it_is(make, untidy):
    """Column indices out of order, and entries in parts that are to be summed."""
    indices = {
        "unsorted": [3, 1, 0, 2],
        "duplicates": [1, 1, 0, 2],
        "both": [3, 3, 1, 0],
    }[untidy]
    data = np.array([1.5, 2, 4, 8])
    matrix = make((data, np.array(indices), np.array([0, 2, 2, 4])), shape=(3, 4))
    expected = np.zeros((3, 4))
    np.add.at(expected, ([0, 0, 2, 2], indices), data)
    adata = adata_with(matrix)
    original = contents(matrix)
    check(CellMatrix(adata), expected[:3])
    check(CellMatrix(adata[[2, 0]]), expected[[2, 0]])
    check(CellMatrix(adata[:, [3, 1]]), expected[:, [3, 1]])
    assert adata.X is matrix
    assert contents(matrix) == original


@pytest.mark.parametrize("format_", ["csr_matrix", "C"])
def test_of_a_file_only_the_rows_at_hand_are_read(format_, on_disk):
    class Watched:
        def __init__(self, matrix):
            self._matrix, self.asked = matrix, []

        def __getitem__(self, key):
            block = self._matrix[key]
            self.asked.append(block.shape[0])
            return block

    adata = on_disk(adata_with(CONTAINERS[format_](values())))
    for rows in (CellMatrix(adata), CellMatrix(adata[CELLS, GENES])):
        rows._matrix = watched = Watched(rows._matrix)
        rows.take(slice(2, 5))
        rows.take(np.array([4, 1, 1, 1, 4]))
        assert watched.asked == [3, 2]


def test_columns_are_turned_into_rows_once(on_disk):
    adata = adata_with(sp.csc_matrix(values()))
    for cells in (adata, adata[::2], on_disk(adata), on_disk(adata)[::2]):
        assert CellMatrix(cells)._matrix.format == "csr"


# ------------------------------------------------------------------ wrong input


def with_layers():
    adata = adata_with(values())
    adata.layers["counts"], adata.layers["scaled"] = values(), values()
    return adata


def without_x():
    adata = with_layers()
    adata.X = None
    return adata


def words(matrix, dtype=object):
    return adata_with(np.array([matrix], dtype=dtype))


WRONG = {
    "table": (pd.DataFrame(values()), {}, TypeError, "^adata must be an AnnData, not "),
    "nothing": (None, {}, TypeError, "^adata must be an AnnData, not "),
    "no cells": (
        adata_with(values())[:0],
        {},
        ValueError,
        r"^adata\.X has no cells\.$",
    ),
    "no X": (
        without_x(),
        {},
        ValueError,
        r"^adata\.X is empty \(None\); name the matrix to us",
    ),
    "no such layer": (
        with_layers(),
        {"layer": "count"},
        KeyError,
        "no layer 'count', only .* did you mean 'counts'",
    ),
    "no raw": (
        with_layers(),
        {"use_raw": True},
        ValueError,
        r"^use_raw=True was given, but adata\.raw is None\.$",
    ),
    "text": (
        words(["1", "2"], str),
        {},
        TypeError,
        r"^adata\.X holds <U1 values instead of numbers\.$",
    ),
    "objects": (
        words([1, 2]),
        {},
        TypeError,
        r"^adata\.X holds object values instead of numbers\.$",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_matrices_that_cannot_be_read(name, on_disk):
    adata, arguments, error, sentence = WRONG[name]
    with pytest.raises(error, match=sentence):
        CellMatrix(adata, **arguments)
    if name in ("no X", "no such layer", "no raw"):
        for cells in (adata[:3], on_disk(adata), on_disk(adata)[:3]):
            with pytest.raises(error, match=sentence):
                CellMatrix(cells, **arguments)
            assert_array_equal(
                CellMatrix(cells, layer="counts").take(slice(0, 3)), values()[:3]
            )


def test_names_that_occur_twice():
    names = pd.Index(["a", "b", "a", "c", "c", "c", "d"])
    sentence = r"^obs_names are not unique \('a', 'c'\): call fix\(\) first\.$"
    with pytest.raises(ValueError, match=sentence):
        check_unique(names, "obs_names", "fix()")
    six_names = pd.Index(list("abcdef") * 2)
    with pytest.raises(
        ValueError,
        match=r"^genes are not unique \('a', 'b' and 4 more\): call fix\(\) first\.$",
    ):
        check_unique(six_names, "genes", "fix()")
    check_unique(pd.Index(["a", "b"]), "obs_names", "fix()")


@pytest.mark.parametrize("format_", ["csr", "csc"])
@pytest.mark.parametrize(
    ("member", "value"), [("indices", 99), ("indices", -3), ("indptr", 10**6)]
)
def test_indices_outside_of_the_matrix(tmp_path, format_, member, value):
    """They are refused, in memory and on disk: scipy would drop values, or crash."""
    path = tmp_path / "damaged.h5ad"
    ad.AnnData(sp.csr_matrix(values()).asformat(format_)).write_h5ad(path)
    with h5py.File(path, "a") as file:
        file["X"][member][3] = value
    in_memory = ad.read_h5ad(path)
    with pytest.raises(
        ValueError, match=r"^adata.X is damaged: its indices do not fit its shape"
    ):
        CellMatrix(in_memory)
    on_disk = ad.read_h5ad(path, backed="r")
    with pytest.raises(
        ValueError, match=r"^adata.X is damaged: its indices do not fit its shape"
    ):
        CellMatrix(on_disk).take(slice(0, N_CELLS))
    on_disk.file.close()
