"""Speed and memory of tosica and of a literal implementation.

``python -m benchmarks.engine`` from the repository's root writes ``docs/benchmarks/engine.md`` and
``engine.json``. Every measurement runs in its own process. Measurements that are compared
alternate, and ratios are those of their medians. Run nothing else on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import anndata as ad
import h5py
import torch

import tosica
from benchmarks._report import table, versions, write

TRAININGS = {
    "literal, batch 8": ("literal_train", {}),
    "tosica, defaults": ("tosica_train", {"batch_size": 64, "token_dropout": 0.75}),
    "tosica, batch 8": ("tosica_train", {"batch_size": 8, "token_dropout": 0.75}),
    "tosica, batch 8, every token": ("tosica_train", {"batch_size": 8, "token_dropout": 0.0}),
}
# Above this, dense and oversampled data of the literal run would not fit in memory.
LITERAL_LIMIT = 200_000


def measure(name: str, **settings: Any) -> dict[str, Any]:
    """Run one measurement in its own process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks._engine_runs", name, json.dumps(settings)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"The run {name} {settings} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def write_data(path: Path, n_cells: int, n_genes: int, n_sets: int, seed: int) -> None:
    """Write synthetic counts with a mask."""
    tosica.datasets.write_synthetic(path, n_cells, n_genes, n_gene_sets=n_sets, seed=seed)
    backed = ad.read_h5ad(path, backed="r")
    genes = backed[:2].to_memory()
    tosica.pp.build_mask(genes, max_gene_sets=n_sets, max_jaccard=1, n_unannotated=1)
    backed.file.close()
    with h5py.File(path, "a") as file:
        ad.io.write_elem(file["varm"], "tosica_mask", genes.varm["tosica_mask"])
        ad.io.write_elem(file["uns"], "tosica_mask", genes.uns["tosica_mask"])


def run(
    *,
    n_cells: list[int],
    n_genes: int,
    n_sets: int,
    seconds: float,
    rounds: int,
    threads: int,
    seed: int,
    folder: Path,
) -> dict[str, Any]:
    """Measure everything; ``n_cells`` are the sizes of the data, the first one for speed."""
    common = {"seconds": seconds, "threads": threads, "seed": seed}
    paths = {}
    for n in n_cells:
        paths[n] = str(folder / f"{n}.h5ad")
        write_data(Path(paths[n]), n, n_genes, n_sets, seed)
    first = paths[n_cells[0]]

    turns: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        turns.setdefault("peak", []).append(measure("peak_product", threads=threads))
        for label, (name, settings) in TRAININGS.items():
            found = measure(name, path=first, **common, **settings)
            turns.setdefault(label, []).append(found)
        found = measure("literal_annotate", path=first, **common)
        turns.setdefault("annotate literal", []).append(found)
        found = measure("tosica_annotate", path=first, n_cells=n_cells[0], **common)
        turns.setdefault("annotate tosica", []).append(found)
        if bfloat16_in_hardware():
            found = measure(
                "tosica_annotate", path=first, n_cells=n_cells[0], precision="bf16-mixed", **common
            )
            turns.setdefault("annotate tosica, bfloat16", []).append(found)
    sizes: dict[str, dict[str, Any]] = {}
    for n in n_cells:
        print(f"memory and speed at {n} cells", flush=True)
        found = measure("tosica_annotate", path=paths[n], n_cells=n, **common)
        sizes[str(n)] = {"annotate": found}
        if n <= LITERAL_LIMIT:
            few = common | {"seconds": min(seconds, 5)}
            sizes[str(n)]["literal train"] = measure("literal_train", path=paths[n], **few)
    for n, found in trainings_by_size(paths, rounds, common).items():
        sizes[n]["train"] = found
    return {
        "turns": turns,
        "sizes": sizes,
        "agreement": measure("agreement", path=first, **common)["agreement"],
        "profile": measure("profile", path=first, **common)["shares"],
        "settings": {
            "cells": n_cells,
            "genes": n_genes,
            "gene sets": n_sets,
            "width": 48,
            "seed": seed,
            "threads": threads,
            "seconds": seconds,
            "rounds": rounds,
        },
        "machine": {
            "processor": processor(),
            "bfloat16 in hardware": bfloat16_in_hardware(),
            **versions(),
        },
    }


