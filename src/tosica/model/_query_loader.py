"""Read a query in normalized minibatches that have every gene of the model as a column."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from anndata import AnnData

from tosica._settings import query_logger, warn_user
from tosica._text import in_python, list_names, only_known
from tosica.data import AlignedCells, CellMatrix, cell_indexers, reindex_obs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mudata import MuData
    from torch import Tensor
    from tqdm import tqdm

    from tosica._types import AnnOrMuData, BoolArray
    from tosica.data import ExpressionSource
    from tosica.linear import ReferenceStatistics
    from tosica.model._modalities import Modality

# Minibatches of a CPU fit its cache; larger ones occupy an accelerator.
_BATCH_SIZE_CPU = 64
_BATCH_SIZE_ACCELERATOR = 512


class Minibatch(NamedTuple):
    """Some cells of a query, as the network takes them."""

    start: int
    """Position of the first cell."""
    x: torch.Tensor
    """Normalized expression, ``(n_cells, n_genes)``."""
    measured: torch.Tensor | None
    """Which of the genes the query has, ``(n_genes,)``; ``None`` if it has all."""
    modalities: tuple[int, ...]
    """Positions of the query's modalities in the model."""

    def measured_genes(self) -> BoolArray | None:
        """Copy ``measured`` to memory."""
        return None if self.measured is None else self.measured.cpu().numpy()


class QueryExpression(NamedTuple):
    """Normalized expression of all cells, ``(n_obs, n_genes)``, and the genes that were measured."""

    x: sp.csr_matrix
    measured: BoolArray | None


def read_all(batches: Iterable[Minibatch], step: tqdm | None = None) -> QueryExpression:
    """Read all cells. They are sparse in memory, also of a backed query.

    Parameters
    ----------
    batches
        The query's cells.
    step
        A progress bar over the cells.
    """
    blocks = []
    measured = None
    for batch in batches:
        blocks.append(sp.csr_matrix(batch.x.cpu().numpy()))
        measured = batch.measured_genes()
        if step is not None:
            step.update(len(batch.x))
    return QueryExpression(sp.vstack(blocks, format="csr"), measured)


class _QueryMatrix(NamedTuple):
    """Cells of one modality of a query, the layer to read, and their name in messages."""

    adata: AnnData
    layer: str | None
    name: str


class QueryLoader:
    """A query's cells in normalized minibatches, with every gene of the model as a column.

    Modalities and names of genes are checked here, values as they are read.
    ``modalities`` has the positions of the query's modalities in the model. ``measured`` says which
    genes the query has, ``(n_genes,)``; it is ``None`` if it has all, and for models of several
    modalities. ``n_expressed`` is how many genes of the model its reference expresses: of the others, a query lacks
    nothing.

    Parameters
    ----------
    source
        The query. An AnnData is taken as the one modality that it has half of the genes of.
    modalities
        The model's modalities.
    device
        Device of the minibatches.
    batch_size
        Cells in a minibatch, by default a number that suits the device.
    sample
        If the source is a part of a query, cells from all over that query, by which the scale of the
        expression is recognized.
    statistics
        Statistics of novelty. A query of a model of one modality must cover half of the variance of
        their means between the labels.

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
        sample: AnnOrMuData | None = None,
        statistics: ReferenceStatistics | None = None,
    ) -> None:
        if batch_size is None:
            is_cpu = device.type == "cpu"
            batch_size = _BATCH_SIZE_CPU if is_cpu else _BATCH_SIZE_ACCELERATOR
        label_variance = None
        expressed: list[np.ndarray] | list[None] = [None] * len(modalities)
        if statistics is not None:
            ends = np.cumsum([len(modality.genes) for modality in modalities])
            expressed = np.split(statistics.means.any(0), ends[:-1])
            if len(modalities) == 1:
                label_variance = statistics.means.astype(np.float64).var(0)
        self.n_expressed = sum(len(modality.genes) for modality in modalities)
        if statistics is not None:
            self.n_expressed = int(statistics.means.any(0).sum())
        self._modalities = modalities
        self._device = device
        self._cells: dict[int, AlignedCells] = {}
        for position, query in _find_matrices(source, modalities).items():
            modality = modalities[position]
            layer = query.layer
            reads_x = layer is None and not source.use_raw
            # The query may have the layer that the reference was read from.
            if reads_x and modality.layer in query.adata.layers:
                layer = modality.layer
            open_matrix = partial(
                CellMatrix, layer=layer, use_raw=source.use_raw, name=query.name
            )
            of_modality = sample
            if sample is not None and not isinstance(sample, AnnData):
                of_modality = sample.mod[str(modality.name)]
            self._cells[position] = AlignedCells(
                modality.kind,
                open_matrix(query.adata),
                modality.genes,
                modality.scale,
                batch_size=batch_size,
                sample=None if of_modality is None else open_matrix(of_modality),
                label_variance=label_variance,
                expressed=expressed[position],
            )
        self.modalities: tuple[int, ...] = tuple(self._cells)
        masks = [np.zeros(len(modality.genes), dtype=bool) for modality in modalities]
        for position, cells in self._cells.items():
            masks[position] = cells.measured
        measured = np.concatenate(masks)
        self.measured: Tensor | None = None
        if not measured.all():
            self.measured = torch.from_numpy(measured).to(device)

    def __iter__(self) -> Iterator[Minibatch]:
        for batches in zip(*self._cells.values(), strict=True):
            columns = {
                position: torch.from_numpy(batch.values).to(self._device)
                for position, batch in zip(self._cells, batches, strict=True)
            }
            yield Minibatch(
                batches[0].offset, self._join(columns), self.measured, self.modalities
            )

    def _join(self, columns: dict[int, Tensor]) -> Tensor:
        """Put the modalities side by side, with zeros for those that the query lacks."""
        if len(self._modalities) == 1:
            return columns[0]
        any_column = next(iter(columns.values()))
        return torch.cat(
            [
                columns[position]
                if position in columns
                else any_column.new_zeros(len(any_column), len(modality.genes))
                for position, modality in enumerate(self._modalities)
            ],
            dim=1,
        )


def _find_matrices(
    source: ExpressionSource, modalities: list[Modality]
) -> dict[int, _QueryMatrix]:
    """Find the model's modalities in a query, by their positions in the model."""
    if not isinstance(source.data, AnnData):
        return _split(source.data, source.layer or {}, modalities)  # type: ignore[arg-type] # no name of one layer
    position = 0
    if len(modalities) > 1:
        position = _find_modality(source.data, source.use_raw, modalities)
    return {position: _QueryMatrix(source.data, source.layer, "adata")}  # type: ignore[arg-type] # no dict of layers


