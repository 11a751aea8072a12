from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scvi
import torch

import tosica

KEY = "tosica_attribution"


def _logits(model, query):
    """Centred logits of each cell, without the code that is tested."""
    genes = [list(query.var_names).index(name) for name in model._var_names]
    x = torch.from_numpy(query.X.toarray()[:, genes].astype(np.float32))
    with torch.no_grad():
        logits = model.module.annotate(x, attention=False).logits
        start = model.module.annotate(x.mean(0, keepdim=True), attention=False).logits
    return (logits - logits.mean(1, keepdim=True)).numpy(), (start - start.mean()).numpy()


@pytest.mark.parametrize(("baseline", "n_steps"), [("mean", 24), ("zero", 200)])
def test_completeness_error_is_below_two_percent(model, query, baseline, n_steps):
    tosica.tl.attribute(query, model, baseline=baseline, n_steps=n_steps)
    record = query.uns[KEY]
    assert record["completeness_error"] < 0.02
    assert record["baseline"] == baseline


def test_the_reported_error_is_that_of_the_sums(model, query):
    with pytest.warns(UserWarning, match="miss the network's difference"):
        tosica.tl.attribute(query, model, genes=True, n_steps=2)
    logits, start = _logits(model, query)
    best = logits.argmax(1)
    difference = logits[np.arange(len(best)), best] - start[0, best]
    # All genes of the model are in the query, so their attributions are complete as well.
    total = query.layers[KEY].sum(1)
    np.testing.assert_allclose(query.obs[f"{KEY}_error"], total - difference, atol=2e-4)
    # The direct path has no error, so that its part is not what the error is a share of.
    x = torch.from_numpy(query.X.toarray())
    direct = model.get_direct_weights().to_numpy()
    by_line = (x - x.mean(0)).numpy() @ (direct - direct.mean(1, keepdims=True))
    of_network = difference - by_line[np.arange(len(best)), best]
    expected = np.abs(total - difference).mean() / np.abs(of_network).mean()
    assert query.uns[KEY]["completeness_error"] == pytest.approx(expected, rel=0.05, abs=1e-4)


@pytest.mark.filterwarnings("ignore:The query has only")
def test_genes_sum_to_the_score_that_decides_where_some_are_missing(model, query):
    lacking = query[:, np.arange(query.n_vars) % 4 > 0].copy()
    model.annotate(lacking)
    tosica.tl.attribute(lacking, model, genes=True, baseline="zero", n_steps=200)
    names = list(model._var_names)
    measured = torch.tensor([name in set(lacking.var_names) for name in names])
    x = torch.zeros(lacking.n_obs, len(names))
    place = [names.index(name) for name in lacking.var_names]
    x[:, place] = torch.from_numpy(lacking.X.toarray().astype(np.float32))
    path = model.module.direct_path(measured)
    with torch.no_grad():
        logits, start = (
            model.module.annotate(cells, attention=False, path=path).logits for cells in (x, 0 * x)
        )
    difference = (logits - logits.mean(1, keepdim=True)) - (start - start.mean(1, keepdim=True))
    best = logits.argmax(1)
    expected = difference.gather(1, best[:, None])[:, 0].numpy()
    found = lacking.layers[KEY].sum(1)
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).mean())


def test_gene_sets_and_genes_sum_to_the_same(model, query):
    tosica.tl.attribute(query, model, genes=True)
    sets, genes = query.obsm[f"X_{KEY}"], query.layers[KEY]
    logits, start = _logits(model, query)
    best = logits.argmax(1)
    difference = logits[np.arange(len(best)), best] - start[0, best]
    np.testing.assert_allclose(genes.sum(1), difference, atol=0.02 * np.abs(difference).mean())
    # What is missing from the gene sets fell to the unannotated token.
    missing = np.abs(difference - sets.sum(1)).sum()
    assert 0 < query.uns[KEY]["unannotated_share"] < 1
    assert missing > 0


