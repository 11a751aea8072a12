"""What ``setup_anndata`` registers of the mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from scvi.data.fields import BaseAnnDataField

from tosica._validation import check_string

if TYPE_CHECKING:
    from anndata import AnnData


class MaskField(BaseAnnDataField):
    """Which gene is in which gene set, as :func:`tosica.pp.build_mask` leaves it.

    Parameters
    ----------
    registry_key
        Key to register the field under.
    mask_key
        Key of ``varm`` and ``uns``.
    mdata_key
        Name of the modality that the AnnData is, for messages; ``None`` if it is none.
    """

    MIXED_KEY = "mixed_tokens"
    # For each token its column in the mask; -1 for a co-expression module.
    COLUMNS_KEY = "columns"
    # Number of co-expression modules.
    MODULES_KEY = "n_modules"

    def __init__(self, registry_key: str, mask_key: str, mdata_key: str | None = None) -> None:
        super().__init__()
        self._registry_key = registry_key
        self._mask_key = mask_key
        self._name = "adata" if mdata_key is None else f"mdata[{mdata_key!r}]"
        self._call = f"tosica.pp.build_mask({'adata' if mdata_key is None else 'mdata'})"

    @property
    def registry_key(self) -> str:
        """Key that the field is registered under."""
        return self._registry_key

    @property
    def attr_name(self) -> str:
        """Attribute of the AnnData."""
        return "varm"

    @property
    def attr_key(self) -> str:
        """Key in the attribute."""
        return self._mask_key

    @property
    def is_empty(self) -> bool:
        """A model always has a mask."""
        return False

    def validate_field(self, adata: AnnData) -> None:
        """Refuse a mask that is missing, or that is not the one its names belong to."""
        key = self._mask_key
        check_string("mask_key", key)
        if key not in adata.varm or key not in adata.uns:
            raise KeyError(
                f"There is no mask in {self._name}.varm[{key!r}] and {self._name}.uns[{key!r}]: "
                f"call {self._call} first."
            )
        if not isinstance(adata.uns[key], Mapping) or "gene_sets" not in adata.uns[key]:
            raise KeyError(
                f"{self._name}.uns[{key!r}] is no mask of tosica.pp.build_mask: name the key that "
                "it wrote as mask_key."
            )
        n_named, n_columns = len(adata.uns[key]["gene_sets"]), adata.varm[key].shape[1]
        if n_named != n_columns:
            raise ValueError(
                f"{self._name}.varm[{key!r}] has {n_columns} gene sets and "
                f"{self._name}.uns[{key!r}] names {n_named}: they are not from one "
                f"call; call {self._call} again."
            )
        empty = np.flatnonzero(np.diff(sp.csc_matrix(adata.varm[key]).indptr) == 0)
        if len(empty):
            names = [str(adata.uns[key]["gene_sets"][i]) for i in empty[:3]]
            raise ValueError(
                f"{len(empty)} gene sets of {self._name}.varm[{key!r}] have no gene in "
                f"{self._name} ({', '.join(map(repr, names))}{', …' if len(empty) > 3 else ''}): "
                f"genes were left out since; call {self._call} again."
            )

    def register_field(self, adata: AnnData) -> dict[str, Any]:
        """Keep the mask by columns, and what it was made from."""
        super().register_field(adata)
        mask = sp.csc_matrix(adata.varm[self._mask_key])
        mask.sort_indices()
        made = adata.uns[self._mask_key]
        return {
            "gene_sets": np.asarray(made["gene_sets"], dtype=object),
            "n_unannotated": int(made["n_unannotated"]),
            "source": str(made["source"]),
            "organism": str(made["organism"]),
            "indptr": mask.indptr.astype(np.int64),
            "genes": mask.indices.astype(np.int64),
            # A matter of the weights, not of the mask: only a model of the original code has it.
            self.MIXED_KEY: False,
        }

    def transfer_field(
        self, state_registry: dict[str, Any], adata_target: AnnData, **kwargs: Any
    ) -> dict[str, Any]:
        """Accept another reference only with the mask that the model chose its tokens from."""
        state = self.register_field(adata_target)
        columns = state_registry.get(self.COLUMNS_KEY)
        if columns is None:
            columns = np.arange(len(state_registry["gene_sets"]))
        given = _members(state), [str(name) for name in state["gene_sets"]]
        known = _members(state_registry), [str(name) for name in state_registry["gene_sets"]]
        for token, column in enumerate(np.asarray(columns)):
            if column >= 0 and (
                column >= len(given[1])
                or given[1][column] != known[1][token]
                or not np.array_equal(given[0][column], known[0][token])
            ):
                raise ValueError(
                    f"{self._name}.varm[{self._mask_key!r}] is not the mask that the model was "
                    f"trained with ({len(state_registry['gene_sets'])} tokens of "
                    f"{state_registry['source']}): "
                    "build it from the same gene sets with the same parameters."
                )
        return dict(state_registry)

    def get_summary_stats(self, state_registry: dict[str, Any]) -> dict[str, int]:
        """Count the tokens."""
        key = "n_tokens" if self._registry_key == "mask" else f"n_tokens_{self._registry_key}"
        return {key: len(state_registry["gene_sets"])}

    def view_state_registry(self, state_registry: dict[str, Any]) -> None:
        """Nothing that a table would show better than ``repr`` of the model."""


def check_genes_of_mask(adata: AnnData, mask_key: str, name: str = "adata") -> None:
    """Refuse a mask that was built for more genes than there are.

    Parameters
    ----------
    adata
        A reference with a mask.
    mask_key
        Key of ``varm`` and ``uns``.
    name
        What the AnnData is called in messages.

    Raises
    ------
    ValueError
        If genes were left out since the mask was built.
    """
    n_built = adata.uns[mask_key].get("n_genes", adata.n_vars)
    if n_built != adata.n_vars:
        data = "adata" if name == "adata" else "mdata"
        raise ValueError(
            f"{name}.varm[{mask_key!r}] was built for {n_built} genes, and {name} has "
            f"{adata.n_vars}: genes were left out since; call tosica.pp.build_mask({data}) again."
        )


def _members(state: dict[str, Any]) -> list[np.ndarray]:
    """Genes of each token of a mask's state."""
    return np.split(np.asarray(state["genes"]), np.asarray(state["indptr"])[1:-1])
