"""Find the modalities of a MuData by role, and read their cells in one order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import scipy.sparse as sp
from anndata import AnnData
from mudata import MuData

from tosica._text import in_python
from tosica.data._matrix import CellMatrix, check_unique
from tosica.data._modality_kinds import MODALITY_KINDS

DEFAULT_MODALITIES: Final = {"rna": "rna", "protein": "protein"}


def check_mudata(mdata: MuData) -> None:
    """Refuse anything but a MuData that is not a view.

    Raises
    ------
    TypeError
        If ``mdata`` is no MuData.
    ValueError
        If it is a view.
    """
    if not isinstance(mdata, MuData):
        advice = (
            ": call TOSICA.setup_anndata for an AnnData"
            if isinstance(mdata, AnnData)
            else ""
        )
        raise TypeError(f"mdata must be a MuData, not {type(mdata).__name__}{advice}.")
    if mdata.is_view:
        raise ValueError(
            "mdata is a view of another MuData: call mdata = mdata.copy() first."
        )


def resolve_modalities(
    mdata: MuData, modalities: Mapping[str, str] | None
) -> dict[str, str]:
    """Find the modality of a MuData for each role.

    Parameters
    ----------
    mdata
        Where the modalities are.
    modalities
        Role to name; ``None`` for "rna" and "protein" under these names.

    Returns
    -------
    Role to name, in the order of the roles.

    Raises
    ------
    TypeError
        If ``modalities`` is no dict of strings.
    ValueError
        If it is empty, has an unknown role or names a modality twice.
    KeyError
        If ``mdata`` has no modality of that name.
    """
    if modalities is None:
        modalities = DEFAULT_MODALITIES
    if not isinstance(modalities, Mapping) or not all(
        isinstance(name, str) for name in modalities.values()
    ):
        raise TypeError(
            f"modalities must be a dict of role to name, such as {DEFAULT_MODALITIES}, not {modalities!r}."
        )
    names = set(modalities.values())
    if (
        not names
        or len(names) < len(modalities)
        or not set(modalities) <= set(MODALITY_KINDS)
    ):
        raise ValueError(
            f"modalities must name a modality of its own for one or more of the roles, which say how counts are "
            f"normalized: {', '.join(map(repr, MODALITY_KINDS))}, as in {{'protein': 'name in mdata'}}, "
            f"not {dict(modalities)}."
        )
    missing = [name for name in modalities.values() if name not in mdata.mod]
    if missing:
        raise KeyError(
            f"mdata has no modality {missing[0]!r}; its modalities: {', '.join(map(repr, mdata.mod)) or 'none'}. Say "
            f"which is which, as in modalities={{'rna': {next(iter(mdata.mod), 'rna')!r}, …}}."
        )
    return {role: modalities[role] for role in MODALITY_KINDS if role in modalities}


def cell_indexers(mdata: MuData, names: list[str]) -> dict[str, np.ndarray]:
    """Find each cell of a MuData in some of its modalities.

    Parameters
    ----------
    mdata
        Where the modalities are; may be a view.
    names
        Names of the modalities.

    Returns
    -------
    For each name the positions of the cells of ``mdata`` in that modality, shape ``(n_obs,)``.

    Raises
    ------
    ValueError
        If the modalities have different cells, or cells whose names occur twice.
    """
    for name in names:
        remedy = "obs_names_make_unique() of every modality and mdata.update()"
        check_unique(mdata[name].obs_names, f"obs_names of mdata[{name!r}]", remedy)
    indexers = {
        name: mdata[name].obs_names.get_indexer(mdata.obs_names) for name in names
    }
    if all(
        mdata[name].n_obs == mdata.n_obs and (indexer >= 0).all()
        for name, indexer in indexers.items()
    ):
        return indexers
    sizes = ", ".join(f"{name!r} {mdata[name].n_obs}" for name in names)
    raise ValueError(
        f"mdata's modalities have different cells ({sizes}, mdata itself {mdata.n_obs}): keep the cells that are in "
        f"all of them{in_python(', as muon.pp.intersect_obs(mdata) does')}."
    )


def reindex_obs(adata: AnnData, indexer: np.ndarray) -> AnnData:
    """Put the cells of a modality in another order; the same object if that is their order."""
    return adata if np.array_equal(indexer, np.arange(adata.n_obs)) else adata[indexer]


class JointMatrix:
    """The expression matrices of a MuData's modalities side by side.

    Has the methods of :class:`~tosica.data.CellMatrix` that minibatches need.

    Parameters
    ----------
    matrices
        Matrix of each modality, with the same cells.
    """

    def __init__(self, matrices: list[CellMatrix]) -> None:
        self.n_obs = matrices[0].n_obs
        self._matrices = matrices

    def take(self, cells: np.ndarray) -> np.ndarray:
        """Read cells by position, in any order and with repeats, ``(n_cells, n_genes)`` float32."""
        blocks = [matrix.take(cells) for matrix in self._matrices]
        dense = [block.toarray() if sp.issparse(block) else block for block in blocks]
        return np.concatenate(dense, axis=1, dtype=np.float32, casting="unsafe")
