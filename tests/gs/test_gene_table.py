"""Tables of gene names, the organism of a list of names, and map_genes."""

from __future__ import annotations

import logging
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import anndata as ad
import pytest
import scanpy as sc
from hypothesis import given, settings
from hypothesis import strategies as st

import tosica
from tosica.gs._gene_list import GeneList
from tosica.gs._gene_table import ORGANISMS, gene_table, orthologs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:The '.*' option is deprecated")


def test_tables_are_small() -> None:
    folder = files("tosica.gs") / "resources" / "genes"
    sizes = [len((folder / f"{organism}.tsv.gz").read_bytes()) for organism in ORGANISMS]
    assert sum(sizes) < 1_200_000
    assert len(gene_table("human").symbols) > 35_000
    assert len(gene_table("mouse").symbols) > 50_000


def test_every_gene_of_the_collections_is_known() -> None:
    for organism in ORGANISMS:
        genes = {gene for s in tosica.gs.load(f"{organism}_gobp").values() for gene in s}
        assert genes <= gene_table(organism).symbols


@pytest.mark.parametrize(
    ("name", "gene"),
    [
        ("CD3E", "CD3E"),
        ("ENSG00000198851", "CD3E"),
        ("ENSG00000198851.10", "CD3E"),
        ("SEPT7", "SEPTIN7"),
        ("IL8", "CXCL8"),
        ("PDL1", "CD274"),
        ("cd3e", None),
        ("Cd3e", None),
        ("ENSG00000198851.x", None),
        ("ENSG00000173674", "EIF1AX"),  # Ensembl has an unplaced copy under the same ID
        ("no such gene", None),
        ("", None),
    ],
)
def test_human_names(name: str, gene: str | None) -> None:
    assert tosica.gs.map_genes([name], organism="human").to_list() == [gene]


@pytest.mark.parametrize(
    ("name", "gene"),
    [
        ("Cd3e", "Cd3e"),
        ("ENSMUSG00000032093", "Cd3e"),
        ("ENSMUSG00000032093.7", "Cd3e"),
        ("CD3E", None),
    ],
)
def test_mouse_names(name: str, gene: str | None) -> None:
    assert tosica.gs.map_genes([name], organism="mouse").to_list() == [gene]


def test_numbers_are_entrez_numbers_where_most_names_are() -> None:
    assert tosica.gs.map_genes(["916", "930.0", "4069"], organism="human").to_list() == [
        "CD3E",
        "CD19",
        "LYZ",
    ]
    # A lost index is not a list of genes, although 1, 2 and 9 are genes' numbers.
    assert tosica.gs.map_genes(["0", "1", "2", "3"], organism="human").isna().all()
    assert tosica.gs.map_genes(["CD19", "LYZ", "916"], organism="human").isna().sum() == 1


def test_a_symbol_is_not_taken_for_an_alias_of_another_gene() -> None:
    table = gene_table("human")
    both = sorted(table.symbols & table.aliases.keys())
    assert len(both) > 100
    assert tosica.gs.map_genes(both, organism="human").to_list() == both


def test_proteins_of_the_mitochondrion_go_by_the_names_of_hgnc() -> None:
    in_gobp = {gene for genes in tosica.gs.load("human_gobp").values() for gene in genes}
    short = ["ATP6", "ATP8", "CO1", "CO2", "CO3", "CYB", "ND4L", *(f"ND{i}" for i in range(1, 7))]
    names = [f"MT-{name}" for name in short]
    found = tosica.gs.map_genes(names, organism="human")
    assert set(found) <= in_gobp
    to_mouse = tosica.gs.map_genes(names, organism="human", to_organism="mouse")
    assert to_mouse["MT-ND1"] == "mt-Nd1"
    assert tosica.gs.map_genes(["ENSG00000198712"], organism="human").to_list() == [found["MT-CO2"]]


