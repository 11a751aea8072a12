"""Strategies of Hypothesis for cells: gene sets, matrices, and cells with labels.

Every strategy draws from few values, so that names repeat where they may and edges come up often.
How many examples are drawn, and whether the same ones each time, is set in ``conftest.py``.
"""

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

# --------------------------------------------------------------------------- containers

# What the matrix of an AnnData may be kept in: made from a dense array.
CONTAINERS = {
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
def sparse_with_quirks(draw, values):
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
        for row_start, row_end in zip(
            matrix.indptr[:-1], matrix.indptr[1:], strict=True
        ):
            matrix.indices[row_start:row_end] = matrix.indices[row_start:row_end][
                ::-1
            ].copy()
            matrix.data[row_start:row_end] = matrix.data[row_start:row_end][::-1].copy()
        matrix.has_sorted_indices = False
    if draw(st.booleans()):
        matrix.indices = matrix.indices.astype(np.int64)
        matrix.indptr = matrix.indptr.astype(np.int64)
    return matrix


# --------------------------------------------------------------------------- names


def gene_set_collections(
    names,
    genes,
    *,
    n_genes=(0, 15),
    max_sets=12,
    unique=False,
):
    """Gene sets by name, with the least and the largest number of genes that each lists."""
    members = st.lists(genes, min_size=n_genes[0], max_size=n_genes[1], unique=unique)
    return st.dictionaries(names, members, min_size=1, max_size=max_sets)


# --------------------------------------------------------------------------- cells


@st.composite
def matrices(draw, values):
    """These values in any container; a CSR matrix may have any quirk that files bring."""
    name = draw(containers)
    return (
        draw(sparse_with_quirks(values))
        if name == "csr_matrix"
        else CONTAINERS[name](values)
    )


def annotated_cells(groups, predictions):
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
