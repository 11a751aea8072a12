"""Color maps of heatmaps: the diverging vlag and the sequential mako of seaborn."""

from __future__ import annotations

import matplotlib
from matplotlib.colors import LinearSegmentedColormap

# Colors at equal distances along seaborn's maps (BSD License). Between them, colors are
# interpolated, which differs from seaborn's 256 by at most 2 of 255 steps.
_VLAG = """
2369bd 3d74bc 517fbc 6489be 7594c0 87a0c4 97abc9 a7b6ce b7c2d5 c8cfdd d9dce5
e9e9ed f7f4f4 faf2f1 f4e3e2 ecd3d2 e5c3c1 deb2b0 d8a3a0 d29491 cc8582 c57572
be6664 b75756 b04748 a9373b
"""
_MAKO = """
0b0405 160b13 201322 291a31 312142 382a54 3d3266 403b78 414488 3d5195 395d9c
36699f 3574a1 3480a4 348ca7 3497a9 36a2ab 3aaead 42b9ad 4dc4ad 60ceac 7fd7af
9cdeb7 b5e5c4 caedd4 def5e5
"""


def register_colormaps() -> None:
    """Make ``"vlag"``, ``"mako"`` and ``"mako_r"`` known to matplotlib, unless seaborn did."""
    for name, text in (("vlag", _VLAG), ("mako", _MAKO)):
        colors = [f"#{color}" for color in text.split()]
        colormap = LinearSegmentedColormap.from_list(name, colors)
        for candidate in (colormap, colormap.reversed()):
            if candidate.name not in matplotlib.colormaps:
                matplotlib.colormaps.register(candidate)
