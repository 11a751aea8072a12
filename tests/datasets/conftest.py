"""A small census that the client of CELLxGENE Census reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def census_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the small census."""
    pytest.importorskip("cellxgene_census", reason="needs the extra census")
    from _small_census import make_census

    return make_census(tmp_path_factory.mktemp("census") / "soma")


@pytest.fixture
def small_census(census_folder, tmp_path, monkeypatch) -> Path:
    """The small census in the place of the public one, and an empty cache."""
    monkeypatch.setenv("TOSICA_CENSUS", str(census_folder))
    monkeypatch.setenv("TOSICA_CACHE", str(tmp_path / "cache"))
    return census_folder
