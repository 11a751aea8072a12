"""Annotate a query with a model: in memory, or of any size from disk to disk."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pandas as pd
from anndata.io import read_elem

from tosica._files import check_output
from tosica._obs import file_columns
from tosica._progress import progress
from tosica._settings import logger
from tosica._text import format_thousands, in_python
from tosica._validate import CellData, FileKey, InstanceOf, OneOf, validate_params
from tosica.data import find_genes
from tosica.data._matrix import check_layer
from tosica.io._containers import choose_group, open_group
from tosica.io._errors import ReadError, explain_damage
from tosica.io._file_kinds import ON_DISK, kind_of
from tosica.model import TOSICA
from tosica.model._annotation_result import (
    CONFIDENCE,
    CUTOFF,
    DEFAULT_CONFIDENCE,
    DEFAULT_CUTOFF,
    Cutoff,
    check_key_added,
    warn_of_cutoff,
)
from tosica.model._inference import Precision
from tosica.ondisk import (
    PartAnnotator,
    Plan,
    Store,
    annotate_on_workers,
    is_copy_of_container,
    join_parts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tosica._types import AnnOrMuData, AnyPath

_MODEL = InstanceOf(
    "a TOSICA model, the folder of one, or 'blood'", TOSICA, str, os.PathLike
)


@validate_params(adata=CellData(mudata=True), model=_MODEL)
def annotate(
    adata: AnnOrMuData,
    model: TOSICA | AnyPath = "blood",
    **kwargs: Any,
) -> AnnOrMuData | None:
    """Annotate a query with a model, by default that of human blood which comes with the package.

    Parameters
    ----------
    adata
        The query, counts or log-normalized expression, ``(n_obs, n_vars)``.
    model
        A model, the folder of a saved one, or ``"blood"``.
    **kwargs
        Passed to :meth:`tosica.TOSICA.annotate`, which says what is written.

    Returns
    -------
    ``None``, or with ``copy=True`` an annotated copy.

    Raises
    ------
    FileNotFoundError
        If there is no such model.
    RuntimeError, TypeError, ValueError
        As :meth:`tosica.TOSICA.annotate`.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import tosica
    >>> copy = tosica.tl.annotate(query, model, copy=True)
    >>> bool((copy.obs["tosica_prediction"] == query.obs["tosica_prediction"]).all())
    True
    """
    return _load_model(model).annotate(adata, **kwargs)


@validate_params(
    model=_MODEL,
    cutoff=CUTOFF,
    confidence=CONFIDENCE,
    precision=OneOf(*get_args(Precision)),
    key_added=FileKey(),
)
def annotate_file(
    path: AnyPath,
    model: TOSICA | AnyPath,
    output: AnyPath,
    *,
    modality: str | None = None,
    table: str | None = None,
    layer: str | None = None,
    use_raw: bool = False,
    labels: str | Iterable[str] | None = None,
    cutoff: Cutoff = DEFAULT_CUTOFF,
    confidence: float = DEFAULT_CONFIDENCE,
    probabilities: bool = False,
    include_x: bool = True,
    batch_size: int | None = None,
    precision: Precision = "32-true",
    key_added: str = "tosica",
    cells_per_part: int = 49_152,
    client: Any = None,
    overwrite: bool = False,
    enable_progress_bar: bool = True,
) -> None:
    """Annotate a query that is larger than memory: from a file to a file, in parts.

    The result is the one of :meth:`tosica.TOSICA.annotate`, in a copy of the query, which is not
    changed. ``cells_per_part`` cells are read and annotated at a time. Each part is kept in a
    folder beside the output, ``<output>.parts``, until all are there and are joined. A call that is
    interrupted or killed loses the part in progress only: the same call goes on where it ended.

    Parameters
    ----------
    path
        The query: an ``.h5ad`` file, a folder with a Zarr store, or the address of a Zarr store,
        such as ``s3://…``; or a MuData (``.h5mu``, Zarr) or SpatialData store. Its matrix is dense
        or sparse by cells (CSR). A file of anndata before 0.8 is read as a whole.
    model
        The model, the folder that it was saved to, or ``"blood"``.
    output
        The annotated query, ending in ``.h5ad`` or ``.zarr``. One that ends as a container does has
        all of it: ``.h5mu``, or ``.zarr`` for a Zarr store. With ``overwrite``, it may be the store
        itself, whose table is then replaced.
    modality, table
        Modality of a MuData, or table of a SpatialData store; by default the only one, or the one
        that has most of the model's genes.
    layer, use_raw, labels, cutoff, confidence, probabilities, batch_size, precision, key_added
        As in :meth:`tosica.TOSICA.annotate`.
    include_x
        Copy the matrices of the query to the output as well: ``X``, ``layers``, ``raw``, ``obsp``.
        Without them, the output has ``obs``, ``var``, ``obsm``, ``varm``, ``varp`` and ``uns``.
    cells_per_part
        Number of cells that are read and annotated at a time.
    client
        A ``dask.distributed.Client``, whose workers annotate the parts; they need the same disk.
        Each worker takes one part at a time, with all of its threads.
    overwrite
        Replace ``output`` if it exists, and drop parts of an earlier call.
    enable_progress_bar
        As in :meth:`tosica.TOSICA.annotate`.

    Raises
    ------
    FileNotFoundError
        If there is no such query, model or folder.
    FileExistsError
        If ``output`` exists.
    ModuleNotFoundError
        If a package is missing that reads such a query.
    TypeError
        If an argument is of the wrong type.
    ValueError
        If ``output`` is the query or ends otherwise, or in ``.h5mu`` without ``include_x``; if there are
        parts that were begun with another query, model, version or argument; and as :meth:`tosica.TOSICA.annotate`.
    KeyError
        If the query has no such layer or matrix, or the model no such label.
    OSError
        If the query is damaged, or the disk is full.
    RuntimeError
        If a worker has another version of tosica, or the model is not trained.

    Warns
    -----
    UserWarning
        As :meth:`tosica.TOSICA.annotate`.

    Notes
    -----
    Names of cells are copied as they are, also if they occur twice. To recognize work that was
    begun, the query's genes, its sparsity and a sample of its values are hashed, not all values.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import anndata
    >>> import tosica
    >>> with TemporaryDirectory() as folder:
    ...     source, output = (
    ...         Path(folder) / "query.h5ad",
    ...         Path(folder) / "annotated.h5ad",
    ...     )
    ...     query.write_h5ad(source)
    ...     tosica.tl.annotate_file(source, model, output, cells_per_part=100)
    ...     anndata.read_h5ad(output).obsm["X_tosica"].shape
    (175, 63)
    """
    check_layer(layer, use_raw=use_raw)
    source = os.fspath(path)
    model = _load_model(model, labels)
    group = find_cells(source, model, modality or table)
    target = _check_target(
        output, source, group, overwrite=overwrite, include_x=include_x
    )
    if probabilities:
        file_columns(model.labels, "the model")
    store = Store(
        source,
        group,
        layer=layer,
        use_raw=use_raw,
        default_layer=model.modalities[0].layer,
    )
    with closing(store):
        _check_key_added(key_added, store)
        plan = Plan(
            path=_absolute(source),
            group=group,
            n_obs=store.n_obs,
            query=store.digest(),
            model=model.fingerprint,
            layer=layer,
            use_raw=use_raw,
            confidence=confidence,
            probabilities=probabilities,
            precision=precision,
            cells_per_part=cells_per_part,
        )
        folder = target.with_name(f"{target.name}.parts")
        annotator = PartAnnotator(plan, folder, store, model, batch_size)
        sample_result = annotator.infer_sample()
        warn_of_cutoff(cutoff, len(model.labels))
        plan.begin(folder, model, overwrite=overwrite)
        _annotate_parts(
            annotator,
            plan,
            folder,
            client,
            batch_size,
            show_progress=enable_progress_bar,
        )
        join_parts(
            plan,
            folder,
            store,
            model,
            sample_result,
            target,
            cutoff=cutoff,
            key_added=key_added,
            include_x=include_x,
        )
    shutil.rmtree(folder, ignore_errors=True)
    n_cells = format_thousands(plan.n_obs)
    logger.info(f"annotate_file: wrote {n_cells} annotated cells to {target}")


def _check_key_added(key_added: str, store: Store) -> None:
    """Refuse a key under which a query has something else than an annotation."""
    root = open_group(store.path, store.group)
    uns, obsm = root.get("uns", {}), root.get("obsm", {})
    check_key_added(key_added, uns, store.adata.obs, obsm)


def _load_model(
    model: TOSICA | AnyPath, labels: str | Iterable[str] | None = None
) -> TOSICA:
    """Load a model if it is not one, and take the labels that can occur."""
    loaded = model if isinstance(model, TOSICA) else TOSICA.load(os.fspath(model))
    if labels is None:
        return loaded
    return loaded.subset(labels)


def _absolute(source: str) -> str:
    """Absolute path of a file on this machine; an address of another one as it is."""
    return source if "://" in source else str(Path(source).resolve())


def find_cells(path: str, model: TOSICA, name: str | None = None) -> str:
    """Find the group of a container that a model annotates; empty if the file is none.

    Parameters
    ----------
    path
        Any file or store.
    model
        The model, with most of whose genes a modality or table is taken if there are several.
    name
        Name of the modality or table.
    """
    genes = pd.Index(model.get_var_names(legacy_mudata_format=True)).astype(str)

    def count_genes(group: Any) -> int:
        var = read_elem(group["var"])
        return int((find_genes(var.index, genes, lambda: var).indexer >= 0).sum())

    with explain_damage(path):
        kind = kind_of(path)
        if kind not in ON_DISK and name is None:
            raise ReadError(
                f"{path!r} is of the kind {kind}, which is not read in parts: pass an .h5ad file or a Zarr store."
            )
        return choose_group(path, name, count_genes)


def _check_target(
    output: AnyPath, source: str, group: str, *, overwrite: bool, include_x: bool
) -> Path:
    """Check that the output can be written, and is not the query."""
    target = Path(output)
    is_container = is_copy_of_container(source, group, target)
    if target.suffix not in (".h5ad", ".zarr") and not is_container:
        raise ValueError(f"output must end in .h5ad or .zarr, not {target.name!r}.")
    if str(target.resolve()) == _absolute(source) and not is_container:
        raise ValueError(
            "output is the query itself, which is not changed: give another path."
        )
    if target.suffix.lower() == ".h5mu" and not include_x:
        raise ValueError(
            f"{target.name!r} would be no MuData without matrices: end output in .h5ad or .zarr"
            f"{in_python(', or leave include_x=False out')}."
        )
    check_output(target, overwrite=overwrite)
    return target


def _annotate_parts(
    annotator: PartAnnotator,
    plan: Plan,
    folder: Path,
    client: Any,
    batch_size: int | None,
    *,
    show_progress: bool,
) -> None:
    """Annotate all parts that have no file yet, here or on the workers of ``client``."""
    missing = plan.missing_parts(folder)
    if 0 < len(missing) < plan.n_parts:
        logger.info(
            f"annotate_file: {plan.n_parts - len(missing)} of {plan.n_parts} parts are there already"
        )
    finished: Iterator[int] = map(annotator.annotate, missing)
    if client is not None:
        finished = annotate_on_workers(folder, missing, client, batch_size)
    n_missing = sum(plan.n_cells(part_number) for part_number in missing)
    with progress(n_missing, "annotate", enabled=show_progress) as bar:
        for part_number in finished:
            bar.update(plan.n_cells(part_number))
