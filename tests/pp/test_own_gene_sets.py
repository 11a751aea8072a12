"""Gene sets of the user's own are matched as well as those of a collection, alone and joined."""

import logging

import anndata as ad
import numpy as np
import pytest
import scanpy as sc
from anndata import AnnData

import tosica
from tosica.gs._join import JoinedGeneSets

KEY = "tosica_mask"
MINE = {
    "B cell": ["CD79A", "CD79B", "MS4A1", "CD37", "CD74", "HLA-DRA"],
    "few": ["CD3D", "NOSUCHGENE"],
    "large": [f"GENE{i}" for i in range(301)],
}
pytestmark = pytest.mark.filterwarnings("ignore:only .* of adata's genes")


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level(logging.INFO, "tosica")


def named(names):
    adata = AnnData(np.ones((2, len(names)), dtype=np.float32))
    adata.var_names = list(names)
    return adata


@pytest.fixture(scope="module")
def composite():
    """Names such as CD79A_ENSG00000105369."""
    symbols = sc.datasets.pbmc68k_reduced().raw.to_adata().var_names
    ids = tosica.gs.map_genes(symbols, to="ensembl", organism="human")
    has_id = ids.notna().to_numpy()
    return [f"{s}_{i}" for s, i in zip(symbols[has_id], ids[has_id], strict=True)]


def genes_of(adata, name):
    column = list(adata.uns[KEY]["gene_sets"]).index(name)
    return set(adata.var_names[adata.varm[KEY].toarray()[:, column]])


def assert_nothing_is_lost(adata, joined):
    """All sets of the Gene Ontology are in the mask of a join, with the same genes."""
    alone = named(adata.var_names)
    tosica.pp.build_mask(alone)
    tosica.pp.build_mask(adata, joined)
    together = set(adata.uns[KEY]["gene_sets"])
    names = list(alone.uns[KEY]["gene_sets"])
    assert {f"GO: {name}" for name in names} <= together
    for name in names[::50]:
        assert genes_of(adata, f"GO: {name}") == genes_of(alone, name)
    n_covered = adata.uns[KEY]["n_genes_covered"]
    assert n_covered >= alone.uns[KEY]["n_genes_covered"]


def test_a_join_loses_no_set_and_names_what_was_left_out(composite, caplog):
    adata = named(composite)
    joined = tosica.gs.join({"GO": "human_gobp", "mine": MINE})
    assert_nothing_is_lost(adata, joined)
    assert any("MHC class II" in name for name in adata.uns[KEY]["gene_sets"])
    assert adata.uns[KEY]["source"] == "human_gobp + dict"
    assert adata.uns[KEY]["organism"] == "human"
    left_out = adata.uns[KEY]["left_out"].set_index("gene_set")["reason"]
    assert list(left_out.index) == ["mine: few", "mine: large"]
    assert left_out["mine: few"].startswith("1 of 2 genes are in adata")
    message = next(m for m in caplog.messages if "left out 'mine" in m)
    assert message.startswith("build_mask: left out 'mine: few' (1 of 2 genes")
    assert "GO:" not in message
    unknown = adata.uns[KEY]["unknown_genes"]["gene"]
    assert set(unknown) == {"NOSUCHGENE", *MINE["large"]} | {
        gene
        for gene in MINE["B cell"]
        if not any(name.startswith(f"{gene}_") for name in composite)
    }


@pytest.mark.data
def test_a_join_on_real_data(shared):
    names = ad.io.read_h5ad(shared / "kang_pbmc.h5ad").var_names
    adata = named(names)
    assert_nothing_is_lost(
        adata, tosica.gs.join({"GO": "human_gobp", "mine": {"B": MINE["B cell"]}})
    )
    assert genes_of(adata, "mine: B") >= {"CD79A_ENSG00000105369"} & set(names)


def test_each_source_may_have_names_of_its_own_kind(composite, tmp_path):
    symbols = [name.partition("_")[0] for name in composite[:60]]
    numbers = tosica.gs.map_genes(symbols, to="entrez", organism="human")
    mouse = tosica.gs.map_genes(symbols, organism="human", to_organism="mouse")
    tosica.gs.write_gmt({"s": list(mouse.dropna())}, tmp_path / "mouse.gmt")
    joined = tosica.gs.join(
        {
            "symbols": {"s": symbols},
            "numbers": {"s": list(numbers.dropna())},
            "mouse": tmp_path / "mouse.gmt",
        }
    )
    adata = named(composite)
    tosica.pp.build_mask(adata, joined, organism="human")
    assert genes_of(adata, "symbols: s") == set(composite[:60])
    assert len(genes_of(adata, "numbers: s")) == numbers.notna().sum()
    assert len(genes_of(adata, "mouse: s")) == mouse.notna().sum()
    assert adata.uns[KEY]["source"] == "dict + dict + mouse.gmt"


