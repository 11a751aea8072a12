"""Modalities of a model and the layout of their tokens.

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

from tosica.data import (
    MODALITY_KINDS,
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
    from collections.abc import Iterable

    from tosica._types import AnnOrMuData
    from tosica.data import Normalization


@dataclass(frozen=True)
class Modality:
    """One modality of a model.

    Parameters
    ----------
    kind
        RNA, antibodies or another kind of modality.
    name
        Its key in the MuData; ``None`` for the one modality of an AnnData.
    genes
        Names of its genes or antibodies, in the model's order.
    scale
        How the reference is scaled.
    layer
        Layer of the reference that was read.
    mask
        State of its :class:`~tosica.model._fields.MaskField`.
    """

    kind: ModalityKind[Any]
    name: str | None
    genes: pd.Index
    scale: ModalityScale
    layer: str | None
    mask: dict[str, Any]

    def slice(self, offset: int = 0) -> ModalitySlice:
        """Columns of this modality in a minibatch, from column ``offset`` on."""
        return ModalitySlice(offset, offset + len(self.genes))

    @property
    def normalization(self) -> Normalization | None:
        """Normalization of the reference's matrix; ``None`` if it is normalized."""
        return self.kind.normalization(self.scale)

    def check_reference(self, data: AnnOrMuData) -> None:
        """Refuse a reference whose genes or values have changed since it was set up."""
        adata = data if self.name is None else data[self.name]
        names = adata.var_names.astype(str)
        if not names.equals(self.genes):
            raise ValueError(
                f"{place_of(self.name)} has {len(names)} genes now, and {len(self.genes)} when it was set up, or "
                "others: call tosica.pp.build_mask and the setup method again, and make a new model."
            )
        matrix = CellMatrix(adata, layer=self.layer, name=place_of(self.name))
        self.kind.check_unchanged(matrix, self.scale)

    def describe_tokens(self) -> str:
        """Count gene sets, modules and unannotated tokens, in words."""
        mask = self.mask
        n_modules = int(mask.get(MaskField.MODULES_KEY, 0))
        n_unannotated = int(mask["n_unannotated"])
        n_sets = len(mask["gene_sets"]) - n_unannotated - n_modules
        text = f"{n_sets} of {mask['source']} ({mask['organism']})"
        beside_sets = []
        if n_modules:
            beside_sets.append(f"{n_modules} modules")
        if n_unannotated:
            beside_sets.append(f"{n_unannotated} unannotated")
        if beside_sets:
            text += f", and {' and '.join(beside_sets)}"
        if mask.get(MaskField.MIXED_KEY):
            text += ", mixed in each token"
        return text

    def describe(self) -> list[str]:
        """Describe the tokens and genes in lines for ``repr``."""
        prefix = "" if self.name is None else f"{self.name}, "
        return [
            f"    {prefix}gene sets: {self.describe_tokens()}",
            f"    {prefix}genes: {len(self.genes)}, read as {self.kind.describe(self.scale)}",
        ]

    def gene_sets(self) -> tuple[list[str], sp.csc_matrix]:
        """Names and genes of all gene sets of the mask, tokens or not, ``(n_genes, n_gene_sets)``."""
        if MaskField.COLLECTION_KEYS[0] in self.mask:
            keys = MaskField.COLLECTION_KEYS
            n_sets = len(self.mask[keys[0]])
        else:
            keys = ("gene_sets", "indptr", "genes")
            n_sets = 0
            if self.kind.has_gene_sets:
                n_sets = len(self.mask["gene_sets"]) - int(self.mask["n_unannotated"])
        names, indptr, genes = (np.asarray(self.mask[key]) for key in keys)
        indptr = indptr[: n_sets + 1]
        genes = genes[: indptr[-1]]
        members = sp.csc_matrix(
            (np.ones(len(genes), np.float32), genes, indptr),
            shape=(len(self.genes), n_sets),
        )
        return self.label(names[:n_sets]), members

    def label(self, names: Iterable[str]) -> list[str]:
        """Put the modality in front of names, if it has a name."""
        prefix = "" if self.name is None else f"{self.name}:"
        return [f"{prefix}{name}" for name in names]


def place_of(name: str | None, data: AnnOrMuData | None = None) -> str:
    """Name an AnnData, a MuData or a modality in messages."""
    if name is not None:
        return f"mdata[{name!r}]"
    return "mdata" if isinstance(data, MuData) else "adata"


