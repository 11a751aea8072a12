"""The network: torch only, no AnnData."""

from tosica.data._normalize import ModalitySlice, center_log_ratio, log_normalize, normalize
from tosica.module._constants import REGISTRY_KEYS
from tosica.module._embedding import MaskedEmbedding
from tosica.module._encoder import Encoder
from tosica.module._mixed_embedding import MixedEmbedding
from tosica.module._module import Annotation, TOSICAModule
from tosica.module._token_layout import TokenLayout

__all__ = [
    "REGISTRY_KEYS",
    "Annotation",
    "Encoder",
    "MaskedEmbedding",
    "MixedEmbedding",
    "ModalitySlice",
    "TOSICAModule",
    "TokenLayout",
    "center_log_ratio",
    "log_normalize",
    "normalize",
]
