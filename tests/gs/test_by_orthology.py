"""`mouse_gobp`: human gene sets with the mouse orthologs of their genes."""

from __future__ import annotations

import hashlib

import tosica.gs


def test_mouse_gobp_is_human_gobp_by_orthology() -> None:
    human = tosica.gs.load("human_gobp")
    genes = sorted({gene for members in human.values() for gene in members})
    ortholog = tosica.gs.map_genes(genes, organism="human", to_organism="mouse").dropna()
    most_specific: dict[tuple[str, ...], str] = {}
    for name, members in human.items():
        mapped = tuple(sorted(ortholog[gene] for gene in members if gene in ortholog.index))
        before = most_specific.get(mapped)
        if len(mapped) >= 10 and (before is None or len(members) < len(human[before])):
            most_specific[mapped] = name
    expected = {name: list(genes) for genes, name in most_specific.items()}
    assert tosica.gs.load("mouse_gobp") == expected


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