def field_keys(role: str, name: str | None) -> tuple[str, str]:
    """Registry keys of a modality's expression and mask; those of an AnnData have no role."""
    suffix = "" if name is None else f"_{role}"
    return f"{REGISTRY_KEYS.X_KEY}{suffix}", f"{REGISTRY_KEYS.MASK_KEY}{suffix}"


def read_modalities(registry: dict[str, Any]) -> list[Modality]:
    """Read the modalities of a model from its registry, in the model's order."""
    fields = registry["field_registries"]
    arguments = registry["setup_args"]
    layers = arguments.get("layers") or {None: arguments.get("layer")}
    modalities = []
    for role, name in arguments.get("modalities", {"rna": None}).items():
        kind = MODALITY_KINDS[role]
        x_key, mask_key = field_keys(role, name)
        state = fields[x_key]["state_registry"]
        modalities.append(
            Modality(
                kind=kind,
                name=name,
                genes=pd.Index(np.asarray(state["column_names"], dtype=object)),
                scale=kind.scale_type(**state[ExpressionField.SCALE_KEY]),
                layer=layers.get(name),
                mask=fields[mask_key]["state_registry"],
            )
        )
    return modalities


def open_matrix(
    data: AnnOrMuData, modalities: list[Modality]
) -> CellMatrix | JointMatrix:
    """Open the normalized expression of a reference, of several modalities side by side."""
    if modalities[0].name is None:
        return CellMatrix(
            data, layer=modalities[0].layer, normalization=modalities[0].normalization
        )
    names = [str(modality.name) for modality in modalities]
    indexers = cell_indexers(data, names)
    return JointMatrix(
        [
            CellMatrix(
                reindex_obs(data[name], indexers[name]),
                layer=modality.layer,
                name=place_of(name),
                normalization=modality.normalization,
            )
            for name, modality in zip(names, modalities, strict=True)
        ]
    )


def lay_out_tokens(modalities: list[Modality]) -> TokenLayout:
    """Put the tokens of all modalities on one axis: gene sets of each, then unannotated tokens.

    Parameters
    ----------
    modalities
        The modalities of a model, in its order.
    """
    token_names: list[str] = []
    gene_names: list[str] = []
    # Arrays of each modality, side by side below.
    genes: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    is_unannotated: list[np.ndarray] = []
    slices: list[ModalitySlice] = []
    for modality in modalities:
        mask = modality.mask
        offset = len(gene_names)
        n_tokens = len(mask["gene_sets"])
        n_sets = n_tokens - int(mask["n_unannotated"])
        genes.append(np.asarray(mask["genes"]) + offset)
        sizes.append(np.diff(np.asarray(mask["indptr"])))
        is_unannotated.append(np.arange(n_tokens) >= n_sets)
        slices.append(modality.slice(offset))
        token_names += modality.label(mask["gene_sets"])
        gene_names += modality.label(modality.genes)
    order = np.argsort(np.concatenate(is_unannotated), kind="stable")
    size = np.concatenate(sizes)
    begin = np.cumsum(size) - size
    # Pairs of gene and token, by token in the new order.
    pair_order = np.concatenate(
        [np.arange(begin[token], begin[token] + size[token]) for token in order]
    )
    n_tokens_of = [len(token_sizes) for token_sizes in sizes]
    owner = np.repeat(np.arange(len(modalities)), n_tokens_of)[order]
    size = size[order]
    n_genes = np.array([len(modality.genes) for modality in modalities])
    no_dropout = size == n_genes[owner]
    if len(modalities) > 1 or not modalities[0].kind.has_gene_sets:
        # Gene dropout hides a token of one gene already; token dropout as well is too much.
        no_dropout |= size == 1
    return TokenLayout(
        indptr=np.append(0, np.cumsum(size)),
        genes=np.concatenate(genes)[pair_order].astype(np.int64),
        slices=tuple(slices),
        modality=owner,
        no_dropout=no_dropout,
        names=tuple(token_names[token] for token in order),
        var_names=np.array(gene_names, dtype=object),
        n_unannotated=int(np.concatenate(is_unannotated).sum()),
        mixed=bool(modalities[0].mask.get(MaskField.MIXED_KEY, False)),
        pair_order=pair_order,
    )
