"""Models of the original code: the same results, and errors for projects that are wrong."""

from __future__ import annotations

import pathlib
import pickle
import re
import warnings
import zipfile
from typing import NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
import torch
from _literal import LiteralTOSICA, from_original
from anndata import AnnData

from tosica import TOSICA, pp
from tosica.module import MaskedEmbedding, MixedEmbedding

MIXED = "each token mixes numbers of several gene sets, so attention under a gene set's name is"
LABELS = ["NK", "B cell", "T/NKT", "1"]
# Labels of the reference are random, so that the check of labels would find errors.
QUICK = {
    "max_epochs": 1,
    "accelerator": "cpu",
    "batch_size": 8,
    "enable_progress_bar": False,
    "check_labels": False,
}


class Project(NamedTuple):
    """A folder as the original leaves it, and the network that is in it."""

    folder: pathlib.Path
    literal: LiteralTOSICA
    genes: list[str]
    gene_sets: list[str]
    mask: np.ndarray


def to_original(literal):
    """The network's tensors by the names and in the shapes of the original."""
    state = dict(literal.state_dict())
    mask = literal.embedding.mask
    return {
        "feature_embed.fe.weight": state.pop("embedding.weight").T.contiguous(),
        "feature_embed.fe.bias": state.pop("embedding.bias"),
        "feature_embed.fe.mask": mask.T.contiguous(),
        **state,
    }


def write_project(
    folder,
    *,
    n_genes=24,
    n_sets=5,
    n_full=1,
    width=8,
    n_heads=4,
    n_layers=2,
    labels=LABELS,
    weights="model-9.pth",
    gene_weights=True,
):
    """Write the files that the original writes for a network with random weights."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    mask = rng.random((n_genes, n_sets)) < 0.3
    mask[rng.integers(n_genes, size=n_sets), np.arange(n_sets)] = True
    mask = np.hstack([mask, np.ones((n_genes, n_full), dtype=bool)])
    genes = ["NA", "null", *(f"G{i}" for i in range(2, n_genes))]
    gene_sets = [f"SET_{i}, {n_sets}" for i in range(n_sets)] + [f"node {i}" for i in range(n_full)]
    torch.manual_seed(0)
    literal = LiteralTOSICA(
        mask,
        len(labels),
        embed_dim=width,
        n_heads=n_heads,
        n_layers=n_layers,
        scrambled_tokens=True,
    ).eval()
    with torch.no_grad():
        for part in literal.parameters():
            part.add_(0.3 * torch.randn_like(part))
        literal.embedding.weight.mul_(literal.embedding.mask)
    np.save(folder / "mask.npy", np.asfortranarray(mask, dtype=np.float64))
    pathway = pd.DataFrame(gene_sets)
    pathway.to_csv(folder / "pathway.csv")
    pd.DataFrame(labels, columns=["cell_type"]).to_csv(folder / "label_dictionary.csv")
    tensors = to_original(literal)
    torch.save(tensors, folder / weights)
    if gene_weights:
        table = tensors["feature_embed.fe.weight"].view(-1, width, n_genes).abs().amax(1)
        table = pd.DataFrame(table.numpy(), index=pd.Index(gene_sets, name="0"), columns=genes)
        table.to_csv(folder / "gene2token_weights.csv")
    return Project(folder, literal, genes, gene_sets, mask)


def make_query(project, n_obs=40, seed=1):
    """Log-normalised cells with the project's genes, normalised over more genes than these."""
    counts = np.random.default_rng(seed).poisson(1.5, (n_obs, len(project.genes) + 10))
    x = np.log1p(1e4 * counts / counts.sum(1, keepdims=True))[:, : len(project.genes)]
    adata = AnnData(sp.csr_matrix(x.astype(np.float32)))
    adata.var_names = project.genes
    adata.obs_names = [f"cell{i}" for i in range(n_obs)]
    adata.obs["cell_type"] = pd.Categorical(np.array(LABELS)[np.arange(n_obs) % len(LABELS)])
    return adata


def load_legacy(folder, *args, **kwargs):
    """Load a project, and check that it warns once."""
    with pytest.warns(UserWarning, match=MIXED) as caught:
        model = TOSICA.load_legacy(folder, *args, accelerator="cpu", **kwargs)
    # Other warnings are deprecations in anndata and pandas.
    assert [warning.filename for warning in caught if warning.category is UserWarning] == [__file__]
    return model


@pytest.fixture
def project(tmp_path):
    """Six tokens of 24 genes, four labels, width 8, two layers."""
    return write_project(tmp_path / "project")


