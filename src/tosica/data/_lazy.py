"""Annotations of an AnnData that was opened without reading them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from anndata import AnnData


def load_annotations(adata: AnnData) -> None:
    """Read ``obs``, ``var``, ``varm`` and ``uns`` of a lazily opened AnnData into memory.

    Matrices of cells stay where they are. Of any other AnnData nothing changes.

    Parameters
    ----------
    adata
        The result of :func:`anndata.experimental.read_lazy`, or any AnnData. It is changed in
        place; a view becomes an actual AnnData.
    """
    for name in ("obs", "var"):
        table = getattr(adata, name)
        if not isinstance(table, pd.DataFrame):
            setattr(adata, name, load_table(table))
    for name in ("varm", "uns"):
        mapping = getattr(adata, name)
        for key, value in list(mapping.items()):
            loaded = _loaded(value)
            if loaded is not value:
                mapping[key] = loaded


def load_table(table: Any) -> pd.DataFrame:
    """``obs`` or ``var`` in memory: the same object, if it is there already."""
    return table if isinstance(table, pd.DataFrame) else table.to_memory()


def _loaded(value: Any) -> Any:
    """A value without what is still to be read; the same object if nothing is."""
    if isinstance(value, dict):
        loaded = {key: _loaded(inner) for key, inner in value.items()}
        return loaded if any(loaded[key] is not value[key] for key in value) else value
    if hasattr(value, "__dask_graph__"):
        return value.compute()
    # A lazy table, as anndata makes them of xarray's datasets.
    if hasattr(value, "to_memory") and not isinstance(value, pd.DataFrame):
        return value.to_memory()
    return value
