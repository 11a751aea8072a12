"""Read the matrices that Cell Ranger, STARsolo, kallisto|bustools and alevin-fry write."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import scipy.io
import scipy.sparse as sp

from tosica._checks import validate_params
from tosica._settings import logger
from tosica._text import list_names, only_known
from tosica.io._kinds import kind_of, matrices_in, open_text
from tosica.io._parts import ReadError, explain_damage

if TYPE_CHECKING:
    from anndata import AnnData

# Feature types of Cell Ranger that are genes.
_GENES = "Gene Expression"
# What a table lists, by what is in its name; the first that fits. The last three are of alevin-fry.
_ROLES = {
    "barcode": "cells",
    "feature": "genes",
    "gene": "genes",
    "row": "cells",
    "cell": "cells",
    "col": "genes",
}
# Of matrices of cells × genes; all others are genes × cells.
_BY_CELLS = ("cells_x_genes", "quants_mat")
_GENOME = re.compile(r"(.+?)_+(?=ENS)")


@validate_params()
def read_10x(path: str | Path, *, genome: str | None = None) -> AnnData:
    r"""Read counts as 10x Genomics lays them out, and as others do after it.

    The layout is told by what lies in a folder: ``matrix.mtx`` with ``genes.tsv`` or ``features.tsv`` of one to six
    columns (Cell Ranger 2 to 9, Flex, STARsolo), ``cells_x_genes.mtx`` (kallisto|bustools), ``quants_mat.mtx``
    (alevin-fry), with names that have a prefix (GEO), and any of them compressed or not.

    Parameters
    ----------
    path
        A folder, the matrix in it if it holds several, or an ``.h5`` file of Cell Ranger or CellBender.
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
        If there are several matrices or genomes to choose from; if tables are missing or do not fit the matrix; if a
        file is damaged or something else.

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
        if kind not in ("10x_h5", "10x_mtx"):
            raise ReadError(
                f"{str(path)!r} is of the kind {kind}, and holds no counts as 10x Genomics lays them out."
            )
        read = _read_h5 if kind == "10x_h5" else _read_mtx
        adata = _take_genes(read(Path(path), genome), genome, path)
        adata.var_names_make_unique()
    return adata


def _take_genes(adata: AnnData, genome: str | None, path: str | Path) -> AnnData:
    """Leave out features that are no genes, and genes of other genomes."""
    keep = np.ones(adata.n_vars, dtype=bool)
    types = adata.var.get("feature_types")
    if types is not None and (types == _GENES).any():
        keep = (types == _GENES).to_numpy()
        for name, n in types[~keep].value_counts().items():
            logger.info(
                "read_10x: left out %d features of the type %r beside %d genes",
                n,
                name,
                keep.sum(),
            )
    genomes = (
        adata.var["genome"].astype(str)
        if "genome" in adata.var
        else pd.Series("", adata.var_names)
    )
    _check_genome(sorted(set(genomes[keep]) - {""}), genome, path)
    if genome is not None:
        keep &= (genomes == genome).to_numpy()
    return adata if keep.all() else adata[:, keep].copy()


def _check_genome(known: list[str], genome: str | None, path: str | Path) -> None:
    several = f"genes of {len(known)} genomes ({', '.join(known)}): choose one, as by genome={next(iter(known), '')!r}."
    if len(known) > 1 if genome is None else genome not in known:
        found = (
            several
            if genome is None
            else f"no genome {genome!r}{only_known(genome, known)}"
        )
        raise ReadError(f"{str(path)!r} holds {found}")


def _read_h5(path: Path, genome: str | None) -> AnnData:
    import scanpy as sc

    with h5py.File(path) as file:
        groups = [
            name
            for name, each in file.items()
            if isinstance(each, h5py.Group) and "indptr" in each
        ]
    if "matrix" in groups:
        return sc.read_10x_h5(path, gex_only=False)
    # Before version 3, Cell Ranger gave each genome a group.
    _check_genome(groups, genome, path)
    adata = sc.read_10x_h5(path, genome=genome or groups[0])
    adata.var["genome"] = genome or groups[0]
    return adata


