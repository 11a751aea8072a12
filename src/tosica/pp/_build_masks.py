"""A mask for each modality of a MuData."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anndata import AnnData

from tosica._logging import logger
from tosica.data._mudata import DEFAULT_MODALITIES, check_mudata, resolve_modalities

if TYPE_CHECKING:
    from collections.abc import Callable

    from mudata import MuData

# Tokens attend to each other, so that their number counts twice.
_MOST_FEATURES = 1000


def build_masks(
    build: Callable[..., AnnData | None],
    mdata: MuData,
    gene_sets: Any,
    *,
    modalities: Mapping[str, str] | None,
    groups: Mapping[str, Any] | None,
    copy: bool,
    **params: Any,
) -> MuData | None:
    """Build the mask of every modality: gene sets for RNA, single features or groups for others.

    Parameters
    ----------
    build
        :func:`tosica.pp.build_mask`, which builds each of them.
    mdata
        The reference.
    gene_sets
        Gene sets of RNA.
    modalities
        Role to name of the modalities; ``None`` for those with the usual names that there are.
    groups
        For modalities other than RNA, their name to groups of features, in any form that gene sets
        have.
    copy
        Return a changed copy.
    **params
        Other arguments of :func:`tosica.pp.build_mask`.

    Raises
    ------
    TypeError, KeyError, ValueError
        As :func:`tosica.pp.build_mask`; none of the masks is then written.
    """
    check_mudata(mdata)
    if modalities is None:
        usual = {role: name for role, name in DEFAULT_MODALITIES.items() if name in mdata.mod}
        modalities = usual or None
    roles = resolve_modalities(mdata, modalities)
    groups = _checked(groups, roles)
    key = params["key_added"]
    built: dict[str, AnnData] = {}
    for role, name in roles.items():
        logger.info("build_mask: modality %r (%s)", name, role)
        adata = mdata[name]
        if role == "rna":
            sets, changed = gene_sets, params
        elif name in groups:
            sets, changed = groups[name], params | _OF_A_PANEL
        else:
            sets, changed = _one_each(adata, name, role), params | _OF_A_PANEL | _ONE_EACH
            changed["max_gene_sets"] = adata.n_vars
        # Nothing large is copied.
        built[name] = _bare(adata, key)
        if changed["select"] == "variable":
            built[name].X = adata.X
            if changed["layer"] in adata.layers:
                built[name].layers[changed["layer"]] = adata.layers[changed["layer"]]
        build(built[name], sets, **changed)
        if role != "rna" and name not in groups:
            built[name].uns[key]["source"] = "single features"
    result = mdata.copy() if copy else mdata
    for name, masked in built.items():
        result[name].varm[key] = masked.varm[key]
        result[name].uns[key] = masked.uns[key]
    return result if copy else None


# A panel is small, and so are the groups of what is on it; its names may be those of other genes;
# and how much a gene varies is a matter of RNA.
_OF_A_PANEL = {
    "min_genes": 1,
    "select": "largest",
    "organism": "auto",
    "identifiers": "exact",
    "layer": None,
}
# One token a feature leaves nothing for a token of all of them to add, and nothing to choose from.
_ONE_EACH = {"n_unannotated": 0, "max_jaccard": 1.0}


def _checked(groups: Mapping[str, Any] | None, roles: Mapping[str, str]) -> Mapping[str, Any]:
    if groups is None:
        return {}
    further = [name for role, name in roles.items() if role != "rna"]
    if not isinstance(groups, Mapping):
        raise TypeError(
            "groups must be a dict of modality and its groups, such as "
            f"{{'protein': {{'B cell': ['CD19', 'CD20']}}}}, not {type(groups).__name__}."
        )
    unknown = [name for name in groups if name not in further]
    if unknown:
        raise KeyError(
            f"groups names {unknown[0]!r}, but groups are for modalities other than RNA, of which "
            f"there {'is' if len(further) == 1 else 'are'} "
            f"{', '.join(map(repr, further)) or 'none'}."
        )
    return groups


def _one_each(adata: AnnData, name: str, role: str) -> dict[str, list[str]]:
    if adata.n_vars > _MOST_FEATURES:
        raise ValueError(
            f"mdata[{name!r}] has {adata.n_vars} features, too many for one token each (at most "
            f"{_MOST_FEATURES}): pass groups={{{name!r}: ...}}"
            + (", or modalities= if its role is another." if role == "protein" else ".")
        )
    # build_mask says what is to be done about names that occur twice.
    return {str(feature): [feature] for feature in adata.var_names}


def _bare(adata: AnnData, key: str) -> AnnData:
    """Make an AnnData with the names, and what is stored under the key, of another."""
    bare = AnnData(obs=adata.obs[[]], var=adata.var)
    for name in ("varm", "uns"):
        if key in getattr(adata, name):
            getattr(bare, name)[key] = getattr(adata, name)[key]
    return bare
