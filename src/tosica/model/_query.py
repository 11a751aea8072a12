"""Read a query, an AnnData or a MuData, in minibatches as a model's network takes them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import torch
from anndata import AnnData

from tosica._logging import query_logger
from tosica.data import CellMatrix, cell_indexers, load_table, reindex_obs, user_stacklevel
from tosica.gs._gene_names import hint_for_mismatch
from tosica.gs._match_genes import match_genes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mudata import MuData
    from torch import Tensor

    from tosica.data import AlignedCells, CellBatch
    from tosica.model._modalities import Modality


class _Part(NamedTuple):
    """One modality of a query: its position in the model, its data, and how to read these."""

    position: int
    adata: AnnData
    layer: str | None
    name: str


class Minibatch(NamedTuple):
    """Some cells of a query, as the network takes them."""

    start: int
    """Position of the first cell."""
    x: torch.Tensor
    """Normalised expression, ``(n_cells, n_genes)``."""
    measured: torch.Tensor | None
    """Which of the genes the query has, ``(n_genes,)``; ``None`` if it has all."""


class Query:
    """A query's cells in normalized minibatches, with every gene of the model as a column.

    Modalities and names of genes are checked here, values as they are read.
    ``modalities`` has the positions of the query's modalities in the model. ``measured`` says which
    genes the query has, ``(n_genes,)``; it is ``None`` if it has all, and for models of several
    modalities.

    Parameters
    ----------
    data
        The query. An AnnData is taken as the modality that most of its genes belong to.
    modalities
        The model's modalities.
    layer
        Layer to read; for a MuData a dict of modality and layer.
    use_raw
        Read ``raw`` of an AnnData.
    batch_size
        Cells in a minibatch.
    device
        Where minibatches are normalized.
    sample
        If ``data`` is a part of a query, cells from all over that query, by which the scale of the
        expression is recognized.

    Raises
    ------
    ValueError
        If the query has none of the model's modalities, different cells in them, or too few of
        the model's genes.
    TypeError
        If ``layer`` is not of the kind that the query needs.
    """

    def __init__(
        self,
        data: AnnData | MuData,
        modalities: list[Modality],
        *,
        layer: str | Mapping[str, str] | None,
        use_raw: bool,
        batch_size: int,
        device: torch.device,
        sample: AnnData | None = None,
    ) -> None:
        if isinstance(data, AnnData):
            if isinstance(layer, Mapping):
                raise TypeError("layer must be the name of one layer for an AnnData, not a dict.")
            parts = [_of_adata(data, modalities, layer, use_raw)]
        else:
            parts = _of_mdata(data, modalities, layer, use_raw)
        self._modalities = modalities
        self._device = device
        self._cells: dict[int, AlignedCells] = {}
        self._measured: dict[int, Tensor | None] = {}
        # In the order of the model, as the network takes them.
        for part in sorted(parts, key=attrgetter("position")):
            modality = modalities[part.position]
            # The layer of the reference, if the query has it and none was named.
            of_model = (
                None if use_raw or modality.layer not in part.adata.layers else modality.layer
            )
            which = {
                "layer": of_model if part.layer is None else part.layer,
                "use_raw": use_raw,
                "name": part.name,
            }
            cells = modality.kind.align(
                CellMatrix(part.adata, **which),
                modality.genes,
                modality.scale,
                batch_size=batch_size,
                sample=None if sample is None else CellMatrix(sample, **which),
            )
            self._cells[part.position] = cells
            self._measured[part.position] = (
                None if cells.measured.all() else torch.from_numpy(cells.measured).to(device)
            )
        self.modalities: tuple[int, ...] = tuple(self._cells)
        self.measured: Tensor | None = self._measured[0] if len(modalities) == 1 else None

    def __iter__(self) -> Iterator[Minibatch]:
        for batches in zip(*self._cells.values(), strict=True):
            found = {
                position: self._normalize(position, batch)
                for position, batch in zip(self._cells, batches, strict=True)
            }
            first = next(iter(found.values()))
            columns = [
                found[i] if i in found else first.new_zeros(len(first), len(modality.genes))
                for i, modality in enumerate(self._modalities)
            ]
            x = columns[0] if len(columns) == 1 else torch.cat(columns, 1)
            yield Minibatch(batches[0].start, x, self.measured)

    def _normalize(self, position: int, batch: CellBatch) -> Tensor:
        """Normalize cells of the modality at a position in the model, if they are counts."""
        modality = self._modalities[position]
        x = torch.from_numpy(batch.values).to(self._device)
        normalization = modality.kind.normalization(modality.scale)
        if normalization is None or not batch.is_counts:
            return x
        total = None if batch.total is None else torch.from_numpy(batch.total).to(self._device)
        return normalization.normalize(x, total=total, measured=self._measured[position])


def _of_adata(
    adata: AnnData, modalities: list[Modality], layer: str | None, use_raw: bool
) -> _Part:
    """Find the modality of the model that an AnnData holds."""
    if len(modalities) == 1:
        return _Part(0, adata, layer, "adata")
    names = adata.raw.var_names if use_raw and adata.raw is not None else adata.var_names
    names = pd.Index(names.astype(str))
    shared = [int(names.isin(modality.genes).sum()) for modality in modalities]
    if not any(shared):
        # Genes may have other identifiers, such as Ensembl IDs, which are translated later.
        var = None if use_raw else load_table(adata.var)
        shared = [
            match_genes(names, m.genes, var=var, identifiers="map").n_rows
            if m.kind.has_gene_sets
            else 0
            for m in modalities
        ]
    best = max(range(len(modalities)), key=shared.__getitem__)
    if not shared[best]:
        known = ", ".join(f"{m.name!r} with {len(m.genes)}" for m in modalities)
        hint = hint_for_mismatch(
            names, modalities[0].genes, var=None if use_raw else load_table(adata.var)
        )
        raise ValueError(
            f"The query has no gene of any modality of the model ({known})"
            + (f"; {hint}." if hint else ": are its var_names those of genes or antibodies?")
        )
    of_genes = [
        m
        for m, n in zip(modalities, shared, strict=True)
        if m.kind.has_gene_sets and 2 * n >= len(m.genes)
    ]
    if modalities[best] in of_genes and len(of_genes) > 1:
        choices = " and ".join(f"{m.name!r} ({m.kind.title})" for m in of_genes)
        raise ValueError(
            f"The query has genes of the model's modalities {choices}, which its names do not tell "
            "apart: name the one that it holds, as in "
            f"mudata.MuData({{{str(of_genes[0].name)!r}: adata}})."
        )
    query_logger.info(
        "query: taken as the model's modality %r, to which %d of its %d names belong",
        modalities[best].name,
        shared[best],
        len(names),
    )
    return _Part(best, adata, layer, "adata")


def _of_mdata(
    mdata: MuData,
    modalities: list[Modality],
    layer: str | Mapping[str, str] | None,
    use_raw: bool,
) -> list[_Part]:
    """Find the model's modalities in a MuData."""
    if use_raw:
        raise ValueError(
            "use_raw=True is for an AnnData: set each modality to its raw first, as in "
            "mdata.mod['rna'] = mdata['rna'].raw.to_adata()."
        )
    if layer is not None and not isinstance(layer, Mapping):
        raise TypeError(
            f"layer must be a dict of modality and layer for a MuData, such as "
            f"{{'rna': {layer!r}}}, not {layer!r}."
        )
    layers = dict(layer or {})
    wanted = [str(modality.name) for modality in modalities]
    present = [name for name in wanted if name in mdata.mod]
    others = [name for name in mdata.mod if name not in wanted]
    known = ", ".join(map(repr, mdata.mod)) or "none"
    if not present:
        raise ValueError(
            f"The query has none of the model's modalities ({', '.join(map(repr, wanted))}); it "
            f"has {known}: rename one, as in mdata.mod[{wanted[0]!r}] = "
            f"mdata.mod.pop({next(iter(mdata.mod), '…')!r}), or pass one as an AnnData."
        )
    unknown = sorted(set(layers) - set(present))
    if unknown:
        raise KeyError(
            f"layer names {unknown[0]!r}, which is none of the modalities that are read "
            f"({', '.join(map(repr, present))})."
        )
    missing = [name for name in wanted if name not in present]
    if missing:
        lacking = f"the query has no modality {', '.join(map(repr, missing))}"
        query_logger.info("query: %s; labels rest on %s", lacking, ", ".join(map(repr, present)))
        if others:
            warnings.warn(
                f"{lacking} and one that the model does not know ({', '.join(map(repr, others))}): "
                "if they are the same, rename it, otherwise leave it out.",
                UserWarning,
                stacklevel=user_stacklevel(),
            )
    indexers = cell_indexers(mdata, present)
    return [
        _Part(
            wanted.index(name),
            reindex_obs(mdata[name], indexers[name]),
            layers.get(name),
            f"mdata[{name!r}]",
        )
        for name in present
    ]
