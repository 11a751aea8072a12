"""References of several studies become one: labels, genes, depths and batches."""

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from anndata import AnnData
from numpy.testing import assert_array_equal

import tosica

N_GENES = 40
TYPES = {"B cell": 0, "T cell": 1, "monocyte": 2}


def make_study(labels, *, depth=1.0, seed=0, genes=range(N_GENES)):
    """Cells whose type expresses ten genes of its own, and every other gene a little."""
    rng = np.random.default_rng(seed)
    rate = np.full((len(labels), N_GENES), 0.5)
    for i, label in enumerate(labels):
        j = 10 * TYPES.get(label, 1)
        rate[i, j : j + 10] = 6
    counts = rng.poisson(depth * rate)[:, list(genes)].astype(np.float32)
    names = [f"cell{i}" for i in range(len(labels))]
    obs = pd.DataFrame({"label": labels}, index=names)
    adata = AnnData(sp.csr_matrix(counts), obs=obs)
    adata.var_names = [f"Q{i}" for i in genes]
    return adata


@pytest.fixture
def studies():
    labels = np.repeat(list(TYPES), 30)
    return {"deep": make_study(labels), "flat": make_study(labels, depth=0.3, seed=1)}


def test_cells_keep_their_counts_and_references_are_told_apart(studies):
    joined = tosica.pp.join_references(studies, "label")
    assert joined.shape == (180, N_GENES)
    is_flat = joined.obs["reference"] == "flat"
    expected = studies["flat"][:, joined.var_names].X
    assert (expected != joined[is_flat.to_numpy()].X).nnz == 0
    assert joined.obs["batch"].equals(joined.obs["reference"])
    assert joined.obs_names.is_unique


def test_batches_of_the_same_name_are_different_ones(studies):
    for adata in studies.values():
        adata.obs["donor"] = "donor 1"
    joined = tosica.pp.join_references(studies, "label", batch_key="donor")
    assert set(joined.obs["batch"]) == {"deep/donor 1", "flat/donor 1"}


def test_labels_with_the_same_term_become_one(studies):
    obs = studies["flat"].obs
    obs["label"] = obs["label"].replace({"B cell": "B lymphocytes", "monocyte": "Mono"})
    joined = tosica.pp.join_references(
        studies, "label", mapping={"flat": {"Mono": "CL:0000576"}}
    )
    assert joined.obs["cell_type"].value_counts().to_dict() == {
        "B cell": 60,
        "T cell": 60,
        "monocyte": 60,
    }
    table = joined.uns["join_references"]["labels"].set_index("label")
    assert table.loc["B lymphocytes", "cell_type_ontology_term_id"] == "CL:0000236"


def test_a_table_renames_labels_and_leaves_cells_out(studies):
    joined = tosica.pp.join_references(
        studies, "label", mapping={"B cell": "mine", "T cell": ""}
    )
    assert set(joined.obs["cell_type"]) == {"mine", "monocyte"}
    terms = joined.obs.loc[joined.obs["cell_type"] == "mine"]
    assert set(terms["cell_type_ontology_term_id"]) == {"unknown"}


def test_a_mapping_of_one_reference_adds_to_that_of_all(studies):
    mapping = {"B cell": "mine", "flat": {"T cell": "yours"}}
    joined = tosica.pp.join_references(studies, "label", mapping=mapping)
    labels_of = joined.obs.groupby("reference", observed=True)["cell_type"].unique()
    assert set(labels_of["flat"]) == {"mine", "yours", "monocyte"}
    assert set(labels_of["deep"]) == {"mine", "T cell", "monocyte"}


def test_terms_of_the_references_are_used(studies):
    obs = studies["flat"].obs
    obs["label_ontology_term_id"] = obs["label"].map(
        {"B cell": "CL:0000236", "T cell": "CL:0000084", "monocyte": "CL:0000576"}
    )
    obs["label"] = obs["label"].map({"B cell": "1", "T cell": "2", "monocyte": "3"})
    joined = tosica.pp.join_references(studies, "label")
    assert set(joined.obs["cell_type"]) == set(TYPES)


