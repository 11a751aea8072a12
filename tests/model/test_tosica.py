"""What a trained model says about a query, whatever form the query comes in."""

import re

import anndata
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
import torch
from _cells import TOY_SETS, add_full_tokens
from _strategies import matrices
from anndata import AnnData
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from tosica import TOSICA, pp


def seen_by(model, query, **kwargs):
    """Probabilities and attention."""
    return (
        model.predict(query, soft=True, **kwargs).to_numpy(),
        model.get_attention(query, **kwargs).to_numpy(),
    )


def assert_same(actual, expected, *, tolerance=1e-5):
    for a, b in zip(actual, expected, strict=True):
        assert_allclose(a, b, rtol=0, atol=tolerance)
    assert_array_equal(actual[0].argmax(1), expected[0].argmax(1))


# --------------------------------------------------------------------------- predict


def test_labels_and_probabilities(toy_model, pbmc_model, pbmc_query, contents):
    original = contents(pbmc_query)
    labels = pbmc_model.predict(pbmc_query)
    table = pbmc_model.predict(pbmc_query, soft=True)
    assert isinstance(labels, np.ndarray)
    assert table.columns.tolist() == pbmc_model.labels
    assert table.index.equals(pbmc_query.obs_names)
    assert set(table.dtypes) == {np.dtype("float32")}
    assert_allclose(table.sum(axis=1), 1, atol=1e-5)
    assert table.idxmax(axis=1).to_numpy().tolist() == labels.tolist()
    assert contents(pbmc_query) == original
    for size in (1, 7):
        assert_same(
            seen_by(pbmc_model, pbmc_query, batch_size=size),
            seen_by(pbmc_model, pbmc_query),
        )
    assert_array_equal(toy_model.predict(), toy_model.predict(toy_model.adata))
    assert len(toy_model.get_attention()) == 90


@pytest.mark.parametrize(
    "indices",
    [[5, 0, 17], np.array([3]), np.arange(60) % 7 == 0, slice(4, 9)],
    ids=repr,
)
def test_indices(toy_model, toy_query, indices):
    of_all_cells = toy_model.predict(toy_query, soft=True)
    expected = of_all_cells.iloc[np.arange(60)[indices]]
    of_some_cells = toy_model.predict(toy_query, indices=indices, soft=True)
    pd.testing.assert_frame_equal(of_some_cells, expected, atol=1e-6)
    latent = toy_model.get_latent_representation(toy_query, indices=indices)
    assert latent.shape == (len(expected), 16)
    assert toy_model.get_attention(toy_query, indices).index.equals(expected.index)


@pytest.mark.filterwarnings("ignore::tosica.data.EmptyCellsWarning")
def test_an_empty_cell_alone_is_on_the_scale_of_all(toy_model, toy_query):
    sc.pp.normalize_total(toy_query, target_sum=100)
    sc.pp.log1p(toy_query)
    toy_query.X = sp.csr_matrix(toy_query.X.toarray() * (np.arange(60) > 0)[:, None])
    of_all = toy_model.infer(toy_query, enable_progress_bar=False)
    of_one = toy_model.infer(toy_query, indices=[0], enable_progress_bar=False)
    assert_allclose(of_one.probabilities, of_all.probabilities[:1], atol=1e-6)


# --------------------------------------------------------------------------- looking inside


def test_infer_computes_what_is_wanted(toy_model, toy_query):
    result = toy_model.infer(toy_query, ["latent", "novelty"], [3, 1])
    assert list(result.arrays()) == [
        "latent",
        "novelty",
        "distance",
        "nearest",
        "novelty_pvalue",
    ]
    assert list(result.obs_names) == ["cell3", "cell1"]
    with pytest.raises(ValueError, match="no labels"):
        result.predictions()
    with pytest.raises(ValueError, match="did you mean 'attention'"):
        toy_model.infer(toy_query, "attentions")


