"""Read the matrices that Cell Ranger, STARsolo, kallisto|bustools and alevin-fry write."""

from __future__ import annotations

import csv
import re
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import scipy.io
import scipy.sparse as sp

from tosica._settings import logger
from tosica._text import list_names, only_known, parameter
from tosica._validate import validate_params
from tosica.io._errors import ReadError, explain_damage
from tosica.io._file_kinds import kind_of, matrices_in, open_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anndata import AnnData

    from tosica._types import AnyPath

# Feature type of genes.
_GENES = "Gene Expression"
# Axis that a table lists, by a word in its name; the first match counts. The last three are
# of alevin-fry.
_AXES = {
    "barcode": "cells",
    "feature": "genes",
    "gene": "genes",
    "row": "cells",
    "cell": "cells",
    "col": "genes",
}
_KALLISTO = "cells_x_genes"
_ALEVIN = "quants_mat"
# Suffixes of identifiers of unspliced and ambiguous counts of alevin-fry.
_UNSPLICED = "-U"
_AMBIGUOUS = "-A"
# Whether a table lacks the prefix of a matrix, is called something else besides the word of an axis,
# and does not end with that word; and the position of the word.
_Rank: TypeAlias = tuple[bool, bool, bool, int]
_GENOME = re.compile(r"(.+?)_+(?=ENS)")


