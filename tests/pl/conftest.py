"""Fixtures of the plots' tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import pytest
from pl.explained_pbmc import explained_pbmc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anndata import AnnData


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def adata() -> AnnData:
    """Cells with results of all that is drawn, not to be changed."""
    return explained_pbmc()
