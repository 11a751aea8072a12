"""Color maps of heatmaps look as those of seaborn, which need not be installed."""

import matplotlib
import numpy as np
import pytest

from tosica.pl import _colormaps


@pytest.mark.parametrize("name", ["vlag", "mako"])
def test_colors_are_those_of_seaborn(name, monkeypatch):
    seaborn = pytest.importorskip("seaborn", reason="scanpy brings it")
    expected = np.array(seaborn.color_palette(name, 256))
    registry = matplotlib.colormaps.__class__({})
    monkeypatch.setattr(matplotlib, "colormaps", registry)
    _colormaps.register_colormaps()
    colors = registry[name](np.linspace(0, 1, 256))[:, :3]
    np.testing.assert_allclose(colors, expected, atol=0.03)
    assert f"{name}_r" in registry