@torch.no_grad()
def assert_same(model, literal, query, tolerance=1e-5):
    """The model has the results of the network that was written."""
    latent, logits, attention = literal(torch.from_numpy(query.X.toarray()))
    n_sets = len(model.gene_sets)
    found = model.get_attention(query, unannotated=True)
    np.testing.assert_allclose(found, attention, rtol=0, atol=tolerance)
    np.testing.assert_allclose(model.get_attention(query), attention[:, :n_sets], rtol=0, atol=tolerance)
    np.testing.assert_allclose(model.get_latent_representation(query), latent, rtol=0, atol=tolerance)
    expected = np.array(model.labels, dtype=object)[logits.argmax(1)]
    np.testing.assert_array_equal(model.predict(query), expected)
    np.testing.assert_allclose(model.predict(query, soft=True), logits.softmax(1), rtol=0, atol=tolerance)


# --------------------------------------------------------------------------- the original's run


@pytest.fixture(scope="session")
def original(shared):
    """Folder that the original left, query, and results of the original for it."""
    folder = shared / "legacy_project"
    if not folder.is_dir():
        pytest.skip("needs the developers' legacy_project")
    expected = np.load(folder / "expected.npz")
    return folder / "project", ad.read_h5ad(folder / "query.h5ad"), dict(expected)


def assert_as_the_original(model, query, expected):
    latent = model.get_latent_representation(query)
    np.testing.assert_allclose(latent, expected["latent"], rtol=0, atol=1e-5)
    with torch.no_grad():
        logits = model.module.head(torch.from_numpy(latent))
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-5)
    attention = model.get_attention(query, unannotated=True)
    np.testing.assert_allclose(attention, expected["attention"], rtol=0, atol=1e-5)
    model.annotate(query)
    np.testing.assert_array_equal(query.obs["tosica_prediction"], expected["prediction"])
    np.testing.assert_allclose(query.obs["tosica_probability"], expected["probability"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(query.obsm["X_tosica"], expected["attention_adata"], rtol=0, atol=1e-5)
    assert model.gene_sets == expected["attention_tokens"].tolist()


@pytest.mark.data
def test_results_are_the_originals(original, tmp_path):
    folder, query, expected = original
    model = load_legacy(folder)
    assert_as_the_original(model, query.copy(), expected)
    table = pd.read_csv(folder / "gene2token_weights.csv", index_col=0, dtype={0: str})
    weights = model.get_gene_weights(how="max")
    np.testing.assert_array_equal(weights.T, table.astype(np.float32))
    assert (list(weights.columns), list(weights.index)) == (list(table.index), list(table.columns))

    model.save(tmp_path / "model")
    assert_as_the_original(TOSICA.load(tmp_path / "model"), query.copy(), expected)
    order = np.random.default_rng(0).permutation(query.n_vars)
    assert_as_the_original(model, query[:, order].copy(), expected)
    assert_as_the_original(load_legacy(folder, query.var_names), query.copy(), expected)


@pytest.mark.data
def test_the_originals_model_can_be_trained_further(original):
    folder, query, expected = original
    model = load_legacy(folder, adata=query.copy())
    model.train(max_epochs=1, accelerator="cpu", enable_progress_bar=False)
    hit = (model.predict() == expected["prediction"]).mean()
    assert hit > 0.9
    assert type(model.module.embedding) is MixedEmbedding


@pytest.mark.data
def test_the_literal_network_reads_the_original_too(original):
    folder, query, _ = original
    tensors = torch.load(folder / "model.pth", weights_only=True)
    literal = from_original(tensors, np.load(folder / "mask.npy"), 4)
    assert_same(load_legacy(folder), literal, sc.AnnData(sp.csr_matrix(query.X), var=query.var))


# --------------------------------------------------------------------------- a project made here


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"n_layers": 1, "n_heads": 1, "width": 5, "n_full": 0},
        {"n_layers": 3, "n_heads": 2, "width": 6, "n_full": 3, "n_sets": 9},
        {"n_sets": 1, "n_full": 0, "labels": ["a", "b"]},
    ],
    ids=["default", "small", "deep", "one set"],
)
def test_results_are_those_of_the_literal_network(tmp_path, sizes):
    project = write_project(tmp_path / "project", **sizes)
    model = load_legacy(project.folder, n_heads=sizes.get("n_heads", 4))
    query = make_query(project)
    assert_same(model, project.literal, query)
    assert model.labels == sizes.get("labels", LABELS)
    assert model.gene_sets == [name for name in project.gene_sets if "node" not in name]
    assert list(model.get_var_names()) == project.genes
    model.save(tmp_path / "model")
    again = TOSICA.load(tmp_path / "model", accelerator="cpu")
    assert_same(again, project.literal, query)
    assert again.fingerprint == model.fingerprint
    again.save(tmp_path / "again")
    assert_same(TOSICA.load(tmp_path / "again"), project.literal, query)


