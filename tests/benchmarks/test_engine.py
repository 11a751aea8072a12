"""The engine's benchmark: that both sides compute the same, and that its tables are whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def benchmarks(load_benchmark):
    return load_benchmark("_engine_runs"), load_benchmark("engine")


@pytest.fixture
def path(benchmarks, tmp_path) -> Path:
    _, engine = benchmarks
    engine.write_data(tmp_path / "cells.h5ad", 300, 400, 20, seed=0)
    return tmp_path / "cells.h5ad"


def test_both_sides_read_the_same_and_compute_the_same(benchmarks, path):
    runs, _ = benchmarks
    model = runs.fresh_model(str(path))
    reference = ad.read_h5ad(path)
    literal = runs.literal(reference).eval()
    # The literal embedding is dense: column p * d + j is number j of gene set p.
    module, mask = model.module, reference.varm["tosica_mask"].tocsc()
    token = np.repeat(np.arange(mask.shape[1]), np.diff(mask.indptr))
    with torch.no_grad():
        dense = torch.zeros(mask.shape[0], mask.shape[1], 48)
        dense[module.embedding.genes, token] = module.embedding.pair_weights()
        literal.embedding.weight.copy_(dense.flatten(1))
        literal.embedding.bias.copy_(module.embedding.bias.flatten())
        literal.cls_token.copy_(module.encoder.class_token)
        theirs = dict(literal.named_parameters())
        for name, parameter in module.encoder.blocks.named_parameters():
            layer, _, rest = name.partition(".")
            rest = rest.replace("attention.", "attn.").replace("fc", "mlp.fc")
            theirs[f"blocks.{layer}.{rest}"].copy_(parameter)
        for part in ("weight", "bias"):
            getattr(literal.norm, part).copy_(getattr(module.encoder.norm, part))
            getattr(literal.head, part).copy_(getattr(module.head, part))
        x, _ = runs.balanced_cells(reference, seed=0)
        _, logits, attention = literal(x[:50])
        ours = module.annotate(x[:50])
    torch.testing.assert_close(ours.logits, logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.attention, attention, rtol=1e-4, atol=1e-6)


def test_labels_are_oversampled(benchmarks, path):
    runs, _ = benchmarks
    _, codes = runs.balanced_cells(ad.read_h5ad(path), seed=0)
    assert len(set(np.bincount(codes.numpy()))) == 1


def test_operations_of_a_cell(benchmarks, path):
    runs, _ = benchmarks
    model = runs.fresh_model(str(path))
    # In double precision torch's kernels do all of it, of which it counts the operations.
    model.module.double()
    x = torch.rand(1, 400, dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        model.module.annotate(x, attention=False)
    counted = counter.get_total_flops()
    # Sets are padded to one size in a bucket, and the last layer is had without keys and values.
    assert 0.6 * counted < runs.flop_per_cell(model) < 1.7 * counted


@pytest.mark.parametrize("name", ["literal_train", "literal_annotate", "tosica_train"])
def test_timed_runs(benchmarks, path, name):
    runs, _ = benchmarks
    found = runs.RUNS[name](
        path=str(path), seconds=0.05, seed=0, batch_size=8, token_dropout=0.5, threads=1
    )
    assert found["cells_per_second"] > 0


def test_annotation_reads_the_file(benchmarks, path):
    runs, _ = benchmarks
    found = runs.tosica_annotate(path=str(path), seed=0, n_cells=300)
    assert found["cells_per_second"] > 0
    assert found["megaflop_per_cell"] > 0


def test_report(benchmarks):
    _, engine = benchmarks
    speed = [{"cells_per_second": s} for s in (10.0, 30.0, 20.0)]
    result = {
        "turns": {
            "peak": [{"gflops": 100.0}],
            **dict.fromkeys(engine.TRAININGS, speed),
            "tosica, defaults": [{"cells_per_second": 2000.0}],
            "annotate literal": speed,
            "annotate tosica": [{"cells_per_second": 500.0, "megaflop_per_cell": 40.0}],
        },
        "sizes": {
            "100": {
                "annotate": {"cells_per_second": 480.0, "peak_mb": 50.0},
                "train": {"cells_per_second": 70.0, "peak_mb": 60.0},
                "literal train": {"cells_per_second": 1.0, "peak_mb": 600.0},
            },
            "900000": {
                "annotate": {"cells_per_second": 490.0, "peak_mb": 51.0},
                "train": {"cells_per_second": 71.0},
            },
        },
        "note": "Measured in parts.",
        "agreement": 0.999,
        "profile": {"aten::bmm": 0.5},
        "settings": {"cells": [100], "genes": 3, "gene sets": 2, "width": 48, "rounds": 3},
        "machine": {"processor": "X", "bfloat16 in hardware": False},
    }
    text = engine.report(json.loads(json.dumps(result)))
    assert "| tosica, defaults | 2000 | 100 |" in text
    assert "| tosica | 500 | 25 |" in text
    assert "reaches 20 GFLOP/s, 20% of the\n100 GFLOP/s" in text
    assert "| 100 | 480 | 50 | 70 | 60 | 600 | 10.0% |" in text
    assert "| 900000 | 490 | 51 | 71 | - | - | - |" in text
    assert "deviated from the median by up to 50%.\nMeasured in parts.\n" in text


def test_a_failed_run_says_why(benchmarks, pages, monkeypatch):
    _, engine = benchmarks
    monkeypatch.chdir(pages.parents[1])
    with pytest.raises(RuntimeError, match=r"tosica_train .* failed:\n(.|\n)*No such file"):
        engine.measure(
            "tosica_train", path="nowhere.h5ad", seconds=1, seed=0, batch_size=8, token_dropout=0.5
        )
