"""Data, settings and trained models that tests and examples share; every test gets copies of data.

Models, each trained once a process and not to be changed:

- ``pbmc_model`` of real cells (``pbmc_ref``, ``pbmc_query``; ``pbmc_annotated`` is the query annotated)
- ``toy_model`` of made-up counts (``toy``, ``toy_query``), and ``network_model`` without linear branch
- ``cite_model`` of genes and antibodies (``cite``, ``cite_query``), a MuData

Examples in docstrings may use ``model`` and ``query``, which are ``pbmc_model`` and ``pbmc_annotated``.
``tests/_cells.py`` makes the data and the models.
"""

import io
import os
import re
import sys
import threading
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from _pytest.doctest import DoctestItem
from hypothesis import HealthCheck, settings

# Before torch is imported. Workers of pytest-xdist would otherwise wait for each other's threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "agg")

# The same examples in every run, so that a test fails because of a change and not by chance; and
# no limit of time, which a busy machine would exceed. HYPOTHESIS_PROFILE=random draws others each
# time, as the weekly run of CI does, and remembers those that failed.
_PATIENT = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("fixed", _PATIENT, derandomize=True, database=None)
settings.register_profile("random", _PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

SHARED = Path(__file__).resolve().parents[1] / "shared" / "data"


def pytest_configure(config):
    """Let workers take neighbors in a file, so that a file's fixtures are made once as a rule."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "worksteal"


def _cells():
    """Imported by the first test: the process that hands out tests to others needs no torch."""
    return import_module("_cells")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Small networks are fastest on one thread; scanpy's numba functions set more for torch too."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_seed():
    """Start every test from one seed, and leave none behind."""
    import scvi

    seed, flags = scvi.settings.seed, os.environ.get("XLA_FLAGS", "")
    scvi.settings.seed = 0
    yield
    scvi.settings.seed = seed
    # scvi-tools makes this variable longer each time, until no process can be started with it.
    os.environ["XLA_FLAGS"] = flags


@pytest.fixture(autouse=True)
def _names_of_examples(request, doctest_namespace):
    """Give an example that uses ``model`` or ``query`` without making it the trained model and its query."""
    if isinstance(request.node, DoctestItem):
        code = "".join(example.source for example in request.node.dtest.examples)
        if re.search(r"\b(model|query)\b", code) and not re.search(r"\bmodel = ", code):
            doctest_namespace["model"] = _cells().pbmc_model()
            doctest_namespace["query"] = _cells().annotated_pbmc().copy()


@pytest.fixture(scope="session")
def shared():
    """Folder with the project's own test data, which only developers have."""
    if not SHARED.is_dir():
        pytest.skip("needs the developers' shared/data folder beside the checkout")
    return SHARED


@pytest.fixture
def terminal(monkeypatch):
    """A terminal in the place of stderr, on which progress bars appear at once."""
    from tosica import _progress

    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    # pytest puts its own stderr back between a fixture and the test.
    monkeypatch.setattr(
        _progress, "sys", SimpleNamespace(stderr=stream, modules=sys.modules)
    )
    monkeypatch.setattr(_progress, "DELAY", 0.0)
    return stream


# --------------------------------------------------------------------------- cells and models


@pytest.fixture(scope="session")
def _pbmc():
    return _cells().split_pbmc()


@pytest.fixture
def pbmc_ref():
    """525 log-normalized cells × 765 genes with ``bulk_labels`` and a mask of 30 gene sets."""
    return _cells().split_pbmc()[0].copy()


@pytest.fixture
def pbmc_query():
    """The 175 other cells, without a mask."""
    return _cells().split_pbmc()[1].copy()


@pytest.fixture(scope="session")
def pbmc_model():
    """A trained model of the real cells."""
    return _cells().pbmc_model()


@pytest.fixture
def pbmc_annotated():
    """The 175 other cells, as the model annotates them."""
    return _cells().annotated_pbmc().copy()


@pytest.fixture(scope="session")
def _toy():
    return _cells().toy_reference()


@pytest.fixture
def toy():
    """90 cells × 30 genes of counts, labels ``kind``, batches ``donor``, a mask of 4 gene sets."""
    return _cells().toy_reference().copy()


@pytest.fixture
def toy_query():
    """60 other cells of the same types, without a mask."""
    return _cells().make_toy(60, seed=1)


@pytest.fixture(scope="session")
def toy_model():
    """A model trained on counts until it is sure."""
    return _cells().toy_model()


@pytest.fixture(scope="session")
def network_model():
    """A small model without linear branch."""
    return _cells().network_model()


@pytest.fixture
def save_and_load(tmp_path):
    """Save a model, and load it without its reference."""

    def reload(model):
        model.save(tmp_path / "model", overwrite=True)
        return type(model).load(tmp_path / "model")

    return reload


@pytest.fixture
def cite():
    """90 cells with genes, antibodies, the same labels and batches, and masks."""
    return _cells().cite_reference().copy()


@pytest.fixture
def cite_query():
    """60 other cells of the same types, without masks."""
    return _cells().make_cite(60, seed=1)


@pytest.fixture(scope="session")
def cite_model():
    """A model of both modalities."""
    return _cells().cite_model()


@pytest.fixture(scope="session")
def fast_plan():
    """``plan_kwargs`` with which the small model learns in a few steps."""
    return _cells().FAST_PLAN


@pytest.fixture(scope="session")
def train():
    """Set up, build and train a small model on made-up counts."""
    return _cells().train_toy


# --------------------------------------------------------------------------- downloads


@pytest.fixture
def file_server(monkeypatch):
    """A server on this machine without files."""
    from _server import FileServer

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


# --------------------------------------------------------------------------- comparing


@pytest.fixture(scope="session")
def contents():
    """Write an AnnData down, to be compared before and after."""
    return _cells().contents_of


@pytest.fixture(scope="session")
def unchanged(contents):
    """Fail where a block changes an AnnData."""

    @contextmanager
    def watch(adata):
        original = contents(adata)
        yield
        assert contents(adata) == original

    return watch


@pytest.fixture(scope="session")
def new_keys():
    """What is new after a call; fails if anything that was there before changed or went."""

    def compare(original, current):
        changed = [key for key in original if current.get(key) != original[key]]
        assert changed == []
        return set(current) - set(original)

    return compare
