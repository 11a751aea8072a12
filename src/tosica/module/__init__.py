"""The network: torch only, no AnnData."""

from tosica.module._embedding import MaskedEmbedding, MixedEmbedding
from tosica.module._module import REGISTRY_KEYS, Annotation, TokenLayout, TOSICAModule
from tosica.module._transformer import MLP_RATIO, Encoder
