"""Which gene sets and modules become tokens, and that a model keeps them."""

import os

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal

from tosica import TOSICA, pp

N_GENES, N_CELLS = 120, 90
NAMES = np.array([f"G{i}" for i in range(N_GENES)], dtype=object)
# Each label differs from the others in eight genes, which are a set; the genes from 100 on are in
# no set, of which the first ten vary together and the last five are not expressed.
PLANTED = {f"type {label}": range(8 * i, 8 * i + 8) for i, label in enumerate("abc")}
LABELS = np.arange(N_CELLS) % 3


def make_sets(n_others=40, seed=0):
    """Planted sets among others of genes that say nothing of labels."""
    rng = np.random.default_rng(seed)
    sets = {
        f"other {i}": rng.choice(np.arange(24, 100), 8, False) for i in range(n_others)
    }
    # In the midst of the others, so that their place does not tell.
    names = [*list(sets)[: n_others // 2], *PLANTED, *list(sets)[n_others // 2 :]]
    return {name: NAMES[list({**sets, **PLANTED}[name])].tolist() for name in names}


def make(seed=0, labels=LABELS):
    """Counts of three types."""
    rng = np.random.default_rng(seed)
    rate = np.full((N_CELLS, N_GENES), 0.7)
    for i in range(3):
        rate[labels == i, 8 * i : 8 * i + 8] = 3
    rate[:, 100:110] *= rng.gamma(1.0, 2.0, (N_CELLS, 1))
    rate[:, 115:] = 0
    adata = ad.AnnData(sp.csr_matrix(rng.poisson(rate).astype(np.float32)))
    adata.obs_names, adata.var_names = (
        [f"cell{i}" for i in range(N_CELLS)],
        NAMES.tolist(),
    )
    adata.obs["kind"] = pd.Categorical(np.array(["a", "b", "c"])[labels])
    return adata


@pytest.fixture(scope="module")
def _reference():
    adata = make()
    # All sets fit, so all are candidates.
    pp.build_mask(adata, make_sets(), min_genes=3)
    TOSICA.setup_anndata(adata, labels_key="kind")
    return adata


@pytest.fixture
def reference(_reference):
    """90 cells × 120 genes with a mask of 43 gene sets, of which three are planted."""
    return _reference.copy()


def model_of(adata, **kwargs):
    TOSICA.setup_anndata(adata, labels_key="kind")
    return TOSICA(adata, **{"embed_dim": 8, "n_heads": 2, "max_gene_sets": 6, **kwargs})


def quick(model, **kwargs):
    settings = {"max_epochs": 1, "accelerator": "cpu"}
    model.train(**settings | kwargs)
    return model


def members_of(model):
    """Genes of each token, by its name."""
    embedding = model.module.embedding
    genes_of_tokens = np.split(embedding.genes.numpy(), embedding.indptr.numpy()[1:-1])
    return dict(zip(model.gene_sets, genes_of_tokens, strict=True))


def state_of(model):
    return model.registry_["field_registries"]["mask"]["state_registry"]


# --------------------------------------------------------------------------- the choice


def test_planted_sets_are_chosen(reference):
    assert len(reference.uns["tosica_mask"]["gene_sets"]) == 43
    model = model_of(reference, max_gene_sets=3)
    assert model.gene_sets[:3] == list(PLANTED)
    for name, genes in PLANTED.items():
        assert_array_equal(members_of(model)[name], list(genes))


def test_chosen_sets_keep_the_order_of_the_candidates(reference, caplog):
    model = model_of(reference, max_gene_sets=10)
    names = reference.uns["tosica_mask"]["gene_sets"].tolist()
    positions = [names.index(name) for name in model.gene_sets[:10]]
    assert positions == sorted(positions)
    mask = reference.varm["tosica_mask"].toarray()
    for name, position in zip(model.gene_sets, positions, strict=False):
        genes = np.flatnonzero(mask[:, position])
        assert_array_equal(members_of(model)[name], genes)
    n_modules = len(model.gene_sets) - 10
    line = f"TOSICA: 10 of 43 gene sets and {n_modules} modules of genes that none of them holds are tokens"
    assert line in caplog.messages


@pytest.mark.parametrize("max_gene_sets", [3, 43, None])
def test_every_expressed_gene_is_in_a_token(reference, max_gene_sets):
    model = model_of(reference, max_gene_sets=max_gene_sets)
    tokens = members_of(model)
    modules = {
        name: genes for name, genes in tokens.items() if name.startswith("module: ")
    }
    of_sets = np.unique(
        np.concatenate([g for name, g in tokens.items() if name not in modules])
    )
    of_modules = np.concatenate(list(modules.values()))
    expressed = np.flatnonzero(reference.X.toarray().std(0) > 0)
    assert len(expressed) == 115
    # In one module each, and in none if a set holds them.
    assert_array_equal(np.sort(of_modules), np.setdiff1d(expressed, of_sets))
    for name, genes in modules.items():
        leading = name.removeprefix("module: ").split(", ")
        assert 1 <= len(leading) <= 3
        assert set(leading) <= set(NAMES[genes])
        assert (np.diff(genes) > 0).all()
    if max_gene_sets != 3:
        # All are taken, and genes that vary together are a module.
        assert (
            model.gene_sets[:43] == reference.uns["tosica_mask"]["gene_sets"].tolist()
        )
        ((name, genes),) = modules.items()
        assert set(range(100, 110)) <= set(genes)
        assert set(name.removeprefix("module: ").split(", ")) <= set(NAMES[100:110])


def test_the_same_cells_have_the_same_tokens(reference):
    """Whatever labels are called, and however the matrix is kept."""
    expected, counts = members_of(model_of(reference.copy())), reference.X.toarray()
    reference.obs["kind"] = reference.obs["kind"].cat.rename_categories({"a": "z"})
    for x in (
        counts.astype(np.float64),
        np.log1p(1e4 * counts / counts.sum(1, keepdims=True)),
    ):
        reference.X = x
        actual = members_of(model_of(reference))
        assert list(actual) == list(expected)
        for name, genes in expected.items():
            assert_array_equal(actual[name], genes)
    reference.layers["counts"], reference.X = counts, -counts
    TOSICA.setup_anndata(reference, labels_key="kind", layer="counts")
    assert TOSICA(reference, embed_dim=8, n_heads=2, max_gene_sets=6).gene_sets == list(
        expected
    )
    model = TOSICA(reference, embed_dim=8, n_heads=2, max_gene_sets=6, modules=False)
    assert (len(model.gene_sets), state_of(model)["n_modules"]) == (6, 0)


def test_more_tokens_than_memory_allows(reference, monkeypatch):
    # 64 bytes a pair of tokens: a machine of so little memory has room for ten.
    sizes = {"SC_PAGE_SIZE": 64, "SC_PHYS_PAGES": 100}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    with pytest.raises(
        ValueError,
        match=r"43 tokens are more than .*: choose at most 10 with max_gene_sets",
    ):
        model_of(reference, max_gene_sets=None, modules=False)
    assert len(model_of(reference, max_gene_sets=10, modules=False).gene_sets) == 10
    # Where nobody says how much memory there is, nothing is refused.
    monkeypatch.delattr(os, "sysconf")
    assert len(model_of(reference, max_gene_sets=None, modules=False).gene_sets) == 43


# --------------------------------------------------------------------------- saved and loaded


def test_training_goes_on_with_the_same_tokens(reference, tmp_path, monkeypatch):
    model = quick(model_of(reference))
    model.save(tmp_path / "model")
    # Chosen once, and not anew by other cells, which could choose the same by chance.
    monkeypatch.setattr("tosica.model._tokens._choose_tokens", None)
    other_cells = make(seed=7)
    other_cells.varm, other_cells.uns = reference.varm, reference.uns
    loaded = TOSICA.load(tmp_path / "model", adata=other_cells)
    assert loaded.gene_sets == model.gene_sets
    for name, genes in members_of(model).items():
        assert_array_equal(members_of(loaded)[name], genes)
    pd.testing.assert_frame_equal(
        loaded.get_linear_weights(), model.get_linear_weights()
    )
    expected = model.predict(other_cells, soft=True)
    pd.testing.assert_frame_equal(loaded.predict(soft=True), expected)
    quick(loaded)
    assert loaded.fingerprint != model.fingerprint
    assert loaded.get_attention(other_cells).columns.tolist() == model.gene_sets
    # Saved once more, with the same tokens as ever.
    loaded.save(tmp_path / "again")
    assert TOSICA.load(tmp_path / "again").gene_sets == model.gene_sets