def test_logarithms_of_counts_become_counts_again(studies):
    flat = studies["flat"]
    counts = flat.X.copy()
    total = np.asarray(counts.sum(1))
    flat.X = sp.csr_matrix(counts.multiply(1e4 / total)).log1p()
    joined = tosica.pp.join_references(studies, "label")
    is_flat = (joined.obs["reference"] == "flat").to_numpy()
    restored = joined[is_flat][:, flat.var_names].X
    # Cells without a count of one seem deeper or flatter by a factor.
    assert (np.abs((restored - counts).toarray()).sum(1) == 0).mean() > 0.9


def test_totals_of_the_cells_tell_even_counts_from_half_of_them(studies):
    flat = studies["flat"]
    counts = flat.X * 2
    total = np.asarray(counts.sum(1))
    flat.X = sp.csr_matrix(counts.multiply(1e4 / total)).log1p()
    flat.obs["nCount_RNA"] = total.ravel()
    joined = tosica.pp.join_references(studies, "label")
    is_flat = (joined.obs["reference"] == "flat").to_numpy()
    restored = joined[is_flat][:, flat.var_names].X
    assert_array_equal(restored.toarray(), counts.toarray())


def test_references_without_names_are_refused(studies):
    with pytest.raises(TypeError, match="must have strings as names, not 0"):
        tosica.pp.join_references(dict(enumerate(studies.values())), "label")


def test_genes_of_a_panel_are_drawn_from_cells_of_its_types(studies):
    # Without the genes of monocytes, and most of the others.
    panel = studies["deep"][:, [f"Q{i}" for i in (0, 1, 2, 10, 11, 12, 30, 31)]].copy()
    joined = tosica.pp.join_references(studies | {"panel": panel}, "label")
    assert joined.n_vars == N_GENES
    is_panel = joined.obs["reference"] == "panel"
    monocytes = joined[(is_panel & (joined.obs["cell_type"] == "monocyte")).to_numpy()]
    b_cells = joined[(is_panel & (joined.obs["cell_type"] == "B cell")).to_numpy()]
    genes = [f"Q{i}" for i in range(20, 30)]
    assert monocytes[:, genes].X.mean() > 3 * b_cells[:, genes].X.mean()
    assert joined.var.loc["Q25", "n_measured"] == 2
    common = tosica.pp.join_references(
        studies | {"panel": panel}, "label", impute=False
    )
    assert common.n_vars == 8


def test_a_label_that_only_a_panel_has_limits_the_genes_to_its_own(studies):
    panel = make_study(["T cell", "platelet"] * 15, genes=range(0, N_GENES, 4))
    with pytest.warns(
        UserWarning,
        match=r"Of 40 genes 10 are taken: the references with 'platelet' did not measure",
    ):
        joined = tosica.pp.join_references(studies | {"panel": panel}, "label")
    assert list(joined.var["n_measured"]) == [3] * 10
    without = tosica.pp.join_references(
        studies | {"panel": panel}, "label", mapping={"panel": {"platelet": ""}}
    )
    assert without.n_vars == N_GENES


def test_a_similar_label_lends_what_nobody_measured(studies):
    panel = make_study(["T cell", "platelet"] * 15, genes=range(0, N_GENES, 4))
    joined = tosica.pp.join_references(
        studies | {"panel": panel}, "label", lenders={"platelet": "T cell"}
    )
    assert joined.n_vars == N_GENES
    platelets = joined[(joined.obs["cell_type"] == "platelet").to_numpy()]
    assert platelets[:, "Q15"].X.mean() > 3 * platelets[:, "Q5"].X.mean()


