"""Commands as pipelines run them: a process that is stopped, killed, or has no space."""

import signal
import subprocess
import sys
import time

import anndata as ad
import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.weekly]
_SECONDS = 300  # a busy machine takes a minute for the imports


@pytest.fixture
def large_query(toy_query, tmp_path):
    """Cells for many small parts."""
    path = tmp_path / "many.h5ad"
    large_query = ad.concat([toy_query] * 60, index_unique="-")
    large_query.write_h5ad(path)
    return path


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "tosica.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition, process):
    end = time.monotonic() + _SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def test_stopped_killed_and_run_again(large_query, model_folder, tmp_path):
    output = tmp_path / "o.h5ad"
    folder_of_parts = tmp_path / "o.h5ad.parts"
    command = [
        "annotate",
        large_query,
        "--model",
        model_folder,
        "-o",
        output,
        "--cells-per-part",
        100,
        "--no-report",
    ]

    def n_done():
        return len(list(folder_of_parts.glob("part-*.h5")))

    process = start(*command)
    wait_for(lambda: n_done() > 2, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=_SECONDS)
    assert (process.returncode, out) == (1, "")
    assert err == "tosica: error: stopped; the same command goes on where it ended.\n"
    assert not output.exists()

    n_at_start = n_done()
    process = start(*command)
    wait_for(lambda: n_done() > n_at_start + 2, process)
    process.kill()
    process.communicate(timeout=_SECONDS)
    assert process.returncode == -signal.SIGKILL
    assert not output.exists()
    times = {
        path.name: path.stat().st_mtime_ns for path in folder_of_parts.glob("part-*.h5")
    }
    assert 5 < len(times) < 36

    process = start(*command, "--verbose")
    out, err = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0, err
    assert f"{len(times)} of 36 parts are there already" in err
    annotated = ad.read_h5ad(output)
    assert annotated.n_obs == 3_600
    # The same 60 cells again and again.
    probability = annotated.obs["tosica_probability"].to_numpy().reshape(60, 60)
    np.testing.assert_allclose(probability, np.tile(probability[0], (60, 1)), rtol=1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {large_query.name, output.name}
