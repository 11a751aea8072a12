"""Open cells on disk, also in a container: a modality of a MuData, a table of a SpatialData store."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anndata as ad
import h5py
from anndata.io import read_elem, sparse_dataset

from tosica._text import list_names, only_known, parameter
from tosica.io._errors import ReadError
from tosica.io._file_kinds import CONTAINERS, FOLDERS, kind_of, store_in_archive
from tosica.io._tables import NAMES, raw_genes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tosica._types import AnyPath

# What an AnnData has besides matrices, which may be large.
ANNOTATIONS = ("obs", "var", "uns", "obsm", "varm")


def open_group(path: str, group: str = "") -> Any:
    """Open an ``.h5ad`` file, a Zarr store or a zipped one, or a group in it, for reading.

    Raises
    ------
    ModuleNotFoundError
        If Zarr, or what it reads an address with, is not installed.
    """
    if not Path(path).is_file():
        # A group may be of another version of Zarr than what it is in.
        return import_zarr(path).open_group(f"{path}/{group}".rstrip("/"), mode="r")
    if h5py.is_hdf5(path):
        root = h5py.File(path, "r")
    else:
        zarr = import_zarr(path)
        store = zarr.storage.ZipStore(path, mode="r")
        root = zarr.open_group(store, path=store_in_archive(path)[0], mode="r")
    return root[group] if group else root


def import_zarr(path: AnyPath) -> Any:
    """Import Zarr, which is not installed with every tosica."""
    try:
        import zarr
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{str(path)!r} is taken for a Zarr store, which needs zarr: pip install "
            "'tosica[atlas]'."
        ) from error
    return zarr


def list_groups(path: str) -> dict[str, str]:
    """Group of each modality or table of a container, by its name."""
    for folder in FOLDERS:
        if Path(path).is_file() and folder in open_group(path):
            names = list(open_group(path, folder))
        else:
            names = [group.name for group in Path(path, folder).glob("[!.]*/")]
        if names:
            return {name: f"{folder}/{name}" for name in sorted(names)}
    return {}


def choose_group(
    path: str, name: str | None = None, score: Callable[[Any], int] | None = None
) -> str:
    """Find the cells of a container: the group of one modality or table.

    Parameters
    ----------
    path
        Any file or store. The group of one that is no container is empty.
    name
        Name of the modality or table.
    score
        Tells how well the cells in a group fit, if there are several and no name: the group with
        the highest number is taken, unless all are zero or two have it.

    Raises
    ------
    ReadError
        If there is no such modality or table, or it is not known which one is meant.
    """
    kind = kind_of(path)
    if kind not in CONTAINERS:
        if name is not None:
            raise ReadError(
                f"{path!r} is of the kind {kind}, which has neither modalities nor "
                f"tables: leave {name!r} out."
            )
        return ""
    noun = CONTAINERS[kind]
    groups = list_groups(path)
    if name is not None:
        if name not in groups:
            raise ReadError(
                f"{path!r} has no {noun} {name!r}{only_known(name, groups)}"
            )
        return groups[name]
    scores = dict.fromkeys(groups, int(len(groups) == 1))
    if score is not None and len(groups) > 1:
        for member, group in groups.items():
            scores[member] = score(open_group(path, group))
    if not groups:
        raise ReadError(f"{path!r} has no {noun}, so there are no cells in it.")
    highest = max(scores.values())
    best = [member for member, fit in scores.items() if fit == highest]
    if not highest or len(best) > 1:
        raise ReadError(
            f"{path!r} is a {kind} of {list_names(list(groups))}, and it cannot be told "
            f"which {noun} is meant: choose one, as by {parameter(noun, best[0])}."
        )
    return groups[best[0]]


def read_whole(path: str, group: str = "") -> ad.AnnData:
    """Read all cells of a file, a store or a group in it into memory, as anndata does.

    Files of older versions are read, too.
    """
    root = open_group(path, group)
    with warnings.catch_warnings():
        for category in (ad.OldFormatWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        if not isinstance(root, h5py.Group):
            adata = ad.read_zarr(root)
        elif group:
            adata = read_elem(root)
        else:
            root.file.close()
            adata = ad.read_h5ad(path)
    if adata.raw is not None and NAMES in adata.raw.var:
        # SeuratDisk's names of genes; no column that is written may be called so.
        raw_var = raw_genes(adata.raw.var, adata.var)
        adata.raw = ad.AnnData(adata.raw.X, obs=adata.obs[[]], var=raw_var)
    return adata


def open_cells(
    path: str, group: str = "", annotations: Sequence[str] = ANNOTATIONS
) -> ad.AnnData:
    """Open cells whose matrices stay on disk; those that only anndata can read are read whole.

    Parameters
    ----------
    path, group
        File or store, and the group in it that has the cells.
    annotations
        Elements that are read into memory, ``obs`` and ``var`` among them.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ad.OldFormatWarning)
            root = open_group(path, group)
            elements = {
                name: read_elem(root[name]) for name in annotations if name in root
            }
            if "X" in root:
                elements["X"] = as_matrix(root["X"])
            if "raw/X" in root:
                raw_var = raw_genes(read_elem(root["raw/var"]), elements["var"])
                elements["raw"] = {"X": as_matrix(root["raw/X"]), "var": raw_var}
            layers = root.get("layers", {})
            elements["layers"] = {name: as_matrix(layers[name]) for name in layers}
            return ad.AnnData(**elements)
    except (ImportError, FileNotFoundError):
        raise
    # Such as tables and categories of anndata before 0.8.
    except Exception:
        return read_whole(path, group)


def as_matrix(element: Any) -> Any:
    """A matrix on disk whose rows can be read: an array, or a sparse matrix of anndata."""
    return element if hasattr(element, "shape") else sparse_dataset(element)
