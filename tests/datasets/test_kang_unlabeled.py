"""Blood cells without labels: from a folder, and converted from what an R package holds."""

from __future__ import annotations

import _r_files as r
import numpy as np
import pytest

import tosica
from tosica.datasets import _kang_unlabeled, _public
from tosica.io._rds import parse_rda

pytestmark = pytest.mark.data


@pytest.fixture
def cells(shared, monkeypatch):
    monkeypatch.setenv("TOSICA_DATA", str(shared))
    return tosica.datasets.kang_unlabeled()


def test_counts_without_columns(cells):
    assert cells.shape == (1000, 9015)
    assert cells.X.dtype == np.float32
    # The file in the folder has a column that says nothing of the cells.
    assert list(cells.obs) == []
    assert np.isin(tosica.datasets.kang().obs_names, cells.obs_names).sum() == 55


def test_converted_from_the_package(cells, tmp_path):
    counts = r.sparse(cells.X, list(cells.var_names), list(cells.obs_names))
    path = r.write_rda(tmp_path / "x.rda", **{"pbmc.ctrl": counts})
    data = _kang_unlabeled._KANG_UNLABELED
    found = data.convert(parse_rda(path)[data.name])
    assert _public.contents_hash(found) == data.sha256
    assert found.X.dtype == np.float32
