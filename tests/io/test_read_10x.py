"""Counts in the layouts of several programs, and files that are something else than they are called."""

import gzip
import io
import tarfile

import anndata as ad
import h5py
import mudata
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp
from numpy.testing import assert_array_equal

import tosica
from tosica import cli
from tosica.io._file_kinds import kind_of

GENES = ["CD3E", "HLA-DRA", "MS4A1", "NKG7"]
CELLS = [f"AAAC{i}-1" for i in range(6)]
COUNTS = np.random.default_rng(0).poisson(2, (6, 4))
IDS = [f"ENSG{i:011d}" for i in range(4)]
ROWS = {
    1: GENES,
    2: [f"{i}\t{name}" for i, name in zip(IDS, GENES, strict=True)],
    3: [f"{i}\t{name}\tGene Expression" for i, name in zip(IDS, GENES, strict=True)],
    6: [
        f"{i}\t{name}\tGene Expression\tchr1\t1\t2"
        for i, name in zip(IDS, GENES, strict=True)
    ],
}
TWO_GENOMES = [f"hg19_{IDS[0]}\thg19_CD3E", f"hg19_{IDS[1]}\thg19_HLA-DRA"]
TWO_GENOMES += ["mm10___ENSMUSG1\tmm10___Ms4a1", "mm10___ENSMUSG2\tmm10___Nkg7"]


def mtx(values):
    file = io.BytesIO()
    scipy.io.mmwrite(file, sp.coo_matrix(values))
    return file.getvalue().decode()


def write(folder, files):
    """Write text, compressed where the name ends in ``.gz``."""
    for name, rows in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        content = (
            rows if isinstance(rows, str) else "".join(f"{row}\n" for row in rows)
        ).encode()
        (folder / name).write_bytes(
            gzip.compress(content, mtime=0) if name.endswith(".gz") else content
        )
    return folder


BY_GENES = mtx(COUNTS.T)
SPLICED = np.hstack([COUNTS - 1, COUNTS, np.ones_like(COUNTS)])
FOLDERS = {
    "Cell Ranger 2": {"hg19/matrix.mtx": BY_GENES, "hg19/genes.tsv": ROWS[2], "hg19/barcodes.tsv": CELLS},
    "Cell Ranger 9": {"matrix.mtx.gz": BY_GENES, "features.tsv.gz": ROWS[6], "barcodes.tsv.gz": CELLS},
    "Flex": {f"count/sample_filtered_feature_bc_matrix/{n}": f for n, f in (("matrix.mtx.gz", BY_GENES),
        ("features.tsv.gz", ROWS[3]), ("barcodes.tsv.gz", CELLS))},
    "STARsolo": {f"Gene/{of}/{n}": f for of in ("raw", "filtered") for n, f in (("matrix.mtx", BY_GENES),
        ("features.tsv", ROWS[3]), ("barcodes.tsv", CELLS), ("UniqueAndMult-EM.mtx", BY_GENES))},
    "partly zipped": {"matrix.mtx.gz": BY_GENES, "genes.tsv": ROWS[2], "barcodes.tsv.gz": CELLS},
    "prefixed in part": {"GSM1_colon_matrix.mtx.gz": BY_GENES, "GSM1_colon_barcodes.tsv": CELLS, "genes.tsv": ROWS[1]},
    "a header": {"s_matrix.mtx": BY_GENES, "s_features.tsv": ["id\tname", *ROWS[2]], "s_barcodes.tsv": ["x", *CELLS]},
    "R's quotes": {"matrix.mtx": BY_GENES, "genes.tsv": [f'"{i}"\t"{g}"' for i, g in zip(IDS, GENES, strict=True)],
        "barcodes.tsv": [f'"{cell}"' for cell in CELLS]},
    "commas": {"matrix.mtx": BY_GENES, "genes.csv": [r.replace("\t", ",") for r in ROWS[2]], "barcodes.csv": CELLS},
    "kallisto": {"cells_x_genes.mtx": mtx(COUNTS), "cells_x_genes.genes.txt": IDS,
        "cells_x_genes.genes.names.txt": GENES, "cells_x_genes.barcodes.txt": CELLS},
    "alevin-fry": {"quants_mat.mtx": mtx(SPLICED), "quants_mat_rows.txt": CELLS,
        "quants_mat_cols.txt": [f"{g}{e}" for e in ("", "-U", "-A") for g in GENES]},
    "antibodies": {"matrix.mtx": mtx(np.vstack([COUNTS.T, COUNTS.T[:1]])), "barcodes.tsv": CELLS,
        "features.tsv": [*ROWS[3], "CD3\tCD3\tAntibody Capture"]},
}  # fmt: skip


