"""One model, several modalities: their genes and tokens one behind the other.

A model of several modalities has one gene axis and one token axis, and a mask that connects the
genes of a modality with its own tokens only. Names keep their modality in front, as in
``protein:CD19``, because a gene and its protein often have the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tosica.data._antibodies import AntibodyScale
from tosica.data._scale import Scale
from tosica.model._fields import ExpressionField
from tosica.module import REGISTRY_KEYS, ModalitySlice

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Modality:
    """What a model knows of one modality.

    ``name`` is its key in the MuData, ``None`` for the one modality of a model of an AnnData.
    ``mask`` is the state of its :class:`~tosica.model._fields.MaskField`.
    """

    name: str | None
    genes: pd.Index
    scale: Scale | AntibodyScale
    layer: str | None
    mask: dict[str, Any]

    @property
    def how(self) -> ModalitySlice:
        """What is done to a minibatch of the reference, as a section that starts at 0."""
        stop = len(self.genes)
        if isinstance(self.scale, Scale):
            if self.scale.kind == "counts":
                return ModalitySlice(0, stop, "log1p", self.scale.target_sum)
            return ModalitySlice(0, stop, None)
        return ModalitySlice(0, stop, "clr" if self.scale.kind == "counts" else None)

    def label(self, names: Iterable[str]) -> list[str]:
        """Put the modality in front of names, if it has a name."""
        return [str(n) if self.name is None else f"{self.name}:{n}" for n in names]


def field_keys(role: str) -> tuple[str, str]:
    """Registry keys of a modality's expression and of its mask."""
    return f"{REGISTRY_KEYS.X_KEY}_{role}", f"{REGISTRY_KEYS.MASK_KEY}_{role}"


def read_modalities(registry: dict[str, Any]) -> list[Modality]:
    """Read from a model's registry what it knows of its modalities, in the model's order."""
    fields, arguments = registry["field_registries"], registry["setup_args"]
    if is_joint(registry):
        layers = arguments["layers"] or {}
        known = [
            (name, layers.get(name), *field_keys(role))
            for role, name in arguments["modalities"].items()
        ]
    else:
        known = [(None, arguments["layer"], REGISTRY_KEYS.X_KEY, REGISTRY_KEYS.MASK_KEY)]
    modalities = []
    for name, layer, x_key, mask_key in known:
        state = fields[x_key]["state_registry"]
        scale = state[ExpressionField.SCALE_KEY]
        modalities.append(
            Modality(
                name,
                pd.Index(np.asarray(state["column_names"], dtype=object)),
                AntibodyScale(**scale) if "centred" in scale else Scale(**scale),
                layer,
                fields[mask_key]["state_registry"],
            )
        )
    return modalities


def is_joint(registry: dict[str, Any]) -> bool:
    """Whether a model was set up with a MuData."""
    return registry.get("setup_method_name") == "setup_mudata"


class TokenAxis:
    """The tokens of all modalities: gene sets of each, then unannotated tokens of each.

    Parameters
    ----------
    modalities
        The modalities of a model, in its order.
    """

    def __init__(self, modalities: list[Modality]) -> None:
        self.names: list[str] = []
        self.modality: list[int] = []
        columns: list[np.ndarray] = []
        # Of each token its modality, and where its pairs are among those of the modality's mask.
        self._pairs: list[tuple[int, slice]] = []
        self.n_unannotated = sum(int(m.mask["n_unannotated"]) for m in modalities)
        offsets = np.cumsum([0, *(len(m.genes) for m in modalities)])
        for annotated in (True, False):
            for i, modality in enumerate(modalities):
                mask = modality.mask
                names = modality.label(mask["gene_sets"])
                n_sets = len(names) - int(mask["n_unannotated"])
                for p in range(n_sets) if annotated else range(n_sets, len(names)):
                    self.names.append(names[p])
                    self.modality.append(i)
                    pairs = slice(int(mask["indptr"][p]), int(mask["indptr"][p + 1]))
                    columns.append(np.asarray(mask["genes"][pairs]) + offsets[i])
                    self._pairs.append((i, pairs))
        self.indptr = np.cumsum([0, *(len(genes) for genes in columns)])
        self.genes = np.concatenate(columns).astype(np.int64)
        self.sections = tuple(
            m.how._replace(start=int(start), stop=int(start) + len(m.genes))
            for m, start in zip(modalities, offsets, strict=False)
        )
        sizes = np.array([len(m.genes) for m in modalities])
        n_genes = np.diff(self.indptr)
        self.full = n_genes == sizes[self.modality]
        if len(modalities) > 1 or isinstance(modalities[0].scale, AntibodyScale):
            # Hiding genes hides a token of a single one already; hiding it twice leaves too little.
            self.full |= n_genes == 1

    def join_pairs(self, values: list[np.ndarray | None]) -> np.ndarray:
        """Put one value for each pair of gene and token, of each modality, into one order.

        NaN for modalities without values.
        """
        return np.concatenate(
            [
                np.full(pairs.stop - pairs.start, np.nan, dtype=np.float32)
                if (of_modality := values[i]) is None
                else of_modality[pairs]
                for i, pairs in self._pairs
            ]
        )

    @property
    def n_annotated(self) -> int:
        """Number of gene sets."""
        return len(self.names) - self.n_unannotated
