"""Several modalities in one model, antibodies or gene activity beside RNA: from masks to labels."""

import mudata as md
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scvi
import torch
from _cells import (
    GENES,
    PROTEINS,
    TOY_SETS,
    make_cite,
    make_toy,
    train_cite,
)
from anndata import AnnData
from numpy.testing import assert_allclose, assert_array_equal
from pandas.testing import assert_frame_equal, assert_series_equal
from torch.testing import assert_close

import tosica
from tosica import TOSICA

MODALITIES = {"rna": "rna", "atac": "activity"}


def make_multiome(n_obs=90, seed=0):
    """Counts of three types over the same genes, in another order in the second modality."""
    rna, activity = (
        make_toy(n_obs, seed=seed),
        make_toy(n_obs, seed=seed + 7)[:, ::-1].copy(),
    )
    activity.X = activity.X * 2
    mdata = md.MuData({"rna": rna, "activity": activity})
    mdata.obs["kind"] = rna.obs["kind"]
    for modality in (rna, activity):
        del modality.obs["kind"], modality.obs["donor"]
    return mdata


@pytest.fixture
def model(cite_model):
    return cite_model


@pytest.fixture
def mdata(cite):
    return cite


@pytest.fixture
def query(cite_query):
    return cite_query


@pytest.fixture(scope="module")
def multiome_model():
    """A model of RNA and gene activity: not to be changed."""
    mdata = make_multiome()
    tosica.pp.build_mask(mdata, TOY_SETS, modalities=MODALITIES)
    return train_cite(mdata, {"modalities": MODALITIES})


def clr(counts):
    logs = np.log1p(counts.toarray())
    return (logs - logs.mean(1, keepdims=True)).astype(np.float32)


# --------------------------------------------------------------------------- labels


@pytest.mark.parametrize("name", ["cite", "multiome"])
def test_labels_cells_seen_in_both_or_in_one(
    cite_model, multiome_model, cite_query, save_and_load, name
):
    """Also as a model that was loaded without data; an AnnData is a MuData of one modality."""
    model, query = (
        (cite_model, cite_query)
        if name == "cite"
        else (multiome_model, make_multiome(60, 1))
    )
    truth = query.obs["kind"].astype(str).to_numpy()
    loaded = save_and_load(model)
    assert loaded.fingerprint == model.fingerprint
    for data in (
        query,
        *(md.MuData({key: modality.copy()}) for key, modality in query.mod.items()),
    ):
        assert np.mean(model.predict(data) == truth) > 0.9
        soft = model.predict(data, soft=True)
        assert_frame_equal(loaded.predict(data, soft=True), soft, atol=1e-6)
        if name == "cite" and len(data.mod) == 1:
            alone = model.predict(next(iter(data.mod.values())), soft=True)
            assert_allclose(alone, soft, atol=1e-6)
    names = loaded.get_var_names()
    assert list(names) == list(query.mod)
    assert len(loaded.get_var_names(legacy_mudata_format=True)) == sum(
        map(len, names.values())
    )


def test_antibodies_that_were_normalized_since_are_refused(cite):
    TOSICA.setup_mudata(cite, "kind")
    model = TOSICA(cite, embed_dim=16)
    logarithms = np.log1p(cite["protein"].to_df().to_numpy())
    cite["protein"].X = logarithms - logarithms.mean(1, keepdims=True)
    with pytest.raises(
        ValueError, match="holds normalized antibodies now, and counts of antibodies"
    ):
        model.train(max_epochs=1)


def test_labels_of_a_modality_that_was_set_up_again_are_noticed(cite):
    cite["rna"].obs["of_rna"] = cite.obs["kind"].to_numpy()
    TOSICA.setup_mudata(cite, "of_rna")
    model = TOSICA(cite, embed_dim=16)
    cite["rna"].obs["other"] = np.where(cite.obs["kind"] == "a", "x", "y")
    TOSICA.setup_anndata(cite["rna"], labels_key="other")
    with pytest.raises(ValueError, match="set up again"):
        model.train(max_epochs=1)


