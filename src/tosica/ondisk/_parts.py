"""Annotate one range of a query's cells, and keep the result in a file until all are joined."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import h5py
import numpy as np

from tosica._files import as_os_error, replace_file
from tosica._logging import logger, only_warnings
from tosica.data import EmptyCellsWarning

if TYPE_CHECKING:
    from pathlib import Path

    from anndata import AnnData

    from tosica.model import TOSICA, AnnotationResult
    from tosica.ondisk._plan import Plan
    from tosica.ondisk._store import Store

_N_EMPTY, _WHAT, _IDENTITY, _DIGEST = "n_empty", "empty_cells", "identity", "sha256"


class PartAnnotator:
    """Annotates ranges of a query; each range by itself, with the same result in any process.

    Parameters
    ----------
    plan
        Which ranges there are.
    store
        The query.
    model
        The model.
    batch_size
        Cells in a minibatch.
    """

    def __init__(
        self, plan: Plan, store: Store, model: TOSICA, batch_size: int | None = None
    ) -> None:
        self._plan = plan
        self._store = store
        self._model = model
        self._batch_size = batch_size
        self._sample = store.read_sample()

    def infer_sample(self) -> AnnotationResult:
        """Annotate the sample, so that wrong queries fail before any work is done.

        Raises
        ------
        ValueError
            As :meth:`tosica.TOSICA.annotate`.

        Warns
        -----
        UserWarning
            As :meth:`tosica.TOSICA.annotate`, but of cells that express nothing.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmptyCellsWarning)
            return self._infer(self._sample)

    def annotate(self, part: int) -> None:
        """Annotate a part and write its file.

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
                found = self._infer(cells)
            except ValueError as error:
                raise ValueError(
                    f"cells {start} to {stop - 1} of {self._store.path!r}, counted from {start}: "
                    f"{error}"
                ) from error
        # The other warnings are those of the sample, too.
        empty = [w.message for w in caught if isinstance(w.message, EmptyCellsWarning)]
        write_part(self._plan.file(part), found, empty, self._plan.identity())

    def _infer(self, cells: AnnData) -> AnnotationResult:
        settings = self._plan.settings
        result = self._model.infer(
            cells,
            layer=settings.layer,
            use_raw=settings.use_raw,
            batch_size=self._batch_size,
            precision=settings.precision,
            sample=self._sample,
            enable_progress_bar=False,
        )
        return result if settings.probabilities else replace(result, probabilities=None)


def write_part(
    path: Path, found: AnnotationResult, empty: list[EmptyCellsWarning], identity: str
) -> None:
    """Write the file of a part, whole or not at all.

    Parameters
    ----------
    path
        The file.
    found
        What the model says of the part's cells.
    empty
        What is to be said of cells that express nothing.
    identity
        Identity of the plan.
    """
    arrays = found.arrays()
    with replace_file(path) as temporary, as_os_error(), h5py.File(temporary, "w") as file:
        for name, array in arrays.items():
            file[name] = array
        file.attrs[_N_EMPTY] = sum(warning.n_cells for warning in empty)
        file.attrs[_WHAT] = empty[0].what if empty else ""
        file.attrs[_IDENTITY] = identity
        file.attrs[_DIGEST] = _digest(arrays)


def read_part(path: Path, identity: str) -> tuple[dict[str, np.ndarray], EmptyCellsWarning]:
    """Read the file of a part, and what is to be said of its cells that express nothing.

    Raises
    ------
    OSError
        If it is damaged.
    """
    try:
        with h5py.File(path, "r") as file:
            arrays = {name: file[name][:] for name in file}
            whole = file.attrs[_DIGEST] == _digest(arrays) and file.attrs[_IDENTITY] == identity
            empty = EmptyCellsWarning(int(file.attrs[_N_EMPTY]), str(file.attrs[_WHAT]))
    except (OSError, KeyError, RuntimeError) as error:
        raise _damaged(path) from error
    if not whole:
        raise _damaged(path)
    return arrays, empty


def _damaged(path: Path) -> OSError:
    return OSError(
        f"the part {str(path)!r} is damaged or of another annotation: remove this file, and call "
        "again to annotate its cells anew."
    )


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
