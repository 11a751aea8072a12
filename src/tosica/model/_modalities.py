"""What a model knows of its modalities, and the layout of their genes and tokens.

A model of several modalities has one gene axis and one token axis, and a mask that connects the
genes of a modality with its own tokens only. Names keep their modality in front, as in
``protein:CD19``, because a gene and its protein often have the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from mudata import MuData

from tosica.data import MODALITY_KINDS, CellMatrix, JointMatrix, ModalityKind, ModalityScale, ModalitySlice
from tosica.model._fields import ExpressionField, MaskField
from tosica.module import REGISTRY_KEYS, TokenLayout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anndata import AnnData


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
        return ModalitySlice(start, start + len(self.genes), self.kind.normalization(self.scale, self.scale.kind))

    def of(self, data: AnnData | MuData) -> AnnData:
        """Take the modality from a reference or a query."""
        return data if self.name is None else data[self.name]

    def check_genes(self, data: AnnData | MuData) -> None:
        """Refuse a reference whose genes have changed since it was set up."""
        names = self.of(data).var_names.astype(str)
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
        others += [f"{mask['n_unannotated']} unannotated"] if mask["n_unannotated"] else []
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
        keys = MaskField.COLLECTION_KEYS if has_collection else ("gene_sets", "indptr", "genes")
        names, indptr, genes = (np.asarray(self.mask[key]) for key in keys)
        if not has_collection:
            n_sets = len(names) - int(self.mask["n_unannotated"]) if self.kind.has_gene_sets else 0
            names, indptr = names[:n_sets], indptr[: n_sets + 1]
        genes = genes[: indptr[-1]]
        members = sp.csc_matrix((np.ones(len(genes), np.float32), genes, indptr), shape=(len(self.genes), len(names)))
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


def open_matrix(data: AnnData | MuData, modalities: list[Modality]) -> CellMatrix | JointMatrix:
    """Open the expression of a reference: of the modality without a name, or several side by side."""
    first = modalities[0]
    if first.name is None:
        return CellMatrix(data, layer=first.layer)
    return JointMatrix(data, {str(modality.name): modality.layer for modality in modalities})


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
    names = [name for modality in modalities for name in modality.label(modality.mask["gene_sets"])]
    is_set = [np.arange(n) < n - int(mask["n_unannotated"]) for n, mask in zip(n_tokens, masks, strict=True)]
    order = np.argsort(~np.concatenate(is_set), kind="stable")
    sizes = np.concatenate([np.diff(np.asarray(mask["indptr"])) for mask in masks])
    starts = np.cumsum(sizes) - sizes
    pair_order = np.concatenate([np.arange(starts[token], starts[token] + sizes[token]) for token in order])
    genes = [np.asarray(mask["genes"]) + start for mask, start in zip(masks, first_gene, strict=True)]
    owner, sizes = np.repeat(np.arange(len(modalities)), n_tokens)[order], sizes[order]
    no_dropout = sizes == n_genes[owner]
    if len(modalities) > 1 or not modalities[0].kind.has_gene_sets:
        # Gene dropout hides a token of one gene already; token dropout as well is too much.
        no_dropout |= sizes == 1
    return TokenLayout(
        np.append(0, np.cumsum(sizes)),
        np.concatenate(genes)[pair_order].astype(np.int64),
        tuple(m.slice(int(start)) for m, start in zip(modalities, first_gene, strict=True)),
        owner,
        no_dropout,
        names=tuple(names[token] for token in order),
        var_names=np.array([name for modality in modalities for name in modality.label(modality.genes)], dtype=object),
        n_unannotated=sum(int(mask["n_unannotated"]) for mask in masks),
        mixed=bool(masks[0].get(MaskField.MIXED_KEY, False)),
        pair_order=pair_order,
    )
