"""Draw the figure of README and the home page from what `tosica demo` writes.

tosica demo && python docs/demo_figure.py tosica_demo docs/_static/demo.png
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anndata as ad
import matplotlib.pyplot as plt
import scanpy as sc
from PIL import Image, ImageChops

import tosica

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 170
_GAP = 60
_MARGIN = 16


def main(folder: Path, target: Path) -> None:
    """UMAP on the left, heatmap on the right; the strip over the heatmap is the UMAP's legend."""
    query = ad.read_h5ad(folder / "annotated.h5ad")
    _, ax = plt.subplots(figsize=(3.7, 3.5))
    sc.pl.umap(
        query,
        color="tosica_prediction",
        legend_loc=None,
        title="cells by attention",
        size=110,
        ax=ax,
        show=False,
    )
    left = _picture(ax.figure)
    right = _picture(
        tosica.pl.gene_set_heatmap(
            query,
            groupby="tosica_prediction",
            n_gene_sets=2,
            key="tosica_presence",
            show=False,
            return_fig=True,
        )
    )
    height = max(left.height, right.height)
    size = (left.width + _GAP + right.width + 2 * _MARGIN, height + 2 * _MARGIN)
    joined = Image.new("RGB", size, "white")
    joined.paste(left, (_MARGIN, _MARGIN))
    joined.paste(right, (_MARGIN + left.width + _GAP, _MARGIN))
    joined.quantize(256).save(target, optimize=True)


def _picture(figure: Figure) -> Image.Image:
    """What a figure shows, without the white around it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=_DPI, bbox_inches="tight")
    plt.close(figure)
    image = Image.open(buffer).convert("RGB")
    return image.crop(ImageChops.difference(image, Image.new("RGB", image.size, "white")).getbbox())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
