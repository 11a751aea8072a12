"""Default colours of groups, and colours of lines."""

from __future__ import annotations

import scanpy as sc

# The palette of Okabe and Ito, whose colours can be told apart with any kind of colour vision.
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
GRAY = "#8c8c8c"
# Colour of each group if there are more groups than scanpy's largest palette has colours.
_FALLBACK = "#808080"


def default_palette(n_colors: int) -> list[str]:
    """Colours that scanpy gives to this many groups by default."""
    palettes = sc.pl.palettes
    for palette in (palettes.default_20, palettes.default_28, palettes.default_102):
        if n_colors <= len(palette):
            return list(palette[:n_colors])
    return [_FALLBACK] * n_colors