def test_transcriptomes_lend_one_another_what_each_measured_alone(studies):
    deep = studies["deep"][:, [f"Q{i}" for i in range(5, N_GENES)]].copy()
    flat = studies["flat"][:, [f"Q{i}" for i in range(35)]].copy()
    joined = tosica.pp.join_references({"deep": deep, "flat": flat}, "label")
    assert joined.n_vars == N_GENES
    assert joined.var.loc["Q0", "n_measured"] == 1
    is_b_cell = (joined.obs["cell_type"] == "B cell").to_numpy()
    for name in studies:
        is_study = (joined.obs["reference"] == name).to_numpy()
        mean = joined[is_study, "Q0"].X.toarray().ravel()
        assert mean[is_b_cell[is_study]].mean() > 3 * mean[~is_b_cell[is_study]].mean()


def test_one_cell_and_one_common_gene_are_enough_to_borrow(studies):
    single = make_study(["B cell"], genes=[0, 1])
    single.var_names = ["Q0", "Q99"]
    single.X = sp.csr_matrix(np.array([[5, 3]], dtype=np.float32))
    with pytest.warns(UserWarning, match="Of 41 genes 40 are taken"):
        joined = tosica.pp.join_references(studies | {"single": single}, "label")
    is_single = (joined.obs["reference"] == "single").to_numpy()
    assert joined[is_single].X.sum() > 5


def test_genes_that_differ_by_study_are_told_from_those_that_differ_by_type(studies):
    flat = studies["flat"].to_df()
    flat["Q35"] += 5
    studies["flat"].X = sp.csr_matrix(flat)
    share = tosica.pp.join_references(studies, "label").var["study_share"]
    assert share["Q35"] > 0.9
    assert share[[f"Q{i}" for i in range(30)]].max() < 1 / 3


def test_the_references_stay_as_they_were(studies, contents):
    original = {name: contents(adata) for name, adata in studies.items()}
    tosica.pp.join_references(studies, "label")
    assert {name: contents(adata) for name, adata in studies.items()} == original


# --------------------------------------------------------------------------- wrong input


def test_one_reference_is_refused(studies):
    with pytest.raises(ValueError, match="two or more, not 1"):
        tosica.pp.join_references({"deep": studies["deep"]}, "label")


def test_references_of_two_species_are_refused():
    human = ["CD3E", "CD19", "MS4A1", "CD79A", "LYZ", "NKG7", "GNLY", "CST3", "CD8A"]
    human += ["CD14", "FCGR3A", "CD4", "IL7R", "CCR7", "S100A8", "S100A9", "PPBP"]
    human += ["FCER1A", "CD68", "KLRB1", "TRAC", "CD2", "CD7", "GZMB", "PRF1"]
    studies = {}
    for name, genes in (("h", human), ("m", [gene.capitalize() for gene in human])):
        adata = make_study(["B cell", "T cell"] * 10, genes=range(len(human)))
        adata.var_names = genes
        studies[name] = adata
    with pytest.raises(ValueError, match="'h' has genes of human, and 'm' of mouse"):
        tosica.pp.join_references(studies, "label")


def test_a_gene_that_is_there_twice_is_refused(studies):
    studies["flat"].var_names = ["Q1", *studies["flat"].var_names[1:]]
    with pytest.raises(
        ValueError, match=r"\('Q1'\): call references\['flat'\]\.var_names"
    ):
        tosica.pp.join_references(studies, "label")


def test_references_without_a_common_gene_are_refused(studies):
    studies["flat"].var_names = [f"R{i}" for i in range(N_GENES)]
    with pytest.raises(ValueError, match="has no gene in common"):
        tosica.pp.join_references(studies, "label")


def test_a_panel_with_too_few_genes_of_the_others_is_refused(studies):
    panel = studies["deep"][:, ["Q1", "Q11"]].copy()
    with pytest.raises(
        ValueError,
        match=r"'panel' has 2 genes and shares 2 .* its 3 labels",
    ):
        tosica.pp.join_references(studies | {"panel": panel}, "label")


def test_a_lender_that_is_not_there_is_refused(studies):
    with pytest.raises(ValueError, match=r"lenders: .* label 'T cells'.*mean 'T cell'"):
        tosica.pp.join_references(studies, "label", lenders={"B cell": "T cells"})