@pytest.mark.parametrize("layout", FOLDERS)
def test_folders(layout, tmp_path):
    adata = tosica.io.read_10x(write(tmp_path, FOLDERS[layout]))
    assert (list(adata.obs_names), list(adata.var_names)) == (CELLS, GENES)
    assert adata.X.dtype == np.float32
    assert_array_equal(adata.X.toarray(), COUNTS)
    assert cli.main(["info", str(tmp_path), "-q"]) == 0


@pytest.mark.parametrize("ending", ["tsv", "tsv.gz"])
def test_genomes_are_named_and_one_is_taken(ending, tmp_path):
    tables = {f"features.{ending}": TWO_GENOMES, f"barcodes.{ending}": CELLS}
    write(tmp_path, {"matrix.mtx": BY_GENES, **tables})
    with pytest.raises(
        ValueError, match=r"2 genomes \(hg19, mm10\): choose one, as by genome='hg19'"
    ):
        tosica.io.read_10x(tmp_path)
    with pytest.raises(ValueError, match=r"no genome 'mm9'.*did you mean 'mm10'"):
        tosica.io.read_10x(tmp_path, genome="mm9")
    adata = tosica.io.read_10x(tmp_path, genome="mm10")
    assert list(adata.var_names) == ["Ms4a1", "Nkg7"]
    assert list(adata.var["gene_ids"]) == ["ENSMUSG1", "ENSMUSG2"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"barcodes.tsv": []}, "no table of the cells"),
        (
            {"barcodes.tsv": CELLS[:4]},
            "4 × 6, but the tables beside it list 4 cells and 4 genes",
        ),
        (
            {"b_matrix.mtx": BY_GENES},
            r"2 matrices \('b_matrix.mtx', 'matrix.mtx'\): give the path of one",
        ),
        ({"mm10/matrix.mtx": BY_GENES, "matrix.mtx": []}, "no table of"),
        ({"matrix.mtx": BY_GENES[:40]}, "is damaged"),
    ],
)
def test_folders_that_lack_something(files, words, tmp_path):
    write(
        tmp_path,
        {"matrix.mtx": BY_GENES, "genes.tsv": ROWS[2], "barcodes.tsv": CELLS, **files},
    )
    for name in [name for name, rows in files.items() if not rows]:
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=words):
        tosica.io.read_10x(tmp_path)


def test_one_matrix_of_several_by_its_path(tmp_path):
    for name, cells in (("a_", CELLS), ("b_", [f"b{i}" for i in range(6)])):
        write(
            tmp_path,
            {
                f"{name}matrix.mtx.gz": BY_GENES,
                f"{name}barcodes.tsv": cells,
                "genes.tsv": ROWS[1],
            },
        )
    assert tosica.io.read_10x(tmp_path / "b_matrix.mtx.gz").obs_names[0] == "b0"