def _find_modality(adata: AnnData, use_raw: bool, modalities: list[Modality]) -> int:
    """Find the one of the model's modalities whose genes an AnnData has."""
    names = adata.var_names
    if use_raw and adata.raw is not None:
        names = adata.raw.var_names
    n_shared = [int(names.astype(str).isin(m.genes).sum()) for m in modalities]
    matches = [i for i, m in enumerate(modalities) if 2 * n_shared[i] >= len(m.genes)]
    if len(matches) != 1:
        sizes = ", ".join(f"{m.name!r} with {len(m.genes)}" for m in modalities)
        number = "several modalities" if matches else "no modality"
        cure = in_python(
            f", as in mudata.MuData({{{str(modalities[0].name)!r}: adata}})"
        )
        raise ValueError(
            f"The query has half the genes of {number} of the model ({sizes}): say which one it holds{cure}."
        )
    position = matches[0]
    query_logger.info(
        "query: taken as the model's modality %r, to which %d of its %d names belong",
        modalities[position].name,
        n_shared[position],
        len(names),
    )
    return position


def _split(
    mdata: MuData, layers: Mapping[str, str], modalities: list[Modality]
) -> dict[int, _QueryMatrix]:
    """Find the model's modalities in a MuData."""
    model_names = [str(modality.name) for modality in modalities]
    present = [name for name in model_names if name in mdata.mod]
    if not present:
        name = next(iter(mdata.mod), "…")
        cure = in_python(
            f", as in mdata.mod[{model_names[0]!r}] = mdata.mod.pop({name!r}), or pass one as an AnnData"
        )
        raise ValueError(
            f"The query has none of the model's modalities ({list_names(model_names)}), but "
            f"{list_names(list(mdata.mod)) or 'none at all'}: rename one{cure}."
        )
    for name in layers:
        if name not in present:
            raise KeyError(
                f"layer names no modality {name!r} that is read{only_known(name, present)}"
            )
    missing = [name for name in model_names if name not in present]
    if missing:
        lacking = f"the query has no modality {list_names(missing)}"
        query_logger.info("query: %s; labels rest on %s", lacking, list_names(present))
        foreign = [name for name in mdata.mod if name not in model_names]
        if foreign:
            warn_user(
                f"{lacking} and one that is not known ({list_names(foreign)}): rename it, or leave it out."
            )
    indexers = cell_indexers(mdata, present)
    return {
        model_names.index(name): _QueryMatrix(
            reindex_obs(mdata[name], indexers[name]),
            layers.get(name),
            f"mdata[{name!r}]",
        )
        for name in present
    }
