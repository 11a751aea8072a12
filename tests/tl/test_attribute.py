from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import tosica

KEY = "tosica_attribution"
PRESENCE = "tosica_presence"
# Points of the path at which the integral is exact but for rounding. What the default 24 leave
# depends on the weights, which differ a little with the version of torch.
EXACT = 48

lacks_genes = pytest.mark.filterwarnings("ignore:The query has only")


def _expression(model, query):
    """Cells as the model reads them, and which of its genes they have."""
    (batch,) = model.iter_batches(query, batch_size=query.n_obs)
    everything = torch.ones(batch.x.shape[1], dtype=torch.bool)
    return batch.x, everything if batch.measured is None else batch.measured


def _scores(model, x, measured):
    """Centred logits, without the code that is tested."""
    with torch.no_grad():
        logits = model.module.annotate(x, attention=False, measured=measured).logits
    return logits - logits.mean(1, keepdim=True)


def _differences(model, query, baseline="reference"):
    """Of the scores of each cell's best label: those of the cell less those of the baseline."""
    x, measured = _expression(model, query)
    of_cells = _scores(model, x, measured)
    if baseline == "mean":
        start = _scores(model, x.mean(0, keepdim=True), measured)
    else:
        start = model.module.baseline[None] if baseline == "reference" else torch.zeros_like(x)
        start = _scores(model, start, None)
    best = of_cells.argmax(1, keepdim=True)
    return (of_cells - start).gather(1, best)[:, 0].numpy()


def _by_hand(model, x, label, n_steps=24):
    """What each gene adds through each token, ``(n_cells, n_tokens, n_genes)``.

    The integral over expression, one token at a time, plus a sum over the table of linear weights.
    """
    module = model.module
    start = module.baseline[None]
    nodes, weights = np.polynomial.legendre.leggauss(n_steps)
    found = torch.zeros(len(x), module.embedding.n_tokens, x.shape[1])
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        point = (start + float(node) * (x - start)).requires_grad_(True)
        vectors = module.embedding(point)
        for p in range(found.shape[1]):
            # Expression reaches the score through this token only.
            alone = torch.cat([vectors[:, :p].detach(), vectors[:, p : p + 1],
                               vectors[:, p + 1 :].detach()], 1)  # fmt: skip
            logits = module.head(module.encoder(alone))
            score = (logits[:, label] - logits.mean(1)).sum()
            (slope,) = torch.autograd.grad(score, point, retain_graph=True)
            found[:, p] += float(weight) * slope * (x - start)
    table = model.get_linear_weights()
    centred = table[model.labels[label]] - table.mean(axis=1)
    genes = list(model.get_var_names())
    for (gene_set, gene), value in centred.items():
        g = genes.index(gene)
        found[:, model.gene_sets.index(gene_set), g] += value * (x - start)[:, g]
    return found.detach().numpy()


# -- what the numbers are ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["reference", "mean", "zero"])
@pytest.mark.parametrize("which", ["all", "lacking", "network_alone"])
@lacks_genes
def test_gene_sets_sum_to_the_difference_of_the_scores(which, baseline, model, query, request):
    if which == "lacking":
        query = request.getfixturevalue("lacking")
    elif which == "network_alone":
        model, query = request.getfixturevalue("network_alone")
    n_steps = EXACT if which != "network_alone" and baseline != "zero" else 200
    tosica.tl.attribute(query, model, baseline=baseline, n_steps=n_steps)
    total = query.obsm[f"X_{KEY}"].sum(1)
    np.testing.assert_allclose(total, _differences(model, query, baseline), atol=1e-4)
    record = query.uns[KEY]
    assert record["baseline"] == baseline
    assert record["unannotated_share"] == 0
    assert (record["linear_share"] > 0) == (which != "network_alone")


@lacks_genes
def test_a_cell_does_not_depend_on_the_others_and_their_order(model, lacking):
    tosica.tl.attribute(lacking, model)
    order = np.random.default_rng(0).permutation(lacking.n_obs)[:60]
    some = lacking[order].copy()
    tosica.tl.attribute(some, model)
    for key in (KEY, PRESENCE):
        np.testing.assert_allclose(some.obsm[f"X_{key}"], lacking.obsm[f"X_{key}"][order], atol=1e-4)


