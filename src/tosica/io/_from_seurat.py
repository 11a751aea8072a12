"""Repair a converted Seurat object that is in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica._validation import check_data, check_names
from tosica.io._columns import repair_columns
from tosica.io._matrices import Matrix, select_expression
from tosica.io._parts import Parts, to_anndata
from tosica.io._refused import as_builtin_errors

if TYPE_CHECKING:
    from collections.abc import Collection

    from anndata import AnnData

_NAMES = "_index"


@as_builtin_errors()
def from_seurat(
    adata: AnnData, *, logicals: Collection[str] = (), na_strings: Collection[str] = ()
) -> AnnData:
    """Repair an AnnData that was converted from a Seurat object.

    This does for an object in memory what :func:`read_seurat` does for a file. It cannot restore
    factor levels that anndata dropped when it read the file. It logs columns with such codes;
    :func:`read_seurat` restores their levels from the file.

    Parameters
    ----------
    adata
        The converted object. It is not changed.
    logicals
        Columns of ``obs`` in which 0, 1 and 2 mean FALSE, TRUE and missing.
    na_strings
        Columns of ``obs`` in which the string ``NA`` means missing.

    Returns
    -------
    A new AnnData, as :func:`read_seurat` returns it.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If a column does not exist.
    ValueError
        If there are neither counts nor log-normalised values in ``X``, the layers and ``raw``.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()  # X is scaled, raw is log-normalised
    >>> float(adata.X.min()) < 0
    True
    >>> repaired = tosica.io.from_seurat(adata)
    >>> float(repaired.X.min())
    0.0
    """
    check_data(adata)
    logicals = check_names("logicals", logicals)
    na_strings = check_names("na_strings", na_strings)
    notes: list[str] = []
    obs = repair_columns(adata.obs, notes, logicals=logicals, na_strings=na_strings)
    codes = [
        repr(str(name))
        for name in adata.obs
        if str(name) not in logicals and _looks_like_codes(adata.obs[name])
    ]
    if codes:
        notes.append(
            f"{', '.join(codes)} may be codes of factors whose levels anndata dropped; "
            "tosica.io.read_seurat restores them from the file"
        )
    matrices = [] if adata.X is None else [Matrix("adata.X", _values(adata.X), adata.var)]
    matrices += [
        Matrix(f"adata.layers[{key!r}]", _values(adata.layers[key]), adata.var)
        for key in adata.layers
        if key is not None
    ]
    if adata.raw is not None:
        matrices.append(Matrix("adata.raw.X", _values(adata.raw.X), _raw_names(adata)))
    chosen = select_expression(matrices, notes)
    lost = [f"varm[{key!r}]" for key in adata.varm] + [f"obsp[{key!r}]" for key in adata.obsp]
    lost += ["uns['neighbors']"] if "neighbors" in adata.uns else []
    if lost:
        notes.append(f"{', '.join(lost)} dropped; call sc.pp.pca and sc.pp.neighbors")
    obsm = {
        key: np.asarray(value) for key, value in adata.obsm.items() if isinstance(value, np.ndarray)
    }
    var = chosen.var.drop(columns=[c for c in ("features", _NAMES) if c in chosen.var])
    parts = Parts(obs, var.copy(), chosen.counts, chosen.data, obsm, notes=notes)
    return to_anndata(parts)


def _values(matrix: object) -> object:
    return matrix.to_memory() if hasattr(matrix, "to_memory") else matrix


def _raw_names(adata: AnnData) -> pd.DataFrame:
    """Table of the genes of ``raw``, with names restored where a conversion left numbers."""
    var = adata.raw.var
    numbers = [str(i) for i in range(len(var))]
    if _NAMES in var:
        return var.set_index(pd.Index(var[_NAMES].astype(object), name=None)).drop(columns=_NAMES)
    if list(var.index) == numbers and len(var) == adata.n_vars:
        return adata.var
    return var


def _looks_like_codes(column: pd.Series) -> bool:
    """Whether the column holds all integers from 0 to at most 99, as codes of a factor do."""
    if not pd.api.types.is_integer_dtype(column.dtype):
        return False
    known = np.unique(column[column >= 0])
    return 1 < len(known) <= 100 and bool((known == np.arange(len(known))).all())
