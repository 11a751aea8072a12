"""Published cells: from a folder of one's own, from the cache, or downloaded and converted once."""

from __future__ import annotations

import hashlib
import os
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import mudata
import numpy as np
from anndata import AnnData, read_h5ad
from mudata import MuData
from scipy.sparse import csr_matrix

from tosica._files import cache_folder, download, replace_file, temporary_folder
from tosica._settings import logger
from tosica.io._rds import parse_rda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tosica.io._rds import RObject

VARIABLE = "TOSICA_DATA"


@dataclass(frozen=True)
class Published:
    """A data set that an R package holds, and how it becomes an AnnData or a MuData.

    Attributes
    ----------
    file
        Name of the file in a folder of one's own and in the cache.
    url
        Address of the ``.rda`` file, of one commit.
    name
        Name of the R object in it.
    convert
        Makes the annotated data from the R object.
    sha256
        Hash of the contents, as :func:`contents_hash` computes it.
    columns
        Columns of ``obs`` that are kept of a file; ``None`` keeps all.
    """

    file: str
    url: str
    name: str
    convert: Callable[[RObject], AnnData | MuData]
    sha256: str
    columns: tuple[str, ...] | None = None


def load(data: Published) -> AnnData | MuData:
    """Read a data set, and download it before if it is in no folder.

    Raises
    ------
    FileNotFoundError
        If the folder of ``TOSICA_DATA`` has no such file.
    ImportError
        If the file must be converted, and ``rdata`` is missing.
    OSError
        If a file cannot be downloaded or read, or the cache cannot be written to.
    ValueError
        If the contents are not those that tosica knows.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        path = Path(chosen).expanduser() / data.file
        if not path.is_file():
            raise FileNotFoundError(
                f"{path.parent}, the folder in {VARIABLE}, has no {data.file}: put it there, or "
                f"unset {VARIABLE} to have it downloaded."
            )
        return _check(_read(path, data.columns), data, str(path))
    path = cache_folder() / "datasets" / data.file
    if not path.is_file():
        _fetch(data, path)
    return _check(_read(path, data.columns), data, str(path))


def contents_hash(data: AnnData | MuData) -> str:
    """SHA-256 of names, labels and values, in whatever order the cells and genes are.

    Of values that are not whole numbers, only the place counts: another computer may round the last
    digit otherwise.
    """
    digest = hashlib.sha256()
    for adata in data.mod.values() if isinstance(data, MuData) else [data]:
        cells, genes = np.argsort(adata.obs_names), np.argsort(adata.var_names)
        obs = adata.obs.iloc[cells]
        columns = [obs[column].astype(str) for column in sorted(obs)]
        for names in (obs.index, adata.var_names[genes], *columns):
            digest.update("\n".join(names).encode() + b"\0")
        values = csr_matrix(adata.X)[cells][:, genes]
        values.sort_indices()
        whole = np.rint(values.data).astype("<i8")
        digest.update(values.indptr.astype("<i8").tobytes())
        digest.update(values.indices.astype("<i8").tobytes())
        if np.array_equal(whole, values.data):
            digest.update(whole.tobytes())
    return digest.hexdigest()


def _check(found: AnnData | MuData, data: Published, where: str) -> AnnData | MuData:
    if contents_hash(found) != data.sha256:
        raise ValueError(
            f"{where} does not hold the cells, labels and values of {data.file} that tosica knows: "
            f"replace it, or set {VARIABLE} to a folder with the right file."
        )
    return found


@contextmanager
def quiet_mudata() -> Iterator[None]:
    """Without warnings about its next version, and about names of genes that antibodies share."""
    # mudata 0.4 does not have the option any more, and does what it asks for. Not in a with
    # statement: there mudata logs to the root logger, which from then on shows each line of
    # tosica's log a second time.
    set_options = getattr(mudata, "set_options", None)
    before = set_options(pull_on_update=False).opts if set_options else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        if set_options:
            set_options(**before)


def _read(path: Path, columns: tuple[str, ...] | None) -> AnnData | MuData:
    try:
        if path.suffix == ".h5ad":
            adata = read_h5ad(path)
            if columns is not None:
                adata.obs = adata.obs[list(columns)]
            return adata
        with quiet_mudata():
            return mudata.read_h5mu(path)
    except Exception as error:
        raise OSError(
            f"{path} cannot be read ({type(error).__name__}): delete it, or replace it by a whole copy."
        ) from error


def _fetch(data: Published, path: Path) -> None:
    """Download, convert and check a data set, and put it into the cache."""
    other = f"set {VARIABLE} to a folder that has {data.file}"
    if find_spec("rdata") is None:
        raise ImportError(
            f"{data.file} is made from a file of R, which needs the rdata package: "
            f"pip install 'tosica[seurat]', or {other}."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(path.parent) as folder:
        rda = folder / "downloaded.rda"
        try:
            download(data.url, rda)
        except OSError as error:
            error.add_note(f"Try again, or {other}.")
            raise
        objects = parse_rda(rda)
    if data.name not in objects:
        raise ValueError(f"{data.url} has no object {data.name!r}, so it was not kept: {other}.")
    converted = data.convert(objects[data.name])
    _check(converted, data, data.url)
    with replace_file(path) as made:
        if isinstance(converted, MuData):
            converted.write(made)
        else:
            converted.write_h5ad(made, compression="gzip")
    logger.info("datasets: downloaded %s, and made %s", data.url, path)
