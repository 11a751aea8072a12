"""Build the masks of a MuData, one for each modality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tosica._logging import logger
from tosica.data import DEFAULT_MODALITIES, MODALITY_KINDS, check_mudata, resolve_modalities
from tosica.pp._mask import Mask, compute_mask

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData

    from tosica.pp._mask_params import MaskParams

# The cost of attention grows with the square of the number of tokens.
_MAX_FEATURES = 1000
# Parameters of modalities without gene sets. Their features are few, and so are their groups;
# a feature may have the name of another gene; and variability is defined for RNA.
_PANEL: dict[str, Any] = {
    "min_genes": 1,
    "select": "largest",
    "organism": "auto",
    "identifiers": "exact",
    "layer": None,
}
# With one token per feature, a fully connected token would add nothing, and no set is similar.
_SINGLE: dict[str, Any] = {"n_unannotated": 0, "max_jaccard": 1.0}


def build_masks(
    mdata: MuData,
    gene_sets: Any,
    params: MaskParams,
    *,
    modalities: Mapping[str, str] | None,
    groups: Mapping[str, Any] | None,
    key_added: str,
    copy: bool,
) -> MuData | None:
    """Build a mask for each modality: gene sets for genes, single antibodies or groups of them.

    Parameters
    ----------
    mdata
        The reference.
    gene_sets
        Gene sets of RNA and of gene activity.
    params
        Parameters of the mask of genes. Those of antibodies differ in ``_PANEL``.
    modalities
        Role to name of the modalities; ``None`` for those with default names.
    groups
        Name of a modality without gene sets to groups of its features, in any form of gene sets.
    key_added
        Key of ``.varm`` and ``.uns`` of each modality.
    copy
        Return a changed copy.

    Raises
    ------
    TypeError, KeyError, ValueError
        As :func:`tosica.pp.build_mask`. No mask is written then.
    """
    check_mudata(mdata)
    if modalities is None:
        found = {role: name for role, name in DEFAULT_MODALITIES.items() if name in mdata.mod}
        modalities = found or None
    roles = resolve_modalities(mdata, modalities)
    groups = _check_groups(groups, roles)
    masks: dict[str, Mask] = {}
    for role, name in roles.items():
        logger.info("build_mask: modality %r (%s)", name, role)
        adata = mdata[name]
        kind = MODALITY_KINDS[role]
        kind.check_names(adata.var_names, f"mdata[{name!r}]")
        if kind.has_gene_sets:
            # The layer is that of RNA; gene activity may lack it.
            of_rna = role == "rna" or "rna" not in roles
            keeps_layer = of_rna or params.layer in adata.layers
            of_genes = params if keeps_layer else replace(params, layer=None)
            masks[name] = compute_mask(adata, gene_sets, of_genes, key_added)
        elif name in groups:
            masks[name] = compute_mask(adata, groups[name], replace(params, **_PANEL), key_added)
        else:
            features = _single_features(adata, name)
            single = replace(params, **_PANEL, **_SINGLE, max_gene_sets=len(features) or None)
            masks[name] = compute_mask(adata, features, single, key_added)
            masks[name].metadata["source"] = "single features"
    result = mdata.copy() if copy else mdata
    for name, mask in masks.items():
        mask.write(result[name], key_added)
    return result if copy else None


def _check_groups(groups: Mapping[str, Any] | None, roles: Mapping[str, str]) -> Mapping[str, Any]:
    if groups is None:
        return {}
    without_sets = [n for role, n in roles.items() if not MODALITY_KINDS[role].has_gene_sets]
    if not isinstance(groups, Mapping):
        raise TypeError(
            "groups must be a dict of modality and its groups, such as "
            f"{{'protein': {{'B cell': ['CD19', 'CD20']}}}}, not {type(groups).__name__}."
        )
    unknown = [name for name in groups if name not in without_sets]
    if unknown:
        raise KeyError(
            f"groups names {unknown[0]!r}, but groups are for modalities without gene sets "
            f"(antibodies), here {', '.join(map(repr, without_sets)) or 'none'}."
        )
    return groups


def _single_features(adata: AnnData, name: str) -> dict[str, list[str]]:
    if adata.n_vars > _MAX_FEATURES:
        raise ValueError(
            f"mdata[{name!r}] has {adata.n_vars} features, too many for one token each (at most "
            f"{_MAX_FEATURES}): pass groups={{{name!r}: ...}}, or modalities= if its role is "
            "another."
        )
    # Duplicated names are refused by compute_mask.
    return {str(feature): [feature] for feature in adata.var_names}