def test_training_starts_from_the_network_of_rna(cite):
    pairs = [(name, gene, 2.0) for name, genes in TOY_SETS.items() for gene in genes]
    network = pd.DataFrame(pairs, columns=["source", "target", "weight"])
    tosica.pp.build_mask(cite, network)
    TOSICA.setup_mudata(cite, "kind")
    model = TOSICA(cite, embed_dim=16)
    random_weights = model.get_gene_weights()
    model.start_from_network()
    weights = model.get_gene_weights()
    # Equal weights make the genes of a set equal; the others stay as they were.
    of_alpha = weights.loc[[f"rna:{gene}" for gene in TOY_SETS["alpha"]], "rna:alpha"]
    assert_allclose(of_alpha, of_alpha.iloc[0], rtol=1e-5)
    of_protein_or_module = [
        name for name in weights if name.startswith("protein:") or "module" in name
    ]
    assert_frame_equal(
        weights[of_protein_or_module], random_weights[of_protein_or_module]
    )


@pytest.mark.parametrize("dropout", [0.5, 1.0])
def test_modality_dropout_shows_each_cell_in_every_choice_of_modalities(model, dropout):
    module, losses = model.module, []
    x = torch.rand(5, 39, generator=torch.Generator().manual_seed(0))
    tensors = {"X": x, "labels": torch.zeros(5, 1)}
    assert module.modality_choices == [(0,), (1,), (0, 1)]
    with torch.inference_mode():
        views = module.inference(x, modality_dropout=dropout)
        for choice, block in zip(
            module.modality_choices, views["latent"].split(5), strict=True
        ):
            alone = module.inference(x, modalities=choice)
            assert_close(block, alone["latent"])
            losses.append(
                module.loss(tensors, alone, module.generative(alone["latent"])).loss
            )
        loss = module.loss(tensors, views, module.generative(views["latent"])).loss
    counts = views["weight"].view(3, 5)
    assert_close(
        counts,
        torch.tensor([dropout / 2, dropout / 2, 1 - dropout])[:, None].expand(3, 5),
    )
    assert_close(
        loss, dropout / 2 * (losses[0] + losses[1]) + (1 - dropout) * losses[2]
    )


@pytest.mark.parametrize("modality", ["rna", "protein", None])
def test_label_sets_for_what_the_query_has(model, query, modality):
    held_out = model.training_.held_out_probabilities
    assert held_out.shape == (3, len(model.validation_indices))
    seen = query if modality is None else query[modality]
    coverage = 1 - 1.5 / (held_out.shape[1] + 1)
    sets = model.predict_set(seen, coverage=coverage, allow_empty=True)
    row = {"rna": 0, "protein": 1, None: 2}[modality]
    expected = model.predict(seen, soft=True) >= held_out[row].min()
    assert_frame_equal(sets, expected, check_names=False)


def test_one_modality_gives_what_setup_anndata_gives(mdata, query):
    rna = mdata["rna"].copy()
    rna.obs["kind"] = mdata.obs["kind"]
    TOSICA.setup_anndata(rna, "kind")
    scvi.settings.seed = 0
    plain = TOSICA(rna, embed_dim=16, n_heads=2)
    train = {"max_epochs": 3, "batch_size": 16}
    plain.train(accelerator="cpu", **train)
    alone = md.MuData({"rna": mdata["rna"].copy()})
    alone.obs["kind"] = mdata.obs["kind"]
    joint = train_cite(alone, {"modalities": {"rna": "rna"}}, plan_kwargs=None, **train)
    expected = plain.predict(query["rna"], soft=True)
    assert_allclose(joint.predict(query["rna"], soft=True), expected, atol=1e-5)
    assert_allclose(joint.predict(query, soft=True), expected, atol=1e-5)


# --------------------------------------------------------------------------- exactness


