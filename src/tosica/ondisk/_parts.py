"""Annotate a query in parts: the plan, the file of each part, and the workers of Dask."""

from __future__ import annotations

import json
import threading
import warnings
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import torch
from anndata.io import read_elem, write_elem

from tosica._files import as_os_error, replace_file
from tosica._settings import logger, only_warnings
from tosica.data import EmptyCellsWarning
from tosica.ondisk._store import open_query

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from anndata import AnnData

    from tosica.model import TOSICA, AnnotationResult
    from tosica.model._annotation import Precision
    from tosica.ondisk._store import Store

_MANIFEST, MODEL = "manifest.json", "model"
_LOCK = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What decides the content of every part, as the manifest in the folder of the parts says.

    Parameters
    ----------
    path
        Where the query is.
    n_obs
        Number of its cells.
    query
        Hash of the query, see :meth:`Store.digest`.
    model
        Fingerprint of the model.
    layer, use_raw
        Which matrix is read.
    probabilities
        Whether to keep the probability of every label.
    precision
        As in :meth:`tosica.TOSICA.annotate`.
    cells_per_part
        Number of cells of a part; the last one may have fewer.
    tosica
        Version of the package.
    """

    path: str
    n_obs: int
    query: str
    model: str
    layer: str | None
    use_raw: bool
    probabilities: bool
    precision: Precision
    cells_per_part: int
    tosica: str = version("tosica")

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """Read the plan that another process wrote.

        Raises
        ------
        RuntimeError
            If that process had another version of tosica.
        """
        plan = cls(**json.loads((folder / _MANIFEST).read_text(encoding="utf-8")))
        if plan.tosica != version("tosica"):
            raise RuntimeError(
                f"this worker has tosica {version('tosica')}, but the work was begun with tosica "
                f"{plan.tosica}: install the same version on all workers."
            )
        return plan

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return -(-self.n_obs // self.cells_per_part)

    def cells(self, part: int) -> tuple[int, int]:
        """First cell of a part, and the one after its last."""
        size = self.cells_per_part
        return part * size, min((part + 1) * size, self.n_obs)

    def begin(self, folder: Path, model: TOSICA) -> None:
        """Make the folder of the parts, or go on with what is there.

        Raises
        ------
        ValueError
            If work on another plan was begun in the folder.
        """
        folder.mkdir(exist_ok=True)
        manifest = folder / _MANIFEST
        if not manifest.exists():
            # The model comes first: workers take a folder with a manifest for complete.
            model.save(folder / MODEL, overwrite=True)
            with replace_file(manifest) as path:
                path.write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")
            return
        begun = json.loads(manifest.read_text(encoding="utf-8"))
        for name, value in asdict(self).items():
            # The query may have been moved.
            if name != "path" and begun.get(name) != value:
                raise ValueError(
                    f"{str(folder)!r} holds parts of an annotation that was begun with another "
                    f"{name} ({begun.get(name)!r}): go on as it was begun, or pass overwrite=True "
                    "to begin anew, or another output."
                )


def part_file(folder: Path, part: int) -> Path:
    """File of a part."""
    return folder / f"part-{part:06d}.h5"


class PartAnnotator:
    """Annotates ranges of a query; each range by itself, with the same result in any process.

    Parameters
    ----------
    plan
        Which ranges there are.
    folder
        Where their files are.
    store
        The query.
    model
        The model.
    batch_size
        Cells in a minibatch.
    """

    def __init__(self, plan: Plan, folder: Path, store: Store, model: TOSICA, batch_size: int | None) -> None:
        self._plan, self._folder, self._store = plan, folder, store
        self._model, self._batch_size = model, batch_size
        self._sample = store.read_sample()

    def infer_sample(self) -> AnnotationResult:
        """Annotate the sample, so that wrong queries fail before any work is done."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmptyCellsWarning)
            return self._infer(self._sample)

    def annotate(self, part: int) -> int:
        """Annotate a part, write its file, whole or not at all, and return the part.

        Raises
        ------
        OSError
            If cells cannot be read, or the file cannot be written.
        ValueError
            As :meth:`tosica.TOSICA.annotate`.
        """
        start, stop = self._plan.cells(part)
        cells = self._store.read(start, stop)
        with warnings.catch_warnings(record=True) as caught, only_warnings(logger):
            warnings.simplefilter("always")
            try:
                result = self._infer(cells)
            except ValueError as error:
                raise ValueError(
                    f"cells {start} to {stop - 1} of {self._store.path!r}, counted from {start}: {error}"
                ) from error
        # The other warnings are those of the sample, too.
        empty = [w.message for w in caught if isinstance(w.message, EmptyCellsWarning)]
        content: dict[str, Any] = {
            "arrays": result.arrays(),
            "n_empty": sum(warning.n_cells for warning in empty),
            "empty_cells": empty[0].what if empty else "",
        }
        path = part_file(self._folder, part)
        with replace_file(path) as temporary, as_os_error(), h5py.File(temporary, "w") as file:
            for name, value in content.items():
                write_elem(file, name, value)
        return part

    def _infer(self, cells: AnnData) -> AnnotationResult:
        plan = self._plan
        result = self._model.infer(
            cells,
            layer=plan.layer,
            use_raw=plan.use_raw,
            batch_size=self._batch_size,
            precision=plan.precision,
            sample=self._sample,
            enable_progress_bar=False,
        )
        return result if plan.probabilities else replace(result, probabilities=None)


def read_part(path: Path) -> tuple[dict[str, np.ndarray], EmptyCellsWarning]:
    """Read the file of a part, and what is to be said of its cells that express nothing.

    Raises
    ------
    OSError
        If it is damaged.
    """
    try:
        with h5py.File(path, "r") as file:
            content = {name: read_elem(file[name]) for name in file}
        return content["arrays"], EmptyCellsWarning(int(content["n_empty"]), str(content["empty_cells"]))
    # What damage raises depends on where it is.
    except Exception as error:
        raise OSError(
            f"the part {str(path)!r} is damaged: remove this file, and call again to annotate its cells anew."
        ) from error


def annotate_on_workers(folder: Path, parts: list[int], client: Any, batch_size: int | None) -> Iterator[int]:
    """Annotate parts on the workers of a client, which read the query and write the parts.

    A part whose worker is lost is given to another one.

    Parameters
    ----------
    folder
        Folder of the parts, with the manifest and the model.
    parts
        The parts to annotate.
    client
        A ``dask.distributed.Client``.
    batch_size
        Cells in a minibatch.

    Yields
    ------
    Parts, as soon as they are annotated.
    """
    from distributed import as_completed

    # Under another name than batch_size, which is an argument of map itself.
    futures = client.map(_annotate_part, parts, folder=str(folder), minibatch=batch_size, pure=False)
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        client.cancel(futures)
        # The model does not stay on the workers.
        client.run(_load_annotator.cache_clear)


def _annotate_part(part: int, *, folder: str, minibatch: int | None) -> int:
    from distributed import get_worker

    # One part at a time, with all threads of the worker.
    with _LOCK:
        torch.set_num_threads(get_worker().state.nthreads)
        return _load_annotator(folder, minibatch).annotate(part)


@lru_cache(maxsize=1)
def _load_annotator(folder: str, batch_size: int | None) -> PartAnnotator:
    from tosica.model import TOSICA

    plan = Plan.read(Path(folder))
    model = TOSICA.load(Path(folder) / MODEL)
    store = open_query(plan.path, model, layer=plan.layer, use_raw=plan.use_raw)
    return PartAnnotator(plan, Path(folder), store, model, batch_size)
