"""The same rows come out of a matrix whatever it is kept in, and it stays as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from _strategies import CONTAINERS, DTYPES

from tosica.data import CellMatrix, check_unique

if TYPE_CHECKING:
    from pathlib import Path

N_CELLS, N_GENES = 23, 7
# What a view takes: cells and genes in another order, and not all of them.
CELLS, GENES = np.array([20, 3, 4, 5, 0, 11, 10, 22, 7]), np.array([5, 0, 2, 6])


def values(dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Counts; cell 5 and gene 2 have none."""
    counts = np.random.default_rng(seed).poisson(1.0, (N_CELLS, N_GENES))
    counts[5], counts[:, 2] = 0, 0
    return counts.astype(dtype)


def dense(block: Any) -> np.ndarray:
    if sp.issparse(block):
        assert block.format == "csr"
        assert block.has_canonical_format
        return block.toarray()
    assert type(block) is np.ndarray
    return block


def check(rows: CellMatrix, expected: np.ndarray) -> None:
    """Read rows in every way."""
    n = len(expected)
    assert rows.n_obs == n
    assert len(rows.names) == expected.shape[1]
    for start, stop in [(0, n), (0, 1), (2, 6), (n - 1, n)]:
        got = dense(rows.take(slice(start, stop)))
        np.testing.assert_array_equal(got, expected[start:stop])
        assert got.dtype == expected.dtype
    for size in (4, n + 5):
        starts, blocks = zip(*rows.blocks(size), strict=True)
        assert starts == tuple(range(0, n, size))
        assert all(block.shape[0] == size for block in blocks[:-1])
        np.testing.assert_array_equal(
            np.concatenate([dense(b) for b in blocks]), expected
        )
    for cells in ([0], [n - 1, 0, 3, 3, 1, 0], range(n), range(n)[::-1], [2] * 9):
        cells = np.array(cells) % n
        np.testing.assert_array_equal(dense(rows.take(cells)), expected[cells])


def contents(matrix: Any) -> list[bytes]:
    """Every byte of a matrix in memory."""
    if sp.issparse(matrix):
        return [part.tobytes() for part in (matrix.data, matrix.indices, matrix.indptr)]
    return [matrix.tobytes("A"), str(matrix.flags).encode()]


def adata_with(matrix: Any) -> ad.AnnData:
    obs = pd.DataFrame(index=[f"cell{i}" for i in range(matrix.shape[0])])
    var = pd.DataFrame(index=[f"gene{i}" for i in range(matrix.shape[1])])
    return ad.AnnData(matrix, obs=obs, var=var)


@pytest.fixture
def on_disk(tmp_path: Path) -> Any:
    """Write an AnnData and open it without reading X."""
    opened = []

    def write(adata: ad.AnnData) -> ad.AnnData:
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


@pytest.mark.parametrize(("format_", "dtype", "which"), CASES)
def test_in_memory_in_views_and_on_disk(
    format_: str, dtype: str, which: str, on_disk: Any
) -> None:
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
    }[which]
    before = contents(matrix)
    for some in (adata, on_disk(adata)):
        rows = CellMatrix(some, **options)
        check(rows, expected)
        assert rows.where == where
        assert list(rows.names) == [
            f"gene{i}"
            for i in (range(N_GENES) if which == "raw" else range(0, N_GENES, 2))
        ]
        for cells in (CELLS, slice(3, 17, 2), np.arange(N_CELLS) % 3 == 0):
            view = some[cells, [3, 0]]
            check(
                CellMatrix(view, **options),
                expected[cells] if which == "raw" else expected[cells][:, [3, 0]],
            )
            assert view.is_view
    assert contents(matrix) == before


@pytest.mark.parametrize("make", [sp.csr_matrix, sp.csr_array])
@pytest.mark.parametrize("untidy", ["unsorted", "duplicates", "both"])
def test_an_untidy_matrix_is_left_as_it_is(make: Any, untidy: str) -> None:
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
    before = contents(matrix)
    check(CellMatrix(adata), expected[:3])
    check(CellMatrix(adata[[2, 0]]), expected[[2, 0]])
    check(CellMatrix(adata[:, [3, 1]]), expected[:, [3, 1]])
    assert adata.X is matrix
    assert contents(matrix) == before


@pytest.mark.parametrize("format_", ["csr_matrix", "C"])
def test_of_a_file_only_the_rows_at_hand_are_read(format_: str, on_disk: Any) -> None:
    class Watched:
        def __init__(self, matrix: Any) -> None:
            self._matrix, self.asked = matrix, []

        def __getitem__(self, which: Any) -> Any:
            found = self._matrix[which]
            self.asked.append(found.shape[0])
            return found

    adata = on_disk(adata_with(CONTAINERS[format_](values())))
    for rows in (CellMatrix(adata), CellMatrix(adata[CELLS, GENES])):
        rows._matrix = watched = Watched(rows._matrix)
        rows.take(slice(2, 5))
        rows.take(np.array([4, 1, 1, 1, 4]))
        assert watched.asked == [3, 2]


def test_columns_are_turned_into_rows_once(on_disk: Any) -> None:
    adata = adata_with(sp.csc_matrix(values()))
    for some in (adata, adata[::2], on_disk(adata), on_disk(adata)[::2]):
        assert CellMatrix(some)._matrix.format == "csr"


# ------------------------------------------------------------------ wrong input


def with_layers() -> ad.AnnData:
    adata = adata_with(values())
    adata.layers["counts"], adata.layers["scaled"] = values(), values()
    return adata


def without_x() -> ad.AnnData:
    adata = with_layers()
    adata.X = None
    return adata


def words(matrix: list[Any], dtype: Any = object) -> ad.AnnData:
    return adata_with(np.array([matrix], dtype=dtype))


WRONG: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
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
def test_matrices_that_cannot_be_read(name: str, on_disk: Any) -> None:
    adata, which, error, sentence = WRONG[name]
    with pytest.raises(error, match=sentence):
        CellMatrix(adata, **which)
    if name in ("no X", "no such layer", "no raw"):
        for some in (adata[:3], on_disk(adata), on_disk(adata)[:3]):
            with pytest.raises(error, match=sentence):
                CellMatrix(some, **which)
            np.testing.assert_array_equal(
                CellMatrix(some, layer="counts").take(slice(0, 3)), values()[:3]
            )


def test_names_that_occur_twice() -> None:
    names = pd.Index(["a", "b", "a", "c", "c", "c", "d"])
    sentence = r"^obs_names are not unique \('a', 'c'\): call fix\(\) first\.$"
    with pytest.raises(ValueError, match=sentence):
        check_unique(names, "obs_names", "fix()")
    many = pd.Index(list("abcdef") * 2)
    with pytest.raises(
        ValueError,
        match=r"^genes are not unique \('a', 'b' and 4 more\): call fix\(\) first\.$",
    ):
        check_unique(many, "genes", "fix()")
    check_unique(pd.Index(["a", "b"]), "obs_names", "fix()")


@pytest.mark.parametrize("format_", ["csr", "csc"])
@pytest.mark.parametrize(
    ("part", "value"), [("indices", 99), ("indices", -3), ("indptr", 10**6)]
)
def test_indices_outside_of_the_matrix(
    tmp_path: Path, format_: str, part: str, value: int
) -> None:
    """They are refused, in memory and on disk: scipy would drop values, or crash."""
    path = tmp_path / "damaged.h5ad"
    ad.AnnData(sp.csr_matrix(values()).asformat(format_)).write_h5ad(path)
    with h5py.File(path, "a") as file:
        file["X"][part][3] = value
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