@pytest.mark.slow
def test_genes_and_gene_sets_are_sums_over_the_same_pairs(model, query):
    few = query[:4].copy()
    label = 3
    tosica.tl.attribute(few, model, genes=True, target=model.labels[label])
    x, _ = _expression(model, few)
    pairs = _by_hand(model, x, label)
    above = (x > model.module.baseline).numpy()[:, None]
    genes = pd.Index(model.get_var_names()).get_indexer(few.var_names)
    np.testing.assert_allclose(few.obsm[f"X_{KEY}"], pairs.sum(2), atol=1e-4)
    np.testing.assert_allclose(few.layers[KEY], pairs.sum(1)[:, genes], atol=1e-4)
    # Presence leaves out what is expressed no more than in the mean cell.
    expected = np.where(above, pairs, 0).sum(2)
    np.testing.assert_allclose(few.obsm[f"X_{PRESENCE}"], expected, atol=1e-4)
    absence = np.where(above, 0, pairs).sum(2)
    both = few.obsm[f"X_{PRESENCE}"] + absence
    np.testing.assert_allclose(few.obsm[f"X_{KEY}"], both, atol=1e-4)
    assert np.abs(absence).sum() > 0


def test_nothing_is_present_in_the_mean_cell(model, query):
    mean = query[[0]].copy()
    genes = pd.Index(model.get_var_names()).get_indexer(mean.var_names)
    mean.X = model.module.baseline[None, genes].numpy()
    model.annotate(mean)
    tosica.tl.attribute(mean, model)
    assert np.abs(mean.obsm[f"X_{PRESENCE}"]).max() == 0
    assert np.abs(mean.obsm[f"X_{KEY}"]).max() < 1e-5


def test_the_reported_error_is_that_of_the_sums(network_alone):
    model, query = network_alone
    with pytest.warns(UserWarning, match="miss the difference of the scores"):
        tosica.tl.attribute(query, model, n_steps=2)
    difference = _differences(model, query)
    error = query.obsm[f"X_{KEY}"].sum(1) - difference
    np.testing.assert_allclose(query.obs[f"{KEY}_error"], error, atol=1e-4)
    expected = np.abs(error).mean() / np.abs(difference).mean()
    assert query.uns[KEY]["completeness_error"] == pytest.approx(expected, rel=1e-3)


def test_the_linear_branchs_share(model, query):
    tosica.tl.attribute(query, model)
    x, _ = _expression(model, query)
    table = model.get_linear_weights()
    by_gene = table.groupby(level="gene", sort=False).sum().loc[list(model.get_var_names())].to_numpy()
    linear = (x - model.module.baseline).numpy() @ (by_gene - by_gene.mean(1, keepdims=True))
    best = _scores(model, x, None).argmax(1).numpy()
    linear = linear[np.arange(len(best)), best]
    of_network = _differences(model, query) - linear
    expected = np.abs(linear).sum() / (np.abs(linear).sum() + np.abs(of_network).sum())
    assert query.uns[KEY]["linear_share"] == pytest.approx(expected, rel=1e-3)


