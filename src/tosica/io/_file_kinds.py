"""Tell the kind of a file or folder by its first bytes and its members, not by its name."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any
from zipfile import ZipFile, is_zipfile

import h5py

from tosica._files import explain_hdf5
from tosica._text import list_names
from tosica.io._errors import ReadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tosica._types import AnyPath

KNOWN = (
    ".h5ad, .h5mu, .zarr, .loom, .h5 of 10x Genomics, .rds, .h5Seurat, or a folder with "
    "matrix.mtx or filtered_feature_bc_matrix.h5"
)
# What cells are called in each kind of container, and folders that they may be in.
CONTAINERS = {"MuData": "modality", "SpatialData": "table"}
FOLDERS = ("mod", "tables", "table")
# What can be read in parts.
ON_DISK = ("h5ad", "zarr", *CONTAINERS)
# Files of which each Zarr group has one.
STORE_FILES = (".zgroup", "zarr.json")
_SPATIAL_ELEMENTS = {"images", "labels", "points", "shapes"}
_HDF5 = b"\x89HDF\r\n\x1a\n"
# Openers of compressed files, by their first bytes.
_COMPRESSED: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
# Kinds by first bytes.
_KINDS = {
    b"%%MatrixMarket": "10x_mtx",
    b"PAR1": "table",
    b"X\n": "rds",
    b"A\n": "rds",
    b"B\n": "rds",
}
_WEB_PAGE = "a web page, XML or JSON, as of a page that asks to sign in: download the file itself"
# Descriptions of unreadable files by first bytes; the first match counts.
_UNREADABLE = {
    b"version https://git-lfs": "a pointer of Git LFS, which stands for the file: call "
    "git lfs pull",
    b"RD": "an R workspace, which save() of R writes: write the one object by "
    "saveRDS(object, 'object.rds')",
    b"PK\x03\x04": "a ZIP archive: unpack it, and give what is in it",
    b"<": _WEB_PAGE,
    b"{": _WEB_PAGE,
}
_KINDS_BY_NAME = {".rds": "rds", ".csv": "table", ".tsv": "table"}


class _NotReadableError(Exception):
    """A description of a file or folder that no reader takes."""


def kind_of(path: AnyPath) -> str:
    """Tell the kind of a file or folder.

    Returns
    -------
    ``"h5ad"``, ``"h5seurat"``, ``"10x_h5"``, ``"10x_mtx"``, ``"10x_folder"`` (with one of them),
    ``"rds"``, ``"loom"``, ``"zarr"``, ``"MuData"``, ``"SpatialData"``, ``"table"`` or ``"model"``.

    Raises
    ------
    FileNotFoundError
        If there is nothing.
    ReadError
        If it is of another kind; the sentence describes it and gives advice.
    """
    name = str(path)
    path = Path(path)
    suffix = path.suffix.lower()
    if "://" in name and suffix == ".zarr":
        return "zarr"
    if not path.exists():
        raise FileNotFoundError(f"There is no file or folder {name!r}.")
    try:
        kind = _kind_of_folder(path) if path.is_dir() else _kind_of_file(path)
    except _NotReadableError as description:
        raise ReadError(f"{name!r} is {description}.") from description.__cause__
    if kind is None and path.is_file():
        kind = _KINDS_BY_NAME.get(suffix)
        if suffix in (".h5ad", ".h5seurat", ".h5"):
            raise ReadError(
                f"{name!r} is not a whole HDF5 file: copy or download it to the end."
            )
    if kind is None:
        raise ReadError(f"{name!r} holds neither cells nor a model: give {KNOWN}.")
    return kind


def open_text(path: Path) -> IO[bytes]:
    """Open a file for reading bytes, decompressed by its contents, not by its name."""
    opener = _decompressor(path) or open
    return opener(path, "rb")


def _decompressor(path: Path) -> Callable[..., Any] | None:
    with path.open("rb") as file:
        head = file.read(8)
    for signature, opener in _COMPRESSED.items():
        if head.startswith(signature):
            return opener
    return None


def _kind_of_folder(path: Path) -> str | None:
    """Kind of a folder, by the names of what is in it."""
    names = {member.name for member in path.iterdir()}
    if path.suffix.lower() == ".zarr" or names & {*STORE_FILES}:
        return _kind_of_store(names)
    if "model.pt" in names:
        return "model"
    return "10x_folder" if matrices_in(path) else None


def _kind_of_store(names: set[str]) -> str:
    """Tell a container from cells, by the names in a Zarr store."""
    if "mod" in names:
        return "MuData"
    is_spatial = _SPATIAL_ELEMENTS & names and "obs" not in names
    return "SpatialData" if is_spatial else "zarr"


def store_in_archive(path: AnyPath) -> tuple[str | None, set[str]]:
    """Find the Zarr store in a ZIP archive: its folder, if there is one, and the names in it."""
    if not is_zipfile(path):
        return None, set()
    with ZipFile(path) as archive:
        paths = [PurePosixPath(name) for name in archive.namelist()]
    folders = [path.parent for path in paths if path.name in STORE_FILES]
    if not folders:
        return None, set()
    # The store may be a folder of the archive.
    store = min(folders)
    depth = len(store.parts)
    names = {path.parts[depth] for path in paths if store in path.parents}
    return str(store).strip("."), names


def matrices_in(folder: Path) -> list[Path]:
    """Matrices of 10x Genomics in a folder, or else in folders in it."""
    for depth in ("", "**/"):
        paths = [
            path
            for pattern in ("*.mtx", "*.mtx.gz", "*.h5")
            for path in sorted(folder.glob(f"{depth}{pattern}"))
            if path.suffix != ".h5" or _is_10x_h5(path)
        ]
        if paths:
            return paths
    return []


def _is_10x_h5(path: Path) -> bool:
    try:
        return _kind_of_hdf5(path) == "10x_h5"
    except _NotReadableError:
        return False


def _kind_of_file(path: Path) -> str | None:
    try:
        is_compressed = _decompressor(path) is not None
        with open_text(path) as file:
            head = file.read(512)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return None
    # A MuData has 512 bytes of its own before those of HDF5.
    if head.startswith((_HDF5, b"MuData")):
        if is_compressed:
            raise _NotReadableError(
                "an HDF5 file that was compressed as a whole: unpack it first, as by "
                "gunzip"
            )
        return _kind_of_hdf5(path)
    if head[257:262] == b"ustar":
        raise _NotReadableError(
            "a tar archive: unpack it, and give the file or folder that is in it"
        )
    if b"[Content_Types].xml" in head:
        raise _NotReadableError(
            "an Excel or other Office file: save its table as .csv, and make cells of "
            "that"
        )
    if not is_compressed and not head.strip():
        raise _NotReadableError("empty: download or copy it again")
    store, members = store_in_archive(path)
    if store is not None:
        kind = _kind_of_store(members)
        if kind in CONTAINERS:
            raise _NotReadableError(
                f"a {kind} in a ZIP archive: unpack it, and give the folder that is in it"
            )
        return kind
    head = head.lstrip()
    for signature, kind in _KINDS.items():
        if head.startswith(signature):
            return kind
    for signature, description in _UNREADABLE.items():
        if head.startswith(signature):
            raise _NotReadableError(description)
    is_text = b"\0" not in head and (b"," in head or b"\t" in head)
    return "table" if is_text else None


def _refuse_slashes(file: h5py.File) -> None:
    """Refuse names with a slash, which anndata wrote as groups and does not read again."""
    for slot in ("layers", "obsm", "varm", "obsp", "varp"):
        # Before 0.7, a slot was a table.
        elements = file.get(slot)
        if not isinstance(elements, h5py.Group):
            continue
        for name, element in elements.items():
            # All that anndata writes has attributes, which say how it is encoded.
            if isinstance(element, h5py.Group) and not element.attrs:
                key = f"{slot}/{name}"
                raise _NotReadableError(
                    f"a file with {'/'.join([key, *list(element)[:1]])!r}, a name with a "
                    f"slash, which anndata cannot read: move it to uns, as by "
                    f"h5py.File({file.filename!r}, 'r+').move({key!r}, 'uns/{name}')"
                )


def _kind_of_hdf5(path: Path) -> str:
    try:
        with h5py.File(path) as file:
            members = dict(file)
            if {"assays", "cell.names"} <= members.keys():
                return "h5seurat"
            if "mod" in members:
                return "MuData"
            if members.keys() & {"obs", "var", "X"}:
                _refuse_slashes(file)
                return "h5ad"
            if {"row_attrs", "col_attrs"} <= members.keys():
                return "loom"
            for member in members.values():
                if isinstance(member, h5py.Group) and {"barcodes", "indptr"} <= set(
                    member
                ):
                    return "10x_h5"
            names = list_names(list(members), 5) or "nothing"
            raise _NotReadableError(
                f"an HDF5 file with {names}, which is no known layout of cells"
            )
    except OSError as error:
        raise _NotReadableError(
            f"damaged or in use ({error}); {explain_hdf5(error)}"
        ) from error
