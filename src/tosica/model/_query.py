"""Bring a query, an AnnData or a MuData, to what a model's network takes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
import torch
from anndata import AnnData

from tosica._logging import logger
from tosica.data._align import align, user_stacklevel
from tosica.data._align_antibodies import align_antibodies
from tosica.data._mudata import cell_indexers, reindex_obs
from tosica.data._scale import Scale
from tosica.gs._gene_names import hint_for_mismatch
from tosica.gs._match_genes import match_genes
from tosica.module import center_log_ratio, log_normalize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mudata import MuData
    from torch import Tensor

    from tosica.data._align import AlignedBatch
    from tosica.model._modalities import Modality


class _Part(NamedTuple):
    """One modality of a query: its position in the model, its data, and how to read these."""

    position: int
    adata: AnnData
    layer: str | None
    name: str


class Minibatch(NamedTuple):
    """Some cells of a query, as the network takes them.

    ``start`` is the position of the first one, ``x`` their normalised expression,
    ``(n_cells, n_genes)``. ``measured`` says which of the genes the query has, ``(n_genes,)``, and
    is ``None`` if it has all.
    """

    start: int
    x: Tensor
    measured: Tensor | None


class Query:
    """A query's cells in minibatches, normalised, with every gene of the model as a column.

    Which modalities there are, and whether their genes are the model's, is found out here; values
    are looked at as they are read.

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

    Raises
    ------
    ValueError
        If the query has none of the model's modalities, or different cells in them.
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
    ) -> None:
        self._modalities = modalities
        self._use_raw = use_raw
        if isinstance(data, AnnData):
            if isinstance(layer, Mapping):
                raise TypeError("layer must be the name of one layer for an AnnData, not a dict.")
            self._parts = [_of_adata(data, modalities, layer, use_raw)]
        else:
            self._parts = _of_mdata(data, modalities, layer, use_raw)
        # In the order of the model, as the network takes them.
        self.modalities: tuple[int, ...] = tuple(sorted(part.position for part in self._parts))

    def batches(self, batch_size: int, device: torch.device) -> Iterator[Minibatch]:
        """Go through the cells in their order."""
        streams = [self._align(part, batch_size) for part in self._parts]
        for together in zip(*streams, strict=True):
            found = {
                part.position: _normalized(batch, self._modalities[part.position], device)
                for part, batch in zip(self._parts, together, strict=True)
            }
            first = next(iter(found.values()))
            columns = [
                found[i] if i in found else first.new_zeros(len(first), len(modality.genes))
                for i, modality in enumerate(self._modalities)
            ]
            x = columns[0] if len(columns) == 1 else torch.cat(columns, 1)
            # Nothing asks which genes of several modalities were measured.
            measured = together[0].measured if len(self._modalities) == 1 else None
            whole = measured is None or bool(measured.all())
            yield Minibatch(
                together[0].start, x, None if whole else torch.from_numpy(measured).to(device)
            )

    def _align(self, part: _Part, batch_size: int) -> Iterator[AlignedBatch]:
        modality = self._modalities[part.position]
        layer = part.layer
        known = getattr(part.adata, "layers", ())
        if layer is None and not self._use_raw and modality.layer in known:
            layer = modality.layer
        settings: dict[str, Any] = {
            "layer": layer,
            "use_raw": self._use_raw,
            "batch_size": batch_size,
            "name": part.name,
        }
        if isinstance(modality.scale, Scale):
            return align(part.adata, modality.genes, modality.scale, **settings)
        return align_antibodies(part.adata, modality.genes, modality.scale, **settings)


def _normalized(batch: AlignedBatch, modality: Modality, device: torch.device) -> Tensor:
    x = torch.from_numpy(batch.expression).to(device)
    if not batch.counts:
        return x
    if isinstance(modality.scale, Scale):
        total = None if batch.total is None else torch.from_numpy(batch.total).to(device)
        return log_normalize(x, modality.scale.target_sum, total)
    whole = batch.measured.all()
    return center_log_ratio(x, None if whole else torch.from_numpy(batch.measured).to(device))


def _of_adata(
    adata: AnnData, modalities: list[Modality], layer: str | None, use_raw: bool
) -> _Part:
    """Take an AnnData as one of the model's modalities."""
    if len(modalities) == 1:
        return _Part(0, adata, layer, "adata")
    names = adata.raw.var_names if use_raw and adata.raw is not None else adata.var_names
    names = pd.Index(names.astype(str))
    shared = [int(names.isin(modality.genes).sum()) for modality in modalities]
    if not any(shared):
        # Ensembl IDs, say, which are translated later.
        var = None if use_raw else adata.var
        shared = [
            match_genes(names, m.genes, var=var, identifiers="map").n_rows
            if isinstance(m.scale, Scale)
            else 0
            for m in modalities
        ]
    best = max(range(len(modalities)), key=shared.__getitem__)
    if not shared[best]:
        known = ", ".join(f"{m.name!r} with {len(m.genes)}" for m in modalities)
        hint = hint_for_mismatch(names, modalities[0].genes, var=None if use_raw else adata.var)
        raise ValueError(
            f"The query has no gene of any modality of the model ({known})"
            + (f"; {hint}." if hint else ": are its var_names those of genes or antibodies?")
        )
    logger.info(
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
    theirs = ", ".join(map(repr, mdata.mod)) or "none"
    if not present:
        raise ValueError(
            f"The query has none of the model's modalities ({', '.join(map(repr, wanted))}); it "
            f"has {theirs}: rename one, as in mdata.mod[{wanted[0]!r}] = "
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
        logger.info("query: %s; labels rest on %s", lacking, ", ".join(map(repr, present)))
        if others:
            warnings.warn(
                f"{lacking} and one that the model does not know ({', '.join(map(repr, others))}): "
                "if they are the same, rename it, otherwise leave it out.",
                UserWarning,
                stacklevel=user_stacklevel(),
            )
    places = cell_indexers(mdata, present)
    return [
        _Part(
            wanted.index(name),
            reindex_obs(mdata[name], places[name]),
            layers.get(name),
            f"mdata[{name!r}]",
        )
        for name in present
    ]