def write_h5(path, **columns):
    """A matrix as Cell Ranger writes it, with columns of its features beside names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = sp.csr_matrix(COUNTS.astype(np.int32))
    features = {"name": GENES, "id": IDS, "feature_type": ["Gene Expression"] * 4}
    features |= {"genome": ["GRCh38"] * 4} | columns
    with h5py.File(path, "w") as file:
        for name, texts in features.items():
            file[f"matrix/features/{name}"] = np.array(texts, dtype="S")
        file["matrix/barcodes"] = np.array(CELLS, dtype="S")
        file["matrix/shape"] = counts.shape[::-1]
        for name in ("data", "indices", "indptr"):
            file[f"matrix/{name}"] = getattr(counts, name)


@pytest.mark.parametrize(
    "names",
    [
        ["filtered_feature_bc_matrix.h5", "raw_feature_bc_matrix.h5"],
        ["GSM1_filtered_feature_bc_matrix.h5", "GSM1_raw_feature_bc_matrix.h5"],
        ["raw_feature_bc_matrix.h5"],
        ["square_008um/filtered_feature_bc_matrix.h5", "web_summary.h5"],
    ],
)
def test_a_folder_with_the_file_only(names, tmp_path):
    for name in names:
        is_filtered_beside = "raw" in name and len(names) > 1
        columns = {"name": ["other"] * 4} if is_filtered_beside else {}
        write_h5(tmp_path / name, **columns)
    (tmp_path / "molecule_info.h5").write_bytes(b"no HDF5")
    if "web_summary.h5" in names:
        _hdf5(tmp_path / "web_summary.h5", "barcodes")
    (tmp_path / "spatial").mkdir()
    adata = tosica.io.read_10x(tmp_path)
    assert adata.var_names.tolist() == GENES
    assert_array_equal(adata.X.toarray(), COUNTS)
    assert cli.main(["info", str(tmp_path), "-q"]) == 0


def test_several_files_of_a_folder_are_named(tmp_path):
    for bin_size in ("square_008um", "square_016um"):
        write_h5(tmp_path / bin_size / "filtered_feature_bc_matrix.h5")
    words = "2 matrices .'square_008um/filtered_feature_bc_matrix.h5', 'square_016um"
    with pytest.raises(ValueError, match=words):
        tosica.io.read_10x(tmp_path)


@pytest.mark.parametrize("folder", [True, False])
def test_probes_are_told_from_genes(folder, tmp_path):
    path = tmp_path / "raw_probe_bc_matrix.h5"
    probes = [f"{name}|{i:07x}" for i, name in enumerate(GENES)]
    write_h5(path, name=probes, gene_id=IDS, gene_name=GENES)
    with pytest.raises(ValueError, match="give the matrix of genes beside it"):
        tosica.io.read_10x(tmp_path if folder else path)


# --------------------------------------------------------------------------- what a file is


def _tar(path):
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("cells.h5ad"), io.BytesIO())


def _mudata(path):
    cells = ad.AnnData(np.ones((2, 2), np.float32))
    mudata.MuData({"rna": cells, "protein": cells}).write(path.with_suffix(".h5mu"))
    path.with_suffix(".h5mu").rename(path)


def _hdf5(path, *members):
    with h5py.File(path, "w") as file:
        for name in members:
            file.create_group(name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"PK\x03\x04" + bytes(9), "ZIP archive"),
        (
            b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml",
            "an Excel or other Office file",
        ),
        (gzip.compress(b"RDX3\nX\n", mtime=0), "saveRDS"),
        (b"", "is empty"),
        (_tar, "tar archive"),
        (b"\x00\x01nonsense", "not a whole HDF5 file"),
        (gzip.compress(b"\x89HDF\r\n\x1a\n", mtime=0), "unpack it first"),
        (_mudata, "a MuData of 'protein', 'rna'"),
        (lambda path: _hdf5(path, "df", "umi"), "an HDF5 file with 'df', 'umi'"),
        (b"gene,c1,c2\nCD3E,1,2\n", "a table: make cells of counts by anndata"),
    ],
)
def test_files_that_are_something_else(content, words, tmp_path, capsys):
    path = tmp_path / "cells.h5ad"
    content(path) if callable(content) else path.write_bytes(content)  # type: ignore[arg-type]
    assert (
        cli.main(
            [
                "train",
                str(path),
                "--labels-key",
                "kind",
                "-o",
                str(tmp_path / "model"),
                "-q",
            ]
        )
        == 1
    )
    messages = capsys.readouterr().err
    assert words in messages
    assert "damaged" not in messages
    assert "not expected" not in messages
    with pytest.raises(ValueError, match=r"cells\.h5ad"):
        tosica.io.read_seurat(path)


def test_kinds_are_told_without_the_suffix(tmp_path):
    ad.AnnData(COUNTS.astype(np.float32), pd.DataFrame(index=CELLS)).write_h5ad(
        tmp_path / "a.h5ad.h5"
    )
    _hdf5(tmp_path / "b.hdf5", "matrix/barcodes", "matrix/indptr")
    (tmp_path / "c.txt").write_text("cell\tlabel\na\tb\n")
    (tmp_path / "d").write_bytes(gzip.compress(b"X\n" + bytes(9)))
    kinds = [kind_of(path) for path in sorted(tmp_path.iterdir())]
    assert kinds == ["h5ad", "10x_h5", "table", "rds"]


KALLISTO = {
    "cells_x_genes.mtx": mtx(COUNTS),
    "cells_x_genes.barcodes.txt": CELLS,
    "cells_x_genes.genes.txt": IDS,
}


def test_a_gene_without_a_name_keeps_its_identifier(tmp_path):
    names = ["CD3E", "", "MS4A1", "NKG7"]
    write(tmp_path, KALLISTO | {"cells_x_genes.genes.names.txt": names})
    adata = tosica.io.read_10x(tmp_path)
    assert adata.var_names.tolist() == ["CD3E", IDS[1], "MS4A1", "NKG7"]
    assert_array_equal(adata.X.toarray(), COUNTS)


def test_blank_lines_at_the_end_are_no_genes(tmp_path):
    write(tmp_path, KALLISTO | {"cells_x_genes.genes.names.txt": [*GENES, ""]})
    assert tosica.io.read_10x(tmp_path).var_names.tolist() == GENES


def test_a_blank_line_above_is_no_cell(tmp_path):
    write(tmp_path, KALLISTO | {"cells_x_genes.barcodes.txt": ["", *CELLS]})
    assert tosica.io.read_10x(tmp_path).obs_names.tolist() == CELLS


def test_a_blank_line_too_many_does_not_move_names(tmp_path):
    names = [*GENES[:2], "", *GENES[2:]]
    write(tmp_path, KALLISTO | {"cells_x_genes.genes.names.txt": names})
    with pytest.raises(ValueError, match="a row too many and a blank one, number 3"):
        tosica.io.read_10x(tmp_path)


def test_tables_of_other_lengths_are_refused(tmp_path):
    write(tmp_path, KALLISTO | {"cells_x_genes.genes.names.txt": GENES[1:]})
    with pytest.raises(ValueError, match="list 4 and 3 genes"):
        tosica.io.read_10x(tmp_path)


def test_commas_between_quotes_are_part_of_a_name(tmp_path):
    genes = ["gene_id,gene_name", f'{IDS[0]},"CD3E, epsilon"']
    genes += [f"{i},{name}" for i, name in zip(IDS[1:], GENES[1:], strict=True)]
    files = {"count_matrix.mtx": mtx(COUNTS), "all_genes.csv": genes}
    write(tmp_path, files | {"cell_metadata.csv": ["bc_wells", *CELLS]})
    adata = tosica.io.read_10x(tmp_path)
    assert adata.var_names[0] == "CD3E, epsilon"
    assert adata.obs_names.tolist() == CELLS


@pytest.mark.parametrize(
    ("prefix", "others"),
    [
        ("", {"all_cells_metadata.tsv": CELLS[::-1], "DE_genes.tsv": GENES[::-1]}),
        ("GSE1_", {"GSE1_annotation_cells.csv": CELLS[::-1]}),
        ("S2_", {"S1_barcodes.tsv": CELLS[::-1], "S1_matrix.mtx": BY_GENES}),
    ],
    ids=["tables of results", "an annotation", "another sample"],
)
def test_other_tables_beside_a_matrix_name_nothing(prefix, others, tmp_path):
    names = {"matrix.mtx": BY_GENES, "genes.tsv": GENES, "barcodes.tsv": CELLS}
    files = {f"{prefix}{name}": rows for name, rows in names.items()}
    write(tmp_path, files | others)
    adata = tosica.io.read_10x(tmp_path / f"{prefix}matrix.mtx")
    assert adata.obs_names.tolist() == CELLS
    assert adata.var_names.tolist() == GENES


@pytest.mark.parametrize(
    ("prefix", "files", "words"),
    [
        (
            "",
            {"a_barcodes.tsv": CELLS, "b_barcodes.tsv": CELLS},
            "2 tables that may list the cells",
        ),
        (
            "S2_",
            {"S1_barcodes.tsv": CELLS, "S1_matrix.mtx": BY_GENES},
            "no table of the cells",
        ),
    ],
    ids=["two", "one of another sample"],
)
def test_tables_of_unclear_samples_are_refused(prefix, files, words, tmp_path):
    own = {f"{prefix}matrix.mtx": BY_GENES, f"{prefix}genes.tsv": GENES}
    write(tmp_path, own | files)
    with pytest.raises(ValueError, match=words):
        tosica.io.read_10x(tmp_path / f"{prefix}matrix.mtx")


def test_an_h5_file_has_the_type_and_the_names_of_a_folder(tmp_path):
    path = tmp_path / "cells.h5"
    with h5py.File(path, "w") as file:
        counts = sp.csr_matrix(COUNTS, dtype=np.int64)
        group = file.create_group("matrix")
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(counts, name)
        group["shape"] = counts.shape[::-1]
        group["barcodes"] = np.array(CELLS, dtype="S")
        features = group.create_group("features")
        features["id"] = np.array(IDS, dtype="S")
        features["name"] = np.array(["CD3E", "", "MS4A1", "NKG7"], dtype="S")
        for name in ("feature_type", "genome"):
            features[name] = np.array(["Gene Expression"] * 4, dtype="S")
    adata = tosica.io.read_10x(path)
    assert adata.X.dtype == np.float32
    assert adata.var_names.tolist() == ["CD3E", IDS[1], "MS4A1", "NKG7"]
