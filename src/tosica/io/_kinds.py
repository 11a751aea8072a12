"""Tell the kind of a file or folder by its first bytes and its members, not by its name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import Any

import h5py

from tosica._files import explain_hdf5
from tosica._text import list_names
from tosica.io._parts import ReadError

KNOWN = (
    ".h5ad, .zarr, .h5 of 10x Genomics, .rds, .h5Seurat, or a folder with matrix.mtx"
)
_HDF5 = b"\x89HDF\r\n\x1a\n"
# What reads compressed files, by their first bytes.
_COMPRESSED: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
# By first bytes the kind of what is read, or a sentence on what is not; the first that fits.
_SIGNS = {
    b"%%MatrixMarket": "10x_mtx",
    b"PAR1": "table",
    **dict.fromkeys((b"X\n", b"A\n", b"B\n"), "rds"),
    b"version https://git-lfs": "a pointer of Git LFS, which stands for the file: call git lfs pull",
    b"RD": "an R workspace, which save() of R writes: write the one object by saveRDS(object, 'object.rds')",
    b"PK\x03\x04": "a ZIP archive: unpack it, and give what is in it",
    **dict.fromkeys(
        (b"<", b"{"),
        "a web page, XML or JSON, as of a page that asks to sign in: download the file itself",
    ),
}


def kind_of(path: str | Path) -> str:
    """Say what is at a path.

    Returns
    -------
    ``"h5ad"``, ``"h5seurat"``, ``"10x_h5"``, ``"10x_mtx"`` (a folder, or the matrix in it), ``"rds"``, ``"zarr"``,
    ``"table"`` or ``"model"``.

    Raises
    ------
    FileNotFoundError
        If there is nothing.
    ReadError
        If it is something else; the sentence says what, and what to do.
    """
    name, path = str(path), Path(path)
    suffix = path.suffix.lower()
    if "://" in name and suffix == ".zarr":
        return "zarr"
    if not path.exists():
        raise FileNotFoundError(f"There is no file or folder {name!r}.")
    found = _of_folder(path) if path.is_dir() else _of_file(path)
    if not found and path.is_file():
        if suffix in (".h5ad", ".h5seurat", ".h5"):
            found = "not a whole HDF5 file: copy or download it to the end"
        found = {".rds": "rds", ".csv": "table", ".tsv": "table"}.get(suffix, found)
    if not found or " " in found:
        what = (
            f"is {found}" if found else f"holds neither cells nor a model: give {KNOWN}"
        )
        raise ReadError(f"{name!r} {what}.")
    return found


def open_text(path: Path) -> Any:
    """Open a file for reading bytes, compressed or not, whatever its name is."""
    with path.open("rb") as file:
        head = file.read(8)
    return next(
        (opener for sign, opener in _COMPRESSED.items() if head.startswith(sign)), open
    )(path, "rb")


def _of_folder(path: Path) -> str:
    names = {each.name for each in path.iterdir()}
    if path.suffix.lower() == ".zarr" or {".zgroup", "zarr.json"} & names:
        return "zarr"
    return "model" if "model.pt" in names else "10x_mtx" if matrices_in(path) else ""


def matrices_in(folder: Path) -> list[Path]:
    """Matrices in a folder, or else in folders in it."""
    for pattern in ("*.mtx*", "**/*.mtx*"):
        if found := sorted(
            each
            for each in folder.glob(pattern)
            if each.name.endswith((".mtx", ".mtx.gz"))
        ):
            return found
    return []


def _of_file(path: Path) -> str:
    try:
        with open_text(path) as file:
            head, is_packed = file.read(512), not isinstance(file, io.BufferedReader)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return ""
    # A MuData has 512 bytes of its own before those of HDF5.
    if head.startswith((_HDF5, b"MuData")):
        packed = (
            "an HDF5 file that was compressed as a whole: unpack it first, as by gunzip"
        )
        return packed if is_packed else _of_hdf5(path)
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it, and give the file or folder that is in it"
    if b"[Content_Types].xml" in head:
        return "an Excel or other Office file: save its table as .csv, and make cells of that"
    if not is_packed and not head.strip():
        return "empty: download or copy it again"
    if found := next(
        (what for sign, what in _SIGNS.items() if head.lstrip().startswith(sign)), ""
    ):
        return found
    is_text = b"\0" not in head and any(mark in head for mark in (b",", b"\t"))
    return "table" if is_text else ""


def _of_hdf5(path: Path) -> str:
    try:
        with h5py.File(path) as file:
            members = dict(file)
            if {"assays", "cell.names"} <= members.keys():
                return "h5seurat"
            if "mod" in members:
                one = next(iter(members["mod"]), "rna")
                return (
                    f"a MuData with {list_names(list(members['mod']))}: write one of them, as by "
                    f"mudata.read({str(path)!r})[{one!r}].write_h5ad('{one}.h5ad'), or annotate it in Python"
                )
            if members.keys() & {"obs", "var", "X"}:
                return "h5ad"
            if "row_attrs" in members:
                return "a loom file: write it anew, as by anndata.io.read_loom(path).write_h5ad('cells.h5ad')"
            groups = [each for each in members.values() if isinstance(each, h5py.Group)]
            if any({"barcodes", "indptr"} <= each.keys() for each in groups):
                return "10x_h5"
            return f"an HDF5 file with {list_names(list(members), 5) or 'nothing'}, which is no known layout of cells"
    except OSError as error:
        return f"damaged or in use ({error}); {explain_hdf5(error)}"
