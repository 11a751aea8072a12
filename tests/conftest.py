"""Data and settings that the tests share."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest

matplotlib.use("Agg")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with the project's own test data, which only developers have."""
    if not SHARED.is_dir():
        pytest.skip("needs the developers' shared/data folder beside the checkout")
    return SHARED
