"""Check that a reference was set up, and that its genes are still those that were set up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mudata import MuData
from scvi.data._constants import _SCVI_UUID_KEY

from tosica._validation import check_data

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anndata import AnnData

    from tosica.model._modalities import Modality


def check_set_up(adata: Any, managers: dict[str, Any]) -> None:
    """Refuse data that were not set up as a reference.

    Parameters
    ----------
    adata
        The reference.
    managers
        scvi-tools' managers of the data that were set up, by the identifier of the data.

    Raises
    ------
    TypeError
        If ``adata`` is neither AnnData nor MuData.
    ValueError
        If it was not set up, or is a copy or part of what was.
    """
    check_data(adata, mudata=True)
    name, method = ("mdata", "setup_mudata") if isinstance(adata, MuData) else _OF_ADATA
    call = f"TOSICA.{method}({name}, labels_key=...)"
    manager = managers.get(adata.uns.get(_SCVI_UUID_KEY))
    if manager is None:
        raise ValueError(f"{name} was not set up as a reference: call {call} first.")
    if manager.adata is not adata:
        raise ValueError(
            f"{name} is a copy or a part of the data that were set up: call {call} on it as well."
        )


_OF_ADATA = ("adata", "setup_anndata")


def check_genes(adata: AnnData | MuData, modalities: Iterable[Modality]) -> None:
    """Refuse a reference whose genes have changed since it was set up.

    Parameters
    ----------
    adata
        The reference.
    modalities
        The modalities as they were set up.

    Raises
    ------
    ValueError
        If genes were left out, added, renamed or reordered.
    """
    for modality in modalities:
        data, name = (
            (adata, "adata")
            if modality.name is None
            else (adata[modality.name], f"mdata[{modality.name!r}]")
        )
        names = data.var_names.astype(str)
        if not names.equals(modality.genes):
            what = (
                f"has {len(names)} genes now, and {len(modality.genes)} when it was set up"
                if len(names) != len(modality.genes)
                else "has other genes, or genes in another order, than when it was set up"
            )
            raise ValueError(
                f"{name} {what}: call tosica.pp.build_mask and the setup method again, and make a "
                "new model."
            )
