"""Annotate a query in parts: the plan, the file of each part, and the workers of Dask."""

from __future__ import annotations

import json
import shutil
import threading
import warnings
from contextlib import suppress
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
from tosica._text import parameter
from tosica.data import EmptyCellsWarning
from tosica.model._annotation_result import outdated_columns
from tosica.model._inference import N_CELLS_OF_COMPARISON
from tosica.ondisk._store import (
    Store,
    annotated_copy,
    create_array,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anndata import AnnData

    from tosica.model import TOSICA, AnnotationResult
    from tosica.model._annotation_result import Cutoff
    from tosica.model._inference import Precision

_MANIFEST = "manifest.json"
_MODEL = "model"
# A worker annotates one part at a time.
_LOCK = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that decides the content of the parts. It is saved in their folder as the manifest.

    Parameters
    ----------
    path, group
        Path of the query, and the group of its cells in a container.
    n_obs
        Number of its cells.
    query
        Hash of the query, see :meth:`Store.digest`.
    model
        Fingerprint of the model.
    layer, use_raw
        The matrix that is read.
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
    group: str
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

    def cells(self, part_number: int) -> slice:
        """Positions of the cells of a part."""
        begin = part_number * self.cells_per_part
        return slice(begin, min(begin + self.cells_per_part, self.n_obs))

    def n_cells(self, part_number: int) -> int:
        """Number of cells of a part."""
        cells = self.cells(part_number)
        return int(cells.stop - cells.start)

    def missing_parts(self, folder: Path) -> list[int]:
        """Numbers of the parts that have no file yet."""
        numbers = range(self.n_parts)
        return [i for i in numbers if not _part_file(folder, i).is_file()]

    def begin(self, folder: Path, model: TOSICA, *, overwrite: bool) -> None:
        """Make the folder of the parts, or check that the parts in it belong to this plan.

        Raises
        ------
        ValueError
            If work on another plan was begun in the folder.
        """
        if overwrite:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        manifest = folder / _MANIFEST
        if not manifest.exists():
            # The model comes first: a folder with a manifest is complete.
            model.save(folder / _MODEL, overwrite=True)
            with replace_file(manifest) as path:
                path.write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")
            return
        saved = json.loads(manifest.read_text(encoding="utf-8"))
        for name, value in asdict(self).items():
            # The query may have been moved.
            if name != "path" and saved.get(name) != value:
                raise ValueError(
                    f"{str(folder)!r} holds parts of an annotation that was begun with another {name} "
                    f"({saved.get(name)!r}): go on with that, or pass {parameter('overwrite', True)} or another output."
                )


def _part_file(folder: Path, part_number: int) -> Path:
    return folder / f"part-{part_number:06d}.h5"


class PartAnnotator:
    """Annotate single parts of a query; each process gets the same result for a part.

    Parameters
    ----------
    plan
        The plan, which says what cells a part has.
    folder
        Folder of the parts.
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
        self._plan = plan
        self._folder = folder
        self._store = store
        self._model = model
        self._batch_size = batch_size
        self._sample = store.sample

    def infer_sample(self) -> AnnotationResult:
        """Annotate the sample, so that wrong queries fail before any work is done.

        As many cells are compared with the reference as of a query in memory.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmptyCellsWarning)
            result = self._infer(self._sample)
        spread = self._store.spread(N_CELLS_OF_COMPARISON)
        # The part of a cell that cannot be read names it.
        with suppress(ValueError, OSError):
            comparison = self._model._compare_with_reference(
                self._model._source(spread, None, self._plan.layer, self._plan.use_raw),
                self._sample,
            )
            result = replace(result, **comparison._asdict())
        return result

    def annotate(self, part_number: int) -> int:
        """Annotate a part, replace its file atomically, and return the part's number.

        Raises
        ------
        OSError
            If cells cannot be read, or the file cannot be written.
        ValueError
            As :meth:`tosica.TOSICA.annotate`.
        """
        cells = self._plan.cells(part_number)
        adata = self._store[cells]
        with warnings.catch_warnings(record=True) as caught, only_warnings(logger):
            warnings.simplefilter("always")
            try:
                result = self._infer(adata)
            except (ValueError, OSError) as error:
                kind = OSError if isinstance(error, OSError) else ValueError
                raise kind(
                    f"cells {cells.start} to {cells.stop - 1} of {self._store.path!r}, counted from {cells.start}: "
                    f"{error}"
                ) from error
        # All other warnings were already given for the sample.
        empty = [w.message for w in caught if isinstance(w.message, EmptyCellsWarning)]
        with (
            replace_file(_part_file(self._folder, part_number)) as temporary,
            as_os_error(),
            h5py.File(temporary, "w") as file,
        ):
            write_elem(file, "arrays", result.arrays())
            write_elem(file, "n_empty", sum(warning.n_cells for warning in empty))
            write_elem(file, "empty_cells", empty[0].description if empty else "")
        return part_number

    def _infer(self, cells: AnnData) -> AnnotationResult:
        plan = self._plan
        result = self._model.infer(
            cells,
            layer=plan.layer,
            use_raw=plan.use_raw,
            confidence=plan.confidence,
            precision=plan.precision,
            batch_size=self._batch_size,
            sample=self._sample,
            enable_progress_bar=False,
        )
        if not plan.probabilities:
            result = replace(result, probabilities=None)
        return result