def test_attention_with_unannotated_tokens(toy, toy_query, train):
    sets = dict.fromkeys(("one", "other"), toy.var_names[:9])
    pp.build_mask(toy, sets)
    add_full_tokens(toy, 2)
    model = train(toy, max_epochs=1)
    # Where a token has every gene, no module is needed.
    assert model.gene_sets == ["one", "other"]
    plain = model.get_attention(toy_query)
    table = model.get_attention(toy_query, unannotated=True)
    assert table.columns.tolist() == ["one", "other", "unannotated_1", "unannotated_2"]
    pd.testing.assert_frame_equal(table.iloc[:, :2], plain)
    # Two layers, each of which leaves at least half of what comes with the class token.
    assert table.sum(axis=1).between(0, 0.75).all()


@pytest.mark.parametrize("how", ["mean", "max"])
def test_gene_weights_are_those_of_the_module(pbmc_model, pbmc_ref, how):
    table = pbmc_model.get_gene_weights(how)
    embedding = pbmc_model.module.embedding
    mask = np.zeros((765, embedding.n_tokens), dtype=bool)
    mask[
        embedding.genes,
        np.repeat(np.arange(embedding.n_tokens), embedding.indptr.diff()),
    ] = True
    assert_array_equal(mask[:, :30], pbmc_ref.varm["tosica_mask"].toarray())
    # Every gene that varies is in a gene set or in one module.
    varies = pbmc_ref.X.toarray().std(0) > 0
    in_gene_set = mask[:, :30].any(1)
    assert_array_equal(mask[:, 30:].sum(1), varies & ~in_gene_set)
    assert table.shape == mask.shape
    assert table.index.equals(pbmc_ref.var_names)
    assert table.columns.tolist() == pbmc_model.gene_sets
    assert set(table.dtypes) == {np.dtype("float32")}
    assert (table.to_numpy()[~mask] == 0).all()
    assert (table.to_numpy()[mask] > 0).all()
    # The weights of a pair, one set after the other.
    weight = pbmc_model.module.embedding.weight.detach().abs().numpy()
    reduced = getattr(weight, how)(axis=1)
    assert_allclose(table.to_numpy().T[mask.T], reduced, rtol=1e-6)


def test_repr_tells_the_facts(pbmc_model):
    text, module = repr(pbmc_model), pbmc_model.module
    assert text.startswith("TOSICA model, trained (12 epochs)")
    assert (
        f"gene sets: 30 of human_gobp (human), and {len(pbmc_model.gene_sets) - 30} modules\n"
        in text
    )
    assert "765, read as log-normalized expression" in text
    assert "10 (CD4+/CD25 T Reg, " in text
    assert ", …)" in text
    assert "width 16, 4 heads, 2 layers" in text
    assert text.endswith("parameters; beside it a linear branch")
    assert f"{sum(p.numel() for p in module.parameters()):,} parameters" in text


# --------------------------------------------------------------------------- queries as they come


@settings(
    max_examples=6,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 1000),
    batch_size=st.integers(1, 90),
    n_extra=st.integers(0, 40),
    dtype=st.sampled_from(["float32", "float64", "int32", "int64", "uint16"]),
    data=st.data(),
)
def test_order_of_genes_and_cells_and_other_genes(
    toy_model, toy_query, seed, batch_size, n_extra, dtype, data
):
    expected = seen_by(toy_model, toy_query)
    rng = np.random.default_rng(seed)
    extra = sp.csr_matrix(rng.poisson(3, (60, n_extra)).astype(np.float32))
    wider = AnnData(sp.hstack([toy_query.X, extra], format="csr"))
    wider.obs_names = toy_query.obs_names
    wider.var_names = [*toy_query.var_names, *(f"other{i}" for i in range(n_extra))]
    cells, genes = rng.permutation(60), rng.permutation(wider.n_vars)
    shuffled = wider[cells][:, genes].copy()
    shuffled.X = data.draw(matrices(shuffled.X.toarray().astype(dtype)))
    back = np.argsort(cells)
    actual = seen_by(toy_model, shuffled, batch_size=batch_size)
    assert_same([array[back] for array in actual], expected)