def _read_mtx(path: Path, genome: str | None) -> AnnData:
    """Read a Matrix Market file with the tables beside it that have as many rows and columns."""
    matrix = _choose_matrix(path, genome)
    # scipy warns that it will return an array, which is taken as well.
    with (
        open_text(matrix) as file,
        warnings.catch_warnings(action="ignore", category=DeprecationWarning),
    ):
        counts = sp.csr_matrix(scipy.io.mmread(file), dtype=np.float32)
    stem = matrix.name.removesuffix(".gz").removesuffix(".mtx")
    # In a folder of several samples, the names of each have a prefix.
    prefix = stem.removesuffix("matrix")
    tables: dict[str, list[Path]] = {"cells": [], "genes": []}
    for each in sorted(
        matrix.parent.iterdir(),
        key=lambda each: (not each.name.startswith(prefix), each.name),
    ):
        name = each.name.removeprefix(prefix).lower()
        role = next((role for mark, role in _ROLES.items() if mark in name), None)
        if role is not None and re.search(r"\.(tsv|txt|csv)(\.gz)?$", name):
            tables[role].append(each)
    for role, paths in tables.items():
        if not paths:
            there = list_names(sorted(each.name for each in matrix.parent.iterdir()), 6)
            raise ReadError(
                f"{str(matrix.parent)!r} has no table of the {role} of {matrix.name!r}, but only {there}."
            )
    # Of kallisto, names of genes are in a file beside that of their identifiers.
    of_genes = tables["genes"][: 2 if stem == _BY_CELLS[0] else 1]
    features = pd.concat(
        [_read_table(each, counts.shape) for each in reversed(of_genes)],
        axis=1,
        ignore_index=True,
    )
    barcodes = _read_table(tables["cells"][0], counts.shape)
    shape = len(barcodes), len(features)
    by_cells = (
        stem.endswith(_BY_CELLS) if shape[0] == shape[1] else counts.shape == shape
    )
    if counts.shape != (shape if by_cells else shape[::-1]):
        raise ReadError(
            f"{matrix.name!r} is {counts.shape[0]} × {counts.shape[1]}, but the tables beside it list {shape[0]} cells "
            f"and {shape[1]} genes: they are not of one run, or cut short; copy all of them again."
        )
    adata = _name(counts if by_cells else counts.T.tocsr(), features, barcodes[0])
    if genome == matrix.parent.name:
        adata.var["genome"] = genome
    return adata


def _choose_matrix(path: Path, genome: str | None) -> Path:
    if path.is_file():
        return path
    found = [
        each for each in matrices_in(path) if not each.name.startswith("UniqueAndMult")
    ]
    for wanted in (genome, "filtered"):
        chosen = [
            each
            for each in found
            if wanted and any(wanted in part for part in each.parent.parts)
        ]
        found = chosen or found
    if len(found) > 1:
        listed = list_names([each.relative_to(path).as_posix() for each in found], 4)
        advice = (
            "give the path of one. Where each genome has a folder, genome= takes it."
        )
        raise ReadError(
            f"{str(path)!r} holds {len(found)} matrices ({listed}): {advice}"
        )
    return found[0]


def _name(
    counts: sp.csr_matrix, features: pd.DataFrame, barcodes: pd.Series
) -> AnnData:
    """Add names of cells and genes; genes of several genomes have the genome before them."""
    ids, symbols = features[0], features[min(1, features.shape[1] - 1)]
    n = len(ids) // 3
    if n and ids[n:].tolist() == [
        f"{name}{end}" for end in ("-U", "-A") for name in ids[:n]
    ]:
        logger.info(
            "read_10x: added spliced and ambiguous counts, and left out unspliced ones of alevin-fry"
        )
        counts, ids, symbols = counts[:, :n] + counts[:, 2 * n :], ids[:n], symbols[:n]
    var = pd.DataFrame(
        {"gene_ids": ids.to_numpy()}, index=pd.Index(symbols.to_numpy(), dtype=object)
    )
    if features.shape[1] > 2 and (features[2] == _GENES).any():
        var["feature_types"] = features[2].to_numpy()
    genomes = ids.str.extract(_GENOME)[0].fillna("")
    if len(set(genomes) - {""}) > 1:
        # Of names of which one begins with another, the longer one is tried first.
        starts = "|".join(
            re.escape(name) for name in sorted(set(genomes) - {""}, reverse=True)
        )
        bare = [
            names.str.replace(rf"^(?:{starts})_*", "", regex=True).to_numpy()
            for names in (symbols, ids)
        ]
        var = var.assign(genome=genomes.to_numpy(), gene_ids=bare[1]).set_index(
            pd.Index(bare[0], dtype=object)
        )
    return ad.AnnData(
        counts,
        obs=pd.DataFrame(index=pd.Index(barcodes.to_numpy(), dtype=object)),
        var=var,
    )


def _read_table(path: Path, sizes: tuple[int, int]) -> pd.DataFrame:
    """Read a table of text; a first row that is one too many has the names of the columns."""
    sep = "," if ".csv" in path.name else "\t"
    with open_text(path) as file:
        # Names may have a quote in them; around all of a name, R has put them.
        table = pd.read_csv(
            file, sep=sep, header=None, dtype=str, quoting=3, keep_default_na=False
        )
    table = table.replace(r'^"(.*)"$', r"\1", regex=True)
    return (
        table.iloc[1:].reset_index(drop=True)
        if len(table) not in sizes and len(table) - 1 in sizes
        else table
    )
