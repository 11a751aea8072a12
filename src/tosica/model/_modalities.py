"""What a model knows of its modalities, the layout of their tokens, and a query read by them.

A model of several modalities has one gene axis and one token axis, and a mask that connects the
genes of a modality with its own tokens only. Names keep their modality in front, as in
``protein:CD19``, because a gene and its protein often have the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from anndata import AnnData
from mudata import MuData

from tosica._settings import query_logger, warn_user
from tosica._text import list_names, only_known
from tosica.data import (
    MODALITY_KINDS,
    AlignedCells,
    CellMatrix,
    JointMatrix,
    ModalityKind,
    ModalityScale,
    ModalitySlice,
    cell_indexers,
    reindex_obs,
)
from tosica.model._fields import ExpressionField, MaskField
from tosica.module import REGISTRY_KEYS, TokenLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import Tensor

    from tosica.data import ExpressionSource
    from tosica.linear import NoveltyStatistics


@dataclass(frozen=True)
class Modality:
    """What a model knows of one modality.

    ``kind`` is RNA, antibodies or another kind of modality. ``name`` is its key in the MuData, or
    ``None`` for the one modality of a model of an AnnData. ``scale`` is how the reference is
    scaled, ``layer`` where it was read. ``mask`` is the state of its
    :class:`~tosica.model._fields.MaskField`.
    """

    kind: ModalityKind[Any]
    name: str | None
    genes: pd.Index
    scale: ModalityScale
    layer: str | None
    mask: dict[str, Any]

    def slice(self, start: int = 0) -> ModalitySlice:
        """How a minibatch of the reference is normalized, whose columns of this modality begin at ``start``."""
        return ModalitySlice(
            start,
            start + len(self.genes),
            self.kind.normalization(self.scale, self.scale.kind),
        )

    def check_genes(self, data: AnnData | MuData) -> None:
        """Refuse a reference whose genes have changed since it was set up."""
        names = (data if self.name is None else data[self.name]).var_names.astype(str)
        if not names.equals(self.genes):
            raise ValueError(
                f"{place_of(self.name)} has {len(names)} genes now, and {len(self.genes)} when it was set up, or "
                "others: call tosica.pp.build_mask and the setup method again, and make a new model."
            )

    def describe_tokens(self) -> str:
        """Count gene sets, modules and unannotated tokens, in words."""
        mask = self.mask
        n_modules = int(mask.get(MaskField.MODULES_KEY, 0))
        n_sets = len(mask["gene_sets"]) - mask["n_unannotated"] - n_modules
        others = [f"{n_modules} modules"] if n_modules else []
        others += (
            [f"{mask['n_unannotated']} unannotated"] if mask["n_unannotated"] else []
        )
        return (
            f"{n_sets} of {mask['source']} ({mask['organism']})"
            + (f", and {' and '.join(others)}" if others else "")
            + (", mixed in each token" if mask.get(MaskField.MIXED_KEY) else "")
        )

    def describe(self) -> list[str]:
        """Describe the tokens and genes in lines for ``repr``."""
        of = "" if self.name is None else f"{self.name}, "
        return [
            f"    {of}gene sets: {self.describe_tokens()}",
            f"    {of}genes: {len(self.genes)}, read as {self.kind.describe(self.scale)}",
        ]

    def gene_sets(self) -> tuple[list[str], sp.csc_matrix]:
        """Names and genes of all gene sets of the mask, tokens or not, ``(n_genes, n_gene_sets)``."""
        has_collection = MaskField.COLLECTION_KEYS[0] in self.mask
        keys = (
            MaskField.COLLECTION_KEYS
            if has_collection
            else ("gene_sets", "indptr", "genes")
        )
        names, indptr, genes = (np.asarray(self.mask[key]) for key in keys)
        if not has_collection:
            n_sets = (
                len(names) - int(self.mask["n_unannotated"])
                if self.kind.has_gene_sets
                else 0
            )
            names, indptr = names[:n_sets], indptr[: n_sets + 1]
        genes = genes[: indptr[-1]]
        members = sp.csc_matrix(
            (np.ones(len(genes), np.float32), genes, indptr),
            shape=(len(self.genes), len(names)),
        )
        return self.label(names), members

    def label(self, names: Iterable[str]) -> list[str]:
        """Put the modality in front of names, if it has a name."""
        return [str(n) if self.name is None else f"{self.name}:{n}" for n in names]


def place_of(name: str | None, data: AnnData | MuData | None = None) -> str:
    """Name an AnnData, a MuData or a modality in messages."""
    whole = "mdata" if isinstance(data, MuData) else "adata"
    return whole if name is None else f"mdata[{name!r}]"


def field_keys(role: str, name: str | None) -> tuple[str, str]:
    """Registry keys of a modality's expression and mask; those of an AnnData have no role."""
    role = "" if name is None else f"_{role}"
    return f"{REGISTRY_KEYS.X_KEY}{role}", f"{REGISTRY_KEYS.MASK_KEY}{role}"


