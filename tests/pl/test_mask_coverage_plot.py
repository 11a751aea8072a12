"""The three panels of a mask's coverage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import scanpy as sc
from anndata import AnnData

import tosica

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:The '.*' option is deprecated")


@pytest.fixture(scope="module")
def adata() -> AnnData:
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    tosica.pp.build_mask(adata, max_gene_sets=80)
    return adata


def test_draws_what_the_table_says(adata: AnnData) -> None:
    axes = tosica.pl.mask_coverage(adata, show=False)
    table = tosica.get.mask_coverage(adata)
    curve = axes[0].lines[1].get_ydata()
    np.testing.assert_array_equal(curve, [0, *table["n_covered"]])
    for ax in axes[1:]:
        assert sum(bar.get_height() for bar in ax.patches) == 80
    share = adata.uns["tosica_mask"]["coverage"]
    assert axes[0].get_title() == f"{share:.0%} of 765 genes"
    assert axes[1].get_title() == f"median {table['n_genes'].median():g} genes (dashed)"


def test_into_given_axes(adata: AnnData) -> None:
    figure, grid = plt.subplots(1, 3)
    axes = tosica.pl.mask_coverage(adata, ax=grid)
    assert list(axes) == list(grid)
    assert tosica.pl.mask_coverage(adata, ax=grid, return_fig=True) is figure


def test_saved(adata: AnnData, tmp_path: Path) -> None:
    path = tmp_path / "coverage.png"
    assert tosica.pl.mask_coverage(adata, save=path, title="GO", figsize=(9, 3)) is None
    assert path.read_bytes().startswith(b"\x89PNG")
    assert not plt.get_fignums()


def test_one_set_of_one_gene() -> None:
    adata = AnnData(np.ones((2, 2), dtype=np.float32))
    adata.var_names = ["A", "B"]
    tosica.pp.build_mask(adata, {"s": ["A"]}, min_genes=1)
    axes = tosica.pl.mask_coverage(adata, show=False)
    axes[0].get_figure().canvas.draw()


@pytest.mark.parametrize(
    ("kwargs", "error", "sentence"),
    [
        ({"key": "none"}, KeyError, r"There is no mask in adata\.varm\['none'\]"),
        ({"save": True}, TypeError, "save must be the path of the figure"),
        ({"save": "/no/such/folder/x.png"}, FileNotFoundError, "there is no folder"),
    ],
)
def test_refuses(adata: AnnData, kwargs: dict[str, Any], error: Any, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        tosica.pl.mask_coverage(adata, **kwargs)
    assert not plt.get_fignums()


@pytest.mark.slow
def test_refuses_axes_that_do_not_fit(adata: AnnData) -> None:
    _, grid = plt.subplots(1, 2)
    with pytest.raises(ValueError, match=r"^ax must be 3 axes, one for each panel, not 2\.$"):
        tosica.pl.mask_coverage(adata, ax=grid)
    with pytest.raises(ValueError, match=r"^figsize and title belong to a new figure"):
        tosica.pl.mask_coverage(adata, ax=grid, figsize=(3, 3))
    _, grid = plt.subplots(1, 3)
    for ax in grid:
        ax.remove()
    with pytest.raises(ValueError, match="belongs to no figure any more"):
        tosica.pl.mask_coverage(adata, ax=grid)
