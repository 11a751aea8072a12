"""The network: torch only, no AnnData."""

from tosica.module._embedding import MaskedEmbedding, MixedEmbedding
from tosica.module._module import Annotation, TOSICAModule
from tosica.module._token_layout import REGISTRY_KEYS, TokenLayout
from tosica.module._transformer import MLP_RATIO, Encoder