def test_it_matters_that_tokens_are_mixed(project):
    model = load_legacy(project.folder)
    project.literal.embedding.scrambled_tokens = False
    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_same(model, project.literal, make_query(project), tolerance=0.01)


def test_gene_weights_are_those_of_the_file(project):
    table = pd.read_csv(project.folder / "gene2token_weights.csv", index_col=0, na_filter=False)
    weights = load_legacy(project.folder).get_gene_weights(how="max")
    assert (list(weights.index), list(weights.columns)) == (project.genes, project.gene_sets)
    np.testing.assert_array_equal(weights.T, table.astype(np.float32))


def test_annotate_a_shuffled_query(project, contents, new_keys):
    model = load_legacy(project.folder)
    query = make_query(project)
    _, logits, attention = project.literal(torch.from_numpy(query.X.toarray()))
    query = query[:, np.random.default_rng(0).permutation(query.n_vars)].copy()
    before = contents(query)
    model.annotate(query)
    assert all("tosica" in key for key in new_keys(before, contents(query)))
    names = np.array(LABELS)[logits.argmax(1)]
    np.testing.assert_array_equal(query.obs["tosica_prediction"], names)
    best = logits.softmax(1).amax(1).detach()
    np.testing.assert_allclose(query.obs["tosica_probability"], best, rtol=0, atol=1e-5)
    np.testing.assert_allclose(query.obsm["X_tosica"], attention[:, :5], rtol=0, atol=1e-5)
    palette = dict(zip(LABELS, sc.pl.palettes.default_20, strict=False))
    occurring = [label for label in LABELS if label in names]
    assert list(query.uns["tosica_prediction_colors"]) == [palette[name] for name in occurring]


@pytest.mark.parametrize("target_sum", [1e4, 5e3])
def test_counts_are_scaled_over_all_genes(project, target_sum):
    model = load_legacy(project.folder, target_sum=target_sum)
    counts = np.random.default_rng(3).poisson(2.0, (20, 40)).astype(np.float32)
    whole = AnnData(counts)
    whole.var_names = [*project.genes, *(f"other{i}" for i in range(16))]
    x = np.log1p(target_sum * counts / counts.sum(1, keepdims=True))[:, :24]
    normalised = AnnData(x, var=pd.DataFrame(index=project.genes))
    np.testing.assert_allclose(
        model.get_latent_representation(whole),
        model.get_latent_representation(normalised),
        rtol=0,
        atol=1e-5,
    )


def test_a_loaded_model_describes_itself(project):
    model = load_legacy(project.folder)
    shown = repr(model)
    assert "TOSICA model, trained\n" in shown
    assert "5 of legacy project (unknown), and 1 unannotated, mixed in each token" in shown
    assert "read as log-normalised expression" in shown
    assert "labels: 4 (NK, B cell, T/NKT, 1)" in shown
    assert "width 8, 4 heads, 2 layers" in shown
    assert model.is_trained
    assert model.adata is None
    assert model.history is None
    assert not model.module.training


def test_the_card_of_a_loaded_model(project):
    card = load_legacy(project.folder).get_model_card(tissue="brain", license="mit")
    assert "| Cells | not known |" in card
    assert "None are kept in this model." in card


def test_names_of_genes_may_be_given(tmp_path):
    project = write_project(tmp_path / "project", gene_weights=False)
    model = load_legacy(project.folder, pd.Index(project.genes))
    assert_same(model, project.literal, make_query(project))


def test_genes_that_the_file_has_twice_may_be_renamed(project):
    path = project.folder / "gene2token_weights.csv"
    path.write_text(path.read_text().replace("0,NA,null,", "0,null,null,", 1))
    renamed = ["null", "null-1", *project.genes[2:]]
    assert list(load_legacy(project.folder, renamed).get_var_names()) == renamed
    with pytest.raises(ValueError, match=r"contradict the header .* \(first at gene 2: 'G3' and"):
        TOSICA.load_legacy(project.folder, ["null", "null-1", "G3", "G2", *project.genes[4:]])


def test_gene_weights_of_another_epoch_are_no_contradiction(project):
    path = project.folder / "gene2token_weights.csv"
    table = pd.read_csv(path, index_col=0, na_filter=False)
    (2 * table.astype(float)).to_csv(path)
    load_legacy(project.folder)