def read_modalities(registry: dict[str, Any]) -> list[Modality]:
    """Read the modalities of a model from its registry, in the model's order."""
    fields, arguments = registry["field_registries"], registry["setup_args"]
    layers = arguments.get("layers") or {None: arguments.get("layer")}
    modalities = []
    for role, name in arguments.get("modalities", {"rna": None}).items():
        kind = MODALITY_KINDS[role]
        x_key, mask_key = field_keys(role, name)
        state = fields[x_key]["state_registry"]
        modalities.append(
            Modality(
                kind,
                name,
                pd.Index(np.asarray(state["column_names"], dtype=object)),
                kind.scale_type(**state[ExpressionField.SCALE_KEY]),
                layers.get(name),
                fields[mask_key]["state_registry"],
            )
        )
    return modalities


def open_matrix(
    data: AnnData | MuData, modalities: list[Modality]
) -> CellMatrix | JointMatrix:
    """Open the expression of a reference: of the modality without a name, or several side by side."""
    first = modalities[0]
    if first.name is None:
        return CellMatrix(data, layer=first.layer)
    return JointMatrix(
        data, {str(modality.name): modality.layer for modality in modalities}
    )


def lay_out_tokens(modalities: list[Modality]) -> TokenLayout:
    """Put the tokens of all modalities on one axis: gene sets of each, then unannotated tokens.

    Parameters
    ----------
    modalities
        The modalities of a model, in its order.
    """
    masks = [modality.mask for modality in modalities]
    n_genes = np.array([len(modality.genes) for modality in modalities])
    first_gene = np.cumsum(n_genes) - n_genes
    n_tokens = [len(mask["gene_sets"]) for mask in masks]
    names = [
        name
        for modality in modalities
        for name in modality.label(modality.mask["gene_sets"])
    ]
    is_set = [
        np.arange(n) < n - int(mask["n_unannotated"])
        for n, mask in zip(n_tokens, masks, strict=True)
    ]
    order = np.argsort(~np.concatenate(is_set), kind="stable")
    sizes = np.concatenate([np.diff(np.asarray(mask["indptr"])) for mask in masks])
    starts = np.cumsum(sizes) - sizes
    pair_order = np.concatenate(
        [np.arange(starts[token], starts[token] + sizes[token]) for token in order]
    )
    genes = [
        np.asarray(mask["genes"]) + start
        for mask, start in zip(masks, first_gene, strict=True)
    ]
    owner, sizes = np.repeat(np.arange(len(modalities)), n_tokens)[order], sizes[order]
    no_dropout = sizes == n_genes[owner]
    if len(modalities) > 1 or not modalities[0].kind.has_gene_sets:
        # Gene dropout hides a token of one gene already; token dropout as well is too much.
        no_dropout |= sizes == 1
    return TokenLayout(
        np.append(0, np.cumsum(sizes)),
        np.concatenate(genes)[pair_order].astype(np.int64),
        tuple(
            m.slice(int(start)) for m, start in zip(modalities, first_gene, strict=True)
        ),
        owner,
        no_dropout,
        names=tuple(names[token] for token in order),
        var_names=np.array(
            [
                name
                for modality in modalities
                for name in modality.label(modality.genes)
            ],
            dtype=object,
        ),
        n_unannotated=sum(int(mask["n_unannotated"]) for mask in masks),
        mixed=bool(masks[0].get(MaskField.MIXED_KEY, False)),
        pair_order=pair_order,
    )


