"""Strategies of Hypothesis for cells: names, labels, gene sets, matrices and AnnData of any kind.

Every strategy draws from few values, so that names repeat where they may and edges come up often.
How many examples are drawn, and whether the same ones each time, is set in ``conftest.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# --------------------------------------------------------------------------- containers

# What the matrix of an AnnData may be kept in: made from a dense array.
CONTAINERS: dict[str, Callable[[np.ndarray], Any]] = {
    "csr_matrix": sp.csr_matrix,
    "csr_array": sp.csr_array,
    "csc_matrix": sp.csc_matrix,
    "csc_array": sp.csc_array,
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
}
# What counts are kept as; log-normalized values are "float32" or "float64".
DTYPES = ["float32", "float64", "int32", "int64", "uint16", "bool"]

containers = st.sampled_from(list(CONTAINERS))
dtypes = st.sampled_from(DTYPES)


@st.composite
def sparse_with_quirks(draw: st.DrawFn, values: np.ndarray) -> sp.csr_matrix:
    """These values in a CSR matrix as files bring it: unsorted, stored zeros, 64-bit indices."""
    matrix = sp.csr_matrix(values)
    if draw(st.booleans()):  # every value is stored, the zeros too
        n_obs, n_vars = values.shape
        indptr, indices = (
            np.arange(n_obs + 1) * n_vars,
            np.tile(np.arange(n_vars), n_obs),
        )
        matrix = sp.csr_matrix((values.ravel(), indices, indptr), shape=values.shape)
    if draw(st.booleans()):  # every row from its last gene to its first
        for start, stop in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
            matrix.indices[start:stop] = matrix.indices[start:stop][::-1].copy()
            matrix.data[start:stop] = matrix.data[start:stop][::-1].copy()
        matrix.has_sorted_indices = False
    if draw(st.booleans()):
        matrix.indices = matrix.indices.astype(np.int64)
        matrix.indptr = matrix.indptr.astype(np.int64)
    return matrix


# --------------------------------------------------------------------------- names

# Characters that something between a CSV file and HDF5 gives a meaning to.
_SPECIAL = "aB1 -,;:|/\\\"'<>#%_.éß基\u2028\x85"


def texts(max_size: int = 8) -> st.SearchStrategy[str]:
    """Any name that a person may have typed: no control character, and not only white space."""
    characters = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])
    return st.text(
        st.sampled_from(_SPECIAL) | characters, min_size=1, max_size=max_size
    ).filter(lambda text: bool(text.strip()))


def labels(min_size: int = 2, max_size: int = 5) -> st.SearchStrategy[list[str]]:
    """Different names of labels that may stand side by side in a file."""
    return st.lists(
        texts()
        .map(lambda text: text.replace("/", "|").strip())
        .filter(_is_plain_label),
        min_size=min_size,
        max_size=max_size,
        unique_by=lambda text: text.casefold(),
    )


def _is_plain_label(text: str) -> bool:
    """Whether a name is not one of those that mean that there is no label."""
    return bool(text) and text.casefold() not in {"unknown", "nan", "none"}


def gene_names(min_size: int = 1, max_size: int = 30) -> st.SearchStrategy[list[str]]:
    """Different names of genes: symbols, Ensembl IDs with and without a version, or any text."""
    number = st.integers(0, 999)
    name = st.one_of(
        number.map("G{}".format),
        number.map("ENSG{:011d}".format),
        number.map("ENSG{:011d}.2".format),
        number.map("HLA-D{}".format),
        texts(),
    )
    return st.lists(name, min_size=min_size, max_size=max_size, unique=True)


def gene_set_collections(
    names: st.SearchStrategy[str],
    genes: st.SearchStrategy[str],
    *,
    n_genes: tuple[int, int] = (0, 15),
    max_sets: int = 12,
    unique: bool = False,
) -> st.SearchStrategy[dict[str, list[str]]]:
    """Gene sets by name, with the least and the largest number of genes that each lists."""
    members = st.lists(genes, min_size=n_genes[0], max_size=n_genes[1], unique=unique)
    return st.dictionaries(names, members, min_size=1, max_size=max_sets)


# --------------------------------------------------------------------------- cells


@st.composite
def counts(draw: st.DrawFn, n_obs: int, n_vars: int) -> np.ndarray:
    """Counts of cells × genes as float32; no cell is empty, and some genes are not expressed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rate = draw(st.sampled_from([0.2, 1.0, 5.0]))
    values = rng.poisson(rate * rng.gamma(1.0, size=n_vars), (n_obs, n_vars))
    values[values.sum(1) == 0, rng.integers(n_vars)] = 1
    return values.astype(np.float32)


@st.composite
def matrices(draw: st.DrawFn, values: np.ndarray) -> Any:
    """These values in any container; a CSR matrix may have any quirk that files bring."""
    name = draw(containers)
    return (
        draw(sparse_with_quirks(values))
        if name == "csr_matrix"
        else CONTAINERS[name](values)
    )


@st.composite
def anndatas(
    draw: st.DrawFn,
    *,
    n_obs: tuple[int, int] = (6, 40),
    n_vars: tuple[int, int] = (3, 30),
) -> AnnData:
    """Counts in any container and of any type, any names of genes, and labels in ``obs["label"]``.

    Every label has two cells or more. ``obs["batch"]`` has one to three batches, and
    ``layers["counts"]`` the same counts as plain float32, to compare with.
    """
    genes = draw(gene_names(*n_vars))
    known = draw(labels())
    n = draw(st.integers(max(n_obs[0], 2 * len(known)), max(n_obs[1], 2 * len(known))))
    values = draw(counts(n, len(genes)))
    dtype = draw(dtypes)
    if dtype == "bool":
        values = np.minimum(values, 1)
    adata = AnnData(draw(matrices(values.astype(dtype))))
    adata.var_names = genes
    adata.obs_names = [f"cell{i}" for i in range(n)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    others = rng.integers(len(known), size=n - 2 * len(known))
    of_cell = rng.permutation(np.r_[np.tile(np.arange(len(known)), 2), others])
    column = [known[i] for i in of_cell]
    adata.obs["label"] = draw(st.sampled_from([pd.Categorical, list]))(column)
    adata.obs["batch"] = [
        f"batch{i}" for i in rng.integers(draw(st.integers(1, 3)), size=n)
    ]
    adata.layers["counts"] = values
    return adata


def annotated_cells(
    groups: Sequence[str], predictions: Sequence[str]
) -> st.SearchStrategy[list[tuple[str, str, float, int]]]:
    """Cells as tuples: group (a known label or a cluster), predicted label, probability, and place.

    Cells sorted by their place are the same cells in another order.
    """
    cell = st.tuples(
        st.sampled_from(groups),
        st.sampled_from(predictions),
        st.floats(0, 1, width=32),
        st.integers(0, 2**32),
    )
    return st.lists(cell, min_size=1)