def test_random_gene_sets_are_not_unannotated(tmp_path):
    project = write_project(tmp_path / "project")
    names = [f"node {i}" for i in range(6)]
    pd.DataFrame(names).to_csv(project.folder / "pathway.csv")
    (project.folder / "gene2token_weights.csv").unlink()
    model = load_legacy(project.folder, project.genes)
    assert model.gene_sets == names


def test_only_full_tokens_at_the_end_are_unannotated(tmp_path):
    project = write_project(tmp_path / "project", n_full=3)
    names = ["node 7", "a", "b", "c", "d", "node 0", "node 1", "node 2"]
    pd.DataFrame(names).to_csv(project.folder / "pathway.csv")
    (project.folder / "gene2token_weights.csv").unlink()
    model = load_legacy(project.folder, project.genes)
    assert model.gene_sets == ["node 7", "a", "b", "c", "d"]
    names[5] = "all genes"
    names[6:] = ["node 0", "all genes too"]
    pd.DataFrame(names).to_csv(project.folder / "pathway.csv")
    assert load_legacy(project.folder, project.genes).gene_sets == names


def test_last_epoch_is_taken(project, tmp_path):
    tensors = torch.load(project.folder / "model-9.pth", weights_only=True)
    for i, name in enumerate(["model-10.pth", "model-2.pth", "model.pth", "model-x.pth"]):
        tensors["head.bias"] = torch.full((4,), float(i))
        torch.save(tensors, project.folder / name)

    def bias(**kwargs):
        return float(load_legacy(project.folder, **kwargs).module.head.bias[0].detach())

    assert bias() == 0
    assert bias(weights="model-2.pth") == 1
    assert bias(weights="model-x.pth") == 3
    (project.folder / "model-10.pth").unlink()
    (project.folder / "model-9.pth").unlink()
    assert bias() == 1
    (project.folder / "model-2.pth").unlink()
    assert bias() == 2


def test_older_format_of_torch(project):
    path = project.folder / "model-9.pth"
    tensors = torch.load(path, weights_only=True)
    torch.save(tensors, path, _use_new_zipfile_serialization=False)
    assert_same(load_legacy(project.folder), project.literal, make_query(project))


# --------------------------------------------------------------------------- training on


@pytest.fixture
def reference(project):
    """A reference for the project."""
    return make_query(project)


def test_training_on(project, reference, tmp_path, contents, new_keys):
    before = contents(reference)
    model = load_legacy(project.folder, adata=reference)
    new = new_keys(before, contents(reference))
    assert {key.split("/")[1].split(".")[0] for key in new} == {
        "tosica_mask",
        "_scvi_labels",
        "_scvi_batch",
        "_scvi_uuid",
        "_scvi_manager_uuid",
    }
    assert_same(model, project.literal, reference)
    start = model.fingerprint
    model.train(**QUICK)
    assert model.fingerprint != start
    assert model.history["train_loss"].index.tolist() == [0]
    assert "trained (1 epochs)" in repr(model)
    assert type(model.module.embedding) is MixedEmbedding
    model.annotate(reference)
    assert reference.obsm["X_tosica"].shape == (40, 5)

    model.save(tmp_path / "model")
    again = TOSICA.load(tmp_path / "model", adata=reference, accelerator="cpu")
    assert type(again.module.embedding) is MixedEmbedding
    np.testing.assert_array_equal(again.get_attention(), model.get_attention())
    again.train(**QUICK)
    assert again.fingerprint != model.fingerprint
    assert again.history["train_loss"].index.tolist() == [0, 1]


def test_training_that_fails_leaves_a_trained_model(project, reference, monkeypatch):
    model = load_legacy(project.folder, adata=reference)
    monkeypatch.setattr(model.module, "loss", None)
    with pytest.raises(TypeError):
        model.train(**QUICK)
    model.module.eval()
    assert_same(model, project.literal, reference)


def test_mask_is_written_as_build_mask_writes_it(project, reference, tmp_path):
    load_legacy(project.folder, adata=reference)
    theirs = make_query(project)
    pp.build_mask(theirs, {"all": project.genes}, min_genes=1)
    made, expected = reference.uns["tosica_mask"], theirs.uns["tosica_mask"]
    assert {k: type(v) for k, v in made.items()} == {k: type(v) for k, v in expected.items()}
    assert made["gene_sets"].tolist() == project.gene_sets
    assert made["n_unannotated"] == 1
    assert made["n_genes"] == 24
    n_covered = int(project.mask[:, :5].any(1).sum())
    assert made["n_genes_covered"] == n_covered
    assert made["coverage"] == n_covered / 24
    kind, mask = type(theirs.varm["tosica_mask"]), reference.varm["tosica_mask"]
    assert isinstance(mask, kind)
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask.toarray(), project.mask)
    reference.write_h5ad(tmp_path / "reference.h5ad")
    back = ad.read_h5ad(tmp_path / "reference.h5ad")
    assert_same(load_legacy(project.folder, adata=back), project.literal, back)


