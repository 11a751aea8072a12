"""Refined gene sets: what joins, what leaves, what stays, and that the file can be used."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from _cells import make_toy
from mudata import MuData

import tosica
from tosica import TOSICA
from tosica.tl._refine import refine

# G0 to G7 belong together, and so do G8 to G15; G24 and above are noise.
CHANGED = {
    "alpha": [*(f"G{i}" for i in range(7)), "G25"],
    "beta": [f"G{i}" for i in range(8, 16)],
    "noise": ["G24", "G26", "G27", "G3", "G17"],
}


def set_up(adata, sets=CHANGED, **arguments):
    tosica.pp.build_mask(adata, sets)
    TOSICA.setup_anndata(adata, labels_key="kind")
    return TOSICA(adata, embed_dim=8, n_heads=2, **arguments)


@pytest.fixture(scope="module")
def model():
    return set_up(make_toy())


@pytest.fixture(scope="module")
def table(model):
    return tosica.tl.refine_gene_sets(model)


# --------------------------------------------------------------------------- the table


def test_a_missing_gene_joins_and_a_wrong_one_leaves(model, table):
    changes = table.set_index(["gene_set", "gene"])["change"].to_dict()
    assert changes == {("alpha", "G7"): "gained", ("alpha", "G25"): "lost"}
    assert list(table) == [
        "gene_set",
        "gene",
        "change",
        "evidence",
        "stability",
        "recall",
    ]
    assert table["evidence"].round(1).to_list() == pytest.approx([1, 0], abs=0.5)
    assert table["stability"].between(0.5, 1).all()
    assert (table["recall"] == 7 / 8).all()
    # Modules are not refined.
    assert any(name.startswith("module: ") for name in model.gene_sets)
    everything = tosica.tl.refine_gene_sets(model, min_recall=0, min_stability=0)
    assert set(everything["gene_set"]) <= set(CHANGED)


def test_random_sets_gain_nothing(pbmc_ref):
    rng = np.random.default_rng(0)
    genes = pbmc_ref.var_names.to_numpy()
    sets = {
        f"random {i}": list(rng.choice(genes, 20, replace=False)) for i in range(40)
    }
    pbmc_ref.obs["kind"] = pbmc_ref.obs["bulk_labels"]
    model = set_up(pbmc_ref, sets, max_gene_sets=None, modules=False, linear=False)
    assert tosica.tl.refine_gene_sets(model).empty


def test_a_higher_price_lets_fewer_genes_join(pbmc_model):
    options = {"min_recall": 0, "min_stability": 0, "n_bootstraps": 1}
    gained = [
        (
            tosica.tl.refine_gene_sets(pbmc_model, price=price, **options)["change"]
            == "gained"
        ).sum()
        for price in (0.5, 1, 100)
    ]
    assert gained[0] > gained[1] > gained[2] == 0


def test_genes_that_do_not_vary_neither_join_nor_leave():
    adata = make_toy()
    x = adata.X.toarray()
    x[:, [2, 7]] = 0
    adata.X = sp.csr_matrix(x)
    changes = tosica.tl.refine_gene_sets(set_up(adata))
    assert not set(changes["gene"]) & {"G2", "G7"}
    assert "alpha" in changes.attrs["refined"]


# --------------------------------------------------------------------------- the file


def test_the_file_makes_a_new_model(model, table, tmp_path, train):
    path = tmp_path / "refined.gmt.gz"
    pd.testing.assert_frame_equal(tosica.tl.refine_gene_sets(model, path), table)
    refined = tosica.gs.read_gmt(path)
    assert refined["alpha"] == [f"G{i}" for i in range(8)]
    assert {name: set(genes) for name, genes in refined.items() if name != "alpha"} == {
        name: set(CHANGED[name]) for name in ("beta", "noise")
    }
    reference = make_toy()
    tosica.pp.build_mask(reference, path)
    assert list(reference.uns["tosica_mask"]["gene_sets"]) == list(CHANGED)
    assert reference.varm["tosica_mask"].sum() == sum(map(len, refined.values()))
    assert train(reference, max_epochs=1).is_trained_


@pytest.mark.parametrize("name", ["ENSG{:011d}", "SYMBOL{0}_ENSG{0:011d}", "gene {}"])
def test_names_are_those_of_the_reference(name, tmp_path):
    adata = make_toy()
    names = {old: name.format(i + 1) for i, old in enumerate(adata.var_names)}
    adata.var_names = list(names.values())
    path = tmp_path / "refined.gmt"
    sets = {of: [names[gene] for gene in genes] for of, genes in CHANGED.items()}
    tosica.tl.refine_gene_sets(set_up(adata, sets), path)
    reference = make_toy()
    reference.var_names = adata.var_names
    tosica.pp.build_mask(reference, path)
    alpha = reference.varm["tosica_mask"].toarray()[:, 0]
    assert list(reference.var_names[alpha]) == [names[f"G{i}"] for i in range(8)]


# --------------------------------------------------------------------------- refusals


def test_models_that_are_refused(toy, toy_model, tmp_path):
    mdata = MuData({"rna": toy})
    mdata.obs["kind"] = toy.obs["kind"]
    TOSICA.setup_mudata(mdata, labels_key="kind", modalities={"rna": "rna"})
    toy_model.save(tmp_path / "model")
    changed = set_up(make_toy())
    changed.adata._inplace_subset_var(np.arange(30)[::-1])
    for refused, sentence in (
        (
            TOSICA(mdata, embed_dim=8, n_heads=2),
            r"^The model was set up with a MuData .*: train a model",
        ),
        (
            TOSICA.load(tmp_path / "model", accelerator="cpu"),
            r"loaded without a reference, by which",
        ),
        (changed, "when it was set up"),
    ):
        with pytest.raises(ValueError, match=sentence):
            tosica.tl.refine_gene_sets(refused)
    loaded = TOSICA.load(
        tmp_path / "model", adata=toy_model.adata.copy(), accelerator="cpu"
    )
    assert "alpha" in tosica.tl.refine_gene_sets(loaded).attrs["refined"]


# --------------------------------------------------------------------------- the numbers


def test_the_price_is_paid_down_to_the_last_gene_that_is_found():
    # Own genes at 10, 9, 7, 5 and 0; others at 8, 6 and from 4 to -4.
    scores = np.array([10.0, 9, 7, 5, 0, 8, 6, *np.linspace(4, -4, 17)])
    members = np.arange(len(scores)) < 5
    joined = refine(scores, members, 3)
    assert joined.gained.tolist() == [5]
    assert joined.recall == 3 / 5
    assert refine(scores, members, 2).gained.tolist() == [5, 6]
    assert refine(scores, members, 2).recall == 4 / 5
    # The gene at 0 is one of five, and half of the others are as low.
    assert refine(scores, members, 2).lost.tolist() == [4]
    assert not len(refine(scores, members, 3).lost)
