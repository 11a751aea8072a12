"""The choice of cells: how many tiles are downloaded, and what ten million cells take."""

import subprocess
import sys

import numpy as np
import pytest

from tosica.datasets._census_sample import ROWS_PER_TILE, Candidates, sample

MILLIONS = """
import re
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from tosica.datasets._census_sample import collect, sample

N_ROWS = 1_000_000
rng = np.random.default_rng(0)

def texts(n_names):
    names = [f"name {i}" for i in range(n_names)]
    codes = rng.integers(0, n_names, N_ROWS).astype(np.int32)
    return pa.DictionaryArray.from_arrays(codes, names)

def tables():
    for i in range(10):
        yield pa.table({
            "soma_joinid": np.arange(i * N_ROWS, (i + 1) * N_ROWS),
            "cell_type_ontology_term_id": texts(100),
            "dataset_id": texts(50),
            "donor_id": texts(200),
            "disease": texts(20),
            "nnz": rng.integers(500, 5000, N_ROWS),
        })

cells = collect(tables(), {"disease": lambda name: name != "name 3"})
n_sampled = len(sample(cells, 500))
# What resource.getrusage tells would be at least the memory of pytest, which began this process.
status = Path("/proc/self/status").read_text()
print(n_sampled, re.search(r"VmHWM:\\s*(\\d+)", status)[1], time.process_time())
"""


def test_cells_of_a_donor_come_from_few_tiles():
    rng = np.random.default_rng(0)
    n_cells = 40 * ROWS_PER_TILE
    zeros = np.zeros(n_cells, dtype=np.int32)
    cells = Candidates(
        joinids=np.arange(n_cells),
        types=rng.integers(0, 20, n_cells),
        datasets=zeros,
        donors=rng.integers(0, 2, n_cells),
        n_values=zeros,
        type_names=[str(i) for i in range(20)],
        dataset_names=["study"],
        n_before=n_cells,
        left_out={},
    )
    sampled = sample(cells, 50)
    assert len(sampled) == 20 * 50
    # At random, cells of all 40 tiles would be among them.
    assert len(np.unique(sampled // ROWS_PER_TILE)) <= 2


@pytest.mark.slow
def test_ten_million_cells_take_two_gigabytes_and_a_minute():
    pytest.importorskip("pyarrow")
    done = subprocess.run(
        [sys.executable, "-c", MILLIONS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    n_sampled, kilobytes, seconds = map(float, done.stdout.split())
    assert n_sampled == 100 * 500
    assert kilobytes < 2e6
    # Of the processor, whatever else the machine does.
    assert seconds < 60
