"""build_mask on genes that go by other names, on networks, and its speed."""

import logging

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from anndata import AnnData

import tosica
from tosica.gs._gene_table import gene_table

pytestmark = pytest.mark.filterwarnings("ignore:Writing zarr v2 data")

KEY = "tosica_mask"
low_coverage_is_no_matter = pytest.mark.filterwarnings(
    "ignore:only .* of adata's genes"
)


def named(names):
    adata = AnnData(np.ones((2, len(names)), dtype=np.float32))
    adata.var_names = list(names)
    return adata


@pytest.fixture(autouse=True)
def _log(caplog):
    caplog.set_level(logging.INFO, "tosica")


def about(adata):
    return adata.uns[KEY]


def sets_of(adata, genes):
    """Each gene set's genes, under the names that are given for the data's."""
    genes = np.asarray(genes, dtype=object)
    mask = adata.varm[KEY].tocsc()
    return {
        name: set(genes[mask[:, column].indices])
        for column, name in enumerate(about(adata)["gene_sets"])
    }


@pytest.fixture(scope="module")
def pbmc():
    return sc.datasets.pbmc68k_reduced().raw.to_adata()


@pytest.fixture(scope="module")
def symbols(pbmc):
    """Approved symbols with one Ensembl ID and a mouse ortholog: what can be said in every way."""
    symbols_of_human = (
        tosica.gs.map_genes(pbmc.var_names, organism="human").dropna().unique()
    )
    ensembl = tosica.gs.map_genes(
        symbols_of_human, to="ensembl", organism="human"
    ).dropna()
    mouse = tosica.gs.map_genes(
        ensembl.index, organism="human", to_organism="mouse"
    ).dropna()
    return list(mouse.index)


def build(adata, *args, **kwargs):
    """Build a mask of a hundred sets, which is quick."""
    tosica.pp.build_mask(adata, *args, **{"max_gene_sets": 100, **kwargs})


@pytest.fixture(scope="module")
def expected(symbols):
    adata = named(symbols)
    build(adata, identifiers="exact")
    return sets_of(adata, symbols)


# -------------------------------------------------------------------------------------- identifiers


FORMS = {"{i}": "Ensembl IDs", "{i}.7": "Ensembl IDs", "{e}": "Entrez numbers"}
FORMS |= dict.fromkeys(
    ["{s}_{i}", "{i}_{s}", "{s}|{i}", "{s}-{i}.7"], "composite names"
)


@pytest.mark.parametrize("form", FORMS)
def test_same_mask_by_any_identifier(symbols, expected, form, caplog):
    ids, numbers = (
        tosica.gs.map_genes(symbols, to=to, organism="human")
        for to in ("ensembl", "entrez")
    )
    names = [
        form.format(s=s, i=i, e=e)
        for s, i, e in zip(symbols, ids, numbers, strict=True)
    ]
    if form == "{i}":
        names[:300] = symbols[:300]
    adata = named(names)
    caplog.clear()
    build(adata)
    assert sets_of(adata, symbols) == expected
    assert list(adata.var_names) == names
    assert caplog.messages[0].endswith("since adata holds human genes (by overlap)")
    assert caplog.messages[1].startswith(
        f"build_mask: translated {about(adata)['n_genes_mapped']} {FORMS[form]}"
    )
    assert about(adata)["organism"] == "human"


def test_old_symbols_of_real_data(pbmc, caplog):
    exact, mapped = pbmc.copy(), pbmc.copy()
    tosica.pp.build_mask(exact, identifiers="exact")
    caplog.clear()
    tosica.pp.build_mask(mapped)
    assert about(exact)["n_genes_mapped"] == 0
    assert about(mapped)["n_genes_mapped"] == 43
    assert about(mapped)["n_genes_covered"] > about(exact)["n_genes_covered"] + 20
    holders = sets_of(mapped, pbmc.var_names)
    # FYB is called FYB1 now.
    assert "FYB1" in tosica.gs.load("human_gobp")["T cell receptor signaling pathway"]
    assert any("FYB" in genes for genes in holders.values())
    # MT-ND3 is an alias of NCBI Gene's ND3, and TMBIM4-1 what is left of two rows called TMBIM4.
    assert caplog.messages[1].startswith(
        "build_mask: translated 42 aliases and 1 numbered symbols"
    )


