"""RNA and gene activity of ATAC-seq in one model, from masks to labels."""

from __future__ import annotations

import logging

import mudata as md
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import scvi
from anndata import AnnData

import tosica

GENES = [f"G{i}" for i in range(30)]
SETS = {"alpha": GENES[:8], "beta": GENES[8:16], "gamma": GENES[16:24], "mixed": GENES[4:20:3]}
EASY = {"lr": 1e-2, "warmup": 0.1, "gene_dropout": 0.1, "token_dropout": 0.0}
MODALITIES = {"rna": "rna", "atac": "activity"}


def make_multiome(n_obs: int = 90, seed: int = 0) -> md.MuData:
    """Counts of three types over the same genes, in another order in the second modality."""
    rng = np.random.default_rng(seed)
    kind = np.arange(n_obs) % 3
    parts = {}
    for name, low, high, names in (("rna", 0.7, 4, GENES), ("activity", 2, 9, GENES[::-1])):
        rate = np.full((n_obs, len(GENES)), float(low))
        for i in range(3):
            rate[kind == i, 8 * i : 8 * (i + 1)] = high
        adata = AnnData(sp.csr_matrix(rng.poisson(rate).astype(np.float32)))
        adata.obs_names = [f"cell{i}" for i in range(n_obs)]
        adata.var_names = GENES
        parts[name] = adata[:, names].copy()
    mdata = md.MuData(parts)
    mdata.obs["kind"] = pd.Categorical(np.array(["a", "b", "c"])[kind])
    return mdata


def fit(mdata: md.MuData, **train) -> tosica.TOSICA:
    tosica.TOSICA.setup_mudata(mdata, "kind", MODALITIES)
    scvi.settings.seed = 0
    model = tosica.TOSICA(mdata, embed_dim=16, n_heads=2)
    settings = {"max_epochs": 20, "batch_size": 16, "plan_kwargs": EASY}
    model.train(accelerator="cpu", enable_progress_bar=False, **settings | train)
    return model


@pytest.fixture
def mdata() -> md.MuData:
    """A reference with masks."""
    made = make_multiome()
    tosica.pp.build_mask(made, SETS, modalities=MODALITIES)
    return made


@pytest.fixture(scope="module")
def model() -> tosica.TOSICA:
    """A model of both modalities, shared by all tests: not to be changed."""
    made = make_multiome()
    tosica.pp.build_mask(made, SETS, modalities=MODALITIES)
    return fit(made)


@pytest.fixture
def query() -> md.MuData:
    """Other cells of the same types."""
    return make_multiome(60, seed=1)


def log_normalized(counts: np.ndarray, target_sum: float = 1e4) -> np.ndarray:
    return np.log1p(target_sum * counts / counts.sum(1, keepdims=True)).astype(np.float32)


def test_masks_of_the_same_gene_sets(mdata):
    rna, activity = (mdata[name] for name in ("rna", "activity"))
    assert list(activity.uns["tosica_mask"]["gene_sets"])[:4] == list(SETS)
    assert activity.uns["tosica_mask"]["source"] == "dict"
    np.testing.assert_array_equal(activity.varm["tosica_mask"].toarray(), rna.varm["tosica_mask"].toarray()[::-1])


@pytest.mark.parametrize("select", ["largest", "variable"])
def test_a_layer_of_rna_is_not_asked_of_gene_activity(select):
    made = make_multiome()
    made["rna"].layers["counts"] = made["rna"].X.copy()
    tosica.pp.build_mask(made, SETS, modalities=MODALITIES, layer="counts", select=select, max_gene_sets=2)
    for name in MODALITIES.values():
        assert len(made[name].uns["tosica_mask"]["gene_sets"]) == 2


@pytest.mark.parametrize("part", ["both", "rna", "activity"])
def test_labels_of_cells_with_both_or_one(model, query, part):
    data = query if part == "both" else md.MuData({part: query[part].copy()})
    truth = query.obs["kind"].astype(str).to_numpy()
    assert np.mean(model.predict(data) == truth) > 0.9


