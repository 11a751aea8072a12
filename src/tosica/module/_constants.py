"""Names of the tensors in a minibatch, and sizes of the paper's architecture."""

from __future__ import annotations

from typing import Final


class REGISTRY_KEYS:
    """Keys of the fields that ``setup_anndata`` registers."""

    X_KEY: Final = "X"
    LABELS_KEY: Final = "labels"
    BATCH_KEY: Final = "batch"
    MASK_KEY: Final = "mask"


LAYER_NORM_EPS: Final = 1e-6
MLP_RATIO: Final = 4
