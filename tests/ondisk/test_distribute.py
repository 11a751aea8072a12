"""Workers of a Dask cluster annotate the parts of a query as one process does."""

import multiprocessing
import os
import signal
import threading
import time

import anndata as ad
import numpy as np
import pytest

import tosica

dask = pytest.importorskip("dask", reason="needs dask")
distributed = pytest.importorskip("distributed", reason="needs dask.distributed")

pytestmark = [
    # What distributed leaves when a cluster of the same process is closed.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def query(toy_query, tmp_path):
    toy_query.write_h5ad(tmp_path / "query.h5ad")
    return tmp_path / "query.h5ad"


@pytest.fixture
def client():
    """A worker in a thread of this process."""
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_the_labels_are_those_of_one_process(
    client, query, toy_query, toy_model, tmp_path
):
    output = tmp_path / "out.h5ad"
    options = {"batch_size": 5}
    tosica.tl.annotate_file(
        query, toy_model, output, cells_per_part=10, client=client, **options
    )
    toy_model.annotate(toy_query, **options)
    annotated = ad.read_h5ad(output)
    assert list(annotated.obs["tosica_prediction"]) == list(
        toy_query.obs["tosica_prediction"]
    )
    np.testing.assert_array_equal(
        annotated.obsm["X_tosica"], toy_query.obsm["X_tosica"]
    )


def test_a_worker_with_another_version(client, query, toy_model, tmp_path, monkeypatch):
    monkeypatch.setattr("tosica.ondisk._parts.version", lambda name: "0.0.1")
    with pytest.raises(
        RuntimeError, match=r"this worker has tosica 0\.0\.1, others .*: install one"
    ):
        tosica.tl.annotate_file(query, toy_model, tmp_path / "out.h5ad", client=client)


def test_an_error_of_a_worker_is_raised_here(client, toy_query, toy_model, tmp_path):
    toy_query.X = toy_query.X.toarray()
    toy_query.X[30, 4] = -1
    toy_query.write_h5ad(tmp_path / "negative.h5ad")
    with pytest.raises(ValueError, match=r"holds negative values"):
        tosica.tl.annotate_file(
            tmp_path / "negative.h5ad", toy_model, tmp_path / "out.h5ad", client=client
        )


@pytest.mark.slow
@pytest.mark.weekly
def test_a_worker_that_is_killed_costs_no_cell(query, toy_query, toy_model, tmp_path):
    output, folder = tmp_path / "out.h5ad", tmp_path / "out.h5ad.parts"
    # Workers are forked from a process that has imported tosica, which takes seconds.
    multiprocessing.set_forkserver_preload(["tosica"])
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        killed = []

        def kill():
            """Kill a worker when it has begun, and wait for what it has not finished."""
            while not killed:
                if folder.is_dir() and any(folder.glob("part-*")):
                    pid = next(iter(client.run(os.getpid).values()))
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                time.sleep(0.01)

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        options = {"batch_size": 1}
        tosica.tl.annotate_file(
            query, toy_model, output, cells_per_part=5, client=client, **options
        )
        thread.join(60)
    assert len(killed) == 1
    toy_model.annotate(toy_query, **options)
    annotated = ad.read_h5ad(output)
    np.testing.assert_array_equal(
        annotated.obsm["X_tosica"], toy_query.obsm["X_tosica"]
    )
