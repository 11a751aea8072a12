"""The test of gene sets on contributions of genes: its formula, its error rate, what it lists."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import tosica
from tosica.tl._gene_set_evidence import gene_set_statistics, gene_sets_with_evidence

N_GENES = 500


def _collection(rng, n_sets=200, sizes=(5, 60)):
    columns = [rng.permutation(N_GENES)[: rng.integers(*sizes)] for _ in range(n_sets)]
    rows = np.concatenate(columns)
    indptr = np.cumsum([0, *map(len, columns)])
    return sp.csc_matrix((np.ones(len(rows)), rows, indptr), shape=(N_GENES, n_sets))


def _contributions(rng):
    """Most genes add nothing, some a little, a few much, as in real models."""
    return np.where(rng.random(N_GENES) < 0.6, 0, rng.lognormal(-3, 1.5, N_GENES))


def test_z_is_that_of_random_draws():
    rng = np.random.default_rng(0)
    added, effects, members = (
        _contributions(rng),
        rng.gamma(2, size=N_GENES),
        _collection(rng, 5),
    )
    statistics = gene_set_statistics(added, effects, members)
    root = effects * np.log1p(added / np.median(added[added > 0]))
    for j in range(members.shape[1]):
        genes = members[:, j].indices
        without_largest = root[genes].sum() - root[genes].max()
        draws = np.array(
            [rng.permutation(root)[: len(genes) - 1].sum() for _ in range(4000)]
        )
        assert statistics["z"][j] == pytest.approx(
            (without_largest - draws.mean()) / draws.std(), abs=0.15
        )
        assert statistics["contribution"][j] == pytest.approx(added[genes].sum())
        assert statistics["n_genes"][j] == len(genes)


def test_sets_of_random_genes_have_no_evidence():
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(60):
        statistics = gene_set_statistics(
            _contributions(rng), rng.gamma(1, size=N_GENES), _collection(rng)
        )
        wrong += bool((statistics["pval_adj"] <= 0.05).any())
    assert wrong <= 6


def test_one_strong_gene_is_no_evidence_and_several_are():
    rng = np.random.default_rng(2)
    added = _contributions(rng)
    members = _collection(rng).tolil()
    members[:, :4] = 0
    strongest = np.argsort(-added)[:8]
    members[np.argsort(-added)[25:100], 3] = 1
    members[strongest, 0] = 1
    members[[strongest[0], *np.flatnonzero(added == 0)[:9]], 1] = 1
    members[strongest[0], 2] = 1
    statistics = gene_set_statistics(added, np.ones(N_GENES), sp.csc_matrix(members))
    assert statistics["pval_adj"][0] < 1e-3
    # Nine genes that add nothing beside the strongest, the strongest alone, and many that are a little higher.
    assert (statistics["pval_adj"][1:4] > 0.5).all()
    assert statistics["z"][3] > statistics["z"][4:].max()


def test_one_gene_that_adds_alone_tells_no_set():
    """Its largest z is the same in each permutation, so that no null can be fitted."""
    added = np.zeros(N_GENES)
    added[0] = 1.0
    members = sp.csc_matrix(np.ones((N_GENES, 1)))
    statistics = gene_set_statistics(added, np.ones(N_GENES), members)
    assert (statistics["pval_adj"] == 1).all()


def test_similar_sets_are_named():
    added = np.zeros(N_GENES)
    added[:12] = np.linspace(2, 1, 12)
    sets = {
        "all": range(12),
        "most": range(10),
        "other": [10, 11, 300, 301],
        "own": range(200, 215),
    }
    columns = [np.array(list(genes)) for genes in sets.values()]
    indptr = np.cumsum([0, *map(len, columns)])
    members = sp.csc_matrix(
        (np.ones(indptr[-1]), np.concatenate(columns), indptr), shape=(N_GENES, 4)
    )
    names = np.array(list(sets), dtype=object)
    genes = np.array([f"G{i}" for i in range(N_GENES)], dtype=object)
    statistics = gene_set_statistics(added, np.ones(N_GENES), members)
    table = gene_sets_with_evidence("B", added, members, statistics, names, genes)
    assert list(table["gene_set"]) == ["all", "most", "other"]
    assert list(table["similar_to"]) == ["", "all", "all"]
    assert table["genes"].iloc[2] == "G10, G11"


def test_no_other_group_has_more_of_a_further_set(model, query):
    tosica.tl.attribute(query, model)
    record = query.uns["tosica_attribution"]
    group, z = "CD19+ B", record["z"]
    first, second = record["evidence"].groupby("group")["gene_set"].get_group(group)[:2]
    record["evidence"]["similar_to"] = ""
    for highest, listed in ((group, True), ("Dendritic", False)):
        z.loc[[first, second]] = 0.0
        z.loc[[first, second], highest] = 99.0
        assert tosica.get.gene_sets_df(query, group)["gene_set"].iloc[0] == first
        assert (
            second in set(tosica.get.gene_sets_df(query, group)["gene_set"])
        ) is listed


def test_a_set_that_is_no_token_is_found(toy, train, fast_plan):
    toy = toy.copy()
    sets = {
        f"set {i}": list(toy.var_names[[i, (i + 7) % 30, (i + 13) % 30]])
        for i in range(10)
    }
    sets["genes of a"] = list(toy.var_names[:8])
    tosica.pp.build_mask(toy, sets, min_genes=3, max_jaccard=1)
    tosica.TOSICA.setup_anndata(toy, labels_key="kind")
    model = tosica.TOSICA(toy, embed_dim=16, max_gene_sets=3)
    model.train(
        max_epochs=2,
        accelerator="cpu",
        plan_kwargs=fast_plan,
    )
    assert len(model.modalities[0].gene_sets()[0]) == 11
    model.annotate(toy)
    tosica.tl.attribute(toy, model)
    assert tosica.get.gene_sets_df(toy, "a")["gene_set"].iloc[0] == "genes of a"
    assert not set(tosica.get.gene_sets_df(toy, ["b", "c"])["gene_set"]) & {
        "genes of a"
    }


def test_where_no_set_has_evidence_genes_remain(model, query):
    tosica.tl.attribute(query, model)
    table = tosica.get.explain(query)
    evidence = tosica.get.gene_sets_df(query)
    assert list(table.index) == list(query.uns["tosica_attribution"]["groups"])
    assert (table["genes"].str.len() > 0).all()
    without = table.index.difference(evidence["group"].astype(str))
    assert (table.loc[without, "gene_set"] == "").all()
    assert table.loc[without, "pval_adj"].isna().all()
    listed = tosica.get.gene_sets_df(query, similar=True)
    pairs = set(map(tuple, evidence[["group", "gene_set"]].to_numpy()))
    similar = listed[
        [
            pair in pairs
            for pair in zip(listed["group"], listed["similar_to"], strict=True)
        ]
    ]
    assert len(similar) == evidence["n_similar"].sum() > 0
    assert isinstance(listed, pd.DataFrame)
