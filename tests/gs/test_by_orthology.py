"""Gene sets of one organism in the genes of another, and `mouse_gobp`, which is made so."""

from __future__ import annotations

import hashlib

import tosica.gs
from tosica.gs._bundled import map_by_orthology


def test_genes_are_replaced_and_sorted() -> None:
    gene_sets = {"one": ("C", "A", "lost"), "two": ("B", "C")}
    mapped = map_by_orthology(gene_sets, {"A": "z", "B": "b", "C": "c"}, min_genes=2)
    assert mapped == {"one": ("c", "z"), "two": ("b", "c")}


def test_small_sets_are_dropped() -> None:
    gene_sets = {"kept": ("A", "B"), "dropped": ("A", "lost", "also lost")}
    assert list(map_by_orthology(gene_sets, {"A": "a", "B": "b"}, min_genes=2)) == ["kept"]


def test_of_sets_that_become_the_same_the_most_specific_stays() -> None:
    gene_sets = {"wide": ("A", "B", "lost"), "narrow": ("B", "A"), "other": ("A", "B")}
    assert list(map_by_orthology(gene_sets, {"A": "a", "B": "b"}, min_genes=1)) == ["narrow"]


def test_mouse_gobp_holds_orthologs_of_the_human_genes() -> None:
    human, mouse = tosica.gs.load("human_gobp"), tosica.gs.load("mouse_gobp")
    assert set(mouse) < set(human)
    name = "T cell receptor signaling pathway"
    assert {"Cd3e", "Cd3d", "Zap70", "Lck"} <= set(mouse[name])
    expected = tosica.gs.map_genes(human[name], organism="human", to_organism="mouse").dropna()
    assert mouse[name] == sorted(expected)
    for genes in mouse.values():
        assert 10 <= len(genes) <= 300
    assert len({tuple(genes) for genes in mouse.values()}) == len(mouse)


def test_mouse_gobp_is_the_same_everywhere() -> None:
    lines = [f"{name}\t{' '.join(genes)}\n" for name, genes in tosica.gs.load("mouse_gobp").items()]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert digest == "5a1915ca80b7e131d4e8eb58536433e9b7dfa1b1ce916b702fdcb708d8b9d45c"
