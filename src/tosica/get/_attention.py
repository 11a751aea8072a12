"""Attention and contributions as an AnnData and as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
from anndata import AnnData

from tosica._annotated import read_attention, resolve_key
from tosica._groups import read_groups
from tosica._statistics import GroupMoments, group_moments
from tosica._validation import check_choice

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray


def attention(adata: AnnData, *, key: str = "tosica") -> AnnData:
    """Attention as an AnnData of cells × gene sets, for scanpy's functions.

    The attention is that of the class token in the attention rollout of :cite:t:`Chen2023`, without
    the class token itself and without unannotated tokens.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated. It is not changed.
    key
        ``key_added`` of ``model.annotate``.

    Returns
    -------
    A new AnnData that shares no memory with ``adata``:

    ``.X``
        Attention, ``(n_obs, n_gene_sets)`` float32, a share. A row sums to less than 1, because the
        class token also attends to itself and to unannotated tokens.
    ``.var_names``
        Gene set names.
    ``.var["modality"]``
        Modality of each gene set, if the model has several.
    ``.obs``, ``.obsm``
        Copies. The attention is left out of ``obsm``, because it is ``X``.
    ``.uns``
        The colours (``*_colors``).

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If ``adata`` was not annotated under ``key``, or part of what that wrote is missing.
    ValueError
        If attention and names differ in number, or the attention holds NaN or infinity.

    See Also
    --------
    tosica.get.mean_attention : one row a group of cells.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> by_gene_set = tosica.get.attention(adata)
    >>> by_gene_set.shape
    (700, 2)
    >>> list(by_gene_set.var_names)
    ['B cell activation', 'phagocytosis']
    >>> sc.get.obs_df(by_gene_set, ["phase", "phagocytosis"]).shape
    (700, 2)

    Likewise ``sc.pl.umap(by_gene_set, color="phagocytosis")`` draws attention on the UMAP.
    """
    values, gene_sets = read_attention(adata, key)
    uns: dict[str, Any] = {
        name: np.array(value) for name, value in adata.uns.items() if str(name).endswith("_colors")
    }
    # A MuData stores in obsm which cells each modality has.
    left_out = {f"X_{key}", *getattr(adata, "mod", ())}
    return AnnData(
        X=np.array(values, dtype=np.float32),
        obs=adata.obs.copy(),
        var=pd.DataFrame(_modalities(adata, key), index=pd.Index(gene_sets)),
        obsm={name: adata.obsm[name].copy() for name in adata.obsm if name not in left_out},
        uns=uns,
    )


def _modalities(adata: AnnData, key: str) -> dict[str, Any] | None:
    """Column of var with the modality of each gene set, if the model has several."""
    if "modalities" not in adata.uns[key]:
        return None
    return {"modality": pd.Categorical(np.asarray(adata.uns[key]["modalities"]).astype(str))}


Scale: TypeAlias = Literal["z_score", "min_max"]


def mean_attention(
    adata: AnnData,
    groupby: str,
    *,
    scale: Scale | None = None,
    key: str | None = None,
) -> pd.DataFrame:
    """Average the contribution of each gene set, or the attention to it, in each group of cells.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated. It is not changed.
    groupby
        Column of ``adata.obs`` with the groups, such as ``"tosica_prediction"``.
    scale
        How to make gene sets comparable whose values differ in size:

        ``None``
            The means as they are.
        ``"z_score"``
            Each gene set is z-scored over all cells (mean 0, standard deviation 1) before the
            groups are averaged: 1 means that the group's mean lies one standard deviation above the
            mean of all cells. A gene set that is the same in all cells becomes 0.
        ``"min_max"``
            Each gene set's means run from 0 (lowest group) to 1 (highest group). A gene set that
            is the same in all groups becomes 0.
    key
        What to average. ``None``: the presence that :func:`tosica.tl.attribute` wrote
        (``"tosica_presence"``) or, without it, the attention that ``model.annotate`` wrote
        (``"tosica"``); a log line says which.

    Returns
    -------
    DataFrame, ``(n_groups, n_gene_sets)`` float64. Groups are in the order of their categories;
    categories without cells are left out.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or ``groupby`` is missing.
    TypeError
        If ``groupby`` cannot be read as groups.
    ValueError
        If cells have no group, ``scale`` is unknown, attention and names differ in number, the
        attention holds NaN or infinity, or the presence was written by another model than the
        annotation.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> adata.obsm["X_tosica"] = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> tosica.get.mean_attention(adata, "phase").round(2)
           B cell activation  phagocytosis
    phase
    G1                  0.52          0.52
    G2M                 0.48          0.44
    S                   0.46          0.53
    """
    check_choice("scale", scale, get_args(Scale), optional=True)
    values, gene_sets = read_attention(adata, resolve_key(adata, key))
    groups = read_groups(adata, groupby)
    moments = group_moments(values, groups)
    return pd.DataFrame(
        _scaled(moments, scale),
        index=pd.Index(groups.categories, name=groupby),
        columns=pd.Index(gene_sets),
    )


def _scaled(moments: GroupMoments, scale: Scale | None) -> NDArray[np.float64]:
    if scale is None:
        return moments.mean
    if scale == "z_score":
        offset, width = moments.mean_of_cells, np.sqrt(moments.variance_of_cells)
    else:
        offset, width = moments.mean.min(axis=0), np.ptp(moments.mean, axis=0)
    # Rounding leaves a tiny width where all values are equal, and division by it would be noise.
    is_constant = width <= 1e-9 * np.abs(offset)
    scaled = (moments.mean - offset) / np.where(is_constant, 1.0, width)
    return np.where(is_constant, 0.0, scaled)
