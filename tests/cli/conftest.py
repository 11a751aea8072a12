"""Commands in this process, and files that they read."""

from __future__ import annotations

import gc
import os
import warnings
from typing import NamedTuple
from unittest.mock import patch

import pytest
from _cells import TOY_SETS

from tosica import cli
from tosica.gs import write_gmt


class Result(NamedTuple):
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys):
    """Run a command."""

    def call(*arguments):
        capsys.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        assert gc.isenabled()
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture(autouse=True)
def _same_environment():
    """``--threads`` is for the whole process."""
    with patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def write():
    """Write cells as .h5ad or .zarr; anndata announces another default of Zarr each time."""

    def call(adata, path):
        with warnings.catch_warnings(action="ignore"):
            adata.write_zarr(path) if path.suffix == ".zarr" else adata.write_h5ad(path)

    return call


@pytest.fixture(scope="session")
def model_folder(toy_model, tmp_path_factory):
    """The trained model, saved: not to be changed."""
    folder = tmp_path_factory.mktemp("cli") / "model"
    toy_model.save(folder)
    return folder


@pytest.fixture
def annotate(run, model_folder):
    """Run ``tosica annotate`` with the trained model."""

    def call(query, *arguments):
        return run("annotate", query, "--model", model_folder, *arguments)

    return call


@pytest.fixture
def query(toy_query, tmp_path):
    """An .h5ad file of 60 cells."""
    path = tmp_path / "query.h5ad"
    toy_query.write_h5ad(path)
    return path


@pytest.fixture
def reference(toy, tmp_path):
    """An .h5ad file of 90 cells with labels, and beside it ``sets.gmt``."""
    write_gmt(TOY_SETS, tmp_path / "sets.gmt")
    del toy.varm["tosica_mask"], toy.uns["tosica_mask"]
    path = tmp_path / "reference.h5ad"
    toy.write_h5ad(path)
    return path