# ------------------------------------------------------------------------------- a query


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
    statistics
        Those of novelty. The variance of their means between the labels is what a model of one modality asks a
        query for half of.

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
        statistics: NoveltyStatistics | None = None,
    ) -> None:
        if batch_size is None:
            batch_size = (
                _BATCH_SIZE_CPU if device.type == "cpu" else _BATCH_SIZE_ACCELERATOR
            )
        self._modalities = modalities
        self._device = device
        signal = None
        if statistics is not None and len(modalities) == 1:
            signal = statistics.means.astype(np.float64).var(0)
        self._cells: dict[int, AlignedCells] = {}
        self._measured: dict[int, Tensor | None] = {}
        if isinstance(source.data, AnnData):
            which = _find_modality(source, modalities) if len(modalities) > 1 else 0
            parts: Parts = {which: (source.data, source.layer, "adata")}  # type: ignore[dict-item] # no dict of layers
        else:
            parts = _split(source, modalities)
        for position, (adata, layer, name) in parts.items():
            modality = modalities[position]
            # The layer of the reference, if the query has it and none was named.
            if layer is None and not source.use_raw and modality.layer in adata.layers:
                layer = modality.layer
            read = partial(CellMatrix, layer=layer, use_raw=source.use_raw, name=name)
            of_all = None if sample is None else read(sample)
            aligned = partial(
                AlignedCells, modality.kind, read(adata), modality.genes, modality.scale
            )
            cells = aligned(batch_size=batch_size, sample=of_all, signal=signal)
            self._cells[position] = cells
            self._measured[position] = (
                None
                if cells.measured.all()
                else torch.from_numpy(cells.measured).to(device)
            )
        self.modalities: tuple[int, ...] = tuple(self._cells)
        masks = [
            np.full(len(m.genes), False)
            if i not in self._cells
            else self._cells[i].measured
            for i, m in enumerate(modalities)
        ]
        measured = np.concatenate(masks)
        self.measured: Tensor | None = (
            None if measured.all() else torch.from_numpy(measured).to(device)
        )

    def __iter__(self) -> Iterator[Minibatch]:
        for batches in zip(*self._cells.values(), strict=True):
            found: dict[int, Tensor] = {}
            for i, batch in zip(self._cells, batches, strict=True):
                x = torch.from_numpy(batch.values).to(self._device)
                normalization = self._modalities[i].kind.normalization(
                    self._modalities[i].scale
                )
                if normalization is not None and batch.is_counts:
                    total = (
                        None
                        if batch.total is None
                        else torch.from_numpy(batch.total).to(self._device)
                    )
                    x = normalization.normalize(
                        x, total=total, measured=self._measured[i]
                    )
                found[i] = x
            first = found[self.modalities[0]]
            columns = [
                found[i]
                if i in found
                else first.new_zeros(len(first), len(modality.genes))
                for i, modality in enumerate(self._modalities)
            ]
            x = columns[0] if len(columns) == 1 else torch.cat(columns, 1)
            yield Minibatch(batches[0].start, x, self.measured, self.modalities)


Parts = dict[int, tuple[AnnData, str | None, str]]


def _find_modality(source: ExpressionSource, modalities: list[Modality]) -> int:
    """Find the one of the model's modalities whose genes an AnnData has."""
    adata = source.data
    names = (
        adata.raw.var_names
        if source.use_raw and adata.raw is not None
        else adata.var_names
    )
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
        *(modalities[best].name, shared[best], len(names)),
    )
    return best


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
            raise KeyError(
                f"layer names no modality {name!r} that is read{only_known(name, present)}"
            )
    missing = [name for name in wanted if name not in present]
    others = [name for name in mdata.mod if name not in wanted]
    if missing:
        lacking = f"the query has no modality {list_names(missing)}"
        query_logger.info("query: %s; labels rest on %s", lacking, list_names(present))
        if others:
            warn_user(
                f"{lacking} and one that is not known ({list_names(others)}): rename it, or leave it out."
            )
    indexers = cell_indexers(mdata, present)
    return {
        wanted.index(name): (
            reindex_obs(mdata[name], indexers[name]),
            layers.get(name),
            f"mdata[{name!r}]",
        )
        for name in present
    }
