"""RNA and antibodies in one model: set up, trained, asked about what is there and what is not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import mudata as md
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import scvi
import torch
from anndata import AnnData

import tosica

if TYPE_CHECKING:
    from collections.abc import Callable

GENES = [f"G{i}" for i in range(30)]
# Two names are a gene's and an antibody's.
PROTEINS = ["G0", "G8", *(f"P{i}" for i in range(7))]
SETS = {"alpha": GENES[:8], "beta": GENES[8:16], "gamma": GENES[16:24], "mixed": GENES[4:20:3]}
EASY = {"lr": 1e-2, "warmup": 0.1, "gene_dropout": 0.1, "token_dropout": 0.0}


def make_cite(n_obs: int = 90, seed: int = 0) -> md.MuData:
    """Counts of three types in both modalities: each has genes and antibodies of its own."""
    rng = np.random.default_rng(seed)
    kind = np.arange(n_obs) % 3
    rna = np.full((n_obs, len(GENES)), 0.7)
    protein = np.full((n_obs, len(PROTEINS)), 3.0)
    for i in range(3):
        rna[kind == i, 8 * i : 8 * (i + 1)] = 4
        protein[kind == i, 3 * i : 3 * (i + 1)] = 60
    parts = {}
    for name, rate, names in (("rna", rna, GENES), ("protein", protein, PROTEINS)):
        adata = AnnData(sp.csr_matrix(rng.poisson(rate).astype(np.float32)))
        adata.obs_names = [f"cell{i}" for i in range(n_obs)]
        adata.var_names = names
        parts[name] = adata
    mdata = md.MuData(parts)
    mdata.obs["kind"] = pd.Categorical(np.array(["a", "b", "c"])[kind])
    mdata.obs["donor"] = pd.Categorical(np.array(["d1", "d2"])[np.arange(n_obs) // 3 % 2])
    return mdata


def build(mdata: md.MuData, **kwargs) -> None:
    tosica.pp.build_mask(mdata, SETS, **kwargs)


def fit(mdata: md.MuData, setup: dict | None = None, **train) -> tosica.TOSICA:
    tosica.TOSICA.setup_mudata(mdata, "kind", **(setup or {}))
    scvi.settings.seed = 0
    model = tosica.TOSICA(mdata, embed_dim=16, n_heads=2)
    settings = {"max_epochs": 20, "batch_size": 16, "plan_kwargs": EASY} | train
    model.train(accelerator="cpu", enable_progress_bar=False, **settings)
    return model


@pytest.fixture(scope="module")
def _trained() -> tosica.TOSICA:
    mdata = make_cite()
    build(mdata)
    return fit(mdata, {"batch_key": "donor"})


@pytest.fixture
def model(_trained: tosica.TOSICA) -> tosica.TOSICA:
    """A model of both modalities, shared by all tests: not to be changed."""
    return _trained


@pytest.fixture
def mdata() -> md.MuData:
    """A reference with masks."""
    made = make_cite()
    build(made)
    return made


@pytest.fixture
def query() -> md.MuData:
    """Other cells of the same types."""
    return make_cite(60, seed=1)


# --------------------------------------------------------------------------- labels


@pytest.mark.parametrize("part", ["both", "rna", "protein"])
def test_labels_cells_seen_in_both_or_in_one(model, query, part):
    truth = query.obs["kind"].astype(str).to_numpy()
    assert np.mean(model.predict(query if part == "both" else query[part]) == truth) > 0.9


def test_an_anndata_is_a_mudata_of_one_modality(model, query):
    for name in ("rna", "protein"):
        alone = md.MuData({name: query[name].copy()})
        left, right = model.predict(alone, soft=True), model.predict(query[name], soft=True)
        np.testing.assert_allclose(left, right, atol=1e-6)


def test_training_starts_from_the_network_of_rna():
    mdata = make_cite()
    network = pd.DataFrame(
        [(name, gene, 2.0) for name, genes in SETS.items() for gene in genes], columns=["source", "target", "weight"]
    )
    tosica.pp.build_mask(mdata, network)
    tosica.TOSICA.setup_mudata(mdata, "kind")
    model = tosica.TOSICA(mdata, embed_dim=16)
    before = model.get_gene_weights()
    model.start_from_network()
    after = model.get_gene_weights()
    # Equal weights make the genes of a set equal; the others stay as they were.
    of_alpha = after.loc[[f"rna:{gene}" for gene in SETS["alpha"]], "rna:alpha"]
    np.testing.assert_allclose(of_alpha, of_alpha.iloc[0], rtol=1e-5)
    others = [name for name in after if name.startswith("protein:") or "module" in name]
    pd.testing.assert_frame_equal(after[others], before[others])
    build(mdata)
    tosica.TOSICA.setup_mudata(mdata, "kind")
    with pytest.raises(KeyError, match="was built from gene sets without weights"):
        tosica.TOSICA(mdata, embed_dim=16).start_from_network()


@pytest.mark.parametrize("dropout", [0.5, 2 / 3, 1.0])
def test_modality_dropout_shows_each_cell_in_every_choice_of_modalities(model, dropout):
    module = model.module
    x = torch.rand(5, 39, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        views = module.inference(x, modality_dropout=dropout)
        blocks = views["latent"].split(5)
        for choice, block in zip(module.modality_choices, blocks, strict=True):
            torch.testing.assert_close(block, module.inference(x, modalities=choice)["latent"])
    assert module.modality_choices == [(0,), (1,), (0, 1)]
    counts = views["weight"].view(3, 5)
    torch.testing.assert_close(counts.sum(0), torch.ones(5))
    torch.testing.assert_close(counts[2], torch.full((5,), 1 - dropout))
    torch.testing.assert_close(counts[0], counts[1])


@pytest.mark.parametrize("modality", ["rna", "protein", None])
def test_label_sets_for_what_the_query_has(model, query, modality):
    held_out = model.training_.held_out_probabilities
    assert held_out.shape == (3, len(model.validation_indices))
    seen = query if modality is None else query[modality]
    coverage = 1 - 1.5 / (held_out.shape[1] + 1)
    sets = model.predict_set(seen, coverage=coverage, allow_empty=True)
    row = {"rna": 0, "protein": 1, None: 2}[modality]
    expected = model.predict(seen, soft=True) >= held_out[row].min()
    pd.testing.assert_frame_equal(sets, expected, check_names=False)


def test_the_loss_counts_each_choice_as_it_should(model):
    module = model.module
    x = torch.rand(6, 39, generator=torch.Generator().manual_seed(0))
    tensors = {"X": x, "labels": torch.zeros(6, 1)}
    with torch.inference_mode():
        each = []
        for choice in module.modality_choices:
            found = module.inference(x, modalities=choice)
            each.append(module.loss(tensors, found, module.generative(**found)).loss)
        found = module.inference(x, modality_dropout=0.5)
        loss = module.loss(tensors, found, module.generative(found["latent"])).loss
    torch.testing.assert_close(loss, 0.25 * each[0] + 0.25 * each[1] + 0.5 * each[2])


def test_a_step_learns_from_each_modality_alone(mdata):
    """The gradient of cells that are seen in antibodies alone does not reach RNA."""
    module = fit(mdata, max_epochs=1).module.train()
    x = torch.rand(4, 39)
    module.zero_grad()
    of_protein = module.inference(x, modality_dropout=0.5)["latent"][4:8]
    of_protein.sum().backward()
    embedding = module.embedding
    owner = module.token_modality.repeat_interleave(embedding.indptr.diff())
    slopes = [torch.zeros_like(w) if w.grad is None else w.grad for w in embedding.weights]
    of_pairs = embedding.of_pairs(slopes)
    assert (of_pairs[owner == 0] == 0).all()
    assert (of_pairs[owner == 1] != 0).any()


def test_one_modality_gives_what_setup_anndata_gives(mdata, query):
    rna = mdata["rna"].copy()
    rna.obs["kind"] = mdata.obs["kind"]
    tosica.TOSICA.setup_anndata(rna, "kind")
    scvi.settings.seed = 0
    plain = tosica.TOSICA(rna, embed_dim=16, n_heads=2, linear=False)
    train = {"max_epochs": 3, "batch_size": 16}
    plain.train(accelerator="cpu", enable_progress_bar=False, **train)
    alone = md.MuData({"rna": mdata["rna"].copy()})
    alone.obs["kind"] = mdata.obs["kind"]
    joint = fit(alone, {"modalities": {"rna": "rna"}}, plan_kwargs=None, **train)
    one = plain.predict(query["rna"], soft=True)
    np.testing.assert_allclose(joint.predict(query["rna"], soft=True), one, atol=1e-5)
    np.testing.assert_allclose(joint.predict(query, soft=True), one, atol=1e-5)


# --------------------------------------------------------------------------- exactness


def _shuffled_genes(mdata: md.MuData) -> md.MuData:
    return md.MuData({k: a[:, ::-1].copy() for k, a in mdata.mod.items()})


def _dense(mdata: md.MuData) -> md.MuData:
    return md.MuData({k: AnnData(a.X.toarray(), a.obs, a.var) for k, a in mdata.mod.items()})


def _other_order(mdata: md.MuData) -> md.MuData:
    return md.MuData({"protein": mdata["protein"].copy(), "rna": mdata["rna"].copy()})


def _cells_in_another_order(mdata: md.MuData) -> md.MuData:
    return md.MuData({"rna": mdata["rna"].copy(), "protein": mdata["protein"][::-1].copy()})


@pytest.mark.parametrize("change", [_shuffled_genes, _dense, _other_order, _cells_in_another_order])
def test_how_the_query_is_kept_changes_nothing(model, query, change):
    expected, found = model.get_attention(query), model.get_attention(change(query))
    pd.testing.assert_frame_equal(found.loc[expected.index], expected, atol=1e-5)


def test_batch_size_changes_nothing(model, query):
    expected = model.get_attention(query)
    for size in (1, 7, 60):
        found = model.get_attention(query, batch_size=size)
        pd.testing.assert_frame_equal(found, expected, atol=1e-5)


def test_the_order_of_roles_is_no_part_of_the_model(mdata):
    names = []
    for roles in ({"rna": "rna", "protein": "protein"}, {"protein": "protein", "rna": "rna"}):
        tosica.TOSICA.setup_mudata(mdata, "kind", roles)
        names.append(tosica.TOSICA(mdata, embed_dim=16).gene_sets)
    assert names[0] == names[1]


def test_how_the_reference_is_kept_changes_nothing(mdata, query):
    changed = _other_order(_dense(mdata))
    changed.obs["kind"] = mdata.obs["kind"]
    build(changed)
    expected = fit(mdata, max_epochs=2).predict(query, soft=True)
    found = fit(changed, max_epochs=2).predict(query, soft=True)
    pd.testing.assert_frame_equal(found, expected, atol=1e-5)


# --------------------------------------------------------------------------- what is written


def test_annotate_writes_to_the_mudata_and_names_modalities(model, query):
    modalities_before = {name: (list(a.obs), list(a.uns)) for name, a in query.mod.items()}
    assert model.annotate(query) is None
    record = query.uns["tosica"]
    assert list(record["gene_sets"]) == model.gene_sets
    assert list(record["gene_sets"][:4]) == [f"rna:{name}" for name in SETS]
    # The genes that none of them holds.
    kind, leading = record["gene_sets"][4].rsplit(": ", 1)
    assert kind == "rna:module"
    assert set(leading.split(", ")) < set(GENES[24:])
    assert list(record["gene_sets"][5:]) == [f"protein:{name}" for name in PROTEINS]
    assert list(record["modalities"]) == ["rna"] * 5 + ["protein"] * 9
    assert query.obsm["X_tosica"].shape == (60, 14)
    assert query.obs["tosica_prediction"].dtype == "category"
    assert query.obs["tosica_probability"].dtype == np.float32
    assert {name: (list(a.obs), list(a.uns)) for name, a in query.mod.items()} == modalities_before


def test_a_missing_modality_has_no_column(model, query):
    rna = query["rna"].copy()
    model.annotate(rna)
    assert list(rna.uns["tosica"]["gene_sets"]) == model.gene_sets[:5]
    assert rna.obsm["X_tosica"].shape == (60, 5)
    attention = model.get_attention(query["protein"], unannotated=True)
    assert list(attention) == [f"protein:{name}" for name in PROTEINS]
    # What is left of the row is the class token's attention to itself.
    assert (attention.sum(axis=1) < 1).all()
    assert (attention.sum(axis=1) > 0.2).all()


def test_attention_is_a_share(mdata, query):
    build(mdata, n_unannotated=1)
    model = fit(mdata, max_epochs=1)
    # Where a token has every gene, no module is needed.
    assert not any("module" in name for name in model.gene_sets)
    attention = model.get_attention(query, unannotated=True)
    assert list(attention)[-1] == "rna:unannotated_1"
    assert (attention.sum(axis=1) < 1).all()
    alone = model.get_attention(query["protein"])
    np.testing.assert_allclose(attention[list(alone)], alone / 2, atol=1e-6)


def test_written_and_read(model, query, tmp_path):
    model.annotate(query, probabilities=True)
    query.write(tmp_path / "query.h5mu")
    back = md.read_h5mu(tmp_path / "query.h5mu")
    np.testing.assert_array_equal(back.obsm["X_tosica"], query.obsm["X_tosica"])
    pd.testing.assert_series_equal(back.obs["tosica_prediction"], query.obs["tosica_prediction"], check_names=False)
    assert list(back.uns["tosica"]["modalities"]) == list(query.uns["tosica"]["modalities"])
    means = tosica.get.mean_attention(back, "tosica_prediction")
    assert means.shape == (3, 14)


def test_a_copy_leaves_the_query_alone(model, query):
    changed = model.annotate(query, copy=True)
    assert "tosica_prediction" in changed.obs
    assert "tosica_prediction" not in query.obs
    assert "tosica" not in query.uns


def test_tools_and_readers_take_the_mudata(model, query):
    model.annotate(query)
    tosica.tl.rank_gene_sets(query, "tosica_prediction")
    best = tosica.get.rank_gene_sets_df(query, group="a")
    assert set(best["gene_set"]) == set(model.gene_sets)
    by_token = tosica.get.attention(query)
    assert list(by_token.var["modality"]) == ["rna"] * 5 + ["protein"] * 9
    assert not set(by_token.obsm) & {"rna", "protein"}
    axes = tosica.pl.gene_set_heatmap(query, "tosica_prediction", show=False)
    shown = [text.get_text() for text in axes["heatmap"].get_yticklabels()]
    assert any(name.startswith("protein:") for name in shown)


def test_weights_stay_within_a_modality(model):
    weights = model.get_gene_weights()
    assert weights.shape == (39, 14)
    rna = weights.index.str.startswith("rna:")
    of_rna = weights.columns.str.startswith("rna:")
    assert (weights.loc[rna, ~of_rna] == 0).all(axis=None)
    assert (weights.loc[~rna, of_rna] == 0).all(axis=None)
    assert weights.loc["protein:P0", "protein:P0"] > 0


def test_repr_tells_of_each_modality(model):
    text = repr(model)
    assert "rna, gene sets: 4 of dict (unknown), and 1 modules\n" in text
    assert "protein, gene sets: 9 of single features (unknown)\n" in text
    assert "protein, genes: 9, read as counts of antibodies" in text


# --------------------------------------------------------------------------- saving


def test_loaded_without_data(model, query, tmp_path):
    model.save(tmp_path / "model")
    back = tosica.TOSICA.load(tmp_path / "model")
    assert back.fingerprint == model.fingerprint
    for data in (query, query["rna"], query["protein"]):
        pd.testing.assert_frame_equal(back.predict(data, soft=True), model.predict(data, soft=True), atol=1e-6)
    assert list(back.get_var_names()["protein"]) == PROTEINS
    assert len(back.get_var_names(legacy_mudata_format=True)) == 39


def test_each_choice_of_modalities_is_calibrated(model):
    assert model.module.temperature.shape == (3,)
    assert (model.module.temperature != 1).all()


# --------------------------------------------------------------------------- normalisation


def _clr(counts: np.ndarray) -> np.ndarray:
    logs = np.log1p(counts)
    return (logs - logs.mean(1, keepdims=True)).astype(np.float32)


def test_antibodies_normalised_by_clr_are_what_counts_become(model, query, caplog):
    expected = model.predict(query, soft=True)
    query["protein"].X = _clr(query["protein"].X.toarray())
    with caplog.at_level(logging.INFO, "tosica"):
        found = model.predict(query, soft=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert "mdata['protein'].X holds normalised antibodies" in caplog.text


def test_what_is_normalised_is_detected_and_logged(mdata, caplog):
    mdata["protein"].X = _clr(mdata["protein"].X.toarray())
    with caplog.at_level(logging.INFO, "tosica"):
        tosica.TOSICA.setup_mudata(mdata, "kind")
    assert "modality 'rna' (rna) holds counts; taken as log1p of counts per 10 000" in caplog.text
    assert "modality 'protein' (protein) holds normalised antibodies; used without further" in caplog.text


def test_antibodies_normalised_in_another_way_warn(model, query):
    query["protein"].X = np.log1p(query["protein"].X.toarray())
    with pytest.warns(UserWarning, match="mean in a cell is not zero, so they were not normalised"):
        model.predict(query)


def test_counts_for_a_reference_normalised_in_an_unknown_way(mdata, query):
    mdata["protein"].X = np.log1p(mdata["protein"].X.toarray())
    model = fit(mdata, max_epochs=1)
    with pytest.raises(ValueError, match="in a way that cannot be told from its values: normalise"):
        model.predict(query)


def test_an_antibody_that_the_query_lacks_is_no_part_of_the_mean(model, query):
    part = query["protein"][:, :8].copy()
    with pytest.warns(UserWarning, match="only 8 of the model's 9 antibodies"):
        found = model.predict(part, soft=True)
    part.X = _clr(part.X.toarray())
    with pytest.warns(UserWarning, match="only 8 of the model's 9 antibodies"):
        np.testing.assert_allclose(model.predict(part, soft=True), found, atol=1e-5)


def test_layers(mdata, query):
    for data in (mdata, query):
        data["rna"].layers["counts"] = data["rna"].X.copy()
    expected = fit(mdata.copy(), max_epochs=1).predict(query, soft=True)
    for data in (mdata, query):
        data["rna"].X = data["rna"].X.toarray() - 1
    model = fit(mdata, {"layers": {"rna": "counts"}}, max_epochs=1)
    np.testing.assert_allclose(model.predict(query, soft=True), expected, atol=1e-5)
    found = model.predict(query, layer={"rna": "counts"}, soft=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)


# --------------------------------------------------------------------------- where labels are


def test_labels_in_one_modality_are_found(query, caplog):
    mdata = make_cite()
    kinds, cells = mdata.obs["kind"], mdata["protein"].obs_names
    protein = mdata["protein"][::-1].copy()
    protein.obs["kind"] = kinds.loc[protein.obs_names]
    mixed = md.MuData({"rna": mdata["rna"].copy(), "protein": protein})
    mixed.obs = mixed.obs[[]]
    assert list(mixed["protein"].obs_names) == list(cells[::-1])
    build(mixed)
    with caplog.at_level(logging.INFO, "tosica"):
        model = fit(mixed)
    assert "found labels_key 'kind' in mdata['protein'].obs" in caplog.text
    truth = query.obs["kind"].astype(str).to_numpy()
    assert np.mean(model.predict(query) == truth) > 0.9


def test_labels_nowhere(mdata):
    with pytest.raises(KeyError, match=r"labels_key 'type' is no column of mdata.obs"):
        tosica.TOSICA.setup_mudata(mdata, "type")


def test_labels_in_two_modalities_that_differ(mdata):
    mdata["rna"].obs["type"] = mdata.obs["kind"].astype(str)
    mdata["protein"].obs["type"] = mdata.obs["kind"].astype(str).to_numpy()[::-1]
    with pytest.raises(ValueError, match=r"and they differ: say which one is meant by mdata.obs"):
        tosica.TOSICA.setup_mudata(mdata, "type")


# --------------------------------------------------------------------------- wrong input


def test_different_cells(mdata):
    parts = {"rna": mdata["rna"][:80].copy(), "protein": mdata["protein"][10:].copy()}
    apart = md.MuData(parts)
    sentence = r"'rna' 80, 'protein' 80, mdata itself 90\): keep the cells that are in all"
    with pytest.raises(ValueError, match=sentence):
        tosica.TOSICA.setup_mudata(apart, "kind")
    # The recipe in the sentence.
    common = apart["rna"].obs_names.intersection(apart["protein"].obs_names)
    kept = apart[common].copy()
    kept.obs["kind"] = mdata.obs["kind"].loc[kept.obs_names]
    tosica.TOSICA.setup_mudata(kept, "kind")


def test_a_query_with_different_cells(model, query):
    apart = md.MuData({"rna": query["rna"][:50].copy(), "protein": query["protein"].copy()})
    with pytest.raises(ValueError, match="'rna' 50, 'protein' 60, mdata itself 60"):
        model.annotate(apart)
    assert "tosica" not in apart.uns


def _same(mdata):
    mdata["protein"].X = np.ones(mdata["protein"].shape, dtype=np.float32)


def _negative(mdata):
    mdata["protein"].X = mdata["protein"].X.toarray() - 2


def _infinite(mdata):
    values = mdata["protein"].X.toarray()
    values[3, 1] = np.inf
    mdata["protein"].X = values


def _linear(mdata):
    mdata["protein"].X = mdata["protein"].X.toarray() * 7.3


def _nothing(mdata):
    mdata["protein"].X = np.zeros(mdata["protein"].shape, dtype=np.float32)


def _in_part(mdata):
    values = mdata["rna"].X.toarray()
    values[:40] = np.log1p(values[:40])
    mdata["rna"].X = values


def _no_mask(mdata):
    del mdata["protein"].varm["tosica_mask"]


def _twice(mdata):
    mdata["protein"].obs_names = ["cell0"] * 90


@pytest.mark.parametrize(
    ("spoil", "error", "sentence"),
    [
        (_same, ValueError, r"mdata\['protein'\].X is the same in every cell"),
        (_negative, ValueError, "neither counts of antibodies nor normalised"),
        (_infinite, ValueError, r"mdata\['protein'\].X holds infinity"),
        (_linear, ValueError, "neither counts of antibodies nor normalised"),
        (_nothing, ValueError, r"mdata\['protein'\].X is (zero everywhere|the same in every cell)"),
        (_in_part, ValueError, r"mdata\['rna'\].X holds values that are neither counts nor"),
        (_no_mask, KeyError, r"no mask in mdata\['protein'\].varm.* tosica.pp.build_mask\(mdata\)"),
        (_twice, ValueError, r"obs_names of mdata\['protein'\] are not unique .*every modality"),
    ],
)
def test_references_that_cannot_work(mdata, spoil, error, sentence):
    spoil(mdata)
    before = list(mdata.obs), list(mdata.uns)
    with pytest.raises(error, match=sentence):
        tosica.TOSICA.setup_mudata(mdata, "kind")
    assert (list(mdata.obs), list(mdata.uns)) == before


@pytest.mark.parametrize(
    ("modalities", "error", "sentence"),
    [
        ({"rna": "gex"}, KeyError, "no modality 'gex'; its modalities: 'rna', 'protein'"),
        ({"adt": "protein"}, ValueError, "roles, .*: 'rna', 'protein', 'atac', .*'adt'"),
        ({"rna": "rna", "protein": "rna"}, ValueError, "must name a modality of its own"),
        ({}, ValueError, "for one or more of the roles"),
        (["rna"], TypeError, "modalities must be a dict of roles and names"),
    ],
)
def test_modalities_that_make_no_sense(mdata, modalities, error, sentence):
    with pytest.raises(error, match=sentence):
        tosica.TOSICA.setup_mudata(mdata, "kind", modalities=modalities)


def test_other_arguments_that_make_no_sense(mdata):
    setup = tosica.TOSICA.setup_mudata
    with pytest.raises(KeyError, match="'gex'"):
        setup(mdata, "kind", layers={"gex": "counts"})
    with pytest.raises(TypeError, match="layers must be a dict"):
        setup(mdata, "kind", layers="counts")
    with pytest.raises(KeyError, match=r"mdata\['rna'\] has no layer 'counts'"):
        setup(mdata, "kind", layers={"rna": "counts"})
    with pytest.raises(TypeError, match="mdata must be a MuData, not AnnData"):
        setup(mdata["rna"], "kind")
    with pytest.raises(ValueError, match="a view of another MuData"):
        setup(mdata[:50], "kind")
    mdata.obs.loc["cell3", "donor"] = np.nan
    with pytest.raises(ValueError, match=r"mdata.obs\['donor'\] has cells without a batch"):
        setup(mdata, "kind", batch_key="donor")


def test_a_query_without_any_modality_of_the_model(model, query):
    other = md.MuData({"gex": query["rna"].copy(), "adt": query["protein"].copy()})
    with pytest.raises(ValueError, match=r"none of the model's modalities \('rna', 'protein'\)"):
        model.predict(other)
    strange = query["rna"].copy()
    strange.var_names = [f"X{i}" for i in range(strange.n_vars)]
    with pytest.raises(ValueError, match="half the genes of no modality of the model"):
        model.predict(strange)


def test_a_modality_under_another_name_is_suspected(model, query):
    other = md.MuData({"rna": query["rna"].copy(), "adt": query["protein"].copy()})
    with pytest.warns(UserWarning, match="no modality 'protein' and one .* not know \\('adt'\\)"):
        model.predict(other)


def test_arguments_of_a_query_that_make_no_sense(model, query):
    with pytest.raises(TypeError, match="a dict of modality and layer, such as"):
        model.predict(query, layer="counts")
    with pytest.raises(TypeError, match="layer must be the name of one layer"):
        model.predict(query["rna"], layer={"rna": "counts"})
    with pytest.raises(KeyError, match="layer names no modality 'gex'"):
        model.predict(query, layer={"gex": "counts"})
    with pytest.raises(ValueError, match="use_raw=True is for an AnnData"):
        model.predict(query, use_raw=True)
    with pytest.raises(TypeError, match="must be an AnnData or a MuData, not a DataFrame"):
        model.predict(pd.DataFrame())


def test_recalibrated_for_every_choice_of_modalities(model, query, tmp_path):
    model.save(tmp_path / "model")
    recalibrated = tosica.TOSICA.load(tmp_path / "model")
    recalibrated.recalibrate(query, "kind")
    assert recalibrated.training_.held_out_probabilities.shape == (3, query.n_obs)
    assert (recalibrated.module.temperature != model.module.temperature).all()
    rna = query["rna"].copy()
    rna.obs["kind"] = query.obs["kind"]
    with pytest.raises(ValueError, match="lack the modality 'protein' of the model"):
        recalibrated.recalibrate(rna, "kind")


def test_a_mudata_for_a_model_of_an_anndata(toy_model, query):
    with pytest.raises(TypeError, match=r"pass one modality of it, as in mdata\['rna'\]"):
        toy_model.predict(query)


# --------------------------------------------------------------------------- real cells


@pytest.mark.slow
@pytest.mark.data
def test_cite_seq(shared: Callable):
    """From the file to labels, on the real cells; few epochs, few genes."""
    mdata = md.read_h5mu(shared / "cite_pbmc.h5mu")
    held = np.zeros(mdata.n_obs, dtype=bool)
    held[np.argsort(mdata.obs["adt_cluster"].astype(str), kind="stable")[::2]] = True
    reference, query = mdata[~held].copy(), mdata[held].copy()
    often = np.asarray((reference["rna"].X > 0).mean(0)).ravel() > 0.2
    reference.mod["rna"] = reference["rna"][:, often].copy()
    reference.update()
    tosica.pp.build_mask(reference, max_gene_sets=20)
    tosica.TOSICA.setup_mudata(reference, "adt_cluster")
    scvi.settings.seed = 0
    model = tosica.TOSICA(reference, embed_dim=16)
    model.train(max_epochs=40, accelerator="cpu", enable_progress_bar=False, plan_kwargs={"lr": 5e-3})
    model.annotate(query)
    truth = query.obs["adt_cluster"].astype(str)
    assert (query.obs["tosica_prediction"].astype(str) == truth).mean() > 0.6
    modules = [name for name in model.gene_sets if name.startswith("rna:module: ")]
    assert modules
    assert query.obsm["X_tosica"].shape[1] == 20 + len(modules) + 49


@pytest.mark.parametrize("explain", ["attribute", "faithfulness", "top_genes", "weight_attention"])
def test_what_explains_one_modality_says_so(model, query, explain):
    model.annotate(query)
    with pytest.raises((TypeError, ValueError), match="MuData"):
        getattr(tosica.tl, explain)(query, model)


def test_novelty_is_for_models_of_an_anndata(model, query):
    model.annotate(query)
    assert "tosica_novelty" not in query.obs


def test_gene_sets_of_both_modalities_are_ranked(model, query):
    model.annotate(query)
    query.obs["half"] = np.where(np.arange(query.n_obs) % 2, "a", "b")
    tosica.tl.rank_gene_sets(query, "half")
    ranked = tosica.get.rank_gene_sets_df(query, "a")["gene_set"]
    assert {name.partition(":")[0] for name in ranked} == {"rna", "protein"}


def test_the_card_of_a_joint_model(model):
    card = model.get_model_card(tissue="blood", license="mit")
    n_held_out = len(model.validation_indices)
    for line in (
        "| Cells | 90 |",
        "| Batches (donor) | 2 |",
        "| Genes of rna | 30, counts |",
        f"| Genes of protein | {len(PROTEINS)}, ",
        "| Gene sets of rna | 4 of ",
    ):
        assert f"\n{line}" in card
    assert f"on {n_held_out} cells that were held out" in card
    assert model.training_.held_out_codes.shape == (2, n_held_out)
