"""One measurement of the engine, in its own process to measure its memory.

``python -m benchmarks._engine_runs NAME '{"path": ..., ...}'`` prints one line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anndata as ad
import lightning.pytorch as pl
import numpy as np
import scvi
import torch

import tosica
from benchmarks._original import BATCH as LITERAL_BATCH
from benchmarks._original import DROPOUTS, SGD, LiteralTOSICA, oversampled

if TYPE_CHECKING:
    from collections.abc import Callable

_WARM_UP_STEPS = 3


def peak_mb() -> float:
    """Peak resident memory of this process."""
    # getrusage includes the memory of the parent process.
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else []:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    units_per_mb = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units_per_mb


# --------------------------------------------------------------------------- the literal model


def literal(reference: ad.AnnData) -> LiteralTOSICA:
    """The published model for this mask, with the dropout of the authors' code."""
    return LiteralTOSICA(
        np.asarray(reference.varm["tosica_mask"].toarray(), dtype=np.float32),
        reference.obs["cell_type"].nunique(),
        **DROPOUTS,
    )


def balanced_cells(reference: ad.AnnData, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense log-normalised cells and their labels, oversampled."""
    codes = reference.obs["cell_type"].astype("category").cat.codes.to_numpy()
    drawn = oversampled(codes, seed)
    counts = reference.X.toarray()
    x = np.log1p(counts * (1e4 / counts.sum(1, keepdims=True)))
    return torch.from_numpy(x[drawn]), torch.from_numpy(codes[drawn].astype(np.int64))


def literal_train(path: str, seconds: float, seed: int, **_: Any) -> dict[str, float]:
    """Train like the authors' code: batches of 8 dense cells, SGD with momentum."""
    reference = prepared(path)
    x, y = balanced_cells(reference, seed)
    model = literal(reference)
    optimizer = torch.optim.SGD(model.parameters(), **SGD)
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(data, LITERAL_BATCH, shuffle=True, drop_last=True)
    started, n_cells = 0.0, 0
    for step, (cells, labels) in enumerate(loader):
        if step == _WARM_UP_STEPS:
            started = time.perf_counter()
        _, logits, _ = model(cells)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
        if step >= _WARM_UP_STEPS:
            n_cells += len(cells)
            if time.perf_counter() - started > seconds:
                break
    return {"cells_per_second": n_cells / (time.perf_counter() - started)}


@torch.no_grad()
def literal_annotate(path: str, seconds: float, seed: int, **_: Any) -> dict[str, float]:
    """Labels and attention, a dense batch of 8 at a time."""
    reference = prepared(path)
    counts = reference.X.toarray()
    x = torch.from_numpy(np.log1p(counts * (1e4 / counts.sum(1, keepdims=True))))
    model = literal(reference).eval()
    rows, n_cells, started = [], 0, time.perf_counter()
    for cells in x.split(LITERAL_BATCH):
        _, logits, attention = model(cells)
        rows.append(torch.cat([logits.softmax(1), attention], 1))
        n_cells += len(cells)
        if time.perf_counter() - started > seconds:
            break
    return {"cells_per_second": n_cells / (time.perf_counter() - started)}


# --------------------------------------------------------------------------- tosica


class Stopwatch(pl.Callback):
    """Count cells after the warm-up steps, and stop the training when the time is over."""

    def __init__(self, seconds: float, batch_size: int) -> None:
        self.seconds, self.batch_size = seconds, batch_size
        self.n_steps, self.started, self.elapsed = 0, 0.0, 0.0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Stop once the time is over."""
        self.n_steps += 1
        if self.n_steps == _WARM_UP_STEPS:
            self.started = time.perf_counter()
        self.elapsed = time.perf_counter() - self.started
        if self.n_steps > _WARM_UP_STEPS and self.elapsed > self.seconds:
            trainer.should_stop = True

    @property
    def cells_per_second(self) -> float:
        """Cells in the steps that were timed."""
        return (self.n_steps - _WARM_UP_STEPS) * self.batch_size / self.elapsed


def tosica_train(
    path: str, seconds: float, seed: int, batch_size: int, token_dropout: float, **_: Any
) -> dict[str, float]:
    """Train through ``model.train`` with its data loading and logging."""
    scvi.settings.seed = seed
    model = network(prepared(path))
    watch = Stopwatch(seconds, batch_size)
    model.train(
        batch_size=batch_size,
        calibrate=False,
        refit=False,
        plan_kwargs={"token_dropout": token_dropout},
        callbacks=[watch],
        enable_progress_bar=False,
        limit_val_batches=0,
    )
    return {"cells_per_second": watch.cells_per_second}


def tosica_annotate(
    path: str, seed: int, n_cells: int, precision: str = "32-true", **_: Any
) -> dict[str, Any]:
    """Labels and attention through ``model.annotate``, streamed from the file."""
    scvi.settings.seed = seed
    model = fresh_model(path)
    query = ad.read_h5ad(path, backed="r")
    few = query[:200].to_memory()
    model.annotate(few, precision=precision)
    if n_cells < query.n_obs:
        query = query[:n_cells].to_memory()
    started = time.perf_counter()
    model.annotate(query, precision=precision)
    return {
        "cells_per_second": query.n_obs / (time.perf_counter() - started),
        "megaflop_per_cell": flop_per_cell(model) / 1e6,
    }


def agreement(path: str, seed: int, **_: Any) -> dict[str, float]:
    """Share of the labels that are the same in single precision and in bfloat16."""
    scvi.settings.seed = seed
    reference = prepared(path)[:4000].copy()
    model = network(reference)
    model.train(max_epochs=4, enable_progress_bar=False)
    exact, rounded = (
        model.annotate(reference, precision=p, copy=True).obs["tosica_prediction"].astype(str)
        for p in ("32-true", "bf16-mixed")
    )
    return {"agreement": float((exact == rounded).mean())}


def profile(path: str, seed: int, **_: Any) -> dict[str, Any]:
    """Shares of the time by operator, in annotation."""
    scvi.settings.seed = seed
    model = fresh_model(path)
    query = ad.read_h5ad(path, backed="r")[:512].to_memory()
    model.annotate(query)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        model.annotate(query)
    times = {e.key: e.self_cpu_time_total for e in profiler.key_averages()}
    total = sum(times.values())
    largest = sorted(times.items(), key=lambda item: -item[1])[:12]
    return {"shares": {name: spent / total for name, spent in largest}}


def peak_product(**_: Any) -> dict[str, float]:
    """Multiply two large matrices in single precision."""
    a, b = torch.rand(2048, 2048), torch.rand(2048, 2048)
    torch.mm(a, b)
    best = np.inf
    for _ in range(8):
        started = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - started)
    return {"gflops": 2 * 2048**3 / best / 1e9}


def prepared(path: str) -> ad.AnnData:
    """Read the reference, with its mask."""
    return ad.read_h5ad(path)


def network(reference: ad.AnnData) -> tosica.TOSICA:
    """The published network alone, with a token for each gene set of the mask."""
    tosica.TOSICA.setup_anndata(reference, labels_key="cell_type")
    return tosica.TOSICA(reference, linear=False, max_gene_sets=None, modules=False)


def fresh_model(path: str) -> tosica.TOSICA:
    """A model with starting weights, made without reading all cells."""
    backed = ad.read_h5ad(path, backed="r")
    some = np.unique(backed.obs["cell_type"].cat.codes, return_index=True)[1]
    few = backed[np.unique(np.r_[some, : min(2000, backed.n_obs)])].to_memory()
    sizes = few.obs["cell_type"].value_counts()
    few = few[few.obs["cell_type"].isin(sizes.index[sizes > 1])].copy()
    model = network(few)
    model.is_trained_ = True
    return model


def flop_per_cell(model: tosica.TOSICA) -> int:
    """Multiplications and additions of one forward pass, as the published formulas count them.

    Each layer but the last computes every token: projections ``8 T d²``, attention ``4 T² d``,
    MLP ``16 T d²``. The last computes keys and values for all tokens and the rest for the class
    token. The embedding multiplies each (gene, set) pair once.
    """
    embedding = model.module.embedding
    d, t = embedding.embed_dim, embedding.n_tokens + 1
    n_full = len(model.module.encoder.blocks) - 1
    full = 24 * t * d * d + 4 * t * t * d
    last = 4 * t * d * d + 4 * t * d + 20 * d * d
    return 2 * len(embedding.genes) * d + n_full * full + last


RUNS: dict[str, Callable[..., dict[str, Any]]] = {
    run.__name__: run
    for run in (
        literal_train,
        literal_annotate,
        tosica_train,
        tosica_annotate,
        agreement,
        profile,
        peak_product,
    )
}


def main() -> None:
    """Run one measurement and print it."""
    warnings.simplefilter("ignore")
    name, settings = sys.argv[1], json.loads(sys.argv[2])
    if settings.get("threads"):
        torch.set_num_threads(settings["threads"])
    after_imports = peak_mb()
    result = RUNS[name](**settings)
    print(json.dumps(result | {"peak_mb": peak_mb() - after_imports}))


if __name__ == "__main__":
    main()
