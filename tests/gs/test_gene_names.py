"""What gene names look like, and what is said when two lists of them do not match."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anndata as ad
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tosica import gs
from tosica.gs._gene_names import describe_gene_names, find_gene_name_column, hint_for_mismatch

if TYPE_CHECKING:
    from pathlib import Path

HUMAN = ["CD3E", "CD19", "MS4A1", "HLA-DRA", "MT-ND1", "C1orf112", "RP11-34P13.7", "AC012345.1"]
MOUSE = ["Cd3e", "Cd19", "Ms4a1", "H2-Aa", "mt-Nd1", "1700001G17Rik", "Gm1234", "Hba-a1"]
ENSG = [f"ENSG{i:011d}" for i in range(1000, 1050)]
ENSMUSG = [f"ENSMUSG{i:011d}" for i in range(1000, 1050)]


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (HUMAN, "human symbols"),
        (MOUSE, "mouse symbols"),
        (["cd3e", "cd19", "ms4a1"], "lower-case symbols"),
        (ENSG, "human Ensembl IDs"),
        ([f"{name}.12" for name in ENSG], "versioned human Ensembl IDs"),
        (["ENSG00000182378.15_PAR_Y"], "versioned human Ensembl IDs"),
        (ENSMUSG, "mouse Ensembl IDs"),
        ([f"{name}.3" for name in ENSMUSG], "versioned mouse Ensembl IDs"),
        (["ENSDARG00000000001", "ENSRNOG00000000001.2"], "Ensembl IDs of another species"),
        (["ENST00000361390", "ENSMUST00000082392.1"], "Ensembl transcript IDs"),
        (["916", "930", "4069", "100506658"], "Entrez numbers"),
        (["916.0", "930.0"], "Entrez numbers"),
        ([str(i) for i in range(200)], "row numbers"),
        ([str(i) for i in range(200, 0, -1)], "row numbers"),
        (["9" * 40, "1" * 30], "Entrez numbers"),
        ([*HUMAN, "ERCC spike", "actb"], "human symbols"),
        (HUMAN + MOUSE, None),
        ([" ", ""], None),
        ([], None),
    ],
)
def test_kinds(names: list[str], kind: str | None) -> None:
    assert describe_gene_names(names) == kind


# Newer pandas deprecates options that anndata reads.
@pytest.mark.data
@pytest.mark.filterwarnings("ignore:The '.*' option is deprecated")
def test_kinds_of_real_names(shared: Path) -> None:
    folder = shared / "gene_sets"
    kang = ad.io.read_h5ad(shared / "kang_pbmc.h5ad", backed="r")
    lung = ad.io.read_h5ad(shared / "lungmix_celseq2_dropseq.h5ad", backed="r")
    mouse = gs.read_gmt(folder / "m_reactome.gmt.gz")
    assert describe_gene_names(kang.var_names) == "human symbols"
    assert describe_gene_names(lung.var_names) == "human Ensembl IDs"
    assert describe_gene_names(gene for s in mouse.values() for gene in s) == "mouse symbols"
    kang.file.close()
    lung.file.close()


@settings(max_examples=100)
@given(st.lists(st.text(max_size=20), max_size=30))
def test_any_text_is_described_without_an_error(names: list[str]) -> None:
    kind = describe_gene_names(names)
    assert kind is None or isinstance(kind, str)
    assert describe_gene_names(reversed(names + names)) == kind


@pytest.mark.parametrize(
    ("query", "reference", "sentence"),
    [
        (
            MOUSE,
            HUMAN,
            "names in the query look like mouse symbols while the model's look like human symbols, "
            "so use the same species on both sides, or map the genes to their orthologs first "
            "(tosica.gs.map_genes)",
        ),
        (
            HUMAN,
            MOUSE,
            "names in the query look like human symbols while the model's look like mouse symbols, "
            "so use the same species on both sides, or map the genes to their orthologs first "
            "(tosica.gs.map_genes)",
        ),
        (
            ENSMUSG,
            ENSG,
            "names in the query look like mouse Ensembl IDs while the model's look like human "
            "Ensembl IDs, so use the same species on both sides, or map the genes to their "
            "orthologs first (tosica.gs.map_genes)",
        ),
        (
            ENSG,
            HUMAN,
            "names in the query look like human Ensembl IDs while the model's look like human "
            "symbols, so map them to symbols first",
        ),
        (
            HUMAN,
            ENSG,
            "names in the query look like human symbols while the model's look like human Ensembl "
            "IDs, so map them to human Ensembl IDs first",
        ),
        (
            ["916", "930"],
            HUMAN,
            "names in the query look like Entrez numbers while the model's look like human "
            "symbols, so map them to symbols first",
        ),
        (
            [f"{name}.1" for name in ENSG],
            ENSG,
            "names in the query look like versioned human Ensembl IDs while the model's look like "
            "human Ensembl IDs, so strip the versions, e.g. adata.var_names = "
            "adata.var_names.str.split('.').str[0]",
        ),
        (
            ENSG,
            [f"{name}.1" for name in ENSG],
            "names in the query look like human Ensembl IDs while the model's look like versioned "
            "human Ensembl IDs, so add the versions, or better, strip them from the other side",
        ),
        (
            [str(i) for i in range(50)],
            HUMAN,
            "names in the query look like row numbers, so they were lost in a conversion and "
            "var_names must be set to gene names again, which tosica.io.from_seurat does for a "
            "Seurat object",
        ),
        (HUMAN, ["LYZ", "NKG7"], ""),
        (HUMAN, HUMAN + MOUSE, ""),
        ([], HUMAN, ""),
        (HUMAN, [], ""),
    ],
)
def test_hint(query: list[str], reference: list[str], sentence: str) -> None:
    assert hint_for_mismatch(query, reference) == sentence


def test_advice_to_strip_versions_works() -> None:
    names = pd.Index([f"{name}.1" for name in ENSG])
    assert names.str.split(".").str[0].tolist() == ENSG


def test_hint_takes_generators_and_names_of_both_sides() -> None:
    hint = hint_for_mismatch(iter(MOUSE), iter(HUMAN), query="adata", reference="the gene sets'")
    assert hint.startswith(
        "names in adata look like mouse symbols while the gene sets' look like human symbols"
    )


def test_column_that_fits_is_named() -> None:
    var = pd.DataFrame(
        {
            "n_cells": range(8),
            "feature_type": "Gene Expression",
            "feature_name": pd.Categorical(HUMAN),
        },
        index=ENSG[:8],
    )
    before = var.copy()
    assert find_gene_name_column(var, HUMAN) == "feature_name"
    assert hint_for_mismatch(var.index, HUMAN, var=var) == (
        "names in the query look like human Ensembl IDs while the model's look like human symbols, "
        "but var['feature_name'] fits better, so take that: adata.var_names = "
        "adata.var['feature_name'].astype(str), then adata.var_names_make_unique()"
    )
    pd.testing.assert_frame_equal(var, before)


def test_column_helps_when_kinds_are_equal_or_unclear() -> None:
    var = pd.DataFrame({"SYMBOL": HUMAN}, index=[f"GENE{i}" for i in range(8)])
    assert hint_for_mismatch(var.index, HUMAN, var=var).startswith(
        "in the query var['SYMBOL'] fits better, so take that: "
    )


def test_column_is_not_named_when_the_index_fits_as_well() -> None:
    var = pd.DataFrame({"gene_name": HUMAN}, index=HUMAN)
    assert find_gene_name_column(var, HUMAN) is None


def test_column_that_repeats_one_gene_does_not_win() -> None:
    var = pd.DataFrame({"marker": ["CD3E"] * 8, "symbol": HUMAN}, index=ENSG[:8])
    assert find_gene_name_column(var, HUMAN) == "symbol"


def test_columns_with_missing_values_and_odd_names() -> None:
    var = pd.DataFrame({0: HUMAN, "symbol": [None, *HUMAN[1:]]}, index=ENSG[:8])
    assert find_gene_name_column(var, HUMAN) == "symbol"
    assert find_gene_name_column(pd.DataFrame(index=ENSG), HUMAN) is None
