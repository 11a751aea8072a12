"""The labels that a model knows, as it left them in a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData


def read_labels(adata: AnnData | MuData, key: str) -> list[str]:
    """All labels of the model in its order; none if ``adata.uns[key]`` does not tell.

    Parameters
    ----------
    adata
        Annotated query.
    key
        ``key_added`` of ``model.annotate``.
    """
    record = adata.uns.get(key)
    labels = record.get("labels", ()) if isinstance(record, Mapping) else ()
    return [str(label) for label in np.ravel(np.asarray(labels, dtype=object))]
