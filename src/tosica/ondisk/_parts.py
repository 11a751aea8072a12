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
import numpy as np
import torch
from anndata.io import read_elem, write_elem

from tosica._files import as_os_error, replace_file
from tosica._settings import logger, only_warnings, warn_user
from tosica.data import EmptyCellsWarning
from tosica.model._annotation_result import OUTDATED
from tosica.ondisk._store import (
    Store,
    copy_store,
    create_array,
    open_for_writing,
    replacing_store,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anndata import AnnData

    from tosica.model import TOSICA, AnnotationResult
    from tosica.model._annotation import Precision
    from tosica.model._annotation_result import Cutoff

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
    confidence
        Least probability of a confident answer.
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
    confidence: float
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
                f"this worker has tosica {version('tosica')}, others {plan.tosica}: install one for all."
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
                    f"{str(folder)!r} holds parts of an annotation that was begun with another {name} "
                    f"({begun.get(name)!r}): go on with that, or pass overwrite=True or another output."
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

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        store: Store,
        model: TOSICA,
        batch_size: int | None,
    ) -> None:
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
                where = f"cells {start} to {stop - 1} of {self._store.path!r}, counted from {start}"
                raise ValueError(f"{where}: {error}") from error
        # The other warnings are those of the sample, too.
        empty = [w.message for w in caught if isinstance(w.message, EmptyCellsWarning)]
        with (
            replace_file(part_file(self._folder, part)) as temporary,
            as_os_error(),
            h5py.File(temporary, "w") as file,
        ):
            write_elem(file, "arrays", result.arrays())
            write_elem(file, "n_empty", sum(warning.n_cells for warning in empty))
            write_elem(file, "empty_cells", empty[0].what if empty else "")
        return part

    def _infer(self, cells: AnnData) -> AnnotationResult:
        plan = self._plan
        named = ("layer", "use_raw", "confidence", "precision")
        options: dict[str, Any] = {name: getattr(plan, name) for name in named}
        options |= {
            "batch_size": self._batch_size,
            "sample": self._sample,
            "enable_progress_bar": False,
        }
        result = self._model.infer(cells, **options)
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
        return content["arrays"], EmptyCellsWarning(
            int(content["n_empty"]), str(content["empty_cells"])
        )
    # What damage raises depends on where it is.
    except Exception as error:
        raise OSError(
            f"the part {str(path)!r} is damaged: remove this file and call again to make it anew."
        ) from error


def annotate_on_workers(
    folder: Path, parts: list[int], client: Any, batch_size: int | None
) -> Iterator[int]:
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
    futures = client.map(
        _annotate_part, parts, folder=str(folder), minibatch=batch_size, pure=False
    )
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
    store = Store(
        plan.path,
        layer=plan.layer,
        use_raw=plan.use_raw,
        default_layer=model.modalities[0].layer,
    )
    return PartAnnotator(plan, Path(folder), store, model, batch_size)


# --------------------------------------------------------------------------- joining


def join_parts(
    plan: Plan,
    folder: Path,
    store: Store,
    sample: AnnotationResult,
    output: Path,
    *,
    cutoff: Cutoff,
    key_added: str,
    include_x: bool,
) -> None:
    """Write the annotated query to ``output``, whole or not at all.

    Parameters
    ----------
    plan
        The plan, all of whose parts are annotated.
    folder
        Folder of the parts.
    store
        The query.
    sample
        What the model says of a sample, with the names that the parts' numbers stand for.
    output
        Where to write; what is there is replaced.
    cutoff, key_added
        As in :meth:`tosica.TOSICA.annotate`.
    include_x
        Whether the matrices of the query are in the output, too.

    Raises
    ------
    OSError
        If a part is damaged, or the output cannot be written; the parts are kept.
    """
    with replacing_store(output) as temporary:
        copy_store(store, temporary, matrices=include_x)
        with open_for_writing(temporary) as root:
            for name in ("obsm", "uns"):
                if name not in root:
                    write_elem(root, name, {})
            columns = _write_attention(plan, folder, root["obsm"], f"X_{key_added}")
            obs = read_elem(root["obs"])
            result = replace(sample, obs_names=obs.index, attention=None, **columns)
            obs = obs.drop(
                columns=[f"{key_added}_{kind}" for kind in OUTDATED], errors="ignore"
            )
            write_elem(root, "obs", obs.assign(**result.obs(cutoff, key_added)))
            table = f"{key_added}_probabilities"
            if result.probabilities is not None:
                write_elem(root["obsm"], table, result.table())
            elif table in root["obsm"]:
                del root["obsm"][table]
            for name, value in result.uns(cutoff, key_added).items():
                as_array = (
                    np.array(value, dtype=object) if isinstance(value, list) else value
                )
                write_elem(root["uns"], name, as_array)
    result.warn_of_novelty()


def _write_attention(plan: Plan, folder: Path, obsm: Any, key: str) -> dict[str, Any]:
    """Write what is large part by part, and return the columns, which are not."""
    columns: dict[str, list[np.ndarray]] = {}
    n_empty, what, attention = 0, "", None
    for part in range(plan.n_parts):
        arrays, empty = read_part(part_file(folder, part))
        values = arrays.pop("attention")
        if attention is None:
            attention = create_array(obsm, key, values, plan.n_obs)
        start, stop = plan.cells(part)
        attention[start:stop] = values
        for name, array in arrays.items():
            columns.setdefault(name, []).append(array)
        n_empty, what = n_empty + empty.n_cells, empty.what or what
    if n_empty:
        warn_user(EmptyCellsWarning(n_empty, what))
    return {name: np.concatenate(arrays) for name, arrays in columns.items()}
