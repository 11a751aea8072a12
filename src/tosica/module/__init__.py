"""The network: torch only, no AnnData."""

from ._constants import REGISTRY_KEYS
from ._embedding import MaskedEmbedding
from ._encoder import Encoder
from ._mixed_embedding import MixedEmbedding
from ._module import Annotation, TOSICAModule
from ._normalize import Section, center_log_ratio, log_normalize, normalize

__all__ = [
    "REGISTRY_KEYS",
    "Annotation",
    "Encoder",
    "MaskedEmbedding",
    "MixedEmbedding",
    "Section",
    "TOSICAModule",
    "center_log_ratio",
    "log_normalize",
    "normalize",
]
