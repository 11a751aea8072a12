"""Fixtures of the plots' tests."""

import matplotlib.pyplot as plt
import pytest
from pl.explained_pbmc import explained_pbmc


@pytest.fixture(autouse=True)
def _close_figures():
    # Examples in docstrings leave some, and may come before on the same worker.
    plt.close("all")
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def adata():
    """Cells with results of all that is drawn, not to be changed."""
    return explained_pbmc()
