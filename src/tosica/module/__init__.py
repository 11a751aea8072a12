"""The network: torch only, no AnnData."""

from tosica.data import ModalitySlice, center_log_ratio, log_normalize, normalize
from tosica.module._embedding import MaskedEmbedding
from tosica.module._mixed_embedding import MixedEmbedding
from tosica.module._module import Annotation, TOSICAModule
from tosica.module._token_layout import REGISTRY_KEYS, TokenLayout
from tosica.module._transformer import MLP_RATIO, Encoder

__all__ = [
    "MLP_RATIO",
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