@validate_params()
def read_10x(path: AnyPath, *, genome: str | None = None) -> AnnData:
    r"""Read counts in the layouts of 10x Genomics and of tools that imitate it.

    The layout is told by what lies in a folder: ``matrix.mtx`` with ``genes.tsv`` or ``features.tsv`` of one to six
    columns (Cell Ranger 2 to 9, Flex, STARsolo), ``cells_x_genes.mtx`` (kallisto|bustools), ``quants_mat.mtx``
    (alevin-fry), with names that have a prefix (GEO), and any of them compressed or not; or an ``.h5`` file.

    Parameters
    ----------
    path
        A folder, the matrix in it if it holds several, or an ``.h5`` file of Cell Ranger, Space Ranger, Xenium or
        CellBender. Of a filtered and a raw matrix in a folder, the filtered one is read.
    genome
        Genome to take, if there are several.

    Returns
    -------
    An AnnData ``(n_cells, n_genes)`` of counts, float32 CSR. ``var_names`` are symbols where the files have some, with
    a number where one occurs twice; ``var`` has ``gene_ids``, and ``feature_types`` or ``genome`` if the file does.
    Features that are no genes, such as antibodies, are left out and counted in the log. Of alevin-fry's spliced,
    unspliced and ambiguous counts, spliced and ambiguous ones are added.

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path.
    ValueError
        If there are several matrices, tables or genomes to choose from; if tables are missing or do not fit the matrix;
        if a file is damaged or something else.

    References
    ----------
    `Cell Ranger's feature-barcode matrices
    <https://www.10xgenomics.com/support/software/cell-ranger/latest/analysis/outputs/cr-outputs-mex-matrices>`_.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import tosica
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mtx = "%%MatrixMarket matrix coordinate integer general\n2 3 2\n1 1 5\n2 3 1\n"
    ...     _ = Path(folder, "GSM1_matrix.mtx").write_text(mtx)
    ...     _ = Path(folder, "GSM1_genes.tsv").write_text("ENSG1\tCD3E\nENSG2\tMS4A1\n")
    ...     _ = Path(folder, "GSM1_barcodes.tsv").write_text("AAA\nCCC\nGGG\n")
    ...     tosica.io.read_10x(folder).to_df()
         CD3E  MS4A1
    AAA   5.0    0.0
    CCC   0.0    0.0
    GGG   0.0    1.0
    """
    with explain_damage(path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Variable names are not unique")
        kind = kind_of(path)
        if not kind.startswith("10x"):
            raise ReadError(
                f"{str(path)!r} is of the kind {kind}, and holds no counts as 10x "
                "Genomics lays them out."
            )
        matrix = Path(path)
        if kind == "10x_folder":
            matrix = _choose_matrix(matrix, genome)
        reader = _read_h5 if kind_of(matrix) == "10x_h5" else _read_mtx
        adata = reader(matrix, genome)
        adata = _take_genes(adata, genome, path)
        adata.var_names_make_unique()
    return adata


def _take_genes(adata: AnnData, genome: str | None, path: AnyPath) -> AnnData:
    """Leave out features that are no genes, and genes of other genomes."""
    is_taken = np.ones(adata.n_vars, dtype=bool)
    types = adata.var.get("feature_types")
    if types is not None and (types == _GENES).any():
        is_taken = (types == _GENES).to_numpy()
        for name, n_features in types[~is_taken].value_counts().items():
            logger.info(
                "read_10x: left out %d features of the type %r beside %d genes",
                n_features,
                name,
                is_taken.sum(),
            )
    genomes = pd.Series("", adata.var_names)
    if "genome" in adata.var:
        genomes = adata.var["genome"].astype(str)
    _check_genome(sorted(set(genomes[is_taken]) - {""}), genome, path)
    if genome is not None:
        is_taken &= (genomes == genome).to_numpy()
    return adata if is_taken.all() else adata[:, is_taken].copy()


def _check_genome(genomes: list[str], genome: str | None, path: AnyPath) -> None:
    """Raise if the genome does not exist, or if there are several to choose from."""
    if genome is None and len(genomes) > 1:
        raise ReadError(
            f"{str(path)!r} holds genes of {len(genomes)} genomes "
            f"({', '.join(genomes)}): choose one, as by {parameter('genome', genomes[0])}."
        )
    if genome is not None and genome not in genomes:
        raise ReadError(
            f"{str(path)!r} holds no genome {genome!r}{only_known(genome, genomes)}"
        )


# --------------------------------------------------------------------------- .h5


def _read_h5(path: Path, genome: str | None) -> AnnData:
    import scanpy as sc

    with h5py.File(path) as file:
        groups = [
            name
            for name, member in file.items()
            if isinstance(member, h5py.Group) and "indptr" in member
        ]
    if "matrix" in groups:
        adata = sc.read_10x_h5(path, gex_only=False)
        if "probe_ids" in adata.var:
            raise ReadError(
                f"{str(path)!r} counts probes, of which a gene has several: give the "
                "matrix of genes beside it, such as filtered_feature_bc_matrix.h5."
            )
        return _as_mtx(adata)
    # Before version 3, Cell Ranger gave each genome a group.
    _check_genome(groups, genome, path)
    genome = genome or groups[0]
    adata = sc.read_10x_h5(path, genome=genome)
    adata.var["genome"] = genome
    return _as_mtx(adata)


def _as_mtx(adata: AnnData) -> AnnData:
    """Give counts and genes the type and the names that they have in a folder."""
    adata.X = sp.csr_matrix(adata.X, dtype=np.float32)
    names = adata.var_names.to_series()
    adata.var_names = names.where(names != "", adata.var["gene_ids"]).to_numpy()
    return adata


# --------------------------------------------------------------------------- .mtx


def _read_mtx(matrix_path: Path, genome: str | None) -> AnnData:
    """Read a Matrix Market file with the tables beside it, which tell its orientation."""
    stem = _matrix_stem(matrix_path)
    with open_text(matrix_path) as file, warnings.catch_warnings():
        # scipy warns that it will return an array, which is taken as well.
        warnings.simplefilter("ignore", DeprecationWarning)
        counts = sp.csr_matrix(scipy.io.mmread(file), dtype=np.float32)
    tables = _find_tables(matrix_path, stem)
    barcodes = _read_table(tables["cells"][0], counts.shape)
    # kallisto has names of genes in a file beside that of their identifiers.
    gene_tables = tables["genes"][: 2 if stem == _KALLISTO else 1]
    columns = [_read_table(table, counts.shape) for table in gene_tables]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        names = list_names([table.name for table in gene_tables])
        raise ReadError(
            f"{names} list {' and '.join(map(str, lengths))} genes, so that no name can "
            "be told from the next: copy all of them again."
        )
    features = pd.concat(columns, axis=1, ignore_index=True)
    shape = (len(barcodes), len(features))
    is_cells_by_genes = counts.shape == shape
    if shape[0] == shape[1]:
        is_cells_by_genes = stem.endswith((_KALLISTO, _ALEVIN))
    if not is_cells_by_genes:
        counts = counts.T.tocsr()
    if counts.shape != shape:
        n_rows, n_columns = counts.shape if is_cells_by_genes else counts.shape[::-1]
        raise ReadError(
            f"{matrix_path.name!r} is {n_rows} × {n_columns}, but the tables beside it "
            f"list {shape[0]} cells and {shape[1]} genes: they are not of one run, or cut "
            "short; copy all of them again."
        )
    adata = _name(counts, features, barcodes[0])
    if genome == matrix_path.parent.name:
        adata.var["genome"] = genome
    return adata


def _choose_matrix(folder: Path, genome: str | None) -> Path:
    """Find the only matrix of a folder, of the genome if there are several."""
    paths = [
        path
        for path in matrices_in(folder)
        if not path.name.startswith("UniqueAndMult")
    ]
    for word in (genome, "filtered"):
        if word:
            preferred = [
                path for path in paths if word in path.relative_to(folder).as_posix()
            ]
            paths = preferred or paths
    if len(paths) > 1:
        names = list_names([path.relative_to(folder).as_posix() for path in paths], 4)
        raise ReadError(
            f"{str(folder)!r} holds {len(paths)} matrices ({names}): give the path of "
            f"one. Where each genome has a folder, {parameter('genome')} takes it."
        )
    return paths[0]


def _find_tables(matrix_path: Path, stem: str) -> dict[str, list[Path]]:
    """Find the tables of cells and genes beside a matrix, the best of each first.

    In a folder of several samples, the names of each sample have a prefix. Other tables may lie
    there, whose names hold the same words.
    """
    folder = matrix_path.parent
    paths = sorted(folder.iterdir())
    prefix = stem.removesuffix("matrix")
    prefixes = [
        _matrix_stem(path).removesuffix("matrix")
        for path in paths
        if ".mtx" in path.name
    ]
    ranks: dict[str, dict[Path, _Rank]] = {"cells": {}, "genes": {}}
    for path in paths:
        samples = [other for other in prefixes if path.name.startswith(other)]
        is_of_other_sample = samples and max(samples, key=len) != prefix
        is_table = re.fullmatch(r"(.+)\.(?:tsv|txt|csv)(?:\.gz)?", path.name)
        if is_table is None or is_of_other_sample:
            continue
        name = is_table[1].removeprefix(prefix).lower()
        word = next((word for word in _AXES if word in name), None)
        if word is not None:
            ranks[_AXES[word]][path] = (
                not path.name.startswith(prefix),
                re.fullmatch(rf"[._-]?{word}s?", name) is None,
                re.search(rf"[._-]{word}s?$", name) is None,
                list(_AXES).index(word),
            )
    return {
        axis: _order_tables(matrix_path, axis, rank_of)
        for axis, rank_of in ranks.items()
    }


def _order_tables(
    matrix_path: Path, axis: str, rank_of: Mapping[Path, _Rank]
) -> list[Path]:
    """Order the tables of an axis by rank, and refuse none, or two that are first."""
    folder = matrix_path.parent
    if not rank_of:
        names = list_names(sorted(path.name for path in folder.iterdir()), 6)
        raise ReadError(
            f"{str(folder)!r} has no table of the {axis} of {matrix_path.name!r}, but "
            f"only {names}."
        )
    best = min(rank_of.values())
    # A compressed table may lie beside its copy.
    first = {
        path.name.removesuffix(".gz") for path, rank in rank_of.items() if rank == best
    }
    if len(first) > 1:
        raise ReadError(
            f"{str(folder)!r} has {len(first)} tables that may list the {axis} of "
            f"{matrix_path.name!r} ({list_names(sorted(first), 4)}): leave only one of them there."
        )
    return sorted(rank_of, key=lambda path: (rank_of[path], path.name))


def _matrix_stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".mtx")