def test_genes_agree_with_gradients_at_the_input(model, query):
    """The same integral, taken by hand over expression."""
    tosica.tl.attribute(query, model, genes=True, target=model.labels[3], n_steps=24)
    genes = [list(query.var_names).index(name) for name in model._var_names]
    x = torch.from_numpy(query.X.toarray()[:, genes].astype(np.float32))
    start = x.mean(0, keepdim=True)
    nodes, weights = np.polynomial.legendre.leggauss(24)
    total = torch.zeros_like(x)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        point = (start + float(node) * (x - start)).requires_grad_(True)
        network = model.module.head(model.module.encoder(model.module.embedding(point)))
        logits = network + model.module.direct(point)
        score = (logits[:, 3] - logits.mean(1)).sum()
        total += float(weight) * torch.autograd.grad(score, point)[0]
    expected = (total * (x - start)).numpy()
    np.testing.assert_allclose(query.layers[KEY][:, genes], expected, atol=1e-4)


def test_sharing_out_keeps_the_sum_and_follows_the_genes(model, query):
    tosica.tl.attribute(query, model, genes=True, share_unannotated=True)
    sets, genes = query.obsm[f"X_{KEY}"], query.layers[KEY]
    mask = model.get_gene_weights().loc[query.var_names, model.gene_sets].to_numpy() > 0
    in_a_set = mask.any(1)
    # What is in no gene set stays out; everything else is dealt out.
    np.testing.assert_allclose(sets.sum(1), genes[:, in_a_set].sum(1), atol=1e-4)
    shared = query.uns[KEY]["unannotated_share"]
    tosica.tl.attribute(query, model)
    assert shared < query.uns[KEY]["unannotated_share"]


def test_sharing_out_does_nothing_without_unannotated_tokens():
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()[::5].copy()
    tosica.pp.build_mask(adata, max_gene_sets=6, n_unannotated=0)
    tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
    scvi.settings.seed = 0
    model = tosica.TOSICA(adata, embed_dim=8, direct=False)
    model.train(max_epochs=1, accelerator="cpu", enable_progress_bar=False)
    model.annotate(adata)
    tosica.tl.attribute(adata, model)
    alone = adata.obsm[f"X_{KEY}"].copy()
    tosica.tl.attribute(adata, model, share_unannotated=True)
    np.testing.assert_array_equal(adata.obsm[f"X_{KEY}"], alone)


def test_mean_of_each_gene_by_target(model, query):
    tosica.tl.attribute(query, model, genes=True)
    table = query.varm[KEY]
    best = model.predict(query)
    assert set(table.columns) == {label.replace("/", "|") for label in set(best)}
    label = best[0]
    expected = query.layers[KEY][best == label].mean(0)
    np.testing.assert_allclose(table[label.replace("/", "|")], expected, atol=1e-5)


def test_tools_and_readers_take_it(model, query):
    tosica.tl.attribute(query, model)
    means = tosica.get.mean_attention(query, "bulk_labels", key=KEY)
    assert means.shape == (query.obs["bulk_labels"].nunique(), 20)
    query.obs["half"] = np.where(np.arange(query.n_obs) % 2, "a", "b")
    tosica.tl.rank_gene_sets(query, "half", key=KEY)
    table = tosica.get.rank_gene_sets_df(query)
    # A ratio of what has a sign means nothing.
    signed = (query.obsm[f"X_{KEY}"] < 0).any()
    assert signed
    assert table["logfoldchange"].isna().any()
    assert np.isfinite(table["effect_size"]).all()


def test_genes_in_another_order_and_a_gene_the_model_lacks(model, query):
    tosica.tl.attribute(query, model, genes=True)
    shuffled = query[:, ::-1].copy()
    names = shuffled.var_names.to_numpy(dtype=object).copy()
    names[0] = "NOT_A_GENE_OF_THE_MODEL"
    changed = shuffled.copy()
    changed.var_names = names
    tosica.tl.attribute(shuffled, model, genes=True)
    np.testing.assert_allclose(shuffled.layers[KEY], query.layers[KEY][:, ::-1], atol=1e-5)
    tosica.tl.attribute(changed, model, genes=True)
    assert (changed.layers[KEY][:, 0] == 0).all()