def test_references_without_a_common_label_are_refused(studies):
    studies["flat"].obs["label"] = "erythrocyte"
    with pytest.raises(ValueError, match=r"has no label in common .* Pass mapping="):
        tosica.pp.join_references(studies, "label")


def test_a_missing_column_is_named(studies):
    with pytest.raises(
        KeyError, match=r"obs has no column 'lable'.*did you mean 'label'"
    ):
        tosica.pp.join_references(studies, "lable")


def test_logarithms_of_no_counts_are_refused(studies):
    flat = studies["flat"]
    flat.X.data = np.random.default_rng(0).uniform(0.1, 3, flat.X.nnz).astype("f4")
    with pytest.raises(ValueError, match="'flat'"):
        tosica.pp.join_references(studies, "label")


def test_all_cells_of_a_reference_are_on_one_scale(studies):
    labels = np.repeat(list(TYPES), 400)
    mixed = make_study(labels)
    # A cell that no sample of 256 has.
    mixed.X[700] = mixed.X[700].log1p()
    with pytest.raises(ValueError, match=r"references\['mixed'\].*cell 700"):
        tosica.pp.join_references({**studies, "mixed": mixed}, "label")


def rename(adata, names):
    adata.var_names = names
    return adata


@pytest.fixture(scope="module")
def blood():
    """Two halves of blood cells, as counts."""
    cells = sc.datasets.pbmc68k_reduced().raw.to_adata()
    cells.X = sp.csr_matrix(np.expm1(cells.X.toarray()).round().astype(np.float32))
    cells.obs_names_make_unique()
    return cells[::2].copy(), cells[1::2].copy()


@pytest.mark.parametrize("kind", ["versions", "new symbols", "composite", "ensembl"])
def test_a_gene_with_two_names_is_one_gene(blood, kind):
    one, two = (half.copy() for half in blood)
    ids = tosica.gs.map_genes(list(one.var_names), to="ensembl")
    is_known = ids.notna().to_numpy()
    one, two, ids = one[:, is_known].copy(), two[:, is_known].copy(), ids[is_known]
    names = {
        "versions": [f"{i}.2" for i in ids],
        "new symbols": tosica.gs.map_genes(list(one.var_names)).to_list(),
        "composite": [f"{n}_{i}" for n, i in zip(one.var_names, ids, strict=True)],
        "ensembl": ids.to_list(),
    }
    if kind == "versions":
        rename(one, [f"{i}.11" for i in ids])
    rename(two, names[kind])
    joined = tosica.pp.join_references({"one": one, "two": two}, "bulk_labels")
    n_shared = (joined.var["n_measured"] == 2).sum()
    assert n_shared >= 0.97 * is_known.sum()
    assert joined.n_vars - n_shared <= 0.03 * is_known.sum()


def test_an_alias_takes_no_gene_that_is_there_by_its_name(blood):
    one, two = (half.copy() for half in blood)
    ids = tosica.gs.map_genes(list(two.var_names), to="ensembl")
    # SEPT7 is SEPTIN7 now: the first reference has both, as two genes.
    assert "SEPT7" in one.var_names
    rename(one, ["SEPTIN7", *one.var_names[1:]])
    rename(two, np.where(ids.isna(), two.var_names, ids))
    joined = tosica.pp.join_references({"one": one, "two": two}, "bulk_labels")
    cells = joined.obs["reference"] == "one"
    measured = joined[cells.to_numpy(), "SEPTIN7"].X.toarray()
    assert_array_equal(measured, one[:, "SEPTIN7"].X.toarray())


def test_a_label_that_is_renamed_loses_its_term(studies):
    terms = {"B cell": "CL:0000236", "T cell": "CL:0000084", "monocyte": "CL:0000576"}
    for adata in studies.values():
        adata.obs["label_ontology_term_id"] = adata.obs["label"].map(terms)
    mapping = {"deep": {"B cell": "lymphocyte", "T cell": "lymphocyte"}}
    for names in (["deep", "flat"], ["flat", "deep"]):
        joined = tosica.pp.join_references(
            {name: studies[name] for name in names}, "label", mapping=mapping
        )
        of_deep = joined.obs[joined.obs["reference"] == "deep"]
        assert set(of_deep["cell_type"]) == {"lymphocyte", "monocyte"}
        assert set(joined.obs["cell_type"]) == {*TYPES, "lymphocyte"}