def test_layer_and_raw(toy, toy_model, toy_query, train):
    expected = seen_by(toy_model, toy_query)
    toy_query.layers["counts"] = toy_query.X.copy()
    toy_query.raw = toy_query.copy()
    fewer = toy_query[:, 5:].copy()
    fewer.X = fewer.X.toarray() - 1
    assert_same(seen_by(toy_model, fewer, use_raw=True), expected)
    toy_query.X = toy_query.X.toarray() - 1
    assert_same(seen_by(toy_model, toy_query, layer="counts"), expected)
    # The layer of the reference is read where the query has it.
    toy.layers["counts"] = toy.X.copy()
    toy.X = toy.X.toarray() - 1
    model = train(toy, setup={"layer": "counts"})
    assert_same(seen_by(model, toy_query), seen_by(model, toy_query, layer="counts"))


@pytest.mark.filterwarnings("ignore:The query has only")
def test_the_linear_branch_expects_what_it_can_of_missing_genes(pbmc_model, pbmc_query):
    module = pbmc_model.module
    x = torch.from_numpy(pbmc_query[:, pbmc_model.get_var_names()].X.toarray())
    complete = module.linear(x)
    for seed in range(5):
        torch.manual_seed(seed)
        measured = torch.rand(x.shape[1]) > 0.3
        expected = module.linear(x * measured, measured)
        nothing = module.linear(x * measured)
        assert (expected - complete).square().mean() < 0.5 * (
            nothing - complete
        ).square().mean()
    # What annotate and predict give is what comes of that.
    lacking = pbmc_query[:, pbmc_model.get_var_names()[measured.numpy()]].copy()
    with torch.no_grad():
        logits = module.annotate(
            x * measured, attention=False, measured=measured
        ).logits
        expected = module.calibrated(logits).softmax(1).numpy()
    assert_allclose(pbmc_model.predict(lacking, soft=True), expected, atol=1e-5)
    pbmc_model.annotate(lacking, probabilities=True)
    assert_allclose(lacking.obsm["tosica_probabilities"], expected, atol=1e-5)


def test_queries_that_are_warned_of(toy_model, toy_query):
    with pytest.warns(
        UserWarning,
        match=r"has only 27 of the model's 30 genes \(90%\); the network sees the",
    ):
        toy_model.predict(toy_query[:, 3:].copy())
    toy_query.X = toy_query.X.toarray()
    toy_query.X[[3, 9]] = 0
    with pytest.warns(
        UserWarning, match="2 cells of the query express none of the model's genes"
    ):
        table = toy_model.predict(toy_query, soft=True)
    assert np.isfinite(table.to_numpy()).all()


# --------------------------------------------------------------------------- wrong input


def _change(action):
    def change(query):
        query.X = query.X.toarray()
        action(query.X)
        return query

    return change


def _set(value):
    return _change(lambda x: x.__setitem__((7, 3), value))


def _renamed(names):
    def change(query):
        query.var_names = names(query.var_names)
        return query

    return change


def _cells_twice(query):
    query.obs_names = ["cell0", *query.obs_names[:-1]]
    return query


def _scaled(query):
    query.layers["counts"] = query.X.copy()
    query.X = query.X.toarray() - 1
    return query


WRONG = {
    "NaN": (_set(np.nan), ValueError, "adata.X holds NaN (first in cell 7)"),
    "negative": (
        _set(-1),
        ValueError,
        "adata.X holds negative values (first in cell 7)",
    ),
    "no genes": (lambda query: query[:, :0].copy(), ValueError, "adata.X has no genes"),
    "few genes": (
        lambda query: query[:, :3].copy(),
        ValueError,
        "The query has only 3 of the model's 30 genes (10%) among its var_names, and at least "
        "half are needed; if genes were left out, as by a choice of variable ones, take all that were measured; "
        "for a panel of few genes, TOSICA.for_query trains a model.",
    ),
    "mouse": (
        _renamed(lambda names: [f"Gene{i}" for i in range(len(names))]),
        ValueError,
        "names in the query look like mouse symbols while the model's look like human symbols",
    ),
    "Ensembl": (
        _renamed(lambda names: [f"ENSG{i:011d}" for i in range(len(names))]),
        ValueError,
        "names in the query look like human Ensembl IDs while the model's look like human symbols",
    ),
    "genes twice": (
        _renamed(lambda names: ["G1", *names[1:]]),
        ValueError,
        "var_names of the query that the model needs are not unique ('G1'): call adata.var_names_make_unique() first.",
    ),
    "scaled": (_scaled, ValueError, "Unscaled expression is in adata.layers['cou"),
    "cells twice": (
        _cells_twice,
        ValueError,
        "obs_names of the query are not unique ('cell0')",
    ),
}