def test_nothing_else_changes(model, query):
    before = query.copy()
    result = tosica.tl.attribute(query, model, copy=True, key_added="why")
    assert "why" in result.uns
    assert "X_why" in result.obsm
    assert set(query.uns) == set(before.uns)
    assert set(query.obsm) == set(before.obsm)
    pd.testing.assert_frame_equal(query.obs, before.obs)
    assert (result.X != before.X).nnz == 0
    assert list(result.layers) == list(before.layers)


@pytest.mark.filterwarnings("ignore:Writing zarr v2:UserWarning")
def test_survives_a_file(model, query, tmp_path):
    import anndata

    tosica.tl.attribute(query, model)
    query.write_h5ad(tmp_path / "query.h5ad")
    back = anndata.read_h5ad(tmp_path / "query.h5ad")
    np.testing.assert_array_equal(back.obsm[f"X_{KEY}"], query.obsm[f"X_{KEY}"])
    assert tosica.get.mean_attention(back, "phase", key=KEY).shape[1] == 20


def test_too_few_steps_are_warned_of(model, query):
    with pytest.warns(UserWarning, match=r"miss the network's difference .* larger n_steps than 1"):
        tosica.tl.attribute(query, model, baseline="zero", n_steps=1)


def test_not_annotated(model, query):
    del query.obsm["X_tosica"], query.uns["tosica"]
    with pytest.raises(KeyError, match=r"run model\.annotate"):
        tosica.tl.attribute(query, model)


def test_half_of_the_keys_are_gone(model, query):
    del query.obsm["X_tosica"]
    with pytest.raises(KeyError, match=r"'X_tosica'\] is gone: run model\.annotate"):
        tosica.tl.attribute(query, model)


def test_renamed_keys(model, query):
    query.obsm["X_mine"] = query.obsm.pop("X_tosica")
    query.uns["mine"] = query.uns.pop("tosica")
    with pytest.raises(KeyError, match="pass key='mine', which is there"):
        tosica.tl.attribute(query, model)
    tosica.tl.attribute(query, model, key="mine")
    assert "X_mine_attribution" in query.obsm


def test_missing_attribution_names_the_tool(query):
    with pytest.raises(KeyError, match=r"run tosica\.tl\.attribute\(adata, model\) first"):
        tosica.get.attention(query, key=KEY)


@pytest.mark.parametrize(
    "call",
    [
        tosica.tl.attribute,
        tosica.tl.weight_attention,
        tosica.tl.top_genes,
        tosica.tl.faithfulness,
    ],
)
def test_another_model_is_refused(query, other_model, call):
    keys = set(query.uns)
    with pytest.raises(ValueError, match="pass the model that annotated adata"):
        call(query, other_model)
    assert set(query.uns) == keys


def test_unknown_target(model, query):
    with pytest.raises(ValueError, match="no label 'T cell': its labels are 'CD4"):
        tosica.tl.attribute(query, model, target="T cell")


def test_unknown_baseline(model, query):
    with pytest.raises(ValueError, match="baseline must be 'mean' or 'zero', not 'ones'"):
        tosica.tl.attribute(query, model, baseline="ones")


def test_no_steps(model, query):
    with pytest.raises(ValueError, match="n_steps must be at least 1"):
        tosica.tl.attribute(query, model, n_steps=0)


def test_the_mean_of_a_single_cell(model, query):
    with pytest.raises(ValueError, match="A single cell is its own mean"):
        tosica.tl.attribute(query[:1].copy(), model)


def test_weighted_attention_is_attention_times_norm(model, query):
    tosica.tl.weight_attention(query, model)
    genes = [list(query.var_names).index(name) for name in model._var_names]
    x = torch.from_numpy(query.X.toarray()[:, genes].astype(np.float32))
    with torch.no_grad():
        carried = model.module.embedding(x) - model.module.embedding.bias
    expected = query.obsm["X_tosica"] * carried.norm(dim=2).numpy()[:, :20]
    np.testing.assert_allclose(query.obsm["X_tosica_weighted"], expected, rtol=1e-4, atol=1e-6)
    assert tosica.get.attention(query, key="tosica_weighted").shape == (query.n_obs, 20)
