"""Build the masks of a MuData, one for each modality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tosica._logging import logger
from tosica.data._mudata import DEFAULT_MODALITIES, check_mudata, resolve_modalities
from tosica.pp._mask import Mask, compute_mask

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData

    from tosica.pp._mask_params import MaskParams

# The cost of attention grows with the square of the number of tokens.
_MAX_FEATURES = 1000
# Parameters of modalities other than RNA. Their features are few, and so are the groups of these;
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
    """Build a mask for each modality: gene sets for RNA, single features or groups for all others.

    Parameters
    ----------
    mdata
        The reference.
    gene_sets
        Gene sets of RNA.
    params
        Parameters of the mask of RNA. Those of other modalities differ in ``_PANEL``.
    modalities
        Role to name of the modalities; ``None`` for those with default names.
    groups
        Name of a modality other than RNA to groups of its features, in any form of gene sets.
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
        if role == "rna":
            masks[name] = compute_mask(adata, gene_sets, params, key_added)
        elif name in groups:
            masks[name] = compute_mask(adata, groups[name], replace(params, **_PANEL), key_added)
        else:
            features = _single_features(adata, name, role)
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
    others = [name for role, name in roles.items() if role != "rna"]
    if not isinstance(groups, Mapping):
        raise TypeError(
            "groups must be a dict of modality and its groups, such as "
            f"{{'protein': {{'B cell': ['CD19', 'CD20']}}}}, not {type(groups).__name__}."
        )
    unknown = [name for name in groups if name not in others]
    if unknown:
        raise KeyError(
            f"groups names {unknown[0]!r}, but groups are for modalities other than RNA, of which "
            f"there {'is' if len(others) == 1 else 'are'} "
            f"{', '.join(map(repr, others)) or 'none'}."
        )
    return groups


def _single_features(adata: AnnData, name: str, role: str) -> dict[str, list[str]]:
    if adata.n_vars > _MAX_FEATURES:
        raise ValueError(
            f"mdata[{name!r}] has {adata.n_vars} features, too many for one token each (at most "
            f"{_MAX_FEATURES}): pass groups={{{name!r}: ...}}"
            + (", or modalities= if its role is another." if role == "protein" else ".")
        )
    # Duplicated names are refused by compute_mask.
    return {str(feature): [feature] for feature in adata.var_names}