@pytest.mark.filterwarnings(
    "ignore:(Variable|Observation) names are not unique:UserWarning"
)
@pytest.mark.parametrize(("change", "error", "sentence"), WRONG.values(), ids=WRONG)
def test_wrong_query_is_refused_and_left_alone(
    toy_model, toy_query, unchanged, change, error, sentence
):
    query = change(toy_query)
    with unchanged(query), pytest.raises(error, match=re.escape(sentence)):
        toy_model.annotate(query)


def test_column_with_the_right_names_is_used(toy_model, toy_query, caplog):
    expected = toy_model.annotate(toy_query, copy=True)
    toy_query.var["gene_symbols"] = toy_query.var_names.to_numpy(dtype=object)
    toy_query.var_names = [f"ENSG{i:011d}" for i in range(30)]
    toy_model.annotate(toy_query)
    assert "query: genes named by var['gene_symbols'], such as 'G0'" in caplog.messages
    assert list(toy_query.obs["tosica_prediction"]) == list(
        expected.obs["tosica_prediction"]
    )
    assert_array_equal(toy_query.obsm["X_tosica"], expected.obsm["X_tosica"])


# --------------------------------------------------------------------------- panels


def test_references_of_a_panel_that_are_backed_or_name_genes_twice(
    toy, toy_query, tmp_path
):
    panel = toy_query[:, :24].copy()
    fit = {"gene_sets": TOY_SETS, "accelerator": "cpu", "max_epochs": 1}
    toy.write_h5ad(tmp_path / "toy.h5ad")
    backed = anndata.read_h5ad(tmp_path / "toy.h5ad", backed="r")
    model = TOSICA.for_query(panel, backed, "kind", **fit)
    assert list(model.get_var_names()) == list(panel.var_names)
    assert backed.isbacked
    backed.file.close()
    toy.var_names = ["G1", *toy.var_names[1:]]
    with pytest.raises(ValueError, match=r"reference\.var_names are not unique \('G1'"):
        TOSICA.for_query(panel, toy, "kind", **fit)


def test_a_model_for_a_panel(toy, toy_query, contents, caplog, tmp_path):
    panel = toy_query[:, [*range(20), *range(24, 28)]].copy()
    panel.var_names = [name.replace("G2", "NegControl") for name in panel.var_names]
    original = contents(toy)
    fit = {"gene_sets": TOY_SETS, "accelerator": "cpu"}
    model = TOSICA.for_query(
        panel, toy, "kind", setup_kwargs={"batch_key": "donor"}, **fit
    )
    assert contents(toy) == original
    assert list(model.get_var_names()) == [
        name for name in toy.var_names if name in panel.var_names
    ]
    assert (
        f"{100 * model.held_out_accuracy_:.1f} % of the held-out cells get their label on the 19 genes"
        in caplog.text
    )
    model.annotate(panel)
    assert (
        panel.obs["tosica_prediction"].astype(str) == panel.obs["kind"].astype(str)
    ).mean() > 0.9
    model.save(tmp_path / "model")
    assert (
        TOSICA.load(tmp_path / "model").held_out_accuracy_ == model.held_out_accuracy_
    )
    toy.obs["kind"] = np.where(
        np.random.default_rng(0).random(90) < 0.9, "common", "rare"
    )
    with pytest.raises(
        ValueError,
        match=r"of the held-out cells get their label on the 19 genes .* the commonest one",
    ):
        TOSICA.for_query(panel, toy, "kind", **fit)
    panel.var_names = [f"chr1:{i}-{i + 500}" for i in range(panel.n_vars)]
    with pytest.raises(
        ValueError,
        match=r"has only 0 of the query's 24 genes: take a reference of the same species",
    ):
        TOSICA.for_query(panel, toy, "kind", **fit)
