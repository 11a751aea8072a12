"""A save that is killed, at any operation, leaves the old model or the new one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import anndata
import pytest
from _killed import killed_at, with_full_disk

from tosica import TOSICA

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anndata import AnnData

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="Windows has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def two(_toy: AnnData, train: Callable[..., TOSICA]) -> list[TOSICA]:
    """Two models and references that differ."""
    models = []
    for seed in range(2):
        reference = _toy.copy()
        reference.obs["seed"] = str(seed)
        models.append(train(reference, seed=seed, max_epochs=1, refit=False))
    return models


@pytest.mark.slow
def test_killed_at_every_operation(two: list[TOSICA], tmp_path: Path) -> None:
    old, new = two
    seen = []
    for operation in range(1, 1000):
        folder = tmp_path / str(operation)
        old.save(folder, save_anndata=True)

        def save(to: Path = folder) -> None:
            new.save(to, overwrite=True, save_anndata=True)

        was_killed = killed_at(save, folder, operation)
        found = TOSICA.load(folder, accelerator="cpu").fingerprint
        reference = anndata.read_h5ad(folder / "adata.h5ad").obs["seed"].iloc[0]
        assert found in (old.fingerprint, new.fingerprint)
        # The model is replaced last.
        assert reference == "1" or found == old.fingerprint
        seen.append(found == new.fingerprint)
        if not was_killed:
            break
    assert seen == sorted(seen)
    assert set(seen) == {False, True}


def test_what_a_killed_first_save_leaves_is_not_in_the_way(two: list[TOSICA], tmp_path: Path) -> None:
    assert killed_at(lambda: two[0].save(tmp_path / "model"), tmp_path / "model", 3)
    two[0].save(tmp_path / "model")
    assert TOSICA.load(tmp_path / "model").fingerprint == two[0].fingerprint


@pytest.mark.parametrize("size", [0, 40_000])
def test_full_disk(two: list[TOSICA], tmp_path: Path, size: int) -> None:
    old, new = two
    old.save(tmp_path, save_anndata=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def save(**given: Any) -> None:
        with pytest.raises(OSError, match="could not be written"):
            new.save(tmp_path, overwrite=True, save_anndata=True)

    with_full_disk(save, size)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