def _read_part(path: Path) -> tuple[dict[str, np.ndarray], EmptyCellsWarning]:
    """Read the results of a part, and the warning about its cells without expression.

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
    # The type of the error depends on the place of the damage.
    except Exception as error:
        raise OSError(
            f"the part {str(path)!r} is damaged: remove this file and call again to make it anew."
        ) from error


# --------------------------------------------------------------------------- workers


def annotate_on_workers(
    folder: Path, part_numbers: list[int], client: Any, batch_size: int | None
) -> Iterator[int]:
    """Annotate parts on the workers of a client, which read the query and write the parts.

    A part whose worker is lost is given to another one.

    Parameters
    ----------
    folder
        Folder of the parts, with the manifest and the model.
    part_numbers
        The parts to annotate.
    client
        A ``dask.distributed.Client``.
    batch_size
        Cells in a minibatch.

    Yields
    ------
    Numbers of the parts, as soon as they are annotated.
    """
    from distributed import as_completed

    # The argument cannot be called batch_size, which is one of Client.map itself.
    futures = client.map(
        _annotate_part,
        part_numbers,
        folder=str(folder),
        minibatch_size=batch_size,
        pure=False,
    )
    try:
        for future in as_completed(futures):
            yield future.result()
    finally:
        client.cancel(futures)
        # The workers live on, without the model.
        client.run(_load_annotator.cache_clear)


def _annotate_part(part_number: int, *, folder: str, minibatch_size: int | None) -> int:
    from distributed import get_worker

    with _LOCK:
        torch.set_num_threads(get_worker().state.nthreads)
        return _load_annotator(folder, minibatch_size).annotate(part_number)


@lru_cache(maxsize=1)
def _load_annotator(folder: str, batch_size: int | None) -> PartAnnotator:
    from tosica.model import TOSICA

    plan = Plan.read(Path(folder))
    model = TOSICA.load(Path(folder) / _MODEL)
    store = Store(
        plan.path,
        plan.group,
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
    model: TOSICA,
    sample_result: AnnotationResult,
    output: Path,
    *,
    cutoff: Cutoff,
    key_added: str,
    include_x: bool,
) -> None:
    """Write the annotated query to ``output``, which is replaced atomically.

    Parameters
    ----------
    plan
        The plan, all of whose parts are annotated.
    folder
        Folder of the parts.
    store
        The query.
    model
        The model.
    sample_result
        Annotation of a sample, with the names of labels and gene sets.
    output
        Path of the output.
    cutoff, key_added
        As in :meth:`tosica.TOSICA.annotate`.
    include_x
        Whether the output has the matrices of the query as well.

    Raises
    ------
    OSError
        If a part is damaged, or the output cannot be written; the parts stay.
    """
    columns: dict[str, list[np.ndarray]] = {}
    n_empty = 0
    empty_cells = ""
    with annotated_copy(store, output, matrices=include_x) as root:
        for name in ("obsm", "uns"):
            if name not in root:
                write_elem(root, name, {})
        for part_number in range(plan.n_parts):
            arrays, warning = _read_part(_part_file(folder, part_number))
            values = arrays.pop("attention")
            if part_number == 0:
                attention = create_array(
                    root["obsm"], f"X_{key_added}", values, plan.n_obs
                )
            attention[plan.cells(part_number)] = values
            for name, array in arrays.items():
                columns.setdefault(name, []).append(array)
            n_empty += warning.n_cells
            empty_cells = warning.description or empty_cells
        if n_empty:
            warn_user(EmptyCellsWarning(n_empty, empty_cells))
        obs = read_elem(root["obs"])
        per_cell: dict[str, Any] = {
            name: np.concatenate(arrays) for name, arrays in columns.items()
        }
        if "distance" in per_cell:
            # A part has too few cells to tell what each label's cells share.
            per_cell["novelty_pvalue"] = model._novelty_pvalues(
                per_cell["distance"],
                per_cell["nearest"],
                sample_result.batch_signal,
            )
        result = replace(sample_result, obs_names=obs.index, attention=None, **per_cell)
        record = None
        if key_added in root["uns"]:
            record = read_elem(root["uns"][key_added])
        obs = obs.drop(columns=outdated_columns(key_added, record), errors="ignore")
        write_elem(root, "obs", obs.assign(**result.obs(cutoff, key_added)))
        table_key = f"{key_added}_probabilities"
        if result.probabilities is not None:
            write_elem(root["obsm"], table_key, result.table())
        elif table_key in root["obsm"]:
            del root["obsm"][table_key]
        # The table of clusters is of the labels before.
        novelty_key = f"{key_added}_novelty"
        if novelty_key in root["uns"]:
            del root["uns"][novelty_key]
        for name, value in result.uns(cutoff, key_added).items():
            if isinstance(value, list):
                value = np.array(value, dtype=object)
            write_elem(root["uns"], name, value)
    result.warn_of_doubts()
