"""What `build_mask` is called with: refused in one sentence, or made plain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, get_args

import numpy as np
from anndata import AnnData
from scipy.sparse import issparse

from tosica._logging import format_thousands
from tosica.gs._match_genes import Identifiers
from tosica.pp._select_gene_sets import Select


def check_adata(adata: AnnData) -> None:
    if not isinstance(adata, AnnData):
        raise TypeError(f"adata must be an AnnData, not {type(adata).__name__}.")
    if adata.n_obs == 0 or adata.n_vars == 0:
        what = "cells" if adata.n_obs == 0 else "genes"
        raise ValueError(
            f"adata has no {what} (shape {adata.n_obs} × {adata.n_vars}): "
            "check the filters that came before."
        )
    if not adata.var_names.is_unique:
        repeated = adata.var_names[adata.var_names.duplicated()].unique()
        examples = " and ".join(map(repr, repeated[:2]))
        raise ValueError(
            f"adata.var_names has {format_thousands(len(repeated))} duplicated "
            f"{'name' if len(repeated) == 1 else 'names'} (such as {examples}): "
            "call adata.var_names_make_unique() first."
        )


def check_key(adata: AnnData, key_added: str) -> None:
    """Refuse to write over anything but an older mask, such as the loadings of a PCA."""
    if not isinstance(key_added, str) or not key_added:
        raise TypeError(f"key_added must be a string that is not empty, not {key_added!r}.")
    taken = []
    if key_added in adata.varm:
        stored = adata.varm[key_added]
        if not (issparse(stored) or isinstance(stored, np.ndarray)) or stored.dtype != bool:
            taken.append(f".varm[{key_added!r}]")
    if key_added in adata.uns:
        stored = adata.uns[key_added]
        if not (isinstance(stored, Mapping) and "gene_sets" in stored):
            taken.append(f".uns[{key_added!r}]")
    if taken:
        raise ValueError(
            f"adata has {' and '.join(taken)} already, which build_mask did not write: "
            "choose another key_added."
        )


def check_params(
    *,
    min_genes: int,
    max_genes: int,
    max_gene_sets: int | None,
    n_unannotated: int,
    mask_ratio: float,
    seed: int,
    select: str,
    max_jaccard: float,
    identifiers: str,
) -> dict[str, Any]:
    """Plain Python numbers of the parameters, or the sentence that says what is wrong."""
    lowest = {
        "min_genes": (min_genes, 1),
        "max_genes": (max_genes, 1),
        "max_gene_sets": (1 if max_gene_sets is None else max_gene_sets, 1),
        "n_unannotated": (n_unannotated, 0),
        "seed": (seed, 0),
    }
    for name, (value, least) in lowest.items():
        if not isinstance(value, Integral):
            raise TypeError(f"{name} must be a whole number, not {value!r}.")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}.")
    if max_genes < min_genes:
        raise ValueError(f"max_genes ({max_genes}) must not be below min_genes ({min_genes}).")
    shares = {"mask_ratio": mask_ratio, "max_jaccard": max_jaccard}
    for name, share in shares.items():
        if not isinstance(share, Real):
            raise TypeError(f"{name} must be a number, not {share!r}.")
        if not (math.isfinite(share) and 0 < share <= 1):
            raise ValueError(f"{name} must be above 0 and at most 1, not {share}.")
    words = {
        "select": (select, get_args(Select)),
        "identifiers": (identifiers, get_args(Identifiers)),
    }
    for name, (word, known) in words.items():
        if word not in known:
            *most, last = map(repr, known)
            raise ValueError(f"{name} must be {', '.join(most)} or {last}, not {word!r}.")
    # Files hold no None: 0 stands for no limit.
    lowest["max_gene_sets"] = (0 if max_gene_sets is None else max_gene_sets, 1)
    return {
        **{name: int(value) for name, (value, _) in lowest.items()},
        **{name: float(share) for name, share in shares.items()},
        **{name: word for name, (word, _) in words.items()},
    }
