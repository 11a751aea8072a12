"""Train on a collection of annbatch: shuffled Zarr stores that are quick to read."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from anndata import AnnData
from anndata.io import read_elem, sparse_dataset

from tosica._checks import FilePath, list_names, validate_params
from tosica.data import BLOCK
from tosica.model._device import first_line

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from tosica.data import Block


class AnnbatchDataModule:
    """The cells of a collection of annbatch, for :meth:`tosica.TOSICA.train`.

    A collection is one or more Zarr stores whose cells are shuffled, which annbatch makes and
    reads. It is made once: ``annbatch.DatasetCollection("cells.zarr").add_adatas(["one.h5ad",
    "two.h5ad"])``. Training reads every cell once an epoch and draws each label equally often, as
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
    >>> data = tosica.model.AnnbatchDataModule("cells.zarr")  # doctest: +SKIP
    >>> tosica.pp.build_mask(data.adata)  # doctest: +SKIP
    >>> tosica.TOSICA.setup_anndata(data.adata, labels_key="cell_type")  # doctest: +SKIP
    >>> model = tosica.TOSICA(data.adata)  # doctest: +SKIP
    >>> model.train(datamodule=data)  # doctest: +SKIP
    """

    @validate_params()
    def __init__(
        self, collection: Any | str | os.PathLike[str], *, chunk_size: int = 256, preload_nchunks: int = 64
    ) -> None:
        self._annbatch = _import_annbatch()
        self._chunk_size, self._preload_nchunks = chunk_size, preload_nchunks
        self._groups = self._open(collection)
        self.adata: AnnData = _join(self._groups)

    def _open(self, collection: Any) -> list[Any]:
        """The stores of a collection, which is not changed by opening it."""
        given = collection
        if not isinstance(collection, self._annbatch.DatasetCollection):
            FilePath().check("collection", collection)
            try:
                with warnings.catch_warnings():
                    # annbatch recommends a name that ends in .zarr.
                    warnings.simplefilter("ignore")
                    collection = self._annbatch.DatasetCollection(str(collection), mode="r")
            # Zarr has many errors for what is no store of its own.
            except Exception as error:
                raise _no_collection(given) from error
        if collection.is_empty:
            raise _no_collection(given)
        return list(collection)

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
        # What a damaged chunk raises depends on how it was compressed.
        except Exception as error:
            raise OSError(f"the collection cannot be read ({first_line(error)}): make it anew.") from error

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
        matrices = [group["X"] for group in self._groups]
        loader.add_datasets([x if hasattr(x, "shape") else sparse_dataset(x) for x in matrices])
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


def _no_collection(given: Any) -> ValueError:
    return ValueError(
        f"{str(given)!r} is no collection of annbatch, or an empty one: make one with "
        "annbatch.DatasetCollection(path).add_adatas([...])."
    )


def _join(groups: list[Any]) -> AnnData:
    """One AnnData of all stores; matrices stay on disk."""
    import dask.array as da
    from anndata.experimental import read_elem_lazy

    tables = [read_elem(group["obs"]) for group in groups]
    genes = [read_elem(group["var"]) for group in groups]
    for i, (table, var) in enumerate(zip(tables, genes, strict=True)):
        others = [*var.index.symmetric_difference(genes[0].index), *(set(tables[0]) ^ set(table))]
        if others or not var.index.equals(genes[0].index):
            what = list_names([str(name) for name in others], 3) or "their order"
            raise ValueError(
                f"dataset_{i} and dataset_0 of the collection do not have the same genes and columns of obs ({what}): "
                "make the collection anew, of files that have."
            )
    x = da.concatenate([read_elem_lazy(group["X"]) for group in groups])
    columns = {name: _concatenate([table[name] for table in tables]) for name in tables[0]}
    obs = pd.DataFrame(columns, index=pd.concat([table[[]] for table in tables]).index)
    return AnnData(x, obs=obs, var=genes[0])


def _concatenate(columns: list[pd.Series]) -> Any:
    """One column of several; categories may differ between them."""
    if all(isinstance(column.dtype, pd.CategoricalDtype) for column in columns):
        return pd.api.types.union_categoricals(columns, ignore_order=True)
    return pd.concat(columns).to_numpy()
