"""The single measurements of `benchmarks.scale`; each is a process of its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData

    from tosica import TOSICA

N_GENES = 3000
N_REFERENCE = 10_000
# Settings of every training, of which the rate of cells is measured.
_TRAIN = {"accelerator": "cpu", "enable_progress_bar": False, "refit": False}


def prepare(folder: Path, sizes: list[int]) -> None:
    """Write the cells, and a model that is trained on other ones."""
    import scvi

    from benchmarks._synthetic import synthetic

    for n_cells in sizes:
        if not (folder / f"{n_cells}.zarr").exists():
            cells = synthetic(n_cells, N_GENES)
            cells.write_h5ad(folder / f"{n_cells}.h5ad")
            cells.write_zarr(folder / f"{n_cells}.zarr")
    if not (folder / "model").exists():
        reference = synthetic(N_REFERENCE, N_GENES)
        scvi.settings.seed = 0
        model = untrained(reference)
        model.train(max_epochs=1, **_TRAIN)
        model.save(folder / "model")


def untrained(reference: AnnData) -> TOSICA:
    """A model with all defaults."""
    import tosica

    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key="cell_type", batch_key="batch")
    return tosica.TOSICA(reference)


def annotate(folder: Path, n_cells: int, way: str, share: int) -> dict[str, float]:
    """Annotate all cells, or a share of those in memory; seconds, and how many cells these were."""
    import anndata as ad

    import tosica

    model = tosica.TOSICA.load(folder / "model", accelerator="cpu")
    warm = ad.read_h5ad(folder / f"{n_cells}.h5ad", backed="r")[:256].to_memory()
    model.annotate(warm)  # compiled code is loaded at the first call
    if way == "memory":
        query = ad.read_h5ad(folder / f"{n_cells}.h5ad")
        if share > 1:
            query = query[: n_cells // share].copy()
        return timed(lambda: model.annotate(query), query.n_obs)
    suffix = "h5ad" if way == "h5ad" else "zarr"
    source = folder / f"{n_cells}.{suffix}"
    output = folder / f"annotated_{n_cells}_{way}.zarr"
    options: dict[str, Any] = {"overwrite": True, "include_x": False}
    size = 49_152
    if n_cells < 10 * size:
        options["cells_per_part"] = max(n_cells // 20 // 64, 1) * 64
    if way.startswith("dask"):
        n_workers = int(way.removeprefix("dask"))
        return _annotate_on_workers(source, model, output, n_workers, n_cells, options)
    return timed(
        lambda: tosica.tl.annotate_file(source, model, output, **options), n_cells
    )


def _annotate_on_workers(
    source: Path,
    model: TOSICA,
    output: Path,
    n_workers: int,
    n_cells: int,
    options: dict[str, Any],
) -> dict[str, float]:
    from distributed import Client, LocalCluster

    import tosica
    from benchmarks._synthetic import synthetic

    cluster = LocalCluster(
        n_workers=n_workers, threads_per_worker=1, dashboard_address=None
    )
    with cluster, Client(cluster) as client:
        # Imports, the model and compiled code are loaded at the first cells.
        small = output.parent / "few.zarr"
        if not small.exists():
            synthetic(512, N_GENES).write_zarr(small)
        tosica.tl.annotate_file(
            small,
            model,
            output.parent / f"few_{n_workers}.zarr",
            client=client,
            cells_per_part=128,
            overwrite=True,
        )
        measured = timed(
            lambda: tosica.tl.annotate_file(
                source, model, output, client=client, **options
            ),
            n_cells,
        )
        return {**measured, "peak_mb": max(client.run(peak_mb).values())}


def train(
    folder: Path, n_cells: int, way: str, n_batches: int | None
) -> dict[str, float]:
    """Train an epoch, or its first minibatches; seconds of the network and of everything."""
    import anndata as ad
    import scvi
    from lightning.pytorch.callbacks import Callback

    class Clock(Callback):
        """Notes when minibatches begin and end, without the first ones."""

        def __init__(self) -> None:
            self.start = 0.0
            self.end = 0.0
            self.n_cells = 0
            self.n_skipped = 20

        def on_train_start(self, trainer: Any, *args: Any) -> None:
            n_batches = int(trainer.num_training_batches)
            self.n_skipped = min(self.n_skipped, n_batches // 2)

        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, i_batch: int
        ) -> None:
            if i_batch == self.n_skipped - 1:
                self.start = time.perf_counter()
            elif i_batch >= self.n_skipped:
                self.end = time.perf_counter()
                self.n_cells += len(batch["X"])

    scvi.settings.seed = 0
    if way == "memory":
        reference = ad.read_h5ad(folder / f"{n_cells}.h5ad")
    elif way == "h5ad":
        reference = ad.read_h5ad(folder / f"{n_cells}.h5ad", backed="r")
    else:
        reference = ad.experimental.read_lazy(folder / f"{n_cells}.zarr")
    model = untrained(reference)
    clock = Clock()
    options: dict[str, Any] = {
        "callbacks": [clock],
        "max_epochs": 1,
        "batch_size": 64,
        **_TRAIN,
    }
    if n_batches is not None:
        options["limit_train_batches"] = n_batches
        options["limit_val_batches"] = 20
    measured = timed(lambda: model.train(**options), n_cells)
    loss = float(model.history["validation_loss"].iloc[-1, 0])
    return {
        **measured,
        "network": clock.end - clock.start,
        "cells": clock.n_cells,
        "validation_loss": loss,
    }


def timed(call: Callable[[], Any], n_cells: int) -> dict[str, float]:
    """Time of a call in seconds."""
    start_time = time.perf_counter()
    call()
    return {"seconds": time.perf_counter() - start_time, "cells": n_cells}


def peak_mb() -> float:
    """Peak resident memory of this process."""
    # getrusage includes the memory of the parent process.
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else []:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def run(
    task: str, folder: str, n_cells: str, way: str, number: str
) -> dict[str, float]:
    """One measurement, by the arguments of its process."""
    if task == "annotate":
        measured = annotate(Path(folder), int(n_cells), way, int(number))
    else:
        measured = train(Path(folder), int(n_cells), way, int(number) or None)
    return {"peak_mb": peak_mb(), **measured}