def test_gene_sets_of_ones_own_are_translated(pbmc, tmp_path):
    sets = {"a": ["FYB1", *pbmc.var_names[:9]]}
    tosica.gs.write_gmt(sets, tmp_path / "own.gmt")
    for gene_sets in (sets, tmp_path / "own.gmt"):
        for identifiers, n in (("auto", 10), ("exact", 9)):
            with pytest.warns(UserWarning, match="only"):
                adata = tosica.pp.build_mask(
                    pbmc, gene_sets, identifiers=identifiers, copy=True
                )
            assert adata.varm[KEY].toarray()[:, 0].sum() == n


def test_gene_sets_of_ones_own_are_translated_where_names_would_be_lost(
    symbols, expected
):
    sets = {name: sorted(genes) for name, genes in expected.items()}
    ensembl = tosica.gs.map_genes(symbols, to="ensembl", organism="human").to_list()
    # Symbols on either side, and IDs on the other.
    of_symbols = named(ensembl)
    build(of_symbols, sets)
    by_id = dict(zip(symbols, ensembl, strict=True))
    of_ids = named(symbols)
    build(of_ids, {name: [by_id[g] for g in s] for name, s in sets.items()})
    for adata in (of_symbols, of_ids):
        assert sets_of(adata, symbols) == expected


def test_few_genes(symbols, caplog):
    adata = named(
        [*tosica.gs.map_genes(symbols, to="ensembl", organism="human"), "SARS"]
    )
    with pytest.warns(UserWarning, match="only"):
        build(adata, {"mine": [*symbols[3:9], "SARS1"]})
    assert sets_of(adata, [*symbols, "SARS1"])["mine"] == set(symbols[3:9])
    assert "1 ambiguous left out: SARS (SARS1 or SARS2)" in caplog.text
    # An alias does not take the place of the gene itself.
    adata = named(["CXCL8", "IL8", *sorted(gene_table("human").symbols)[:50]])
    with pytest.warns(UserWarning, match="only"):
        build(adata, {"a": ["CXCL8"]}, min_genes=1)
    assert adata.varm[KEY].toarray()[:2, 0].tolist() == [True, False]


@pytest.mark.parametrize("column", ["gene_symbols", "gene_ids", "feature_name"])
def test_columns_of_var(symbols, expected, column, caplog):
    adata = named([f"row {i}" for i in range(len(symbols))])
    adata.var[["chromosome", "n_cells"]] = "1", 3
    to = "ensembl" if column == "gene_ids" else "symbol"
    adata.var[column] = pd.Categorical(
        tosica.gs.map_genes(symbols, to=to, organism="human")
    )
    original = adata.var.copy()
    caplog.clear()
    build(adata)
    assert sets_of(adata, symbols) == expected
    assert about(adata)["matched_by"] == column
    assert caplog.messages[0].endswith(
        f"since adata holds human genes in var[{column!r}] (by overlap)"
    )
    assert f"genes named by var[{column!r}]" in caplog.messages[1]
    pd.testing.assert_frame_equal(adata.var, original)


# ------------------------------------------------------------------------------------------ species


@pytest.fixture
def mouse(symbols):
    return named(
        tosica.gs.map_genes(symbols, organism="human", to_organism="mouse").to_list()
    )


