"""The kinds of modality that there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tosica.data._antibodies import Antibodies
from tosica.data._gene_activity import GeneActivity
from tosica.data._rna import RNA

if TYPE_CHECKING:
    from tosica.data._modality_kind import ModalityKind

# In the order in which a model has its modalities: whatever their order in the MuData or in the
# dict, it is the same model.
_KINDS: Final[tuple[ModalityKind[Any], ...]] = (RNA(), Antibodies(), GeneActivity())

MODALITY_KINDS: Final[dict[str, ModalityKind[Any]]] = {kind.role: kind for kind in _KINDS}
