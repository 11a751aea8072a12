"""Let the workers of a Dask cluster annotate parts; each worker loads the model once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosica.ondisk._parts import PartAnnotator
from tosica.ondisk._plan import MODEL, read_plan
from tosica.ondisk._store import open_query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tosica.ondisk._plan import Plan


def annotate_on_workers(
    plan: Plan, parts: list[int], client: Any, batch_size: int | None
) -> Iterator[int]:
    """Annotate parts of a plan on the workers of a client.

    Workers read the query and write the parts themselves. A part whose worker is lost is given to
    another one.

    Parameters
    ----------
    plan
        The plan, whose folder has the manifest and the model.
    parts
        The parts to annotate.
    client
        A ``dask.distributed.Client``.
    batch_size
        Cells in a minibatch.

    Yields
    ------
    Parts, as soon as they are annotated.

    Raises
    ------
    RuntimeError
        If a worker has another version of tosica, or the workers are lost again and again.
    OSError, ValueError
        As :meth:`PartAnnotator.annotate`.
    """
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    plugin = _model_plugin(str(plan.folder), plan.identity(), batch_size)
    client.register_plugin(plugin)
    futures = client.map(_annotate, parts, plugin=plugin.name, pure=False)
    try:
        for future in as_completed(futures):
            yield future.result()
    except KilledWorker as error:
        raise RuntimeError(
            f"the workers of the Dask cluster were lost again and again ({error}): do they have "
            "enough memory? The parts that were annotated are kept, and the next call goes on."
        ) from error
    finally:
        client.cancel(futures)
        client.unregister_worker_plugin(plugin.name)


def _model_plugin(folder: str, identity: str, batch_size: int | None) -> Any:
    from distributed import WorkerPlugin

    class ModelPlugin(WorkerPlugin):  # type: ignore[misc] # distributed has no types
        """Keeps the model on a worker, loaded at the first part."""

        name = f"tosica-{identity}"

        def setup(self, worker: Any) -> None:
            # One part at a time, with all threads of the worker.
            self.lock = threading.Lock()
            self.n_threads = worker.state.nthreads
            self.annotator: PartAnnotator | None = None

        def annotate(self, part: int) -> None:
            with self.lock:
                if self.annotator is None:
                    self.annotator = load_annotator(Path(folder), batch_size)
                _set_threads(self.n_threads)
                self.annotator.annotate(part)

    return ModelPlugin()


def _annotate(part: int, *, plugin: str) -> int:
    from distributed import get_worker

    model_plugin: Any = get_worker().plugins[plugin]
    model_plugin.annotate(part)
    return part


def load_annotator(folder: Path, batch_size: int | None) -> PartAnnotator:
    """What annotates the parts of a plan that another process wrote.

    Raises
    ------
    RuntimeError
        If that process had another version of tosica.
    """
    from tosica.model import TOSICA

    plan = read_plan(folder)
    model = TOSICA.load(folder / MODEL)
    settings = plan.settings
    store = open_query(plan.path, model, layer=settings.layer, use_raw=settings.use_raw)
    return PartAnnotator(plan, store, model, batch_size)


def _set_threads(n_threads: int) -> None:
    import torch

    torch.set_num_threads(n_threads)