def test_any_case_if_asked_to() -> None:
    names = ["CD3E", "H2-AA", "1700001G17RIK", "mt-nd1", "Cd19", "cd3e_ensmusg00000032093", "x"]
    assert tosica.gs.map_genes(names, organism="mouse", ignore_case=True).to_list() == [
        *("Cd3e", "H2-Aa", "1700001G17Rik", "mt-Nd1", "Cd19", None, None)
    ]
    assert tosica.gs.map_genes(["CD3E_ENSMUSG00000032093"], organism="mouse").to_list() == ["Cd3e"]
    both = tosica.gs.map_genes(["C1ORF43", "cd3e"], organism="human", ignore_case=True)
    assert both.to_list() == ["C1orf43", "CD3E"]


def test_no_two_symbols_differ_in_case_only() -> None:
    for organism in ORGANISMS:
        table = gene_table(organism)
        assert len(table.by_upper_case) == len(table.symbols)


def test_to_ensembl_and_entrez() -> None:
    names = ["CD3E", "SEPT7", "HLA-DRA"]
    ensembl = tosica.gs.map_genes(names, to="ensembl", organism="human")
    # HLA-DRA has an ID on each haplotype, of which none is guessed.
    assert ensembl.to_list() == ["ENSG00000198851", "ENSG00000122545", None]
    assert tosica.gs.map_genes(names, to="entrez", organism="human").to_list() == [
        "916",
        "989",
        "3122",
    ]
    assert list(ensembl.index) == names


def test_ambiguous_names_are_listed_and_not_guessed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tosica"):
        mapped = tosica.gs.map_genes(["SARS", "CD3E"], organism="human")
    assert mapped.to_list() == [None, "CD3E"]
    assert caplog.messages == [
        "map_genes: 1 of 2 human genes have a name; 1 ambiguous left out: SARS (SARS1 or SARS2)"
    ]


def test_orthologs_are_one_to_one_both_ways() -> None:
    there, back = orthologs("human", "mouse"), orthologs("mouse", "human")
    assert len(there) == len(back) > 16_000
    assert {back[mouse]: mouse for mouse in back} == there
    assert there["CD3E"] == "Cd3e"
    assert there["PTPRC"] == "Ptprc"
    # Their Ensembl IDs are also those of antisense genes, readthroughs or copies.
    for human, mouse in {"CCR3": "Ccr3", "BACH1": "Bach1", "CACNA1C": "Cacna1c"}.items():
        assert there[human] == mouse
    # So is one of the two genes of the mouse that are called Nrg1.
    assert there["NRG1"] == "Nrg1"
    # Two genes of the mouse answer to LYZ.
    assert "LYZ" not in there


def test_to_another_organism(caplog: pytest.LogCaptureFixture) -> None:
    genes = ["ENSG00000198851.10", "SEPT7", "LYZ"]
    with caplog.at_level(logging.INFO, "tosica"):
        mapped = tosica.gs.map_genes(genes, organism="human", to_organism="mouse")
    assert mapped.to_list() == ["Cd3e", "Septin7", None]
    assert caplog.messages == ["map_genes: 2 of 3 human genes have a name in mouse"]


@settings(max_examples=30)
@given(names=st.lists(st.text(max_size=12), max_size=20), data=st.data())
def test_any_text_is_translated_or_missing(names: list[str], data: st.DataObject) -> None:
    organism = data.draw(st.sampled_from(ORGANISMS))
    mapped = tosica.gs.map_genes(names, organism=organism)
    assert list(mapped.index) == names
    assert all(gene is None or gene in gene_table(organism).symbols for gene in mapped)


# ---------------------------------------------------------------------------------------- organism


def infer_organism(names: Iterable[str]) -> str | None:
    return GeneList(names).organism


@pytest.mark.data
def test_recognises_real_data(shared: Path) -> None:
    kang = ad.io.read_h5ad(shared / "kang_pbmc.h5ad")
    lung = ad.io.read_h5ad(shared / "lungmix_celseq2_dropseq.h5ad")
    assert infer_organism(kang.var_names) == "human"
    assert infer_organism(lung.var_names) == "human"
    for file, organism in [("reactome", "human"), ("m_reactome", "mouse"), ("m_TF", "mouse")]:
        gene_sets = tosica.gs.read_gmt(shared / "gene_sets" / f"{file}.gmt.gz")
        assert infer_organism(gene for s in gene_sets.values() for gene in s) == organism


