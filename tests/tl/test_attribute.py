"""What genes add to labels: exactness against formulas, groups, targets, and what is written."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from _cells import FAST_PLAN, TOY_SETS, make_toy, train_toy

import tosica

KEY = "tosica_attribution"
# Points of the path at which the integral is exact but for rounding.
EXACT = 48


def _batch(model, query):
    """Cells as the model reads them, and which of its genes they have."""
    (batch,) = model.iter_batches(query, batch_size=query.n_obs)
    return batch


def _scores(model, x, measured=None):
    """Centered logits, without the code that is tested."""
    with torch.no_grad():
        logits = model.module.annotate(x, attention=False, measured=measured).logits
    return logits - logits.mean(1, keepdim=True)


def _by_hand(model, query, codes, n_steps=EXACT):
    """What each gene adds in each cell: a sum over points, cell by cell, and a table of weights."""
    module, batch = model.module, _batch(model, query)
    start = module.baseline
    weights = model.get_linear_weights()
    centered = torch.tensor(
        (weights.sub(weights.mean(axis=1), axis=0)).to_numpy(), dtype=torch.float32
    )
    nodes, shares = np.polynomial.legendre.leggauss(n_steps)
    rows = []
    for x, code in zip(batch.x, codes, strict=True):
        slope = torch.zeros_like(x)
        for node, share in zip(nodes, shares, strict=True):
            point = (
                (start + (node + 1) / 2 * (x - start)).float()[None].requires_grad_()
            )
            logits = module.head(module.encoder(module.embedding(point))[0])[0]
            (gradient,) = torch.autograd.grad(logits[code] - logits.mean(), point)
            slope += float(share) / 2 * gradient[0]
        rows.append((x - start) * (slope + centered[:, code]))
    return torch.stack(rows).numpy()


# -- what the numbers are ---------------------------------------------------------------------


def test_every_cell_is_as_by_hand(model, query):
    few = query[:4].copy()
    tosica.tl.attribute(few, model, genes=True, cells=True, n_steps=EXACT)
    codes = [model.labels.index(label) for label in few.obs["tosica_prediction"]]
    by_hand = _by_hand(model, few, codes)
    genes = pd.Index(model.get_var_names()).get_indexer(few.var_names)
    np.testing.assert_allclose(few.layers[KEY], by_hand[:, genes], atol=1e-4)
    names, members = model.modalities[0].gene_sets()
    assert list(few.uns[KEY]["gene_sets"]) == names
    # In sets, a gene counts that the cell expresses more than the baseline.
    is_raised = (_batch(model, few).x > model.module.baseline).numpy()
    np.testing.assert_allclose(
        few.obsm[f"X_{KEY}"], (by_hand * is_raised) @ members, atol=1e-4
    )
    # Groups are means of their cells.
    table = few.uns[KEY]["genes"]
    for label in set(few.obs["tosica_prediction"]):
        rows = (few.obs["tosica_prediction"] == label).to_numpy()
        np.testing.assert_allclose(
            table[label.replace("/", "|")], by_hand[rows].mean(0), atol=1e-4
        )


@pytest.mark.parametrize("which", ["all", "lacking", "network_alone"])
@pytest.mark.filterwarnings("ignore:The query has only")
def test_genes_sum_to_the_difference_of_the_scores(which, model, query, request):
    if which == "lacking":
        query = request.getfixturevalue("lacking")
    elif which == "network_alone":
        model, query = request.getfixturevalue("network_alone")
    tosica.tl.attribute(
        query, model, n_cells=10_000, n_steps=200 if which == "network_alone" else EXACT
    )
    batch = _batch(model, query)
    baseline = model.module.baseline[None]
    if batch.measured is not None:
        baseline = torch.where(batch.measured, baseline, 0)
    difference = _scores(model, batch.x, batch.measured) - _scores(
        model, baseline, batch.measured
    )
    table = query.uns[KEY]["genes"]
    assert set(table.index) <= set(query.var_names)
    for label in table:
        rows = np.array(query.obs["tosica_prediction"].str.replace("/", "|") == label)
        code = [name.replace("/", "|") for name in model.labels].index(label)
        assert table[label].sum() == pytest.approx(
            float(difference[rows, code].mean()), abs=1e-3
        )
    assert query.uns[KEY]["completeness_error"] < 1e-4
    assert (query.uns[KEY]["linear_share"] > 0) == (which != "network_alone")


def test_points_are_as_few_as_the_error_allows(network_alone):
    model, query = network_alone
    tosica.tl.attribute(query, model, n_cells=10_000)
    record = query.uns[KEY]
    assert record["completeness_error"] <= 0.01
    with pytest.warns(UserWarning, match="miss the difference of the scores"):
        tosica.tl.attribute(query, model, n_steps=1)
    assert query.uns[KEY]["completeness_error"] > record["completeness_error"]


def test_groups_of_the_caller_and_one_target(model, query):
    query.obs["half"] = np.where(np.arange(query.n_obs) < 50, "first", "second")
    label = model.labels[2]
    tosica.tl.attribute(query, model, "half", target=label, genes=True, n_steps=EXACT)
    table = query.uns[KEY]["genes"]
    assert list(table) == ["first", "second"]
    assert query.uns[KEY]["target"] == label
    genes = pd.Index(model.get_var_names()).get_indexer(query.var_names)
    np.testing.assert_allclose(
        table["first"].to_numpy()[genes], query.layers[KEY][:50].mean(0), atol=1e-4
    )


def test_a_group_of_labels_has_the_mean_of_their_scores(model, query, monkeypatch):
    monkeypatch.setattr(
        model, "_parent_of_label", dict.fromkeys(model.labels[:2], "both")
    )
    query.obs["all"] = "all"
    tosica.tl.attribute(
        query, model, "all", target="both", n_cells=10_000, n_steps=EXACT
    )
    batch = _batch(model, query)
    difference = _scores(model, batch.x, batch.measured) - _scores(
        model, model.module.baseline[None]
    )
    assert query.uns[KEY]["genes"].sum().item() == pytest.approx(
        float(difference[:, :2].mean()), abs=1e-3
    )
    together = query.uns[KEY]["genes"]["all"]
    # Answers that are groups are explained as such.
    query.obs["tosica_confident"] = "both"
    tosica.tl.attribute(query, model, "tosica_confident", n_cells=10_000, n_steps=EXACT)
    np.testing.assert_allclose(query.uns[KEY]["genes"]["both"], together, atol=1e-4)


@pytest.mark.filterwarnings("ignore:The query has only")
def test_order_of_cells_and_genes_and_genes_of_no_model(model, query):
    tosica.tl.attribute(query, model, genes=True, n_steps=8)
    turned = query[::-1, ::-1].copy()
    stranger = turned[:, :1].copy()
    stranger.var_names = ["NOT_A_GENE_OF_THE_MODEL"]
    wider = ad.concat([stranger, turned], axis=1, merge="same")
    wider.uns = turned.uns
    tosica.tl.attribute(wider, model, genes=True, n_steps=8)
    np.testing.assert_allclose(
        wider.layers[KEY][:, 1:], query.layers[KEY][::-1, ::-1], atol=1e-4
    )
    assert (wider.layers[KEY][:, 0] == 0).all()


def test_a_sample_of_the_cells_is_enough(model, query):
    tosica.tl.attribute(query, model, n_steps=8, n_cells=10_000)
    every = query.uns[KEY]
    tosica.tl.attribute(query, model, n_steps=8, n_cells=5)
    few = query.uns[KEY]
    assert every["genes"].corrwith(few["genes"]).min() > 0.95
    pd.testing.assert_frame_equal(every["expression"], few["expression"])


def test_cells_without_a_label_are_left_out(model, query):
    query.obs["tosica_prediction"] = query.obs["tosica_prediction"].astype(str)
    query.obs.iloc[:50, query.obs.columns.get_loc("tosica_prediction")] = "Unknown"
    tosica.tl.attribute(query, model, cells=True, n_steps=8)
    assert "Unknown" not in query.uns[KEY]["groups"]
    # Their own best label is explained where every cell is wanted.
    assert np.isfinite(query.obsm[f"X_{KEY}"]).all()
    query.obs["tosica_prediction"] = "Unknown"
    with pytest.raises(ValueError, match="No cell has a label to explain"):
        tosica.tl.attribute(query, model)
    tosica.tl.attribute(query, model, "bulk_labels", target=model.labels[0], n_steps=8)


def test_genes_and_antibodies_in_one_table(cite_model, cite_query):
    cite_model.annotate(cite_query)
    tosica.tl.attribute(cite_query, cite_model, cells=True, n_steps=EXACT)
    record = cite_query.uns[KEY]
    assert {name.split(":")[0] for name in record["genes"].index} == set(cite_query.mod)
    assert record["completeness_error"] < 0.01
    assert all(name.startswith("rna:") for name in record["gene_sets"])
    table = tosica.get.genes_df(cite_query, "a", n_genes=8)
    assert (table["contribution"] > 0).all()
    with pytest.raises(TypeError, match="MuData does not have"):
        tosica.tl.attribute(cite_query, cite_model, genes=True)
    rna = cite_query["rna"].copy()
    cite_model.annotate(rna)
    with pytest.raises(TypeError, match="the model is one of a MuData"):
        tosica.tl.attribute(rna, cite_model, genes=True)


def test_a_layer_cannot_hold_genes_of_raw_alone(model, query):
    few = query[:, :50].copy()
    few.raw = query
    model.annotate(few, use_raw=True)
    with pytest.raises(ValueError, match=r"writes to adata\.layers, which lacks"):
        tosica.tl.attribute(few, model, genes=True, use_raw=True)
    whole = few.raw.to_adata()
    tosica.tl.attribute(whole, model, genes=True)
    assert whole.layers["tosica_attribution"].shape == whole.shape


def test_genes_that_the_model_lacks_need_no_place_in_the_layer(model, query):
    more = ad.AnnData(query.X, query.obs, query.var).copy()
    more.var_names = [f"{name}-more" for name in query.var_names]
    cells = query.copy()
    cells.raw = ad.concat([query, more], axis=1, merge="first")
    model.annotate(cells, use_raw=True)
    tosica.tl.attribute(cells, model, genes=True, use_raw=True)
    assert cells.layers["tosica_attribution"].any()


def test_no_reason_from_what_was_not_measured(cite_model, cite_query):
    """RNA alone, explained by a model of RNA and antibodies."""
    rna = cite_query["rna"].copy()
    cite_model.annotate(rna)
    tosica.tl.attribute(rna, cite_model, cells=True, n_cells=10_000, n_steps=EXACT)
    record = rna.uns[KEY]
    for name in ("genes", "expression", "effect_size", "shared"):
        assert set(record[name].index) == {f"rna:{gene}" for gene in rna.var_names}
    explained = " ".join(tosica.get.explain(rna)["genes"])
    assert "rna:" in explained
    assert "protein:" not in explained
    # The genes alone sum to the whole difference.
    batch = _batch(cite_model, rna)
    module = cite_model.module
    baseline = torch.where(batch.measured, module.baseline, 0)[None]
    with torch.no_grad():
        scores = [
            module.network_logits(x, batch.modalities)
            + module.linear(x, batch.measured)
            for x in (batch.x, baseline)
        ]
    difference = scores[0] - scores[1]
    difference = difference - difference.mean(1, keepdim=True)
    for code, label in enumerate(cite_model.labels):
        rows = np.array(rna.obs["tosica_prediction"] == label)
        assert record["genes"][label].sum() == pytest.approx(
            float(difference[rows, code].mean()), abs=1e-3
        )


def test_what_sets_add_in_groups_is_the_mean_of_their_cells(model, query):
    """So that dots and violins draw one quantity."""
    tosica.tl.attribute(query, model, cells=True, n_steps=8)
    record = query.uns[KEY]
    of_cells = pd.DataFrame(query.obsm[f"X_{KEY}"], columns=record["gene_sets"])
    groups = np.asarray(query.obs["tosica_prediction"]).astype(str)
    means = of_cells.groupby(groups).mean().T.loc[record["contribution"].index]
    means.columns = [name.replace("/", "|") for name in means]
    assert len(means)
    np.testing.assert_allclose(
        record["contribution"], means[record["contribution"].columns], atol=1e-4
    )


def test_a_set_adds_nothing_by_its_absence(cite_model, cite_query):
    """Genes of type a, in cells of other types that express none of them."""
    rna = cite_query["rna"]
    is_a = np.array(cite_query.obs["kind"] == "a")
    of_alpha = rna.var_names.isin(TOY_SETS["alpha"])
    rna.X = sp.csr_matrix(np.where(np.outer(~is_a, of_alpha), 0, rna.X.toarray()))
    cite_model.annotate(cite_query)
    tosica.tl.attribute(cite_query, cite_model, cells=True, n_steps=8)
    position = list(cite_query.uns[KEY]["gene_sets"]).index("rna:alpha")
    added = cite_query.obsm[f"X_{KEY}"][:, position]
    assert added[is_a].mean() > 1
    assert (added[~is_a] == 0).all()


# -- wrong input ------------------------------------------------------------------------------


def test_two_labels_that_differ_by_one_gene():
    toy = make_toy()[::2].copy()
    raised = np.arange(toy.n_obs) % 2 == 0
    toy.X = toy.X.toarray()
    toy.X[raised, 5] += 20
    # A label without cells stays without a table.
    toy.obs["kind"] = pd.Categorical(
        np.where(raised, "raised", "other"), categories=["raised", "other", "none"]
    )
    tosica.pp.build_mask(toy, TOY_SETS)
    model = train_toy(toy, plan_kwargs=FAST_PLAN, check_labels=False)
    model.annotate(toy)
    tosica.tl.attribute(toy, model, "kind", target="raised")
    assert list(toy.uns[KEY]["groups"]) == ["raised", "other"]
    assert tosica.get.genes_df(toy, "raised")["gene"].iloc[0] == toy.var_names[5]
    assert tosica.get.gene_sets_df(toy, "raised").empty


def test_cells_that_were_not_annotated(model, query):
    columns = query.obs.columns[query.obs.columns.str.startswith("tosica")]
    bare = ad.AnnData(query.X, query.obs.drop(columns=columns), query.var)
    sentence = "adata has no .obsm['X_tosica']: run model.annotate(adata, key_added='tosica') first."
    with pytest.raises(KeyError) as refused:
        tosica.tl.attribute(bare, model)
    assert refused.value.args == (sentence,)


def test_cells_and_models_that_do_not_fit(model, query, toy):
    toy = toy.copy()
    tosica.TOSICA.setup_anndata(toy, labels_key="kind")
    with pytest.raises(RuntimeError, match="The model is not trained"):
        tosica.tl.attribute(query, tosica.TOSICA(toy))
    with pytest.raises(ValueError, match="A single cell is its own mean"):
        tosica.tl.attribute(query[:1].copy(), model, baseline="mean")
    renamed, other = query.copy(), query.copy()
    renamed.obs["tosica_prediction"] = (
        renamed.obs["tosica_prediction"].astype(str).replace("CD19+ B", "B cell")
    )
    other.uns["tosica"]["model"] = "another"
    for cells, message in (
        (renamed, "'B cell', which is no label of the model"),
        (other, "pass the model that annot"),
    ):
        with pytest.raises(ValueError, match=message):
            tosica.tl.attribute(cells, model)
        assert KEY not in cells.uns


# -- reasons belong to the label ---------------------------------------------------------------


def _first_sets(cells):
    """First gene set with evidence of each label."""
    table = tosica.get.gene_sets_df(cells)
    return table.groupby("group", observed=True)["gene_set"].first().to_dict()


def _moved(query, model):
    """The same cells after a response of 20 genes in all of them, annotated."""
    moved = query.copy()
    x = moved.X.toarray()
    quiet = np.argsort((x > 0).mean(0))[-220:-200]
    x[:, quiet] += 1.5
    moved.X = x
    model.annotate(moved)
    return moved, set(moved.var_names[quiet])


def test_what_all_cells_share_is_no_reason(model, query):
    moved, response = _moved(query, model)
    tosica.tl.attribute(query, model)
    tosica.tl.attribute(moved, model)
    assert "shift" in moved.uns[KEY]
    before = _first_sets(query)
    after = _first_sets(moved)
    agree = [before[label] == after.get(label) for label in before]
    assert np.mean(agree) >= 0.8
    added = tosica.get.genes_df(moved).assign(
        is_response=lambda table: table["gene"].isin(response)
    )
    of_response = added[added["is_response"]]["contribution"].abs().sum()
    tosica.tl.attribute(moved, model, baseline="reference")
    unshifted = tosica.get.genes_df(moved)
    unshifted = unshifted[unshifted["gene"].isin(response)]["contribution"].abs().sum()
    assert of_response < unshifted / 3


def test_reasons_do_not_depend_on_the_other_cells(model, query):
    tosica.tl.attribute(query, model)
    together = _first_sets(query)
    for label in together:
        alone = query[query.obs["tosica_prediction"] == label].copy()
        tosica.tl.attribute(alone, model)
        assert _first_sets(alone)[label] == together[label]


def test_a_gene_counts_as_far_as_reference_and_query_have_it(model, query):
    tosica.tl.attribute(query, model)
    record = query.uns[KEY]
    shared = record["shared"].to_numpy()
    statistics = model.training_.novelty_statistics
    codes = [model.labels.index(group) for group in record["groups"]]
    of_label = statistics.means[statistics.positions(np.array(codes))]
    excess = (of_label - statistics.means.mean(0)).T
    of_group = record["expression"].to_numpy()
    counted = np.where(of_group > 0, np.minimum(excess, 2 * of_group), 0).clip(min=0)
    np.testing.assert_allclose(shared * of_group, counted, atol=1e-4)


def test_renamed_keys(model, query):
    query.obsm["X_mine"] = query.obsm.pop("X_tosica")
    query.uns["mine"] = query.uns.pop("tosica")
    query.obs["mine_prediction"] = query.obs.pop("tosica_prediction")
    with pytest.raises(KeyError, match="pass key='mine', which is there"):
        tosica.tl.attribute(query, model)
    tosica.tl.attribute(query, model, key="mine", n_steps=8)
    assert len(tosica.get.explain(query, key="mine_attribution"))


def test_contributions_of_an_earlier_call_do_not_stay(model, query):
    query = query[:9].copy()
    tosica.tl.attribute(query, model, cells=True, genes=True, n_steps=8)
    tosica.tl.attribute(query, model, target="CD19+ B", n_steps=8)
    assert f"X_{KEY}" not in query.obsm
    assert KEY not in query.layers


def test_a_model_that_does_not_know_its_reference(network_alone, monkeypatch):
    """As one that the original's code trained."""
    model, query = network_alone
    # setattr would delete the buffer afterwards, of a model that other tests share.
    buffers = model.module._buffers
    monkeypatch.setitem(buffers, "baseline", torch.zeros_like(buffers["baseline"]))
    model.annotate(query)
    with pytest.raises(ValueError, match="pass baseline='mean'"):
        tosica.tl.attribute(query, model)
    assert KEY not in query.uns
    tosica.tl.attribute(query, model, baseline="mean", n_steps=24)


def test_results_of_another_model(model, query):
    tosica.tl.attribute(query, model, n_steps=8)
    query.uns["tosica"]["model"] = "another"
    for read in (tosica.get.genes_df, tosica.get.gene_sets_df, tosica.get.explain):
        with pytest.raises(ValueError, match="another model than the annotation"):
            read(query)
    query.uns["mine"] = query.uns[KEY]
    with pytest.raises(ValueError, match="another model than the annotation"):
        tosica.get.explain(query, key="mine")