def _read_table(path: Path, sizes: tuple[int, int]) -> pd.DataFrame:
    """Read a table of text without its head, which a surplus row is."""
    is_csv = ".csv" in path.name
    with open_text(path) as file:
        # Between tabs, names may contain a quote; R puts quotes around whole names. A blank
        # line is a row, or all later names would move up.
        reader = csv.reader(
            TextIOWrapper(file, encoding="utf-8-sig", newline=""),
            delimiter="," if is_csv else "\t",
            quoting=csv.QUOTE_MINIMAL if is_csv else csv.QUOTE_NONE,
        )
        rows = list(reader)
    n_columns = max((len(row) for row in rows), default=0)
    table = pd.DataFrame([row + [""] * (n_columns - len(row)) for row in rows])
    table = table.replace(r'^"(.*)"$', r"\1", regex=True)
    # Blank lines above and below are no rows of their own.
    for edge, rest in ((-1, slice(-1)), (0, slice(1, None))):
        while len(table) and len(table) not in sizes and not table.iloc[edge].any():
            table = table.iloc[rest]
    table = table.reset_index(drop=True)
    if len(table) in sizes or len(table) - 1 not in sizes:
        return table
    is_blank = ~table.any(axis=1)
    if is_blank.any():
        raise ReadError(
            f"{path.name!r} has a row too many and a blank one, number {int(is_blank.argmax()) + 1}: take the blank "
            "one out, or the head, so that each row is of one row or column of the matrix."
        )
    return table.iloc[1:].reset_index(drop=True)