def test_only_the_models_own_labels_key_is_read(project, reference):
    reference.obs = reference.obs.rename(columns={"cell_type": "kind"})
    model = load_legacy(project.folder, adata=reference, labels_key="kind")
    assert model.registry["setup_args"]["labels_key"] == "kind"
    np.testing.assert_array_equal(reference.obs["_scvi_labels"], [LABELS.index(name) for name in reference.obs["kind"]])


def test_target_sum_is_kept_with_a_log_normalized_reference(project, reference, tmp_path):
    model = load_legacy(project.folder, adata=reference, target_sum=5e3)
    model.save(tmp_path / "model")
    for found in (model, TOSICA.load(tmp_path / "model", adata=reference)):
        assert found.modalities[0].scale == ("log1p", 5e3, "matrix", None, None)


def test_a_new_model_of_the_reference_is_not_mixed(project, reference):
    load_legacy(project.folder, adata=reference)
    TOSICA.setup_anndata(reference, labels_key="cell_type")
    model = TOSICA(reference, embed_dim=8)
    assert type(model.module.embedding) is MaskedEmbedding
    assert "mixed" not in repr(model)
    assert model._state("mask")["mixed_tokens"] is False


def test_nothing_is_kept_of_the_minimal_reference(project):
    load_legacy(project.folder)
    kept = dict(TOSICA._setup_adata_manager_store)
    load_legacy(project.folder)
    assert TOSICA._setup_adata_manager_store == kept


def _counts(adata):
    adata.X = np.rint(adata.X.toarray())


def _other_order(adata):
    adata.var_names = adata.var_names[::-1]


def _other_mask(adata):
    pp.build_mask(adata, {"half": adata.var_names[:12].tolist()})


def _half_a_mask(adata):
    adata.uns["tosica_mask"] = {"gene_sets": []}


def _new_label(adata):
    adata.obs["cell_type"] = adata.obs["cell_type"].cat.rename_categories({"NK": "new"})


def _no_labels(adata):
    del adata.obs["cell_type"]


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (_counts, ValueError, "adata holds counts values, but the model was trained on log1p valu"),
        (
            _other_order,
            ValueError,
            "adata's var_names are not the legacy model's genes in the mode",
        ),
        (
            _other_mask,
            ValueError,
            "adata.uns['tosica_mask'] do not hold the legacy model's mask: d",
        ),
        (_half_a_mask, ValueError, "delete both, and load_legacy writes the mask there."),
        (_new_label, ValueError, "has labels that the model does not know: 'new'."),
        (_no_labels, KeyError, "'cell_type' is no column of adata.obs, nor any other."),
    ],
)
def test_reference_that_does_not_fit(project, reference, contents, change, error, sentence):
    change(reference)
    before = contents(reference)
    with pytest.raises(error, match=re.escape(sentence)):
        TOSICA.load_legacy(project.folder, adata=reference)
    assert contents(reference) == before


# --------------------------------------------------------------------------- wrong input