@pytest.mark.parametrize(
    ("names", "organism"),
    [
        (["ENSG00000198851.10"], "human"),
        (["ENSMUSG00000032093"], "mouse"),
        (["ENSMUSG00000032093", "ENSG00000198851"], None),
        (["ENSDARG00000000001"] * 30, None),
        (["CD3E", "CD19"], None),  # too few to tell
        ([f"GENE{i}" for i in range(100)], None),
        ([], None),
    ],
)
def test_recognises_few_and_odd_names(names: list[str], organism: str | None) -> None:
    assert infer_organism(names) == organism


def test_recognises_entrez_numbers() -> None:
    numbers = [
        name for names in gene_table("human").names_of("Entrez numbers").values() for name in names
    ]
    assert infer_organism(numbers[::100]) == "human"
    assert infer_organism([str(i) for i in range(1, 300)]) is None


def test_a_mixture_of_species_is_neither() -> None:
    human = sc.datasets.pbmc68k_reduced().var_names
    mouse = tosica.gs.map_genes(human, organism="human", to_organism="mouse").dropna()
    assert infer_organism(human) == "human"
    assert infer_organism(mouse) == "mouse"
    half = len(mouse) // 2
    assert infer_organism([*human[:half], *mouse[:half]]) is None


@pytest.mark.data
def test_recognises_composite_names(shared: Path) -> None:
    for organism in ORGANISMS:
        ids = gene_table(organism).names_of("Ensembl IDs")
        symbols = list(ids)[::50]
        assert infer_organism(f"{s}_{ids[s][0]}" for s in symbols) == organism
        assert infer_organism(f"{ids[s][0]}|{s}" for s in symbols) == organism
        assert infer_organism(f"{s}|{i}" for i, s in enumerate(symbols)) == organism


@pytest.mark.data
def test_recognises_mouse_symbols_in_upper_case(shared: Path) -> None:
    human = gene_table("human").symbols
    for file in ("m_reactome", "m_TF", "reactome"):
        gene_sets = tosica.gs.read_gmt(shared / "gene_sets" / f"{file}.gmt.gz")
        names = sorted({gene.upper() for s in gene_sets.values() for gene in s})
        found = GeneList(names).upper_case_mouse
        assert (found is not None) == file.startswith("m_")
        if found is not None:
            assert len(found.mouse_only) > 20 * found.n_human_only
            assert not human.intersection(found.mouse_only)
    # Symbols in their usual spelling, and too few names, are not recognised.
    for organism in ORGANISMS:
        assert GeneList(gene_table(organism).symbols).upper_case_mouse is None
    assert GeneList([]).upper_case_mouse is None
    assert GeneList(["CD3E", "H2-AA", "GM12345"]).upper_case_mouse is None


# ------------------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (
            {"names": "CD3E"},
            TypeError,
            "names must be a list of gene names, not str.",
        ),
        ({"names": 5}, TypeError, "names must be a list of gene names, not int."),
        (
            {"names": ["CD3E", 916]},
            TypeError,
            "names holds a int (916): gene names are strings.",
        ),
        (
            {"names": ["CD3E"], "to": "refseq"},
            ValueError,
            "to must be 'symbol', 'ensembl' or 'entrez', not 'refseq'.",
        ),
        (
            {"names": ["CD3E"], "organism": "rat"},
            ValueError,
            "organism must be 'auto', 'human' or 'mouse', not 'rat'.",
        ),
        (
            {"names": ["CD3E"], "to_organism": "rat"},
            ValueError,
            "to_organism must be 'human', 'mouse' or None, not 'rat'.",
        ),
        (
            {"names": ["CD3E"]},
            ValueError,
            "It is not clear whether the genes are human or mouse: pass organism='human' or "
            "organism='mouse'.",
        ),
    ],
)
def test_refuses(arguments: dict[str, Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(sentence)}$"):
        tosica.gs.map_genes(**arguments)
