"""Register a MuData: each modality's expression and mask, and labels and batches of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from scvi.data.fields import CategoricalObsField, MuDataWrapper

from tosica._logging import logger
from tosica.data import (
    MODALITY_KINDS,
    cell_indexers,
    check_mudata,
    reindex_obs,
    resolve_modalities,
)
from tosica.model._fields import ExpressionField
from tosica.model._labels_field import LabelsField
from tosica.model._mask_field import MaskField
from tosica.model._modalities import field_keys
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData
    from scvi.data.fields import BaseMuDataWrapperClass

_Expression = MuDataWrapper(ExpressionField)
_Labels = MuDataWrapper(LabelsField)
_Mask = MuDataWrapper(MaskField)
_Categories = MuDataWrapper(CategoricalObsField)


def check_modalities(
    mdata: MuData, modalities: Mapping[str, str] | None, layers: Mapping[str, str] | None
) -> dict[str, str]:
    """Check the arguments of ``setup_mudata``, and get the modalities of a reference by role.

    Raises
    ------
    TypeError, KeyError, ValueError
        As :meth:`tosica.TOSICA.setup_mudata`.
    """
    check_mudata(mdata)
    roles = resolve_modalities(mdata, modalities)
    if layers is not None and not isinstance(layers, Mapping):
        raise TypeError(
            f"layers must be a dict of modality and layer, such as {{'rna': 'counts'}}, not "
            f"{layers!r}."
        )
    unknown = sorted(set(layers or ()) - set(roles.values()))
    if unknown:
        raise KeyError(
            f"layers names {unknown[0]!r}, which is none of the modalities "
            f"({', '.join(map(repr, roles.values()))})."
        )
    cell_indexers(mdata, list(roles.values()))
    return roles


def mudata_fields(
    mdata: MuData,
    roles: Mapping[str, str],
    *,
    labels_key: str,
    unlabeled_category: str | None,
    batch_key: str | None,
    layers: Mapping[str, str] | None,
    mask_key: str,
    min_cells: int,
) -> list[BaseMuDataWrapperClass]:
    """Make the fields of a reference, and check each before the first one writes to it.

    Parameters
    ----------
    mdata
        The reference, not changed here.
    roles
        Role to name of the modalities.
    labels_key, unlabeled_category, batch_key, layers, mask_key, min_cells
        As in :meth:`tosica.TOSICA.setup_mudata`.

    Returns
    -------
    The fields; those that write come last.
    """
    fields = []
    for role, name in roles.items():
        where = f"mdata[{name!r}]"
        x_key, mask_registry_key = field_keys(role)
        layer = (layers or {}).get(name)
        kind = MODALITY_KINDS[role]
        fields += [
            _Expression(x_key, layer, where, kind, mod_key=name, mod_required=True),
            _Mask(mask_registry_key, mask_key, name, mod_key=name, mod_required=True),
        ]
        fields[-2].validate_field(mdata)
        fields[-1].validate_field(mdata)
    mod_key = _find_column(mdata, labels_key, "labels_key", list(roles.values()))
    where = "mdata" if mod_key is None else f"mdata[{mod_key!r}]"
    labels = _Labels(
        REGISTRY_KEYS.LABELS_KEY, labels_key, unlabeled_category, where, min_cells, mod_key=mod_key
    )
    labels.validate_field(mdata)
    mod_key = None
    if batch_key is not None:
        mod_key = _find_column(mdata, batch_key, "batch_key", list(roles.values()))
        of = mdata if mod_key is None else mdata[mod_key]
        if of.obs[batch_key].isna().any():
            where = "mdata" if mod_key is None else f"mdata[{mod_key!r}]"
            raise ValueError(f"{where}.obs[{batch_key!r}] has cells without a batch (NaN).")
    return [*fields, labels, _Categories(REGISTRY_KEYS.BATCH_KEY, batch_key, mod_key=mod_key)]


def log_modalities(roles: Mapping[str, str], registry: Mapping) -> None:
    """Log what each modality holds, and what the model makes of it."""
    for role, name in roles.items():
        kind = MODALITY_KINDS[role]
        state = registry["field_registries"][field_keys(role)[0]]["state_registry"]
        scale = kind.load_scale(state[ExpressionField.SCALE_KEY])
        logger.info(
            "setup_mudata: modality %r (%s) holds %s",
            name,
            role,
            kind.describe_normalization(scale),
        )


def reindex_codes(mdata: MuData, codes: np.ndarray, mod_key: str | None) -> np.ndarray:
    """Put codes that were read from a modality's ``obs`` into the order of the MuData's cells."""
    return codes if mod_key is None else codes[cell_indexers(mdata, [mod_key])[mod_key]]


def _find_column(mdata: MuData, key: str, argument: str, names: list[str]) -> str | None:
    """Find the modality whose ``obs`` has a column; ``None`` if ``mdata.obs`` has it."""
    if key in mdata.obs:
        return None
    found = [name for name in names if key in mdata[name].obs]
    if not found:
        elsewhere = {name: list(mdata[name].obs.columns) for name in names}
        known = ", ".join(map(repr, mdata.obs.columns)) or "none"
        rest = "; ".join(
            f"of mdata[{name!r}].obs: {', '.join(map(repr, columns)) or 'none'}"
            for name, columns in elsewhere.items()
        )
        raise KeyError(
            f"{argument} {key!r} is a column neither of mdata.obs ({known}) nor of a modality's "
            f"obs ({rest}): put it there, as in mdata.obs[{key!r}] = ...."
        )
    first = _texts(mdata, found[0], key)
    for name in found[1:]:
        if not np.array_equal(first, _texts(mdata, name, key)):
            raise ValueError(
                f"{argument} {key!r} is a column of mdata[{found[0]!r}].obs and of "
                f"mdata[{name!r}].obs, and they differ: say which one is meant by "
                f"mdata.obs[{key!r}] = mdata[{found[0]!r}].obs[{key!r}]."
            )
    logger.info("setup_mudata: found %s %r in mdata[%r].obs", argument, key, found[0])
    return found[0]


def _texts(mdata: MuData, name: str, key: str) -> np.ndarray:
    adata: AnnData = reindex_obs(mdata[name], cell_indexers(mdata, [name])[name])
    return adata.obs[key].astype(str).to_numpy()
