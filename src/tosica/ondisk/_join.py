"""Join the parts of an annotation to one store: the query with what ``annotate`` writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from anndata.io import read_elem, write_elem

from tosica._settings import warn_user
from tosica.data import EmptyCellsWarning
from tosica.model._annotation_result import outdated_columns
from tosica.ondisk._parts import part_file, read_part
from tosica.ondisk._store import copy_store, create_array, open_for_writing, replacing_store

if TYPE_CHECKING:
    from tosica.model import AnnotationResult
    from tosica.model._annotation_result import Cutoff
    from tosica.ondisk._parts import Plan
    from tosica.ondisk._store import Store


def check_output(output: Path, path: str, *, overwrite: bool) -> None:
    """Refuse an output that cannot be written.

    Raises
    ------
    ValueError
        If it is the query itself, or its name does not end in ``.h5ad`` or ``.zarr``.
    FileNotFoundError
        If its folder does not exist.
    FileExistsError
        If it exists and is not to be replaced.
    """
    if output.suffix not in (".h5ad", ".zarr"):
        raise ValueError(f"output must end in .h5ad or .zarr, not {output.name!r}.")
    if "://" not in path and output.resolve() == Path(path).resolve():
        raise ValueError("output is the query itself, which is not changed: give another path.")
    if not output.parent.is_dir():
        raise FileNotFoundError(
            f"the folder {str(output.parent)!r} to write {output.name!r} to does not exist: create it first."
        )
    if output.exists() and not overwrite:
        raise FileExistsError(f"{str(output)!r} exists: pass overwrite=True to replace it, or give another output.")


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
    format_ = output.suffix[1:]
    with replacing_store(output) as temporary:
        copy_store(store, temporary, format_, matrices=include_x)
        with open_for_writing(temporary, format_) as root:
            for name in ("obsm", "uns"):
                if name not in root:
                    write_elem(root, name, {})
            columns = _write_attention(plan, folder, root["obsm"], f"X_{key_added}")
            obs = read_elem(root["obs"])
            result = replace(sample, obs_names=obs.index, attention=None, **columns)
            obs = obs.drop(columns=outdated_columns(key_added), errors="ignore")
            write_elem(root, "obs", obs.assign(**result.obs(cutoff, key_added)))
            table = f"{key_added}_probabilities"
            if result.probabilities is not None:
                write_elem(root["obsm"], table, result.table())
            elif table in root["obsm"]:
                del root["obsm"][table]
            for name, value in result.uns(cutoff, key_added).items():
                as_array = np.array(value, dtype=object) if isinstance(value, list) else value
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
