"""Start training from the weights of a gene regulatory network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosica.data import pair_weights
from tosica.model._modalities import field_keys, is_joint
from tosica.model._registry_mixin import RegistryMixin
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    import numpy as np


class NetworkStartMixin(RegistryMixin):
    """First weights from a gene regulatory network."""

    _starts_from_network = False

    def start_from_network(self) -> None:
        """Start training from the weights and signs of a gene regulatory network.

        The token of each gene set with weights starts as the weighted sum of its genes, times a
        random vector: genes of opposite sign move the token in opposite directions. All other
        weights keep their random values, and training changes all of them. Call it before
        :meth:`train`. ``scvi.settings.seed`` makes the result reproducible.

        Raises
        ------
        KeyError
            If the mask was built from gene sets without weights.
        ValueError
            If the model has no reference, or was trained already.

        Examples
        --------
        >>> import pandas as pd
        >>> import scanpy as sc
        >>> import tosica
        >>> ref = sc.datasets.pbmc68k_reduced().raw.to_adata()
        >>> network = pd.DataFrame(
        ...     {
        ...         "source": ["SPI1"] * 4 + ["PAX5"] * 4,
        ...         "target": ["LYZ", "CST3", "FCN1", "CD79A", "CD79A", "CD79B", "CD19", "LYZ"],
        ...         "weight": [1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, -1.0],
        ...     }
        ... )
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):  # so few genes are in a set
        ...     tosica.pp.build_mask(ref, network, min_genes=3)
        >>> tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels")
        >>> model = tosica.TOSICA(ref, embed_dim=16)
        >>> model.start_from_network()
        """
        if self.adata is None:
            raise ValueError(
                "The model was loaded without a reference: pass it to "
                "TOSICA.load(folder, adata=reference)."
            )
        if self.is_trained_:
            raise ValueError(
                "The model was trained already, which its first weights no longer matter to: make "
                "a new one and call start_from_network before train."
            )
        self.module.embedding.start_from(self._network_weights())
        self._starts_from_network = True

    def _network_weights(self) -> np.ndarray:
        """Weights of the pairs of gene and token, in the order of the embedding."""
        registry = self.adata_manager.data_registry
        if not is_joint(self.registry_):
            state = self._modalities[0].mask
            return pair_weights(self.adata, registry[REGISTRY_KEYS.MASK_KEY]["attr_key"], state)
        found: list[np.ndarray | None] = []
        error: KeyError | None = None
        for modality in self._modalities:
            key = registry[field_keys(modality.kind.role)[1]]["attr_key"]
            try:
                found.append(pair_weights(self.adata[modality.name], key, modality.mask))
            except KeyError as missing:
                found.append(None)
                error = missing
        # Antibodies rarely have a network; weights in one modality are enough.
        if error is not None and all(weights is None for weights in found):
            raise error
        return self._tokens.join_pairs(found)
