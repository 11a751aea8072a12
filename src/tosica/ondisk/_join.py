"""Join the parts of an annotation to one store: the query with what ``annotate`` writes."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from anndata.io import read_elem, write_elem

from tosica._validation import file_columns
from tosica.data import EmptyCellsWarning, user_stacklevel
from tosica.model._annotation_result import outdated_columns
from tosica.ondisk._copy_elements import copy_store, create_array, open_for_writing, replacing_store
from tosica.ondisk._parts import read_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tosica.model import AnnotationResult
    from tosica.model._annotation_result import Cutoff
    from tosica.ondisk._plan import Plan
    from tosica.ondisk._store import Store

# Cells in a chunk of the attention; parts have whole chunks, unless their size was chosen.
_CHUNK = 4096


def output_format(output: Path) -> str:
    """Format of the annotated store, by its name.

    Raises
    ------
    ValueError
        If the name ends otherwise.
    """
    if output.suffix not in (".h5ad", ".zarr"):
        raise ValueError(f"output must end in .h5ad or .zarr, not {output.name!r}.")
    return output.suffix[1:]


def check_output(output: Path, path: str, *, overwrite: bool) -> None:
    """Refuse an output that cannot be written.

    Raises
    ------
    ValueError
        If it is the query itself.
    FileNotFoundError
        If its folder does not exist.
    FileExistsError
        If it exists and is not to be replaced.
    """
    if "://" not in path and output.resolve() == Path(path).resolve():
        raise ValueError("output is the query itself, which is not changed: give another path.")
    if not output.parent.is_dir():
        raise FileNotFoundError(
            f"the folder {str(output.parent)!r} to write {output.name!r} to does not exist: create "
            "it first."
        )
    if output.exists() and not overwrite:
        raise FileExistsError(
            f"{str(output)!r} exists: pass overwrite=True to replace it, or give another output."
        )


def join_parts(
    plan: Plan,
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
    store
        The query.
    sample
        What the model says of a sample, with the names that the parts' numbers stand for.
    cutoff, key_added
        As in :meth:`tosica.TOSICA.annotate`.
    output
        Where to write; what is there is replaced.
    include_x
        Whether the matrices of the query are in the output, too.

    Raises
    ------
    OSError
        If a part is damaged, or the output cannot be written.
    """
    format_ = output_format(output)
    try:
        with replacing_store(output) as temporary:
            copy_store(store, temporary, format_, matrices=include_x)
            with open_for_writing(temporary, format_) as root:
                found = _write_attention(plan, root, sample, key_added)
                _write_columns(root, found, cutoff, key_added)
    except OSError as error:
        if error.errno is None:
            raise
        raise type(error)(
            f"{str(output)!r} could not be written ({error.strerror or error}): is the disk full, "
            "or the folder read-only? The annotated parts are kept, and the next call joins them."
        ) from error
    found.warn_of_novelty()


def _write_attention(plan: Plan, root: Any, sample: AnnotationResult, key: str) -> AnnotationResult:
    """Write what is large part by part, and return what ``obs`` and ``uns`` are made of."""
    identity = plan.identity()
    obsm = root.require_group("obsm")
    obsm.attrs.update({"encoding-type": "dict", "encoding-version": "0.1.0"})
    for name in (f"X_{key}", f"{key}_probabilities"):
        if name in obsm:
            del obsm[name]
    shape = (plan.n_obs, len(sample.gene_sets))
    attention = create_array(
        obsm, f"X_{key}", shape, np.float32, (min(_CHUNK, shape[0]), max(shape[1], 1))
    )
    table = _Table(obsm, f"{key}_probabilities", root["obs"], sample.labels, plan.n_obs)
    columns: dict[str, list[np.ndarray]] = {}
    n_empty, what = 0, ""
    for (start, stop), (part, empty) in _read(plan, identity):
        attention[start:stop] = part.pop("attention")
        if "probabilities" in part:
            table.write(start, stop, part.pop("probabilities"))
        for name, values in part.items():
            columns.setdefault(name, []).append(values)
        n_empty, what = n_empty + empty.n_cells, empty.what or what
    if n_empty:
        warnings.warn(EmptyCellsWarning(n_empty, what), stacklevel=user_stacklevel())
    joined = {name: np.concatenate(values) for name, values in columns.items()}
    return replace(sample, **joined)


def _read(plan: Plan, identity: str) -> Iterator[Any]:
    for part in range(plan.n_parts):
        yield plan.cells(part), read_part(plan.file(part), identity)


class _Table:
    """A table of ``obsm`` with a column for each label, which is filled part by part."""

    def __init__(self, obsm: Any, name: str, obs: Any, labels: list[str], n_obs: int) -> None:
        self._obsm, self._name, self._obs = obsm, name, obs
        self._labels, self._n_obs = labels, n_obs
        self._columns: list[Any] = []

    def write(self, start: int, stop: int, values: np.ndarray) -> None:
        if not self._columns:
            self._make()
        for column, of_label in zip(self._columns, values.T, strict=True):
            column[start:stop] = np.ascontiguousarray(of_label)

    def _make(self) -> None:
        names = file_columns(self._labels, "the model")
        group = self._obsm.create_group(self._name)
        index = _index_of(self._obs)
        write_elem(group, "_index", np.asarray(index, dtype=object))
        group.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0"})
        group.attrs["_index"] = "_index"
        group.attrs["column-order"] = names
        chunks = (min(_CHUNK, self._n_obs),)
        self._columns = [create_array(group, n, (self._n_obs,), np.float32, chunks) for n in names]


def _index_of(obs: Any) -> Any:
    if hasattr(obs, "shape"):  # a table of an old file
        return read_elem(obs).index
    return read_elem(obs[obs.attrs["_index"]])


def _write_columns(root: Any, found: AnnotationResult, cutoff: Cutoff, key: str) -> None:
    """Write the columns of ``obs`` and the entries of ``uns``; other columns are not read."""
    columns = found.obs(cutoff, key)
    obs = root["obs"]
    if hasattr(obs, "shape"):
        write_elem(root, "obs", read_elem(obs))
        obs = root["obs"]
    order = [str(name) for name in obs.attrs["column-order"]]
    for name in {*outdated_columns(key), *columns}:
        if name in obs:
            del obs[name]
    order = [name for name in order if name in obs]
    for name, values in columns.items():
        write_elem(obs, name, values)
    obs.attrs["column-order"] = [*order, *columns]
    uns = root.require_group("uns")
    uns.attrs.update({"encoding-type": "dict", "encoding-version": "0.1.0"})
    for name, value in found.uns(cutoff, key).items():
        if name in uns:
            del uns[name]
        write_elem(uns, name, np.array(value, dtype=object) if isinstance(value, list) else value)