def trainings_by_size(
    paths: dict[int, str], rounds: int, common: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """Median speed and maximal memory of alternating trainings with defaults."""
    settings = common | {"seconds": min(common["seconds"], 5)} | TRAININGS["tosica, defaults"][1]
    turns = [
        {n: measure("tosica_train", path=path, **settings) for n, path in paths.items()}
        for _ in range(rounds)
    ]
    return {
        str(n): {
            "cells_per_second": median(turn[n]["cells_per_second"] for turn in turns),
            "peak_mb": max(turn[n]["peak_mb"] for turn in turns),
        }
        for n in paths
    }


def bfloat16_in_hardware() -> bool:
    """Whether the processor multiplies matrices of bfloat16."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text() if info.exists() else ""
    return "amx_bf16" in flags or "avx512_bf16" in flags


def processor() -> str:
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def report(result: dict[str, Any]) -> str:
    """The tables as Markdown."""
    speed = {
        label: median(turn["cells_per_second"] for turn in turns)
        for label, turns in result["turns"].items()
        if label != "peak"
    }
    peak = median(turn["gflops"] for turn in result["turns"]["peak"])
    settings, machine = result["settings"], result["machine"]
    flop = result["turns"]["annotate tosica"][0]["megaflop_per_cell"]
    reached = speed["annotate tosica"] * flop / 1e3
    lines = [
        "# Speed and memory of the engine",
        "",
        "Written by `python -m benchmarks.engine`. The literal implementation is the published "
        "model in plain torch, trained like the",
        "authors' code: dense cells, oversampled labels, batches of 8, SGD. Both have the same "
        f"simulated counts, a mask of {settings['genes']} genes ×",
        f"{settings['gene sets']} gene sets and one unannotated token, and {settings['width']} "
        f"embedding dimensions. There are {settings['cells'][0]} cells unless another number is",
        "given. tosica has neither linear branch nor modules here. Values are medians of "
        f"{settings['rounds']} alternating rounds; the speed of a",
        f"round deviated from the median by up to {farthest(result['turns']):.0%}.",
        *([result["note"]] if result.get("note") else []),
        "",
        "## Training",
        "",
        *table(
            ["", "cells/s", "relative to the literal run"],
            [[k, v, v / speed["literal, batch 8"]] for k, v in speed.items() if k in TRAININGS],
        ),
        "",
        "## Annotation with attention",
        "",
        *table(
            ["", "cells/s", "relative to the literal run"],
            [
                [k.removeprefix("annotate "), v, v / speed["annotate literal"]]
                for k, v in speed.items()
                if k.startswith("annotate")
            ],
        ),
        "",
        f"Annotation takes {flop:.0f} MFLOP a cell. In single precision it reaches {reached:.0f} "
        f"GFLOP/s, {reached / peak:.0%} of the",
        f"{peak:.0f} GFLOP/s of a matrix product in the same run. Labels in bfloat16 agree with "
        "those in single precision for",
        f"{result['agreement']:.2%} of the cells of a briefly trained model; this processor "
        + ("multiplies" if machine["bfloat16 in hardware"] else "does not multiply")
        + " bfloat16 in hardware.",
        "",
        "## Memory, and speed by the number of cells",
        "",
        "Memory is the peak resident memory minus that of the imports. tosica annotates from the "
        "file.",
        "",
        *table(
            [
                "cells",
                "tosica annotates, cells/s",
                "MB",
                "tosica trains, cells/s",
                "MB",
                "literal trains, MB",
                "training, share of the literal",
            ],
            [
                [
                    n,
                    s["annotate"]["cells_per_second"],
                    s["annotate"].get("peak_mb", "-"),
                    s["train"]["cells_per_second"],
                    s["train"].get("peak_mb", "-"),
                    *shares_of_literal(s),
                ]
                for n, s in result["sizes"].items()
            ],
        ),
        "",
        "## Time of annotation by operator",
        "",
        *table(
            ["operator", "share"],
            [[f"`{name}`", f"{share:.1%}"] for name, share in result["profile"].items()],
        ),
        "",
        "## Versions",
        "",
        *table(["", ""], [[key, str(value)] for key, value in (machine | settings).items()]),
        "",
    ]
    return "\n".join(lines)


def farthest(turns: dict[str, list[dict[str, Any]]]) -> float:
    """Largest relative deviation of a round from the median of its kind."""
    speeds = [[turn["cells_per_second"] for turn in of] for k, of in turns.items() if k != "peak"]
    return max(abs(speed / median(of) - 1) for of in speeds for speed in of)


def shares_of_literal(size: dict[str, dict[str, float]]) -> list[Any]:
    """Memory of the literal run, and that of tosica as a share of it; dashes if it did not run."""
    if "literal train" not in size:
        return ["-", "-"]
    literal = size["literal train"]["peak_mb"]
    return [literal, f"{size['train']['peak_mb'] / literal:.1%}"]


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--cells", type=int, nargs="+", default=[10_600, 100_000])
    parser.add_argument("--genes", type=int, default=3000)
    parser.add_argument("--gene-sets", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each timed training")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", help="a sentence for the page, such as what was not measured")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        result = run(
            n_cells=given.cells,
            n_genes=given.genes,
            n_sets=given.gene_sets,
            seconds=given.seconds,
            rounds=given.rounds,
            threads=given.threads,
            seed=given.seed,
            folder=Path(folder),
        )
    result["note"] = given.note
    write(given.out, "engine", result, report(result))


if __name__ == "__main__":
    main()
