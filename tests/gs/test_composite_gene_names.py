"""Names made of a symbol and an identifier, and symbols with the number of their repeat."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

import tosica
from tosica.gs._gene_list import GeneList
from tosica.gs._gene_names import split_composite, split_numbered
from tosica.gs._gene_table import gene_table


def mapped(*names: str, organism: str = "human", **kwargs: Any) -> list[str | None]:
    return tosica.gs.map_genes(names, organism=organism, **kwargs).to_list()


@pytest.mark.parametrize(
    "name",
    [
        *("", "|", "_", "ENSG", "CD3E", "HLA-A", "NKX2-1", "RP11-34P13.7", "MT-ND1"),
        *("ENSG00000198851", "ENSG00000198851.10", "ENSG00000182378.13_PAR_Y"),
        *("ENSG00000198851-1", "ENSG00000198851_2", "_ENSG00000198851", "ENSG00000198851_"),
    ],
)
def test_names_that_are_not_made_of_two(name: str) -> None:
    assert split_composite(name) in (None, ("", ""))


@pytest.mark.parametrize("name", ["CD24.0", "CD24.01", "CD24.10", "CD24_1", "CD24..1", ".1", "-1"])
def test_names_that_are_not_numbered(name: str) -> None:
    assert split_numbered(name) is None


@pytest.mark.parametrize(
    ("name", "gene"),
    [
        ("HLA-A_ENSG00000206503", "HLA-A"),
        ("HLA-A_ENSG00000206503.13", "HLA-A"),
        ("HLA-A-ENSG00000206503", "HLA-A"),  # what Seurat makes of the underscore
        ("ENSG00000206503_HLA-A", "HLA-A"),
        ("ENSG00000206503.13_HLA-A", "HLA-A"),
        ("HLA-A|ENSG00000206503.13", "HLA-A"),
        ("ENSG00000206503|HLA-A", "HLA-A"),
        ("ENSG00000182378.13_PAR_Y_PLCXD1", "PLCXD1"),
        ("TP53|7157", "TP53"),
        ("TP53|anything", "TP53"),
        ("TP53|", "TP53"),
        # One part is enough, and an old symbol and an ID are one gene.
        ("HLA-A_ENSG99999999999", "HLA-A"),
        ("some clone_ENSG00000206503", "HLA-A"),
        ("IL8_ENSG00000169429", "CXCL8"),
        # Where the symbol may be two genes the ID says which.
        ("SARS_ENSG00000031698", "SARS1"),
        ("nothing_ENSG99999999999", None),
        ("nothing|anything", None),
        ("?|7157", None),
    ],
)
def test_composite_names(name: str, gene: str | None) -> None:
    assert mapped(name) == [gene]


def test_composite_names_of_the_mouse() -> None:
    names = ["Cd3e_ENSMUSG00000032093", "ENSMUSG00000032093.7|Cd3e", "Cd3e|12501", "Cd3e.1"]
    for name in names:
        assert mapped(name, organism="mouse") == ["Cd3e"]
    assert mapped("Cd3e_ENSMUSG00000032093", organism="mouse", to_organism="human") == ["CD3E"]
    assert tosica.gs.map_genes([names[0]] * 3).to_list() == ["Cd3e"] * 3


def test_parts_that_contradict_each_other_are_not_guessed_at(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "tosica"):
        assert mapped("CD3E_ENSG00000177455", "CD3E|CD19", "CD3E") == [None, None, "CD3E"]
    assert caplog.messages == [
        "map_genes: 1 of 3 human genes have a name; 2 ambiguous left out: "
        "CD3E_ENSG00000177455 (CD3E or CD19), CD3E|CD19 (CD3E or CD19)"
    ]


def test_numbers_beside_symbols_are_entrez_numbers_where_most_are() -> None:
    names = ["CD3E|916", "CD19|930", "LYZ|4069"]
    # SLC35E2 was the name of two genes, and the second number is that of B.
    table = gene_table("human")
    (number,) = table.names_of("Entrez numbers")["SLC35E2B"]
    more = [f"SLC35E2|{number}", "?|7157", "CD4|930"]
    assert mapped(*names, *more) == ["CD3E", "CD19", "LYZ", "SLC35E2B", "TP53", None]
    # Here they are something else.
    assert mapped("CD3E|1", "CD19|2", "LYZ|916", "?|930") == ["CD3E", "CD19", "LYZ", None]


@pytest.mark.parametrize(
    "name",
    ["HLA-A", "NKX2-1", "RIMBP3.2", "AC000001.1", "RP11-34P13.7", "MT-ND1", "IGHV1-69-2"],
)
def test_a_name_that_is_a_genes_own_is_not_cut(name: str) -> None:
    found = {
        "HLA-A": "HLA-A",
        "NKX2-1": "NKX2-1",
        "RIMBP3.2": "RIMBP3B",
        "MT-ND1": "ND1",
        "IGHV1-69-2": "IGHV1-69-2",
    }
    assert mapped(name) == [found.get(name)]


@pytest.mark.parametrize("mark", [".", "-"])
def test_numbered_symbols(mark: str) -> None:
    assert mapped(f"CD24{mark}1", f"CD19{mark}2") == ["CD24", "CD19"]
    # The symbol itself is there, under this name or another: what is numbered is another locus.
    assert mapped("CD24", f"CD24{mark}1") == ["CD24", None]
    assert mapped("ENSG00000198851", f"CD3E{mark}1") == ["CD3E", None]
    assert mapped("CD3E_ENSG00000198851", f"CD3E{mark}1") == ["CD3E", None]
    # Of several nobody knows which one it is.
    assert mapped(f"CD24{mark}1", f"CD24{mark}2") == [None, None]
    # Nor what an old symbol, or none, with a number is.
    assert mapped(f"SEPT7{mark}1", f"nothing{mark}1") == [None, None]


def test_families_are_not_repeats() -> None:
    # RIMBP3.2 and Ighv1-62-1 are genes of their own, so that these may be too.
    assert mapped("RIMBP3.7") == [None]
    assert mapped("Ighv1-62-9", organism="mouse") == [None]


def test_a_numbered_id() -> None:
    assert mapped("ENSG00000198851-1") == ["CD3E"]
    assert mapped("ENSG00000198851", "ENSG00000198851-1") == ["CD3E", None]


def test_every_gene_is_found_by_a_composite_name() -> None:
    for organism in ("human", "mouse"):
        table = gene_table(organism)
        ids = {s: i[0] for s, i in table.names_of("Ensembl IDs").items()}
        genes = tosica.gs.map_genes(
            [f"{symbol}_{i}" for symbol, i in ids.items()], organism=organism
        )
        assert genes.to_list() == list(ids)


def test_long_lists_take_no_time() -> None:
    table = gene_table("human")
    mapped("CD3E", "IL8", "ENSG00000198851")
    symbols = sorted(table.symbols)[:20_000]
    for form in ("{}|chr1", "{}_ENSG00000000000", "{}.1", "RP11-{}P1.7"):
        genes = GeneList(form.format(symbol) for symbol in symbols)
        # Processor time, since other work may go on. Every name against every other takes minutes.
        start = time.process_time()
        genes.resolve("human")
        assert time.process_time() - start < 10
