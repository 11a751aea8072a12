"""build_mask on genes that go by other names, on networks, and its speed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from anndata import AnnData

import tosica
from tosica.gs._genes import gene_table

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*' option is deprecated"),
    pytest.mark.filterwarnings("ignore:Writing zarr v2 data"),
]

KEY = "tosica_mask"
low_coverage_is_no_matter = pytest.mark.filterwarnings("ignore:only .* of adata's genes")


def named(names: Any) -> AnnData:
    adata = AnnData(np.ones((2, len(names)), dtype=np.float32))
    adata.var_names = list(names)
    return adata


def about(adata: AnnData) -> dict[str, Any]:
    return adata.uns[KEY]


def sets_of(adata: AnnData, genes: Any) -> dict[str, set[str]]:
    """Each gene set's genes, under the names that are given for the data's."""
    genes = np.asarray(genes, dtype=object)
    mask = adata.varm[KEY].tocsc()
    return {name: set(genes[mask[:, column].indices]) for column, name in enumerate(about(adata)["gene_sets"])}


@pytest.fixture(scope="module")
def pbmc() -> AnnData:
    return sc.datasets.pbmc68k_reduced().raw.to_adata()


@pytest.fixture(scope="module")
def symbols(pbmc: AnnData) -> list[str]:
    """Approved symbols with one Ensembl ID and a mouse ortholog: what can be said in every way."""
    found = tosica.gs.map_genes(pbmc.var_names, organism="human").dropna().unique()
    ensembl = tosica.gs.map_genes(found, to="ensembl", organism="human").dropna()
    mouse = tosica.gs.map_genes(ensembl.index, organism="human", to_organism="mouse").dropna()
    return list(mouse.index)


@pytest.fixture(scope="module")
def expected(symbols: list[str]) -> dict[str, set[str]]:
    adata = named(symbols)
    tosica.pp.build_mask(adata, identifiers="exact")
    return sets_of(adata, symbols)


# -------------------------------------------------------------------------------------- identifiers


@pytest.mark.parametrize("form", ["ensembl", "versioned", "entrez", "mixed"])
def test_same_mask_by_any_identifier(
    symbols: list[str],
    expected: dict[str, set[str]],
    form: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    to: Any = "entrez" if form == "entrez" else "ensembl"
    names = tosica.gs.map_genes(symbols, to=to, organism="human").to_list()
    if form == "versioned":
        names = [f"{name}.{i % 9}" for i, name in enumerate(names)]
    if form == "mixed":
        names = [*symbols[:300], *names[300:]]
    adata = named(names)
    with caplog.at_level(logging.INFO, "tosica"):
        caplog.clear()
        tosica.pp.build_mask(adata)
    assert sets_of(adata, symbols) == expected
    assert list(adata.var_names) == names
    kind = "Entrez numbers" if form == "entrez" else "Ensembl IDs"
    n = about(adata)["n_genes_mapped"]
    assert caplog.messages[0].endswith("since adata holds human genes (by overlap)")
    assert caplog.messages[1].startswith(f"build_mask: translated {n} {kind}")
    assert about(adata)["organism"] == "human"


def test_old_symbols_of_real_data(pbmc: AnnData, caplog: pytest.LogCaptureFixture) -> None:
    exact, mapped = pbmc.copy(), pbmc.copy()
    tosica.pp.build_mask(exact, identifiers="exact")
    with caplog.at_level(logging.INFO, "tosica"):
        caplog.clear()
        tosica.pp.build_mask(mapped)
    assert about(exact)["n_genes_mapped"] == 0
    assert about(mapped)["n_genes_mapped"] == 43
    assert about(mapped)["n_genes_covered"] > about(exact)["n_genes_covered"] + 20
    holders = sets_of(mapped, pbmc.var_names)
    # FYB is called FYB1 now.
    assert "FYB1" in tosica.gs.load("human_gobp")["T cell receptor signaling pathway"]
    assert any("FYB" in genes for name, genes in holders.items() if "unannotated" not in name)
    # MT-ND3 is an alias of NCBI Gene's ND3, and TMBIM4-1 what is left of two rows called TMBIM4.
    assert caplog.messages[1].startswith("build_mask: translated 42 aliases and 1 numbered symbols")


def test_gene_sets_of_ones_own_are_matched_as_they_are(pbmc: AnnData, tmp_path: Path) -> None:
    sets = {"a": ["FYB1", *pbmc.var_names[:9]]}
    tosica.gs.write_gmt(sets, tmp_path / "own.gmt")
    for given in (sets, tmp_path / "own.gmt"):
        for identifiers, n in (("auto", 9), ("exact", 9), ("map", 10)):
            with pytest.warns(UserWarning, match="only"):
                adata = tosica.pp.build_mask(pbmc, given, identifiers=identifiers, copy=True)
            assert adata.varm[KEY].toarray()[:, 0].sum() == n


def test_gene_sets_of_ones_own_are_translated_where_names_would_be_lost(
    symbols: list[str], expected: dict[str, set[str]]
) -> None:
    sets = {name: sorted(genes) for name, genes in expected.items() if "unannotated" not in name}
    ensembl = tosica.gs.map_genes(symbols, to="ensembl", organism="human").to_list()
    # Symbols on either side, and IDs on the other.
    of_symbols = named(ensembl)
    tosica.pp.build_mask(of_symbols, sets)
    by_id = dict(zip(symbols, ensembl, strict=True))
    of_ids = named(symbols)
    tosica.pp.build_mask(of_ids, {name: [by_id[g] for g in s] for name, s in sets.items()})
    for adata in (of_symbols, of_ids):
        assert sets_of(adata, symbols) == expected


def test_a_handful_of_markers_on_ensembl_ids(symbols: list[str]) -> None:
    ids = tosica.gs.map_genes(symbols, to="ensembl", organism="human").to_list()
    adata = named(ids)
    with pytest.warns(UserWarning, match="only"):
        tosica.pp.build_mask(adata, {"mine": symbols[3:9]})
    assert sets_of(adata, symbols)["mine"] == set(symbols[3:9])


@pytest.mark.parametrize("column", ["gene_symbols", "gene_ids", "feature_name"])
def test_columns_of_var(
    symbols: list[str],
    expected: dict[str, set[str]],
    column: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    adata = named([f"row {i}" for i in range(len(symbols))])
    adata.var["chromosome"] = "1"
    adata.var["n_cells"] = 3
    to: Any = "ensembl" if column == "gene_ids" else "symbol"
    adata.var[column] = pd.Categorical(tosica.gs.map_genes(symbols, to=to, organism="human"))
    before = adata.var.copy()
    with caplog.at_level(logging.INFO, "tosica"):
        caplog.clear()
        tosica.pp.build_mask(adata)
    assert sets_of(adata, symbols) == expected
    assert about(adata)["matched_by"] == column
    assert caplog.messages[0] == (
        f"build_mask: took human_gobp, since adata holds human genes in var[{column!r}] (by overlap)"
    )
    assert f"genes named by var[{column!r}]" in caplog.messages[1]
    pd.testing.assert_frame_equal(adata.var, before)
    assert adata.var_names[0] == "row 0"


def test_ambiguous_genes_are_listed(symbols: list[str], caplog: pytest.LogCaptureFixture) -> None:
    adata = named([*symbols, "SARS"])
    with caplog.at_level(logging.INFO, "tosica"):
        caplog.clear()
        tosica.pp.build_mask(adata)
    assert "1 ambiguous left out: SARS (SARS1 or SARS2)" in caplog.messages[1]
    assert adata.varm[KEY][adata.n_vars - 1].sum() == 0


def test_an_alias_does_not_take_the_place_of_the_gene_itself() -> None:
    adata = named(["CXCL8", "IL8", *sorted(gene_table("human").symbols)[:50]])
    with pytest.warns(UserWarning, match="only"):
        tosica.pp.build_mask(adata, {"a": ["CXCL8"]}, min_genes=1, identifiers="map")
    assert adata.varm[KEY].toarray()[:2, 0].tolist() == [True, False]


@pytest.mark.parametrize("format_", ["h5ad", "zarr"])
def test_written_and_read_again(pbmc: AnnData, tmp_path: Path, format_: str) -> None:
    adata = pbmc.copy()
    network = pd.DataFrame({"source": "a", "target": pbmc.var_names[:90], "weight": np.linspace(-1, 1, 90)})
    tosica.pp.build_mask(adata, network)
    path = tmp_path / f"x.{format_}"
    getattr(adata, f"write_{format_}")(path)
    again = getattr(ad, f"read_{format_}", None) or getattr(ad.io, f"read_{format_}")
    back = again(path)
    assert (back.varm[KEY] != adata.varm[KEY]).nnz == 0
    assert back.uns[KEY]["params"]["select"] == "largest"
    weights = [tosica.get.network_weights(each).toarray() for each in (adata, back)]
    np.testing.assert_array_equal(*weights)
    pd.testing.assert_frame_equal(
        back.uns[KEY]["weights"].astype({"gene": object, "gene_set": str}),
        adata.uns[KEY]["weights"].astype({"gene": object, "gene_set": str}),
        check_index_type=False,
        check_column_type=False,
    )


# ------------------------------------------------------------------------------------------ species


@pytest.fixture
def mouse(symbols: list[str]) -> AnnData:
    return named(tosica.gs.map_genes(symbols, organism="human", to_organism="mouse").to_list())


def test_gene_sets_of_another_organism_are_refused(mouse: AnnData, symbols: list[str], tmp_path: Path) -> None:
    human = named(symbols)
    tosica.gs.write_gmt({"mine": symbols}, tmp_path / "own.gmt")
    for adata, gene_sets, kwargs, words in (
        (mouse, "human_gobp", {}, "pass gene_sets='mouse_gobp', or organism='mouse' to map"),
        (mouse, tmp_path / "own.gmt", {}, "own.gmt.*: pass organism='mouse' to map"),
        (human, "mouse_gobp", {}, "pass gene_sets='human_gobp', or organism='human' to map"),
        (human, "gobp", {"organism": "mouse"}, "human genes .*pass organism='human' or leave"),
    ):
        with pytest.raises(ValueError, match=words):
            tosica.pp.build_mask(adata, gene_sets, **kwargs)
        assert not adata.varm
        assert not adata.uns


def test_mapped_to_the_mouse_when_asked_to(
    mouse: AnnData,
    symbols: list[str],
    expected: dict[str, set[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "tosica"):
        tosica.pp.build_mask(mouse, "human_gobp", organism="mouse")
    assert sets_of(mouse, symbols) == expected
    assert about(mouse)["organism"] == "mouse"
    assert "from human to mouse by one-to-one orthology" in caplog.messages[0]


def test_mouse_ensembl_ids(mouse: AnnData) -> None:
    by_id = tosica.gs.map_genes(mouse.var_names, to="ensembl", organism="mouse")
    adata = named([name or f"?{i}" for i, name in enumerate(by_id)])
    tosica.pp.build_mask(mouse, "mouse_gobp")
    tosica.pp.build_mask(adata, "mouse_gobp")
    n = about(mouse)["n_genes_covered"]
    assert about(adata)["n_genes_covered"] >= 0.99 * n


# ------------------------------------------------------- composite names, on real data and others


@pytest.mark.data
def test_composite_names_of_real_data(shared: Path, caplog: pytest.LogCaptureFixture) -> None:
    adata = ad.io.read_h5ad(shared / "kang_pbmc.h5ad")
    genes = ["HLA-A", "HLA-B", "HLA-DRA", "CD79A"]
    names = [next(name for name in adata.var_names if name.startswith(f"{g}_")) for g in genes]
    with caplog.at_level(logging.INFO, "tosica"):
        caplog.clear()
        tosica.pp.build_mask(adata)
    assert "translated 83 composite names and 54 aliases; 3 ambiguous" in caplog.messages[1]
    # What the ID says is another gene than what the symbol says.
    assert "TAF9_ENSG00000085231 (TAF9 or AK6)" in caplog.messages[1]
    assert (adata[:, names].varm[KEY].sum(1) > 1).all()
    assert about(adata)["coverage"] > 0.8  # 0.76 without
    assert set(names) <= set(adata.var_names)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["{s}_{i}", "{s}_{i}.7", "{i}_{s}", "{s}|{i}", "{i}|{s}", "{s}-{i}"])
def test_same_mask_by_composite_names(
    symbols: list[str],
    expected: dict[str, set[str]],
    form: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ids = tosica.gs.map_genes(symbols, to="ensembl", organism="human")
    adata = named([form.format(s=s, i=i) for s, i in ids.items()])
    with caplog.at_level(logging.INFO, "tosica"):
        caplog.clear()
        tosica.pp.build_mask(adata)
    assert sets_of(adata, symbols) == expected
    assert f"build_mask: translated {about(adata)['n_genes_mapped']} composite names" in caplog.messages[1]


# ------------------------------------------------------------------ the collection of the organism


def took(adata: AnnData, caplog: pytest.LogCaptureFixture, *args: Any, **kwargs: Any) -> str:
    """The line of the log that says which collection was taken."""
    with caplog.at_level(logging.INFO, "tosica"):
        caplog.clear()
        tosica.pp.build_mask(adata, *args, **kwargs)
    return caplog.messages[0]


def test_default_is_the_collection_of_the_organism(
    mouse: AnnData, symbols: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    human = named(symbols)
    for adata, organism in ((human, "human"), (mouse, "mouse")):
        explicit, default = adata.copy(), adata.copy()
        tosica.pp.build_mask(explicit, f"{organism}_gobp")
        line = f"build_mask: took {organism}_gobp, since adata holds {organism} genes (by overlap)"
        assert took(default, caplog) == line
        assert took(adata, caplog, "gobp") == line
        for each in (default, adata):
            assert (each.varm[KEY] != explicit.varm[KEY]).nnz == 0
            assert about(each)["source"] == f"{organism}_gobp"
            assert about(each)["params"]["max_jaccard"] == 0.5
            assert about(each)["organism"] == organism


def test_default_collection_where_the_organism_is_not_clear(
    caplog: pytest.LogCaptureFixture,
) -> None:
    few = sorted(tosica.gs.load("human_gobp")["glycolytic process"])[:15]
    line = took(named(few), caplog)
    assert line == ("build_mask: took human_gobp, since it is not clear whether adata holds human or mouse genes")
    with pytest.raises(ValueError, match=r"no gene of 5 834 gene sets \(human_gobp\) is among"):
        tosica.pp.build_mask(named([f"G{i}" for i in range(50)]))


def test_collection_of_the_organism_in_a_list_and_by_version(
    mouse: AnnData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tosica.gs.write_gmt({"a": list(mouse.var_names[:9])}, tmp_path / "own.gmt")
    tosica.pp.build_mask(mouse, ["gobp", tmp_path / "own.gmt"], max_gene_sets=9999)
    assert about(mouse)["source"] == "mouse_gobp + own.gmt"
    assert about(mouse)["gene_sets"][0].startswith("mouse_gobp: ")
    # A collection's name wins over a file so called.
    (tmp_path / "gobp").write_text("nothing")
    monkeypatch.chdir(tmp_path)
    tosica.pp.build_mask(mouse, "gobp@2024-09-08")
    assert about(mouse)["source"] == "mouse_gobp"
    with pytest.raises(ValueError, match="There is no version '2019' of mouse_gobp"):
        tosica.pp.build_mask(mouse, "gobp@2019")


# --------------------------------------------------------------- mouse symbols in upper case


@pytest.mark.data
@pytest.mark.parametrize("column", [None, "symbol"])
def test_mouse_symbols_in_upper_case(shared: Path, column: str | None) -> None:
    names = list(ad.io.read_h5ad(shared / "dc_progenitors.h5ad").var_names)
    adata, true = named([name.upper() for name in names]), named(names)
    where = "adata.var_names"
    if column is not None:
        adata.var[column] = list(adata.var_names)
        adata.var_names = [f"row {i}" for i in range(adata.n_vars)]
        where = f"adata.var[{column!r}]"
    remedy = (
        f"{where} = [new or old for old, new in tosica.gs.map_genes({where}, organism='mouse', "
        "ignore_case=True).items()]"
    )
    with pytest.warns(UserWarning, match="written in upper case") as caught:
        tosica.pp.build_mask(adata)
    assert remedy in str(caught[0].message)
    assert caught[0].filename == __file__
    tosica.pp.build_mask(adata, organism="human")  # without a warning
    if column is None:
        for args in ({"gene_sets": "mouse_gobp"}, {"organism": "mouse"}):
            with pytest.raises(ValueError, match="written in upper case"):
                tosica.pp.build_mask(adata, **args)
        # Gene sets in capitals too match as they are.
        rng = np.random.default_rng(0)
        own = {f"s{i}": list(rng.choice(adata.var_names, 50)) for i in range(100)}
        tosica.pp.build_mask(adata, own)
        assert about(adata)["coverage"] > 0.9
    # What it says can be done: without a warning, and the mask is that of the true names.
    exec(remedy, {"adata": adata, "tosica": tosica})
    tosica.pp.build_mask(adata)
    tosica.pp.build_mask(true)
    assert about(adata)["source"] == "mouse_gobp"
    assert about(adata)["matched_by"] == (column or "var_names")
    assert about(adata)["n_genes_covered"] == about(true)["n_genes_covered"]


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("file", ["kang_pbmc", "kang_ctrl_unlabelled", "breast_cells_nuclei"])
def test_human_data_are_not_taken_for_the_mouses(shared: Path, file: str) -> None:
    adata = ad.io.read_h5ad(shared / f"{file}.h5ad")
    tosica.pp.build_mask(adata)  # a warning would be an error
    assert about(adata)["source"] == "human_gobp"


# ----------------------------------------------------------------------------------------- networks


def network(pbmc: AnnData) -> pd.DataFrame:
    """A network in the form of dc.op.collectri: more columns than are needed."""
    rng = np.random.default_rng(0)
    rows = [
        (f"TF{i}", gene, rng.choice([-1.0, 1.0]), "DoRothEA", "activation")
        for i in range(20)
        for gene in rng.choice(pbmc.var_names, 40, replace=False)
    ]
    return pd.DataFrame(rows, columns=["source", "target", "weight", "resources", "sign_decision"])


def test_network_with_weights(pbmc: AnnData) -> None:
    adata, net = pbmc.copy(), network(pbmc)
    before = net.copy()
    tosica.pp.build_mask(adata, net, n_unannotated=1)
    pd.testing.assert_frame_equal(net, before)
    weights = tosica.get.network_weights(adata)
    assert weights.shape == adata.varm[KEY].shape
    assert weights.dtype == np.float32
    table = pd.DataFrame(weights.toarray(), index=adata.var_names, columns=about(adata)["gene_sets"])
    for source, target, weight in net[["source", "target", "weight"]].itertuples(index=False):
        assert table.at[target, source] == weight
    np.testing.assert_array_equal(weights.toarray()[:, :-1] != 0, adata.varm[KEY].toarray()[:, :-1])
    assert not weights[:, -1].nnz


@low_coverage_is_no_matter
def test_weights_of_sets_that_were_kept_only(pbmc: AnnData) -> None:
    adata, net = pbmc.copy(), network(pbmc)
    net.loc[net["source"] == "TF3", "weight"] = np.nan
    tosica.pp.build_mask(adata, net, max_gene_sets=5)
    kept = set(about(adata)["gene_sets"])
    assert len(kept) == 5
    assert set(about(adata)["weights"]["gene_set"]) == kept - {"TF3"}


@pytest.mark.parametrize("source", ["geneset", "cell_type"])
def test_resource_as_it_comes(pbmc: AnnData, source: str) -> None:
    plain, other, net = pbmc.copy(), pbmc.copy(), network(pbmc).drop(columns="weight")
    tosica.pp.build_mask(plain, net)
    tosica.pp.build_mask(other, net.rename(columns={"source": source, "target": "genesymbol"}))
    assert (plain.varm[KEY] != other.varm[KEY]).nnz == 0
    assert "weights" not in about(other)


@pytest.mark.parametrize("weight", ["activation", np.inf])
def test_weights_that_are_none(pbmc: AnnData, weight: Any) -> None:
    adata, net = pbmc.copy(), network(pbmc)
    net["weight"] = weight
    with pytest.raises(TypeError, match="'weight'"):
        tosica.pp.build_mask(adata, net)
    assert KEY not in adata.uns


# ---------------------------------------------------------------------- the original's rules, speed


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("file", ["reactome", "m_reactome", "m_TF"])
def test_published_files_give_the_masks_of_the_originals_rules(shared: Path, pbmc: AnnData, file: str) -> None:
    path = shared / "gene_sets" / f"{file}.gmt.gz"
    gene_sets = tosica.gs.read_gmt(path)
    if file == "reactome":
        adata = ad.io.read_h5ad(shared / "kang_ctrl_unlabelled.h5ad")
    else:
        every = sorted({gene for genes in gene_sets.values() for gene in genes})
        adata = named(np.random.default_rng(0).permutation(every)[: len(every) // 2])
    tosica.pp.build_mask(adata, path, max_gene_sets=300, n_unannotated=1)
    there = set(adata.var_names)
    sizes = {name: len(there.intersection(genes)) for name, genes in gene_sets.items()}
    fitting = [n for n, genes in gene_sets.items() if sizes[n] >= 5 and len(genes) <= 300]
    largest = set(sorted(fitting, key=lambda name: -sizes[name])[:300])
    names = [name for name in gene_sets if name in largest]
    assert len(names) == 300
    assert list(about(adata)["gene_sets"]) == [*names, "unannotated_1"]
    found = sets_of(adata, adata.var_names)
    for name in names:
        assert found[name] == there.intersection(gene_sets[name])
    assert found["unannotated_1"] == there