@pytest.mark.parametrize("names", [["deep", "flat"], ["flat", "deep"]])
def test_a_term_of_one_reference_is_that_of_the_same_label(studies, names):
    for adata in studies.values():
        adata.obs["label"] = adata.obs["label"].replace("monocyte", "type 3")
    studies["flat"].obs["label_ontology_term_id"] = np.where(
        studies["flat"].obs["label"] == "type 3", "CL:0000576", "unknown"
    )
    references = {name: studies[name] for name in names}
    joined = tosica.pp.join_references(references, "label")
    terms = joined.obs.loc[
        joined.obs["cell_type"] == "type 3", "cell_type_ontology_term_id"
    ]
    assert set(terms) == {"CL:0000576"}


def test_a_label_with_two_terms_is_refused(studies):
    for name, term in {"deep": "CL:0000576", "flat": "CL:0000451"}.items():
        studies[name].obs["label"] = "type 3"
        studies[name].obs["label_ontology_term_id"] = term
    with pytest.raises(ValueError, match="'type 3' has the term CL:0000451 in 'flat'"):
        tosica.pp.join_references(studies, "label")


@pytest.mark.parametrize(
    ("mapping", "error", "words"),
    [
        ({"B cel": "B"}, KeyError, "no reference has a label 'B cel'.*'B cell'"),
        ({"flat": {"NK": "T cell"}}, KeyError, "'flat' has no label 'NK'"),
        ({"flet": {"B cell": "B"}}, KeyError, "no reference 'flet'.*'flat'"),
        ({"B cell": "CL:9999999"}, ValueError, "'CL:9999999' is no term"),
        ({"B cell": 3}, TypeError, "not int for 'B cell'"),
        ({"flat": dict.fromkeys(TYPES, "")}, ValueError, "'flat'.* has no cells"),
    ],
    ids=["label", "label of one", "reference", "term", "number", "no cells"],
)
def test_a_mapping_that_does_not_fit_is_refused(studies, mapping, error, words):
    with pytest.raises(error, match=words):
        tosica.pp.join_references(studies, "label", mapping=mapping)


def test_numbers_as_labels_are_mapped(studies):
    for adata in studies.values():
        adata.obs["label"] = adata.obs["label"].map(TYPES)
    mapping = {number: name for name, number in TYPES.items()}
    joined = tosica.pp.join_references(studies, "label", mapping=mapping)
    assert set(joined.obs["cell_type"]) == set(TYPES)


def test_cells_without_a_batch_are_in_that_of_their_reference(studies):
    studies["deep"].obs["donor"] = ["x", None] * 45
    joined = tosica.pp.join_references(studies, "label", batch_key="donor")
    assert set(joined.obs["batch"]) == {"deep", "deep/x", "flat"}


def test_a_cell_that_is_there_twice_is_refused(studies):
    studies["flat"].obs_names = ["a", *studies["flat"].obs_names[1:-1], "a"]
    with pytest.raises(ValueError, match="obs_names of references"):
        tosica.pp.join_references(studies, "label")


@pytest.mark.parametrize("names", [["one", "two"], ["two", "one"]])
def test_symbols_stay_beside_identifiers(blood, names):
    one, two = (half.copy() for half in blood)
    ids = tosica.gs.map_genes(list(two.var_names), to="ensembl")
    rename(two, np.where(ids.isna(), two.var_names, ids))
    halves = {"one": one, "two": two}
    joined = tosica.pp.join_references(
        {name: halves[name] for name in names}, "bulk_labels"
    )
    is_old = joined.var_names.isin(one.var_names)
    assert is_old.mean() > 0.97
