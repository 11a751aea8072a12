"""How fast are training, annotation and explanation on a CUDA card, and how near to what the card can do?

``python -m benchmarks.gpu`` from the repository's root prints a table; without a card it says so and
ends. ``--accelerator cpu`` measures a processor in the same way. It is for developers, and has no page.

The cells are made up. The roof is the rate of a product of two large matrices in the same precision on
the same device. What the package's own kernels compute on a processor is not counted, so that the share
is too low there.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import pandas as pd
import scvi
import torch
from torch.utils.flop_counter import FlopCounterMode

import tosica
from benchmarks._models import phases_with
from benchmarks._results import processor, quiet
from benchmarks._synthetic import synthetic
from tosica.model._phases import fit_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData

    from tosica.model._state import TrainingState

LABEL = "cell_type"
PRECISIONS = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16}
# Side of the square matrices whose product is the roof, and how often it is computed.
SIDE = 4096
N_PRODUCTS = 20


def seconds(do: Callable[[], Any], device: torch.device) -> float:
    """Time a call until the device has done all work of it."""
    synchronize(device)
    start_time = time.perf_counter()
    do()
    synchronize(device)
    return time.perf_counter() - start_time


def synchronize(device: torch.device) -> None:
    """Wait for a card."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def roof(device: torch.device, dtype: torch.dtype, side: int) -> float:
    """Floating-point operations a second of a large matrix product."""
    a, b = torch.randn(2, side, side, device=device, dtype=dtype)
    a @ b  # the first product chooses the algorithm of the others

    def multiply() -> None:
        for _ in range(N_PRODUCTS):
            a @ b

    return 2 * side**3 * N_PRODUCTS / seconds(multiply, device)


def count(do: Callable[[], Any]) -> float:
    """Floating-point operations of a call."""
    with FlopCounterMode(display=False) as counter:
        do()
    return float(counter.get_total_flops())


def timed_fit_network(state: TrainingState) -> None:
    """Train the network, and measure its time, its steps and the operations of one."""
    model = state.model
    precision = state.trainer_kwargs["precision"]
    trainer = state.runner.trainer
    device = trainer.strategy.root_device
    model.seconds = seconds(lambda: fit_network(state), device)
    model.n_steps = trainer.global_step
    batch = next(iter(state.data.train_dataloader()))
    batch = {name: value.to(device) for name, value in batch.items()}
    model.module.to(device).train()
    plan = state.plan.to(device)
    is_mixed = precision != "32-true"
    with torch.autocast(device.type, PRECISIONS[precision], enabled=is_mixed):
        model.n_operations = count(lambda: plan.training_step(batch, 0).backward())
    model.module.zero_grad()
    model.module.eval()


class Timed(tosica.TOSICA):
    """A model whose training is measured."""

    _training_phases = phases_with({fit_network: (timed_fit_network,)})


def measure(
    reference: AnnData, query: AnnData, accelerator: str, precision: str, side: int
) -> list[dict[str, Any]]:
    """Train, annotate and explain once."""
    scvi.settings.seed = 0
    model = Timed(reference)
    model.train(accelerator=accelerator, precision=precision, enable_progress_bar=False)
    device = model.device
    best = roof(device, PRECISIONS[precision], side)
    model.annotate(query[:256].copy(), precision=precision)  # compiles
    took = seconds(lambda: model.annotate(query, precision=precision), device)
    x = next(iter(model.iter_batches(query))).x
    of_cell = count(lambda: model.module.annotate(x)) / len(x)
    explained = seconds(lambda: tosica.tl.attribute(query, model), device)
    steps_rate = model.n_steps / model.seconds
    cells_rate = query.n_obs / took
    rows = [
        {
            "work": "training step, 64 cells",
            "rate": steps_rate,
            "unit": "steps/s",
            "share": model.n_operations * steps_rate / best,
        },
        {
            "work": "annotate",
            "rate": cells_rate,
            "unit": "cells/s",
            "share": of_cell * cells_rate / best,
        },
        {
            "work": "attribute, all labels",
            "rate": query.n_obs / explained,
            "unit": "cells/s",
        },
    ]
    return [{"precision": precision, **row} for row in rows]


def main(arguments: list[str] | None = None) -> None:
    """Measure each precision, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--accelerator", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument(
        "--cells", type=int, default=100_000, help="of the reference, and of the query"
    )
    parser.add_argument(
        "--side", type=int, default=SIDE, help="of the matrices of the roof"
    )
    options = parser.parse_args(arguments)
    if options.accelerator == "gpu" and not torch.cuda.is_available():
        print("There is no CUDA card here, so nothing was measured.")
        return
    quiet()
    cells = synthetic(2 * options.cells)
    reference = cells[: options.cells].copy()
    query = cells[options.cells :].copy()
    tosica.pp.build_mask(reference)
    Timed.setup_anndata(reference, labels_key=LABEL)
    rows = []
    for precision in PRECISIONS:
        rows += measure(reference, query, options.accelerator, precision, options.side)
    is_cpu = options.accelerator == "cpu"
    print(processor() if is_cpu else torch.cuda.get_device_name())
    measured = pd.DataFrame(rows).round({"rate": 1, "share": 4})
    print(measured.to_string(index=False, na_rep=""))


if __name__ == "__main__":
    main()
