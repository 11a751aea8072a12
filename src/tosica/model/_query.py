"""Read a query, an AnnData or a MuData, in minibatches as a model's network takes them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from anndata import AnnData

from tosica._checks import list_names, only_known
from tosica._settings import query_logger, warn_user
from tosica.data import AlignedCells, CellMatrix, cell_indexers, reindex_obs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mudata import MuData
    from torch import Tensor

    from tosica.data import ExpressionSource
    from tosica.model._modalities import Modality

# The first fits the cache of a CPU, the second occupies an accelerator.
_BATCH_SIZE_CPU, _BATCH_SIZE_ACCELERATOR = 64, 512


class Minibatch(NamedTuple):
    """Some cells of a query, as the network takes them."""

    start: int
    """Position of the first cell."""
    x: torch.Tensor
    """Normalised expression, ``(n_cells, n_genes)``."""
    measured: torch.Tensor | None
    """Which of the genes the query has, ``(n_genes,)``; ``None`` if it has all."""
    modalities: tuple[int, ...]
    """Positions of the query's modalities in the model."""


class QueryLoader:
    """A query's cells in normalized minibatches, with every gene of the model as a column.

    Modalities and names of genes are checked here, values as they are read.
    ``modalities`` has the positions of the query's modalities in the model. ``measured`` says which
    genes the query has, ``(n_genes,)``; it is ``None`` if it has all, and for models of several
    modalities.

    Parameters
    ----------
    source
        The query. An AnnData is taken as the one modality that it has half of the genes of.
    modalities
        The model's modalities.
    device
        Where minibatches are normalized.
    batch_size
        Cells in a minibatch, by default a number that suits the device.
    sample
        If the source is a part of a query, cells from all over that query, by which the scale of the
        expression is recognized.
    signal
        Variance of each gene's mean between the labels: what a model of one modality asks a query for half of.

    Raises
    ------
    ValueError
        If the query has none of the model's modalities, different cells in them, or too few of
        the model's genes.
    """

    def __init__(
        self,
        source: ExpressionSource,
        modalities: list[Modality],
        device: torch.device,
        *,
        batch_size: int | None = None,
        sample: AnnData | None = None,
        signal: np.ndarray | None = None,
    ) -> None:
        if batch_size is None:
            batch_size = _BATCH_SIZE_CPU if device.type == "cpu" else _BATCH_SIZE_ACCELERATOR
        self._modalities = modalities
        self._device = device
        self._cells: dict[int, AlignedCells] = {}
        self._measured: dict[int, Tensor | None] = {}
        split = _find_modality if isinstance(source.data, AnnData) else _split
        for position, (adata, layer, name) in split(source, modalities).items():
            modality = modalities[position]
            # The layer of the reference, if the query has it and none was named.
            if layer is None and not source.use_raw and modality.layer in adata.layers:
                layer = modality.layer
            read = partial(CellMatrix, layer=layer, use_raw=source.use_raw, name=name)
            of_all = None if sample is None else read(sample)
            aligned = partial(AlignedCells, modality.kind, read(adata), modality.genes, modality.scale)
            cells = aligned(batch_size=batch_size, sample=of_all, signal=signal if len(modalities) == 1 else None)
            self._cells[position] = cells
            self._measured[position] = None if cells.measured.all() else torch.from_numpy(cells.measured).to(device)
        self.modalities: tuple[int, ...] = tuple(self._cells)
        masks = [
            np.full(len(m.genes), False) if i not in self._cells else self._cells[i].measured
            for i, m in enumerate(modalities)
        ]
        measured = np.concatenate(masks)
        self.measured: Tensor | None = None if measured.all() else torch.from_numpy(measured).to(device)

    def __iter__(self) -> Iterator[Minibatch]:
        for batches in zip(*self._cells.values(), strict=True):
            found: dict[int, Tensor] = {}
            for i, batch in zip(self._cells, batches, strict=True):
                x = torch.from_numpy(batch.values).to(self._device)
                normalization = self._modalities[i].kind.normalization(self._modalities[i].scale)
                if normalization is not None and batch.is_counts:
                    total = None if batch.total is None else torch.from_numpy(batch.total).to(self._device)
                    x = normalization.normalize(x, total=total, measured=self._measured[i])
                found[i] = x
            first = found[self.modalities[0]]
            columns = [
                found[i] if i in found else first.new_zeros(len(first), len(modality.genes))
                for i, modality in enumerate(self._modalities)
            ]
            x = columns[0] if len(columns) == 1 else torch.cat(columns, 1)
            yield Minibatch(batches[0].start, x, self.measured, self.modalities)


Parts = dict[int, tuple[AnnData, str | None, str]]


def _find_modality(source: ExpressionSource, modalities: list[Modality]) -> Parts:
    """Find the one modality of the model whose genes an AnnData has."""
    adata, best = source.data, 0
    if len(modalities) > 1:
        names = adata.raw.var_names if source.use_raw and adata.raw is not None else adata.var_names
        shared = [int(names.astype(str).isin(m.genes).sum()) for m in modalities]
        likely = [i for i, m in enumerate(modalities) if 2 * shared[i] >= len(m.genes)]
        if len(likely) != 1:
            known = ", ".join(f"{m.name!r} with {len(m.genes)}" for m in modalities)
            which = "several modalities" if likely else "no modality"
            raise ValueError(
                f"The query has half the genes of {which} of the model ({known}): say which one it "
                f"holds, as in mudata.MuData({{{str(modalities[0].name)!r}: adata}})."
            )
        best = likely[0]
        query_logger.info(
            "query: taken as the model's modality %r, to which %d of its %d names belong",
            modalities[best].name,
            shared[best],
            len(names),
        )
    return {best: (adata, source.layer, "adata")}  # type: ignore[dict-item] # no dict of layers


def _split(source: ExpressionSource, modalities: list[Modality]) -> Parts:
    """Find the model's modalities in a MuData, with the layer and the name of each."""
    mdata: MuData = source.data
    layers: Mapping[str, str] = source.layer or {}  # type: ignore[assignment] # no name of one layer
    wanted = [str(modality.name) for modality in modalities]
    present = [name for name in wanted if name in mdata.mod]
    if not present:
        raise ValueError(
            f"The query has none of the model's modalities ({list_names(wanted)}), but "
            f"{list_names(list(mdata.mod)) or 'none at all'}: rename one, as in mdata.mod[{wanted[0]!r}] = "
            f"mdata.mod.pop({next(iter(mdata.mod), '…')!r}), or pass one as an AnnData."
        )
    for name in layers:
        if name not in present:
            raise KeyError(f"layer names no modality {name!r} that is read{only_known(name, present)}")
    missing = [name for name in wanted if name not in present]
    others = [name for name in mdata.mod if name not in wanted]
    if missing:
        lacking = f"the query has no modality {list_names(missing)}"
        query_logger.info("query: %s; labels rest on %s", lacking, list_names(present))
        if others:
            warn_user(f"{lacking} and one that is not known ({list_names(others)}): rename it, or leave it out.")
    indexers = cell_indexers(mdata, present)
    return {
        wanted.index(name): (reindex_obs(mdata[name], indexers[name]), layers.get(name), f"mdata[{name!r}]")
        for name in present
    }
