"""Read a collection of annbatch as a reference that stays on disk."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from anndata import AnnData
from anndata.io import read_elem, sparse_dataset

from tosica._text import first_line, list_names
from tosica._validate import FilePath, validate_params
from tosica.data import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tosica._types import AnyPath
    from tosica.data import Block


class AnnbatchReader:
    """The cells of a collection of annbatch, for :meth:`tosica.TOSICA.train`.

    A collection is one or more Zarr stores whose cells are shuffled, which annbatch makes and
    reads. It is made once: ``annbatch.DatasetCollection("cells.zarr").add_adatas(["one.h5ad",
    "two.h5ad"])``. Training reads every cell once an epoch and draws rare labels more often, as
    from memory. It needs Python 3.12 or newer and ``tosica[atlas]``. Without them, a reference that
    :func:`anndata.experimental.read_lazy` opened is trained on from disk, too.

    Parameters
    ----------
    collection
        A ``annbatch.DatasetCollection``, or the path of one. It is only read.
    chunk_size
        Number of neighboring cells that are read together.
    preload_nchunks
        Number of such chunks that are in memory at a time.

    Attributes
    ----------
    adata
        The collection as an AnnData whose matrix stays on disk. It is the reference: build the mask
        for it, set it up, and make the model from it.

    Raises
    ------
    ModuleNotFoundError
        If annbatch is not installed, as on Python 3.11.
    TypeError
        If ``collection`` is neither a path nor a collection, or a number is not whole.
    ValueError
        If there is no collection, or its stores differ in genes or in columns of ``obs``.

    Examples
    --------
    >>> import tosica
    >>> data = tosica.model.AnnbatchReader("cells.zarr")  # doctest: +SKIP
    >>> tosica.pp.build_mask(data.adata)  # doctest: +SKIP
    >>> tosica.TOSICA.setup_anndata(
    ...     data.adata, labels_key="cell_type"
    ... )  # doctest: +SKIP
    >>> model = tosica.TOSICA(data.adata)  # doctest: +SKIP
    >>> model.train(datamodule=data)  # doctest: +SKIP
    """

    @validate_params()
    def __init__(
        self,
        collection: Any | AnyPath,
        *,
        chunk_size: int = 256,
        preload_nchunks: int = 64,
    ) -> None:
        self._annbatch = _import_annbatch()
        self._chunk_size = chunk_size
        self._preload_nchunks = preload_nchunks
        self._groups = self._open(collection)
        self.adata: AnnData = _concatenate_stores(self._groups)

    def _open(self, collection: Any) -> list[Any]:
        """List the stores of a collection, which is not changed by opening it."""
        datasets = collection
        if not isinstance(collection, self._annbatch.DatasetCollection):
            FilePath().check("collection", collection)
            path = str(collection)
            try:
                with warnings.catch_warnings():
                    # annbatch recommends a name that ends in .zarr.
                    warnings.simplefilter("ignore")
                    datasets = self._annbatch.DatasetCollection(path, mode="r")
            # Zarr has many errors for a path that is no store.
            except Exception as error:
                raise _no_collection(collection) from error
        if datasets.is_empty:
            raise _no_collection(collection)
        return list(datasets)

    @property
    def n_blocks(self) -> int:
        """Number of blocks of an epoch."""
        return len(self._loader(np.random.default_rng(0)))

    def __call__(self, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, Block]]:
        """Yield positions of cells in ``adata`` and their expression, all cells once."""
        try:
            for batch in self._loader(rng):
                yield batch["index"], batch["X"]
        except GeneratorExit:
            raise
        # The error of a damaged chunk depends on how it was compressed.
        except Exception as error:
            raise OSError(
                f"the collection cannot be read ({first_line(error)}): make it anew."
            ) from error

    def _loader(self, rng: np.random.Generator) -> Any:
        loader = self._annbatch.Loader(
            chunk_size=self._chunk_size,
            preload_nchunks=self._preload_nchunks,
            batch_size=min(BLOCK, self._chunk_size * self._preload_nchunks),
            shuffle=True,
            return_index=True,
            preload_to_gpu=False,
            rng=rng,
        )
        matrices = []
        for group in self._groups:
            x = group["X"]
            # A dense matrix is an array, and a sparse one a group of arrays.
            matrices.append(x if hasattr(x, "shape") else sparse_dataset(x))
        loader.add_datasets(matrices)
        return loader


def _import_annbatch() -> Any:
    try:
        import annbatch
    except ImportError as error:
        advice = "pip install 'tosica[atlas]'"
        if sys.version_info < (3, 12):
            advice = (
                f"it needs Python 3.12 or newer, and this is {sys.version_info.major}.{sys.version_info.minor}; "
                "without it, open the reference with anndata.experimental.read_lazy"
            )
        raise ModuleNotFoundError(f"annbatch is not installed: {advice}.") from error
    return annbatch


def _no_collection(collection: Any) -> ValueError:
    return ValueError(
        f"{str(collection)!r} is no collection of annbatch, or an empty one: make one with "
        "annbatch.DatasetCollection(path).add_adatas([...])."
    )


def _concatenate_stores(groups: list[Any]) -> AnnData:
    """Make one AnnData of all stores; matrices stay on disk."""
    import dask.array as da
    from anndata.experimental import read_elem_lazy

    obs_tables = [read_elem(group["obs"]) for group in groups]
    var_tables = [read_elem(group["var"]) for group in groups]
    columns = list(obs_tables[0])
    var_names = var_tables[0].index
    for i, (obs, var) in enumerate(zip(obs_tables, var_tables, strict=True)):
        differences = [
            *var.index.symmetric_difference(var_names),
            *(set(columns) ^ set(obs)),
        ]
        if differences or not var.index.equals(var_names):
            names = list_names([str(name) for name in differences], 3) or "their order"
            raise ValueError(
                f"dataset_{i} and dataset_0 of the collection do not have the same genes and columns of obs ({names}): "
                "make the collection anew, of files that have."
            )
    x = da.concatenate([read_elem_lazy(group["X"]) for group in groups])
    obs = pd.DataFrame(index=pd.concat([table[[]] for table in obs_tables]).index)
    for name in columns:
        obs[name] = _concatenate([table[name] for table in obs_tables])
    return AnnData(x, obs=obs, var=var_tables[0])


def _concatenate(columns: list[pd.Series]) -> Any:
    """Concatenate a column of all stores; its categories may differ between them."""
    if all(isinstance(column.dtype, pd.CategoricalDtype) for column in columns):
        return pd.api.types.union_categoricals(columns, ignore_order=True)
    return pd.concat(columns).to_numpy()