def _name(
    counts: sp.csr_matrix, features: pd.DataFrame, barcodes: pd.Series
) -> AnnData:
    """Add names of cells and genes, and split genomes from names of several of them."""
    ids = features[0]
    symbols = features[min(1, features.shape[1] - 1)]
    symbols = symbols.where(symbols != "", ids)
    n_genes = len(ids) // 3
    spliced_ids = ids[:n_genes]
    alevin_ids = pd.concat([spliced_ids + _UNSPLICED, spliced_ids + _AMBIGUOUS])
    if n_genes and ids[n_genes:].tolist() == alevin_ids.tolist():
        logger.info(
            "read_10x: added spliced and ambiguous counts, and left out unspliced ones "
            "of alevin-fry"
        )
        counts = counts[:, :n_genes] + counts[:, 2 * n_genes :]
        ids = spliced_ids
        symbols = symbols[:n_genes]
    var = pd.DataFrame({"symbol": symbols, "gene_ids": ids})
    if features.shape[1] > 2 and (features[2] == _GENES).any():
        var["feature_types"] = features[2]
    genomes = ids.str.extract(_GENOME)[0].fillna("")
    names = sorted(set(genomes) - {""}, reverse=True)
    if len(names) > 1:
        var["genome"] = genomes
        # A name that begins with another name comes before it.
        prefix = rf"^(?:{'|'.join(map(re.escape, names))})_*"
        for column in ("symbol", "gene_ids"):
            var[column] = var[column].str.replace(prefix, "", regex=True)
    var.index = pd.Index(var.pop("symbol").to_numpy(), dtype=object)
    obs = pd.DataFrame(index=pd.Index(barcodes.to_numpy(), dtype=object))
    return ad.AnnData(counts, obs=obs, var=var)