@pytest.fixture
def mouse():
    """Mouse genes, most of which are orthologs of human ones."""
    symbols = sc.datasets.pbmc68k_reduced().raw.to_adata().var_names
    names = tosica.gs.map_genes(symbols, organism="human", to_organism="mouse")
    return named(names.dropna().unique())


HUMAN = {"B": ["CD79A", "CD79B", "MS4A1", "CD19", "PAX5", "BLK"]}


def test_few_human_genes_are_mapped_to_mouse_if_asked(mouse):
    tosica.pp.build_mask(mouse, HUMAN, organism="mouse", min_genes=3)
    assert genes_of(mouse, "B") >= {"Cd79a", "Cd79b", "Ms4a1"}


def test_few_human_genes_alone_name_the_way(mouse):
    with pytest.raises(ValueError, match=r"pass organism='mouse' to map them"):
        tosica.pp.build_mask(mouse, HUMAN)


def test_that_all_own_sets_were_left_out_is_a_warning(mouse):
    joined = tosica.gs.join({"GO": "mouse_gobp", "mine": HUMAN})
    with pytest.warns(
        UserWarning,
        match=r"none of your own gene sets is in the mask, not even 'mine: B'.*pass organism='mouse'",
    ):
        tosica.pp.build_mask(mouse, joined)


def test_own_sets_of_too_few_genes_are_told_so(mouse):
    joined = tosica.gs.join({"GO": "mouse_gobp", "mine": {"one": ["Cd74"]}})
    with pytest.warns(UserWarning, match=r"'mine: one'.*: lower min_genes"):
        tosica.pp.build_mask(mouse, joined)


def test_own_sets_of_few_genes_with_wrong_names_are_told_so(mouse):
    joined = tosica.gs.join({"GO": "mouse_gobp", "mine": {"two": ["CD74", "MS4A1"]}})
    with pytest.warns(UserWarning, match=r"'mine: two'.*pass organism='mouse'"):
        tosica.pp.build_mask(mouse, joined)


def test_few_genes_of_unclear_organism_are_translated(composite):
    genes = [name.partition("_")[0] for name in composite[:2]]
    adata = named(composite)
    tosica.pp.build_mask(adata, {"s": [*genes, "a", "b", "c", "d"]}, min_genes=2)
    assert genes_of(adata, "s") == set(composite[:2])


@pytest.mark.parametrize("gene", ["CD79A", "Cd79a"])
def test_a_gene_that_is_there_under_a_longer_name_is_suggested(composite, caplog, gene):
    adata = named([*composite, "CD9"])
    sets = {"s": [gene, "CD9"]}
    tosica.pp.build_mask(adata, sets, min_genes=1, identifiers="exact")
    assert f"not in adata: {gene!r} (did you mean 'CD79A_ENSG" in caplog.text


def test_another_gene_is_not_suggested(caplog):
    adata = named(["GRB2", "PFN1", "CD79A", "CD74", "MS4A1"])
    sets = {"s": ["CD74", "GZMB", "PRF1", "CD79B", "MS4A-1"]}
    tosica.pp.build_mask(adata, sets, min_genes=1, identifiers="exact")
    unknown = "'GZMB', 'PRF1', 'CD79B', 'MS4A-1' (did you mean 'MS4A1'?)"
    assert f"not in adata: {unknown}" in caplog.text


def test_sources_are_remembered():
    inner = tosica.gs.join({"x": "human_gobp", "y": {"s": ("CD3D",)}})
    joined = tosica.gs.join({"a": inner, "b": {"s": ["CD3E"]}})
    joined["later"] = ["CD19"]
    assert isinstance(joined, JoinedGeneSets)
    assert isinstance(joined, dict)
    sources = joined.by_source()
    assert [source.collection is not None for source in sources] == [
        True,
        False,
        False,
        False,
    ]
    assert [len(sets) for sets in sources.values()][1:] == [1, 1, 1]
    with pytest.raises(TypeError, match="genes of gene set 's' must be a list"):
        tosica.gs.join({"a": {"s": "CD3D"}})


def test_no_two_messages_on_genes_in_capitals_contradict(caplog):
    human = tosica.gs.load("human_gobp")["glycolytic process"]
    mouse = sorted(tosica.gs._gene_table.gene_table("mouse").symbols)[::40]
    for gene_sets in ("gobp", "human_gobp"):
        caplog.clear()
        adata = named(dict.fromkeys([*human, *(name.upper() for name in mouse)]))
        with pytest.warns(UserWarning, match="look like mouse symbols"):
            tosica.pp.build_mask(adata, gene_sets, min_genes=2)
        assert "holds human genes" not in caplog.text
    caplog.clear()
    with pytest.warns(UserWarning, match="look like mouse symbols"):
        tosica.pp.build_mask(adata, min_genes=2)
    assert "adata's genes are in capitals, as human genes are" in caplog.text
    with pytest.raises(ValueError, match=r"are in capitals, .*look like mouse symbols"):
        tosica.pp.build_mask(adata, organism="mouse")
