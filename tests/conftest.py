"""Data, settings, made-up cells and trained models that the tests share; every test gets copies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before torch is imported. Workers of pytest-xdist would otherwise wait for each other's threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
import scvi
import torch
from anndata import AnnData
from hypothesis import HealthCheck, settings

import tosica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

matplotlib.use("Agg")

# The same examples in every run, so that a test fails because of a change and not by chance; and
# no limit of time, which a busy machine would exceed. HYPOTHESIS_PROFILE=random draws others each
# time, as the weekly run of CI does, and remembers those that failed.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("fixed", _PATIENT, derandomize=True, database=None)
settings.register_profile("random", _PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

TOY_SETS = {
    "alpha": [f"G{i}" for i in range(8)],
    "beta": [f"G{i}" for i in range(8, 16)],
    "gamma": [f"G{i}" for i in range(16, 24)],
    "mixed": [f"G{i}" for i in range(4, 20, 3)],
}
# Little is hidden of so few genes and sets, so that a few steps are enough.
FAST_PLAN = {"lr": 1e-2, "warmup": 0.1, "gene_dropout": 0.1, "token_dropout": 0.0}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Small networks are fastest on one thread; scanpy's numba functions set more for torch too."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_seed() -> Iterator[None]:
    """Start every test from one seed, and leave none behind."""
    before, flags = scvi.settings.seed, os.environ.get("XLA_FLAGS", "")
    scvi.settings.seed = 0
    yield
    scvi.settings.seed = before
    # scvi-tools makes this variable longer each time, until no process can be started with it.
    os.environ["XLA_FLAGS"] = flags


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with the project's own test data, which only developers have."""
    if not SHARED.is_dir():
        pytest.skip("needs the developers' shared/data folder beside the checkout")
    return SHARED


# --------------------------------------------------------------------------- real cells


@pytest.fixture(scope="session")
def _pbmc() -> tuple[AnnData, AnnData]:
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    tosica.pp.build_mask(adata, max_gene_sets=30)
    held = np.zeros(adata.n_obs, dtype=bool)
    held[np.argsort(adata.obs["bulk_labels"].cat.codes, kind="stable")[::4]] = True
    reference = adata[~held].copy()
    query = adata[held].copy()
    del query.varm["tosica_mask"], query.uns["tosica_mask"]
    return reference, query


@pytest.fixture
def pbmc_ref(_pbmc: tuple[AnnData, AnnData]) -> AnnData:
    """525 log-normalised cells × 765 genes with ``bulk_labels`` and a mask of 30 gene sets."""
    return _pbmc[0].copy()


@pytest.fixture
def pbmc_query(_pbmc: tuple[AnnData, AnnData]) -> AnnData:
    """The 175 other cells, without a mask."""
    return _pbmc[1].copy()


@pytest.fixture(scope="session")
def pbmc_model(_pbmc: tuple[AnnData, AnnData]) -> tosica.TOSICA:
    """A trained model of the real cells, shared by all tests: not to be changed."""
    reference = _pbmc[0].copy()
    tosica.TOSICA.setup_anndata(reference, labels_key="bulk_labels", batch_key="phase")
    scvi.settings.seed = 0
    model = tosica.TOSICA(reference, embed_dim=16)
    model.train(max_epochs=12, accelerator="cpu", enable_progress_bar=False, plan_kwargs={"lr": 1e-2})
    return model


# --------------------------------------------------------------------------- made-up counts