def test_annotated_saved_and_loaded(model, query, tmp_path):
    model.annotate(query)
    record = query.uns["tosica"]
    assert list(record["gene_sets"]) == model.gene_sets
    assert model.gene_sets[:4] == [f"rna:{name}" for name in SETS]
    assert [f"activity:{name}" for name in SETS] == model.gene_sets[5:9]
    # Genes in no gene set are tokens of either modality.
    assert [name.partition(": ")[0] for name in model.gene_sets[4::5]] == ["rna:module", "activity:module"]
    model.save(tmp_path / "model", save_anndata=True)
    loaded = tosica.TOSICA.load(tmp_path / "model")
    for data in (query, md.MuData({"activity": query["activity"].copy()})):
        pd.testing.assert_frame_equal(loaded.predict(data, soft=True), model.predict(data, soft=True), atol=1e-6)
    reference = md.read_h5mu(tmp_path / "model" / "mdata.h5mu")
    with_reference = tosica.TOSICA.load(tmp_path / "model", adata=reference)
    assert with_reference.gene_sets == model.gene_sets
    assert with_reference.fingerprint == model.fingerprint


def test_three_modalities_in_one_order():
    made = make_multiome()
    protein = AnnData(np.random.default_rng(0).poisson(5.0, (90, 3)).astype(np.float32))
    protein.obs_names, protein.var_names = made.obs_names, ["P0", "P1", "P2"]
    three = md.MuData({"activity": made["activity"], "protein": protein, "rna": made["rna"]})
    three.obs["kind"] = made.obs["kind"]
    roles = {"atac": "activity", "protein": "protein", "rna": "rna"}
    tosica.pp.build_mask(three, SETS, modalities=roles, max_gene_sets=3)
    tosica.TOSICA.setup_mudata(three, "kind", roles)
    model = tosica.TOSICA(three, embed_dim=16, max_gene_sets=2, modules=False)
    assert [name.partition(":")[0] for name in model.gene_sets] == [*["rna"] * 2, *["protein"] * 3, *["activity"] * 2]
    assert list(model.get_var_names()) == ["rna", "protein", "activity"]


def test_messages_name_gene_activity(model, mdata, query, caplog):
    with caplog.at_level(logging.INFO, "tosica"):
        tosica.TOSICA.setup_mudata(mdata, "kind", MODALITIES)
        model.predict(query)
    assert "(atac) holds counts of gene activity; taken as log1p of counts per 10 000" in caplog.text
    assert "query: mdata['activity'].X holds counts of gene activity" in caplog.text
    assert "activity, genes: 30, read as counts of gene activity" in repr(model)


@pytest.mark.parametrize("target_sum", [1e4, 1e6])
def test_a_log_normalized_query_is_what_its_counts_become(model, query, target_sum):
    expected = model.predict(query, soft=True)
    query["activity"].X = log_normalized(query["activity"].X.toarray(), target_sum)
    np.testing.assert_allclose(model.predict(query, soft=True), expected, atol=1e-4)


def test_a_log_normalized_reference(mdata, query, caplog):
    mdata["activity"].X = log_normalized(mdata["activity"].X.toarray(), 5e3)
    with caplog.at_level(logging.INFO, "tosica"):
        model = fit(mdata, max_epochs=1)
    assert "holds log-normalised gene activity; used without further normalisation" in caplog.text
    expected = model.predict(query, soft=True)
    query["activity"].X = log_normalized(query["activity"].X.toarray(), 5e3)
    np.testing.assert_allclose(model.predict(query, soft=True), expected, atol=1e-4)


@pytest.mark.parametrize("separators", [":-", "--", "__"])
def test_peaks_are_refused(mdata, query, model, separators):
    first, second = separators
    peaks = [f"chr1{first}{100 * i}{second}{100 * i + 50}" for i in range(30)]
    sentence = (
        r"mdata\['activity'\] holds peaks \(such as 'chr1.0.50'\), not gene activity: compute "
        r"gene activities first"
    )
    for data in (mdata, query):
        data["activity"].var_names = peaks
    with pytest.raises(ValueError, match=sentence):
        tosica.pp.build_mask(mdata, SETS, modalities=MODALITIES)
    with pytest.raises(ValueError, match=sentence):
        tosica.TOSICA.setup_mudata(mdata, "kind", MODALITIES)
    with pytest.raises(ValueError, match=sentence):
        model.predict(query)


def test_values_that_are_no_gene_activity(mdata):
    counts = mdata["activity"].X.toarray()
    for values, sentence in (
        (counts - 2, "needs counts or log-normalised expression"),
        (np.sqrt(counts), "neither counts nor log-normalised expression"),
    ):
        mdata["activity"].X = values
        with pytest.raises(ValueError, match=sentence):
            tosica.TOSICA.setup_mudata(mdata, "kind", MODALITIES)


def test_an_anndata_that_may_be_either_is_refused(model, query):
    sentence = r"of several modalities of the model .* as in mudata.MuData\({'rna': adata}\)"
    for name in MODALITIES.values():
        with pytest.raises(ValueError, match=sentence):
            model.predict(query[name])