def test_an_unannotated_tokens_share_where_there_is_one(with_unannotated):
    model, query = with_unannotated
    tosica.tl.attribute(query, model, n_steps=EXACT)
    sets = query.obsm[f"X_{KEY}"]
    assert sets.shape[1] == len(model.gene_sets)
    # What the gene sets leave fell to the token.
    rest = _differences(model, query) - sets.sum(1)
    expected = np.abs(rest).sum() / (np.abs(rest).sum() + np.abs(sets).sum())
    assert 0 < expected < 1
    assert query.uns[KEY]["unannotated_share"] == pytest.approx(expected, rel=1e-3)
    np.testing.assert_allclose(query.obs[f"{KEY}_error"], 0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:adata.X holds cells whose total over the model's genes")
def test_expression_above_the_references_largest_counts_as_that(model, query):
    loud = query.copy()
    loud.X = loud.X * 1.5
    model.annotate(loud)
    tosica.tl.attribute(loud, model, n_steps=EXACT)
    np.testing.assert_allclose(loud.obsm[f"X_{KEY}"].sum(1), _differences(model, loud), atol=1e-4, rtol=0)
    x, _ = _expression(model, loud)
    upper = model.module.linear.clip_max
    assert bool((x > upper).any())
    capped = loud.copy()
    genes = pd.Index(model.get_var_names()).get_indexer(loud.var_names)
    capped.X = torch.minimum(x, upper)[:, genes].numpy()
    tosica.tl.attribute(capped, model)
    np.testing.assert_allclose(capped.obsm[f"X_{KEY}"], loud.obsm[f"X_{KEY}"], atol=1e-4)


def test_one_target_for_all_cells(model, query):
    label = model.labels[5]
    tosica.tl.attribute(query, model, n_steps=EXACT, target=label)
    x, _ = _expression(model, query)
    start = _scores(model, model.module.baseline[None], None)
    expected = (_scores(model, x, None) - start)[:, 5].numpy()
    np.testing.assert_allclose(query.obsm[f"X_{KEY}"].sum(1), expected, atol=1e-4)
    assert query.uns[KEY]["target"] == label
    assert list(query.varm[KEY].columns) == [label.replace("/", "|")]


def test_mean_of_each_gene_by_target(model, query):
    tosica.tl.attribute(query, model, genes=True)
    table = query.varm[KEY]
    best = model.predict(query)
    assert set(table.columns) == {label.replace("/", "|") for label in set(best)}
    label = best[0]
    expected = query.layers[KEY][best == label].mean(0)
    np.testing.assert_allclose(table[label.replace("/", "|")], expected, atol=1e-5)


# -- what is written --------------------------------------------------------------------------


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


# -- wrong input ------------------------------------------------------------------------------


def test_renamed_keys(model, query):
    query.obsm["X_mine"] = query.obsm.pop("X_tosica")
    query.uns["mine"] = query.uns.pop("tosica")
    with pytest.raises(KeyError, match="pass key='mine', which is there"):
        tosica.tl.attribute(query, model)
    tosica.tl.attribute(query, model, key="mine")
    assert {"X_mine_attribution", "X_mine_presence"} <= set(query.obsm)


@pytest.mark.slow
def test_a_model_that_does_not_know_its_references_mean(network_alone, monkeypatch):
    """As one that the original's code trained."""
    model, query = network_alone
    unknown = torch.zeros_like(model.module.baseline)
    monkeypatch.setattr(model.module, "baseline", unknown)
    model.annotate(query)
    with pytest.raises(ValueError, match="pass baseline='mean'"):
        tosica.tl.attribute(query, model)
    assert f"X_{KEY}" not in query.obsm
    tosica.tl.attribute(query, model, baseline="mean", n_steps=100)
    total = query.obsm[f"X_{KEY}"].sum(1)
    np.testing.assert_allclose(total, _differences(model, query, "mean"), atol=1e-4)
    # What takes no baseline goes by the query's mean.
    tosica.tl.top_genes(query, model)
    means = tosica.get.mean_attention(query, "tosica_prediction", key=PRESENCE)
    table = tosica.get.top_genes_df(query)
    for group, rows in table.groupby("group", observed=True):
        assert rows["gene_set"].iloc[0] == means.loc[group].idxmax()


def test_the_mean_of_a_single_cell(model, query):
    with pytest.raises(ValueError, match="A single cell is its own mean"):
        tosica.tl.attribute(query[:1].copy(), model, baseline="mean")


def test_weighted_attention_is_attention_times_norm(model, query):
    tosica.tl.weight_attention(query, model)
    x, _ = _expression(model, query)
    with torch.no_grad():
        vectors = model.module.embedding(x) - model.module.embedding.bias
    expected = query.obsm["X_tosica"] * vectors.norm(dim=2).numpy()
    np.testing.assert_allclose(query.obsm["X_tosica_weighted"], expected, rtol=1e-4, atol=1e-6)
    weighted = tosica.get.attention(query, key="tosica_weighted")
    assert list(weighted.var_names) == model.gene_sets