def make_toy(n_obs: int = 90, *, seed: int = 0, n_genes: int = 30) -> AnnData:
    """Counts of three types, "a", "b" and "c": each expresses eight genes of its own."""
    rng = np.random.default_rng(seed)
    kind = np.arange(n_obs) % 3
    rate = np.full((n_obs, n_genes), 0.7)
    for i in range(3):
        rate[kind == i, 8 * i : 8 * (i + 1)] = 4
    adata = AnnData(sp.csr_matrix(rng.poisson(rate).astype(np.float32)))
    adata.obs_names = [f"cell{i}" for i in range(n_obs)]
    adata.var_names = [f"G{i}" for i in range(n_genes)]
    adata.obs["kind"] = pd.Categorical(np.array(["a", "b", "c"])[kind])
    adata.obs["donor"] = pd.Categorical(np.array(["d1", "d2"])[np.arange(n_obs) // 3 % 2])
    adata.uns["kind_colors"] = ["#aa0000", "#00bb00", "#0000cc"]
    return adata


def train_toy(
    adata: AnnData,
    *,
    seed: int = 0,
    setup: dict[str, Any] | None = None,
    linear: bool = True,
    modules: bool = True,
    **train: Any,
) -> tosica.TOSICA:
    """Set up, build and train a model on counts as :func:`make_toy` makes them."""
    tosica.TOSICA.setup_anndata(adata, labels_key="kind", **(setup or {}))
    scvi.settings.seed = seed
    model = tosica.TOSICA(adata, embed_dim=16, n_heads=2, linear=linear, modules=modules)
    train = {"max_epochs": 3, "batch_size": 16, **train}
    model.train(accelerator="cpu", enable_progress_bar=False, **train)
    return model


@pytest.fixture(scope="session")
def _toy() -> AnnData:
    adata = make_toy()
    tosica.pp.build_mask(adata, TOY_SETS)
    return adata


@pytest.fixture
def toy(_toy: AnnData) -> AnnData:
    """90 cells × 30 genes of counts, labels ``kind``, batches ``donor``, a mask of 4 gene sets."""
    return _toy.copy()


@pytest.fixture
def toy_query() -> AnnData:
    """60 other cells of the same types, without a mask."""
    return make_toy(60, seed=1)


@pytest.fixture(scope="session")
def toy_model(_toy: AnnData) -> tosica.TOSICA:
    """A model trained on counts until it is sure, shared by all tests: not to be changed."""
    return train_toy(_toy.copy(), max_epochs=15, plan_kwargs=FAST_PLAN)


@pytest.fixture(scope="session")
def fast_plan() -> dict[str, float]:
    """``plan_kwargs`` with which the small model learns in a few steps."""
    return FAST_PLAN


@pytest.fixture(scope="session")
def train() -> Callable[..., tosica.TOSICA]:
    """Set up, build and train a small model on made-up counts."""
    return train_toy


# --------------------------------------------------------------------------- comparing


def flat(value: Any, path: str, out: dict[str, Any]) -> None:
    """Write down a value of an AnnData so that ``==`` compares types, shapes and bytes."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            flat(item, f"{path}/{key}", out)
    elif isinstance(value, pd.DataFrame):
        out[f"{path}.index"] = (str(value.index.dtype), list(map(str, value.index)))
        for key in value.columns:
            flat(value[key], f"{path}/{key}", out)
    elif isinstance(value, pd.Series):
        categories = list(value.cat.categories) if hasattr(value, "cat") else None
        ordered = value.cat.ordered if hasattr(value, "cat") else None
        out[path] = (str(value.dtype), categories, ordered, repr(value.tolist()))
    elif sp.issparse(value):
        parts = (value.data, value.indices, value.indptr)
        out[path] = (value.format, str(value.dtype), value.shape, *(p.tobytes() for p in parts))
    elif hasattr(value, "to_memory"):
        flat(value.to_memory(), path, out)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        array = np.asarray(value if isinstance(value, np.ndarray | np.generic) else value[()])
        held = repr(array.tolist()) if array.dtype.hasobject else array.tobytes()
        out[path] = (str(array.dtype), array.shape, held)
    else:
        out[path] = (type(value).__name__, repr(value))


def contents_of(adata: AnnData) -> dict[str, Any]:
    """Everything in an AnnData by its place, such as ``obs/kind`` or ``uns/tosica_mask/source``."""
    out: dict[str, Any] = {}
    if adata.n_vars and adata.n_obs:
        flat(adata.X, "X", out)
    for name in ("obs", "var", "layers", "obsm", "varm", "obsp", "varp", "uns"):
        flat(getattr(adata, name), name, out)
    if adata.raw is not None:
        flat(adata.raw.X, "raw/X", out)
        flat(adata.raw.var, "raw/var", out)
    return out


@pytest.fixture(scope="session")
def contents() -> Callable[[AnnData], dict[str, Any]]:
    """Write an AnnData down, to be compared before and after."""
    return contents_of


@pytest.fixture(scope="session")
def new_keys() -> Callable[[dict[str, Any], dict[str, Any]], set[str]]:
    """What is new after a call; fails if anything that was there before changed or went."""

    def compare(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
        changed = [key for key in before if after.get(key) != before[key]]
        assert changed == []
        return set(after) - set(before)

    return compare