CHANGES = {
    "genes": lambda mdata: md.MuData(
        {k: a[:, ::-1].copy() for k, a in mdata.mod.items()}
    ),
    "dense": lambda mdata: md.MuData(
        {k: AnnData(a.X.toarray(), a.obs, a.var) for k, a in mdata.mod.items()}
    ),
    "order": lambda mdata: md.MuData({k: mdata[k].copy() for k in ("protein", "rna")}),
    "cells": lambda mdata: md.MuData(
        {"rna": mdata["rna"].copy(), "protein": mdata["protein"][::-1].copy()}
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_how_the_query_is_kept_changes_nothing(model, query, change):
    expected, actual = (
        model.get_attention(query),
        model.get_attention(CHANGES[change](query), batch_size=7),
    )
    assert_frame_equal(actual.loc[expected.index], expected, atol=1e-5)


def test_three_modalities_in_one_order():
    multiome = make_multiome()
    protein = AnnData(np.random.default_rng(0).poisson(5.0, (90, 3)).astype(np.float32))
    protein.obs_names, protein.var_names = multiome.obs_names, ["P0", "P1", "P2"]
    three = md.MuData(
        {"activity": multiome["activity"], "protein": protein, "rna": multiome["rna"]}
    )
    three.obs["kind"] = multiome.obs["kind"]
    roles = {"atac": "activity", "protein": "protein", "rna": "rna"}
    tosica.pp.build_mask(three, TOY_SETS, modalities=roles, max_gene_sets=3)
    TOSICA.setup_mudata(three, "kind", roles)
    model = TOSICA(three, embed_dim=16, max_gene_sets=2, modules=False)
    owners = [name.partition(":")[0] for name in model.gene_sets]
    assert owners == ["rna"] * 2 + ["protein"] * 3 + ["activity"] * 2
    assert list(model.get_var_names()) == ["rna", "protein", "activity"]


# --------------------------------------------------------------------------- what is written


def test_annotate_writes_to_the_mudata_and_names_modalities(model, query):
    modalities_before = {
        name: (list(a.obs), list(a.uns)) for name, a in query.mod.items()
    }
    assert model.annotate(query) is None
    record = query.uns["tosica"]
    assert list(record["gene_sets"]) == model.gene_sets
    assert list(record["gene_sets"][:4]) == [f"rna:{name}" for name in TOY_SETS]
    # The genes that none of them holds.
    kind, leading = record["gene_sets"][4].rsplit(": ", 1)
    assert kind == "rna:module"
    assert set(leading.split(", ")) < set(GENES[24:])
    assert list(record["gene_sets"][5:]) == [f"protein:{name}" for name in PROTEINS]
    assert list(record["modalities"]) == ["rna"] * 5 + ["protein"] * 9
    assert query.obsm["X_tosica"].shape == (60, 14)
    assert query.obs["tosica_prediction"].dtype == "category"
    assert query.obs["tosica_probability"].dtype == np.float32
    assert {
        name: (list(a.obs), list(a.uns)) for name, a in query.mod.items()
    } == modalities_before
    # Novelty is for models of an AnnData.
    assert "tosica_novelty" not in query.obs


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


def test_written_read_and_ranked(model, query, tmp_path):
    annotated = model.annotate(query, probabilities=True, copy=True)
    assert "tosica_prediction" not in query.obs
    assert "tosica" not in query.uns
    annotated.write(tmp_path / "query.h5mu")
    back = md.read_h5mu(tmp_path / "query.h5mu")
    assert_array_equal(back.obsm["X_tosica"], annotated.obsm["X_tosica"])
    assert_series_equal(
        back.obs["tosica_prediction"],
        annotated.obs["tosica_prediction"],
        check_names=False,
    )
    assert list(back.uns["tosica"]["modalities"]) == list(
        annotated.uns["tosica"]["modalities"]
    )
    tosica.tl.attribute(back, model, cells=True, n_steps=24)
    tosica.tl.rank_gene_sets(back, "tosica_prediction")
    of_mask = [
        name for modality in model.modalities for name in modality.gene_sets()[0]
    ]
    assert set(tosica.get.rank_gene_sets_df(back, group="a")["gene_set"]) == set(
        of_mask
    )
    by_set = tosica.get.contributions(back)
    assert not set(by_set.obsm) & {"rna", "protein"}
    assert tosica.get.contributions(back, key="tosica").shape == (back.n_obs, 14)
    genes = tosica.get.genes_df(back, "a", n_genes=10)["gene"]
    assert {name.split(":")[0] for name in genes} == {"rna", "protein"}


def test_a_model_describes_each_modality(model):
    weights = model.get_gene_weights()
    assert weights.shape == (39, 14)
    rna, of_rna = (
        weights.index.str.startswith("rna:"),
        weights.columns.str.startswith("rna:"),
    )
    assert (weights.loc[rna, ~of_rna] == 0).all(axis=None)
    assert (weights.loc[~rna, of_rna] == 0).all(axis=None)
    assert weights.loc["protein:P0", "protein:P0"] > 0
    text = repr(model)
    assert "rna, gene sets: 4 of dict (unknown), and 1 modules\n" in text
    assert "protein, gene sets: 9 of single features (unknown)\n" in text
    assert "protein, genes: 9, read as counts of antibodies" in text
    assert model.module.temperature.shape == (3,)
    assert (model.module.temperature != 1).all()


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


# --------------------------------------------------------------------------- normalization


def test_antibodies_normalized_by_clr_are_what_counts_become(model, query, caplog):
    expected = model.predict(query, soft=True)
    query["protein"].X = clr(query["protein"].X)
    actual = model.predict(query, soft=True)
    assert_allclose(actual, expected, atol=1e-5)
    assert "mdata['protein'].X holds normalized antibodies" in caplog.text


@pytest.mark.filterwarnings("ignore:.*labels may suffer")
def test_some_cells_are_on_the_scale_of_all(model, query):
    rna = query["rna"].copy()
    sc.pp.normalize_total(rna, target_sum=100)
    sc.pp.log1p(rna)
    query = md.MuData({"rna": rna[:, ::2].copy(), "protein": query["protein"]})
    of_all = model.predict(query, soft=True)
    for cell in range(20):
        of_one = model.predict(query, soft=True, indices=[cell])
        assert_allclose(of_one, of_all.iloc[[cell]], atol=1e-5)


def test_antibodies_normalized_in_another_way(model, mdata, query):
    counts = query["protein"].X.copy()
    query["protein"].X = np.log1p(counts.toarray())
    with pytest.warns(
        UserWarning, match="mean in a cell is not zero, so they were not normalized"
    ):
        model.predict(query)
    mdata["protein"].X = np.log1p(mdata["protein"].X.toarray())
    query["protein"].X = counts
    with pytest.raises(
        ValueError, match="were normalized before: normalize them alike"
    ):
        train_cite(mdata, max_epochs=1).predict(query)


def test_an_antibody_that_the_query_lacks_is_no_part_of_the_mean(model, query):
    eight_antibodies = query["protein"][:, :8].copy()
    with pytest.warns(UserWarning, match="only 8 of the model's 9 antibodies"):
        from_counts = model.predict(eight_antibodies, soft=True)
    eight_antibodies.X = clr(eight_antibodies.X)
    with pytest.warns(UserWarning, match="only 8 of the model's 9 antibodies"):
        assert_allclose(
            model.predict(eight_antibodies, soft=True), from_counts, atol=1e-5
        )


def test_layers(mdata, query):
    for data in (mdata, query):
        data["rna"].layers["counts"] = data["rna"].X.copy()
    expected = train_cite(mdata.copy(), max_epochs=1).predict(query, soft=True)
    for data in (mdata, query):
        data["rna"].X = data["rna"].X.toarray() - 1
    model = train_cite(mdata, {"layers": {"rna": "counts"}}, max_epochs=1)
    assert_allclose(model.predict(query, soft=True), expected, atol=1e-5)
    actual = model.predict(query, layer={"rna": "counts"}, soft=True)
    assert_allclose(actual, expected, atol=1e-5)


# --------------------------------------------------------------------------- where labels are


def test_labels_in_one_modality_are_found(caplog):
    reference = make_cite()
    protein = reference["protein"][::-1].copy()
    protein.obs["kind"] = reference.obs["kind"].loc[protein.obs_names]
    protein.obs["kind_ontology_term_id"] = protein.obs["kind"].map(
        {"a": "CL:0000624", "b": "unknown", "c": "na"}
    )
    mixed = md.MuData({"rna": reference["rna"].copy(), "protein": protein})
    mixed.obs = mixed.obs[[]]
    tosica.pp.build_mask(mixed, TOY_SETS)
    model = train_cite(mixed, max_epochs=5)
    assert "found labels_key 'kind' in mdata['protein'].obs" in caplog.text
    assert model.ontology_term_ids_ == {"a": "CL:0000624"}
    assert np.mean(model.predict(reference) == reference.obs["kind"].astype(str)) > 0.8


# --------------------------------------------------------------------------- wrong input


def test_different_cells(mdata):
    modalities = {
        "rna": mdata["rna"][:80].copy(),
        "protein": mdata["protein"][10:].copy(),
    }
    apart = md.MuData(modalities)
    sentence = (
        r"'rna' 80, 'protein' 80, mdata itself 90\): keep the cells that are in all"
    )
    with pytest.raises(ValueError, match=sentence):
        TOSICA.setup_mudata(apart, "kind")
    # The recipe in the sentence.
    common = apart["rna"].obs_names.intersection(apart["protein"].obs_names)
    common_cells = apart[common].copy()
    common_cells.obs["kind"] = mdata.obs["kind"].loc[common_cells.obs_names]
    TOSICA.setup_mudata(common_cells, "kind")


def _spoil(name, change):
    def spoil(mdata):
        values = mdata[name].X.toarray()
        mdata[name].X = change(values).astype(np.float32)

    return spoil


def _differ(mdata):
    del mdata.obs["kind"]
    mdata["rna"].obs["kind"], mdata["protein"].obs["kind"] = "a", "b"


@pytest.mark.parametrize(
    ("spoil", "error", "sentence"),
    [
        (
            _spoil("protein", np.ones_like),
            ValueError,
            r"mdata\['protein'\].X is the same in every cell",
        ),
        (
            _spoil("protein", lambda x: x * 7.3),
            ValueError,
            "neither counts of antibodies nor normalized",
        ),
        (
            _spoil("rna", lambda x: np.vstack([np.log1p(x[:40]), x[40:]])),
            ValueError,
            r"\['rna'\].X holds values that",
        ),
        (
            lambda m: m["protein"].varm.pop("tosica_mask"),
            KeyError,
            r"no mask in mdata\['protein'\].varm.*\(mdata\)",
        ),
        (
            lambda m: setattr(m["protein"], "obs_names", ["cell0"] * 90),
            ValueError,
            r"\['protein'\] are not unique",
        ),
        (_differ, ValueError, r"and they differ: say which is meant by mdata.obs"),
        (
            lambda m: m.obs.__setitem__("donor", np.nan),
            ValueError,
            r"mdata.obs\['donor'\] has cells without a batch",
        ),
    ],
)
def test_references_that_cannot_work(mdata, spoil, error, sentence):
    spoil(mdata)
    original = list(mdata.obs), list(mdata.uns)
    with pytest.raises(error, match=sentence):
        TOSICA.setup_mudata(mdata, "kind", batch_key="donor")
    assert (list(mdata.obs), list(mdata.uns)) == original


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (
            {"modalities": {"rna": "gex"}},
            KeyError,
            "no modality 'gex'; its modalities: 'rna', 'protein'",
        ),
        (
            {"modalities": {"adt": "protein"}},
            ValueError,
            "roles, .*: 'rna', 'protein', 'atac', .*'adt'",
        ),
        (
            {"modalities": {"rna": "rna", "protein": "rna"}},
            ValueError,
            "must name a modality of its own",
        ),
        ({"modalities": {}}, ValueError, "for one or more of the roles"),
        (
            {"modalities": ["rna"]},
            TypeError,
            "modalities must be a dict of role to name",
        ),
        (
            {"layers": {"rna": "counts"}},
            KeyError,
            r"mdata\['rna'\] has no layer 'counts'",
        ),
        (
            {"labels_key": "type"},
            KeyError,
            r"labels_key 'type' is no column of mdata.obs",
        ),
    ],
)
def test_arguments_that_make_no_sense(mdata, arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        TOSICA.setup_mudata(mdata, **{"labels_key": "kind"} | arguments)


def test_what_is_no_mudata(toy_model, mdata, query):
    with pytest.raises(TypeError, match="mdata must be a MuData, not AnnData"):
        TOSICA.setup_mudata(mdata["rna"], "kind")
    with pytest.raises(ValueError, match="a view of another MuData"):
        TOSICA.setup_mudata(mdata[:50], "kind")
    with pytest.raises(
        TypeError, match=r"pass one modality of it, as in mdata\['rna'\]"
    ):
        toy_model.predict(query)


def test_what_is_no_gene_activity(multiome_model):
    mdata = make_multiome()
    tosica.pp.build_mask(mdata, TOY_SETS, modalities=MODALITIES)
    mdata["activity"].X = np.sqrt(mdata["activity"].X.toarray())
    with pytest.raises(
        ValueError,
        match=r"mdata\['activity'\].X holds values that are neither counts nor log-norm",
    ):
        TOSICA.setup_mudata(mdata, "kind", MODALITIES)
    mdata["activity"].var_names = [f"chr1:{100 * i}-{100 * i + 50}" for i in range(30)]
    for call in (
        lambda: tosica.pp.build_mask(mdata, TOY_SETS, modalities=MODALITIES),
        lambda: TOSICA.setup_mudata(mdata, "kind", MODALITIES),
        lambda: multiome_model.predict(mdata),
    ):
        with pytest.raises(
            ValueError,
            match=r"mdata\['activity'\] holds peaks \(such as 'chr1.0.50'\), not gene acti",
        ):
            call()


def test_queries_that_do_not_fit(model, multiome_model, query):
    renamed = md.MuData({"gex": query["rna"].copy(), "adt": query["protein"].copy()})
    with pytest.raises(
        ValueError, match=r"none of the model's modalities \('rna', 'protein'\)"
    ):
        model.predict(renamed)
    apart = md.MuData(
        {"rna": query["rna"][:50].copy(), "protein": query["protein"].copy()}
    )
    with pytest.raises(ValueError, match="'rna' 50, 'protein' 60, mdata itself 60"):
        model.annotate(apart)
    assert "tosica" not in apart.uns
    strange = query["rna"].copy()
    strange.var_names = [f"X{i}" for i in range(strange.n_vars)]
    with pytest.raises(ValueError, match="half the genes of no modality of the model"):
        model.predict(strange)
    with pytest.raises(
        ValueError,
        match=r"of several modalities of the model .* as in mudata.MuData\({'rna': adata}\)",
    ):
        multiome_model.predict(query["rna"])
    suspected = md.MuData({"rna": query["rna"].copy(), "adt": query["protein"].copy()})
    with pytest.warns(
        UserWarning, match="no modality 'protein' and one .* not known \\('adt'\\)"
    ):
        model.predict(suspected)


def test_arguments_of_a_query_that_make_no_sense(model, query):
    with pytest.raises(TypeError, match="a dict of modality and layer, such as"):
        model.predict(query, layer="counts")
    with pytest.raises(TypeError, match="layer must be the name of one layer"):
        model.predict(query["rna"], layer={"rna": "counts"})
    with pytest.raises(KeyError, match="layer names no modality 'gex'"):
        model.predict(query, layer={"gex": "counts"})
    with pytest.raises(ValueError, match="use_raw=True is for an AnnData"):
        model.predict(query, use_raw=True)


def test_temperature_of_one_modality_is_that_of_its_cells_alone(
    model, query, save_and_load
):
    """Also if the query lacks a gene, and whatever the other modality holds."""
    lacking = query["rna"][:, 1:].copy()
    protein = query["protein"].copy()
    shuffled = protein[::-1].copy()
    shuffled.obs_names = protein.obs_names
    temperatures = []
    for antibodies in (protein, shuffled):
        mdata = md.MuData({"rna": lacking.copy(), "protein": antibodies})
        mdata.obs["kind"] = query.obs["kind"]
        recalibrated = save_and_load(model)
        recalibrated.recalibrate(mdata, "kind")
        temperatures.append(recalibrated.module.temperature)
    of_rna = model.module.modality_choices.index((0,))
    assert temperatures[0][of_rna] == pytest.approx(temperatures[1][of_rna])
    assert temperatures[0][-1] != pytest.approx(temperatures[1][-1])


def test_recalibrated_for_every_choice_of_modalities(model, query, save_and_load):
    recalibrated = save_and_load(model)
    recalibrated.recalibrate(query, "kind")
    assert recalibrated.training_.held_out_probabilities.shape == (3, query.n_obs)
    assert (recalibrated.module.temperature != model.module.temperature).all()
    rna = query["rna"].copy()
    rna.obs["kind"] = query.obs["kind"]
    with pytest.raises(ValueError, match="lack the modality 'protein' of the model"):
        recalibrated.recalibrate(rna, "kind")


def test_labels_of_one_modality_may_be_missing(mdata):
    kind = mdata.obs.pop("kind").astype(object)
    kind.iloc[:3], kind.iloc[3] = np.nan, "?"
    mdata["rna"].obs["kind"] = kind.reindex(mdata["rna"].obs_names)
    TOSICA.setup_mudata(mdata, "kind", unlabeled_category="?")
    codes = mdata["rna"].obs["_scvi_labels"]
    assert set(codes[kind.index[:4]]) == {3}
    assert set(codes[kind.index[4:]]) == {0, 1, 2}
