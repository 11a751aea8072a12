"""Benchmarks are beside the package: they are imported for a test and forgotten after it."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from anndata import AnnData
from scipy.sparse import csr_matrix

import tosica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

# Pages whose benchmark was changed after they were measured. Such a page fails its test, and the
# test fails if it does not, so that a page that was measured anew has to be taken from this list.
NOT_MEASURED: frozenset[str] = frozenset(
    {
        "recipe",
    }
)

_ROOT = Path(__file__).parents[2]
# Their commands make these quiet.
_LOGGERS = ("lightning.pytorch", "tosica", "celltypist", "scvi")


@pytest.fixture
def load_benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a module of ``benchmarks`` by its name."""
    if not (_ROOT / "benchmarks").is_dir():
        pytest.skip("benchmarks are not part of an installed package")
    monkeypatch.syspath_prepend(_ROOT)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    yield lambda name: importlib.import_module(f"benchmarks.{name}")
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        del sys.modules[name]


@pytest.fixture
def pages() -> Path:
    """Folder with what the benchmarks wrote last."""
    return _ROOT / "docs" / "benchmarks"


@pytest.fixture
def measured(
    pages: Path, request: pytest.FixtureRequest
) -> Callable[[str], tuple[dict[str, Any], str]]:
    """Give the numbers and the text of a page."""

    def read(name: str) -> tuple[dict[str, Any], str]:
        if name in NOT_MEASURED:
            reason = f"{name} is to be measured anew"
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
        return json.loads((pages / f"{name}.json").read_text()), (pages / f"{name}.md").read_text()

    return read


@pytest.fixture
def cells(load_benchmark: Callable[[str], ModuleType]) -> AnnData:
    """Three types, each with ten genes of its own, two of one process and two of the other."""
    rng = np.random.default_rng(0)
    sets = tosica.gs.load("human_gobp")
    processes = ("glycolytic process", "T cell receptor signaling pathway")
    genes = list(dict.fromkeys(gene for name in processes for gene in sorted(sets[name])[:30]))
    kind = np.arange(120) % 3
    rate = np.full((len(kind), len(genes)), 0.5)
    for i in range(3):
        rate[np.ix_(kind == i, np.arange(i, 30, 3))] = 5
    adata = AnnData(csr_matrix(rng.poisson(rate).astype(np.float32)))
    adata.var_names = genes
    adata.obs["kind"] = np.array(list("abc"))[kind]
    made: AnnData = load_benchmark("_accuracy_tasks").prepared(adata, "kind")
    return made