def refused(error, sentence, folder, *args, **kwargs):
    """An error of one sentence, without a warning or a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error) as caught:
            TOSICA.load_legacy(folder, *args, **kwargs)
    message = str(caught.value)
    assert sentence in message
    assert message.endswith(".")
    assert ". " not in message.rstrip(".")


def test_no_folder(tmp_path):
    refused(FileNotFoundError, "There is no folder", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mask.npy", "holds no mask.npy, so it is not a project of the original code"),
        ("pathway.csv", "holds no pathway.csv, so it is not"),
        ("label_dictionary.csv", "holds no label_dictionary.csv, so it is not"),
        ("model-9.pth", "holds neither model-<epoch>.pth nor model.pth"),
        ("gene2token_weights.csv", "the only file with the names of the genes: pass the var_names"),
    ],
)
def test_missing_file(project, name, sentence):
    (project.folder / name).unlink()
    refused(FileNotFoundError, sentence, project.folder)


def test_missing_weights(project):
    sentence = "holds no model-3.pth; its files with weights: 'model-9.pth'."
    refused(FileNotFoundError, sentence, project.folder, weights="model-3.pth")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("pathway.csv", ",0\n0,a\n1,b\n", "pathway.csv lists 2 gene sets, but model-9.pth has 6"),
        ("pathway.csv", ",0\n" + "".join(f"{i},a\n" for i in range(6)), "more than once ('a')."),
        ("pathway.csv", "0\na\nb\n", "pathway.csv has 1 columns instead of two"),
        ("pathway.csv", "", "is not a table of comma-separated values"),
        ("label_dictionary.csv", ",k\n0,a\n", "lists 1 labels, but model-9.pth has 4"),
        ("label_dictionary.csv", ",k\n0,a\n2,b\n1,c\n3,d\n", "are not numbered 0, 1, 2, …"),
        ("label_dictionary.csv", ",k\n0,a\n1,b\n2,a\n3,d\n", "lists labels more than once ('a')"),
        ("label_dictionary.csv", ",k\n0,Unknown\n1,b\n2,a\n3,d\n", "has a label 'Unknown', which"),
        ("gene2token_weights.csv", "0,a,b\nx,1,2\n", "has 2 genes, but model-9.pth has 24"),
    ],
)
def test_table_that_contradicts_the_weights(project, name, text, sentence):
    (project.folder / name).write_text(text)
    refused(ValueError, sentence, project.folder)


def test_table_that_is_not_text(project):
    (project.folder / "pathway.csv").write_bytes(b"\xff\xfe\x00\x81,\xc3\x28\n")
    refused(ValueError, "pathway.csv' is not a table of comma-separated values", project.folder)


def test_single_label(tmp_path):
    project = write_project(tmp_path / "project", labels=["all"])
    refused(ValueError, "lists a single label ('all'): there is nothing to classify.", project.folder)


def _other_sets(table):
    return table.rename(index={"node 0": "node 1"})


def _moved_genes(table):
    values = np.roll(table.to_numpy(), 1, axis=1)
    return pd.DataFrame(values, index=table.index, columns=table.columns)


def _words(table):
    return table.astype(object).replace(0.0, "none")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_other_sets, "The rows of gene2token_weights.csv are not the gene sets of pathway.csv"),
        (_moved_genes, "has weights where the mask in model-9.pth has none: they are not from one"),
        (_words, "gene2token_weights.csv' is not a table of numbers"),
    ],
)
@pytest.mark.parametrize("named", [False, True], ids=["alone", "with var_names"])
def test_gene_weights_of_another_training(project, change, sentence, named):
    path = project.folder / "gene2token_weights.csv"
    change(pd.read_csv(path, index_col=0, na_filter=False, float_precision=None)).to_csv(path)
    refused(ValueError, sentence, project.folder, project.genes if named else None)


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (lambda g: g[:-1], ValueError, "var_names has 23 genes, but model-9.pth has 24: pass the"),
        (lambda g: [g[1], g[0], *g[2:]], ValueError, "(first at gene 0: 'null' and 'NA')"),
        (lambda g: ["NA", *g[:-1]], ValueError, "var_names has genes more than once ('NA')"),
        (lambda g: "NA", TypeError, "such as adata.var_names, not str."),
        (lambda g: [1] * 24, TypeError, "such as adata.var_names, not a list of other things."),
    ],
    ids=["few", "order", "twice", "str", "numbers"],
)
def test_names_that_do_not_fit(project, change, error, sentence):
    refused(error, sentence, project.folder, change(project.genes))


def test_genes_that_the_file_has_twice(project):
    path = project.folder / "gene2token_weights.csv"
    path.write_text(path.read_text().replace("0,NA,null,", "0,null,null,", 1))
    refused(ValueError, "csv has genes more than once ('null'), and a query", project.folder)


# --- mask


def save_mask(project, mask):
    np.save(project.folder / "mask.npy", mask)


def test_mask_of_another_shape(project):
    save_mask(project, project.mask[:, :-1].astype(float))
    sentence = "mask.npy has the shape (24, 5), but model-9.pth has 24 genes and 6 gene sets"
    refused(ValueError, sentence, project.folder)
    save_mask(project, project.mask.T.astype(float))
    refused(ValueError, "mask.npy has the shape (6, 24), but", project.folder)


def test_mask_that_differs_from_the_weights(project):
    mask = project.mask.astype(float)
    mask[3, 1] = 1 - mask[3, 1]
    mask[4, 2] = np.nan
    save_mask(project, mask)
    sentence = "mask.npy differs from the mask in model-9.pth for 2 pairs of gene and gene set"
    refused(ValueError, sentence, project.folder)


@pytest.mark.parametrize("kind", ["text", "archive", "cut", "objects", "words"])
def test_mask_that_is_not_an_array(project, kind):
    path = project.folder / "mask.npy"
    match kind:
        case "text":
            path.write_text("no array")
        case "archive":
            with path.open("wb") as file:
                np.savez(file, project.mask)
        case "cut":
            path.write_bytes(path.read_bytes()[:-9])
        case "objects":
            np.save(path, np.array([[{}]], dtype=object), allow_pickle=True)
        case "words":
            np.save(path, np.array([["a"]]))
    refused(ValueError, "mask.npy' is not a whole array of numbers in numpy's form", project.folder)


@pytest.mark.parametrize("shape", ["(10**9, 10**9)", "(1000000000, 1000000000)", "(-1, 6)", "(("])
def test_mask_that_claims_another_size(project, shape):
    """The size is compared with that of the file before memory is taken."""
    path = project.folder / "mask.npy"
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + b"v\x00" + header.encode() + bytes(24 * 6 * 8))
    refused(ValueError, "mask.npy' is not a whole array of numbers in numpy's form", project.folder)


def test_gene_set_without_a_gene(project):
    mask = project.mask.astype(float)
    mask[:, [0, 3]] = 0
    save_mask(project, mask)
    change_weights(project, "feature_embed.fe.mask", lambda t: mask_tensor(mask, t))
    sentence = "2 gene sets of mask.npy have no gene ('SET_0, 5', 'SET_3, 5')"
    refused(ValueError, sentence, project.folder)


def mask_tensor(mask, like):
    return torch.from_numpy(mask).to(like).T.repeat_interleave(8, 0)


# --- weights


def change_weights(project, name, change):
    path = project.folder / "model-9.pth"
    tensors = torch.load(path, weights_only=True)
    tensors[name] = change(tensors.get(name))
    if tensors[name] is None:
        del tensors[name]
    torch.save(tensors, path)


def _with(value):
    def change(tensor):
        changed = tensor.clone()
        changed.view(-1)[-1] = value
        return changed

    return change


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["head.bias", "feature_embed.fe.weight", "blocks.1.norm2.weight"])
def test_weights_that_are_not_finite(project, name, value):
    change_weights(project, name, _with(value))
    refused(ValueError, f"model-9.pth holds NaN or infinity in {name!r}", project.folder)


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("head.bias", lambda t: None, "not hold a model of the original: there is no 'head.bias'."),
        ("blocks.1.attn.qkv.bias", lambda t: None, "there is no 'blocks.1.attn.qkv.bias'."),
        ("cls_token", lambda t: None, "there is no 'cls_token'."),
        (
            "blocks.3.norm1.bias",
            lambda t: torch.zeros(8),
            "there is no 'blocks.2.attn.proj.bias', ",
        ),
        ("pos_embed", lambda t: torch.zeros(1), "original, which has no 'pos_embed'."),
        ("pre_logits.fc.weight", lambda t: torch.zeros(8, 8), "('pre_logits.fc.weight'; has_log"),
        ("head.weight", lambda t: t[:3], "'head.bias' has the shape (4,), and (3,) would fit"),
        ("head.bias", lambda t: t[:3], "'head.bias' has the shape (3,), and (4,) would fit"),
        ("cls_token", lambda t: t[0, 0], "'cls_token' has the shape (8,), and (1, 1, 8) would fit"),
        ("norm.bias", lambda t: t[0], "'norm.bias' has the shape (), and (8,) would fit"),
        ("head.weight", lambda t: torch.tensor(1.0), "'head.weight' has the shape (), and (1, 8)"),
        ("cls_token", lambda t: torch.zeros(1, 1, 0), "'cls_token' has the shape (1, 1, 0), and"),
        ("feature_embed.fe.weight", lambda t: t[:-1], "has the shape (47, 24), and (40, 24) would"),
        (
            "feature_embed.fe.mask",
            lambda t: t[:, :-1],
            "has the shape (48, 23), and (48, 24) would",
        ),
        ("feature_embed.fe.mask", _with(0.5), "'feature_embed.fe.mask' of model-9.pth is no mask"),
        ("feature_embed.fe.mask", _with(0.0), "'feature_embed.fe.mask' of model-9.pth is no mask"),
        ("head.bias", lambda t: [0.0] * 4, "model-9.pth holds a list under 'head.bias' instead of"),
        ("epoch", lambda t: 9, "model-9.pth holds a int under 'epoch' instead of a tensor"),
        ("head.bias", lambda t: t.int(), "holds torch.int32 values under 'head.bias' instead of a"),
        ("head.weight", lambda t: t.to_sparse(), "under 'head.weight' instead of a plain tensor"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_tensors_that_differ_from_the_originals(project, name, change, sentence):
    change_weights(project, name, change)
    refused(ValueError, sentence, project.folder)


def test_many_missing_tensors_are_not_all_named(project):
    torch.save({"a": torch.zeros(2)}, project.folder / "model-9.pth")
    sentence = "there is no 'blocks.0.attn.proj.bias', 'blocks.0.attn.proj.weight', "
    refused(ValueError, sentence, project.folder)


@pytest.mark.parametrize("contents", [torch.zeros(3), [torch.zeros(3)], {0: torch.zeros(3)}, 1])
def test_something_other_than_named_tensors(project, contents):
    torch.save(contents, project.folder / "model-9.pth")
    refused(ValueError, "model-9.pth' holds something other than tensors", project.folder)


@pytest.mark.parametrize("left", [0, 1, 100, 0.5, -5])
@pytest.mark.parametrize("archive", [True, False], ids=["archive", "older format"])
def test_weights_that_are_cut_short(project, left, archive):
    path = project.folder / "model-9.pth"
    tensors = torch.load(path, weights_only=True)
    torch.save(tensors, path, _use_new_zipfile_serialization=archive)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(left * len(whole)) if isinstance(left, float) else left])
    # How far an older file can be read without being whole is torch's affair.
    with pytest.raises(ValueError, match=r"cut short or damaged|something other than tensors"):
        TOSICA.load_legacy(project.folder)
    if archive and left != 1:
        refused(ValueError, "model-9.pth' is cut short or damaged: copy it again.", project.folder)


def test_a_bit_of_the_weights_that_flipped(project):
    """torch does not look at the checksums of a file."""
    path = project.folder / "model-9.pth"
    content = bytearray(path.read_bytes())
    tensor = project.literal.embedding.bias.detach().numpy().tobytes()
    content[content.index(tensor) + 2] ^= 1
    path.write_bytes(content)
    refused(ValueError, "model-9.pth' is cut short or damaged: copy it again.", project.folder)


def test_weights_that_unpack_to_more(project):
    """torch never compresses, so a compressed member may unpack to any size."""
    path = project.folder / "model-9.pth"
    with zipfile.ZipFile(path) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content + bytes(10**6))
    refused(ValueError, "model-9.pth' is cut short or damaged: copy it again.", project.folder)


def test_tensors_of_fewer_numbers_than_their_shape(project):
    """A view of one number may have any shape, and would fill the memory once it is used."""
    change_weights(project, "head.bias", lambda t: t[:1].expand(10**6, 10**6))
    sentence = "model-9.pth holds fewer numbers under 'head.bias' than its shape (1000000, 1000000)"
    refused(ValueError, sentence, project.folder)


def test_weights_that_are_damaged_inside(project):
    path = project.folder / "model-9.pth"
    contents = bytearray(path.read_bytes())
    start = contents.index(b"data.pkl") + 200
    contents[start : start + 400] = bytes(400)
    path.write_bytes(contents)
    with pytest.raises(ValueError, match=r"cut short or damaged|something other than tensors"):
        TOSICA.load_legacy(project.folder)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return pathlib.Path.touch, (self.marker,)


@pytest.mark.parametrize("form", ["archive", "older format", "plain pickle", "inside"])
def test_no_code_is_run(project, tmp_path, form):
    path, marker = project.folder / "model-9.pth", tmp_path / "marker"
    contents = Trap(marker)
    if form == "inside":
        contents = torch.load(path, weights_only=True) | {"head.bias": contents}
    if form == "plain pickle":
        path.write_bytes(pickle.dumps(contents))
    else:
        torch.save(contents, path, _use_new_zipfile_serialization=form != "older format")
    refused(ValueError, "was not opened further because that could run code", project.folder)
    assert not marker.exists()
    # The trap works: the original's way of reading springs it.
    if form == "plain pickle":
        pickle.loads(path.read_bytes())
    else:
        torch.load(path, weights_only=False)
    assert marker.exists()


def test_no_code_in_the_mask_is_run(project, tmp_path):
    marker = tmp_path / "marker"
    np.save(project.folder / "mask.npy", np.array([Trap(marker)], dtype=object), allow_pickle=True)
    refused(ValueError, "pickled objects are not read, because that could run c", project.folder)
    assert not marker.exists()
    np.load(project.folder / "mask.npy", allow_pickle=True)
    assert marker.exists()


def test_a_whole_network_instead_of_its_tensors(project):
    torch.save(project.literal, project.folder / "model-9.pth")
    refused(ValueError, "save the original's model.state_dict()", project.folder)


# --- parameters


def test_heads_that_do_not_divide_the_width(project):
    sentence = "n_heads=3 does not divide the width of 8 that model-9.pth"
    refused(ValueError, sentence, project.folder, n_heads=3)