def test_gene_sets_of_another_organism_are_refused(mouse, symbols, tmp_path):
    human = named(symbols)
    tosica.gs.write_gmt({"mine": symbols}, tmp_path / "own.gmt")
    for adata, gene_sets, kwargs, words in (
        (
            mouse,
            "human_gobp",
            {},
            "pass gene_sets='mouse_gobp', or organism='mouse' to map",
        ),
        (mouse, tmp_path / "own.gmt", {}, "own.gmt.*: pass organism='mouse' to map"),
        (
            human,
            "gobp",
            {"organism": "mouse"},
            "human genes .*pass organism='human' or leave",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            build(adata, gene_sets, **kwargs)
        assert not adata.varm
        assert not adata.uns


def test_mapped_to_the_mouse_when_asked_to(mouse, symbols, expected, caplog):
    build(mouse, "human_gobp", organism="mouse")
    assert sets_of(mouse, symbols) == expected
    assert about(mouse)["organism"] == "mouse"
    assert "from human to mouse by one-to-one orthology" in caplog.messages[0]


# ------------------------------------------------------------------ the collection of the organism


def test_default_is_the_collection_of_the_organism(mouse, symbols, caplog):
    for adata, organism in ((named(symbols), "human"), (mouse, "mouse")):
        explicit = adata.copy()
        build(explicit, f"{organism}_gobp")
        caplog.clear()
        build(adata)
        line = f"build_mask: took {organism}_gobp, since adata holds {organism} genes (by overlap)"
        assert caplog.messages[0] == line
        assert (adata.varm[KEY] != explicit.varm[KEY]).nnz == 0
        assert about(adata)["source"] == f"{organism}_gobp"
        assert about(adata)["params"]["max_jaccard"] == 0.5
        assert about(adata)["organism"] == organism
    caplog.clear()
    build(named(sorted(tosica.gs.load("human_gobp")["glycolytic process"])[:15]))
    assert (
        "took human_gobp, since it is not clear whether adata holds human or mouse genes"
        in caplog.messages[0]
    )


def test_collection_of_the_organism_in_a_list_and_by_version(
    mouse, tmp_path, monkeypatch
):
    tosica.gs.write_gmt({"a": list(mouse.var_names[:9])}, tmp_path / "own.gmt")
    build(mouse, ["gobp", tmp_path / "own.gmt"])
    assert about(mouse)["source"] == "mouse_gobp + own.gmt"
    assert about(mouse)["gene_sets"][0].startswith("mouse_gobp: ")
    # A collection's name wins over a file so called.
    for name in ("gobp", "mouse_gobp"):
        (tmp_path / name).write_text("nothing")
    monkeypatch.chdir(tmp_path)
    build(mouse, "gobp@2024-09-08")
    assert about(mouse)["source"] == "mouse_gobp"
    with pytest.raises(ValueError, match="There is no version '2019' of mouse_gobp"):
        tosica.pp.build_mask(mouse, "gobp@2019")


# --------------------------------------------------------------- mouse symbols in upper case


@pytest.mark.data
@pytest.mark.parametrize("column", [None, "symbol"])
def test_mouse_symbols_in_upper_case(shared, column):
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
        build(adata)
    assert remedy in str(caught[0].message)
    assert caught[0].filename == __file__
    build(adata, organism="human")  # without a warning
    if column is None:
        for args in ({"gene_sets": "mouse_gobp"}, {"organism": "mouse"}):
            with pytest.raises(ValueError, match="written in upper case"):
                build(adata, **args)
        # Gene sets in capitals too match as they are.
        rng = np.random.default_rng(0)
        random_sets = {
            f"s{i}": list(rng.choice(adata.var_names, 50)) for i in range(100)
        }
        build(adata, random_sets)
        assert about(adata)["coverage"] > 0.9
    # What it says can be done: without a warning, and the mask is that of the true names.
    exec(remedy, {"adata": adata, "tosica": tosica})
    build(adata)
    build(true)
    assert about(adata)["source"] == "mouse_gobp"
    assert about(adata)["matched_by"] == (column or "var_names")
    assert about(adata)["n_genes_covered"] == about(true)["n_genes_covered"]


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(
    "file", ["kang_pbmc", "kang_ctrl_unlabelled", "breast_cells_nuclei"]
)
def test_human_data_are_not_taken_for_the_mouses(shared, file):
    adata = ad.io.read_h5ad(shared / f"{file}.h5ad")
    build(adata)  # a warning would be an error
    assert about(adata)["source"] == "human_gobp"


# ----------------------------------------------------------------------------------------- networks


def network(pbmc):
    """A network in the form of dc.op.collectri: more columns than are needed."""
    rng = np.random.default_rng(0)
    rows = [
        (f"TF{i}", gene, rng.choice([-1.0, 1.0]), "DoRothEA", "activation")
        for i in range(20)
        for gene in rng.choice(pbmc.var_names, 40, replace=False)
    ]
    return pd.DataFrame(
        rows, columns=["source", "target", "weight", "resources", "sign_decision"]
    )


def test_network_with_weights(pbmc):
    adata, net = pbmc.copy(), network(pbmc)
    original = net.copy()
    tosica.pp.build_mask(adata, net)
    pd.testing.assert_frame_equal(net, original)
    weights = tosica.get.network_weights(adata)
    assert weights.shape == adata.varm[KEY].shape
    assert weights.dtype == np.float32
    table = pd.DataFrame(
        weights.toarray(), index=adata.var_names, columns=about(adata)["gene_sets"]
    )
    for source, target, weight in net[["source", "target", "weight"]].itertuples(
        index=False
    ):
        assert table.at[target, source] == weight
    np.testing.assert_array_equal(weights.toarray() != 0, adata.varm[KEY].toarray())


def test_a_network_with_two_weights_of_a_gene_is_refused(pbmc):
    net = network(pbmc)
    other = net.iloc[[0]].assign(weight=-net["weight"].iloc[0])
    with pytest.raises(ValueError, match=r"several weights: keep one row of each gene"):
        tosica.pp.build_mask(pbmc.copy(), pd.concat([net, other]))
    # A row that occurs twice says nothing new.
    tosica.pp.build_mask(pbmc.copy(), pd.concat([net, net.iloc[[0]]]))


@low_coverage_is_no_matter
def test_weights_of_sets_that_were_kept_only(pbmc):
    adata, net = pbmc.copy(), network(pbmc)
    net.loc[net["source"] == "TF3", "weight"] = np.nan
    tosica.pp.build_mask(adata, net, max_gene_sets=5)
    selected = set(about(adata)["gene_sets"])
    assert len(selected) == 5
    assert set(about(adata)["weights"]["gene_set"]) == selected - {"TF3"}


@pytest.mark.parametrize("source", ["geneset", "cell_type"])
def test_resource_as_it_comes(pbmc, source):
    plain, renamed, net = pbmc.copy(), pbmc.copy(), network(pbmc).drop(columns="weight")
    tosica.pp.build_mask(plain, net)
    tosica.pp.build_mask(
        renamed, net.rename(columns={"source": source, "target": "genesymbol"})
    )
    assert (plain.varm[KEY] != renamed.varm[KEY]).nnz == 0
    assert "weights" not in about(renamed)


@pytest.mark.parametrize("weight", ["activation", np.inf])
def test_weights_that_are_none(pbmc, weight):
    adata, net = pbmc.copy(), network(pbmc)
    net["weight"] = weight
    with pytest.raises(TypeError, match="'weight'"):
        tosica.pp.build_mask(adata, net)
    assert KEY not in adata.uns


def test_a_column_of_lists_is_no_column_of_names(symbols):
    adata = named([f"unknown{i}" for i in range(len(symbols))])
    adata.var["symbol"] = list(symbols)
    adata.var["sets"] = [["a", "b"]] * adata.n_vars
    tosica.pp.build_mask(adata, min_genes=2)
    assert adata.varm[KEY].sum() > 0


def test_numbers_of_rows_that_are_left_are_no_entrez_numbers():
    rows = np.sort(np.random.default_rng(0).choice(20_000, 765, replace=False))
    with pytest.raises(ValueError, match="row numbers"):
        tosica.pp.build_mask(named(rows.astype(str)))
